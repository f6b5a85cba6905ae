/* test_eval.c - accrue_eval: prompts in every form, the report, answers that differ, and what is
 * refused. */
#include "infer_files.h"

#include <math.h>

enum { VOCAB = 300 };

typedef struct place {
    char *dir, *verifier, *draft, *prompts; /* prompts: a path, of nothing at first */
    accrue_eval_options opt;
} place;

static place place_make(void)
{
    place p = {.dir = make_folder()};

    p.verifier = path_below(p.dir, "verifier");
    p.draft = path_below(p.dir, "draft");
    p.prompts = path_below(p.dir, "prompts");
    assert_int_equal(mkdir(p.verifier, 0777), 0);
    assert_int_equal(mkdir(p.draft, 0777), 0);
    verifier_write(p.verifier, VOCAB, IM_END, 5);
    tokenizer_write(p.verifier);
    draft_write_for(p.draft, VOCAB, 120, 1, true, p.verifier, 6);
    accrue_eval_options_init(&p.opt, sizeof p.opt);
    p.opt.checkpoint = p.draft;
    p.opt.verifier = p.verifier;
    p.opt.prompts = p.prompts;
    p.opt.max_new_tokens = 12;
    return p;
}

static void place_free(place *p)
{
    acr_free(p->verifier);
    acr_free(p->draft);
    acr_free(p->prompts);
    remove_folder(p->dir);
}

/* A data set of rows of the given lengths, whose first `unsupervised` tokens are a prompt. */
static void write_rows(const place *p, int n, const int64_t *tokens, const int64_t *unsupervised)
{
    accrue_error e = {0};
    acr_dataset_writer *w = NULL;
    int64_t all = 0;

    for (int i = 0; i < n; i++)
        all += tokens[i];
    assert_int_equal(mkdir(p->prompts, 0777), 0);
    assert_ok(acr_dataset_writer_open(&w, p->prompts, n, all, &e), &e);
    for (int i = 0; i < n; i++) {
        int64_t ids[64], mask[64];
        const acr_row row = {.input_ids = ids, .loss_mask = mask, .tokens = tokens[i]};
        for (int64_t j = 0; j < tokens[i]; j++) {
            ids[j] = (i * 7 + j * 3) % 250;
            mask[j] = j >= unsupervised[i];
        }
        assert_ok(acr_dataset_writer_add(w, &row, &e), &e);
    }
    assert_ok(acr_dataset_writer_close(w, &e), &e);
    acr_dataset_writer_free(w);
}

/* Prompts ------------------------------------------------------------------------------------ */

/* "<|im_start|>role\ncontent<|im_end|>\n" */
static int64_t turn(int64_t *ids, const char *role, const char *content)
{
    int64_t n = 0;

    ids[n++] = IM_START;
    for (const char *s = role; *s; s++)
        ids[n++] = (unsigned char)*s;
    ids[n++] = '\n';
    for (const char *s = content; s && *s; s++)
        ids[n++] = (unsigned char)*s;
    if (content) {
        ids[n++] = IM_END;
        ids[n++] = '\n';
    }
    return n;
}

static void is_prompt(const acr_prompts *p, int64_t i, int64_t row, const int64_t *ids, int64_t n)
{
    assert_int_equal(p->row.at[i], row);
    assert_int_equal(p->begin.at[i + 1] - p->begin.at[i], n);
    assert_memory_equal(p->ids.at + p->begin.at[i], ids, (size_t)n * sizeof *ids);
}

static acr_prompts read_prompts(const place *p, int64_t limit)
{
    accrue_error e = {0};
    acr_prompts out;

    assert_ok(acr_prompts_read(&out, p->prompts, p->verifier, limit, &e), &e);
    return out;
}

static void prompts_of_strings(void **state)
{
    place p = place_make();
    acr_prompts got;
    int64_t ids[100], n = turn(ids, "user", "Why <|im_end|>?");

    (void)state;
    n -= 2; /* what a user wrote is no control token: ten bytes */
    for (int i = 0; i < 2; i++)
        assert_int_equal(ids[n + i], i ? '\n' : IM_END);
    n += 2;
    n += turn(ids + n, "assistant", NULL);
    write_text(p.prompts, " \n[\"a\", \"Why <|im_end|>?\", \"b\"]");
    got = read_prompts(&p, 2);
    assert_int_equal(got.n, 2);
    is_prompt(&got, 1, 1, ids, n);
    acr_prompts_free(&got);
    got = read_prompts(&p, 0);
    assert_int_equal(got.n, 3);
    acr_prompts_free(&got);
    write_text(p.prompts, "\xef\xbb\xbf[\"a\", \"Why <|im_end|>?\"]");
    got = read_prompts(&p, 0);
    assert_int_equal(got.n, 2);
    is_prompt(&got, 1, 1, ids, n);
    acr_prompts_free(&got);
    place_free(&p);
}

static void prompts_of_conversations(void **state)
{
    place p = place_make();
    acr_prompts got;
    int64_t ids[100], n = turn(ids, "system", "Be brief.");

    (void)state;
    n += turn(ids + n, "user", "Why?");
    n += turn(ids + n, "assistant", NULL);
    write_text(p.prompts,
               "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": "
               "\"user\", \"content\": \"Why?\"}, {\"role\": \"assistant\", \"content\": \"So.\"}, "
               "{\"role\": \"user\", \"content\": \"And?\"}]}\n"
               "  \n"
               "{\"messages\": [{\"role\": \"assistant\", \"content\": \"Hello.\"}]}\r\n"
               "{\"conversations\": [{\"from\": \"system\", \"value\": \"Be brief.\"}, {\"from\": "
               "\"human\", \"value\": \"Why?\"}, {\"from\": \"gpt\", \"value\": \"So.\"}]}");
    got = read_prompts(&p, 0);
    assert_int_equal(got.n, 2);
    is_prompt(&got, 0, 0, ids, n);
    is_prompt(&got, 1, 2, ids, n);
    acr_prompts_free(&got);
    got = read_prompts(&p, 1);
    assert_int_equal(got.n, 1);
    acr_prompts_free(&got);
    n = turn(ids, "user", "Why?");
    n += turn(ids + n, "assistant", NULL);
    write_text(p.prompts, "{\"prompt\": \"Why?\", \"completion\": \"So.\"}\n{\"prompt\": "
                          "[{\"role\": \"user\", \"content\": \"Why?\"}]}");
    got = read_prompts(&p, 0);
    assert_int_equal(got.n, 2);
    is_prompt(&got, 0, 0, ids, n);
    is_prompt(&got, 1, 1, ids, n);
    acr_prompts_free(&got);
    place_free(&p);
}

static void prompts_of_rows(void **state)
{
    static const int64_t tokens[] = {9, 5, 8, 7}, unsupervised[] = {4, 5, 0, 6};
    const int64_t first[] = {0, 3, 6, 9}, last[] = {21, 24, 27, 30, 33, 36};
    place p = place_make();
    acr_prompts got;

    (void)state;
    write_rows(&p, 4, tokens, unsupervised);
    got = read_prompts(&p, 0);
    assert_int_equal(got.n, 2); /* of two rows nothing is a prompt */
    is_prompt(&got, 0, 0, first, 4);
    is_prompt(&got, 1, 3, last, 6);
    acr_prompts_free(&got);
    place_free(&p);
}

static void prompts_fail(const place *p, const char *text, accrue_status expected, const char *one,
                         const char *other)
{
    accrue_error e = {0};
    acr_prompts out;

    if (text)
        write_text(p->prompts, text);
    assert_fails(acr_prompts_read(&out, p->prompts, p->verifier, 0, &e), expected, &e, p->prompts,
                 one, other, NULL);
    assert_int_equal(out.n, 0);
}

static void bad_prompts_are_refused(void **state)
{
    accrue_error e = {0};
    place p = place_make();
    acr_prompts out;

    (void)state;
    prompts_fail(&p, NULL, ACCRUE_EIO, "prompts", NULL);
    prompts_fail(&p, "", ACCRUE_EFORMAT, "0 prompts", NULL);
    prompts_fail(&p, "[]", ACCRUE_EFORMAT, "0 prompts", NULL);
    prompts_fail(&p, "[\"a\", 5]", ACCRUE_EFORMAT, "prompt 1", "no string");
    prompts_fail(&p, "[\"a\"", ACCRUE_EFORMAT, "line 1", NULL);
    prompts_fail(&p, "\xef\xbb\xbf[\"a\",\n?]", ACCRUE_EFORMAT, "line 2 column 1", NULL);
    prompts_fail(&p, "\xef\xbb\xbf", ACCRUE_EFORMAT, "0 prompts", NULL);
    prompts_fail(&p, "{\"prompt\": \"a\"}\n{\"text\": \"a\"}", ACCRUE_EFORMAT, "line 2",
                 "none of 'conversations'");
    prompts_fail(&p, "\n{\"messages\": [}", ACCRUE_EFORMAT, "line 2", NULL);
    prompts_fail(&p, "{\"messages\": [{\"content\": \"a\"}]}", ACCRUE_EFORMAT, "line 1",
                 "message 0 has no 'role'");
    prompts_fail(&p, "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", ACCRUE_EFORMAT,
                 "line 1", "message 0: its content is no text");
    prompts_fail(&p, "{\"messages\": []}", ACCRUE_EFORMAT, "line 1", "none of");
    prompts_fail(&p, "{\"messages\": [{\"role\": \"model\", \"content\": \"a\"}]}", ACCRUE_EFORMAT,
                 "0 prompts", NULL);
    prompts_fail(&p, "{\"prompt\": \"a\", \"prompt\": \"b\"}", ACCRUE_EFORMAT, "line 1",
                 "duplicate");
    prompts_fail(&p, "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}, {\"value\": \"b\"}]}",
                 ACCRUE_EFORMAT, "line 1", "message 1 has no 'role'");
    prompts_fail(&p, "5", ACCRUE_EFORMAT, "line 1", NULL);
    write_text(p.prompts, "[\"a\"]");
    assert_fails(acr_prompts_read(&out, p.prompts, "m.gguf", 0, &e), ACCRUE_ENOTSUP, &e, "m.gguf",
                 "tokenizer.json", "accrue import", NULL);
    place_free(&p);
}

/* Reports ------------------------------------------------------------------------------------ */

typedef struct told {
    int64_t n, stop_at, rounds, accepted, tokens;
    double plain, speculative;
} told;

static int tell(const accrue_eval_prompt *q, const accrue_eval_report *r, void *payload)
{
    told *t = payload;

    assert_int_equal(r->done, ++t->n);
    assert_int_equal(q->drafted, q->rounds * r->num_speculative_tokens);
    assert_true(q->n_tokens >= 1 && q->plain_seconds > 0 && q->speculative_seconds > 0);
    assert_true(q->prompt_tokens > 0);
    t->rounds += q->rounds;
    t->accepted += q->accepted;
    t->tokens += q->n_tokens;
    t->plain += q->plain_seconds;
    t->speculative += q->speculative_seconds;
    return t->n == t->stop_at;
}

static void report_adds_up(void **state)
{
    static const int64_t tokens[] = {9, 20, 8, 7, 30, 12}, unsupervised[] = {4, 11, 1, 6, 29, 12};
    place p = place_make();

    (void)state;
    write_rows(&p, 6, tokens, unsupervised);
    for (int k = 1; k <= 5; k += 2)
        for (int t = ACCRUE_F32; t <= ACCRUE_BF16; t++) {
            accrue_eval_report r;
            accrue_error e = {0};
            told seen_so_far = {0};
            int64_t at = 0, lengths = 0, weighted = 0;
            p.opt.num_speculative_tokens = k;
            p.opt.compute = (accrue_dtype)t;
            assert_ok(accrue_eval(&r, &p.opt, tell, &seen_so_far, &e), &e);
            assert_int_equal(r.prompts, 5);
            assert_int_equal(r.done, 5);
            assert_int_equal(seen_so_far.n, 5);
            assert_int_equal(r.prompt_tokens, 4 + 11 + 1 + 6 + 29);
            assert_int_equal(r.tokens, seen_so_far.tokens);
            assert_int_equal(r.rounds, seen_so_far.rounds);
            assert_int_equal(r.accepted, seen_so_far.accepted);
            assert_int_equal(r.drafted, k * r.rounds);
            assert_int_equal(r.num_speculative_tokens, k);
            assert_int_equal(r.differing, 0);
            assert_string_equal(r.verifier, p.verifier);
            assert_true(fabs(r.plain_seconds - seen_so_far.plain) < 1e-9);
            assert_true(fabs(r.speculative_seconds - seen_so_far.speculative) < 1e-9);
            assert_true(r.seconds >= r.plain_seconds + r.speculative_seconds);
            for (int i = 0; i <= ACCRUE_MAX_TTT_STEPS; i++) {
                lengths += r.accepted_length[i];
                weighted += i * r.accepted_length[i];
                at += i < ACCRUE_MAX_TTT_STEPS ? r.accepted_at[i] : 0;
            }
            assert_int_equal(lengths, r.rounds);
            assert_int_equal(weighted, r.accepted);
            assert_int_equal(at, r.accepted);
        }
    place_free(&p);
}

/* Without a verifier it is the one that the checkpoint names; without a callback all is well. */
static void recorded_verifier(void **state)
{
    accrue_eval_report r;
    accrue_error e = {0};
    place p = place_make();
    draft_files f;

    (void)state;
    write_text(p.prompts, "[\"a\", \"b\"]");
    p.opt.verifier = NULL;
    p.opt.limit = 1;
    assert_ok(accrue_eval(&r, &p.opt, NULL, NULL, &e), &e);
    assert_int_equal(r.done, 1);
    assert_string_equal(r.verifier, p.verifier);
    draft_make_for(&f, VOCAB, 120, 1, true, "no/such/verifier", 6);
    draft_files_write(&f, p.draft);
    assert_fails(accrue_eval(&r, &p.opt, NULL, NULL, &e), ACCRUE_EIO, &e, "no/such/verifier",
                 "--verifier-name-or-path", NULL);
    json_object_del(f.config.json, "speculators_config");
    draft_files_write(&f, p.draft);
    assert_fails(accrue_eval(&r, &p.opt, NULL, NULL, &e), ACCRUE_EINVAL, &e, "names no verifier",
                 "--verifier-name-or-path", NULL);
    draft_files_free(&f);
    place_free(&p);
}

static void stops_when_asked(void **state)
{
    accrue_eval_report r;
    accrue_error e = {0};
    told seen_so_far = {.stop_at = 2};
    place p = place_make();

    (void)state;
    write_text(p.prompts, "[\"a\", \"b\", \"c\"]");
    assert_fails(accrue_eval(&r, &p.opt, tell, &seen_so_far, &e), ACCRUE_ECANCELED, &e,
                 "2 of 3 prompts", NULL);
    assert_int_equal(seen_so_far.n, 2);
    assert_int_equal(r.done, 0);
    place_free(&p);
}

static char ways[64];

/* Notes which way each answer is begun. */
static accrue_status noting_forward(acr_verifier_work *w, const acr_sequence *s, int n,
                                    const int *slots, int n_slots, accrue_error *err)
{
    if (acr_cache_tokens(s->cache) == 0)
        snprintf(ways + strlen(ways), sizeof ways - strlen(ways), "%c", n_slots ? 's' : 'p');
    return acr_verifier_forward(w, s, n, slots, n_slots, err);
}

/* Both ways come first equally often, behind an answer that nobody times. */
static void ways_take_turns(void **state)
{
    accrue_eval_report r;
    accrue_error e = {0};
    place p = place_make();

    (void)state;
    ways[0] = 0;
    write_text(p.prompts, "[\"a\", \"b\", \"c\", \"d\"]");
    assert_ok(acr_eval(&r, &p.opt, noting_forward, NULL, NULL, &e), &e);
    assert_string_equal(ways, "pspssppssp");
    place_free(&p);
}

/* Differences -------------------------------------------------------------------------------- */

static int64_t checks_left; /* before one goes wrong */

static accrue_status wrong_forward(acr_verifier_work *w, const acr_sequence *s, int n,
                                   const int *slots, int n_slots, accrue_error *err)
{
    accrue_status st = acr_verifier_forward(w, s, n, slots, n_slots, err);

    if (!st && s->n_logits > 1 && --checks_left == 0)
        ((float *)s->logits)[11] = 1e6f;
    return st;
}

typedef struct seen {
    int64_t n, differing, differs_at, n_tokens;
} seen;

static int see(const accrue_eval_prompt *q, const accrue_eval_report *r, void *payload)
{
    seen *s = payload;

    (void)r;
    s->n++;
    if (q->differs_at >= 0) {
        s->differing = q->row;
        s->differs_at = q->differs_at;
        s->n_tokens = q->n_tokens;
    }
    return 0;
}

static void a_difference_is_told(void **state)
{
    accrue_eval_report r;
    accrue_error e = {0};
    place p = place_make();
    bool told_one = false;

    (void)state;
    write_text(p.prompts, "[\"a\", \"b\", \"c\", \"d\"]");
    for (int64_t at = 1; at < 30; at += 4) { /* the first few are those of the warm-up */
        seen s = {.differing = -1};
        accrue_status st = ACCRUE_OK;
        char row[40], token[60];
        checks_left = at;
        st = acr_eval(&r, &p.opt, wrong_forward, see, &s, &e);
        assert_int_equal(s.n, 4);
        assert_int_equal(r.done, 4);
        if (s.differing < 0) {
            assert_int_equal(st, ACCRUE_OK);
            continue;
        }
        snprintf(row, sizeof row, "prompt %lld:", (long long)s.differing);
        snprintf(token, sizeof token, "token %lld of", (long long)s.differs_at);
        assert_fails(st, ACCRUE_EVERIFY, &e, p.prompts, row, token, "id 11", NULL);
        assert_int_equal(r.differing, 1);
        assert_true(s.differs_at < s.n_tokens);
        told_one = true;
    }
    assert_true(told_one);
    place_free(&p);
}

/* Refusals ----------------------------------------------------------------------------------- */

static void eval_fails(const place *p, accrue_status expected, const char *one, const char *other)
{
    accrue_eval_report r;
    accrue_error e = {0};

    assert_fails(accrue_eval(&r, &p->opt, NULL, NULL, &e), expected, &e, one, other, NULL);
    assert_int_equal(r.prompts, 0);
}

static void bad_options_are_refused(void **state)
{
    place p = place_make();
    place q = p;

    (void)state;
    write_text(p.prompts, "[\"a\"]");
    q.opt.struct_size--;
    eval_fails(&q, ACCRUE_EINVAL, "expected", "accrue_eval_options_init");
    q = p;
    q.opt.checkpoint = NULL;
    eval_fails(&q, ACCRUE_EINVAL, "no checkpoint", NULL);
    q = p;
    q.opt.prompts = NULL;
    eval_fails(&q, ACCRUE_EINVAL, "no prompts", NULL);
    q = p;
    q.opt.num_speculative_tokens = 0;
    eval_fails(&q, ACCRUE_EINVAL, "--num-speculative-tokens: 0", "1 to 16");
    q.opt.num_speculative_tokens = 17;
    eval_fails(&q, ACCRUE_EINVAL, "--num-speculative-tokens: 17", "1 to 16");
    q = p;
    q.opt.max_new_tokens = 0;
    eval_fails(&q, ACCRUE_EINVAL, "--max-new-tokens: 0", NULL);
    q.opt.max_new_tokens = (int64_t)1 << 40;
    eval_fails(&q, ACCRUE_EINVAL, "--max-new-tokens", NULL);
    q = p;
    q.opt.limit = -1;
    eval_fails(&q, ACCRUE_EINVAL, "--limit: -1", NULL);
    q = p;
    q.opt.compute = (accrue_dtype)9;
    eval_fails(&q, ACCRUE_EINVAL, "dtype 9", NULL);
    place_free(&p);
}

static void models_must_agree(void **state)
{
    static const int64_t tokens[] = {9}, unsupervised[] = {4};
    place p = place_make();

    (void)state;
    write_text(p.prompts, "[\"a\"]");
    p.opt.verifier = "no/such";
    eval_fails(&p, ACCRUE_ENOTSUP, "no/such", NULL);
    p.opt.verifier = p.verifier;
    p.opt.checkpoint = "no/such";
    eval_fails(&p, ACCRUE_EIO, "no/such", NULL);
    p.opt.checkpoint = p.draft;
    draft_write_for(p.draft, VOCAB + 1, 120, 1, true, p.verifier, 6);
    eval_fails(&p, ACCRUE_EMISMATCH, "301", "300");
    draft_write_for(p.draft, VOCAB, 120, 1, true, p.verifier, 6);
    p.opt.max_new_tokens = V_POSITIONS;
    eval_fails(&p, ACCRUE_EMISMATCH, "prompt 0", "1024");
    p.opt.max_new_tokens = 4;
    remove(p.prompts);
    write_rows(&p, 1, tokens, unsupervised);
    verifier_write(p.verifier, 8, 7, 5);
    draft_write_for(p.draft, 8, 8, 1, true, p.verifier, 6);
    eval_fails(&p, ACCRUE_EMISMATCH, "token id 9", "8");
    place_free(&p);
}

static void memory_may_fail_anywhere(void **state)
{
    static const int64_t tokens[] = {9}, unsupervised[] = {4};
    place p = place_make();
    size_t before = acr_allocated_bytes();
    accrue_status st = ACCRUE_ENOMEM;
    uint64_t n = 0;

    (void)state;
    write_rows(&p, 1, tokens, unsupervised);
    before = acr_allocated_bytes();
    while (st) {
        accrue_eval_report r;
        accrue_error e = {0};
        acr_fail_allocation_here(++n);
        st = accrue_eval(&r, &p.opt, NULL, NULL, &e);
        acr_fail_allocation_here(0);
        if (st)
            assert_fails(st, ACCRUE_ENOMEM, &e, NULL);
        assert_int_equal(acr_allocated_bytes(), before);
    }
    assert_true(n > 50);
    place_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_of_strings),   cmocka_unit_test(prompts_of_conversations),
        cmocka_unit_test(prompts_of_rows),      cmocka_unit_test(bad_prompts_are_refused),
        cmocka_unit_test(report_adds_up),       cmocka_unit_test(recorded_verifier),
        cmocka_unit_test(stops_when_asked),     cmocka_unit_test(ways_take_turns),
        cmocka_unit_test(a_difference_is_told), cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(models_must_agree),    cmocka_unit_test(memory_may_fail_anywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
