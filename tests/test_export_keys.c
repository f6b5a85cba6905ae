/* What is told of a draft in a GGUF file's keys: names, special tokens, rope factors. */
#include "export_test.h"

#include "convert/export_parts.h"

#include <unistd.h>

static void test_names(void **state)
{
    json_t *all = load(DATA "/names.json"), *one = NULL;
    size_t i = 0;
    char label[32];

    (void)state;
    json_array_foreach(json_object_get(all, "names"), i, one)
    {
        const char *id = json_string_value(json_object_get(one, "id"));
        json_t *about = json_object();
        char *got = NULL, *wanted = NULL;
        assert_int_equal(
            acr_export_name(about, id, json_integer_value(json_object_get(one, "elements")), NULL),
            ACCRUE_OK);
        got = json_dumps(about, JSON_SORT_KEYS);
        wanted = json_dumps(json_object_get(one, "about"), JSON_SORT_KEYS);
        if (strcmp(got, wanted) != 0)
            fail_msg("'%s': %s, %s expected", id, got, wanted);
        free(got);
        free(wanted);
        json_decref(about);
    }
    json_array_foreach(json_object_get(all, "sizes"), i, one)
    {
        acr_export_size(label, sizeof label, json_integer_value(json_array_get(one, 0)));
        assert_string_equal(label, json_string_value(json_array_get(one, 1)));
    }
    json_decref(all);
}

static void test_rope(void **state)
{
    json_t *all = load(DATA "/rope.json"), *one = NULL;
    size_t i = 0;

    (void)state;
    json_array_foreach(all, i, one)
    {
        const json_t *r = json_object_get(one, "rope"), *bits = json_object_get(one, "bits");
        const acr_rope_config c = {
            .llama3 = true,
            .theta = json_number_value(json_object_get(r, "rope_theta")),
            .factor = json_number_value(json_object_get(r, "factor")),
            .low_freq_factor = json_number_value(json_object_get(r, "low_freq_factor")),
            .high_freq_factor = json_number_value(json_object_get(r, "high_freq_factor")),
            .original_max_position =
                json_number_value(json_object_get(r, "original_max_position_embeddings"))};
        uint32_t got[64];
        acr_export_rope((float *)got, &c,
                        (int)json_integer_value(json_object_get(one, "head_dim")));
        assert_true(json_array_size(bits) > 0);
        for (size_t k = 0; k < json_array_size(bits); k++)
            assert_int_equal(got[k], json_integer_value(json_array_get(bits, k)));
    }
    json_decref(all);
}

/* Special tokens --------------------------------------------------------------------------- */

static const char *key_of(const char *handler)
{
    static const char *const names[][2] = {
        {"add_bos_token_id", "tokenizer.ggml.bos_token_id"},
        {"add_eos_token_id", "tokenizer.ggml.eos_token_id"},
        {"add_unk_token_id", "tokenizer.ggml.unknown_token_id"},
        {"add_sep_token_id", "tokenizer.ggml.seperator_token_id"},
        {"add_pad_token_id", "tokenizer.ggml.padding_token_id"},
        {"add_mask_token_id", "tokenizer.ggml.mask_token_id"},
        {"add_eot_token_id", "tokenizer.ggml.eot_token_id"},
        {"add_eom_token_id", "tokenizer.ggml.eom_token_id"},
        {"add_add_bos_token", "tokenizer.ggml.add_bos_token"},
        {"add_add_eos_token", "tokenizer.ggml.add_eos_token"},
        {"add_add_sep_token", "tokenizer.ggml.add_sep_token"},
        {"add_chat_template", "tokenizer.chat_template"}};

    for (int i = 0; i < ACR_COUNT(names); i++)
        if (strcmp(handler, names[i][0]) == 0)
            return names[i][1];
    fail_msg("%s is not known here", handler);
    return NULL;
}

static void assert_key(const acr_gguf_key *k, const json_t *wanted)
{
    const json_t *v = json_array_get(wanted, 1);
    uint32_t number = 0;

    assert_string_equal(k->name, key_of(json_string_value(json_array_get(wanted, 0))));
    if (json_is_string(v)) {
        assert_int_equal(k->bytes, 12 + json_string_length(v));
        assert_memory_equal(k->value + 12, json_string_value(v), json_string_length(v));
    } else if (json_is_boolean(v)) {
        assert_int_equal(k->bytes, 5);
        assert_int_equal(k->value[4], json_is_true(v));
    } else {
        assert_int_equal(k->bytes, 8);
        memcpy(&number, k->value + 4, sizeof number);
        assert_int_equal(number, json_integer_value(v));
    }
}

static void test_specials(void **state)
{
    json_t *all = load(DATA "/specials.json"), *one = NULL;
    const accrue_export_options opt = {.verifier = folder};
    size_t i = 0;

    (void)state;
    json_array_foreach(all, i, one)
    {
        acr_export e = {.opt = &opt, .draft.vocab_size = 100, .lost = json_array()};
        const json_t *keys = json_object_get(one, "keys");
        accrue_error err = {0};
        assert_int_equal(json_dump_file(json_object_get(one, "model"), path_of("config.json"), 0),
                         0);
        if (acr_export_special_keys(&e, json_object_get(one, "tokenizer"),
                                    json_object_get(one, "config"), &err))
            fail_msg("case %zu: %s", i, err.message);
        if ((size_t)e.keys.n != json_array_size(keys))
            fail_msg("case %zu: %d keys, %zu expected", i, e.keys.n, json_array_size(keys));
        for (int k = 0; k < e.keys.n; k++)
            assert_key(&e.keys.at[k], json_array_get(keys, (size_t)k));
        acr_gguf_keys_free(&e.keys);
        json_decref(e.lost);
    }
    json_decref(all);
    unlink(path_of("config.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_specials),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
