/* ranks_reference.h - a window's update from its definition: gradients in one pass, or one by
 * one, and optimizers written plainly.  Of the library it uses the model's forward and backward. */
#ifndef TEST_RANKS_REFERENCE_H
#define TEST_RANKS_REFERENCE_H

#include "ranks_test.h"

typedef struct reference {
    const accrue_train_options *opt;
    acr_setup setup;
    acr_tape tape;
    int64_t n;              /* trainable elements */
    long double *gradient;  /* [n] of the window */
    double *first, *second; /* [n] moments; Muon's momentum is in `first` */
    int64_t step;
    double norm;
} reference;

static inline void reference_open(reference *r, const accrue_train_options *opt)
{
    accrue_error e = {0};

    memset(r, 0, sizeof *r);
    r->opt = opt;
    assert_ok(acr_setup_open(&r->setup, opt, &e), &e);
    assert_ok(acr_tape_init(&r->tape, ACCRUE_F64, &e), &e);
    r->n = acr_model_elements(r->setup.model, true);
    r->gradient = acr_calloc((size_t)r->n, sizeof *r->gradient);
    r->first = acr_calloc((size_t)r->n, sizeof *r->first);
    r->second = acr_calloc((size_t)r->n, sizeof *r->second);
    assert_true(r->gradient && r->first && r->second);
}

static inline void reference_close(reference *r)
{
    acr_tape_free(&r->tape);
    acr_setup_free(&r->setup);
    acr_free(r->gradient);
    acr_free(r->first);
    acr_free(r->second);
}

/* Gradients ------------------------------------------------------------------------------- */

/* Adds the gradient of these rows as one micro-batch to the window's; `peers`: the denominators of
 * the Python trainer, and this share of them.  Whether there was anything to learn. */
static inline bool add_gradient(reference *r, int64_t *rows, int64_t n, bool peers, double share)
{
    int64_t begin[] = {0, n}, counts[ACCRUE_MAX_TTT_STEPS], at = 0;
    const acr_epoch one = {.n = 1, .begin = begin, .rows = rows};
    acr_loader_options lo = {.states_dir = r->setup.states_dir, .shape = r->setup.shape};
    double scale[ACCRUE_MAX_TTT_STEPS], decay = 1;
    const acr_batch *b = NULL;
    acr_eagle3_result result;
    acr_loader *loader = NULL;
    accrue_error e = {0};
    bool any = false;

    lo.shape.total_seq_len = 2048; /* however many micro-batches */
    assert_ok(acr_loader_create(&loader, r->setup.data, &lo, &e), &e);
    assert_ok(acr_loader_start(loader, &one, NULL, 0, 1, &e), &e);
    assert_ok(acr_loader_next(&b, loader, &e), &e);
    acr_eagle3_counts(b, &r->setup.eagle3, counts);
    for (int k = 0; k < r->opt->ttt_steps; k++, decay *= r->opt->ttt_step_loss_decay) {
        any = any || counts[k];
        scale[k] = peers       ? decay / ((double)counts[k] + 1e-5)
                   : counts[k] ? decay / (double)counts[k]
                               : 0;
    }
    acr_model_zero_grad(r->setup.model);
    acr_tape_reset(&r->tape);
    assert_ok(acr_eagle3_forward(&result, r->setup.model, &r->tape, b, &r->setup.eagle3, scale, &e),
              &e);
    acr_tape_backward(&r->tape);
    assert_ok(acr_tape_status(&r->tape, &e), &e);
    for (int i = 0; i < r->setup.model->n_params; i++) {
        const acr_param *p = &r->setup.model->params[i];
        for (int64_t j = 0; p->trainable && j < p->rows * p->cols; j++)
            r->gradient[at++] += (long double)((const double *)p->grad)[j] * (long double)share;
    }
    assert_int_equal(at, r->n);
    acr_loader_free(loader);
    return any;
}

/* Micro-batches [from, to) of the plan's epoch as a window. */
static inline bool window_gradient(reference *r, const acr_epoch *e, int64_t from, int64_t to)
{
    bool any = false;

    memset(r->gradient, 0, (size_t)r->n * sizeof *r->gradient);
    if (r->opt->window.loss_normalization == ACCRUE_NORMALIZE_TOKEN)
        return add_gradient(r, e->rows + e->begin[from], e->begin[to] - e->begin[from], false, 1);
    for (int64_t i = from; i < to; i++)
        any |= add_gradient(r, e->rows + e->begin[i], e->begin[i + 1] - e->begin[i], true,
                            1.0 / (double)(to - from));
    return any;
}

/* Optimizers ------------------------------------------------------------------------------ */

static inline void plain_adamw(reference *r, double *w, int64_t at, int64_t n, double factor)
{
    const accrue_window_options *o = &r->opt->window;

    for (int64_t i = 0; i < n; i++) {
        double g = (double)r->gradient[at + i] * factor;
        double *m = &r->first[at + i], *v = &r->second[at + i];
        *m = o->beta1 * *m + (1 - o->beta1) * g;
        *v = o->beta2 * *v + (1 - o->beta2) * g * g;
        w[i] -= o->lr * o->weight_decay * w[i];
        w[i] -= o->lr * (*m / (1 - pow(o->beta1, (double)r->step))) /
                (sqrt(*v / (1 - pow(o->beta2, (double)r->step))) + o->eps);
    }
}

/* out [m, n] = a [m, k] times b [k, n], or its transpose [n, k]. */
static inline void multiply(double *out, const double *a, const double *b, bool transposed,
                            int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++) {
        memset(out + i * n, 0, (size_t)n * sizeof *out);
        for (int64_t j = 0; transposed && j < n; j++)
            for (int64_t l = 0; l < k; l++)
                out[i * n + j] += a[i * k + l] * b[j * k + l];
        for (int64_t l = 0; !transposed && l < k; l++)
            for (int64_t j = 0; j < n; j++)
                out[i * n + j] += a[i * k + l] * b[l * n + j];
    }
}

/* Newton-Schulz on x [m, n], m <= n, of which the singular values go towards 1. */
static inline void orthogonalize(double *x, int64_t m, int64_t n, int rounds)
{
    double *a = acr_malloc((size_t)(m * m) * 8), *b = acr_malloc((size_t)(m * m) * 8);
    double *y = acr_malloc((size_t)(m * n) * 8), norm = 0;

    assert_true(a && b && y);
    for (int64_t i = 0; i < m * n; i++)
        norm += x[i] * x[i];
    norm = fmax(sqrt(norm), 1e-7);
    for (int64_t i = 0; i < m * n; i++)
        x[i] /= norm;
    for (int round = 0; round < rounds; round++) {
        multiply(a, x, x, true, m, m, n);
        multiply(b, a, a, false, m, m, m);
        for (int64_t i = 0; i < m * m; i++)
            b[i] = -4.775 * a[i] + 2.0315 * b[i];
        multiply(y, b, x, false, m, n, m);
        for (int64_t i = 0; i < m * n; i++)
            x[i] = 3.4445 * x[i] + y[i];
    }
    acr_free(a);
    acr_free(b);
    acr_free(y);
}

static inline void flip(double *out, const double *in, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            out[j * rows + i] = in[i * cols + j];
}

static inline void plain_muon(reference *r, double *w, int64_t at, int64_t rows, int64_t cols,
                              double factor)
{
    const accrue_window_options *o = &r->opt->window;
    const double lr = isnan(o->muon_lr) ? o->lr : o->muon_lr, mu = o->muon_momentum;
    const int64_t n = rows * cols;
    double *u = acr_malloc((size_t)n * 8), *x = acr_malloc((size_t)n * 8);

    assert_true(u && x);
    for (int64_t i = 0; i < n; i++) {
        double g = (double)r->gradient[at + i] * factor, *m = &r->first[at + i];
        *m = mu * *m + (1 - mu) * g;
        u[i] = mu * *m + (1 - mu) * g;
    }
    if (rows > cols) {
        flip(x, u, rows, cols);
        orthogonalize(x, cols, rows, o->muon_ns_steps);
        flip(u, x, cols, rows);
    } else {
        orthogonalize(u, rows, cols, o->muon_ns_steps);
    }
    for (int64_t i = 0; i < n; i++)
        w[i] = w[i] * (1 - lr * o->muon_weight_decay) -
               lr * 0.2 * sqrt((double)(rows > cols ? rows : cols)) * u[i];
    acr_free(u);
    acr_free(x);
}

static inline void reference_step(reference *r)
{
    const acr_model *m = r->setup.model;
    const double limit = r->opt->window.clip_norm;
    long double squares = 0;
    double factor = 1;
    int64_t at = 0;

    for (int64_t i = 0; i < r->n; i++)
        squares += r->gradient[i] * r->gradient[i];
    r->norm = (double)sqrtl(squares);
    if (limit > 0)
        factor = fmin(1, limit / (r->norm + 1e-6));
    r->step++;
    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        const bool matrix = p->cols > 1 && p->rows > 1 && !strstr(p->name, "embed_tokens");
        if (!p->trainable)
            continue;
        if (matrix && r->opt->window.optimizer == ACCRUE_MUON)
            plain_muon(r, p->master, at, p->rows, p->cols, factor);
        else
            plain_adamw(r, p->master, at, p->rows * p->cols, factor);
        at += p->rows * p->cols;
    }
    acr_model_refresh(r->setup.model);
}

/* Trains the plan's first epoch in windows of so many micro-batches; with tail `drop` the last
 * one's too short a window is none. */
static inline void reference_train(reference *r, int64_t window)
{
    acr_batch_plan plan = {0};
    const acr_epoch *e = NULL;
    accrue_error why = {0};

    assert_ok(acr_batch_plan_read(&plan, r->opt->batch_plan, acr_dataset_rows(r->setup.data),
                                  r->opt->total_seq_len, &why),
              &why);
    e = &plan.train[0];
    for (int64_t from = 0; from < e->n; from += window) {
        int64_t to = from + window < e->n ? from + window : e->n;
        if (to - from < window && r->opt->accumulation_tail == ACCRUE_TAIL_DROP)
            break;
        if (window_gradient(r, e, from, to))
            reference_step(r);
    }
    acr_batch_plan_free(&plan);
}

#endif
