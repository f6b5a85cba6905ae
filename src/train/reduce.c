/* reduce.c - the sums of gradients: over a rank's micro-batches, and over ranks. */
#include "train/dist_parts.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

typedef struct search {
    const acr_part *p;
    double limit;
    atomic_int_fast64_t bad;
} search;

static void search_task(int64_t i, void *ctx)
{
    search *s = ctx;
    const acr_dtype real = s->p->d->model->real;
    const int64_t begin = i * ACR_BLOCK, n = least(ACR_BLOCK, s->p->g->n - begin);
    const char *x = (const char *)s->p->g->grad + (size_t)begin * acr_dtype_bytes(real);
    /* The plain search is the faster one: gradients go through it in every micro-batch. */
    int64_t bad =
        isinf(s->limit) ? acr_find_nonfinite(real, x, n) : acr_find_unfit(real, x, n, s->limit);
    int64_t known = atomic_load(&s->bad);

    if (bad < 0)
        return;
    bad += begin;
    while (bad < known && !atomic_compare_exchange_weak(&s->bad, &known, bad))
        ;
}

static void fail_unfit(const acr_part *p, int64_t at)
{
    const acr_model *m = p->d->model;
    accrue_error e = {0};

    for (int i = 0; i < m->n_params; i++) {
        const acr_param *q = &m->params[i];
        const int64_t k = at - q->offset;
        double v = 0;
        if (!q->trainable || q->group != p->g || k < 0 || k >= q->rows * q->cols)
            continue;
        v = m->real == ACR_DTYPE_F64 ? ((const double *)q->grad)[k]
                                     : (double)((const float *)q->grad)[k];
        if (isfinite(v))
            acr_fail(&e, ACCRUE_ENUMERIC,
                     "the gradient of %s is %g at [%lld, %lld], below %g expected for "
                     "--reproducible",
                     q->name, v, (long long)(k / q->cols), (long long)(k % q->cols),
                     ACR_EXACT_LIMIT);
        else
            acr_fail(&e, ACCRUE_ENUMERIC, "the gradient of %s is %s at [%lld, %lld]", q->name,
                     isnan(v) ? "NaN" : "infinite", (long long)(k / q->cols),
                     (long long)(k % q->cols));
    }
    if (!p->d->status) {
        p->d->status = e.status;
        p->d->error = e;
    }
}

/* Nothing that is not finite is summed into what other ranks or micro-batches have. */
static bool is_fit(const acr_part *p)
{
    search s = {.p = p, .limit = p->d->reproducible ? ACR_EXACT_LIMIT : (double)INFINITY};

    atomic_init(&s.bad, p->g->n);
    acr_parallel((p->g->n + ACR_BLOCK - 1) / ACR_BLOCK, search_task, &s);
    if (atomic_load(&s.bad) < p->g->n)
        fail_unfit(p, atomic_load(&s.bad));
    return atomic_load(&s.bad) == p->g->n;
}

/* Sums of the ranks' parts, in their order: own share, from `begin` of it on. */
#define ADD_PARTS(REAL, start)                                                                     \
    do {                                                                                           \
        REAL *out = (REAL *)into + begin;                                                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            REAL sum = (start) ? out[i] : 0;                                                       \
            for (int r = 0; r < ranks; r++)                                                        \
                sum += ((const REAL *)parts[r])[i];                                                \
            out[i] = sum;                                                                          \
        }                                                                                          \
    } while (0)

static void add_parts(const acr_part *p, void *into, bool to_what_is_there, int64_t begin,
                      int64_t n, const void *const *parts)
{
    const int ranks = p->d->ranks;

    if (p->d->model->real == ACR_DTYPE_F64)
        ADD_PARTS(double, to_what_is_there);
    else
        ADD_PARTS(float, to_what_is_there);
}

static void combine_replicated(void *ctx, int64_t begin, int64_t n, const void *const *parts)
{
    const acr_part *p = ctx;

    add_parts(p, (char *)p->g->accumulator + p->grad_byte_begin[p->d->rank], false, begin, n,
              parts);
}

static void combine_shares(void *ctx, int64_t begin, int64_t n, const void *const *parts)
{
    const acr_part *p = ctx;

    add_parts(p, p->g->accumulator, true, begin, n, parts);
}

static void combine_fresh_exact(void *ctx, int64_t begin, int64_t n, const void *const *parts)
{
    const acr_part *p = ctx;

    for (int r = 0; r < p->d->ranks; r++)
        acr_exact_add(p->exact + begin, p->d->model->real, parts[r], n);
}

/* Own share of whole exact sums: rounded once, when all parts are in. */
static void combine_exact(void *ctx, int64_t begin, int64_t n, const void *const *parts)
{
    const acr_part *p = ctx;
    const acr_dist *d = p->d;
    acr_exact *own = p->exact + p->grad_begin[d->rank] + begin;
    char *out = (char *)p->g->accumulator + (d->sharded ? 0 : p->grad_byte_begin[d->rank]);

    for (int r = 0; r < d->ranks; r++)
        if (r != d->rank)
            acr_exact_merge(own, parts[r], n);
    acr_exact_value(d->model->real, out + (size_t)begin * real_bytes(d), own, n);
}

static void begin_reduce(acr_part *p)
{
    acr_dist *d = p->d;
    acr_comm_label label = {ACR_COMM_GRADIENT, "the gradient of", p->g->name};
    const bool whole_sums = d->reproducible && !d->shares;
    acr_comm_combine combine = d->sharded ? combine_shares : combine_replicated;
    const void *from = d->shares ? p->g->grad : p->sum;

    if (whole_sums) {
        combine = combine_exact;
        from = p->exact;
    } else if (d->reproducible) {
        combine = combine_fresh_exact;
    }
    acr_comm_reduce_begin(d->comm, &p->reduce, label, from,
                          whole_sums ? sizeof *p->exact : real_bytes(d), p->grad_begin, combine, p);
    if (!d->sharded)
        acr_comm_gather_begin(d->comm, &p->spread, label, p->g->accumulator, p->grad_byte_begin);
}

static void add_task(int64_t i, void *ctx)
{
    const acr_part *p = ctx;
    const acr_backend *backend = acr_backend_for(p->d->model->real);
    const size_t at = (size_t)(i * ACR_BLOCK) * real_bytes(p->d);

    backend->accumulate(least(ACR_BLOCK, p->g->n - i * ACR_BLOCK), (const char *)p->grad + at,
                        (char *)p->sum + at);
}

/* The micro-batch's gradient to those before it. */
static void add_up(acr_part *p)
{
    acr_dist *d = p->d;

    if (d->shares)
        return;
    if (d->reproducible)
        acr_exact_add_all(p->exact, d->model->real, p->g->grad, p->g->n);
    else if (d->apart)
        acr_parallel((p->g->n + ACR_BLOCK - 1) / ACR_BLOCK, add_task, p);
}

/* The group's gradient of this micro-batch is complete. */
void acr_part_complete(acr_part *p)
{
    acr_dist *d = p->d;

    if (p->touched && !is_fit(p) && d->reproducible)
        memset(p->g->grad, 0, (size_t)p->g->n * real_bytes(d)); /* as integers it would overflow */
    if (p->touched)
        add_up(p);
    if (d->ranks == 1 || !(d->last || d->shares))
        return;
    if (d->shares)
        acr_part_touch(p); /* where nothing was added: zeros */
    begin_reduce(p);
}
