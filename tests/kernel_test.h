/* kernel_test.h - arrays of either width for the kernel tests. */
#ifndef KERNEL_TEST_H
#define KERNEL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/kernel.h"

static const acr_backend *const widths[] = {&acr_cpu_f64, &acr_cpu_f32};

/* The n-th of a fixed sequence, roughly normal. */
static inline double draw(uint64_t stream, int64_t n)
{
    return acr_random_normal(7, ACR_RANDOM_INIT, stream, (uint64_t)n);
}

static inline double *random_doubles(uint64_t stream, int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (double)(float)draw(stream, i); /* the same numbers in both widths */
    return x;
}

static inline void *reals(const acr_backend *be, const double *x, int64_t n)
{
    void *r = calloc((size_t)n + 1, be->real_bytes);

    assert_non_null(r);
    if (x)
        acr_convert(be->real, r, ACR_DTYPE_F64, x, n);
    return r;
}

static inline double at(const acr_backend *be, const void *x, int64_t i)
{
    return be->real == ACR_DTYPE_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

/* |x - expected| <= tolerance * (1 + |expected|) for every element; NaN never passes. */
static inline void check_close(const acr_backend *be, const void *x, const double *expected,
                               int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        double difference = fabs(at(be, x, i) - expected[i]);
        if (!(difference <= tolerance * (1 + fabs(expected[i]))))
            fail_msg("%s: element %lld is %.17g, expected %.17g", be->name, (long long)i,
                     at(be, x, i), expected[i]);
    }
}

static inline double tolerance_of(const acr_backend *be, double f64, double f32)
{
    return be->real == ACR_DTYPE_F64 ? f64 : f32;
}

#endif
