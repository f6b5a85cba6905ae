/* ops.c - the operators: for each, the shape check that pushes it, its forward, its backward.
 *
 * A backward adds to the gradients of the inputs that need one and to the accumulators of its
 * parameters; the kernels hold the formulas where they are not stated here.  The distillation loss
 * has a file of its own, op_loss.c. */
#include "tape/tape.h"

#include <string.h>

static bool failed(const acr_tape *t, int n, acr_value *const *in)
{
    if (t->status)
        return true;
    for (int i = 0; i < n; i++)
        if (!in[i])
            return true;
    return false;
}

static acr_value *shape_error(acr_tape *t, const char *op, const char *what, int64_t got,
                              int64_t expected)
{
    acr_tape_fail(t, ACCRUE_EMISMATCH, "%s: %s is %lld, %lld expected", op, what, (long long)got,
                  (long long)expected);
    return NULL;
}

/* For kernels that write several gradients side by side. */
static bool distinct(acr_tape *t, const char *op, int n, acr_value *const *in)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (in[i] == in[j]) {
                acr_tape_fail(t, ACCRUE_EINVAL,
                              "%s: input %d is input %d, distinct values expected", op, i, j);
                return false;
            }
    return true;
}

/* linear ------------------------------------------------------------------------------------
 * y = x W^T + b:  dx += dy W;  dW += dy^T x;  db += sum of the rows of dy. */

typedef struct linear_args {
    int64_t column; /* first column of the weight that takes part */
} linear_args;

static void linear_forward(acr_tape *t, acr_record *r)
{
    const linear_args *a = r->args;
    const acr_param *w = r->param[0];
    acr_gemm_args g = {.layout = ACR_GEMM_NT, .bf16 = t->bf16};

    g.m = r->in[0]->rows;
    g.n = w->rows;
    g.k = r->in[0]->cols;
    g.a = r->in[0]->data;
    g.lda = g.k;
    g.b = acr_param_operand(t, w, &g.b_is_bf16);
    g.b = (const char *)g.b + (size_t)a->column * (g.b_is_bf16 ? 2 : t->backend->real_bytes);
    g.ldb = w->cols;
    g.c = r->out->data;
    g.ldc = g.n;
    acr_tape_gemm(t, &g);
    if (r->param[1] && !t->arena.measuring)
        t->backend->bias_forward(g.m, g.n, r->param[1]->master, g.c, g.ldc);
}

static void linear_backward(acr_tape *t, acr_record *r)
{
    const linear_args *a = r->args;
    const acr_param *w = r->param[0];
    acr_value *x = r->in[0];
    acr_gemm_args g = {.bf16 = t->bf16};
    void *dx = NULL;

    if (x->needs_grad)
        dx = acr_grad_first(t, x, &g.accumulate);
    if (t->status)
        return;
    if (dx) {
        g.layout = ACR_GEMM_NN;
        g.m = x->rows;
        g.n = x->cols;
        g.k = w->rows;
        g.a = r->out->grad;
        g.lda = w->rows;
        g.b = acr_param_operand(t, w, &g.b_is_bf16);
        g.b = (const char *)g.b + (size_t)a->column * (g.b_is_bf16 ? 2 : t->backend->real_bytes);
        g.ldb = w->cols;
        g.c = dx;
        g.ldc = x->cols;
        acr_tape_gemm(t, &g);
    }
    if (w->grad) {
        g.layout = ACR_GEMM_TN;
        g.accumulate = true;
        g.m = w->rows;
        g.n = x->cols;
        g.k = x->rows;
        g.a = r->out->grad;
        g.lda = w->rows;
        g.b = x->data;
        g.b_is_bf16 = false;
        g.ldb = x->cols;
        g.c = (char *)w->grad + (size_t)a->column * t->backend->real_bytes;
        g.ldc = w->cols;
        acr_tape_gemm(t, &g);
    }
    if (r->param[1] && r->param[1]->grad && !t->arena.measuring)
        t->backend->bias_backward(x->rows, w->rows, r->out->grad, w->rows, r->param[1]->grad);
}

static const acr_op op_linear = {"linear", linear_forward, linear_backward};

acr_value *acr_linear(acr_tape *t, acr_value *x, acr_param *w, int64_t column, acr_param *bias)
{
    linear_args *a = NULL;
    acr_value *y = NULL;

    if (failed(t, 1, &x))
        return NULL;
    if (column < 0 || column + x->cols > w->cols)
        return shape_error(t, w->name, "end of the input's columns", column + x->cols, w->cols);
    if (bias && bias->rows != w->rows)
        return shape_error(t, bias->name, "length", bias->rows, w->rows);
    a = acr_tape_meta(t, 1, sizeof *a);
    y = acr_value_new(t, x->rows, w->rows,
                      x->needs_grad || w->trainable || (bias && bias->trainable));
    if (!a || !y)
        return NULL;
    a->column = column;
    return acr_tape_push(t, &op_linear, 1, &x, y, w, bias, a) ? y : NULL;
}

/* embed ------------------------------------------------------------------------------------ */

static void embed_forward(acr_tape *t, acr_record *r)
{
    const acr_param *p = r->param[0];

    if (!t->arena.measuring)
        t->backend->embed_forward(r->out->rows, p->cols, r->args,
                                  p->master ? t->backend->real : p->frozen_type,
                                  p->master ? p->master : p->frozen, r->out->data);
}

static void embed_backward(acr_tape *t, acr_record *r)
{
    if (!t->arena.measuring && r->param[0]->grad)
        t->backend->embed_backward(r->out->rows, r->out->cols, r->args, r->out->grad,
                                   r->param[0]->grad);
}

static const acr_op op_embed = {"embed", embed_forward, embed_backward};

acr_value *acr_embed(acr_tape *t, int64_t n, const int64_t *ids, acr_param *table)
{
    acr_value *y = NULL;

    if (t->status)
        return NULL;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= table->rows) {
            acr_tape_fail(t, ACCRUE_EMISMATCH, "%s: token id %lld, at most %lld expected",
                          table->name, (long long)ids[i], (long long)table->rows - 1);
            return NULL;
        }
    y = acr_value_new(t, n, table->cols, table->trainable);
    if (!y)
        return NULL;
    return acr_tape_push(t, &op_embed, 0, NULL, y, table, NULL, (void *)(uintptr_t)ids) ? y : NULL;
}

/* rmsnorm ---------------------------------------------------------------------------------- */

typedef struct rmsnorm_args {
    double eps;
    int64_t rows; /* stretches that are normalised */
    void *rstd;   /* [rows] */
} rmsnorm_args;

static void rmsnorm_forward(acr_tape *t, acr_record *r)
{
    const rmsnorm_args *a = r->args;
    int64_t cols = r->param[0]->rows;

    if (!t->arena.measuring)
        t->backend->rmsnorm_forward(a->rows, cols, r->in[0]->data, cols, r->param[0]->master,
                                    a->eps, r->out->data, cols, a->rstd);
}

static void rmsnorm_backward(acr_tape *t, acr_record *r)
{
    const rmsnorm_args *a = r->args;
    int64_t cols = r->param[0]->rows;
    void *dx = r->in[0]->needs_grad ? acr_grad(t, r->in[0]) : NULL;

    if (!t->arena.measuring && !t->status)
        t->backend->rmsnorm_backward(a->rows, cols, r->in[0]->data, cols, r->param[0]->master,
                                     a->rstd, r->out->grad, cols, dx, cols, r->param[0]->grad);
}

static const acr_op op_rmsnorm = {"rmsnorm", rmsnorm_forward, rmsnorm_backward};

acr_value *acr_rmsnorm(acr_tape *t, acr_value *x, acr_param *w, double eps)
{
    rmsnorm_args *a = NULL;
    acr_value *y = NULL;

    if (failed(t, 1, &x))
        return NULL;
    if (x->cols % w->rows != 0)
        return shape_error(t, w->name, "length", w->rows, x->cols);
    a = acr_tape_meta(t, 1, sizeof *a);
    y = acr_value_new(t, x->rows, x->cols, x->needs_grad || w->trainable);
    if (!a || !y)
        return NULL;
    a->eps = eps;
    a->rows = x->rows * (x->cols / w->rows);
    a->rstd =
        acr_tape_alloc(t, acr_tape_rows(t, x->rows) * (x->cols / w->rows), t->backend->real_bytes);
    return a->rstd && acr_tape_push(t, &op_rmsnorm, 1, &x, y, w, NULL, a) ? y : NULL;
}

/* rope ------------------------------------------------------------------------------------- */

typedef struct rope_args {
    const int64_t *position;
    const acr_rope_table *table;
} rope_args;

static void rope_forward(acr_tape *t, acr_record *r)
{
    const rope_args *a = r->args;
    const acr_value *x = r->in[0];
    int hd = a->table->head_dim;

    if (!t->arena.measuring)
        t->backend->rope_forward(x->rows, (int)(x->cols / hd), hd, a->position, a->table->cos,
                                 a->table->sin, x->data, r->out->data);
}

static void rope_backward(acr_tape *t, acr_record *r)
{
    const rope_args *a = r->args;
    acr_value *x = r->in[0];
    int hd = a->table->head_dim;
    void *dx = x->needs_grad ? acr_grad(t, x) : NULL;

    if (!t->arena.measuring && dx)
        t->backend->rope_backward(x->rows, (int)(x->cols / hd), hd, a->position, a->table->cos,
                                  a->table->sin, r->out->grad, dx);
}

static const acr_op op_rope = {"rope", rope_forward, rope_backward};

acr_value *acr_rope(acr_tape *t, acr_value *x, const int64_t *position, const acr_rope_table *table)
{
    rope_args *a = NULL;
    acr_value *y = NULL;

    if (failed(t, 1, &x))
        return NULL;
    if (x->cols % table->head_dim != 0)
        return shape_error(t, "rope", "head_dim", table->head_dim, x->cols);
    for (int64_t i = 0; i < x->rows; i++)
        if (position[i] < 0 || position[i] >= table->positions)
            return shape_error(t, "rope", "position", position[i], table->positions - 1);
    a = acr_tape_meta(t, 1, sizeof *a);
    y = acr_value_new(t, x->rows, x->cols, x->needs_grad);
    if (!a || !y)
        return NULL;
    a->position = position;
    a->table = table;
    return acr_tape_push(t, &op_rope, 1, &x, y, NULL, NULL, a) ? y : NULL;
}

/* attention -------------------------------------------------------------------------------- */

typedef struct attention_args {
    acr_attention a;
    void *lse; /* [n_queries, n_heads] */
} attention_args;

/* Inputs are q, then k and v of each segment in turn. */
static void attention_forward(acr_tape *t, acr_record *r)
{
    const attention_args *a = r->args;
    const void *k[1 + ACR_MAX_KV], *v[1 + ACR_MAX_KV];

    if (t->arena.measuring)
        return;
    for (int s = 0; s <= a->a.n_extra; s++) {
        k[s] = r->in[1 + 2 * s]->data;
        v[s] = r->in[2 + 2 * s]->data;
    }
    t->backend->attention_forward(&a->a, r->in[0]->data, k, v, r->out->data, a->lse);
}

static void attention_backward(acr_tape *t, acr_record *r)
{
    const attention_args *a = r->args;
    const void *k[1 + ACR_MAX_KV], *v[1 + ACR_MAX_KV];
    void *dk[1 + ACR_MAX_KV], *dv[1 + ACR_MAX_KV];
    int64_t n_delta = acr_tape_rows(t, a->a.n_queries) * a->a.n_heads;
    void *dq = acr_grad(t, r->in[0]);
    void *delta = NULL;

    for (int s = 0; s <= a->a.n_extra; s++) {
        k[s] = r->in[1 + 2 * s]->data;
        v[s] = r->in[2 + 2 * s]->data;
        dk[s] = acr_grad(t, r->in[1 + 2 * s]);
        dv[s] = acr_grad(t, r->in[2 + 2 * s]);
    }
    delta = acr_tape_scratch(t, n_delta, t->backend->real_bytes);
    if (!t->arena.measuring && !t->status)
        t->backend->attention_backward(&a->a, r->in[0]->data, k, v, r->out->data, a->lse,
                                       r->out->grad, delta, dq, dk, dv);
    acr_tape_release(t, delta, n_delta, t->backend->real_bytes);
}

static const acr_op op_attention = {"attention", attention_forward, attention_backward};

static bool row_in(acr_tape *t, const char *what, int64_t row, int64_t low, int64_t high)
{
    if (row >= low && row <= high)
        return true;
    acr_tape_fail(t, ACCRUE_EMISMATCH, "attention: %s is %lld, %lld to %lld expected", what,
                  (long long)row, (long long)low, (long long)high);
    return false;
}

static bool attention_fits(acr_tape *t, const acr_attention *a, const acr_value *q,
                           acr_value *const *k, acr_value *const *v)
{
    const int64_t width = (int64_t)a->n_kv_heads * a->head_dim;

    if (!row_in(t, "head_dim", a->head_dim, 1, ACR_MAX_HEAD_DIM) ||
        !row_in(t, "the query's rows", q->rows, a->n_queries, a->n_queries) ||
        !row_in(t, "the query's width", q->cols, (int64_t)a->n_heads * a->head_dim,
                (int64_t)a->n_heads * a->head_dim) ||
        !row_in(t, "query heads beyond whole groups", a->n_heads % a->n_kv_heads, 0, 0) ||
        !row_in(t, "the base's rows", k[0]->rows, a->n_base, a->n_base))
        return false;
    for (int s = 0; s <= a->n_extra; s++)
        if (!row_in(t, "the keys' width", k[s]->cols, width, width) ||
            !row_in(t, "the values' width", v[s]->cols, width, width) ||
            !row_in(t, "the values' rows", v[s]->rows, k[s]->rows, k[s]->rows))
            return false;
    for (int64_t i = 0; i < a->n_queries; i++) {
        if (!row_in(t, "the end of a query's range", a->end[i], 0, a->n_base) ||
            !row_in(t, "the begin of a query's range", a->begin[i], 0, a->end[i]))
            return false;
        for (int s = 0; s < a->n_extra; s++)
            if (!row_in(t, "a query's extra row", a->extra_row[s][i], 0, k[1 + s]->rows - 1))
                return false;
    }
    return true;
}

acr_value *acr_attend(acr_tape *t, const acr_attention *a, acr_value *q, acr_value *const *k,
                      acr_value *const *v)
{
    acr_value *in[ACR_MAX_INPUTS] = {q};
    attention_args *args = NULL;
    acr_value *y = NULL;
    bool needs_grad = false;

    if (a->n_extra < 0 || a->n_extra >= ACR_MAX_KV)
        return shape_error(t, "attention", "number of extra segments", a->n_extra, ACR_MAX_KV - 1);
    for (int s = 0; s <= a->n_extra; s++) {
        in[1 + 2 * s] = k[s];
        in[2 + 2 * s] = v[s];
    }
    if (failed(t, 3 + 2 * a->n_extra, in))
        return NULL;
    if (!distinct(t, "attention", 3 + 2 * a->n_extra, in) || !attention_fits(t, a, q, k, v))
        return NULL;
    for (int i = 0; i < 3 + 2 * a->n_extra; i++)
        needs_grad = needs_grad || in[i]->needs_grad;
    args = acr_tape_meta(t, 1, sizeof *args);
    y = acr_value_new(t, q->rows, q->cols, needs_grad);
    if (!args || !y)
        return NULL;
    args->a = *a;
    args->lse =
        acr_tape_alloc(t, acr_tape_rows(t, a->n_queries) * a->n_heads, t->backend->real_bytes);
    return args->lse && acr_tape_push(t, &op_attention, 3 + 2 * a->n_extra, in, y, NULL, NULL, args)
               ? y
               : NULL;
}

/* swiglu ----------------------------------------------------------------------------------- */

static void swiglu_forward(acr_tape *t, acr_record *r)
{
    if (!t->arena.measuring)
        t->backend->swiglu_forward(r->out->rows * r->out->cols, r->in[0]->data, r->in[1]->data,
                                   r->out->data);
}

static void swiglu_backward(acr_tape *t, acr_record *r)
{
    void *dg = acr_grad(t, r->in[0]);
    void *du = acr_grad(t, r->in[1]);

    if (!t->arena.measuring && !t->status)
        t->backend->swiglu_backward(r->out->rows * r->out->cols, r->in[0]->data, r->in[1]->data,
                                    r->out->grad, dg, du);
}

static const acr_op op_swiglu = {"swiglu", swiglu_forward, swiglu_backward};

static acr_value *push_pair(acr_tape *t, const acr_op *op, acr_value *a, acr_value *b)
{
    acr_value *in[] = {a, b};
    acr_value *y = NULL;

    if (failed(t, 2, in))
        return NULL;
    if (a->rows != b->rows || a->cols != b->cols)
        return shape_error(t, op->name, a->rows != b->rows ? "rows" : "columns",
                           a->rows != b->rows ? a->rows : a->cols,
                           a->rows != b->rows ? b->rows : b->cols);
    y = acr_value_new(t, a->rows, a->cols, a->needs_grad || b->needs_grad);
    return y && acr_tape_push(t, op, 2, in, y, NULL, NULL, NULL) ? y : NULL;
}

acr_value *acr_swiglu(acr_tape *t, acr_value *gate, acr_value *up)
{
    acr_value *in[] = {gate, up};

    if (failed(t, 2, in) || !distinct(t, "swiglu", 2, in))
        return NULL;
    return push_pair(t, &op_swiglu, gate, up);
}

/* add: y = a + b;  da += dy;  db += dy. */

static void add_forward(acr_tape *t, acr_record *r)
{
    if (!t->arena.measuring)
        t->backend->add(r->out->rows * r->out->cols, r->in[0]->data, r->in[1]->data, r->out->data);
}

static void accumulate_grad(acr_tape *t, acr_value *into, const void *dy)
{
    bool accumulate = false;
    void *d = NULL;
    int64_t n = into->rows * into->cols;

    if (!into->needs_grad)
        return;
    d = acr_grad_first(t, into, &accumulate);
    if (t->arena.measuring || !d)
        return;
    if (accumulate)
        t->backend->accumulate(n, dy, d);
    else
        memcpy(d, dy, (size_t)n * t->backend->real_bytes);
}

static void add_backward(acr_tape *t, acr_record *r)
{
    accumulate_grad(t, r->in[0], r->out->grad);
    accumulate_grad(t, r->in[1], r->out->grad);
}

static const acr_op op_add = {"add", add_forward, add_backward};

acr_value *acr_add(acr_tape *t, acr_value *a, acr_value *b)
{
    return push_pair(t, &op_add, a, b);
}

/* gather_rows: y[i] = x[index[i]];  dx[index[i]] += dy[i]. */

static void gather_forward(acr_tape *t, acr_record *r)
{
    if (!t->arena.measuring)
        t->backend->gather_rows(r->out->rows, r->out->cols, r->args, r->in[0]->data, r->out->cols,
                                r->out->data, r->out->cols);
}

static void scatter_grad(acr_tape *t, acr_value *x, const acr_record *r)
{
    void *dx = x->needs_grad ? acr_grad(t, x) : NULL;

    if (!t->arena.measuring && dx)
        t->backend->scatter_add_rows(r->out->rows, r->out->cols, r->args, r->out->grad,
                                     r->out->cols, dx, r->out->cols);
}

static void gather_backward(acr_tape *t, acr_record *r)
{
    scatter_grad(t, r->in[0], r);
}

static const acr_op op_gather_rows = {"gather_rows", gather_forward, gather_backward};

static bool index_fits(acr_tape *t, const char *op, const acr_value *x, int64_t n,
                       const int64_t *index)
{
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= x->rows) {
            shape_error(t, op, "row", index[i], x->rows - 1);
            return false;
        }
    return true;
}

acr_value *acr_gather_rows(acr_tape *t, acr_value *x, int64_t n, const int64_t *index)
{
    acr_value *y = NULL;

    if (failed(t, 1, &x) || !index_fits(t, "gather_rows", x, n, index))
        return NULL;
    y = acr_value_new(t, n, x->cols, x->needs_grad);
    if (!y)
        return NULL;
    return acr_tape_push(t, &op_gather_rows, 1, &x, y, NULL, NULL, (void *)(uintptr_t)index) ? y
                                                                                             : NULL;
}

/* gather_add: y[i] = a[i] + x[index[i]];  da += dy;  dx[index[i]] += dy[i]. */

static void gather_add_forward(acr_tape *t, acr_record *r)
{
    const acr_value *a = r->in[0];

    if (t->arena.measuring)
        return;
    memcpy(r->out->data, a->data, (size_t)(a->rows * a->cols) * t->backend->real_bytes);
    t->backend->gather_add_rows(a->rows, a->cols, r->args, r->in[1]->data, a->cols, r->out->data,
                                a->cols);
}

static void gather_add_backward(acr_tape *t, acr_record *r)
{
    accumulate_grad(t, r->in[0], r->out->grad);
    scatter_grad(t, r->in[1], r);
}

static const acr_op op_gather_add = {"gather_add", gather_add_forward, gather_add_backward};

acr_value *acr_gather_add(acr_tape *t, acr_value *a, acr_value *x, const int64_t *index)
{
    acr_value *in[] = {a, x};
    acr_value *y = NULL;

    if (failed(t, 2, in) || !index_fits(t, "gather_add", x, a->rows, index))
        return NULL;
    if (a->cols != x->cols)
        return shape_error(t, "gather_add", "width", x->cols, a->cols);
    y = acr_value_new(t, a->rows, a->cols, a->needs_grad || x->needs_grad);
    if (!y)
        return NULL;
    return acr_tape_push(t, &op_gather_add, 2, in, y, NULL, NULL, (void *)(uintptr_t)index) ? y
                                                                                            : NULL;
}

/* concat: y = [x0 | x1 | ...];  dxi += its columns of dy. */

static void concat_forward(acr_tape *t, acr_record *r)
{
    size_t bytes = t->backend->real_bytes;
    size_t at = 0;

    for (int i = 0; i < r->n_in && !t->arena.measuring; i++) {
        size_t width = (size_t)r->in[i]->cols * bytes;
        for (int64_t row = 0; row < r->out->rows; row++)
            memcpy((char *)r->out->data + (size_t)(row * r->out->cols) * bytes + at,
                   (const char *)r->in[i]->data + (size_t)row * width, width);
        at += width;
    }
}

static void concat_backward(acr_tape *t, acr_record *r)
{
    size_t bytes = t->backend->real_bytes;
    int64_t at = 0;

    for (int i = 0; i < r->n_in; i++) {
        acr_value *x = r->in[i];
        void *dx = x->needs_grad ? acr_grad(t, x) : NULL;
        for (int64_t row = 0; dx && !t->arena.measuring && row < x->rows; row++)
            t->backend->accumulate(
                x->cols, (const char *)r->out->grad + (size_t)(row * r->out->cols + at) * bytes,
                (char *)dx + (size_t)(row * x->cols) * bytes);
        at += x->cols;
    }
}

static const acr_op op_concat = {"concat", concat_forward, concat_backward};

acr_value *acr_concat(acr_tape *t, int n, acr_value *const *x)
{
    acr_value *y = NULL;
    int64_t cols = 0;
    bool needs_grad = false;

    if (n < 1 || n > ACR_MAX_INPUTS)
        return shape_error(t, "concat", "number of inputs", n, ACR_MAX_INPUTS);
    if (failed(t, n, x))
        return NULL;
    for (int i = 0; i < n; i++) {
        if (x[i]->rows != x[0]->rows)
            return shape_error(t, "concat", "rows", x[i]->rows, x[0]->rows);
        cols += x[i]->cols;
        needs_grad = needs_grad || x[i]->needs_grad;
    }
    y = acr_value_new(t, x[0]->rows, cols, needs_grad);
    return y && acr_tape_push(t, &op_concat, n, x, y, NULL, NULL, NULL) ? y : NULL;
}

const acr_op *const acr_ops[] = {&op_linear,     &op_embed,  &op_rmsnorm,    &op_rope,
                                 &op_attention,  &op_swiglu, &op_add,        &op_gather_rows,
                                 &op_gather_add, &op_concat, &acr_op_distill};
const int acr_n_ops = ACR_COUNT(acr_ops);
