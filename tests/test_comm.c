/* test_comm.c - collectives of ranks that are threads, and what becomes of failures. */
#include "comm_checks.h"
#include "files.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

static const int sizes[] = {1, 2, 3, 4, 7};

typedef struct rank_run {
    accrue_comm *comm;
    void (*body)(struct rank_run *run);
    int who; /* the rank that does otherwise */
    accrue_status status;
    accrue_error error;
    pthread_t thread;
} rank_run;

static void *run_rank(void *arg)
{
    rank_run *run = arg;

    run->body(run);
    accrue_comm_free(run->comm);
    return NULL;
}

/* Each rank's outcome in runs[]; they free their ends. */
static void run_job(rank_run *runs, int size, double timeout, int who, void (*body)(rank_run *run),
                    uint64_t fail_at)
{
    accrue_comm *comm[MAX_RANKS];
    accrue_error e;

    assert_ok(accrue_comm_open_threads(comm, size, timeout, &e), &e);
    for (int r = 0; r < size; r++) {
        assert_int_equal(accrue_comm_rank(comm[r]), r);
        assert_int_equal(accrue_comm_size(comm[r]), size);
        assert_int_equal(accrue_comm_local_size(comm[r]), size);
        if (r == who)
            acr_comm_fail_collective(comm[r], fail_at);
        runs[r] = (rank_run){.comm = comm[r], .body = body, .who = who};
    }
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_create(&runs[r].thread, NULL, run_rank, &runs[r]), 0);
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_join(runs[r].thread, NULL), 0);
}

static void all_fail_alike(const rank_run *runs, int size, const char *message)
{
    for (int r = 0; r < size; r++) {
        assert_int_equal(runs[r].status, runs[0].status);
        assert_int_equal(runs[r].error.status, runs[0].status);
        assert_string_equal(runs[r].error.message, message ? message : runs[0].error.message);
    }
}

static void do_checks(rank_run *run)
{
    check_all(run->comm);
}

static void collectives_of_any_number_of_ranks(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    for (int i = 0; i < ACR_COUNT(sizes); i++)
        run_job(runs, sizes[i], 60, -1, do_checks, 0);
    run_job(runs, 3, 0, -1, do_checks, 0); /* without a timeout */
}

static void one_rank_needs_no_comm(void **state)
{
    accrue_error e = {.message = "as it was"};

    (void)state;
    assert_int_equal(accrue_comm_rank(NULL), 0);
    assert_int_equal(accrue_comm_size(NULL), 1);
    assert_int_equal(accrue_comm_local_size(NULL), 1);
    check_all(NULL);
    acr_comm_set_step(NULL, 3);
    acr_comm_fail_collective(NULL, 1);
    assert_int_equal(acr_comm_failure(NULL, &e), ACCRUE_OK);
    assert_int_equal(acr_comm_fail(NULL, ACCRUE_EIO, &e), ACCRUE_EIO);
    assert_string_equal(e.message, "as it was");
    accrue_comm_free(NULL);
}

static void one_rank_fails_as_it_is(void **state)
{
    accrue_error e = {.message = "as it was"};
    accrue_comm *c = NULL;

    (void)state;
    assert_ok(accrue_comm_open_threads(&c, 1, 1, &e), &e);
    assert_int_equal(acr_comm_fail(c, ACCRUE_EIO, &e), ACCRUE_EIO);
    assert_string_equal(e.message, "as it was");
    assert_int_equal(acr_comm_failure(c, &e), ACCRUE_OK);
    acr_comm_fail_collective(c, 2);
    assert_fails(run_course(c, &e), ACCRUE_ECOMM, &e, "counts, optimizer step 1: fails", NULL);
    accrue_comm_free(c);
}

static void refuses_what_is_no_job(void **state)
{
    accrue_comm *c[2] = {NULL};
    accrue_error e;

    (void)state;
    assert_fails(accrue_comm_open_threads(c, 0, 1, &e), ACCRUE_EINVAL, &e, "0 ranks", NULL);
    assert_fails(accrue_comm_open_threads(c, 2, -1, &e), ACCRUE_EINVAL, &e, "-1 s", NULL);
    assert_fails(accrue_comm_open_threads(c, 2, (double)NAN, &e), ACCRUE_EINVAL, &e, "nan s", NULL);
    assert_fails(accrue_comm_open_threads(c, 2, (double)INFINITY, &e), ACCRUE_EINVAL, &e, "inf s",
                 NULL);
    assert_null(c[0]);
}

static void opens_or_leaves_nothing(void **state)
{
    accrue_comm *c[3] = {NULL};
    accrue_error e;
    const size_t before = acr_allocated_bytes();
    accrue_status st = ACCRUE_ENOMEM;

    (void)state;
    for (uint64_t n = 1; st; n++) {
        acr_fail_allocation(n);
        st = accrue_comm_open_threads(c, 3, 1, &e);
        acr_fail_allocation(0);
        if (!st)
            break;
        assert_fails(st, ACCRUE_ENOMEM, &e, "out of memory", NULL);
        for (int r = 0; r < 3; r++)
            assert_null(c[r]);
        assert_int_equal(acr_allocated_bytes(), before);
    }
    for (int r = 0; r < 3; r++)
        accrue_comm_free(c[r]);
    assert_int_equal(acr_allocated_bytes(), before);
}

static void splits_evenly(void **state)
{
    int64_t begin[8];

    (void)state;
    for (int64_t n = 0; n < 40; n++)
        for (int size = 1; size < 8; size++) {
            acr_comm_split(n, size, begin);
            for (int r = 0; r <= size; r++)
                assert_int_equal(begin[r], n * r / size);
        }
    acr_comm_split(INT64_MAX, 7, begin);
    assert_int_equal(begin[7], INT64_MAX);
}

static void do_course(rank_run *run)
{
    accrue_error later;

    run->status = run_course(run->comm, &run->error);
    if (!run->status)
        return;
    CHECK(run_course(run->comm, &later) == run->status, &later); /* for good */
    CHECK(!strcmp(later.message, run->error.message), &later);
    CHECK(acr_comm_failure(run->comm, &later) == run->status, &later);
    CHECK(!strcmp(later.message, run->error.message), &later);
    acr_fail(&later, ACCRUE_EIO, "another");
    CHECK(acr_comm_fail(run->comm, ACCRUE_EIO, &later) == run->status, &later);
    CHECK(!strcmp(later.message, run->error.message), &later);
}

static void a_failing_collective_fails_all(void **state)
{
    rank_run runs[MAX_RANKS];
    accrue_error e = {.message = ""};

    (void)state;
    for (int size = 2; size <= 4; size++)
        for (int who = 0; who < size; who++)
            for (uint64_t n = 1; n <= COURSE; n++) {
                run_job(runs, size, 60, who, do_course, n);
                assert_int_equal(runs[0].status, ACCRUE_ECOMM);
                all_fail_alike(runs, size, NULL);
                acr_fail(&e, ACCRUE_ECOMM, "rank %d: ", who);
                assert_non_null(strstr(runs[0].error.message, e.message));
                assert_non_null(strstr(runs[0].error.message, "fails, as a test has asked"));
            }
    run_job(runs, 3, 60, 0, do_course, COURSE + 1);
    assert_int_equal(runs[1].status, ACCRUE_OK);
}

/* One rank fails by itself while the others wait for it, or compute. */
static void fail_by_itself(rank_run *run)
{
    accrue_comm *c = run->comm;

    if (accrue_comm_rank(c) != run->who) {
        do_course(run);
        return;
    }
    acr_fail(&run->error, ACCRUE_EIO, "disk: on fire");
    run->status = acr_comm_fail(c, ACCRUE_EIO, &run->error);
}

static void a_failing_rank_fails_all(void **state)
{
    rank_run runs[MAX_RANKS];
    accrue_error e;

    (void)state;
    for (int i = 1; i < ACR_COUNT(sizes); i++)
        for (int who = 0; who < sizes[i]; who++) {
            run_job(runs, sizes[i], 60, who, fail_by_itself, 0);
            acr_fail(&e, ACCRUE_EIO, "rank %d: disk: on fire", who);
            assert_int_equal(runs[0].status, ACCRUE_EIO);
            all_fail_alike(runs, sizes[i], e.message);
        }
}

static void nap(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};

    nanosleep(&t, NULL);
}

/* All of them, with no collective under way: a computing rank hears of it all the same. */
static void fail_while_others_compute(rank_run *run)
{
    accrue_comm *c = run->comm;

    if (accrue_comm_rank(c) == run->who) {
        fail_by_itself(run);
        return;
    }
    while (!acr_comm_failure(c, NULL))
        nap(0.005);
    run->status = acr_comm_failure(c, &run->error);
}

static void a_failure_reaches_who_computes(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    run_job(runs, 3, 60, 1, fail_while_others_compute, 0);
    assert_int_equal(runs[0].status, ACCRUE_EIO);
    all_fail_alike(runs, 3, "rank 1: disk: on fire");
}

static void fail_in_a_collective(rank_run *run)
{
    accrue_comm *c = run->comm;
    acr_comm_request r;
    int64_t begin[MAX_RANKS + 1];
    double data[8] = {0}, out[8];
    sums s = {.size = accrue_comm_size(c), .out = out};

    if (accrue_comm_rank(c) != run->who) {
        nap(0.2); /* the collective of the one that fails waits for us */
        do_course(run);
        return;
    }
    acr_comm_split(8, accrue_comm_size(c), begin);
    acr_comm_reduce_begin(c, &r, gradient, data, sizeof *data, begin, add_up, &s);
    nap(0.05);
    fail_by_itself(run);
    CHECK(r.done && acr_comm_wait(c, &r, NULL) == ACCRUE_EIO, &run->error);
}

static void a_rank_may_fail_with_a_collective_under_way(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    run_job(runs, 3, 60, 2, fail_in_a_collective, 0);
    assert_int_equal(runs[0].status, ACCRUE_EIO);
    all_fail_alike(runs, 3, "rank 2: disk: on fire");
}

static void never_come(rank_run *run)
{
    accrue_comm *c = run->comm;

    if (accrue_comm_rank(c) != run->who) {
        acr_comm_set_step(c, 17);
        run->status = run_course(c, &run->error);
        return;
    }
    while (!acr_comm_failure(c, NULL))
        nap(0.005);
    run->status = run_course(c, &run->error);
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    rank_run runs[MAX_RANKS];
    char name[64];

    (void)state;
    for (int who = 0; who < 3; who++) {
        run_job(runs, 3, 0.1, who, never_come, 0);
        all_fail_alike(runs, 3, NULL);
        snprintf(name, sizeof name, "nothing from rank %d for 0.1 s", who);
        assert_fails(runs[0].status, ACCRUE_ECOMM, &runs[0].error,
                     "the gradient of layers.0, optimizer step 1: ", name, NULL);
    }
}

static void end_early(rank_run *run)
{
    if (accrue_comm_rank(run->comm) != run->who)
        run->status = run_course(run->comm, &run->error);
}

static void a_rank_that_has_ended_is_named(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    run_job(runs, 2, 60, 1, end_early, 0);
    assert_fails(runs[0].status, ACCRUE_ECOMM, &runs[0].error, "rank 0: ", "rank 1 has ended",
                 NULL);
}

/* A fault in a program, which no rank must hang or read beyond an array for. */
static void disagree(rank_run *run)
{
    accrue_comm *c = run->comm;
    const bool odd = accrue_comm_rank(c) == run->who;
    const int64_t own[2] = {0};
    int64_t all[2 * MAX_RANKS] = {0};

    run->status = acr_comm_share(c, odd ? "pairs" : "numbers", own, sizeof *own * (odd ? 2 : 1),
                                 all, &run->error);
}

static void ranks_that_disagree_fail(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    run_job(runs, 3, 60, 1, disagree, 0);
    all_fail_alike(runs, 3, NULL);
    assert_fails(runs[0].status, ACCRUE_ECOMM, &runs[0].error, " bytes from rank ", "expected",
                 NULL);
}

static void steady(rank_run *run)
{
    accrue_error e = {.message = ""};
    uint64_t before = 0;
    int all[MAX_RANKS], rank = accrue_comm_rank(run->comm);

    CHECK(!acr_comm_share(run->comm, "a start", &rank, sizeof rank, all, &e), &e);
    before = acr_allocations();
    for (int i = 0; i < 20; i++)
        CHECK(!acr_comm_share(run->comm, "counts", &rank, sizeof rank, all, &e), &e);
    CHECK(acr_allocations() == before, &e);
}

static void collectives_allocate_nothing(void **state)
{
    rank_run runs[MAX_RANKS];

    (void)state;
    run_job(runs, 3, 60, -1, steady, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_of_any_number_of_ranks),
        cmocka_unit_test(one_rank_needs_no_comm),
        cmocka_unit_test(one_rank_fails_as_it_is),
        cmocka_unit_test(refuses_what_is_no_job),
        cmocka_unit_test(opens_or_leaves_nothing),
        cmocka_unit_test(splits_evenly),
        cmocka_unit_test(a_failing_collective_fails_all),
        cmocka_unit_test(a_failing_rank_fails_all),
        cmocka_unit_test(a_failure_reaches_who_computes),
        cmocka_unit_test(a_rank_may_fail_with_a_collective_under_way),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(a_rank_that_has_ended_is_named),
        cmocka_unit_test(ranks_that_disagree_fail),
        cmocka_unit_test(collectives_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
