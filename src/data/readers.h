/* readers.h - inside the data layer: readers over bytes in memory, which the functions of data.h
 * call on mapped files and the fuzz targets on made-up ones, and the pieces that the loader
 * shares with the one-shot functions. */
#ifndef ACR_DATA_READERS_H
#define ACR_DATA_READERS_H

#include "data/data.h"

/* `data` is borrowed until the object is closed; `name` stands in messages. */
accrue_status acr_safetensors_parse(acr_safetensors **out, const uint8_t *data, size_t bytes,
                                    const char *name, accrue_error *err);
/* The header alone, of a file of `bytes` bytes of which `head` has all that belongs to it: data of
 * tensors are offsets into the file's data.  In the memory of *f (NULL: in new memory). */
accrue_status acr_safetensors_reparse(acr_safetensors **f, const uint8_t *head, size_t bytes,
                                      const char *name, accrue_error *err);
/* Bytes of prefix and header, which begin with `prefix`; 0 where that can be none of a file of
 * `bytes`, which acr_safetensors_reparse then says. */
size_t acr_safetensors_head(const uint8_t prefix[8], size_t bytes);

accrue_status acr_gguf_parse(acr_gguf **out, const uint8_t *data, size_t bytes, const char *name,
                             accrue_error *err);

accrue_status acr_npy_parse(acr_tensor *out, const uint8_t *data, size_t bytes, const char *name,
                            accrue_error *err);

/* One list<int64> column of a record batch: row i is values[offset i .. offset i+1).  The bits of
 * what is there and not null; NULL: everything. */
typedef struct acr_arrow_list {
    const void *offsets; /* int32_t, or int64_t when `wide`; aligned, monotone, inside `values` */
    const int64_t *values;
    bool wide;
    const uint8_t *rows_there, *values_there;
} acr_arrow_list;

typedef struct acr_arrow_chunk { /* a record batch */
    const char *name;            /* its file */
    int64_t first, rows;         /* rows before it in the table; its own */
    acr_arrow_list input_ids, loss_mask;
    const int64_t *seq_len; /* [rows]; NULL: there is no such column */
    const uint8_t *seq_len_there;
} acr_arrow_chunk;

typedef struct acr_arrow {
    acr_arrow_chunk *chunks;
    int64_t n_chunks, max_chunks;
    int64_t rows;
    void **owned; /* copies of buffers that could not be used in place */
    int64_t n_owned, max_owned;
} acr_arrow;

/* Appends the record batches of an IPC stream; `data` (8-byte aligned) and `name` are
 * borrowed until the table is freed. */
accrue_status acr_arrow_append(acr_arrow *table, const uint8_t *data, size_t bytes,
                               const char *name, accrue_error *err);
void acr_arrow_free(acr_arrow *table);
/* Whether a message, verified or not, has every part that its decoder takes for granted and may be
 * walked in a time that its size bounds. */
bool acr_arrow_message_is_whole(const uint8_t *metadata, size_t bytes);
bool acr_arrow_is_null(const uint8_t *there, int64_t i);
void acr_arrow_span(int64_t *begin, int64_t *end, const acr_arrow_list *list, int64_t row);

/* A fault as a value; `found` and `expected` make the message with the rest:
 * "FILE: row R: WHAT is FOUND, expected EXPECTED".  Returns acr_fault_status. */
accrue_status acr_fault_set(accrue_fault *f, accrue_fault_kind kind, const char *file, int64_t row,
                            const char *what, const char *found, const char *expected);
/* Appends "(and N - 1 more)" where there is more than one place. */
void acr_fault_count(accrue_fault *f, int64_t count);

/* The parts of acr_states_open, for one who goes on after a fault. */
typedef enum acr_lock { ACR_LOCK_NONE, ACR_LOCK_LEFT, ACR_LOCK_HELD, ACR_LOCK_UNKNOWN } acr_lock;
/* Waits for a lock that is held; UNKNOWN: it cannot be looked at, *why says why (may be NULL). */
acr_lock acr_states_lock(const char *dir, int64_t row, acr_patience *p, accrue_error *why);
/* The fault, or notice, of a lock that is there. */
accrue_status acr_states_locked(accrue_fault *f, const char *dir, int64_t row, acr_lock lock,
                                const accrue_error *why);
accrue_status acr_states_begin(acr_states *s, const char *dir, int64_t row, accrue_fault *f);
accrue_status acr_states_check_ids(acr_states *s, int64_t row, const acr_row *r, accrue_fault *f);
/* Sets s->hidden; hidden_size 0: any size. */
accrue_status acr_states_check_shape(acr_states *s, int64_t row, const acr_row *r,
                                     const acr_batch_shape *shape, accrue_fault *f);
/* The fault of the row's i-th number, which lies at `element`. */
accrue_status acr_states_nonfinite(const acr_states *s, int64_t row, const void *element, int64_t i,
                                   accrue_fault *f);

/* Collation one document at a time: it without its states, then those of its tokens
 * [first, first + n). */
void acr_batch_begin(acr_batch *b, const acr_batch_shape *shape);
accrue_status acr_batch_append_tokens(acr_batch *b, const acr_batch_shape *shape,
                                      const acr_document *doc, accrue_error *err);
void acr_batch_put_states(acr_batch *b, const acr_batch_shape *shape, acr_dtype dtype,
                          const void *states, int64_t first, int64_t n);
/* More room for documents; keeps what is there when there is enough. */
accrue_status acr_batch_reserve_docs(acr_batch *b, int64_t max_docs, accrue_error *err);

#endif
