/* Saves in the background: what they hold while training goes on; what they do without room. */
#include "save_test.h"

/* Steps taken while a save is held up ----------------------------------------------------- */

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

static void a15_no_room_to_begin(void **state)
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
static void a15_full_for_a_while(void **state)
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

/* Only behind lr_step is the run what a checkpoint says that it is. */
static void test_at_the_wrong_time(void **state)
{
    char *out = acr_sprintf("%s/wrong", folder);
    accrue_train_options o = options(out);
    accrue_run *run = NULL;
    accrue_error e = {0};
    bool stepped = false;

    (void)state;
    reset_disk();
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    while (!accrue_window_at_boundary(run->window))
        assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
    assert_fails(accrue_run_save(run, "0", &e), ACCRUE_ESTATE, &e, "save behind lr_step", NULL);
    assert_ok(accrue_run_clip(run, NULL, &e), &e);
    assert_fails(accrue_run_save(run, "0", &e), ACCRUE_ESTATE, &e, "save behind lr_step", NULL);
    assert_ok(accrue_run_step(run, &stepped, &e), &e);
    assert_true(stepped);
    assert_fails(accrue_run_save(run, "0", &e), ACCRUE_ESTATE, &e, "save behind lr_step", NULL);
    accrue_run_lr_step(run);
    assert_ok(accrue_run_save(run, "0", &e), &e);
    accrue_run_zero_grad(run);
    assert_ok(accrue_run_save(run, "0", &e), &e);
    accrue_run_free(run);
    drop(&o);
    acr_free(out);
}

static void leave_out(accrue_run *run, int64_t row)
{
    accrue_fault f = {.kind = ACCRUE_FAULT_NONFINITE, .row = row, .count = 1};
    accrue_error e = {0};

    snprintf(f.file, sizeof f.file, "d\377/hs_%lld.safetensors", (long long)row);
    snprintf(f.message, sizeof f.message, "row %lld: d\377 is bad", (long long)row);
    assert_ok(acr_epochs_judge(&run->epochs, &run->opt, &(acr_sweep){0}, &f, 0, &e), &e);
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
    shell(acr_sprintf(
        "grep -c '^{\"row\":[12],.*d.*xff/hs_.*: d.*xff is bad.*}$' '%s' | grep -qx 2", list));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holds_its_moment),  cmocka_unit_test(test_no_memory_for_a_copy),
        cmocka_unit_test(a15_no_room_to_begin),   cmocka_unit_test(a15_full_for_a_while),
        cmocka_unit_test(test_best_not_saved),    cmocka_unit_test(test_at_the_wrong_time),
        cmocka_unit_test(test_no_thread),         cmocka_unit_test(test_freed_while_saving),
        cmocka_unit_test(test_list_without_room), cmocka_unit_test(test_no_room_for_list),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
