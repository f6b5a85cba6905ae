/* table.c - text tables with aligned columns, and the closing table of a run. */
#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_init(table *t, int cols)
{
    *t = (table){.cols = cols};
}

void table_cell(table *t, const char *format, ...)
{
    va_list args, again;

    if (t->n == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->cells = cli_realloc(t->cells, (size_t)t->capacity, sizeof *t->cells);
    }
    va_start(args, format);
    va_copy(again, args);
    size_t bytes = (size_t)vsnprintf(NULL, 0, format, args) + 1;
    t->cells[t->n] = cli_realloc(NULL, bytes, 1);
    vsnprintf(t->cells[t->n++], bytes, format, again);
    va_end(again);
    va_end(args);
}

/* Columns on the screen: UTF-8 continuation bytes take none. */
static int width_of(const char *s)
{
    int n = 0;

    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static void print_spaces(FILE *out, int n)
{
    for (; n > 0; n--)
        fputc(' ', out);
}

void table_print(const table *t, FILE *out, const char *align, int indent, bool header)
{
    int *width = cli_realloc(NULL, (size_t)t->cols, sizeof *width);
    int total = 0, owed = 0;

    memset(width, 0, (size_t)t->cols * sizeof *width);
    for (int i = 0; i < t->n; i++)
        if (width_of(t->cells[i]) > width[i % t->cols])
            width[i % t->cols] = width_of(t->cells[i]);
    for (int c = 0; c < t->cols; c++)
        total += width[c] + (c ? 2 : 0);
    for (int i = 0; i < t->n; i++) {
        int c = i % t->cols;
        int pad = width[c] - width_of(t->cells[i]);
        if (!t->cells[i][0]) { /* owed to the next cell, so that no line ends in spaces */
            owed += (c ? 2 : indent) + pad;
        } else {
            print_spaces(out, owed + (c ? 2 : indent) + (align[c] == 'r' ? pad : 0));
            owed = align[c] == 'r' ? 0 : pad;
            fputs(t->cells[i], out);
        }
        if (c + 1 < t->cols)
            continue;
        owed = 0;
        fputc('\n', out);
        if (header && i < t->cols) {
            print_spaces(out, indent);
            for (int k = 0; k < total; k++)
                fputc('-', out);
            fputc('\n', out);
        }
    }
    free(width);
}

void table_free(table *t)
{
    for (int i = 0; i < t->n; i++)
        free(t->cells[i]);
    free(t->cells);
    *t = (table){0};
}

static void accuracy_cells(table *t, const accrue_metrics *m, int steps)
{
    for (int k = 0; k < steps; k++)
        table_cell(t, "%.4f", ratio(m->full_acc_sum[k], m->full_acc_total[k]));
    for (int k = 0; k < steps; k++)
        table_cell(t, "%.4f", ratio(m->cond_acc_sum[k], m->cond_acc_total[k]));
    table_cell(t, "%.3f", accrue_metrics_acceptance(m));
}

/* One row per epoch, and under it the same on the validation rows where there are any. */
void history_table(const history *h, FILE *out)
{
    int k = h->ttt_steps;
    char align[2 * ACCRUE_MAX_TTT_STEPS + 8] = "lr";
    table t;

    if (!h->n_epochs)
        return;
    memset(align + 1, 'r', (size_t)(2 * k) + 5);
    align[2] = 'l';
    table_init(&t, 2 * k + 6);
    table_cell(&t, "epoch");
    table_cell(&t, "steps");
    table_cell(&t, "rows");
    table_cell(&t, "loss");
    for (int i = 0; i < k; i++)
        table_cell(&t, "full_acc_%d", i);
    for (int i = 0; i < k; i++)
        table_cell(&t, "cond_acc_%d", i);
    table_cell(&t, "accepted");
    table_cell(&t, "time");
    for (int64_t e = 0; e < h->n_epochs; e++) {
        const epoch_record *r = &h->epochs[e];
        if (!r->restored && r->steps) {
            table_cell(&t, "%lld", (long long)e + 1);
            table_cell(&t, "%s", format_count(r->steps).s);
            table_cell(&t, "train");
            table_cell(&t, "%.4f", ratio(r->train.loss_sum, r->train.loss_total));
            accuracy_cells(&t, &r->train, k);
            table_cell(&t, "%s", format_duration(r->seconds).s);
        }
        if (!r->has_val)
            continue;
        table_cell(&t, "%s", r->restored ? format_count(e + 1).s : "");
        table_cell(&t, "%s", r->restored ? format_count(r->steps).s : "");
        table_cell(&t, "val");
        table_cell(&t, "%.4f", ratio(r->val.loss_sum, r->val.loss_total));
        accuracy_cells(&t, &r->val, k);
        table_cell(&t, "%s", "");
    }
    table_print(&t, out, align, 0, true);
    table_free(&t);
}
