/* checkpoint.c - a checkpoint folder, written so that a crash leaves the old one or the new one.
 *
 * Everything goes into a temporary sibling folder, is synced file by file, and takes its name by
 * one rename (an exchange where an older folder has it); the parent is synced after that.  Files:
 * docs/FORMATS.md. */
#include "train/train.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXTRA_TENSORS = 2 }; /* d2t, t2d */

static accrue_status sync_dir(const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) != 0)
        st = acr_fail_errno(err, errno, "cannot sync", path);
    if (fd >= 0)
        close(fd);
    return st;
}

void acr_checkpoint_remove(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *entry = NULL;

    while (d && (entry = readdir(d)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(d), entry->d_name, 0);
    if (d)
        closedir(d);
    rmdir(path);
}

accrue_status acr_checkpoint_parents(const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_strdup(dir);

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            if (mkdir(path, 0777) != 0 && errno != EEXIST) {
                st = acr_fail_errno(err, errno, "cannot create", path);
                break;
            }
            *p = '/';
        }
    acr_free(path);
    return st;
}

/* The tensors of model.safetensors, floats as bf16: the operand copies of bf16 compute and tables
 * that are bf16 in their file serve as they are, the rest is converted into the idle arena. */
static accrue_status weight_tensor(acr_tensor *out, const acr_model *m, const acr_param *p,
                                   acr_tape *scratch)
{
    int64_t n = p->rows * p->cols;
    const void *from = p->master ? p->master : p->frozen;
    acr_dtype type = p->master ? m->real : p->frozen_type;
    void *copy = NULL;

    *out = (acr_tensor){.name = p->name,
                        .dtype = ACR_DTYPE_BF16,
                        .n_dims = p->n_dims,
                        .dims = {p->rows, p->cols},
                        .bytes = 2 * (size_t)n};
    if (p->bf16 || type == ACR_DTYPE_BF16) {
        out->data = p->bf16 ? p->bf16 : from;
        return ACCRUE_OK;
    }
    copy = acr_tape_alloc(scratch, n, 2);
    if (!copy)
        return ACCRUE_ENOMEM;
    acr_convert(ACR_DTYPE_BF16, copy, type, from, n);
    out->data = copy;
    return ACCRUE_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const acr_tensor *)a)->name, ((const acr_tensor *)b)->name);
}

static accrue_status write_weights(const char *dir, acr_model *m, acr_tape *scratch,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_tensor *tensors = acr_calloc((size_t)m->n_params + EXTRA_TENSORS, sizeof *tensors);
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    char *path = acr_sprintf("%s/model.safetensors", dir);
    int n = 0;

    acr_tape_reset(scratch);
    if (!tensors || !metadata || !path) {
        st = acr_enomem(err, (size_t)m->n_params * sizeof *tensors, "a checkpoint");
        goto cleanup;
    }
    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        if (p == m->top.verifier_norm || p == m->top.verifier_head)
            continue; /* never part of a checkpoint */
        if (weight_tensor(&tensors[n++], m, p, scratch)) {
            st = acr_tape_status(scratch, err);
            goto cleanup;
        }
    }
    if (m->vocab.d2t) {
        int64_t draft = m->vocab.draft_vocab_size, vocab = m->vocab.vocab_size;
        tensors[n++] = (acr_tensor){.name = "d2t",
                                    .dtype = ACR_DTYPE_I64,
                                    .n_dims = 1,
                                    .dims = {draft},
                                    .data = m->vocab.d2t,
                                    .bytes = 8 * (size_t)draft};
        tensors[n++] = (acr_tensor){.name = "t2d",
                                    .dtype = ACR_DTYPE_BOOL,
                                    .n_dims = 1,
                                    .dims = {vocab},
                                    .data = m->vocab.t2d,
                                    .bytes = (size_t)vocab};
    }
    qsort(tensors, (size_t)n, sizeof *tensors, by_name);
    ACR_TRY(acr_safetensors_write(path, tensors, n, metadata, true, err));

cleanup:
    acr_tape_reset(scratch);
    json_decref(metadata);
    acr_free(tensors);
    acr_free(path);
    return st;
}

static accrue_status write_text(const char *dir, const char *name, const char *text,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, name);

    if (!path || !text)
        st = acr_enomem(err, 0, name);
    else
        st = acr_write_file(path, text, strlen(text), true, err);
    acr_free(path);
    return st;
}

/* Takes over `value`. */
static accrue_status write_json(const char *dir, const char *name, json_t *value, accrue_error *err)
{
    char *text = value ? acr_json_text(value) : NULL;
    accrue_status st = write_text(dir, name, text, err);

    acr_free(text);
    json_decref(value);
    return st;
}

static void set_ratio(json_t *o, double sum, double total, const char *format, int k)
{
    char key[64];

    snprintf(key, sizeof key, format, k);
    json_object_set_new(o, key, json_real(total != 0 ? sum / total : 0.0));
}

static json_t *val_metrics(const accrue_metrics *m)
{
    json_t *o = json_object();
    char format[64];

    for (int k = 0; k < m->n_steps; k++) {
        set_ratio(o, m->step_loss_sum[k], m->step_loss_total[k], "loss_%d_epoch", k);
        set_ratio(o, m->full_acc_sum[k], m->full_acc_total[k], "full_acc_%d_epoch", k);
        set_ratio(o, m->cond_acc_sum[k], m->cond_acc_total[k], "cond_acc_%d_epoch", k);
        for (int i = 0; i < m->n_terms; i++) {
            snprintf(format, sizeof format, "%s_loss_%%d_epoch", m->term_name[i]);
            set_ratio(o, m->term_loss_sum[i][k], m->term_loss_total[i][k], format, k);
        }
    }
    json_object_set_new(o, "loss_epoch",
                        json_real(m->loss_total != 0 ? m->loss_sum / m->loss_total : 0.0));
    return o;
}

static accrue_status write_files(const char *dir, acr_model *m, acr_tape *scratch,
                                 const acr_checkpoint_content *c, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(write_json(dir, "config.json", json_incref(m->config.json), err));
    ACR_TRY(write_weights(dir, m, scratch, err));
    if (c->val)
        ACR_TRY(write_json(dir, "val_metrics.json", val_metrics(c->val), err));
    if (c->state) {
        ACR_TRY(acr_state_write(dir, m, c->window, err));
        ACR_TRY(write_json(dir, "training_state.json", acr_training_state_json(c->state), err));
        if (c->skipped)
            ACR_TRY(write_text(dir, "skipped_samples.jsonl", c->skipped, err));
        ACR_TRY(acr_manifest_write(dir, err));
    }
    ACR_TRY(sync_dir(dir, err));

cleanup:
    return st;
}

/* Moves what has the name and is no whole checkpoint, or holds more than one, to the first free
 * name "<dir>.aside-<k>", so that only checkpoints of ours are ever replaced. */
static accrue_status set_aside(char **aside, const char *dir, accrue_error *err)
{
    struct stat s;
    bool unlisted = false;
    accrue_error why = {0};

    if (lstat(dir, &s) != 0 || (!acr_manifest_check(dir, &unlisted, &why) && !unlisted))
        return ACCRUE_OK;
    if (why.status == ACCRUE_ENOMEM)
        return acr_fail(err, why.status, "%s", why.message);
    for (int k = 1; k == 1 || lstat(*aside, &s) == 0; k++) {
        acr_free(*aside);
        *aside = acr_sprintf("%s.aside-%d", dir, k);
        if (!*aside)
            return acr_enomem(err, strlen(dir), "a path");
    }
    if (rename(dir, *aside) != 0)
        return acr_fail_errno(err, errno, "cannot set aside", dir);
    return ACCRUE_OK;
}

/* Gives the finished folder its name. */
static accrue_status take_name(const char *temporary, const char *dir, const char *parent,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    struct stat s;

    if (lstat(dir, &s) != 0) {
        if (rename(temporary, dir) != 0)
            st = acr_fail_errno(err, errno, "cannot rename a checkpoint to this name", dir);
    } else if (renameat2(AT_FDCWD, temporary, AT_FDCWD, dir, RENAME_EXCHANGE) != 0) {
        st = acr_fail_errno(err, errno, "cannot replace", dir);
    }
    if (!st)
        st = sync_dir(parent, err);
    return st;
}

accrue_status acr_checkpoint_write(const char *dir, acr_model *m, acr_tape *scratch,
                                   const acr_checkpoint_content *content, char **aside,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *slash = strrchr(dir, '/');
    int parent_length = slash ? (int)(slash - dir) : 1;
    char *parent = acr_sprintf("%.*s", parent_length ? parent_length : 1, slash ? dir : ".");
    char *temporary = acr_sprintf("%s/.%s.tmp-%ld", parent ? parent : "", slash ? slash + 1 : dir,
                                  (long)getpid());

    *aside = NULL;
    if (!parent || !temporary) {
        st = acr_enomem(err, strlen(dir), "a path");
        goto cleanup;
    }
    ACR_TRY(acr_checkpoint_parents(temporary, err));
    acr_checkpoint_remove(temporary);
    if (mkdir(temporary, 0777) != 0) {
        st = acr_fail_errno(err, errno, "cannot create", temporary);
        goto cleanup;
    }
    ACR_TRY(write_files(temporary, m, scratch, content, err));
    if (content->state)
        ACR_TRY(set_aside(aside, dir, err));
    ACR_TRY(take_name(temporary, dir, parent, err));

cleanup:
    /* After an exchange this is the folder that was replaced. */
    if (temporary)
        acr_checkpoint_remove(temporary);
    acr_free(temporary);
    acr_free(parent);
    return st;
}

/* ".<name>.tmp-<digits>" */
static bool is_temporary(const char *name)
{
    const char *suffix = strstr(name, ".tmp-");

    return *name == '.' && suffix && suffix > name + 1 && suffix[5] &&
           strspn(suffix + 5, "0123456789") == strlen(suffix + 5);
}

void acr_checkpoint_clean(const char *parent)
{
    DIR *d = opendir(parent);
    struct dirent *entry = NULL;

    while (d && (entry = readdir(d)) != NULL) {
        char *path = NULL;
        struct stat s;
        if (!is_temporary(entry->d_name))
            continue;
        path = acr_sprintf("%s/%s", parent, entry->d_name);
        if (path && lstat(path, &s) == 0 && S_ISDIR(s.st_mode))
            acr_checkpoint_remove(path);
        else if (path && S_ISLNK(s.st_mode))
            unlink(path);
        acr_free(path);
    }
    if (d)
        closedir(d);
}

accrue_status acr_checkpoint_vacant(const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    DIR *d = opendir(dir);
    struct dirent *entry = NULL;

    while (d && !st && (entry = readdir(d)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            st = acr_fail(err, ACCRUE_EINVAL,
                          "%s: is not empty (it holds %s); a new or empty folder expected", dir,
                          entry->d_name);
    if (d)
        closedir(d);
    return st;
}

accrue_status acr_checkpoint_link(const char *parent, const char *name, const char *target,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", parent, name);
    char *temporary = acr_sprintf("%s/.%s.tmp-%ld", parent, name, (long)getpid());

    if (!path || !temporary) {
        st = acr_enomem(err, strlen(name), "a path");
        goto cleanup;
    }
    unlink(temporary);
    if (symlink(target, temporary) != 0 || rename(temporary, path) != 0)
        st = acr_fail_errno(err, errno, "cannot link", path);

cleanup:
    acr_free(path);
    acr_free(temporary);
    return st;
}
