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

void work_begin(work *w, bool quiet)
{
    const char *term = getenv("TERM");

    *w = (work){.quiet = quiet};
    w->terminal = isatty(STDOUT_FILENO) && !(term && strcmp(term, "dumb") == 0);
    catch_signals();
}

/* Time left, from the rows of this call. */
static double seconds_left(const accrue_progress *p)
{
    const int64_t made = p->done - p->found;

    return made > 0 ? p->seconds / (double)made * (double)(p->total - p->done) : 0;
}

int work_progress(const accrue_progress *p, void *payload)
{
    work *w = payload;
    char line[200];

    if (stopped)
        return 1;
    if (p->seconds < w->told) /* the work proper begins, and its seconds with it */
        w->told = 0;
    if (w->quiet || p->done == p->total ||
        p->seconds - w->told < (w->terminal ? redraw_seconds : line_seconds))
        return 0;
    w->told = p->seconds;
    const figure time = format_duration(seconds_left(p));
    const char *left = p->done > p->found ? time.s : "?";
    if (strcmp(p->unit, "bytes") == 0)
        snprintf(line, sizeof line, "%s of %s  %s/s  %s left", format_bytes(p->done).s,
                 format_bytes(p->total).s,
                 format_bytes((int64_t)ratio((double)p->bytes, p->seconds)).s, left);
    else
        snprintf(line, sizeof line, "%s of %s %s  %s tokens/s  %s left", format_count(p->done).s,
                 format_count(p->total).s, p->unit,
                 format_count((int64_t)ratio((double)p->tokens, p->seconds)).s, left);
    if (w->terminal)
        printf("\r\033[K%s", line);
    else
        printf("%s\n", line);
    w->drawn = w->terminal;
    fflush(stdout);
    return 0;
}

int work_end(work *w, accrue_status status, const accrue_error *err)
{
    if (w->drawn)
        printf("\r\033[K");
    w->drawn = false;
    if (status == ACCRUE_ECANCELED && stopped)
        return cli_fail(128 + stopped, "%s by %s%s", err->message, signals_name(stopped),
                        w->begins_anew ? "" : "; the same command goes on");
    return status ? cli_fail(cli_exit_code(status), "%s", err->message) : EXIT_SUCCESS;
}
