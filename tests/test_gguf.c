/* test_gguf.c - GGUF files: their keys and tensors, every type against the gguf package, and files
 * that lie. */
#include "gguf_test.h"

#include <math.h>

static gguf_file f;
static gguf_text file;

static int setup(void **state)
{
    (void)state;
    memset(&f, 0, sizeof f);
    memset(&file, 0, sizeof file);
    return 0;
}

/* What the bytes assembled are refused with. */
static void expect(accrue_status status, const char *message)
{
    acr_gguf *g = NULL;
    accrue_error e;
    uint8_t *copy = malloc(file.n ? file.n : 1); /* a sanitizer sees a byte read past its end */

    assert_non_null(copy);
    memcpy(copy, file.at, file.n);
    assert_fails(acr_gguf_parse(&g, copy, file.n, "x.gguf", &e), status, &e, "x.gguf: ", message,
                 NULL);
    assert_null(g);
    free(copy);
}

static void expect_file(accrue_status status, const char *message)
{
    assemble(&file, &f, 3);
    expect(status, message);
    setup(NULL);
}

static void every_key_is_read(void **state)
{
    acr_gguf *g = NULL;
    accrue_error e;
    json_t *expected = json_pack(
        "{s:i, s:i, s:i, s:i, s:I, s:I, s:f, s:b, s:s, s:I, s:I, s:f, s:[i,i,i], s:[s,s,s], s:s}",
        "an.u8", 200, "an.i8", -100, "an.u16", 60000, "an.i16", -30000, "an.u32",
        (json_int_t)4000000000, "an.i32", (json_int_t)-2000000000, "an.f32", (double)0.1f, "a.bool",
        1, "a.string", "Gr\u00fc\u00dfe", "an.u64", (json_int_t)1 << 62, "an.i64",
        -((json_int_t)1 << 62), "an.f64", 0.1, "an.array", 1, -2, 3, "a.string.array", "a", "", "c",
        "general.architecture", "test");

    (void)state;
    assert_ok(acr_gguf_open(&g, ACR_TEST_DATA "/gguf/types.gguf", &e), &e);
    assert_string_equal(acr_gguf_path(g), ACR_TEST_DATA "/gguf/types.gguf");
    assert_true(json_equal((json_t *)(uintptr_t)acr_gguf_metadata(g), expected));
    json_decref(expected);
    acr_gguf_close(g);
}

static void every_type_has_the_packages_bits(void **state)
{
    acr_gguf *g = NULL;
    acr_safetensors *s = NULL;
    accrue_error e;

    (void)state;
    assert_ok(acr_gguf_open(&g, ACR_TEST_DATA "/gguf/types.gguf", &e), &e);
    assert_ok(acr_safetensors_open(&s, ACR_TEST_DATA "/gguf/types.safetensors", &e), &e);
    assert_int_equal(acr_gguf_count(g), 12);
    assert_int_equal(acr_safetensors_count(s), 12);
    for (int i = 0; i < 12; i++) {
        const acr_gguf_tensor *t = acr_gguf_at(g, i);
        const acr_tensor *expected = acr_safetensors_find(s, t->name);
        int64_t n = t->dims[0] * t->dims[1];
        float *out = malloc((size_t)n * sizeof *out);
        assert_non_null(expected);
        assert_string_equal(acr_gguf_type_name(t->type), t->name);
        assert_ptr_equal(acr_gguf_find(g, t->name), t);
        assert_int_equal(t->n_dims, 2);
        assert_int_equal(t->dims[1], expected->dims[1]);
        acr_gguf_dequantize(t->type, t->data, n, out);
        assert_memory_equal(out, expected->data, expected->bytes);
        free(out);
    }
    assert_null(acr_gguf_find(g, "absent"));
    assert_null(acr_gguf_type_name((acr_gguf_type)10));
    assert_null(acr_gguf_type_name((acr_gguf_type)1000));
    acr_safetensors_close(s);
    acr_gguf_close(g);
}

static void version_2_and_other_alignments_are_read(void **state)
{
    const float values[4] = {1, 2, 3, 4};
    acr_gguf *g = NULL;
    accrue_error e;

    (void)state;
    key_u32(&f, "general.alignment", 8);
    entry(&f, "b", 1, (const int64_t[]){2}, ACR_GGUF_F32, 0);
    entry(&f, "a", 1, (const int64_t[]){2}, ACR_GGUF_F32, 8);
    entry(&f, "none", 2, (const int64_t[]){0, 5}, ACR_GGUF_F32, 8);
    entry(&f, "one", 0, NULL, ACR_GGUF_F16, 16);
    assemble(&file, &f, 2);
    file.n = (24 + f.keys.n + f.tensors.n + 7) / 8 * 8; /* not 32 */
    put(&file, values, sizeof values);
    put(&file, values, 2);
    assert_ok(acr_gguf_parse(&g, file.at, file.n, "x", &e), &e);
    assert_memory_equal(acr_gguf_find(g, "a")->data, values + 2, 8);
    assert_int_equal(acr_gguf_find(g, "one")->bytes, 2);
    acr_gguf_close(g);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    acr_map map = {0};
    accrue_error e;

    (void)state;
    assert_ok(acr_map_open(&map, ACR_TEST_DATA "/gguf/types.gguf", &e), &e);
    for (size_t n = 0; n < map.bytes - 32; n += n < 1600 ? 1 : 41) {
        acr_gguf *g = NULL;
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, map.data, n);
        assert_int_equal(acr_gguf_parse(&g, copy, n, "x", &e), ACCRUE_EFORMAT);
        free(copy);
    }
    acr_map_close(&map);
}

static void headers_that_lie_are_refused(void **state)
{
    (void)state;
    expect(ACCRUE_EFORMAT, "ends at byte 0, inside its header");
    put(&file, "GGML", 4);
    expect(ACCRUE_EFORMAT, "does not begin with GGUF");
    assemble(&file, &f, 1);
    expect(ACCRUE_ENOTSUP, "GGUF version 1; supported: 2, 3");
    assemble(&file, &f, 0x03000000);
    expect(ACCRUE_ENOTSUP, "big endian; supported: little endian");
    assemble(&file, &f, 3);
    memset(file.at + 16, 255, 8);
    expect(ACCRUE_EFORMAT, "18446744073709551615 keys where 8 bytes are left; at most 65536");
    assemble(&file, &f, 3);
    memset(file.at + 8, 255, 8);
    expect(ACCRUE_EFORMAT, "18446744073709551615 tensors where 8 bytes are left; at most 1048576");
}

static void keys_that_lie_are_refused(void **state)
{
    const uint8_t two = 2;
    char name[300];

    (void)state;
    key_u32(&f, "a", 1);
    key_u32(&f, "a", 1);
    expect_file(ACCRUE_EFORMAT, "key 'a' is there twice");
    key(&f, "a", 13);
    expect_file(ACCRUE_EFORMAT, "key 'a': type 13, 0 to 12 expected");
    key(&f, "", GGUF_U32);
    expect_file(ACCRUE_EFORMAT, "key 1 of 1: a name of 0 bytes, 1 to 255 expected");
    memset(name, 'x', 256);
    name[256] = '\0';
    key_u32(&f, name, 1);
    expect_file(ACCRUE_EFORMAT, "key 1 of 1: a name of 256 bytes");
    key_u32(&f, "a\xff", 1);
    expect_file(ACCRUE_EFORMAT, "key 'a\\xff': its name is not UTF-8");
    key_string(&f, "a", "\xc3(");
    expect_file(ACCRUE_EFORMAT, "key 'a': a string that is not UTF-8");
    key(&f, "a", GGUF_STRING);
    put_u64(&f.keys, 2);
    put(&f.keys, "x\0", 2);
    expect_file(ACCRUE_EFORMAT, "key 'a': a string with a byte 0");
    key(&f, "a", GGUF_STRING);
    put_u64(&f.keys, UINT64_MAX);
    expect_file(ACCRUE_EFORMAT, "key 'a': a string of 18446744073709551615 bytes where");
    key(&f, "a", GGUF_BOOL);
    put(&f.keys, &two, 1);
    expect_file(ACCRUE_EFORMAT, "key 'a': 2, 0 or 1 expected");
    key_f32(&f, "a", INFINITY);
    expect_file(ACCRUE_EFORMAT, "key 'a': inf, a finite number expected");
    key(&f, "a", 10);
    put_u64(&f.keys, UINT64_MAX);
    expect_file(ACCRUE_EFORMAT, "key 'a': 18446744073709551615, at most 9223372036854775807");
}

static void arrays_that_lie_are_refused(void **state)
{
    (void)state;
    key(&f, "a", GGUF_ARRAY);
    put_u32(&f.keys, GGUF_ARRAY);
    put_u64(&f.keys, 1);
    expect_file(ACCRUE_ENOTSUP, "key 'a': an array of type 9; supported: numbers, strings");
    key(&f, "a", GGUF_ARRAY);
    put_u32(&f.keys, 99);
    put_u64(&f.keys, 1);
    expect_file(ACCRUE_ENOTSUP, "key 'a': an array of type 99");
    key(&f, "a", GGUF_ARRAY);
    put_u32(&f.keys, GGUF_U32);
    put_u64(&f.keys, UINT64_MAX);
    expect_file(ACCRUE_EFORMAT, "key 'a': 18446744073709551615 values where");
}

/* Arrays of single bytes become values of many: there is a limit on them all. */
static void too_many_values_are_refused(void **state)
{
    enum { VALUES = 9000000 };
    const size_t array = 8 + 1 + 4 + 4 + 8 + VALUES, n = 24 + 2 * array;
    uint8_t *bytes = calloc(1, n), *at = bytes;
    acr_gguf *g = NULL;
    accrue_error e;

    (void)state;
    assemble(&file, &f, 3);
    memcpy(bytes, file.at, 24);
    bytes[16] = 2;
    at += 24;
    for (int i = 0; i < 2; i++, at += array) {
        file.n = 0;
        put_string(&file, i ? "b" : "a");
        put_u32(&file, GGUF_ARRAY);
        put_u32(&file, 0);
        put_u64(&file, VALUES);
        memcpy(at, file.at, file.n);
    }
    assert_fails(acr_gguf_parse(&g, bytes, n, "x", &e), ACCRUE_EFORMAT, &e,
                 "key 'b': 9000000 values", "at most 16777216 in all arrays", NULL);
    free(bytes);
}

static void tensors_that_lie_are_refused(void **state)
{
    const int64_t five[] = {1, 1, 1, 1, 1}, huge[] = {INT64_MAX, 4}, one[] = {8}, odd[] = {2, 48};
    const int64_t over[] = {INT64_MAX / 2};

    (void)state;
    entry(&f, "t", 5, five, ACR_GGUF_F32, 0);
    expect_file(ACCRUE_EFORMAT, "tensor 't': 5 dimensions, at most 4 expected");
    entry(&f, "t", 2, huge, ACR_GGUF_F32, 0);
    expect_file(ACCRUE_EFORMAT, "tensor 't': its shape overflows 64 bits");
    entry(&f, "t", 1, (const int64_t[]){-1}, ACR_GGUF_F32, 0);
    expect_file(ACCRUE_EFORMAT, "tensor 't': its shape overflows 64 bits");
    entry(&f, "t", 1, over, ACR_GGUF_F64, 0);
    expect_file(ACCRUE_EFORMAT, "tensor 't': its size overflows 64 bits");
    entry(&f, "t", 1, one, 10, 0);
    expect_file(ACCRUE_ENOTSUP, "tensor 't': type 10, Q2_K; supported: F32, F16, BF16, F64, Q8_0");
    entry(&f, "t", 1, one, 31, 0);
    expect_file(ACCRUE_ENOTSUP, "tensor 't': type 31; supported");
    entry(&f, "t", 1, one, UINT32_MAX, 0);
    expect_file(ACCRUE_ENOTSUP, "tensor 't': type 4294967295; supported");
    entry(&f, "t", 2, odd, ACR_GGUF_Q8_0, 0);
    expect_file(ACCRUE_EFORMAT, "rows of 48 elements, a multiple of 32 expected for Q8_0");
    entry(&f, "t", 1, one, ACR_GGUF_F32, 1);
    expect_file(ACCRUE_EFORMAT, "'t': begins at byte 1 of the data, a multiple of 32 expected");
    entry(&f, "t", 1, one, ACR_GGUF_F32, 0);
    expect_file(ACCRUE_EFORMAT, "'t': 32 bytes from 0 on are not within the 0 bytes of data");
    entry(&f, "t", 1, one, ACR_GGUF_F32, UINT64_MAX - 31);
    expect_file(ACCRUE_EFORMAT, "'t': 32 bytes from 18446744073709551584 on are not within");
    tensor(&f, "t", 8, 0, NULL);
    tensor(&f, "t", 8, 0, NULL);
    expect_file(ACCRUE_EFORMAT, "tensor 't' is there twice");
    tensor(&f, "t", 16, 0, NULL);
    entry(&f, "u", 1, one, ACR_GGUF_F32, 32);
    expect_file(ACCRUE_EFORMAT, "'u' begins at byte 32 of the data, inside 't', which ends at 64");
    entry(&f, "", 1, one, ACR_GGUF_F32, 0);
    expect_file(ACCRUE_EFORMAT, "tensor 1 of 1: a name of 0 bytes");
    key_u32(&f, "general.alignment", 24);
    expect_file(ACCRUE_EFORMAT, "'general.alignment': 24, a power of two up to 1048576 expected");
    key_string(&f, "general.alignment", "x");
    expect_file(ACCRUE_EFORMAT, "'general.alignment': 0, a power of two");
}

static void what_is_no_file_is_refused(void **state)
{
    acr_gguf *g = NULL;
    accrue_error e;

    (void)state;
    assert_fails(acr_gguf_open(&g, "absent.gguf", &e), ACCRUE_EIO, &e, "absent.gguf", NULL);
    assert_null(g);
}

/* Whichever allocation fails, nothing is leaked and one line says so. */
static void memory_that_ends_is_told(void **state)
{
    accrue_status st = ACCRUE_ENOMEM;
    accrue_error e;
    acr_gguf *g = NULL;

    (void)state;
    for (uint64_t i = 1; st; i++) {
        acr_fail_allocation(i);
        st = acr_gguf_open(&g, ACR_TEST_DATA "/gguf/types.gguf", &e);
        acr_fail_allocation(0);
        assert_true(st == ACCRUE_OK || st == ACCRUE_ENOMEM);
    }
    acr_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_read),
        cmocka_unit_test(every_type_has_the_packages_bits),
        cmocka_unit_test_setup(version_2_and_other_alignments_are_read, setup),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test_setup(headers_that_lie_are_refused, setup),
        cmocka_unit_test_setup(keys_that_lie_are_refused, setup),
        cmocka_unit_test_setup(arrays_that_lie_are_refused, setup),
        cmocka_unit_test_setup(too_many_values_are_refused, setup),
        cmocka_unit_test_setup(tensors_that_lie_are_refused, setup),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(memory_that_ends_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
