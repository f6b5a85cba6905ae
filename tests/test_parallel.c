/* Ranks as threads of one process: pools of their own, failures of one's own, a ledger for each. */
#include "files.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { RANKS = 4, REGIONS = 300, TASKS = 64, PATIENCE = 120 /* s, where nobody comes */ };

typedef struct rank {
    pthread_t thread;
    int number, threads;
    pthread_barrier_t all; /* of its pool's threads */
    int64_t out[TASKS], region;
    atomic_int members, strangers, wrong;
    acr_ledger ledger;
    accrue_status status;
} rank;

static _Thread_local const rank *serves; /* whose tasks this thread does */

/* Notes who does the tasks of whom. */
static void count_member(rank *r)
{
    if (!serves) {
        serves = r;
        atomic_fetch_add(&r->members, 1);
    }
    if (serves != r)
        atomic_fetch_add(&r->strangers, 1);
    if (acr_threads() != r->threads)
        atomic_fetch_add(&r->wrong, 1);
}

static void meet(int64_t i, void *ctx)
{
    rank *r = ctx;

    (void)i;
    count_member(r);
    pthread_barrier_wait(&r->all);
}

static int64_t value(const rank *r, int64_t i)
{
    return r->number * 1000003 + r->region * 1009 + i;
}

static void compute(int64_t i, void *ctx)
{
    rank *r = ctx;

    count_member(r);
    r->out[i] = value(r, i);
}

static void do_regions(rank *r)
{
    acr_parallel(r->threads, meet, r);
    for (r->region = 0; r->region < REGIONS; r->region++) {
        memset(r->out, 0, sizeof r->out);
        acr_parallel(TASKS, compute, r);
        for (int64_t i = 0; i < TASKS; i++)
            if (r->out[i] != value(r, i))
                atomic_fetch_add(&r->wrong, 1);
        if (r->region % 50 == 0)
            usleep(500); /* its workers fall asleep */
    }
}

/* Rank 0 goes by the process's pool, the others by their own. */
static void *work(void *arg)
{
    rank *r = arg;
    acr_pool *pool = NULL;

    if (r->number > 0)
        r->status = acr_pool_enter(&pool, r->threads, NULL);
    if (!r->status)
        do_regions(r);
    acr_pool_leave(pool);
    return NULL;
}

static void start_all(rank *ranks, int n, void *(*f)(void *))
{
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, f, &ranks[i]), 0);
}

static void join_all(const rank *ranks, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_join(ranks[i].thread, NULL), 0);
}

static int threads_of_process(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    int n = 0;

    assert_non_null(f);
    while (n == 0 && fgets(line, sizeof line, f))
        if (strncmp(line, "Threads:", 8) == 0)
            n = atoi(line + 8);
    fclose(f);
    return n;
}

/* A thread that was joined may be counted for a moment longer. */
static void assert_threads(int expected)
{
    for (int i = 0; i < 10000 && threads_of_process() != expected; i++)
        usleep(1000);
    assert_int_equal(threads_of_process(), expected);
}

static void test_pools(void **state)
{
    rank *ranks = calloc(RANKS, sizeof *ranks);
    int before = 0;

    (void)state;
    assert_non_null(ranks);
    accrue_set_threads(2);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].number = i;
        ranks[i].threads = i == 0 ? 2 : i; /* 2 of the process, and 1, 2 and 3 of their own */
        assert_int_equal(pthread_barrier_init(&ranks[i].all, NULL, (unsigned)ranks[i].threads), 0);
    }
    alarm(PATIENCE);
    ranks[0].thread = pthread_self();
    work(&ranks[0]); /* makes the process's worker, which stays */
    before = threads_of_process();
    start_all(ranks + 1, RANKS - 1, work);
    do_regions(&ranks[0]);
    join_all(ranks + 1, RANKS - 1);
    alarm(0);
    assert_threads(before);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, ACCRUE_OK);
        assert_int_equal(ranks[i].members, ranks[i].threads);
        assert_int_equal(ranks[i].strangers, 0);
        assert_int_equal(ranks[i].wrong, 0);
        pthread_barrier_destroy(&ranks[i].all);
    }
    assert_int_equal(acr_threads(), 2);
    serves = NULL;
    free(ranks);
}

static void add_one(int64_t i, void *ctx)
{
    (void)i;
    atomic_fetch_add((atomic_int *)ctx, 1);
}

static void nest(int64_t i, void *ctx)
{
    (void)i;
    acr_parallel(10, add_one, ctx);
}

/* A pool inside a pool, one that is never used, and one whose threads the system refuses. */
static void test_enter_and_leave(void **state)
{
    acr_pool *outer = NULL, *inner = NULL;
    atomic_int done = 0;
    pthread_attr_t before, huge;
    int threads = 0;

    (void)state;
    accrue_set_threads(2);
    threads = threads_of_process();
    assert_int_equal(acr_pool_enter(&outer, 3, NULL), ACCRUE_OK);
    assert_int_equal(acr_threads(), 3);
    accrue_set_threads(5); /* says nothing of this pool */
    assert_int_equal(acr_threads(), 3);
    acr_parallel(10, nest, &done);
    assert_int_equal(atomic_exchange(&done, 0), 100);
    assert_threads(threads + 2);
    assert_int_equal(acr_pool_enter(&inner, -1, NULL), ACCRUE_OK);
    assert_int_equal(acr_threads(), 1);
    acr_parallel(10, nest, &done);
    assert_int_equal(atomic_exchange(&done, 0), 100);
    assert_threads(threads + 2);
    acr_pool_leave(inner);
    assert_int_equal(acr_threads(), 3);
    acr_pool_leave(outer);
    assert_int_equal(acr_threads(), 5);
    assert_threads(threads);

    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&huge), 0);
    assert_int_equal(pthread_attr_setstacksize(&huge, SIZE_MAX / 4 & ~(size_t)0xffff), 0);
    assert_int_equal(acr_pool_enter(&outer, 3, NULL), ACCRUE_OK);
    assert_int_equal(pthread_setattr_default_np(&huge), 0);
    acr_parallel(10, nest, &done);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    assert_int_equal(atomic_exchange(&done, 0), 100);
    assert_int_equal(acr_threads(), 3);
    acr_pool_leave(outer);
    acr_pool_leave(NULL);
    assert_threads(threads);
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&huge);
    accrue_set_threads(2);
}

/* Pools that come and go, a worker perhaps not begun or just asleep when its pool ends. */
static void test_short_lives(void **state)
{
    atomic_int done = 0;

    (void)state;
    alarm(PATIENCE);
    for (int i = 0; i < 300; i++) {
        acr_pool *pool = NULL;
        assert_int_equal(acr_pool_enter(&pool, 1 + i % 4, NULL), ACCRUE_OK);
        for (int k = 0; k < i % 3; k++)
            acr_parallel(2, add_one, &done);
        if (i % 7 == 0)
            usleep(300);
        acr_pool_leave(pool);
    }
    alarm(0);
    assert_int_equal(done, 600);
}

/* Every third allocation of rank 1 fails; the others have enough. */
static void *allocate(void *arg)
{
    rank *r = arg;

    for (int i = 0; i < 300; i++) {
        void *block = NULL;
        if (r->number == 1 && i % 3 == 0)
            acr_fail_allocation_here(3);
        block = acr_malloc(16);
        if (!block != (r->number == 1 && i % 3 == 2))
            atomic_fetch_add(&r->wrong, 1);
        acr_free(block);
    }
    acr_fail_allocation_here(1);
    if (acr_pool_enter(&(acr_pool *){NULL}, 2, NULL) != ACCRUE_ENOMEM || acr_threads() != 2)
        atomic_fetch_add(&r->wrong, 1);
    return NULL;
}

static void test_failures(void **state)
{
    rank *ranks = calloc(RANKS, sizeof *ranks);
    void *block = NULL;

    (void)state;
    assert_non_null(ranks);
    for (int i = 0; i < RANKS; i++)
        ranks[i].number = i;
    start_all(ranks, RANKS, allocate);
    join_all(ranks, RANKS);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].wrong, 0);
    free(ranks);

    acr_fail_allocation_here(2); /* both counts at once, each failing once */
    acr_fail_allocation(1);
    assert_null(acr_malloc(1));
    assert_null(acr_malloc(1));
    acr_free(block = acr_malloc(1));
    assert_non_null(block);
    acr_fail_allocation_here(1);
    acr_fail_allocation_here(0);
    acr_free(block = acr_malloc(1));
    assert_non_null(block);
}

static void hold(int64_t i, void *ctx)
{
    rank *r = ctx;
    void *block = acr_malloc(1000);

    (void)i;
    if (!block)
        atomic_fetch_add(&r->wrong, 1);
    pthread_barrier_wait(&r->all); /* so that all are held at once, by every thread of the pool */
    acr_free(block);
}

/* Blocks of 2000, 3000 and 4000 bytes at most; the pool's threads hold 1000 each. */
static void *charge(void *arg)
{
    rank *r = arg;
    acr_pool *pool = NULL;
    size_t pools_own = 0;

    acr_ledger_use(&r->ledger);
    r->status = acr_pool_enter(&pool, r->threads, NULL);
    pools_own = r->ledger.live;
    if (!r->status)
        acr_parallel(r->threads, hold, r);
    if (pools_own == 0 || r->ledger.live != pools_own ||
        r->ledger.high != pools_own + 1000 * (size_t)r->threads)
        atomic_fetch_add(&r->wrong, 1);
    acr_pool_leave(pool);
    return NULL;
}

static void test_ledgers_of_ranks(void **state)
{
    rank *ranks = calloc(RANKS, sizeof *ranks);

    (void)state;
    assert_non_null(ranks);
    alarm(PATIENCE);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].threads = 1 + i;
        assert_int_equal(pthread_barrier_init(&ranks[i].all, NULL, (unsigned)(1 + i)), 0);
    }
    start_all(ranks, RANKS, charge);
    join_all(ranks, RANKS);
    alarm(0);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, ACCRUE_OK);
        assert_int_equal(ranks[i].wrong, 0);
        assert_int_equal(ranks[i].ledger.live, 0);
        pthread_barrier_destroy(&ranks[i].all);
    }
    free(ranks);
}

static void test_ledger(void **state)
{
    acr_ledger a = {0}, b = {0};
    void *x = NULL, *y = NULL, *z = NULL;
    size_t live = acr_allocated_bytes();

    (void)state;
    z = acr_malloc(7); /* before there is a ledger */
    assert_null(acr_ledger_used());
    acr_ledger_use(&a);
    assert_ptr_equal(acr_ledger_used(), &a);
    x = acr_malloc(1000);
    y = acr_calloc(10, 50);
    acr_free(z);
    assert_int_equal(a.live, 1500);
    acr_ledger_use(&b);
    acr_free(y); /* a's, whoever frees it */
    assert_int_equal(a.live, 1000);
    assert_int_equal(b.live, 0);
    x = acr_realloc(x, 2000); /* now b's */
    assert_int_equal(a.live, 0);
    assert_int_equal(b.live, 2000);
    acr_fail_allocation_here(1);
    assert_null(acr_malloc(5000));
    x = acr_realloc(x, 500); /* the two blocks exist side by side */
    assert_int_equal(b.live, 500);
    assert_int_equal(b.high, 2500);
    acr_ledger_use(NULL);
    y = acr_malloc(10000);
    acr_free(x);
    acr_free(y);
    assert_int_equal(a.live, 0);
    assert_int_equal(b.live, 0);
    assert_int_equal(a.high, 1500);
    assert_int_equal(b.high, 2500);
    assert_int_equal(acr_allocated_bytes(), live);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pools),       cmocka_unit_test(test_enter_and_leave),
        cmocka_unit_test(test_short_lives), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_ledger),      cmocka_unit_test(test_ledgers_of_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
