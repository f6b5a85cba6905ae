/* cpu_f32.c - the f32 backend: the kernels of the *.inc files compiled for this width. */
#define ACR_KERNEL_F64 0

#include "kernel/gemm.h"
#include "kernel/vector.h"

#include "kernel/rowwise.inc"

#include "kernel/gemm.inc"

#include "kernel/packed.inc"

#include "kernel/attention.inc"

#include "kernel/kv.inc"

#include "kernel/loss.inc"

const acr_backend acr_cpu_f32 = {
    .name = "cpu_f32",
    .real = ACR_DTYPE_F32,
#include "kernel/table.inc"
};
