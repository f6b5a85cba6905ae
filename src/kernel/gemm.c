/* gemm.c - the GEMM context, and bf16 products on matrix units (AMX) by oneDNN.
 *
 * Vector units multiply bf16 no faster than f32, so gemm.inc does that as f32 products of rounded
 * operands.  Matrix units are several times faster and only oneDNN drives them.  A oneDNN primitive
 * is compiled for one shape, and compiling takes as long as a small product.  The number of rows
 * differs from micro-batch to micro-batch, so a product is cut along its rows (m of NT and NN, k of
 * TN) into chunks of a few sizes; what is left is padded with zero rows.  A weight shape thus needs
 * a handful of primitives, whatever the row counts.
 *
 * The bits must not depend on the threads: primitives are compiled for one thread, and the tiles of
 * columns that run in parallel are fixed by the shape. */
#include "kernel/gemm.h"

#include <dnnl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* Of the OpenMP library that oneDNN runs on; the header comes with the compiler, not with it. */
int omp_get_max_threads(void);
void omp_set_num_threads(int n);

enum { CHUNK_MAX = 512, CHUNK_MIN = 32, TILE_COLS = 256 };

/* A tile of a product in bf16; a, b and c have the strides of the whole. */
typedef struct key {
    int layout, accumulate;
    int64_t m, n, k, lda, ldb, ldc;
} key;

enum { MEMORY_A, MEMORY_B, MEMORY_C, MEMORY_SCRATCH, MEMORIES };

typedef struct primitive {
    key key;
    dnnl_primitive_t exec; /* NULL: an empty slot of the table */
    dnnl_memory_t *memory; /* [workers * MEMORIES]: one thread uses one set */
} primitive;

typedef struct buffer {
    void *data;
    size_t bytes;
} buffer;

struct acr_gemm {
    bool onednn;
    int workers;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    primitive *table; /* open addressing, at most half full */
    size_t slots, used;
    buffer scratch; /* [workers, scratch_bytes] for the primitives */
    size_t scratch_bytes;
    buffer a16, b16;               /* operands rounded to bf16 */
    buffer a_tail, b_tail, c_tail; /* the last rows, padded to CHUNK_MIN */
    accrue_status status;
    accrue_error error;
};

static void fail_dnnl(acr_gemm *g, dnnl_status_t s, const char *what, const key *k)
{
    if (g->status)
        return;
    g->status = acr_fail(&g->error, s == dnnl_out_of_memory ? ACCRUE_ENOMEM : ACCRUE_ENOTSUP,
                         "oneDNN %s: status %d for a bf16 product of m %lld, n %lld, k %lld", what,
                         (int)s, (long long)k->m, (long long)k->n, (long long)k->k);
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

static bool cpu_has(unsigned isa)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & isa) == isa;
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
    g->workers = acr_threads();
    g->onednn = cpu_has(dnnl_cpu_isa_avx512_core_amx);
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
    *out = g;
    g = NULL;

cleanup:
    acr_gemm_free(g);
    return st;
}

static void primitive_free(const acr_gemm *g, primitive *p)
{
    if (p->exec)
        dnnl_primitive_destroy(p->exec);
    for (int i = 0; p->memory && i < g->workers * MEMORIES; i++)
        if (p->memory[i])
            dnnl_memory_destroy(p->memory[i]);
    acr_free(p->memory);
    memset(p, 0, sizeof *p);
}

void acr_gemm_free(acr_gemm *g)
{
    if (!g)
        return;
    for (size_t i = 0; g->table && i < g->slots; i++)
        primitive_free(g, &g->table[i]);
    if (g->stream)
        dnnl_stream_destroy(g->stream);
    if (g->engine)
        dnnl_engine_destroy(g->engine);
    acr_free(g->table);
    acr_free(g->scratch.data);
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

bool acr_gemm_uses_onednn(const acr_gemm *g)
{
    return g->onednn;
}

void acr_gemm_force_onednn(acr_gemm *g, bool on)
{
    g->onednn = on && cpu_has(dnnl_cpu_isa_avx512_core);
}

/* Primitives ------------------------------------------------------------------------------- */

static size_t hash_key(const key *k)
{
    const uint64_t words[] = {(uint64_t)k->layout | (uint64_t)k->accumulate << 8,
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
    return x->layout == y->layout && x->accumulate == y->accumulate && x->m == y->m &&
           x->n == y->n && x->k == y->k && x->lda == y->lda && x->ldb == y->ldb && x->ldc == y->ldc;
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
    const dnnl_dims_t a = {k->m, k->k}, b = {k->k, k->n}, c = {k->m, k->n};
    const dnnl_dims_t row_a = {k->lda, 1}, col_a = {1, k->lda};
    const dnnl_dims_t row_b = {k->ldb, 1}, col_b = {1, k->ldb};
    const dnnl_dims_t row_c = {k->ldc, 1};
    const bool tn = k->layout == ACR_GEMM_TN, nt = k->layout == ACR_GEMM_NT;
    dnnl_status_t s = dnnl_success;

    s = dnnl_memory_desc_init_by_strides(&md[0], 2, a, dnnl_bf16, tn ? col_a : row_a);
    if (s == dnnl_success)
        s = dnnl_memory_desc_init_by_strides(&md[1], 2, b, dnnl_bf16, nt ? col_b : row_b);
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

static dnnl_status_t make_memories(const acr_gemm *g, primitive *p, const dnnl_memory_desc_t md[3],
                                   const dnnl_memory_desc_t *scratch)
{
    dnnl_status_t s = dnnl_success;

    for (int i = 0; i < g->workers * MEMORIES && s == dnnl_success; i++) {
        const dnnl_memory_desc_t *d = i % MEMORIES == MEMORY_SCRATCH ? scratch : &md[i % MEMORIES];
        s = dnnl_memory_create(&p->memory[i], d, g->engine, DNNL_MEMORY_NONE);
    }
    return s;
}

/* Ranks of one process need the same primitives at the same moment: one compiles, and the others
 * find it in oneDNN's cache.  They would wait for it there too, but by means that the thread
 * sanitizer does not see. */
static pthread_mutex_t compiling = PTHREAD_MUTEX_INITIALIZER;

/* Fills in p->exec and p->memory; *scratch becomes the bytes that one thread needs to run it. */
static dnnl_status_t make_primitive(const acr_gemm *g, primitive *p, size_t *scratch)
{
    const int threads = omp_get_max_threads();
    const dnnl_memory_desc_t *scratch_md = NULL;
    dnnl_memory_desc_t md[3];
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = describe(&p->key, md);

    omp_set_num_threads(1); /* oneDNN blocks for, and runs on, as many as there are now */
    if (s == dnnl_success)
        s = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]);
    if (s == dnnl_success)
        s = make_attributes(&attr, p->key.accumulate != 0);
    if (s == dnnl_success)
        s = dnnl_primitive_desc_create(&pd, &desc, attr, g->engine, NULL);
    if (s == dnnl_success)
        s = dnnl_primitive_create(&p->exec, pd);
    if (s == dnnl_success) {
        scratch_md = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        *scratch = dnnl_memory_desc_get_size(scratch_md);
        s = make_memories(g, p, md, scratch_md);
    }
    omp_set_num_threads(threads);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return s;
}

/* Makes the primitive for a key unless there is one; false (status set) when it cannot. */
static bool need_primitive(acr_gemm *g, const key *k)
{
    primitive made = {.key = *k};
    dnnl_status_t s = dnnl_success;
    size_t scratch = 0;

    if (find_slot(g->table, g->slots, k)->exec)
        return true;
    if (2 * (g->used + 1) > g->slots && !grow_table(g))
        return false;
    made.memory = acr_calloc((size_t)g->workers * MEMORIES, sizeof *made.memory);
    if (!made.memory) {
        if (!g->status)
            g->status = acr_enomem(&g->error, (size_t)g->workers * MEMORIES * sizeof *made.memory,
                                   "a GEMM primitive");
        return false;
    }
    pthread_mutex_lock(&compiling);
    s = make_primitive(g, &made, &scratch);
    pthread_mutex_unlock(&compiling);
    acr_count_allocation();
    scratch = (scratch + ACR_ALIGN - 1) / ACR_ALIGN * ACR_ALIGN;
    if (s == dnnl_success && scratch > g->scratch_bytes)
        g->scratch_bytes = scratch;
    if (s != dnnl_success || !reserve(g, &g->scratch, g->scratch_bytes * (size_t)g->workers)) {
        if (s != dnnl_success)
            fail_dnnl(g, s, "matmul", k);
        primitive_free(g, &made);
        return false;
    }
    *find_slot(g->table, g->slots, k) = made;
    g->used++;
    return true;
}

/* Runs a primitive that exists on the calling thread. */
static dnnl_status_t execute(const acr_gemm *g, int worker, const key *k, const void *a,
                             const void *b, void *c)
{
    const primitive *p = find_slot(g->table, g->slots, k);
    dnnl_memory_t *memory = p->memory + worker * MEMORIES;
    const dnnl_exec_arg_t args[MEMORIES] = {{DNNL_ARG_SRC, memory[MEMORY_A]},
                                            {DNNL_ARG_WEIGHTS, memory[MEMORY_B]},
                                            {DNNL_ARG_DST, memory[MEMORY_C]},
                                            {DNNL_ARG_SCRATCHPAD, memory[MEMORY_SCRATCH]}};
    char *scratch = g->scratch.data;
    dnnl_status_t s = dnnl_success;

    /* oneDNN takes inputs as non-const too; it does not write them. */
    s = dnnl_memory_set_data_handle(memory[MEMORY_A], (void *)(uintptr_t)a);
    if (s == dnnl_success)
        s = dnnl_memory_set_data_handle(memory[MEMORY_B], (void *)(uintptr_t)b);
    if (s == dnnl_success)
        s = dnnl_memory_set_data_handle(memory[MEMORY_C], c);
    if (s == dnnl_success)
        s = dnnl_memory_set_data_handle(memory[MEMORY_SCRATCH],
                                        scratch + (size_t)worker * g->scratch_bytes);
    if (s == dnnl_success)
        s = dnnl_primitive_execute(p->exec, g->stream, MEMORIES, args);
    return s;
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

/* b becomes f32 rows in bf16, `rounded_stride` apart. */
static bool round_operand(acr_gemm *g, buffer *b, const void *data, int64_t ld, int64_t rows,
                          int64_t cols)
{
    rounding r = {.in = data, .rows = rows, .cols = cols, .ld_in = ld};

    r.ld_out = rounded_stride(cols);
    if (!reserve(g, b, (size_t)(rows * r.ld_out) * sizeof *r.out))
        return false;
    r.out = b->data;
    r.rows_per_task = 65536 / r.ld_out + 1;
    acr_parallel((rows + r.rows_per_task - 1) / r.rows_per_task, round_rows, &r);
    return true;
}

/* Products --------------------------------------------------------------------------------- */

/* A product of bf16 operands, in chunks of rows times tiles of columns. */
typedef struct product {
    acr_gemm *g;
    key key; /* of the whole */
    const uint16_t *a, *b;
    const uint16_t *a_tail, *b_tail; /* the rows past the last whole chunk, padded */
    float *c, *c_tail;
    int64_t rows, tiles, tasks;
    _Atomic int64_t next; /* task that no worker has taken */
    _Atomic int failed;   /* a dnnl_status_t */
} product;

static int64_t chunk_rows(int64_t left)
{
    int64_t size = CHUNK_MAX;

    while (size > left && size > CHUNK_MIN)
        size /= 2;
    return size;
}

/* The key of a chunk of `size` rows, `accumulate` aside, and a tile of columns. */
static key tile_key(const key *whole, int64_t size, int64_t tile)
{
    key k = *whole;

    if (k.layout == ACR_GEMM_TN)
        k.k = size;
    else
        k.m = size;
    k.n = k.n - tile * TILE_COLS < TILE_COLS ? k.n - tile * TILE_COLS : TILE_COLS;
    return k;
}

/* Primitives for every chunk and tile; `every_size` for any number of rows up to this one. */
static bool need_primitives(acr_gemm *g, const key *whole, int64_t rows, bool every_size)
{
    const int64_t last = (whole->n - 1) / TILE_COLS;
    const bool tn = whole->layout == ACR_GEMM_TN;

    for (int64_t done = 0, size = 0; done < rows; done += size) {
        size = chunk_rows(rows - done);
        for (int64_t made = size; made >= CHUNK_MIN; made = every_size ? made / 2 : 0)
            for (int64_t tile = 0; tile <= last; tile += last > 0 ? last : 1) {
                key k = tile_key(whole, made, tile);
                if ((!tn || done == 0 || k.accumulate) && !need_primitive(g, &k))
                    return false;
                k.accumulate = true;
                if (tn && (done > 0 || (every_size && rows > made)) && !need_primitive(g, &k))
                    return false;
            }
    }
    return true;
}

static void *pad_rows(acr_gemm *g, buffer *b, const void *rows, int64_t count, int64_t width,
                      int64_t ld, size_t element)
{
    const size_t stride = (size_t)ld * element;
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

/* Rows of NT and NN: a chunk and a tile. */
static dnnl_status_t run_rows_tile(const product *p, int worker, int64_t task)
{
    const int64_t column = task % p->tiles * TILE_COLS;
    int64_t done = 0, size = chunk_rows(p->rows);
    const uint16_t *b = p->b + (p->key.layout == ACR_GEMM_NT ? column * p->key.ldb : column);
    key k;

    for (int64_t chunk = task / p->tiles; chunk > 0; chunk--) {
        done += size;
        size = chunk_rows(p->rows - done);
    }
    k = tile_key(&p->key, size, task % p->tiles);
    if (size > p->rows - done)
        return execute(p->g, worker, &k, p->a_tail, b, p->c_tail + column);
    return execute(p->g, worker, &k, p->a + done * k.lda, b, p->c + done * k.ldc + column);
}

/* TN sums over the rows: chunk after chunk is added to a tile of c, always in this order. */
static dnnl_status_t run_sum_tile(const product *p, int worker, int64_t tile)
{
    const int64_t column = tile * TILE_COLS;
    dnnl_status_t s = dnnl_success;

    for (int64_t done = 0, size = 0; done < p->rows && s == dnnl_success; done += size) {
        const bool tail = p->rows - done < CHUNK_MIN;
        key k;

        size = chunk_rows(p->rows - done);
        k = tile_key(&p->key, size, tile);
        k.accumulate = k.accumulate || done > 0;
        s = execute(p->g, worker, &k, tail ? p->a_tail : p->a + done * k.lda,
                    (tail ? p->b_tail : p->b + done * k.ldb) + column, p->c + column);
    }
    return s;
}

static void run_worker(int64_t worker, void *ctx)
{
    product *p = ctx;
    const int threads = omp_get_max_threads();
    int64_t task = 0;

    omp_set_num_threads(1); /* of this thread: oneDNN must not start others from here */
    while ((task = atomic_fetch_add(&p->next, 1)) < p->tasks) {
        dnnl_status_t s = p->key.layout == ACR_GEMM_TN ? run_sum_tile(p, (int)worker, task)
                                                       : run_rows_tile(p, (int)worker, task);
        if (s != dnnl_success)
            atomic_store(&p->failed, (int)s);
    }
    omp_set_num_threads(threads);
}

/* Counts the tasks and pads the last rows, fewer than CHUNK_MIN. */
static bool prepare_tasks(product *p)
{
    const key *k = &p->key;
    const bool tn = k->layout == ACR_GEMM_TN;
    const int64_t tail = p->rows % CHUNK_MIN, first = p->rows - tail;
    int64_t chunks = 0;

    for (int64_t done = 0; done < p->rows; done += chunk_rows(p->rows - done))
        chunks++;
    p->tiles = (k->n + TILE_COLS - 1) / TILE_COLS;
    p->tasks = tn ? p->tiles : chunks * p->tiles;
    if (tail == 0)
        return true;
    p->a_tail = pad_rows(p->g, &p->g->a_tail, p->a + first * k->lda, tail, tn ? k->m : k->k, k->lda,
                         sizeof *p->a);
    if (tn)
        p->b_tail =
            pad_rows(p->g, &p->g->b_tail, p->b + first * k->ldb, tail, k->n, k->ldb, sizeof *p->b);
    else
        p->c_tail = pad_rows(p->g, &p->g->c_tail, p->c + first * k->ldc, k->accumulate ? tail : 0,
                             k->n, k->ldc, sizeof *p->c);
    return p->a_tail && (p->b_tail || p->c_tail);
}

static key key_of(const acr_gemm_args *x)
{
    return (key){.layout = (int)x->layout,
                 .accumulate = x->accumulate,
                 .m = x->m,
                 .n = x->n,
                 .k = x->k,
                 .lda = rounded_stride(x->layout == ACR_GEMM_TN ? x->m : x->k),
                 .ldb =
                     x->b_is_bf16 ? x->ldb : rounded_stride(x->layout == ACR_GEMM_NT ? x->k : x->n),
                 .ldc = x->ldc};
}

/* Neither m, n nor k is 0. */
void acr_gemm_onednn(acr_gemm *g, const acr_gemm_args *x)
{
    const bool tn = x->layout == ACR_GEMM_TN, nt = x->layout == ACR_GEMM_NT;
    product p = {.g = g, .key = key_of(x), .b = x->b, .c = x->c, .rows = tn ? x->k : x->m};
    const int64_t tail = p.rows % CHUNK_MIN, first = p.rows - tail;

    if (g->status || !round_operand(g, &g->a16, x->a, x->lda, p.rows, tn ? x->m : x->k))
        return;
    p.a = g->a16.data;
    if (!x->b_is_bf16) {
        if (!round_operand(g, &g->b16, x->b, x->ldb, nt ? x->n : x->k, nt ? x->k : x->n))
            return;
        p.b = g->b16.data;
    }
    if (!need_primitives(g, &p.key, p.rows, false) || !prepare_tasks(&p))
        return;
    acr_parallel(acr_threads() < g->workers ? acr_threads() : g->workers, run_worker, &p);
    if (p.failed)
        fail_dnnl(g, (dnnl_status_t)p.failed, "execution", &p.key);
    for (int64_t i = 0; i < tail && !tn; i++)
        memcpy(p.c + (first + i) * x->ldc, p.c_tail + i * x->ldc, (size_t)x->n * sizeof *p.c);
}

void acr_gemm_prepare(acr_gemm *g, const acr_gemm_args *x)
{
    const bool tn = x->layout == ACR_GEMM_TN, nt = x->layout == ACR_GEMM_NT;
    const int64_t rows = tn ? x->k : x->m;
    const key k = key_of(x);

    if (!g->onednn || !x->bf16 || g->status || x->m == 0 || x->n == 0 || x->k == 0)
        return;
    if (!reserve(g, &g->a16, (size_t)(rows * k.lda) * sizeof(uint16_t)) ||
        !reserve(g, &g->a_tail, (size_t)(CHUNK_MIN * k.lda) * sizeof(uint16_t)))
        return;
    if (!x->b_is_bf16 && !reserve(g, &g->b16, (size_t)((nt ? x->n : x->k) * k.ldb) * 2))
        return;
    if (tn ? !reserve(g, &g->b_tail, (size_t)(CHUNK_MIN * k.ldb) * sizeof(uint16_t))
           : !reserve(g, &g->c_tail, (size_t)(CHUNK_MIN * k.ldc) * sizeof(float)))
        return;
    need_primitives(g, &k, rows, true);
}
