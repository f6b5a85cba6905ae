/* ranks.c - ranks as threads of this process: each runs the same function with its end of the job
 * and a pool of its own, all pools together no larger than the process's. */
#include "train/train.h"

typedef struct rank_thread {
    accrue_comm *comm;
    int threads;
    acr_rank_main main;
    void *ctx;
    pthread_t thread;
    bool started;
    accrue_status status;
    accrue_error error;
} rank_thread;

static void run_rank(rank_thread *r)
{
    acr_pool *pool = NULL;

    r->status = acr_pool_enter(&pool, r->threads, &r->error);
    if (!r->status)
        r->status = r->main(r->comm, r->ctx, &r->error);
    else
        r->status = acr_comm_fail(r->comm, r->status, &r->error);
    acr_pool_leave(pool);
}

static void *run_thread(void *arg)
{
    run_rank(arg);
    return NULL;
}

static void start(rank_thread *r)
{
    const int code = acr_thread_start(&r->thread, run_thread, r);

    r->started = code == 0;
    if (code) {
        r->status = acr_fail_errno(&r->error, code, "cannot start a thread for", "a rank");
        r->status = acr_comm_fail(r->comm, r->status, &r->error);
    }
}

static accrue_status outcome(const rank_thread *all, int ranks, accrue_error *err)
{
    for (int r = 0; r < ranks; r++)
        if (all[r].status)
            return acr_fail(err, all[r].status, "%s", all[r].error.message);
    return ACCRUE_OK;
}

accrue_status acr_ranks_run(int ranks, double timeout, acr_rank_main rank_main, void *ctx,
                            accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t n = (size_t)ranks;
    const int each = acr_threads() / ranks > 1 ? acr_threads() / ranks : 1;
    rank_thread *all = acr_calloc(n, sizeof *all);
    accrue_comm **comms = acr_calloc(n, sizeof *comms);

    if (!all || !comms) {
        st = acr_enomem(err, n * sizeof *all, "the ranks");
        goto cleanup;
    }
    ACR_TRY(accrue_comm_open_threads(comms, ranks, timeout, err));
    for (int r = 0; r < ranks; r++)
        all[r] = (rank_thread){.comm = comms[r], .threads = each, .main = rank_main, .ctx = ctx};
    for (int r = 1; r < ranks; r++)
        start(&all[r]);
    run_rank(&all[0]);
    for (int r = 1; r < ranks; r++)
        if (all[r].started)
            pthread_join(all[r].thread, NULL);
    st = outcome(all, ranks, err);

cleanup:
    for (int r = ranks - 1; comms && r >= 0; r--)
        accrue_comm_free(comms[r]);
    acr_free(comms);
    acr_free(all);
    return st;
}
