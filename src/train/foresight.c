/* foresight.c - what a run tells of itself before its first step, beside its steps: the model, the
 * ranks, and the memory that all of it will take. */
#include "train/train.h"

void acr_plan_model(accrue_run *run)
{
    acr_model *m = run->setup.model;

    run->plan.params = acr_model_elements(m, false);
    run->plan.trainable_params = acr_model_elements(m, true);
    run->plan.vocab_size = m->config.vocab_size;
    run->plan.draft_vocab_size = m->config.draft_vocab_size;
    run->plan.vocab_built = run->setup.vocab_built;
}

/* Masters, moments and accumulated gradients that this rank keeps; with `moments`, these alone. */
static int64_t state_bytes(const accrue_run *run, bool moments)
{
    const acr_model *m = run->setup.model;
    int64_t n = 0;

    for (int i = 0; i < acr_window_n_states(run->window); i++)
        n += acr_window_state(run->window, i).n;
    for (int i = 0; i < m->n_params && !moments; i++)
        if (m->params[i].trainable)
            n += 2 * acr_model_share(m, &m->params[i]).n;
    return n * (int64_t)acr_dtype_bytes(m->real);
}

/* What each rank takes beside what it has by now: moments, and the two micro-batches of a
 * loader. */
static int64_t bytes_to_come(const accrue_run *run)
{
    const acr_model *m = run->setup.model;
    const int64_t width = (m->config.n_aux + 1) * m->config.hidden_size;

    return state_bytes(run, true) +
           2 * run->opt.total_seq_len * width * (int64_t)acr_dtype_bytes(m->real);
}

/* Live bytes hold masters, accumulators, copies and the arena, those of all ranks that are threads
 * of this process. */
static accrue_status predict_peak(accrue_run *run, accrue_error *err)
{
    const acr_param *embed = run->setup.model->top.embed;
    const int64_t program = 24 << 20; /* the binary, its libraries and compiled kernels */
    const int64_t own = bytes_to_come(run);
    const bool in_process = acr_comm_in_process(run->comm);
    int64_t *all = acr_calloc((size_t)run->ranks, sizeof *all);
    accrue_status st = ACCRUE_OK;

    if (!all)
        return acr_enomem(err, (size_t)run->ranks * sizeof *all, "the run");
    ACR_TRY(acr_comm_share(run->comm, "the memory that is needed", &own, sizeof own, all, err));
    run->plan.peak_bytes = (int64_t)acr_allocated_bytes() + program;
    for (int r = 0; r < run->ranks; r++)
        run->plan.peak_bytes += in_process || r == run->rank ? all[r] : 0;
    if (embed->frozen)
        run->plan.peak_bytes +=
            embed->rows * embed->cols * (int64_t)acr_dtype_bytes(embed->frozen_type);

cleanup:
    acr_free(all);
    return st;
}

accrue_status acr_plan_memory(accrue_run *run, accrue_error *err)
{
    run->plan.ranks = run->ranks;
    run->plan.sharded = run->setup.model->sharding.ranks > 1;
    run->plan.window = run->window_n;
    run->plan.rank_bytes = state_bytes(run, false);
    run->plan.passing_bytes = acr_dist_bytes(run->dist, &run->plan.deferred_bytes);
    return predict_peak(run, err);
}
