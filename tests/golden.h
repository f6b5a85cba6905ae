/* golden.h - replays a run of the Python trainer from its numbers: losses, accuracies and learning
 * rates of every step, validation of every epoch.  Shared by test_golden.c and golden_full.c. */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Worst differences: losses and rates relative, accuracies absolute. */
typedef struct golden_run {
    const json_t *numbers; /* {"train": [...], "val": [...]} */
    size_t step, epoch;    /* compared so far */
    double loss, accuracy, lr, val_loss, val_accuracy;
    size_t worst_step; /* of loss */
    accrue_run *run;
    void (*after_step)(struct golden_run *g); /* may be NULL */
    void *payload;
} golden_run;

static inline double golden_number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* A missing number makes the difference infinite. */
static inline double golden_worse(double worst, double difference)
{
    return isnan(difference) ? HUGE_VAL : fmax(worst, difference);
}

static inline double golden_ratio(double sum, double total)
{
    return total != 0 ? sum / total : 0.0;
}

static inline double golden_relative(double got, double want)
{
    return fabs(got - want) / (want != 0 ? fabs(want) : 1.0);
}

static inline void golden_metrics(const accrue_metrics *m, const json_t *want, const char *suffix,
                                  double *loss, double *accuracy)
{
    char key[64];

    snprintf(key, sizeof key, "loss%s", suffix);
    *loss = golden_worse(
        *loss, golden_relative(golden_ratio(m->loss_sum, m->loss_total), golden_number(want, key)));
    for (int k = 0; k < m->n_steps; k++) {
        snprintf(key, sizeof key, "loss_%d%s", k, suffix);
        *loss = golden_worse(
            *loss, golden_relative(golden_ratio(m->step_loss_sum[k], m->step_loss_total[k]),
                                   golden_number(want, key)));
        snprintf(key, sizeof key, "full_acc_%d%s", k, suffix);
        *accuracy =
            golden_worse(*accuracy, fabs(golden_ratio(m->full_acc_sum[k], m->full_acc_total[k]) -
                                         golden_number(want, key)));
        snprintf(key, sizeof key, "cond_acc_%d%s", k, suffix);
        *accuracy =
            golden_worse(*accuracy, fabs(golden_ratio(m->cond_acc_sum[k], m->cond_acc_total[k]) -
                                         golden_number(want, key)));
    }
}

/* The peer logs one rate, or one for each of two optimizers. */
static inline void golden_rates(golden_run *g, const accrue_event *e, const json_t *want)
{
    const json_t *lr = json_object_get(want, "lr");

    if (json_is_object(lr)) {
        g->lr = golden_worse(g->lr, golden_relative(e->muon_lr, golden_number(lr, "Muon")));
        g->lr = golden_worse(g->lr, golden_relative(e->lr, golden_number(lr, "AdamW")));
    } else {
        g->lr = golden_worse(g->lr, golden_relative(e->lr, golden_number(want, "lr")));
    }
}

static inline int golden_event(const accrue_event *e, void *payload)
{
    golden_run *g = payload;

    if (e->kind == ACCRUE_EVENT_STEP) {
        const json_t *want = json_array_get(json_object_get(g->numbers, "train"), g->step);
        double before = g->loss;
        golden_metrics(&e->metrics, want, "", &g->loss, &g->accuracy);
        golden_rates(g, e, want);
        if (g->loss > before)
            g->worst_step = g->step;
        g->step++;
        if (g->after_step)
            g->after_step(g);
    }
    return 0;
}

static inline accrue_status golden_epoch(golden_run *g, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_metrics val = {0};
    const json_t *want = json_array_get(json_object_get(g->numbers, "val"), g->epoch);

    ACR_TRY(accrue_run_epoch(g->run, epoch, err));
    while (accrue_run_next(g->run)) {
        ACR_TRY(accrue_run_forward_backward(g->run, NULL, err));
        ACR_TRY(accrue_run_clip(g->run, NULL, err));
        ACR_TRY(accrue_run_step(g->run, NULL, err));
        accrue_run_lr_step(g->run);
        accrue_run_zero_grad(g->run);
    }
    ACR_TRY(accrue_run_validate(g->run, &val, err));
    golden_metrics(&val, want, "_epoch", &g->val_loss, &g->val_accuracy);
    g->epoch++;

cleanup:
    return st;
}

/* Whether every record of the numbers was compared. */
static inline bool golden_complete(const golden_run *g)
{
    return g->step == json_array_size(json_object_get(g->numbers, "train")) &&
           g->epoch == json_array_size(json_object_get(g->numbers, "val")) && g->step > 0;
}

/* The peer's conventions: its order of micro-batches, shifts across document borders. */
static inline void golden_options(accrue_train_options *o, const char *plan)
{
    accrue_train_options_init(o, sizeof *o);
    o->batch_plan = plan;
    o->across_documents = true;
    o->compute = ACCRUE_F32;
    o->window.lr = 3e-4;
}

#endif
