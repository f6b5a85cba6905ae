/* export_vocab.c - a byte-level BPE tokenizer's files as the keys of a GGUF file: tokens, their
 * types and the merges. */
#include "convert/export_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

typedef struct vocabulary {
    const char **tokens; /* [n]; NULL: no such id */
    size_t *bytes;       /* [n] */
    int32_t *types;      /* [n] */
    int64_t n;
    const char *name; /* of tokenizer.json, for messages */
} vocabulary;

static accrue_status place(vocabulary *v, const char *token, size_t bytes, const json_t *id,
                           int32_t type, accrue_error *err)
{
    int64_t i = json_integer_value(id);

    if (!json_is_integer(id) || i < 0 || i >= v->n)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: token '%s' has the id %lld, 0 to %lld expected (\"vocab_size\")",
                        v->name, token, (long long)i, (long long)v->n - 1);
    if (v->tokens[i] && strcmp(v->tokens[i], token) != 0)
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: id %lld is '%s' and '%s'", v->name,
                        (long long)i, v->tokens[i], token);
    v->tokens[i] = token;
    v->bytes[i] = bytes;
    v->types[i] = type;
    return ACCRUE_OK;
}

/* Tokens that some models forget to mark. */
static bool looks_special(const char *s, size_t n)
{
    static const char *const whole[] = {"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
    static const char *const begins[] = {"<|", "<\xEF\xBD\x9C", "<unused"};
    static const char *const ends[] = {"|>", "\xEF\xBD\x9C>", ">"};

    for (int i = 0; i < ACR_COUNT(whole); i++)
        if (strcmp(s, whole[i]) == 0)
            return true;
    for (int i = 0; i < ACR_COUNT(begins); i++) {
        size_t a = strlen(begins[i]), b = strlen(ends[i]);
        if (n >= a && n >= b && strncmp(s, begins[i], a) == 0 && strcmp(s + n - b, ends[i]) == 0)
            return true;
    }
    return false;
}

/* The text of a special token that tokenizer_config.json names, "eos_token" say; NULL where the
 * member is none. */
static const char *named_token(const char *key, const json_t *value)
{
    const size_t n = strlen(key);

    if (n < 6 || strcmp(key + n - 6, "_token") != 0)
        return NULL;
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

static accrue_status place_added(vocabulary *v, const json_t *added, const json_t *id,
                                 accrue_error *err)
{
    const json_t *content = json_object_get(added, "content");
    const char *token = json_string_value(content);
    const size_t bytes = json_string_length(content);
    bool special = json_is_true(json_object_get(added, "special"));

    if (!token)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: an added token's \"content\" is no string",
                        v->name);
    special = special || looks_special(token, bytes);
    return place(v, token, bytes, id, special ? CONTROL : USER_DEFINED, err);
}

/* Added tokens as older folders have them once more, by id. */
static accrue_status place_decoder(vocabulary *v, const json_t *config, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *key = NULL;
    json_t *value = NULL, *id = NULL;

    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, value)
    {
        char *end = NULL;
        json_decref(id);
        id = json_integer(strtoll(key, &end, 10));
        if (!*key || *end) {
            st = acr_fail(err, ACCRUE_EFORMAT,
                          "%s: '%s' in \"added_tokens_decoder\" of tokenizer_config.json is no id",
                          v->name, key);
            goto cleanup;
        }
        ACR_TRY(place_added(v, value, id, err));
    }

cleanup:
    json_decref(id);
    return st;
}

static int64_t find(const vocabulary *v, const char *token)
{
    for (int64_t i = 0; i < v->n; i++)
        if (v->tokens[i] && strcmp(v->tokens[i], token) == 0)
            return i;
    return -1;
}

/* Tokens that tokenizer_config.json names become special when a model is loaded; those that
 * tokenizer.json lacks would be added, with an id of their own. */
static accrue_status place_named(vocabulary *v, const json_t *config, accrue_error *err)
{
    const char *key = NULL;
    json_t *value = NULL;

    json_object_foreach((json_t *)(uintptr_t)config, key, value)
    {
        const char *token = named_token(key, value);
        int64_t id = token ? find(v, token) : -1;
        if (token && id < 0)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: it has no token '%s', the %s of tokenizer_config.json", v->name,
                            token, key);
        if (token)
            v->types[id] = CONTROL;
    }
    return ACCRUE_OK;
}

/* llama.cpp looks for these in the text as it is, and some vocabularies write a blank as a mark. */
static accrue_status check_marks(const vocabulary *v, accrue_error *err)
{
    for (int64_t i = 0; i < v->n; i++)
        if (v->tokens[i] && v->types[i] == USER_DEFINED && strstr(v->tokens[i], "\xE2\x96\x81"))
            return acr_fail(err, ACCRUE_ENOTSUP,
                            "%s: the added token '%s' has a mark for a blank; supported: special "
                            "tokens with it",
                            v->name, v->tokens[i]);
    return ACCRUE_OK;
}

static accrue_status fill(vocabulary *v, const json_t *tokenizer, const json_t *config,
                          accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *words = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    const json_t *added = json_object_get(tokenizer, "added_tokens");
    const char *token = NULL;
    json_t *id = NULL;

    if (!json_is_object(words))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: \"model.vocab\" is no object", v->name);
    json_object_foreach((json_t *)(uintptr_t)words, token, id)
        ACR_TRY(place(v, token, strlen(token), id, NORMAL, err));
    for (size_t i = 0; i < json_array_size(added); i++)
        ACR_TRY(place_added(v, json_array_get(added, i),
                            json_object_get(json_array_get(added, i), "id"), err));
    ACR_TRY(place_decoder(v, config, err));
    ACR_TRY(place_named(v, config, err));
    ACR_TRY(check_marks(v, err));

cleanup:
    return st;
}

static void put_tokens(acr_export *e, const vocabulary *v)
{
    char unused[32];

    acr_gguf_put_array(&e->keys, "tokenizer.ggml.tokens", ACR_GGUF_ITEM_STRING, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        snprintf(unused, sizeof unused, "[PAD%lld]", (long long)i);
        if (v->tokens[i])
            acr_gguf_add_string(&e->keys, v->tokens[i], v->bytes[i]);
        else
            acr_gguf_add_string(&e->keys, unused, strlen(unused));
    }
    acr_gguf_put_array(&e->keys, "tokenizer.ggml.token_type", ACR_GGUF_ITEM_I32, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++)
        acr_gguf_add_i32(&e->keys, v->tokens[i] ? v->types[i] : UNUSED);
}

/* Merges ----------------------------------------------------------------------------------- */

/* Appends one half; a blank as the byte-level alphabet writes it. */
static size_t append_half(char *out, const json_t *half)
{
    const char *s = json_string_value(half);
    size_t n = 0;

    for (size_t i = 0; i < json_string_length(half); i++) {
        if (s[i] == ' ') {
            out[n++] = '\xC4';
            out[n++] = '\xA0';
        } else {
            out[n++] = s[i];
        }
    }
    return n;
}

static accrue_status add_pair(acr_export *e, const json_t *pair, const char *name, size_t i,
                              accrue_error *err)
{
    const json_t *a = json_array_get(pair, 0), *b = json_array_get(pair, 1);
    char *text = NULL;
    size_t n = 0;

    if (json_array_size(pair) != 2 || !json_is_string(a) || !json_is_string(b))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: merge %zu is no pair of strings", name, i);
    text = acr_malloc(2 * (json_string_length(a) + json_string_length(b)) + 1);
    if (!text)
        return acr_enomem(err, json_string_length(a), "a merge");
    n = append_half(text, a);
    text[n++] = ' ';
    n += append_half(text + n, b);
    acr_gguf_add_string(&e->keys, text, n);
    acr_free(text);
    return ACCRUE_OK;
}

static accrue_status put_merges(acr_export *e, const json_t *tokenizer, const char *name,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *merges = json_object_get(json_object_get(tokenizer, "model"), "merges");
    const size_t n = json_array_size(merges);
    const bool text = json_is_string(json_array_get(merges, 0));

    if (!n)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: \"model.merges\" is no list, or empty", name);
    acr_gguf_put_array(&e->keys, "tokenizer.ggml.merges", ACR_GGUF_ITEM_STRING, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(merges, i);
        if (!text) {
            ACR_TRY(add_pair(e, m, name, i, err));
        } else if (json_is_string(m)) {
            acr_gguf_add_string(&e->keys, json_string_value(m), json_string_length(m));
        } else {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: merge %zu is no string, the first one is", name,
                          i);
            goto cleanup;
        }
    }

cleanup:
    return st;
}

/* ------------------------------------------------------------------------------------------ */

static accrue_status check_kind(const acr_export *e, const json_t *tokenizer, const char *name,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *model = json_object_get(tokenizer, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    char *path = acr_sprintf("%s/tokenizer.model", e->opt->verifier);

    if (!path)
        return acr_enomem(err, strlen(e->opt->verifier), "a path");
    if (acr_exists(path))
        st = acr_fail(err, ACCRUE_ENOTSUP,
                      "%s: a SentencePiece vocabulary; supported: byte-level BPE (tokenizer.json)",
                      path);
    else if (!tokenizer)
        st = acr_fail(err, ACCRUE_EIO, "%s: not there; the file carries the verifier's tokenizer",
                      name);
    else if (!type || strcmp(type, "BPE") != 0 ||
             json_is_true(json_object_get(model, "byte_fallback")))
        st = acr_fail(err, ACCRUE_ENOTSUP,
                      "%s: \"model.type\" is %s%s; supported: BPE on bytes, without byte_fallback",
                      name, type ? type : "no string",
                      json_is_true(json_object_get(model, "byte_fallback")) ? ", with byte_fallback"
                                                                            : "");
    acr_free(path);
    return st;
}

static accrue_status put_vocabulary(acr_export *e, const json_t *tokenizer, const json_t *config,
                                    const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    vocabulary v = {.n = e->draft.vocab_size, .name = name};

    v.tokens = acr_calloc((size_t)v.n, sizeof *v.tokens);
    v.bytes = acr_calloc((size_t)v.n, sizeof *v.bytes);
    v.types = acr_calloc((size_t)v.n, sizeof *v.types);
    if (!v.tokens || !v.bytes || !v.types) {
        st = acr_enomem(err, (size_t)v.n * sizeof *v.tokens, "the vocabulary");
        goto cleanup;
    }
    ACR_TRY(fill(&v, tokenizer, config, err));
    put_tokens(e, &v);
    ACR_TRY(put_merges(e, tokenizer, name, err));

cleanup:
    acr_free((void *)(uintptr_t)v.tokens);
    acr_free(v.bytes);
    acr_free(v.types);
    return st;
}

/* SmolLM's and Granite's vocabularies have this size, and llama.cpp's converter goes by it. */
enum { NO_BOS_SIZE = 49152 };

accrue_status acr_export_vocab_keys(acr_export *e, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *tokenizer = NULL, *config = NULL;
    const json_t *prefix = NULL;
    const char *pre = NULL;
    bool known = false;
    char *name = acr_sprintf("%s/tokenizer.json", e->opt->verifier);

    if (!name)
        return acr_enomem(err, strlen(e->opt->verifier), "a path");
    ACR_TRY(acr_export_json(&tokenizer, e->opt->verifier, "tokenizer.json", err));
    ACR_TRY(acr_export_json(&config, e->opt->verifier, "tokenizer_config.json", err));
    ACR_TRY(check_kind(e, tokenizer, name, err));
    prefix = json_object_get(config, "add_prefix_space");
    if (json_is_boolean(prefix))
        acr_gguf_put_bool(&e->keys, "tokenizer.ggml.add_space_prefix", json_is_true(prefix));
    ACR_TRY(acr_export_pre(&pre, &known, tokenizer, name, err));
    if (!known)
        ACR_TRY(acr_export_lose(e, "tokenizer.ggml.pre", err,
                                "llama.cpp's own converter does not know this tokenizer; it cuts "
                                "text as '%s' does",
                                pre));
    acr_gguf_put_string(&e->keys, "tokenizer.ggml.model", "gpt2", 4);
    acr_gguf_put_string(&e->keys, "tokenizer.ggml.pre", pre, strlen(pre));
    ACR_TRY(put_vocabulary(e, tokenizer, config, name, err));
    ACR_TRY(acr_export_special_keys(e, tokenizer, config, err));
    if (e->draft.vocab_size == NO_BOS_SIZE)
        acr_gguf_put_bool(&e->keys, "tokenizer.ggml.add_bos_token", false);

cleanup:
    json_decref(tokenizer);
    json_decref(config);
    acr_free(name);
    return st;
}
