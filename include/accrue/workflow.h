/* workflow.h - from a model to a measured draft: import, generate, prepare, extract, eval, export.
 *
 * Part of accrue.h, whose contract holds here too; include that. */
#ifndef ACCRUE_WORKFLOW_H
#define ACCRUE_WORKFLOW_H

#ifndef ACCRUE_H
#error "include accrue/accrue.h"
#endif

/* How far a long call is.  Counts start where the work that was there already ends. */
typedef struct accrue_progress {
    const char *unit;                   /* what done and total count: "rows" */
    int64_t done, total;                /* with what was there already */
    int64_t found;                      /* of them, there already */
    int64_t tokens, bytes;              /* read or made in this call */
    double seconds;                     /* of this call */
    int64_t expected_bytes, free_bytes; /* that are to be made in all; of the disk they go to,
                                           before; 0: not known */
} accrue_progress;
/* Non-zero stops with ECANCELED.  Of generate and extract what was written stays, and the same call
 * goes on from it; of the others nothing is left. */
typedef int (*accrue_progress_cb)(const accrue_progress *progress, void *payload);

/* Import -------------------------------------------------------------------------------------- */

/* A Hugging Face folder out of a GGUF file. */
typedef enum accrue_import_dtype {
    ACCRUE_IMPORT_AUTO = 0, /* what the file's numbers need: quantised ones become bfloat16 */
    ACCRUE_IMPORT_BF16 = 1,
    ACCRUE_IMPORT_F16 = 2,
    ACCRUE_IMPORT_F32 = 3
} accrue_import_dtype;

typedef struct accrue_import_options {
    size_t struct_size; /* set by accrue_import_options_init; do not touch */
    const char *model;  /* the file */
    const char *out;    /* the folder, which must not be there */
    accrue_import_dtype dtype;
} accrue_import_options;

ACCRUE_API void accrue_import_options_init(accrue_import_options *opt, size_t struct_size);

typedef struct accrue_import_type {
    char name[8]; /* as GGUF names it: "Q4_K" */
    int64_t tensors, parameters;
    int64_t source_bytes, bytes; /* in the file; in the folder */
} accrue_import_type;

typedef struct accrue_import_report {
    bool found; /* the folder is an import of that file: nothing was written */
    char architecture[16], dtype[16]; /* "llama"; "bfloat16": what config.json says */
    int64_t tensors, parameters, layers, vocab_size;
    int64_t source_bytes, bytes; /* of the file; of all files of the folder */
    int n_types;
    accrue_import_type types[16];
    bool tokenizer, chat_template; /* whether the folder has them */
    char tokenizer_why[200];       /* why not */
    double seconds;
} accrue_import_report;

/* Writes config.json, generation_config.json, model.safetensors, tokenizer.json with its
 * tokenizer_config.json and chat_template.jinja where the file carries a byte-level BPE vocabulary,
 * and import.json, which says of what file they are.  docs/FORMATS.md has the mapping.  The folder
 * comes to its name when all is on the disk; after a failure nothing is left.  A folder that is
 * there is refused (EMISMATCH) unless it is a finished import of the same bytes as the same dtype;
 * then nothing is done.  `cb` (may be NULL) is told of the bytes of model.safetensors; stopped by
 * it (ECANCELED), nothing is left either.  EFORMAT where a weight is not finite, ENUMERIC where one
 * is too large for float16. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_import(accrue_import_report *out,
                                                    const accrue_import_options *opt,
                                                    accrue_progress_cb cb, void *payload,
                                                    accrue_error *err);

/* Generate ------------------------------------------------------------------------------------ */

/* The verifier's own answers to what the conversations of a data set ask. */
typedef struct accrue_generate_options {
    size_t struct_size;        /* set by accrue_generate_options_init; do not touch */
    const char *verifier;      /* a folder, with tokenizer.json and a chat template */
    const char *data;          /* JSON Lines of conversations, as accrue_prepare takes them */
    const char *output;        /* JSON Lines */
    int64_t max_new_tokens;    /* of an answer; default 512 */
    double temperature, top_p; /* NaN: what generation_config.json says, else 1; temperature 0:
                                  always the likeliest token */
    uint64_t seed;             /* default 42 */
    int batch_size;            /* conversations that are answered at a time; default 16 */
    accrue_dtype compute;      /* default BF16 */
    int64_t limit;             /* lines of `data` at most; 0: all */
} accrue_generate_options;

ACCRUE_API void accrue_generate_options_init(accrue_generate_options *opt, size_t struct_size);

typedef struct accrue_generate_report {
    int64_t rows, found;           /* lines of `data`; done before this call */
    int64_t made, answers;         /* of this call: lines written, the answers in them */
    int64_t skipped;               /* lines that ask nothing, or more than the model has room for */
    int64_t cut;                   /* answers that max_new_tokens ended */
    int64_t prompt_tokens, tokens; /* read and written */
    double temperature, top_p;     /* that were used */
    double seconds;
} accrue_generate_report;

/* Writes a line for each conversation of `data`, in their order: {"conversations": ..., "metadata":
 * {"idx": line, "finish_reason": "stop" or "length", ...}}.  System and user turns stay; each user
 * turn is answered anew, with the answers before it in view; what stood there as an answer is
 * dropped, and so is all from a tool's turn on.  A conversation without a user's turn, or whose
 * first one leaves no room for an answer, has no line.
 *   An answer depends on verifier, dtype, sampling, seed, its conversation and the number of its
 * line alone.  The same call goes on where an earlier one was stopped and ends with the same file;
 * `output`.settings.json says what it was begun with, and another call, or a file of anything else,
 * is refused (EMISMATCH).  `cb` may be NULL. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_generate(accrue_generate_report *out,
                                                      const accrue_generate_options *opt,
                                                      accrue_progress_cb cb, void *payload,
                                                      accrue_error *err);

/* Prepare ------------------------------------------------------------------------------------- */

typedef struct accrue_prepare_options {
    size_t struct_size;       /* set by accrue_prepare_options_init; do not touch */
    const char *const *files; /* [n_files] JSON Lines: a row or a conversation on each */
    int n_files;
    const char *verifier;         /* folder: tokenizer.json, chat template, config.json */
    const char *output;           /* the data set's folder */
    int64_t seq_length;           /* tokens of a row at most; what is longer is cut */
    int64_t max_samples;          /* rows at most, of all in their new order; 0: no limit */
    int64_t minimum_valid_tokens; /* rows with fewer supervised tokens are left out */
    uint64_t seed;                /* of the order */
    int64_t draft_vocab_size;     /* 0: no vocabulary maps are written */
    bool skip_token_freq;         /* write no token_freq.pt */
    bool overwrite;               /* replace a data set that is there */
    bool allow_empty_output;
    accrue_policy on_bad; /* a faulty line: RAISE, or SKIP */
    int64_t max_bad;      /* of these; -1: 1 % of the lines, at least one */
} accrue_prepare_options;

ACCRUE_API void accrue_prepare_options_init(accrue_prepare_options *opt, size_t struct_size);

typedef struct accrue_prepare_report {
    int64_t lines;                           /* of the files, without empty ones */
    int64_t rows, tokens, supervised_tokens; /* of the data set */
    int64_t longest;                         /* tokens of its longest row */
    int64_t cut_rows;                        /* rows that seq_length may have cut */
    int64_t bad_lines;                       /* left out as faulty */
    int64_t unanswered;                      /* conversations that gave no row at all */
    int64_t unsupervised_rows, short_rows;   /* left out: nothing, too little to learn */
    int64_t surplus_rows;                    /* left out: above max_samples */
    int64_t files, bytes;                    /* of the data set's rows */
    int64_t distinct_tokens;                 /* that are supervised somewhere */
    int64_t unknown_roles;                   /* messages taken for the assistant's */
    char unknown_role[64], first_bad[1000];  /* the first of each, "" where none */
    bool found;                              /* the same was there already */
    double seconds;
} accrue_prepare_report;

/* Makes the data set that training reads, and speculators' too, out of conversations, texts, or
 * rows of tokens: input_ids, loss_mask and seq_len, in the order, with the ids and with the masks
 * of `speculators prepare-data` 0.9 for the same files and seed.  A conversation gives a row for
 * each answer, whose tokens alone are supervised.  docs/FORMATS.md has the forms of a line, and the
 * one difference: what a message spells is never a control token.
 *   The folder comes to its name when it is whole.  One that is there is left as it is where it was
 * made from the same files with the same options, and refused (EMISMATCH) where not, unless
 * `overwrite` is set and it holds nothing else.  A canceled or failed call leaves nothing behind.
 * EINVAL for options out of range; EFORMAT, EMISMATCH with file and line for a faulty one; ENOTSUP
 * for a tokenizer or chat template that this version does not know.  `cb` may be NULL. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_prepare(accrue_prepare_report *out,
                                                     const accrue_prepare_options *opt,
                                                     accrue_progress_cb cb, void *payload,
                                                     accrue_error *err);

/* Extract ------------------------------------------------------------------------------------- */

/* Hidden states of the verifier for the rows of a data set. */
typedef struct accrue_extract_options {
    size_t struct_size;   /* set by accrue_extract_options_init; do not touch */
    const char *verifier; /* a folder, or a .gguf file */
    const char *data_path, *hidden_states_path; /* NULL: data_path/hidden_states */
    const int *target_layer_ids;                /* n_target_layer_ids; 0: 2, n/2, n-3 of n layers */
    int n_target_layer_ids;
    accrue_dtype compute; /* default BF16; the files hold bf16 in any case */
} accrue_extract_options;

ACCRUE_API void accrue_extract_options_init(accrue_extract_options *opt, size_t struct_size);

typedef struct accrue_extract_report {
    int64_t rows, found, broken; /* of the set; there already; of the others, there but wrong */
    int64_t made, tokens, bytes; /* files of this call, what they hold */
    int64_t needed_bytes, free_bytes; /* on the disk, before */
    double seconds;
} accrue_extract_report;

/* Writes hs_<row>.safetensors for each row of the data set that has none, or one that is cut off or
 * of other tokens, layers or sizes: hidden_states BF16 [tokens, layers + 1, hidden size], the
 * residual stream that enters each layer and, last, the one behind the last layer before the final
 * norm; token_ids I64 [tokens].  A file comes to its name when it is whole.  The same call goes on
 * where an earlier one was stopped, and ends with the same files.  `cb` may be NULL.
 *   ENOSPACE, before anything is written, where the disk has no room for all of it and a reserve;
 * EIO where another call is at work in that folder; ENUMERIC, with the row, where a state is NaN or
 * infinite. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_extract(accrue_extract_report *out,
                                                     const accrue_extract_options *opt,
                                                     accrue_progress_cb cb, void *payload,
                                                     accrue_error *err);

/* Evaluate ------------------------------------------------------------------------------------ */

/* Evaluation: what a draft is worth, by speculative decoding with its verifier. */
typedef struct accrue_eval_options {
    size_t struct_size;     /* set by accrue_eval_options_init; do not touch */
    const char *checkpoint; /* folder of the draft */
    const char *verifier;   /* folder or GGUF file; NULL: the one that the checkpoint names */
    const char *prompts;    /* a JSON array of strings, JSONL conversations, or a data set folder */
    int num_speculative_tokens; /* k, 1 to ACCRUE_MAX_TTT_STEPS; default 3 */
    int64_t max_new_tokens;     /* of an answer; default 64 */
    int64_t limit;              /* prompts, the first ones; 0: all */
    accrue_dtype compute;       /* of both models; default F32 */
} accrue_eval_options;

ACCRUE_API void accrue_eval_options_init(accrue_eval_options *opt, size_t struct_size);

/* Over the prompts answered.  A round drafts k tokens and verifies them in one forward of the
 * verifier, which yields one token more, the bonus.  docs/EVAL.md has the definitions. */
typedef struct accrue_eval_report {
    int num_speculative_tokens;
    int64_t prompts, done;         /* to answer; answered */
    int64_t prompt_tokens, tokens; /* tokens: of the answers */
    int64_t rounds, drafted, accepted;
    int64_t accepted_at[ACCRUE_MAX_TTT_STEPS]; /* rounds whose i-th drafted token was accepted */
    int64_t accepted_length[ACCRUE_MAX_TTT_STEPS + 1]; /* rounds that accepted so many */
    double plain_seconds, speculative_seconds;         /* to answer them all, each way */
    double seconds;                                    /* of this call, its loading included */
    int64_t differing;  /* prompts whose speculative answer is not the verifier's own */
    char verifier[512]; /* where it was read from */
} accrue_eval_report;

/* One prompt, answered both ways.  Pointers are lent for the call. */
typedef struct accrue_eval_prompt {
    int64_t row; /* 0-based, in the file */
    int64_t prompt_tokens, rounds, drafted, accepted;
    double plain_seconds, speculative_seconds;
    const int64_t *tokens; /* [n_tokens] the verifier's own answer */
    int64_t n_tokens;
    int64_t differs_at; /* first token of the speculative answer that is another; -1: none */
} accrue_eval_prompt;

/* Told of each prompt when it is answered.  Non-zero stops with ECANCELED. */
typedef int (*accrue_eval_cb)(const accrue_eval_prompt *prompt, const accrue_eval_report *so_far,
                              void *payload);

/* Answers every prompt greedily, plainly and speculatively, one after the other and the other way
 * round with the next.  EVERIFY where an answer differs, which names the first prompt and place;
 * all prompts are answered and the report is filled all the same. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_eval(accrue_eval_report *out,
                                                  const accrue_eval_options *opt, accrue_eval_cb cb,
                                                  void *payload, accrue_error *err);

/* Export -------------------------------------------------------------------------------------- */

/* Of matrices; norms are F32. */
typedef enum accrue_export_dtype {
    ACCRUE_EXPORT_BF16 = 1,
    ACCRUE_EXPORT_F16 = 2,
    ACCRUE_EXPORT_F32 = 3,
    ACCRUE_EXPORT_Q8_0 = 4
} accrue_export_dtype;

typedef struct accrue_export_options {
    size_t struct_size;        /* set by accrue_export_options_init; do not touch */
    const char *checkpoint;    /* folder of a draft: config.json and safetensors */
    const char *verifier;      /* folder of its verifier: config.json and the tokenizer's files */
    const char *out;           /* the GGUF file; one that is there is replaced */
    accrue_export_dtype dtype; /* BF16 */
} accrue_export_options;

ACCRUE_API void accrue_export_options_init(accrue_export_options *opt, size_t struct_size);

/* Writes an EAGLE-3 draft as llama.cpp reads it: the bytes that its own converter writes.  *report
 * (may be NULL; freed with accrue_string_free) is a JSON object: what was written, and under "lost"
 * what llama.cpp will do otherwise than training did.  What it cannot do at all is refused by name.
 * The file appears whole or not at all; one that is no GGUF is not replaced.  `cb` (may be NULL) is
 * told of the bytes written, and may stop with ECANCELED. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_export(char **report, const accrue_export_options *opt,
                                                    accrue_progress_cb cb, void *payload,
                                                    accrue_error *err);

#endif /* ACCRUE_WORKFLOW_H */
