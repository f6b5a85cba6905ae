/* pretrained.h - inside the model layer: a trained model, and how a GGUF file becomes one. */
#ifndef ACR_MODEL_PRETRAINED_H
#define ACR_MODEL_PRETRAINED_H

#include "model/model.h"

/* What general.architecture says, as a bit. */
typedef enum acr_gguf_arch {
    ACR_GGUF_LLAMA = 1,
    ACR_GGUF_QWEN2 = 2,
    ACR_GGUF_QWEN3 = 4
} acr_gguf_arch;

/* A GGUF file's sizes, checked. */
typedef struct acr_gguf_sizes {
    acr_gguf_arch arch;
    const char *name;
    int64_t hidden, intermediate, vocab, context;
    int layers, heads, kv_heads, head_dim;
    double rms_norm_eps;
    bool tied, attention_bias, mlp_bias;
} acr_gguf_sizes;

/* Where a tensor of the folder comes from. */
typedef struct acr_gguf_origin {
    const acr_gguf_tensor *tensor;
    int heads; /* whose rows the file keeps permuted; 0: as they are */
} acr_gguf_origin;

struct acr_pretrained {
    char *path;
    json_t *config, *generation;
    acr_weights *weights; /* of a folder */
    acr_gguf *gguf;
    acr_tensor *tensors; /* by name, without data */
    acr_gguf_origin *origins;
    char *names;
    int n;
};

/* The model that a file holds; takes the file over in any case. */
accrue_status acr_pretrained_from_gguf(acr_pretrained **out, acr_gguf *g, accrue_error *err);

/* The parts of that: what they fill of `p` is freed with it. */
accrue_status acr_gguf_config(acr_pretrained *p, acr_gguf_sizes *sizes, accrue_error *err);
accrue_status acr_gguf_tensors(acr_pretrained *p, const acr_gguf_sizes *sizes, accrue_error *err);
void acr_gguf_read(void *out, acr_dtype real, const acr_gguf_origin *from, int64_t first,
                   int64_t n);

/* The parameters of llama3 scaling that divide the frequencies of a rotation of `theta` by
 * factors[n] (of the head's halves), into `rope`; all factors 1: no scaling.  False: there are no
 * such parameters.  `original` is the context length that they are tried with first. */
bool acr_rope_from_factors(acr_rope_config *rope, const float *factors, int n, double original);

#endif
