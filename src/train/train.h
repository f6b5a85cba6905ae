/* train.h - the training layer: the window over arrays, its optimizers.
 *
 * The public half of each file is declared in accrue/accrue.h; here is what the layer's files and
 * the built-in trainer need beside it.  One section per file. */
#ifndef ACR_TRAIN_H
#define ACR_TRAIN_H

#include "kernel/kernel.h"

/* window.c --------------------------------------------------------------------------------- */

/* Registers a parameter of the built-in model.  `accumulator` has the parameter's width and is
 * added to by the caller's kernels, with weights that make the finished sum the window's gradient:
 * the window scales nothing.  All arrays are borrowed until the window is freed.  A window has
 * either such parameters or those of accrue_window_add_param; mixing them is ESTATE.
 * The loop is: begin, forward and backward, count, and then clip, step, lr_step, zero_grad. */
accrue_status acr_window_add_accumulated(accrue_window *window, const char *name, acr_dtype dtype,
                                         void *param, void *accumulator, int64_t rows, int64_t cols,
                                         accrue_error *err);

/* Before each micro-batch: where the last window is over, empties the accumulators for the next.
 * Costs nothing in mid-window or when zero_grad has done it. */
void acr_window_begin(accrue_window *window);

/* Counts a completed micro-batch whose gradient is in the accumulators.  `loss` carries its final
 * weight, so that the window's loss is the plain sum; has_weight is false where the micro-batch had
 * nothing to learn from.  ESTATE without acr_window_begin; ENUMERIC, and not counted, for a loss
 * that is not finite: the accumulators hold that micro-batch, so acr_window_zero must follow. */
accrue_status acr_window_count(accrue_window *window, double loss, bool has_weight,
                               accrue_error *err);

/* Empties the window wherever it stands; its micro-batches stay counted in the total only. */
void acr_window_zero(accrue_window *window);

/* Ends a window that is not full, as tail policy `step` does after an epoch: clip, step, lr_step
 * and zero_grad act as at any boundary.  Gradients handed over by accrue_window_backward are then
 * divided by the real number of micro-batches.  False, and nothing done, where none is open. */
bool acr_window_close_short(accrue_window *window);

int64_t acr_window_filled(const accrue_window *window); /* micro-batches in the current window */

/* The optimizer's arrays, for saving.  All parameters share the step count
 * accrue_window_global_step. */
typedef enum acr_moment {
    ACR_MOMENT_EXP_AVG = 0,    /* AdamW's first moment */
    ACR_MOMENT_EXP_AVG_SQ = 1, /* AdamW's second moment */
    ACR_MOMENT_MOMENTUM = 2    /* Muon's momentum buffer */
} acr_moment;

typedef struct acr_optimizer_state {
    const char *name; /* of the parameter */
    acr_moment moment;
    acr_dtype dtype;
    void *data;
    int64_t rows, cols;
} acr_optimizer_state;

int acr_window_n_states(const accrue_window *window);
acr_optimizer_state acr_window_state(const accrue_window *window, int i);

/* optim.c ---------------------------------------------------------------------------------- */

typedef struct acr_window_param {
    char *name;
    acr_dtype dtype; /* F32 or F64: of param, grad, accumulator and moments */
    bool muon;       /* else AdamW */
    bool owns_accumulator;
    int64_t rows, cols;
    void *param;
    const void *grad; /* NULL where the caller's kernels add to the accumulator */
    void *accumulator;
    void *moment[2]; /* AdamW: first and second; Muon: momentum, NULL */
} acr_window_param;

/* All parameters cut into blocks.  The cut depends on their sizes alone, which fixes the order of
 * every sum whatever the number of threads. */
enum { ACR_BLOCK = 16384 }; /* elements; several arrays of a block fit a second-level cache */

typedef struct acr_block {
    const acr_window_param *param;
    int64_t begin, count;
    double sum;  /* of squares */
    int64_t bad; /* first element that is not finite, -1 */
} acr_block;

/* Muon for matrices with both sides > 1 whose names have none of embed_tokens, lm_head, codebook,
 * markov_w1, markov_w2. */
bool acr_muon_takes(const char *name, int64_t rows, int64_t cols);

typedef struct acr_optim acr_optim; /* scratch */

/* Scratch for the parameters given; blocks and parameters are borrowed. */
accrue_status acr_optim_create(acr_optim **out, const accrue_window_options *opt,
                               const acr_window_param *params, int n_params, acr_block *blocks,
                               int64_t n_blocks, accrue_error *err);
void acr_optim_free(acr_optim *optim);

/* accumulator = grad / divisor where `first`, += otherwise. */
void acr_optim_accumulate(acr_optim *optim, double divisor, bool first);
/* accumulator = 0. */
void acr_optim_zero(acr_optim *optim);
/* First block with a gradient (or accumulator) that is not finite; NULL: none.  Sets bad. */
const acr_block *acr_optim_find_nonfinite(acr_optim *optim, bool accumulators);
/* Sum of squares over all accumulators. */
double acr_optim_sum_squares(acr_optim *optim);

typedef struct acr_optim_args {
    int64_t step;       /* 1-based */
    double lr, muon_lr; /* of this step */
    double factor;      /* of every accumulator: normalisation and clipping */
} acr_optim_args;

/* One update of every parameter.  Fails only where a matrix product cannot be prepared. */
accrue_status acr_optim_step(acr_optim *optim, const acr_optim_args *args, accrue_error *err);

#endif
