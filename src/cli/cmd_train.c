/* cmd_train.c - accrue train: runs the library's training and shows, logs and sums it up. */
#include "cli.h"

#include "flags.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct train_run {
    const cli_options *o;
    progress progress;
    metrics_log metrics;
    history history;
    char failure[600];    /* why the callback stopped the run */
    char checkpoint[600]; /* the folder written last */
} train_run;

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

/* The first signal stops the run at the next event, the second one at once. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void print_start(const train_run *run, const accrue_train_plan *plan)
{
    const accrue_window_options *w = &run->o->train.window;

    printf("%s trainable of %s parameters, %s rows to train and %s to validate, "
           "%s optimizer steps in %s %s, %s micro-batch%s per step\n",
           format_count(plan->trainable_params).s, format_count(plan->params).s,
           format_count(plan->train_rows).s, format_count(plan->val_rows).s,
           format_count(plan->total_steps).s, format_count(plan->epochs).s,
           plan->epochs == 1 ? "epoch" : "epochs", format_count(w->gradient_accumulation_steps).s,
           w->gradient_accumulation_steps == 1 ? "" : "es");
    if (plan->dropped_micro_batches)
        printf("%s micro-batch%s left over at the end of epochs and dropped\n",
               format_count(plan->dropped_micro_batches).s,
               plan->dropped_micro_batches == 1 ? "" : "es");
    fflush(stdout);
}

static void log_event(train_run *run, const accrue_event *e)
{
    const accrue_train_options *t = &run->o->train;
    int failed = 0;

    errno = 0;
    if (e->kind == ACCRUE_EVENT_START)
        failed = metrics_open(&run->metrics, t->save_path, e, &run->history);
    else if (e->kind == ACCRUE_EVENT_STEP && (e->global_step - 1) % run->o->log_freq == 0)
        failed = metrics_step(&run->metrics, e, t->window.optimizer == ACCRUE_MUON);
    else if (e->kind == ACCRUE_EVENT_VALIDATION)
        failed = metrics_validation(&run->metrics, e);
    if (failed)
        snprintf(run->failure, sizeof run->failure, "%s/metrics.jsonl: %s", t->save_path,
                 strerror(errno));
}

static int on_train_event(const accrue_event *e, void *payload)
{
    train_run *run = payload;

    log_event(run, e);
    if (e->kind == ACCRUE_EVENT_START && !run->failure[0])
        print_start(run, e->plan);
    if (e->kind == ACCRUE_EVENT_EPOCH)
        run->history.epoch_start = e->seconds;
    if (e->kind == ACCRUE_EVENT_STEP)
        history_step(&run->history, e);
    if (e->kind == ACCRUE_EVENT_VALIDATION)
        history_validation(&run->history, e);
    if (e->kind == ACCRUE_EVENT_CHECKPOINT)
        snprintf(run->checkpoint, sizeof run->checkpoint, "%s", e->message);
    progress_event(&run->progress, e);
    return interrupted || run->failure[0];
}

static int on_dry_event(const accrue_event *e, void *payload)
{
    train_run *run = payload;

    if (e->kind == ACCRUE_EVENT_CHECKPOINT)
        snprintf(run->checkpoint, sizeof run->checkpoint, "%s", e->message);
    if (e->kind == ACCRUE_EVENT_NOTICE)
        cli_notice("%s", e->message);
    return interrupted;
}

/* What the run leaves behind beside its checkpoints. */
static int sum_up(train_run *run)
{
    const char *folder = run->o->train.save_path;
    size_t bytes = strlen(folder) + sizeof "/training.svg";
    char *path = cli_realloc(NULL, bytes, 1);
    int code = EXIT_SUCCESS;

    snprintf(path, bytes, "%s/training.svg", folder);
    printf("\n");
    history_table(&run->history, stdout);
    /* A run that was finished before keeps the plot that it has. */
    if (run->history.n && run->progress.stepped && plot_write(&run->history, path))
        code = cli_fail(EXIT_FAILURE, "%s: %s", path, strerror(errno));
    else
        printf("\n%s%s%s/metrics.jsonl%s%s\n", run->checkpoint, run->checkpoint[0] ? ", " : "",
               folder, run->history.n ? ", " : "", run->history.n ? path : "");
    free(path);
    return code;
}

static int finish_failed(const train_run *run, accrue_status status, const accrue_error *err)
{
    if (status == ACCRUE_ECANCELED && run->failure[0])
        return cli_fail(EXIT_FAILURE, "%s", run->failure);
    if (status == ACCRUE_ECANCELED && interrupted)
        return cli_fail(EXIT_INTERRUPTED, "interrupted after %lld optimizer steps",
                        (long long)run->progress.last.global_step);
    return cli_fail(cli_exit_code(status), "%s", err->message);
}

static int train(const cli_options *o)
{
    static train_run run;
    accrue_error err = {0};
    int code = EXIT_SUCCESS;

    run = (train_run){.o = o};
    progress_init(&run.progress, o->log_freq);
    accrue_status status = accrue_train(&o->train, on_train_event, &run, &err);
    progress_clear(&run.progress);
    if (metrics_close(&run.metrics) && !status)
        code = cli_fail(EXIT_FAILURE, "%s/metrics.jsonl: %s", o->train.save_path, strerror(errno));
    else if (status)
        code = finish_failed(&run, status, &err);
    else
        code = sum_up(&run);
    history_free(&run.history);
    return code;
}

static void plan_row(table *t, const char *name, const char *value, const char *note)
{
    table_cell(t, "%s", name);
    table_cell(t, "%s", value);
    table_cell(t, "%s", note);
}

static void print_plan(const accrue_train_plan *p, const cli_options *o, const char *checkpoint)
{
    char range[100] = "";
    table t;

    if (p->min_epoch_steps != p->max_epoch_steps)
        snprintf(range, sizeof range, "%s to %s over the epochs",
                 format_count(p->min_epoch_steps).s, format_count(p->max_epoch_steps).s);
    table_init(&t, 3);
    plan_row(&t, "parameters", format_count(p->params).s, "");
    plan_row(&t, "trainable parameters", format_count(p->trainable_params).s, "");
    plan_row(&t, "verifier vocabulary", format_count(p->vocab_size).s, "");
    plan_row(&t, "draft vocabulary", format_count(p->draft_vocab_size).s,
             p->vocab_built ? "built from the data set" : "");
    plan_row(&t, "training rows", format_count(p->train_rows).s, "");
    plan_row(&t, "validation rows", format_count(p->val_rows).s, "");
    plan_row(&t, "rows left out", format_count(p->missing_rows).s, "without hidden states");
    plan_row(&t, "", format_count(p->bad_rows).s, "bad");
    plan_row(&t, "micro-batches", format_count(p->first_epoch_micro_batches).s, "first epoch");
    plan_row(&t, "micro-batches per step",
             format_count(o->train.window.gradient_accumulation_steps).s, "");
    plan_row(&t, "steps per epoch", format_count(p->first_epoch_steps).s,
             range[0] ? range : "every epoch");
    plan_row(&t, "epochs", format_count(p->epochs).s, "");
    plan_row(&t, "total steps", format_count(p->total_steps).s, "");
    plan_row(&t, "dropped micro-batches", format_count(p->dropped_micro_batches).s,
             "over all epochs");
    plan_row(&t, "warm-up steps", format_count(p->warmup_steps).s, "");
    plan_row(&t, "schedule ends at step", format_count(p->schedule_total_steps).s, "");
    plan_row(&t, "predicted peak memory", format_bytes(p->peak_bytes).s, "");
    table_print(&t, stdout, "lrl", 0, false);
    table_free(&t);
    if (checkpoint[0])
        printf("\ninitialised checkpoint: %s\n", checkpoint);
}

static int dry_run(const cli_options *o)
{
    static train_run run;
    accrue_train_plan plan = {0};
    accrue_error err = {0};

    run = (train_run){.o = o};
    accrue_status status = accrue_train_dry_run(&plan, &o->train, on_dry_event, &run, &err);
    if (status)
        return finish_failed(&run, status, &err);
    print_plan(&plan, o, run.checkpoint);
    return EXIT_SUCCESS;
}

int cmd_train(int argc, char **argv)
{
    static cli_options o;
    int bad = 0;

    flags_init(&o);
    bad = flags_parse(&o, FOR_TRAIN, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_TRAIN);
        return cli_finish(EXIT_SUCCESS);
    }
    bad = flags_check(&o);
    if (bad)
        return bad;
    accrue_set_threads(o.threads);
    catch_signals();
    return cli_finish(o.dry_run ? dry_run(&o) : train(&o));
}
