/* sweep.c - rows against all their rules, spread over the pool and told of in order. */
#include "data/readers.h"

#include <stdatomic.h>
#include <string.h>

typedef struct result {
    accrue_fault *faults;
    int n;
    bool no_memory;
    int64_t tokens, supervised, files, bytes;
} result;

typedef struct job {
    const acr_sweep *sweep;
    const int64_t *rows;
    int64_t n;
    result *results;
    atomic_llong next;
} job;

/* Keeps the fault; whether the row is to be looked at further. */
static bool add(const job *j, result *out, const accrue_fault *f)
{
    accrue_fault *more = NULL;

    if (f->kind)
        more = acr_realloc(out->faults, ((size_t)out->n + 1) * sizeof *more);
    if (!more) {
        out->no_memory = true;
        return false;
    }
    out->faults = more;
    more[out->n++] = *f;
    return j->sweep->whole;
}

static int64_t count_nonfinite(acr_dtype t, const char *data, int64_t n)
{
    const int64_t size = (int64_t)acr_dtype_bytes(t);
    int64_t count = 0;

    for (int64_t at = 0, i = 0; at < n; at += i + 1) {
        i = acr_find_nonfinite(t, data + at * size, n - at);
        if (i < 0)
            break;
        count++;
    }
    return count;
}

/* Every number of the row; the first one that is not finite is told, all are counted. */
static accrue_status read_whole(acr_states *s, int64_t row, result *out, accrue_fault *f)
{
    const acr_tensor *t = s->hidden;
    const int64_t token = t->dims[1] * t->dims[2];
    int64_t count = 0;
    accrue_fault failed;

    for (int64_t first = 0, n = 0; first < t->dims[0]; first += n) {
        const void *data = NULL;
        int64_t bad = -1;
        if (acr_states_read(&data, &n, s, row, first, &failed)) {
            *f = failed;
            return acr_fault_status(f);
        }
        out->bytes += n * token * (int64_t)acr_dtype_bytes(t->dtype);
        bad = acr_find_nonfinite(t->dtype, data, n * token);
        if (bad < 0)
            continue;
        if (!count)
            acr_states_nonfinite(s, row,
                                 (const char *)data + (size_t)bad * acr_dtype_bytes(t->dtype),
                                 first * token + bad, f);
        count += count_nonfinite(t->dtype, data, n * token);
    }
    if (!count)
        return ACCRUE_OK;
    acr_fault_count(f, count);
    return acr_fault_status(f);
}

static accrue_status read_used(const job *j, acr_states *s, int64_t row, accrue_fault *f)
{
    accrue_status st = ACCRUE_OK;
    const int64_t most = j->sweep->shape.total_seq_len + 1;
    const int64_t used = s->hidden->dims[0] < most ? s->hidden->dims[0] : most;

    for (int64_t first = 0, n = 0; first < used; first += n) {
        const void *data = NULL;
        ACR_TRY(acr_states_read(&data, &n, s, row, first, f));
        ACR_TRY(acr_states_check_used(s, row, data, first, n, used, f));
    }

cleanup:
    return st;
}

/* The lock, which matters alone to one who tells of everything or waits. */
static bool check_lock(const job *j, int64_t row, result *out)
{
    const acr_sweep *s = j->sweep;
    accrue_error why;
    acr_lock lock = acr_states_lock(s->states_dir, row, s->patience, &why);
    accrue_fault f;

    if (lock == ACR_LOCK_NONE || (lock != ACR_LOCK_HELD && !s->whole))
        return true;
    acr_states_locked(&f, s->states_dir, row, lock, &why);
    add(j, out, &f);
    return lock != ACR_LOCK_HELD;
}

static void check_states(const job *j, acr_states *s, int64_t row, const acr_row *r, result *out)
{
    const acr_sweep *sweep = j->sweep;
    accrue_fault f;

    if (!check_lock(j, row, out))
        return;
    if ((sweep->whole || sweep->makes_missing) &&
        !acr_states_exist(sweep->states_dir, row, NULL, &f)) {
        if (!sweep->makes_missing || f.kind != ACCRUE_FAULT_MISSING)
            add(j, out, &f);
        return;
    }
    if (acr_states_begin(s, sweep->states_dir, row, &f)) {
        add(j, out, &f);
        return;
    }
    out->files = 1;
    out->bytes += s->data_at + 8 * r->tokens;
    if (acr_states_check_ids(s, row, r, &f) && !add(j, out, &f))
        return;
    if (acr_states_check_shape(s, row, r, &sweep->shape, &f)) {
        add(j, out, &f);
        return;
    }
    if (sweep->whole ? read_whole(s, row, out, &f) : read_used(j, s, row, &f))
        add(j, out, &f);
}

static void check_row(const job *j, acr_states *s, int64_t row, result *out)
{
    const acr_sweep *sweep = j->sweep;
    int64_t mask_tokens = 0;
    acr_row r = {0};
    accrue_fault f;
    int rule = 0;

    acr_dataset_raw_row(&r, &mask_tokens, sweep->data, row);
    out->tokens = r.tokens;
    for (int64_t i = 0; i < mask_tokens; i++)
        out->supervised += r.loss_mask[i] == 1;
    while (acr_dataset_fault(&f, &rule, sweep->data, row, sweep->shape.vocab_size))
        if (!add(j, out, &f))
            return;
    if (!sweep->data_alone)
        check_states(j, s, row, &r, out);
}

static void work(int64_t i, void *ctx)
{
    job *j = ctx;
    acr_states s = {0};

    (void)i;
    for (long long k = 0; (k = atomic_fetch_add(&j->next, 1)) < j->n;)
        check_row(j, &s, j->rows[k], &j->results[k]);
    acr_states_free(&s);
}

static void add_up(acr_sweep *s, const result *r)
{
    s->tokens += r->tokens;
    s->supervised_tokens += r->supervised;
    s->unsupervised_rows += r->supervised == 0;
    s->files += r->files;
    s->bytes += r->bytes;
}

accrue_status acr_sweep_rows(acr_sweep *s, const int64_t *rows, int64_t n, acr_fault_cb cb,
                             void *ctx, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    job j = {.sweep = s, .rows = rows, .n = n};

    j.results = acr_calloc((size_t)n + 1, sizeof *j.results);
    if (!j.results)
        return acr_enomem(err, (size_t)n * sizeof *j.results, "a check of rows");
    acr_parallel(acr_threads(), work, &j);
    for (int64_t k = 0; k < n; k++) {
        const result *r = &j.results[k];
        add_up(s, r);
        for (int i = 0; i < r->n; i++)
            ACR_TRY(cb(&r->faults[i], ctx, err));
        if (r->no_memory) {
            st = acr_enomem(err, sizeof *r->faults, "a check of rows");
            goto cleanup;
        }
    }

cleanup:
    for (int64_t k = 0; k < n; k++)
        acr_free(j.results[k].faults);
    acr_free(j.results);
    return st;
}
