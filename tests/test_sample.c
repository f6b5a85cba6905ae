/* test_sample.c - sampling: greedy, temperature and nucleus against theory, ties, and draws that
 * depend on their key alone. */
#include "files.h"

#include "infer/infer.h"

#include <math.h>

enum { VOCAB = 8, DRAWS = 200000 };

static acr_sampler *make_sampler(int64_t vocab)
{
    acr_sampler *s = NULL;
    accrue_error e;

    assert_ok(acr_sampler_create(&s, vocab, &e), &e);
    return s;
}

static const float logits[VOCAB] = {0.5f, 2, -1, 2, 0, 1.5f, -30, 1};

/* softmax(logits / temperature) of what stays, the rest 0 */
static void theory(double p[VOCAB], double temperature, const bool stays[VOCAB])
{
    double sum = 0;

    for (int i = 0; i < VOCAB; i++)
        sum += p[i] = stays[i] ? exp((double)logits[i] / temperature) : 0;
    for (int i = 0; i < VOCAB; i++)
        p[i] /= sum;
}

/* Pearson's chi-square of so many draws; of 7 degrees of freedom at most, 30 is passed by one seed
 * in 10,000. */
static void check_distribution(const acr_sampling *how, const bool stays[VOCAB])
{
    acr_sampler *s = make_sampler(VOCAB);
    int64_t count[VOCAB] = {0};
    double p[VOCAB], chi = 0;

    theory(p, how->temperature, stays);
    for (uint64_t i = 0; i < DRAWS; i++) {
        int64_t id = acr_sample(s, how, ACR_DTYPE_F32, logits, i / 100, i % 100);
        assert_in_range(id, 0, VOCAB - 1);
        count[id]++;
    }
    for (int i = 0; i < VOCAB; i++) {
        double expected = p[i] * DRAWS;
        if (!stays[i])
            assert_int_equal(count[i], 0);
        else if (expected > 1)
            chi += ((double)count[i] - expected) * ((double)count[i] - expected) / expected;
    }
    assert_true(chi < 30);
    acr_sampler_free(s);
}

static const bool all[VOCAB] = {true, true, true, true, true, true, true, true};

static void draws_as_softmax_says(void **state)
{
    const double temperatures[] = {0.3, 1, 3};

    (void)state;
    for (int i = 0; i < ACR_COUNT(temperatures); i++)
        check_distribution(
            &(acr_sampling){.temperature = temperatures[i], .top_p = 1, .seed = 7 + (uint64_t)i},
            all);
}

/* At temperature 1 the probabilities of 1, 3, 5, 7, 0, 4 are 0.300, 0.300, 0.182, 0.110, 0.067,
 * 0.041. */
static void keeps_the_nucleus_alone(void **state)
{
    const struct {
        double top_p;
        bool stays[VOCAB];
    } cases[] = {
        {1e-9, {[1] = true}}, /* of the two likeliest, the lower id */
        {0.29, {[1] = true}},
        {0.45, {[1] = true, [3] = true}},
        {0.62, {[1] = true, [3] = true, [5] = true}},
        {0.9, {[0] = true, [1] = true, [3] = true, [5] = true, [7] = true}},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++)
        check_distribution(
            &(acr_sampling){.temperature = 1, .top_p = cases[i].top_p, .seed = (uint64_t)i},
            cases[i].stays);
}

/* Four equal tokens: the sum passes any share at whole quarters, which f64 has exactly. */
static void cuts_equals_by_their_ids(void **state)
{
    const double equal[4] = {1, 1, 1, 1};
    const struct {
        double top_p;
        int64_t last;
    } cases[] = {{0.25, 0}, {0.250001, 1}, {0.5, 1}, {0.75, 2}, {0.76, 3}, {1, 3}};
    acr_sampler *s = make_sampler(4);

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        const acr_sampling how = {.temperature = 1, .top_p = cases[i].top_p, .seed = 3};
        int64_t highest = -1;
        for (uint64_t k = 0; k < 1000; k++) {
            int64_t id = acr_sample(s, &how, ACR_DTYPE_F64, equal, k, 0);
            highest = id > highest ? id : highest;
        }
        assert_int_equal(highest, cases[i].last);
    }
    acr_sampler_free(s);
}

static void takes_the_greatest_without_temperature(void **state)
{
    const acr_sampling how = {.top_p = 0.5, .seed = 1};
    double wide[VOCAB];
    acr_sampler *s = make_sampler(VOCAB);

    (void)state;
    for (int i = 0; i < VOCAB; i++)
        wide[i] = (double)logits[i];
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(acr_sample(s, &how, ACR_DTYPE_F32, logits, i, i), 1); /* as good as 3 */
    assert_int_equal(acr_sample(s, &how, ACR_DTYPE_F64, wide, 0, 0), 1);
    wide[3] = nextafter(2, 3); /* which f32 has no room for */
    assert_int_equal(acr_sample(s, &how, ACR_DTYPE_F64, wide, 0, 0), 3);
    acr_sampler_free(s);
}

/* So cold that every other token's probability is 0 in f64, and so hot that all are alike. */
static void bears_extreme_temperatures(void **state)
{
    acr_sampling how = {.temperature = 1e-300, .top_p = 1, .seed = 5};
    const float two[2] = {1, 0.999f};
    int64_t first = 0;
    acr_sampler *s = make_sampler(2);

    (void)state;
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(acr_sample(s, &how, ACR_DTYPE_F32, two, i, 0), 0);
    how.top_p = 0.999;
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(acr_sample(s, &how, ACR_DTYPE_F32, two, i, 0), 0);
    how = (acr_sampling){.temperature = 1e300, .top_p = 1, .seed = 5};
    for (uint64_t i = 0; i < 10000; i++)
        first += acr_sample(s, &how, ACR_DTYPE_F32, two, i, 0) == 0;
    assert_in_range(first, 4700, 5300);
    acr_sampler_free(s);
}

static void depends_on_its_key_alone(void **state)
{
    const acr_sampling how = {.temperature = 2, .top_p = 0.95, .seed = 11};
    const acr_sampling other_seed = {.temperature = 2, .top_p = 0.95, .seed = 12};
    acr_sampler *a = make_sampler(VOCAB), *b = make_sampler(VOCAB);
    int64_t rows = 0, positions = 0, seeds = 0;

    (void)state;
    for (uint64_t i = 0; i < 500; i++) {
        int64_t id = acr_sample(a, &how, ACR_DTYPE_F32, logits, i, 40);
        rows += id != acr_sample(a, &how, ACR_DTYPE_F32, logits, i + 1, 40);
        positions += id != acr_sample(a, &how, ACR_DTYPE_F32, logits, i, 41);
        seeds += id != acr_sample(a, &other_seed, ACR_DTYPE_F32, logits, i, 40);
        assert_int_equal(acr_sample(b, &how, ACR_DTYPE_F32, logits, i, 40), id);
    }
    assert_in_range(rows, 200, 500); /* about seven in nine differ */
    assert_in_range(positions, 200, 500);
    assert_in_range(seeds, 200, 500);
    acr_sampler_free(a);
    acr_sampler_free(b);
}

static void refuses_logits_that_say_nothing(void **state)
{
    const float inf = (float)INFINITY, nan_ = (float)NAN;
    const float bad[][3] = {{1, nan_, 0}, {1, inf, 0}, {-inf, -inf, -inf}};
    const float one[3] = {-inf, 0, -inf};
    const acr_sampling greedy = {.top_p = 1}, warm = {.temperature = 1, .top_p = 0.9};
    acr_sampler *s = make_sampler(3);

    (void)state;
    for (int i = 0; i < ACR_COUNT(bad); i++) {
        assert_int_equal(acr_sample(s, &greedy, ACR_DTYPE_F32, bad[i], 0, 0), -1);
        assert_int_equal(acr_sample(s, &warm, ACR_DTYPE_F32, bad[i], 0, 0), -1);
    }
    assert_int_equal(acr_sample(s, &greedy, ACR_DTYPE_F32, one, 0, 0), 1);
    assert_int_equal(acr_sample(s, &warm, ACR_DTYPE_F32, one, 0, 0), 1);
    acr_sampler_free(s);
}

static void refuses_values_out_of_range(void **state)
{
    const acr_sampling bad_t[] = {{-0.1, 1, 0}, {(double)NAN, 1, 0}, {(double)INFINITY, 1, 0}};
    const acr_sampling bad_p[] = {{1, 0, 0}, {1, -1, 0}, {1, 1.01, 0}, {1, (double)NAN, 0}};
    acr_sampler *s = NULL;
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(bad_t); i++)
        assert_fails(acr_sampling_check(&bad_t[i], "x", &e), ACCRUE_EINVAL, &e, "x: temperature",
                     NULL);
    for (int i = 0; i < ACR_COUNT(bad_p); i++)
        assert_fails(acr_sampling_check(&bad_p[i], "x", &e), ACCRUE_EINVAL, &e, "x: top-p", NULL);
    assert_ok(acr_sampling_check(&(acr_sampling){0, 1, 0}, "x", &e), &e);
    assert_fails(acr_sampler_create(&s, 0, &e), ACCRUE_EINVAL, &e, "0 tokens", NULL);
    for (uint64_t n = 1; n <= 3; n++) {
        acr_fail_allocation(n);
        assert_fails(acr_sampler_create(&s, 10, &e), ACCRUE_ENOMEM, &e, "sampling", NULL);
    }
    acr_fail_allocation(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_as_softmax_says),
        cmocka_unit_test(keeps_the_nucleus_alone),
        cmocka_unit_test(cuts_equals_by_their_ids),
        cmocka_unit_test(takes_the_greatest_without_temperature),
        cmocka_unit_test(bears_extreme_temperatures),
        cmocka_unit_test(depends_on_its_key_alone),
        cmocka_unit_test(refuses_logits_that_say_nothing),
        cmocka_unit_test(refuses_values_out_of_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
