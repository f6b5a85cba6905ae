/* save_pieces.c - the shares of a sharded model on their way to rank 0, which writes them.
 *
 * All ranks go through the tensors of both files in the same order, a piece at a time, the state's
 * first.  Where rank 0 stops writing, it still takes the rest. */
#include "train/save_parts.h"

#include <string.h>

/* What rank r has of elements [begin, begin + n) of an array: from *first on, so many. */
static int64_t part_of(const acr_origin *o, int r, int64_t begin, int64_t n, int64_t *first)
{
    const acr_param *p = o->shared;
    const int64_t low = p->group->cut[r] - p->offset, high = p->group->cut[r + 1] - p->offset;
    const int64_t end = begin + n < high ? begin + n : high;

    *first = begin > low ? begin : low;
    return end > *first ? end - *first : 0;
}

/* Elements [begin, begin + n), whole in `into` on rank 0. */
static accrue_status send_piece(acr_save *s, const acr_origin *o, int64_t begin, int64_t n,
                                char *into, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int ranks = accrue_comm_size(s->comm), rank = accrue_comm_rank(s->comm);
    const size_t width = acr_dtype_bytes(o->dtype);
    const acr_comm_label label = {ACR_COMM_WEIGHTS, "a checkpoint's", o->shared->name};
    const void **send = acr_calloc((size_t)ranks, sizeof *send);
    void **recv = acr_calloc((size_t)ranks, sizeof *recv);
    size_t *send_bytes = acr_calloc((size_t)ranks, sizeof *send_bytes);
    size_t *recv_bytes = acr_calloc((size_t)ranks, sizeof *recv_bytes);
    acr_comm_request request;
    int64_t first = 0;

    if (!send || !recv || !send_bytes || !recv_bytes) {
        st = acr_comm_fail(s->comm, acr_enomem(err, (size_t)ranks * sizeof *send, "a checkpoint"),
                           err);
        goto cleanup;
    }
    send_bytes[0] = (size_t)part_of(o, rank, begin, n, &first) * width;
    send[0] = (const char *)o->live + (send_bytes[0] ? (size_t)(first - o->begin) * width : 0);
    for (int r = 0; rank == 0 && r < ranks; r++) {
        recv_bytes[r] = (size_t)part_of(o, r, begin, n, &first) * width;
        recv[r] = into + (recv_bytes[r] ? (size_t)(first - begin) * width : 0);
    }
    acr_comm_exchange_begin(s->comm, &request, label, send, send_bytes, recv, recv_bytes);
    st = acr_comm_wait(s->comm, &request, err);

cleanup:
    acr_free(send);
    acr_free(recv);
    acr_free(send_bytes);
    acr_free(recv_bytes);
    return st;
}

/* The next tensor of both files that ranks share, the state first; false behind the last. */
static bool find_piece(acr_save *s)
{
    for (;;) {
        const acr_tensor_file *f = s->at.f;
        if (s->at.t < f->n && s->at.offset < f->t[s->at.t].bytes && f->from[s->at.t] >= 0 &&
            s->origins[f->from[s->at.t]].shared)
            return true;
        s->at.offset = 0;
        if (++s->at.t < f->n)
            continue;
        if (f == &s->weights)
            return false;
        s->at.f = &s->weights;
        s->at.t = 0;
    }
}

/* Sends the next piece to rank 0, which has it in `into`, and steps on. */
static void next_piece(acr_save *s, char *into)
{
    const acr_tensor *t = &s->at.f->t[s->at.t];
    const acr_origin *o = &s->origins[s->at.f->from[s->at.t]];
    const size_t width = acr_dtype_bytes(t->dtype);
    const size_t n = t->bytes - s->at.offset < PIECE ? t->bytes - s->at.offset : PIECE;

    s->lost =
        send_piece(s, o, (int64_t)(s->at.offset / width), (int64_t)(n / width), into, &s->loss);
    s->at.offset += n;
}

const void *acr_save_piece(acr_save *s, void *buffer, const acr_tensor *t, size_t n)
{
    char *raw = (char *)s->buffer + 2 * PIECE;
    const acr_origin *o = NULL;

    if (s->lost || !find_piece(s)) {
        memset(buffer, 0, n);
        return buffer;
    }
    o = &s->origins[s->at.f->from[s->at.t]];
    next_piece(s, raw);
    acr_convert(t->dtype, buffer, o->dtype, raw, (int64_t)(n / acr_dtype_bytes(t->dtype)));
    return buffer;
}

void acr_save_send_rest(acr_save *s)
{
    while (!s->lost && find_piece(s))
        next_piece(s, (char *)s->buffer + 2 * PIECE);
}
