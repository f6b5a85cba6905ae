/* plot.c - runs drawn over each other: a panel per quantity, a colour per run.
 *
 * The curves are moving averages, with the values of the steps pale behind them; validation stands
 * as points at the end of its epoch.  Long runs are averaged into as many points as there are
 * pixels.  A gap in a curve is a value that was not a number. */
#include "cli.h"

#include "ink.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PANEL_WIDTH  470.0
#define PANEL_HEIGHT 236.0
#define LEFT         66.0 /* of a panel, for the labels */
#define RIGHT        20.0
#define TOP          34.0
#define BOTTOM       34.0
#define MARGIN       18.0
#define LEGEND_ROW   22.0
#define MAX_NAME     300.0 /* of a name in the legend, in pixels */
#define MAX_POINTS   500
#define MAX_PANELS   32
#define SHOWN_STEPS  7  /* TTT steps with panels of their own */
#define LOG_RATIO    25 /* a loss that falls by this much or more is drawn on a logarithmic axis */

#define INK  0x1f2937
#define SOFT 0x6b7280
#define GRID 0xe5e7eb

/* Okabe and Ito's, which colour-blind people can tell apart; its yellow is lost on white. */
static const unsigned palette[] = {0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7,
                                   0xe69f00, 0x56b4e9, 0x4d4d4d, 0x882255};

typedef enum quantity { LOSS, ACCEPTED, FULL, COND, RATE } quantity;

typedef struct panel {
    quantity what;
    int k; /* TTT step */
    char title[80];
    double left, top, right, bottom; /* of the frame */
    double x0, x1, y0, y1;           /* of the data; y in log10 where `log` */
    double step;                     /* between the ticks on y */
    bool log, empty;
} panel;

typedef struct drawing {
    cairo_t *cr;
    const plot_run *runs;
    int n_runs, n_panels, columns;
    panel panels[MAX_PANELS];
    const char *title;
    int64_t smooth;
    double width, height, head; /* `head` is what title and legend take */
    double *sum;                /* [longest run + 1] sums of values, for the averages */
    int64_t *count;             /* likewise of the values that are numbers */
} drawing;

/* Data ------------------------------------------------------------------------------------ */

static double step_value(const history *h, const panel *p, int64_t i)
{
    double sum = 0;

    switch (p->what) {
    case LOSS: return (double)h->loss[i];
    case RATE: return (double)h->lr[i];
    case FULL: return p->k < h->ttt_steps ? (double)h->full[i * h->ttt_steps + p->k] : (double)NAN;
    case COND: return p->k < h->ttt_steps ? (double)h->cond[i * h->ttt_steps + p->k] : (double)NAN;
    case ACCEPTED:
        for (int k = 0; k < h->ttt_steps; k++)
            sum += (double)h->full[i * h->ttt_steps + k];
        return h->ttt_steps ? sum : (double)NAN;
    }
    return (double)NAN;
}

static double validation_value(const accrue_metrics *m, const panel *p)
{
    if (p->what == LOSS)
        return ratio(m->loss_sum, m->loss_total);
    if (p->what == ACCEPTED && m->n_steps)
        return accrue_metrics_acceptance(m);
    if (p->what == FULL && p->k < m->n_steps)
        return ratio(m->full_acc_sum[p->k], m->full_acc_total[p->k]);
    if (p->what == COND && p->k < m->n_steps)
        return ratio(m->cond_acc_sum[p->k], m->cond_acc_total[p->k]);
    return (double)NAN;
}

/* Steps on either side of one that its average takes in. */
static int64_t reach_of(const drawing *d, const history *h)
{
    if (d->smooth)
        return d->smooth / 2;
    return h->n >= 30 ? h->n / 120 + 1 : 0;
}

static void sum_up(drawing *d, const history *h, const panel *p)
{
    d->sum[0] = 0;
    d->count[0] = 0;
    for (int64_t i = 0; i < h->n; i++) {
        double y = step_value(h, p, i);
        bool number = isfinite(y);
        d->sum[i + 1] = d->sum[i] + (number ? y : 0);
        d->count[i + 1] = d->count[i] + number;
    }
}

/* Mean of the steps from i to before `end` and of `reach` more on both sides.  At the beginning,
 * where curves are steep, it is fewer on both sides alike, else they would be pulled inwards. */
static double mean(const drawing *d, const history *h, int64_t i, int64_t end, int64_t reach)
{
    int64_t low = i - (reach < i ? reach : i), high = end + (i - low);

    if (high > h->n)
        high = h->n;
    if (d->count[end] == d->count[i]) /* a gap stays one */
        return (double)NAN;
    return (d->sum[high] - d->sum[low]) / (double)(d->count[high] - d->count[low]);
}

/* Axes ------------------------------------------------------------------------------------ */

static void widen(panel *p, double x, double y)
{
    if (x < p->x0)
        p->x0 = x;
    if (x > p->x1)
        p->x1 = x;
    if (!isfinite(y))
        return;
    if (y < p->y0)
        p->y0 = y;
    if (y > p->y1)
        p->y1 = y;
}

/* 1, 2 or 5 times a power of ten, for about `n` ticks over `span`. */
static double tick_step(double span, int n)
{
    double raw = span / n, base = pow(10, floor(log10(raw))), f = raw / base;

    return base * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
}

/* Limits a little outside the data, on a tick where that is near. */
static void settle(panel *p)
{
    if (p->x0 > p->x1)
        p->x0 = p->x1 = 0;
    if (!(p->x1 > p->x0))
        p->x1 = p->x0 + 1;
    p->empty = p->y0 > p->y1;
    if (p->empty)
        p->y0 = p->y1 = 0;
    p->log = p->what == LOSS && p->y0 > 0 && p->y1 / p->y0 >= LOG_RATIO;
    if (p->log) {
        double span = log10(p->y1 / p->y0);
        p->y0 = log10(p->y0) - 0.04 * span;
        p->y1 = log10(p->y1) + 0.04 * span;
        return;
    }
    bool positive = p->y0 >= 0, share = p->what == FULL || p->what == COND;
    if (p->what != LOSS && positive)
        p->y0 = 0;
    double span = p->y1 - p->y0;
    if (!(span > 1e-12 * fabs(p->y1)))
        span = p->y1 > 0 ? p->y1 : 1;
    double step = p->step = tick_step(1.04 * span, 4);
    p->y0 = floor((p->y0 - 0.02 * span) / step) * step;
    p->y1 = ceil((p->y1 + 0.02 * span) / step) * step;
    if (positive && p->y0 < 0)
        p->y0 = 0;
    if (share && p->y1 > 1)
        p->y1 = 1;
}

/* All panels have one x axis, so that they can be read down a column. */
static void fit_axes(drawing *d)
{
    double x0 = HUGE_VAL, x1 = -HUGE_VAL;

    for (int i = 0; i < d->n_panels; i++) {
        panel *p = &d->panels[i];
        *p = (panel){
            .what = p->what, .k = p->k, .x0 = x0, .x1 = x1, .y0 = HUGE_VAL, .y1 = -HUGE_VAL};
        for (int r = 0; r < d->n_runs; r++) {
            const history *h = d->runs[r].history;
            int64_t reach = reach_of(d, h);
            bool raw = d->n_runs <= 2;
            sum_up(d, h, p);
            for (int64_t s = 0; s < h->n; s++)
                widen(p, (double)h->step[s],
                      raw ? step_value(h, p, s) : mean(d, h, s, s + 1, reach));
            for (int64_t e = 0; e < h->n_epochs; e++)
                if (h->epochs[e].has_val)
                    widen(p, (double)h->epochs[e].last_step,
                          validation_value(&h->epochs[e].val, p));
        }
        x0 = p->x0;
        x1 = p->x1;
    }
    for (int i = 0; i < d->n_panels; i++) {
        d->panels[i].x0 = x0;
        d->panels[i].x1 = x1;
        settle(&d->panels[i]);
    }
}

static double px(const panel *p, double x)
{
    return p->left + (x - p->x0) / (p->x1 - p->x0) * (p->right - p->left);
}

static double py(const panel *p, double y)
{
    double at = p->log ? log10(y) : y;

    return p->bottom - (at - p->y0) / (p->y1 - p->y0) * (p->bottom - p->top);
}

/* Ink ------------------------------------------------------------------------------------- */

static unsigned color_of(int run)
{
    return palette[run % (int)(sizeof palette / sizeof palette[0])];
}

static void set_dash(const drawing *d, int run)
{
    static const double dash[] = {5, 3};

    cairo_set_dash(d->cr, dash, run < (int)(sizeof palette / sizeof palette[0]) ? 0 : 2, 0);
}

/* Frame ----------------------------------------------------------------------------------- */

static void y_tick(const drawing *d, const panel *p, double y)
{
    char label[40];
    double at = floor(py(p, y)) + 0.5;

    snprintf(label, sizeof label, "%.4g", y);
    ink_color(d->cr, GRID, 1);
    ink_line(d->cr, p->left, at, p->right, at);
    ink_color(d->cr, SOFT, 1);
    ink_text(d->cr, p->left - 8, at + 4, 1, label);
}

static void log_ticks(const drawing *d, const panel *p)
{
    static const double marks[] = {1, 2, 5};
    double span = p->y1 - p->y0;
    int stride = span > 2.5 ? 3 : 1; /* decades alone where there are many, then some of them */
    int every = span > 8 ? (int)ceil(span / 6) : 1;

    for (int decade = (int)floor(p->y0); decade <= p->y1; decade += every)
        for (int i = 0; i < 3; i += stride) {
            double y = marks[i] * pow(10, decade);
            if (log10(y) >= p->y0 && log10(y) <= p->y1)
                y_tick(d, p, y);
        }
}

/* As many ticks as there is room for their labels. */
static double x_tick_step(const drawing *d, const panel *p)
{
    double wide = 14 + ink_width(d->cr, format_count((int64_t)p->x1).s), step = 0;

    for (int n = 8; n > 0; n--) {
        step = tick_step(p->x1 - p->x0, n);
        if (px(p, p->x0 + step) - p->left >= wide)
            break;
    }
    return step < 1 ? 1 : step;
}

static void ticks(const drawing *d, const panel *p)
{
    double step = p->step, x_step = 0;

    ink_font(d->cr, 11, false);
    cairo_set_line_width(d->cr, 1);
    ink_color(d->cr, SOFT, 1);
    if (p->empty)
        ink_text(d->cr, (p->left + p->right) / 2, (p->top + p->bottom) / 2, 0.5, "no values");
    else if (p->log)
        log_ticks(d, p);
    else
        for (double k = ceil(p->y0 / step - 1e-9); k * step <= p->y1 + step * 1e-9; k++)
            y_tick(d, p, fabs(k) < 0.5 ? 0 : k * step);
    x_step = x_tick_step(d, p);
    ink_color(d->cr, SOFT, 1);
    for (double k = ceil(p->x0 / x_step); k * x_step <= p->x1 + 1e-9; k++) {
        double x = floor(px(p, k * x_step)) + 0.5;
        ink_line(d->cr, x, p->bottom, x, p->bottom + 4);
        ink_text(d->cr, x, p->bottom + 17, 0.5, format_count((int64_t)(k * x_step)).s);
    }
    ink_line(d->cr, p->left, floor(p->bottom) + 0.5, p->right, floor(p->bottom) + 0.5);
}

/* Where the epochs of a single run end; none when they would be a fence. */
static void epoch_lines(const drawing *d, const panel *p)
{
    static const double dash[] = {2, 4};
    const history *h = d->runs[0].history;

    if (d->n_runs > 1 || h->n_epochs > 12)
        return;
    cairo_save(d->cr);
    cairo_set_dash(d->cr, dash, 2, 0);
    ink_color(d->cr, 0x9ca3af, 1);
    for (int64_t e = 0; e + 1 < h->n_epochs; e++)
        if (h->epochs[e].steps) {
            double x = px(p, (double)h->epochs[e].last_step + 0.5);
            ink_line(d->cr, x, p->top, x, p->bottom);
        }
    cairo_restore(d->cr);
}

/* Curves ---------------------------------------------------------------------------------- */

/* A value between two gaps, which no line reaches. */
static void alone(const drawing *d, double x, double y)
{
    cairo_stroke(d->cr);
    cairo_arc(d->cr, x, y, 2.2, 0, 2 * acos(-1.0));
    cairo_fill(d->cr);
}

static void curve(const drawing *d, const panel *p, const history *h, int64_t reach)
{
    int64_t bin = (h->n + MAX_POINTS - 1) / MAX_POINTS, drawn = 0;

    for (int64_t i = 0; i < h->n; i += bin) {
        int64_t end = i + bin < h->n ? i + bin : h->n;
        double y = mean(d, h, i, end, reach);
        double x = ((double)h->step[i] + (double)h->step[end - 1]) / 2;
        if (!isfinite(y) || (p->log && y <= 0)) {
            drawn = 0;
            continue;
        }
        if (drawn++)
            cairo_line_to(d->cr, px(p, x), py(p, y));
        else
            cairo_move_to(d->cr, px(p, x), py(p, y));
        bool last =
            end == h->n || !isfinite(mean(d, h, end, end + bin < h->n ? end + bin : h->n, 0));
        if (drawn == 1 && last)
            alone(d, px(p, x), py(p, y));
    }
    cairo_stroke(d->cr);
}

static void draw_run(drawing *d, const panel *p, int run)
{
    const history *h = d->runs[run].history;
    int64_t reach = reach_of(d, h);

    sum_up(d, h, p);
    set_dash(d, run);
    if (reach && d->n_runs <= 2 && p->what != RATE) {
        ink_color(d->cr, color_of(run), 0.22);
        cairo_set_line_width(d->cr, 1);
        curve(d, p, h, 0);
    }
    ink_color(d->cr, color_of(run), 1);
    cairo_set_line_width(d->cr, 1.8);
    curve(d, p, h, p->what == RATE ? 0 : reach);
    cairo_set_dash(d->cr, NULL, 0, 0);
}

static void draw_validation(const drawing *d, const panel *p, int run)
{
    const history *h = d->runs[run].history;

    for (int64_t e = 0; e < h->n_epochs; e++) {
        double y = h->epochs[e].has_val ? validation_value(&h->epochs[e].val, p) : (double)NAN;
        if (isfinite(y) && !(p->log && y <= 0))
            ink_dot(d->cr, px(p, (double)h->epochs[e].last_step), py(p, y), color_of(run));
    }
}

static void draw_panel(drawing *d, const panel *p)
{
    ink_font(d->cr, 13, true);
    ink_color(d->cr, INK, 1);
    ink_text(d->cr, p->left, p->top - 12, 0, p->title);
    ticks(d, p);
    epoch_lines(d, p);
    cairo_save(d->cr);
    cairo_rectangle(d->cr, p->left - 5, p->top - 5, p->right - p->left + 10,
                    p->bottom - p->top + 10);
    cairo_clip(d->cr);
    for (int r = 0; r < d->n_runs; r++)
        draw_run(d, p, r);
    for (int r = 0; r < d->n_runs; r++)
        draw_validation(d, p, r);
    cairo_restore(d->cr);
}

/* Title and legend ------------------------------------------------------------------------ */

typedef enum mark { MARK_RUN, MARK_PALE, MARK_POINT } mark;

/* One entry at (*x, *y), which move on; without `ink` it only takes its place. */
static void legend_entry(const drawing *d, double *x, double *y, mark m, int run, const char *name)
{
    double wide = 34 + ink_width(d->cr, name) + 22;

    if (*x > MARGIN + LEFT && *x + wide > d->width - MARGIN) {
        *x = MARGIN + LEFT - 18;
        *y += LEGEND_ROW;
    }
    if (m == MARK_POINT) {
        ink_dot(d->cr, *x + 13, *y - 4, run < 0 ? SOFT : color_of(run));
    } else {
        ink_color(d->cr, run < 0 ? SOFT : color_of(run), m == MARK_PALE ? 0.35 : 1);
        cairo_set_line_width(d->cr, m == MARK_PALE ? 1 : 2.2);
        set_dash(d, run < 0 ? 0 : run);
        ink_line(d->cr, *x, *y - 4, *x + 26, *y - 4);
        cairo_set_dash(d->cr, NULL, 0, 0);
    }
    ink_color(d->cr, INK, 1);
    ink_text(d->cr, *x + 34, *y, 0, name);
    *x += wide;
}

static bool any_validation(const drawing *d)
{
    for (int r = 0; r < d->n_runs; r++)
        for (int64_t e = 0; e < d->runs[r].history->n_epochs; e++)
            if (d->runs[r].history->epochs[e].has_val)
                return true;
    return false;
}

/* What stands above the panels; its height. */
static double draw_head(const drawing *d)
{
    double x = MARGIN + LEFT - 18, y = MARGIN + 14;
    char name[INK_NAME_BYTES];
    bool pale = false;

    if (d->title) {
        ink_font(d->cr, 17, true);
        ink_color(d->cr, INK, 1);
        ink_fit(d->cr, name, d->title, d->width - 2 * MARGIN - LEFT);
        ink_text(d->cr, x, y + 2, 0, name);
        y += 30;
    }
    ink_font(d->cr, 12, false);
    for (int r = 0; r < d->n_runs; r++) {
        ink_fit(d->cr, name, d->runs[r].name, MAX_NAME);
        legend_entry(d, &x, &y, MARK_RUN, r, name);
        pale |= d->n_runs <= 2 && reach_of(d, d->runs[r].history) > 0;
    }
    if (pale)
        legend_entry(d, &x, &y, MARK_PALE, -1, "each step; the line is their moving average");
    if (any_validation(d))
        legend_entry(d, &x, &y, MARK_POINT, -1, "validation");
    return y + 14;
}

/* Layout ---------------------------------------------------------------------------------- */

static void add_panel(drawing *d, quantity what, int k)
{
    d->panels[d->n_panels++] = (panel){.what = what, .k = k};
}

static void choose_panels(drawing *d)
{
    int steps = 0;

    for (int r = 0; r < d->n_runs; r++)
        if (d->runs[r].history->ttt_steps > steps)
            steps = d->runs[r].history->ttt_steps;
    if (steps > SHOWN_STEPS)
        steps = SHOWN_STEPS;
    add_panel(d, LOSS, 0);
    add_panel(d, ACCEPTED, 0);
    for (int k = 0; k < steps; k++)
        add_panel(d, FULL, k);
    for (int k = 1; k < steps; k++) /* at step 0 both are the same */
        add_panel(d, COND, k);
    add_panel(d, RATE, 0);
    d->columns = d->n_panels <= 8 ? 2 : d->n_panels <= 12 ? 3 : 4;
    d->width = d->columns * PANEL_WIDTH + 2 * MARGIN;
}

static void place_panels(drawing *d)
{
    for (int i = 0; i < d->n_panels; i++) {
        panel *p = &d->panels[i];
        p->left = MARGIN + (i % d->columns) * PANEL_WIDTH + LEFT - 18;
        p->right = MARGIN + (i % d->columns + 1) * PANEL_WIDTH - RIGHT;
        p->top = d->head + (int)(i / d->columns) * PANEL_HEIGHT + TOP;
        p->bottom = p->top + PANEL_HEIGHT - TOP - BOTTOM;
        switch (p->what) {
        case LOSS:
            snprintf(p->title, sizeof p->title, "Loss%s", p->log ? ", logarithmic" : "");
            break;
        case ACCEPTED:
            snprintf(p->title, sizeof p->title, "Accepted length, drafted tokens");
            break;
        case FULL: snprintf(p->title, sizeof p->title, "Full accuracy, TTT step %d", p->k); break;
        case COND:
            snprintf(p->title, sizeof p->title, "Conditional accuracy, TTT step %d", p->k);
            break;
        case RATE: snprintf(p->title, sizeof p->title, "Learning rate"); break;
        }
    }
    int rows = (d->n_panels + d->columns - 1) / d->columns;
    d->height = d->head + rows * PANEL_HEIGHT + 30;
}

static void draw(cairo_t *cr, void *ctx)
{
    drawing *d = ctx;

    d->cr = cr;
    ink_color(d->cr, 0xffffff, 1);
    cairo_paint(d->cr);
    cairo_set_line_join(d->cr, CAIRO_LINE_JOIN_ROUND);
    cairo_set_line_cap(d->cr, CAIRO_LINE_CAP_ROUND);
    draw_head(d);
    for (int i = 0; i < d->n_panels; i++)
        draw_panel(d, &d->panels[i]);
    ink_font(d->cr, 12, false);
    ink_color(d->cr, SOFT, 1);
    ink_text(d->cr, d->width / 2, d->height - 14, 0.5, "optimizer step");
}

/* Files ----------------------------------------------------------------------------------- */

/* The height of the legend depends on the widths of its words. */
static void measure_head(cairo_t *cr, void *ctx)
{
    drawing *d = ctx;

    d->cr = cr;
    d->head = draw_head(d);
}

int plot_write(const plot_run *runs, int n, const char *title, int64_t smooth, const char *path)
{
    drawing d = {.runs = runs, .n_runs = n, .title = title, .smooth = smooth};
    int64_t longest = 0;
    int failed = 0;

    for (int r = 0; r < n; r++)
        if (runs[r].history->n > longest)
            longest = runs[r].history->n;
    d.sum = cli_realloc(NULL, (size_t)longest + 1, sizeof *d.sum);
    d.count = cli_realloc(NULL, (size_t)longest + 1, sizeof *d.count);
    choose_panels(&d);
    fit_axes(&d);
    ink_measure(measure_head, &d);
    place_panels(&d);
    failed = ink_picture(path, d.width, d.height, draw, &d);
    free(d.sum);
    free(d.count);
    return failed;
}
