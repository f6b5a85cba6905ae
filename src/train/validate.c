/* validate.c - an epoch's validation, and the part of it that proves a checkpoint. */
#include "train/train.h"

#include <string.h>

/* What a validation's weights depend on: rows per TTT step, and micro-batches that have any. */
static accrue_status count(acr_proof *v, accrue_run *run, const acr_epoch *e, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t counts[ACCRUE_MAX_TTT_STEPS];

    *v = (acr_proof){.epoch = run->epoch};
    for (int64_t i = 0; i < e->n; i++) {
        v->n += e->begin[i] < e->begin[i + 1];
        ACR_TRY(acr_count_rows(run, e, i, counts, err));
        for (int k = 0; k < run->opt.ttt_steps; k++)
            v->total[k] += counts[k];
    }

cleanup:
    return st;
}

static accrue_status run_one(accrue_metrics *out, accrue_run *run, const acr_batch *b,
                             const acr_proof *v, accrue_error *err)
{
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    acr_weighting w;

    acr_eagle3_counts(b, &run->setup.eagle3, counts);
    acr_weigh(&w, &run->setup.eagle3, run->opt.window.loss_normalization, counts, v->total, v->n);
    return acr_micro_batch(out, run->setup.model, &run->tape, b, &run->setup.eagle3, &w, false,
                           err);
}

accrue_status acr_run_prove(accrue_metrics *out, bool *read, accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK, back = ACCRUE_OK;
    const acr_proof *p = &run->proof;
    const acr_batch *b = NULL;
    acr_epoch e = {0};

    *read = false;
    ACR_TRY(acr_epochs_val(&e, &run->epochs, p->epoch, err));
    acr_epochs_drop_bad(&e, &run->epochs, NULL);
    ACR_TRY(acr_loader_start(run->loader, &e, NULL, p->index, p->index + 1, err));
    *read = acr_loader_next(&b, run->loader, NULL) == ACCRUE_OK;
    if (*read)
        ACR_TRY(run_one(out, run, b, p, err));

cleanup:
    /* Training may go on where a proof fails. */
    back = acr_run_start_loader(run, st ? NULL : err);
    if (back)
        acr_loader_stop(run->loader);
    acr_epoch_free(&e);
    return st ? st : back;
}

/* The proof of the checkpoint to come is the micro-batch with the fewest rows, of those of rank 0,
 * which alone proves it; of a sharded model there is none. */
static void keep_for_proof(accrue_run *run, const acr_proof *v, int64_t index,
                           const accrue_metrics *m)
{
    acr_proof *into = &run->proof;

    if (index % run->ranks || run->plan.sharded || (into->set && into->rows <= m->tokens))
        return;
    *into = *v;
    into->set = true;
    into->index = index;
    into->rows = m->tokens;
    into->loss_sum = m->loss_sum;
}

static accrue_status tell(accrue_run *run, int64_t done, int64_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t next = run->next, used = run->used;

    run->next = done < n ? done : n; /* for the event */
    run->used = n;
    st = acr_emit(run, ACCRUE_EVENT_VALIDATING, NULL, NULL, err);
    run->next = next;
    run->used = used;
    return st;
}

/* An epoch's validation under way. */
typedef struct validation {
    const acr_epoch *e;
    acr_proof v;
    int64_t n_values;
    double *values;    /* [e->n, 1 + n_values]: whether there is a result, and its metrics */
    bool idle, at_row; /* this rank does no more; because of a row at fault */
} validation;

static accrue_status validation_open(validation *x, accrue_run *run, const acr_epoch *e,
                                     accrue_error *err)
{
    const accrue_metrics like = acr_run_no_metrics(run);

    *x = (validation){.e = e, .n_values = acr_metrics_values(&like)};
    x->values = acr_calloc((size_t)(e->n * (1 + x->n_values)) + 1, sizeof *x->values);
    if (!x->values)
        return acr_enomem(err, (size_t)(e->n * x->n_values) * sizeof *x->values, "a validation");
    return count(&x->v, run, e, err);
}

/* The results lie rank by rank: those of rank r, its first one first. */
static double *values_of(const validation *x, const accrue_run *run, int64_t i)
{
    const int64_t ranks = run->ranks, r = i % ranks;
    const int64_t before = r * (x->e->n / ranks) + (r < x->e->n % ranks ? r : x->e->n % ranks);

    return x->values + (before + i / ranks) * (1 + x->n_values);
}

/* Micro-batch i, between acr_dist_begin and acr_dist_end. */
static accrue_status compute(validation *x, accrue_run *run, int64_t i, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_batch *b = NULL;
    accrue_metrics m = acr_run_no_metrics(run);
    accrue_error inner = {0};
    char rows[256];

    ACR_TRY(acr_loader_next(&b, run->loader, err));
    if (i >= x->e->n || x->e->begin[i] == x->e->begin[i + 1])
        goto cleanup;
    st = run_one(&m, run, b, &x->v, &inner);
    if (st == ACCRUE_ENUMERIC && run->opt.on_nonfinite == ACCRUE_POLICY_SKIP) {
        st = acr_notice(run, err, "skipped: validation of epoch %lld, micro-batch %lld: %s",
                        (long long)run->epoch + 1, (long long)i, inner.message);
        goto cleanup;
    }
    if (st) {
        acr_fail(err, st, "validation of epoch %lld, micro-batch %lld (rows %s): %s",
                 (long long)run->epoch + 1, (long long)i, acr_row_list(rows, b), inner.message);
        goto cleanup;
    }
    *values_of(x, run, i) = 1;
    acr_metrics_pack(values_of(x, run, i) + 1, &m);

cleanup:
    return st;
}

/* Micro-batches go round the ranks.  One that cannot go on still takes its part in collectives. */
static accrue_status run_rounds(validation *x, accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK, ended = ACCRUE_OK;
    const acr_turns turns = {.n = 1, .rank = run->rank, .ranks = run->ranks};
    const int64_t rounds = (x->e->n + run->ranks - 1) / run->ranks;
    accrue_error lost = {0};

    ACR_TRY(acr_loader_start(run->loader, x->e, &turns, 0, rounds, err));
    for (int64_t k = 0; k < rounds; k++) {
        acr_dist_begin(run->dist, false, false);
        if (!x->idle)
            st = compute(x, run, k * run->ranks + run->rank, err);
        ended = acr_dist_end(run->dist, &lost);
        if (ended && !st)
            return acr_fail(err, ended, "%s", lost.message);
        x->at_row = x->at_row || (st && acr_loader_fault(run->loader));
        if (!x->idle && !st)
            st = tell(run, (k + 1) * run->ranks, x->e->n, err);
        x->idle = x->idle || st;
        if (st && run->ranks == 1)
            break;
        if (run->ranks == 1 && run->request >= ACCRUE_SAVE_AND_STOP)
            break;
    }

cleanup:
    return st;
}

/* Sums in the order of the epoch. */
static accrue_status sum_up(validation *x, accrue_run *run, accrue_metrics *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t *begin = acr_calloc((size_t)run->ranks + 1, sizeof *begin);

    if (!begin)
        return acr_enomem(err, (size_t)run->ranks * sizeof *begin, "a validation");
    for (int r = 0; r < run->ranks; r++) {
        int64_t share = (x->e->n - r + run->ranks - 1) / run->ranks;
        begin[r + 1] =
            begin[r] + (size_t)((share > 0 ? share : 0) * (1 + x->n_values)) * sizeof *x->values;
    }
    ACR_TRY(acr_comm_gather(run->comm, "the validation's losses", x->values, begin, err));
    for (int64_t i = 0; i < x->e->n; i++) {
        accrue_metrics m = acr_run_no_metrics(run);
        const double *values = values_of(x, run, i);
        if (x->e->begin[i] == x->e->begin[i + 1])
            continue;
        if (*values < 1) {
            run->skipped_nonfinite++;
            continue;
        }
        acr_metrics_unpack(&m, values + 1);
        keep_for_proof(run, &x->v, i, &m);
        accrue_metrics_add(out, &m);
    }

cleanup:
    acr_free(begin);
    return st;
}

/* What a rank says at the end. */
typedef struct word {
    int32_t at_row, asked;
} word;

/* Whether any rank met with a row at fault, and what callbacks have asked for most urgently. */
static accrue_status meet(accrue_run *run, const validation *x, bool *at_row, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    word own = {.at_row = x->at_row, .asked = run->asked};
    word *all = acr_calloc((size_t)run->ranks, sizeof *all);

    if (!all)
        return acr_enomem(err, (size_t)run->ranks * sizeof *all, "a validation");
    ACR_TRY(acr_comm_share(run->comm, "the end of a validation", &own, sizeof own, all, err));
    for (int r = 0; r < run->ranks; r++) {
        *at_row = *at_row || all[r].at_row;
        if (all[r].asked > run->request)
            run->request = all[r].asked;
    }

cleanup:
    acr_free(all);
    return st;
}

/* All micro-batches of `e`; *at_row where a row at fault ended it. */
static accrue_status validate(accrue_run *run, accrue_metrics *out, const acr_epoch *e,
                              bool *at_row, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    validation x = {0};

    *out = acr_run_no_metrics(run);
    *at_row = run->proof.set = false;
    ACR_TRY(validation_open(&x, run, e, err));
    st = run_rounds(&x, run, err);
    st = acr_agree(run->comm, "a validation", x.at_row ? ACCRUE_OK : st, err);
    run->agreed = st && run->ranks > 1;
    if (st)
        goto cleanup;
    ACR_TRY(meet(run, &x, at_row, err));
    if (*at_row)
        goto cleanup;
    if (run->request >= ACCRUE_SAVE_AND_STOP) {
        run->agreed = true;
        st = acr_fail(err, ACCRUE_ECANCELED, "stopped by the caller in a validation");
        goto cleanup;
    }
    ACR_TRY(sum_up(&x, run, out, err));

cleanup:
    acr_free(x.values);
    return st;
}

static accrue_status validate_epoch(accrue_run *run, accrue_metrics *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t skipped = run->skipped_nonfinite;
    bool at_row = false;
    acr_epoch e = {0};

    if (run->epoch < 0)
        return acr_fail(err, ACCRUE_ESTATE, "validation before the first epoch");
    run->passed = 0;
    run->agreed = false;
    ACR_TRY(acr_epochs_val(&e, &run->epochs, run->epoch, err));
    acr_epochs_drop_bad(&e, &run->epochs, NULL);
    for (;;) {
        ACR_TRY(validate(run, out, &e, &at_row, err));
        if (!at_row)
            break;
        run->skipped_nonfinite = skipped;
        ACR_TRY(acr_run_leave_out(run, &e, 0, e.n, NULL, err));
    }
    /* In mid-epoch the loader goes back to the epoch's micro-batches. */
    ACR_TRY(acr_run_start_loader(run, err));

cleanup:
    if (st)
        acr_loader_stop(run->loader);
    acr_epoch_free(&e);
    return st;
}

accrue_status accrue_run_validate(accrue_run *run, accrue_metrics *out, accrue_error *err)
{
    accrue_error why = {0};
    accrue_status st = validate_epoch(run, out, &why);

    if (st)
        memset(out, 0, sizeof *out);
    return acr_run_result(run, st, &why, err);
}
