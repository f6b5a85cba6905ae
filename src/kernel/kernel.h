/* kernel.h - the backend table: every numeric kernel that the tape's operators call.
 *
 * One table per width, acr_cpu_f32 and acr_cpu_f64, from one source compiled twice; "real" below is
 * that width.  Arrays are row-major with a row stride `ld` in elements.  Shapes are checked where a
 * record is pushed, so kernels cannot fail; the one that may (a GEMM primitive that cannot be made)
 * leaves its status in the acr_gemm context.
 *
 * Every sum over rows has a partition fixed by the shapes alone, so the bits of a result do not
 * depend on the number of threads.  "=" overwrites the output, "+=" adds to it.  Kernels allocate
 * nothing; their scratch is on the stack, at most 1 MiB in each thread. */
#ifndef ACR_KERNEL_H
#define ACR_KERNEL_H

#include "tensor/tensor.h"

/* Matrix products -------------------------------------------------------------------------- */

typedef enum acr_gemm_layout {
    ACR_GEMM_NT = 0, /* a [m, k], b stored [n, k]: y = x W^T */
    ACR_GEMM_NN = 1, /* a [m, k], b [k, n]:        dx = dy W */
    ACR_GEMM_TN = 2  /* a stored [k, m], b [k, n]: dW = dy^T x */
} acr_gemm_layout;

typedef struct acr_gemm acr_gemm; /* cached primitives and scratch; one per thread of control */

accrue_status acr_gemm_create(acr_gemm **out, accrue_error *err);
void acr_gemm_free(acr_gemm *g);
/* The first failure since creation, OK otherwise. */
accrue_status acr_gemm_status(const acr_gemm *g, accrue_error *err);

typedef struct acr_gemm_args {
    acr_gemm_layout layout;
    bool bf16;       /* round both operands to bf16 (sums stay f32); f32 width only */
    bool accumulate; /* += rather than = */
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    const void *b;
    bool b_is_bf16; /* b holds bf16 already; requires bf16 */
    int64_t ldb;
    void *c;
    int64_t ldc;
} acr_gemm_args;

/* Makes what f32 products of this shape with any number of rows (m of NT and NN, k of TN) up to the
 * given one would otherwise make when they first come: compiled primitives and scratch, in bf16 on
 * machines with matrix units, nothing elsewhere.  a, b and c are not read. */
void acr_gemm_prepare(acr_gemm *g, const acr_gemm_args *args);

/* Packed weights --------------------------------------------------------------------------- */

/* A weight [n, k] that is multiplied often and never changes: cut into panels of outputs, which lie
 * side by side for each step of k, so that a vector of outputs is loaded at once. */
typedef struct acr_packed {
    int64_t n, k;
    acr_dtype type; /* the width's real; of the f32 width also BF16 */
    void *data;     /* packed_bytes of it, ACR_ALIGN-aligned; the caller's */
} acr_packed;

enum { ACR_MAX_PRODUCTS = 3 };

/* y[i] [m, w[i]->n] = a w[i]^T for up to ACR_MAX_PRODUCTS weights of one type and k. */
typedef struct acr_products {
    int64_t m;
    const void *a; /* real [m, k]; for BF16 weights of numbers that bf16 has (round_bf16) */
    int64_t lda;
    int n;
    const acr_packed *w[ACR_MAX_PRODUCTS];
    void *y[ACR_MAX_PRODUCTS];
    int64_t ldy[ACR_MAX_PRODUCTS];
} acr_products;

/* Attention over a cache ------------------------------------------------------------------- */

enum { ACR_KV_TILE = 64, ACR_KV_ROWS = 16 };

/* Keys and values of one layer of a sequence: for each key/value head and ACR_KV_TILE positions
 * a tile of kv_tile_elements reals, keys [head_dim, ACR_KV_TILE], then values [ACR_KV_TILE,
 * head_dim], their rows padded to whole vectors.  Zero at first. */
typedef struct acr_kv {
    void *data;
    int64_t head_stride; /* elements from one head's first tile to the next one's */
} acr_kv;

/* Up to ACR_KV_ROWS tokens of a sequence, one after the other: rows [row, row + n) of q, k, v and
 * out, at positions [position, position + n). */
typedef struct acr_kv_run {
    acr_kv kv;
    int64_t row, n, position;
} acr_kv_run;

typedef struct acr_kv_heads {
    int n_heads, n_kv_heads, head_dim;
} acr_kv_heads;

/* Attention -------------------------------------------------------------------------------- */

enum { ACR_MAX_KV = ACCRUE_MAX_TTT_STEPS };
enum { ACR_MAX_HEAD_DIM = 512 }; /* a block's working set lies on the stack */

/* Grouped-query attention over a base segment of keys and values and `n_extra` further segments of
 * which each query sees a single row (EAGLE-3's earlier TTT steps and its own).  Query row i sees
 * base rows [begin[i], end[i]) - causality, documents and the sliding window are such a range - and
 * row extra_row[j][i] of extra segment j.  begin and end do not decrease with i, and no two queries
 * share an extra row.  Head h of the query uses key/value head h / (n_heads / n_kv_heads).
 * With n_base = 0 and no extra segment the output is 0. */
typedef struct acr_attention {
    int64_t n_queries, n_base;
    int n_heads, n_kv_heads, head_dim;
    const int64_t *begin, *end;
    int n_extra;
    const int64_t *extra_row[ACR_MAX_KV];
} acr_attention;

/* Losses ----------------------------------------------------------------------------------- */

typedef enum acr_loss_kind {
    ACR_LOSS_KL_DIV = 0,
    ACR_LOSS_RKL,
    ACR_LOSS_JSD,
    ACR_LOSS_CE,
    ACR_LOSS_TV,
    ACR_LOSS_NLA,
    ACR_LOSS_LK_HYBRID,
    ACR_LOSS_COUNT
} acr_loss_kind;

const char *acr_loss_name(acr_loss_kind k); /* "kl_div" */

typedef struct acr_loss_spec {
    int n_terms;
    bool mixed; /* given as an object: the terms are reported one by one */
    acr_loss_kind kind[ACCRUE_MAX_LOSS_TERMS];
    double weight[ACCRUE_MAX_LOSS_TERMS];
} acr_loss_spec;

/* Draft rows of one chunk of vocabulary logits against target rows prepared by target_softmax. */
typedef struct acr_loss_args {
    const acr_loss_spec *spec;
    int64_t rows, vocab;
    void *z; /* [rows, vocab] draft logits; replaced by d(loss)/dz where scale != 0 */
    int64_t ldz;
    const int64_t *target_row; /* [rows] row of t, p, t_lse, t_argmax */
    const void *t;             /* [*, vocab] target logits */
    const void *p;             /* [*, vocab] their softmax */
    int64_t ldt;
    const double *t_lse;
    const int64_t *t_argmax;
    const double *scale; /* [rows] of the gradient: dz = scale * sum_terms weight * d(term)/dz */
    double *term_loss;   /* [rows, n_terms] =, unscaled and unweighted */
    int64_t *argmax;     /* [rows] =, lowest index on ties */
} acr_loss_args;

/* The table -------------------------------------------------------------------------------- */

typedef struct acr_backend {
    const char *name;
    acr_dtype real;
    size_t real_bytes;

    /* Each element of c is one chain of fused multiply-adds over k in order, so that no bit depends
     * on the rows computed together or, with `accumulate`, on a cut of k into several products.
     * (bf16 on matrix units: rows only.) */
    void (*gemm)(acr_gemm *g, const acr_gemm_args *args);

    /* Packs rows [first, first + rows) of the weight from `w`, real [rows, k], rounded to its type.
     * Rows come in order; the first of each call but the first one is a multiple of pack_rows.
     * packed_rows reads rows back:  out [n, k] =. */
    int64_t pack_rows;
    size_t (*packed_bytes)(acr_dtype type, int64_t n, int64_t k);
    void (*pack)(const acr_packed *p, int64_t first, int64_t rows, const void *w);
    void (*packed_rows)(const acr_packed *p, int64_t n, const int64_t *ids, void *out);
    /* The elements are gemm's of the same operands (NT), to the bit, for any m (not those of
     * matrix units). */
    void (*products)(const acr_products *x);
    void (*round_bf16)(int64_t n, const void *x, void *y); /* y may be x */

    /* kv_store writes rows of k and v [*, n_kv_heads * head_dim] into the runs' tiles; kv_attend
     * makes out [*, n_heads * head_dim] = attention of q over positions up to a row's own, scores
     * scaled by 1/sqrt(head_dim).  A row's bits depend on no other row of q. */
    int64_t (*kv_tile_elements)(int head_dim);
    void (*kv_store)(const acr_kv_heads *h, int64_t n_runs, const acr_kv_run *runs, const void *k,
                     const void *v);
    void (*kv_attend)(const acr_kv_heads *h, int64_t n_runs, const acr_kv_run *runs, const void *q,
                      void *out);

    /* y[r] = x[r] + bias[c] in place (y is x); db[c] += sum_r dy[r, c]. */
    void (*bias_forward)(int64_t rows, int64_t cols, const void *bias, void *y, int64_t ldy);
    void (*bias_backward)(int64_t rows, int64_t cols, const void *dy, int64_t ldy, void *db);

    /* y = x * rstd * w, rstd = 1/sqrt(mean x^2 + eps); rstd [rows] =.
     * backward, with x^ = x * rstd and g = dy * w:
     *   dx += rstd * (g - x^ * mean(g * x^));  dw += sum_r dy * x^.  dx or dw may be NULL. */
    void (*rmsnorm_forward)(int64_t rows, int64_t cols, const void *x, int64_t ldx, const void *w,
                            double eps, void *y, int64_t ldy, void *rstd);
    void (*rmsnorm_backward)(int64_t rows, int64_t cols, const void *x, int64_t ldx, const void *w,
                             const void *rstd, const void *dy, int64_t ldy, void *dx, int64_t lddx,
                             void *dw);

    /* Rotates halves: with c, s = row position[r] of the tables [*, head_dim / 2],
     *   y1 = x1 c - x2 s, y2 = x2 c + x1 s  per head; y =.
     * The backward rotates dy by the opposite angle, dx +=. */
    void (*rope_forward)(int64_t rows, int n_heads, int head_dim, const int64_t *position,
                         const void *cos, const void *sin, const void *x, void *y);
    void (*rope_backward)(int64_t rows, int n_heads, int head_dim, const int64_t *position,
                          const void *cos, const void *sin, const void *dy, void *dx);

    /* out [n_queries, n_heads * head_dim] =, lse [n_queries, n_heads] =.  k[0], v[0] are the base
     * [n_base, n_kv_heads * head_dim], k[1 + j] extra segment j.  Scores are scaled by
     * 1/sqrt(head_dim).  backward, P = exp(S - lse), D = rowsum(dout * out):
     *   dv += P^T dout;  dS = P * (dout v^T - D);  dq += dS k * scale;  dk += dS^T q * scale.
     * delta [n_queries, n_heads] is scratch.  dk[s], dv[s] are never NULL. */
    void (*attention_forward)(const acr_attention *a, const void *q, const void *const *k,
                              const void *const *v, void *out, void *lse);
    void (*attention_backward)(const acr_attention *a, const void *q, const void *const *k,
                               const void *const *v, const void *out, const void *lse,
                               const void *dout, void *delta, void *dq, void *const *dk,
                               void *const *dv);

    /* y = silu(g) * u; s = sigmoid(g):  du += dy * g s;  dg += dy * u * s (1 + g (1 - s)). */
    void (*swiglu_forward)(int64_t n, const void *g, const void *u, void *y);
    void (*swiglu_backward)(int64_t n, const void *g, const void *u, const void *dy, void *dg,
                            void *du);

    void (*add)(int64_t n, const void *a, const void *b, void *y); /* y = a + b */
    void (*accumulate)(int64_t n, const void *x, void *y);         /* y += x */
    /* y[i] = x[index[i]];  y[i] += x[index[i]];  y[index[i]] += x[i] (indices distinct). */
    void (*gather_rows)(int64_t rows, int64_t cols, const int64_t *index, const void *x,
                        int64_t ldx, void *y, int64_t ldy);
    void (*gather_add_rows)(int64_t rows, int64_t cols, const int64_t *index, const void *x,
                            int64_t ldx, void *y, int64_t ldy);
    void (*scatter_add_rows)(int64_t rows, int64_t cols, const int64_t *index, const void *x,
                             int64_t ldx, void *y, int64_t ldy);
    /* y[i] = table[ids[i]] from a table of any float type;  dtable[ids[i]] += dy[i], ids repeat. */
    void (*embed_forward)(int64_t rows, int64_t cols, const int64_t *ids, acr_dtype table_type,
                          const void *table, void *y);
    void (*embed_backward)(int64_t rows, int64_t cols, const int64_t *ids, const void *dy,
                           void *dtable);

    /* p = softmax(t) per row, with lse and argmax (lowest index on ties). */
    void (*target_softmax)(int64_t rows, int64_t vocab, const void *t, int64_t ldt, void *p,
                           double *lse, int64_t *argmax);
    void (*distill_loss)(const acr_loss_args *args);
    void (*argmax)(int64_t rows, int64_t vocab, const void *z, int64_t ldz, int64_t *argmax);
} acr_backend;

extern const acr_backend acr_cpu_f32, acr_cpu_f64;
const acr_backend *acr_backend_for(acr_dtype real);

#endif
