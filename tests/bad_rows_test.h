/* bad_rows_test.h - for tests of faulty data: copies of the example with rows spoilt on purpose. */
#ifndef TEST_BAD_ROWS_TEST_H
#define TEST_BAD_ROWS_TEST_H

#include "resume_test.h"

#include <fcntl.h>

static inline char *copy_data(const char *folder, const char *name)
{
    char *to = acr_sprintf("%s/%s", folder, name);

    copy_tree(TINY "/data", to);
    shell(acr_sprintf("chmod -R u+w '%s'", to));
    return to;
}

static inline char *states_of(const char *data, int64_t row)
{
    return acr_sprintf("%s/hidden_states/hs_%lld.safetensors", data, (long long)row);
}

static inline void overwrite(const char *path, int64_t at, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, at), (ssize_t)n);
    close(fd);
}

static inline int64_t file_bytes(const char *path)
{
    struct stat s;

    assert_int_equal(stat(path, &s), 0);
    return s.st_size;
}

static inline void cut_states(const char *data, int64_t row)
{
    char *path = states_of(data, row);

    assert_int_equal(truncate(path, file_bytes(path) - 100), 0);
    acr_free(path);
}

/* A NaN in the middle of the row's states, which training uses. */
static inline void spoil_states(const char *data, int64_t row)
{
    char *path = states_of(data, row);
    uint16_t nan = 0x7fc0;

    overwrite(path, file_bytes(path) / 2 / 2 * 2, &nan, sizeof nan);
    acr_free(path);
}

static inline void remove_states(const char *data, int64_t row)
{
    char *path = states_of(data, row);

    assert_int_equal(unlink(path), 0);
    acr_free(path);
}

/* Overwrites one number of a column: of all rows' numbers end to end, which lie so in the file. */
static inline void spoil_column(const char *data, bool mask, int64_t row, int64_t token,
                                int64_t value)
{
    char *path = acr_sprintf("%s/data-00000-of-00001.arrow", data);
    acr_dataset *d = NULL;
    accrue_error e;
    int64_t at = 0, n = 0, mine = 0;
    int64_t *all = acr_malloc(8 * 100000);
    acr_map map = {0};
    const char *place = NULL;

    assert_ok(acr_dataset_open(&d, data, &e), &e);
    for (int64_t i = 0; i < acr_dataset_rows(d); i++) {
        acr_row r;
        int64_t mask_tokens = 0;
        acr_dataset_raw_row(&r, &mask_tokens, d, i);
        if (i == row)
            mine = n + token;
        memcpy(all + n, mask ? r.loss_mask : r.input_ids, 8 * (size_t)r.tokens);
        n += r.tokens;
    }
    acr_dataset_close(d);
    assert_ok(acr_map_open(&map, path, &e), &e);
    place = memmem(map.data, map.bytes, all, 8 * (size_t)n);
    assert_non_null(place);
    at = place - (const char *)map.data;
    acr_map_close(&map);
    overwrite(path, at + 8 * mine, &value, 8);
    acr_free(all);
    acr_free(path);
}

/* Gives the first value of row + 1's loss_mask to this row: both are of another length then. */
static inline void shift_mask(const char *data, int64_t row)
{
    char *path = acr_sprintf("%s/data-00000-of-00001.arrow", data);
    acr_dataset *d = NULL;
    accrue_error e;
    int32_t ends[64];
    int64_t n = 0, at = 0;
    acr_map map = {0};
    const char *place = NULL;

    assert_ok(acr_dataset_open(&d, data, &e), &e);
    for (int64_t i = 0; i < acr_dataset_rows(d); i++)
        ends[i] = (int32_t)(n += acr_dataset_tokens(d, i));
    n = acr_dataset_rows(d);
    acr_dataset_close(d);
    assert_ok(acr_map_open(&map, path, &e), &e);
    place = memmem(map.data, map.bytes, ends, 4 * (size_t)n); /* of input_ids, then of loss_mask */
    assert_non_null(place);
    place = memmem(place + 4, map.bytes - (size_t)(place + 4 - (const char *)map.data), ends,
                   4 * (size_t)n);
    assert_non_null(place);
    at = place - (const char *)map.data + 4 * row;
    acr_map_close(&map);
    ends[row]++;
    overwrite(path, at, &ends[row], 4);
    acr_free(path);
}

/* Batch plans, and what came of them ------------------------------------------------------ */

static inline char *plan_of(const char *folder, const char *name, const char *train,
                            const char *val)
{
    char *path = acr_sprintf("%s/%s", folder, name);
    char *text =
        acr_sprintf("{\"total_seq_len\": 142, \"train\": [%s], \"val\": [%s]}", train, val);

    write_text(path, text);
    acr_free(text);
    return path;
}

static inline accrue_train_options plan_options(const char *plan, const char *out)
{
    accrue_train_options o = tiny_options(out);

    o.total_seq_len = 142;
    o.ttt_steps = 2;
    o.epochs = 2;
    o.checkpoint_freq = 0.5; /* of two steps: after each */
    o.compute = ACCRUE_F32;
    o.batch_plan = plan;
    o.window.gradient_accumulation_steps = 3;
    o.window.lr = 1e-2;
    return o;
}

/* Steps and validations: the micro-batches of a window that is run again were told before. */
static inline void keep_results(logbook *l, int64_t *error_records)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++)
        if (l->records[i].kind != ACCRUE_EVENT_MICRO_BATCH) {
            *error_records += l->records[i].metrics.error_records;
            l->records[i].metrics.error_records = 0;
            l->records[n++] = l->records[i];
        }
    l->n = n;
}

static inline void assert_same_file(const char *a, const char *b, const char *name)
{
    shell(acr_sprintf("cmp '%s/%s' '%s/%s'", a, name, b, name));
}

static inline void assert_list(const char *out, int64_t rows, const char *one, const char *word)
{
    char *path = acr_sprintf("%s/skipped_samples.jsonl", out);
    acr_map map = {0};
    accrue_error e;
    int64_t lines = 0;

    assert_ok(acr_map_open(&map, path, &e), &e);
    for (size_t i = 0; i < map.bytes; i++)
        lines += map.data[i] == '\n';
    assert_int_equal(lines, rows);
    assert_non_null(memmem(map.data, map.bytes, one, strlen(one)));
    assert_non_null(memmem(map.data, map.bytes, word, strlen(word)));
    acr_map_close(&map);
    acr_free(path);
}

#endif
