/* trainer.c - accrue_train: the loop over epochs around the pieces of run.c, with validation and
 * the rules of when a checkpoint is written, which are the Python trainer's. */
#include "train/train.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool at_max_steps(const accrue_run *run)
{
    return run->opt.max_steps && accrue_window_global_step(run->window) >= run->opt.max_steps;
}

/* Whether the rules, --save-best aside, have this epoch saved at its end: the first, every
 * checkpoint_freq-th, the last, and the one that --max-steps cuts short. */
static bool ends_saved(const accrue_run *run)
{
    const double freq = run->opt.checkpoint_freq;

    return freq < 1 || run->epoch == 0 || run->epoch + 1 == run->opt.epochs || at_max_steps(run) ||
           (run->epoch + 1) % (int64_t)freq == 0;
}

/* Begins the save of where the run stands; acr_run_settle does what follows. */
static accrue_status save(accrue_run *run, const accrue_metrics *val, bool concluded,
                          accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char name[48];

    ACR_TRY(acr_run_settle(run, true, err));
    snprintf(name, sizeof name, "%lld", (long long)run->epoch);
    run->val = val;
    run->concluded = concluded;
    run->interim = run->opt.save_best ? !run->is_best : !ends_saved(run);
    st = accrue_run_save_begin(run, name, err);
    run->val = NULL;
    run->concluded = false;
    run->saved_micro_batches = accrue_window_micro_batches(run->window);
    if (run->request == ACCRUE_SAVE)
        run->request = ACCRUE_GO_ON;
    if (run->asked == ACCRUE_SAVE)
        run->asked = ACCRUE_GO_ON;

cleanup:
    return st;
}

static bool asked_to_stop(const accrue_run *run)
{
    return run->request >= ACCRUE_SAVE_AND_STOP;
}

/* The end of a window is not waited for where nothing of it was done yet. */
accrue_status acr_run_waiting(void *ctx, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_run *run = ctx;

    ACR_TRY(acr_emit(run, ACCRUE_EVENT_WAITING, NULL, NULL, err));
    run->wait_ended =
        run->asked == ACCRUE_GIVE_UP_AND_STOP ||
        (run->asked == ACCRUE_SAVE_AND_STOP &&
         (acr_window_filled(run->window) == 0 || accrue_window_at_boundary(run->window)));
    if (run->wait_ended)
        st = acr_fail(err, ACCRUE_ECANCELED, "stopped by the caller while it waited for data");

cleanup:
    return st;
}

/* Leaves the run at the end of its last window, for another to go on from. */
static accrue_status stop(accrue_run *run, bool concluded, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (accrue_window_micro_batches(run->window) != run->saved_micro_batches)
        ACR_TRY(save(run, NULL, concluded, err));
    ACR_TRY(acr_run_settle(run, true, err));
    run->agreed = true;
    st = run->save_status
             ? acr_fail(err, run->save_status, "%s", run->save_error.message)
             : acr_fail(err, ACCRUE_ECANCELED, "stopped as asked, at optimizer step %lld",
                        (long long)accrue_window_global_step(run->window));

cleanup:
    return st;
}

static accrue_status train_window_part(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(accrue_run_forward_backward(run, NULL, err));
    ACR_TRY(accrue_run_clip(run, NULL, err));
    ACR_TRY(accrue_run_step(run, NULL, err));
    accrue_run_lr_step(run);
    accrue_run_zero_grad(run);
    ACR_TRY(acr_run_settle(run, false, err));

cleanup:
    return st;
}

/* Without a step there is nothing that the rules would have kept. */
static bool save_is_due(const accrue_run *run)
{
    const accrue_train_options *opt = &run->opt;
    const int64_t n = run->window_n;

    return run->request == ACCRUE_SAVE ||
           (accrue_window_global_step(run->window) && run->next % n == 0 &&
            opt->checkpoint_freq < 1 && !opt->save_best &&
            accrue_checkpoint_due(run->next / n,
                                  accrue_steps_per_epoch(run->current.n, n, opt->accumulation_tail),
                                  opt->checkpoint_freq));
}

static accrue_status train_epoch(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t n = run->window_n;

    while (accrue_run_next(run) && !at_max_steps(run)) {
        st = train_window_part(run, err);
        if (st == ACCRUE_ECANCELED && run->wait_ended)
            st = stop(run, false, err);
        if (st)
            goto cleanup;
        if (run->next % n && accrue_run_next(run)) { /* in mid-window */
            if (run->request != ACCRUE_GIVE_UP_AND_STOP)
                continue;
            acr_run_abandon(run);
        }
        if (asked_to_stop(run))
            ACR_TRY(stop(run, false, err));
        if (save_is_due(run))
            ACR_TRY(save(run, NULL, false, err));
    }

cleanup:
    return st;
}

/* Of two validations, whether the first is better. */
static bool is_better(const accrue_run *run, double value, double than)
{
    return run->opt.best_metric == ACCRUE_BEST_LOSS ? value < than : value > than;
}

/* An epoch that --max-steps cuts short is shown as the best but not remembered as such: a run that
 * goes on from there has yet to end it. */
static accrue_status save_epoch(accrue_run *run, const accrue_metrics *val, bool best, double value,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t before = run->best_epoch;
    const double before_value = run->best_value;

    run->is_best = best;
    if (best && !accrue_run_next(run)) {
        if (run->opt.save_best && before != run->epoch)
            run->superseded = before;
        run->best_value = value;
        run->best_epoch = run->epoch;
    }
    st = save(run, val, true, err);
    run->superseded = -1;
    run->is_best = false;
    run->best_epoch = before; /* until it is written */
    run->best_value = before_value;
    return st;
}

/* Validates the epoch; *has tells whether there is a result. */
static accrue_status validate_epoch(accrue_run *run, accrue_metrics *val, bool *has,
                                    accrue_error *err)
{
    accrue_status st = accrue_run_validate(run, val, err);

    *has = !st && val->loss_total > 0;
    if (st == ACCRUE_ECANCELED && asked_to_stop(run))
        st = stop(run, false, err);
    else if (*has)
        st = acr_emit(run, ACCRUE_EVENT_VALIDATION, val, NULL, err);
    else if (!st)
        st = acr_notice(run, err,
                        "epoch %lld: the validation has no result, none of its micro-batches could "
                        "be used",
                        (long long)run->epoch + 1);
    return st;
}

/* Rows in a dropped tail are never looked at, so that all others may be bad and some are left. */
static accrue_status need_steps(accrue_run *run, accrue_error *err)
{
    if (accrue_window_global_step(run->window) || !run->epochs.n_bad)
        return ACCRUE_OK;
    run->agreed = true;
    return acr_fail(err, ACCRUE_EMISMATCH,
                    "epoch %lld: 0 optimizer steps, at least 1 expected: %lld of %lld rows are "
                    "left out, the last one for: %s",
                    (long long)run->epoch + 1, (long long)run->epochs.n_bad,
                    (long long)run->epochs.n_rows,
                    run->epochs.left_out[run->epochs.n_bad - 1].message);
}

/* With --save-best only an epoch that beats all before it is kept. */
static accrue_status end_epoch(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const bool validated = run->epochs.val_rows > 0;
    accrue_metrics val = {0};
    bool has = false, due = false, best = false;
    double value = 0;

    ACR_TRY(need_steps(run, err));
    if (run->under_way && run->saving_val) /* its proof is of the validation before */
        ACR_TRY(acr_run_settle(run, true, err));
    if (asked_to_stop(run))
        ACR_TRY(stop(run, !validated, err));
    if (validated)
        ACR_TRY(validate_epoch(run, &val, &has, err));
    ACR_TRY(acr_run_settle(run, true, err)); /* it tells which epoch is the best so far */
    if (has) {
        value = run->opt.best_metric == ACCRUE_BEST_LOSS ? val.loss_sum / val.loss_total
                                                         : accrue_metrics_acceptance(&val);
        best = run->best_epoch < 0 || is_better(run, value, run->best_value);
    }
    /* Where the validation has lost its last row, there is no best to wait for. */
    due = run->opt.save_best && run->epochs.val_rows > 0 ? best : ends_saved(run);
    if (due || run->request == ACCRUE_SAVE)
        ACR_TRY(save_epoch(run, has ? &val : NULL, best, value, err));

cleanup:
    return st;
}

/* The last save is waited for; where none made good for one that failed, the run has failed. */
static accrue_status finish(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_run_settle(run, true, err));
    run->agreed = run->save_status != ACCRUE_OK;
    if (run->save_status)
        st = acr_fail(err, run->save_status, "the last checkpoint was not saved: %s",
                      run->save_error.message);
    else if (run->rank == 0)
        st = acr_keep_best_alone(run, err);

cleanup:
    return st;
}

/* Where training begins: micro-batch `from` of `epoch`, -1 for its end with the validation to come.
 * Behind the last epoch there is nothing to do. */
typedef struct start {
    int64_t epoch, from;
    bool finished;
} start;

static accrue_status one_epoch(accrue_run *run, int64_t epoch, int64_t from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_run_epoch_from(run, epoch, from, err));
    ACR_TRY(train_epoch(run, err));
    ACR_TRY(end_epoch(run, err));

cleanup:
    return st;
}

/* Of a run that a row's fault ends: saves the steps since the last checkpoint. */
static accrue_status save_steps(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (run->failed) /* else in a validation */
        acr_run_abandon(run);
    if (accrue_window_global_step(run->window) &&
        accrue_window_micro_batches(run->window) != run->saved_micro_batches)
        ACR_TRY(save(run, NULL, false, err));
    ACR_TRY(acr_run_settle(run, true, err));

cleanup:
    return st;
}

static accrue_status train_epochs(accrue_run *run, const start *at, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_error why = {0}, unsaved = {0};
    bool agreed = false;

    for (int64_t epoch = at->epoch, from = at->from; epoch < run->opt.epochs; epoch++, from = 0) {
        if (at_max_steps(run) && !from)
            break;
        if (asked_to_stop(run))
            ACR_TRY(stop(run, true, err));
        st = one_epoch(run, epoch, from, &why);
        if (!st)
            continue;
        agreed = run->agreed;
        if (run->stopped_by_row && save_steps(run, &unsaved))
            (void)!acr_notice(run, NULL, "the steps since the last checkpoint are not saved: %s",
                              unsaved.message);
        run->agreed = agreed; /* on `why`, whatever became of the save */
        acr_fail(err, st, "%s", why.message);
        goto cleanup;
    }
    ACR_TRY(finish(run, err));

cleanup:
    return st;
}

/* Counted maps are kept beside the data, where the Python trainer looks for them too; a read-only
 * folder is no reason to stop, as every checkpoint carries the maps. */
static accrue_status keep_maps(accrue_run *run, const char *data_path, accrue_error *err)
{
    accrue_error why = {0};

    if (run->rank || !run->setup.vocab_built ||
        !acr_vocab_write(&run->setup.model->vocab, data_path, &why))
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
    if (acr_make_parents(inside, err) == ACCRUE_ENOMEM)
        st = ACCRUE_ENOMEM;
    else if (!acr_is_dir(path) || access(path, W_OK | X_OK) != 0)
        st = acr_fail(err, ACCRUE_EINVAL, "--save-path: %s is no folder that can be written to: %s",
                      path, acr_is_dir(path) ? "permission denied" : "it cannot be made");
    acr_free(inside);
    return st;
}

/* Whether the checkpoint is the one that --resume-from names, and not of this run's folder. */
static bool is_elsewhere(const accrue_run *run, const char *dir)
{
    return run->opt.resume_from && strcmp(run->opt.resume_from, dir) == 0;
}

/* What the run that wrote the checkpoint may not have come to.  The best so far of a cut epoch
 * counts only where it stays cut. */
static accrue_status complete_save(accrue_run *run, const acr_resume *from, bool finished,
                                   accrue_error *err)
{
    const acr_training_state *s = &from->state;
    const char *slash = from->dir ? strrchr(from->dir, '/') : NULL;
    char name[48];

    snprintf(name, sizeof name, "/%lld", (long long)s->epoch);
    if (run->rank || is_elsewhere(run, from->dir) || !slash || strcmp(slash, name) != 0)
        return ACCRUE_OK;
    return acr_keep(run, s, finished && s->is_best ? s->epoch : s->best_epoch, err);
}

/* Whether a checkpoint would fit is known before the first step. */
static accrue_status check_room(accrue_run *run, accrue_error *err)
{
    accrue_error why = {0};
    accrue_status st = ACCRUE_OK;

    if (run->rank)
        return ACCRUE_OK;
    st = acr_checkpoint_room(run->opt.save_path, acr_save_bytes(run->setup.model, run->window),
                             &why);
    if (st && run->opt.on_save_error == ACCRUE_POLICY_SKIP)
        return acr_notice(run, err, "%s", why.message);
    return st ? acr_fail(err, st, "%s", why.message) : st;
}

static start find_start(const accrue_run *run, const acr_resume *from)
{
    const acr_training_state *s = &from->state;
    start at = {0};

    if (!run->resumed)
        return at;
    at.epoch = s->epoch;
    at.from = from->from;
    if (at.from < 0 && s->concluded)
        at = (start){.epoch = s->epoch + 1};
    at.finished = at.epoch >= run->opt.epochs || (at_max_steps(run) && s->concluded);
    return at;
}

/* For the event: where the run goes on, in micro-batches of the epoch. */
static accrue_status set_place(accrue_run *run, const start *at, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_epoch e = {0};

    run->epoch = at->epoch;
    run->next = at->from;
    if (at->from < 0) {
        ACR_TRY(acr_epochs_train(&e, &run->epochs, at->epoch, err));
        run->next = acr_run_used(run, e.n);
    }

cleanup:
    acr_epoch_free(&e);
    return st;
}

static accrue_status tell_changes(accrue_run *run, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *changes = NULL;

    ACR_TRY(acr_configuration_changes(&changes, run->configuration, dir, err));
    if (changes)
        ACR_TRY(acr_notice(run, err, "%s was saved with other options: %s", dir, changes));

cleanup:
    acr_free(changes);
    return st;
}

static accrue_status resume(accrue_run *run, acr_resume *found, start *at, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < found->n_notes; i++)
        ACR_TRY(acr_notice(run, err, "%s", found->notes[i]));
    run->generation = found->generation;
    run->origin = found->origin;
    run->origin_epoch = found->origin_epoch;
    if (found->dir && !found->weights_only)
        ACR_TRY(acr_run_load(run, found, err));
    *at = find_start(run, found);
    if (run->resumed && !at->finished)
        ACR_TRY(set_place(run, at, err));
    else if (run->resumed)
        run->epoch = found->state.epoch + 1;
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
    if (run->resumed && !at->finished && run->rank == 0)
        ACR_TRY(tell_changes(run, found->dir, err));
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

/* A training on one rank, and what it holds. */
typedef struct training {
    accrue_train_options opt;
    acr_resume found;
    accrue_run *run;
    int lock;    /* of save_path, on rank 0 */
    bool agreed; /* all ranks know of the failure */
} training;

static accrue_status find_checkpoint(training *t, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_checkpoint_lock(&t->lock, t->opt.save_path, err));
    if (t->lock >= 0)
        acr_checkpoint_recover(t->opt.save_path);
    ACR_TRY(acr_resume_find(&t->found, &t->opt, err));

cleanup:
    return st;
}

/* What rank 0 alone does in save_path before training begins. */
static accrue_status prepare_save_path(training *t, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (t->run->rank)
        return ACCRUE_OK;
    if (t->opt.dump_batch_plan)
        ACR_TRY(acr_epochs_dump(&t->run->epochs, t->opt.epochs, t->opt.dump_batch_plan, err));
    ACR_TRY(make_save_path(t->opt.save_path, err));
    if (t->lock < 0)
        ACR_TRY(acr_checkpoint_lock(&t->lock, t->opt.save_path, err));

cleanup:
    return st;
}

static accrue_status train(training *t, accrue_event_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    start at = {0};
    const char *from = NULL;

    if (accrue_comm_rank(t->opt.comm) == 0)
        st = find_checkpoint(t, err);
    t->agreed = true;
    ACR_TRY(acr_agree(t->opt.comm, "where to go on", st, err));
    t->agreed = false;
    ACR_TRY(acr_resume_share(&t->found, t->opt.comm, err));
    if (t->found.weights_only)
        t->opt.from_pretrained = t->found.dir;
    else
        from = t->found.dir;
    t->agreed = true;
    ACR_TRY(acr_run_open(&t->run, &t->opt, from, cb, payload, err));
    t->agreed = false;
    t->run->obeys = true;
    ACR_TRY(prepare_save_path(t, err));
    ACR_TRY(resume(t->run, &t->found, &at, err));
    if (t->run->rank == 0)
        acr_checkpoint_clean(t->opt.save_path);
    if (at.finished)
        goto cleanup;
    ACR_TRY(check_room(t->run, err));
    ACR_TRY(acr_left_out_told(t->run, err));
    ACR_TRY(keep_maps(t->run, t->opt.data_path, err));
    ACR_TRY(train_epochs(t->run, &at, err));

cleanup:
    return st;
}

/* One rank's training, from its beginning to its end. */
static accrue_status train_rank(const accrue_train_options *opt, accrue_event_cb cb, void *payload,
                                accrue_error *err)
{
    training t = {.opt = *opt, .lock = -1};
    accrue_error why = {0};
    accrue_status st = train(&t, cb, payload, &why);

    if (!st) /* of which a callback may have had the last word, on one rank */
        st = acr_agree(opt->comm, "the end of training", st, &why);
    if (st && !t.agreed && !(t.run && t.run->agreed))
        st = acr_comm_fail(opt->comm, st, &why);
    if (t.run) {
        t.run->cb = NULL;
        (void)!acr_run_settle(t.run, true, NULL); /* what was begun is brought to its end */
    }
    accrue_run_free(t.run);
    acr_resume_free(&t.found);
    if (t.lock >= 0)
        close(t.lock);
    return st ? acr_fail(err, st, "%s", why.message) : ACCRUE_OK;
}

typedef struct threads {
    const accrue_train_options *opt;
    accrue_event_cb cb;
    void *payload;
} threads;

static accrue_status train_thread(accrue_comm *comm, void *ctx, accrue_error *err)
{
    const threads *t = ctx;
    accrue_train_options opt = *t->opt;
    const bool first = accrue_comm_rank(comm) == 0;

    opt.ranks = 1;
    opt.comm = comm;
    return train_rank(&opt, first ? t->cb : NULL, first ? t->payload : NULL, err);
}

accrue_status accrue_train(const accrue_train_options *given, accrue_event_cb cb, void *payload,
                           accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_train_options opt;
    threads t = {.opt = &opt, .cb = cb, .payload = payload};

    ACR_TRY(acr_train_options_check_together(given, err));
    acr_train_options_resolve(&opt, given);
    if (opt.ranks > 1)
        st = acr_ranks_run(opt.ranks, opt.comm_timeout, train_thread, &t, err);
    else
        st = train_rank(&opt, cb, payload, err);

cleanup:
    return st;
}
