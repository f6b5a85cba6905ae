/* fuzz_npy.c - a file that is accepted has all its elements inside its bytes. */
#include "fuzz.h"

#include "data/readers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    acr_tensor t;
    accrue_error e;

    if (acr_npy_parse(&t, data, size, "input", &e))
        return 0;
    FUZZ_CHECK(t.n_dims == 1 && (uint64_t)t.dims[0] * acr_dtype_bytes(t.dtype) == t.bytes);
    FUZZ_CHECK((const uint8_t *)t.data + t.bytes == data + size);
    return 0;
}
