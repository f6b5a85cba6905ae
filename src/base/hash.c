/* hash.c - XXH3, the checksum of checkpoint files and the fingerprint of data; docs/FORMATS.md
 * names it, so it never changes. */
#include "base/base.h"

#include <xxhash.h>

uint64_t acr_hash_bytes(const void *bytes, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(n ? bytes : "", n, seed);
}
