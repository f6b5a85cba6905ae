/* test_logs.c - what becomes of logs when something is in the way: another run, an earlier one, a
 * full disk, damage. */
#include "cli_test.h"

#include <dirent.h>
#include <time.h>

#define T "train --verifier-name-or-path v "

static void shell(const char *format, ...)
{
    char command[600];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static void expect_file(const char *path, const char *text)
{
    static char found[OUTPUT_BYTES];

    read_file(found, path);
    assert_string_equal(found, text);
}

static size_t records_of(const char *path)
{
    json_t *records = load_records(path);
    size_t n = json_array_size(records);

    json_decref(records);
    return n;
}

static int entries_of(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = 0;

    assert_non_null(dir);
    for (const struct dirent *d = NULL; (d = readdir(dir));)
        n += d->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Folders --------------------------------------------------------------------------------- */

/* The names of the next minutes are taken, so that a run begun in any of their seconds collides. */
static void take_names(const char *suffix)
{
    time_t now = time(NULL);

    for (time_t t = now; t < now + 120; t++) {
        char name[100], path[200];
        struct tm parts;
        localtime_r(&t, &parts);
        strftime(name, sizeof name, "%Y-%m-%dT%H:%M:%S", &parts);
        snprintf(path, sizeof path, "taken/%s%s", name, suffix);
        assert_true(mkdir(path, 0777) == 0 || errno == EEXIST);
    }
}

static void expect_own_folder(const char *flags, const char *suffix)
{
    char command[300], *line = NULL, path[300];

    snprintf(command, sizeof command,
             T "--save-path own --epochs 1 --logger csv --log-dir taken %s", flags);
    assert_int_equal(run(command), 0);
    line = strstr(out, "\nlogs in taken/");
    assert_non_null(line);
    line += strlen("\nlogs in ");
    line[strcspn(line, "\n")] = '\0';
    assert_string_equal(line + strlen(line) - strlen(suffix), suffix);
    snprintf(path, sizeof path, "%s/metrics.csv", line);
    assert_true(exists(path));
    assert_int_equal(entries_of(line), 2);
}

static void test_default_names_are_unique(void **state)
{
    (void)state;
    shell("rm -rf taken own && mkdir taken");
    take_names("");
    expect_own_folder("", "-2");
    take_names("-2");
    expect_own_folder("", "-3");
    take_names("-3");
    expect_own_folder("--run-name {time}", "-4");
}

static void test_two_runs_under_one_name(void **state)
{
    static const char second[] =
        T "--save-path two/b --epochs 1 --logger tensorboard,csv,jsonl --log-dir two --run-name x";

    (void)state;
    shell("rm -rf two");
    setenv("FAKE_ACCRUE_MS", "20", 1);
    pid_t first = begin_run(T "--save-path two/a --epochs 20 --logger csv,jsonl --log-dir two "
                              "--run-name x");
    wait_for_text("two/x/metrics.csv");
    unsetenv("FAKE_ACCRUE_MS");
    char *argv[MAX_ARGS], line[300];
    snprintf(line, sizeof line, "%s", second);
    split(argv, line);
    shell("cp cli.out first.out");
    assert_int_equal(run_argv(argv, "second.out"), 2);
    assert_string_equal(err, "accrue: two/x: another run writes its logs there; --run-name gives "
                             "this one a folder of its own\n");
    expect_file("second.out", "");
    assert_false(exists("two/b/metrics.jsonl"));
    assert_false(exists("two/b/run.yaml"));
    assert_int_equal(entries_of("two/x"), 3);
    assert_true(records_of("two/x/metrics.jsonl") > 0);
    kill(first, SIGKILL);
    assert_int_equal(waitpid(first, NULL, 0), first);
    /* With the process its lock has gone. */
    assert_int_equal(run(second), 0);
    assert_true(exists("two/x/metrics.csv.aside-1"));
}

/* Beginning anew -------------------------------------------------------------------------- */

static void test_earlier_logs_are_kept(void **state)
{
    static const char command[] = T "--save-path kept/o --epochs 1 --logger tensorboard,csv,jsonl "
                                    "--log-dir kept --run-name x";

    (void)state;
    shell("rm -rf kept && mkdir -p kept/o kept/x");
    write_text("kept/o/metrics.jsonl", "not mine\n");
    write_text("kept/o/metrics.jsonl.aside-1", "nor that\n");
    write_text("kept/x/metrics.jsonl", "a");
    write_text("kept/x/metrics.csv", "b");
    write_text("kept/x/validation.csv", ""); /* nothing to keep */
    write_text("kept/x/events.out.tfevents.1.a.1.0", "c");
    assert_int_equal(run(command), 0);
    expect_text(err, "accrue: notice: kept/o/metrics.jsonl is of an earlier run and is kept as "
                     "kept/o/metrics.jsonl.aside-2\n");
    expect_text(err, "accrue: notice: kept/x/metrics.csv is of an earlier run and is kept as "
                     "kept/x/metrics.csv.aside-1\n");
    expect_file("kept/o/metrics.jsonl.aside-1", "nor that\n");
    expect_file("kept/o/metrics.jsonl.aside-2", "not mine\n");
    expect_file("kept/x/metrics.jsonl.aside-1", "a");
    expect_file("kept/x/metrics.csv.aside-1", "b");
    assert_false(exists("kept/x/validation.csv.aside-1"));
    expect_file("kept/x/events.out.tfevents.1.a.1.0", "c");
    assert_int_equal(records_of("kept/o/metrics.jsonl"), 41);
    assert_int_equal(records_of("kept/x/metrics.jsonl"), 41);
    shell("cp kept/x/validation.csv kept/before");
    assert_int_equal(run(command), 0);
    shell("cmp -s kept/x/validation.csv.aside-1 kept/before");
    assert_int_equal(records_of("kept/o/metrics.jsonl.aside-3"), 41);
}

/* Whatever cannot be opened, nothing is changed and nothing new stays. */
static void test_all_are_opened_first(void **state)
{
    static const char *const blocks[] = {"validation.csv", "metrics.csv", "metrics.jsonl"};
    char line[200];

    (void)state;
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        shell("rm -rf first && mkdir -p first/o first/x/%s", blocks[i]);
        write_text("first/o/metrics.jsonl", "mine\n");
        write_text("first/x/other", "");
        assert_int_equal(run(T "--save-path first/o --logger jsonl,csv,tensorboard --log-dir first "
                               "--run-name x"),
                         1);
        snprintf(line, sizeof line, "accrue: first/x/%s: Is a directory\n", blocks[i]);
        assert_string_equal(err, line);
        expect_file("first/o/metrics.jsonl", "mine\n");
        assert_int_equal(entries_of("first/o"), 1);
        assert_int_equal(entries_of("first/x"), 2);
    }
}

/* Failures while it goes ------------------------------------------------------------------ */

static const struct {
    const char *logger, *file;
    int step, metrics; /* lost from there; records that metrics.jsonl has when the run is stopped */
} losses[] = {{"csv", "full/run/metrics.csv", 0, 1},
              {"csv", "full/run/validation.csv", 40, 41},
              {"jsonl", "full/run/metrics.jsonl", 0, 1},
              {"csv", "full/out/metrics.jsonl", 0, -1}};

static void lose_one(size_t i, const char *flags)
{
    char command[300];

    shell("rm -rf full && mkdir -p full/run full/out");
    assert_int_equal(symlink("/dev/full", losses[i].file), 0);
    snprintf(command, sizeof command,
             T "--save-path full/out --epochs 2 --log-dir full --run-name run --logger %s %s",
             losses[i].logger, flags);
    assert_int_equal(run(command), 1);
}

/* The window is finished and saved, and the line comes last. */
static void test_lost_log_stops(void **state)
{
    char line[300];

    (void)state;
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        lose_one(i, "");
        snprintf(line, sizeof line,
                 "accrue: notice: stopped by a log that cannot be written at optimizer step %d; "
                 "saved as full/out/0; the same command goes on from there\n"
                 "accrue: %s: No space left on device; no records from step %d on\n",
                 losses[i].step ? 40 : 1, losses[i].file, losses[i].step);
        expect_text(err, line);
        assert_string_equal(strstr(err, line), line);
        assert_true(exists("full/out/0"));
        assert_false(exists("full/out/1"));
        if (losses[i].metrics >= 0)
            assert_int_equal(records_of("full/out/metrics.jsonl"), losses[i].metrics);
    }
    lose_one(0, "--no-resume-from-checkpoint");
    expect_text(err, "; the same command without --no-resume-from-checkpoint goes on from there\n");
}

static void test_lost_log_goes_on(void **state)
{
    char line[300];

    (void)state;
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        lose_one(i, "--on-save-error continue");
        snprintf(line, sizeof line,
                 "accrue: notice: %s: No space left on device; no records from step %d on; "
                 "training goes on\n",
                 losses[i].file, losses[i].step);
        expect_text(err, line);
        assert_null(strstr(strstr(err, line) + 1, line));
        snprintf(line, sizeof line,
                 "\naccrue: %s: No space left on device; no records from step %d on\n",
                 losses[i].file, losses[i].step);
        assert_string_equal(strstr(err, line), line);
        assert_int_equal(count_lines(err), 3);
        assert_true(exists("full/out/1"));
        if (losses[i].metrics >= 0)
            assert_int_equal(records_of("full/out/metrics.jsonl"), 82);
    }
}

static void test_removed_folder(void **state)
{
    (void)state;
    shell("rm -rf gone");
    setenv("FAKE_ACCRUE_MS", "10", 1);
    pid_t child = begin_run(T "--save-path gone/o --epochs 1 --logger csv,jsonl --log-dir gone "
                              "--run-name x");
    wait_for_text("gone/x/metrics.csv");
    shell("mv gone/x gone/elsewhere");
    assert_int_equal(end_run(child), 0);
    expect_text(err, "accrue: notice: removed while the run went on: gone/x/metrics.jsonl, "
                     "gone/x/metrics.csv, gone/x/validation.csv\n");
    expect_text(out, "\ngone/o/0, gone/o/metrics.jsonl, gone/o/training.svg\n");

    /* All of it, the checkpoints too, and no save that would make it again. */
    shell("rm -rf gone");
    child = begin_run(T "--save-path gone/o --epochs 1 --logger csv --log-dir gone --run-name x");
    wait_for_text("gone/x/metrics.csv");
    shell("mv gone gone.old && touch gone");
    assert_int_equal(end_run(child), 0);
    expect_text(err, "accrue: notice: removed while the run went on: gone/o/metrics.jsonl, "
                     "gone/x/metrics.csv, gone/x/validation.csv\n");
    assert_null(strstr(strstr(out, "epoch  steps"), "gone"));
    unsetenv("FAKE_ACCRUE_MS");
    shell("rm -rf gone gone.old");
}

/* Damage ---------------------------------------------------------------------------------- */

static const char resumed[] = T "--save-path cut/o --epochs 2 --logger csv,jsonl --log-dir cut "
                                "--run-name x";

static void expect_whole(void)
{
    static const char *const files[] = {"o/metrics.jsonl", "x/metrics.jsonl", "x/metrics.csv",
                                        "x/validation.csv"};

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        shell("cmp whole/%s cut/%s", files[i], files[i]);
}

/* A line in the middle is broken, torn in two, foreign, or the file is out of order: every record
 * before the checkpoint stays, and the run ends as one whose logs nobody touched. */
static void test_damaged_lines(void **state)
{
    static const struct {
        const char *script;
        bool aside;
    } cases[] = {
        {"sed -i '5i {\"train\": {\"lo' cut/o/metrics.jsonl cut/x/metrics.jsonl && "
         "sed -i '5i 3,0,0.1' cut/x/metrics.csv",
         true},
        {"sed -i '7i \\\\' cut/o/metrics.jsonl cut/x/metrics.jsonl cut/x/metrics.csv", true},
        {"sed -i '2i {\"note\": 1}' cut/o/metrics.jsonl cut/x/metrics.jsonl && "
         "sed -i '2i a,b' cut/x/metrics.csv",
         true},
        {"sed -i '$i x' cut/o/metrics.jsonl cut/x/metrics.jsonl cut/x/metrics.csv", true},
        {"sed -i '$a x' cut/o/metrics.jsonl cut/x/metrics.jsonl cut/x/metrics.csv", false},
        {"for f in o/metrics.jsonl x/metrics.jsonl x/metrics.csv; do tail -1 cut/$f >l && "
         "sed -i -e '3r l' cut/$f; done",
         false},
    };

    (void)state;
    shell("rm -rf cut whole");
    assert_int_equal(run(resumed), 0);
    shell("cp -r cut whole");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        shell("rm -rf cut && cp -r whole cut");
        shell("%s", cases[i].script);
        shell("cp -r cut damaged");
        setenv("FAKE_ACCRUE_RESUME", "1 50 10", 1);
        assert_int_equal(run(resumed), 0);
        unsetenv("FAKE_ACCRUE_RESUME");
        expect_whole();
        assert_int_equal(exists("cut/o/metrics.jsonl.aside-1"), cases[i].aside);
        assert_int_equal(exists("cut/x/metrics.csv.aside-1"), cases[i].aside);
        if (cases[i].aside) {
            expect_text(err, "accrue: notice: cut/o/metrics.jsonl has broken lines and is kept as "
                             "cut/o/metrics.jsonl.aside-1\n");
            shell("cmp damaged/o/metrics.jsonl cut/o/metrics.jsonl.aside-1");
            shell("cmp damaged/x/metrics.csv cut/x/metrics.csv.aside-1");
        } else {
            assert_null(strstr(err, "aside"));
        }
        assert_false(exists("cut/o/metrics.jsonl.tmp"));
        shell("rm -rf damaged");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_names_are_unique),
        cmocka_unit_test(test_two_runs_under_one_name),
        cmocka_unit_test(test_earlier_logs_are_kept),
        cmocka_unit_test(test_all_are_opened_first),
        cmocka_unit_test(test_lost_log_stops),
        cmocka_unit_test(test_lost_log_goes_on),
        cmocka_unit_test(test_removed_folder),
        cmocka_unit_test(test_damaged_lines),
    };

    return cmocka_run_group_tests_name("cli_logs", tests, NULL, NULL);
}
