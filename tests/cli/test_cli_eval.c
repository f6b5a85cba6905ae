/* test_cli_eval.c - accrue eval as its user sees it, over fake_eval.c. */
#include "cli_test.h"

/* Exit code of accrue eval; what it prints is in `out` and `err`. */
static int evaluate(const char *arguments)
{
    setenv("FAKE_ACCRUE_OPTIONS", "eval.options", 1);
    return run_by_shell("eval", arguments);
}

static void near(double x, double expected)
{
    if (!(x - expected < 1e-9 && expected - x < 1e-9))
        fail_msg("%.10g, %.10g expected", x, expected);
}

static void options_arrive(void **state)
{
    (void)state;
    assert_int_equal(evaluate("draft --prompts p.json --limit 1"), 0);
    read_file(out, "eval.options");
    assert_string_equal(out, "checkpoint draft\nverifier -\nprompts p.json\nk 3\nnew 64\nlimit 1\n"
                             "dtype 1\n");
    assert_int_equal(evaluate("--prompts p.json draft --verifier-name-or-path v --limit 2 "
                              "--num-speculative-tokens 7 --max_new_tokens=9 --dtype bfloat16"),
                     0);
    read_file(out, "eval.options");
    assert_string_equal(out, "checkpoint draft\nverifier v\nprompts p.json\nk 7\nnew 9\nlimit 2\n"
                             "dtype 3\n");
}

static void table_tells_all(void **state)
{
    (void)state;
    assert_int_equal(evaluate("draft --prompts p.json --limit 20"), 0);
    assert_non_null(strstr(out, "\n20 of 20 prompts  0.600 accepted a round  40.0 tok/s, plain "
                                "32.0  0:00 left\n"));
    assert_non_null(strstr(out, "\ndraft              draft, 3 tokens a round\n"
                                "verifier           recorded, float32\n"
                                "prompts            20, 600 tokens; 1,280 tokens answered\n"
                                "rounds             200; 120 of 600 drafted tokens accepted, "
                                "0.2000\n"
                                "acceptance length  0.600 drafted tokens a round, 1.600 with the "
                                "bonus token\n"));
    assert_non_null(strstr(out, "1               80         0.4000                     0.4000\n"
                                "2               40         0.2000                     0.5000\n"
                                "3                0         0.0000                     0.0000\n"));
    assert_non_null(strstr(out, "plain          40.00   32.0\n"
                                "speculative    32.00   40.0     1.250\n"));
    assert_non_null(strstr(out, "\nEvery answer is the verifier's own, token for token.\n"));
    assert_string_equal(err, "");
}

static void difference_is_exit_1(void **state)
{
    (void)state;
    assert_int_equal(evaluate("differs --prompts p.json --limit 4"), 1);
    assert_non_null(strstr(out, "\n1 of 4 answers are NOT the verifier's own.\n"));
    assert_string_equal(err, "accrue: prompt 3: token 1 is another\n");
}

static void json_has_every_figure(void **state)
{
    json_t *root = NULL;
    const json_t *prompts = NULL, *last = NULL;

    (void)state;
    assert_int_equal(evaluate("differs --prompts p.json --limit 4 --json"), 1);
    root = json_loads(out, 0, NULL);
    assert_non_null(root);
    prompts = json_object_get(root, "prompts");
    last = json_array_get(prompts, 3);
    assert_int_equal(json_array_size(prompts), 4);
    near(number(root, NULL, "n_prompts"), 4);
    near(number(root, NULL, "rounds"), 40);
    near(number(root, NULL, "drafted"), 120);
    near(number(root, NULL, "accepted"), 24);
    near(number(root, NULL, "acceptance_rate"), 0.2);
    near(number(root, NULL, "accepted_length"), 0.6);
    near(number(root, NULL, "acceptance_length"), 1.6);
    near(number(root, NULL, "speed_up"), 1.25);
    near(number(root, NULL, "differing_prompts"), 1);
    near(
        json_number_value(json_array_get(json_object_get(root, "acceptance_rate_per_position"), 1)),
        0.2);
    near(json_number_value(
             json_array_get(json_object_get(root, "conditional_acceptance_rate_per_position"), 1)),
         0.5);
    assert_int_equal(json_array_size(json_object_get(root, "rounds_by_accepted_length")), 4);
    near(json_number_value(json_array_get(json_object_get(root, "accepted_per_position"), 0)), 16);
    near(number(last, NULL, "row"), 3);
    near(number(last, NULL, "differs_at"), 1);
    near(number(last, NULL, "acceptance_length"), 1.6);
    assert_true(json_is_null(json_object_get(json_array_get(prompts, 0), "differs_at")));
    near(json_number_value(json_array_get(json_object_get(last, "tokens"), 2)), 3);
    json_decref(root);
}

/* A name that JSON cannot hold. */
static void json_of_other_bytes(void **state)
{
    (void)state;
    assert_int_equal(evaluate("\"$(printf 'd\\377')\" --prompts p --limit 1 --json"), 0);
    json_t *root = json_loads(out, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "checkpoint")), "d?");
    json_decref(root);
}

static void pictures(void **state)
{
    (void)state;
    remove("eval.svg");
    assert_int_equal(evaluate("draft --prompts p --limit 3 --out eval.svg --title 'A draft'"), 0);
    assert_non_null(strstr(out, "\neval.svg\n"));
    read_file(out, "eval.svg");
    assert_non_null(strstr(out, "<svg"));
    assert_int_equal(evaluate("draft --prompts p --limit 3 --json --out eval.png"), 0);
    assert_null(strstr(out, "eval.png"));
    read_file(out, "eval.png");
    assert_memory_equal(out, "\x89PNG", 4);
    assert_int_equal(evaluate("draft --prompts p --limit 3 --out no/such/eval.svg"), 2);
    assert_non_null(strstr(err, "no/such/eval.svg: No such file"));
    assert_string_equal(out, "");
    assert_int_equal(
        evaluate("draft --prompts p --limit 3 --num-speculative-tokens 16 --out eval.svg"), 0);
    assert_int_equal(evaluate("draft --prompts p --out eval.gif"), 2);
    assert_non_null(strstr(err, "--out: 'eval.gif'"));
}

static void bad_input_is_exit_2(void **state)
{
    static const char *const lines[][2] = {
        {"--prompts p", "eval: the folder of a checkpoint expected"},
        {"draft", "eval: --prompts expected"},
        {"draft other --prompts p", "unexpected argument 'other'"},
        {"draft --prompts p --num-speculative-tokens 0", "--num-speculative-tokens: 0"},
        {"draft --prompts p --num-speculative-tokens 17", "--num-speculative-tokens: 17"},
        {"draft --prompts p --max-new-tokens 0", "--max-new-tokens: 0"},
        {"draft --prompts p --limit 0", "--limit: 0"},
        {"draft --prompts p --dtype float16", "--dtype: 'float16'"},
        {"draft --prompts p --lr 1", "unknown flag --lr"},
        {"broken --prompts p", "broken: tensor fc.weight is missing"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        assert_int_equal(evaluate(lines[i][0]), 2);
        if (!strstr(err, lines[i][1]))
            fail_msg("%s: %s", lines[i][0], err);
        assert_string_equal(out, "");
    }
}

/* The flags of eval are no others'. */
static void others_refuse_its_flags(void **state)
{
    static const char *const commands[] = {"train", "verify", "check x", "inspect x", "plot x"};
    char command[1000];

    (void)state;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        snprintf(command, sizeof command,
                 "'%s' %s --num-speculative-tokens 3 >/dev/null 2>eval.err", ACCRUE_FAKE,
                 commands[i]);
        int status = system(command);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
        read_file(err, "eval.err");
        assert_non_null(strstr(err, "unknown flag --num-speculative-tokens"));
    }
}

/* The line of progress is drawn, and taken away before the table. */
static void terminal(void **state)
{
    (void)state;
    assert_int_equal(run_on_terminal("eval draft --prompts p --limit 2", NULL), 0);
    assert_non_null(strstr(out, "\r\033[K1 of 2 prompts  0.600 accepted a round  40.0 tok/s, plain "
                                "32.0  0:04 left\r\033[K2 of 2"));
    assert_non_null(strstr(out, "0:00 left\r\033[Kdraft  "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_arrive),
        cmocka_unit_test(table_tells_all),
        cmocka_unit_test(difference_is_exit_1),
        cmocka_unit_test(json_has_every_figure),
        cmocka_unit_test(json_of_other_bytes),
        cmocka_unit_test(pictures),
        cmocka_unit_test(bad_input_is_exit_2),
        cmocka_unit_test(others_refuse_its_flags),
        cmocka_unit_test(terminal),
    };

    return cmocka_run_group_tests_name("cli_eval", tests, NULL, NULL);
}
