/* arrow_write.c - a data set as the Python package `datasets` saves one: Arrow IPC streams with its
 * description of the columns, dataset_info.json and state.json.
 *
 * nanoarrow encodes the messages.  Rows are gathered into record batches of a bounded size, whose
 * buffers it reads in place, so that memory does not depend on how many rows there are. */
#include "data/data.h"

#include "nanoarrow/nanoarrow_ipc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_ROWS = 1000 };                    /* as `datasets` batches them */
static const int64_t batch_tokens = 1 << 20;   /* unless one row alone has more */
static const int64_t file_bytes = 500000000;   /* of a file at most, as in `datasets` */
static const int64_t row_bytes = 8 + 2 * 4;    /* seq_len, and an offset of each list */
static const int64_t max_row = INT32_MAX - 64; /* offsets are of 32 bits */

enum { INPUT_IDS, LOSS_MASK, N_LISTS };
static const char *const list_names[N_LISTS] = {"input_ids", "loss_mask"};

struct acr_dataset_writer {
    char *dir;
    int64_t rows, tokens, given; /* of the whole set; rows given so far */
    int64_t bytes;               /* of the files that are whole */
    int64_t files, file, end;    /* end: the row behind the current file's last */
    char *path;                  /* of the current file; NULL: none is open */
    acr_output out;
    accrue_error why; /* of a write that failed inside nanoarrow */
    acr_hasher *hasher;
    struct ArrowIpcWriter ipc;
    bool has_ipc;
    struct ArrowSchema schema;
    struct ArrowArrayView view;
    int64_t n, capacity; /* rows of the batch; tokens that there is room for */
    int32_t *offsets;    /* [BATCH_ROWS + 1], of both lists */
    int64_t *lengths;    /* [BATCH_ROWS] */
    int64_t *values[N_LISTS];
};

/* Schema ------------------------------------------------------------------------------------ */

/* What `datasets` calls the columns' types, in the order of the columns. */
static json_t *features(void)
{
    json_t *all = json_object();
    bool failed = !all;

    for (int i = 0; i < N_LISTS; i++)
        failed |= json_object_set_new(all, list_names[i],
                                      json_pack("{s:{s:s, s:s}, s:s}", "feature", "dtype", "int64",
                                                "_type", "Value", "_type", "List")) != 0;
    failed |= json_object_set_new(all, "seq_len",
                                  json_pack("{s:s, s:s}", "dtype", "int64", "_type", "Value")) != 0;
    if (failed) {
        json_decref(all);
        return NULL;
    }
    return all;
}

static int add_features(struct ArrowSchema *schema)
{
    struct ArrowBuffer pairs = {0};
    json_t *info = json_pack("{s:{s:o}}", "info", "features", features());
    char *text = info ? json_dumps(info, 0) : NULL;
    int code = text ? ArrowMetadataBuilderInit(&pairs, NULL) : ENOMEM;

    if (!code)
        code =
            ArrowMetadataBuilderAppend(&pairs, ArrowCharView("huggingface"), ArrowCharView(text));
    if (!code)
        code = ArrowSchemaSetMetadata(schema, (const char *)pairs.data);
    ArrowBufferReset(&pairs);
    free(text);
    json_decref(info);
    return code;
}

static int make_schema(struct ArrowSchema *schema)
{
    int code = ArrowSchemaSetTypeStruct(schema, N_LISTS + 1);

    for (int i = 0; i < N_LISTS && !code; i++) {
        code = ArrowSchemaSetType(schema->children[i], NANOARROW_TYPE_LIST);
        if (!code)
            code = ArrowSchemaSetName(schema->children[i], list_names[i]);
        if (!code)
            code = ArrowSchemaSetType(schema->children[i]->children[0], NANOARROW_TYPE_INT64);
    }
    if (!code)
        code = ArrowSchemaSetType(schema->children[N_LISTS], NANOARROW_TYPE_INT64);
    if (!code)
        code = ArrowSchemaSetName(schema->children[N_LISTS], "seq_len");
    return code ? code : add_features(schema);
}

/* Files ------------------------------------------------------------------------------------- */

static accrue_status arrow_fail(const acr_dataset_writer *w, int code, const struct ArrowError *e,
                                accrue_error *err)
{
    if (w->why.status)
        return acr_fail(err, w->why.status, "%s", w->why.message);
    if (code == ENOMEM)
        return acr_enomem(err, 0, w->path ? w->path : w->dir);
    return acr_fail(err, ACCRUE_EIO, "%s: %s", w->path ? w->path : w->dir,
                    e->message[0] ? e->message : strerror(code));
}

static ArrowErrorCode write_bytes(struct ArrowIpcOutputStream *stream, const void *bytes, int64_t n,
                                  int64_t *written, struct ArrowError *e)
{
    acr_dataset_writer *w = stream->private_data;

    if (acr_output_write(&w->out, bytes, (size_t)n, &w->why)) {
        ArrowErrorSet(e, "%s", w->why.message);
        return EIO;
    }
    *written = n;
    return NANOARROW_OK;
}

static void release_stream(struct ArrowIpcOutputStream *stream)
{
    stream->release = NULL;
}

/* Rows and tokens are spread over the files as `datasets` does: equally many rows in each. */
static accrue_status open_file(acr_dataset_writer *w, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    struct ArrowError e = {{0}};
    struct ArrowIpcOutputStream stream = {write_bytes, release_stream, w};
    int64_t share = w->rows / w->files + (w->file < w->rows % w->files);
    int code = 0;

    w->path = acr_sprintf("%s/data-%05lld-of-%05lld.arrow", w->dir, (long long)w->file,
                          (long long)w->files);
    if (!w->path)
        return acr_enomem(err, strlen(w->dir), "a path");
    w->end += share;
    ACR_TRY(acr_output_open(&w->out, w->path,
                            (size_t)((w->tokens * 16 + w->rows * row_bytes) / w->files), w->hasher,
                            err));
    code = ArrowIpcWriterInit(&w->ipc, &stream);
    w->has_ipc = !code;
    if (!code)
        code = ArrowIpcWriterWriteSchema(&w->ipc, &w->schema, &e);
    if (code)
        st = arrow_fail(w, code, &e, err);

cleanup:
    return st;
}

/* An array without nulls whose buffers are where they are; nothing is to be released. */
static struct ArrowArray borrow(int64_t length, const void **buffers, int64_t n_buffers,
                                struct ArrowArray **children, int64_t n_children)
{
    return (struct ArrowArray){.length = length,
                               .n_buffers = n_buffers,
                               .buffers = buffers,
                               .children = children,
                               .n_children = n_children};
}

static accrue_status write_batch(acr_dataset_writer *w, accrue_error *err)
{
    struct ArrowError e = {{0}};
    const void *none[1] = {NULL}, *offsets[2] = {NULL, w->offsets},
               *lengths[2] = {NULL, w->lengths};
    const void *values[N_LISTS][2] = {{NULL, w->values[INPUT_IDS]}, {NULL, w->values[LOSS_MASK]}};
    struct ArrowArray root, items[N_LISTS], columns[N_LISTS + 1];
    struct ArrowArray *item[N_LISTS], *column[N_LISTS + 1];
    int code = 0;

    if (w->n == 0)
        return ACCRUE_OK;
    for (int i = 0; i < N_LISTS; i++) {
        items[i] = borrow(w->offsets[w->n], values[i], 2, NULL, 0);
        item[i] = &items[i];
        columns[i] = borrow(w->n, offsets, 2, &item[i], 1);
        column[i] = &columns[i];
    }
    columns[N_LISTS] = borrow(w->n, lengths, 2, NULL, 0);
    column[N_LISTS] = &columns[N_LISTS];
    root = borrow(w->n, none, 1, column, N_LISTS + 1);
    w->n = 0;
    code = ArrowArrayViewSetArray(&w->view, &root, &e);
    if (!code)
        code = ArrowIpcWriterWriteArrayView(&w->ipc, &w->view, &e);
    return code ? arrow_fail(w, code, &e, err) : ACCRUE_OK;
}

static accrue_status close_file(acr_dataset_writer *w, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    struct ArrowError e = {{0}};
    int code = 0;

    ACR_TRY(write_batch(w, err));
    code = ArrowIpcWriterWriteArrayView(&w->ipc, NULL, &e);
    if (code) {
        st = arrow_fail(w, code, &e, err);
        goto cleanup;
    }
    w->bytes += (int64_t)w->out.written;
    ACR_TRY(acr_output_close(&w->out, err));
    ACR_TRY(acr_sync(w->path, err));
    ArrowIpcWriterReset(&w->ipc);
    w->has_ipc = false;
    acr_free(w->path);
    w->path = NULL;
    w->file++;

cleanup:
    return st;
}

/* The two descriptions ---------------------------------------------------------------------- */

static accrue_status write_json(const acr_dataset_writer *w, const char *name, json_t *value,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", w->dir, name);
    char *text = value ? json_dumps(value, JSON_INDENT(2)) : NULL;

    if (!path || !text) {
        st = acr_enomem(err, 0, name);
        goto cleanup;
    }
    ACR_TRY(acr_write_file(path, text, strlen(text), err));
    ACR_TRY(acr_sync(path, err));

cleanup:
    acr_free(path);
    free(text);
    return st;
}

static json_t *info_json(void)
{
    return json_pack("{s:s, s:s, s:o, s:s, s:s}", "citation", "", "description", "", "features",
                     features(), "homepage", "", "license", "");
}

static json_t *state_json(const acr_dataset_writer *w)
{
    char name[64], print[20];
    json_t *files = json_array();

    for (int64_t i = 0; files && i < w->files; i++) {
        snprintf(name, sizeof name, "data-%05lld-of-%05lld.arrow", (long long)i,
                 (long long)w->files);
        if (json_array_append_new(files, json_pack("{s:s}", "filename", name))) {
            json_decref(files);
            files = NULL;
        }
    }
    snprintf(print, sizeof print, "%016llx", (unsigned long long)acr_hasher_value(w->hasher));
    return json_pack("{s:o, s:s, s:[s, s, s], s:{}, s:s, s:b, s:n}", "_data_files", files,
                     "_fingerprint", print, "_format_columns", list_names[INPUT_IDS],
                     list_names[LOSS_MASK], "seq_len", "_format_kwargs", "_format_type", "torch",
                     "_output_all_columns", 0, "_split");
}

/* Interface --------------------------------------------------------------------------------- */

accrue_status acr_dataset_writer_open(acr_dataset_writer **out, const char *dir, int64_t rows,
                                      int64_t tokens, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_dataset_writer *w = acr_calloc(1, sizeof *w);
    struct ArrowError e = {{0}};
    int code = 0;

    *out = NULL;
    if (!w)
        return acr_enomem(err, sizeof *w, "a data set's writer");
    w->out.fd = -1;
    w->rows = rows;
    w->tokens = tokens;
    w->files = 1 + (tokens * 16 + rows * row_bytes) / file_bytes;
    w->files = w->files > rows && rows > 0 ? rows : w->files;
    w->dir = acr_strdup(dir);
    w->hasher = acr_hasher_create();
    w->offsets = acr_calloc(BATCH_ROWS + 1, sizeof *w->offsets);
    w->lengths = acr_calloc(BATCH_ROWS, sizeof *w->lengths);
    ArrowSchemaInit(&w->schema);
    ArrowArrayViewInitFromType(&w->view, NANOARROW_TYPE_UNINITIALIZED);
    if (!w->dir || !w->hasher || !w->offsets || !w->lengths) {
        st = acr_enomem(err, BATCH_ROWS * sizeof *w->lengths, "a data set's writer");
        goto cleanup;
    }
    code = make_schema(&w->schema);
    if (!code)
        code = ArrowArrayViewInitFromSchema(&w->view, &w->schema, &e);
    if (code) {
        st = arrow_fail(w, code, &e, err);
        goto cleanup;
    }
    *out = w;
    w = NULL;

cleanup:
    acr_dataset_writer_free(w);
    return st;
}

void acr_dataset_writer_free(acr_dataset_writer *w)
{
    if (!w)
        return;
    if (w->has_ipc)
        ArrowIpcWriterReset(&w->ipc);
    (void)acr_output_close(&w->out, NULL);
    ArrowArrayViewReset(&w->view);
    if (w->schema.release)
        ArrowSchemaRelease(&w->schema);
    for (int i = 0; i < N_LISTS; i++)
        acr_free(w->values[i]);
    acr_free(w->offsets);
    acr_free(w->lengths);
    acr_hasher_free(w->hasher);
    acr_free(w->path);
    acr_free(w->dir);
    acr_free(w);
}

/* Room for `tokens` in a batch. */
static accrue_status reserve(acr_dataset_writer *w, int64_t tokens, accrue_error *err)
{
    int64_t more = tokens > batch_tokens ? tokens : 2 * tokens;

    if (tokens <= w->capacity)
        return ACCRUE_OK;
    for (int i = 0; i < N_LISTS; i++) {
        int64_t *moved = acr_realloc(w->values[i], (size_t)more * sizeof *moved);
        if (!moved)
            return acr_enomem(err, (size_t)more * sizeof *moved, "a record batch");
        w->values[i] = moved;
    }
    w->capacity = more;
    return ACCRUE_OK;
}

accrue_status acr_dataset_writer_add(acr_dataset_writer *w, const acr_row *row, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t used = w->offsets[w->n];

    if (w->given == w->rows || row->tokens < 0 || row->tokens > max_row)
        return acr_fail(err, ACCRUE_EINVAL, "%s: row %lld of %lld, with %lld tokens", w->dir,
                        (long long)w->given, (long long)w->rows, (long long)row->tokens);
    while (!w->path || w->given == w->end) {
        if (w->path)
            ACR_TRY(close_file(w, err));
        ACR_TRY(open_file(w, err));
    }
    if (w->n == BATCH_ROWS || (w->n && used + row->tokens > batch_tokens))
        ACR_TRY(write_batch(w, err));
    used = w->n ? used : 0;
    ACR_TRY(reserve(w, used + row->tokens, err));
    if (row->tokens) {
        memcpy(w->values[INPUT_IDS] + used, row->input_ids, (size_t)row->tokens * 8);
        memcpy(w->values[LOSS_MASK] + used, row->loss_mask, (size_t)row->tokens * 8);
    }
    w->lengths[w->n] = row->tokens;
    w->offsets[++w->n] = (int32_t)(used + row->tokens);
    w->given++;

cleanup:
    return st;
}

accrue_status acr_dataset_writer_close(acr_dataset_writer *w, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *info = NULL, *state = NULL;

    if (w->given != w->rows)
        return acr_fail(err, ACCRUE_EINVAL, "%s: %lld rows given of %lld", w->dir,
                        (long long)w->given, (long long)w->rows);
    if (!w->path) /* no rows at all: the schema alone */
        ACR_TRY(open_file(w, err));
    ACR_TRY(close_file(w, err));
    info = info_json();
    ACR_TRY(write_json(w, "dataset_info.json", info, err));
    state = state_json(w);
    ACR_TRY(write_json(w, "state.json", state, err));

cleanup:
    json_decref(info);
    json_decref(state);
    return st;
}

int64_t acr_dataset_writer_files(const acr_dataset_writer *w)
{
    return w->files;
}

int64_t acr_dataset_writer_bytes(const acr_dataset_writer *w)
{
    return w->bytes;
}
