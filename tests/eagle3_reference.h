/* eagle3_reference.h - EAGLE-3's loss written from its definition, as slowly as it takes. */
#ifndef EAGLE3_REFERENCE_H
#define EAGLE3_REFERENCE_H

#include "model_test.h"

/* Every row of the padded micro-batch, T x T attention, no row left out; reads the draft's f64
 * weights where they lie, so a changed weight is seen at once. */
typedef struct reference {
    const draft *d;
    const acr_batch *b;
    const acr_eagle3_options *o;
    int64_t T;
    int64_t *doc;             /* [T], -1: padding */
    double *k[8][ACR_MAX_KV]; /* per layer and step [T, kv_heads * head_dim] */
    double *v[8][ACR_MAX_KV];
    double *lambda; /* [steps, T] of lk_hybrid, which is not differentiated: NaN until
                                   the first forward, kept by later ones; may be NULL */
    double step_loss[ACCRUE_MAX_TTT_STEPS], full[ACCRUE_MAX_TTT_STEPS];
    double count[ACCRUE_MAX_TTT_STEPS], asked[ACCRUE_MAX_TTT_STEPS];
} reference;

static const double *weight(const reference *r, const char *name)
{
    const acr_param *p = acr_model_find(r->d->m, name);

    return !p ? NULL : p->master ? p->master : p->frozen;
}

static const double *layer_weight(const reference *r, int l, const char *suffix)
{
    char name[96];

    snprintf(name, sizeof name, "layers.%d.%s", l, suffix);
    return weight(r, name);
}

/* y[o] = sum_i w[o, i] x[i] + bias[o] */
static inline void affine(double *y, const double *w, const double *bias, const double *x,
                          int64_t out, int64_t in)
{
    for (int64_t o = 0; o < out; o++) {
        double s = bias ? bias[o] : 0;
        for (int64_t i = 0; i < in; i++)
            s += w[o * in + i] * x[i];
        y[o] = s;
    }
}

static inline void norm(double *y, const double *x, const double *w, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += x[i] * x[i];
    s = 1 / sqrt(s / (double)n + 1e-5);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * s * w[i];
}

static inline void rotate(double *x, int64_t position, int head_dim)
{
    for (int i = 0; i < head_dim / 2; i++) {
        double angle = (double)position * pow(10000.0, -2.0 * i / head_dim);
        double a = x[i], b = x[i + head_dim / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + head_dim / 2] = b * cos(angle) + a * sin(angle);
    }
}

static inline int64_t token_at(const reference *r, int64_t t)
{
    return t < r->b->n_rows ? r->b->input_ids[t] : 0;
}

static inline int64_t position_at(const reference *r, int64_t t)
{
    return t < r->b->n_rows ? r->b->position_ids[t] : 0;
}

static inline bool supervised(const reference *r, int64_t t)
{
    return t < r->b->n_rows && r->b->loss_mask[t];
}

static inline bool sees(const reference *r, int l, int64_t t, int64_t s)
{
    const acr_config *c = &r->d->m->config;

    if (r->doc[t] < 0)
        return s == t;
    return s <= t && r->doc[s] == r->doc[t] && (!c->sliding[l] || s > t - c->sliding_window);
}

/* Attention output of row t at step k for all heads. */
static inline void attend(const reference *r, int l, int k, int64_t t, const double *q, double *out)
{
    const acr_config *c = &r->d->m->config;
    int hd = c->head_dim;
    int64_t kv = (int64_t)c->n_kv_heads * hd;
    double *p = zeros(r->T + k);

    for (int h = 0; h < c->n_heads; h++) {
        int64_t at = h / (c->n_heads / c->n_kv_heads) * hd;
        double top = -HUGE_VAL, sum = 0;
        for (int64_t s = 0; s < r->T + k; s++) {
            const double *key = s < r->T ? r->k[l][0] + s * kv : r->k[l][s - r->T + 1] + t * kv;
            p[s] = -HUGE_VAL;
            if (s < r->T && !sees(r, l, t, s))
                continue;
            p[s] = 0;
            for (int i = 0; i < hd; i++)
                p[s] += q[h * hd + i] * key[at + i];
            p[s] /= sqrt(hd);
            top = fmax(top, p[s]);
        }
        for (int64_t s = 0; s < r->T + k; s++)
            sum += p[s] = exp(p[s] - top);
        for (int i = 0; i < hd; i++)
            out[h * hd + i] = 0;
        for (int64_t s = 0; s < r->T + k; s++) {
            const double *value = s < r->T ? r->v[l][0] + s * kv : r->v[l][s - r->T + 1] + t * kv;
            for (int i = 0; i < hd; i++)
                out[h * hd + i] += p[s] / sum * value[at + i];
        }
    }
    free(p);
}

static inline void decode_layer(reference *r, int l, int k, double *h)
{
    const acr_config *c = &r->d->m->config;
    int64_t width = l ? H : 2 * H, mid = c->intermediate_size;
    int64_t qn = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    double *in = zeros(r->T * width), *q = zeros(r->T * qn), *o = zeros(qn);
    double *x = zeros(H), *y = zeros(H), *gate = zeros(mid), *up = zeros(mid);

    r->k[l][k] = zeros(r->T * kv);
    r->v[l][k] = zeros(r->T * kv);
    for (int64_t t = 0; t < r->T; t++) {
        double *a = in + t * width;
        if (l == 0) {
            norm(a, weight(r, "embed_tokens.weight") + token_at(r, t + k) * H,
                 layer_weight(r, 0, "input_layernorm.weight"), H);
            norm(a + H, h + t * H, layer_weight(r, 0, "hidden_norm.weight"), H);
        } else {
            norm(a, h + t * H, layer_weight(r, l, "input_layernorm.weight"), H);
        }
        affine(q + t * qn, layer_weight(r, l, "self_attn.q_proj.weight"),
               layer_weight(r, l, "self_attn.q_proj.bias"), a, qn, width);
        affine(r->k[l][k] + t * kv, layer_weight(r, l, "self_attn.k_proj.weight"),
               layer_weight(r, l, "self_attn.k_proj.bias"), a, kv, width);
        affine(r->v[l][k] + t * kv, layer_weight(r, l, "self_attn.v_proj.weight"),
               layer_weight(r, l, "self_attn.v_proj.bias"), a, kv, width);
        for (int i = 0; i < c->n_heads + c->n_kv_heads; i++) {
            bool key = i >= c->n_heads;
            double *head = key ? r->k[l][k] + t * kv + (i - c->n_heads) * c->head_dim
                               : q + t * qn + i * c->head_dim;
            if (c->arch == ACR_ARCH_QWEN3)
                norm(
                    head, head,
                    layer_weight(r, l, key ? "self_attn.k_norm.weight" : "self_attn.q_norm.weight"),
                    c->head_dim);
            rotate(head, position_at(r, t) + k, c->head_dim);
        }
    }
    for (int64_t t = 0; t < r->T; t++) {
        double *row = h + t * H;
        attend(r, l, k, t, q + t * qn, o);
        affine(x, layer_weight(r, l, "self_attn.o_proj.weight"),
               layer_weight(r, l, "self_attn.o_proj.bias"), o, H, qn);
        for (int i = 0; i < H; i++)
            row[i] = x[i] + (l == 0 && c->norm_before_residual ? in[t * width + H + i] : row[i]);
        norm(x, row, layer_weight(r, l, "post_attention_layernorm.weight"), H);
        affine(gate, layer_weight(r, l, "mlp.gate_proj.weight"), NULL, x, mid, H);
        affine(up, layer_weight(r, l, "mlp.up_proj.weight"), NULL, x, mid, H);
        for (int64_t i = 0; i < mid; i++)
            gate[i] *= up[i] / (1 + exp(-gate[i]));
        affine(y, layer_weight(r, l, "mlp.down_proj.weight"), NULL, gate, H, mid);
        for (int i = 0; i < H; i++)
            row[i] += y[i];
    }
    free(in), free(q), free(o), free(x), free(y), free(gate), free(up);
}

static inline void fuse(const reference *r, double *h)
{
    const acr_config *c = &r->d->m->config;
    double g[AUX * H];

    for (int64_t t = 0; t < r->T; t++) {
        for (int i = 0; i < AUX * H; i++)
            g[i] = t < r->b->n_rows ? ((const double *)r->b->hidden)[t * AUX * H + i] : 0;
        if (c->norm_before_fc)
            norm(g, g, weight(r, "input_norm.weight"), AUX * H);
        for (int i = 0; c->fc_norm && i < AUX; i++) {
            char name[32];
            snprintf(name, sizeof name, "fc_norm.%d.weight", i);
            norm(g + i * H, g + i * H, weight(r, name), H);
        }
        affine(h + t * H, weight(r, "fc.weight"), NULL, g, H, AUX * H);
    }
}

static inline void log_softmax(double *out, const double *z, int64_t n)
{
    double top = -HUGE_VAL, sum = 0;

    for (int64_t i = 0; i < n; i++)
        top = fmax(top, z[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(z[i] - top);
    for (int64_t i = 0; i < n; i++)
        out[i] = z[i] - top - log(sum);
}

static inline int64_t largest(const double *z, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (z[i] > z[best])
            best = i;
    return best;
}

static inline double term(acr_loss_kind kind, const double *z, const double *target, int64_t n,
                          double *lambda)
{
    double *q = zeros(n), *p = zeros(n);
    double kl = 0, rkl = 0, jsd = 0, overlap = 0, ce = 0, out = 0;

    log_softmax(q, z, n);
    log_softmax(p, target, n);
    ce = -q[largest(target, n)];
    for (int64_t i = 0; i < n; i++) {
        double m = log((exp(p[i]) + exp(q[i])) / 2);
        kl += exp(p[i]) * (p[i] - q[i]);
        rkl += exp(q[i]) * (q[i] - p[i]);
        jsd += (exp(p[i]) * (p[i] - m) + exp(q[i]) * (q[i] - m)) / 2;
        overlap += exp(fmin(p[i], q[i]));
    }
    switch (kind) {
    case ACR_LOSS_KL_DIV: out = kl; break;
    case ACR_LOSS_RKL: out = rkl; break;
    case ACR_LOSS_JSD: out = jsd; break;
    case ACR_LOSS_CE: out = ce; break;
    case ACR_LOSS_TV: out = 1 - overlap; break;
    case ACR_LOSS_NLA: out = -log(fmax(overlap, 1e-5)); break;
    case ACR_LOSS_LK_HYBRID:
        if (isnan(*lambda))
            *lambda = exp(-3 * overlap);
        out = *lambda * kl + (1 - *lambda) * (1 - overlap);
        break;
    case ACR_LOSS_COUNT: fail(); break;
    }
    free(q);
    free(p);
    return out;
}

static inline void step_losses(reference *r, int k, const double *logits, const double *targets,
                               bool *correct)
{
    int64_t n = r->d->m->config.draft_vocab_size;

    for (int64_t t = 0; t + k < r->T; t++) {
        const double *z = logits + t * n, *y = targets + (t + k) * n;
        bool within = r->o->across_documents || (r->doc[t] >= 0 && r->doc[t + k] == r->doc[t]);
        if (!within)
            continue;
        r->asked[k] += correct[t];
        correct[t] = correct[t] && largest(z, n) == largest(y, n);
        if (!supervised(r, t + k))
            continue;
        r->count[k]++;
        r->full[k] += correct[t];
        for (int j = 0; j < r->o->loss.n_terms; j++) {
            double fresh = (double)NAN;
            r->step_loss[k] +=
                r->o->loss.weight[j] *
                term(r->o->loss.kind[j], z, y, n, r->lambda ? &r->lambda[k * r->T + t] : &fresh);
        }
    }
}

static inline void reference_open(reference *r, const draft *d, const acr_batch *b,
                                  const acr_eagle3_options *o)
{
    memset(r, 0, sizeof *r);
    r->d = d;
    r->b = b;
    r->o = o;
    r->T = b->padded_rows;
    r->doc = calloc((size_t)r->T, sizeof *r->doc);
    assert_non_null(r->doc);
    for (int64_t t = 0; t < r->T; t++) {
        r->doc[t] = -1;
        for (int64_t i = 0; i < b->n_docs; i++)
            if (t >= b->doc_begin[i] && t < b->doc_begin[i + 1])
                r->doc[t] = i;
    }
}

static inline void reference_free(reference *r)
{
    for (int l = 0; l < 8; l++)
        for (int k = 0; k < ACR_MAX_KV; k++) {
            free(r->k[l][k]);
            free(r->v[l][k]);
        }
    free(r->doc);
}

/* The loss sum_k gamma^k * sum / (count + 1e-5); sums and counts stay in *r until freed. */
static inline double reference_loss(reference *r)
{
    const acr_config *c = &r->d->m->config;
    int64_t n = c->draft_vocab_size;
    double *h = zeros(r->T * H), *logits = zeros(r->T * n), *targets = zeros(r->T * n);
    bool *correct = calloc((size_t)r->T, sizeof *correct);
    double x[H], loss = 0;

    assert_non_null(correct);
    for (int64_t t = 0; t < r->T; t++) {
        correct[t] = supervised(r, t);
        if (t >= r->b->n_rows)
            continue; /* padding: all logits 0 */
        norm(x, (const double *)r->b->target + t * H, weight(r, "verifier_norm.weight"), H);
        affine(targets + t * n, weight(r, "verifier_lm_head.weight"), NULL, x, n, H);
    }
    fuse(r, h);
    for (int k = 0; k < r->o->ttt_steps; k++) {
        for (int l = 0; l < c->n_layers; l++)
            decode_layer(r, l, k, h);
        for (int64_t t = 0; t < r->T; t++) {
            norm(x, h + t * H, weight(r, "norm.weight"), H);
            affine(logits + t * n, weight(r, "lm_head.weight"), NULL, x, n, H);
            if (c->norm_output)
                memcpy(h + t * H, x, sizeof x);
        }
        step_losses(r, k, logits, targets, correct);
        loss += pow(r->o->step_decay, k) * r->step_loss[k] / (r->count[k] + 1e-5);
    }
    free(h), free(logits), free(targets), free(correct);
    return loss;
}

#endif
