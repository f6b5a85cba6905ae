/* config_write.c - the resolved configuration: for --dump-config, and, with the origin of every
 * value, run.yaml.  Both are read back by --config to the same values. */
#include "config.h"

#include "cli.h"

#include "flags.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 1e-05 as YAML 1.1 knows a float, 1.0e-05. */
static void print_double(FILE *out, const char *value)
{
    size_t mantissa = strcspn(value, "e");

    fprintf(out, "%.*s%s%s", (int)mantissa, value, memchr(value, '.', mantissa) ? "" : ".0",
            value + mantissa);
}

static void print_list(FILE *out, const char *value)
{
    fputc('[', out);
    for (; *value; value++)
        fputs(*value == ' ' ? ", " : (char[]){*value, '\0'}, out);
    fputc(']', out);
}

/* False where YAML cannot hold it: a string that is not UTF-8. */
static bool print_string(FILE *out, const char *text)
{
    char *quoted = config_quote(text);
    bool fine = quoted;

    fputs(fine ? quoted : "null", out);
    free(quoted);
    return fine;
}

static void print_value(FILE *out, const flag *f, const char *value)
{
    if (!value[0])
        fputs(f->peer ? f->peer : "null", out);
    else if (flags_is_switch(f))
        fputs(value[0] == 'y' ? "true" : "false", out);
    else if (f->kind == FLAG_DOUBLE)
        print_double(out, value);
    else if (f->kind == FLAG_INTS)
        print_list(out, value);
    else
        fputs(value, out);
}

/* A comment ends with its line. */
static void print_comment(FILE *out, const char *text)
{
    for (; *text; text++)
        fputc((unsigned char)*text < ' ' || (unsigned char)*text >= 127 ? '?' : *text, out);
}

/* "  # default: --lr" */
static void print_origin(FILE *out, const cli_options *o, int i, const char *unset)
{
    static const char *const origins[] = {"default", "command line"};

    fputs("  # ", out);
    print_comment(out, o->origin[i] == ORIGIN_FILE ? o->config : origins[o->origin[i]]);
    if (unset)
        fprintf(out, ": %s", unset);
}

static void print_key(FILE *out, const cli_options *o, int i, int indent, bool origins)
{
    int n = 0;
    const flag *f = &flags_table(&n)[i];
    char key[80], value[1000] = "";
    const char *string = NULL, *unset = NULL;
    bool fine = true;

    snprintf(key, sizeof key, "%s", f->name);
    for (char *s = key; *s; s++)
        if (*s == '-')
            *s = '_';
    fprintf(out, "%*s%s: ", indent, "", key);
    if (f->role == ROLE_USED)
        flags_value(value, sizeof value, f, o);
    if (f->role == ROLE_USED && f->kind == FLAG_STRING)
        memcpy(&string, (const char *)o + f->at, sizeof string);
    if (string || (f->kind == FLAG_STRING && f->peer))
        fine = print_string(out, string ? string : f->peer);
    else
        print_value(out, f, value);
    unset = value[0] || f->peer ? NULL : f->unset; /* of a null */
    if (!fine)
        fputs("  # not UTF-8: give it on the command line", out);
    else if (origins)
        print_origin(out, o, i, unset);
    else if (unset)
        fprintf(out, "  # %s", unset);
    fputc('\n', out);
}

/* Whether flag `i` is a key of `section` and its value this run's. */
static bool holds(const char *section, int i, const flag *f, const cli_options *o)
{
    bool shown = f->role == ROLE_USED || (f->role == ROLE_LATER && f->commands);

    return shown && f->kind != FLAG_GROUP && flags_section(i) &&
           strcmp(flags_section(i), section) == 0 && !flags_decided(o, f);
}

static void print_section(FILE *out, const cli_options *o, const char *section, bool origins)
{
    int n = 0;
    const flag *flags = flags_table(&n);
    bool begun = !*section;

    for (int i = 0; i < n; i++) {
        if (!holds(section, i, &flags[i], o))
            continue;
        if (!begun)
            fprintf(out, "  %s:\n", section);
        begun = true;
        print_key(out, o, i, *section ? 4 : 2, origins);
    }
}

/* Whether no heading after `i` has its section: the peer's order. */
static bool is_last(const flag *flags, int n, int i)
{
    const char *section = flags[i].section;

    for (i++; i < n; i++)
        if (flags[i].kind == FLAG_GROUP && flags[i].section &&
            strcmp(flags[i].section, section) == 0)
            return false;
    return true;
}

static void print_config(FILE *out, const cli_options *o, bool origins)
{
    int n = 0;
    const flag *flags = flags_table(&n);

    fputs("train:\n", out);
    for (int i = 0; i < n; i++) {
        const char *section = flags[i].kind == FLAG_GROUP ? flags[i].section : NULL;
        if (section && is_last(flags, n, i))
            print_section(out, o, section, origins);
    }
}

void config_dump(const cli_options *o, FILE *out)
{
    print_config(out, o, false);
}

static int write_file(const cli_options *o, const char *path)
{
    FILE *out = fopen(path, "we");
    int failed = 0;

    if (!out)
        return -1;
    fprintf(out,
            "# accrue %s: what this run was told, and where.  accrue train --config reads it.\n",
            accrue_version());
    print_config(out, o, true);
    failed = fflush(out) || ferror(out) || fsync(fileno(out));
    if (fclose(out) || failed)
        return -1;
    return 0;
}

int config_save(const cli_options *o, char *failure, size_t bytes)
{
    const char *folder = o->train.save_path;
    size_t room = strlen(folder) + sizeof "/.run.yaml.tmp";
    char *path = cli_realloc(NULL, room, 1), *temporary = cli_realloc(NULL, room, 1);
    int failed = 0;

    snprintf(path, room, "%s/run.yaml", folder);
    snprintf(temporary, room, "%s/.run.yaml.tmp", folder);
    failed = cli_make_folder(folder) || write_file(o, temporary) || rename(temporary, path);
    if (failed) {
        snprintf(failure, bytes, "%s: %s", path, strerror(errno));
        unlink(temporary);
    }
    free(path);
    free(temporary);
    return failed ? -1 : 0;
}
