/* generate_parts.h - what the files of accrue_generate share. */
#ifndef ACR_INFER_GENERATE_PARTS_H
#define ACR_INFER_GENERATE_PARTS_H

#include "infer/infer.h"

/* The file of answers: lines in the order of their rows, and beside it what they were made with. */
typedef struct acr_answer_file {
    const char *path; /* borrowed */
    int fd;           /* locked */
    bool is_new;      /* the file */
    size_t there;     /* bytes of its path whose folders were there */
    int64_t bytes;    /* of whole lines */
    int64_t found;    /* bytes that were there */
    int64_t next;     /* row: those before it are done */
    int64_t rows;     /* of the data */
    char **waiting;   /* [rows] lines that are finished before an earlier one; "": no line */
} acr_answer_file;

/* Opens or begins it.  What a killed call has left of a line is cut off.  EMISMATCH where it was
 * begun with other `settings` (borrowed), or is something else. */
accrue_status acr_answer_file_open(acr_answer_file *f, const char *path, const json_t *settings,
                                   int64_t rows, accrue_error *err);
/* The row's line, which it takes over ("": it has none); writes what is no longer waiting. */
accrue_status acr_answer_file_put(acr_answer_file *f, int64_t row, char *line, accrue_error *err);
/* After a failure, before it is closed: a file that was begun and has no line is removed, with its
 * settings and with folders that were made for it. */
void acr_answer_file_tidy(acr_answer_file *f);
void acr_answer_file_close(acr_answer_file *f);

/* What is said and, of a model that thinks before it answers, what it thought, without the newlines
 * that its template puts around them; NULL where it did not.  Both are freed with acr_free, after a
 * failure too. */
accrue_status acr_answer_split(char **content, char **thoughts, const acr_chat *c,
                               const acr_tokenizer *t, const int64_t *ids, int64_t n,
                               accrue_error *err);

#endif
