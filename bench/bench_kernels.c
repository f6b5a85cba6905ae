/* bench_kernels.c - prints the speed of each CPU kernel at typical shapes, as CSV.
 *
 *   bench_kernels [threads]
 *
 * Each figure is the best of several runs; the data are small random numbers. */
#include "kernel/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 9 };

static const acr_backend *backends[] = {&acr_cpu_f32, &acr_cpu_f64};

static void *filled(const acr_backend *be, int64_t n)
{
    void *x = acr_malloc((size_t)n * be->real_bytes);

    if (!x) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        exit(1);
    }
    for (int64_t i = 0; i < n; i++) {
        double v = (double)((uint64_t)i * 2654435761u % 2003u) / 2003.0 - 0.5;
        if (be->real == ACR_DTYPE_F64)
            ((double *)x)[i] = v;
        else
            ((float *)x)[i] = (float)v;
    }
    return x;
}

static void report(const acr_backend *be, const char *kernel, const char *shape, double seconds,
                   double amount, const char *unit)
{
    printf("%s,%s,%s,%.3f,%.1f,%s\n", be->name, kernel, shape, seconds * 1e3,
           amount / seconds * 1e-9, unit);
    fflush(stdout);
}

/* One thread is timed by its own clock, which other work on the machine does not disturb. */
static double now(void)
{
    struct timespec t;

    if (acr_threads() > 1)
        return acr_seconds();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define BEST(seconds, statement)                                                                   \
    do {                                                                                           \
        (seconds) = 1e30;                                                                          \
        for (int run_ = 0; run_ < RUNS; run_++) {                                                  \
            double start_ = now();                                                                 \
            statement;                                                                             \
            start_ = now() - start_;                                                               \
            if (start_ < (seconds))                                                                \
                (seconds) = start_;                                                                \
        }                                                                                          \
    } while (0)

static void bench_gemm(const acr_backend *be, acr_gemm *g, bool bf16, int64_t rows, int64_t out,
                       int64_t in)
{
    static const char *const names[] = {"gemm_nt", "gemm_nn", "gemm_tn"};
    void *x = filled(be, rows * in), *w = filled(be, out * in), *y = filled(be, rows * out);
    uint16_t *w16 = NULL;
    char shape[64];

    if (bf16) {
        w16 = acr_malloc((size_t)(out * in) * sizeof *w16);
        if (!w16)
            exit(1);
        acr_convert(ACR_DTYPE_BF16, w16, ACR_DTYPE_F32, w, out * in);
    }
    for (int layout = 0; layout < 3; layout++) {
        acr_gemm_args a = {.layout = (acr_gemm_layout)layout, .bf16 = bf16, .b_is_bf16 = bf16};
        double seconds = 0;
        if (layout == ACR_GEMM_NT) { /* y = x W^T */
            a.m = rows, a.n = out, a.k = in;
            a.a = x, a.lda = in, a.ldb = in, a.c = y, a.ldc = out;
            a.b = bf16 ? (void *)w16 : w;
        } else if (layout == ACR_GEMM_NN) { /* dx = dy W */
            a.m = rows, a.n = in, a.k = out;
            a.a = y, a.lda = out, a.ldb = in, a.c = x, a.ldc = in;
            a.b = bf16 ? (void *)w16 : w;
        } else { /* dW += dy^T x */
            a.m = out, a.n = in, a.k = rows, a.accumulate = true, a.b_is_bf16 = false;
            a.a = y, a.lda = out, a.b = x, a.ldb = in, a.c = w, a.ldc = in;
        }
        BEST(seconds, be->gemm(g, &a));
        snprintf(shape, sizeof shape, "%lldx%lldx%lld%s", (long long)a.m, (long long)a.n,
                 (long long)a.k, bf16 ? " bf16" : "");
        report(be, names[layout], shape, seconds, 2.0 * (double)(rows * out * in), "GFLOP/s");
    }
    acr_free(x);
    acr_free(w);
    acr_free(w16);
    acr_free(y);
}

static void bench_attention(const acr_backend *be, int64_t tokens, int heads, int kv_heads,
                            int depth)
{
    const int64_t nq = tokens * heads * depth, nk = tokens * kv_heads * depth;
    void *q = filled(be, nq), *out = filled(be, nq), *dout = filled(be, nq), *dq = filled(be, nq);
    void *lse = filled(be, tokens * heads), *delta = filled(be, tokens * heads);
    void *k[2] = {filled(be, nk), filled(be, nk)}, *v[2] = {filled(be, nk), filled(be, nk)};
    void *dk[2] = {filled(be, nk), filled(be, nk)}, *dv[2] = {filled(be, nk), filled(be, nk)};
    int64_t *begin = acr_calloc((size_t)tokens, sizeof *begin);
    int64_t *end = acr_calloc((size_t)tokens, sizeof *end);
    int64_t *row = acr_calloc((size_t)tokens, sizeof *row);
    acr_attention a = {.n_queries = tokens,
                       .n_base = tokens,
                       .n_heads = heads,
                       .n_kv_heads = kv_heads,
                       .head_dim = depth,
                       .begin = begin,
                       .end = end,
                       .n_extra = 1,
                       .extra_row = {row}};
    /* Only the half of the scores that a causal mask leaves counts as work. */
    const double product = (double)tokens * (double)tokens * heads * depth;
    double seconds = 0;
    char shape[64];

    if (!begin || !end || !row)
        exit(1);
    for (int64_t i = 0; i < tokens; i++) {
        end[i] = i + 1;
        row[i] = i;
    }
    snprintf(shape, sizeof shape, "%lldx%d/%dx%d causal", (long long)tokens, heads, kv_heads,
             depth);
    BEST(seconds,
         be->attention_forward(&a, q, (const void *const *)k, (const void *const *)v, out, lse));
    report(be, "attention_forward", shape, seconds, 2 * product, "GFLOP/s");
    BEST(seconds, be->attention_backward(&a, q, (const void *const *)k, (const void *const *)v, out,
                                         lse, dout, delta, dq, dk, dv));
    report(be, "attention_backward", shape, seconds, 5 * product, "GFLOP/s");
    acr_free(q);
    acr_free(out);
    acr_free(dout);
    acr_free(dq);
    acr_free(lse);
    acr_free(delta);
    for (int s = 0; s < 2; s++) {
        acr_free(k[s]);
        acr_free(v[s]);
        acr_free(dk[s]);
        acr_free(dv[s]);
    }
    acr_free(begin);
    acr_free(end);
    acr_free(row);
}

/* Bytes: what must be read and written at least once. */
static void bench_rows(const acr_backend *be, int64_t rows, int64_t cols)
{
    const int64_t n = rows * cols;
    const double bytes = (double)n * (double)be->real_bytes;
    void *x = filled(be, n), *y = filled(be, n), *z = filled(be, n), *u = filled(be, n);
    void *t = filled(be, n), *w = filled(be, cols), *rstd = filled(be, rows);
    double seconds = 0;
    char shape[64];

    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows, (long long)cols);
    BEST(seconds, be->rmsnorm_forward(rows, cols, x, cols, w, 1e-5, y, cols, rstd));
    report(be, "rmsnorm_forward", shape, seconds, 2 * bytes, "GB/s");
    BEST(seconds, be->rmsnorm_backward(rows, cols, x, cols, w, rstd, y, cols, z, cols, w));
    report(be, "rmsnorm_backward", shape, seconds, 4 * bytes, "GB/s");
    BEST(seconds, be->swiglu_forward(n, x, z, y));
    report(be, "swiglu_forward", shape, seconds, 3 * bytes, "GB/s");
    BEST(seconds, be->swiglu_backward(n, x, z, y, u, t));
    report(be, "swiglu_backward", shape, seconds, 7 * bytes, "GB/s");
    BEST(seconds, be->accumulate(n, x, y));
    report(be, "accumulate", shape, seconds, 3 * bytes, "GB/s");
    BEST(seconds, be->bias_backward(rows, cols, x, cols, w));
    report(be, "bias_backward", shape, seconds, bytes, "GB/s");
    acr_free(x);
    acr_free(y);
    acr_free(z);
    acr_free(u);
    acr_free(t);
    acr_free(w);
    acr_free(rstd);
}

static void bench_losses(const acr_backend *be, int64_t rows, int64_t vocab)
{
    const int64_t n = rows * vocab;
    const double bytes = (double)n * (double)be->real_bytes;
    void *z = filled(be, n), *fresh = filled(be, n), *t = filled(be, n), *p = filled(be, n);
    double *lse = acr_calloc((size_t)rows, sizeof *lse);
    double *scale = acr_calloc((size_t)rows, sizeof *scale);
    double *term = acr_calloc((size_t)rows, sizeof *term);
    int64_t *top = acr_calloc((size_t)rows, sizeof *top);
    int64_t *row = acr_calloc((size_t)rows, sizeof *row);
    double seconds = 0;
    char shape[64];

    if (!lse || !scale || !term || !top || !row)
        exit(1);
    for (int64_t i = 0; i < rows; i++) {
        scale[i] = 1;
        row[i] = i;
    }
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows, (long long)vocab);
    BEST(seconds, be->target_softmax(rows, vocab, t, vocab, p, lse, top));
    report(be, "target_softmax", shape, seconds, 2 * bytes, "GB/s");
    for (int kind = 0; kind < ACR_LOSS_COUNT; kind++) {
        acr_loss_spec spec = {.n_terms = 1, .kind = {(acr_loss_kind)kind}, .weight = {1}};
        acr_loss_args a = {.spec = &spec,
                           .rows = rows,
                           .vocab = vocab,
                           .z = z,
                           .ldz = vocab,
                           .target_row = row,
                           .t = t,
                           .p = p,
                           .ldt = vocab,
                           .t_lse = lse,
                           .t_argmax = top,
                           .scale = scale,
                           .term_loss = term,
                           .argmax = top};
        memcpy(z, fresh, (size_t)n * be->real_bytes);
        BEST(seconds, be->distill_loss(&a));
        report(be, acr_loss_name((acr_loss_kind)kind), shape, seconds, 4 * bytes, "GB/s");
    }
    acr_free(z);
    acr_free(fresh);
    acr_free(t);
    acr_free(p);
    acr_free(lse);
    acr_free(scale);
    acr_free(term);
    acr_free(top);
    acr_free(row);
}

int main(int argc, char **argv)
{
    acr_gemm *g = NULL;
    accrue_error err;

    accrue_set_threads(argc > 1 ? atoi(argv[1]) : 0);
    if (acr_gemm_create(&g, &err)) {
        fprintf(stderr, "bench_kernels: %s\n", err.message);
        return 1;
    }
    printf("backend,kernel,shape,ms,rate,unit\n");
    for (int b = 0; b < 2; b++) {
        const acr_backend *be = backends[b];
        for (int bf16 = 0; bf16 < 2 - b; bf16++) {
            bench_gemm(be, g, bf16, 512, 576, 576);
            bench_gemm(be, g, bf16, 512, 1536, 576);
            bench_gemm(be, g, bf16, 128, 8192, 576);
            if (b == 0)
                bench_gemm(be, g, bf16, 512, 5632, 2048);
        }
        bench_attention(be, 512, 9, 3, 64);
        if (b == 0)
            bench_attention(be, 2048, 16, 16, 128);
        bench_rows(be, 512, 576);
        bench_rows(be, 512, 5632);
        bench_losses(be, 64, 8192);
        bench_losses(be, 16, 32000);
    }
    acr_gemm_free(g);
    return 0;
}
