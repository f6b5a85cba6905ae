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
#include <sys/statvfs.h>
#include <unistd.h>

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

char *acr_checkpoint_temporary(const char *parent, const char *name)
{
    return acr_sprintf("%s/.%s.tmp-%ld", parent, name, (long)getpid());
}

accrue_status acr_checkpoint_room(const char *parent, int64_t bytes, accrue_error *err)
{
    const uint64_t beside = 256 << 10; /* headers, and what the file system keeps for itself */
    uint64_t needed = (uint64_t)bytes + beside;
    struct statvfs s;

    if (statvfs(parent, &s) != 0)
        return acr_fail_errno(err, errno, "cannot ask for its free space", parent);
    if (s.f_blocks == 0 || s.f_bavail >= (needed + s.f_frsize - 1) / s.f_frsize)
        return ACCRUE_OK; /* a file system without a size may have room */
    return acr_fail(err, ACCRUE_ENOSPACE,
                    "%s: no room for a checkpoint: %llu bytes needed, %llu free", parent,
                    (unsigned long long)needed, (unsigned long long)s.f_bavail * s.f_frsize);
}

accrue_status acr_checkpoint_make(const char *temporary, const char *parent, int64_t bytes,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_checkpoint_parents(temporary, err));
    acr_checkpoint_remove(temporary);
    ACR_TRY(acr_checkpoint_room(parent, bytes, err));
    if (mkdir(temporary, 0777) != 0)
        st = acr_fail_errno(err, errno, "cannot create", temporary);

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
        st = acr_sync(parent, err);
    return st;
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

/* ".<name>.tmp-<digits>" */
static bool is_temporary(const char *name)
{
    const char *suffix = strstr(name, ".tmp-");

    return *name == '.' && suffix && suffix > name + 1 && suffix[5] &&
           strspn(suffix + 5, "0123456789") == strlen(suffix + 5);
}

/* Other files that happen to have such a name are somebody's. */
static bool is_list(const char *name)
{
    static const char list[] = ".skipped_samples.jsonl.";

    return strncmp(name, list, sizeof list - 1) == 0;
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
        else if (path && (S_ISLNK(s.st_mode) || is_list(entry->d_name)))
            unlink(path);
        acr_free(path);
    }
    if (d)
        closedir(d);
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
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", parent, name);
    char *temporary = acr_checkpoint_temporary(parent, name);

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
