/* Files, folders and locks that come and go around a run, and what a run keeps that a row ends. */
#include "bad_rows_test.h"

#include "folder_test.h"

#include <dirent.h>
#include <sys/file.h>

static int take_away(void *states)
{
    char *aside = acr_sprintf("%s.aside", (char *)states);
    int failed = rename(states, aside);

    acr_free(aside);
    return failed;
}

static int bring_back(void *states)
{
    char *aside = acr_sprintf("%s.aside", (char *)states);
    int failed = rename(aside, states);

    acr_free(aside);
    return failed;
}

/* A folder that is away when rows are read and there when it is asked for: an outage that is over.
 * Where it flickers, it is away again behind the second question. */
static struct {
    char *states; /* NULL: none */
    bool flickers, is_back;
} outage;

DIR *opendir(const char *path)
{
    DIR *d = NULL;
    int fd = -1;
    bool ours = outage.states && strcmp(path, outage.states) == 0;

    if (ours && !outage.is_back)
        assert_int_equal(bring_back(outage.states), 0);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    d = fd < 0 ? NULL : fdopendir(fd);
    if (ours && outage.is_back && outage.flickers)
        assert_int_equal(take_away(outage.states), 0);
    if (ours)
        outage.is_back = !outage.is_back;
    if (ours && !outage.is_back && !outage.flickers)
        outage.states = NULL;
    return d;
}

static int begin_outage(void *states)
{
    outage.states = states;
    outage.is_back = false;
    return take_away(states);
}

/* Two epochs of two windows of three micro-batches; row 40 is in the second window of the first. */
static const char with_40[] =
    "[[0,1],[2,3],[4,5],[40,6],[8,7],[10,9]],[[1,2],[3,4],[5,6],[7,8],[9,10],[11,0]]";
static const char without_40[] =
    "[[0,1],[2,3],[4,5],[6],[8,7],[10,9]],[[1,2],[3,4],[5,6],[7,8],[9,10],[11,0]]";
static const char val_with_40[] = "[[50,40],[51]],[[40],[50,51]]";
static const char val_without_40[] = "[[50],[51]],[[50,51]]";

/* A run in which something is done once, after an event. */
typedef struct scene {
    logbook log;
    told told;
    accrue_event_kind kind;
    int64_t epoch, micro_batch; /* of the event; -1: any */
    int (*act)(void *what);
    void *what;
    bool done;
} scene;

static int play(const accrue_event *e, void *payload)
{
    scene *s = payload;
    int answer = write_log(e, &s->log);

    if (e->kind == ACCRUE_EVENT_NOTICE || e->kind == ACCRUE_EVENT_CHECKPOINT)
        tell(e, &s->told);
    if (!s->done && s->act && e->kind == s->kind && (s->epoch < 0 || e->epoch == s->epoch) &&
        (s->micro_batch < 0 || e->micro_batch == s->micro_batch)) {
        s->done = true;
        assert_int_equal(s->act(s->what), 0);
    }
    return answer;
}

static void end_scene(scene *s)
{
    acr_free(s->log.records);
    forget(&s->told);
    memset(s, 0, sizeof *s);
}

static int vanish(void *data)
{
    remove_states(data, 40);
    return 0;
}

static void put_back(const char *data, int64_t row)
{
    char *from = states_of(TINY "/data", row), *to = states_of(data, row);

    shell(acr_sprintf("cp '%s' '%s' && chmod u+w '%s'", from, to, to));
    acr_free(from);
    acr_free(to);
}

static bool is_listed(const char *out, const char *words)
{
    char *path = acr_sprintf("%s/skipped_samples.jsonl", out);
    acr_map map = {0};
    bool is = false;

    if (acr_is_file(path)) {
        assert_int_equal(acr_map_open(&map, path, NULL), ACCRUE_OK);
        is = memmem(map.data, map.bytes, words, strlen(words)) != NULL;
        acr_map_close(&map);
    }
    acr_free(path);
    return is;
}

/* Missing rows ---------------------------------------------------------------------------- */

static void a_missing_row_moves_no_other(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/dry", folder);
    char *whole = acr_sprintf("%s/whole.json", folder), *less = acr_sprintf("%s/less.json", folder);
    accrue_train_options o = tiny_options(out);
    accrue_train_plan a, b;
    accrue_error e = {0};

    (void)state;
    o.data_path = data;
    o.epochs = 3;
    o.window.gradient_accumulation_steps = 4;
    o.dump_batch_plan = whole;
    assert_ok(accrue_train_dry_run(&a, &o, NULL, NULL, &e), &e);
    remove_folder(out);
    remove_states(data, 9);
    remove_states(data, 57);
    out = acr_sprintf("%s/dry", folder);
    o.save_path = out;
    o.dump_batch_plan = less;
    o.on_missing = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_train_dry_run(&b, &o, NULL, NULL, &e), &e);
    shell(acr_sprintf("cmp '%s' '%s'", whole, less));
    assert_int_equal(a.missing_rows, 0);
    assert_int_equal(b.missing_rows, 2);
    assert_int_equal(b.bad_rows, 0);
    assert_int_equal(b.train_rows, 53);
    assert_int_equal(b.val_rows, 5);
    assert_int_equal(a.total_steps, b.total_steps);
    assert_int_equal(a.first_epoch_micro_batches, b.first_epoch_micro_batches);
    assert_int_equal(a.schedule_total_steps, b.schedule_total_steps);
    acr_free(whole);
    acr_free(less);
    remove_folder(data);
    remove_folder(out);
}

/* Gone before the first step or under the run: the same bits as a plan without the row. */
static void a_missing_row_is_gone_and_nothing_else(void **state)
{
    char *with = plan_of(folder, "with.json", with_40, val_with_40);
    char *less = plan_of(folder, "less.json", without_40, val_without_40);

    (void)state;
    for (int i = 0; i < 8; i++) {
        char *data = copy_data(folder, "data"), *a = acr_sprintf("%s/a", folder);
        char *b = acr_sprintf("%s/b", folder);
        accrue_train_options o = plan_options(less, a);
        scene clean = {0}, gone = {.kind = ACCRUE_EVENT_START, .epoch = -1, .micro_batch = -1};
        accrue_error e = {0};
        int64_t records = 0, none = 0;
        o.window.loss_normalization = i % 2 ? ACCRUE_NORMALIZE_TOKEN : ACCRUE_NORMALIZE_MICROBATCH;
        assert_ok(accrue_train(&o, play, &clean, &e), &e);
        if (i / 2 % 2) {
            gone.act = vanish;
            gone.what = data;
        } else {
            remove_states(data, 40);
        }
        o.data_path = data;
        o.batch_plan = with;
        o.save_path = b;
        o.on_missing = i / 4 ? ACCRUE_POLICY_WARN : ACCRUE_POLICY_SKIP;
        assert_ok(accrue_train(&o, play, &gone, &e), &e);
        keep_results(&clean.log, &none);
        keep_results(&gone.log, &records);
        assert_int_equal(records, 1);
        assert_same_log(&clean.log, &gone.log);
        assert_same_file(a, b, "0/state.tensors");
        assert_same_file(a, b, "1/state.tensors");
        assert_same_file(a, b, "1/val_metrics.json");
        assert_list(b, 1, "\"row\":40,\"kind\":\"missing\"", "hs_40.safetensors");
        if (i / 4 || gone.act)
            assert_notice(&gone.told, "left out: row 40: ");
        if (!gone.act)
            assert_notice(&gone.told, "1 of 60 rows have no hidden states and are left out (rows "
                                      "40)");
        end_scene(&clean);
        end_scene(&gone);
        remove_folder(data);
        remove_folder(a);
        remove_folder(b);
    }
    acr_free(with);
    acr_free(less);
}

static void a_row_that_appears_stays_out(void **state)
{
    char *data = copy_data(folder, "data"), *a = acr_sprintf("%s/a", folder);
    char *b = acr_sprintf("%s/b", folder), *plan = plan_of(folder, "p.json", with_40, val_with_40);
    accrue_train_options o = plan_options(plan, a);
    scene straight = {0}, parts = {.log = {.stop_at = 6, .answer = ACCRUE_SAVE_AND_STOP}};
    accrue_error e = {0};

    (void)state;
    remove_states(data, 40);
    o.data_path = data;
    o.on_missing = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_train(&o, play, &straight, &e), &e);
    o.save_path = b;
    assert_fails(accrue_train(&o, play, &parts, &e), ACCRUE_ECANCELED, &e, NULL);
    assert_true(is_listed(b, "\"row\":40,\"kind\":\"missing\""));
    put_back(data, 40);
    parts.log.stop_at = 0;
    o.on_missing = ACCRUE_POLICY_RAISE; /* nothing is missing now */
    assert_ok(accrue_train(&o, play, &parts, &e), &e);
    assert_int_equal(parts.log.resumed, 1);
    assert_same_log(&straight.log, &parts.log);
    assert_same_file(a, b, "1/state.tensors");
    assert_same_file(a, b, "1/skipped_samples.jsonl");
    end_scene(&straight);
    end_scene(&parts);
    acr_free(plan);
    remove_folder(data);
    remove_folder(a);
    remove_folder(b);
}

static void a_row_that_vanishes_between_runs_obeys_on_missing(void **state)
{
    char *data = copy_data(folder, "data"), *a = acr_sprintf("%s/a", folder);
    char *b = acr_sprintf("%s/b", folder), *plan = plan_of(folder, "p.json", with_40, val_with_40);
    char *path = states_of(data, 40);
    accrue_train_options o = plan_options(plan, a);
    scene straight = {.kind = ACCRUE_EVENT_STEP, .epoch = 0, .micro_batch = 3};
    scene parts = {.log = {.stop_at = 6, .answer = ACCRUE_SAVE_AND_STOP}};
    accrue_error e = {0};

    (void)state;
    remove_states(data, 40);
    o.on_missing = ACCRUE_POLICY_SKIP;
    o.data_path = data;
    assert_ok(accrue_train(&o, play, &straight, &e), &e);
    put_back(data, 40);
    o.save_path = b;
    assert_fails(accrue_train(&o, play, &parts, &e), ACCRUE_ECANCELED, &e, NULL);
    assert_false(is_listed(b, "row"));
    remove_states(data, 40);
    parts.log.stop_at = 0;
    o.on_missing = ACCRUE_POLICY_RAISE;
    assert_fails(accrue_train(&o, play, &parts, &e), ACCRUE_EIO, &e, "row 40", path,
                 "no hidden states", NULL);
    o.on_missing = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_train(&o, play, &parts, &e), &e);
    assert_int_equal(parts.log.resumed, 1);
    assert_same_log(&straight.log, &parts.log);
    assert_same_file(a, b, "1/state.tensors");
    assert_same_file(a, b, "1/skipped_samples.jsonl");
    end_scene(&straight);
    end_scene(&parts);
    acr_free(path);
    acr_free(plan);
    remove_folder(data);
    remove_folder(a);
    remove_folder(b);
}

/* Nothing to train on --------------------------------------------------------------------- */

static void rows_that_all_turn_out_bad_stop_the_run(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    char *plan = NULL, *saved = acr_sprintf("%s/0", out);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};

    (void)state;
    for (int64_t row = 0; row < 54; row++)
        row % 2 ? spoil_states(data, row) : cut_states(data, row);
    o.data_path = data;
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.max_bad = 60;
    o.check_bytes = 0;
    o.checkpoint_freq = 0.1;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "0 of the 54 training rows have a supervised token", NULL);
    assert_false(acr_is_dir(saved));
    /* The row that is left is in a dropped tail, and so never read. */
    put_back(data, 5);
    plan = plan_of(folder, "plan.json", "[[0],[1],[2],[3],[5]]", "");
    o.batch_plan = plan;
    o.total_seq_len = 142;
    o.window.gradient_accumulation_steps = 2;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "epoch 1: 0 optimizer steps, at least 1 expected: 4 of 60 rows are left out",
                 "row 3", NULL);
    assert_false(acr_is_dir(saved));
    acr_free(plan);
    acr_free(saved);
    remove_folder(data);
    remove_folder(out);
}

/* Known before the validation or found by it: --save-best does not wait for a best. */
static void a_run_that_loses_its_validation_rows_is_saved(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
        accrue_train_options o = tiny_options(out);
        scene s = {0};
        accrue_error e = {0};
        for (int64_t row = 54; row < 60; row++)
            i ? spoil_states(data, row) : remove_states(data, row);
        o.data_path = data;
        o.on_missing = o.on_bad = ACCRUE_POLICY_SKIP;
        o.max_bad = 6;
        o.check_bytes = 0;
        o.save_best = true;
        assert_ok(accrue_train(&o, play, &s, &e), &e);
        assert_int_equal(s.told.n_saved, 1);
        if (i)
            assert_notice(&s.told, "the validation has no result");
        assert_list(out, 6, "\"row\":54", "\"row\":59");
        end_scene(&s);
        remove_folder(data);
        remove_folder(out);
    }
}

/* Outages --------------------------------------------------------------------------------- */

static int empty(void *states)
{
    return take_away(states) || mkdir(states, 0777);
}

/* Whatever the policies say: the folder is named, no row is listed, the steps are kept. */
static void a_folder_that_is_gone_stops_the_run(void **state)
{
    char *plan = plan_of(folder, "plan.json", with_40, val_with_40);

    (void)state;
    for (int i = 0; i < 4; i++) {
        char *data = copy_data(folder, "data"), *a = acr_sprintf("%s/a", folder);
        char *b = acr_sprintf("%s/b", folder), *states = acr_sprintf("%s/hidden_states", data);
        accrue_train_options o = plan_options(plan, a);
        scene straight = {0}, parts = {.kind = ACCRUE_EVENT_STEP, .epoch = 1, .micro_batch = 3};
        accrue_error e = {0};
        o.data_path = data;
        o.checkpoint_freq = 1;
        o.max_bad = 60;
        o.on_missing = o.on_bad = i % 2 ? ACCRUE_POLICY_SKIP : ACCRUE_POLICY_RAISE;
        assert_ok(accrue_train(&o, play, &straight, &e), &e);
        parts.act = i / 2 ? empty : take_away;
        parts.what = states;
        o.save_path = b;
        assert_fails(accrue_train(&o, play, &parts, &e), ACCRUE_EIO, &e, states,
                     i / 2 ? "the folder of hidden states is empty"
                           : "the folder of hidden states cannot be read",
                     NULL);
        assert_null(strstr(e.message, "hs_"));
        assert_int_equal(parts.told.saved_micro_batch[parts.told.n_saved - 1], 3);
        assert_false(is_listed(b, "row"));
        if (i / 2)
            assert_int_equal(rmdir(states), 0);
        assert_int_equal(bring_back(states), 0);
        assert_ok(accrue_train(&o, play, &parts, &e), &e);
        assert_same_log(&straight.log, &parts.log);
        assert_same_tree(a, b);
        end_scene(&straight);
        end_scene(&parts);
        acr_free(states);
        remove_folder(data);
        remove_folder(a);
        remove_folder(b);
    }
    acr_free(plan);
}

static void a_short_outage_is_no_fault_of_a_row(void **state)
{
    char *plan = plan_of(folder, "plan.json", with_40, val_with_40);

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *data = copy_data(folder, "data"), *a = acr_sprintf("%s/a", folder);
        char *b = acr_sprintf("%s/b", folder), *states = acr_sprintf("%s/hidden_states", data);
        accrue_train_options o = plan_options(plan, a);
        scene straight = {0}, parts = {.kind = ACCRUE_EVENT_MICRO_BATCH, .micro_batch = 3};
        accrue_error e = {0};
        int64_t none = 0;
        parts.act = begin_outage;
        parts.what = states;
        o.data_path = data;
        o.on_missing = o.on_bad = i ? ACCRUE_POLICY_SKIP : ACCRUE_POLICY_RAISE;
        assert_ok(accrue_train(&o, play, &straight, &e), &e);
        o.save_path = b;
        assert_ok(accrue_train(&o, play, &parts, &e), &e);
        assert_null(outage.states);
        assert_notice(&parts.told, "it can be read now: row ");
        keep_results(&straight.log, &none); /* micro-batches of that window may have run twice */
        keep_results(&parts.log, &none);
        assert_int_equal(none, 0);
        assert_same_log(&straight.log, &parts.log);
        assert_same_tree(a, b);
        end_scene(&straight);
        end_scene(&parts);
        acr_free(states);
        remove_folder(data);
        remove_folder(a);
        remove_folder(b);
    }
    acr_free(plan);
}

/* Rows that are there whenever they are looked for, and never when they are read. */
static void a_folder_that_flickers_stops_the_run(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    char *states = acr_sprintf("%s/hidden_states", data);
    char *plan = plan_of(folder, "plan.json", with_40, "");
    accrue_train_options o = plan_options(plan, out);
    scene s = {.kind = ACCRUE_EVENT_MICRO_BATCH, .micro_batch = 3, .act = begin_outage};
    accrue_error e = {0};

    (void)state;
    s.what = states;
    outage.flickers = true;
    o.data_path = data;
    o.on_missing = o.on_bad = ACCRUE_POLICY_SKIP;
    assert_fails(accrue_train(&o, play, &s, &e), ACCRUE_EIO, &e, "row ", "hs_", "cannot open",
                 NULL);
    assert_notice(&s.told, "it can be read now: row ");
    assert_false(is_listed(out, "row"));
    outage.states = NULL;
    outage.flickers = false;
    end_scene(&s);
    acr_free(states);
    acr_free(plan);
    remove_folder(data);
    remove_folder(out);
}

static int lock_40(void *ctx)
{
    int *fd = ctx;
    char *path = acr_sprintf("%s/data/hidden_states/hs_40.safetensors.lock", folder);

    *fd = open(path, O_RDWR | O_CREAT, 0666);
    acr_free(path);
    return *fd < 0 ? -1 : flock(*fd, LOCK_EX);
}

/* Found by the loader, or by the look at the other rows of a window that has a bad one. */
static void a_lock_that_is_held_stops_the_run_and_is_not_listed(void **state)
{
    char *plan = plan_of(folder, "plan.json", with_40, val_with_40);

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
        accrue_train_options o = plan_options(plan, out);
        int fd = -1;
        scene s = {.kind = ACCRUE_EVENT_START,
                   .epoch = -1,
                   .micro_batch = -1,
                   .act = lock_40,
                   .what = &fd};
        accrue_error e = {0};
        o.data_path = data;
        o.on_missing = o.on_bad = ACCRUE_POLICY_SKIP;
        o.lock_timeout = 0;
        o.check_bytes = 0;
        o.max_bad = 60;
        if (i)
            spoil_states(data, 8);
        assert_fails(accrue_train(&o, play, &s, &e), ACCRUE_EIO, &e, "hs_40.safetensors.lock",
                     "row 40", "a writer holds the lock", NULL);
        assert_int_equal(s.told.saved_micro_batch[s.told.n_saved - 1], 3);
        assert_false(is_listed(out, "\"row\":40"));
        assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EIO, &e, "row 40",
                     "a writer holds the lock", NULL);
        close(fd);
        assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
        assert_false(is_listed(out, "\"row\":40"));
        assert_int_equal(is_listed(out, "\"row\":8,"), i);
        end_scene(&s);
        remove_folder(data);
        remove_folder(out);
    }
    acr_free(plan);
}

/* What a run keeps that a row ends -------------------------------------------------------- */

/* In mid-epoch, before the first step of an epoch whose predecessor was not saved, and in a
 * validation: what was trained is there, and with the row repaired the run goes on as if nothing
 * had been. */
static void a_row_that_ends_a_run_costs_no_step(void **state)
{
    const struct {
        const char *train, *val;
        int64_t epoch, micro_batch;
    } cases[] = {
        {"[[0],[1],[2],[3]],[[4],[5],[40],[6]],[[7],[8],[9],[10]]", "[[50]],[[51]],[[50]]", 1, 2},
        {"[[0],[1],[2],[3]],[[4],[5],[6],[7]],[[8],[40],[9],[10]]", "[[50]],[[51]],[[50]]", 2, 0},
        {"[[0],[1],[2],[3]],[[4],[5],[6],[7]],[[8],[9],[10],[11]]", "[[50]],[[40]],[[50]]", 1, 4},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        char *data = copy_data(folder, "data"), *a = acr_sprintf("%s/a", folder);
        char *b = acr_sprintf("%s/b", folder);
        char *plan = plan_of(folder, "plan.json", cases[i].train, cases[i].val);
        accrue_train_options o = plan_options(plan, a);
        scene straight = {0}, parts = {0};
        accrue_error e = {0};
        char *saved = acr_sprintf("%s/%lld", b, (long long)cases[i].epoch);
        acr_training_state s;
        o.epochs = 3;
        o.window.gradient_accumulation_steps = 2;
        o.data_path = data;
        o.checkpoint_freq = 3; /* the first and the last epoch */
        o.check_bytes = 0;
        assert_ok(accrue_train(&o, play, &straight, &e), &e);
        o.save_path = b;
        spoil_states(data, 40);
        assert_fails(accrue_train(&o, play, &parts, &e), ACCRUE_EFORMAT, &e, "row 40",
                     "expected a finite number", NULL);
        assert_int_equal(parts.told.saved_micro_batch[parts.told.n_saved - 1],
                         cases[i].micro_batch);
        assert_ok(acr_manifest_check(saved, true, NULL, &e), &e);
        assert_ok(acr_training_state_read(&s, saved, &e), &e);
        assert_int_equal(s.epoch, cases[i].epoch);
        assert_int_equal(s.samples, cases[i].micro_batch);
        assert_int_equal(s.local_step, cases[i].micro_batch % 4);
        assert_false(s.concluded);
        assert_false(is_listed(b, "row")); /* it was not left out */
        put_back(data, 40);
        assert_ok(accrue_train(&o, play, &parts, &e), &e);
        assert_int_equal(parts.log.resumed, 1);
        assert_same_log(&straight.log, &parts.log);
        assert_same_tree(a, b);
        end_scene(&straight);
        end_scene(&parts);
        acr_free(saved);
        acr_free(plan);
        remove_folder(data);
        remove_folder(a);
        remove_folder(b);
    }
}

/* One too many is listed, so that the run goes on only where more of them are allowed. */
static void the_row_that_is_one_too_many_is_listed(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    char *plan = plan_of(folder, "plan.json", "[[0],[1],[2]],[[0],[40],[41]]", "");
    char *saved = acr_sprintf("%s/1", out);
    accrue_train_options o = plan_options(plan, out);
    accrue_error e = {0};

    (void)state;
    spoil_states(data, 40);
    cut_states(data, 41);
    o.data_path = data;
    o.checkpoint_freq = 1;
    o.window.gradient_accumulation_steps = 1;
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.check_bytes = 0;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "--max-bad 1 (1% of the",
                 "row 41", NULL);
    assert_list(out, 2, "\"row\":40", "\"row\":41");
    assert_list(saved, 2, "\"row\":40", "\"row\":41");
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "--max-bad 1 (1% of the",
                 "row 41", NULL);
    o.max_bad = 2;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    acr_free(saved);
    acr_free(plan);
    remove_folder(data);
    remove_folder(out);
}

static int block(void *out)
{
    char *aside = acr_sprintf("%s.aside", (char *)out);
    int failed = rename(out, aside);

    write_text(out, "a file where the folder was");
    acr_free(aside);
    return failed;
}

static void steps_that_cannot_be_saved_are_told_of(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    char *plan = plan_of(folder, "plan.json", "[[0],[1],[2],[40]]", "");
    accrue_train_options o = plan_options(plan, out);
    scene s = {.kind = ACCRUE_EVENT_STEP, .epoch = -1, .micro_batch = 2};
    accrue_error e = {0};

    (void)state;
    spoil_states(data, 40);
    s.act = block;
    s.what = out;
    o.epochs = 1;
    o.data_path = data;
    o.check_bytes = 0;
    o.checkpoint_freq = 1;
    o.window.gradient_accumulation_steps = 1;
    assert_fails(accrue_train(&o, play, &s, &e), ACCRUE_EFORMAT, &e, "row 40",
                 "expected a finite number", NULL);
    assert_notice(&s.told, "the steps since the last checkpoint are not saved: ");
    assert_notice(&s.told, out);
    end_scene(&s);
    acr_free(plan);
    remove_folder(data);
    assert_int_equal(unlink(out), 0);
    acr_free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_missing_row_moves_no_other),
        TEST(a_missing_row_is_gone_and_nothing_else),
        TEST(a_row_that_appears_stays_out),
        TEST(a_row_that_vanishes_between_runs_obeys_on_missing),
        TEST(rows_that_all_turn_out_bad_stop_the_run),
        TEST(a_run_that_loses_its_validation_rows_is_saved),
        TEST(a_folder_that_is_gone_stops_the_run),
        TEST(a_short_outage_is_no_fault_of_a_row),
        TEST(a_folder_that_flickers_stops_the_run),
        TEST(a_lock_that_is_held_stops_the_run_and_is_not_listed),
        TEST(a_row_that_ends_a_run_costs_no_step),
        TEST(the_row_that_is_one_too_many_is_listed),
        TEST(steps_that_cannot_be_saved_are_told_of),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
