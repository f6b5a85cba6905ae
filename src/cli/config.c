/* config.c - the file of --config, as `speculators train` writes it: a stage "train" whose sections
 * hold the flags, with underscores.  It is read against the table of flags, and strictly: a key
 * that is misspelt or stands elsewhere would train with a default. */
#include "config.h"

#include "cli.h"

#include "flags.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NAME_BYTES 80

typedef struct loader {
    cli_options *o;
    unsigned command;
    const flag *flags;
    int n_flags;
    const char *section; /* being read */
    char ignored[1000];
} loader;

static void swap(char *s, char from, char to)
{
    for (; *s; s++)
        if (*s == from)
            *s = to;
}

/* A flag's place in the form: "train.optimizer.lr" */
static void path_of(char *text, size_t bytes, const cli_options *o, int i)
{
    const char *section = flags_section(i);
    char key[NAME_BYTES];
    int n = 0;

    snprintf(key, sizeof key, "%s", flags_table(&n)[i].name);
    swap(key, '-', '_');
    snprintf(text, bytes, "%s%s%s%s", o->stage, section, *section ? "." : "", key);
}

void config_place(char *text, size_t bytes, const cli_options *o, int i, int line)
{
    char path[2 * NAME_BYTES];

    path_of(path, sizeof path, o, i);
    snprintf(text, bytes, "%s:%d: %s", o->config, line, path);
}

/* Values ---------------------------------------------------------------------------------- */

/* YAML 1.1's numbers for the readers of flags: 8_192 is 8192; 4.0 and 1e3 are whole. */
static int read_number(loader *l, const flag *f, const char *where, const config_node *node)
{
    char text[64], *end = NULL;
    size_t k = 0;
    const char *digits = node->text + (*node->text == '-' || *node->text == '+');

    if (node->plain && digits[0] == '0' && digits[1] && !digits[strspn(digits, "0123456789_")])
        return cli_fail(EXIT_BAD_INPUT,
                        "%s: %s, a number without leading 0 expected (to YAML it is octal)", where,
                        node->text);
    for (const char *s = node->text; *s && k + 1 < sizeof text; s++)
        if (!node->plain || *s != '_' || s == node->text)
            text[k++] = *s;
    text[k] = '\0';
    if (f->kind != FLAG_DOUBLE && text[strspn(text, "+-0123456789")]) {
        double x = strtod(text, &end);
        if (end > text && !*end && fabs(x) < 0x1p53 && x <= floor(x))
            snprintf(text, sizeof text, "%.0f", x);
    }
    return flag_read(l->o, f, where, k + 1 < sizeof text ? text : node->text);
}

static bool bool_of(bool *on, const char *text)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on",
                                        "n",     "y",    "f",  "t",   "0",   "1"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(words[i], text) == 0) {
            *on = i % 2;
            return true;
        }
    return false;
}

static int read_list(loader *l, const flag *f, const char *where, const config_node *node)
{
    int n = 0, bad = 0;

    for (const config_node *item = node->first; item && !bad; item = item->next)
        bad = item->kind == NODE_SCALAR
                  ? flag_read_list(l->o, f, where, item->text, &n)
                  : cli_fail(EXIT_BAD_INPUT, "%s: a list of whole numbers expected", where);
    if (!bad)
        flag_set_list(l->o, f, n);
    return bad;
}

static int read_value(loader *l, const flag *f, const char *where, const config_node *node)
{
    bool on = false;

    if (f->kind == FLAG_INTS && node->kind == NODE_LIST)
        return read_list(l, f, where, node);
    if (f->kind == FLAG_INTS || node->kind != NODE_SCALAR)
        return cli_fail(EXIT_BAD_INPUT, "%s: %s found, %s expected", where,
                        node->kind == NODE_MAP    ? "a mapping"
                        : node->kind == NODE_LIST ? "a list"
                                                  : node->text,
                        f->kind == FLAG_INTS ? "a list of whole numbers" : "one value");
    if (flags_is_switch(f)) {
        if (!bool_of(&on, node->text))
            return cli_fail(EXIT_BAD_INPUT, "%s: '%s', true or false expected", where, node->text);
        if (f->role == ROLE_LATER)
            return flag_check_later(f, where, on ? "true" : "false");
        flag_set_switch(l->o, f, on);
        return 0;
    }
    if (f->role == ROLE_LATER)
        return flag_check_later(f, where, node->text);
    if (f->kind == FLAG_STRING || f->kind == FLAG_CHOICE)
        return flag_read(l->o, f, where, node->text);
    return read_number(l, f, where, node);
}

/* Whether something goes before the file: the command line, or verify, which proves in float64
 * whatever dtype is trained in. */
static bool overridden(const loader *l, int i)
{
    return l->o->origin[i] == ORIGIN_LINE ||
           (l->command == FOR_VERIFY && strcmp(l->flags[i].name, "hidden-states-dtype") == 0);
}

/* A dump of the peer's has all of its defaults. */
static bool is_peers(const flag *f, const config_node *node)
{
    bool on = false;

    if (node->kind != NODE_SCALAR)
        return false;
    if (flags_is_switch(f) && bool_of(&on, node->text))
        return flag_is_peers(f, on ? "true" : "false");
    return flag_is_peers(f, node->text);
}

static int take_value(loader *l, int i, const config_node *node)
{
    char where[PLACE_BYTES];
    size_t used = strlen(l->ignored);
    int bad = 0;

    if (config_is_null(node) || overridden(l, i))
        return 0;
    config_place(where, sizeof where, l->o, i, node->line);
    if (l->flags[i].role == ROLE_IGNORED) {
        path_of(where, sizeof where, l->o, i);
        if (!is_peers(&l->flags[i], node))
            snprintf(l->ignored + used, sizeof l->ignored - used, "%s%s", used ? ", " : "", where);
        return 0;
    }
    bad = read_value(l, &l->flags[i], where, node);
    l->o->origin[i] = ORIGIN_FILE;
    l->o->line[i] = node->line;
    return bad;
}

/* Keys ------------------------------------------------------------------------------------ */

static bool is_section(const loader *l, const char *name)
{
    for (int i = 0; i < l->n_flags && *name; i++)
        if (l->flags[i].kind == FLAG_GROUP && l->flags[i].section &&
            strcmp(l->flags[i].section, name) == 0)
            return true;
    return false;
}

/* In a file without the stage its name is one more. */
static const char *section_candidate(int i, void *ctx)
{
    const loader *l = ctx;
    const char *section = NULL;

    if (i == l->n_flags)
        return *l->o->stage ? NULL : "train";
    section = l->flags[i].kind == FLAG_GROUP ? l->flags[i].section : NULL;
    return section && *section ? section : NULL;
}

/* The names of the section being read, then all, so that the nearest of equals is at hand; each
 * time the flags' own and then what others call them. */
static const char *key_candidate(int i, void *ctx)
{
    const loader *l = ctx;
    int round = i / l->n_flags, k = i % l->n_flags;
    const flag *f = &l->flags[k];

    if (f->kind == FLAG_GROUP || !f->commands || !flags_section(k))
        return NULL;
    if (round < 2 && strcmp(flags_section(k), l->section) != 0)
        return NULL;
    return round % 2 ? f->also : f->name;
}

static const char *stage_name(const loader *l)
{
    return *l->o->stage ? "train" : "the file";
}

/* A flag that is known and not a key of this section. */
static int fail_misplaced(const loader *l, const char *where, const char *word, int i)
{
    const char *home = flags_section(i);
    char path[2 * NAME_BYTES];

    if (!home)
        return cli_fail(EXIT_BAD_INPUT, "%s: a flag of the command line alone", where);
    path_of(path, sizeof path, l->o, i);
    if (strcmp(home, l->section) != 0)
        return cli_fail(EXIT_BAD_INPUT, "%s: belongs in %s%s, as %s", where,
                        *home ? l->o->stage : "", *home ? home : stage_name(l), path);
    return cli_fail(
        EXIT_BAD_INPUT, "%s: write %s%s", where, path,
        strncmp(word, "no-", 3) == 0 && strncmp(l->flags[i].name, "no-", 3) != 0 ? ": false" : "");
}

static int fail_key(loader *l, const config_node *node)
{
    char where[PLACE_BYTES], word[NAME_BYTES], path[2 * NAME_BYTES];
    const char *key = node->key, *section = l->section, *near = NULL;
    int i = -1;

    snprintf(where, sizeof where, "%s:%d: %s%s%s%s", l->o->config, node->line, l->o->stage, section,
             *section ? "." : "", key);
    while (*key == '-')
        key++;
    snprintf(word, sizeof word, "%s", key);
    swap(word, '_', '-');
    i = flags_find(word);
    if (i < 0 && strncmp(word, "no-", 3) == 0)
        i = flags_find(word + 3);
    if (i >= 0)
        return fail_misplaced(l, where, word, i);
    if (is_section(l, key))
        return cli_fail(EXIT_BAD_INPUT, "%s: a section, which belongs directly in %s", where,
                        stage_name(l));
    if (!*section && node->kind == NODE_MAP)
        near = nearest_name(key, section_candidate, l->n_flags + 1, l);
    if (near)
        return cli_fail(EXIT_BAD_INPUT, "%s: no such section; did you mean %s%s?", where,
                        l->o->stage, near);
    near = flags_proper(nearest_name(word, key_candidate, 4 * l->n_flags, l));
    if (!near)
        return cli_fail(EXIT_BAD_INPUT, "%s: no such key; see accrue train --help", where);
    path_of(path, sizeof path, l->o, flags_find(near));
    return cli_fail(EXIT_BAD_INPUT, "%s: no such key; did you mean %s?", where, path);
}

/* The flag that `key` is in the section being read, or -1. */
static int find_key(const loader *l, const char *key)
{
    char name[NAME_BYTES];
    int i = -1;

    snprintf(name, sizeof name, "%s", key);
    swap(name, '_', '-');
    i = strchr(key, '-') ? -1 : flags_find(name);
    if (i < 0 || !flags_section(i) || strcmp(flags_section(i), l->section) != 0)
        return -1;
    return i;
}

/* The scalars of a section, or, with sections in it, of the stage. */
static int take_section(loader *l, const char *section, const config_node *node)
{
    int bad = 0;

    for (const config_node *n = node->first; n && !bad; n = n->next) {
        l->section = section;
        int i = find_key(l, n->key);
        if (i >= 0)
            bad = take_value(l, i, n);
        else if (*section || !is_section(l, n->key))
            bad = fail_key(l, n);
        else if (n->kind == NODE_MAP)
            bad = take_section(l, n->key, n);
        else if (!config_is_null(n))
            bad = cli_fail(EXIT_BAD_INPUT, "%s:%d: %s%s: %s found, a section expected%s%s%s",
                           l->o->config, n->line, l->o->stage, n->key,
                           n->kind == NODE_LIST ? "a list" : n->text,
                           flags_find(n->key) < 0 ? "" : ": ", flags_find(n->key) < 0 ? "" : n->key,
                           flags_find(n->key) < 0 ? "" : " in it");
    }
    return bad;
}

/* The file ----------------------------------------------------------------------------- */

static const char *stage_candidate(int i, void *ctx)
{
    const loader *l = ctx;

    return i < l->n_flags ? section_candidate(i, ctx) : "train";
}

/* A slip of the pen: two letters of a long word, one of a short one. */
static int check_stage_name(loader *l, const config_node *n)
{
    size_t len = strlen(n->key);
    const char *near = nearest_within(len < 6 ? 1 : 2, n->key, stage_candidate, l->n_flags + 1, l);

    if (!near || strcmp(near, n->key) == 0)
        return 0;
    return cli_fail(EXIT_BAD_INPUT, "%s:%d: %s: no such stage; did you mean %s%s?", l->o->config,
                    n->line, n->key, strcmp(near, "train") == 0 ? "" : l->o->stage, near);
}

/* Other stages are of other programs; what belongs into train is not taken for one. */
static int check_stages(loader *l, const config_node *root)
{
    char others[300] = "";
    int bad = 0;

    for (const config_node *n = root->first; n; n = n->next) {
        size_t used = strlen(others);
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s", n->key);
        swap(name, '_', '-');
        if (is_section(l, n->key) || flags_find(name) >= 0)
            return cli_fail(EXIT_BAD_INPUT, "%s:%d: %s: belongs in train", l->o->config, n->line,
                            n->key);
        bad = check_stage_name(l, n);
        if (bad)
            return bad;
        if (strcmp(n->key, "train") != 0)
            snprintf(others + used, sizeof others - used, "%s%s", used ? ", " : "", n->key);
    }
    if (others[0])
        cli_notice("%s: only the stage train is read, passed over: %s", l->o->config, others);
    return 0;
}

static int take_root(loader *l, const config_node *root)
{
    const config_node *stage = config_member(root, "train");
    int bad = 0;

    if (!root || config_is_null(root))
        return 0;
    if (root->kind != NODE_MAP)
        return cli_fail(EXIT_BAD_INPUT, "%s:%d: a mapping with the key train expected",
                        l->o->config, root->line);
    if (!stage) /* the peer takes the stage's keys without it too */
        return take_section(l, "", root);
    snprintf(l->o->stage, sizeof l->o->stage, "train.");
    bad = check_stages(l, root);
    if (bad || config_is_null(stage))
        return bad;
    if (stage->kind != NODE_MAP)
        return cli_fail(EXIT_BAD_INPUT, "%s:%d: train: a mapping expected", l->o->config,
                        stage->line);
    return take_section(l, "", stage);
}

/* At most one byte more than is accepted. */
static int read_file(char **text, size_t *bytes, const char *path)
{
    FILE *in = fopen(path, "re");
    int failed = 0;

    *text = NULL;
    if (!in)
        return -1;
    *text = cli_realloc(NULL, CONFIG_MAX_BYTES + 2, 1);
    errno = 0;
    *bytes = fread(*text, 1, CONFIG_MAX_BYTES + 1, in);
    (*text)[*bytes] = '\0';
    failed = ferror(in);
    fclose(in);
    return failed ? -1 : 0;
}

int config_load(cli_options *o, unsigned command)
{
    loader l = {.o = o, .command = command, .section = ""};
    static config_node *root; /* stays: options point into it */
    accrue_error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    int bad = 0;

    l.flags = flags_table(&l.n_flags);
    if (read_file(&text, &bytes, o->config))
        bad = cli_fail(EXIT_BAD_INPUT, "--config %s: %s", o->config, strerror(errno));
    else if (config_parse(&root, o->config, text, bytes, &err))
        bad = cli_fail(EXIT_BAD_INPUT, "%s", err.message);
    free(text);
    if (!bad)
        bad = take_root(&l, root);
    if (!bad && l.ignored[0])
        cli_notice("%s: no meaning here, ignored: %s", o->config, l.ignored);
    return bad;
}
