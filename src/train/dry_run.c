/* dry_run.c - accrue_train_dry_run: opens a run, writes its initialised checkpoint, and tells the
 * plan. */
#include "train/train.h"

#include <string.h>

typedef struct dry_run {
    const accrue_train_options *opt;
    accrue_event_cb cb;
    void *payload;
    accrue_train_plan plan; /* rank 0's */
} dry_run;

/* What rank 0 alone does before the run is opened. */
static accrue_status check_place(const accrue_train_options *opt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (accrue_comm_rank(opt->comm) == 0)
        st = acr_checkpoint_vacant(opt->save_path, err);
    return acr_agree(opt->comm, "the folder for the checkpoint", st, err);
}

static accrue_status write_checkpoint(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_train_options *opt = &run->opt;
    acr_save_content content = {.state = NULL};
    acr_save_result result = {0};
    acr_save *save = NULL;
    acr_model *m = run->setup.model;

    if (run->plan.sharded)
        ACR_TRY(acr_save_shared(&save, opt->save_path, m, &content, run->comm, err));
    else if (run->rank == 0)
        st = acr_save_begin(&save, opt->save_path, m, &content, err);
    if (save)
        st = acr_save_finish(save, &result, err);
    acr_free(result.aside);
    st = acr_agree(run->comm, "the checkpoint", st, err);
    run->agreed = st != ACCRUE_OK;

cleanup:
    return st;
}

static accrue_status dry(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_train_options *opt = &run->opt;

    if (opt->dump_batch_plan && run->rank == 0)
        st = acr_epochs_dump(&run->epochs, opt->epochs, opt->dump_batch_plan, err);
    st = acr_agree(run->comm, "the batch plan", st, err);
    run->agreed = st != ACCRUE_OK;
    if (st)
        goto cleanup;
    ACR_TRY(write_checkpoint(run, err));
    ACR_TRY(acr_emit(run, ACCRUE_EVENT_CHECKPOINT, NULL, opt->save_path, err));

cleanup:
    return st;
}

static accrue_status dry_rank(accrue_comm *comm, void *ctx, accrue_error *err)
{
    dry_run *d = ctx;
    const bool tells = d->opt->ranks <= 1 || accrue_comm_rank(comm) == 0;
    accrue_train_options opt = *d->opt;
    accrue_status st = ACCRUE_OK;
    accrue_error why = {0};
    accrue_run *run = NULL;

    opt.ranks = 1;
    opt.comm = comm;
    ACR_TRY(check_place(&opt, err));
    ACR_TRY(acr_run_open(&run, &opt, NULL, tells ? d->cb : NULL, tells ? d->payload : NULL, err));
    st = dry(run, &why);
    ACR_TRY(acr_run_result(run, st, &why, err));
    if (tells)
        d->plan = run->plan;

cleanup:
    accrue_run_free(run);
    return st;
}

accrue_status accrue_train_dry_run(accrue_train_plan *out, const accrue_train_options *given,
                                   accrue_event_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_train_options opt;
    dry_run d = {.opt = &opt, .cb = cb, .payload = payload};

    memset(out, 0, sizeof *out);
    if (given->resume_from)
        return acr_fail(err, ACCRUE_EINVAL, "--resume-from \"%s\": a dry run goes on from nothing",
                        given->resume_from);
    ACR_TRY(acr_train_options_check_together(given, err));
    acr_train_options_resolve(&opt, given);
    if (opt.ranks > 1)
        st = acr_ranks_run(opt.ranks, opt.comm_timeout, dry_rank, &d, err);
    else
        st = dry_rank(opt.comm, &d, err);
    if (!st)
        *out = d.plan;

cleanup:
    return st;
}
