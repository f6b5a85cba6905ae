/* line_rows.c - the rows of one line: tokens with their mask as they are, the answers of a
 * conversation, or a text.
 *
 * A conversation gives a row for each answer: all that was said up to it, as the verifier will see
 * it when it is asked for that answer, and only the answer supervised. */
#include "convert/prepare_parts.h"

#include <stdio.h>
#include <string.h>

enum { BRIEF = 60 /* bytes of a value in a message */ };

typedef struct work {
    acr_line_rows *out;
    const acr_row_maker *maker;
    const char *name;
    const acr_message *messages;
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
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= limit) {
            char is[BRIEF];
            acr_json_brief(is, sizeof is, v);
            return acr_fail(err, ACCRUE_EFORMAT,
                            "%s: %s[%zu] is %s, an integer from 0 to %lld expected", name, key, i,
                            is, (long long)limit - 1);
        }
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

/* What a template has no form for. */
static accrue_status check_tools(const work *w, const acr_conversation *c, accrue_error *err)
{
    if (w->maker->chat->any_role)
        return ACCRUE_OK;
    if (c->has_tools)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: it has tools, which are not supported with this chat template",
                        w->name);
    if (c->calls_tool >= 0)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: message %d calls a tool, which is not supported with this chat "
                        "template",
                        w->name, c->calls_tool);
    return ACCRUE_OK;
}

static accrue_status take_conversation(work *w, const acr_conversation *c, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_error why = {0};

    if (!w->maker->chat)
        return need_tokenizer(w->maker, err);
    ACR_TRY(check_tools(w, c, err));
    w->messages = c->messages;
    w->n = c->n;
    w->out->unknown_roles = c->unknown_roles;
    memcpy(w->out->unknown_role, c->unknown_role, sizeof c->unknown_role);
    st = take_answers(w, &why);
    if (st && strncmp(why.message, w->name, strlen(w->name)) != 0)
        acr_fail(err, st, "%s: %s", w->name, why.message);
    else if (st)
        acr_fail(err, st, "%s", why.message);

cleanup:
    return st;
}

static accrue_status take_row(work *w, const json_t *row, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *ids = json_object_get(row, "input_ids");
    const json_t *mask = json_object_get(row, "loss_mask");
    const json_t *text = json_object_get(row, "text");
    acr_conversation c = {0};

    if (!json_is_object(row))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: no JSON object", w->name);
    if (json_is_array(ids) && json_is_array(mask))
        return take_tokens(w, ids, mask, err);
    ACR_TRY(acr_conversation_read(&c, row, w->name, err));
    if (c.messages)
        ACR_TRY(take_conversation(w, &c, err));
    else if (json_string_length(text))
        ACR_TRY(take_text(w, text, err));
    else
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: none of 'conversations', 'messages', 'prompt', 'text', or 'input_ids' "
                      "with 'loss_mask'",
                      w->name);

cleanup:
    acr_conversation_free(&c);
    return st;
}

accrue_status acr_line_rows_make(acr_line_rows *out, const acr_row_maker *maker, const char *text,
                                 size_t bytes, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    work w = {.out = out, .maker = maker, .name = name};
    json_t *row = NULL;

    out->n = out->n_tokens = 0;
    out->cut = out->unsupervised = out->too_short = out->unknown_roles = 0;
    out->unanswered = false;
    ACR_TRY(acr_line_parse(&row, text, bytes, name, err));
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
