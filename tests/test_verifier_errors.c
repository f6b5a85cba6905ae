/* test_verifier_errors.c - verifiers that are refused, wrong calls, and too little memory. */
#include "verifier_test.h"

#include <unistd.h>

static char *folder;

static int setup(void **state)
{
    (void)state;
    folder = make_folder();
    return folder ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

/* The folder becomes `model` with the fields of `change` (JSON) in its configuration. */
static void change_model(const char *model, const char *file, const char *change)
{
    static const char *const files[] = {"config.json", "generation_config.json",
                                        "model.safetensors"};
    char *path = NULL, *text = NULL;
    json_t *config = NULL, *fields = NULL;
    model_path from;

    for (int i = 0; i < ACR_COUNT(files); i++) {
        char *to = acr_sprintf("%s/%s", folder, files[i]), tail[64];
        snprintf(tail, sizeof tail, "/%s", files[i]);
        unlink(to);
        assert_int_equal(symlink(path_of(from, model, tail), to), 0);
        acr_free(to);
    }
    path = acr_sprintf("%s/%s", folder, file);
    assert_int_equal(acr_json_load(&config, path, 1 << 20, NULL), ACCRUE_OK);
    assert_int_equal(acr_json_parse(&fields, change, strlen(change), "change", NULL), ACCRUE_OK);
    json_object_update(config, fields);
    unlink(path);
    text = acr_json_text(config);
    write_text(path, text);
    acr_free(text);
    acr_free(path);
    json_decref(config);
    json_decref(fields);
}

static accrue_status open_changed(acr_verifier **out, accrue_error *e)
{
    return acr_verifier_open(out, folder, ACCRUE_F32, POSITIONS, e);
}

#define LLAMA3_WITHOUT_FACTOR                                                                      \
    "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"low_freq_factor\":1,\"high_freq_factor\":4,"    \
    "\"original_max_position_embeddings\":16}}"

static void configurations_that_change_the_arithmetic_are_refused(void **state)
{
    static const struct {
        const char *model, *change;
        accrue_status status;
        const char *words[2];
    } refused[] = {
        {"llama",
         "{\"model_type\":\"mistral\"}",
         ACCRUE_ENOTSUP,
         {"mistral", "llama, qwen2, qwen3"}},
        {"qwen3", "{\"model_type\":\"qwen3_moe\"}", ACCRUE_ENOTSUP, {"qwen3_moe", NULL}},
        {"llama", "{\"model_type\":7}", ACCRUE_EFORMAT, {"model_type", "a string"}},
        {"llama", "{\"num_local_experts\":8}", ACCRUE_ENOTSUP, {"num_local_experts", "experts"}},
        {"qwen3", "{\"num_experts\":8}", ACCRUE_ENOTSUP, {"num_experts", "dense"}},
        {"qwen3", "{\"n_routed_experts\":8}", ACCRUE_ENOTSUP, {"n_routed_experts", "dense"}},
        {"llama", "{\"hidden_act\":\"gelu\"}", ACCRUE_ENOTSUP, {"hidden_act", "gelu"}},
        {"llama", "{\"hidden_size\":0}", ACCRUE_EMISMATCH, {"hidden_size", "1 to"}},
        {"llama", "{\"hidden_size\":1e3}", ACCRUE_EFORMAT, {"hidden_size", "an integer"}},
        {"llama", "{\"intermediate_size\":-1}", ACCRUE_EMISMATCH, {"intermediate_size", "-1"}},
        {"llama", "{\"vocab_size\":99999999999}", ACCRUE_EMISMATCH, {"vocab_size", "99999999999"}},
        {"llama", "{\"num_hidden_layers\":5000}", ACCRUE_EMISMATCH, {"num_hidden_layers", "4096"}},
        {"llama", "{\"num_attention_heads\":0}", ACCRUE_EMISMATCH, {"num_attention_heads", "0"}},
        {"llama", "{\"num_key_value_heads\":3}", ACCRUE_EMISMATCH, {"4 attention", "3 key/value"}},
        {"llama", "{\"head_dim\":7}", ACCRUE_EMISMATCH, {"head_dim", "even"}},
        {"llama", "{\"head_dim\":1024}", ACCRUE_EMISMATCH, {"head_dim", "512"}},
        {"llama",
         "{\"rms_norm_eps\":-1}",
         ACCRUE_ENOTSUP,
         {"rms_norm_eps\" is -1; ", "at least 0"}},
        {"llama", "{\"attention_bias\":1}", ACCRUE_EFORMAT, {"attention_bias", "true or false"}},
        {"llama",
         "{\"rope_scaling\":{\"rope_type\":\"yarn\"}}",
         ACCRUE_ENOTSUP,
         {"yarn", "llama3"}},
        {"llama",
         "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
         ACCRUE_ENOTSUP,
         {"linear", NULL}},
        {"llama", LLAMA3_WITHOUT_FACTOR, ACCRUE_EFORMAT, {"factor", "a number"}},
        {"llama", "{\"rope_theta\":-1}", ACCRUE_ENOTSUP, {"rope_theta\" is -1; ", "above 0"}},
        {"qwen3",
         "{\"rope_parameters\":{\"rope_type\":\"dynamic\"}}",
         ACCRUE_ENOTSUP,
         {"dynamic", NULL}},
        {"qwen3",
         "{\"use_sliding_window\":true,\"sliding_window\":127,\"layer_types\":null}",
         ACCRUE_ENOTSUP,
         {"sliding_window", "sequences of 128"}},
        {"qwen2",
         "{\"use_sliding_window\":true,\"sliding_window\":5,\"layer_types\":[\"full_attention\","
         "\"sliding_attention\"]}",
         ACCRUE_ENOTSUP,
         {"sliding_window", "full attention"}},
        {"qwen3", "{\"eos_token_id\":61}", ACCRUE_EMISMATCH, {"eos_token_id", "61"}},
        {"qwen3", "{\"eos_token_id\":[1,-1]}", ACCRUE_EMISMATCH, {"eos_token_id", "-1"}},
        {"qwen3", "{\"eos_token_id\":\"</s>\"}", ACCRUE_EFORMAT, {"eos_token_id", "an integer"}},
        {"qwen3",
         "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         ACCRUE_ENOTSUP,
         {"17 ids", "16"}},
        {"llama",
         "{\"vocab_size\":62}",
         ACCRUE_EMISMATCH,
         {"lm_head.weight is [61, 24]", "[62, 24]"}},
        {"llama", "{\"num_hidden_layers\":3}", ACCRUE_EMISMATCH, {"model.layers.2.", "is missing"}},
        {"qwen2",
         "{\"tie_word_embeddings\":false}",
         ACCRUE_EMISMATCH,
         {"lm_head.weight", "is missing"}},
        {"qwen2",
         "{\"model_type\":\"qwen3\"}",
         ACCRUE_EMISMATCH,
         {"self_attn.q_proj.weight is", NULL}},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(refused); i++) {
        acr_verifier *v = NULL;
        accrue_error e = {0};

        change_model(refused[i].model, "config.json", refused[i].change);
        if (strstr(refused[i].change, "eos"))
            change_model(refused[i].model, "generation_config.json", refused[i].change);
        assert_fails(open_changed(&v, &e), refused[i].status, &e, folder, refused[i].words[0],
                     refused[i].words[1], NULL);
        assert_null(v);
    }
}

/* Of two files that say which tokens end an answer, the one that counts. */
static void the_file_of_a_bad_value_is_named(void **state)
{
    static const char *const files[] = {"config.json", "generation_config.json"};

    (void)state;
    for (int i = 0; i < ACR_COUNT(files); i++) {
        acr_verifier *v = NULL;
        accrue_error e = {0};
        char *says = acr_sprintf("%s/%s: \"eos_token_id\" is a string, an integer expected", folder,
                                 files[i]);

        change_model("qwen3", files[i], "{\"eos_token_id\":\"</s>\"}");
        if (i == 0) {
            char *other = acr_sprintf("%s/%s", folder, files[1]);
            unlink(other);
            acr_free(other);
        }
        assert_fails(open_changed(&v, &e), ACCRUE_EFORMAT, &e, says, NULL);
        acr_free(says);
    }
}

/* A window that no sequence outgrows, and one that is switched off, hide nothing. */
static void harmless_configurations_are_taken(void **state)
{
    static const char *const changes[] = {
        "{\"use_sliding_window\":true,\"sliding_window\":128,\"layer_types\":null}",
        "{\"use_sliding_window\":false,\"sliding_window\":5}",
        "{\"use_sliding_window\":true,\"sliding_window\":null}",
        ("{\"use_sliding_window\":true,\"sliding_window\":5,"
         "\"layer_types\":[\"full_attention\",\"full_attention\"]}")};

    (void)state;
    for (int i = 0; i < ACR_COUNT(changes); i++) {
        acr_verifier *v = NULL;
        accrue_error e = {0};

        change_model("qwen3", "config.json", changes[i]);
        assert_ok(open_changed(&v, &e), &e);
        acr_verifier_free(v);
    }
}

static void the_shape_is_described(void **state)
{
    acr_verifier *v = open_model("llama", ACCRUE_F32);
    const acr_verifier_shape *s = acr_verifier_describe(v);
    accrue_error e = {0};

    (void)state;
    assert_int_equal(s->n_eos, 2);
    assert_int_equal(s->eos[0], 3);
    assert_int_equal(s->eos[1], 5);
    assert_int_equal(s->max_positions, 128);
    assert_true(s->qkv_bias && s->o_bias && s->mlp_bias && !s->qk_norm && !s->tied);
    assert_true(acr_verifier_bytes(v) > 10000);
    acr_verifier_free(v);

    change_model("qwen2", "generation_config.json", "{\"eos_token_id\":[9,8]}");
    assert_ok(open_changed(&v, &e), &e);
    s = acr_verifier_describe(v);
    assert_int_equal(s->n_eos, 2);
    assert_int_equal(s->eos[0], 9);
    assert_true(s->qkv_bias && !s->o_bias && !s->mlp_bias && !s->qk_norm && s->tied);
    acr_verifier_free(v);
}

/* A safetensors file like qwen2's with one element of a weight, or of a norm, infinite. */
static void weights_that_are_not_finite_are_refused(void **state)
{
    static const char *const names[] = {"model.layers.1.mlp.up_proj.weight", "model.norm.weight",
                                        "model.embed_tokens.weight"};
    const uint16_t infinity = 0x7c00;

    (void)state;
    for (int i = 0; i < ACR_COUNT(names); i++) {
        char *path = acr_sprintf("%s/model.safetensors", folder), *bytes = NULL;
        acr_map map = {0};
        acr_safetensors *f = NULL;
        acr_verifier *v = NULL;
        accrue_error e = {0};
        size_t at = 0;

        change_model("qwen2", "config.json", "{}");
        assert_ok(acr_map_open(&map, path, &e), &e);
        assert_ok(acr_safetensors_open(&f, path, &e), &e);
        bytes = test_malloc(map.bytes);
        memcpy(bytes, map.data, map.bytes);
        at = map.bytes;
        for (int t = 0; t < acr_safetensors_count(f); t++)
            at -= acr_safetensors_at(f, t)->bytes; /* where the data begin */
        at += (size_t)((const char *)acr_safetensors_find(f, names[i])->data -
                       (const char *)acr_safetensors_at(f, 0)->data);
        for (int t = 0; t < acr_safetensors_count(f); t++)
            if ((const char *)acr_safetensors_at(f, t)->data <
                (const char *)acr_safetensors_at(f, 0)->data)
                fail_msg("the first tensor by name is not the first of the file");
        memcpy(bytes + at + 3 * sizeof infinity, &infinity, sizeof infinity);
        unlink(path);
        write_bytes(path, bytes, map.bytes);
        acr_safetensors_close(f);
        acr_map_close(&map);
        assert_fails(open_changed(&v, &e), ACCRUE_EFORMAT, &e, folder, names[i],
                     "element 3 is not finite", NULL);
        test_free(bytes);
        acr_free(path);
    }
}

static void wrong_calls_are_errors(void **state)
{
    acr_verifier *v = open_model("qwen2", ACCRUE_F32), *other = open_model("qwen3", ACCRUE_F32);
    acr_verifier_work *w = open_work(v);
    acr_cache *c = open_cache(v, 10), *strange = open_cache(other, 10);
    const int64_t ids[] = {1, 2, 3, 61, -1};
    float logits[5 * 61];
    const int slots[] = {0, 3};
    const struct {
        acr_sequence s[2];
        int n, n_slots;
        const char *words[2];
    } cases[] = {
        {{{.cache = c, .ids = ids, .n = 0}}, 1, 0, {"sequence 0: 0 tokens", NULL}},
        {{{.cache = c, .ids = ids, .n = 2, .n_logits = 3, .logits = logits}},
         1,
         0,
         {"2 tokens", "3"}},
        {{{.cache = c, .ids = ids, .n = 2, .n_logits = -1}}, 1, 0, {"-1", NULL}},
        {{{.cache = c, .ids = ids, .n = 11}}, 1, 0, {"11 tokens after 0", "10"}},
        {{{.cache = strange, .ids = ids, .n = 1}}, 1, 0, {"another verifier's", NULL}},
        {{{.cache = c, .ids = ids, .n = 4}}, 1, 0, {"token 3 is 61", "0 to 60"}},
        {{{.cache = c, .ids = ids + 4, .n = 1}}, 1, 0, {"token 0 is -1", NULL}},
        {{{.cache = c, .ids = ids, .n = 1}, {.cache = c, .ids = ids, .n = 1}},
         2,
         0,
         {"sequences 0 and 1", "one cache"}},
        {{{.cache = c, .ids = ids, .n = 1}}, 1, 2, {"slot 1: layer 3", "0 to 2"}},
    };
    accrue_error e = {0};
    acr_verifier *none = NULL;
    acr_cache *no_cache = NULL;
    model_path path;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        assert_fails(acr_verifier_forward(w, cases[i].s, cases[i].n, slots, cases[i].n_slots, &e),
                     ACCRUE_EINVAL, &e, cases[i].words[0], cases[i].words[1], NULL);
        assert_int_equal(acr_cache_tokens(c), 0);
    }
    assert_fails(acr_cache_create(&no_cache, v, 0, &e), ACCRUE_EINVAL, &e, "0 tokens", "128", NULL);
    assert_fails(acr_cache_create(&no_cache, v, 129, &e), ACCRUE_EINVAL, &e, "129 tokens", NULL);
    assert_null(no_cache);
    assert_fails(acr_verifier_open(&none, path_of(path, "qwen2", ""), ACCRUE_F32, 0, &e),
                 ACCRUE_EINVAL, &e, path, "0 positions", NULL);
    assert_fails(acr_verifier_open(&none, folder, ACCRUE_F32, INT64_MAX, &e), ACCRUE_EINVAL, &e,
                 "positions", NULL);
    assert_fails(acr_verifier_open(&none, "no/such/folder", ACCRUE_F32, 1, &e), ACCRUE_EIO, &e,
                 "no/such/folder", NULL);
    assert_null(none);
    acr_cache_free(c);
    acr_cache_free(strange);
    acr_verifier_work_free(w);
    acr_verifier_free(v);
    acr_verifier_free(other);
    acr_cache_free(NULL);
    acr_verifier_work_free(NULL);
    acr_verifier_free(NULL);
}

static accrue_status open_all(const char *model, accrue_error *e)
{
    accrue_status st = ACCRUE_OK;
    acr_verifier *v = NULL;
    acr_verifier_work *w = NULL;
    acr_cache *c = NULL;
    model_path path;

    ACR_TRY(acr_verifier_open(&v, path_of(path, model, ""), ACCRUE_BF16, POSITIONS, e));
    ACR_TRY(acr_verifier_work_create(&w, v, e));
    ACR_TRY(acr_cache_create(&c, v, POSITIONS, e));

cleanup:
    acr_cache_free(c);
    acr_verifier_work_free(w);
    acr_verifier_free(v);
    return st;
}

static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    accrue_set_threads(1);
    for (int m = 0; m < ACR_COUNT(model_names); m++) {
        const size_t live = acr_allocated_bytes();
        accrue_status st = ACCRUE_ENOMEM;
        int failures = 0;

        for (uint64_t n = 1; st; n++) {
            accrue_error e = {0};

            acr_fail_allocation(n);
            st = open_all(model_names[m], &e);
            acr_fail_allocation(0);
            assert_true(st == ACCRUE_OK || st == ACCRUE_ENOMEM);
            assert_int_equal(e.status, st);
            failures += st != ACCRUE_OK;
            assert_int_equal(acr_allocated_bytes(), live);
        }
        assert_in_range(failures, 15, 300);
    }
    accrue_set_threads(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations_that_change_the_arithmetic_are_refused),
        cmocka_unit_test(the_file_of_a_bad_value_is_named),
        cmocka_unit_test(harmless_configurations_are_taken),
        cmocka_unit_test(the_shape_is_described),
        cmocka_unit_test(weights_that_are_not_finite_are_refused),
        cmocka_unit_test(wrong_calls_are_errors),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };

    accrue_set_threads(2);
    return cmocka_run_group_tests(tests, setup, teardown);
}
