/* plot_eval.c - what accrue eval measured, drawn: acceptance by position, and how many drafted
 * tokens the rounds accepted. */
#include "cli.h"

#include "ink.h"

#include <math.h>

#define WIDTH     940.0
#define HEIGHT    342.0
#define MARGIN    18.0
#define LEFT      48.0 /* of a panel, for the labels */
#define TOP       104.0
#define BOTTOM    46.0
#define TICKS     5
#define HALF      0.36 /* of a group of bars, in groups */
#define RATE      0x0072b2
#define GIVEN     0xe69f00
#define INK       0x1f2937
#define SOFT      0x6b7280
#define GRID      0xe5e7eb
#define MAX_LABEL 40

typedef struct chart {
    const accrue_eval_report *report;
    const char *title;
} chart;

typedef struct bars {
    const char *title, *below; /* what the bars are of */
    const char *legend[2];     /* of the series, where there are two */
    int first, n, series;      /* groups are numbered from `first` */
    double (*value)(const accrue_eval_report *r, int series, int i);
    double left, right;
    double top; /* of the axis */
} bars;

static double acceptance(const accrue_eval_report *r, int series, int i)
{
    const int64_t of = series && i ? r->accepted_at[i - 1] : r->rounds;

    return ratio((double)r->accepted_at[i], (double)of);
}

static double share_of_rounds(const accrue_eval_report *r, int series, int i)
{
    (void)series;
    return ratio((double)r->accepted_length[i], (double)r->rounds);
}

/* The least of 0.05, 0.1, 0.25, 0.5 and 1 that is above every bar and its figure. */
static double axis_top(const accrue_eval_report *r, const bars *b)
{
    static const double tops[] = {0.05, 0.1, 0.25, 0.5};
    double most = 0;

    for (int s = 0; s < b->series; s++)
        for (int i = 0; i < b->n; i++)
            most = fmax(most, b->value(r, s, i));
    for (size_t i = 0; i < sizeof tops / sizeof tops[0]; i++)
        if (most <= 0.93 * tops[i])
            return tops[i];
    return 1;
}

static double height_at(const bars *b, double y)
{
    return HEIGHT - BOTTOM - y / b->top * (HEIGHT - BOTTOM - TOP);
}

static void series_color(cairo_t *cr, int series)
{
    ink_color(cr, series ? GIVEN : RATE, series ? 0.75 : 1);
}

static void draw_legend(cairo_t *cr, const bars *b, double x)
{
    ink_font(cr, 12, false);
    for (int s = 0; b->series == 2 && s < 2; s++) {
        series_color(cr, s);
        cairo_rectangle(cr, x, TOP - 31, 10, 10);
        cairo_fill(cr);
        ink_color(cr, INK, 1);
        ink_text(cr, x + 15, TOP - 22, 0, b->legend[s]);
        x += 15 + ink_width(cr, b->legend[s]) + 16;
    }
}

static void draw_axis(cairo_t *cr, const bars *b)
{
    char label[MAX_LABEL];

    ink_font(cr, 13, true);
    ink_color(cr, INK, 1);
    ink_text(cr, b->left, TOP - 22, 0, b->title);
    draw_legend(cr, b, b->left + ink_width(cr, b->title) + 16);
    ink_font(cr, 11, false);
    cairo_set_line_width(cr, 1);
    for (int t = 0; t <= TICKS; t++) {
        const double y = floor(height_at(b, b->top * t / TICKS)) + 0.5;
        snprintf(label, sizeof label, "%.4g", b->top * t / TICKS);
        ink_color(cr, t ? GRID : SOFT, 1);
        ink_line(cr, b->left, y, b->right, y);
        ink_color(cr, SOFT, 1);
        ink_text(cr, b->left - 8, y + 4, 1, label);
    }
    ink_text(cr, (b->left + b->right) / 2, HEIGHT - 12, 0.5, b->below);
}

static void draw_bars(cairo_t *cr, const accrue_eval_report *r, const bars *b)
{
    const double group = (b->right - b->left) / b->n, width = 2 * HALF * group / b->series;
    const int digits = width >= 36 ? 3 : width >= 28 ? 2 : 0; /* as many as there is room for */
    char label[MAX_LABEL];

    draw_axis(cr, b);
    for (int i = 0; i < b->n; i++) {
        const double middle = b->left + (i + 0.5) * group;
        for (int s = 0; s < b->series; s++) {
            const double x = middle - HALF * group + s * width, y = b->value(r, s, i);
            series_color(cr, s);
            cairo_rectangle(cr, x, height_at(b, y), width - 2, height_at(b, 0) - height_at(b, y));
            cairo_fill(cr);
            snprintf(label, sizeof label, "%.*f", digits, y);
            ink_color(cr, INK, 1);
            if (digits)
                ink_text(cr, x + width / 2 - 1, height_at(b, y) - 4, 0.5, label);
        }
        snprintf(label, sizeof label, "%d", i + b->first);
        ink_color(cr, SOFT, 1);
        ink_text(cr, middle, HEIGHT - BOTTOM + 16, 0.5, label);
    }
}

static void draw_head(cairo_t *cr, const chart *c)
{
    const accrue_eval_report *r = c->report;
    char line[240], title[INK_NAME_BYTES];

    ink_font(cr, 17, true);
    ink_color(cr, INK, 1);
    ink_fit(cr, title, c->title, WIDTH - 2 * MARGIN - 2 * LEFT);
    ink_text(cr, MARGIN + LEFT, MARGIN + 14, 0, title);
    ink_font(cr, 12, false);
    ink_color(cr, SOFT, 1);
    snprintf(line, sizeof line,
             "%.3f of %d drafted tokens accepted a round, %.3f tokens with the bonus; %.2f times "
             "as fast as plain decoding; %s prompts",
             ratio((double)r->accepted, (double)r->rounds), r->num_speculative_tokens,
             1 + ratio((double)r->accepted, (double)r->rounds),
             ratio(r->plain_seconds, r->speculative_seconds), format_count(r->done).s);
    ink_text(cr, MARGIN + LEFT, MARGIN + 34, 0, line);
}

static void draw(cairo_t *cr, void *ctx)
{
    const chart *c = ctx;
    const accrue_eval_report *r = c->report;
    const double middle = WIDTH / 2;
    bars by_position = {.title = "Accepted",
                        .legend = {"of all rounds", "of those that came so far"},
                        .below = "drafted token of the round",
                        .first = 1,
                        .n = r->num_speculative_tokens,
                        .series = 2,
                        .value = acceptance,
                        .left = MARGIN + LEFT,
                        .right = middle - 10};
    bars lengths = {.title = "Share of rounds",
                    .below = "drafted tokens accepted",
                    .n = r->num_speculative_tokens + 1,
                    .series = 1,
                    .value = share_of_rounds,
                    .left = middle + LEFT,
                    .right = WIDTH - MARGIN};

    ink_color(cr, 0xffffff, 1);
    cairo_paint(cr);
    by_position.top = axis_top(r, &by_position);
    lengths.top = axis_top(r, &lengths);
    draw_head(cr, c);
    draw_bars(cr, r, &by_position);
    draw_bars(cr, r, &lengths);
}

int plot_eval_write(const accrue_eval_report *r, const char *title, const char *path)
{
    chart c = {r, title};

    return ink_picture(path, WIDTH, HEIGHT, draw, &c);
}
