/* test_prepare_faults.c - lines that are faulty: what is told of them, and what is left out. */
#include "prepare_test.h"

#define TEN "0123456789"

static void faulty_lines_are_told(void **state)
{
    static const char *const cases[][2] = {
        {"{\"text\": \"a\"", "column"},
        {"[1]", "no JSON object"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "duplicate"},
        {"{\"text\": \"\\ud800\"}", "column"},
        {"{\"text\": 1}", "none of 'conversations', 'messages', 'prompt', 'text'"},
        {"{\"messages\": \"x\"}", "none of"},
        {"{\"input_ids\": [1]}", "none of"},
        {"{\"input_ids\": [1], \"loss_mask\": []}", "1 input_ids, but 0 in loss_mask"},
        {"{\"input_ids\": [1, 99999], \"loss_mask\": [0, 1]}",
         "input_ids[1] is 99999, an integer from 0 to 396 expected"},
        {"{\"input_ids\": [-1], \"loss_mask\": [1]}", "input_ids[0] is -1, an integer"},
        {"{\"input_ids\": [1.5], \"loss_mask\": [1]}", "input_ids[0] is 1.5, an integer"},
        {"{\"input_ids\": [null], \"loss_mask\": [1]}", "input_ids[0] is null, an integer"},
        {"{\"input_ids\": [{\"id\": [7]}], \"loss_mask\": [1]}",
         "input_ids[0] is {\"id\":[7]}, an integer"},
        {"{\"input_ids\": [1], \"loss_mask\": [2]}",
         "loss_mask[0] is 2, an integer from 0 to 1 expected"},
        {"{\"input_ids\": [1], \"loss_mask\": [\"" TEN TEN TEN TEN TEN TEN "\"]}",
         "loss_mask[0] is \"" TEN TEN TEN TEN TEN "01234..., an integer"},
        {"{\"input_ids\": [1], \"loss_mask\": [\"" TEN TEN TEN TEN TEN "0123\u00e9ABCD\"]}",
         "loss_mask[0] is \"" TEN TEN TEN TEN TEN "0123..., an integer"},
        {"{\"messages\": [{\"content\": \"q\"}]}", "message 0 has no 'role'"},
        {"{\"messages\": [1]}", "message 0 has no 'role'"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", "message 0: its content is"},
    };
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        char *text = acr_sprintf("\n{\"text\": \"fine\"}\n\n%s\n", cases[i][0]);
        write_text(lines, text);
        accrue_status st = prepare(&e);
        assert_fails(st, st == ACCRUE_EMISMATCH ? st : ACCRUE_EFORMAT, &e, lines,
                     "line 4: ", cases[i][1], NULL);
        assert_nothing_left();
        acr_free(text);
    }
}

static void what_a_template_has_no_form_for_is_told(void **state)
{
    static const char *const cases[][3] = {
        {"qwen2.5", "{\"role\": \"tool\", \"content\": \"r\"}", "message 1: the role 'tool'"},
        {"qwen3", "{\"role\": \"assistant\", \"tool_calls\": [1]}", "message 1 calls a tool"},
        {"llama3.1", "{\"role\": \"user\"}], \"tools\": [1, {}", "it has tools"},
        {"qwen3", "{\"role\": \"assistant\"}", "message 2 answers upon an answer"},
    };
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        char *text = acr_sprintf("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, %s, "
                                 "{\"role\": \"assistant\", \"content\": \"a\"}]}",
                                 cases[i][1]);
        use_template(cases[i][0]);
        write_text(lines, text);
        assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, lines, "line 1: ", cases[i][2], NULL);
        acr_free(text);
    }
    char *path = acr_sprintf("%s/chat_template.jinja", verifier);
    write_text(path, "{{ messages }}");
    write_text(lines, "{\"prompt\": \"q\"}");
    opt.on_bad = ACCRUE_POLICY_SKIP; /* not the line's fault */
    assert_fails(prepare(&e), ACCRUE_ENOTSUP, &e, path, "not supported", NULL);
    acr_free(path);
    path = acr_sprintf("%s/tokenizer.json", verifier);
    write_text(path, "{");
    assert_fails(prepare(&e), ACCRUE_EFORMAT, &e, path, NULL);
    assert_null(strstr(e.message, "max-bad"));
    assert_nothing_left();
    acr_free(path);
}

static void faulty_lines_are_left_out(void **state)
{
    char text[8000] = "";
    accrue_error e;
    json_t *entry = NULL;
    char *path = acr_sprintf("%s/skipped_lines.jsonl", output);

    (void)state;
    for (int i = 0; i < 299; i++)
        strcat(text, i % 100 == 50 ? "?\n" : "{\"text\": \"ab\"}\n");
    write_text(lines, text);
    opt.on_bad = ACCRUE_POLICY_SKIP;
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, "--max-bad 2 (1% of the lines)",
                 "3 lines of 299", "column 1", NULL);
    assert_nothing_left();
    opt.max_bad = 3;
    assert_ok(prepare(&e), &e);
    assert_int_equal(report.bad_lines, 3);
    assert_int_equal(report.rows, 296);
    assert_int_equal(report.lines, 299);
    assert_non_null(strstr(report.first_bad, "lines.jsonl: line 51: "));
    FILE *f = fopen(path, "r");
    int n = 0;
    while (fgets(text, sizeof text, f)) {
        entry = json_loads(text, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(entry, "file")), lines);
        assert_int_equal(json_integer_value(json_object_get(entry, "line")), 100 * n++ + 51);
        json_decref(entry);
    }
    fclose(f);
    assert_int_equal(n, 3);
    opt.max_bad = 2;
    opt.overwrite = true;
    opt.seed = 1;
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, "--max-bad 2:", NULL);
    acr_free(path);
}

static void nothing_left_to_learn_is_told(void **state)
{
    accrue_error e;

    (void)state;
    write_text(lines, "{\"prompt\": \"q\"}\n{\"input_ids\": [1], \"loss_mask\": [0]}\n"
                      "{\"text\": \"\"}\n");
    assert_fails(prepare(&e), ACCRUE_EFORMAT, &e, "line 3", "none of", NULL);
    write_text(lines, "{\"prompt\": \"q\"}\n{\"input_ids\": [1], \"loss_mask\": [0]}\n"
                      "{\"input_ids\": [1], \"loss_mask\": [1]}\n");
    opt.minimum_valid_tokens = 2;
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, lines, "no row is left of 3 lines",
                 "1 conversations without", "1 rows without", "1 with too few", NULL);
    assert_nothing_left();
    write_text(lines, "");
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, "lines.jsonl: no row is left of 0 lines", NULL);
    files[1] = lines;
    opt.n_files = 2;
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e,
                 "lines.jsonl and 1 more: no row is left of 0 lines", NULL);
    assert_nothing_left();
    opt.n_files = 1;
    write_text(lines, "{\"prompt\": \"q\"}\n{\"input_ids\": [1], \"loss_mask\": [0]}\n"
                      "{\"input_ids\": [1], \"loss_mask\": [1]}\n");
    opt.allow_empty_output = true;
    opt.draft_vocab_size = 10;
    assert_ok(prepare(&e), &e);
    assert_int_equal(report.rows, 0);
    assert_int_equal(report.unanswered, 1);
    assert_int_equal(report.short_rows, 1);
    assert_int_equal(report.files, 1);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        PREPARED(faulty_lines_are_told),
        PREPARED(what_a_template_has_no_form_for_is_told),
        PREPARED(faulty_lines_are_left_out),
        PREPARED(nothing_left_to_learn_is_told),
    };

    return cmocka_run_group_tests_name("prepare_faults", tests, NULL, NULL);
}
