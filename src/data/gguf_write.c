/* gguf_write.c - GGUF files written: keys, then tensors, in bounded memory.
 *
 * A file is "GGUF", the version, the counts of tensors and keys; the keys, each a name, a type
 * and a value; the tensors' names, dimensions (innermost first), types and places; and their
 * data, every one of them filled up with zeros to the alignment. */
#include "data/data.h"

#include <math.h>
#include <string.h>

enum { VERSION = 3, ALIGNMENT = 32, PIECE = 1 << 20, Q8_0_BLOCK = 32, Q8_0_BYTES = 34 };
enum { KIND_U32 = 4, KIND_I32 = 5, KIND_F32 = 6, KIND_BOOL = 7, KIND_STRING = 8, KIND_ARRAY = 9 };

/* Keys ------------------------------------------------------------------------------------- */

static void append(acr_gguf_keys *k, const void *bytes, size_t n)
{
    acr_gguf_key *e = &k->at[k->last];

    if (k->no_memory || !n)
        return;
    if (n > e->capacity - e->bytes) {
        size_t capacity = e->capacity + e->capacity / 2 + n;
        uint8_t *grown = acr_realloc(e->value, capacity);
        if (!grown) {
            k->no_memory = true;
            return;
        }
        e->value = grown;
        e->capacity = capacity;
    }
    memcpy(e->value + e->bytes, bytes, n);
    e->bytes += n;
}

static void append_string(acr_gguf_keys *k, const char *s, size_t bytes)
{
    uint64_t n = bytes;

    append(k, &n, sizeof n);
    append(k, s, bytes);
}

static bool grow(acr_gguf_keys *k)
{
    int capacity = 2 * k->capacity + 32;
    acr_gguf_key *grown = NULL;

    if (k->n < k->capacity)
        return true;
    grown = acr_realloc(k->at, (size_t)capacity * sizeof *grown);
    if (!grown)
        return false;
    k->at = grown;
    k->capacity = capacity;
    return true;
}

/* The entry of this name, emptied, with its type. */
static void begin(acr_gguf_keys *k, const char *name, uint32_t kind)
{
    char *copy = NULL;

    if (k->no_memory)
        return;
    for (k->last = 0; k->last < k->n; k->last++)
        if (strcmp(k->at[k->last].name, name) == 0)
            break;
    if (k->last == k->n) {
        copy = acr_strdup(name);
        if (!copy || !grow(k)) {
            acr_free(copy);
            k->no_memory = true;
            return;
        }
        k->at[k->n++] = (acr_gguf_key){.name = copy};
    }
    k->at[k->last].bytes = 0;
    append(k, &kind, sizeof kind);
}

void acr_gguf_put_u32(acr_gguf_keys *k, const char *name, uint32_t value)
{
    begin(k, name, KIND_U32);
    append(k, &value, sizeof value);
}

void acr_gguf_put_i32(acr_gguf_keys *k, const char *name, int32_t value)
{
    begin(k, name, KIND_I32);
    append(k, &value, sizeof value);
}

void acr_gguf_put_f32(acr_gguf_keys *k, const char *name, float value)
{
    begin(k, name, KIND_F32);
    append(k, &value, sizeof value);
}

void acr_gguf_put_bool(acr_gguf_keys *k, const char *name, bool value)
{
    uint8_t byte = value;

    begin(k, name, KIND_BOOL);
    append(k, &byte, sizeof byte);
}

void acr_gguf_put_string(acr_gguf_keys *k, const char *name, const char *value, size_t bytes)
{
    begin(k, name, KIND_STRING);
    append_string(k, value, bytes);
}

void acr_gguf_put_array(acr_gguf_keys *k, const char *name, acr_gguf_item item, uint64_t n)
{
    uint32_t kind = item;

    begin(k, name, KIND_ARRAY);
    append(k, &kind, sizeof kind);
    append(k, &n, sizeof n);
}

void acr_gguf_add_i32(acr_gguf_keys *k, int32_t value)
{
    append(k, &value, sizeof value);
}

void acr_gguf_add_string(acr_gguf_keys *k, const char *value, size_t bytes)
{
    append_string(k, value, bytes);
}

void acr_gguf_keys_free(acr_gguf_keys *k)
{
    for (int i = 0; i < k->n; i++) {
        acr_free(k->at[i].name);
        acr_free(k->at[i].value);
    }
    acr_free(k->at);
    *k = (acr_gguf_keys){0};
}

/* Types ------------------------------------------------------------------------------------ */

/* A block is a scale in f16 and 32 whole numbers of a byte.  The numbers are those of the scale
 * before it was rounded. */
void acr_gguf_quantize_q8_0(void *blocks, const float *in, int64_t n)
{
    uint8_t *out = blocks;

    for (; n > 0; n -= Q8_0_BLOCK, in += Q8_0_BLOCK, out += Q8_0_BYTES) {
        float most = 0;
        for (int i = 0; i < Q8_0_BLOCK; i++)
            most = fmaxf(most, fabsf(in[i]));
        const float scale = most / 127.0F;
        const float inverse = scale > 0 ? 1.0F / scale : 0;
        const uint16_t half = acr_f16_from_f32(scale);
        memcpy(out, &half, sizeof half);
        for (int i = 0; i < Q8_0_BLOCK; i++) {
            float x = isfinite(inverse) ? roundf(in[i] * inverse) : 0;
            out[2 + i] = (uint8_t)(int8_t)x;
        }
    }
}

/* Writing ---------------------------------------------------------------------------------- */

static size_t padding(size_t n)
{
    return (ALIGNMENT - n % ALIGNMENT) % ALIGNMENT;
}

static accrue_status pad(acr_output *o, accrue_error *err)
{
    static const uint8_t zeros[ALIGNMENT];

    return acr_output_write(o, zeros, padding(o->written), err);
}

/* The tensors' places as keys of a list of its own, so that they can be written like these. */
static void describe(acr_gguf_keys *k, const acr_gguf_tensor *tensors, int n)
{
    uint64_t offset = 0;

    begin(k, "tensors", 0);
    if (k->no_memory)
        return;
    k->at[k->last].bytes = 0;
    for (int i = 0; i < n; i++) {
        const acr_gguf_tensor *t = &tensors[i];
        uint32_t n_dims = (uint32_t)t->n_dims;
        uint32_t type = t->type;
        append_string(k, t->name, strlen(t->name));
        append(k, &n_dims, sizeof n_dims);
        for (int d = t->n_dims - 1; d >= 0; d--)
            append(k, &t->dims[d], sizeof t->dims[d]);
        append(k, &type, sizeof type);
        append(k, &offset, sizeof offset);
        offset += t->bytes + padding(t->bytes);
    }
}

static accrue_status write_head(acr_output *o, const acr_gguf_keys *keys,
                                const acr_gguf_keys *places, int n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const uint32_t version = VERSION;
    const uint64_t counts[] = {(uint64_t)n, (uint64_t)keys->n};

    ACR_TRY(acr_output_write(o, "GGUF", 4, err));
    ACR_TRY(acr_output_write(o, &version, sizeof version, err));
    ACR_TRY(acr_output_write(o, counts, sizeof counts, err));
    for (int i = 0; i < keys->n; i++) {
        const acr_gguf_key *e = &keys->at[i];
        const uint64_t length = strlen(e->name);
        ACR_TRY(acr_output_write(o, &length, sizeof length, err));
        ACR_TRY(acr_output_write(o, e->name, (size_t)length, err));
        ACR_TRY(acr_output_write(o, e->value, e->bytes, err));
    }
    ACR_TRY(acr_output_write(o, places->at[0].value, places->at[0].bytes, err));
    ACR_TRY(pad(o, err));

cleanup:
    return st;
}

static accrue_status write_rows(acr_output *o, const acr_gguf_tensor *t,
                                const acr_gguf_source *source, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t row = t->dims[0] ? t->bytes / (size_t)t->dims[0] : 0;
    int64_t most = row && row < PIECE ? (int64_t)(PIECE / row) : 1;
    void *buffer = NULL;

    if (!row)
        return ACCRUE_OK;
    most = most < t->dims[0] ? most : t->dims[0];
    buffer = acr_malloc((size_t)most * row);
    if (!buffer)
        return acr_enomem(err, (size_t)most * row, o->path);
    for (int64_t first = 0; first < t->dims[0]; first += most) {
        int64_t n = t->dims[0] - first < most ? t->dims[0] - first : most;
        ACR_TRY(source->rows(buffer, t, first, n, source->ctx, err));
        ACR_TRY(acr_output_write(o, buffer, (size_t)n * row, err));
    }

cleanup:
    acr_free(buffer);
    return st;
}

static size_t expected_bytes(const acr_gguf_keys *keys, const acr_gguf_keys *places,
                             const acr_gguf_tensor *tensors, int n)
{
    size_t bytes = 24 + places->at[0].bytes;

    for (int i = 0; i < keys->n; i++)
        bytes += 8 + strlen(keys->at[i].name) + keys->at[i].bytes;
    bytes += padding(bytes);
    for (int i = 0; i < n; i++)
        bytes += tensors[i].bytes + padding(tensors[i].bytes);
    return bytes;
}

accrue_status acr_gguf_write(const char *path, const acr_gguf_keys *keys,
                             const acr_gguf_tensor *tensors, int n, const acr_gguf_source *source,
                             accrue_error *err)
{
    accrue_status st = ACCRUE_OK, closed = ACCRUE_OK;
    acr_output o = {.fd = -1};
    acr_gguf_keys places = {0};

    describe(&places, tensors, n);
    if (keys->no_memory || places.no_memory) {
        st = acr_enomem(err, 0, path);
        goto cleanup;
    }
    ACR_TRY(acr_output_open(&o, path, expected_bytes(keys, &places, tensors, n), NULL, err));
    ACR_TRY(write_head(&o, keys, &places, n, err));
    for (int i = 0; i < n; i++) {
        ACR_TRY(source ? write_rows(&o, &tensors[i], source, err)
                       : acr_output_write(&o, tensors[i].data, tensors[i].bytes, err));
        ACR_TRY(pad(&o, err));
    }

cleanup:
    closed = acr_output_close(&o, st ? NULL : err);
    acr_gguf_keys_free(&places);
    return st ? st : closed;
}
