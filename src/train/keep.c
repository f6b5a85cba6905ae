/* keep.c - the run's saves: begun at a window's boundary, settled when they are on the disk; then
 * the links, the best so far, and how many are kept.
 *
 * What follows a save is done after it by the training thread, and by the next run where this one
 * was killed in between; so each step may find itself done before. */
#include "train/train.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME = 64 };

/* Links ----------------------------------------------------------------------------------- */

/* Only links of this epoch are touched. */
static accrue_status unlink_epoch_links(const char *save_path, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    DIR *d = opendir(save_path);
    struct dirent *entry = NULL;
    char prefix[NAME];

    snprintf(prefix, sizeof prefix, "epoch%lld_", (long long)epoch);
    while (d && !st && (entry = readdir(d)) != NULL)
        if (entry->d_type == DT_LNK && strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
            unlinkat(dirfd(d), entry->d_name, 0) != 0)
            st = acr_fail_errno(err, errno, "cannot remove the link", entry->d_name);
    if (d)
        closedir(d);
    return st;
}

static accrue_status link_epoch(const char *save_path, const acr_training_state *s,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char name[NAME], link[2 * NAME];

    snprintf(name, sizeof name, "%lld", (long long)s->epoch);
    if (s->local_step || s->samples == 0)
        snprintf(link, sizeof link, "epoch%s_step%lld", name, (long long)s->local_step);
    else
        snprintf(link, sizeof link, "epoch%s_end", name);
    ACR_TRY(unlink_epoch_links(save_path, s->epoch, err));
    ACR_TRY(acr_checkpoint_link(save_path, link, name, err));

cleanup:
    return st;
}

/* Where there is such a checkpoint. */
static accrue_status link_best(const char *save_path, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char name[NAME];
    char *dir = acr_sprintf("%s/%lld", save_path, (long long)epoch);

    if (!dir)
        return acr_enomem(err, strlen(save_path), "a path");
    snprintf(name, sizeof name, "%lld", (long long)epoch);
    if (epoch >= 0 && acr_is_dir(dir))
        st = acr_checkpoint_link(save_path, "checkpoint_best", name, err);
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

/* A whole checkpoint of this training with nothing beside it: what may be removed.  With `interim`
 * one that was made because somebody asked. */
static bool is_own(const accrue_run *run, int64_t epoch, bool interim)
{
    char *dir = acr_sprintf("%s/%lld", run->opt.save_path, (long long)epoch);
    acr_training_state s;
    bool unlisted = false;
    bool own = dir && !acr_is_link(dir) && !acr_training_state_read(&s, dir, NULL) &&
               s.generation == run->generation && s.epoch == epoch && (s.interim || !interim) &&
               !acr_manifest_check(dir, &unlisted, NULL) && !unlisted;

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

/* --keep N: the newest N of this training, and the best. */
static accrue_status rotate(const accrue_run *run, int64_t newest, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *save_path = run->opt.save_path;
    int64_t *epochs = NULL, kept = 0, best = best_link(save_path);
    size_t n = 0;

    if (!run->opt.keep)
        return ACCRUE_OK;
    ACR_TRY(list_epochs(&epochs, &n, save_path, err));
    for (size_t i = 0; i < n; i++) {
        if (epochs[i] > newest || !is_own(run, epochs[i], false))
            continue;
        kept++;
        if (kept > run->opt.keep && epochs[i] != best && epochs[i] != run->best_epoch)
            ACR_TRY(remove_checkpoint(save_path, epochs[i], err));
    }

cleanup:
    acr_free(epochs);
    return st;
}

/* Saves that somebody asked for, and no rule, last until the next one. */
static accrue_status remove_interim(const accrue_run *run, int64_t but, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t *epochs = NULL;
    size_t n = 0;

    ACR_TRY(list_epochs(&epochs, &n, run->opt.save_path, err));
    for (size_t i = 0; i < n; i++)
        if (epochs[i] != but && is_own(run, epochs[i], true))
            ACR_TRY(remove_checkpoint(run->opt.save_path, epochs[i], err));

cleanup:
    acr_free(epochs);
    return st;
}

accrue_status acr_keep(const accrue_run *run, const acr_training_state *s, int64_t best,
                       accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *save_path = run->opt.save_path;

    ACR_TRY(link_epoch(save_path, s, err));
    ACR_TRY(link_best(save_path, best, err));
    if (s->superseded_epoch >= 0)
        ACR_TRY(remove_checkpoint(save_path, s->superseded_epoch, err));
    ACR_TRY(remove_interim(run, s->epoch, err));
    ACR_TRY(rotate(run, s->epoch, err));

cleanup:
    return st;
}

/* A run's saves --------------------------------------------------------------------------- */

static accrue_status check_name(const accrue_run *run, const char *name, accrue_error *err)
{
    if (!*name || *name == '.' || strchr(name, '/'))
        return acr_fail(err, ACCRUE_EINVAL, "checkpoint \"%s\": a plain name expected", name);
    if (acr_window_filled(run->window) && !accrue_window_at_boundary(run->window))
        return acr_fail(err, ACCRUE_ESTATE, "%s/%s: a checkpoint in mid-window, after %lld of %lld",
                        run->opt.save_path, name, (long long)acr_window_filled(run->window),
                        (long long)run->window_size);
    return ACCRUE_OK;
}

accrue_status accrue_run_save_begin(accrue_run *run, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_save_content content = {.state = &run->saving, .window = run->window, .val = run->val};
    char *skipped = NULL;
    double start = 0;

    ACR_TRY(accrue_run_save_wait(run, err));
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
    ACR_TRY(acr_bad_rows_text(&skipped, &run->epochs, err));
    content.skipped = skipped;
    ACR_TRY(acr_save_begin(&run->save, run->saving_dir, run->setup.model, &content, err));
    run->held_up = acr_seconds() - start;

cleanup:
    acr_free(skipped);
    return st;
}

/* Ends a save that has been written; *result.aside is the caller's. */
static accrue_status end_save(accrue_run *run, acr_save_result *result, accrue_error *err)
{
    double start = acr_seconds();
    accrue_status st = acr_save_finish(run->save, result, err);

    run->save = NULL;
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

accrue_status accrue_run_save_wait(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_save_result result = {0};

    if (!run->save)
        return ACCRUE_OK;
    ACR_TRY(end_save(run, &result, err));
    ACR_TRY(tell_saved(run, &result, err));

cleanup:
    acr_free(result.aside);
    return st;
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

static accrue_status prove_loss(accrue_run *run, accrue_error *err)
{
    double start = acr_seconds();
    accrue_status st = acr_prove_loss(run, run->saving_dir, err);

    run->held_up += acr_seconds() - start;
    return st;
}

accrue_status acr_run_settle(accrue_run *run, bool wait, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_save_result result = {0};
    accrue_error why = {0};

    if (!run->save || (!wait && !acr_save_done(run->save)))
        return ACCRUE_OK;
    st = end_save(run, &result, &why);
    if (!st) {
        run->best_value = run->saving.best_value;
        run->best_epoch = run->saving.best_epoch;
        if (run->saving_val)
            st = prove_loss(run, &why);
    }
    if (!st)
        st = acr_keep(run, &run->saving, run->saving.is_best ? run->saving.epoch : -1, &why);
    if (st) {
        st = save_failed(run, st, &why, err);
        goto cleanup;
    }
    run->save_status = ACCRUE_OK;
    ACR_TRY(tell_saved(run, &result, err));

cleanup:
    acr_free(result.aside);
    return st;
}
