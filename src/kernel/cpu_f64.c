/* cpu_f64.c - the f64 backend: the kernels of the *.inc files compiled for this width. */
#define ACR_KERNEL_F64 1

#include "kernel/gemm.h"
#include "kernel/vector.h"

#include "kernel/rowwise.inc"

#include "kernel/gemm.inc"

#include "kernel/packed.inc"

#include "kernel/attention.inc"

#include "kernel/kv.inc"

#include "kernel/loss.inc"

const acr_backend acr_cpu_f64 = {
    .name = "cpu_f64",
    .real = ACR_DTYPE_F64,
#include "kernel/table.inc"
};
