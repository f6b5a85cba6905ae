/* Sums that do not depend on the order of their terms: to the bit, within their rounding, and at
 * the limits of what they hold. */
#include "files.h"
#include "train/train.h"

#include <math.h>

enum { TERMS = 500, N = 37 };

/* Of all sizes that gradients have, and of sizes that they do not. */
static double term(int64_t i, int64_t element)
{
    const uint64_t bits = acr_random_u64(7, ACR_RANDOM_INIT, (uint64_t)i, (uint64_t)element);
    const double size = ldexp(1.0, (int)(bits % 90) - 68);

    return ((double)(bits >> 11) * 0x1p-53 - 0.5) * size;
}

static void add_terms(acr_exact *sum, acr_dtype t, int64_t first, int64_t step, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        const int64_t i = (first + k * step) % TERMS;
        double wide[N];
        float narrow[N];
        for (int64_t e = 0; e < N; e++) {
            wide[e] = term(i, e);
            narrow[e] = (float)wide[e];
        }
        acr_exact_add(sum, t, t == ACR_DTYPE_F64 ? (const void *)wide : narrow, N);
    }
}

/* Any order, any split into parts that are merged: the same integers. */
static void the_order_leaves_no_trace(void **state)
{
    static const int64_t steps[] = {1, 3, 7, 499};

    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        const acr_dtype t = wide ? ACR_DTYPE_F64 : ACR_DTYPE_F32;
        acr_exact first[N] = {{0}};
        add_terms(first, t, 0, 1, TERMS);
        for (int s = 0; s < ACR_COUNT(steps); s++) {
            acr_exact sum[N] = {{0}}, parts[3][N] = {{{0}}};
            add_terms(sum, t, 11, steps[s], TERMS);
            assert_memory_equal(sum, first, sizeof sum);
            for (int64_t p = 0, done = 0; p < 3; done += TERMS / 3, p++)
                add_terms(parts[p], t, 11 + done * steps[s], steps[s],
                          p < 2 ? TERMS / 3 : TERMS - done);
            acr_exact_merge(parts[2], parts[0], N);
            acr_exact_merge(parts[2], parts[1], N);
            assert_memory_equal(parts[2], first, sizeof first);
        }
    }
}

/* Half of 2^-70 for each term, and one rounding of what they make. */
static void the_sum_is_rounded_once(void **state)
{
    acr_exact sum[N] = {{0}};
    double value[N];

    (void)state;
    add_terms(sum, ACR_DTYPE_F64, 0, 1, TERMS);
    acr_exact_value(ACR_DTYPE_F64, value, sum, N);
    for (int64_t e = 0; e < N; e++) {
        long double expected = 0, size = 0;
        for (int64_t i = 0; i < TERMS; i++) {
            expected += (long double)term(i, e);
            size += fabsl((long double)term(i, e));
        }
        assert_true(fabsl((long double)value[e] - expected) <=
                    (long double)TERMS * 0x1p-71L + fabsl(expected) * 0x1p-51L + size * 0x1p-60L);
    }
}

/* As many terms as there may be, as large as they may be, and as small as is kept. */
static void limits(void **state)
{
    const double most = nextafter(ACR_EXACT_LIMIT, 0), least = 0x1p-70, lost = 0x1p-72;
    acr_exact sum[4] = {{0}};
    double terms[4] = {most, -most, least, lost}, value[4];
    float narrow[4];

    (void)state;
    for (int64_t i = 0; i < ACR_EXACT_TERMS; i++)
        acr_exact_add(sum, ACR_DTYPE_F64, terms, 4);
    acr_exact_value(ACR_DTYPE_F64, value, sum, 4);
    assert_true(fabs(value[0] - most * ACR_EXACT_TERMS) <= most * ACR_EXACT_TERMS * 0x1p-52);
    assert_true(fabs(value[0] + value[1]) <= 0);
    assert_true(fabs(value[2] - least * ACR_EXACT_TERMS) <= 0);
    assert_true(fabs(value[3]) <= 0);
    acr_exact_value(ACR_DTYPE_F32, narrow, sum, 4);
    assert_true(fabs((double)narrow[2] - value[2]) <= 0);
}

static void what_does_not_fit_is_found(void **state)
{
    double x[8] = {1, -2, 0, 1e7, -16777216.0, 3, 4, 5};
    float y[8] = {1, -2, 0, 1e7F, 5, 3, 4, (float)INFINITY};

    (void)state;
    assert_int_equal(acr_find_unfit(ACR_DTYPE_F64, x, 8, ACR_EXACT_LIMIT), 4);
    x[4] = nextafter(-ACR_EXACT_LIMIT, 0);
    assert_int_equal(acr_find_unfit(ACR_DTYPE_F64, x, 8, ACR_EXACT_LIMIT), -1);
    x[2] = (double)NAN;
    assert_int_equal(acr_find_unfit(ACR_DTYPE_F64, x, 8, ACR_EXACT_LIMIT), 2);
    assert_int_equal(acr_find_unfit(ACR_DTYPE_F32, y, 8, ACR_EXACT_LIMIT), 7);
    assert_int_equal(acr_find_unfit(ACR_DTYPE_F32, y, 7, 1e6), 3);
}

/* The pool's pieces are those of one call. */
static void on_the_pool(void **state)
{
    enum { MANY = 100003 };
    acr_exact *sum = acr_calloc(MANY, sizeof *sum), *alone = acr_calloc(MANY, sizeof *alone);
    float *x = acr_calloc(MANY, sizeof *x), *value = acr_calloc(MANY, sizeof *value);

    (void)state;
    assert_true(sum && alone && x && value);
    for (int64_t i = 0; i < MANY; i++)
        x[i] = (float)term(i, 1);
    acr_exact_add_all(sum, ACR_DTYPE_F32, x, MANY);
    acr_exact_add(alone, ACR_DTYPE_F32, x, MANY);
    assert_memory_equal(sum, alone, MANY * sizeof *sum);
    acr_exact_value_all(ACR_DTYPE_F32, value, sum, MANY);
    for (int64_t i = 0; i < MANY; i++)
        if (fabsf(x[i]) >= 0x1p-46F)
            assert_true(fabsf(value[i] - x[i]) <= 0);
    acr_free(sum);
    acr_free(alone);
    acr_free(x);
    acr_free(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_leaves_no_trace),
        cmocka_unit_test(the_sum_is_rounded_once),
        cmocka_unit_test(limits),
        cmocka_unit_test(what_does_not_fit_is_found),
        cmocka_unit_test(on_the_pool),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
