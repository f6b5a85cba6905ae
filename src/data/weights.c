/* weights.c - the weights of a model folder, in one safetensors file or in shards. */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_INDEX = 100000000 };

struct acr_weights {
    acr_safetensors **files;
    const char **shards; /* names of the files, borrowed from `index` */
    int n_files;
    json_t *index; /* NULL with a single file */
    acr_tensor *tensors;
    int n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const acr_tensor *)a)->name, ((const acr_tensor *)b)->name);
}

static accrue_status open_single(acr_weights *w, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    w->files = acr_calloc(1, sizeof *w->files);
    if (!w->files)
        return acr_enomem(err, sizeof *w->files, path);
    w->n_files = 1;
    ACR_TRY(acr_safetensors_open(&w->files[0], path, err));
    w->n = acr_safetensors_count(w->files[0]);
    w->tensors = acr_calloc((size_t)w->n + 1, sizeof *w->tensors);
    if (!w->tensors) {
        st = acr_enomem(err, (size_t)w->n * sizeof *w->tensors, path);
        goto cleanup;
    }
    for (int i = 0; i < w->n; i++)
        w->tensors[i] = *acr_safetensors_at(w->files[0], i);

cleanup:
    return st;
}

/* The shard's place in w->files; opened when it is new. */
static accrue_status open_shard(int *out, acr_weights *w, const char *dir, const char *shard,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = NULL;

    for (*out = w->n_files - 1; *out >= 0; --*out)
        if (strcmp(w->shards[*out], shard) == 0)
            return ACCRUE_OK;
    path = acr_sprintf("%s/%s", dir, shard);
    if (!path)
        return acr_enomem(err, strlen(dir) + strlen(shard) + 2, "a path");
    ACR_TRY(acr_safetensors_open(&w->files[w->n_files], path, err));
    w->shards[w->n_files] = shard;
    *out = w->n_files++;

cleanup:
    acr_free(path);
    return st;
}

static accrue_status open_shards(acr_weights *w, const char *dir, const char *path,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *map = NULL;
    json_t *value = NULL;
    const char *name = NULL;
    size_t n = 0;

    ACR_TRY(acr_json_load(&w->index, path, MAX_INDEX, err));
    map = json_object_get(w->index, "weight_map");
    if (!json_is_object(map)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: weight_map is not an object", path);
        goto cleanup;
    }
    n = json_object_size(map);
    w->files = acr_calloc(n + 1, sizeof *w->files);
    w->shards = acr_calloc(n + 1, sizeof *w->shards);
    w->tensors = acr_calloc(n + 1, sizeof *w->tensors);
    if (!w->files || !w->shards || !w->tensors) {
        st = acr_enomem(err, n * sizeof *w->tensors, path);
        goto cleanup;
    }
    json_object_foreach(map, name, value)
    {
        const char *shard = json_string_value(value);
        const acr_tensor *t = NULL;
        int i = 0;
        if (!shard || !*shard || strchr(shard, '/')) {
            st = acr_fail(err, ACCRUE_EFORMAT,
                          "%s: tensor '%s': its shard must be the name of a file beside the index",
                          path, name);
            goto cleanup;
        }
        ACR_TRY(open_shard(&i, w, dir, shard, err));
        t = acr_safetensors_find(w->files[i], name);
        if (!t) {
            st = acr_fail(err, ACCRUE_EMISMATCH, "%s: tensor '%s' is not in %s, where %s puts it",
                          dir, name, shard, path);
            goto cleanup;
        }
        w->tensors[w->n++] = *t;
    }
    if (w->n)
        qsort(w->tensors, (size_t)w->n, sizeof *w->tensors, by_name);

cleanup:
    return st;
}

accrue_status acr_weights_open(acr_weights **out, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *single = acr_sprintf("%s/model.safetensors", dir);
    char *index = acr_sprintf("%s/model.safetensors.index.json", dir);
    acr_weights *w = acr_calloc(1, sizeof *w);

    *out = NULL;
    if (!single || !index || !w) {
        st = acr_enomem(err, sizeof *w, dir);
        goto cleanup;
    }
    if (acr_is_file(single)) {
        ACR_TRY(open_single(w, single, err));
    } else if (acr_is_file(index)) {
        ACR_TRY(open_shards(w, dir, index, err));
    } else {
        st = acr_fail(err, ACCRUE_EIO,
                      "%s: neither model.safetensors nor model.safetensors.index.json is there",
                      dir);
        goto cleanup;
    }
    *out = w;
    w = NULL;

cleanup:
    acr_weights_close(w);
    acr_free(single);
    acr_free(index);
    return st;
}

void acr_weights_close(acr_weights *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_files; i++)
        acr_safetensors_close(w->files[i]);
    acr_free(w->files);
    acr_free((void *)(uintptr_t)w->shards);
    acr_free(w->tensors);
    json_decref(w->index);
    acr_free(w);
}

int acr_weights_count(const acr_weights *w)
{
    return w->n;
}

const acr_tensor *acr_weights_at(const acr_weights *w, int i)
{
    return &w->tensors[i];
}

const acr_tensor *acr_weights_find(const acr_weights *w, const char *name)
{
    acr_tensor key = {.name = name};

    return w->n ? bsearch(&key, w->tensors, (size_t)w->n, sizeof key, by_name) : NULL;
}
