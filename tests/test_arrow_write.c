/* test_arrow_write.c - data sets written and read back. */
#include "folder_test.h"

#include "data/data.h"

#include <unistd.h>

enum { ROWS = 2600, LONGEST = 900 };

/* Row r: r % 41 tokens, and one of many. */
static int64_t fill(int64_t *ids, int64_t *mask, int64_t r)
{
    int64_t n = r == 1700 ? LONGEST : r % 41;

    for (int64_t i = 0; i < n; i++) {
        ids[i] = (r * 7919 + i * 31) % 50000;
        mask[i] = (r + i) % 3 == 0;
    }
    return n;
}

static int64_t all_tokens(int64_t rows)
{
    int64_t ids[LONGEST], mask[LONGEST], n = 0;

    for (int64_t r = 0; r < rows; r++)
        n += fill(ids, mask, r);
    return n;
}

static accrue_status write_rows(int64_t rows, int64_t tokens, accrue_error *e)
{
    accrue_status st = ACCRUE_OK;
    acr_dataset_writer *w = NULL;
    int64_t ids[LONGEST], mask[LONGEST];

    ACR_TRY(acr_dataset_writer_open(&w, folder, rows, tokens, e));
    for (int64_t r = 0; r < rows; r++) {
        int64_t n = fill(ids, mask, r);
        ACR_TRY(acr_dataset_writer_add(w, &(acr_row){ids, mask, n}, e));
    }
    ACR_TRY(acr_dataset_writer_close(w, e));

cleanup:
    acr_dataset_writer_free(w);
    return st;
}

static void check_rows(int64_t rows)
{
    acr_dataset *d = NULL;
    accrue_error e;
    int64_t ids[LONGEST], mask[LONGEST];

    assert_ok(acr_dataset_open(&d, folder, &e), &e);
    assert_int_equal(acr_dataset_rows(d), rows);
    for (int64_t r = 0; r < rows; r++) {
        acr_row row;
        int64_t n = fill(ids, mask, r);
        assert_ok(acr_dataset_row(&row, d, r, &e), &e);
        assert_int_equal(row.tokens, n);
        if (n) {
            assert_memory_equal(row.input_ids, ids, (size_t)n * 8);
            assert_memory_equal(row.loss_mask, mask, (size_t)n * 8);
        }
    }
    acr_dataset_close(d);
}

static bool is_there(const char *name)
{
    char *path = acr_sprintf("%s/%s", folder, name);
    bool there = acr_is_file(path);

    acr_free(path);
    return there;
}

static void rows_come_back(void **state)
{
    accrue_error e;

    (void)state;
    assert_ok(write_rows(ROWS, all_tokens(ROWS), &e), &e);
    assert_true(is_there("data-00000-of-00001.arrow"));
    check_rows(ROWS);
}

/* 1.6 GB of which little comes: rows are shared out over four files. */
static void large_sets_have_several_files(void **state)
{
    accrue_error e;

    (void)state;
    assert_ok(write_rows(ROWS + 2, 100000000, &e), &e);
    assert_true(is_there("data-00003-of-00004.arrow"));
    assert_false(is_there("data-00004-of-00004.arrow"));
    check_rows(ROWS + 2);
}

static void a_set_without_rows(void **state)
{
    accrue_error e;

    (void)state;
    assert_ok(write_rows(0, 0, &e), &e);
    check_rows(0);
}

/* A row above what a batch holds makes one of its own. */
static void a_long_row(void **state)
{
    const int64_t n = 3 << 20;
    int64_t *ids = acr_calloc((size_t)n, 8);
    acr_dataset_writer *w = NULL;
    acr_dataset *d = NULL;
    acr_row row;
    accrue_error e;

    (void)state;
    for (int64_t i = 0; i < n; i++)
        ids[i] = i & 1;
    assert_ok(acr_dataset_writer_open(&w, folder, 3, 2 * n + 1, &e), &e);
    assert_ok(acr_dataset_writer_add(w, &(acr_row){ids, ids, n}, &e), &e);
    assert_ok(acr_dataset_writer_add(w, &(acr_row){ids + 1, ids, 1}, &e), &e);
    assert_ok(acr_dataset_writer_add(w, &(acr_row){ids, ids, n}, &e), &e);
    assert_ok(acr_dataset_writer_close(w, &e), &e);
    assert_int_equal(acr_dataset_writer_files(w), 1);
    assert_true(acr_dataset_writer_bytes(w) > 32 * n);
    acr_dataset_writer_free(w);
    assert_ok(acr_dataset_open(&d, folder, &e), &e);
    assert_ok(acr_dataset_row(&row, d, 1, &e), &e);
    assert_int_equal(row.input_ids[0], 1);
    assert_ok(acr_dataset_row(&row, d, 2, &e), &e);
    assert_int_equal(row.tokens, n);
    assert_memory_equal(row.loss_mask, ids, (size_t)n * 8);
    acr_dataset_close(d);
    acr_free(ids);
}

static void counts_must_be_as_said(void **state)
{
    const int64_t one = 1;
    const acr_row row = {&one, &one, 1}, absurd = {&one, &one, INT64_MAX};
    acr_dataset_writer *w = NULL;
    accrue_error e;

    (void)state;
    assert_ok(acr_dataset_writer_open(&w, folder, 2, 2, &e), &e);
    assert_fails(acr_dataset_writer_close(w, &e), ACCRUE_EINVAL, &e, folder, "0 rows given of 2",
                 NULL);
    assert_fails(acr_dataset_writer_add(w, &absurd, &e), ACCRUE_EINVAL, &e, folder, "row 0 of 2",
                 "9223372036854775807", NULL);
    assert_ok(acr_dataset_writer_add(w, &row, &e), &e);
    assert_ok(acr_dataset_writer_add(w, &row, &e), &e);
    assert_fails(acr_dataset_writer_add(w, &row, &e), ACCRUE_EINVAL, &e, "row 2 of 2", NULL);
    acr_dataset_writer_free(w);
}

static void disks_may_be_full(void **state)
{
    char *path = acr_sprintf("%s/data-00000-of-00001.arrow", folder);
    accrue_error e;

    (void)state;
    assert_int_equal(symlink("/dev/full", path), 0);
    assert_fails(write_rows(ROWS, all_tokens(ROWS), &e), ACCRUE_ENOSPACE, &e, path, "bytes written",
                 NULL);
    assert_int_equal(unlink(path), 0);
    acr_free(path);
    path = acr_sprintf("%s/state.json", folder);
    assert_int_equal(symlink("/dev/full", path), 0);
    assert_fails(write_rows(4, 6, &e), ACCRUE_ENOSPACE, &e, path, NULL);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_fails(write_rows(4, 6, &e), ACCRUE_EIO, &e, path, NULL);
    acr_free(path);
    path = acr_sprintf("%s/data-00000-of-00001.arrow", folder);
    unlink(path);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_fails(write_rows(4, 6, &e), ACCRUE_EIO, &e, path, "cannot create", NULL);
    acr_free(path);
}

static void failed_allocations_are_survived(void **state)
{
    accrue_error e;
    accrue_status st = ACCRUE_ENOMEM;
    uint64_t n = 0;
    size_t before = acr_allocated_bytes();

    (void)state;
    while (st) {
        acr_fail_allocation_here(++n);
        st = write_rows(50, all_tokens(50), &e);
        acr_fail_allocation_here(0);
        if (st)
            assert_fails(st, ACCRUE_ENOMEM, &e, "out of memory", NULL);
        assert_int_equal(acr_allocated_bytes(), before);
    }
    assert_true(n > 8);
    check_rows(50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(rows_come_back),
        TEST(large_sets_have_several_files),
        TEST(a_set_without_rows),
        TEST(a_long_row),
        TEST(counts_must_be_as_said),
        TEST(disks_may_be_full),
        TEST(failed_allocations_are_survived),
    };

    return cmocka_run_group_tests_name("arrow_write", tests, NULL, NULL);
}
