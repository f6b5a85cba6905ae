/* The vector functions compiled for f64. */
#define ACR_KERNEL_F64 1
#include "kernel_exp.inc"
