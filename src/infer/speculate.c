/* speculate.c - greedy decoding, plainly and by way of a draft (Leviathan et al. 2023, greedily).
 *
 * A round passes the last token and k drafted ones through the verifier at once.  What it would
 * have said after each is compared with what was drafted next: the longest prefix that agrees is
 * accepted, and behind it the verifier's own token, the bonus, comes for free.  So the answer is
 * the verifier's whatever the draft says, provided that its bits do not depend on the tokens that
 * pass together; they do not. */
#include "infer/infer.h"

#include <string.h>

enum { PASS = 256 }; /* tokens of a prompt that pass at a time */

struct acr_decoder {
    const acr_verifier *v;
    acr_draft *draft;
    acr_forward_fn forward;
    const acr_backend *b;
    int k;
    int64_t positions;
    acr_verifier_work *work;
    acr_cache *cache;
    void *states; /* [PASS, n_aux, hidden] */
    void *logits; /* [k + 1, vocab] */
};

/* One answer in the making. */
typedef struct answer {
    acr_ids *out;
    int64_t begin, limit; /* it is out->at[begin ...] */
    bool ended;
} answer;

static accrue_status say(answer *a, const acr_decoder *d, int64_t id, accrue_error *err)
{
    accrue_status st = acr_ids_add(a->out, id, err);

    a->ended = acr_verifier_ends(d->v, id) || a->out->n - a->begin >= a->limit;
    return st;
}

/* Passes the next n tokens; says[i] is the verifier's token behind the i-th of the last n_says. */
static accrue_status pass_tokens(acr_decoder *d, const int64_t *ids, int64_t n, bool drafting,
                                 int64_t n_says, int64_t *says, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_verifier_shape *v = acr_verifier_describe(d->v);
    const int n_slots = drafting ? acr_draft_describe(d->draft)->n_aux : 0;
    const acr_sequence s = {.cache = d->cache,
                            .ids = ids,
                            .n = n,
                            .states = drafting ? d->states : NULL,
                            .n_logits = n_says,
                            .logits = n_says ? d->logits : NULL};

    ACR_TRY(d->forward(d->work, &s, 1, n_slots ? acr_draft_slots(d->draft) : NULL, n_slots, err));
    if (acr_find_nonfinite(d->b->real, d->logits, n_says * v->vocab_size) >= 0) {
        st = acr_fail(err, ACCRUE_ENUMERIC, "verifier: a logit behind token %lld is not finite",
                      (long long)acr_cache_tokens(d->cache));
        goto cleanup;
    }
    d->b->argmax(n_says, v->vocab_size, d->logits, v->vocab_size, says);

cleanup:
    return st;
}

/* Verified rows for the draft: the states of the n tokens just passed, each with the token behind
 * it, next[i]. */
static accrue_status feed_draft(acr_decoder *d, const int64_t *next, int64_t n, accrue_error *err)
{
    return n ? acr_draft_extend(d->draft, next, d->states, n, err) : ACCRUE_OK;
}

/* The prompt in pieces, and the answer's first token. */
static accrue_status pass_prompt(answer *a, acr_decoder *d, const int64_t *prompt, int64_t n,
                                 bool drafting, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t first = 0;

    acr_cache_cut(d->cache, 0);
    if (drafting)
        acr_draft_restart(d->draft);
    for (int64_t i = 0, m = 0; i < n; i += m) {
        const bool last = n - i <= PASS;
        m = last ? n - i : PASS;
        ACR_TRY(pass_tokens(d, prompt + i, m, drafting, last ? 1 : 0, &first, err));
        if (last)
            ACR_TRY(say(a, d, first, err));
        if (drafting && !a->ended) {
            int64_t next[PASS];
            memcpy(next, prompt + i + 1, (size_t)(last ? m - 1 : m) * sizeof *next);
            if (last)
                next[m - 1] = first;
            ACR_TRY(feed_draft(d, next, m, err));
        }
    }

cleanup:
    return st;
}

static accrue_status check_prompt(const acr_decoder *d, int64_t n, int64_t limit, accrue_error *err)
{
    if (n < 1 || limit < 1 || n > d->positions || limit > d->positions - n)
        return acr_fail(err, ACCRUE_EINVAL,
                        "a prompt of %lld tokens and %lld of an answer, at least 1 each and at "
                        "most %lld together expected",
                        (long long)n, (long long)limit, (long long)d->positions);
    return ACCRUE_OK;
}

accrue_status acr_decode_plainly(acr_ids *out, acr_decoder *d, const int64_t *prompt, int64_t n,
                                 int64_t limit, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    answer a = {.out = out, .begin = out->n, .limit = limit};
    int64_t next = 0;

    ACR_TRY(check_prompt(d, n, limit, err));
    ACR_TRY(pass_prompt(&a, d, prompt, n, false, err));
    while (!a.ended) {
        const int64_t last = out->at[out->n - 1];
        ACR_TRY(pass_tokens(d, &last, 1, false, 1, &next, err));
        ACR_TRY(say(&a, d, next, err));
    }

cleanup:
    return st;
}

/* ids[1 ... k]: what the draft says behind its last row. */
static accrue_status draft_tokens(const acr_decoder *d, int64_t *ids, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int i = 1; i <= d->k; i++) {
        ids[i] = acr_draft_token(d->draft);
        if (i < d->k)
            ACR_TRY(acr_draft_step(d->draft, ids[i], err));
    }

cleanup:
    return st;
}

static void count_round(acr_acceptance *c, int k, int accepted)
{
    c->rounds++;
    c->drafted += k;
    c->accepted += accepted;
    c->length[accepted]++;
    for (int i = 0; i < accepted; i++)
        c->at[i]++;
}

static accrue_status decode_round(answer *a, acr_acceptance *counts, acr_decoder *d,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t ids[ACCRUE_MAX_TTT_STEPS + 1] = {a->out->at[a->out->n - 1]};
    int64_t says[ACCRUE_MAX_TTT_STEPS + 1] = {0};
    const int64_t before = acr_cache_tokens(d->cache);
    int accepted = 0;

    ACR_TRY(draft_tokens(d, ids, err));
    ACR_TRY(pass_tokens(d, ids, d->k + 1, true, d->k + 1, says, err));
    while (accepted < d->k && says[accepted] == ids[accepted + 1])
        accepted++;
    count_round(counts, d->k, accepted);
    for (int i = 0; i <= accepted && !a->ended; i++)
        ACR_TRY(say(a, d, says[i], err));
    if (!a->ended) {
        acr_cache_cut(d->cache, before + accepted + 1);
        ACR_TRY(feed_draft(d, says, accepted + 1, err));
    }

cleanup:
    return st;
}

accrue_status acr_decode_speculatively(acr_ids *out, acr_acceptance *counts, acr_decoder *d,
                                       const int64_t *prompt, int64_t n, int64_t limit,
                                       accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    answer a = {.out = out, .begin = out->n, .limit = limit};

    ACR_TRY(check_prompt(d, n, limit, err));
    ACR_TRY(pass_prompt(&a, d, prompt, n, true, err));
    while (!a.ended)
        ACR_TRY(decode_round(&a, counts, d, err));

cleanup:
    return st;
}

accrue_status acr_decoder_create(acr_decoder **out, const acr_verifier *v, acr_draft *draft, int k,
                                 int64_t positions, acr_forward_fn forward, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_verifier_shape *shape = acr_verifier_describe(v);
    const acr_config *c = acr_draft_describe(draft);
    acr_decoder *d = NULL;
    size_t states = 0, logits = 0;

    *out = NULL;
    if (k < 1 || k > ACCRUE_MAX_TTT_STEPS)
        return acr_fail(err, ACCRUE_EINVAL, "%d drafted tokens a round, 1 to %d expected", k,
                        ACCRUE_MAX_TTT_STEPS);
    d = acr_calloc(1, sizeof *d);
    if (!d)
        return acr_enomem(err, sizeof *d, "the decoder");
    *d = (acr_decoder){.v = v, .draft = draft, .forward = forward, .k = k, .positions = positions};
    d->b = acr_backend_for(acr_verifier_real(v));
    states = (size_t)c->n_aux * (size_t)c->hidden_size * d->b->real_bytes;
    logits = (size_t)shape->vocab_size * d->b->real_bytes;
    d->states = acr_calloc(PASS, states);
    d->logits = acr_calloc((size_t)k + 1, logits);
    if (!d->states || !d->logits) {
        st = acr_enomem(err, PASS * states + ((size_t)k + 1) * logits, "the decoder");
        goto cleanup;
    }
    ACR_TRY(acr_verifier_work_create(&d->work, v, err));
    ACR_TRY(acr_cache_create(&d->cache, v, positions + k + 1, err));
    *out = d;
    d = NULL;

cleanup:
    acr_decoder_free(d);
    return st;
}

void acr_decoder_free(acr_decoder *d)
{
    if (!d)
        return;
    acr_cache_free(d->cache);
    acr_verifier_work_free(d->work);
    acr_free(d->states);
    acr_free(d->logits);
    acr_free(d);
}
