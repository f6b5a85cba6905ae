/* lines.c - the lines of a JSON Lines file, mapped, found once. */
#include "text/text.h"

#include <string.h>

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r')
            return false;
    return true;
}

static accrue_status add_line(acr_lines *l, int64_t offset, int64_t number, accrue_error *err)
{
    if (l->n == l->capacity) {
        int64_t more = l->capacity ? 2 * l->capacity : 1024;
        struct acr_line *moved = acr_realloc(l->at, (size_t)more * sizeof *moved);
        if (!moved)
            return acr_enomem(err, (size_t)more * sizeof *moved, l->path);
        l->at = moved;
        l->capacity = more;
    }
    l->at[l->n++] = (struct acr_line){offset, number};
    return ACCRUE_OK;
}

const char *acr_lines_text(const acr_lines *l, int64_t i, size_t *bytes)
{
    size_t at = (size_t)l->at[i].offset;
    const char *s = (const char *)l->map.data + at;
    const char *end = memchr(s, '\n', l->map.bytes - at);

    *bytes = end ? (size_t)(end - s) : l->map.bytes - at;
    return s;
}

accrue_status acr_lines_open(acr_lines *out, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_lines l = {.path = path};
    int64_t number = 1;

    memset(out, 0, sizeof *out);
    ACR_TRY(acr_map_open(&l.map, path, err));
    l.hash = acr_hash_bytes(l.map.data, l.map.bytes, 0);
    for (size_t at = acr_mark_bytes(l.map.data, l.map.bytes); at < l.map.bytes; number++) {
        const char *s = (const char *)l.map.data + at;
        const char *end = memchr(s, '\n', l.map.bytes - at);
        size_t n = end ? (size_t)(end - s) : l.map.bytes - at;
        if (!is_blank(s, n))
            ACR_TRY(add_line(&l, (int64_t)at, number, err));
        at += n + 1;
    }
    *out = l;
    memset(&l, 0, sizeof l);

cleanup:
    acr_lines_close(&l);
    return st;
}

void acr_lines_close(acr_lines *l)
{
    acr_map_close(&l->map);
    acr_free(l->at);
    memset(l, 0, sizeof *l);
}
