/* Rows that cannot be used: stopped at, or left out without moving any other row. */
#include "bad_rows_test.h"

#include "folder_test.h"

/* The window without the row --------------------------------------------------------------- */

typedef enum fault { NONFINITE, CUT, ID, MASK, LENGTHS, VANISHED, N_FAULTS } fault;

static void spoil(const char *data, fault how, int64_t row)
{
    if (how == NONFINITE)
        spoil_states(data, row);
    else if (how == CUT)
        cut_states(data, row);
    else if (how == ID)
        spoil_column(data, false, row, 5, TINY_VOCAB);
    else if (how == MASK)
        spoil_column(data, true, row, 7, 2);
    else if (how == LENGTHS)
        shift_mask(data, row);
}

/* Two epochs of two windows of three micro-batches, two rows each, and a validation of two.  Row 40
 * is the bad one; where the fault takes a second row, it is 41, which is never used. */
static const char *const train_with[] = {
    /* first, middle and last in the second window of the first epoch */
    "[[0,1],[2,3],[4,5],[40,6],[8,7],[10,9]],[[1,2],[3,4],[5,6],[7,8],[9,10],[11,0]]",
    "[[0,1],[2,3],[4,5],[8,7],[6,40],[10,9]],[[1,2],[3,4],[5,6],[7,8],[9,10],[11,0]]",
    "[[0,1],[2,3],[4,5],[8,7],[10,9],[40,6]],[[1,2],[3,4],[5,6],[7,8],[9,10],[11,0]]",
    /* twice, and in the first window of the second epoch */
    "[[40,1],[2,3],[4,5],[8,7],[10,9],[6,0]],[[1,2],[3,40],[5,6],[7,8],[9,10],[11,0]]",
    "[[0,1],[2,3],[4,5],[8,7],[10,9],[6,11]],[[1,2],[3,4],[5,40],[7,8],[9,10],[11,0]]",
};
static const char *const train_without[] = {
    "[[0,1],[2,3],[4,5],[6],[8,7],[10,9]],[[1,2],[3,4],[5,6],[7,8],[9,10],[11,0]]",
    "[[0,1],[2,3],[4,5],[8,7],[6],[10,9]],[[1,2],[3,4],[5,6],[7,8],[9,10],[11,0]]",
    "[[0,1],[2,3],[4,5],[8,7],[10,9],[6]],[[1,2],[3,4],[5,6],[7,8],[9,10],[11,0]]",
    "[[1],[2,3],[4,5],[8,7],[10,9],[6,0]],[[1,2],[3],[5,6],[7,8],[9,10],[11,0]]",
    "[[0,1],[2,3],[4,5],[8,7],[10,9],[6,11]],[[1,2],[3,4],[5],[7,8],[9,10],[11,0]]",
};

static void assert_same_weights(const char *a, const char *b)
{
    const char *const files[] = {"0/model.safetensors", "0/state.tensors",
                                 "1/model.safetensors", "1/state.tensors",
                                 "1/val_metrics.json"};

    for (int i = 0; i < ACR_COUNT(files); i++)
        assert_same_file(a, b, files[i]);
}

/* Found before the first step or when it is first loaded, the row is gone and nothing else is. */
static void without(fault how, int where, accrue_loss_normalization normalization, bool lazy,
                    const char *word)
{
    char *data = copy_data(folder, "data"), *a = acr_sprintf("%s/a", folder);
    char *b = acr_sprintf("%s/b", folder);
    char *with = plan_of(folder, "with.json", train_with[where], "[[50,40],[51]],[[40],[50,51]]");
    char *less = plan_of(folder, "less.json", train_without[where], "[[50],[51]],[[50,51]]");
    accrue_train_options o = plan_options(less, a);
    logbook clean = {0}, skipped = {0};
    accrue_error e = {0};
    int64_t records = 0, none = 0;

    o.window.loss_normalization = normalization;
    assert_ok(accrue_train(&o, write_log, &clean, &e), &e);
    spoil(data, how, 40);
    o.data_path = data;
    o.batch_plan = with;
    o.save_path = b;
    o.check_bytes = lazy ? 0 : 1 << 30;
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.max_bad = 2;
    assert_ok(accrue_train(&o, write_log, &skipped, &e), &e);
    keep_results(&clean, &none);
    keep_results(&skipped, &records);
    assert_int_equal(none, 0);
    assert_int_equal(records, where == 3 ? 2 : 1);
    assert_same_log(&clean, &skipped);
    assert_same_weights(a, b);
    assert_list(b, how == LENGTHS ? 2 : 1, "\"row\":40", word);
    acr_free(clean.records);
    acr_free(skipped.records);
    acr_free(with);
    acr_free(less);
    remove_folder(data);
    remove_folder(a);
    remove_folder(b);
}

static void skipping_leaves_every_other_loss_as_it_was(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * ACR_COUNT(train_with); i++)
        without(i % 3 ? NONFINITE : CUT, i / 4,
                i % 2 ? ACCRUE_NORMALIZE_TOKEN : ACCRUE_NORMALIZE_MICROBATCH, i / 2 % 2,
                i % 3 ? "expected a finite number" : "are not within");
}

/* Each kind of fault, in the data set's columns too, which are read before the first step. */
static void a19_lengths_that_disagree_leave_the_pack_alone(void **state)
{
    (void)state;
    without(LENGTHS, 1, ACCRUE_NORMALIZE_TOKEN, false, "the length of loss_mask is");
    without(LENGTHS, 1, ACCRUE_NORMALIZE_MICROBATCH, true, "the length of loss_mask is");
}

static void a20_ids_and_masks_out_of_range_leave_the_pack_alone(void **state)
{
    (void)state;
    without(ID, 0, ACCRUE_NORMALIZE_TOKEN, false, "the id of token 5 is 96, expected 0 to 95");
    without(ID, 3, ACCRUE_NORMALIZE_TOKEN, true, "the id of token 5 is 96, expected 0 to 95");
    without(MASK, 2, ACCRUE_NORMALIZE_TOKEN, true, "loss_mask of token 7 is 2, expected 0 or 1");
}

/* A micro-batch that loses all its rows has weight 0 and counts for no mean: the short window of
 * two is that of the one micro-batch that is left. */
static void a_micro_batch_of_bad_rows_has_no_weight(void **state)
{
    const char *const with[] = {"[[0],[1],[2],[40],[3]]", "[[0],[1],[2],[3],[40]]"};

    (void)state;
    for (int i = 0; i < 8; i++) {
        char *data = copy_data(folder, "data"), *a = acr_sprintf("%s/a", folder);
        char *b = acr_sprintf("%s/b", folder);
        char *more = plan_of(folder, "with.json", with[i / 4], ""), *less = NULL;
        accrue_train_options o = plan_options(NULL, a);
        accrue_error e = {0};
        less = plan_of(folder, "less.json", "[[0],[1],[2],[3]]", "");
        o.batch_plan = less;
        o.window.clip_norm = 0; /* which would hide a wrong scale */
        o.epochs = 1;
        o.accumulation_tail = ACCRUE_TAIL_STEP;
        o.window.loss_normalization = i % 2 ? ACCRUE_NORMALIZE_TOKEN : ACCRUE_NORMALIZE_MICROBATCH;
        assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
        spoil_states(data, 40);
        o.data_path = data;
        o.batch_plan = more;
        o.save_path = b;
        o.check_bytes = i / 2 % 2 ? 0 : 1 << 30;
        o.on_bad = ACCRUE_POLICY_SKIP;
        assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
        assert_same_file(a, b, "0/model.safetensors");
        assert_same_file(a, b, "0/state.tensors");
        acr_free(more);
        acr_free(less);
        remove_folder(data);
        remove_folder(a);
        remove_folder(b);
    }
}

/* Packed epochs: the row keeps its place, so that nothing moves when it is found. */
static void packing_is_the_same_whenever_a_row_is_found(void **state)
{
    char *data = copy_data(folder, "data"), *a = acr_sprintf("%s/a", folder);
    char *b = acr_sprintf("%s/b", folder);
    accrue_train_options o = tiny_options(a);
    logbook early = {0}, late = {0};
    accrue_error e = {0};
    int64_t n = 0, m = 0;

    (void)state;
    spoil_states(data, 3);
    cut_states(data, 17);
    spoil_states(data, 59); /* a validation row */
    o.data_path = data;
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.max_bad = 3;
    o.epochs = 3;
    o.compute = ACCRUE_F32;
    o.window.gradient_accumulation_steps = 4;
    o.window.loss_normalization = ACCRUE_NORMALIZE_TOKEN;
    assert_ok(accrue_train(&o, write_log, &early, &e), &e);
    o.save_path = b;
    o.check_bytes = 0;
    assert_ok(accrue_train(&o, write_log, &late, &e), &e);
    keep_results(&early, &n);
    keep_results(&late, &m);
    assert_int_equal(n, 5); /* two training rows in three epochs, one of them in a dropped tail */
    assert_int_equal(m, 5);
    assert_same_log(&early, &late);
    for (int k = 0; k < 3; k++) {
        char *name = acr_sprintf("%d/state.tensors", k);
        assert_same_file(a, b, name);
        acr_free(name);
        name = acr_sprintf("%d/training_state.json", k);
        assert_same_file(a, b, name);
        acr_free(name);
    }
    acr_free(early.records);
    acr_free(late.records);
    remove_folder(data);
    remove_folder(a);
    remove_folder(b);
}

/* Stops ----------------------------------------------------------------------------------- */

static void stop_is_the_default(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    spoil_states(data, 3);
    o.data_path = data;
    o.epochs = 3;
    assert_fails(accrue_train(&o, tell, &t, &e), ACCRUE_EFORMAT, &e, "hs_3.safetensors", "row 3",
                 "expected a finite number", NULL);
    assert_false(acr_is_dir(out));
    o.check_bytes = 0;
    assert_fails(accrue_train(&o, tell, &t, &e), ACCRUE_EFORMAT, &e, "hs_3.safetensors", "row 3",
                 "expected a finite number", NULL);
    forget(&t);
    remove_folder(data);
    remove_folder(out);
}

/* Rows left out beyond the limit: a line that says how many, the last and why. */
static void too_many_bad_rows_stop_the_run(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    char *plan = plan_of(folder, "plan.json", "[[0],[1],[2]],[[0],[40],[41]]", "");
    char *saved = acr_sprintf("%s/0", out);
    accrue_train_options o = plan_options(plan, out);
    accrue_error e = {0};

    (void)state;
    spoil_states(data, 40);
    cut_states(data, 41);
    o.data_path = data;
    o.checkpoint_freq = 1;
    o.on_bad = ACCRUE_POLICY_SKIP;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "--max-bad 1 (1% of the",
                 "2 rows of 60", "row 41", "hs_41.safetensors", "are not within", NULL);
    assert_false(acr_is_dir(out));
    o.check_bytes = 0;
    o.max_bad = 1;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "--max-bad 1: 2 rows",
                 "row 41", "are not within", NULL);
    assert_ok(acr_manifest_check(saved, true, NULL, &e), &e);
    o.max_bad = 0;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "--max-bad 0: 1 rows",
                 "row 40", NULL);
    o.max_bad = 2; /* the run goes on from what was saved */
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    assert_list(out, 2, "\"row\":41", "\"kind\":\"format\"");
    acr_free(saved);
    acr_free(plan);
    remove_folder(data);
    remove_folder(out);
}

static void nothing_left_to_train_on(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};

    (void)state;
    for (int64_t row = 0; row < 54; row++)
        cut_states(data, row);
    o.data_path = data;
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.max_bad = 60;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "0 of the 54", NULL);
    assert_false(acr_is_dir(out));
    acr_free(out);
    remove_folder(data);
}

/* Missing states -------------------------------------------------------------------------- */

static void a17_missing_states_stop_before_the_first_step(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    char *path = states_of(data, 9);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    remove_states(data, 9);
    o.data_path = data;
    assert_fails(accrue_train(&o, tell, &t, &e), ACCRUE_EIO, &e, "row 9", path, "no hidden states",
                 NULL);
    assert_int_equal(t.micro_batches + t.n_saved, 0);
    assert_false(acr_is_dir(out));
    forget(&t);
    acr_free(path);
    acr_free(out);
    remove_folder(data);
}

static int count_notices(const told *t, const char *words)
{
    int n = 0;

    for (int i = 0; i < t->n_notices; i++)
        n += strstr(t->notice[i], words) != NULL;
    return n;
}

static void a17_missing_states_are_skipped_and_counted(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    for (int64_t row = 9; row < 36; row++)
        remove_states(data, row);
    o.data_path = data;
    o.on_missing = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_int_equal(t.plan.missing_rows, 27);
    assert_int_equal(t.plan.train_rows, 54 - 27);
    assert_int_equal(t.last_step.skipped_rows, 27);
    assert_int_equal(count_notices(&t, "left out"), 1);
    assert_notice(&t, "27 of 60 rows have no hidden states and are left out (rows 9, 10");
    forget(&t);
    o.on_missing = ACCRUE_POLICY_WARN; /* a notice for each, up to a bound */
    o.no_resume = true;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_int_equal(count_notices(&t, "left out"), 21);
    assert_notice(&t, "row 9: ");
    assert_notice(&t, "hs_28.safetensors");
    forget(&t);
    for (int64_t limit = 26; limit <= 27; limit++) {
        o.max_bad = limit;
        if (limit < 27)
            assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                         "--max-bad 26: 27 rows of 60", "row 35", "no hidden states", NULL);
        else
            assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    }
    assert_list(out, 27, "\"row\":35,\"kind\":\"missing\"", "hs_9.safetensors");
    spoil_states(data, 50); /* a bad row beside those that are missing: both count */
    o.on_bad = ACCRUE_POLICY_SKIP;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "--max-bad 27: 28 rows of 60", "row 50", NULL);
    remove_folder(data);
    remove_folder(out);
}

/* Files that change under a run ----------------------------------------------------------- */

typedef struct changer {
    const char *data;
    fault how;
    int64_t at; /* micro-batch of the first epoch after which row 40 is changed */
} changer;

static int change(const accrue_event *e, void *payload)
{
    const changer *c = payload;

    if (e->kind == ACCRUE_EVENT_MICRO_BATCH && e->epoch == 0 && e->micro_batch == c->at) {
        if (c->how == VANISHED)
            remove_states(c->data, 40);
        else
            spoil(c->data, c->how, 40);
    }
    return 0;
}

static void a_file_that_changes_under_a_run_is_an_error(void **state)
{
    const struct {
        fault how;
        accrue_status status;
        const char *word;
    } cases[] = {{CUT, ACCRUE_EFORMAT, "are not within"},
                 {NONFINITE, ACCRUE_EFORMAT, "expected a finite number"},
                 {VANISHED, ACCRUE_EIO, "no hidden states"}};

    (void)state;
    for (int i = 0; i < 2 * ACR_COUNT(cases); i++) {
        char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
        char *plan = plan_of(folder, "plan.json", train_with[4], "");
        accrue_train_options o = plan_options(plan, out);
        accrue_error e = {0};
        changer c = {data, cases[i / 2].how, 4};
        o.data_path = data;
        *(c.how == VANISHED ? &o.on_missing : &o.on_bad) =
            i % 2 ? ACCRUE_POLICY_SKIP : ACCRUE_POLICY_RAISE;
        o.max_steps = i % 2 ? 3 : 4;
        if (i % 2) {
            assert_ok(accrue_train(&o, change, &c, &e), &e);
            o.max_steps = 4; /* and goes on without the file */
            assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
            assert_list(out, 1, "\"row\":40", cases[i / 2].word);
        } else {
            assert_fails(accrue_train(&o, change, &c, &e), cases[i / 2].status, &e, "row 40",
                         "hs_40.safetensors", cases[i / 2].word, NULL);
        }
        acr_free(plan);
        remove_folder(data);
        remove_folder(out);
    }
}

/* Between the header and the numbers, where a mapping would have ended the process. */
static void a_file_cut_while_it_is_read_is_an_error(void **state)
{
    const acr_batch_shape shape = {.total_seq_len = 128, .hidden_size = 32, .n_aux = 3};
    char *data = copy_data(folder, "data"), *dir = acr_sprintf("%s/hidden_states", data);
    char *path = states_of(data, 4);
    acr_dataset *d = NULL;
    acr_states s = {0};
    const void *states = NULL;
    accrue_error e;
    accrue_fault f;
    int64_t n = 0;
    acr_row r;

    (void)state;
    assert_ok(acr_dataset_open(&d, data, &e), &e);
    assert_ok(acr_dataset_row(&r, d, 4, &e), &e);
    assert_int_equal(acr_states_open(&s, dir, 4, &r, &shape, NULL, &f), ACCRUE_OK);
    assert_int_equal(truncate(path, 3000), 0);
    assert_int_equal(acr_states_read(&states, &n, &s, 4, 0, &f), ACCRUE_EIO);
    assert_null(states);
    assert_int_equal(f.kind, ACCRUE_FAULT_UNREADABLE);
    assert_int_equal(f.row, 4);
    assert_non_null(strstr(f.message, "ends at byte 3000"));
    assert_non_null(strstr(f.message, path));
    acr_states_free(&s);
    acr_dataset_close(d);
    acr_free(path);
    acr_free(dir);
    remove_folder(data);
}

/* Going on -------------------------------------------------------------------------------- */

/* Stopped at any event and continued: the same files, lists of skipped rows included. */
static void a_stopped_run_goes_on_without_the_same_rows(void **state)
{
    char *data = copy_data(folder, "data");
    char *plan = plan_of(folder, "plan.json",
                         "[[0],[40,1],[2],[3]],[[3,40],[1],[41],[0]],[[1],[42,0],[3],[2]]",
                         "[[50],[43]],[[50],[43]],[[50],[43]]");

    (void)state;
    for (int64_t row = 40; row < 44; row++)
        row % 2 ? cut_states(data, row) : spoil_states(data, row);
    for (int lazy = 0; lazy < 2; lazy++) {
        char *straight = acr_sprintf("%s/straight", folder);
        accrue_train_options o = plan_options(plan, straight);
        accrue_error e = {0};
        logbook whole = {0};
        o.data_path = data;
        o.epochs = 3;
        o.window.gradient_accumulation_steps = 2;
        o.check_bytes = lazy ? 0 : 1 << 30;
        o.on_bad = ACCRUE_POLICY_SKIP;
        o.max_bad = 4;
        assert_ok(accrue_train(&o, write_log, &whole, &e), &e);
        assert_list(straight, 4, "\"row\":40", "\"row\":43");
        for (int64_t stop = 1; stop <= whole.events; stop++) {
            char *out = acr_sprintf("%s/parts", folder);
            logbook l = {.stop_at = stop};
            o.save_path = out;
            assert_fails(accrue_train(&o, write_log, &l, &e), ACCRUE_ECANCELED, &e, NULL);
            l.stop_at = 0;
            assert_ok(accrue_train(&o, write_log, &l, &e), &e);
            assert_same_log(&whole, &l);
            assert_same_tree(straight, out);
            acr_free(l.records);
            remove_folder(out);
        }
        acr_free(whole.records);
        remove_folder(straight);
    }
    acr_free(plan);
    remove_folder(data);
}

/* What the checkpoint leaves out stays out, were it repaired since; a list that is no list is
 * refused. */
static void a_checkpoint_carries_the_list(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    char *list = acr_sprintf("%s/0/skipped_samples.jsonl", out);
    char *dir = acr_sprintf("%s/0", out);
    char *plan = plan_of(folder, "plan.json", "[[0],[40,1],[2]],[[3],[1],[40,2]]", "");
    accrue_train_options o = plan_options(plan, out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    spoil_states(data, 40);
    o.data_path = data;
    o.checkpoint_freq = 1;
    o.max_steps = 1;
    o.on_bad = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    assert_true(acr_is_file(list));
    o.data_path = TINY "/data"; /* where row 40 is whole */
    o.max_steps = 0;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_int_equal(t.last_step.metrics.error_records, 1);
    assert_notice(&t, "left out: ");
    forget(&t);
    assert_list(out, 1, "\"kind\":\"nonfinite\"", "expected a finite number");
    write_text(list, "{\"row\": 99}\n");
    remake_manifest(dir);
    o.resume_from = dir;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EFORMAT, &e, list, "{\"row\": 99}", NULL);
    o.resume_from = NULL;
    o.no_resume = true; /* a new run has no list */
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    acr_free(list);
    list = acr_sprintf("%s/skipped_samples.jsonl", out);
    assert_false(acr_is_file(list));
    acr_free(list);
    acr_free(dir);
    acr_free(plan);
    remove_folder(data);
    remove_folder(out);
}

/* The callback puts a folder where the list is to go. */
static int block(const accrue_event *e, void *payload)
{
    if (e->kind == ACCRUE_EVENT_MICRO_BATCH && e->epoch == 0 && e->micro_batch == 1)
        assert_int_equal(mkdir(payload, 0777), 0);
    return 0;
}

static void a_list_that_cannot_be_written_ends_the_run(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    char *list = acr_sprintf("%s/skipped_samples.jsonl", out);
    char *plan = plan_of(folder, "plan.json", train_with[0], "");
    accrue_train_options o = plan_options(plan, out);
    accrue_error e = {0};

    (void)state;
    spoil_states(data, 40);
    o.data_path = data;
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.check_bytes = 0;
    assert_fails(accrue_train(&o, block, list, &e), ACCRUE_EIO, &e, list, "cannot open", NULL);
    o.check_bytes = 1 << 30;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EIO, &e, list, "cannot rename", NULL);
    o.data_path = TINY "/data";
    o.no_resume = true;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EIO, &e, list, "cannot remove", NULL);
    acr_free(list);
    acr_free(plan);
    remove_folder(data);
    remove_folder(out);
}

/* A caller's own loop lists the rows with its checkpoint; verify leaves nothing behind. */
static void who_saves_nothing_lists_nothing(void **state)
{
    char *data = copy_data(folder, "data"), *out = acr_sprintf("%s/out", folder);
    char *plan = plan_of(folder, "plan.json", "[[40,1],[2],[3]]", "");
    accrue_train_options o = plan_options(plan, out);
    accrue_verify_report report;
    accrue_error e = {0};
    accrue_run *run = NULL;
    bool stepped = false;

    (void)state;
    spoil_states(data, 40);
    o.data_path = data;
    o.epochs = 1;
    o.compute = ACCRUE_F64;
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.check_bytes = 0;
    assert_ok(accrue_verify(&report, &o, &e), &e);
    assert_true(report.pass);
    assert_false(acr_is_dir(out));
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    while (accrue_run_next(run))
        assert_ok(one_micro_batch(run, &stepped, &e), &e);
    assert_false(acr_is_dir(out));
    assert_ok(accrue_run_save(run, "mine", &e), &e);
    assert_list(out, 1, "\"row\":40", "\"epoch\":0");
    accrue_run_free(run);
    acr_free(plan);
    remove_folder(data);
    remove_folder(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(skipping_leaves_every_other_loss_as_it_was),
        TEST(a19_lengths_that_disagree_leave_the_pack_alone),
        TEST(a20_ids_and_masks_out_of_range_leave_the_pack_alone),
        TEST(a_micro_batch_of_bad_rows_has_no_weight),
        TEST(packing_is_the_same_whenever_a_row_is_found),
        TEST(stop_is_the_default),
        TEST(too_many_bad_rows_stop_the_run),
        TEST(nothing_left_to_train_on),
        TEST(a17_missing_states_stop_before_the_first_step),
        TEST(a17_missing_states_are_skipped_and_counted),
        TEST(a_file_that_changes_under_a_run_is_an_error),
        TEST(a_file_cut_while_it_is_read_is_an_error),
        TEST(a_stopped_run_goes_on_without_the_same_rows),
        TEST(a_checkpoint_carries_the_list),
        TEST(a_list_that_cannot_be_written_ends_the_run),
        TEST(who_saves_nothing_lists_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
