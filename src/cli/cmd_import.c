/* cmd_import.c - accrue import: a GGUF file as a Hugging Face folder, and a table of what came of
 * it. */
#include "cli.h"

#include "flags.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double redraw_seconds = 0.1, line_seconds = 5;

typedef struct importing {
    bool silent, terminal, drawn;
    double told; /* when progress was last shown */
} importing;

static int on_progress(const accrue_progress *p, void *payload)
{
    importing *i = payload;
    double rate = ratio((double)p->done, p->seconds);
    char line[200];

    if (signals_stopped())
        return 1;
    if (i->silent || p->seconds - i->told < (i->terminal ? redraw_seconds : line_seconds))
        return 0;
    i->told = p->seconds;
    snprintf(line, sizeof line, "%s of %s  %s/s  %s left", format_bytes(p->done).s,
             format_bytes(p->total).s, format_bytes((int64_t)rate).s,
             format_duration(ratio((double)(p->total - p->done), rate)).s);
    if (i->terminal)
        printf("\r\033[K%s", line);
    else
        printf("%s\n", line);
    i->drawn = i->terminal;
    fflush(stdout);
    return 0;
}

static void type_row(table *t, const accrue_import_type *k)
{
    table_cell(t, "%s", k->name);
    table_cell(t, "%s", format_count(k->tensors).s);
    table_cell(t, "%s", format_count(k->parameters).s);
    table_cell(t, "%s", format_bytes(k->source_bytes).s);
    table_cell(t, "%s", format_bytes(k->bytes).s);
}

static void print_types(const accrue_import_report *r)
{
    accrue_import_type all = {.name = "all"};
    table t;

    table_init(&t, 5);
    table_cell(&t, "type");
    table_cell(&t, "tensors");
    table_cell(&t, "parameters");
    table_cell(&t, "in the file");
    table_cell(&t, "in the folder");
    for (int k = 0; k < r->n_types; k++) {
        type_row(&t, &r->types[k]);
        all.tensors += r->types[k].tensors;
        all.parameters += r->types[k].parameters;
        all.source_bytes += r->types[k].source_bytes;
        all.bytes += r->types[k].bytes;
    }
    type_row(&t, &all);
    table_print(&t, stdout, "lrrrr", 0, true);
    table_free(&t);
}

static void print_summary(const accrue_import_report *r, const char *out)
{
    table t;

    table_init(&t, 2);
    table_cell(&t, "model");
    table_cell(&t, "%s, %s layers, vocabulary %s, %s", r->architecture, format_count(r->layers).s,
               format_count(r->vocab_size).s, r->dtype);
    table_cell(&t, "tokenizer");
    if (r->tokenizer)
        table_cell(&t, "tokenizer.json%s",
                   r->chat_template ? ", chat_template.jinja" : "; no chat template");
    else
        table_cell(&t, "none: %s", r->tokenizer_why);
    table_cell(&t, "folder");
    if (r->found)
        table_cell(&t, "%s, an import of this file already; nothing was written", out);
    else
        table_cell(&t, "%s, %s in %.2f s", out, format_bytes(r->bytes).s, r->seconds);
    printf("\n");
    table_print(&t, stdout, "ll", 0, false);
    table_free(&t);
}

static json_t *types_json(const accrue_import_report *r)
{
    json_t *list = json_array();

    for (int k = 0; k < r->n_types; k++) {
        const accrue_import_type *t = &r->types[k];
        json_t *type =
            json_pack("{s:s, s:I, s:I, s:I, s:I}", "type", t->name, "tensors",
                      (json_int_t)t->tensors, "parameters", (json_int_t)t->parameters,
                      "source_bytes", (json_int_t)t->source_bytes, "bytes", (json_int_t)t->bytes);
        if (json_array_append_new(list, type)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int print_json(const accrue_import_report *r)
{
    json_t *why = r->tokenizer ? json_null() : json_string(r->tokenizer_why);
    json_t *root =
        json_pack("{s:b, s:s, s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:o, s:b, s:b, s:o, s:f}", "found",
                  (int)r->found, "architecture", r->architecture, "layers", (json_int_t)r->layers,
                  "vocab_size", (json_int_t)r->vocab_size, "dtype", r->dtype, "tensors",
                  (json_int_t)r->tensors, "parameters", (json_int_t)r->parameters, "source_bytes",
                  (json_int_t)r->source_bytes, "bytes", (json_int_t)r->bytes, "types",
                  types_json(r), "tokenizer", (int)r->tokenizer, "chat_template",
                  (int)r->chat_template, "tokenizer_why", why, "seconds", r->seconds);
    int failed = !root || json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));

    if (!failed)
        printf("\n");
    json_decref(root);
    return failed ? cli_fail(EXIT_FAILURE, "out of memory for the report") : EXIT_SUCCESS;
}

static int import(const cli_options *o)
{
    const char *term = getenv("TERM");
    importing i = {.silent = o->json};
    accrue_import_options opt;
    accrue_import_report report;
    accrue_error err = {0};

    i.terminal = isatty(STDOUT_FILENO) && !(term && strcmp(term, "dumb") == 0);
    accrue_import_options_init(&opt, sizeof opt);
    opt.model = o->dirs[0];
    opt.out = o->out;
    opt.dtype = o->import_dtype;
    signals_catch(0, false);
    signals_begin();
    accrue_status status = accrue_import(&report, &opt, on_progress, &i, &err);
    if (i.drawn)
        printf("\r\033[K");
    if (status)
        return cli_fail(signals_stopped() ? 128 + signals_stopped() : cli_exit_code(status), "%s",
                        err.message);
    if (o->json)
        return print_json(&report);
    print_types(&report);
    print_summary(&report, o->out);
    return EXIT_SUCCESS;
}

int cmd_import(int argc, char **argv)
{
    static cli_options o;
    int bad = 0;

    flags_init(&o);
    bad = flags_parse(&o, FOR_IMPORT, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_IMPORT);
        return cli_finish(EXIT_SUCCESS);
    }
    if (!o.dirs[0])
        return cli_fail(EXIT_BAD_INPUT, "import: a GGUF file expected; see accrue import --help");
    if (!o.out)
        return cli_fail(EXIT_BAD_INPUT, "--out: a folder expected; see accrue import --help");
    return cli_finish(import(&o));
}
