/* file.c - read-only mappings, whole-file writes and strict JSON. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

accrue_status acr_map_open(acr_map *out, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    struct stat s;
    void *p = NULL;
    int fd = -1;

    out->data = NULL;
    out->bytes = 0;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &s) != 0) {
        st = acr_fail_errno(err, errno, "cannot open", path);
        goto cleanup;
    }
    if (!S_ISREG(s.st_mode)) {
        st = acr_fail(err, ACCRUE_EIO, "%s: not a regular file", path);
        goto cleanup;
    }
    if (s.st_size == 0)
        goto cleanup;
    p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        st = acr_fail_errno(err, errno, "cannot map", path);
        goto cleanup;
    }
    out->data = p;
    out->bytes = (size_t)s.st_size;

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

accrue_status acr_write_file(const char *path, const void *bytes, size_t n, bool sync,
                             accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *p = bytes;
    size_t left = n;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0)
        return acr_fail_errno(err, errno, "cannot create", path);
    while (left) {
        ssize_t k = write(fd, p, left);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            st = acr_fail_errno(err, k < 0 ? errno : ENOSPC, "cannot write", path);
            goto cleanup;
        }
        p += k;
        left -= (size_t)k;
    }
    if (sync && fsync(fd) != 0)
        st = acr_fail_errno(err, errno, "cannot sync", path);

cleanup:
    if (close(fd) != 0 && !st)
        st = acr_fail_errno(err, errno, "cannot close", path);
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
    ACR_TRY(acr_json_parse(out, map.data ? (const char *)map.data : "", map.bytes, path, err));

cleanup:
    acr_map_close(&map);
    return st;
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
