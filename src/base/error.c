/* error.c - status names and the one line that goes with a failure. */
#include "base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#define ACR_STRING(x) #x
#define ACR_VERSION_TEXT(major, minor, patch)                                                      \
    ACR_STRING(major) "." ACR_STRING(minor) "." ACR_STRING(patch)

const char *accrue_version(void)
{
    return ACR_VERSION_TEXT(ACCRUE_VERSION_MAJOR, ACCRUE_VERSION_MINOR, ACCRUE_VERSION_PATCH);
}

const char *accrue_status_name(accrue_status status)
{
    switch (status) {
    case ACCRUE_OK: return "ACCRUE_OK";
    case ACCRUE_ENOMEM: return "ACCRUE_ENOMEM";
    case ACCRUE_EINVAL: return "ACCRUE_EINVAL";
    case ACCRUE_ESTATE: return "ACCRUE_ESTATE";
    case ACCRUE_EIO: return "ACCRUE_EIO";
    case ACCRUE_EFORMAT: return "ACCRUE_EFORMAT";
    case ACCRUE_EMISMATCH: return "ACCRUE_EMISMATCH";
    case ACCRUE_ENOTSUP: return "ACCRUE_ENOTSUP";
    case ACCRUE_ENUMERIC: return "ACCRUE_ENUMERIC";
    case ACCRUE_ECANCELED: return "ACCRUE_ECANCELED";
    case ACCRUE_EVERIFY: return "ACCRUE_EVERIFY";
    case ACCRUE_ENOSPACE: return "ACCRUE_ENOSPACE";
    case ACCRUE_ECOMM: return "ACCRUE_ECOMM";
    }
    return "unknown status";
}

/* Bytes of the printable character at `p`; 0 where there is none. */
static size_t character(const char *p)
{
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)p, -1, &c);

    return n < 0 || c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xfeff ? 0 : (size_t)n;
}

void acr_text(char *out, size_t room, const char *s)
{
    size_t used = 0;

    while (*s) {
        size_t n = character(s), bytes = n;
        char piece[5];
        if (n)
            memcpy(piece, s, n);
        else if (*s >= '\t' && *s <= '\r')
            bytes = (size_t)snprintf(piece, sizeof piece, " ");
        else
            bytes = (size_t)snprintf(piece, sizeof piece, "\\x%02x", (unsigned)(uint8_t)*s);
        if (used + bytes >= room)
            break;
        memcpy(out + used, piece, bytes);
        used += bytes;
        s += n ? n : 1;
    }
    out[used] = '\0';
}

accrue_status acr_fail(accrue_error *err, accrue_status status, const char *format, ...)
{
    char text[sizeof err->message + 4]; /* cut behind where acr_text cuts between characters */
    va_list args;

    if (!err)
        return status;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    err->status = status;
    acr_text(err->message, sizeof err->message, text);
    return status;
}

accrue_status acr_fail_errno(accrue_error *err, int errnum, const char *what, const char *path)
{
    accrue_status st = ACCRUE_EIO;

    if (errnum == ENOMEM)
        st = ACCRUE_ENOMEM;
    else if (errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG)
        st = ACCRUE_ENOSPACE;
    return acr_fail(err, st, "%s: %s: %s", path, what, strerror(errnum));
}

/* JSON's text, as far as there is room. */
typedef struct brief {
    char *out;
    size_t used, room;
} brief;

static int add_brief(const char *text, size_t n, void *ctx)
{
    brief *b = ctx;
    const size_t left = b->room - b->used, taken = n < left ? n : left;

    memcpy(b->out + b->used, text, taken);
    b->used += taken;
    return n > left ? -1 : 0; /* which ends it: a value may be large */
}

void acr_json_brief(char *out, size_t room, const json_t *value)
{
    static const char more[] = "...";
    const size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(10);
    brief b = {out, 0, room - 1};

    memset(out, 0, room);
    if (!value) {
        snprintf(out, room, "missing");
        return;
    }
    if (json_dump_callback(value, add_brief, &b, flags) == 0)
        return;
    b.used = b.used < room - sizeof more ? b.used : room - sizeof more;
    while (b.used && ((uint8_t)out[b.used] & 0xc0) == 0x80)
        b.used--;
    memcpy(out + b.used, more, sizeof more);
}

accrue_status acr_enomem(accrue_error *err, size_t bytes, const char *what)
{
    return acr_fail(err, ACCRUE_ENOMEM, "out of memory: %zu bytes for %s", bytes, what);
}
