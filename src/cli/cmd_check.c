/* cmd_check.c - accrue check: the library's reading of a whole data set, as a table of faults or as
 * JSON. */
#include "cli.h"

#include "flags.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define KINDS (ACCRUE_FAULT_MAP + 1)
#define SHOWN 5

typedef struct kind_sum {
    int64_t faults, notices, values; /* notices: of the faults */
    int n_shown;
    char *shown[SHOWN]; /* messages */
} kind_sum;

typedef struct checking {
    const cli_options *o;
    kind_sum kinds[KINDS];
    json_t *list; /* with --json: every fault */
    bool no_memory;
    work work;
} checking;

static char *copy_text(const char *s)
{
    size_t bytes = strlen(s) + 1;

    return memcpy(cli_realloc(NULL, bytes, 1), s, bytes);
}

static json_t *place(int64_t at)
{
    return at < 0 ? json_null() : json_integer(at);
}

/* JSON is UTF-8; of a string that is not, '?' stands for what is not ASCII. */
static json_t *text_json(const char *s)
{
    json_t *string = json_string(s);
    char *ascii = NULL;

    if (string)
        return string;
    ascii = copy_text(s);
    for (char *c = ascii; *c; c++)
        if ((unsigned char)*c >= 128)
            *c = '?';
    string = json_string(ascii);
    free(ascii);
    return string;
}

static json_t *text_or_null(const char *s)
{
    return *s ? text_json(s) : json_null();
}

static json_t *fault_json(const accrue_fault *f)
{
    return json_pack("{s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o}", "kind",
                     accrue_fault_name(f->kind), "notice", (int)f->notice, "row", place(f->row),
                     "file", text_json(f->file), "token", place(f->token), "slot", place(f->slot),
                     "element", place(f->element), "count", (json_int_t)f->count, "found",
                     text_or_null(f->found), "expected", text_or_null(f->expected), "message",
                     text_json(f->message));
}

static void keep_fault(checking *c, const accrue_fault *f)
{
    kind_sum *k = &c->kinds[f->kind];

    k->faults++;
    k->notices += f->notice;
    k->values += f->count;
    if (k->n_shown < SHOWN)
        k->shown[k->n_shown++] = copy_text(f->message);
    if (c->list && json_array_append_new(c->list, fault_json(f)))
        c->no_memory = true;
}

static void show_progress(checking *c, const accrue_check_report *r)
{
    double done = ratio((double)r->checked_rows, (double)r->rows);
    double left = done > 0 ? r->seconds * (1 - done) / done : 0;
    char line[200];

    if (!work_due(&c->work, r->seconds))
        return;
    snprintf(line, sizeof line, "%s of %s rows  %s/s  %s left", format_count(r->checked_rows).s,
             format_count(r->rows).s, format_bytes((int64_t)ratio((double)r->bytes, r->seconds)).s,
             format_duration(left).s);
    work_show(&c->work, line);
}

static int on_check(const accrue_fault *f, const accrue_check_report *so_far, void *payload)
{
    checking *c = payload;

    if (f)
        keep_fault(c, f);
    else
        show_progress(c, so_far);
    return c->no_memory;
}

static void print_summary(const accrue_check_report *r)
{
    table t;

    table_init(&t, 2);
    table_cell(&t, "rows");
    table_cell(&t, "%s, %s with faults", format_count(r->rows).s, format_count(r->bad_rows).s);
    table_cell(&t, "tokens");
    table_cell(&t, "%s, %s supervised; %s rows without any", format_count(r->tokens).s,
               format_count(r->supervised_tokens).s, format_count(r->unsupervised_rows).s);
    table_cell(&t, "hidden states");
    table_cell(&t, "%s files, %s in %.2f s, %.2f GB/s", format_count(r->files).s,
               format_bytes(r->bytes).s, r->seconds, ratio((double)r->bytes, r->seconds) / 1e9);
    table_print(&t, stdout, "ll", 0, false);
    table_free(&t);
}

static void print_faults(const checking *c, const accrue_check_report *r)
{
    table t;

    table_init(&t, 3);
    table_cell(&t, "kind");
    table_cell(&t, "faults");
    table_cell(&t, "values");
    for (int i = 1; i < KINDS; i++) {
        if (!c->kinds[i].faults)
            continue;
        table_cell(&t, "%s%s", accrue_fault_name((accrue_fault_kind)i),
                   c->kinds[i].notices == c->kinds[i].faults ? " (notice)" : "");
        table_cell(&t, "%s", format_count(c->kinds[i].faults).s);
        table_cell(&t, "%s", format_count(c->kinds[i].values).s);
    }
    table_cell(&t, "all");
    table_cell(&t, "%s", format_count(r->faults + r->notices).s);
    table_cell(&t, "%s", "");
    printf("\n");
    table_print(&t, stdout, "lrr", 0, true);
    table_free(&t);
    for (int i = 1; i < KINDS; i++) {
        const kind_sum *k = &c->kinds[i];
        if (k->faults)
            printf("\n%s\n", accrue_fault_name((accrue_fault_kind)i));
        for (int j = 0; j < k->n_shown; j++)
            printf("  %s\n", k->shown[j]);
        if (k->faults > k->n_shown)
            printf("  and %s more; --json lists all\n", format_count(k->faults - k->n_shown).s);
    }
}

static void print_table(const checking *c, const accrue_check_report *r)
{
    print_summary(r);
    if (r->faults + r->notices)
        print_faults(c, r);
    if (!r->faults)
        printf("\nNo fault.\n");
}

static int print_json(checking *c, const accrue_check_report *r)
{
    json_t *root = json_pack(
        "{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:O}", "data_path",
        text_json(c->o->dirs[0]), "rows", (json_int_t)r->rows, "bad_rows", (json_int_t)r->bad_rows,
        "tokens", (json_int_t)r->tokens, "supervised_tokens", (json_int_t)r->supervised_tokens,
        "rows_without_supervision", (json_int_t)r->unsupervised_rows, "files", (json_int_t)r->files,
        "bytes", (json_int_t)r->bytes, "seconds", r->seconds, "n_faults", (json_int_t)r->faults,
        "n_notices", (json_int_t)r->notices, "faults", c->list);

    return cli_print_json(root);
}

static int check(const cli_options *o)
{
    static checking c;
    const accrue_train_options *t = &o->train;
    accrue_check_options opt;
    accrue_check_report report;
    accrue_error err = {0};
    int code = EXIT_SUCCESS;

    c = (checking){.o = o, .list = o->json ? json_array() : NULL};
    work_open(&c.work, o->json);
    accrue_check_options_init(&opt, sizeof opt);
    opt.data_path = o->dirs[0];
    opt.hidden_states_path = t->hidden_states_path;
    opt.verifier = t->verifier;
    opt.draft_vocab_size = t->draft_vocab_size;
    opt.d2t_path = t->d2t_path;
    opt.t2d_path = t->t2d_path;
    opt.n_aux = t->n_target_layer_ids;
    opt.lock_timeout = t->lock_timeout;
    accrue_status status = accrue_check(&report, &opt, on_check, &c, &err);
    work_clear(&c.work);
    if (c.no_memory)
        code = cli_fail(EXIT_FAILURE, "out of memory for the report");
    else if (status)
        code = cli_fail(cli_exit_code(status), "%s", err.message);
    else if (o->json)
        code = print_json(&c, &report);
    else
        print_table(&c, &report);
    if (!code && report.faults)
        code = cli_fail(EXIT_BAD_INPUT, "%s: %s fault%s in %s rows", o->dirs[0],
                        format_count(report.faults).s, report.faults == 1 ? "" : "s",
                        format_count(report.bad_rows).s);
    for (int i = 0; i < KINDS; i++)
        for (int j = 0; j < c.kinds[i].n_shown; j++)
            free(c.kinds[i].shown[j]);
    json_decref(c.list);
    return code;
}

int cmd_check(int argc, char **argv)
{
    static cli_options o;
    int bad = 0;

    flags_init(&o);
    bad = flags_parse(&o, FOR_CHECK, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_CHECK);
        return cli_finish(EXIT_SUCCESS);
    }
    if (!o.dirs[0])
        return cli_fail(EXIT_BAD_INPUT, "check: a data set expected; see accrue check --help");
    bad = flags_check_maps(&o);
    if (bad)
        return bad;
    accrue_set_threads(o.threads);
    return cli_finish(check(&o));
}
