/* vector.h - vectors of the width that the including source is compiled for.
 *
 * cpu_f32.c and cpu_f64.c define ACR_KERNEL_F64 as 0 or 1, then include this and the kernels
 * (*.inc); everything below is static, so no name carries its width.  Vectors are GNU C vectors as
 * wide as the instruction set allows.  No function here depends on the number of threads. */
#ifndef ACR_KERNEL_VECTOR_H
#define ACR_KERNEL_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __FMA__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif

#if ACR_KERNEL_F64
typedef double real;
typedef int64_t lane_int;
#define REAL_FMA fma
#ifdef FP_FAST_FMA
#define REAL_HAS_FMA 1
#endif
#else
typedef float real;
typedef int32_t lane_int;
#define REAL_FMA fmaf
#ifdef FP_FAST_FMAF
#define REAL_HAS_FMA 1
#endif
#endif

enum { LANES = VEC_BYTES / (int)sizeof(real) };

typedef real vec __attribute__((vector_size(VEC_BYTES)));
typedef lane_int ivec __attribute__((vector_size(VEC_BYTES)));
typedef real vec_unaligned
    __attribute__((vector_size(VEC_BYTES), aligned(sizeof(real)), may_alias));

#define INLINE static inline __attribute__((always_inline, unused))

INLINE vec v_set(real x)
{
    return x - (vec){0}; /* not 0 + x, which would turn -0 into 0 */
}

/* v in a register, where a compiler would rather load it again for each use. */
INLINE vec v_keep(vec v)
{
#if defined(__x86_64__)
    __asm__("" : "+v"(v));
#elif defined(__aarch64__)
    __asm__("" : "+w"(v));
#endif
    return v;
}

/* p, of which the compiler no longer knows what it has read there. */
INLINE const void *forget(const void *p)
{
#if defined(__GNUC__)
    __asm__("" : "+r"(p));
#endif
    return p;
}

/* a * b + c, fused where the machine can. */
INLINE vec v_fma(vec a, vec b, vec c)
{
#if defined(__AVX512F__) && ACR_KERNEL_F64
    return (vec)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__) && ACR_KERNEL_F64
    return (vec)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(REAL_HAS_FMA)
    vec r = {0};
    for (int i = 0; i < LANES; i++)
        r[i] = REAL_FMA(a[i], b[i], c[i]);
    return r;
#else
    return a * b + c;
#endif
}

INLINE vec v_select(ivec mask, vec yes, vec no)
{
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

/* Of equal or unordered operands, b. */
INLINE vec v_max(vec a, vec b)
{
    return v_select((ivec)(a > b), a, b);
}

INLINE vec v_min(vec a, vec b)
{
    return v_select((ivec)(a < b), a, b);
}

INLINE vec v_abs(vec a)
{
    return v_max(a, -a);
}

/* The first `left` elements (all LANES of them when there are as many), the rest `fill`. */
INLINE vec v_load(const real *p, int64_t left, real fill)
{
    vec v = v_set(fill);

    if (left >= LANES)
        return *(const vec_unaligned *)p;
    memcpy(&v, p, (size_t)left * sizeof(real));
    return v;
}

INLINE void v_store(real *p, int64_t left, vec v)
{
    if (left >= LANES)
        *(vec_unaligned *)p = v;
    else
        memcpy(p, &v, (size_t)left * sizeof(real));
}

/* Lanes in order: always the same sum. */
INLINE double v_sum(vec v)
{
    double s = 0;

    for (int i = 0; i < LANES; i++)
        s += (double)v[i];
    return s;
}

INLINE real v_largest(vec v)
{
    real m = v[0];

    for (int i = 1; i < LANES; i++)
        m = v[i] > m ? v[i] : m;
    return m;
}

/* to[c, r] = from[r, c] for 8 rows and 8 columns, which lie `ld` and `to_ld` apart. */
INLINE void transpose8(const real *from, int64_t ld, real *to, int64_t to_ld)
{
    typedef real row8 __attribute__((vector_size(8 * sizeof(real))));
    typedef real row8_unaligned
        __attribute__((vector_size(8 * sizeof(real)), aligned(sizeof(real)), may_alias));
    row8 r[8], t[8], u[8];

    for (int i = 0; i < 8; i++)
        r[i] = *(const row8_unaligned *)(from + i * ld);
    for (int i = 0; i < 8; i += 2) { /* pairs of rows, then fours, then eights */
        t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int h = 0; h < 2; h++) {
            u[i + 2 * h] =
                __builtin_shufflevector(t[i + h], t[i + h + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            u[i + 2 * h + 1] =
                __builtin_shufflevector(t[i + h], t[i + h + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        *(row8_unaligned *)(to + i * to_ld) =
            __builtin_shufflevector(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(row8_unaligned *)(to + (i + 4) * to_ld) =
            __builtin_shufflevector(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* to[c, r] = from[r, c]: `cols` rows of `width`, of which the first `rows` exist, the rest 0. */
INLINE void transpose_rows(const real *from, int64_t ld, int64_t rows, int64_t cols, real *to,
                           int64_t width)
{
    const int64_t whole_rows = rows / 8 * 8, whole_cols = cols / 8 * 8;

    for (int64_t r = 0; r < whole_rows; r += 8)
        for (int64_t c = 0; c < whole_cols; c += 8)
            transpose8(from + r * ld + c, ld, to + c * width + r, width);
    for (int64_t r = 0; r < width; r++)
        for (int64_t c = r < whole_rows ? whole_cols : 0; c < cols; c++)
            to[c * width + r] = r < rows ? from[r * ld + c] : (real)0;
}

/* exp(x), within 1.1 ulp; 0 below the smallest subnormal, infinity above the largest number, NaN
 * for NaN.  x = n ln2 + r with |r| <= ln2 / 2; exp(r) = 1 + r + r^2 (1/2 + r/6 + ...), Taylor's
 * series as far as its remainder counts; 2^n in two factors, so that subnormals round once. */
INLINE vec v_exp(vec x)
{
#if ACR_KERNEL_F64
    const real lowest = -746, highest = 710, round = 0x1.8p52;
    const real ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;
    const lane_int bias = 1023;
    enum { FRACTION = 52, TERMS = 14 };
#else
    const real lowest = -105, highest = 89, round = 0x1.8p23f;
    const real ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    const lane_int bias = 127;
    enum { FRACTION = 23, TERMS = 8 };
#endif
    static const double inverse_factorial[] = {1.0,
                                               1.0,
                                               1.0 / 2,
                                               1.0 / 6,
                                               1.0 / 24,
                                               1.0 / 120,
                                               1.0 / 720,
                                               1.0 / 5040,
                                               1.0 / 40320,
                                               1.0 / 362880,
                                               1.0 / 3628800,
                                               1.0 / 39916800,
                                               1.0 / 479001600,
                                               1.0 / 6227020800.0};
    vec n, r, q;
    ivec exponent, half;

    x = v_select((ivec)(x < lowest), v_set(lowest), x);
    x = v_select((ivec)(x > highest), v_set(highest), x);
    n = v_fma(x, v_set((real)1.4426950408889634), v_set(round));
    exponent = (ivec)n - (ivec)v_set(round);
    n -= round;
    r = v_fma(n, v_set(-ln2_high), x);
    r = v_fma(n, v_set(-ln2_low), r);
    q = v_set((real)inverse_factorial[TERMS - 1]);
    for (int i = TERMS - 2; i >= 2; i--)
        q = v_fma(q, r, v_set((real)inverse_factorial[i]));
    q = v_fma(r * r, q, r) + (real)1;
    half = exponent >> 1;
    return q * (vec)((half + bias) << FRACTION) * (vec)((exponent - half + bias) << FRACTION);
}

/* log(1 + u) for 0 <= u <= 1: 2 atanh(s) with s = u / (2 + u) <= 1/3. */
INLINE vec v_log1p(vec u)
{
    enum { TERMS = ACR_KERNEL_F64 ? 17 : 8 };
    vec s = u / (u + (real)2), s2 = s * s, q = v_set((real)(1.0 / (2 * TERMS - 1)));

    for (int i = TERMS - 2; i >= 0; i--)
        q = v_fma(q, s2, v_set((real)(1.0 / (2 * i + 1))));
    return (real)2 * s * q;
}

#endif
