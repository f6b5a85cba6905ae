/* line_rows.c - the rows of one line: tokens with their mask as they are, the answers of a
 * conversation, or a text.
 *
 * A conversation gives a row for each answer: all that was said up to it, as the verifier will see
 * it when it is asked for that answer, and only the answer supervised. */
#include "convert/prepare_parts.h"

#include <stdio.h>
#include <string.h>

enum { MAX_LINE = 256 << 20, MAX_MESSAGES = 1 << 16 };

typedef struct work {
    acr_line_rows *out;
    const acr_row_maker *maker;
    const char *name;
    acr_message *messages; /* strings are the line's object's */
    int n;
} work;

/* Rows -------------------------------------------------------------------------------------- */

static accrue_status reserve(acr_line_rows *r, int64_t tokens, accrue_error *err)
{
    if (r->n_tokens + tokens > r->token_capacity) {
        int64_t more = 2 * (r->n_tokens + tokens);
        uint32_t *moved = acr_realloc(r->tokens, (size_t)more * sizeof *moved);
        if (!moved)
            return acr_enomem(err, (size_t)more * sizeof *moved, "rows");
        r->tokens = moved;
        r->token_capacity = more;
    }
    if (r->n == r->row_capacity) {
        int64_t more = r->row_capacity ? 2 * r->row_capacity : 4;
        int64_t *moved = acr_realloc(r->lengths, (size_t)more * sizeof *moved);
        if (!moved)
            return acr_enomem(err, (size_t)more * sizeof *moved, "rows");
        r->lengths = moved;
        r->row_capacity = more;
    }
    return ACCRUE_OK;
}

/* Adds the row of r->ids and r->mask, cut to its length, where there is enough in it to learn. */
static accrue_status add_row(const work *w, bool may_be_cut, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_line_rows *r = w->out;
    int64_t n = r->ids.n < w->maker->seq_length ? r->ids.n : w->maker->seq_length;
    int64_t supervised = 0;

    for (int64_t i = 0; i < n; i++)
        supervised += r->mask.at[i];
    r->unsupervised += supervised == 0;
    if (supervised == 0)
        return ACCRUE_OK;
    r->too_short += supervised < w->maker->minimum_valid_tokens;
    if (supervised < w->maker->minimum_valid_tokens)
        return ACCRUE_OK;
    ACR_TRY(reserve(r, n, err));
    for (int64_t i = 0; i < n; i++) {
        if (r->ids.at[i] < 0 || r->ids.at[i] >= w->maker->vocab_size)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: token %lld is %lld, outside the vocabulary of %lld", w->name,
                            (long long)i, (long long)r->ids.at[i], (long long)w->maker->vocab_size);
        r->tokens[r->n_tokens++] = (uint32_t)r->ids.at[i] | (r->mask.at[i] ? ACR_SUPERVISED : 0);
    }
    r->lengths[r->n++] = n;
    r->cut += may_be_cut;

cleanup:
    return st;
}

/* Tokens ------------------------------------------------------------------------------------ */

static accrue_status take_integers(acr_ids *out, const json_t *list, const char *key, int64_t limit,
                                   const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *v = NULL;
    size_t i = 0;

    out->n = 0;
    json_array_foreach(list, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= limit)
            return acr_fail(err, ACCRUE_EFORMAT, "%s: %s %zu is no integer from 0 to %lld", name,
                            key, i, (long long)limit - 1);
        ACR_TRY(acr_ids_add(out, json_integer_value(v), err));
    }

cleanup:
    return st;
}

static accrue_status take_tokens(const work *w, const json_t *ids, const json_t *mask,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (json_array_size(ids) != json_array_size(mask))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %zu input_ids, but %zu in loss_mask", w->name,
                        json_array_size(ids), json_array_size(mask));
    ACR_TRY(take_integers(&w->out->ids, ids, "input_ids", w->maker->vocab_size, w->name, err));
    ACR_TRY(take_integers(&w->out->mask, mask, "loss_mask", 2, w->name, err));
    ACR_TRY(add_row(w, w->out->ids.n > w->maker->seq_length, err));

cleanup:
    return st;
}

static accrue_status need_tokenizer(const acr_row_maker *m, accrue_error *err)
{
    const accrue_error *why = m->tokenizer ? &m->no_chat : &m->no_tokenizer;

    return acr_fail(err, why->status, "%s", why->message);
}

static accrue_status take_text(const work *w, const json_t *text, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_line_rows *r = w->out;
    const acr_row_maker *m = w->maker;

    if (!m->tokenizer)
        return need_tokenizer(m, err);
    r->ids.n = r->mask.n = 0;
    if (acr_tokenizer_bos(m->tokenizer) >= 0)
        ACR_TRY(acr_ids_add(&r->ids, acr_tokenizer_bos(m->tokenizer), err));
    ACR_TRY(acr_tokenizer_encode(&r->ids, m->tokenizer, json_string_value(text),
                                 json_string_length(text), false, err));
    for (int64_t i = 0; i < r->ids.n; i++)
        ACR_TRY(acr_ids_add(&r->mask, 1, err));
    ACR_TRY(add_row(w, r->ids.n > m->seq_length, err));

cleanup:
    return st;
}

/* Messages ---------------------------------------------------------------------------------- */

static const json_t *filled(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    return json_string_length(v) || json_array_size(v) || json_object_size(v) ? v : NULL;
}

/* The role by the name that templates know; any other is a model's, as in answers that were
 * gathered from several. */
static const char *proper_role(acr_line_rows *r, const char *role)
{
    static const char *const names[][2] = {
        {"human", "user"},          {"user", "user"}, {"gpt", "assistant"},
        {"assistant", "assistant"}, {"tool", "tool"}, {"system", "system"},
    };

    for (int i = 0; i < ACR_COUNT(names); i++)
        if (strcmp(role, names[i][0]) == 0)
            return names[i][1];
    if (!r->unknown_roles++)
        acr_text(r->unknown_role, sizeof r->unknown_role, role);
    return "assistant";
}

static accrue_status take_message(work *w, const json_t *turn, accrue_error *err)
{
    acr_message *m = &w->messages[w->n];
    const json_t *role = json_object_get(turn, "from"), *content = filled(turn, "value");
    const json_t *reasoning = filled(turn, "thinking");

    if (!json_is_string(role))
        role = json_object_get(turn, "role");
    if (!content)
        content = json_object_get(turn, "content");
    if (!reasoning)
        reasoning = filled(turn, "reasoning_content");
    if (!json_is_string(role))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: message %d has no 'role' and no 'from'", w->name,
                        w->n);
    if (content && !json_is_string(content) && !json_is_null(content))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: message %d: its content is no text", w->name,
                        w->n);
    if (filled(turn, "tool_calls") && w->maker->chat && !w->maker->chat->any_role)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: message %d calls a tool, which is not supported with this chat "
                        "template",
                        w->name, w->n);
    *m = (acr_message){.role = proper_role(w->out, json_string_value(role)),
                       .content = json_is_string(content) ? json_string_value(content) : "",
                       .reasoning = json_string_value(reasoning)};
    w->n++;
    return ACCRUE_OK;
}

static accrue_status take_messages(work *w, const json_t *list, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *turn = NULL;
    size_t i = 0;

    if (json_array_size(list) + (size_t)w->n > MAX_MESSAGES - 2)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %zu messages, at most %d", w->name,
                        json_array_size(list), MAX_MESSAGES - 2);
    json_array_foreach(list, i, turn) ACR_TRY(take_message(w, turn, err));

cleanup:
    return st;
}

static void add_message(work *w, const char *role, const json_t *text)
{
    w->messages[w->n++] = (acr_message){.role = role, .content = json_string_value(text)};
}

/* What a "prompt" asks, and the answer beside it, both as text or as messages. */
static accrue_status take_prompt(work *w, const json_t *row, const json_t *prompt,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *answer = filled(row, "completion");

    if (!answer)
        answer = filled(row, "response");
    if (json_is_string(prompt))
        add_message(w, "user", prompt);
    else
        ACR_TRY(take_messages(w, prompt, err));
    if (json_is_string(answer))
        add_message(w, "assistant", answer);
    else
        ACR_TRY(take_messages(w, answer, err));

cleanup:
    return st;
}

/* Conversations ----------------------------------------------------------------------------- */

static bool begins_with(const acr_ids *ids, const acr_ids *with)
{
    return with->n <= ids->n &&
           (with->n == 0 || memcmp(ids->at, with->at, (size_t)with->n * sizeof *with->at) == 0);
}

static bool is_answer(const acr_message *m)
{
    return strcmp(m->role, "assistant") == 0;
}

/* A template that shows the last answer differently from the ones before makes what was said before
 * an answer another text than the verifier saw.  Only an answer upon an answer can be so. */
static accrue_status check_history(const work *w, int answer, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_line_rows *r = w->out;

    if (!w->maker->chat->thinks || !is_answer(&w->messages[answer - 1]))
        return ACCRUE_OK;
    r->before.n = 0;
    ACR_TRY(acr_chat_encode(&r->before, NULL, w->maker->chat, w->maker->tokenizer, w->messages,
                            answer, false, err));
    if (!begins_with(&r->ids, &r->before))
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "%s: message %d answers upon an answer, which the chat template then shows "
                      "differently",
                      w->name, answer);

cleanup:
    return st;
}

/* Whether nothing of the answer can be in the row: what is before it, with its header, fills it. */
static accrue_status fills_row(bool *out, const work *w, int answer, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_line_rows *r = w->out;
    int64_t begin = r->ids.n, limit = w->maker->seq_length;

    *out = false;
    while (begin > 0 && r->mask.at[begin - 1])
        begin--;
    if (begin + 8 < limit) /* a header shares no more than its last tokens with an answer */
        return ACCRUE_OK;
    r->before.n = 0;
    ACR_TRY(acr_chat_encode(&r->before, NULL, w->maker->chat, w->maker->tokenizer, w->messages,
                            answer, true, err));
    *out = r->before.n >= limit;

cleanup:
    return st;
}

static accrue_status take_answers(const work *w, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_line_rows *r = w->out;
    bool full = false;

    for (int i = 1; i < w->n; i++) {
        if (!is_answer(&w->messages[i]))
            continue;
        r->ids.n = r->mask.n = 0;
        ACR_TRY(acr_chat_encode(&r->ids, &r->mask, w->maker->chat, w->maker->tokenizer, w->messages,
                                i + 1, false, err));
        ACR_TRY(check_history(w, i, err));
        ACR_TRY(fills_row(&full, w, i, err));
        for (int64_t k = r->mask.n, own = 1; k > 0; k--) {
            own &= r->mask.at[k - 1];
            r->mask.at[k - 1] = own;
        }
        if (full)
            r->unsupervised++;
        else
            ACR_TRY(add_row(w, r->ids.n >= w->maker->seq_length, err));
    }
    r->unanswered = r->n == 0;

cleanup:
    return st;
}

static accrue_status take_conversation(work *w, const json_t *row, const json_t *list,
                                       bool is_prompt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_error why = {0};
    size_t room = json_array_size(list) + json_array_size(json_object_get(row, "completion")) +
                  json_array_size(json_object_get(row, "response")) + 2;

    if (!w->maker->chat)
        return need_tokenizer(w->maker, err);
    if (filled(row, "tools") && !w->maker->chat->any_role)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: it has tools, which are not supported with this chat template",
                        w->name);
    w->messages = acr_calloc(room, sizeof *w->messages);
    if (!w->messages)
        return acr_enomem(err, room * sizeof *w->messages, "a conversation");
    if (is_prompt)
        ACR_TRY(take_prompt(w, row, list, err));
    else
        ACR_TRY(take_messages(w, list, err));
    st = take_answers(w, &why);
    if (st && strncmp(why.message, w->name, strlen(w->name)) != 0)
        acr_fail(err, st, "%s: %s", w->name, why.message);
    else if (st)
        acr_fail(err, st, "%s", why.message);

cleanup:
    acr_free(w->messages);
    w->messages = NULL;
    return st;
}

static accrue_status take_row(work *w, const json_t *row, accrue_error *err)
{
    const json_t *ids = json_object_get(row, "input_ids");
    const json_t *mask = json_object_get(row, "loss_mask");
    const json_t *list = filled(row, "conversations"), *prompt = filled(row, "prompt");

    if (!json_is_object(row))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: no JSON object", w->name);
    if (json_is_array(ids) && json_is_array(mask))
        return take_tokens(w, ids, mask, err);
    if (!list)
        list = filled(row, "messages");
    if (json_is_array(list))
        return take_conversation(w, row, list, false, err);
    if (json_is_array(prompt) || json_is_string(prompt))
        return take_conversation(w, row, prompt, true, err);
    if (json_is_string(filled(row, "text")))
        return take_text(w, filled(row, "text"), err);
    return acr_fail(err, ACCRUE_EFORMAT,
                    "%s: none of 'conversations', 'messages', 'prompt', 'text', or 'input_ids' "
                    "with 'loss_mask'",
                    w->name);
}

accrue_status acr_line_rows_make(acr_line_rows *out, const acr_row_maker *maker, const char *text,
                                 size_t bytes, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    work w = {.out = out, .maker = maker, .name = name};
    json_t *row = NULL;
    json_error_t e;

    out->n = out->n_tokens = 0;
    out->cut = out->unsupervised = out->too_short = out->unknown_roles = 0;
    out->unanswered = false;
    if (bytes > MAX_LINE)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %zu bytes, at most %d", name, bytes, MAX_LINE);
    row = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (!row) {
        st = acr_fail(
            err, json_error_code(&e) == json_error_out_of_memory ? ACCRUE_ENOMEM : ACCRUE_EFORMAT,
            "%s: column %d: %s", name, e.column, e.text);
        goto cleanup;
    }
    ACR_TRY(take_row(&w, row, err));

cleanup:
    json_decref(row);
    return st;
}

void acr_line_rows_free(acr_line_rows *r)
{
    acr_free(r->tokens);
    acr_free(r->lengths);
    acr_ids_free(&r->ids);
    acr_ids_free(&r->mask);
    acr_ids_free(&r->before);
    memset(r, 0, sizeof *r);
}
