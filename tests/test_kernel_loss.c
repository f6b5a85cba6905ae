/* Softmax, argmax and losses against plain formulas in long double, gradients by differences. */
#include "kernel_test.h"

static const int64_t vocabs[] = {1, 2, 17, 64, 129, 1000, 1025, 5003};

typedef struct row_data {
    int64_t vocab;
    double *z, *t;
} row_data;

/* Term `kind` of one row, from its definition. */
static double term_of(acr_loss_kind kind, const row_data *r, double *lambda)
{
    long double zs = 0, ts = 0, kl = 0, rkl = 0, jsd = 0, alpha = 0;
    long double zm = -(long double)INFINITY, tm = -(long double)INFINITY;
    int64_t top = 0;

    for (int64_t i = 0; i < r->vocab; i++) {
        zm = fmaxl(zm, (long double)r->z[i]);
        if ((long double)r->t[i] > tm) {
            tm = (long double)r->t[i];
            top = i;
        }
    }
    for (int64_t i = 0; i < r->vocab; i++) {
        zs += expl((long double)r->z[i] - zm);
        ts += expl((long double)r->t[i] - tm);
    }
    zs = zm + logl(zs);
    ts = tm + logl(ts);
    for (int64_t i = 0; i < r->vocab; i++) {
        long double lq = (long double)r->z[i] - zs, lp = (long double)r->t[i] - ts;
        long double q = expl(lq), p = expl(lp), m = (p + q) / 2;
        kl += p > 0 ? p * (lp - lq) : 0;
        rkl += q > 0 ? q * (lq - lp) : 0;
        jsd += (p > 0 ? p * logl(p / m) : 0) / 2 + (q > 0 ? q * logl(q / m) : 0) / 2;
        alpha += fminl(p, q);
    }
    if (*lambda < 0) /* the caller fixes it for differences */
        *lambda = (double)expl(-3 * alpha);
    switch (kind) {
    case ACR_LOSS_KL_DIV: return (double)kl;
    case ACR_LOSS_RKL: return (double)rkl;
    case ACR_LOSS_JSD: return (double)jsd;
    case ACR_LOSS_CE: return (double)(zs - (long double)r->z[top]);
    case ACR_LOSS_TV: return (double)(1 - alpha);
    case ACR_LOSS_NLA: return (double)-logl(fmaxl(alpha, 1e-5L));
    default: return (double)((long double)*lambda * kl + (1 - (long double)*lambda) * (1 - alpha));
    }
}

/* Logits of `rows` rows; `spread` sets how far draft and target are apart. */
static double *logits(uint64_t stream, int64_t n, double spread)
{
    double *x = random_doubles(stream, n);

    for (int64_t i = 0; i < n; i++)
        x[i] = (double)(float)(x[i] * spread);
    return x;
}

enum { ROWS = 4, TARGETS = 3 };
static const int64_t target_row[ROWS] = {2, 0, 1, 2};

typedef struct result {
    void *dz, *p;
    double lse[TARGETS], *term;
    int64_t target_argmax[TARGETS], argmax[ROWS];
} result;

static result run(const acr_backend *be, const acr_loss_spec *spec, int64_t vocab, const double *z,
                  const double *t, int64_t ld, const double scale[ROWS])
{
    result r = {0};
    void *targets = reals(be, t, TARGETS * ld);
    acr_loss_args x = {0};

    r.dz = reals(be, z, ROWS * ld);
    r.p = reals(be, t, TARGETS * ld);
    r.term = calloc(ROWS * ACCRUE_MAX_LOSS_TERMS, sizeof(double));
    assert_non_null(r.term);
    be->target_softmax(TARGETS, vocab, targets, ld, r.p, r.lse, r.target_argmax);
    x = (acr_loss_args){.spec = spec,
                        .rows = ROWS,
                        .vocab = vocab,
                        .z = r.dz,
                        .ldz = ld,
                        .target_row = target_row,
                        .t = targets,
                        .p = r.p,
                        .ldt = ld,
                        .t_lse = r.lse,
                        .t_argmax = r.target_argmax,
                        .scale = scale,
                        .term_loss = r.term,
                        .argmax = r.argmax};
    be->distill_loss(&x);
    free(targets);
    return r;
}

static void free_result(result *r)
{
    free(r->dz);
    free(r->p);
    free(r->term);
}

static void test_softmax(void **state)
{
    (void)state;
    for (int w = 0; w < 2; w++)
        for (int v = 0; v < ACR_COUNT(vocabs); v++) {
            const acr_backend *be = widths[w];
            const int64_t n = vocabs[v], ld = n + 3;
            double *t = logits(1, TARGETS * ld, 5), lse[TARGETS];
            int64_t top[TARGETS], found[TARGETS];
            void *x = NULL, *p = NULL;
            t[2] = (double)-1e30f; /* a masked logit */
            x = reals(be, t, TARGETS * ld);
            p = reals(be, t, TARGETS * ld);
            be->target_softmax(TARGETS, n, x, ld, p, lse, top);
            be->argmax(TARGETS, n, x, ld, found);
            for (int64_t r = 0; r < TARGETS; r++) {
                long double sum = 0;
                int64_t best = 0;
                for (int64_t i = 0; i < n; i++) {
                    sum += expl((long double)t[r * ld + i]);
                    best = t[r * ld + i] > t[r * ld + best] ? i : best;
                }
                assert_int_equal(top[r], best);
                assert_int_equal(found[r], best);
                assert_true(fabs(lse[r] - (double)logl(sum)) < tolerance_of(be, 1e-14, 1e-6) * 10);
                for (int64_t i = 0; i < n; i++) {
                    double expected = (double)(expl((long double)t[r * ld + i]) / sum);
                    assert_true(fabs(at(be, p, r * ld + i) - expected) <=
                                tolerance_of(be, 1e-14, 3e-6) * expected);
                }
                for (int64_t i = n; i < ld; i++) /* padding */
                    assert_true(at(be, p, r * ld + i) == t[r * ld + i]);
            }
            free(t);
            free(x);
            free(p);
        }
}

static void test_argmax_ties(void **state)
{
    (void)state;
    for (int w = 0; w < 2; w++) {
        double *z = random_doubles(1, 3000);
        int64_t found[3] = {0};
        void *x = NULL;
        for (int i = 0; i < 3000; i++)
            z[i] = i < 1000 ? 0 : i < 2000 ? -1e30 : fmin(z[i], 1.0);
        z[2000 + 77] = z[2000 + 78] = z[2000 + 999] = 3;
        x = reals(widths[w], z, 3000);
        widths[w]->argmax(3, 1000, x, 1000, found);
        assert_int_equal(found[0], 0);
        assert_int_equal(found[1], 0);
        assert_int_equal(found[2], 77);
        free(x);
        free(z);
    }
}

static acr_loss_spec single(int kind)
{
    acr_loss_spec s = {.n_terms = 1};

    s.kind[0] = (acr_loss_kind)kind;
    s.weight[0] = 1.75;
    return s;
}

/* Every loss, alone, over vocabularies and distances between draft and target. */
static void test_terms(void **state)
{
    static const double scale[ROWS] = {0, 1, 1, 0};
    static const double spreads[] = {0.01, 1, 8};

    (void)state;
    for (int w = 0; w < 2; w++)
        for (int kind = 0; kind < ACR_LOSS_COUNT; kind++)
            for (int v = 0; v < ACR_COUNT(vocabs); v++)
                for (int s = 0; s < ACR_COUNT(spreads); s++) {
                    const acr_backend *be = widths[w];
                    const acr_loss_spec spec = single(kind);
                    const int64_t n = vocabs[v], ld = n + 1;
                    double *z = logits(1, ROWS * ld, spreads[s]);
                    double *t = logits(2, TARGETS * ld, spreads[s]);
                    result r = run(be, &spec, n, z, t, ld, scale);
                    for (int64_t i = 0; i < ROWS; i++) {
                        row_data one = {n, z + i * ld, t + target_row[i] * ld};
                        double lambda = -1, expected = term_of(spec.kind[0], &one, &lambda);
                        if (!(fabs(r.term[i] - expected) <=
                              tolerance_of(be, 4e-15, 1.5e-6) * (1 + fabs(expected))))
                            fail_msg("%s %s, vocabulary %lld: %.17g, expected %.17g", be->name,
                                     acr_loss_name(spec.kind[0]), (long long)n, r.term[i],
                                     expected);
                        for (int64_t c = 0; c <= n && scale[i] == 0; c++)
                            assert_true(at(be, r.dz, i * ld + c) == z[i * ld + c]);
                    }
                    free(z);
                    free(t);
                    free_result(&r);
                }
}

/* d(term)/dz of one row by differences of the definition. */
static double difference(acr_loss_kind kind, row_data *r, int64_t i)
{
    const double h = 1e-3, kept = r->z[i];
    double lambda = -1, d[4];

    (void)term_of(kind, r, &lambda);
    for (int step = 0; step < 4; step++) {
        r->z[i] = kept + h * (step < 2 ? step - 2 : step - 1);
        d[step] = term_of(kind, r, &lambda);
    }
    r->z[i] = kept;
    return (8 * (d[2] - d[1]) - (d[3] - d[0])) / (12 * h);
}

/* No logit may sit within reach of a kink (p = q) of min(p, q). */
static void separate(double *z, const double *t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        z[i] = t[i] + (i % 2 ? 0.4 : -0.5) + 0.1 * z[i];
}

static void test_gradients(void **state)
{
    static const double scale[ROWS] = {1, 0, 0, 0.3};

    (void)state;
    for (int kind = 0; kind < ACR_LOSS_COUNT; kind++)
        for (int v = 1; v < 6; v++) {
            const acr_loss_spec spec = single(kind);
            const int64_t n = vocabs[v];
            double *z = logits(1, ROWS * n, 1), *t = logits(2, TARGETS * n, 1.5);
            result r, s;
            for (int64_t i = 0; i < ROWS; i++)
                separate(z + i * n, t + target_row[i] * n, n);
            r = run(&acr_cpu_f64, &spec, n, z, t, n, scale);
            s = run(&acr_cpu_f32, &spec, n, z, t, n, scale);
            for (int64_t i = 0; i < ROWS; i++) {
                row_data one = {n, z + i * n, t + target_row[i] * n};
                for (int64_t c = 0; c < n && scale[i] != 0; c += n / 20 + 1) {
                    const double got = at(&acr_cpu_f64, r.dz, i * n + c);
                    const double want =
                        spec.weight[0] * scale[i] * difference(spec.kind[0], &one, c);
                    if (!(fabs(got - want) < 1e-10))
                        fail_msg("%s, vocabulary %lld, row %lld: dz[%lld] %.12g, expected %.12g",
                                 acr_loss_name(spec.kind[0]), (long long)n, (long long)i,
                                 (long long)c, got, want);
                    assert_true(fabs(at(&acr_cpu_f32, s.dz, i * n + c) - want) < 2e-6);
                }
            }
            free(z);
            free(t);
            free_result(&r);
            free_result(&s);
        }
}

/* A mix reports each term and adds up the weighted gradients. */
static void test_mix(void **state)
{
    static const double scale[ROWS] = {0.5, 1, 2, 1};
    acr_loss_spec all = {.n_terms = ACR_LOSS_COUNT, .mixed = true};
    const int64_t n = 203;
    double *z = logits(1, ROWS * n, 1), *t = logits(2, TARGETS * n, 1);
    double *sum = random_doubles(0, ROWS * n);
    result mix;

    (void)state;
    assert_true(ACR_LOSS_COUNT <= ACCRUE_MAX_LOSS_TERMS);
    memset(sum, 0, (size_t)(ROWS * n) * sizeof *sum);
    for (int k = 0; k < ACR_LOSS_COUNT; k++) {
        all.kind[k] = (acr_loss_kind)k;
        all.weight[k] = 0.1 + k;
    }
    mix = run(&acr_cpu_f64, &all, n, z, t, n, scale);
    for (int k = 0; k < ACR_LOSS_COUNT; k++) {
        acr_loss_spec one = single(k);
        result r;
        one.weight[0] = all.weight[k];
        r = run(&acr_cpu_f64, &one, n, z, t, n, scale);
        for (int64_t i = 0; i < ROWS; i++)
            assert_true(fabs(r.term[i] - mix.term[i * ACR_LOSS_COUNT + k]) < 1e-13);
        for (int64_t i = 0; i < ROWS * n; i++)
            sum[i] += at(&acr_cpu_f64, r.dz, i);
        free_result(&r);
    }
    check_close(&acr_cpu_f64, mix.dz, sum, ROWS * n, 1e-13);
    free(z);
    free(t);
    free(sum);
    free_result(&mix);
}

/* Ties of min(p, q) are split: draft = target gives every g = 1/2. */
static void test_edges(void **state)
{
    static const double scale[ROWS] = {1, 1, 1, 1};

    (void)state;
    for (int w = 0; w < 2; w++)
        for (int kind = 0; kind < ACR_LOSS_COUNT; kind++) {
            const acr_backend *be = widths[w];
            const acr_loss_spec spec = single(kind);
            enum { N = 40 };
            double z[ROWS * N], t[TARGETS * N];
            result r;
            for (int i = 0; i < ROWS * N; i++)
                z[i] = (double)(float)draw(5, i % N);
            for (int i = 0; i < TARGETS * N; i++)
                t[i] = (double)(float)draw(5, i % N);
            for (int i = 0; i < N; i++) {
                if (i % 4 == 1)
                    t[0 * N + i] = z[1 * N + i] = -1e30; /* row 1: masked on both sides */
                if (i != 3)
                    t[1 * N + i] = -1e30; /* row 2: all on a token ... */
                if (i != 4)
                    z[2 * N + i] = -1e30; /* ... and on another one: alpha = 0 */
            }
            r = run(be, &spec, N, z, t, N, scale);
            for (int i = 0; i < ROWS * N; i++)
                if (i / N != 2)
                    assert_true(isfinite(at(be, r.dz, i)));
            for (int row = 0; row < ROWS; row++)
                if (row != 2 && kind != ACR_LOSS_CE) {
                    assert_true(fabs(r.term[row]) < 3e-7); /* draft = target */
                    for (int i = 0; i < N; i++)
                        assert_true(fabs(at(be, r.dz, row * N + i)) < 3e-7);
                }
            if (kind == ACR_LOSS_TV)
                assert_true(r.term[2] == 1);
            if (kind == ACR_LOSS_NLA) {
                assert_true(fabs(r.term[2] + log(1e-5)) < 1e-12);
                for (int i = 0; i < N; i++)
                    assert_true(at(be, r.dz, 2 * N + i) == 0); /* under the floor */
            }
            free_result(&r);
        }
}

/* f32 over a large vocabulary keeps the digits of f64. */
static void test_large_vocabulary(void **state)
{
    static const double scale[ROWS] = {0, 0, 0, 0};
    const int64_t n = 151936;
    double *z = logits(1, ROWS * n, 3), *t = logits(2, TARGETS * n, 3);

    (void)state;
    for (int kind = 0; kind < ACR_LOSS_COUNT; kind++) {
        const acr_loss_spec spec = single(kind);
        result r = run(&acr_cpu_f64, &spec, n, z, t, n, scale);
        result s = run(&acr_cpu_f32, &spec, n, z, t, n, scale);
        for (int i = 0; i < ROWS; i++)
            assert_true(fabs(s.term[i] - r.term[i]) < 1e-6 * fabs(r.term[i]));
        free_result(&r);
        free_result(&s);
    }
    free(z);
    free(t);
}

static void test_threads(void **state)
{
    static const double scale[ROWS] = {0, 1, 0.5, 1};
    const int64_t n = 5003;
    double *z = logits(1, ROWS * n, 3), *t = logits(2, TARGETS * n, 3);

    (void)state;
    for (int w = 0; w < 2; w++)
        for (int kind = 0; kind < ACR_LOSS_COUNT; kind++)
            for (int threads = 2; threads <= 3; threads++) {
                const acr_loss_spec spec = single(kind);
                result one, more;
                accrue_set_threads(1);
                one = run(widths[w], &spec, n, z, t, n, scale);
                accrue_set_threads(threads);
                more = run(widths[w], &spec, n, z, t, n, scale);
                assert_memory_equal(one.dz, more.dz, (size_t)(ROWS * n) * widths[w]->real_bytes);
                assert_memory_equal(one.p, more.p, (size_t)(TARGETS * n) * widths[w]->real_bytes);
                assert_memory_equal(one.term, more.term, ROWS * sizeof(double));
                free_result(&one);
                free_result(&more);
            }
    free(z);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_argmax_ties),
        cmocka_unit_test(test_terms),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_mix),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
