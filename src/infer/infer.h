/* infer.h - models that answer: the verifier's forward pass with its keys and values kept, the
 * draft's, sampling, and speculative decoding. */
#ifndef ACR_INFER_H
#define ACR_INFER_H

#include "model/model.h"
#include "text/text.h"

/* Verifier --------------------------------------------------------------------------------- */

enum { ACR_MAX_SIZE = 1 << 24 }; /* hidden_size, intermediate_size, vocab_size */

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
bool acr_verifier_ends(const acr_verifier *v, int64_t id); /* whether this token ends an answer */
acr_dtype acr_verifier_real(const acr_verifier *v);        /* F32, or F64 for f64 compute */
size_t acr_verifier_bytes(const acr_verifier *v);          /* of its weights in memory */

/* Keys and values of one sequence.  Rows that were cut off are overwritten by what comes next. */
typedef struct acr_cache acr_cache;
accrue_status acr_cache_create(acr_cache **out, const acr_verifier *v, int64_t capacity,
                               accrue_error *err);
/* Room for so many tokens: *c (NULL: none yet) stays as it is where it has that, else an empty one,
 * large enough for some more but no larger than `most`, takes its place; NULL after a failure. */
accrue_status acr_cache_reserve(acr_cache **c, const acr_verifier *v, int64_t tokens, int64_t most,
                                accrue_error *err);
void acr_cache_free(acr_cache *c);
int64_t acr_cache_tokens(const acr_cache *c);
size_t acr_cache_bytes(const acr_cache *c);
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
 * token t + 1 and the verifier's states of token t; a *drafted* row reads the draft's own output
 * of the row before instead, and the token that it drafted there.  Row by row the arithmetic is
 * that of training: verified rows are TTT step 0, the j-th drafted row behind row t is TTT step j
 * of row t.  So in a layer with a sliding window a drafted row sees the window of row t, and the
 * drafted ones. */
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
/* Those slots by a draft's configuration, which may leave them to the defaults; `name` begins the
 * message.  EMISMATCH where a verifier of n_layers has them not. */
accrue_status acr_draft_layers(int out[ACR_MAX_AUX], const acr_config *c, int n_layers,
                               const char *name, accrue_error *err);
void acr_draft_restart(acr_draft *d); /* another sequence */
/* The next n verified rows, n >= 1: ids [n], states real [n, n_aux, hidden].  Drafted rows are
 * forgotten. */
accrue_status acr_draft_extend(acr_draft *d, const int64_t *ids, const void *states, int64_t n,
                               accrue_error *err);
/* One drafted row, at most ACCRUE_MAX_TTT_STEPS - 1 on end. */
accrue_status acr_draft_step(acr_draft *d, int64_t id, accrue_error *err);
/* Of the last row: real [draft vocabulary], and the id, the verifier's, with the highest. */
const void *acr_draft_logits(const acr_draft *d);
int64_t acr_draft_token(const acr_draft *d);

/* Speculative decoding --------------------------------------------------------------------- */

/* What became of drafted tokens.  A round drafts k of them and has the verifier check all at once.
 * It counts whole, where an answer ends inside it too, as serving engines count. */
typedef struct acr_acceptance {
    int64_t rounds, drafted, accepted;
    int64_t at[ACCRUE_MAX_TTT_STEPS];         /* rounds whose i-th drafted token was accepted */
    int64_t length[ACCRUE_MAX_TTT_STEPS + 1]; /* rounds that accepted so many */
} acr_acceptance;

/* acr_verifier_forward, or in tests something over it. */
typedef accrue_status (*acr_forward_fn)(acr_verifier_work *w, const acr_sequence *sequences, int n,
                                        const int *slots, int n_slots, accrue_error *err);

/* Answers prompts greedily: with every token the one whose logit is highest, of equal ones the
 * lowest id, up to a token that ends an answer, which belongs to it, or to `limit` tokens. */
typedef struct acr_decoder acr_decoder;
/* `k` tokens are drafted a round, 1 to ACCRUE_MAX_TTT_STEPS; `positions` bounds prompt and answer
 * together.  Verifier and draft are borrowed and of one compute dtype; the draft has room for as
 * many positions. */
accrue_status acr_decoder_create(acr_decoder **out, const acr_verifier *v, acr_draft *draft, int k,
                                 int64_t positions, acr_forward_fn forward, accrue_error *err);
void acr_decoder_free(acr_decoder *d);
/* Appends the answer to a prompt of n >= 1 tokens; ENUMERIC where a logit is not finite. */
accrue_status acr_decode_plainly(acr_ids *out, acr_decoder *d, const int64_t *prompt, int64_t n,
                                 int64_t limit, accrue_error *err);
/* The same answer by way of the draft; `counts` grows. */
accrue_status acr_decode_speculatively(acr_ids *out, acr_acceptance *counts, acr_decoder *d,
                                       const int64_t *prompt, int64_t n, int64_t limit,
                                       accrue_error *err);

/* Prompts as ids, one behind the other. */
typedef struct acr_prompts {
    int64_t n;
    acr_ids ids;
    acr_ids begin; /* n + 1: prompt i is ids.at[begin.at[i] ... begin.at[i + 1]) */
    acr_ids row;   /* n: where it stands in the file */
} acr_prompts;

/* The first `limit` (0: all) prompts at `path`: a data set folder, of whose rows what comes before
 * the first supervised token is the prompt and those without any are passed over; a JSON array of
 * strings, each a user's message; or JSONL conversations, up to the first answer.  Text is put into
 * the chat format of the verifier's folder and ends in the header of an answer. */
accrue_status acr_prompts_read(acr_prompts *out, const char *path, const char *verifier,
                               int64_t limit, accrue_error *err);
void acr_prompts_free(acr_prompts *p);

/* accrue_eval with this in the place of acr_verifier_forward. */
accrue_status acr_eval(accrue_eval_report *out, const accrue_eval_options *opt,
                       acr_forward_fn forward, accrue_eval_cb cb, void *payload, accrue_error *err);
/* Hidden states ---------------------------------------------------------------------------- */

/* Makes the states that a draft is trained on, as hs_<row>.safetensors holds them.  Of a token they
 * are the same bits however its row is cut into pieces and whatever rows are made beside it. */
typedef struct acr_extractor acr_extractor;
/* For rows of which `most` tokens at most are wanted; the verifier is borrowed.  Slots 0 to
 * n_aux - 1 are the streams that enter those layers, the last one is behind the last layer. */
accrue_status acr_extractor_create(acr_extractor **out, const acr_verifier *v, const int *aux,
                                   int n_aux, int64_t most, accrue_error *err);
void acr_extractor_free(acr_extractor *e);
/* BF16 [*n, n_aux + 1, hidden_size] of the row's next tokens from `first` on, which is 0 or where
 * the piece before ended; valid until the next call. */
accrue_status acr_extractor_piece(const void **out, int64_t *n, acr_extractor *e, const acr_row *r,
                                  int64_t first, accrue_error *err);
/* Whole rows at a time, ACR_EXTRACT_ROWS at most: out[i] is row i's. */
enum { ACR_EXTRACT_ROWS = 32, ACR_EXTRACT_TOKENS = 512 /* that are convenient at a time */ };
accrue_status acr_extractor_rows(const void **out, acr_extractor *e, const acr_row *rows, int n,
                                 accrue_error *err);

/* Settings --------------------------------------------------------------------------------- */

const char *acr_compute_name(accrue_dtype t); /* "bfloat16", "float32", "float64" */
json_t *acr_hash_json(uint64_t hash);         /* 16 hexadecimal digits; NULL when out of memory */

/* Of the configuration, and of name, shape and every number of all tensors. */
accrue_status acr_model_fingerprint(uint64_t *out, const acr_pretrained *p, accrue_error *err);
/* The same of the model at a path, which is read whole when it is first asked for; zero beside the
 * path until then. */
typedef struct acr_fingerprint {
    const char *path; /* borrowed */
    bool known;
    uint64_t hash;
} acr_fingerprint;
accrue_status acr_fingerprint_get(uint64_t *out, acr_fingerprint *f, accrue_error *err);
/* Chains what says how text is put to the model and taken from it: the bytes of tokenizer.json,
 * tokenizer_config.json, chat_template.jinja and generation_config.json, those that there are. */
accrue_status acr_chat_fingerprint(uint64_t *hash, const char *dir, accrue_error *err);

/* What output was made with, in a JSON file beside it.  *out is the caller's; NULL: no file. */
accrue_status acr_settings_read(json_t **out, const char *path, accrue_error *err);
/* EMISMATCH where a key of `now` has another value `before`, or none: `path`, the output, begins
 * the message, and `flag` is what another output is given by. */
accrue_status acr_settings_compare(const json_t *before, const json_t *now, const char *path,
                                   const char *settings_path, const char *flag, accrue_error *err);
accrue_status acr_settings_write(const char *path, const json_t *settings, accrue_error *err);

/* Of a folder of hidden states: verifier, layers, and, but for NULL, the dtype. */
#define ACR_STATES_SETTINGS "extract.json"
accrue_status acr_states_settings(json_t **out, acr_fingerprint *verifier, const int *aux,
                                  int n_aux, const accrue_dtype *compute, accrue_error *err);
/* EMISMATCH where the folder's file has others; *there: it has that file, and only then is the
 * verifier looked at. */
accrue_status acr_states_settings_check(bool *there, const char *dir, acr_fingerprint *verifier,
                                        const int *aux, int n_aux, const accrue_dtype *compute,
                                        accrue_error *err);

/* Sampling --------------------------------------------------------------------------------- */

/* How the next token is drawn from a model's logits.  With temperature 0 it is the one with the
 * greatest logit, of several the lowest id.  Otherwise the probabilities are softmax(logits /
 * temperature), of which the nucleus stays (Holtzman et al. 2020): the fewest tokens, likeliest
 * first and of equals the lower id first, that together have top_p or more; at least one. */
typedef struct acr_sampling {
    double temperature; /* >= 0 */
    double top_p;       /* in (0, 1]; 1: all tokens */
    uint64_t seed;
} acr_sampling;

/* `name` begins the message; EINVAL for a value out of range. */
accrue_status acr_sampling_check(const acr_sampling *how, const char *name, accrue_error *err);

typedef struct acr_sampler acr_sampler; /* buffers; one per thread of control */
accrue_status acr_sampler_create(acr_sampler **out, int64_t vocab_size, accrue_error *err);
void acr_sampler_free(acr_sampler *s);
/* A token for place `position` of sequence `row`: of the same logits, seed, row and position always
 * the same.  -1 where a logit is NaN or +infinity, or all are -infinity. */
int64_t acr_sample(acr_sampler *s, const acr_sampling *how, acr_dtype real, const void *logits,
                   uint64_t row, uint64_t position);

/* Answering -------------------------------------------------------------------------------- */

typedef enum acr_finish {
    ACR_FINISH_STOP = 1,  /* the model ended its answer */
    ACR_FINISH_LENGTH = 2 /* there was no room for more */
} acr_finish;

typedef struct acr_prompt {
    const int64_t *ids; /* [n], borrowed until the answer is there; n >= 1 */
    int64_t n;
    int64_t limit; /* tokens of the answer at most, the one that ends it included */
    uint64_t row;  /* of the random numbers */
} acr_prompt;

/* Who has the prompts.  Places are numbers below the batch size; what a place was asked last stays
 * in memory, so that a prompt which begins with it and its answer is soon read. */
typedef struct acr_questions {
    /* The next prompt for a free place; *any false where there is none for it from now on. */
    accrue_status (*ask)(bool *any, acr_prompt *out, int place, void *ctx, accrue_error *err);
    /* The place's answer: `n` ids, without the one that ended it.  They are lent. */
    accrue_status (*take)(int place, const int64_t *ids, int64_t n, acr_finish why, void *ctx,
                          accrue_error *err);
    /* Between two steps; what is not OK ends the answering.  `tokens` were read, `made` written. */
    accrue_status (*step)(int64_t tokens, int64_t made, void *ctx, accrue_error *err);
    void *ctx;
    int64_t end;              /* an id that ends answers beside the model's own; -1: none */
    const char *data, *model; /* for messages: the file that has the rows, and the verifier */
} acr_questions;

/* Answers all prompts, up to `batch` at a time: a place that is free is asked for at once.  Answers
 * depend on model, sampling, prompt and row alone.  `positions` bounds prompt and answer together;
 * the verifier has room for as many.  ENUMERIC, naming data, row and model, where logits are not
 * finite. */
accrue_status acr_answer_all(const acr_verifier *v, const acr_sampling *how, int batch,
                             int64_t positions, const acr_questions *q, accrue_error *err);

#endif
