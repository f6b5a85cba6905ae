/* verifier_test.h - the tiny models of tests/data/verifier. */
#ifndef VERIFIER_TEST_H
#define VERIFIER_TEST_H

#include "files.h"

#include "infer/verifier_parts.h"

static const char *const model_names[] = {"llama", "llama_tied", "qwen2", "qwen3"};
static const accrue_dtype computes[] = {ACCRUE_F64, ACCRUE_F32, ACCRUE_BF16};
enum { POSITIONS = 128 };

typedef char model_path[256];

static inline const char *path_of(model_path out, const char *name, const char *tail)
{
    snprintf(out, sizeof(model_path), "%s/verifier/%s%s", ACR_TEST_DATA, name, tail);
    return out;
}

static inline acr_verifier *open_model(const char *name, accrue_dtype compute)
{
    acr_verifier *v = NULL;
    model_path path;
    accrue_error e = {0};

    assert_ok(acr_verifier_open(&v, path_of(path, name, ""), compute, POSITIONS, &e), &e);
    return v;
}

static inline acr_verifier_work *open_work(const acr_verifier *v)
{
    acr_verifier_work *w = NULL;
    accrue_error e = {0};

    assert_ok(acr_verifier_work_create(&w, v, &e), &e);
    return w;
}

static inline acr_cache *open_cache(const acr_verifier *v, int64_t capacity)
{
    acr_cache *c = NULL;
    accrue_error e = {0};

    assert_ok(acr_cache_create(&c, v, capacity, &e), &e);
    return c;
}

/* Where the states and logits of all tokens of one sequence go. */
typedef struct outcome {
    int64_t n, hidden, vocab;
    int n_slots;
    size_t real;
    int slots[8];
    char *states, *logits;
} outcome;

static inline outcome outcome_of(const acr_verifier *v, int64_t n)
{
    const acr_verifier_shape *s = acr_verifier_describe(v);
    outcome o = {.n = n,
                 .hidden = s->hidden_size,
                 .vocab = s->vocab_size,
                 .n_slots = s->n_layers + 1,
                 .real = v->be->real_bytes};

    for (int i = 0; i < o.n_slots; i++)
        o.slots[i] = i;
    o.states = test_calloc((size_t)(n * o.n_slots * o.hidden), o.real);
    o.logits = test_calloc((size_t)(n * o.vocab), o.real);
    return o;
}

static inline void free_outcome(outcome *o)
{
    test_free(o->states);
    test_free(o->logits);
}

/* Tokens [first, first + n) of a sequence, with all that comes out at its place in `o`. */
static inline acr_sequence sequence_of(const outcome *o, acr_cache *c, const int64_t *ids,
                                       int64_t first, int64_t n)
{
    return (acr_sequence){.cache = c,
                          .ids = ids + first,
                          .n = n,
                          .states = o->states + (size_t)(first * o->n_slots * o->hidden) * o->real,
                          .n_logits = n,
                          .logits = o->logits + (size_t)(first * o->vocab) * o->real};
}

static inline void forward(acr_verifier_work *w, const acr_sequence *s, int n, const outcome *o)
{
    accrue_error e = {0};

    assert_ok(acr_verifier_forward(w, s, n, o->slots, o->n_slots, &e), &e);
}

static inline void assert_same(const outcome *a, const outcome *b, int64_t n)
{
    assert_memory_equal(a->states, b->states, (size_t)(n * a->n_slots * a->hidden) * a->real);
    assert_memory_equal(a->logits, b->logits, (size_t)(n * a->vocab) * a->real);
}

#endif
