/* test_gguf_tokenizer.c - tokenizer.json out of GGUF: its parts for every way of splitting text, and
 * vocabularies that are another kind or not whole. */
#include "gguf_test.h"

static gguf_file f;
static gguf_text file;

static const char *const tokens[] = {"t", "h", "e", "th", "the", "<s>", "</s>", "<think>"};
static const int32_t kinds[] = {1, 1, 1, 1, 1, 3, 3, 4};
static const char *const merges[] = {"t h", "th e"};

static int setup(void **state)
{
    (void)state;
    memset(&f, 0, sizeof f);
    return 0;
}

static void put_vocabulary(const char *pre)
{
    memset(&f, 0, sizeof f);
    key_string(&f, "general.architecture", "llama");
    key_string(&f, "tokenizer.ggml.model", "gpt2");
    if (pre)
        key_string(&f, "tokenizer.ggml.pre", pre);
    key_strings(&f, "tokenizer.ggml.tokens", tokens, ACR_COUNT(tokens));
    key_i32s(&f, "tokenizer.ggml.token_type", kinds, ACR_COUNT(kinds));
    key_strings(&f, "tokenizer.ggml.merges", merges, ACR_COUNT(merges));
}

static acr_gguf *parse(void)
{
    acr_gguf *g = NULL;
    accrue_error e;

    assemble(&file, &f, 3);
    assert_ok(acr_gguf_parse(&g, file.at, file.n, "x.gguf", &e), &e);
    return g;
}

static json_t *make(void)
{
    acr_gguf *g = parse();
    json_t *json = NULL;
    char why[ACR_WHY];
    accrue_error e;

    assert_ok(acr_gguf_tokenizer(&json, why, g, &e), &e);
    assert_string_equal(why, "");
    assert_non_null(json);
    acr_gguf_close(g);
    return json;
}

static void expect_none(const char *expected)
{
    acr_gguf *g = parse();
    json_t *json = NULL;
    char why[ACR_WHY];
    accrue_error e;

    assert_ok(acr_gguf_tokenizer(&json, why, g, &e), &e);
    assert_null(json);
    assert_string_equal(why, expected);
    acr_gguf_close(g);
}

static void refuse(const char *message)
{
    acr_gguf *g = parse();
    json_t *json = NULL;
    char why[ACR_WHY];
    accrue_error e;

    assert_fails(acr_gguf_tokenizer(&json, why, g, &e), ACCRUE_EFORMAT, &e, "x.gguf: ", message,
                 NULL);
    assert_null(json);
    acr_gguf_close(g);
}

/* The whole of it, once, as the peer's loader reads it. */
static void a_vocabulary_is_told(void **state)
{
    const char *expected =
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": ["
        "{\"id\": 5, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, "
        "\"rstrip\": false, \"normalized\": false, \"special\": true},"
        "{\"id\": 6, \"content\": \"</s>\", \"single_word\": false, \"lstrip\": false, "
        "\"rstrip\": false, \"normalized\": false, \"special\": true},"
        "{\"id\": 7, \"content\": \"<think>\", \"single_word\": false, \"lstrip\": false, "
        "\"rstrip\": false, \"normalized\": false, \"special\": false}],"
        "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true},"
        "\"post_processor\": {\"type\": \"TemplateProcessing\", "
        "\"single\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "
        "\"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {}},"
        "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
        "\"trim_offsets\": true, \"use_regex\": true},"
        "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": \"\", \"fuse_unk\": false, "
        "\"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {\"t\": 0, \"h\": 1, "
        "\"e\": 2, \"th\": 3, \"the\": 4, \"<s>\": 5, \"</s>\": 6, \"<think>\": 7}, "
        "\"merges\": [[\"t\", \"h\"], [\"th\", \"e\"]]}}";
    json_t *wanted = json_loads(expected, 0, NULL), *json = NULL;

    (void)state;
    assert_non_null(wanted);
    put_vocabulary("smollm");
    json = make();
    assert_true(json_equal(json, wanted));
    json_decref(json);
    put_vocabulary(NULL); /* what says nothing is split as GPT-2's */
    json = make();
    assert_true(json_equal(json, wanted));
    json_decref(json);
    json_decref(wanted);
}

static const char *pattern_of(const json_t *json)
{
    const json_t *list = json_object_get(json_object_get(json, "pre_tokenizer"), "pretokenizers");

    return json_string_value(
        json_object_get(json_object_get(json_array_get(list, 0), "pattern"), "Regex"));
}

static void text_is_split_as_the_file_says(void **state)
{
    const struct {
        const char *pre, *digits; /* how its pattern takes them; NULL: none of its own */
        bool nfc, whole_words, bos;
    } cases[] = {{"gpt-2", NULL, false, false, false},
                 {"default", NULL, false, false, false},
                 {"llama-bpe", "|\\p{N}{1,3}|", false, true, true},
                 {"llama3", "|\\p{N}{1,3}|", false, true, true},
                 {"smaug-bpe", "|\\p{N}{1,3}|", false, false, false},
                 {"tekken", "|\\p{N}|", false, true, true},
                 {"qwen2", "|\\p{N}|", true, false, false},
                 {"deepseek-r1-qwen", "|\\p{N}|", false, false, false}};

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        json_t *json = NULL;
        const char *pattern = NULL;
        put_vocabulary(cases[i].pre);
        key_u32(&f, "tokenizer.ggml.bos_token_id", 5);
        json = make();
        pattern = pattern_of(json);
        assert_int_equal(pattern != NULL, cases[i].digits != NULL);
        if (pattern)
            assert_non_null(strstr(pattern, cases[i].digits));
        assert_int_equal(json_is_object(json_object_get(json, "normalizer")), cases[i].nfc);
        assert_int_equal(
            json_is_true(json_object_get(json_object_get(json, "model"), "ignore_merges")),
            cases[i].whole_words);
        assert_int_equal(
            json_array_size(json_object_get(json_object_get(json, "post_processor"), "single")),
            cases[i].bos ? 2 : 1);
        json_decref(json);
    }
}

static void the_file_says_whether_text_has_a_beginning(void **state)
{
    json_t *wanted = json_loads(
        "{\"type\": \"TemplateProcessing\", "
        "\"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "
        "\"pair\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
        "{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 1}}, "
        "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], "
        "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [5], \"tokens\": [\"<s>\"]}}}",
        0, NULL);
    json_t *json = NULL;

    (void)state;
    put_vocabulary("qwen2");
    key_u32(&f, "tokenizer.ggml.bos_token_id", 5);
    key_bool(&f, "tokenizer.ggml.add_bos_token", true);
    json = make();
    assert_true(json_equal(json_object_get(json, "post_processor"), wanted));
    json_decref(json);
    put_vocabulary("llama-bpe");
    key_u32(&f, "tokenizer.ggml.bos_token_id", 5);
    key_bool(&f, "tokenizer.ggml.add_bos_token", false);
    json = make();
    assert_int_equal(json_object_size(json_object_get(json_object_get(json, "post_processor"),
                                                      "special_tokens")),
                     0);
    json_decref(json);
    json_decref(wanted);
}

static void special_tokens_are_told(void **state)
{
    json_t *wanted = json_pack("{s:s, s:b, s:s, s:s, s:i}", "tokenizer_class",
                               "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", 0,
                               "bos_token", "<s>", "pad_token", "t", "model_max_length", 512);
    json_t *json = NULL;
    acr_gguf *g = NULL;
    accrue_error e;

    (void)state;
    put_vocabulary("gpt-2");
    key_u32(&f, "tokenizer.ggml.bos_token_id", 5);
    key_u32(&f, "tokenizer.ggml.eos_token_id", 99); /* no token: refused by who reads the model */
    key_u32(&f, "tokenizer.ggml.padding_token_id", 0);
    key_u32(&f, "llama.context_length", 512);
    g = parse();
    assert_ok(acr_gguf_tokenizer_config(&json, g, &e), &e);
    assert_true(json_equal(json, wanted));
    json_decref(json);
    json_decref(wanted);
    acr_gguf_close(g);
}

static void other_vocabularies_are_none(void **state)
{
    (void)state;
    expect_none("it has no vocabulary");
    key_string(&f, "tokenizer.ggml.model", "llama");
    expect_none("its vocabulary is of the kind llama");
    put_vocabulary("viking");
    expect_none("how it splits text is not known: viking");
    setup(NULL);
    key_string(&f, "tokenizer.ggml.model", "gpt2");
    key_u32(&f, "tokenizer.ggml.pre", 1);
    expect_none("how it splits text is not known: no string");
}

/* A vocabulary of these tokens and merges. */
static void put_lists(const char *const *t, int n_tokens, const char *const *m, int n_merges)
{
    memset(&f, 0, sizeof f);
    key_string(&f, "tokenizer.ggml.model", "gpt2");
    key_strings(&f, "tokenizer.ggml.tokens", t, n_tokens);
    key_strings(&f, "tokenizer.ggml.merges", m, n_merges);
}

static void vocabularies_that_are_not_whole_are_refused(void **state)
{
    static const char *const twice[] = {"a", "b", "a"}, *const empty[] = {"a", ""};
    static const struct {
        const char *merge, *message;
    } cases[] = {
        {"th", "entry 0 is not two tokens"},       {" th", "entry 0 is not two tokens"},
        {"th ", "entry 0 is not two tokens"},      {"t h e", "entry 0 is not two tokens"},
        {"t x", "entry 0 is of what is no token"}, {"x t", "entry 0 is of what is no token"},
        {"h e", "entry 0 is of what is no token"}};

    (void)state;
    put_lists(twice, 3, merges, 0);
    refuse("'tokenizer.ggml.tokens': entry 2 is the same as one before");
    put_lists(empty, 2, merges, 0);
    refuse("'tokenizer.ggml.tokens': entry 1 is no token");
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        put_lists(tokens, ACR_COUNT(tokens), &cases[i].merge, 1);
        refuse(cases[i].message);
    }
    put_lists(tokens, 0, merges, 2);
    refuse("'tokenizer.ggml.tokens' has no tokens");
    put_lists(tokens, 8, merges, 2);
    key_i32s(&f, "tokenizer.ggml.token_type", kinds, 7);
    refuse("'tokenizer.ggml.token_type' has 7 entries for 8 tokens");
    setup(NULL);
    key_string(&f, "tokenizer.ggml.model", "gpt2");
    key_strings(&f, "tokenizer.ggml.tokens", tokens, 8);
    refuse("'tokenizer.ggml.merges' has no merges");
    setup(NULL);
    key_string(&f, "tokenizer.ggml.model", "gpt2");
    key_i32s(&f, "tokenizer.ggml.tokens", kinds, 8);
    key_strings(&f, "tokenizer.ggml.merges", merges, 2);
    refuse("'tokenizer.ggml.tokens': entry 0 is no token");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_vocabulary_is_told, setup),
        cmocka_unit_test_setup(text_is_split_as_the_file_says, setup),
        cmocka_unit_test_setup(the_file_says_whether_text_has_a_beginning, setup),
        cmocka_unit_test_setup(special_tokens_are_told, setup),
        cmocka_unit_test_setup(other_vocabularies_are_none, setup),
        cmocka_unit_test_setup(vocabularies_that_are_not_whole_are_refused, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
