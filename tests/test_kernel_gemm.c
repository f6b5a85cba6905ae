/* Matrix products against a naive one, for every layout, width and awkward shape. */
#include "kernel_test.h"

#include "kernel/gemm.h"

#include <pthread.h>

/* ROUNDED: b given as bf16.  The last two go by way of oneDNN, as on a machine with AMX. */
enum { F64, F32, BF16, ROUNDED, BF16_ONEDNN, ROUNDED_ONEDNN, MODES };

typedef struct shape {
    int64_t m, n, k, pad;
} shape;

static const shape shapes[] = {
    {1, 1, 1, 0},     {1, 16, 16, 0},   {2, 7, 5, 3},      {31, 33, 17, 1},  {32, 64, 128, 0},
    {33, 128, 16, 4}, {65, 40, 600, 0}, {100, 48, 64, 16}, {65, 257, 70, 5}, {16, 16, 1000, 0},
    {290, 65, 31, 0}, {530, 30, 70, 2}, {1, 300, 90, 0},   {140, 1, 90, 0},  {24, 24, 1, 0}};

typedef struct operands {
    acr_gemm_layout layout;
    int mode;
    bool accumulate;
    shape s;
    int64_t lda, ldb, ldc, rows_a, rows_b;
    void *a, *b, *c; /* as the kernel takes them */
    double *expected;
} operands;

static double rounded(double x, int mode)
{
    return mode >= BF16 ? (double)acr_f32_from_bf16(acr_bf16_from_f32((float)x)) : x;
}

static const acr_backend *backend_of(int mode)
{
    return mode == F64 ? &acr_cpu_f64 : &acr_cpu_f32;
}

static operands make_operands(acr_gemm_layout layout, int mode, bool accumulate, shape s)
{
    const bool tn = layout == ACR_GEMM_TN, nt = layout == ACR_GEMM_NT;
    operands o = {.layout = layout, .mode = mode, .accumulate = accumulate, .s = s};
    double *a = NULL, *b = NULL, *c = NULL;

    o.lda = (tn ? s.m : s.k) + s.pad;
    o.ldb = (nt ? s.k : s.n) + 2 * s.pad;
    o.ldc = s.n + s.pad;
    o.rows_a = tn ? s.k : s.m;
    o.rows_b = nt ? s.n : s.k;
    a = random_doubles(1, o.rows_a * o.lda);
    b = random_doubles(2, o.rows_b * o.ldb);
    c = random_doubles(3, s.m * o.ldc);
    o.a = reals(backend_of(mode), a, o.rows_a * o.lda);
    o.c = reals(backend_of(mode), c, s.m * o.ldc);
    if (mode == ROUNDED || mode == ROUNDED_ONEDNN) {
        float *b32 = reals(&acr_cpu_f32, b, o.rows_b * o.ldb);
        o.b = calloc((size_t)(o.rows_b * o.ldb), 2);
        assert_non_null(o.b);
        acr_convert(ACR_DTYPE_BF16, o.b, ACR_DTYPE_F32, b32, o.rows_b * o.ldb);
        free(b32);
    } else {
        o.b = reals(backend_of(mode), b, o.rows_b * o.ldb);
    }
    o.expected = c;
    for (int64_t i = 0; i < s.m; i++)
        for (int64_t j = 0; j < s.n; j++) {
            double sum = accumulate ? c[i * o.ldc + j] : 0;
            for (int64_t p = 0; p < s.k; p++)
                sum += rounded(tn ? a[p * o.lda + i] : a[i * o.lda + p], mode) *
                       rounded(nt ? b[j * o.ldb + p] : b[p * o.ldb + j], mode);
            c[i * o.ldc + j] = sum;
        }
    free(a);
    free(b);
    return o;
}

static void free_operands(operands *o)
{
    free(o->a);
    free(o->b);
    free(o->c);
    free(o->expected);
}

static acr_gemm_args args_of(const operands *o)
{
    return (acr_gemm_args){.layout = o->layout,
                           .bf16 = o->mode >= BF16,
                           .accumulate = o->accumulate,
                           .m = o->s.m,
                           .n = o->s.n,
                           .k = o->s.k,
                           .a = o->a,
                           .lda = o->lda,
                           .b = o->b,
                           .b_is_bf16 = o->mode == ROUNDED || o->mode == ROUNDED_ONEDNN,
                           .ldb = o->ldb,
                           .c = o->c,
                           .ldc = o->ldc};
}

static void run(acr_gemm *g, const acr_gemm_args *args, int mode)
{
    accrue_error err = {0};

    acr_gemm_force_onednn(g, mode >= BF16_ONEDNN);
    backend_of(mode)->gemm(g, args);
    if (acr_gemm_status(g, &err))
        fail_msg("%s", err.message);
}

/* Rows of c are compared in full: the padding between them must be left alone. */
static void test_products(void **state)
{
    acr_gemm *g = *state;

    for (int mode = 0; mode < MODES; mode++)
        for (int layout = 0; layout < 3; layout++)
            for (int i = 0; i < 2 * ACR_COUNT(shapes); i++) {
                operands o = make_operands((acr_gemm_layout)layout, mode, i % 2, shapes[i / 2]);
                acr_gemm_args args = args_of(&o);
                run(g, &args, mode);
                check_close(backend_of(mode), o.c, o.expected, o.s.m * o.ldc,
                            mode == F64 ? 1e-13 * sqrt((double)o.s.k) : 2e-6 * sqrt((double)o.s.k));
                free_operands(&o);
            }
}

static void test_empty(void **state)
{
    acr_gemm *g = *state;

    for (int mode = 0; mode < MODES; mode++)
        for (int layout = 0; layout < 3; layout++)
            for (int i = 0; i < 6; i++) {
                shape s = {i / 2 == 0 ? 0 : 5, i / 2 == 1 ? 0 : 6, i / 2 == 2 ? 0 : 7, 1};
                operands o = make_operands((acr_gemm_layout)layout, mode, i % 2, s);
                acr_gemm_args args = args_of(&o);
                run(g, &args, mode);
                check_close(backend_of(mode), o.c, o.expected, o.s.m * o.ldc, 0);
                free_operands(&o);
            }
}

/* 1, 2 and 3 threads give the same bits. */
static void test_threads(void **state)
{
    static const shape big[] = {
        {300, 96, 130, 0}, {16, 16, 3000, 0}, {100, 300, 64, 0}, {33, 300, 200, 0}};
    acr_gemm *g = *state;

    for (int mode = 0; mode < MODES; mode++)
        for (int layout = 0; layout < 3; layout++)
            for (int i = 0; i < 2 * ACR_COUNT(big); i++) {
                operands o = make_operands((acr_gemm_layout)layout, mode, i % 2, big[i / 2]);
                acr_gemm_args args = args_of(&o);
                const size_t bytes = (size_t)(o.s.m * o.ldc) * backend_of(mode)->real_bytes;
                void *before = malloc(bytes), *one = malloc(bytes);
                assert_true(before && one);
                memcpy(before, o.c, bytes);
                accrue_set_threads(1);
                run(g, &args, mode);
                memcpy(one, o.c, bytes);
                for (int threads = 2; threads <= 3; threads++) {
                    accrue_set_threads(threads);
                    memcpy(o.c, before, bytes);
                    run(g, &args, mode);
                    if (memcmp(one, o.c, bytes) != 0)
                        fail_msg("mode %d, layout %d, m %lld, n %lld, k %lld: %d threads differ",
                                 mode, layout, (long long)o.s.m, (long long)o.s.n, (long long)o.s.k,
                                 threads);
                }
                accrue_set_threads(2);
                free(before);
                free(one);
                free_operands(&o);
            }
}

/* A row of NT and NN does not depend on the rows that are computed with it. */
static void test_row_splits(void **state)
{
    static const shape big[] = {{600, 50, 130, 0}, {170, 100, 300, 2}};
    static const int64_t cuts[] = {1, 2, 31, 32, 33, 100, 257, 1000};
    acr_gemm *g = *state;

    for (int mode = 0; mode < MODES; mode++)
        for (int layout = 0; layout < 2; layout++)
            for (int i = 0; i < 2 * ACR_COUNT(big); i++) {
                operands o = make_operands((acr_gemm_layout)layout, mode, i % 2, big[i / 2]);
                const size_t size = backend_of(mode)->real_bytes;
                const size_t bytes = (size_t)(o.s.m * o.ldc) * size;
                char *split = malloc(bytes);
                acr_gemm_args args = args_of(&o);
                assert_non_null(split);
                memcpy(split, o.c, bytes);
                run(g, &args, mode);
                for (int64_t row = 0, c = 0; row < o.s.m; row += args.m, c++) {
                    args.m = cuts[c % ACR_COUNT(cuts)];
                    if (args.m > o.s.m - row)
                        args.m = o.s.m - row;
                    args.a = (char *)o.a + (size_t)(row * o.lda) * size;
                    args.c = split + (size_t)(row * o.ldc) * size;
                    run(g, &args, mode);
                }
                if (memcmp(split, o.c, bytes) != 0)
                    fail_msg("mode %d, layout %d, n %lld, k %lld: a split changes bits", mode,
                             layout, (long long)o.s.n, (long long)o.s.k);
                free(split);
                free_operands(&o);
            }
}

/* dW over a window is the same to the bit in one product and accumulated over micro-batches. */
static void test_sum_splits(void **state)
{
    static const int64_t cuts[] = {1, 7, 192, 33, 150};
    acr_gemm *g = *state;

    for (int mode = F64; mode <= BF16; mode++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            operands o = make_operands(ACR_GEMM_TN, mode, accumulate, (shape){70, 90, 500, 3});
            const size_t size = backend_of(mode)->real_bytes;
            const size_t bytes = (size_t)(o.s.m * o.ldc) * size;
            void *split = malloc(bytes);
            acr_gemm_args args = args_of(&o);
            assert_non_null(split);
            memcpy(split, o.c, bytes);
            run(g, &args, mode);
            args.c = split;
            for (int64_t row = 0, c = 0; row < o.s.k; row += args.k, c++) {
                args.k = cuts[c % ACR_COUNT(cuts)];
                if (args.k > o.s.k - row)
                    args.k = o.s.k - row;
                args.a = (char *)o.a + (size_t)(row * o.lda) * size;
                args.b = (char *)o.b + (size_t)(row * o.ldb) * size;
                run(g, &args, mode);
                args.accumulate = true;
            }
            assert_memory_equal(split, o.c, bytes);
            free(split);
            free_operands(&o);
        }
}

/* After acr_gemm_prepare, no row count makes a primitive or a block. */
static void test_no_allocation(void **state)
{
    static const int64_t rows[] = {1, 31, 32, 77, 300, 555, 600, 64};

    (void)state;
    for (int mode = F32; mode < MODES; mode++)
        for (int layout = 0; layout < 3; layout++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                acr_gemm *g = NULL;
                shape s = {layout == ACR_GEMM_TN ? 48 : 600, 80, layout == ACR_GEMM_TN ? 600 : 48,
                           0};
                operands o = make_operands((acr_gemm_layout)layout, mode, accumulate, s);
                acr_gemm_args args = args_of(&o);
                uint64_t made = 0;
                assert_int_equal(acr_gemm_create(&g, NULL), ACCRUE_OK);
                made = acr_allocations();
                acr_gemm_force_onednn(g, mode >= BF16_ONEDNN);
                acr_gemm_prepare(g, &args);
                assert_true((acr_allocations() > made) == acr_gemm_uses_onednn(g));
                made = acr_allocations();
                for (int i = 0; i < ACR_COUNT(rows); i++) {
                    *(layout == ACR_GEMM_TN ? &args.k : &args.m) = rows[i];
                    run(g, &args, mode);
                }
                assert_int_equal(acr_allocations(), made);
                acr_gemm_free(g);
                free_operands(&o);
            }
}

/* Out of memory: a status, no crash, and it stays. */
static void test_allocation_failure(void **state)
{
    operands o = make_operands(ACR_GEMM_NT, BF16_ONEDNN, false, (shape){5, 6, 7, 0});
    acr_gemm_args args = args_of(&o);
    int failures = 0;
    bool onednn = false; /* a build without it allocates the context alone */

    (void)state;
    for (uint64_t n = 1; n < 10; n++) {
        acr_gemm *g = NULL;
        accrue_error err = {0};
        accrue_status st = ACCRUE_OK;
        acr_fail_allocation(n);
        st = acr_gemm_create(&g, &err);
        if (!st) {
            acr_gemm_force_onednn(g, true);
            onednn = acr_gemm_uses_onednn(g);
            acr_cpu_f32.gemm(g, &args);
            st = acr_gemm_status(g, &err);
        }
        acr_fail_allocation(0);
        if (st) {
            assert_int_equal(st, ACCRUE_ENOMEM);
            assert_int_equal(err.status, ACCRUE_ENOMEM);
            failures++;
        }
        acr_gemm_free(g);
    }
    assert_true(failures >= (onednn ? 6 : 1));
    free_operands(&o);
}

typedef struct rank {
    pthread_t thread;
    const operands *o;
    void *c; /* a copy of o->c at first, then the product */
    accrue_status status;
} rank;

/* With a pool and primitives of its own. */
static void *multiply(void *arg)
{
    rank *r = arg;
    acr_gemm_args args = args_of(r->o);
    acr_pool *pool = NULL;
    acr_gemm *g = NULL;

    r->status = acr_pool_enter(&pool, 2, NULL);
    if (!r->status)
        r->status = acr_gemm_create(&g, NULL);
    if (!r->status) {
        args.c = r->c;
        acr_gemm_force_onednn(g, r->o->mode >= BF16_ONEDNN);
        backend_of(r->o->mode)->gemm(g, &args);
        r->status = acr_gemm_status(g, NULL);
    }
    acr_gemm_free(g);
    acr_pool_leave(pool);
    return NULL;
}

/* Ranks that multiply at once, each the first to compile a primitive, get the bits of one alone. */
static void test_ranks(void **state)
{
    static const shape big[] = {{300, 300, 130, 0}, {33, 300, 500, 0}};

    for (int mode = 0; mode < MODES; mode++)
        for (int layout = 0; layout < 3; layout++)
            for (int i = 0; i < ACR_COUNT(big); i++) {
                operands o = make_operands((acr_gemm_layout)layout, mode, true, big[i]);
                acr_gemm_args args = args_of(&o);
                const size_t bytes = (size_t)(o.s.m * o.ldc) * backend_of(mode)->real_bytes;
                rank ranks[3] = {0};
                for (int r = 0; r < ACR_COUNT(ranks); r++) {
                    ranks[r] = (rank){.o = &o, .c = malloc(bytes)};
                    assert_non_null(ranks[r].c);
                    memcpy(ranks[r].c, o.c, bytes);
                }
                for (int r = 0; r < ACR_COUNT(ranks); r++)
                    assert_int_equal(pthread_create(&ranks[r].thread, NULL, multiply, &ranks[r]),
                                     0);
                for (int r = 0; r < ACR_COUNT(ranks); r++)
                    pthread_join(ranks[r].thread, NULL);
                run(*state, &args, mode);
                for (int r = 0; r < ACR_COUNT(ranks); r++) {
                    assert_int_equal(ranks[r].status, ACCRUE_OK);
                    assert_memory_equal(ranks[r].c, o.c, bytes);
                    free(ranks[r].c);
                }
                free_operands(&o);
            }
}

static int setup(void **state)
{
    accrue_set_threads(3);
    return acr_gemm_create((acr_gemm **)state, NULL) != ACCRUE_OK;
}

static int teardown(void **state)
{
    acr_gemm_free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),      cmocka_unit_test(test_empty),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_row_splits),
        cmocka_unit_test(test_sum_splits),    cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_allocation_failure),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
