/* config.c - a draft's configuration: read from a checkpoint, or made to mirror a verifier.
 *
 * The JSON that becomes config.json is kept whole beside the fields that training reads, so that
 * what a later engine needs survives.  Anything that would change the arithmetic and is not
 * supported is refused by name, never ignored. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What transformers takes where a Qwen3 configuration says nothing; llama derives the head size. */
enum { QWEN3_HEAD_DIM = 128, QWEN3_POSITIONS = 32768, LLAMA_POSITIONS = 2048 };

static const char *const arch_names[] = {"llama", "qwen3"};

static void read_layer_types(acr_fields *r, acr_config *out)
{
    const json_t *types = json_object_get(r->object, "layer_types");

    if (acr_absent(types))
        return;
    if (!json_is_array(types) || (int)json_array_size(types) != out->n_layers) {
        if (!r->status)
            r->status = acr_fail(r->err, ACCRUE_EMISMATCH,
                                 "%s: \"layer_types\" has %zu entries, %d expected", r->name,
                                 json_array_size(types), out->n_layers);
        return;
    }
    for (int i = 0; i < out->n_layers; i++) {
        const char *t = json_string_value(json_array_get(types, (size_t)i));
        out->sliding[i] = t && strcmp(t, "sliding_attention") == 0;
        acr_field_require(r, out->sliding[i] || (t && strcmp(t, "full_attention") == 0),
                          "layer_types", t ? t : "not a string",
                          "full_attention, sliding_attention");
    }
}

static void read_decoder(acr_fields *r, acr_config *out)
{
    const int64_t max = 1 << 24;
    const char *type = acr_field_string(r, "model_type", NULL);
    bool any_sliding = false;

    acr_field_require(r, strcmp(type, "llama") == 0 || strcmp(type, "qwen3") == 0, "model_type",
                      type, "llama, qwen3");
    out->arch = strcmp(type, "qwen3") == 0 ? ACR_ARCH_QWEN3 : ACR_ARCH_LLAMA;
    acr_field_require(r, strcmp(acr_field_string(r, "hidden_act", "silu"), "silu") == 0,
                      "hidden_act", acr_field_string(r, "hidden_act", "silu"), "silu");
    acr_field_require(r, !acr_field_bool(r, "mlp_bias", false), "mlp_bias", "true", "false");
    acr_field_require_value(r, acr_field_real(r, "attention_dropout", 0.0) == 0.0,
                            "attention_dropout", "0");
    out->hidden_size = acr_field_int(r, "hidden_size", 0, 1, max);
    out->intermediate_size = acr_field_int(r, "intermediate_size", 0, 1, max);
    out->vocab_size = acr_field_int(r, "vocab_size", 0, 1, max);
    out->n_layers = (int)acr_field_int(r, "num_hidden_layers", 0, 1, ACR_MAX_LAYERS);
    acr_field_heads(r, out->hidden_size, out->arch == ACR_ARCH_QWEN3 ? QWEN3_HEAD_DIM : 0,
                    &out->n_heads, &out->n_kv_heads, &out->head_dim);
    out->rms_norm_eps = acr_field_real(r, "rms_norm_eps", 1e-6);
    acr_field_require_value(r, out->rms_norm_eps >= 0, "rms_norm_eps", "at least 0");
    out->attention_bias = acr_field_bool(r, "attention_bias", false);
    read_layer_types(r, out);
    for (int i = 0; i < out->n_layers; i++)
        any_sliding = any_sliding || out->sliding[i];
    out->sliding_window = any_sliding ? acr_field_int(r, "sliding_window", 0, 1, INT64_MAX) : 1;
    acr_field_rope(r, &out->rope);
}

static void read_draft(acr_fields *r, acr_config *out)
{
    const json_t *ids = json_object_get(r->object, "eagle_aux_hidden_state_layer_ids");
    const char *type = acr_field_string(r, "speculators_model_type", "eagle3");

    acr_field_require(r, strcmp(type, "eagle3") == 0, "speculators_model_type", type, "eagle3");
    acr_field_require(r,
                      acr_absent(json_object_get(r->object, "target_hidden_size")) ||
                          acr_field_int(r, "target_hidden_size", 0, 0, INT64_MAX) ==
                              out->hidden_size,
                      "target_hidden_size", "not hidden_size", "hidden_size");
    out->draft_vocab_size = acr_field_int(r, "draft_vocab_size", 0, 1, out->vocab_size);
    out->norm_before_residual = acr_field_bool(r, "norm_before_residual", false);
    out->norm_before_fc = acr_field_bool(r, "norm_before_fc", false);
    out->fc_norm = acr_field_bool(r, "fc_norm", false);
    out->norm_output = acr_field_bool(r, "norm_output", false);
    out->embed_requires_grad = acr_field_bool(r, "embed_requires_grad", false);
    if (!acr_absent(ids) && !json_is_array(ids))
        acr_field_refuse(r, "eagle_aux_hidden_state_layer_ids", ids, "an array");
    out->n_aux = acr_absent(ids) ? 3 : (int)json_array_size(ids);
    if (!r->status && (out->n_aux < 1 || out->n_aux > ACR_MAX_AUX))
        r->status = acr_fail(r->err, ACCRUE_EMISMATCH, "%s: %d auxiliary layers, 1 to %d expected",
                             r->name, out->n_aux, ACR_MAX_AUX);
    if (!r->status && out->norm_before_fc && out->fc_norm)
        r->status = acr_fail(r->err, ACCRUE_EMISMATCH,
                             "%s: \"norm_before_fc\" and \"fc_norm\" exclude each other", r->name);
}

accrue_status acr_config_read(acr_config *out, const json_t *json, const char *name,
                              accrue_error *err)
{
    acr_fields top = {.object = json, .name = name, .err = err};
    acr_fields decoder = {.name = name, .err = err};

    memset(out, 0, sizeof *out);
    decoder.object = json_object_get(json, "transformer_layer_config");
    if (!json_is_object(decoder.object)) {
        acr_field_refuse(&top, "transformer_layer_config", decoder.object, "an object");
        return top.status;
    }
    read_decoder(&decoder, out);
    top.status = decoder.status;
    read_draft(&top, out);
    if (top.status)
        return top.status;
    out->json = json_deep_copy(json);
    return out->json ? ACCRUE_OK : acr_enomem(err, 0, "the configuration");
}

void acr_config_free(acr_config *c)
{
    json_decref(c->json);
    c->json = NULL;
}

const json_t *acr_verifier_config(const json_t *json)
{
    const json_t *text = json_object_get(json, "text_config");

    return json_is_object(text) ? text : json;
}

void acr_default_layers(int out[ACR_DEFAULT_AUX], int n_layers)
{
    out[0] = 2;
    out[1] = n_layers / 2;
    out[2] = n_layers - 3;
}

accrue_status acr_target_layer_ids(int out[ACR_MAX_AUX], int *n, const accrue_train_options *opt,
                                   const json_t *verifier, accrue_error *err)
{
    acr_fields r = {.object = acr_verifier_config(verifier), .name = opt->verifier, .err = err};
    int layers = (int)acr_field_int(&r, "num_hidden_layers", 0, 1, 1 << 20);
    int defaults[ACR_DEFAULT_AUX];
    const int *ids = opt->n_target_layer_ids ? opt->target_layer_ids : defaults;

    if (r.status)
        return r.status;
    acr_default_layers(defaults, layers);
    *n = opt->n_target_layer_ids ? opt->n_target_layer_ids : ACR_COUNT(defaults);
    if (*n > ACR_MAX_AUX)
        return acr_fail(err, ACCRUE_EINVAL, "--target-layer-ids: %d ids, at most %d expected", *n,
                        ACR_MAX_AUX);
    for (int i = 0; i < *n; i++) {
        if (ids[i] < 0 || ids[i] > layers)
            return acr_fail(err, ACCRUE_EINVAL,
                            "--target-layer-ids: %d, 0 to %d expected (%s has %d layers)", ids[i],
                            layers, opt->verifier, layers);
        for (int j = 0; j < i; j++)
            if (ids[i] == ids[j])
                return acr_fail(err, ACCRUE_EINVAL,
                                "--target-layer-ids: %d is %s twice, distinct ids expected "
                                "(%s has %d layers)",
                                ids[i], ids == defaults ? "by default there" : "given",
                                opt->verifier, layers);
        out[i] = ids[i];
    }
    return ACCRUE_OK;
}

static json_t *value_or(const json_t *from, const char *key, json_t *fallback)
{
    json_t *v = json_object_get(from, key);

    if (acr_absent(v))
        return fallback;
    json_decref(fallback);
    return json_deep_copy(v);
}

/* The verifier's rotation; a partial rotary factor is dropped, as the peer drops it. */
static json_t *mirrored_rope(const json_t *verifier)
{
    json_t *rope = value_or(verifier, "rope_parameters", NULL);
    const json_t *of_layers = json_object_get(rope, "sliding_attention");

    if (!of_layers)
        of_layers = json_object_get(rope, "full_attention");
    if (json_is_object(of_layers)) { /* one per layer type: the draft has a single one */
        json_t *one = json_deep_copy(of_layers);
        json_decref(rope);
        rope = one;
        if (acr_absent(json_object_get(rope, "rope_theta")))
            json_object_set_new(rope, "rope_theta", json_real(10000.0));
    }
    if (!rope) {
        rope = value_or(verifier, "rope_scaling", json_object());
        if (!json_is_object(rope))
            return rope; /* refused when read */
        if (!acr_absent(json_object_get(rope, "type")) &&
            acr_absent(json_object_get(rope, "rope_type")))
            json_object_set(rope, "rope_type", json_object_get(rope, "type"));
        json_object_set_new(rope, "rope_theta",
                            value_or(verifier, "rope_theta", json_real(10000.0)));
    }
    if (acr_absent(json_object_get(rope, "rope_type")))
        json_object_set_new(rope, "rope_type", json_string("default"));
    json_object_del(rope, "type");
    json_object_del(rope, "partial_rotary_factor");
    return rope;
}

static bool is_qwen3(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));

    return type && strcmp(type, arch_names[ACR_ARCH_QWEN3]) == 0;
}

/* Heads follow the verifier unless its hidden size is no multiple of them (the peer's rule). */
static void mirror_heads(json_t *d, const json_t *v)
{
    int64_t hidden = json_integer_value(json_object_get(v, "hidden_size"));
    int64_t heads = json_integer_value(json_object_get(v, "num_attention_heads"));
    int64_t head_dim = json_integer_value(json_object_get(v, "head_dim"));
    int64_t kv = json_integer_value(json_object_get(v, "num_key_value_heads"));

    if (kv == 0)
        kv = heads;
    if (!head_dim && is_qwen3(v))
        head_dim = QWEN3_HEAD_DIM;
    if (head_dim && heads && hidden % heads != 0 && hidden % head_dim == 0) {
        heads = hidden / head_dim;
        if (heads % kv != 0)
            kv = heads;
    }
    if (!head_dim && heads)
        head_dim = hidden / heads;
    json_object_set_new(d, "num_attention_heads", json_integer(heads));
    json_object_set_new(d, "num_key_value_heads", json_integer(kv));
    json_object_set_new(d, "head_dim", json_integer(head_dim));
}

static json_t *layer_types(const accrue_train_options *opt, int n_layers)
{
    json_t *types = json_array();

    for (int i = 0; i < n_layers; i++) {
        bool full = false;
        for (int j = 0; j < opt->n_full_attention_indices; j++)
            full = full || opt->full_attention_indices[j] == i;
        json_array_append_new(types, json_string(full ? "full_attention" : "sliding_attention"));
    }
    return types;
}

/* transformer_layer_config with the keys that transformers writes for the draft's class. */
static json_t *mirrored_decoder(const accrue_train_options *opt, const json_t *v, acr_arch arch,
                                int n_layers)
{
    json_t *d = json_object();
    json_t *types = layer_types(opt, n_layers);
    bool sliding = false;
    int64_t hidden = json_integer_value(json_object_get(v, "hidden_size"));
    bool qwen = arch == ACR_ARCH_QWEN3;

    for (size_t i = 0; i < json_array_size(types); i++)
        sliding = sliding ||
                  strcmp(json_string_value(json_array_get(types, i)), "sliding_attention") == 0;
    json_object_set_new(d, "model_type", json_string(arch_names[arch]));
    json_object_set_new(d, "hidden_size", json_integer(hidden));
    json_object_set_new(d, "intermediate_size",
                        value_or(v, "intermediate_size", json_integer(3 * hidden)));
    json_object_set_new(d, "vocab_size", value_or(v, "vocab_size", json_integer(0)));
    json_object_set_new(d, "num_hidden_layers", json_integer(n_layers));
    mirror_heads(d, v);
    json_object_set_new(d, "hidden_act",
                        json_string(opt->draft_hidden_act ? opt->draft_hidden_act : "silu"));
    json_object_set_new(d, "max_position_embeddings",
                        value_or(v, "max_position_embeddings",
                                 json_integer(is_qwen3(v) ? QWEN3_POSITIONS : LLAMA_POSITIONS)));
    json_object_set_new(d, "initializer_range", value_or(v, "initializer_range", json_real(0.02)));
    json_object_set_new(d, "rms_norm_eps", value_or(v, "rms_norm_eps", json_real(1e-6)));
    json_object_set_new(d, "rope_parameters", mirrored_rope(v));
    json_object_set_new(d, "layer_types", types);
    json_object_set_new(d, "sliding_window",
                        !qwen || sliding ? json_integer(opt->sliding_window) : json_null());
    json_object_set_new(d, "use_sliding_window", json_boolean(sliding));
    json_object_set_new(d, "tie_word_embeddings", json_false());
    json_object_set_new(d, "attention_bias", json_false());
    json_object_set_new(d, "attention_dropout", json_real(0.0));
    json_object_set_new(d, "bos_token_id", qwen ? json_null() : json_integer(1));
    json_object_set_new(d, "eos_token_id", qwen ? json_null() : json_integer(2));
    json_object_set_new(d, "pad_token_id", json_null());
    json_object_set_new(d, "use_cache", json_true());
    if (qwen) {
        json_object_set_new(d, "max_window_layers", json_integer(28));
    } else {
        json_object_set_new(d, "mlp_bias", json_false());
        json_object_set_new(d, "pretraining_tp", json_integer(1));
    }
    return d;
}

static json_t *speculators_config(const accrue_train_options *opt, const json_t *verifier)
{
    json_t *architectures = json_object_get(verifier, "architectures");

    return json_pack("{s:s, s:s, s:[{s:f, s:s, s:i, s:i}], s:{s:O, s:s}}", "algorithm", "eagle3",
                     "default_proposal_method", "greedy", "proposal_methods", "accept_tolerance",
                     0.0, "proposal_type", "greedy", "speculative_tokens", opt->ttt_steps,
                     "verifier_accept_k", 1, "verifier", "architectures",
                     architectures ? architectures : json_null(), "name_or_path", opt->verifier);
}

/* --draft-config: a decoder's config.json, or a draft's, of which the decoder is taken. */
static accrue_status given_decoder(json_t **out, const accrue_train_options *opt,
                                   const json_t *verifier, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *file = NULL, *decoder = NULL;
    const json_t *v = acr_verifier_config(verifier);
    char *path = acr_is_dir(opt->draft_config) ? acr_sprintf("%s/config.json", opt->draft_config)
                                               : acr_strdup(opt->draft_config);
    int64_t hidden = 0;

    if (!path)
        return acr_enomem(err, strlen(opt->draft_config), "a path");
    ACR_TRY(acr_json_load(&file, path, 16 << 20, err));
    if (!json_is_object(file)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: the file is %s, an object expected", path,
                      acr_json_type_name(file));
        goto cleanup;
    }
    decoder = json_object_get(file, "transformer_layer_config");
    decoder = json_deep_copy(json_is_object(decoder) ? decoder : file);
    hidden = json_integer_value(json_object_get(v, "hidden_size"));
    if (json_integer_value(json_object_get(decoder, "hidden_size")) != hidden) {
        st = acr_fail(err, ACCRUE_EMISMATCH, "%s: \"hidden_size\" is %lld, the verifier's is %lld",
                      path, (long long)json_integer_value(json_object_get(decoder, "hidden_size")),
                      (long long)hidden);
        goto cleanup;
    }
    json_object_set(decoder, "vocab_size", json_object_get(v, "vocab_size"));
    *out = decoder;
    decoder = NULL;

cleanup:
    json_decref(decoder);
    json_decref(file);
    acr_free(path);
    return st;
}

static accrue_status check_shape_flags(const accrue_train_options *opt, acr_arch *arch,
                                       int n_layers, accrue_error *err)
{
    const char *name = opt->draft_arch ? opt->draft_arch : arch_names[ACR_ARCH_LLAMA];

    if (strcmp(name, arch_names[0]) != 0 && strcmp(name, arch_names[1]) != 0)
        return acr_fail(err, ACCRUE_EINVAL, "--draft-arch: \"%s\", llama or qwen3 expected", name);
    *arch = strcmp(name, arch_names[ACR_ARCH_QWEN3]) == 0 ? ACR_ARCH_QWEN3 : ACR_ARCH_LLAMA;
    if (n_layers < 1 || n_layers > ACR_MAX_LAYERS)
        return acr_fail(err, ACCRUE_EINVAL, "--num-layers: %d, 1 to %d expected", n_layers,
                        ACR_MAX_LAYERS);
    for (int i = 0; i < opt->n_full_attention_indices; i++)
        if (opt->full_attention_indices[i] < 0 || opt->full_attention_indices[i] >= n_layers)
            return acr_fail(err, ACCRUE_EINVAL, "--full-attention-indices: %d, 0 to %d expected",
                            opt->full_attention_indices[i], n_layers - 1);
    return ACCRUE_OK;
}

/* config.json names the verifier's folder, and JSON is UTF-8. */
static accrue_status check_name(const char *verifier, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *name = json_string(verifier);

    if (!name)
        st = acr_fail(
            err, ACCRUE_EINVAL,
            "--verifier-name-or-path: %s is not UTF-8, as its name in config.json has to be",
            verifier);
    json_decref(name);
    return st;
}

accrue_status acr_config_create(acr_config *out, const accrue_train_options *opt,
                                const json_t *verifier, int64_t draft_vocab_size, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int n_layers = opt->num_layers ? opt->num_layers : 1;
    acr_arch arch = ACR_ARCH_LLAMA;
    int ids[ACR_MAX_AUX] = {0};
    int n_ids = 0;
    json_t *decoder = NULL, *layer_ids = NULL, *config = NULL;

    memset(out, 0, sizeof *out);
    ACR_TRY(check_name(opt->verifier, err));
    ACR_TRY(check_shape_flags(opt, &arch, n_layers, err));
    ACR_TRY(acr_target_layer_ids(ids, &n_ids, opt, verifier, err));
    if (opt->draft_config)
        ACR_TRY(given_decoder(&decoder, opt, verifier, err));
    else
        decoder = mirrored_decoder(opt, acr_verifier_config(verifier), arch, n_layers);
    layer_ids = json_array();
    for (int i = 0; i < n_ids; i++)
        json_array_append_new(layer_ids, json_integer(ids[i]));
    config = json_pack(
        "{s:[s], s:{s:s}, s:I, s:s, s:O, s:b, s:b, s:b, s:b, s:b, s:o, s:s, s:s, s:n, s:b, s:O, "
        "s:s}",
        "architectures", "Eagle3DraftModel", "auto_map", "", "config.Eagle3SpeculatorConfig",
        "draft_vocab_size", (json_int_t)draft_vocab_size, "dtype", "bfloat16",
        "eagle_aux_hidden_state_layer_ids", layer_ids, "embed_requires_grad",
        (int)opt->embed_requires_grad, "fc_norm", (int)opt->fc_norm, "norm_before_fc",
        opt->norm_before_fc < 0 ? 1 : opt->norm_before_fc, "norm_before_residual",
        (int)opt->norm_before_residual, "norm_output", opt->norm_output < 0 ? 1 : opt->norm_output,
        "speculators_config", speculators_config(opt, verifier), "speculators_model_type", "eagle3",
        "speculators_version", "0.9.0", "target_hidden_size", "tie_word_embeddings", 0,
        "transformer_layer_config", decoder, "transformers_version", "5.19.0");
    if (!config) {
        st = acr_enomem(err, 0, "the draft's configuration");
        goto cleanup;
    }
    ACR_TRY(
        acr_config_read(out, config, opt->draft_config ? opt->draft_config : opt->verifier, err));

cleanup:
    json_decref(config);
    json_decref(layer_ids);
    json_decref(decoder);
    return st;
}

static accrue_status add_term(acr_loss_spec *out, const char *name, double weight,
                              accrue_error *err)
{
    for (int k = 0; k < ACR_LOSS_COUNT; k++)
        if (strcmp(acr_loss_name((acr_loss_kind)k), name) == 0) {
            out->kind[out->n_terms] = (acr_loss_kind)k;
            out->weight[out->n_terms++] = weight;
            return ACCRUE_OK;
        }
    return acr_fail(err, ACCRUE_EINVAL,
                    "--loss-fn: \"%s\"; kl_div, rkl, jsd, ce, tv, nla or lk_hybrid expected", name);
}

accrue_status acr_loss_spec_parse(acr_loss_spec *out, const char *text, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *object = NULL;
    const char *key = NULL;
    json_t *value = NULL;

    memset(out, 0, sizeof *out);
    if (text[strspn(text, " \t\n")] != '{')
        return add_term(out, text, 1.0, err);
    ACR_TRY(acr_json_parse(&object, text, strlen(text), "--loss-fn", err));
    out->mixed = true;
    json_object_foreach(object, key, value)
    {
        if (!json_is_number(value) || json_number_value(value) < 0) {
            st = acr_fail(err, ACCRUE_EINVAL,
                          "--loss-fn: weight of \"%s\" is %s, a number of at least 0 expected", key,
                          json_is_number(value) ? "negative" : acr_json_type_name(value));
            goto cleanup;
        }
        ACR_TRY(add_term(out, key, json_number_value(value), err));
    }
    if (out->n_terms == 0)
        st = acr_fail(err, ACCRUE_EINVAL, "--loss-fn: {} has no terms, at least 1 expected");

cleanup:
    json_decref(object);
    return st;
}
