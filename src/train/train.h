/* train.h - the training layer: the window over arrays, its optimizers.
 *
 * The public half of each file is declared in accrue/accrue.h; here is what the layer's files and
 * the built-in trainer need beside it.  One section per file. */
#ifndef ACR_TRAIN_H
#define ACR_TRAIN_H

#include "infer/infer.h"
#include "train/ranks.h"

/* window_options.c -------------------------------------------------------------------------- */

/* EINVAL for a value out of range. */
accrue_status acr_window_options_check(const accrue_window_options *opt, accrue_error *err);

/* window.c --------------------------------------------------------------------------------- */

/* Registers a parameter of the built-in model.  `accumulator` has the parameter's width and is
 * added to by the caller's kernels, with weights that make the finished sum the window's gradient:
 * the window scales nothing.  All arrays are borrowed until the window is freed.  A window has
 * either such parameters or those of accrue_window_add_param; mixing them is ESTATE.
 * The loop is: begin, forward and backward, count, and then clip, step, lr_step, zero_grad. */
accrue_status acr_window_add_accumulated(accrue_window *window, const char *name, acr_dtype dtype,
                                         void *param, void *accumulator, int64_t rows, int64_t cols,
                                         accrue_error *err);

/* Ranks that take their steps together, before the first parameter: clip and step are [collective]
 * from here on. */
void acr_window_set_comm(accrue_window *window, accrue_comm *comm);

/* acr_window_add_accumulated of a parameter that the ranks share: rank r keeps elements
 * [cut[r], cut[r + 1]) of it, whole blocks, and `own` are this rank's.  `cut` is copied. */
accrue_status acr_window_add_shared(accrue_window *window, const char *name, acr_dtype dtype,
                                    const acr_share *own, int64_t rows, int64_t cols,
                                    const int64_t *cut, accrue_error *err);

/* Before each micro-batch: where the last window is over, empties the accumulators for the next.
 * Costs nothing in mid-window or when zero_grad has done it. */
void acr_window_begin(accrue_window *window);

/* Counts a completed micro-batch whose gradient is in the accumulators.  `loss` carries its final
 * weight, so that the window's loss is the plain sum; has_weight is false where the micro-batch had
 * nothing to learn from.  ESTATE without acr_window_begin; ENUMERIC, and not counted, for a loss
 * that is not finite.  The caller has seen to it that the gradient is. */
accrue_status acr_window_count(accrue_window *window, double loss, bool has_weight,
                               accrue_error *err);

/* Empties the window wherever it stands; its micro-batches stay counted in the total only. */
void acr_window_zero(accrue_window *window);

/* Ends a window that is not full, as tail policy `step` does after an epoch: clip, step, lr_step
 * and zero_grad act as at any boundary.  Gradients handed over by accrue_window_backward are then
 * divided by the real number of micro-batches.  False, and nothing done, where none is open. */
bool acr_window_close_short(accrue_window *window);

/* Counts n micro-batches of the window that other ranks completed; `loss` and `has_weight` are
 * theirs.  At a boundary of all ranks the window is then full, or to be closed short. */
accrue_status acr_window_join(accrue_window *window, int64_t n, double loss, bool has_weight,
                              accrue_error *err);

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
    int64_t begin, n; /* the elements that `data` has */
} acr_optimizer_state;

/* All that a window between two windows knows beside the optimizer's arrays. */
typedef struct acr_window_counters {
    int64_t micro_batches, global_step, schedule_step, empty;
} acr_window_counters;

/* Whether no window is open: none was begun since the last one took its step and its lr_step. */
bool acr_window_between(const accrue_window *window);
acr_window_counters acr_window_get_counters(const accrue_window *window);
/* Of a window in which no micro-batch was counted yet. */
void acr_window_set_counters(accrue_window *window, const acr_window_counters *counters);

int acr_window_n_states(const accrue_window *window);
acr_optimizer_state acr_window_state(const accrue_window *window, int i);

/* optim.c ---------------------------------------------------------------------------------- */

typedef struct acr_window_param {
    char *name;
    acr_dtype dtype; /* F32 or F64: of param, grad, accumulator and moments */
    bool muon;       /* else AdamW */
    bool owns_accumulator;
    int64_t rows, cols;
    int64_t begin, n; /* elements that this rank keeps, from `begin` on; the arrays have n */
    int64_t *cut;     /* [ranks + 1], where those of each rank begin; NULL: all keep all */
    void *param;
    const void *grad; /* NULL where the caller's kernels add to the accumulator */
    void *accumulator;
    void *moment[2]; /* AdamW: first and second; Muon: momentum, NULL */
    int64_t first_block, n_blocks;
} acr_window_param;

typedef struct acr_block {
    const acr_window_param *param;
    int64_t begin, count; /* in the arrays */
    double sum;           /* of squares */
    int64_t bad;          /* first element that is not finite, -1 */
} acr_block;

typedef struct acr_optim acr_optim; /* scratch */

/* Scratch for the parameters given; blocks and parameters are borrowed.  `comm` is that of the
 * parameters that are shared. */
accrue_status acr_optim_create(acr_optim **out, const accrue_window_options *opt,
                               const acr_window_param *params, int n_params, acr_block *blocks,
                               int64_t n_blocks, accrue_comm *comm, accrue_error *err);
void acr_optim_free(acr_optim *optim);

/* accumulator = grad / divisor where `first`, += otherwise. */
void acr_optim_accumulate(acr_optim *optim, double divisor, bool first);
/* accumulator = 0. */
void acr_optim_zero(acr_optim *optim);
/* First block with a gradient (or accumulator) that is not finite; NULL: none.  Sets bad. */
const acr_block *acr_optim_find_nonfinite(acr_optim *optim, bool accumulators);
/* Sum of squares over all accumulators of all ranks; fails as the job does. */
accrue_status acr_optim_sum_squares(acr_optim *optim, double *out, accrue_error *err);

typedef struct acr_optim_args {
    int64_t step;       /* 1-based */
    double lr, muon_lr; /* of this step */
    double factor;      /* of every accumulator: normalisation and clipping */
} acr_optim_args;

/* One update of every parameter.  Fails where a matrix product cannot be prepared, or as the job
 * does. */
accrue_status acr_optim_step(acr_optim *optim, const acr_optim_args *args, accrue_error *err);

/* muon.c ----------------------------------------------------------------------------------- */

/* Muon for matrices with both sides > 1 whose names have none of embed_tokens, lm_head, codebook,
 * markov_w1, markov_w2. */
bool acr_muon_takes(const char *name, int64_t rows, int64_t cols);

typedef struct acr_muon acr_muon; /* scratch, and which rank orthogonalises what */

/* *out is NULL where no parameter is Muon's. */
accrue_status acr_muon_create(acr_muon **out, const accrue_window_options *opt,
                              const acr_window_param *params, int n_params, acr_block *blocks,
                              accrue_comm *comm, accrue_error *err);
void acr_muon_free(acr_muon *muon);
/* [collective] */
accrue_status acr_muon_step(acr_muon *muon, const acr_optim_args *args, accrue_error *err);

/* options.c -------------------------------------------------------------------------------- */

/* The options of one rank: N from --global-window. */
void acr_train_options_resolve(accrue_train_options *out, const accrue_train_options *given);
enum { ACR_MAX_RANKS = 1024 }; /* as threads */
/* Refuses values out of range and contradictions, by the flag's name. */
accrue_status acr_train_options_check(const accrue_train_options *opt, accrue_error *err);
/* The same of a rank's options; a fault in them is the end of the job. */
accrue_status acr_train_options_check_together(const accrue_train_options *opt, accrue_error *err);

/* configuration.c -------------------------------------------------------------------------- */

/* Values of a flag that has names for them; the last has none. */
typedef struct acr_choice {
    int value;
    const char *name;
} acr_choice;
extern const acr_choice acr_normalizations[], acr_tails[], acr_computes[], acr_optimizers[],
    acr_best_metrics[];
const char *acr_choice_name(const acr_choice *choices, int64_t value); /* or NULL */

/* The options that decide a training's numbers; NULL when out of memory. */
json_t *acr_configuration(const accrue_train_options *opt);
/* "lr 0.001, now 0.0003; ..." where the checkpoint was saved with others, which the caller frees;
 * else NULL. */
accrue_status acr_configuration_changes(char **out, const json_t *ours, const char *dir,
                                        accrue_error *err);

/* epochs.c --------------------------------------------------------------------------------- */

typedef struct acr_bad_row {
    int64_t row, epoch; /* -1: found before the first step */
    accrue_fault_kind kind;
    char *file, *message;
} acr_bad_row;

/* The micro-batches of every epoch: packed from the data set, or replayed from a batch plan. */
typedef struct acr_epochs {
    const acr_dataset *data; /* borrowed */
    int64_t n_rows, train_rows;
    int64_t *lengths;      /* [n_rows] tokens */
    bool *bad;             /* [n_rows] left out; such a row keeps its place in the packing */
    acr_bad_row *left_out; /* [n_bad] in the order in which they were found */
    int64_t n_bad, bad_capacity;
    int64_t missing;         /* of them, how many for want of a file */
    int64_t made;            /* rows without a file that are used all the same; known to rank 0 */
    int64_t supervised_rows; /* training rows with a supervised token that are not left out */
    int64_t val_rows;        /* validation rows that are not left out */
    bool counted;            /* supervised_rows holds */
    int64_t max_bad;         /* more rows left out stop the run */
    bool max_given;          /* it counts missing rows too */
    int64_t total_seq_len;
    uint64_t seed;
    bool replayed;
    acr_batch_plan plan;
} acr_epochs;

/* Looks for every row's states.  Checks the data set's own columns, and of sets of up to
 * check_bytes the states too.  A row without a file is an error or is left out (on_missing), and so
 * is one with another fault (on_bad).  Rows that the checkpoint `resumed_from` (may be NULL) leaves
 * out are not looked at. */
accrue_status acr_epochs_open(acr_epochs *out, const accrue_train_options *opt, acr_dataset *data,
                              const char *states_dir, const acr_batch_shape *shape,
                              const char *resumed_from, accrue_error *err);
void acr_epochs_free(acr_epochs *e);
/* Does without the row from now on; EMISMATCH where no supervised row is left to train on. */
accrue_status acr_epochs_without(acr_epochs *e, int64_t row, accrue_error *err);
/* With the bad rows in their places. */
accrue_status acr_epochs_train(acr_epoch *out, const acr_epochs *e, int64_t epoch,
                               accrue_error *err);
accrue_status acr_epochs_val(acr_epoch *out, const acr_epochs *e, int64_t epoch, accrue_error *err);
/* Steps, tails and the schedule's totals over all epochs; DESIGN's window rules live here. */
accrue_status acr_epochs_plan(accrue_train_plan *out, const acr_epochs *e,
                              const accrue_train_options *opt, accrue_error *err);
/* Writes the batch plan of this run. */
accrue_status acr_epochs_dump(const acr_epochs *e, int64_t epochs, const char *path,
                              accrue_error *err);

/* skipped.c -------------------------------------------------------------------------------- */

/* What becomes of a row that was found to be at fault: it is left out from now on, or that is an
 * error.  What the system would not give is looked at a second time, as `sweep` says; kind is 0
 * where it is there by then, and the row stays in.  EIO where the folder of hidden states is gone,
 * EMISMATCH where more than max_bad rows or all that could be trained on are left out. */
accrue_status acr_epochs_judge(acr_epochs *e, const accrue_train_options *opt,
                               const acr_sweep *sweep, accrue_fault *f, int64_t epoch,
                               accrue_error *err);
/* Takes the bad rows out of an epoch.  Micro-batches keep their numbers, were they empty; adds to
 * dropped[n] (may be NULL) how many rows each has lost. */
void acr_epochs_drop_bad(acr_epoch *epoch, const acr_epochs *e, int64_t *dropped);
void acr_bad_rows_free(acr_epochs *e);
/* The text of a checkpoint's skipped_samples.jsonl, from the first-th row on, which the caller
 * frees; NULL: no bad rows. */
accrue_status acr_bad_rows_text(char **out, const acr_epochs *e, int64_t first, accrue_error *err);
/* Leaves out what such a text has and is not left out yet. */
accrue_status acr_bad_rows_take(acr_epochs *e, const char *text, size_t bytes, const char *path,
                                accrue_error *err);
/* Leaves out what the checkpoint's list has. */
accrue_status acr_bad_rows_read(acr_epochs *e, const char *dir, accrue_error *err);
/* Makes the list in save_path what the run knows: whole at first, then what is new is appended.
 * --on-save-error says what a list without room is. */
accrue_status acr_bad_rows_list(accrue_run *run, accrue_error *err);
/* Notices of all rows known to be left out, and their list. */
accrue_status acr_left_out_told(accrue_run *run, accrue_error *err);

/* Of a run whose loader stopped at a row at fault: leaves that row out, and with it all bad ones
 * among micro-batches [from, to) of `e`, so that they are run again but once.  The loader is
 * stopped.  A row that may not be left out is an error, for which run->stopped_by_row is set.
 * [collective]: on all ranks where it is on one; the others leave out what that found. */
accrue_status acr_run_leave_out(accrue_run *run, acr_epoch *e, int64_t from, int64_t to,
                                int64_t *dropped, accrue_error *err);

/* setup.c ---------------------------------------------------------------------------------- */

/* Data set, vocabulary and model as the options ask for them. */
typedef struct acr_setup {
    acr_dataset *data;
    acr_model *model;
    char *states_dir;
    acr_eagle3_options eagle3;
    acr_batch_shape shape;
    bool vocab_built;
    struct acr_lent_verifier *verifier; /* that makes missing states; NULL: nobody does */
} acr_setup;

accrue_status acr_setup_open(acr_setup *out, const accrue_train_options *opt, accrue_error *err);
void acr_setup_free(acr_setup *s);

/* making.c --------------------------------------------------------------------------------- */

/* A verifier in memory, the same for all who ask for the same one at the same time: ranks that are
 * threads of a process share its weights.  From and with any thread. */
typedef struct acr_lent_verifier acr_lent_verifier;
accrue_status acr_verifier_lend(acr_lent_verifier **out, const char *path, accrue_dtype compute,
                                int64_t positions, accrue_error *err);
void acr_verifier_return(acr_lent_verifier *v);

/* The source of a loader's missing states; without a verifier to make them it is empty, and
 * acr_making_source NULL. */
typedef struct acr_making {
    acr_extractor *extractor;
    acr_states_source source;
} acr_making;
accrue_status acr_making_open(acr_making *out, const acr_setup *s, accrue_error *err);
void acr_making_close(acr_making *m);
const acr_states_source *acr_making_source(const acr_making *m);

/* manifest.c ------------------------------------------------------------------------------- */

/* {"bytes": n, "xxh3": digits}; NULL when out of memory. */
json_t *acr_manifest_entry(int64_t bytes, uint64_t hash);
/* Lists the folder's other files (names to entries); the last file of a checkpoint. */
accrue_status acr_manifest_write(const char *dir, json_t *files, accrue_error *err);
/* OK where the folder is a whole checkpoint: its files' sizes, and with `contents` every byte;
 * `unlisted` (may be NULL) tells whether it holds anything else beside. */
accrue_status acr_manifest_check(const char *dir, bool contents, bool *unlisted, accrue_error *err);

/* state.c ---------------------------------------------------------------------------------- */

/* training_state.json; docs/FORMATS.md says what each is.  All but the last three are of one type,
 * so that one table reads, writes and compares them. */
typedef struct acr_training_state {
    int64_t epoch, local_step, global_step, schedule_step;
    int64_t micro_batches, empty_windows, skipped_nonfinite;
    int64_t generation, best_epoch, superseded_epoch;
    int64_t gradient_accumulation_steps, ranks, total_seq_len, seed;
    int64_t loss_normalization, accumulation_tail, compute, optimizer;
    int64_t train_rows, data_fingerprint, order_fingerprint;
    int64_t samples, best_metric;
    int64_t origin, origin_epoch; /* of the --resume-from that began this training; 0, -1: none */
    double best_value;            /* NaN: none yet */
    bool concluded, is_best, interim;
    const json_t *configuration; /* written; not read */
} acr_training_state;

json_t *acr_training_state_json(const acr_training_state *s);
accrue_status acr_training_state_read(acr_training_state *out, const char *dir, accrue_error *err);
/* EMISMATCH with both values where the run at hand could not go on as the saved one would have. */
accrue_status acr_training_state_agrees(const acr_training_state *saved,
                                        const acr_training_state *run, const char *dir,
                                        accrue_error *err);

/* Of all lengths, and of the ids and masks of every k-th row, k = 1 up to 16 Mi tokens. */
uint64_t acr_epochs_fingerprint(const acr_epochs *e, const acr_dataset *d);
uint64_t acr_epoch_hash(const acr_epoch *e);

/* One array of state.tensors; `data` is this rank's share: elements [begin, begin + n). */
typedef struct acr_state_array {
    acr_tensor t; /* whole; its name is owned */
    const acr_param *param;
    void *data;
    int64_t begin, n;
} acr_state_array;

/* All of them, sorted by name, where they are in model and window; freed with
 * acr_state_arrays_free. */
typedef struct acr_state_arrays {
    acr_state_array *a;
    int n;
} acr_state_arrays;
accrue_status acr_state_collect(acr_state_arrays *out, acr_model *m, const accrue_window *w,
                                accrue_error *err);
void acr_state_arrays_free(acr_state_arrays *a);
/* Sets masters and the optimizer's arrays; nothing where any of them does not fit.  The copies are
 * acr_dist_refresh's. */
accrue_status acr_state_read(const char *dir, acr_model *m, accrue_window *w, accrue_error *err);
accrue_status acr_state_same_model(const char *dir, const acr_model *m, accrue_error *err);
accrue_status acr_state_same_vocab(const char *dir, const acr_model *m, accrue_error *err);

/* checkpoint.c ----------------------------------------------------------------------------- */

/* Where a folder or link is made before it takes its name; NULL when out of memory. */
char *acr_checkpoint_temporary(const char *parent, const char *name);
/* ENOSPACE where the file system has no room for so much. */
accrue_status acr_checkpoint_room(const char *parent, int64_t bytes, accrue_error *err);
/* Makes the temporary folder, with those above it, in place of one left over. */
accrue_status acr_checkpoint_make(const char *temporary, const char *parent, int64_t bytes,
                                  accrue_error *err);
/* Gives the temporary folder the name `dir`; an older checkpoint is exchanged for it.  With
 * set_others_aside anything else of that name is moved to the one in *aside, which the caller
 * frees. */
accrue_status acr_checkpoint_name(const char *temporary, const char *dir, const char *parent,
                                  bool set_others_aside, char **aside, accrue_error *err);
/* Takes the folder's name away and removes it; fine where there is none. */
accrue_status acr_checkpoint_discard(const char *parent, const char *name, accrue_error *err);
/* Removes a checkpoint's folder; where it holds what is not ours, that and the folder are left. */
void acr_checkpoint_remove(const char *path);
/* Gives folders their names back that a killed save had taken away, to replace them. */
void acr_checkpoint_recover(const char *parent);
/* Removes what saves that were killed left in `parent` under temporary names. */
void acr_checkpoint_clean(const char *parent);
/* EINVAL where `dir` exists and is not empty. */
accrue_status acr_checkpoint_vacant(const char *dir, accrue_error *err);
/* Takes the folder for one run until *fd is closed; EINVAL while another has it.  *fd is -1 where
 * there is no folder yet, or its file system has no locks. */
accrue_status acr_checkpoint_lock(int *fd, const char *dir, accrue_error *err);
/* Points the link `name` in `parent` at `target`, replacing such a link.  Anything else of that
 * name is moved to the one in *aside, which the caller frees; else NULL. */
accrue_status acr_checkpoint_link(const char *parent, const char *name, const char *target,
                                  char **aside, accrue_error *err);

/* save.c ----------------------------------------------------------------------------------- */

typedef struct acr_save_content {
    const acr_training_state *state; /* NULL: weights and config alone, no manifest */
    const accrue_window *window;
    const accrue_metrics *val; /* NULL: no val_metrics.json */
    const char *skipped;       /* of skipped_samples.jsonl; NULL: no bad rows */
    bool wait;                 /* before the folder takes its name, until acr_save_release */
} acr_save_content;

typedef struct acr_save_result {
    char *aside; /* where what had the name was moved to, or NULL; the caller's */
    double seconds;
    int64_t bytes;
} acr_save_result;

/* A checkpoint being written by rank 0.  Model and window must stay, and no optimizer step be
 * taken, until acr_save_detach or acr_save_finish has returned. */
typedef struct acr_save acr_save;

accrue_status acr_save_begin(acr_save **out, const char *dir, acr_model *m,
                             const acr_save_content *c, accrue_error *err);
/* The same of a sharded model, on all ranks: rank 0 writes what the others send it, and the
 * checkpoint is there, or is not, when this returns; *out is NULL on the others.  [collective] */
accrue_status acr_save_shared(acr_save **out, const char *dir, acr_model *m,
                              const acr_save_content *c, accrue_comm *comm, accrue_error *err);
bool acr_save_done(const acr_save *s);
/* Whether it waits for acr_save_release; with `wait`, once it is there or over. */
bool acr_save_waits(acr_save *s, bool wait);
const char *acr_save_folder(const acr_save *s); /* while it waits */
/* Lets it take its name, or, with a status, give up with that and the message. */
void acr_save_release(acr_save *s, accrue_status verdict, const accrue_error *why);
/* Takes copies of the arrays that are yet to be written: they may change after it. */
void acr_save_detach(acr_save *s);
/* Waits, frees, and returns what became of it. */
accrue_status acr_save_finish(acr_save *s, acr_save_result *out, accrue_error *err);
/* Of a whole checkpoint, about. */
int64_t acr_save_bytes(const acr_model *m, const accrue_window *w);

/* run.c ------------------------------------------------------------------------------------ */

/* Weights of a micro-batch's losses in its window. */
typedef struct acr_weighting {
    double step_weight[ACCRUE_MAX_TTT_STEPS]; /* turns a sum of row losses into a loss */
    double step_scale[ACCRUE_MAX_TTT_STEPS];  /* of the gradient of each row */
    double loss_total;                        /* what the micro-batch adds to the total of a loss */
    bool has_weight;
} acr_weighting;

/* counts are the micro-batch's supervised rows, window_counts those of its whole window of n. */
void acr_weigh(acr_weighting *out, const acr_eagle3_options *o, accrue_loss_normalization norm,
               const int64_t *counts, const int64_t *window_counts, int64_t n);

/* Forward, metrics and (with backward) gradients added to the model's accumulators.  ENUMERIC for a
 * loss that is not finite, before any gradient is touched. */
accrue_status acr_micro_batch(accrue_metrics *out, acr_model *m, acr_tape *t, const acr_batch *b,
                              const acr_eagle3_options *o, const acr_weighting *w, bool backward,
                              accrue_error *err);
accrue_status acr_register_params(accrue_window *w, acr_model *m, accrue_error *err);

/* The smallest micro-batch of the latest validation, and what it gave. */
typedef struct acr_proof {
    bool set;
    int64_t epoch, index, n; /* n: micro-batches of the validation */
    int64_t rows;
    int64_t total[ACCRUE_MAX_TTT_STEPS]; /* supervised rows of the whole validation */
    double loss_sum;
} acr_proof;

typedef struct acr_fill acr_fill; /* of the window under way; fill.c */

struct accrue_run {
    accrue_comm *comm; /* borrowed; NULL: one rank */
    int rank, ranks;
    int64_t window_n; /* micro-batches of a window, of all ranks */
    acr_turns turns;  /* which of them are this rank's */
    acr_dist *dist;
    acr_fill *fill;
    bool agreed;    /* the latest failure is known to all ranks already */
    bool save_over; /* rank 0's save was done at the latest edge */

    accrue_train_options opt; /* strings point into `strings` */
    char **strings;
    int n_strings;
    json_t *configuration;
    accrue_event_cb cb;
    void *payload;
    acr_setup setup;
    acr_epochs epochs;
    accrue_train_plan plan;
    acr_tape tape;
    accrue_window *window;
    acr_loader *loader;
    acr_making making; /* what the loader does not find */
    acr_batch masks;   /* for planning a window's denominators */

    int64_t epoch;
    acr_epoch current; /* micro-batches of the epoch, without the rows known to be bad */
    int64_t used;      /* of them, how many the tail policy lets take part */
    int64_t next;      /* micro-batch to run */
    bool failed;       /* in this epoch: where its window stands is not known */
    bool *excluded;    /* [current.n] not finite, left out */
    int64_t *dropped;  /* [current.n] bad rows that they have lost */
    int64_t excluded_capacity;
    int64_t listed; /* bad rows in save_path's list; -1: not written yet */
    int64_t told;   /* notices of such rows */
    int64_t passed; /* times that faults were gone at a second look: in this micro-batch or
                       validation */
    bool stopped_by_row;
    uint64_t order; /* of the epoch's micro-batches, bad rows in their places */

    int64_t window_first, window_size, window_live; /* of the open window */
    int64_t window_skipped;                         /* skipped_nonfinite when it began */
    int64_t (*counts)[ACCRUE_MAX_TTT_STEPS];        /* [N] of each of this rank's micro-batches */
    int64_t window_counts[ACCRUE_MAX_TTT_STEPS];
    accrue_metrics window_metrics;

    double started, data_seconds, compute_seconds, optimizer_seconds;
    acr_comm_counters comm_before; /* the window */
    double norm, lr, muon_lr;      /* of the latest step */
    int64_t skipped_nonfinite;
    int64_t empty_told; /* windows without weight that a notice was given of */

    bool fingerprinted;
    uint64_t data_fingerprint;
    int64_t generation; /* which run in save_path this is, counted from 1 */
    int64_t origin, origin_epoch;
    int64_t best_epoch; /* of those ended and saved; -1: none yet */
    double best_value;  /* its loss or acceptance */
    bool resumed;       /* for the event START */

    bool obeys;      /* accrue_train's: does what the callback asks for */
    int asked;       /* accrue_answer of this rank's callback, the most urgent so far */
    int request;     /* that of all ranks, as of the latest edge */
    bool wait_ended; /* for data, because of the request */

    acr_training_state saving; /* what the latest save holds; its best is the run's when settled */
    int64_t saving_next;       /* micro-batch to run when it was begun */
    char *saving_dir;
    bool saving_val;           /* it waits for its loss to be proven */
    acr_save *save;            /* under way, or NULL */
    bool under_way;            /* a save, on rank 0 or on all */
    acr_save_result saved;     /* for the event CHECKPOINT */
    double held_up;            /* seconds that it took from training */
    accrue_status save_status; /* of the latest one */
    accrue_error save_error;
    int64_t saved_micro_batches; /* as many had been run when the latest was begun */
    acr_proof proof;

    /* Of the next checkpoint. */
    const accrue_metrics *val; /* validation that goes into it, or NULL */
    int64_t superseded;        /* epoch whose folder it replaces as the best, or -1 */
    bool is_best;              /* the best so far */
    bool concluded;            /* the last of its epoch, validated if it is to be */
    bool interim;              /* asked for, of an epoch that no rule saves */
};

/* accrue_run_open for a run that is to go on from a checkpoint, or NULL. */
accrue_status acr_run_open(accrue_run **out, const accrue_train_options *opt, const char *from,
                           accrue_event_cb cb, void *payload, accrue_error *err);
/* accrue_run_epoch from micro-batch `from` on; -1: the epoch is at its end. */
accrue_status acr_run_epoch_from(accrue_run *run, int64_t epoch, int64_t from, accrue_error *err);

/* `st` and `why` as all ranks are to return it. */
accrue_status acr_run_result(accrue_run *run, accrue_status st, const accrue_error *why,
                             accrue_error *err);
/* Metrics of nothing, of the run's steps and terms. */
accrue_metrics acr_run_no_metrics(const accrue_run *run);
/* Of an epoch's micro-batches, how many the tail policy lets take part. */
int64_t acr_run_used(const accrue_run *run, int64_t micro_batches);
/* For a loader whose data is not there yet: tells the callback (`ctx` is the run), and ends the
 * wait where it asks for a stop. */
accrue_status acr_run_waiting(void *ctx, accrue_error *err);
/* "3, 17, 4" for messages. */
const char *acr_row_list(char out[256], const acr_batch *b);

accrue_status acr_emit(accrue_run *run, accrue_event_kind kind, const accrue_metrics *metrics,
                       const char *message, accrue_error *err);
accrue_status acr_notice(accrue_run *run, accrue_error *err, const char *format, ...)
    ACR_PRINTF(3, 4);

/* foresight.c ------------------------------------------------------------------------------ */

void acr_plan_model(accrue_run *run);
/* Ranks and memory, with all open that a run takes before its first step.  [collective] */
accrue_status acr_plan_memory(accrue_run *run, accrue_error *err);

/* fill.c ----------------------------------------------------------------------------------- */

/* For windows of up to `window` micro-batches. */
accrue_status acr_fill_create(acr_fill **out, const accrue_run *run, int64_t window,
                              accrue_error *err);
void acr_fill_free(acr_fill *f);
void acr_fill_reset(acr_fill *f); /* no window is open */
/* Has the loader serve this rank's micro-batches of the epoch from where the run stands. */
accrue_status acr_run_start_loader(accrue_run *run, accrue_error *err);
/* Takes the open window back: the run stands where it began. */
void acr_run_abandon(accrue_run *run);
/* Supervised rows of a micro-batch, per TTT step. */
accrue_status acr_count_rows(accrue_run *run, const acr_epoch *e, int64_t i, int64_t *counts,
                             accrue_error *err);

/* validate.c ------------------------------------------------------------------------------- */

/* Runs the micro-batch of run->proof again, with the weights that the model has.  *read is false,
 * and *out left alone, where its samples cannot be read any more. */
accrue_status acr_run_prove(accrue_metrics *out, bool *read, accrue_run *run, accrue_error *err);

/* prove.c ---------------------------------------------------------------------------------- */

/* The folder's files read back: checksums, config, the tensors declared, weights the rounded
 * masters. */
accrue_status acr_prove_files(const char *dir, const acr_tensor *weights, int n_weights,
                              const acr_tensor *states, int n_states, accrue_error *err);
/* The loss of run->proof's micro-batch with the masters of the checkpoint is bit for bit the one
 * that the validation got. */
accrue_status acr_prove_loss(accrue_run *run, const char *dir, accrue_error *err);

/* keep.c ----------------------------------------------------------------------------------- */

/* After a save: the epoch's link, the link to the best (`best` < 0: stays as it is), folders that
 * go. */
accrue_status acr_keep(accrue_run *run, const acr_training_state *s, int64_t best,
                       accrue_error *err);
/* With --save-best, removes what was saved on request, at the end of training. */
accrue_status acr_keep_best_alone(accrue_run *run, accrue_error *err);
/* Does what follows the save under way once it is written, which `wait` waits for.  A failure is
 * an error or a notice, as --on-save-error says. */
accrue_status acr_run_settle(accrue_run *run, bool wait, accrue_error *err);

/* verify.c, verify_ranks.c ----------------------------------------------------------------- */

/* What several ranks have made of the first windows of epoch 0: all trainable parameters one behind
 * the other, in the model's precision. */
typedef struct acr_proof_ranks {
    void
        *gradient[2]; /* accumulated; [1] NULL: there is no second window with a supervised token */
    void *updated;    /* masters after the first step */
} acr_proof_ranks;

accrue_status acr_proof_on_ranks(acr_proof_ranks *out, const accrue_train_options *opt,
                                 accrue_error *err);
void acr_proof_ranks_free(acr_proof_ranks *p);
/* Accumulates windows as training does until one has a supervised token.  [collective] */
accrue_status acr_proof_accumulate(accrue_run *run, accrue_error *err);
int64_t acr_proof_elements(const acr_model *m);

/* resume.c --------------------------------------------------------------------------------- */

/* Where a run goes on. */
typedef struct acr_resume {
    char *dir;         /* NULL: it begins anew */
    bool weights_only; /* `dir` is a speculators checkpoint: a beginning from its weights */
    acr_training_state state;
    int64_t from;       /* micro-batch of its epoch where the run goes on; -1: the epoch's end */
    int64_t generation; /* of the checkpoints to be written */
    int64_t origin, origin_epoch;
    uint64_t manifest; /* XXH3 of its text */
    char **notes;      /* folders that were passed over, and why; on rank 0 */
    int n_notes;
} acr_resume;

/* The newest valid checkpoint in save_path, or the one asked for by --resume-from. */
accrue_status acr_resume_find(acr_resume *out, const accrue_train_options *opt, accrue_error *err);
/* What rank 0 has found, on all.  [collective] */
accrue_status acr_resume_share(acr_resume *r, accrue_comm *comm, accrue_error *err);
void acr_resume_free(acr_resume *r);

/* The run's state as a checkpoint of now would hold it. */
void acr_run_state(acr_training_state *out, accrue_run *run);
/* Makes a run just opened the one that wrote the checkpoint, and sets from->from. */
accrue_status acr_run_load(accrue_run *run, acr_resume *from, accrue_error *err);

#endif
