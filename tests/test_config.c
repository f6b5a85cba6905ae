/* test_config.c - a configuration of a draft: mirrored from a verifier as the peer mirrors it,
 * read from a checkpoint, or refused in one line. */
#include "model/model.h"

#include "files.h"

#include <math.h>

static json_t *parse(const char *text)
{
    json_t *json = NULL;
    accrue_error e = {0};

    assert_ok(acr_json_parse(&json, text, strlen(text), "test", &e), &e);
    return json;
}

static json_t *load(const char *file)
{
    json_t *json = NULL;
    accrue_error e = {0};

    assert_ok(acr_json_load(&json, file, 1 << 20, &e), &e);
    return json;
}

static accrue_train_options defaults(const char *verifier)
{
    return (accrue_train_options){.verifier = verifier,
                                  .norm_before_residual = true,
                                  .norm_before_fc = -1,
                                  .norm_output = -1,
                                  .sliding_window = 2048,
                                  .ttt_steps = 3};
}

/* As json_equal, but 1 and 1.0 are the same number; prints where the two part. */
static bool same(const json_t *a, const json_t *b, const char *at)
{
    const char *key = NULL;
    json_t *value = NULL;
    size_t i = 0;
    bool equal = true;

    if (json_is_number(a) && json_is_number(b)) {
        equal = fabs(json_number_value(a) - json_number_value(b)) <= 0;
    } else if (json_is_object(a) && json_is_object(b)) {
        json_object_foreach((json_t *)(uintptr_t)a, key, value) equal =
            same(value, json_object_get(b, key), key) && equal;
        json_object_foreach((json_t *)(uintptr_t)b, key, value) if (!json_object_get(a, key))
        {
            print_error("\"%s\" is missing\n", key);
            equal = false;
        }
        return equal;
    } else if (json_is_array(a) && json_is_array(b) && json_array_size(a) == json_array_size(b)) {
        json_array_foreach(a, i, value) equal = same(value, json_array_get(b, i), at) && equal;
        return equal;
    } else {
        equal = json_equal(a, b);
    }
    if (!equal)
        print_error("\"%s\" differs\n", at);
    return equal;
}

static void mirrors_as_the_peer(void **state)
{
    json_t *cases = load(ACR_TEST_DATA "/draft_configs.json"), *one = NULL;
    size_t i = 0;

    (void)state;
    assert_true(json_array_size(cases) >= 14);
    json_array_foreach(cases, i, one)
    {
        const char *what = json_string_value(json_object_get(one, "what"));
        accrue_train_options opt = defaults("verifier");
        const json_t *verifier = json_object_get(one, "verifier");
        const json_t *full = json_object_get(one, "full_attention_indices");
        accrue_error e = {0};
        acr_config c;
        int indices[8];
        opt.num_layers = (int)json_integer_value(json_object_get(one, "num_layers"));
        opt.draft_arch = json_string_value(json_object_get(one, "draft_arch"));
        opt.full_attention_indices = indices;
        opt.n_full_attention_indices = (int)json_array_size(full);
        for (int j = 0; j < opt.n_full_attention_indices; j++)
            indices[j] = (int)json_integer_value(json_array_get(full, (size_t)j));
        if (acr_config_create(&c, &opt, verifier, 32, &e))
            fail_msg("%s: %s", what, e.message);
        if (!same(json_object_get(c.json, "transformer_layer_config"),
                  json_object_get(one, "expected"), "transformer_layer_config"))
            fail_msg("%s: differs from the peer's", what);
        assert_int_equal(c.draft_vocab_size, 32);
        acr_config_free(&c);
    }
    json_decref(cases);
}

static void writes_every_key_of_a_checkpoint(void **state)
{
    json_t *cases = load(ACR_TEST_DATA "/draft_configs.json");
    json_t *expected = load(ACR_TEST_DATA "/checkpoint_config.json");
    const json_t *verifier = json_object_get(json_array_get(cases, 0), "verifier");
    accrue_train_options opt = defaults("models/smollm2-135m");
    accrue_error e = {0};
    acr_config c, again;

    (void)state;
    assert_ok(acr_config_create(&c, &opt, verifier, 8192, &e), &e);
    assert_true(same(c.json, expected, "config"));
    assert_int_equal(c.arch, ACR_ARCH_LLAMA);
    assert_int_equal(c.hidden_size, 576);
    assert_int_equal(c.n_heads, 9);
    assert_int_equal(c.n_kv_heads, 3);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.n_aux, 3);
    assert_int_equal(c.sliding_window, 2048);
    assert_true(c.sliding[0] && c.norm_before_residual && c.norm_before_fc && c.norm_output);
    assert_true(!c.fc_norm && !c.attention_bias && !c.embed_requires_grad && !c.rope.llama3);
    assert_true(fabs(c.rope.theta - 100000) <= 0 && fabs(c.rms_norm_eps - 1e-5) <= 0);
    /* And what was written reads back the same. */
    assert_ok(acr_config_read(&again, c.json, "config.json", &e), &e);
    assert_true(json_equal(again.json, c.json));
    acr_config_free(&again);
    acr_config_free(&c);
    json_decref(expected);
    json_decref(cases);
}

static void flags_reach_the_configuration(void **state)
{
    json_t *cases = load(ACR_TEST_DATA "/draft_configs.json");
    const json_t *verifier = json_object_get(json_array_get(cases, 0), "verifier");
    static const int ids[] = {1, 5}, full[] = {1};
    accrue_train_options opt = defaults("v");
    accrue_error e = {0};
    acr_config c;

    (void)state;
    opt.num_layers = 2;
    opt.draft_arch = "qwen3";
    opt.target_layer_ids = ids;
    opt.n_target_layer_ids = 2;
    opt.full_attention_indices = full;
    opt.n_full_attention_indices = 1;
    opt.sliding_window = 7;
    opt.norm_before_residual = false;
    opt.norm_before_fc = 0;
    opt.fc_norm = true;
    opt.norm_output = 0;
    opt.embed_requires_grad = true;
    opt.ttt_steps = 5;
    assert_ok(acr_config_create(&c, &opt, verifier, 49152, &e), &e);
    assert_int_equal(c.arch, ACR_ARCH_QWEN3);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.n_aux, 2);
    assert_true(c.sliding[0] && !c.sliding[1] && c.sliding_window == 7);
    assert_true(!c.norm_before_residual && !c.norm_before_fc && c.fc_norm && !c.norm_output &&
                c.embed_requires_grad);
    assert_int_equal(
        json_integer_value(json_object_get(
            json_array_get(
                json_object_get(json_object_get(c.json, "speculators_config"), "proposal_methods"),
                0),
            "speculative_tokens")),
        5);
    acr_config_free(&c);
    json_decref(cases);
}

static void draft_config_is_used(void **state)
{
    json_t *cases = load(ACR_TEST_DATA "/draft_configs.json");
    const json_t *verifier = json_object_get(json_array_get(cases, 0), "verifier");
    accrue_train_options opt = defaults("v");
    accrue_error e = {0};
    acr_config c;
    char *folder = make_folder();
    char *path = acr_sprintf("%s/config.json", folder);

    (void)state;
    opt.draft_config = ACR_TEST_DATA "/checkpoint_config.json"; /* a draft's */
    assert_ok(acr_config_create(&c, &opt, verifier, 8192, &e), &e);
    assert_int_equal(c.intermediate_size, 1536);
    acr_config_free(&c);
    write_text(path, "{\"model_type\": \"qwen3\", \"hidden_size\": 576, \"intermediate_size\": 100,"
                     "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"head_dim\": 32}");
    opt.draft_config = folder; /* a decoder's, in a folder */
    assert_ok(acr_config_create(&c, &opt, verifier, 8192, &e), &e);
    assert_int_equal(c.arch, ACR_ARCH_QWEN3);
    assert_int_equal(c.intermediate_size, 100);
    assert_int_equal(c.vocab_size, 49152);
    acr_config_free(&c);
    write_text(path, "{\"model_type\": \"llama\", \"hidden_size\": 64}");
    assert_fails(acr_config_create(&c, &opt, verifier, 8192, &e), ACCRUE_EMISMATCH, &e, path,
                 "hidden_size", "64", "576", NULL);
    write_text(path, "[]");
    assert_fails(acr_config_create(&c, &opt, verifier, 8192, &e), ACCRUE_EFORMAT, &e, path, NULL);
    acr_free(path);
    remove_folder(folder);
    json_decref(cases);
}

/* Reading ---------------------------------------------------------------------------------- */

static const char decoder_text[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 16, \"intermediate_size\": 20,"
    "\"vocab_size\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    "\"num_key_value_heads\": 2}";

/* Reads the small draft above with one key replaced: of the decoder, or of the draft around it. */
static accrue_status read_with(acr_config *c, const char *key, const char *value, bool decoder,
                               accrue_error *e)
{
    json_t *draft = json_object(), *inner = parse(decoder_text);
    json_t *changed = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    accrue_status st = ACCRUE_OK;

    json_object_set_new(draft, "draft_vocab_size", json_integer(24));
    json_object_set_new(draft, "transformer_layer_config", inner);
    if (value) {
        assert_non_null(changed);
        json_object_set_new(decoder ? inner : draft, key, changed);
    } else if (key) {
        json_object_del(decoder ? inner : draft, key);
    }
    st = acr_config_read(c, draft, "folder/config.json", e);
    json_decref(draft);
    return st;
}

static void defaults_of_a_checkpoint(void **state)
{
    accrue_error e = {0};
    acr_config c;

    (void)state;
    assert_ok(read_with(&c, NULL, NULL, true, &e), &e);
    assert_int_equal(c.head_dim, 4);
    assert_int_equal(c.n_aux, 3);
    assert_true(fabs(c.rms_norm_eps - 1e-6) <= 0 && fabs(c.rope.theta - 10000) <= 0);
    assert_true(!c.sliding[0] && !c.norm_before_fc && !c.norm_output);
    acr_config_free(&c);
    assert_ok(read_with(&c, "num_key_value_heads", "null", true, &e), &e);
    assert_int_equal(c.n_kv_heads, 4);
    acr_config_free(&c);
    assert_ok(read_with(&c, "rope_theta", "500", true, &e), &e);
    assert_true(fabs(c.rope.theta - 500) <= 0);
    acr_config_free(&c);
    assert_ok(read_with(&c, "rope_scaling",
                        "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
                        "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 32}",
                        true, &e),
              &e);
    assert_true(c.rope.llama3 && fabs(c.rope.factor - 8) <= 0);
    assert_true(fabs(c.rope.original_max_position - 32) <= 0);
    acr_config_free(&c);
}

/* As transformers 5 reads them. */
static void reads_rope_in_all_its_places(void **state)
{
    static const char llama3[] = "{\"rope_type\": \"llama3\", \"factor\": 8, \"rope_theta\": 500, "
                                 "\"low_freq_factor\": 1, \"high_freq_factor\": 4%s}";
    const char key[] = "original_max_position_embeddings";
    const struct {
        const char *in, *beside;
        double expected;
    } cases[] = {{", \"original_max_position_embeddings\": 64", "32", 32},
                 {", \"original_max_position_embeddings\": 64", NULL, 64},
                 {", \"original_max_position_embeddings\": 64", "null", 64},
                 {"", "32", 32},
                 {"", NULL, 512}};

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        char text[300];
        acr_rope_config rope = {0};
        accrue_error e = {0};
        json_t *config = json_object();
        acr_fields r = {.object = config, .name = "config", .err = &e};

        snprintf(text, sizeof text, llama3, cases[i].in);
        json_object_set_new(config, "max_position_embeddings", json_integer(512));
        json_object_set_new(config, "rope_scaling", json_object());
        json_object_set_new(config, "rope_parameters", json_loads(text, 0, NULL));
        if (cases[i].beside)
            json_object_set_new(config, key, json_loads(cases[i].beside, JSON_DECODE_ANY, NULL));
        acr_field_rope(&r, &rope);
        assert_ok(r.status, &e);
        assert_true(rope.llama3 && fabs(rope.theta - 500) <= 0);
        assert_true(fabs(rope.original_max_position - cases[i].expected) <= 0);
        json_decref(config);
    }
}

static void refuses_by_name(void **state)
{
    static const struct {
        const char *key, *value;
        bool decoder;
        accrue_status status;
        const char *words[3];
    } wrong[] = {
        {"transformer_layer_config", NULL, false, ACCRUE_EFORMAT, {"missing", "an object", ""}},
        {"transformer_layer_config", "[]", false, ACCRUE_EFORMAT, {"an array", "an object", ""}},
        {"draft_vocab_size", NULL, false, ACCRUE_EFORMAT, {"draft_vocab_size", "missing", ""}},
        {"draft_vocab_size", "41", false, ACCRUE_EMISMATCH, {"41", "1 to 40", ""}},
        {"draft_vocab_size", "0", false, ACCRUE_EMISMATCH, {"0", "1 to 40", ""}},
        {"speculators_model_type", "\"dflash\"", false, ACCRUE_ENOTSUP, {"dflash", "eagle3", ""}},
        {"target_hidden_size", "32", false, ACCRUE_ENOTSUP, {"target_hidden_size", "", ""}},
        {"norm_before_fc", "1", false, ACCRUE_EFORMAT, {"norm_before_fc", "an integer", "true"}},
        {"eagle_aux_hidden_state_layer_ids", "[]", false, ACCRUE_EMISMATCH, {"0", "1 to 16", ""}},
        {"eagle_aux_hidden_state_layer_ids",
         "3",
         false,
         ACCRUE_EFORMAT,
         {"eagle_aux_hidden_state_layer_ids", "an integer", "an array"}},
        {"model_type", NULL, true, ACCRUE_EFORMAT, {"model_type", "missing", "a string"}},
        {"model_type", "\"gemma3\"", true, ACCRUE_ENOTSUP, {"gemma3", "llama, qwen3", ""}},
        {"hidden_act", "\"gelu\"", true, ACCRUE_ENOTSUP, {"hidden_act", "gelu", "silu"}},
        {"mlp_bias", "true", true, ACCRUE_ENOTSUP, {"mlp_bias", "true", "false"}},
        {"attention_dropout", "0.1", true, ACCRUE_ENOTSUP, {"attention_dropout", "is 0.1; ", ""}},
        {"hidden_size", NULL, true, ACCRUE_EFORMAT, {"hidden_size", "missing", "an integer"}},
        {"hidden_size", "16.0", true, ACCRUE_EFORMAT, {"hidden_size", "a real", "an integer"}},
        {"hidden_size", "0", true, ACCRUE_EMISMATCH, {"hidden_size", "is 0", "1 to"}},
        {"hidden_size", "-5", true, ACCRUE_EMISMATCH, {"hidden_size", "-5", "1 to"}},
        {"intermediate_size",
         "\"20\"",
         true,
         ACCRUE_EFORMAT,
         {"intermediate_size", "a string", ""}},
        {"vocab_size", "99999999999", true, ACCRUE_EMISMATCH, {"vocab_size", "99999999999", ""}},
        {"num_hidden_layers", "65", true, ACCRUE_EMISMATCH, {"65", "1 to 64", ""}},
        {"num_key_value_heads", "3", true, ACCRUE_EMISMATCH, {"4 attention heads", "3", ""}},
        {"head_dim", "5", true, ACCRUE_EMISMATCH, {"head_dim", "5", "even"}},
        {"head_dim", "514", true, ACCRUE_EMISMATCH, {"head_dim", "514", "1 to 512"}},
        {"rms_norm_eps",
         "-1e-6",
         true,
         ACCRUE_ENOTSUP,
         {"rms_norm_eps", "is -1e-6; ", "at least 0"}},
        {"rms_norm_eps", "\"x\"", true, ACCRUE_EFORMAT, {"rms_norm_eps", "a string", "a number"}},
        {"attention_bias", "0", true, ACCRUE_EFORMAT, {"attention_bias", "an integer", ""}},
        {"layer_types", "[\"full_attention\"]", true, ACCRUE_EMISMATCH, {"layer_types", "1", "2"}},
        {"layer_types", "{}", true, ACCRUE_EMISMATCH, {"layer_types", "0", "2"}},
        {"layer_types",
         "[\"full_attention\", \"linear_attention\"]",
         true,
         ACCRUE_ENOTSUP,
         {"layer_types", "linear_attention", "sliding_attention"}},
        {"layer_types",
         "[\"full_attention\", \"sliding_attention\"]",
         true,
         ACCRUE_EFORMAT,
         {"sliding_window", "missing", "an integer"}},
        {"rope_theta", "0", true, ACCRUE_ENOTSUP, {"rope_theta", "is 0; ", "above 0"}},
        {"rope_theta", "\"x\"", true, ACCRUE_EFORMAT, {"rope_theta", "a string", ""}},
        {"rope_scaling",
         "{\"rope_type\": \"yarn\", \"factor\": 4.0}",
         true,
         ACCRUE_ENOTSUP,
         {"rope_type", "yarn", "default, llama3"}},
        {"rope_scaling",
         "{\"type\": \"linear\", \"factor\": 4.0}",
         true,
         ACCRUE_ENOTSUP,
         {"rope_type", "linear", "default, llama3"}},
        {"rope_parameters",
         "{\"rope_type\": \"dynamic\"}",
         true,
         ACCRUE_ENOTSUP,
         {"rope_type", "dynamic", ""}},
        {"rope_parameters",
         "{\"rope_type\": \"longrope\"}",
         true,
         ACCRUE_ENOTSUP,
         {"rope_type", "longrope", ""}},
        {"rope_parameters",
         "{\"partial_rotary_factor\": 0.5}",
         true,
         ACCRUE_ENOTSUP,
         {"partial_rotary_factor", "is 0.5; ", ""}},
        {"rope_parameters",
         "{\"mrope_section\": [1, 1]}",
         true,
         ACCRUE_ENOTSUP,
         {"mrope_section", "set", "none"}},
        {"rope_parameters",
         "{\"full_attention\": {\"rope_theta\": 1e4}}",
         true,
         ACCRUE_ENOTSUP,
         {"rope_parameters", "per layer type", ""}},
        {"rope_parameters",
         "\"default\"",
         true,
         ACCRUE_EFORMAT,
         {"rope_parameters", "a string", "an object"}},
        {"rope_parameters",
         "{\"rope_type\": \"llama3\", \"factor\": 8.0}",
         true,
         ACCRUE_EFORMAT,
         {"low_freq_factor", "missing", "a number"}},
        {"rope_parameters",
         "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 4.0,"
         "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 1024}",
         true,
         ACCRUE_ENOTSUP,
         {"\"rope_parameters\" is {\"rope_type\":\"llama3\",\"factor\":8.0,",
          "\"original_max_position_embeddings\":1024}; supported: factor",
          "low_freq_factor < high_freq_factor"}},
    };
    accrue_error e = {0};
    acr_config c;

    (void)state;
    for (int i = 0; i < ACR_COUNT(wrong); i++) {
        accrue_status st = read_with(&c, wrong[i].key, wrong[i].value, wrong[i].decoder, &e);
        if (!st)
            fail_msg("%s = %s is accepted", wrong[i].key, wrong[i].value);
        assert_fails(st, wrong[i].status, &e, "folder/config.json", wrong[i].words[0],
                     wrong[i].words[1], wrong[i].words[2], NULL);
        assert_null(c.json);
    }
}

static void two_norms_before_fc(void **state)
{
    json_t *draft = parse("{\"draft_vocab_size\": 8, \"fc_norm\": true, \"norm_before_fc\": true}");
    accrue_error e = {0};
    acr_config c;

    (void)state;
    json_object_set_new(draft, "transformer_layer_config", parse(decoder_text));
    assert_fails(acr_config_read(&c, draft, "x", &e), ACCRUE_EMISMATCH, &e, "norm_before_fc",
                 "fc_norm", NULL);
    json_decref(draft);
}

/* Flags ------------------------------------------------------------------------------------ */

static void flags_are_checked(void **state)
{
    json_t *verifier = parse(decoder_text);
    accrue_train_options opt = defaults("v");
    static const int outside[] = {2}, negative[] = {-1}, twice[] = {0, 1, 1}, good[] = {0, 2};
    accrue_error e = {0};
    acr_config c;
    int ids[ACR_MAX_AUX], n = 0;
    int many[ACR_MAX_AUX + 1] = {0};

    (void)state;
    opt.draft_arch = "gemma";
    assert_fails(acr_config_create(&c, &opt, verifier, 8, &e), ACCRUE_EINVAL, &e, "--draft-arch",
                 "gemma", "llama or qwen3", NULL);
    opt = defaults("v\377");
    assert_fails(acr_config_create(&c, &opt, verifier, 8, &e), ACCRUE_EINVAL, &e,
                 "--verifier-name-or-path: v\\xff is not UTF-8", NULL);
    opt = defaults("v");
    opt.num_layers = 65;
    assert_fails(acr_config_create(&c, &opt, verifier, 8, &e), ACCRUE_EINVAL, &e, "--num-layers",
                 "65", "64", NULL);
    opt.num_layers = -1;
    assert_fails(acr_config_create(&c, &opt, verifier, 8, &e), ACCRUE_EINVAL, &e, "--num-layers",
                 "-1", NULL);
    opt.num_layers = 2;
    opt.full_attention_indices = outside;
    opt.n_full_attention_indices = 1;
    assert_fails(acr_config_create(&c, &opt, verifier, 8, &e), ACCRUE_EINVAL, &e,
                 "--full-attention-indices", "2", "0 to 1", NULL);
    opt.full_attention_indices = negative;
    assert_fails(acr_config_create(&c, &opt, verifier, 8, &e), ACCRUE_EINVAL, &e,
                 "--full-attention-indices", "-1", NULL);
    opt = defaults("v");
    opt.target_layer_ids = twice;
    opt.n_target_layer_ids = 3;
    assert_fails(acr_target_layer_ids(ids, &n, &opt, verifier, &e), ACCRUE_EINVAL, &e,
                 "--target-layer-ids", "1 is given twice", NULL);
    opt.target_layer_ids = negative;
    opt.n_target_layer_ids = 1;
    assert_fails(acr_target_layer_ids(ids, &n, &opt, verifier, &e), ACCRUE_EINVAL, &e, "-1",
                 "0 to 2", NULL);
    opt.target_layer_ids = many;
    opt.n_target_layer_ids = ACR_MAX_AUX + 1;
    assert_fails(acr_target_layer_ids(ids, &n, &opt, verifier, &e), ACCRUE_EINVAL, &e, "17", "16",
                 NULL);
    opt.target_layer_ids = good;
    opt.n_target_layer_ids = 2;
    assert_ok(acr_target_layer_ids(ids, &n, &opt, verifier, &e), &e);
    assert_int_equal(n, 2);
    assert_int_equal(ids[1], 2);
    /* A verifier of 2 layers has no third from its end. */
    opt = defaults("v");
    assert_fails(acr_target_layer_ids(ids, &n, &opt, verifier, &e), ACCRUE_EINVAL, &e,
                 "--target-layer-ids", "2 layers", NULL);
    json_object_del(verifier, "num_hidden_layers");
    assert_fails(acr_target_layer_ids(ids, &n, &opt, verifier, &e), ACCRUE_EFORMAT, &e,
                 "num_hidden_layers", "missing", NULL);
    json_decref(verifier);
}

static void verifiers_that_cannot_be_mirrored(void **state)
{
    json_t *verifier = parse(decoder_text);
    accrue_train_options opt = defaults("some/verifier");
    accrue_error e = {0};
    acr_config c;

    (void)state;
    json_object_set_new(verifier, "num_hidden_layers", json_integer(8));
    json_object_del(verifier, "vocab_size");
    assert_fails(acr_config_create(&c, &opt, verifier, 8, &e), ACCRUE_EMISMATCH, &e,
                 "some/verifier", "vocab_size", NULL);
    json_object_set_new(verifier, "vocab_size", json_integer(40));
    json_object_set_new(verifier, "rope_scaling",
                        json_pack("{s:s, s:f}", "type", "yarn", "factor", 4.0));
    assert_fails(acr_config_create(&c, &opt, verifier, 8, &e), ACCRUE_ENOTSUP, &e, "rope_type",
                 "yarn", NULL);
    json_object_del(verifier, "rope_scaling");
    json_object_set_new(verifier, "hidden_size", json_string("16"));
    assert_fails(acr_config_create(&c, &opt, verifier, 8, &e), ACCRUE_EMISMATCH, &e, "hidden_size",
                 NULL);
    json_decref(verifier);
}

/* Losses ----------------------------------------------------------------------------------- */

static void losses_are_parsed(void **state)
{
    static const char *const names[] = {"kl_div", "rkl", "jsd", "ce", "tv", "nla", "lk_hybrid"};
    static const struct {
        const char *text, *words[2];
        accrue_status status;
    } wrong[] = {
        {"kl", {"\"kl\"", "kl_div, rkl"}, ACCRUE_EINVAL},
        {"", {"\"\"", "kl_div"}, ACCRUE_EINVAL},
        {"{}", {"no terms", "1"}, ACCRUE_EINVAL},
        {"{\"kl\": 1}", {"\"kl\"", "kl_div"}, ACCRUE_EINVAL},
        {"{\"ce\": -1}", {"\"ce\"", "negative"}, ACCRUE_EINVAL},
        {"{\"ce\": \"1\"}", {"\"ce\"", "a string"}, ACCRUE_EINVAL},
        {"{\"ce\": 1, \"ce\": 2}", {"--loss-fn", "ce"}, ACCRUE_EFORMAT},
        {"{\"ce\": 1", {"--loss-fn", ""}, ACCRUE_EFORMAT},
        {"{\"ce\": 1} x", {"--loss-fn", ""}, ACCRUE_EFORMAT},
    };
    accrue_error e = {0};
    acr_loss_spec s;

    (void)state;
    assert_int_equal(ACR_COUNT(names), ACR_LOSS_COUNT);
    for (int i = 0; i < ACR_COUNT(names); i++) {
        assert_ok(acr_loss_spec_parse(&s, names[i], &e), &e);
        assert_true(s.n_terms == 1 && !s.mixed && fabs(s.weight[0] - 1) <= 0);
        assert_string_equal(acr_loss_name(s.kind[0]), names[i]);
    }
    assert_ok(acr_loss_spec_parse(&s, " {\"tv\": 0.9, \"ce\": 0.1, \"nla\": 0}", &e), &e);
    assert_true(s.n_terms == 3 && s.mixed);
    assert_int_equal(s.kind[0], ACR_LOSS_TV); /* in the order given */
    assert_int_equal(s.kind[1], ACR_LOSS_CE);
    assert_true(fabs(s.weight[0] - 0.9) <= 0 && fabs(s.weight[1] - 0.1) <= 0);
    for (int i = 0; i < ACR_COUNT(wrong); i++)
        assert_fails(acr_loss_spec_parse(&s, wrong[i].text, &e), wrong[i].status, &e,
                     wrong[i].words[0], wrong[i].words[1], NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mirrors_as_the_peer),
        cmocka_unit_test(reads_rope_in_all_its_places),
        cmocka_unit_test(writes_every_key_of_a_checkpoint),
        cmocka_unit_test(flags_reach_the_configuration),
        cmocka_unit_test(draft_config_is_used),
        cmocka_unit_test(defaults_of_a_checkpoint),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(two_norms_before_fc),
        cmocka_unit_test(flags_are_checked),
        cmocka_unit_test(verifiers_that_cannot_be_mirrored),
        cmocka_unit_test(losses_are_parsed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
