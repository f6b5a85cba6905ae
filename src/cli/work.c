/* work.c - long calls of the library: their progress, and how they end. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double redraw_seconds = 0.1, line_seconds = 5;

void work_open(work *w, bool quiet)
{
    const char *term = getenv("TERM");

    *w = (work){.quiet = quiet};
    w->terminal = isatty(STDOUT_FILENO) && !(term && strcmp(term, "dumb") == 0);
}

void work_begin(work *w, bool quiet)
{
    work_open(w, quiet);
    signals_catch();
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

    if (signals_stopped())
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
    if (status == ACCRUE_ECANCELED && signals_stopped())
        return cli_fail(128 + signals_stopped(),
                        w->begins_anew ? "%s (%s)" : "%s by %s; the same command goes on",
                        err->message, signals_name(signals_stopped()));
    return status ? cli_fail(cli_exit_code(status), "%s", err->message) : EXIT_SUCCESS;
}
