/* gguf_rope.c - the parameters of llama3's scaling, which GGUF files keep as its results alone: one
 * factor for each frequency.
 *
 * With s = (original / wavelength - low) / (high - low), a frequency is divided by 1 where s >= 1,
 * by `factor` where s <= 0, and by 1 / ((1 - s) / factor + s) in between.  s is a line over
 * 1 / wavelength; only that line matters, so that low = 1 may be assumed. */
#include "model/pretrained.h"

#include <math.h>

static const double tolerance = 2e-5; /* of factors computed in f32 */

static double frequency(const acr_rope_config *r, int n, int i)
{
    return pow(r->theta, -(double)i / (double)n) / (2 * acos(-1.0)); /* 1 / wavelength */
}

static double factor_of(const acr_rope_config *r, double turns)
{
    double s = (r->original_max_position * turns - r->low_freq_factor) /
               (r->high_freq_factor - r->low_freq_factor);

    if (s >= 1)
        return 1;
    return s <= 0 ? r->factor : 1 / ((1 - s) / r->factor + s);
}

static bool explains(const acr_rope_config *r, const float *factors, int n)
{
    for (int i = 0; i < n; i++) {
        double expected = factor_of(r, frequency(r, n, i));
        if (!(fabs((double)factors[i] - expected) <= tolerance * expected))
            return false;
    }
    return true;
}

/* The line through the first and the last frequency in between. */
static bool fit(acr_rope_config *r, const float *factors, int n)
{
    double s[2] = {0}, at[2] = {0}, slope = 0, offset = 0;
    int found = 0;

    for (int i = 0; i < n; i++) {
        double f = (double)factors[i];
        if (f <= 1 * (1 + tolerance) || f >= r->factor * (1 - tolerance))
            continue;
        s[found > 0] = (1 / f - 1 / r->factor) / (1 - 1 / r->factor);
        at[found > 0] = frequency(r, n, i);
        found++;
    }
    if (found < 2)
        return false;
    slope = (s[0] - s[1]) / (at[0] - at[1]);
    offset = s[0] - slope * at[0];
    r->low_freq_factor = 1;
    r->high_freq_factor = 1 - 1 / offset;
    r->original_max_position = slope * (r->high_freq_factor - 1);
    return offset < 0 && slope > 0;
}

/* Parameters are round numbers, a fit of rounded factors is not quite. */
static void make_round(acr_rope_config *r)
{
    r->high_freq_factor = round(r->high_freq_factor * 100) / 100;
    r->original_max_position = round(r->original_max_position);
}

bool acr_rope_from_factors(acr_rope_config *rope, const float *factors, int n, double original)
{
    acr_rope_config r = *rope, rounded;
    double most = 1;
    bool all_one = true;

    for (int i = 0; i < n; i++) {
        all_one = all_one && factors[i] == 1.0f;
        most = (double)factors[i] > most ? (double)factors[i] : most;
    }
    if (all_one)
        return true;
    r.llama3 = true;
    r.factor = most;
    r.low_freq_factor = 1;
    r.high_freq_factor = 4;
    r.original_max_position = original;
    if (!explains(&r, factors, n)) {
        if (!fit(&r, factors, n))
            return false;
        rounded = r;
        make_round(&rounded);
        if (explains(&rounded, factors, n))
            r = rounded;
        else if (!explains(&r, factors, n))
            return false;
    }
    *rope = r;
    return true;
}
