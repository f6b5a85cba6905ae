/* test_verifier.c - the verifier's forward pass: against transformers in float64, and against
 * itself however the tokens are passed. */
#include "verifier_test.h"

#include <math.h>

enum { TOKENS = 21 };

/* What transformers computed (tools/make_verifier_data.py). */
typedef struct expected {
    acr_safetensors *file;
    int64_t ids[TOKENS];
    const double *states, *logits;
} expected;

static expected open_expected(const char *name)
{
    expected x = {0};
    model_path path;
    accrue_error e = {0};

    assert_ok(acr_safetensors_open(&x.file, path_of(path, name, ".safetensors"), &e), &e);
    memcpy(x.ids, acr_safetensors_find(x.file, "ids")->data, sizeof x.ids);
    x.states = acr_safetensors_find(x.file, "states")->data;
    x.logits = acr_safetensors_find(x.file, "logits")->data;
    return x;
}

/* The largest difference of columns [column, column + n) of rows of `stride`, relative to their
 * largest value. */
static double difference(const void *got, size_t real, const double *want, int64_t stride,
                         int64_t column, int64_t n)
{
    double worst = 0, largest = 0;

    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = t * stride + column; i < t * stride + column + n; i++) {
            double x = 0;

            acr_convert(ACR_DTYPE_F64, &x, real == 8 ? ACR_DTYPE_F64 : ACR_DTYPE_F32,
                        (const char *)got + (size_t)i * real, 1);
            worst = fmax(worst, isfinite(x) ? fabs(x - want[i]) : (double)INFINITY);
            largest = fmax(largest, fabs(want[i]));
        }
    return worst / largest;
}

static void states_and_logits_are_those_of_transformers(void **state)
{
    static const double bounds[] = {1e-10, 1e-5, 3e-2}; /* f64, f32, bf16 */

    (void)state;
    for (int m = 0; m < ACR_COUNT(model_names); m++)
        for (int c = 0; c < ACR_COUNT(computes); c++) {
            expected x = open_expected(model_names[m]);
            acr_verifier *v = open_model(model_names[m], computes[c]);
            acr_verifier_work *w = open_work(v);
            acr_cache *cache = open_cache(v, TOKENS);
            outcome o = outcome_of(v, TOKENS);
            acr_sequence s = sequence_of(&o, cache, x.ids, 0, TOKENS);
            double logits = 0;

            forward(w, &s, 1, &o);
            for (int i = 0; i < o.n_slots; i++) {
                const double d = difference(o.states, o.real, x.states, o.n_slots * o.hidden,
                                            i * o.hidden, o.hidden);
                if (!(d <= bounds[c]))
                    fail_msg("%s, compute %d: states of slot %d differ by %g", model_names[m],
                             computes[c], i, d);
            }
            logits = difference(o.logits, o.real, x.logits, o.vocab, 0, o.vocab);
            if (!(logits <= bounds[c]))
                fail_msg("%s, compute %d: logits differ by %g", model_names[m], computes[c],
                         logits);
            free_outcome(&o);
            acr_cache_free(cache);
            acr_verifier_work_free(w);
            acr_verifier_free(v);
            acr_safetensors_close(x.file);
        }
}

/* Splits ---------------------------------------------------------------------------------- */

enum { LONG = 101, SEQUENCES = 5 };

static void draw_ids(int64_t *ids, int64_t n, int64_t vocab, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int64_t)(acr_random_u64(seed, ACR_RANDOM_INIT, 1, (uint64_t)i) % (uint64_t)vocab);
}

/* All at once, one by one, in pieces: the same bits for 1 to 4 threads. */
static void a_prompt_may_be_cut_anywhere(void **state)
{
    static const int64_t pieces[][4] = {{1, 1, 1, 1}, {40, 1, 3, 57}, {2, 64, 5, 16}};

    (void)state;
    for (int m = 0; m < ACR_COUNT(model_names); m++)
        for (int c = 0; c < ACR_COUNT(computes); c++) {
            acr_verifier *v = open_model(model_names[m], computes[c]);
            acr_verifier_work *w = open_work(v);
            acr_cache *cache = open_cache(v, LONG);
            outcome whole = outcome_of(v, LONG), cut = outcome_of(v, LONG);
            int64_t ids[LONG];
            acr_sequence s;

            draw_ids(ids, LONG, whole.vocab, 1);
            accrue_set_threads(1);
            s = sequence_of(&whole, cache, ids, 0, LONG);
            forward(w, &s, 1, &whole);
            for (int threads = 1; threads <= 4; threads++) {
                const int64_t *sizes = pieces[threads % ACR_COUNT(pieces)];

                accrue_set_threads(threads);
                acr_cache_cut(cache, 0);
                for (int64_t at = 0, n = 0, i = 0; at < LONG; at += n, i++) {
                    n = sizes[i % 4] < LONG - at ? sizes[i % 4] : LONG - at;
                    s = sequence_of(&cut, cache, ids, at, n);
                    forward(w, &s, 1, &cut);
                    assert_int_equal(acr_cache_tokens(cache), at + n);
                }
                assert_same(&whole, &cut, LONG);
            }
            accrue_set_threads(2);
            free_outcome(&whole);
            free_outcome(&cut);
            acr_cache_free(cache);
            acr_verifier_work_free(w);
            acr_verifier_free(v);
        }
}

/* Sequences together, some of whose tokens share a chunk: as each alone. */
static void sequences_do_not_see_each_other(void **state)
{
    static const int64_t steps[][SEQUENCES] = {
        {90, 1, 70, 33, 64}, {1, 1, 1, 1, 1}, {5, 90, 1, 3, 20}};

    (void)state;
    for (int m = 0; m < ACR_COUNT(model_names); m++)
        for (int c = 0; c < ACR_COUNT(computes); c++) {
            acr_verifier *v = open_model(model_names[m], computes[c]);
            acr_verifier_work *w = open_work(v);
            acr_cache *caches[SEQUENCES], *alone = open_cache(v, POSITIONS);
            int64_t ids[SEQUENCES][POSITIONS], at[SEQUENCES] = {0};
            outcome together[SEQUENCES], one = outcome_of(v, POSITIONS);
            acr_sequence s[SEQUENCES];

            for (int i = 0; i < SEQUENCES; i++) {
                draw_ids(ids[i], POSITIONS, one.vocab, (uint64_t)i);
                caches[i] = open_cache(v, POSITIONS);
                together[i] = outcome_of(v, POSITIONS);
            }
            for (int step = 0; step < ACR_COUNT(steps); step++) {
                accrue_set_threads(1 + step);
                for (int i = 0; i < SEQUENCES; i++) {
                    s[i] = sequence_of(&together[i], caches[i], ids[i], at[i], steps[step][i]);
                    at[i] += steps[step][i];
                }
                forward(w, s, SEQUENCES, &one);
            }
            for (int i = 0; i < SEQUENCES; i++) {
                acr_cache_cut(alone, 0);
                s[0] = sequence_of(&one, alone, ids[i], 0, at[i]);
                forward(w, s, 1, &one);
                assert_same(&one, &together[i], at[i]);
                acr_cache_free(caches[i]);
                free_outcome(&together[i]);
            }
            accrue_set_threads(2);
            acr_cache_free(alone);
            free_outcome(&one);
            acr_verifier_work_free(w);
            acr_verifier_free(v);
        }
}

/* A draft's tokens are tried and cut off again; what comes then stands as if nothing had been. */
static void cut_rows_are_overwritten(void **state)
{
    (void)state;
    for (int m = 0; m < ACR_COUNT(model_names); m++) {
        acr_verifier *v = open_model(model_names[m], ACCRUE_F32);
        acr_verifier_work *w = open_work(v);
        acr_cache *cache = open_cache(v, POSITIONS);
        outcome whole = outcome_of(v, LONG), cut = outcome_of(v, LONG), waste = outcome_of(v, LONG);
        int64_t ids[LONG], other[LONG];
        acr_sequence s;

        draw_ids(ids, LONG, whole.vocab, 1);
        draw_ids(other, LONG, whole.vocab, 2);
        s = sequence_of(&whole, cache, ids, 0, LONG);
        forward(w, &s, 1, &whole);
        acr_cache_cut(cache, 0);
        for (int64_t at = 0; at < LONG; at += 20) {
            const int64_t n = at + 20 < LONG ? 20 : LONG - at;
            s = sequence_of(&cut, cache, ids, at, n);
            forward(w, &s, 1, &cut);
            s = sequence_of(&waste, cache, other, 0,
                            POSITIONS - at - n < LONG ? POSITIONS - at - n : LONG);
            forward(w, &s, 1, &waste);
            acr_cache_cut(cache, at + n);
            acr_cache_cut(cache, POSITIONS); /* more than there is: nothing */
            assert_int_equal(acr_cache_tokens(cache), at + n);
        }
        assert_same(&whole, &cut, LONG);
        free_outcome(&whole);
        free_outcome(&cut);
        free_outcome(&waste);
        acr_cache_free(cache);
        acr_verifier_work_free(w);
        acr_verifier_free(v);
    }
}

/* Slots in any order and twice, only the last tokens' logits, neither: the same values. */
static void only_what_is_asked_for_comes_out(void **state)
{
    static const int slots[] = {2, 0, 2};
    acr_verifier *v = open_model("qwen3", ACCRUE_F32);
    acr_verifier_work *w = open_work(v);
    acr_cache *cache = open_cache(v, TOKENS);
    outcome all = outcome_of(v, TOKENS), some = outcome_of(v, TOKENS);
    expected x = open_expected("qwen3");
    const size_t row = (size_t)all.hidden * all.real;
    acr_sequence s = sequence_of(&all, cache, x.ids, 0, TOKENS);
    uint64_t made = 0;

    (void)state;
    forward(w, &s, 1, &all);
    made = acr_allocations();
    acr_cache_cut(cache, 0);
    s = (acr_sequence){.cache = cache, .ids = x.ids, .n = TOKENS, .states = some.states};
    assert_int_equal(acr_verifier_forward(w, &s, 1, slots, 3, NULL), ACCRUE_OK);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int i = 0; i < 3; i++)
            assert_memory_equal(some.states + (size_t)(t * 3 + i) * row,
                                all.states + (size_t)(t * all.n_slots + slots[i]) * row, row);
    acr_cache_cut(cache, 0);
    s = (acr_sequence){
        .cache = cache, .ids = x.ids, .n = TOKENS, .n_logits = 3, .logits = some.logits};
    assert_int_equal(acr_verifier_forward(w, &s, 1, NULL, 0, NULL), ACCRUE_OK);
    assert_memory_equal(some.logits, all.logits + (size_t)((TOKENS - 3) * all.vocab) * all.real,
                        (size_t)(3 * all.vocab) * all.real);
    acr_cache_cut(cache, 0);
    s = (acr_sequence){.cache = cache, .ids = x.ids, .n = TOKENS};
    assert_int_equal(acr_verifier_forward(w, &s, 1, slots, 3, NULL), ACCRUE_OK);
    assert_int_equal(acr_verifier_forward(w, NULL, 0, NULL, 0, NULL), ACCRUE_OK);
    assert_int_equal(acr_allocations(), made);
    free_outcome(&all);
    free_outcome(&some);
    acr_safetensors_close(x.file);
    acr_cache_free(cache);
    acr_verifier_work_free(w);
    acr_verifier_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_and_logits_are_those_of_transformers),
        cmocka_unit_test(a_prompt_may_be_cut_anywhere),
        cmocka_unit_test(sequences_do_not_see_each_other),
        cmocka_unit_test(cut_rows_are_overwritten),
        cmocka_unit_test(only_what_is_asked_for_comes_out),
    };

    accrue_set_threads(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
