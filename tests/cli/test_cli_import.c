/* test_cli_import.c - accrue import as its user sees it, over fake_accrue.c. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#define OUTPUT_BYTES 65536

static char out[OUTPUT_BYTES], err[OUTPUT_BYTES];

static void read_file(char *text, const char *path)
{
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    size_t n = fread(text, 1, OUTPUT_BYTES - 1, f);
    text[n] = '\0';
    fclose(f);
}

/* Exit code of accrue import; what it prints is in `out` and `err`. */
static int run(const char *arguments)
{
    char command[1000];

    snprintf(command, sizeof command, "'%s' import %s >import.out 2>import.err", ACCRUE_FAKE,
             arguments);
    int status = system(command);
    assert_true(WIFEXITED(status));
    read_file(out, "import.out");
    read_file(err, "import.err");
    return WEXITSTATUS(status);
}

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(run("sound --out DIR"), 0);
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
    assert_int_equal(run("found --out DIR"), 0);
    assert_non_null(strstr(out, "tokenizer  tokenizer.json, chat_template.jinja\n"
                                "folder     DIR, an import of this file already; nothing was "
                                "written\n"));
    assert_int_equal(run("spm --out DIR"), 0);
    assert_non_null(strstr(out, "tokenizer  none: of another kind\n"));
}

static void test_json(void **state)
{
    json_t *root = NULL, *type = NULL;

    (void)state;
    assert_int_equal(run("spm --out DIR --json"), 0);
    root = json_loads(out, 0, NULL); /* no progress before it */
    assert_non_null(root);
    type = json_array_get(json_object_get(root, "types"), 0);
    assert_int_equal(json_integer_value(json_object_get(type, "source_bytes")), 2000000);
    assert_int_equal(json_integer_value(json_object_get(root, "parameters")), 3456);
    assert_true(json_is_false(json_object_get(root, "tokenizer")));
    assert_string_equal(json_string_value(json_object_get(root, "tokenizer_why")),
                        "of another kind");
    json_decref(root);
    assert_int_equal(run("found --out DIR --json"), 0);
    root = json_loads(out, 0, NULL);
    assert_true(json_is_true(json_object_get(root, "found")));
    assert_true(json_is_null(json_object_get(root, "tokenizer_why")));
    json_decref(root);
}

static void test_failures(void **state)
{
    (void)state;
    assert_int_equal(run("fail-ACCRUE_EFORMAT --out DIR"), 2);
    assert_string_equal(out, "");
    assert_int_equal(run("fail-ACCRUE_ENOSPACE --out DIR"), 1);
    assert_int_equal(run("fail-ACCRUE_ENUMERIC --out DIR"), 1);
    assert_int_equal(run("sound"), 2);
    assert_string_equal(err, "accrue: --out: a folder expected; see accrue import --help\n");
    assert_int_equal(run("sound --out ''"), 2);
    assert_non_null(strstr(err, "--out"));
    assert_int_equal(run("--out DIR"), 2);
    assert_int_equal(run("sound --out DIR --dtype float64"), 2);
    assert_non_null(strstr(err, "auto, bfloat16, float16, float32"));
    assert_int_equal(run("sound --out DIR --smooth 3"), 2);
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
