/* test_vocab.c - vocabulary maps and the .npy files that hold them. */
#include "files.h"

#include "data/readers.h"

#define TINY ACR_TEST_DATA "/tiny"

static char *folder;
static char *d2t_path;
static char *t2d_path;

static int setup(void **state)
{
    (void)state;
    folder = make_folder();
    d2t_path = acr_sprintf("%s/d2t-3.npy", folder);
    t2d_path = acr_sprintf("%s/t2d-3.npy", folder);
    return d2t_path && t2d_path ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    acr_free(d2t_path);
    acr_free(t2d_path);
    remove_folder(folder);
    return 0;
}

static void check_peer_case(const json_t *c, const int64_t *counts)
{
    const json_t *d2t = json_object_get(c, "d2t");
    const json_t *marked = json_object_get(c, "t2d_true");
    int64_t n = json_integer_value(json_object_get(c, "draft_vocab_size"));
    int64_t vocab = json_integer_value(json_object_get(c, "target_vocab_size"));
    acr_vocab v;
    accrue_error e;

    assert_ok(acr_vocab_build(&v, counts, vocab, n, &e), &e);
    assert_ok(acr_vocab_check(&v, "built", &e), &e);
    assert_int_equal(json_array_size(d2t), n);
    assert_int_equal(json_array_size(marked), n);
    for (int64_t i = 0; i < n; i++) {
        int64_t id = json_integer_value(json_array_get(marked, (size_t)i));
        assert_int_equal(v.d2t[i], json_integer_value(json_array_get(d2t, (size_t)i)));
        assert_int_equal(v.t2d[id], 1);
        assert_int_equal(i + v.d2t[i], id);
    }
    acr_vocab_free(&v);
}

static void builds_the_peers_maps(void **state)
{
    accrue_error e;
    json_t *root = NULL;
    json_t *value = NULL;
    const char *key = NULL;
    size_t i = 0;
    int64_t counts[256] = {0};

    (void)state;
    assert_ok(acr_json_load(&root, ACR_TEST_DATA "/vocab_map.json", 1 << 20, &e), &e);
    json_object_foreach(json_object_get(root, "token_freq"), key, value) counts[atoi(key)] =
        json_integer_value(value);
    assert_int_equal(json_array_size(json_object_get(root, "cases")), 3);
    json_array_foreach(json_object_get(root, "cases"), i, value) check_peer_case(value, counts);
    json_decref(root);
}

static void sizes_out_of_range_are_refused(void **state)
{
    const int64_t counts[4] = {0};
    acr_vocab v;
    accrue_error e;

    (void)state;
    assert_fails(acr_vocab_build(&v, counts, 4, 5, &e), ACCRUE_EMISMATCH, &e, "5 ids",
                 "vocabulary of 4", NULL);
    assert_fails(acr_vocab_build(&v, counts, 4, 0, &e), ACCRUE_EMISMATCH, &e, "0 ids", NULL);
}

/* Counted from the supervised tokens, written, and read again. */
static void load_counts_then_reads(void **state)
{
    acr_dataset *d = NULL;
    acr_vocab built;
    acr_vocab read;
    bool was_built = false;
    int64_t counts[50] = {0};
    accrue_error e;

    (void)state;
    assert_ok(acr_dataset_open(&d, TINY, &e), &e);
    for (int64_t row = 0; row < acr_dataset_rows(d); row++) {
        acr_row r;
        assert_ok(acr_dataset_row(&r, d, row, &e), &e);
        for (int64_t i = 0; i < r.tokens; i++)
            if (r.loss_mask[i])
                counts[r.input_ids[i]]++;
    }
    assert_ok(acr_vocab_load(&built, &was_built, d, folder, NULL, NULL, 50, 3, false, &e), &e);
    assert_true(was_built);
    assert_int_equal(counts[32], 3); /* 10 and 18 twice, the others once at most */
    assert_int_equal(built.d2t[0] + 0, 10);
    assert_int_equal(built.d2t[1] + 1, 18);
    assert_int_equal(built.d2t[2] + 2, 32);
    assert_ok(acr_vocab_write(&built, folder, &e), &e);
    assert_ok(acr_vocab_load(&read, &was_built, d, folder, NULL, NULL, 50, 3, false, &e), &e);
    assert_false(was_built);
    assert_memory_equal(built.d2t, read.d2t, 3 * sizeof *read.d2t);
    assert_memory_equal(built.t2d, read.t2d, 50);
    acr_vocab_free(&read);
    /* Explicit paths decide the size themselves. */
    assert_ok(acr_vocab_load(&read, &was_built, d, "/none", d2t_path, t2d_path, 50, 0, false, &e),
              &e);
    assert_int_equal(read.draft_vocab_size, 3);
    acr_vocab_free(&read);
    assert_fails(acr_vocab_load(&read, &was_built, d, folder, d2t_path, NULL, 50, 3, false, &e),
                 ACCRUE_EINVAL, &e, d2t_path, NULL);
    assert_fails(acr_vocab_load(&read, &was_built, d, folder, d2t_path, t2d_path, 50, 4, false, &e),
                 ACCRUE_EMISMATCH, &e, d2t_path, "3 ids", "has 4", NULL);
    assert_fails(acr_vocab_load(&read, &was_built, d, folder, NULL, NULL, 51, 3, false, &e),
                 ACCRUE_EMISMATCH, &e, t2d_path, "50 ids", "has 51", NULL);
    assert_int_equal(remove(t2d_path), 0);
    assert_fails(acr_vocab_load(&read, &was_built, d, folder, NULL, NULL, 50, 3, false, &e),
                 ACCRUE_EIO, &e, t2d_path, NULL);
    acr_vocab_free(&built);
    acr_dataset_close(d);
}

static void the_whole_vocabulary_needs_no_maps(void **state)
{
    acr_vocab v;
    bool built = true;
    accrue_error e;

    (void)state;
    assert_ok(acr_vocab_load(&v, &built, NULL, folder, NULL, NULL, 50, 0, false, &e), &e);
    assert_false(built);
    assert_null(v.d2t);
    assert_int_equal(v.draft_vocab_size, 50);
    assert_ok(acr_vocab_check(&v, "none", &e), &e);
}

static void older_names_are_read(void **state)
{
    static const int64_t d2t[3] = {0, 1, 1};
    static const uint8_t t2d[4] = {1, 0, 1, 1};
    char *old_d2t = acr_sprintf("%s/d2t.npy", folder);
    char *old_t2d = acr_sprintf("%s/t2d.npy", folder);
    acr_tensor t = {
        .dtype = ACR_DTYPE_I64, .n_dims = 1, .dims = {3}, .data = d2t, .bytes = sizeof d2t};
    acr_vocab v;
    bool built = true;
    accrue_error e;

    (void)state;
    assert_ok(acr_npy_write(old_d2t, &t, &e), &e);
    t = (acr_tensor){
        .dtype = ACR_DTYPE_BOOL, .n_dims = 1, .dims = {4}, .data = t2d, .bytes = sizeof t2d};
    assert_ok(acr_npy_write(old_t2d, &t, &e), &e);
    assert_ok(acr_vocab_load(&v, &built, NULL, folder, NULL, NULL, 4, 3, false, &e), &e);
    assert_false(built);
    assert_memory_equal(v.d2t, d2t, sizeof d2t);
    acr_vocab_free(&v);
    acr_free(old_d2t);
    acr_free(old_t2d);
}

static void maps_that_are_no_bijection_are_refused(void **state)
{
    int64_t d2t[3] = {0, 1, 1};
    uint8_t t2d[5] = {1, 0, 1, 1, 0};
    const acr_vocab v = {5, 3, d2t, t2d};
    accrue_error e;

    (void)state;
    assert_ok(acr_vocab_check(&v, "maps", &e), &e);
    d2t[2] = 0;
    assert_fails(acr_vocab_check(&v, "maps", &e), ACCRUE_EMISMATCH, &e, "maps", "draft id 2 is 0",
                 "makes it 1", NULL);
    d2t[2] = INT64_MAX;
    assert_fails(acr_vocab_check(&v, "maps", &e), ACCRUE_EMISMATCH, &e, "9223372036854775807",
                 NULL);
    d2t[2] = 1;
    t2d[4] = 1;
    assert_fails(acr_vocab_check(&v, "maps", &e), ACCRUE_EMISMATCH, &e, "marks 4 ids, d2t has 3",
                 NULL);
    t2d[4] = 2;
    assert_fails(acr_vocab_check(&v, "maps", &e), ACCRUE_EFORMAT, &e, "id 4 is 2", NULL);
}

/* numpy.save(f, numpy.arange(2)) */
static void npy_files_are_numpys(void **state)
{
    static const int64_t values[2] = {0, 1};
    const acr_tensor t = {
        .dtype = ACR_DTYPE_I64, .n_dims = 1, .dims = {2}, .data = values, .bytes = sizeof values};
    const char *start = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
    acr_tensor back;
    acr_map map = {0};
    accrue_error e;

    (void)state;
    assert_ok(acr_npy_write(d2t_path, &t, &e), &e);
    assert_ok(acr_npy_read(&back, &map, d2t_path, &e), &e);
    assert_int_equal(map.bytes, 128 + sizeof values);
    assert_memory_equal(map.data, "\x93NUMPY\x01\x00\x76\x00", 10);
    assert_memory_equal(map.data + 10, start, strlen(start));
    for (size_t i = 10 + strlen(start); i < 127; i++)
        assert_int_equal(map.data[i], ' ');
    assert_int_equal(map.data[127], '\n');
    assert_memory_equal(back.data, values, sizeof values);
    acr_map_close(&map);
}

static size_t make_npy(char *out, int version, const char *header, size_t data)
{
    size_t n = strlen(header);
    size_t prefix = version == 1 ? 10 : 12;

    memset(out, 0, prefix);
    memcpy(out, "\x93NUMPY", 6);
    out[6] = (char)version;
    out[8] = (char)n;
    memcpy(out + prefix, header, n);
    memset(out + prefix + n, 1, data);
    return prefix + n + data;
}

static void npy_headers_are_parsed_strictly(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *message; /* NULL: accepted */
    } cases[] = {
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }  \n", 3, NULL},
        {"{\"shape\":(3,),\"fortran_order\":False,\"descr\":\"|b1\"}", 3, NULL},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (0,), }", 0, NULL},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (3), }", 3, "not a dict"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (3,), ", 3, "not a dict"},
        {"{'descr': '|b1', 'fortran_order': False, }", 3, "not a dict"},
        {"{'descr': '|b1', 'descr': '|b1', 'fortran_order': False, 'shape': (3,)}", 3,
         "not a dict"},
        {"{'descr': '|b1', 'fortran_order': Maybe, 'shape': (3,)}", 3, "not a dict"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (-3,)}", 3, "not a dict"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (99999999999999999999,)}", 3,
         "not a dict"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (3,)} x", 3, "not a dict"},
        {"{'descr': '>i8', 'fortran_order': False, 'shape': (1,)}", 8,
         "'>i8', expected '<i8' or '|b1'"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", 8, "'|O'"},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1)}", 8, "[1, 1]"},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': ()}", 8, "its shape is []"},
        {"{'descr': '<i8', 'fortran_order': True, 'shape': (1,)}", 8, "Fortran"},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}", 15,
         "2 elements of '<i8' in 15 bytes"},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", 16, "in 16 bytes"},
    };
    char bytes[256];
    acr_tensor t;
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++)
        for (int version = 1; version <= 2; version++) {
            size_t n = make_npy(bytes, version, cases[i].header, cases[i].data);
            accrue_status st = acr_npy_parse(&t, (uint8_t *)bytes, n, "m.npy", &e);
            if (cases[i].message)
                assert_fails(st, ACCRUE_EFORMAT, &e, "m.npy", cases[i].message, NULL);
            else
                assert_ok(st, &e);
        }
}

static void broken_npy_files_are_refused(void **state)
{
    const char *header = "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }";
    char bytes[256];
    size_t n = make_npy(bytes, 1, header, 3);
    acr_tensor t;
    acr_map map = {0};
    accrue_error e;

    (void)state;
    for (size_t cut = 0; cut < n; cut++)
        assert_fails(acr_npy_parse(&t, (uint8_t *)bytes, cut, "m.npy", &e), ACCRUE_EFORMAT, &e,
                     "m.npy", NULL);
    bytes[n - 1] = 2;
    assert_fails(acr_npy_parse(&t, (uint8_t *)bytes, n, "m.npy", &e), ACCRUE_EFORMAT, &e,
                 "element 2 is 2", NULL);
    bytes[6] = 3;
    assert_fails(acr_npy_parse(&t, (uint8_t *)bytes, n, "m.npy", &e), ACCRUE_EFORMAT, &e,
                 "version 3.0", NULL);
    assert_fails(acr_npy_read(&t, &map, d2t_path, &e), ACCRUE_EIO, &e, d2t_path, NULL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(builds_the_peers_maps),        TEST(sizes_out_of_range_are_refused),
        TEST(load_counts_then_reads),       TEST(the_whole_vocabulary_needs_no_maps),
        TEST(older_names_are_read),         TEST(maps_that_are_no_bijection_are_refused),
        TEST(npy_files_are_numpys),         TEST(npy_headers_are_parsed_strictly),
        TEST(broken_npy_files_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
