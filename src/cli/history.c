/* history.c - remembers a run's steps and epochs for the closing table and the plot. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static epoch_record *epoch_of(history *h, const accrue_event *e)
{
    while (h->n_epochs <= e->epoch) {
        h->epochs = cli_realloc(h->epochs, (size_t)h->n_epochs + 1, sizeof *h->epochs);
        memset(&h->epochs[h->n_epochs++], 0, sizeof *h->epochs);
    }
    return &h->epochs[e->epoch];
}

void history_step(history *h, const accrue_event *e, double lr, double rate)
{
    const accrue_metrics *m = &e->metrics;
    epoch_record *r = epoch_of(h, e);

    if (!h->ttt_steps && !h->capacity)
        h->ttt_steps = m->n_steps;
    if (h->n == h->capacity) {
        size_t k = (size_t)h->ttt_steps;
        h->capacity = h->capacity ? 2 * h->capacity : 1024;
        h->step = cli_realloc(h->step, (size_t)h->capacity, sizeof *h->step);
        h->loss = cli_realloc(h->loss, (size_t)h->capacity, sizeof *h->loss);
        h->lr = cli_realloc(h->lr, (size_t)h->capacity, sizeof *h->lr);
        h->tokens_rate = cli_realloc(h->tokens_rate, (size_t)h->capacity, sizeof *h->tokens_rate);
        h->full = cli_realloc(h->full, (size_t)h->capacity, k * sizeof *h->full);
        h->cond = cli_realloc(h->cond, (size_t)h->capacity, k * sizeof *h->cond);
    }
    h->step[h->n] = e->global_step;
    h->loss[h->n] = (float)ratio(m->loss_sum, m->loss_total);
    h->lr[h->n] = (float)lr;
    h->tokens_rate[h->n] = (float)rate;
    for (int k = 0; k < h->ttt_steps; k++) {
        int64_t at = h->n * h->ttt_steps + k;
        h->full[at] = (float)ratio(m->full_acc_sum[k], m->full_acc_total[k]);
        h->cond[at] = (float)ratio(m->cond_acc_sum[k], m->cond_acc_total[k]);
    }
    h->n++;
    accrue_metrics_add(&r->train, m);
    r->train.n_steps = m->n_steps;
    r->steps++;
    r->last_step = e->global_step;
    r->seconds = e->seconds - h->epoch_start;
}

void history_validation(history *h, const accrue_event *e)
{
    epoch_record *r = epoch_of(h, e);

    if (!h->ttt_steps && !h->capacity)
        h->ttt_steps = e->metrics.n_steps;
    r->val = e->metrics;
    r->has_val = true;
    r->last_step = e->global_step;
    r->seconds = e->seconds - h->epoch_start;
}

void history_free(history *h)
{
    free(h->step);
    free(h->loss);
    free(h->lr);
    free(h->tokens_rate);
    free(h->full);
    free(h->cond);
    free(h->epochs);
    *h = (history){0};
}
