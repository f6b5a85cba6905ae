/* export_keys.c - the keys of a GGUF file about the draft: what it is called and made from, and its
 * architecture.  They stand in the order in which llama.cpp's converter puts them. */
#include "convert/export_parts.h"

#include <limits.h>
#include <string.h>

#define ARCH "eagle3."

static void put_string(acr_export *e, const char *key, const json_t *value)
{
    if (json_string_length(value))
        acr_gguf_put_string(&e->keys, key, json_string_value(value), json_string_length(value));
}

static void put_list(acr_export *e, const char *key, const json_t *list)
{
    const size_t n = json_array_size(list);

    if (n)
        acr_gguf_put_array(&e->keys, key, ACR_GGUF_ITEM_STRING, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_array_get(list, i);
        acr_gguf_add_string(&e->keys, json_string_value(s), json_string_length(s));
    }
}

/* Sampling --------------------------------------------------------------------------------- */

/* What a draft's generation_config.json recommends. */
static accrue_status put_sampling(acr_export *e, accrue_error *err)
{
    static const struct {
        const char *key, *name, *other;
        char type;
    } all[] = {{"sequence", "sequence", NULL, 's'},
               {"top_k", "top_k", NULL, 'i'},
               {"top_p", "top_p", NULL, 'f'},
               {"min_p", "min_p", NULL, 'f'},
               {"xtc_probability", "xtc_probability", NULL, 'f'},
               {"xtc_threshold", "xtc_threshold", NULL, 'f'},
               {"temp", "temperature", NULL, 'f'},
               {"penalty_last_n", "penalty_last_n", NULL, 'i'},
               {"penalty_repeat", "penalty_repeat", "repetition_penalty", 'f'},
               {"mirostat", "mirostat", NULL, 'i'},
               {"mirostat_tau", "mirostat_tau", NULL, 'f'},
               {"mirostat_eta", "mirostat_eta", NULL, 'f'}};
    accrue_status st = ACCRUE_OK;
    json_t *file = NULL;
    char key[80];

    ACR_TRY(acr_export_json(&file, e->opt->checkpoint, "generation_config.json", err));
    for (int i = 0; i < ACR_COUNT(all); i++) {
        const json_t *v = json_object_get(file, all[i].name);
        if (!v && all[i].other)
            v = json_object_get(file, all[i].other);
        if (acr_absent(v))
            continue;
        if (!(all[i].type == 's'   ? json_is_string(v)
              : all[i].type == 'f' ? json_is_number(v)
                                   : json_is_integer(v) && json_integer_value(v) <= INT32_MAX &&
                                         json_integer_value(v) >= INT32_MIN)) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s/generation_config.json: \"%s\" is no %s",
                          e->opt->checkpoint, all[i].name,
                          all[i].type == 's'   ? "string"
                          : all[i].type == 'f' ? "number"
                                               : "32-bit integer");
            goto cleanup;
        }
        snprintf(key, sizeof key, "general.sampling.%s", all[i].key);
        if (all[i].type == 's')
            put_string(e, key, v);
        else if (all[i].type == 'f')
            acr_gguf_put_f32(&e->keys, key, (float)json_number_value(v));
        else
            acr_gguf_put_i32(&e->keys, key, (int32_t)json_integer_value(v));
    }

cleanup:
    json_decref(file);
    return st;
}

/* General ---------------------------------------------------------------------------------- */

/* The last part of a path, as it is without "." and slashes at its end. */
static char *folder_name(const char *path)
{
    size_t n = strlen(path), begin = 0;

    for (;;) {
        while (n && path[n - 1] == '/')
            n--;
        if (n >= 2 && path[n - 1] == '.' && path[n - 2] == '/')
            n--;
        else
            break;
    }
    if (n == 1 && path[0] == '.')
        n = 0;
    for (begin = n; begin && path[begin - 1] != '/'; begin--)
        ;
    return acr_sprintf("%.*s", (int)(n - begin), path + begin);
}

static accrue_status name_model(json_t *about, const acr_export *e, int64_t elements,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *path = json_string_value(json_object_get(e->config, "_name_or_path"));
    const char *slash = path ? strchr(path, '/') : NULL;
    char *folder = folder_name(e->opt->checkpoint);
    json_t *check = folder ? json_string(folder) : NULL;

    if (!folder) {
        st = acr_enomem(err, strlen(e->opt->checkpoint), "a name");
        goto cleanup;
    }
    if (!check) {
        st = acr_fail(err, ACCRUE_EINVAL,
                      "%s: its name is not UTF-8, as general.name in the file has to be",
                      e->opt->checkpoint);
        goto cleanup;
    }
    ACR_TRY(acr_export_card(about, e->opt->checkpoint, elements, err));
    if (path && !(slash && strchr(slash + 1, '/'))) /* a model's name, no path */
        ACR_TRY(acr_export_name(about, path, elements, err));
    ACR_TRY(acr_export_name(about, folder, elements, err));
    if (!json_object_get(about, "size_label")) {
        char label[32];
        acr_export_size(label, sizeof label, elements);
        ACR_TRY(acr_export_set(about, "size_label", json_string(label), err));
    }

cleanup:
    json_decref(check);
    acr_free(folder);
    return st;
}

static accrue_status put_sources(acr_export *e, const char *key, const json_t *list,
                                 accrue_error *err)
{
    static const char *const members[] = {"name",         "author",      "version",
                                          "organization", "description", "url",
                                          "doi",          "uuid",        "repo_url"};
    char name[80];

    if (!list)
        return ACCRUE_OK;
    snprintf(name, sizeof name, "general.%s.count", key);
    acr_gguf_put_u32(&e->keys, name, (uint32_t)json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++)
        for (int m = 0; m < ACR_COUNT(members); m++) {
            const json_t *v = json_object_get(json_array_get(list, i), members[m]);
            if (v && !json_is_string(v))
                return acr_fail(err, ACCRUE_EFORMAT,
                                "%s/README.md: \"%s\" of a %s of its front matter is no string",
                                e->opt->checkpoint, members[m], key);
            snprintf(name, sizeof name, "general.%s.%zu.%s", key, i, members[m]);
            put_string(e, name, v);
        }
    return ACCRUE_OK;
}

/* Several licenses as one string. */
static accrue_status put_license(acr_export *e, const json_t *license, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *all = NULL;

    if (!json_is_array(license)) {
        put_string(e, "general.license", license);
        return ACCRUE_OK;
    }
    for (size_t i = 0; i < json_array_size(license); i++) {
        const char *one = json_string_value(json_array_get(license, i));
        char *longer = NULL;
        if (!one) {
            st = acr_fail(err, ACCRUE_EFORMAT,
                          "%s/README.md: entry %zu of \"license\" of its front matter is no string",
                          e->opt->checkpoint, i);
            goto cleanup;
        }
        longer = acr_sprintf("%s%s%s", all ? all : "", all ? "," : "", one);
        acr_free(all);
        all = longer;
        if (!all) {
            st = acr_enomem(err, strlen(one), "a license");
            goto cleanup;
        }
    }
    if (all && *all)
        acr_gguf_put_string(&e->keys, "general.license", all, strlen(all));

cleanup:
    acr_free(all);
    return st;
}

static accrue_status put_general(acr_export *e, accrue_error *err)
{
    static const char *const names[][2] = {
        {"general.name", "name"},
        {"general.author", "author"},
        {"general.version", "version"},
        {"general.organization", "organization"},
        {"general.finetune", "finetune"},
        {"general.basename", "basename"},
        {"general.description", "description"},
        {"general.size_label", "size_label"},
    };
    static const char *const later[][2] = {
        {"general.license.name", "license_name"}, {"general.license.link", "license_link"},
        {"general.source.url", "source_url"},     {"general.source.doi", "source_doi"},
        {"general.source.uuid", "source_uuid"},   {"general.source.repo_url", "source_repo_url"},
    };
    accrue_status st = ACCRUE_OK;
    json_t *about = json_object();

    ACR_TRY(name_model(about, e, acr_export_elements(e), err));
    acr_gguf_put_string(&e->keys, "general.type", "model", 5);
    ACR_TRY(put_sampling(e, err));
    for (int i = 0; i < ACR_COUNT(names); i++)
        put_string(e, names[i][0], json_object_get(about, names[i][1]));
    ACR_TRY(put_license(e, json_object_get(about, "license"), err));
    for (int i = 0; i < ACR_COUNT(later); i++)
        put_string(e, later[i][0], json_object_get(about, later[i][1]));
    ACR_TRY(put_sources(e, "base_model", json_object_get(about, "base_models"), err));
    ACR_TRY(put_sources(e, "dataset", json_object_get(about, "datasets"), err));
    put_list(e, "general.tags", json_object_get(about, "tags"));
    put_list(e, "general.languages", json_object_get(about, "languages"));

cleanup:
    json_decref(about);
    return st;
}

/* Architecture ----------------------------------------------------------------------------- */

/* The layers whose inputs feed the draft: given, or as speculators has them by default. */
static accrue_status put_layers(acr_export *e, accrue_error *err)
{
    const json_t *ids = json_object_get(e->config, "eagle_aux_hidden_state_layer_ids");
    const json_int_t layers = json_integer_value(json_object_get(e->verifier, "num_hidden_layers"));
    int usual[ACR_DEFAULT_AUX];

    if (layers < 1 || layers > 1 << 20)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: \"num_hidden_layers\" is %lld, a count expected",
                        e->verifier_name, (long long)layers);
    acr_default_layers(usual, (int)layers);
    acr_gguf_put_array(&e->keys, ARCH "target_layers", ACR_GGUF_ITEM_I32, ACR_COUNT(usual));
    for (size_t i = 0; i < (size_t)ACR_COUNT(usual); i++) {
        const json_t *given = json_array_get(ids, i);
        json_int_t id = given ? json_integer_value(given) : usual[i];
        if ((given && !json_is_integer(given)) || id < 0 || id > layers)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: auxiliary layer %lld, 0 to %lld expected (%s)", e->config_name,
                            (long long)id, (long long)layers, e->verifier_name);
        acr_gguf_add_i32(&e->keys, (int32_t)id);
    }
    return ACCRUE_OK;
}

static bool has(const acr_export *e, const char *key)
{
    return !acr_absent(json_object_get(e->decoder, key));
}

static bool has_theta(const acr_export *e)
{
    const json_t *rope =
        json_object_get(e->decoder, has(e, "rope_parameters") ? "rope_parameters" : "rope_scaling");

    return !acr_absent(json_object_get(rope, "rope_theta")) || has(e, "rope_theta");
}

static accrue_status put_context(acr_export *e, accrue_error *err)
{
    static const char *const names[] = {
        "max_position_embeddings", "n_ctx",           "n_positions", "max_length",
        "max_sequence_length",     "model_max_length"};
    const json_t *v = NULL;

    for (int i = 0; i < ACR_COUNT(names) && !v; i++)
        v = json_object_get(e->decoder, names[i]);
    if (acr_absent(v))
        return ACCRUE_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: \"max_position_embeddings\" is no count of 32 bits", e->config_name);
    acr_gguf_put_u32(&e->keys, ARCH "context_length", (uint32_t)json_integer_value(v));
    return ACCRUE_OK;
}

static uint32_t file_type(accrue_export_dtype t)
{
    switch (t) {
    case ACCRUE_EXPORT_F32: return 0;
    case ACCRUE_EXPORT_F16: return 1;
    case ACCRUE_EXPORT_Q8_0: return 7;
    default: return 32;
    }
}

static accrue_status put_decoder(acr_export *e, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_gguf_keys *k = &e->keys;
    const acr_config *c = &e->draft;

    acr_gguf_put_u32(k, ARCH "block_count", 1);
    ACR_TRY(put_context(e, err));
    acr_gguf_put_u32(k, ARCH "embedding_length", (uint32_t)c->hidden_size);
    acr_gguf_put_u32(k, ARCH "feed_forward_length", (uint32_t)c->intermediate_size);
    acr_gguf_put_u32(k, ARCH "attention.head_count", (uint32_t)c->n_heads);
    acr_gguf_put_u32(k, ARCH "attention.head_count_kv", (uint32_t)c->n_kv_heads);
    if (has_theta(e))
        acr_gguf_put_f32(k, ARCH "rope.freq_base", (float)c->rope.theta);
    acr_gguf_put_f32(k, ARCH "attention.layer_norm_rms_epsilon", (float)c->rms_norm_eps);
    if (has(e, "head_dim")) {
        acr_gguf_put_u32(k, ARCH "attention.key_length", (uint32_t)c->head_dim);
        acr_gguf_put_u32(k, ARCH "attention.value_length", (uint32_t)c->head_dim);
    }
    acr_gguf_put_u32(k, "general.file_type", file_type(e->opt->dtype));
    acr_gguf_put_u32(k, ARCH "vocab_size", (uint32_t)c->vocab_size);
    acr_gguf_put_u32(k, ARCH "rope.dimension_count", (uint32_t)c->head_dim);
    acr_gguf_put_u32(k, "general.quantization_version", 2);

cleanup:
    return st;
}

accrue_status acr_export_model_keys(acr_export *e, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    acr_gguf_put_string(&e->keys, "general.architecture", "eagle3", 6);
    ACR_TRY(put_layers(e, err));
    acr_gguf_put_u32(&e->keys, ARCH "target_hidden_size", (uint32_t)e->draft.hidden_size);
    acr_gguf_put_bool(&e->keys, ARCH "norm_before_residual", e->draft.norm_before_residual);
    acr_gguf_put_bool(&e->keys, ARCH "norm_before_fc", e->draft.norm_before_fc);
    ACR_TRY(put_general(e, err));
    ACR_TRY(put_decoder(e, err));

cleanup:
    return st;
}
