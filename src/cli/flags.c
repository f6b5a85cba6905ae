/* flags.c - reads a command line against the table.
 *
 * The syntax is argparse's: --flag value, --flag=value, --flag and --no-flag, several values after
 * a list flag, the last of repeated flags wins; underscores pass for dashes.  argp would print
 * three lines for a mistake and knows no lists. */
#include "flags.h"

#include "cli.h"

#include <ctype.h>
#include <string.h>

#define NAME_BYTES 80

typedef struct parser {
    cli_options *o;
    const flag *flags;
    int n_flags;
    unsigned command;
    int argc, next;
    char **argv;
    char ignored[1000];
    bool noted[MAX_FLAGS];
} parser;

void flags_init(cli_options *o)
{
    memset(o, 0, sizeof *o);
    accrue_train_options_init(&o->train, sizeof o->train);
    accrue_generate_options_init(&o->generate, sizeof o->generate);
    o->log_freq = 1;
    o->grace = 20;
    o->log_dir = "./logs";
    accrue_prepare_options_init(&o->prepare, sizeof o->prepare);
}

/* Nearest name ---------------------------------------------------------------------------- */

/* Edits (insert, delete, replace, swap neighbours) between two words. */
static int distance(const char *a, const char *b)
{
    int before[NAME_BYTES + 1] = {0}, last[NAME_BYTES + 1], row[NAME_BYTES + 1];
    int n = (int)strnlen(a, NAME_BYTES), m = (int)strnlen(b, NAME_BYTES);

    for (int j = 0; j <= m; j++)
        last[j] = j;
    for (int i = 1; i <= n; i++) {
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
        memcpy(before, last, sizeof before);
        memcpy(last, row, sizeof last);
    }
    return last[m];
}

/* Whether each part of "grad-accum" begins one of the parts of `name`, in order. */
static bool abbreviates(const char *word, const char *name)
{
    while (*word) {
        size_t len = strcspn(word, "-");
        while (*name && strncmp(word, name, len) != 0) {
            name += strcspn(name, "-");
            name += *name == '-';
        }
        if (!*name)
            return false;
        name += strcspn(name, "-");
        name += *name == '-';
        word += len + (word[len] == '-');
    }
    return true;
}

const char *nearest_within(int most, const char *word, const char *(*candidate)(int i, void *ctx),
                           int n, void *ctx)
{
    size_t len = strlen(word);
    int best = most + 1;
    const char *nearest = NULL;

    for (int i = 0; i < n; i++) {
        const char *name = candidate(i, ctx);
        if (!name)
            continue;
        int d = distance(word, name);
        if (d > 1 && len >= 4 && abbreviates(word, name))
            d = 1;
        if (d < best) {
            best = d;
            nearest = name;
        }
    }
    return nearest;
}

const char *nearest_name(const char *word, const char *(*candidate)(int i, void *ctx), int n,
                         void *ctx)
{
    return nearest_within((int)(strlen(word) / 2), word, candidate, n, ctx);
}

/* Train and verify take each other's flags, so that a command line can be used for both. */
static bool belongs(const parser *p, const flag *f)
{
    if (p->command == FOR_TRAIN)
        return !f->commands || f->commands & FOR_TRAIN;
    if (p->command == FOR_VERIFY)
        return !f->commands || f->commands & (FOR_TRAIN | FOR_VERIFY);
    return f->commands & p->command;
}

/* Commands may have flags of one name that are not the same. */
static int find(const parser *p, const char *name)
{
    int other = -1;

    for (int i = 0; i < p->n_flags; i++)
        if (p->flags[i].name && strcmp(p->flags[i].name, name) == 0) {
            if (belongs(p, &p->flags[i]))
                return i;
            other = i;
        }
    return other;
}

/* The flags' names, then what others call them. */
static const char *flag_candidate(int i, void *ctx)
{
    const parser *p = ctx;
    const flag *f = &p->flags[i % p->n_flags];

    if (!belongs(p, f) || !f->commands)
        return NULL;
    return i < p->n_flags ? f->name : f->also;
}

static const char *switch_candidate(int i, void *ctx)
{
    const parser *p = ctx;

    return flags_is_switch(&p->flags[i]) ? flag_candidate(i, ctx) : NULL;
}

static int fail_unknown(parser *p, const char *arg, const char *name)
{
    bool no = strncmp(name, "no-", 3) == 0;
    const char *near = no ? nearest_name(name + 3, switch_candidate, p->n_flags, p) : NULL;
    int shown = (int)strcspn(arg, "=");

    if (!near) {
        no = false;
        near = flags_proper(nearest_name(name, flag_candidate, 2 * p->n_flags, p));
    }
    if (!near)
        return cli_fail(EXIT_BAD_INPUT, "unknown flag %.*s; see accrue %s --help", shown, arg,
                        p->argv[0]);
    return cli_fail(EXIT_BAD_INPUT, "unknown flag %.*s; did you mean --%s%s?", shown, arg,
                    no ? "no-" : "", near);
}

/* Flags ----------------------------------------------------------------------------------- */

/* Whether argv[next] can be a value: everything but a flag; -1 is a number. */
static bool is_value(const parser *p, int i)
{
    if (i >= p->argc)
        return false;
    const char *s = p->argv[i];
    return s[0] != '-' || !s[1] || isdigit((unsigned char)s[1]) || s[1] == '.';
}

static int take_list(parser *p, const flag *f, const char *where, const char *inline_value)
{
    int n = 0, bad = 0;

    if (inline_value)
        bad = flag_read_list(p->o, f, where, inline_value, &n);
    while (!bad && !inline_value && is_value(p, p->next))
        bad = flag_read_list(p->o, f, where, p->argv[p->next++], &n);
    if (bad)
        return bad;
    if (!n)
        return cli_fail(EXIT_BAD_INPUT, "%s: at least one value expected", where);
    flag_set_list(p->o, f, n);
    return 0;
}

static void note_ignored(parser *p, const flag *f, const char *value)
{
    size_t used = strlen(p->ignored);
    bool *noted = &p->noted[f - p->flags];

    if (!*noted && !flag_is_peers(f, value))
        snprintf(p->ignored + used, sizeof p->ignored - used, "%s--%s", used ? ", " : "", f->name);
    *noted |= !flag_is_peers(f, value);
}

static int take_switch(parser *p, const flag *f, bool on, const char *inline_value)
{
    char where[NAME_BYTES + 8];

    snprintf(where, sizeof where, "--%s%s", on ? "" : "no-", f->name);
    if (inline_value)
        return cli_fail(EXIT_BAD_INPUT, "%s: '%s', no value expected; --%s or --no-%s", where,
                        inline_value, f->name, f->name);
    if (f->role == ROLE_LATER)
        return flag_check_later(f, where, on ? "true" : "false");
    if (f->role == ROLE_IGNORED)
        note_ignored(p, f, on ? "true" : "false");
    else
        flag_set_switch(p->o, f, on);
    return 0;
}

static int take_flag(parser *p, int index, bool on, const char *inline_value)
{
    const flag *f = &p->flags[index];
    const char *value = inline_value;
    char where[NAME_BYTES + 8];

    p->o->origin[index] = ORIGIN_LINE;
    if (flags_is_switch(f))
        return take_switch(p, f, on, inline_value);
    snprintf(where, sizeof where, "--%s", f->name);
    if (f->kind == FLAG_INTS)
        return take_list(p, f, where, inline_value);
    if (!value) {
        if (!is_value(p, p->next))
            return cli_fail(EXIT_BAD_INPUT, "%s: a value expected", where);
        value = p->argv[p->next++];
    }
    if (f->role == ROLE_LATER)
        return flag_check_later(f, where, value);
    if (f->role == ROLE_IGNORED) {
        note_ignored(p, f, value);
        return 0;
    }
    return flag_read(p->o, f, where, value);
}

static int take_argument(parser *p)
{
    const char *arg = p->argv[p->next++];
    char name[NAME_BYTES];
    bool on = true;

    if (strcmp(arg, "-h") == 0)
        arg = "--help";
    if (strncmp(arg, "--", 2) != 0 || !arg[2]) {
        int room = p->command & (FOR_PLOT | FOR_PREPARE)                                ? MAX_DIRS
                   : p->command & (FOR_INSPECT | FOR_CHECK | FOR_IMPORT | FOR_GENERATE) ? 1
                                                                                        : 0;
        if (arg[0] != '-' && p->o->n_dirs < room) {
            p->o->dirs[p->o->n_dirs++] = arg;
            return 0;
        }
        if (arg[0] != '-' && room > 1)
            return cli_fail(EXIT_BAD_INPUT, "%s: %s is one too many, at most %d %s expected",
                            p->argv[0], arg, room, p->command == FOR_PLOT ? "runs" : "files");
        return cli_fail(EXIT_BAD_INPUT, "unexpected argument '%s'; see accrue %s --help", arg,
                        p->argv[0]);
    }
    const char *equals = strchr(arg, '=');
    size_t len = equals ? (size_t)(equals - arg) - 2 : strlen(arg) - 2;
    snprintf(name, sizeof name, "%.*s", (int)(len < NAME_BYTES ? len : NAME_BYTES), arg + 2);
    for (char *s = name; *s; s++)
        if (*s == '_')
            *s = '-';

    int i = find(p, name);
    if (i < 0 && strncmp(name, "no-", 3) == 0) {
        i = find(p, name + 3);
        on = false;
        if (i >= 0 && !flags_is_switch(&p->flags[i]))
            i = -1;
    }
    if (i < 0 || !belongs(p, &p->flags[i]))
        return fail_unknown(p, arg, name);
    return take_flag(p, i, on, equals ? equals + 1 : NULL);
}

int flags_parse(cli_options *o, unsigned command, int argc, char **argv)
{
    parser p = {.o = o, .command = command, .argc = argc, .argv = argv, .next = 1};
    int bad = 0;

    p.flags = flags_table(&p.n_flags);
    while (!bad && !o->help && p.next < argc)
        bad = take_argument(&p);
    if (!bad && !o->help && p.ignored[0])
        cli_notice("no meaning here, ignored: %s", p.ignored);
    if (!bad && !o->help && o->config)
        bad = config_load(o, command);
    return bad;
}
