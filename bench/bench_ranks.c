/* bench_ranks.c - what ranks cost and gain: the same global window by one process with two threads,
 * by one and by two ranks of one thread, replicated and sharded; how much of the exchange of
 * gradients is hidden behind backward; what exact sums cost.
 *
 *     bench_ranks VERIFIER DATA [TOTAL_SEQ_LEN [DRAFT_VOCAB [ROUNDS]]]
 *
 * All configurations take their windows in turn, and ratios are medians over the rounds. */
#include "train/train.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROUNDS = 15, WINDOWS = 2, WINDOW = 4 };

static int rounds = 5;

typedef struct config {
    const char *name;
    int ranks, threads; /* threads of all ranks together */
    bool shard, defer, reproducible;
} config;

static const config configs[] = {
    {"1 process, 2 threads", 1, 2, false, false, false},
    {"1 rank, 1 thread", 1, 1, false, false, false},
    {"2 ranks, 1 thread each", 2, 2, false, false, false},
    {"2 ranks, --fsdp-shard", 2, 2, true, false, false},
    {"2 ranks, --defer-reduce", 2, 2, true, true, false},
    {"1 process, --reproducible", 1, 2, false, false, true},
    {"2 ranks, --reproducible", 2, 2, false, false, true},
    {"2 ranks, sharded and that", 2, 2, true, false, true},
    {"4 ranks", 4, 2, false, false, false},
    {"4 ranks, --fsdp-shard", 4, 2, true, false, false},
};

typedef struct measured {
    double seconds;             /* of a window */
    double busy, waited, all;   /* of a window: for gradients; waited for all that is exchanged */
    int64_t collectives, bytes; /* of a window, for gradients and weights */
    int64_t peak;               /* bytes of the rank */
} measured;

typedef struct job {
    const config *c;
    accrue_train_options opt;
    measured m;
} job;

static accrue_status one_window(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    do
        ACR_TRY(accrue_run_forward_backward(run, NULL, err));
    while (!accrue_window_at_boundary(run->window));
    ACR_TRY(accrue_run_clip(run, NULL, err));
    ACR_TRY(accrue_run_step(run, NULL, err));
    accrue_run_lr_step(run);
    accrue_run_zero_grad(run);

cleanup:
    return st;
}

static void take(measured *m, accrue_comm *comm, const acr_comm_counters *before, double seconds)
{
    const acr_comm_counters now = acr_comm_get_counters(comm);
    const int g = ACR_COMM_GRADIENT, w = ACR_COMM_WEIGHTS;

    *m = (measured){.seconds = seconds / WINDOWS};
    m->busy = (now.busy_seconds[g] - before->busy_seconds[g]) / WINDOWS;
    m->waited = (now.wait_seconds[g] - before->wait_seconds[g]) / WINDOWS;
    for (int kind = 0; kind < ACR_COMM_KINDS; kind++)
        m->all += (now.wait_seconds[kind] - before->wait_seconds[kind]) / WINDOWS;
    m->collectives = (now.collectives[g] - before->collectives[g] + now.collectives[w] -
                      before->collectives[w]) /
                     WINDOWS;
    m->bytes =
        (now.bytes_sent[g] - before->bytes_sent[g] + now.bytes_sent[w] - before->bytes_sent[w]) /
        WINDOWS;
}

static accrue_status run_rank(accrue_comm *comm, void *ctx, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    job *j = ctx;
    static acr_ledger ledgers[4]; /* which outlive what is charged to them */
    acr_ledger *ledger = &ledgers[accrue_comm_rank(comm)];
    accrue_train_options opt = j->opt;
    accrue_run *run = NULL;
    acr_comm_counters before;
    double start = 0;

    atomic_store(&ledger->high, atomic_load(&ledger->live));
    acr_ledger_use(ledger);
    opt.comm = comm;
    opt.window.gradient_accumulation_steps = WINDOW / j->c->ranks;
    ACR_TRY(accrue_run_open(&run, &opt, NULL, NULL, err));
    ACR_TRY(accrue_run_epoch(run, 0, err));
    ACR_TRY(one_window(run, err));
    before = acr_comm_get_counters(comm);
    start = acr_seconds();
    for (int i = 0; i < WINDOWS; i++)
        ACR_TRY(one_window(run, err));
    if (accrue_comm_rank(comm) == 0)
        take(&j->m, comm, &before, acr_seconds() - start);
    if (accrue_comm_rank(comm) == 0)
        j->m.peak = (int64_t)atomic_load(&ledger->high);

cleanup:
    accrue_run_free(run);
    acr_ledger_use(NULL);
    return st;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 2];
}

static void print(int i, measured m[MAX_ROUNDS][ACR_COUNT(configs)])
{
    double seconds[MAX_ROUNDS], ratio[MAX_ROUNDS], hidden[MAX_ROUNDS], waited[MAX_ROUNDS];
    const measured *last = &m[rounds - 1][i];

    for (int r = 0; r < rounds; r++) {
        seconds[r] = m[r][i].seconds;
        ratio[r] = m[r][0].seconds / m[r][i].seconds;
        waited[r] = 100 * m[r][i].all / m[r][i].seconds;
        hidden[r] = m[r][i].busy > 0 ? 100 * (1 - m[r][i].waited / m[r][i].busy) : 0;
    }
    printf("%-28s %9.3f %8.2f %8.0f %% %8.1f %% %11lld %14.1f %9.0f\n", configs[i].name,
           median(seconds, rounds), median(ratio, rounds), median(hidden, rounds),
           median(waited, rounds), (long long)last->collectives, (double)last->bytes / 1e6,
           (double)last->peak / 1e6);
}

int main(int argc, char **argv)
{
    static measured m[MAX_ROUNDS][ACR_COUNT(configs)];
    accrue_error err = {0};
    job j = {0};

    if (argc < 3) {
        fprintf(stderr,
                "usage: bench_ranks VERIFIER DATA [TOTAL_SEQ_LEN [DRAFT_VOCAB [ROUNDS]]]\n");
        return 2;
    }
    accrue_train_options_init(&j.opt, sizeof j.opt);
    j.opt.verifier = argv[1];
    j.opt.data_path = argv[2];
    j.opt.total_seq_len = argc > 3 ? atoll(argv[3]) : 512;
    j.opt.draft_vocab_size = argc > 4 ? atoll(argv[4]) : 8192;
    if (argc > 5 && atoi(argv[5]) > 0 && atoi(argv[5]) <= MAX_ROUNDS)
        rounds = atoi(argv[5]);
    j.opt.window.optimizer = getenv("MUON") ? ACCRUE_MUON : ACCRUE_ADAMW;
    j.opt.epochs = 1;
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < ACR_COUNT(configs); i++) {
            j.c = &configs[i];
            j.opt.fsdp_shard = j.c->shard;
            j.opt.defer_reduce = j.c->defer;
            j.opt.reproducible = j.c->reproducible;
            accrue_set_threads(j.c->threads);
            if (acr_ranks_run(j.c->ranks, 600, run_rank, &j, &err)) {
                fprintf(stderr, "bench_ranks: %s: %s\n", j.c->name, err.message);
                return 1;
            }
            m[r][i] = j.m;
        }
    printf("%-28s %9s %8s %10s %10s %11s %14s %9s\n", "", "s/window", "speed", "hidden", "waited",
           "collectives", "MB sent/rank", "peak MB");
    for (int i = 0; i < ACR_COUNT(configs); i++)
        print(i, m);
    return 0;
}
