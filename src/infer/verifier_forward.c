/* verifier_forward.c - the verifier's forward pass over tokens of one or many sequences.
 *
 * The tokens of all sequences are laid one after the other and go through the layers CHUNK at a
 * time.  No kernel lets a row's bits depend on the rows beside it, so neither do the sequences'.
 * In bf16 what enters a product is rounded to bf16; sums, norms, the residual stream, keys and
 * values stay f32. */
#include "infer/verifier_parts.h"

#include <string.h>

enum { CHUNK = 256, LOGIT_ROWS = 32 };

/* A stretch of one sequence's tokens: rows [row, row + n) of the chunk. */
typedef struct piece {
    const acr_sequence *sequence;
    int64_t first, n, row;
} piece;

struct acr_verifier_work {
    const acr_verifier *v;
    void *block; /* behind the buffers */
    void *x, *normed, *q, *k, *v_rows, *q_turned, *k_turned, *attended, *gate, *up, *mixed, *rstd;
    void *logits; /* real [LOGIT_ROWS, vocab] */
    int64_t *ids, *positions;
    acr_kv_run *runs;
    piece pieces[CHUNK];
    int64_t n_pieces, n_runs, rows;
    const int *slots;
    int n_slots;
};

/* Caches ----------------------------------------------------------------------------------- */

accrue_status acr_cache_create(acr_cache **out, const acr_verifier *v, int64_t capacity,
                               accrue_error *err)
{
    const int64_t tiles = capacity / ACR_KV_TILE + (capacity % ACR_KV_TILE != 0);
    acr_cache *c = NULL;
    size_t count = 0;

    *out = NULL;
    if (capacity < 1 || capacity > v->positions)
        return acr_fail(err, ACCRUE_EINVAL, "a cache of %lld tokens, 1 to %lld expected",
                        (long long)capacity, (long long)v->positions);
    c = acr_calloc(1, sizeof *c);
    if (!c)
        return acr_enomem(err, sizeof *c, "a cache");
    c->v = v;
    c->capacity = capacity;
    c->head_stride = tiles * v->be->kv_tile_elements(v->shape.head_dim);
    c->layer_stride = c->head_stride * v->shape.n_kv_heads;
    count = (size_t)c->layer_stride * (size_t)v->shape.n_layers;
    c->data = acr_calloc(count, v->be->real_bytes);
    if (!c->data) {
        acr_free(c);
        return acr_enomem(err, count * v->be->real_bytes, "keys and values");
    }
    *out = c;
    return ACCRUE_OK;
}

accrue_status acr_cache_reserve(acr_cache **c, const acr_verifier *v, int64_t tokens, int64_t most,
                                accrue_error *err)
{
    int64_t capacity = ACR_KV_TILE;

    if (*c && tokens <= (*c)->capacity)
        return ACCRUE_OK;
    while (capacity < tokens)
        capacity *= 2;
    acr_cache_free(*c);
    return acr_cache_create(c, v, capacity < most ? capacity : most, err);
}

void acr_cache_free(acr_cache *c)
{
    if (!c)
        return;
    acr_free(c->data);
    acr_free(c);
}

int64_t acr_cache_tokens(const acr_cache *c)
{
    return c->tokens;
}

size_t acr_cache_bytes(const acr_cache *c)
{
    return (size_t)c->layer_stride * (size_t)c->v->shape.n_layers * c->v->be->real_bytes;
}

void acr_cache_cut(acr_cache *c, int64_t tokens)
{
    if (tokens < c->tokens)
        c->tokens = tokens < 0 ? 0 : tokens;
}

/* Buffers ---------------------------------------------------------------------------------- */

typedef struct buffer {
    void **at;
    int64_t rows, cols;
    size_t size;
} buffer;

static size_t rounded_up(size_t bytes)
{
    return (bytes + ACR_ALIGN - 1) / ACR_ALIGN * ACR_ALIGN;
}

static accrue_status make_buffers(acr_verifier_work *w, accrue_error *err)
{
    const acr_verifier_shape *s = &w->v->shape;
    const int64_t q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    const size_t real = w->v->be->real_bytes;
    const buffer buffers[] = {
        {&w->x, CHUNK, s->hidden_size, real},
        {&w->normed, CHUNK, s->hidden_size, real},
        {&w->q, CHUNK, q, real},
        {&w->k, CHUNK, kv, real},
        {&w->v_rows, CHUNK, kv, real},
        {&w->q_turned, CHUNK, q, real},
        {&w->k_turned, CHUNK, kv, real},
        {&w->attended, CHUNK, q, real},
        {&w->gate, CHUNK, s->intermediate_size, real},
        {&w->up, CHUNK, s->intermediate_size, real},
        {&w->mixed, CHUNK, s->hidden_size, real},
        {&w->rstd, CHUNK, s->n_heads > s->n_kv_heads ? s->n_heads : s->n_kv_heads, real},
        {&w->logits, LOGIT_ROWS, s->vocab_size, real},
        {(void **)&w->ids, CHUNK, 1, sizeof *w->ids},
        {(void **)&w->positions, CHUNK, 1, sizeof *w->positions},
        {(void **)&w->runs, CHUNK, 1, sizeof *w->runs}};
    size_t bytes = 0;

    for (int i = 0; i < ACR_COUNT(buffers); i++)
        bytes += rounded_up((size_t)(buffers[i].rows * buffers[i].cols) * buffers[i].size);
    w->block = acr_malloc(bytes);
    if (!w->block)
        return acr_enomem(err, bytes, "the verifier's buffers");
    bytes = 0;
    for (int i = 0; i < ACR_COUNT(buffers); i++) {
        *buffers[i].at = (char *)w->block + bytes;
        bytes += rounded_up((size_t)(buffers[i].rows * buffers[i].cols) * buffers[i].size);
    }
    return ACCRUE_OK;
}

accrue_status acr_verifier_work_create(acr_verifier_work **out, const acr_verifier *v,
                                       accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_verifier_work *w = acr_calloc(1, sizeof *w);

    *out = NULL;
    if (!w)
        return acr_enomem(err, sizeof *w, "the verifier's buffers");
    w->v = v;
    ACR_TRY(make_buffers(w, err));
    *out = w;
    w = NULL;

cleanup:
    acr_verifier_work_free(w);
    return st;
}

void acr_verifier_work_free(acr_verifier_work *w)
{
    if (!w)
        return;
    acr_free(w->block);
    acr_free(w);
}

/* Layers ----------------------------------------------------------------------------------- */

static char *row_of(const acr_verifier_work *w, void *base, int64_t row, int64_t cols)
{
    return (char *)base + (size_t)(row * cols) * w->v->be->real_bytes;
}

/* What enters a product. */
static void *operand(const acr_verifier_work *w, void *x, int64_t n)
{
    if (w->v->stored == ACR_DTYPE_BF16)
        w->v->be->round_bf16(n, x, x);
    return x;
}

static void add_bias(const acr_verifier_work *w, const void *bias, void *y, int64_t cols)
{
    if (bias)
        w->v->be->bias_forward(w->rows, cols, bias, y, cols);
}

static void norm(const acr_verifier_work *w, const void *weight, const void *x, void *y)
{
    const int64_t h = w->v->shape.hidden_size;

    w->v->be->rmsnorm_forward(w->rows, h, x, h, weight, w->v->shape.rms_norm_eps, y, h, w->rstd);
}

/* Keys and queries of one kind: normalised per head where there is a weight, then turned. */
static void turn(const acr_verifier_work *w, int heads, const void *weight, void *x, void *y)
{
    const acr_backend *be = w->v->be;
    const int d = w->v->shape.head_dim;

    if (weight)
        be->rmsnorm_forward(w->rows * heads, d, x, d, weight, w->v->shape.rms_norm_eps, x, d,
                            w->rstd);
    be->rope_forward(w->rows, heads, d, w->positions, w->v->rope.cos, w->v->rope.sin, x, y);
}

/* One product, whose bias may be NULL. */
static void multiply(const acr_verifier_work *w, const acr_packed *weight, const void *bias,
                     const void *a, void *y)
{
    w->v->be->products(&(acr_products){.m = w->rows,
                                       .a = a,
                                       .lda = weight->k,
                                       .n = 1,
                                       .w = {weight},
                                       .y = {y},
                                       .ldy = {weight->n}});
    add_bias(w, bias, y, weight->n);
}

static void attention(acr_verifier_work *w, const acr_verifier_layer *l, int layer)
{
    const acr_backend *be = w->v->be;
    const acr_verifier_shape *s = &w->v->shape;
    const int64_t q = l->qkv[0].n, kv = l->qkv[1].n, h = s->hidden_size;

    norm(w, l->attention_norm, w->x, w->normed);
    be->products(&(acr_products){.m = w->rows,
                                 .a = operand(w, w->normed, w->rows * h),
                                 .lda = h,
                                 .n = 3,
                                 .w = {&l->qkv[0], &l->qkv[1], &l->qkv[2]},
                                 .y = {w->q, w->k, w->v_rows},
                                 .ldy = {q, kv, kv}});
    add_bias(w, l->qkv_bias[0], w->q, q);
    add_bias(w, l->qkv_bias[1], w->k, kv);
    add_bias(w, l->qkv_bias[2], w->v_rows, kv);
    turn(w, s->n_heads, l->q_norm, w->q, w->q_turned);
    turn(w, s->n_kv_heads, l->k_norm, w->k, w->k_turned);
    for (int64_t i = 0, run = 0; i < w->n_pieces; i++) {
        const acr_cache *c = w->pieces[i].sequence->cache;
        for (int64_t done = 0; done < w->pieces[i].n; done += ACR_KV_ROWS)
            w->runs[run++].kv =
                (acr_kv){row_of(w, c->data, layer, c->layer_stride), c->head_stride};
    }
    be->kv_store(&w->v->heads, w->n_runs, w->runs, w->k_turned, w->v_rows);
    be->kv_attend(&w->v->heads, w->n_runs, w->runs, w->q_turned, w->attended);
    multiply(w, &l->o, l->o_bias, operand(w, w->attended, w->rows * q), w->mixed);
    be->accumulate(w->rows * h, w->mixed, w->x);
}

static void mlp(acr_verifier_work *w, const acr_verifier_layer *l)
{
    const acr_backend *be = w->v->be;
    const int64_t h = w->v->shape.hidden_size, m = w->v->shape.intermediate_size;

    norm(w, l->mlp_norm, w->x, w->normed);
    be->products(&(acr_products){.m = w->rows,
                                 .a = operand(w, w->normed, w->rows * h),
                                 .lda = h,
                                 .n = 2,
                                 .w = {&l->gate_up[0], &l->gate_up[1]},
                                 .y = {w->gate, w->up},
                                 .ldy = {m, m}});
    add_bias(w, l->gate_up_bias[0], w->gate, m);
    add_bias(w, l->gate_up_bias[1], w->up, m);
    be->swiglu_forward(w->rows * m, w->gate, w->up, w->gate);
    multiply(w, &l->down, l->down_bias, operand(w, w->gate, w->rows * m), w->mixed);
    be->accumulate(w->rows * h, w->mixed, w->x);
}

/* Chunks ----------------------------------------------------------------------------------- */

static void embed(acr_verifier_work *w)
{
    const acr_verifier *v = w->v;

    if (v->embedding)
        v->be->embed_forward(w->rows, v->shape.hidden_size, w->ids, v->stored, v->embedding, w->x);
    else
        v->be->packed_rows(&v->head, w->rows, w->ids, w->x);
}

/* The residual stream that enters `layer`, where a slot asks for it. */
static void keep_states(const acr_verifier_work *w, int layer)
{
    const int64_t h = w->v->shape.hidden_size;

    for (int s = 0; s < w->n_slots; s++)
        for (int64_t i = 0; w->slots[s] == layer && i < w->n_pieces; i++) {
            const piece *p = &w->pieces[i];
            for (int64_t r = 0; p->sequence->states && r < p->n; r++)
                memcpy(row_of(w, p->sequence->states, (p->first + r) * w->n_slots + s, h),
                       row_of(w, w->x, p->row + r, h), (size_t)h * w->v->be->real_bytes);
        }
}

/* Logits of the rows gathered so far; `to` is where each row's go. */
static void flush_logits(acr_verifier_work *w, int64_t n, void *const *to)
{
    const acr_verifier *v = w->v;
    const int64_t h = v->shape.hidden_size;

    v->be->products(&(acr_products){.m = n,
                                    .a = operand(w, w->normed, n * h),
                                    .lda = h,
                                    .n = 1,
                                    .w = {&v->head},
                                    .y = {w->logits},
                                    .ldy = {v->shape.vocab_size}});
    for (int64_t i = 0; i < n; i++)
        memcpy(to[i], row_of(w, w->logits, i, v->shape.vocab_size),
               (size_t)v->shape.vocab_size * v->be->real_bytes);
}

static void make_logits(acr_verifier_work *w)
{
    const acr_verifier *v = w->v;
    const int64_t h = v->shape.hidden_size;
    void *to[LOGIT_ROWS];
    int64_t n = 0;

    for (int64_t i = 0; i < w->n_pieces; i++) {
        const piece *p = &w->pieces[i];
        for (int64_t r = 0; r < p->n; r++) {
            const int64_t row = p->first + r - (p->sequence->n - p->sequence->n_logits);
            if (!p->sequence->logits || row < 0)
                continue;
            v->be->rmsnorm_forward(1, h, row_of(w, w->x, p->row + r, h), h, v->final_norm,
                                   v->shape.rms_norm_eps, row_of(w, w->normed, n, h), h, w->rstd);
            to[n++] = row_of(w, p->sequence->logits, row, v->shape.vocab_size);
            if (n == LOGIT_ROWS) {
                flush_logits(w, n, to);
                n = 0;
            }
        }
    }
    if (n > 0)
        flush_logits(w, n, to);
}

static void run_chunk(acr_verifier_work *w)
{
    const acr_verifier *v = w->v;

    embed(w);
    for (int i = 0; i < v->shape.n_layers; i++) {
        keep_states(w, i);
        attention(w, &v->layers[i], i);
        mlp(w, &v->layers[i]);
    }
    keep_states(w, v->shape.n_layers);
    make_logits(w);
    w->rows = w->n_pieces = w->n_runs = 0;
}

/* Adds tokens [first, first + n) of a sequence to the chunk. */
static void add_piece(acr_verifier_work *w, const acr_sequence *s, int64_t first, int64_t n)
{
    const int64_t position = s->cache->tokens + first;

    w->pieces[w->n_pieces++] = (piece){s, first, n, w->rows};
    for (int64_t done = 0; done < n; done += ACR_KV_ROWS)
        w->runs[w->n_runs++] = (acr_kv_run){.row = w->rows + done,
                                            .n = n - done < ACR_KV_ROWS ? n - done : ACR_KV_ROWS,
                                            .position = position + done};
    for (int64_t i = 0; i < n; i++) {
        w->ids[w->rows + i] = s->ids[first + i];
        w->positions[w->rows + i] = position + i;
    }
    w->rows += n;
}

/* Forward ---------------------------------------------------------------------------------- */

static accrue_status check_sequence(const acr_verifier *v, const acr_sequence *sequences, int i,
                                    accrue_error *err)
{
    const acr_sequence *s = &sequences[i];

    if (s->n < 1 || s->n_logits < 0 || s->n_logits > s->n)
        return acr_fail(err, ACCRUE_EINVAL,
                        "sequence %d: %lld tokens with the logits of %lld, at least 1 and no more "
                        "logits than tokens expected",
                        i, (long long)s->n, (long long)s->n_logits);
    if (s->cache->v != v)
        return acr_fail(err, ACCRUE_EINVAL, "sequence %d: the cache is another verifier's", i);
    if (s->n > s->cache->capacity - s->cache->tokens)
        return acr_fail(err, ACCRUE_EINVAL,
                        "sequence %d: %lld tokens after %lld, a cache of %lld holds %lld more", i,
                        (long long)s->n, (long long)s->cache->tokens, (long long)s->cache->capacity,
                        (long long)(s->cache->capacity - s->cache->tokens));
    for (int64_t t = 0; t < s->n; t++)
        if (s->ids[t] < 0 || s->ids[t] >= v->shape.vocab_size)
            return acr_fail(err, ACCRUE_EINVAL,
                            "sequence %d: token %lld is %lld, 0 to %lld expected", i, (long long)t,
                            (long long)s->ids[t], (long long)v->shape.vocab_size - 1);
    for (int j = 0; j < i; j++)
        if (sequences[j].cache == s->cache)
            return acr_fail(err, ACCRUE_EINVAL, "sequences %d and %d have one cache", j, i);
    return ACCRUE_OK;
}

accrue_status acr_verifier_forward(acr_verifier_work *w, const acr_sequence *sequences, int n,
                                   const int *slots, int n_slots, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < n_slots; i++)
        if (slots[i] < 0 || slots[i] > w->v->shape.n_layers)
            return acr_fail(err, ACCRUE_EINVAL, "slot %d: layer %d, 0 to %d expected", i, slots[i],
                            w->v->shape.n_layers);
    for (int i = 0; i < n; i++)
        ACR_TRY(check_sequence(w->v, sequences, i, err));
    w->slots = slots;
    w->n_slots = n_slots;
    for (int i = 0; i < n; i++)
        for (int64_t first = 0, step = 0; first < sequences[i].n; first += step) {
            const int64_t left = sequences[i].n - first;
            step = left < CHUNK - w->rows ? left : CHUNK - w->rows;
            add_piece(w, &sequences[i], first, step);
            if (w->rows == CHUNK)
                run_chunk(w);
        }
    if (w->rows > 0)
        run_chunk(w);
    for (int i = 0; i < n; i++)
        sequences[i].cache->tokens += sequences[i].n;

cleanup:
    return st;
}
