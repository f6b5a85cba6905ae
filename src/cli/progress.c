/* progress.c - what a run shows while it goes: one line that is drawn over on a terminal, a plain
 * line every --log-freq steps elsewhere. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1
#define LINE_BYTES     400
#define MIN_BAR        10
#define MAX_BAR        40

static bool locale_is_utf8(void)
{
    const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return false;
}

/* Launchers give their ranks a terminal even where they write to a file themselves. */
void progress_init(progress *p, int64_t log_freq, bool launched)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");

    *p = (progress){.log_freq = log_freq, .drawn = -1};
    p->terminal = !launched && isatty(STDOUT_FILENO) && !(term && strcmp(term, "dumb") == 0);
    p->utf8 = locale_is_utf8();
    p->color = p->utf8 && !(no_color && *no_color);
}

void progress_clear(progress *p)
{
    if (p->shown)
        fputs("\r\033[K", stdout);
    fflush(stdout);
    p->shown = false;
}

static int terminal_width(void)
{
    struct winsize size = {0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

/* Time left, from the optimizer steps so far. */
static double seconds_left(const progress *p, const accrue_event *e)
{
    int64_t done = e->global_step - p->first_step;

    if (!e->plan || done < 1)
        return (double)NAN;
    return e->seconds / (double)done * (double)(e->plan->total_steps - e->global_step);
}

/* Appends a part when it fits into `room` columns; the parts are plain ASCII. */
static void append(char *line, int *room, const char *part)
{
    int len = (int)strlen(part);
    size_t used = strlen(line);

    if (len > *room || used + (size_t)len >= LINE_BYTES)
        *room = 0; /* the parts after it matter less */
    else {
        memcpy(line + used, part, (size_t)len + 1);
        *room -= len;
    }
}

static void draw_cells(const progress *p, int cells, double share)
{
    const char *full = p->utf8 ? "\u2501" : "=";
    const char *rest = p->color ? "\u2501" : p->utf8 ? "\u2500" : "-";
    int filled = (int)(share * cells + 0.5);

    fputs(p->color ? "\033[36m" : "[", stdout);
    for (int i = 0; i < cells; i++) {
        if (i == filled && p->color)
            fputs("\033[90m", stdout);
        fputs(i < filled ? full : rest, stdout);
    }
    fputs(p->color ? "\033[0m" : "]", stdout);
}

static void draw(progress *p, const accrue_event *now)
{
    const accrue_event *e = &p->last;
    const accrue_metrics *m = &e->metrics;
    int64_t total = now->plan ? now->plan->total_steps : 0;
    int64_t epochs = now->plan ? now->plan->epochs : 0;
    char head[80], part[80], tail[LINE_BYTES] = "";
    double share = total > 0 ? (double)now->global_step / (double)total : 0;

    snprintf(head, sizeof head, "epoch %lld/%lld ", (long long)now->epoch + 1, (long long)epochs);
    int room = terminal_width() - 1 - (int)strlen(head) - MIN_BAR - 2;
    snprintf(part, sizeof part, " %lld/%lld", (long long)now->global_step, (long long)total);
    append(tail, &room, part);
    if (now->kind == ACCRUE_EVENT_VALIDATING) {
        snprintf(part, sizeof part, "  validation %lld/%lld", (long long)now->micro_batch,
                 (long long)now->micro_batches);
        append(tail, &room, part);
    } else if (p->stepped) {
        snprintf(part, sizeof part, "  loss %s", format_short(ratio(m->loss_sum, m->loss_total)).s);
        append(tail, &room, part);
        snprintf(part, sizeof part, "  %s left", format_duration(seconds_left(p, e)).s);
        append(tail, &room, part);
        snprintf(part, sizeof part, "  acc %.3f", ratio(m->full_acc_sum[0], m->full_acc_total[0]));
        append(tail, &room, part);
        snprintf(part, sizeof part, "  %.0f tok/s", p->tokens_per_second);
        append(tail, &room, part);
        snprintf(part, sizeof part, "  accepted %.2f", accrue_metrics_acceptance(m));
        append(tail, &room, part);
    } else {
        snprintf(part, sizeof part, "  micro-batch %lld/%lld", (long long)now->micro_batch,
                 (long long)now->micro_batches);
        append(tail, &room, part);
    }
    int cells = terminal_width() - 1 - (int)strlen(head) - (int)strlen(tail) - 2;
    fputs("\r\033[K", stdout);
    fputs(head, stdout);
    if (cells >= MIN_BAR)
        draw_cells(p, cells < MAX_BAR ? cells : MAX_BAR, share < 1 ? share : 1);
    fputs(tail, stdout);
    fflush(stdout);
    p->shown = true;
    p->drawn = now->seconds;
}

static void plain_line(const progress *p, const accrue_event *e)
{
    const accrue_metrics *m = &e->metrics;

    printf("epoch %lld  step %lld/%lld  loss %s  full_acc_0 %.4f  accepted %.3f  lr %s  "
           "grad_norm %s  %.0f tok/s  %s left\n",
           (long long)e->epoch + 1, (long long)e->global_step,
           (long long)(e->plan ? e->plan->total_steps : 0),
           format_short(ratio(m->loss_sum, m->loss_total)).s,
           ratio(m->full_acc_sum[0], m->full_acc_total[0]), accrue_metrics_acceptance(m),
           format_short(e->lr).s, format_short(e->grad_norm).s, p->tokens_per_second,
           format_duration(seconds_left(p, e)).s);
    fflush(stdout);
}

static void validation_line(progress *p, const accrue_event *e)
{
    const accrue_metrics *m = &e->metrics;

    progress_clear(p);
    printf("epoch %lld  validation  loss %s", (long long)e->epoch + 1,
           format_short(ratio(m->loss_sum, m->loss_total)).s);
    for (int k = 0; k < m->n_steps; k++)
        printf("  full_acc_%d %.4f", k, ratio(m->full_acc_sum[k], m->full_acc_total[k]));
    printf("  accepted %.3f\n", accrue_metrics_acceptance(m));
    fflush(stdout);
}

void progress_event(progress *p, const accrue_event *e)
{
    double seconds = e->data_seconds + e->forward_backward_seconds + e->optimizer_seconds;

    switch (e->kind) {
    case ACCRUE_EVENT_START: p->first_step = e->global_step; break;
    case ACCRUE_EVENT_STEP:
        p->last = *e;
        p->stepped = true;
        p->tokens_per_second = ratio((double)e->metrics.tokens, seconds);
        if (!p->terminal && (e->global_step - 1) % p->log_freq == 0)
            plain_line(p, e);
        break;
    case ACCRUE_EVENT_VALIDATION: validation_line(p, e); break;
    case ACCRUE_EVENT_CHECKPOINT:
        progress_clear(p);
        printf("epoch %lld  checkpoint  %s  (%s in %.2f s, training waited %.1f ms)\n",
               (long long)e->epoch + 1, e->message, format_bytes(e->save_bytes).s, e->save_seconds,
               1000 * e->save_wait_seconds);
        fflush(stdout);
        break;
    case ACCRUE_EVENT_NOTICE:
        progress_clear(p);
        cli_notice("%s", e->message);
        break;
    default: break;
    }
    bool moved = e->kind == ACCRUE_EVENT_STEP || e->kind == ACCRUE_EVENT_MICRO_BATCH ||
                 e->kind == ACCRUE_EVENT_VALIDATING;
    if (p->terminal && moved && (p->drawn < 0 || e->seconds - p->drawn >= REDRAW_SECONDS))
        draw(p, e);
}
