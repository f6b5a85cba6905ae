/* A save that dies or fails at any of its calls to the system: what is there afterwards is
 * resumed, and ends with the bits of a run that never failed.
 *
 * The calls are defined here and reach the kernel by syscall(), so that each of them is seen. */
#define FSYNC
#include "resume_test.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

typedef enum fault { NONE, DIE_BEFORE, DIE_HALFWAY, FAIL } fault;

/* Under sanitizers a run takes ten times as long. */
#ifdef __SANITIZE_ADDRESS__
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

static fault mode;
static bool no_exchange; /* as on file systems that cannot exchange two names */
static int64_t at;
static atomic_int_fast64_t calls; /* of all threads; one at a time saves */

enum { MAX_CALLS = 1024 };
static bool is_write[MAX_CALLS + 1]; /* of the whole run's calls, from 1 on */

/* Whether this call is to fail. */
static bool point(void)
{
    if (atomic_fetch_add(&calls, 1) + 1 != at || mode == NONE)
        return false;
    if (mode == DIE_BEFORE)
        raise(SIGKILL);
    return true;
}

static int result(bool failed, long value)
{
    if (!failed)
        return (int)value;
    if (mode == DIE_HALFWAY)
        raise(SIGKILL);
    errno = EIO;
    return -1;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    bool failed = point();

    if (mode == NONE && calls <= MAX_CALLS)
        is_write[calls] = true;
    if (!failed)
        return syscall(SYS_write, fd, bytes, n);
    if (syscall(SYS_write, fd, bytes, n / 2) < 0)
        return -1;
    if (mode == DIE_HALFWAY)
        raise(SIGKILL);
    errno = ENOSPC;
    return -1;
}

int fsync(int fd)
{
    bool failed = point();

    return result(failed, failed ? 0 : sync_nothing(fd));
}

int rename(const char *from, const char *to)
{
    bool failed = point();

    return result(failed, failed ? 0 : syscall(SYS_rename, from, to));
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    bool failed = point();

    if (!failed && no_exchange) {
        errno = EINVAL;
        return -1;
    }
    return result(failed, failed ? 0 : syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
}

int mkdir(const char *path, mode_t permissions)
{
    bool failed = point();

    return result(failed, failed ? 0 : syscall(SYS_mkdir, path, permissions));
}

int rmdir(const char *path)
{
    bool failed = point();

    return result(failed, failed ? 0 : syscall(SYS_rmdir, path));
}

int unlink(const char *path)
{
    bool failed = point();

    return result(failed, failed ? 0 : syscall(SYS_unlink, path));
}

int unlinkat(int dir, const char *path, int flags)
{
    bool failed = point();

    return result(failed, failed ? 0 : syscall(SYS_unlinkat, dir, path, flags));
}

int symlink(const char *target, const char *path)
{
    bool failed = point();

    return result(failed, failed ? 0 : syscall(SYS_symlink, target, path));
}

int statvfs(const char *restrict path, struct statvfs *restrict s)
{
    bool failed = point();

    memset(s, 0, sizeof *s); /* a file system that does not say how large it is */
    (void)path;
    return result(failed, 0);
}

static char *folder, *straight, *out;
static int64_t total; /* calls of the whole run */

static accrue_train_options options(const char *save_path)
{
    accrue_train_options o = tiny_options(save_path);

    o.total_seq_len = 71;
    o.ttt_steps = 1;
    o.epochs = 2;
    o.checkpoint_freq = 0.5; /* in mid-epoch too, so that a checkpoint is replaced */
    o.compute = ACCRUE_F32;
    o.window.gradient_accumulation_steps = 2;
    o.keep = 1;        /* an older one goes */
    o.check_bytes = 0; /* which opens every file of the data set */
    o.batch_plan = short_plan(folder, 5);
    return o;
}

/* A run in `path` that nothing happens to, its calls counted. */
static void count_calls(const char *path)
{
    accrue_train_options o = options(path);
    accrue_error e = {0};

    calls = 0;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    total = calls;
    assert_true(total > 60 && total < MAX_CALLS);
    acr_free((void *)(uintptr_t)o.batch_plan);
}

static int make(void **state)
{
    (void)state;
    accrue_set_threads(1);
    folder = make_folder();
    straight = acr_sprintf("%s/straight", folder);
    out = acr_sprintf("%s/out", folder);
    count_calls(straight);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    remove_folder(folder);
    acr_free(straight);
    acr_free(out);
    return 0;
}

/* 0: went through, 1: stopped with an error, 2: died. */
static int run_with(const accrue_train_options *o, fault f, int64_t n)
{
    int status = 0;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        mode = f;
        at = n;
        calls = 0;
        _exit(accrue_train(o, NULL, NULL, NULL) ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), SIGKILL);
        return 2;
    }
    return WEXITSTATUS(status);
}

static void at_every_call(fault f)
{
    accrue_train_options o = options(out);
    int faults = 0;

    bool writes[MAX_CALLS + 1];

    memcpy(writes, is_write, sizeof writes);
    for (int64_t n = 1; n <= total; n += STRIDE) {
        accrue_error e = {0};
        int got = 0;
        if (f == DIE_HALFWAY && !writes[n])
            continue; /* nothing lies between before and after */
        got = run_with(&o, f, n);
        faults += got != 0;
        if (f != FAIL)
            assert_int_equal(got, 2);
        mode = NONE;
        if (accrue_train(&o, NULL, NULL, &e))
            fail_msg("call %lld: %s", (long long)n, e.message);
        assert_same_tree(straight, out);
        remove_tree(out);
    }
    assert_true(faults >= 20 / STRIDE);
    acr_free((void *)(uintptr_t)o.batch_plan);
}

static void a14_killed_before_every_call(void **state)
{
    (void)state;
    at_every_call(DIE_BEFORE);
}

/* In the middle of a write, with half of it done. */
static void a14_killed_within_every_write(void **state)
{
    (void)state;
    at_every_call(DIE_HALFWAY);
}

/* ENOSPC after half a write, EIO elsewhere. */
static void a15_every_call_fails(void **state)
{
    (void)state;
    at_every_call(FAIL);
}

/* Where two names cannot be exchanged an older checkpoint is replaced in two steps. */
static void a14_without_exchange_of_names(void **state)
{
    (void)state;
    no_exchange = true;
    count_calls(out);
    assert_same_tree(straight, out);
    remove_tree(out);
    at_every_call(DIE_BEFORE);
    at_every_call(FAIL);
    no_exchange = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a14_killed_before_every_call),
        cmocka_unit_test(a14_killed_within_every_write),
        cmocka_unit_test(a15_every_call_fails),
        cmocka_unit_test(a14_without_exchange_of_names),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
