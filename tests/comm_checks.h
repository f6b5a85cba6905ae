/* comm_checks.h - what a rank checks of the collectives, whatever carries them.
 *
 * Ranks are threads or processes, so that a check that fails ends the process. */
#ifndef COMM_CHECKS_H
#define COMM_CHECKS_H

#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition, e)                                                                        \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, (e)->message);      \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { MAX_RANKS = 16, SUMS = 4 };

static const acr_comm_label gradient = {ACR_COMM_GRADIENT, "the gradient of", "layers.0"};
static const acr_comm_label weights = {ACR_COMM_WEIGHTS, "the weights of", "layers.1"};

/* Bounds of pieces that differ from rank to rank; one of `empty_at` is empty. */
static inline void uneven(int64_t *begin, int size, int64_t n, int empty_at)
{
    begin[0] = 0;
    for (int r = 0; r < size; r++)
        begin[r + 1] = begin[r] + (r == empty_at ? 0 : n / size + 3 * r);
}

static inline unsigned char byte_of(int rank, size_t i)
{
    return (unsigned char)((size_t)rank * 131 + i * 7 + (i >> 8));
}

static inline void check_gather(accrue_comm *c, int64_t n, int empty_at)
{
    accrue_error e = {.message = ""};
    const int size = accrue_comm_size(c), rank = accrue_comm_rank(c);
    int64_t begin[MAX_RANKS + 1];
    size_t bytes[MAX_RANKS + 1];
    unsigned char *data = NULL;

    uneven(begin, size, n, empty_at);
    for (int r = 0; r <= size; r++)
        bytes[r] = (size_t)begin[r];
    data = acr_calloc(bytes[size] + 1, 1);
    CHECK(data, &e);
    for (size_t i = bytes[rank]; i < bytes[rank + 1]; i++)
        data[i] = byte_of(rank, i);
    CHECK(!acr_comm_gather(c, "a gather", data, bytes, &e), &e);
    for (int r = 0; r < size; r++)
        for (size_t i = bytes[r]; i < bytes[r + 1]; i++)
            CHECK(data[i] == byte_of(r, i), &e);
    CHECK(data[bytes[size]] == 0, &e);
    acr_free(data);
}

/* Sums in the order of ranks, which the last digits tell from any other. */
typedef struct sums {
    int size;
    int64_t next;
    double *out;
} sums;

static inline void add_up(void *ctx, int64_t begin, int64_t n, const void *const *parts)
{
    sums *s = ctx;
    accrue_error e = {.message = ""};

    CHECK(begin == s->next && n > 0, &e);
    s->next += n;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int r = 0; r < s->size; r++)
            sum += ((const double *)parts[r])[i];
        s->out[begin + i] = sum;
    }
}

static inline double value_of(int rank, int64_t i, int salt)
{
    return 1.0 / (double)(3 + rank * 7 + i % 1009 + salt);
}

static inline void check_sums(const sums *s, int64_t begin, int64_t end, int salt)
{
    accrue_error e = {.message = ""};

    CHECK(s->next == end - begin, &e);
    for (int64_t i = begin; i < end; i++) {
        double sum = 0;
        for (int r = 0; r < s->size; r++)
            sum += value_of(r, i, salt);
        CHECK(s->out[i - begin] == sum, &e);
    }
}

/* Several at once, with a gather between them, waited for from the last to the first. */
static inline void check_reduce(accrue_comm *c, int64_t n, int empty_at)
{
    accrue_error e = {.message = ""};
    const int size = accrue_comm_size(c), rank = accrue_comm_rank(c);
    int64_t begin[MAX_RANKS + 1];
    double *data[SUMS];
    sums s[SUMS];
    acr_comm_request reduced[SUMS], gathered[SUMS];
    size_t bytes[MAX_RANKS + 1];
    int ranks[SUMS][MAX_RANKS];

    uneven(begin, size, n, empty_at);
    for (int r = 0; r <= size; r++)
        bytes[r] = (size_t)r * sizeof(int);
    for (int k = 0; k < SUMS; k++) {
        data[k] = acr_calloc((size_t)begin[size] + 1, sizeof(double));
        s[k] = (sums){size, 0, acr_calloc((size_t)begin[size] + 1, sizeof(double))};
        CHECK(data[k] && s[k].out, &e);
        for (int64_t i = 0; i < begin[size]; i++)
            data[k][i] = value_of(rank, i, k);
        acr_comm_reduce_begin(c, &reduced[k], gradient, data[k], sizeof(double), begin, add_up,
                              &s[k]);
        ranks[k][rank] = rank * 10 + k;
        acr_comm_gather_begin(c, &gathered[k], weights, ranks[k], bytes);
    }
    for (int k = SUMS - 1; k >= 0; k--) {
        CHECK(!acr_comm_wait(c, &gathered[k], &e), &e);
        CHECK(!acr_comm_wait(c, &reduced[k], &e), &e);
        CHECK(!acr_comm_wait(c, &reduced[k], &e), &e); /* not pending any more */
        check_sums(&s[k], begin[rank], begin[rank + 1], k);
        for (int r = 0; r < size; r++)
            CHECK(ranks[k][r] == r * 10 + k, &e);
        acr_free(data[k]);
        acr_free(s[k].out);
    }
}

/* Rank a sends b (a + 2 b) * unit bytes; nothing where that is a multiple of three. */
static inline size_t bytes_between(int a, int b, size_t unit)
{
    return (a + 2 * b) % 3 ? (size_t)(a + 2 * b) * unit : 0;
}

static inline void check_exchange(accrue_comm *c, size_t unit)
{
    accrue_error e = {.message = ""};
    const int size = accrue_comm_size(c), rank = accrue_comm_rank(c);
    void *send[MAX_RANKS], *recv[MAX_RANKS];
    const void *from[MAX_RANKS];
    size_t send_bytes[MAX_RANKS], recv_bytes[MAX_RANKS];
    acr_comm_request r;

    for (int p = 0; p < size; p++) {
        send_bytes[p] = bytes_between(rank, p, unit);
        recv_bytes[p] = bytes_between(p, rank, unit);
        from[p] = send[p] = acr_malloc(send_bytes[p] + 1);
        recv[p] = acr_calloc(recv_bytes[p] + 1, 1);
        CHECK(send[p] && recv[p], &e);
        for (size_t i = 0; i < send_bytes[p]; i++)
            ((unsigned char *)send[p])[i] = byte_of(rank * 16 + p, i);
    }
    acr_comm_exchange_begin(c, &r, weights, from, send_bytes, recv, recv_bytes);
    CHECK(!acr_comm_wait(c, &r, &e), &e);
    for (int p = 0; p < size; p++) {
        for (size_t i = 0; i < recv_bytes[p]; i++)
            CHECK(((unsigned char *)recv[p])[i] == byte_of(p * 16 + rank, i), &e);
        CHECK(((unsigned char *)recv[p])[recv_bytes[p]] == 0, &e);
        acr_free(send[p]);
        acr_free(recv[p]);
    }
}

static inline void check_share_and_broadcast(accrue_comm *c)
{
    accrue_error e = {.message = ""};
    const int size = accrue_comm_size(c), rank = accrue_comm_rank(c);
    int64_t own[2] = {rank, -rank}, all[MAX_RANKS][2];

    CHECK(!acr_comm_share(c, "two numbers", own, sizeof own, all, &e), &e);
    for (int r = 0; r < size; r++)
        CHECK(all[r][0] == r && all[r][1] == -r, &e);
    for (int root = 0; root < size; root++) {
        char word[24] = "";
        if (rank == root)
            snprintf(word, sizeof word, "of %d", root);
        CHECK(!acr_comm_broadcast(c, "a word", word, sizeof word, root, &e), &e);
        CHECK(atoi(word + 3) == root && !strncmp(word, "of ", 3), &e);
    }
    CHECK(!acr_comm_share(c, "nothing", NULL, 0, NULL, &e), &e);
    CHECK(!acr_comm_broadcast(c, "nothing", NULL, 0, 0, &e), &e);
}

/* Of a fresh job.  What a rank has sent is known to the byte. */
static inline void check_counters(accrue_comm *c)
{
    accrue_error e = {.message = ""};
    const int size = accrue_comm_size(c), rank = accrue_comm_rank(c);
    const acr_comm_counters before = acr_comm_get_counters(c);
    acr_comm_counters now;
    int64_t begin[MAX_RANKS + 1], sent = 0;

    for (int k = 0; k < ACR_COMM_KINDS; k++)
        CHECK(before.collectives[k] == 0 && before.bytes_sent[k] == 0 &&
                  before.busy_seconds[k] == 0,
              &e);
    check_gather(c, 1000, 1);
    check_exchange(c, 10);
    check_reduce(c, 1000, 0);
    now = acr_comm_get_counters(c);
    if (!c)
        return;
    uneven(begin, size, 1000, 1);
    CHECK(now.collectives[ACR_COMM_CONTROL] == 1, &e);
    CHECK(now.bytes_sent[ACR_COMM_CONTROL] == (size - 1) * (begin[rank + 1] - begin[rank]), &e);
    CHECK(now.collectives[ACR_COMM_WEIGHTS] == 1 + SUMS, &e);
    sent = (int64_t)sizeof(int) * (size - 1) * SUMS;
    for (int p = 0; p < size; p++)
        sent += p == rank ? 0 : (int64_t)bytes_between(rank, p, 10);
    CHECK(now.bytes_sent[ACR_COMM_WEIGHTS] == sent, &e);
    uneven(begin, size, 1000, 0);
    CHECK(now.collectives[ACR_COMM_GRADIENT] == SUMS, &e);
    sent = (begin[size] - (begin[rank + 1] - begin[rank])) * (int64_t)sizeof(double);
    CHECK(now.bytes_sent[ACR_COMM_GRADIENT] == SUMS * sent, &e);
    CHECK(now.busy_seconds[ACR_COMM_GRADIENT] >= 0 && now.wait_seconds[ACR_COMM_GRADIENT] >= 0, &e);
}

static inline void check_all(accrue_comm *c)
{
    const int size = accrue_comm_size(c);

    check_counters(c);
    for (int empty_at = -1; empty_at < size; empty_at++) {
        check_gather(c, 10, empty_at);
        check_gather(c, 300000, empty_at);
        check_reduce(c, 20, empty_at);
    }
    check_reduce(c, 150000 * size, -1); /* pieces of more than a megabyte a rank */
    check_exchange(c, 1);
    check_exchange(c, 70001);
    check_share_and_broadcast(c);
}

/* A job's course of COURSE collectives of all sorts, some under way at once.  Ends with the first
 * failure, or well. */
enum { COURSE = 9 };

static inline accrue_status run_course(accrue_comm *c, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    enum { N = 64 };
    const int size = accrue_comm_size(c), rank = accrue_comm_rank(c);
    double *data = acr_calloc((size_t)(N * size), sizeof *data);
    sums s = {.size = size, .out = acr_calloc(N, sizeof(double))};
    acr_comm_request reduced = {.pending = false}, gathered = {.pending = false};
    int64_t begin[MAX_RANKS + 1];
    size_t bytes[MAX_RANKS + 1];
    int all[MAX_RANKS];

    CHECK(data && s.out, err);
    acr_comm_split(N * size, size, begin);
    for (int r = 0; r <= size; r++)
        bytes[r] = (size_t)begin[r] * sizeof *data;
    for (int i = 0; i < COURSE / 3; i++) {
        acr_comm_set_step(c, i + 1);
        s.next = 0;
        acr_comm_reduce_begin(c, &reduced, gradient, data, sizeof *data, begin, add_up, &s);
        ACR_TRY(acr_comm_share(c, "counts", &rank, sizeof rank, all, err));
        ACR_TRY(acr_comm_wait(c, &reduced, err));
        acr_comm_gather_begin(c, &gathered, weights, data, bytes);
        ACR_TRY(acr_comm_wait(c, &gathered, err));
    }

cleanup:
    if (acr_comm_wait(c, &reduced, NULL) || acr_comm_wait(c, &gathered, NULL))
        CHECK(st, err);
    acr_free(data);
    acr_free(s.out);
    return st;
}

#endif
