/* Attention against a naive softmax over an explicit mask, and its gradient against differences. */
#include "kernel_test.h"

typedef struct problem {
    const char *name;
    int64_t n_queries, n_base, extra_rows;
    int n_heads, n_kv_heads, head_dim, n_extra;
    int64_t document, window; /* query i at key i + offset sees its document and window */
    int64_t offset, empty_to; /* queries below `empty_to` see no base key */
} problem;

static const problem problems[] = {
    {"one", 1, 1, 1, 1, 1, 1, 0, 100, 100, 0, 0},
    {"causal", 37, 37, 40, 2, 2, 8, 0, 1000, 1000, 0, 0},
    {"grouped, extra", 70, 70, 75, 4, 2, 16, 2, 1000, 1000, 0, 0},
    {"documents, odd", 131, 131, 131, 3, 1, 12, 3, 29, 1000, 0, 0},
    {"window", 150, 150, 150, 2, 1, 10, 1, 1000, 9, 0, 0},
    {"empty ranges", 40, 40, 40, 2, 1, 6, 0, 1000, 1000, 0, 11},
    {"empty ranges, extra", 40, 40, 40, 2, 1, 6, 1, 1000, 1000, 0, 35},
    {"fewer queries", 20, 140, 50, 4, 4, 8, 2, 50, 1000, 100, 0},
    {"no base", 9, 0, 12, 2, 2, 8, 2, 1000, 1000, 0, 9},
    {"nothing", 5, 0, 1, 2, 2, 8, 0, 1000, 1000, 0, 5},
    {"wide head", 34, 34, 34, 1, 1, 130, 1, 1000, 1000, 0, 0},
};

typedef struct data {
    const problem *p;
    acr_attention a;
    int64_t *begin, *end, *extra_row[ACR_MAX_KV];
    int64_t nq, nk[1 + ACR_MAX_KV]; /* elements of q and of each segment */
    double *q, *k[1 + ACR_MAX_KV], *v[1 + ACR_MAX_KV], *dout;
} data;

static data make_data(const problem *p)
{
    data d = {.p = p};

    d.begin = calloc((size_t)p->n_queries, sizeof *d.begin);
    d.end = calloc((size_t)p->n_queries, sizeof *d.end);
    assert_true(d.begin && d.end);
    for (int64_t i = 0; i < p->n_queries; i++) {
        const int64_t key = i + p->offset, start = key / p->document * p->document;
        d.begin[i] = key + 1 - p->window > start ? key + 1 - p->window : start;
        d.end[i] = key + 1;
        if (i < p->empty_to)
            d.begin[i] = d.end[i] = 0;
    }
    d.a = (acr_attention){.n_queries = p->n_queries,
                          .n_base = p->n_base,
                          .n_heads = p->n_heads,
                          .n_kv_heads = p->n_kv_heads,
                          .head_dim = p->head_dim,
                          .begin = d.begin,
                          .end = d.end,
                          .n_extra = p->n_extra};
    d.nq = p->n_queries * p->n_heads * p->head_dim;
    d.q = random_doubles(1, d.nq);
    d.dout = random_doubles(2, d.nq);
    for (int s = 0; s <= p->n_extra; s++) {
        d.nk[s] = (s ? p->extra_rows : p->n_base) * p->n_kv_heads * p->head_dim;
        d.k[s] = random_doubles(10 + (uint64_t)s, d.nk[s]);
        d.v[s] = random_doubles(20 + (uint64_t)s, d.nk[s]);
        if (s == 0)
            continue;
        d.extra_row[s - 1] = calloc((size_t)p->n_queries, sizeof(int64_t));
        assert_non_null(d.extra_row[s - 1]);
        for (int64_t i = 0; i < p->n_queries; i++) /* distinct, in another order */
            d.extra_row[s - 1][i] = p->extra_rows - 1 - i;
        d.a.extra_row[s - 1] = d.extra_row[s - 1];
    }
    return d;
}

static void free_data(data *d)
{
    free(d->begin);
    free(d->end);
    free(d->q);
    free(d->dout);
    for (int s = 0; s <= d->p->n_extra; s++) {
        free(d->k[s]);
        free(d->v[s]);
        if (s)
            free(d->extra_row[s - 1]);
    }
}

static bool sees(const data *d, int64_t query, int segment, int64_t row)
{
    if (segment)
        return d->extra_row[segment - 1][query] == row;
    return row >= d->begin[query] && row < d->end[query];
}

/* By the definition, one score at a time. */
static void naive(const data *d, double *out, double *lse)
{
    const int depth = d->p->head_dim, kv_heads = d->p->n_kv_heads;
    const int group = d->p->n_heads / kv_heads;

    for (int64_t i = 0; i < d->p->n_queries; i++)
        for (int h = 0; h < d->p->n_heads; h++) {
            const double *q = d->q + (i * d->p->n_heads + h) * depth;
            double *y = out + (i * d->p->n_heads + h) * depth;
            double sum = 0, weight = 0;
            memset(y, 0, (size_t)depth * sizeof *y);
            for (int s = 0; s <= d->p->n_extra; s++)
                for (int64_t r = 0; r < d->nk[s] / (kv_heads * depth); r++) {
                    const int64_t kv = (r * kv_heads + h / group) * depth;
                    if (!sees(d, i, s, r))
                        continue;
                    weight = 0;
                    for (int c = 0; c < depth; c++)
                        weight += q[c] * d->k[s][kv + c];
                    weight = exp(weight / sqrt((double)depth));
                    sum += weight;
                    for (int c = 0; c < depth; c++)
                        y[c] += weight * d->v[s][kv + c];
                }
            for (int c = 0; sum > 0 && c < depth; c++)
                y[c] /= sum;
            lse[i * d->p->n_heads + h] = log(sum);
        }
}

/* What a kernel works on, in its width. */
typedef struct arrays {
    void *q, *out, *lse, *dout, *delta, *dq;
    void *k[1 + ACR_MAX_KV], *v[1 + ACR_MAX_KV], *dk[1 + ACR_MAX_KV], *dv[1 + ACR_MAX_KV];
} arrays;

/* Gradients start at 1, so that "=" in place of "+=" shows. */
static void *ones(const acr_backend *be, int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);
    void *r = NULL;

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = 1;
    r = reals(be, x, n);
    free(x);
    return r;
}

static arrays run_kernels(const acr_backend *be, const data *d)
{
    arrays x = {0};
    const int64_t rows = d->p->n_queries * d->p->n_heads;

    x.q = reals(be, d->q, d->nq);
    x.out = ones(be, d->nq);
    x.lse = ones(be, rows);
    x.dout = reals(be, d->dout, d->nq);
    x.delta = ones(be, rows);
    x.dq = ones(be, d->nq);
    for (int s = 0; s <= d->p->n_extra; s++) {
        x.k[s] = reals(be, d->k[s], d->nk[s]);
        x.v[s] = reals(be, d->v[s], d->nk[s]);
        x.dk[s] = ones(be, d->nk[s]);
        x.dv[s] = ones(be, d->nk[s]);
    }
    be->attention_forward(&d->a, x.q, (const void *const *)x.k, (const void *const *)x.v, x.out,
                          x.lse);
    be->attention_backward(&d->a, x.q, (const void *const *)x.k, (const void *const *)x.v, x.out,
                           x.lse, x.dout, x.delta, x.dq, x.dk, x.dv);
    return x;
}

static void free_arrays(arrays *x)
{
    free(x->q);
    free(x->out);
    free(x->lse);
    free(x->dout);
    free(x->delta);
    free(x->dq);
    for (int s = 0; s <= ACR_MAX_KV; s++) {
        free(x->k[s]);
        free(x->v[s]);
        free(x->dk[s]);
        free(x->dv[s]);
    }
}

static void test_forward(void **state)
{
    (void)state;
    for (int i = 0; i < ACR_COUNT(problems); i++)
        for (int w = 0; w < 2; w++) {
            data d = make_data(&problems[i]);
            const int64_t rows = d.p->n_queries * d.p->n_heads;
            double *out = random_doubles(0, d.nq), *lse = random_doubles(0, rows);
            arrays x = run_kernels(widths[w], &d);
            naive(&d, out, lse);
            check_close(widths[w], x.out, out, d.nq, tolerance_of(widths[w], 1e-13, 3e-6));
            for (int64_t r = 0; r < rows; r++)
                if (isfinite(lse[r]))
                    assert_true(fabs(at(widths[w], x.lse, r) - lse[r]) <
                                tolerance_of(widths[w], 1e-13, 3e-6) * (1 + fabs(lse[r])));
                else
                    assert_true(at(widths[w], x.lse, r) == lse[r]);
            free(out);
            free(lse);
            free_arrays(&x);
            free_data(&d);
        }
}

static double objective(const data *d)
{
    double *out = random_doubles(0, d->nq);
    double *lse = random_doubles(0, d->p->n_queries * d->p->n_heads), sum = 0;

    naive(d, out, lse);
    for (int64_t i = 0; i < d->nq; i++)
        sum += out[i] * d->dout[i];
    free(out);
    free(lse);
    return sum;
}

/* Gradients hold 1 + the derivative of sum(out dout); every `stride`-th element is tried. */
static void check_gradient(const data *d, double *x, int64_t n, const void *gradient,
                           const char *what)
{
    const int64_t stride = n / 40 + 1;
    const double h = 2e-3;

    for (int64_t i = 0; i < n; i += stride) {
        const double kept = x[i];
        double near = 0, far = 0, derivative = 0;
        x[i] = kept + h;
        near = objective(d);
        x[i] = kept - h;
        near = (near - objective(d)) / (2 * h);
        x[i] = kept + 2 * h;
        far = objective(d);
        x[i] = kept - 2 * h;
        far = (far - objective(d)) / (4 * h);
        x[i] = kept;
        derivative = (4 * near - far) / 3; /* error h^4 */
        if (!(fabs(((const double *)gradient)[i] - 1 - derivative) < 1e-9 * (1 + fabs(derivative))))
            fail_msg("%s: %s[%lld] is %.12g, differences give %.12g", d->p->name, what,
                     (long long)i, ((const double *)gradient)[i] - 1, derivative);
    }
}

static void test_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < ACR_COUNT(problems); i++) {
        data d = make_data(&problems[i]);
        arrays x = run_kernels(&acr_cpu_f64, &d);
        check_gradient(&d, d.q, d.nq, x.dq, "dq");
        for (int s = 0; s <= d.p->n_extra; s++) {
            check_gradient(&d, d.k[s], d.nk[s], x.dk[s], "dk");
            check_gradient(&d, d.v[s], d.nk[s], x.dv[s], "dv");
        }
        free_arrays(&x);
        free_data(&d);
    }
}

static void test_widths_agree(void **state)
{
    (void)state;
    for (int i = 0; i < ACR_COUNT(problems); i++) {
        data d = make_data(&problems[i]);
        arrays x = run_kernels(&acr_cpu_f64, &d), y = run_kernels(&acr_cpu_f32, &d);
        check_close(&acr_cpu_f32, y.dq, x.dq, d.nq, 1e-5);
        for (int s = 0; s <= d.p->n_extra; s++) {
            check_close(&acr_cpu_f32, y.dk[s], x.dk[s], d.nk[s], 2e-5);
            check_close(&acr_cpu_f32, y.dv[s], x.dv[s], d.nk[s], 2e-5);
        }
        free_arrays(&x);
        free_arrays(&y);
        free_data(&d);
    }
}

static void test_threads(void **state)
{
    (void)state;
    for (int i = 0; i < ACR_COUNT(problems); i++)
        for (int w = 0; w < 2; w++)
            for (int threads = 2; threads <= 3; threads++) {
                data d = make_data(&problems[i]);
                const size_t size = widths[w]->real_bytes;
                arrays one, more;
                accrue_set_threads(1);
                one = run_kernels(widths[w], &d);
                accrue_set_threads(threads);
                more = run_kernels(widths[w], &d);
                assert_memory_equal(one.out, more.out, (size_t)d.nq * size);
                assert_memory_equal(one.dq, more.dq, (size_t)d.nq * size);
                for (int s = 0; s <= d.p->n_extra; s++) {
                    assert_memory_equal(one.dk[s], more.dk[s], (size_t)d.nk[s] * size + size);
                    assert_memory_equal(one.dv[s], more.dv[s], (size_t)d.nk[s] * size + size);
                }
                free_arrays(&one);
                free_arrays(&more);
                free_data(&d);
            }
}

/* Dropping queries whose dout is 0 changes no bit of the others' output, nor of dk and dv. */
static void test_fewer_queries(void **state)
{
    static const problem all = {"all", 150, 150, 150, 2, 1, 16, 1, 70, 1000, 0, 0};

    (void)state;
    for (int w = 0; w < 2; w++) {
        data d = make_data(&all), e = make_data(&all);
        const size_t size = widths[w]->real_bytes, row = 32;
        int64_t kept = 0;
        arrays x, y;
        for (int64_t i = 0; i < all.n_queries; i++) {
            if (i % 3 == 1) {
                memset(d.dout + i * (int64_t)row, 0, row * sizeof(double));
                continue;
            }
            memcpy(e.q + kept * (int64_t)row, d.q + i * (int64_t)row, row * sizeof(double));
            memcpy(e.dout + kept * (int64_t)row, d.dout + i * (int64_t)row, row * sizeof(double));
            e.begin[kept] = d.begin[i];
            e.end[kept] = d.end[i];
            e.extra_row[0][kept] = d.extra_row[0][i];
            kept++;
        }
        e.a.n_queries = kept;
        x = run_kernels(widths[w], &d);
        y = run_kernels(widths[w], &e);
        for (int64_t i = 0, n = 0; i < all.n_queries; i++)
            if (i % 3 != 1) {
                assert_memory_equal((char *)x.out + (size_t)i * row * size,
                                    (char *)y.out + (size_t)n * row * size, row * size);
                assert_memory_equal((char *)x.dq + (size_t)i * row * size,
                                    (char *)y.dq + (size_t)n * row * size, row * size);
                n++;
            }
        assert_memory_equal(x.dk[0], y.dk[0], (size_t)d.nk[0] * size);
        assert_memory_equal(x.dv[0], y.dv[0], (size_t)d.nk[0] * size);
        free_arrays(&x);
        free_arrays(&y);
        free_data(&d);
        free_data(&e);
    }
}

/* Scores in the thousands: no overflow, all weight on the largest. */
static void test_large_scores(void **state)
{
    (void)state;
    for (int w = 0; w < 2; w++) {
        data d = make_data(&problems[2]);
        const int64_t rows = d.p->n_queries * d.p->n_heads;
        arrays x;
        for (int64_t i = 0; i < d.nq; i++)
            d.q[i] *= 4096;
        x = run_kernels(widths[w], &d);
        for (int64_t i = 0; i < d.nq; i++) {
            assert_true(fabs(at(widths[w], x.out, i)) < 6);
            assert_true(isfinite(at(widths[w], x.dq, i)));
        }
        for (int64_t i = 0; i < rows; i++)
            assert_true(isfinite(at(widths[w], x.lse, i)));
        free_arrays(&x);
        free_data(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),       cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_widths_agree),  cmocka_unit_test(test_threads),
        cmocka_unit_test(test_fewer_queries), cmocka_unit_test(test_large_scores),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
