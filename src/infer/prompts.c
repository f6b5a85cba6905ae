/* prompts.c - what accrue eval answers: prompts as ids, from a data set, or from text by way of the
 * verifier's tokenizer and chat format. */
#include "infer/infer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PROMPTS = 1 << 28 }; /* bytes of a file */

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

/* The text of a message; NULL: none.  Names are those of accrue prepare's conversations. */
static const char *first_string(const json_t *message, const char *one, const char *other)
{
    const char *s = json_string_value(json_object_get(message, one));

    return s ? s : json_string_value(json_object_get(message, other));
}

static bool is_answer(const char *role)
{
    return strcmp(role, "assistant") == 0 || strcmp(role, "gpt") == 0;
}

/* A conversation up to its first answer. */
static accrue_status add_conversation(acr_prompts *p, const speech *s, const json_t *list,
                                      const char *place, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t n = json_array_size(list);
    acr_message *messages = acr_calloc(n + 1, sizeof *messages);
    int n_messages = 0;

    if (!messages)
        return acr_enomem(err, n * sizeof *messages, "a conversation");
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(list, i);
        const char *role = first_string(m, "role", "from");
        const char *content = first_string(m, "content", "value");
        if (!role || !content) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: message %zu has no %s", place, i,
                          role ? "content or value" : "role or from");
            goto cleanup;
        }
        if (is_answer(role))
            break;
        messages[n_messages].role = strcmp(role, "human") == 0 ? "user" : role;
        messages[n_messages++].content = content;
    }
    if (n_messages)
        ACR_TRY(add_messages(p, s, messages, n_messages, place, err));

cleanup:
    acr_free(messages);
    return st;
}

static accrue_status add_line(acr_prompts *p, const speech *s, const char *text, size_t bytes,
                              const char *place, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *line = NULL;
    const json_t *list = NULL;

    ACR_TRY(acr_json_parse(&line, text, bytes, place, err));
    list = json_object_get(line, "conversations");
    if (!json_is_array(list))
        list = json_object_get(line, "messages");
    if (!json_is_array(list)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: neither messages nor conversations", place);
        goto cleanup;
    }
    ACR_TRY(add_conversation(p, s, list, place, err));

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
