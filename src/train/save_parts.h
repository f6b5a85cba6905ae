/* save_parts.h - a checkpoint being written, for the files that do it: save_contents.c takes what
 * goes into it, save_pieces.c brings the shares of a sharded model to rank 0, save.c writes. */
#ifndef ACR_SAVE_PARTS_H
#define ACR_SAVE_PARTS_H

#include "train/train.h"

#include <stdatomic.h>

enum {
    PIECE = 1 << 20,
    BUFFERS = 6, /* a piece for each of the two files; one in the widest type for what ranks send */
    MAPS = 2,    /* d2t, t2d */
    MAX_TEXTS = 4
};

/* An array of the run that goes into the files. */
typedef struct acr_origin {
    const void *live;
    int64_t begin, n;        /* elements that `live` has: of a sharded model, this rank's share */
    const acr_param *shared; /* whose shares the ranks have; NULL: each rank has all */
    void *copy;              /* of an array that was about to change; NULL: live is read */
    size_t bytes;
    acr_dtype dtype;
    bool changes;
    int left; /* tensors of it that are not written yet */
} acr_origin;

/* The tensors of one safetensors file, sorted by name. */
typedef struct acr_tensor_file {
    acr_tensor *t;
    int *from; /* index of each one's origin; -1: `data` is complete and stays */
    int n;
} acr_tensor_file;

struct acr_save {
    char *dir, *parent, *temporary;
    bool whole; /* with the state, to go on from */
    struct {
        const char *name;
        char *text;
    } texts[MAX_TEXTS];
    int n_texts;
    acr_tensor_file weights, states;
    acr_origin *origins;
    int n_origins;
    void *buffer;  /* [BUFFERS * PIECE] */
    int64_t bytes; /* of all files, about */

    pthread_mutex_t lock; /* of the origins, `stage` and `verdict` */
    pthread_cond_t changed;
    pthread_t thread;
    acr_ledger *ledger; /* the run's, which the threads go by too */
    bool has_lock, has_thread, detached;
    enum { WRITING, WAITING, NAMING } stage;
    bool wait; /* in between */
    accrue_status verdict;
    accrue_error reason;
    /* Of a sharded model: which piece of which file the ranks exchange next. */
    accrue_comm *comm;
    struct {
        const acr_tensor_file *f;
        int t;
        size_t offset;
    } at;
    accrue_status lost; /* how an exchange failed */
    accrue_error loss;
    atomic_bool done;
    accrue_status status;
    accrue_error error;
    acr_save_result result;
};

/* Config, metrics, state and the arrays, sorted as the files have them. */
accrue_status acr_save_take(acr_save *s, const char *dir, acr_model *m, const acr_save_content *c,
                            accrue_error *err);

/* The next piece of a tensor that ranks share, on rank 0, which asks for the pieces in the very
 * order in which the others send them.  What a failed job left unread is zeros: s->lost tells. */
const void *acr_save_piece(acr_save *s, void *buffer, const acr_tensor *t, size_t n);
/* This rank's part in all pieces that are left. */
void acr_save_send_rest(acr_save *s);

#endif
