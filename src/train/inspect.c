/* inspect.c - what a data set, checkpoint or verifier folder contains, as JSON.
 *
 * Offsets and headers are read, contents only where a count needs them (masks of the data set), so
 * that a folder of any size takes well under a second. */
#include "train/train.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JSON = 16 << 20, MASK_ROWS = 200000 };

static char *path_in(const char *dir, const char *name)
{
    return acr_sprintf("%s/%s", dir, name);
}

static bool has_file(const char *dir, const char *name)
{
    char *path = path_in(dir, name);
    bool has = path && acr_is_file(path);

    acr_free(path);
    return has;
}

static json_t *shape_json(int n_dims, const int64_t *dims)
{
    char text[ACR_SHAPE_TEXT];

    return json_string(acr_shape_text(text, n_dims, dims));
}

/* Tensors ---------------------------------------------------------------------------------- */

static accrue_status describe_weights(json_t *out, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_weights *w = NULL;
    json_t *list = json_array();
    int64_t elements = 0, bytes = 0;

    ACR_TRY(acr_weights_open(&w, dir, err));
    for (int i = 0; i < acr_weights_count(w); i++) {
        const acr_tensor *t = acr_weights_at(w, i);
        json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "name", t->name, "dtype",
                                              acr_dtype_name(t->dtype), "shape",
                                              shape_json(t->n_dims, t->dims)));
        elements += acr_dtype_is_float(t->dtype) ? acr_tensor_elements(t) : 0;
        bytes += (int64_t)t->bytes;
    }
    json_object_set_new(out, "parameters", json_integer(elements));
    json_object_set_new(out, "bytes", json_integer(bytes));
    json_object_set_new(out, "tensors", json_incref(list));

cleanup:
    json_decref(list);
    acr_weights_close(w);
    return st;
}

static void copy_keys(json_t *out, const json_t *from, const char *const *keys)
{
    for (; *keys; keys++)
        if (json_object_get(from, *keys))
            json_object_set(out, *keys, json_object_get(from, *keys));
}

static void copy_file(json_t *out, const char *dir, const char *name, const char *key)
{
    char *path = path_in(dir, name);
    json_t *value = NULL;

    if (path && acr_is_file(path) && !acr_json_load(&value, path, MAX_JSON, NULL))
        json_object_set_new(out, key, value);
    acr_free(path);
}

static accrue_status describe_model(json_t *out, const char *dir, accrue_error *err)
{
    static const char *const decoder_keys[] = {"model_type",
                                               "hidden_size",
                                               "intermediate_size",
                                               "num_hidden_layers",
                                               "num_attention_heads",
                                               "num_key_value_heads",
                                               "head_dim",
                                               "vocab_size",
                                               "layer_types",
                                               "sliding_window",
                                               "max_position_embeddings",
                                               "tie_word_embeddings",
                                               "dtype",
                                               NULL};
    static const char *const draft_keys[] = {"speculators_model_type",
                                             "draft_vocab_size",
                                             "eagle_aux_hidden_state_layer_ids",
                                             "norm_before_residual",
                                             "norm_before_fc",
                                             "fc_norm",
                                             "norm_output",
                                             "embed_requires_grad",
                                             NULL};
    accrue_status st = ACCRUE_OK;
    char *path = path_in(dir, "config.json");
    json_t *config = NULL;
    const json_t *decoder = NULL;

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_json_load(&config, path, MAX_JSON, err));
    decoder = json_object_get(config, "transformer_layer_config");
    json_object_set_new(out, "kind", json_string(decoder ? "checkpoint" : "verifier"));
    if (decoder)
        copy_keys(out, config, draft_keys);
    copy_keys(out, decoder ? decoder : acr_verifier_config(config), decoder_keys);
    copy_file(out, dir, "training_state.json", "training_state");
    copy_file(out, dir, "val_metrics.json", "val_metrics");
    ACR_TRY(describe_weights(out, dir, err));

cleanup:
    json_decref(config);
    acr_free(path);
    return st;
}

/* Data set --------------------------------------------------------------------------------- */

/* Supervised tokens; of very large sets a prefix, which the key then says. */
static accrue_status describe_masks(json_t *out, acr_dataset *d, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t rows = acr_dataset_rows(d);
    int64_t read = rows < MASK_ROWS ? rows : MASK_ROWS;
    int64_t tokens = 0, supervised = 0, empty = 0;

    for (int64_t i = 0; i < read; i++) {
        acr_row r;
        int64_t ones = 0;
        ACR_TRY(acr_dataset_row(&r, d, i, err));
        for (int64_t j = 0; j < r.tokens; j++)
            ones += r.loss_mask[j];
        tokens += r.tokens;
        supervised += ones;
        empty += ones == 0;
    }
    if (read < rows)
        json_object_set_new(out, "rows_with_masks_read", json_integer(read));
    json_object_set_new(out, "supervised_tokens", json_integer(supervised));
    json_object_set_new(out, "supervised_share",
                        json_real(tokens ? (double)supervised / (double)tokens : 0.0));
    json_object_set_new(out, "rows_without_supervision", json_integer(empty));

cleanup:
    return st;
}

/* Files named hs_<row>.safetensors; the shape comes from one of them. */
static void describe_states(json_t *out, const char *dir, int64_t rows)
{
    char *path = path_in(dir, "hidden_states");
    DIR *d = path ? opendir(path) : NULL;
    struct dirent *entry = NULL;
    int64_t found = 0, bytes = 0;
    char *first = NULL;
    acr_safetensors *f = NULL;
    json_t *states = json_object();

    while (d && (entry = readdir(d)) != NULL) {
        const char *end = strstr(entry->d_name, ".safetensors");
        if (strncmp(entry->d_name, "hs_", 3) != 0 || !end || strlen(end) != strlen(".safetensors"))
            continue;
        found++;
        if (!first)
            first = acr_sprintf("%s/%s", path, entry->d_name);
    }
    if (d)
        closedir(d);
    json_object_set_new(states, "files", json_integer(found));
    json_object_set_new(states, "rows_without_file", json_integer(rows > found ? rows - found : 0));
    if (first && !acr_safetensors_open(&f, first, NULL)) {
        const acr_tensor *t = acr_safetensors_find(f, "hidden_states");
        if (t && t->n_dims == 3) {
            json_object_set_new(states, "dtype", json_string(acr_dtype_name(t->dtype)));
            json_object_set_new(states, "slots", json_integer(t->dims[1]));
            json_object_set_new(states, "hidden_size", json_integer(t->dims[2]));
            bytes = t->dims[1] * t->dims[2] * (int64_t)acr_dtype_bytes(t->dtype);
            json_object_set_new(states, "bytes_per_token", json_integer(bytes));
        }
    }
    json_object_set_new(out, "hidden_states", states);
    acr_safetensors_close(f);
    acr_free(first);
    acr_free(path);
}

static void describe_maps(json_t *out, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *entry = NULL;
    json_t *maps = json_array();

    while (d && (entry = readdir(d)) != NULL) {
        size_t n = strlen(entry->d_name);
        if (n > 4 && strcmp(entry->d_name + n - 4, ".npy") == 0) {
            char *path = path_in(dir, entry->d_name);
            acr_map map = {0};
            acr_tensor t;
            if (path && !acr_npy_read(&t, &map, path, NULL))
                json_array_append_new(maps, json_pack("{s:s, s:s, s:o}", "file", entry->d_name,
                                                      "dtype", acr_dtype_name(t.dtype), "shape",
                                                      shape_json(t.n_dims, t.dims)));
            acr_map_close(&map);
            acr_free(path);
        }
    }
    if (d)
        closedir(d);
    json_object_set_new(out, "vocabulary_maps", maps);
}

static accrue_status describe_dataset(json_t *out, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_dataset *d = NULL;
    int64_t rows = 0, tokens = 0, shortest = INT64_MAX, longest = 0;

    ACR_TRY(acr_dataset_open(&d, dir, err));
    rows = acr_dataset_rows(d);
    for (int64_t i = 0; i < rows; i++) {
        int64_t n = acr_dataset_tokens(d, i);
        tokens += n;
        shortest = n < shortest ? n : shortest;
        longest = n > longest ? n : longest;
    }
    json_object_set_new(out, "kind", json_string("dataset"));
    json_object_set_new(out, "rows", json_integer(rows));
    json_object_set_new(out, "tokens", json_integer(tokens));
    json_object_set_new(out, "shortest_row", json_integer(rows ? shortest : 0));
    json_object_set_new(out, "longest_row", json_integer(longest));
    ACR_TRY(describe_masks(out, d, err));
    describe_states(out, dir, rows);
    describe_maps(out, dir);

cleanup:
    acr_dataset_close(d);
    return st;
}

accrue_status accrue_inspect(char **out, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *o = json_object();

    *out = NULL;
    json_object_set_new(o, "path", json_string(dir));
    if (!acr_is_dir(dir)) {
        st = acr_fail(err, ACCRUE_EIO, "%s: no such folder", dir);
        goto cleanup;
    }
    if (has_file(dir, "state.json"))
        ACR_TRY(describe_dataset(o, dir, err));
    else if (has_file(dir, "config.json"))
        ACR_TRY(describe_model(o, dir, err));
    else {
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: neither state.json (a data set) nor config.json (a checkpoint or "
                      "verifier) is here",
                      dir);
        goto cleanup;
    }
    *out = acr_json_text(o);
    if (!*out)
        st = acr_enomem(err, 0, "the listing");

cleanup:
    json_decref(o);
    return st;
}

void accrue_string_free(char *s)
{
    acr_free(s);
}
