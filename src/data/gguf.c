/* gguf.c - the GGUF format: metadata and tensors of one mapped file.
 *
 * A file is "GGUF", a version, the numbers of tensors and of keys (u64), the keys with their
 * values, the tensors' names, dimensions, types and offsets, and the data that the offsets are
 * relative to.  Strings are a length (u64) and bytes; everything is little endian. */
#include "data/readers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are read in place");

enum {
    MAX_KEYS = 1 << 16,
    MAX_TENSORS = 1 << 20,
    MAX_VALUES = 1 << 24, /* of all arrays together: sixteen vocabularies of a million tokens */
    MAX_NAME = 255,
    MAX_DIMS = 4,
    TENSOR_INFO_BYTES = 8 + 4 + 4 + 8, /* the least that one takes */
    KEY_BYTES = 8 + 4 + 1,
    MAX_ALIGNMENT = 1 << 20
};

/* Types of values, as the file numbers them. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, N_VALUE_TYPES };

struct acr_gguf {
    acr_map map; /* of a whole file */
    json_t *metadata;
    acr_gguf_tensor *tensors; /* by name */
    int n;
    char *names, *path;
};

/* Reading goes forward through the file; `inside` says in a message where it has come to. */
typedef struct cursor {
    const uint8_t *begin, *at, *end;
    const char *name;
    char inside[MAX_NAME + 40];
    int64_t values;
    accrue_error *err;
} cursor;

static size_t left(const cursor *c)
{
    return (size_t)(c->end - c->at);
}

static accrue_status take(cursor *c, void *out, size_t n)
{
    if (left(c) < n)
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: ends at byte %zu, inside %s", c->name,
                        (size_t)(c->end - c->begin), c->inside);
    memcpy(out, c->at, n);
    c->at += n;
    return ACCRUE_OK;
}

/* A string in place, not terminated. */
static accrue_status take_string(const char **out, size_t *length, cursor *c)
{
    uint64_t n = 0;
    accrue_status st = take(c, &n, sizeof n);

    if (st)
        return st;
    if (n > left(c))
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: a string of %llu bytes where %zu are left",
                        c->name, c->inside, (unsigned long long)n, left(c));
    *out = (const char *)c->at;
    *length = (size_t)n;
    c->at += n;
    return ACCRUE_OK;
}

/* A key's or tensor's name into `out`. */
static accrue_status take_name(char out[MAX_NAME + 1], cursor *c)
{
    const char *s = NULL;
    size_t n = 0;
    accrue_status st = take_string(&s, &n, c);

    if (st)
        return st;
    if (!n || n > MAX_NAME || memchr(s, 0, n))
        return acr_fail(c->err, ACCRUE_EFORMAT,
                        "%s: %s: a name of %zu bytes, 1 to %d expected and none of them 0", c->name,
                        c->inside, n, MAX_NAME);
    memcpy(out, s, n);
    out[n] = '\0';
    return ACCRUE_OK;
}

/* Metadata --------------------------------------------------------------------------------- */

static size_t value_bytes(uint32_t type)
{
    static const size_t bytes[N_VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

    return bytes[type];
}

static accrue_status check_made(const json_t *value, cursor *c)
{
    return value ? ACCRUE_OK : acr_enomem(c->err, 0, c->name);
}

static accrue_status read_string(json_t **out, cursor *c)
{
    accrue_status st = ACCRUE_OK;
    const char *s = NULL;
    size_t n = 0;

    ACR_TRY(take_string(&s, &n, c));
    if (memchr(s, 0, n))
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: a string with a byte 0", c->name,
                        c->inside);
    *out = json_stringn(s, n);
    if (!*out)
        st = acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: a string that is not UTF-8", c->name,
                      c->inside);

cleanup:
    return st;
}

static accrue_status read_real(json_t **out, cursor *c, uint32_t type)
{
    accrue_status st = ACCRUE_OK;
    float single = 0;
    double x = 0;

    if (type == F32) {
        ACR_TRY(take(c, &single, sizeof single));
        x = (double)single;
    } else {
        ACR_TRY(take(c, &x, sizeof x));
    }
    if (!(x - x == 0))
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: %g, a finite number expected", c->name,
                        c->inside, x);
    *out = json_real(x);
    st = check_made(*out, c);

cleanup:
    return st;
}

static accrue_status read_integer(json_t **out, cursor *c, uint32_t type)
{
    accrue_status st = ACCRUE_OK;
    const size_t n = value_bytes(type);
    uint64_t bits = 0;
    int64_t x = 0;

    ACR_TRY(take(c, &bits, n));
    x = (int64_t)bits;
    switch (type) {
    case I8: x = (int8_t)bits; break;
    case I16: x = (int16_t)bits; break;
    case I32: x = (int32_t)bits; break;
    case U64:
        if (bits > INT64_MAX)
            return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: %llu, at most %lld expected", c->name,
                            c->inside, (unsigned long long)bits, (long long)INT64_MAX);
        break;
    default: break;
    }
    *out = json_integer(x);
    st = check_made(*out, c);

cleanup:
    return st;
}

static accrue_status read_bool(json_t **out, cursor *c)
{
    accrue_status st = ACCRUE_OK;
    uint8_t x = 0;

    ACR_TRY(take(c, &x, 1));
    if (x > 1)
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: %u, 0 or 1 expected", c->name, c->inside,
                        x);
    *out = json_boolean(x);

cleanup:
    return st;
}

static accrue_status read_scalar(json_t **out, cursor *c, uint32_t type)
{
    switch (type) {
    case STRING: return read_string(out, c);
    case BOOL: return read_bool(out, c);
    case F32:
    case F64: return read_real(out, c, type);
    default: return read_integer(out, c, type);
    }
}

static accrue_status read_array(json_t **out, cursor *c)
{
    accrue_status st = ACCRUE_OK;
    uint32_t type = 0;
    uint64_t n = 0;
    json_t *array = NULL;

    ACR_TRY(take(c, &type, sizeof type));
    ACR_TRY(take(c, &n, sizeof n));
    if (type >= N_VALUE_TYPES || type == ARRAY)
        return acr_fail(c->err, ACCRUE_ENOTSUP,
                        "%s: %s: an array of type %u; supported: numbers, strings, booleans",
                        c->name, c->inside, type);
    if (n > left(c) / value_bytes(type) || n > (uint64_t)(MAX_VALUES - c->values))
        return acr_fail(c->err, ACCRUE_EFORMAT,
                        "%s: %s: %llu values where %zu bytes are left; at most %d in all arrays",
                        c->name, c->inside, (unsigned long long)n, left(c), MAX_VALUES);
    c->values += (int64_t)n;
    array = json_array();
    ACR_TRY(check_made(array, c));
    for (uint64_t i = 0; i < n; i++) {
        json_t *value = NULL;
        ACR_TRY(read_scalar(&value, c, type));
        if (json_array_append_new(array, value) != 0) {
            st = acr_enomem(c->err, 0, c->name);
            goto cleanup;
        }
    }
    *out = array;
    array = NULL;

cleanup:
    json_decref(array);
    return st;
}

static accrue_status read_key(acr_gguf *g, cursor *c)
{
    accrue_status st = ACCRUE_OK;
    char key[MAX_NAME + 1];
    uint32_t type = 0;
    json_t *value = NULL;

    ACR_TRY(take_name(key, c));
    snprintf(c->inside, sizeof c->inside, "key '%s'", key);
    if (json_object_get(g->metadata, key))
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s is there twice", c->name, c->inside);
    ACR_TRY(take(c, &type, sizeof type));
    if (type >= N_VALUE_TYPES)
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: type %u, 0 to %d expected", c->name,
                        c->inside, type, N_VALUE_TYPES - 1);
    if (type == ARRAY)
        ACR_TRY(read_array(&value, c));
    else
        ACR_TRY(read_scalar(&value, c, type));
    if (json_object_set_new(g->metadata, key, value) != 0)
        st = acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: its name is not UTF-8", c->name, c->inside);

cleanup:
    return st;
}

/* Tensors ---------------------------------------------------------------------------------- */

static accrue_status read_dims(acr_gguf_tensor *t, int64_t *elements, cursor *c)
{
    accrue_status st = ACCRUE_OK;
    uint32_t n = 0;

    ACR_TRY(take(c, &n, sizeof n));
    if (n > MAX_DIMS)
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: %u dimensions, at most %d expected",
                        c->name, c->inside, n, MAX_DIMS);
    t->n_dims = (int)n;
    *elements = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t dim = 0;
        ACR_TRY(take(c, &dim, sizeof dim));
        if (dim > INT64_MAX || __builtin_mul_overflow(*elements, (int64_t)dim, elements))
            return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: its shape overflows 64 bits", c->name,
                            c->inside);
        t->dims[n - 1 - i] = (int64_t)dim;
    }

cleanup:
    return st;
}

static accrue_status refuse_type(uint32_t type, const cursor *c)
{
    static const char *const others[] = {
        [4] = "Q4_2",    [5] = "Q4_3",     [9] = "Q8_1",    [10] = "Q2_K",    [11] = "Q3_K",
        [15] = "Q8_K",   [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S",
        [20] = "IQ4_NL", [21] = "IQ3_S",   [22] = "IQ2_S",  [23] = "IQ4_XS",  [24] = "I8",
        [25] = "I16",    [29] = "IQ1_M",   [34] = "TQ1_0",  [35] = "TQ2_0",   [39] = "MXFP4",
        [40] = "NVFP4"};
    const char *name = type < (uint32_t)ACR_COUNT(others) ? others[type] : NULL;

    return acr_fail(c->err, ACCRUE_ENOTSUP,
                    "%s: %s: type %u%s%s; supported: F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, "
                    "Q5_1, Q4_K, Q5_K, Q6_K",
                    c->name, c->inside, type, name ? ", " : "", name ? name : "");
}

/* The size from the type; `data` is the offset for now. */
static accrue_status read_type(acr_gguf_tensor *t, int64_t elements, uint64_t alignment, cursor *c)
{
    accrue_status st = ACCRUE_OK;
    uint32_t type = 0;
    uint64_t offset = 0;
    int64_t row = t->n_dims ? t->dims[t->n_dims - 1] : 1;
    size_t block_bytes = 0;
    int block = 0;

    ACR_TRY(take(c, &type, sizeof type));
    ACR_TRY(take(c, &offset, sizeof offset));
    if (type > INT_MAX || !acr_gguf_type_name((acr_gguf_type)type))
        return refuse_type(type, c);
    t->type = (acr_gguf_type)type;
    block = acr_gguf_block(t->type, &block_bytes);
    if (row % block)
        return acr_fail(c->err, ACCRUE_EFORMAT,
                        "%s: %s: rows of %lld elements, a multiple of %d expected for %s", c->name,
                        c->inside, (long long)row, block, acr_gguf_type_name(t->type));
    if (__builtin_mul_overflow((size_t)(elements / block), block_bytes, &t->bytes))
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: %s: its size overflows 64 bits", c->name,
                        c->inside);
    if (offset % alignment)
        return acr_fail(c->err, ACCRUE_EFORMAT,
                        "%s: %s: begins at byte %llu of the data, a multiple of %llu expected",
                        c->name, c->inside, (unsigned long long)offset,
                        (unsigned long long)alignment);
    t->data = (const void *)(uintptr_t)offset;

cleanup:
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const acr_gguf_tensor *)a)->name, ((const acr_gguf_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const acr_gguf_tensor *x = a;
    const acr_gguf_tensor *y = b;
    const uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;

    if (p != q)
        return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Offsets become addresses where every tensor lies in the data and none in another. */
static accrue_status place(acr_gguf *g, const uint8_t *data, size_t data_bytes, cursor *c)
{
    size_t end = 0;

    if (g->n)
        qsort(g->tensors, (size_t)g->n, sizeof *g->tensors, by_place);
    for (int i = 0; i < g->n; i++) {
        acr_gguf_tensor *t = &g->tensors[i];
        size_t begin = (size_t)(uintptr_t)t->data;
        if (begin > data_bytes || t->bytes > data_bytes - begin)
            return acr_fail(c->err, ACCRUE_EFORMAT,
                            "%s: tensor '%s': %zu bytes from %zu on are not within the %zu bytes "
                            "of data",
                            c->name, t->name, t->bytes, begin, data_bytes);
        if (begin < end)
            return acr_fail(c->err, ACCRUE_EFORMAT,
                            "%s: tensor '%s' begins at byte %zu of the data, inside '%s', which "
                            "ends at %zu",
                            c->name, t->name, begin, g->tensors[i - 1].name, end);
        end = begin + t->bytes;
        t->data = data + begin;
    }
    if (g->n)
        qsort(g->tensors, (size_t)g->n, sizeof *g->tensors, by_name);
    for (int i = 1; i < g->n; i++)
        if (strcmp(g->tensors[i - 1].name, g->tensors[i].name) == 0)
            return acr_fail(c->err, ACCRUE_EFORMAT, "%s: tensor '%s' is there twice", c->name,
                            g->tensors[i].name);
    return ACCRUE_OK;
}

static accrue_status read_alignment(uint64_t *out, const acr_gguf *g, const cursor *c)
{
    const json_t *value = json_object_get(g->metadata, "general.alignment");
    int64_t x = value ? json_integer_value(value) : 32;

    if (x < 1 || x > MAX_ALIGNMENT || (x & (x - 1)))
        return acr_fail(c->err, ACCRUE_EFORMAT,
                        "%s: key 'general.alignment': %lld, a power of two up to %d expected",
                        c->name, (long long)x, MAX_ALIGNMENT);
    *out = (uint64_t)x;
    return ACCRUE_OK;
}

static accrue_status read_tensors(acr_gguf *g, uint64_t n, cursor *c)
{
    accrue_status st = ACCRUE_OK;
    char *name = NULL;
    uint64_t alignment = 0;
    size_t at = 0;

    ACR_TRY(read_alignment(&alignment, g, c));
    if (n > MAX_TENSORS || n > left(c) / TENSOR_INFO_BYTES)
        return acr_fail(c->err, ACCRUE_EFORMAT,
                        "%s: %llu tensors where %zu bytes are left; at most %d expected", c->name,
                        (unsigned long long)n, left(c), MAX_TENSORS);
    g->tensors = acr_calloc((size_t)n + 1, sizeof *g->tensors);
    g->names = acr_calloc((size_t)n + 1, MAX_NAME + 1);
    if (!g->tensors || !g->names)
        return acr_enomem(c->err, (size_t)n * (sizeof *g->tensors + MAX_NAME + 1), c->name);
    name = g->names;
    for (uint64_t i = 0; i < n; i++, name += MAX_NAME + 1) {
        acr_gguf_tensor *t = &g->tensors[i];
        int64_t elements = 0;
        snprintf(c->inside, sizeof c->inside, "tensor %llu of %llu", (unsigned long long)i + 1,
                 (unsigned long long)n);
        ACR_TRY(take_name(name, c));
        t->name = name;
        snprintf(c->inside, sizeof c->inside, "tensor '%s'", name);
        ACR_TRY(read_dims(t, &elements, c));
        ACR_TRY(read_type(t, elements, alignment, c));
        g->n++;
    }
    at = (size_t)(c->at - c->begin);
    at += (size_t)((alignment - at % alignment) % alignment);
    if (at > (size_t)(c->end - c->begin)) /* a vocabulary alone may end without padding */
        at = (size_t)(c->end - c->begin);
    ACR_TRY(place(g, c->begin + at, (size_t)(c->end - c->begin) - at, c));

cleanup:
    return st;
}

/* File ------------------------------------------------------------------------------------- */

static accrue_status read_header(uint64_t *n_tensors, uint64_t *n_keys, cursor *c)
{
    accrue_status st = ACCRUE_OK;
    char magic[4];
    uint32_t version = 0;

    snprintf(c->inside, sizeof c->inside, "its header");
    ACR_TRY(take(c, magic, sizeof magic));
    if (memcmp(magic, "GGUF", sizeof magic) != 0)
        return acr_fail(c->err, ACCRUE_EFORMAT, "%s: does not begin with GGUF", c->name);
    ACR_TRY(take(c, &version, sizeof version));
    if (version == __builtin_bswap32(2) || version == __builtin_bswap32(3))
        return acr_fail(c->err, ACCRUE_ENOTSUP, "%s: big endian; supported: little endian",
                        c->name);
    if (version != 2 && version != 3)
        return acr_fail(c->err, ACCRUE_ENOTSUP, "%s: GGUF version %u; supported: 2, 3", c->name,
                        version);
    ACR_TRY(take(c, n_tensors, sizeof *n_tensors));
    ACR_TRY(take(c, n_keys, sizeof *n_keys));
    if (*n_keys > MAX_KEYS || *n_keys > left(c) / KEY_BYTES)
        return acr_fail(c->err, ACCRUE_EFORMAT,
                        "%s: %llu keys where %zu bytes are left; at most %d expected", c->name,
                        (unsigned long long)*n_keys, left(c), MAX_KEYS);

cleanup:
    return st;
}

static accrue_status parse(acr_gguf *g, const uint8_t *data, size_t bytes, const char *name,
                           accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const uint8_t none = 0;
    const uint8_t *begin = bytes ? data : &none;
    cursor c = {.begin = begin, .at = begin, .end = begin + bytes, .name = name, .err = err};
    uint64_t n_tensors = 0, n_keys = 0;

    g->metadata = json_object();
    g->path = acr_strdup(name);
    if (!g->metadata || !g->path)
        return acr_enomem(err, 0, name);
    ACR_TRY(read_header(&n_tensors, &n_keys, &c));
    for (uint64_t i = 0; i < n_keys; i++) {
        snprintf(c.inside, sizeof c.inside, "key %llu of %llu", (unsigned long long)i + 1,
                 (unsigned long long)n_keys);
        ACR_TRY(read_key(g, &c));
    }
    ACR_TRY(read_tensors(g, n_tensors, &c));

cleanup:
    return st;
}

accrue_status acr_gguf_parse(acr_gguf **out, const uint8_t *data, size_t bytes, const char *name,
                             accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_gguf *g = acr_calloc(1, sizeof *g);

    *out = NULL;
    if (!g)
        return acr_enomem(err, sizeof *g, name);
    ACR_TRY(parse(g, data, bytes, name, err));
    *out = g;
    g = NULL;

cleanup:
    acr_gguf_close(g);
    return st;
}

accrue_status acr_gguf_open(acr_gguf **out, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_gguf *g = acr_calloc(1, sizeof *g);

    *out = NULL;
    if (!g)
        return acr_enomem(err, sizeof *g, path);
    ACR_TRY(acr_map_open(&g->map, path, err));
    ACR_TRY(parse(g, g->map.data, g->map.bytes, path, err));
    *out = g;
    g = NULL;

cleanup:
    acr_gguf_close(g);
    return st;
}

void acr_gguf_close(acr_gguf *g)
{
    if (!g)
        return;
    acr_map_close(&g->map);
    json_decref(g->metadata);
    acr_free(g->tensors);
    acr_free(g->names);
    acr_free(g->path);
    acr_free(g);
}

const char *acr_gguf_path(const acr_gguf *g)
{
    return g->path;
}

int acr_gguf_count(const acr_gguf *g)
{
    return g->n;
}

const acr_gguf_tensor *acr_gguf_at(const acr_gguf *g, int i)
{
    return &g->tensors[i];
}

const acr_gguf_tensor *acr_gguf_find(const acr_gguf *g, const char *name)
{
    acr_gguf_tensor key = {.name = name};

    return g->n ? bsearch(&key, g->tensors, (size_t)g->n, sizeof key, by_name) : NULL;
}

const json_t *acr_gguf_metadata(const acr_gguf *g)
{
    return g->metadata;
}
