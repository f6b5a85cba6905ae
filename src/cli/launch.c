/* launch.c - this process as one of several that a launcher has started: mpirun, mpiexec, srun.
 *
 * Whether there is one is read from the environment, before MPI is: a plain `accrue train`, and a
 * build without MPI, never start it.  A job script is no rank: what Slurm says of its allocation
 * (SLURM_NTASKS) is not looked at, only what srun says of its step. */
#include "cli.h"

#include "flags.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* In this order: mpirun is started inside srun's steps, and starts its own helpers by srun. */
static const struct {
    const char *name, *size, *rank, *local_rank;
} launchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"mpiexec", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"},
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"},
    {"a PMIx launcher", NULL, "PMIX_RANK", NULL}, /* it tells the size to MPI alone */
};

/* A whole number of at least 0 from the environment, or -1. */
static int number(const char *variable)
{
    const char *value = variable ? getenv(variable) : NULL;
    char *end = NULL;

    errno = 0;
    long n = value ? strtol(value, &end, 10) : -1;
    return !value || end == value || *end || errno || n < 0 || n > INT_MAX ? -1 : (int)n;
}

void launch_find(launch *l)
{
    *l = (launch){.size = 1};
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0] && !l->launcher; i++) {
        int size = number(launchers[i].size), rank = number(launchers[i].rank);
        if (size < 1 && (launchers[i].size || rank < 0))
            continue;
        l->launcher = launchers[i].name;
        l->size = size;
        l->rank = rank < 0 ? 0 : rank;
        l->local_rank = number(launchers[i].local_rank);
    }
    if (l->size == 1) /* as good as none */
        *l = (launch){.size = 1};
    if (l->local_rank < 0)
        l->local_rank = 0;
    cli_mute(l->rank > 0);
}

int launch_decline(const launch *l, int code)
{
    const struct timespec moment = {.tv_sec = 2};

    if (l->rank > 0 && code)
        nanosleep(&moment, NULL);
    if (l->rank > 0 && code && *cli_kept())
        fprintf(stderr, "accrue: rank %d: %s\n", l->rank, cli_kept());
    return code;
}

/* MPI has no time of its own for the ranks to come in, or to leave together. */
typedef struct watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool on, over;
    const char *what;
    const launch *l;
} watch;

static void *watch_run(void *arg)
{
    watch *w = arg;
    struct timespec until;
    int code = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)fmin(w->l->timeout, 1e9) + 1;
    pthread_mutex_lock(&w->lock);
    while (!w->over && code != ETIMEDOUT)
        code = pthread_cond_timedwait(&w->changed, &w->lock, &until);
    if (!w->over) {
        fprintf(stderr,
                "accrue: rank %d: %s: another rank has not come for %g s (--comm-timeout)\n",
                w->l->rank, w->what, w->l->timeout);
        fflush(NULL);
        _exit(EXIT_FAILURE);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* From here to watch_end the process ends when the job's time is over.  The thread takes no
 * signal. */
static void watch_begin(watch *w, const launch *l, const char *what)
{
    sigset_t all, before;

    *w = (watch){.lock = PTHREAD_MUTEX_INITIALIZER,
                 .changed = PTHREAD_COND_INITIALIZER,
                 .what = what,
                 .l = l};
    if (!(l->timeout > 0))
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    w->on = pthread_create(&w->thread, NULL, watch_run, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void watch_end(watch *w)
{
    if (!w->on)
        return;
    pthread_mutex_lock(&w->lock);
    w->over = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
}

int launch_check(const launch *l, const accrue_train_options *t)
{
    if (!l->launcher || l->size < 0 || t->ranks < 1 || t->ranks == l->size)
        return 0;
    return cli_fail(EXIT_BAD_INPUT,
                    "--ranks %d, but %s has started %d ranks; leave --ranks out there: it is for "
                    "ranks of one process",
                    t->ranks, l->launcher, l->size);
}

static int fail_open(const launch *l, accrue_status status, const accrue_error *err)
{
    char ranks[40] = "ranks";

    if (l->size > 0)
        snprintf(ranks, sizeof ranks, "%d ranks", l->size);
    return cli_fail(cli_exit_code(status), "%s has started %s, which cannot train as one job: %s%s",
                    l->launcher, ranks, err->message,
                    status == ACCRUE_ENOTSUP ? "; on one machine, --ranks does without" : "");
}

/* Ranks that do not know of each other would write over each other. */
static int check_size(const launch *l)
{
    const int size = accrue_comm_size(l->comm);

    if (l->size < 0 ? l->rank < size : l->size == size)
        return 0;
    if (l->size < 0)
        return cli_fail(EXIT_BAD_INPUT, "%s has started rank %d, but MPI sees %d rank%s",
                        l->launcher, l->rank, size, size == 1 ? "" : "s");
    return cli_fail(EXIT_BAD_INPUT,
                    "%s has started %d ranks, but MPI sees %d: it is not the launcher of the MPI "
                    "that accrue was built with, or needs --mpi=pmix (srun)",
                    l->launcher, l->size, size);
}

int launch_join(launch *l, const accrue_train_options *t)
{
    accrue_error err = {0};
    accrue_status status = ACCRUE_OK;
    watch w;
    int bad = 0;

    if (!l->launcher)
        return 0;
    l->timeout = t->comm_timeout;
    watch_begin(&w, l, "starting MPI");
    status = accrue_comm_open_mpi(&l->comm, t->comm_timeout, &err);
    watch_end(&w);
    if (status)
        return fail_open(l, status, &err);
    bad = check_size(l);
    if (bad) {
        accrue_comm_free(l->comm);
        l->comm = NULL;
        return bad;
    }
    l->size = accrue_comm_size(l->comm);
    l->rank = accrue_comm_rank(l->comm);
    cli_mute(l->rank > 0);
    return launch_check(l, t);
}

int launch_threads(const launch *l, int ranks, int asked, int *threads)
{
    accrue_error err = {0};
    int cores = 0;

    *threads = asked;
    if (!l->comm && ranks <= 1)
        return 0;
    if (accrue_comm_cores(&cores, l->comm, &err))
        return cli_fail(cli_exit_code(err.status), "%s", err.message);
    if (asked > cores && !l->comm)
        cli_notice("--threads %d: %d, as many as there are cores", asked, cores);
    else if (asked > cores)
        cli_notice("--threads %d: %d, as %d rank%s of this machine share%s its cores", asked, cores,
                   accrue_comm_local_size(l->comm), accrue_comm_local_size(l->comm) > 1 ? "s" : "",
                   accrue_comm_local_size(l->comm) > 1 ? "" : "s");
    *threads = asked && asked < cores ? asked : cores;
    return 0;
}

int launch_greatest(const launch *l, int value)
{
    int greatest = 0;

    return l->comm && !accrue_comm_greatest(&greatest, l->comm, value, NULL) ? greatest : value;
}

bool launch_reports(const launch *l)
{
    return accrue_comm_reports(l->comm);
}

int launch_leave(launch *l, int code)
{
    watch w;

    code = launch_greatest(l, code);
    watch_begin(&w, l, "ending MPI");
    accrue_comm_free(l->comm);
    watch_end(&w);
    l->comm = NULL;
    return code;
}
