/* thread.c - threads of our own, and what they wait with. */
#include "base/base.h"

#include <math.h>
#include <signal.h>

int acr_thread_start(pthread_t *out, void *(*main)(void *), void *arg)
{
    sigset_t all, before;
    int code = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(out, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

bool acr_lock_init(pthread_mutex_t *lock, pthread_cond_t *changed)
{
    pthread_condattr_t monotonic;
    bool fine = false;

    if (pthread_condattr_init(&monotonic) != 0)
        return false;
    fine = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
           pthread_cond_init(changed, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    if (fine && pthread_mutex_init(lock, NULL) != 0) {
        pthread_cond_destroy(changed);
        fine = false;
    }
    return fine;
}

void acr_lock_free(pthread_mutex_t *lock, pthread_cond_t *changed)
{
    pthread_cond_destroy(changed);
    pthread_mutex_destroy(lock);
}

struct timespec acr_deadline(double seconds)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    if (seconds > 1e9)
        seconds = 1e9;
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - floor(seconds)) * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

double acr_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
