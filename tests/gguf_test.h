/* gguf_test.h - for tests of GGUF: files made of keys and tensors, right ones and wrong ones. */
#ifndef TEST_GGUF_H
#define TEST_GGUF_H

#include "files.h"

#include "data/readers.h"

enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9 };

typedef struct gguf_text {
    uint8_t at[1 << 17];
    size_t n;
} gguf_text;

static inline void put(gguf_text *t, const void *bytes, size_t n)
{
    assert_true(t->n + n <= sizeof t->at);
    memcpy(t->at + t->n, bytes, n);
    t->n += n;
}

static inline void put_u32(gguf_text *t, uint32_t x)
{
    put(t, &x, sizeof x);
}

static inline void put_u64(gguf_text *t, uint64_t x)
{
    put(t, &x, sizeof x);
}

static inline void put_string(gguf_text *t, const char *s)
{
    put_u64(t, strlen(s));
    put(t, s, strlen(s));
}

/* Keys and tensors on their way to a file. */
typedef struct gguf_file {
    gguf_text keys, tensors, data;
    uint64_t n_keys, n_tensors;
} gguf_file;

static inline void key(gguf_file *f, const char *name, uint32_t type)
{
    put_string(&f->keys, name);
    put_u32(&f->keys, type);
    f->n_keys++;
}

static inline void key_u32(gguf_file *f, const char *name, uint32_t x)
{
    key(f, name, GGUF_U32);
    put_u32(&f->keys, x);
}

static inline void key_f32(gguf_file *f, const char *name, float x)
{
    key(f, name, GGUF_F32);
    put(&f->keys, &x, sizeof x);
}

static inline void key_bool(gguf_file *f, const char *name, bool x)
{
    uint8_t byte = x;

    key(f, name, GGUF_BOOL);
    put(&f->keys, &byte, 1);
}

static inline void key_string(gguf_file *f, const char *name, const char *s)
{
    key(f, name, GGUF_STRING);
    put_string(&f->keys, s);
}

static inline void key_strings(gguf_file *f, const char *name, const char *const *s, int n)
{
    key(f, name, GGUF_ARRAY);
    put_u32(&f->keys, GGUF_STRING);
    put_u64(&f->keys, (uint64_t)n);
    for (int i = 0; i < n; i++)
        put_string(&f->keys, s[i]);
}

static inline void key_i32s(gguf_file *f, const char *name, const int32_t *x, int n)
{
    key(f, name, GGUF_ARRAY);
    put_u32(&f->keys, GGUF_I32);
    put_u64(&f->keys, (uint64_t)n);
    put(&f->keys, x, (size_t)n * sizeof *x);
}

/* A tensor's entry alone; `dims` outermost first. */
static inline void entry(gguf_file *f, const char *name, int n_dims, const int64_t *dims,
                         uint32_t type, uint64_t offset)
{
    put_string(&f->tensors, name);
    put_u32(&f->tensors, (uint32_t)n_dims);
    for (int i = n_dims - 1; i >= 0; i--)
        put_u64(&f->tensors, (uint64_t)dims[i]);
    put_u32(&f->tensors, type);
    put_u64(&f->tensors, offset);
    f->n_tensors++;
}

/* A tensor of f32; columns 0: of one dimension. */
static inline void tensor(gguf_file *f, const char *name, int64_t rows, int64_t columns,
                          const float *values)
{
    static const uint8_t zeros[32];
    size_t n = (size_t)(rows * (columns ? columns : 1));

    entry(f, name, columns ? 2 : 1, (const int64_t[]){rows, columns}, ACR_GGUF_F32, f->data.n);
    for (size_t i = 0; i < n; i++)
        put(&f->data, values ? &values[i] : (const float *)(const void *)zeros, sizeof *values);
    put(&f->data, zeros, (32 - f->data.n % 32) % 32);
}

/* The whole file. */
static inline void assemble(gguf_text *out, const gguf_file *f, uint32_t version)
{
    static const uint8_t zeros[32];

    out->n = 0;
    put(out, "GGUF", 4);
    put_u32(out, version);
    put_u64(out, f->n_tensors);
    put_u64(out, f->n_keys);
    put(out, f->keys.at, f->keys.n);
    put(out, f->tensors.at, f->tensors.n);
    put(out, zeros, (32 - out->n % 32) % 32);
    put(out, f->data.at, f->data.n);
}

#endif
