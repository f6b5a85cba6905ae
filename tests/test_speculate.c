/* test_speculate.c - greedy decoding by way of a draft: the verifier's own answers, for any k and
 * any acceptance; counts; where answers end; failures.
 *
 * Acceptance is scripted: what the verifier "says" at each position is laid down beforehand, by a
 * reference that runs the draft from scratch in every round and decides how much of what it drafts
 * shall be right. */
#include "infer_files.h"

#include <math.h>

enum { PROMPT = 23, MAX_SCRIPT = 256, POSITIONS = 320 };

static struct {
    bool on;
    int64_t prompt; /* its tokens */
    int64_t says[MAX_SCRIPT];
    int64_t n;
    int64_t break_at;  /* the call that is to be wrong, counted down; 0: none */
    bool break_checks; /* of those that check drafted tokens */
    double wrong;      /* a logit there */
} script;

static void put_logit(acr_dtype real, void *logits, int64_t at, double x)
{
    acr_convert(real, (char *)logits + (size_t)at * acr_dtype_bytes(real), ACR_DTYPE_F64, &x, 1);
}

static acr_dtype script_real;

/* acr_verifier_forward whose logits are the script's. */
static accrue_status forward(acr_verifier_work *w, const acr_sequence *s, int n, const int *slots,
                             int n_slots, accrue_error *err)
{
    accrue_status st = acr_verifier_forward(w, s, n, slots, n_slots, err);
    const int64_t tokens = acr_cache_tokens(s->cache);

    for (int64_t i = 0; !st && script.on && i < s->n_logits; i++) {
        const int64_t at = tokens - s->n_logits + i + 1 - script.prompt;
        for (int64_t j = 0; j < V_VOCAB; j++)
            put_logit(script_real, s->logits, i * V_VOCAB + j,
                      j == (at < script.n ? script.says[at] : 1) ? 1 : 0);
    }
    if (!st && script.break_at && s->n_logits > script.break_checks && !--script.break_at)
        put_logit(script_real, s->logits, 5, script.wrong);
    return st;
}

typedef struct models {
    char *verifier_dir, *draft_dir;
    acr_verifier *v;
    acr_draft *draft, *other; /* other: the reference's */
    acr_decoder *d;
    int64_t prompt[PROMPT];
} models;

static void models_open(models *x, int k, int layers, bool norm_output, int64_t draft_vocab,
                        accrue_dtype compute)
{
    accrue_error e = {0};

    memset(x, 0, sizeof *x);
    memset(&script, 0, sizeof script);
    script_real = acr_real_of(compute);
    x->verifier_dir = make_folder();
    x->draft_dir = make_folder();
    verifier_write(x->verifier_dir, V_VOCAB, V_EOS, 1);
    draft_write_for(x->draft_dir, V_VOCAB, draft_vocab, layers, norm_output, x->verifier_dir, 2);
    assert_ok(acr_verifier_open(&x->v, x->verifier_dir, compute, POSITIONS, &e), &e);
    for (int i = 0; i < 2; i++)
        assert_ok(acr_draft_open(i ? &x->other : &x->draft, x->draft_dir, x->verifier_dir,
                                 acr_verifier_describe(x->v), compute, POSITIONS, &e),
                  &e);
    assert_ok(acr_decoder_create(&x->d, x->v, x->draft, k, POSITIONS - 20, forward, &e), &e);
    for (int i = 0; i < PROMPT; i++)
        x->prompt[i] =
            (int64_t)(acr_random_u64(9, ACR_RANDOM_INIT, 1, (uint64_t)i) % (V_VOCAB - 1));
}

static void models_close(models *x)
{
    acr_decoder_free(x->d);
    acr_draft_free(x->draft);
    acr_draft_free(x->other);
    acr_verifier_free(x->v);
    remove_folder(x->verifier_dir);
    remove_folder(x->draft_dir);
}

/* The reference ------------------------------------------------------------------------------ */

/* Another token than `id` that ends nothing. */
static int64_t other_than(int64_t id, int64_t n)
{
    const int64_t x = (int64_t)(acr_random_u64(4, ACR_RANDOM_INIT, 2, (uint64_t)n) % (V_VOCAB - 2));

    return x >= id ? x + 1 == V_EOS ? 0 : x + 1 : x;
}

/* What the draft says behind prompt and the script so far, all computed anew. */
static void draft_anew(const models *x, int k, int64_t *drafted)
{
    accrue_error e = {0};
    const int64_t rows = PROMPT + script.n - 1;
    const size_t real = acr_dtype_bytes(script_real);
    char *states = acr_calloc((size_t)(rows * 3 * V_HIDDEN), real);
    int64_t ids[PROMPT + MAX_SCRIPT];
    acr_verifier_work *w = NULL;
    acr_cache *cache = NULL;
    acr_sequence s = {.ids = ids, .n = rows, .states = states};

    memcpy(ids, x->prompt, sizeof x->prompt);
    memcpy(ids + PROMPT, script.says, (size_t)script.n * sizeof *ids);
    assert_ok(acr_verifier_work_create(&w, x->v, &e), &e);
    assert_ok(acr_cache_create(&cache, x->v, rows, &e), &e);
    s.cache = cache;
    assert_ok(acr_verifier_forward(w, &s, 1, acr_draft_slots(x->other), 3, &e), &e);
    acr_draft_restart(x->other);
    assert_ok(acr_draft_extend(x->other, ids + 1, states, rows, &e), &e);
    for (int i = 0; i < k; i++) {
        drafted[i] = acr_draft_token(x->other);
        if (i + 1 < k)
            assert_ok(acr_draft_step(x->other, drafted[i], &e), &e);
    }
    acr_cache_free(cache);
    acr_verifier_work_free(w);
    acr_free(states);
}

/* Lays down an answer of at least n tokens, of which so many are drafted right a round. */
static void write_script(const models *x, int k, int64_t n, acr_acceptance *counts)
{
    script.prompt = PROMPT;
    script.says[script.n++] = 7;
    for (int round = 0; script.n < n; round++) {
        int64_t drafted[ACCRUE_MAX_TTT_STEPS];
        int right =
            (int)(acr_random_u64(3, ACR_RANDOM_INIT, 3, (uint64_t)round) % (uint64_t)(k + 1));
        draft_anew(x, k, drafted);
        for (int i = 0; i < right && drafted[i] == V_EOS; i++)
            right = 0;
        for (int i = 0; i < right; i++)
            script.says[script.n++] = drafted[i];
        script.says[script.n] =
            right < k ? other_than(drafted[right], script.n) : other_than(V_EOS, script.n);
        script.n++;
        counts->rounds++;
        counts->drafted += k;
        counts->accepted += right;
        counts->length[right]++;
        for (int i = 0; i < right; i++)
            counts->at[i]++;
    }
    script.on = true;
}

/* Answers ------------------------------------------------------------------------------------ */

static acr_ids decode(models *x, bool speculatively, int64_t limit, acr_acceptance *counts)
{
    accrue_error e = {0};
    acr_ids out = {0};

    if (speculatively)
        assert_ok(acr_decode_speculatively(&out, counts, x->d, x->prompt, PROMPT, limit, &e), &e);
    else
        assert_ok(acr_decode_plainly(&out, x->d, x->prompt, PROMPT, limit, &e), &e);
    return out;
}

static void says(acr_ids got, const int64_t *expected, int64_t n)
{
    assert_int_equal(got.n, n);
    assert_memory_equal(got.at, expected, (size_t)n * sizeof *expected);
    acr_ids_free(&got);
}

static void same_counts(const acr_acceptance *got, const acr_acceptance *expected)
{
    assert_int_equal(got->rounds, expected->rounds);
    assert_int_equal(got->drafted, expected->drafted);
    assert_int_equal(got->accepted, expected->accepted);
    assert_memory_equal(got->at, expected->at, sizeof got->at);
    assert_memory_equal(got->length, expected->length, sizeof got->length);
}

static void check_script(int k, int layers, bool norm_output, int64_t draft_vocab,
                         accrue_dtype compute)
{
    acr_acceptance expected = {0}, counts = {0};
    models x;

    models_open(&x, k, layers, norm_output, draft_vocab, compute);
    write_script(&x, k, 60, &expected);
    assert_true(expected.accepted > 0 && expected.accepted < expected.drafted);
    says(decode(&x, false, script.n, NULL), script.says, script.n);
    says(decode(&x, true, script.n, &counts), script.says, script.n);
    same_counts(&counts, &expected);
    /* The same again, behind another answer. */
    memset(&counts, 0, sizeof counts);
    says(decode(&x, true, script.n, &counts), script.says, script.n);
    same_counts(&counts, &expected);
    models_close(&x);
}

static void accepts_what_is_right(void **state)
{
    (void)state;
    for (int k = 1; k <= 7; k++)
        check_script(k, 1 + k % 3, k % 2, k % 2 ? V_VOCAB : 20,
                     k == 3   ? ACCRUE_F64
                     : k == 4 ? ACCRUE_BF16
                              : ACCRUE_F32);
    check_script(ACCRUE_MAX_TTT_STEPS, 1, true, V_VOCAB, ACCRUE_F32);
}

/* Cut anywhere - inside accepted tokens, at the bonus, at once - the answer is what plain decoding
 * gives, and the round that it ends in counts whole. */
static void ends_at_the_limit(void **state)
{
    acr_acceptance expected = {0};
    models x;

    (void)state;
    models_open(&x, 3, 1, true, V_VOCAB, ACCRUE_F32);
    write_script(&x, 3, 30, &expected);
    for (int64_t limit = 1; limit <= 20; limit++) {
        acr_acceptance counts = {0};
        int64_t n = 0;
        says(decode(&x, false, limit, NULL), script.says, limit);
        says(decode(&x, true, limit, &counts), script.says, limit);
        for (int i = 0; i <= 3; i++)
            n += (i + 1) * counts.length[i];
        assert_true(1 + n >= limit && 1 + n < limit + 4);
        assert_int_equal(counts.drafted, 3 * counts.rounds);
    }
    models_close(&x);
}

static void ends_at_an_ending_token(void **state)
{
    acr_acceptance expected = {0};
    models x;

    (void)state;
    models_open(&x, 3, 1, true, V_VOCAB, ACCRUE_F32);
    write_script(&x, 3, 30, &expected);
    for (int64_t at = 0; at < 20; at++) {
        const int64_t kept = script.says[at];
        acr_acceptance counts = {0};
        script.says[at] = V_EOS;
        says(decode(&x, false, script.n, NULL), script.says, at + 1);
        says(decode(&x, true, script.n, &counts), script.says, at + 1);
        script.says[at] = kept;
    }
    models_close(&x);
}

/* An ending token that was drafted, and is right. */
static void ends_inside_drafted_tokens(void **state)
{
    acr_acceptance counts = {0};
    int64_t drafted[5];
    draft_files f;
    models x;

    (void)state;
    models_open(&x, 4, 1, true, V_VOCAB, ACCRUE_F32);
    /* A draft whose head has one row that always wins. */
    draft_make_for(&f, V_VOCAB, V_VOCAB, 1, true, "v", 2);
    memset(f.blocks[draft_tensor(&f, "norm.weight") - f.tensors], 0, V_HIDDEN * sizeof(float));
    draft_files_write(&f, x.draft_dir);
    draft_files_free(&f);
    models_close(&x);
    models_open(&x, 4, 1, true, V_VOCAB, ACCRUE_F32);
    script.prompt = PROMPT;
    script.says[script.n++] = 7;
    draft_anew(&x, 4, drafted);
    for (int i = 0; i < 4; i++)
        script.says[script.n++] = drafted[i];
    script.on = true;
    for (int i = 0; i < 4; i++) { /* other ids may end an answer too */
        acr_verifier_shape *shape = (acr_verifier_shape *)(uintptr_t)acr_verifier_describe(x.v);
        int64_t first = 1;
        shape->eos[1] = drafted[i];
        shape->n_eos = 2;
        while (script.says[first] != drafted[i])
            first++;
        memset(&counts, 0, sizeof counts);
        says(decode(&x, false, 9, NULL), script.says, first + 1);
        says(decode(&x, true, 9, &counts), script.says, first + 1);
        assert_int_equal(counts.rounds, 1);
        assert_int_equal(counts.accepted, 4);
    }
    models_close(&x);
}

/* The verifier's own logits. */
static void answers_are_the_verifier_s(void **state)
{
    static const accrue_dtype precisions[] = {ACCRUE_F32, ACCRUE_BF16, ACCRUE_F64};

    (void)state;
    for (int k = 1; k <= 7; k += 2)
        for (int p = 0; p < ACR_COUNT(precisions); p++) {
            acr_acceptance counts = {0};
            acr_ids plain = {0};
            models x;
            models_open(&x, k, 1 + p, p != 1, V_VOCAB, precisions[p]);
            plain = decode(&x, false, 50, NULL);
            says(decode(&x, true, 50, &counts), plain.at, plain.n);
            assert_true(counts.rounds > 0);
            acr_ids_free(&plain);
            models_close(&x);
        }
}

/* A prompt of more than one pass. */
static void long_prompts(void **state)
{
    accrue_error e = {0};
    acr_acceptance counts = {0};
    acr_ids plain = {0}, speculative = {0};
    int64_t prompt[280];
    models x;

    (void)state;
    models_open(&x, 3, 2, true, V_VOCAB, ACCRUE_F32);
    for (int i = 0; i < 280; i++)
        prompt[i] = x.prompt[i % PROMPT];
    assert_ok(acr_decode_plainly(&plain, x.d, prompt, 280, 20, &e), &e);
    assert_ok(acr_decode_speculatively(&speculative, &counts, x.d, prompt, 280, 20, &e), &e);
    says(speculative, plain.at, plain.n);
    acr_ids_free(&plain);
    models_close(&x);
}

/* Failures ----------------------------------------------------------------------------------- */

static void a_wrong_check_shows(void **state)
{
    acr_acceptance expected = {0}, counts = {0};
    acr_ids got = {0};
    models x;

    (void)state;
    models_open(&x, 3, 1, true, V_VOCAB, ACCRUE_F32);
    write_script(&x, 3, 40, &expected);
    script.break_at = 3;
    script.break_checks = true;
    script.wrong = 2;
    got = decode(&x, true, script.n, &counts);
    assert_int_equal(script.break_at, 0);
    assert_true(memcmp(got.at, script.says, (size_t)script.n * sizeof *got.at) != 0);
    acr_ids_free(&got);
    models_close(&x);
}

static void wrong_arguments_are_refused(void **state)
{
    accrue_error e = {0};
    acr_decoder *d = NULL;
    acr_ids out = {0};
    acr_acceptance counts = {0};
    models x;

    (void)state;
    models_open(&x, 3, 1, true, V_VOCAB, ACCRUE_F32);
    assert_fails(acr_decoder_create(&d, x.v, x.draft, 0, 9, forward, &e), ACCRUE_EINVAL, &e,
                 "0 drafted", "1 to 16", NULL);
    assert_fails(acr_decoder_create(&d, x.v, x.draft, 17, 9, forward, &e), ACCRUE_EINVAL, &e,
                 "17 drafted", NULL);
    assert_null(d);
    assert_fails(acr_decode_plainly(&out, x.d, x.prompt, 0, 5, &e), ACCRUE_EINVAL, &e, "0 tokens",
                 NULL);
    assert_fails(acr_decode_plainly(&out, x.d, x.prompt, 1, 0, &e), ACCRUE_EINVAL, &e,
                 "0 of an answer", NULL);
    assert_fails(acr_decode_speculatively(&out, &counts, x.d, x.prompt, PROMPT, POSITIONS, &e),
                 ACCRUE_EINVAL, &e, "23 tokens", "300 together", NULL);
    script.break_at = 4;
    script.wrong = (double)NAN;
    assert_fails(acr_decode_plainly(&out, x.d, x.prompt, PROMPT, 50, &e), ACCRUE_ENUMERIC, &e,
                 "not finite", NULL);
    script.break_at = 2;
    script.break_checks = true;
    script.wrong = (double)INFINITY;
    assert_fails(acr_decode_speculatively(&out, &counts, x.d, x.prompt, PROMPT, 50, &e),
                 ACCRUE_ENUMERIC, &e, "not finite", NULL);
    acr_ids_free(&out);
    models_close(&x);
}

static void memory_may_fail_anywhere(void **state)
{
    models x;
    accrue_status st = ACCRUE_ENOMEM;
    size_t before = 0;
    uint64_t n = 0;

    (void)state;
    models_open(&x, 3, 1, true, V_VOCAB, ACCRUE_F32);
    before = acr_allocated_bytes();
    while (st) {
        accrue_error e = {0};
        acr_decoder *d = NULL;
        acr_ids out = {0};
        acr_acceptance counts = {0};
        acr_fail_allocation_here(++n);
        st = acr_decoder_create(&d, x.v, x.draft, 3, 100, forward, &e);
        if (!st)
            st = acr_decode_speculatively(&out, &counts, d, x.prompt, PROMPT, 40, &e);
        acr_fail_allocation_here(0);
        if (st)
            assert_fails(st, ACCRUE_ENOMEM, &e, NULL);
        acr_ids_free(&out);
        acr_decoder_free(d);
        assert_int_equal(acr_allocated_bytes(), before);
    }
    assert_true(n > 5);
    models_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_what_is_right),      cmocka_unit_test(ends_at_the_limit),
        cmocka_unit_test(ends_at_an_ending_token),    cmocka_unit_test(ends_inside_drafted_tokens),
        cmocka_unit_test(answers_are_the_verifier_s), cmocka_unit_test(long_prompts),
        cmocka_unit_test(a_wrong_check_shows),        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(memory_may_fail_anywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
