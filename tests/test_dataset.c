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
    accrue_fault f;
    int rule = 0;

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
        assert_int_equal(acr_dataset_fault(&f, &rule, d, row, 50), ACCRUE_OK);
        rule = 0;
    }
    assert_int_equal(acr_dataset_fault(&f, &rule, d, 4, 48), ACCRUE_EMISMATCH);
    assert_int_equal(f.kind, ACCRUE_FAULT_VOCABULARY);
    assert_int_equal(f.row, 4);
    assert_int_equal(f.token, 7);
    assert_non_null(strstr(f.message, ".arrow: row 4: the id of token 7 is 48, expected 0 to 47"));
    assert_int_equal(acr_dataset_tokens(d, N_ROWS), 0);
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

/* A data set of one file of these bytes. */
static char *make_dataset(const void *bytes, size_t n)
{
    char *folder = make_folder();
    char *arrow = acr_sprintf("%s/" ARROW, folder);
    char *state = acr_sprintf("%s/state.json", folder);

    write_bytes(arrow, bytes, n);
    write_text(state, "{\"_data_files\": [{\"filename\": \"" ARROW "\"}]}");
    acr_free(arrow);
    acr_free(state);
    return folder;
}

/* Opens the file as a data set and, where that succeeds, reads its rows. */
static accrue_status try_file(const char *path, accrue_error *e)
{
    acr_map map = {0};
    acr_dataset *d = NULL;
    acr_row r;
    char *folder = NULL;
    accrue_status st = ACCRUE_OK;

    assert_ok(acr_map_open(&map, path, e), e);
    folder = make_dataset(map.data, map.bytes);
    st = acr_dataset_open(&d, folder, e);
    if (st)
        assert_null(d);
    for (int64_t row = 0; !st && row < acr_dataset_rows(d); row++)
        st = acr_dataset_row(&r, d, row, e);
    acr_dataset_close(d);
    remove_folder(folder);
    acr_map_close(&map);
    return st;
}

static void streams_that_are_no_data_set_are_refused(void **state)
{
    static const struct {
        const char *file;
        accrue_status status;
        const char *one, *two;
    } cases[] = {
        {"list_of_double", ACCRUE_EFORMAT, "column 'input_ids' has the Arrow type '+lg'", "'+ll'"},
        {"list_of_list", ACCRUE_EFORMAT, "column 'loss_mask' has the Arrow type '+l+l'", "'+ll'"},
        {"flat", ACCRUE_EFORMAT, "column 'input_ids' has the Arrow type 'l'", "'+ll'"},
        {"text", ACCRUE_EFORMAT, "column 'seq_len' has the Arrow type 'u'", "'l'"},
        {"missing_list", ACCRUE_EMISMATCH, "row 1: input_ids is null", "expected a list"},
        {"missing_token", ACCRUE_EMISMATCH, "the id of token 1 is null", "expected 0 or more"},
        {"missing_length", ACCRUE_EMISMATCH, "row 1: seq_len is null", "expected a length"},
        {"compressed", ACCRUE_ENOTSUP, "compressed", ARROW},
        {"bad_rows", ACCRUE_EMISMATCH, "row 1: the length of loss_mask is 2",
         "1 as there are input_ids"},
        {"bad_length", ACCRUE_EMISMATCH, "row 1: seq_len is 7", "1 as there are input_ids"},
        {"bad_mask", ACCRUE_EFORMAT, "row 1: loss_mask of token 0 is -1", "expected 0 or 1"},
    };
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        char *path = acr_sprintf(ACR_TEST_DATA "/bad_arrow/%s.arrow", cases[i].file);
        assert_fails(try_file(path, &e), cases[i].status, &e, cases[i].one, cases[i].two, NULL);
        acr_free(path);
    }
}

static void lengths_need_no_column_of_their_own(void **state)
{
    accrue_error e;

    (void)state;
    assert_ok(try_file(ACR_TEST_DATA "/bad_arrow/no_column.arrow", &e), &e);
}

/* Bytes of a stream in memory of exactly their size, for the sanitizers. */
static accrue_status parse(const uint8_t *bytes, size_t n, accrue_error *e)
{
    acr_arrow table = {0};
    uint8_t *copy = malloc(n ? n : 1);
    accrue_status st;

    assert_non_null(copy);
    memcpy(copy, bytes, n);
    st = acr_arrow_append(&table, copy, n, "a.arrow", e);
    acr_arrow_free(&table);
    free(copy);
    return st;
}

static void truncated_streams_are_refused(void **state)
{
    static const char *const files[] = {TINY "/data-00000-of-00002.arrow", TINY_WIDE "/" ARROW};
    accrue_error e;

    (void)state;
    for (int f = 0; f < 2; f++) {
        acr_map map = {0};
        assert_ok(acr_map_open(&map, files[f], &e), &e);
        assert_ok(parse(map.data, map.bytes, &e), &e);
        for (size_t n = 0; n < map.bytes; n++)
            assert_fails(parse(map.data, n, &e), ACCRUE_EFORMAT, &e, "a.arrow", NULL);
        acr_map_close(&map);
    }
}

/* Flips every bit, one at a time: read or refused, nothing else. */
static void spoilt_streams_do_no_harm(void **state)
{
    acr_map map = {0};
    uint8_t *bytes = NULL;
    int refused = 0;
    accrue_error e;

    (void)state;
    assert_ok(acr_map_open(&map, TINY "/data-00000-of-00002.arrow", &e), &e);
    bytes = malloc(map.bytes);
    assert_non_null(bytes);
    memcpy(bytes, map.data, map.bytes);
    for (size_t bit = 0; bit < 8 * map.bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        refused += parse(bytes, map.bytes, &e) != ACCRUE_OK;
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(refused > 1000);
    free(bytes);
    acr_map_close(&map);
}

static void columns_that_are_not_there_are_named(void **state)
{
    static const char *const names[] = {"input_ids", "loss_mask"};
    acr_map map = {0};
    accrue_error e;

    (void)state;
    assert_ok(acr_map_open(&map, TINY "/data-00000-of-00002.arrow", &e), &e);
    for (int i = 0; i < ACR_COUNT(names); i++) {
        uint8_t *bytes = malloc(map.bytes), *at = NULL;
        char *message = acr_sprintf("there is no column '%s'", names[i]);
        assert_non_null(bytes);
        memcpy(bytes, map.data, map.bytes);
        while ((at = memmem(bytes, map.bytes, names[i], strlen(names[i]))))
            *at = 'I';
        assert_fails(parse(bytes, map.bytes, &e), ACCRUE_EFORMAT, &e, "a.arrow", message, NULL);
        acr_free(message);
        free(bytes);
    }
    acr_map_close(&map);
}

/* Offsets that run backwards, below zero or past the values. */
static void offsets_are_checked(void **state)
{
    static const int32_t good[5] = {0, 5, 6, 15, 18};
    static const int32_t bad[3][5] = {
        {0, 5, 4, 15, 18}, {-1, 5, 6, 15, 18}, {0, 5, 6, 15, 2000000000}};
    static const char *const rows[3] = {
        "row 1: column 'input_ids' spans elements 5 to 4 of 18",
        "row 0: column 'input_ids' spans elements -1 to 5",
        "row 3: column 'input_ids' spans elements 15 to 2000000000"};
    acr_map map = {0};
    uint8_t *bytes = NULL;
    uint8_t *at = NULL;
    accrue_error e;

    (void)state;
    assert_ok(acr_map_open(&map, TINY "/data-00000-of-00002.arrow", &e), &e);
    bytes = malloc(map.bytes);
    assert_non_null(bytes);
    memcpy(bytes, map.data, map.bytes);
    at = memmem(bytes, map.bytes, good, sizeof good);
    assert_non_null(at);
    for (int i = 0; i < 3; i++) {
        memcpy(at, bad[i], sizeof good);
        assert_fails(parse(bytes, map.bytes, &e), ACCRUE_EFORMAT, &e, "a.arrow", rows[i], NULL);
    }
    free(bytes);
    acr_map_close(&map);
}

static void folders_that_are_no_data_set_are_refused(void **state)
{
    static const struct {
        const char *state;
        accrue_status status;
        const char *message;
    } cases[] = {
        {"{\"_data_files\": []}", ACCRUE_EFORMAT, "lists no file"},
        {"{}", ACCRUE_EFORMAT, "lists no file"},
        {"{\"_data_files\": [{}], \"_indices_data_files\": [{}]}", ACCRUE_ENOTSUP, "_indices"},
        {"{\"_data_files\": [", ACCRUE_EFORMAT, "state.json: line 1"},
        {"{\"_data_files\": [3]}", ACCRUE_EFORMAT, "_data_files 0"},
        {"{\"_data_files\": [{\"filename\": \"../" ARROW "\"}]}", ACCRUE_EFORMAT, "same folder"},
        {"{\"_data_files\": [{\"filename\": \"absent.arrow\"}]}", ACCRUE_EIO, "absent.arrow"},
        {"{\"_data_files\": [{\"filename\": \"empty.arrow\"}]}", ACCRUE_EFORMAT, "empty.arrow"},
    };
    char *folder = make_folder();
    char *path = acr_sprintf("%s/state.json", folder);
    char *empty = acr_sprintf("%s/empty.arrow", folder);
    acr_dataset *d = NULL;
    accrue_error e;

    (void)state;
    assert_fails(acr_dataset_open(&d, folder, &e), ACCRUE_EIO, &e, path, NULL);
    write_text(empty, "");
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        write_text(path, cases[i].state);
        assert_fails(acr_dataset_open(&d, folder, &e), cases[i].status, &e, folder,
                     cases[i].message, NULL);
        assert_null(d);
    }
    acr_free(path);
    acr_free(empty);
    remove_folder(folder);
}

/* Every allocation may fail: an error, no leak, no crash. */
static void running_out_of_memory_is_an_error(void **state)
{
    accrue_error e;
    size_t live = acr_allocated_bytes();
    int failures = 0;

    (void)state;
    for (uint64_t n = 1; n < 100; n++) {
        acr_dataset *d = NULL;
        acr_fail_allocation(n);
        if (acr_dataset_open(&d, TINY_WIDE, &e))
            failures++;
        acr_fail_allocation(0);
        acr_dataset_close(d);
        assert_int_equal(acr_allocated_bytes(), live);
    }
    assert_in_range(failures, 10, 98);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_files_in_the_order_of_the_state),
        cmocka_unit_test(reads_large_lists_of_int32_in_several_batches),
        cmocka_unit_test(int64_columns_are_not_copied),
        cmocka_unit_test(streams_that_are_no_data_set_are_refused),
        cmocka_unit_test(lengths_need_no_column_of_their_own),
        cmocka_unit_test(columns_that_are_not_there_are_named),
        cmocka_unit_test(truncated_streams_are_refused),
        cmocka_unit_test(spoilt_streams_do_no_harm),
        cmocka_unit_test(offsets_are_checked),
        cmocka_unit_test(folders_that_are_no_data_set_are_refused),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
