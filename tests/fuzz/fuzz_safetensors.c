/* fuzz_safetensors.c - a file that is accepted has all its tensors inside its bytes. */
#include "fuzz.h"

#include "data/readers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    acr_safetensors *f = NULL;
    accrue_error e;
    size_t total = 0;

    if (acr_safetensors_parse(&f, data, size, "input", &e))
        return 0;
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
    return 0;
}
