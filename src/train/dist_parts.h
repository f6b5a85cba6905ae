/* dist_parts.h - what dist.c and reduce.c share: a group as ranks see it. */
#ifndef ACR_DIST_PARTS_H
#define ACR_DIST_PARTS_H

#include "train/train.h"

typedef struct acr_part acr_part;

struct acr_part {
    acr_dist *d;
    acr_group *g;
    int64_t first_use, last_use; /* records of the largest micro-batch; -1: none */
    bool passing;

    bool as_bf16;         /* matrices are gathered as the bf16 operands that they are */
    void *weights;        /* sharded: [n_matrices], whole */
    void *vectors;        /* sharded: real [n - n_matrices], whole; always there */
    void *grad;           /* real [n]: a micro-batch's own; NULL: that is the sum itself */
    void *sum;            /* real [n], over micro-batches: the accumulator, or its deferred whole */
    acr_exact *exact;     /* reproducible: the sum, in place of it; whole or of this rank's share */
    size_t *weight_begin; /* [ranks + 1] bytes of the ranks' shares of `weights` */
    size_t *vector_begin; /* of `vectors` */
    int64_t *grad_begin;  /* elements of the ranks' shares of the gradient */
    size_t *grad_byte_begin; /* replicated: bytes of them */
    acr_comm_request gather, reduce, spread;
    bool gathered, touched;
};

struct acr_dist {
    acr_model *model;
    accrue_comm *comm;
    int rank, ranks;
    bool sharded, defer;
    bool reproducible;
    bool apart;  /* a micro-batch's gradient has arrays of its own */
    bool shares; /* gradients are reduced into shares after each micro-batch */

    acr_part *parts; /* [n] in the order of first uses */
    int n;
    void *passing_weights, *passing_grad;
    acr_part *passing; /* whose gradient is in passing_grad */
    int64_t bytes, deferred_bytes;

    acr_tape *tape;
    bool backward, last; /* of the micro-batch under way */
    int forward_at;      /* parts gathered forward */
    int backward_at;     /* parts reduced backward, from the last on */
    accrue_status status;
    accrue_error error;
};

static inline size_t real_bytes(const acr_dist *d)
{
    return acr_dtype_bytes(d->model->real);
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Waits for a request; a failure of the job stays in d->status, and in the tape's. */
void acr_dist_wait(acr_dist *d, acr_comm_request *r);

/* reduce.c: the group's gradient of this micro-batch is complete.  Adds it to the sum, and begins
 * the reduction where it is time; a gradient that is not finite stays in d->status. */
void acr_part_complete(acr_part *p);
/* Before the first gradient of a micro-batch goes into the group. */
void acr_part_touch(acr_part *p);

#endif
