/* cmd_verify.c - accrue verify: the library's proof on the user's data, as a table or JSON. */
#include "cli.h"

#include "flags.h"

#include <jansson.h>
#include <stdlib.h>

static const char *normalization_name(const cli_options *o)
{
    return o->train.window.loss_normalization == ACCRUE_NORMALIZE_TOKEN ? "token" : "microbatch";
}

static void layout_name(char out[40], const accrue_verify_report *r)
{
    if (r->ranks == 1)
        snprintf(out, 40, "single device");
    else
        snprintf(out, 40, "%s x %d", r->sharded ? "sharded" : "replicated", r->ranks);
}

/* Against the micro-batches' own gradients: one line, to be put under those of other layouts. */
static void print_parts(const accrue_verify_report *r)
{
    char layout[40];
    table t;

    layout_name(layout, r);
    printf("\n");
    table_init(&t, 9);
    table_cell(&t, "layout");
    table_cell(&t, "N");
    table_cell(&t, "micro-batches");
    table_cell(&t, "steps");
    table_cell(&t, "max |difference|");
    table_cell(&t, "max |gradient|");
    table_cell(&t, "ratio");
    table_cell(&t, "bound");
    table_cell(&t, "%s", "");
    table_cell(&t, "%s", layout);
    table_cell(&t, "%s", format_count(r->n).s);
    table_cell(&t, "%s", format_count(r->epoch_micro_batches).s);
    table_cell(&t, "%s", format_count(r->epoch_steps).s);
    table_cell(&t, "%.2e", r->parts_max_abs);
    table_cell(&t, "%.2e", r->grad_max);
    table_cell(&t, "%.2e", ratio(r->parts_max_abs, r->grad_max));
    table_cell(&t, "%.0e", r->parts_bound);
    table_cell(&t, "%s", r->parts_pass ? "pass" : "FAIL");
    table_print(&t, stdout, "lrrrrrrrl", 0, true);
    table_free(&t);
}

static void print_table(const accrue_verify_report *r, const cli_options *o)
{
    table t;

    table_init(&t, 2);
    table_cell(&t, "N");
    table_cell(&t, "%s, %s", format_count(r->n).s, normalization_name(o));
    table_cell(&t, "micro-batches");
    table_cell(&t, "%s", format_count(r->micro_batches).s);
    table_cell(&t, "tokens");
    table_cell(&t, "%s, %s supervised", format_count(r->tokens).s,
               format_count(r->supervised_tokens).s);
    table_cell(&t, "bound");
    if (r->update_bound > r->bound)
        table_cell(&t, "%.3g, for updates %.3g, relative to the group's largest value", r->bound,
                   r->update_bound);
    else
        table_cell(&t, "%.3g, relative to the group's largest value", r->bound);
    table_print(&t, stdout, "ll", 0, false);
    table_free(&t);

    print_parts(r);
    printf("\n");
    table_init(&t, 7);
    table_cell(&t, "group");
    table_cell(&t, "elements");
    table_cell(&t, "grad max abs");
    table_cell(&t, "grad max rel");
    table_cell(&t, "update max abs");
    table_cell(&t, "update max rel");
    table_cell(&t, "%s", "");
    for (int i = 0; i < r->n_rows; i++) {
        const accrue_verify_row *row = &r->rows[i];
        table_cell(&t, "%s", row->group);
        table_cell(&t, "%s", format_count(row->elements).s);
        table_cell(&t, "%.3e", row->grad_max_abs);
        table_cell(&t, "%.3e", row->grad_max_rel);
        table_cell(&t, "%.3e", row->update_max_abs);
        table_cell(&t, "%.3e", row->update_max_rel);
        table_cell(&t, "%s", row->pass ? "pass" : "FAIL");
    }
    table_print(&t, stdout, "lrrrrrl", 0, true);
    table_free(&t);
    printf("\n%s\n", r->pass ? "The accumulated window equals its reference within the bound."
                             : "The accumulated window does NOT equal its reference.");
}

/* A number that JSON cannot hold becomes null. */
static json_t *real(double x)
{
    json_t *value = json_real(x);

    return value ? value : json_null();
}

static json_t *row_json(const accrue_verify_row *row)
{
    return json_pack("{s:s, s:I, s:o, s:o, s:o, s:o, s:b}", "group", row->group, "elements",
                     (json_int_t)row->elements, "grad_max_abs", real(row->grad_max_abs),
                     "grad_max_rel", real(row->grad_max_rel), "update_max_abs",
                     real(row->update_max_abs), "update_max_rel", real(row->update_max_rel), "pass",
                     (int)row->pass);
}

static int print_json(const accrue_verify_report *r, const cli_options *o)
{
    json_t *groups = json_array();
    json_t *root = json_pack(
        "{s:I, s:i, s:b, s:I, s:I, s:o, s:o, s:o, s:b, s:s, s:I, s:I, s:I, s:o, s:o, s:b, s:O}",
        "n", (json_int_t)r->n, "ranks", r->ranks, "sharded", (int)r->sharded, "epoch_micro_batches",
        (json_int_t)r->epoch_micro_batches, "epoch_steps", (json_int_t)r->epoch_steps,
        "parts_max_abs", real(r->parts_max_abs), "grad_max", real(r->grad_max), "parts_bound",
        real(r->parts_bound), "parts_pass", (int)r->parts_pass, "loss_normalization",
        normalization_name(o), "micro_batches", (json_int_t)r->micro_batches, "tokens",
        (json_int_t)r->tokens, "supervised_tokens", (json_int_t)r->supervised_tokens, "bound",
        real(r->bound), "update_bound", real(r->update_bound), "pass", (int)r->pass, "groups",
        groups);
    int failed = !root;

    for (int i = 0; i < r->n_rows && !failed; i++)
        failed = json_array_append_new(groups, row_json(&r->rows[i]));
    if (!failed)
        failed = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
    if (!failed)
        printf("\n");
    json_decref(root);
    json_decref(groups);
    return failed ? cli_fail(EXIT_FAILURE, "out of memory for the report") : EXIT_SUCCESS;
}

int cmd_verify(int argc, char **argv)
{
    static cli_options o;
    static accrue_verify_report report;
    accrue_error err = {0};
    launch started;
    int bad = 0;

    launch_find(&started);
    if (started.launcher)
        return cli_fail(EXIT_BAD_INPUT,
                        "verify: started by %s; it starts its ranks itself: --ranks",
                        started.launcher);
    flags_init(&o);
    o.train.compute = ACCRUE_F64;
    bad = flags_parse(&o, FOR_VERIFY, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_VERIFY);
        return cli_finish(EXIT_SUCCESS);
    }
    bad = flags_check(&o);
    if (bad)
        return bad;
    if (o.dump_config)
        return cli_fail(EXIT_BAD_INPUT, "--dump-config: accrue train prints the configuration");
    accrue_set_threads(o.threads);
    accrue_status status = accrue_verify(&report, &o.train, &err);
    if (status && status != ACCRUE_EVERIFY)
        return cli_fail(cli_exit_code(status), "%s", err.message);
    if (o.json)
        bad = print_json(&report, &o);
    else
        print_table(&report, &o);
    if (status)
        bad = cli_fail(cli_exit_code(status), "%s", err.message);
    return cli_finish(bad);
}
