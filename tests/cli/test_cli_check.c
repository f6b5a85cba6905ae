/* test_cli_check.c - accrue check as its user sees it, over fake_accrue.c. */
#include "cli_test.h"

/* Exit code of accrue check; what it prints is in `out` and `err`. */
static int check(const char *arguments)
{
    return run_by_shell("check", arguments);
}

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(check("sound"), 0);
    assert_non_null(strstr(out, "hidden states  1,234 files, 3.0 GB in 1.50 s, 2.00 GB/s\n"));
    assert_non_null(strstr(out, "\nNo fault.\n"));
    assert_int_equal(check("faults-7 --draft-vocab-size 8 --verifier-name-or-path v"), 2);
    assert_non_null(strstr(out, "rows           1,234, 7 with faults\n"));
    assert_non_null(strstr(out, "\nstale_lock (notice)       1       1\n"));
    assert_non_null(strstr(out, "\nnonfinite                 7      14\n"));
    assert_non_null(strstr(out, "\n  hs_4.safetensors: row 4: broken\n  and 2 more; --json"));
    assert_string_equal(err, "accrue: faults-7: 7 faults in 7 rows\n");
}

static void test_json(void **state)
{
    (void)state;
    assert_int_equal(check("faults-7 --json"), 2);
    json_t *root = json_loads(out, 0, NULL);
    const json_t *list = json_object_get(root, "faults"), *f = json_array_get(list, 6);
    assert_int_equal(json_array_size(list), 8);
    assert_int_equal(integer(root, "n_faults"), 7);
    assert_int_equal(integer(f, "row"), 6);
    assert_int_equal(integer(f, "token"), 3);
    assert_string_equal(json_string_value(json_object_get(f, "kind")), "nonfinite");
    assert_string_equal(json_string_value(json_object_get(f, "found")), "nan");
    assert_true(json_is_null(json_object_get(json_array_get(list, 7), "token")));
    json_decref(root);
}

/* A name that JSON cannot hold. */
static void test_json_of_other_bytes(void **state)
{
    (void)state;
    assert_int_equal(check("\"$(printf 'faults-7\\377')\" --json"), 2);
    json_t *root = json_loads(out, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "data_path")), "faults-7?");
    json_decref(root);
}

/* The line with rate and time left is drawn, and taken away before the table. */
static void test_terminal(void **state)
{
    (void)state;
    assert_int_equal(run_on_terminal("check sound", NULL), 0);
    assert_non_null(strstr(out, "\r\033[K1,234 of 1,234 rows  2.0 GB/s  0:00 left\r\033[Krows  "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_of_other_bytes),
        cmocka_unit_test(test_terminal),
    };

    return cmocka_run_group_tests_name("cli_check", tests, NULL, NULL);
}
