/* flags.c - reads a command line against the table.
 *
 * The syntax is argparse's: --flag value, --flag=value, --flag and --no-flag, several values after
 * a list flag, the last of repeated flags wins; underscores pass for dashes.  argp would print
 * three lines for a mistake and knows no lists, so it renders the help and parses nothing. */
#include "flags.h"

#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 80

typedef struct parser {
    cli_options *o;
    const flag *flags;
    int n_flags;
    unsigned command;
    int argc, next;
    char **argv;
    char ignored[600];
} parser;

static void *field(cli_options *o, size_t at)
{
    return (char *)o + at;
}

void flags_init(cli_options *o)
{
    memset(o, 0, sizeof *o);
    accrue_train_options_init(&o->train, sizeof o->train);
    o->log_freq = 1;
}

bool flags_given(const cli_options *o, const char *name)
{
    int n = 0;
    const flag *flags = flags_table(&n);

    for (int i = 0; i < n; i++)
        if (flags[i].name && strcmp(flags[i].name, name) == 0)
            return o->given[i];
    return false;
}

static bool is_switch(const flag *f)
{
    return f->kind == FLAG_BOOL || f->kind == FLAG_TRISTATE;
}

static int find(const parser *p, const char *name)
{
    for (int i = 0; i < p->n_flags; i++)
        if (p->flags[i].name && strcmp(p->flags[i].name, name) == 0)
            return i;
    return -1;
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

const char *nearest_name(const char *word, const char *(*candidate)(int i, void *ctx), int n,
                         void *ctx)
{
    size_t len = strlen(word);
    int best = (int)(len / 2) + 1; /* farther than this is no resemblance */
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

/* Train and verify take each other's flags, so that a command line can be used for both. */
static bool belongs(const parser *p, const flag *f)
{
    if (p->command == FOR_INSPECT || p->command == FOR_CHECK)
        return f->commands & p->command;
    if (p->command == FOR_TRAIN)
        return f->commands & FOR_TRAIN || !f->commands;
    return true;
}

static const char *flag_candidate(int i, void *ctx)
{
    const parser *p = ctx;
    const flag *f = &p->flags[i];

    return belongs(p, f) && f->commands ? f->name : NULL;
}

static const char *switch_candidate(int i, void *ctx)
{
    const parser *p = ctx;

    return is_switch(&p->flags[i]) ? flag_candidate(i, ctx) : NULL;
}

static int fail_unknown(parser *p, const char *arg, const char *name)
{
    bool no = strncmp(name, "no-", 3) == 0;
    const char *near = no ? nearest_name(name + 3, switch_candidate, p->n_flags, p) : NULL;
    int shown = (int)strcspn(arg, "=");

    if (!near) {
        no = false;
        near = nearest_name(name, flag_candidate, p->n_flags, p);
    }
    if (!near)
        return cli_fail(EXIT_BAD_INPUT, "unknown flag %.*s; see accrue %s --help", shown, arg,
                        p->argv[0]);
    return cli_fail(EXIT_BAD_INPUT, "unknown flag %.*s; did you mean --%s%s?", shown, arg,
                    no ? "no-" : "", near);
}

/* Values ---------------------------------------------------------------------------------- */

/* "--epochs: 0, at least 1 expected" */
static int fail_range(const flag *f, const char *value, const char *number)
{
    if (isinf(f->max))
        return cli_fail(EXIT_BAD_INPUT, "--%s: %s, %s %s %.15g expected", f->name, value, number,
                        f->above ? "above" : "of at least", f->min);
    return cli_fail(EXIT_BAD_INPUT, "--%s: %s, %s %s %.15g and at most %.15g expected", f->name,
                    value, number, f->above ? "above" : "of at least", f->min, f->max);
}

static bool in_range(const flag *f, double x)
{
    return (f->above ? x > f->min : x >= f->min) && x <= f->max;
}

static int read_integer(int64_t *out, const flag *f, const char *value, int64_t most)
{
    char *end = NULL;

    errno = 0;
    long long n = strtoll(value, &end, 10);
    if (end == value || *end)
        return cli_fail(EXIT_BAD_INPUT, "--%s: '%s', a whole number expected", f->name, value);
    if (errno == ERANGE || n > most || n < -most)
        return cli_fail(EXIT_BAD_INPUT, "--%s: %s, at most %lld expected", f->name, value,
                        (long long)most);
    if (!in_range(f, (double)n))
        return fail_range(f, value, "a whole number");
    *out = n;
    return 0;
}

static int read_unsigned(uint64_t *out, const flag *f, const char *value)
{
    char *end = NULL;

    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (end == value || *end)
        return cli_fail(EXIT_BAD_INPUT, "--%s: '%s', a whole number expected", f->name, value);
    if (strchr(value, '-'))
        return fail_range(f, value, "a whole number");
    if (errno == ERANGE)
        return cli_fail(EXIT_BAD_INPUT, "--%s: %s, at most %llu expected", f->name, value,
                        (unsigned long long)UINT64_MAX);
    *out = n;
    return 0;
}

static int read_double(double *out, const flag *f, const char *value)
{
    char *end = NULL;

    errno = 0;
    double x = strtod(value, &end);
    if (end == value || *end || !isfinite(x))
        return cli_fail(EXIT_BAD_INPUT, "--%s: '%s', a number expected", f->name, value);
    if (!in_range(f, x))
        return fail_range(f, value, "a number");
    *out = x;
    return 0;
}

static int read_choice(const flag_choice **out, const flag *f, const char *value)
{
    char names[200] = "";

    for (const flag_choice *c = f->choices; c->name; c++) {
        if (strcmp(c->name, value) == 0 && c->value == CHOICE_LATER)
            return cli_fail(EXIT_BAD_INPUT, "--%s %s is not supported yet", f->name, value);
        if (strcmp(c->name, value) == 0) {
            *out = c;
            return 0;
        }
        if (c->value != CHOICE_LATER) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", c->name);
        }
    }
    return cli_fail(EXIT_BAD_INPUT, "--%s: '%s', one of %s expected", f->name, value, names);
}

/* Adds the numbers of one argument, "2" or "2,15,27". */
static int read_list(parser *p, const flag *f, const char *value, int *n)
{
    int *store = field(p->o, f->store);

    for (const char *s = value;; s++) {
        char one[24];
        size_t len = strcspn(s, ",");
        int64_t x = 0;
        if (len >= sizeof one)
            return cli_fail(EXIT_BAD_INPUT, "--%s: '%s', whole numbers expected", f->name, value);
        snprintf(one, sizeof one, "%.*s", (int)len, s);
        int bad = read_integer(&x, f, one, INT_MAX);
        if (bad)
            return bad;
        if (*n == MAX_LIST)
            return cli_fail(EXIT_BAD_INPUT, "--%s: more than %d values", f->name, MAX_LIST);
        store[(*n)++] = (int)x;
        s += len;
        if (!*s)
            return 0;
    }
}

/* Whether argv[next] can be a value: everything but a flag; -1 is a number. */
static bool is_value(const parser *p, int i)
{
    if (i >= p->argc)
        return false;
    const char *s = p->argv[i];
    return s[0] != '-' || !s[1] || isdigit((unsigned char)s[1]) || s[1] == '.';
}

static int take_list(parser *p, const flag *f, const char *inline_value)
{
    int n = 0, bad = 0;
    const int *store = field(p->o, f->store);

    if (inline_value)
        bad = read_list(p, f, inline_value, &n);
    while (!bad && !inline_value && is_value(p, p->next))
        bad = read_list(p, f, p->argv[p->next++], &n);
    if (bad)
        return bad;
    if (!n)
        return cli_fail(EXIT_BAD_INPUT, "--%s: at least one value expected", f->name);
    memcpy(field(p->o, f->at), &store, sizeof store);
    memcpy(field(p->o, f->count_at), &n, sizeof n);
    return 0;
}

static int store_value(parser *p, const flag *f, const char *value)
{
    void *at = field(p->o, f->at);
    const flag_choice *choice = NULL;
    int64_t n = 0;
    int bad = 0, narrow = 0;

    switch (f->kind) {
    case FLAG_STRING:
        if (f->choices)
            bad = read_choice(&choice, f, value);
        if (!bad && !*value)
            value = NULL; /* the peer's '' is unset */
        memcpy(at, &value, sizeof value);
        break;
    case FLAG_INT:
        bad = read_integer(&n, f, value, INT_MAX);
        narrow = (int)n;
        if (!bad)
            memcpy(at, &narrow, sizeof narrow);
        break;
    case FLAG_INT64:
        bad = read_integer(&n, f, value, INT64_MAX);
        if (!bad)
            memcpy(at, &n, sizeof n);
        break;
    case FLAG_UINT64: bad = read_unsigned(at, f, value); break;
    case FLAG_DOUBLE: bad = read_double(at, f, value); break;
    case FLAG_CHOICE:
        bad = read_choice(&choice, f, value);
        if (choice)
            memcpy(at, &choice->value, sizeof choice->value);
        break;
    default: break;
    }
    return bad;
}

static void set_switch(parser *p, const flag *f, bool on)
{
    void *at = field(p->o, f->at);

    if (f->kind == FLAG_TRISTATE)
        *(int *)at = on;
    else
        *(bool *)at = on;
}

/* A flag of the peer's that accrue lacks passes with the value that is what accrue does. */
static int check_later(const flag *f, const char *value)
{
    char *end_a = NULL, *end_b = NULL;

    if (f->peer && strcmp(f->peer, value) == 0)
        return 0;
    if (f->peer && *f->peer && *value) {
        double a = strtod(f->peer, &end_a), b = strtod(value, &end_b);
        if (!*end_a && !*end_b && fabs(a - b) <= 0)
            return 0;
    }
    if (is_switch(f))
        return cli_fail(EXIT_BAD_INPUT, "--%s%s is not supported yet",
                        strcmp(value, "true") == 0 ? "" : "no-", f->name);
    return cli_fail(EXIT_BAD_INPUT, "--%s %s is not supported yet", f->name, *value ? value : "''");
}

/* Flags ----------------------------------------------------------------------------------- */

static void note_ignored(parser *p, const flag *f)
{
    size_t used = strlen(p->ignored);
    char name[NAME_BYTES + 4];

    snprintf(name, sizeof name, "--%s", f->name);
    if (!strstr(p->ignored, name))
        snprintf(p->ignored + used, sizeof p->ignored - used, "%s%s", used ? ", " : "", name);
}

static int take_switch(parser *p, const flag *f, bool on, const char *inline_value)
{
    if (inline_value)
        return cli_fail(EXIT_BAD_INPUT, "--%s%s: '%s', no value expected; --%s or --no-%s",
                        on ? "" : "no-", f->name, inline_value, f->name, f->name);
    if (f->role == ROLE_LATER)
        return check_later(f, on ? "true" : "false");
    if (f->role == ROLE_IGNORED)
        note_ignored(p, f);
    else
        set_switch(p, f, on);
    return 0;
}

static int take_flag(parser *p, int index, bool on, const char *inline_value)
{
    const flag *f = &p->flags[index];
    const char *value = inline_value;

    p->o->given[index] = true;
    if (is_switch(f))
        return take_switch(p, f, on, inline_value);
    if (f->kind == FLAG_INTS)
        return take_list(p, f, inline_value);
    if (!value) {
        if (!is_value(p, p->next))
            return cli_fail(EXIT_BAD_INPUT, "--%s: a value expected", f->name);
        value = p->argv[p->next++];
    }
    if (f->role == ROLE_LATER)
        return check_later(f, value);
    if (f->role == ROLE_IGNORED) {
        note_ignored(p, f);
        return 0;
    }
    return store_value(p, f, value);
}

static int take_argument(parser *p)
{
    const char *arg = p->argv[p->next++];
    char name[NAME_BYTES];
    bool on = true;

    if (strcmp(arg, "-h") == 0)
        arg = "--help";
    if (strncmp(arg, "--", 2) != 0 || !arg[2]) {
        if (p->command & (FOR_INSPECT | FOR_CHECK) && arg[0] != '-' && !p->o->dir) {
            p->o->dir = arg;
            return 0;
        }
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
        if (i >= 0 && !is_switch(&p->flags[i]))
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
    return bad;
}
