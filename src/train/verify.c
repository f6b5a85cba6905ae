/* verify.c - proof on the user's own data that accumulation changes nothing.
 *
 * The first windows of epoch 0 are accumulated by the very pieces that training uses.  References
 * are made in one piece: under `token` one micro-batch that holds all documents of the window,
 * under `microbatch` the mean of micro-batch gradients that were each computed alone and summed in
 * f64.  Both gradients of the first window then go through one step from the same weights.
 * Of the second only the gradient is compared: nothing of the first must be left in it. */
#include "train/train.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Relative to a group's largest element.  Sums of some thousand terms in another order: f64 keeps
 * about 1e-13 of it, f32 about 1e-5.  A first AdamW step divides each gradient by its own size and
 * Newton-Schulz drives every singular value to 1, so whatever is almost nothing in the gradient
 * counts in full in the update, with the few digits that it has in f32. */
static const double bound_f64 = 1e-10, bound_f32 = 1e-3, update_bound_f32 = 0.1;

/* Relative to the largest gradient of all, against the sum of the micro-batches' own gradients:
 * only the additions over micro-batches are in question here, some roundings of the accumulator. */
static const double parts_bound_f64 = 1e-14, parts_bound_f32 = 5e-7;

/* Copies of the model's arrays, one block for all trainable parameters. */
typedef struct snapshot {
    void *data;
} snapshot;

typedef struct proof {
    accrue_run *run;
    acr_loader *loader; /* with room for the whole window */
    acr_making making;
    acr_tape tape;
    acr_proof_ranks of_ranks;
    snapshot start;       /* masters before the step */
    snapshot gradient;    /* of the reference */
    snapshot accumulated; /* of the window */
    snapshot updated;     /* masters after the window's step */
    double *sum;          /* f64 mean of separate gradients */
} proof;

int64_t acr_proof_elements(const acr_model *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->n_params; i++)
        if (m->params[i].trainable)
            n += m->params[i].rows * m->params[i].cols;
    return n;
}

typedef enum direction { SAVE_GRAD, LOAD_GRAD, SAVE_MASTER, LOAD_MASTER } direction;

static void move(acr_model *m, snapshot *s, direction d)
{
    size_t real = acr_dtype_bytes(m->real);
    char *at = s->data;

    for (int i = 0; i < m->n_params; i++) {
        acr_param *p = &m->params[i];
        size_t bytes = (size_t)(p->rows * p->cols) * real;
        void *array = d == SAVE_GRAD || d == LOAD_GRAD ? p->grad : p->master;
        if (!p->trainable)
            continue;
        if (d == SAVE_GRAD || d == SAVE_MASTER)
            memcpy(at, array, bytes);
        else
            memcpy(array, at, bytes);
        at += bytes;
    }
    if (d == LOAD_MASTER)
        acr_model_refresh(m);
}

static double at(acr_dtype real, const void *p, int64_t i)
{
    return real == ACR_DTYPE_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static accrue_status proof_open(proof *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_model *m = p->run->setup.model;
    size_t bytes = (size_t)acr_proof_elements(m) * acr_dtype_bytes(m->real);
    snapshot *all[] = {&p->start, &p->gradient, &p->accumulated, &p->updated};
    acr_loader_options loader = {.states_dir = p->run->setup.states_dir,
                                 .shape = p->run->setup.shape};
    int64_t window = p->run->opt.window.gradient_accumulation_steps;

    if (window > p->run->plan.first_epoch_micro_batches)
        window = p->run->plan.first_epoch_micro_batches; /* a short one */
    for (int i = 0; i < ACR_COUNT(all); i++)
        if (!(all[i]->data = acr_malloc(bytes)))
            return acr_enomem(err, bytes, "a copy of the parameters");
    p->sum = acr_calloc((size_t)acr_proof_elements(m), sizeof *p->sum);
    if (!p->sum)
        return acr_enomem(err, (size_t)acr_proof_elements(m) * sizeof *p->sum,
                          "the reference gradient");
    ACR_TRY(acr_making_open(&p->making, &p->run->setup, err));
    loader.source = acr_making_source(&p->making);
    loader.document_len = loader.shape.total_seq_len;
    loader.shape.total_seq_len *= window;
    ACR_TRY(acr_loader_create(&p->loader, p->run->setup.data, &loader, err));
    ACR_TRY(acr_tape_init(&p->tape, p->run->opt.compute, err));

cleanup:
    return st;
}

static void proof_close(proof *p)
{
    acr_free(p->start.data);
    acr_free(p->gradient.data);
    acr_free(p->accumulated.data);
    acr_free(p->updated.data);
    acr_free(p->sum);
    acr_loader_free(p->loader);
    acr_making_close(&p->making);
    acr_tape_free(&p->tape);
}

accrue_status acr_proof_accumulate(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t before = 0;

    do {
        if (!accrue_run_next(run))
            return acr_fail(
                err, ACCRUE_EINVAL,
                "no window of epoch 0 has a supervised token: there is nothing to prove");
        before = accrue_window_empty(run->window);
        do
            ACR_TRY(accrue_run_forward_backward(run, NULL, err));
        while (!accrue_window_at_boundary(run->window));
    } while (accrue_window_empty(run->window) > before);

cleanup:
    return st;
}

/* The window's gradient, of the ranks where there are several: `index` is 0 for the first. */
static accrue_status accumulate(proof *p, int index, accrue_verify_report *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_run *run = p->run;
    const size_t bytes =
        (size_t)acr_proof_elements(run->setup.model) * acr_dtype_bytes(run->setup.model->real);

    ACR_TRY(acr_proof_accumulate(p->run, err));
    out->micro_batches = run->window_size;
    out->tokens = run->window_metrics.tokens;
    out->supervised_tokens = run->window_metrics.supervised_tokens;
    if (p->of_ranks.gradient[index])
        memcpy(p->accumulated.data, p->of_ranks.gradient[index], bytes);
    else
        move(run->setup.model, &p->accumulated, SAVE_GRAD);

cleanup:
    return st;
}

typedef struct extreme {
    double difference, largest;
} extreme;

static void note(extreme *e, double got, double expected, double size)
{
    double d = fabs(got - expected);

    /* A NaN must not get lost in a comparison that is false. */
    if (!(d <= e->difference))
        e->difference = d;
    if (fabs(size) > e->largest)
        e->largest = fabs(size);
}

/* token: every document of the window in one micro-batch, with the window's denominators. */
static accrue_status one_batch(proof *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_epoch *e = &p->run->current;
    const int64_t *first = e->begin + p->run->window_first;
    int64_t begin[2] = {0, first[p->run->window_size] - *first};
    acr_epoch whole = {.n = 1, .begin = begin, .rows = e->rows + *first};
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    const acr_batch *b = NULL;
    accrue_metrics metrics;
    acr_weighting w;

    ACR_TRY(acr_loader_start(p->loader, &whole, NULL, 0, 1, err));
    ACR_TRY(acr_loader_next(&b, p->loader, err));
    acr_eagle3_counts(b, &p->run->setup.eagle3, counts);
    acr_weigh(&w, &p->run->setup.eagle3, ACCRUE_NORMALIZE_TOKEN, counts, counts, 1);
    acr_model_zero_grad(p->run->setup.model);
    ACR_TRY(acr_micro_batch(&metrics, p->run->setup.model, &p->tape, b, &p->run->setup.eagle3, &w,
                            true, err));

cleanup:
    return st;
}

static void add_to_sum(proof *p, int64_t n)
{
    const acr_model *m = p->run->setup.model;
    double *sum = p->sum;

    for (int i = 0; i < m->n_params; i++) {
        const acr_param *q = &m->params[i];
        for (int64_t j = 0; q->trainable && j < q->rows * q->cols; j++)
            *sum++ += at(m->real, q->grad, j) / (double)n;
    }
}

static void sum_to_grad(proof *p)
{
    acr_model *m = p->run->setup.model;
    const double *sum = p->sum;

    for (int i = 0; i < m->n_params; i++) {
        acr_param *q = &m->params[i];
        int64_t n = q->rows * q->cols;
        if (!q->trainable)
            continue;
        if (m->real == ACR_DTYPE_F64)
            memcpy(q->grad, sum, (size_t)n * sizeof *sum);
        else
            acr_convert(m->real, q->grad, ACR_DTYPE_F64, sum, n);
        sum += n;
    }
}

/* The window's gradient as the sum of its micro-batches' own, each computed alone: as a mean of its
 * own that is divided here, or (`weighted`) with the weight that it has in the window. */
static accrue_status separate_batches(proof *p, bool weighted, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_run *run = p->run;
    const accrue_loss_normalization norm = run->opt.window.loss_normalization;
    const int64_t n = weighted ? run->window_live : 1;
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    const acr_batch *b = NULL;
    accrue_metrics metrics;
    acr_weighting w;

    memset(p->sum, 0, (size_t)acr_proof_elements(run->setup.model) * sizeof *p->sum);
    ACR_TRY(acr_loader_start(run->loader, &run->current, NULL, run->window_first,
                             run->window_first + run->window_size, err));
    for (int64_t i = 0; i < run->window_size; i++) {
        ACR_TRY(acr_loader_next(&b, run->loader, err));
        acr_eagle3_counts(b, &run->setup.eagle3, counts);
        acr_weigh(&w, &run->setup.eagle3, norm, counts, run->window_counts, n);
        acr_model_zero_grad(run->setup.model);
        ACR_TRY(acr_micro_batch(&metrics, run->setup.model, &p->tape, b, &run->setup.eagle3, &w,
                                true, err));
        add_to_sum(p, weighted ? 1 : run->window_live);
    }

cleanup:
    return st;
}

/* Over all parameters: the accumulated gradient against the sum of the parts. */
static void compare_parts(const proof *p, accrue_verify_report *out)
{
    const acr_model *m = p->run->setup.model;
    const int64_t n = acr_proof_elements(m);
    extreme e = {.difference = out->parts_max_abs, .largest = out->grad_max};

    for (int64_t i = 0; i < n; i++)
        note(&e, at(m->real, p->accumulated.data, i), p->sum[i], p->sum[i]);
    out->parts_max_abs = e.difference;
    out->grad_max = e.largest;
}

/* One step of a fresh optimizer on the gradient now in the model's accumulators. */
static accrue_status step_once(proof *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_window_options o = p->run->opt.window;
    accrue_window *w = NULL;

    o.gradient_accumulation_steps = 1;
    o.total_steps = p->run->plan.schedule_total_steps;
    o.warmup_steps = p->run->plan.warmup_steps;
    if (!o.muon_ns_dtype)
        o.muon_ns_dtype = p->run->opt.compute;
    ACR_TRY(accrue_window_create(&w, &o, err));
    ACR_TRY(acr_register_params(w, p->run->setup.model, err));
    acr_window_begin(w);
    move(p->run->setup.model, &p->gradient, LOAD_GRAD);
    ACR_TRY(acr_window_count(w, 0.0, true, err));
    ACR_TRY(accrue_window_clip(w, NULL, err));
    ACR_TRY(accrue_window_step(w, NULL, err));

cleanup:
    accrue_window_free(w);
    return st;
}

/* A NaN is the worst there is. */
static double worse(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

static double relative(extreme e)
{
    return e.difference == 0 ? 0 : e.difference / e.largest;
}

static accrue_verify_row *group_row(accrue_verify_report *out, const char *group)
{
    accrue_verify_row *row = NULL;

    for (int i = 0; i < out->n_rows; i++)
        if (strcmp(out->rows[i].group, group) == 0)
            return &out->rows[i];
    row = &out->rows[out->n_rows++];
    snprintf(row->group, sizeof row->group, "%s", group);
    return row;
}

/* Compares group by group.  With `update` the model's masters are those after the reference's step;
 * a second comparison keeps the worse of both. */
static void compare(const proof *p, accrue_verify_report *out, bool update)
{
    static_assert(ACR_MAX_GROUPS <= sizeof out->rows / sizeof out->rows[0], "a row per group");
    const acr_model *m = p->run->setup.model;
    extreme gradients[ACR_MAX_GROUPS] = {0}, updates[ACR_MAX_GROUPS] = {0};
    int64_t offset = 0;

    for (int i = 0; i < m->n_params; i++) {
        const acr_param *q = &m->params[i];
        int64_t n = q->rows * q->cols;
        ptrdiff_t g = 0;
        if (!q->trainable)
            continue;
        g = group_row(out, q->group->name) - out->rows;
        out->rows[g].elements += update ? n : 0;
        for (int64_t j = 0; j < n; j++) {
            double before = at(m->real, p->start.data, offset + j);
            double after = at(m->real, q->master, j);
            double reference = at(m->real, p->gradient.data, offset + j);
            note(&gradients[g], at(m->real, p->accumulated.data, offset + j), reference, reference);
            if (update)
                note(&updates[g], at(m->real, p->updated.data, offset + j), after, after - before);
        }
        offset += n;
    }
    for (int g = 0; g < out->n_rows; g++) {
        accrue_verify_row *row = &out->rows[g];
        row->grad_max_abs = worse(row->grad_max_abs, gradients[g].difference);
        row->grad_max_rel = worse(row->grad_max_rel, relative(gradients[g]));
        row->update_max_abs = worse(row->update_max_abs, updates[g].difference);
        row->update_max_rel = worse(row->update_max_rel, relative(updates[g]));
        row->pass = row->grad_max_rel <= out->bound && row->update_max_rel <= out->update_bound;
        out->pass = (g == 0 || out->pass) && row->pass;
    }
}

static accrue_status reference(proof *p, accrue_verify_report *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(separate_batches(p, true, err));
    compare_parts(p, out);
    if (p->run->opt.window.loss_normalization == ACCRUE_NORMALIZE_TOKEN) {
        ACR_TRY(one_batch(p, err));
    } else {
        /* Rounded to bf16, a gradient times 1/N is not the N-th of the gradient. */
        ACR_TRY(separate_batches(p, p->run->opt.compute == ACCRUE_BF16, err));
        sum_to_grad(p);
    }
    move(p->run->setup.model, &p->gradient, SAVE_GRAD);

cleanup:
    return st;
}

/* The first window: its gradient, and the update that it makes. */
static accrue_status prove_first(proof *p, accrue_verify_report *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_model *m = p->run->setup.model;

    ACR_TRY(accrue_run_epoch(p->run, 0, err));
    move(m, &p->start, SAVE_MASTER);
    ACR_TRY(accumulate(p, 0, out, err));
    ACR_TRY(accrue_run_clip(p->run, NULL, err));
    ACR_TRY(accrue_run_step(p->run, NULL, err));
    move(m, &p->updated, SAVE_MASTER);
    if (p->of_ranks.updated)
        memcpy(p->updated.data, p->of_ranks.updated,
               (size_t)acr_proof_elements(m) * acr_dtype_bytes(m->real));
    move(m, &p->start, LOAD_MASTER);
    ACR_TRY(reference(p, out, err));
    ACR_TRY(step_once(p, err));
    compare(p, out, true);

cleanup:
    return st;
}

/* The window after it, where there is one: what the first left in the accumulators must be gone. */
static accrue_status prove_second(proof *p, accrue_verify_report *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_model *m = p->run->setup.model;
    accrue_verify_report second = {0};

    move(m, &p->updated, LOAD_MASTER);
    move(m, &p->accumulated, LOAD_GRAD);
    accrue_run_lr_step(p->run);
    accrue_run_zero_grad(p->run);
    ACR_TRY(
        acr_loader_start(p->run->loader, &p->run->current, NULL, p->run->next, p->run->used, err));
    if (!accrue_run_next(p->run))
        goto cleanup;
    st = accumulate(p, 1, &second, NULL);
    if (st == ACCRUE_EINVAL) {
        st = ACCRUE_OK; /* nothing supervised is left */
        goto cleanup;
    }
    ACR_TRY(st);
    ACR_TRY(reference(p, out, err));
    compare(p, out, false);

cleanup:
    return st;
}

/* Exact sums round each part to a multiple of 2^-70, whatever the size of the gradient. */
static bool parts_pass(const accrue_verify_report *out, bool reproducible)
{
    const double rounding = reproducible ? ldexp((double)out->micro_batches, -70) : 0.0;

    return out->parts_max_abs <= out->parts_bound * out->grad_max + rounding;
}

accrue_status accrue_verify(accrue_verify_report *out, const accrue_train_options *opt,
                            accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_train_options o;
    proof p = {0};

    memset(out, 0, sizeof *out);
    ACR_TRY(acr_train_options_check(opt, err));
    if (opt->comm)
        return acr_fail(
            err, ACCRUE_EINVAL,
            "accrue_verify: a job of %d ranks; it starts its ranks itself, as `ranks` says",
            accrue_comm_size(opt->comm));
    acr_train_options_resolve(&o, opt);
    out->ranks = o.ranks > 1 ? o.ranks : 1;
    out->sharded = out->ranks > 1 && o.fsdp_shard;
    out->n = o.window.gradient_accumulation_steps;
    /* The first step of a warm-up has a learning rate of 0: its update would prove nothing. */
    o.window.scheduler = ACCRUE_SCHEDULE_NONE;
    o.scheduler_warmup_steps = 0;
    o.scheduler_warmup_ratio = (double)NAN;
    if (out->ranks > 1)
        ACR_TRY(acr_proof_on_ranks(&p.of_ranks, &o, err));
    /* The references, and the place of the windows, are those of one rank. */
    o.window.gradient_accumulation_steps *= out->ranks;
    o.ranks = 1;
    o.global_window = 0;
    o.fsdp_shard = o.defer_reduce = false;
    ACR_TRY(accrue_run_open(&p.run, &o, NULL, NULL, err));
    out->epoch_micro_batches = p.run->plan.first_epoch_micro_batches;
    out->epoch_steps = p.run->plan.first_epoch_steps;
    out->parts_bound = opt->compute == ACCRUE_F64 ? parts_bound_f64 : parts_bound_f32;
    out->bound = opt->compute == ACCRUE_F64 ? bound_f64 : bound_f32;
    out->update_bound = opt->compute == ACCRUE_F64 ? bound_f64 : update_bound_f32;
    ACR_TRY(proof_open(&p, err));
    ACR_TRY(prove_first(&p, out, err));
    ACR_TRY(prove_second(&p, out, err));
    out->parts_pass = parts_pass(out, opt->reproducible);
    if (out->pass && !out->parts_pass)
        st = acr_fail(err, ACCRUE_EVERIFY,
                      "the accumulated gradient differs from the sum of its parts by %.3g, %.3g "
                      "expected at most",
                      out->parts_max_abs, out->parts_bound * out->grad_max);
    else if (!out->pass)
        st = acr_fail(err, ACCRUE_EVERIFY,
                      "the accumulated gradient or update differs from the reference by more than "
                      "%g",
                      out->bound);

    out->pass = out->pass && out->parts_pass;

cleanup:
    proof_close(&p);
    acr_proof_ranks_free(&p.of_ranks);
    accrue_run_free(p.run);
    return st;
}
