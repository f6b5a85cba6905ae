/* sample.c - the next token from a model's logits.
 *
 * A draw is a function of logits, seed, row and position: no answer depends on what else is being
 * answered, on threads, or on where a run was interrupted. */
#include "infer/infer.h"

#include <float.h>
#include <math.h>

struct acr_sampler {
    int64_t vocab_size;
    double *weight; /* [vocab_size] exp of what the likeliest token is ahead by */
    int32_t *heap;  /* [vocab_size] ids, the likeliest first */
};

accrue_status acr_sampling_check(const acr_sampling *how, const char *name, accrue_error *err)
{
    if (!(how->temperature >= 0) || isinf(how->temperature))
        return acr_fail(err, ACCRUE_EINVAL, "%s: temperature %g, a number of at least 0 expected",
                        name, how->temperature);
    if (!(how->top_p > 0 && how->top_p <= 1))
        return acr_fail(err, ACCRUE_EINVAL,
                        "%s: top-p %g, a number above 0 and of at most 1 expected", name,
                        how->top_p);
    return ACCRUE_OK;
}

accrue_status acr_sampler_create(acr_sampler **out, int64_t vocab_size, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_sampler *s = NULL;

    *out = NULL;
    if (vocab_size < 1 || vocab_size > INT32_MAX)
        return acr_fail(err, ACCRUE_EINVAL, "sampling from %lld tokens", (long long)vocab_size);
    s = acr_calloc(1, sizeof *s);
    if (!s)
        return acr_enomem(err, sizeof *s, "sampling");
    s->vocab_size = vocab_size;
    s->weight = acr_calloc((size_t)vocab_size, sizeof *s->weight);
    s->heap = acr_calloc((size_t)vocab_size, sizeof *s->heap);
    if (!s->weight || !s->heap) {
        st = acr_enomem(err, (size_t)vocab_size * sizeof *s->weight, "sampling");
        goto cleanup;
    }
    *out = s;
    s = NULL;

cleanup:
    acr_sampler_free(s);
    return st;
}

void acr_sampler_free(acr_sampler *s)
{
    if (!s)
        return;
    acr_free(s->weight);
    acr_free(s->heap);
    acr_free(s);
}

static double logit(acr_dtype real, const void *logits, int64_t i)
{
    return real == ACR_DTYPE_F64 ? ((const double *)logits)[i] : (double)((const float *)logits)[i];
}

/* The greatest logit's lowest id; -1 where that is no number to go by. */
static int64_t likeliest(acr_dtype real, const void *logits, int64_t n)
{
    double most = -(double)INFINITY;
    int64_t best = -1;

    for (int64_t i = 0; i < n; i++) {
        double x = logit(real, logits, i);
        if (isnan(x) || x > DBL_MAX)
            return -1;
        if (x > most) {
            most = x;
            best = i;
        }
    }
    return best;
}

/* Nucleus ---------------------------------------------------------------------------------- */

static bool is_before(const acr_sampler *s, int32_t a, int32_t b)
{
    return s->weight[a] > s->weight[b] || (s->weight[a] >= s->weight[b] && a < b);
}

/* Restores the heap of n ids below place `at`. */
static void sink(acr_sampler *s, int64_t n, int64_t at)
{
    int32_t *h = s->heap;
    const int32_t id = h[at];

    for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && is_before(s, h[child + 1], h[child]))
            child++;
        if (is_before(s, id, h[child]))
            break;
        h[at] = h[child];
        at = child;
    }
    h[at] = id;
}

/* Takes the likeliest ids off a heap, each into the place that becomes free at its end, until they
 * weigh `enough`; their number. */
static int64_t take_nucleus(acr_sampler *s, double enough, double *sum)
{
    int64_t n = s->vocab_size;

    *sum = 0;
    for (int64_t i = 0; i < n; i++)
        s->heap[i] = (int32_t)i;
    for (int64_t i = n / 2 - 1; i >= 0; i--)
        sink(s, n, i);
    do {
        const int32_t id = s->heap[0];
        s->heap[0] = s->heap[--n];
        sink(s, n, 0);
        s->heap[n] = id;
        *sum += s->weight[id];
    } while (n && *sum < enough && s->weight[s->heap[0]] > 0);
    return s->vocab_size - n;
}

/* The id at which the weights, added up in that order, pass `point`; the last one that has a weight
 * where rounding leaves none. */
static int64_t walk(const acr_sampler *s, int64_t n, bool in_heap, double point)
{
    int64_t last = -1;
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        int64_t id = in_heap ? s->heap[s->vocab_size - 1 - i] : i;
        if (s->weight[id] <= 0)
            continue;
        sum += s->weight[id];
        last = id;
        if (sum > point)
            break;
    }
    return last;
}

int64_t acr_sample(acr_sampler *s, const acr_sampling *how, acr_dtype real, const void *logits,
                   uint64_t row, uint64_t position)
{
    const int64_t n = s->vocab_size, best = likeliest(real, logits, n);
    const uint64_t bits = acr_random_u64(how->seed, ACR_RANDOM_SAMPLE, row, position);
    const double share = (double)(bits >> 11) * 0x1p-53; /* in [0, 1) */
    double most = 0, sum = 0, nucleus = 0;
    int64_t count = 0;

    if (best < 0 || how->temperature <= 0)
        return best;
    most = logit(real, logits, best);
    for (int64_t i = 0; i < n; i++) {
        s->weight[i] = exp((logit(real, logits, i) - most) / how->temperature);
        sum += s->weight[i];
    }
    if (how->top_p >= 1)
        return walk(s, n, false, share * sum);
    count = take_nucleus(s, how->top_p * sum, &nucleus);
    return walk(s, count, true, share * nucleus);
}
