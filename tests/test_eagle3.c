/* test_eagle3.c - the EAGLE-3 recipe against a dense reference written from its definition, and the
 * properties that training rests on: normalisation, separation of documents, determinism, memory. */
#include "model_test.h"

/* The dense reference ---------------------------------------------------------------------- */

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

static double *zeros(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);

    assert_non_null(x);
    return x;
}

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
static void affine(double *y, const double *w, const double *bias, const double *x, int64_t out,
                   int64_t in)
{
    for (int64_t o = 0; o < out; o++) {
        double s = bias ? bias[o] : 0;
        for (int64_t i = 0; i < in; i++)
            s += w[o * in + i] * x[i];
        y[o] = s;
    }
}

static void norm(double *y, const double *x, const double *w, int64_t n)
{
    double s = 0;

    for (int64_t i = 0; i < n; i++)
        s += x[i] * x[i];
    s = 1 / sqrt(s / (double)n + 1e-5);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * s * w[i];
}

static void rotate(double *x, int64_t position, int head_dim)
{
    for (int i = 0; i < head_dim / 2; i++) {
        double angle = (double)position * pow(10000.0, -2.0 * i / head_dim);
        double a = x[i], b = x[i + head_dim / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + head_dim / 2] = b * cos(angle) + a * sin(angle);
    }
}

static int64_t token_at(const reference *r, int64_t t)
{
    return t < r->b->n_rows ? r->b->input_ids[t] : 0;
}

static int64_t position_at(const reference *r, int64_t t)
{
    return t < r->b->n_rows ? r->b->position_ids[t] : 0;
}

static bool supervised(const reference *r, int64_t t)
{
    return t < r->b->n_rows && r->b->loss_mask[t];
}

static bool sees(const reference *r, int l, int64_t t, int64_t s)
{
    const acr_config *c = &r->d->m->config;

    if (r->doc[t] < 0)
        return s == t;
    return s <= t && r->doc[s] == r->doc[t] && (!c->sliding[l] || s > t - c->sliding_window);
}

/* Attention output of row t at step k for all heads. */
static void attend(const reference *r, int l, int k, int64_t t, const double *q, double *out)
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

static void decode_layer(reference *r, int l, int k, double *h)
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

static void fuse(const reference *r, double *h)
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

static void log_softmax(double *out, const double *z, int64_t n)
{
    double top = -HUGE_VAL, sum = 0;

    for (int64_t i = 0; i < n; i++)
        top = fmax(top, z[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(z[i] - top);
    for (int64_t i = 0; i < n; i++)
        out[i] = z[i] - top - log(sum);
}

static int64_t largest(const double *z, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (z[i] > z[best])
            best = i;
    return best;
}

static double term(acr_loss_kind kind, const double *z, const double *target, int64_t n,
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

static void step_losses(reference *r, int k, const double *logits, const double *targets,
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
            double fresh = NAN;
            r->step_loss[k] +=
                r->o->loss.weight[j] *
                term(r->o->loss.kind[j], z, y, n, r->lambda ? &r->lambda[k * r->T + t] : &fresh);
        }
    }
}

static void reference_open(reference *r, const draft *d, const acr_batch *b,
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

static void reference_free(reference *r)
{
    for (int l = 0; l < 8; l++)
        for (int k = 0; k < ACR_MAX_KV; k++) {
            free(r->k[l][k]);
            free(r->v[l][k]);
        }
    free(r->doc);
}

/* The loss sum_k gamma^k * sum / (count + 1e-5); sums and counts stay in *r until freed. */
static double reference_loss(reference *r)
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

/* The library's side ----------------------------------------------------------------------- */

static acr_eagle3_options options(const char *loss, int steps, double decay, bool across)
{
    acr_eagle3_options o = {.ttt_steps = steps, .step_decay = decay, .across_documents = across};
    accrue_error e;

    assert_int_equal(acr_loss_spec_parse(&o.loss, loss, &e), ACCRUE_OK);
    return o;
}

/* Adds a micro-batch's gradient; denominators: counts (+ 1e-5) of this micro-batch, or `window`. */
static accrue_metrics learn(draft *d, const acr_batch *b, const acr_eagle3_options *o,
                            const int64_t *window, acr_eagle3_result *result)
{
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    double scale[ACCRUE_MAX_TTT_STEPS];
    acr_eagle3_result r;
    accrue_metrics m;
    accrue_error e = {0};

    acr_eagle3_counts(b, o, counts);
    for (int k = 0; k < o->ttt_steps; k++) {
        double n = window ? (double)window[k] : (double)counts[k] + 1e-5;
        scale[k] = n > 0 ? pow(o->step_decay, k) / n : 0;
    }
    acr_tape_reset(&d->t);
    if (acr_eagle3_forward(&r, d->m, &d->t, b, o, scale, &e))
        fail_msg("%s", e.message);
    assert_int_equal(acr_eagle3_metrics(&m, &r, &d->t, b, o, scale, 1, &e), ACCRUE_OK);
    acr_tape_backward(&d->t);
    assert_int_equal(acr_tape_status(&d->t, &e), ACCRUE_OK);
    if (result)
        *result = r; /* its lists live until the tape is reset */
    return m;
}

static int64_t gradient_elements(const acr_model *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->n_params; i++)
        n += m->params[i].grad ? m->params[i].rows * m->params[i].cols : 0;
    return n;
}

/* All gradients, one after the other; the caller frees. */
static double *gradients(const acr_model *m)
{
    double *g = zeros(gradient_elements(m));
    int64_t n = 0;

    for (int i = 0; i < m->n_params; i++)
        for (int64_t j = 0; m->params[i].grad && j < m->params[i].rows * m->params[i].cols; j++)
            g[n++] = real_at(m, m->params[i].grad, j);
    return g;
}

static double distance(const double *a, const double *b, int64_t n)
{
    double d = 0, s = 0;

    for (int64_t i = 0; i < n; i++) {
        d += (a[i] - b[i]) * (a[i] - b[i]);
        s += b[i] * b[i];
    }
    assert_true(s > 0);
    return sqrt(d / s);
}

static void check_close(const char *what, double got, double expected, double bound)
{
    if (!(fabs(got - expected) <= bound * fmax(1, fabs(expected))))
        fail_msg("%s: %.17g, %.17g expected", what, got, expected);
}

/* (a) Forward and gradients against the reference ------------------------------------------ */

static const variant plain = {.arch = "llama",
                              .layers = 1,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 4,
                              .full_layer = -1,
                              .draft_vocab = DRAFT,
                              .norm_before_residual = true,
                              .norm_before_fc = true,
                              .norm_output = true};
static const variant variants[] = {
    {"llama", 1, 4, 2, 4, 0, -1, DRAFT, false, true, true, false, true, false},
    {"llama", 1, 4, 4, 4, 0, -1, DRAFT, false, false, false, false, false, false},
    {"llama", 2, 4, 1, 6, 3, 0, DRAFT, true, true, false, true, true, false},
    {"llama", 3, 2, 2, 8, 4, 1, DRAFT, false, false, true, false, false, false},
    {"qwen3", 1, 4, 2, 8, 0, -1, DRAFT, false, true, true, false, true, false},
    {"qwen3", 2, 3, 1, 6, 2, -1, VOCAB, true, false, false, true, false, true},
    {"qwen3", 3, 2, 1, 4, 5, 2, DRAFT, false, true, false, false, true, false},
    {"llama", 1, 4, 2, 4, 2, -1, VOCAB, false, true, true, false, true, true},
};

enum { MAX_SAMPLES = 8 };

/* 1 to 3 documents, from lengths that include 0 and 1, a mask of any density, some padding. */
static int random_batch(acr_batch *b, sample *samples, source *s)
{
    int n = 1 + (int)below(s, 3);
    int64_t rows = 0;
    bool any = false;

    for (int i = 0; i < n; i++) {
        samples[i] = sample_make(s, i == 1 ? below(s, 3) : 4 + below(s, 7), i ? 0.5 : 0.7);
        if (i == 2)
            for (int64_t t = 0; t < samples[i].n / 2; t++)
                samples[i].mask[t] = 0;
        rows += samples[i].n;
        for (int64_t t = 0; t < samples[i].n; t++)
            any = any || samples[i].mask[t];
    }
    if (!any)
        samples[0].mask[samples[0].n - 1] = 1;
    pack(b, ACR_DTYPE_F64, samples, NULL, n, rows + below(s, 4));
    return n;
}

static double loss_at(reference *like, double *w, double value)
{
    double kept = *w, loss = 0;
    reference r;

    *w = value;
    reference_open(&r, like->d, like->b, like->o);
    r.lambda = like->lambda;
    loss = reference_loss(&r);
    reference_free(&r);
    *w = kept;
    return loss;
}

/* Central differences of the reference at a few places of every trainable parameter. */
static void check_gradients(draft *d, reference *r, source *s)
{
    const double step = 1e-5;

    for (int i = 0; i < d->m->n_params; i++) {
        acr_param *p = &d->m->params[i];
        for (int j = 0; p->grad && j < 2; j++) {
            int64_t at = below(s, p->rows * p->cols);
            double *w = NULL;
            if (p == d->m->top.embed && j == 0) /* a row that is surely read */
                at = r->b->input_ids[0] * H + at % H;
            w = (double *)p->master + at;
            check_close(p->name, ((double *)p->grad)[at],
                        (loss_at(r, w, *w + step) - loss_at(r, w, *w - step)) / (2 * step), 2e-7);
        }
    }
}

static void equals_the_reference(void **state)
{
    static const char *const losses[] = {
        "kl_div", "{\"ce\": 0.1, \"tv\": 0.9}", "jsd", "rkl", "nla", "lk_hybrid", "ce", "tv"};

    (void)state;
    for (int v = 0; v < ACR_COUNT(variants); v++)
        for (int across = 0; across < 2; across++) {
            source s = {.seed = 100 + (uint64_t)(2 * v + across)};
            acr_eagle3_options o = options(losses[(v + across) % ACR_COUNT(losses)],
                                           1 + (v + 2) % 4, v % 2 ? 0.8 : 1, across);
            sample samples[MAX_SAMPLES];
            acr_batch b;
            draft d;
            reference r;
            accrue_metrics m;
            double expected = 0;
            int n = random_batch(&b, samples, &s);

            draft_open(&d, &variants[v], ACCRUE_F64, 9);
            m = learn(&d, &b, &o, NULL, NULL);
            reference_open(&r, &d, &b, &o);
            r.lambda = zeros(o.ttt_steps * r.T);
            for (int64_t i = 0; i < o.ttt_steps * r.T; i++)
                r.lambda[i] = NAN;
            expected = reference_loss(&r);
            check_close("loss", m.loss_sum, expected, 1e-12);
            for (int k = 0; k < o.ttt_steps; k++) {
                check_close("supervised rows", m.full_acc_total[k], r.count[k], 0);
                check_close("full accuracy", m.full_acc_sum[k], r.full[k], 0);
                check_close("conditional accuracy's rows", m.cond_acc_total[k], r.asked[k], 0);
                check_close("step loss", m.step_loss_sum[k],
                            pow(o.step_decay, k) * r.step_loss[k] / (r.count[k] + 1e-5), 1e-12);
            }
            check_gradients(&d, &r, &s);
            free(r.lambda);
            reference_free(&r);
            draft_close(&d);
            acr_batch_free(&b);
            for (int i = 0; i < n; i++)
                sample_free(&samples[i]);
        }
}

/* The reference tells variants apart: were a switch ignored by both sides' shared inputs, the loss
 * of two drafts that differ only there would be equal. */
static void every_switch_matters(void **state)
{
    source s = {.seed = 3};
    sample x = sample_make(&s, 12, 0.6);
    acr_batch b;
    double loss[6];
    acr_eagle3_options o = options("kl_div", 3, 1, false);

    (void)state;
    x.mask[11] = 1;
    pack(&b, ACR_DTYPE_F64, &x, NULL, 1, 12);
    for (int i = 0; i < 6; i++) {
        variant v = plain;
        draft d;
        v.norm_before_residual = i != 1;
        v.norm_before_fc = i != 2 && i != 3;
        v.fc_norm = i == 3;
        v.norm_output = i != 4;
        v.window = i == 5 ? 2 : 0;
        draft_open(&d, &v, ACCRUE_F64, 9);
        loss[i] = learn(&d, &b, &o, NULL, NULL).loss_sum;
        for (int j = 0; j < i; j++)
            assert_true(fabs(loss[i] - loss[j]) > 1e-6);
        draft_close(&d);
    }
    acr_batch_free(&b);
    sample_free(&x);
}

/* (b) One denominator a window ------------------------------------------------------------- */

enum { N_SAMPLES = 6, LONGEST = 96 };

static void make_samples(sample *samples, source *s)
{
    static const int64_t lengths[N_SAMPLES] = {11, 3, 17, 1, 8, 13};
    static const double density[N_SAMPLES] = {0.5, 1, 0.1, 1, 0, 0.9};

    for (int i = 0; i < N_SAMPLES; i++)
        samples[i] = sample_make(s, lengths[i], density[i]);
    samples[2].mask[16] = 1;
}

/* The window's gradient when micro-batch i holds order[begin[i] .. begin[i + 1]). */
static double *window_gradient(const sample *samples, const int *order, const int *begin, int n,
                               accrue_dtype compute, double *loss)
{
    acr_eagle3_options o = options("{\"kl_div\": 0.5, \"ce\": 1.0}", 3, 0.7, false);
    int64_t window[ACCRUE_MAX_TTT_STEPS] = {0}, counts[ACCRUE_MAX_TTT_STEPS];
    acr_batch b[N_SAMPLES];
    double *g = NULL;
    draft d;

    draft_open(&d, &plain, compute, 9);
    for (int i = 0; i < n; i++) {
        pack(&b[i], d.m->real, samples, order + begin[i], begin[i + 1] - begin[i], LONGEST);
        acr_eagle3_counts(&b[i], &o, counts);
        for (int k = 0; k < o.ttt_steps; k++)
            window[k] += counts[k];
    }
    *loss = 0;
    for (int i = 0; i < n; i++) {
        *loss += learn(&d, &b[i], &o, window, NULL).loss_sum;
        acr_batch_free(&b[i]);
    }
    g = gradients(d.m);
    draft_close(&d);
    return g;
}

static void any_split_is_the_same_window(void **state)
{
    static const int forward[] = {0, 1, 2, 3, 4, 5}, mixed[] = {4, 2, 5, 0, 3, 1};
    static const int together[] = {0, 6}, alone[] = {0, 1, 2, 3, 4, 5, 6}, halves[] = {0, 2, 6},
                     thirds[] = {0, 1, 5, 6};
    static const struct {
        const int *order, *begin;
        int n;
    } splits[] = {{forward, together, 1}, {forward, alone, 6},  {mixed, together, 1},
                  {mixed, halves, 2},     {forward, thirds, 3}, {mixed, alone, 6}};
    sample samples[N_SAMPLES];
    source s = {.seed = 5};
    int64_t elements = 0;
    draft d;

    (void)state;
    make_samples(samples, &s);
    draft_open(&d, &plain, ACCRUE_F64, 9);
    elements = gradient_elements(d.m);
    draft_close(&d);
    for (int f32 = 0; f32 < 2; f32++) {
        accrue_dtype compute = f32 ? ACCRUE_F32 : ACCRUE_F64;
        double whole = 0, loss = 0, bound = f32 ? 2e-6 : 1e-12;
        double *expected = window_gradient(samples, forward, together, 1, compute, &whole);
        for (int i = 1; i < ACR_COUNT(splits); i++) {
            double *g = window_gradient(samples, splits[i].order, splits[i].begin, splits[i].n,
                                        compute, &loss);
            check_close("window's loss", loss, whole, bound);
            if (!(distance(g, expected, elements) <= bound))
                fail_msg("split %d: gradient off by %g", i, distance(g, expected, elements));
            free(g);
        }
        free(expected);
    }
    for (int i = 0; i < N_SAMPLES; i++)
        sample_free(&samples[i]);
}

/* (c), (h) Documents of a pack keep apart --------------------------------------------------- */

/* Row losses of the document that begins at `begin`: [step][row][term], NaN where there is none. */
static double *document_losses(draft *d, const acr_batch *b, const acr_eagle3_options *o,
                               int64_t begin, int64_t rows)
{
    acr_eagle3_result r;
    double *out = zeros(o->ttt_steps * rows);

    learn(d, b, o, NULL, &r);
    for (int64_t i = 0; i < o->ttt_steps * rows; i++)
        out[i] = -1;
    for (int k = 0; k < o->ttt_steps; k++) {
        const acr_step_rows *s = &r.rows.step[k];
        for (int64_t i = 0; i < s->n_draft; i++) {
            int64_t t = s->t[s->draft_row[i]] - begin;
            if (s->counted[i] && t >= 0 && t < rows)
                out[k * rows + t] = r.term_loss[k][i];
        }
    }
    return out;
}

static const accrue_dtype precisions[] = {ACCRUE_F64, ACCRUE_F32, ACCRUE_BF16};

static void documents_keep_apart(void **state)
{
    acr_eagle3_options o = options("kl_div", 4, 1, false);
    variant v = variants[3];

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++) {
        source s = {.seed = 21};
        sample second = sample_make(&s, 19, 0.6);
        double *alone = NULL;
        acr_batch b;
        draft d;
        int64_t found = 0;

        draft_open(&d, &v, precisions[p], 9);
        pack(&b, d.m->real, &second, NULL, 1, 64);
        alone = document_losses(&d, &b, &o, 0, second.n);
        acr_batch_free(&b);
        for (int64_t i = 0; i < o.ttt_steps * second.n; i++)
            found += alone[i] >= 0;
        assert_true(found > 20);
        /* Other tokens, states, masks, lengths before it; its supervision at its very start. */
        for (int i = 0; i < 6; i++) {
            sample both[2] = {sample_make(&s, 1 + 7 * i, i == 5 ? 0 : 0.3 * i), second};
            double *packed = NULL;
            pack(&b, d.m->real, both, NULL, 2, 64);
            packed = document_losses(&d, &b, &o, both[0].n, second.n);
            assert_memory_equal(packed, alone, (size_t)(o.ttt_steps * second.n) * sizeof(double));
            free(packed);
            acr_batch_free(&b);
            sample_free(&both[0]);
        }
        free(alone);
        sample_free(&second);
        draft_close(&d);
    }
}

static void packed_documents_lose_what_they_lose_alone(void **state)
{
    acr_eagle3_options o = options("ce", 3, 1, false);

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++) {
        source s = {.seed = 23};
        sample both[2] = {sample_make(&s, 14, 0.8), sample_make(&s, 9, 0.8)};
        acr_batch b;
        draft d;

        draft_open(&d, &plain, precisions[p], 9);
        for (int i = 0; i < 2; i++) {
            double *alone = NULL, *packed = NULL;
            pack(&b, d.m->real, &both[i], NULL, 1, 32);
            alone = document_losses(&d, &b, &o, 0, both[i].n);
            acr_batch_free(&b);
            pack(&b, d.m->real, both, NULL, 2, 32);
            packed = document_losses(&d, &b, &o, i ? both[0].n : 0, both[i].n);
            acr_batch_free(&b);
            assert_memory_equal(packed, alone, (size_t)(o.ttt_steps * both[i].n) * sizeof(double));
            for (int k = 1; k < o.ttt_steps; k++) /* no target past the document's end */
                for (int64_t t = both[i].n - k; t < both[i].n; t++)
                    assert_true(packed[k * both[i].n + t] < 0);
            free(alone);
            free(packed);
        }
        sample_free(&both[0]);
        sample_free(&both[1]);
        draft_close(&d);
    }
}

/* With across_documents the same two documents do read each other. */
static void across_documents_reads_across(void **state)
{
    acr_eagle3_options within = options("ce", 3, 1, false), across = options("ce", 3, 1, true);
    source s = {.seed = 23};
    sample both[2] = {sample_make(&s, 14, 1), sample_make(&s, 9, 1)};
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    acr_batch b;

    (void)state;
    pack(&b, ACR_DTYPE_F64, both, NULL, 2, 32);
    acr_eagle3_counts(&b, &within, counts);
    assert_int_equal(counts[0], 23);
    assert_int_equal(counts[2], 23 - 4);
    acr_eagle3_counts(&b, &across, counts);
    assert_int_equal(counts[0], 23);
    assert_int_equal(counts[2], 23 - 2);
    acr_batch_free(&b);
    sample_free(&both[0]);
    sample_free(&both[1]);
}

static void masked_documents_leave_no_trace(void **state)
{
    acr_eagle3_options o = options("kl_div", 3, 1, false);

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++) {
        source s = {.seed = 29};
        sample last = sample_make(&s, 15, 0.5);
        double *expected = NULL;
        int64_t n = 0;

        for (int i = 0; i < 3; i++) {
            sample both[2] = {sample_make(&s, 10 + i, 0), last};
            double *g = NULL;
            acr_batch b;
            draft d;
            draft_open(&d, &plain, precisions[p], 9);
            pack(&b, d.m->real, both, NULL, 2, 40);
            learn(&d, &b, &o, NULL, NULL);
            g = gradients(d.m);
            n = gradient_elements(d.m);
            if (!expected)
                expected = g;
            else
                assert_memory_equal(g, expected, (size_t)n * sizeof *g);
            if (g != expected)
                free(g);
            acr_batch_free(&b);
            draft_close(&d);
            sample_free(&both[0]);
        }
        assert_true(distance(expected, expected, n) < 1); /* and is not zero */
        free(expected);
        sample_free(&last);
    }
}

/* (d) ---------------------------------------------------------------------------------------- */

static void nothing_supervised(void **state)
{
    acr_eagle3_options o = options("{\"nla\": 1.0, \"lk_hybrid\": 1.0}", 3, 1, false);

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++)
        for (int across = 0; across < 2; across++) {
            source s = {.seed = 31};
            sample both[2] = {sample_make(&s, 9, 0), sample_make(&s, 4, 0)};
            accrue_metrics m;
            double *g = NULL;
            acr_batch b;
            draft d;
            o.across_documents = across;
            draft_open(&d, &plain, precisions[p], 9);
            pack(&b, d.m->real, both, NULL, 2, 16);
            m = learn(&d, &b, &o, NULL, NULL);
            assert_true(m.loss_sum <= 0 && m.loss_sum >= 0);
            assert_int_equal(m.supervised_tokens, 0);
            g = gradients(d.m);
            for (int64_t i = 0; i < gradient_elements(d.m); i++)
                assert_true(g[i] <= 0 && g[i] >= 0);
            free(g);
            acr_batch_free(&b);
            draft_close(&d);
            sample_free(&both[0]);
            sample_free(&both[1]);
        }
}

/* (e) ---------------------------------------------------------------------------------------- */

static void threads_do_not_change_a_bit(void **state)
{
    acr_eagle3_options o = options("kl_div", 3, 1, false);

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++) {
        source s = {.seed = 37};
        sample three[3] = {sample_make(&s, 61, 0.6), sample_make(&s, 83, 0.5),
                           sample_make(&s, 130, 0.9)};
        double *expected = NULL;

        for (int threads = 1; threads <= 3; threads++) {
            variant v = variants[5]; /* trains the embedding too */
            double *g = NULL;
            acr_batch b;
            draft d;
            accrue_set_threads(threads);
            draft_open(&d, &v, precisions[p], 9);
            pack(&b, d.m->real, three, NULL, 3, 300);
            learn(&d, &b, &o, NULL, NULL);
            g = gradients(d.m);
            if (expected) {
                assert_memory_equal(g, expected, (size_t)gradient_elements(d.m) * sizeof *g);
                free(g);
            } else {
                expected = g;
            }
            acr_batch_free(&b);
            draft_close(&d);
        }
        free(expected);
        for (int i = 0; i < 3; i++)
            sample_free(&three[i]);
    }
    accrue_set_threads(2);
}

/* (f) ---------------------------------------------------------------------------------------- */

static void measure(draft *d, const acr_batch *b, const acr_eagle3_options *o)
{
    double scale[ACCRUE_MAX_TTT_STEPS] = {0};
    acr_eagle3_result r;
    accrue_error e;

    acr_tape_measure(&d->t, true);
    assert_int_equal(acr_eagle3_forward(&r, d->m, &d->t, b, o, scale, &e), ACCRUE_OK);
    acr_tape_backward(&d->t);
    assert_int_equal(acr_tape_status(&d->t, &e), ACCRUE_OK);
    acr_tape_measure(&d->t, false);
}

/* Measured on the largest micro-batch, run on it once: nothing more is allocated, whatever follows,
 * and the measure is what the run takes. */
static void steady_state_allocates_nothing(void **state)
{
    enum { ROWS = 200 };
    acr_eagle3_options o = options("kl_div", 3, 1, false);

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++) {
        source s = {.seed = 41};
        sample full = sample_make(&s, ROWS, 1);
        acr_batch b;
        draft d;
        uint64_t before = 0;
        size_t high = 0;

        draft_open(&d, &variants[4], precisions[p], 9);
        pack(&b, d.m->real, &full, NULL, 1, ROWS);
        measure(&d, &b, &o);
        high = d.t.arena.high;
        assert_true(high > 0);
        assert_true(acr_arena_reserve(&d.t.arena, high));
        acr_model_zero_grad(d.m);
        learn(&d, &b, &o, NULL, NULL);
        assert_int_equal(d.t.arena.high, high);
        acr_batch_free(&b);
        for (int i = 0; i < 20; i++) {
            int n = 1 + (int)below(&s, 3);
            sample part[3];
            for (int j = 0; j < n; j++)
                part[j] = sample_make(&s, 1 + below(&s, ROWS / 3), 0.05 * i);
            pack(&b, d.m->real, part, NULL, n, ROWS);
            before = acr_allocations();
            learn(&d, &b, &o, NULL, NULL);
            if (acr_allocations() != before)
                fail_msg("micro-batch %d of %lld rows, precision %d: %llu allocations", i,
                         (long long)b.n_rows, p, (unsigned long long)(acr_allocations() - before));
            assert_int_equal(d.t.arena.high, high);
            acr_batch_free(&b);
            for (int j = 0; j < n; j++)
                sample_free(&part[j]);
        }
        draft_close(&d);
        sample_free(&full);
    }
}

/* (g) ---------------------------------------------------------------------------------------- */

static void bf16_is_close_to_f32(void **state)
{
    acr_eagle3_options o = options("kl_div", 3, 1, false);
    source s = {.seed = 43};
    sample both[2] = {sample_make(&s, 50, 0.6), sample_make(&s, 40, 0.8)};
    double *g[2] = {NULL}, loss[2] = {0};
    double dot = 0, a = 0, c = 0;
    int64_t n = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        acr_batch b;
        draft d;
        draft_open(&d, &variants[4], i ? ACCRUE_BF16 : ACCRUE_F32, 9);
        pack(&b, d.m->real, both, NULL, 2, 100);
        loss[i] = learn(&d, &b, &o, NULL, NULL).loss_sum;
        g[i] = gradients(d.m);
        n = gradient_elements(d.m);
        acr_batch_free(&b);
        draft_close(&d);
    }
    assert_true(fabs(loss[1] - loss[0]) <= 1e-2 * loss[0]);
    assert_true(fabs(loss[1] - loss[0]) > 0); /* bf16 was used at all */
    for (int64_t i = 0; i < n; i++) {
        dot += g[0][i] * g[1][i];
        a += g[0][i] * g[0][i];
        c += g[1][i] * g[1][i];
    }
    if (!(dot / sqrt(a * c) > 0.99))
        fail_msg("cosine of the gradients: %g", dot / sqrt(a * c));
    free(g[0]);
    free(g[1]);
    sample_free(&both[0]);
    sample_free(&both[1]);
}

/* A layer is used at every TTT step; its gradient is announced once, when it is complete. */
typedef struct watch {
    const acr_model *m;
    int fired[16];
    double *seen[16]; /* the group's gradients when it was announced */
} watch;

static double *group_gradients(const acr_model *m, const acr_group *g)
{
    double *out = zeros(gradient_elements(m));
    int64_t n = 0;

    for (int i = 0; i < m->n_params; i++)
        for (int64_t j = 0; m->params[i].grad && j < m->params[i].rows * m->params[i].cols;
             j++, n++)
            out[n] = m->params[i].group == g ? real_at(m, m->params[i].grad, j) : 0;
    return out;
}

static void on_ready(acr_group *group, void *payload)
{
    watch *w = payload;
    int64_t i = group - w->m->groups;

    assert_true(i >= 0 && i < w->m->n_groups);
    w->fired[i]++;
    free(w->seen[i]);
    w->seen[i] = group_gradients(w->m, group);
}

static void groups_are_ready_once(void **state)
{
    acr_eagle3_options o = options("kl_div", 3, 1, false);
    source s = {.seed = 53};
    sample x = sample_make(&s, 20, 0.7);
    watch w = {0};
    acr_batch b;
    draft d;

    (void)state;
    draft_open(&d, &variants[5], ACCRUE_F64, 9); /* two layers, trains the embedding */
    pack(&b, d.m->real, &x, NULL, 1, 20);
    w.m = d.m;
    d.t.group_ready = on_ready;
    d.t.payload = &w;
    measure(&d, &b, &o);
    for (int i = 0; i < d.m->n_groups; i++)
        assert_int_equal(w.fired[i], 0);
    learn(&d, &b, &o, NULL, NULL);
    for (int i = 0; i < d.m->n_groups; i++) {
        double *g = group_gradients(d.m, &d.m->groups[i]);
        assert_int_equal(w.fired[i], 1);
        assert_int_equal(d.m->groups[i].uses, 0);
        assert_memory_equal(w.seen[i], g, (size_t)gradient_elements(d.m) * sizeof *g);
        free(g);
        free(w.seen[i]);
    }
    acr_batch_free(&b);
    draft_close(&d);
    sample_free(&x);
}

/* Memory that runs out anywhere is a status, never a crash; the draft works again afterwards. */
static void failing_allocations(void **state)
{
    acr_eagle3_options o = options("kl_div", 2, 1, false);
    source s = {.seed = 47};
    sample x = sample_make(&s, 30, 0.7);
    acr_batch b;
    int failures = 0;
    bool done = false;

    (void)state;
    pack(&b, ACR_DTYPE_F32, &x, NULL, 1, 32);
    for (uint64_t n = 1; !done; n++) {
        double scale[2] = {0.1, 0.1};
        acr_eagle3_result r;
        accrue_error e = {0};
        accrue_status st = ACCRUE_OK;
        draft d;
        draft_open(&d, &plain, ACCRUE_F32, 9);
        acr_fail_allocation(n);
        st = acr_eagle3_forward(&r, d.m, &d.t, &b, &o, scale, &e);
        if (!st) {
            acr_tape_backward(&d.t);
            st = acr_tape_status(&d.t, &e);
        }
        acr_fail_allocation(0);
        if (st) {
            assert_int_equal(st, ACCRUE_ENOMEM);
            assert_non_null(strstr(e.message, "memory"));
            failures++;
        } else {
            done = true;
        }
        acr_tape_reset(&d.t);
        for (int i = 0; i < d.m->n_groups; i++)
            assert_int_equal(d.m->groups[i].uses, 0);
        draft_close(&d);
    }
    assert_true(failures >= 3);
    acr_batch_free(&b);
    sample_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(every_switch_matters),
        cmocka_unit_test(any_split_is_the_same_window),
        cmocka_unit_test(documents_keep_apart),
        cmocka_unit_test(packed_documents_lose_what_they_lose_alone),
        cmocka_unit_test(across_documents_reads_across),
        cmocka_unit_test(masked_documents_leave_no_trace),
        cmocka_unit_test(nothing_supervised),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(bf16_is_close_to_f32),
        cmocka_unit_test(groups_are_ready_once),
        cmocka_unit_test(failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
