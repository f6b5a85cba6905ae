/* test_generate.c - answers of a small verifier: what is asked, independence of batch and threads,
 * going on, and what failures leave. */
#include "generate_test.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

/* The lines as an array. */
static json_t *read_lines(void)
{
    char *text = text_of_file(output);
    json_t *all = json_array();

    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(o);
        json_array_append_new(all, o);
    }
    acr_free(text);
    return all;
}

static const char *field(const json_t *line, size_t message, const char *key)
{
    return json_string_value(
        json_object_get(json_array_get(json_object_get(line, "conversations"), message), key));
}

static int64_t meta(const json_t *line, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(line, "metadata"), key));
}

static void every_users_turn_is_answered_anew(void **state)
{
    static const struct {
        int64_t idx;
        const char *roles; /* of the messages, by their first letter */
    } expected[] = {{0, "ua"}, {1, "suauaua"}, {2, "ua"}, {4, "ua"}, {5, "ua"}, {6, "ua"}};
    const accrue_generate_options o = options();
    const accrue_generate_report r = generate(&o);
    json_t *lines = read_lines();

    (void)state;
    assert_int_equal(r.rows, LINES);
    assert_int_equal(r.found, 0);
    assert_int_equal(r.made, ACR_COUNT(expected));
    assert_int_equal(r.answers, 8);
    assert_int_equal(r.skipped, 1);
    assert_true(r.tokens > 8 && r.tokens <= 8 * 12 && r.prompt_tokens > r.answers);
    assert_int_equal(json_array_size(lines), ACR_COUNT(expected));
    for (size_t i = 0; i < ACR_COUNT(expected); i++) {
        const json_t *line = json_array_get(lines, i);
        const size_t n = strlen(expected[i].roles);
        const char *why =
            json_string_value(json_object_get(json_object_get(line, "metadata"), "finish_reason"));
        assert_int_equal(meta(line, "idx"), expected[i].idx);
        assert_int_equal(json_array_size(json_object_get(line, "conversations")), n);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(field(line, k, "role")[0], expected[i].roles[k]);
        assert_true(strcmp(why, "stop") == 0 || strcmp(why, "length") == 0);
        assert_true(meta(line, "completion_tokens") >= 1);
    }
    assert_string_equal(field(json_array_get(lines, 0), 0, "content"), "Why?");
    assert_string_not_equal(field(json_array_get(lines, 0), 1, "content"), "old");
    assert_string_equal(field(json_array_get(lines, 1), 0, "content"), "Be brief.");
    assert_string_equal(field(json_array_get(lines, 1), 5, "content"), "Three");
    assert_string_equal(field(json_array_get(lines, 3), 0, "content"), "Look it up");
    assert_string_equal(json_string_value(json_object_get(json_array_get(lines, 0), "id")), "a");
    assert_int_equal(json_integer_value(json_object_get(json_array_get(lines, 3), "id")), 7);
    json_decref(lines);
}

/* Against the verifier's own logits, one token after the other, without anything in between. */
static void greedy_answers_are_the_likeliest_tokens(void **state)
{
    accrue_generate_options o = options();
    acr_tokenizer *t = NULL;
    acr_chat chat;
    acr_verifier *v = NULL;
    acr_verifier_work *w = NULL;
    acr_cache *cache = NULL;
    acr_ids ids = {0};
    float logits[WHOLE_CHAT_VOCAB];
    const acr_message ask = {.role = "user", .content = "A prompt alone."};
    int64_t prompt = 0, read = 0;
    char *text = NULL;
    size_t bytes = 0;
    json_t *lines = NULL;
    accrue_error e = {0};

    (void)state;
    o.temperature = 0;
    generate(&o);
    assert_ok(acr_tokenizer_open(&t, verifier, &e), &e);
    assert_ok(acr_chat_open(&chat, verifier, t, &e), &e);
    assert_ok(acr_verifier_open(&v, verifier, ACCRUE_F32, 512, &e), &e);
    assert_ok(acr_verifier_work_create(&w, v, &e), &e);
    assert_ok(acr_cache_create(&cache, v, 512, &e), &e);
    assert_ok(acr_chat_encode(&ids, NULL, &chat, t, &ask, 1, true, &e), &e);
    prompt = ids.n;
    while (ids.n < prompt + 12) {
        acr_sequence s = {.cache = cache,
                          .ids = ids.at + read,
                          .n = ids.n - read,
                          .n_logits = 1,
                          .logits = logits};
        int64_t best = 0;
        assert_ok(acr_verifier_forward(w, &s, 1, NULL, 0, &e), &e);
        read = ids.n;
        for (int64_t i = 1; i < WHOLE_CHAT_VOCAB; i++)
            best = logits[i] > logits[best] ? i : best;
        if (best == 2)
            break;
        assert_ok(acr_ids_add(&ids, best, &e), &e);
    }
    assert_ok(acr_tokenizer_decode(&text, &bytes, t, ids.at + prompt, ids.n - prompt, true, &e),
              &e);
    lines = read_lines();
    assert_string_equal(field(json_array_get(lines, 2), 1, "content"), text);
    json_decref(lines);
    acr_free(text);
    acr_ids_free(&ids);
    acr_cache_free(cache);
    acr_verifier_work_free(w);
    acr_verifier_free(v);
    acr_chat_free(&chat);
    acr_tokenizer_free(t);
}

static void batch_and_threads_change_no_byte(void **state)
{
    const int batches[] = {1, 2, 3, 7, 64};
    accrue_generate_options o = options();
    char *first = NULL;

    (void)state;
    for (int i = 0; i < ACR_COUNT(batches); i++) {
        char *text = NULL;
        forget_output();
        o.batch_size = batches[i];
        accrue_set_threads(1 + i % 3);
        generate(&o);
        text = text_of_file(output);
        if (!first)
            first = acr_strdup(text);
        assert_string_equal(text, first);
        acr_free(text);
    }
    forget_output();
    o.seed = 43;
    generate(&o);
    {
        char *text = text_of_file(output);
        assert_string_not_equal(text, first);
        acr_free(text);
    }
    acr_free(first);
}

typedef struct watch {
    int64_t calls, stop_at, first_done;
} watch;

static int look(const accrue_progress *p, void *payload)
{
    watch *w = payload;

    if (!w->calls++)
        w->first_done = p->done;
    assert_string_equal(p->unit, "rows");
    assert_true(p->done <= p->total && p->found <= p->done);
    return w->stop_at && w->calls == w->stop_at;
}

/* Stopped at every step in turn, with half a line behind each time. */
static void a_stopped_call_goes_on_to_the_same_bytes(void **state)
{
    accrue_generate_options o = options();
    accrue_generate_report r;
    accrue_error e = {0};
    char *whole = NULL;
    bool went_on = false;

    (void)state;
    o.batch_size = 2;
    generate(&o);
    whole = text_of_file(output);
    for (int64_t stop = 1, over = 0; !over; stop += 7) {
        watch w = {.stop_at = stop}, rest = {0};
        char *text = NULL;
        accrue_status st = ACCRUE_OK;
        forget_output();
        st = accrue_generate(&r, &o, look, &w, &e);
        over = st == ACCRUE_OK;
        if (!over) {
            assert_fails(st, ACCRUE_ECANCELED, &e, "stopped with", "of 7 rows done", NULL);
            shell(acr_sprintf("printf '{\"messages\": [' >>'%s'", output));
            assert_ok(accrue_generate(&r, &o, look, &rest, &e), &e);
            assert_int_equal(rest.first_done, r.found);
            went_on |= r.found > 0;
        }
        text = text_of_file(output);
        assert_string_equal(text, whole);
        acr_free(text);
    }
    assert_true(went_on);
    r = generate(&o); /* nothing is left */
    assert_int_equal(r.found, LINES);
    assert_int_equal(r.made, 0);
    acr_free(whole);
}

static void a_limit_may_be_raised(void **state)
{
    accrue_generate_options o = options();
    accrue_generate_report r;
    char *whole = NULL, *text = NULL;

    (void)state;
    generate(&o);
    whole = text_of_file(output);
    forget_output();
    o.limit = 2;
    r = generate(&o);
    assert_int_equal(r.rows, 2);
    assert_int_equal(r.made, 2);
    o.limit = 0;
    r = generate(&o);
    assert_int_equal(r.found, 2);
    text = text_of_file(output);
    assert_string_equal(text, whole);
    acr_free(text);
    acr_free(whole);
}

/* A row whose first question leaves no room has no line; one whose second does ends before it. */
static void too_long_conversations_end_early(void **state)
{
    accrue_generate_options o = options();
    char *words = acr_calloc(1, 4000);
    char *text = NULL;
    accrue_generate_report r;
    json_t *lines = NULL;

    (void)state;
    for (int i = 0; i < 700; i++)
        memcpy(words + 4 * i, "xq, ", 4);
    text = acr_sprintf(
        "{\"prompt\": \"%s\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
        "{\"role\": \"assistant\", \"content\": \"\"}, {\"role\": \"user\", \"content\": "
        "\"%s\"}]}\n",
        words, words);
    write_text(data, text);
    r = generate(&o);
    assert_int_equal(r.skipped, 1);
    assert_int_equal(r.made, 1);
    lines = read_lines();
    assert_int_equal(json_array_size(json_object_get(json_array_get(lines, 0), "conversations")),
                     2);
    assert_int_equal(meta(json_array_get(lines, 0), "idx"), 1);
    json_decref(lines);
    acr_free(text);
    acr_free(words);
}

/* The sampling that a model's maker recommends is taken where none is given. */
static void takes_what_the_model_recommends(void **state)
{
    accrue_generate_options o = options();
    char *path = acr_sprintf("%s/generation_config.json", verifier);
    accrue_generate_report r;

    (void)state;
    o.temperature = o.top_p = (double)NAN;
    r = generate(&o);
    assert_true(r.temperature == 1 && r.top_p == 1);
    forget_output();
    write_text(path, "{\"temperature\": 0.5, \"top_p\": 0.75}");
    r = generate(&o);
    assert_true(r.temperature == 0.5 && r.top_p == 0.75);
    forget_output();
    o.temperature = 2;
    r = generate(&o);
    assert_true(r.temperature == 2 && r.top_p == 0.75);
    forget_output();
    o.temperature = (double)NAN;
    write_text(path, "{\"do_sample\": false, \"temperature\": 0.5}");
    r = generate(&o);
    assert_true(r.temperature == 0 && r.top_p == 1);
    acr_free(path);
}

/* Failures ---------------------------------------------------------------------------------- */

/* The last row of the tensor that lies last in the file. */
static void change_last_number(const char *dir)
{
    char *path = acr_sprintf("%s/model.safetensors", dir);
    FILE *f = fopen(path, "r+b");
    int c = 0;

    assert_non_null(f);
    assert_int_equal(fseek(f, -2, SEEK_END), 0);
    c = fgetc(f);
    assert_int_equal(fseek(f, -2, SEEK_END), 0);
    fputc(c ^ 1, f);
    fclose(f);
    acr_free(path);
}

static void refuses_to_go_on_with_something_else(void **state)
{
    static const char *const texts[] = {"tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja", "generation_config.json"};
    accrue_generate_options o = options();
    accrue_generate_report r;
    accrue_error e = {0};
    char *text = NULL, *before = NULL;

#define FAILS(status, ...)                                                                         \
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), status, &e, output, __VA_ARGS__, NULL);  \
    o = options()
    (void)state;
    generate(&o);
    before = text_of_file(output);
    o.temperature = 0.5;
    FAILS(ACCRUE_EMISMATCH, "was begun with \"temperature\" 1.0, now it is 0.5");
    o.top_p = 0.5;
    FAILS(ACCRUE_EMISMATCH, "was begun with \"top_p\" 0.9");
    o.seed = 1;
    FAILS(ACCRUE_EMISMATCH, "was begun with \"seed\" 42, now it is 1");
    o.max_new_tokens = 13;
    FAILS(ACCRUE_EMISMATCH, "was begun with \"max_new_tokens\" 12, now it is 13");
    o.compute = ACCRUE_BF16;
    FAILS(ACCRUE_EMISMATCH, "was begun with \"dtype\" \"float32\", now it is \"bfloat16\"");
    shell(acr_sprintf("echo >>'%s'", data));
    FAILS(ACCRUE_EMISMATCH, "was begun with \"data\"");
    write_text(data, conversations);
    write_whole_verifier(verifier, WHOLE_CHAT_VOCAB, 8);
    FAILS(ACCRUE_EMISMATCH, "was begun with \"verifier\"");
    write_whole_verifier(verifier, WHOLE_CHAT_VOCAB, 7);
    change_last_number(verifier);
    FAILS(ACCRUE_EMISMATCH, "was begun with \"verifier\"");
    write_whole_verifier(verifier, WHOLE_CHAT_VOCAB, 7);
    for (int i = 0; i < ACR_COUNT(texts); i++) {
        char *path = acr_sprintf("%s/%s", verifier, texts[i]);
        shell(acr_sprintf("if [ -e '%s' ]; then cp '%s' '%s.kept'; printf '\\n' >>'%s'; "
                          "else echo '{}' >'%s'; fi",
                          path, path, path, path, path));
        FAILS(ACCRUE_EMISMATCH, "was begun with \"verifier\"");
        shell(acr_sprintf("rm '%s'; [ ! -e '%s.kept' ] || mv '%s.kept' '%s'", path, path, path,
                          path));
        acr_free(path);
    }
    generate(&o); /* as it was, it goes on */
    text = text_of_file(output);
    assert_string_equal(text, before); /* untouched by all that */
    acr_free(text);
    acr_free(before);

    shell(acr_sprintf("echo '{}' >>'%s'", output));
    FAILS(ACCRUE_EFORMAT, "its last line has no metadata.idx below 7");
    shell(acr_sprintf("echo '{\"metadata\": {\"idx\": 7}}' >>'%s'", output));
    FAILS(ACCRUE_EFORMAT, "its last line has no metadata.idx below 7");
    forget_output();
    write_text(output, "{\"a letter\": 1}"); /* without a line's end */
    FAILS(ACCRUE_EMISMATCH, "15 bytes are there already, and no ", "settings.json");
    text = text_of_file(output);
    assert_string_equal(text, "{\"a letter\": 1}");
    acr_free(text);
#undef FAILS
}

static void refuses_a_file_in_use_and_what_is_no_file(void **state)
{
    const accrue_generate_options o = options();
    accrue_generate_report r;
    accrue_error e = {0};
    int fd = open(output, O_RDWR | O_CREAT, 0666);

    (void)state;
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, output,
                 "another call is writing it", NULL);
    close(fd);
    shell(acr_sprintf("rm '%s' && mkfifo '%s'", output, output));
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, "not a regular file",
                 NULL);
    shell(acr_sprintf("rm '%s' && mkdir '%s'", output, output));
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, "cannot open", output,
                 NULL);
}

/* A failure before the first line leaves nothing behind; what was there stays. */
static void failures_leave_nothing_behind(void **state)
{
    accrue_generate_options o = options();
    accrue_generate_report r;
    accrue_error e = {0};
    char *kept = acr_sprintf("%s/kept", folder), *made = acr_sprintf("%s/made", folder);
    char *deep = acr_sprintf("%s/a/b/out.jsonl", made), *in = acr_sprintf("%s/x/o", kept);
    char *settings = acr_sprintf("%s.settings.json", output);
    acr_answer_file f;

    (void)state;
    write_whole_verifier(verifier, 60, 7); /* which has not the prompt's tokens */
    shell(acr_sprintf("mkdir '%s'", kept));
    o.output = deep;
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "below 60", NULL);
    assert_false(acr_exists(made));
    o.output = in;
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "below 60", NULL);
    acr_fail_allocation(1);
    assert_fails(acr_answer_file_open(&f, in, NULL, 1, &e), ACCRUE_ENOMEM, &e, NULL);
    acr_answer_file_tidy(&f);
    acr_answer_file_close(&f);
    assert_true(acr_exists(kept));
    o.output = output;
    write_text(output, ""); /* somebody's */
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "below 60", NULL);
    assert_true(acr_exists(output));
    forget_output();
    assert_fails(accrue_generate(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "below 60", NULL);
    assert_false(acr_exists(output) || acr_exists(settings));
    acr_free(kept);
    acr_free(made);
    acr_free(deep);
    acr_free(in);
    acr_free(settings);
}

static void gives_back_everything_when_memory_ends(void **state)
{
    accrue_generate_options o = options();
    accrue_generate_report r;
    accrue_error e = {0};
    size_t before = 0;
    uint64_t failed = 0;
    char *whole = NULL, *text = NULL;

    (void)state;
    o.max_new_tokens = 3;
    generate(&o);
    whole = text_of_file(output);
    before = acr_allocated_bytes();
    for (uint64_t n = 1, over = 0; !over; n += 1 + n / 24) {
        accrue_status st = ACCRUE_OK;
        if (n % 3 == 1) /* else it goes on */
            forget_output();
        acr_fail_allocation(n);
        st = accrue_generate(&r, &o, NULL, NULL, &e);
        acr_fail_allocation(0);
        over = st == ACCRUE_OK && n % 3 == 1;
        if (st)
            assert_fails(st, ACCRUE_ENOMEM, &e, NULL);
        failed += st != ACCRUE_OK;
        assert_int_equal(acr_allocated_bytes(), before);
    }
    assert_true(failed > 20);
    text = text_of_file(output);
    assert_string_equal(text, whole);
    acr_free(text);
    acr_free(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_users_turn_is_answered_anew),
        TEST(greedy_answers_are_the_likeliest_tokens),
        TEST(batch_and_threads_change_no_byte),
        TEST(a_stopped_call_goes_on_to_the_same_bytes),
        TEST(a_limit_may_be_raised),
        TEST(too_long_conversations_end_early),
        TEST(takes_what_the_model_recommends),
        TEST(refuses_to_go_on_with_something_else),
        TEST(refuses_a_file_in_use_and_what_is_no_file),
        TEST(failures_leave_nothing_behind),
        TEST(gives_back_everything_when_memory_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
