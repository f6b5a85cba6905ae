/* ranks_fault_test.h - for tests of ranks that fail at every point of a run of three windows. */
#ifndef TEST_RANKS_FAULT_TEST_H
#define TEST_RANKS_FAULT_TEST_H

#include "ranks_train_test.h"

enum { RANKS = 3, STRIDE = FEW == 2 ? 29 : FEW ? 11 : 1 };

static char *folder, *straight, *out;
static world w;

static int make(void **state)
{
    (void)state;
    accrue_set_threads(2);
    folder = make_folder();
    straight = acr_sprintf("%s/straight", folder);
    out = acr_sprintf("%s/out", folder);
    world_open(&w, folder, &small_spec);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    world_close(&w);
    remove_folder(folder);
    acr_free(straight);
    acr_free(out);
    return 0;
}

/* Three windows of three, the second one saved, and the end behind a validation. */
static accrue_train_options options(const char *plan, bool sharded)
{
    accrue_train_options o = world_options(&w, out);

    o.compute = ACCRUE_F32;
    o.batch_plan = plan;
    o.checkpoint_freq = 0.5;
    o.keep = 1;
    o.comm_timeout = 10;
    o.fsdp_shard = sharded;
    o.window.optimizer = ACCRUE_MUON;
    return o;
}

static char *make_plan(void)
{
    char *path = acr_sprintf("%s/faults.json", folder);

    write_text(path, "{\"total_seq_len\": 28, \"train\": [[[0, 1], [2], [3, 4], [5], [6], [7], [8, "
                     "9], [10], [11]]], \"val\": [[[12], [13, 14], [15], [16]]]}");
    return path;
}

/* A run in which nothing fails; what it leaves is what all others come to. */
static void train_straight(const accrue_train_options *given)
{
    accrue_train_options o = *given;
    training_run t = {.opt = &o, .ranks = RANKS, .who = -1};

    o.save_path = straight;
    assert_ok(train_ranks(&t), &t.error[0]);
}

/* Goes on from whatever is there, without a fault, to the same end. */
static void go_on(const accrue_train_options *o, uint64_t n)
{
    training_run t = {.opt = o, .ranks = RANKS, .who = -1, .n = n};

    assert_ok(train_ranks(&t), &t.error[0]);
    assert_same_tree(straight, out);
    remove_tree(out);
}

/* Runs once for every n until the fault is not come to any more; how many had one. */
static int at_every_point(const accrue_train_options *o, int who,
                          void (*before)(training_run *t, int rank, accrue_comm *comm),
                          void (*behind)(training_run *t, int rank), accrue_status allowed)
{
    int faults = 0, failures = 0;

    for (uint64_t n = 1;; n += STRIDE) {
        training_run t = {
            .opt = o, .ranks = RANKS, .before = before, .behind = behind, .who = who, .n = n};
        accrue_status st = train_ranks(&t);
        if (st && st != allowed)
            fail_msg("point %llu of rank %d: %s: %s", (unsigned long long)n, who,
                     accrue_status_name(st), t.error[0].message);
        if (!t.fired)
            assert_int_equal(st, ACCRUE_OK);
        go_on(o, n);
        if (!t.fired)
            break;
        faults++;
        failures += st != ACCRUE_OK;
    }
    print_message("rank %d, %s: %d points, %d of them ended the run\n", who,
                  o->fsdp_shard ? "sharded" : "replicated", faults, failures);
    return faults;
}

/* Allocations ----------------------------------------------------------------------------- */

static void arm_allocation(training_run *t, int rank, accrue_comm *comm)
{
    (void)comm;
    if (rank == t->who)
        acr_fail_allocation_here(t->n);
}

/* What has not failed by now fails in as many as are left. */
static void disarm_allocation(training_run *t, int rank)
{
    if (rank != t->who)
        return;
    t->fired = true;
    for (uint64_t i = 0; i < t->n && t->fired; i++) {
        void *block = acr_malloc(1);
        t->fired = block;
        acr_free(block);
    }
    acr_fail_allocation_here(0);
}

static void fail_every_allocation(const accrue_train_options *o)
{
    train_straight(o);
    for (int who = 0; who < 2; who++)
        assert_true(at_every_point(o, who, arm_allocation, disarm_allocation, ACCRUE_ENOMEM) >
                    150 / STRIDE);
    remove_tree(straight);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clear)

#endif
