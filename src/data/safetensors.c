/* safetensors.c - the safetensors format: reading mapped files, writing, and a model folder's
 * weights in one file or in shards.
 *
 * A file is the header's length (8 bytes, little endian), the header (a JSON object of
 * name -> dtype, shape, data_offsets), and the data that the offsets are relative to. */
#include "data/readers.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are read in place");

enum { PREFIX = 8, MAX_HEADER = 100000000 };

struct acr_safetensors {
    acr_map map;    /* of a whole file */
    json_t *header; /* owns the names */
    acr_tensor *tensors;
    int n, capacity;
};

static accrue_status parse_shape(acr_tensor *t, const json_t *shape, const char *name,
                                 accrue_error *err)
{
    size_t n = json_array_size(shape);
    int64_t elements = 1;
    int64_t bytes = 0;

    if (!json_is_array(shape) || n > ACR_MAX_DIMS)
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: tensor '%s': shape must be an array of at most %d numbers", name,
                        t->name, ACR_MAX_DIMS);
    t->n_dims = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return acr_fail(err, ACCRUE_EFORMAT,
                            "%s: tensor '%s': dimension %zu of its shape is not a count", name,
                            t->name, i);
        t->dims[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(elements, t->dims[i], &elements))
            return acr_fail(err, ACCRUE_EFORMAT, "%s: tensor '%s': its shape overflows 64 bits",
                            name, t->name);
    }
    if (__builtin_mul_overflow(elements, (int64_t)acr_dtype_bytes(t->dtype), &bytes))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: tensor '%s': its size overflows 64 bits", name,
                        t->name);
    t->bytes = (size_t)bytes;
    return ACCRUE_OK;
}

static accrue_status parse_tensor(acr_tensor *t, const json_t *entry, const uint8_t *data,
                                  size_t data_bytes, const char *name, accrue_error *err)
{
    const json_t *dtype = json_object_get(entry, "dtype");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0);
    const json_t *last = json_array_get(offsets, 1);
    char shape[ACR_SHAPE_TEXT];
    json_int_t begin = 0;
    json_int_t end = 0;
    accrue_status st = ACCRUE_OK;

    if (json_object_size(entry) != 3 || !json_is_string(dtype) || json_array_size(offsets) != 2 ||
        !json_is_integer(first) || !json_is_integer(last))
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: tensor '%s': expected dtype, shape and two data_offsets", name,
                        t->name);
    if (!acr_dtype_parse(&t->dtype, json_string_value(dtype)))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: tensor '%s': dtype '%s' is not supported", name,
                        t->name, json_string_value(dtype));
    ACR_TRY(parse_shape(t, json_object_get(entry, "shape"), name, err));
    begin = json_integer_value(first);
    end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes) {
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: tensor '%s': bytes %lld to %lld are not within the %zu bytes of data",
                      name, t->name, (long long)begin, (long long)end, data_bytes);
        goto cleanup;
    }
    if ((uint64_t)(end - begin) != t->bytes) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: tensor '%s': %s %s takes %zu bytes, not %lld", name,
                      t->name, acr_dtype_name(t->dtype), acr_shape_text(shape, t->n_dims, t->dims),
                      t->bytes, (long long)(end - begin));
        goto cleanup;
    }
    t->data = (const void *)((uintptr_t)data + (uintptr_t)begin);

cleanup:
    return st;
}

static int by_place(const void *a, const void *b)
{
    const acr_tensor *x = a;
    const acr_tensor *y = b;
    const uint8_t *p = x->data;
    const uint8_t *q = y->data;

    if (p != q)
        return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const acr_tensor *)a)->name, ((const acr_tensor *)b)->name);
}

/* Every byte of the data belongs to exactly one tensor. */
static accrue_status check_cover(acr_tensor *tensors, int n, const uint8_t *data, size_t data_bytes,
                                 const char *name, accrue_error *err)
{
    size_t at = 0;

    if (n)
        qsort(tensors, (size_t)n, sizeof *tensors, by_place);
    for (int i = 0; i < n; i++) {
        size_t begin = (size_t)((uintptr_t)tensors[i].data - (uintptr_t)data);
        if (begin != at)
            return acr_fail(err, ACCRUE_EFORMAT,
                            "%s: tensor '%s' begins at byte %zu of the data, %s byte %zu", name,
                            tensors[i].name, begin,
                            begin < at ? "inside the one that ends at" : "after a gap from", at);
        at += tensors[i].bytes;
    }
    if (at != data_bytes)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: its tensors take %zu bytes, its data has %zu",
                        name, at, data_bytes);
    return ACCRUE_OK;
}

static accrue_status check_metadata(const json_t *metadata, const char *name, accrue_error *err)
{
    const char *key = NULL;
    json_t *value = NULL;

    if (!json_is_object(metadata))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: __metadata__ is not an object", name);
    json_object_foreach(
        (json_t *)(uintptr_t)metadata, key,
        value) if (!json_is_string(value)) return acr_fail(err, ACCRUE_EFORMAT,
                                                           "%s: __metadata__ '%s' is not a string",
                                                           name, key);
    return ACCRUE_OK;
}

static accrue_status parse_tensors(acr_safetensors *f, const uint8_t *data, size_t data_bytes,
                                   const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t n = json_object_size(f->header);
    const char *key = NULL;
    json_t *entry = NULL;

    if (n > (size_t)f->capacity) {
        acr_free(f->tensors);
        f->capacity = 0;
        f->tensors = acr_calloc(n, sizeof *f->tensors);
        if (!f->tensors)
            return acr_enomem(err, n * sizeof *f->tensors, name);
        f->capacity = (int)n;
    }
    json_object_foreach(f->header, key, entry)
    {
        if (strcmp(key, "__metadata__") == 0) {
            ACR_TRY(check_metadata(entry, name, err));
            continue;
        }
        memset(&f->tensors[f->n], 0, sizeof *f->tensors);
        f->tensors[f->n].name = key;
        ACR_TRY(parse_tensor(&f->tensors[f->n], entry, data, data_bytes, name, err));
        f->n++;
    }
    ACR_TRY(check_cover(f->tensors, f->n, data, data_bytes, name, err));
    if (f->n)
        qsort(f->tensors, (size_t)f->n, sizeof *f->tensors, by_name);

cleanup:
    return st;
}

size_t acr_safetensors_head(const uint8_t prefix[8], size_t bytes)
{
    uint64_t header = 0;

    if (bytes < PREFIX)
        return 0;
    memcpy(&header, prefix, PREFIX);
    return header > MAX_HEADER || header > bytes - PREFIX ? 0 : PREFIX + (size_t)header;
}

/* `head` begins the file; where it is not `whole`, it holds the header alone. */
static accrue_status parse(acr_safetensors *f, const uint8_t *head, size_t bytes, bool whole,
                           const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    uint64_t header = 0;
    size_t begin = bytes < PREFIX ? 0 : acr_safetensors_head(head, bytes);

    if (bytes < PREFIX)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %zu bytes are too few for a safetensors file",
                        name, bytes);
    memcpy(&header, head, PREFIX);
    if (!begin && header > MAX_HEADER)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: a header of %llu bytes, at most %d expected",
                        name, (unsigned long long)header, MAX_HEADER);
    if (!begin)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: a header of %llu bytes in a file of %zu", name,
                        (unsigned long long)header, bytes);
    ACR_TRY(acr_json_parse(&f->header, (const char *)head + PREFIX, (size_t)header, name, err));
    if (!json_is_object(f->header)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: its header is not a JSON object", name);
        goto cleanup;
    }
    ACR_TRY(parse_tensors(f, whole ? head + begin : NULL, bytes - begin, name, err));

cleanup:
    return st;
}

static void forget(acr_safetensors *f)
{
    acr_map_close(&f->map);
    json_decref(f->header);
    f->header = NULL;
    f->n = 0;
}

accrue_status acr_safetensors_parse(acr_safetensors **out, const uint8_t *data, size_t bytes,
                                    const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_safetensors *f = NULL;

    *out = NULL;
    f = acr_calloc(1, sizeof *f);
    if (!f)
        return acr_enomem(err, sizeof *f, name);
    ACR_TRY(parse(f, data, bytes, true, name, err));
    *out = f;
    f = NULL;

cleanup:
    acr_safetensors_close(f);
    return st;
}

accrue_status acr_safetensors_reparse(acr_safetensors **f, const uint8_t *head, size_t bytes,
                                      const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (!*f && !(*f = acr_calloc(1, sizeof **f)))
        return acr_enomem(err, sizeof **f, name);
    forget(*f);
    ACR_TRY(parse(*f, head, bytes, false, name, err));

cleanup:
    if (st)
        forget(*f);
    return st;
}

accrue_status acr_safetensors_open(acr_safetensors **out, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_safetensors *f = acr_calloc(1, sizeof *f);

    *out = NULL;
    if (!f)
        return acr_enomem(err, sizeof *f, path);
    ACR_TRY(acr_map_open(&f->map, path, err));
    ACR_TRY(parse(f, f->map.data, f->map.bytes, true, path, err));
    *out = f;
    f = NULL;

cleanup:
    acr_safetensors_close(f);
    return st;
}

void acr_safetensors_close(acr_safetensors *f)
{
    if (!f)
        return;
    forget(f);
    acr_free(f->tensors);
    acr_free(f);
}

int acr_safetensors_count(const acr_safetensors *f)
{
    return f->n;
}

const acr_tensor *acr_safetensors_at(const acr_safetensors *f, int i)
{
    return &f->tensors[i];
}

static const acr_tensor *find(const acr_tensor *tensors, int n, const char *name)
{
    acr_tensor key = {.name = name};

    return n ? bsearch(&key, tensors, (size_t)n, sizeof *tensors, by_name) : NULL;
}

const acr_tensor *acr_safetensors_find(const acr_safetensors *f, const char *name)
{
    return find(f->tensors, f->n, name);
}

/* Writing ---------------------------------------------------------------------------------- */

static json_t *tensor_entry(const acr_tensor *t, size_t begin)
{
    json_t *shape = json_array();

    for (int i = 0; i < t->n_dims; i++)
        if (json_array_append_new(shape, json_integer(t->dims[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", acr_dtype_name(t->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + t->bytes));
}

static accrue_status check_writable(const acr_tensor *t, const json_t *header, const char *path,
                                    accrue_error *err)
{
    int64_t n = 1;

    for (int i = 0; i < t->n_dims; i++)
        if (t->dims[i] < 0 || __builtin_mul_overflow(n, t->dims[i], &n))
            return acr_fail(err, ACCRUE_EINVAL, "%s: tensor '%s': bad dimension %d", path, t->name,
                            i);
    if ((uint64_t)n > SIZE_MAX / 8 || (size_t)n * acr_dtype_bytes(t->dtype) != t->bytes)
        return acr_fail(err, ACCRUE_EINVAL, "%s: tensor '%s': %zu bytes for %lld elements of %s",
                        path, t->name, t->bytes, (long long)n, acr_dtype_name(t->dtype));
    if (json_object_get(header, t->name) || strcmp(t->name, "__metadata__") == 0)
        return acr_fail(err, ACCRUE_EINVAL, "%s: tensor '%s' twice", path, t->name);
    return ACCRUE_OK;
}

/* The prefix and the header, padded with spaces so that the data begins at a multiple of 8. */
static accrue_status make_header(char **out, size_t *out_bytes, const acr_tensor *tensors, int n,
                                 const json_t *metadata, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *header = json_object();
    char *text = NULL;
    size_t at = 0;
    size_t length = 0;
    uint64_t padded = 0;

    if (metadata && json_object_set(header, "__metadata__", (json_t *)(uintptr_t)metadata) != 0) {
        st = acr_enomem(err, 0, path);
        goto cleanup;
    }
    for (int i = 0; i < n; i++) {
        ACR_TRY(check_writable(&tensors[i], header, path, err));
        if (json_object_set_new(header, tensors[i].name, tensor_entry(&tensors[i], at)) != 0) {
            st = acr_fail(err, ACCRUE_EINVAL, "%s: tensor %d: its name is not UTF-8", path, i);
            goto cleanup;
        }
        at += tensors[i].bytes;
    }
    text = json_dumps(header, JSON_COMPACT);
    length = text ? strlen(text) : 0;
    padded = (length + 7) / 8 * 8;
    *out_bytes = PREFIX + (size_t)padded;
    if (!text || !(*out = acr_malloc(*out_bytes))) {
        st = acr_enomem(err, *out_bytes, path);
        goto cleanup;
    }
    memset(*out, ' ', *out_bytes);
    memcpy(*out, &padded, PREFIX);
    memcpy(*out + PREFIX, text, length);

cleanup:
    json_decref(header);
    free(text);
    return st;
}

static accrue_status write_tensor(acr_output *o, const acr_tensor *t,
                                  const acr_tensor_source *source, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (!source)
        return acr_output_write(o, t->data, t->bytes, err);
    for (size_t at = 0; at < t->bytes && !st; at += source->buffer_bytes) {
        size_t n = t->bytes - at < source->buffer_bytes ? t->bytes - at : source->buffer_bytes;
        const void *bytes = source->read(source->buffer, t, at, n, source->ctx);
        st = bytes ? acr_output_write(o, bytes, n, err)
                   : acr_fail(err, ACCRUE_ECANCELED, "%s: tensor '%s': given up", o->path, t->name);
    }
    return st;
}

accrue_status acr_safetensors_write(const char *path, const acr_tensor *tensors, int n,
                                    const json_t *metadata, const acr_tensor_source *source,
                                    accrue_error *err)
{
    accrue_status st = ACCRUE_OK, closed = ACCRUE_OK;
    acr_output o = {.fd = -1};
    char *header = NULL;
    size_t header_bytes = 0, bytes = 0;

    ACR_TRY(make_header(&header, &header_bytes, tensors, n, metadata, path, err));
    bytes = header_bytes;
    for (int i = 0; i < n; i++)
        bytes += tensors[i].bytes;
    ACR_TRY(acr_output_open(&o, path, bytes, source ? source->hasher : NULL, err));
    ACR_TRY(acr_output_write(&o, header, header_bytes, err));
    for (int i = 0; i < n; i++)
        ACR_TRY(write_tensor(&o, &tensors[i], source, err));

cleanup:
    closed = acr_output_close(&o, st ? NULL : err);
    acr_free(header);
    return st ? st : closed;
}
