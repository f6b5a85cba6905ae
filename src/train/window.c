/* window.c - one accumulation window over registered arrays, and the rules of its boundary.
 *
 * A window fills with micro-batches until it is *closed*: full, or cut short at the end of an
 * epoch.  While it is closed, clip, step, lr_step and zero_grad each act once; the next micro-batch
 * opens the next window.  Accumulators of own-loop parameters hold plain sums (of grad / weight or
 * of grad), which the first contribution overwrites, so that they need no zeroing and N = 1 passes
 * the very bits through; the division by the window's size is a factor applied at the boundary. */
#include "train/train.h"

#include <math.h>
#include <string.h>

struct accrue_window {
    accrue_window_options opt;
    acr_window_param *params;
    int n_params, capacity;
    bool planned; /* parameters come from acr_window_add_accumulated */

    accrue_comm *comm; /* of the ranks that step together; NULL: one */

    acr_block *blocks; /* from the first micro-batch on */
    int64_t n_blocks;
    acr_optim *optim;

    int64_t micro_batches, global_step, schedule_step, empty;

    /* The current window. */
    int64_t filled;
    double loss_sum, weight_sum;
    bool closed;
    bool has_gradient; /* the accumulators hold a contribution */
    bool zeroed;       /* zero_grad was called since the last micro-batch */
    bool stepped, lr_stepped;
    bool norm_known;
    double norm, clip_factor;
};

/* Windows --------------------------------------------------------------------------------- */

static void open_window(accrue_window *w)
{
    w->filled = 0;
    w->loss_sum = 0.0;
    w->weight_sum = 0.0;
    w->closed = false;
    w->has_gradient = false;
    w->stepped = false;
    w->lr_stepped = false;
    w->norm_known = false;
    w->norm = 0.0;
    w->clip_factor = 1.0;
}

accrue_status accrue_window_create(accrue_window **out, const accrue_window_options *opt,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_window *w = NULL;

    *out = NULL;
    if (opt->struct_size < sizeof opt->struct_size || opt->struct_size > sizeof *opt) {
        st = acr_fail(
            err, ACCRUE_EINVAL,
            "struct_size: %zu, at most %zu expected, as accrue_window_options_init sets it",
            opt->struct_size, sizeof *opt);
        goto cleanup;
    }
    w = acr_calloc(1, sizeof *w);
    if (!w) {
        st = acr_enomem(err, sizeof *w, "the window");
        goto cleanup;
    }
    /* An older caller's struct is shorter: what it does not know keeps its default. */
    accrue_window_options_init(&w->opt, sizeof w->opt);
    memcpy(&w->opt, opt, opt->struct_size);
    ACR_TRY(acr_window_options_check(&w->opt, err));
    open_window(w);
    *out = w;
    w = NULL;

cleanup:
    accrue_window_free(w);
    return st;
}

static void param_free(acr_window_param *p)
{
    acr_free(p->name);
    acr_free(p->cut);
    if (p->owns_accumulator)
        acr_free(p->accumulator);
    acr_free(p->moment[0]);
    acr_free(p->moment[1]);
}

void accrue_window_free(accrue_window *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_params; i++)
        param_free(&w->params[i]);
    acr_free(w->params);
    acr_free(w->blocks);
    acr_optim_free(w->optim);
    acr_free(w);
}

/* Parameters ------------------------------------------------------------------------------ */

static accrue_status check_param(const accrue_window *w, const char *name, const void *param,
                                 int64_t rows, int64_t cols, accrue_error *err)
{
    if (!name || !*name)
        return acr_fail(err, ACCRUE_EINVAL, "name: empty, the parameter's name expected");
    if (w->blocks)
        return acr_fail(err, ACCRUE_ESTATE, "%s: registered after micro-batch %lld began", name,
                        (long long)w->micro_batches + 1);
    for (int i = 0; i < w->n_params; i++)
        if (!strcmp(w->params[i].name, name))
            return acr_fail(err, ACCRUE_EINVAL, "%s: registered twice, as parameters %d and %d",
                            name, i + 1, w->n_params + 1);
    if (!param)
        return acr_fail(err, ACCRUE_EINVAL, "%s: param is NULL", name);
    if (rows < 1 || cols < 1 || rows > INT64_MAX / (int64_t)sizeof(double) / cols)
        return acr_fail(err, ACCRUE_EINVAL, "%s: shape [%lld, %lld], positive sides expected", name,
                        (long long)rows, (long long)cols);
    return ACCRUE_OK;
}

static accrue_status grow(accrue_window *w, accrue_error *err)
{
    int capacity = w->capacity ? 2 * w->capacity : 16;
    acr_window_param *bigger = NULL;

    if (w->n_params < w->capacity)
        return ACCRUE_OK;
    bigger = acr_realloc(w->params, (size_t)capacity * sizeof *bigger);
    if (!bigger)
        return acr_enomem(err, (size_t)capacity * sizeof *bigger, "the list of parameters");
    w->params = bigger;
    w->capacity = capacity;
    return ACCRUE_OK;
}

/* Takes `p` over with its borrowed arrays set; makes the rest. */
static accrue_status add(accrue_window *w, acr_window_param p, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t size = acr_dtype_bytes(p.dtype);
    size_t n = 0;

    ACR_TRY(check_param(w, name, p.param, p.rows, p.cols, err));
    if (!p.cut)
        p.n = p.rows * p.cols;
    n = (size_t)p.n;
    p.muon = w->opt.optimizer == ACCRUE_MUON && acr_muon_takes(name, p.rows, p.cols);
    ACR_TRY(grow(w, err));
    p.name = acr_strdup(name);
    if (p.owns_accumulator)
        p.accumulator = acr_calloc(n, size);
    p.moment[0] = acr_calloc(n, size);
    if (!p.muon)
        p.moment[1] = acr_calloc(n, size);
    if (!p.name || !p.accumulator || !p.moment[0] || (!p.muon && !p.moment[1])) {
        st = acr_enomem(err, n * size, name);
        goto cleanup;
    }
    w->params[w->n_params++] = p;
    memset(&p, 0, sizeof p);

cleanup:
    param_free(&p);
    return st;
}

static accrue_status refuse_mixture(const char *name, accrue_error *err)
{
    return acr_fail(err, ACCRUE_ESTATE,
                    "%s: a window's gradients are either handed over or accumulated by the caller",
                    name ? name : "");
}

accrue_status accrue_window_add_param(accrue_window *w, const char *name, accrue_dtype dtype,
                                      void *param, const void *grad, int64_t rows, int64_t cols,
                                      accrue_error *err)
{
    acr_window_param p = {.rows = rows, .cols = cols, .param = param, .grad = grad};

    if (w->planned)
        return refuse_mixture(name, err);
    if (dtype != ACCRUE_F32 && dtype != ACCRUE_F64)
        return acr_fail(err, ACCRUE_EINVAL,
                        "%s: dtype %d, ACCRUE_F32 (%d) or ACCRUE_F64 (%d) expected",
                        name ? name : "", (int)dtype, (int)ACCRUE_F32, (int)ACCRUE_F64);
    if (!grad)
        return acr_fail(err, ACCRUE_EINVAL, "%s: grad is NULL", name ? name : "");
    p.dtype = acr_real_of(dtype);
    p.owns_accumulator = true;
    return add(w, p, name, err);
}

accrue_status acr_window_add_accumulated(accrue_window *w, const char *name, acr_dtype dtype,
                                         void *param, void *accumulator, int64_t rows, int64_t cols,
                                         accrue_error *err)
{
    acr_window_param p = {
        .dtype = dtype, .rows = rows, .cols = cols, .param = param, .accumulator = accumulator};
    accrue_status st = ACCRUE_OK;

    if (!w->planned && w->n_params)
        return refuse_mixture(name, err);
    if (!accumulator)
        return acr_fail(err, ACCRUE_EINVAL, "%s: accumulator is NULL", name ? name : "");
    st = add(w, p, name, err);
    w->planned = w->planned || !st;
    return st;
}

void acr_window_set_comm(accrue_window *w, accrue_comm *comm)
{
    w->comm = comm;
}

accrue_status acr_window_add_shared(accrue_window *w, const char *name, acr_dtype dtype,
                                    const acr_share *own, int64_t rows, int64_t cols,
                                    const int64_t *cut, accrue_error *err)
{
    acr_window_param p = {.dtype = dtype,
                          .rows = rows,
                          .cols = cols,
                          .begin = own->begin,
                          .n = own->n,
                          .param = own->master,
                          .accumulator = own->accumulator};
    const size_t bytes = ((size_t)accrue_comm_size(w->comm) + 1) * sizeof *cut;
    accrue_status st = ACCRUE_OK;

    p.cut = acr_malloc(bytes);
    if (!p.cut)
        return acr_enomem(err, bytes, name);
    memcpy(p.cut, cut, bytes);
    st = add(w, p, name, err);
    w->planned = w->planned || !st;
    return st;
}

static accrue_status make_blocks(accrue_window *w, accrue_error *err)
{
    int64_t n = 0;

    for (int i = 0; i < w->n_params; i++) {
        acr_window_param *p = &w->params[i];
        p->first_block = n;
        p->n_blocks = (p->n + ACR_BLOCK - 1) / ACR_BLOCK;
        n += p->n_blocks;
    }
    w->blocks = acr_calloc((size_t)n + 1, sizeof *w->blocks); /* a rank's share may be nothing */
    if (!w->blocks)
        return acr_enomem(err, (size_t)n * sizeof *w->blocks, "the window's blocks");
    w->n_blocks = n;
    for (int i = 0; i < w->n_params; i++) {
        const acr_window_param *p = &w->params[i];
        acr_block *blocks = w->blocks + p->first_block;
        for (int64_t b = 0; b < p->n_blocks; b++) {
            int64_t begin = b * ACR_BLOCK, left = p->n - begin;
            blocks[b] = (acr_block){.param = p,
                                    .begin = begin,
                                    .bad = -1,
                                    .count = left < ACR_BLOCK ? left : ACR_BLOCK};
        }
    }
    return ACCRUE_OK;
}

/* Blocks and scratch, once; afterwards nothing is allocated. */
static accrue_status prepare(accrue_window *w, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (w->optim)
        return ACCRUE_OK;
    if (!w->n_params)
        return acr_fail(err, ACCRUE_ESTATE, "a micro-batch before the first parameter");
    if (!w->blocks)
        ACR_TRY(make_blocks(w, err));
    ACR_TRY(acr_optim_create(&w->optim, &w->opt, w->params, w->n_params, w->blocks, w->n_blocks,
                             w->comm, err));

cleanup:
    return st;
}

/* Micro-batches --------------------------------------------------------------------------- */

static void close_window(accrue_window *w)
{
    w->closed = true;
    if (!w->has_gradient)
        w->empty++;
}

static void count(accrue_window *w)
{
    w->zeroed = false;
    w->micro_batches++;
    w->filled++;
    if (w->filled == w->opt.gradient_accumulation_steps)
        close_window(w);
}

static accrue_status check_loss(const accrue_window *w, double loss, accrue_error *err)
{
    if (isfinite(loss))
        return ACCRUE_OK;
    return acr_fail(err, ACCRUE_ENUMERIC, "micro-batch %lld: the loss is %s",
                    (long long)w->micro_batches + 1, isnan(loss) ? "NaN" : "infinite");
}

/* Names the element that b->bad found. */
static accrue_status fail_nonfinite(const acr_block *b, const void *array, const char *what,
                                    int64_t micro_batch, accrue_error *err)
{
    const acr_window_param *p = b->param;
    const int64_t at = p->begin + b->bad;
    double value = p->dtype == ACR_DTYPE_F64 ? ((const double *)array)[b->bad]
                                             : (double)((const float *)array)[b->bad];

    return acr_fail(err, ACCRUE_ENUMERIC, "micro-batch %lld: %s of %s is %s at [%lld, %lld]",
                    (long long)micro_batch, what, p->name, isnan(value) ? "NaN" : "infinite",
                    (long long)(at / p->cols), (long long)(at % p->cols));
}

accrue_status accrue_window_backward(accrue_window *w, double loss, double weight,
                                     accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_block *bad = NULL;
    bool token = w->opt.loss_normalization == ACCRUE_NORMALIZE_TOKEN;

    if (w->planned)
        return acr_fail(err, ACCRUE_ESTATE,
                        "this window's gradients are accumulated by its caller");
    if (!(weight >= 0.0 && weight < HUGE_VAL)) {
        st = acr_fail(err, ACCRUE_EINVAL, "weight: %g, a finite number of at least 0 expected",
                      weight);
        goto cleanup;
    }
    ACR_TRY(check_loss(w, loss, err));
    ACR_TRY(prepare(w, err));
    bad = acr_optim_find_nonfinite(w->optim, false);
    if (bad) {
        st = fail_nonfinite(bad, bad->param->grad, "the gradient", w->micro_batches + 1, err);
        goto cleanup;
    }
    if (w->closed)
        open_window(w);
    if (weight > 0.0) {
        acr_optim_accumulate(w->optim, token ? 1.0 : weight, !w->has_gradient);
        w->has_gradient = true;
        w->weight_sum += weight;
        w->loss_sum += token ? loss : loss / weight;
    }
    count(w);

cleanup:
    return st;
}

void acr_window_begin(accrue_window *w)
{
    if (w->closed)
        open_window(w);
    if (!w->filled && !w->zeroed)
        acr_window_zero(w);
}

accrue_status acr_window_count(accrue_window *w, double loss, bool has_weight, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (!w->planned || w->closed || (!w->filled && !w->zeroed))
        return acr_fail(err, ACCRUE_ESTATE, "micro-batch %lld was counted but not begun",
                        (long long)w->micro_batches + 1);
    ACR_TRY(check_loss(w, loss, err));
    ACR_TRY(prepare(w, err));
    w->loss_sum += loss;
    w->has_gradient = w->has_gradient || has_weight;
    count(w);

cleanup:
    return st;
}

/* A planned accumulator is the caller's, known before the blocks are. */
static void zero_accumulators(accrue_window *w)
{
    if (!w->planned)
        return;
    if (w->optim) {
        acr_optim_zero(w->optim);
        return;
    }
    for (int i = 0; i < w->n_params; i++) {
        const acr_window_param *p = &w->params[i];
        memset(p->accumulator, 0, (size_t)p->n * acr_dtype_bytes(p->dtype));
    }
}

void acr_window_zero(accrue_window *w)
{
    open_window(w);
    zero_accumulators(w);
    w->zeroed = true;
}

bool acr_window_close_short(accrue_window *w)
{
    if (w->closed || !w->filled)
        return false;
    close_window(w);
    return true;
}

accrue_status acr_window_join(accrue_window *w, int64_t n, double loss, bool has_weight,
                              accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(prepare(w, err)); /* of a window in which this rank has no micro-batch */
    w->zeroed = false;
    w->loss_sum += loss;
    w->has_gradient = w->has_gradient || has_weight;
    w->micro_batches += n;
    w->filled += n;
    if (w->filled == w->opt.gradient_accumulation_steps)
        close_window(w);

cleanup:
    return st;
}

int64_t acr_window_filled(const accrue_window *w)
{
    return w->filled;
}

/* The boundary ---------------------------------------------------------------------------- */

/* What turns the accumulated sum into the window's gradient. */
static double normalisation(const accrue_window *w)
{
    if (w->planned)
        return 1.0;
    if (w->opt.loss_normalization == ACCRUE_NORMALIZE_TOKEN)
        return w->weight_sum > 0.0 ? 1.0 / w->weight_sum : 0.0;
    return w->filled ? 1.0 / (double)w->filled : 0.0;
}

/* Nothing that is not finite may reach the optimizer: sums can overflow where their terms did
 * not. */
static accrue_status know_norm(accrue_window *w, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_block *bad = NULL;
    double squares = 0.0;

    if (w->norm_known)
        return ACCRUE_OK;
    st = acr_optim_sum_squares(w->optim, &squares, err);
    if (st)
        return st;
    if (!isfinite(squares)) {
        bad = acr_optim_find_nonfinite(w->optim, true);
        if (bad)
            return fail_nonfinite(bad, bad->param->accumulator, "the window's gradient",
                                  w->micro_batches, err);
        return acr_fail(err, ACCRUE_ENUMERIC, "micro-batch %lld: the gradient's norm overflows",
                        (long long)w->micro_batches);
    }
    w->norm = sqrt(squares) * normalisation(w);
    w->norm_known = true;
    return ACCRUE_OK;
}

accrue_status accrue_window_clip(accrue_window *w, double *norm, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (norm)
        *norm = 0.0;
    if (!w->closed || !w->has_gradient || w->zeroed)
        goto cleanup;
    ACR_TRY(know_norm(w, err));
    if (w->opt.clip_norm > 0.0)
        w->clip_factor = fmin(1.0, w->opt.clip_norm / (w->norm + 1e-6));
    if (norm)
        *norm = w->norm;

cleanup:
    return st;
}

accrue_status accrue_window_step(accrue_window *w, bool *stepped, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_optim_args args = {0};

    if (stepped)
        *stepped = false;
    if (!w->closed || !w->has_gradient || w->zeroed || w->stepped)
        goto cleanup;
    ACR_TRY(know_norm(w, err));
    args.step = w->global_step + 1;
    args.lr = accrue_window_lr(w);
    args.muon_lr = accrue_window_muon_lr(w);
    args.factor = normalisation(w) * w->clip_factor;
    ACR_TRY(acr_optim_step(w->optim, &args, err));
    w->global_step++;
    w->stepped = true;
    if (stepped)
        *stepped = true;

cleanup:
    return st;
}

/* Once per window that had a gradient, before or after its step; not where the gradient was
 * dropped instead of used. */
void accrue_window_lr_step(accrue_window *w)
{
    if (!w->closed || !w->has_gradient || w->lr_stepped || (w->zeroed && !w->stepped))
        return;
    w->schedule_step++;
    w->lr_stepped = true;
}

void accrue_window_zero_grad(accrue_window *w)
{
    if (!w->closed || w->zeroed)
        return;
    zero_accumulators(w);
    w->zeroed = true;
}

/* Queries --------------------------------------------------------------------------------- */

bool acr_window_between(const accrue_window *w)
{
    if (!acr_window_filled(w))
        return true;
    return w->closed && (!w->has_gradient || (w->stepped && w->lr_stepped));
}

bool accrue_window_at_boundary(const accrue_window *w)
{
    return w->closed;
}

int64_t accrue_window_micro_batches(const accrue_window *w)
{
    return w->micro_batches;
}

int64_t accrue_window_global_step(const accrue_window *w)
{
    return w->global_step;
}

int64_t accrue_window_empty(const accrue_window *w)
{
    return w->empty;
}

static double factor(const accrue_window *w)
{
    return accrue_lr_factor(w->opt.scheduler, w->schedule_step, w->opt.warmup_steps,
                            w->opt.total_steps, w->opt.num_cosine_cycles);
}

double accrue_window_lr(const accrue_window *w)
{
    return w->opt.lr * factor(w);
}

double accrue_window_muon_lr(const accrue_window *w)
{
    return (isnan(w->opt.muon_lr) ? w->opt.lr : w->opt.muon_lr) * factor(w);
}

double accrue_window_loss(const accrue_window *w)
{
    return w->closed ? w->loss_sum * normalisation(w) : 0.0;
}

acr_window_counters acr_window_get_counters(const accrue_window *w)
{
    return (acr_window_counters){.micro_batches = w->micro_batches,
                                 .global_step = w->global_step,
                                 .schedule_step = w->schedule_step,
                                 .empty = w->empty};
}

void acr_window_set_counters(accrue_window *w, const acr_window_counters *counters)
{
    w->micro_batches = counters->micro_batches;
    w->global_step = counters->global_step;
    w->schedule_step = counters->schedule_step;
    w->empty = counters->empty;
}

int acr_window_n_states(const accrue_window *w)
{
    int n = 0;

    for (int i = 0; i < w->n_params; i++)
        n += w->params[i].muon ? 1 : 2;
    return n;
}

acr_optimizer_state acr_window_state(const accrue_window *w, int i)
{
    const acr_window_param *p = w->params;

    for (; i >= (p->muon ? 1 : 2); p++)
        i -= p->muon ? 1 : 2;
    return (acr_optimizer_state){
        .name = p->name,
        .moment = p->muon ? ACR_MOMENT_MOMENTUM
                  : i     ? ACR_MOMENT_EXP_AVG_SQ
                          : ACR_MOMENT_EXP_AVG,
        .dtype = p->dtype,
        .data = p->moment[i],
        .rows = p->rows,
        .cols = p->cols,
        .begin = p->begin,
        .n = p->n,
    };
}
