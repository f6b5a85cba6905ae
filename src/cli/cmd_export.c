/* cmd_export.c - accrue export: a draft as llama.cpp reads it, and what that loses. */
#include "cli.h"

#include "flags.h"

#include <string.h>

typedef struct exporting {
    const cli_options *o;
    work work;
} exporting;

static const char *string_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));

    return s ? s : "";
}

static figure count_of(const json_t *object, const char *key)
{
    return format_count(json_integer_value(json_object_get(object, key)));
}

static void shape_text(char *out, size_t bytes, const json_t *shape)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < json_array_size(shape) && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%lld", i ? " x " : "",
                                 (long long)json_integer_value(json_array_get(shape, i)));
}

static void print_tensors(const json_t *tensors)
{
    table t;
    char shape[100];

    table_init(&t, 5);
    table_cell(&t, "tensor");
    table_cell(&t, "from");
    table_cell(&t, "type");
    table_cell(&t, "shape");
    table_cell(&t, "bytes");
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *one = json_array_get(tensors, i);
        table_cell(&t, "%s", string_of(one, "name"));
        table_cell(&t, "%s", string_of(one, "from"));
        table_cell(&t, "%s", string_of(one, "type"));
        shape_text(shape, sizeof shape, json_object_get(one, "shape"));
        table_cell(&t, "%s", shape);
        table_cell(&t, "%s", count_of(one, "bytes").s);
    }
    table_print(&t, stdout, "lllrr", 0, true);
    table_free(&t);
}

static void print_report(const json_t *r)
{
    const json_t *lost = json_object_get(r, "lost");
    const size_t n = json_array_size(lost);

    print_tensors(json_object_get(r, "tensors"));
    printf("\n%s: %s bytes, %s keys, %s parameters\n", string_of(r, "path"), count_of(r, "bytes").s,
           count_of(r, "keys").s, count_of(r, "parameters").s);
    printf(n ? "\nLost:\n" : "\nNothing is lost.\n");
    for (size_t i = 0; i < n; i++)
        printf("  %s: %s.\n", string_of(json_array_get(lost, i), "what"),
               string_of(json_array_get(lost, i), "effect"));
}

static int show(const char *text, const exporting *x)
{
    json_error_t error;
    json_t *root = NULL;

    if (x->o->json) {
        printf("%s", text);
        return EXIT_SUCCESS;
    }
    root = json_loads(text, 0, &error);
    if (!root)
        return cli_fail(EXIT_FAILURE, "%s: the library's report is no JSON: %s", x->o->out,
                        error.text);
    print_report(root);
    json_decref(root);
    return EXIT_SUCCESS;
}

static int export_draft(const cli_options *o)
{
    exporting x = {.o = o};
    accrue_export_options opt;
    accrue_error err = {0};
    char *text = NULL;
    int code = 0;

    accrue_export_options_init(&opt, sizeof opt);
    opt.checkpoint = o->dirs[0];
    opt.verifier = o->train.verifier;
    opt.out = o->out;
    opt.dtype = o->export_dtype;
    work_begin(&x.work, o->json);
    x.work.begins_anew = true;
    accrue_status status = accrue_export(&text, &opt, work_progress, &x.work, &err);
    code = work_end(&x.work, status, &err);
    if (!code)
        code = show(text, &x);
    accrue_string_free(text);
    return code;
}

int cmd_export(int argc, char **argv)
{
    static cli_options o;
    int bad = 0;

    flags_init(&o);
    bad = flags_parse(&o, FOR_EXPORT, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_EXPORT);
        return cli_finish(EXIT_SUCCESS);
    }
    if (!o.dirs[0])
        return cli_fail(EXIT_BAD_INPUT,
                        "export: a checkpoint's folder expected; see accrue export --help");
    if (!o.out)
        return cli_fail(EXIT_BAD_INPUT, "export: --out FILE expected; see accrue export --help");
    if (!o.train.verifier)
        return cli_fail(EXIT_BAD_INPUT,
                        "export: --verifier-name-or-path DIR expected, as the file carries its "
                        "tokenizer");
    return cli_finish(export_draft(&o));
}
