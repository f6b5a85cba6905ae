/* schedule.c - what counts in optimizer steps: the learning-rate factor, steps per epoch, and the
 * cadence of checkpoints inside an epoch.  Pure functions; everything that needs one of these
 * numbers calls here. */
#include "train/train.h"

#include <math.h>

int64_t accrue_steps_per_epoch(int64_t micro_batches, int64_t n, accrue_tail tail)
{
    if (n < 1 || micro_batches < 1)
        return 0;
    return micro_batches / n + (tail == ACCRUE_TAIL_STEP && micro_batches % n ? 1 : 0);
}

/* Halves to the even neighbour, whatever the process's rounding mode. */
static int64_t round_half_even(double x)
{
    double below = floor(x), rest = x - below;
    int64_t whole = (int64_t)below;

    return whole + (rest > 0.5 || (rest >= 0.5 && whole % 2) ? 1 : 0);
}

int64_t accrue_checkpoint_interval(int64_t steps_per_epoch, double freq)
{
    int64_t interval = 0;

    if (steps_per_epoch > 0 && freq > 0.0 && freq < 1.0)
        interval = round_half_even((double)steps_per_epoch * freq);
    return interval > 1 ? interval : 1;
}

bool accrue_checkpoint_due(int64_t step, int64_t steps_per_epoch, double freq)
{
    int64_t interval = 0;

    /* From 1 on, checkpoints are counted in epochs. */
    if (!(freq > 0.0 && freq < 1.0) || step < 1 || step >= steps_per_epoch)
        return false;
    interval = accrue_checkpoint_interval(steps_per_epoch, freq);
    /* One that the end of the epoch follows at once is not worth its disk. */
    return step % interval == 0 && (double)(steps_per_epoch - step) >= 0.25 * (double)interval;
}

double accrue_lr_factor(accrue_scheduler scheduler, int64_t step, int64_t warmup_steps,
                        int64_t total_steps, double num_cosine_cycles)
{
    const double pi = 3.14159265358979323846;
    double span = 0.0, factor = 1.0;

    if (scheduler == ACCRUE_SCHEDULE_NONE)
        return 1.0;
    if (step < warmup_steps)
        return (double)step / (double)warmup_steps;
    span = total_steps - warmup_steps > 1 ? (double)(total_steps - warmup_steps) : 1.0;
    if (scheduler == ACCRUE_SCHEDULE_LINEAR)
        factor = (double)(total_steps - step) / span;
    else
        factor = 0.5 *
                 (1.0 + cos(pi * num_cosine_cycles * 2.0 * ((double)(step - warmup_steps) / span)));
    return factor > 0.0 ? factor : 0.0;
}
