/* export_parts.h - what the files of accrue_export share. */
#ifndef ACR_EXPORT_PARTS_H
#define ACR_EXPORT_PARTS_H

#include "model/model.h"

enum { ACR_EXPORT_MOST = 24 }; /* tensors of a draft */

/* A tensor to be written and where it comes from. */
typedef struct acr_export_tensor {
    const acr_tensor *from; /* NULL: `values` */
    const void *values;     /* in the file's own type */
    int heads;              /* rows of so many heads are interleaved; 0: they stay */
} acr_export_tensor;

typedef struct acr_export {
    const accrue_export_options *opt;
    char *config_name, *verifier_name; /* paths of the two config.json, for messages */
    json_t *config;                    /* the draft's */
    json_t *decoder;                   /* the same with the decoder's own members over it */
    json_t *verifier;                  /* likewise */
    acr_config draft;
    acr_weights *weights;
    acr_gguf_keys keys;
    acr_gguf_tensor tensors[ACR_EXPORT_MOST];
    acr_export_tensor sources[ACR_EXPORT_MOST];
    int n;
    int64_t *ids;    /* of the draft's vocabulary, the verifier's; NULL: all */
    float *rope;     /* llama3's factors; NULL: none */
    float *row;      /* [columns] */
    int64_t columns; /* of the widest matrix */
    json_t *lost;    /* array of {"what", "effect"} */
    accrue_progress_cb cb;
    void *payload;
    accrue_progress progress;
    double began;
} acr_export;

/* Says what llama.cpp will do otherwise. */
accrue_status acr_export_lose(acr_export *e, const char *what, accrue_error *err,
                              const char *format, ...) ACR_PRINTF(4, 5);

/* Refuses what llama.cpp cannot do and lists what it does otherwise. */
accrue_status acr_export_check(acr_export *e, accrue_error *err);
/* The tensors, in the order in which llama.cpp's converter writes them. */
accrue_status acr_export_plan(acr_export *e, accrue_error *err);
/* By what llama.cpp divides the frequencies of each pair: llama3's scaling.  [head_dim / 2] */
void acr_export_rope(float *out, const acr_rope_config *r, int head_dim);
int64_t acr_export_elements(const acr_export *e); /* of all tensors */
/* An acr_gguf_source's rows; `ctx` is the export. */
accrue_status acr_export_rows(void *out, const acr_gguf_tensor *t, int64_t first, int64_t n,
                              void *ctx, accrue_error *err);

/* The keys about the model and where it comes from. */
accrue_status acr_export_model_keys(acr_export *e, accrue_error *err);
/* What the README.md of a folder says about it (its front matter, as Hugging Face has it), as
 * members of `about` that are not there yet. */
accrue_status acr_export_card(json_t *about, const char *dir, int64_t elements, accrue_error *err);
/* What a model's name tells, by its parts, as members of `about` that are not there yet: name,
 * organization, basename, finetune, version, size_label. */
accrue_status acr_export_name(json_t *about, const char *id, int64_t elements, accrue_error *err);
/* "1.2-my-model" as a title, "1.2 My Model"; freed with acr_free. */
char *acr_export_title(const char *s);
/* "5.1M" */
void acr_export_size(char *out, size_t bytes, int64_t elements);

/* The keys about the verifier's tokenizer. */
accrue_status acr_export_vocab_keys(acr_export *e, accrue_error *err);
/* The special tokens' keys; `tokenizer` and `config` are the files' objects, the latter NULL where
 * there is none. */
accrue_status acr_export_special_keys(acr_export *e, const json_t *tokenizer, const json_t *config,
                                      accrue_error *err);
/* What llama.cpp calls the way in which text is cut before merging; `*known` tells whether its
 * converter knows the tokenizer. */
accrue_status acr_export_pre(const char **out, bool *known, const json_t *tokenizer,
                             const char *name, accrue_error *err);

/* A JSON object out of a file, the numbers in it however large.  *out is NULL where there is no
 * file. */
accrue_status acr_export_json(json_t **out, const char *dir, const char *file, accrue_error *err);
/* A file's text with line ends as one '\n'; freed with acr_free.  *out is NULL where there is no
 * file. */
accrue_status acr_export_text(char **out, const char *dir, const char *file, accrue_error *err);
/* Sets a member that is not there yet. */
accrue_status acr_export_set(json_t *about, const char *key, json_t *value, accrue_error *err);

#endif
