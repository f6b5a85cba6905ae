/* work.c - long calls of the library: their progress, and the signals that stop them. */
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double redraw_seconds = 0.1, line_seconds = 5;

/* `timeout` and the like send the same signal to a process and to its group: one wish, twice. */
static const double echo_seconds = 0.5;

static volatile sig_atomic_t stopped;
static struct timespec stopped_at;

static double since_stopped(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - stopped_at.tv_sec) +
           1e-9 * (double)(now.tv_nsec - stopped_at.tv_nsec);
}

/* The second one does not wait for anything; what is on the disk is whole, and goes on. */
static void on_stop(int number)
{
    if (stopped && since_stopped() > echo_seconds)
        _exit(128 + number);
    if (stopped)
        return;
    clock_gettime(CLOCK_MONOTONIC, &stopped_at);
    stopped = number;
}

/* What the parent has made ignored, as nohup does, stays so. */
static void catch_signals(void)
{
    const int all[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction before, action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (sigaction(all[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(all[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* who read the progress has left; the work has not */
    signal(SIGXFSZ, SIG_IGN); /* a file over the limit is an error like a full disk */
}

void work_open(work *w, bool quiet)
{
    const char *term = getenv("TERM");

    *w = (work){.quiet = quiet};
    w->terminal = isatty(STDOUT_FILENO) && !(term && strcmp(term, "dumb") == 0);
}

void work_begin(work *w, bool quiet)
{
    work_open(w, quiet);
    catch_signals();
}

bool work_due(work *w, double seconds)
{
    if (w->quiet || seconds - w->told < (w->terminal ? redraw_seconds : line_seconds))
        return false;
    w->told = seconds;
    return true;
}

void work_show(work *w, const char *line)
{
    if (w->terminal)
        printf("\r\033[K%s", line);
    else
        printf("%s\n", line);
    w->drawn = w->terminal;
    fflush(stdout);
}

void work_clear(work *w)
{
    if (w->drawn)
        printf("\r\033[K");
    w->drawn = false;
}

/* Seconds of what goes on now.  A part begins with another unit, or where the clock is set back. */
static double seconds_of_part(work *w, const accrue_progress *p)
{
    if (p->seconds < w->at)
        w->begun = w->told = 0;
    else if (strcmp(w->unit, p->unit) != 0)
        w->begun = w->at;
    snprintf(w->unit, sizeof w->unit, "%s", p->unit);
    w->at = p->seconds;
    return w->at - w->begun;
}

int work_progress(const accrue_progress *p, void *payload)
{
    work *w = payload;
    const double spent = seconds_of_part(w, p), made = (double)(p->done - p->found);
    const figure time = format_duration(ratio(spent * (double)(p->total - p->done), made));
    const char *left = made > 0 ? time.s : "?";
    char line[200];

    if (stopped)
        return 1;
    if (p->done == p->total || !work_due(w, p->seconds))
        return 0;
    if (strcmp(p->unit, "bytes") == 0)
        snprintf(line, sizeof line, "%s of %s  %s/s  %s left", format_bytes(p->done).s,
                 format_bytes(p->total).s, format_bytes((int64_t)ratio(made, spent)).s, left);
    else if (w->begins_anew)
        snprintf(line, sizeof line, "%s of %s %s  %s/s  %s left", format_count(p->done).s,
                 format_count(p->total).s, p->unit, format_count((int64_t)ratio(made, spent)).s,
                 left);
    else
        snprintf(line, sizeof line, "%s of %s %s  %s tokens/s  %s left", format_count(p->done).s,
                 format_count(p->total).s, p->unit,
                 format_count((int64_t)ratio((double)p->tokens, spent)).s, left);
    work_show(w, line);
    return 0;
}

int work_end(work *w, accrue_status status, const accrue_error *err)
{
    work_clear(w);
    if (status == ACCRUE_ECANCELED && stopped)
        return cli_fail(128 + stopped,
                        w->begins_anew ? "%s (%s)" : "%s by %s; the same command goes on",
                        err->message, signals_name(stopped));
    return status ? cli_fail(cli_exit_code(status), "%s", err->message) : EXIT_SUCCESS;
}
