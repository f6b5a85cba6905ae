/* resume_test.h - for tests of runs that go on: what a run did event by event, and folders compared
 * byte by byte. */
#ifndef TEST_RESUME_TEST_H
#define TEST_RESUME_TEST_H

#include "train_test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Hundreds of saves would wait for the disk most of the time; all that is read here outlives a
 * killed process in the page cache.  A test that defines FSYNC has its own. */
static inline int sync_nothing(int fd)
{
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

int sync_file_range(int fd, off_t offset, off_t n, unsigned flags)
{
    (void)offset;
    (void)n;
    (void)flags;
    return sync_nothing(fd);
}

#ifndef FSYNC
int fsync(int fd)
{
    return sync_nothing(fd);
}
#endif

/* What one event said, apart from times. */
typedef struct record {
    int64_t kind, epoch, global_step, micro_batch, skipped_nonfinite, empty_windows;
    double lr, muon_lr, grad_norm;
    accrue_metrics metrics;
} record;

/* What a run did, over all its parts: a part that goes on takes back what comes after its start, as
 * metrics.jsonl does. */
typedef struct logbook {
    record *records;
    size_t n, capacity;
    int resumed;
    int64_t events;  /* but notices, which a part may have more of, saves, which end any time, and
                        waits, which depend on the machine */
    int64_t stop_at; /* event to which the callback answers; 0: none */
    int answer;      /* 0: ACCRUE_CANCEL */
} logbook;

static inline bool is_after(const record *r, const accrue_event *start)
{
    if (r->kind == ACCRUE_EVENT_STEP)
        return r->global_step > start->global_step;
    if (r->kind == ACCRUE_EVENT_VALIDATION)
        return r->epoch >= start->epoch;
    return r->epoch > start->epoch ||
           (r->epoch == start->epoch && r->micro_batch > start->micro_batch);
}

static inline void take_back(logbook *l, const accrue_event *start)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++)
        if (start->resumed && !is_after(&l->records[i], start))
            l->records[n++] = l->records[i];
    l->n = n;
    l->resumed += start->resumed;
}

static inline int write_log(const accrue_event *e, void *payload)
{
    logbook *l = payload;
    record r = {0};

    if (e->kind == ACCRUE_EVENT_NOTICE || e->kind == ACCRUE_EVENT_CHECKPOINT ||
        e->kind == ACCRUE_EVENT_WAITING)
        return 0;
    if (e->kind == ACCRUE_EVENT_START)
        take_back(l, e);
    if (e->kind == ACCRUE_EVENT_MICRO_BATCH || e->kind == ACCRUE_EVENT_STEP ||
        e->kind == ACCRUE_EVENT_VALIDATION) {
        if (l->n == l->capacity) {
            l->capacity = l->capacity ? 2 * l->capacity : 256;
            l->records = acr_realloc(l->records, l->capacity * sizeof *l->records);
            assert_non_null(l->records);
        }
        r.kind = e->kind;
        r.epoch = e->epoch;
        r.global_step = e->global_step;
        r.micro_batch = e->micro_batch;
        r.skipped_nonfinite = e->skipped_nonfinite;
        r.empty_windows = e->empty_windows;
        if (e->kind == ACCRUE_EVENT_STEP) {
            r.lr = e->lr;
            r.muon_lr = e->muon_lr;
            r.grad_norm = e->grad_norm;
        }
        r.metrics = e->metrics;
        l->records[l->n++] = r;
    }
    if (++l->events != l->stop_at)
        return ACCRUE_GO_ON;
    return l->answer ? l->answer : ACCRUE_CANCEL;
}

static inline int64_t last_step(const logbook *l)
{
    int64_t last = 0;

    for (size_t i = 0; i < l->n; i++)
        last = l->records[i].global_step;
    return last;
}

static inline void assert_same_log(const logbook *a, const logbook *b)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (memcmp(&a->records[i], &b->records[i], sizeof a->records[i]) != 0)
            fail_msg("record %zu: kind %lld epoch %lld step %lld loss %.17g; kind %lld epoch %lld "
                     "step %lld loss %.17g",
                     i, (long long)a->records[i].kind, (long long)a->records[i].epoch,
                     (long long)a->records[i].global_step, a->records[i].metrics.loss_sum,
                     (long long)b->records[i].kind, (long long)b->records[i].epoch,
                     (long long)b->records[i].global_step, b->records[i].metrics.loss_sum);
    assert_int_equal(a->n, b->n);
    assert_true(a->n > 0);
}

/* The same names, links, targets and bytes. */
static inline void assert_same_tree(const char *a, const char *b)
{
    shell(acr_sprintf("diff -r --no-dereference '%s' '%s'", a, b));
}

static inline void copy_tree(const char *from, const char *to)
{
    shell(acr_sprintf("cp -a '%s' '%s'", from, to));
}

static inline void remove_tree(const char *path)
{
    shell(acr_sprintf("rm -rf '%s'", path));
}

/* Lists a checkpoint's files as they now are. */
static inline void remake_manifest(const char *dir)
{
    static const char *const names[] = {"config.json",       "model.safetensors",
                                        "state.tensors", "training_state.json",
                                        "val_metrics.json",  "skipped_samples.jsonl"};
    json_t *files = json_object();

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = acr_sprintf("%s/%s", dir, names[i]);
        acr_map map = {0};
        if (acr_is_file(path)) {
            assert_int_equal(acr_map_open(&map, path, NULL), ACCRUE_OK);
            json_object_set_new(
                files, names[i],
                acr_manifest_entry((int64_t)map.bytes, acr_hash_bytes(map.data, map.bytes, 0)));
            acr_map_close(&map);
        }
        acr_free(path);
    }
    assert_int_equal(acr_manifest_write(dir, files, NULL), ACCRUE_OK);
    json_decref(files);
}

/* Three epochs of `rows` rows, nine at most, validated on two; freed with acr_free. */
static inline char *short_plan(const char *folder, int rows)
{
    static const int orders[3][9] = {{0, 1, 2, 3, 4, 5, 6, 7, 8},
                                     {8, 6, 4, 2, 0, 1, 3, 5, 7},
                                     {10, 11, 12, 13, 14, 15, 16, 17, 18}};
    char *path = acr_sprintf("%s/short.json", folder);
    json_t *train = json_array(), *val = json_array(), *plan = NULL;

    assert_non_null(path);
    for (int epoch = 0; epoch < 3; epoch++) {
        json_t *batches = json_array();
        for (int i = 0; i < rows; i++)
            json_array_append_new(batches, json_pack("[i]", orders[epoch][i]));
        json_array_append_new(train, batches);
        json_array_append_new(val, json_pack("[[i], [i]]", 54, 55));
    }
    plan = json_pack("{s:i, s:o, s:o}", "total_seq_len", 71, "train", train, "val", val);
    assert_int_equal(json_dump_file(plan, path, 0), 0);
    json_decref(plan);
    return path;
}

/* Runs in a process of its own that is killed after `seconds`; whether it was. */
static inline bool kill_during(const accrue_train_options *o, double seconds)
{
    int status = 0;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(accrue_train(o, NULL, NULL, NULL) ? 1 : 0);
    usleep((useconds_t)(1e6 * seconds));
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status))
        assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status);
}

#endif
