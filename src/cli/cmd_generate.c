/* cmd_generate.c - accrue generate: a data set's conversations with the verifier's own answers. */
#include "cli.h"

#include "flags.h"

#include <stdlib.h>
#include <string.h>

static void print_table(const cli_options *o, const accrue_generate_report *r)
{
    table t;

    table_init(&t, 2);
    table_cell(&t, "rows");
    table_cell(&t, "%s, %s were done already", format_count(r->rows).s, format_count(r->found).s);
    table_cell(&t, "made");
    table_cell(&t, "%s lines with %s answers, in %s", format_count(r->made).s,
               format_count(r->answers).s, o->generate.output);
    if (r->skipped) {
        table_cell(&t, "left out");
        table_cell(&t, "%s rows that ask nothing, or more than there is room for",
                   format_count(r->skipped).s);
    }
    table_cell(&t, "cut");
    table_cell(&t, "%s answers, by --max-new-tokens or the model's length", format_count(r->cut).s);
    table_cell(&t, "sampling");
    table_cell(&t, "temperature %s, top-p %s", format_short(r->temperature).s,
               format_short(r->top_p).s);
    table_cell(&t, "tokens");
    table_cell(&t, "%s in %.2f s, %s tokens/s", format_count(r->tokens).s, r->seconds,
               format_count((int64_t)ratio((double)r->tokens, r->seconds)).s);
    table_print(&t, stdout, "ll", 0, false);
    table_free(&t);
}

static int print_json(const cli_options *o, const accrue_generate_report *r)
{
    char output[1000];
    format_name(output, sizeof output, o->generate.output);
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "output", output, "rows",
        (json_int_t)r->rows, "found", (json_int_t)r->found, "made", (json_int_t)r->made, "answers",
        (json_int_t)r->answers, "skipped", (json_int_t)r->skipped, "cut", (json_int_t)r->cut,
        "prompt_tokens", (json_int_t)r->prompt_tokens, "tokens", (json_int_t)r->tokens,
        "temperature", r->temperature, "top_p", r->top_p, "seconds", r->seconds);

    return cli_print_json(root);
}

static int generate(const cli_options *o)
{
    work w;
    accrue_generate_options opt = o->generate;
    accrue_generate_report report;
    accrue_error err = {0};
    int code = EXIT_SUCCESS;

    opt.verifier = o->train.verifier;
    opt.seed = o->train.seed;
    opt.data = o->dirs[0];
    work_begin(&w, o->json);
    accrue_status status = accrue_generate(&report, &opt, work_progress, &w, &err);
    code = work_end(&w, status, &err);
    if (!code && o->json)
        code = print_json(o, &report);
    else if (!code)
        print_table(o, &report);
    return code;
}

int cmd_generate(int argc, char **argv)
{
    static cli_options o;
    int bad = 0;

    flags_init(&o);
    bad = flags_parse(&o, FOR_GENERATE, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_GENERATE);
        return cli_finish(EXIT_SUCCESS);
    }
    if (!o.dirs[0])
        return cli_fail(EXIT_BAD_INPUT,
                        "generate: a file of conversations expected; see accrue generate --help");
    if (!o.train.verifier)
        return cli_fail(EXIT_BAD_INPUT, "--verifier-name-or-path is missing");
    if (!o.generate.output)
        return cli_fail(EXIT_BAD_INPUT, "--output is missing");
    accrue_set_threads(o.threads);
    return cli_finish(generate(&o));
}
