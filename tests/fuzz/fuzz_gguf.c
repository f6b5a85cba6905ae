/* fuzz_gguf.c - a file that is accepted has all its tensors inside its bytes, and what is made of it
 * is whole: numbers, a configuration, a tokenizer. */
#include "fuzz.h"

#include "data/readers.h"
#include "model/pretrained.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 16 }; /* elements of a tensor that are made */

/* Each block by itself, in memory of its size. */
static void dequantize(const acr_gguf_tensor *t)
{
    size_t bytes = 0;
    int block = acr_gguf_block(t->type, &bytes);
    size_t n = t->bytes / bytes;
    float *out = malloc((size_t)block * sizeof *out);
    acr_dtype plain = ACR_DTYPE_COUNT;

    FUZZ_CHECK(out && t->bytes % bytes == 0);
    if (!acr_gguf_plain(t->type, &plain) || acr_dtype_is_float(plain))
        for (size_t i = 0; i < n && i < MOST / (size_t)block; i++)
            acr_gguf_dequantize(t->type, (const char *)t->data + i * bytes, block, out);
    free(out);
}

static void tokenize(const acr_gguf *g)
{
    char why[ACR_WHY];
    json_t *json = NULL;
    accrue_error e;

    if (!acr_gguf_tokenizer(&json, why, g, &e)) {
        const json_t *tokens = json_object_get(acr_gguf_metadata(g), "tokenizer.ggml.tokens");
        const json_t *vocab = json_object_get(json_object_get(json, "model"), "vocab");
        FUZZ_CHECK(json ? json_object_size(vocab) == json_array_size(tokens) : why[0]);
        FUZZ_CHECK(strlen(why) < ACR_WHY && !strchr(why, '\n'));
    }
    json_decref(json);
    if (!acr_gguf_tokenizer_config(&json, g, &e))
        json_decref(json);
}

/* The first and the last row of every tensor of the model that the file holds, if it holds one. */
static void read_model(acr_gguf *g)
{
    acr_pretrained *p = NULL;
    accrue_error e;

    if (acr_pretrained_from_gguf(&p, g, &e)) {
        FUZZ_CHECK(!p && e.message[0] && !strchr(e.message, '\n'));
        return;
    }
    FUZZ_CHECK(json_is_object(json_object_get(acr_pretrained_config(p), "rope_parameters")));
    for (int i = 0; i < acr_pretrained_count(p); i++) {
        const acr_tensor *t = acr_pretrained_at(p, i);
        size_t row = (size_t)(acr_tensor_elements(t) / t->dims[0]);
        double *out = malloc(row * sizeof *out);
        FUZZ_CHECK(out && acr_pretrained_find(p, t->name) == i);
        FUZZ_CHECK(!acr_pretrained_read(out, ACR_DTYPE_F64, p, i, 0, 1, &e));
        FUZZ_CHECK(!acr_pretrained_read(out, ACR_DTYPE_F32, p, i, t->dims[0] - 1, 1, &e));
        free(out);
    }
    acr_pretrained_close(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    acr_gguf *g = NULL;
    accrue_error e;
    size_t total = 0;

    if (acr_gguf_parse(&g, data, size, "input", &e)) {
        FUZZ_CHECK(!g && e.message[0] && !strchr(e.message, '\n'));
        return 0;
    }
    for (int i = 0; i < acr_gguf_count(g); i++) {
        const acr_gguf_tensor *t = acr_gguf_at(g, i);
        const uint8_t *p = t->data;
        FUZZ_CHECK(acr_gguf_find(g, t->name) == t);
        FUZZ_CHECK(p >= data && p <= data + size && t->bytes <= (size_t)(data + size - p));
        dequantize(t);
        total += t->bytes;
    }
    FUZZ_CHECK(total <= size);
    tokenize(g);
    read_model(g);
    return 0;
}
