/* export_special.c - the special tokens of a GGUF file: their ids, which of them begin and end a
 * text, and the chat template.  What several files say is weighed as llama.cpp's converter does. */
#include "convert/export_parts.h"

#include <stdio.h>
#include <string.h>

enum { MOST_TYPES = 9, MOST_ADDS = 3 };

typedef struct special {
    acr_export *e;
    const json_t *tokenizer;
    json_t *config; /* tokenizer_config.json's, amended; NULL: none or empty */
    const char *types[MOST_TYPES];
    int n_types;
    int64_t id[MOST_TYPES]; /* -1: not set */
    int order[MOST_TYPES];  /* types, in the order in which they were set */
    int n_set;
    struct {
        const char *type;
        bool value;
    } adds[MOST_ADDS]; /* in the order in which they were set */
    int n_adds;
} special;

static bool is_same(const json_t *a, const json_t *b)
{
    return a && b && json_equal((json_t *)(uintptr_t)a, (json_t *)(uintptr_t)b);
}

/* Neither null nor empty. */
static bool is_something(const json_t *v)
{
    return json_is_string(v) ? json_string_length(v) > 0
                             : json_object_size(v) > 0 || json_array_size(v) > 0;
}

static const json_t *get(const special *s, const char *key)
{
    return json_object_get(s->config, key);
}

static void amend(special *s, const char *key, const json_t *value)
{
    if (s->config)
        json_object_set(s->config, key, (json_t *)(uintptr_t)value);
}

static void set_add(special *s, const char *type, bool value, bool again)
{
    int i = 0;

    while (i < s->n_adds && strcmp(s->adds[i].type, type) != 0)
        i++;
    if (i < s->n_adds && !again)
        return;
    if (i == s->n_adds) {
        s->adds[i].type = type;
        s->n_adds++;
    }
    s->adds[i].value = value;
}

/* Templates -------------------------------------------------------------------------------- */

/* The special token at a place of a template; NULL: none, or the text. */
static const json_t *token_at(const json_t *list, size_t i)
{
    const json_t *id =
        json_object_get(json_object_get(json_array_get(list, i), "SpecialToken"), "id");

    return is_something(id) ? id : NULL;
}

static const char *text_at(const json_t *list, size_t i)
{
    const char *id = json_string_value(
        json_object_get(json_object_get(json_array_get(list, i), "Sequence"), "id"));

    return id ? id : "";
}

/* Another token at the end than the config's: the latter then ends a turn, or a message. */
static void replace_end(special *s, const json_t *last)
{
    static const char *const keys[][2] = {{"eot", "eot_token"}, {"eom", "eom_token"}};
    int i = s->n_types - 7; /* types added so far */

    if (i < ACR_COUNT(keys)) {
        s->types[s->n_types++] = keys[i][0];
        if (get(s, "eos_token"))
            amend(s, keys[i][1], get(s, "eos_token"));
    }
    amend(s, "eos_token", last);
}

typedef struct ends {
    const json_t *first, *last; /* of a single text; NULL: none */
} ends;

static ends read_single(special *s, const json_t *single)
{
    ends found = {0};
    const size_t n = json_array_size(single);

    if (n < 2)
        return found;
    found.first = token_at(single, 0);
    found.last = token_at(single, n - 1);
    if (found.first && s->config) {
        if (!is_same(found.first, get(s, "bos_token")) &&
            !is_same(found.first, get(s, "cls_token"))) {
            if (!is_something(get(s, "bos_token")))
                amend(s, "bos_token", found.first);
            if (!is_something(get(s, "cls_token")))
                amend(s, "cls_token", found.first);
        }
    }
    if (found.first)
        set_add(s, "bos",
                !s->config || is_same(found.first, get(s, "bos_token")) ||
                    is_same(found.first, get(s, "cls_token")),
                true);
    if (found.last && s->config && !is_same(found.last, get(s, "eos_token")))
        replace_end(s, found.last);
    if (found.last)
        set_add(s, "eos", true, true);
    return found;
}

static bool separates(const special *s, const json_t *token)
{
    return is_same(token, get(s, "sep_token")) || is_same(token, get(s, "eos_token"));
}

/* Of two texts: whether something stands between them. */
static void read_pair(special *s, const json_t *pair, ends found)
{
    const size_t n = json_array_size(pair);
    size_t begin = 0, end = n;
    bool add = false;

    if (!n)
        return;
    begin = found.first && is_same(token_at(pair, 0), found.first);
    end -= found.last && is_same(token_at(pair, n - 1), found.last);
    if (end < begin + 3 || strcmp(text_at(pair, begin), "A") != 0 ||
        strcmp(text_at(pair, end - 1), "B") != 0)
        return;
    add = token_at(pair, begin + 1) && separates(s, token_at(pair, begin + 1)) && !found.last;
    if (end - begin == 4 && token_at(pair, begin + 2) && separates(s, token_at(pair, begin + 2)))
        add = true;
    set_add(s, "sep", add, true);
    if (add && !is_something(get(s, "sep_token")) && get(s, "eos_token"))
        amend(s, "sep_token", get(s, "eos_token"));
}

static void read_roberta(special *s, const json_t *processor)
{
    static const char *const keys[][2] = {{"cls", "cls_token"}, {"sep", "sep_token"}};
    static const char *const adds[] = {"bos", "eos", "sep"};

    for (int i = 0; i < ACR_COUNT(adds); i++)
        set_add(s, adds[i], true, true);
    for (int i = 0; i < ACR_COUNT(keys); i++) {
        const json_t *given = json_array_get(json_object_get(processor, keys[i][0]), 0);
        const json_t *usual = get(s, i ? "eos_token" : "bos_token");
        if (!is_something(get(s, keys[i][1])) && (given || usual))
            amend(s, keys[i][1], given ? given : usual);
    }
}

static void read_processor(special *s, const json_t *processor)
{
    const char *type = json_string_value(json_object_get(processor, "type"));

    if (!type)
        return;
    if (strcmp(type, "ByteLevel") == 0) {
        set_add(s, "bos", false, false);
        set_add(s, "eos", false, false);
    } else if (strcmp(type, "RobertaProcessing") == 0) {
        read_roberta(s, processor);
    } else if (strcmp(type, "TemplateProcessing") == 0) {
        ends found = read_single(s, json_object_get(processor, "single"));
        read_pair(s, json_object_get(processor, "pair"), found);
    }
}

static void read_processors(special *s)
{
    const json_t *top = json_object_get(s->tokenizer, "post_processor");
    const json_t *list = json_object_get(top, "processors");

    if (!is_something(get(s, "bos_token")) && is_something(get(s, "cls_token")))
        amend(s, "bos_token", get(s, "cls_token"));
    if (!is_something(get(s, "eos_token")) && is_something(get(s, "sep_token")))
        amend(s, "eos_token", get(s, "sep_token"));
    if (!list)
        read_processor(s, top);
    for (size_t i = 0; i < json_array_size(list); i++)
        read_processor(s, json_array_get(list, i));
}

/* Ids -------------------------------------------------------------------------------------- */

static accrue_status set_id(special *s, int type, const json_t *id, const char *file,
                            accrue_error *err)
{
    if (!json_is_integer(id))
        return ACCRUE_OK;
    if (json_integer_value(id) < 0 || json_integer_value(id) >= s->e->draft.vocab_size)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s/%s: the %s token has the id %lld, 0 to %lld expected",
                        s->e->opt->verifier, file, s->types[type],
                        (long long)json_integer_value(id), (long long)s->e->draft.vocab_size - 1);
    if (s->id[type] >= 0)
        return ACCRUE_OK;
    s->id[type] = json_integer_value(id);
    s->order[s->n_set++] = type;
    return ACCRUE_OK;
}

static accrue_status read_config(special *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *added = json_object_get(s->tokenizer, "added_tokens");
    char key[40];

    for (int i = 0; i < s->n_types && s->config; i++) {
        snprintf(key, sizeof key, "add_%s_token", s->types[i]);
        const json_t *add = get(s, key);
        if (json_is_boolean(add) && (i < 2 || strcmp(s->types[i], "sep") == 0))
            set_add(s, s->types[i], json_is_true(add), false);
        snprintf(key, sizeof key, "%s_token", s->types[i]);
        const json_t *v = get(s, key);
        if (json_is_object(v))
            v = json_object_get(v, "content");
        for (size_t k = 0; json_is_string(v) && k < json_array_size(added); k++) {
            const json_t *token = json_array_get(added, k);
            if (!is_same(json_object_get(token, "content"), v))
                continue;
            ACR_TRY(set_id(s, i, json_object_get(token, "id"), "tokenizer.json", err));
            break;
        }
    }

cleanup:
    return st;
}

static accrue_status read_model(special *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *file = NULL;
    char key[40];

    ACR_TRY(acr_export_json(&file, s->e->opt->verifier, "config.json", err));
    for (int i = 0; i < s->n_types; i++) {
        snprintf(key, sizeof key, "%s_token_id", s->types[i]);
        const json_t *id = json_object_get(file, key);
        if (acr_absent(id))
            id = json_object_get(json_object_get(file, "text_config"), key);
        ACR_TRY(set_id(s, i, id, "config.json", err));
    }

cleanup:
    json_decref(file);
    return st;
}

static void put_ids(const special *s)
{
    static const char *const keys[][2] = {
        {"bos", "bos_token_id"},       {"eos", "eos_token_id"},     {"unk", "unknown_token_id"},
        {"sep", "seperator_token_id"}, {"pad", "padding_token_id"}, {"mask", "mask_token_id"},
        {"eot", "eot_token_id"},       {"eom", "eom_token_id"}};
    char name[64];

    for (int i = 0; i < s->n_set; i++)
        for (int k = 0; k < ACR_COUNT(keys); k++)
            if (strcmp(s->types[s->order[i]], keys[k][0]) == 0) {
                snprintf(name, sizeof name, "tokenizer.ggml.%s", keys[k][1]);
                acr_gguf_put_u32(&s->e->keys, name, (uint32_t)s->id[s->order[i]]);
            }
    for (int i = 0; i < s->n_adds; i++) {
        snprintf(name, sizeof name, "tokenizer.ggml.add_%s_token", s->adds[i].type);
        acr_gguf_put_bool(&s->e->keys, name, s->adds[i].value);
    }
}

/* Chat template ---------------------------------------------------------------------------- */

/* Of several templates the one called "default"; the others are told to be lost. */
static accrue_status put_templates(special *s, const json_t *list, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *chosen = NULL;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0)
            chosen = json_object_get(one, "template");
    }
    if (json_string_length(chosen))
        acr_gguf_put_string(&s->e->keys, "tokenizer.chat_template", json_string_value(chosen),
                            json_string_length(chosen));
    if (json_array_size(list) > (json_string_length(chosen) ? 1 : 0))
        ACR_TRY(acr_export_lose(s->e, "tokenizer.chat_template", err,
                                "of the verifier's %zu chat templates the file has %s; llama.cpp "
                                "takes the target's anyway",
                                json_array_size(list),
                                json_string_length(chosen) ? "the default one" : "none"));

cleanup:
    return st;
}

static accrue_status check_more(const special *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/additional_chat_templates", s->e->opt->verifier);

    if (!path)
        return acr_enomem(err, strlen(s->e->opt->verifier), "a path");
    if (acr_is_dir(path))
        st = acr_export_lose(s->e, "tokenizer.chat_template", err,
                             "of the verifier's chat templates the file has the default one; "
                             "llama.cpp takes the target's anyway");
    acr_free(path);
    return st;
}

static accrue_status put_chat(special *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *given = get(s, "chat_template");
    char *text = NULL;
    json_t *file = NULL;

    if (!s->config)
        return ACCRUE_OK;
    if (given) {
        if (json_string_length(given))
            acr_gguf_put_string(&s->e->keys, "tokenizer.chat_template", json_string_value(given),
                                json_string_length(given));
        ACR_TRY(put_templates(s, given, err));
        goto cleanup;
    }
    ACR_TRY(acr_export_text(&text, s->e->opt->verifier, "chat_template.jinja", err));
    if (!text) {
        ACR_TRY(acr_export_json(&file, s->e->opt->verifier, "chat_template.json", err));
        given = json_object_get(file, "chat_template");
    }
    if (text)
        ACR_TRY(check_more(s, err));
    if (text && *text)
        acr_gguf_put_string(&s->e->keys, "tokenizer.chat_template", text, strlen(text));
    else if (json_string_length(given))
        acr_gguf_put_string(&s->e->keys, "tokenizer.chat_template", json_string_value(given),
                            json_string_length(given));

cleanup:
    json_decref(file);
    acr_free(text);
    return st;
}

accrue_status acr_export_special_keys(acr_export *e, const json_t *tokenizer, const json_t *config,
                                      accrue_error *err)
{
    static const char *const usual[] = {"bos", "eos", "unk", "sep", "pad", "cls", "mask"};
    accrue_status st = ACCRUE_OK;
    special s = {.e = e, .tokenizer = tokenizer, .n_types = ACR_COUNT(usual)};

    memcpy(s.types, usual, sizeof usual);
    for (int i = 0; i < MOST_TYPES; i++)
        s.id[i] = -1;
    if (json_object_size(config)) {
        s.config = json_copy((json_t *)(uintptr_t)config);
        if (!s.config)
            return acr_enomem(err, 0, "the tokenizer's configuration");
    }
    read_processors(&s);
    ACR_TRY(read_config(&s, err));
    ACR_TRY(read_model(&s, err));
    put_ids(&s);
    ACR_TRY(put_chat(&s, err));

cleanup:
    json_decref(s.config);
    return st;
}
