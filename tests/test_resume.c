/* Stopped and continued runs: the same bits as one that was never stopped. */
#include "resume_test.h"

#include "folder_test.h"

/* 40 steps against 17 and 23 -------------------------------------------------------------- */

typedef struct variant {
    accrue_dtype compute;
    accrue_optimizer optimizer;
    accrue_tail tail;
    accrue_loss_normalization normalization;
    int64_t stop; /* optimizer steps before the first run ends */
    double lr;    /* 0: 1e-2 */
} variant;

static accrue_train_options options_of(const variant *v, const char *out)
{
    accrue_train_options o = tiny_options(out);

    o.total_seq_len = 71; /* a row each: 54 micro-batches an epoch */
    o.ttt_steps = 2;
    o.epochs = 4;
    o.max_steps = 40;
    o.scheduler_total_steps = 44;
    o.checkpoint_freq = 0.4;
    o.compute = v->compute;
    o.accumulation_tail = v->tail;
    o.window.optimizer = v->optimizer;
    o.window.loss_normalization = v->normalization;
    o.window.scheduler = ACCRUE_SCHEDULE_COSINE;
    o.window.lr = v->lr > 0 ? v->lr : 1e-2;
    o.window.gradient_accumulation_steps = 4;
    return o;
}

static void compare(const variant *v, const char *name)
{
    char *straight = acr_sprintf("%s/%s", folder, name);
    char *parts = acr_sprintf("%s/%s-parts", folder, name);
    accrue_train_options o = options_of(v, straight);
    accrue_error e = {0};
    logbook whole = {0}, continued = {0};

    assert_ok(accrue_train(&o, write_log, &whole, &e), &e);
    assert_int_equal(last_step(&whole), 40);
    o.save_path = parts;
    o.max_steps = v->stop;
    assert_ok(accrue_train(&o, write_log, &continued, &e), &e);
    assert_int_equal(last_step(&continued), v->stop);
    assert_int_equal(continued.resumed, 0);
    o.max_steps = 40;
    assert_ok(accrue_train(&o, write_log, &continued, &e), &e);
    assert_int_equal(continued.resumed, 1);
    assert_same_log(&whole, &continued);
    assert_same_tree(straight, parts);
    acr_free(whole.records);
    acr_free(continued.records);
    acr_free(straight);
    acr_free(parts);
}

/* An epoch has 13 steps under `drop` and 14 under `step`: 17 is in the second one, 26 and 28 are at
 * the end of it. */
static void a16_17_and_23_steps_are_40(void **state)
{
    const accrue_dtype computes[] = {ACCRUE_F32, ACCRUE_BF16, ACCRUE_F64};

    (void)state;
    for (int i = 0; i < 12; i++) {
        variant v = {.compute = computes[i % 3],
                     .optimizer = i / 3 % 2 ? ACCRUE_MUON : ACCRUE_ADAMW,
                     .tail = i / 6 % 2 ? ACCRUE_TAIL_STEP : ACCRUE_TAIL_DROP,
                     .stop = 17};
        char name[32];
        v.normalization =
            (i / 6 + i / 3 + i) % 2 ? ACCRUE_NORMALIZE_TOKEN : ACCRUE_NORMALIZE_MICROBATCH;
        snprintf(name, sizeof name, "run%d", i);
        compare(&v, name);
    }
}

static void a16_between_epochs(void **state)
{
    const variant variants[] = {
        {ACCRUE_F32, ACCRUE_MUON, ACCRUE_TAIL_DROP, ACCRUE_NORMALIZE_TOKEN, 26, 0},
        {ACCRUE_BF16, ACCRUE_ADAMW, ACCRUE_TAIL_STEP, ACCRUE_NORMALIZE_MICROBATCH, 28, 0},
        {ACCRUE_F64, ACCRUE_MUON, ACCRUE_TAIL_STEP, ACCRUE_NORMALIZE_TOKEN, 14, 0},
        /* The epoch ends worse than where it was cut, which was the best so far. */
        {ACCRUE_F32, ACCRUE_ADAMW, ACCRUE_TAIL_DROP, ACCRUE_NORMALIZE_TOKEN, 30, 1.0},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(variants); i++) {
        char name[32];
        snprintf(name, sizeof name, "edge%d", i);
        compare(&variants[i], name);
    }
}

/* Stopped anywhere ------------------------------------------------------------------------ */

/* Few rows, many boundaries: 3 windows an epoch, of which the last is a tail of one. */
static accrue_train_options short_options(const char *out)
{
    accrue_train_options o = tiny_options(out);

    o.total_seq_len = 71;
    o.ttt_steps = 2;
    o.epochs = 3;
    o.checkpoint_freq = 0.4;
    o.compute = ACCRUE_F32;
    o.accumulation_tail = ACCRUE_TAIL_STEP;
    o.window.optimizer = ACCRUE_MUON;
    o.window.scheduler = ACCRUE_SCHEDULE_LINEAR;
    o.window.lr = 1e-2;
    o.window.gradient_accumulation_steps = 2;
    o.check_bytes = 0; /* which opens every file of the data set */
    o.batch_plan = short_plan(folder, 5);
    return o;
}

/* What was saved on request and is the newest stays; a run that nobody asked has no such folder. */
static void remove_interim(const char *out)
{
    for (int i = 0; i < 8; i++) {
        char *dir = acr_sprintf("%s/%d", out, i);
        acr_training_state s;
        if (!acr_training_state_read(&s, dir, NULL) && s.interim)
            shell(acr_sprintf("rm -r '%s' '%s'/epoch%d_*", dir, out, i));
        acr_free(dir);
    }
}

static void stop_everywhere(accrue_train_options o, const char *name, int answer, int64_t stride)
{
    char *straight = acr_sprintf("%s/%s", folder, name);
    accrue_error e = {0};
    logbook whole = {0};

    o.save_path = straight;
    assert_ok(accrue_train(&o, write_log, &whole, &e), &e);
    for (int64_t stop = 1; stop <= whole.events; stop += stride) {
        char *out = acr_sprintf("%s/%s-%lld", folder, name, (long long)stop);
        logbook l = {.stop_at = stop, .answer = answer};
        accrue_status st = ACCRUE_OK;
        o.save_path = out;
        st = accrue_train(&o, write_log, &l, &e);
        l.stop_at = 0;
        if (answer == ACCRUE_CANCEL)
            assert_fails(st, ACCRUE_ECANCELED, &e, NULL);
        else if (st && answer != ACCRUE_SAVE)
            assert_fails(st, ACCRUE_ECANCELED, &e, "stopped as asked, at optimizer step ", NULL);
        if (answer != ACCRUE_SAVE && stop < whole.events - 1)
            assert_int_equal(st, ACCRUE_ECANCELED);
        if (st)
            assert_ok(accrue_train(&o, write_log, &l, &e), &e);
        assert_same_log(&whole, &l);
        remove_interim(out);
        assert_same_tree(straight, out);
        acr_free(l.records);
        remove_folder(out);
    }
    acr_free(whole.records);
    acr_free(straight);
}

static void test_stopped_everywhere(void **state)
{
    accrue_train_options o = short_options(NULL);

    (void)state;
    stop_everywhere(o, "every", ACCRUE_CANCEL, 1);
    o.checkpoint_freq = 1;
    o.save_best = true;
    o.window.lr = 0.3; /* the best is not the last */
    stop_everywhere(o, "best", ACCRUE_CANCEL, 2);
    o.save_best = false;
    o.keep = 1;
    stop_everywhere(o, "kept", ACCRUE_CANCEL, 2);
    o.keep = 0;
    o.window.lr = 1e-2;
    o.max_steps = 7; /* the last epoch is cut short, and the best so far */
    stop_everywhere(o, "cut", ACCRUE_CANCEL, 1);
    acr_free((void *)(uintptr_t)o.batch_plan);
}

/* Asked to save and stop, to give the window up and stop, or to save and go on: at any event. */
static void test_asked_everywhere(void **state)
{
    static const char *const names[] = {"save", "stop", "give-up"};
    accrue_train_options o = short_options(NULL);

    (void)state;
    for (int answer = ACCRUE_SAVE; answer <= ACCRUE_GIVE_UP_AND_STOP; answer++) {
        char name[32];
        snprintf(name, sizeof name, "%s-every", names[answer - ACCRUE_SAVE]);
        stop_everywhere(o, name, answer, 1);
    }
    o.checkpoint_freq = 2;
    stop_everywhere(o, "between", ACCRUE_SAVE_AND_STOP, 1);
    o.checkpoint_freq = 1;
    o.save_best = true;
    o.window.lr = 0.3;
    stop_everywhere(o, "stop-best", ACCRUE_GIVE_UP_AND_STOP, 1);
    stop_everywhere(o, "save-best", ACCRUE_SAVE, 1);
    o.save_best = false;
    o.window.lr = 1e-2;
    o.max_steps = 7;
    stop_everywhere(o, "stop-cut", ACCRUE_SAVE_AND_STOP, 1);
    acr_free((void *)(uintptr_t)o.batch_plan);
}

/* Again and again, a little further each time. */
static void test_stopped_again_and_again(void **state)
{
    char *straight = acr_sprintf("%s/once", folder), *out = acr_sprintf("%s/often", folder);
    accrue_train_options o = short_options(straight);
    accrue_error e = {0};
    logbook whole = {0}, l = {0};
    int stops = 0;

    (void)state;
    o.checkpoint_freq = 0.01; /* after every step */
    assert_ok(accrue_train(&o, write_log, &whole, &e), &e);
    o.save_path = out;
    for (accrue_status st = ACCRUE_ECANCELED; st; stops += st != ACCRUE_OK) {
        assert_true(stops < 100);
        l.events = 0;
        l.stop_at = 8; /* with fewer no part gets beyond a validation */
        st = accrue_train(&o, write_log, &l, &e);
        if (st)
            assert_fails(st, ACCRUE_ECANCELED, &e, NULL);
    }
    assert_true(stops > 5);
    assert_same_log(&whole, &l);
    assert_same_tree(straight, out);
    acr_free(l.records);
    acr_free(whole.records);
    acr_free((void *)(uintptr_t)o.batch_plan);
    acr_free(straight);
    acr_free(out);
}

/* Twenty kills, at any instruction; a run that gets through between two begins anew. */
static void a16_killed_twenty_times(void **state)
{
    char *straight = acr_sprintf("%s/alive", folder), *out = acr_sprintf("%s/killed", folder);
    accrue_train_options o = short_options(straight);
    accrue_error e = {0};
    double seconds = acr_seconds();
    uint64_t starts = 0;
    int kills = 0;

    (void)state;
    o.checkpoint_freq = 0.01;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    seconds = acr_seconds() - seconds;
    o.save_path = out;
    for (; kills < 20; starts++) {
        double share = (double)(acr_random_u64(7, ACR_RANDOM_INIT, 0, starts) % 1000) / 1000;
        assert_true(starts < 1000);
        if (kill_during(&o, 0.4 * share * seconds)) {
            kills++;
            continue;
        }
        assert_same_tree(straight, out);
        remove_tree(out);
    }
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    assert_same_tree(straight, out);
    acr_free((void *)(uintptr_t)o.batch_plan);
    acr_free(straight);
    acr_free(out);
}

static void test_finished(void **state)
{
    char *out = acr_sprintf("%s/finished", folder), *copy = acr_sprintf("%s/before", folder);
    accrue_train_options o = short_options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    for (int64_t limit = 0; limit <= 7; limit += 7) { /* whole epochs, and one cut short */
        o.max_steps = limit;
        o.no_resume = true;
        assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
        o.no_resume = false;
        copy_tree(out, copy);
        assert_ok(accrue_train(&o, tell, &t, &e), &e);
        assert_notice(&t, "is finished");
        assert_int_equal(t.micro_batches + t.validations + t.n_saved, 0);
        assert_same_tree(copy, out);
        remove_tree(copy);
        remove_tree(out);
        forget(&t);
    }
    acr_free((void *)(uintptr_t)o.batch_plan);
    acr_free(copy);
    acr_free(out);
}

/* Counters -------------------------------------------------------------------------------- */

/* Beyond what 16-bit floats hold exactly, and beyond 24 bits. */
static void test_large_counters(void **state)
{
    const int64_t steps[] = {100001, (INT64_C(1) << 24) + 1, (INT64_C(1) << 53) + 1};
    char *out = acr_sprintf("%s/large", folder), *dir = acr_sprintf("%s/large/0", folder);
    accrue_train_options o = short_options(out);
    accrue_error e = {0};

    (void)state;
    o.window.scheduler = ACCRUE_SCHEDULE_NONE;
    o.seed = UINT64_MAX - 1;
    for (int i = 0; i < ACR_COUNT(steps); i++) {
        acr_resume found = {0};
        accrue_run *run = NULL, *again = NULL;
        acr_window_counters c = {.micro_batches = 4 * steps[i],
                                 .global_step = steps[i],
                                 .schedule_step = steps[i] + 1,
                                 .empty = 3};
        o.no_resume = true;
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        acr_window_set_counters(run->window, &c);
        assert_ok(acr_run_epoch_from(run, 0, 2, &e), &e);
        assert_ok(accrue_run_save(run, "0", &e), &e);
        accrue_run_free(run);
        o.no_resume = false;
        assert_ok(acr_resume_find(&found, &o, &e), &e);
        assert_string_equal(found.dir, dir);
        assert_ok(accrue_run_open(&again, &o, NULL, NULL, &e), &e);
        assert_ok(acr_run_load(again, &found, &e), &e);
        c = acr_window_get_counters(again->window);
        assert_int_equal(c.global_step, steps[i]);
        assert_int_equal(c.micro_batches, 4 * steps[i]);
        assert_int_equal(c.schedule_step, steps[i] + 1);
        assert_int_equal(c.empty, 3);
        accrue_run_free(again);
        acr_resume_free(&found);
    }
    acr_free((void *)(uintptr_t)o.batch_plan);
    acr_free(dir);
    acr_free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a16_17_and_23_steps_are_40),
        cmocka_unit_test(a16_between_epochs),
        cmocka_unit_test(test_stopped_everywhere),
        cmocka_unit_test(test_asked_everywhere),
        cmocka_unit_test(test_stopped_again_and_again),
        cmocka_unit_test(a16_killed_twenty_times),
        cmocka_unit_test(test_finished),
        cmocka_unit_test(test_large_counters),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
