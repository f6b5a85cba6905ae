/* test_split.c - patterns and digits split a text as `tokenizers` does; what is not translated is
 * refused, and no pattern takes for ever. */
#include "tokenizer_test.h"

#include "text/tokenizer_parts.h"

/* One step as a tokenizer.json with a vocabulary of nothing has it. */
static accrue_status load_step(acr_tokenizer *t, const json_t *step, accrue_error *e)
{
    json_t *all = json_pack("{s:s, s:[O, {s:s, s:b, s:b}]}", "type", "Sequence", "pretokenizers",
                            step, "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
    accrue_status st = ACCRUE_OK;

    assert_non_null(all);
    *t = (acr_tokenizer){0};
    st = acr_load_steps(t, all, "file", e);
    json_decref(all);
    return st;
}

static void free_steps(acr_tokenizer *t)
{
    for (int i = 0; i < t->n_steps; i++)
        acr_pattern_free(t->steps[i].pattern);
}

typedef struct expected {
    const json_t *pieces;
    size_t n;
    const char *what;
} expected;

static accrue_status check_piece(void *ctx, const char *text, size_t n, accrue_error *err)
{
    expected *x = ctx;
    const json_t *piece = json_array_get(x->pieces, x->n++);

    (void)err;
    if (!piece || json_string_length(piece) != n || memcmp(json_string_value(piece), text, n))
        fail_msg("%s: piece %zu is \"%.*s\", expected %s", x->what, x->n - 1, (int)n, text,
                 piece ? json_string_value(piece) : "none");
    return ACCRUE_OK;
}

static void check_case(const json_t *c, const json_t *texts)
{
    const json_t *step = json_object_get(c, "step");
    char *what = json_dumps(step, JSON_COMPACT);
    acr_pattern_room room;
    acr_tokenizer t;
    accrue_error e;

    assert_ok(load_step(&t, step, &e), &e);
    assert_ok(acr_pattern_room_open(&room, &e), &e);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        expected x = {json_array_get(json_object_get(c, "pieces"), i), 0, what};
        assert_ok(acr_split(t.steps, t.n_steps, &room, json_string_value(text),
                            json_string_length(text), check_piece, &x, &e),
                  &e);
        if (x.n != json_array_size(x.pieces))
            fail_msg("%s: %zu pieces, expected %zu", what, x.n, json_array_size(x.pieces));
    }
    acr_pattern_room_free(&room);
    free_steps(&t);
    free(what);
}

static void splits_as_the_reference(void **state)
{
    json_t *all = NULL, *c = NULL;
    size_t i = 0;
    accrue_error e;

    (void)state;
    assert_ok(acr_json_load(&all, TOKENIZERS "/splits.json", 1 << 20, &e), &e);
    assert_true(json_array_size(json_object_get(all, "cases")) > 100);
    json_array_foreach(json_object_get(all, "cases"), i, c)
        check_case(c, json_object_get(all, "texts"));
    json_decref(all);
}

static void other_patterns_are_refused(void **state)
{
    static const struct {
        const char *pattern, *what;
        accrue_status status;
    } cases[] = {
        {"\\w+", "\\w is not supported", ACCRUE_ENOTSUP},
        {"a\\b", "at byte 1: \\b", ACCRUE_ENOTSUP},
        {"[\\b]", "\\b", ACCRUE_ENOTSUP},
        {"\\h", "\\h", ACCRUE_ENOTSUP},
        {"(a)\\1", "\\1", ACCRUE_ENOTSUP},
        {"a\\", "\\?", ACCRUE_ENOTSUP},
        {"\\\xc3\xa9", "\\?", ACCRUE_ENOTSUP},
        {"\\pL", "\\p without a name in braces", ACCRUE_ENOTSUP},
        {"\\p{L", "this property", ACCRUE_ENOTSUP},
        {"\\p{}", "this property", ACCRUE_ENOTSUP},
        {"(?i:\\p{Lu})", "\\p without case", ACCRUE_ENOTSUP},
        {"\\p{Nonsense}", "pattern, at byte", ACCRUE_EFORMAT},
        {"(?i:\xc3\xa9)", "beyond ASCII without case", ACCRUE_ENOTSUP},
        {"(?i:ss)", "one character stands for", ACCRUE_ENOTSUP},
        {"(?i:S\\x{74})", "one character stands for", ACCRUE_ENOTSUP},
        {"\\x41", "this code of a character", ACCRUE_ENOTSUP},
        {"\\x{110000}", "this code of a character", ACCRUE_ENOTSUP},
        {"\\ud800", "this code of a character", ACCRUE_ENOTSUP},
        {"[a[b]]", "at byte 2: a class in a class", ACCRUE_ENOTSUP},
        {"[a&&b]", "an intersection of classes", ACCRUE_ENOTSUP},
        {"[]", "an empty class", ACCRUE_ENOTSUP},
        {"[^]a]", "an empty class", ACCRUE_ENOTSUP},
        {"[ab", "a class without its end", ACCRUE_ENOTSUP},
        {"[\\s-z]", "a range of classes", ACCRUE_ENOTSUP},
        {"[a-\\d]", "a range of classes", ACCRUE_ENOTSUP},
        {"(?<name>a)", "this kind of group", ACCRUE_ENOTSUP},
        {"(?i)a", "this kind of group", ACCRUE_ENOTSUP},
        {"a)", "a ) without its (", ACCRUE_ENOTSUP},
        {"(a", "a ( without its )", ACCRUE_ENOTSUP},
        {"a{2,1}", "this interval", ACCRUE_ENOTSUP},
        {"a{999999}", "this interval", ACCRUE_ENOTSUP},
        {"a{1,2}+", "a + or ? after this interval", ACCRUE_ENOTSUP},
        {"a{2}?", "a + or ? after this interval", ACCRUE_ENOTSUP},
        {"a**", "pattern, at byte", ACCRUE_EFORMAT},
        {"+", "pattern, at byte", ACCRUE_EFORMAT},
        {"(?<=a+)b", "pattern, at byte", ACCRUE_EFORMAT},
        {"(((a{1000}){1000}){1000})", "pattern, at byte", ACCRUE_EFORMAT},
    };
    acr_pattern *p = NULL;
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        assert_fails(acr_pattern_create(&p, cases[i].pattern, "file: pre_tokenizer", &e),
                     cases[i].status, &e, "file: pre_tokenizer: pattern, at byte ", cases[i].what,
                     NULL);
        assert_null(p);
    }
}

static void deep_and_long_patterns_are_refused(void **state)
{
    char *text = acr_calloc(70001, 1);
    acr_pattern *p = NULL;
    accrue_error e;

    (void)state;
    assert_non_null(text);
    memset(text, 'a', 70000);
    assert_fails(acr_pattern_create(&p, text, "file", &e), ACCRUE_ENOTSUP, &e, "70000 bytes",
                 "at most 65536", NULL);
    memset(text, '(', 70000);
    assert_fails(acr_pattern_create(&p, text, "file", &e), ACCRUE_ENOTSUP, &e,
                 "at byte 200: a group this deep", NULL);
    acr_free(text);
}

static void endless_searches_end(void **state)
{
    enum { BYTES = 40 };
    char text[BYTES + 1];
    acr_pattern_room room;
    acr_pattern *p = NULL;
    accrue_error e;
    size_t begin = 0, end = 0;
    bool found = false;
    const double start = acr_seconds();

    (void)state;
    memset(text, 'a', BYTES);
    text[BYTES] = '!';
    assert_ok(acr_pattern_create(&p, "(a|a|aa)+$", "file", &e), &e);
    assert_ok(acr_pattern_room_open(&room, &e), &e);
    assert_fails(acr_pattern_find(p, &room, text, BYTES + 1, 0, &found, &begin, &end, &e),
                 ACCRUE_ENOTSUP, &e, "file: pattern, on a text of 41 bytes at byte 0: ", "limit",
                 NULL);
    assert_false(found);
    assert_true(acr_seconds() - start < 20.0);
    acr_pattern_room_free(&room);
    acr_pattern_free(p);
}

/* More than compiled code has room for on the stack of its thread. */
static void long_searches_get_room(void **state)
{
    enum { BYTES = 100000 };
    char *text = acr_malloc(BYTES);
    acr_pattern_room room;
    acr_pattern *p = NULL;
    accrue_error e;
    size_t begin = 0, end = 0;
    bool found = false;

    (void)state;
    assert_non_null(text);
    memset(text, 'a', BYTES);
    text[BYTES - 1] = 'c';
    assert_ok(acr_pattern_create(&p, "(a|b)*c", "file", &e), &e);
    assert_ok(acr_pattern_room_open(&room, &e), &e);
    for (size_t from = 0; from < 2; from++) {
        assert_ok(acr_pattern_find(p, &room, text, BYTES, from, &found, &begin, &end, &e), &e);
        assert_true(found);
        assert_int_equal(begin, from);
        assert_int_equal(end, BYTES);
    }
    acr_pattern_room_free(&room);
    acr_pattern_free(p);
    acr_free(text);
}

static void other_steps_are_refused(void **state)
{
    static const struct {
        const char *step, *what;
        accrue_status status;
    } cases[] = {
        {"{\"type\": \"Metaspace\"}",
         "type Metaspace; supported: ByteLevel, Split, Digits, Sequence", ACCRUE_ENOTSUP},
        {"{\"kind\": 1}", "an object with a type expected", ACCRUE_EFORMAT},
        {"[]", "an object with a type expected", ACCRUE_EFORMAT},
        {"{\"type\": \"Digits\"}", "individual_digits: true or false expected", ACCRUE_EFORMAT},
        {"{\"type\": \"ByteLevel\"}", "add_prefix_space: true or false expected", ACCRUE_EFORMAT},
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": 1}",
         "use_regex: true or false expected", ACCRUE_EFORMAT},
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": true}",
         "ByteLevel after ByteLevel is not supported", ACCRUE_ENOTSUP},
        {"{\"type\": \"Sequence\"}", "pretokenizers: an array expected", ACCRUE_EFORMAT},
        {"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Isolated\"}",
         "invert: true or false expected", ACCRUE_EFORMAT},
        {"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Odd\"}",
         "behavior Odd; known: Isolated, Removed,", ACCRUE_EFORMAT},
        {"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}}", "behavior is no string",
         ACCRUE_EFORMAT},
        {"{\"type\": \"Split\", \"pattern\": \"a\", \"behavior\": \"Isolated\", \"invert\": true}",
         "a Regex or a String expected", ACCRUE_EFORMAT},
    };
    acr_tokenizer t;
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        json_t *step = json_loads(cases[i].step, 0, NULL);
        assert_non_null(step);
        assert_fails(load_step(&t, step, &e), cases[i].status, &e,
                     "file: pre_tokenizer: ", cases[i].what, NULL);
        free_steps(&t);
        json_decref(step);
    }
}

static void many_and_deep_steps_are_refused(void **state)
{
    json_t *digits = json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1);
    json_t *steps = json_array(), *deep = json_incref(digits);
    acr_tokenizer t;
    accrue_error e;

    (void)state;
    for (int i = 0; i < 33; i++)
        json_array_append(steps, digits);
    steps = json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
    assert_fails(load_step(&t, steps, &e), ACCRUE_ENOTSUP, &e, "more than 32 steps", NULL);
    for (int i = 0; i < 9; i++)
        deep = json_pack("{s:s, s:[o]}", "type", "Sequence", "pretokenizers", deep);
    assert_fails(load_step(&t, deep, &e), ACCRUE_EFORMAT, &e, "nested at most 8 deep", NULL);
    json_decref(deep);
    json_decref(steps);
    json_decref(digits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_as_the_reference),
        cmocka_unit_test(other_patterns_are_refused),
        cmocka_unit_test(deep_and_long_patterns_are_refused),
        cmocka_unit_test(endless_searches_end),
        cmocka_unit_test(long_searches_get_room),
        cmocka_unit_test(other_steps_are_refused),
        cmocka_unit_test(many_and_deep_steps_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
