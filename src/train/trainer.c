/* trainer.c - accrue_train: the loop over epochs around the pieces of run.c, with validation and
 * the rules of when a checkpoint is written, which are the Python trainer's. */
#include "train/train.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct loop {
    accrue_run *run;
    double best_loss;
    int64_t best_epoch; /* -1: none yet */
} loop;

/* A folder named by a number is a checkpoint's. */
static bool is_epoch_name(const char *name)
{
    if (!*name)
        return false;
    for (; *name; name++)
        if (!isdigit((unsigned char)*name))
            return false;
    return true;
}

/* There is no resuming yet, and an earlier run's work is never written over unasked. */
static accrue_status check_save_path(const accrue_train_options *opt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    DIR *d = opendir(opt->save_path);
    struct dirent *entry = NULL;

    while (d && !st && !opt->no_resume && (entry = readdir(d)) != NULL)
        if (is_epoch_name(entry->d_name))
            st = acr_fail(err, ACCRUE_EINVAL,
                          "%s: holds checkpoint %s; resuming is not supported yet, so give another "
                          "--save-path, or --no-resume-from-checkpoint to write over it",
                          opt->save_path, entry->d_name);
    if (d)
        closedir(d);
    return st;
}

/* Only links of this epoch are touched. */
static void unlink_epoch_links(const char *save_path, int64_t epoch)
{
    DIR *d = opendir(save_path);
    struct dirent *entry = NULL;
    char prefix[48];

    snprintf(prefix, sizeof prefix, "epoch%lld_", (long long)epoch);
    while (d && (entry = readdir(d)) != NULL)
        if (entry->d_type == DT_LNK && strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
            unlinkat(dirfd(d), entry->d_name, 0);
    if (d)
        closedir(d);
}

static accrue_status save(loop *l, const accrue_metrics *val, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_run *run = l->run;
    int64_t local_step = accrue_run_next(run) ? run->next : 0;
    char name[48], link[64];

    snprintf(name, sizeof name, "%lld", (long long)run->epoch);
    if (local_step)
        snprintf(link, sizeof link, "epoch%lld_step%lld", (long long)run->epoch,
                 (long long)local_step);
    else
        snprintf(link, sizeof link, "epoch%lld_end", (long long)run->epoch);
    run->val = val;
    st = accrue_run_save(run, name, err);
    run->val = NULL;
    if (st)
        goto cleanup;
    unlink_epoch_links(run->opt.save_path, run->epoch);
    ACR_TRY(acr_checkpoint_link(run->opt.save_path, link, name, err));

cleanup:
    return st;
}

static bool at_max_steps(const accrue_run *run)
{
    return run->opt.max_steps && accrue_window_global_step(run->window) >= run->opt.max_steps;
}

static accrue_status train_epoch(loop *l, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_run *run = l->run;
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
            ACR_TRY(save(l, NULL, err));
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
    unlink_epoch_links(run->opt.save_path, epoch);
    acr_checkpoint_remove(dir);
    acr_free(dir);
    return st;
}

/* With --save-best only an epoch that beats all before it is kept; otherwise the first epoch, every
 * checkpoint_freq-th, and the one that --max-steps cuts short. */
static accrue_status end_epoch(loop *l, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_run *run = l->run;
    const accrue_train_options *opt = &run->opt;
    accrue_metrics val = {0};
    bool validated = run->plan.val_rows > 0;
    double loss = HUGE_VAL;
    bool best = false, due = false;

    if (validated) {
        ACR_TRY(accrue_run_validate(run, &val, err));
        ACR_TRY(acr_emit(run, ACCRUE_EVENT_VALIDATION, &val, NULL, err));
        if (val.loss_total > 0)
            loss = val.loss_sum / val.loss_total;
    }
    best = loss < l->best_loss;
    due = opt->checkpoint_freq < 1 || run->epoch == 0 || at_max_steps(run) ||
          (run->epoch + 1) % (int64_t)opt->checkpoint_freq == 0;
    if (opt->save_best && validated)
        due = best;
    if (!due)
        goto cleanup;
    ACR_TRY(save(l, validated ? &val : NULL, err));
    if (best) {
        char name[48];
        snprintf(name, sizeof name, "%lld", (long long)run->epoch);
        ACR_TRY(acr_checkpoint_link(opt->save_path, "checkpoint_best", name, err));
        if (opt->save_best && l->best_epoch >= 0)
            ACR_TRY(remove_checkpoint(run, l->best_epoch, err));
        l->best_loss = loss;
        l->best_epoch = run->epoch;
    }

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

static accrue_status tell_missing(accrue_run *run, accrue_error *err)
{
    const acr_epochs *e = &run->epochs;
    char rows[200] = "";
    size_t used = 0;

    if (!e->missing)
        return ACCRUE_OK;
    for (int64_t i = 0; i < e->n_rows && used < 150; i++)
        if (e->absent[i])
            used += (size_t)snprintf(rows + used, sizeof rows - used, "%s%lld", used ? ", " : "",
                                     (long long)i);
    return acr_notice(
        run, err, "%lld of %lld rows have no hidden states and are left out (rows %s%s)",
        (long long)e->missing, (long long)e->n_rows, rows, used >= 150 ? ", ..." : "");
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

accrue_status accrue_train(const accrue_train_options *opt, accrue_event_cb cb, void *payload,
                           accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    loop l = {.best_loss = HUGE_VAL, .best_epoch = -1};

    ACR_TRY(acr_train_options_check(opt, err));
    ACR_TRY(check_save_path(opt, err));
    ACR_TRY(accrue_run_open(&l.run, opt, cb, payload, err));
    if (opt->dump_batch_plan)
        ACR_TRY(acr_epochs_dump(&l.run->epochs, opt->epochs, opt->dump_batch_plan, err));
    ACR_TRY(make_save_path(opt->save_path, err));
    ACR_TRY(acr_emit(l.run, ACCRUE_EVENT_START, NULL, NULL, err));
    ACR_TRY(tell_missing(l.run, err));
    ACR_TRY(keep_maps(l.run, opt->data_path, err));
    for (int64_t epoch = 0; epoch < opt->epochs && !at_max_steps(l.run); epoch++) {
        ACR_TRY(accrue_run_epoch(l.run, epoch, err));
        ACR_TRY(train_epoch(&l, err));
        ACR_TRY(end_epoch(&l, err));
    }

cleanup:
    accrue_run_free(l.run);
    return st;
}

accrue_status accrue_train_dry_run(accrue_train_plan *out, const accrue_train_options *opt,
                                   accrue_event_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_checkpoint_state state = {.training = false};
    accrue_run *run = NULL;

    memset(out, 0, sizeof *out);
    ACR_TRY(acr_train_options_check(opt, err));
    ACR_TRY(acr_checkpoint_vacant(opt->save_path, err));
    ACR_TRY(accrue_run_open(&run, opt, cb, payload, err));
    if (opt->dump_batch_plan)
        ACR_TRY(acr_epochs_dump(&run->epochs, opt->epochs, opt->dump_batch_plan, err));
    ACR_TRY(acr_checkpoint_write(opt->save_path, run->setup.model, &run->tape, &state, err));
    ACR_TRY(acr_emit(run, ACCRUE_EVENT_CHECKPOINT, NULL, opt->save_path, err));
    *out = run->plan;

cleanup:
    accrue_run_free(run);
    return st;
}
