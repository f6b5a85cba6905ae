/* Products with packed weights, to the bit those of gemm; attention over a cache. */
#include "kernel_test.h"

#include "kernel/gemm.h"

static acr_gemm *context;

static int setup(void **state)
{
    (void)state;
    if (acr_gemm_create(&context, NULL))
        return -1;
    acr_gemm_force_onednn(context, false);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    acr_gemm_free(context);
    return 0;
}

static acr_packed packed_of(const acr_backend *be, acr_dtype type, int64_t n, int64_t k,
                            const void *w)
{
    acr_packed p = {.n = n, .k = k, .type = type};
    const int64_t step = 2 * be->pack_rows;

    p.data = acr_malloc(be->packed_bytes(type, n, k));
    assert_non_null(p.data);
    memset(p.data, 0xff, be->packed_bytes(type, n, k)); /* NaN, should something not be written */
    for (int64_t row = 0; row < n; row += step)
        be->pack(&p, row, row + step < n ? step : n - row,
                 (const char *)w + (size_t)(row * k) * be->real_bytes);
    return p;
}

static acr_dtype type_of(const acr_backend *be, int i)
{
    return i ? ACR_DTYPE_BF16 : be->real;
}

/* Three weights at once against three products of gemm, for every number of rows that takes a way
 * of its own; what lies between the rows of y is left alone. */
static void products_have_the_bits_of_gemm(void **state)
{
    static const int64_t ks[] = {1, 7, 64, 193, 400}, pad = 3;
    static const int64_t ms[] = {1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 40, 257};
    static const int64_t ns[] = {1, 100, 300};

    (void)state;
    for (int width = 0; width < 2; width++)
        for (int t = 0; t < (widths[width]->real == ACR_DTYPE_F32 ? 2 : 1); t++)
            for (int i = 0; i < ACR_COUNT(ks) * ACR_COUNT(ms); i++) {
                const acr_backend *be = widths[width];
                const int64_t k = ks[i % ACR_COUNT(ks)], m = ms[i / ACR_COUNT(ks)], lda = k + pad;
                double *as = random_doubles(1, m * lda);
                void *a = reals(be, as, m * lda);
                acr_packed packed[3];
                void *y[3], *expected[3], *w[3];

                if (t)
                    be->round_bf16(m * lda, a, a);
                for (int j = 0; j < 3; j++) {
                    const int64_t n = ns[j], ldc = n + pad;
                    double *ws = random_doubles((uint64_t)j + 2, n * k);
                    double *ys = random_doubles((uint64_t)j + 5, m * ldc);

                    w[j] = reals(be, ws, n * k);
                    y[j] = reals(be, ys, m * ldc);
                    expected[j] = reals(be, ys, m * ldc);
                    packed[j] = packed_of(be, type_of(be, t), n, k, w[j]);
                    acr_gemm_args args = {.layout = ACR_GEMM_NT,
                                          .bf16 = t,
                                          .m = m,
                                          .n = n,
                                          .k = k,
                                          .a = a,
                                          .lda = lda,
                                          .b = w[j],
                                          .ldb = k,
                                          .c = expected[j],
                                          .ldc = ldc};
                    be->gemm(context, &args);
                    free(ws);
                    free(ys);
                }
                be->products(&(acr_products){.m = m,
                                             .a = a,
                                             .lda = lda,
                                             .n = 3,
                                             .w = {&packed[0], &packed[1], &packed[2]},
                                             .y = {y[0], y[1], y[2]},
                                             .ldy = {ns[0] + pad, ns[1] + pad, ns[2] + pad}});
                for (int j = 0; j < 3; j++) {
                    if (memcmp(y[j], expected[j], (size_t)(m * (ns[j] + pad)) * be->real_bytes) !=
                        0)
                        fail_msg("%s, type %d, m %lld, n %lld, k %lld: other bits than gemm",
                                 be->name, t, (long long)m, (long long)ns[j], (long long)k);
                    free(w[j]);
                    free(y[j]);
                    free(expected[j]);
                    acr_free(packed[j].data);
                }
                free(as);
                free(a);
            }
}

/* A product has the same bits for any number of threads. */
static void threads_do_not_matter(void **state)
{
    enum { M = 300, N = 700, K = 250 };

    (void)state;
    for (int t = 0; t < 2; t++)
        for (int64_t m = 1; m <= M; m += M - 1) {
            const acr_backend *be = &acr_cpu_f32;
            double *as = random_doubles(1, M * K), *ws = random_doubles(2, N * K);
            float *a = reals(be, as, M * K), *w = reals(be, ws, N * K);
            float *one = reals(be, NULL, M * N), *y = reals(be, NULL, M * N);
            acr_packed p = packed_of(be, type_of(be, t), N, K, w);

            be->round_bf16(M * K, a, a);
            for (int threads = 1; threads <= 4; threads++) {
                accrue_set_threads(threads);
                be->products(&(acr_products){.m = m,
                                             .a = a,
                                             .lda = K,
                                             .n = 1,
                                             .w = {&p},
                                             .y = {threads == 1 ? one : y},
                                             .ldy = {N}});
                if (threads > 1)
                    assert_memory_equal(y, one, (size_t)(m * N) * sizeof *y);
            }
            accrue_set_threads(2);
            free(as);
            free(ws);
            free(a);
            free(w);
            free(one);
            free(y);
            acr_free(p.data);
        }
}

/* Rows come back as they were packed: rounded, in bf16. */
static void rows_are_read_back(void **state)
{
    enum { N = 150, K = 195 };
    static const int64_t ids[] = {149, 0, 7, 7, 24, 100};

    (void)state;
    for (int width = 0; width < 2; width++)
        for (int t = 0; t < (widths[width]->real == ACR_DTYPE_F32 ? 2 : 1); t++) {
            const acr_backend *be = widths[width];
            double *ws = random_doubles(2, N * K);
            char *w = reals(be, ws, N * K), *out = reals(be, NULL, ACR_COUNT(ids) * K);
            const size_t row = K * be->real_bytes;
            acr_packed p = packed_of(be, type_of(be, t), N, K, w);

            be->packed_rows(&p, ACR_COUNT(ids), ids, out);
            if (t)
                be->round_bf16(N * K, w, w);
            for (int i = 0; i < ACR_COUNT(ids); i++)
                assert_memory_equal(out + (size_t)i * row, w + (size_t)ids[i] * row, row);
            free(ws);
            free(w);
            free(out);
            acr_free(p.data);
        }
}

static void rounding_is_to_the_nearest_even(void **state)
{
    float x[] = {1,   1.00390625f, 1.01171875f, -1.0039063f, INFINITY,
                 NAN, 3.4e38f,     0,           -0.0f,       1e-40f};
    float y[ACR_COUNT(x)];

    (void)state;
    acr_cpu_f32.round_bf16(ACR_COUNT(x), x, y);
    for (int i = 0; i < ACR_COUNT(x); i++) {
        const float expected = acr_f32_from_bf16(acr_bf16_from_f32(x[i]));
        if (isnan(expected))
            assert_true(isnan(y[i]));
        else
            assert_memory_equal(&y[i], &expected, sizeof expected);
    }
}

/* Attention over a cache ------------------------------------------------------------------ */

typedef struct attention_case {
    acr_kv_heads heads;
    int64_t rows;
} attention_case;

static const attention_case cases[] = {
    {{4, 2, 6}, 70}, {{3, 3, 64}, 150}, {{6, 1, 80}, 33}, {{2, 2, 512}, 65}, {{9, 3, 2}, 200}};

static void naive_attention(const attention_case *c, const double *q, const double *k,
                            const double *v, double *out)
{
    const int d = c->heads.head_dim, group = c->heads.n_heads / c->heads.n_kv_heads;
    const int64_t ldq = (int64_t)c->heads.n_heads * d, ldk = (int64_t)c->heads.n_kv_heads * d;
    double p[256];

    for (int64_t t = 0; t < c->rows; t++)
        for (int h = 0; h < c->heads.n_heads; h++) {
            double *y = out + t * ldq + (int64_t)h * d, sum = 0, max = (double)-INFINITY;

            for (int64_t j = 0; j <= t; j++) {
                p[j] = 0;
                for (int i = 0; i < d; i++)
                    p[j] += q[t * ldq + (int64_t)h * d + i] * k[j * ldk + h / group * d + i];
                p[j] /= sqrt((double)d);
                max = fmax(max, p[j]);
            }
            for (int64_t j = 0; j <= t; j++)
                sum += p[j] = exp(p[j] - max);
            for (int i = 0; i < d; i++)
                y[i] = 0;
            for (int64_t j = 0; j <= t; j++)
                for (int i = 0; i < d; i++)
                    y[i] += p[j] / sum * v[j * ldk + h / group * d + i];
        }
}

/* Rows passed `step` at a time, two runs to a call where there are as many. */
static void pass_rows(const acr_backend *be, const attention_case *c, int64_t step, acr_kv kv,
                      const void *q, const void *k, const void *v, void *out)
{
    for (int64_t row = 0, n = 0; row < c->rows; row += n) {
        const int64_t first = step < c->rows - row ? step : c->rows - row;
        const int64_t second = step < c->rows - row - first ? step : c->rows - row - first;
        const acr_kv_run runs[] = {{kv, row, first, row}, {kv, row + first, second, row + first}};

        be->kv_store(&c->heads, second ? 2 : 1, runs, k, v);
        be->kv_attend(&c->heads, second ? 2 : 1, runs, q, out);
        n = first + second;
    }
}

static void attention_is_right_however_rows_are_passed(void **state)
{
    (void)state;
    for (int width = 0; width < 2; width++)
        for (int i = 0; i < ACR_COUNT(cases); i++) {
            const acr_backend *be = widths[width];
            const attention_case *c = &cases[i];
            const int64_t nq = c->rows * c->heads.n_heads * c->heads.head_dim;
            const int64_t nk = c->rows * c->heads.n_kv_heads * c->heads.head_dim;
            const int64_t stride =
                (c->rows + ACR_KV_TILE - 1) / ACR_KV_TILE * be->kv_tile_elements(c->heads.head_dim);
            double *qs = random_doubles(1, nq), *ks = random_doubles(2, nk);
            double *vs = random_doubles(3, nk), *want = random_doubles(4, nq);
            void *q = reals(be, qs, nq), *k = reals(be, ks, nk), *v = reals(be, vs, nk);
            void *once = reals(be, NULL, nq), *out = reals(be, NULL, nq);
            const size_t bytes = (size_t)(stride * c->heads.n_kv_heads) * be->real_bytes;
            acr_kv kv = {acr_calloc(1, bytes), stride};

            assert_non_null(kv.data);
            naive_attention(c, qs, ks, vs, want);
            pass_rows(be, c, ACR_KV_ROWS, kv, q, k, v, once);
            check_close(be, once, want, nq, tolerance_of(be, 1e-13, 1e-5));
            for (int64_t step = 1; step < ACR_KV_ROWS; step += 3) {
                accrue_set_threads((int)(step % 4) + 1);
                pass_rows(be, c, step, kv, q, k, v, out);
                assert_memory_equal(out, once, (size_t)nq * be->real_bytes);
            }
            accrue_set_threads(2);
            free(qs);
            free(ks);
            free(vs);
            free(want);
            free(q);
            free(k);
            free(v);
            free(once);
            free(out);
            acr_free(kv.data);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_bits_of_gemm),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(rows_are_read_back),
        cmocka_unit_test(rounding_is_to_the_nearest_even),
        cmocka_unit_test(attention_is_right_however_rows_are_passed),
    };

    accrue_set_threads(2);
    return cmocka_run_group_tests(tests, setup, teardown);
}
