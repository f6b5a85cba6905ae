/* comm_threads.c - ranks as threads of one process, which read each other's memory where it is.
 *
 * In a collective every rank shows its request, waits until all have come, reads, and waits until
 * all have read.  `lock` guards everything but the memory itself: that is read by a rank which has
 * said so in `reads`, and none says so once the job has failed. */
#include "comm/transport.h"

#include <errno.h>
#include <string.h>

enum { PIECE = 1 << 20 /* bytes of a rank's part that are combined at a time */ };

typedef struct place {
    uint64_t came, left;             /* collectives that this rank has come to, and has read */
    const acr_comm_request *request; /* of the last one */
    bool reads, gone;
} place;

typedef struct thread_job {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_lock;
    int open; /* ranks not yet freed */
    accrue_error failure;
    place *places;
    const void **parts; /* [size] for each rank */
} thread_job;

static void job_free(thread_job *job)
{
    if (!job)
        return;
    if (job->has_lock)
        acr_lock_free(&job->lock, &job->changed);
    acr_free(job->places);
    acr_free(job->parts);
    acr_free(job);
}

/* With the lock held: until `counter` of rank `peer` is at least `value`. */
static accrue_status wait_for(accrue_comm *c, const acr_comm_request *r, int peer,
                              const uint64_t *counter, uint64_t value, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    thread_job *job = c->job;
    const struct timespec until = acr_deadline(c->timeout);
    int code = 0;

    for (;;) {
        if (job->failure.status) {
            *err = job->failure;
            return err->status;
        }
        st = acr_comm_interruption(c, err);
        if (st || *counter >= value)
            return st;
        if (job->places[peer].gone)
            return acr_comm_refuse(r, err, "rank %d has ended", peer);
        if (code == ETIMEDOUT)
            return acr_comm_silence(c, r, peer, err);
        code = c->timeout > 0 ? pthread_cond_timedwait(&job->changed, &job->lock, &until)
                              : pthread_cond_wait(&job->changed, &job->lock);
    }
}

/* Until all have come; from then on this rank may read what they show. */
static accrue_status meet(accrue_comm *c, const acr_comm_request *r, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    thread_job *job = c->job;
    place *own = &job->places[c->rank];

    pthread_mutex_lock(&job->lock);
    own->request = r;
    own->came++;
    pthread_cond_broadcast(&job->changed);
    for (int p = 0; p < c->size; p++)
        ACR_TRY(wait_for(c, r, p, &job->places[p].came, own->came, err));
    own->reads = true;

cleanup:
    pthread_mutex_unlock(&job->lock);
    return st;
}

/* Until all have read.  `st`: how this rank's reading has ended. */
static accrue_status part(accrue_comm *c, const acr_comm_request *r, accrue_status st,
                          accrue_error *err)
{
    thread_job *job = c->job;
    place *own = &job->places[c->rank];

    pthread_mutex_lock(&job->lock);
    own->reads = false;
    pthread_cond_broadcast(&job->changed);
    if (st)
        goto cleanup;
    own->left++;
    for (int p = 0; p < c->size; p++)
        ACR_TRY(wait_for(c, r, p, &job->places[p].left, own->left, err));

cleanup:
    pthread_mutex_unlock(&job->lock);
    return st;
}

/* Whether the others' requests fit this one: ranks that do not do the same have a fault in them. */
static accrue_status check_peer(const accrue_comm *c, const acr_comm_request *r, int peer,
                                accrue_error *err)
{
    const thread_job *job = c->job;
    const acr_comm_request *theirs = job->places[peer].request;

    if (theirs->op != r->op)
        return acr_comm_refuse(r, err, "rank %d is at %s%s%s", peer, theirs->label.what,
                               theirs->label.of ? " " : "",
                               theirs->label.of ? theirs->label.of : "");
    if (r->begin && (theirs->element != r->element || theirs->begin[c->size] != r->begin[c->size]))
        return acr_comm_refuse(r, err,
                               "%lld elements of %zu bytes from rank %d, %lld of %zu expected",
                               (long long)theirs->begin[c->size], theirs->element, peer,
                               (long long)r->begin[c->size], r->element);
    if (!r->recv_bytes || theirs->send_bytes[c->rank] == r->recv_bytes[peer])
        return ACCRUE_OK;
    return acr_comm_refuse(r, err, "%zu bytes from rank %d, %zu expected",
                           theirs->send_bytes[c->rank], peer, r->recv_bytes[peer]);
}

static accrue_status exchange(accrue_comm *c, const acr_comm_request *r, accrue_error *err)
{
    thread_job *job = c->job;
    accrue_status st = meet(c, r, err);

    if (st)
        return st;
    for (int i = 1; i < c->size && !st; i++) { /* each from another one first */
        int p = (c->rank + i) % c->size;
        st = check_peer(c, r, p, err);
        if (!st && r->recv_bytes[p])
            memcpy(r->recv[p], job->places[p].request->send[c->rank], r->recv_bytes[p]);
    }
    return part(c, r, st, err);
}

static accrue_status reduce(accrue_comm *c, const acr_comm_request *r, accrue_error *err)
{
    thread_job *job = c->job;
    const void **parts = job->parts + (size_t)c->rank * (size_t)c->size;
    const int64_t piece = acr_comm_piece(PIECE, r->element);
    const int64_t first = r->begin[c->rank], end = r->begin[c->rank + 1];
    accrue_status st = meet(c, r, err);

    if (st)
        return st;
    for (int p = 0; p < c->size && !st; p++)
        st = check_peer(c, r, p, err);
    for (int64_t at = first; at < end && !st; at += piece) {
        for (int p = 0; p < c->size; p++)
            parts[p] = (const char *)job->places[p].request->from + (size_t)at * r->element;
        r->combine(r->ctx, at - first, end - at < piece ? end - at : piece, parts);
        st = acr_comm_interruption(c, err);
    }
    return part(c, r, st, err);
}

static void settle(accrue_comm *c, accrue_error *err)
{
    thread_job *job = c->job;

    pthread_mutex_lock(&job->lock);
    if (!job->failure.status)
        job->failure = *err;
    *err = job->failure;
    pthread_cond_broadcast(&job->changed);
    for (int p = 0; p < c->size; p++)
        while (job->places[p].reads)
            pthread_cond_wait(&job->changed, &job->lock);
    pthread_mutex_unlock(&job->lock);
}

static accrue_status hear(accrue_comm *c, accrue_error *err)
{
    thread_job *job = c->job;
    accrue_status st = ACCRUE_OK;

    pthread_mutex_lock(&job->lock);
    st = job->failure.status;
    if (st)
        *err = job->failure;
    pthread_mutex_unlock(&job->lock);
    return st;
}

static void wake(accrue_comm *c)
{
    thread_job *job = c->job;

    pthread_mutex_lock(&job->lock);
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
}

static void leave(accrue_comm *c)
{
    thread_job *job = c->job;
    bool last = false;

    pthread_mutex_lock(&job->lock);
    job->places[c->rank].gone = true;
    last = --job->open == 0;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->lock);
    if (last)
        job_free(job);
}

static const acr_transport threads = {.in_process = true,
                                      .exchange = exchange,
                                      .reduce = reduce,
                                      .settle = settle,
                                      .listen = hear,
                                      .wake = wake,
                                      .close = leave};

static thread_job *job_create(int size) /* NULL when out of memory */
{
    const size_t n = (size_t)size;
    thread_job *job = acr_calloc(1, sizeof *job);

    if (!job)
        return NULL;
    job->places = acr_calloc(n, sizeof *job->places);
    job->parts = acr_calloc(n * n, sizeof *job->parts);
    job->has_lock = acr_lock_init(&job->lock, &job->changed);
    if (!job->places || !job->parts || !job->has_lock) {
        job_free(job);
        return NULL;
    }
    return job;
}

accrue_status accrue_comm_open_threads(accrue_comm **out, int ranks, double timeout,
                                       accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    thread_job *job = NULL;

    if (ranks < 1)
        return acr_fail(err, ACCRUE_EINVAL, "%d ranks; at least 1", ranks);
    for (int r = 0; r < ranks; r++)
        out[r] = NULL;
    ACR_TRY(acr_comm_check_timeout(timeout, err));
    job = job_create(ranks);
    if (!job) {
        st = acr_enomem(err, sizeof *job, "ranks");
        goto cleanup;
    }
    for (int r = 0; r < ranks; r++) {
        ACR_TRY(acr_comm_create(&out[r], &threads, r, ranks, timeout, err));
        out[r]->job = job;
        job->open++;
    }
    for (int r = 0; r < ranks; r++)
        ACR_TRY(acr_comm_start(out[r], err));

cleanup:
    if (!st)
        return ACCRUE_OK;
    if (!job || !job->open)
        job_free(job);
    for (int r = ranks - 1; r >= 0; r--) {
        accrue_comm_free(out[r]);
        out[r] = NULL;
    }
    return st;
}
