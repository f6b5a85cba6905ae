/* Saves in the background: what they hold while training changes it, what they do without room, and
 * the proof that what is on the disk is what was meant. */
#include "bad_rows_test.h"

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

static void release(void)
{
    pthread_mutex_lock(&disk.lock);
    disk.released = true;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
}

static void reset_disk(void)
{
    disk.writes = disk.hold_at = disk.fail_from = disk.fail_until = 0;
    disk.halve = disk.spoil = 0;
    disk.no_list = false;
    disk.room = -1;
    disk.released = false;
}

static bool is_list(int fd)
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

static char *folder;

static int make(void **state)
{
    (void)state;
    accrue_set_threads(2);
    folder = make_folder();
    return 0;
}

static int clear(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

static accrue_train_options options(const char *out)
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

static void drop(accrue_train_options *o)
{
    acr_free((void *)(uintptr_t)o->batch_plan);
    reset_disk();
}

/* Steps taken while a save is held up ----------------------------------------------------- */

static void step(accrue_run *run)
{
    accrue_error e = {0};
    bool stepped = false;

    while (!stepped)
        assert_ok(one_micro_batch(run, &stepped, &e), &e);
}

/* A save that waits at its k-th write until two more steps are taken holds what was there before
 * them, wherever it waits. */
static void hold_everywhere(accrue_train_options *o, int stride)
{
    char *plain = acr_sprintf("%s/moment", folder), *held = acr_sprintf("%s/held", folder);
    accrue_error e = {0};
    int writes = 0;

    for (int k = 0; k <= writes; k += k ? stride : 1) {
        accrue_run *run = NULL;
        o->save_path = k ? held : plain;
        assert_ok(accrue_run_open(&run, o, NULL, NULL, &e), &e);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        step(run);
        reset_disk();
        disk.hold_at = k;
        assert_ok(accrue_run_save_begin(run, "0", &e), &e);
        if (k) {
            step(run);
            step(run);
            release();
        }
        assert_ok(accrue_run_save_wait(run, &e), &e);
        if (!k)
            writes = disk.writes;
        accrue_run_free(run);
        if (k)
            assert_same_tree(plain, held);
        remove_tree(k ? held : "/nonexistent");
    }
    assert_in_range(writes, 40, 400);
    remove_tree(plain);
    acr_free(plain);
    acr_free(held);
}

/* Also with copies in bf16, which a step makes anew, and with an embedding that is trained. */
static void test_holds_its_moment(void **state)
{
    accrue_train_options o = options(NULL);

    (void)state;
    hold_everywhere(&o, 1);
    o.compute = ACCRUE_BF16;
    o.window.optimizer = ACCRUE_ADAMW;
    o.embed_requires_grad = true;
    hold_everywhere(&o, 5);
    o.compute = ACCRUE_F64;
    hold_everywhere(&o, 5);
    drop(&o);
}

static void *release_soon(void *arg)
{
    usleep(50000);
    release();
    return arg;
}

/* Without memory for a copy, the step waits for the disk. */
static void test_no_memory_for_a_copy(void **state)
{
    char *plain = acr_sprintf("%s/copy", folder), *poor = acr_sprintf("%s/poor", folder);
    accrue_train_options o = options(plain);
    accrue_error e = {0};

    (void)state;
    for (int k = 0; k < 2; k++) {
        accrue_run *run = NULL;
        o.save_path = k ? poor : plain;
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        step(run);
        reset_disk();
        disk.hold_at = k ? 3 : 0;
        assert_ok(accrue_run_save_begin(run, "0", &e), &e);
        while (k && disk.writes < 3)
            usleep(1000);
        if (k) {
            pthread_t later;
            assert_int_equal(pthread_create(&later, NULL, release_soon, NULL), 0);
            assert_false(acr_save_done(run->save));
            acr_fail_allocation(2);
            acr_save_detach(run->save);
            acr_fail_allocation(0);
            assert_true(acr_save_done(run->save));
            pthread_join(later, NULL);
        }
        step(run);
        assert_ok(accrue_run_save_wait(run, &e), &e);
        accrue_run_free(run);
    }
    assert_same_tree(plain, poor);
    drop(&o);
    acr_free(plain);
    acr_free(poor);
}

/* The first two tasks wait for each other. */
static void meet(int64_t i, void *ctx)
{
    pthread_barrier_t *both = ctx;

    if (i < 2)
        pthread_barrier_wait(both);
}

/* A system that gives no thread: the save is written at once, and the work of training is spread
 * over threads as before. */
static void test_no_thread(void **state)
{
    char *plain = acr_sprintf("%s/thread", folder), *alone = acr_sprintf("%s/alone", folder);
    accrue_train_options o = options(plain);
    accrue_error e = {0};
    pthread_attr_t before, huge;
    pthread_barrier_t both;

    (void)state;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&huge), 0);
    assert_int_equal(pthread_attr_setstacksize(&huge, SIZE_MAX / 4 & ~(size_t)0xffff), 0);
    assert_int_equal(pthread_barrier_init(&both, NULL, 2), 0);
    acr_parallel(2, meet, &both); /* a worker is there */
    for (int k = 0; k < 2; k++) {
        accrue_run *run = NULL;
        o.save_path = k ? alone : plain;
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        step(run);
        reset_disk();
        if (k)
            assert_int_equal(pthread_setattr_default_np(&huge), 0);
        assert_ok(accrue_run_save_begin(run, "0", &e), &e);
        assert_int_equal(pthread_setattr_default_np(&before), 0);
        if (k)
            assert_true(acr_save_done(run->save));
        alarm(120); /* where nobody else comes */
        acr_parallel(2, meet, &both);
        alarm(0);
        step(run);
        assert_ok(accrue_run_save_wait(run, &e), &e);
        accrue_run_free(run);
    }
    assert_same_tree(plain, alone);
    pthread_barrier_destroy(&both);
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&huge);
    drop(&o);
    acr_free(plain);
    acr_free(alone);
}

/* A run that is freed, or stepped and freed, while its save is held up: the save is whole. */
static void test_freed_while_saving(void **state)
{
    char *plain = acr_sprintf("%s/waited", folder), *freed = acr_sprintf("%s/freed", folder);
    accrue_train_options o = options(plain);
    accrue_error e = {0};

    (void)state;
    for (int k = 0; k < 3; k++) {
        accrue_run *run = NULL;
        pthread_t later;
        o.save_path = k ? freed : plain;
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        step(run);
        reset_disk();
        disk.hold_at = k ? 3 : 0;
        assert_ok(accrue_run_save_begin(run, "0", &e), &e);
        assert_int_equal(pthread_create(&later, NULL, release_soon, NULL), 0);
        if (k == 2)
            step(run);
        accrue_run_free(run);
        pthread_join(later, NULL);
        if (k)
            assert_same_tree(plain, freed);
        remove_tree(k ? freed : "/nonexistent");
    }
    drop(&o);
    acr_free(plain);
    acr_free(freed);
}

/* No room --------------------------------------------------------------------------------- */

static void test_no_room_to_begin(void **state)
{
    char *out = acr_sprintf("%s/full", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    reset_disk();
    disk.room = 1000;
    assert_fails(accrue_train(&o, tell, &t, &e), ACCRUE_ENOSPACE, &e, out,
                 "no room for a checkpoint", "bytes needed, 1000 free", NULL);
    assert_int_equal(t.steps, 0);
    forget(&t);
    o.on_save_error = ACCRUE_POLICY_SKIP;
    assert_fails(accrue_train(&o, tell, &t, &e), ACCRUE_ENOSPACE, &e,
                 "the last checkpoint was not saved", "no room for a checkpoint", NULL);
    assert_int_equal(t.steps, 6); /* trained to its end all the same */
    assert_int_equal(t.n_saved, 0);
    assert_notice(&t, "not saved, training goes on: ");
    forget(&t);
    drop(&o);
    acr_free(out);
}

/* The disk is full for one of the saves but the last: with `continue` the run ends as one that had
 * room, with `stop` it ends there, and the next one goes on. */
static void test_full_for_a_while(void **state)
{
    char *straight = acr_sprintf("%s/roomy", folder), *out = acr_sprintf("%s/tight", folder);
    accrue_train_options o = options(straight);
    accrue_error e = {0};
    told t = {0};
    int before_last = 0;

    (void)state;
    o.checkpoint_freq = 0.4;
    reset_disk();
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    o.save_path = out;
    before_last = disk.writes * 3 / 4; /* of six saves */
    for (int from = 2; from < before_last; from += 17) {
        reset_disk();
        disk.fail_from = from;
        disk.fail_until = from + 1;
        o.on_save_error = ACCRUE_POLICY_SKIP;
        assert_ok(accrue_train(&o, tell, &t, &e), &e);
        assert_notice(&t, "not saved, training goes on: ");
        assert_notice(&t, "No space left on device");
        shell(acr_sprintf("diff -r '%s/1' '%s/1'", straight, out)); /* 0 may be missing */
        forget(&t);
        remove_tree(out);
        reset_disk();
        disk.fail_from = from;
        disk.fail_until = from + 1;
        o.on_save_error = ACCRUE_POLICY_RAISE;
        assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_ENOSPACE, &e, "cannot write", "of ",
                     " bytes written", NULL);
        reset_disk();
        assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
        assert_same_tree(straight, out);
        remove_tree(out);
    }
    drop(&o);
    acr_free(straight);
    acr_free(out);
}

/* The best epoch's save fails: the best so far is the best that was saved. */
static void test_best_not_saved(void **state)
{
    char *out = acr_sprintf("%s/unsaved", folder), *best = acr_sprintf("%s/checkpoint_best", out);
    accrue_train_options o = options(out);
    accrue_error e = {0};
    told t = {0};
    char target[16] = "";

    (void)state;
    reset_disk();
    o.epochs = 3;
    o.on_save_error = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_true(t.val_loss[1] < t.val_loss[0] && t.val_loss[2] < t.val_loss[1]);
    forget(&t);
    remove_tree(out);
    disk.fail_from = disk.writes - 10; /* in the last save */
    disk.fail_until = 1 << 20;
    disk.writes = 0;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_ENOSPACE, &e, "the last checkpoint",
                 NULL);
    assert_true(readlink(best, target, sizeof target - 1) > 0);
    assert_string_equal(target, "1");
    drop(&o);
    acr_free(out);
    acr_free(best);
}

static void leave_out(accrue_run *run, int64_t row)
{
    accrue_fault f = {.kind = ACCRUE_FAULT_NONFINITE, .row = row, .count = 1};
    accrue_error e = {0};

    snprintf(f.file, sizeof f.file, "d\377/hs_%lld.safetensors", (long long)row);
    snprintf(f.message, sizeof f.message, "row %lld: d\377 is bad", (long long)row);
    assert_ok(acr_epochs_leave_out(&run->epochs, &f, 0, &e), &e);
}

/* Half a line fits on the disk: the list stays as it was, and is whole once there is room.  What
 * JSON cannot hold of a path is no reason to fail. */
static void test_list_without_room(void **state)
{
    char *out = acr_sprintf("%s/list", folder);
    char *list = acr_sprintf("%s/skipped_samples.jsonl", out);
    accrue_train_options o = options(out);
    accrue_run *run = NULL;
    accrue_error e = {0};

    (void)state;
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.max_bad = 10;
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    leave_out(run, 1);
    assert_ok(acr_bad_rows_list(run, &e), &e);
    shell(acr_sprintf("cp '%s' '%s/before.jsonl'", list, folder));
    leave_out(run, 2);
    reset_disk();
    disk.halve = 1;
    disk.fail_from = 2;
    disk.fail_until = 3;
    assert_fails(acr_bad_rows_list(run, &e), ACCRUE_ENOSPACE, &e, list, "cannot write", NULL);
    shell(acr_sprintf("cmp '%s' '%s/before.jsonl'", list, folder));
    assert_ok(acr_bad_rows_list(run, &e), &e);
    assert_int_equal(run->listed, 2);
    shell(
        acr_sprintf("grep -c '^{\"row\":[12],.*d?/hs_.*: d? is bad.*}$' '%s' | grep -qx 2", list));
    accrue_run_free(run);
    drop(&o);
    acr_free(list);
    acr_free(out);
}

/* With --on-save-error continue no list ends a run; with stop it does. */
static void test_no_room_for_list(void **state)
{
    char *out = acr_sprintf("%s/unlisted", folder), *data = copy_data(folder, "data");
    accrue_train_options o = options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    spoil_states(data, 4);
    reset_disk();
    o.data_path = data;
    o.check_bytes = 0; /* found in training */
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.max_bad = 3;
    disk.no_list = true;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_ENOSPACE, &e, out,
                 "skipped_samples.jsonl: cannot write", NULL);
    o.on_save_error = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_notice(&t, "rows left out are not listed, training goes on: ");
    assert_int_equal(t.n_saved, 2);
    shell(acr_sprintf("cd '%s' && [ ! -s skipped_samples.jsonl ] && "
                      "grep -q '\"row\":4' 1/skipped_samples.jsonl",
                      out));
    forget(&t);
    drop(&o);
    acr_free(out);
    acr_free(data);
}

/* Proof ----------------------------------------------------------------------------------- */

/* One bit changes on the way to the disk, in any of the writes of the second checkpoint: it is
 * found, and the first one stays. */
static void test_changed_on_the_way(void **state)
{
    char *out = acr_sprintf("%s/way", folder), *copy = acr_sprintf("%s/first", folder);
    char *dir = acr_sprintf("%s/0", out);
    accrue_train_options o = options(out);
    accrue_run *run = NULL;
    accrue_error e = {0};
    int writes = 0, found = 0;

    (void)state;
    reset_disk();
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_ok(accrue_run_save(run, "0", &e), &e);
    writes = disk.writes;
    copy_tree(dir, copy);
    step(run);
    for (int k = 1; k <= writes; k++) {
        accrue_status st = ACCRUE_OK;
        reset_disk();
        disk.spoil = k;
        st = accrue_run_save(run, "0", &e);
        if (st) {
            assert_fails(st, ACCRUE_EFORMAT, &e, ".0.tmp-", NULL);
            assert_same_tree(copy, dir);
            found++;
        } else {
            remove_tree(dir); /* a write of a few bytes, which was left alone */
            copy_tree(copy, dir);
        }
    }
    assert_true(found > 15 && found > writes / 3);
    accrue_run_free(run);
    drop(&o);
    acr_free(out);
    acr_free(copy);
    acr_free(dir);
}

static char *proven; /* a checkpoint folder with validation */

/* The folder proven again after the shell command. */
static accrue_status prove_after(const char *command, accrue_error *e)
{
    char *copy = acr_sprintf("%s/spoilt", folder);
    char *paths[2] = {acr_sprintf("%s/model.safetensors", proven),
                      acr_sprintf("%s/state.safetensors", proven)};
    acr_safetensors *f[2] = {NULL, NULL};
    acr_tensor t[2][64];
    int n[2];
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < 2; i++) {
        assert_ok(acr_safetensors_open(&f[i], paths[i], e), e);
        n[i] = acr_safetensors_count(f[i]);
        for (int k = 0; k < n[i]; k++)
            t[i][k] = *acr_safetensors_at(f[i], k);
    }
    copy_tree(proven, copy);
    shell(acr_sprintf("cd '%s' && %s", copy, command));
    remake_manifest(copy);
    st = acr_prove_files(copy, t[0], n[0], t[1], n[1], e);
    remove_tree(copy);
    for (int i = 0; i < 2; i++) {
        acr_safetensors_close(f[i]);
        acr_free(paths[i]);
    }
    acr_free(copy);
    return st;
}

/* A25: every key that vLLM expects, every tensor declared, weights that are the rounded masters. */
static void test_a25_files(void **state)
{
    static const char *const keys[] = {"draft_vocab_size",     "speculators_model_type",
                                       "norm_before_residual", "speculative_tokens",
                                       "name_or_path",         "intermediate_size",
                                       "num_attention_heads",  "eagle_aux_hidden_state_layer_ids"};
    char *out = acr_sprintf("%s/a25", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};

    (void)state;
    reset_disk();
    proven = acr_sprintf("%s/1", out);
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    assert_ok(prove_after("true", &e), &e);
    for (int i = 0; i < ACR_COUNT(keys); i++) {
        char *rename_key = acr_sprintf("sed -i 's/\"%s\"/\"x%s\"/' config.json", keys[i], keys[i]);
        assert_fails(prove_after(rename_key, &e), ACCRUE_EFORMAT, &e, "config.json: no \"", keys[i],
                     "which vLLM needs", NULL);
        acr_free(rename_key);
    }
    assert_fails(
        prove_after("sed -i 's/layers.0.mlp.up_proj/layers.0.mlp.Up_proj/' model.safetensors", &e),
        ACCRUE_EFORMAT, &e, "layers.0.mlp.up_proj.weight is missing", NULL);
    assert_fails(prove_after("cp state.safetensors model.safetensors", &e), ACCRUE_EFORMAT, &e,
                 "model.safetensors: ", "tensors, ", NULL);
    /* The sign of an element of the first tensor, which is a master. */
    assert_fails(prove_after("printf '\\277' | dd of=state.safetensors bs=1 conv=notrunc "
                             "seek=$(($(od -An -t u8 -N8 state.safetensors) + 11)) 2>/dev/null",
                             &e),
                 ACCRUE_EFORMAT, &e, "is not the rounded master of state.safetensors", NULL);
    acr_free(proven);
    drop(&o);
    acr_free(out);
}

/* A25: the loss from the weights read back is the one that was logged; with others it is not. */
static void test_a25_loss(void **state)
{
    static const accrue_dtype computes[] = {ACCRUE_F32, ACCRUE_BF16, ACCRUE_F64};

    (void)state;
    for (int i = 0; i < ACR_COUNT(computes); i++) {
        char *out = acr_sprintf("%s/loss%d", folder, i), *dir = acr_sprintf("%s/0", out);
        accrue_train_options o = options(out);
        accrue_metrics val;
        accrue_run *run = NULL;
        accrue_error e = {0};
        reset_disk();
        o.compute = computes[i];
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        step(run);
        assert_ok(accrue_run_validate(run, &val, &e), &e);
        assert_ok(accrue_run_save(run, "0", &e), &e);
        step(run); /* the run's own weights are others by now */
        assert_ok(acr_prove_loss(run, dir, &e), &e);
        step(run); /* and training goes on with those */
        assert_ok(acr_prove_loss(run, dir, &e), &e);
        assert_ok(accrue_run_save(run, "0", &e), &e);
        assert_fails(acr_prove_loss(run, dir, &e), ACCRUE_EFORMAT, &e, dir,
                     "with the weights read back", "when it was validated", NULL);
        accrue_run_free(run);
        drop(&o);
        acr_free(out);
        acr_free(dir);
    }
}

/* A loss that is not even a number says which proof it was, and training can go on. */
static void test_proof_not_finite(void **state)
{
    char *out = acr_sprintf("%s/nan", folder), *dir = acr_sprintf("%s/0", out);
    accrue_train_options o = options(out);
    accrue_metrics val;
    accrue_run *run = NULL;
    accrue_error e = {0};

    (void)state;
    reset_disk();
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    step(run);
    assert_ok(accrue_run_validate(run, &val, &e), &e);
    assert_ok(accrue_run_save(run, "0", &e), &e);
    shell(acr_sprintf("cd '%s' && f=state.safetensors && n=$(($(od -An -t u8 -N8 $f) + 8)) && "
                      "rest=$(($(stat -c %%s $f) - n)) && head -c $n $f >nan && "
                      "head -c $rest /dev/zero | tr '\\0' '\\377' >>nan && mv nan $f",
                      dir));
    assert_fails(acr_prove_loss(run, dir, &e), ACCRUE_ENUMERIC, &e, dir, "of epoch 1",
                 "with the weights read back: the loss is NaN", NULL);
    step(run);
    accrue_run_free(run);
    drop(&o);
    acr_free(dir);
    acr_free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holds_its_moment),  cmocka_unit_test(test_no_memory_for_a_copy),
        cmocka_unit_test(test_no_room_to_begin),  cmocka_unit_test(test_full_for_a_while),
        cmocka_unit_test(test_best_not_saved),    cmocka_unit_test(test_changed_on_the_way),
        cmocka_unit_test(test_a25_files),         cmocka_unit_test(test_a25_loss),
        cmocka_unit_test(test_no_thread),         cmocka_unit_test(test_freed_while_saving),
        cmocka_unit_test(test_list_without_room), cmocka_unit_test(test_no_room_for_list),
        cmocka_unit_test(test_proof_not_finite),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
