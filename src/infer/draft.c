/* draft.c - an EAGLE-3 draft that decodes: the recipe of model/eagle3.c, row after row.
 *
 * Keys and values of verified rows are kept for the whole sequence, those of drafted rows apart
 * from them, one by one, as the attention kernel takes the earlier TTT steps.  Sums are thus those
 * of training, in its order.  Of the last layer nothing but keys and values is needed where a row
 * is not the last one.  Weights are packed once, for products of few rows. */
#include "infer/draft_parts.h"

#include <string.h>

/* The rows of a pass: verified ones, or a drafted one. */
typedef struct pass {
    int64_t n;
    bool last; /* the sequence's last row is among them */
    const int64_t *ids;
} pass;

static char *at_row(const acr_draft *d, const void *x, int64_t row, int64_t width)
{
    return (char *)(uintptr_t)x + (size_t)(row * width) * d->be->real_bytes;
}

int64_t acr_draft_kv_width(const acr_draft *d)
{
    return (int64_t)d->m->config.n_kv_heads * d->m->config.head_dim;
}

/* Arithmetic ------------------------------------------------------------------------------- */

/* y = x W^T, and y2 = x W2^T where there is a second weight. */
static void products(const acr_draft *d, int64_t rows, const void *x, const acr_packed *w, void *y,
                     const acr_packed *w2, void *y2)
{
    acr_products p = {.m = rows, .a = x, .lda = w->k, .n = w2 ? 2 : 1, .w = {w, w2}, .y = {y, y2}};

    if (d->m->compute == ACCRUE_BF16) {
        d->be->round_bf16(rows * w->k, x, d->x.rounded);
        p.a = d->x.rounded;
    }
    p.ldy[0] = w->n;
    p.ldy[1] = w2 ? w2->n : 0;
    d->be->products(&p);
}

static void product(const acr_draft *d, int64_t rows, const void *x, const acr_packed *w, void *y)
{
    products(d, rows, x, w, y, NULL, NULL);
}

static void rmsnorm(const acr_draft *d, int64_t rows, const void *x, const acr_param *w, void *y)
{
    d->be->rmsnorm_forward(rows, w->rows, x, w->rows, w->master, d->m->config.rms_norm_eps, y,
                           w->rows, d->x.rstd);
}

/* One projection of the attention input, rows [first, first + n) of the pass; `y` has the hidden
 * half's product already. */
static void finish_projection(const acr_draft *d, int64_t first, int64_t n,
                              const acr_packed *embed_half, const acr_param *bias, void *y)
{
    if (bias)
        d->be->bias_forward(n, bias->rows, bias->master, y, bias->rows);
    if (!embed_half->data)
        return;
    product(d, n, at_row(d, d->x.embed, first, embed_half->k), embed_half, d->x.half);
    d->be->accumulate(n * embed_half->n, d->x.half, y);
}

/* Queries or keys: normed per head where the variant does, and rotated. */
static void rotate(const acr_draft *d, int64_t first, int64_t n, int heads, const acr_param *norm,
                   void *y)
{
    const acr_model *m = d->m;

    if (norm)
        rmsnorm(d, n * heads, d->x.raw, norm, d->x.half);
    d->be->rope_forward(n, heads, m->config.head_dim, d->x.position + first, m->rope.cos,
                        m->rope.sin, norm ? d->x.half : d->x.raw, y);
}

/* Queries [first, first + n) over the verified rows that they see, and the drafted ones. */
static void attend(const acr_draft *d, int l, const pass *p, int64_t first, int64_t n)
{
    const acr_config *c = &d->m->config;
    const acr_draft_cache *cache = &d->cache[l];
    const int64_t zero = 0;
    const void *k[1 + ACR_MAX_KV] = {cache->keys}, *v[1 + ACR_MAX_KV] = {cache->values};
    acr_attention a = {.n_queries = n,
                       .n_base = d->drafted ? d->rows : d->rows + p->n,
                       .n_heads = c->n_heads,
                       .n_kv_heads = c->n_kv_heads,
                       .head_dim = c->head_dim,
                       .begin = d->x.begin,
                       .end = d->x.end,
                       .n_extra = d->drafted};

    for (int64_t i = 0; i < n; i++) {
        d->x.end[i] = d->drafted ? d->rows : d->rows + first + i + 1;
        d->x.begin[i] =
            c->sliding[l] && d->x.end[i] > c->sliding_window ? d->x.end[i] - c->sliding_window : 0;
    }
    for (int j = 0; j < d->drafted; j++) {
        k[1 + j] = at_row(d, cache->own_keys, j, acr_draft_kv_width(d));
        v[1 + j] = at_row(d, cache->own_values, j, acr_draft_kv_width(d));
        a.extra_row[j] = &zero;
    }
    d->be->attention_forward(&a, d->x.q, k, v, d->x.attended, d->x.lse);
}

/* Reads the layer's input in x.hidden and leaves its output there: of all rows, or, in the last
 * layer, of the last row of the sequence if that is among them. */
static void decoder_layer(const acr_draft *d, int l, const pass *p)
{
    const acr_config *c = &d->m->config;
    const struct acr_layer *of = &d->m->layer[l];
    const acr_draft_weights *w = &d->layer[l];
    const acr_draft_cache *cache = &d->cache[l];
    const acr_draft_buffers *x = &d->x;
    const int64_t h = c->hidden_size, kv = acr_draft_kv_width(d);
    const bool all = l + 1 < c->n_layers;
    const int64_t first = all ? 0 : p->n - 1, n = p->n - first;
    char *keys = d->drafted ? at_row(d, cache->own_keys, d->drafted - 1, kv)
                            : at_row(d, cache->keys, d->rows, kv);
    char *values = d->drafted ? at_row(d, cache->own_values, d->drafted - 1, kv)
                              : at_row(d, cache->values, d->rows, kv);
    const void *residual = NULL;

    rmsnorm(d, p->n, x->hidden, l == 0 ? of->hidden_norm : of->input_norm, x->normed);
    products(d, p->n, x->normed, &w->k, x->raw, &w->v, values);
    finish_projection(d, 0, p->n, &w->embed_k, of->k_bias, x->raw);
    rotate(d, 0, p->n, c->n_kv_heads, of->k_norm, keys);
    finish_projection(d, 0, p->n, &w->embed_v, of->v_bias, values);
    if (!all && !p->last)
        return;
    product(d, n, at_row(d, x->normed, first, h), &w->q, x->raw);
    finish_projection(d, first, n, &w->embed_q, of->q_bias, x->raw);
    rotate(d, first, n, c->n_heads, of->q_norm, x->q);
    attend(d, l, p, first, n);
    product(d, n, x->attended, &w->o, x->sum);
    if (of->o_bias)
        d->be->bias_forward(n, h, of->o_bias->master, x->sum, h);
    residual = at_row(d, l == 0 && c->norm_before_residual ? x->normed : x->hidden, first, h);
    d->be->add(n * h, residual, x->sum, x->hidden);
    rmsnorm(d, n, x->hidden, of->post_norm, x->normed);
    products(d, n, x->normed, &w->gate, x->gate, &w->up, x->up);
    d->be->swiglu_forward(n * c->intermediate_size, x->gate, x->up, x->act);
    product(d, n, x->act, &w->down, x->sum);
    d->be->accumulate(n * h, x->sum, x->hidden);
}

/* x.hidden = fc over the verifier's states. */
static void fuse_states(const acr_draft *d, const void *states, int64_t n)
{
    const acr_config *c = &d->m->config;
    const int64_t h = c->hidden_size, width = c->n_aux * h;
    const void *in = states;

    if (c->fc_norm) {
        for (int i = 0; i < c->n_aux; i++)
            d->be->rmsnorm_forward(n, h, at_row(d, states, i, h), width,
                                   d->m->top.fc_norm[i]->master, c->rms_norm_eps,
                                   at_row(d, d->x.aux, i, h), width, d->x.rstd);
        in = d->x.aux;
    }
    if (c->norm_before_fc) {
        rmsnorm(d, n, in, d->m->top.input_norm, d->x.aux);
        in = d->x.aux;
    }
    product(d, n, in, &d->fc, d->x.hidden);
}

/* All layers over the rows in x.hidden, and after the last row its logits. */
static accrue_status run(acr_draft *d, const pass *p, accrue_error *err)
{
    const acr_model *m = d->m;
    const acr_config *c = &m->config;
    const acr_param *table = m->top.embed;
    const size_t bytes = (size_t)c->hidden_size * d->be->real_bytes;

    for (int64_t i = 0; i < p->n; i++) {
        if (p->ids[i] < 0 || p->ids[i] >= c->vocab_size)
            return acr_fail(err, ACCRUE_EMISMATCH, "draft: token id %lld, at most %lld expected",
                            (long long)p->ids[i], (long long)c->vocab_size - 1);
        d->x.position[i] = d->rows + d->drafted + i + (d->drafted ? 0 : 1);
    }
    d->be->embed_forward(p->n, c->hidden_size, p->ids, table->frozen_type, table->frozen, d->x.sum);
    rmsnorm(d, p->n, d->x.sum, m->layer[0].input_norm, d->x.embed);
    for (int l = 0; l < c->n_layers; l++)
        decoder_layer(d, l, p);
    if (p->last) {
        rmsnorm(d, 1, d->x.hidden, m->top.norm, d->x.normed);
        memcpy(d->fed, c->norm_output ? d->x.normed : d->x.hidden, bytes);
        product(d, 1, d->x.normed, &d->head, d->x.logits);
    }
    return ACCRUE_OK;
}

accrue_status acr_draft_extend(acr_draft *d, const int64_t *ids, const void *states, int64_t n,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t width = d->m->config.n_aux * d->m->config.hidden_size;

    if (n < 1 || n > d->positions - d->rows)
        return acr_fail(err, ACCRUE_EINVAL, "draft: %lld rows more, 1 to %lld expected",
                        (long long)n, (long long)(d->positions - d->rows));
    d->drafted = 0;
    for (int64_t i = 0; i < n; i += ACR_DRAFT_PASS) {
        pass p = {.n = n - i < ACR_DRAFT_PASS ? n - i : ACR_DRAFT_PASS, .ids = ids + i};
        p.last = i + p.n == n;
        fuse_states(d, at_row(d, states, i, width), p.n);
        ACR_TRY(run(d, &p, err));
        d->rows += p.n;
    }

cleanup:
    return st;
}

accrue_status acr_draft_step(acr_draft *d, int64_t id, accrue_error *err)
{
    const pass p = {.n = 1, .last = true, .ids = &id};

    if (d->rows == 0 || d->drafted == ACR_MAX_KV - 1)
        return acr_fail(err, ACCRUE_ESTATE,
                        "draft: a drafted row behind %lld verified and %d drafted ones, at least 1 "
                        "and at most %d expected",
                        (long long)d->rows, d->drafted, ACR_MAX_KV - 2);
    d->drafted++;
    memcpy(d->x.hidden, d->fed, (size_t)d->m->config.hidden_size * d->be->real_bytes);
    return run(d, &p, err);
}

const void *acr_draft_logits(const acr_draft *d)
{
    return d->x.logits;
}

int64_t acr_draft_token(const acr_draft *d)
{
    const int64_t n = d->m->config.draft_vocab_size;
    int64_t best = 0;

    d->be->argmax(1, n, d->x.logits, n, &best);
    return d->m->vocab.d2t ? best + d->m->vocab.d2t[best] : best;
}

void acr_draft_restart(acr_draft *d)
{
    d->rows = 0;
    d->drafted = 0;
}

const acr_config *acr_draft_describe(const acr_draft *d)
{
    return &d->m->config;
}

const int *acr_draft_slots(const acr_draft *d)
{
    return d->slots;
}
