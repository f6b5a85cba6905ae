/* gemm.h - bf16 products on matrix units, beside the kernel of gemm.inc. */
#ifndef ACR_KERNEL_GEMM_H
#define ACR_KERNEL_GEMM_H

#include "kernel/kernel.h"

/* Whether f32 products with args->bf16 go to acr_gemm_onednn; they do where there is AMX.  Tests
 * force it, since oneDNN's vector code takes the same path; that needs AVX-512, and without it, or
 * in a build without oneDNN, nothing changes. */
bool acr_gemm_uses_onednn(const acr_gemm *g);
void acr_gemm_force_onednn(acr_gemm *g, bool on);
void acr_gemm_onednn(acr_gemm *g, const acr_gemm_args *args);

#endif
