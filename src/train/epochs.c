/* epochs.c - which rows train, in which micro-batches, over which epochs; and how many optimizer
 * steps that makes.  All of it follows from the data set's lengths, the seed and the flags. */
#include "train/train.h"

#include <math.h>
#include <string.h>

typedef struct search {
    acr_epochs *epochs;
    const accrue_train_options *opt;
    acr_sweep sweep;
} search;

static accrue_status on_fault(const accrue_fault *f, void *ctx, accrue_error *err)
{
    const search *s = ctx;
    accrue_fault fault = *f;

    return acr_epochs_judge(s->epochs, s->opt, &s->sweep, &fault, -1, err);
}

/* The wait for files that are being written is one for all rows. */
static accrue_status find_states(search *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_epochs *e = s->epochs;
    const char *dir = s->sweep.states_dir;
    accrue_fault f;

    if (!acr_is_dir(dir) && !s->sweep.makes_missing)
        return acr_fail(err, ACCRUE_EIO, "%s: no such folder of hidden states", dir);
    for (int64_t row = 0; row < e->n_rows; row++) {
        if (e->bad[row] || acr_states_exist(dir, row, s->sweep.patience, &f))
            continue;
        if (s->sweep.makes_missing && f.kind == ACCRUE_FAULT_MISSING)
            e->made++;
        else
            ACR_TRY(on_fault(&f, s, err));
    }

cleanup:
    return st;
}

/* The data set's own columns are small beside the states, which are read before the first step only
 * where they are few. */
static accrue_status check_rows(search *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_epochs *e = s->epochs;
    const acr_batch_shape *shape = &s->sweep.shape;
    int64_t *rows = acr_malloc(((size_t)e->n_rows + 1) * sizeof *rows);
    int64_t n = 0;
    double bytes = 0;

    if (!rows)
        return acr_enomem(err, (size_t)e->n_rows * sizeof *rows, "the rows to check");
    for (int64_t row = 0; row < e->n_rows; row++) {
        bytes += (double)e->lengths[row] * 2.0 * (shape->n_aux + 1) * (double)shape->hidden_size;
        if (!e->bad[row])
            rows[n++] = row;
    }
    s->sweep.data_alone = bytes > (double)s->opt->check_bytes;
    ACR_TRY(acr_sweep_rows(&s->sweep, rows, n, on_fault, s, err));

cleanup:
    acr_free(rows);
    return st;
}

/* The first token is never a target. */
static bool is_supervised(const acr_epochs *e, int64_t row)
{
    return acr_dataset_supervises(e->data, row, e->total_seq_len);
}

/* Training on nothing would end with untrained weights and no error. */
static accrue_status need_supervision(const acr_epochs *e, accrue_error *err)
{
    if (e->supervised_rows)
        return ACCRUE_OK;
    return acr_fail(
        err, ACCRUE_EMISMATCH,
        "0 of the %lld training rows have a supervised token (loss_mask 1 behind the first "
        "token), at least 1 expected",
        (long long)e->train_rows);
}

static accrue_status count_supervision(acr_epochs *e, accrue_error *err)
{
    e->counted = true;
    for (int64_t row = 0; row < e->train_rows; row++)
        e->supervised_rows += !e->bad[row] && is_supervised(e, row);
    return need_supervision(e, err);
}

accrue_status acr_epochs_without(acr_epochs *e, int64_t row, accrue_error *err)
{
    e->bad[row] = true;
    if (row >= e->train_rows && e->lengths[row])
        e->val_rows--;
    if (!e->counted || row >= e->train_rows || !is_supervised(e, row))
        return ACCRUE_OK;
    e->supervised_rows--;
    return need_supervision(e, err);
}

/* Whole samples must fit; only one that is alone may be longer, and is cut. */
static accrue_status check_fit(const acr_epochs *e, const char *path, const acr_epoch *epochs,
                               int64_t n, const char *kind, accrue_error *err)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t b = 0; b < epochs[i].n; b++) {
            int64_t first = epochs[i].begin[b], last = epochs[i].begin[b + 1];
            int64_t tokens = 0;
            for (int64_t j = first; j < last; j++)
                tokens += e->lengths[epochs[i].rows[j]] - 1;
            if (last - first > 1 && tokens > e->total_seq_len)
                return acr_fail(err, ACCRUE_EMISMATCH,
                                "%s: %s epoch %lld, micro-batch %lld: %lld tokens in %lld rows, at "
                                "most %lld expected",
                                path, kind, (long long)i, (long long)b, (long long)tokens,
                                (long long)(last - first), (long long)e->total_seq_len);
        }
    return ACCRUE_OK;
}

static accrue_status look(search *s, const char *resumed_from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (resumed_from)
        ACR_TRY(acr_bad_rows_read(s->epochs, resumed_from, err));
    ACR_TRY(find_states(s, err));
    ACR_TRY(check_rows(s, err));

cleanup:
    return st;
}

/* One rank looks, and all leave out what that found: a file that appears in between must not make
 * them train on different rows. */
static accrue_status find_left_out(search *s, const char *resumed_from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_comm *comm = s->opt->comm;
    const bool looks = accrue_comm_rank(comm) == 0;
    char *own = NULL, *list = NULL;

    if (looks)
        st = look(s, resumed_from, err);
    if (!st && looks && comm)
        st = acr_bad_rows_text(&own, s->epochs, 0, err);
    ACR_TRY(acr_agree(comm, "the rows to leave out", st, err));
    if (!comm)
        goto cleanup;
    ACR_TRY(acr_agree_texts(&list, comm, "the rows to leave out", own, err));
    if (!looks)
        ACR_TRY(acr_bad_rows_take(s->epochs, list, strlen(list), "rank 0's list", err));

cleanup:
    acr_free(own);
    acr_free(list);
    return st;
}

accrue_status acr_epochs_open(acr_epochs *out, const accrue_train_options *opt, acr_dataset *data,
                              const char *states_dir, const acr_batch_shape *shape,
                              const char *resumed_from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_patience patience;
    search s = {out, opt, {.data = data, .states_dir = states_dir, .shape = *shape}};

    memset(out, 0, sizeof *out);
    out->data = data;
    acr_patience_init(&patience, opt->lock_timeout);
    s.sweep.patience = &patience;
    s.sweep.makes_missing = opt->on_missing == ACCRUE_POLICY_EXTRACT;
    out->n_rows = acr_dataset_rows(data);
    out->train_rows = acr_dataset_train_rows(data, opt->train_data_ratio);
    out->total_seq_len = opt->total_seq_len;
    out->seed = opt->seed;
    out->lengths = acr_calloc((size_t)out->n_rows + 1, sizeof *out->lengths);
    out->bad = acr_calloc((size_t)out->n_rows + 1, sizeof *out->bad);
    if (!out->lengths || !out->bad) {
        st = acr_enomem(err, (size_t)out->n_rows * sizeof *out->lengths, "the rows' lengths");
        goto cleanup;
    }
    out->max_given = opt->max_bad >= 0;
    out->max_bad = out->max_given ? opt->max_bad : out->n_rows / 100;
    if (!out->max_given && out->max_bad < 1)
        out->max_bad = 1;
    for (int64_t i = 0; i < out->n_rows; i++) {
        out->lengths[i] = acr_dataset_tokens(data, i);
        out->val_rows += i >= out->train_rows && out->lengths[i];
    }
    ACR_TRY(find_left_out(&s, resumed_from, err));
    ACR_TRY(count_supervision(out, err));
    if (opt->batch_plan) {
        ACR_TRY(
            acr_batch_plan_read(&out->plan, opt->batch_plan, out->n_rows, opt->total_seq_len, err));
        out->replayed = true;
        if (out->plan.n_train < opt->epochs) {
            st = acr_fail(err, ACCRUE_EMISMATCH, "%s: %lld training epochs, --epochs is %lld",
                          opt->batch_plan, (long long)out->plan.n_train, (long long)opt->epochs);
            goto cleanup;
        }
        ACR_TRY(
            check_fit(out, opt->batch_plan, out->plan.train, out->plan.n_train, "training", err));
        ACR_TRY(check_fit(out, opt->batch_plan, out->plan.val, out->plan.n_val, "validation", err));
    }

cleanup:
    acr_patience_free(&patience);
    if (st)
        acr_epochs_free(out);
    return st;
}

void acr_epochs_free(acr_epochs *e)
{
    acr_free(e->lengths);
    acr_bad_rows_free(e);
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
    const int64_t n = opt->window.gradient_accumulation_steps * accrue_comm_size(opt->comm);
    int64_t steps = accrue_steps_per_epoch(micro_batches, n, opt->accumulation_tail);

    if (micro_batches == 0)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "epoch %lld: 0 micro-batches, at least 1 expected (%lld training rows)",
                        (long long)epoch + 1, (long long)out->train_rows);
    if (steps == 0)
        return acr_fail(
            err, ACCRUE_EINVAL,
            "%s %lld%s exceeds the number of batches per epoch, %lld in epoch %lld",
            opt->global_window ? "--global-window" : "--gradient-accumulation-steps", (long long)n,
            accrue_comm_size(opt->comm) > 1 && !opt->global_window ? " (of all ranks)" : "",
            (long long)micro_batches, (long long)epoch + 1);
    if (epoch == 0) {
        out->first_epoch_micro_batches = micro_batches;
        out->first_epoch_steps = out->min_epoch_steps = out->max_epoch_steps = steps;
    }
    if (micro_batches > out->max_epoch_micro_batches)
        out->max_epoch_micro_batches = micro_batches;
    if (steps < out->min_epoch_steps)
        out->min_epoch_steps = steps;
    if (steps > out->max_epoch_steps)
        out->max_epoch_steps = steps;
    out->total_steps += steps;
    out->epochs = epoch + 1;
    /* An epoch that --max-steps cuts short never comes to its tail. */
    if (opt->accumulation_tail == ACCRUE_TAIL_DROP &&
        !(opt->max_steps && out->total_steps > opt->max_steps))
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
    out->bad_rows = e->n_bad - e->missing;
    for (int64_t i = 0; i < e->n_bad; i++)
        if (e->left_out[i].kind == ACCRUE_FAULT_MISSING && e->lengths[e->left_out[i].row])
            *(e->left_out[i].row < e->train_rows ? &out->train_rows : &out->val_rows) -= 1;
    for (int64_t i = 0; i < opt->epochs; i++) {
        acr_epoch epoch;
        if (opt->max_steps && out->total_steps >= opt->max_steps)
            break; /* later epochs never begin */
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
