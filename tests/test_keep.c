/* Which checkpoints stay: --keep, --best-metric, and folders that are not for removal. */
#include "resume_test.h"

static char *folder;

static int make(void **state)
{
    (void)state;
    accrue_set_threads(1);
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

    o.compute = ACCRUE_F32;
    o.epochs = 5;
    o.window.gradient_accumulation_steps = 4;
    o.window.lr = 0.5; /* the best is not the last */
    return o;
}

static bool is_there(const char *out, const char *name)
{
    char *path = acr_sprintf("%s/%s", out, name);
    bool there = acr_is_dir(path) || acr_is_file(path);

    acr_free(path);
    return there;
}

static int best_of(const char *out)
{
    char *path = acr_sprintf("%s/checkpoint_best", out), target[16] = "";

    assert_true(readlink(path, target, sizeof target - 1) > 0);
    acr_free(path);
    return atoi(target);
}

/* The newest N and the best, each with its link, and no other. */
static void test_keep(void **state)
{
    (void)state;
    for (int64_t keep = 1; keep <= 4; keep++) {
        char *out = acr_sprintf("%s/keep%lld", folder, (long long)keep);
        accrue_train_options o = options(out);
        accrue_error e = {0};
        int best = 0;
        o.keep = keep;
        assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
        best = best_of(out);
        assert_true(best < 4);
        for (int i = 0; i < 5; i++) {
            char name[32], link[32];
            snprintf(name, sizeof name, "%d", i);
            snprintf(link, sizeof link, "epoch%d_end", i);
            assert_int_equal(is_there(out, name), i == best || i >= 5 - keep);
            assert_int_equal(is_there(out, link), i == best || i >= 5 - keep);
        }
        acr_free(out);
    }
}

/* Nothing goes but whole checkpoints of this training: not another's, not a folder that holds more,
 * not one that is damaged, not a link. */
static void test_not_for_removal(void **state)
{
    char *out = acr_sprintf("%s/others", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};
    accrue_event_cb none = NULL;

    (void)state;
    assert_ok(accrue_train(&o, none, NULL, &e), &e);
    shell(acr_sprintf("cd '%s' && touch 0/notes.txt && truncate -s -1 1/model.safetensors && "
                      "mv 2 elsewhere && ln -s elsewhere 2 && mkdir 00 07 && rm checkpoint_best",
                      out));
    o.keep = 1;
    o.epochs = 7;
    assert_ok(accrue_train(&o, none, NULL, &e), &e);
    assert_true(is_there(out, "0/notes.txt"));
    assert_true(is_there(out, "1/model.safetensors"));
    assert_true(is_there(out, "elsewhere/model.safetensors"));
    assert_true(is_there(out, "00") && is_there(out, "07"));
    assert_true(is_there(out, "6"));
    assert_false(is_there(out, "5"));

    /* The next generation leaves the one before it alone. */
    o.no_resume = true;
    o.epochs = 3;
    assert_ok(accrue_train(&o, none, NULL, &e), &e);
    assert_true(is_there(out, "6"));
    acr_free(out);
}

static double acceptance(const char *out, int epoch)
{
    char *path = acr_sprintf("%s/%d/val_metrics.json", out, epoch);
    double all = 1, length = 0;
    json_t *o = NULL;
    accrue_error e = {0};

    assert_ok(acr_json_load(&o, path, 1 << 20, &e), &e);
    for (int k = 0; k < 3; k++) {
        char key[32];
        snprintf(key, sizeof key, "cond_acc_%d_epoch", k);
        all *= json_number_value(json_object_get(o, key));
        length += all;
    }
    json_decref(o);
    acr_free(path);
    return length;
}

/* The first of the epochs with the greatest acceptance is the best; another than by loss. */
static void test_best_by_acceptance(void **state)
{
    char *out = acr_sprintf("%s/accepted", folder), *by_loss = acr_sprintf("%s/lost", folder);
    accrue_train_options o = options(by_loss);
    accrue_error e = {0};
    int best = 0;

    (void)state;
    o.epochs = 8;
    o.window.lr = 0.05;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    o.save_path = out;
    o.best_metric = ACCRUE_BEST_ACCEPTANCE;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    for (int i = 1; i < 8; i++)
        best = acceptance(out, i) > acceptance(out, best) ? i : best;
    assert_true(acceptance(out, best) > 0);
    assert_int_equal(best_of(out), best);
    assert_true(best_of(by_loss) != best);
    acr_free(out);
    acr_free(by_loss);
}

static void test_acceptance_of_metrics(void **state)
{
    accrue_metrics m = {.n_steps = 3,
                        .cond_acc_sum = {6, 2, 1},
                        .cond_acc_total = {8, 4, 2},
                        .full_acc_sum = {9, 9, 9},
                        .full_acc_total = {1, 1, 1}};

    (void)state;
    assert_true(accrue_metrics_acceptance(&m) == 0.75 + 0.75 * 0.5 + 0.75 * 0.5 * 0.5);
    m.cond_acc_total[1] = m.cond_acc_sum[1] = 0; /* nothing was asked of it */
    assert_true(accrue_metrics_acceptance(&m) == 0.75);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_not_for_removal),
        cmocka_unit_test(test_best_by_acceptance),
        cmocka_unit_test(test_acceptance_of_metrics),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
