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
    ACR_TRY(acr_loader_start(run->loader, &e, p->index, p->index + 1, err));
    *read = acr_loader_next(&b, run->loader, NULL) == ACCRUE_OK;
    if (*read)
        ACR_TRY(run_one(out, run, b, p, err));

cleanup:
    /* Training may go on where a proof fails. */
    back = acr_loader_start(run->loader, &run->current, run->next, run->used, st ? NULL : err);
    if (back)
        acr_loader_stop(run->loader);
    acr_epoch_free(&e);
    return st ? st : back;
}

/* The proof of the checkpoint to come is the micro-batch with the fewest rows. */
static void keep_for_proof(acr_proof *into, const acr_proof *v, int64_t index, const acr_batch *b,
                           const accrue_metrics *m)
{
    if (into->set && into->rows <= b->n_rows)
        return;
    *into = *v;
    into->set = true;
    into->index = index;
    into->rows = b->n_rows;
    into->loss_sum = m->loss_sum;
}

static accrue_status tell(accrue_run *run, int64_t done, int64_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t next = run->next, used = run->used;

    run->next = done; /* for the event */
    run->used = n;
    st = acr_emit(run, ACCRUE_EVENT_VALIDATING, NULL, NULL, err);
    run->next = next;
    run->used = used;
    if (!st && run->request >= ACCRUE_SAVE_AND_STOP)
        st = acr_fail(err, ACCRUE_ECANCELED, "stopped by the caller in a validation");
    return st;
}

/* All micro-batches of `e`; ends at the first bad row. */
static accrue_status validate(accrue_run *run, accrue_metrics *out, const acr_epoch *e,
                              accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_batch *b = NULL;
    acr_proof v;
    accrue_metrics m;
    char rows[256];

    memset(out, 0, sizeof *out);
    out->n_steps = run->opt.ttt_steps;
    run->proof.set = false;
    ACR_TRY(count(&v, run, e, err));
    ACR_TRY(acr_loader_start(run->loader, e, 0, e->n, err));
    for (int64_t i = 0; i < e->n; i++) {
        accrue_error inner = {0};
        ACR_TRY(acr_loader_next(&b, run->loader, err));
        if (e->begin[i] == e->begin[i + 1])
            continue;
        st = run_one(&m, run, b, &v, &inner);
        if (st == ACCRUE_ENUMERIC && run->opt.on_nonfinite == ACCRUE_POLICY_SKIP) {
            run->skipped_nonfinite++;
            ACR_TRY(acr_notice(run, err, "skipped: validation of epoch %lld, micro-batch %lld: %s",
                               (long long)run->epoch + 1, (long long)i, inner.message));
            continue;
        }
        if (st) {
            acr_fail(err, st, "validation of epoch %lld, micro-batch %lld (rows %s): %s",
                     (long long)run->epoch + 1, (long long)i, acr_row_list(rows, b), inner.message);
            goto cleanup;
        }
        keep_for_proof(&run->proof, &v, i, b, &m);
        accrue_metrics_add(out, &m);
        ACR_TRY(tell(run, i + 1, e->n, err));
    }

cleanup:
    return st;
}

accrue_status accrue_run_validate(accrue_run *run, accrue_metrics *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t skipped = run->skipped_nonfinite;
    accrue_error why = {0};
    acr_epoch e = {0};

    memset(out, 0, sizeof *out);
    if (run->epoch < 0)
        return acr_fail(err, ACCRUE_ESTATE, "validation before the first epoch");
    run->passed = 0;
    ACR_TRY(acr_epochs_val(&e, &run->epochs, run->epoch, err));
    acr_epochs_drop_bad(&e, &run->epochs, NULL);
    while ((st = validate(run, out, &e, &why)) && acr_loader_fault(run->loader)) {
        run->skipped_nonfinite = skipped;
        ACR_TRY(acr_run_leave_out(run, &e, 0, e.n, NULL, err));
    }
    if (st) {
        acr_fail(err, st, "%s", why.message);
        goto cleanup;
    }
    /* In mid-epoch the loader goes back to the epoch's micro-batches. */
    ACR_TRY(acr_loader_start(run->loader, &run->current, run->next, run->used, err));

cleanup:
    if (st)
        acr_loader_stop(run->loader);
    acr_epoch_free(&e);
    return st;
}
