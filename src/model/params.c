/* params.c - the parameters of a draft: names, shapes, groups, memory, initial values, files. */
#include "model/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMS = 24 * ACR_MAX_LAYERS, MAX_OWNED = 4 * MAX_PARAMS };

static void *own(acr_model *m, size_t bytes)
{
    void *block = m->n_owned < MAX_OWNED ? acr_calloc(1, bytes) : NULL;

    if (block)
        m->owned[m->n_owned++] = block;
    return block;
}

static acr_group *add_group(acr_model *m, const char *name)
{
    char *copy = acr_strdup(name);

    if (!copy)
        return NULL;
    m->groups[m->n_groups].name = copy;
    return &m->groups[m->n_groups++];
}

/* cols 1: a vector.  Trainable ones get their memory in lay_out, frozen ones when they are set. */
static accrue_status add_param(acr_param **out, acr_model *m, acr_group *group, bool trainable,
                               int64_t rows, int64_t cols, accrue_error *err, const char *format,
                               ...) ACR_PRINTF(8, 9);

static accrue_status add_param(acr_param **out, acr_model *m, acr_group *group, bool trainable,
                               int64_t rows, int64_t cols, accrue_error *err, const char *format,
                               ...)
{
    acr_param *p = &m->params[m->n_params];
    char name[128];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    p->name = acr_strdup(name);
    if (!p->name)
        return acr_enomem(err, sizeof name, "a parameter's name");
    m->n_params++;
    p->rows = rows;
    p->cols = cols;
    p->n_dims = cols == 1 ? 1 : 2;
    p->group = group;
    p->trainable = trainable;
    *out = p;
    return ACCRUE_OK;
}

static accrue_status add_layer(acr_model *m, int i, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_config *c = &m->config;
    struct acr_layer *l = &m->layer[i];
    int64_t h = c->hidden_size;
    int64_t q = (int64_t)c->n_heads * c->head_dim;
    int64_t kv = (int64_t)c->n_kv_heads * c->head_dim;
    int64_t in = i == 0 ? 2 * h : h; /* the first layer reads [embedding ; hidden] */
    char name[32];
    acr_group *g = NULL;

    snprintf(name, sizeof name, "layers.%d", i);
    g = add_group(m, name);
    if (!g)
        return acr_enomem(err, sizeof name, "a parameter group");
#define ADD(field, rows, cols, suffix)                                                             \
    ACR_TRY(add_param(&l->field, m, g, true, rows, cols, err, "layers.%d." suffix, i))
    ADD(q, q, in, "self_attn.q_proj.weight");
    ADD(k, kv, in, "self_attn.k_proj.weight");
    ADD(v, kv, in, "self_attn.v_proj.weight");
    ADD(o, h, q, "self_attn.o_proj.weight");
    if (c->attention_bias) {
        ADD(q_bias, q, 1, "self_attn.q_proj.bias");
        ADD(k_bias, kv, 1, "self_attn.k_proj.bias");
        ADD(v_bias, kv, 1, "self_attn.v_proj.bias");
        ADD(o_bias, h, 1, "self_attn.o_proj.bias");
    }
    if (c->arch == ACR_ARCH_QWEN3) {
        ADD(q_norm, c->head_dim, 1, "self_attn.q_norm.weight");
        ADD(k_norm, c->head_dim, 1, "self_attn.k_norm.weight");
    }
    ADD(gate, c->intermediate_size, h, "mlp.gate_proj.weight");
    ADD(up, c->intermediate_size, h, "mlp.up_proj.weight");
    ADD(down, h, c->intermediate_size, "mlp.down_proj.weight");
    ADD(input_norm, h, 1, "input_layernorm.weight");
    ADD(post_norm, h, 1, "post_attention_layernorm.weight");
    if (i == 0)
        ADD(hidden_norm, h, 1, "hidden_norm.weight");
#undef ADD

cleanup:
    return st;
}

static accrue_status add_all(acr_model *m, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_config *c = &m->config;
    int64_t h = c->hidden_size;
    acr_group *fc = add_group(m, "fc");
    acr_group *norm = add_group(m, "norm");
    acr_group *embed = add_group(m, "embed_tokens");
    acr_group *head = add_group(m, "lm_head");

    if (!fc || !norm || !embed || !head)
        return acr_enomem(err, sizeof(acr_group), "a parameter group");
    ACR_TRY(add_param(&m->top.fc, m, fc, true, h, c->n_aux * h, err, "fc.weight"));
    if (c->norm_before_fc)
        ACR_TRY(
            add_param(&m->top.input_norm, m, fc, true, c->n_aux * h, 1, err, "input_norm.weight"));
    for (int i = 0; c->fc_norm && i < c->n_aux; i++)
        ACR_TRY(add_param(&m->top.fc_norm[i], m, fc, true, h, 1, err, "fc_norm.%d.weight", i));
    for (int i = 0; i < c->n_layers; i++)
        ACR_TRY(add_layer(m, i, err));
    ACR_TRY(add_param(&m->top.norm, m, norm, true, h, 1, err, "norm.weight"));
    ACR_TRY(add_param(&m->top.embed, m, embed, c->embed_requires_grad, c->vocab_size, h, err,
                      "embed_tokens.weight"));
    ACR_TRY(add_param(&m->top.head, m, head, false, c->draft_vocab_size, h, err, "lm_head.weight"));
    ACR_TRY(add_param(&m->top.verifier_norm, m, head, false, h, 1, err, "verifier_norm.weight"));
    ACR_TRY(add_param(&m->top.verifier_head, m, head, false, c->draft_vocab_size, h, err,
                      "verifier_lm_head.weight"));

cleanup:
    return st;
}

/* Memory ---------------------------------------------------------------------------------- */

static int64_t elements(const acr_param *p)
{
    return p->rows * p->cols;
}

/* Offsets of the group's matrices, or of its vectors, behind what the group has already. */
static void place_params(acr_model *m, acr_group *g, bool matrices)
{
    const int64_t unit = ACR_ALIGN / (int64_t)acr_dtype_bytes(m->real);

    for (int i = 0; i < m->n_params; i++) {
        acr_param *p = &m->params[i];
        if (!p->trainable || p->group != g || (p->cols > 1) != matrices)
            continue;
        p->offset = g->n;
        g->n += (elements(p) + unit - 1) / unit * unit;
    }
}

/* The end of a block that is nearest to element `at` of the group's arrays. */
static int64_t nearest_cut(const acr_model *m, const acr_group *g, int64_t at)
{
    int64_t best = g->n;

    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        for (int64_t b = 0; p->trainable && p->group == g && b < elements(p); b += ACR_BLOCK)
            if (llabs(p->offset + b - at) < llabs(best - at))
                best = p->offset + b;
    }
    return best;
}

static accrue_status cut_group(acr_model *m, acr_group *g, accrue_error *err)
{
    const acr_sharding *s = &m->sharding;
    int64_t *cut = own(m, ((size_t)s->ranks + 1) * sizeof *cut);

    if (!cut)
        return acr_enomem(err, (size_t)s->ranks * sizeof *cut, "the ranks' shares");
    for (int r = 0; r <= s->ranks; r++)
        cut[r] = r == s->ranks ? g->n : r ? nearest_cut(m, g, g->n * r / s->ranks) : 0;
    g->cut = cut;
    return ACCRUE_OK;
}

static accrue_status allocate_group(acr_model *m, acr_group *g, accrue_error *err)
{
    const acr_sharding *s = &m->sharding;
    size_t bytes = 0;

    place_params(m, g, true);
    g->n_matrices = g->n;
    place_params(m, g, false);
    if (cut_group(m, g, err))
        return ACCRUE_ENOMEM;
    bytes = (size_t)(g->cut[s->rank + 1] - g->cut[s->rank]) * acr_dtype_bytes(m->real);
    g->master = own(m, bytes);
    g->accumulator = own(m, bytes);
    if (!g->master || !g->accumulator)
        return acr_enomem(err, 2 * bytes, g->name);
    return ACCRUE_OK;
}

static accrue_status lay_out(acr_model *m, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t real = acr_dtype_bytes(m->real);

    for (int i = 0; i < m->n_groups; i++)
        ACR_TRY(allocate_group(m, &m->groups[i], err));
    for (int i = 0; i < m->n_params && m->sharding.ranks == 1; i++) {
        acr_param *p = &m->params[i];
        if (!p->trainable)
            continue;
        p->group->grad = p->group->accumulator;
        p->master = (char *)p->group->master + (size_t)p->offset * real;
        p->grad = (char *)p->group->grad + (size_t)p->offset * real;
        if (m->compute == ACCRUE_BF16 && p->cols > 1) {
            p->bf16 = own(m, (size_t)elements(p) * sizeof *p->bf16);
            if (!p->bf16)
                ACR_TRY(acr_enomem(err, (size_t)elements(p) * sizeof *p->bf16, p->name));
        }
    }

cleanup:
    return st;
}

static int64_t within(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

acr_share acr_model_share(const acr_model *m, const acr_param *p)
{
    const acr_group *g = p->group;
    const size_t real = acr_dtype_bytes(m->real);
    const int64_t first = g->cut[m->sharding.rank], last = g->cut[m->sharding.rank + 1];
    acr_share s = {.begin = within(first - p->offset, 0, elements(p))};
    size_t at = (size_t)(p->offset + s.begin > first ? p->offset + s.begin - first : 0) * real;

    s.n = within(last - p->offset, s.begin, elements(p)) - s.begin;
    s.master = (char *)g->master + (s.n ? at : 0);
    s.accumulator = (char *)g->accumulator + (s.n ? at : 0);
    return s;
}

/* Frequencies of the rotation, theta^(-2i/d); llama3 stretches the slow ones (Llama 3.1). */
static double rope_frequency(const acr_rope_config *r, int i, int head_dim)
{
    const double two_pi = 6.283185307179586;
    double f = pow(r->theta, -2.0 * i / head_dim);
    double wavelength = two_pi / f;
    double smooth = 0;

    if (!r->llama3 || wavelength < r->original_max_position / r->high_freq_factor)
        return f;
    if (wavelength > r->original_max_position / r->low_freq_factor)
        return f / r->factor;
    smooth = (r->original_max_position / wavelength - r->low_freq_factor) /
             (r->high_freq_factor - r->low_freq_factor);
    return f * ((1.0 - smooth) / r->factor + smooth);
}

/* In f32 the angle itself is rounded to f32, as every engine that serves the draft does. */
void acr_rope_fill(acr_rope_table *t, const acr_rope_config *r, acr_dtype real)
{
    const int half = t->head_dim / 2;

    for (int i = 0; i < half; i++) {
        double f = rope_frequency(r, i, t->head_dim);
        for (int64_t p = 0; p < t->positions; p++) {
            int64_t at = p * half + i;
            if (real == ACR_DTYPE_F64) {
                ((double *)t->cos)[at] = cos((double)p * f);
                ((double *)t->sin)[at] = sin((double)p * f);
            } else {
                double angle = (double)((float)p * (float)f);
                ((float *)t->cos)[at] = (float)cos(angle);
                ((float *)t->sin)[at] = (float)sin(angle);
            }
        }
    }
}

static accrue_status make_rope(acr_model *m, int64_t positions, accrue_error *err)
{
    int half = m->config.head_dim / 2;
    size_t bytes = (size_t)positions * (size_t)half * acr_dtype_bytes(m->real);

    m->rope.positions = positions;
    m->rope.head_dim = m->config.head_dim;
    m->rope.cos = own(m, bytes);
    m->rope.sin = own(m, bytes);
    if (!m->rope.cos || !m->rope.sin)
        return acr_enomem(err, 2 * bytes, "the rotary tables");
    acr_rope_fill(&m->rope, &m->config.rope, m->real);
    return ACCRUE_OK;
}

accrue_status acr_model_create(acr_model **out, acr_config *config, acr_vocab *vocab,
                               accrue_dtype compute, int64_t positions,
                               const acr_sharding *sharding, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_model *m = acr_calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return acr_enomem(err, sizeof *m, "the model");
    m->config = *config;
    m->vocab = *vocab;
    memset(config, 0, sizeof *config);
    memset(vocab, 0, sizeof *vocab);
    m->compute = compute;
    m->real = acr_real_of(compute);
    m->sharding = sharding ? *sharding : (acr_sharding){.ranks = 1};
    m->params = acr_calloc(MAX_PARAMS, sizeof *m->params);
    m->groups = acr_calloc(ACR_MAX_GROUPS, sizeof *m->groups);
    m->owned = acr_calloc(MAX_OWNED, sizeof *m->owned);
    if (!m->params || !m->groups || !m->owned) {
        st = acr_enomem(err, MAX_PARAMS * sizeof *m->params, "the parameter table");
        goto cleanup;
    }
    ACR_TRY(add_all(m, err));
    ACR_TRY(lay_out(m, err));
    ACR_TRY(make_rope(m, positions, err));
    *out = m;
    m = NULL;

cleanup:
    acr_model_free(m);
    return st;
}

void acr_model_free(acr_model *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_owned; i++)
        acr_free(m->owned[i]);
    for (int i = 0; m->params && i < m->n_params; i++)
        acr_free(m->params[i].name);
    for (int i = 0; m->groups && i < m->n_groups; i++)
        acr_free((char *)(uintptr_t)m->groups[i].name);
    acr_free(m->owned);
    acr_free(m->params);
    acr_free(m->groups);
    acr_weights_close(m->verifier);
    acr_weights_close(m->source);
    acr_config_free(&m->config);
    acr_vocab_free(&m->vocab);
    acr_free(m);
}

acr_param *acr_model_find(acr_model *m, const char *name)
{
    for (int i = 0; i < m->n_params; i++)
        if (strcmp(m->params[i].name, name) == 0)
            return &m->params[i];
    return NULL;
}

static bool in_checkpoint(const acr_model *m, const acr_param *p)
{
    return p != m->top.verifier_norm && p != m->top.verifier_head;
}

int64_t acr_model_elements(const acr_model *m, bool trainable_only)
{
    int64_t n = 0;

    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        if (in_checkpoint(m, p) && (p->trainable || !trainable_only))
            n += p->rows * p->cols;
    }
    return n;
}

typedef struct initial {
    const acr_model *m;
    const acr_param *p;
    acr_share own;
    uint64_t seed, key;
} initial;

/* One block of a parameter: each element is a function of its index alone. */
static void init_block(int64_t block, void *ctx)
{
    const double deviation = 0.02; /* the peer's, whatever initializer_range says */
    const initial *x = ctx;
    const int64_t first = block * ACR_BLOCK;
    const int64_t last = first + ACR_BLOCK < x->own.n ? first + ACR_BLOCK : x->own.n;
    const double constant = strstr(x->p->name, ".bias") ? 0.0 : 1.0;

    for (int64_t j = first; j < last; j++) {
        double v = constant;
        if (x->p->cols > 1)
            v = deviation *
                acr_random_normal(x->seed, ACR_RANDOM_INIT, x->key, (uint64_t)(x->own.begin + j));
        if (x->m->real == ACR_DTYPE_F64)
            ((double *)x->own.master)[j] = v;
        else
            ((float *)x->own.master)[j] = (float)v;
    }
}

void acr_model_init(acr_model *m, uint64_t seed)
{
    for (int i = 0; i < m->n_params; i++) {
        acr_param *p = &m->params[i];
        initial x = {.m = m, .p = p, .seed = seed, .key = acr_hash_string(p->name)};
        if (!p->trainable || p == m->top.embed)
            continue;
        x.own = acr_model_share(m, p);
        acr_parallel((x.own.n + ACR_BLOCK - 1) / ACR_BLOCK, init_block, &x);
    }
    acr_model_refresh(m);
}

/* A frozen weight is kept once, in the form that the kernels read: the norm as a master, product
 * operands in bf16 or real, the embedding table in whatever type its file has. */
static accrue_status set_frozen(acr_model *m, acr_param *p, const acr_tensor *t, accrue_error *err)
{
    int64_t n = p->rows * p->cols;
    bool as_bf16 = m->compute == ACCRUE_BF16 && p->cols > 1;
    acr_dtype want = as_bf16 ? ACR_DTYPE_BF16 : m->real;
    bool aligned = (uintptr_t)t->data % acr_dtype_bytes(t->dtype) == 0;
    void *copy = NULL;

    if (p == m->top.embed && aligned) {
        p->frozen = t->data;
        p->frozen_type = t->dtype;
        return ACCRUE_OK;
    }
    if (want == t->dtype && aligned && p->cols > 1) {
        p->frozen = t->data;
    } else {
        copy = own(m, (size_t)n * acr_dtype_bytes(want));
        if (!copy)
            return acr_enomem(err, (size_t)n * acr_dtype_bytes(want), p->name);
        acr_convert(want, copy, t->dtype, t->data, n);
        p->frozen = copy;
    }
    p->frozen_type = want;
    if (as_bf16)
        p->bf16 = p->frozen;
    if (p->cols == 1)
        p->master = (void *)(uintptr_t)p->frozen;
    return ACCRUE_OK;
}

static bool same_shape(const acr_param *p, const acr_tensor *t)
{
    return t->n_dims == p->n_dims && t->dims[0] == p->rows &&
           (p->n_dims == 1 || t->dims[1] == p->cols);
}

accrue_status acr_param_set(acr_model *m, acr_param *p, const acr_tensor *t, const char *file,
                            accrue_error *err)
{
    int64_t dims[2] = {p->rows, p->cols};
    int64_t bad = -1;
    acr_share own_share;
    char got[ACR_SHAPE_TEXT], expected[ACR_SHAPE_TEXT];

    if (!acr_dtype_is_float(t->dtype))
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: %s is %s, a float type expected", file, t->name,
                        acr_dtype_name(t->dtype));
    if (!same_shape(p, t))
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: %s: %s in file, %s expected", file, t->name,
                        acr_shape_text(got, t->n_dims, t->dims),
                        acr_shape_text(expected, p->n_dims, dims));
    bad = acr_find_nonfinite(t->dtype, t->data, p->rows * p->cols);
    if (bad >= 0)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %s: element %lld is not finite", file, t->name,
                        (long long)bad);
    if (!p->trainable)
        return set_frozen(m, p, t, err);
    own_share = acr_model_share(m, p);
    acr_convert(m->real, own_share.master, t->dtype,
                (const char *)t->data + (size_t)own_share.begin * acr_dtype_bytes(t->dtype),
                own_share.n);
    return ACCRUE_OK;
}

accrue_status acr_model_load(acr_model *m, acr_weights *w, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    m->source = w;
    for (int i = 0; i < m->n_params; i++) {
        acr_param *p = &m->params[i];
        const acr_tensor *t = acr_weights_find(w, p->name);
        if (t)
            ACR_TRY(acr_param_set(m, p, t, name, err));
        else if (p->trainable && p != m->top.embed) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: tensor %s is missing", name, p->name);
            goto cleanup;
        }
    }
    acr_model_refresh(m);

cleanup:
    return st;
}

static const acr_tensor *find_any(const acr_weights *w, const char *const *names)
{
    const acr_tensor *t = NULL;

    for (; *names && !t; names++)
        t = acr_weights_find(w, *names);
    return t;
}

/* The rows of the verifier's head that the draft vocabulary keeps, in the type of its file. */
static accrue_status draft_head(acr_tensor *out, acr_model *m, const acr_tensor *head,
                                const char *name, accrue_error *err)
{
    const acr_config *c = &m->config;
    size_t row = (size_t)c->hidden_size * acr_dtype_bytes(head->dtype);
    int64_t dims[2] = {c->vocab_size, c->hidden_size};
    char got[ACR_SHAPE_TEXT], expected[ACR_SHAPE_TEXT];
    char *rows = NULL;

    *out = *head;
    if (head->n_dims != 2 || head->dims[0] != dims[0] || head->dims[1] != dims[1])
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: %s: %s in file, %s expected", name, head->name,
                        acr_shape_text(got, head->n_dims, head->dims),
                        acr_shape_text(expected, 2, dims));
    out->dims[0] = c->draft_vocab_size;
    if (!m->vocab.d2t)
        return ACCRUE_OK;
    rows = own(m, (size_t)c->draft_vocab_size * row);
    if (!rows)
        return acr_enomem(err, (size_t)c->draft_vocab_size * row, "the draft head");
    for (int64_t i = 0; i < c->draft_vocab_size; i++)
        memcpy(rows + (size_t)i * row,
               (const char *)head->data + (size_t)(i + m->vocab.d2t[i]) * row, row);
    out->data = rows;
    return ACCRUE_OK;
}

accrue_status acr_model_load_verifier(acr_model *m, acr_weights *w, const char *name,
                                      accrue_error *err)
{
    static const char *const embed_names[] = {
        "model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
        "language_model.model.embed_tokens.weight", "embed_tokens.weight", NULL};
    static const char *const norm_names[] = {
        "model.norm.weight", "model.language_model.norm.weight", "language_model.model.norm.weight",
        "norm.weight", NULL};
    static const char *const head_names[] = {"lm_head.weight", "language_model.lm_head.weight",
                                             NULL};
    accrue_status st = ACCRUE_OK;
    const acr_tensor *embed = find_any(w, embed_names);
    const acr_tensor *norm = find_any(w, norm_names);
    const acr_tensor *head = find_any(w, head_names);
    acr_tensor rows;

    m->verifier = w;
    if (!head)
        head = embed; /* tied */
    if (!embed || !norm) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: tensor %s is missing", name,
                      embed ? norm_names[0] : embed_names[0]);
        goto cleanup;
    }
    if (!m->source || !acr_weights_find(m->source, m->top.embed->name))
        ACR_TRY(acr_param_set(m, m->top.embed, embed, name, err));
    ACR_TRY(acr_param_set(m, m->top.verifier_norm, norm, name, err));
    ACR_TRY(draft_head(&rows, m, head, name, err));
    ACR_TRY(acr_param_set(m, m->top.verifier_head, &rows, name, err));
    if (!m->top.head->frozen) {
        m->top.head->frozen = m->top.verifier_head->frozen;
        m->top.head->frozen_type = m->top.verifier_head->frozen_type;
        m->top.head->bf16 = m->top.verifier_head->bf16;
    }
    acr_model_refresh(m);

cleanup:
    return st;
}

void acr_model_refresh(acr_model *m)
{
    for (int i = 0; i < m->n_params; i++) {
        acr_param *p = &m->params[i];
        if (p->trainable && p->bf16 && p->master)
            acr_convert(ACR_DTYPE_BF16, (void *)(uintptr_t)p->bf16, m->real, p->master,
                        p->rows * p->cols);
    }
}

void acr_model_zero_grad(acr_model *m)
{
    for (int i = 0; i < m->n_params; i++) {
        acr_param *p = &m->params[i];
        if (p->grad)
            memset(p->grad, 0, (size_t)elements(p) * acr_dtype_bytes(m->real));
    }
}
