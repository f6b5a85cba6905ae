/* data.h - files: safetensors, npy, the Arrow data set, hidden states, vocabulary maps; and what
 * becomes of them: the order of an epoch, its packing, and micro-batches in memory.
 *
 * Every reader treats its file as hostile: counts, offsets and shapes are checked before use, and
 * a failure is one line that names the file, the row and both values. */
#ifndef ACR_DATA_H
#define ACR_DATA_H

#include "tensor/tensor.h"

#include <limits.h>
#include <pthread.h>

/* safetensors ----------------------------------------------------------------------------- */

typedef struct acr_safetensors acr_safetensors; /* a mapped file; tensors point into it */

/* Refused: header over 100 MB or over the file, invalid JSON, unknown dtype, shape that disagrees
 * with the byte range, ranges that overlap, leave gaps or end before/after the file. */
accrue_status acr_safetensors_open(acr_safetensors **out, const char *path, accrue_error *err);
void acr_safetensors_close(acr_safetensors *f);
int acr_safetensors_count(const acr_safetensors *f);
const acr_tensor *acr_safetensors_at(const acr_safetensors *f, int i); /* by name, sorted */
const acr_tensor *acr_safetensors_find(const acr_safetensors *f, const char *name); /* or NULL */

/* Where the bytes of tensors come from that are not simply at `data`. */
typedef struct acr_tensor_source {
    /* Where bytes [offset, offset + n) of the tensor are: in `buffer`, or in place.  NULL ends the
     * writing with ECANCELED; who gave it knows why. */
    const void *(*read)(void *buffer, const acr_tensor *t, size_t offset, size_t n, void *ctx);
    void *ctx;
    void *buffer; /* [buffer_bytes], a multiple of 8: they are asked for in pieces of that size */
    size_t buffer_bytes;
    acr_hasher *hasher; /* of the file's bytes; may be NULL */
} acr_tensor_source;

/* Writes the tensors in the order given (speculators writes them sorted by name), without syncing
 * the file; `metadata` is an object of strings or NULL, `source` NULL where `data` is complete. */
accrue_status acr_safetensors_write(const char *path, const acr_tensor *tensors, int n,
                                    const json_t *metadata, const acr_tensor_source *source,
                                    accrue_error *err);

/* A model folder's weights: model.safetensors, or the shards of model.safetensors.index.json. */
typedef struct acr_weights acr_weights;
accrue_status acr_weights_open(acr_weights **out, const char *dir, accrue_error *err);
void acr_weights_close(acr_weights *w);
int acr_weights_count(const acr_weights *w);
const acr_tensor *acr_weights_at(const acr_weights *w, int i);
const acr_tensor *acr_weights_find(const acr_weights *w, const char *name);

/* npy ------------------------------------------------------------------------------------- */

/* One-dimensional arrays of '<i8' or '|b1', versions 1.0 and 2.0, C order. */
accrue_status acr_npy_read(acr_tensor *out, acr_map *map, const char *path, accrue_error *err);
accrue_status acr_npy_write(const char *path, const acr_tensor *t, accrue_error *err);

/* GGUF ------------------------------------------------------------------------------------ */

/* A mapped GGUF file, versions 2 and 3, little endian.  Refused: absurd counts, offsets that are
 * not aligned, tensors that overlap or end past the file, unknown types, names given twice, strings
 * that are not UTF-8. */
typedef struct acr_gguf acr_gguf;

typedef enum acr_gguf_type { /* as the file numbers them */
                             ACR_GGUF_F32 = 0,
                             ACR_GGUF_F16 = 1,
                             ACR_GGUF_Q4_0 = 2,
                             ACR_GGUF_Q4_1 = 3,
                             ACR_GGUF_Q5_0 = 6,
                             ACR_GGUF_Q5_1 = 7,
                             ACR_GGUF_Q8_0 = 8,
                             ACR_GGUF_Q4_K = 12,
                             ACR_GGUF_Q5_K = 13,
                             ACR_GGUF_Q6_K = 14,
                             ACR_GGUF_I32 = 26,
                             ACR_GGUF_I64 = 27,
                             ACR_GGUF_F64 = 28,
                             ACR_GGUF_BF16 = 30
} acr_gguf_type;
const char *acr_gguf_type_name(acr_gguf_type t); /* "Q4_K"; NULL: not known */

typedef struct acr_gguf_tensor {
    const char *name;
    acr_gguf_type type;
    int n_dims;
    int64_t dims[ACR_MAX_DIMS]; /* outermost first, as everywhere else here; the file's reversed */
    const void *data;
    size_t bytes;
} acr_gguf_tensor;

accrue_status acr_gguf_open(acr_gguf **out, const char *path, accrue_error *err);
void acr_gguf_close(acr_gguf *g);
const char *acr_gguf_path(const acr_gguf *g); /* as it was opened */
int acr_gguf_count(const acr_gguf *g);
const acr_gguf_tensor *acr_gguf_at(const acr_gguf *g, int i);
const acr_gguf_tensor *acr_gguf_find(const acr_gguf *g, const char *name); /* or NULL */
/* The metadata: numbers, strings, booleans, and arrays of these; owned by `g`. */
const json_t *acr_gguf_metadata(const acr_gguf *g);
/* `n` elements, a whole number of blocks, of a float or quantised type as f32: what llama.cpp's
 * reference code and the `gguf` package make of them, bit for bit (f64 is rounded). */
void acr_gguf_dequantize(acr_gguf_type type, const void *blocks, int64_t n, float *out);
int acr_gguf_block(acr_gguf_type type, size_t *bytes);   /* elements of a block and its bytes */
size_t acr_gguf_bytes(acr_gguf_type type, int64_t n);    /* of a whole number of blocks */
bool acr_gguf_plain(acr_gguf_type type, acr_dtype *out); /* false: a quantised type */
/* The tokenizer.json object that the metadata's byte-level BPE vocabulary amounts to; *out is NULL
 * where the file carries another kind of vocabulary, or none, which `why` (ACR_WHY bytes) then
 * tells.  EFORMAT where it is not whole. */
enum { ACR_WHY = 200 };
accrue_status acr_gguf_tokenizer(json_t **out, char *why, const acr_gguf *g, accrue_error *err);
/* The regular expression of the way of splitting text that GGUF calls so, as tokenizer.json has it;
 * NULL: not known, or GPT-2's, which has none there. */
const char *acr_gguf_split(const char *name);
/* tokenizer_config.json beside it: the special tokens and the context length. */
accrue_status acr_gguf_tokenizer_config(json_t **out, const acr_gguf *g, accrue_error *err);

/* Writing: keys stand in the order in which they were first put; one put again keeps its place.
 * Want of memory is kept and told by acr_gguf_write. */
typedef struct acr_gguf_key {
    char *name;
    uint8_t *value; /* as in the file, its type first */
    size_t bytes, capacity;
} acr_gguf_key;

typedef struct acr_gguf_keys {
    acr_gguf_key *at;
    int n, capacity;
    int last; /* that items of an array go to */
    bool no_memory;
} acr_gguf_keys;

typedef enum acr_gguf_item { ACR_GGUF_ITEM_I32 = 5, ACR_GGUF_ITEM_STRING = 8 } acr_gguf_item;

void acr_gguf_put_u32(acr_gguf_keys *k, const char *name, uint32_t value);
void acr_gguf_put_i32(acr_gguf_keys *k, const char *name, int32_t value);
void acr_gguf_put_f32(acr_gguf_keys *k, const char *name, float value);
void acr_gguf_put_bool(acr_gguf_keys *k, const char *name, bool value);
void acr_gguf_put_string(acr_gguf_keys *k, const char *name, const char *value, size_t bytes);
/* An array of n items, which the caller adds next, all of them. */
void acr_gguf_put_array(acr_gguf_keys *k, const char *name, acr_gguf_item item, uint64_t n);
void acr_gguf_add_i32(acr_gguf_keys *k, int32_t value);
void acr_gguf_add_string(acr_gguf_keys *k, const char *value, size_t bytes);
void acr_gguf_keys_free(acr_gguf_keys *k);

/* Where the rows of tensors come from that are not simply at `data`: puts rows [first, first + n)
 * of the outermost dimension into `out`, in the tensor's own type. */
typedef struct acr_gguf_source {
    accrue_status (*rows)(void *out, const acr_gguf_tensor *t, int64_t first, int64_t n, void *ctx,
                          accrue_error *err);
    void *ctx;
} acr_gguf_source;

/* Blocks as llama.cpp's reference code makes them of `n` elements, a whole number of blocks. */
void acr_gguf_quantize_q8_0(void *blocks, const float *in, int64_t n);
/* Writes a file of version 3, its data aligned to 32 bytes, without syncing it.  Rows are asked for
 * in order, about a MiB at a time; `source` is NULL where `data` is complete. */
accrue_status acr_gguf_write(const char *path, const acr_gguf_keys *keys,
                             const acr_gguf_tensor *tensors, int n, const acr_gguf_source *source,
                             accrue_error *err);

/* Data set -------------------------------------------------------------------------------- */

typedef struct acr_dataset acr_dataset; /* HF save_to_disk folder, memory-mapped */

typedef struct acr_row {
    const int64_t *input_ids; /* [tokens] */
    const int64_t *loss_mask; /* [tokens], 0 or 1 */
    int64_t tokens;
} acr_row;

/* Checks structure (columns, types, chunk offsets) when opened, and each row's values (mask 0/1,
 * lengths equal to seq_len, not ids) in acr_dataset_row's first use of it. */
accrue_status acr_dataset_open(acr_dataset **out, const char *dir, accrue_error *err);
void acr_dataset_close(acr_dataset *d);
int64_t acr_dataset_rows(const acr_dataset *d);
int64_t acr_dataset_tokens(const acr_dataset *d,
                           int64_t row); /* from offsets alone; 0 past the end */
/* EMISMATCH where a row has more tokens than a model has positions. */
accrue_status acr_dataset_check_positions(const acr_dataset *d, int64_t positions,
                                          accrue_error *err);
accrue_status acr_dataset_row(acr_row *out, acr_dataset *d, int64_t row, accrue_error *err);
/* A row as it is in the file, unchecked; *mask_tokens is the length of its loss_mask. */
void acr_dataset_raw_row(acr_row *out, int64_t *mask_tokens, const acr_dataset *d, int64_t row);
/* Whether one of the row's targets is supervised, as far as a micro-batch takes it; the first token
 * is never a target. */
bool acr_dataset_supervises(const acr_dataset *d, int64_t row, int64_t total_seq_len);
int64_t acr_dataset_train_rows(const acr_dataset *d, double ratio); /* int(rows * ratio) */

/* Writes a data set into the folder `dir`, which is there: what `datasets` saves, in files of 500
 * MB at most, whose rows it formats as torch tensors.  How many rows and tokens there will be is
 * said before, as the files' names have their number.  Rows are copied; a batch of them is kept in
 * memory.  Every file is on the disk when _close has succeeded; EINVAL where the rows are more or
 * fewer than was said.  _free leaves what was written. */
typedef struct acr_dataset_writer acr_dataset_writer;
accrue_status acr_dataset_writer_open(acr_dataset_writer **out, const char *dir, int64_t rows,
                                      int64_t tokens, accrue_error *err);
accrue_status acr_dataset_writer_add(acr_dataset_writer *w, const acr_row *row, accrue_error *err);
accrue_status acr_dataset_writer_close(acr_dataset_writer *w, accrue_error *err);
int64_t acr_dataset_writer_files(const acr_dataset_writer *w); /* of Arrow */
int64_t acr_dataset_writer_bytes(const acr_dataset_writer *w); /* of those that are whole */
void acr_dataset_writer_free(acr_dataset_writer *w);

/* Vocabulary maps ------------------------------------------------------------------------- */

typedef struct acr_vocab {
    int64_t vocab_size, draft_vocab_size;
    int64_t *d2t; /* [draft]: verifier id - draft id; NULL when both vocabularies are equal */
    uint8_t *t2d; /* [vocab]: 1 where the id is in the draft vocabulary */
} acr_vocab;

/* Checks: t2d has exactly draft_vocab_size ones, i + d2t[i] enumerates them in order. */
accrue_status acr_vocab_check(const acr_vocab *v, const char *name, accrue_error *err);
/* A pair of map files; vocab_size 0: as many ids as t2d has; draft_vocab_size 0: as d2t has. */
accrue_status acr_vocab_read(acr_vocab *out, const char *d2t_path, const char *t2d_path,
                             int64_t vocab_size, int64_t draft_vocab_size, accrue_error *err);
/* Explicit paths (both or neither), else <data>/d2t-<N>.npy and t2d-<N>.npy, else d2t.npy and
 * t2d.npy, else built from the supervised tokens of all rows (ties to the lower id, filled up with
 * the lowest unused ids).  draft_vocab_size 0 without paths is the whole vocabulary: no maps.
 * *built tells whether they were counted rather than read; rows that break the data set's rules do
 * not count where `skip_bad`. */
accrue_status acr_vocab_load(acr_vocab *out, bool *built, acr_dataset *d, const char *data_path,
                             const char *d2t_path, const char *t2d_path, int64_t vocab_size,
                             int64_t draft_vocab_size, bool skip_bad, accrue_error *err);
accrue_status acr_vocab_build(acr_vocab *out, const int64_t *counts, int64_t vocab_size,
                              int64_t draft_vocab_size, accrue_error *err);
/* The maps that a checkpoint carries, tensors d2t and t2d; `name` is its. */
accrue_status acr_vocab_carried(acr_vocab *out, const acr_weights *w, int64_t vocab_size,
                                const char *name, accrue_error *err);
accrue_status acr_vocab_write(const acr_vocab *v, const char *dir, accrue_error *err);
void acr_vocab_free(acr_vocab *v);

/* Order and packing ----------------------------------------------------------------------- */

/* The micro-batches of one epoch: rows[begin[i] .. begin[i+1]) of micro-batch i. */
typedef struct acr_epoch {
    int64_t n;
    int64_t *begin; /* [n + 1] */
    int64_t *rows;
} acr_epoch;

/* Shuffles rows [first, last) by (seed, epoch) and packs them, whole samples, into micro-batches of
 * at most total_seq_len tokens (a longer sample counts as total_seq_len and is cut).  Depends on
 * nothing else.  lengths[i] belongs to row first + i; a row of length 0 is left out.
 *
 * Rows are sorted on a random key of (seed, epoch, row).  In that order each goes to the fullest of
 * at most 64 open micro-batches that has room for it, else to a new one; micro-batches stand in
 * the order in which they were begun (pack.c). */
accrue_status acr_epoch_pack(acr_epoch *out, const int64_t *lengths, int64_t first, int64_t last,
                             int64_t total_seq_len, uint64_t seed, int64_t epoch,
                             accrue_error *err);
void acr_epoch_free(acr_epoch *e);

/* {"total_seq_len": L, "train": [epoch: [micro-batch: [row, ...]]], "val": likewise}; rows are
 * checked against [0, n_rows), no row twice in an epoch, no empty micro-batch, L as given. */
typedef struct acr_batch_plan {
    int64_t total_seq_len;
    int64_t n_train, n_val; /* epochs */
    acr_epoch *train, *val;
} acr_batch_plan;
accrue_status acr_batch_plan_read(acr_batch_plan *out, const char *path, int64_t n_rows,
                                  int64_t total_seq_len, accrue_error *err);
accrue_status acr_batch_plan_write(const acr_batch_plan *p, const char *path, accrue_error *err);
void acr_batch_plan_free(acr_batch_plan *p);

/* Micro-batches --------------------------------------------------------------------------- */

/* A micro-batch as the model gets it: documents one after the other, each shifted (tokens 1...,
 * auxiliary states 0..., targets 1..., mask 1..., positions 1...), so one row fewer than tokens;
 * cut at padded_rows.  Padding is not stored: it would be zero everywhere. */
typedef struct acr_batch {
    int64_t n_rows, padded_rows;
    int64_t n_docs;
    int64_t *sample;       /* [n_docs] data set row of each document */
    int64_t *doc_begin;    /* [n_docs + 1] */
    int64_t *input_ids;    /* [n_rows] */
    uint8_t *loss_mask;    /* [n_rows] */
    int64_t *position_ids; /* [n_rows] */
    acr_dtype real;        /* F32 or F64, of the next two */
    void *hidden;          /* [n_rows, n_aux * hidden_size] */
    void *target;          /* [n_rows, hidden_size]: last layer before the final norm; zero in the
                              ACCRUE_MAX_TTT_STEPS rows of padding that may follow */
    int64_t capacity_rows, capacity_docs;
} acr_batch;

typedef struct acr_batch_shape {
    int64_t total_seq_len, hidden_size, vocab_size;
    int n_aux;
    acr_dtype real;
} acr_batch_shape;

/* Collates raw documents (tests and conformance use it directly). */
typedef struct acr_document {
    int64_t sample, tokens;
    const int64_t *input_ids, *loss_mask;
    acr_dtype dtype;    /* of the states: BF16, F16, F32 or F64 */
    const void *states; /* [tokens, n_aux + 1, hidden_size] */
} acr_document;
/* hidden_size 0: masks only, hidden and target stay NULL. */
accrue_status acr_batch_alloc(acr_batch *b, const acr_batch_shape *shape, int64_t max_docs,
                              accrue_error *err);
accrue_status acr_batch_collate(acr_batch *b, const acr_batch_shape *shape,
                                const acr_document *docs, int64_t n_docs, accrue_error *err);
void acr_batch_free(acr_batch *b);

/* The loss masks of the same micro-batch without its states, for planning a window's denominators:
 * fills n_rows, n_docs, doc_begin, loss_mask of `b` (allocated as above; hidden may be NULL). */
accrue_status acr_batch_masks(acr_batch *b, const acr_batch_shape *shape, acr_dataset *d,
                              const int64_t *rows, int64_t n, accrue_error *err);

/* The next fault of a row's own columns; *rule is 0 at first and counts on.  vocab_size 0: not
 * known; -1: ids are not looked at. */
accrue_status acr_dataset_fault(accrue_fault *f, int *rule, const acr_dataset *d, int64_t row,
                                int64_t vocab_size);

/* The status that stands for a fault; ENOMEM for kind 0, which is no row's. */
accrue_status acr_fault_status(const accrue_fault *f);
/* A fault that `why` tells; want of memory is of kind 0. */
accrue_status acr_fault_error(accrue_fault *f, accrue_fault_kind kind, const char *file,
                              int64_t row, const accrue_error *why);

/* Who makes the states of rows that have no file. */
typedef struct acr_states_source {
    /* BF16 [*n, n_aux + 1, hidden_size] of the row's tokens from `first` on, which is 0 or where
     * the piece before ended; at least one token, valid until the next call. */
    accrue_status (*make)(const void **out, int64_t *n, void *ctx, const acr_row *r, int64_t first,
                          accrue_error *err);
    void *ctx;
    const char *name; /* stands in messages where a file's would */
} acr_states_source;

/* hs_<row>.safetensors under `dir`, read in pieces: a file that shrinks while it is read is an
 * error like any other, where a mapping would end the process. */
typedef struct acr_states {
    const acr_states_source *source; /* the owner's, borrowed; NULL: a row needs a file */
    bool is_made;                    /* what is open comes from there */
    acr_row row;                     /* what it is made of; borrowed */
    acr_tensor shape;                /* as a file would have it */
    acr_safetensors *file;    /* its header: data of tensors are offsets into the file's data */
    const acr_tensor *hidden; /* [tokens, n_aux + 1, hidden_size] */
    int fd;
    bool is_open;
    int64_t bytes, data_at; /* of the file; where its data begins */
    char path[PATH_MAX];
    void *buffer; /* one piece */
    size_t capacity;
} acr_states;

/* Seconds to wait for files that writers have locked: `left` of them, of which the time goes when
 * any thread waits.  `ended` (may be NULL) ends all waiting at once. */
typedef struct acr_patience {
    double left;
    bool (*ended)(void *ctx);
    void *ctx;
    pthread_mutex_t lock;
    int waiting; /* threads */
    double since;
} acr_patience;
void acr_patience_init(acr_patience *p, double seconds);
void acr_patience_free(acr_patience *p);

/* Opens a row's file, waiting for one that a writer has locked (`p` NULL: not at all); checks keys,
 * dtypes, shapes and token ids against the row.  `s` is zero or was opened before: its memory is
 * used again.  What fails is in *fault. */
accrue_status acr_states_open(acr_states *s, const char *dir, int64_t row, const acr_row *r,
                              const acr_batch_shape *shape, acr_patience *p, accrue_fault *fault);
/* The states of *n tokens from `first` on, at least one: as many as make a piece of a convenient
 * size; valid until the next call. */
accrue_status acr_states_read(const void **out, int64_t *n, acr_states *s, int64_t row,
                              int64_t first, accrue_fault *fault);
/* Checks that what training uses of such a piece is finite: of the first `used` tokens of the row,
 * neither the first one's last slot nor the last one's others. */
accrue_status acr_states_check_used(const acr_states *s, int64_t row, const void *data,
                                    int64_t first, int64_t n, int64_t used, accrue_fault *fault);
void acr_states_close(acr_states *s); /* the file; the memory stays */
void acr_states_free(acr_states *s);
/* Whether anything is there under the file's name, after waiting for one that is being written;
 * *fault says why not. */
bool acr_states_exist(const char *dir, int64_t row, acr_patience *p, accrue_fault *fault);

/* Rows against all their rules, on the pool.  `whole`: every fault of a row and every value in its
 * file; otherwise the first fault that training meets. */
typedef struct acr_sweep {
    acr_dataset *data;
    const char *states_dir;
    acr_batch_shape shape;  /* whole: 0 for a size that is not known; total_seq_len is not read */
    acr_patience *patience; /* NULL: no lock is waited for */
    bool whole, data_alone; /* data_alone: what the data set's own columns hold */
    bool makes_missing;     /* a row needs no file: its states are made when they are used */
    int64_t tokens, supervised_tokens, unsupervised_rows, files, bytes; /* grow */
} acr_sweep;
/* Called in the order of the rows given; a status other than OK ends the sweep with it. */
typedef accrue_status (*acr_fault_cb)(const accrue_fault *fault, void *ctx, accrue_error *err);
accrue_status acr_sweep_rows(acr_sweep *s, const int64_t *rows, int64_t n, acr_fault_cb cb,
                             void *ctx, accrue_error *err);

/* Reads the micro-batches of an epoch one ahead, in a thread of its own. */
typedef struct acr_loader acr_loader;
typedef struct acr_loader_options {
    const char *states_dir;
    const acr_states_source *source; /* of rows without a file, called by the loader's thread;
                                        borrowed; NULL: none */
    acr_batch_shape shape;
    int64_t document_len; /* a longer document is cut; 0: total_seq_len of the shape */
    double lock_timeout;
    /* Called by acr_loader_next while the data is not there; may be NULL.  A status other than OK
     * ends the wait with it. */
    accrue_status (*waiting)(void *ctx, accrue_error *err);
    void *ctx;
} acr_loader_options;
accrue_status acr_loader_create(acr_loader **out, acr_dataset *d, const acr_loader_options *opt,
                                accrue_error *err);
/* One rank's turns among the micro-batches of an epoch: blocks of n, rank after rank. */
typedef struct acr_turns {
    int64_t n;
    int rank, ranks;
} acr_turns;
/* The micro-batch of this rank's i-th turn; it may lie behind the epoch's end. */
int64_t acr_turn(const acr_turns *turns, int64_t i);

/* Serves this rank's turns [from, to) of `e`, or with `turns` NULL micro-batches [from, to); behind
 * the epoch's end they are empty.  `e` is borrowed until the next start, stop or free. */
accrue_status acr_loader_start(acr_loader *l, const acr_epoch *e, const acr_turns *turns,
                               int64_t from, int64_t to, accrue_error *err);
/* Ends what was started; the epoch may be freed. */
void acr_loader_stop(acr_loader *l);
/* The next micro-batch; valid until the next call.  Failures of the thread surface here, in the
 * place of the micro-batch that they hit, and end the run until the next start.  ESTATE when all of
 * them were served. */
accrue_status acr_loader_next(const acr_batch **out, acr_loader *l, accrue_error *err);
/* What ended the run where it was a row's own fault, else NULL. */
const accrue_fault *acr_loader_fault(const acr_loader *l);
/* What is left of lock_timeout, which each row that could be read makes whole again. */
double acr_loader_patience(acr_loader *l);
void acr_loader_free(acr_loader *l);

#endif
