/* tape.h - a coarse reverse-mode tape: an append-only array of records, one per operator.
 *
 * Pushing an operator checks its shapes, runs its forward kernel at once and appends a record;
 * acr_tape_backward runs the records' backward kernels in reverse, so the order of every sum is the
 * order of the program.  Values, gradients and scratch live in an arena that is reset per
 * micro-batch.  Operators never fail loudly: the first failure stays in the tape's status, later
 * operators then do nothing and return NULL, and NULL inputs are accepted.
 *
 * Gradients of weights are added (+=) into acr_param.grad, in the accumulator's width. */
#ifndef ACR_TAPE_H
#define ACR_TAPE_H

#include "kernel/kernel.h"

/* Parameters of one layer; gathered, reduced and released together when training is sharded.  Those
 * that train lie in flat arrays, matrices before vectors, each from a multiple of ACR_ALIGN on. */
typedef struct acr_group {
    const char *name;
    int uses; /* records of the current tape that read it and have not been run backward */
    int64_t n, n_matrices; /* elements of the flat arrays; 0: nothing of it trains */
    void *grad;            /* real [n], what backward adds to; NULL where sharded and not in use */
    /* What this rank keeps: elements [cut[rank], cut[rank + 1]), all of them where not sharded. */
    const int64_t *cut; /* [ranks + 1] */
    void *master;       /* real */
    void *accumulator;  /* real: of the window's gradient; `grad` itself where not sharded */
} acr_group;

typedef struct acr_param {
    char *name;         /* as in the checkpoint, "layers.0.mlp.up_proj.weight" */
    int64_t rows, cols; /* a vector has cols = 1 */
    int n_dims;         /* in the file: 1 or 2 */
    acr_group *group;
    bool trainable;
    int64_t offset; /* in the group's flat arrays, when trainable */
    void *master;   /* real [rows, cols]; NULL for a frozen table that stays in its file, and for
                           what is sharded and not in use */
    void *grad;     /* real, in the group's `grad`; NULL when frozen, or that is */
    const void *frozen; /* frozen weight in frozen_type, when it has no master */
    acr_dtype frozen_type;
    const uint16_t *bf16; /* operand of bf16 products: a copy of the master, or the file's rows */
} acr_param;

typedef struct acr_value {
    int64_t rows, cols; /* row-major, contiguous */
    void *data;
    void *grad; /* NULL until something contributes */
    bool needs_grad;
} acr_value;

typedef struct acr_tape acr_tape;
typedef struct acr_record acr_record;

typedef struct acr_op {
    const char *name;
    void (*forward)(acr_tape *t, acr_record *r);
    void (*backward)(acr_tape *t, acr_record *r);
} acr_op;

enum { ACR_MAX_INPUTS = 2 * ACR_MAX_KV + 2 };

struct acr_record {
    const acr_op *op;
    acr_value *in[ACR_MAX_INPUTS];
    int n_in;
    acr_value *out;      /* NULL for the loss */
    acr_param *param[2]; /* weight, bias */
    bool counted;        /* in its groups' uses */
    void *args;          /* the operator's own, in the arena */
};

typedef void (*acr_group_hook)(acr_group *group, void *payload);

struct acr_tape {
    const acr_backend *backend;
    acr_gemm *gemm;
    bool bf16;            /* round the operands of matrix products to bf16 */
    bool no_grad;         /* forward only */
    int64_t row_capacity; /* arrays of fewer rows get space for as many (acr_tape_rows) */
    acr_arena arena;      /* activations, gradients, scratch */
    acr_arena meta;       /* records, values, row lists: small, and real while measuring too */
    acr_record **records;
    int64_t n_records, capacity;
    struct acr_free_block *pool; /* gradients and scratch to use again */
    int n_pool, pool_capacity;
    accrue_status status;
    accrue_error error;
    /* May be NULL.  `forward` and `backward` are called before each record that reads a group is
     * run, `ready` when the last one has been run backward: the group's gradient is complete.  None
     * is called while measuring, nor after a failure. */
    acr_group_hook group_forward, group_backward, group_ready;
    void *payload;
};

accrue_status acr_tape_init(acr_tape *t, accrue_dtype compute, accrue_error *err);
void acr_tape_free(acr_tape *t);
void acr_tape_reset(acr_tape *t);
/* While measuring, operators take space in the arena and have their products' primitives made, for
 * any number of rows up to theirs, but compute nothing; arena.high is the result. */
void acr_tape_measure(acr_tape *t, bool measuring);
/* The first failure of any operator or kernel since the last reset. */
accrue_status acr_tape_status(acr_tape *t, accrue_error *err);
/* Runs the tape backward from the loss records on it, and empties it of records; values stay. */
void acr_tape_backward(acr_tape *t);

/* Memory until the next reset; NULL (and a status) when there is none. */
void *acr_tape_alloc(acr_tape *t, int64_t count,
                     size_t size); /* not to be touched while measuring */
void *acr_tape_meta(acr_tape *t, int64_t count, size_t size); /* row lists and the like */
/* Rows to make room for in an array of `rows`: those of the largest micro-batch, so that every
 * micro-batch lays out its arrays, and uses them again, as the one that was measured. */
int64_t acr_tape_rows(const acr_tape *t, int64_t rows);
/* acr_tape_alloc for what may be given back before the tape ends. */
void *acr_tape_scratch(acr_tape *t, int64_t count, size_t size);
void acr_tape_release(acr_tape *t, void *block, int64_t count, size_t size);
accrue_status acr_tape_fail(acr_tape *t, accrue_status status, const char *format, ...)
    ACR_PRINTF(3, 4);

/* A value over data that the caller keeps until the tape is reset; no gradient. */
acr_value *acr_leaf(acr_tape *t, int64_t rows, int64_t cols, const void *data);
/* A copy of columns [column, column + cols) of the given rows of a matrix of `ld` columns. */
acr_value *acr_leaf_rows(acr_tape *t, int64_t n, const int64_t *rows, const void *data, int64_t ld,
                         int64_t column, int64_t cols);

/* Operators ------------------------------------------------------------------------------- */

/* y = x W[:, column : column + x.cols]^T (+ bias), W [out, *]. */
acr_value *acr_linear(acr_tape *t, acr_value *x, acr_param *w, int64_t column, acr_param *bias);
/* y[i] = table[ids[i]]. */
acr_value *acr_embed(acr_tape *t, int64_t n, const int64_t *ids, acr_param *table);
/* RMSNorm over consecutive stretches of w.rows columns (whole rows, or heads). */
acr_value *acr_rmsnorm(acr_tape *t, acr_value *x, acr_param *w, double eps);

typedef struct acr_rope_table {
    int64_t positions;
    int head_dim;
    void *cos, *sin; /* real [positions, head_dim / 2] */
} acr_rope_table;
/* position[i] < table->positions. */
acr_value *acr_rope(acr_tape *t, acr_value *x, const int64_t *position,
                    const acr_rope_table *table);
/* k[0], v[0] base, then a->n_extra segments, all distinct values; `a` is copied. */
acr_value *acr_attend(acr_tape *t, const acr_attention *a, acr_value *q, acr_value *const *k,
                      acr_value *const *v);
/* Of two distinct values. */
acr_value *acr_swiglu(acr_tape *t, acr_value *gate, acr_value *up);
acr_value *acr_add(acr_tape *t, acr_value *a, acr_value *b);
/* y[i] = x[index[i]]; indices distinct. */
acr_value *acr_gather_rows(acr_tape *t, acr_value *x, int64_t n, const int64_t *index);
/* y[i] = a[i] + x[index[i]]; indices distinct. */
acr_value *acr_gather_add(acr_tape *t, acr_value *a, acr_value *x, const int64_t *index);
acr_value *acr_concat(acr_tape *t, int n, acr_value *const *x);

/* One TTT step's part of the distillation loss. */
typedef struct acr_distill_step {
    acr_value *h;          /* [*, hidden], the rows that the draft head reads */
    int64_t n;             /* entries; targets ascend strictly */
    const int64_t *row;    /* [n] of h */
    const int64_t *target; /* [n] of the target rows */
    const bool *counted;   /* [n]: has a loss; otherwise a prediction only */
    double scale;          /* of the gradient of each counted row */
    double *term_loss;     /* [n, n_terms] =, unscaled; untouched where not counted */
    int64_t *argmax;       /* [n] = */
} acr_distill_step;

typedef struct acr_distill {
    const acr_loss_spec *spec;
    acr_param *head, *verifier_norm, *verifier_head; /* frozen */
    double eps;
    int64_t n_targets;
    const int64_t *target_row; /* [n_targets] row of `target` */
    const void *target;        /* [*, hidden] verifier states before its norm */
    int64_t *target_argmax;    /* [n_targets] = */
    int n_steps;
    acr_distill_step step[ACCRUE_MAX_TTT_STEPS];
} acr_distill;
/* Logits exist for a chunk of target rows at a time, for all TTT steps together; the gradient with
 * respect to step[k].h is made in the same pass. */
void acr_distill_loss(acr_tape *t, const acr_distill *d);
/* Target rows of a chunk. */
int64_t acr_distill_chunk(int64_t vocab, int n_steps, size_t real_bytes);

/* Every operator, for tests that must have a case for each. */
extern const acr_op *const acr_ops[];
extern const int acr_n_ops;

/* For the operators' own files. */
acr_record *acr_tape_push(acr_tape *t, const acr_op *op, int n_in, acr_value *const *in,
                          acr_value *out, acr_param *w, acr_param *bias, void *args);
acr_value *acr_value_new(acr_tape *t, int64_t rows, int64_t cols, bool needs_grad);
/* The value's gradient to add to, zeroed when new. */
void *acr_grad(acr_tape *t, acr_value *v);
/* The same for a kernel that can overwrite: *accumulate is false when the buffer is new. */
void *acr_grad_first(acr_tape *t, acr_value *v, bool *accumulate);
/* The product, or while measuring its preparation. */
void acr_tape_gemm(acr_tape *t, const acr_gemm_args *args);
const void *acr_param_operand(const acr_tape *t, const acr_param *p, bool *is_bf16);
extern const acr_op acr_op_distill;

#endif
