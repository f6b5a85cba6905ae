/* verifier.c - a verifier's weights, laid out for products with few rows.
 *
 * Rows come out of the file a few at a time and are packed at once, so that the packed weights are
 * the only copy in memory; the file is closed when the last one is. */
#include "infer/verifier_parts.h"

#include <string.h>

enum { SCRATCH = 1 << 22, BLOCK = 1 << 26, BLOCKS_PER_LAYER = 24, OTHER_BLOCKS = 8 };

/* What is read, into which buffer. */
typedef struct reader {
    acr_verifier *v;
    const acr_pretrained *file;
    const char *path;
    void *scratch; /* real [rows of a call, k] */
    size_t room;
    accrue_error *err;
} reader;

/* Weights lie one after the other in a few large blocks, in the order in which they are read. */
static void *own(acr_verifier *v, size_t bytes)
{
    const size_t room = (bytes + ACR_ALIGN - 1) / ACR_ALIGN * ACR_ALIGN;
    const size_t block = room > v->block_bytes ? room : v->block_bytes;

    if (room > v->left) {
        v->next = v->n_owned < v->max_owned ? acr_malloc(block) : NULL;
        v->left = v->next ? block : 0;
        if (!v->next)
            return NULL;
        acr_prefer_large_pages(v->next, block);
        v->owned[v->n_owned++] = v->next;
    }
    v->next += room;
    v->left -= room;
    v->bytes += room;
    return v->next - room;
}

/* At most BLOCK, and no more than the file's elements take. */
static size_t bytes_of_blocks(const acr_verifier *v, const acr_pretrained *file)
{
    size_t bytes = 0;

    for (int i = 0; i < acr_pretrained_count(file) && bytes < BLOCK; i++)
        bytes += (size_t)acr_tensor_elements(acr_pretrained_at(file, i)) * v->be->real_bytes;
    return bytes < BLOCK ? bytes : BLOCK;
}

/* "model.layers.3.self_attn.q_proj.weight"; layer < 0: without the first part. */
typedef char tensor_name[96];

static const char *name_of(tensor_name out, int layer, const char *part)
{
    if (layer < 0)
        snprintf(out, sizeof(tensor_name), "%s", part);
    else
        snprintf(out, sizeof(tensor_name), "model.layers.%d.%s", layer, part);
    return out;
}

/* The tensor's number; its shape is [n, k], or [n] for k = 0. */
static accrue_status find(int *out, const reader *r, const char *name, int64_t n, int64_t k)
{
    const int64_t dims[] = {n, k};
    const int i = acr_pretrained_find(r->file, name), n_dims = k ? 2 : 1;
    const acr_tensor *t = i < 0 ? NULL : acr_pretrained_at(r->file, i);
    char got[ACR_SHAPE_TEXT], expected[ACR_SHAPE_TEXT];

    *out = i;
    if (!t)
        return acr_fail(r->err, ACCRUE_EMISMATCH, "%s: %s is missing", r->path, name);
    if (t->n_dims != n_dims || t->dims[0] != n || (k && t->dims[1] != k))
        return acr_fail(r->err, ACCRUE_EMISMATCH, "%s: %s is %s, %s expected", r->path, name,
                        acr_shape_text(got, t->n_dims, t->dims),
                        acr_shape_text(expected, n_dims, dims));
    return ACCRUE_OK;
}

static accrue_status reserve(reader *r, size_t bytes)
{
    if (bytes <= r->room)
        return ACCRUE_OK;
    acr_free(r->scratch);
    r->room = 0;
    r->scratch = acr_malloc(bytes);
    if (!r->scratch)
        return acr_enomem(r->err, bytes, "rows of a weight");
    r->room = bytes;
    return ACCRUE_OK;
}

static accrue_status check_finite(const reader *r, const void *x, int64_t n, int64_t first,
                                  const char *name)
{
    const int64_t at = acr_find_nonfinite(r->v->be->real, x, n);

    if (at < 0)
        return ACCRUE_OK;
    return acr_fail(r->err, ACCRUE_EFORMAT, "%s: %s: element %lld is not finite", r->path, name,
                    (long long)(first + at));
}

/* Reads rows [first, first + n) of k columns into the scratch. */
static accrue_status read_rows(reader *r, int tensor, int64_t first, int64_t n, int64_t k)
{
    accrue_status st =
        acr_pretrained_read(r->scratch, r->v->be->real, r->file, tensor, first, n, r->err);

    return st ? st
              : check_finite(r, r->scratch, n * k, first * k,
                             acr_pretrained_at(r->file, tensor)->name);
}

/* Rows to a call: whole panels, about SCRATCH bytes of them. */
static int64_t rows_of_call(const reader *r, int64_t k)
{
    const int64_t unit = r->v->be->pack_rows;
    const int64_t units = SCRATCH / (unit * k * (int64_t)r->v->be->real_bytes);

    return units > 1 ? units * unit : unit;
}

static accrue_status load_packed(reader *r, acr_packed *out, int layer, const char *part, int64_t n,
                                 int64_t k)
{
    accrue_status st = ACCRUE_OK;
    const acr_backend *be = r->v->be;
    const int64_t step = rows_of_call(r, k);
    tensor_name name;
    int tensor = 0;

    ACR_TRY(find(&tensor, r, name_of(name, layer, part), n, k));
    ACR_TRY(reserve(r, (size_t)(step * k) * be->real_bytes));
    *out = (acr_packed){.n = n, .k = k, .type = r->v->stored};
    out->data = own(r->v, be->packed_bytes(out->type, n, k));
    if (!out->data) {
        st = acr_enomem(r->err, be->packed_bytes(out->type, n, k), name);
        goto cleanup;
    }
    for (int64_t row = 0; row < n; row += step) {
        const int64_t rows = row + step < n ? step : n - row;
        ACR_TRY(read_rows(r, tensor, row, rows, k));
        be->pack(out, row, rows, r->scratch);
    }

cleanup:
    return st;
}

static accrue_status load_vector(reader *r, void **out, int layer, const char *part, int64_t n)
{
    accrue_status st = ACCRUE_OK;
    const size_t bytes = (size_t)n * r->v->be->real_bytes;
    tensor_name name;
    int tensor = 0;

    ACR_TRY(find(&tensor, r, name_of(name, layer, part), n, 0));
    *out = own(r->v, bytes);
    if (!*out)
        return acr_enomem(r->err, bytes, name);
    ACR_TRY(acr_pretrained_read(*out, r->v->be->real, r->file, tensor, 0, n, r->err));
    ACR_TRY(check_finite(r, *out, n, 0, name));

cleanup:
    return st;
}

/* The embedding as it is looked up: row by row, in the type of the matrices. */
static accrue_status load_embedding(reader *r, const char *name, int64_t n, int64_t k)
{
    accrue_status st = ACCRUE_OK;
    acr_verifier *v = r->v;
    const int64_t step = rows_of_call(r, k);
    const size_t row_bytes = (size_t)k * acr_dtype_bytes(v->stored);
    int tensor = 0;

    ACR_TRY(find(&tensor, r, name, n, k));
    ACR_TRY(reserve(r, (size_t)(step * k) * v->be->real_bytes));
    v->embedding = own(v, (size_t)n * row_bytes);
    if (!v->embedding)
        return acr_enomem(r->err, (size_t)n * row_bytes, name);
    for (int64_t row = 0; row < n; row += step) {
        const int64_t rows = row + step < n ? step : n - row;
        ACR_TRY(read_rows(r, tensor, row, rows, k));
        acr_convert(v->stored, (char *)v->embedding + (size_t)row * row_bytes, v->be->real,
                    r->scratch, rows * k);
    }

cleanup:
    return st;
}

static accrue_status load_attention(reader *r, acr_verifier_layer *l, int layer)
{
    static const char *const weights[] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                          "self_attn.v_proj.weight"};
    static const char *const biases[] = {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                         "self_attn.v_proj.bias"};
    accrue_status st = ACCRUE_OK;
    const acr_verifier_shape *s = &r->v->shape;
    const int64_t q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;

    ACR_TRY(load_vector(r, &l->attention_norm, layer, "input_layernorm.weight", s->hidden_size));
    for (int i = 0; i < ACR_COUNT(weights); i++) {
        ACR_TRY(load_packed(r, &l->qkv[i], layer, weights[i], i ? kv : q, s->hidden_size));
        if (s->qkv_bias)
            ACR_TRY(load_vector(r, &l->qkv_bias[i], layer, biases[i], i ? kv : q));
    }
    if (s->qk_norm) {
        ACR_TRY(load_vector(r, &l->q_norm, layer, "self_attn.q_norm.weight", s->head_dim));
        ACR_TRY(load_vector(r, &l->k_norm, layer, "self_attn.k_norm.weight", s->head_dim));
    }
    ACR_TRY(load_packed(r, &l->o, layer, "self_attn.o_proj.weight", s->hidden_size, q));
    if (s->o_bias)
        ACR_TRY(load_vector(r, &l->o_bias, layer, "self_attn.o_proj.bias", s->hidden_size));

cleanup:
    return st;
}

static accrue_status load_mlp(reader *r, acr_verifier_layer *l, int layer)
{
    accrue_status st = ACCRUE_OK;
    const acr_verifier_shape *s = &r->v->shape;
    const int64_t h = s->hidden_size, m = s->intermediate_size;

    ACR_TRY(load_vector(r, &l->mlp_norm, layer, "post_attention_layernorm.weight", h));
    ACR_TRY(load_packed(r, &l->gate_up[0], layer, "mlp.gate_proj.weight", m, h));
    ACR_TRY(load_packed(r, &l->gate_up[1], layer, "mlp.up_proj.weight", m, h));
    ACR_TRY(load_packed(r, &l->down, layer, "mlp.down_proj.weight", h, m));
    if (s->mlp_bias) {
        ACR_TRY(load_vector(r, &l->gate_up_bias[0], layer, "mlp.gate_proj.bias", m));
        ACR_TRY(load_vector(r, &l->gate_up_bias[1], layer, "mlp.up_proj.bias", m));
        ACR_TRY(load_vector(r, &l->down_bias, layer, "mlp.down_proj.bias", h));
    }

cleanup:
    return st;
}

static accrue_status load_weights(reader *r)
{
    static const char embedding[] = "model.embed_tokens.weight";
    accrue_status st = ACCRUE_OK;
    acr_verifier *v = r->v;
    const acr_verifier_shape *s = &v->shape;

    if (acr_pretrained_find(r->file, "lm_head.weight") >= 0) /* then it counts, as elsewhere */
        v->shape.tied = false;
    v->max_owned = s->n_layers * BLOCKS_PER_LAYER + OTHER_BLOCKS;
    v->block_bytes = bytes_of_blocks(v, r->file);
    v->layers = acr_calloc((size_t)s->n_layers, sizeof *v->layers);
    v->owned = acr_calloc((size_t)v->max_owned, sizeof *v->owned);
    if (!v->layers || !v->owned)
        return acr_enomem(r->err, (size_t)s->n_layers * sizeof *v->layers, "the layers");
    for (int i = 0; i < s->n_layers; i++) {
        ACR_TRY(load_attention(r, &v->layers[i], i));
        ACR_TRY(load_mlp(r, &v->layers[i], i));
    }
    ACR_TRY(load_vector(r, &v->final_norm, -1, "model.norm.weight", s->hidden_size));
    ACR_TRY(load_packed(r, &v->head, -1, s->tied ? embedding : "lm_head.weight", s->vocab_size,
                        s->hidden_size));
    if (!s->tied)
        ACR_TRY(load_embedding(r, embedding, s->vocab_size, s->hidden_size));

cleanup:
    return st;
}

static accrue_status make_rope(acr_verifier *v, accrue_error *err)
{
    const size_t bytes = (size_t)v->positions * (size_t)(v->shape.head_dim / 2) * v->be->real_bytes;

    v->rope = (acr_rope_table){.positions = v->positions, .head_dim = v->shape.head_dim};
    v->rope.cos = own(v, bytes);
    v->rope.sin = own(v, bytes);
    if (!v->rope.cos || !v->rope.sin)
        return acr_enomem(err, 2 * bytes, "the rotary tables");
    acr_rope_fill(&v->rope, &v->shape.rope, v->be->real);
    return ACCRUE_OK;
}

accrue_status acr_verifier_open(acr_verifier **out, const char *path, accrue_dtype compute,
                                int64_t positions, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_pretrained *file = NULL;
    reader r = {.path = path, .err = err};
    acr_verifier *v = acr_calloc(1, sizeof *v);

    *out = NULL;
    if (!v)
        return acr_enomem(err, sizeof *v, path);
    if (positions < 1 || positions > INT32_MAX) {
        st = acr_fail(err, ACCRUE_EINVAL, "%s: %lld positions, 1 to %d expected", path,
                      (long long)positions, INT32_MAX);
        goto cleanup;
    }
    v->be = acr_backend_for(acr_real_of(compute));
    v->stored = compute == ACCRUE_BF16 ? ACR_DTYPE_BF16 : v->be->real;
    v->positions = positions;
    ACR_TRY(acr_pretrained_open(&file, path, err));
    ACR_TRY(acr_verifier_shape_read(&v->shape, file, positions, err));
    v->heads = (acr_kv_heads){v->shape.n_heads, v->shape.n_kv_heads, v->shape.head_dim};
    r.v = v;
    r.file = file;
    ACR_TRY(load_weights(&r));
    ACR_TRY(make_rope(v, err));
    *out = v;
    v = NULL;

cleanup:
    acr_free(r.scratch);
    acr_pretrained_close(file);
    acr_verifier_free(v);
    return st;
}

void acr_verifier_free(acr_verifier *v)
{
    if (!v)
        return;
    for (int i = 0; i < v->n_owned; i++)
        acr_free(v->owned[i]);
    acr_free(v->owned);
    acr_free(v->layers);
    acr_free(v);
}

const acr_verifier_shape *acr_verifier_describe(const acr_verifier *v)
{
    return &v->shape;
}

bool acr_verifier_ends(const acr_verifier *v, int64_t id)
{
    for (int i = 0; i < v->shape.n_eos; i++)
        if (v->shape.eos[i] == id)
            return true;
    return false;
}

acr_dtype acr_verifier_real(const acr_verifier *v)
{
    return v->be->real;
}

size_t acr_verifier_bytes(const acr_verifier *v)
{
    return v->bytes;
}
