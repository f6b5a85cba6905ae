/* output.c - the prepared data set's folder, which comes to its name when it is whole, and
 * token_freq.pt. */
#include "convert/prepare_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* All that is ever put into it. */
static bool is_ours(const char *name)
{
    static const char *const names[] = {"data-*-of-*.arrow", "dataset_info.json",   "state.json",
                                        "token_freq.pt",     "d2t-*.npy",           "t2d-*.npy",
                                        "prepare.json",      "skipped_lines.jsonl", "rows.tmp"};

    for (int i = 0; i < ACR_COUNT(names); i++)
        if (fnmatch(names[i], name, 0) == 0)
            return true;
    return false;
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Files of ours alone: a folder that holds another thing stays with it. */
static void remove_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry = NULL;

    if (!d && fd >= 0)
        close(fd);
    while (d && (entry = readdir(d)) != NULL)
        if (is_ours(entry->d_name))
            unlinkat(dirfd(d), entry->d_name, 0);
    if (d)
        closedir(d);
    rmdir(path);
}

accrue_status acr_output_folder_check(const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    DIR *d = opendir(dir);
    const struct dirent *entry = NULL;

    if (!d)
        return acr_fail_errno(err, errno, "cannot open", dir);
    while (!st && (entry = readdir(d)) != NULL)
        if (!is_dots(entry->d_name) && !is_ours(entry->d_name))
            st = acr_fail(err, ACCRUE_EMISMATCH,
                          "%s: it holds '%s', which is not the data set's and would be lost", dir,
                          entry->d_name);
    closedir(d);
    return st;
}

bool acr_output_folder_is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *entry = d ? readdir(d) : NULL;
    bool empty = d != NULL;

    for (; entry && empty; entry = readdir(d))
        empty = is_dots(entry->d_name);
    if (d)
        closedir(d);
    return empty;
}

static accrue_status make_parents(const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_strdup(dir);

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    for (char *p = path + 1; *p && !st; p++)
        if (*p == '/') {
            *p = '\0';
            if (mkdir(path, 0777) != 0 && errno != EEXIST)
                st = acr_fail_errno(err, errno, "cannot create", path);
            *p = '/';
        }
    acr_free(path);
    return st;
}

accrue_status acr_output_folder_make(acr_output_folder *out, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *slash = NULL;

    memset(out, 0, sizeof *out);
    out->dir = acr_strdup(dir);
    for (size_t n = out->dir ? strlen(dir) : 0; n > 1 && out->dir[n - 1] == '/'; n--)
        out->dir[n - 1] = '\0';
    slash = out->dir ? strrchr(out->dir, '/') : NULL;
    if (slash)
        out->parent =
            acr_sprintf("%.*s", slash == out->dir ? 1 : (int)(slash - out->dir), out->dir);
    else
        out->parent = acr_strdup(".");
    if (!out->dir || !out->parent) {
        st = acr_enomem(err, strlen(dir), "a path");
        goto cleanup;
    }
    ACR_TRY(make_parents(out->dir, err));
    out->temporary =
        acr_sprintf("%s/.%s.tmp-%ld", out->parent, slash ? slash + 1 : out->dir, (long)getpid());
    if (!out->temporary) {
        st = acr_enomem(err, strlen(dir), "a path");
        goto cleanup;
    }
    remove_folder(out->temporary);
    if (mkdir(out->temporary, 0777) != 0)
        st = acr_fail_errno(err, errno, "cannot create", out->temporary);

cleanup:
    return st;
}

/* An older folder waits under the temporary name's sibling until the new one has come to its
 * name, where the file system cannot exchange the two. */
static accrue_status replace(acr_output_folder *f, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *old = acr_sprintf("%s.old", f->temporary);

    if (!old)
        return acr_enomem(err, strlen(f->dir), "a path");
    if (renameat2(AT_FDCWD, f->temporary, AT_FDCWD, f->dir, RENAME_EXCHANGE) == 0) {
        remove_folder(f->temporary);
    } else if (rename(f->dir, old) != 0 || rename(f->temporary, f->dir) != 0) {
        st = acr_fail_errno(err, errno, "cannot replace", f->dir);
        rename(old, f->dir);
    } else {
        remove_folder(old);
    }
    acr_free(old);
    return st;
}

accrue_status acr_output_folder_name(acr_output_folder *f, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_sync(f->temporary, err));
    if (rename(f->temporary, f->dir) != 0) {
        if (errno != EEXIST && errno != ENOTEMPTY)
            return acr_fail_errno(err, errno, "cannot rename the data set to this name", f->dir);
        ACR_TRY(acr_output_folder_check(f->dir, err));
        ACR_TRY(replace(f, err));
    }
    ACR_TRY(acr_sync(f->parent, err));
    acr_free(f->temporary);
    f->temporary = NULL;

cleanup:
    return st;
}

void acr_output_folder_free(acr_output_folder *f)
{
    if (f->temporary)
        remove_folder(f->temporary);
    acr_free(f->dir);
    acr_free(f->parent);
    acr_free(f->temporary);
    memset(f, 0, sizeof *f);
}

/* token_freq.pt ----------------------------------------------------------------------------- */

/* A number as pickle has it: BININT, or LONG1 of eight bytes. */
static size_t put_number(uint8_t *out, int64_t x)
{
    bool small = x <= INT32_MAX;
    size_t head = small ? 1 : 2, n = small ? 4 : 8;

    out[0] = small ? 'J' : 0x8a;
    out[1] = 8;
    for (size_t i = 0; i < n; i++)
        out[head + i] = (uint8_t)((uint64_t)x >> 8 * i);
    return head + n;
}

/* The older of torch's two forms, which it reads as well: pickles one behind the other, of a magic
 * number, the protocol's, a description of the system, the object, and the keys of its tensors. */
accrue_status acr_token_freq_write(const char *path, const int64_t *counts, int64_t vocab_size,
                                   accrue_error *err)
{
    static const uint8_t head[] = {0x80, 2,    0x8a, 10,   0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20,
                                   0x6a, 0xa8, 0x50, 0x19, '.',  0x80, 2,    'M',  0xe9, 3,
                                   '.',  0x80, 2,    '}',  '.',  0x80, 2,    '}',  '('};
    static const uint8_t tail[] = {'u', '.', 0x80, 2, ']', '.'};
    accrue_status st = ACCRUE_OK;
    uint8_t *bytes = NULL;
    size_t room = sizeof head + sizeof tail, n = 0;

    for (int64_t id = 0; id < vocab_size; id++)
        room += counts[id] ? 20 : 0;
    bytes = acr_malloc(room);
    if (!bytes)
        return acr_enomem(err, room, path);
    memcpy(bytes, head, sizeof head);
    n = sizeof head;
    for (int64_t id = 0; id < vocab_size; id++)
        if (counts[id]) {
            n += put_number(bytes + n, id);
            n += put_number(bytes + n, counts[id]);
        }
    memcpy(bytes + n, tail, sizeof tail);
    ACR_TRY(acr_write_file(path, bytes, n + sizeof tail, err));
    ACR_TRY(acr_sync(path, err));

cleanup:
    acr_free(bytes);
    return st;
}
