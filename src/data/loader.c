/* loader.c - micro-batches read one ahead, in a thread of their own.
 *
 * Two slots: the owner works with one while the thread fills the other.  A slot belongs to the
 * thread while `full` is false and to the owner while it is true; `lock` guards that and the job.
 * Everything that a micro-batch needs is allocated when the loader is created or started. */
#include "data/readers.h"

#include <errno.h>
#include <string.h>

enum { SLOTS = 2 };

static const double tell_s = 0.2; /* between two words of a wait */

typedef struct slot {
    acr_batch batch;
    accrue_status status;
    accrue_error error;
    accrue_fault fault; /* kind 0: the failure is no row's */
    bool full;
} slot;

struct acr_loader {
    acr_dataset *data;
    acr_loader_options opt;
    char *states_dir;
    acr_states states; /* the thread's; its memory is used again for every sample */
    acr_patience patience;
    slot slots[SLOTS];

    pthread_t thread;
    acr_ledger *ledger; /* the owner's, which the thread goes by too */
    bool has_thread, has_lock;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool quit, running; /* running: the thread is at work on a job */
    bool cancel;
    const acr_epoch *epoch; /* the job: turns [next, to) */
    acr_turns turns;
    int64_t next, to;

    int64_t served, end; /* the owner's: slots handed out so far, and how many there will be */
    bool holds;          /* the owner has a slot */
    bool failed;
    accrue_error failure;
    accrue_fault fault;
};

int64_t acr_turn(const acr_turns *t, int64_t i)
{
    return (i / t->n * t->ranks + t->rank) * t->n + i % t->n;
}

static void set_patience(acr_loader *l)
{
    pthread_mutex_lock(&l->patience.lock);
    l->patience.left = l->opt.lock_timeout;
    pthread_mutex_unlock(&l->patience.lock);
}

double acr_loader_patience(acr_loader *l)
{
    double left = 0;

    pthread_mutex_lock(&l->patience.lock);
    left = l->patience.left;
    pthread_mutex_unlock(&l->patience.lock);
    return left;
}

/* For the thread, in a wait for a lock. */
static bool is_ended(void *ctx)
{
    acr_loader *l = ctx;
    bool ended = false;

    pthread_mutex_lock(&l->lock);
    ended = l->cancel || l->quit;
    pthread_mutex_unlock(&l->lock);
    return ended;
}

static accrue_status load_sample(acr_loader *l, slot *s, int64_t row, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_batch_shape *shape = &l->opt.shape;
    accrue_fault *f = &s->fault;
    acr_document doc = {.sample = row};
    const int64_t limit = l->opt.document_len ? l->opt.document_len : shape->total_seq_len;
    int64_t mask_tokens = 0, used = 0;
    acr_row r = {0};
    int rule = 0;

    ACR_TRY(acr_dataset_fault(f, &rule, l->data, row, shape->vocab_size));
    acr_dataset_raw_row(&r, &mask_tokens, l->data, row);
    used = r.tokens < limit + 1 ? r.tokens : limit + 1;
    doc.tokens = used;
    doc.input_ids = r.input_ids;
    doc.loss_mask = r.loss_mask;
    st = acr_batch_append_tokens(&s->batch, shape, &doc, err);
    if (st)
        return st;
    ACR_TRY(acr_states_open(&l->states, l->states_dir, row, &r, shape, &l->patience, f));
    for (int64_t first = 0, n = 0; first < used; first += n) {
        const void *states = NULL;
        if (l->states.is_made && is_ended(l))
            return acr_fail(err, ACCRUE_ECANCELED, "row %lld is no longer needed", (long long)row);
        ACR_TRY(acr_states_read(&states, &n, &l->states, row, first, f));
        ACR_TRY(acr_states_check_used(&l->states, row, states, first, n, used, f));
        acr_batch_put_states(&s->batch, shape, l->states.hidden->dtype, states, first, n);
    }
    set_patience(l);

cleanup:
    acr_states_close(&l->states);
    if (st)
        acr_fail(err, st, "%s", f->message);
    return st;
}

static accrue_status load(acr_loader *l, slot *s, const acr_epoch *e, int64_t index)
{
    accrue_status st = ACCRUE_OK;

    s->fault.kind = 0;
    acr_batch_begin(&s->batch, &l->opt.shape);
    for (int64_t i = index < e->n ? e->begin[index] : 0; index < e->n && i < e->begin[index + 1];
         i++)
        ACR_TRY(load_sample(l, s, e->rows[i], &s->error));

cleanup:
    return st;
}

/* With the lock held: waits for an empty slot and fills it.  False at the end of the job. */
static bool fill_next(acr_loader *l, int64_t *filled)
{
    slot *s = &l->slots[*filled % SLOTS];
    const acr_epoch *epoch = l->epoch;
    const int64_t turn = l->next, index = acr_turn(&l->turns, turn);

    while (s->full && !l->cancel && !l->quit)
        pthread_cond_wait(&l->changed, &l->lock);
    if (l->cancel || l->quit || turn >= l->to)
        return false;
    l->next++;
    pthread_mutex_unlock(&l->lock);
    s->status = load(l, s, epoch, index);
    pthread_mutex_lock(&l->lock);
    s->full = true;
    ++*filled;
    pthread_cond_broadcast(&l->changed);
    return s->status == ACCRUE_OK;
}

static void *run(void *arg)
{
    acr_loader *l = arg;

    acr_ledger_use(l->ledger);
    pthread_mutex_lock(&l->lock);
    while (!l->quit) {
        int64_t filled = 0;
        if (!l->running) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        while (fill_next(l, &filled))
            ;
        l->running = false;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static accrue_status start_thread(acr_loader *l, accrue_error *err)
{
    int code = 0;

    l->ledger = acr_ledger_used();
    code = acr_thread_start(&l->thread, run, l);
    if (code)
        return acr_fail_errno(err, code, "cannot start a thread for", l->states_dir);
    l->has_thread = true;
    return ACCRUE_OK;
}

accrue_status acr_loader_create(acr_loader **out, acr_dataset *d, const acr_loader_options *opt,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_loader *l = acr_calloc(1, sizeof *l);

    *out = NULL;
    if (!l)
        return acr_enomem(err, sizeof *l, "the loader");
    acr_patience_init(&l->patience, opt->lock_timeout);
    l->patience.ended = is_ended;
    l->patience.ctx = l;
    l->states_dir = acr_strdup(opt->states_dir);
    if (!l->states_dir) {
        st = acr_enomem(err, strlen(opt->states_dir), "the loader");
        goto cleanup;
    }
    l->data = d;
    l->opt = *opt;
    l->states.source = opt->source;
    for (int i = 0; i < SLOTS; i++)
        ACR_TRY(acr_batch_alloc(&l->slots[i].batch, &opt->shape, 16, err));
    l->has_lock = acr_lock_init(&l->lock, &l->changed);
    if (!l->has_lock) {
        st = acr_enomem(err, sizeof *l, "the loader's lock");
        goto cleanup;
    }
    ACR_TRY(start_thread(l, err));
    *out = l;
    l = NULL;

cleanup:
    acr_loader_free(l);
    return st;
}

void acr_loader_free(acr_loader *l)
{
    if (!l)
        return;
    if (l->has_thread) {
        pthread_mutex_lock(&l->lock);
        l->quit = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    if (l->has_lock)
        acr_lock_free(&l->lock, &l->changed);
    for (int i = 0; i < SLOTS; i++)
        acr_batch_free(&l->slots[i].batch);
    acr_states_free(&l->states);
    acr_patience_free(&l->patience);
    acr_free(l->states_dir);
    acr_free(l);
}

/* Stops the thread's job; afterwards the slots are the owner's. */
static void stop(acr_loader *l)
{
    l->cancel = true;
    pthread_cond_broadcast(&l->changed);
    while (l->running)
        pthread_cond_wait(&l->changed, &l->lock);
    l->cancel = false;
}

void acr_loader_stop(acr_loader *l)
{
    pthread_mutex_lock(&l->lock);
    stop(l);
    l->served = l->end = 0;
    pthread_mutex_unlock(&l->lock);
}

/* Documents of the fullest micro-batch that is to come. */
static int64_t most_documents(const acr_epoch *e, const acr_turns *turns, int64_t from, int64_t to)
{
    int64_t most = 0;

    for (int64_t i = from; i < to; i++) {
        int64_t at = acr_turn(turns, i);
        if (at < e->n && e->begin[at + 1] - e->begin[at] > most)
            most = e->begin[at + 1] - e->begin[at];
    }
    return most;
}

accrue_status acr_loader_start(acr_loader *l, const acr_epoch *e, const acr_turns *turns,
                               int64_t from, int64_t to, accrue_error *err)
{
    static const acr_turns all = {.n = 1, .ranks = 1};
    accrue_status st = ACCRUE_OK;
    int64_t most = 0;

    if (from < 0 || to < from || (!turns && to > e->n))
        return acr_fail(err, ACCRUE_EINVAL, "micro-batches %lld to %lld of an epoch of %lld",
                        (long long)from, (long long)to, (long long)e->n);
    turns = turns ? turns : &all;
    most = most_documents(e, turns, from, to);
    pthread_mutex_lock(&l->lock);
    stop(l);
    l->served = l->end = 0;
    l->holds = l->failed = false;
    for (int i = 0; i < SLOTS; i++) {
        l->slots[i].full = false;
        ACR_TRY(acr_batch_reserve_docs(&l->slots[i].batch, most, err));
    }
    l->epoch = e;
    l->turns = *turns;
    l->next = from;
    l->to = to;
    l->end = to - from;
    l->running = true;
    pthread_cond_broadcast(&l->changed);

cleanup:
    pthread_mutex_unlock(&l->lock);
    return st;
}

/* With the lock held: until the thread has filled the slot. */
static accrue_status wait_for(acr_loader *l, const slot *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    struct timespec until;

    while (!s->full && !st) {
        until = acr_deadline(tell_s);
        while (!s->full && pthread_cond_timedwait(&l->changed, &l->lock, &until) != ETIMEDOUT)
            ;
        if (s->full || !l->opt.waiting)
            continue;
        pthread_mutex_unlock(&l->lock);
        st = l->opt.waiting(l->opt.ctx, err);
        pthread_mutex_lock(&l->lock);
    }
    return st;
}

accrue_status acr_loader_next(const acr_batch **out, acr_loader *l, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    slot *s = NULL;

    *out = NULL;
    if (l->failed)
        return acr_fail(err, l->failure.status, "%s", l->failure.message);
    if (l->served == l->end)
        return acr_fail(err, ACCRUE_ESTATE, "the loader has served its %lld micro-batches",
                        (long long)l->end);
    pthread_mutex_lock(&l->lock);
    if (l->holds) {
        l->slots[(l->served - 1) % SLOTS].full = false;
        l->holds = false;
        pthread_cond_broadcast(&l->changed);
    }
    s = &l->slots[l->served % SLOTS];
    st = wait_for(l, s, err);
    pthread_mutex_unlock(&l->lock);
    if (st)
        return st;
    l->served++;
    l->holds = true;
    if (s->status) {
        l->failed = true;
        l->failure = s->error;
        l->fault = s->fault;
        return acr_fail(err, s->status, "%s", s->error.message);
    }
    *out = &s->batch;
    return ACCRUE_OK;
}

const accrue_fault *acr_loader_fault(const acr_loader *l)
{
    return l->failed && l->fault.kind ? &l->fault : NULL;
}
