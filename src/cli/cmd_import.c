/* cmd_import.c - accrue import: a GGUF file as a Hugging Face folder, and a table of what came of
 * it. */
#include "cli.h"

#include "flags.h"

#include <jansson.h>

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
    table_cell(&t, "%s, %s layer%s, vocabulary %s, %s", r->architecture, format_count(r->layers).s,
               r->layers == 1 ? "" : "s", format_count(r->vocab_size).s, r->dtype);
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

    return cli_print_json(root);
}

static int import(const cli_options *o)
{
    work w;
    accrue_import_options opt;
    accrue_import_report report;
    accrue_error err = {0};
    int code = EXIT_SUCCESS;

    accrue_import_options_init(&opt, sizeof opt);
    opt.model = o->dirs[0];
    opt.out = o->out;
    opt.dtype = o->import_dtype;
    work_begin(&w, o->json);
    w.begins_anew = true;
    accrue_status status = accrue_import(&report, &opt, work_progress, &w, &err);
    code = work_end(&w, status, &err);
    if (code)
        return code;
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
