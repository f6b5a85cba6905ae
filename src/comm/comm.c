/* comm.c - the queue of collectives, the thread that carries them out, and the job's failure. */
#include "comm/transport.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { GATHER, REDUCE, EXCHANGE };

static const double listen_s = 0.05; /* how soon an idle rank hears of a failure */

int accrue_comm_rank(const accrue_comm *comm)
{
    return comm ? comm->rank : 0;
}

int accrue_comm_size(const accrue_comm *comm)
{
    return comm ? comm->size : 1;
}

int accrue_comm_local_size(const accrue_comm *comm)
{
    return comm ? comm->local_size : 1;
}

void acr_comm_split(int64_t n, int size, int64_t *begin)
{
    for (int r = 0; r <= size; r++) /* n * r may be too large for an integer */
        begin[r] = n / size * r + n % size * r / size;
}

/* Failures -------------------------------------------------------------------------------- */

accrue_status acr_comm_check_timeout(double timeout, accrue_error *err)
{
    if (!isfinite(timeout) || timeout < 0)
        return acr_fail(err, ACCRUE_EINVAL, "a timeout of %g s; 0 or more, 0 for none", timeout);
    return ACCRUE_OK;
}

accrue_status acr_comm_refuse(const acr_comm_request *r, accrue_error *err, const char *format, ...)
{
    const char *of = r->label.of;
    char step[48] = "", text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->step > 0)
        snprintf(step, sizeof step, ", optimizer step %lld", (long long)r->step);
    return acr_fail(err, ACCRUE_ECOMM, "%s%s%s%s: %s", r->label.what, of ? " " : "", of ? of : "",
                    step, text);
}

accrue_status acr_comm_silence(const accrue_comm *c, const acr_comm_request *r, int peer,
                               accrue_error *err)
{
    return acr_comm_refuse(r, err, "nothing from rank %d for %g s (--comm-timeout)", peer,
                           c->timeout);
}

accrue_status acr_comm_interruption(accrue_comm *c, accrue_error *err)
{
    if (!atomic_load(&c->interrupted))
        return ACCRUE_OK;
    pthread_mutex_lock(&c->lock);
    *err = c->posted;
    pthread_mutex_unlock(&c->lock);
    return err->status;
}

/* On the thread: the job's failure is *own, or the one that came first. */
static void fail_job(accrue_comm *c, const accrue_error *own)
{
    accrue_error job;

    /* One that ranks had agreed on names its rank already. */
    if (strncmp(own->message, "rank ", 5) == 0)
        acr_fail(&job, own->status, "%s", own->message);
    else
        acr_fail(&job, own->status, "rank %d: %s", c->rank, own->message);
    c->transport->settle(c, &job);
    pthread_mutex_lock(&c->lock);
    c->failure = job;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

accrue_status acr_comm_failure(accrue_comm *c, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (!c)
        return ACCRUE_OK;
    pthread_mutex_lock(&c->lock);
    st = c->failure.status;
    if (st && err)
        *err = c->failure;
    pthread_mutex_unlock(&c->lock);
    return st;
}

accrue_status acr_comm_fail(accrue_comm *c, accrue_status status, accrue_error *err)
{
    if (!c || c->size == 1 || !status)
        return status;
    pthread_mutex_lock(&c->lock);
    if (!c->failure.status && !c->posted.status) {
        acr_fail(&c->posted, status, "%s", err ? err->message : accrue_status_name(status));
        atomic_store(&c->interrupted, true);
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    if (c->transport->wake)
        c->transport->wake(c);
    pthread_mutex_lock(&c->lock);
    while (!c->failure.status || c->first || c->at_work)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return acr_comm_failure(c, err);
}

void acr_comm_fail_collective(accrue_comm *c, uint64_t n)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->fail_at = n;
    pthread_mutex_unlock(&c->lock);
}

/* Carrying out ---------------------------------------------------------------------------- */

int64_t acr_comm_piece(size_t bytes, size_t element)
{
    return bytes < element ? 1 : (int64_t)(bytes / element);
}

static void combine_alone(const acr_comm_request *r)
{
    const void *part = (const char *)r->from + (size_t)r->begin[0] * r->element;

    if (r->begin[1] > r->begin[0])
        r->combine(r->ctx, 0, r->begin[1] - r->begin[0], &part);
}

static void copy_own(const acr_comm_request *r, int rank)
{
    if (r->op == EXCHANGE && r->send_bytes[rank] && r->recv[rank] != r->send[rank])
        memcpy(r->recv[rank], r->send[rank], r->send_bytes[rank]);
}

/* A gather is an exchange in which everybody is sent the same. */
static void set_pieces(accrue_comm *c, acr_comm_request *r)
{
    char *data = r->data;

    for (int p = 0; p < c->size; p++) {
        c->send[p] = data + r->byte_begin[c->rank];
        c->send_bytes[p] = r->byte_begin[c->rank + 1] - r->byte_begin[c->rank];
        c->recv[p] = data + r->byte_begin[p];
        c->recv_bytes[p] = r->byte_begin[p + 1] - r->byte_begin[p];
    }
    r->send = c->send;
    r->send_bytes = c->send_bytes;
    r->recv = c->recv;
    r->recv_bytes = c->recv_bytes;
}

static int64_t bytes_sent(const accrue_comm *c, const acr_comm_request *r)
{
    size_t n = 0;

    for (int p = 0; p < c->size; p++)
        if (p == c->rank)
            continue;
        else if (r->op == REDUCE)
            n += (size_t)(r->begin[p + 1] - r->begin[p]) * r->element;
        else
            n += r->send_bytes[p];
    return (int64_t)n;
}

static bool is_to_fail(accrue_comm *c)
{
    bool fails = false;

    pthread_mutex_lock(&c->lock);
    fails = c->fail_at == 1;
    c->fail_at -= c->fail_at > 0;
    pthread_mutex_unlock(&c->lock);
    return fails;
}

static accrue_status perform(accrue_comm *c, acr_comm_request *r, accrue_error *err)
{
    if (is_to_fail(c))
        return acr_comm_refuse(r, err, "fails, as a test has asked");
    if (r->op == GATHER)
        set_pieces(c, r);
    if (c->size == 1 && r->op == REDUCE)
        combine_alone(r);
    if (r->op != REDUCE)
        copy_own(r, c->rank);
    if (c->size == 1)
        return ACCRUE_OK;
    return r->op == REDUCE ? c->transport->reduce(c, r, err) : c->transport->exchange(c, r, err);
}

static void carry_out(accrue_comm *c, acr_comm_request *r)
{
    accrue_status st = ACCRUE_OK;
    accrue_error err = {.status = ACCRUE_OK};
    const double start = acr_seconds();

    if (c->failure.status)
        return;
    st = perform(c, r, &err);
    if (st && c->size > 1) {
        fail_job(c, &err);
        return;
    }
    pthread_mutex_lock(&c->lock);
    if (st) {
        c->failure = err;
    } else {
        c->counters.collectives[r->label.kind]++;
        c->counters.bytes_sent[r->label.kind] += bytes_sent(c, r);
        c->counters.busy_seconds[r->label.kind] += acr_seconds() - start;
    }
    pthread_mutex_unlock(&c->lock);
}

/* With the lock held: hears what other ranks or the owner have to tell, or waits to. */
static void idle(accrue_comm *c)
{
    accrue_error err = c->posted;
    struct timespec until;

    if (c->failure.status) {
        pthread_cond_wait(&c->changed, &c->lock);
        return;
    }
    if (!err.status) {
        until = acr_deadline(listen_s);
        if (pthread_cond_timedwait(&c->changed, &c->lock, &until) == 0)
            return;
    }
    pthread_mutex_unlock(&c->lock);
    if (err.status || c->transport->listen(c, &err))
        fail_job(c, &err);
    pthread_mutex_lock(&c->lock);
}

static void *run(void *arg)
{
    accrue_comm *c = arg;

    acr_parallel_alone(); /* the pool is the training thread's */
    pthread_mutex_lock(&c->lock);
    while (c->first || !c->quit) {
        acr_comm_request *r = c->first;
        if (!r) {
            idle(c);
            continue;
        }
        c->first = r->next;
        c->at_work = true;
        pthread_mutex_unlock(&c->lock);
        carry_out(c, r);
        pthread_mutex_lock(&c->lock);
        c->at_work = false;
        r->done = true;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* The owner's side ------------------------------------------------------------------------ */

static void begin(accrue_comm *c, acr_comm_request *r)
{
    r->pending = true;
    r->step = c->step;
    if (!c->has_thread) {
        carry_out(c, r);
        r->done = true;
        return;
    }
    pthread_mutex_lock(&c->lock);
    if (c->first)
        c->last->next = r;
    else
        c->first = r;
    c->last = r;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void acr_comm_gather_begin(accrue_comm *c, acr_comm_request *r, acr_comm_label label, void *data,
                           const size_t *byte_begin)
{
    *r = (acr_comm_request){.op = GATHER, .label = label, .data = data, .byte_begin = byte_begin};
    if (c)
        begin(c, r);
}

void acr_comm_reduce_begin(accrue_comm *c, acr_comm_request *r, acr_comm_label label,
                           const void *data, size_t element, const int64_t *element_begin,
                           acr_comm_combine combine, void *ctx)
{
    *r = (acr_comm_request){.op = REDUCE,
                            .label = label,
                            .from = data,
                            .element = element,
                            .begin = element_begin,
                            .combine = combine,
                            .ctx = ctx};
    if (c)
        begin(c, r);
    else
        combine_alone(r);
}

void acr_comm_exchange_begin(accrue_comm *c, acr_comm_request *r, acr_comm_label label,
                             const void *const *send, const size_t *send_bytes, void *const *recv,
                             const size_t *recv_bytes)
{
    *r = (acr_comm_request){.op = EXCHANGE,
                            .label = label,
                            .send = send,
                            .send_bytes = send_bytes,
                            .recv = recv,
                            .recv_bytes = recv_bytes};
    if (c)
        begin(c, r);
    else
        copy_own(r, 0);
}

accrue_status acr_comm_wait(accrue_comm *c, acr_comm_request *r, accrue_error *err)
{
    double start = 0;

    if (!c || !r->pending)
        return ACCRUE_OK;
    pthread_mutex_lock(&c->lock);
    if (!r->done) {
        start = acr_seconds();
        while (!r->done)
            pthread_cond_wait(&c->changed, &c->lock);
        c->counters.wait_seconds[r->label.kind] += acr_seconds() - start;
    }
    r->pending = false;
    pthread_mutex_unlock(&c->lock);
    return acr_comm_failure(c, err);
}

accrue_status acr_comm_gather(accrue_comm *c, const char *what, void *data,
                              const size_t *byte_begin, accrue_error *err)
{
    acr_comm_request r;

    acr_comm_gather_begin(c, &r, (acr_comm_label){.kind = ACR_COMM_CONTROL, .what = what}, data,
                          byte_begin);
    return acr_comm_wait(c, &r, err);
}

accrue_status acr_comm_share(accrue_comm *c, const char *what, const void *own, size_t bytes,
                             void *all, accrue_error *err)
{
    if (bytes)
        memmove((char *)all + bytes * (size_t)accrue_comm_rank(c), own, bytes);
    if (!c)
        return ACCRUE_OK;
    for (int r = 0; r <= c->size; r++)
        c->begin[r] = bytes * (size_t)r;
    return acr_comm_gather(c, what, all, c->begin, err);
}

accrue_status acr_comm_broadcast(accrue_comm *c, const char *what, void *data, size_t bytes,
                                 int root, accrue_error *err)
{
    if (!c)
        return ACCRUE_OK;
    for (int r = 0; r <= c->size; r++)
        c->begin[r] = r > root ? bytes : 0;
    return acr_comm_gather(c, what, data, c->begin, err);
}

void acr_comm_set_step(accrue_comm *c, int64_t step)
{
    if (c)
        c->step = step;
}

acr_comm_counters acr_comm_get_counters(accrue_comm *c)
{
    acr_comm_counters counters = {.collectives = {0}};

    if (!c)
        return counters;
    pthread_mutex_lock(&c->lock);
    counters = c->counters;
    pthread_mutex_unlock(&c->lock);
    return counters;
}

/* A rank's life --------------------------------------------------------------------------- */

accrue_status acr_comm_create(accrue_comm **out, const acr_transport *transport, int rank, int size,
                              double timeout, accrue_error *err)
{
    const size_t n = (size_t)size;
    accrue_comm *c = acr_calloc(1, sizeof *c);

    *out = NULL;
    if (!c)
        return acr_enomem(err, sizeof *c, "a rank");
    c->rank = rank;
    c->size = c->local_size = size;
    c->timeout = timeout;
    atomic_init(&c->interrupted, false);
    c->begin = acr_calloc(n + 1, sizeof *c->begin);
    c->send = acr_calloc(n, sizeof *c->send);
    c->recv = acr_calloc(n, sizeof *c->recv);
    c->send_bytes = acr_calloc(n, sizeof *c->send_bytes);
    c->recv_bytes = acr_calloc(n, sizeof *c->recv_bytes);
    c->has_lock = acr_lock_init(&c->lock, &c->changed);
    if (!c->begin || !c->send || !c->recv || !c->send_bytes || !c->recv_bytes || !c->has_lock) {
        accrue_comm_free(c);
        return acr_enomem(err, n * 5 * sizeof *c->send, "a rank");
    }
    c->transport = transport;
    *out = c;
    return ACCRUE_OK;
}

accrue_status acr_comm_start(accrue_comm *c, accrue_error *err)
{
    int code = 0;

    if (c->size == 1)
        return ACCRUE_OK;
    code = acr_thread_start(&c->thread, run, c);
    if (code)
        return acr_fail_errno(err, code, "cannot start a thread for", "a rank");
    c->has_thread = true;
    return ACCRUE_OK;
}

void accrue_comm_free(accrue_comm *c)
{
    if (!c)
        return;
    if (c->has_thread) {
        pthread_mutex_lock(&c->lock);
        c->quit = true;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    if (c->transport)
        c->transport->close(c);
    if (c->has_lock)
        acr_lock_free(&c->lock, &c->changed);
    acr_free(c->begin);
    acr_free(c->send);
    acr_free(c->recv);
    acr_free(c->send_bytes);
    acr_free(c->recv_bytes);
    acr_free(c);
}
