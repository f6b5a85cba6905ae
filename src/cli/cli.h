/* cli.h - what the commands share: messages, formats, tables, progress, metrics and the plot.
 *
 * The command uses the library through accrue/accrue.h alone.  Results and progress go to stdout,
 * errors and notices to stderr, one line each. */
#ifndef ACR_CLI_H
#define ACR_CLI_H

#include "accrue/accrue.h"

#include <stdio.h>

#define CLI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum { EXIT_BAD_INPUT = 2, EXIT_INTERRUPTED = 130 };

int cmd_train(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_check(int argc, char **argv);

/* Messages -------------------------------------------------------------------------------- */

/* Prints "accrue: ..." on stderr and returns `code`. */
int cli_fail(int code, const char *format, ...) CLI_PRINTF(2, 3);
void cli_notice(const char *format, ...) CLI_PRINTF(1, 2);
int cli_exit_code(accrue_status status);
/* Flushes stdout; a failure to write becomes an error. */
int cli_finish(int code);
void *cli_realloc(void *block, size_t count, size_t size); /* ends the process when it fails */

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

double ratio(double sum, double total);          /* 0 where total is */
double accepted_length(const accrue_metrics *m); /* drafted tokens accepted per verifier step */

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
    int64_t *step;      /* [n] */
    float *loss;        /* [n] */
    float *full, *cond; /* [n, ttt_steps] */
    epoch_record *epochs;
    int64_t n_epochs;
    double epoch_start;
} history;

void history_step(history *h, const accrue_event *e);
void history_validation(history *h, const accrue_event *e);
void history_table(const history *h, FILE *out);
void history_free(history *h);

/* 0, or -1 with errno set. */
int plot_write(const history *h, const char *path);

/* Metrics --------------------------------------------------------------------------------- */

typedef struct metrics_log {
    FILE *file;
} metrics_log;

/* 0, or -1 with errno set.  metrics_open makes the folder and empties an earlier run's file; of the
 * file of a run that goes on it keeps what was before `start`, and tells `h` of it. */
int metrics_open(metrics_log *log, const char *folder, const accrue_event *start, history *h);
int metrics_step(metrics_log *log, const accrue_event *e, bool muon);
int metrics_validation(metrics_log *log, const accrue_event *e);
int metrics_close(metrics_log *log);

/* Progress -------------------------------------------------------------------------------- */

typedef struct progress {
    bool terminal, utf8, shown;
    int64_t log_freq;
    double drawn;      /* when the bar was last drawn, on the run's clock */
    accrue_event last; /* of the last step */
    bool stepped;
    int64_t first_step; /* where a run that goes on stood */
    double tokens_per_second;
} progress;

void progress_init(progress *p, int64_t log_freq);
void progress_event(progress *p, const accrue_event *e);
void progress_clear(progress *p); /* takes the bar away, so that something else can be printed */

#endif
