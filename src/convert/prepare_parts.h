/* prepare_parts.h - of accrue_prepare: its files share this. */
#ifndef ACR_CONVERT_PREPARE_PARTS_H
#define ACR_CONVERT_PREPARE_PARTS_H

#include "convert/new_folder.h"
#include "data/data.h"
#include "text/text.h"

/* order.c: the order that numpy.random.default_rng(seed).permutation(n) gives, which is the one
 * that `datasets` shuffles by; acr_free. */
accrue_status acr_numpy_permutation(int64_t **out, uint64_t seed, int64_t n, accrue_error *err);

/* What rows are made with; the same for all lines. */
typedef struct acr_row_maker {
    const acr_tokenizer *tokenizer; /* NULL: not usable, for `no_tokenizer` */
    const acr_chat *chat;           /* NULL: not usable, for `no_chat` */
    accrue_error no_tokenizer, no_chat;
    int64_t vocab_size, seq_length, minimum_valid_tokens;
} acr_row_maker;

/* The rows of one line. */
typedef struct acr_line_rows {
    uint32_t *tokens; /* of all rows: an id, with ACR_SUPERVISED where the mask is 1 */
    int64_t n_tokens, token_capacity;
    int64_t *lengths; /* [n] */
    int64_t n, row_capacity;
    int64_t cut, unsupervised, too_short, unknown_roles;
    bool unanswered;
    char unknown_role[64];
    acr_ids ids, mask, before; /* for the work */
} acr_line_rows;
#define ACR_SUPERVISED 0x80000000u

/* EFORMAT, EMISMATCH: the line is faulty; `name` begins the message. */
accrue_status acr_line_rows_make(acr_line_rows *out, const acr_row_maker *maker, const char *text,
                                 size_t bytes, const char *name, accrue_error *err);
void acr_line_rows_free(acr_line_rows *r);

/* token_freq.c: token_freq.pt as torch loads it: how often each id is supervised. */
accrue_status acr_token_freq_write(const char *path, const int64_t *counts, int64_t vocab_size,
                                   accrue_error *err);

/* One call of accrue_prepare. */
typedef struct acr_waiting_row {
    int64_t offset, tokens; /* in the file of waiting rows, in elements */
} acr_waiting_row;

typedef struct acr_preparation {
    const accrue_prepare_options *opt;
    accrue_progress_cb cb;
    void *payload;
    double begun;
    accrue_prepare_report *report;
    acr_lines *files; /* [opt->n_files] */
    acr_tokenizer *tokenizer;
    acr_chat chat;
    acr_row_maker maker;
    json_t *made_from;
    acr_new_folder folder;
    char *rows_path;
    acr_output rows_out;
    acr_waiting_row *rows; /* [n_rows] */
    int64_t n_rows, row_capacity, waiting;
    json_t *skipped; /* bad lines */
    int64_t max_bad;
    int64_t taken, to_take; /* lines */
    int64_t *counts;        /* [vocab_size] */
} acr_preparation;

/* prepared.c: all that is ever put into a data set's folder: patterns; NULL ends them. */
extern const char *const acr_prepared_files[];
/* p->made_from, of whatever decides what will be written. */
accrue_status acr_prepared_describe(acr_preparation *p, accrue_error *err);
/* What becomes of a folder that is there; *done: it is the same data set, whose report is read. */
accrue_status acr_prepared_find(bool *done, acr_preparation *p, accrue_error *err);
/* All that goes beside the rows. */
accrue_status acr_prepared_write(acr_preparation *p, accrue_error *err);

#endif
