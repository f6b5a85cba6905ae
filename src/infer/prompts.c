/* prompts.c - what accrue eval answers: prompts as ids, from a data set, or from text by way of the
 * verifier's tokenizer and chat format. */
#include "infer/infer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PROMPTS = 1 << 28 }; /* bytes of a list of texts */

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

static accrue_status read_strings(acr_prompts *p, const acr_lines *l, const speech *s,
                                  int64_t limit, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t mark = acr_mark_bytes(l->map.data, l->map.bytes), n = l->map.bytes - mark;
    json_t *list = NULL;

    if (n > MAX_PROMPTS)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %zu bytes, at most %d expected", l->path, n,
                        MAX_PROMPTS);
    ACR_TRY(acr_json_parse(&list, (const char *)l->map.data + mark, n, l->path, err));
    for (size_t i = 0; i < json_array_size(list) && (!limit || p->n < limit); i++) {
        const acr_message m = {.role = "user",
                               .content = json_string_value(json_array_get(list, i))};
        char place[PATH_MAX + 32];
        snprintf(place, sizeof place, "%s: prompt %zu", l->path, i);
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

/* What is said up to the first answer; nothing where an answer is first. */
static accrue_status add_line(acr_prompts *p, const speech *s, const char *text, size_t bytes,
                              const char *place, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_conversation c = {0};
    json_t *line = NULL;
    int n = 0;

    ACR_TRY(acr_line_parse(&line, text, bytes, place, err));
    ACR_TRY(acr_conversation_read(&c, line, place, err));
    if (!c.messages) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: none of 'conversations', 'messages', 'prompt'",
                      place);
        goto cleanup;
    }
    while (n < c.n && strcmp(c.messages[n].role, "assistant") != 0)
        n++;
    if (n)
        ACR_TRY(add_messages(p, s, c.messages, n, place, err));

cleanup:
    acr_conversation_free(&c);
    json_decref(line);
    return st;
}

/* Lines count from 1 in messages, prompts from 0, blank lines not at all. */
static accrue_status read_lines(acr_prompts *p, const acr_lines *l, const speech *s, int64_t limit,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int64_t i = 0; i < l->n && (!limit || p->n < limit); i++) {
        char place[PATH_MAX + 32];
        size_t bytes = 0;
        const char *text = acr_lines_text(l, i, &bytes);
        snprintf(place, sizeof place, "%s: line %lld", l->path, (long long)l->at[i].number);
        ACR_TRY(add_line(p, s, text, bytes, place, err));
        ACR_TRY(end_prompt(p, i, err));
    }

cleanup:
    return st;
}

/* A line of a conversation is an object, so that a file that begins with a list is one of texts. */
static bool is_list(const acr_lines *l)
{
    size_t bytes = 0;
    const char *text = l->n ? acr_lines_text(l, 0, &bytes) : NULL;

    while (bytes && (*text == ' ' || *text == '\t' || *text == '\r')) {
        text++;
        bytes--;
    }
    return bytes && *text == '[';
}

static accrue_status read_text(acr_prompts *p, const char *path, const char *verifier,
                               int64_t limit, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    speech s = {0};
    acr_lines lines = {0};

    ACR_TRY(acr_lines_open(&lines, path, err));
    ACR_TRY(open_speech(&s, verifier, err));
    if (is_list(&lines))
        ACR_TRY(read_strings(p, &lines, &s, limit, err));
    else
        ACR_TRY(read_lines(p, &lines, &s, limit, err));

cleanup:
    acr_lines_close(&lines);
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
