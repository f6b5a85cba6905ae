/* verifier_parts.h - what the files of the verifier share. */
#ifndef ACR_INFER_VERIFIER_PARTS_H
#define ACR_INFER_VERIFIER_PARTS_H

#include "infer/infer.h"

/* Weights of one decoder layer; what the architecture lacks is NULL. */
typedef struct acr_verifier_layer {
    acr_packed qkv[3], o, gate_up[2], down;
    void *attention_norm, *mlp_norm, *q_norm, *k_norm; /* real, like the biases */
    void *qkv_bias[3], *o_bias, *gate_up_bias[2], *down_bias;
} acr_verifier_layer;

struct acr_verifier {
    acr_verifier_shape shape;
    acr_kv_heads heads;
    const acr_backend *be;
    acr_dtype stored; /* of matrices: BF16, F32 or F64 */
    int64_t positions;
    acr_verifier_layer *layers;
    acr_packed head;  /* tied: the embedding too */
    void *embedding;  /* stored [vocab, hidden]; NULL: tied */
    void *final_norm; /* real [hidden] */
    acr_rope_table rope;
    void **owned; /* blocks behind the above */
    int n_owned, max_owned;
    char *next; /* of the last block, what is free yet */
    size_t left, block_bytes, bytes;
};

struct acr_cache {
    const acr_verifier *v;
    int64_t capacity, tokens;
    int64_t head_stride, layer_stride; /* elements */
    void *data;                        /* real [n_layers, n_kv_heads, tiles, a tile] */
};

/* Reads config.json and generation_config.json, which need not be there.  `positions` is how long
 * sequences get. */
accrue_status acr_verifier_shape_read(acr_verifier_shape *out, const acr_pretrained *p,
                                      int64_t positions, accrue_error *err);

#endif
