/* pack.c - the order of an epoch and its packing into micro-batches.
 *
 * Rows are shuffled by sorting them on a random key of (seed, epoch, row), then packed in that
 * order by best fit over at most MAX_OPEN open micro-batches: a sample goes to the fullest one that
 * still has room for it (the oldest among equals), else to a new one, for which the fullest is
 * closed when too many are open.  Micro-batches stand in the order in which they were begun, so
 * that those filled worst, which stay open longest, do not gather at the epoch's end. */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_OPEN = 64 };

typedef struct item {
    uint64_t key;
    int64_t row;
} item;

static int by_key(const void *a, const void *b)
{
    const item *x = a;
    const item *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

void acr_epoch_free(acr_epoch *e)
{
    acr_free(e->begin);
    acr_free(e->rows);
    memset(e, 0, sizeof *e);
}

typedef struct bin {
    int64_t index, room;
} bin;

/* The open bins, oldest first. */
typedef struct packer {
    bin open[MAX_OPEN];
    int n_open;
    int64_t n_bins;
} packer;

/* The fullest bin with that much room, the oldest among equals; -1 when there is none. */
static int fullest(const packer *p, int64_t room)
{
    int best = -1;

    for (int i = 0; i < p->n_open; i++)
        if (p->open[i].room >= room && (best < 0 || p->open[i].room < p->open[best].room))
            best = i;
    return best;
}

static void close_bin(packer *p, int i)
{
    p->n_open--;
    memmove(&p->open[i], &p->open[i + 1], (size_t)(p->n_open - i) * sizeof p->open[0]);
}

/* The micro-batch that a sample goes to. */
static int64_t place(packer *p, int64_t length, int64_t total_seq_len)
{
    int i = fullest(p, length);
    int64_t index = 0;

    if (i < 0) {
        if (p->n_open == MAX_OPEN)
            close_bin(p, fullest(p, 0));
        i = p->n_open++;
        p->open[i] = (bin){p->n_bins++, total_seq_len};
    }
    index = p->open[i].index;
    p->open[i].room -= length;
    if (p->open[i].room == 0)
        close_bin(p, i);
    return index;
}

/* Turns the bin of each item into the lists of the epoch; items keep their order in a bin. */
static accrue_status list_bins(acr_epoch *out, const item *items, const int64_t *bins, int64_t n,
                               int64_t n_bins, accrue_error *err)
{
    out->n = n_bins;
    out->begin = acr_calloc((size_t)n_bins + 2, sizeof *out->begin);
    out->rows = acr_calloc((size_t)n + 1, sizeof *out->rows);
    if (!out->begin || !out->rows)
        return acr_enomem(err, (size_t)n * sizeof *out->rows, "an epoch's order");
    /* begin[b + 2] counts, then begin[b + 1] is where the next row of b goes. */
    for (int64_t i = 0; i < n; i++)
        out->begin[bins[i] + 2]++;
    for (int64_t b = 2; b < n_bins + 2; b++)
        out->begin[b] += out->begin[b - 1];
    for (int64_t i = 0; i < n; i++)
        out->rows[out->begin[bins[i] + 1]++] = items[i].row;
    return ACCRUE_OK;
}

accrue_status acr_epoch_pack(acr_epoch *out, const int64_t *lengths, int64_t first, int64_t last,
                             int64_t total_seq_len, uint64_t seed, int64_t epoch, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t n = 0;
    packer p = {.n_open = 0};
    item *items = NULL;
    int64_t *bins = NULL;

    memset(out, 0, sizeof *out);
    if (total_seq_len < 1 || first < 0 || last < first)
        return acr_fail(err, ACCRUE_EINVAL, "cannot pack rows %lld to %lld into %lld tokens",
                        (long long)first, (long long)last, (long long)total_seq_len);
    items = acr_calloc((size_t)(last - first) + 1, sizeof *items);
    bins = acr_calloc((size_t)(last - first) + 1, sizeof *bins);
    if (!items || !bins) {
        st = acr_enomem(err, (size_t)(last - first) * sizeof *items, "an epoch's order");
        goto cleanup;
    }
    for (int64_t row = first; row < last; row++)
        if (lengths[row - first] > 0)
            items[n++] = (item){
                acr_random_u64(seed, ACR_RANDOM_SHUFFLE, (uint64_t)epoch, (uint64_t)row), row};
    qsort(items, (size_t)n, sizeof *items, by_key);
    for (int64_t i = 0; i < n; i++) {
        int64_t length = lengths[items[i].row - first];
        bins[i] = place(&p, length < total_seq_len ? length : total_seq_len, total_seq_len);
    }
    ACR_TRY(list_bins(out, items, bins, n, p.n_bins, err));

cleanup:
    if (st)
        acr_epoch_free(out);
    acr_free(items);
    acr_free(bins);
    return st;
}
