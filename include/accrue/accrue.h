/* accrue.h - train speculative-decoding draft models with exact gradient accumulation.
 *
 * Contract for every function below
 *   Status     returns accrue_status; 0 is success.  `err` may be NULL; when given it is
 *              written only on failure and never allocates.
 *   Outputs    come first, are named `out`, and are NULL (or zero) after a failure.
 *   Ownership  what a *_create/_open returns belongs to the caller until *_free.  *_free
 *              accepts NULL.  A `const T *` result lives as long as the object asked.
 *              Strings in options are borrowed for the duration of the call.
 *   Threads    an object serves one thread at a time; different objects are independent.
 *              Kernels use up to accrue_set_threads() threads of one pool per process, ranks
 *              that are threads of the process an even share each.
 *   Silence    the library never prints, exits, reads the environment or sets signals.
 *
 * Vocabulary: a *micro-batch* is one forward and backward; a *window* is the N micro-batches
 * between two optimizer steps, N = gradient_accumulation_steps. */
#ifndef ACCRUE_H
#define ACCRUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ACCRUE_API   __attribute__((visibility("default")))
#define ACCRUE_CHECK __attribute__((warn_unused_result))
#else
#define ACCRUE_API
#define ACCRUE_CHECK
#endif

#define ACCRUE_VERSION_MAJOR 0
#define ACCRUE_VERSION_MINOR 1
#define ACCRUE_VERSION_PATCH 0

ACCRUE_API const char *accrue_version(void); /* of the library linked, not of this header */

/* Values are stable: new ones are appended, none is renumbered. */
typedef enum accrue_status {
    ACCRUE_OK = 0,
    ACCRUE_ENOMEM = 1,
    ACCRUE_EINVAL = 2,    /* an argument or option that no call could accept */
    ACCRUE_ESTATE = 3,    /* the right call at the wrong time */
    ACCRUE_EIO = 4,       /* the system refused a read or a write */
    ACCRUE_EFORMAT = 5,   /* a file's bytes break its format */
    ACCRUE_EMISMATCH = 6, /* two valid things disagree: shape, vocabulary, config */
    ACCRUE_ENOTSUP = 7,   /* this build or version lacks it */
    ACCRUE_ENUMERIC = 8,  /* a loss or gradient is NaN or infinite */
    ACCRUE_ECANCELED = 9, /* a callback asked to stop */
    ACCRUE_EVERIFY = 10,  /* accrue_verify: a difference exceeds its bound */
    ACCRUE_ENOSPACE = 11, /* no room on the disk, or in its quota */
    ACCRUE_ECOMM = 12     /* a rank is lost, or did not come in time */
} accrue_status;

typedef struct accrue_error {
    accrue_status status;
    char message[1000]; /* one line, NUL-terminated, no trailing newline */
} accrue_error;

ACCRUE_API const char *accrue_status_name(accrue_status status); /* "ACCRUE_EINVAL" */

typedef enum accrue_dtype { ACCRUE_F32 = 1, ACCRUE_F64 = 2, ACCRUE_BF16 = 3 } accrue_dtype;

/* Threads of the kernels, for the whole process; n < 1 is one per core. */
ACCRUE_API void accrue_set_threads(int n);

/* Ranks ----------------------------------------------------------------------------------- */

/* One rank's end of a job of several.  Functions marked [collective] that are given one are called
 * on every rank of the job, with the same arguments, each rank by a thread or process of its own;
 * they then fail on all ranks alike: with the status of the first failure, and its message, which
 * names the rank that it came from. */
typedef struct accrue_comm accrue_comm;

/* Ranks as threads of this process: out[0] to out[ranks - 1], each for a thread of its own.  A rank
 * that does not come to a collective within `timeout` seconds is lost, and ends the job; 0: never.
 * EINVAL for ranks < 1 or a timeout that is no number of seconds. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_comm_open_threads(accrue_comm **out, int ranks,
                                                               double timeout, accrue_error *err);
/* This process as a rank of an MPI job (mpirun, srun).  [collective]  Starts MPI where nobody has;
 * accrue_comm_free then ends it.  Until then a thread of the library calls MPI: others
 * may only at MPI_THREAD_MULTIPLE.  ENOTSUP where this build has no MPI. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_comm_open_mpi(accrue_comm **out, double timeout,
                                                           accrue_error *err);
/* [collective]  After a failure of the job this waits for nobody but, for some seconds at most,
 * rank 0 to come here: report the failure first.  MPI is then left as it is; the process has to
 * exit with a status other than 0, by which the launcher ends the others. */
ACCRUE_API void accrue_comm_free(accrue_comm *comm);
ACCRUE_API int accrue_comm_rank(const accrue_comm *comm); /* 0 for NULL */
ACCRUE_API int accrue_comm_size(const accrue_comm *comm); /* 1 for NULL */
/* Ranks of the job on this machine, which share its cores. */
ACCRUE_API int accrue_comm_local_size(const accrue_comm *comm);
/* Cores of this machine for this rank: those that it may run on, each shared with the ranks of the
 * job that may run there too; at least 1.  [collective] */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_comm_cores(int *out, accrue_comm *comm,
                                                        accrue_error *err);
/* The greatest of the ranks' values, on all.  [collective] */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_comm_greatest(int *out, accrue_comm *comm, int value,
                                                           accrue_error *err);
/* Whether this rank is the one to tell people of the job's failure: rank 0, or any where that is
 * lost. */
ACCRUE_API bool accrue_comm_reports(accrue_comm *comm);

/* The window ------------------------------------------------------------------------------ */

typedef enum accrue_loss_normalization {
    ACCRUE_NORMALIZE_MICROBATCH = 1, /* mean over the window of each micro-batch's own mean */
    ACCRUE_NORMALIZE_TOKEN = 2       /* one denominator per loss term for the whole window */
} accrue_loss_normalization;

typedef enum accrue_tail {
    ACCRUE_TAIL_DROP = 1, /* micro-batches that do not fill a window are dropped */
    ACCRUE_TAIL_STEP = 2  /* they make a short window, divided by its real size */
} accrue_tail;

typedef enum accrue_optimizer {
    ACCRUE_ADAMW = 1, /* Loshchilov & Hutter 2019, decoupled decay on every parameter */
    ACCRUE_MUON = 2   /* Jordan et al. 2024 for the matrices, AdamW for the rest */
} accrue_optimizer;

typedef enum accrue_muon_adjust {
    ACCRUE_MUON_ORIGINAL = 1,       /* lr * sqrt(max(1, rows / cols)) */
    ACCRUE_MUON_MATCH_RMS_ADAMW = 2 /* lr * 0.2 * sqrt(max(rows, cols)) */
} accrue_muon_adjust;

typedef enum accrue_scheduler {
    ACCRUE_SCHEDULE_LINEAR = 1,
    ACCRUE_SCHEDULE_COSINE = 2,
    ACCRUE_SCHEDULE_NONE = 3
} accrue_scheduler;

/* What happens at the end of a window.  Defaults are the Python trainer's. */
typedef struct accrue_window_options {
    size_t struct_size;                  /* set by accrue_window_options_init; do not touch */
    int64_t gradient_accumulation_steps; /* N >= 1; default 1 */
    accrue_loss_normalization loss_normalization;
    double clip_norm; /* over the window's whole gradient; 0 disables; default 1.0 */
    accrue_optimizer optimizer;
    double lr, beta1, beta2, eps, weight_decay;
    double muon_lr; /* NaN: lr */
    double muon_momentum, muon_weight_decay;
    int muon_ns_steps;
    accrue_muon_adjust muon_adjust;
    accrue_dtype muon_ns_dtype; /* of the Newton-Schulz products; 0: the parameters' dtype */
    accrue_scheduler scheduler;
    int64_t total_steps, warmup_steps; /* in optimizer steps */
    double num_cosine_cycles;
} accrue_window_options;

ACCRUE_API void accrue_window_options_init(accrue_window_options *opt, size_t struct_size);

/* Optimizer state and one accumulation window over arrays that the caller owns.
 *
 *   for each micro-batch:
 *       compute gradients into the registered arrays, any way you like
 *       accrue_window_backward(w, ...)    adds them to the window, counts the micro-batch
 *       accrue_window_clip(w, ...)
 *       accrue_window_step(w, ...)
 *       accrue_window_lr_step(w)
 *       accrue_window_zero_grad(w)
 *
 * clip, step, lr_step and zero_grad act only where the number of completed micro-batches is a
 * positive multiple of N and do nothing elsewhere, so they may be called after every one.  Each
 * acts once per window; a window that was not zeroed, or not even stepped, makes room for the next
 * one at that one's first micro-batch. */
typedef struct accrue_window accrue_window;

/* EINVAL for N < 1 and for any other value out of range. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_window_create(accrue_window **out,
                                                           const accrue_window_options *opt,
                                                           accrue_error *err);
ACCRUE_API void accrue_window_free(accrue_window *window);

/* Registers `param` [rows, cols] and `grad` of the same shape and dtype (F32 or F64); both are
 * borrowed until the window is freed.  A vector has cols = 1.  `name` is copied; it decides,
 * with the shape, between Muon and AdamW.  The accumulator is f32 for F32 and f64 for F64.
 * ESTATE after the first micro-batch. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_window_add_param(accrue_window *window,
                                                              const char *name, accrue_dtype dtype,
                                                              void *param, const void *grad,
                                                              int64_t rows, int64_t cols,
                                                              accrue_error *err);

/* Hands over one micro-batch.  The grad arrays hold the gradient of a loss *summed* over
 * `weight` units (tokens, rows); pass 1 when it is a mean already.  The window becomes
 *   microbatch: (1/N) * sum_i grad_i / weight_i       token: sum_i grad_i / sum_i weight_i.
 * `loss` is summed likewise.  ENUMERIC, and nothing added, when `loss` or a gradient is not
 * finite; EINVAL for a negative weight.  A weight of 0 adds nothing and counts. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_window_backward(accrue_window *window, double loss,
                                                             double weight, accrue_error *err);

/* The global norm before clipping in *norm (may be NULL); 0 away from a boundary. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_window_clip(accrue_window *window, double *norm,
                                                         accrue_error *err);
/* *stepped (may be NULL) tells whether the parameters changed.  A window whose weights are all
 * zero changes nothing and counts as empty. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_window_step(accrue_window *window, bool *stepped,
                                                         accrue_error *err);
ACCRUE_API void accrue_window_lr_step(accrue_window *window);
ACCRUE_API void accrue_window_zero_grad(accrue_window *window);

ACCRUE_API bool accrue_window_at_boundary(const accrue_window *window);
ACCRUE_API int64_t accrue_window_micro_batches(const accrue_window *window); /* completed */
ACCRUE_API int64_t accrue_window_global_step(const accrue_window *window);   /* optimizer steps */
ACCRUE_API int64_t accrue_window_empty(const accrue_window *window); /* windows without weight */
ACCRUE_API double accrue_window_lr(const accrue_window *window); /* the next step's, AdamW group */
ACCRUE_API double accrue_window_muon_lr(const accrue_window *window);
/* Loss of the window at whose boundary we are, normalised as its gradient. */
ACCRUE_API double accrue_window_loss(const accrue_window *window);

/* Optimizer steps in an epoch of `micro_batches`: rounded down for TAIL_DROP, up for TAIL_STEP. */
ACCRUE_API int64_t accrue_steps_per_epoch(int64_t micro_batches, int64_t n, accrue_tail tail);
/* Optimizer steps between two checkpoints inside an epoch: max(1, steps_per_epoch * freq), halves
 * to the even neighbour; freq in (0, 1). */
ACCRUE_API int64_t accrue_checkpoint_interval(int64_t steps_per_epoch, double freq);
/* Whether a checkpoint is due after `step` (1-based, in this epoch). */
ACCRUE_API bool accrue_checkpoint_due(int64_t step, int64_t steps_per_epoch, double freq);
/* Multiplier of the base LR for 0-based optimizer step `step`. */
ACCRUE_API double accrue_lr_factor(accrue_scheduler scheduler, int64_t step, int64_t warmup_steps,
                                   int64_t total_steps, double num_cosine_cycles);

/* Training a draft model ------------------------------------------------------------------ */

typedef enum accrue_policy {
    ACCRUE_POLICY_RAISE = 1,  /* stop with an error */
    ACCRUE_POLICY_SKIP = 2,   /* count, report, go on */
    ACCRUE_POLICY_WARN = 3,   /* the same with a notice for each (on_missing alone) */
    ACCRUE_POLICY_EXTRACT = 4 /* let the verifier, which is then needed whole, make what is missing
                                 each time it is used; nothing is written (on_missing alone) */
} accrue_policy;

typedef enum accrue_best_metric {
    ACCRUE_BEST_LOSS = 1,      /* the least validation loss */
    ACCRUE_BEST_ACCEPTANCE = 2 /* the greatest expected acceptance length of the validation */
} accrue_best_metric;

/* One field per flag of `accrue train`, with the flag's name and default.  "unset" fields follow
 * the verifier or the data, as the flag's help says. */
typedef struct accrue_train_options {
    size_t struct_size;           /* set by accrue_train_options_init; do not touch */
    accrue_window_options window; /* total_steps, warmup_steps: computed from the fields below */

    const char *verifier; /* --verifier-name-or-path, a folder */
    uint64_t seed;

    /* Ranks.  Results are those of one rank with N * ranks micro-batches a window. */
    int ranks;             /* --ranks: threads of this process; 0 or 1: one, or those of `comm` */
    accrue_comm *comm;     /* this rank's end of a job; NULL: none */
    int64_t global_window; /* --global-window: N * ranks; 0: unset (N is given) */
    bool fsdp_shard;       /* masters, moments and gradients are split over the ranks */
    bool defer_reduce;   /* with fsdp_shard: gradients are whole on each rank up to the boundary */
    bool reproducible;   /* the same bits for every number of ranks, layout and split */
    double comm_timeout; /* seconds; of `ranks` */

    const char *from_pretrained; /* a checkpoint folder, or a folder with a config.json alone */
    const char *draft_config;    /* config.json (file or folder) of the draft's decoder */
    int num_layers;              /* 0: unset (1) */
    const char *draft_arch;      /* "llama", "qwen3"; NULL: unset (llama) */
    const char *draft_hidden_act;
    const int *target_layer_ids; /* n_target_layer_ids of them; 0: unset */
    int n_target_layer_ids;
    int64_t draft_vocab_size; /* 0: unset (whole vocabulary) */
    const char *d2t_path, *t2d_path;
    bool norm_before_residual, embed_requires_grad, fc_norm;
    int norm_before_fc, norm_output; /* 0, 1; -1: unset */
    int64_t sliding_window;
    const int *full_attention_indices;
    int n_full_attention_indices;

    const char *data_path, *hidden_states_path; /* NULL: data_path/hidden_states */
    int64_t total_seq_len;
    double train_data_ratio;
    accrue_dtype compute;     /* --hidden-states-dtype */
    accrue_policy on_missing; /* a row without a file of hidden states */
    accrue_policy on_bad;     /* a row, or its hidden states, that cannot be used */
    int64_t max_bad;     /* rows left out before the run stops; -1: unset (see the flag's help) */
    int64_t check_bytes; /* hidden states of no more than that are checked before the first step */
    double lock_timeout; /* seconds to wait for a file that is being written */

    const char *loss_fn; /* a name, or a JSON object {"name": weight, ...} */
    int ttt_steps;
    double ttt_step_loss_decay;
    bool across_documents;

    int64_t scheduler_warmup_steps; /* -1: unset */
    double scheduler_warmup_ratio;  /* NaN: unset */
    int64_t scheduler_total_steps;  /* 0: unset */
    accrue_tail accumulation_tail;

    int64_t epochs, max_steps; /* max_steps 0: no limit */
    double checkpoint_freq;
    bool save_best;
    accrue_best_metric best_metric; /* what checkpoint_best and save_best go by; default LOSS */
    int64_t keep; /* checkpoints of this training to keep, the newest, beside the best; 0: all */
    accrue_policy on_save_error; /* RAISE: stop; SKIP: --on-save-error continue; default RAISE */
    int64_t log_freq; /* optimizer steps between two records of the caller's log; default 1 */
    bool no_resume; /* --no-resume-from-checkpoint: begin anew, over the checkpoints in save_path */
    const char *resume_from; /* a checkpoint folder; NULL: the newest valid one in save_path */
    const char *save_path;
    const char *batch_plan, *dump_batch_plan; /* files; NULL: none */
    accrue_policy on_nonfinite;
} accrue_train_options;

ACCRUE_API void accrue_train_options_init(accrue_train_options *opt, size_t struct_size);

#define ACCRUE_MAX_TTT_STEPS  16
#define ACCRUE_MAX_LOSS_TERMS 8

/* Sums and totals over a set of micro-batches; a metric is sum / total, 0 where the total is. */
typedef struct accrue_metrics {
    int n_steps, n_terms; /* TTT steps; terms of a mixed loss, 0 for a single one */
    double loss_sum, loss_total;
    double step_loss_sum[ACCRUE_MAX_TTT_STEPS], step_loss_total[ACCRUE_MAX_TTT_STEPS];
    double full_acc_sum[ACCRUE_MAX_TTT_STEPS], full_acc_total[ACCRUE_MAX_TTT_STEPS];
    double cond_acc_sum[ACCRUE_MAX_TTT_STEPS], cond_acc_total[ACCRUE_MAX_TTT_STEPS];
    const char *term_name[ACCRUE_MAX_LOSS_TERMS]; /* static strings */
    double term_loss_sum[ACCRUE_MAX_LOSS_TERMS][ACCRUE_MAX_TTT_STEPS];
    double term_loss_total[ACCRUE_MAX_LOSS_TERMS][ACCRUE_MAX_TTT_STEPS];
    int64_t tokens, supervised_tokens; /* rows of the micro-batches, padding not counted */
    int64_t error_records;             /* samples that were left out of them, missing or bad */
} accrue_metrics;

/* Plain sums of two sets of metrics, into *into. */
ACCRUE_API void accrue_metrics_add(accrue_metrics *into, const accrue_metrics *m);
/* Expected acceptance length: drafted tokens that the verifier accepts per step of its own, the sum
 * over k of the product of the conditional accuracies up to k. */
ACCRUE_API double accrue_metrics_acceptance(const accrue_metrics *m);

typedef enum accrue_event_kind {
    ACCRUE_EVENT_START =
        1, /* plan is valid; where `resumed`, epoch, global_step and micro_batch say
                                 where the run goes on (a finished one: behind its last epoch) */
    ACCRUE_EVENT_MICRO_BATCH, /* one forward and backward done */
    ACCRUE_EVENT_STEP,        /* an optimizer step was taken; metrics are the window's */
    ACCRUE_EVENT_VALIDATION,  /* an epoch was validated; metrics are the epoch's */
    ACCRUE_EVENT_EPOCH,       /* an epoch begins */
    ACCRUE_EVENT_CHECKPOINT,  /* `message` is the folder, which is on the disk now; epoch,
                                 global_step and micro_batch are those that it holds */
    ACCRUE_EVENT_NOTICE,      /* `message` is one line worth showing */
    ACCRUE_EVENT_VALIDATING,  /* micro_batch of micro_batches of a validation are done */
    ACCRUE_EVENT_WAITING      /* the next rows are not there yet: they are being written or made,
                                 or their file system is slow; told about five times a second */
} accrue_event_kind;

/* What a run will do, known before its first step. */
typedef struct accrue_train_plan {
    int64_t train_rows, val_rows;
    int64_t params, trainable_params;
    int64_t epochs, total_steps; /* optimizer steps over all epochs */
    int64_t first_epoch_micro_batches, first_epoch_steps;
    int64_t min_epoch_steps, max_epoch_steps, max_epoch_micro_batches;
    int64_t dropped_micro_batches; /* over all epochs */
    int64_t schedule_total_steps, warmup_steps;
    int64_t peak_bytes; /* predicted, of the process, with all its ranks */
    int64_t vocab_size, draft_vocab_size;
    bool vocab_built;     /* the maps were counted, not read */
    int64_t missing_rows; /* left out for want of hidden states; not in train_rows, val_rows */
    int64_t bad_rows;     /* left out as bad, of those that were checked before the first step */
    int ranks;
    bool sharded;           /* over the ranks */
    int64_t window;         /* micro-batches of a step, of all ranks together */
    int64_t rank_bytes;     /* masters, moments and accumulated gradients of a rank */
    int64_t passing_bytes;  /* what a rank has beside, to exchange weights and gradients */
    int64_t deferred_bytes; /* of passing_bytes, what defer_reduce alone needs */
} accrue_train_plan;

typedef struct accrue_event {
    accrue_event_kind kind;
    int rank; /* that tells it: every rank of `comm` does, of `ranks` threads the first alone */
    const accrue_train_plan *plan;
    bool resumed;          /* the run goes on from a checkpoint */
    int64_t epoch;         /* 0-based */
    int64_t global_step;   /* optimizer steps completed */
    int64_t micro_batch;   /* of the epoch, 1-based, completed */
    int64_t micro_batches; /* of the epoch */
    double lr, muon_lr;    /* used by the step */
    double grad_norm;      /* before clipping */
    double seconds;        /* since the run started */
    double data_seconds, forward_backward_seconds, optimizer_seconds; /* of this window */
    int64_t skipped_nonfinite, empty_windows, skipped_rows;           /* so far */
    accrue_metrics metrics;
    const char *message;
    /* Of a CHECKPOINT: its size, how long it took to write, and how long training waited for it. */
    int64_t save_bytes;
    double save_seconds, save_wait_seconds;
    /* Of this rank in this window: how long it waited for others, what it sent them. */
    double comm_seconds;
    int64_t comm_bytes;
} accrue_event;

/* What a callback answers.  Any other value is CANCEL.  Only accrue_train does what the last three
 * ask for, and of several it does the last in this list; elsewhere SAVE is GO_ON and the other two
 * are CANCEL. */
typedef enum accrue_answer {
    ACCRUE_GO_ON = 0,
    ACCRUE_CANCEL = 1,        /* stop at this point with ECANCELED; no further save is begun */
    ACCRUE_SAVE = 2,          /* save at the end of the window and go on */
    ACCRUE_SAVE_AND_STOP = 3, /* finish the window, save, and return ECANCELED; a validation is left
                                 for the run that goes on, and so is a window of which no
                                 micro-batch is there yet */
    ACCRUE_GIVE_UP_AND_STOP = 4 /* the same without finishing the window */
} accrue_answer;

typedef int (*accrue_event_cb)(const accrue_event *event, void *payload);

/* Runs the whole training: plan, epochs, validation, checkpoints.  Goes on from the newest valid
 * checkpoint in save_path, to the bits of a run that was never stopped.  `cb` may be NULL. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_train(const accrue_train_options *opt,
                                                   accrue_event_cb cb, void *payload,
                                                   accrue_error *err);
/* --dry-run: checks everything that can be checked without training, writes the initialised
 * checkpoint as the folder save_path, which must be new or empty, and fills *out. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_train_dry_run(accrue_train_plan *out,
                                                           const accrue_train_options *opt,
                                                           accrue_event_cb cb, void *payload,
                                                           accrue_error *err);

/* A training run in pieces, for callers with their own loop around the built-in model:
 *   accrue_run_open; then for each epoch accrue_run_epoch, and while accrue_run_next is true:
 *   accrue_run_forward_backward, _clip, _step, _lr_step, _zero_grad; then accrue_run_validate and
 *   accrue_run_save.  accrue_train() is this loop; it alone goes on from checkpoints, also from
 *   those that accrue_run_save wrote.
 * A loop may be left in mid-window and entered again.  accrue_run_epoch drops what an unfinished
 * window has gathered.  After a failed forward_backward the epoch is over: accrue_run_next is
 * false, the weights are those of the last step, and accrue_run_epoch may begin another.
 *   With opt->comm all of them but _plan, _next, _lr_step, _zero_grad and _free are [collective]:
 * every rank runs the same loop, each forward_backward one of its own micro-batches, or none where
 * a short window has none for it; a failure of any rank is known at the window's edge, and is the
 * end of the job. */
typedef struct accrue_run accrue_run;

ACCRUE_API ACCRUE_CHECK accrue_status accrue_run_open(accrue_run **out,
                                                      const accrue_train_options *opt,
                                                      accrue_event_cb cb, void *payload,
                                                      accrue_error *err);
ACCRUE_API const accrue_train_plan *accrue_run_plan(const accrue_run *run);
ACCRUE_API ACCRUE_CHECK accrue_status accrue_run_epoch(accrue_run *run, int64_t epoch,
                                                       accrue_error *err);
ACCRUE_API bool accrue_run_next(const accrue_run *run); /* micro-batches of this epoch are left */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_run_forward_backward(accrue_run *run,
                                                                  accrue_metrics *out,
                                                                  accrue_error *err);
ACCRUE_API ACCRUE_CHECK accrue_status accrue_run_clip(accrue_run *run, double *norm,
                                                      accrue_error *err);
ACCRUE_API ACCRUE_CHECK accrue_status accrue_run_step(accrue_run *run, bool *stepped,
                                                      accrue_error *err);
ACCRUE_API void accrue_run_lr_step(accrue_run *run);
ACCRUE_API void accrue_run_zero_grad(accrue_run *run);
ACCRUE_API ACCRUE_CHECK accrue_status accrue_run_validate(accrue_run *run, accrue_metrics *out,
                                                          accrue_error *err);
/* Writes a checkpoint folder `name` under save_path and reads it back; beside it the list of rows
 * left out where there are any.  See docs/FORMATS.md. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_run_save(accrue_run *run, const char *name,
                                                      accrue_error *err);
/* The same without waiting for the disk: what the run is now is written while it goes on.  _wait
 * waits for the save that was begun, if any, and returns what became of it; _save_begin waits for
 * the one before.  accrue_run_free waits too, and tells nobody. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_run_save_begin(accrue_run *run, const char *name,
                                                            accrue_error *err);
ACCRUE_API ACCRUE_CHECK accrue_status accrue_run_save_wait(accrue_run *run, accrue_error *err);
ACCRUE_API void accrue_run_free(accrue_run *run);

/* Proof and inspection -------------------------------------------------------------------- */

typedef struct accrue_verify_row {
    char group[64]; /* parameter group, e.g. "layers.0" */
    int64_t elements;
    double grad_max_abs, grad_max_rel;     /* difference; rel is to the group's largest |g| */
    double update_max_abs, update_max_rel; /* after one optimizer step */
    bool pass;
} accrue_verify_row;

typedef struct accrue_verify_report {
    int64_t n, micro_batches, tokens, supervised_tokens; /* of the last window */
    int ranks;                                           /* that accumulated it */
    bool sharded;
    int64_t epoch_micro_batches, epoch_steps; /* of epoch 0, of all ranks; optimizer steps */
    /* Against the micro-batches' own gradients, each computed alone, added up in f64: the largest
     * difference, the largest gradient, and the bound on their ratio. */
    double parts_max_abs, grad_max, parts_bound;
    bool parts_pass;
    double bound, update_bound; /* on grad_max_rel; on update_max_rel */
    int n_rows;
    accrue_verify_row rows[128];
    bool pass;
} accrue_verify_report;

/* Accumulates the first two windows of epoch 0 (that have a supervised token) as training does, on
 * opt->ranks ranks, and compares them, and the first one's update, with references that one rank
 * computes in one piece: `token`, one micro-batch holding the whole window; `microbatch`, the mean
 * of separately computed gradients.  EVERIFY when a bound is exceeded; the report is filled all the
 * same. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_verify(accrue_verify_report *out,
                                                    const accrue_train_options *opt,
                                                    accrue_error *err);

typedef enum accrue_fault_kind {
    ACCRUE_FAULT_MISSING = 1,    /* no hidden states of a row */
    ACCRUE_FAULT_LOCKED = 2,     /* they are being written */
    ACCRUE_FAULT_STALE_LOCK = 3, /* a lock that nobody holds: a notice */
    ACCRUE_FAULT_UNREADABLE = 4, /* the system refused to read them, or they ended early */
    ACCRUE_FAULT_FORMAT = 5,     /* no valid safetensors file; of no row: no data set */
    ACCRUE_FAULT_TENSOR = 6,     /* a tensor is not there, or of another type or shape */
    ACCRUE_FAULT_LENGTH = 7,    /* input_ids, loss_mask, seq_len, hidden states: not equally long */
    ACCRUE_FAULT_TOKEN_IDS = 8, /* the states are those of other tokens */
    ACCRUE_FAULT_VOCABULARY = 9, /* an id outside the vocabulary */
    ACCRUE_FAULT_MASK = 10,      /* a loss_mask that is not 0 or 1 */
    ACCRUE_FAULT_NONFINITE = 11, /* NaN or infinity */
    ACCRUE_FAULT_MAP = 12        /* a vocabulary map; of no row */
} accrue_fault_kind;

ACCRUE_API const char *accrue_fault_name(accrue_fault_kind kind); /* "nonfinite" */

typedef struct accrue_fault {
    accrue_fault_kind kind;
    bool notice;                  /* worth knowing; nothing stops for it */
    int64_t row;                  /* -1: of none */
    int64_t token, slot, element; /* the first place in the row; -1 where it has none */
    int64_t count;                /* places in the row */
    char file[512];
    char found[96], expected[96]; /* "" where there are no two values */
    char message[1000];           /* one line, which names all of the above */
} accrue_fault;

typedef struct accrue_check_options {
    size_t struct_size;                         /* set by accrue_check_options_init; do not touch */
    const char *data_path, *hidden_states_path; /* NULL: data_path/hidden_states */
    const char *verifier;            /* NULL: unknown; sizes are then those of most rows */
    int64_t draft_vocab_size;        /* 0: unknown */
    const char *d2t_path, *t2d_path; /* NULL: the maps that lie in data_path */
    int n_aux;                       /* auxiliary layers; 0: as training has by default */
    double lock_timeout;             /* seconds to wait for a file that is being written */
} accrue_check_options;

ACCRUE_API void accrue_check_options_init(accrue_check_options *opt, size_t struct_size);

typedef struct accrue_check_report {
    int64_t rows, checked_rows, bad_rows;
    int64_t tokens, supervised_tokens, unsupervised_rows;
    int64_t files, bytes; /* of hidden states, read */
    int64_t faults, notices;
    double seconds;
} accrue_check_report;

/* Told of each fault, in the order of rows, and with `fault` NULL of progress.  Both are lent for
 * the call.  Non-zero stops the check with ECANCELED. */
typedef int (*accrue_check_cb)(const accrue_fault *fault, const accrue_check_report *so_far,
                               void *payload);

/* Reads a data set, its hidden states and vocabulary maps once, whole, and tells `cb` (may be NULL)
 * of everything that training would refuse, going on after each fault.  OK where all was read,
 * whatever was found: report->faults says that.  Fails where nothing can be read: no data set, no
 * verifier.  Reads alone: nothing is written, no lock is removed. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_check(accrue_check_report *out,
                                                   const accrue_check_options *opt,
                                                   accrue_check_cb cb, void *payload,
                                                   accrue_error *err);

/* Writes what a data set, checkpoint or verifier folder contains as a JSON object into a string
 * that the caller frees with accrue_string_free. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_inspect(char **out, const char *dir,
                                                     accrue_error *err);
ACCRUE_API void accrue_string_free(char *s);

/* From a model to a measured draft -------------------------------------------------------- */

/* How far a long call is.  Counts start where the work that was there already ends. */
typedef struct accrue_progress {
    const char *unit;                   /* what done and total count: "rows" */
    int64_t done, total;                /* with what was there already */
    int64_t found;                      /* of them, there already */
    int64_t tokens, bytes;              /* read or made in this call */
    double seconds;                     /* of this call */
    int64_t expected_bytes, free_bytes; /* that are to be made in all; of the disk they go to,
                                           before; 0: not known */
} accrue_progress;
/* Non-zero stops with ECANCELED; what was written stays, and the same call goes on from it. */
typedef int (*accrue_progress_cb)(const accrue_progress *progress, void *payload);

/* Hidden states of the verifier for the rows of a data set. */
typedef struct accrue_extract_options {
    size_t struct_size;   /* set by accrue_extract_options_init; do not touch */
    const char *verifier; /* a folder, or a .gguf file */
    const char *data_path, *hidden_states_path; /* NULL: data_path/hidden_states */
    const int *target_layer_ids;                /* n_target_layer_ids; 0: 2, n/2, n-3 of n layers */
    int n_target_layer_ids;
    accrue_dtype compute; /* default BF16; the files hold bf16 in any case */
} accrue_extract_options;

ACCRUE_API void accrue_extract_options_init(accrue_extract_options *opt, size_t struct_size);

typedef struct accrue_extract_report {
    int64_t rows, found, broken; /* of the set; there already; of the others, there but wrong */
    int64_t made, tokens, bytes; /* files of this call, what they hold */
    int64_t needed_bytes, free_bytes; /* on the disk, before */
    double seconds;
} accrue_extract_report;

/* Writes hs_<row>.safetensors for each row of the data set that has none, or one that is cut off or
 * of other tokens, layers or sizes: hidden_states BF16 [tokens, layers + 1, hidden size], the
 * residual stream that enters each layer and, last, the one behind the last layer before the final
 * norm; token_ids I64 [tokens].  A file comes to its name when it is whole.  The same call goes on
 * where an earlier one was stopped, and ends with the same files.  `cb` may be NULL.
 *   ENOSPACE, before anything is written, where the disk has no room for all of it and a reserve;
 * EIO where another call is at work in that folder; ENUMERIC, with the row, where a state is NaN or
 * infinite. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_extract(accrue_extract_report *out,
                                                     const accrue_extract_options *opt,
                                                     accrue_progress_cb cb, void *payload,
                                                     accrue_error *err);

/* The verifier's own answers to what the conversations of a data set ask. */
typedef struct accrue_generate_options {
    size_t struct_size;        /* set by accrue_generate_options_init; do not touch */
    const char *verifier;      /* a folder, with tokenizer.json and a chat template */
    const char *data;          /* JSON Lines of conversations, as accrue_prepare takes them */
    const char *output;        /* JSON Lines */
    int64_t max_new_tokens;    /* of an answer; default 512 */
    double temperature, top_p; /* NaN: what generation_config.json says, else 1; temperature 0:
                                  always the likeliest token */
    uint64_t seed;             /* default 42 */
    int batch_size;            /* conversations that are answered at a time; default 16 */
    accrue_dtype compute;      /* default BF16 */
    int64_t limit;             /* lines of `data` at most; 0: all */
} accrue_generate_options;

ACCRUE_API void accrue_generate_options_init(accrue_generate_options *opt, size_t struct_size);

typedef struct accrue_generate_report {
    int64_t rows, found;           /* lines of `data`; done before this call */
    int64_t made, answers;         /* of this call: lines written, the answers in them */
    int64_t skipped;               /* lines that ask nothing, or more than the model has room for */
    int64_t cut;                   /* answers that max_new_tokens ended */
    int64_t prompt_tokens, tokens; /* read and written */
    double temperature, top_p;     /* that were used */
    double seconds;
} accrue_generate_report;

/* Writes a line for each conversation of `data`, in their order: {"messages": ..., "metadata":
 * {"idx": line, "finish_reason": "stop" or "length", ...}}.  System and user turns stay; each user
 * turn is answered anew, with the answers before it in view; what stood there as an answer is
 * dropped, and so is all from a tool's turn on.  A conversation without a user's turn, or whose
 * first one leaves no room for an answer, has no line.
 *   An answer depends on verifier, dtype, sampling, seed, its conversation and the number of its
 * line alone.  The same call goes on where an earlier one was stopped and ends with the same file;
 * `output`.settings.json says what it was begun with, and another call, or a file of anything else,
 * is refused (EMISMATCH).  `cb` may be NULL. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_generate(accrue_generate_report *out,
                                                      const accrue_generate_options *opt,
                                                      accrue_progress_cb cb, void *payload,
                                                      accrue_error *err);

typedef struct accrue_prepare_options {
    size_t struct_size;       /* set by accrue_prepare_options_init; do not touch */
    const char *const *files; /* [n_files] JSON Lines: a row or a conversation on each */
    int n_files;
    const char *verifier;         /* folder: tokenizer.json, chat template, config.json */
    const char *output;           /* the data set's folder */
    int64_t seq_length;           /* tokens of a row at most; what is longer is cut */
    int64_t max_samples;          /* rows at most, of all in their new order; 0: no limit */
    int64_t minimum_valid_tokens; /* rows with fewer supervised tokens are left out */
    uint64_t seed;                /* of the order */
    int64_t draft_vocab_size;     /* 0: no vocabulary maps are written */
    bool skip_token_freq;         /* write no token_freq.pt */
    bool overwrite;               /* replace a data set that is there */
    bool allow_empty_output;
    accrue_policy on_bad; /* a faulty line: RAISE, or SKIP */
    int64_t max_bad;      /* of these; -1: 1 % of the lines, at least one */
} accrue_prepare_options;

ACCRUE_API void accrue_prepare_options_init(accrue_prepare_options *opt, size_t struct_size);

typedef struct accrue_prepare_report {
    int64_t lines;                           /* of the files, without empty ones */
    int64_t rows, tokens, supervised_tokens; /* of the data set */
    int64_t longest;                         /* tokens of its longest row */
    int64_t cut_rows;                        /* rows that seq_length may have cut */
    int64_t bad_lines;                       /* left out as faulty */
    int64_t unanswered;                      /* conversations that gave no row at all */
    int64_t unsupervised_rows, short_rows;   /* left out: nothing, too little to learn */
    int64_t surplus_rows;                    /* left out: above max_samples */
    int64_t files, bytes;                    /* of the data set's rows */
    int64_t distinct_tokens;                 /* that are supervised somewhere */
    int64_t unknown_roles;                   /* messages taken for the assistant's */
    char unknown_role[64], first_bad[1000];  /* the first of each, "" where none */
    bool found;                              /* the same was there already */
    double seconds;
} accrue_prepare_report;

/* Makes the data set that training reads, and speculators' too, out of conversations, texts, or
 * rows of tokens: input_ids, loss_mask and seq_len, in the order, with the ids and with the masks
 * of `speculators prepare-data` 0.9 for the same files and seed.  A conversation gives a row for
 * each answer, whose tokens alone are supervised.  docs/FORMATS.md has the forms of a line, and the
 * one difference: what a message spells is never a control token.
 *   The folder comes to its name when it is whole.  One that is there is left as it is where it was
 * made from the same files with the same options, and refused (EMISMATCH) where not, unless
 * `overwrite` is set and it holds nothing else.  A canceled or failed call leaves nothing behind.
 * EINVAL for options out of range; EFORMAT, EMISMATCH with file and line for a faulty one; ENOTSUP
 * for a tokenizer or chat template that this version does not know.  `cb` may be NULL. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_prepare(accrue_prepare_report *out,
                                                     const accrue_prepare_options *opt,
                                                     accrue_progress_cb cb, void *payload,
                                                     accrue_error *err);

/* Importing a model: a Hugging Face folder out of a GGUF file. */
typedef enum accrue_import_dtype {
    ACCRUE_IMPORT_AUTO = 0, /* what the file's numbers need: quantised ones become bfloat16 */
    ACCRUE_IMPORT_BF16 = 1,
    ACCRUE_IMPORT_F16 = 2,
    ACCRUE_IMPORT_F32 = 3
} accrue_import_dtype;

typedef struct accrue_import_options {
    size_t struct_size; /* set by accrue_import_options_init; do not touch */
    const char *model;  /* the file */
    const char *out;    /* the folder, which must not be there */
    accrue_import_dtype dtype;
} accrue_import_options;

ACCRUE_API void accrue_import_options_init(accrue_import_options *opt, size_t struct_size);

typedef struct accrue_import_type {
    char name[8]; /* as GGUF names it: "Q4_K" */
    int64_t tensors, parameters;
    int64_t source_bytes, bytes; /* in the file; in the folder */
} accrue_import_type;

typedef struct accrue_import_report {
    bool found; /* the folder is an import of that file: nothing was written */
    char architecture[16], dtype[16]; /* "llama"; "bfloat16": what config.json says */
    int64_t tensors, parameters, layers, vocab_size;
    int64_t source_bytes, bytes; /* of the file; of all files of the folder */
    int n_types;
    accrue_import_type types[16];
    bool tokenizer, chat_template; /* whether the folder has them */
    char tokenizer_why[200];       /* why not */
    double seconds;
} accrue_import_report;

/* Writes config.json, generation_config.json, model.safetensors, tokenizer.json with its
 * tokenizer_config.json and chat_template.jinja where the file carries a byte-level BPE vocabulary,
 * and import.json, which says of what file they are.  docs/FORMATS.md has the mapping.  The folder
 * comes to its name when all is on the disk; after a failure nothing is left.  A folder that is
 * there is refused (EMISMATCH) unless it is a finished import of the same bytes as the same dtype;
 * then nothing is done.  `cb` (may be NULL) is told of the bytes of model.safetensors; stopped by
 * it, nothing is left either.  EFORMAT where a weight is not finite, ENUMERIC where one is too large
 * for float16. */
ACCRUE_API ACCRUE_CHECK accrue_status accrue_import(accrue_import_report *out,
                                                    const accrue_import_options *opt,
                                                    accrue_progress_cb cb, void *payload,
                                                    accrue_error *err);

#ifdef __cplusplus
}
#endif
#endif /* ACCRUE_H */
