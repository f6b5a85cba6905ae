/* tensor.c - element types and conversions. */
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
    bool is_float;
} types[ACR_DTYPE_COUNT] = {
    [ACR_DTYPE_BOOL] = {"BOOL", 1, false}, [ACR_DTYPE_U8] = {"U8", 1, false},
    [ACR_DTYPE_I32] = {"I32", 4, false},   [ACR_DTYPE_I64] = {"I64", 8, false},
    [ACR_DTYPE_F16] = {"F16", 2, true},    [ACR_DTYPE_BF16] = {"BF16", 2, true},
    [ACR_DTYPE_F32] = {"F32", 4, true},    [ACR_DTYPE_F64] = {"F64", 8, true},
};

size_t acr_dtype_bytes(acr_dtype t)
{
    return types[t].bytes;
}

const char *acr_dtype_name(acr_dtype t)
{
    return types[t].name;
}

bool acr_dtype_is_float(acr_dtype t)
{
    return types[t].is_float;
}

bool acr_dtype_parse(acr_dtype *out, const char *name)
{
    for (int i = 0; i < ACR_DTYPE_COUNT; i++)
        if (strcmp(types[i].name, name) == 0) {
            *out = (acr_dtype)i;
            return true;
        }
    return false;
}

acr_dtype acr_real_of(accrue_dtype compute)
{
    return compute == ACCRUE_F64 ? ACR_DTYPE_F64 : ACR_DTYPE_F32;
}

int64_t acr_tensor_elements(const acr_tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

const char *acr_shape_text(char out[ACR_SHAPE_TEXT], int n_dims, const int64_t *dims)
{
    size_t used = 0;

    used += (size_t)snprintf(out, ACR_SHAPE_TEXT, "[");
    for (int i = 0; i < n_dims && used < ACR_SHAPE_TEXT - 24; i++)
        used += (size_t)snprintf(out + used, ACR_SHAPE_TEXT - used, "%s%lld", i ? ", " : "",
                                 (long long)dims[i]);
    snprintf(out + used, ACR_SHAPE_TEXT - used, "]");
    return out;
}

static uint32_t bits_of(float x)
{
    uint32_t u = 0;

    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x = 0;

    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t acr_bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u); /* NaN: keep it quiet, do not round it to infinity */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float acr_f32_from_bf16(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

float acr_f32_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    uint32_t exponent = x >> 10 & 0x1fu;
    uint32_t fraction = x & 0x3ffu;

    if (exponent == 0) { /* zero and subnormals: fraction * 2^-24, exact in f32 */
        float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 31)
        return float_of(sign | 0x7f800000u | fraction << 13);
    return float_of(sign | (exponent + 112u) << 23 | fraction << 13);
}

uint16_t acr_f16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    float a = fabsf(x);

    if (isnan(x))
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 65520.0f) /* halfway between the largest f16 and the next step */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x1p-14f) /* subnormal: a multiple of 2^-24, rounded by the f32 adder */
        return (uint16_t)(sign | (bits_of(a + 0.5f) - bits_of(0.5f)));
    u = bits_of(a);
    u += 0xfffu + (u >> 13 & 1u);
    return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}

static double load(acr_dtype t, const unsigned char *p, int64_t i)
{
    uint16_t h = 0;
    float f = 0;
    double d = 0;

    switch (t) {
    case ACR_DTYPE_F16: memcpy(&h, p + 2 * i, 2); return (double)acr_f32_from_f16(h);
    case ACR_DTYPE_BF16: memcpy(&h, p + 2 * i, 2); return (double)acr_f32_from_bf16(h);
    case ACR_DTYPE_F32: memcpy(&f, p + 4 * i, 4); return (double)f;
    default: memcpy(&d, p + 8 * i, 8); return d;
    }
}

static void convert_from_bf16(float *out, const unsigned char *in, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = 0;
        memcpy(&h, in + 2 * i, 2);
        out[i] = acr_f32_from_bf16(h);
    }
}

static void convert_to_bf16(unsigned char *out, const float *in, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = acr_bf16_from_f32(in[i]);
        memcpy(out + 2 * i, &h, 2);
    }
}

void acr_convert(acr_dtype to, void *out, acr_dtype from, const void *in, int64_t n)
{
    unsigned char *o = out;

    if (to == from) {
        memcpy(out, in, (size_t)n * acr_dtype_bytes(to));
        return;
    }
    if (to == ACR_DTYPE_F32 && from == ACR_DTYPE_BF16) {
        convert_from_bf16(out, in, n);
        return;
    }
    if (to == ACR_DTYPE_BF16 && from == ACR_DTYPE_F32) {
        convert_to_bf16(out, in, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double x = load(from, in, i);
        float f = (float)x;
        uint16_t h = 0;

        switch (to) {
        case ACR_DTYPE_F16:
            h = acr_f16_from_f32(f);
            memcpy(o + 2 * i, &h, 2);
            break;
        case ACR_DTYPE_BF16:
            h = acr_bf16_from_f32(f);
            memcpy(o + 2 * i, &h, 2);
            break;
        case ACR_DTYPE_F32: memcpy(o + 4 * i, &f, 4); break;
        default: memcpy(o + 8 * i, &x, 8); break;
        }
    }
}

/* The first number whose exponent bits are all set; -1: none.  The loop over a block vectorises,
 * the search runs only in a block that has one. */
#define FIND(name, word, mask)                                                                     \
    static int64_t name(const unsigned char *p, int64_t n)                                         \
    {                                                                                              \
        enum { BLOCK = 4096 };                                                                     \
        for (int64_t b = 0; b < n; b += BLOCK) {                                                   \
            int64_t end = b + BLOCK < n ? b + BLOCK : n;                                           \
            word bad = 0, x = 0;                                                                   \
            for (int64_t i = b; i < end; i++) {                                                    \
                memcpy(&x, p + (size_t)i * sizeof x, sizeof x);                                    \
                bad = (word)(bad | ((x & (mask)) == (mask)));                                      \
            }                                                                                      \
            for (int64_t i = b; bad && i < end; i++) {                                             \
                memcpy(&x, p + (size_t)i * sizeof x, sizeof x);                                    \
                if ((x & (mask)) == (mask))                                                        \
                    return i;                                                                      \
            }                                                                                      \
        }                                                                                          \
        return -1;                                                                                 \
    }

FIND(find_bf16, uint16_t, 0x7f80u)
FIND(find_f16, uint16_t, 0x7c00u)
FIND(find_f32, uint32_t, 0x7f800000u)
FIND(find_f64, uint64_t, UINT64_C(0x7ff0000000000000))

int64_t acr_find_nonfinite(acr_dtype t, const void *data, int64_t n)
{
    switch (t) {
    case ACR_DTYPE_BF16: return find_bf16(data, n);
    case ACR_DTYPE_F16: return find_f16(data, n);
    case ACR_DTYPE_F32: return find_f32(data, n);
    default: return find_f64(data, n);
    }
}
