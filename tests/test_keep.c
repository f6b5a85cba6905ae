/* Which checkpoints stay: --keep, --best-metric, and folders that are not for removal. */
#include "resume_test.h"

#include "folder_test.h"

static accrue_train_options options(const char *out)
{
    accrue_train_options o = tiny_options(out);

    o.compute = ACCRUE_F32;
    o.epochs = 5;
    o.window.gradient_accumulation_steps = 4;
    o.window.lr = 0.25; /* the best is not the last */
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

static void expect(const char *dir, const char *test)
{
    shell(acr_sprintf("cd '%s' && %s", dir, test));
}

/* A checkpoint moved elsewhere, with a link in its place: the link is moved aside, and what it
 * points at stays whole. */
static void test_link_for_a_folder(void **state)
{
    (void)state;
    for (int best = 0; best < 2; best++) {
        char *out = acr_sprintf("%s/linked%d", folder, best);
        char *disk = acr_sprintf("%s/disk%d", folder, best);
        accrue_train_options o = options(out);
        accrue_error e = {0};
        o.save_best = best;
        o.epochs = 2;
        o.window.lr = 1e-2; /* each epoch is better */
        assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
        shell(acr_sprintf("mkdir '%s' && cp -r '%s/1' '%s/copy' && mv '%s/1' '%s/1'", disk, out,
                          disk, out, disk));
        shell(acr_sprintf("ln -s ../disk%d/1 '%s/1'", best, out));
        o.epochs = 3;
        assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
        expect(disk, "diff -r 1 copy");
        expect(out, best ? "test ! -e 1 -a -h 1.aside-1 -a -d 2"
                         : "test -d 1 -a ! -h 1 -a -h 1.aside-1 -a -d 2");
        expect(out, "test -z \"$(ls -d .*.tmp-* 2>/dev/null)\"");
        acr_free(out);
        acr_free(disk);
    }
}

/* What is not a checkpoint of this training stays, whatever it is called. */
static void test_foreign_names(void **state)
{
    char *out = acr_sprintf("%s/foreign", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    o.save_best = true;
    o.epochs = 3;
    o.window.lr = 1e-2;
    shell(acr_sprintf("mkdir -p '%s/.7.tmp-20/sub' '%s/.experiment.tmp-2024' '%s/epoch2_end'", out,
                      out, out));
    expect(out, "echo a > .experiment.tmp-2024/thesis.txt && echo b > .7.tmp-20/mine.txt && "
                "ln -s /somewhere epoch0_backup && ln -s /x .cache.tmp-1 && "
                "echo best > checkpoint_best && ln -s /y epoch1_end");
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    expect(out, "test -f .experiment.tmp-2024/thesis.txt -a -f .7.tmp-20/mine.txt -a "
                "-d .7.tmp-20/sub -a -h epoch0_backup -a -h .cache.tmp-1");
    expect(out, "test \"$(cat checkpoint_best.aside-1)\" = best -a -d epoch2_end.aside-1 -a "
                "-h epoch1_end.aside-1");
    expect(out, "test \"$(readlink checkpoint_best)\" = 2 -a \"$(readlink epoch2_end)\" = 2");
    assert_notice(&t, "checkpoint_best: was no link to a checkpoint; it is now ");
    forget(&t);

    /* A folder of the superseded epoch's name, before a run with nothing left to do and another. */
    expect(out, "mkdir 1 && echo eval > 1/results.txt");
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    o.epochs = 4;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    expect(out, "test -f 1/results.txt -a -d 3");
    acr_free(out);
}

/* The last epoch is saved, due or not: a finished training has nothing left to do. */
static void test_last_epoch(void **state)
{
    char *out = acr_sprintf("%s/last", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    o.checkpoint_freq = 3;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    expect(out, "test -d 0 -a ! -d 1 -a -d 2 -a ! -d 3 -a -d 4");
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_notice(&t, "this training is finished");
    assert_int_equal(t.micro_batches, 0);
    forget(&t);
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
        cmocka_unit_test(test_link_for_a_folder),
        cmocka_unit_test(test_foreign_names),
        cmocka_unit_test(test_last_epoch),
        cmocka_unit_test(test_best_by_acceptance),
        cmocka_unit_test(test_acceptance_of_metrics),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
