/* The trainer's windows on the example data: what accumulation, tails, masks and values that are
 * not finite do to the gradient, the parameters and the counters. */
#include "train_test.h"

#include "folder_test.h"

#include <unistd.h>

/* Runs the first window of a plan; its gradient, and with `masters` the weights after the step. */
static double *first_window(accrue_train_options o, const char *train, int64_t n, double **masters,
                            int64_t *count)
{
    char *plan = write_plan(folder, o.total_seq_len, train);
    accrue_error e = {0};
    accrue_run *run = NULL;
    double *gradient = NULL;
    bool stepped = false;

    o.batch_plan = plan;
    o.window.gradient_accumulation_steps = n;
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    for (int64_t i = 0; i < n; i++) {
        assert_false(stepped);
        assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
        if (i == n - 1)
            gradient = copy_arrays(run, true, count);
        assert_ok(accrue_run_clip(run, NULL, &e), &e);
        assert_ok(accrue_run_step(run, &stepped, &e), &e);
        accrue_run_lr_step(run);
        accrue_run_zero_grad(run);
    }
    assert_true(stepped);
    if (masters)
        *masters = copy_arrays(run, false, count);
    accrue_run_free(run);
    acr_free(plan);
    return gradient;
}

static void test_split(void **state)
{
    const char *split[] = {"[[0, 1, 2, 3]]", "[[0, 1], [2, 3]]", "[[0], [1, 2], [3]]",
                           "[[0], [1], [2], [3]]"};
    accrue_train_options o = tiny_options(folder);
    double *whole = NULL, *whole_masters = NULL;
    int64_t count = 0;

    (void)state;
    o.total_seq_len = 256;
    o.window.loss_normalization = ACCRUE_NORMALIZE_TOKEN;
    whole = first_window(o, split[0], 1, &whole_masters, &count);
    for (int i = 1; i < ACR_COUNT(split); i++) {
        double *masters = NULL;
        double *part = first_window(o, split[i], i + 1, &masters, &count);
        assert_true(array_distance(part, whole, count) <= 1e-12);
        assert_true(array_distance(masters, whole_masters, count) <= 1e-12);
        acr_free(part);
        acr_free(masters);
    }
    /* Under `microbatch` the split matters, or the test above shows nothing. */
    o.window.loss_normalization = ACCRUE_NORMALIZE_MICROBATCH;
    acr_free(whole_masters);
    whole_masters = first_window(o, split[2], 3, NULL, &count);
    assert_true(array_distance(whole_masters, whole, count) > 1e-6);
    acr_free(whole_masters);
    acr_free(whole);
}

static void test_verify(void **state)
{
    const accrue_loss_normalization how[] = {ACCRUE_NORMALIZE_TOKEN, ACCRUE_NORMALIZE_MICROBATCH};

    (void)state;
    for (int i = 0; i < ACR_COUNT(how); i++) {
        accrue_train_options o = tiny_options(folder);
        accrue_verify_report report;
        accrue_error e = {0};
        o.window.gradient_accumulation_steps = 4;
        o.window.loss_normalization = how[i];
        assert_ok(accrue_verify(&report, &o, &e), &e);
        assert_true(report.pass);
        assert_int_equal(report.n, 4);
        assert_int_equal(report.micro_batches, 4);
        assert_true(report.tokens > 3 * 64 && report.supervised_tokens > report.tokens / 2);
        assert_true(report.n_rows >= 3);
        for (int r = 0; r < report.n_rows; r++) {
            assert_true(report.rows[r].pass && report.rows[r].elements > 0);
            assert_true(report.rows[r].grad_max_rel <= 1e-12);
        }
    }
}

/* What a few ranks make of the window, against what one makes of its parts; rows may be cut. */
static void test_verify_on_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        accrue_train_options o = tiny_options(folder);
        accrue_verify_report report;
        accrue_error e = {0};
        o.ranks = i % 3 + 1;
        o.fsdp_shard = o.ranks > 1;
        o.defer_reduce = o.fsdp_shard && i % 2;
        o.reproducible = i / 6;
        o.total_seq_len = i % 4 ? 128 : 40; /* shorter than rows are */
        o.window.gradient_accumulation_steps = 2;
        o.window.loss_normalization = i % 2 ? ACCRUE_NORMALIZE_TOKEN : ACCRUE_NORMALIZE_MICROBATCH;
        assert_ok(accrue_verify(&report, &o, &e), &e);
        assert_true(report.pass && report.parts_pass);
        assert_int_equal(report.ranks, o.ranks);
        assert_int_equal(report.micro_batches, 2 * o.ranks);
        assert_true(report.grad_max > 0 && report.parts_max_abs <= 1e-14 * report.grad_max);
    }
}

/* Verify starts its ranks itself: of one that is given it would show but a part. */
static void test_verify_as_a_rank(void **state)
{
    accrue_train_options o = tiny_options(folder);
    accrue_comm *comm = NULL;
    accrue_verify_report report;
    accrue_error e = {0};

    (void)state;
    assert_ok(accrue_comm_open_threads(&comm, 1, 10, &e), &e);
    o.comm = comm;
    assert_fails(accrue_verify(&report, &o, &e), ACCRUE_EINVAL, &e, "starts its ranks itself",
                 NULL);
    accrue_comm_free(comm);
}

/* Tails ----------------------------------------------------------------------------------- */

static void test_tail_drop(void **state)
{
    accrue_train_options o = tiny_options(NULL);
    char *plan = write_single_plan(folder, o.total_seq_len, 6);
    char *out = acr_sprintf("%s/drop", folder);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    o.batch_plan = plan;
    o.save_path = out;
    o.epochs = 1;
    o.window.gradient_accumulation_steps = 4;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_int_equal(t.steps, 1);
    assert_int_equal(t.micro_batches, 4);
    assert_int_equal(t.plan.total_steps, 1);
    assert_int_equal(t.plan.dropped_micro_batches, 2);
    assert_notice(&t, "the last 2 of 6 micro-batches");
    forget(&t);
    acr_free(out);
    acr_free(plan);
}

/* A tail of two under N = 4 is the window of N = 2, bit for bit. */
static void test_tail_step(void **state)
{
    const accrue_loss_normalization how[] = {ACCRUE_NORMALIZE_TOKEN, ACCRUE_NORMALIZE_MICROBATCH};

    (void)state;
    for (int i = 0; i < ACR_COUNT(how); i++) {
        accrue_train_options o = tiny_options(folder);
        char *plan = NULL;
        double *expected = NULL, *got = NULL, *unused = NULL;
        accrue_error e = {0};
        accrue_run *run = NULL;
        int64_t n = 0;
        bool stepped = false;
        o.window.loss_normalization = how[i];
        unused = first_window(o, "[[5], [9, 3]]", 2, &expected, &n);
        plan = write_plan(folder, o.total_seq_len, "[[5], [9, 3]]");
        o.batch_plan = plan;
        o.window.gradient_accumulation_steps = 4;
        o.accumulation_tail = ACCRUE_TAIL_STEP;
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        assert_int_equal(accrue_run_plan(run)->total_steps, 1);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        assert_ok(one_micro_batch(run, &stepped, &e), &e);
        assert_false(stepped);
        assert_ok(one_micro_batch(run, &stepped, &e), &e);
        assert_true(stepped);
        assert_false(accrue_run_next(run));
        got = copy_arrays(run, false, &n);
        assert_memory_equal(got, expected, (size_t)n * sizeof *got);
        accrue_run_free(run);
        acr_free(plan);
        acr_free(unused);
        acr_free(expected);
        acr_free(got);
    }
}

static void test_n_out_of_range(void **state)
{
    accrue_train_options o = tiny_options(NULL);
    char *plan = write_single_plan(folder, o.total_seq_len, 3);
    char *out = acr_sprintf("%s/above", folder);
    accrue_error e = {0};

    (void)state;
    o.batch_plan = plan;
    o.save_path = out;
    o.window.gradient_accumulation_steps = 4;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EINVAL, &e,
                 "exceeds the number of batches per epoch", "4", "3", NULL);
    for (int64_t n = 0; n >= -1; n--) {
        o.window.gradient_accumulation_steps = n;
        assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EINVAL, &e,
                     "--gradient-accumulation-steps", n ? "-1" : "0", "at least 1", NULL);
    }
    assert_false(acr_is_dir(out));
    acr_free(out);
    acr_free(plan);
}

/* Memory ---------------------------------------------------------------------------------- */

static void test_memory_flat_in_n(void **state)
{
    const int64_t sizes[] = {2, 3, 8, 1};
    size_t high[ACR_COUNT(sizes)] = {0}, live[ACR_COUNT(sizes)] = {0};

    (void)state;
    for (int i = 0; i < ACR_COUNT(sizes); i++) {
        accrue_train_options o = tiny_options(folder);
        accrue_error e = {0};
        accrue_run *run = NULL;
        uint64_t allocations = 0;
        bool stepped = false;
        o.window.gradient_accumulation_steps = sizes[i];
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        for (int64_t k = 0; accrue_run_next(run); k++) {
            assert_ok(one_micro_batch(run, &stepped, &e), &e);
            if (k == 8)
                allocations = acr_allocations();
        }
        assert_true(allocations > 0);
        assert_int_equal(acr_allocations(), allocations); /* nothing in the steady state */
        high[i] = run->tape.arena.high;
        live[i] = acr_allocated_bytes();
        accrue_run_free(run);
    }
    for (int i = 1; i < ACR_COUNT(sizes); i++) {
        assert_int_equal(high[i], high[0]);
        assert_true(live[i] < live[0] + 8192); /* counts of the window's micro-batches */
    }
    /* A micro-batch that is the window needs no sum beside its gradient. */
    assert_true(live[3] < live[0]);
}

/* Masks ----------------------------------------------------------------------------------- */

/* The example supervises the last two thirds of a row: cut at 14 tokens a long row has none. */
static void test_masked(void **state)
{
    accrue_train_options o = tiny_options(folder);
    acr_dataset *d = NULL;
    accrue_error e = {0};
    accrue_run *run = NULL;
    told t = {0};
    int64_t masked[4] = {0}, plain[2] = {0}, n_masked = 0, n_plain = 0, n = 0;
    char *text = NULL, *plan = NULL;
    double *before = NULL, *after = NULL;
    bool stepped = false;

    (void)state;
    assert_ok(acr_dataset_open(&d, TINY "/data", &e), &e);
    for (int64_t i = 0; i < acr_dataset_rows(d); i++) {
        if (acr_dataset_tokens(d, i) >= 48 && n_masked < 4)
            masked[n_masked++] = i;
        else if (acr_dataset_tokens(d, i) < 39 && n_plain < 2)
            plain[n_plain++] = i;
    }
    acr_dataset_close(d);
    assert_int_equal(n_masked + n_plain, 6);
    text = acr_sprintf("[[%lld], [%lld], [%lld], [%lld], [%lld], [%lld]]", (long long)masked[0],
                       (long long)masked[1], (long long)masked[2], (long long)plain[0],
                       (long long)plain[1], (long long)masked[3]);
    plan = write_plan(folder, 14, text);
    o.total_seq_len = 14;
    o.batch_plan = plan;
    o.window.gradient_accumulation_steps = 2;
    assert_ok(accrue_run_open(&run, &o, tell, &t, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    before = copy_arrays(run, false, &n);
    assert_ok(one_micro_batch(run, &stepped, &e), &e);
    assert_ok(one_micro_batch(run, &stepped, &e), &e);
    assert_false(stepped);
    after = copy_arrays(run, false, &n);
    assert_memory_equal(before, after, (size_t)n * sizeof *after);
    assert_int_equal(accrue_window_empty(run->window), 1);
    assert_int_equal(accrue_window_global_step(run->window), 0);
    assert_notice(&t, "no supervised token");
    for (int i = 0; i < 4; i++) /* a masked micro-batch beside one that is not */
        assert_ok(one_micro_batch(run, &stepped, &e), &e);
    assert_true(stepped);
    assert_int_equal(t.steps, 2);
    assert_int_equal(t.last_step.empty_windows, 1);
    assert_true(isfinite(t.last_step.metrics.loss_sum));
    accrue_run_free(run);
    forget(&t);
    acr_free(before);
    acr_free(after);
    acr_free(text);
    acr_free(plan);
}

/* Values that are not finite -------------------------------------------------------------- */

/* Where every micro-batch fails: the first one stops the run, and nothing has changed. */
static void stops(accrue_run *run, const char *what)
{
    accrue_error e = {0};
    int64_t n = 0;
    double *before = copy_arrays(run, false, &n), *after = NULL;
    bool stepped = false;

    assert_fails(one_micro_batch(run, &stepped, &e), ACCRUE_ENUMERIC, &e, "optimizer step 1",
                 "epoch 1", "micro-batch 0", "rows 7, 2", what, NULL);
    after = copy_arrays(run, false, &n);
    assert_memory_equal(before, after, (size_t)n * sizeof *after);
    assert_int_equal(accrue_window_global_step(run->window), 0);
    assert_int_equal(acr_window_filled(run->window), 0);
    acr_free(before);
    acr_free(after);
}

/* Where every micro-batch fails and is skipped: both are counted, and the window is empty. */
static void skips_all(accrue_run *run, told *t)
{
    accrue_error e = {0};
    int64_t n = 0;
    double *before = copy_arrays(run, false, &n), *after = NULL;
    bool stepped = false;

    for (int i = 0; i < 2; i++) {
        assert_ok(one_micro_batch(run, &stepped, &e), &e);
        assert_false(stepped);
    }
    after = copy_arrays(run, false, &n);
    assert_memory_equal(before, after, (size_t)n * sizeof *after);
    assert_int_equal(run->skipped_nonfinite, 2);
    assert_int_equal(accrue_window_empty(run->window), 1);
    assert_notice(t, "rows 7, 2");
    assert_notice(t, "rows 4");
    acr_free(before);
    acr_free(after);
}

static void nonfinite(bool gradient, accrue_policy policy)
{
    accrue_train_options o = tiny_options(folder);
    char *plan = write_plan(folder, o.total_seq_len, "[[7, 2], [4]]");
    accrue_error e = {0};
    accrue_run *run = NULL;
    told t = {0};

    o.compute = ACCRUE_F32;
    o.batch_plan = plan;
    o.on_nonfinite = policy;
    o.window.gradient_accumulation_steps = 2;
    if (gradient) /* the third step's gradients overflow f32; its loss is an f64 */
        o.ttt_step_loss_decay = 1e30;
    assert_ok(accrue_run_open(&run, &o, tell, &t, &e), &e);
    if (!gradient) {
        acr_param *norm = acr_model_find(run->setup.model, "norm.weight");
        for (int64_t i = 0; i < norm->rows; i++)
            ((float *)norm->master)[i] = 3e38F;
    }
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    if (policy == ACCRUE_POLICY_RAISE)
        stops(run, gradient ? "the gradient of" : "the loss is");
    else
        skips_all(run, &t);
    accrue_run_free(run);
    forget(&t);
    acr_free(plan);
}

static void test_nonfinite_loss_stops(void **state)
{
    (void)state;
    nonfinite(false, ACCRUE_POLICY_RAISE);
}

static void test_nonfinite_gradient_stops(void **state)
{
    (void)state;
    nonfinite(true, ACCRUE_POLICY_RAISE);
}

static void test_nonfinite_all_skipped(void **state)
{
    (void)state;
    nonfinite(false, ACCRUE_POLICY_SKIP);
    nonfinite(true, ACCRUE_POLICY_SKIP);
}

static void test_nonfinite_validation(void **state)
{
    accrue_train_options o = tiny_options(folder);
    accrue_error e = {0};
    accrue_metrics m;
    accrue_run *run = NULL;
    acr_param *norm = NULL;

    (void)state;
    o.compute = ACCRUE_F32;
    o.total_seq_len = 71; /* one row each */
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_ok(accrue_run_validate(run, &m, &e), &e);
    norm = acr_model_find(run->setup.model, "norm.weight");
    for (int64_t i = 0; i < norm->rows; i++)
        ((float *)norm->master)[i] = 3e38F;
    assert_fails(accrue_run_validate(run, &m, &e), ACCRUE_ENUMERIC, &e, "validation of epoch 1",
                 "micro-batch 0", "(rows 5", "the loss is", NULL);
    run->opt.on_nonfinite = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_run_validate(run, &m, &e), &e);
    assert_true(run->skipped_nonfinite > 0 && m.tokens == 0);
    accrue_run_free(run);
}

/* A token of row `bad` that no other of the rows has. */
static int64_t own_token(int64_t bad, const int64_t *rows, int n)
{
    acr_dataset *d = NULL;
    accrue_error e = {0};
    int seen[TINY_VOCAB] = {0};
    int64_t found = -1;
    acr_row r;

    assert_ok(acr_dataset_open(&d, TINY "/data", &e), &e);
    for (int i = 0; i < n; i++) {
        assert_ok(acr_dataset_row(&r, d, rows[i], &e), &e);
        for (int64_t j = 0; j < r.tokens; j++)
            seen[r.input_ids[j]] = 1;
    }
    assert_ok(acr_dataset_row(&r, d, bad, &e), &e);
    for (int64_t j = r.tokens - 2; j > 0 && found < 0; j--)
        if (!seen[r.input_ids[j]])
            found = r.input_ids[j];
    acr_dataset_close(d);
    assert_true(found >= 0);
    return found;
}

/* A copy of the embedding in f64 with an infinite row; freed with acr_free. */
static double *spoil_embedding(accrue_run *run, int64_t token)
{
    acr_param *embed = run->setup.model->top.embed;
    int64_t n = embed->rows * embed->cols;
    double *copy = acr_malloc((size_t)n * sizeof *copy);

    assert_non_null(copy);
    assert_null(embed->master);
    acr_convert(ACR_DTYPE_F64, copy, embed->frozen_type, embed->frozen, n);
    for (int64_t i = 0; i < embed->cols; i++)
        copy[token * embed->cols + i] = HUGE_VAL;
    embed->frozen = copy;
    embed->frozen_type = ACR_DTYPE_F64;
    return copy;
}

/* The window without the micro-batch that was skipped, wherever in the window it stood. */
static void test_skip_equals_without(void **state)
{
    const char *plans[] = {"[[11], [0], [1], [2]]", "[[0], [1], [11], [2]]",
                           "[[0], [1], [2], [11]]"};
    const int64_t good[] = {0, 1, 2};
    const int64_t token = own_token(11, good, 3);

    (void)state;
    for (int i = 0; i < 2 * ACR_COUNT(plans); i++) {
        accrue_train_options o = tiny_options(folder);
        double *gradient = NULL, *masters = NULL, *got = NULL, *spoilt = NULL;
        accrue_error e = {0};
        accrue_run *run = NULL;
        told t = {0};
        char *plan = NULL;
        int64_t n = 0;
        bool stepped = false;
        o.window.loss_normalization = i % 2 ? ACCRUE_NORMALIZE_TOKEN : ACCRUE_NORMALIZE_MICROBATCH;
        gradient = first_window(o, "[[0], [1], [2]]", 3, &masters, &n);
        plan = write_plan(folder, o.total_seq_len, plans[i / 2]);
        o.batch_plan = plan;
        o.on_nonfinite = ACCRUE_POLICY_SKIP;
        o.window.gradient_accumulation_steps = 4;
        assert_ok(accrue_run_open(&run, &o, tell, &t, &e), &e);
        spoilt = spoil_embedding(run, token);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        for (int k = 0; k < 3; k++)
            assert_ok(one_micro_batch(run, &stepped, &e), &e);
        assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
        got = copy_arrays(run, true, &n);
        assert_true(array_distance(got, gradient, n) <= 1e-12);
        acr_free(got);
        assert_ok(accrue_run_clip(run, NULL, &e), &e);
        assert_ok(accrue_run_step(run, &stepped, &e), &e);
        assert_true(stepped);
        got = copy_arrays(run, false, &n);
        assert_true(array_distance(got, masters, n) <= 1e-12);
        assert_int_equal(t.last_step.skipped_nonfinite, 1);
        assert_notice(&t, "rows 11");
        accrue_run_free(run);
        forget(&t);
        acr_free(spoilt);
        acr_free(plan);
        acr_free(got);
        acr_free(gradient);
        acr_free(masters);
    }
}

static void test_stopped_by_caller(void **state)
{
    accrue_train_options o = tiny_options(NULL);
    char *out = acr_sprintf("%s/stopped", folder);
    accrue_error e = {0};
    told t = {.stop_at = 3};

    (void)state;
    o.save_path = out;
    assert_fails(accrue_train(&o, tell, &t, &e), ACCRUE_ECANCELED, &e, "optimizer step 2", NULL);
    assert_int_equal(t.micro_batches, 3);
    assert_int_equal(rmdir(out), 0); /* made, and nothing is in it */
    forget(&t);
    acr_free(out);
}

/* An epoch left in mid-window: what its window has gathered is dropped with it. */
static void test_epoch_left_in_mid_window(void **state)
{
    (void)state;
    for (int left = 0; left < 3; left++) {
        accrue_train_options o = tiny_options(folder);
        accrue_error e = {0};
        accrue_metrics m, first;
        accrue_run *run = NULL, *fresh = NULL;

        o.window.gradient_accumulation_steps = 2;
        o.window.loss_normalization = ACCRUE_NORMALIZE_TOKEN;
        o.epochs = 2;
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        assert_ok(accrue_run_open(&fresh, &o, NULL, NULL, &e), &e);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        for (int i = 0; i < left && accrue_run_next(run); i++)
            assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
        assert_ok(accrue_run_epoch(run, 1, &e), &e);
        assert_ok(accrue_run_epoch(fresh, 1, &e), &e);
        assert_ok(accrue_run_forward_backward(run, &m, &e), &e);
        assert_ok(accrue_run_forward_backward(fresh, &first, &e), &e);
        assert_memory_equal(&m.loss_sum, &first.loss_sum, sizeof m.loss_sum);
        for (int i = 0; i < run->setup.model->n_params; i++) {
            const acr_param *p = &run->setup.model->params[i];
            const acr_param *q = &fresh->setup.model->params[i];
            if (p->trainable)
                assert_memory_equal(p->grad, q->grad,
                                    (size_t)(p->rows * p->cols) *
                                        acr_dtype_bytes(run->setup.model->real));
        }
        accrue_run_free(run);
        accrue_run_free(fresh);
    }
}

/* After an error nothing goes on by itself: no row is lost or counted with another's weight. */
static void test_error_ends_the_epoch(void **state)
{
    accrue_train_options o = tiny_options(folder);
    accrue_error e = {0};
    accrue_run *run = NULL;
    acr_param *norm = NULL;
    float kept = 0;

    (void)state;
    o.compute = ACCRUE_F32;
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    norm = acr_model_find(run->setup.model, "norm.weight");
    kept = ((float *)norm->master)[0];
    ((float *)norm->master)[0] = (float)NAN;
    assert_fails(accrue_run_forward_backward(run, NULL, &e), ACCRUE_ENUMERIC, &e, "NaN", NULL);
    ((float *)norm->master)[0] = kept;
    assert_false(accrue_run_next(run));
    assert_fails(accrue_run_forward_backward(run, NULL, &e), ACCRUE_ESTATE, &e, "epoch 1", NULL);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_true(accrue_run_next(run));
    assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
    assert_fails(accrue_run_save(run, "../outside", &e), ACCRUE_EINVAL, &e, "../outside", NULL);
    accrue_run_free(run);
}

/* Options that used to be taken for granted. */
static void test_option_values(void **state)
{
    accrue_train_options o;
    accrue_error e = {0};
    accrue_run *run = NULL;

    (void)state;
#define REFUSED(change, flag)                                                                      \
    o = tiny_options(folder);                                                                      \
    change;                                                                                        \
    assert_fails(accrue_run_open(&run, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e, flag, NULL)
    REFUSED(o.data_path = NULL, "--data-path");
    REFUSED(o.data_path = "", "--data-path");
    REFUSED(o.loss_fn = NULL, "--loss-fn");
    REFUSED(o.loss_fn = "", "--loss-fn");
    REFUSED(o.save_path = NULL, "--save-path");
    REFUSED(o.accumulation_tail = (accrue_tail)7, "--accumulation-tail");
    REFUSED(o.on_missing = (accrue_policy)9, "--on-missing");
    REFUSED(o.on_nonfinite = (accrue_policy)0, "--on-nonfinite");
    REFUSED(o.on_bad = ACCRUE_POLICY_WARN, "--on-bad");
    REFUSED(o.max_bad = -2, "--max-bad");
    REFUSED(o.check_bytes = -1, "--check-bytes");
    REFUSED(o.lock_timeout = (double)NAN, "--lock-timeout");
    REFUSED(o.compute = (accrue_dtype)0, "--hidden-states-dtype");
    REFUSED(o.epochs = INT64_MAX, "--epochs");
#undef REFUSED
    /* Two tokens a row: none of those that are left is supervised. */
    o = tiny_options(folder);
    o.total_seq_len = 2;
    assert_fails(accrue_run_open(&run, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "training rows have a supervised token", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_verify_on_ranks),
        cmocka_unit_test(test_verify_as_a_rank),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_epoch_left_in_mid_window),
        cmocka_unit_test(test_error_ends_the_epoch),
        cmocka_unit_test(test_option_values),
        cmocka_unit_test(test_tail_drop),
        cmocka_unit_test(test_tail_step),
        cmocka_unit_test(test_n_out_of_range),
        cmocka_unit_test(test_memory_flat_in_n),
        cmocka_unit_test(test_masked),
        cmocka_unit_test(test_nonfinite_loss_stops),
        cmocka_unit_test(test_nonfinite_gradient_stops),
        cmocka_unit_test(test_nonfinite_all_skipped),
        cmocka_unit_test(test_nonfinite_validation),
        cmocka_unit_test(test_skip_equals_without),
        cmocka_unit_test(test_stopped_by_caller),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
