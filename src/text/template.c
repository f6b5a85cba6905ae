/* template.c - tells which chat format a chat template describes.
 *
 * A template is a program in Jinja.  It is not run: it is brought into a normal form and compared
 * with that of the templates whose output chat.c makes, so that one that would say anything else is
 * refused.  In the normal form tags hold no needless blanks and one kind of quotes, a.b is a['b'],
 * texts and outputs that follow each other are one, and what tools would add is left out, because
 * no conversation here has any. */
#include "text/template.h"
#include "text/utf8.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 32 };
/* Stands for an escape that is not decoded here, and must not pass for text. */
static const char unknown_escape = '\1';

/* Of a known template: stands for statements that no conversation here reaches. */
static const char any[] = "ANY";

/* Conditions of which it is known what they are without tools, as the normal form has them. */
static const struct constant {
    const char *condition;
    bool value;
} constants[] = {
    {"tools", false},
    {"message['tool_calls']", false},
    {"custom_tools is defined", false},
    {"builtin_tools is defined", false},
    {"builtin_tools is defined or tools is not none", false},
    {"tools is not none and not tools_in_user_message", false},
    {"tools_in_user_message and not tools is none", false},
    {"not tools is defined", false},
    {"not tools_in_user_message is defined", true},
    {"not date_string is defined", true},
    {"message['content']is string", true},
};

/* Nodes ------------------------------------------------------------------------------------- */

typedef struct node {
    bool statement; /* else an output */
    char *s;
} node;

typedef struct nodes {
    node *at;
    int n, capacity;
    acr_buffer sum; /* outputs behind the last node, to be one */
} nodes;

static void free_nodes(nodes *list)
{
    for (int i = 0; i < list->n; i++)
        acr_free(list->at[i].s);
    acr_free(list->at);
    acr_buffer_free(&list->sum);
    memset(list, 0, sizeof *list);
}

/* Takes over `s`. */
static accrue_status add_node(nodes *list, bool statement, char *s, accrue_error *err)
{
    if (list->n == list->capacity) {
        int more = list->capacity ? 2 * list->capacity : 64;
        node *moved = acr_realloc(list->at, (size_t)more * sizeof *moved);
        if (!moved) {
            acr_free(s);
            return acr_enomem(err, (size_t)more * sizeof *moved, "a chat template");
        }
        list->at = moved;
        list->capacity = more;
    }
    list->at[list->n++] = (node){statement, s};
    return ACCRUE_OK;
}

/* Expressions ------------------------------------------------------------------------------- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* A character of a literal, as it stands in the normal form. */
static accrue_status add_escaped(acr_buffer *t, char c, accrue_error *err)
{
    const char plain[2] = {c, '\0'};
    const char *s = c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\\' ? "\\\\" : plain;

    return acr_buffer_add_text(t, c == '\'' ? "\\'" : s, err);
}

static accrue_status add_literal(acr_buffer *t, const char *s, size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_buffer_add(t, "'", 1, err));
    for (size_t i = 0; i < n; i++)
        ACR_TRY(add_escaped(t, s[i], err));
    ACR_TRY(acr_buffer_add(t, "'", 1, err));

cleanup:
    return st;
}

/* The literal at s[*i], which moves behind it. */
static accrue_status take_literal(acr_buffer *t, const char *s, size_t n, size_t *i,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char quote = s[(*i)++];

    ACR_TRY(acr_buffer_add(t, "'", 1, err));
    for (; *i < n && s[*i] != quote; (*i)++) {
        char c = s[*i];
        if (c == '\\' && *i + 1 < n) {
            c = s[++*i];
            if (c == 'n' || c == 't')
                c = c == 'n' ? '\n' : '\t';
            else if (c != '\\' && c != '\'' && c != '"')
                c = unknown_escape;
        }
        ACR_TRY(add_escaped(t, c, err));
    }
    (*i)++;
    ACR_TRY(acr_buffer_add(t, "'", 1, err));

cleanup:
    return st;
}

/* An attribute a.b at s[*i], where it is none that is called. */
static bool take_attribute(const char *s, size_t n, size_t *i, size_t *begin, size_t *end)
{
    size_t k = *i + 1, after = 0;

    while (k < n && is_word(s[k]))
        k++;
    for (after = k; after < n && is_blank(s[after]);)
        after++;
    if (k == *i + 1 || (s[*i + 1] >= '0' && s[*i + 1] <= '9') || (after < n && s[after] == '('))
        return false;
    *begin = *i + 1;
    *end = k;
    *i = k;
    return true;
}

static accrue_status normalise(acr_buffer *t, const char *s, size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t begin = 0, end = 0;

    for (size_t i = 0; i < n;) {
        size_t k = i;
        if (is_blank(s[i])) {
            i++;
        } else if (s[i] == '\'' || s[i] == '"') {
            ACR_TRY(take_literal(t, s, n, &i, err));
        } else if (s[i] == '.' && take_attribute(s, n, &i, &begin, &end)) {
            ACR_TRY(acr_buffer_add_text(t, "[", err));
            ACR_TRY(add_literal(t, s + begin, end - begin, err));
            ACR_TRY(acr_buffer_add_text(t, "]", err));
        } else if (is_word(s[i])) {
            while (i < n && is_word(s[i]))
                i++;
            if (t->n && is_word(t->at[t->n - 1]))
                ACR_TRY(acr_buffer_add_text(t, " ", err));
            ACR_TRY(acr_buffer_add(t, s + k, i - k, err));
        } else {
            ACR_TRY(acr_buffer_add(t, s + i++, 1, err));
        }
    }

cleanup:
    return st;
}

static size_t literal_end(const char *s, size_t i)
{
    for (i++; s[i] && s[i] != '\''; i++)
        if (s[i] == '\\' && s[i + 1])
            i++;
    return s[i] ? i + 1 : i;
}

/* 'a' + 'b' becomes 'ab' where nothing binds tighter to either. */
static void join_literals(char *s)
{
    size_t used = 0;

    for (size_t i = 0; s[i];) {
        const bool loose = used == 0 || strchr("+=(,", s[used - 1]);
        size_t end = 0, next = 0;
        if (s[i] != '\'') {
            s[used++] = s[i++];
            continue;
        }
        for (end = literal_end(s, i);; end = next) {
            memmove(s + used, s + i, end - i);
            used += end - i;
            i = end;
            next = s[end] == '+' && s[end + 1] == '\'' ? literal_end(s, end + 1) : 0;
            if (!next || !loose || strchr("|.[(*", s[next] ? s[next] : '+'))
                break;
            used--;
            i += 2;
        }
    }
    s[used] = '\0';
}

/* An output of sums alone, which another can be added to. */
static bool is_sum(const char *s)
{
    static const char *const words[] = {" if ", " or ", " and ", " in ", " is ", "not ", "==", "~"};

    for (int i = 0; i < ACR_COUNT(words); i++)
        if (strstr(s, words[i]))
            return false;
    return strcmp(s, any) != 0;
}

static accrue_status end_sum(nodes *out, accrue_error *err)
{
    char *s = out->sum.at;

    out->sum = (acr_buffer){0};
    if (!s)
        return ACCRUE_OK;
    join_literals(s);
    return add_node(out, false, s, err);
}

static accrue_status add_output(nodes *out, const char *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *alone = NULL;

    if (!*s)
        return ACCRUE_OK;
    if (is_sum(s)) {
        if (out->sum.n)
            ACR_TRY(acr_buffer_add(&out->sum, "+", 1, err));
        return acr_buffer_add_text(&out->sum, s, err);
    }
    ACR_TRY(end_sum(out, err));
    alone = acr_strdup(s);
    st = alone ? add_node(out, false, alone, err) : acr_enomem(err, strlen(s), "a chat template");

cleanup:
    return st;
}

static accrue_status add_statement(nodes *out, const char *word, const char *rest,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *s = NULL;

    ACR_TRY(end_sum(out, err));
    s = acr_sprintf("%s%s", word, rest);
    st = s ? add_node(out, true, s, err) : acr_enomem(err, strlen(rest), "a chat template");

cleanup:
    return st;
}

/* Parsing ----------------------------------------------------------------------------------- */

typedef struct source {
    const char *s;
    size_t n, at;
    bool line_start; /* `at` is where a line begins, or only blanks were cut since */
    bool strip;      /* the tag before ended with a dash */
} source;

/* The place of the next tag's brace; n: none. */
static size_t find_tag(const source *in)
{
    for (size_t i = in->at; i + 1 < in->n; i++)
        if (in->s[i] == '{' && strchr("{%#", in->s[i + 1]))
            return i;
    return in->n;
}

/* Where the tag that opened with `kind` ends, at its closing mark; n: nowhere. */
static size_t find_end(const source *in, size_t at, char kind)
{
    const char close = kind == '{' ? '}' : kind;
    char quote = '\0';

    for (; at + 1 < in->n; at++) {
        if (quote && in->s[at] == '\\')
            at++;
        else if (quote)
            quote = in->s[at] == quote ? '\0' : quote;
        else if (kind != '#' && (in->s[at] == '\'' || in->s[at] == '"'))
            quote = in->s[at];
        else if (in->s[at] == close && in->s[at + 1] == '}')
            return at;
    }
    return in->n;
}

/* The text before a tag, less the blanks that Jinja cuts with trim_blocks and lstrip_blocks. */
static accrue_status take_text(nodes *out, source *in, size_t end, bool dash, bool block,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_buffer t = {0};
    size_t begin = in->at, line = end;

    while (in->strip && begin < end && is_blank(in->s[begin]))
        begin++;
    while (dash && end > begin && is_blank(in->s[end - 1]))
        end--;
    for (line = end; line > begin && (in->s[line - 1] == ' ' || in->s[line - 1] == '\t');)
        line--;
    if (block && !dash && (line > begin ? in->s[line - 1] == '\n' : in->line_start))
        end = line;
    if (end > begin) {
        ACR_TRY(add_literal(&t, in->s + begin, end - begin, err));
        ACR_TRY(add_output(out, t.at, err));
    }

cleanup:
    acr_buffer_free(&t);
    return st;
}

static accrue_status take_tag(nodes *out, source *in, size_t tag, bool *whole, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_buffer t = {0};
    char kind = in->s[tag + 1], mark = tag + 2 < in->n ? in->s[tag + 2] : '\0';
    size_t begin = tag + 2 + (mark == '-' || mark == '+');
    size_t close = find_end(in, begin, kind), end = close;

    ACR_TRY(take_text(out, in, tag, mark == '-', kind != '{' && mark != '+', err));
    *whole = close < in->n;
    if (!*whole)
        goto cleanup;
    in->strip = end > begin && in->s[end - 1] == '-';
    end -= in->strip;
    in->at = close + 2;
    in->line_start = false;
    if (kind != '{' && !in->strip && in->at < in->n && in->s[in->at] == '\n') {
        in->at++;
        in->line_start = true;
    }
    if (kind == '#')
        goto cleanup;
    ACR_TRY(acr_buffer_add(&t, "", 0, err));
    ACR_TRY(normalise(&t, in->s + begin, end - begin, err));
    join_literals(t.at);
    if (kind == '{')
        ACR_TRY(add_output(out, t.at, err));
    else
        ACR_TRY(add_statement(out, t.at, "", err));

cleanup:
    acr_buffer_free(&t);
    return st;
}

/* *whole: every tag is closed. */
static accrue_status parse(nodes *out, const char *s, size_t n, bool *whole, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    source in = {.s = s, .n = n && s[n - 1] == '\n' ? n - 1 : n, .line_start = true};

    *whole = true;
    while (*whole && in.at < in.n) {
        size_t tag = find_tag(&in);
        if (tag == in.n) {
            ACR_TRY(take_text(out, &in, in.n, false, false, err));
            break;
        }
        ACR_TRY(take_tag(out, &in, tag, whole, err));
    }
    ACR_TRY(end_sum(out, err));

cleanup:
    return st;
}

/* Leaving out ------------------------------------------------------------------------------- */

static bool begins(const char *s, const char *word)
{
    return strncmp(s, word, strlen(word)) == 0;
}

static bool is_if(const node *n)
{
    return n->statement && begins(n->s, "if") && !is_word(n->s[2] == ' ' ? '\0' : n->s[2]);
}

static bool opens(const node *n)
{
    return is_if(n) || (n->statement && begins(n->s, "for "));
}

/* What ends a body: its own end, or another branch. */
static bool closes(const node *n)
{
    return n->statement && (begins(n->s, "el") || begins(n->s, "end"));
}

/* The condition of a branch; NULL for "else". */
static const char *condition(const node *n)
{
    const char *s = n->s + (begins(n->s, "elif") ? 4 : 2);

    if (begins(n->s, "else"))
        return NULL;
    return *s == ' ' ? s + 1 : s;
}

typedef enum truth { NO, YES, OPEN } truth;

static truth judge(const char *s)
{
    for (int i = 0; s && i < ACR_COUNT(constants); i++)
        if (strcmp(s, constants[i].condition) == 0)
            return constants[i].value ? YES : NO;
    return s ? OPEN : YES;
}

static accrue_status fold(nodes *out, const nodes *in, int *i, bool live, int depth,
                          accrue_error *err);

/* The branches from the "if" at *i to behind its "endif". */
static accrue_status fold_if(nodes *out, const nodes *in, int *i, bool live, int depth,
                             accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool emitted = false, done = false;

    while (*i < in->n && !begins(in->at[*i].s, "end")) {
        const char *s = condition(&in->at[*i]);
        truth is = done ? NO : judge(s);
        if (live && is == OPEN)
            ACR_TRY(add_statement(out, emitted ? "elif " : "if ", s, err));
        else if (live && is == YES && emitted)
            ACR_TRY(add_statement(out, "else", "", err));
        emitted |= is == OPEN;
        done |= is == YES;
        (*i)++;
        ACR_TRY(fold(out, in, i, live && is != NO, depth + 1, err));
    }
    if (live && emitted)
        ACR_TRY(add_statement(out, "endif", "", err));
    (*i)++;

cleanup:
    return st;
}

/* Up to the statement that closes the body. */
static accrue_status fold(nodes *out, const nodes *in, int *i, bool live, int depth,
                          accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    while (*i < in->n && depth < MAX_DEPTH) {
        const node *n = &in->at[*i];
        if (closes(n) && !(depth == 0 || begins(n->s, "endfor")))
            break;
        if (is_if(n)) {
            ACR_TRY(fold_if(out, in, i, live, depth, err));
            continue;
        }
        if (live && n->statement)
            ACR_TRY(add_statement(out, n->s, "", err));
        else if (live)
            ACR_TRY(add_output(out, n->s, err));
        (*i)++;
    }
    if (depth == MAX_DEPTH)
        *i = in->n;

cleanup:
    return st;
}

static accrue_status normal_form(nodes *out, const char *s, size_t n, bool *whole,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    nodes list = {0};
    int i = 0;

    ACR_TRY(parse(&list, s, n, whole, err));
    ACR_TRY(fold(out, &list, &i, true, 0, err));
    ACR_TRY(end_sum(out, err));

cleanup:
    free_nodes(&list);
    return st;
}

/* Comparing --------------------------------------------------------------------------------- */

/* Whether `s` is `pattern`, with any text of a literal for its @, which is *from, *n bytes. */
static bool is_text(const char *pattern, const char *s, const char **from, size_t *n)
{
    const char *at = strchr(pattern, '@');
    size_t before = at ? (size_t)(at - pattern) : 0, after = at ? strlen(at + 1) : 0;
    size_t bytes = strlen(s);

    if (!at)
        return strcmp(pattern, s) == 0;
    if (bytes < before + after || strncmp(pattern, s, before) != 0 ||
        strcmp(at + 1, s + bytes - after) != 0)
        return false;
    *from = s + before;
    *n = bytes - before - after;
    for (size_t i = 0; i < *n; i++) {
        if ((*from)[i] == '\'' || (*from)[i] == unknown_escape || (*from)[i] == '\r')
            return false;
        i += (*from)[i] == '\\';
    }
    return true;
}

static int skip_body(const nodes *in, int i)
{
    for (int depth = 0; i < in->n && (depth > 0 || !closes(&in->at[i])); i++) {
        depth += opens(&in->at[i]);
        depth -= in->at[i].statement && begins(in->at[i].s, "end");
    }
    return i;
}

static bool matches(const nodes *pattern, const nodes *in, const char **from, size_t *n)
{
    int k = 0;

    for (int i = 0; i < pattern->n; i++) {
        const node *p = &pattern->at[i];
        if (!p->statement && strcmp(p->s, any) == 0) {
            k = skip_body(in, k);
            continue;
        }
        if (k == in->n || in->at[k].statement != p->statement ||
            !is_text(p->s, in->at[k].s, from, n))
            return false;
        k++;
    }
    return k == in->n;
}

/* `form` with the text of a literal for its %s. */
static accrue_status make_text(char **out, const char *form, const char *from, size_t n,
                               accrue_error *err)
{
    const char *mark = form ? strstr(form, "%s") : NULL;
    size_t room = form ? strlen(form) + n : 0, used = 0;
    char *s = form ? acr_malloc(room) : NULL;

    *out = s;
    if (!form)
        return ACCRUE_OK;
    if (!s)
        return acr_enomem(err, room, "a chat template");
    used = (size_t)(mark - form);
    memcpy(s, form, used);
    for (size_t i = 0; i < n; i++) {
        bool escaped = from[i] == '\\' && i + 1 < n;
        i += escaped;
        s[used++] = !escaped ? from[i] : from[i] == 'n' ? '\n' : from[i] == 't' ? '\t' : from[i];
    }
    memcpy(s + used, mark + 2, strlen(mark + 2) + 1);
    return ACCRUE_OK;
}

static accrue_status refuse(const char *s, size_t n, const char *name, accrue_error *err)
{
    static const char today[] = "strftime_now";

    for (size_t i = 0; i + strlen(today) <= n; i++)
        if (memcmp(s + i, today, strlen(today)) == 0)
            return acr_fail(err, ACCRUE_ENOTSUP,
                            "%s: the chat template puts the date of the day into a conversation, "
                            "whose ids would change from day to day",
                            name);
    return acr_fail(err, ACCRUE_ENOTSUP,
                    "%s: a chat template that is not supported; known are ChatML as in SmolLM2, "
                    "Qwen2.5 and Qwen3, and those of llama-3, 3.1 and 3.3",
                    name);
}

accrue_status acr_template_read(acr_template *out, const char *text, size_t bytes, const char *name,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    nodes in = {0}, pattern = {0};
    const char *from = NULL;
    size_t n = 0;
    bool whole = false, ours = false, found = false;

    memset(out, 0, sizeof *out);
    ACR_TRY(normal_form(&in, text, bytes, &whole, err));
    for (int i = 0; whole && !found && i < acr_n_known_templates; i++) {
        const acr_known_template *k = &acr_known_templates[i];
        free_nodes(&pattern);
        ACR_TRY(normal_form(&pattern, k->text, strlen(k->text), &ours, err));
        found = matches(&pattern, &in, &from, &n);
        if (!found)
            continue;
        *out = k->is;
        out->default_system = out->preface = NULL;
        ACR_TRY(make_text(&out->default_system, k->is.default_system, from, n, err));
        ACR_TRY(make_text(&out->preface, k->is.preface, from, n, err));
    }
    if (!found)
        st = refuse(text, bytes, name, err);

cleanup:
    free_nodes(&in);
    free_nodes(&pattern);
    if (st) {
        acr_free(out->default_system);
        acr_free(out->preface);
        memset(out, 0, sizeof *out);
    }
    return st;
}
