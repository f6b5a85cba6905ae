/* train_test.h - for tests of whole runs: the example data, batch plans of chosen rows, and what a
 * run told its callback. */
#ifndef TEST_TRAIN_TEST_H
#define TEST_TRAIN_TEST_H

#include "files.h"
#include "train/train.h"

#include <math.h>

#define TINY ACR_TEST_DATA "/../../examples/tiny"

enum { MAX_TOLD = 64, TINY_VOCAB = 96, TINY_DRAFT = 48 };

/* What events a run gave, and where it stood. */
typedef struct told {
    int64_t steps, micro_batches, validations, epochs;
    int64_t n_saved;
    char *saved[MAX_TOLD]; /* folders, as told */
    int64_t saved_micro_batch[MAX_TOLD];
    int n_notices;
    char *notice[MAX_TOLD];
    double val_loss[MAX_TOLD];
    accrue_event last_step;
    accrue_train_plan plan;
    int64_t stop_at; /* micro-batch after which the callback stops the run; 0: never */
} told;

static inline int tell(const accrue_event *e, void *payload)
{
    told *t = payload;

    switch (e->kind) {
    case ACCRUE_EVENT_START: t->plan = *e->plan; break;
    case ACCRUE_EVENT_MICRO_BATCH:
        t->micro_batches++;
        return t->stop_at && t->micro_batches == t->stop_at;
    case ACCRUE_EVENT_STEP:
        t->steps++;
        t->last_step = *e;
        break;
    case ACCRUE_EVENT_VALIDATION:
        assert_true(t->validations < MAX_TOLD);
        t->val_loss[t->validations++] = e->metrics.loss_sum / e->metrics.loss_total;
        break;
    case ACCRUE_EVENT_VALIDATING:
    case ACCRUE_EVENT_WAITING: break;
    case ACCRUE_EVENT_EPOCH: t->epochs++; break;
    case ACCRUE_EVENT_CHECKPOINT:
        assert_true(t->n_saved < MAX_TOLD);
        t->saved_micro_batch[t->n_saved] = e->micro_batch;
        t->saved[t->n_saved++] = acr_strdup(e->message);
        break;
    case ACCRUE_EVENT_NOTICE:
        assert_true(t->n_notices < MAX_TOLD);
        t->notice[t->n_notices++] = acr_strdup(e->message);
        break;
    }
    return 0;
}

static inline void forget(told *t)
{
    for (int64_t i = 0; i < t->n_saved; i++)
        acr_free(t->saved[i]);
    for (int i = 0; i < t->n_notices; i++)
        acr_free(t->notice[i]);
    memset(t, 0, sizeof *t);
}

static inline void assert_notice(const told *t, const char *words)
{
    for (int i = 0; i < t->n_notices; i++)
        if (strstr(t->notice[i], words))
            return;
    fail_msg("no notice says \"%s\"", words);
}

/* f64, AdamW at a constant rate: what the exact statements are about. */
static inline accrue_train_options tiny_options(const char *save_path)
{
    accrue_train_options o;

    accrue_train_options_init(&o, sizeof o);
    o.verifier = TINY "/verifier";
    o.data_path = TINY "/data";
    o.draft_vocab_size = TINY_DRAFT;
    o.total_seq_len = 128;
    o.compute = ACCRUE_F64;
    o.window.optimizer = ACCRUE_ADAMW;
    o.window.scheduler = ACCRUE_SCHEDULE_NONE;
    o.epochs = 1;
    o.save_path = save_path;
    return o;
}

/* A plan of the epochs in the text, e.g. "[[0, 1], [2]]" for one; its path, freed with acr_free. */
static inline char *write_plan(const char *folder, int64_t total_seq_len, const char *train)
{
    char *path = acr_sprintf("%s/plan.json", folder);
    char *text = acr_sprintf("{\"total_seq_len\": %lld, \"train\": [%s], \"val\": []}",
                             (long long)total_seq_len, train);

    assert_non_null(path);
    assert_non_null(text);
    write_text(path, text);
    acr_free(text);
    return path;
}

/* A plan of `n` micro-batches of one row each. */
static inline char *write_single_plan(const char *folder, int64_t total_seq_len, int64_t n)
{
    char text[1024] = "[";
    size_t used = 1;

    for (int64_t i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s[%lld]", i ? ", " : "",
                                 (long long)i);
    assert_true(used + 2 < sizeof text);
    memcpy(text + used, "]", 2);
    return write_plan(folder, total_seq_len, text);
}

/* One micro-batch and, at a boundary, all that follows it. */
static inline accrue_status one_micro_batch(accrue_run *run, bool *stepped, accrue_error *e)
{
    accrue_status st = ACCRUE_OK;

    *stepped = false;
    ACR_TRY(accrue_run_forward_backward(run, NULL, e));
    ACR_TRY(accrue_run_clip(run, NULL, e));
    ACR_TRY(accrue_run_step(run, stepped, e));
    accrue_run_lr_step(run);
    accrue_run_zero_grad(run);

cleanup:
    return st;
}

/* Trainable arrays end to end, as f64; masters or accumulators. */
static inline double *copy_arrays(const accrue_run *run, bool grad, int64_t *n)
{
    const acr_model *m = run->setup.model;
    double *copy = NULL;
    int64_t at = 0;

    *n = acr_model_elements(m, true);
    copy = acr_malloc((size_t)*n * sizeof *copy);
    assert_non_null(copy);
    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        if (!p->trainable)
            continue;
        acr_convert(ACR_DTYPE_F64, copy + at, m->real, grad ? p->grad : p->master,
                    p->rows * p->cols);
        at += p->rows * p->cols;
    }
    assert_int_equal(at, *n);
    return copy;
}

/* Largest difference in units of the largest element. */
static inline double array_distance(const double *a, const double *b, int64_t n)
{
    double difference = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        double d = fabs(a[i] - b[i]);
        difference = isnan(d) ? HUGE_VAL : fmax(difference, d);
        size = fmax(size, fabs(b[i]));
    }
    assert_true(size > 0);
    return difference / size;
}

#endif
