/* generate.c - accrue_generate: conversations of a data set with the verifier's own answers. */
#include "infer/generate_parts.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BATCH = 1024, MAX_TOKENS = 1 << 24, MAX_POSITIONS = 1 << 20 };

/* A conversation that is being answered. */
typedef struct talk {
    int64_t row;  /* -1: none */
    json_t *from; /* the line's object, which strings of `asked` lie in */
    acr_conversation asked;
    int at;            /* of its messages: the next one */
    acr_message *said; /* [n_said] what the model has in view */
    char **answers;    /* [n_said] what of that is ours: content; NULL elsewhere */
    char **thoughts;   /* [n_said] reasoning; NULL elsewhere */
    int n_said, n_answers;
    bool cut; /* an answer was */
    int64_t tokens;
    acr_ids prompt;
} talk;

typedef struct generation {
    const accrue_generate_options *opt;
    accrue_generate_report *report;
    accrue_progress_cb cb;
    void *payload;
    double started;
    acr_lines lines;
    acr_pretrained *pretrained;
    acr_tokenizer *tokenizer;
    acr_chat chat;
    bool has_chat;
    acr_verifier *verifier;
    acr_sampling sampling;
    acr_answer_file file;
    json_t *settings;
    talk *talks; /* [batch_size] */
    int64_t next_row;
    int64_t positions;
} generation;

void accrue_generate_options_init(accrue_generate_options *opt, size_t struct_size)
{
    const accrue_generate_options d = {.struct_size = struct_size,
                                       .max_new_tokens = 512,
                                       .temperature = (double)NAN,
                                       .top_p = (double)NAN,
                                       .seed = 42,
                                       .batch_size = 16,
                                       .compute = ACCRUE_BF16};

    if (struct_size > sizeof d)
        memset(opt, 0, struct_size);
    memcpy(opt, &d, struct_size < sizeof d ? struct_size : sizeof d);
}

static accrue_status need_text(const char *value, const char *flag, accrue_error *err)
{
    return value && *value ? ACCRUE_OK : acr_fail(err, ACCRUE_EINVAL, "%s: a value expected", flag);
}

static accrue_status check_options(const accrue_generate_options *opt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (opt->struct_size != sizeof *opt)
        return acr_fail(err, ACCRUE_EINVAL, "options of %zu bytes, %zu expected", opt->struct_size,
                        sizeof *opt);
    ACR_TRY(need_text(opt->verifier, "--verifier-name-or-path", err));
    ACR_TRY(need_text(opt->data, "the conversations' file", err));
    ACR_TRY(need_text(opt->output, "--output", err));
    if (opt->max_new_tokens < 1 || opt->max_new_tokens > MAX_TOKENS)
        return acr_fail(err, ACCRUE_EINVAL, "--max-new-tokens: %lld, 1 to %d expected",
                        (long long)opt->max_new_tokens, MAX_TOKENS);
    if (opt->batch_size < 1 || opt->batch_size > MAX_BATCH)
        return acr_fail(err, ACCRUE_EINVAL, "--batch-size: %d, 1 to %d expected", opt->batch_size,
                        MAX_BATCH);
    if (opt->limit < 0)
        return acr_fail(err, ACCRUE_EINVAL, "--limit: %lld, at least 0 expected",
                        (long long)opt->limit);
    if (opt->compute != ACCRUE_BF16 && opt->compute != ACCRUE_F32 && opt->compute != ACCRUE_F64)
        return acr_fail(err, ACCRUE_EINVAL, "--dtype: %d", (int)opt->compute);

cleanup:
    return st;
}

/* Settings --------------------------------------------------------------------------------- */

/* What is not given is what the model's maker recommends, whose file the message then names. */
static accrue_status set_sampling(generation *g, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_generate_options *o = g->opt;
    const json_t *said = acr_pretrained_generation(g->pretrained);
    const bool greedy = json_is_false(json_object_get(said, "do_sample"));
    char place[PATH_MAX + 32];
    acr_fields r = {.object = said, .name = place, .err = err};
    acr_sampling *s = &g->sampling;

    acr_pretrained_place(place, sizeof place, g->pretrained, "generation_config.json");
    *s = (acr_sampling){.temperature = o->temperature, .top_p = 1, .seed = o->seed};
    if (isnan(o->temperature))
        s->temperature = greedy ? 0 : acr_field_real(&r, "temperature", 1);
    ACR_TRY(r.status);
    ACR_TRY(acr_sampling_check(s, isnan(o->temperature) ? place : "--temperature", err));
    s->top_p = isnan(o->top_p) ? acr_field_real(&r, "top_p", 1) : o->top_p;
    ACR_TRY(r.status);
    ACR_TRY(acr_sampling_check(s, isnan(o->top_p) ? place : "--top-p", err));
    g->report->temperature = s->temperature;
    g->report->top_p = s->top_p;

cleanup:
    return st;
}

/* As far as the model was made for. */
static void set_positions(generation *g)
{
    const json_t *config = acr_verifier_config(acr_pretrained_config(g->pretrained));
    const json_t *most = json_object_get(config, "max_position_embeddings");

    g->positions = json_is_integer(most) ? json_integer_value(most) : 4096;
    g->positions = g->positions < MAX_POSITIONS ? g->positions : MAX_POSITIONS;
    g->positions = g->positions > 1 ? g->positions : 1;
}

/* All that answers depend on.  How many rows there are is not among it: more may be answered. */
static accrue_status set_settings(generation *g, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_generate_options *o = g->opt;
    uint64_t hash = 0;

    ACR_TRY(acr_model_fingerprint(&hash, g->pretrained, err));
    ACR_TRY(acr_chat_fingerprint(&hash, o->verifier, err));
    g->settings = json_pack(
        "{s:s, s:o, s:o, s:I, s:f, s:f, s:I, s:s}", "written_by", "accrue generate", "verifier",
        acr_hash_json(hash), "data", acr_hash_json(g->lines.hash), "max_new_tokens",
        (json_int_t)o->max_new_tokens, "temperature", g->sampling.temperature, "top_p",
        g->sampling.top_p, "seed", (json_int_t)o->seed, "dtype", acr_compute_name(o->compute));
    if (!g->settings)
        st = acr_enomem(err, 0, "the settings");

cleanup:
    return st;
}

/* A conversation --------------------------------------------------------------------------- */

static void talk_clear(talk *t)
{
    for (int i = 0; i < t->n_said; i++) {
        acr_free(t->answers[i]);
        acr_free(t->thoughts[i]);
    }
    acr_free(t->said);
    acr_free(t->answers);
    acr_free(t->thoughts);
    acr_conversation_free(&t->asked);
    json_decref(t->from);
    *t = (talk){.row = -1, .prompt = t->prompt};
}

static accrue_status talk_read(generation *g, talk *t, int64_t row, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *name = acr_sprintf("%s: line %lld", g->opt->data, (long long)g->lines.at[row].number);
    const char *text = NULL;
    size_t n = 0;

    if (!name)
        return acr_enomem(err, strlen(g->opt->data), "a name");
    text = acr_lines_text(&g->lines, row, &n);
    ACR_TRY(acr_line_parse(&t->from, text, n, name, err));
    ACR_TRY(acr_conversation_read(&t->asked, t->from, name, err));
    if (!t->asked.messages) {
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: none of 'conversations', 'messages' or 'prompt', which ask something",
                      name);
        goto cleanup;
    }
    n = 2 * (size_t)t->asked.n + 1; /* each message may be answered */
    t->said = acr_calloc(n, sizeof *t->said);
    t->answers = acr_calloc(n, sizeof *t->answers);
    t->thoughts = acr_calloc(n, sizeof *t->thoughts);
    if (!t->said || !t->answers || !t->thoughts)
        st = acr_enomem(err, n * sizeof *t->said, "a conversation");
    t->row = row;

cleanup:
    acr_free(name);
    return st;
}

/* Of all that will be asked, before anything is made. */
static accrue_status check_lines(generation *g, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    talk t = {.row = -1};

    for (int64_t row = 0; row < g->report->rows && !st; row++) {
        st = talk_read(g, &t, row, err);
        talk_clear(&t);
    }
    return st;
}

/* Goes on to the next question; false where there is none.  What a tool said answers a call that
 * the model may not make again. */
static bool next_question(talk *t)
{
    while (t->at < t->asked.n) {
        const acr_message *m = &t->asked.messages[t->at++];
        const bool asks = strcmp(m->role, "user") == 0;
        if (strcmp(m->role, "tool") == 0)
            break;
        if ((!asks && strcmp(m->role, "system") != 0) || !m->content || !*m->content)
            continue;
        t->said[t->n_said++] = (acr_message){.role = m->role, .content = m->content};
        if (asks)
            return true;
    }
    t->at = t->asked.n;
    return false;
}

static json_t *message_json(const acr_message *m)
{
    json_t *o = json_pack("{s:s, s:s}", "role", m->role, "content", m->content);

    if (o && m->reasoning && json_object_set_new(o, "reasoning_content", json_string(m->reasoning)))
        json_decref(o), o = NULL;
    return o;
}

/* The line of a conversation, up to its last answer. */
static char *line_of(const talk *t)
{
    json_t *list = json_array(), *root = NULL;
    const json_t *id = json_object_get(t->from, "id");
    int failed = !list;
    char *text = NULL, *line = NULL;

    for (int i = 0; i < t->n_said && !failed; i++)
        failed = json_array_append_new(list, message_json(&t->said[i]));
    root = failed ? NULL
                  : json_pack("{s:O, s:{s:I, s:s, s:I}}", "conversations", list, "metadata", "idx",
                              (json_int_t)t->row, "finish_reason", t->cut ? "length" : "stop",
                              "completion_tokens", (json_int_t)t->tokens);
    if (root && id && json_object_set(root, "id", (json_t *)(uintptr_t)id))
        failed = 1;
    if (root && !failed)
        text = json_dumps(root, JSON_COMPACT);
    if (text)
        line = acr_sprintf("%s\n", text);
    free(text);
    json_decref(root);
    json_decref(list);
    return line;
}

/* Ends it; a question without an answer is no part of it. */
static accrue_status talk_end(generation *g, talk *t, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t row = t->row;
    char *line = NULL;

    while (t->n_said && !t->answers[t->n_said - 1])
        t->n_said--;
    line = t->n_answers ? line_of(t) : acr_strdup("");
    if (!line)
        return acr_enomem(err, 0, "a line");
    g->report->made += t->n_answers > 0;
    g->report->skipped += t->n_answers == 0;
    talk_clear(t);
    st = acr_answer_file_put(&g->file, row, line, err);
    return st;
}

/* Questions -------------------------------------------------------------------------------- */

static accrue_status ask(bool *any, acr_prompt *out, int place, void *ctx, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    generation *g = ctx;
    talk *t = &g->talks[place];

    *any = false;
    for (;;) {
        if (t->row >= 0 && next_question(t))
            break;
        if (t->row >= 0)
            ACR_TRY(talk_end(g, t, err));
        if (g->next_row >= g->report->rows)
            return ACCRUE_OK;
        ACR_TRY(talk_read(g, t, g->next_row++, err));
    }
    t->prompt.n = 0;
    st = acr_chat_encode(&t->prompt, NULL, &g->chat, g->tokenizer, t->said, t->n_said, true, err);
    if (st && err && st != ACCRUE_ENOMEM) {
        accrue_error why = *err;
        acr_fail(err, st, "%s: line %lld: %s", g->opt->data, (long long)g->lines.at[t->row].number,
                 why.message);
    }
    *out = (acr_prompt){t->prompt.at, t->prompt.n, g->opt->max_new_tokens, (uint64_t)t->row};
    *any = !st;
    g->report->prompt_tokens += st ? 0 : t->prompt.n;

cleanup:
    return st;
}

static accrue_status take(int place, const int64_t *ids, int64_t n, acr_finish why, void *ctx,
                          accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    generation *g = ctx;
    talk *t = &g->talks[place];
    const int at = t->n_said;

    if (!ids) { /* no room: the conversation ends with the answer before */
        t->at = t->asked.n;
        return ACCRUE_OK;
    }
    ACR_TRY(
        acr_answer_split(&t->answers[at], &t->thoughts[at], &g->chat, g->tokenizer, ids, n, err));
    t->said[at] =
        (acr_message){.role = "assistant", .content = t->answers[at], .reasoning = t->thoughts[at]};
    t->n_said++;
    t->n_answers++;
    t->tokens += n + (why == ACR_FINISH_STOP);
    t->cut |= why == ACR_FINISH_LENGTH;
    g->report->answers++;
    g->report->cut += why == ACR_FINISH_LENGTH;

cleanup:
    if (st) { /* which a clearing does not look at */
        acr_free(t->answers[at]);
        acr_free(t->thoughts[at]);
        t->answers[at] = t->thoughts[at] = NULL;
    }
    return st;
}

static accrue_status tell(generation *g, accrue_error *err)
{
    accrue_generate_report *r = g->report;
    const accrue_progress p = {.unit = "rows",
                               .done = g->file.next,
                               .total = r->rows,
                               .found = r->found,
                               .tokens = r->tokens,
                               .bytes = g->file.bytes,
                               .seconds = acr_seconds() - g->started};

    r->seconds = p.seconds;
    if (g->cb && g->cb(&p, g->payload))
        return acr_fail(err, ACCRUE_ECANCELED, "stopped with %lld of %lld rows done",
                        (long long)p.done, (long long)p.total);
    return ACCRUE_OK;
}

static accrue_status step(int64_t tokens, int64_t made, void *ctx, accrue_error *err)
{
    generation *g = ctx;

    (void)tokens;
    g->report->tokens += made;
    return tell(g, err);
}

/* The whole -------------------------------------------------------------------------------- */

static accrue_status open_all(generation *g, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_generate_options *o = g->opt;
    accrue_generate_report *r = g->report;

    if (!acr_is_dir(o->verifier))
        return acr_fail(err, ACCRUE_EIO,
                        "--verifier-name-or-path: \"%s\" is no folder; a GGUF file is made one by "
                        "accrue import",
                        o->verifier);
    ACR_TRY(acr_lines_open(&g->lines, o->data, err));
    if (!g->lines.n)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: 0 conversations, at least 1 expected", o->data);
    r->rows = o->limit && o->limit < g->lines.n ? o->limit : g->lines.n;
    ACR_TRY(check_lines(g, err));
    ACR_TRY(acr_tokenizer_open(&g->tokenizer, o->verifier, err));
    ACR_TRY(acr_chat_open(&g->chat, o->verifier, g->tokenizer, err));
    g->has_chat = true;
    ACR_TRY(acr_pretrained_open(&g->pretrained, o->verifier, err));
    ACR_TRY(set_sampling(g, err));
    ACR_TRY(set_settings(g, err));
    set_positions(g);
    acr_pretrained_close(g->pretrained);
    g->pretrained = NULL;
    ACR_TRY(acr_answer_file_open(&g->file, o->output, g->settings, g->lines.n, err));
    r->found = g->next_row = g->file.next < r->rows ? g->file.next : r->rows;
    g->talks = acr_calloc((size_t)o->batch_size, sizeof *g->talks);
    if (!g->talks)
        return acr_enomem(err, (size_t)o->batch_size * sizeof *g->talks, "the conversations");
    for (int i = 0; i < o->batch_size; i++)
        g->talks[i].row = -1;

cleanup:
    return st;
}

accrue_status accrue_generate(accrue_generate_report *out, const accrue_generate_options *opt,
                              accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    generation g = {.opt = opt, .report = out, .cb = cb, .payload = payload, .file = {.fd = -1}};
    acr_questions q = {.ask = ask,
                       .take = take,
                       .step = step,
                       .ctx = &g,
                       .data = opt->data,
                       .model = opt->verifier};

    memset(out, 0, sizeof *out);
    ACR_TRY(check_options(opt, err));
    g.started = acr_seconds();
    ACR_TRY(open_all(&g, err));
    ACR_TRY(tell(&g, err));
    if (g.next_row == out->rows)
        goto cleanup;
    ACR_TRY(acr_verifier_open(&g.verifier, opt->verifier, opt->compute, g.positions, err));
    q.end = g.chat.end;
    g.started = acr_seconds(); /* for the rate of what is made from here on */
    ACR_TRY(acr_answer_all(g.verifier, &g.sampling, opt->batch_size, g.positions, &q, err));
    ACR_TRY(tell(&g, err));

cleanup:
    for (int i = 0; g.talks && i < opt->batch_size; i++) {
        talk_clear(&g.talks[i]);
        acr_ids_free(&g.talks[i].prompt);
    }
    acr_free(g.talks);
    if (st && st != ACCRUE_ECANCELED)
        acr_answer_file_tidy(&g.file);
    acr_answer_file_close(&g.file);
    json_decref(g.settings);
    acr_verifier_free(g.verifier);
    acr_pretrained_close(g.pretrained);
    if (g.has_chat)
        acr_chat_free(&g.chat);
    acr_tokenizer_free(g.tokenizer);
    acr_lines_close(&g.lines);
    return st;
}
