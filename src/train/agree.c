/* agree.c - what all ranks must be of one mind about: whether something failed, and numbers and
 * texts that they add up or take from each other in their order. */
#include "train/train.h"

#include <stdio.h>
#include <string.h>

enum { MESSAGE = sizeof((accrue_error *)0)->message };

accrue_status acr_agree_message(accrue_comm *comm, int root, accrue_status st, accrue_error *err)
{
    char message[MESSAGE] = "";
    accrue_status lost = ACCRUE_OK;

    if (accrue_comm_rank(comm) == root && err)
        snprintf(message, sizeof message, "%s", err->message);
    lost = acr_comm_broadcast(comm, "a failure", message, sizeof message, root, err);
    return lost ? lost : acr_fail(err, st, "rank %d: %s", root, message);
}

/* How a rank fares: what its status and its message are. */
typedef struct outcome {
    int64_t status;
    uint64_t message;
} outcome;

/* Where all have failed alike, it is no rank's own fault. */
static bool all_alike(const outcome *all, int ranks)
{
    for (int r = 1; r < ranks; r++)
        if (all[r].status != all[0].status || all[r].message != all[0].message)
            return false;
    return true;
}

static accrue_status first_failure(accrue_comm *comm, const outcome *all, accrue_error *err)
{
    const int ranks = accrue_comm_size(comm);

    if (all[0].status && all_alike(all, ranks))
        return (accrue_status)all[0].status;
    for (int r = 0; r < ranks; r++)
        if (all[r].status)
            return acr_agree_message(comm, r, (accrue_status)all[r].status, err);
    return ACCRUE_OK;
}

accrue_status acr_agree(accrue_comm *comm, const char *what, accrue_status st, accrue_error *err)
{
    const int ranks = accrue_comm_size(comm);
    outcome own = {.status = st}, *all = NULL;
    accrue_status lost = ACCRUE_OK;

    if (ranks == 1)
        return st;
    if (st && err)
        own.message = acr_hash_string(err->message);
    all = acr_calloc((size_t)ranks, sizeof *all);
    if (!all)
        return acr_comm_fail(comm, acr_enomem(err, (size_t)ranks * sizeof *all, what), err);
    lost = acr_comm_share(comm, what, &own, sizeof own, all, err);
    if (!lost)
        lost = first_failure(comm, all, err);
    acr_free(all);
    return lost;
}

accrue_status acr_agree_texts(char **out, accrue_comm *comm, const char *what, const char *own,
                              accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t ranks = (size_t)accrue_comm_size(comm), rank = (size_t)accrue_comm_rank(comm);
    uint64_t bytes = own ? strlen(own) : 0, *all = acr_calloc(ranks, sizeof *all);
    size_t *begin = acr_calloc(ranks + 1, sizeof *begin);
    char *text = NULL;

    *out = NULL;
    if (!all || !begin) {
        st = acr_enomem(err, ranks * sizeof *all, what);
        goto cleanup;
    }
    ACR_TRY(acr_comm_share(comm, what, &bytes, sizeof bytes, all, err));
    for (size_t r = 0; r < ranks; r++)
        begin[r + 1] = begin[r] + all[r];
    text = acr_calloc(begin[ranks] + 1, 1);
    if (!text) {
        st = acr_enomem(err, begin[ranks], what);
        goto cleanup;
    }
    if (bytes)
        memcpy(text + begin[rank], own, bytes);
    if (begin[ranks])
        ACR_TRY(acr_comm_gather(comm, what, text, begin, err));
    *out = text;
    text = NULL;

cleanup:
    acr_free(text);
    acr_free(begin);
    acr_free(all);
    return st;
}

accrue_status acr_agree_equal(accrue_comm *comm, const char *what, uint64_t own, accrue_error *err)
{
    const int ranks = accrue_comm_size(comm);
    accrue_status st = ACCRUE_OK;
    uint64_t *all = NULL;

    if (ranks == 1)
        return ACCRUE_OK;
    all = acr_calloc((size_t)ranks, sizeof *all);
    if (!all)
        return acr_enomem(err, (size_t)ranks * sizeof *all, what);
    st = acr_comm_share(comm, what, &own, sizeof own, all, err);
    for (int r = 1; r < ranks && !st; r++)
        if (all[r] != all[0])
            st = acr_fail(err, ACCRUE_EMISMATCH, "%s: rank %d has %016llx, rank 0 %016llx", what, r,
                          (unsigned long long)all[r], (unsigned long long)all[0]);
    acr_free(all);
    return st;
}
