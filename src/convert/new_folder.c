/* new_folder.c - a folder under a temporary name beside its own, which one rename brings there. */
#include "convert/new_folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

accrue_status acr_new_folder_check(const char *dir, const char *const *files, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    DIR *d = opendir(dir);
    const struct dirent *entry = NULL;

    if (!d)
        return acr_fail_errno(err, errno, "cannot open", dir);
    while (!st && (entry = readdir(d)))
        if (!is_dots(entry->d_name) && !acr_is_like(entry->d_name, files))
            st = acr_fail(err, ACCRUE_EMISMATCH,
                          "%s: it holds '%s', which is none of its files and would be lost", dir,
                          entry->d_name);
    closedir(d);
    return st;
}

/* "<prefix><process>" of a process that is no more. */
static bool is_left_over(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    const char *digits = name + length;
    long process = 0;

    if (strncmp(name, prefix, length) != 0 || !isdigit((unsigned char)*digits) ||
        strspn(digits, "0123456789") != strlen(digits))
        return false;
    process = strtol(digits, NULL, 10);
    return process > 0 && process <= INT32_MAX && process != getpid() &&
           kill((pid_t)process, 0) != 0 && errno == ESRCH;
}

static void remove_left_overs(const acr_new_folder *f, const char *prefix)
{
    DIR *d = opendir(f->parent);
    const struct dirent *entry = NULL;

    while (d && (entry = readdir(d))) {
        char *path = NULL;
        if (!is_left_over(entry->d_name, prefix))
            continue;
        path = acr_sprintf("%s/%s", f->parent, entry->d_name);
        if (path)
            acr_remove_folder(path, f->files);
        acr_free(path);
    }
    if (d)
        closedir(d);
}

/* `dir` without slashes at its end, what is above it, and its temporary name. */
static accrue_status set_paths(acr_new_folder *f, char **prefix, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *bare = acr_strdup(dir), *slash = NULL;

    if (!bare)
        return acr_enomem(err, strlen(dir), "a path");
    for (size_t n = strlen(dir); n > 1 && bare[n - 1] == '/'; n--)
        bare[n - 1] = '\0';
    ACR_TRY(acr_linked_path(&f->dir, bare, err));
    slash = strrchr(f->dir, '/');
    f->parent = acr_parent(f->dir);
    *prefix = acr_sprintf(".%s.tmp-", slash ? slash + 1 : f->dir);
    f->temporary =
        f->parent && *prefix ? acr_sprintf("%s/%s%ld", f->parent, *prefix, (long)getpid()) : NULL;
    if (!f->temporary)
        st = acr_enomem(err, strlen(dir), "a path");

cleanup:
    acr_free(bare);
    return st;
}

accrue_status acr_new_folder_make(acr_new_folder *f, const char *dir, const char *const *files,
                                  int64_t bytes, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_new_folder made = {.files = files};
    char *prefix = NULL;

    memset(f, 0, sizeof *f);
    ACR_TRY(set_paths(&made, &prefix, dir, err));
    ACR_TRY(acr_make_parents(made.dir, err));
    remove_left_overs(&made, prefix);
    if (bytes)
        ACR_TRY(acr_check_room(made.parent, bytes, "a new folder", err));
    acr_remove_folder(made.temporary, files); /* of an earlier process of the same number */
    if (mkdir(made.temporary, 0777) != 0) {
        st = acr_fail_errno(err, errno, "cannot create", made.temporary);
        goto cleanup;
    }
    *f = made;
    memset(&made, 0, sizeof made);

cleanup:
    acr_free(prefix);
    acr_free(made.dir);
    acr_free(made.parent);
    acr_free(made.temporary);
    return st;
}

accrue_status acr_new_folder_text(const acr_new_folder *f, const char *file, const char *text,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", f->temporary, file);

    st = path ? acr_write_file(path, text, strlen(text), err)
              : acr_enomem(err, strlen(file), "a path");
    acr_free(path);
    return st;
}

accrue_status acr_new_folder_json(const acr_new_folder *f, const char *file, const json_t *value,
                                  accrue_error *err)
{
    char *text = acr_json_text(value);
    accrue_status st = text ? acr_new_folder_text(f, file, text, err) : acr_enomem(err, 0, file);

    acr_free(text);
    return st;
}

static accrue_status sync_files(const acr_new_folder *f, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    DIR *d = opendir(f->temporary);
    const struct dirent *entry = NULL;

    if (!d)
        return acr_fail_errno(err, errno, "cannot open", f->temporary);
    while (!st && (entry = readdir(d))) {
        char *path = NULL;
        if (is_dots(entry->d_name))
            continue;
        path = acr_sprintf("%s/%s", f->temporary, entry->d_name);
        st = path ? acr_sync(path, err) : acr_enomem(err, strlen(entry->d_name), "a path");
        acr_free(path);
    }
    closedir(d);
    return st;
}

/* An older folder waits under the temporary name's sibling until the new one has come to its
 * name, where the file system cannot exchange the two. */
static accrue_status replace(const acr_new_folder *f, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *old = acr_sprintf("%s.old", f->temporary);

    if (!old)
        return acr_enomem(err, strlen(f->dir), "a path");
    if (renameat2(AT_FDCWD, f->temporary, AT_FDCWD, f->dir, RENAME_EXCHANGE) == 0) {
        acr_remove_folder(f->temporary, f->files);
    } else if (rename(f->dir, old) != 0 || rename(f->temporary, f->dir) != 0) {
        st = acr_fail_errno(err, errno, "cannot replace", f->dir);
        rename(old, f->dir);
    } else {
        acr_remove_folder(old, f->files);
    }
    acr_free(old);
    return st;
}

accrue_status acr_new_folder_name(acr_new_folder *f, bool may_replace, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(sync_files(f, err));
    ACR_TRY(acr_sync(f->temporary, err));
    if (rename(f->temporary, f->dir) != 0) {
        if (!may_replace || (errno != EEXIST && errno != ENOTEMPTY))
            return acr_fail_errno(err, errno, "cannot bring the finished folder to its name",
                                  f->dir);
        ACR_TRY(acr_new_folder_check(f->dir, f->files, err));
        ACR_TRY(replace(f, err));
    }
    acr_free(f->temporary);
    f->temporary = NULL;
    ACR_TRY(acr_sync(f->parent, err));

cleanup:
    return st;
}

void acr_new_folder_free(acr_new_folder *f)
{
    if (f->temporary)
        acr_remove_folder(f->temporary, f->files);
    acr_free(f->dir);
    acr_free(f->parent);
    acr_free(f->temporary);
    memset(f, 0, sizeof *f);
}
