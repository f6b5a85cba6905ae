/* dataset.c - the data set: the Arrow files that state.json lists, as one table of rows. */
#include "data/readers.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { MAX_STATE = 16 << 20 };

struct acr_dataset {
    char *dir;
    acr_arrow table;
    acr_map *maps;
    char **paths;
    size_t n_files;
    atomic_uchar *checked; /* [rows]; the loader's thread and its owner both read rows */
};

static accrue_status open_file(acr_dataset *d, const json_t *entry, const char *state,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *name = json_string_value(json_object_get(entry, "filename"));
    size_t i = d->n_files;

    if (!name || !*name || strchr(name, '/'))
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: _data_files %zu: filename must name a file in the same folder", state,
                        i);
    d->paths[i] = acr_sprintf("%s/%s", d->dir, name);
    if (!d->paths[i])
        return acr_enomem(err, strlen(d->dir) + strlen(name) + 2, "a path");
    d->n_files++;
    ACR_TRY(acr_map_open(&d->maps[i], d->paths[i], err));
    ACR_TRY(acr_arrow_append(&d->table, d->maps[i].data, d->maps[i].bytes, d->paths[i], err));

cleanup:
    return st;
}

static accrue_status open_files(acr_dataset *d, const char *state_path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *state = NULL;
    const json_t *files = NULL;
    size_t n = 0;

    ACR_TRY(acr_json_load(&state, state_path, MAX_STATE, err));
    files = json_object_get(state, "_data_files");
    n = json_array_size(files);
    if (n == 0) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: _data_files lists no file", state_path);
        goto cleanup;
    }
    if (json_array_size(json_object_get(state, "_indices_data_files"))) {
        st = acr_fail(err, ACCRUE_ENOTSUP,
                      "%s: _indices_data_files: a data set with an index of its rows", state_path);
        goto cleanup;
    }
    d->maps = acr_calloc(n, sizeof *d->maps);
    d->paths = acr_calloc(n, sizeof *d->paths);
    if (!d->maps || !d->paths) {
        st = acr_enomem(err, n * sizeof *d->maps, state_path);
        goto cleanup;
    }
    for (size_t i = 0; i < n; i++)
        ACR_TRY(open_file(d, json_array_get(files, i), state_path, err));

cleanup:
    json_decref(state);
    return st;
}

accrue_status acr_dataset_open(acr_dataset **out, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_dataset *d = acr_calloc(1, sizeof *d);
    char *state = acr_sprintf("%s/state.json", dir);

    *out = NULL;
    if (!d || !state || !(d->dir = acr_strdup(dir))) {
        st = acr_enomem(err, sizeof *d, dir);
        goto cleanup;
    }
    ACR_TRY(open_files(d, state, err));
    d->checked = acr_calloc((size_t)d->table.rows + 1, sizeof *d->checked);
    if (!d->checked) {
        st = acr_enomem(err, (size_t)d->table.rows, dir);
        goto cleanup;
    }
    *out = d;
    d = NULL;

cleanup:
    acr_dataset_close(d);
    acr_free(state);
    return st;
}

void acr_dataset_close(acr_dataset *d)
{
    if (!d)
        return;
    acr_arrow_free(&d->table);
    for (size_t i = 0; i < d->n_files; i++) {
        acr_map_close(&d->maps[i]);
        acr_free(d->paths[i]);
    }
    acr_free(d->maps);
    acr_free(d->paths);
    acr_free((void *)d->checked);
    acr_free(d->dir);
    acr_free(d);
}

int64_t acr_dataset_rows(const acr_dataset *d)
{
    return d->table.rows;
}

/* The record batch of a row, which must exist. */
static const acr_arrow_chunk *find_chunk(const acr_dataset *d, int64_t row)
{
    int64_t low = 0;
    int64_t high = d->table.n_chunks - 1;

    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (d->table.chunks[middle].first <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return &d->table.chunks[low];
}

int64_t acr_dataset_tokens(const acr_dataset *d, int64_t row)
{
    const acr_arrow_chunk *c = NULL;
    int64_t begin = 0;
    int64_t end = 0;

    if (row < 0 || row >= d->table.rows)
        return 0;
    c = find_chunk(d, row);
    acr_arrow_span(&begin, &end, &c->input_ids, row - c->first);
    return end - begin;
}

void acr_dataset_raw_row(acr_row *out, int64_t *mask_tokens, const acr_dataset *d, int64_t row)
{
    const acr_arrow_chunk *c = find_chunk(d, row);
    int64_t ids = 0, ids_end = 0, mask = 0, mask_end = 0;

    acr_arrow_span(&ids, &ids_end, &c->input_ids, row - c->first);
    acr_arrow_span(&mask, &mask_end, &c->loss_mask, row - c->first);
    *out = (acr_row){.tokens = ids_end - ids};
    *mask_tokens = mask_end - mask;
    if (ids_end > ids)
        out->input_ids = c->input_ids.values + ids;
    if (mask_end > mask)
        out->loss_mask = c->loss_mask.values + mask;
}

static accrue_status wrong_length(accrue_fault *f, const acr_arrow_chunk *c, int64_t row,
                                  const char *what, int64_t found, int64_t tokens)
{
    char a[32], b[64];

    snprintf(a, sizeof a, "%lld", (long long)found);
    snprintf(b, sizeof b, "%lld as there are input_ids", (long long)tokens);
    return acr_fault_set(f, ACCRUE_FAULT_LENGTH, c->name, row, what, a, b);
}

/* Values of a row that are null or outside [0, end): all are counted, the first is told. */
static accrue_status wrong_value(accrue_fault *f, const acr_arrow_chunk *c, int64_t row,
                                 accrue_fault_kind kind, const acr_arrow_list *list, int64_t end)
{
    char what[64], found[32] = "null", expected[64] = "0 or 1";
    int64_t first = -1, count = 0, begin = 0, stop = 0;

    acr_arrow_span(&begin, &stop, list, row - c->first);
    for (int64_t i = begin; i < stop; i++)
        if ((list->values[i] < 0 || list->values[i] >= end ||
             acr_arrow_is_null(list->values_there, i)) &&
            !count++)
            first = i;
    if (!count)
        return ACCRUE_OK;
    if (!acr_arrow_is_null(list->values_there, first))
        snprintf(found, sizeof found, "%lld", (long long)list->values[first]);
    first -= begin;
    snprintf(what, sizeof what, "%s of token %lld",
             kind == ACCRUE_FAULT_MASK ? "loss_mask" : "the id", (long long)first);
    if (kind != ACCRUE_FAULT_MASK && end == INT64_MAX)
        snprintf(expected, sizeof expected, "0 or more");
    else if (kind != ACCRUE_FAULT_MASK)
        snprintf(expected, sizeof expected, "0 to %lld", (long long)end - 1);
    acr_fault_set(f, kind, c->name, row, what, found, expected);
    f->token = first;
    acr_fault_count(f, count);
    return acr_fault_status(f);
}

/* Whole values of a row that are null: their lengths are not known. */
static accrue_status null_value(accrue_fault *f, const acr_arrow_chunk *c, int64_t row)
{
    const struct {
        const char *name;
        const uint8_t *there;
    } columns[] = {{"input_ids", c->input_ids.rows_there},
                   {"loss_mask", c->loss_mask.rows_there},
                   {"seq_len", c->seq_len_there}};

    for (int i = 0; i < ACR_COUNT(columns); i++)
        if (acr_arrow_is_null(columns[i].there, row - c->first))
            return acr_fault_set(f, ACCRUE_FAULT_LENGTH, c->name, row, columns[i].name, "null",
                                 i < 2 ? "a list" : "a length");
    return ACCRUE_OK;
}

accrue_status acr_dataset_check_positions(const acr_dataset *d, int64_t positions,
                                          accrue_error *err)
{
    for (int64_t row = 0; row < acr_dataset_rows(d); row++)
        if (acr_dataset_tokens(d, row) > positions)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: row %lld: %lld tokens, but the verifier has %lld positions",
                            find_chunk(d, row)->name, (long long)row,
                            (long long)acr_dataset_tokens(d, row), (long long)positions);
    return ACCRUE_OK;
}

accrue_status acr_dataset_fault(accrue_fault *f, int *rule, const acr_dataset *d, int64_t row,
                                int64_t vocab_size)
{
    accrue_status st = ACCRUE_OK;
    const acr_arrow_chunk *c = find_chunk(d, row);
    const int64_t seq_len = c->seq_len ? c->seq_len[row - c->first] : -1;
    int64_t mask_tokens = 0;
    acr_row r = {0};

    acr_dataset_raw_row(&r, &mask_tokens, d, row);
    while (!st && *rule < 5)
        switch ((*rule)++) {
        case 0: st = null_value(f, c, row); break;
        case 1:
            if (mask_tokens != r.tokens)
                st = wrong_length(f, c, row, "the length of loss_mask", mask_tokens, r.tokens);
            break;
        case 2:
            if (c->seq_len && seq_len != r.tokens)
                st = wrong_length(f, c, row, "seq_len", seq_len, r.tokens);
            break;
        case 3: st = wrong_value(f, c, row, ACCRUE_FAULT_MASK, &c->loss_mask, 2); break;
        default:
            if (vocab_size >= 0 || c->input_ids.values_there)
                st = wrong_value(f, c, row, ACCRUE_FAULT_VOCABULARY, &c->input_ids,
                                 vocab_size > 0 ? vocab_size : INT64_MAX);
        }
    return st;
}

accrue_status acr_dataset_row(acr_row *out, acr_dataset *d, int64_t row, accrue_error *err)
{
    int64_t mask_tokens = 0;
    int rule = 0;
    accrue_fault f;

    memset(out, 0, sizeof *out);
    if (row < 0 || row >= d->table.rows)
        return acr_fail(err, ACCRUE_EINVAL, "%s: row %lld of a data set of %lld rows", d->dir,
                        (long long)row, (long long)d->table.rows);
    if (!atomic_load_explicit(&d->checked[row], memory_order_relaxed)) {
        if (acr_dataset_fault(&f, &rule, d, row, -1))
            return acr_fail(err, acr_fault_status(&f), "%s", f.message);
        atomic_store_explicit(&d->checked[row], 1, memory_order_relaxed);
    }
    acr_dataset_raw_row(out, &mask_tokens, d, row);
    return ACCRUE_OK;
}

bool acr_dataset_supervises(const acr_dataset *d, int64_t row, int64_t total_seq_len)
{
    int64_t mask_tokens = 0;
    acr_row r = {0};

    acr_dataset_raw_row(&r, &mask_tokens, d, row);
    for (int64_t i = 1; i < r.tokens && i < mask_tokens && i <= total_seq_len; i++)
        if (r.loss_mask[i])
            return true;
    return false;
}

int64_t acr_dataset_train_rows(const acr_dataset *d, double ratio)
{
    return (int64_t)((double)d->table.rows * ratio);
}
