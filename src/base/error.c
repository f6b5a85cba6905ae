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
    }
    return "unknown status";
}

accrue_status acr_fail(accrue_error *err, accrue_status status, const char *format, ...)
{
    if (err) {
        va_list args;
        err->status = status;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
        /* One line, whatever a file name or a parser's text contains. */
        for (char *p = err->message; *p; p++)
            if (*p == '\n' || *p == '\r')
                *p = ' ';
    }
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
