/* infer.h - models that answer: the verifier's forward pass with its keys and values kept, the
 * draft's, sampling, and speculative decoding. */
#ifndef ACR_INFER_H
#define ACR_INFER_H

#include "model/model.h"
#include "text/text.h"

/* Verifier --------------------------------------------------------------------------------- */

/* llama, qwen2 and qwen3 decoders (config.json's model_type). */
typedef struct acr_verifier_shape {
    int64_t hidden_size, intermediate_size, vocab_size;
    int n_layers, n_heads, n_kv_heads, head_dim;
    double rms_norm_eps;
    acr_rope_config rope;
    bool qk_norm; /* qwen3: q and k are normalised per head before RoPE */
    bool qkv_bias, o_bias, mlp_bias;
    bool tied; /* the head is the embedding */
    int64_t max_positions;
    int64_t eos[16]; /* ids that end an answer: generation_config.json's, else config.json's */
    int n_eos;
} acr_verifier_shape;

/* Weights laid out for products with few rows, once, when opened; safe for many threads at once
 * afterwards.  Matrices lie in bf16 for bf16 compute (rounded where the file has more), in f32 for
 * f32, in f64 for f64. */
typedef struct acr_verifier acr_verifier;

/* `path`: a folder or a .gguf file, as acr_pretrained_open.  `positions` bounds a sequence. */
accrue_status acr_verifier_open(acr_verifier **out, const char *path, accrue_dtype compute,
                                int64_t positions, accrue_error *err);
void acr_verifier_free(acr_verifier *v);
const acr_verifier_shape *acr_verifier_describe(const acr_verifier *v);
size_t acr_verifier_bytes(const acr_verifier *v); /* of its weights in memory */

/* Keys and values of one sequence.  Rows that were cut off are overwritten by what comes next. */
typedef struct acr_cache acr_cache;
accrue_status acr_cache_create(acr_cache **out, const acr_verifier *v, int64_t capacity,
                               accrue_error *err);
void acr_cache_free(acr_cache *c);
int64_t acr_cache_tokens(const acr_cache *c);
void acr_cache_cut(acr_cache *c, int64_t tokens); /* keeps the first so many */

/* The next n tokens of one sequence. */
typedef struct acr_sequence {
    acr_cache *cache;
    const int64_t *ids;
    int64_t n;
    /* =, each may be NULL.  "real" is f32 but for f64 compute. */
    void *states; /* real [n, n_slots, hidden]: of slot i the residual stream that enters layer
                     slots[i]; layer n_layers is behind the last one, before the final norm */
    int64_t n_logits;
    void *logits; /* real [n_logits, vocab], of the last n_logits tokens */
} acr_sequence;

typedef struct acr_verifier_work acr_verifier_work; /* buffers; one per thread of control */
accrue_status acr_verifier_work_create(acr_verifier_work **out, const acr_verifier *v,
                                       accrue_error *err);
void acr_verifier_work_free(acr_verifier_work *w);

/* Advances the sequences together (their caches differ).  What comes out for a token has the same
 * bits however many tokens and sequences are passed at a time, and for any number of threads. */
accrue_status acr_verifier_forward(acr_verifier_work *w, const acr_sequence *sequences, int n,
                                   const int *slots, int n_slots, accrue_error *err);

/* Draft ------------------------------------------------------------------------------------ */

/* An EAGLE-3 draft that decodes one sequence, with its keys and values kept.  "Row" t of it reads
 * token t + 1 and the verifier's states of token t; a *drafted* row reads the draft's own output of
 * the row before instead, and the token that it drafted there.  Row by row the arithmetic is that of
 * training: verified rows are TTT step 0, the j-th drafted row behind row t is TTT step j of row t.
 * So in a layer with a sliding window a drafted row sees the window of row t, and the drafted
 * ones. */
typedef struct acr_draft acr_draft;

/* A checkpoint folder of accrue or speculators, for sequences of up to `positions` tokens.  What of
 * embedding and head it lacks is read from the verifier at this path, as acr_pretrained_open takes
 * it.  EMISMATCH where sizes and layers are not those of that verifier. */
accrue_status acr_draft_open(acr_draft **out, const char *dir, const char *verifier,
                             const acr_verifier_shape *of_verifier, accrue_dtype compute,
                             int64_t positions, accrue_error *err);
void acr_draft_free(acr_draft *d);
const acr_config *acr_draft_describe(const acr_draft *d);
const int *acr_draft_slots(const acr_draft *d); /* [n_aux] as acr_verifier_forward takes them */
void acr_draft_restart(acr_draft *d);           /* another sequence */
/* The next n verified rows, n >= 1: ids [n], states real [n, n_aux, hidden].  Drafted rows are
 * forgotten. */
accrue_status acr_draft_extend(acr_draft *d, const int64_t *ids, const void *states, int64_t n,
                               accrue_error *err);
/* One drafted row, at most ACCRUE_MAX_TTT_STEPS - 1 on end. */
accrue_status acr_draft_step(acr_draft *d, int64_t id, accrue_error *err);
/* Of the last row: real [draft vocabulary], and the token they are highest for, the verifier's id. */
const void *acr_draft_logits(const acr_draft *d);
int64_t acr_draft_token(const acr_draft *d);

#endif
