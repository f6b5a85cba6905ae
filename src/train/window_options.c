/* window_options.c - defaults of accrue_window_options and what no window could accept. */
#include "train/train.h"

#include <math.h>
#include <string.h>

void accrue_window_options_init(accrue_window_options *opt, size_t struct_size)
{
    accrue_window_options d = {
        .gradient_accumulation_steps = 1,
        .loss_normalization = ACCRUE_NORMALIZE_MICROBATCH,
        .clip_norm = 1.0,
        .optimizer = ACCRUE_MUON,
        .lr = 1e-3,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .weight_decay = 0.01,
        .muon_lr = (double)NAN,
        .muon_momentum = 0.95,
        .muon_weight_decay = 0.1,
        .muon_ns_steps = 5,
        .muon_adjust = ACCRUE_MUON_MATCH_RMS_ADAMW,
        .scheduler = ACCRUE_SCHEDULE_LINEAR,
        .num_cosine_cycles = 0.5,
    };

    if (struct_size > sizeof d) {
        memset(opt, 0, struct_size);
        memcpy(opt, &d, sizeof d);
    } else {
        memcpy(opt, &d, struct_size);
    }
    if (struct_size >= sizeof opt->struct_size)
        opt->struct_size = struct_size;
}

static accrue_status check_whole(const char *field, int64_t value, int64_t least, accrue_error *err)
{
    if (value >= least)
        return ACCRUE_OK;
    return acr_fail(err, ACCRUE_EINVAL, "%s: %lld, at least %lld expected", field, (long long)value,
                    (long long)least);
}

/* [least, below), or [least, infinity) for below = HUGE_VAL; NaN is outside. */
static accrue_status check_real(const char *field, double value, double least, double below,
                                accrue_error *err)
{
    if (value >= least && value < below)
        return ACCRUE_OK;
    if (isinf(below))
        return acr_fail(err, ACCRUE_EINVAL, "%s: %g, a finite number of at least %g expected",
                        field, value, least);
    return acr_fail(err, ACCRUE_EINVAL, "%s: %g, at least %g and below %g expected", field, value,
                    least, below);
}

static accrue_status check_choice(const char *field, int value, int first, int last,
                                  accrue_error *err)
{
    if (value >= first && value <= last)
        return ACCRUE_OK;
    return acr_fail(err, ACCRUE_EINVAL, "%s: %d, %d to %d expected", field, value, first, last);
}

accrue_status acr_window_options_check(const accrue_window_options *o, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(check_whole("gradient_accumulation_steps", o->gradient_accumulation_steps, 1, err));
    ACR_TRY(check_choice("loss_normalization", (int)o->loss_normalization,
                         ACCRUE_NORMALIZE_MICROBATCH, ACCRUE_NORMALIZE_TOKEN, err));
    ACR_TRY(check_real("clip_norm", o->clip_norm, 0.0, HUGE_VAL, err));
    ACR_TRY(check_choice("optimizer", (int)o->optimizer, ACCRUE_ADAMW, ACCRUE_MUON, err));
    ACR_TRY(check_real("lr", o->lr, 0.0, HUGE_VAL, err));
    ACR_TRY(check_real("beta1", o->beta1, 0.0, 1.0, err));
    ACR_TRY(check_real("beta2", o->beta2, 0.0, 1.0, err));
    ACR_TRY(check_real("eps", o->eps, 0.0, HUGE_VAL, err));
    ACR_TRY(check_real("weight_decay", o->weight_decay, 0.0, HUGE_VAL, err));
    if (!isnan(o->muon_lr))
        ACR_TRY(check_real("muon_lr", o->muon_lr, 0.0, HUGE_VAL, err));
    ACR_TRY(check_real("muon_momentum", o->muon_momentum, 0.0, 1.0, err));
    ACR_TRY(check_real("muon_weight_decay", o->muon_weight_decay, 0.0, HUGE_VAL, err));
    ACR_TRY(check_whole("muon_ns_steps", o->muon_ns_steps, 1, err));
    ACR_TRY(check_choice("muon_adjust", (int)o->muon_adjust, ACCRUE_MUON_ORIGINAL,
                         ACCRUE_MUON_MATCH_RMS_ADAMW, err));
    ACR_TRY(check_choice("muon_ns_dtype", (int)o->muon_ns_dtype, 0, ACCRUE_BF16, err));
    ACR_TRY(check_choice("scheduler", (int)o->scheduler, ACCRUE_SCHEDULE_LINEAR,
                         ACCRUE_SCHEDULE_NONE, err));
    ACR_TRY(check_whole("warmup_steps", o->warmup_steps, 0, err));
    /* A schedule over no steps would train at LR 0 without a word. */
    ACR_TRY(check_whole("total_steps", o->total_steps, o->scheduler == ACCRUE_SCHEDULE_NONE ? 0 : 1,
                        err));
    ACR_TRY(check_real("num_cosine_cycles", o->num_cosine_cycles, 0.0, HUGE_VAL, err));

cleanup:
    return st;
}
