/* order.c - numpy's permutations: SeedSequence and PCG64 (O'Neill 2014, XSL-RR of 128 bits), with
 * draws that are rejected above their bound, so that rows come in the peer's order. */
#include "convert/prepare_parts.h"

__extension__ typedef unsigned __int128 wide;

typedef struct generator {
    wide state, increment;
    bool has_half;
    uint32_t half; /* of the last draw of 64 bits, for the next of 32 */
} generator;

enum { POOL = 4 };

static uint32_t hash_mix(uint32_t value, uint32_t *constant)
{
    value ^= *constant;
    *constant *= 0x931e8875u;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;

    return r ^ r >> 16;
}

/* Four words of 64 bits out of the seed. */
static void spread_seed(uint64_t out[4], uint64_t seed)
{
    const uint32_t entropy[POOL] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t pool[POOL], words[8], constant = 0x43b0d7e5u;

    for (int i = 0; i < POOL; i++)
        pool[i] = hash_mix(entropy[i], &constant);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++)
            if (from != to)
                pool[to] = mix(pool[to], hash_mix(pool[from], &constant));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) {
        uint32_t value = pool[i % POOL] ^ constant;
        constant *= 0x58f38dedu;
        value *= constant;
        words[i] = value ^ value >> 16;
    }
    for (int i = 0; i < 4; i++)
        out[i] = words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
}

static void step(generator *g)
{
    const wide multiplier = (wide)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u;

    g->state = g->state * multiplier + g->increment;
}

static void seed_generator(generator *g, uint64_t seed)
{
    uint64_t words[4];

    spread_seed(words, seed);
    *g = (generator){.increment = ((wide)words[2] << 64 | words[3]) << 1 | 1};
    step(g);
    g->state += (wide)words[0] << 64 | words[1];
    step(g);
}

static uint64_t draw64(generator *g)
{
    uint64_t x = 0;
    unsigned turn = 0;

    step(g);
    x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    turn = (unsigned)(g->state >> 122);
    return x >> turn | x << (-turn & 63);
}

static uint32_t draw32(generator *g)
{
    uint64_t x = 0;

    if (g->has_half) {
        g->has_half = false;
        return g->half;
    }
    x = draw64(g);
    g->has_half = true;
    g->half = (uint32_t)(x >> 32);
    return (uint32_t)x;
}

/* In [0, last]: draws are cut to as many bits as `last` has, until one is not above it. */
static uint64_t draw_below(generator *g, uint64_t last)
{
    uint64_t mask = last, x = 0;

    for (unsigned k = 1; k < 64; k *= 2)
        mask |= mask >> k;
    do
        x = (last <= UINT32_MAX ? draw32(g) : draw64(g)) & mask;
    while (x > last);
    return x;
}

accrue_status acr_numpy_permutation(int64_t **out, uint64_t seed, int64_t n, accrue_error *err)
{
    int64_t *p = acr_calloc((size_t)n + 1, sizeof *p);
    generator g;

    *out = NULL;
    if (!p)
        return acr_enomem(err, (size_t)n * sizeof *p, "an order of rows");
    for (int64_t i = 0; i < n; i++)
        p[i] = i;
    seed_generator(&g, seed);
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)draw_below(&g, (uint64_t)i), kept = p[i];
        p[i] = p[j];
        p[j] = kept;
    }
    *out = p;
    return ACCRUE_OK;
}
