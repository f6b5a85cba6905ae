/* cmd_extract.c - accrue extract: the verifier's hidden states for the rows of a data set. */
#include "cli.h"

#include "flags.h"

#include <stdlib.h>
#include <string.h>

typedef struct extracting {
    work work;
    bool told; /* how much there is to do */
} extracting;

/* What it takes is said before it begins. */
static void tell_size(const accrue_progress *p)
{
    if (p->total == p->done)
        return;
    printf("%s of %s rows to make, %s; %s are free\n", format_count(p->total - p->done).s,
           format_count(p->total).s, format_bytes(p->expected_bytes).s,
           format_bytes(p->free_bytes).s);
    fflush(stdout);
}

static int on_progress(const accrue_progress *p, void *payload)
{
    extracting *x = payload;

    if (!x->told && !x->work.quiet)
        tell_size(p);
    x->told = true;
    return work_progress(p, &x->work);
}

static void print_table(const accrue_extract_report *r, const char *dir)
{
    table t;

    table_init(&t, 2);
    table_cell(&t, "rows");
    table_cell(&t, "%s, %s were there already", format_count(r->rows).s, format_count(r->found).s);
    if (r->broken) {
        table_cell(&t, "broken");
        table_cell(&t, "%s files, made anew", format_count(r->broken).s);
    }
    table_cell(&t, "made");
    table_cell(&t, "%s files, %s, in %s", format_count(r->made).s, format_bytes(r->bytes).s, dir);
    table_cell(&t, "tokens");
    table_cell(&t, "%s in %.2f s, %s tokens/s", format_count(r->tokens).s, r->seconds,
               format_count((int64_t)ratio((double)r->tokens, r->seconds)).s);
    table_print(&t, stdout, "ll", 0, false);
    table_free(&t);
}

static int print_json(const accrue_extract_report *r, const char *dir)
{
    char name[1000];
    format_name(name, sizeof name, dir);
    json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}",
                             "hidden_states_path", name, "rows", (json_int_t)r->rows, "found",
                             (json_int_t)r->found, "broken", (json_int_t)r->broken, "made",
                             (json_int_t)r->made, "tokens", (json_int_t)r->tokens, "bytes",
                             (json_int_t)r->bytes, "needed_bytes", (json_int_t)r->needed_bytes,
                             "free_bytes", (json_int_t)r->free_bytes, "seconds", r->seconds);

    return cli_print_json(root);
}

static int extract(const cli_options *o)
{
    const accrue_train_options *t = &o->train;
    extracting x = {0};
    accrue_extract_options opt;
    accrue_extract_report report;
    accrue_error err = {0};
    char *dir = t->hidden_states_path ? cli_path(t->hidden_states_path, "")
                                      : cli_path(t->data_path, "hidden_states");
    int code = EXIT_SUCCESS;

    accrue_extract_options_init(&opt, sizeof opt);
    opt.verifier = t->verifier;
    opt.data_path = t->data_path;
    opt.hidden_states_path = t->hidden_states_path;
    opt.target_layer_ids = t->target_layer_ids;
    opt.n_target_layer_ids = t->n_target_layer_ids;
    opt.compute = t->compute;
    work_begin(&x.work, o->json);
    accrue_status status = accrue_extract(&report, &opt, on_progress, &x, &err);
    code = work_end(&x.work, status, &err);
    if (status == ACCRUE_ENOSPACE && !report.made) /* known before anything was done */
        code = EXIT_BAD_INPUT;
    if (!code && o->json)
        code = print_json(&report, t->hidden_states_path ? t->hidden_states_path : dir);
    else if (!code)
        print_table(&report, t->hidden_states_path ? t->hidden_states_path : dir);
    free(dir);
    return code;
}

int cmd_extract(int argc, char **argv)
{
    static cli_options o;
    int bad = 0;

    flags_init(&o);
    bad = flags_parse(&o, FOR_EXTRACT, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_EXTRACT);
        return cli_finish(EXIT_SUCCESS);
    }
    if (!o.train.verifier)
        return cli_fail(EXIT_BAD_INPUT, "--verifier-name-or-path is missing");
    accrue_set_threads(o.threads);
    return cli_finish(extract(&o));
}
