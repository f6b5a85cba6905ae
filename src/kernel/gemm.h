/* gemm.h - the matrix products behind the backend tables; see kernel.h for the arguments. */
#ifndef ACR_KERNEL_GEMM_H
#define ACR_KERNEL_GEMM_H

#include "kernel/kernel.h"

void acr_gemm_f32(acr_gemm *g, const acr_gemm_args *args); /* oneDNN; bf16 as well */
void acr_gemm_f64(acr_gemm *g, const acr_gemm_args *args); /* OpenBLAS */

/* Once a process: OpenBLAS must not start threads of its own below ours. */
void acr_gemm_f64_setup(void);

#endif
