/* Drafts as GGUF files: the bytes of llama.cpp's own converter, and what is refused. */
#include "export_test.h"

#include "convert/export_parts.h"

#include <sha2.h>
#include <unistd.h>

#define VERIFIER DATA "/verifier"
#define DRAFT    DATA "/tiny-draft-v0.2"

static void run(const char *format, ...) ACR_PRINTF(1, 2);
static void run(const char *format, ...)
{
    char command[2000];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

static accrue_status export_to(const char *out, const char *draft, const char *verifier,
                               accrue_export_dtype dtype, accrue_error *err)
{
    accrue_export_options o;

    accrue_export_options_init(&o, sizeof o);
    o.checkpoint = draft;
    o.verifier = verifier;
    o.out = out;
    o.dtype = dtype;
    return accrue_export(NULL, &o, NULL, NULL, err);
}

/* The converter's bytes --------------------------------------------------------------------- */

static accrue_export_dtype dtype_of(const char *name)
{
    return strcmp(name, "f32") == 0    ? ACCRUE_EXPORT_F32
           : strcmp(name, "f16") == 0  ? ACCRUE_EXPORT_F16
           : strcmp(name, "q8_0") == 0 ? ACCRUE_EXPORT_Q8_0
                                       : ACCRUE_EXPORT_BF16;
}

static void test_goldens(void **state)
{
    json_t *all = load(DATA "/goldens.json"), *one = NULL;
    size_t i = 0;

    (void)state;
    assert_int_equal(json_array_size(all), 8);
    json_array_foreach(all, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "draft"));
        const char *dtype = json_string_value(json_object_get(one, "dtype"));
        char draft[300], digest[65];
        accrue_error err = {0};
        acr_map map = {0};
        snprintf(draft, sizeof draft, DATA "/%s", name);
        const char *out = path_of("golden.gguf");
        if (export_to(out, draft, VERIFIER, dtype_of(dtype), &err))
            fail_msg("%s %s: %s", name, dtype, err.message);
        assert_int_equal(acr_map_open(&map, out, NULL), ACCRUE_OK);
        assert_int_equal(map.bytes, json_integer_value(json_object_get(one, "bytes")));
        SHA256Data(map.data, map.bytes, digest);
        assert_string_equal(digest, json_string_value(json_object_get(one, "sha256")));
        acr_map_close(&map);
        assert_false(acr_exists(path_of("golden.gguf.partial")));
    }
    json_decref(all);
}

/* Refusals --------------------------------------------------------------------------------- */

enum { IN_DRAFT, IN_DECODER, IN_VERIFIER };

static json_t *value_of(const char *text)
{
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);

    assert_non_null(v);
    return v;
}

/* Fresh copies of the draft and its verifier under `folder`. */
static void copy_all(void)
{
    run("rm -rf '%s'/d '%s'/v && cp -r " DRAFT " '%s'/d && cp -r " VERIFIER " '%s'/v && chmod -R "
        "u+w '%s'",
        folder, folder, folder, folder, folder);
}

static void set_in(const char *file, const char *inner, const char *key, const char *text)
{
    json_t *root = load(path_of(file));
    json_t *object = inner ? json_object_get(root, inner) : root;

    if (text)
        json_object_set_new(object, key, value_of(text));
    else
        json_object_del(object, key);
    assert_int_equal(json_dump_file(root, path_of(file), 0), 0);
    json_decref(root);
}

static void expect(accrue_status status, const char *message)
{
    accrue_error err = {0};
    accrue_status st =
        export_to(path_of("x.gguf"), path_of("d"), path_of("v"), ACCRUE_EXPORT_F16, &err);

    if (st != status || !strstr(err.message, message))
        fail_msg("%s \"%s\", %s \"%s\" expected", accrue_status_name(st), err.message,
                 accrue_status_name(status), message);
    assert_false(acr_exists(path_of("x.gguf")));
    assert_false(acr_exists(path_of("x.gguf.partial")));
}

static void test_config_refusals(void **state)
{
    static const struct {
        int where;
        const char *key, *value;
        accrue_status status;
        const char *message;
    } cases[] = {
        {IN_DECODER, "num_hidden_layers", "2", ACCRUE_EMISMATCH, "layer_types"},
        {IN_DECODER, "model_type", "\"qwen3\"", ACCRUE_ENOTSUP,
         "\"model_type\" is qwen3: llama.cpp's EAGLE-3 drafts have no norms of queries and keys"},
        {IN_DECODER, "attention_bias", "true", ACCRUE_ENOTSUP,
         "\"attention_bias\" is true: llama.cpp's EAGLE-3 drafts have no biases"},
        {IN_DRAFT, "eagle_aux_hidden_state_layer_ids", "[1, 2]", ACCRUE_ENOTSUP,
         "2 auxiliary layers: llama.cpp's EAGLE-3 drafts have 3"},
        {IN_DRAFT, "eagle_aux_hidden_state_layer_ids", "[1, 2, 7]", ACCRUE_EMISMATCH,
         "auxiliary layer 7, 0 to 6 expected"},
        {IN_DECODER, "max_position_embeddings", "-1", ACCRUE_EFORMAT,
         "\"max_position_embeddings\" is no count of 32 bits"},
        {IN_VERIFIER, "vocab_size", "289", ACCRUE_EMISMATCH,
         "\"vocab_size\" is 289, the draft's is 288"},
        {IN_VERIFIER, "hidden_size", "64", ACCRUE_EMISMATCH,
         "\"hidden_size\" is 64, the draft's is 32"},
        {IN_VERIFIER, "num_hidden_layers", "0", ACCRUE_EFORMAT,
         "\"num_hidden_layers\" is 0, a count expected"},
        {IN_VERIFIER, "eos_token_id", "288", ACCRUE_OK, NULL},
        {IN_VERIFIER, "unk_token_id", "288", ACCRUE_EMISMATCH,
         "v/config.json: the unk token has the id 288, 0 to 287 expected"},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        copy_all();
        set_in(cases[i].where == IN_VERIFIER ? "v/config.json" : "d/config.json",
               cases[i].where == IN_DECODER ? "transformer_layer_config" : NULL, cases[i].key,
               cases[i].value);
        if (cases[i].message)
            expect(cases[i].status, cases[i].message);
    }
    copy_all();
    set_in("d/config.json", "transformer_layer_config", "layer_types", NULL);
    set_in("d/config.json", "transformer_layer_config", "num_hidden_layers", "2");
    expect(ACCRUE_ENOTSUP, "\"num_hidden_layers\" is 2: llama.cpp has EAGLE-3 drafts of 1");
    copy_all();
    set_in("d/config.json", NULL, "norm_before_fc", "false");
    set_in("d/config.json", NULL, "fc_norm", "true");
    expect(ACCRUE_ENOTSUP, "\"fc_norm\" is true: llama.cpp has one norm over all");
    copy_all();
    run("echo '[]' >'%s'", path_of("v/config.json"));
    expect(ACCRUE_EFORMAT, "v/config.json: no JSON object");
}

/* Writes the draft's weights again with one of them changed, or without it. */
static void change_weights(const char *name, void (*change)(acr_tensor *t), const char *add)
{
    acr_safetensors *f = NULL;
    acr_tensor all[40];
    int n = 0;

    assert_int_equal(acr_safetensors_open(&f, DRAFT "/model.safetensors", NULL), ACCRUE_OK);
    for (int i = 0; i < acr_safetensors_count(f); i++) {
        all[n] = *acr_safetensors_at(f, i);
        if (strcmp(all[n].name, name) == 0 && !change && !add)
            continue;
        if (strcmp(all[n].name, name) == 0 && change)
            change(&all[n]);
        if (strcmp(all[n].name, name) == 0 && add) {
            all[n + 1] = all[n];
            all[++n].name = add;
        }
        n++;
    }
    assert_int_equal(
        acr_safetensors_write(path_of("d/model.safetensors"), all, n, NULL, NULL, NULL), ACCRUE_OK);
    acr_safetensors_close(f);
}

static uint8_t changed[200000];

static void turn(acr_tensor *t)
{
    int64_t first = t->dims[0];

    t->dims[0] = t->dims[1];
    t->dims[1] = first;
}

static void make_integers(acr_tensor *t)
{
    t->dtype = ACR_DTYPE_I64;
    t->bytes = (size_t)acr_tensor_elements(t) * 8;
    t->data = changed;
}

static void make_nan(acr_tensor *t)
{
    uint16_t nan = 0x7FC0;

    memcpy(changed, t->data, t->bytes);
    memcpy(changed + 2 * 77, &nan, 2);
    t->data = changed;
}

static void make_large(acr_tensor *t)
{
    uint16_t large = acr_bf16_from_f32(70000);

    memcpy(changed, t->data, t->bytes);
    memcpy(changed + 2 * 77, &large, 2);
    t->data = changed;
}

static void map_outside(acr_tensor *t)
{
    int64_t id = 288;

    memcpy(changed, t->data, t->bytes);
    memcpy(changed, &id, sizeof id);
    t->data = changed;
}

static void map_twice(acr_tensor *t)
{
    int64_t id = 0;

    memcpy(changed, t->data, t->bytes);
    memcpy(&id, changed, sizeof id);
    id--;
    memcpy(changed + 8, &id, sizeof id);
    t->data = changed;
}

static void make_short(acr_tensor *t)
{
    t->dims[0]--;
    t->bytes -= 8;
}

static void test_weights_refusals(void **state)
{
    static const struct {
        const char *name;
        void (*change)(acr_tensor *t);
        const char *add;
        accrue_status status;
        const char *message;
    } cases[] = {
        {"fc.weight", NULL, NULL, ACCRUE_EMISMATCH,
         "tensor 'fc.weight' is missing, [32, 96] expected"},
        {"lm_head.weight", NULL, NULL, ACCRUE_EMISMATCH, "tensor 'lm_head.weight' is missing"},
        {"d2t", NULL, NULL, ACCRUE_EMISMATCH, "tensor 'd2t' is missing, [40] expected"},
        {"fc.weight", turn, NULL, ACCRUE_EMISMATCH,
         "tensor 'fc.weight' is BF16 [96, 32], floating point [32, 96] expected"},
        {"fc.weight", make_integers, NULL, ACCRUE_EMISMATCH,
         "tensor 'fc.weight' is I64 [32, 96], floating point [32, 96] expected"},
        {"norm.weight", NULL, "fc_norm.0.weight", ACCRUE_EMISMATCH,
         "tensor 'fc_norm.0.weight' has no place in llama.cpp's EAGLE-3 drafts"},
        {"fc.weight", make_nan, NULL, ACCRUE_EFORMAT, "tensor 'fc.weight': element 77 is nan"},
        {"layers.0.self_attn.q_proj.weight", make_nan, NULL, ACCRUE_EFORMAT, "element 77 is nan"},
        {"fc.weight", make_large, NULL, ACCRUE_EMISMATCH,
         "tensor 'fc.weight': element 77 is 70144, more than F16 holds"},
        {"d2t", map_outside, NULL, ACCRUE_EMISMATCH,
         "tensor 'd2t': entry 0 is 288, which is no id of a vocabulary of 288"},
        {"d2t", map_twice, NULL, ACCRUE_EMISMATCH, "tensor 'd2t': id 0 is there twice"},
        {"d2t", make_short, NULL, ACCRUE_EMISMATCH,
         "tensor 'd2t' is I64 of 39, I64 or I32 of 40 expected"},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        copy_all();
        change_weights(cases[i].name, cases[i].change, cases[i].add);
        expect(cases[i].status, cases[i].message);
    }
}

static void test_tokenizer_refusals(void **state)
{
    static const struct {
        const char *inner, *key, *value;
        accrue_status status;
        const char *message;
    } cases[] = {
        {"model", "type", "\"Unigram\"", ACCRUE_ENOTSUP, "\"model.type\" is Unigram"},
        {"model", "byte_fallback", "true", ACCRUE_ENOTSUP, "BPE, with byte_fallback"},
        {"model", "merges", "[]", ACCRUE_EFORMAT, "\"model.merges\" is no list, or empty"},
        {NULL, "pre_tokenizer",
         "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true}",
         ACCRUE_ENOTSUP, "llama.cpp knows neither this tokenizer (digest "},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        copy_all();
        set_in("v/tokenizer.json", cases[i].inner, cases[i].key, cases[i].value);
        expect(cases[i].status, cases[i].message);
    }
    copy_all();
    unlink(path_of("v/tokenizer.json"));
    expect(ACCRUE_EIO, "v/tokenizer.json: not there");
    copy_all();
    run("touch '%s'", path_of("v/tokenizer.model"));
    expect(ACCRUE_ENOTSUP, "v/tokenizer.model: a SentencePiece vocabulary");
    copy_all();
    run("echo '{\"sep_token\": \"<other>\"}' >'%s'", path_of("v/tokenizer_config.json"));
    expect(ACCRUE_EMISMATCH, "it has no token '<other>', the sep_token of tokenizer_config.json");
    run("echo '{\"added_tokens_decoder\": {\"300\": {\"content\": \"x\"}}}' >'%s'",
        path_of("v/tokenizer_config.json"));
    expect(ACCRUE_EMISMATCH, "token 'x' has the id 300, 0 to 287 expected");
    run("echo '{\"added_tokens_decoder\": {\"1x\": {}}}' >'%s'",
        path_of("v/tokenizer_config.json"));
    expect(ACCRUE_EFORMAT, "'1x' in \"added_tokens_decoder\" of tokenizer_config.json is no id");
    run("echo '{\"added_tokens_decoder\": {\"1\": {}}}' >'%s'", path_of("v/tokenizer_config.json"));
    expect(ACCRUE_EFORMAT, "an added token's \"content\" is no string");
    run("echo '{\"added_tokens_decoder\": {\"1\": {\"content\": \"b\"}}}' >'%s'",
        path_of("v/tokenizer_config.json"));
    expect(ACCRUE_EMISMATCH, "id 1 is '\xC4\x81' and 'b'");
    run("echo '{\"added_tokens_decoder\": {\"280\": {\"content\": \"\xE2\x96\x81\"}}}' >'%s'",
        path_of("v/tokenizer_config.json"));
    expect(ACCRUE_ENOTSUP, "has a mark for a blank");
    run("echo '{' >'%s'", path_of("v/tokenizer_config.json"));
    expect(ACCRUE_EFORMAT, "tokenizer_config.json: line 2 column 0");
    copy_all();
    run("printf '\\377' >'%s'", path_of("v/chat_template.jinja"));
    expect(ACCRUE_EFORMAT, "v/chat_template.jinja: no UTF-8 text");
}

static void test_card_refusals(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"license: [1]", "entry 0 of \"license\" of its front matter is no string"},
        {"version: 1.5", "\"version\" of its front matter is no string"},
        {"tags: [a, 2024-01-01]", "entry 1 of \"tags\" of its front matter is no string"},
        {"base_model: [{name: 1}]", "\"name\" of a base_model of its front matter is no string"},
        {"a: [", "of its front matter: "},
        {"a: &a [*a]", "has more than 100000 values, or nests more than 32 deep"},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        copy_all();
        run("printf -- '---\\n%s\\n---\\n' >'%s'", cases[i].text, path_of("d/README.md"));
        expect(ACCRUE_EFORMAT, cases[i].message);
    }
    copy_all();
    run("echo '{\"top_k\": 1.5}' >'%s'", path_of("d/generation_config.json"));
    expect(ACCRUE_EFORMAT, "d/generation_config.json: \"top_k\" is no 32-bit integer");
    run("echo '{\"temperature\": \"1\"}' >'%s'", path_of("d/generation_config.json"));
    expect(ACCRUE_EFORMAT, "\"temperature\" is no number");
    run("echo '{\"sequence\": 1}' >'%s'", path_of("d/generation_config.json"));
    expect(ACCRUE_EFORMAT, "\"sequence\" is no string");
}

/* Where it goes ---------------------------------------------------------------------------- */

static void test_out(void **state)
{
    accrue_error err = {0};

    (void)state;
    copy_all();
    run("echo text >'%s'", path_of("notes.txt"));
    assert_int_equal(export_to(path_of("notes.txt"), DRAFT, VERIFIER, ACCRUE_EXPORT_F32, &err),
                     ACCRUE_EINVAL);
    assert_non_null(strstr(err.message, "notes.txt: it is there and no GGUF file, so it stays"));
    assert_int_equal(export_to(path_of("d"), DRAFT, VERIFIER, ACCRUE_EXPORT_F32, &err),
                     ACCRUE_EINVAL);
    assert_non_null(strstr(err.message, "a folder, the name of a file expected"));
    assert_int_equal(export_to(path_of("no/x.gguf"), DRAFT, VERIFIER, ACCRUE_EXPORT_F32, &err),
                     ACCRUE_EIO);
    assert_non_null(strstr(err.message, "cannot create"));
    assert_int_equal(export_to(path_of("y.gguf"), DRAFT, VERIFIER, ACCRUE_EXPORT_F32, &err),
                     ACCRUE_OK);
    assert_int_equal(export_to(path_of("y.gguf"), DRAFT, VERIFIER, ACCRUE_EXPORT_Q8_0, &err),
                     ACCRUE_OK);
    run("ln -s y.gguf '%s' && ln -s nowhere '%s'", path_of("link.gguf"), path_of("broken.gguf"));
    assert_int_equal(export_to(path_of("link.gguf"), DRAFT, VERIFIER, ACCRUE_EXPORT_F32, &err),
                     ACCRUE_OK);
    run("test -h '%s' && test -f '%s'", path_of("link.gguf"), path_of("y.gguf"));
    assert_int_equal(export_to(path_of("broken.gguf"), DRAFT, VERIFIER, ACCRUE_EXPORT_F32, &err),
                     ACCRUE_EIO);
    assert_non_null(strstr(err.message, "broken.gguf: cannot follow the link"));
    run("mkdir '%s'", path_of("z.gguf.partial"));
    assert_int_equal(export_to(path_of("z.gguf"), DRAFT, VERIFIER, ACCRUE_EXPORT_F32, &err),
                     ACCRUE_EIO);
    assert_non_null(strstr(err.message, "z.gguf.partial: not a regular file"));
    assert_int_equal(export_to(NULL, DRAFT, VERIFIER, ACCRUE_EXPORT_F32, &err), ACCRUE_EINVAL);
    assert_string_equal(err.message, "--out: a file expected");
    assert_int_equal(export_to("x", NULL, VERIFIER, ACCRUE_EXPORT_F32, &err), ACCRUE_EINVAL);
    assert_string_equal(err.message, "export: a checkpoint's folder expected");
    assert_int_equal(export_to("x", DRAFT, "", ACCRUE_EXPORT_F32, &err), ACCRUE_EINVAL);
    assert_non_null(strstr(err.message, "--verifier-name-or-path: expected"));
    assert_int_equal(export_to("x", DRAFT, VERIFIER, (accrue_export_dtype)9, &err), ACCRUE_EINVAL);
    assert_string_equal(err.message, "--dtype: 9, 1 to 4 expected");
}

static int stop(const accrue_progress *p, void *payload)
{
    assert_string_equal(p->unit, "bytes");
    assert_true(p->done <= p->total);
    return ++*(int *)payload == 3;
}

static void test_report(void **state)
{
    accrue_export_options o;
    accrue_error err = {0};
    char *text = NULL;
    json_t *report = NULL;
    int calls = 0;

    (void)state;
    accrue_export_options_init(&o, sizeof o);
    o.checkpoint = DRAFT;
    o.verifier = VERIFIER;
    o.out = path_of("stopped.gguf");
    o.dtype = ACCRUE_EXPORT_Q8_0;
    assert_int_equal(accrue_export(&text, &o, stop, &calls, &err), ACCRUE_ECANCELED);
    assert_non_null(strstr(err.message, "stopped.gguf: stopped after "));
    assert_false(acr_exists(path_of("stopped.gguf")));
    assert_false(acr_exists(path_of("stopped.gguf.partial")));
    assert_int_equal(accrue_export(&text, &o, NULL, NULL, &err), ACCRUE_OK);
    report = json_loads(text, 0, NULL);
    accrue_string_free(text);
    assert_int_equal(json_array_size(json_object_get(report, "tensors")), 15);
    const json_t *lost = json_object_get(report, "lost");
    static const char *const whats[] = {"norm_output", "sliding_window", "blk.0.ffn_down.weight",
                                        "tokenizer.ggml.pre"};
    assert_int_equal(json_array_size(lost), ACR_COUNT(whats));
    for (int i = 0; i < ACR_COUNT(whats); i++)
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(lost, (size_t)i), "what")), whats[i]);
    json_decref(report);
}

static void assert_lost(const char *what, const char *effect)
{
    accrue_export_options o;
    char *text = NULL;
    bool found = false;

    accrue_export_options_init(&o, sizeof o);
    o.checkpoint = path_of("d");
    o.verifier = path_of("v");
    o.out = path_of("lost.gguf");
    assert_int_equal(accrue_export(&text, &o, NULL, NULL, NULL), ACCRUE_OK);
    json_t *report = json_loads(text, 0, NULL), *one = NULL;
    size_t i = 0;
    accrue_string_free(text);
    json_array_foreach(json_object_get(report, "lost"), i, one) found =
        found || (strcmp(json_string_value(json_object_get(one, "what")), what) == 0 &&
                  strstr(json_string_value(json_object_get(one, "effect")), effect));
    assert_true(found);
    json_decref(report);
}

static void test_templates(void **state)
{
    (void)state;
    copy_all();
    run("mkdir '%s'", path_of("v/additional_chat_templates"));
    assert_lost("tokenizer.chat_template", "the file has the default one");
    copy_all();
    run("echo '{}' >'%s'", path_of("v/tokenizer_config.json"));
    set_in(
        "v/tokenizer_config.json", NULL, "chat_template",
        "[{\"name\": \"default\", \"template\": \"a\"}, {\"name\": \"b\", \"template\": \"b\"}]");
    assert_lost("tokenizer.chat_template", "of the verifier's 2 chat templates the file has the ");
    set_in("v/tokenizer_config.json", NULL, "chat_template", "[{\"name\": \"b\"}]");
    assert_lost("tokenizer.chat_template", "1 chat templates the file has none");
}

static void test_no_memory(void **state)
{
    accrue_status st = ACCRUE_ENOMEM;
    const char *out = path_of("memory.gguf");
    uint64_t n = 0;

    (void)state;
    while (st == ACCRUE_ENOMEM && n < 100000) {
        accrue_error err = {0};
        size_t live = acr_allocated_bytes();
        acr_fail_allocation(++n);
        st = export_to(out, DATA "/whole", VERIFIER, ACCRUE_EXPORT_Q8_0, &err);
        acr_fail_allocation(0);
        assert_int_equal(acr_allocated_bytes(), live);
        if (st == ACCRUE_ENOMEM)
            assert_false(acr_exists(path_of("memory.gguf.partial")));
    }
    assert_int_equal(st, ACCRUE_OK);
    assert_true(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),          cmocka_unit_test(test_config_refusals),
        cmocka_unit_test(test_weights_refusals), cmocka_unit_test(test_tokenizer_refusals),
        cmocka_unit_test(test_card_refusals),    cmocka_unit_test(test_out),
        cmocka_unit_test(test_report),           cmocka_unit_test(test_templates),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
