/* vocab.c - the draft vocabulary: maps read from files or counted from the data set.
 *
 * t2d marks the verifier's ids that the draft has; the i-th marked id is i + d2t[i]. */
#include "data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void acr_vocab_free(acr_vocab *v)
{
    acr_free(v->d2t);
    acr_free(v->t2d);
    memset(v, 0, sizeof *v);
}

accrue_status acr_vocab_check(const acr_vocab *v, const char *name, accrue_error *err)
{
    int64_t n = 0;

    if (!v->d2t)
        return ACCRUE_OK;
    for (int64_t id = 0; id < v->vocab_size; id++) {
        if (v->t2d[id] > 1)
            return acr_fail(err, ACCRUE_EFORMAT, "%s: t2d of id %lld is %d, expected 0 or 1", name,
                            (long long)id, v->t2d[id]);
        n += v->t2d[id];
    }
    if (n != v->draft_vocab_size)
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: t2d marks %lld ids, d2t has %lld", name,
                        (long long)n, (long long)v->draft_vocab_size);
    n = 0;
    for (int64_t id = 0; id < v->vocab_size; id++) {
        if (!v->t2d[id])
            continue;
        if (v->d2t[n] != id - n)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: d2t of draft id %lld is %lld, t2d makes it %lld (id %lld)", name,
                            (long long)n, (long long)v->d2t[n], (long long)(id - n), (long long)id);
        n++;
    }
    return ACCRUE_OK;
}

static accrue_status vocab_alloc(acr_vocab *v, int64_t vocab_size, int64_t draft_vocab_size,
                                 accrue_error *err)
{
    v->vocab_size = vocab_size;
    v->draft_vocab_size = draft_vocab_size;
    v->d2t = acr_calloc((size_t)draft_vocab_size, sizeof *v->d2t);
    v->t2d = acr_calloc((size_t)vocab_size, 1);
    if (!v->d2t || !v->t2d)
        return acr_enomem(err, (size_t)vocab_size, "the vocabulary maps");
    return ACCRUE_OK;
}

typedef struct use {
    int64_t count, id;
} use;

/* Most used first, the lower id where equal; so unused ids come last, lowest first. */
static int by_use(const void *a, const void *b)
{
    const use *x = a;
    const use *y = b;

    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

accrue_status acr_vocab_build(acr_vocab *out, const int64_t *counts, int64_t vocab_size,
                              int64_t draft_vocab_size, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_vocab v = {0};
    use *uses = NULL;
    int64_t n = 0;

    memset(out, 0, sizeof *out);
    if (draft_vocab_size < 1 || draft_vocab_size > vocab_size)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "a draft vocabulary of %lld ids out of a vocabulary of %lld",
                        (long long)draft_vocab_size, (long long)vocab_size);
    uses = acr_calloc((size_t)vocab_size, sizeof *uses);
    if (!uses)
        return acr_enomem(err, (size_t)vocab_size * sizeof *uses, "token counts");
    ACR_TRY(vocab_alloc(&v, vocab_size, draft_vocab_size, err));
    for (int64_t id = 0; id < vocab_size; id++)
        uses[id] = (use){counts[id], id};
    qsort(uses, (size_t)vocab_size, sizeof *uses, by_use);
    for (int64_t i = 0; i < draft_vocab_size; i++)
        v.t2d[uses[i].id] = 1;
    for (int64_t id = 0; id < vocab_size; id++)
        if (v.t2d[id]) {
            v.d2t[n] = id - n;
            n++;
        }
    *out = v;
    memset(&v, 0, sizeof v);

cleanup:
    acr_vocab_free(&v);
    acr_free(uses);
    return st;
}

/* One map file: `n` elements of the type, or any number when n is 0. */
static accrue_status read_map(acr_tensor *out, acr_map *map, const char *path, acr_dtype dtype,
                              int64_t n, const char *what, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_npy_read(out, map, path, err));
    if (out->dtype != dtype)
        st = acr_fail(err, ACCRUE_EMISMATCH, "%s: its elements are %s, expected %s", path,
                      acr_dtype_name(out->dtype), acr_dtype_name(dtype));
    else if (out->dims[0] < 1 || (n && out->dims[0] != n))
        st = acr_fail(err, ACCRUE_EMISMATCH, "%s: a map of %lld ids, %s has %lld", path,
                      (long long)out->dims[0], what, (long long)n);

cleanup:
    return st;
}

accrue_status acr_vocab_read(acr_vocab *out, const char *d2t_path, const char *t2d_path,
                             int64_t vocab_size, int64_t draft_vocab_size, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_map d2t_map = {0};
    acr_map t2d_map = {0};
    acr_tensor d2t = {0};
    acr_tensor t2d = {0};
    acr_vocab v = {0};

    ACR_TRY(read_map(&d2t, &d2t_map, d2t_path, ACR_DTYPE_I64, draft_vocab_size,
                     "the draft vocabulary", err));
    ACR_TRY(read_map(&t2d, &t2d_map, t2d_path, ACR_DTYPE_BOOL, vocab_size,
                     "the verifier's vocabulary", err));
    vocab_size = t2d.dims[0];
    if (d2t.dims[0] > vocab_size) {
        st = acr_fail(err, ACCRUE_EMISMATCH, "%s: a map of %lld ids out of a vocabulary of %lld",
                      d2t_path, (long long)d2t.dims[0], (long long)vocab_size);
        goto cleanup;
    }
    ACR_TRY(vocab_alloc(&v, vocab_size, d2t.dims[0], err));
    memcpy(v.d2t, d2t.data, d2t.bytes);
    memcpy(v.t2d, t2d.data, t2d.bytes);
    ACR_TRY(acr_vocab_check(&v, d2t_path, err));
    if (v.draft_vocab_size == vocab_size) { /* the identity, which needs no maps */
        acr_vocab_free(&v);
        v.vocab_size = v.draft_vocab_size = vocab_size;
    }
    *out = v;
    memset(&v, 0, sizeof v);

cleanup:
    acr_vocab_free(&v);
    acr_map_close(&d2t_map);
    acr_map_close(&t2d_map);
    return st;
}

/* Reads <data>/d2t<suffix>.npy and its pair when they are there: both, or the error names the one
 * that is missing. */
static accrue_status find_maps(bool *found, acr_vocab *out, const char *data_path,
                               const char *suffix, int64_t vocab_size, int64_t draft_vocab_size,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *d2t = acr_sprintf("%s/d2t%s.npy", data_path, suffix);
    char *t2d = acr_sprintf("%s/t2d%s.npy", data_path, suffix);

    *found = false;
    if (!d2t || !t2d) {
        st = acr_enomem(err, strlen(data_path), "a path");
        goto cleanup;
    }
    if (!acr_exists(d2t) && !acr_exists(t2d))
        goto cleanup;
    ACR_TRY(acr_vocab_read(out, d2t, t2d, vocab_size, draft_vocab_size, err));
    *found = true;

cleanup:
    acr_free(d2t);
    acr_free(t2d);
    return st;
}

static accrue_status count_tokens(int64_t *counts, acr_dataset *d, int64_t vocab_size,
                                  bool skip_bad, accrue_error *err)
{
    for (int64_t row = 0; row < acr_dataset_rows(d); row++) {
        int64_t mask_tokens = 0;
        acr_row r = {0};
        accrue_fault f;
        int rule = 0;
        if (acr_dataset_fault(&f, &rule, d, row, vocab_size)) {
            if (skip_bad)
                continue;
            return acr_fail(err, acr_fault_status(&f), "%s", f.message);
        }
        acr_dataset_raw_row(&r, &mask_tokens, d, row);
        for (int64_t i = 0; i < r.tokens; i++)
            counts[r.input_ids[i]] += r.loss_mask[i];
    }
    return ACCRUE_OK;
}

accrue_status acr_vocab_load(acr_vocab *out, bool *built, acr_dataset *d, const char *data_path,
                             const char *d2t_path, const char *t2d_path, int64_t vocab_size,
                             int64_t draft_vocab_size, bool skip_bad, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t *counts = NULL;
    char suffix[32];
    bool found = false;

    memset(out, 0, sizeof *out);
    *built = false;
    if (!d2t_path != !t2d_path)
        return acr_fail(err, ACCRUE_EINVAL, "%s: the map in the other direction is needed too",
                        d2t_path ? d2t_path : t2d_path);
    if (draft_vocab_size < 0 || draft_vocab_size > vocab_size)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "a draft vocabulary of %lld ids out of a vocabulary of %lld",
                        (long long)draft_vocab_size, (long long)vocab_size);
    if (d2t_path)
        return acr_vocab_read(out, d2t_path, t2d_path, vocab_size, draft_vocab_size, err);
    if (draft_vocab_size == 0 || draft_vocab_size == vocab_size) {
        out->vocab_size = out->draft_vocab_size = vocab_size;
        return ACCRUE_OK;
    }
    snprintf(suffix, sizeof suffix, "-%lld", (long long)draft_vocab_size);
    ACR_TRY(find_maps(&found, out, data_path, suffix, vocab_size, draft_vocab_size, err));
    if (!found)
        ACR_TRY(find_maps(&found, out, data_path, "", vocab_size, draft_vocab_size, err));
    if (found)
        goto cleanup;
    counts = acr_calloc((size_t)vocab_size, sizeof *counts);
    if (!counts) {
        st = acr_enomem(err, (size_t)vocab_size * sizeof *counts, "token counts");
        goto cleanup;
    }
    ACR_TRY(count_tokens(counts, d, vocab_size, skip_bad, err));
    ACR_TRY(acr_vocab_build(out, counts, vocab_size, draft_vocab_size, err));
    *built = true;

cleanup:
    acr_free(counts);
    return st;
}

accrue_status acr_vocab_carried(acr_vocab *out, const acr_weights *w, int64_t vocab_size,
                                const char *name, accrue_error *err)
{
    const acr_tensor *d2t = acr_weights_find(w, "d2t");
    const acr_tensor *t2d = acr_weights_find(w, "t2d");

    if (!d2t || !t2d)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: tensor %s is missing", name, d2t ? "t2d" : "d2t");
    if (d2t->dtype != ACR_DTYPE_I64 || d2t->n_dims != 1 || t2d->dtype != ACR_DTYPE_BOOL ||
        t2d->n_dims != 1 || t2d->dims[0] != vocab_size)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: d2t is %s, t2d %s of %lld; I64 and BOOL of %lld expected", name,
                        acr_dtype_name(d2t->dtype), acr_dtype_name(t2d->dtype),
                        (long long)t2d->dims[0], (long long)vocab_size);
    if (vocab_alloc(out, vocab_size, d2t->dims[0], err))
        return ACCRUE_ENOMEM;
    memcpy(out->d2t, d2t->data, d2t->bytes);
    memcpy(out->t2d, t2d->data, t2d->bytes);
    return acr_vocab_check(out, name, err);
}

accrue_status acr_vocab_write(const acr_vocab *v, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *d2t = acr_sprintf("%s/d2t-%lld.npy", dir, (long long)v->draft_vocab_size);
    char *t2d = acr_sprintf("%s/t2d-%lld.npy", dir, (long long)v->draft_vocab_size);
    acr_tensor t = {.dtype = ACR_DTYPE_I64,
                    .n_dims = 1,
                    .dims = {v->draft_vocab_size},
                    .data = v->d2t,
                    .bytes = (size_t)v->draft_vocab_size * sizeof *v->d2t};

    if (!d2t || !t2d) {
        st = acr_enomem(err, strlen(dir), "a path");
        goto cleanup;
    }
    if (!v->d2t) {
        st = acr_fail(err, ACCRUE_EINVAL, "%s: equal vocabularies have no maps to write", dir);
        goto cleanup;
    }
    ACR_TRY(acr_npy_write(d2t, &t, err));
    t = (acr_tensor){.dtype = ACR_DTYPE_BOOL,
                     .n_dims = 1,
                     .dims = {v->vocab_size},
                     .data = v->t2d,
                     .bytes = (size_t)v->vocab_size};
    ACR_TRY(acr_npy_write(t2d, &t, err));

cleanup:
    acr_free(d2t);
    acr_free(t2d);
    return st;
}
