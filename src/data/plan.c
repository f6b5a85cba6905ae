/* plan.c - batch plans: the rows of every micro-batch of every epoch, as a JSON file. */
#include "data/data.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PLAN = 1 << 30 };

/* What a message about a place in the plan begins with. */
typedef struct place {
    const char *path, *part;
    size_t epoch;
    int64_t n_rows;
} place;

void acr_batch_plan_free(acr_batch_plan *p)
{
    for (int64_t i = 0; p->train && i < p->n_train; i++)
        acr_epoch_free(&p->train[i]);
    for (int64_t i = 0; p->val && i < p->n_val; i++)
        acr_epoch_free(&p->val[i]);
    acr_free(p->train);
    acr_free(p->val);
    memset(p, 0, sizeof *p);
}

static accrue_status read_micro_batch(acr_epoch *e, int64_t *at, const json_t *rows, size_t index,
                                      uint8_t *seen, const place *p, accrue_error *err)
{
    const json_t *value = NULL;
    size_t i = 0;

    json_array_foreach(rows, i, value)
    {
        json_int_t row = json_integer_value(value);
        if (!json_is_integer(value) || row < 0 || row >= p->n_rows)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: %s epoch %zu, micro-batch %zu: entry %zu is %lld, the data set "
                            "has rows 0 to %lld",
                            p->path, p->part, p->epoch, index, i, (long long)row,
                            (long long)p->n_rows - 1);
        if (seen[row])
            return acr_fail(err, ACCRUE_EFORMAT,
                            "%s: %s epoch %zu, micro-batch %zu: row %lld a second time", p->path,
                            p->part, p->epoch, index, (long long)row);
        seen[row] = 1;
        e->rows[(*at)++] = row;
    }
    return ACCRUE_OK;
}

static accrue_status read_epoch(acr_epoch *e, const json_t *epoch, uint8_t *seen, const place *p,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *rows = NULL;
    size_t n = json_array_size(epoch);
    size_t total = 0;
    size_t i = 0;
    int64_t at = 0;

    if (!json_is_array(epoch))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %s epoch %zu is not an array of micro-batches",
                        p->path, p->part, p->epoch);
    json_array_foreach(epoch, i, rows)
    {
        if (json_array_size(rows) == 0)
            return acr_fail(err, ACCRUE_EFORMAT,
                            "%s: %s epoch %zu, micro-batch %zu: not an array of rows, or empty",
                            p->path, p->part, p->epoch, i);
        total += json_array_size(rows);
    }
    e->begin = acr_calloc(n + 1, sizeof *e->begin);
    e->rows = acr_calloc(total + 1, sizeof *e->rows);
    if (!e->begin || !e->rows)
        return acr_enomem(err, (n + total) * sizeof *e->rows, p->path);
    json_array_foreach(epoch, i, rows)
    {
        ACR_TRY(read_micro_batch(e, &at, rows, i, seen, p, err));
        e->begin[++e->n] = at;
    }
    for (int64_t j = 0; j < at; j++) /* for the next epoch, at this one's cost */
        seen[e->rows[j]] = 0;

cleanup:
    return st;
}

static accrue_status read_part(acr_epoch **out, int64_t *n_out, const json_t *epochs, place p,
                               uint8_t *seen, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *epoch = NULL;
    size_t n = json_array_size(epochs);

    if (!json_is_array(epochs))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: '%s' is not an array of epochs", p.path, p.part);
    *out = acr_calloc(n + 1, sizeof **out);
    if (!*out)
        return acr_enomem(err, n * sizeof **out, p.path);
    *n_out = (int64_t)n;
    json_array_foreach(epochs, p.epoch, epoch)
        ACR_TRY(read_epoch(&(*out)[p.epoch], epoch, seen, &p, err));

cleanup:
    return st;
}

static accrue_status check_keys(const json_t *root, const char *path, int64_t total_seq_len,
                                accrue_error *err)
{
    const json_t *length = json_object_get(root, "total_seq_len");

    if (!json_is_integer(length))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: total_seq_len is missing or not a number", path);
    if (json_integer_value(length) != total_seq_len)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: its total_seq_len is %lld, --total-seq-len is %lld", path,
                        (long long)json_integer_value(length), (long long)total_seq_len);
    return ACCRUE_OK;
}

accrue_status acr_batch_plan_read(acr_batch_plan *out, const char *path, int64_t n_rows,
                                  int64_t total_seq_len, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *root = NULL;
    const json_t *val = NULL;
    uint8_t *seen = NULL;

    memset(out, 0, sizeof *out);
    ACR_TRY(acr_json_load(&root, path, MAX_PLAN, err));
    ACR_TRY(check_keys(root, path, total_seq_len, err));
    seen = acr_calloc((size_t)n_rows + 1, 1);
    if (!seen) {
        st = acr_enomem(err, (size_t)n_rows, path);
        goto cleanup;
    }
    out->total_seq_len = total_seq_len;
    ACR_TRY(read_part(&out->train, &out->n_train, json_object_get(root, "train"),
                      (place){path, "train", 0, n_rows}, seen, err));
    val = json_object_get(root, "val");
    if (val)
        ACR_TRY(read_part(&out->val, &out->n_val, val, (place){path, "val", 0, n_rows}, seen, err));

cleanup:
    if (st)
        acr_batch_plan_free(out);
    acr_free(seen);
    json_decref(root);
    return st;
}

/* Writing: one micro-batch a line. */

enum { NUMBER_TEXT = 24 }; /* a number, its comma and space */

static size_t part_room(const acr_epoch *epochs, int64_t n)
{
    size_t room = 64;

    for (int64_t i = 0; i < n; i++)
        room += 64 + (size_t)epochs[i].n * 16 + (size_t)epochs[i].begin[epochs[i].n] * NUMBER_TEXT;
    return room;
}

static char *put_text(char *at, const char *text)
{
    size_t n = strlen(text);

    memcpy(at, text, n);
    return at + n;
}

static char *put_part(char *at, const char *name, const acr_epoch *epochs, int64_t n)
{
    at = put_text(at, ",\n\"");
    at = put_text(at, name);
    at = put_text(at, "\": [");
    for (int64_t i = 0; i < n; i++) {
        const acr_epoch *e = &epochs[i];
        at = put_text(at, i ? ",\n[" : "\n[");
        for (int64_t b = 0; b < e->n; b++) {
            at = put_text(at, b ? ",\n[" : "\n[");
            for (int64_t j = e->begin[b]; j < e->begin[b + 1]; j++)
                at += snprintf(at, NUMBER_TEXT, "%s%lld", j > e->begin[b] ? ", " : "",
                               (long long)e->rows[j]);
            at = put_text(at, "]");
        }
        at = put_text(at, "]");
    }
    return put_text(at, "]");
}

accrue_status acr_batch_plan_write(const acr_batch_plan *p, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t room = 128 + part_room(p->train, p->n_train) + part_room(p->val, p->n_val);
    char *text = acr_malloc(room);
    char *at = text;

    if (!text)
        return acr_enomem(err, room, path);
    at += snprintf(at, 64, "{\"total_seq_len\": %lld", (long long)p->total_seq_len);
    at = put_part(at, "train", p->train, p->n_train);
    at = put_part(at, "val", p->val, p->n_val);
    at = put_text(at, "}\n");
    ACR_TRY(acr_write_file(path, text, (size_t)(at - text), err));

cleanup:
    acr_free(text);
    return st;
}
