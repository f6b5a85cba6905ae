/* pretrained.c - trained models: Hugging Face folders, and GGUF files seen as such. */
#include "model/pretrained.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG = 10000000 };

/* *out is NULL where the file is not there and need not be. */
static accrue_status load_object(json_t **out, const char *dir, const char *file, bool needed,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, file);

    if (!path)
        return acr_enomem(err, strlen(dir) + strlen(file) + 2, "a path");
    if (!needed && !acr_exists(path))
        goto cleanup;
    ACR_TRY(acr_json_load(out, path, MAX_CONFIG, err));
    if (!json_is_object(*out))
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: not a JSON object", path);

cleanup:
    acr_free(path);
    return st;
}

static accrue_status open_folder(acr_pretrained *p, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(load_object(&p->config, dir, "config.json", true, err));
    ACR_TRY(load_object(&p->generation, dir, "generation_config.json", false, err));
    ACR_TRY(acr_weights_open(&p->weights, dir, err));
    p->n = acr_weights_count(p->weights);
    p->tensors = acr_calloc((size_t)p->n + 1, sizeof *p->tensors);
    if (!p->tensors)
        return acr_enomem(err, ((size_t)p->n + 1) * sizeof *p->tensors, dir);
    for (int i = 0; i < p->n; i++) {
        p->tensors[i] = *acr_weights_at(p->weights, i);
        p->tensors[i].data = NULL;
    }

cleanup:
    return st;
}

static accrue_status create(acr_pretrained **out, const char *path, accrue_error *err)
{
    acr_pretrained *p = acr_calloc(1, sizeof *p);

    if (p && !(p->path = acr_strdup(path))) {
        acr_free(p);
        p = NULL;
    }
    *out = p;
    return p ? ACCRUE_OK : acr_enomem(err, sizeof *p, path);
}

accrue_status acr_pretrained_from_gguf(acr_pretrained **out, acr_gguf *g, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_pretrained *p = NULL;
    acr_gguf_sizes sizes = {0};

    *out = NULL;
    ACR_TRY(create(&p, acr_gguf_path(g), err));
    p->gguf = g;
    g = NULL;
    ACR_TRY(acr_gguf_config(p, &sizes, err));
    ACR_TRY(acr_gguf_tensors(p, &sizes, err));
    *out = p;
    p = NULL;

cleanup:
    acr_gguf_close(g);
    acr_pretrained_close(p);
    return st;
}

accrue_status acr_pretrained_open(acr_pretrained **out, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_pretrained *p = NULL;
    acr_gguf *g = NULL;

    *out = NULL;
    if (!acr_is_dir(path)) {
        ACR_TRY(acr_gguf_open(&g, path, err));
        return acr_pretrained_from_gguf(out, g, err);
    }
    ACR_TRY(create(&p, path, err));
    ACR_TRY(open_folder(p, path, err));
    *out = p;
    p = NULL;

cleanup:
    acr_pretrained_close(p);
    return st;
}

void acr_pretrained_close(acr_pretrained *p)
{
    if (!p)
        return;
    acr_weights_close(p->weights);
    json_decref(p->config);
    json_decref(p->generation);
    acr_gguf_close(p->gguf);
    acr_free(p->tensors);
    acr_free(p->origins);
    acr_free(p->names);
    acr_free(p->path);
    acr_free(p);
}

const json_t *acr_pretrained_config(const acr_pretrained *p)
{
    return p->config;
}

const json_t *acr_pretrained_generation(const acr_pretrained *p)
{
    return p->generation;
}

void acr_pretrained_place(char *out, size_t room, const acr_pretrained *p, const char *file)
{
    snprintf(out, room, p->gguf ? "%s" : "%s/%s", p->path, file);
}

int acr_pretrained_count(const acr_pretrained *p)
{
    return p->n;
}

const acr_tensor *acr_pretrained_at(const acr_pretrained *p, int i)
{
    return &p->tensors[i];
}

int acr_pretrained_find(const acr_pretrained *p, const char *name)
{
    for (int low = 0, high = p->n; low < high;) {
        int middle = low + (high - low) / 2;
        int order = strcmp(name, p->tensors[middle].name);
        if (order == 0)
            return middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

const acr_gguf *acr_pretrained_gguf(const acr_pretrained *p)
{
    return p->gguf;
}

const acr_gguf_tensor *acr_pretrained_origin(const acr_pretrained *p, int i)
{
    return p->gguf ? p->origins[i].tensor : NULL;
}

/* Rows that have been read: a model is read once, and its file need not stay in memory. */
static void release_rows(const void *data, size_t bytes, int64_t rows, int64_t first, int64_t n)
{
    const size_t row = rows ? bytes / (size_t)rows : 0;

    acr_map_release((const char *)data + (size_t)first * row, (size_t)n * row);
}

accrue_status acr_pretrained_read(void *out, acr_dtype real, const acr_pretrained *p, int i,
                                  int64_t first, int64_t n, accrue_error *err)
{
    const acr_tensor *t = p->gguf ? &p->tensors[i] : acr_weights_at(p->weights, i);
    int64_t rows = t->n_dims ? t->dims[0] : 1;
    int64_t row = rows ? acr_tensor_elements(t) / rows : 0;

    if (!acr_dtype_is_float(t->dtype))
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: %s is %s, a float type expected", p->path,
                        t->name, acr_dtype_name(t->dtype));
    if (first < 0 || n < 0 || n > rows || first > rows - n)
        return acr_fail(err, ACCRUE_EINVAL, "%s: %s: rows %lld and %lld more asked of %lld",
                        p->path, t->name, (long long)first, (long long)n, (long long)rows);
    if (p->gguf)
        acr_gguf_read(out, real, &p->origins[i], first, n);
    else
        acr_convert(real, out, t->dtype,
                    (const char *)t->data + (size_t)(first * row) * acr_dtype_bytes(t->dtype),
                    n * row);
    release_rows(p->gguf ? p->origins[i].tensor->data : t->data,
                 p->gguf ? p->origins[i].tensor->bytes : t->bytes, rows, first, n);
    return ACCRUE_OK;
}
