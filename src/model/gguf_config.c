/* gguf_config.c - config.json and generation_config.json out of a GGUF file's keys.
 *
 * Keys of the architecture that are not known here may change what the model computes: a file that
 * has one is refused, by its name. */
#include "model/pretrained.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY = 128, MAX_SIZE = 1 << 24, MAX_GGUF_LAYERS = 1024, MAX_HEADS = 4096 };

/* A reader of one architecture's keys; the first failure stays. */
typedef struct reader {
    const acr_gguf *g;
    const json_t *keys;
    const char *arch, *path;
    accrue_status status;
    accrue_error *err;
} reader;

static const struct arch {
    const char *name, *class_name;
    acr_gguf_arch arch;
} archs[] = {
    {"llama", "LlamaForCausalLM", ACR_GGUF_LLAMA},
    {"qwen2", "Qwen2ForCausalLM", ACR_GGUF_QWEN2},
    {"qwen3", "Qwen3ForCausalLM", ACR_GGUF_QWEN3},
};

/* Keys below the architecture's name that are read, or say nothing about the arithmetic. */
static const char *const known[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "tensor_data_layout",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "attention.sliding_window",
    "expert_count",
    "expert_used_count",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
};

/* The value of "llama.block_count" for "block_count"; NULL: none.  `key` is its whole name. */
static const json_t *get(const reader *r, char key[KEY], const char *name)
{
    snprintf(key, KEY, "%s.%s", r->arch, name);
    return json_object_get(r->keys, key);
}

static void refuse(reader *r, accrue_status status, const char *key, const char *what,
                   const char *expected)
{
    if (!r->status)
        r->status =
            acr_fail(r->err, status, "%s: key '%s' %s, %s expected", r->path, key, what, expected);
}

static void refuse_number(reader *r, const char *key, double x, const char *expected)
{
    char is[40];

    snprintf(is, sizeof is, "is %g", x);
    refuse(r, ACCRUE_EMISMATCH, key, is, expected);
}

/* A fallback below `low`: the key must be there. */
static int64_t read_int(reader *r, const char *name, int64_t fallback, int64_t low, int64_t high)
{
    char key[KEY], range[80], is[40];
    const json_t *v = get(r, key, name);
    int64_t x = v ? json_integer_value(v) : fallback;

    if (!v && fallback >= low)
        return fallback;
    snprintf(range, sizeof range, "%lld to %lld", (long long)low, (long long)high);
    snprintf(is, sizeof is, "is %lld", (long long)x);
    if (!v)
        refuse(r, ACCRUE_EFORMAT, key, "is missing", range);
    else if (!json_is_integer(v))
        refuse(r, ACCRUE_EFORMAT, key, "is no single integer", range);
    else if (x < low || x > high)
        refuse(r, ACCRUE_EMISMATCH, key, is, range);
    return x < low || x > high ? low : x;
}

/* The shortest number that the file's f32 is nearest to: 1e-05 where it has 0.00000999999975. */
static double shortest(double x)
{
    const float single = (float)x;
    char text[40];

    if ((double)single != x)
        return x;
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtof(text, NULL) == single)
            return strtod(text, NULL);
    }
    return x;
}

static double read_real(reader *r, const char *name, double fallback)
{
    char key[KEY];
    const json_t *v = get(r, key, name);

    if (!v && !isnan(fallback))
        return fallback;
    if (!json_is_number(v)) {
        refuse(r, ACCRUE_EFORMAT, key, v ? "is no number" : "is missing", "a number");
        return 1;
    }
    return shortest(json_number_value(v));
}

/* Keys that may say what goes without saying, and nothing else. */
static void require_defaults(reader *r)
{
    char key[KEY];
    const json_t *causal = get(r, key, "attention.causal");

    if (causal && !json_is_true(causal))
        refuse(r, ACCRUE_ENOTSUP, key, "is not true", "true");
    read_int(r, "attention.sliding_window", 0, 0, 0);
    read_int(r, "expert_count", 0, 0, 0);
    read_int(r, "expert_used_count", 0, 0, 0);
    if (read_real(r, "rope.scale_linear", 1) != 1)
        refuse(r, ACCRUE_ENOTSUP, "rope.scale_linear", "is not 1", "1");
}

static void refuse_unknown(reader *r)
{
    const size_t prefix = strlen(r->arch);
    const char *key = NULL;
    json_t *value = NULL;

    json_object_foreach((json_t *)(uintptr_t)r->keys, key, value)
    {
        bool fine = strncmp(key, r->arch, prefix) != 0 || key[prefix] != '.';
        for (int i = 0; i < ACR_COUNT(known) && !fine; i++)
            fine = strcmp(key + prefix + 1, known[i]) == 0;
        if (!fine && !r->status)
            r->status = acr_fail(r->err, ACCRUE_ENOTSUP,
                                 "%s: key '%s' is not known and may change what the model "
                                 "computes",
                                 r->path, key);
    }
}

static const struct arch *read_arch(reader *r)
{
    const char *name = json_string_value(json_object_get(r->keys, "general.architecture"));

    for (int i = 0; i < ACR_COUNT(archs) && name; i++)
        if (strcmp(name, archs[i].name) == 0) {
            r->arch = archs[i].name;
            return &archs[i];
        }
    r->status = acr_fail(r->err, ACCRUE_ENOTSUP,
                         "%s: general.architecture is %s; supported: llama, qwen2, qwen3", r->path,
                         name ? name : "missing");
    return NULL;
}

static void read_vocab(reader *r, acr_gguf_sizes *s)
{
    const acr_gguf_tensor *embed = acr_gguf_find(r->g, "token_embd.weight");

    if (!embed || embed->n_dims != 2 || embed->dims[0] < 1 || embed->dims[0] > MAX_SIZE) {
        if (!r->status)
            r->status = acr_fail(r->err, ACCRUE_EFORMAT,
                                 "%s: tensor 'token_embd.weight' %s, [vocabulary, hidden] expected",
                                 r->path, embed ? "has another shape" : "is missing");
        s->vocab = 1;
        return;
    }
    s->vocab = embed->dims[0];
    read_int(r, "vocab_size", s->vocab, s->vocab, s->vocab);
}

static void read_heads(reader *r, acr_gguf_sizes *s)
{
    s->heads = (int)read_int(r, "attention.head_count", 0, 1, MAX_HEADS);
    s->kv_heads = (int)read_int(r, "attention.head_count_kv", s->heads, 1, s->heads);
    s->head_dim = (int)read_int(r, "attention.key_length", s->hidden / s->heads, 1, 1 << 16);
    read_int(r, "attention.value_length", s->head_dim, s->head_dim, s->head_dim);
    read_int(r, "rope.dimension_count", s->head_dim, s->head_dim, s->head_dim);
    if (!r->status && (s->heads % s->kv_heads || s->head_dim % 2))
        r->status = acr_fail(r->err, ACCRUE_EMISMATCH,
                             "%s: %d attention heads of %d, a multiple of %d key/value heads and "
                             "of 2 expected",
                             r->path, s->heads, s->head_dim, s->kv_heads);
}

static void read_sizes(reader *r, const struct arch *a, acr_gguf_sizes *s)
{
    s->arch = a->arch;
    s->name = a->name;
    s->hidden = read_int(r, "embedding_length", 0, 1, MAX_SIZE);
    s->intermediate = read_int(r, "feed_forward_length", 0, 1, MAX_SIZE);
    s->context = read_int(r, "context_length", 0, 1, INT32_MAX);
    s->layers = (int)read_int(r, "block_count", 0, 1, MAX_GGUF_LAYERS);
    read_heads(r, s);
    read_vocab(r, s);
    s->rms_norm_eps = read_real(r, "attention.layer_norm_rms_epsilon", (double)NAN);
    s->tied = !acr_gguf_find(r->g, "output.weight");
    s->attention_bias = acr_gguf_find(r->g, "blk.0.attn_q.bias");
    s->mlp_bias = acr_gguf_find(r->g, "blk.0.ffn_down.bias");
    require_defaults(r);
    refuse_unknown(r);
}

/* Rotation ---------------------------------------------------------------------------------- */

static json_t *default_rope(double theta)
{
    return json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", theta);
}

static json_t *llama3_rope(reader *r, const acr_gguf_sizes *s, double theta, double original)
{
    const acr_gguf_tensor *t = acr_gguf_find(r->g, "rope_freqs.weight");
    acr_rope_config c = {.theta = theta};
    int n = s->head_dim / 2;
    float *factors = NULL;
    bool fine = t && t->type == ACR_GGUF_F32 && t->n_dims == 1 && t->dims[0] == n && theta > 1;

    if (!t)
        return default_rope(theta);
    factors = acr_malloc((size_t)n * sizeof *factors);
    if (!factors) {
        r->status = acr_enomem(r->err, (size_t)n * sizeof *factors, r->path);
        return NULL;
    }
    if (fine) {
        acr_gguf_dequantize(t->type, t->data, n, factors);
        fine = acr_rope_from_factors(&c, factors, n, original);
    }
    acr_free(factors);
    if (!fine || (c.llama3 && s->arch != ACR_GGUF_LLAMA)) {
        r->status = acr_fail(r->err, ACCRUE_ENOTSUP,
                             "%s: tensor 'rope_freqs.weight' holds no factors of llama3 scaling "
                             "for %d frequencies of a llama",
                             r->path, n);
        return NULL;
    }
    if (!c.llama3)
        return default_rope(theta);
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "rope_theta", theta,
                     "factor", shortest(c.factor), "low_freq_factor", c.low_freq_factor,
                     "high_freq_factor", c.high_freq_factor, "original_max_position_embeddings",
                     (json_int_t)llround(c.original_max_position));
}

static json_t *read_rope(reader *r, const acr_gguf_sizes *s)
{
    char key[KEY];
    double theta = read_real(r, "rope.freq_base", 10000);
    int64_t original = read_int(r, "rope.scaling.original_context_length", 0, 0, INT32_MAX);
    const json_t *v = get(r, key, "rope.scaling.type");
    const char *type = v                                    ? json_string_value(v)
                       : get(r, key, "rope.scaling.factor") ? "linear" /* as llama.cpp takes it */
                                                            : "none";
    double factor = 1;

    if (!type || (strcmp(type, "none") && strcmp(type, "linear") && strcmp(type, "yarn")))
        refuse(r, ACCRUE_ENOTSUP, key, "is another", "none, linear or yarn");
    if (!(theta > 0))
        refuse_number(r, "rope.freq_base", theta, "a positive number");
    if (r->status)
        return NULL;
    if (strcmp(type, "none") == 0)
        return llama3_rope(r, s, theta, original ? (double)original : 8192);
    factor = read_real(r, "rope.scaling.factor", (double)NAN);
    if (!(factor > 0))
        refuse_number(r, "rope.scaling.factor", factor, "a positive number");
    if (acr_gguf_find(r->g, "rope_freqs.weight"))
        refuse(r, ACCRUE_ENOTSUP, key, "and tensor 'rope_freqs.weight' are there", "one of them");
    if (r->status)
        return NULL;
    if (strcmp(type, "linear") == 0)
        return json_pack("{s:s, s:f, s:f}", "rope_type", type, "rope_theta", theta, "factor",
                         factor);
    original = read_int(r, "rope.scaling.original_context_length", 0, 1, INT32_MAX);
    return json_pack("{s:s, s:f, s:f, s:I}", "rope_type", type, "rope_theta", theta, "factor",
                     factor, "original_max_position_embeddings", (json_int_t)original);
}

/* transformers 5 reads rope_parameters, its forerunners rope_theta and rope_scaling. */
static int set_rope(json_t *config, json_t *rope)
{
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    bool scaled = type && strcmp(type, "default") != 0;
    json_t *old = scaled ? json_copy(rope) : json_null();

    if (scaled)
        json_object_del(old, "rope_theta");
    return json_object_set(config, "rope_theta", json_object_get(rope, "rope_theta")) |
           json_object_set_new(config, "rope_scaling", old) |
           json_object_set_new(config, "rope_parameters", rope);
}

/* Token ids --------------------------------------------------------------------------------- */

/* The id that a key gives; -1: none. */
static int64_t read_id(reader *r, const char *name, int64_t vocab)
{
    char key[KEY], range[40];
    const json_t *v = NULL;
    int64_t id = 0;

    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    v = json_object_get(r->keys, key);
    if (!v)
        return -1;
    id = json_integer_value(v);
    snprintf(range, sizeof range, "0 to %lld", (long long)vocab - 1);
    if (!json_is_integer(v) || id < 0 || id >= vocab)
        refuse(r, ACCRUE_EMISMATCH, key, "is no id of the vocabulary", range);
    return id;
}

static int set_id(json_t *object, const char *key, int64_t id)
{
    return id < 0 ? 0 : json_object_set_new(object, key, json_integer(id));
}

static int set_ids(acr_pretrained *p, reader *r, int64_t vocab)
{
    int64_t bos = read_id(r, "bos", vocab), eos = read_id(r, "eos", vocab);
    int64_t pad = read_id(r, "padding", vocab), turn = read_id(r, "eot", vocab);
    json_t *g = NULL;
    int failed = set_id(p->config, "bos_token_id", bos) | set_id(p->config, "eos_token_id", eos) |
                 set_id(p->config, "pad_token_id", pad);

    if (bos < 0 && eos < 0 && pad < 0 && turn < 0)
        return failed;
    p->generation = g = json_object();
    failed |= !g || set_id(g, "bos_token_id", bos) || set_id(g, "pad_token_id", pad);
    if (eos >= 0 && turn >= 0 && turn != eos)
        return failed | json_object_set_new(g, "eos_token_id",
                                            json_pack("[I, I]", (json_int_t)eos, (json_int_t)turn));
    return failed | set_id(g, "eos_token_id", eos >= 0 ? eos : turn);
}

/* ------------------------------------------------------------------------------------------ */

static json_t *pack_config(const acr_gguf_sizes *s, const char *class_name)
{
    return json_pack(
        "{s:[s], s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:I, s:I, s:f, s:s, s:b, s:f, s:f, s:b}",
        "architectures", class_name, "model_type", s->name, "hidden_size", (json_int_t)s->hidden,
        "intermediate_size", (json_int_t)s->intermediate, "num_hidden_layers", s->layers,
        "num_attention_heads", s->heads, "num_key_value_heads", s->kv_heads, "head_dim",
        s->head_dim, "vocab_size", (json_int_t)s->vocab, "max_position_embeddings",
        (json_int_t)s->context, "rms_norm_eps", s->rms_norm_eps, "hidden_act", "silu",
        "tie_word_embeddings", (int)s->tied, "attention_dropout", 0.0, "initializer_range", 0.02,
        "use_cache", 1);
}

/* qwen2 has biases on q, k and v and none on o, whatever a configuration says. */
static int set_biases(json_t *config, const acr_gguf_sizes *s)
{
    switch (s->arch) {
    case ACR_GGUF_LLAMA:
        return json_object_set_new(config, "attention_bias", json_boolean(s->attention_bias)) |
               json_object_set_new(config, "mlp_bias", json_boolean(s->mlp_bias));
    case ACR_GGUF_QWEN3:
        return json_object_set_new(config, "attention_bias", json_boolean(s->attention_bias));
    default: return json_object_set_new(config, "use_sliding_window", json_false());
    }
}

accrue_status acr_gguf_config(acr_pretrained *p, acr_gguf_sizes *s, accrue_error *err)
{
    reader r = {.g = p->gguf, .path = p->path, .err = err};
    const struct arch *a = NULL;
    json_t *rope = NULL;

    r.keys = acr_gguf_metadata(p->gguf);
    a = read_arch(&r);
    if (!a)
        return r.status;
    read_sizes(&r, a, s);
    if (!r.status)
        rope = read_rope(&r, s);
    if (r.status) {
        json_decref(rope);
        return r.status;
    }
    p->config = pack_config(s, a->class_name);
    if (set_rope(p->config, rope) || set_biases(p->config, s) || set_ids(p, &r, s->vocab))
        return r.status ? r.status : acr_enomem(err, 0, "the configuration");
    return r.status;
}
