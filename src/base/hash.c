/* hash.c - XXH3, the checksum of checkpoint files and the fingerprint of data; docs/FORMATS.md
 * names it, so it never changes. */
#include "base/base.h"

#include <xxhash.h>

uint64_t acr_hash_bytes(const void *bytes, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(n ? bytes : "", n, seed);
}

struct acr_hasher {
    XXH3_state_t *state;
};

acr_hasher *acr_hasher_create(void)
{
    acr_hasher *h = acr_calloc(1, sizeof *h);

    if (h)
        h->state = XXH3_createState();
    if (h && h->state && XXH3_64bits_reset(h->state) == XXH_OK)
        return h;
    acr_hasher_free(h);
    return NULL;
}

void acr_hasher_add(acr_hasher *h, const void *bytes, size_t n)
{
    XXH3_64bits_update(h->state, n ? bytes : "", n);
}

uint64_t acr_hasher_value(const acr_hasher *h)
{
    return XXH3_64bits_digest(h->state);
}

void acr_hasher_free(acr_hasher *h)
{
    if (h)
        XXH3_freeState(h->state);
    acr_free(h);
}
