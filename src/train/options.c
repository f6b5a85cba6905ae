/* options.c - defaults of accrue_train_options and what no run could accept. */
#include "train/train.h"

#include <math.h>
#include <string.h>

void accrue_train_options_init(accrue_train_options *opt, size_t struct_size)
{
    accrue_train_options d = {
        .seed = 42,
        .comm_timeout = 600,
        .norm_before_residual = true,
        .norm_before_fc = -1,
        .norm_output = -1,
        .sliding_window = 2048,
        .data_path = "./output",
        .total_seq_len = 8192,
        .train_data_ratio = 0.9,
        .compute = ACCRUE_BF16,
        .on_missing = ACCRUE_POLICY_RAISE,
        .on_bad = ACCRUE_POLICY_RAISE,
        .max_bad = -1,
        .check_bytes = INT64_C(1) << 30,
        .lock_timeout = 10,
        .loss_fn = "kl_div",
        .ttt_steps = 3,
        .ttt_step_loss_decay = 1.0,
        .scheduler_warmup_steps = -1,
        .scheduler_warmup_ratio = (double)NAN,
        .accumulation_tail = ACCRUE_TAIL_DROP,
        .epochs = 20,
        .checkpoint_freq = 1.0,
        .best_metric = ACCRUE_BEST_LOSS,
        .on_save_error = ACCRUE_POLICY_RAISE,
        .log_freq = 1,
        .save_path = "./output/checkpoints",
        .on_nonfinite = ACCRUE_POLICY_RAISE,
    };

    accrue_window_options_init(&d.window, sizeof d.window);
    d.struct_size = struct_size;
    if (struct_size > sizeof d)
        memset(opt, 0, struct_size);
    memcpy(opt, &d, struct_size < sizeof d ? struct_size : sizeof d);
}

#define MAX_WINDOW INT64_C(1000000000) /* that nothing overflows */

static const int64_t max_epochs = 100000; /* all are planned before the first */

static accrue_status at_least(const char *flag, int64_t value, int64_t least, accrue_error *err)
{
    return value >= least ? ACCRUE_OK
                          : acr_fail(err, ACCRUE_EINVAL, "%s: %lld, at least %lld expected", flag,
                                     (long long)value, (long long)least);
}

static accrue_status check_text(const char *flag, const char *value, accrue_error *err)
{
    return value && *value ? ACCRUE_OK : acr_fail(err, ACCRUE_EINVAL, "%s: a value expected", flag);
}

static accrue_status check_choice(const char *flag, int value, int last, accrue_error *err)
{
    return value >= 1 && value <= last
               ? ACCRUE_OK
               : acr_fail(err, ACCRUE_EINVAL, "%s: choice %d, 1 to %d expected", flag, value, last);
}

static accrue_status check_values(const accrue_train_options *opt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(check_text("--data-path", opt->data_path, err));
    ACR_TRY(check_text("--save-path", opt->save_path, err));
    ACR_TRY(check_text("--loss-fn", opt->loss_fn, err));
    ACR_TRY(
        check_choice("--accumulation-tail", (int)opt->accumulation_tail, ACCRUE_TAIL_STEP, err));
    ACR_TRY(check_choice("--hidden-states-dtype", (int)opt->compute, ACCRUE_BF16, err));
    ACR_TRY(check_choice("--on-missing", (int)opt->on_missing, ACCRUE_POLICY_EXTRACT, err));
    ACR_TRY(check_choice("--on-bad", (int)opt->on_bad, ACCRUE_POLICY_SKIP, err));
    ACR_TRY(at_least("--max-bad", opt->max_bad, -1, err));
    ACR_TRY(at_least("--check-bytes", opt->check_bytes, 0, err));
    if (!(opt->lock_timeout >= 0) || isinf(opt->lock_timeout))
        st = acr_fail(err, ACCRUE_EINVAL, "--lock-timeout: %g, at least 0 expected",
                      opt->lock_timeout);
    if (st)
        goto cleanup;
    ACR_TRY(check_choice("--on-nonfinite", (int)opt->on_nonfinite, ACCRUE_POLICY_SKIP, err));
    ACR_TRY(check_choice("--best-metric", (int)opt->best_metric, ACCRUE_BEST_ACCEPTANCE, err));
    ACR_TRY(check_choice("--on-save-error", (int)opt->on_save_error, ACCRUE_POLICY_SKIP, err));

cleanup:
    return st;
}

static accrue_status check_draft(const accrue_train_options *opt, accrue_error *err)
{
    if (!opt->verifier || !*opt->verifier)
        return acr_fail(err, ACCRUE_EINVAL, "--verifier-name-or-path: a folder expected");
    if (opt->fc_norm && opt->norm_before_fc != 0)
        return acr_fail(err, ACCRUE_EINVAL,
                        "--fc-norm excludes --norm-before-fc: give --no-norm-before-fc with it");
    if (opt->from_pretrained && opt->draft_config)
        return acr_fail(err, ACCRUE_EINVAL,
                        "--from-pretrained \"%s\" excludes --draft-config \"%s\"",
                        opt->from_pretrained, opt->draft_config);
    if (opt->resume_from && opt->no_resume)
        return acr_fail(err, ACCRUE_EINVAL,
                        "--resume-from \"%s\" excludes --no-resume-from-checkpoint",
                        opt->resume_from);
    if (!opt->d2t_path != !opt->t2d_path)
        return acr_fail(err, ACCRUE_EINVAL, "%s is given without %s",
                        opt->d2t_path ? "--d2t-path" : "--t2d-path",
                        opt->d2t_path ? "--t2d-path" : "--d2t-path");
    return ACCRUE_OK;
}

static accrue_status check_schedule(const accrue_train_options *opt, accrue_error *err)
{
    if (opt->scheduler_warmup_steps >= 0 && !isnan(opt->scheduler_warmup_ratio))
        return acr_fail(err, ACCRUE_EINVAL,
                        "--scheduler-warmup-steps %lld excludes --scheduler-warmup-ratio %g",
                        (long long)opt->scheduler_warmup_steps, opt->scheduler_warmup_ratio);
    if (!isnan(opt->scheduler_warmup_ratio) &&
        !(opt->scheduler_warmup_ratio >= 0 && opt->scheduler_warmup_ratio <= 1))
        return acr_fail(err, ACCRUE_EINVAL, "--scheduler-warmup-ratio: %g, 0 to 1 expected",
                        opt->scheduler_warmup_ratio);
    if (opt->max_steps < 0)
        return at_least("--max-steps", opt->max_steps, 1, err);
    if (opt->scheduler_total_steps < 0)
        return at_least("--scheduler-total-steps", opt->scheduler_total_steps, 1, err);
    return ACCRUE_OK;
}

/* As many micro-batches as exact sums have room for. */
static accrue_status check_ranks(const accrue_train_options *opt, accrue_error *err)
{
    const int ranks = opt->ranks > 1 ? opt->ranks : accrue_comm_size(opt->comm);
    const int64_t n = opt->window.gradient_accumulation_steps;
    int64_t window = 0;

    if (opt->ranks < 0 || opt->ranks > ACR_MAX_RANKS)
        return acr_fail(err, ACCRUE_EINVAL, "--ranks: %d, 1 to %d expected", opt->ranks,
                        ACR_MAX_RANKS);
    if (opt->comm && opt->ranks > 1)
        return acr_fail(err, ACCRUE_EINVAL,
                        "--ranks %d: this is rank %d of a job of %d; ranks as threads are for a "
                        "process alone",
                        opt->ranks, accrue_comm_rank(opt->comm), accrue_comm_size(opt->comm));
    if (opt->global_window < 0)
        return at_least("--global-window", opt->global_window, 1, err);
    if (n > MAX_WINDOW / ranks || opt->global_window > MAX_WINDOW)
        return acr_fail(err, ACCRUE_EINVAL,
                        "a window of %lld micro-batches on each of %d ranks, at most %lld in all "
                        "expected",
                        (long long)(opt->global_window ? opt->global_window / ranks : n), ranks,
                        (long long)MAX_WINDOW);
    if (opt->global_window % ranks)
        return acr_fail(err, ACCRUE_EINVAL,
                        "--global-window: %lld is no multiple of the number of ranks, %d",
                        (long long)opt->global_window, ranks);
    if (opt->defer_reduce && !opt->fsdp_shard)
        return acr_fail(err, ACCRUE_EINVAL, "--defer-reduce goes with --fsdp-shard");
    if (!(opt->comm_timeout >= 0) || isinf(opt->comm_timeout))
        return acr_fail(err, ACCRUE_EINVAL, "--comm-timeout: %g, at least 0 expected",
                        opt->comm_timeout);
    window = opt->global_window ? opt->global_window : n * ranks;
    if (opt->reproducible && window > ACR_EXACT_TERMS)
        return acr_fail(err, ACCRUE_EINVAL,
                        "--reproducible: a window of %lld micro-batches, at most %d expected",
                        (long long)window, (int)ACR_EXACT_TERMS);
    return ACCRUE_OK;
}

void acr_train_options_resolve(accrue_train_options *out, const accrue_train_options *given)
{
    const int ranks = given->ranks > 1 ? given->ranks : accrue_comm_size(given->comm);

    *out = *given;
    if (given->global_window)
        out->window.gradient_accumulation_steps = given->global_window / ranks;
}

accrue_status acr_train_options_check(const accrue_train_options *opt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (opt->struct_size != sizeof *opt)
        return acr_fail(err, ACCRUE_EINVAL, "options of %zu bytes, %zu expected", opt->struct_size,
                        sizeof *opt);
    ACR_TRY(
        at_least("--gradient-accumulation-steps", opt->window.gradient_accumulation_steps, 1, err));
    ACR_TRY(check_ranks(opt, err));
    ACR_TRY(at_least("--total-seq-len", opt->total_seq_len, 2, err));
    ACR_TRY(at_least("--ttt-steps", opt->ttt_steps, 1, err));
    ACR_TRY(at_least("--log-freq", opt->log_freq, 1, err));
    ACR_TRY(at_least("--epochs", opt->epochs, 1, err));
    ACR_TRY(at_least("--keep", opt->keep, 0, err));
    ACR_TRY(at_least("--sliding-window", opt->sliding_window, 1, err));
    ACR_TRY(at_least("--draft-vocab-size", opt->draft_vocab_size, 0, err));
    if (opt->epochs > max_epochs)
        st = acr_fail(err, ACCRUE_EINVAL, "--epochs: %lld, at most %lld expected",
                      (long long)opt->epochs, (long long)max_epochs);
    else if (opt->ttt_steps > ACCRUE_MAX_TTT_STEPS)
        st = acr_fail(err, ACCRUE_EINVAL, "--ttt-steps: %d, at most %d expected", opt->ttt_steps,
                      ACCRUE_MAX_TTT_STEPS);
    else if (!(opt->train_data_ratio > 0 && opt->train_data_ratio <= 1))
        st = acr_fail(err, ACCRUE_EINVAL, "--train-data-ratio: %g, above 0 and at most 1 expected",
                      opt->train_data_ratio);
    else if (!(opt->ttt_step_loss_decay > 0) || isinf(opt->ttt_step_loss_decay))
        st = acr_fail(err, ACCRUE_EINVAL, "--ttt-step-loss-decay: %g, above 0 expected",
                      opt->ttt_step_loss_decay);
    else if (!(opt->checkpoint_freq > 0) || isinf(opt->checkpoint_freq))
        st = acr_fail(err, ACCRUE_EINVAL, "--checkpoint-freq: %g, above 0 expected",
                      opt->checkpoint_freq);
    if (st)
        goto cleanup;
    ACR_TRY(check_values(opt, err));
    ACR_TRY(check_draft(opt, err));
    ACR_TRY(check_schedule(opt, err));

cleanup:
    return st;
}

accrue_status acr_train_options_check_together(const accrue_train_options *opt, accrue_error *err)
{
    accrue_error why = {0};
    accrue_status st = acr_train_options_check(opt, &why);

    if (st && opt->struct_size == sizeof *opt) /* else there is no telling where its comm is */
        st = acr_comm_fail(opt->comm, st, &why);
    return st ? acr_fail(err, st, "%s", why.message) : ACCRUE_OK;
}
