/* epochs.c - which rows train, in which micro-batches, over which epochs; and how many optimizer
 * steps that makes.  All of it follows from the data set's lengths, the seed and the flags. */
#include "train/train.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static accrue_status find_states(acr_epochs *e, const accrue_train_options *opt,
                                 const char *states_dir, accrue_error *err)
{
    char path[4096];

    if (!acr_is_dir(states_dir))
        return acr_fail(err, ACCRUE_EIO, "%s: no such folder of hidden states", states_dir);
    for (int64_t row = 0; row < e->n_rows; row++) {
        snprintf(path, sizeof path, "%s/hs_%lld.safetensors", states_dir, (long long)row);
        if (acr_is_file(path))
            continue;
        if (opt->on_missing == ACCRUE_POLICY_RAISE)
            return acr_fail(err, ACCRUE_EIO, "%s: row %lld of %lld has no hidden states", path,
                            (long long)row, (long long)e->n_rows);
        e->lengths[row] = 0;
        e->missing++;
    }
    return ACCRUE_OK;
}

/* A replayed plan loses the rows that have no states, and micro-batches that lose all theirs. */
static void drop_missing(acr_epoch *epoch, const int64_t *lengths)
{
    int64_t n = 0, at = 0, begin = 0;

    for (int64_t i = 0; i < epoch->n; i++) {
        int64_t end = epoch->begin[i + 1];
        int64_t first = at;
        for (int64_t j = begin; j < end; j++)
            if (lengths[epoch->rows[j]])
                epoch->rows[at++] = epoch->rows[j];
        begin = end;
        if (at > first)
            epoch->begin[++n] = at;
    }
    epoch->n = n;
}

accrue_status acr_epochs_open(acr_epochs *out, const accrue_train_options *opt, acr_dataset *data,
                              const char *states_dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    memset(out, 0, sizeof *out);
    out->n_rows = acr_dataset_rows(data);
    out->train_rows = acr_dataset_train_rows(data, opt->train_data_ratio);
    out->total_seq_len = opt->total_seq_len;
    out->seed = opt->seed;
    out->lengths = acr_calloc((size_t)out->n_rows + 1, sizeof *out->lengths);
    if (!out->lengths)
        return acr_enomem(err, (size_t)out->n_rows * sizeof *out->lengths, "the rows' lengths");
    for (int64_t i = 0; i < out->n_rows; i++)
        out->lengths[i] = acr_dataset_tokens(data, i);
    ACR_TRY(find_states(out, opt, states_dir, err));
    if (opt->batch_plan) {
        ACR_TRY(
            acr_batch_plan_read(&out->plan, opt->batch_plan, out->n_rows, opt->total_seq_len, err));
        out->replayed = true;
        if (out->plan.n_train < opt->epochs) {
            st = acr_fail(err, ACCRUE_EMISMATCH, "%s: %lld training epochs, --epochs is %lld",
                          opt->batch_plan, (long long)out->plan.n_train, (long long)opt->epochs);
            goto cleanup;
        }
        for (int64_t i = 0; out->missing && i < out->plan.n_train; i++)
            drop_missing(&out->plan.train[i], out->lengths);
        for (int64_t i = 0; out->missing && i < out->plan.n_val; i++)
            drop_missing(&out->plan.val[i], out->lengths);
    }

cleanup:
    if (st)
        acr_epochs_free(out);
    return st;
}

void acr_epochs_free(acr_epochs *e)
{
    acr_free(e->lengths);
    acr_batch_plan_free(&e->plan);
    memset(e, 0, sizeof *e);
}

static accrue_status copy_epoch(acr_epoch *out, const acr_epoch *from, accrue_error *err)
{
    size_t rows = (size_t)from->begin[from->n];

    out->n = from->n;
    out->begin = acr_calloc((size_t)from->n + 1, sizeof *out->begin);
    out->rows = acr_calloc(rows + 1, sizeof *out->rows);
    if (!out->begin || !out->rows) {
        acr_epoch_free(out);
        return acr_enomem(err, rows * sizeof *out->rows, "an epoch's order");
    }
    memcpy(out->begin, from->begin, ((size_t)from->n + 1) * sizeof *out->begin);
    memcpy(out->rows, from->rows, rows * sizeof *out->rows);
    return ACCRUE_OK;
}

accrue_status acr_epochs_train(acr_epoch *out, const acr_epochs *e, int64_t epoch,
                               accrue_error *err)
{
    memset(out, 0, sizeof *out);
    if (e->replayed)
        return copy_epoch(out, &e->plan.train[epoch], err);
    return acr_epoch_pack(out, e->lengths, 0, e->train_rows, e->total_seq_len, e->seed, epoch, err);
}

accrue_status acr_epochs_val(acr_epoch *out, const acr_epochs *e, int64_t epoch, accrue_error *err)
{
    memset(out, 0, sizeof *out);
    if (e->replayed && e->plan.n_val)
        return copy_epoch(out, &e->plan.val[epoch < e->plan.n_val ? epoch : e->plan.n_val - 1],
                          err);
    if (e->replayed)
        return ACCRUE_OK;
    return acr_epoch_pack(out, e->lengths + e->train_rows, e->train_rows, e->n_rows,
                          e->total_seq_len, e->seed, epoch, err);
}

static accrue_status count_epoch(accrue_train_plan *out, const accrue_train_options *opt,
                                 int64_t epoch, int64_t micro_batches, accrue_error *err)
{
    const int64_t n = opt->window.gradient_accumulation_steps;
    int64_t steps = accrue_steps_per_epoch(micro_batches, n, opt->accumulation_tail);

    if (micro_batches == 0)
        return acr_fail(err, ACCRUE_EMISMATCH, "epoch %lld has no rows to train on",
                        (long long)epoch);
    if (steps == 0)
        return acr_fail(err, ACCRUE_EINVAL,
                        "--gradient-accumulation-steps %lld exceeds the number of batches per "
                        "epoch, %lld in epoch %lld",
                        (long long)n, (long long)micro_batches, (long long)epoch);
    if (epoch == 0) {
        out->first_epoch_micro_batches = micro_batches;
        out->first_epoch_steps = out->min_epoch_steps = out->max_epoch_steps = steps;
    }
    if (steps < out->min_epoch_steps)
        out->min_epoch_steps = steps;
    if (steps > out->max_epoch_steps)
        out->max_epoch_steps = steps;
    out->total_steps += steps;
    if (opt->accumulation_tail == ACCRUE_TAIL_DROP)
        out->dropped_micro_batches += micro_batches % n;
    return ACCRUE_OK;
}

accrue_status acr_epochs_plan(accrue_train_plan *out, const acr_epochs *e,
                              const accrue_train_options *opt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    out->train_rows = out->val_rows = 0;
    for (int64_t i = 0; i < e->n_rows; i++)
        if (e->lengths[i] > 0)
            *(i < e->train_rows ? &out->train_rows : &out->val_rows) += 1;
    out->missing_rows = e->missing;
    out->epochs = opt->epochs;
    for (int64_t i = 0; i < opt->epochs; i++) {
        acr_epoch epoch;
        ACR_TRY(acr_epochs_train(&epoch, e, i, err));
        st = count_epoch(out, opt, i, epoch.n, err);
        acr_epoch_free(&epoch);
        if (st)
            goto cleanup;
    }
    if (opt->max_steps && opt->max_steps < out->total_steps)
        out->total_steps = opt->max_steps;
    out->schedule_total_steps =
        opt->scheduler_total_steps ? opt->scheduler_total_steps : out->total_steps;
    if (opt->scheduler_warmup_steps >= 0)
        out->warmup_steps = opt->scheduler_warmup_steps;
    else if (!isnan(opt->scheduler_warmup_ratio))
        out->warmup_steps =
            (int64_t)(opt->scheduler_warmup_ratio * (double)out->schedule_total_steps);
    else
        out->warmup_steps = out->schedule_total_steps / 100;

cleanup:
    return st;
}

accrue_status acr_epochs_dump(const acr_epochs *e, int64_t epochs, const char *path,
                              accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_batch_plan plan = {.total_seq_len = e->total_seq_len};

    plan.train = acr_calloc((size_t)epochs, sizeof *plan.train);
    plan.val = acr_calloc((size_t)epochs, sizeof *plan.val);
    if (!plan.train || !plan.val) {
        st = acr_enomem(err, (size_t)epochs * sizeof *plan.train, "the batch plan");
        goto cleanup;
    }
    for (int64_t i = 0; i < epochs; i++) {
        ACR_TRY(acr_epochs_train(&plan.train[i], e, i, err));
        plan.n_train = i + 1;
        ACR_TRY(acr_epochs_val(&plan.val[i], e, i, err));
        plan.n_val = i + 1;
    }
    ACR_TRY(acr_batch_plan_write(&plan, path, err));

cleanup:
    acr_batch_plan_free(&plan);
    return st;
}
