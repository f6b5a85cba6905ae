/* test_cli_prepare.c - accrue prepare as its user sees it, over fake_accrue.c. */
#include "cli_test.h"

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(run("prepare a.jsonl --verifier-name-or-path v --output d"), 0);
    assert_string_equal(out, "1,000 of 4,000 lines  100/s  0:30 left\n"
                             "lines    4,000\n"
                             "rows     4,321 in d, 20.0 MB\n"
                             "tokens   1,234,567, 765,432 supervised (9,000 different)\n"
                             "longest  2,048 tokens\n");
    assert_string_equal(err, "");
    assert_int_equal(run("prepare a.jsonl --verifier-name-or-path found"), 0);
    expect_text(out, "\nIt was there already, made from the same files with the same options.\n");
    assert_int_equal(run("prepare a.jsonl --verifier-name-or-path faulty"), 0);
    expect_text(out, "\ncut       12 rows as long as --seq-length");
    expect_text(out, "\nleft out  3 faulty lines\n");
    expect_text(out, "\nleft out  4 conversations without an answer that makes a row\n");
    expect_text(out, "\nleft out  5 rows with nothing to learn");
    expect_text(out, "\nleft out  6 rows below --minimum-valid-tokens\n");
    expect_text(out, "\nleft out  7 rows above --max-samples\n");
    expect_text(out, "in ./output/skipped_lines.jsonl:\n  a.jsonl: line 7: broken\n");
    expect_text(err, "8 messages of roles like 'critic' are taken for the assistant's\n");
}

static void test_json(void **state)
{
    (void)state;
    assert_int_equal(run("prepare a.jsonl --verifier-name-or-path faulty --json"), 0);
    json_t *root = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "output")), "./output");
    assert_true(json_is_false(json_object_get(root, "found")));
    assert_int_equal(number(root, NULL, "lines"), 4000);
    assert_int_equal(number(root, NULL, "rows"), 4321);
    assert_int_equal(number(root, NULL, "cut_rows"), 12);
    assert_int_equal(number(root, NULL, "bad_lines"), 3);
    assert_int_equal(number(root, NULL, "surplus_rows"), 7);
    assert_int_equal(number(root, NULL, "unknown_roles"), 8);
    json_decref(root);
}

static void test_options(void **state)
{
    (void)state;
    assert_int_equal(run("prepare a.jsonl b.jsonl --verifier-name-or-path v"), 0);
    expect_option("files=a.jsonl,b.jsonl,");
    expect_option("output=./output");
    expect_option("seq_length=8192");
    expect_option("max_samples=0");
    expect_option("seed=0");
    expect_option("on_bad=1");
    expect_option("max_bad=-1");
    assert_int_equal(run("prepare a.jsonl --verifier-name-or-path v --output o --seq-length 5 "
                         "--max-samples 6 --minimum-valid-tokens 7 --seed 8 --draft-vocab-size 9 "
                         "--skip-token-freq --overwrite --allow-empty-output --on-bad skip "
                         "--max-bad 10 --threads 2"),
                     0);
    expect_option("output=o");
    expect_option("seq_length=5");
    expect_option("max_samples=6");
    expect_option("minimum_valid_tokens=7");
    expect_option("seed=8");
    expect_option("draft_vocab_size=9");
    expect_option("skip_token_freq=1");
    expect_option("overwrite=1");
    expect_option("allow_empty=1");
    expect_option("on_bad=2");
    expect_option("max_bad=10");
}

static void test_mistakes(void **state)
{
    char command[400] = "prepare --verifier-name-or-path v";

    (void)state;
    assert_int_equal(run("prepare --verifier-name-or-path v"), 2);
    assert_string_equal(err, "accrue: prepare: a file expected; see accrue prepare --help\n");
    assert_int_equal(run("prepare a.jsonl"), 2);
    assert_string_equal(err, "accrue: --verifier-name-or-path is missing\n");
    assert_int_equal(run("prepare a.jsonl --seq-len 5"), 2);
    expect_text(err, "did you mean --seq-length?");
    assert_int_equal(run("prepare a.jsonl --lr 1"), 2);
    expect_text(err, "unknown flag --lr");
    assert_int_equal(run("prepare a.jsonl --seq-length 0"), 2);
    expect_text(err, "--seq-length");
    assert_int_equal(run("train --seq-length 5"), 2);
    expect_text(err, "unknown flag --seq-length");
    assert_int_equal(run("prepare a.jsonl --verifier-name-or-path fail-ACCRUE_EFORMAT"), 2);
    assert_string_equal(err, "accrue: fail-ACCRUE_EFORMAT: broken on purpose\n");
    assert_int_equal(run("prepare a.jsonl --verifier-name-or-path fail-ACCRUE_ENOSPACE"), 1);
    for (int i = 0; i < 17; i++)
        strcat(command, " f");
    assert_int_equal(run(command), 2);
    assert_string_equal(err, "accrue: prepare: f is one too many, at most 16 files expected\n");
}

static void test_help(void **state)
{
    (void)state;
    assert_int_equal(run("prepare --help"), 0);
    expect_text(out, "Usage: accrue prepare [FLAG...] FILE.jsonl...\n");
    expect_text(out, "--seq-length=N");
    expect_text(out, "(default: 8192)");
    expect_text(out, "(default: 0)");
    assert_int_equal(run("help"), 0);
    expect_text(out, "\n  prepare ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),   cmocka_unit_test(test_json),
        cmocka_unit_test(test_options), cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_help),
    };

    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    return cmocka_run_group_tests_name("cli_prepare", tests, NULL, NULL);
}
