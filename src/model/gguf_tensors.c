/* gguf_tensors.c - a GGUF file's tensors under the names, shapes and layouts of a Hugging Face
 * folder.
 *
 * llama's q and k rows lie in GGUF so that the pair which RoPE turns together is row 2i and 2i + 1
 * of a head; Hugging Face has it i and i + half.  qwen2's and qwen3's are as Hugging Face's. */
#include "model/pretrained.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME = 96,
    OF_ALL = ACR_GGUF_LLAMA | ACR_GGUF_QWEN2 | ACR_GGUF_QWEN3,
    ATTENTION_BIAS = 8, /* where the model has them */
    MLP_BIAS = 16,
    HEAD = 32, /* where it is not the embedding */
    PERMUTED_Q = 64,
    PERMUTED_K = 128
};

/* Dimensions: v vocabulary, h hidden, q and k all heads', d one head's, f feed-forward. */
typedef struct role {
    const char *from, *to, *dims;
    unsigned archs, flags;
} role;

static const role model_roles[] = {
    {"token_embd.weight", "model.embed_tokens.weight", "vh", OF_ALL, 0},
    {"output_norm.weight", "model.norm.weight", "h", OF_ALL, 0},
    {"output.weight", "lm_head.weight", "vh", OF_ALL, HEAD},
};

static const role layer_roles[] = {
    {"attn_norm.weight", "input_layernorm.weight", "h", OF_ALL, 0},
    {"ffn_norm.weight", "post_attention_layernorm.weight", "h", OF_ALL, 0},
    {"attn_q.weight", "self_attn.q_proj.weight", "qh", OF_ALL, PERMUTED_Q},
    {"attn_k.weight", "self_attn.k_proj.weight", "kh", OF_ALL, PERMUTED_K},
    {"attn_v.weight", "self_attn.v_proj.weight", "kh", OF_ALL, 0},
    {"attn_output.weight", "self_attn.o_proj.weight", "hq", OF_ALL, 0},
    {"attn_q.bias", "self_attn.q_proj.bias", "q", OF_ALL, ATTENTION_BIAS | PERMUTED_Q},
    {"attn_k.bias", "self_attn.k_proj.bias", "k", OF_ALL, ATTENTION_BIAS | PERMUTED_K},
    {"attn_v.bias", "self_attn.v_proj.bias", "k", OF_ALL, ATTENTION_BIAS},
    {"attn_output.bias", "self_attn.o_proj.bias", "h", ACR_GGUF_LLAMA | ACR_GGUF_QWEN3,
     ATTENTION_BIAS},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", "d", ACR_GGUF_QWEN3, 0},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", "d", ACR_GGUF_QWEN3, 0},
    {"ffn_gate.weight", "mlp.gate_proj.weight", "fh", OF_ALL, 0},
    {"ffn_up.weight", "mlp.up_proj.weight", "fh", OF_ALL, 0},
    {"ffn_down.weight", "mlp.down_proj.weight", "hf", OF_ALL, 0},
    {"ffn_gate.bias", "mlp.gate_proj.bias", "f", ACR_GGUF_LLAMA, MLP_BIAS},
    {"ffn_up.bias", "mlp.up_proj.bias", "f", ACR_GGUF_LLAMA, MLP_BIAS},
    {"ffn_down.bias", "mlp.down_proj.bias", "h", ACR_GGUF_LLAMA, MLP_BIAS},
};

static bool expected(const role *r, const acr_gguf_sizes *s)
{
    bool biased = s->attention_bias || s->arch == ACR_GGUF_QWEN2;

    return (r->archs & (unsigned)s->arch) && !(r->flags & ATTENTION_BIAS && !biased) &&
           !(r->flags & MLP_BIAS && !s->mlp_bias) && !(r->flags & HEAD && s->tied);
}

static int64_t size_of(char dim, const acr_gguf_sizes *s)
{
    switch (dim) {
    case 'v': return s->vocab;
    case 'h': return s->hidden;
    case 'q': return (int64_t)s->heads * s->head_dim;
    case 'k': return (int64_t)s->kv_heads * s->head_dim;
    case 'd': return s->head_dim;
    default: return s->intermediate;
    }
}

static accrue_status check_tensor(acr_tensor *t, const acr_gguf_tensor *from, const char *path,
                                  accrue_error *err)
{
    char got[ACR_SHAPE_TEXT], wanted[ACR_SHAPE_TEXT];
    bool same = from->n_dims == t->n_dims;
    bool plain = acr_gguf_plain(from->type, &t->dtype);

    for (int i = 0; i < t->n_dims && same; i++)
        same = from->dims[i] == t->dims[i];
    if (!same)
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: tensor '%s' is %s, %s expected", path,
                        from->name, acr_shape_text(got, from->n_dims, from->dims),
                        acr_shape_text(wanted, t->n_dims, t->dims));
    if (plain ? !acr_dtype_is_float(t->dtype) : t->n_dims < 2)
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: tensor '%s' is %s, %s expected", path,
                        from->name, acr_gguf_type_name(from->type),
                        plain ? "a float or quantised type" : "a float type for one dimension");
    if (!plain)
        t->dtype = ACR_DTYPE_BF16;
    t->bytes = (size_t)acr_tensor_elements(t) * acr_dtype_bytes(t->dtype);
    return ACCRUE_OK;
}

/* One tensor of the folder; layer -1: not of a layer. */
static accrue_status add(acr_pretrained *p, const role *r, int layer, const acr_gguf_sizes *s,
                         accrue_error *err)
{
    acr_tensor *t = &p->tensors[p->n];
    acr_gguf_origin *o = &p->origins[p->n];
    char *name = p->names + (size_t)p->n * NAME;
    char from[NAME];

    if (!expected(r, s))
        return ACCRUE_OK;
    if (layer < 0) {
        snprintf(from, sizeof from, "%s", r->from);
        snprintf(name, NAME, "%s", r->to);
    } else {
        snprintf(from, sizeof from, "blk.%d.%s", layer, r->from);
        snprintf(name, NAME, "model.layers.%d.%s", layer, r->to);
    }
    t->name = name;
    t->n_dims = (int)strlen(r->dims);
    for (int i = 0; i < t->n_dims; i++)
        t->dims[i] = size_of(r->dims[i], s);
    o->tensor = acr_gguf_find(p->gguf, from);
    if (!o->tensor)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: tensor '%s' is missing", p->path, from);
    if (s->arch == ACR_GGUF_LLAMA && r->flags & (PERMUTED_Q | PERMUTED_K))
        o->heads = r->flags & PERMUTED_Q ? s->heads : s->kv_heads;
    p->n++;
    return check_tensor(t, o->tensor, p->path, err);
}

static accrue_status add_all(acr_pretrained *p, const acr_gguf_sizes *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < ACR_COUNT(model_roles); i++)
        ACR_TRY(add(p, &model_roles[i], -1, s, err));
    for (int l = 0; l < s->layers; l++)
        for (int i = 0; i < ACR_COUNT(layer_roles); i++)
            ACR_TRY(add(p, &layer_roles[i], l, s, err));

cleanup:
    return st;
}

/* A tensor that nothing was made of would be lost. */
static accrue_status refuse_others(const acr_pretrained *p, const acr_gguf_sizes *s,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int n = acr_gguf_count(p->gguf);
    bool *used = acr_calloc((size_t)n + 1, sizeof *used);

    if (!used)
        return acr_enomem(err, (size_t)n, p->path);
    for (int i = 0; i < p->n; i++)
        used[p->origins[i].tensor - acr_gguf_at(p->gguf, 0)] = true;
    for (int i = 0; i < n && !st; i++)
        if (!used[i] && strcmp(acr_gguf_at(p->gguf, i)->name, "rope_freqs.weight") != 0)
            st = acr_fail(err, ACCRUE_ENOTSUP,
                          "%s: tensor '%s' is none of a %s of %d layers as it is known here",
                          p->path, acr_gguf_at(p->gguf, i)->name, s->name, s->layers);
    acr_free(used);
    return st;
}

/* Sorts tensors and their origins together, by name. */
typedef struct pair {
    acr_tensor tensor;
    acr_gguf_origin origin;
} pair;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const pair *)a)->tensor.name, ((const pair *)b)->tensor.name);
}

static accrue_status sort(acr_pretrained *p, accrue_error *err)
{
    pair *pairs = acr_calloc((size_t)p->n + 1, sizeof *pairs);

    if (!pairs)
        return acr_enomem(err, (size_t)p->n * sizeof *pairs, p->path);
    for (int i = 0; i < p->n; i++)
        pairs[i] = (pair){p->tensors[i], p->origins[i]};
    qsort(pairs, (size_t)p->n, sizeof *pairs, by_name);
    for (int i = 0; i < p->n; i++) {
        p->tensors[i] = pairs[i].tensor;
        p->origins[i] = pairs[i].origin;
    }
    acr_free(pairs);
    return ACCRUE_OK;
}

accrue_status acr_gguf_tensors(acr_pretrained *p, const acr_gguf_sizes *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t room = (size_t)ACR_COUNT(model_roles) + (size_t)s->layers * ACR_COUNT(layer_roles);

    p->tensors = acr_calloc(room, sizeof *p->tensors);
    p->origins = acr_calloc(room, sizeof *p->origins);
    p->names = acr_calloc(room, NAME);
    if (!p->tensors || !p->origins || !p->names)
        return acr_enomem(err, room * (sizeof *p->tensors + sizeof *p->origins + NAME), p->path);
    ACR_TRY(add_all(p, s, err));
    ACR_TRY(refuse_others(p, s, err));
    ACR_TRY(sort(p, err));

cleanup:
    return st;
}

/* Reading ---------------------------------------------------------------------------------- */

/* The row of the file that is row `r` of the folder's tensor. */
static int64_t file_row(const acr_gguf_origin *from, int64_t r)
{
    int64_t head = from->heads ? from->tensor->dims[0] / from->heads : 0;
    int64_t within = head ? r % head : 0;

    if (!head)
        return r;
    return r - within + 2 * (within % (head / 2)) + within / (head / 2);
}

/* f64 is made of f32 in place: these lie in the upper half, and the next one to be read is never
 * below the end of what is written. */
static void widen(double *out, int64_t n)
{
    const char *upper = (const char *)out + (size_t)n * sizeof(float);

    for (int64_t i = 0; i < n; i++) {
        float x = 0;
        memcpy(&x, upper + (size_t)i * sizeof x, sizeof x);
        out[i] = (double)x;
    }
}

static void read_rows(void *out, acr_dtype real, const acr_gguf_tensor *t, const char *rows,
                      int64_t n)
{
    acr_dtype plain = ACR_DTYPE_COUNT;

    if (acr_gguf_plain(t->type, &plain)) {
        acr_convert(real, out, plain, rows, n);
    } else if (real == ACR_DTYPE_F32) {
        acr_gguf_dequantize(t->type, rows, n, out);
    } else {
        acr_gguf_dequantize(t->type, rows, n,
                            (float *)(void *)((char *)out + (size_t)n * sizeof(float)));
        widen(out, n);
    }
}

void acr_gguf_read(void *out, acr_dtype real, const acr_gguf_origin *from, int64_t first, int64_t n)
{
    const acr_gguf_tensor *t = from->tensor;
    const size_t row = t->dims[0] ? t->bytes / (size_t)t->dims[0] : 0;
    const int64_t columns = t->n_dims > 1 ? t->dims[1] : 1;
    char *to = out;

    if (!from->heads) {
        read_rows(out, real, t, (const char *)t->data + (size_t)first * row, n * columns);
        return;
    }
    for (int64_t r = first; r < first + n; r++) {
        read_rows(to, real, t, (const char *)t->data + (size_t)file_row(from, r) * row, columns);
        to += (size_t)columns * acr_dtype_bytes(real);
    }
}
