/* The vector functions compiled for f32. */
#define ACR_KERNEL_F64 0
#include "kernel_exp.inc"
