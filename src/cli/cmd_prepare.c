/* cmd_prepare.c - accrue prepare: a data set out of files of lines, summed up in a table or as
 * JSON. */
#include "cli.h"

#include "flags.h"

static void row(table *t, const char *name, int64_t n, const char *what)
{
    if (!n)
        return;
    table_cell(t, "%s", name);
    table_cell(t, "%s %s", format_count(n).s, what);
}

static void print_table(const cli_options *o, const accrue_prepare_report *r)
{
    table t;

    table_init(&t, 2);
    table_cell(&t, "lines");
    table_cell(&t, "%s", format_count(r->lines).s);
    table_cell(&t, "rows");
    table_cell(&t, "%s in %s, %s", format_count(r->rows).s, o->prepare.output,
               format_bytes(r->bytes).s);
    table_cell(&t, "tokens");
    table_cell(&t, "%s, %s supervised (%s different)", format_count(r->tokens).s,
               format_count(r->supervised_tokens).s, format_count(r->distinct_tokens).s);
    table_cell(&t, "longest");
    table_cell(&t, "%s tokens", format_count(r->longest).s);
    row(&t, "cut", r->cut_rows, "rows as long as --seq-length, which may have been longer");
    row(&t, "left out", r->bad_lines, "faulty lines");
    row(&t, "left out", r->unanswered, "conversations without an answer that makes a row");
    row(&t, "left out", r->unsupervised_rows, "rows with nothing to learn within --seq-length");
    row(&t, "left out", r->short_rows, "rows below --minimum-valid-tokens");
    row(&t, "left out", r->surplus_rows, "rows above --max-samples");
    table_print(&t, stdout, "ll", 0, false);
    table_free(&t);
    if (r->bad_lines)
        printf("\nThe first faulty line, of those listed in %s/skipped_lines.jsonl:\n  %s\n",
               o->prepare.output, r->first_bad);
    if (r->found)
        printf("\nIt was there already, made from the same files with the same options.\n");
}

static int print_json(const cli_options *o, const accrue_prepare_report *r)
{
    char output[1000];
    format_name(output, sizeof output, o->prepare.output);
    json_t *root = json_pack(
        "{s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:f}",
        "output", output, "found", (int)r->found, "lines", (json_int_t)r->lines, "rows",
        (json_int_t)r->rows, "tokens", (json_int_t)r->tokens, "supervised_tokens",
        (json_int_t)r->supervised_tokens, "distinct_tokens", (json_int_t)r->distinct_tokens,
        "longest", (json_int_t)r->longest, "cut_rows", (json_int_t)r->cut_rows, "bad_lines",
        (json_int_t)r->bad_lines, "unanswered", (json_int_t)r->unanswered, "unsupervised_rows",
        (json_int_t)r->unsupervised_rows, "short_rows", (json_int_t)r->short_rows, "surplus_rows",
        (json_int_t)r->surplus_rows, "unknown_roles", (json_int_t)r->unknown_roles, "files",
        (json_int_t)r->files, "bytes", (json_int_t)r->bytes, "seconds", r->seconds);

    return cli_print_json(root);
}

static int prepare(const cli_options *o)
{
    work w;
    accrue_prepare_options opt = o->prepare;
    accrue_prepare_report report;
    accrue_error err = {0};
    int code = EXIT_SUCCESS;

    opt.files = o->dirs;
    opt.n_files = o->n_dirs;
    opt.verifier = o->train.verifier;
    opt.seed = o->train.seed;
    opt.draft_vocab_size = o->train.draft_vocab_size;
    opt.on_bad = o->train.on_bad;
    opt.max_bad = o->train.max_bad;
    work_begin(&w, o->json);
    w.begins_anew = true;
    accrue_status status = accrue_prepare(&report, &opt, work_progress, &w, &err);
    code = work_end(&w, status, &err);
    if (code)
        return code;
    if (report.unknown_roles)
        cli_notice("%s messages of roles like '%s' are taken for the assistant's",
                   format_count(report.unknown_roles).s, report.unknown_role);
    if (o->json)
        code = print_json(o, &report);
    else
        print_table(o, &report);
    return code;
}

int cmd_prepare(int argc, char **argv)
{
    static cli_options o;
    int bad = 0;

    flags_init(&o);
    o.train.seed = o.prepare.seed;
    bad = flags_parse(&o, FOR_PREPARE, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_PREPARE);
        return cli_finish(EXIT_SUCCESS);
    }
    if (!o.n_dirs)
        return cli_fail(EXIT_BAD_INPUT, "prepare: a file expected; see accrue prepare --help");
    if (!o.train.verifier)
        return cli_fail(EXIT_BAD_INPUT, "--verifier-name-or-path is missing");
    accrue_set_threads(o.threads);
    return cli_finish(prepare(&o));
}
