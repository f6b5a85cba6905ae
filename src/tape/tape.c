/* tape.c - records, the arena behind them, gradients and the reverse pass. */
#include "tape/tape.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct acr_free_block {
    void *data;
    size_t bytes;
};

enum { POOL_BLOCKS = 256, FIRST_RECORDS = 256 };

accrue_status acr_tape_init(acr_tape *t, accrue_dtype compute, accrue_error *err)
{
    memset(t, 0, sizeof *t);
    t->backend = acr_backend_for(acr_real_of(compute));
    t->bf16 = compute == ACCRUE_BF16;
    acr_arena_init(&t->arena);
    acr_arena_init(&t->meta);
    t->records = acr_calloc(FIRST_RECORDS, sizeof(acr_record *));
    t->pool = acr_calloc(POOL_BLOCKS, sizeof *t->pool);
    if (!t->records || !t->pool)
        return acr_enomem(err, FIRST_RECORDS * sizeof(acr_record *), "the tape");
    t->capacity = FIRST_RECORDS;
    t->pool_capacity = POOL_BLOCKS;
    return acr_gemm_create(&t->gemm, err);
}

void acr_tape_free(acr_tape *t)
{
    acr_gemm_free(t->gemm);
    acr_arena_free(&t->arena);
    acr_arena_free(&t->meta);
    acr_free(t->records);
    acr_free(t->pool);
    memset(t, 0, sizeof *t);
}

/* A bias is of its weight's group. */
static acr_group *group_of(const acr_record *r)
{
    return r->param[0] ? r->param[0]->group : NULL;
}

static void count_uses(const acr_record *r, int by)
{
    acr_group *g = group_of(r);

    if (r->counted && g)
        g->uses += by;
}

static void announce(const acr_tape *t, const acr_record *r, acr_group_hook hook)
{
    acr_group *g = group_of(r);

    if (hook && g && !t->status && !t->arena.measuring)
        hook(g, t->payload);
}

/* Records that were never run backward - a forward alone, a failure - give their uses back. */
void acr_tape_reset(acr_tape *t)
{
    while (t->n_records)
        count_uses(t->records[--t->n_records], -1);
    acr_arena_reset(&t->arena);
    acr_arena_reset(&t->meta);
    t->n_pool = 0;
    t->status = ACCRUE_OK;
}

void acr_tape_measure(acr_tape *t, bool measuring)
{
    acr_tape_reset(t);
    t->arena.measuring = measuring;
}

accrue_status acr_tape_fail(acr_tape *t, accrue_status status, const char *format, ...)
{
    if (!t->status) {
        va_list args;
        t->status = t->error.status = status;
        va_start(args, format);
        vsnprintf(t->error.message, sizeof t->error.message, format, args);
        va_end(args);
    }
    return t->status;
}

accrue_status acr_tape_status(acr_tape *t, accrue_error *err)
{
    if (!t->status) {
        accrue_error e = {0};
        accrue_status st = acr_gemm_status(t->gemm, &e);
        if (st)
            acr_tape_fail(t, st, "%s", e.message);
    }
    return t->status ? acr_fail(err, t->status, "%s", t->error.message) : ACCRUE_OK;
}

static void *arena_alloc(acr_tape *t, acr_arena *a, int64_t count, size_t size)
{
    void *p = NULL;

    if (t->status)
        return NULL;
    if (count >= 0 && (uint64_t)count <= SIZE_MAX / 2 / size)
        p = acr_arena_alloc(a, (size_t)count * size);
    if (!p)
        acr_tape_fail(t, ACCRUE_ENOMEM, "out of memory: %lld x %zu bytes for activations",
                      (long long)count, size);
    return p;
}

void *acr_tape_alloc(acr_tape *t, int64_t count, size_t size)
{
    return arena_alloc(t, &t->arena, count, size);
}

void *acr_tape_meta(acr_tape *t, int64_t count, size_t size)
{
    return arena_alloc(t, &t->meta, count, size);
}

void *acr_tape_scratch(acr_tape *t, int64_t count, size_t size)
{
    size_t bytes = (size_t)count * size;
    int best = -1;

    for (int i = 0; i < t->n_pool; i++)
        if (t->pool[i].bytes >= bytes && (best < 0 || t->pool[i].bytes < t->pool[best].bytes))
            best = i;
    /* A block over twice the need is kept for something larger. */
    if (best >= 0 && t->pool[best].bytes / 2 <= bytes) {
        void *p = t->pool[best].data;
        t->pool[best] = t->pool[--t->n_pool];
        return p;
    }
    return acr_tape_alloc(t, count, size);
}

void acr_tape_release(acr_tape *t, void *block, int64_t count, size_t size)
{
    if (!block || t->n_pool == t->pool_capacity)
        return;
    t->pool[t->n_pool].data = block;
    t->pool[t->n_pool++].bytes = (size_t)count * size;
}

int64_t acr_tape_rows(const acr_tape *t, int64_t rows)
{
    return rows < t->row_capacity ? t->row_capacity : rows;
}

static acr_value *value_over(acr_tape *t, int64_t rows, int64_t cols, void *data, bool needs_grad)
{
    acr_value *v = acr_tape_meta(t, 1, sizeof *v);

    if (!v)
        return NULL;
    v->rows = rows;
    v->cols = cols;
    v->data = data;
    v->grad = NULL;
    v->needs_grad = needs_grad;
    return v;
}

acr_value *acr_leaf(acr_tape *t, int64_t rows, int64_t cols, const void *data)
{
    return value_over(t, rows, cols, (void *)(uintptr_t)data, false);
}

acr_value *acr_value_new(acr_tape *t, int64_t rows, int64_t cols, bool needs_grad)
{
    void *data = acr_tape_alloc(t, acr_tape_rows(t, rows) * cols, t->backend->real_bytes);

    return data ? value_over(t, rows, cols, data, needs_grad && !t->no_grad) : NULL;
}

acr_value *acr_leaf_rows(acr_tape *t, int64_t n, const int64_t *rows, const void *data, int64_t ld,
                         int64_t column, int64_t cols)
{
    acr_value *v = acr_value_new(t, n, cols, false);

    if (v && !t->arena.measuring)
        t->backend->gather_rows(n, cols, rows,
                                (const char *)data + (size_t)column * t->backend->real_bytes, ld,
                                v->data, cols);
    return v;
}

static bool grow_records(acr_tape *t)
{
    acr_record **more = NULL;

    if (t->n_records < t->capacity)
        return true;
    more = acr_realloc(t->records, 2 * (size_t)t->capacity * sizeof(acr_record *));
    if (!more) {
        acr_tape_fail(t, ACCRUE_ENOMEM, "out of memory: %lld records", 2 * (long long)t->capacity);
        return false;
    }
    t->records = more;
    t->capacity *= 2;
    return true;
}

acr_record *acr_tape_push(acr_tape *t, const acr_op *op, int n_in, acr_value *const *in,
                          acr_value *out, acr_param *w, acr_param *bias, void *args)
{
    acr_record *r = acr_tape_meta(t, 1, sizeof *r);

    if (!r || !grow_records(t))
        return NULL;
    memset(r, 0, sizeof *r);
    r->op = op;
    r->n_in = n_in;
    for (int i = 0; i < n_in; i++)
        r->in[i] = in[i];
    r->out = out;
    r->param[0] = w;
    r->param[1] = bias;
    r->args = args;
    r->counted = !t->no_grad;
    t->records[t->n_records++] = r;
    count_uses(r, 1);
    announce(t, r, t->group_forward);
    op->forward(t, r);
    return r;
}

void *acr_grad_first(acr_tape *t, acr_value *v, bool *accumulate)
{
    *accumulate = v->grad != NULL;
    if (!v->grad)
        v->grad = acr_tape_scratch(t, acr_tape_rows(t, v->rows) * v->cols, t->backend->real_bytes);
    return v->grad;
}

void *acr_grad(acr_tape *t, acr_value *v)
{
    bool accumulate = false;
    void *grad = acr_grad_first(t, v, &accumulate);

    if (grad && !accumulate && !t->arena.measuring)
        memset(grad, 0, (size_t)(v->rows * v->cols) * t->backend->real_bytes);
    return grad;
}

/* A gradient is announced only when it is there. */
static void finish_uses(acr_tape *t, const acr_record *r)
{
    acr_group *g = group_of(r);

    count_uses(r, -1);
    if (r->counted && g && g->uses == 0)
        announce(t, r, t->group_ready);
}

void acr_tape_backward(acr_tape *t)
{
    while (t->n_records) {
        acr_record *r = t->records[--t->n_records];
        announce(t, r, t->group_backward);
        /* Nothing flows into a value that nobody used; the loss has no output at all. */
        if (!t->status && (!r->out || r->out->grad))
            r->op->backward(t, r);
        if (r->out && r->out->grad) {
            acr_tape_release(t, r->out->grad, acr_tape_rows(t, r->out->rows) * r->out->cols,
                             t->backend->real_bytes);
            r->out->grad = NULL;
        }
        finish_uses(t, r);
    }
}

const void *acr_param_operand(const acr_tape *t, const acr_param *p, bool *is_bf16)
{
    *is_bf16 = t->bf16 && p->bf16;
    if (*is_bf16)
        return p->bf16;
    return p->master ? p->master : p->frozen;
}

void acr_tape_gemm(acr_tape *t, const acr_gemm_args *args)
{
    if (!t->arena.measuring)
        t->backend->gemm(t->gemm, args);
    else if (t->backend->real == ACR_DTYPE_F32)
        acr_gemm_prepare(t->gemm, args);
}
