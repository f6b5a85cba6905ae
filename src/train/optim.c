/* optim.c - the passes over parameters: accumulate, norm, AdamW and Muon.
 *
 * Every pass runs over the blocks of train.h in parallel; what is summed is summed per block and
 * then over the blocks in order, so that no result depends on the number of threads.  The factor
 * that normalises and clips the gradient is applied while a pass reads it, never stored. */
#include "train/train.h"

#include <math.h>
#include <string.h>

typedef struct adamw_args {
    double factor, keep, beta1, beta2, eps;
    double root_bias2; /* sqrt(1 - beta2^step) */
    double step_size;  /* lr / (1 - beta1^step) */
} adamw_args;

enum { LANES = 32 }; /* of a sum of squares; hides the latency of an addition */

/* Round to nearest even on the upper 16 bits; finite input. */
static inline float round_bf16(float x)
{
    uint32_t bits = 0;

    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#ifdef FP_FAST_FMAF
#define MULTIPLY_ADD(a, b, c) fmaf(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif
#define REAL    float
#define NAME(x) x##_f32
#define SQRT    sqrtf
#include "train/optim_width.h"
#undef REAL
#undef NAME
#undef SQRT
#undef MULTIPLY_ADD

#ifdef FP_FAST_FMA
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif
#define REAL    double
#define NAME(x) x##_f64
#define SQRT    sqrt
#include "train/optim_width.h"
#undef REAL
#undef NAME
#undef SQRT
#undef MULTIPLY_ADD

/* Scratch of the largest matrix that Muon takes; short and long are its sides. */
typedef struct muon_scratch {
    void *x;       /* [short, long] the iterate */
    void *product; /* [short, long] */
    void *gram;    /* [short, short] X X^T */
    void *update;  /* [short, short] b * gram + c * gram^2 */
    double *sums;  /* of squares, of a matrix's blocks */
    acr_gemm *gemm;
} muon_scratch;

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
    size_t *bytes;      /* [ranks + 1] of a matrix */
    muon_scratch muon;
};

bool acr_muon_takes(const char *name, int64_t rows, int64_t cols)
{
    static const char *const other[] = {"embed_tokens", "lm_head", "codebook", "markov_w1",
                                        "markov_w2"};

    for (int i = 0; i < ACR_COUNT(other); i++)
        if (strstr(name, other[i]))
            return false;
    return rows > 1 && cols > 1;
}

/* Element `i` of an array of that type. */
static void *at(void *array, acr_dtype t, int64_t i)
{
    return (char *)array + (size_t)i * acr_dtype_bytes(t);
}

static const void *at_const(const void *array, acr_dtype t, int64_t i)
{
    return (const char *)array + (size_t)i * acr_dtype_bytes(t);
}

/* The width of the Newton-Schulz products for a parameter; bf16 values live in f32 arrays. */
static acr_dtype products_of(const acr_optim *o, const acr_window_param *p)
{
    return o->opt->muon_ns_dtype ? acr_real_of(o->opt->muon_ns_dtype) : p->dtype;
}

/* Runs task(i) for i in [0, n), on this thread where there is too little to do: waking the pool for
 * a few kilobytes costs more than they do, and much more on a machine that is busy. */
static void spread(int64_t elements, int64_t n, acr_task task, void *ctx)
{
    if (elements > 2 * ACR_BLOCK)
        acr_parallel(n, task, ctx);
    else
        for (int64_t i = 0; i < n; i++)
            task(i, ctx);
}

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

static int64_t blocks_in(int64_t elements)
{
    return (elements + ACR_BLOCK - 1) / ACR_BLOCK;
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

/* Muon ------------------------------------------------------------------------------------ */

/* One matrix's update; `rows` and `cols` are the iterate's, rows <= cols. */
typedef struct muon_pass {
    acr_optim *optim;
    const acr_window_param *param;
    acr_block *blocks; /* the parameter's */
    acr_dtype type;    /* of the arrays that the products run on: F32 or F64 */
    bool bf16;         /* their values are rounded to bf16 */
    int64_t rows, cols;
    const acr_optim_args *args;
    bool preparing;

    double s, t; /* operands of the task that runs */
    int64_t n;
    void *x, *y;
    int64_t m, k, panel;
} muon_pass;

enum {
    CHUNK = 512,     /* elements converted at a time, on the stack */
    ROW_GROUP = 16,  /* rows of a transpose or mirror done together: a cache line of f32 */
    PANELS = 4,      /* of a symmetric product */
    MIN_PANEL = 128, /* rows; below, a product's fixed cost is more than it saves */
    PANEL_UNIT = 64  /* rows; a multiple of the tiles that products are cut into */
};

/* Momentum, and u into its place in `product`. */
static void momentum_task(int64_t i, void *ctx)
{
    const muon_pass *a = ctx;
    const acr_block *b = &a->blocks[i];
    const acr_window_param *p = a->param;
    double u[CHUNK];
    const double factor = a->args->factor, momentum = a->optim->opt->muon_momentum;

    for (int64_t done = 0; done < b->count; done += CHUNK) {
        int64_t n = b->count - done < CHUNK ? b->count - done : CHUNK, begin = b->begin + done;
        const void *sum = at_const(p->accumulator, p->dtype, begin);
        void *buffer = at(p->moment[0], p->dtype, begin);
        void *out = at(a->optim->muon.product, a->type, p->begin + begin);
        void *to = p->dtype == a->type ? out : (void *)u;
        if (p->dtype == ACR_DTYPE_F64)
            nesterov_f64(n, factor, momentum, sum, buffer, to);
        else
            nesterov_f32(n, factor, momentum, sum, buffer, to);
        if (to != out)
            acr_convert(a->type, out, p->dtype, u, n);
        if (a->bf16)
            for (int64_t j = 0; j < n; j++)
                ((float *)out)[j] = round_bf16(((float *)out)[j]);
    }
}

static void product_squares_task(int64_t i, void *ctx)
{
    const muon_pass *a = ctx;
    const acr_window_param *p = a->param;
    int64_t begin = i * ACR_BLOCK, left = p->rows * p->cols - begin;
    int64_t n = left < ACR_BLOCK ? left : ACR_BLOCK;
    const void *u = at(a->optim->muon.product, a->type, begin);

    a->optim->muon.sums[i] =
        a->type == ACR_DTYPE_F64 ? sum_squares_f64(n, u) : sum_squares_f32(n, u);
}

static void apply_task(int64_t i, void *ctx)
{
    const muon_pass *a = ctx;
    const acr_block *b = &a->blocks[i];
    const acr_window_param *p = a->param;
    double converted[CHUNK];

    for (int64_t done = 0; done < b->count; done += CHUNK) {
        int64_t n = b->count - done < CHUNK ? b->count - done : CHUNK, begin = b->begin + done;
        const void *u = at(a->x, a->type, p->begin + begin);
        void *param = at(p->param, p->dtype, begin);
        if (p->dtype != a->type) {
            acr_convert(p->dtype, converted, a->type, u, n);
            u = converted;
        }
        if (p->dtype == ACR_DTYPE_F64)
            decay_and_add_f64(n, a->s, a->t, u, param);
        else
            decay_and_add_f32(n, a->s, a->t, u, param);
    }
}

static void divide_task(int64_t i, void *ctx)
{
    const muon_pass *a = ctx;
    int64_t begin = i * ACR_BLOCK, n = a->n - begin < ACR_BLOCK ? a->n - begin : ACR_BLOCK;

    if (a->type == ACR_DTYPE_F64)
        divide_f64(n, a->bf16, a->s, at(a->x, a->type, begin));
    else
        divide_f32(n, a->bf16, a->s, at(a->x, a->type, begin));
}

static void combine_task(int64_t i, void *ctx)
{
    const muon_pass *a = ctx;
    int64_t begin = i * ACR_BLOCK, n = a->n - begin < ACR_BLOCK ? a->n - begin : ACR_BLOCK;

    if (a->type == ACR_DTYPE_F64)
        combine_f64(n, a->bf16, a->s, at(a->x, a->type, begin), a->t, at(a->y, a->type, begin));
    else
        combine_f32(n, a->bf16, a->s, at(a->x, a->type, begin), a->t, at(a->y, a->type, begin));
}

/* y = s * x + t * y over n elements. */
static void combine(muon_pass *a, int64_t n, double s, void *x, double t, void *y)
{
    if (a->preparing)
        return;
    a->n = n;
    a->s = s;
    a->t = t;
    a->x = x;
    a->y = y;
    spread(n, (n + ACR_BLOCK - 1) / ACR_BLOCK, combine_task, a);
}

static void transpose_task(int64_t i, void *ctx)
{
    const muon_pass *a = ctx;
    int64_t begin = i * ROW_GROUP, end = begin + ROW_GROUP < a->k ? begin + ROW_GROUP : a->k;

    if (a->type == ACR_DTYPE_F64)
        transpose_f64(begin, end, a->m, a->k, a->x, a->y);
    else
        transpose_f32(begin, end, a->m, a->k, a->x, a->y);
}

/* out [cols, rows] = in [rows, cols]. */
static void transpose(muon_pass *a, int64_t rows, int64_t cols, void *in, void *out)
{
    a->m = rows;
    a->k = cols;
    a->x = in;
    a->y = out;
    spread(rows * cols, (cols + ROW_GROUP - 1) / ROW_GROUP, transpose_task, a);
}

/* While preparing, every product only has its primitives made. */
static void product(const muon_pass *a, const acr_gemm_args *args)
{
    acr_gemm *gemm = a->optim->muon.gemm;

    if (!a->preparing)
        acr_backend_for(a->type)->gemm(gemm, args);
    else if (a->type == ACR_DTYPE_F32)
        acr_gemm_prepare(gemm, args);
}

static void mirror_task(int64_t i, void *ctx)
{
    const muon_pass *a = ctx;
    int64_t begin = i * ROW_GROUP, end = begin + ROW_GROUP < a->m ? begin + ROW_GROUP : a->m;
    int64_t panel_begin = begin / a->panel * a->panel;

    if (a->type == ACR_DTYPE_F64)
        mirror_f64(begin, end, panel_begin, a->m, a->y);
    else
        mirror_f32(begin, end, panel_begin, a->m, a->y);
}

/* out [m, m] = x x^T for x [m, k]: panels of the upper triangle, the rest mirrored. */
static void symmetric_product(muon_pass *a, int64_t m, int64_t k, void *x, void *out)
{
    int64_t panel = (m + PANELS - 1) / PANELS;

    panel = panel < MIN_PANEL ? MIN_PANEL : (panel + PANEL_UNIT - 1) / PANEL_UNIT * PANEL_UNIT;
    for (int64_t begin = 0; begin < m; begin += panel) {
        acr_gemm_args args = {.layout = ACR_GEMM_NT,
                              .bf16 = a->bf16,
                              .m = m - begin < panel ? m - begin : panel,
                              .n = m - begin,
                              .k = k,
                              .a = at(x, a->type, begin * k),
                              .lda = k,
                              .b = at(x, a->type, begin * k),
                              .ldb = k,
                              .c = at(out, a->type, begin * m + begin),
                              .ldc = m};
        product(a, &args);
    }
    if (a->preparing)
        return;
    a->m = m;
    a->panel = panel;
    a->y = out;
    spread(m * m, (m + ROW_GROUP - 1) / ROW_GROUP, mirror_task, a);
}

typedef struct swap_pass {
    float *x;
    int64_t rows, cols;
} swap_pass;

static void swap(float *a, float *b)
{
    float t = *a;

    *a = *b;
    *b = t;
}

static void swap_task(int64_t pair, void *ctx)
{
    const swap_pass *s = ctx;
    float *a = s->x + 2 * pair * s->cols;
    float *b = 2 * pair + 1 < s->rows ? a + s->cols : a;
    int64_t c = 0;

    for (; c + 1 < s->cols; c += 2) {
        swap(&a[c], &b[c + 1]);
        if (b > a)
            swap(&a[c + 1], &b[c]);
    }
    if (c < s->cols && b > a)
        swap(&a[c], &b[c]);
}

/* Swaps the two rows of each pair and the two columns of each pair.  Processors that multiply bf16
 * add the products of a pair of elements in turn, the second one first (VDPBF16PS), and torch's
 * bits are theirs.  On X with pairs swapped all of the iteration's sums, taken in plain order, run
 * that way; swapping again brings X back. */
static void swap_pairs(const muon_pass *a, void *x)
{
    swap_pass s = {.x = x, .rows = a->rows, .cols = a->cols};

    if (a->bf16)
        spread(a->rows * a->cols, (a->rows + 1) / 2, swap_task, &s);
}

/* X <- a X + (b A + c A^2) X with A = X X^T, muon_ns_steps times; drives the singular values of X
 * towards 1 (Jordan et al. 2024; the coefficients are theirs). */
static void newton_schulz(muon_pass *p)
{
    const double a = 3.4445, b = -4.775, c = 2.0315;
    muon_scratch *s = &p->optim->muon;
    const int64_t m = p->rows, k = p->cols;

    for (int step = 0; step < (p->preparing ? 1 : p->optim->opt->muon_ns_steps); step++) {
        acr_gemm_args args = {.layout = ACR_GEMM_NN,
                              .bf16 = p->bf16,
                              .m = m,
                              .n = k,
                              .k = m,
                              .lda = m,
                              .ldb = k,
                              .ldc = k};
        void *x = s->x;
        symmetric_product(p, m, k, s->x, s->gram);
        if (p->bf16)
            combine(p, m * m, 0.0, s->gram, 1.0, s->gram);
        symmetric_product(p, m, m, s->gram, s->update);
        combine(p, m * m, b, s->gram, c, s->update);
        args.a = s->update;
        args.b = s->x;
        args.c = s->product;
        product(p, &args);
        combine(p, m * k, a, s->x, 1.0, s->product);
        s->x = s->product;
        s->product = x;
    }
}

/* u whole in `product`; *norm is its Frobenius norm. */
static accrue_status momentum(muon_pass *a, double *norm, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_window_param *p = a->param;
    const acr_optim *o = a->optim;
    const int64_t n = p->rows * p->cols;
    double sum = 0.0;

    spread(p->n, p->n_blocks, momentum_task, a);
    for (int r = 0; p->cut && r <= accrue_comm_size(o->comm); r++)
        o->bytes[r] = (size_t)p->cut[r] * acr_dtype_bytes(a->type);
    if (p->cut)
        ACR_TRY(
            acr_comm_gather(o->comm, "the momentum of a matrix", o->muon.product, o->bytes, err));
    spread(n, blocks_in(n), product_squares_task, a);
    for (int64_t i = 0; i < blocks_in(n); i++)
        sum += o->muon.sums[i];
    *norm = a->bf16 ? (double)round_bf16((float)sqrt(sum)) : sqrt(sum);

cleanup:
    return st;
}

static accrue_status muon_update(muon_pass *a, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_window_param *p = a->param;
    const accrue_window_options *opt = a->optim->opt;
    muon_scratch *s = &a->optim->muon;
    double norm = 0.0, ratio = 0.0;
    void *x = NULL;

    ACR_TRY(momentum(a, &norm, err));
    if (p->rows > p->cols) {
        transpose(a, p->rows, p->cols, s->product, s->x);
    } else {
        x = s->x;
        s->x = s->product;
        s->product = x;
    }
    a->n = p->rows * p->cols;
    a->s = norm > 1e-7 ? norm : 1e-7; /* a gradient of zeros stays one */
    a->x = s->x;
    spread(a->n, (a->n + ACR_BLOCK - 1) / ACR_BLOCK, divide_task, a);
    swap_pairs(a, s->x);
    newton_schulz(a);
    swap_pairs(a, s->x);
    if (p->rows > p->cols) {
        transpose(a, p->cols, p->rows, s->x, s->product);
        x = s->product;
    } else {
        x = s->x;
    }
    if (opt->muon_adjust == ACCRUE_MUON_ORIGINAL)
        ratio = sqrt(fmax(1.0, (double)p->rows / (double)p->cols));
    else
        ratio = 0.2 * sqrt((double)(p->rows > p->cols ? p->rows : p->cols));
    a->x = x;
    a->s = 1.0 - a->args->muon_lr * opt->muon_weight_decay; /* the LR without the ratio */
    a->t = -(a->args->muon_lr * ratio);
    spread(p->n, p->n_blocks, apply_task, a);

cleanup:
    return st;
}

static muon_pass pass_over(acr_optim *o, const acr_window_param *p)
{
    return (muon_pass){
        .optim = o,
        .param = p,
        .blocks = o->blocks + p->first_block,
        .type = products_of(o, p),
        .bf16 = o->opt->muon_ns_dtype == ACCRUE_BF16,
        .rows = p->rows < p->cols ? p->rows : p->cols,
        .cols = p->rows < p->cols ? p->cols : p->rows,
    };
}

static accrue_status muon_step(acr_optim *o, const acr_optim_args *args, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < o->n_params; i++) {
        muon_pass a = pass_over(o, &o->params[i]);
        a.args = args;
        if (o->params[i].muon)
            ACR_TRY(muon_update(&a, err));
    }

cleanup:
    return st;
}

/* Makes whatever the products need, so that a failure comes before the first update. */
static accrue_status muon_prepare(acr_optim *o, accrue_error *err)
{
    for (int i = 0; i < o->n_params; i++)
        if (o->params[i].muon) {
            muon_pass a = pass_over(o, &o->params[i]);
            a.preparing = true;
            newton_schulz(&a);
        }
    return acr_gemm_status(o->muon.gemm, err);
}

/* Creation -------------------------------------------------------------------------------- */

static accrue_status scratch_create(acr_optim *o, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t whole = 0, square = 0;
    int64_t most = 0;

    for (int i = 0; i < o->n_params; i++) {
        const acr_window_param *p = &o->params[i];
        size_t size = acr_dtype_bytes(products_of(o, p));
        int64_t side = p->rows < p->cols ? p->rows : p->cols;
        if (!p->muon)
            continue;
        if (p->rows * p->cols > most)
            most = p->rows * p->cols;
        if ((size_t)(p->rows * p->cols) * size > whole)
            whole = (size_t)(p->rows * p->cols) * size;
        if ((size_t)(side * side) * size > square)
            square = (size_t)(side * side) * size;
    }
    if (!whole)
        goto cleanup;
    o->muon.x = acr_malloc(whole);
    o->muon.product = acr_malloc(whole);
    o->muon.gram = acr_malloc(square);
    o->muon.update = acr_malloc(square);
    o->muon.sums = acr_calloc((size_t)blocks_in(most), sizeof *o->muon.sums);
    if (!o->muon.sums || !o->muon.x || !o->muon.product || !o->muon.gram || !o->muon.update) {
        st = acr_enomem(err, 2 * (whole + square), "Muon's matrices");
        goto cleanup;
    }
    ACR_TRY(acr_gemm_create(&o->muon.gemm, err));
    ACR_TRY(muon_prepare(o, err));

cleanup:
    return st;
}

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
    o->bytes = acr_calloc(n, sizeof *o->bytes);
    if (!o->sums_begin || !o->next || !o->bytes)
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
    ACR_TRY(scratch_create(o, err));
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
    acr_free(o->bytes);
    acr_free(o->muon.sums);
    acr_free(o->muon.x);
    acr_free(o->muon.product);
    acr_free(o->muon.gram);
    acr_free(o->muon.update);
    acr_gemm_free(o->muon.gemm);
    acr_free(o);
}

accrue_status acr_optim_step(acr_optim *o, const acr_optim_args *args, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    adamw_step(o, args);
    if (!o->muon.gemm)
        return ACCRUE_OK;
    ACR_TRY(muon_step(o, args, err));
    st = acr_gemm_status(o->muon.gemm, err);

cleanup:
    return st;
}
