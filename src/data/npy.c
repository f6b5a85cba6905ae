/* npy.c - one-dimensional .npy files of int64 and bool: the vocabulary maps.
 *
 * A file is "\x93NUMPY", two bytes of version, the header's length (2 bytes in version 1, 4 in
 * version 2), the header (a Python dict of descr, fortran_order and shape) and the data. */
#include "data/readers.h"

#include <stdio.h>
#include <string.h>

enum { MAGIC = 6, DATA_ALIGN = 64 };

static const char magic[] = "\x93NUMPY";

/* A cursor in the header; the functions below move it over what they accept. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t'))
        c->at++;
}

static bool take(cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

/* A quoted string without escapes; false when it does not fit. */
static bool take_string(cursor *c, char *out, size_t room)
{
    size_t n = 0;
    char quote = 0;

    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return false;
    quote = *c->at++;
    while (c->at < c->end && *c->at != quote && n + 1 < room) {
        if (*c->at < ' ' || *c->at > '~' || *c->at == '\\')
            return false;
        out[n++] = *c->at++;
    }
    out[n] = 0;
    if (c->at == c->end || *c->at != quote)
        return false;
    c->at++;
    return true;
}

static bool take_word(cursor *c, const char *word)
{
    size_t n = strlen(word);

    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

static bool take_count(cursor *c, int64_t *out)
{
    const char *from = NULL;

    skip_space(c);
    from = c->at;
    *out = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(*out, (int64_t)10, out) ||
            __builtin_add_overflow(*out, (int64_t)(*c->at - '0'), out))
            return false;
    return c->at > from;
}

typedef struct npy_header {
    char descr[16];
    bool has_descr, has_order, has_shape, fortran;
    int64_t dims[ACR_MAX_DIMS];
    int n_dims;
} npy_header;

static bool take_shape(cursor *c, npy_header *h)
{
    if (!take(c, '('))
        return false;
    while (!take(c, ')')) {
        if (h->n_dims == ACR_MAX_DIMS || !take_count(c, &h->dims[h->n_dims]))
            return false;
        h->n_dims++;
        if (!take(c, ','))
            return h->n_dims > 1 && take(c, ')'); /* (5) is a number, (5,) a shape */
    }
    return true;
}

static bool take_item(cursor *c, npy_header *h)
{
    char key[16];

    if (!take_string(c, key, sizeof key) || !take(c, ':'))
        return false;
    if (strcmp(key, "descr") == 0 && !h->has_descr)
        return h->has_descr = take_string(c, h->descr, sizeof h->descr);
    if (strcmp(key, "fortran_order") == 0 && !h->has_order) {
        h->fortran = take_word(c, "True");
        return h->has_order = h->fortran || take_word(c, "False");
    }
    if (strcmp(key, "shape") == 0 && !h->has_shape)
        return h->has_shape = take_shape(c, h);
    return false;
}

static bool parse_header(npy_header *h, const char *text, size_t n)
{
    cursor c = {text, text + n};

    if (!take(&c, '{'))
        return false;
    while (!take(&c, '}')) {
        if (!take_item(&c, h))
            return false;
        if (!take(&c, ',')) {
            if (!take(&c, '}'))
                return false;
            break;
        }
    }
    skip_space(&c);
    return c.at == c.end && h->has_descr && h->has_order && h->has_shape;
}

/* Where the header's text begins and how long it is; false when the file is too short. */
static bool find_header(size_t *begin, size_t *length, const uint8_t *data, size_t bytes)
{
    *begin = MAGIC + 2 + (data[MAGIC] == 1 ? 2 : 4);
    if (bytes < *begin)
        return false;
    *length = 0;
    for (size_t i = *begin; i > MAGIC + 2; i--)
        *length = *length << 8 | data[i - 1];
    return *length <= bytes - *begin;
}

static accrue_status check_header(acr_tensor *out, const npy_header *h, size_t have,
                                  const char *name, accrue_error *err)
{
    char shape[ACR_SHAPE_TEXT];
    size_t size = 0;

    if (strcmp(h->descr, "<i8") == 0)
        out->dtype = ACR_DTYPE_I64;
    else if (strcmp(h->descr, "|b1") == 0)
        out->dtype = ACR_DTYPE_BOOL;
    else
        return acr_fail(err, ACCRUE_EFORMAT, "%s: its elements are '%s', expected '<i8' or '|b1'",
                        name, h->descr);
    if (h->n_dims != 1 || h->fortran)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: its shape is %s%s, expected one dimension", name,
                        acr_shape_text(shape, h->n_dims, h->dims),
                        h->fortran ? " in Fortran order" : "");
    size = acr_dtype_bytes(out->dtype);
    if (have % size || (uint64_t)h->dims[0] != have / size)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %lld elements of '%s' in %zu bytes of data", name,
                        (long long)h->dims[0], h->descr, have);
    out->n_dims = 1;
    out->dims[0] = h->dims[0];
    out->bytes = have;
    return ACCRUE_OK;
}

accrue_status acr_npy_parse(acr_tensor *out, const uint8_t *data, size_t bytes, const char *name,
                            accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    npy_header h = {0};
    size_t begin = 0;
    size_t length = 0;

    memset(out, 0, sizeof *out);
    if (bytes < MAGIC + 2 || memcmp(data, magic, MAGIC) != 0)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: not a .npy file", name);
    if ((data[MAGIC] != 1 && data[MAGIC] != 2) || data[MAGIC + 1] != 0)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: .npy version %d.%d, expected 1.0 or 2.0", name,
                        data[MAGIC], data[MAGIC + 1]);
    if (!find_header(&begin, &length, data, bytes))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: a header of %zu bytes in a file of %zu", name,
                        length, bytes);
    if (!parse_header(&h, (const char *)data + begin, length))
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s: its header is not a dict of descr, fortran_order and shape", name);
    ACR_TRY(check_header(out, &h, bytes - begin - length, name, err));
    out->name = name;
    out->data = data + begin + length;
    for (size_t i = 0; out->dtype == ACR_DTYPE_BOOL && i < out->bytes; i++)
        if (data[begin + length + i] > 1) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: element %zu is %d, expected 0 or 1", name, i,
                          data[begin + length + i]);
            goto cleanup;
        }

cleanup:
    if (st)
        memset(out, 0, sizeof *out);
    return st;
}

accrue_status acr_npy_read(acr_tensor *out, acr_map *map, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    memset(out, 0, sizeof *out);
    ACR_TRY(acr_map_open(map, path, err));
    ACR_TRY(acr_npy_parse(out, map->data, map->bytes, path, err));

cleanup:
    if (st)
        acr_map_close(map);
    return st;
}

/* Byte for byte what numpy.save writes. */
accrue_status acr_npy_write(const char *path, const acr_tensor *t, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *descr = t->dtype == ACR_DTYPE_I64 ? "<i8" : "|b1";
    char header[2 * DATA_ALIGN];
    char *file = NULL;
    int n = 0;

    if (t->n_dims != 1 || (t->dtype != ACR_DTYPE_I64 && t->dtype != ACR_DTYPE_BOOL) ||
        t->bytes != (size_t)t->dims[0] * acr_dtype_bytes(t->dtype))
        return acr_fail(err, ACCRUE_EINVAL, "%s: only vectors of I64 and BOOL can be written",
                        path);
    memset(header, ' ', sizeof header);
    memcpy(header, magic, MAGIC);
    header[MAGIC] = 1;
    header[MAGIC + 1] = 0;
    header[MAGIC + 2] = sizeof header - MAGIC - 4;
    header[MAGIC + 3] = 0;
    n = snprintf(header + MAGIC + 4, sizeof header - MAGIC - 4,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (%lld,), }", descr,
                 (long long)t->dims[0]);
    header[MAGIC + 4 + n] = ' ';
    header[sizeof header - 1] = '\n';
    file = acr_malloc(sizeof header + t->bytes);
    if (!file)
        return acr_enomem(err, sizeof header + t->bytes, path);
    memcpy(file, header, sizeof header);
    if (t->bytes)
        memcpy(file + sizeof header, t->data, t->bytes);
    ACR_TRY(acr_write_file(path, file, sizeof header + t->bytes, err));

cleanup:
    acr_free(file);
    return st;
}
