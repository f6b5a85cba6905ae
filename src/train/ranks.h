/* ranks.h - what the training layer knows of ranks: how they sum, what they exchange and when, and
 * how they come to one mind.  Part of train.h, one section per file. */
#ifndef ACR_RANKS_H
#define ACR_RANKS_H

#include "comm/comm.h"
#include "model/model.h"

/* exact.c ---------------------------------------------------------------------------------- */

/* A sum of numbers below ACR_EXACT_LIMIT, the same to the bit whatever their order. */
typedef struct acr_exact {
    int64_t high, low;
} acr_exact;
#define ACR_EXACT_LIMIT 0x1p24
enum { ACR_EXACT_TERMS = 1 << 15 }; /* at most */

/* Element by element of arrays of n. */
void acr_exact_add(acr_exact *sum, acr_dtype t, const void *terms, int64_t n);
void acr_exact_merge(acr_exact *sum, const acr_exact *other, int64_t n);
void acr_exact_value(acr_dtype t, void *out, const acr_exact *sum, int64_t n);
/* The same on the pool. */
void acr_exact_add_all(acr_exact *sum, acr_dtype t, const void *terms, int64_t n);
void acr_exact_value_all(acr_dtype t, void *out, acr_exact *sum, int64_t n);
/* The first element that is NaN or not below `limit` in size; -1: none. */
int64_t acr_find_unfit(acr_dtype t, const void *x, int64_t n, double limit);

/* dist.c ----------------------------------------------------------------------------------- */

/* How several ranks train one model: where gradients are summed, and where weights come from.
 *
 * Collectives are the same on every rank whatever its micro-batches hold, because their order comes
 * from the largest micro-batch alone: a rank that leaves a group unused, has failed, or has no
 * micro-batch at all takes its part in all of them (docs/ARCHITECTURE.md, "Ranks"). */
typedef struct acr_dist acr_dist;

typedef struct acr_dist_options {
    int64_t n;         /* micro-batches of this rank in a window */
    bool defer_reduce; /* sharded: whole gradients on every rank until the boundary */
    bool reproducible; /* sums over micro-batches are exact */
} acr_dist_options;

accrue_status acr_dist_create(acr_dist **out, acr_model *m, accrue_comm *comm,
                              const acr_dist_options *o, accrue_error *err);
void acr_dist_free(acr_dist *d);
/* With the records of the largest micro-batch on the tape: the order of the collectives, and memory
 * for all that comes.  The tape calls the hooks from here on. */
accrue_status acr_dist_plan(acr_dist *d, acr_tape *t, accrue_error *err);

/* Empties what has been summed.  Waits for what is under way. */
accrue_status acr_dist_begin_window(acr_dist *d, accrue_error *err);
/* Around each micro-batch, or its place where there is none; `last` of the window.  `end` takes
 * this rank's part in what is left of the collectives; ENUMERIC for a gradient that is not
 * finite. */
void acr_dist_begin(acr_dist *d, bool backward, bool last);
accrue_status acr_dist_end(acr_dist *d, accrue_error *err);
/* Behind the last one: the window's gradient is in the groups' accumulators. */
accrue_status acr_dist_finish(acr_dist *d, accrue_error *err);
/* After the masters have changed.  [collective] */
accrue_status acr_dist_refresh(acr_dist *d, accrue_error *err);
/* Memory beyond the model's own, and how much of it --defer-reduce costs. */
int64_t acr_dist_bytes(const acr_dist *d, int64_t *deferred);

/* ranks.c ---------------------------------------------------------------------------------- */

typedef accrue_status (*acr_rank_main)(accrue_comm *comm, void *ctx, accrue_error *err);
/* Runs rank_main on each of so many ranks, rank 0 on the calling thread.  The first failure. */
accrue_status acr_ranks_run(int ranks, double timeout, acr_rank_main rank_main, void *ctx,
                            accrue_error *err);

/* agree.c ---------------------------------------------------------------------------------- */

/* OK where it is so on all ranks, else the status and message of the first that failed, on all. */
accrue_status acr_agree(accrue_comm *comm, const char *what, accrue_status st, accrue_error *err);
/* `st` with the message that rank `root` has in *err, on all. */
accrue_status acr_agree_message(accrue_comm *comm, int root, accrue_status st, accrue_error *err);
/* The ranks' texts (may be NULL) one behind the other; the caller frees it. */
accrue_status acr_agree_texts(char **out, accrue_comm *comm, const char *what, const char *own,
                              accrue_error *err);
/* EMISMATCH where a rank has another value than the first, on all. */
accrue_status acr_agree_equal(accrue_comm *comm, const char *what, uint64_t own, accrue_error *err);

#endif
