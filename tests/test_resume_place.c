/* Where in an epoch a run goes on: before its first sample, or at one that a checkpoint tells. */
#include "bad_rows_test.h"

#include "folder_test.h"

static void a_run_that_gives_an_epochs_first_window_up_goes_on(void **state)
{
    char *a = acr_sprintf("%s/a", folder), *b = acr_sprintf("%s/b", folder);
    char *plan =
        plan_of(folder, "plan.json", "[[0],[1],[2],[3]],[[4],[5],[6],[7]],[[8],[9],[10],[11]]", "");
    char *link = acr_sprintf("%s/epoch2_step0", b);
    accrue_train_options o = plan_options(plan, a);
    logbook straight = {0}, parts = {.answer = ACCRUE_GIVE_UP_AND_STOP};
    accrue_error e = {0};

    (void)state;
    o.epochs = 3;
    o.window.gradient_accumulation_steps = 2;
    o.checkpoint_freq = 3;
    assert_ok(accrue_train(&o, write_log, &straight, &e), &e);
    o.save_path = b;
    /* START; EPOCH, 4 micro-batches and 2 steps twice; EPOCH and the first micro-batch */
    parts.stop_at = 1 + 7 + 7 + 2;
    assert_fails(accrue_train(&o, write_log, &parts, &e), ACCRUE_ECANCELED, &e, NULL);
    assert_true(acr_is_dir(link));
    parts.stop_at = 0;
    assert_ok(accrue_train(&o, write_log, &parts, &e), &e);
    assert_int_equal(parts.resumed, 1);
    assert_same_log(&straight, &parts);
    assert_same_tree(a, b);
    acr_free(straight.records);
    acr_free(parts.records);
    acr_free(link);
    acr_free(plan);
    remove_folder(a);
    remove_folder(b);
}

/* Two epochs of two windows of three micro-batches of two rows. */
static const char train[] =
    "[[0,1],[2,3],[4,5],[20,6],[8,7],[10,9]],[[1,2],[3,4],[5,6],[7,8],[9,10],[11,0]]";

static void edit_state(const char *dir, const char *key, json_t *value)
{
    char *path = acr_sprintf("%s/training_state.json", dir);
    json_t *o = NULL;

    assert_int_equal(acr_json_load(&o, path, 1 << 20, NULL), ACCRUE_OK);
    if (value)
        json_object_set_new(o, key, value);
    else
        json_object_del(o, key);
    assert_int_equal(json_dump_file(o, path, 0), 0);
    json_decref(o);
    acr_free(path);
    remake_manifest(dir);
}

/* The place is told by samples; local_step must say the same, and is enough where it is alone. */
static void a_run_goes_on_at_the_sample_that_the_checkpoint_names(void **state)
{
    char *a = acr_sprintf("%s/a", folder), *b = acr_sprintf("%s/b", folder);
    char *plan = plan_of(folder, "plan.json", train, "[[50]],[[51]]"),
         *dir = acr_sprintf("%s/0", b);
    accrue_train_options o = plan_options(plan, a);
    const struct {
        int64_t samples, local_step;
        const char *behind;
    } wrong[] = {{5, 3, "behind 6"},  {4, 3, "behind 6"},  {0, 3, "behind 6"},
                 {6, 2, "behind 4"},  {12, 3, "behind 6"}, {0, 6, "behind 12"},
                 {6, 0, "behind 12"}, {13, 0, "behind 12"}};
    logbook straight = {0}, parts = {.stop_at = 6, .answer = ACCRUE_SAVE_AND_STOP};
    accrue_error e = {0};

    (void)state;
    assert_ok(accrue_train(&o, write_log, &straight, &e), &e);
    o.save_path = b;
    assert_fails(accrue_train(&o, write_log, &parts, &e), ACCRUE_ECANCELED, &e, NULL);
    for (int i = 0; i < ACR_COUNT(wrong); i++) {
        char *samples = acr_sprintf("\"samples\" is %lld,", (long long)wrong[i].samples);
        char *place = acr_sprintf("micro-batch %lld of epoch 0", (long long)wrong[i].local_step);
        edit_state(dir, "samples", json_integer(wrong[i].samples));
        edit_state(dir, "local_step", json_integer(wrong[i].local_step));
        assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, dir, samples, place,
                     wrong[i].behind, NULL);
        acr_free(samples);
        acr_free(place);
    }
    edit_state(dir, "local_step", json_integer(3));
    edit_state(dir, "samples", NULL);
    parts.stop_at = 0;
    assert_ok(accrue_train(&o, write_log, &parts, &e), &e);
    assert_int_equal(parts.resumed, 1);
    assert_same_log(&straight, &parts);
    assert_same_file(a, b, "1/state.tensors");
    acr_free(straight.records);
    acr_free(parts.records);
    acr_free(dir);
    acr_free(plan);
    remove_folder(a);
    remove_folder(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_run_that_gives_an_epochs_first_window_up_goes_on),
        TEST(a_run_goes_on_at_the_sample_that_the_checkpoint_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
