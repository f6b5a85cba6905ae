/* test_gguf_model.c - GGUF files seen as Hugging Face folders: names, layouts, configurations, and
 * what cannot be told in them. */
#include "gguf_test.h"

#include "model/model.h"

#include <math.h>

static gguf_file f;
static gguf_text file;
static char *path;

static int setup(void **state)
{
    (void)state;
    memset(&f, 0, sizeof f);
    path = acr_strdup("test_gguf_model.gguf");
    return path ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    remove(path);
    acr_free(path);
    return 0;
}

/* The fixtures --------------------------------------------------------------------------------
 * Their tensors are those that the folder had before it was converted, to the bit. */

static void has_the_folders_tensors(const char *name, int count)
{
    char *gguf = acr_sprintf(ACR_TEST_DATA "/gguf/%s.gguf", name);
    char *folder = acr_sprintf(ACR_TEST_DATA "/gguf/%s.safetensors", name);
    acr_safetensors *s = NULL;
    acr_pretrained *p = NULL;
    accrue_error e;

    assert_ok(acr_safetensors_open(&s, folder, &e), &e);
    assert_ok(acr_pretrained_open(&p, gguf, &e), &e);
    assert_int_equal(acr_pretrained_count(p), count);
    for (int i = 0; i < acr_safetensors_count(s); i++) {
        const acr_tensor *t = acr_safetensors_at(s, i);
        int at = acr_pretrained_find(p, t->name);
        int64_t n = acr_tensor_elements(t), rows = t->dims[0];
        const acr_tensor *got = NULL;
        float *single = malloc((size_t)n * sizeof *single);
        double *twice = malloc((size_t)n * sizeof *twice);
        assert_true(at >= 0);
        got = acr_pretrained_at(p, at);
        assert_int_equal(got->n_dims, t->n_dims);
        assert_memory_equal(got->dims, t->dims, (size_t)t->n_dims * sizeof *t->dims);
        assert_int_equal(got->bytes, (size_t)n * acr_dtype_bytes(got->dtype));
        assert_ok(acr_pretrained_read(single, ACR_DTYPE_F32, p, at, 0, rows, &e), &e);
        assert_memory_equal(single, t->data, t->bytes);
        assert_ok(acr_pretrained_read(single, ACR_DTYPE_F32, p, at, 3, rows - 3, &e), &e);
        assert_memory_equal(single, (const float *)t->data + 3 * (n / rows),
                            (size_t)(n - 3 * (n / rows)) * sizeof *single);
        assert_ok(acr_pretrained_read(twice, ACR_DTYPE_F64, p, at, 0, rows, &e), &e);
        for (int64_t k = 0; k < n; k++)
            assert_true(twice[k] == (double)((const float *)t->data)[k]);
        free(single);
        free(twice);
    }
    acr_pretrained_close(p);
    acr_safetensors_close(s);
    acr_free(gguf);
    acr_free(folder);
}

static void every_architecture_is_unpacked(void **state)
{
    (void)state;
    has_the_folders_tensors("llama", 12);
    has_the_folders_tensors("qwen2", 14);
    has_the_folders_tensors("qwen3", 24);
}

static const json_t *value(const acr_pretrained *p, const char *name)
{
    return json_object_get(acr_pretrained_config(p), name);
}

static void configurations_are_told(void **state)
{
    acr_pretrained *p = NULL;
    accrue_error e;
    json_t *rope = json_pack("{s:s, s:f, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "rope_theta",
                             500000.0, "factor", 8.0, "low_freq_factor", 1.0, "high_freq_factor",
                             4.0, "original_max_position_embeddings", 8192);

    (void)state;
    assert_ok(acr_pretrained_open(&p, ACR_TEST_DATA "/gguf/llama.gguf", &e), &e);
    assert_string_equal(json_string_value(value(p, "model_type")), "llama");
    assert_string_equal(json_string_value(json_array_get(value(p, "architectures"), 0)),
                        "LlamaForCausalLM");
    assert_int_equal(json_integer_value(value(p, "hidden_size")), 32);
    assert_int_equal(json_integer_value(value(p, "intermediate_size")), 32);
    assert_int_equal(json_integer_value(value(p, "num_hidden_layers")), 1);
    assert_int_equal(json_integer_value(value(p, "num_attention_heads")), 4);
    assert_int_equal(json_integer_value(value(p, "num_key_value_heads")), 2);
    assert_int_equal(json_integer_value(value(p, "head_dim")), 8);
    assert_int_equal(json_integer_value(value(p, "vocab_size")), 264);
    assert_int_equal(json_integer_value(value(p, "max_position_embeddings")), 256);
    assert_int_equal(json_integer_value(value(p, "bos_token_id")), 260);
    assert_int_equal(json_integer_value(value(p, "eos_token_id")), 261);
    assert_true(json_real_value(value(p, "rms_norm_eps")) == 1e-5);
    assert_true(json_is_false(value(p, "tie_word_embeddings")));
    assert_true(json_is_false(value(p, "attention_bias")));
    assert_true(json_equal((json_t *)(uintptr_t)value(p, "rope_parameters"), rope));
    json_object_del(rope, "rope_theta");
    assert_true(json_equal((json_t *)(uintptr_t)value(p, "rope_scaling"), rope));
    assert_true(json_real_value(value(p, "rope_theta")) == 500000.0);
    assert_int_equal(
        json_integer_value(json_object_get(acr_pretrained_generation(p), "eos_token_id")), 261);
    assert_non_null(acr_pretrained_gguf(p));
    json_decref(rope);
    acr_pretrained_close(p);
    assert_ok(acr_pretrained_open(&p, ACR_TEST_DATA "/gguf/qwen3.gguf", &e), &e);
    assert_string_equal(json_string_value(value(p, "model_type")), "qwen3");
    assert_true(json_is_true(value(p, "tie_word_embeddings")));
    assert_true(json_is_null(value(p, "rope_scaling")));
    assert_string_equal(
        json_string_value(json_object_get(value(p, "rope_parameters"), "rope_type")), "default");
    acr_pretrained_close(p);
}

/* What the file holds without loss stays; quantised matrices become bf16. */
static void types_are_told(void **state)
{
    acr_pretrained *p = NULL;
    accrue_error e;
    const struct {
        const char *name;
        acr_dtype dtype;
    } cases[] = {{"model.embed_tokens.weight", ACR_DTYPE_BF16},
                 {"model.norm.weight", ACR_DTYPE_F32},
                 {"model.layers.0.self_attn.v_proj.weight", ACR_DTYPE_F16},
                 {"model.layers.0.self_attn.o_proj.weight", ACR_DTYPE_BF16}};

    (void)state;
    assert_ok(acr_pretrained_open(&p, ACR_TEST_DATA "/gguf/llama.gguf", &e), &e);
    for (int i = 0; i < ACR_COUNT(cases); i++)
        assert_int_equal(acr_pretrained_at(p, acr_pretrained_find(p, cases[i].name))->dtype,
                         cases[i].dtype);
    assert_string_equal(acr_pretrained_origin(p, acr_pretrained_find(p, "model.norm.weight"))->name,
                        "output_norm.weight");
    acr_pretrained_close(p);
}

/* Made-up files ---------------------------------------------------------------------------- */

typedef struct model {
    const char *arch;
    int heads, kv_heads, dim, hidden, inner, vocab;
} model;

static const model tiny = {"llama", 2, 1, 4, 8, 6, 5};

static void arch_key(const model *m, const char *name, uint32_t x)
{
    char *whole = acr_sprintf("%s.%s", m->arch, name);

    key_u32(&f, whole, x);
    acr_free(whole);
}

static void arch_real(const model *m, const char *name, float x)
{
    char *whole = acr_sprintf("%s.%s", m->arch, name);

    key_f32(&f, whole, x);
    acr_free(whole);
}

/* Keys but those that `without` names. */
static void put_keys(const model *m, const char *without)
{
    const struct {
        const char *name;
        int x;
    } keys[] = {{"block_count", 1},
                {"context_length", 64},
                {"embedding_length", m->hidden},
                {"feed_forward_length", m->inner},
                {"attention.head_count", m->heads},
                {"attention.head_count_kv", m->kv_heads},
                {"attention.key_length", m->dim},
                {"attention.value_length", m->dim},
                {"rope.dimension_count", m->dim}};

    key_string(&f, "general.architecture", m->arch);
    for (int i = 0; i < ACR_COUNT(keys); i++)
        if (strcmp(keys[i].name, without) != 0)
            arch_key(m, keys[i].name, (uint32_t)keys[i].x);
    if (strcmp("attention.layer_norm_rms_epsilon", without) != 0)
        arch_real(m, "attention.layer_norm_rms_epsilon", 1e-6f);
    arch_real(m, "rope.freq_base", 10000);
}

static void put_tensors(const model *m, const char *without)
{
    const int q = m->heads * m->dim, k = m->kv_heads * m->dim, h = m->hidden;
    const struct {
        const char *name;
        int rows, columns;
    } tensors[] = {{"token_embd.weight", m->vocab, h},     {"output_norm.weight", h, 0},
                   {"blk.0.attn_norm.weight", h, 0},       {"blk.0.ffn_norm.weight", h, 0},
                   {"blk.0.attn_q.weight", q, h},          {"blk.0.attn_k.weight", k, h},
                   {"blk.0.attn_v.weight", k, h},          {"blk.0.attn_output.weight", h, q},
                   {"blk.0.ffn_gate.weight", m->inner, h}, {"blk.0.ffn_up.weight", m->inner, h},
                   {"blk.0.ffn_down.weight", h, m->inner}};

    for (int i = 0; i < ACR_COUNT(tensors); i++)
        if (strcmp(tensors[i].name, without) != 0)
            tensor(&f, tensors[i].name, tensors[i].rows, tensors[i].columns, NULL);
}

static void write_model(void)
{
    assemble(&file, &f, 3);
    write_bytes(path, file.at, file.n);
    memset(&f, 0, sizeof f);
}

static void accept(acr_pretrained **p)
{
    accrue_error e;

    write_model();
    assert_ok(acr_pretrained_open(p, path, &e), &e);
}

static void refuse(accrue_status status, const char *message)
{
    acr_pretrained *p = NULL;
    accrue_error e;

    write_model();
    assert_fails(acr_pretrained_open(&p, path, &e), status, &e, path, message, NULL);
    assert_null(p);
}

static void a_plain_model_is_taken(void **state)
{
    acr_pretrained *p = NULL;

    (void)state;
    put_keys(&tiny, "attention.key_length");
    put_tensors(&tiny, "");
    accept(&p);
    assert_int_equal(acr_pretrained_count(p), 11);
    assert_null(acr_pretrained_generation(p));
    assert_null(value(p, "bos_token_id"));
    acr_pretrained_close(p);
}

static void biases_are_taken(void **state)
{
    const float q[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* permuted of one head of 8 */
    const float expected[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const model wide = {"llama", 1, 1, 8, 8, 6, 5};
    float got[8];
    acr_pretrained *p = NULL;
    accrue_error e;

    (void)state;
    put_keys(&wide, "");
    put_tensors(&wide, "");
    tensor(&f, "blk.0.attn_q.bias", 8, 0, q);
    tensor(&f, "blk.0.attn_k.bias", 8, 0, q);
    tensor(&f, "blk.0.attn_v.bias", 8, 0, q);
    tensor(&f, "blk.0.attn_output.bias", 8, 0, NULL);
    tensor(&f, "blk.0.ffn_gate.bias", 6, 0, NULL);
    tensor(&f, "blk.0.ffn_up.bias", 6, 0, NULL);
    tensor(&f, "blk.0.ffn_down.bias", 8, 0, NULL);
    accept(&p);
    assert_true(json_is_true(value(p, "attention_bias")));
    assert_true(json_is_true(value(p, "mlp_bias")));
    assert_ok(acr_pretrained_read(got, ACR_DTYPE_F32, p,
                                  acr_pretrained_find(p, "model.layers.0.self_attn.q_proj.bias"), 0,
                                  8, &e),
              &e);
    assert_memory_equal(got, expected, sizeof got);
    assert_ok(acr_pretrained_read(got, ACR_DTYPE_F32, p,
                                  acr_pretrained_find(p, "model.layers.0.self_attn.v_proj.bias"), 0,
                                  8, &e),
              &e);
    assert_memory_equal(got, q, sizeof got);
    acr_pretrained_close(p);
}

static void keys_that_cannot_be_told_are_refused(void **state)
{
    const struct {
        const char *name;
        uint32_t x;
        accrue_status status;
        const char *message;
    } cases[] = {
        {"expert_count", 4, ACCRUE_EMISMATCH, "'llama.expert_count' is 4, 0 to 0 expected"},
        {"attention.sliding_window", 9, ACCRUE_EMISMATCH, "sliding_window' is 9, 0 to 0"},
        {"logit_scale", 1, ACCRUE_ENOTSUP, "'llama.logit_scale' is not known and may change"},
        {"vocab_size", 6, ACCRUE_EMISMATCH, "'llama.vocab_size' is 6, 5 to 5 expected"},
        {"rope.scaling.type", 1, ACCRUE_ENOTSUP, "none, linear or yarn expected"},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        put_keys(&tiny, "");
        put_tensors(&tiny, "");
        arch_key(&tiny, cases[i].name, cases[i].x);
        refuse(cases[i].status, cases[i].message);
    }
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    key_bool(&f, "llama.attention.causal", false);
    refuse(ACCRUE_ENOTSUP, "'llama.attention.causal' is not true, true expected");
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    arch_real(&tiny, "rope.scale_linear", 2);
    refuse(ACCRUE_ENOTSUP, "rope.scale_linear' is not 1");
    key_string(&f, "general.architecture", "mamba");
    refuse(ACCRUE_ENOTSUP, "general.architecture is mamba; supported: llama, qwen2, qwen3");
    refuse(ACCRUE_ENOTSUP, "general.architecture is missing");
}

static void keys_that_are_wrong_are_refused(void **state)
{
    model odd = tiny;
    static const char *const needed[] = {"block_count", "context_length", "embedding_length",
                                         "feed_forward_length", "attention.head_count"};

    (void)state;
    for (int i = 0; i < ACR_COUNT(needed); i++) {
        put_keys(&tiny, needed[i]);
        put_tensors(&tiny, "");
        refuse(ACCRUE_EFORMAT, "is missing, 1 to");
    }
    put_keys(&tiny, "attention.layer_norm_rms_epsilon");
    put_tensors(&tiny, "");
    refuse(ACCRUE_EFORMAT, "layer_norm_rms_epsilon' is missing, a number expected");
    put_keys(&tiny, "block_count");
    put_tensors(&tiny, "");
    key_string(&f, "llama.block_count", "1");
    refuse(ACCRUE_EFORMAT, "'llama.block_count' is no single integer, 1 to 1024 expected");
    put_keys(&tiny, "attention.layer_norm_rms_epsilon");
    put_tensors(&tiny, "");
    key_string(&f, "llama.attention.layer_norm_rms_epsilon", "1");
    refuse(ACCRUE_EFORMAT, "layer_norm_rms_epsilon' is no number");
    put_keys(&tiny, "attention.value_length");
    put_tensors(&tiny, "");
    arch_key(&tiny, "attention.value_length", 8);
    refuse(ACCRUE_EMISMATCH, "attention.value_length' is 8, 4 to 4 expected");
    odd.heads = 3;
    odd.kv_heads = 2;
    put_keys(&odd, "");
    put_tensors(&odd, "");
    refuse(ACCRUE_EMISMATCH, "3 attention heads of 4, a multiple of 2 key/value heads");
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    key_u32(&f, "tokenizer.ggml.bos_token_id", 5);
    refuse(ACCRUE_EMISMATCH, "bos_token_id' is no id of the vocabulary, 0 to 4 expected");
}

static void tensors_that_do_not_fit_are_refused(void **state)
{
    const model wide = {"llama", 2, 1, 4, 32, 6, 5};
    const int64_t row[] = {32};

    (void)state;
    put_keys(&tiny, "");
    put_tensors(&tiny, "token_embd.weight");
    refuse(ACCRUE_EFORMAT, "'token_embd.weight' is missing, [vocabulary, hidden] expected");
    put_keys(&tiny, "");
    put_tensors(&tiny, "token_embd.weight");
    tensor(&f, "token_embd.weight", 8, 0, NULL);
    refuse(ACCRUE_EFORMAT, "'token_embd.weight' has another shape, [vocabulary, hidden] expected");
    put_keys(&tiny, "");
    put_tensors(&tiny, "blk.0.attn_v.weight");
    refuse(ACCRUE_EFORMAT, "tensor 'blk.0.attn_v.weight' is missing");
    put_keys(&tiny, "");
    put_tensors(&tiny, "blk.0.attn_v.weight");
    tensor(&f, "blk.0.attn_v.weight", 5, 8, NULL);
    refuse(ACCRUE_EMISMATCH, "tensor 'blk.0.attn_v.weight' is [5, 8], [4, 8] expected");
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    tensor(&f, "blk.0.attn_sinks.weight", 2, 0, NULL);
    refuse(ACCRUE_ENOTSUP, "tensor 'blk.0.attn_sinks.weight' is none of a llama of 1 layers");
    put_keys(&wide, "");
    put_tensors(&wide, "output_norm.weight");
    entry(&f, "output_norm.weight", 1, row, ACR_GGUF_Q8_0, f.data.n);
    f.data.n += 64;
    refuse(ACCRUE_EMISMATCH, "'output_norm.weight' is Q8_0, a float type for one dimension");
    put_keys(&tiny, "");
    put_tensors(&tiny, "output_norm.weight");
    entry(&f, "output_norm.weight", 1, (const int64_t[]){8}, ACR_GGUF_I32, f.data.n);
    f.data.n += 32;
    refuse(ACCRUE_EMISMATCH, "'output_norm.weight' is I32, a float or quantised type expected");
}

/* Two ends of an answer: of the text and of the turn. */
static void both_ends_of_an_answer_are_told(void **state)
{
    acr_pretrained *p = NULL;
    const json_t *eos = NULL;

    (void)state;
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    key_u32(&f, "tokenizer.ggml.eos_token_id", 1);
    key_u32(&f, "tokenizer.ggml.eot_token_id", 2);
    key_u32(&f, "tokenizer.ggml.padding_token_id", 0);
    accept(&p);
    eos = json_object_get(acr_pretrained_generation(p), "eos_token_id");
    assert_int_equal(json_integer_value(json_array_get(eos, 0)), 1);
    assert_int_equal(json_integer_value(json_array_get(eos, 1)), 2);
    assert_int_equal(json_integer_value(value(p, "eos_token_id")), 1);
    assert_int_equal(json_integer_value(value(p, "pad_token_id")), 0);
    acr_pretrained_close(p);
}

/* Rotation --------------------------------------------------------------------------------- */

static double parameter(const acr_pretrained *p, const char *name)
{
    return json_number_value(json_object_get(value(p, "rope_parameters"), name));
}

static void llama3_factors(float *out, int n, double theta, const double p[4])
{
    for (int i = 0; i < n; i++) {
        double wavelength = 2 * acos(-1.0) * pow(theta, (double)i / n);
        double s = (p[3] / wavelength - p[1]) / (p[2] - p[1]);
        out[i] = (float)(s >= 1 ? 1 : s <= 0 ? p[0] : 1 / ((1 - s) / p[0] + s));
    }
}

/* Scalings of models in use come back as they were, others as ones that do the same. */
static void llama3_scaling_comes_back(void **state)
{
    static const double cases[][4] = {
        {8, 1, 4, 8192}, {32, 1, 4, 8192}, {16, 1, 2.5, 4096}, {4, 1, 16, 2048}, {8, 2, 8, 8192}};
    const model wide = {"llama", 1, 1, 64, 8, 6, 5};

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        float factors[32], again[32];
        double found[4];
        acr_pretrained *p = NULL;
        llama3_factors(factors, 32, 10000, cases[i]);
        put_keys(&wide, "");
        put_tensors(&wide, "");
        tensor(&f, "rope_freqs.weight", 32, 0, factors);
        accept(&p);
        found[0] = parameter(p, "factor");
        found[1] = parameter(p, "low_freq_factor");
        found[2] = parameter(p, "high_freq_factor");
        found[3] = parameter(p, "original_max_position_embeddings");
        llama3_factors(again, 32, 10000, found);
        for (int k = 0; k < 32; k++)
            assert_true(fabsf(again[k] - factors[k]) <= 1e-5f * factors[k]);
        for (int k = 0; k < 4; k++) /* low 1 stands for all multiples of the other three */
            assert_true(fabs(found[k] - (k ? cases[i][k] / cases[i][1] : cases[i][k])) < 1e-9);
        acr_pretrained_close(p);
    }
}

static void other_factors_are_refused(void **state)
{
    const model wide = {"llama", 1, 1, 64, 8, 6, 5};
    const model qwen = {"qwen2", 1, 1, 64, 8, 6, 5};
    const double usual[4] = {8, 1, 4, 8192};
    acr_pretrained *p = NULL;
    float factors[32];

    (void)state;
    for (int i = 0; i < 32; i++)
        factors[i] = i < 16 ? 1.5f : 2;
    put_keys(&wide, "");
    put_tensors(&wide, "");
    tensor(&f, "rope_freqs.weight", 32, 0, factors);
    refuse(ACCRUE_ENOTSUP, "'rope_freqs.weight' holds no factors of llama3 scaling for 32");
    llama3_factors(factors, 32, 10000, usual);
    factors[20] *= 1.01f;
    put_keys(&wide, "");
    put_tensors(&wide, "");
    tensor(&f, "rope_freqs.weight", 32, 0, factors);
    refuse(ACCRUE_ENOTSUP, "'rope_freqs.weight' holds no factors");
    put_keys(&wide, "");
    put_tensors(&wide, "");
    tensor(&f, "rope_freqs.weight", 16, 0, factors);
    refuse(ACCRUE_ENOTSUP, "'rope_freqs.weight' holds no factors");
    for (int i = 0; i < 32; i++)
        factors[i] = 1;
    put_keys(&wide, "");
    put_tensors(&wide, "");
    tensor(&f, "rope_freqs.weight", 32, 0, factors);
    accept(&p);
    assert_string_equal(
        json_string_value(json_object_get(value(p, "rope_parameters"), "rope_type")), "default");
    acr_pretrained_close(p);
    llama3_factors(factors, 32, 10000, usual);
    put_keys(&qwen, "");
    put_tensors(&qwen, "");
    for (int i = 0; i < 3; i++) {
        static const char *const biases[] = {"blk.0.attn_q.bias", "blk.0.attn_k.bias",
                                             "blk.0.attn_v.bias"};
        tensor(&f, biases[i], 64, 0, NULL);
    }
    tensor(&f, "rope_freqs.weight", 32, 0, factors);
    refuse(ACCRUE_ENOTSUP, "'rope_freqs.weight' holds no factors of llama3 scaling for 32 "
                           "frequencies of a llama");
}

static void linear_and_yarn_are_told(void **state)
{
    acr_pretrained *p = NULL;

    (void)state;
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    arch_real(&tiny, "rope.scaling.factor", 2);
    accept(&p);
    assert_string_equal(json_string_value(json_object_get(value(p, "rope_scaling"), "rope_type")),
                        "linear");
    acr_pretrained_close(p);
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    arch_real(&tiny, "rope.scaling.factor", -2);
    refuse(ACCRUE_EMISMATCH, "rope.scaling.factor' is -2, a positive number expected");
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    key_string(&f, "llama.rope.scaling.type", "linear");
    arch_real(&tiny, "rope.scaling.factor", 4);
    accept(&p);
    assert_true(parameter(p, "factor") == 4);
    assert_string_equal(json_string_value(json_object_get(value(p, "rope_scaling"), "rope_type")),
                        "linear");
    acr_pretrained_close(p);
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    key_string(&f, "llama.rope.scaling.type", "yarn");
    arch_real(&tiny, "rope.scaling.factor", 4);
    arch_key(&tiny, "rope.scaling.original_context_length", 16);
    accept(&p);
    assert_true(parameter(p, "original_max_position_embeddings") == 16);
    acr_pretrained_close(p);
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    key_string(&f, "llama.rope.scaling.type", "yarn");
    arch_real(&tiny, "rope.scaling.factor", 4);
    refuse(ACCRUE_EFORMAT, "original_context_length' is missing, 1 to");
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    key_string(&f, "llama.rope.scaling.type", "linear");
    refuse(ACCRUE_EFORMAT, "rope.scaling.factor' is missing, a number expected");
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    key_string(&f, "llama.rope.scaling.type", "longrope");
    refuse(ACCRUE_ENOTSUP, "rope.scaling.type' is another, none, linear or yarn expected");
    put_keys(&tiny, "");
    put_tensors(&tiny, "");
    key_string(&f, "llama.rope.scaling.type", "linear");
    arch_real(&tiny, "rope.scaling.factor", 4);
    tensor(&f, "rope_freqs.weight", 2, 0, NULL);
    refuse(ACCRUE_ENOTSUP, "and tensor 'rope_freqs.weight' are there, one of them expected");
}

static void memory_that_ends_is_told(void **state)
{
    accrue_status st = ACCRUE_ENOMEM;
    accrue_error e;
    acr_pretrained *p = NULL;

    (void)state;
    for (uint64_t i = 1; st; i++) {
        acr_fail_allocation(i);
        st = acr_pretrained_open(&p, ACR_TEST_DATA "/gguf/llama.gguf", &e);
        acr_fail_allocation(0);
        assert_true(st == ACCRUE_OK || st == ACCRUE_ENOMEM);
    }
    acr_pretrained_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_is_unpacked),
        cmocka_unit_test(configurations_are_told),
        cmocka_unit_test(types_are_told),
        cmocka_unit_test_setup_teardown(a_plain_model_is_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(biases_are_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(keys_that_cannot_be_told_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(keys_that_are_wrong_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(tensors_that_do_not_fit_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(both_ends_of_an_answer_are_told, setup, teardown),
        cmocka_unit_test_setup_teardown(llama3_scaling_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(other_factors_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(linear_and_yarn_are_told, setup, teardown),
        cmocka_unit_test(memory_that_ends_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
