/* bench_save.c - what saving costs, beside what the disk can do.
 *
 *   bench_save VERIFIER DATA DIR [bf16|f32] [N]
 *
 * Trains a draft with 8192 tokens of vocabulary in windows of N micro-batches of 512 tokens, and
 * in turn, ROUNDS times: writes as many bytes as a checkpoint has in one go and syncs them; saves
 * while nothing else runs; makes a step without a save; saves while the next steps are made.
 * Everything goes to DIR, which is left holding the last checkpoint.  Medians, and the ratios. */
#include "accrue/accrue.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 9, PIECE = 1 << 20 };

typedef struct figures {
    double disk[ROUNDS], alone[ROUNDS], step[ROUNDS], beside[ROUNDS], waited[ROUNDS];
    int64_t bytes;
    int n;
    double seconds, wait_seconds; /* of the latest save, from its event */
    accrue_run *run;
} figures;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(accrue_status st, const accrue_error *err)
{
    if (st) {
        fprintf(stderr, "bench_save: %s\n", err->message);
        exit(1);
    }
}

static int on_event(const accrue_event *e, void *payload)
{
    figures *f = payload;

    if (e->kind == ACCRUE_EVENT_CHECKPOINT) {
        f->bytes = e->save_bytes;
        f->seconds = e->save_seconds;
        f->wait_seconds = e->save_wait_seconds;
    }
    return ACCRUE_GO_ON;
}

/* Seconds that the disk takes for so many bytes, which are not all alike. */
static double write_once(const char *dir, int64_t bytes)
{
    static unsigned char piece[PIECE];
    char path[4096];
    double start = 0;
    int fd = -1;

    for (size_t i = 0; i < PIECE; i++)
        piece[i] = (unsigned char)(i * 2654435761u >> 11);
    snprintf(path, sizeof path, "%s/sequential", dir);
    start = now();
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (int64_t at = 0; fd >= 0 && at < bytes; at += PIECE)
        if (write(fd, piece, bytes - at < PIECE ? (size_t)(bytes - at) : PIECE) <= 0)
            fd = -1;
    if (fd < 0 || fsync(fd) || close(fd)) {
        perror(path);
        exit(1);
    }
    start = now() - start;
    unlink(path);
    return start;
}

static void step(accrue_run *run)
{
    accrue_error err = {0};
    bool stepped = false;

    while (!stepped) {
        if (!accrue_run_next(run))
            must(accrue_run_epoch(run, 0, &err), &err);
        must(accrue_run_forward_backward(run, NULL, &err), &err);
        must(accrue_run_clip(run, NULL, &err), &err);
        must(accrue_run_step(run, &stepped, &err), &err);
        accrue_run_lr_step(run);
        accrue_run_zero_grad(run);
    }
}

static void round_of(figures *f, const char *dir)
{
    accrue_error err = {0};
    double start = 0;

    f->disk[f->n] = write_once(dir, f->bytes);
    must(accrue_run_save(f->run, "bench", &err), &err);
    f->alone[f->n] = f->seconds;
    start = now();
    step(f->run);
    f->step[f->n] = now() - start;
    must(accrue_run_save_begin(f->run, "bench", &err), &err);
    start = now();
    for (int i = 0; i < 4; i++)
        step(f->run);
    f->wait_seconds = 0; /* what _wait adds is none of training's */
    must(accrue_run_save_wait(f->run, &err), &err);
    f->beside[f->n] = f->seconds;
    f->waited[f->n] = f->wait_seconds;
    f->n++;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, ROUNDS, sizeof *x, ascending);
    return x[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    figures f = {0};
    accrue_train_options o;
    accrue_error err = {0};

    if (argc < 4) {
        fprintf(stderr, "usage: bench_save VERIFIER DATA DIR [bf16|f32] [N]\n");
        return 2;
    }
    accrue_train_options_init(&o, sizeof o);
    o.verifier = argv[1];
    o.data_path = argv[2];
    o.save_path = argv[3];
    o.draft_vocab_size = 8192;
    o.total_seq_len = 512;
    o.compute = argc > 4 && strcmp(argv[4], "f32") == 0 ? ACCRUE_F32 : ACCRUE_BF16;
    o.window.optimizer = ACCRUE_ADAMW;
    o.window.gradient_accumulation_steps = argc > 5 ? atoi(argv[5]) : 1;
    mkdir(o.save_path, 0777);
    must(accrue_run_open(&f.run, &o, on_event, &f, &err), &err);
    step(f.run);
    must(accrue_run_save(f.run, "bench", &err), &err);
    while (f.n < ROUNDS)
        round_of(&f, o.save_path);
    accrue_run_free(f.run);

    double disk = median(f.disk), alone = median(f.alone), one = median(f.step);
    double beside = median(f.beside), waited = median(f.waited);
    printf("checkpoint %.1f MB; written in one go at %.0f MB/s\n", (double)f.bytes / 1e6,
           (double)f.bytes / 1e6 / disk);
    printf("saved alone    at %.0f MB/s, %.2f of that\n", (double)f.bytes / 1e6 / alone,
           disk / alone);
    printf("saved beside   at %.0f MB/s, %.2f of that\n", (double)f.bytes / 1e6 / beside,
           disk / beside);
    printf("a step takes %.0f ms; of it a save took %.2f ms, %.2f %%; at most %.2f ms\n", 1e3 * one,
           1e3 * waited, 100 * waited / one, 1e3 * f.waited[ROUNDS - 1]);
    return 0;
}
