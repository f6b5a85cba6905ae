/* test_safetensors.c - safetensors files: round trip, shards, and headers that lie. */
#include "files.h"

#include "data/data.h"

static char *folder;
static char *path;

static int setup(void **state)
{
    (void)state;
    folder = make_folder();
    path = acr_sprintf("%s/model.safetensors", folder);
    return path ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    acr_free(path);
    remove_folder(folder);
    return 0;
}

static void what_is_written_is_read(void **state)
{
    static const float a[6] = {1, 2, 3, 4, 5, 6};
    static const uint8_t mask[3] = {1, 0, 1};
    static const int64_t scalar = 7;
    const acr_tensor tensors[3] = {
        {.name = "z.weight",
         .dtype = ACR_DTYPE_F32,
         .n_dims = 2,
         .dims = {2, 3},
         .data = a,
         .bytes = sizeof a},
        {.name = "t2d",
         .dtype = ACR_DTYPE_BOOL,
         .n_dims = 1,
         .dims = {3},
         .data = mask,
         .bytes = sizeof mask},
        {.name = "\"quoted\"", .dtype = ACR_DTYPE_I64, .data = &scalar, .bytes = sizeof scalar}};
    const char *start = "{\"__metadata__\":{\"format\":\"pt\"},\"z.weight\":{\"dtype\":\"F32\"";
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    accrue_error e;
    acr_safetensors *f = NULL;
    const acr_tensor *t = NULL;
    acr_map map = {0};
    uint64_t header = 0;

    (void)state;
    assert_ok(acr_safetensors_write(path, tensors, 3, metadata, NULL, &e), &e);
    assert_ok(acr_safetensors_open(&f, path, &e), &e);
    assert_int_equal(acr_safetensors_count(f), 3);
    assert_string_equal(acr_safetensors_at(f, 0)->name, "\"quoted\"");
    assert_string_equal(acr_safetensors_at(f, 2)->name, "z.weight");
    t = acr_safetensors_find(f, "z.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[1], 3);
    assert_memory_equal(t->data, a, sizeof a);
    t = acr_safetensors_find(f, "\"quoted\"");
    assert_int_equal(t->n_dims, 0);
    assert_memory_equal(t->data, &scalar, sizeof scalar);
    assert_null(acr_safetensors_find(f, "absent"));
    acr_safetensors_close(f);
    /* The order of the data is the order given; the header is padded to 8 bytes. */
    assert_ok(acr_map_open(&map, path, &e), &e);
    memcpy(&header, map.data, 8);
    assert_int_equal(header % 8, 0);
    assert_int_equal(map.bytes, 8 + header + sizeof a + sizeof mask + sizeof scalar);
    assert_memory_equal(map.data + 8 + header, a, sizeof a);
    assert_memory_equal(map.data + 8, start, strlen(start));
    acr_map_close(&map);
    json_decref(metadata);
}

static void what_cannot_be_written_is_refused(void **state)
{
    static const float a[2] = {1, 2};
    acr_tensor t[2] = {{.name = "a",
                        .dtype = ACR_DTYPE_F32,
                        .n_dims = 1,
                        .dims = {2},
                        .data = a,
                        .bytes = sizeof a}};
    char *nowhere = acr_sprintf("%s/no/model.safetensors", folder);
    accrue_error e;

    (void)state;
    t[1] = t[0];
    assert_fails(acr_safetensors_write(path, t, 2, NULL, NULL, &e), ACCRUE_EINVAL, &e, "'a' twice",
                 NULL);
    t[0].dims[0] = 3;
    assert_fails(acr_safetensors_write(path, t, 1, NULL, NULL, &e), ACCRUE_EINVAL, &e,
                 "8 bytes for 3 elements of F32", NULL);
    assert_false(acr_is_file(path));
    assert_fails(acr_safetensors_write(nowhere, &t[1], 1, NULL, NULL, &e), ACCRUE_EIO, &e, nowhere,
                 NULL);
    assert_fails(acr_safetensors_write("/dev/full", &t[1], 1, NULL, NULL, &e), ACCRUE_ENOSPACE, &e,
                 "/dev/full: cannot write", NULL);
    assert_fails(acr_write_file("/dev/full", "x", 1, &e), ACCRUE_ENOSPACE, &e, "/dev/full", NULL);
    acr_free(nowhere);
}

static void broken_headers_are_refused(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", 8, "line 1 column"},
        {"[1]", 0, "not a JSON object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         8, "duplicate"},
        {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2,
         "dtype 'F8_E4M3' is not supported"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
         "F32 [3] takes 12 bytes, not 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7,
         "bytes 0 to 8 are not within the 7 bytes of data"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "bytes 8 to 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "bytes -8 to 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8,
         "dimension 0 of its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "dimension 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "shape overflows"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0,
         "size overflows"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
         "at most 8"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
         7, "'b' begins at byte 3 of the data, inside the one that ends at byte 4"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]}}",
         8, "'b' begins at byte 5 of the data, after a gap from byte 4"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5,
         "take 4 bytes, its data has 5"},
        {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "expected dtype, shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"x\":1}}", 4,
         "expected dtype, shape"},
        {"{\"a\":3}", 0, "expected dtype, shape"},
        {"{\"__metadata__\":{\"format\":1}}", 0, "__metadata__ 'format' is not a string"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    };
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        acr_safetensors *f = NULL;
        write_header(path, cases[i].header, cases[i].data);
        assert_fails(acr_safetensors_open(&f, path, &e), ACCRUE_EFORMAT, &e, path, cases[i].message,
                     NULL);
        assert_null(f);
    }
}

static void broken_lengths_are_refused(void **state)
{
    acr_safetensors *f = NULL;
    accrue_error e;
    uint64_t length = 3;
    char bytes[10] = {0};

    (void)state;
    memcpy(bytes, &length, 8);
    bytes[8] = '{';
    bytes[9] = '}';
    write_bytes(path, bytes, 10);
    assert_fails(acr_safetensors_open(&f, path, &e), ACCRUE_EFORMAT, &e, path,
                 "a header of 3 bytes in a file of 10", NULL);
    length = UINT64_MAX;
    memcpy(bytes, &length, 8);
    write_bytes(path, bytes, 10);
    assert_fails(acr_safetensors_open(&f, path, &e), ACCRUE_EFORMAT, &e, path,
                 "18446744073709551615 bytes, at most 100000000", NULL);
    for (size_t n = 0; n < 8; n++) {
        write_bytes(path, bytes, n);
        assert_fails(acr_safetensors_open(&f, path, &e), ACCRUE_EFORMAT, &e, path, NULL);
    }
    assert_int_equal(remove(path), 0);
    assert_fails(acr_safetensors_open(&f, path, &e), ACCRUE_EIO, &e, path, "No such file", NULL);
    assert_fails(acr_safetensors_open(&f, folder, &e), ACCRUE_EIO, &e, folder, NULL);
}

/* A file cut anywhere is refused. */
static void truncated_files_are_refused(void **state)
{
    const char *whole = ACR_TEST_DATA "/tiny/hidden_states/hs_0.safetensors";
    acr_map map = {0};
    accrue_error e;

    (void)state;
    assert_ok(acr_map_open(&map, whole, &e), &e);
    for (size_t n = 0; n < map.bytes; n++) {
        acr_safetensors *f = NULL;
        write_bytes(path, map.data, n);
        assert_fails(acr_safetensors_open(&f, path, &e), ACCRUE_EFORMAT, &e, path, NULL);
    }
    acr_map_close(&map);
}

static void write_shard(const char *name, const char *tensor, float value)
{
    char *file = acr_sprintf("%s/%s", folder, name);
    acr_tensor t = {.name = tensor,
                    .dtype = ACR_DTYPE_F32,
                    .n_dims = 1,
                    .dims = {1},
                    .data = &value,
                    .bytes = sizeof value};

    assert_int_equal(acr_safetensors_write(file, &t, 1, NULL, NULL, NULL), ACCRUE_OK);
    acr_free(file);
}

static void weights_come_in_one_file_or_in_shards(void **state)
{
    acr_weights *w = NULL;
    accrue_error e;
    char *index = acr_sprintf("%s/model.safetensors.index.json", folder);

    (void)state;
    assert_fails(acr_weights_open(&w, folder, &e), ACCRUE_EIO, &e, folder, "neither", NULL);
    write_shard("m-2.safetensors", "a", 2);
    write_shard("m-1.safetensors", "b", 1);
    write_text(index, "{\"metadata\":{\"total_size\":8},"
                      "\"weight_map\":{\"b\":\"m-1.safetensors\",\"a\":\"m-2.safetensors\"}}");
    assert_ok(acr_weights_open(&w, folder, &e), &e);
    assert_int_equal(acr_weights_count(w), 2);
    assert_string_equal(acr_weights_at(w, 0)->name, "a");
    assert_true(*(const float *)acr_weights_find(w, "b")->data == 1.0f);
    assert_true(*(const float *)acr_weights_find(w, "a")->data == 2.0f);
    assert_null(acr_weights_find(w, "c"));
    acr_weights_close(w);
    write_text(index, "{\"weight_map\":{\"b\":\"m-2.safetensors\"}}");
    assert_fails(acr_weights_open(&w, folder, &e), ACCRUE_EMISMATCH, &e, "'b' is not in",
                 "m-2.safetensors", NULL);
    write_text(index, "{\"weight_map\":{\"b\":\"../m-2.safetensors\"}}");
    assert_fails(acr_weights_open(&w, folder, &e), ACCRUE_EFORMAT, &e, index, "'b'", NULL);
    write_text(index, "{\"weight_map\":{\"b\":\"m-3.safetensors\"}}");
    assert_fails(acr_weights_open(&w, folder, &e), ACCRUE_EIO, &e, "m-3.safetensors", NULL);
    write_text(index, "{}");
    assert_fails(acr_weights_open(&w, folder, &e), ACCRUE_EFORMAT, &e, "weight_map", NULL);
    write_shard("model.safetensors", "whole", 3);
    assert_ok(acr_weights_open(&w, folder, &e), &e);
    assert_int_equal(acr_weights_count(w), 1);
    assert_non_null(acr_weights_find(w, "whole"));
    acr_weights_close(w);
    acr_free(index);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_written_is_read),     TEST(what_cannot_be_written_is_refused),
        TEST(broken_headers_are_refused),  TEST(broken_lengths_are_refused),
        TEST(truncated_files_are_refused), TEST(weights_come_in_one_file_or_in_shards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
