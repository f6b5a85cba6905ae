/* bench_exact.c - what order-independent sums cost: micro-batches of f32 gradients added up plainly,
 * exactly (exact.c), and in a fixed tree over their indexes (the alternative of docs/adr/0011).
 *
 *     bench_exact [ELEMENTS [MICRO_BATCHES]] */
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, LEVELS = 16, BLOCK = 16384 };

typedef struct sums {
    int64_t n;
    float *gradient, *plain, *level[LEVELS];
    acr_exact *exact;
    float *from, *to;
} sums;

static void add_task(int64_t i, void *ctx)
{
    const sums *s = ctx;
    const int64_t begin = i * BLOCK, n = s->n - begin < BLOCK ? s->n - begin : BLOCK;

    acr_backend_for(ACR_DTYPE_F32)->accumulate(n, s->from + begin, s->to + begin);
}

static void add(sums *s, float *from, float *to)
{
    s->from = from;
    s->to = to;
    acr_parallel((s->n + BLOCK - 1) / BLOCK, add_task, s);
}

static void copy_task(int64_t i, void *ctx)
{
    const sums *s = ctx;
    const int64_t begin = i * BLOCK, n = s->n - begin < BLOCK ? s->n - begin : BLOCK;

    memcpy(s->to + begin, s->from + begin, (size_t)n * sizeof(float));
}

/* As a binary counter carries: level l holds a sum of 2^l micro-batches, or nothing. */
static void add_to_tree(sums *s, int64_t index)
{
    int l = 0;

    s->from = s->gradient;
    while (index >> l & 1) {
        add(s, s->from, s->level[l]);
        s->from = s->level[l++];
    }
    s->to = s->level[l];
    acr_parallel((s->n + BLOCK - 1) / BLOCK, copy_task, s);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, ROUNDS, sizeof *x, by_size);
    return x[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    sums s = {.n = argc > 1 ? atoll(argv[1]) : 5088384};
    const int64_t n = argc > 2 ? atoll(argv[2]) : 16;
    const size_t bytes = (size_t)s.n * sizeof(float);
    double plain[ROUNDS], exact[ROUNDS], tree[ROUNDS];
    int levels = 1;

    while (n >> levels)
        levels++;
    s.gradient = acr_calloc(1, bytes);
    s.plain = acr_calloc(1, bytes);
    s.exact = acr_calloc((size_t)s.n, sizeof *s.exact);
    for (int l = 0; l < levels; l++)
        s.level[l] = acr_calloc(1, bytes);
    for (int64_t i = 0; i < s.n; i++)
        s.gradient[i] = (float)((double)(i % 1001 - 500) * 1e-6);
    for (int r = 0; r < ROUNDS; r++) {
        double start = acr_seconds();
        for (int64_t i = 0; i < n; i++)
            add(&s, s.gradient, s.plain);
        plain[r] = acr_seconds() - start;
        start = acr_seconds();
        for (int64_t i = 0; i < n; i++)
            acr_exact_add_all(s.exact, ACR_DTYPE_F32, s.gradient, s.n);
        exact[r] = acr_seconds() - start;
        start = acr_seconds();
        for (int64_t i = 0; i < n; i++)
            add_to_tree(&s, i);
        tree[r] = acr_seconds() - start;
    }
    printf("%lld elements, %lld micro-batches: ms per micro-batch (and MB of sums)\n",
           (long long)s.n, (long long)n);
    printf("plain %.2f (%.0f)  exact %.2f (%.0f)  tree %.2f (%.0f)\n",
           1e3 * median(plain) / (double)n, (double)bytes / 1e6, 1e3 * median(exact) / (double)n,
           (double)s.n * sizeof *s.exact / 1e6, 1e3 * median(tree) / (double)n,
           (double)bytes * levels / 1e6);
    return 0;
}
