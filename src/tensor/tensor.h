/* tensor.h - element types of files and of arrays in memory, and conversion between them. */
#ifndef ACR_TENSOR_H
#define ACR_TENSOR_H

#include "base/base.h"

/* Element types as files name them (safetensors spelling). */
typedef enum acr_dtype {
    ACR_DTYPE_BOOL = 0,
    ACR_DTYPE_U8,
    ACR_DTYPE_I32,
    ACR_DTYPE_I64,
    ACR_DTYPE_F16,
    ACR_DTYPE_BF16,
    ACR_DTYPE_F32,
    ACR_DTYPE_F64,
    ACR_DTYPE_COUNT
} acr_dtype;

size_t acr_dtype_bytes(acr_dtype t);
const char *acr_dtype_name(acr_dtype t); /* "BF16" */
bool acr_dtype_parse(acr_dtype *out, const char *name);
bool acr_dtype_is_float(acr_dtype t);

enum { ACR_MAX_DIMS = 8 };

/* A named array in a file or in memory; `data` is borrowed and may be unaligned. */
typedef struct acr_tensor {
    const char *name;
    acr_dtype dtype;
    int n_dims;
    int64_t dims[ACR_MAX_DIMS];
    const void *data;
    size_t bytes;
} acr_tensor;

int64_t acr_tensor_elements(const acr_tensor *t);
/* "[576, 1728]" into `out`, which is returned. */
enum { ACR_SHAPE_TEXT = 192 };
const char *acr_shape_text(char out[ACR_SHAPE_TEXT], int n_dims, const int64_t *dims);

/* Conversions, round to nearest even; source or destination may be unaligned.  NaN stays NaN. */
uint16_t acr_bf16_from_f32(float x);
float acr_f32_from_bf16(uint16_t x);
uint16_t acr_f16_from_f32(float x);
float acr_f32_from_f16(uint16_t x);
/* Any float type to f32 or f64 and back.  `from` or `to` must be F32 or F64. */
void acr_convert(acr_dtype to, void *out, acr_dtype from, const void *in, int64_t n);
/* Index of the first element that is NaN or infinite, -1 when all are finite. */
int64_t acr_find_nonfinite(acr_dtype t, const void *data, int64_t n);

/* The array type in which a compute dtype keeps activations and masters: F32 or F64. */
acr_dtype acr_real_of(accrue_dtype compute);

#endif
