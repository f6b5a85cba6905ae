/* Validation: sums over sums for micro-batches of any size, and what it leaves alone. */
#include "train_test.h"

#include "folder_test.h"

/* The validation over the micro-batches in `val`, after one step. */
static void validate(accrue_metrics *out, const char *val, accrue_loss_normalization normalization)
{
    char *path = acr_sprintf("%s/plan.json", folder);
    char *text = acr_sprintf("{\"total_seq_len\": 256, \"train\": [[[0]]], \"val\": [%s]}", val);
    accrue_train_options o = tiny_options(folder);
    accrue_run *run = NULL;
    accrue_error e = {0};
    bool stepped = false;

    write_text(path, text);
    o.total_seq_len = 256;
    o.batch_plan = path;
    o.window.lr = 0.02;
    o.window.loss_normalization = normalization;
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_ok(one_micro_batch(run, &stepped, &e), &e);
    assert_true(stepped);
    assert_ok(accrue_run_validate(run, out, &e), &e);
    accrue_run_free(run);
    acr_free(text);
    acr_free(path);
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-13 * fmax(fabs(a), fabs(b))))
        fail_msg("%.17g, %.17g expected", a, b);
}

/* A26: loss and accuracies over micro-batches of one, three and two rows are sums over sums, not
 * means of ratios; no accuracy is above 1. */
static void a26_validation_is_sums_over_sums(void **state)
{
    static const char *const parts[] = {"[[54]]", "[[55, 56, 57]]", "[[58, 59]]"};
    accrue_metrics all, sum = {0}, m;
    double mean_of_ratios = 0;

    (void)state;
    validate(&all, "[[54], [55, 56, 57], [58, 59]]", ACCRUE_NORMALIZE_MICROBATCH);
    for (int i = 0; i < 3; i++) {
        validate(&m, parts[i], ACCRUE_NORMALIZE_MICROBATCH);
        sum.loss_sum += m.loss_sum; /* by hand: adding up is what is tested */
        sum.loss_total += m.loss_total;
        for (int k = 0; k < m.n_steps; k++) {
            sum.full_acc_sum[k] += m.full_acc_sum[k];
            sum.full_acc_total[k] += m.full_acc_total[k];
            sum.cond_acc_sum[k] += m.cond_acc_sum[k];
            sum.cond_acc_total[k] += m.cond_acc_total[k];
        }
        mean_of_ratios += m.full_acc_sum[0] / m.full_acc_total[0] / 3;
    }
    assert_near(all.loss_sum / all.loss_total, sum.loss_sum / sum.loss_total);
    for (int k = 0; k < all.n_steps; k++) {
        assert_true(all.full_acc_sum[k] == sum.full_acc_sum[k]);
        assert_true(all.full_acc_total[k] == sum.full_acc_total[k]);
        assert_true(all.cond_acc_sum[k] == sum.cond_acc_sum[k]);
        assert_true(all.cond_acc_total[k] == sum.cond_acc_total[k]);
        assert_true(all.full_acc_sum[k] <= all.full_acc_total[k]);
        assert_true(all.cond_acc_sum[k] <= all.cond_acc_total[k]);
    }
    assert_true(all.full_acc_sum[0] > 0);
    assert_true(all.full_acc_sum[0] / all.full_acc_total[0] != mean_of_ratios);
}

/* A26: with `token`, micro-batches of any size have the loss of one that holds all their rows. */
static void a26_validation_by_token_is_one_batch(void **state)
{
    accrue_metrics parts, whole;

    (void)state;
    validate(&parts, "[[54], [55, 56]]", ACCRUE_NORMALIZE_TOKEN);
    validate(&whole, "[[54, 55, 56]]", ACCRUE_NORMALIZE_TOKEN);
    assert_near(parts.loss_sum / parts.loss_total, whole.loss_sum / whole.loss_total);
    for (int k = 0; k < whole.n_steps; k++)
        assert_near(parts.step_loss_sum[k] / parts.step_loss_total[k],
                    whole.step_loss_sum[k] / whole.step_loss_total[k]);
}

/* A model that has come apart has no validation loss; in particular none of 0. */
static void test_no_result(void **state)
{
    char *out = acr_sprintf("%s/apart", folder), *val = acr_sprintf("%s/0/val_metrics.json", out);
    char *best = acr_sprintf("%s/checkpoint_best", out);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    o.compute = ACCRUE_F32;
    o.window.lr = 1e30;
    o.window.gradient_accumulation_steps = 20;
    o.on_nonfinite = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_int_equal(t.validations, 0);
    assert_notice(&t, "epoch 1: the validation has no result");
    assert_true(acr_is_dir(out));
    assert_false(acr_is_file(val));
    assert_false(acr_is_link(best));
    forget(&t);
    acr_free(out);
    acr_free(val);
    acr_free(best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a26_validation_is_sums_over_sums),
        cmocka_unit_test(a26_validation_by_token_is_one_batch),
        cmocka_unit_test(test_no_result),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
