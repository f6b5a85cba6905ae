/* answer.c - many prompts answered at once.
 *
 * In a step each place either reads a piece of its prompt or writes one token, and all go forward
 * together.  Prompts are read in pieces so that a long one does not keep the answers waiting. */
#include "infer/infer.h"

#include <string.h>

enum { READ_AT_ONCE = 256 /* tokens of prompts in a step */ };

typedef struct place {
    acr_cache *cache;
    acr_ids ids; /* prompt and answer so far; the cache has the first acr_cache_tokens */
    int64_t prompt, limit;
    uint64_t row;
    int64_t next; /* the token that was drawn last */
    acr_sampler *sampler;
    bool busy, closed; /* closed: there is nothing more to ask it */
} place;

typedef struct answering {
    const acr_verifier *verifier;
    const acr_verifier_shape *shape;
    const acr_sampling *how;
    const acr_questions *q;
    int64_t positions;
    acr_verifier_work *work;
    place *places;
    int n;
    char *logits; /* real [n, vocab] */
    /* Of the step under way. */
    acr_sequence *sequences; /* [n] */
    int *of;                 /* [n] the sequence's place */
    int n_sequences;
} answering;

static void answering_free(answering *a)
{
    for (int i = 0; a->places && i < a->n; i++) {
        acr_cache_free(a->places[i].cache);
        acr_sampler_free(a->places[i].sampler);
        acr_ids_free(&a->places[i].ids);
    }
    acr_free(a->places);
    acr_free(a->logits);
    acr_free(a->sequences);
    acr_free(a->of);
    acr_verifier_work_free(a->work);
}

static size_t logits_bytes(const answering *a)
{
    return (size_t)a->shape->vocab_size * acr_dtype_bytes(acr_verifier_real(a->verifier));
}

static accrue_status answering_open(answering *a, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t n = (size_t)a->n;

    a->places = acr_calloc(n, sizeof *a->places);
    a->sequences = acr_calloc(n, sizeof *a->sequences);
    a->of = acr_calloc(n, sizeof *a->of);
    a->logits = acr_calloc(n, logits_bytes(a));
    if (!a->places || !a->sequences || !a->of || !a->logits)
        return acr_enomem(err, n * logits_bytes(a), "answers");
    for (int i = 0; i < a->n; i++)
        ACR_TRY(acr_sampler_create(&a->places[i].sampler, a->shape->vocab_size, err));
    ACR_TRY(acr_verifier_work_create(&a->work, a->verifier, err));

cleanup:
    return st;
}

/* Asking ----------------------------------------------------------------------------------- */

/* How many of the prompt's first tokens the cache has already; the last one is always read, for
 * its logits. */
static int64_t known_tokens(const place *p, const acr_prompt *prompt)
{
    const int64_t cached = acr_cache_tokens(p->cache);
    const int64_t most = cached < prompt->n - 1 ? cached : prompt->n - 1;
    int64_t n = 0;

    while (n < most && p->ids.at[n] == prompt->ids[n])
        n++;
    return n;
}

static accrue_status begin(const answering *a, place *p, const acr_prompt *prompt,
                           accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t room = a->positions - prompt->n;
    const int64_t limit = prompt->limit < room ? prompt->limit : room;

    for (int64_t i = 0; i < prompt->n; i++)
        if (prompt->ids[i] < 0 || prompt->ids[i] >= a->shape->vocab_size)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: row %llu: token %lld of the prompt is %lld, those of %s are below "
                            "%lld",
                            a->q->data, (unsigned long long)prompt->row, (long long)i,
                            (long long)prompt->ids[i], a->q->model,
                            (long long)a->shape->vocab_size);
    if (limit < 1)
        return ACCRUE_OK;
    ACR_TRY(acr_cache_reserve(&p->cache, a->verifier, prompt->n + limit, a->positions, err));
    acr_cache_cut(p->cache, known_tokens(p, prompt));
    p->ids.n = 0;
    for (int64_t i = 0; i < prompt->n; i++)
        ACR_TRY(acr_ids_add(&p->ids, prompt->ids[i], err));
    p->prompt = prompt->n;
    p->limit = limit;
    p->row = prompt->row;
    p->busy = true;

cleanup:
    return st;
}

/* A prompt that leaves no room for an answer has an empty one. */
static accrue_status fill(answering *a, int i, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    place *p = &a->places[i];

    while (!p->busy && !p->closed) {
        acr_prompt prompt = {0};
        bool any = false;
        ACR_TRY(a->q->ask(&any, &prompt, i, a->q->ctx, err));
        p->closed = !any;
        if (!any)
            break;
        ACR_TRY(begin(a, p, &prompt, err));
        if (!p->busy)
            ACR_TRY(a->q->take(i, NULL, 0, ACR_FINISH_LENGTH, a->q->ctx, err));
    }

cleanup:
    return st;
}

/* A step ----------------------------------------------------------------------------------- */

static int64_t plan(answering *a)
{
    int64_t room = READ_AT_ONCE, tokens = 0;

    a->n_sequences = 0;
    for (int i = 0; i < a->n; i++) {
        place *p = &a->places[i];
        const int64_t done = p->busy ? acr_cache_tokens(p->cache) : 0;
        int64_t n = p->busy ? p->ids.n - done : 0;
        const bool writes = n == 1 && done >= p->prompt;
        if (!writes && n > room)
            n = room;
        if (n < 1)
            continue;
        a->of[a->n_sequences] = i;
        a->sequences[a->n_sequences] = (acr_sequence){
            .cache = p->cache,
            .ids = p->ids.at + done,
            .n = n,
            .n_logits = done + n == p->ids.n,
            .logits = a->logits + (size_t)a->n_sequences * logits_bytes(a),
        };
        a->n_sequences++;
        room -= writes ? 0 : n;
        tokens += n;
    }
    return tokens;
}

static void draw(int64_t i, void *ctx)
{
    const answering *a = ctx;
    place *p = &a->places[a->of[i]];

    if (a->sequences[i].n_logits)
        p->next = acr_sample(p->sampler, a->how, acr_verifier_real(a->verifier),
                             a->sequences[i].logits, p->row, (uint64_t)p->ids.n);
}

static bool ends_answer(const answering *a, int64_t id)
{
    return id >= 0 && (id == a->q->end || acr_verifier_ends(a->verifier, id));
}

static accrue_status take(answering *a, int i, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    place *p = &a->places[i];
    const bool stops = ends_answer(a, p->next);

    if (p->next < 0)
        return acr_fail(err, ACCRUE_ENUMERIC,
                        "%s: row %llu: token %lld of the answer: the logits of %s are not finite",
                        a->q->data, (unsigned long long)p->row, (long long)(p->ids.n - p->prompt),
                        a->q->model);
    if (!stops)
        ACR_TRY(acr_ids_add(&p->ids, p->next, err));
    if (!stops && p->ids.n - p->prompt < p->limit)
        return ACCRUE_OK;
    p->busy = false;
    ACR_TRY(a->q->take(i, p->ids.at + p->prompt, p->ids.n - p->prompt,
                       stops ? ACR_FINISH_STOP : ACR_FINISH_LENGTH, a->q->ctx, err));

cleanup:
    return st;
}

static accrue_status step(answering *a, int64_t tokens, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t made = 0;

    ACR_TRY(acr_verifier_forward(a->work, a->sequences, a->n_sequences, NULL, 0, err));
    acr_parallel(a->n_sequences, draw, a);
    for (int i = 0; i < a->n_sequences; i++)
        if (a->sequences[i].n_logits) {
            ACR_TRY(take(a, a->of[i], err));
            made++;
        }
    if (a->q->step)
        ACR_TRY(a->q->step(tokens, made, a->q->ctx, err));

cleanup:
    return st;
}

accrue_status acr_answer_all(const acr_verifier *v, const acr_sampling *how, int batch,
                             int64_t positions, const acr_questions *q, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t tokens = 0;
    answering a = {.verifier = v,
                   .shape = acr_verifier_describe(v),
                   .how = how,
                   .q = q,
                   .positions = positions,
                   .n = batch};

    ACR_TRY(answering_open(&a, err));
    do {
        for (int i = 0; i < a.n; i++)
            ACR_TRY(fill(&a, i, err));
        tokens = plan(&a);
        if (tokens)
            ACR_TRY(step(&a, tokens, err));
    } while (tokens);

cleanup:
    answering_free(&a);
    return st;
}
