/* readers.h - inside the data layer: readers over bytes in memory, which the functions of data.h
 * call on mapped files and the fuzz targets on made-up ones, and the pieces that the loader
 * shares with the one-shot functions. */
#ifndef ACR_DATA_READERS_H
#define ACR_DATA_READERS_H

#include "data/data.h"

/* `data` is borrowed until the object is closed; `name` stands in messages. */
accrue_status acr_safetensors_parse(acr_safetensors **out, const uint8_t *data, size_t bytes,
                                    const char *name, accrue_error *err);
/* Opens another file in the memory of *f (NULL: in new memory).  On failure *f stays usable for
 * the next reopen and must still be closed. */
accrue_status acr_safetensors_reopen(acr_safetensors **f, const char *path, accrue_error *err);
/* Drops the file, keeps the memory. */
void acr_safetensors_unmap(acr_safetensors *f);

accrue_status acr_npy_parse(acr_tensor *out, const uint8_t *data, size_t bytes, const char *name,
                            accrue_error *err);

/* One list<int64> column of a record batch: row i is values[offset i .. offset i+1). */
typedef struct acr_arrow_list {
    const void *offsets; /* int32_t, or int64_t when `wide`; aligned, monotone, inside `values` */
    const int64_t *values;
    bool wide;
} acr_arrow_list;

typedef struct acr_arrow_chunk { /* a record batch */
    const char *name;            /* its file */
    int64_t first, rows;         /* rows before it in the table; its own */
    acr_arrow_list input_ids, loss_mask;
    const int64_t *seq_len; /* [rows] */
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
void acr_arrow_span(int64_t *begin, int64_t *end, const acr_arrow_list *list, int64_t row);

/* acr_states_open in the memory of an earlier one. */
accrue_status acr_states_reopen(acr_states *s, const char *dir, int64_t row, const acr_row *r,
                                const acr_batch_shape *shape, accrue_error *err);

/* Collation one document at a time. */
void acr_batch_begin(acr_batch *b, const acr_batch_shape *shape);
accrue_status acr_batch_append(acr_batch *b, const acr_batch_shape *shape, const acr_document *doc,
                               accrue_error *err);
/* More room for documents; keeps what is there when there is enough. */
accrue_status acr_batch_reserve_docs(acr_batch *b, int64_t max_docs, accrue_error *err);

#endif
