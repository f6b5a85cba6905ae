/* gemm_plain.c - the GEMM context of a build without oneDNN 2: there is nothing to keep, and bf16
 * products run in gemm.inc like all others.  CMake takes this file or gemm.c. */
#include "kernel/gemm.h"

struct acr_gemm {
    bool unused;
};

accrue_status acr_gemm_create(acr_gemm **out, accrue_error *err)
{
    *out = acr_calloc(1, sizeof **out);
    return *out ? ACCRUE_OK : acr_enomem(err, sizeof **out, "GEMM context");
}

void acr_gemm_free(acr_gemm *g)
{
    acr_free(g);
}

accrue_status acr_gemm_status(const acr_gemm *g, accrue_error *err)
{
    (void)g;
    (void)err;
    return ACCRUE_OK;
}

bool acr_gemm_uses_onednn(const acr_gemm *g)
{
    (void)g;
    return false;
}

void acr_gemm_force_onednn(acr_gemm *g, bool on)
{
    (void)g;
    (void)on;
}

void acr_gemm_onednn(acr_gemm *g, const acr_gemm_args *args)
{
    (void)g;
    (void)args;
}

void acr_gemm_prepare(acr_gemm *g, const acr_gemm_args *args)
{
    (void)g;
    (void)args;
}
