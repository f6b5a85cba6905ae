/* error.c - status names and the one line that goes with a failure. */
#include "base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
static size_t character(const unsigned char *p)
{
    static const struct {
        unsigned char first, last, low, high; /* low, high: of the second byte */
    } kinds[] = {
        {0xc2, 0xc2, 0xa0, 0xbf}, /* not the control characters below U+00A0 */
        {0xc3, 0xdf, 0x80, 0xbf}, {0xe0, 0xe0, 0xa0, 0xbf}, {0xe1, 0xec, 0x80, 0xbf},
        {0xed, 0xed, 0x80, 0x9f}, {0xee, 0xef, 0x80, 0xbf}, {0xf0, 0xf0, 0x90, 0xbf},
        {0xf1, 0xf3, 0x80, 0xbf}, {0xf4, 0xf4, 0x80, 0x8f},
    };
    const size_t n = *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;

    if (*p < 0x80)
        return *p >= 0x20 && *p != 0x7f;
    for (int i = 0; i < ACR_COUNT(kinds); i++) {
        if (*p < kinds[i].first || *p > kinds[i].last)
            continue;
        if (p[1] < kinds[i].low || p[1] > kinds[i].high)
            return 0;
        for (size_t k = 2; k < n; k++)
            if ((p[k] & 0xc0) != 0x80)
                return 0;
        return n;
    }
    return 0;
}

void acr_text(char *out, size_t room, const char *s)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t used = 0;

    while (*p) {
        size_t n = character(p), bytes = n;
        char piece[5];
        if (n)
            memcpy(piece, p, n);
        else if (*p >= '\t' && *p <= '\r')
            bytes = (size_t)snprintf(piece, sizeof piece, " ");
        else
            bytes = (size_t)snprintf(piece, sizeof piece, "\\x%02x", (unsigned)*p);
        if (used + bytes >= room)
            break;
        memcpy(out + used, piece, bytes);
        used += bytes;
        p += n ? n : 1;
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

accrue_status acr_enomem(accrue_error *err, size_t bytes, const char *what)
{
    return acr_fail(err, ACCRUE_ENOMEM, "out of memory: %zu bytes for %s", bytes, what);
}
