/* pretrained.c - trained models as Hugging Face folders keep them. */
#include "model/model.h"

#include <string.h>

enum { MAX_CONFIG = 10000000 };

struct acr_pretrained {
    json_t *config, *generation;
    acr_weights *weights;
    acr_tensor *tensors; /* without data */
    int n;
    char *path;
};

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

accrue_status acr_pretrained_open(acr_pretrained **out, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_pretrained *p = acr_calloc(1, sizeof *p);

    *out = NULL;
    if (!p || !(p->path = acr_strdup(path))) {
        st = acr_enomem(err, sizeof *p, path);
        goto cleanup;
    }
    if (acr_is_file(path)) {
        st = acr_fail(err, ACCRUE_ENOTSUP, "%s: a file; supported: folders", path);
        goto cleanup;
    }
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
    acr_free(p->tensors);
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
    (void)p;
    return NULL;
}

accrue_status acr_pretrained_read(void *out, acr_dtype real, const acr_pretrained *p, int i,
                                  int64_t first, int64_t n, accrue_error *err)
{
    const acr_tensor *t = acr_weights_at(p->weights, i);
    int64_t rows = t->n_dims ? t->dims[0] : 1;
    int64_t row = rows ? acr_tensor_elements(t) / rows : 0;

    if (!acr_dtype_is_float(t->dtype))
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: %s is %s, a float type expected", p->path,
                        t->name, acr_dtype_name(t->dtype));
    if (first < 0 || n < 0 || n > rows || first > rows - n)
        return acr_fail(err, ACCRUE_EINVAL, "%s: %s: rows %lld and %lld more asked of %lld",
                        p->path, t->name, (long long)first, (long long)n, (long long)rows);
    acr_convert(real, out, t->dtype,
                (const char *)t->data + (size_t)(first * row) * acr_dtype_bytes(t->dtype), n * row);
    return ACCRUE_OK;
}
