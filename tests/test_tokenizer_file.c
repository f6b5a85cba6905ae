/* test_tokenizer_file.c - tokenizer.json files that are refused, each by name, and quickly. */
#include "tokenizer_test.h"

#define PRE    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define DECODE "\"decoder\":{\"type\":\"ByteLevel\"}"
#define VOCAB  "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define BPE    "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"
#define FLAGS                                                                                      \
    "\"special\":true,\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":"     \
    "false"
#define FILE_OF(model)  "{" PRE "," DECODE ",\"model\":{" model "}}"
#define MODEL_OF(extra) FILE_OF("\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]," extra)
#define BRACKETS        "[[[[[[[[[[[[[[[[[[[[{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{[[[[[[[[[[[[[[[[[[[["
#define MERGES(merges)  FILE_OF("\"type\":\"BPE\"," VOCAB ",\"merges\":" merges)
#define WITH(extra)     "{" PRE "," DECODE "," BPE "," extra "}"
#define ADDED(tokens)   WITH("\"added_tokens\":" tokens)

typedef struct refused {
    const char *text, *what;
    accrue_status status;
} refused;

static accrue_status parse(const char *text, size_t n, accrue_error *e)
{
    acr_tokenizer *t = NULL;
    accrue_status st = acr_tokenizer_parse(&t, text, n, "file", e);

    assert_true(st ? !t : t != NULL);
    acr_tokenizer_free(t);
    return st;
}

static void refuse_all(const refused *cases, int n)
{
    accrue_error e;

    for (int i = 0; i < n; i++)
        assert_fails(parse(cases[i].text, strlen(cases[i].text), &e), cases[i].status, &e,
                     "file: ", cases[i].what, NULL);
}

static void takes_what_it_knows(void **state)
{
    static const char *const texts[] = {
        WITH("\"version\":\"1.0\",\"normalizer\":null,\"added_tokens\":null"),
        MODEL_OF("\"dropout\":0.0,\"unk_token\":null,\"fuse_unk\":false,\"byte_fallback\":null"),
        MODEL_OF("\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null"),
        MERGES("[[\"a\",\"b\"]]"),
        MERGES("[\"#version: 0.2\",\"a b\"]"),
        MERGES("[]"),
        ADDED("[{\"id\":3,\"content\":\"\\\"" BRACKETS "\"," FLAGS "}]"),
        WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}"),
        "{" PRE "," BPE
        ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\"},"
        "{\"type\":\"Fuse\"}]}}",
        ADDED("[{\"id\":3,\"content\":\"x\"," FLAGS "},{\"id\":0,\"content\":\"a\"," FLAGS "},"
              "{\"id\":9,\"content\":\"\"," FLAGS "},{\"id\":4,\"content\":\"y\"," FLAGS "}]"),
    };
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(texts); i++)
        assert_ok(parse(texts[i], strlen(texts[i]), &e), &e);
}

static void other_models_are_refused(void **state)
{
    static const refused cases[] = {
        {"", "line 1 column 0", ACCRUE_EFORMAT},
        {"[]", "an object expected", ACCRUE_EFORMAT},
        {"{}", "model: an object expected", ACCRUE_EFORMAT},
        {WITH("\"model\":{}"), "duplicate", ACCRUE_EFORMAT},
        {WITH("\"version\":\"2.0\""), "version 2.0; supported: 1.0", ACCRUE_ENOTSUP},
        {WITH("\"version\":1"), "version unknown; supported: 1.0", ACCRUE_ENOTSUP},
        {FILE_OF(""), "model: type unknown; supported: BPE", ACCRUE_ENOTSUP},
        {FILE_OF("\"type\":\"WordPiece\""), "type WordPiece; supported: BPE", ACCRUE_ENOTSUP},
        {FILE_OF("\"type\":\"Unigram\""), "type Unigram; supported: BPE", ACCRUE_ENOTSUP},
        {MODEL_OF("\"dropout\":0.1"), "dropout is not supported", ACCRUE_ENOTSUP},
        {MODEL_OF("\"fuse_unk\":true"), "fuse_unk is not supported", ACCRUE_ENOTSUP},
        {MODEL_OF("\"byte_fallback\":true"), "byte_fallback is not supported", ACCRUE_ENOTSUP},
        {MODEL_OF("\"fuse_unk\":1"), "fuse_unk: true or false expected", ACCRUE_EFORMAT},
        {MODEL_OF("\"ignore_merges\":1"), "ignore_merges: true or false", ACCRUE_EFORMAT},
        {MODEL_OF("\"continuing_subword_prefix\":\"##\""),
         "continuing_subword_prefix \"##\" is not supported", ACCRUE_ENOTSUP},
        {MODEL_OF("\"end_of_word_suffix\":\"</w>\""),
         "end_of_word_suffix \"</w>\" is not supported", ACCRUE_ENOTSUP},
        {MODEL_OF("\"end_of_word_suffix\":1"), "end_of_word_suffix: a string or null expected",
         ACCRUE_EFORMAT},
        {MODEL_OF("\"unk_token\":\"<unk>\""),
         "unk_token \"<unk>\" for the byte 0x00, which has no token, is not supported",
         ACCRUE_ENOTSUP},
        {MODEL_OF("\"unk_token\":1"), "unk_token: a string or null expected", ACCRUE_EFORMAT},
    };

    (void)state;
    refuse_all(cases, ACR_COUNT(cases));
}

static void spoilt_vocabularies_are_refused(void **state)
{
    static const refused cases[] = {
        {FILE_OF("\"type\":\"BPE\""), "vocab: an object expected", ACCRUE_EFORMAT},
        {FILE_OF("\"type\":\"BPE\",\"vocab\":{\"a\":-1}"), "\"a\": an id below 4194304",
         ACCRUE_EFORMAT},
        {FILE_OF("\"type\":\"BPE\",\"vocab\":{\"a\":4194304}"), "\"a\": an id below 4194304",
         ACCRUE_EFORMAT},
        {FILE_OF("\"type\":\"BPE\",\"vocab\":{\"a\":0.5}"), "\"a\": an id below", ACCRUE_EFORMAT},
        {FILE_OF("\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1}"), "id 1 is both \"a\" and \"b\"",
         ACCRUE_EFORMAT},
        {FILE_OF("\"type\":\"BPE\"," VOCAB), "merges: an array expected", ACCRUE_EFORMAT},
        {MERGES("[\"a\"]"), "merges[0]: two tokens and a blank between them expected",
         ACCRUE_EFORMAT},
        {MERGES("[\"a b\",\"a b c\"]"), "merges[1]: two tokens", ACCRUE_EFORMAT},
        {MERGES("[\"a b\",[\"a\",\"b\"]]"), "merges[1]: two tokens", ACCRUE_EFORMAT},
        {MERGES("[[\"a\",\"b\"],\"a b\"]"), "merges[1]: two strings expected", ACCRUE_EFORMAT},
        {MERGES("[[\"a\",\"b\",\"a\"]]"), "merges[0]: two strings expected", ACCRUE_EFORMAT},
        {MERGES("[[\"a\",1]]"), "merges[0]: two strings expected", ACCRUE_EFORMAT},
        {MERGES("[\"x b\"]"), "merges[0]: \"x\" is not in the vocabulary", ACCRUE_EFORMAT},
        {MERGES("[\"a b\",\"a y\"]"), "merges[1]: \"y\" is not in the vocabulary", ACCRUE_EFORMAT},
        {MERGES("[\"b a\"]"), "merges[0]: \"ba\" is not in the vocabulary", ACCRUE_EFORMAT},
    };

    (void)state;
    refuse_all(cases, ACR_COUNT(cases));
}

static void other_parts_are_refused(void **state)
{
    static const refused cases[] = {
        {WITH("\"normalizer\":{\"type\":\"Lowercase\"}"),
         "normalizer: type Lowercase; supported: NFC", ACCRUE_ENOTSUP},
        {WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"}]}"),
         "normalizer: type NFKC; supported: NFC", ACCRUE_ENOTSUP},
        {WITH("\"normalizer\":{\"type\":\"Sequence\"}"), "normalizers: an array expected",
         ACCRUE_EFORMAT},
        {WITH("\"normalizer\":7"), "normalizer: an object with a type expected", ACCRUE_EFORMAT},
        {"{" PRE "," BPE "}", "decoder: no ByteLevel; only byte-level tokenizers are supported",
         ACCRUE_ENOTSUP},
        {"{" PRE "," BPE ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[]}}",
         "decoder: no ByteLevel", ACCRUE_ENOTSUP},
        {"{" PRE "," BPE ",\"decoder\":{\"type\":\"Fuse\"}}",
         "decoder: type Fuse first; supported: ByteLevel, then Fuse", ACCRUE_ENOTSUP},
        {"{" PRE "," BPE
         ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\"},"
         "{\"type\":\"Strip\"}]}}",
         "decoder: type Strip after ByteLevel; supported", ACCRUE_ENOTSUP},
        {"{" DECODE "," BPE "}", "pre_tokenizer: no ByteLevel; only byte-level", ACCRUE_ENOTSUP},
    };

    (void)state;
    refuse_all(cases, ACR_COUNT(cases));
}

/* Whatever merges say, a word becomes a token of the vocabulary only. */
static void a_word_is_no_added_token(void **state)
{
    static const char text[] = "{" PRE "," DECODE ",\"model\":{\"type\":\"BPE\"," VOCAB
                               ",\"merges\":[],\"ignore_merges\":true},"
                               "\"added_tokens\":[{\"id\":3,\"content\":\"ba\"," FLAGS "}]}";
    acr_tokenizer *t = NULL;
    acr_ids ids = {0};
    accrue_error e;

    (void)state;
    assert_ok(acr_tokenizer_parse(&t, text, strlen(text), "file", &e), &e);
    assert_ok(acr_tokenizer_encode(&ids, t, "ba", 2, false, &e), &e);
    assert_true(ids.n == 2 && ids.at[0] == 1 && ids.at[1] == 0);
    ids.n = 0;
    assert_ok(acr_tokenizer_encode(&ids, t, "ab", 2, false, &e), &e);
    assert_true(ids.n == 1 && ids.at[0] == 2);
    ids.n = 0;
    assert_ok(acr_tokenizer_encode(&ids, t, "ba", 2, true, &e), &e);
    assert_true(ids.n == 1 && ids.at[0] == 3);
    acr_ids_free(&ids);
    acr_tokenizer_free(t);
}

/* The second of two tokens that take all white space around them finds none. */
static void an_emptied_token_is_none(void **state)
{
    static const char text[] =
        WITH("\"added_tokens\":[{\"id\":3,\"content\":\"\\n\",\"special\":false,"
             "\"single_word\":false,\"lstrip\":true,\"rstrip\":true,\"normalized\":false}]");
    acr_tokenizer *t = NULL;
    acr_ids ids = {0};
    accrue_error e;

    (void)state;
    assert_ok(acr_tokenizer_parse(&t, text, strlen(text), "file", &e), &e);
    assert_ok(acr_tokenizer_encode(&ids, t, "a\n\n b", 5, false, &e), &e);
    assert_true(ids.n == 3 && ids.at[0] == 0 && ids.at[1] == 3 && ids.at[2] == 1);
    acr_ids_free(&ids);
    acr_tokenizer_free(t);
}

static void spoilt_added_tokens_are_refused(void **state)
{
    static const refused cases[] = {
        {ADDED("{}"), "added_tokens: an array expected", ACCRUE_EFORMAT},
        {ADDED("[7]"), "added_tokens[0]: an id and a content expected", ACCRUE_EFORMAT},
        {ADDED("[{\"id\":3}]"), "added_tokens[0]: an id and a content expected", ACCRUE_EFORMAT},
        {ADDED("[{\"id\":3,\"content\":\"x\"}]"), "added_tokens[0]: special: true or false",
         ACCRUE_EFORMAT},
        {ADDED("[{\"id\":5,\"content\":\"x\"," FLAGS "}]"),
         "added_tokens[0]: \"x\" has id 5, its place is 3", ACCRUE_EFORMAT},
        {ADDED("[{\"id\":1,\"content\":\"a\"," FLAGS "}]"), "\"a\" has id 1, its place is 0",
         ACCRUE_EFORMAT},
        {ADDED("[{\"id\":3,\"content\":\"x\"," FLAGS "},{\"id\":3,\"content\":\"x\"," FLAGS "}]"),
         "added_tokens: \"x\" twice", ACCRUE_EFORMAT},
        {"{" PRE "," DECODE
         ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":2},\"merges\":[]},"
         "\"added_tokens\":[{\"id\":2,\"content\":\"x\"," FLAGS "}]}",
         "\"x\" has id 2, which the vocabulary has too", ACCRUE_EFORMAT},
    };
    char *text = acr_calloc(4096, 1);
    accrue_error e;

    (void)state;
    refuse_all(cases, ACR_COUNT(cases));
    assert_non_null(text);
    snprintf(text, 4096, ADDED("[{\"id\":3,\"content\":\"%01025d\"," FLAGS "}]"), 0);
    assert_fails(parse(text, strlen(text), &e), ACCRUE_ENOTSUP, &e,
                 "added_tokens[0]: a token of 1025 bytes, at most 1024", NULL);
    acr_free(text);
}

/* 100 MB of `unit` over and over are refused within seconds and without as much memory again. */
static void refuse_unit(const char *unit, const char *what)
{
    const size_t n = (size_t)ACR_MAX_TOKENIZER, length = strlen(unit);
    char *text = malloc(n);
    const double start = acr_seconds();
    accrue_error e;

    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % length];
    assert_fails(parse(text, n, &e), ACCRUE_EFORMAT, &e, what, NULL);
    assert_true(acr_seconds() - start < 20.0);
    free(text);
}

static void files_of_nesting_are_refused(void **state)
{
    (void)state;
    refuse_unit("[", "byte 64: more than 64 levels of nesting");
    refuse_unit("{\"a\":", "byte 320: more than 64 levels of nesting");
    refuse_unit("[],", "more than 2097152 lists and objects");
    refuse_unit("{} ", "more than 2097152 lists and objects");
    refuse_unit("0,", "more than 8388608 values");
}

static void large_and_missing_files_are_refused(void **state)
{
    char *folder = make_folder(), *path = acr_sprintf("%s/tokenizer.json", folder);
    acr_tokenizer *t = NULL;
    accrue_error e;
    FILE *file = NULL;

    (void)state;
    assert_fails(acr_tokenizer_open(&t, folder, &e), ACCRUE_EIO, &e, path, NULL);
    write_text(path, "");
    assert_fails(acr_tokenizer_open(&t, folder, &e), ACCRUE_EFORMAT, &e, path, NULL);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)ACR_MAX_TOKENIZER, SEEK_SET), 0);
    assert_int_equal(fputc(' ', file), ' ');
    assert_int_equal(fclose(file), 0);
    assert_fails(acr_tokenizer_open(&t, folder, &e), ACCRUE_EFORMAT, &e, path,
                 "104857601 bytes, at most 104857600 expected", NULL);
    assert_null(t);
    acr_free(path);
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_what_it_knows),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(spoilt_vocabularies_are_refused),
        cmocka_unit_test(other_parts_are_refused),
        cmocka_unit_test(a_word_is_no_added_token),
        cmocka_unit_test(an_emptied_token_is_none),
        cmocka_unit_test(spoilt_added_tokens_are_refused),
        cmocka_unit_test(files_of_nesting_are_refused),
        cmocka_unit_test(large_and_missing_files_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
