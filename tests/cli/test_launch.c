/* test_launch.c - the command as one of several that a launcher has started, from the environment
 * alone: MPI is made up. */
#include "cli_test.h"

#define T "train --verifier-name-or-path v --epochs 1 --save-path launched "

static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "PMIX_RANK",
                                        "SLURM_NTASKS",
                                        "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_LOCALID",
                                        "FAKE_ACCRUE_MPI",
                                        "FAKE_ACCRUE_OPTIONS"};

static int clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    return 0;
}

/* "A=1 B=2" into the environment. */
static void put(const char *settings)
{
    char text[400];

    clear(NULL);
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    snprintf(text, sizeof text, "%s", settings);
    for (char *s = strtok(text, " "); s; s = strtok(NULL, " ")) {
        char *value = strchr(s, '=');
        assert_non_null(value);
        *value++ = '\0';
        for (char *c = value; *c; c++)
            if (*c == '/')
                *c = ' ';
        setenv(s, value, 1);
    }
}

static void expect_size(const char *settings, const char *size)
{
    put(settings);
    assert_int_equal(run(T), 0);
    expect_option(size);
}

static void test_launchers(void **state)
{
    (void)state;
    expect_size("OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0 FAKE_ACCRUE_MPI=0/4", "size=4");
    expect_size("PMI_SIZE=4 PMI_RANK=0 FAKE_ACCRUE_MPI=0/4", "size=4");
    expect_size("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 FAKE_ACCRUE_MPI=0/4", "size=4");
    expect_size("PMIX_RANK=0 FAKE_ACCRUE_MPI=0/4", "size=4");
    /* mpirun in a step of srun, which has started its helpers */
    expect_size("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 PMI_SIZE=4 PMI_RANK=0 FAKE_ACCRUE_MPI=0/4",
                "size=4");
}

/* A job script, a step of one task, mpirun -n 1, and what is no number: no MPI is looked for. */
static void test_no_launcher(void **state)
{
    (void)state;
    expect_size("SLURM_NTASKS=4 SLURM_PROCID=0", "size=1");
    expect_size("SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 PMIX_RANK=0", "size=1");
    expect_size("OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", "size=1");
    expect_size("PMI_SIZE= OMPI_COMM_WORLD_SIZE=four", "size=1");
}

static void expect_refused(const char *settings, const char *command, const char *message)
{
    char expected[500];

    put(settings);
    assert_int_equal(run(command), 2);
    snprintf(expected, sizeof expected, "%s%s%s", message[0] ? "accrue: " : "", message,
             message[0] ? "\n" : "");
    assert_string_equal(err, expected);
    assert_string_equal(out, "");
}

/* Never R runs that write one folder. */
static void test_no_job(void **state)
{
    (void)state;
    expect_refused("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", T "--save-path unwritten",
                   "mpirun has started 2 ranks, which cannot train as one job: this build has no "
                   "MPI; one made with it has; on one machine, --ranks does without");
    expect_refused("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1", T "--save-path unwritten",
                   "rank 1: mpirun has started 2 ranks, which cannot train as one job: this build "
                   "has no MPI; one made with it has; on one machine, --ranks does without");
    expect_refused("PMIX_RANK=0", T "--save-path unwritten",
                   "a PMIx launcher has started ranks, which cannot train as one job: this build "
                   "has no MPI; one made with it has; on one machine, --ranks does without");
    expect_refused("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 FAKE_ACCRUE_MPI=0/1",
                   T "--save-path unwritten",
                   "srun has started 4 ranks, but MPI sees 1: it is not the launcher of the MPI "
                   "that accrue was built with, or needs --mpi=pmix (srun)");
    expect_refused(
        "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2 FAKE_ACCRUE_MPI=0/1", T "--save-path unwritten",
        "rank 2: srun has started 4 ranks, but MPI sees 1: it is not the launcher of the "
        "MPI that accrue was built with, or needs --mpi=pmix (srun)");
    expect_refused("PMIX_RANK=3 FAKE_ACCRUE_MPI=0/1", T "--save-path unwritten",
                   "rank 3: a PMIx launcher has started rank 3, but MPI sees 1 rank");
    assert_int_not_equal(access("unwritten", F_OK), 0);
}

static void test_ranks_flag(void **state)
{
    (void)state;
    expect_refused("PMI_SIZE=2 PMI_RANK=0 FAKE_ACCRUE_MPI=0/2", T "--ranks 3",
                   "--ranks 3, but mpiexec has started 2 ranks; leave --ranks out there: it is "
                   "for ranks of one process");
    expect_refused("PMIX_RANK=0 FAKE_ACCRUE_MPI=0/2", T "--ranks 3",
                   "--ranks 3, but a PMIx launcher has started 2 ranks; leave --ranks out there: "
                   "it is for ranks of one process");
    put("PMI_SIZE=2 PMI_RANK=0 FAKE_ACCRUE_MPI=0/2");
    assert_int_equal(run(T "--ranks 2"), 0);
    expect_option("ranks=0");
    expect_option("size=2");
    clear(NULL);
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    assert_int_equal(run(T "--ranks 3"), 0);
    expect_option("ranks=3");
    expect_text(out, "3 ranks, replicated, window of 3 x 1 micro-batches\n");
}

/* Cores are the machine's eight, shared. */
static void test_threads(void **state)
{
    (void)state;
    put("PMI_SIZE=2 PMI_RANK=0 FAKE_ACCRUE_MPI=0/2");
    assert_int_equal(run(T), 0);
    expect_option("threads=4");
    assert_int_equal(run(T "--threads 3"), 0);
    expect_option("threads=3");
    assert_int_equal(run(T "--threads 5"), 0);
    expect_option("threads=4");
    expect_text(err,
                "accrue: notice: --threads 5: 4, as 2 ranks of this machine share its cores\n");
    clear(NULL);
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    assert_int_equal(run(T "--threads 5"), 0);
    expect_option("threads=5");
}

/* All ranks parse the same flags; the first speaks, and another of a fault of its own, after a
 * moment in which the launcher would have ended it were it the fault of all. */
static void test_other_ranks(void **state)
{
    (void)state;
    put("PMI_SIZE=2 PMI_RANK=1 FAKE_ACCRUE_MPI=1/2");
    assert_int_equal(run(T "--epochs 0"), 2);
    assert_string_equal(err,
                        "accrue: rank 1: --epochs: 0, a whole number of at least 1 expected\n");
    assert_int_equal(run("train --help"), 0);
    assert_string_equal(out, "");
    assert_int_equal(run(T "--save-path other --logger csv --log-dir other"), 0);
    assert_string_equal(out, "");
    assert_string_equal(err, "");
    assert_int_equal(run("train --verifier-name-or-path fail-ACCRUE_ECOMM"), 1);
    assert_string_equal(err, "");
    assert_int_not_equal(access("other/metrics.jsonl", F_OK), 0);
    put("PMI_SIZE=2 PMI_RANK=0 FAKE_ACCRUE_MPI=0/2");
    assert_int_equal(run("train --verifier-name-or-path fail-ACCRUE_ECOMM"), 1);
    assert_string_equal(err, "accrue: fail-ACCRUE_ECOMM: broken on purpose\n");
}

static void test_run_name(void **state)
{
    (void)state;
    put("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 "
        "FAKE_ACCRUE_MPI=0/2");
    setenv("RANK", "seven", 1); /* of another tool: what the launcher says goes first */
    assert_int_equal(run(T "--logger csv --log-dir names --run-name of-{rank}-{local_rank}"), 0);
    unsetenv("RANK");
    assert_int_equal(access("names/of-0-0/metrics.csv", F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launchers), cmocka_unit_test(test_no_launcher),
        cmocka_unit_test(test_no_job),    cmocka_unit_test(test_ranks_flag),
        cmocka_unit_test(test_threads),   cmocka_unit_test(test_other_ranks),
        cmocka_unit_test(test_run_name),
    };

    return cmocka_run_group_tests(tests, clear, clear);
}
