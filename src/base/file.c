/* file.c - read-only mappings, whole-file writes and strict JSON. */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

bool acr_is_dir(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool acr_is_file(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

bool acr_is_link(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0 && S_ISLNK(s.st_mode);
}

bool acr_exists(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

int64_t acr_file_bytes(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 ? (int64_t)s.st_size : -1;
}

char *acr_parent(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return acr_strdup(".");
    return acr_sprintf("%.*s", slash == path ? 1 : (int)(slash - path), path);
}

accrue_status acr_linked_path(char **out, const char *path, accrue_error *err)
{
    struct stat link;
    char *real = NULL;

    *out = NULL;
    if (lstat(path, &link) == 0 && S_ISLNK(link.st_mode)) {
        real = realpath(path, NULL);
        if (!real)
            return acr_fail_errno(err, errno, "cannot follow the link", path);
    }
    *out = acr_strdup(real ? real : path);
    free(real);
    return *out ? ACCRUE_OK : acr_enomem(err, strlen(path), "a path");
}

accrue_status acr_make_parents(const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_strdup(name);

    if (!path)
        return acr_enomem(err, strlen(name), "a path");
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

enum { LONGEST_PATH = 4096 };

/* Behind "..", a folder that is there may be named by way of one that is not: all of it counts, as
 * it does of a path that is longer than the system takes. */
size_t acr_parents_there(const char *name)
{
    char path[LONGEST_PATH] = "";
    const size_t n = strlen(name);
    size_t there = 0;

    if (n >= sizeof path || strstr(name, ".."))
        return n;
    for (size_t i = 0; i < n; i++) {
        if (i && name[i] == '/' && acr_exists(path))
            there = i;
        path[i] = name[i];
    }
    return there;
}

void acr_remove_parents(const char *name, size_t there)
{
    char path[LONGEST_PATH] = "";
    const size_t n = strlen(name);

    if (n >= sizeof path)
        return;
    memcpy(path, name, n);
    for (size_t i = n; i-- > there + 1;)
        if (path[i] == '/') {
            path[i] = '\0';
            (void)rmdir(path);
        }
}

accrue_status acr_check_room(const char *dir, int64_t bytes, const char *what, accrue_error *err)
{
    const uint64_t needed = (uint64_t)bytes;
    struct statvfs s;

    if (statvfs(dir, &s) != 0)
        return acr_fail_errno(err, errno, "cannot ask for its free space", dir);
    if (s.f_blocks == 0 || s.f_bavail >= (needed + s.f_frsize - 1) / s.f_frsize)
        return ACCRUE_OK; /* a file system without a size may have room */
    return acr_fail(err, ACCRUE_ENOSPACE, "%s: no room for %s: %llu bytes needed, %llu free", dir,
                    what, (unsigned long long)needed, (unsigned long long)s.f_bavail * s.f_frsize);
}

bool acr_is_like(const char *name, const char *const *patterns)
{
    for (; *patterns; patterns++)
        if (fnmatch(*patterns, name, 0) == 0)
            return true;
    return false;
}

void acr_remove_folder(const char *path, const char *const *patterns)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry = NULL;

    if (!d && fd >= 0)
        close(fd);
    while (d && (entry = readdir(d)) != NULL)
        if (acr_is_like(entry->d_name, patterns))
            unlinkat(dirfd(d), entry->d_name, 0);
    if (d)
        closedir(d);
    rmdir(path);
}

/* O_NONBLOCK: the open of a FIFO would wait for its writer. */
accrue_status acr_open_file(int *fd, int64_t *bytes, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    struct stat s;

    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 || fstat(*fd, &s) != 0)
        st = acr_fail_errno(err, errno, "cannot open", path);
    else if (!S_ISREG(s.st_mode))
        st = acr_fail(err, ACCRUE_EIO, "%s: not a regular file", path);
    else
        *bytes = s.st_size;
    if (st && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return st;
}

accrue_status acr_map_open(acr_map *out, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t bytes = 0;
    void *p = NULL;
    int fd = -1;

    out->data = NULL;
    out->bytes = 0;
    ACR_TRY(acr_open_file(&fd, &bytes, path, err));
    if (bytes == 0)
        goto cleanup;
    p = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        st = acr_fail_errno(err, errno, "cannot map", path);
        goto cleanup;
    }
    out->data = p;
    out->bytes = (size_t)bytes;

cleanup:
    if (fd >= 0)
        close(fd);
    return st;
}

void acr_map_close(acr_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->bytes);
    map->data = NULL;
    map->bytes = 0;
}

/* Only pages that lie in them entirely, so that nobody's other bytes go. */
void acr_map_release(const void *data, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)data + page - 1) / page * page;
    const uintptr_t last = ((uintptr_t)data + bytes) / page * page;

    if (first < last)
        madvise((void *)first, last - first, MADV_DONTNEED);
}

accrue_status acr_output_open(acr_output *out, const char *path, size_t expected,
                              acr_hasher *hasher, accrue_error *err)
{
    *out = (acr_output){.path = path, .expected = expected, .hasher = hasher};
    out->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd < 0)
        return acr_fail_errno(err, errno, "cannot create", path);
    return ACCRUE_OK;
}

static accrue_status fail_write(const acr_output *o, int errnum, accrue_error *err)
{
    char what[120];

    snprintf(what, sizeof what, "cannot write: %zu of %zu bytes written", o->written, o->expected);
    return acr_fail_errno(err, errnum, what, o->path);
}

/* The disk begins with what is there while the rest is still being made. */
static void push(acr_output *o, size_t portion)
{
    if (o->written - o->pushed < portion)
        return;
    sync_file_range(o->fd, (off_t)o->pushed, (off_t)(o->written - o->pushed),
                    SYNC_FILE_RANGE_WRITE);
    o->pushed = o->written;
}

accrue_status acr_output_write(acr_output *o, const void *bytes, size_t n, accrue_error *err)
{
    const char *p = bytes;

    while (n) {
        ssize_t k = write(o->fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return fail_write(o, k < 0 ? errno : ENOSPC, err);
        if (o->hasher)
            acr_hasher_add(o->hasher, p, (size_t)k);
        o->written += (size_t)k;
        p += k;
        n -= (size_t)k;
    }
    push(o, 8 << 20);
    return ACCRUE_OK;
}

accrue_status acr_output_close(acr_output *o, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (o->fd >= 0)
        push(o, 1 << 20);
    if (o->fd >= 0 && close(o->fd) != 0)
        st = acr_fail_errno(err, errno, "cannot close", o->path);
    o->fd = -1;
    return st;
}

accrue_status acr_write_file(const char *path, const void *bytes, size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK, closed = ACCRUE_OK;
    acr_output o;

    st = acr_output_open(&o, path, n, NULL, err);
    if (!st)
        st = acr_output_write(&o, bytes, n, err);
    closed = acr_output_close(&o, st ? NULL : err);
    return st ? st : closed;
}

accrue_status acr_sync(const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fsync(fd) != 0)
        st = acr_fail_errno(err, errno, "cannot sync", path);
    if (fd >= 0)
        close(fd);
    return st;
}

accrue_status acr_json_parse(json_t **out, const char *text, size_t bytes, const char *name,
                             accrue_error *err)
{
    json_error_t e;

    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (!*out)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: line %d column %d: %s", name, e.line, e.column,
                        e.text);
    return ACCRUE_OK;
}

accrue_status acr_json_load(json_t **out, const char *path, size_t max_bytes, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_map map = {0};

    *out = NULL;
    ACR_TRY(acr_map_open(&map, path, err));
    if (map.bytes > max_bytes) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: %zu bytes, at most %zu expected", path, map.bytes,
                      max_bytes);
        goto cleanup;
    }
    if (acr_mark_bytes(map.data, map.bytes)) {
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: begins with a byte order mark, UTF-8 without one expected", path);
        goto cleanup;
    }
    ACR_TRY(acr_json_parse(out, map.data ? (const char *)map.data : "", map.bytes, path, err));

cleanup:
    acr_map_close(&map);
    return st;
}

json_t *acr_json_string(const char *s)
{
    json_t *string = json_string(s);
    size_t room = 4 * strlen(s) + 1;
    char *text = string ? NULL : acr_malloc(room);

    if (!text)
        return string;
    acr_text(text, room, s);
    string = json_string(text);
    acr_free(text);
    return string;
}

/* jansson prints every real with one precision; 17 digits are always enough, 15 read better. */
char *acr_json_text(const json_t *value)
{
    const size_t flags = JSON_INDENT(2) | JSON_SORT_KEYS | JSON_ENCODE_ANY;
    char *dumped = NULL;
    char *text = NULL;
    json_t *again = NULL;

    dumped = json_dumps(value, flags | JSON_REAL_PRECISION(15));
    if (dumped)
        again = json_loads(dumped, JSON_DECODE_ANY, NULL);
    if (dumped && !json_equal(again, (json_t *)(uintptr_t)value)) {
        free(dumped);
        dumped = json_dumps(value, flags | JSON_REAL_PRECISION(17));
    }
    if (dumped)
        text = acr_sprintf("%s\n", dumped);
    json_decref(again);
    free(dumped);
    return text;
}

accrue_status acr_replace_file(const char *path, const char *temporary, const void *bytes, size_t n,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_write_file(temporary, bytes, n, err));
    ACR_TRY(acr_sync(temporary, err));
    if (rename(temporary, path) != 0)
        st = acr_fail_errno(err, errno, "cannot rename a file to this name", path);

cleanup:
    if (st)
        unlink(temporary);
    return st;
}
