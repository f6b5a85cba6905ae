/* arrow.c - the columns of the data set out of Arrow IPC streams.
 *
 * nanoarrow verifies and decodes the messages; the framing around them, the buffers' places and the
 * offsets inside them are checked here before anything is read through them.  A buffer that is
 * int64 and aligned is used where it lies. */
#include "data/readers.h"

#include "nanoarrow/nanoarrow_ipc.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "buffers are used in place");

enum { MAX_METADATA = 100000000, PREFIX = 8 };

typedef struct column {
    const char *name;
    bool is_list;
    int64_t field; /* in depth-first order, as nanoarrow counts; -1: not seen */
    bool wide_offsets;
    size_t value_bytes; /* 4 or 8 */
} column;

enum { INPUT_IDS, LOSS_MASK, SEQ_LEN, N_COLUMNS };

typedef struct stream {
    acr_arrow *table;
    const uint8_t *data;
    size_t bytes, at; /* `at`: the message being read */
    const char *name;
    struct ArrowIpcDecoder decoder;
    struct ArrowSchema schema;
    struct ArrowIpcDictionaryEncodings dictionaries;
    bool has_schema, has_unions;
    column columns[N_COLUMNS];
    struct ArrowBufferView body;
} stream;

static bool is_int(const struct ArrowSchema *s)
{
    return !s->dictionary && (strcmp(s->format, "l") == 0 || strcmp(s->format, "i") == 0);
}

static accrue_status find_column(column *c, const struct ArrowSchema *s, int64_t field,
                                 const stream *in, accrue_error *err)
{
    const struct ArrowSchema *value = s;

    if (c->field >= 0)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: column '%s' twice", in->name, c->name);
    if (c->is_list) {
        bool list = !s->dictionary && s->n_children == 1 &&
                    (strcmp(s->format, "+l") == 0 || strcmp(s->format, "+L") == 0);
        value = list ? s->children[0] : NULL;
        c->wide_offsets = list && s->format[1] == 'L';
    }
    if (!value || !is_int(value))
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: column '%s' has the Arrow type '%s%s', expected %s", in->name, c->name,
                        s->format, s->n_children == 1 ? s->children[0]->format : "",
                        c->is_list ? "a list of int64 ('+ll')" : "int64 ('l')");
    c->value_bytes = value->format[0] == 'l' ? 8 : 4;
    c->field = field;
    return ACCRUE_OK;
}

static int64_t count_fields(const struct ArrowSchema *s, bool *has_unions)
{
    int64_t n = 1;

    if (strncmp(s->format, "+u", 2) == 0)
        *has_unions = true;
    for (int64_t i = 0; i < s->n_children; i++)
        n += count_fields(s->children[i], has_unions);
    return n;
}

static accrue_status arrow_fail(accrue_error *err, const stream *in, int code,
                                const struct ArrowError *e)
{
    return acr_fail(err, code == ENOMEM ? ACCRUE_ENOMEM : ACCRUE_EFORMAT,
                    "%s: message at byte %zu: %s", in->name, in->at,
                    e->message[0] ? e->message : "cannot be decoded");
}

static accrue_status read_schema(stream *in, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    struct ArrowError e = {{0}};
    int code = 0;
    int64_t field = 0;

    if (in->has_schema)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: message at byte %zu: a second schema", in->name,
                        in->at);
    if (in->decoder.endianness != NANOARROW_IPC_ENDIANNESS_LITTLE)
        return acr_fail(err, ACCRUE_ENOTSUP, "%s: big-endian data is not supported", in->name);
    code = ArrowIpcDecoderDecodeSchemaWithDictionaries(&in->decoder, &in->schema, &in->dictionaries,
                                                       &e);
    if (code)
        return arrow_fail(err, in, code, &e);
    in->has_schema = true;
    code =
        ArrowIpcDecoderSetSchemaWithDictionaries(&in->decoder, &in->schema, &in->dictionaries, &e);
    if (code)
        return arrow_fail(err, in, code, &e);
    for (int64_t i = 0; i < in->schema.n_children; i++) {
        const struct ArrowSchema *s = in->schema.children[i];
        for (int c = 0; c < N_COLUMNS; c++)
            if (s->name && strcmp(s->name, in->columns[c].name) == 0)
                ACR_TRY(find_column(&in->columns[c], s, field, in, err));
        field += count_fields(s, &in->has_unions);
    }
    for (int c = 0; c < N_COLUMNS; c++)
        if (in->columns[c].field < 0 && c != SEQ_LEN)
            return acr_fail(err, ACCRUE_EFORMAT, "%s: there is no column '%s'", in->name,
                            in->columns[c].name);

cleanup:
    return st;
}

/* Buffer `i` of a view holds `n` elements of `size` bytes, all of them inside the message. */
static accrue_status check_buffer(const void **out, const stream *in, const column *c,
                                  const struct ArrowArrayView *view, int i, int64_t n, size_t size,
                                  accrue_error *err)
{
    uintptr_t begin = (uintptr_t)in->body.data.as_uint8;
    uintptr_t at = (uintptr_t)view->buffer_views[i].data.data;
    int64_t have = view->buffer_views[i].size_bytes;
    uintptr_t room = (uintptr_t)in->body.size_bytes;

    *out = view->buffer_views[i].data.data;
    if (n == 0)
        return ACCRUE_OK;
    if (have < 0 || at < begin || at - begin > room || (uintptr_t)have > room - (at - begin))
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: message at byte %zu: a buffer of column '%s' is outside its body",
                        in->name, in->at, c->name);
    if ((uint64_t)n > (uint64_t)have / size)
        return acr_fail(
            err, ACCRUE_EFORMAT,
            "%s: message at byte %zu: column '%s' needs %lld elements of %zu bytes, has %lld bytes",
            in->name, in->at, c->name, (long long)n, size, (long long)have);
    return ACCRUE_OK;
}

static accrue_status own(void **out, acr_arrow *table, size_t bytes, accrue_error *err)
{
    void *block = NULL;

    if (table->n_owned == table->max_owned) {
        int64_t more = table->max_owned ? 2 * table->max_owned : 16;
        void **grown = acr_realloc(table->owned, (size_t)more * sizeof *grown);
        if (!grown)
            return acr_enomem(err, (size_t)more * sizeof *grown, "a data set");
        table->owned = grown;
        table->max_owned = more;
    }
    block = acr_malloc(bytes);
    if (!block)
        return acr_enomem(err, bytes, "a column of the data set");
    table->owned[table->n_owned++] = block;
    *out = block;
    return ACCRUE_OK;
}

static bool is_aligned(const void *p, size_t size)
{
    return (uintptr_t)p % size == 0;
}

/* The values as int64: in place where they are aligned int64, a copy elsewhere. */
static accrue_status take_values(const int64_t **out, const stream *in, const void *values,
                                 int64_t n, size_t size, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    void *copy = NULL;

    *out = values;
    if (n == 0 || (size == 8 && is_aligned(values, 8)))
        return ACCRUE_OK;
    ACR_TRY(own(&copy, in->table, (size_t)n * 8, err));
    if (size == 8)
        memcpy(copy, values, (size_t)n * 8);
    for (int64_t i = 0; size == 4 && i < n; i++) {
        int32_t v = 0;
        memcpy(&v, (const char *)values + 4 * i, 4);
        ((int64_t *)copy)[i] = v;
    }
    *out = copy;

cleanup:
    return st;
}

void acr_arrow_span(int64_t *begin, int64_t *end, const acr_arrow_list *list, int64_t row)
{
    if (list->wide) {
        const int64_t *o = list->offsets;
        *begin = o[row];
        *end = o[row + 1];
    } else {
        const int32_t *o = list->offsets;
        *begin = o[row];
        *end = o[row + 1];
    }
}

/* 0 <= offset 0 <= offset 1 <= ... <= n_values. */
static accrue_status check_offsets(const stream *in, const column *c, const acr_arrow_list *list,
                                   int64_t rows, int64_t n_values, accrue_error *err)
{
    for (int64_t i = 0; i < rows; i++) {
        int64_t begin = 0;
        int64_t end = 0;
        acr_arrow_span(&begin, &end, list, i);
        if (begin < 0 || end < begin || end > n_values)
            return acr_fail(
                err, ACCRUE_EFORMAT,
                "%s: row %lld: column '%s' spans elements %lld to %lld of %lld in its batch",
                in->name, (long long)(in->table->rows + i), c->name, (long long)begin,
                (long long)end, (long long)n_values);
    }
    return ACCRUE_OK;
}

bool acr_arrow_is_null(const uint8_t *there, int64_t i)
{
    return there && !(there[i / 8] >> i % 8 & 1);
}

/* The bits of the `n` elements of a view that are no nulls; NULL where none is. */
static accrue_status check_nulls(const uint8_t **out, const stream *in, const column *c,
                                 const struct ArrowArrayView *view, int64_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const void *bits = NULL;

    *out = NULL;
    if (view->null_count == 0 || n == 0)
        return ACCRUE_OK;
    ACR_TRY(check_buffer(&bits, in, c, view, 0, n / 8 + (n % 8 != 0), 1, err));
    *out = bits;

cleanup:
    return st;
}

/* Decodes one column of the current record batch, `rows` long unless that is -1. */
static accrue_status decode(const struct ArrowArrayView **out, stream *in, const column *c,
                            int64_t *rows, accrue_error *err)
{
    struct ArrowError e = {{0}};
    struct ArrowArrayView *view = NULL;
    int code = ArrowIpcDecoderDecodeArrayView(&in->decoder, in->body, c->field, &view, &e);

    if (code)
        return arrow_fail(err, in, code, &e);
    if (view->length < 0 || view->length > INT64_MAX / 16)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: message at byte %zu: column '%s' has %lld rows",
                        in->name, in->at, c->name, (long long)view->length);
    if (*rows < 0)
        *rows = view->length;
    if (view->length != *rows)
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: message at byte %zu: column '%s' has %lld rows, '%s' has %lld",
                        in->name, in->at, c->name, (long long)view->length, in->columns[0].name,
                        (long long)*rows);
    *out = view;
    return ACCRUE_OK;
}

static accrue_status read_list(acr_arrow_list *out, stream *in, const column *c, int64_t *rows,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const struct ArrowArrayView *view = NULL;
    const size_t size = c->wide_offsets ? 8 : 4;
    const void *offsets = NULL;
    const void *values = NULL;
    void *copy = NULL;
    int64_t n = 0;

    ACR_TRY(decode(&view, in, c, rows, err));
    if (*rows == 0)
        goto cleanup;
    n = view->children[0]->length;
    if (n < 0)
        n = 0;
    ACR_TRY(check_buffer(&offsets, in, c, view, 1, *rows + 1, size, err));
    ACR_TRY(check_buffer(&values, in, c, view->children[0], 1, n, c->value_bytes, err));
    if (!is_aligned(offsets, size)) {
        ACR_TRY(own(&copy, in->table, ((size_t)*rows + 1) * size, err));
        memcpy(copy, offsets, ((size_t)*rows + 1) * size);
        offsets = copy;
    }
    out->offsets = offsets;
    out->wide = c->wide_offsets;
    ACR_TRY(check_offsets(in, c, out, *rows, n, err));
    ACR_TRY(check_nulls(&out->rows_there, in, c, view, *rows, err));
    ACR_TRY(check_nulls(&out->values_there, in, c, view->children[0], n, err));
    ACR_TRY(take_values(&out->values, in, values, n, c->value_bytes, err));

cleanup:
    return st;
}

static accrue_status read_lengths(acr_arrow_chunk *out, stream *in, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const column *c = &in->columns[SEQ_LEN];
    const struct ArrowArrayView *view = NULL;
    const void *lengths = NULL;

    if (c->field < 0)
        return ACCRUE_OK;
    ACR_TRY(decode(&view, in, c, &out->rows, err));
    ACR_TRY(check_buffer(&lengths, in, c, view, 1, out->rows, c->value_bytes, err));
    ACR_TRY(take_values(&out->seq_len, in, lengths, out->rows, c->value_bytes, err));
    ACR_TRY(check_nulls(&out->seq_len_there, in, c, view, out->rows, err));

cleanup:
    return st;
}

static accrue_status add_chunk(acr_arrow *t, const acr_arrow_chunk *chunk, accrue_error *err)
{
    if (chunk->rows > INT64_MAX / 16 - t->rows)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: too many rows", chunk->name);
    if (t->n_chunks == t->max_chunks) {
        int64_t more = t->max_chunks ? 2 * t->max_chunks : 16;
        acr_arrow_chunk *grown = acr_realloc(t->chunks, (size_t)more * sizeof *grown);
        if (!grown)
            return acr_enomem(err, (size_t)more * sizeof *grown, chunk->name);
        t->chunks = grown;
        t->max_chunks = more;
    }
    t->chunks[t->n_chunks++] = *chunk;
    t->rows += chunk->rows;
    return ACCRUE_OK;
}

static accrue_status read_batch(stream *in, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_arrow_chunk chunk = {.name = in->name, .first = in->table->rows, .rows = -1};
    const column *c = in->columns;

    if (in->decoder.codec != NANOARROW_IPC_COMPRESSION_TYPE_NONE)
        return acr_fail(err, ACCRUE_ENOTSUP, "%s: message at byte %zu: compressed Arrow data",
                        in->name, in->at);
    /* Before V5 a union has one more buffer, which nanoarrow's columns do not count. */
    if (in->has_unions && in->decoder.metadata_version < NANOARROW_IPC_METADATA_VERSION_V5)
        return acr_fail(err, ACCRUE_ENOTSUP,
                        "%s: message at byte %zu: union columns of an old Arrow version", in->name,
                        in->at);
    ACR_TRY(read_list(&chunk.input_ids, in, &c[INPUT_IDS], &chunk.rows, err));
    ACR_TRY(read_list(&chunk.loss_mask, in, &c[LOSS_MASK], &chunk.rows, err));
    ACR_TRY(read_lengths(&chunk, in, err));
    if (chunk.rows)
        ACR_TRY(add_chunk(in->table, &chunk, err));

cleanup:
    return st;
}

/* The metadata's length of the message at in->at; 0 at the end of the stream. */
static accrue_status read_prefix(size_t *metadata, const stream *in, accrue_error *err)
{
    size_t left = in->bytes - in->at;
    uint32_t marker = 0;
    int32_t length = 0;

    if (left < PREFIX)
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: ends at byte %zu without the mark of the stream's end", in->name,
                        in->bytes);
    memcpy(&marker, in->data + in->at, 4);
    memcpy(&length, in->data + in->at + 4, 4);
    if (marker != 0xffffffffu)
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: message at byte %zu begins with %08x, expected ffffffff", in->name,
                        in->at, (unsigned)marker);
    if (length < 0 || length > MAX_METADATA || length % 8 || (size_t)length > left - PREFIX)
        return acr_fail(
            err, ACCRUE_EFORMAT,
            "%s: message at byte %zu: %d bytes of metadata, with %zu bytes left in the file",
            in->name, in->at, length, left - PREFIX);
    *metadata = (size_t)length;
    return ACCRUE_OK;
}

static accrue_status read_message(stream *in, size_t metadata, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    struct ArrowError e = {{0}};
    struct ArrowBufferView header = {{in->data + in->at}, (int64_t)(PREFIX + metadata)};
    size_t left = in->bytes - in->at - PREFIX - metadata;
    int64_t body = 0;
    int code = 0;

    if (!acr_arrow_message_is_whole(in->data + in->at + PREFIX, metadata))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: message at byte %zu lacks a part of its header",
                        in->name, in->at);
    code = ArrowIpcDecoderVerifyHeader(&in->decoder, header, &e);
    if (!code && !in->has_schema && in->decoder.message_type != NANOARROW_IPC_MESSAGE_TYPE_SCHEMA)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: does not begin with a schema", in->name);
    if (!code)
        code = ArrowIpcDecoderDecodeHeader(&in->decoder, header, &e);
    if (code)
        return arrow_fail(err, in, code, &e);
    body = in->decoder.body_size_bytes;
    if (body < 0 || body % 8 || (uint64_t)body > left)
        return acr_fail(
            err, ACCRUE_EFORMAT,
            "%s: message at byte %zu: a body of %lld bytes, with %zu bytes left in the file",
            in->name, in->at, (long long)body, left);
    in->body.data.as_uint8 = header.data.as_uint8 + header.size_bytes;
    in->body.size_bytes = body;
    if (in->decoder.message_type == NANOARROW_IPC_MESSAGE_TYPE_SCHEMA)
        ACR_TRY(read_schema(in, err));
    else if (in->decoder.message_type == NANOARROW_IPC_MESSAGE_TYPE_RECORD_BATCH)
        ACR_TRY(read_batch(in, err));
    in->at += PREFIX + metadata + (size_t)body;

cleanup:
    return st;
}

accrue_status acr_arrow_append(acr_arrow *table, const uint8_t *data, size_t bytes,
                               const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t metadata = 1;
    stream in = {.table = table,
                 .data = data,
                 .bytes = bytes,
                 .name = name,
                 .columns = {{.name = "input_ids", .is_list = true, .field = -1},
                             {.name = "loss_mask", .is_list = true, .field = -1},
                             {.name = "seq_len", .field = -1}}};

    if (ArrowIpcDecoderInit(&in.decoder) != NANOARROW_OK)
        return acr_enomem(err, 0, name);
    for (;;) {
        ACR_TRY(read_prefix(&metadata, &in, err));
        if (metadata == 0)
            break;
        ACR_TRY(read_message(&in, metadata, err));
    }
    if (!in.has_schema) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: does not begin with a schema", name);
        goto cleanup;
    }
    if (in.at + PREFIX != bytes)
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: its stream ends at byte %zu, the file at %zu", name,
                      in.at + PREFIX, bytes);

cleanup:
    if (in.has_schema) {
        ArrowIpcDictionaryEncodingsReset(&in.dictionaries);
        ArrowSchemaRelease(&in.schema);
    }
    ArrowIpcDecoderReset(&in.decoder);
    return st;
}

void acr_arrow_free(acr_arrow *table)
{
    for (int64_t i = 0; i < table->n_owned; i++)
        acr_free(table->owned[i]);
    acr_free(table->owned);
    acr_free(table->chunks);
    memset(table, 0, sizeof *table);
}
