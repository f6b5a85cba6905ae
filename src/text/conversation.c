/* conversation.c - the messages of a row, whatever form they are in. */
#include "text/text.h"

#include <string.h>

enum { MAX_LINE = 256 << 20, MAX_MESSAGES = 1 << 16 };

accrue_status acr_line_parse(json_t **out, const char *text, size_t bytes, const char *name,
                             accrue_error *err)
{
    json_error_t e;
    bool no_memory = false;

    *out = NULL;
    if (bytes > MAX_LINE)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %zu bytes, at most %d", name, bytes, MAX_LINE);
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (*out)
        return ACCRUE_OK;
    no_memory = json_error_code(&e) == json_error_out_of_memory;
    return acr_fail(err, no_memory ? ACCRUE_ENOMEM : ACCRUE_EFORMAT, "%s: column %d: %s", name,
                    e.column, e.text);
}

static const json_t *filled(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);

    return json_string_length(v) || json_array_size(v) || json_object_size(v) ? v : NULL;
}

/* The role by the name that templates know; any other is a model's, as in answers that were
 * gathered from several. */
static const char *proper_role(acr_conversation *c, const char *role)
{
    static const char *const names[][2] = {
        {"human", "user"},          {"user", "user"}, {"gpt", "assistant"},
        {"assistant", "assistant"}, {"tool", "tool"}, {"system", "system"},
    };

    for (int i = 0; i < ACR_COUNT(names); i++)
        if (strcmp(role, names[i][0]) == 0)
            return names[i][1];
    if (!c->unknown_roles++)
        acr_text(c->unknown_role, sizeof c->unknown_role, role);
    return "assistant";
}

static accrue_status take_message(acr_conversation *c, const json_t *turn, const char *name,
                                  accrue_error *err)
{
    const json_t *role = json_object_get(turn, "from"), *content = filled(turn, "value");
    const json_t *reasoning = filled(turn, "thinking");

    if (!json_is_string(role))
        role = json_object_get(turn, "role");
    if (!content)
        content = json_object_get(turn, "content");
    if (!reasoning)
        reasoning = filled(turn, "reasoning_content");
    if (!json_is_string(role))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: message %d has no 'role' and no 'from'", name,
                        c->n);
    if (content && !json_is_string(content) && !json_is_null(content))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: message %d: its content is no text", name, c->n);
    if (filled(turn, "tool_calls") && c->calls_tool < 0)
        c->calls_tool = c->n;
    c->messages[c->n++] =
        (acr_message){.role = proper_role(c, json_string_value(role)),
                      .content = json_is_string(content) ? json_string_value(content) : "",
                      .reasoning = json_string_value(reasoning)};
    return ACCRUE_OK;
}

static accrue_status take_messages(acr_conversation *c, const json_t *list, const char *name,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *turn = NULL;
    size_t i = 0;

    if (json_array_size(list) + (size_t)c->n > MAX_MESSAGES - 2)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %zu messages, at most %d", name,
                        json_array_size(list), MAX_MESSAGES - 2);
    json_array_foreach(list, i, turn) ACR_TRY(take_message(c, turn, name, err));

cleanup:
    return st;
}

/* A text is one message, of that role. */
static accrue_status take_either(acr_conversation *c, const json_t *v, const char *role,
                                 const char *name, accrue_error *err)
{
    if (!json_is_string(v))
        return take_messages(c, v, name, err);
    c->messages[c->n++] = (acr_message){.role = role, .content = json_string_value(v)};
    return ACCRUE_OK;
}

accrue_status acr_conversation_read(acr_conversation *out, const json_t *row, const char *name,
                                    accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *list = filled(row, "conversations"), *prompt = filled(row, "prompt");
    const json_t *answer = filled(row, "completion");
    size_t room = 0;

    memset(out, 0, sizeof *out);
    out->calls_tool = -1;
    if (!list)
        list = filled(row, "messages");
    if (!answer)
        answer = filled(row, "response");
    if (!json_is_array(list) && !json_is_array(prompt) && !json_is_string(prompt))
        return ACCRUE_OK;
    room = json_array_size(list) + json_array_size(prompt) + json_array_size(answer) + 2;
    out->messages = acr_calloc(room, sizeof *out->messages);
    if (!out->messages)
        return acr_enomem(err, room * sizeof *out->messages, "a conversation");
    out->has_tools = filled(row, "tools");
    if (json_is_array(list)) {
        ACR_TRY(take_messages(out, list, name, err));
    } else {
        ACR_TRY(take_either(out, prompt, "user", name, err));
        ACR_TRY(take_either(out, answer, "assistant", name, err));
    }

cleanup:
    if (st)
        acr_conversation_free(out);
    return st;
}

void acr_conversation_free(acr_conversation *c)
{
    acr_free(c->messages);
    memset(c, 0, sizeof *c);
}
