/* muon.c - Muon (Jordan et al. 2024): momentum, orthogonalised by Newton-Schulz, for matrices.
 *
 * Of several ranks each orthogonalises some of the matrices.  They go in rounds, in which each rank
 * has one of its own at most: momentum where the matrix is kept, to its owner, products there, and
 * back to where it is kept.  The owner computes what one rank alone would, so the bits are the
 * same. */
#include "train/optim_parts.h"

struct acr_muon {
    const accrue_window_options *opt;
    const acr_window_param *params;
    int n_params;
    acr_block *blocks;
    accrue_comm *comm;
    int rank, ranks;
    bool shared; /* each rank keeps a share of every matrix; else each keeps all of them */

    int *turns; /* [rounds, ranks] the parameter that a rank orthogonalises; -1: none */
    int rounds;

    /* Scratch of the largest matrix; short and long are its sides. */
    void *x;       /* [short, long] the iterate */
    void *product; /* [short, long] */
    void *gram;    /* [short, short] X X^T */
    void *update;  /* [short, short] b * gram + c * gram^2 */
    double *sums;  /* of squares, of a matrix's blocks */
    acr_gemm *gemm;

    char *kept;        /* this rank's shares of a round's matrices, one behind the other */
    const void **send; /* [ranks] each */
    void **recv;
    size_t *send_bytes, *recv_bytes, *begin /* [ranks + 1] */;
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

/* The width of the Newton-Schulz products for a parameter; bf16 values live in f32 arrays. */
static acr_dtype products_of(const acr_muon *o, const acr_window_param *p)
{
    return o->opt->muon_ns_dtype ? acr_real_of(o->opt->muon_ns_dtype) : p->dtype;
}

/* Muon ------------------------------------------------------------------------------------ */

/* One matrix's update; `rows` and `cols` are the iterate's, rows <= cols. */
typedef struct muon_pass {
    acr_muon *muon;
    const acr_window_param *param;
    acr_block *blocks; /* the parameter's */
    void *u;           /* of what this rank keeps of it; NULL: not wanted */
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

/* Momentum, and u. */
static void momentum_task(int64_t i, void *ctx)
{
    const muon_pass *a = ctx;
    const acr_block *b = &a->blocks[i];
    const acr_window_param *p = a->param;
    double u[CHUNK];
    const double factor = a->args->factor, momentum = a->muon->opt->muon_momentum;

    for (int64_t done = 0; done < b->count; done += CHUNK) {
        int64_t n = b->count - done < CHUNK ? b->count - done : CHUNK, begin = b->begin + done;
        const void *sum = at_const(p->accumulator, p->dtype, begin);
        void *buffer = at(p->moment[0], p->dtype, begin);
        void *out = a->u ? at(a->u, a->type, begin) : NULL;
        void *to = out && p->dtype == a->type ? out : (void *)u;
        if (p->dtype == ACR_DTYPE_F64)
            nesterov_f64(n, factor, momentum, sum, buffer, to);
        else
            nesterov_f32(n, factor, momentum, sum, buffer, to);
        if (!out)
            continue;
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
    const void *u = at(a->muon->product, a->type, begin);

    a->muon->sums[i] = a->type == ACR_DTYPE_F64 ? sum_squares_f64(n, u) : sum_squares_f32(n, u);
}

static void apply_task(int64_t i, void *ctx)
{
    const muon_pass *a = ctx;
    const acr_block *b = &a->blocks[i];
    const acr_window_param *p = a->param;
    double converted[CHUNK];

    for (int64_t done = 0; done < b->count; done += CHUNK) {
        int64_t n = b->count - done < CHUNK ? b->count - done : CHUNK, begin = b->begin + done;
        const void *u = at(a->x, a->type, begin);
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
    acr_gemm *gemm = a->muon->gemm;

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
    acr_muon *s = p->muon;
    const int64_t m = p->rows, k = p->cols;

    for (int step = 0; step < (p->preparing ? 1 : p->muon->opt->muon_ns_steps); step++) {
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

/* The Frobenius norm of u, whole in `product`. */
static double norm_of(muon_pass *a)
{
    const int64_t n = a->param->rows * a->param->cols;
    double sum = 0.0;

    spread(n, blocks_in(n), product_squares_task, a);
    for (int64_t i = 0; i < blocks_in(n); i++)
        sum += a->muon->sums[i];
    return a->bf16 ? (double)round_bf16((float)sqrt(sum)) : sqrt(sum);
}

/* u, whole in `product`, with all singular values near 1; in the parameter's layout. */
static void *orthogonalise(muon_pass *a)
{
    const acr_window_param *p = a->param;
    acr_muon *s = a->muon;
    const double norm = norm_of(a);
    void *x = NULL;

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
    spread(a->n, blocks_in(a->n), divide_task, a);
    swap_pairs(a, s->x);
    newton_schulz(a);
    swap_pairs(a, s->x);
    if (p->rows <= p->cols)
        return s->x;
    transpose(a, p->cols, p->rows, s->x, s->product);
    return s->product;
}

/* The update of what this rank keeps; `x` is the orthogonalised part of it. */
static void apply(muon_pass *a, void *x)
{
    const acr_window_param *p = a->param;
    const accrue_window_options *opt = a->muon->opt;
    double ratio = 0.0;

    if (opt->muon_adjust == ACCRUE_MUON_ORIGINAL)
        ratio = sqrt(fmax(1.0, (double)p->rows / (double)p->cols));
    else
        ratio = 0.2 * sqrt((double)(p->rows > p->cols ? p->rows : p->cols));
    a->x = x;
    a->s = 1.0 - a->args->muon_lr * opt->muon_weight_decay; /* the LR without the ratio */
    a->t = -(a->args->muon_lr * ratio);
    spread(p->n, p->n_blocks, apply_task, a);
}

static muon_pass pass_over(acr_muon *o, const acr_window_param *p)
{
    return (muon_pass){
        .muon = o,
        .param = p,
        .blocks = o->blocks + p->first_block,
        .type = products_of(o, p),
        .bf16 = o->opt->muon_ns_dtype == ACCRUE_BF16,
        .rows = p->rows < p->cols ? p->rows : p->cols,
        .cols = p->rows < p->cols ? p->cols : p->rows,
    };
}

/* Rounds ----------------------------------------------------------------------------------- */

/* The matrix of rank r in this round; NULL: none. */
static const acr_window_param *turn(const acr_muon *o, int round, int r)
{
    const int i = o->turns[round * o->ranks + r];

    return i < 0 ? NULL : &o->params[i];
}

static size_t kept_bytes(const acr_muon *o, const acr_window_param *p)
{
    return p && o->shared ? (size_t)p->n * acr_dtype_bytes(products_of(o, p)) : 0;
}

/* Momentum of the round's matrices; u where its owner, or the exchange with it, finds it. */
static void gather_momentum(acr_muon *o, int round, const acr_optim_args *args)
{
    char *kept = o->kept;

    for (int r = 0; r < o->ranks; r++) {
        const acr_window_param *p = turn(o, round, r);
        muon_pass a;
        if (!p)
            continue;
        a = pass_over(o, p);
        a.args = args;
        a.u = o->shared ? kept : r == o->rank ? o->product : NULL;
        spread(p->n, p->n_blocks, momentum_task, &a);
        kept += kept_bytes(o, p);
    }
}

/* Between the shares of the round's matrices and `whole`, the one that is this rank's: to it, or
 * back. */
static accrue_status exchange(acr_muon *o, int round, void *whole, bool back, accrue_error *err)
{
    const acr_window_param *own = turn(o, round, o->rank);
    const size_t width = own ? acr_dtype_bytes(products_of(o, own)) : 0;
    const acr_comm_label label = {ACR_COMM_WEIGHTS, "the matrices of Muon", NULL};
    acr_comm_request request;
    char *kept = o->kept;

    for (int r = 0; r < o->ranks; r++) {
        const size_t share = kept_bytes(o, turn(o, round, r));
        char *part = own ? (char *)whole + (size_t)own->cut[r] * width : o->kept;
        const size_t part_bytes = own ? (size_t)(own->cut[r + 1] - own->cut[r]) * width : 0;
        o->send[r] = back ? part : kept;
        o->send_bytes[r] = back ? part_bytes : share;
        o->recv[r] = back ? kept : part;
        o->recv_bytes[r] = back ? share : part_bytes;
        kept += share;
    }
    acr_comm_exchange_begin(o->comm, &request, label, o->send, o->send_bytes, o->recv,
                            o->recv_bytes);
    return acr_comm_wait(o->comm, &request, err);
}

static accrue_status apply_shares(acr_muon *o, int round, void *own, const acr_optim_args *args,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *kept = o->kept;

    ACR_TRY(exchange(o, round, own, true, err));
    for (int r = 0; r < o->ranks; r++) {
        const acr_window_param *p = turn(o, round, r);
        muon_pass a;
        if (!p)
            continue;
        a = pass_over(o, p);
        a.args = args;
        apply(&a, kept);
        kept += kept_bytes(o, p);
    }

cleanup:
    return st;
}

/* Each rank's matrix in turn, whole from its owner. */
static accrue_status apply_whole(acr_muon *o, int round, void *own, const acr_optim_args *args,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_comm_label label = {ACR_COMM_WEIGHTS, "a matrix of Muon", NULL};
    void *spare = own == o->x ? o->product : o->x;

    for (int r = 0; r < o->ranks; r++) {
        const acr_window_param *p = turn(o, round, r);
        acr_comm_request request;
        muon_pass a;
        if (!p)
            continue;
        a = pass_over(o, p);
        a.args = args;
        for (int i = 0; i <= o->ranks; i++)
            o->begin[i] = i > r ? (size_t)p->n * acr_dtype_bytes(a.type) : 0;
        acr_comm_gather_begin(o->comm, &request, label, r == o->rank ? own : spare, o->begin);
        ACR_TRY(acr_comm_wait(o->comm, &request, err));
        apply(&a, r == o->rank ? own : spare);
    }

cleanup:
    return st;
}

accrue_status acr_muon_step(acr_muon *o, const acr_optim_args *args, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int round = 0; round < o->rounds; round++) {
        const acr_window_param *own = turn(o, round, o->rank);
        void *x = NULL;
        gather_momentum(o, round, args);
        if (o->shared)
            ACR_TRY(exchange(o, round, o->product, false, err));
        if (own) {
            muon_pass a = pass_over(o, own);
            x = orthogonalise(&a);
        }
        if (o->shared)
            ACR_TRY(apply_shares(o, round, x, args, err));
        else
            ACR_TRY(apply_whole(o, round, x, args, err));
    }
    st = acr_gemm_status(o->gemm, err);

cleanup:
    return st;
}

/* Creation ---------------------------------------------------------------------------------- */

/* Makes whatever the products need, so that a failure comes before the first update. */
static accrue_status prepare(acr_muon *o, accrue_error *err)
{
    for (int round = 0; round < o->rounds; round++)
        if (turn(o, round, o->rank)) {
            muon_pass a = pass_over(o, turn(o, round, o->rank));
            a.preparing = true;
            newton_schulz(&a);
        }
    return acr_gemm_status(o->gemm, err);
}

static double cost(const acr_window_param *p)
{
    const double rows = (double)p->rows, cols = (double)p->cols;

    return rows * cols * fmin(rows, cols);
}

/* The dearest matrix that has no owner yet; -1: none. */
static int dearest(const acr_muon *o, const int *owner)
{
    int best = -1;

    for (int i = 0; i < o->n_params; i++)
        if (o->params[i].muon && owner[i] < 0 &&
            (best < 0 || cost(&o->params[i]) > cost(&o->params[best])))
            best = i;
    return best;
}

/* The dearest first, each to the rank that has least to do. */
static accrue_status assign(acr_muon *o, int n_matrices, accrue_error *err)
{
    const size_t ranks = (size_t)o->ranks, n = (size_t)o->n_params;
    int *owner = acr_malloc(n * sizeof *owner), *taken = acr_calloc(ranks, sizeof *taken);
    double *load = acr_calloc(ranks, sizeof *load);

    o->turns = acr_malloc((size_t)n_matrices * ranks * sizeof *o->turns);
    if (!owner || !taken || !load || !o->turns) {
        acr_free(owner);
        acr_free(taken);
        acr_free(load);
        return acr_enomem(err, (size_t)n_matrices * ranks * sizeof *o->turns, "Muon's turns");
    }
    for (size_t i = 0; i < n; i++)
        owner[i] = -1;
    for (size_t i = 0; i < (size_t)n_matrices * ranks; i++)
        o->turns[i] = -1;
    for (int i = dearest(o, owner); i >= 0; i = dearest(o, owner)) {
        int r = 0;
        for (int other = 1; other < o->ranks; other++)
            if (load[other] < load[r])
                r = other;
        owner[i] = r;
        load[r] += cost(&o->params[i]);
        o->turns[taken[r]++ * o->ranks + r] = i;
        o->rounds = taken[r] > o->rounds ? taken[r] : o->rounds;
    }
    acr_free(owner);
    acr_free(taken);
    acr_free(load);
    return ACCRUE_OK;
}

/* Of the round in which this rank's shares are largest. */
static size_t most_kept(const acr_muon *o)
{
    size_t most = 0;

    for (int round = 0; round < o->rounds; round++) {
        size_t bytes = 0;
        for (int r = 0; r < o->ranks; r++)
            bytes += kept_bytes(o, turn(o, round, r));
        most = bytes > most ? bytes : most;
    }
    return most;
}

static accrue_status reserve(acr_muon *o, accrue_error *err)
{
    const size_t ranks = (size_t)o->ranks;
    size_t whole = 0, square = 0;
    int64_t most = 0;

    for (int i = 0; i < o->n_params; i++) {
        const acr_window_param *p = &o->params[i];
        const size_t size = acr_dtype_bytes(products_of(o, p));
        const int64_t side = p->rows < p->cols ? p->rows : p->cols, n = p->rows * p->cols;
        if (!p->muon)
            continue;
        most = n > most ? n : most;
        whole = (size_t)n * size > whole ? (size_t)n * size : whole;
        square = (size_t)(side * side) * size > square ? (size_t)(side * side) * size : square;
    }
    o->x = acr_malloc(whole);
    o->product = acr_malloc(whole);
    o->gram = acr_malloc(square);
    o->update = acr_malloc(square);
    o->sums = acr_calloc((size_t)blocks_in(most), sizeof *o->sums);
    o->kept = acr_malloc(most_kept(o) + 1);
    o->send = acr_calloc(ranks, sizeof *o->send);
    o->recv = acr_calloc(ranks, sizeof *o->recv);
    o->send_bytes = acr_calloc(ranks, sizeof *o->send_bytes);
    o->recv_bytes = acr_calloc(ranks, sizeof *o->recv_bytes);
    o->begin = acr_calloc(ranks + 1, sizeof *o->begin);
    if (!o->x || !o->product || !o->gram || !o->update || !o->sums || !o->kept || !o->send ||
        !o->recv || !o->send_bytes || !o->recv_bytes || !o->begin)
        return acr_enomem(err, 2 * (whole + square), "Muon's matrices");
    return ACCRUE_OK;
}

accrue_status acr_muon_create(acr_muon **out, const accrue_window_options *opt,
                              const acr_window_param *params, int n_params, acr_block *blocks,
                              accrue_comm *comm, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_muon *o = NULL;
    int n = 0;

    *out = NULL;
    for (int i = 0; i < n_params; i++)
        n += params[i].muon;
    if (!n)
        return ACCRUE_OK;
    o = acr_calloc(1, sizeof *o);
    if (!o)
        return acr_enomem(err, sizeof *o, "Muon");
    o->opt = opt;
    o->params = params;
    o->n_params = n_params;
    o->blocks = blocks;
    o->comm = comm;
    o->rank = accrue_comm_rank(comm);
    o->ranks = accrue_comm_size(comm);
    o->shared = params[0].cut;
    ACR_TRY(assign(o, n, err));
    ACR_TRY(reserve(o, err));
    ACR_TRY(acr_gemm_create(&o->gemm, err));
    ACR_TRY(prepare(o, err));
    *out = o;
    o = NULL;

cleanup:
    acr_muon_free(o);
    return st;
}

void acr_muon_free(acr_muon *o)
{
    if (!o)
        return;
    acr_free(o->turns);
    acr_free(o->x);
    acr_free(o->product);
    acr_free(o->gram);
    acr_free(o->update);
    acr_free(o->sums);
    acr_free(o->kept);
    acr_free(o->send);
    acr_free(o->recv);
    acr_free(o->send_bytes);
    acr_free(o->recv_bytes);
    acr_free(o->begin);
    acr_gemm_free(o->gemm);
    acr_free(o);
}
