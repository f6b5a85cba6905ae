/* optim_parts.h - what optim.c and muon.c share: the element loops in both widths, and how they are
 * run over arrays. */
#ifndef ACR_OPTIM_PARTS_H
#define ACR_OPTIM_PARTS_H

#include "train/train.h"

#include <math.h>
#include <string.h>

typedef struct adamw_args {
    double factor, keep, beta1, beta2, eps;
    double root_bias2; /* sqrt(1 - beta2^step) */
    double step_size;  /* lr / (1 - beta1^step) */
} adamw_args;

enum { LANES = 32 }; /* of a sum of squares; hides the latency of an addition */

/* Round to nearest even on the upper 16 bits; finite input. */
static inline float round_bf16(float x)
{
    uint32_t bits = 0;

    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#ifdef FP_FAST_FMAF
#define MULTIPLY_ADD(a, b, c) fmaf(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif
#define REAL    float
#define NAME(x) x##_f32
#define SQRT    sqrtf
#include "train/optim_width.h"
#undef REAL
#undef NAME
#undef SQRT
#undef MULTIPLY_ADD

#ifdef FP_FAST_FMA
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif
#define REAL    double
#define NAME(x) x##_f64
#define SQRT    sqrt
#include "train/optim_width.h"
#undef REAL
#undef NAME
#undef SQRT
#undef MULTIPLY_ADD

/* Element `i` of an array of that type. */
static inline void *at(void *array, acr_dtype t, int64_t i)
{
    return (char *)array + (size_t)i * acr_dtype_bytes(t);
}

static inline const void *at_const(const void *array, acr_dtype t, int64_t i)
{
    return (const char *)array + (size_t)i * acr_dtype_bytes(t);
}

/* Runs task(i) for i in [0, n), on this thread where there is too little to do: waking the pool for
 * a few kilobytes costs more than they do, and much more on a machine that is busy. */
static inline void spread(int64_t elements, int64_t n, acr_task task, void *ctx)
{
    if (elements > 2 * ACR_BLOCK)
        acr_parallel(n, task, ctx);
    else
        for (int64_t i = 0; i < n; i++)
            task(i, ctx);
}

static inline int64_t blocks_in(int64_t elements)
{
    return (elements + ACR_BLOCK - 1) / ACR_BLOCK;
}

#endif
