/* fault.c - what can be wrong with a row, as a value: its kind, place, both values and one line. */
#include "data/readers.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    accrue_status status; /* where training stops for it */
} kinds[] = {
    [0] = {"none", ACCRUE_ENOMEM},
    [ACCRUE_FAULT_MISSING] = {"missing", ACCRUE_EIO},
    [ACCRUE_FAULT_LOCKED] = {"locked", ACCRUE_EIO},
    [ACCRUE_FAULT_STALE_LOCK] = {"stale_lock", ACCRUE_OK},
    [ACCRUE_FAULT_UNREADABLE] = {"unreadable", ACCRUE_EIO},
    [ACCRUE_FAULT_FORMAT] = {"format", ACCRUE_EFORMAT},
    [ACCRUE_FAULT_TENSOR] = {"tensor", ACCRUE_EMISMATCH},
    [ACCRUE_FAULT_LENGTH] = {"length", ACCRUE_EMISMATCH},
    [ACCRUE_FAULT_TOKEN_IDS] = {"token_ids", ACCRUE_EMISMATCH},
    [ACCRUE_FAULT_VOCABULARY] = {"vocabulary", ACCRUE_EMISMATCH},
    [ACCRUE_FAULT_MASK] = {"mask", ACCRUE_EFORMAT},
    [ACCRUE_FAULT_NONFINITE] = {"nonfinite", ACCRUE_EFORMAT},
    [ACCRUE_FAULT_MAP] = {"map", ACCRUE_EMISMATCH},
};

const char *accrue_fault_name(accrue_fault_kind kind)
{
    return (int)kind > 0 && (int)kind < ACR_COUNT(kinds) ? kinds[kind].name : kinds[0].name;
}

accrue_status acr_fault_status(const accrue_fault *f)
{
    return kinds[f->kind].status;
}

static void begin(accrue_fault *f, accrue_fault_kind kind, const char *file, int64_t row)
{
    memset(f, 0, sizeof *f);
    f->kind = kind;
    f->notice = kind == ACCRUE_FAULT_STALE_LOCK;
    f->row = row;
    f->token = f->slot = f->element = -1;
    f->count = 1;
    acr_text(f->file, sizeof f->file, file);
}

accrue_status acr_fault_set(accrue_fault *f, accrue_fault_kind kind, const char *file, int64_t row,
                            const char *what, const char *found, const char *expected)
{
    accrue_error e;

    begin(f, kind, file, row);
    acr_text(f->found, sizeof f->found, found);
    acr_text(f->expected, sizeof f->expected, expected);
    acr_fail(&e, kinds[kind].status, "%s: row %lld: %s is %s, expected %s", file, (long long)row,
             what, found, expected);
    snprintf(f->message, sizeof f->message, "%s", e.message);
    return e.status;
}

accrue_status acr_fault_error(accrue_fault *f, accrue_fault_kind kind, const char *file,
                              int64_t row, const accrue_error *why)
{
    accrue_error e;

    begin(f, why->status == ACCRUE_ENOMEM ? 0 : kind, file, row);
    if (row >= 0)
        acr_fail(&e, why->status, "row %lld: %s", (long long)row, why->message);
    else
        e = *why;
    acr_text(f->message, sizeof f->message, e.message);
    return kinds[f->kind].status;
}

void acr_fault_count(accrue_fault *f, int64_t count)
{
    size_t used = strlen(f->message);

    f->count = count;
    if (count > 1)
        snprintf(f->message + used, sizeof f->message - used, " (and %lld more)",
                 (long long)count - 1);
}
