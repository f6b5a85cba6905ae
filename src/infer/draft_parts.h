/* draft_parts.h - what the files of the decoding draft share. */
#ifndef ACR_INFER_DRAFT_PARTS_H
#define ACR_INFER_DRAFT_PARTS_H

#include "infer/infer.h"

/* Rows of a pass; a longer prompt takes several. */
enum { ACR_DRAFT_PASS = 256 };

typedef struct acr_draft_cache {
    void *keys, *values;         /* [positions, n_kv_heads * head_dim] of verified rows */
    void *own_keys, *own_values; /* [ACR_MAX_KV, *] of drafted ones */
} acr_draft_cache;

/* Weights; of the first layer's q, k and v the halves that read the embedding and the hidden row,
 * of other layers the latter alone. */
typedef struct acr_draft_weights {
    acr_packed q, k, v, embed_q, embed_k, embed_v, o, gate, up, down;
} acr_draft_weights;

/* Of the rows of a pass. */
typedef struct acr_draft_buffers {
    void *aux;                   /* [n_aux * hidden] normed */
    void *rounded;               /* [the widest input] of products in bf16 */
    void *hidden, *normed, *sum; /* [hidden] */
    void *embed;                 /* [hidden] normed */
    void *q, *attended;          /* [n_heads * head_dim] */
    void *raw, *half;            /* [the wider of queries and keys] before norm and rotation */
    void *gate, *up, *act;       /* [intermediate] */
    void *rstd, *lse;            /* [heads]: what the kernels leave for a backward */
    void *logits;                /* [draft vocabulary], of one row */
    int64_t *position, *begin, *end;
} acr_draft_buffers;

struct acr_draft {
    acr_model *m;
    const acr_backend *be;
    acr_packed fc, head;
    acr_draft_weights layer[ACR_MAX_LAYERS];
    int64_t positions, rows; /* verified rows so far */
    int drafted;             /* and drafted ones behind them */
    int slots[ACR_MAX_AUX];
    void *fed; /* [hidden] what a drafted row reads of the last one */
    acr_draft_cache cache[ACR_MAX_LAYERS];
    acr_draft_buffers x;
    void *embed_table, *head_table; /* the verifier's, where the checkpoint has none */
};

int64_t acr_draft_kv_width(const acr_draft *d);

#endif
