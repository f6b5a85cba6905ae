/* cmd_inspect.c - accrue inspect: renders the library's JSON for people.  The rules are general, so
 * the library can add keys: scalars are aligned lines, objects are indented under their key, arrays
 * of objects become tables. */
#include "cli.h"

#include "flags.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define CELL_BYTES 400

static bool is_plain(const json_t *v)
{
    size_t i = 0;
    json_t *item = NULL;

    if (json_is_object(v))
        return false;
    if (!json_is_array(v))
        return true;
    json_array_foreach(v, i, item) if (json_is_object(item) || json_is_array(item)) return false;
    return true;
}

static bool is_table(const json_t *v)
{
    size_t i = 0;
    json_t *item = NULL;

    if (!json_is_array(v) || !json_array_size(v))
        return false;
    json_array_foreach(v, i, item) if (!json_is_object(item)) return false;
    return true;
}

static void append(char *s, const char *part)
{
    size_t used = strlen(s);

    snprintf(s + used, CELL_BYTES - used, "%s", part);
}

static void append_integer(char *s, json_int_t n)
{
    char digits[24];

    snprintf(digits, sizeof digits, "%" JSON_INTEGER_FORMAT, n);
    append(s, digits);
}

/* One value as text, appended to `s`. */
static void render(char *s, const json_t *v)
{
    size_t i = 0;
    json_t *item = NULL;
    char *text = NULL;

    switch (json_typeof(v)) {
    case JSON_STRING: append(s, json_string_value(v)); break;
    case JSON_INTEGER: append(s, format_count(json_integer_value(v)).s); break;
    case JSON_REAL: append(s, format_short(json_real_value(v)).s); break;
    case JSON_TRUE: append(s, "yes"); break;
    case JSON_FALSE: append(s, "no"); break;
    case JSON_NULL: append(s, "-"); break;
    case JSON_ARRAY:
        if (!is_plain(v)) {
            text = json_dumps(v, JSON_COMPACT);
            append(s, text ? text : "...");
            free(text);
            break;
        }
        append(s, "[");
        json_array_foreach(v, i, item)
        {
            append(s, i ? ", " : "");
            if (json_is_integer(item)) /* a shape is read without separators */
                append_integer(s, json_integer_value(item));
            else
                render(s, item);
        }
        append(s, "]");
        break;
    case JSON_OBJECT:
        text = json_dumps(v, JSON_COMPACT);
        append(s, text ? text : "...");
        free(text);
        break;
    }
}

static void label(char *s, size_t bytes, const char *key)
{
    snprintf(s, bytes, "%s", key);
    for (; *s; s++)
        if (*s == '_')
            *s = ' ';
}

/* What a thing is stands before what it is like. */
static const char *const leading[] = {"kind", "path", "name", "file"};

static json_t *leading_first(const json_t *object)
{
    json_t *ordered = json_object(), *value = NULL;
    const char *key = NULL;

    for (size_t i = 0; i < sizeof leading / sizeof leading[0]; i++)
        if (json_object_get(object, leading[i]))
            json_object_set(ordered, leading[i], json_object_get(object, leading[i]));
    json_object_foreach((json_t *)object, key, value) json_object_set(ordered, key, value);
    return ordered;
}

/* Columns are the keys of the first row, then those that later rows add. */
static void print_rows(const json_t *rows, int indent)
{
    json_t *columns = json_object(), *sorted = NULL, *row = NULL, *value = NULL;
    const char *key = NULL;
    char cell[CELL_BYTES];
    size_t i = 0;
    int n = 0;

    json_array_foreach(rows, i, row) json_object_foreach(row, key, value)
    {
        bool number = json_is_number(value);
        json_t *known = json_object_get(columns, key);
        if (!known || (json_is_true(known) && !number && !json_is_null(value)))
            json_object_set_new(columns, key, json_boolean(number));
    }
    sorted = leading_first(columns);
    json_decref(columns);
    columns = sorted;
    n = (int)json_object_size(columns);
    char *align = cli_realloc(NULL, (size_t)n + 1, 1);
    table t;
    table_init(&t, n);
    n = 0;
    json_object_foreach(columns, key, value)
    {
        label(cell, sizeof cell, key);
        table_cell(&t, "%s", cell);
        align[n++] = json_is_true(value) ? 'r' : 'l';
    }
    align[n] = '\0';
    json_array_foreach(rows, i, row) json_object_foreach(columns, key, value)
    {
        json_t *item = json_object_get(row, key);
        cell[0] = '\0';
        if (item)
            render(cell, item);
        table_cell(&t, "%s", cell);
    }
    if (n)
        table_print(&t, stdout, align, indent, true);
    table_free(&t);
    free(align);
    json_decref(columns);
}

static void print_object(const json_t *unordered, int indent)
{
    const char *key = NULL;
    json_t *object = leading_first(unordered), *value = NULL;
    char cell[CELL_BYTES];
    table t;

    table_init(&t, 2);
    json_object_foreach((json_t *)object, key, value) if (is_plain(value))
    {
        label(cell, sizeof cell, key);
        table_cell(&t, "%s", cell);
        cell[0] = '\0';
        render(cell, value);
        table_cell(&t, "%s", cell);
    }
    table_print(&t, stdout, "ll", indent, false);
    table_free(&t);
    json_object_foreach((json_t *)object, key, value)
    {
        if (is_plain(value))
            continue;
        label(cell, sizeof cell, key);
        printf("\n%*s%s\n", indent, "", cell);
        if (is_table(value))
            print_rows(value, indent + 2);
        else if (json_is_object(value))
            print_object(value, indent + 2);
        else {
            cell[0] = '\0';
            render(cell, value);
            printf("%*s%s\n", indent + 2, "", cell);
        }
    }
    json_decref(object);
}

static int print_inspection(const char *text, const cli_options *o)
{
    json_error_t error;
    json_t *root = NULL;

    if (o->json) {
        size_t len = strlen(text);
        printf("%s%s", text, len && text[len - 1] == '\n' ? "" : "\n");
        return EXIT_SUCCESS;
    }
    root = json_loads(text, 0, &error);
    if (!root)
        return cli_fail(EXIT_FAILURE, "%s: the library's description is no JSON: %s", o->dirs[0],
                        error.text);
    print_object(root, 0);
    json_decref(root);
    return EXIT_SUCCESS;
}

int cmd_inspect(int argc, char **argv)
{
    static cli_options o;
    accrue_error err = {0};
    char *text = NULL;
    int bad = 0;

    flags_init(&o);
    bad = flags_parse(&o, FOR_INSPECT, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_INSPECT);
        return cli_finish(EXIT_SUCCESS);
    }
    if (!o.dirs[0])
        return cli_fail(EXIT_BAD_INPUT, "inspect: a folder expected; see accrue inspect --help");
    accrue_status status = accrue_inspect(&text, o.dirs[0], &err);
    if (status)
        return cli_fail(cli_exit_code(status), "%s", err.message);
    bad = print_inspection(text, &o);
    accrue_string_free(text);
    return cli_finish(bad);
}
