/* cmd_eval.c - accrue eval: what speculative decoding gains from a draft, as a table or JSON, and
 * as a picture. */
#include "cli.h"

#include "flags.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct measuring {
    const cli_options *o;
    json_t *prompts; /* with --json */
    bool no_memory;
    work work;
} measuring;

static double per_round(const accrue_eval_report *r)
{
    return ratio((double)r->accepted, (double)r->rounds);
}

static double conditional(const accrue_eval_report *r, int i)
{
    return ratio((double)r->accepted_at[i], (double)(i ? r->accepted_at[i - 1] : r->rounds));
}

static double speed_up(const accrue_eval_report *r)
{
    return ratio(r->plain_seconds, r->speculative_seconds);
}

/* Progress -------------------------------------------------------------------------------- */

static void show_progress(measuring *m, const accrue_eval_report *r)
{
    const double spent = r->plain_seconds + r->speculative_seconds;
    const double left = ratio(spent * (double)(r->prompts - r->done), (double)r->done);
    char line[200];

    if (m->work.quiet || (!work_due(&m->work, r->seconds) && r->done < r->prompts))
        return;
    snprintf(line, sizeof line,
             "%s of %s prompts  %.3f accepted a round  %.1f tok/s, plain %.1f  %s left",
             format_count(r->done).s, format_count(r->prompts).s, per_round(r),
             ratio((double)r->tokens, r->speculative_seconds),
             ratio((double)r->tokens, r->plain_seconds), format_duration(left).s);
    work_show(&m->work, line);
}

static json_t *ids_json(const int64_t *ids, int64_t n)
{
    json_t *list = json_array();

    for (int64_t i = 0; list && i < n; i++)
        if (json_array_append_new(list, json_integer(ids[i]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static void keep_prompt(measuring *m, const accrue_eval_prompt *p)
{
    json_t *differs = p->differs_at < 0 ? json_null() : json_integer(p->differs_at);
    json_t *one =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o}", "row",
                  (json_int_t)p->row, "prompt_tokens", (json_int_t)p->prompt_tokens, "new_tokens",
                  (json_int_t)p->n_tokens, "rounds", (json_int_t)p->rounds, "drafted",
                  (json_int_t)p->drafted, "accepted", (json_int_t)p->accepted, "acceptance_length",
                  1 + ratio((double)p->accepted, (double)p->rounds), "plain_seconds",
                  p->plain_seconds, "speculative_seconds", p->speculative_seconds, "differs_at",
                  differs, "tokens", ids_json(p->tokens, p->n_tokens));

    if (!one || json_array_append_new(m->prompts, one))
        m->no_memory = true;
}

static int on_prompt(const accrue_eval_prompt *p, const accrue_eval_report *so_far, void *payload)
{
    measuring *m = payload;

    if (m->prompts)
        keep_prompt(m, p);
    show_progress(m, so_far);
    return m->no_memory;
}

/* Report ---------------------------------------------------------------------------------- */

static const char *dtype_name(accrue_dtype t)
{
    return t == ACCRUE_F64 ? "float64" : t == ACCRUE_BF16 ? "bfloat16" : "float32";
}

static void print_summary(const accrue_eval_report *r, const cli_options *o)
{
    char name[200];
    table t;

    table_init(&t, 2);
    table_cell(&t, "draft");
    format_name(name, sizeof name, o->dirs[0]);
    table_cell(&t, "%s, %d tokens a round", name, r->num_speculative_tokens);
    table_cell(&t, "verifier");
    format_name(name, sizeof name, r->verifier);
    table_cell(&t, "%s, %s", name, dtype_name(o->eval.compute));
    table_cell(&t, "prompts");
    table_cell(&t, "%s, %s tokens; %s tokens answered", format_count(r->done).s,
               format_count(r->prompt_tokens).s, format_count(r->tokens).s);
    table_cell(&t, "rounds");
    table_cell(&t, "%s; %s of %s drafted tokens accepted, %.4f", format_count(r->rounds).s,
               format_count(r->accepted).s, format_count(r->drafted).s,
               ratio((double)r->accepted, (double)r->drafted));
    table_cell(&t, "acceptance length");
    table_cell(&t, "%.3f drafted tokens a round, %.3f with the bonus token", per_round(r),
               1 + per_round(r));
    table_print(&t, stdout, "ll", 0, false);
    table_free(&t);
}

static void print_positions(const accrue_eval_report *r)
{
    table t;

    table_init(&t, 4);
    table_cell(&t, "position");
    table_cell(&t, "accepted");
    table_cell(&t, "of all rounds");
    table_cell(&t, "of those that came so far");
    for (int i = 0; i < r->num_speculative_tokens; i++) {
        table_cell(&t, "%d", i + 1);
        table_cell(&t, "%s", format_count(r->accepted_at[i]).s);
        table_cell(&t, "%.4f", ratio((double)r->accepted_at[i], (double)r->rounds));
        table_cell(&t, "%.4f", conditional(r, i));
    }
    printf("\n");
    table_print(&t, stdout, "lrrr", 0, true);
    table_free(&t);
}

static void print_speed(const accrue_eval_report *r)
{
    table t;

    table_init(&t, 4);
    table_cell(&t, "decoding");
    table_cell(&t, "seconds");
    table_cell(&t, "tok/s");
    table_cell(&t, "speed-up");
    table_cell(&t, "plain");
    table_cell(&t, "%.2f", r->plain_seconds);
    table_cell(&t, "%.1f", ratio((double)r->tokens, r->plain_seconds));
    table_cell(&t, "%s", "");
    table_cell(&t, "speculative");
    table_cell(&t, "%.2f", r->speculative_seconds);
    table_cell(&t, "%.1f", ratio((double)r->tokens, r->speculative_seconds));
    table_cell(&t, "%.3f", speed_up(r));
    printf("\n");
    table_print(&t, stdout, "lrrr", 0, true);
    table_free(&t);
}

static void print_table(const measuring *m, const accrue_eval_report *r)
{
    print_summary(r, m->o);
    print_positions(r);
    print_speed(r);
    if (r->differing)
        printf("\n%s of %s answers are NOT the verifier's own.\n", format_count(r->differing).s,
               format_count(r->done).s);
    else
        printf("\nEvery answer is the verifier's own, token for token.\n");
}

static json_t *positions_json(const accrue_eval_report *r, int which)
{
    json_t *list = json_array();

    for (int i = 0; list && i < r->num_speculative_tokens + (which == 2); i++) {
        json_t *x = which == 0   ? json_real(ratio((double)r->accepted_at[i], (double)r->rounds))
                    : which == 1 ? json_real(conditional(r, i))
                    : which == 2 ? json_integer(r->accepted_length[i])
                                 : json_integer(r->accepted_at[i]);
        if (json_array_append_new(list, x)) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* A name is text; of one that is not UTF-8, '?' stands for what is not. */
static json_t *name_json(const char *s)
{
    char name[1000];

    format_name(name, sizeof name, s);
    return json_string(name);
}

static int print_json(const measuring *m, const accrue_eval_report *r)
{
    json_t *root = json_pack(
        "{s:o, s:o, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:o, "
        "s:o, s:f, s:f, s:f, s:f, s:f, s:I, s:O}",
        "checkpoint", name_json(m->o->dirs[0]), "verifier", name_json(r->verifier), "dtype",
        dtype_name(m->o->eval.compute), "num_speculative_tokens", r->num_speculative_tokens,
        "max_new_tokens", (json_int_t)m->o->eval.max_new_tokens, "n_prompts", (json_int_t)r->done,
        "prompt_tokens", (json_int_t)r->prompt_tokens, "new_tokens", (json_int_t)r->tokens,
        "rounds", (json_int_t)r->rounds, "drafted", (json_int_t)r->drafted, "accepted",
        (json_int_t)r->accepted, "acceptance_rate", ratio((double)r->accepted, (double)r->drafted),
        "accepted_length", per_round(r), "acceptance_length", 1 + per_round(r),
        "acceptance_rate_per_position", positions_json(r, 0),
        "conditional_acceptance_rate_per_position", positions_json(r, 1),
        "rounds_by_accepted_length", positions_json(r, 2), "accepted_per_position",
        positions_json(r, 3), "plain_seconds", r->plain_seconds, "speculative_seconds",
        r->speculative_seconds, "plain_tokens_per_second",
        ratio((double)r->tokens, r->plain_seconds), "speculative_tokens_per_second",
        ratio((double)r->tokens, r->speculative_seconds), "speed_up", speed_up(r),
        "differing_prompts", (json_int_t)r->differing, "prompts", m->prompts);

    return cli_print_json(root);
}

static int draw(const cli_options *o, const accrue_eval_report *r)
{
    if (plot_eval_write(r, o->title ? o->title : o->dirs[0], o->out))
        return cli_fail(EXIT_FAILURE, "%s: %s", o->out, strerror(errno));
    if (!o->json)
        printf("\n%s\n", o->out);
    return EXIT_SUCCESS;
}

static int evaluate(const cli_options *o)
{
    static accrue_eval_report report;
    measuring m = {.o = o, .prompts = o->json ? json_array() : NULL};
    accrue_eval_options opt = o->eval;
    accrue_error err = {0};
    int code = EXIT_SUCCESS;

    work_open(&m.work, o->json);
    opt.checkpoint = o->dirs[0];
    opt.verifier = o->train.verifier;
    accrue_status status = accrue_eval(&report, &opt, on_prompt, &m, &err);
    work_clear(&m.work);
    if (m.no_memory)
        code = cli_fail(EXIT_FAILURE, "out of memory for the report");
    else if (status && status != ACCRUE_EVERIFY)
        code = cli_fail(cli_exit_code(status), "%s", err.message);
    else if (o->json)
        code = print_json(&m, &report);
    else
        print_table(&m, &report);
    if (!code && o->out)
        code = draw(o, &report);
    if (!code && status)
        code = cli_fail(cli_exit_code(status), "%s", err.message);
    json_decref(m.prompts);
    return code;
}

/* Whether the picture can be written, before hours of measuring; 0, or the exit code. */
static int check_out(const char *path)
{
    const bool there = access(path, F_OK) == 0;
    FILE *f = fopen(path, "ab");

    if (!f)
        return cli_fail(EXIT_BAD_INPUT, "%s: %s", path, strerror(errno));
    fclose(f);
    if (!there)
        unlink(path);
    return 0;
}

int cmd_eval(int argc, char **argv)
{
    static cli_options o;
    int bad = 0;

    flags_init(&o);
    bad = flags_parse(&o, FOR_EVAL, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_EVAL);
        return cli_finish(EXIT_SUCCESS);
    }
    if (!o.dirs[0])
        return cli_fail(EXIT_BAD_INPUT,
                        "eval: the folder of a checkpoint expected; see accrue eval --help");
    if (!o.eval.prompts)
        return cli_fail(EXIT_BAD_INPUT, "eval: --prompts expected; see accrue eval --help");
    if (o.out && !plot_is_picture(o.out))
        return cli_fail(EXIT_BAD_INPUT, "--out: '%s', a name that ends in .svg or .png expected",
                        o.out);
    bad = o.out ? check_out(o.out) : 0;
    if (bad)
        return bad;
    accrue_set_threads(o.threads);
    return cli_finish(evaluate(&o));
}
