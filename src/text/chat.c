/* chat.c - conversations as token ids, in the formats that template.c tells apart.
 *
 * Between two control tokens the text of a template and of a message is one text, whose ids are
 * found together: "assistant\n" before an answer that begins with a line's end is other tokens than
 * alone.  Control tokens are put in as ids, so that no message can make one. */
#include "text/template.h"
#include "text/utf8.h"

#include <string.h>

enum { MAX_TEMPLATE = 1 << 20, MAX_CONFIG = 64 << 20 };

static const char think[] = "<think>", think_end[] = "</think>";

/* Output ------------------------------------------------------------------------------------ */

typedef struct writing {
    acr_ids *ids, *mask;
    const acr_tokenizer *t;
    acr_buffer text; /* since the last control token */
    size_t header;   /* of `text`, bytes that are the header's, not the assistant's own */
    bool supervised; /* what comes is the assistant's */
    acr_ids alone;   /* of the header by itself */
} writing;

static accrue_status put_text(writing *w, const char *text, accrue_error *err)
{
    return acr_buffer_add_text(&w->text, text, err);
}

/* The mask of the ids from `first` on, of which the first `header` are not the assistant's. */
static accrue_status put_mask(writing *w, int64_t first, int64_t header, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int64_t i = first; w->mask && i < w->ids->n; i++)
        ACR_TRY(acr_ids_add(w->mask, w->supervised && i - first >= header, err));

cleanup:
    return st;
}

/* Where a header and an answer share a token, the answer begins with it: at the first id that the
 * header alone does not have. */
static accrue_status put_ids(writing *w, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t first = w->ids->n, shared = 0;

    if (!w->text.n)
        return ACCRUE_OK;
    ACR_TRY(acr_tokenizer_encode(w->ids, w->t, w->text.at, w->text.n, false, err));
    if (w->supervised && w->header) {
        w->alone.n = 0;
        ACR_TRY(acr_tokenizer_encode(&w->alone, w->t, w->text.at, w->header, false, err));
        while (shared < w->alone.n && first + shared < w->ids->n &&
               w->alone.at[shared] == w->ids->at[first + shared])
            shared++;
    }
    ACR_TRY(put_mask(w, first, shared, err));
    w->text.n = w->header = 0;

cleanup:
    return st;
}

static accrue_status put_token(writing *w, int64_t id, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t first = 0;

    ACR_TRY(put_ids(w, err));
    first = w->ids->n;
    ACR_TRY(acr_ids_add(w->ids, id, err));
    ACR_TRY(put_mask(w, first, 0, err));

cleanup:
    return st;
}

/* Content ----------------------------------------------------------------------------------- */

typedef struct span {
    const char *at;
    size_t n;
} span;

/* Bytes of the white space, as Python's str.strip has it, that `s` begins with; 0: none. */
static size_t white(const char *s, size_t n)
{
    bool valid = false;
    size_t bytes = n ? acr_utf8_step(s, n, &valid) : 0;
    const int32_t c = valid ? acr_utf8_at(s, &bytes) : 0;

    return acr_is_space(c) || (c >= 0x1c && c <= 0x1f) ? bytes : 0;
}

static span trim(const char *text)
{
    span s = {text, strlen(text)};
    size_t k = 0;

    while ((k = white(s.at, s.n))) {
        s.at += k;
        s.n -= k;
    }
    for (bool more = true; more && s.n;) {
        more = false;
        for (k = 1; k <= 3 && k <= s.n && !more; k++)
            if (white(s.at + s.n - k, k) == k) {
                s.n -= k;
                more = true;
            }
    }
    return s;
}

static span strip_lines(span s, bool left, bool right)
{
    for (; left && s.n && *s.at == '\n'; s.n--)
        s.at++;
    while (right && s.n && s.at[s.n - 1] == '\n')
        s.n--;
    return s;
}

/* The last place of `word` in `s`, which begins with the text `from`; NULL: none. */
static const char *last_of(span s, const char *word)
{
    const char *found = NULL;

    for (size_t i = 0, n = strlen(word); i + n <= s.n; i++)
        if (memcmp(s.at + i, word, n) == 0)
            found = s.at + i;
    return found;
}

/* What an answer thought and what it said, as Qwen3's template takes them apart. */
static void part_thoughts(span *thoughts, span *said, const acr_message *m)
{
    const char *first = strstr(m->content, think_end), *begin = NULL;
    span whole = {m->content, strlen(m->content)};

    *said = whole;
    *thoughts = (span){"", 0};
    if (m->reasoning) {
        *thoughts = (span){m->reasoning, strlen(m->reasoning)};
        return;
    }
    if (!first)
        return;
    said->at = last_of(whole, think_end) + strlen(think_end);
    said->n = whole.n - (size_t)(said->at - whole.at);
    *said = strip_lines(*said, true, false);
    *thoughts = strip_lines((span){whole.at, (size_t)(first - whole.at)}, false, true);
    begin = last_of(*thoughts, think);
    if (begin) {
        begin += strlen(think);
        *thoughts = (span){begin, thoughts->n - (size_t)(begin - thoughts->at)};
    }
    *thoughts = strip_lines(*thoughts, true, false);
}

/* Messages ---------------------------------------------------------------------------------- */

static bool has_role(const acr_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

static accrue_status begin_message(writing *w, const acr_chat *c, const char *role,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(put_token(w, c->begin, err));
    ACR_TRY(put_text(w, role, err));
    if (c->format == ACR_CHAT_CHATML) {
        ACR_TRY(put_text(w, "\n", err));
    } else {
        ACR_TRY(put_token(w, c->header_end, err));
        ACR_TRY(put_text(w, "\n\n", err));
    }
    w->header = w->text.n;

cleanup:
    return st;
}

static accrue_status end_message(writing *w, const acr_chat *c, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(put_token(w, c->end, err));
    if (c->format == ACR_CHAT_CHATML)
        ACR_TRY(put_text(w, "\n", err));
    ACR_TRY(put_ids(w, err));
    w->supervised = false;

cleanup:
    return st;
}

static accrue_status put_message(writing *w, const acr_chat *c, const char *role,
                                 const char *preface, const char *content, bool supervised,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    span s = {content, strlen(content)};

    if (c->format == ACR_CHAT_LLAMA3)
        s = trim(content);
    ACR_TRY(begin_message(w, c, role, err));
    w->supervised = supervised;
    ACR_TRY(put_text(w, preface, err));
    ACR_TRY(acr_buffer_add(&w->text, s.at, s.n, err));
    ACR_TRY(end_message(w, c, err));

cleanup:
    return st;
}

/* Qwen3's: thoughts are shown in answers to the last question alone, where there are any, and in
 * the very last one in any case. */
static accrue_status put_thoughtful(writing *w, const acr_chat *c, const acr_message *m,
                                    bool after_question, bool last, bool supervised,
                                    accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    span thoughts = {0}, said = {0};

    part_thoughts(&thoughts, &said, m);
    ACR_TRY(begin_message(w, c, m->role, err));
    w->supervised = supervised;
    if (after_question && (last || thoughts.n)) {
        thoughts = strip_lines(thoughts, true, true);
        said = strip_lines(said, true, false);
        ACR_TRY(put_token(w, c->think, err));
        ACR_TRY(put_text(w, "\n", err));
        ACR_TRY(acr_buffer_add(&w->text, thoughts.at, thoughts.n, err));
        ACR_TRY(put_text(w, "\n", err));
        ACR_TRY(put_token(w, c->think_end, err));
        ACR_TRY(put_text(w, "\n\n", err));
    }
    ACR_TRY(acr_buffer_add(&w->text, said.at, said.n, err));
    ACR_TRY(end_message(w, c, err));

cleanup:
    return st;
}

static accrue_status check_message(const acr_chat *c, const acr_message *m, int i,
                                   accrue_error *err)
{
    if (has_role(m, "tool")
            ? c->any_role
            : has_role(m, "system") || has_role(m, "user") || has_role(m, "assistant"))
        return ACCRUE_OK;
    return acr_fail(err, ACCRUE_EMISMATCH,
                    "message %d: the role '%s', which is not supported with this chat template", i,
                    m->role);
}

static bool is_tool_response(const char *s)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    size_t n = strlen(s);

    return n >= strlen(close) && strncmp(s, open, strlen(open)) == 0 &&
           strcmp(s + n - strlen(close), close) == 0;
}

/* The user's last message that is no tool's; the last message where there is none. */
static int last_question(const acr_message *messages, int n)
{
    int i = n - 1;

    while (i >= 0 && !(has_role(&messages[i], "user") && !is_tool_response(messages[i].content)))
        i--;
    return i < 0 ? n - 1 : i;
}

static accrue_status put_messages(writing *w, const acr_chat *c, const acr_message *messages, int n,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool has_system = n > 0 && has_role(&messages[0], "system");
    int question = last_question(messages, n);

    if (c->bos >= 0)
        ACR_TRY(put_token(w, c->bos, err));
    if (!has_system && (c->default_system || c->preface))
        ACR_TRY(put_message(w, c, "system", c->preface ? c->preface : "",
                            c->default_system ? c->default_system : "", false, err));
    for (int i = 0; i < n; i++) {
        const acr_message *m = &messages[i];
        bool answers = has_role(m, "assistant");
        ACR_TRY(check_message(c, m, i, err));
        if (c->thinks && answers)
            ACR_TRY(put_thoughtful(w, c, m, i > question, i == n - 1, i > 0, err));
        else
            ACR_TRY(put_message(w, c, m->role, i == 0 && has_system && c->preface ? c->preface : "",
                                m->content, answers && i > 0, err));
    }

cleanup:
    return st;
}

accrue_status acr_chat_encode(acr_ids *ids, acr_ids *mask, const acr_chat *c,
                              const acr_tokenizer *t, const acr_message *messages, int n,
                              bool generation_prompt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    writing w = {.ids = ids, .mask = mask, .t = t};

    if (n < 1)
        return acr_fail(err, ACCRUE_EMISMATCH, "a conversation without a message");
    ACR_TRY(put_messages(&w, c, messages, n, err));
    if (generation_prompt) {
        ACR_TRY(begin_message(&w, c, "assistant", err));
        ACR_TRY(put_ids(&w, err));
    }

cleanup:
    acr_buffer_free(&w.text);
    acr_ids_free(&w.alone);
    return st;
}

/* Opening ----------------------------------------------------------------------------------- */

static accrue_status find_token(int64_t *out, const char *token, const char *name,
                                const acr_tokenizer *t, accrue_error *err)
{
    *out = acr_tokenizer_id(t, token);
    if (*out < 0)
        return acr_fail(err, ACCRUE_ENOTSUP,
                        "%s: the chat template uses the token '%s', which tokenizer.json lacks",
                        name, token);
    return ACCRUE_OK;
}

accrue_status acr_chat_create(acr_chat *out, const char *template, size_t bytes, const char *name,
                              int64_t bos, const acr_tokenizer *t, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_template read = {0};
    acr_chat c = {.bos = -1, .header_end = -1, .think = -1, .think_end = -1};
    bool llama = false;

    memset(out, 0, sizeof *out);
    ACR_TRY(acr_template_read(&read, template, bytes, name, err));
    llama = read.format == ACR_CHAT_LLAMA3;
    c.format = read.format;
    c.thinks = read.thinks;
    c.any_role = read.any_role;
    ACR_TRY(find_token(&c.begin, llama ? "<|start_header_id|>" : "<|im_start|>", name, t, err));
    ACR_TRY(find_token(&c.end, llama ? "<|eot_id|>" : "<|im_end|>", name, t, err));
    if (llama)
        ACR_TRY(find_token(&c.header_end, "<|end_header_id|>", name, t, err));
    if (c.thinks) {
        ACR_TRY(find_token(&c.think, think, name, t, err));
        ACR_TRY(find_token(&c.think_end, think_end, name, t, err));
    }
    if (read.uses_bos && bos < 0) {
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: the chat template begins with the bos token, and no bos_token of "
                      "tokenizer_config.json is in tokenizer.json",
                      name);
        goto cleanup;
    }
    c.bos = read.uses_bos ? bos : -1;
    c.default_system = read.default_system;
    c.preface = read.preface;
    read.default_system = read.preface = NULL;
    *out = c;

cleanup:
    acr_free(read.default_system);
    acr_free(read.preface);
    return st;
}

/* A token of tokenizer_config.json: its text, or an object that holds it. */
static const char *token_text(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);

    return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
}

/* The template of tokenizer_config.json: a string, or the one called "default" of several. */
static const json_t *config_template(const json_t *config)
{
    const json_t *v = json_object_get(config, "chat_template"), *named = NULL;
    size_t i = 0;

    if (!json_is_array(v))
        return v;
    json_array_foreach(v, i, named)
    {
        const char *name = json_string_value(json_object_get(named, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_object_get(named, "template");
    }
    return NULL;
}

/* tokenizer_config.json, where it is there.  Its integers are read as reals, because many have a
 * model_max_length of 10^30. */
static accrue_status load_config(json_t **out, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_map map = {0};
    json_error_t e;

    if (!acr_exists(path))
        return ACCRUE_OK;
    ACR_TRY(acr_map_open(&map, path, err));
    if (map.bytes > MAX_CONFIG) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: %zu bytes, at most %d expected", path, map.bytes,
                      MAX_CONFIG);
        goto cleanup;
    }
    *out = json_loadb(map.data ? (const char *)map.data : "", map.bytes,
                      JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &e);
    if (!*out)
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: line %d column %d: %s", path, e.line, e.column,
                      e.text);

cleanup:
    acr_map_close(&map);
    return st;
}

accrue_status acr_chat_open(acr_chat *out, const char *dir, const acr_tokenizer *t,
                            accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *file = acr_sprintf("%s/chat_template.jinja", dir);
    char *config_file = acr_sprintf("%s/tokenizer_config.json", dir);
    acr_map map = {0};
    json_t *config = NULL;
    const json_t *template = NULL;
    const char *bos = NULL;

    memset(out, 0, sizeof *out);
    if (!file || !config_file) {
        st = acr_enomem(err, strlen(dir), "a path");
        goto cleanup;
    }
    ACR_TRY(load_config(&config, config_file, err));
    bos = token_text(config, "bos_token");
    template = config_template(config);
    if (acr_exists(file)) {
        ACR_TRY(acr_map_open(&map, file, err));
        if (map.bytes > MAX_TEMPLATE)
            st = acr_fail(err, ACCRUE_ENOTSUP, "%s: a chat template of %zu bytes, at most %d", file,
                          map.bytes, MAX_TEMPLATE);
        else
            st = acr_chat_create(out, map.data ? (const char *)map.data : "", map.bytes, file,
                                 bos ? acr_tokenizer_id(t, bos) : -1, t, err);
    } else if (json_is_string(template)) {
        st = acr_chat_create(out, json_string_value(template), json_string_length(template),
                             config_file, bos ? acr_tokenizer_id(t, bos) : -1, t, err);
    } else {
        st = acr_fail(err, ACCRUE_ENOTSUP,
                      "%s: no chat template, neither chat_template.jinja nor one in "
                      "tokenizer_config.json",
                      dir);
    }

cleanup:
    acr_free(file);
    acr_free(config_file);
    acr_map_close(&map);
    json_decref(config);
    return st;
}

void acr_chat_free(acr_chat *c)
{
    acr_free(c->default_system);
    acr_free(c->preface);
    memset(c, 0, sizeof *c);
}
