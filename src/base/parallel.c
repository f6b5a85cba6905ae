/* parallel.c - the one place that knows how work is spread over threads.
 *
 * OpenMP, because oneDNN then shares the pool; built without it, tasks run in order. */
#include "base/base.h"

#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

void accrue_set_threads(int n)
{
    if (n < 1)
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
#ifdef _OPENMP
    omp_set_num_threads(n);
#endif
}

int acr_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

void acr_parallel(int64_t n, acr_task task, void *ctx)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) if (n > 1)
#endif
    for (int64_t i = 0; i < n; i++)
        task(i, ctx);
}

double acr_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
