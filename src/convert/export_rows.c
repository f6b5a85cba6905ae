/* export_rows.c - a draft's weights in the types and the order of a GGUF file's. */
#include "convert/export_parts.h"

#include <math.h>
#include <string.h>

/* llama.cpp turns neighbours where transformers turns halves: row 2j + s of a head is row
 * s * size/2 + j of the checkpoint's. */
static int64_t source_row(int64_t row, int64_t rows, int heads)
{
    int64_t size = heads ? rows / heads : 1;
    int64_t at = row % size;

    return heads ? row - at + at % 2 * (size / 2) + at / 2 : row;
}

static accrue_status fail_value(const acr_export *e, const acr_tensor *from, int64_t element,
                                const char *type, accrue_error *err)
{
    double value = 0;

    acr_convert(ACR_DTYPE_F64, &value, from->dtype,
                (const uint8_t *)from->data + (size_t)element * acr_dtype_bytes(from->dtype), 1);
    if (!isfinite(value))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: tensor '%s': element %lld is %g",
                        e->opt->checkpoint, from->name, (long long)element, value);
    return acr_fail(err, ACCRUE_EMISMATCH,
                    "%s: tensor '%s': element %lld is %g, more than %s holds", e->opt->checkpoint,
                    from->name, (long long)element, value, type);
}

/* The first of n values that becomes infinite as `type`; -1: none. */
static int64_t find_too_large(acr_gguf_type type, const float *row, const void *out, int64_t n)
{
    if (type == ACR_GGUF_F16 || type == ACR_GGUF_BF16)
        return acr_find_nonfinite(type == ACR_GGUF_F16 ? ACR_DTYPE_F16 : ACR_DTYPE_BF16, out, n);
    for (int64_t i = 0; type == ACR_GGUF_Q8_0 && i < n; i++)
        if (acr_f16_from_f32(fabsf(row[i]) / 127.0F) == 0x7C00)
            return i;
    return -1;
}

static accrue_status convert(const acr_export *e, void *out, acr_gguf_type type,
                             const acr_tensor *from, int64_t first, int64_t n, accrue_error *err)
{
    const uint8_t *in = (const uint8_t *)from->data + (size_t)first * acr_dtype_bytes(from->dtype);
    const char *name = type == ACR_GGUF_F16 ? "F16" : type == ACR_GGUF_BF16 ? "BF16" : "Q8_0";
    int64_t bad = acr_find_nonfinite(from->dtype, in, n);

    if (bad >= 0)
        return fail_value(e, from, first + bad, name, err);
    acr_convert(ACR_DTYPE_F32, e->row, from->dtype, in, n);
    bad = acr_find_nonfinite(ACR_DTYPE_F32, e->row, n);
    if (bad >= 0)
        return fail_value(e, from, first + bad, "F32", err);
    if (type == ACR_GGUF_Q8_0)
        acr_gguf_quantize_q8_0(out, e->row, n);
    else if (type == ACR_GGUF_F32)
        memcpy(out, e->row, (size_t)n * sizeof *e->row);
    else
        acr_convert(type == ACR_GGUF_F16 ? ACR_DTYPE_F16 : ACR_DTYPE_BF16, out, ACR_DTYPE_F32,
                    e->row, n);
    bad = find_too_large(type, e->row, out, n);
    return bad >= 0 ? fail_value(e, from, first + bad, name, err) : ACCRUE_OK;
}

static accrue_status tell(acr_export *e, size_t bytes, accrue_error *err)
{
    e->progress.done += (int64_t)bytes;
    e->progress.bytes = e->progress.done;
    e->progress.seconds = acr_seconds() - e->began;
    if (e->cb && e->cb(&e->progress, e->payload))
        return acr_fail(err, ACCRUE_ECANCELED, "%s: stopped after %lld of %lld bytes", e->opt->out,
                        (long long)e->progress.done, (long long)e->progress.total);
    return ACCRUE_OK;
}

accrue_status acr_export_rows(void *out, const acr_gguf_tensor *t, int64_t first, int64_t n,
                              void *ctx, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_export *e = ctx;
    const acr_export_tensor *s = &e->sources[t - e->tensors];
    const size_t row = t->bytes / (size_t)t->dims[0];
    const int64_t columns = t->n_dims == 2 ? t->dims[1] : 1;

    if (!s->from)
        memcpy(out, (const uint8_t *)s->values + (size_t)first * row, (size_t)n * row);
    else if (t->n_dims == 1)
        ACR_TRY(convert(e, out, t->type, s->from, first, n, err));
    else
        for (int64_t i = 0; i < n; i++)
            ACR_TRY(convert(e, (uint8_t *)out + (size_t)i * row, t->type, s->from,
                            source_row(first + i, t->dims[0], s->heads) * columns, columns, err));
    ACR_TRY(tell(e, (size_t)n * row, err));

cleanup:
    return st;
}
