/* validate.c - the validation of an epoch. */
#include "train/train.h"

#include <string.h>

static accrue_status val_counts(accrue_run *run, const acr_epoch *e, int64_t total[],
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t counts[ACCRUE_MAX_TTT_STEPS];

    for (int64_t i = 0; i < e->n; i++) {
        ACR_TRY(acr_count_rows(run, e, i, counts, err));
        for (int k = 0; k < run->opt.ttt_steps; k++)
            total[k] += counts[k];
    }

cleanup:
    return st;
}

/* All micro-batches of `e`; ends at the first bad row. */
static accrue_status validate(accrue_run *run, accrue_metrics *out, const acr_epoch *e,
                              accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t total[ACCRUE_MAX_TTT_STEPS] = {0}, counts[ACCRUE_MAX_TTT_STEPS];
    const acr_batch *b = NULL;
    int64_t n = 0;
    accrue_metrics m;
    acr_weighting w;
    char rows[256];

    memset(out, 0, sizeof *out);
    out->n_steps = run->opt.ttt_steps;
    for (int64_t i = 0; i < e->n; i++)
        n += e->begin[i] < e->begin[i + 1];
    ACR_TRY(val_counts(run, e, total, err));
    ACR_TRY(acr_loader_start(run->loader, e, 0, e->n, err));
    for (int64_t i = 0; i < e->n; i++) {
        accrue_error inner = {0};
        ACR_TRY(acr_loader_next(&b, run->loader, err));
        if (e->begin[i] == e->begin[i + 1])
            continue;
        acr_eagle3_counts(b, &run->setup.eagle3, counts);
        acr_weigh(&w, &run->setup.eagle3, run->opt.window.loss_normalization, counts, total, n);
        st = acr_micro_batch(&m, run->setup.model, &run->tape, b, &run->setup.eagle3, &w, false,
                             &inner);
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
        accrue_metrics_add(out, &m);
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
    ACR_TRY(acr_epochs_val(&e, &run->epochs, run->epoch, err));
    acr_epochs_drop_bad(&e, &run->epochs, NULL);
    while ((st = validate(run, out, &e, &why)) && acr_run_has_bad_row(run)) {
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
