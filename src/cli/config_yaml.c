/* config_yaml.c - libyaml's events as a tree, and a string as a scalar. */
#include "config.h"

#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the one at hand */
    const char *path, *text;
    accrue_error *err;
    int nodes;
} reader;

static int line_of(yaml_mark_t mark)
{
    return (int)mark.line + 1;
}

static int CLI_PRINTF(3, 4) fail_at(reader *r, int line, const char *format, ...)
{
    size_t used = 0;
    va_list args;

    snprintf(r->err->message, sizeof r->err->message, "%s:%d: ", r->path, line);
    used = strlen(r->err->message);
    va_start(args, format);
    vsnprintf(r->err->message + used, sizeof r->err->message - used, format, args);
    va_end(args);
    return -1;
}

/* A fault of the encoding has a place in bytes alone. */
static int fail_syntax(reader *r)
{
    const yaml_parser_t *p = &r->parser;
    int line = line_of(p->problem_mark);

    if (p->error == YAML_READER_ERROR) {
        line = 1;
        for (size_t i = 0; i < p->problem_offset && r->text[i]; i++)
            line += r->text[i] == '\n';
    }
    return fail_at(r, line, "not valid YAML: %s", p->problem ? p->problem : "out of memory");
}

static int next(reader *r)
{
    yaml_event_delete(&r->event);
    return yaml_parser_parse(&r->parser, &r->event) ? 0 : fail_syntax(r);
}

static char *copy(const yaml_event_t *e)
{
    size_t bytes = e->data.scalar.length;
    char *text = cli_realloc(NULL, bytes + 1, 1);

    memcpy(text, e->data.scalar.value, bytes);
    text[bytes] = '\0';
    return text;
}

/* What YAML has and a configuration does not need. */
static int refuse_extras(reader *r)
{
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;

    switch (e->type) {
    case YAML_SCALAR_EVENT:
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
        if (strlen((const char *)e->data.scalar.value) != e->data.scalar.length)
            return fail_at(r, line_of(e->start_mark), "a value with a NUL character");
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
        break;
    case YAML_ALIAS_EVENT:
        return fail_at(r, line_of(e->start_mark), "*%s: aliases are not supported",
                       (const char *)e->data.alias.anchor);
    default: break;
    }
    if (anchor)
        return fail_at(r, line_of(e->start_mark), "&%s: anchors are not supported",
                       (const char *)anchor);
    if (tag)
        return fail_at(r, line_of(e->start_mark), "the tag %s: tags are not supported",
                       (const char *)tag);
    return 0;
}

static int read_node(reader *r, config_node **out, int depth);

/* The key at hand, into *key. */
static int read_key(reader *r, const config_node *map, char **key, int *line)
{
    *line = line_of(r->event.start_mark);
    if (refuse_extras(r))
        return -1;
    if (r->event.type != YAML_SCALAR_EVENT)
        return fail_at(r, *line, "a key must be a word");
    *key = copy(&r->event);
    if (strcmp(*key, "<<") == 0)
        return fail_at(r, *line, "<<: merge keys are not supported");
    for (const config_node *n = map->first; n; n = n->next)
        if (strcmp(n->key, *key) == 0)
            return fail_at(r, *line, "%s: a second time, after line %d", *key, n->line);
    return next(r);
}

/* The children of the mapping or list at hand, up to its end. */
static int read_children(reader *r, config_node *parent, int depth)
{
    bool map = parent->kind == NODE_MAP;
    yaml_event_type_t end = map ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    config_node **tail = &parent->first;
    int bad = depth < CONFIG_MAX_DEPTH
                  ? next(r)
                  : fail_at(r, parent->line, "more than %d levels", CONFIG_MAX_DEPTH);

    while (!bad && r->event.type != end) {
        char *key = NULL;
        int line = 0;
        bad = map ? read_key(r, parent, &key, &line) : 0;
        if (!bad)
            bad = read_node(r, tail, depth + 1);
        if (bad || !*tail) {
            free(key);
            continue;
        }
        if (map)
            (*tail)->line = line;
        (*tail)->key = key;
        tail = &(*tail)->next;
        bad = next(r);
    }
    return bad;
}

/* The node at hand; its last event stays at hand. */
static int read_node(reader *r, config_node **out, int depth)
{
    config_node *node = NULL;

    if (refuse_extras(r))
        return -1;
    if (r->nodes++ == CONFIG_MAX_NODES)
        return fail_at(r, line_of(r->event.start_mark), "more than %d values", CONFIG_MAX_NODES);
    node = cli_realloc(NULL, 1, sizeof *node);
    *node = (config_node){.kind = NODE_SCALAR, .line = line_of(r->event.start_mark)};
    *out = node;
    if (r->event.type == YAML_SCALAR_EVENT) {
        node->text = copy(&r->event);
        node->plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        return 0;
    }
    node->kind = r->event.type == YAML_MAPPING_START_EVENT ? NODE_MAP : NODE_LIST;
    return read_children(r, node, depth);
}

static int read_stream(reader *r, config_node **out)
{
    int bad = next(r); /* the stream's start */

    if (!bad)
        bad = next(r);
    if (bad || r->event.type == YAML_STREAM_END_EVENT)
        return bad;
    bad = next(r);
    if (!bad)
        bad = read_node(r, out, 0);
    if (!bad)
        bad = next(r); /* the document's end */
    if (!bad)
        bad = next(r);
    if (!bad && r->event.type != YAML_STREAM_END_EVENT)
        bad = fail_at(r, line_of(r->event.start_mark), "a second document, one expected");
    return bad;
}

int config_parse(config_node **out, const char *path, const char *text, size_t bytes,
                 accrue_error *err)
{
    reader r = {.path = path, .text = text, .err = err};
    int bad = 0;

    *out = NULL;
    if (bytes > CONFIG_MAX_BYTES) {
        snprintf(err->message, sizeof err->message, "%s: more than %d bytes", path,
                 CONFIG_MAX_BYTES);
        return -1;
    }
    if (!yaml_parser_initialize(&r.parser)) {
        snprintf(err->message, sizeof err->message, "%s: out of memory", path);
        return -1;
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    bad = read_stream(&r, out);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (bad) {
        config_free(*out);
        *out = NULL;
    }
    return bad;
}

void config_free(config_node *node)
{
    while (node) {
        config_node *following = node->next;
        config_free(node->first);
        free(node->key);
        free(node->text);
        free(node);
        node = following;
    }
}

bool config_is_null(const config_node *node)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};

    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++)
        if (node->kind == NODE_SCALAR && node->plain && strcmp(node->text, nulls[i]) == 0)
            return true;
    return false;
}

const config_node *config_member(const config_node *map, const char *key)
{
    const config_node *n = map && map->kind == NODE_MAP ? map->first : NULL;

    while (n && strcmp(n->key, key) != 0)
        n = n->next;
    return n;
}

/* Whether every reader takes the bare word for a string: no number, null or bool of YAML 1.1. */
static bool is_word(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char *const taken[] = {"y",   "n",    "yes",   "no",  "on",
                                        "off", "true", "false", "null"};
    const char *s = text + strspn(text, "./");

    if (!*s || !strchr(letters, *s) || strspn(s, letters) == 0)
        return false;
    if (s > text && s[-1] != '/')
        return false;
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (strcasecmp(text, taken[i]) == 0)
            return false;
    for (; *s; s++)
        if (!strchr(letters, *s) && !strchr("0123456789_./-", *s))
            return false;
    return true;
}

static int append(void *into, unsigned char *data, size_t bytes)
{
    return fwrite(data, 1, bytes, into) == bytes;
}

static int emit(yaml_emitter_t *emitter, const char *text)
{
    yaml_scalar_style_t style = YAML_SINGLE_QUOTED_SCALAR_STYLE;
    yaml_event_t e;

    for (const char *s = text; *s; s++)
        if ((unsigned char)*s < ' ' || (unsigned char)*s >= 127)
            style = YAML_DOUBLE_QUOTED_SCALAR_STYLE; /* which has escapes, and no line breaks */
    return yaml_stream_start_event_initialize(&e, YAML_UTF8_ENCODING) &&
           yaml_emitter_emit(emitter, &e) &&
           yaml_document_start_event_initialize(&e, NULL, NULL, NULL, 1) &&
           yaml_emitter_emit(emitter, &e) &&
           yaml_scalar_event_initialize(&e, NULL, NULL, (const yaml_char_t *)text,
                                        (int)strlen(text), 0, 1, style) &&
           yaml_emitter_emit(emitter, &e) && yaml_document_end_event_initialize(&e, 1) &&
           yaml_emitter_emit(emitter, &e) && yaml_stream_end_event_initialize(&e) &&
           yaml_emitter_emit(emitter, &e);
}

char *config_quote(const char *text)
{
    char *line = NULL;
    size_t bytes = 0;
    FILE *memory = NULL;
    yaml_emitter_t emitter;
    int fine = 0;

    if (is_word(text))
        return strdup(text);
    /* libyaml writes what lies behind Unicode and does not read it. */
    if (!is_utf8(text, strlen(text)) || !yaml_emitter_initialize(&emitter))
        return NULL;
    memory = open_memstream(&line, &bytes);
    if (memory) {
        yaml_emitter_set_output(&emitter, append, memory);
        yaml_emitter_set_unicode(&emitter, 1);
        yaml_emitter_set_width(&emitter, -1);
        fine = emit(&emitter, text);
        fine = fclose(memory) == 0 && fine;
    }
    yaml_emitter_delete(&emitter);
    if (!fine) {
        free(line);
        return NULL;
    }
    while (bytes && line[bytes - 1] == '\n')
        line[--bytes] = '\0';
    return line;
}
