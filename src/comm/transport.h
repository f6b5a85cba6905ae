/* transport.h - what comm.c asks of a way to reach the other ranks.
 *
 * comm.c has the queue, the thread and the counters; a transport moves bytes between ranks and
 * settles which failure came first.  But for open, `wake` and `close`, all of it is called on the
 * rank's communication thread. */
#ifndef ACR_TRANSPORT_H
#define ACR_TRANSPORT_H

#include "comm/comm.h"

#include <stdatomic.h>

typedef struct acr_transport {
    /* Delivers r->send to the others and fills r->recv from them; own pieces are comm.c's.  A
     * failure is this rank's own, or that of the job where it has one. */
    accrue_status (*exchange)(accrue_comm *c, const acr_comm_request *r, accrue_error *err);
    accrue_status (*reduce)(accrue_comm *c, const acr_comm_request *r, accrue_error *err);
    /* Takes *err for the job's failure unless it has one, tells the others, and leaves the job's in
     * *err.  Afterwards nobody touches the memory of this rank's requests. */
    void (*settle)(accrue_comm *c, accrue_error *err);
    /* The job's failure, if another rank had one.  Now and then while there is nothing to do. */
    accrue_status (*listen)(accrue_comm *c, accrue_error *err);
    /* Has a collective under way look at `interrupted`; NULL: it does so by itself. */
    void (*wake)(accrue_comm *c);
    bool in_process; /* ranks are threads of this one */
    /* After a failure: whether rank 0 did not answer; NULL: it always does. */
    bool (*is_alone)(const accrue_comm *c);
    /* Ends this rank; its communication thread is gone.  After a failure nobody is waited for. */
    void (*close)(accrue_comm *c);
} acr_transport;

struct accrue_comm {
    const acr_transport *transport;
    void *job; /* the transport's */
    int rank, size, local_size;
    double timeout;

    pthread_t thread;
    bool has_thread, has_lock;
    pthread_mutex_t lock; /* of what follows, up to the counters */
    pthread_cond_t changed;
    acr_comm_request *first, *last; /* the queue */
    bool at_work, quit;
    accrue_error posted;  /* by acr_comm_fail, for the thread */
    accrue_error failure; /* the job's; the thread writes it, once */
    uint64_t fail_at;     /* collectives until one fails; for tests */
    acr_comm_counters counters;
    atomic_bool interrupted; /* `posted` is set */

    int64_t step;  /* the owner's */
    size_t *begin; /* the owner's: of share and broadcast */
    const void **send;
    void **recv; /* the thread's: a gather's pieces */
    size_t *send_bytes, *recv_bytes;
};

accrue_status acr_comm_create(accrue_comm **out, const acr_transport *transport, int rank, int size,
                              double timeout, accrue_error *err);
accrue_status acr_comm_start(accrue_comm *c, accrue_error *err);
accrue_status acr_comm_check_timeout(double timeout, accrue_error *err);

/* Failures of a collective, for transports; each returns its status. */
accrue_status acr_comm_interruption(accrue_comm *c, accrue_error *err); /* OK: there is none */
accrue_status acr_comm_silence(const accrue_comm *c, const acr_comm_request *r, int peer,
                               accrue_error *err);
accrue_status acr_comm_refuse(const acr_comm_request *r, accrue_error *err, const char *format, ...)
    ACR_PRINTF(3, 4);

/* The elements of a piece of a reduction, of which `bytes` hold one rank's part. */
int64_t acr_comm_piece(size_t bytes, size_t element);

#endif
