/* cli.h - what the commands share: messages, formats, tables, progress, metrics and the plot.
 *
 * The command uses the library through accrue/accrue.h alone.  Results and progress go to stdout,
 * errors and notices to stderr, one line each. */
#ifndef ACR_CLI_H
#define ACR_CLI_H

#include "accrue/accrue.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#define CLI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum { EXIT_BAD_INPUT = 2, EXIT_INTERRUPTED = 130 };

int cmd_import(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_prepare(int argc, char **argv);
int cmd_extract(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_plot(int argc, char **argv);

/* Messages -------------------------------------------------------------------------------- */

/* Prints "accrue: ..." on stderr and returns `code`. */
int cli_fail(int code, const char *format, ...) CLI_PRINTF(2, 3);
void cli_notice(const char *format, ...) CLI_PRINTF(1, 2);
int cli_exit_code(accrue_status status);
/* Of several ranks one speaks: the others print nothing, not even to stdout. */
void cli_mute(bool mute);
bool cli_is_muted(void);
const char *cli_kept(void); /* the latest error while it was; "": none */
/* Prints a report as JSON and frees it; NULL is want of memory.  0, or the exit code. */
int cli_print_json(json_t *report);
/* Flushes stdout; a failure to write becomes an error. */
int cli_finish(int code);
void *cli_realloc(void *block, size_t count, size_t size); /* ends the process when it fails */

/* Files ----------------------------------------------------------------------------------- */

char *cli_path(const char *folder, const char *name); /* freed with free */
int cli_make_folder(const char *folder); /* with those above it; 0, or -1 with errno set */

/* Ranks ----------------------------------------------------------------------------------- */

/* What a launcher of several processes has made of this one. */
typedef struct launch {
    const char *launcher; /* "mpirun"; NULL: none, or one for a single process */
    int size;             /* -1: only MPI knows */
    int rank, local_rank;
    accrue_comm *comm; /* while the job is joined */
    double timeout;    /* of the job: seconds; 0: none */
} launch;

void launch_find(launch *l); /* from the environment; all ranks but the first are mute from here */
/* Whether the flags fit what was started; 0, or the exit code after a line on stderr, as all that
 * return an int here. */
int launch_check(const launch *l, const accrue_train_options *t);
/* For a rank that ends with `code` before it joins: the first one, whose message is the one shown,
 * is to be faster, as launchers end all when one has failed; after that it tells its own.  Returns
 * `code`. */
int launch_decline(const launch *l, int code);
/* Becomes a rank of the job, where there is one; whatever it returns, launch_leave follows. */
int launch_join(launch *l, const accrue_train_options *t);
/* Threads for this process, of `asked` (0: as many as there are cores for it): a rank of a job, or
 * with so many ranks as threads no more than there are cores. */
int launch_threads(const launch *l, int ranks, int asked, int *threads);
/* The greatest value of all ranks; `value` where the job has failed. */
int launch_greatest(const launch *l, int value);
/* Whether this rank is to tell people of a failure, for want of the first. */
bool launch_reports(const launch *l);
/* The exit code of all ranks, from that of each. */
int launch_leave(launch *l, int code);

/* Formats --------------------------------------------------------------------------------- */

#define FORMAT_BYTES 40
typedef struct figure {
    char s[FORMAT_BYTES];
} figure;

figure format_count(int64_t n);         /* 16,956 */
figure format_bytes(int64_t n);         /* 2.1 GB */
figure format_duration(double seconds); /* 1:02:03 */
figure format_short(double x);          /* five figures, for people */
figure format_exact(double x);          /* the shortest that reads back equal; "null" for NaN */
/* `s` as UTF-8, with a question mark for each byte that is none or that nobody sees. */
void format_name(char *out, size_t bytes, const char *s);
bool is_utf8(const char *s, size_t bytes);

double ratio(double sum, double total); /* 0 where total is */

/* Tables ---------------------------------------------------------------------------------- */

typedef struct table {
    int cols;
    char **cells;
    int n, capacity;
} table;

void table_init(table *t, int cols);
void table_cell(table *t, const char *format, ...) CLI_PRINTF(2, 3);
/* `align` has an 'l' or 'r' per column.  With `header`, a rule follows the first row. */
void table_print(const table *t, FILE *out, const char *align, int indent, bool header);
void table_free(table *t);

/* Long calls ------------------------------------------------------------------------------ */

/* What a long call of the library shows while it goes. */
typedef struct work {
    bool quiet;       /* with --json */
    bool begins_anew; /* what a stopped call has made is of no use to the next one */
    bool terminal, drawn;
    char unit[16];    /* of what goes on: a call may have parts */
    double begun, at; /* seconds: when that began; of the latest progress */
    double told;      /* when progress was last shown */
} work;

void work_open(work *w, bool quiet);
/* Whether a line of progress is due, so many seconds into the call; then work_show it. */
bool work_due(work *w, double seconds);
void work_show(work *w, const char *line);
void work_clear(work *w); /* takes the line away, so that something else can be printed */
/* work_open, and SIGINT, SIGTERM and SIGHUP stop the call from here on. */
void work_begin(work *w, bool quiet);
int work_progress(const accrue_progress *p, void *payload); /* an accrue_progress_cb of a work */
/* After the call: 0, or the exit code after a line on stderr; 130 after SIGINT. */
int work_end(work *w, accrue_status status, const accrue_error *err);

/* History --------------------------------------------------------------------------------- */

typedef struct epoch_record {
    int64_t steps, last_step;
    double seconds;
    accrue_metrics train, val;
    bool has_val;
    bool restored; /* from metrics.jsonl, in part at least: its totals are not known */
} epoch_record;

/* What a run has shown so far, kept for the closing table and the plot. */
typedef struct history {
    int ttt_steps;
    int64_t n, capacity;
    int64_t *step;                  /* [n] */
    float *loss, *lr, *tokens_rate; /* [n] */
    float *full, *cond;             /* [n, ttt_steps] */
    epoch_record *epochs;
    int64_t n_epochs;
    double epoch_start;
} history;

/* `lr` and `tokens_rate` (tokens per second) are NaN where they are not known. */
void history_step(history *h, const accrue_event *e, double lr, double tokens_rate);
void history_validation(history *h, const accrue_event *e);
void history_table(const history *h, FILE *out);
void history_free(history *h);

/* Metrics --------------------------------------------------------------------------------- */

#define RECORD_KEY_BYTES 64
#define RECORD_ITEMS     220

/* One logged optimizer step or validation as names and numbers, the peer's: "train/loss_0".  A part
 * before a slash is the object in JSON that holds the rest. */
typedef struct record {
    bool validation;
    int64_t epoch, step; /* `step` is where the loggers put it: the steps before it */
    int n;
    struct {
        char key[RECORD_KEY_BYTES];
        double value;
    } items[RECORD_ITEMS];
} record;

void record_step(record *r, const accrue_event *e, bool muon);
void record_validation(record *r, const accrue_event *e);
/* Whether a run that goes on at `start` keeps what was logged there before. */
bool record_kept(bool validation, int64_t epoch, int64_t step, const accrue_event *start);
double tokens_rate(const accrue_event *e);

/* A file that grows record by record.  Functions on it return 0, or -1 with errno set. */
typedef struct log_file {
    FILE *file; /* NULL: none, or no longer written to */
    char *path; /* freed with free */
    bool made;  /* was not there before */
    /* Where writing to it failed. */
    bool lost;
    int64_t lost_step; /* from this one on, as the logs count, records are lacking */
    char why[200];
} log_file;

typedef enum log_line {
    LINE_KEPT,  /* of what was before the point where the run goes on */
    LINE_LATER, /* made again by the run that goes on */
    LINE_BROKEN
} log_line;

/* Opens to append and changes nothing. */
int log_file_open(log_file *log, const char *folder, const char *name);
/* For a run that begins anew: what is there is moved aside, with a notice. */
int log_file_begin(log_file *log);
/* Keeps the lines that `judge` says; where one but the last is broken, the file as it was is moved
 * aside, with a notice. */
int log_file_cut(log_file *log, log_line (*judge)(char *line, size_t bytes, void *ctx), void *ctx);
int log_file_append(log_file *log, const char *text, size_t bytes);
bool log_file_gone(const log_file *log); /* another has its name, or none */
int log_file_close(log_file *log);
/* Closes it, and removes it where it is new. */
void log_file_discard(log_file *log);

/* Locks a folder against other runs; whether one holds it.  Where there are no locks, none does. */
bool log_folder_taken(const char *folder, int *lock);
/* Makes a folder that was not there, under this name or the first of -2, -3, ... that is free. */
int log_folder_make_new(char **folder);

/* Of the metrics.jsonl of a run that goes on, keeps what was before `start` and tells `h`, where
 * there is one. */
int metrics_cut(log_file *log, const accrue_event *start, history *h);
int metrics_write(log_file *log, const record *r);

/* Runs read back, for plots --------------------------------------------------------------- */

/* What is wrong with a record, or NULL when it is well or has nothing to tell. */
const char *history_record(history *h, const json_t *o);
/* Sets a member and takes over `value`; "train/loss" is loss in the object train. */
void history_set(json_t *o, const char *key, json_t *value);
/* Forgets what was logged at `step` (as loggers count) and later. */
void history_drop(history *h, int64_t step);
/* The event files of a folder; `found` tells whether there are any. */
int history_read_events(history *h, const char *folder, bool *found);
/* Reads the run whose folder or file `path` is.  0, or the exit code after a line on stderr. */
int history_read(history *h, const char *path);

/* Loggers --------------------------------------------------------------------------------- */

enum { LOGGER_TENSORBOARD = 1, LOGGER_CSV = 2, LOGGER_JSONL = 4 };

typedef struct csv_log {
    log_file to;
    char *header; /* of the file that a run goes on with */
    bool validation, started;
    const char *why; /* a failure that errno has no word for */
} csv_log;

int csv_open(csv_log *log, const char *folder, bool validation);
int csv_cut(csv_log *log, const accrue_event *start);
int csv_write(csv_log *log, const record *r);
/* Splits a line of RFC 4180 in place into at most `most` fields; their count, or -1 where quotes do
 * not close or there are more. */
int csv_split(char *line, char **fields, int most);

#define TENSORBOARD_PREFIX "events.out.tfevents."

uint32_t tensorboard_crc(const uint8_t *at, size_t n);
int tensorboard_open(log_file *log, const char *folder, const accrue_event *start);
int tensorboard_write(log_file *log, const record *r);

/* The comma separated names of --logger.  0, or the exit code after a line on stderr. */
int loggers_parse(unsigned *set, const char *names);
/* Whether the placeholders of a run's name are known; `where` begins the line on stderr. */
int loggers_check_name(const char *where, const char *run_name);
/* The folder below --log-dir, with {time}, {utc_time}, {rank} and {local_rank} of the run's name
 * filled in, the last two from the launcher, or else from RANK and LOCAL_RANK; freed with free.
 * `timed`: the name has a time, so that the folder is this run's own.
 * 0, or the exit code after a line on stderr. */
int loggers_folder(char **folder, bool *timed, const char *log_dir, const char *run_name,
                   const launch *l);

/* Everything that a run is logged to: metrics.jsonl in --save-path, and what --logger asks for. */
typedef struct run_log {
    unsigned set;
    char *folder; /* of the loggers; NULL: none */
    bool own_folder, made_folder;
    int lock; /* a descriptor, -1: none */
    bool muon;
    int64_t freq;
    log_file metrics, jsonl, tensorboard;
    csv_log train, val;
    char failed[600]; /* the last failure, naming the file */
} run_log;

/* Opens all and changes no file that is there.  0, or the exit code with `failed` set. */
int log_open(run_log *log, const char *save_path, const accrue_event *start);
void log_discard(run_log *log); /* leaves nothing of what that made */
/* Moves aside what earlier runs wrote, or cuts it to what was before `start`, for `h`. */
int log_begin(run_log *log, const accrue_event *start, history *h);
/* 0, or -1 with `failed` set where a file could not be written; it is closed, the others go on. */
int log_step(run_log *log, const accrue_event *e);
int log_validation(run_log *log, const accrue_event *e);
/* Closes all; tells which are gone and, as errors, which lack records.  0, or the exit code. */
int log_close(run_log *log);
void log_free(run_log *log);

/* Plots ----------------------------------------------------------------------------------- */

typedef struct plot_run {
    const char *name;
    const history *history;
} plot_run;

/* Draws the runs over each other, as PNG where the name ends so, else as SVG.  `smooth` is the
 * number of steps to average over, 0 for a sixtieth of the run.  0, or -1 with errno set. */
int plot_write(const plot_run *runs, int n, const char *title, int64_t smooth, const char *path);
/* Acceptance by position, and how many tokens the rounds accepted; likewise. */
int plot_eval_write(const accrue_eval_report *r, const char *title, const char *path);
bool plot_is_png(const char *path);
bool plot_is_picture(const char *path); /* the name ends in .svg or .png */

/* Signals --------------------------------------------------------------------------------- */

/* For every command: what files do to the process becomes an error like others. */
void signals_of_files(void);
/* From here on SIGTERM, SIGINT and SIGHUP ask for a stop; a second one ends the process. */
void signals_catch(void);
/* The same for a run, which SIGUSR1 asks for a save.  `grace`: seconds that the window is given to
 * end in; `of_several`: this is one rank of several that a launcher has started. */
void signals_catch_run(double grace, bool of_several);
void signals_begin(void);  /* training begins; before it a stop needs no save and is at once */
void signals_over(void);   /* all is done; the launcher ends ranks for the first that exits badly */
int signals_answer(void);  /* to an event: an accrue_answer */
int signals_stopped(void); /* the signal that asked for a stop; 0: none */
const char *signals_name(int number);

/* Progress -------------------------------------------------------------------------------- */

typedef struct progress {
    bool terminal, utf8, color, shown;
    int64_t log_freq;
    double drawn;      /* when the bar was last drawn, on the run's clock */
    accrue_event last; /* of the last step */
    bool stepped;
    int64_t first_step; /* where a run that goes on stood */
    double tokens_per_second;
} progress;

void progress_init(progress *p, int64_t log_freq, bool launched);
void progress_event(progress *p, const accrue_event *e);
void progress_clear(progress *p); /* takes the bar away, so that something else can be printed */

#endif
