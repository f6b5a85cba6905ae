/* test_ranks_faults.c - a rank that fails in any of its allocations, collectives or reads: nobody
 * waits for ever, all ranks say the same, and the last checkpoint is one to go on from. */
#include "ranks_fault_test.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/* The n-th read of hidden states fails once, or that file's from then on. */
static struct {
    atomic_int_fast64_t reads, fail_at;
    bool for_good;
    atomic_int_fast64_t inode;
} disk;

ssize_t pread(int fd, void *buffer, size_t n, off_t at)
{
    struct stat s;
    const int64_t read = atomic_fetch_add(&disk.reads, 1) + 1;

    if (disk.fail_at && fstat(fd, &s) == 0 &&
        (read == disk.fail_at || (disk.for_good && (int64_t)s.st_ino == disk.inode))) {
        disk.inode = (int64_t)s.st_ino;
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, buffer, n, at);
}

static void every_allocation(void **state)
{
    char *plan = make_plan();
    accrue_train_options o = options(plan, false);

    (void)state;
    fail_every_allocation(&o);
    acr_free(plan);
}

static void arm_any(training_run *t, int rank, accrue_comm *comm)
{
    (void)comm;
    if (rank == 0)
        acr_fail_allocation(t->n);
}

/* Of whatever thread comes to it: a loader's, one that saves, another rank's. */
static void an_allocation_of_any_thread(void **state)
{
    char *plan = make_plan();

    (void)state;
    for (int sharded = 0; sharded < 2; sharded++) {
        accrue_train_options o = options(plan, sharded);
        const uint64_t before = acr_allocations();
        uint64_t all = 0;
        train_straight(&o);
        all = acr_allocations() - before;
        for (uint64_t n = 1; n <= all; n += 13 * STRIDE) {
            training_run t = {.opt = &o, .ranks = RANKS, .before = arm_any, .who = -1, .n = n};
            accrue_status st = train_ranks(&t);
            acr_fail_allocation(0);
            if (st && st != ACCRUE_ENOMEM)
                fail_msg("allocation %llu: %s: %s", (unsigned long long)n, accrue_status_name(st),
                         t.error[0].message);
            go_on(&o, n);
        }
        print_message("%s: %llu allocations\n", sharded ? "sharded" : "replicated",
                      (unsigned long long)all);
        remove_tree(straight);
    }
    acr_free(plan);
}

/* Collectives ----------------------------------------------------------------------------- */

static void arm_collective(training_run *t, int rank, accrue_comm *comm)
{
    if (rank == t->who)
        acr_comm_fail_collective(comm, t->n);
}

static void see_collective(training_run *t, int rank)
{
    if (rank == t->who)
        t->fired = t->status[rank] != ACCRUE_OK;
}

static void every_collective(void **state)
{
    char *plan = make_plan();

    (void)state;
    for (int sharded = 0; sharded < 2; sharded++) {
        accrue_train_options o = options(plan, sharded);
        train_straight(&o);
        for (int who = 0; who < RANKS; who += 2)
            assert_true(at_every_point(&o, who, arm_collective, see_collective, ACCRUE_ECOMM) >
                        30 / STRIDE);
        remove_tree(straight);
    }
    acr_free(plan);
}

/* Reads ----------------------------------------------------------------------------------- */

/* Of all ranks' reads, among which those of a rank come at any place. */
static void every_read(void **state)
{
    char *plan = make_plan();

    (void)state;
    for (int i = 0; i < 4; i++) {
        accrue_train_options o = options(plan, i / 2);
        int64_t all = 0;
        int failures = 0;
        o.check_bytes = 0;
        disk.reads = 0;
        train_straight(&o);
        all = disk.reads;
        for (int64_t n = 1; n <= all; n += STRIDE) {
            training_run t = {.opt = &o, .ranks = RANKS, .who = -1, .n = (uint64_t)n};
            accrue_status st = ACCRUE_OK;
            disk.reads = disk.inode = 0;
            disk.for_good = i % 2;
            disk.fail_at = n;
            st = train_ranks(&t);
            disk.fail_at = 0;
            if (st && (st != ACCRUE_EIO || !disk.for_good))
                fail_msg("read %lld: %s: %s", (long long)n, accrue_status_name(st),
                         t.error[0].message);
            failures += st != ACCRUE_OK;
            go_on(&o, (uint64_t)n);
        }
        print_message("%s, %s: %lld reads, %d of them ended the run\n",
                      i / 2 ? "sharded" : "replicated", i % 2 ? "for good" : "once", (long long)all,
                      failures);
        remove_tree(straight);
    }
    acr_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_allocation),
        TEST(an_allocation_of_any_thread),
        TEST(every_collective),
        TEST(every_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
