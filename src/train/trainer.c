/* trainer.c - accrue_train: the loop over epochs around the pieces of run.c, with validation and
 * the rules of when a checkpoint is written, which are the Python trainer's. */
#include "train/train.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Only links of this epoch are touched. */
static accrue_status unlink_epoch_links(const char *save_path, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    DIR *d = opendir(save_path);
    struct dirent *entry = NULL;
    char prefix[48];

    snprintf(prefix, sizeof prefix, "epoch%lld_", (long long)epoch);
    while (d && !st && (entry = readdir(d)) != NULL)
        if (entry->d_type == DT_LNK && strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
            unlinkat(dirfd(d), entry->d_name, 0) != 0)
            st = acr_fail_errno(err, errno, "cannot remove the link", entry->d_name);
    if (d)
        closedir(d);
    return st;
}

static accrue_status link_epoch(const char *save_path, int64_t epoch, int64_t local_step,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char name[48], link[64];

    snprintf(name, sizeof name, "%lld", (long long)epoch);
    if (local_step)
        snprintf(link, sizeof link, "epoch%s_step%lld", name, (long long)local_step);
    else
        snprintf(link, sizeof link, "epoch%s_end", name);
    ACR_TRY(unlink_epoch_links(save_path, epoch, err));
    ACR_TRY(acr_checkpoint_link(save_path, link, name, err));

cleanup:
    return st;
}

static accrue_status link_best(const char *save_path, int64_t epoch, accrue_error *err)
{
    char name[48];

    snprintf(name, sizeof name, "%lld", (long long)epoch);
    return acr_checkpoint_link(save_path, "checkpoint_best", name, err);
}

static accrue_status save(accrue_run *run, const accrue_metrics *val, bool concluded,
                          accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char name[48];

    snprintf(name, sizeof name, "%lld", (long long)run->epoch);
    run->val = val;
    run->concluded = concluded;
    st = accrue_run_save(run, name, err);
    run->val = NULL;
    run->concluded = false;
    if (st)
        goto cleanup;
    ACR_TRY(link_epoch(run->opt.save_path, run->epoch, accrue_run_next(run) ? run->next : 0, err));

cleanup:
    return st;
}

static bool at_max_steps(const accrue_run *run)
{
    return run->opt.max_steps && accrue_window_global_step(run->window) >= run->opt.max_steps;
}

static accrue_status train_epoch(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_train_options *opt = &run->opt;
    const int64_t n = opt->window.gradient_accumulation_steps;
    int64_t steps = accrue_steps_per_epoch(run->current.n, n, opt->accumulation_tail);

    while (accrue_run_next(run) && !at_max_steps(run)) {
        ACR_TRY(accrue_run_forward_backward(run, NULL, err));
        ACR_TRY(accrue_run_clip(run, NULL, err));
        ACR_TRY(accrue_run_step(run, NULL, err));
        accrue_run_lr_step(run);
        accrue_run_zero_grad(run);
        if (run->next % n == 0 && opt->checkpoint_freq < 1 && !opt->save_best &&
            accrue_checkpoint_due(run->next / n, steps, opt->checkpoint_freq))
            ACR_TRY(save(run, NULL, false, err));
    }

cleanup:
    return st;
}

static accrue_status remove_checkpoint(const accrue_run *run, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *dir = acr_sprintf("%s/%lld", run->opt.save_path, (long long)epoch);

    if (!dir)
        return acr_enomem(err, strlen(run->opt.save_path), "a path");
    st = unlink_epoch_links(run->opt.save_path, epoch, err);
    if (!st)
        acr_checkpoint_remove(dir);
    acr_free(dir);
    return st;
}

/* An epoch that --max-steps cuts short is shown as the best but not remembered as such: a run that
 * goes on from there has yet to end it. */
static accrue_status save_epoch(accrue_run *run, const accrue_metrics *val, double loss,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_train_options *opt = &run->opt;
    bool best = loss < run->best_loss;
    int64_t superseded = -1;

    if (best && !accrue_run_next(run)) {
        if (opt->save_best && run->best_epoch != run->epoch)
            superseded = run->best_epoch;
        run->best_loss = loss;
        run->best_epoch = run->epoch;
    }
    run->superseded = superseded;
    run->is_best = best;
    st = save(run, val, true, err);
    run->superseded = -1;
    run->is_best = false;
    if (st)
        goto cleanup;
    if (best)
        ACR_TRY(link_best(opt->save_path, run->epoch, err));
    if (superseded >= 0)
        ACR_TRY(remove_checkpoint(run, superseded, err));

cleanup:
    return st;
}

/* With --save-best only an epoch that beats all before it is kept; otherwise the first epoch, every
 * checkpoint_freq-th, and the one that --max-steps cuts short. */
static accrue_status end_epoch(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_train_options *opt = &run->opt;
    accrue_metrics val = {0};
    bool validated = run->plan.val_rows > 0;
    double loss = HUGE_VAL;
    bool due = false;

    if (validated) {
        ACR_TRY(accrue_run_validate(run, &val, err));
        ACR_TRY(acr_emit(run, ACCRUE_EVENT_VALIDATION, &val, NULL, err));
        if (val.loss_total > 0)
            loss = val.loss_sum / val.loss_total;
    }
    due = opt->checkpoint_freq < 1 || run->epoch == 0 || at_max_steps(run) ||
          (run->epoch + 1) % (int64_t)opt->checkpoint_freq == 0;
    if (opt->save_best && validated)
        due = loss < run->best_loss;
    if (due)
        ACR_TRY(save_epoch(run, validated ? &val : NULL, loss, err));

cleanup:
    return st;
}

/* Counted maps are kept beside the data, where the Python trainer looks for them too; a read-only
 * folder is no reason to stop, as every checkpoint carries the maps. */
static accrue_status keep_maps(accrue_run *run, const char *data_path, accrue_error *err)
{
    accrue_error why = {0};

    if (!run->setup.vocab_built || !acr_vocab_write(&run->setup.model->vocab, data_path, &why))
        return ACCRUE_OK;
    return acr_notice(run, err, "the vocabulary maps were not written: %s", why.message);
}

/* A value that no run could use is found before the first step, under its flag's name. */
static accrue_status make_save_path(const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *inside = acr_sprintf("%s/.", path);

    if (!inside)
        return acr_enomem(err, strlen(path), "a path");
    acr_checkpoint_parents(inside, NULL);
    if (!acr_is_dir(path) || access(path, W_OK | X_OK) != 0)
        st = acr_fail(err, ACCRUE_EINVAL, "--save-path: %s is no folder that can be written to: %s",
                      path, acr_is_dir(path) ? "permission denied" : "it cannot be made");
    acr_free(inside);
    return st;
}

/* What the run that wrote the checkpoint may not have come to: links, and the end of the checkpoint
 * that this one is better than.  The best so far of a cut epoch counts only where it stays cut. */
static accrue_status complete_save(accrue_run *run, const acr_resume *from, bool finished,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *save_path = run->opt.save_path;
    const acr_training_state *s = &from->state;
    int64_t best = finished && s->is_best ? s->epoch : s->best_epoch;
    char name[48];
    char *best_dir = acr_sprintf("%s/%lld", save_path, (long long)best);

    if (!best_dir)
        return acr_enomem(err, strlen(save_path), "a path");
    snprintf(name, sizeof name, "/%lld", (long long)s->epoch);
    if (run->opt.resume_from || strcmp(strrchr(from->dir, '/'), name) != 0)
        goto cleanup;
    ACR_TRY(link_epoch(save_path, s->epoch, s->local_step, err));
    if (best >= 0 && acr_is_dir(best_dir))
        ACR_TRY(link_best(save_path, best, err));
    if (s->superseded_epoch >= 0)
        ACR_TRY(remove_checkpoint(run, s->superseded_epoch, err));

cleanup:
    acr_free(best_dir);
    return st;
}

/* Where training begins: micro-batch `from` of `epoch`, -1 for its end with the validation to come.
 * Behind the last epoch there is nothing to do. */
typedef struct start {
    int64_t epoch, from;
    bool finished;
} start;

static start find_start(const accrue_run *run, const acr_resume *from)
{
    const acr_training_state *s = &from->state;
    start at = {0};

    if (!run->resumed)
        return at;
    at.epoch = s->epoch;
    at.from = s->local_step ? s->local_step : -1;
    if (!s->local_step && s->concluded)
        at = (start){.epoch = s->epoch + 1};
    at.finished = at.epoch >= run->opt.epochs || (at_max_steps(run) && s->concluded);
    return at;
}

static accrue_status resume(accrue_run *run, const acr_resume *found, start *at, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < found->n_notes; i++)
        ACR_TRY(acr_notice(run, err, "%s", found->notes[i]));
    run->generation = found->generation;
    if (found->dir && !found->weights_only)
        ACR_TRY(acr_run_load(run, found, err));
    *at = find_start(run, found);
    if (run->resumed && !at->finished) {
        run->epoch = at->epoch; /* for the event */
        run->next = at->from < 0 ? 0 : at->from;
    } else if (run->resumed) {
        run->epoch = found->state.epoch + 1;
    }
    ACR_TRY(acr_emit(run, ACCRUE_EVENT_START, NULL, NULL, err));
    if (found->weights_only)
        ACR_TRY(acr_notice(run, err,
                           "%s: a speculators checkpoint: its weights are the beginning of a new "
                           "run, its optimizer state is not read",
                           found->dir));
    if (run->resumed && !at->finished)
        ACR_TRY(acr_notice(run, err, "goes on from %s: epoch %lld, micro-batch %lld, step %lld",
                           found->dir, (long long)at->epoch, (long long)run->next,
                           (long long)found->state.global_step));
    if (run->resumed)
        ACR_TRY(complete_save(run, found, at->finished, err));
    if (at->finished)
        ACR_TRY(acr_notice(run, err,
                           "%s: this training is finished, at step %lld of epoch %lld; nothing is "
                           "left to train",
                           found->dir, (long long)found->state.global_step,
                           (long long)found->state.epoch));

cleanup:
    return st;
}

accrue_status accrue_train(const accrue_train_options *given, accrue_event_cb cb, void *payload,
                           accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_train_options opt;
    acr_resume found = {0};
    accrue_run *run = NULL;
    start at = {0};

    ACR_TRY(acr_train_options_check(given, err));
    opt = *given;
    ACR_TRY(acr_resume_find(&found, &opt, err));
    if (found.weights_only)
        opt.from_pretrained = found.dir;
    ACR_TRY(acr_run_open(&run, &opt, found.weights_only ? NULL : found.dir, cb, payload, err));
    if (opt.dump_batch_plan)
        ACR_TRY(acr_epochs_dump(&run->epochs, opt.epochs, opt.dump_batch_plan, err));
    ACR_TRY(make_save_path(opt.save_path, err));
    ACR_TRY(resume(run, &found, &at, err));
    acr_checkpoint_clean(opt.save_path);
    if (at.finished)
        goto cleanup;
    ACR_TRY(acr_left_out_told(run, err));
    ACR_TRY(keep_maps(run, opt.data_path, err));
    for (int64_t epoch = at.epoch; epoch < opt.epochs; epoch++, at.from = 0) {
        if (at_max_steps(run) && !at.from)
            break;
        ACR_TRY(acr_run_epoch_from(run, epoch, at.from, err));
        ACR_TRY(train_epoch(run, err));
        ACR_TRY(end_epoch(run, err));
    }

cleanup:
    accrue_run_free(run);
    acr_resume_free(&found);
    return st;
}

accrue_status accrue_train_dry_run(accrue_train_plan *out, const accrue_train_options *opt,
                                   accrue_event_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_checkpoint_content content = {.state = NULL};
    char *aside = NULL;
    accrue_run *run = NULL;

    memset(out, 0, sizeof *out);
    if (opt->resume_from)
        return acr_fail(err, ACCRUE_EINVAL, "--resume-from \"%s\": a dry run goes on from nothing",
                        opt->resume_from);
    ACR_TRY(acr_train_options_check(opt, err));
    ACR_TRY(acr_checkpoint_vacant(opt->save_path, err));
    ACR_TRY(accrue_run_open(&run, opt, cb, payload, err));
    if (opt->dump_batch_plan)
        ACR_TRY(acr_epochs_dump(&run->epochs, opt->epochs, opt->dump_batch_plan, err));
    ACR_TRY(
        acr_checkpoint_write(opt->save_path, run->setup.model, &run->tape, &content, &aside, err));
    ACR_TRY(acr_emit(run, ACCRUE_EVENT_CHECKPOINT, NULL, opt->save_path, err));
    *out = run->plan;

cleanup:
    acr_free(aside);
    accrue_run_free(run);
    return st;
}
