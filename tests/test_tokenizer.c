/* test_tokenizer.c - ids and texts as the package `tokenizers` makes them, of small vocabularies
 * with the sections of real files. */
#include "files.h"
#include "tokenizer_test.h"

/* Records of cases.bin; SAME: as the one before. */
enum { SAME = 0xffff };

typedef struct reader {
    acr_map map;
    size_t at;
} reader;

static void open_reader(reader *r, const char *name)
{
    char *path = acr_sprintf("%s/%s", TOKENIZERS, name);

    *r = (reader){0};
    assert_int_equal(acr_map_open(&r->map, path, NULL), ACCRUE_OK);
    acr_free(path);
}

static unsigned next_number(reader *r)
{
    assert_true(r->at + 2 <= r->map.bytes);
    r->at += 2;
    return r->map.data[r->at - 2] | (unsigned)r->map.data[r->at - 1] << 8;
}

static void read_ids(reader *r, acr_ids *out)
{
    const unsigned n = next_number(r);

    if (n == SAME)
        return;
    out->n = 0;
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(acr_ids_add(out, next_number(r), NULL), ACCRUE_OK);
}

static void read_text(reader *r, const char **text, size_t *n)
{
    const unsigned bytes = next_number(r);

    if (bytes == SAME)
        return;
    *text = (const char *)r->map.data + r->at;
    *n = bytes;
    r->at += bytes;
    assert_true(r->at <= r->map.bytes);
}

static void assert_ids(const acr_ids *got, const acr_ids *expected, const char *text)
{
    for (int64_t i = 0; i < got->n && i < expected->n; i++)
        if (got->at[i] != expected->at[i])
            fail_msg("\"%s\": ids[%lld] is %lld, expected %lld", text, (long long)i,
                     (long long)got->at[i], (long long)expected->at[i]);
    if (got->n != expected->n)
        fail_msg("\"%s\": %lld ids, expected %lld", text, (long long)got->n,
                 (long long)expected->n);
}

static void assert_decodes(const acr_tokenizer *t, const acr_ids *ids, bool skip,
                           const char *expected, size_t n)
{
    accrue_error e;
    char *text = NULL;
    size_t bytes = 0;

    assert_ok(acr_tokenizer_decode(&text, &bytes, t, ids->at, ids->n, skip, &e), &e);
    assert_int_equal(strlen(text) <= bytes, 1);
    if (bytes != n || memcmp(text, expected, n))
        fail_msg("decoded \"%s\", expected \"%.*s\"", text, (int)n, expected);
    acr_free(text);
}

static int check_cases(const char *kind)
{
    acr_tokenizer *t = open_tokenizer(kind);
    char *name = acr_sprintf("%s/cases.bin", kind);
    acr_ids ids = {0}, got = {0};
    reader texts, cases;
    accrue_error e;
    int n = 0;

    open_reader(&texts, "texts.bin");
    open_reader(&cases, name);
    for (; texts.at < texts.map.bytes; n++) {
        const char *text = NULL, *shown = NULL;
        size_t bytes = 0, n_shown = 0;
        read_text(&texts, &text, &bytes);
        for (int plain = 0; plain < 2; plain++) {
            got.n = 0;
            assert_ok(acr_tokenizer_encode(&got, t, text, bytes, !plain, &e), &e);
            read_ids(&cases, &ids);
            assert_ids(&got, &ids, text);
        }
        got.n = 0;
        assert_ok(acr_tokenizer_encode(&got, t, text, bytes, true, &e), &e);
        shown = text;
        n_shown = bytes;
        for (int skip = 0; skip < 2; skip++) {
            read_text(&cases, &shown, &n_shown);
            assert_decodes(t, &got, skip, shown, n_shown);
        }
    }
    assert_int_equal(cases.at, cases.map.bytes);
    acr_map_close(&texts.map);
    acr_map_close(&cases.map);
    acr_ids_free(&ids);
    acr_ids_free(&got);
    acr_free(name);
    acr_tokenizer_free(t);
    return n;
}

static void equals_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < ACR_COUNT(tokenizer_kinds); i++)
        assert_int_equal(check_cases(tokenizer_kinds[i]), 1500);
}

/* Broken characters, and ids that nothing has. */
static void decodes_any_ids(void **state)
{
    acr_tokenizer *t = open_tokenizer("gpt2");
    acr_ids ids = {0};
    reader r;
    int n = 0;

    (void)state;
    for (open_reader(&r, "gpt2/decodes.bin"); r.at < r.map.bytes; n++) {
        const char *text = NULL;
        size_t bytes = 0;
        read_ids(&r, &ids);
        read_text(&r, &text, &bytes);
        assert_decodes(t, &ids, false, text, bytes);
    }
    assert_int_equal(n, 400);
    acr_map_close(&r.map);
    acr_ids_free(&ids);
    acr_tokenizer_free(t);
}

static void negative_ids_are_refused(void **state)
{
    acr_tokenizer *t = open_tokenizer("gpt2");
    const int64_t ids[2] = {5, -1};
    char *text = NULL;
    size_t bytes = 0;
    accrue_error e;

    (void)state;
    assert_fails(acr_tokenizer_decode(&text, &bytes, t, ids, 2, false, &e), ACCRUE_EINVAL, &e,
                 "ids[1]: -1", NULL);
    assert_null(text);
    acr_tokenizer_free(t);
}

static void knows_its_tokens(void **state)
{
    acr_tokenizer *t = open_tokenizer("llama3");
    acr_tokenizer *q = open_tokenizer("qwen2");

    (void)state;
    assert_int_equal(acr_tokenizer_vocab_size(t), 1200);
    assert_int_equal(acr_tokenizer_id(t, "<|eot_id|>"), 4);
    assert_int_equal(acr_tokenizer_id(t, "<|eot_id"), -1);
    assert_int_equal(acr_tokenizer_id(t, ""), -1);
    assert_true(acr_tokenizer_id(t, "quick") > 4);
    assert_int_equal(acr_tokenizer_bos(t), acr_tokenizer_id(t, "<|begin_of_text|>"));
    assert_int_equal(acr_tokenizer_bos(q), -1);
    assert_int_equal(acr_tokenizer_vocab_size(q), 1200 + 3 + 14);
    acr_tokenizer_free(t);
    acr_tokenizer_free(q);
    acr_tokenizer_free(NULL);
}

static void text_that_is_no_utf8_is_refused(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *place;
    } cases[] = {
        {"ab\x80", 3, "byte 2, 0x80"},
        {"\xc3", 1, "byte 0, 0xc3"},
        {"12345678\xc0\x80", 10, "byte 8, 0xc0"},
        {"\xc3\xa9\xe0\x9f\xbf", 5, "byte 2, 0xe0"},
        {"x\xed\xa0\x80", 4, "byte 1, 0xed"}, /* a surrogate */
        {"x\xed\xbf\xbfz", 5, "byte 1, 0xed"},
        {"\xf0\x8f\xbf\xbf", 4, "byte 0, 0xf0"},
        {"\xf4\x90\x80\x80", 4, "byte 0, 0xf4"},
        {"\xf5\x80\x80\x80", 4, "byte 0, 0xf5"},
        {"ok \xf0\x9f\x98", 6, "byte 3, 0xf0"},
        {"\xe2\x82\x28", 3, "byte 0, 0xe2"},
    };
    acr_tokenizer *t = open_tokenizer("qwen2");
    acr_ids ids = {0};
    accrue_error e;

    (void)state;
    assert_ok(acr_ids_add(&ids, 7, &e), &e);
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        assert_fails(acr_tokenizer_encode(&ids, t, cases[i].text, cases[i].bytes, false, &e),
                     ACCRUE_EFORMAT, &e, cases[i].place, "is no UTF-8", NULL);
        assert_int_equal(ids.n, 1);
    }
    acr_ids_free(&ids);
    acr_tokenizer_free(t);
}

/* Words of a million bytes: a merge takes no search of the whole word. */
static void long_words_are_quick(void **state)
{
    static const char *const kinds[] = {"smollm2", "qwen2"};
    static const char *const patterns[] = {"a", " ", "\xcc\x81\xcc\x96", "return"};
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    acr_ids ids = {0};
    accrue_error e;

    (void)state;
    assert_non_null(text);
    for (int k = 0; k < ACR_COUNT(kinds); k++) {
        acr_tokenizer *t = open_tokenizer(kinds[k]);
        for (int i = 0; i < ACR_COUNT(patterns); i++) {
            const size_t n = strlen(patterns[i]), bytes = BYTES / n * n;
            const double start = acr_seconds();
            for (size_t j = 0; j < bytes; j++)
                text[j] = patterns[i][j % n];
            ids.n = 0;
            assert_ok(acr_tokenizer_encode(&ids, t, text, bytes, true, &e), &e);
            assert_true(acr_seconds() - start < 20.0); /* quadratic: minutes */
            assert_true(ids.n > 0);
        }
        acr_tokenizer_free(t);
    }
    acr_ids_free(&ids);
    free(text);
}

static void out_of_memory_is_reported(void **state)
{
    static const char text[] =
        "I'm <lr> e\xcc\x81toile 12 \xe4\xbd\xa0 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const size_t before = acr_allocated_bytes();
    accrue_status st = ACCRUE_ENOMEM;
    acr_map map;
    int failed = 0;

    (void)state;
    assert_int_equal(acr_map_open(&map, TOKENIZERS "/qwen2/tokenizer.json", NULL), ACCRUE_OK);
    for (uint64_t n = 1; st; n++) {
        acr_tokenizer *t = NULL;
        acr_ids ids = {0};
        char *decoded = NULL;
        size_t bytes = 0;
        accrue_error e;
        acr_fail_allocation(n);
        st = acr_tokenizer_parse(&t, (const char *)map.data, map.bytes, "file", &e);
        if (!st)
            st = acr_tokenizer_encode(&ids, t, text, sizeof text - 1, true, &e);
        if (!st)
            st = acr_tokenizer_decode(&decoded, &bytes, t, ids.at, ids.n, true, &e);
        acr_fail_allocation(0);
        assert_true(!st || (st == ACCRUE_ENOMEM && e.status == ACCRUE_ENOMEM && !decoded));
        failed += st != ACCRUE_OK;
        acr_free(decoded);
        acr_ids_free(&ids);
        acr_tokenizer_free(t);
        assert_int_equal(acr_allocated_bytes(), before);
    }
    assert_true(failed > 20);
    acr_map_close(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(decodes_any_ids),
        cmocka_unit_test(negative_ids_are_refused),
        cmocka_unit_test(knows_its_tokens),
        cmocka_unit_test(text_that_is_no_utf8_is_refused),
        cmocka_unit_test(long_words_are_quick),
        cmocka_unit_test(out_of_memory_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
