/* extractor.c - the hidden states of whole rows, made by the verifier and rounded to bf16.
 *
 * Tokens go forward a piece at a time, one row's or several short rows' together: enough of them to
 * make good use of the weights, few enough that their states fit in a cache. */
#include "infer/infer.h"

#include <string.h>

enum { SLOTS = ACR_MAX_AUX + 1 };

struct acr_extractor {
    const acr_verifier *verifier; /* borrowed */
    acr_verifier_work *work;
    acr_dtype real;
    int slots[SLOTS], n_slots;
    int64_t hidden_size, most;
    void *piece;      /* real [ACR_EXTRACT_TOKENS, n_slots, hidden_size] */
    uint16_t *states; /* BF16 [room, n_slots, hidden_size] */
    int64_t room;
    acr_cache *cache[ACR_EXTRACT_ROWS];
};

static size_t width(const acr_extractor *e)
{
    return (size_t)e->n_slots * (size_t)e->hidden_size;
}

static accrue_status need_room(acr_extractor *e, int64_t tokens, accrue_error *err)
{
    size_t bytes = 0;
    uint16_t *more = NULL;

    if (tokens <= e->room)
        return ACCRUE_OK;
    if (__builtin_mul_overflow((size_t)tokens, width(e) * sizeof *more, &bytes))
        return acr_fail(err, ACCRUE_EINVAL, "hidden states of %lld tokens", (long long)tokens);
    more = acr_malloc(bytes);
    if (!more)
        return acr_enomem(err, bytes, "hidden states");
    acr_free(e->states);
    e->states = more;
    e->room = tokens;
    return ACCRUE_OK;
}

/* The cache of place i, empty, with room for a row's tokens. */
static accrue_status need_cache(acr_extractor *e, int i, int64_t tokens, accrue_error *err)
{
    accrue_status st = acr_cache_reserve(&e->cache[i], e->verifier, tokens, e->most, err);

    if (!st)
        acr_cache_cut(e->cache[i], 0);
    return st;
}

accrue_status acr_extractor_create(acr_extractor **out, const acr_verifier *v, const int *aux,
                                   int n_aux, int64_t most, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_extractor *e = NULL;
    size_t bytes = 0;

    *out = NULL;
    if (n_aux < 1 || n_aux > ACR_MAX_AUX || most < 1)
        return acr_fail(err, ACCRUE_EINVAL, "%d auxiliary layers of %lld tokens", n_aux,
                        (long long)most);
    e = acr_calloc(1, sizeof *e);
    if (!e)
        return acr_enomem(err, sizeof *e, "hidden states");
    e->verifier = v;
    e->real = acr_verifier_real(v);
    e->hidden_size = acr_verifier_describe(v)->hidden_size;
    e->most = most;
    e->n_slots = n_aux + 1;
    memcpy(e->slots, aux, (size_t)n_aux * sizeof *aux);
    e->slots[n_aux] = acr_verifier_describe(v)->n_layers;
    bytes = ACR_EXTRACT_TOKENS * width(e) * acr_dtype_bytes(e->real);
    e->piece = acr_malloc(bytes);
    if (!e->piece) {
        st = acr_enomem(err, bytes, "hidden states");
        goto cleanup;
    }
    ACR_TRY(need_room(e, ACR_EXTRACT_TOKENS, err));
    ACR_TRY(acr_verifier_work_create(&e->work, v, err));
    *out = e;
    e = NULL;

cleanup:
    acr_extractor_free(e);
    return st;
}

void acr_extractor_free(acr_extractor *e)
{
    if (!e)
        return;
    for (int i = 0; i < ACR_EXTRACT_ROWS; i++)
        acr_cache_free(e->cache[i]);
    acr_verifier_work_free(e->work);
    acr_free(e->piece);
    acr_free(e->states);
    acr_free(e);
}

static accrue_status check_length(const acr_extractor *e, int64_t tokens, accrue_error *err)
{
    if (tokens <= e->most)
        return ACCRUE_OK;
    return acr_fail(err, ACCRUE_EINVAL, "%lld tokens, at most %lld expected", (long long)tokens,
                    (long long)e->most);
}

/* `n` tokens of the row from `first` on go forward; their states are written to `out`. */
static accrue_status forward(acr_extractor *e, const acr_row *r, int64_t first, int64_t n,
                             uint16_t *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_sequence s = {
        .cache = e->cache[0], .ids = r->input_ids + first, .n = n, .states = e->piece};

    ACR_TRY(acr_verifier_forward(e->work, &s, 1, e->slots, e->n_slots, err));
    acr_convert(ACR_DTYPE_BF16, out, e->real, e->piece, n * (int64_t)width(e));

cleanup:
    return st;
}

accrue_status acr_extractor_piece(const void **out, int64_t *n, acr_extractor *e, const acr_row *r,
                                  int64_t first, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t end = r->tokens < e->most ? r->tokens : e->most;

    *out = NULL;
    *n = end - first < ACR_EXTRACT_TOKENS ? end - first : ACR_EXTRACT_TOKENS;
    if (first < 0 || *n < 1)
        return acr_fail(err, ACCRUE_EINVAL, "token %lld of %lld", (long long)first, (long long)end);
    if (first == 0)
        ACR_TRY(need_cache(e, 0, end, err));
    ACR_TRY(forward(e, r, first, *n, e->states, err));
    *out = e->states;

cleanup:
    return st;
}

/* Several rows that fit into one piece. */
static accrue_status forward_together(acr_extractor *e, const acr_row *rows, int n,
                                      accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_sequence s[ACR_EXTRACT_ROWS];
    int64_t tokens = 0;
    int used = 0;

    for (int i = 0; i < n; i++) {
        if (!rows[i].tokens)
            continue;
        ACR_TRY(need_cache(e, used, rows[i].tokens, err));
        s[used] = (acr_sequence){.cache = e->cache[used],
                                 .ids = rows[i].input_ids,
                                 .n = rows[i].tokens,
                                 .states = (char *)e->piece +
                                           (size_t)tokens * width(e) * acr_dtype_bytes(e->real)};
        tokens += rows[i].tokens;
        used++;
    }
    if (used)
        ACR_TRY(acr_verifier_forward(e->work, s, used, e->slots, e->n_slots, err));
    acr_convert(ACR_DTYPE_BF16, e->states, e->real, e->piece, tokens * (int64_t)width(e));

cleanup:
    return st;
}

accrue_status acr_extractor_rows(const void **out, acr_extractor *e, const acr_row *rows, int n,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t total = 0, at = 0;

    if (n > ACR_EXTRACT_ROWS)
        return acr_fail(err, ACCRUE_EINVAL, "%d rows at a time, at most %d expected", n,
                        ACR_EXTRACT_ROWS);
    for (int i = 0; i < n; i++) {
        ACR_TRY(check_length(e, rows[i].tokens, err));
        total += rows[i].tokens;
    }
    ACR_TRY(need_room(e, total, err));
    if (total <= ACR_EXTRACT_TOKENS)
        ACR_TRY(forward_together(e, rows, n, err));
    for (int i = 0; i < n; i++) {
        const int64_t tokens = rows[i].tokens;
        out[i] = e->states + (size_t)at * width(e);
        if (total > ACR_EXTRACT_TOKENS && tokens)
            ACR_TRY(need_cache(e, 0, tokens, err));
        for (int64_t first = 0, k = 0; total > ACR_EXTRACT_TOKENS && first < tokens; first += k) {
            k = tokens - first < ACR_EXTRACT_TOKENS ? tokens - first : ACR_EXTRACT_TOKENS;
            ACR_TRY(
                forward(e, &rows[i], first, k, e->states + (size_t)(at + first) * width(e), err));
        }
        at += tokens;
    }

cleanup:
    return st;
}
