/* cmd_train.c - accrue train: runs the library's training and shows, logs and sums it up. */
#include "cli.h"

#include "flags.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct train_run {
    const cli_options *o;
    const launch *job;
    progress progress;
    run_log log;
    history history;
    char failure[600];    /* why the callback stopped the run at once */
    int code;             /* what it exits with then */
    bool log_failed;      /* the run is to be saved and stopped */
    char checkpoint[600]; /* the folder written last */
    int64_t global_step;
    int stopped;                  /* the signal that stopped the run, on whichever rank; 0: none */
    double comm_seconds, seconds; /* of the steps */
    int64_t comm_bytes;
} train_run;

static const char *plural(int64_t n, const char *ending)
{
    return n == 1 ? "" : ending;
}

/* "4 ranks, sharded, window of 4 x 2 micro-batches" */
static void print_ranks(const accrue_train_plan *plan)
{
    if (plan->ranks <= 1)
        return;
    if (plan->deferred_bytes)
        printf("--defer-reduce takes %s of each rank\n", format_bytes(plan->deferred_bytes).s);
    printf("%d ranks, %s, window of %d x %s micro-batches\n", plan->ranks,
           plan->sharded ? "sharded" : "replicated", plan->ranks,
           format_count(plan->window / plan->ranks).s);
}

static void print_start(const train_run *run, const accrue_train_plan *plan)
{
    print_ranks(plan);
    printf("%s trainable of %s parameters, %s row%s to train and %s to validate, "
           "%s optimizer step%s in %s epoch%s, %s micro-batch%s per step\n",
           format_count(plan->trainable_params).s, format_count(plan->params).s,
           format_count(plan->train_rows).s, plural(plan->train_rows, "s"),
           format_count(plan->val_rows).s, format_count(plan->total_steps).s,
           plural(plan->total_steps, "s"), format_count(plan->epochs).s, plural(plan->epochs, "s"),
           format_count(plan->window).s, plural(plan->window, "es"));
    if (plan->dropped_micro_batches)
        printf("%s micro-batch%s left over at the end of epochs and dropped\n",
               format_count(plan->dropped_micro_batches).s,
               plural(plan->dropped_micro_batches, "es"));
    if (run->log.folder)
        printf("logs in %s\n", run->log.folder);
    fflush(stdout);
}

/* A run that is finished keeps the configuration that it had. */
static bool nothing_left(const accrue_train_options *t, const accrue_event *start)
{
    bool at_max = t->max_steps && start->global_step >= t->max_steps && !start->micro_batch;

    return start->resumed && (start->epoch >= t->epochs || at_max);
}

/* All that can fail comes before what changes files that are there. */
static void begin_logs(train_run *run, const accrue_event *e)
{
    const accrue_train_options *t = &run->o->train;

    run->code = log_open(&run->log, t->save_path, e);
    if (!run->code && !nothing_left(t, e) &&
        config_save(run->o, run->failure, sizeof run->failure)) {
        run->code = EXIT_FAILURE;
        log_discard(&run->log);
    } else if (!run->code) {
        run->code = log_begin(&run->log, e, &run->history) ? EXIT_FAILURE : 0;
    }
    if (run->code && !run->failure[0])
        snprintf(run->failure, sizeof run->failure, "%s", run->log.failed);
}

/* Where the logs of the first rank cannot be opened, none trains. */
static void begin(train_run *run, const accrue_event *e)
{
    signals_begin();
    if (e->rank == 0)
        begin_logs(run, e);
    run->code = launch_greatest(run->job, run->code);
    if (run->code && !run->failure[0])
        snprintf(run->failure, sizeof run->failure, "rank 0 cannot write its logs");
}

static void log_event(train_run *run, const accrue_event *e)
{
    int failed = 0;

    if (e->kind == ACCRUE_EVENT_START)
        begin(run, e);
    else if (e->kind == ACCRUE_EVENT_STEP)
        failed = log_step(&run->log, e);
    else if (e->kind == ACCRUE_EVENT_VALIDATION)
        failed = log_validation(&run->log, e);
    if (!failed)
        return;
    if (run->o->train.on_save_error == ACCRUE_POLICY_SKIP) {
        progress_clear(&run->progress);
        cli_notice("%s; training goes on", run->log.failed);
    } else {
        run->log_failed = true;
    }
}

static int answer(const train_run *run)
{
    int asked = signals_answer();

    if (run->failure[0])
        return ACCRUE_CANCEL;
    return run->log_failed && asked < ACCRUE_SAVE_AND_STOP ? ACCRUE_SAVE_AND_STOP : asked;
}

static int on_other_rank(const accrue_event *e, train_run *run)
{
    if (e->kind == ACCRUE_EVENT_START)
        begin(run, e);
    return answer(run);
}

static void add_step(train_run *run, const accrue_event *e)
{
    history_step(&run->history, e, run->log.muon ? e->muon_lr : e->lr, tokens_rate(e));
    run->comm_seconds += e->comm_seconds;
    run->comm_bytes += e->comm_bytes;
    run->seconds += e->data_seconds + e->forward_backward_seconds + e->optimizer_seconds;
}

static int on_train_event(const accrue_event *e, void *payload)
{
    train_run *run = payload;

    if (e->rank > 0)
        return on_other_rank(e, run);
    log_event(run, e);
    if (e->kind == ACCRUE_EVENT_START && !run->failure[0])
        print_start(run, e->plan);
    if (e->kind == ACCRUE_EVENT_EPOCH)
        run->history.epoch_start = e->seconds;
    run->global_step = e->kind == ACCRUE_EVENT_CHECKPOINT ? run->global_step : e->global_step;
    if (e->kind == ACCRUE_EVENT_STEP)
        add_step(run, e);
    if (e->kind == ACCRUE_EVENT_VALIDATION)
        history_validation(&run->history, e);
    if (e->kind == ACCRUE_EVENT_CHECKPOINT)
        snprintf(run->checkpoint, sizeof run->checkpoint, "%s", e->message);
    progress_event(&run->progress, e);
    return answer(run);
}

static int on_dry_event(const accrue_event *e, void *payload)
{
    train_run *run = payload;

    if (e->kind == ACCRUE_EVENT_CHECKPOINT)
        snprintf(run->checkpoint, sizeof run->checkpoint, "%s", e->message);
    if (e->kind == ACCRUE_EVENT_NOTICE)
        cli_notice("%s", e->message);
    return signals_stopped() ? ACCRUE_CANCEL : ACCRUE_GO_ON;
}

static int draw_plot(const train_run *run, const char *path)
{
    const plot_run drawn = {"training", &run->history};

    return plot_write(&drawn, 1, NULL, 0, path);
}

/* Names what is there: a folder may have been removed while the run went on. */
static void print_place(const char *path, int *n)
{
    if (!path || !*path || access(path, F_OK))
        return;
    printf("%s%s", (*n)++ ? ", " : "\n", path);
}

/* What the run leaves behind beside its checkpoints. */
static int sum_up(train_run *run)
{
    const char *folder = run->o->train.save_path;
    char *svg = cli_path(folder, "training.svg"), *metrics = cli_path(folder, "metrics.jsonl");
    bool drawn = run->history.n && access(folder, F_OK) == 0;
    int code = EXIT_SUCCESS, n = 0;

    printf("\n");
    history_table(&run->history, stdout);
    if (run->comm_bytes)
        printf("\nrank 0 sent %s to the others and waited %.2f of %.2f s for them\n",
               format_bytes(run->comm_bytes).s, run->comm_seconds, run->seconds);
    if (drawn && draw_plot(run, svg)) {
        code = cli_fail(EXIT_FAILURE, "%s: %s", svg, strerror(errno));
    } else {
        print_place(run->checkpoint, &n);
        print_place(metrics, &n);
        print_place(drawn ? svg : NULL, &n);
        print_place(run->log.folder, &n);
        printf("%s", n ? "\n" : "");
    }
    free(svg);
    free(metrics);
    return code;
}

static int finish_failed(const train_run *run, accrue_status status, const accrue_error *err)
{
    if (status == ACCRUE_ECANCELED && run->failure[0])
        return cli_fail(run->code, "%s", run->failure);
    if (cli_is_muted() && launch_reports(run->job))
        cli_mute(false);
    return cli_fail(cli_exit_code(status), "%s", err->message);
}

/* A run that was asked to stop has saved what it did; SIGINT alone counts as a failure. */
static int finish_stopped(train_run *run)
{
    const accrue_train_options *t = &run->o->train;
    const char *without =
        run->checkpoint[0] && t->no_resume ? " without --no-resume-from-checkpoint" : "";
    int code = run->history.n ? sum_up(run) : EXIT_SUCCESS;

    cli_notice("stopped by %s at optimizer step %lld; %s%s; the same command%s goes on from there",
               run->stopped ? signals_name(run->stopped) : "a log that cannot be written",
               (long long)run->global_step,
               run->checkpoint[0] ? "saved as " : "nothing to save since it began", run->checkpoint,
               without);
    return code ? code : run->stopped == SIGINT ? EXIT_INTERRUPTED : EXIT_SUCCESS;
}

/* What is to be shown, the first rank shows. */
static int finish_other_rank(const train_run *run, accrue_status status, const accrue_error *err)
{
    if (status && (status != ACCRUE_ECANCELED || run->failure[0]))
        return finish_failed(run, status, err);
    return run->stopped == SIGINT ? EXIT_INTERRUPTED : EXIT_SUCCESS;
}

static int finish(train_run *run, accrue_status status, const accrue_error *err)
{
    int code = EXIT_SUCCESS, lost = EXIT_SUCCESS;

    if (status == ACCRUE_ECANCELED && !run->failure[0])
        run->stopped = launch_greatest(run->job, signals_stopped());
    if (run->job->rank > 0)
        return finish_other_rank(run, status, err);
    if (status == ACCRUE_ECANCELED && !run->failure[0] && (run->stopped || run->log_failed))
        code = finish_stopped(run);
    else if (status)
        code = finish_failed(run, status, err);
    else
        code = sum_up(run);
    lost = log_close(&run->log);
    return lost && (!code || code == EXIT_INTERRUPTED) ? lost : code;
}

static int name_logs(run_log *log, const cli_options *o, const launch *job)
{
    int bad = loggers_parse(&log->set, o->logger);

    if (!bad && log->set)
        bad = loggers_folder(&log->folder, &log->own_folder, o->log_dir, o->run_name, job);
    return launch_greatest(job, bad);
}

/* --ranks has been compared with the job; to the library it is ranks of this process. */
static accrue_train_options options_of(const cli_options *o, const launch *job)
{
    accrue_train_options t = o->train;

    t.comm = job->comm;
    t.ranks = job->comm ? 0 : t.ranks;
    return t;
}

static int train(const cli_options *o, const launch *job)
{
    const accrue_train_options options = options_of(o, job);
    static train_run run;
    accrue_error err = {0};
    int code = EXIT_SUCCESS;

    run = (train_run){.o = o, .job = job};
    run.log = (run_log){
        .freq = o->log_freq, .muon = o->train.window.optimizer == ACCRUE_MUON, .lock = -1};
    code = name_logs(&run.log, o, job);
    if (code)
        return code;
    progress_init(&run.progress, o->log_freq, job->launcher);
    accrue_status status = accrue_train(&options, on_train_event, &run, &err);
    progress_clear(&run.progress);
    code = finish(&run, status, &err);
    history_free(&run.history);
    log_free(&run.log);
    return code;
}

static void plan_row(table *t, const char *name, const char *value, const char *note)
{
    table_cell(t, "%s", name);
    table_cell(t, "%s", value);
    table_cell(t, "%s", note);
}

static void plan_ranks(table *t, const accrue_train_plan *p)
{
    char ranks[40];

    snprintf(ranks, sizeof ranks, "%d", p->ranks);
    if (p->ranks > 1)
        plan_row(t, "ranks", ranks, p->sharded ? "sharded" : "replicated");
    plan_row(t, "training state", format_bytes(p->rank_bytes).s,
             p->ranks > 1 ? "weights, moments and gradients of a rank"
                          : "weights, moments and gradients");
    if (p->ranks > 1)
        plan_row(t, "beside it", format_bytes(p->passing_bytes).s, "for the exchange, of a rank");
    if (p->deferred_bytes)
        plan_row(t, "", format_bytes(p->deferred_bytes).s, "of that for --defer-reduce");
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
    plan_row(&t, "micro-batches per step", format_count(p->window).s, "");
    plan_row(&t, "steps per epoch", format_count(p->first_epoch_steps).s,
             range[0] ? range : "every epoch");
    plan_row(&t, "epochs", format_count(p->epochs).s, "");
    plan_row(&t, "total steps", format_count(p->total_steps).s, "");
    plan_row(&t, "dropped micro-batches", format_count(p->dropped_micro_batches).s,
             "over all epochs");
    plan_row(&t, "warm-up steps", format_count(p->warmup_steps).s, "");
    plan_row(&t, "schedule ends at step", format_count(p->schedule_total_steps).s, "");
    plan_ranks(&t, p);
    plan_row(&t, "predicted peak memory", format_bytes(p->peak_bytes).s,
             o->train.ranks > 1 && p->ranks > 1 ? "of all ranks" : "");
    table_print(&t, stdout, "lrl", 0, false);
    table_free(&t);
    if (checkpoint[0])
        printf("\ninitialised checkpoint: %s\n", checkpoint);
}

static int dry_run(const cli_options *o, const launch *job)
{
    const accrue_train_options options = options_of(o, job);
    static train_run run;
    accrue_train_plan plan = {0};
    accrue_error err = {0};

    run = (train_run){.o = o, .job = job};
    int bad = name_logs(&run.log, o, job);
    free(run.log.folder);
    if (bad)
        return bad;
    signals_begin();
    accrue_status status = accrue_train_dry_run(&plan, &options, on_dry_event, &run, &err);
    if (status)
        return finish_failed(&run, status, &err);
    if (job->rank > 0)
        return EXIT_SUCCESS;
    if (config_save(o, run.failure, sizeof run.failure))
        return cli_fail(EXIT_FAILURE, "%s", run.failure);
    print_plan(&plan, o, run.checkpoint);
    return EXIT_SUCCESS;
}

/* Ranks that train and ranks that do not would wait for each other. */
static int check_dry(const launch *job, const cli_options *o)
{
    const int dry = o->dry_run, most = launch_greatest(job, dry);

    return most == -launch_greatest(job, -dry)
               ? 0
               : cli_fail(EXIT_BAD_INPUT, "--dry-run is given to some of the ranks, not to all");
}

/* As the one rank that there is, or as one of a launcher's. */
static int train_launched(const cli_options *o, launch *job)
{
    int threads = 0, code = launch_join(job, &o->train);

    if (!code)
        code = check_dry(job, o);
    if (!code)
        code = launch_threads(job, o->train.ranks, o->threads, &threads);
    if (!code) {
        accrue_set_threads(threads);
        signals_catch_run(o->grace, job->comm);
        code = o->dry_run ? dry_run(o, job) : train(o, job);
    }
    if (job->comm)
        signals_over();
    else
        launch_decline(job, code);
    return launch_leave(job, cli_finish(code));
}

int cmd_train(int argc, char **argv)
{
    static cli_options o;
    launch job;
    int bad = 0;

    launch_find(&job);
    flags_init(&o);
    bad = flags_parse(&o, FOR_TRAIN, argc, argv);
    if (bad)
        return launch_decline(&job, bad);
    if (o.help) {
        flags_help(stdout, FOR_TRAIN);
        return cli_finish(EXIT_SUCCESS);
    }
    bad = flags_check(&o);
    if (!bad)
        bad = launch_check(&job, &o.train);
    if (bad)
        return launch_decline(&job, bad);
    if (o.dump_config) {
        config_dump(&o, stdout);
        return cli_finish(EXIT_SUCCESS);
    }
    return train_launched(&o, &job);
}
