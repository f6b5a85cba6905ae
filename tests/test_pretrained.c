/* test_pretrained.c - trained models: Hugging Face folders. */
#include "files.h"

#include "model/model.h"

static char *folder;

static int setup(void **state)
{
    (void)state;
    folder = make_folder();
    return folder ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

static void put_text(const char *file, const char *text)
{
    char *path = acr_sprintf("%s/%s", folder, file);

    write_text(path, text);
    acr_free(path);
}

static void put_tensors(const char *file, const acr_tensor *t, int n)
{
    char *path = acr_sprintf("%s/%s", folder, file);
    accrue_error e;

    assert_ok(acr_safetensors_write(path, t, n, NULL, NULL, &e), &e);
    acr_free(path);
}

/* Rows 1, 2, 3 of [3, 2] in each type; all values are exact in every one of them. */
static const float f32[6] = {1, -2, 0.5f, 4, -0.25f, 6};
static const double f64[6] = {1, -2, 0.5, 4, -0.25, 6};
static const uint16_t f16[6] = {0x3c00, 0xc000, 0x3800, 0x4400, 0xb400, 0x4600};
static const uint16_t bf16[6] = {0x3f80, 0xc000, 0x3f00, 0x4080, 0xbe80, 0x40c0};
static const int64_t ids[2] = {3, 4};

static const acr_tensor tensors[] = {
    {"a", ACR_DTYPE_F32, 2, {3, 2}, f32, sizeof f32},
    {"b", ACR_DTYPE_F64, 2, {3, 2}, f64, sizeof f64},
    {"c", ACR_DTYPE_F16, 2, {3, 2}, f16, sizeof f16},
    {"d", ACR_DTYPE_BF16, 2, {3, 2}, bf16, sizeof bf16},
    {"e", ACR_DTYPE_I64, 1, {2}, ids, sizeof ids},
    {"f", ACR_DTYPE_F32, 0, {0}, f32, sizeof f32[0]},
    {"g", ACR_DTYPE_F32, 2, {0, 2}, NULL, 0},
};

static void expect_values(const acr_pretrained *p)
{
    accrue_error e;
    float single[6];
    double twice[6];

    for (int i = 0; i < 4; i++) {
        const acr_tensor *t = acr_pretrained_at(p, i);
        assert_string_equal(t->name, tensors[i].name);
        assert_int_equal(t->dtype, tensors[i].dtype);
        assert_int_equal(t->dims[0], 3);
        assert_null(t->data);
        assert_int_equal(acr_pretrained_find(p, t->name), i);
        assert_ok(acr_pretrained_read(single, ACR_DTYPE_F32, p, i, 0, 3, &e), &e);
        assert_memory_equal(single, f32, sizeof f32);
        assert_ok(acr_pretrained_read(twice, ACR_DTYPE_F64, p, i, 1, 2, &e), &e);
        assert_memory_equal(twice, f64 + 2, 4 * sizeof(double));
    }
    assert_int_equal(acr_pretrained_find(p, "0"), -1);
    assert_int_equal(acr_pretrained_find(p, "bb"), -1);
    assert_int_equal(acr_pretrained_find(p, "z"), -1);
}

static void every_float_type_is_read(void **state)
{
    acr_pretrained *p = NULL;
    accrue_error e;
    float one = 0;

    (void)state;
    put_text("config.json", "{\"model_type\": \"llama\"}");
    put_tensors("model.safetensors", tensors, ACR_COUNT(tensors));
    assert_ok(acr_pretrained_open(&p, folder, &e), &e);
    assert_int_equal(acr_pretrained_count(p), ACR_COUNT(tensors));
    assert_null(acr_pretrained_generation(p));
    assert_null(acr_pretrained_gguf(p));
    assert_string_equal(json_string_value(json_object_get(acr_pretrained_config(p), "model_type")),
                        "llama");
    expect_values(p);
    assert_ok(acr_pretrained_read(&one, ACR_DTYPE_F32, p, 5, 0, 1, &e), &e);
    assert_true(one == 1.0f);
    assert_ok(acr_pretrained_read(&one, ACR_DTYPE_F32, p, 6, 0, 0, &e), &e);
    assert_fails(acr_pretrained_read(&one, ACR_DTYPE_F32, p, 4, 0, 1, &e), ACCRUE_EMISMATCH, &e,
                 folder, "e is I64, a float type expected", NULL);
    assert_fails(acr_pretrained_read(&one, ACR_DTYPE_F32, p, 0, 2, 2, &e), ACCRUE_EINVAL, &e,
                 "a: rows 2 and 2 more asked of 3", NULL);
    assert_fails(acr_pretrained_read(&one, ACR_DTYPE_F32, p, 0, -1, 1, &e), ACCRUE_EINVAL, &e,
                 "rows -1 and 1 more", NULL);
    acr_pretrained_close(p);
}

static void shards_are_one_model(void **state)
{
    acr_pretrained *p = NULL;
    accrue_error e;

    (void)state;
    put_text("config.json", "{}");
    put_text("generation_config.json", "{\"eos_token_id\": [1, 2]}");
    put_tensors("model-1.safetensors", tensors, 2);
    put_tensors("model-2.safetensors", tensors + 2, 2);
    put_text("model.safetensors.index.json",
             "{\"weight_map\": {\"c\": \"model-2.safetensors\", \"a\": \"model-1.safetensors\", "
             "\"b\": \"model-1.safetensors\", \"d\": \"model-2.safetensors\"}}");
    assert_ok(acr_pretrained_open(&p, folder, &e), &e);
    assert_int_equal(acr_pretrained_count(p), 4);
    assert_int_equal(json_array_size(json_object_get(acr_pretrained_generation(p), "eos_token_id")),
                     2);
    expect_values(p);
    acr_pretrained_close(p);
}

static void a_folder_that_is_no_model_is_refused(void **state)
{
    acr_pretrained *p = NULL;
    accrue_error e;

    (void)state;
    assert_fails(acr_pretrained_open(&p, folder, &e), ACCRUE_EIO, &e, "config.json", NULL);
    put_text("config.json", "[1]");
    assert_fails(acr_pretrained_open(&p, folder, &e), ACCRUE_EFORMAT, &e,
                 "config.json: not a JSON object", NULL);
    put_text("config.json", "\xef\xbb\xbf{}");
    assert_fails(acr_pretrained_open(&p, folder, &e), ACCRUE_EFORMAT, &e,
                 "config.json: begins with a byte order mark, UTF-8 without one expected", NULL);
    put_text("config.json", "{}");
    put_text("generation_config.json", "{");
    assert_fails(acr_pretrained_open(&p, folder, &e), ACCRUE_EFORMAT, &e,
                 "generation_config.json: line 1", NULL);
    put_text("generation_config.json", "{}");
    assert_fails(acr_pretrained_open(&p, folder, &e), ACCRUE_EIO, &e,
                 "neither model.safetensors nor", NULL);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_float_type_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(shards_are_one_model, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_that_is_no_model_is_refused, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
