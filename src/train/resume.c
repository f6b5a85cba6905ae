/* resume.c - going on from a checkpoint: which one, whether it fits, and how the run becomes the
 * one that wrote it.
 *
 * The newest checkpoint is told by what it holds, never by names or times of files.  A folder is
 * only ever read here: what does not hold together is named and left alone. */
#include "train/train.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The run's place ------------------------------------------------------------------------- */

/* Samples of the epoch's order before micro-batch `next`; at its end all, those of a tail that is
 * dropped too. */
static int64_t samples_before(const accrue_run *run, int64_t next)
{
    const acr_epoch *e = &run->current;

    int64_t n = next < run->used ? next : e->n, left_out = 0;

    for (int64_t i = 0; e->begin && i < n; i++)
        left_out += run->dropped[i];
    return e->begin ? e->begin[n] + left_out : 0;
}

void acr_run_state(acr_training_state *out, accrue_run *run)
{
    const accrue_train_options *opt = &run->opt;
    acr_window_counters c = acr_window_get_counters(run->window);

    if (!run->fingerprinted)
        run->data_fingerprint = acr_epochs_fingerprint(&run->epochs, run->setup.data);
    run->fingerprinted = true;
    *out = (acr_training_state){
        .epoch = run->epoch,
        .local_step = accrue_run_next(run) ? run->next : 0,
        .samples = samples_before(run, run->next),
        .global_step = c.global_step,
        .schedule_step = c.schedule_step,
        .micro_batches = c.micro_batches,
        .empty_windows = c.empty,
        .skipped_nonfinite = run->skipped_nonfinite,
        .generation = run->generation,
        .origin = run->origin,
        .origin_epoch = run->origin_epoch,
        .best_epoch = run->best_epoch,
        .superseded_epoch = run->superseded,
        .ranks = run->ranks,
        .gradient_accumulation_steps = opt->window.gradient_accumulation_steps,
        .total_seq_len = opt->total_seq_len,
        .seed = (int64_t)opt->seed,
        .loss_normalization = opt->window.loss_normalization,
        .accumulation_tail = opt->accumulation_tail,
        .compute = opt->compute,
        .optimizer = opt->window.optimizer,
        .train_rows = run->epochs.train_rows,
        .data_fingerprint = (int64_t)run->data_fingerprint,
        .order_fingerprint = run->current.begin ? (int64_t)run->order : 0,
        .best_metric = opt->best_metric,
        .best_value = run->best_value,
        .concluded = run->concluded,
        .is_best = run->is_best,
        .interim = run->interim,
        .configuration = run->configuration,
    };
}

/* Finding --------------------------------------------------------------------------------- */

typedef struct candidate {
    char *dir;
    acr_training_state state;
    bool numbered;
} candidate;

typedef struct candidates {
    candidate *c;
    size_t n, capacity;
} candidates;

static void candidates_free(candidates *all)
{
    for (size_t i = 0; i < all->n; i++)
        acr_free(all->c[i].dir);
    acr_free(all->c);
}

static bool is_number(const char *name)
{
    for (const char *c = name; *c; c++)
        if (!isdigit((unsigned char)*c))
            return false;
    return *name != '\0';
}

static bool holds(const char *dir, const char *file)
{
    char *path = acr_sprintf("%s/%s", dir, file);
    bool is = path && acr_is_file(path);

    acr_free(path);
    return is;
}

/* Passes a folder over for its own fault; want of memory is none. */
static accrue_status note(acr_resume *r, const char *dir, const accrue_error *why,
                          accrue_error *err)
{
    char **more = NULL;

    if (why->status == ACCRUE_ENOMEM)
        return acr_fail(err, why->status, "%s", why->message);
    more = acr_realloc(r->notes, ((size_t)r->n_notes + 1) * sizeof *more);
    if (!more)
        return acr_enomem(err, sizeof *more, "a notice");
    r->notes = more;
    more[r->n_notes] = acr_sprintf("%s: not resumed from, left alone: %s", dir, why->message);
    if (!more[r->n_notes])
        return acr_enomem(err, strlen(why->message), "a notice");
    r->n_notes++;
    return ACCRUE_OK;
}

/* Behind everything at the epoch's end, which a place before its first sample is not. */
static int64_t micro_batches_done(const acr_training_state *s)
{
    return s->local_step || s->samples == 0 ? s->local_step : INT64_MAX;
}

static int64_t compare_places(const acr_training_state *a, const acr_training_state *b)
{
    int64_t x = micro_batches_done(a), y = micro_batches_done(b);

    if (a->generation != b->generation)
        return a->generation < b->generation ? -1 : 1;
    if (a->epoch != b->epoch)
        return a->epoch < b->epoch ? -1 : 1;
    if (x != y)
        return x < y ? -1 : 1;
    return (int64_t)a->concluded - b->concluded;
}

/* Newest first; of two alike the one with a checkpoint's name. */
static int newest_first(const void *left, const void *right)
{
    const candidate *a = left, *b = right;
    int64_t order = compare_places(&b->state, &a->state);

    if (!order)
        order = (int64_t)b->numbered - a->numbered;
    return order ? (int)order : strcmp(a->dir, b->dir);
}

/* Takes `dir` over.  A folder counts by a number for its name or by what it holds. */
static accrue_status consider(candidates *all, acr_resume *r, char *dir, const char *name,
                              bool quiet, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    candidate c = {.dir = dir, .numbered = is_number(name)};
    candidate *more = NULL;
    accrue_error why = {0};
    struct stat s;

    if (*name == '.' || lstat(dir, &s) != 0 || !S_ISDIR(s.st_mode) ||
        (!c.numbered && !holds(dir, "training_state.json") && !holds(dir, "manifest.json")))
        goto cleanup;
    if (acr_training_state_read(&c.state, dir, &why)) {
        if (!quiet)
            st = note(r, dir, &why, err);
        goto cleanup;
    }
    if (all->n == all->capacity) {
        all->capacity = all->capacity ? 2 * all->capacity : 16;
        more = acr_realloc(all->c, all->capacity * sizeof *more);
        if (!more) {
            st = acr_enomem(err, all->capacity * sizeof *more, "the list of checkpoints");
            goto cleanup;
        }
        all->c = more;
    }
    all->c[all->n++] = c;
    dir = NULL;

cleanup:
    acr_free(dir);
    return st;
}

static accrue_status list(candidates *all, acr_resume *r, const accrue_train_options *opt,
                          accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool quiet = opt->no_resume || opt->resume_from;
    DIR *d = opendir(opt->save_path);
    struct dirent *entry = NULL;

    if (!d && errno != ENOENT)
        return acr_fail_errno(err, errno, "cannot read", opt->save_path);
    while (d && (entry = readdir(d)) != NULL) {
        char *dir = acr_sprintf("%s/%s", opt->save_path, entry->d_name);
        if (!dir) {
            st = acr_enomem(err, strlen(opt->save_path), "a path");
            goto cleanup;
        }
        ACR_TRY(consider(all, r, dir, entry->d_name, quiet, err));
    }
    if (all->n)
        qsort(all->c, all->n, sizeof *all->c, newest_first);

cleanup:
    if (d)
        closedir(d);
    return st;
}

static accrue_status hash_file(uint64_t *hash, const char *dir, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, name);
    acr_map map = {0};

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    if (acr_is_file(path))
        st = acr_map_open(&map, path, err);
    if (!st)
        *hash = acr_hash_bytes(map.data, map.bytes, *hash);
    acr_map_close(&map);
    acr_free(path);
    return st;
}

static accrue_status choose(acr_resume *out, candidates *all, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (size_t i = 0; i < all->n && !out->dir; i++) {
        accrue_error why = {0};
        if (acr_manifest_check(all->c[i].dir, true, NULL, &why)) {
            ACR_TRY(note(out, all->c[i].dir, &why, err));
            continue;
        }
        ACR_TRY(hash_file(&out->manifest, all->c[i].dir, "manifest.json", err));
        out->dir = all->c[i].dir;
        out->state = all->c[i].state;
        out->generation = out->state.generation;
        out->origin = out->state.origin;
        out->origin_epoch = out->state.origin_epoch;
        all->c[i].dir = NULL;
    }

cleanup:
    return st;
}

/* Tells which checkpoint a training began from: by its manifest, or by what speculators wrote. */
static accrue_status take_origin(acr_resume *r, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    uint64_t hash = 0;

    if (!r->weights_only) {
        ACR_TRY(hash_file(&hash, r->dir, "manifest.json", err));
        r->manifest = hash;
    } else {
        ACR_TRY(hash_file(&hash, r->dir, "config.json", err));
        ACR_TRY(hash_file(&hash, r->dir, "model.safetensors", err));
        ACR_TRY(hash_file(&hash, r->dir, "model.safetensors.index.json", err));
    }
    r->origin = (int64_t)hash;
    r->origin_epoch = r->weights_only ? -1 : r->state.epoch;

cleanup:
    return st;
}

/* Whether `newest` is what came of the very --resume-from that `asked` is about: then the same
 * command goes on from it.  Training may have replaced the checkpoint that it began from. */
static bool comes_of(const acr_training_state *newest, const acr_resume *asked)
{
    const acr_training_state *s = &asked->state;

    if (!newest->origin)
        return false;
    return newest->origin == asked->origin ||
           (!asked->weights_only && s->origin == newest->origin &&
            s->generation == newest->generation && s->epoch == newest->origin_epoch);
}

/* What speculators wrote has weights, and a state that only torch reads. */
static accrue_status open_asked(acr_resume *asked, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_error why = {0};

    asked->dir = acr_strdup(dir);
    if (!asked->dir)
        return acr_enomem(err, strlen(dir), "a path");
    asked->weights_only =
        !holds(dir, "manifest.json") && !holds(dir, "state.tensors") &&
        holds(dir, "config.json") &&
        (holds(dir, "model.safetensors") || holds(dir, "model.safetensors.index.json"));
    if (!asked->weights_only && (acr_manifest_check(dir, true, NULL, &why) ||
                                 acr_training_state_read(&asked->state, dir, &why)))
        st = acr_fail(err, why.status, "Cannot resume: --resume-from %s: %s", dir, why.message);
    else
        st = take_origin(asked, err);
    return st;
}

/* --resume-from DIR. */
static accrue_status ask_for(acr_resume *out, candidates *all, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_resume asked = {.generation = out->generation}, newest = {0};

    ACR_TRY(open_asked(&asked, dir, err));
    /* Where save_path holds something newer, this is another run that branches off. */
    if (!asked.weights_only && (!all->n || compare_places(&all->c[0].state, &asked.state) <= 0))
        asked.generation = asked.state.generation;
    ACR_TRY(choose(&newest, all, err));
    if (newest.dir && comes_of(&newest.state, &asked)) {
        acr_resume_free(out);
        *out = newest;
        memset(&newest, 0, sizeof newest);
    } else {
        acr_resume_free(out);
        *out = asked;
        memset(&asked, 0, sizeof asked);
    }

cleanup:
    acr_resume_free(&asked);
    acr_resume_free(&newest);
    return st;
}

accrue_status acr_resume_find(acr_resume *out, const accrue_train_options *opt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    candidates all = {0};

    memset(out, 0, sizeof *out);
    out->origin_epoch = -1;
    ACR_TRY(list(&all, out, opt, err));
    out->generation = all.n ? all.c[0].state.generation + 1 : 1;
    if (opt->resume_from)
        ACR_TRY(ask_for(out, &all, opt->resume_from, err));
    else if (!opt->no_resume)
        ACR_TRY(choose(out, &all, err));

cleanup:
    candidates_free(&all);
    return st;
}

accrue_status acr_resume_share(acr_resume *r, accrue_comm *comm, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const bool finder = accrue_comm_rank(comm) == 0;
    acr_resume all = finder ? *r : (acr_resume){0};
    uint64_t length = finder && r->dir ? strlen(r->dir) + 1 : 0;
    char *dir = NULL;

    if (!comm)
        return ACCRUE_OK;
    ACR_TRY(acr_comm_broadcast(comm, "where to go on", &all, sizeof all, 0, err));
    ACR_TRY(acr_comm_broadcast(comm, "where to go on", &length, sizeof length, 0, err));
    if (length) {
        dir = finder ? r->dir : acr_malloc(length);
        if (!dir) {
            st = acr_enomem(err, length, "a path");
            goto cleanup;
        }
        ACR_TRY(acr_comm_broadcast(comm, "where to go on", dir, length, 0, err));
    }
    if (!finder) {
        *r = all;
        r->dir = dir;
        r->notes = NULL;
        r->n_notes = 0;
        dir = NULL;
    }

cleanup:
    if (!finder)
        acr_free(dir);
    return st;
}

void acr_resume_free(acr_resume *r)
{
    for (int i = 0; i < r->n_notes; i++)
        acr_free(r->notes[i]);
    acr_free(r->notes);
    acr_free(r->dir);
    memset(r, 0, sizeof *r);
}

/* Loading --------------------------------------------------------------------------------- */

/* The micro-batch that begins behind so many samples of the epoch's order, e->n for all of them;
 * -1: none does. */
static int64_t begins_behind(const acr_epoch *e, int64_t samples)
{
    int64_t i = 0;

    while (i < e->n && e->begin[i] < samples)
        i++;
    return e->begin[i] == samples ? i : -1;
}

static accrue_status find_place(acr_resume *from, const acr_epoch *e, accrue_error *err)
{
    const acr_training_state *s = &from->state;
    int64_t at = begins_behind(e, s->samples);
    int64_t told = s->local_step && s->local_step < e->n ? s->local_step : e->n;

    if (s->samples < 0) { /* not stored: local_step alone tells */
        from->from = s->local_step ? s->local_step : -1;
        return ACCRUE_OK;
    }
    from->from = at < e->n ? at : -1;
    if (at < 0 || s->local_step != (at < e->n ? at : 0))
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "Cannot resume: %s: \"samples\" is %lld, micro-batch %lld of epoch %lld "
                        "begins behind %lld",
                        from->dir, (long long)s->samples, (long long)s->local_step,
                        (long long)s->epoch, (long long)e->begin[told]);
    return ACCRUE_OK;
}

/* The micro-batches of the epoch that was left off: lengths, seed and packing, or a batch plan. */
static accrue_status check_order(const accrue_run *run, acr_resume *from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_training_state *s = &from->state;
    acr_epoch epoch = {0};
    uint64_t hash = 0;

    if (s->epoch >= run->opt.epochs)
        return ACCRUE_OK;
    ACR_TRY(acr_epochs_train(&epoch, &run->epochs, s->epoch, err));
    hash = acr_epoch_hash(&epoch);
    if (hash != (uint64_t)s->order_fingerprint)
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "Cannot resume: %s: \"order_fingerprint\" of epoch %lld is \"%016llx\", this "
                      "run's micro-batches are \"%016llx\"",
                      from->dir, (long long)s->epoch, (unsigned long long)s->order_fingerprint,
                      (unsigned long long)hash);
    else
        st = find_place(from, &epoch, err);

cleanup:
    acr_epoch_free(&epoch);
    return st;
}

/* Its files were opened one after the other: a run that is still writing there may have exchanged
 * the folder in between. */
static accrue_status check_unchanged(const acr_resume *from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    uint64_t now = 0;

    ACR_TRY(hash_file(&now, from->dir, "manifest.json", err));
    if (now != from->manifest)
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "Cannot resume: %s: was replaced while it was read; another run writes there",
                      from->dir);

cleanup:
    return st;
}

accrue_status acr_run_load(accrue_run *run, acr_resume *from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_training_state *s = &from->state;
    acr_training_state ours;

    acr_run_state(&ours, run);
    ACR_TRY(acr_training_state_agrees(s, &ours, from->dir, err));
    ACR_TRY(acr_state_same_model(from->dir, run->setup.model, err));
    ACR_TRY(acr_state_same_vocab(from->dir, run->setup.model, err));
    ACR_TRY(check_order(run, from, err));
    ACR_TRY(acr_state_read(from->dir, run->setup.model, run->window, err));
    ACR_TRY(acr_dist_refresh(run->dist, err));
    ACR_TRY(check_unchanged(from, err));
    acr_window_set_counters(run->window, &(acr_window_counters){.micro_batches = s->micro_batches,
                                                                .global_step = s->global_step,
                                                                .schedule_step = s->schedule_step,
                                                                .empty = s->empty_windows});
    run->empty_told = s->empty_windows;
    run->skipped_nonfinite = s->skipped_nonfinite;
    run->best_value = s->best_value;
    run->best_epoch = s->best_epoch;
    run->saved_micro_batches = s->micro_batches;
    run->resumed = true;

cleanup:
    return st;
}
