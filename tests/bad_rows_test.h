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

#endif
