/* verifier_shape.c - what kind of decoder a config.json describes.
 *
 * What would change the arithmetic and is not supported is refused by name. */
#include "infer/verifier_parts.h"

#include <limits.h>
#include <string.h>

enum { MAX_DEPTH = 4096 };

typedef enum family { LLAMA, QWEN2, QWEN3, FAMILIES } family;

static const char *const family_names[FAMILIES] = {"llama", "qwen2", "qwen3"};

static family read_family(acr_fields *r)
{
    const char *type = acr_field_string(r, "model_type", NULL);
    int f = 0;

    while (f < FAMILIES && strcmp(type, family_names[f]) != 0)
        f++;
    acr_field_require(r, f < FAMILIES, "model_type", type, "llama, qwen2, qwen3");
    return f < FAMILIES ? (family)f : LLAMA;
}

/* Keys of mixtures of experts that an object of another model_type may carry. */
static void refuse_experts(acr_fields *r)
{
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts"};

    for (int i = 0; i < ACR_COUNT(keys); i++)
        acr_field_require(r, acr_absent(json_object_get(r->object, keys[i])), keys[i],
                          "set (a mixture of experts)", "dense layers");
}

/* A window that is shorter than the sequences would hide tokens.  llama has none. */
static void refuse_windows(acr_fields *r, family f, int64_t positions)
{
    const json_t *types = json_object_get(r->object, "layer_types");
    const json_t *window = json_object_get(r->object, "sliding_window");
    bool any = acr_absent(types);

    if (f == LLAMA || !acr_field_bool(r, "use_sliding_window", false) || acr_absent(window))
        return;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *t = json_string_value(json_array_get(types, i));
        any = any || !t || strcmp(t, "full_attention") != 0;
    }
    if (!r->status && any && positions > acr_field_int(r, "sliding_window", 0, 1, INT64_MAX))
        r->status = acr_fail(r->err, ACCRUE_ENOTSUP,
                             "%s: \"sliding_window\" is %lld, shorter than sequences of %lld; "
                             "supported: full attention",
                             r->name, (long long)json_integer_value(window), (long long)positions);
}

static void read_sizes(acr_fields *r, family f, acr_verifier_shape *out)
{
    out->hidden_size = acr_field_int(r, "hidden_size", 0, 1, ACR_MAX_SIZE);
    out->intermediate_size = acr_field_int(r, "intermediate_size", 0, 1, ACR_MAX_SIZE);
    out->vocab_size = acr_field_int(r, "vocab_size", 0, 1, ACR_MAX_SIZE);
    out->n_layers = (int)acr_field_int(r, "num_hidden_layers", 0, 1, MAX_DEPTH);
    acr_field_heads(r, out->hidden_size, f == QWEN3 ? 128 : 0, &out->n_heads, &out->n_kv_heads,
                    &out->head_dim);
    out->max_positions =
        acr_field_int(r, "max_position_embeddings", f == LLAMA ? 2048 : 32768, 1, INT64_MAX);
    out->rms_norm_eps = acr_field_real(r, "rms_norm_eps", 1e-6);
    acr_field_require_value(r, out->rms_norm_eps >= 0, "rms_norm_eps", "at least 0");
}

/* eos_token_id: one id, several, or none. */
static void read_eos(acr_fields *r, acr_verifier_shape *out)
{
    const json_t *v = json_object_get(r->object, "eos_token_id");
    const size_t n = json_is_array(v) ? json_array_size(v) : acr_absent(v) ? 0 : 1;

    if (!r->status && n > (size_t)ACR_COUNT(out->eos))
        r->status = acr_fail(r->err, ACCRUE_ENOTSUP,
                             "%s: \"eos_token_id\" has %zu ids, at most %d expected", r->name, n,
                             ACR_COUNT(out->eos));
    for (size_t i = 0; i < n && !r->status; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        const json_int_t x = json_integer_value(id);

        if (!json_is_integer(id))
            acr_field_refuse(r, "eos_token_id", id, "an integer");
        else if (x < 0 || x >= out->vocab_size)
            r->status = acr_fail(r->err, ACCRUE_EMISMATCH,
                                 "%s: \"eos_token_id\" is %lld, 0 to %lld expected", r->name,
                                 (long long)x, (long long)out->vocab_size - 1);
        else
            out->eos[out->n_eos++] = x;
    }
}

accrue_status acr_verifier_shape_read(acr_verifier_shape *out, const acr_pretrained *p,
                                      int64_t positions, accrue_error *err)
{
    const json_t *generation = acr_pretrained_generation(p);
    char name[PATH_MAX + 32];
    acr_fields r = {.object = acr_pretrained_config(p), .name = name, .err = err};
    family f = LLAMA;
    const char *act = NULL;
    bool attention_bias = false;

    memset(out, 0, sizeof *out);
    acr_pretrained_place(name, sizeof name, p, "config.json");
    f = read_family(&r);
    act = acr_field_string(&r, "hidden_act", "silu");
    refuse_experts(&r);
    acr_field_require(&r, strcmp(act, "silu") == 0, "hidden_act", act, "silu");
    read_sizes(&r, f, out);
    refuse_windows(&r, f, positions);
    attention_bias = f != QWEN2 && acr_field_bool(&r, "attention_bias", false);
    out->qkv_bias = f == QWEN2 || attention_bias;
    out->o_bias = attention_bias;
    out->mlp_bias = f == LLAMA && acr_field_bool(&r, "mlp_bias", false);
    out->qk_norm = f == QWEN3;
    out->tied = acr_field_bool(&r, "tie_word_embeddings", false);
    acr_field_rope(&r, &out->rope);
    if (!acr_absent(json_object_get(generation, "eos_token_id"))) {
        r.object = generation;
        acr_pretrained_place(name, sizeof name, p, "generation_config.json");
    }
    read_eos(&r, out);
    return r.status;
}
