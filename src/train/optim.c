/* optim.c - the passes over parameters: accumulate, norm and AdamW; Muon is muon.c's.
 *
 * Every pass runs over the blocks of train.h in parallel; what is summed is summed per block and
 * then over the blocks in order, so that no result depends on the number of threads.  The factor
 * that normalises and clips the gradient is applied while a pass reads it, never stored. */
#include "train/optim_parts.h"

struct acr_optim {
    const accrue_window_options *opt;
    const acr_window_param *params;
    int n_params;
    acr_block *blocks;
    int64_t n_blocks, elements;
    accrue_comm *comm;  /* of shared parameters */
    double *sums;       /* of squares, of the blocks of all ranks: rank by rank */
    size_t *sums_begin; /* [ranks + 1] bytes */
    int64_t *next;      /* [ranks] */
    acr_muon *muon;     /* NULL: no parameter is Muon's */
};

static void over_blocks(acr_optim *o, acr_task task, void *ctx)
{
    spread(o->elements, o->n_blocks, task, ctx);
}

/* Accumulators ---------------------------------------------------------------------------- */

typedef struct pass {
    acr_optim *optim;
    double divisor;
    bool first, accumulators;
} pass;

static void accumulate_task(int64_t i, void *ctx)
{
    const pass *a = ctx;
    const acr_block *b = &a->optim->blocks[i];
    const acr_window_param *p = b->param;
    void *sum = at(p->accumulator, p->dtype, b->begin);
    const void *grad = at_const(p->grad, p->dtype, b->begin);

    if (p->dtype == ACR_DTYPE_F64)
        accumulate_f64(b->count, grad, a->divisor, a->first, sum);
    else
        accumulate_f32(b->count, grad, a->divisor, a->first, sum);
}

void acr_optim_accumulate(acr_optim *optim, double divisor, bool first)
{
    pass a = {.optim = optim, .divisor = divisor, .first = first};

    over_blocks(optim, accumulate_task, &a);
}

static void zero_task(int64_t i, void *ctx)
{
    const acr_block *b = &((pass *)ctx)->optim->blocks[i];
    const acr_window_param *p = b->param;

    memset(at(p->accumulator, p->dtype, b->begin), 0, (size_t)b->count * acr_dtype_bytes(p->dtype));
}

void acr_optim_zero(acr_optim *optim)
{
    pass a = {.optim = optim};

    over_blocks(optim, zero_task, &a);
}

static void find_task(int64_t i, void *ctx)
{
    const pass *a = ctx;
    acr_block *b = &a->optim->blocks[i];
    const acr_window_param *p = b->param;
    const void *data = a->accumulators ? p->accumulator : p->grad;
    int64_t bad = acr_find_nonfinite(p->dtype, at_const(data, p->dtype, b->begin), b->count);

    b->bad = bad < 0 ? -1 : b->begin + bad;
}

const acr_block *acr_optim_find_nonfinite(acr_optim *optim, bool accumulators)
{
    pass a = {.optim = optim, .accumulators = accumulators};

    over_blocks(optim, find_task, &a);
    for (int64_t i = 0; i < optim->n_blocks; i++)
        if (optim->blocks[i].bad >= 0)
            return &optim->blocks[i];
    return NULL;
}

static void squares_task(int64_t i, void *ctx)
{
    acr_block *b = &((pass *)ctx)->optim->blocks[i];
    const acr_window_param *p = b->param;
    const void *sum = at_const(p->accumulator, p->dtype, b->begin);

    b->sum =
        p->dtype == ACR_DTYPE_F64 ? sum_squares_f64(b->count, sum) : sum_squares_f32(b->count, sum);
}

/* Over the blocks of all ranks, in the order of one rank that has them all. */
static double sum_of_all(const acr_optim *o)
{
    const int ranks = accrue_comm_size(o->comm);
    double total = 0.0;

    for (int r = 0; r < ranks; r++)
        o->next[r] = (int64_t)(o->sums_begin[r] / sizeof *o->sums);
    for (int i = 0; i < o->n_params; i++)
        for (int r = 0; r < ranks; r++) {
            const int64_t *cut = o->params[i].cut + r;
            for (int64_t n = blocks_in(cut[1] - cut[0]); n > 0; n--)
                total += o->sums[o->next[r]++];
        }
    return total;
}

accrue_status acr_optim_sum_squares(acr_optim *o, double *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    pass a = {.optim = o};
    double *own = o->sums;

    *out = 0.0;
    over_blocks(o, squares_task, &a);
    for (int64_t i = 0; !o->sums && i < o->n_blocks; i++)
        *out += o->blocks[i].sum;
    if (!o->sums)
        return ACCRUE_OK;
    own += o->sums_begin[accrue_comm_rank(o->comm)] / sizeof *own;
    for (int64_t i = 0; i < o->n_blocks; i++)
        own[i] = o->blocks[i].sum;
    ACR_TRY(acr_comm_gather(o->comm, "the norm of the gradient", o->sums, o->sums_begin, err));
    *out = sum_of_all(o);

cleanup:
    return st;
}

/* AdamW ----------------------------------------------------------------------------------- */

typedef struct adamw_pass {
    acr_optim *optim;
    adamw_args args;
} adamw_pass;

static void adamw_task(int64_t i, void *ctx)
{
    const adamw_pass *a = ctx;
    const acr_block *b = &a->optim->blocks[i];
    const acr_window_param *p = b->param;
    const void *sum = at_const(p->accumulator, p->dtype, b->begin);
    void *param = at(p->param, p->dtype, b->begin);

    if (p->muon)
        return;
    if (p->dtype == ACR_DTYPE_F64)
        adamw_f64(b->count, &a->args, sum, param, at(p->moment[0], p->dtype, b->begin),
                  at(p->moment[1], p->dtype, b->begin));
    else
        adamw_f32(b->count, &a->args, sum, param, at(p->moment[0], p->dtype, b->begin),
                  at(p->moment[1], p->dtype, b->begin));
}

static void adamw_step(acr_optim *o, const acr_optim_args *args)
{
    const accrue_window_options *opt = o->opt;
    double step = (double)args->step;
    adamw_pass a = {.optim = o};

    a.args.factor = args->factor;
    a.args.keep = 1.0 - args->lr * opt->weight_decay;
    a.args.beta1 = opt->beta1;
    a.args.beta2 = opt->beta2;
    a.args.eps = opt->eps;
    a.args.root_bias2 = sqrt(1.0 - pow(opt->beta2, step));
    a.args.step_size = args->lr / (1.0 - pow(opt->beta1, step));
    over_blocks(o, adamw_task, &a);
}

/* Creation -------------------------------------------------------------------------------- */

/* Room for what ranks exchange about parameters that they share. */
static accrue_status share_create(acr_optim *o, accrue_comm *comm, accrue_error *err)
{
    const int ranks = accrue_comm_size(comm);
    const size_t n = (size_t)ranks + 1;
    size_t bytes = 0;

    if (!o->n_params || !o->params[0].cut)
        return ACCRUE_OK;
    o->comm = comm;
    o->sums_begin = acr_calloc(n, sizeof *o->sums_begin);
    o->next = acr_calloc(n, sizeof *o->next);
    if (!o->sums_begin || !o->next)
        return acr_enomem(err, n * sizeof *o->next, "the optimizer");
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < o->n_params; i++)
            bytes +=
                (size_t)blocks_in(o->params[i].cut[r + 1] - o->params[i].cut[r]) * sizeof *o->sums;
        o->sums_begin[r + 1] = bytes;
    }
    o->sums = acr_malloc(bytes);
    return o->sums ? ACCRUE_OK : acr_enomem(err, bytes, "the optimizer");
}

accrue_status acr_optim_create(acr_optim **out, const accrue_window_options *opt,
                               const acr_window_param *params, int n_params, acr_block *blocks,
                               int64_t n_blocks, accrue_comm *comm, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_optim *o = NULL;

    *out = NULL;
    o = acr_calloc(1, sizeof *o);
    if (!o) {
        st = acr_enomem(err, sizeof *o, "the optimizer");
        goto cleanup;
    }
    o->opt = opt;
    o->params = params;
    o->n_params = n_params;
    o->blocks = blocks;
    o->n_blocks = n_blocks;
    for (int i = 0; i < n_params; i++)
        o->elements += params[i].n;
    ACR_TRY(share_create(o, comm, err));
    ACR_TRY(acr_muon_create(&o->muon, opt, params, n_params, blocks, comm, err));
    *out = o;
    o = NULL;

cleanup:
    acr_optim_free(o);
    return st;
}

void acr_optim_free(acr_optim *o)
{
    if (!o)
        return;
    acr_free(o->sums);
    acr_free(o->sums_begin);
    acr_free(o->next);
    acr_muon_free(o->muon);
    acr_free(o);
}

accrue_status acr_optim_step(acr_optim *o, const acr_optim_args *args, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    adamw_step(o, args);
    if (o->muon)
        ACR_TRY(acr_muon_step(o->muon, args, err));

cleanup:
    return st;
}
