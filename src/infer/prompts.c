/* prompts.c - what accrue eval answers: prompts as ids, from a data set, or from text by way of the
 * verifier's tokenizer and chat format. */
#include "infer/infer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PROMPTS = 1 << 28, MAX_MESSAGES = 1 << 16 }; /* bytes of a file; of a conversation */

/* A prompt that is complete, of the row-th of the file; one without tokens is none. */
static accrue_status end_prompt(acr_prompts *p, int64_t row, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (p->ids.n == p->begin.at[p->n])
        return ACCRUE_OK;
    ACR_TRY(acr_ids_add(&p->begin, p->ids.n, err));
    ACR_TRY(acr_ids_add(&p->row, row, err));
    p->n++;

cleanup:
    return st;
}

static accrue_status read_rows(acr_prompts *p, const char *dir, int64_t limit, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_dataset *d = NULL;

    ACR_TRY(acr_dataset_open(&d, dir, err));
    for (int64_t row = 0; row < acr_dataset_rows(d) && (!limit || p->n < limit); row++) {
        acr_row r;
        int64_t n = 0;
        ACR_TRY(acr_dataset_row(&r, d, row, err));
        while (n < r.tokens && !r.loss_mask[n])
            n++;
        for (int64_t i = 0; i < n && n < r.tokens; i++)
            ACR_TRY(acr_ids_add(&p->ids, r.input_ids[i], err));
        ACR_TRY(end_prompt(p, row, err));
    }

cleanup:
    acr_dataset_close(d);
    return st;
}

/* Text ------------------------------------------------------------------------------------- */

typedef struct speech {
    acr_tokenizer *tokenizer;
    acr_chat chat;
} speech;

static accrue_status open_speech(speech *s, const char *verifier, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (!acr_is_dir(verifier)) {
        st = acr_fail(err, ACCRUE_ENOTSUP,
                      "%s is no folder with a tokenizer.json, which prompts of text need; accrue "
                      "import makes one of a GGUF file",
                      verifier);
        goto cleanup;
    }
    ACR_TRY(acr_tokenizer_open(&s->tokenizer, verifier, err));
    ACR_TRY(acr_chat_open(&s->chat, verifier, s->tokenizer, err));

cleanup:
    return st;
}

/* Appends the ids of messages, with the header of an answer behind them. */
static accrue_status add_messages(acr_prompts *p, const speech *s, const acr_message *messages,
                                  int n, const char *place, accrue_error *err)
{
    accrue_error why = {0};
    accrue_status st =
        acr_chat_encode(&p->ids, NULL, &s->chat, s->tokenizer, messages, n, true, &why);

    return st ? acr_fail(err, st, "%s: %s", place, why.message) : ACCRUE_OK;
}

static accrue_status read_strings(acr_prompts *p, const char *path, const speech *s, int64_t limit,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *list = NULL;

    ACR_TRY(acr_json_load(&list, path, MAX_PROMPTS, err));
    for (size_t i = 0; i < json_array_size(list) && (!limit || p->n < limit); i++) {
        const acr_message m = {.role = "user",
                               .content = json_string_value(json_array_get(list, i))};
        char place[PATH_MAX + 32];
        snprintf(place, sizeof place, "%s: prompt %zu", path, i);
        if (!m.content) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s is no string", place);
            goto cleanup;
        }
        ACR_TRY(add_messages(p, s, &m, 1, place, err));
        ACR_TRY(end_prompt(p, (int64_t)i, err));
    }

cleanup:
    json_decref(list);
    return st;
}

/* Conversations are read as accrue prepare reads them: "from" and "value" or "role" and "content";
 * a role that is none of these is an answering model's. */
static const char *asking_role(const char *role)
{
    static const char *const names[][2] = {
        {"human", "user"}, {"user", "user"}, {"system", "system"}, {"tool", "tool"}};

    for (int i = 0; i < ACR_COUNT(names); i++)
        if (strcmp(role, names[i][0]) == 0)
            return names[i][1];
    return NULL;
}

/* *role is NULL where the message is an answer. */
static accrue_status read_message(acr_message *out, const json_t *m, const char *place, size_t i,
                                  accrue_error *err)
{
    const char *role = json_string_value(json_object_get(m, "from"));
    const json_t *content = json_object_get(m, "value");

    if (!role)
        role = json_string_value(json_object_get(m, "role"));
    if (!json_string_length(content))
        content = json_object_get(m, "content");
    if (!role)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: message %zu has no 'role' and no 'from'", place,
                        i);
    if (content && !json_is_string(content) && !json_is_null(content))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: message %zu: its content is no text", place, i);
    out->role = asking_role(role);
    out->content = json_is_string(content) ? json_string_value(content) : "";
    return ACCRUE_OK;
}

/* A conversation up to its first answer. */
static accrue_status add_conversation(acr_prompts *p, const speech *s, const json_t *list,
                                      const char *place, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t most = json_array_size(list);
    acr_message *messages = NULL;
    int n = 0;

    if (most > MAX_MESSAGES)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %zu messages, at most %d expected", place, most,
                        MAX_MESSAGES);
    messages = acr_calloc(most + 1, sizeof *messages);
    if (!messages)
        return acr_enomem(err, most * sizeof *messages, "a conversation");
    for (size_t i = 0; i < most; i++) {
        ACR_TRY(read_message(&messages[n], json_array_get(list, i), place, i, err));
        if (!messages[n].role)
            break;
        n++;
    }
    if (n)
        ACR_TRY(add_messages(p, s, messages, n, place, err));

cleanup:
    acr_free(messages);
    return st;
}

static const json_t *filled(const json_t *line, const char *key)
{
    const json_t *v = json_object_get(line, key);

    return json_string_length(v) || json_array_size(v) ? v : NULL;
}

static accrue_status add_line(acr_prompts *p, const speech *s, const char *text, size_t bytes,
                              const char *place, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *line = NULL;
    const json_t *list = NULL;

    ACR_TRY(acr_json_parse(&line, text, bytes, place, err));
    list = filled(line, "conversations");
    list = list ? list : filled(line, "messages");
    list = list ? list : filled(line, "prompt");
    if (json_is_string(list)) {
        const acr_message m = {.role = "user", .content = json_string_value(list)};
        ACR_TRY(add_messages(p, s, &m, 1, place, err));
    } else if (json_is_array(list)) {
        ACR_TRY(add_conversation(p, s, list, place, err));
    } else {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: none of 'conversations', 'messages', 'prompt'",
                      place);
    }

cleanup:
    json_decref(line);
    return st;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_blank(const char *s, size_t n)
{
    while (n && is_space(s[n - 1]))
        n--;
    return n == 0;
}

/* Lines count from 1 in messages, prompts from 0, blank lines not at all. */
static accrue_status read_lines(acr_prompts *p, const char *path, const acr_map *map,
                                const speech *s, int64_t limit, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *at = (const char *)map->data, *end = at + map->bytes;
    int64_t row = 0;

    for (int64_t line = 1; at < end && (!limit || p->n < limit); line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t bytes = (size_t)((stop ? stop : end) - at);
        char place[PATH_MAX + 32];
        snprintf(place, sizeof place, "%s: line %lld", path, (long long)line);
        if (!is_blank(at, bytes)) {
            ACR_TRY(add_line(p, s, at, bytes, place, err));
            ACR_TRY(end_prompt(p, row++, err));
        }
        at += bytes + 1;
    }

cleanup:
    return st;
}

static accrue_status read_text(acr_prompts *p, const char *path, const char *verifier,
                               int64_t limit, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    speech s = {0};
    acr_map map = {0};
    size_t first = 0;

    ACR_TRY(acr_map_open(&map, path, err));
    while (first < map.bytes && is_space((char)map.data[first]))
        first++;
    ACR_TRY(open_speech(&s, verifier, err));
    if (first < map.bytes && map.data[first] == '[')
        ACR_TRY(read_strings(p, path, &s, limit, err));
    else
        ACR_TRY(read_lines(p, path, &map, &s, limit, err));

cleanup:
    acr_map_close(&map);
    acr_chat_free(&s.chat);
    acr_tokenizer_free(s.tokenizer);
    return st;
}

accrue_status acr_prompts_read(acr_prompts *out, const char *path, const char *verifier,
                               int64_t limit, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_prompts p = {0};

    memset(out, 0, sizeof *out);
    ACR_TRY(acr_ids_add(&p.begin, 0, err));
    if (acr_is_dir(path))
        ACR_TRY(read_rows(&p, path, limit, err));
    else
        ACR_TRY(read_text(&p, path, verifier, limit, err));
    if (!p.n) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: 0 prompts, at least 1 expected", path);
        goto cleanup;
    }
    *out = p;
    memset(&p, 0, sizeof p);

cleanup:
    acr_prompts_free(&p);
    return st;
}

void acr_prompts_free(acr_prompts *p)
{
    acr_ids_free(&p->ids);
    acr_ids_free(&p->begin);
    acr_ids_free(&p->row);
    p->n = 0;
}
