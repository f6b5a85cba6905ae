/* settings.c - what output was made with, kept beside it, so that a later call goes on with the
 * same or is refused. */
#include "infer/infer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SETTINGS = 1 << 20, PIECE = 1 << 18 /* numbers that are read at a time */ };

const char *acr_compute_name(accrue_dtype t)
{
    return t == ACCRUE_BF16 ? "bfloat16" : t == ACCRUE_F32 ? "float32" : "float64";
}

json_t *acr_hash_json(uint64_t hash)
{
    char text[20];

    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

/* The model -------------------------------------------------------------------------------- */

static uint64_t hash_text(const char *s, uint64_t hash)
{
    return acr_hash_bytes(s, strlen(s), hash);
}

/* Every number of the i-th tensor, by rows; `piece` grows as a row needs it.  Of one that has no
 * numbers of a float type, which no model here reads, the shape has to do. */
static accrue_status hash_tensor(uint64_t *hash, float **piece, int64_t *room,
                                 const acr_pretrained *p, int i, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_tensor *t = acr_pretrained_at(p, i);
    const int64_t rows = t->n_dims ? t->dims[0] : 1;
    const int64_t row = rows > 0 ? acr_tensor_elements(t) / rows : 0;
    const int64_t step = row && row < PIECE ? PIECE / row : 1;

    *hash = hash_text(t->name, *hash);
    *hash = acr_hash_bytes(t->dims, (size_t)t->n_dims * sizeof *t->dims, *hash);
    if (!row || !acr_dtype_is_float(t->dtype))
        return ACCRUE_OK;
    if (step * row > *room) {
        acr_free(*piece);
        *room = 0;
        *piece = acr_malloc((size_t)(step * row) * sizeof **piece);
        if (!*piece)
            return acr_enomem(err, (size_t)(step * row) * sizeof **piece, "rows of weights");
        *room = step * row;
    }
    for (int64_t first = 0; first < rows; first += step) {
        const int64_t n = rows - first < step ? rows - first : step;
        ACR_TRY(acr_pretrained_read(*piece, ACR_DTYPE_F32, p, i, first, n, err));
        *hash = acr_hash_bytes(*piece, (size_t)(n * row) * sizeof **piece, *hash);
    }

cleanup:
    return st;
}

accrue_status acr_model_fingerprint(uint64_t *out, const acr_pretrained *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *config = acr_json_text(acr_pretrained_config(p));
    float *piece = NULL;
    int64_t room = 0;

    if (!config)
        return acr_enomem(err, 0, "the verifier's configuration");
    *out = hash_text(config, 0);
    for (int i = 0; i < acr_pretrained_count(p); i++)
        ACR_TRY(hash_tensor(out, &piece, &room, p, i, err));

cleanup:
    acr_free(piece);
    acr_free(config);
    return st;
}

accrue_status acr_fingerprint_get(uint64_t *out, acr_fingerprint *f, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_pretrained *p = NULL;

    if (!f->known) {
        ACR_TRY(acr_pretrained_open(&p, f->path, err));
        ACR_TRY(acr_model_fingerprint(&f->hash, p, err));
        f->known = true;
    }
    *out = f->hash;

cleanup:
    acr_pretrained_close(p);
    return st;
}

accrue_status acr_chat_fingerprint(uint64_t *hash, const char *dir, accrue_error *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja", "generation_config.json"};
    accrue_status st = ACCRUE_OK;
    char *path = NULL;
    acr_map map = {0};

    for (int i = 0; i < ACR_COUNT(names); i++) {
        path = acr_sprintf("%s/%s", dir, names[i]);
        if (!path)
            return acr_enomem(err, strlen(dir), "a path");
        if (acr_exists(path)) {
            ACR_TRY(acr_map_open(&map, path, err));
            *hash = hash_text(names[i], *hash);
            *hash = acr_hash_bytes(map.data ? (const char *)map.data : "", map.bytes, *hash);
            acr_map_close(&map);
        }
        acr_free(path);
        path = NULL;
    }

cleanup:
    acr_map_close(&map);
    acr_free(path);
    return st;
}

/* The file --------------------------------------------------------------------------------- */

accrue_status acr_settings_read(json_t **out, const char *path, accrue_error *err)
{
    *out = NULL;
    return acr_exists(path) ? acr_json_load(out, path, MAX_SETTINGS, err) : ACCRUE_OK;
}

accrue_status acr_settings_compare(const json_t *before, const json_t *now, const char *path,
                                   const char *settings_path, const char *flag, accrue_error *err)
{
    const char *key = NULL;
    const json_t *value = NULL;

    json_object_foreach((json_t *)(uintptr_t)now, key, value)
    {
        const size_t how = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(10);
        const json_t *was = json_object_get(before, key);
        char *a = NULL, *b = NULL;
        accrue_status st = ACCRUE_OK;
        if (json_equal(was, value))
            continue;
        a = was ? json_dumps(was, how) : NULL;
        b = json_dumps(value, how);
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "%s: was begun with \"%s\" %s, now it is %s (%s); the same goes on, another "
                      "%s begins anew",
                      path, key, a ? a : "not given", b ? b : "?", settings_path, flag);
        free(a);
        free(b);
        return st;
    }
    return ACCRUE_OK;
}

accrue_status acr_settings_write(const char *path, const json_t *settings, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *text = acr_json_text(settings);
    char *temporary = acr_sprintf("%s.tmp", path);

    if (!text || !temporary) {
        st = acr_enomem(err, strlen(path), "the settings");
        goto cleanup;
    }
    st = acr_replace_file(path, temporary, text, strlen(text), err);

cleanup:
    acr_free(temporary);
    acr_free(text);
    return st;
}

/* Hidden states ---------------------------------------------------------------------------- */

accrue_status acr_states_settings(json_t **out, acr_fingerprint *verifier, const int *aux,
                                  int n_aux, const accrue_dtype *compute, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *layers = json_array();
    uint64_t hash = 0;
    bool failed = !layers;

    *out = NULL;
    ACR_TRY(acr_fingerprint_get(&hash, verifier, err));
    for (int i = 0; i < n_aux && !failed; i++)
        failed = json_array_append_new(layers, json_integer(aux[i])) != 0;
    if (!failed)
        *out = json_pack("{s:s, s:O, s:o}", "written_by", "accrue extract", "layers", layers,
                         "verifier", acr_hash_json(hash));
    if (*out && compute &&
        json_object_set_new(*out, "dtype", json_string(acr_compute_name(*compute)))) {
        json_decref(*out);
        *out = NULL;
    }
    if (!*out)
        st = acr_enomem(err, 0, "the settings");

cleanup:
    json_decref(layers);
    return st;
}

accrue_status acr_states_settings_check(bool *there, const char *dir, acr_fingerprint *verifier,
                                        const int *aux, int n_aux, const accrue_dtype *compute,
                                        accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, ACR_STATES_SETTINGS);
    json_t *before = NULL, *now = NULL;

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_settings_read(&before, path, err));
    *there = before != NULL;
    if (before) {
        ACR_TRY(acr_states_settings(&now, verifier, aux, n_aux, compute, err));
        ACR_TRY(acr_settings_compare(before, now, dir, path, "--hidden-states-path", err));
    }

cleanup:
    json_decref(before);
    json_decref(now);
    acr_free(path);
    return st;
}
