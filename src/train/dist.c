/* dist.c - gradients and weights of a model, on one rank or several.
 *
 * A group's gradient of a micro-batch is complete before it is added to the sum over micro-batches,
 * so that the sum is rounded once for each.  Replicated, a rank adds its micro-batches up, and at
 * the boundary the ranks' sums are added.  Sharded, a rank keeps its share of masters, moments and
 * gradient; a group's matrices are gathered when it is first used, its gradient is reduced into the
 * shares when it is complete.  Either way a reduction begins when the tape says that a group is
 * ready, and runs while the rest of backward does.
 *
 * Which collectives there are, and in which order, is planned from the largest micro-batch
 * (acr_dist_plan).  A micro-batch may use less of the model, or fail: what it left out is made up
 * for at its end.  A group whose last use comes before the first use of the next one is *passing*:
 * it is released in between, forward and backward, and passing groups share one place. */
#include "train/dist_parts.h"

#include <string.h>

/* What operators find ----------------------------------------------------------------------- */

/* Where operators find the group's matrices, or NULL when they are released. */
static void point_at_weights(const acr_part *p, const void *weights)
{
    const acr_model *m = p->d->model;

    for (int i = 0; i < m->n_params; i++) {
        acr_param *q = &m->params[i];
        const char *at = weights;
        if (!q->trainable || q->group != p->g || q->cols == 1)
            continue;
        if (at)
            at += (size_t)q->offset * (p->as_bf16 ? sizeof(uint16_t) : real_bytes(p->d));
        if (p->as_bf16)
            q->bf16 = (const uint16_t *)(const void *)at;
        else
            q->master = (void *)(uintptr_t)at;
    }
}

/* Vectors are whole on every rank, at all times. */
static void point_at_vectors(const acr_part *p)
{
    const acr_model *m = p->d->model;

    for (int i = 0; i < m->n_params; i++) {
        acr_param *q = &m->params[i];
        if (q->trainable && q->group == p->g && q->cols == 1)
            q->master =
                (char *)p->vectors + (size_t)(q->offset - p->g->n_matrices) * real_bytes(p->d);
    }
}

static void point_at_grad(const acr_part *p, void *grad)
{
    const acr_model *m = p->d->model;

    p->g->grad = grad;
    for (int i = 0; i < m->n_params; i++) {
        acr_param *q = &m->params[i];
        if (q->trainable && q->group == p->g)
            q->grad = grad ? (char *)grad + (size_t)q->offset * real_bytes(p->d) : NULL;
    }
}

/* Creation ---------------------------------------------------------------------------------- */

static accrue_status need(acr_dist *d, void *out, size_t bytes, const char *what, accrue_error *err)
{
    void *block = acr_calloc(1, bytes ? bytes : 1);

    if (!block)
        return acr_enomem(err, bytes, what);
    memcpy(out, &block, sizeof block);
    d->bytes += (int64_t)bytes;
    return ACCRUE_OK;
}

/* The ranks' shares of the arrays that are exchanged. */
static accrue_status set_shares(acr_part *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_dist *d = p->d;
    const acr_group *g = p->g;
    const size_t n = (size_t)d->ranks + 1;
    const size_t operand = p->as_bf16 ? sizeof(uint16_t) : real_bytes(d);

    ACR_TRY(need(d, &p->weight_begin, n * sizeof *p->weight_begin, g->name, err));
    ACR_TRY(need(d, &p->vector_begin, n * sizeof *p->vector_begin, g->name, err));
    ACR_TRY(need(d, &p->grad_begin, n * sizeof *p->grad_begin, g->name, err));
    ACR_TRY(need(d, &p->grad_byte_begin, n * sizeof *p->grad_byte_begin, g->name, err));
    if (!d->sharded)
        acr_comm_split(g->n, d->ranks, p->grad_begin);
    for (size_t r = 0; r < n; r++) {
        if (d->sharded) {
            int64_t matrices = least(g->cut[r], g->n_matrices);
            p->weight_begin[r] = (size_t)matrices * operand;
            p->vector_begin[r] = (size_t)(g->cut[r] - matrices) * real_bytes(d);
            p->grad_begin[r] = g->cut[r];
        }
        p->grad_byte_begin[r] = (size_t)p->grad_begin[r] * real_bytes(d);
    }

cleanup:
    return st;
}

/* While the largest micro-batch is measured, operators are to find that weights and gradients are
 * there; what they find is not touched. */
static void stand_in(const acr_part *p)
{
    if (!p->d->sharded)
        return;
    point_at_weights(p, p->g->master);
    point_at_grad(p, p->g->accumulator);
}

accrue_status acr_dist_create(acr_dist **out, acr_model *m, accrue_comm *comm,
                              const acr_dist_options *o, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_dist *d = acr_calloc(1, sizeof *d);

    *out = NULL;
    if (!d)
        return acr_enomem(err, sizeof *d, "the ranks' plan");
    d->model = m;
    d->comm = comm;
    d->rank = accrue_comm_rank(comm);
    d->ranks = accrue_comm_size(comm);
    d->sharded = m->sharding.ranks > 1;
    d->defer = o->defer_reduce;
    d->reproducible = o->reproducible;
    d->apart = d->sharded || (o->n > 1 && !o->reproducible);
    d->shares = d->sharded && !d->defer;
    d->parts = acr_calloc((size_t)m->n_groups, sizeof *d->parts);
    if (!d->parts) {
        st = acr_enomem(err, (size_t)m->n_groups * sizeof *d->parts, "the ranks' plan");
        goto cleanup;
    }
    for (int i = 0; i < m->n_groups; i++) {
        acr_part *p = &d->parts[d->n];
        if (!m->groups[i].n)
            continue;
        *p = (acr_part){.d = d, .g = &m->groups[i], .first_use = -1, .last_use = -1};
        p->as_bf16 = m->compute == ACCRUE_BF16 && p->g != m->top.embed->group;
        d->n++;
        ACR_TRY(set_shares(p, err));
        stand_in(p);
    }
    *out = d;
    d = NULL;

cleanup:
    acr_dist_free(d);
    return st;
}

static void part_free(acr_part *p)
{
    if (!p->passing) {
        acr_free(p->weights);
        acr_free(p->grad);
    }
    if (p->d->sharded)
        acr_free(p->sum);
    acr_free(p->vectors);
    acr_free(p->exact);
    acr_free(p->weight_begin);
    acr_free(p->vector_begin);
    acr_free(p->grad_begin);
    acr_free(p->grad_byte_begin);
}

void acr_dist_free(acr_dist *d)
{
    if (!d)
        return;
    for (int i = 0; d->parts && i < d->n; i++) {
        (void)!acr_comm_wait(d->comm, &d->parts[i].gather, NULL);
        (void)!acr_comm_wait(d->comm, &d->parts[i].reduce, NULL);
        (void)!acr_comm_wait(d->comm, &d->parts[i].spread, NULL);
    }
    for (int i = 0; d->parts && i < d->n; i++)
        part_free(&d->parts[i]);
    acr_free(d->passing_weights);
    acr_free(d->passing_grad);
    acr_free(d->parts);
    acr_free(d);
}

/* Failures ---------------------------------------------------------------------------------- */

/* A failure of the job, or the first that this rank's micro-batch met with. */
static void fail(acr_dist *d, accrue_status st, const accrue_error *e)
{
    if (d->status)
        return;
    d->status = st;
    d->error = *e;
    acr_tape_fail(d->tape, st, "%s", e->message);
}

void acr_dist_wait(acr_dist *d, acr_comm_request *r)
{
    accrue_error e = {0};
    accrue_status st = acr_comm_wait(d->comm, r, &e);

    if (st)
        fail(d, st, &e);
}

/* Weights ----------------------------------------------------------------------------------- */

static acr_part *part_of(acr_dist *d, const acr_group *g)
{
    for (int i = 0; i < d->n; i++)
        if (d->parts[i].g == g)
            return &d->parts[i];
    return NULL;
}

/* A group of vectors alone has nothing that comes and goes. */
static bool comes_and_goes(const acr_part *p)
{
    return p->g->n_matrices > 0;
}

static void gather(acr_part *p)
{
    acr_dist *d = p->d;
    acr_comm_label label = {ACR_COMM_WEIGHTS, "the weights of", p->g->name};
    const acr_dtype operand = p->as_bf16 ? ACR_DTYPE_BF16 : d->model->real;
    const size_t begin = p->weight_begin[d->rank];
    const size_t bytes = p->weight_begin[d->rank + 1] - begin;

    if (!comes_and_goes(p))
        return;
    acr_convert(operand, (char *)p->weights + begin, d->model->real, p->g->master,
                (int64_t)(bytes / acr_dtype_bytes(operand)));
    acr_comm_gather_begin(d->comm, &p->gather, label, p->weights, p->weight_begin);
    acr_dist_wait(d, &p->gather);
    p->gathered = true;
    point_at_weights(p, p->weights);
}

static void release(acr_part *p)
{
    if (p->gathered)
        point_at_weights(p, NULL);
    p->gathered = false;
}

/* Up to and with part `to`; those that are passing make room for the next. */
static void gather_forward(acr_dist *d, int to)
{
    for (; d->forward_at <= to; d->forward_at++) {
        acr_part *p = &d->parts[d->forward_at];
        for (int i = 0; comes_and_goes(p) && i < d->forward_at; i++)
            if (d->parts[i].passing)
                release(&d->parts[i]);
        gather(p);
    }
}

static void on_forward(acr_group *g, void *payload)
{
    acr_dist *d = payload;
    const acr_part *p = part_of(d, g);

    if (p)
        gather_forward(d, (int)(p - d->parts));
}

/* Gradients --------------------------------------------------------------------------------- */

/* Before the first gradient of a micro-batch goes into the group. */
void acr_part_touch(acr_part *p)
{
    acr_dist *d = p->d;

    if (p->touched)
        return;
    p->touched = true;
    acr_dist_wait(d, &p->reduce);
    if (p->passing && d->passing && d->passing != p)
        acr_dist_wait(d, &d->passing->reduce);
    if (p->passing)
        d->passing = p;
    if (d->apart)
        point_at_grad(p, p->grad);
    if (d->apart || d->reproducible)
        memset(p->g->grad, 0, (size_t)p->g->n * real_bytes(d));
}

/* Up to and with part `to`, from the last backward. */
static void reduce_backward(acr_dist *d, int to)
{
    for (; d->n - 1 - d->backward_at >= to; d->backward_at++) {
        acr_part *p = &d->parts[d->n - 1 - d->backward_at];
        if (d->sharded && p->passing && !p->gathered)
            gather(p);
        acr_part_complete(p);
        if (p->passing)
            release(p);
    }
}

static void on_backward(acr_group *g, void *payload)
{
    acr_dist *d = payload;
    acr_part *p = part_of(d, g);

    if (!p)
        return;
    if (d->sharded && p->passing && !p->gathered) {
        reduce_backward(d, (int)(p - d->parts) + 1);
        gather(p);
    }
    acr_part_touch(p);
}

static void on_ready(acr_group *g, void *payload)
{
    acr_dist *d = payload;
    const acr_part *p = part_of(d, g);

    if (p)
        reduce_backward(d, (int)(p - d->parts));
}

/* Planning ---------------------------------------------------------------------------------- */

/* By first use; what is not used at all comes last. */
static bool comes_after(const acr_part *a, const acr_part *b)
{
    if (a->first_use < 0 || b->first_use < 0)
        return a->first_use < 0 && b->first_use >= 0;
    return a->first_use > b->first_use;
}

static void find_uses(acr_dist *d, const acr_tape *t)
{
    for (int64_t i = 0; i < t->n_records; i++) {
        const acr_param *w = t->records[i]->param[0];
        acr_part *p = w ? part_of(d, w->group) : NULL;
        if (!p)
            continue;
        if (p->first_use < 0)
            p->first_use = i;
        p->last_use = i;
    }
    for (int i = 1; i < d->n; i++)
        for (int j = i; j > 0 && comes_after(&d->parts[j - 1], &d->parts[j]); j--) {
            acr_part p = d->parts[j];
            d->parts[j] = d->parts[j - 1];
            d->parts[j - 1] = p;
        }
}

static void find_passing(acr_dist *d)
{
    for (int i = 0; i < d->n; i++) {
        int next = i + 1;
        while (next < d->n && !comes_and_goes(&d->parts[next]))
            next++;
        d->parts[i].passing = comes_and_goes(&d->parts[i]) && next < d->n &&
                              d->parts[next].first_use >= 0 &&
                              d->parts[i].last_use < d->parts[next].first_use;
    }
}

static accrue_status reserve_part(acr_part *p, size_t *most_weights, size_t *most_grad,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_dist *d = p->d;
    const size_t weights = d->sharded ? p->weight_begin[d->ranks] : 0;
    const size_t grad = (size_t)p->g->n * real_bytes(d);
    const int64_t own = p->grad_begin[d->rank + 1] - p->grad_begin[d->rank];
    const size_t exact = (size_t)(d->shares ? own : p->g->n) * sizeof *p->exact;

    if (d->sharded) {
        ACR_TRY(need(d, &p->vectors, p->vector_begin[d->ranks], p->g->name, err));
        point_at_vectors(p);
    }
    if (d->reproducible)
        ACR_TRY(need(d, &p->exact, exact, p->g->name, err));
    else if (d->defer)
        ACR_TRY(need(d, &p->sum, grad, p->g->name, err));
    else if (!d->sharded)
        p->sum = p->g->accumulator;
    if (d->defer)
        d->deferred_bytes +=
            (int64_t)(d->reproducible ? exact - (size_t)own * sizeof *p->exact : grad);
    if (p->passing) {
        *most_weights = weights > *most_weights ? weights : *most_weights;
        *most_grad = grad > *most_grad ? grad : *most_grad;
        goto cleanup;
    }
    if (d->sharded)
        ACR_TRY(need(d, &p->weights, weights, p->g->name, err));
    if (d->apart)
        ACR_TRY(need(d, &p->grad, grad, p->g->name, err));

cleanup:
    return st;
}

static accrue_status reserve(acr_dist *d, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t weights = 0, grad = 0;

    for (int i = 0; i < d->n; i++)
        ACR_TRY(reserve_part(&d->parts[i], &weights, &grad, err));
    ACR_TRY(need(d, &d->passing_weights, weights, "weights in use", err));
    ACR_TRY(need(d, &d->passing_grad, d->apart ? grad : 0, "a gradient in use", err));
    for (int i = 0; i < d->n; i++)
        if (d->parts[i].passing) {
            d->parts[i].weights = d->passing_weights;
            d->parts[i].grad = d->apart ? d->passing_grad : NULL;
        }

cleanup:
    return st;
}

accrue_status acr_dist_plan(acr_dist *d, acr_tape *t, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    find_uses(d, t);
    find_passing(d);
    ACR_TRY(reserve(d, err));
    d->tape = t; /* the rest of the measurement still finds weights and gradients */
    t->payload = d;
    t->group_forward = d->sharded ? on_forward : NULL;
    t->group_backward = on_backward;
    t->group_ready = on_ready;

cleanup:
    return st;
}

int64_t acr_dist_bytes(const acr_dist *d, int64_t *deferred)
{
    *deferred = d->deferred_bytes;
    return d->bytes;
}

/* Windows and micro-batches ----------------------------------------------------------------- */

static accrue_status outcome(acr_dist *d, accrue_error *err)
{
    accrue_status st = d->status;

    if (st)
        acr_fail(err, st, "%s", d->error.message);
    d->status = ACCRUE_OK;
    return st;
}

accrue_status acr_dist_begin_window(acr_dist *d, accrue_error *err)
{
    d->status = ACCRUE_OK;
    d->passing = NULL;
    for (int i = 0; i < d->n; i++) {
        acr_part *p = &d->parts[i];
        const int64_t own = p->grad_begin[d->rank + 1] - p->grad_begin[d->rank];
        acr_dist_wait(d, &p->reduce);
        acr_dist_wait(d, &p->spread);
        if (d->reproducible)
            memset(p->exact, 0, (size_t)(d->shares ? own : p->g->n) * sizeof *p->exact);
        else if (d->defer)
            memset(p->sum, 0, (size_t)p->g->n * real_bytes(d));
    }
    return outcome(d, err);
}

void acr_dist_begin(acr_dist *d, bool backward, bool last)
{
    d->status = ACCRUE_OK;
    d->backward = backward;
    d->last = last;
    d->forward_at = d->backward_at = 0;
    for (int i = 0; i < d->n; i++) {
        d->parts[i].touched = false;
        if (d->sharded)
            point_at_grad(&d->parts[i], NULL);
        if (d->sharded && !d->parts[i].gathered)
            point_at_weights(&d->parts[i], NULL);
    }
}

accrue_status acr_dist_end(acr_dist *d, accrue_error *err)
{
    if (d->sharded)
        gather_forward(d, d->n - 1);
    if (d->backward)
        reduce_backward(d, 0);
    for (int i = 0; i < d->n; i++)
        release(&d->parts[i]);
    /* For whoever looks: the sum. */
    for (int i = 0; i < d->n && !d->sharded; i++)
        point_at_grad(&d->parts[i], d->parts[i].g->accumulator);
    return outcome(d, err);
}

accrue_status acr_dist_finish(acr_dist *d, accrue_error *err)
{
    for (int i = 0; i < d->n; i++) {
        acr_part *p = &d->parts[i];
        acr_dist_wait(d, &p->reduce);
        acr_dist_wait(d, &p->spread);
        if (d->status || !d->reproducible)
            continue;
        if (d->ranks == 1)
            acr_exact_value_all(d->model->real, p->g->accumulator, p->exact, p->g->n);
        else if (d->shares)
            acr_exact_value_all(d->model->real, p->g->accumulator, p->exact,
                                p->grad_begin[d->rank + 1] - p->grad_begin[d->rank]);
    }
    return outcome(d, err);
}

accrue_status acr_dist_refresh(acr_dist *d, accrue_error *err)
{
    acr_model_refresh(d->model);
    d->status = ACCRUE_OK;
    for (int i = 0; d->sharded && i < d->n; i++) {
        acr_part *p = &d->parts[i];
        acr_comm_label label = {ACR_COMM_WEIGHTS, "the vectors of", p->g->name};
        const int64_t first = p->g->cut[d->rank];
        const int64_t skip = first < p->g->n_matrices ? p->g->n_matrices - first : 0;
        const size_t begin = p->vector_begin[d->rank];
        const size_t bytes = p->vector_begin[d->rank + 1] - begin;
        if (bytes)
            memcpy((char *)p->vectors + begin,
                   (const char *)p->g->master + (size_t)skip * real_bytes(d), bytes);
        acr_comm_gather_begin(d->comm, &p->gather, label, p->vectors, p->vector_begin);
        acr_dist_wait(d, &p->gather);
    }
    return outcome(d, err);
}
