/* mpi_comm.c - a rank of an MPI job: mpi_comm CASE [RANK [N]].  Prints how its job has ended for
 * this rank, which is also its exit status. */
#include "comm_checks.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

static void nap(long milliseconds)
{
    struct timespec t = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};

    nanosleep(&t, NULL);
}

/* All have begun, so that what follows happens to a job under way; or already has. */
static accrue_status meet(accrue_comm *c, accrue_error *err)
{
    int all[MAX_RANKS], rank = accrue_comm_rank(c);

    return acr_comm_share(c, "the beginning", &rank, sizeof rank, all, err);
}

static accrue_status compute_until_failure(accrue_comm *c, accrue_error *err)
{
    while (!acr_comm_failure(c, NULL))
        nap(5);
    return acr_comm_failure(c, err);
}

static accrue_status fail_by_itself(accrue_comm *c, accrue_error *err)
{
    acr_fail(err, ACCRUE_EIO, "disk: on fire");
    return acr_comm_fail(c, ACCRUE_EIO, err);
}

/* With messages of many megabytes on their way to a rank that takes none. */
static accrue_status fail_under_load(accrue_comm *c, bool odd, accrue_error *err)
{
    const int size = accrue_comm_size(c);
    const size_t n = (size_t)20 << 20;
    char *data = acr_calloc((size_t)size, n);
    size_t begin[MAX_RANKS + 1];
    acr_comm_request r;
    accrue_status st = ACCRUE_OK;

    CHECK(data, err);
    for (int p = 0; p <= size; p++)
        begin[p] = (size_t)p * n;
    if (odd) {
        nap(100);
        st = fail_by_itself(c, err);
    } else {
        acr_comm_gather_begin(c, &r, weights, data, begin);
        st = acr_comm_wait(c, &r, err);
    }
    acr_free(data);
    return st;
}

/* A fault in a program, which no rank must hang or read beyond an array for. */
static accrue_status disagree(accrue_comm *c, bool odd, accrue_error *err)
{
    const int64_t own[2] = {0};
    int64_t all[2 * MAX_RANKS] = {0};

    return acr_comm_share(c, odd ? "pairs" : "numbers", own, sizeof *own * (odd ? 2 : 1), all, err);
}

static accrue_status run_case(accrue_comm *c, const char *what, bool odd, uint64_t n,
                              accrue_error *err)
{
    if (!strcmp(what, "checks")) {
        check_all(c);
        if (accrue_comm_size(c) == 2)
            check_gather(c, (int64_t)140 << 20, -1); /* more than a message */
        CHECK(accrue_comm_local_size(c) == accrue_comm_size(c), err);
        return ACCRUE_OK;
    }
    if (meet(c, err))
        return err->status;
    if (!strcmp(what, "inject") && odd)
        acr_comm_fail_collective(c, n);
    if (!strcmp(what, "load"))
        return fail_under_load(c, odd, err);
    if (!strcmp(what, "disagree") && !disagree(c, odd, err))
        return compute_until_failure(c, err);
    if (!strcmp(what, "compute") && !odd)
        return compute_until_failure(c, err);
    if ((!strcmp(what, "fail") || !strcmp(what, "compute")) && odd)
        return fail_by_itself(c, err);
    if (!strcmp(what, "absent") && odd)
        return compute_until_failure(c, err);
    if (!strcmp(what, "kill") && odd)
        raise(SIGKILL);
    if (!strcmp(what, "stop") && odd)
        raise(SIGSTOP);
    if (!strcmp(what, "leave") && odd)
        _exit(0);
    return run_course(c, err);
}

int main(int argc, char **argv)
{
    accrue_error e = {.message = ""};
    accrue_comm *c = NULL;
    const int who = argc > 2 ? atoi(argv[2]) : -1;
    const uint64_t n = argc > 3 ? (uint64_t)atoi(argv[3]) : 0;
    accrue_status st = argc < 2 ? ACCRUE_EINVAL : accrue_comm_open_mpi(&c, 2, &e);

    if (!st)
        st = run_case(c, argv[1], accrue_comm_rank(c) == who, n, &e);
    /* One write, so that lines of several ranks do not mix. */
    printf("of %d: %s %s\n", accrue_comm_rank(c), accrue_status_name(st), st ? e.message : "");
    fflush(stdout);
    accrue_comm_free(c);
    CHECK(st || acr_allocated_bytes() == 0, &e);
    return (int)st;
}
