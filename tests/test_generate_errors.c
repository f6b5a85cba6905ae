/* test_generate_errors.c - what accrue_generate refuses: options, what a model recommends, faulty
 * lines, and a verifier that does not fit. */
#include "generate_test.h"

/* Which of the model's files says it, or that the caller does. */
static void what_nobody_can_sample_by_is_refused(void **state)
{
    static const struct {
        const char *text;
        accrue_status status;
        const char *says;
    } cases[] = {
        {"{\"temperature\": -0.5}", ACCRUE_EINVAL, "temperature -0.5, a number of at least 0"},
        {"{\"top_p\": 1.5}", ACCRUE_EINVAL, "top-p 1.5, a number above 0"},
        {"{\"temperature\": \"hot\"}", ACCRUE_EFORMAT, "\"temperature\" is a string, a number"},
        {"{\"top_p\": []}", ACCRUE_EFORMAT, "\"top_p\" is an array, a number expected"},
    };
    accrue_generate_options o = options();
    char *path = acr_sprintf("%s/generation_config.json", verifier);
    accrue_generate_report r;
    accrue_error e = {0};

    (void)state;
    o.temperature = o.top_p = (double)NAN;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        write_text(path, cases[i].text);
        assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), cases[i].status, &e, path,
                     cases[i].says, NULL);
    }
    o.temperature = -1;
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e,
                 "--temperature: temperature -1, a number", NULL);
    o.temperature = 1;
    o.top_p = 2;
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e,
                 "--top-p: top-p 2, a number", NULL);
    assert_false(acr_exists(output));
    acr_free(path);
}

static void refuses_options_that_say_nothing(void **state)
{
    accrue_generate_options o = options();
    accrue_generate_report r;
    accrue_error e = {0};

#define FAILS(status, ...)                                                                         \
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), status, &e, __VA_ARGS__, NULL);          \
    o = options()
    (void)state;
    o.struct_size = 8;
    FAILS(ACCRUE_EINVAL, "options of 8 bytes");
    o.verifier = NULL;
    FAILS(ACCRUE_EINVAL, "--verifier-name-or-path: a value expected");
    o.data = "";
    FAILS(ACCRUE_EINVAL, "the conversations' file: a value expected");
    o.output = NULL;
    FAILS(ACCRUE_EINVAL, "--output: a value expected");
    o.max_new_tokens = 0;
    FAILS(ACCRUE_EINVAL, "--max-new-tokens: 0, 1 to");
    o.batch_size = 1025;
    FAILS(ACCRUE_EINVAL, "--batch-size: 1025, 1 to 1024 expected");
    o.limit = -1;
    FAILS(ACCRUE_EINVAL, "--limit: -1");
    o.compute = (accrue_dtype)9;
    FAILS(ACCRUE_EINVAL, "--dtype: 9");
    o.data = "no/such.jsonl";
    FAILS(ACCRUE_EIO, "no/such.jsonl");
    o.verifier = "no/such";
    FAILS(ACCRUE_EIO, "--verifier-name-or-path: \"no/such\" is no folder");
#undef FAILS
    assert_false(acr_exists(output));
}

static void faulty_lines_are_named(void **state)
{
    static const struct {
        const char *line;
        accrue_status status;
        const char *says;
    } cases[] = {
        {"{\"messages\": [", ACCRUE_EFORMAT, "line 2: column"},
        {"[1]", ACCRUE_EFORMAT, "line 2: none of 'conversations', 'messages' or 'prompt'"},
        {"{\"text\": \"no question\"}", ACCRUE_EFORMAT,
         "line 2: none of 'conversations', 'messages' or 'prompt'"},
        {"{\"messages\": [{\"content\": \"x\"}]}", ACCRUE_EFORMAT,
         "line 2: message 0 has no 'role' and no 'from'"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", ACCRUE_EFORMAT,
         "line 2: message 0: its content is no text"},
    };
    accrue_generate_options o = options();
    accrue_generate_report r;
    accrue_error e = {0};

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        char *text = acr_sprintf("{\"prompt\": \"fine\"}\n%s\n", cases[i].line);
        write_text(data, text);
        forget_output();
        assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), cases[i].status, &e, data,
                     cases[i].says, NULL);
        assert_false(acr_exists(output)); /* though the line before is fine */
        o.limit = 1;
        generate(&o); /* what is not asked does no harm */
        o.limit = 0;
        acr_free(text);
    }
}

static void a_file_without_a_conversation_is_refused(void **state)
{
    static const char *const texts[] = {"", "\n \n", "\xef\xbb\xbf"};
    accrue_generate_options o = options();
    char *deep = acr_sprintf("%s/made/out.jsonl", folder), *made = acr_sprintf("%s/made", folder);
    accrue_generate_report r;
    accrue_error e = {0};

    (void)state;
    o.output = deep;
    for (int i = 0; i < ACR_COUNT(texts); i++) {
        write_text(data, texts[i]);
        assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EFORMAT, &e, data,
                     ": 0 conversations, at least 1 expected", NULL);
        assert_false(acr_exists(made));
    }
    acr_free(deep);
    acr_free(made);
}

/* A tokenizer with more ids than the model has rows for. */
static void refuses_tokens_that_the_model_has_not(void **state)
{
    const accrue_generate_options o = options();
    accrue_generate_report r;
    accrue_error e = {0};

    (void)state;
    write_whole_verifier(verifier, 60, 7);
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, data,
                 ": row 0: token", "of the prompt is", verifier, "below 60", NULL);
}

static void refuses_logits_that_are_no_numbers(void **state)
{
    const accrue_generate_options o = options();
    accrue_generate_report r;
    accrue_error e = {0};

    (void)state;
    write_whole_verifier(verifier, WHOLE_CHAT_VOCAB, 0);
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_ENUMERIC, &e, data,
                 ": row 0: token 0 of the answer: the logits of ", verifier, " are not finite",
                 NULL);
    assert_false(acr_exists(output));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_nobody_can_sample_by_is_refused),
        TEST(refuses_options_that_say_nothing),
        TEST(faulty_lines_are_named),
        TEST(a_file_without_a_conversation_is_refused),
        TEST(refuses_tokens_that_the_model_has_not),
        TEST(refuses_logits_that_are_no_numbers),
    };

    return cmocka_run_group_tests_name("generate_errors", tests, NULL, NULL);
}
