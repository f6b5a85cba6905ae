/* flag_value.c - the value of a flag from text, wherever that was written. */
#include "flags.h"

#include "cli.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *field(cli_options *o, size_t at)
{
    return (char *)o + at;
}

/* "--on-missing generate", "run.yaml:9: train.generation.on_missing: generate" */
static const char *joint(const char *where)
{
    return strncmp(where, "--", 2) == 0 ? " " : ": ";
}

/* "--epochs: 0, at least 1 expected" */
static int fail_range(const flag *f, const char *where, const char *value, const char *number)
{
    if (isinf(f->max))
        return cli_fail(EXIT_BAD_INPUT, "%s: %s, %s %s %.15g expected", where, value, number,
                        f->above ? "above" : "of at least", f->min);
    return cli_fail(EXIT_BAD_INPUT, "%s: %s, %s %s %.15g and at most %.15g expected", where, value,
                    number, f->above ? "above" : "of at least", f->min, f->max);
}

static bool in_range(const flag *f, double x)
{
    return (f->above ? x > f->min : x >= f->min) && x <= f->max;
}

static int read_integer(int64_t *out, const flag *f, const char *where, const char *value,
                        int64_t most)
{
    char *end = NULL;

    errno = 0;
    long long n = strtoll(value, &end, 10);
    if (end == value || *end)
        return cli_fail(EXIT_BAD_INPUT, "%s: '%s', a whole number expected", where, value);
    if (errno == ERANGE || n > most || n < -most)
        return cli_fail(EXIT_BAD_INPUT, "%s: %s, at most %lld expected", where, value,
                        (long long)most);
    if (!in_range(f, (double)n))
        return fail_range(f, where, value, "a whole number");
    *out = n;
    return 0;
}

static int read_unsigned(uint64_t *out, const flag *f, const char *where, const char *value)
{
    char *end = NULL;

    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (end == value || *end)
        return cli_fail(EXIT_BAD_INPUT, "%s: '%s', a whole number expected", where, value);
    if (strchr(value, '-'))
        return fail_range(f, where, value, "a whole number");
    if (errno == ERANGE)
        return cli_fail(EXIT_BAD_INPUT, "%s: %s, at most %llu expected", where, value,
                        (unsigned long long)UINT64_MAX);
    *out = n;
    return 0;
}

static int read_double(double *out, const flag *f, const char *where, const char *value)
{
    char *end = NULL;

    errno = 0;
    double x = strtod(value, &end);
    if (end == value || *end || !isfinite(x))
        return cli_fail(EXIT_BAD_INPUT, "%s: '%s', a number expected", where, value);
    if (!in_range(f, x))
        return fail_range(f, where, value, "a number");
    *out = x;
    return 0;
}

static int read_choice(const flag_choice **out, const flag *f, const char *where, const char *value)
{
    char names[200] = "";

    for (const flag_choice *c = f->choices; c->name; c++) {
        if (strcmp(c->name, value) == 0 && c->value == CHOICE_LATER)
            return cli_fail(EXIT_BAD_INPUT, "%s%s%s is not supported yet%s%s", where, joint(where),
                            value, f->instead ? "; " : "", f->instead ? f->instead : "");
        if (strcmp(c->name, value) == 0) {
            *out = c;
            return 0;
        }
        if (c->value != CHOICE_LATER) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", c->name);
        }
    }
    return cli_fail(EXIT_BAD_INPUT, "%s: '%s', one of %s expected", where, value, names);
}

int flag_read_list(cli_options *o, const flag *f, const char *where, const char *value, int *n)
{
    int *store = field(o, f->store);

    for (const char *s = value;; s++) {
        char one[24];
        size_t len = strcspn(s, ",");
        int64_t x = 0;
        if (len >= sizeof one)
            return cli_fail(EXIT_BAD_INPUT, "%s: '%s', whole numbers expected", where, value);
        snprintf(one, sizeof one, "%.*s", (int)len, s);
        int bad = read_integer(&x, f, where, one, INT_MAX);
        if (bad)
            return bad;
        if (*n == MAX_LIST)
            return cli_fail(EXIT_BAD_INPUT, "%s: more than %d values", where, MAX_LIST);
        store[(*n)++] = (int)x;
        s += len;
        if (!*s)
            return 0;
    }
}

int flag_read(cli_options *o, const flag *f, const char *where, const char *value)
{
    void *at = field(o, f->at);
    const flag_choice *choice = NULL;
    int64_t n = 0;
    int bad = 0, narrow = 0;

    switch (f->kind) {
    case FLAG_STRING:
        if (f->choices)
            bad = read_choice(&choice, f, where, value);
        if (!*value && f->expects)
            return cli_fail(EXIT_BAD_INPUT, "%s: '', %s expected", where, f->expects);
        if (!bad && !*value)
            value = NULL; /* the peer's '' is unset */
        memcpy(at, &value, sizeof value);
        break;
    case FLAG_INT:
        bad = read_integer(&n, f, where, value, INT_MAX);
        narrow = (int)n;
        if (!bad)
            memcpy(at, &narrow, sizeof narrow);
        break;
    case FLAG_INT64:
        bad = read_integer(&n, f, where, value, INT64_MAX);
        if (!bad)
            memcpy(at, &n, sizeof n);
        break;
    case FLAG_UINT64: bad = read_unsigned(at, f, where, value); break;
    case FLAG_DOUBLE: bad = read_double(at, f, where, value); break;
    case FLAG_CHOICE:
        bad = read_choice(&choice, f, where, value);
        if (choice)
            memcpy(at, &choice->value, sizeof choice->value);
        break;
    default: break;
    }
    return bad;
}

void flag_set_list(cli_options *o, const flag *f, int n)
{
    const int *store = field(o, f->store);

    memcpy(field(o, f->at), &store, sizeof store);
    memcpy(field(o, f->count_at), &n, sizeof n);
}

void flag_set_switch(cli_options *o, const flag *f, bool on)
{
    void *at = field(o, f->at);

    if (f->kind == FLAG_TRISTATE)
        *(int *)at = on;
    else
        *(bool *)at = on;
}

bool flag_is_peers(const flag *f, const char *value)
{
    char *end_a = NULL, *end_b = NULL;

    if (!f->peer || !*f->peer || !*value || strcmp(f->peer, value) == 0)
        return f->peer && strcmp(f->peer, value) == 0;
    double a = strtod(f->peer, &end_a), b = strtod(value, &end_b);
    return !*end_a && !*end_b && fabs(a - b) <= 0;
}

/* A flag of the peer's that accrue lacks passes with the value that is what accrue does. */
int flag_check_later(const flag *f, const char *where, const char *value)
{
    if (flag_is_peers(f, value))
        return 0;
    if (flags_is_switch(f) && strncmp(where, "--", 2) == 0)
        return cli_fail(EXIT_BAD_INPUT, "%s is not supported yet", where);
    return cli_fail(EXIT_BAD_INPUT, "%s%s%s is not supported yet", where, joint(where),
                    *value ? value : "''");
}
