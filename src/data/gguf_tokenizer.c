/* gguf_tokenizer.c - tokenizer.json and tokenizer_config.json out of a GGUF file's keys.
 *
 * GGUF keeps a byte-level BPE vocabulary as a list of tokens with their kinds, the merges, and the
 * name of the way in which text is split before them; tokenizer.json spells that way out. */
#include "data/data.h"

#include <stdio.h>
#include <string.h>

/* Kinds of tokens that are found in text as they are. */
enum { CONTROL = 3, USER_DEFINED = 4 };

/* How text is split, as GGUF names it; the patterns are those of the models' own files. */
#define WORDS_OF_LLAMA3                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"                      \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS_OF_QWEN2                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"                           \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define WORDS_OF_TEKKEN                                                                            \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER            \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct split {
    const char *name, *pattern; /* NULL: GPT-2's, which ByteLevel has built in */
    bool nfc, whole_words; /* whole_words: a word of the vocabulary is taken without its merges */
    bool bos;              /* put before text where the file does not say */
} splits[] = {
    {"default", NULL, false, false, false},
    {"gpt-2", NULL, false, false, false},
    {"smollm", NULL, false, false, false},
    {"llama-bpe", WORDS_OF_LLAMA3, false, true, true},
    {"llama3", WORDS_OF_LLAMA3, false, true, true},
    {"llama-v3", WORDS_OF_LLAMA3, false, true, true},
    {"falcon3", WORDS_OF_LLAMA3, false, true, true},
    {"smaug-bpe", WORDS_OF_LLAMA3, false, false, false},
    {"dbrx", WORDS_OF_LLAMA3, false, false, false},
    {"tekken", WORDS_OF_TEKKEN, false, true, true},
    {"qwen2", WORDS_OF_QWEN2, true, false, false},
    {"deepseek-r1-qwen", WORDS_OF_QWEN2, false, false, false},
};

static const struct split *find_split(const char *name)
{
    for (int i = 0; i < ACR_COUNT(splits); i++)
        if (strcmp(name, splits[i].name) == 0)
            return &splits[i];
    return NULL;
}

const char *acr_gguf_split(const char *name)
{
    const struct split *split = find_split(name);

    return split ? split->pattern : NULL;
}

typedef struct vocabulary {
    const json_t *keys, *tokens, *types, *merges;
    const struct split *split;
    json_t *ids; /* token -> id: model.vocab */
    const char *path;
    accrue_error *err;
} vocabulary;

static const json_t *get(const vocabulary *v, const char *name)
{
    char key[96];

    snprintf(key, sizeof key, "tokenizer.ggml.%.40s", name);
    return json_object_get(v->keys, key);
}

static accrue_status malformed(const vocabulary *v, const char *key, size_t i, const char *what)
{
    return acr_fail(v->err, ACCRUE_EFORMAT, "%s: key 'tokenizer.ggml.%s': entry %zu %s", v->path,
                    key, i, what);
}

/* Whether this is a vocabulary that can be told, else why not. */
static bool is_byte_level(vocabulary *v, char *why)
{
    char text[ACR_WHY];
    const char *model = json_string_value(get(v, "model"));
    const json_t *pre = get(v, "pre");
    const char *split = pre ? json_string_value(pre) : "default";

    if (!model || strcmp(model, "gpt2") != 0) {
        snprintf(text, sizeof text, "%s%s", model ? "its vocabulary is of the kind " : "",
                 model ? model : "it has no vocabulary");
        acr_text(why, ACR_WHY, text);
        return false;
    }
    v->split = split ? find_split(split) : NULL;
    if (v->split)
        return true;
    snprintf(text, sizeof text, "how it splits text is not known: %s", split ? split : "no string");
    acr_text(why, ACR_WHY, text);
    return false;
}

static accrue_status check_arrays(vocabulary *v)
{
    v->tokens = get(v, "tokens");
    v->types = get(v, "token_type");
    v->merges = get(v, "merges");
    if (!json_array_size(v->tokens))
        return acr_fail(v->err, ACCRUE_EFORMAT, "%s: key 'tokenizer.ggml.tokens' has no tokens",
                        v->path);
    if (!json_is_array(v->merges))
        return acr_fail(v->err, ACCRUE_EFORMAT, "%s: key 'tokenizer.ggml.merges' has no merges",
                        v->path);
    if (v->types && json_array_size(v->types) != json_array_size(v->tokens))
        return acr_fail(v->err, ACCRUE_EFORMAT,
                        "%s: key 'tokenizer.ggml.token_type' has %zu entries for %zu tokens",
                        v->path, json_array_size(v->types), json_array_size(v->tokens));
    return ACCRUE_OK;
}

static accrue_status number_tokens(vocabulary *v)
{
    size_t i = 0;
    json_t *token = NULL;

    v->ids = json_object();
    if (!v->ids)
        return acr_enomem(v->err, 0, "a vocabulary");
    json_array_foreach(v->tokens, i, token)
    {
        const char *text = json_string_value(token);
        if (!text || !*text)
            return malformed(v, "tokens", i, "is no token");
        if (json_object_get(v->ids, text))
            return malformed(v, "tokens", i, "is the same as one before");
        if (json_object_set_new(v->ids, text, json_integer((json_int_t)i)) != 0)
            return acr_enomem(v->err, 0, "a vocabulary");
    }
    return ACCRUE_OK;
}

static int64_t kind_of(const vocabulary *v, size_t i)
{
    return v->types ? json_integer_value(json_array_get(v->types, i)) : 1;
}

static json_t *added_token(const char *text, json_int_t id, bool special)
{
    return json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", text,
                     "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
                     (int)special);
}

static accrue_status add_tokens(json_t *root, const vocabulary *v)
{
    json_t *added = json_array();
    size_t i = 0;
    json_t *token = NULL;
    int failed = json_object_set_new(root, "added_tokens", added);

    json_array_foreach(v->tokens, i, token)
    {
        int64_t kind = kind_of(v, i);
        if (kind == CONTROL || kind == USER_DEFINED)
            failed |= json_array_append_new(
                added, added_token(json_string_value(token), (json_int_t)i, kind == CONTROL));
    }
    return failed ? acr_enomem(v->err, 0, "added tokens") : ACCRUE_OK;
}

/* "Ġ t" as ["Ġ", "t"]; what it is made of and what it makes must be tokens. */
static accrue_status add_merge(json_t *merges, size_t i, const char *text, const vocabulary *v)
{
    accrue_status st = ACCRUE_OK;
    const char *space = text ? strchr(text, ' ') : NULL;
    char *joined = NULL;
    size_t left = space ? (size_t)(space - text) : 0;

    if (!left || !space[1] || strchr(space + 1, ' '))
        return malformed(v, "merges", i, "is not two tokens");
    joined = acr_sprintf("%.*s%s", (int)left, text, space + 1);
    if (!joined)
        return acr_enomem(v->err, strlen(text), "a merge");
    if (!json_object_getn(v->ids, text, left) || !json_object_get(v->ids, space + 1) ||
        !json_object_get(v->ids, joined))
        st = malformed(v, "merges", i, "is of what is no token");
    else if (json_array_append_new(merges, json_pack("[s%, s]", text, left, space + 1)) != 0)
        st = acr_enomem(v->err, 0, "merges");
    acr_free(joined);
    return st;
}

static accrue_status set_model(json_t *root, const vocabulary *v)
{
    accrue_status st = ACCRUE_OK;
    json_t *merges = json_array();
    size_t i = 0;
    json_t *merge = NULL;

    json_array_foreach(v->merges, i, merge)
        ACR_TRY(add_merge(merges, i, json_string_value(merge), v));
    if (json_object_set_new(root, "model",
                            json_pack("{s:s, s:n, s:n, s:s, s:s, s:b, s:b, s:b, s:O, s:O}", "type",
                                      "BPE", "dropout", "unk_token", "continuing_subword_prefix",
                                      "", "end_of_word_suffix", "", "fuse_unk", 0, "byte_fallback",
                                      0, "ignore_merges", (int)v->split->whole_words, "vocab",
                                      v->ids, "merges", merges)) != 0)
        st = acr_enomem(v->err, 0, "a vocabulary");

cleanup:
    json_decref(merges);
    return st;
}

static json_t *byte_level(bool prefix_space, bool words)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                     (int)prefix_space, "trim_offsets", 1, "use_regex", (int)words);
}

static json_t *pre_tokenizer(const struct split *split)
{
    if (!split->pattern)
        return byte_level(false, true);
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers",
                     "type", "Split", "pattern", "Regex", split->pattern, "behavior", "Isolated",
                     "invert", 0, byte_level(false, false));
}

/* Whether text begins with the token that begins a document. */
static bool adds_bos(const vocabulary *v)
{
    const json_t *says = get(v, "add_bos_token");

    return says ? json_is_true(says) : v->split->bos;
}

/* A special token of the file as its text, NULL: none. */
static const char *special_token(const vocabulary *v, const char *name)
{
    char key[96];
    const json_t *id = NULL;

    snprintf(key, sizeof key, "%s_token_id", name);
    id = get(v, key);
    if (!json_is_integer(id) || json_integer_value(id) < 0)
        return NULL;
    return json_string_value(json_array_get(v->tokens, (size_t)json_integer_value(id)));
}

static json_t *sequence(const char *id, int type)
{
    return json_pack("{s:{s:s, s:i}}", "Sequence", "id", id, "type_id", type);
}

static json_t *post_processor(const vocabulary *v)
{
    const char *bos = adds_bos(v) ? special_token(v, "bos") : NULL;
    json_t *single = json_array(), *pair = json_array(), *specials = json_object();
    int failed = 0;

    for (int i = 0; i < 2; i++) {
        json_t *mark =
            bos ? json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", bos, "type_id", i) : NULL;
        if (bos)
            failed |=
                (i == 0 ? json_array_append(single, mark) : 0) | json_array_append_new(pair, mark);
        failed |= (i == 0 ? json_array_append_new(single, sequence("A", 0)) : 0) |
                  json_array_append_new(pair, sequence(i == 0 ? "A" : "B", i));
    }
    if (bos)
        failed |= json_object_set_new(specials, bos,
                                      json_pack("{s:s, s:[O], s:[s]}", "id", bos, "ids",
                                                get(v, "bos_token_id"), "tokens", bos));
    if (failed) {
        json_decref(single);
        json_decref(pair);
        json_decref(specials);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", specials);
}

static accrue_status set_parts(json_t *root, const vocabulary *v)
{
    json_t *normalizer = v->split->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();

    if (json_object_set_new(root, "version", json_string("1.0")) |
        json_object_set_new(root, "truncation", json_null()) |
        json_object_set_new(root, "padding", json_null()) |
        json_object_set_new(root, "normalizer", normalizer) |
        json_object_set_new(root, "pre_tokenizer", pre_tokenizer(v->split)) |
        json_object_set_new(root, "post_processor", post_processor(v)) |
        json_object_set_new(root, "decoder", byte_level(true, true)))
        return acr_enomem(v->err, 0, "a tokenizer");
    return ACCRUE_OK;
}

accrue_status acr_gguf_tokenizer(json_t **out, char *why, const acr_gguf *g, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    vocabulary v = {.path = acr_gguf_path(g), .err = err};
    json_t *root = NULL;

    *out = NULL;
    *why = '\0';
    v.keys = acr_gguf_metadata(g);
    if (!is_byte_level(&v, why))
        return ACCRUE_OK;
    root = json_object();
    ACR_TRY(check_arrays(&v));
    ACR_TRY(number_tokens(&v));
    ACR_TRY(set_parts(root, &v));
    ACR_TRY(add_tokens(root, &v));
    ACR_TRY(set_model(root, &v));
    *out = root;
    root = NULL;

cleanup:
    json_decref(root);
    json_decref(v.ids);
    return st;
}

accrue_status acr_gguf_tokenizer_config(json_t **out, const acr_gguf *g, accrue_error *err)
{
    static const char *const names[][2] = {{"bos_token", "bos"},
                                           {"eos_token", "eos"},
                                           {"pad_token", "padding"},
                                           {"unk_token", "unknown"}};
    vocabulary v = {.keys = acr_gguf_metadata(g)};
    char key[128];
    const json_t *context = NULL;
    int failed = 0;

    v.tokens = get(&v, "tokens");
    snprintf(key, sizeof key, "%.80s.context_length",
             json_string_value(json_object_get(v.keys, "general.architecture"))
                 ? json_string_value(json_object_get(v.keys, "general.architecture"))
                 : "");
    context = json_object_get(v.keys, key);
    *out = json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                     "clean_up_tokenization_spaces", 0);
    for (int i = 0; i < ACR_COUNT(names) && *out; i++) {
        const char *token = special_token(&v, names[i][1]);
        if (token)
            failed |= json_object_set_new(*out, names[i][0], json_string(token));
    }
    if (json_is_integer(context))
        failed |= json_object_set(*out, "model_max_length", (json_t *)(uintptr_t)context);
    if (*out && !failed)
        return ACCRUE_OK;
    json_decref(*out);
    *out = NULL;
    return acr_enomem(err, 0, "tokenizer_config.json");
}
