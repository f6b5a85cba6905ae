/* comm.h - ranks: what they exchange, in which order, and what becomes of a failure.
 *
 * A rank's end of the job is an accrue_comm; NULL is a job of one rank, for which every function
 * here works and moves nothing.  All that the layers above do with ranks is one of three
 * collectives: gather, reduce, exchange.  Every rank calls the same ones in the same order.  They
 * are queued and carried out one after the other by a thread of the rank's own, while the caller
 * goes on; sums are taken in the order of ranks, so that the same job gives the same bits.
 *
 * The first failure of any rank is the failure of all: whatever is waited for, then and later,
 * returns its status and its message with the rank that it came from.  A rank that is lost, or does
 * not come within the timeout, is such a failure, named by those that waited for it. */
#ifndef ACR_COMM_H
#define ACR_COMM_H

#include "tensor/tensor.h"

/* What a collective is for; what is counted is counted for each. */
typedef enum acr_comm_kind {
    ACR_COMM_CONTROL, /* counts, losses, agreements */
    ACR_COMM_WEIGHTS,
    ACR_COMM_GRADIENT,
    ACR_COMM_KINDS
} acr_comm_kind;

typedef struct acr_comm_label {
    acr_comm_kind kind;
    const char *what; /* "the gradient of", for messages; static */
    const char *of;   /* "layers.0"; borrowed until the wait; may be NULL */
} acr_comm_label;

/* Sums, or whatever else the parts make: parts[r] is rank r's [n] elements from `begin` of the
 * caller's range on.  Runs on the rank's own thread, once for each piece of the range, in order. */
typedef void (*acr_comm_combine)(void *ctx, int64_t begin, int64_t n, const void *const *parts);

/* A collective under way; the caller's, and in place until acr_comm_wait.  Fields are comm.c's. */
typedef struct acr_comm_request {
    struct acr_comm_request *next;
    acr_comm_label label;
    int op;
    int64_t step; /* of the optimizer, for messages */
    bool pending, done;
    const void *const *send;
    void *const *recv;
    const size_t *send_bytes, *recv_bytes; /* exchange */
    void *data;
    const void *from;
    const size_t *byte_begin; /* gather */
    const int64_t *begin;     /* reduce */
    size_t element;
    acr_comm_combine combine;
    void *ctx;
} acr_comm_request;

/* All arrays that these are given stay the caller's and unchanged until acr_comm_wait.
 *
 * gather: `data` is whole on every rank; bytes [begin[r], begin[r + 1]) are rank r's, and are what
 * the others get.
 * reduce: `data` is each rank's own [begin[size]] elements; rank r's combine gets everyone's
 * [begin[r], begin[r + 1]), its own included.
 * exchange: send[r] goes to rank r, whose send[own rank] arrives in recv[r]; sizes agree on both
 * sides; the own piece is copied too. */
void acr_comm_gather_begin(accrue_comm *c, acr_comm_request *r, acr_comm_label label, void *data,
                           const size_t *begin);
void acr_comm_reduce_begin(accrue_comm *c, acr_comm_request *r, acr_comm_label label,
                           const void *data, size_t element, const int64_t *begin,
                           acr_comm_combine combine, void *ctx);
void acr_comm_exchange_begin(accrue_comm *c, acr_comm_request *r, acr_comm_label label,
                             const void *const *send, const size_t *send_bytes, void *const *recv,
                             const size_t *recv_bytes);
/* Until it is done; at once for a request that is not pending.  Fails as the job fails. */
accrue_status acr_comm_wait(accrue_comm *c, acr_comm_request *r, accrue_error *err);

/* The same, waited for at once, for control. */
accrue_status acr_comm_gather(accrue_comm *c, const char *what, void *data, const size_t *begin,
                              accrue_error *err);
/* Every rank's [bytes] in rank order into all [size * bytes]. */
accrue_status acr_comm_share(accrue_comm *c, const char *what, const void *own, size_t bytes,
                             void *all, accrue_error *err);
/* `data` of rank `root` on all. */
accrue_status acr_comm_broadcast(accrue_comm *c, const char *what, void *data, size_t bytes,
                                 int root, accrue_error *err);

/* Makes this rank's failure that of the job, unless another came first; returns the job's, and its
 * message in *err: the same on every rank.  Waits for no rank that computes.  Afterwards nothing of
 * this rank is under way, and no other rank reads its memory.  With one rank *err stays. */
accrue_status acr_comm_fail(accrue_comm *c, accrue_status status, accrue_error *err);
/* The job's failure so far; ACCRUE_OK: none. */
accrue_status acr_comm_failure(accrue_comm *c, accrue_error *err);

/* For messages: what is exchanged from here on belongs to this optimizer step (1-based). */
void acr_comm_set_step(accrue_comm *c, int64_t step);

/* What this rank has sent and waited for since it was opened. */
typedef struct acr_comm_counters {
    int64_t collectives[ACR_COMM_KINDS];
    int64_t bytes_sent[ACR_COMM_KINDS];  /* to other ranks */
    double busy_seconds[ACR_COMM_KINDS]; /* that the collectives took */
    double wait_seconds[ACR_COMM_KINDS]; /* that acr_comm_wait waited for them */
} acr_comm_counters;
acr_comm_counters acr_comm_get_counters(accrue_comm *c);

/* For tests: this rank's n-th collective from now on fails; 0: none. */
void acr_comm_fail_collective(accrue_comm *c, uint64_t n);

/* Whether all ranks are threads of this process. */
bool acr_comm_in_process(const accrue_comm *c);

/* Even pieces: begin[r] = n * r / size, for r from 0 to size. */
void acr_comm_split(int64_t n, int size, int64_t *begin);

#endif
