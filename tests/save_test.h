/* save_test.h - for tests of saves: the calls of a save under the test's hands, and short runs. */
#ifndef TEST_SAVE_TEST_H
#define TEST_SAVE_TEST_H

#include "bad_rows_test.h"
#include "folder_test.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

/* The calls of a save, under the test's hands. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_int writes;  /* so far */
    atomic_int hold_at; /* this write waits, until `release`; 0: none */
    bool released;
    atomic_int fail_from, fail_until; /* writes that find no room */
    atomic_int halve;                 /* the write of which half fits */
    atomic_int spoil;                 /* the write whose bytes arrive changed */
    atomic_bool no_list;              /* there is none for the list of bad rows */
    atomic_llong room;                /* bytes free; -1: as many as there are */
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .room = -1};

static inline void release(void)
{
    pthread_mutex_lock(&disk.lock);
    disk.released = true;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
}

static inline void reset_disk(void)
{
    disk.writes = disk.hold_at = disk.fail_from = disk.fail_until = 0;
    disk.halve = disk.spoil = 0;
    disk.no_list = false;
    disk.room = -1;
    disk.released = false;
}

static inline bool is_list(int fd)
{
    char link[40], path[1024] = "";

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, path, sizeof path - 1) > 0 &&
           strstr(path, "/unlisted/skipped_samples.jsonl");
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    int k = atomic_fetch_add(&disk.writes, 1) + 1;

    if (k == disk.hold_at) {
        pthread_mutex_lock(&disk.lock);
        while (!disk.released)
            pthread_cond_wait(&disk.changed, &disk.lock);
        pthread_mutex_unlock(&disk.lock);
    }
    if ((disk.fail_from && k >= disk.fail_from && k < disk.fail_until) ||
        (disk.no_list && is_list(fd))) {
        errno = ENOSPC;
        return -1;
    }
    if (k == disk.spoil && n > 40) {
        char *other = acr_malloc(n);
        ssize_t done = 0;
        memcpy(other, bytes, n);
        other[n / 2] = (char)(other[n / 2] ^ 4);
        done = syscall(SYS_write, fd, other, n);
        acr_free(other);
        return done;
    }
    return syscall(SYS_write, fd, bytes, k == disk.halve ? n / 2 : n);
}

int statvfs(const char *restrict path, struct statvfs *restrict s)
{
    (void)path;
    memset(s, 0, sizeof *s);
    if (disk.room < 0)
        return 0; /* a file system that does not say how large it is */
    s->f_blocks = 1 << 20;
    s->f_frsize = 1;
    s->f_bavail = (fsblkcnt_t)disk.room;
    return 0;
}

static inline accrue_train_options options(const char *out)
{
    accrue_train_options o = tiny_options(out);

    o.total_seq_len = 71;
    o.ttt_steps = 2;
    o.epochs = 2;
    o.compute = ACCRUE_F32;
    o.window.optimizer = ACCRUE_MUON;
    o.window.lr = 1e-2;
    o.window.gradient_accumulation_steps = 3;
    o.batch_plan = short_plan(folder, 9);
    return o;
}

static inline void drop(accrue_train_options *o)
{
    acr_free((void *)(uintptr_t)o->batch_plan);
    reset_disk();
}

static inline void step(accrue_run *run)
{
    accrue_error e = {0};
    bool stepped = false;

    while (!stepped)
        assert_ok(one_micro_batch(run, &stepped, &e), &e);
}

#endif
