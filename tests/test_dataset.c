/* test_dataset.c - the Arrow data set: values, and files broken in every way we could think of. */
#include "files.h"

#include "data/readers.h"

#define TINY      ACR_TEST_DATA "/tiny"
#define TINY_WIDE ACR_TEST_DATA "/tiny_wide"
#define ARROW     "data-00000-of-00001.arrow"

enum { N_ROWS = 7 };
static const int64_t lengths[N_ROWS] = {5, 1, 9, 3, 12, 2, 7};

static void check_rows(acr_dataset *d)
{
    accrue_error e;

    assert_int_equal(acr_dataset_rows(d), N_ROWS);
    for (int64_t row = 0; row < N_ROWS; row++) {
        acr_row r;
        int64_t n = lengths[row];
        assert_int_equal(acr_dataset_tokens(d, row), n);
        assert_ok(acr_dataset_row(&r, d, row, &e), &e);
        assert_int_equal(r.tokens, n);
        for (int64_t j = 0; j < n; j++) {
            assert_int_equal(r.input_ids[j], (7 * row + 3 * j + j * j) % 50);
            assert_int_equal(r.loss_mask[j], j >= n / 2 && row != 5);
        }
        assert_ok(acr_dataset_check_ids(d, row, 50, &e), &e);
    }
    assert_fails(acr_dataset_check_ids(d, 4, 48, &e), ACCRUE_EMISMATCH, &e, "row 4", "token 7",
                 "id 48", "48 ids", ".arrow", NULL);
    assert_fails(acr_dataset_row(&(acr_row){0}, d, N_ROWS, &e), ACCRUE_EINVAL, &e, "row 7", NULL);
    assert_fails(acr_dataset_row(&(acr_row){0}, d, -1, &e), ACCRUE_EINVAL, &e, "row -1", NULL);
}

static void reads_files_in_the_order_of_the_state(void **state)
{
    accrue_error e;
    acr_dataset *d = NULL;

    (void)state;
    assert_ok(acr_dataset_open(&d, TINY, &e), &e);
    check_rows(d);
    assert_int_equal(acr_dataset_train_rows(d, 0.9), 6);
    assert_int_equal(acr_dataset_train_rows(d, 1.0), 7);
    assert_int_equal(acr_dataset_train_rows(d, 0.0), 0);
    acr_dataset_close(d);
}

static void reads_large_lists_of_int32_in_several_batches(void **state)
{
    accrue_error e;
    acr_dataset *d = NULL;

    (void)state;
    assert_ok(acr_dataset_open(&d, TINY_WIDE, &e), &e);
    check_rows(d);
    acr_dataset_close(d);
}

static void int64_columns_are_not_copied(void **state)
{
    accrue_error e;
    acr_map map = {0};
    acr_arrow table = {0};

    (void)state;
    assert_ok(acr_map_open(&map, TINY "/data-00000-of-00002.arrow", &e), &e);
    assert_ok(acr_arrow_append(&table, map.data, map.bytes, "a", &e), &e);
    assert_int_equal(table.n_owned, 0);
    assert_int_equal(table.rows, 4);
    acr_arrow_free(&table);
    acr_map_close(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_files_in_the_order_of_the_state),
        cmocka_unit_test(reads_large_lists_of_int32_in_several_batches),
        cmocka_unit_test(int64_columns_are_not_copied),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
