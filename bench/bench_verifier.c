/* bench_verifier.c - tokens a second of a verifier: one sequence's decoding, and its prompt.
 *
 *   bench_verifier MODEL f32|f64|bf16 THREADS DECODE PREFILL [ROUNDS]
 *
 * A round passes a prompt of PREFILL tokens at once, then DECODE tokens from an empty cache, one by
 * one, and as many four at a time, which is what a round of speculative decoding takes to check
 * three drafted tokens; logits of each that is decoded, and of the prompt's last.  It prints
 * "DECODE_RATE PREFILL_RATE FOUR_RATE", tokens a second.  Without ROUNDS
 * it says "ready", runs one round for each line it reads, and at their end prints the peak of its
 * resident memory and the bytes of weights and of the cache in MiB.  One thread is timed by its own
 * clock, which other work on the machine does not disturb. */
#include "infer/infer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ROWS = 4 };

typedef struct bench {
    acr_verifier *v;
    acr_verifier_work *w;
    acr_cache *cache;
    int64_t *ids, decode, prefill;
    void *logits;
} bench;

static double now(void)
{
    struct timespec t;

    if (acr_threads() > 1)
        return acr_seconds();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of DECODE tokens from an empty cache, `rows` at a time. */
static accrue_status decode(double *seconds, bench *b, int64_t rows, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const double start = now();

    acr_cache_cut(b->cache, 0);
    for (int64_t i = 0, n = 0; i < b->decode; i += n) {
        n = b->decode - i < rows ? b->decode - i : rows;
        const acr_sequence s = {
            .cache = b->cache, .ids = b->ids + i, .n = n, .n_logits = n, .logits = b->logits};
        ACR_TRY(acr_verifier_forward(b->w, &s, 1, NULL, 0, err));
    }
    *seconds = now() - start;

cleanup:
    return st;
}

static accrue_status run_round(bench *b, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_sequence prompt = {
        .cache = b->cache, .ids = b->ids, .n = b->prefill, .n_logits = 1, .logits = b->logits};
    double seconds = 0, one = 0, four = 0;
    const double start = now();

    acr_cache_cut(b->cache, 0);
    ACR_TRY(acr_verifier_forward(b->w, &prompt, 1, NULL, 0, err));
    seconds = now() - start;
    ACR_TRY(decode(&one, b, 1, err));
    ACR_TRY(decode(&four, b, ROWS, err));
    printf("%.2f %.2f %.2f\n", (double)b->decode / one, (double)b->prefill / seconds,
           (double)b->decode / four);
    fflush(stdout);

cleanup:
    return st;
}

static accrue_status open_bench(bench *b, char **argv, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t longest = b->decode > b->prefill ? b->decode : b->prefill;
    accrue_dtype compute = strcmp(argv[2], "f64") == 0    ? ACCRUE_F64
                           : strcmp(argv[2], "bf16") == 0 ? ACCRUE_BF16
                                                          : ACCRUE_F32;

    ACR_TRY(acr_verifier_open(&b->v, argv[1], compute, longest, err));
    ACR_TRY(acr_verifier_work_create(&b->w, b->v, err));
    ACR_TRY(acr_cache_create(&b->cache, b->v, longest, err));
    b->ids = acr_calloc((size_t)longest, sizeof *b->ids);
    b->logits = acr_calloc((size_t)acr_verifier_describe(b->v)->vocab_size, ROWS * sizeof(double));
    if (!b->ids || !b->logits) {
        st = acr_enomem(err, (size_t)longest * sizeof *b->ids, "ids");
        goto cleanup;
    }
    for (int64_t i = 0; i < longest; i++)
        b->ids[i] = (int64_t)((uint64_t)i * 2654435761u %
                              (uint64_t)acr_verifier_describe(b->v)->vocab_size);

cleanup:
    return st;
}

static void free_bench(bench *b)
{
    acr_free(b->ids);
    acr_free(b->logits);
    acr_cache_free(b->cache);
    acr_verifier_work_free(b->w);
    acr_verifier_free(b->v);
}

static void print_memory(const bench *b)
{
    struct rusage usage;
    double mib = 1 << 20;

    getrusage(RUSAGE_SELF, &usage);
    printf("%.1f %.1f %.1f\n", (double)usage.ru_maxrss / 1024,
           (double)acr_verifier_bytes(b->v) / mib, (double)acr_cache_bytes(b->cache) / mib);
}

int main(int argc, char **argv)
{
    accrue_status st = ACCRUE_OK;
    accrue_error err = {0};
    bench b = {0};
    char line[16];

    if (argc < 6 || argc > 7) {
        fprintf(stderr,
                "usage: bench_verifier MODEL f32|f64|bf16 THREADS DECODE PREFILL [ROUNDS]\n");
        return 2;
    }
    accrue_set_threads((int)strtol(argv[3], NULL, 10));
    b.decode = strtol(argv[4], NULL, 10);
    b.prefill = strtol(argv[5], NULL, 10);
    ACR_TRY(open_bench(&b, argv, &err));
    if (argc == 7) {
        for (long i = strtol(argv[6], NULL, 10); i > 0; i--)
            ACR_TRY(run_round(&b, &err));
    } else {
        printf("ready\n");
        fflush(stdout);
        while (fgets(line, sizeof line, stdin))
            ACR_TRY(run_round(&b, &err));
    }
    print_memory(&b);

cleanup:
    if (st)
        fprintf(stderr, "bench_verifier: %s\n", err.message);
    free_bench(&b);
    return st ? 2 : 0;
}
