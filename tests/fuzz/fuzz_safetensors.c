/* fuzz_safetensors.c - a file that is accepted has all its tensors inside its bytes.
 *
 * The input is tried as a file, and as a header (up to a line's end) with the data after it: few
 * mutations of a file keep the length in front of its header right. */
#include "fuzz.h"

#include "data/readers.h"

#include <string.h>

/* The header alone, in memory of its size, is taken or refused as the whole file is. */
static void parse_header(const uint8_t *data, size_t size, bool whole)
{
    size_t head = size < 8 ? size : acr_safetensors_head(data, size);
    uint8_t *copy = malloc(head < 8 ? 8 : head);
    acr_safetensors *f = NULL;
    accrue_error e;

    FUZZ_CHECK(copy);
    if (size)
        memcpy(copy, data, head ? head : 8);
    FUZZ_CHECK(acr_safetensors_reparse(&f, copy, size, "input", &e) ? !whole : whole);
    acr_safetensors_close(f);
    free(copy);
}

static void parse(const uint8_t *data, size_t size)
{
    acr_safetensors *f = NULL;
    accrue_error e;
    size_t total = 0;
    bool fine = !acr_safetensors_parse(&f, data, size, "input", &e);

    parse_header(data, size, fine);
    if (!fine)
        return;
    for (int i = 0; i < acr_safetensors_count(f); i++) {
        const acr_tensor *t = acr_safetensors_at(f, i);
        const uint8_t *p = t->data;
        FUZZ_CHECK(acr_safetensors_find(f, t->name) == t);
        FUZZ_CHECK((size_t)acr_tensor_elements(t) * acr_dtype_bytes(t->dtype) == t->bytes);
        FUZZ_CHECK(p >= data + 8 && t->bytes <= (size_t)(data + size - p));
        total += t->bytes;
    }
    FUZZ_CHECK(total <= size - 8);
    acr_safetensors_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = size ? memchr(data, '\n', size) : NULL;
    uint64_t header = line ? (uint64_t)(line - data) : size;
    size_t rest = line ? size - (size_t)header - 1 : 0;
    uint8_t *file = malloc(8 + (size_t)header + rest);

    parse(data, size);
    FUZZ_CHECK(file);
    memcpy(file, &header, 8);
    if (header)
        memcpy(file + 8, data, (size_t)header);
    if (rest)
        memcpy(file + 8 + header, line + 1, rest);
    parse(file, 8 + (size_t)header + rest);
    free(file);
    return 0;
}
