/* checkpoint.c - a checkpoint's folder, named so that a crash leaves the old one or the new one.
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
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* All that we ever put into a checkpoint's folder. */
static const char *const own_files[] = {
    "config.json",      "model.safetensors",     "state.tensors", "training_state.json",
    "val_metrics.json", "skipped_samples.jsonl", "manifest.json", NULL};

void acr_checkpoint_remove(const char *path)
{
    acr_remove_folder(path, own_files);
}

char *acr_checkpoint_temporary(const char *parent, const char *name)
{
    return acr_sprintf("%s/.%s.tmp-%ld", parent, name, (long)getpid());
}

accrue_status acr_checkpoint_room(const char *parent, int64_t bytes, accrue_error *err)
{
    const int64_t beside = 256 << 10; /* headers, and what the file system keeps for itself */

    return acr_check_room(parent, bytes + beside, "a checkpoint", err);
}

accrue_status acr_checkpoint_make(const char *temporary, const char *parent, int64_t bytes,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_make_parents(temporary, err));
    acr_checkpoint_remove(temporary);
    ACR_TRY(acr_checkpoint_room(parent, bytes, err));
    if (mkdir(temporary, 0777) != 0)
        st = acr_fail_errno(err, errno, "cannot create", temporary);

cleanup:
    return st;
}

/* Moves what is there to the first free name "<path>.aside-<k>". */
static accrue_status move_aside(char **aside, const char *path, accrue_error *err)
{
    struct stat s;

    for (int k = 1; k == 1 || lstat(*aside, &s) == 0; k++) {
        acr_free(*aside);
        *aside = acr_sprintf("%s.aside-%d", path, k);
        if (!*aside)
            return acr_enomem(err, strlen(path), "a path");
    }
    if (rename(path, *aside) != 0)
        return acr_fail_errno(err, errno, "cannot set aside", path);
    return ACCRUE_OK;
}

/* Only whole checkpoints that hold nothing else are ever replaced. */
static accrue_status set_aside(char **aside, const char *dir, accrue_error *err)
{
    struct stat s;
    bool unlisted = false;
    accrue_error why = {0};

    if (lstat(dir, &s) != 0)
        return ACCRUE_OK;
    if (!S_ISLNK(s.st_mode) && !acr_manifest_check(dir, false, &unlisted, &why) && !unlisted)
        return ACCRUE_OK;
    if (why.status == ACCRUE_ENOMEM)
        return acr_fail(err, why.status, "%s", why.message);
    return move_aside(aside, dir, err);
}

/* Without an exchange of names the old folder waits under a hidden one, from which
 * acr_checkpoint_recover takes it back where the new one has not come to its name. */
static accrue_status take_name_in_two(const char *temporary, const char *dir, const char *parent,
                                      accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *old = acr_sprintf("%s/.%s.old-%ld", parent,
                            strrchr(dir, '/') ? strrchr(dir, '/') + 1 : dir, (long)getpid());

    if (!old)
        return acr_enomem(err, strlen(dir), "a path");
    if (rename(dir, old) != 0 || rename(temporary, dir) != 0) {
        st = acr_fail_errno(err, errno, "cannot replace", dir);
        rename(old, dir);
        goto cleanup;
    }
    ACR_TRY(acr_sync(parent, err));
    acr_checkpoint_remove(old);

cleanup:
    acr_free(old);
    return st;
}

/* Gives the finished folder its name. */
static accrue_status take_name(const char *temporary, const char *dir, const char *parent,
                               accrue_error *err)
{
    struct stat s;

    if (lstat(dir, &s) != 0) {
        if (rename(temporary, dir) != 0)
            return acr_fail_errno(err, errno, "cannot rename a checkpoint to this name", dir);
    } else if (renameat2(AT_FDCWD, temporary, AT_FDCWD, dir, RENAME_EXCHANGE) != 0) {
        if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)
            return take_name_in_two(temporary, dir, parent, err);
        return acr_fail_errno(err, errno, "cannot replace", dir);
    }
    return acr_sync(parent, err);
}

accrue_status acr_checkpoint_name(const char *temporary, const char *dir, const char *parent,
                                  bool set_others_aside, char **aside, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_sync(temporary, err));
    if (set_others_aside)
        ACR_TRY(set_aside(aside, dir, err));
    ACR_TRY(take_name(temporary, dir, parent, err));

cleanup:
    return st;
}

/* Hidden names ------------------------------------------------------------------------------ */

/* The name in ".<name><mark><digits>", into `out`; false for any other. */
static bool hidden_name(char out[256], const char *entry, const char *mark)
{
    const char *end = strstr(entry, mark);
    size_t digits = end ? strlen(end + strlen(mark)) : 0;

    if (*entry != '.' || !end || end < entry + 2 || !digits ||
        strspn(end + strlen(mark), "0123456789") != digits)
        return false;
    snprintf(out, 256, "%.*s", (int)(end - entry - 1), entry + 1);
    return true;
}

static bool is_number(const char *name)
{
    return *name && strspn(name, "0123456789") == strlen(name);
}

/* A link of ours has the name of an epoch's folder for a target. */
static bool is_own_link(const char *path)
{
    char target[64] = "";

    return readlink(path, target, sizeof target - 1) > 0 && is_number(target);
}

/* Whether the hidden entry is one that a save made and left: anything else is somebody's. */
static bool is_left_over(const char *path, const char *name)
{
    struct stat s;
    DIR *d = NULL;
    struct dirent *entry = NULL;
    bool own = true;

    if (lstat(path, &s) != 0)
        return false;
    if (S_ISLNK(s.st_mode))
        return is_own_link(path) &&
               (strncmp(name, "epoch", 5) == 0 || strcmp(name, "checkpoint_best") == 0);
    if (S_ISREG(s.st_mode))
        return strcmp(name, "skipped_samples.jsonl") == 0;
    d = is_number(name) ? opendir(path) : NULL;
    while (d && own && (entry = readdir(d)) != NULL)
        own = acr_is_like(entry->d_name, own_files) || strcmp(entry->d_name, ".") == 0 ||
              strcmp(entry->d_name, "..") == 0;
    if (d)
        closedir(d);
    return d && own;
}

/* For each entry of that mark: does what `act` does with its path and name. */
static void each_hidden(const char *parent, const char *mark,
                        void (*act)(const char *parent, const char *path, const char *name))
{
    DIR *d = opendir(parent);
    struct dirent *entry = NULL;
    char name[256];

    while (d && (entry = readdir(d)) != NULL) {
        char *path = NULL;
        if (!hidden_name(name, entry->d_name, mark))
            continue;
        path = acr_sprintf("%s/%s", parent, entry->d_name);
        if (path && is_left_over(path, name))
            act(parent, path, name);
        acr_free(path);
    }
    if (d)
        closedir(d);
}

static void remove_left_over(const char *parent, const char *path, const char *name)
{
    (void)parent;
    (void)name;
    if (unlink(path) != 0)
        acr_checkpoint_remove(path);
}

static void take_back(const char *parent, const char *path, const char *name)
{
    char *dir = acr_sprintf("%s/%s", parent, name);
    bool whole = !acr_manifest_check(path, false, NULL, NULL);
    struct stat s;

    if (dir && whole && lstat(dir, &s) != 0)
        rename(path, dir);
    else if (dir && (!whole || !acr_manifest_check(dir, false, NULL, NULL)))
        acr_checkpoint_remove(path);
    acr_free(dir);
}

void acr_checkpoint_recover(const char *parent)
{
    each_hidden(parent, ".old-", take_back);
}

void acr_checkpoint_clean(const char *parent)
{
    each_hidden(parent, ".tmp-", remove_left_over);
}

accrue_status acr_checkpoint_discard(const char *parent, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *dir = acr_sprintf("%s/%s", parent, name);
    char *temporary = acr_checkpoint_temporary(parent, name);

    if (!dir || !temporary) {
        st = acr_enomem(err, strlen(parent), "a path");
        goto cleanup;
    }
    if (rename(dir, temporary) == 0)
        acr_checkpoint_remove(temporary);
    else if (errno != ENOENT)
        st = acr_fail_errno(err, errno, "cannot remove", dir);

cleanup:
    acr_free(dir);
    acr_free(temporary);
    return st;
}

accrue_status acr_checkpoint_lock(int *fd, const char *dir, accrue_error *err)
{
    bool taken = false;

    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0 || flock(*fd, LOCK_EX | LOCK_NB) == 0)
        return ACCRUE_OK;
    taken = errno == EWOULDBLOCK;
    close(*fd);
    *fd = -1;
    if (taken)
        return acr_fail(err, ACCRUE_EINVAL, "--save-path: %s: another run is writing there", dir);
    return ACCRUE_OK;
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
                                  char **aside, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", parent, name);
    char *temporary = acr_checkpoint_temporary(parent, name);
    struct stat s;

    *aside = NULL;
    if (!path || !temporary) {
        st = acr_enomem(err, strlen(name), "a path");
        goto cleanup;
    }
    if (lstat(path, &s) == 0 && !is_own_link(path))
        ACR_TRY(move_aside(aside, path, err));
    unlink(temporary);
    if (symlink(target, temporary) != 0 || rename(temporary, path) != 0)
        st = acr_fail_errno(err, errno, "cannot link", path);

cleanup:
    acr_free(path);
    acr_free(temporary);
    return st;
}
