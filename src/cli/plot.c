/* plot.c - training.svg: loss per optimizer step above, accuracies below, one x axis.
 *
 * The curves are moving averages over a sixtieth of the run, with the raw loss pale behind them;
 * validation stands as points at the end of its epoch.  Long runs are averaged into as many
 * points as there are pixels. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIDTH      960
#define HEIGHT     720
#define LEFT       72
#define RIGHT      790
#define MAX_POINTS 700
#define INK        "#1f2937"
#define SOFT       "#6b7280"
#define GRID       "#e5e7eb"

static const char *const palette[] = {"#2563eb", "#ea580c", "#16a34a", "#9333ea",
                                      "#0891b2", "#dc2626", "#ca8a04", "#64748b"};

typedef struct panel {
    FILE *out;
    double top, bottom;
    double x0, x1, y0, y1; /* of the data */
    double step;           /* of the ticks on y */
} panel;

static double px(const panel *p, double x)
{
    return LEFT + (x - p->x0) / (p->x1 - p->x0) * (RIGHT - LEFT);
}

static double py(const panel *p, double y)
{
    return p->bottom - (y - p->y0) / (p->y1 - p->y0) * (p->bottom - p->top);
}

/* 1, 2 or 5 times a power of ten, for about `n` ticks over `span`. */
static double tick_step(double span, int n)
{
    double raw = span / n, base = pow(10, floor(log10(raw))), f = raw / base;

    return base * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
}

static void frame(const panel *p, const char *title, bool x_labels)
{
    double step = p->step, x_step = tick_step(p->x1 - p->x0, 9);
    FILE *out = p->out;

    fprintf(out, "<text x=\"%d\" y=\"%.0f\" class=\"title\">%s</text>\n", LEFT, p->top - 14, title);
    for (double k = ceil(p->y0 / step - 1e-9); k * step <= p->y1 + step * 1e-9; k++) {
        double v = fabs(k) < 0.5 ? 0 : k * step;
        fprintf(out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" class=\"grid\"/>\n", LEFT,
                py(p, v), RIGHT, py(p, v));
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" class=\"tick\" text-anchor=\"end\">%.6g</text>\n",
                LEFT - 10, py(p, v) + 4, v);
    }
    if (x_step < 1)
        x_step = 1;
    for (double k = ceil(p->x0 / x_step); k * x_step <= p->x1 + 1e-9; k++) {
        double x = px(p, k * x_step);
        fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"axis\"/>\n", x,
                p->bottom, x, p->bottom + 5);
        if (x_labels)
            fprintf(out,
                    "<text x=\"%.1f\" y=\"%.1f\" class=\"tick\" text-anchor=\"middle\">%s</text>\n",
                    x, p->bottom + 20, format_count((int64_t)(k * x_step)).s);
    }
    fprintf(out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" class=\"axis\"/>\n", LEFT,
            p->bottom, RIGHT, p->bottom);
}

/* Dashed lines where epochs end; none after the last, and none when they would be a fence. */
static void epoch_lines(const panel *p, const history *h)
{
    if (h->n_epochs > 12)
        return;
    for (int64_t e = 0; e + 1 < h->n_epochs; e++) {
        double x = px(p, (double)h->epochs[e].last_step + 0.5);
        fprintf(p->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"epoch\"/>\n",
                x, p->top, x, p->bottom);
    }
}

/* Mean over the points within `half` of i. */
static double smooth(const float *y, int64_t n, int stride, int64_t i, int64_t half)
{
    int64_t reach = half < i ? half : i;
    double sum = 0;

    if (n - 1 - i < reach)
        reach = n - 1 - i; /* the same on both sides, else the ends are pulled inwards */
    for (int64_t j = i - reach; j <= i + reach; j++)
        sum += (double)y[j * stride];
    return sum / (double)(2 * reach + 1);
}

static void curve(const panel *p, const history *h, const float *y, int stride, int64_t half,
                  const char *style)
{
    int64_t bin = (h->n + MAX_POINTS - 1) / MAX_POINTS;

    if (h->n < 2)
        return;
    fprintf(p->out, "<polyline %s points=\"", style);
    for (int64_t i = 0; i < h->n; i += bin) {
        int64_t n = h->n - i < bin ? h->n - i : bin;
        double sum_x = 0, sum_y = 0;
        for (int64_t j = i; j < i + n; j++) {
            sum_x += (double)h->step[j];
            sum_y += smooth(y, h->n, stride, j, half);
        }
        fprintf(p->out, "%s%.1f,%.1f", i ? " " : "", px(p, sum_x / (double)n),
                py(p, sum_y / (double)n));
    }
    fputs("\"/>\n", p->out);
}

static void point(const panel *p, double x, double y, const char *color)
{
    if (isfinite(y))
        fprintf(p->out,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\" stroke=\"#fff\" "
                "stroke-width=\"1.5\"/>\n",
                px(p, x), py(p, y), color);
}

typedef enum legend_mark { MARK_LINE, MARK_DASHED, MARK_POINT } legend_mark;

static void legend(const panel *p, int row, legend_mark mark, const char *color, const char *label)
{
    double x = RIGHT + 22, y = p->top + 6 + 20 * row;

    if (mark == MARK_POINT)
        fprintf(p->out, "<circle cx=\"%.0f\" cy=\"%.0f\" r=\"4.5\" fill=\"%s\"/>\n", x + 11, y,
                color);
    else
        fprintf(p->out,
                "<line x1=\"%.0f\" y1=\"%.0f\" x2=\"%.0f\" y2=\"%.0f\" stroke=\"%s\" "
                "stroke-width=\"2.2\"%s/>\n",
                x, y, x + 22, y, color, mark == MARK_DASHED ? " stroke-dasharray=\"5 4\"" : "");
    fprintf(p->out, "<text x=\"%.0f\" y=\"%.0f\" class=\"legend\">%s</text>\n", x + 30, y + 4,
            label);
}

static void widen(panel *p, double y)
{
    if (!isfinite(y))
        return;
    if (y < p->y0)
        p->y0 = y;
    if (y > p->y1)
        p->y1 = y;
}

/* Limits a little outside the data, on a tick where that is near. */
static void settle(panel *p, double floor_at)
{
    double span = p->y1 - p->y0;

    if (!(span > 0))
        span = fabs(p->y1) > 0 ? fabs(p->y1) : 1;
    double step = p->step = tick_step(1.04 * span, 5);
    p->y0 = fmax(floor((p->y0 - 0.02 * span) / step) * step, floor_at);
    p->y1 = ceil((p->y1 + 0.02 * span) / step) * step;
}

static void loss_panel(panel *p, const history *h, int64_t half)
{
    bool has_val = false;

    p->y0 = HUGE_VAL;
    p->y1 = -HUGE_VAL;
    for (int64_t i = 0; i < h->n; i++)
        widen(p, (double)h->loss[i]);
    for (int64_t e = 0; e < h->n_epochs; e++)
        if (h->epochs[e].has_val) {
            widen(p, ratio(h->epochs[e].val.loss_sum, h->epochs[e].val.loss_total));
            has_val = true;
        }
    settle(p, p->y0 >= 0 ? 0 : -HUGE_VAL);
    frame(p, "Loss", false);
    epoch_lines(p, h);
    if (half)
        curve(p, h, h->loss, 1, 0,
              "fill=\"none\" stroke=\"#2563eb\" stroke-opacity=\"0.25\" stroke-width=\"1.2\"");
    curve(p, h, h->loss, 1, half,
          "fill=\"none\" stroke=\"#2563eb\" stroke-width=\"2.2\" stroke-linejoin=\"round\"");
    for (int64_t e = 0; e < h->n_epochs; e++)
        if (h->epochs[e].has_val)
            point(p, (double)h->epochs[e].last_step,
                  ratio(h->epochs[e].val.loss_sum, h->epochs[e].val.loss_total), "#ea580c");
    legend(p, 0, MARK_LINE, "#2563eb", half ? "train, smoothed" : "train");
    if (has_val)
        legend(p, 1, MARK_POINT, "#ea580c", "validation");
}

static void accuracy_curves(const panel *p, const history *h, int64_t half)
{
    char style[200], label[40];
    int colors = (int)(sizeof palette / sizeof palette[0]);

    for (int k = h->ttt_steps - 1; k >= 0; k--) {
        const char *color = palette[k % colors];
        if (k) { /* at step 0 both are the same */
            snprintf(style, sizeof style,
                     "fill=\"none\" stroke=\"%s\" stroke-opacity=\"0.6\" stroke-width=\"1.5\" "
                     "stroke-dasharray=\"5 4\"",
                     color);
            curve(p, h, h->cond + k, h->ttt_steps, half, style);
        }
        snprintf(style, sizeof style,
                 "fill=\"none\" stroke=\"%s\" stroke-width=\"2.2\" stroke-linejoin=\"round\"",
                 color);
        curve(p, h, h->full + k, h->ttt_steps, half, style);
        for (int64_t e = 0; e < h->n_epochs; e++)
            if (h->epochs[e].has_val)
                point(p, (double)h->epochs[e].last_step,
                      ratio(h->epochs[e].val.full_acc_sum[k], h->epochs[e].val.full_acc_total[k]),
                      color);
        snprintf(label, sizeof label, "full_acc_%d", k);
        if (k < 10)
            legend(p, k, MARK_LINE, color, label);
    }
}

static void accuracy_panel(panel *p, const history *h, int64_t half)
{
    int rows = h->ttt_steps < 10 ? h->ttt_steps : 10;

    p->y0 = 0;
    p->y1 = 0.01;
    for (int64_t i = 0; i < h->n; i++)
        for (int k = 0; k < h->ttt_steps; k++) {
            widen(p, smooth(h->full + k, h->n, h->ttt_steps, i, half));
            widen(p, smooth(h->cond + k, h->n, h->ttt_steps, i, half));
        }
    for (int64_t e = 0; e < h->n_epochs; e++)
        for (int k = 0; k < h->ttt_steps && h->epochs[e].has_val; k++)
            widen(p, ratio(h->epochs[e].val.full_acc_sum[k], h->epochs[e].val.full_acc_total[k]));
    settle(p, 0);
    if (p->y1 > 1)
        p->y1 = 1;
    frame(p, "Accuracy", true);
    epoch_lines(p, h);
    accuracy_curves(p, h, half);
    if (h->ttt_steps > 1)
        legend(p, rows, MARK_DASHED, SOFT, "cond_acc");
    legend(p, rows + (h->ttt_steps > 1), MARK_POINT, SOFT, "validation");
}

int plot_write(const history *h, const char *path)
{
    FILE *out = fopen(path, "we");
    double last = h->n ? (double)h->step[h->n - 1] : 1;
    panel top = {.out = out, .top = 52, .bottom = 342};
    panel bottom = {.out = out, .top = 396, .bottom = 654};
    int64_t half = h->n >= 30 ? h->n / 60 + 1 : 0;

    if (!out)
        return -1;
    top.x0 = bottom.x0 = h->n ? (double)h->step[0] : 0;
    top.x1 = bottom.x1 = last > top.x0 ? last : top.x0 + 1;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n"
            "<style>.title{font-size:16px;font-weight:600;fill:" INK "}"
            ".tick{font-size:12px;fill:" SOFT "}.legend{font-size:12.5px;fill:" INK "}"
            ".grid{stroke:" GRID ";stroke-width:1}.axis{stroke:" SOFT ";stroke-width:1}"
            ".epoch{stroke:#9ca3af;stroke-width:1;stroke-dasharray:2 4}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    loss_panel(&top, h, half);
    accuracy_panel(&bottom, h, half);
    fprintf(out,
            "<text x=\"%d\" y=\"%d\" class=\"tick\" text-anchor=\"middle\">optimizer step</text>\n"
            "</svg>\n",
            (LEFT + RIGHT) / 2, HEIGHT - 20);
    int failed = ferror(out);
    return fclose(out) || failed ? -1 : 0;
}
