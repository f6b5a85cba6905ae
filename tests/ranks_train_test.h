/* ranks_train_test.h - for tests of whole trainings on several ranks: each with a callback of its
 * own, and faults of its own. */
#ifndef TEST_RANKS_TRAIN_TEST_H
#define TEST_RANKS_TRAIN_TEST_H

#include "resume_test.h"

#include "ranks_test.h"

/* A small draft that trains in milliseconds, its matrices of one block each. */
static const world_spec small_spec = {.hidden = 16,
                                      .intermediate = 32,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .head_dim = 8,
                                      .vocab = 40,
                                      .rows = 40,
                                      .least_tokens = 4,
                                      .most_tokens = 9,
                                      .seed = 11};

/* A training on several ranks, and what became of it on each. */
typedef struct training_run {
    const accrue_train_options *opt;
    int ranks;
    accrue_event_cb cb;
    void *payload[MAX_RANKS];
    /* On the rank's thread, around its training; may be NULL. */
    void (*before)(struct training_run *t, int rank, accrue_comm *comm);
    void (*behind)(struct training_run *t, int rank);
    int who;             /* the rank with a fault */
    uint64_t n;          /* when it has it */
    bool fired;          /* whether it had */
    bool ran[MAX_RANKS]; /* else what it needs for that could not be had */
    accrue_status status[MAX_RANKS];
    accrue_error error[MAX_RANKS];
} training_run;

static inline accrue_status train_one(accrue_comm *comm, void *ctx, accrue_error *err)
{
    training_run *t = ctx;
    accrue_train_options o = *t->opt;
    const int r = accrue_comm_rank(comm);

    o.comm = comm;
    t->ran[r] = true;
    if (t->before)
        t->before(t, r, comm);
    t->status[r] = accrue_train(&o, t->cb, t->payload[r], &t->error[r]);
    if (t->behind)
        t->behind(t, r);
    return t->status[r] ? acr_fail(err, t->status[r], "%s", t->error[r].message) : ACCRUE_OK;
}

/* Whatever becomes of it, it is the same on all ranks, and comes before the alarm does. */
static inline accrue_status train_ranks(training_run *t)
{
    accrue_error e = {0};
    accrue_status st = ACCRUE_OK;

    alarm(FEW ? 300 : 60);
    memset(t->error, 0, sizeof t->error);
    if (t->ranks == 1)
        st = train_one(NULL, t, &e);
    else
        st = acr_ranks_run(t->ranks, t->opt->comm_timeout, train_one, t, &e);
    alarm(0);
    for (int r = 0; r < t->ranks; r++) {
        if (t->ran[r])
            continue;
        /* Its thread or pool was what there was no memory for: it has told the others. */
        assert_int_not_equal(st, ACCRUE_OK);
        t->status[r] = st;
        t->error[r] = e;
    }
    for (int r = 0; r < t->ranks; r++)
        if (t->status[r] != t->status[0] || strcmp(t->error[r].message, t->error[0].message) != 0)
            fail_msg("fault %llu of rank %d: rank 0 %s: %s; rank %d %s: %s",
                     (unsigned long long)t->n, t->who, accrue_status_name(t->status[0]),
                     t->error[0].message, r, accrue_status_name(t->status[r]), t->error[r].message);
    assert_int_equal(st, t->status[0]);
    return st;
}

#endif
