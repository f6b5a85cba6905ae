/* cmd_plot.c - accrue plot: draws the runs in the given folders over each other, and sums each of
 * them up in a row of a table. */
#include "cli.h"

#include "flags.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* The middle one, as the first steps of a run are slow. */
static double median_rate(const history *h)
{
    float *sorted = cli_realloc(NULL, (size_t)h->n, sizeof *sorted);
    size_t n = 0;
    double median = (double)NAN;

    for (int64_t i = 0; i < h->n; i++)
        if (isfinite(h->tokens_rate[i]))
            sorted[n++] = h->tokens_rate[i];
    qsort(sorted, n, sizeof *sorted, compare);
    if (n)
        median = (double)sorted[n / 2];
    free(sorted);
    return median;
}

static void number_cell(table *t, double x, int places)
{
    if (isfinite(x))
        table_cell(t, "%.*f", places, x);
    else
        table_cell(t, "-");
}

static double least_loss(const history *h)
{
    double least = (double)NAN;

    for (int64_t i = 0; i < h->n; i++)
        least = fmin(least, (double)h->loss[i]);
    return least;
}

/* The validations with the least loss and the latest one; NULL where there is none. */
static void find_validations(const history *h, const accrue_metrics **best,
                             const accrue_metrics **last)
{
    *best = *last = NULL;
    for (int64_t e = 0; e < h->n_epochs; e++) {
        const accrue_metrics *m = &h->epochs[e].val;
        if (!h->epochs[e].has_val)
            continue;
        *last = m;
        if (!*best || !isfinite((*best)->loss_sum) || m->loss_sum < (*best)->loss_sum)
            *best = m;
    }
}

static void run_row(table *t, const plot_run *run)
{
    const history *h = run->history;
    const accrue_metrics *best = NULL, *last = NULL;
    char name[300];

    find_validations(h, &best, &last);
    format_name(name, sizeof name, run->name);
    table_cell(t, "%s", name);
    table_cell(t, "%s", format_count(h->n ? h->step[h->n - 1] : 0).s);
    table_cell(t, "%s", format_count(h->n_epochs).s);
    number_cell(t, h->n ? (double)h->loss[h->n - 1] : (double)NAN, 4);
    number_cell(t, least_loss(h), 4);
    number_cell(t, last ? last->loss_sum : (double)NAN, 4);
    number_cell(t, best ? best->loss_sum : (double)NAN, 4);
    number_cell(t, best && best->n_steps ? best->full_acc_sum[0] : (double)NAN, 4);
    number_cell(t, best && best->n_steps ? accrue_metrics_acceptance(best) : (double)NAN, 3);
    number_cell(t, median_rate(h), 0);
}

/* Validation's accuracies are those of its best epoch, the one that is served. */
static void print_table(const plot_run *runs, int n)
{
    static const char *const names[] = {"run",      "steps", "epochs",     "loss",     "least",
                                        "val loss", "best",  "full_acc_0", "accepted", "tok/s"};
    table t;

    table_init(&t, (int)(sizeof names / sizeof names[0]));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        table_cell(&t, "%s", names[i]);
    for (int r = 0; r < n; r++)
        run_row(&t, &runs[r]);
    table_print(&t, stdout, "lrrrrrrrrr", 0, true);
    table_free(&t);
}

/* The folders that all names begin with tell nothing: what is behind the last slash of them. */
static size_t common_folders(const char *const *paths, int n)
{
    size_t common = 0;

    for (size_t i = 0; paths[0][i]; i++) {
        for (int r = 1; r < n; r++)
            if (paths[r][i] != paths[0][i])
                return common;
        if (paths[0][i] == '/' && paths[0][i + 1])
            common = i + 1;
    }
    return common;
}

static int draw(const plot_run *runs, int n, const cli_options *o, const char *path)
{
    if (plot_write(runs, n, o->title, o->smooth, path))
        return cli_fail(EXIT_FAILURE, "%s: %s", path, strerror(errno));
    printf("%s\n", path);
    return EXIT_SUCCESS;
}

static int plot(const cli_options *o)
{
    static history histories[MAX_DIRS];
    plot_run runs[MAX_DIRS];
    int n = o->n_dirs, code = EXIT_SUCCESS;
    size_t common = n > 1 ? common_folders(o->dirs, n) : 0;

    for (int r = 0; r < n && !code; r++) {
        runs[r] = (plot_run){o->dirs[r] + common, &histories[r]};
        code = history_read(&histories[r], o->dirs[r]);
    }
    if (!code) {
        print_table(runs, n);
        printf("\n");
        code = draw(runs, n, o, o->out ? o->out : "plot.svg");
    }
    if (!code && !o->out)
        code = draw(runs, n, o, "plot.png");
    for (int r = 0; r < n; r++)
        history_free(&histories[r]);
    return code;
}

int cmd_plot(int argc, char **argv)
{
    static cli_options o;
    int bad = 0;

    flags_init(&o);
    bad = flags_parse(&o, FOR_PLOT, argc, argv);
    if (bad)
        return bad;
    if (o.help) {
        flags_help(stdout, FOR_PLOT);
        return cli_finish(EXIT_SUCCESS);
    }
    if (!o.n_dirs)
        return cli_fail(EXIT_BAD_INPUT, "plot: a run's folder expected; see accrue plot --help");
    if (o.out && !plot_is_picture(o.out))
        return cli_fail(EXIT_BAD_INPUT, "--out: '%s', a name that ends in .svg or .png expected",
                        o.out);
    return cli_finish(plot(&o));
}
