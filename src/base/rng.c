/* rng.c - counter-based random numbers: every draw is a hash of its key. */
#include "base/base.h"

#include <math.h>

/* The finaliser of splitmix64 (Steele, Lea & Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t acr_random_u64(uint64_t seed, acr_purpose purpose, uint64_t a, uint64_t b)
{
    return mix(mix(mix(mix(seed) ^ (uint64_t)purpose) ^ a) ^ b);
}

double acr_random_normal(uint64_t seed, acr_purpose purpose, uint64_t a, uint64_t b)
{
    /* Box-Muller on two independent draws; the first in (0, 1], so that its log is finite. */
    const double two_pi = 6.283185307179586;
    uint64_t r = acr_random_u64(seed, purpose, a, b);
    double u = ((double)(r >> 11) + 1.0) * 0x1p-53;
    double v = (double)(mix(r) >> 11) * 0x1p-53;

    return sqrt(-2.0 * log(u)) * cos(two_pi * v);
}

uint64_t acr_hash_string(const char *s)
{
    uint64_t h = 0;

    for (; *s; s++)
        h = mix(h ^ (unsigned char)*s);
    return h;
}
