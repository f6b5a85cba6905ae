/* backend.c - choice of a backend table, names of losses. */
#include "kernel/kernel.h"

const acr_backend *acr_backend_for(acr_dtype real)
{
    return real == ACR_DTYPE_F64 ? &acr_cpu_f64 : &acr_cpu_f32;
}

const char *acr_loss_name(acr_loss_kind k)
{
    static const char *const names[ACR_LOSS_COUNT] = {[ACR_LOSS_KL_DIV] = "kl_div",
                                                      [ACR_LOSS_RKL] = "rkl",
                                                      [ACR_LOSS_JSD] = "jsd",
                                                      [ACR_LOSS_CE] = "ce",
                                                      [ACR_LOSS_TV] = "tv",
                                                      [ACR_LOSS_NLA] = "nla",
                                                      [ACR_LOSS_LK_HYBRID] = "lk_hybrid"};

    return names[k];
}
