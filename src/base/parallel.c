/* parallel.c - the one place that knows how work is spread over threads: a pool for the process,
 * and one for each rank that shares the process with others.
 *
 * A region is opened by the thread that has work and joined by workers as they come; the opener
 * works too and, once the tasks are handed out, waits only for those that joined.  So a worker that
 * the system has not scheduled delays nobody, and the pool stays fast on a machine that has other
 * work (docs/adr/0005).  `gate` says whether a region is open, which one, and how many are in it.
 *
 * One region of a pool at a time: a thread that finds its pool taken, or is a worker itself, does
 * its tasks alone. */
#include "base/base.h"

#include <stdatomic.h>
#include <unistd.h>

#define INSIDE_MASK UINT64_C(0xffff)
#define OPEN        UINT64_C(0x10000)
#define GENERATION  UINT64_C(0x20000) /* the lowest bit of the region's number */

enum { MAX_THREADS = 1024, SPINS = 2000 /* some 50 us: shorter than going to sleep and waking */ };

struct acr_pool {
    pthread_mutex_t taken; /* held by the thread whose region is open */
    pthread_mutex_t lock;  /* of the two conditions */
    pthread_cond_t opened, left;
    atomic_int threads, workers, sleepers;
    atomic_uint_fast64_t gate;
    acr_task task;
    void *ctx;
    int64_t n;
    atomic_int_fast64_t next;

    atomic_int numbered; /* workers that have taken their number */
    atomic_bool ending;
    acr_pool *outer; /* what its thread goes by afterwards */
    acr_ledger *ledger;
    pthread_t thread[]; /* of an own pool's workers */
};

static acr_pool shared = {.taken = PTHREAD_MUTEX_INITIALIZER,
                          .lock = PTHREAD_MUTEX_INITIALIZER,
                          .opened = PTHREAD_COND_INITIALIZER,
                          .left = PTHREAD_COND_INITIALIZER};

static _Thread_local acr_pool *mine = &shared;
static _Thread_local bool in_region;

void acr_allowed_cpus(cpu_set_t *out)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);

    if (sched_getaffinity(0, sizeof *out, out) == 0 && CPU_COUNT(out) > 0)
        return;
    CPU_ZERO(out); /* more than the set has room for */
    for (size_t i = 0; i < CPU_SETSIZE && (i == 0 || (long)i < online); i++)
        CPU_SET(i, out);
}

static int cores(void)
{
    cpu_set_t allowed;
    int n = 0;

    acr_allowed_cpus(&allowed);
    n = CPU_COUNT(&allowed);
    return n > MAX_THREADS ? MAX_THREADS : n;
}

void accrue_set_threads(int n)
{
    atomic_store(&shared.threads, n < 1 ? cores() : (n > MAX_THREADS ? MAX_THREADS : n));
}

int acr_threads(void)
{
    int n = atomic_load(&mine->threads);

    if (n)
        return n;
    accrue_set_threads(0); /* the process's pool, of which nobody has said a size */
    return atomic_load(&mine->threads);
}

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void do_tasks(acr_pool *pool)
{
    int64_t i = 0;

    while ((i = atomic_fetch_add(&pool->next, 1)) < pool->n)
        pool->task(i, pool->ctx);
}

/* Until another region than `seen` has been opened. */
static void wait_for_region(acr_pool *pool, uint64_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&pool->gate) / GENERATION != seen)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->gate) / GENERATION == seen)
        pthread_cond_wait(&pool->opened, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void leave(acr_pool *pool)
{
    uint64_t before = atomic_fetch_sub(&pool->gate, 1);

    if (before & OPEN || (before & INSIDE_MASK) != 1)
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->left);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker(void *arg)
{
    acr_pool *pool = arg;
    const int number = 1 + atomic_fetch_add(&pool->numbered, 1);
    uint64_t seen = 0;

    mine = pool;
    in_region = true;
    acr_ledger_use(pool->ledger);
    for (;;) {
        uint64_t gate = 0;
        wait_for_region(pool, seen);
        gate = atomic_load(&pool->gate);
        seen = gate / GENERATION;
        if (atomic_load(&pool->ending)) /* looked at last: it was set before the gate changed */
            return NULL;
        if (acr_threads() <= number)
            continue; /* there are more workers than threads by now */
        while (gate & OPEN && gate / GENERATION == seen)
            if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1)) {
                do_tasks(pool);
                leave(pool);
                break;
            }
    }
}

/* Workers are made when first needed.  Those of the process's pool live as long as the process.  A
 * system that refuses one leaves fewer; the work gets done all the same. */
static void need_workers(acr_pool *pool, int wanted)
{
    pthread_t thread;
    int n = atomic_load(&pool->workers);

    for (; n < wanted && acr_thread_start(&thread, worker, pool) == 0; n++)
        if (pool == &shared)
            pthread_detach(thread);
        else
            pool->thread[n] = thread;
    atomic_store(&pool->workers, n);
}

static void wake_workers(acr_pool *pool)
{
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->lock);
}

static void open_region(acr_pool *pool, int64_t n, acr_task task, void *ctx)
{
    uint64_t gate = atomic_load(&pool->gate);

    pool->task = task;
    pool->ctx = ctx;
    pool->n = n;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->gate, (gate + GENERATION) | OPEN);
    wake_workers(pool);
}

static void close_region(acr_pool *pool)
{
    atomic_fetch_and(&pool->gate, ~OPEN);
    for (int i = 0; i < SPINS; i++) {
        if ((atomic_load(&pool->gate) & INSIDE_MASK) == 0)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->gate) & INSIDE_MASK)
        pthread_cond_wait(&pool->left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void acr_parallel(int64_t n, acr_task task, void *ctx)
{
    acr_pool *pool = mine;

    if (n <= 1 || acr_threads() == 1 || in_region || pthread_mutex_trylock(&pool->taken) != 0) {
        for (int64_t i = 0; i < n; i++)
            task(i, ctx);
        return;
    }
    in_region = true;
    need_workers(pool, acr_threads() - 1);
    open_region(pool, n, task, ctx);
    do_tasks(pool);
    close_region(pool);
    in_region = false;
    pthread_mutex_unlock(&pool->taken);
}

void acr_parallel_alone(void)
{
    in_region = true;
}

static bool init_locks(acr_pool *pool)
{
    return pthread_mutex_init(&pool->taken, NULL) == 0 &&
           pthread_mutex_init(&pool->lock, NULL) == 0 &&
           pthread_cond_init(&pool->opened, NULL) == 0 && pthread_cond_init(&pool->left, NULL) == 0;
}

accrue_status acr_pool_enter(acr_pool **out, int threads, accrue_error *err)
{
    acr_pool *pool = NULL;
    size_t bytes = 0;

    *out = NULL;
    threads = threads < 1 ? 1 : (threads > MAX_THREADS ? MAX_THREADS : threads);
    bytes = sizeof *pool + (size_t)(threads - 1) * sizeof pool->thread[0];
    pool = acr_calloc(1, bytes);
    if (!pool || !init_locks(pool)) {
        acr_free(pool);
        return acr_enomem(err, bytes, "a rank's threads");
    }
    atomic_store(&pool->threads, threads);
    pool->ledger = acr_ledger_used();
    pool->outer = mine;
    mine = *out = pool;
    return ACCRUE_OK;
}

void acr_pool_leave(acr_pool *pool)
{
    if (!pool)
        return;
    mine = pool->outer;
    atomic_store(&pool->ending, true);
    atomic_fetch_add(&pool->gate, GENERATION); /* a region that is not open */
    wake_workers(pool);
    for (int i = 0; i < atomic_load(&pool->workers); i++)
        pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->opened);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->taken);
    acr_free(pool);
}
