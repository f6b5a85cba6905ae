/* test_answer.c - prompts answered by a small verifier: where answers end, and what their text
 * is. */
#include "folder_test.h"

#include "infer/generate_parts.h"
#include "whole_verifier.h"

static char *verifier;

static int prepare(void **state)
{
    make(state);
    verifier = acr_sprintf("%s/verifier", folder);
    assert_int_equal(mkdir(verifier, 0777), 0);
    write_whole_verifier(verifier, WHOLE_CHAT_VOCAB, 7);
    write_whole_chat(verifier, ACR_TEST_DATA, "plain");
    return 0;
}

static int finish(void **state)
{
    acr_free(verifier);
    return clear(state);
}

static void assert_split(const char *answer, const char *thoughts, const char *content)
{
    acr_tokenizer *t = NULL;
    acr_chat chat;
    acr_ids ids = {0};
    char *c = NULL, *h = NULL;
    accrue_error e = {0};

    assert_ok(acr_tokenizer_open(&t, verifier, &e), &e);
    assert_ok(acr_chat_open(&chat, verifier, t, &e), &e);
    assert_ok(acr_tokenizer_encode(&ids, t, answer, strlen(answer), true, &e), &e);
    assert_ok(acr_answer_split(&c, &h, &chat, t, ids.at, ids.n, &e), &e);
    assert_string_equal(c, content);
    assert_string_equal(h ? h : "none", thoughts ? thoughts : "none");
    acr_free(c);
    acr_free(h);
    acr_ids_free(&ids);
    acr_chat_free(&chat);
    acr_tokenizer_free(t);
}

/* What a Qwen3 thinks stands apart, as prepare and speculators read it. */
static void thoughts_stand_apart(void **state)
{
    (void)state;
    assert_split("<think>\nso?\n</think>\n\nYes.", NULL, "<think>\nso?\n</think>\n\nYes.");
    write_whole_chat(verifier, ACR_TEST_DATA, "qwen3");
    assert_split("<think>\nso?\n\nyes\n</think>\n\nYes.\n", "so?\n\nyes", "Yes.\n");
    assert_split("<think></think>A", "", "A");
    assert_split("<think>\nfor ever", "for ever", "");
    assert_split("No <think>b</think>c", NULL, "No <think>b</think>c");
}

/* Answering --------------------------------------------------------------------------------- */

typedef struct one_question {
    int64_t prompt[3];
    int64_t answer[32];
    int64_t n, limit;
    acr_finish why;
    int asked;
} one_question;

static accrue_status ask_once(bool *any, acr_prompt *out, int place, void *ctx, accrue_error *err)
{
    one_question *q = ctx;

    (void)place;
    (void)err;
    *out = (acr_prompt){q->prompt, 3, q->limit, 5};
    *any = !q->asked++;
    return ACCRUE_OK;
}

static accrue_status take_one(int place, const int64_t *ids, int64_t n, acr_finish why, void *ctx,
                              accrue_error *err)
{
    one_question *q = ctx;

    (void)place;
    (void)err;
    q->n = n;
    q->why = why;
    memcpy(q->answer, ids, (size_t)n * sizeof *ids);
    return ACCRUE_OK;
}

static one_question answer(const acr_verifier *v, int64_t positions, int64_t limit, int64_t end)
{
    one_question q = {.prompt = {11, 12, 13}, .limit = limit};
    const acr_questions ask = {.ask = ask_once,
                               .take = take_one,
                               .ctx = &q,
                               .end = end,
                               .data = "data",
                               .model = verifier};
    const acr_sampling greedy = {.top_p = 1};
    accrue_error e = {0};

    assert_ok(acr_answer_all(v, &greedy, 2, positions, &ask, &e), &e);
    return q;
}

static void answers_end_where_they_are_to(void **state)
{
    acr_verifier *v = NULL;
    accrue_error e = {0};
    one_question all, q;

    (void)state;
    assert_ok(acr_verifier_open(&v, verifier, ACCRUE_F32, 100, &e), &e);
    all = answer(v, 100, 8, -1);
    assert_int_equal(all.n, 8);
    assert_int_equal(all.why, ACR_FINISH_LENGTH);
    assert_true(all.answer[2] != all.answer[0] && all.answer[2] != all.answer[1]);
    q = answer(v, 100, 8, all.answer[2]); /* which is no part of the answer */
    assert_int_equal(q.n, 2);
    assert_int_equal(q.why, ACR_FINISH_STOP);
    assert_memory_equal(q.answer, all.answer, 2 * sizeof q.answer[0]);
    q = answer(v, 100, 3, all.answer[2]); /* the last token there is room for ends it */
    assert_int_equal(q.n, 2);
    assert_int_equal(q.why, ACR_FINISH_STOP);
    q = answer(v, 7, 8, -1); /* the model's own length */
    assert_int_equal(q.n, 4);
    assert_int_equal(q.why, ACR_FINISH_LENGTH);
    q = answer(v, 100, 8, all.answer[0]);
    assert_int_equal(q.n, 0);
    assert_int_equal(q.why, ACR_FINISH_STOP);
    acr_verifier_free(v);
}

#undef TEST
#define TEST(f) cmocka_unit_test_setup_teardown(f, prepare, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(thoughts_stand_apart),
        TEST(answers_end_where_they_are_to),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
