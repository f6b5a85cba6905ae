/* comm_mpi.c - ranks as processes of an MPI job.
 *
 * Collectives are made of messages between two ranks each, so that it is known who does not come
 * (docs/adr/0010).  A lane is what goes to a rank, or comes from it, in messages one after the
 * other.  Failures travel apart: a rank tells rank 0, which decides on the first and tells all.
 *
 * MPI is called by one thread at a time: the communication thread between open and close.  Once the
 * job has failed and all know, it is not called any more but to part, and not ended either: that
 * would wait for ranks that are lost. */
#include "comm/transport.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include <mpi.h>

enum { REPORT = 1, VERDICT, RECEIVED, FAREWELL }; /* tags of words */

enum { MESSAGE = 1 << 26, STAGING = 1 << 23, LEAST_PIECE = 1 << 16 /* bytes */ };

static const double answer_s = 5;     /* for rank 0 to say which failure was first */
static const double received_s = 2;   /* for the others to have heard it */
static const double withdraw_s = 0.5; /* for messages that cannot be called back */
static const double farewell_s = 5;   /* for rank 0 to report to people */
static const double leave_s = 3;      /* for all of its part, where it cannot be heard any more */
static const double busy_s = 200e-6;  /* of polling without sleep */
static const double nap_s = 20e-6;    /* between polls from then on, growing up to */
static const double long_nap_s = 100e-6;
static const double listen_s = 1e-3; /* between looks for words */

typedef struct lane {
    char *at;
    size_t left, moving; /* bytes; moving: of the message under way */
    double since;        /* the last message, or the beginning */
} lane;

typedef struct process_job {
    MPI_Comm data, words;
    bool started; /* MPI is ours to end */
    size_t step;  /* bytes of a message */

    /* Three lanes for each rank: to it; from it; from it again, for the next piece of a sum. */
    lane *lanes;
    MPI_Request *requests;
    int n_lanes, *completed;
    MPI_Status *statuses;
    char *staging; /* two pieces from each rank */
    size_t staging_piece;
    const void **parts;

    accrue_error decided, word; /* the job's failure; this rank's */
    MPI_Request *told;          /* words under way */
    bool answered;              /* rank 0 has decided, so that it is there */
    bool stuck; /* a message may still be read from or arrive in memory that is not ours any more */
    double listened;
} process_job;

static void nap(double seconds)
{
    struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};

    nanosleep(&t, NULL);
}

/* Between two polls, `waited` seconds after something has last happened.  Ranks may be more than
 * cores: who waits leaves the core to who works. */
static void rest(double waited)
{
    if (waited < busy_s)
        sched_yield();
    else
        nap(waited < 10 * busy_s ? nap_s : long_nap_s);
}

/* Words ----------------------------------------------------------------------------------- */

/* Takes in one word with `tag`, if there is one. */
static bool hear_word(process_job *job, int source, int tag, accrue_error *word)
{
    int there = 0;
    MPI_Status status;

    if (MPI_Iprobe(source, tag, job->words, &there, &status) != MPI_SUCCESS || !there)
        return false;
    if (MPI_Recv(word, (int)sizeof *word, MPI_BYTE, status.MPI_SOURCE, tag, job->words,
                 MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return false;
    word->message[sizeof word->message - 1] = '\0';
    return true;
}

static accrue_status hear(accrue_comm *c, accrue_error *err)
{
    process_job *job = c->job;
    const int source = c->rank == 0 ? MPI_ANY_SOURCE : 0;
    const int tag = c->rank == 0 ? REPORT : VERDICT;
    accrue_error word;

    job->listened = acr_seconds();
    if (!job->decided.status && hear_word(job, source, tag, &word)) {
        job->decided = word;
        job->answered = true;
    }
    if (job->decided.status)
        *err = job->decided;
    return job->decided.status;
}

static void say(process_job *job, int rank, int tag, const accrue_error *word)
{
    MPI_Request *told = &job->told[rank];

    if (*told != MPI_REQUEST_NULL)
        MPI_Request_free(told); /* it may never arrive */
    MPI_Isend(word, (int)sizeof *word, MPI_BYTE, rank, tag, job->words, told);
}

/* Until what was said is on its way, for a moment at most. */
static void say_out(accrue_comm *c)
{
    process_job *job = c->job;
    const double start = acr_seconds();
    int sent = 0;

    while (!sent && acr_seconds() - start < withdraw_s) {
        if (MPI_Testall(c->size, job->told, &sent, job->statuses) != MPI_SUCCESS)
            return;
        rest(acr_seconds() - start);
    }
}

/* Which failure the job has: rank 0 knows. */
static void decide(accrue_comm *c, const accrue_error *own)
{
    process_job *job = c->job;
    const double start = acr_seconds();
    accrue_error word;

    if (hear(c, &word))
        return;
    job->word = *own;
    if (c->rank != 0) {
        say(job, 0, REPORT, &job->word);
        while (acr_seconds() - start < answer_s) {
            if (hear(c, &word))
                return;
            nap(long_nap_s);
        }
    }
    job->decided = *own;
    job->answered = c->rank == 0;
}

/* Rank 0 tells all and hears from all that still answer. */
static void announce(accrue_comm *c)
{
    process_job *job = c->job;
    const double start = acr_seconds();
    accrue_error word;

    for (int r = 1; r < c->size; r++)
        say(job, r, VERDICT, &job->decided);
    for (int left = c->size - 1; left > 0 && acr_seconds() - start < received_s;) {
        if (hear_word(job, MPI_ANY_SOURCE, RECEIVED, &word))
            left--;
        else if (!hear_word(job, MPI_ANY_SOURCE, REPORT, &word)) /* too late to be the first */
            nap(long_nap_s);
    }
}

/* Lanes ----------------------------------------------------------------------------------- */

static accrue_status mpi_failure(const acr_comm_request *r, int code, accrue_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    MPI_Error_string(code, text, &n);
    return acr_comm_refuse(r, err, "%s", text);
}

static int peer_of(const accrue_comm *c, int i)
{
    return i % c->size;
}

static int post(accrue_comm *c, int i)
{
    process_job *job = c->job;
    lane *l = &job->lanes[i];

    l->moving = l->left < job->step ? l->left : job->step;
    if (i < c->size)
        return MPI_Isend(l->at, (int)l->moving, MPI_BYTE, peer_of(c, i), 0, job->data,
                         &job->requests[i]);
    return MPI_Irecv(l->at, (int)l->moving, MPI_BYTE, peer_of(c, i), 0, job->data,
                     &job->requests[i]);
}

/* Nothing goes where there is nothing to send: both sides know. */
static accrue_status start(accrue_comm *c, const acr_comm_request *r, int i, const void *memory,
                           size_t bytes, accrue_error *err)
{
    process_job *job = c->job;
    int code = MPI_SUCCESS;

    job->lanes[i] = (lane){.at = (char *)(uintptr_t)memory, .left = bytes, .since = acr_seconds()};
    if (bytes && peer_of(c, i) != c->rank)
        code = post(c, i);
    else
        job->lanes[i].left = 0;
    return code == MPI_SUCCESS ? ACCRUE_OK : mpi_failure(r, code, err);
}

static accrue_status advance(accrue_comm *c, const acr_comm_request *r, int i,
                             const MPI_Status *status, accrue_error *err)
{
    process_job *job = c->job;
    lane *l = &job->lanes[i];
    int n = (int)l->moving, code = MPI_SUCCESS;

    if (i >= c->size)
        MPI_Get_count(status, MPI_BYTE, &n);
    if ((size_t)n != l->moving)
        return acr_comm_refuse(r, err, "%d bytes from rank %d, %zu expected", n, peer_of(c, i),
                               l->moving);
    l->at += l->moving;
    l->left -= l->moving;
    l->since = acr_seconds();
    if (l->left)
        code = post(c, i);
    return code == MPI_SUCCESS ? ACCRUE_OK : mpi_failure(r, code, err);
}

/* What has moved since the last look. */
static accrue_status look(accrue_comm *c, const acr_comm_request *r, int *moved, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    process_job *job = c->job;
    int code = MPI_Testsome(job->n_lanes, job->requests, moved, job->completed, job->statuses);

    if (code == MPI_ERR_IN_STATUS)
        for (int k = 0; k < *moved && code == MPI_ERR_IN_STATUS; k++)
            if (job->statuses[k].MPI_ERROR != MPI_SUCCESS)
                code = job->statuses[k].MPI_ERROR;
    if (code != MPI_SUCCESS)
        return mpi_failure(r, code, err);
    if (*moved == MPI_UNDEFINED)
        *moved = 0;
    for (int k = 0; k < *moved && !st; k++)
        st = advance(c, r, job->completed[k], &job->statuses[k], err);
    return st;
}

/* Whether the lanes [first, end) are through.  Fails where one has been still for too long. */
static accrue_status check_lanes(const accrue_comm *c, const acr_comm_request *r, int first,
                                 int end, bool *through, accrue_error *err)
{
    const process_job *job = c->job;
    const double now = acr_seconds();

    *through = true;
    for (int i = first; i < end; i++) {
        const lane *l = &job->lanes[i];
        if (!l->left)
            continue;
        *through = false;
        if (c->timeout > 0 && now - l->since > c->timeout)
            return acr_comm_silence(c, r, peer_of(c, i), err);
    }
    return ACCRUE_OK;
}

static accrue_status wait_lanes(accrue_comm *c, const acr_comm_request *r, int first, int end,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    process_job *job = c->job;
    double last = acr_seconds();
    bool through = false;

    for (;;) {
        double now = acr_seconds();
        int moved = 0;
        ACR_TRY(look(c, r, &moved, err));
        ACR_TRY(check_lanes(c, r, first, end, &through, err));
        if (through)
            break;
        ACR_TRY(acr_comm_interruption(c, err));
        if (now - job->listened > listen_s)
            ACR_TRY(hear(c, err));
        if (moved)
            last = now;
        rest(now - last);
    }

cleanup:
    return st;
}

/* What cannot be called back gets a moment to be through. */
static void withdraw(accrue_comm *c)
{
    process_job *job = c->job;
    const double begun = acr_seconds();
    bool active = true;

    for (int i = c->size; i < job->n_lanes; i++)
        if (job->requests[i] != MPI_REQUEST_NULL)
            MPI_Cancel(&job->requests[i]);
    while (active && acr_seconds() - begun < withdraw_s) {
        active = false;
        for (int i = 0; i < job->n_lanes; i++) {
            int done = 0;
            if (job->requests[i] == MPI_REQUEST_NULL)
                continue;
            MPI_Test(&job->requests[i], &done, MPI_STATUS_IGNORE);
            active |= !done;
        }
        if (active)
            nap(long_nap_s);
    }
    job->stuck = active;
}

/* The transport --------------------------------------------------------------------------- */

static accrue_status exchange(accrue_comm *c, const acr_comm_request *r, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    process_job *job = c->job;

    job->step = MESSAGE;
    for (int p = 0; p < c->size; p++)
        ACR_TRY(start(c, r, c->size + p, r->recv[p], r->recv_bytes[p], err));
    for (int i = 1; i < c->size; i++) { /* each to another one first */
        int p = (c->rank + i) % c->size;
        ACR_TRY(start(c, r, p, r->send[p], r->send_bytes[p], err));
    }
    ACR_TRY(wait_lanes(c, r, 0, 2 * c->size, err));

cleanup:
    return st;
}

/* Begins to receive piece `k` of the others' parts of this rank's range. */
static accrue_status receive_piece(accrue_comm *c, const acr_comm_request *r, int64_t k,
                                   int64_t piece, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    process_job *job = c->job;
    const int64_t left = r->begin[c->rank + 1] - r->begin[c->rank] - k * piece;
    const int64_t n = left < 0 ? 0 : left < piece ? left : piece;
    const int half = (int)(k % 2);

    for (int p = 0; p < c->size && !st; p++)
        st = start(c, r, (1 + half) * c->size + p,
                   job->staging + (size_t)(half * c->size + p) * job->staging_piece,
                   (size_t)n * r->element, err);
    return st;
}

static void combine_piece(accrue_comm *c, const acr_comm_request *r, int64_t k, int64_t piece)
{
    process_job *job = c->job;
    const int64_t at = r->begin[c->rank] + k * piece, left = r->begin[c->rank + 1] - at;
    const int half = (int)(k % 2);

    for (int p = 0; p < c->size; p++)
        job->parts[p] = job->staging + (size_t)(half * c->size + p) * job->staging_piece;
    job->parts[c->rank] = (const char *)r->from + (size_t)at * r->element;
    r->combine(r->ctx, k * piece, left < piece ? left : piece, job->parts);
}

/* While a piece is summed the next one is on its way. */
static accrue_status reduce(accrue_comm *c, const acr_comm_request *r, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    process_job *job = c->job;
    const int64_t piece = acr_comm_piece(job->staging_piece, r->element);
    const int64_t pieces = (r->begin[c->rank + 1] - r->begin[c->rank] + piece - 1) / piece;

    job->step = (size_t)piece * r->element;
    ACR_TRY(receive_piece(c, r, 0, piece, err));
    for (int i = 1; i < c->size; i++) {
        int p = (c->rank + i) % c->size;
        ACR_TRY(start(c, r, p, (const char *)r->from + (size_t)r->begin[p] * r->element,
                      (size_t)(r->begin[p + 1] - r->begin[p]) * r->element, err));
    }
    for (int64_t k = 0; k < pieces; k++) {
        int half = (int)(k % 2);
        ACR_TRY(receive_piece(c, r, k + 1, piece, err));
        ACR_TRY(wait_lanes(c, r, (1 + half) * c->size, (2 + half) * c->size, err));
        combine_piece(c, r, k, piece);
    }
    ACR_TRY(wait_lanes(c, r, 0, c->size, err));

cleanup:
    return st;
}

static void settle(accrue_comm *c, accrue_error *err)
{
    process_job *job = c->job;

    if (!job->decided.status)
        decide(c, err);
    withdraw(c);
    if (c->rank == 0)
        announce(c);
    else if (job->answered)
        say(job, 0, RECEIVED, &job->decided);
    say_out(c);
    *err = job->decided;
}

static void job_free(process_job *job)
{
    if (!job)
        return;
    acr_free(job->lanes);
    acr_free(job->requests);
    acr_free(job->completed);
    acr_free(job->statuses);
    acr_free(job->staging);
    acr_free(job->parts);
    acr_free(job->told);
    acr_free(job);
}

/* Where a rank ends badly the launcher ends the others, so that rank 0 goes first: it has people to
 * tell. */
static void part(accrue_comm *c)
{
    process_job *job = c->job;
    const double begun = acr_seconds();
    accrue_error word;

    if (!job->answered)
        return;
    while (job->stuck && c->rank != 0 && acr_seconds() - begun < leave_s)
        nap(10 * long_nap_s);
    if (job->stuck)
        return;
    for (int r = 1; r < c->size && c->rank == 0; r++)
        say(job, r, FAREWELL, &job->decided);
    if (c->rank == 0)
        say_out(c);
    else
        while (acr_seconds() - begun < farewell_s && !hear_word(job, 0, FAREWELL, &word))
            nap(10 * long_nap_s);
}

/* All are through before MPI is ended, which has no timeout. */
static accrue_status meet_at_end(accrue_comm *c)
{
    accrue_error err, job_error;
    acr_comm_request r = {.label = {.what = "the end of the job"},
                          .send = c->send,
                          .send_bytes = c->send_bytes,
                          .recv = c->recv,
                          .recv_bytes = c->recv_bytes};
    char *sent = ((process_job *)c->job)->staging;

    for (int p = 0; p < c->size; p++) {
        c->send[p] = sent;
        c->recv[p] = sent + 1 + p;
        c->send_bytes[p] = c->recv_bytes[p] = 1;
    }
    if (c->size == 1 || !exchange(c, &r, &err))
        return ACCRUE_OK;
    acr_fail(&job_error, err.status, "rank %d: %s", c->rank, err.message);
    settle(c, &job_error);
    return job_error.status;
}

/* Whether MPI holds none of the job's memory. */
static bool is_quiet(const accrue_comm *c)
{
    const process_job *job = c->job;

    for (int i = 0; i < job->n_lanes; i++)
        if (job->requests[i] != MPI_REQUEST_NULL)
            return false;
    for (int r = 0; r < c->size; r++)
        if (job->told[r] != MPI_REQUEST_NULL)
            return false;
    return true;
}

static void leave(accrue_comm *c)
{
    process_job *job = c->job;

    if (!job)
        return;
    if (c->failure.status || meet_at_end(c)) {
        part(c);
    } else {
        MPI_Comm_free(&job->data);
        MPI_Comm_free(&job->words);
        if (job->started)
            MPI_Finalize();
    }
    if (is_quiet(c))
        job_free(job);
}

static bool is_alone(const accrue_comm *c)
{
    return !((const process_job *)c->job)->answered;
}

static const acr_transport processes = {.exchange = exchange,
                                        .reduce = reduce,
                                        .settle = settle,
                                        .listen = hear,
                                        .is_alone = is_alone,
                                        .close = leave};

/* Opening --------------------------------------------------------------------------------- */

static accrue_status start_mpi(bool *started, accrue_error *err)
{
    int is_started = 0, is_ended = 0, level = 0;

    MPI_Initialized(&is_started);
    MPI_Finalized(&is_ended);
    if (is_ended)
        return acr_fail(err, ACCRUE_ESTATE, "MPI has been ended in this process, for good");
    if (is_started)
        MPI_Query_thread(&level);
    else
        MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    *started = !is_started;
    if (level >= MPI_THREAD_SERIALIZED)
        return ACCRUE_OK;
    if (*started)
        MPI_Finalize();
    return acr_fail(err, ACCRUE_ENOTSUP, "MPI gives threads of level %d, %d is needed", level,
                    MPI_THREAD_SERIALIZED);
}

static accrue_status job_alloc(process_job *job, int size, accrue_error *err)
{
    const size_t n = (size_t)size, lanes = 3 * n;
    size_t piece = STAGING / (2 * n) / ACR_ALIGN * ACR_ALIGN;

    if (piece < LEAST_PIECE)
        piece = LEAST_PIECE;
    job->staging_piece = piece;
    job->n_lanes = (int)lanes;
    job->lanes = acr_calloc(lanes, sizeof *job->lanes);
    job->requests = acr_calloc(lanes, sizeof(MPI_Request));
    job->completed = acr_calloc(lanes, sizeof *job->completed);
    job->statuses = acr_calloc(lanes, sizeof *job->statuses);
    job->staging = acr_calloc(2 * n, piece);
    job->parts = acr_calloc(n, sizeof *job->parts);
    job->told = acr_calloc(n, sizeof(MPI_Request));
    if (!job->lanes || !job->requests || !job->completed || !job->statuses || !job->staging ||
        !job->parts || !job->told)
        return acr_enomem(err, 2 * n * piece, "a rank");
    for (size_t i = 0; i < lanes; i++)
        job->requests[i] = MPI_REQUEST_NULL;
    for (size_t i = 0; i < n; i++)
        job->told[i] = MPI_REQUEST_NULL;
    return ACCRUE_OK;
}

/* Communicators of our own, whose errors come back to us.  Those of several requests at once are
 * nobody's, for which MPICH takes these two. */
static void open_communicators(process_job *job, int *local_size)
{
    MPI_Comm local = MPI_COMM_NULL;

    MPI_Comm_dup(MPI_COMM_WORLD, &job->data);
    MPI_Comm_dup(MPI_COMM_WORLD, &job->words);
    MPI_Comm_set_errhandler(job->data, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(job->words, MPI_ERRORS_RETURN);
    if (job->started) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    }
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    MPI_Comm_size(local, local_size);
    MPI_Comm_free(&local);
}

accrue_status accrue_comm_open_mpi(accrue_comm **out, double timeout, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_comm *c = NULL;
    process_job *job = NULL;
    bool started = false;
    int rank = 0, size = 0;

    *out = NULL;
    ACR_TRY(acr_comm_check_timeout(timeout, err));
    ACR_TRY(start_mpi(&started, err));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    job = acr_calloc(1, sizeof *job);
    if (!job) {
        st = acr_enomem(err, sizeof *job, "a rank");
        goto cleanup;
    }
    ACR_TRY(job_alloc(job, size, err));
    ACR_TRY(acr_comm_create(&c, &processes, rank, size, timeout, err));
    job->started = started;
    open_communicators(job, &c->local_size);
    c->job = job;
    job = NULL;
    ACR_TRY(acr_comm_start(c, err));
    *out = c;
    c = NULL;

cleanup:
    job_free(job);
    accrue_comm_free(c);
    return st;
}
