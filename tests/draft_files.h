/* draft_files.h - random drafts as checkpoint folders, for tests of what reads them. */
#ifndef DRAFT_FILES_H
#define DRAFT_FILES_H

#include "model/model.h"

#include "files.h"

enum { MAX_DRAFT_TENSORS = 96 };

/* A draft's own tensors, in F64 or rounded to bf16. */
typedef struct draft_files {
    acr_config config;
    acr_tensor tensors[MAX_DRAFT_TENSORS];
    int n;
    void *blocks[MAX_DRAFT_TENSORS];
} draft_files;

static inline void draft_add(draft_files *f, const char *name, acr_dtype type, int n_dims,
                             int64_t rows, int64_t cols)
{
    const int64_t n = rows * (n_dims == 2 ? cols : 1);
    acr_tensor *t = &f->tensors[f->n];

    assert_true(f->n < MAX_DRAFT_TENSORS);
    f->blocks[f->n] = acr_calloc((size_t)n, acr_dtype_bytes(type));
    assert_non_null(f->blocks[f->n]);
    *t = (acr_tensor){.name = acr_strdup(name), .dtype = type, .n_dims = n_dims};
    t->dims[0] = rows;
    t->dims[1] = n_dims == 2 ? cols : 0;
    t->data = f->blocks[f->n++];
    t->bytes = (size_t)n * acr_dtype_bytes(type);
}

/* Random values that bf16 holds exactly, so that every precision starts from the same numbers. */
static inline void draft_fill(draft_files *f, uint64_t seed, double weights)
{
    for (int i = 0; i < f->n; i++) {
        const acr_tensor *t = &f->tensors[i];
        const bool norm = strstr(t->name, "norm") != NULL;
        const double deviation = norm ? 0.125 : t->n_dims == 2 ? weights : 0.1;

        for (int64_t j = 0; j < acr_tensor_elements(t); j++) {
            double x = deviation * acr_random_normal(seed, ACR_RANDOM_INIT,
                                                     acr_hash_string(t->name), (uint64_t)j);
            x = (double)acr_f32_from_bf16(acr_bf16_from_f32((float)(norm ? 1 + x : x)));
            acr_convert(t->dtype, (char *)f->blocks[i] + (size_t)j * acr_dtype_bytes(t->dtype),
                        ACR_DTYPE_F64, &x, 1);
        }
    }
}

/* The draft that the text of a config.json describes. */
static inline void draft_files_make(draft_files *f, const char *config, acr_dtype type,
                                    uint64_t seed, double weights)
{
    accrue_error e = {0};
    json_t *json = NULL;
    acr_config config_copy = {0};
    acr_vocab none = {0};
    acr_model *m = NULL;

    memset(f, 0, sizeof *f);
    assert_ok(acr_json_parse(&json, config, strlen(config), "config", &e), &e);
    assert_ok(acr_config_read(&f->config, json, "config", &e), &e);
    assert_ok(acr_config_read(&config_copy, json, "config", &e), &e);
    assert_ok(acr_model_create(&m, &config_copy, &none, ACCRUE_F64, 8, NULL, &e), &e);
    for (int i = 0; i < m->n_params; i++)
        if (!strstr(m->params[i].name, "verifier"))
            draft_add(f, m->params[i].name, type, m->params[i].n_dims, m->params[i].rows,
                      m->params[i].cols);
    draft_fill(f, seed, weights);
    acr_model_free(m);
    json_decref(json);
}

/* Adds maps of a draft vocabulary: every id whose number modulo `every` is 1, then others. */
static inline void draft_files_map(draft_files *f, int64_t every)
{
    accrue_error e = {0};
    acr_vocab v = {0};
    const int64_t vocab = f->config.vocab_size, n = f->config.draft_vocab_size;
    int64_t *counts = calloc((size_t)vocab, sizeof *counts);

    assert_non_null(counts);
    for (int64_t i = 1; i < vocab; i += every)
        counts[i] = 5;
    assert_ok(acr_vocab_build(&v, counts, vocab, n, &e), &e);
    draft_add(f, "d2t", ACR_DTYPE_I64, 1, n, 1);
    memcpy(f->blocks[f->n - 1], v.d2t, (size_t)n * sizeof *v.d2t);
    draft_add(f, "t2d", ACR_DTYPE_BOOL, 1, vocab, 1);
    memcpy(f->blocks[f->n - 1], v.t2d, (size_t)vocab);
    acr_vocab_free(&v);
    free(counts);
}

static inline acr_tensor *draft_tensor(draft_files *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    return NULL;
}

static inline void draft_drop(draft_files *f, const char *name)
{
    acr_tensor *t = draft_tensor(f, name);
    const int i = (int)(t - f->tensors);

    assert_non_null(t);
    acr_free((char *)(uintptr_t)t->name);
    acr_free(f->blocks[i]);
    for (int j = i + 1; j < f->n; j++) {
        f->tensors[j - 1] = f->tensors[j];
        f->blocks[j - 1] = f->blocks[j];
    }
    f->n--;
}

static inline void draft_files_write(const draft_files *f, const char *dir)
{
    accrue_error e = {0};
    char *path = acr_sprintf("%s/config.json", dir);
    char *text = json_dumps(f->config.json, 0);

    assert_true(path && text);
    write_text(path, text);
    acr_free(path);
    free(text);
    path = acr_sprintf("%s/model.safetensors", dir);
    assert_ok(acr_safetensors_write(path, f->tensors, f->n, NULL, NULL, &e), &e);
    acr_free(path);
}

static inline void draft_files_free(draft_files *f)
{
    while (f->n)
        draft_drop(f, f->tensors[0].name);
    acr_config_free(&f->config);
}

#endif
