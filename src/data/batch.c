/* batch.c - micro-batches in memory: documents shifted by one token and laid end to end.
 *
 * A document of T tokens gives T - 1 rows; row j has token j + 1, its mask and position, the
 * auxiliary states of token j and, as the target, the last layer of token j + 1.  What does not
 * fit in padded_rows is cut. */
#include "data/readers.h"

#include <string.h>

static bool array_bytes(size_t *out, int64_t a, int64_t b, int64_t c)
{
    int64_t n = 0;

    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &n) || __builtin_mul_overflow(n, c, &n))
        return false;
    *out = (size_t)n;
    return true;
}

accrue_status acr_batch_reserve_docs(acr_batch *b, int64_t max_docs, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t *sample = NULL;
    int64_t *begin = NULL;
    size_t bytes = 0;

    if (max_docs <= b->capacity_docs && b->doc_begin)
        return ACCRUE_OK;
    if (!array_bytes(&bytes, max_docs, 1, 8))
        return acr_fail(err, ACCRUE_EINVAL, "a micro-batch of %lld documents", (long long)max_docs);
    sample = acr_malloc(bytes);
    begin = acr_malloc(bytes + 8);
    if (!sample || !begin) {
        st = acr_enomem(err, bytes, "a micro-batch's documents");
        goto cleanup;
    }
    acr_free(b->sample);
    acr_free(b->doc_begin);
    b->sample = sample;
    b->doc_begin = begin;
    b->doc_begin[0] = 0;
    b->n_docs = b->n_rows = 0;
    b->capacity_docs = max_docs;
    sample = begin = NULL;

cleanup:
    acr_free(sample);
    acr_free(begin);
    return st;
}

accrue_status acr_batch_alloc(acr_batch *b, const acr_batch_shape *shape, int64_t max_docs,
                              accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t rows = shape->total_seq_len;
    const int64_t real = (int64_t)acr_dtype_bytes(shape->real);
    size_t hidden = 0;
    size_t target = 0;
    int64_t width = 0;

    memset(b, 0, sizeof *b);
    if (rows < 1 || rows > INT64_MAX / 8 || shape->n_aux < 0 ||
        __builtin_mul_overflow(shape->hidden_size, (int64_t)shape->n_aux, &width) ||
        !array_bytes(&hidden, rows, width, real) ||
        !array_bytes(&target, rows, shape->hidden_size, real))
        return acr_fail(err, ACCRUE_EINVAL,
                        "a micro-batch of %lld rows with %d x %lld auxiliary states",
                        (long long)rows, shape->n_aux, (long long)shape->hidden_size);
    ACR_TRY(acr_batch_reserve_docs(b, max_docs, err));
    b->input_ids = acr_malloc((size_t)rows * sizeof *b->input_ids);
    b->position_ids = acr_malloc((size_t)rows * sizeof *b->position_ids);
    b->loss_mask = acr_malloc((size_t)rows);
    if (shape->hidden_size) {
        b->hidden = acr_malloc(hidden);
        b->target = acr_malloc(target);
    }
    if (!b->input_ids || !b->position_ids || !b->loss_mask ||
        (shape->hidden_size && (!b->hidden || !b->target))) {
        st = acr_enomem(err, hidden + target, "a micro-batch");
        goto cleanup;
    }
    b->capacity_rows = rows;
    b->padded_rows = rows;
    b->real = shape->real;

cleanup:
    if (st)
        acr_batch_free(b);
    return st;
}

void acr_batch_free(acr_batch *b)
{
    acr_free(b->sample);
    acr_free(b->doc_begin);
    acr_free(b->input_ids);
    acr_free(b->loss_mask);
    acr_free(b->position_ids);
    acr_free(b->hidden);
    acr_free(b->target);
    memset(b, 0, sizeof *b);
}

void acr_batch_begin(acr_batch *b, const acr_batch_shape *shape)
{
    b->n_rows = b->n_docs = 0;
    b->padded_rows = shape->total_seq_len;
    b->real = shape->real;
    b->doc_begin[0] = 0;
}

/* The padding that an unroll may read as targets. */
static void clear_targets(acr_batch *b, const acr_batch_shape *shape)
{
    size_t row = (size_t)shape->hidden_size * acr_dtype_bytes(shape->real);
    int64_t end = b->n_rows + ACCRUE_MAX_TTT_STEPS;

    if (end > b->padded_rows)
        end = b->padded_rows;
    memset((char *)b->target + (size_t)b->n_rows * row, 0, (size_t)(end - b->n_rows) * row);
}

/* Appends a document without its tokens and states; *rows is how many of its rows fit. */
static accrue_status append_mask(int64_t *rows, acr_batch *b, int64_t sample,
                                 const int64_t *loss_mask, int64_t tokens, accrue_error *err)
{
    int64_t room = b->padded_rows - b->n_rows;

    *rows = tokens > 0 ? tokens - 1 : 0;
    if (*rows > room)
        *rows = room;
    if (b->n_docs == b->capacity_docs || b->padded_rows > b->capacity_rows)
        return acr_fail(err, ACCRUE_EINVAL,
                        "sample %lld: no room for document %lld of %lld, %lld rows of %lld",
                        (long long)sample, (long long)b->n_docs, (long long)b->capacity_docs,
                        (long long)b->padded_rows, (long long)b->capacity_rows);
    for (int64_t j = 0; j < *rows; j++)
        b->loss_mask[b->n_rows + j] = loss_mask[j + 1] != 0;
    b->sample[b->n_docs++] = sample;
    b->n_rows += *rows;
    b->doc_begin[b->n_docs] = b->n_rows;
    return ACCRUE_OK;
}

accrue_status acr_batch_append_tokens(acr_batch *b, const acr_batch_shape *shape,
                                      const acr_document *doc, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t at = b->n_rows;
    int64_t rows = 0;

    ACR_TRY(append_mask(&rows, b, doc->sample, doc->loss_mask, doc->tokens, err));
    for (int64_t j = 0; j < rows; j++) {
        b->input_ids[at + j] = doc->input_ids[j + 1];
        b->position_ids[at + j] = j + 1;
    }
    clear_targets(b, shape);

cleanup:
    return st;
}

void acr_batch_put_states(acr_batch *b, const acr_batch_shape *shape, acr_dtype dtype,
                          const void *states, int64_t first, int64_t n)
{
    const int64_t at = b->doc_begin[b->n_docs - 1], rows = b->n_rows - at;
    const size_t real = acr_dtype_bytes(shape->real), from = acr_dtype_bytes(dtype);
    const size_t size = (size_t)shape->hidden_size, width = (size_t)shape->n_aux * size;

    for (int64_t i = 0; i < n; i++) {
        const char *token = (const char *)states + (size_t)i * (width + size) * from;
        int64_t j = first + i; /* row j's auxiliary states, row j - 1's target */
        if (j < rows)
            acr_convert(shape->real, (char *)b->hidden + (size_t)(at + j) * width * real, dtype,
                        token, (int64_t)width);
        if (j > 0 && j <= rows)
            acr_convert(shape->real, (char *)b->target + (size_t)(at + j - 1) * size * real, dtype,
                        token + width * from, shape->hidden_size);
    }
}

accrue_status acr_batch_collate(acr_batch *b, const acr_batch_shape *shape,
                                const acr_document *docs, int64_t n_docs, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    acr_batch_begin(b, shape);
    for (int64_t i = 0; i < n_docs; i++) {
        ACR_TRY(acr_batch_append_tokens(b, shape, &docs[i], err));
        acr_batch_put_states(b, shape, docs[i].dtype, docs[i].states, 0, docs[i].tokens);
    }

cleanup:
    return st;
}

accrue_status acr_batch_masks(acr_batch *b, const acr_batch_shape *shape, acr_dataset *d,
                              const int64_t *rows, int64_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    acr_batch_begin(b, shape);
    for (int64_t i = 0; i < n; i++) {
        acr_row r = {0};
        int64_t fits = 0;
        ACR_TRY(acr_dataset_row(&r, d, rows[i], err));
        ACR_TRY(append_mask(&fits, b, rows[i], r.loss_mask, r.tokens, err));
    }

cleanup:
    return st;
}
