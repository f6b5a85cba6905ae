/* metrics.c - losses and accuracies of a micro-batch as sums and totals, defined as the Python
 * trainer's: full accuracy of step k is the share of supervised targets that row t predicted at all
 * of steps 0 ... k, conditional accuracy the same numerator over rows right up to step k - 1. */
#include "model/model.h"

#include <string.h>

void accrue_metrics_add(accrue_metrics *into, const accrue_metrics *m)
{
    into->n_steps = m->n_steps;
    into->n_terms = m->n_terms;
    into->loss_sum += m->loss_sum;
    into->loss_total += m->loss_total;
    into->tokens += m->tokens;
    into->supervised_tokens += m->supervised_tokens;
    into->error_records += m->error_records;
    for (int k = 0; k < m->n_steps; k++) {
        into->step_loss_sum[k] += m->step_loss_sum[k];
        into->step_loss_total[k] += m->step_loss_total[k];
        into->full_acc_sum[k] += m->full_acc_sum[k];
        into->full_acc_total[k] += m->full_acc_total[k];
        into->cond_acc_sum[k] += m->cond_acc_sum[k];
        into->cond_acc_total[k] += m->cond_acc_total[k];
    }
    for (int i = 0; i < m->n_terms; i++) {
        into->term_name[i] = m->term_name[i];
        for (int k = 0; k < m->n_steps; k++) {
            into->term_loss_sum[i][k] += m->term_loss_sum[i][k];
            into->term_loss_total[i][k] += m->term_loss_total[i][k];
        }
    }
}

int64_t acr_metrics_values(const accrue_metrics *m)
{
    return 5 + m->n_steps * (6 + 2 * m->n_terms);
}

/* Sums and totals of step k, `n` of them. */
static int step_values(accrue_metrics *m, int k, double *out[6 + 2 * ACCRUE_MAX_LOSS_TERMS])
{
    int n = 0;

    out[n++] = &m->step_loss_sum[k];
    out[n++] = &m->step_loss_total[k];
    out[n++] = &m->full_acc_sum[k];
    out[n++] = &m->full_acc_total[k];
    out[n++] = &m->cond_acc_sum[k];
    out[n++] = &m->cond_acc_total[k];
    for (int i = 0; i < m->n_terms; i++) {
        out[n++] = &m->term_loss_sum[i][k];
        out[n++] = &m->term_loss_total[i][k];
    }
    return n;
}

void acr_metrics_pack(double *out, const accrue_metrics *m)
{
    accrue_metrics copy = *m;
    double *value[6 + 2 * ACCRUE_MAX_LOSS_TERMS];

    *out++ = m->loss_sum;
    *out++ = m->loss_total;
    *out++ = (double)m->tokens;
    *out++ = (double)m->supervised_tokens;
    *out++ = (double)m->error_records;
    for (int k = 0; k < m->n_steps; k++)
        for (int i = 0, n = step_values(&copy, k, value); i < n; i++)
            *out++ = *value[i];
}

void acr_metrics_unpack(accrue_metrics *m, const double *in)
{
    double *value[6 + 2 * ACCRUE_MAX_LOSS_TERMS];

    m->loss_sum = *in++;
    m->loss_total = *in++;
    m->tokens = (int64_t)*in++;
    m->supervised_tokens = (int64_t)*in++;
    m->error_records = (int64_t)*in++;
    for (int k = 0; k < m->n_steps; k++)
        for (int i = 0, n = step_values(m, k, value); i < n; i++)
            *value[i] = *in++;
}

/* Rows that were right at every step before k and still have a target at step k. */
static double rows_asked(const acr_batch *b, const acr_eagle3_options *o, const bool *correct,
                         int k)
{
    int64_t n = 0;

    for (int64_t d = 0; d < b->n_docs; d++) {
        int64_t end = o->across_documents ? b->padded_rows : b->doc_begin[d + 1];
        for (int64_t t = b->doc_begin[d]; t < b->doc_begin[d + 1]; t++)
            n += correct[t] && t + k < end;
    }
    return (double)n;
}

static void step_accuracy(accrue_metrics *out, const acr_eagle3_result *r, int k, bool *correct)
{
    const acr_step_rows *s = &r->rows.step[k];

    for (int64_t i = 0; i < s->n_draft; i++) {
        int64_t t = s->t[s->draft_row[i]];

        correct[t] = correct[t] && r->argmax[k][i] == r->target_argmax[s->target[i]];
        if (s->counted[i]) {
            out->full_acc_total[k] += 1;
            out->full_acc_sum[k] += correct[t];
            out->cond_acc_sum[k] += correct[t];
        }
    }
}

static void step_losses(accrue_metrics *out, const acr_eagle3_result *r,
                        const acr_eagle3_options *o, int k, double weight, double loss_total)
{
    const acr_step_rows *s = &r->rows.step[k];
    const int n_terms = o->loss.n_terms;
    double sum[ACCRUE_MAX_LOSS_TERMS] = {0};

    for (int64_t i = 0; i < s->n_draft; i++)
        for (int j = 0; j < n_terms && s->counted[i]; j++)
            sum[j] += r->term_loss[k][i * n_terms + j];
    for (int j = 0; j < n_terms; j++) {
        out->step_loss_sum[k] += o->loss.weight[j] * sum[j] * weight;
        if (o->loss.mixed) {
            out->term_loss_sum[j][k] = sum[j] * weight;
            out->term_loss_total[j][k] = loss_total;
        }
    }
    out->step_loss_total[k] = loss_total;
}

accrue_status acr_eagle3_metrics(accrue_metrics *out, const acr_eagle3_result *r, acr_tape *t,
                                 const acr_batch *b, const acr_eagle3_options *o,
                                 const double *step_weight, double loss_total, accrue_error *err)
{
    bool *correct = r->correct;

    memset(out, 0, sizeof *out);
    if (!correct)
        return acr_tape_status(t, err);
    out->n_steps = o->ttt_steps;
    out->n_terms = o->loss.mixed ? o->loss.n_terms : 0;
    for (int j = 0; j < out->n_terms; j++)
        out->term_name[j] = acr_loss_name(o->loss.kind[j]);
    out->tokens = b->n_rows;
    for (int64_t i = 0; i < b->n_rows; i++) {
        correct[i] = b->loss_mask[i] != 0;
        out->supervised_tokens += correct[i];
    }
    for (int k = 0; k < o->ttt_steps; k++) {
        out->cond_acc_total[k] = rows_asked(b, o, correct, k);
        step_accuracy(out, r, k, correct);
        step_losses(out, r, o, k, step_weight[k], loss_total);
        out->loss_sum += out->step_loss_sum[k];
    }
    out->loss_total = loss_total;
    return ACCRUE_OK;
}

double accrue_metrics_acceptance(const accrue_metrics *m)
{
    double length = 0, all_accepted = 1;

    for (int k = 0; k < m->n_steps; k++) {
        all_accepted *= m->cond_acc_total[k] != 0 ? m->cond_acc_sum[k] / m->cond_acc_total[k] : 0;
        length += all_accepted;
    }
    return length;
}
