/* record.c - what an optimizer step or a validation is called in every log: the peer's names, so
 * that its runs and accrue's lie over each other. */
#include "cli.h"

#include <stdarg.h>

static void add(record *r, double value, const char *format, ...) CLI_PRINTF(3, 4);

static void add(record *r, double value, const char *format, ...)
{
    va_list args;

    if (r->n == RECORD_ITEMS)
        return;
    va_start(args, format);
    vsnprintf(r->items[r->n].key, RECORD_KEY_BYTES, format, args);
    va_end(args);
    r->items[r->n++].value = value;
}

static void add_metrics(record *r, const accrue_metrics *m, const char *group, const char *suffix)
{
    for (int k = 0; k < m->n_steps; k++) {
        add(r, ratio(m->step_loss_sum[k], m->step_loss_total[k]), "%s/loss_%d%s", group, k, suffix);
        add(r, ratio(m->full_acc_sum[k], m->full_acc_total[k]), "%s/full_acc_%d%s", group, k,
            suffix);
        add(r, ratio(m->cond_acc_sum[k], m->cond_acc_total[k]), "%s/cond_acc_%d%s", group, k,
            suffix);
        for (int i = 0; i < m->n_terms; i++)
            add(r, ratio(m->term_loss_sum[i][k], m->term_loss_total[i][k]), "%s/%s_loss_%d%s",
                group, m->term_name[i], k, suffix);
    }
    add(r, ratio(m->loss_sum, m->loss_total), "%s/loss%s", group, suffix);
}

static double seconds_of(const accrue_event *e)
{
    return e->data_seconds + e->forward_backward_seconds + e->optimizer_seconds;
}

double tokens_rate(const accrue_event *e)
{
    return ratio((double)e->metrics.tokens, seconds_of(e));
}

void record_step(record *r, const accrue_event *e, bool muon)
{
    double seconds = seconds_of(e);

    *r = (record){.epoch = e->epoch, .step = e->global_step - 1};
    add_metrics(r, &e->metrics, "train", "");
    add(r, (double)e->metrics.error_records, "train/error_records");
    add(r, 1000 * e->data_seconds, "profile/fetch_ms");
    add(r, 1000 * e->forward_backward_seconds, "profile/fwd_bwd_ms");
    add(r, 1000 * e->optimizer_seconds, "profile/opt_ms");
    add(r, 1000 * seconds, "profile/step_ms");
    add(r, ratio(e->data_seconds, seconds), "profile/fetch_frac");
    add(r, tokens_rate(e), "profile/tokens_per_s");
    add(r, (double)r->epoch, "epoch");
    if (muon) {
        add(r, e->muon_lr, "lr/Muon");
        add(r, e->lr, "lr/AdamW");
    } else {
        add(r, e->lr, "lr");
    }
    add(r, (double)r->step, "global_step");
    add(r, e->grad_norm, "grad_norm");
}

void record_validation(record *r, const accrue_event *e)
{
    *r = (record){.validation = true, .epoch = e->epoch, .step = e->global_step};
    add_metrics(r, &e->metrics, "val", "_epoch");
    add(r, (double)r->epoch, "epoch");
}

bool record_kept(bool validation, int64_t epoch, int64_t step, const accrue_event *start)
{
    if (epoch < 0 || epoch > start->epoch)
        return false;
    return validation ? epoch < start->epoch : step >= 0 && step < start->global_step;
}
