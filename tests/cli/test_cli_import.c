/* test_cli_import.c - accrue import as its user sees it, over fake_accrue.c. */
#include "cli_test.h"

/* Exit code of accrue import; what it prints is in `out` and `err`. */
static int import(const char *arguments)
{
    return run_by_shell("import", arguments);
}

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(import("sound --out DIR"), 0);
    assert_string_equal(err, "");
    assert_string_equal(out, "1.0 MB of 4.0 MB  167 kB/s  0:18 left\n"
                             "type  tensors  parameters  in the file  in the folder\n"
                             "-----------------------------------------------------\n"
                             "Q4_K       12       3,456       2.0 MB         4.0 MB\n"
                             "all        12       3,456       2.0 MB         4.0 MB\n"
                             "\n"
                             "model      qwen3, 1 layer, vocabulary 789, bfloat16\n"
                             "tokenizer  tokenizer.json; no chat template\n"
                             "folder     DIR, 4.0 MB in 2.00 s\n");
    assert_int_equal(import("found --out DIR"), 0);
    assert_non_null(strstr(out, "tokenizer  tokenizer.json, chat_template.jinja\n"
                                "folder     DIR, an import of this file already; nothing was "
                                "written\n"));
    assert_int_equal(import("spm --out DIR"), 0);
    assert_non_null(strstr(out, "tokenizer  none: of another kind\n"));
}

static void test_json(void **state)
{
    json_t *root = NULL, *type = NULL;

    (void)state;
    assert_int_equal(import("spm --out DIR --json"), 0);
    root = json_loads(out, 0, NULL); /* no progress before it */
    assert_non_null(root);
    type = json_array_get(json_object_get(root, "types"), 0);
    assert_int_equal(json_integer_value(json_object_get(type, "source_bytes")), 2000000);
    assert_int_equal(json_integer_value(json_object_get(root, "parameters")), 3456);
    assert_true(json_is_false(json_object_get(root, "tokenizer")));
    assert_string_equal(json_string_value(json_object_get(root, "tokenizer_why")),
                        "of another kind");
    json_decref(root);
    assert_int_equal(import("found --out DIR --json"), 0);
    root = json_loads(out, 0, NULL);
    assert_true(json_is_true(json_object_get(root, "found")));
    assert_true(json_is_null(json_object_get(root, "tokenizer_why")));
    json_decref(root);
}

static void test_failures(void **state)
{
    (void)state;
    assert_int_equal(import("fail-ACCRUE_EFORMAT --out DIR"), 2);
    assert_string_equal(out, "");
    assert_int_equal(import("fail-ACCRUE_ENOSPACE --out DIR"), 1);
    assert_int_equal(import("fail-ACCRUE_ENUMERIC --out DIR"), 1);
    assert_int_equal(import("sound"), 2);
    assert_string_equal(err, "accrue: --out: a folder expected; see accrue import --help\n");
    assert_int_equal(import("sound --out ''"), 2);
    assert_non_null(strstr(err, "--out"));
    assert_int_equal(import("--out DIR"), 2);
    assert_int_equal(import("sound --out DIR --dtype float64"), 2);
    assert_non_null(strstr(err, "auto, bfloat16, float16, float32"));
    assert_int_equal(import("sound --out DIR --smooth 3"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_failures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
