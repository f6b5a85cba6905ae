/* dequant.c - the block formats of GGUF, as f32.
 *
 * Every format multiplies small integers by a scale of the block (f16), and some add a minimum.
 * The operations and their order are those of the format's definition, in f32 and without fused
 * multiply-add, so that the values have the same bits wherever they are computed. */
#include "data/data.h"

#include <string.h>

enum { SMALL = 32, LARGE = 256 };

static float f16_at(const uint8_t *p)
{
    uint16_t h = 0;

    memcpy(&h, p, sizeof h);
    return acr_f32_from_f16(h);
}

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t x = 0;

    memcpy(&x, p, sizeof x);
    return x;
}

/* Element i has the low half of byte i, element i + 16 the high one. */
static void q4_0(float *out, const uint8_t *b)
{
    const float d = f16_at(b);

    for (int i = 0; i < SMALL / 2; i++) {
        out[i] = d * (float)((b[2 + i] & 15) - 8);
        out[i + SMALL / 2] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

static void q4_1(float *out, const uint8_t *b)
{
    const float d = f16_at(b), m = f16_at(b + 2);

    for (int i = 0; i < SMALL / 2; i++) {
        out[i] = d * (float)(b[4 + i] & 15) + m;
        out[i + SMALL / 2] = d * (float)(b[4 + i] >> 4) + m;
    }
}

/* The fifth bit of element i is bit i of a word. */
static void q5_0(float *out, const uint8_t *b)
{
    const float d = f16_at(b);
    const uint32_t high = u32_at(b + 2);

    for (int i = 0; i < SMALL / 2; i++) {
        int low = (b[6 + i] & 15) | (int)(high >> i & 1) << 4;
        int top = b[6 + i] >> 4 | (int)(high >> (i + SMALL / 2) & 1) << 4;
        out[i] = d * (float)(low - 16);
        out[i + SMALL / 2] = d * (float)(top - 16);
    }
}

static void q5_1(float *out, const uint8_t *b)
{
    const float d = f16_at(b), m = f16_at(b + 2);
    const uint32_t high = u32_at(b + 4);

    for (int i = 0; i < SMALL / 2; i++) {
        int low = (b[8 + i] & 15) | (int)(high >> i & 1) << 4;
        int top = b[8 + i] >> 4 | (int)(high >> (i + SMALL / 2) & 1) << 4;
        out[i] = d * (float)low + m;
        out[i + SMALL / 2] = d * (float)top + m;
    }
}

static void q8_0(float *out, const uint8_t *b)
{
    const float d = f16_at(b);

    for (int i = 0; i < SMALL; i++)
        out[i] = d * (float)(int8_t)b[2 + i];
}

/* Scales and minima of eight groups in twelve bytes, six bits each: of the first four groups in
 * bytes 0 to 3 and 4 to 7; of the others the low bits in 8 to 11, the two high bits above those. */
static void k_scales(int scale[8], int minimum[8], const uint8_t *s)
{
    for (int i = 0; i < 4; i++) {
        scale[i] = s[i] & 63;
        minimum[i] = s[i + 4] & 63;
        scale[i + 4] = (s[i + 8] & 15) | (s[i] >> 6) << 4;
        minimum[i + 4] = s[i + 8] >> 4 | (s[i + 4] >> 6) << 4;
    }
}

/* Groups of 32; two neighbours share 32 bytes, one the low halves and one the high.  `high` (may be
 * NULL) has the fifth bit of element i of group g as bit g of byte i. */
static void k_groups(float *out, const uint8_t *head, const uint8_t *high, const uint8_t *q)
{
    const float d = f16_at(head), dmin = f16_at(head + 2);
    int scale[8], minimum[8];

    k_scales(scale, minimum, head + 4);
    for (int g = 0; g < 8; g++) {
        const float factor = d * (float)scale[g], below = dmin * (float)minimum[g];
        const uint8_t *bytes = q + g / 2 * 32;
        for (int i = 0; i < 32; i++) {
            int x = g % 2 ? bytes[i] >> 4 : bytes[i] & 15;
            if (high)
                x |= (high[i] >> g & 1) << 4;
            out[32 * g + i] = factor * (float)x - below;
        }
    }
}

static void q4_k(float *out, const uint8_t *b)
{
    k_groups(out, b, NULL, b + 16);
}

static void q5_k(float *out, const uint8_t *b)
{
    k_groups(out, b, b + 16, b + 48);
}

/* Two halves of 128; in each, four groups of 32 take the halves of 64 bytes and two bits each of
 * another 32; every 16 elements have a scale. */
static void q6_k(float *out, const uint8_t *b)
{
    const float d = f16_at(b + 208);

    for (int half = 0; half < 2; half++) {
        const uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half;
        const uint8_t *scales = b + 192 + 8 * half;
        for (int g = 0; g < 4; g++)
            for (int i = 0; i < 32; i++) {
                int nibble = low[32 * (g % 2) + i] >> (g < 2 ? 0 : 4) & 15;
                int x = nibble | (high[i] >> 2 * g & 3) << 4;
                float scale = d * (float)(int8_t)scales[2 * g + i / 16];
                out[128 * half + 32 * g + i] = scale * (float)(x - 32);
            }
    }
}

static const struct format {
    const char *name;
    int block;
    size_t bytes;
    void (*dequantize)(float *out, const uint8_t *block); /* NULL: plain numbers */
    acr_dtype plain;
} formats[] = {
    [ACR_GGUF_F32] = {"F32", 1, 4, NULL, ACR_DTYPE_F32},
    [ACR_GGUF_F16] = {"F16", 1, 2, NULL, ACR_DTYPE_F16},
    [ACR_GGUF_Q4_0] = {"Q4_0", SMALL, 18, q4_0, ACR_DTYPE_COUNT},
    [ACR_GGUF_Q4_1] = {"Q4_1", SMALL, 20, q4_1, ACR_DTYPE_COUNT},
    [ACR_GGUF_Q5_0] = {"Q5_0", SMALL, 22, q5_0, ACR_DTYPE_COUNT},
    [ACR_GGUF_Q5_1] = {"Q5_1", SMALL, 24, q5_1, ACR_DTYPE_COUNT},
    [ACR_GGUF_Q8_0] = {"Q8_0", SMALL, 34, q8_0, ACR_DTYPE_COUNT},
    [ACR_GGUF_Q4_K] = {"Q4_K", LARGE, 144, q4_k, ACR_DTYPE_COUNT},
    [ACR_GGUF_Q5_K] = {"Q5_K", LARGE, 176, q5_k, ACR_DTYPE_COUNT},
    [ACR_GGUF_Q6_K] = {"Q6_K", LARGE, 210, q6_k, ACR_DTYPE_COUNT},
    [ACR_GGUF_I32] = {"I32", 1, 4, NULL, ACR_DTYPE_I32},
    [ACR_GGUF_I64] = {"I64", 1, 8, NULL, ACR_DTYPE_I64},
    [ACR_GGUF_F64] = {"F64", 1, 8, NULL, ACR_DTYPE_F64},
    [ACR_GGUF_BF16] = {"BF16", 1, 2, NULL, ACR_DTYPE_BF16},
};

const char *acr_gguf_type_name(acr_gguf_type t)
{
    return (int)t >= 0 && (int)t < ACR_COUNT(formats) ? formats[t].name : NULL;
}

int acr_gguf_block(acr_gguf_type type, size_t *bytes)
{
    *bytes = formats[type].bytes;
    return formats[type].block;
}

size_t acr_gguf_bytes(acr_gguf_type type, int64_t n)
{
    return (size_t)(n / formats[type].block) * formats[type].bytes;
}

bool acr_gguf_plain(acr_gguf_type type, acr_dtype *out)
{
    *out = formats[type].plain;
    return !formats[type].dequantize;
}

void acr_gguf_dequantize(acr_gguf_type type, const void *blocks, int64_t n, float *out)
{
    const struct format *f = &formats[type];
    const uint8_t *b = blocks;

    if (!f->dequantize) {
        acr_convert(ACR_DTYPE_F32, out, f->plain, blocks, n);
        return;
    }
    for (int64_t i = 0; i < n; i += f->block, b += f->bytes)
        f->dequantize(out + i, b);
}
