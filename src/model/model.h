/* model.h - draft models: their configuration, parameters, and forward recipes on the tape. */
#ifndef ACR_MODEL_H
#define ACR_MODEL_H

#include "data/data.h"
#include "tape/tape.h"

/* Configuration --------------------------------------------------------------------------- */

enum { ACR_MAX_LAYERS = 64, ACR_MAX_AUX = 16, ACR_MAX_GROUPS = ACR_MAX_LAYERS + 4 };

typedef enum acr_arch { ACR_ARCH_LLAMA = 0, ACR_ARCH_QWEN3 = 1 } acr_arch;

typedef struct acr_rope_config {
    bool llama3; /* otherwise "default" */
    double theta, factor, low_freq_factor, high_freq_factor, original_max_position;
} acr_rope_config;

/* A reader of one JSON object's fields.  Where one is missing (or null) the fallback stands, if it
 * is in range (not NAN, not NULL); the first failure stays, what is returned then is harmless. */
typedef struct acr_fields {
    const json_t *object;
    const char *name; /* file, for messages */
    accrue_status status;
    accrue_error *err;
} acr_fields;
bool acr_absent(const json_t *v);                /* missing or null */
const char *acr_json_type_name(const json_t *v); /* "an array"; "missing" for NULL */
int64_t acr_field_int(acr_fields *r, const char *key, int64_t fallback, int64_t low, int64_t high);
double acr_field_real(acr_fields *r, const char *key, double fallback);
bool acr_field_bool(acr_fields *r, const char *key, bool fallback);
const char *acr_field_string(acr_fields *r, const char *key, const char *fallback);
/* "rope_parameters" (transformers 5) or "rope_theta" and "rope_scaling" (before). */
void acr_field_rope(acr_fields *r, acr_rope_config *out);
/* A decoder's attention heads, a multiple of its key/value heads, and their even size: hidden_size
 * / heads where neither the object nor `default_head_dim` (0: none) says another. */
void acr_field_heads(acr_fields *r, int64_t hidden_size, int64_t default_head_dim, int *n_heads,
                     int *n_kv_heads, int *head_dim);
/* A value of the wrong type; unless `ok`, one that would change the arithmetic. */
void acr_field_refuse(acr_fields *r, const char *key, const json_t *got, const char *expected);
void acr_field_require(acr_fields *r, bool ok, const char *key, const char *value,
                       const char *supported);
/* The same, of the field's own value. */
void acr_field_require_value(acr_fields *r, bool ok, const char *key, const char *supported);

/* An EAGLE-3 draft; the fields that training needs, and the JSON they came from. */
typedef struct acr_config {
    acr_arch arch;
    int64_t hidden_size, intermediate_size, vocab_size, draft_vocab_size;
    int n_layers, n_heads, n_kv_heads, head_dim;
    double rms_norm_eps;
    acr_rope_config rope;
    bool attention_bias;
    bool sliding[ACR_MAX_LAYERS];
    int64_t sliding_window;
    int n_aux;
    bool norm_before_residual, norm_before_fc, fc_norm, norm_output, embed_requires_grad;
    json_t *json; /* the checkpoint's config.json, complete; owned */
} acr_config;

/* Reads a checkpoint's config.json object (borrowed); what is not supported is refused by name. */
accrue_status acr_config_read(acr_config *out, const json_t *json, const char *name,
                              accrue_error *err);
/* A fresh draft that mirrors the verifier, as the flags say; `name` of the verifier folder. */
accrue_status acr_config_create(acr_config *out, const accrue_train_options *opt,
                                const json_t *verifier, int64_t draft_vocab_size,
                                accrue_error *err);
/* The auxiliary layers of a verifier of n layers where nothing names them: 2, n/2, n-3. */
enum { ACR_DEFAULT_AUX = 3 };
void acr_default_layers(int out[ACR_DEFAULT_AUX], int n_layers);
/* The same, or the ids given, checked against the verifier's number of layers. */
accrue_status acr_target_layer_ids(int out[ACR_MAX_AUX], int *n, const accrue_train_options *opt,
                                   const json_t *verifier, accrue_error *err);
void acr_config_free(acr_config *c);
/* The decoder's own object of a verifier's config.json: "text_config" where there is one. */
const json_t *acr_verifier_config(const json_t *json);

/* A trained model in a Hugging Face folder (config.json, one or several safetensors files) or in a
 * GGUF file, both seen as the former: by its names, shapes and layouts (llama's q and k rows, which
 * GGUF keeps permuted, are put back). */
typedef struct acr_pretrained acr_pretrained;
accrue_status acr_pretrained_open(acr_pretrained **out, const char *path, accrue_error *err);
void acr_pretrained_close(acr_pretrained *p);
const json_t *acr_pretrained_config(const acr_pretrained *p); /* config.json's object */
/* generation_config.json's, or what GGUF says of it; NULL: nothing. */
const json_t *acr_pretrained_generation(const acr_pretrained *p);
/* For messages, where the value of either object stands: the folder's `file`, or the GGUF file. */
void acr_pretrained_place(char *out, size_t room, const acr_pretrained *p, const char *file);
int acr_pretrained_count(const acr_pretrained *p);
/* The i-th tensor: name, shape, and the type that holds it without loss in a safetensors file (BF16
 * for quantised ones, which that rounds); `data` is NULL. */
const acr_tensor *acr_pretrained_at(const acr_pretrained *p, int i);
int acr_pretrained_find(const acr_pretrained *p, const char *name); /* -1: none */
/* Rows [first, first + n) of its outermost dimension, as `real`: F32 or F64. */
accrue_status acr_pretrained_read(void *out, acr_dtype real, const acr_pretrained *p, int i,
                                  int64_t first, int64_t n, accrue_error *err);
/* The file, and the tensor in it that the i-th is made of; NULL for a folder. */
const acr_gguf *acr_pretrained_gguf(const acr_pretrained *p);
const acr_gguf_tensor *acr_pretrained_origin(const acr_pretrained *p, int i);

/* Sets cosines and sines of positions [0, t->positions), which have their room. */
void acr_rope_fill(acr_rope_table *t, const acr_rope_config *r, acr_dtype real);

/* Losses as --loss-fn gives them: a name, or {"name": weight, ...}. */
accrue_status acr_loss_spec_parse(acr_loss_spec *out, const char *text, accrue_error *err);

/* Model ----------------------------------------------------------------------------------- */

/* Parameters are cut into blocks.  The cut depends on their sizes alone, which fixes the order of
 * every sum over them whatever the number of threads; ranks among which they are split own whole
 * blocks. */
enum { ACR_BLOCK = 16384 }; /* elements; several arrays of a block fit a second-level cache */

/* Among how many ranks masters, moments and gradients are split, and which of them this one is. */
typedef struct acr_sharding {
    int rank, ranks;
} acr_sharding;

typedef struct acr_model {
    acr_config config;
    acr_sharding sharding; /* ranks = 1: not sharded */
    bool frozen;           /* no parameter trains */
    accrue_dtype compute;
    acr_dtype real;
    acr_param *params;
    int n_params;
    acr_group *groups;
    int n_groups;
    acr_rope_table rope;
    acr_vocab vocab;       /* d2t NULL without a reduced vocabulary */
    acr_weights *verifier; /* files that frozen parameters may point into */
    acr_weights *source;
    void **owned; /* blocks behind masters, gradients and copies */
    int n_owned;
    /* By role; biases and norms that the variant lacks are NULL. */
    struct {
        acr_param *input_norm, *fc, *embed, *norm, *head, *verifier_norm, *verifier_head;
        acr_param *fc_norm[ACR_MAX_AUX];
    } top;
    struct acr_layer {
        acr_param *hidden_norm, *input_norm, *post_norm, *q_norm, *k_norm;
        acr_param *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias, *gate, *up, *down;
    } layer[ACR_MAX_LAYERS];
} acr_model;

/* Takes over config and vocab (both are emptied).  Masters of trainable parameters are allocated,
 * not set; `positions` bounds position ids.  `sharding` may be NULL. */
accrue_status acr_model_create(acr_model **out, acr_config *config, acr_vocab *vocab,
                               accrue_dtype compute, int64_t positions,
                               const acr_sharding *sharding, accrue_error *err);
/* The same for a draft that only answers: every parameter is frozen, so there are no gradients, and
 * what a file holds in the type that is computed with is used where it lies. */
accrue_status acr_model_create_frozen(acr_model **out, acr_config *config, acr_vocab *vocab,
                                      accrue_dtype compute, int64_t positions, accrue_error *err);
void acr_model_free(acr_model *m);
acr_param *acr_model_find(acr_model *m, const char *name);           /* or NULL */
int64_t acr_model_elements(const acr_model *m, bool trainable_only); /* as the checkpoint counts */

/* What this rank keeps of a trainable parameter: elements [begin, begin + n). */
typedef struct acr_share {
    int64_t begin, n;
    void *master, *accumulator; /* real [n] */
} acr_share;
acr_share acr_model_share(const acr_model *m, const acr_param *p);

/* Linear weights N(0, 0.02), biases 0, norms 1, keyed by (seed, parameter name, element). */
void acr_model_init(acr_model *m, uint64_t seed);
/* Sets the parameters found in `w`, which must hold all but the embedding and the head, that may be
 * the verifier's and are then left.  The model keeps `w` and closes it. */
accrue_status acr_model_load(acr_model *m, acr_weights *w, const char *name, accrue_error *err);
/* Embedding, verifier norm and heads from the verifier's folder, where not yet set.  Kept too. */
accrue_status acr_model_load_verifier(acr_model *m, acr_weights *w, const char *name,
                                      accrue_error *err);
/* Gives back what memory a frozen parameter takes beside its file; it is not to be used again. */
void acr_param_release(acr_model *m, acr_param *p);
/* Sets one parameter from a tensor of its shape, any float type. */
accrue_status acr_param_set(acr_model *m, acr_param *p, const acr_tensor *t, const char *file,
                            accrue_error *err);
/* Brings the bf16 copies up to date with the masters, after a change of the latter; those of a
 * sharded model are made when they are gathered. */
void acr_model_refresh(acr_model *m);
void acr_model_zero_grad(acr_model *m);

/* EAGLE-3 --------------------------------------------------------------------------------- */

typedef struct acr_eagle3_options {
    int ttt_steps;
    double step_decay; /* gamma: step k's loss is multiplied by gamma^k */
    acr_loss_spec loss;
    bool across_documents; /* targets shift across document borders, as the peer's do */
} acr_eagle3_options;

/* Supervised rows of each TTT step, from the masks alone: the denominators. */
void acr_eagle3_counts(const acr_batch *b, const acr_eagle3_options *o,
                       int64_t counts[ACCRUE_MAX_TTT_STEPS]);

/* Rows of a micro-batch that each TTT step works on (rows.c says which and why).  "t" is a row of
 * the micro-batch; lists ascend in t. */
typedef struct acr_step_rows {
    int64_t n;         /* rows of this step */
    int64_t *t;        /* [n] */
    int64_t *previous; /* [n] index into the rows of the step before; step 0: into the base */
    int64_t *embed;    /* [n] index into the embedded rows: token t + k */
    int64_t *position; /* [n] position id + k */
    int64_t *begin, *window_begin, *end; /* [n] base rows seen, without and with sliding window */
    int64_t *own[ACR_MAX_KV];    /* own[j]: [n] index into the rows of step j, 1 <= j <= k */
    int64_t n_draft;             /* rows that the draft head reads */
    int64_t *draft_row, *target; /* [n_draft] index into this step's rows; into the targets */
    bool *counted;               /* [n_draft] has a loss; otherwise only predicts */
} acr_step_rows;

typedef struct acr_rows {
    int n_steps;
    int64_t n_base; /* rows whose keys and values some query reads */
    int64_t *base, *base_embed, *base_position, *base_begin, *base_window_begin, *base_end;
    int64_t n_embed;
    int64_t *embed_ids; /* [n_embed] token ids */
    acr_step_rows step[ACCRUE_MAX_TTT_STEPS];
    int64_t n_targets;
    int64_t *target; /* [n_targets] rows of the micro-batch's target, ascending */
} acr_rows;

/* All lists live in the tape's meta arena. */
accrue_status acr_rows_plan(acr_rows *out, acr_tape *t, const acr_batch *b,
                            const acr_eagle3_options *o, int64_t sliding_window);

typedef struct acr_eagle3_result {
    acr_rows rows;
    double *term_loss[ACCRUE_MAX_TTT_STEPS]; /* [n_draft, n_terms] unscaled */
    int64_t *argmax[ACCRUE_MAX_TTT_STEPS];   /* [n_draft] */
    int64_t *target_argmax;                  /* [n_targets] */
    bool *correct;                           /* [n_rows] for the metrics */
} acr_eagle3_result;

/* Forward over all TTT steps and the loss.  step_scale[k] multiplies the gradient of each counted
 * row of step k: gamma^k and the denominator are in it.  Follow with acr_tape_backward. */
accrue_status acr_eagle3_forward(acr_eagle3_result *out, acr_model *m, acr_tape *t,
                                 const acr_batch *b, const acr_eagle3_options *o,
                                 const double *step_scale, accrue_error *err);

/* Sums and totals of a micro-batch, from lists on the tape.  step_weight[k] makes the loss of step
 * k of the sum of its rows' losses (gamma^k / denominator); loss_total is what this micro-batch
 * adds to the total of every loss. */
accrue_status acr_eagle3_metrics(accrue_metrics *out, const acr_eagle3_result *r, acr_tape *t,
                                 const acr_batch *b, const acr_eagle3_options *o,
                                 const double *step_weight, double loss_total, accrue_error *err);

/* The values of metrics of so many steps and terms as one array, and back: `m` of unpack has its
 * counts and names set. */
int64_t acr_metrics_values(const accrue_metrics *m);
void acr_metrics_pack(double *out, const accrue_metrics *m);
void acr_metrics_unpack(accrue_metrics *m, const double *in);

#endif
