/* eagle3.c - the EAGLE-3 forward recipe (Li et al. 2025) with its training-time-test unroll.
 *
 * Written as the Python trainer's model computes it, minus what cannot change the result: rows that
 * rows.c rules out, and the embedding's half of the first layer's q, k and v, which is projected
 * once for all TTT steps and gathered shifted. */
#include "model/model.h"

#include <math.h>
#include <string.h>

typedef struct unroll {
    acr_model *m;
    acr_tape *t;
    const acr_rows *rows;
    acr_value *embed_q, *embed_k, *embed_v;      /* [n_embed, *] first layer's embedding half */
    acr_value *keys[ACR_MAX_LAYERS][ACR_MAX_KV]; /* of each layer and step so far */
    acr_value *values[ACR_MAX_LAYERS][ACR_MAX_KV];
} unroll;

/* The rows whose queries a layer computes at a step: all base rows below the last layer of step 0,
 * because the layer above reads their keys; otherwise the step's own. */
typedef struct queries {
    int64_t n;
    const int64_t *embed, *position, *begin, *end;
    const int64_t *select; /* index into the layer's input rows; NULL: all of them */
} queries;

/* Rows are copied out only where some are left out.  A measurement stands for every micro-batch
 * that is no larger, so it counts the copies. */
static bool must_copy(const unroll *u, int64_t kept, int64_t of)
{
    return kept < of || u->t->arena.measuring;
}

static queries layer_queries(const unroll *u, int l, int k)
{
    const acr_rows *r = u->rows;
    const acr_step_rows *s = &r->step[k];
    bool sliding = u->m->config.sliding[l];

    if (k == 0 && l + 1 < u->m->config.n_layers)
        return (queries){.n = r->n_base,
                         .embed = r->base_embed,
                         .position = r->base_position,
                         .begin = sliding ? r->base_window_begin : r->base_begin,
                         .end = r->base_end};
    return (queries){.n = s->n,
                     .embed = s->embed,
                     .position = s->position,
                     .begin = sliding ? s->window_begin : s->begin,
                     .end = s->end,
                     .select = k == 0 && must_copy(u, s->n, r->n_base) ? s->previous : NULL};
}

static acr_value *select_rows(unroll *u, acr_value *x, const queries *q)
{
    return q->select ? acr_gather_rows(u->t, x, q->n, q->select) : x;
}

/* One projection of the attention input: first-layer weights are [out, 2 hidden], of which the
 * embedding's half is already in `embedded`. */
static acr_value *project(unroll *u, acr_value *x, acr_param *w, acr_param *bias,
                          acr_value *embedded, const int64_t *embed_rows, acr_param *head_norm,
                          const int64_t *rope_position)
{
    const acr_config *c = &u->m->config;
    acr_value *y = acr_linear(u->t, x, w, embedded ? c->hidden_size : 0, bias);

    if (embedded)
        y = acr_gather_add(u->t, y, embedded, embed_rows);
    if (head_norm)
        y = acr_rmsnorm(u->t, y, head_norm, c->rms_norm_eps);
    return rope_position ? acr_rope(u->t, y, rope_position, &u->m->rope) : y;
}

static acr_value *attention(unroll *u, int l, int k, const queries *rows, acr_value *q)
{
    const acr_config *c = &u->m->config;
    acr_attention a = {.n_queries = rows->n, .n_base = u->rows->n_base};

    a.n_heads = c->n_heads;
    a.n_kv_heads = c->n_kv_heads;
    a.head_dim = c->head_dim;
    a.begin = rows->begin;
    a.end = rows->end;
    a.n_extra = k;
    for (int j = 1; j <= k; j++)
        a.extra_row[j - 1] = u->rows->step[k].own[j];
    return acr_attend(u->t, &a, q, u->keys[l], u->values[l]);
}

/* h: the layer's input, on the base rows at step 0 and on the step's rows after. */
static acr_value *decoder_layer(unroll *u, int l, int k, acr_value *h)
{
    const acr_config *c = &u->m->config;
    struct acr_layer *p = &u->m->layer[l];
    const acr_rows *r = u->rows;
    const int64_t *in_embed = k ? r->step[k].embed : r->base_embed;
    const int64_t *in_position = k ? r->step[k].position : r->base_position;
    queries rows = layer_queries(u, l, k);
    acr_value *normed = NULL, *residual = NULL, *q = NULL, *x = NULL, *mlp = NULL;
    bool first = l == 0;

    normed = acr_rmsnorm(u->t, h, first ? p->hidden_norm : p->input_norm, c->rms_norm_eps);
    u->keys[l][k] = project(u, normed, p->k, p->k_bias, first ? u->embed_k : NULL, in_embed,
                            p->k_norm, in_position);
    u->values[l][k] =
        project(u, normed, p->v, p->v_bias, first ? u->embed_v : NULL, in_embed, NULL, NULL);
    normed = select_rows(u, normed, &rows);
    residual = first && c->norm_before_residual ? normed : select_rows(u, h, &rows);
    q = project(u, normed, p->q, p->q_bias, first ? u->embed_q : NULL, rows.embed, p->q_norm,
                rows.position);
    x = acr_linear(u->t, attention(u, l, k, &rows, q), p->o, 0, p->o_bias);
    x = acr_add(u->t, residual, x);
    normed = acr_rmsnorm(u->t, x, p->post_norm, c->rms_norm_eps);
    mlp = acr_swiglu(u->t, acr_linear(u->t, normed, p->gate, 0, NULL),
                     acr_linear(u->t, normed, p->up, 0, NULL));
    return acr_add(u->t, x, acr_linear(u->t, mlp, p->down, 0, NULL));
}

/* fc over the auxiliary states of the base rows. */
static acr_value *fuse_states(unroll *u, const acr_batch *b)
{
    const acr_config *c = &u->m->config;
    const acr_rows *r = u->rows;
    int64_t width = c->n_aux * c->hidden_size;
    acr_value *slot[ACR_MAX_AUX];
    acr_value *x = NULL;

    if (c->fc_norm) {
        for (int i = 0; i < c->n_aux; i++) {
            x = acr_leaf_rows(u->t, r->n_base, r->base, b->hidden, width, i * c->hidden_size,
                              c->hidden_size);
            slot[i] = acr_rmsnorm(u->t, x, u->m->top.fc_norm[i], c->rms_norm_eps);
        }
        x = acr_concat(u->t, c->n_aux, slot);
    } else if (!must_copy(u, r->n_base, b->n_rows)) {
        x = acr_leaf(u->t, b->n_rows, width, b->hidden);
    } else {
        x = acr_leaf_rows(u->t, r->n_base, r->base, b->hidden, width, 0, width);
    }
    if (c->norm_before_fc)
        x = acr_rmsnorm(u->t, x, u->m->top.input_norm, c->rms_norm_eps);
    return acr_linear(u->t, x, u->m->top.fc, 0, NULL);
}

static void project_embeddings(unroll *u)
{
    struct acr_layer *p = &u->m->layer[0];
    acr_value *e = acr_embed(u->t, u->rows->n_embed, u->rows->embed_ids, u->m->top.embed);

    e = acr_rmsnorm(u->t, e, p->input_norm, u->m->config.rms_norm_eps);
    u->embed_q = acr_linear(u->t, e, p->q, 0, NULL);
    u->embed_k = acr_linear(u->t, e, p->k, 0, NULL);
    u->embed_v = acr_linear(u->t, e, p->v, 0, NULL);
}

static void describe_step(acr_distill_step *s, acr_eagle3_result *out, acr_tape *t, int k,
                          acr_value *h, double scale, int n_terms)
{
    const acr_step_rows *rows = &out->rows.step[k];

    out->term_loss[k] = acr_tape_meta(t, rows->n_draft * n_terms, sizeof(double));
    out->argmax[k] = acr_tape_meta(t, rows->n_draft, sizeof(int64_t));
    s->h = h;
    s->n = rows->n_draft;
    s->row = rows->draft_row;
    s->target = rows->target;
    s->counted = rows->counted;
    s->scale = scale;
    s->term_loss = out->term_loss[k];
    s->argmax = out->argmax[k];
}

static void unroll_steps(unroll *u, acr_eagle3_result *out, const acr_batch *b, acr_distill *d,
                         const acr_eagle3_options *o, const double *step_scale)
{
    const acr_config *c = &u->m->config;
    acr_value *h = fuse_states(u, b);

    project_embeddings(u);
    for (int k = 0; k < o->ttt_steps; k++) {
        const acr_step_rows *rows = &u->rows->step[k];
        acr_value *normed = NULL;

        if (rows->n == 0)
            break; /* nor has any later step */
        if (k && must_copy(u, rows->n, u->rows->step[k - 1].n))
            h = acr_gather_rows(u->t, h, rows->n, rows->previous);
        for (int l = 0; l < c->n_layers; l++)
            h = decoder_layer(u, l, k, h);
        normed = acr_rmsnorm(u->t, h, u->m->top.norm, c->rms_norm_eps);
        if (c->norm_output)
            h = normed;
        describe_step(&d->step[k], out, u->t, k, normed, step_scale[k], o->loss.n_terms);
        d->n_steps = k + 1;
    }
}

accrue_status acr_eagle3_forward(acr_eagle3_result *out, acr_model *m, acr_tape *t,
                                 const acr_batch *b, const acr_eagle3_options *o,
                                 const double *step_scale, accrue_error *err)
{
    unroll u = {.m = m, .t = t, .rows = &out->rows};
    acr_distill d = {.spec = &o->loss};

    memset(out, 0, sizeof *out);
    if (t->row_capacity < b->padded_rows)
        t->row_capacity = b->padded_rows;
    acr_rows_plan(&out->rows, t, b, o, m->config.sliding_window);
    out->correct = acr_tape_meta(t, b->n_rows, sizeof *out->correct);
    out->target_argmax = acr_tape_meta(t, out->rows.n_targets, sizeof(int64_t));
    if (!t->status && out->rows.n_targets) {
        d.head = m->top.head;
        d.verifier_norm = m->top.verifier_norm;
        d.verifier_head = m->top.verifier_head;
        d.eps = m->config.rms_norm_eps;
        d.n_targets = out->rows.n_targets;
        d.target_row = out->rows.target;
        d.target = b->target;
        d.target_argmax = out->target_argmax;
        unroll_steps(&u, out, b, &d, o, step_scale);
        acr_distill_loss(t, &d);
    }
    return acr_tape_status(t, err);
}
