/* test_cli_work.c - accrue generate and accrue extract as their user sees them, over
 * fake_accrue.c. */
#include "cli_test.h"

static const struct {
    const char *arguments, *message;
} mistakes[] = {
    {"generate", "generate: a file of conversations expected; see accrue generate --help"},
    {"generate a b", "unexpected argument 'b'; see accrue generate --help"},
    {"generate a --output o", "--verifier-name-or-path is missing"},
    {"generate a --verifier-name-or-path v", "--output is missing"},
    {"generate a --lr 1", "unknown flag --lr; see accrue generate --help"},
    {"generate a --max-new-tokens 0",
     "--max-new-tokens: 0, a whole number of at least 1 and at most 16777216 expected"},
    {"generate a --temperature -1", "--temperature: -1, a number of at least 0 expected"},
    {"generate a --top-p 0", "--top-p: 0, a number above 0 and at most 1 expected"},
    {"generate a --batch-size 0",
     "--batch-size: 0, a whole number of at least 1 and at most 1024 expected"},
    {"generate a --limit 0", "--limit: 0, a whole number of at least 1 expected"},
    {"generate a --dtype f32", "--dtype: 'f32', one of bfloat16, float32, float64 expected"},
    {"extract", "--verifier-name-or-path is missing"},
    {"generate a --max-tokens 4", "unknown flag --max-tokens; did you mean --max-new-tokens?"},
    {"generate a --concurrency 4", "unknown flag --concurrency; did you mean --batch-size?"},
    {"generate a --outfile f", "unknown flag --outfile; did you mean --output?"},
    {"extract stray", "unexpected argument 'stray'; see accrue extract --help"},
    {"extract --ranks 2", "unknown flag --ranks; see accrue extract --help"},
};

static void test_mistakes(void **state)
{
    char expected[300];

    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        snprintf(expected, sizeof expected, "accrue: %s\n", mistakes[i].message);
        assert_int_equal(run(mistakes[i].arguments), 2);
        assert_string_equal(err, expected);
        assert_string_equal(out, "");
    }
}

static void test_generate(void **state)
{
    (void)state;
    assert_int_equal(run("generate in.jsonl --verifier-name-or-path v --output out.jsonl"), 0);
    expect_text(out, "20 of 40 rows  1,000 tokens/s  0:12 left\n");
    expect_text(out, "30 of 40 rows  1,000 tokens/s  0:06 left\n");
    expect_text(out, "rows      40, 10 were done already\n");
    expect_text(out, "made      29 lines with 31 answers, in out.jsonl\n");
    expect_text(out, "left out  1 rows that ask nothing, or more than there is room for\n");
    expect_text(out, "cut       512 answers, ");
    expect_text(out, "sampling  temperature 0.5000, top-p 0.2500\n");
    expect_text(out, "tokens    18,042 in 9.00 s, 2,004 tokens/s\n");
    assert_string_equal(err, "");
}

static void test_generate_json(void **state)
{
    (void)state;
    assert_int_equal(run("generate in.jsonl --verifier-name-or-path v --output out.jsonl --json "
                         "--limit 25 --max-new-tokens 7 --batch-size 3 --seed 5 --temperature 0 "
                         "--top-p 0.75"),
                     0);
    json_t *root = json_loads(out, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "output")), "out.jsonl");
    assert_int_equal(integer(root, "rows"), 25);
    assert_int_equal(integer(root, "cut"), 7);
    assert_int_equal(integer(root, "prompt_tokens"), 3);
    assert_int_equal(integer(root, "tokens"), 18005);
    assert_true(json_number_value(json_object_get(root, "temperature")) == 0);
    assert_true(json_number_value(json_object_get(root, "top_p")) == 0.75);
    json_decref(root);
}

static void test_extract(void **state)
{
    (void)state;
    assert_int_equal(run("extract --verifier-name-or-path v --data-path d --target-layer-ids 1 2 "
                         "--hidden-states-dtype float32"),
                     0);
    expect_text(out, "30 of 40 rows to make, 1.2 MB; 3.0 GB are free\n");
    expect_text(out, "20 of 40 rows  1,000 tokens/s  0:12 left\n");
    expect_text(out, "rows    40, 10 were there already\n");
    expect_text(out, "broken  2 files, made anew\n");
    expect_text(out, "made    30 files, 1.2 MB, in d/hidden_states\n");
    expect_text(out, "tokens  18,001 in 9.00 s, 2,000 tokens/s\n");
    assert_int_equal(run("extract --verifier-name-or-path v --hidden-states-path h --json"), 0);
    json_t *root = json_loads(out, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "hidden_states_path")), "h");
    assert_int_equal(integer(root, "made"), 30);
    assert_int_equal(integer(root, "broken"), 0);
    assert_int_equal(integer(root, "needed_bytes"), 1200000);
    json_decref(root);
}

static void test_exit_codes(void **state)
{
    static const struct {
        const char *status;
        int generate, extract;
    } cases[] = {
        {"ENOMEM", 1, 1},    {"EINVAL", 2, 2},   {"EIO", 2, 2},     {"EFORMAT", 2, 2},
        {"EMISMATCH", 2, 2}, {"ENUMERIC", 1, 1}, {"ENOSPACE", 1, 2} /* known before it begins */};
    char command[200];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(command, sizeof command,
                 "generate x --output o --verifier-name-or-path fail-ACCRUE_%s", cases[i].status);
        assert_int_equal(run(command), cases[i].generate);
        assert_non_null(strstr(err, ": broken on purpose\n"));
        snprintf(command, sizeof command, "extract --verifier-name-or-path fail-ACCRUE_%s",
                 cases[i].status);
        assert_int_equal(run(command), cases[i].extract);
        assert_string_equal(out, "");
    }
}

static void stopped_by(int number, const char *name, int code)
{
    char expected[200];
    pid_t pid = fork();
    int status = 0;

    if (pid == 0) {
        signal(SIGINT, SIG_DFL);
        if (!freopen("stop.out", "w", stdout) || !freopen("stop.err", "w", stderr))
            _exit(99);
        execl(ACCRUE_FAKE, "accrue", "extract", "--verifier-name-or-path", "slow", (char *)NULL);
        _exit(99);
    }
    for (out[0] = '\0'; !strstr(out, "to make"); usleep(10000))
        if (access("stop.out", R_OK) == 0)
            read_file(out, "stop.out");
    usleep(100000);
    assert_int_equal(kill(pid, number), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
    read_file(err, "stop.err");
    snprintf(expected, sizeof expected,
             "accrue: stopped with 20 of 40 rows done by %s; the same command goes on\n", name);
    assert_string_equal(err, expected);
    remove("stop.out");
}

/* The fake sleeps through the first one. */
static void test_second_signal(void **state)
{
    pid_t pid = fork();
    int status = 0;

    (void)state;
    if (pid == 0) {
        if (!freopen("stop.out", "w", stdout))
            _exit(99);
        execl(ACCRUE_FAKE, "accrue", "extract", "--verifier-name-or-path", "deaf", (char *)NULL);
        _exit(99);
    }
    for (out[0] = '\0'; !strstr(out, "to make"); usleep(10000))
        if (access("stop.out", R_OK) == 0)
            read_file(out, "stop.out");
    usleep(100000);
    kill(pid, SIGTERM);
    usleep(50000);
    kill(pid, SIGTERM); /* the same wish */
    usleep(700000);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 143);
    remove("stop.out");
}

static void test_signals(void **state)
{
    (void)state;
    stopped_by(SIGINT, "SIGINT", 130);
    stopped_by(SIGTERM, "SIGTERM", 143);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistakes),      cmocka_unit_test(test_generate),
        cmocka_unit_test(test_generate_json), cmocka_unit_test(test_extract),
        cmocka_unit_test(test_exit_codes),    cmocka_unit_test(test_signals),
        cmocka_unit_test(test_second_signal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
