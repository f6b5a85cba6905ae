/* export_plan.c - what of a draft becomes which tensor of a GGUF file, and what cannot. */
#include "convert/export_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { AUX = 3 }; /* layers of the verifier that llama.cpp hands to a draft */

static accrue_status refuse(const acr_export *e, accrue_error *err, const char *key,
                            const char *value, const char *why)
{
    return acr_fail(err, ACCRUE_ENOTSUP, "%s: \"%s\" is %s: %s", e->config_name, key, value, why);
}

accrue_status acr_export_check(acr_export *e, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_config *c = &e->draft;
    char number[24];

    snprintf(number, sizeof number, "%d", c->n_layers);
    if (c->n_layers != 1)
        return refuse(e, err, "num_hidden_layers", number, "llama.cpp has EAGLE-3 drafts of 1");
    if (c->arch == ACR_ARCH_QWEN3)
        return refuse(e, err, "model_type", "qwen3",
                      "llama.cpp's EAGLE-3 drafts have no norms of queries and keys");
    if (c->attention_bias)
        return refuse(e, err, "attention_bias", "true",
                      "llama.cpp's EAGLE-3 drafts have no biases");
    if (c->fc_norm)
        return refuse(e, err, "fc_norm", "true",
                      "llama.cpp has one norm over all auxiliary states (norm_before_fc) or none");
    snprintf(number, sizeof number, "%d", c->n_aux);
    if (c->n_aux != AUX)
        return acr_fail(err, ACCRUE_ENOTSUP,
                        "%s: %s auxiliary layers: llama.cpp's EAGLE-3 drafts have %d",
                        e->config_name, number, AUX);
    if (c->norm_output)
        ACR_TRY(acr_export_lose(
            e, "norm_output", err,
            "llama.cpp feeds the state before the last norm to the next drafted token, where "
            "training fed the one behind it: from the second token on it drafts worse. Train with "
            "--no-norm-output for llama.cpp"));
    if (c->sliding[0])
        ACR_TRY(acr_export_lose(
            e, "sliding_window", err,
            "llama.cpp's draft sees the whole context, where training saw %lld tokens: beyond "
            "these it drafts otherwise. --full-attention-indices 0 trains without a window",
            (long long)c->sliding_window));

cleanup:
    return st;
}

/* Tensors ---------------------------------------------------------------------------------- */

typedef struct rule {
    const char *from, *to;
    int n_dims;
    int64_t dims[2];
    int heads;
    bool absent;   /* this draft has none */
    bool optional; /* the verifier's stands in */
} rule;

static acr_gguf_type type_of(const acr_export *e, const rule *r)
{
    if (r->n_dims == 1)
        return ACR_GGUF_F32;
    switch (e->opt->dtype) {
    case ACCRUE_EXPORT_F32: return ACR_GGUF_F32;
    case ACCRUE_EXPORT_F16: return ACR_GGUF_F16;
    case ACCRUE_EXPORT_Q8_0: /* a row is whole blocks */
        return r->dims[1] % 32 == 0 ? ACR_GGUF_Q8_0 : ACR_GGUF_F16;
    default: return ACR_GGUF_BF16;
    }
}

static void add(acr_export *e, const char *name, acr_gguf_type type, int n_dims,
                const int64_t *dims, acr_export_tensor source)
{
    acr_gguf_tensor *t = &e->tensors[e->n];
    int64_t elements = 1;

    *t = (acr_gguf_tensor){.name = name, .type = type, .n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) {
        t->dims[i] = dims[i];
        elements *= dims[i];
    }
    t->bytes = acr_gguf_bytes(type, elements);
    e->sources[e->n++] = source;
}

static accrue_status add_weight(acr_export *e, const acr_tensor *t, const rule *r,
                                accrue_error *err)
{
    acr_gguf_type type = type_of(e, r);
    char got[ACR_SHAPE_TEXT], wanted[ACR_SHAPE_TEXT];
    bool same = t->n_dims == r->n_dims;

    for (int i = 0; same && i < r->n_dims; i++)
        same = t->dims[i] == r->dims[i];
    if (!same || !acr_dtype_is_float(t->dtype))
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: tensor '%s' is %s %s, floating point %s expected", e->opt->checkpoint,
                        t->name, acr_dtype_name(t->dtype), acr_shape_text(got, t->n_dims, t->dims),
                        acr_shape_text(wanted, r->n_dims, r->dims));
    if (r->n_dims == 2 && r->dims[1] > e->columns)
        e->columns = r->dims[1];
    if (r->n_dims == 1 && r->dims[0] > e->columns)
        e->columns = r->dims[0];
    add(e, r->to, type, r->n_dims, r->dims, (acr_export_tensor){.from = t, .heads = r->heads});
    if (type == ACR_GGUF_F16 && e->opt->dtype == ACCRUE_EXPORT_Q8_0)
        return acr_export_lose(e, r->to, err,
                               "its rows of %lld are no multiple of Q8_0's blocks of 32: it is F16",
                               (long long)r->dims[1]);
    return ACCRUE_OK;
}

/* The offsets as verifier ids. */
static accrue_status read_ids(acr_export *e, const acr_tensor *t, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t n = e->draft.draft_vocab_size, vocab = e->draft.vocab_size;
    uint8_t *seen = NULL;

    if ((t->dtype != ACR_DTYPE_I64 && t->dtype != ACR_DTYPE_I32) || acr_tensor_elements(t) != n)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: tensor 'd2t' is %s of %lld, I64 or I32 of %lld expected",
                        e->opt->checkpoint, acr_dtype_name(t->dtype),
                        (long long)acr_tensor_elements(t), (long long)n);
    e->ids = acr_calloc((size_t)n, sizeof *e->ids);
    seen = acr_calloc((size_t)vocab, 1);
    if (!e->ids || !seen) {
        st = acr_enomem(err, (size_t)n * sizeof *e->ids, "the vocabulary map");
        goto cleanup;
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t narrow = 0;
        int64_t id = 0;
        if (t->dtype == ACR_DTYPE_I64) {
            memcpy(&id, (const uint8_t *)t->data + i * 8, sizeof id);
        } else {
            memcpy(&narrow, (const uint8_t *)t->data + i * 4, sizeof narrow);
            id = narrow;
        }
        if (id < -i || id >= vocab - i) {
            st = acr_fail(err, ACCRUE_EMISMATCH,
                          "%s: tensor 'd2t': entry %lld is %lld, which is no id of a vocabulary "
                          "of %lld",
                          e->opt->checkpoint, (long long)i, (long long)id, (long long)vocab);
            goto cleanup;
        }
        e->ids[i] = id + i;
        if (seen[id + i]++) {
            st = acr_fail(err, ACCRUE_EMISMATCH, "%s: tensor 'd2t': id %lld is there twice",
                          e->opt->checkpoint, (long long)(id + i));
            goto cleanup;
        }
    }

cleanup:
    acr_free(seen);
    return st;
}

/* Every step is in f32, because the converter's are. */
void acr_export_rope(float *out, const acr_rope_config *r, int head_dim)
{
    const float pi2 = (float)(2 * 3.14159265358979323846);
    const float longest = (float)(r->original_max_position / r->low_freq_factor);
    const float shortest = (float)(r->original_max_position / r->high_freq_factor);
    const float span = (float)(r->high_freq_factor - r->low_freq_factor);
    const float factor = (float)r->factor;

    for (int i = 0; i < head_dim / 2; i++) {
        const float exponent = (float)(2 * i) / (float)head_dim;
        const float power = (float)pow((double)(float)r->theta, (double)exponent);
        const float frequency = 1.0F / power;
        const float wave = 1.0F / frequency * pi2;
        if (wave < shortest) {
            out[i] = 1;
        } else if (wave > longest) {
            out[i] = factor;
        } else {
            float part = 1.0F / wave * (float)r->original_max_position;
            float smooth = (part - (float)r->low_freq_factor) / span;
            float kept = (1.0F - smooth) / factor;
            out[i] = 1.0F / (kept + smooth);
        }
    }
}

static accrue_status add_rope(acr_export *e, accrue_error *err)
{
    const int64_t n = e->draft.head_dim / 2;

    e->rope = acr_calloc((size_t)n, sizeof *e->rope);
    if (!e->rope)
        return acr_enomem(err, (size_t)n * sizeof *e->rope, "the rope factors");
    acr_export_rope(e->rope, &e->draft.rope, e->draft.head_dim);
    add(e, "rope_freqs.weight", ACR_GGUF_F32, 1, &n, (acr_export_tensor){.values = e->rope});
    return ACCRUE_OK;
}

static accrue_status check_complete(const acr_export *e, const rule *rules, int n,
                                    accrue_error *err)
{
    for (int i = 0; i < n; i++) {
        const rule *r = &rules[i];
        char shape[ACR_SHAPE_TEXT];
        if (!r->absent && !r->optional && !acr_weights_find(e->weights, r->from))
            return acr_fail(err, ACCRUE_EMISMATCH, "%s: tensor '%s' is missing, %s expected",
                            e->opt->checkpoint, r->from, acr_shape_text(shape, r->n_dims, r->dims));
    }
    return ACCRUE_OK;
}

static accrue_status plan_weights(acr_export *e, const rule *rules, int n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(check_complete(e, rules, n, err));
    for (int i = 0; i < acr_weights_count(e->weights); i++) {
        const acr_tensor *t = acr_weights_at(e->weights, i);
        const rule *r = NULL;
        for (int k = 0; k < n && !r; k++)
            if (!rules[k].absent && strcmp(rules[k].from, t->name) == 0)
                r = &rules[k];
        if (!r) {
            st = acr_fail(err, ACCRUE_EMISMATCH,
                          "%s: tensor '%s' has no place in llama.cpp's EAGLE-3 drafts",
                          e->opt->checkpoint, t->name);
            goto cleanup;
        }
        if (r->to)
            ACR_TRY(add_weight(e, t, r, err));
        else if (strcmp(t->name, "d2t") == 0)
            ACR_TRY(read_ids(e, t, err));
    }

cleanup:
    return st;
}

#define LAYER "layers.0."
#define BLOCK "blk.0."
/* The last argument is another member. */
#define VECTOR(name, gguf, n, ...)                                                                 \
    (rule)                                                                                         \
    {                                                                                              \
        .from = name, .to = gguf, .n_dims = 1, .dims = {n}, __VA_ARGS__                            \
    }
#define MATRIX(name, gguf, rows, columns, ...)                                                     \
    (rule)                                                                                         \
    {                                                                                              \
        .from = name, .to = gguf, .n_dims = 2, .dims = {rows, columns}, __VA_ARGS__                \
    }

accrue_status acr_export_plan(acr_export *e, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_config *c = &e->draft;
    const int64_t h = c->hidden_size, inner = c->intermediate_size;
    const int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    const bool whole = c->draft_vocab_size == c->vocab_size;
    const int64_t n_ids = c->draft_vocab_size;
    const rule rules[] = {
        VECTOR("d2t", NULL, n_ids, .optional = whole),
        VECTOR("t2d", NULL, c->vocab_size, .optional = true),
        MATRIX("embed_tokens.weight", "token_embd.weight", c->vocab_size, h, .optional = true),
        MATRIX("fc.weight", "fc.weight", h, AUX * h, .heads = 0),
        VECTOR("input_norm.weight", "enc.output_norm.weight", AUX * h,
               .absent = !c->norm_before_fc),
        VECTOR(LAYER "hidden_norm.weight", BLOCK "attn_norm_2.weight", h, .heads = 0),
        VECTOR(LAYER "input_layernorm.weight", BLOCK "attn_norm.weight", h, .heads = 0),
        MATRIX(LAYER "mlp.down_proj.weight", BLOCK "ffn_down.weight", h, inner, .heads = 0),
        MATRIX(LAYER "mlp.gate_proj.weight", BLOCK "ffn_gate.weight", inner, h, .heads = 0),
        MATRIX(LAYER "mlp.up_proj.weight", BLOCK "ffn_up.weight", inner, h, .heads = 0),
        VECTOR(LAYER "post_attention_layernorm.weight", BLOCK "ffn_norm.weight", h, .heads = 0),
        MATRIX(LAYER "self_attn.k_proj.weight", BLOCK "attn_k.weight", kv, 2 * h,
               .heads = c->n_kv_heads),
        MATRIX(LAYER "self_attn.o_proj.weight", BLOCK "attn_output.weight", h, q, .heads = 0),
        MATRIX(LAYER "self_attn.q_proj.weight", BLOCK "attn_q.weight", q, 2 * h,
               .heads = c->n_heads),
        MATRIX(LAYER "self_attn.v_proj.weight", BLOCK "attn_v.weight", kv, 2 * h, .heads = 0),
        MATRIX("lm_head.weight", "output.weight", n_ids, h, .optional = whole),
        VECTOR("norm.weight", "output_norm.weight", h, .heads = 0),
    };

    if (c->rope.llama3)
        ACR_TRY(add_rope(e, err));
    ACR_TRY(plan_weights(e, rules, ACR_COUNT(rules), err));
    if (e->ids)
        add(e, "d2t", ACR_GGUF_I64, 1, &n_ids, (acr_export_tensor){.values = e->ids});
    e->row = acr_calloc((size_t)e->columns, sizeof *e->row);
    if (!e->row)
        st = acr_enomem(err, (size_t)e->columns * sizeof *e->row, "a row");

cleanup:
    return st;
}

int64_t acr_export_elements(const acr_export *e)
{
    int64_t sum = 0;

    for (int i = 0; i < e->n; i++) {
        int64_t n = 1;
        for (int d = 0; d < e->tensors[i].n_dims; d++)
            n *= e->tensors[i].dims[d];
        sum += n;
    }
    return sum;
}
