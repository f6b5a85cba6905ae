/* gemm.c - the GEMM context and the f32 and bf16 products, by oneDNN's matmul.
 *
 * A oneDNN primitive is compiled for one shape, and compiling takes as long as a small product.  The
 * number of rows differs from micro-batch to micro-batch, so a product is cut along its rows (m of
 * NT and NN, k of TN) into chunks of a few sizes; what is left is padded with zero rows.  A weight
 * shape thus needs at most a handful of primitives, whatever the row counts.  Rows are
 * independent in NT and NN, so neither the cut nor the padding changes a bit of the result. */
#include "kernel/gemm.h"

#include <dnnl.h>
#include <string.h>

enum { CHUNK_MAX = 512, CHUNK_MIN = 32 };

typedef struct key {
    int layout, bf16, accumulate, threads; /* the blocking inside a primitive looks at threads */
    int64_t m, n, k, lda, ldb, ldc;
} key;

typedef struct primitive {
    key key;
    dnnl_primitive_t exec; /* NULL: an empty slot of the table */
    dnnl_memory_t a, b, c, scratchpad;
} primitive;

typedef struct buffer {
    void *data;
    size_t bytes;
} buffer;

struct acr_gemm {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    primitive *table; /* open addressing, at most half full */
    size_t slots, used;
    buffer scratchpad;
    buffer a16, b16;               /* operands rounded to bf16 */
    buffer a_tail, b_tail, c_tail; /* the last rows, padded to CHUNK_MIN */
    accrue_status status;
    accrue_error error;
};

static void fail_dnnl(acr_gemm *g, dnnl_status_t s, const char *what, const key *k)
{
    if (g->status)
        return;
    g->status =
        acr_fail(&g->error, s == dnnl_out_of_memory ? ACCRUE_ENOMEM : ACCRUE_ENOTSUP,
                 "oneDNN %s: status %d for a product of m %lld, n %lld, k %lld (%s)", what, (int)s,
                 (long long)k->m, (long long)k->n, (long long)k->k, k->bf16 ? "bf16" : "f32");
}

static bool reserve(acr_gemm *g, buffer *b, size_t bytes)
{
    if (bytes <= b->bytes)
        return true;
    acr_free(b->data);
    b->bytes = 0;
    b->data = acr_malloc(bytes + bytes / 4); /* room, so that slow growth costs few allocations */
    if (!b->data) {
        if (!g->status)
            g->status = acr_enomem(&g->error, bytes, "GEMM scratch");
        return false;
    }
    b->bytes = bytes + bytes / 4;
    return true;
}

accrue_status acr_gemm_create(acr_gemm **out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_gemm *g = NULL;
    dnnl_status_t s = dnnl_success;

    *out = NULL;
    g = acr_calloc(1, sizeof *g);
    if (!g) {
        st = acr_enomem(err, sizeof *g, "GEMM context");
        goto cleanup;
    }
    g->slots = 64;
    g->table = acr_calloc(g->slots, sizeof *g->table);
    if (!g->table) {
        st = acr_enomem(err, g->slots * sizeof *g->table, "GEMM primitives");
        goto cleanup;
    }
    s = dnnl_engine_create(&g->engine, dnnl_cpu, 0);
    if (s == dnnl_success)
        s = dnnl_stream_create(&g->stream, g->engine, dnnl_stream_in_order);
    if (s != dnnl_success) {
        st = acr_fail(err, ACCRUE_ENOTSUP, "oneDNN: no CPU engine (status %d)", (int)s);
        goto cleanup;
    }
    acr_gemm_f64_setup();
    *out = g;
    g = NULL;

cleanup:
    acr_gemm_free(g);
    return st;
}

static void primitive_free(primitive *p)
{
    if (p->exec)
        dnnl_primitive_destroy(p->exec);
    if (p->a)
        dnnl_memory_destroy(p->a);
    if (p->b)
        dnnl_memory_destroy(p->b);
    if (p->c)
        dnnl_memory_destroy(p->c);
    if (p->scratchpad)
        dnnl_memory_destroy(p->scratchpad);
    memset(p, 0, sizeof *p);
}

void acr_gemm_free(acr_gemm *g)
{
    if (!g)
        return;
    for (size_t i = 0; g->table && i < g->slots; i++)
        primitive_free(&g->table[i]);
    if (g->stream)
        dnnl_stream_destroy(g->stream);
    if (g->engine)
        dnnl_engine_destroy(g->engine);
    acr_free(g->table);
    acr_free(g->scratchpad.data);
    acr_free(g->a16.data);
    acr_free(g->b16.data);
    acr_free(g->a_tail.data);
    acr_free(g->b_tail.data);
    acr_free(g->c_tail.data);
    acr_free(g);
}

accrue_status acr_gemm_status(const acr_gemm *g, accrue_error *err)
{
    if (g->status && err)
        *err = g->error;
    return g->status;
}

/* Primitives ------------------------------------------------------------------------------- */

static size_t hash_key(const key *k)
{
    const uint64_t words[] = {(uint64_t)k->layout | (uint64_t)k->bf16 << 8 |
                                  (uint64_t)k->accumulate << 16 | (uint64_t)k->threads << 24,
                              (uint64_t)k->m,
                              (uint64_t)k->n,
                              (uint64_t)k->k,
                              (uint64_t)k->lda,
                              (uint64_t)k->ldb,
                              (uint64_t)k->ldc};
    uint64_t h = 0;

    for (int i = 0; i < ACR_COUNT(words); i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return (size_t)h;
}

static bool same_key(const key *x, const key *y)
{
    return x->layout == y->layout && x->bf16 == y->bf16 && x->accumulate == y->accumulate &&
           x->threads == y->threads && x->m == y->m && x->n == y->n && x->k == y->k &&
           x->lda == y->lda && x->ldb == y->ldb && x->ldc == y->ldc;
}

static primitive *find_slot(primitive *table, size_t slots, const key *k)
{
    size_t i = hash_key(k) & (slots - 1);

    while (table[i].exec && !same_key(&table[i].key, k))
        i = (i + 1) & (slots - 1);
    return &table[i];
}

static bool grow_table(acr_gemm *g)
{
    size_t slots = 2 * g->slots;
    primitive *table = acr_calloc(slots, sizeof *table);

    if (!table) {
        if (!g->status)
            g->status = acr_enomem(&g->error, slots * sizeof *table, "GEMM primitives");
        return false;
    }
    for (size_t i = 0; i < g->slots; i++)
        if (g->table[i].exec)
            *find_slot(table, slots, &g->table[i].key) = g->table[i];
    acr_free(g->table);
    g->table = table;
    g->slots = slots;
    return true;
}

static dnnl_status_t describe(const key *k, dnnl_memory_desc_t md[3])
{
    const dnnl_data_type_t in = k->bf16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t a = {k->m, k->k}, b = {k->k, k->n}, c = {k->m, k->n};
    const dnnl_dims_t row_a = {k->lda, 1}, col_a = {1, k->lda};
    const dnnl_dims_t row_b = {k->ldb, 1}, col_b = {1, k->ldb};
    const dnnl_dims_t row_c = {k->ldc, 1};
    dnnl_status_t s = dnnl_success;

    s = dnnl_memory_desc_init_by_strides(&md[0], 2, a, in,
                                         k->layout == ACR_GEMM_TN ? col_a : row_a);
    if (s == dnnl_success)
        s = dnnl_memory_desc_init_by_strides(&md[1], 2, b, in,
                                             k->layout == ACR_GEMM_NT ? col_b : row_b);
    if (s == dnnl_success)
        s = dnnl_memory_desc_init_by_strides(&md[2], 2, c, dnnl_f32, row_c);
    return s;
}

static dnnl_status_t make_attributes(dnnl_primitive_attr_t *out, bool accumulate)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t s = dnnl_primitive_attr_create(out);

    if (s == dnnl_success)
        s = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (s == dnnl_success && accumulate) {
        s = dnnl_post_ops_create(&ops);
        if (s == dnnl_success)
            s = dnnl_post_ops_append_sum(ops, 1.0f);
        if (s == dnnl_success)
            s = dnnl_primitive_attr_set_post_ops(*out, ops);
    }
    if (ops)
        dnnl_post_ops_destroy(ops);
    return s;
}

static dnnl_status_t make_primitive(acr_gemm *g, const key *k, primitive *p, size_t *scratch)
{
    dnnl_memory_desc_t md[3];
    const dnnl_memory_desc_t *scratch_md = NULL;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = describe(k, md);

    if (s == dnnl_success)
        s = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]);
    if (s == dnnl_success)
        s = make_attributes(&attr, k->accumulate != 0);
    if (s == dnnl_success)
        s = dnnl_primitive_desc_create(&pd, &desc, attr, g->engine, NULL);
    if (s == dnnl_success)
        s = dnnl_primitive_create(&p->exec, pd);
    if (s == dnnl_success)
        s = dnnl_memory_create(&p->a, &md[0], g->engine, DNNL_MEMORY_NONE);
    if (s == dnnl_success)
        s = dnnl_memory_create(&p->b, &md[1], g->engine, DNNL_MEMORY_NONE);
    if (s == dnnl_success)
        s = dnnl_memory_create(&p->c, &md[2], g->engine, DNNL_MEMORY_NONE);
    if (s == dnnl_success) {
        scratch_md = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        *scratch = scratch_md ? dnnl_memory_desc_get_size(scratch_md) : 0;
        if (*scratch)
            s = dnnl_memory_create(&p->scratchpad, scratch_md, g->engine, DNNL_MEMORY_NONE);
    }
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return s;
}

/* The primitive for a key, made when it is first asked for; NULL (status set) when it cannot. */
static primitive *get_primitive(acr_gemm *g, const key *k)
{
    primitive *slot = find_slot(g->table, g->slots, k);
    primitive made = {.key = *k};
    size_t scratch = 0;
    dnnl_status_t s = dnnl_success;

    if (slot->exec)
        return slot;
    if (2 * (g->used + 1) > g->slots && !grow_table(g))
        return NULL;
    s = make_primitive(g, k, &made, &scratch);
    acr_count_allocation();
    if (s != dnnl_success || !reserve(g, &g->scratchpad, scratch)) {
        if (s != dnnl_success)
            fail_dnnl(g, s, "matmul", k);
        primitive_free(&made);
        return NULL;
    }
    slot = find_slot(g->table, g->slots, k);
    *slot = made;
    g->used++;
    return slot;
}

static void execute(acr_gemm *g, const key *k, const void *a, const void *b, void *c)
{
    primitive *p = get_primitive(g, k);
    dnnl_exec_arg_t args[4];
    dnnl_status_t s = dnnl_success;

    if (!p)
        return;
    args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, p->a};
    args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, p->b};
    args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, p->c};
    args[3] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, p->scratchpad};
    /* oneDNN takes inputs as non-const too; it does not write them. */
    s = dnnl_memory_set_data_handle(p->a, (void *)(uintptr_t)a);
    if (s == dnnl_success)
        s = dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)b);
    if (s == dnnl_success)
        s = dnnl_memory_set_data_handle(p->c, c);
    if (s == dnnl_success && p->scratchpad)
        s = dnnl_memory_set_data_handle(p->scratchpad, g->scratchpad.data);
    if (s == dnnl_success)
        s = dnnl_primitive_execute(p->exec, g->stream, p->scratchpad ? 4 : 3, args);
    if (s == dnnl_success)
        s = dnnl_stream_wait(g->stream);
    if (s != dnnl_success)
        fail_dnnl(g, s, "execution", k);
}

/* Rounding to bf16 ------------------------------------------------------------------------- */

typedef struct rounding {
    const float *in;
    uint16_t *out;
    int64_t rows, cols, ld_in, ld_out, rows_per_task;
} rounding;

static void round_rows(int64_t task, void *ctx)
{
    const rounding *r = ctx;
    int64_t first = task * r->rows_per_task;
    int64_t last = first + r->rows_per_task < r->rows ? first + r->rows_per_task : r->rows;

    for (int64_t i = first; i < last; i++) {
        const float *restrict in = r->in + i * r->ld_in;
        uint16_t *restrict out = r->out + i * r->ld_out;
        for (int64_t j = 0; j < r->cols; j++) {
            uint32_t u = 0;
            memcpy(&u, &in[j], sizeof u);
            uint32_t nearest = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
            out[j] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 0x40u) : nearest);
        }
    }
}

static int64_t rounded_stride(int64_t cols)
{
    return (cols + 31) / 32 * 32;
}

/* *data [rows, cols] of f32 becomes a bf16 copy in `b`, with its own row stride. */
static bool round_operand(acr_gemm *g, buffer *b, const void **data, int64_t *ld, int64_t rows,
                          int64_t cols)
{
    rounding r = {.in = *data, .rows = rows, .cols = cols, .ld_in = *ld};

    r.ld_out = rounded_stride(cols);
    if (!reserve(g, b, (size_t)(rows * r.ld_out) * sizeof *r.out))
        return false;
    r.out = b->data;
    r.rows_per_task = 65536 / r.ld_out + 1;
    acr_parallel((rows + r.rows_per_task - 1) / r.rows_per_task, round_rows, &r);
    *data = b->data;
    *ld = r.ld_out;
    return true;
}

/* Products --------------------------------------------------------------------------------- */

/* A product in the operands' final type. */
typedef struct product {
    key key; /* the row dimension is filled in per chunk */
    const char *a, *b;
    float *c;
    int64_t rows;
    size_t in_bytes;
} product;

static int64_t chunk_rows(int64_t left)
{
    int64_t size = CHUNK_MAX;

    while (size > left && size > CHUNK_MIN)
        size /= 2;
    return size;
}

static void *pad_rows(acr_gemm *g, buffer *b, const void *rows, int64_t count, int64_t width,
                      int64_t ld, size_t element)
{
    size_t stride = (size_t)ld * element;
    const char *from = rows;
    char *to = NULL;

    if (!reserve(g, b, CHUNK_MIN * stride))
        return NULL;
    to = b->data;
    for (int64_t i = 0; i < CHUNK_MIN; i++) {
        if (i < count)
            memcpy(to + (size_t)i * stride, from + (size_t)i * stride, (size_t)width * element);
        else
            memset(to + (size_t)i * stride, 0, (size_t)width * element);
    }
    return to;
}

/* The last rows of NT or NN, fewer than CHUNK_MIN. */
static void run_row_tail(acr_gemm *g, const product *p, const key *k, int64_t first, int64_t count)
{
    float *c = p->c + first * k->ldc;
    const char *a = p->a + (size_t)(first * k->lda) * p->in_bytes;
    const void *a_pad = pad_rows(g, &g->a_tail, a, count, k->k, k->lda, p->in_bytes);
    float *c_pad = pad_rows(g, &g->c_tail, c, k->accumulate ? count : 0, k->n, k->ldc, sizeof *c);

    if (!a_pad || !c_pad)
        return;
    execute(g, k, a_pad, p->b, c_pad);
    for (int64_t i = 0; i < count; i++)
        memcpy(c + i * k->ldc, c_pad + i * k->ldc, (size_t)k->n * sizeof *c);
}

static void run_over_rows(acr_gemm *g, const product *p)
{
    key k = p->key;

    for (int64_t done = 0, size = 0; done < p->rows; done += size) {
        size = chunk_rows(p->rows - done);
        k.m = size;
        if (size > p->rows - done)
            run_row_tail(g, p, &k, done, p->rows - done);
        else
            execute(g, &k, p->a + (size_t)(done * k.lda) * p->in_bytes, p->b, p->c + done * k.ldc);
    }
}

/* TN sums over the rows: chunk after chunk is added to c, always in this order. */
static void run_over_sum(acr_gemm *g, const product *p)
{
    key k = p->key;

    for (int64_t done = 0, size = 0; done < p->rows; done += size) {
        const void *a = p->a + (size_t)(done * k.lda) * p->in_bytes;
        const void *b = p->b + (size_t)(done * k.ldb) * p->in_bytes;
        int64_t left = p->rows - done;

        size = chunk_rows(left);
        k.k = size;
        k.accumulate = p->key.accumulate || done > 0;
        if (size > left) {
            a = pad_rows(g, &g->a_tail, a, left, k.m, k.lda, p->in_bytes);
            b = pad_rows(g, &g->b_tail, b, left, k.n, k.ldb, p->in_bytes);
        }
        if (a && b)
            execute(g, &k, a, b, p->c);
    }
}

static void clear(const acr_gemm_args *x, size_t element)
{
    for (int64_t i = 0; i < x->m; i++)
        memset((char *)x->c + (size_t)(i * x->ldc) * element, 0, (size_t)x->n * element);
}

static key key_of(const acr_gemm_args *x)
{
    return (key){.layout = (int)x->layout,
                 .bf16 = x->bf16,
                 .accumulate = x->accumulate,
                 .threads = acr_threads(),
                 .m = x->m,
                 .n = x->n,
                 .k = x->k,
                 .lda = x->lda,
                 .ldb = x->ldb,
                 .ldc = x->ldc};
}

void acr_gemm_f32(acr_gemm *g, const acr_gemm_args *x)
{
    const bool tn = x->layout == ACR_GEMM_TN;
    const int64_t rows_b = x->layout == ACR_GEMM_NT ? x->n : x->k;
    const int64_t cols_b = x->layout == ACR_GEMM_NT ? x->k : x->n;
    const void *a = x->a, *b = x->b;
    product p = {.key = key_of(x), .c = x->c, .rows = tn ? x->k : x->m, .in_bytes = 4};

    if (x->m == 0 || x->n == 0 || g->status)
        return;
    if (x->k == 0) {
        if (!x->accumulate)
            clear(x, sizeof(float));
        return;
    }
    if (x->bf16) {
        p.in_bytes = 2;
        if (!round_operand(g, &g->a16, &a, &p.key.lda, p.rows, tn ? x->m : x->k))
            return;
        if (!x->b_is_bf16 && !round_operand(g, &g->b16, &b, &p.key.ldb, rows_b, cols_b))
            return;
    }
    p.a = a;
    p.b = b;
    if (tn)
        run_over_sum(g, &p);
    else
        run_over_rows(g, &p);
}

void acr_gemm_prepare(acr_gemm *g, const acr_gemm_args *x)
{
    const bool tn = x->layout == ACR_GEMM_TN, nt = x->layout == ACR_GEMM_NT;
    const int64_t rows = tn ? x->k : x->m;
    const int64_t cols_a = tn ? x->m : x->k, cols_b = nt ? x->k : x->n;
    const size_t in_bytes = x->bf16 ? 2 : 4;
    key k = key_of(x);

    if (x->m == 0 || x->n == 0 || x->k == 0)
        return;
    if (x->bf16) {
        k.lda = rounded_stride(cols_a);
        reserve(g, &g->a16, (size_t)(rows * k.lda) * in_bytes);
        if (!x->b_is_bf16) {
            k.ldb = rounded_stride(cols_b);
            reserve(g, &g->b16, (size_t)((nt ? x->n : x->k) * k.ldb) * in_bytes);
        }
    }
    reserve(g, &g->a_tail, (size_t)(CHUNK_MIN * k.lda) * in_bytes);
    if (tn)
        reserve(g, &g->b_tail, (size_t)(CHUNK_MIN * k.ldb) * in_bytes);
    else
        reserve(g, &g->c_tail, (size_t)(CHUNK_MIN * k.ldc) * sizeof(float));
    for (int64_t size = CHUNK_MIN; size <= CHUNK_MAX && size < rows + CHUNK_MIN; size *= 2) {
        *(tn ? &k.k : &k.m) = size;
        get_primitive(g, &k);
        if (tn && !k.accumulate && rows > size) {
            k.accumulate = true;
            get_primitive(g, &k);
            k.accumulate = false;
        }
    }
}
