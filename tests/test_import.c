/* test_import.c - a GGUF file as a folder: what is written, what is there already, and that nothing
 * is left of what failed. */
#include "gguf_test.h"

#include "model/model.h"

#include <dirent.h>
#include <unistd.h>

static char *work, *out;

static int setup(void **state)
{
    (void)state;
    work = make_folder();
    out = acr_sprintf("%s/model", work);
    return out ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    acr_free(out);
    remove_folder(work);
    return 0;
}

static accrue_import_options options(const char *model)
{
    accrue_import_options o;

    accrue_import_options_init(&o, sizeof o);
    o.model = model;
    o.out = out;
    return o;
}

static const char *const llama = ACR_TEST_DATA "/gguf/llama.gguf";

/* Entries of the work folder, hidden ones too. */
static int entries(void)
{
    DIR *d = opendir(work);
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void import_as(accrue_import_dtype dtype)
{
    accrue_import_options o = options(llama);
    accrue_import_report r;
    accrue_error e;

    o.dtype = dtype;
    assert_ok(accrue_import(&r, &o, NULL, NULL, &e), &e);
    assert_false(r.found);
}

/* What is read from the folder is what is read from the file, in the type written. */
static void expect_values(acr_dtype dtype)
{
    acr_pretrained *p = NULL, *q = NULL;
    accrue_error e;

    assert_ok(acr_pretrained_open(&p, llama, &e), &e);
    assert_ok(acr_pretrained_open(&q, out, &e), &e);
    assert_int_equal(acr_pretrained_count(p), acr_pretrained_count(q));
    for (int i = 0; i < acr_pretrained_count(p); i++) {
        const acr_tensor *t = acr_pretrained_at(p, i), *u = acr_pretrained_at(q, i);
        int64_t n = acr_tensor_elements(t);
        float *a = malloc((size_t)n * 4), *b = malloc((size_t)n * 4);
        uint16_t half = 0;
        assert_string_equal(t->name, u->name);
        if (dtype != ACR_DTYPE_COUNT)
            assert_int_equal(u->dtype, dtype);
        assert_ok(acr_pretrained_read(a, ACR_DTYPE_F32, p, i, 0, t->dims[0], &e), &e);
        assert_ok(acr_pretrained_read(b, ACR_DTYPE_F32, q, i, 0, t->dims[0], &e), &e);
        for (int64_t k = 0; k < n && u->dtype != ACR_DTYPE_F32; k++) {
            acr_convert(u->dtype, &half, ACR_DTYPE_F32, &a[k], 1);
            acr_convert(ACR_DTYPE_F32, &a[k], u->dtype, &half, 1);
        }
        assert_memory_equal(a, b, (size_t)n * 4);
        free(a);
        free(b);
    }
    acr_pretrained_close(p);
    acr_pretrained_close(q);
}

static json_t *load(const char *file)
{
    char *path = acr_sprintf("%s/%s", out, file);
    json_t *json = NULL;
    accrue_error e;

    assert_ok(acr_json_load(&json, path, 1 << 20, &e), &e);
    acr_free(path);
    return json;
}

static void expect_dtype(const char *name)
{
    json_t *config = load("config.json");

    assert_string_equal(json_string_value(json_object_get(config, "dtype")), name);
    assert_string_equal(json_string_value(json_object_get(config, "torch_dtype")), name);
    json_decref(config);
}

static void every_dtype_is_written(void **state)
{
    static const struct {
        accrue_import_dtype dtype;
        acr_dtype is;
        const char *name;
    } cases[] = {{ACCRUE_IMPORT_BF16, ACR_DTYPE_BF16, "bfloat16"},
                 {ACCRUE_IMPORT_F16, ACR_DTYPE_F16, "float16"},
                 {ACCRUE_IMPORT_F32, ACR_DTYPE_F32, "float32"}};

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        acr_free(out);
        out = acr_sprintf("%s/%s", work, cases[i].name);
        import_as(cases[i].dtype);
        expect_values(cases[i].is);
        expect_dtype(cases[i].name);
    }
    assert_int_equal(entries(), 3);
}

/* Of itself nothing loses but what is quantised; norms of a model in bf16 come back as such. */
static void auto_keeps_what_the_file_has(void **state)
{
    acr_pretrained *p = NULL;
    accrue_error e;

    (void)state;
    import_as(ACCRUE_IMPORT_AUTO);
    expect_values(ACR_DTYPE_COUNT);
    expect_dtype("bfloat16");
    assert_ok(acr_pretrained_open(&p, out, &e), &e);
    assert_int_equal(acr_pretrained_at(p, acr_pretrained_find(p, "model.norm.weight"))->dtype,
                     ACR_DTYPE_BF16);
    assert_int_equal(
        acr_pretrained_at(p, acr_pretrained_find(p, "model.layers.0.self_attn.v_proj.weight"))
            ->dtype,
        ACR_DTYPE_F16);
    acr_pretrained_close(p);
}

static void the_report_counts(void **state)
{
    accrue_import_options o = options(llama);
    accrue_import_report r;
    accrue_error e;
    int64_t tensors = 0, parameters = 0, bytes = 0;
    json_t *record = NULL, *tokenizer = NULL;

    (void)state;
    assert_ok(accrue_import(&r, &o, NULL, NULL, &e), &e);
    assert_string_equal(r.architecture, "llama");
    assert_string_equal(r.dtype, "bfloat16");
    assert_int_equal(r.tensors, 12);
    assert_int_equal(r.layers, 1);
    assert_int_equal(r.vocab_size, 264);
    assert_int_equal(r.n_types, 8);
    assert_true(r.tokenizer && r.chat_template);
    for (int i = 0; i < r.n_types; i++) {
        tensors += r.types[i].tensors;
        parameters += r.types[i].parameters;
    }
    assert_int_equal(tensors, r.tensors);
    assert_int_equal(parameters, r.parameters);
    assert_int_equal(r.source_bytes, acr_file_bytes(llama));
    record = load("import.json");
    assert_int_equal(json_object_size(json_object_get(record, "files")), 6);
    for (void *i = json_object_iter(json_object_get(record, "files")); i;
         i = json_object_iter_next(json_object_get(record, "files"), i))
        bytes += json_integer_value(json_object_iter_value(i));
    assert_int_equal(bytes, r.bytes);
    tokenizer = load("tokenizer.json");
    assert_int_equal(
        json_object_size(json_object_get(json_object_get(tokenizer, "model"), "vocab")), 264);
    json_decref(tokenizer);
    json_decref(record);
}

/* The llama, with one number of its norm behind the final layer replaced. */
static char *spoilt(float value)
{
    char *path = acr_sprintf("%s.gguf", out);
    acr_map map = {0};
    acr_gguf *g = NULL;
    accrue_error e;
    uint8_t *copy = NULL;
    size_t at = 0;

    assert_ok(acr_map_open(&map, llama, &e), &e);
    copy = malloc(map.bytes);
    memcpy(copy, map.data, map.bytes);
    assert_ok(acr_gguf_parse(&g, copy, map.bytes, "x", &e), &e);
    at = (size_t)((const uint8_t *)acr_gguf_find(g, "output_norm.weight")->data - copy);
    acr_gguf_close(g);
    memcpy(copy + at + 12, &value, sizeof value);
    write_bytes(path, copy, map.bytes);
    free(copy);
    acr_map_close(&map);
    return path;
}

static void what_is_there_is_not_written_again(void **state)
{
    accrue_import_options o = options(llama);
    accrue_import_report r;
    accrue_error e;
    char *path = acr_sprintf("%s/model.safetensors", out), *slash = acr_sprintf("%s/", out);
    char *changed = NULL;
    struct stat before, after;

    (void)state;
    import_as(ACCRUE_IMPORT_AUTO);
    assert_int_equal(stat(path, &before), 0);
    o.out = slash;
    assert_ok(accrue_import(&r, &o, NULL, NULL, &e), &e);
    assert_true(r.found);
    assert_int_equal(r.tensors, 12);
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_mtime == after.st_mtime);
    o.dtype = ACCRUE_IMPORT_F32;
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "is an import as auto, float32 expected", NULL);
    o.dtype = ACCRUE_IMPORT_AUTO;
    o.model = ACR_TEST_DATA "/gguf/qwen3.gguf";
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "is the import of another file than", "qwen3.gguf", NULL);
    changed = spoilt(3); /* as long as the file, and not the same */
    o.model = changed;
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "is the import of another file than", changed, NULL);
    o.model = llama;
    assert_int_equal(truncate(path, 100), 0);
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "is an import that lacks files, or has them in other sizes", NULL);
    assert_int_equal(entries(), 2); /* and the changed file */
    acr_free(changed);
    acr_free(path);
    acr_free(slash);
}

static void what_is_no_import_is_left_alone(void **state)
{
    accrue_import_options o = options(llama);
    accrue_import_report r;
    accrue_error e;
    char *record = acr_sprintf("%s/import.json", out);

    (void)state;
    assert_int_equal(mkdir(out, 0777), 0);
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, out,
                 "is there and no import; a new folder expected", NULL);
    write_text(record, "{");
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EFORMAT, &e, record, "line 1", NULL);
    write_text(record, "{}");
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "another file", NULL);
    acr_free(record);
}

static int stop(const accrue_progress *p, void *payload)
{
    int *calls = payload;

    assert_string_equal(p->unit, "bytes");
    assert_true(p->done <= p->total && p->total > 40000);
    return ++*calls == 3;
}

static void a_stop_leaves_nothing(void **state)
{
    accrue_import_options o = options(llama);
    accrue_import_report r;
    accrue_error e;
    int calls = 0;

    (void)state;
    assert_fails(accrue_import(&r, &o, stop, &calls, &e), ACCRUE_ECANCELED, &e, out,
                 "stopped; nothing is left of it", NULL);
    assert_int_equal(calls, 3);
    assert_int_equal(entries(), 0);
}

/* Somebody makes a folder of that name while the import is made. */
static int fill_out(const accrue_progress *p, void *payload)
{
    char *file = acr_sprintf("%s/config.json", out);

    (void)p;
    (void)payload;
    if (!acr_exists(out)) {
        assert_int_equal(mkdir(out, 0777), 0);
        write_text(file, "mine");
    }
    acr_free(file);
    return 0;
}

static void a_folder_that_came_meanwhile_is_kept(void **state)
{
    accrue_import_options o = options(llama);
    accrue_import_report r;
    accrue_error e;
    char *file = acr_sprintf("%s/config.json", out);

    (void)state;
    assert_fails(accrue_import(&r, &o, fill_out, NULL, &e), ACCRUE_EIO, &e, out,
                 "cannot bring the finished folder to its name", NULL);
    assert_int_equal(entries(), 1);
    assert_int_equal(acr_file_bytes(file), 4);
    acr_free(file);
}

static void options_are_checked(void **state)
{
    accrue_import_options o = options(""), none = {0};
    accrue_import_report r;
    accrue_error e;

    (void)state;
    assert_fails(accrue_import(&r, &none, NULL, NULL, &e), ACCRUE_EINVAL, &e, "not initialised",
                 NULL);
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e,
                 "a model and a folder expected", NULL);
    o.model = llama;
    o.dtype = (accrue_import_dtype)9;
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e, "9 is no dtype", NULL);
    o = options(work);
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, work,
                 "a folder, a GGUF file expected", NULL);
    o = options("absent.gguf");
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, "absent.gguf", NULL);
}

static void numbers_that_are_none_are_refused(void **state)
{
    char *path = spoilt(1e30f * 1e30f);
    accrue_import_options o = options(path);
    accrue_import_report r;
    accrue_error e;
    acr_pretrained *p = NULL;
    float value = 0;
    int i = -1;

    (void)state;
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EFORMAT, &e, path,
                 "tensor 'output_norm.weight': element 3 is not finite", NULL);
    acr_free(path);
    path = spoilt(70000);
    o.dtype = ACCRUE_IMPORT_F16;
    o.model = path;
    assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_ENUMERIC, &e, path,
                 "tensor 'output_norm.weight': element 3 is too large for F16", NULL);
    assert_int_equal(entries(), 1); /* the file */
    acr_free(path);
    path = spoilt(70001); /* which bf16 does not have */
    o.dtype = ACCRUE_IMPORT_AUTO;
    o.model = path;
    assert_ok(accrue_import(&r, &o, NULL, NULL, &e), &e);
    assert_ok(acr_pretrained_open(&p, out, &e), &e);
    i = acr_pretrained_find(p, "model.norm.weight");
    assert_int_equal(acr_pretrained_at(p, i)->dtype, ACR_DTYPE_F32);
    assert_ok(acr_pretrained_read(&value, ACR_DTYPE_F32, p, i, 3, 1, &e), &e);
    assert_true(value == 70001);
    acr_pretrained_close(p);
    acr_free(path);
}

/* A process that is no more left its folder, one that runs is at work in its own. */
static void what_a_killed_import_left_is_removed(void **state)
{
    char *dead = acr_sprintf("%s/.model.tmp-%d", work, INT32_MAX);
    char *alive = acr_sprintf("%s/.model.tmp-1", work);
    char *other = acr_sprintf("%s/.model.tmp-x", work);
    char *file = acr_sprintf("%s/model.safetensors", dead);

    (void)state;
    assert_int_equal(mkdir(dead, 0777) | mkdir(alive, 0777) | mkdir(other, 0777), 0);
    write_text(file, "half");
    import_as(ACCRUE_IMPORT_AUTO);
    assert_false(acr_exists(dead));
    assert_true(acr_is_dir(alive) && acr_is_dir(other));
    acr_free(dead);
    acr_free(alive);
    acr_free(other);
    acr_free(file);
}

static void folders_above_are_made(void **state)
{
    (void)state;
    acr_free(out);
    out = acr_sprintf("%s/a/b/c//", work);
    import_as(ACCRUE_IMPORT_AUTO);
    acr_free(out);
    out = acr_sprintf("%s/a/b/c/config.json/d", work);
    {
        accrue_import_options o = options(llama);
        accrue_import_report r;
        accrue_error e;
        assert_fails(accrue_import(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, "config.json", NULL);
    }
}

/* Whichever allocation fails: one line, and nothing left. */
static void memory_that_ends_is_told(void **state)
{
    accrue_import_options o = options(llama);
    accrue_import_report r;
    accrue_error e;
    accrue_status st = ACCRUE_ENOMEM;

    (void)state;
    for (uint64_t i = 1; st; i++) {
        acr_fail_allocation(i);
        st = accrue_import(&r, &o, NULL, NULL, &e);
        acr_fail_allocation(0);
        assert_true(st == ACCRUE_OK || st == ACCRUE_ENOMEM);
        assert_int_equal(entries(), st ? 0 : 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_dtype_is_written, setup, teardown),
        cmocka_unit_test_setup_teardown(auto_keeps_what_the_file_has, setup, teardown),
        cmocka_unit_test_setup_teardown(the_report_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_there_is_not_written_again, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_import_is_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stop_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_that_came_meanwhile_is_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(options_are_checked, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_that_are_none_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_killed_import_left_is_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(folders_above_are_made, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_that_ends_is_told, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
