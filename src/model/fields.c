/* fields.c - fields of a configuration in JSON, and a rotation's. */
#include "model/model.h"

#include <math.h>
#include <string.h>

enum { BRIEF = 160 /* bytes of a value in a message: a rotation's parameters */ };

const char *acr_json_type_name(const json_t *v)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a real",    "true",     "false",    "null"};

    return v ? names[json_typeof(v)] : "missing";
}

void acr_field_refuse(acr_fields *r, const char *key, const json_t *got, const char *expected)
{
    if (!r->status)
        r->status = acr_fail(r->err, ACCRUE_EFORMAT, "%s: \"%s\" is %s, %s expected", r->name, key,
                             acr_json_type_name(got), expected);
}

bool acr_absent(const json_t *v)
{
    return !v || json_is_null(v);
}

int64_t acr_field_int(acr_fields *r, const char *key, int64_t fallback, int64_t low, int64_t high)
{
    const json_t *v = json_object_get(r->object, key);
    int64_t x = fallback;

    if (acr_absent(v) && fallback >= low)
        return fallback;
    if (!json_is_integer(v)) {
        acr_field_refuse(r, key, v, "an integer");
        return low;
    }
    x = json_integer_value(v);
    if ((x < low || x > high) && !r->status)
        r->status = acr_fail(r->err, ACCRUE_EMISMATCH, "%s: \"%s\" is %lld, %lld to %lld expected",
                             r->name, key, (long long)x, (long long)low, (long long)high);
    return x < low || x > high ? low : x;
}

double acr_field_real(acr_fields *r, const char *key, double fallback)
{
    const json_t *v = json_object_get(r->object, key);

    if (acr_absent(v) && !isnan(fallback))
        return fallback;
    if (!json_is_number(v)) {
        acr_field_refuse(r, key, v, "a number");
        return 1;
    }
    return json_number_value(v);
}

bool acr_field_bool(acr_fields *r, const char *key, bool fallback)
{
    const json_t *v = json_object_get(r->object, key);

    if (acr_absent(v))
        return fallback;
    if (!json_is_boolean(v))
        acr_field_refuse(r, key, v, "true or false");
    return json_is_true(v);
}

const char *acr_field_string(acr_fields *r, const char *key, const char *fallback)
{
    const json_t *v = json_object_get(r->object, key);

    if (acr_absent(v) && fallback)
        return fallback;
    if (!json_is_string(v)) {
        acr_field_refuse(r, key, v, "a string");
        return "";
    }
    return json_string_value(v);
}

/* Refuses a value that would change the arithmetic. */
void acr_field_require(acr_fields *r, bool ok, const char *key, const char *value,
                       const char *supported)
{
    if (!ok && !r->status)
        r->status = acr_fail(r->err, ACCRUE_ENOTSUP, "%s: \"%s\" is %s; supported: %s", r->name,
                             key, value, supported);
}

void acr_field_require_value(acr_fields *r, bool ok, const char *key, const char *supported)
{
    char value[BRIEF];

    acr_json_brief(value, sizeof value, json_object_get(r->object, key));
    acr_field_require(r, ok, key, value, supported);
}

void acr_field_heads(acr_fields *r, int64_t hidden_size, int64_t default_head_dim, int *n_heads,
                     int *n_kv_heads, int *head_dim)
{
    const int64_t max = 4096;

    *n_heads = (int)acr_field_int(r, "num_attention_heads", 0, 1, max);
    *n_kv_heads = (int)acr_field_int(r, "num_key_value_heads", *n_heads, 1, max);
    *head_dim = (int)acr_field_int(r, "head_dim",
                                   default_head_dim ? default_head_dim : hidden_size / *n_heads, 1,
                                   ACR_MAX_HEAD_DIM);
    if (!r->status && *head_dim % 2)
        r->status = acr_fail(r->err, ACCRUE_EMISMATCH,
                             "%s: \"head_dim\" is %d, an even number expected", r->name, *head_dim);
    if (!r->status && *n_heads % *n_kv_heads)
        r->status = acr_fail(r->err, ACCRUE_EMISMATCH,
                             "%s: %d attention heads are no multiple of %d key/value heads",
                             r->name, *n_heads, *n_kv_heads);
}

/* The positions of the training before the scaling: beside it, else in it, else the model's own. */
static double original_positions(acr_fields *config, acr_fields *scaling)
{
    const char key[] = "original_max_position_embeddings";

    if (!acr_absent(json_object_get(config->object, key)))
        return acr_field_real(config, key, 0);
    if (!acr_absent(json_object_get(scaling->object, key)))
        return acr_field_real(scaling, key, 0);
    return acr_field_real(config, "max_position_embeddings", 0);
}

/* The scaling is r's object, `key` of `config`. */
static void read_llama3(acr_fields *r, const char *key, acr_fields *config, acr_rope_config *out)
{
    char value[BRIEF];

    out->factor = acr_field_real(r, "factor", (double)NAN);
    out->low_freq_factor = acr_field_real(r, "low_freq_factor", (double)NAN);
    out->high_freq_factor = acr_field_real(r, "high_freq_factor", (double)NAN);
    out->original_max_position = original_positions(config, r);
    acr_json_brief(value, sizeof value, r->object);
    acr_field_require(r,
                      out->factor > 0 && out->low_freq_factor > 0 &&
                          out->high_freq_factor > out->low_freq_factor &&
                          out->original_max_position > 0,
                      key, value,
                      "factor and original_max_position_embeddings > 0, 0 < low_freq_factor < "
                      "high_freq_factor");
}

/* "rope_parameters" (transformers 5) or "rope_theta" and "rope_scaling" (before; an empty one is
 * none). */
void acr_field_rope(acr_fields *r, acr_rope_config *out)
{
    const json_t *older = json_object_get(r->object, "rope_scaling");
    const bool is_none = acr_absent(older) || (json_is_object(older) && !json_object_size(older));
    const json_t *scaling = is_none ? json_object_get(r->object, "rope_parameters") : older;
    acr_fields s = {.object = scaling, .name = r->name, .err = r->err, .status = r->status};
    const char *key = is_none ? "rope_parameters" : "rope_scaling";
    const char *type = "default";

    if (!acr_absent(scaling) && !json_is_object(scaling)) {
        acr_field_refuse(r, key, scaling, "an object");
        return;
    }
    acr_field_require(&s,
                      !json_is_object(json_object_get(scaling, "full_attention")) &&
                          !json_is_object(json_object_get(scaling, "sliding_attention")),
                      key, "given per layer type", "one for all layers");
    if (acr_absent(json_object_get(scaling, "rope_theta")))
        s.object = r->object;
    out->theta = acr_field_real(&s, "rope_theta", 10000.0);
    acr_field_require_value(&s, out->theta > 0, "rope_theta", "above 0");
    s.object = scaling;
    if (!acr_absent(scaling)) {
        type = acr_field_string(&s, "rope_type", acr_field_string(&s, "type", "default"));
        out->llama3 = strcmp(type, "llama3") == 0;
        acr_field_require(&s, out->llama3 || strcmp(type, "default") == 0, "rope_type", type,
                          "default, llama3");
        acr_field_require_value(&s, acr_field_real(&s, "partial_rotary_factor", 1.0) == 1.0,
                                "partial_rotary_factor", "1");
        acr_field_require(&s, acr_absent(json_object_get(scaling, "mrope_section")),
                          "mrope_section", "set", "none");
    }
    if (out->llama3 && !s.status)
        read_llama3(&s, key, r, out);
    r->status = s.status;
}
