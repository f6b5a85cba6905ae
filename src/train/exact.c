/* exact.c - sums that do not depend on the order of their terms.
 *
 * Each term is rounded once, on its own, to a multiple of 2^-70, and from there on everything is
 * the addition of integers.  A sum is two of them: of the term's nearest multiple of 2^-23 and of
 * what that leaves, so that neither overflows for up to ACR_EXACT_TERMS terms below 2^24. */
#include "train/train.h"

#include <math.h>
#include <string.h>

static const double high_unit = 0x1p-23, low_unit = 0x1p-70;

enum { CHUNK = 16384 };

/* The nearest integer to x, |x| < 2^51: adding 1.5 * 2^52 leaves it in the lowest bits. */
static inline int64_t nearest(double x)
{
    const double shift = 0x1.8p52;
    double shifted = x + shift;
    int64_t bits = 0, zero = 0;

    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&zero, &shift, sizeof zero);
    return bits - zero;
}

static inline void add_term(acr_exact *sum, double x)
{
    int64_t high = nearest(x / high_unit);

    sum->high += high;
    sum->low += nearest((x - (double)high * high_unit) / low_unit);
}

void acr_exact_add(acr_exact *sum, acr_dtype t, const void *terms, int64_t n)
{
    if (t == ACR_DTYPE_F64)
        for (int64_t i = 0; i < n; i++)
            add_term(&sum[i], ((const double *)terms)[i]);
    else
        for (int64_t i = 0; i < n; i++)
            add_term(&sum[i], (double)((const float *)terms)[i]);
}

void acr_exact_merge(acr_exact *sum, const acr_exact *other, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        sum[i].high += other[i].high;
        sum[i].low += other[i].low;
    }
}

void acr_exact_value(acr_dtype t, void *out, const acr_exact *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = (double)sum[i].high * high_unit + (double)sum[i].low * low_unit;
        if (t == ACR_DTYPE_F64)
            ((double *)out)[i] = x;
        else
            ((float *)out)[i] = (float)x;
    }
}

int64_t acr_find_unfit(acr_dtype t, const void *x, int64_t n, double limit)
{
    for (int64_t i = 0; i < n; i++) {
        double v = t == ACR_DTYPE_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
        if (!(fabs(v) < limit))
            return i;
    }
    return -1;
}

/* On the pool ------------------------------------------------------------------------------- */

typedef struct work {
    acr_exact *sum;
    acr_dtype type;
    const void *terms;
    void *out;
    int64_t n;
} work;

static int64_t length(const work *w, int64_t i)
{
    return w->n - i * CHUNK < CHUNK ? w->n - i * CHUNK : CHUNK;
}

static void add_task(int64_t i, void *ctx)
{
    const work *w = ctx;

    acr_exact_add(w->sum + i * CHUNK, w->type,
                  (const char *)w->terms + (size_t)(i * CHUNK) * acr_dtype_bytes(w->type),
                  length(w, i));
}

static void value_task(int64_t i, void *ctx)
{
    const work *w = ctx;

    acr_exact_value(w->type, (char *)w->out + (size_t)(i * CHUNK) * acr_dtype_bytes(w->type),
                    w->sum + i * CHUNK, length(w, i));
}

void acr_exact_add_all(acr_exact *sum, acr_dtype t, const void *terms, int64_t n)
{
    work w = {.sum = sum, .type = t, .terms = terms, .n = n};

    acr_parallel((n + CHUNK - 1) / CHUNK, add_task, &w);
}

void acr_exact_value_all(acr_dtype t, void *out, acr_exact *sum, int64_t n)
{
    work w = {.sum = sum, .type = t, .out = out, .n = n};

    acr_parallel((n + CHUNK - 1) / CHUNK, value_task, &w);
}
