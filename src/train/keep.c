/* keep.c - the run's saves: begun at a window's boundary, settled when they are on the disk; then
 * the links, the best so far, and how many are kept.
 *
 * What follows a save is done after it by the training thread, and by the next run where this one
 * was killed in between; so each step may find itself done before. */
#include "train/train.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME = 64 };

/* Links ----------------------------------------------------------------------------------- */

/* "epoch<E>_end" or "epoch<E>_step<S>", pointing at "<E>". */
static bool is_epoch_link(int dir, const char *name, int64_t epoch)
{
    char prefix[2 * NAME], number[NAME], target[NAME] = "";
    const char *rest = NULL;
    size_t length = 0;

    snprintf(number, sizeof number, "%lld", (long long)epoch);
    snprintf(prefix, sizeof prefix, "epoch%s_", number);
    length = strlen(prefix);
    rest = strncmp(name, prefix, length) == 0 ? name + length : "";
    return (strcmp(rest, "end") == 0 || (strncmp(rest, "step", 4) == 0 &&
                                         strspn(rest + 4, "0123456789") == strlen(rest + 4))) &&
           readlinkat(dir, name, target, sizeof target - 1) > 0 && strcmp(target, number) == 0;
}

static accrue_status unlink_epoch_links(const char *save_path, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    DIR *d = opendir(save_path);
    struct dirent *entry = NULL;

    while (d && !st && (entry = readdir(d)) != NULL)
        if (is_epoch_link(dirfd(d), entry->d_name, epoch) &&
            unlinkat(dirfd(d), entry->d_name, 0) != 0)
            st = acr_fail_errno(err, errno, "cannot remove the link", entry->d_name);
    if (d)
        closedir(d);
    return st;
}

static accrue_status make_link(accrue_run *run, const char *name, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char target[NAME], *aside = NULL;

    snprintf(target, sizeof target, "%lld", (long long)epoch);
    ACR_TRY(acr_checkpoint_link(run->opt.save_path, name, target, &aside, err));
    if (aside)
        ACR_TRY(acr_notice(run, err, "%s/%s: was no link to a checkpoint; it is now %s",
                           run->opt.save_path, name, aside));

cleanup:
    acr_free(aside);
    return st;
}

static accrue_status link_epoch(accrue_run *run, const acr_training_state *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char link[2 * NAME];

    if (s->local_step || s->samples == 0)
        snprintf(link, sizeof link, "epoch%lld_step%lld", (long long)s->epoch,
                 (long long)s->local_step);
    else
        snprintf(link, sizeof link, "epoch%lld_end", (long long)s->epoch);
    ACR_TRY(unlink_epoch_links(run->opt.save_path, s->epoch, err));
    ACR_TRY(make_link(run, link, s->epoch, err));

cleanup:
    return st;
}

/* Where there is such a checkpoint. */
static accrue_status link_best(accrue_run *run, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *dir = acr_sprintf("%s/%lld", run->opt.save_path, (long long)epoch);

    if (!dir)
        return acr_enomem(err, strlen(run->opt.save_path), "a path");
    if (epoch >= 0 && acr_is_dir(dir))
        st = make_link(run, "checkpoint_best", epoch, err);
    acr_free(dir);
    return st;
}

/* Rotation -------------------------------------------------------------------------------- */

static accrue_status remove_checkpoint(const char *save_path, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char name[NAME];

    snprintf(name, sizeof name, "%lld", (long long)epoch);
    ACR_TRY(unlink_epoch_links(save_path, epoch, err));
    ACR_TRY(acr_checkpoint_discard(save_path, name, err));

cleanup:
    return st;
}

static int64_t best_link(const char *save_path)
{
    char *path = acr_sprintf("%s/checkpoint_best", save_path), target[NAME] = "", *end = NULL;
    int64_t epoch = -1;

    if (path && readlink(path, target, sizeof target - 1) > 0 && isdigit((unsigned char)*target)) {
        epoch = strtoll(target, &end, 10);
        epoch = *end ? -1 : epoch;
    }
    acr_free(path);
    return epoch;
}

/* A whole checkpoint of this training with nothing beside it: what may be removed. */
static bool is_own(const accrue_run *run, int64_t epoch, bool *interim)
{
    char *dir = acr_sprintf("%s/%lld", run->opt.save_path, (long long)epoch);
    acr_training_state s = {0};
    bool unlisted = false;
    bool own = dir && !acr_is_link(dir) && !acr_training_state_read(&s, dir, NULL) &&
               s.generation == run->generation && s.epoch == epoch &&
               !acr_manifest_check(dir, false, &unlisted, NULL) && !unlisted;

    *interim = s.interim;
    acr_free(dir);
    return own;
}

static int descending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x < y) - (x > y);
}

/* Epochs with a folder, newest first. */
static accrue_status list_epochs(int64_t **out, size_t *n, const char *save_path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t capacity = 0;
    DIR *d = opendir(save_path);
    struct dirent *entry = NULL;

    *out = NULL;
    *n = 0;
    while (d && (entry = readdir(d)) != NULL) {
        size_t digits = strspn(entry->d_name, "0123456789");
        int64_t *more = NULL;
        if (!digits || entry->d_name[digits] || digits > 18)
            continue;
        if (*n == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            more = acr_realloc(*out, capacity * sizeof *more);
            if (!more) {
                st = acr_enomem(err, capacity * sizeof *more, "the list of checkpoints");
                break;
            }
            *out = more;
        }
        (*out)[(*n)++] = strtoll(entry->d_name, NULL, 10);
    }
    if (d)
        closedir(d);
    if (*n)
        qsort(*out, *n, sizeof **out, descending);
    return st;
}

/* What goes because of a save of epoch `newest`: what somebody asked for and no rule saved; with
 * --keep N all but the newest N and the best. */
static accrue_status rotate(const accrue_run *run, int64_t newest, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *save_path = run->opt.save_path;
    int64_t *epochs = NULL, kept = 0, best = best_link(save_path);
    size_t n = 0;

    ACR_TRY(list_epochs(&epochs, &n, save_path, err));
    for (size_t i = 0; i < n; i++) {
        bool interim = false;
        if (epochs[i] > newest || !is_own(run, epochs[i], &interim))
            continue;
        kept += !interim;
        if ((interim && epochs[i] != newest) ||
            (!interim && run->opt.keep && kept > run->opt.keep && epochs[i] != best &&
             epochs[i] != run->best_epoch))
            ACR_TRY(remove_checkpoint(save_path, epochs[i], err));
    }

cleanup:
    acr_free(epochs);
    return st;
}

static accrue_status remove_superseded(const accrue_run *run, int64_t epoch, accrue_error *err)
{
    bool interim = false;

    if (epoch < 0 || !is_own(run, epoch, &interim))
        return ACCRUE_OK;
    return remove_checkpoint(run->opt.save_path, epoch, err);
}

accrue_status acr_keep(accrue_run *run, const acr_training_state *s, int64_t best,
                       accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(link_epoch(run, s, err));
    ACR_TRY(link_best(run, best, err));
    ACR_TRY(remove_superseded(run, s->superseded_epoch, err));
    ACR_TRY(rotate(run, s->epoch, err));

cleanup:
    return st;
}

/* --save-best leaves the best alone, where there is one. */
accrue_status acr_keep_best_alone(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t *epochs = NULL;
    size_t n = 0;

    if (!run->opt.save_best || run->best_epoch < 0)
        return ACCRUE_OK;
    ACR_TRY(list_epochs(&epochs, &n, run->opt.save_path, err));
    for (size_t i = 0; i < n; i++) {
        bool interim = false;
        if (is_own(run, epochs[i], &interim) && interim)
            ACR_TRY(remove_checkpoint(run->opt.save_path, epochs[i], err));
    }

cleanup:
    acr_free(epochs);
    return st;
}

/* A run's saves --------------------------------------------------------------------------- */

static accrue_status check_name(const accrue_run *run, const char *name, accrue_error *err)
{
    if (!*name || *name == '.' || strchr(name, '/'))
        return acr_fail(err, ACCRUE_EINVAL, "checkpoint \"%s\": a plain name expected", name);
    if (!acr_window_between(run->window))
        return acr_fail(
            err, ACCRUE_ESTATE,
            "%s/%s: a checkpoint in mid-window, after %lld of %lld; save behind lr_step",
            run->opt.save_path, name, (long long)acr_window_filled(run->window),
            (long long)run->window_size);
    return ACCRUE_OK;
}

/* Ends a save that has been written, on rank 0; *result.aside is the caller's. */
static accrue_status end_save(accrue_run *run, acr_save_result *result, accrue_error *err)
{
    double start = acr_seconds();
    accrue_status st = run->save ? acr_save_finish(run->save, result, err) : ACCRUE_OK;

    run->save = NULL;
    run->under_way = false;
    run->held_up += acr_seconds() - start;
    return st;
}

static accrue_status tell_saved(accrue_run *run, const acr_save_result *result, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (result->aside)
        ACR_TRY(acr_notice(run, err, "%s: was no whole checkpoint, or held more; it is now %s",
                           run->saving_dir, result->aside));
    run->saved = *result;
    ACR_TRY(acr_emit(run, ACCRUE_EVENT_CHECKPOINT, NULL, run->saving_dir, err));

cleanup:
    return st;
}

static accrue_status wait_for_save(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_save_result result = {0};

    if (!run->under_way)
        return ACCRUE_OK;
    st = end_save(run, &result, err);
    ACR_TRY(acr_agree(run->comm, "a checkpoint", st, err));
    ACR_TRY(tell_saved(run, &result, err));

cleanup:
    acr_free(result.aside);
    return st;
}

/* Replicas are equal to the bit as long as every rank computes alike: on processors that do not,
 * they would drift apart without a word. */
static accrue_status check_replicas(const accrue_run *run, accrue_error *err)
{
    const acr_model *m = run->setup.model;
    uint64_t hash = 0;

    if (run->ranks == 1 || run->plan.sharded)
        return ACCRUE_OK;
    for (int i = 0; i < m->n_groups; i++)
        hash = acr_hash_bytes(m->groups[i].master,
                              (size_t)m->groups[i].n * acr_dtype_bytes(m->real), hash);
    return acr_agree_equal(run->comm, "the weights, which every rank has computed for itself", hash,
                           err);
}

/* Sharded, all ranks have a part in it. */
static accrue_status begin_writing(accrue_run *run, const acr_save_content *content,
                                   accrue_error *err)
{
    acr_model *m = run->setup.model;

    if (run->plan.sharded)
        return acr_save_shared(&run->save, run->saving_dir, m, content, run->comm, err);
    return run->rank ? ACCRUE_OK : acr_save_begin(&run->save, run->saving_dir, m, content, err);
}

static accrue_status begin_save(accrue_run *run, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_save_content content = {.state = &run->saving,
                                .window = run->window,
                                .val = run->val,
                                .wait = run->val && run->proof.set};
    char *skipped = NULL;
    double start = 0;

    ACR_TRY(wait_for_save(run, err));
    ACR_TRY(check_name(run, name, err));
    start = acr_seconds();
    acr_free(run->saving_dir);
    run->saving_dir = acr_sprintf("%s/%s", run->opt.save_path, name);
    if (!run->saving_dir) {
        st = acr_enomem(err, strlen(name), "a path");
        goto cleanup;
    }
    acr_run_state(&run->saving, run);
    run->saving_next = run->next;
    ACR_TRY(acr_bad_rows_list(run, err));
    ACR_TRY(acr_bad_rows_text(&skipped, &run->epochs, 0, err));
    content.skipped = skipped;
    run->saving_val = content.wait;
    ACR_TRY(check_replicas(run, err));
    ACR_TRY(begin_writing(run, &content, err));
    run->under_way = true;
    run->held_up = acr_seconds() - start;

cleanup:
    acr_free(skipped);
    return st;
}

accrue_status accrue_run_save_begin(accrue_run *run, const char *name, accrue_error *err)
{
    accrue_error why = {0};
    accrue_status st = begin_save(run, name, &why);

    return acr_run_result(run, st, &why, err);
}

accrue_status accrue_run_save_wait(accrue_run *run, accrue_error *err)
{
    accrue_error why = {0};
    accrue_status st = wait_for_save(run, &why);

    return acr_run_result(run, st, &why, err);
}

accrue_status accrue_run_save(accrue_run *run, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(accrue_run_save_begin(run, name, err));
    ACR_TRY(accrue_run_save_wait(run, err));

cleanup:
    return st;
}

/* A failed save loses nothing that was there.  It is reported as it happens where training goes on,
 * and again at the end where no later one made good for it. */
static accrue_status save_failed(accrue_run *run, accrue_status status, const accrue_error *why,
                                 accrue_error *err)
{
    run->save_status = status;
    run->save_error = *why;
    if (run->opt.on_save_error != ACCRUE_POLICY_SKIP)
        return acr_fail(err, status, "%s", why->message);
    return acr_notice(run, err, "not saved, training goes on: %s", why->message);
}

/* With the files proven and waiting for their name, the loss is. */
static void prove_waiting(accrue_run *run)
{
    double start = acr_seconds();
    accrue_error why = {0};
    accrue_status st = acr_prove_loss(run, acr_save_folder(run->save), &why);

    acr_save_release(run->save, st, &why);
    run->held_up += acr_seconds() - start;
}

/* What follows a save that is there: links, and what goes. */
static accrue_status keep(accrue_run *run, accrue_error *err)
{
    double start = acr_seconds();
    accrue_status st = ACCRUE_OK;

    run->best_value = run->saving.best_value;
    run->best_epoch = run->saving.best_epoch;
    if (run->rank == 0)
        st = acr_keep(run, &run->saving, run->saving.is_best ? run->saving.epoch : -1, err);
    run->held_up += acr_seconds() - start;
    return acr_agree(run->comm, "a checkpoint's links", st, err);
}

/* Whether the save under way has come to something that this thread is to do.  Of several ranks the
 * first knows, and has told the others at the window's edge. */
static bool is_due(accrue_run *run, bool wait)
{
    if (!run->under_way)
        return false;
    if (run->ranks > 1 && !wait && !run->save_over)
        return false;
    if (run->save && acr_save_waits(run->save, wait))
        prove_waiting(run);
    return run->ranks > 1 || wait || acr_save_done(run->save);
}

accrue_status acr_run_settle(accrue_run *run, bool wait, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_save_result result = {0};
    accrue_error why = {0};

    if (!is_due(run, wait))
        return ACCRUE_OK;
    run->save_over = false;
    st = end_save(run, &result, &why);
    st = acr_agree(run->comm, "a checkpoint", st, &why);
    if (!st)
        st = keep(run, &why);
    run->agreed = st && run->ranks > 1;
    if (st) {
        accrue_status lost = acr_comm_failure(run->comm, err);
        st = lost ? lost : save_failed(run, st, &why, err);
        goto cleanup;
    }
    run->save_status = ACCRUE_OK;
    ACR_TRY(tell_saved(run, &result, err));

cleanup:
    acr_free(result.aside);
    return st;
}
