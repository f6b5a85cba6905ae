/* Runs in threads of one process, each with a pool of its own: each gets what it gets alone. */
#include "train_test.h"

#include <pthread.h>

enum { RUNS = 3 };

typedef struct side {
    pthread_t thread;
    accrue_train_options opt;
    char *save_path;
    int threads;
    acr_ledger ledger;
    accrue_status status;
    accrue_error error;
} side;

static char *folder;

static void *train(void *arg)
{
    side *s = arg;
    acr_pool *pool = NULL;

    acr_ledger_use(&s->ledger);
    s->status = acr_pool_enter(&pool, s->threads, &s->error);
    if (!s->status)
        s->status = accrue_train(&s->opt, NULL, NULL, &s->error);
    acr_pool_leave(pool);
    acr_ledger_use(NULL);
    return NULL;
}

static side make_side(const char *name, accrue_dtype compute, const char *plan, int threads)
{
    side s = {.save_path = acr_sprintf("%s/%s", folder, name), .threads = threads};

    s.opt = tiny_options(s.save_path);
    s.opt.compute = compute;
    s.opt.batch_plan = plan;
    s.opt.window.optimizer = ACCRUE_MUON;
    s.opt.window.gradient_accumulation_steps = 3;
    return s;
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    char *command = acr_sprintf("cmp '%s/0/%s' '%s/0/%s'", a, name, b, name);

    assert_int_equal(system(command), 0);
    acr_free(command);
}

/* Two runs in f64 and one in bf16 at once, with 1, 2 and 3 threads; then one of each alone. */
static void test_bits(void **state)
{
    char *plan = write_single_plan(folder, 128, 6);
    side alone[2] = {make_side("alone", ACCRUE_F64, plan, 2),
                     make_side("alone16", ACCRUE_BF16, plan, 2)};
    side sides[RUNS] = {make_side("a", ACCRUE_F64, plan, 1), make_side("b", ACCRUE_F64, plan, 2),
                        make_side("c", ACCRUE_BF16, plan, 3)};

    (void)state;
    for (int i = 0; i < RUNS; i++)
        assert_int_equal(pthread_create(&sides[i].thread, NULL, train, &sides[i]), 0);
    for (int i = 0; i < RUNS; i++)
        assert_int_equal(pthread_join(sides[i].thread, NULL), 0);
    train(&alone[0]);
    train(&alone[1]);
    for (int i = 0; i < RUNS; i++) {
        const side *like = &alone[i / 2];
        assert_ok(sides[i].status, &sides[i].error);
        assert_ok(like->status, &like->error);
        assert_same_file(sides[i].save_path, like->save_path, "model.safetensors");
        assert_same_file(sides[i].save_path, like->save_path, "state.tensors");
        assert_int_equal(sides[i].ledger.live, 0);
        assert_true(sides[i].ledger.high > 0);
    }
    for (int i = 0; i < RUNS; i++)
        acr_free(sides[i].save_path);
    acr_free(alone[0].save_path);
    acr_free(alone[1].save_path);
    acr_free(plan);
}

static int make(void **state)
{
    (void)state;
    folder = make_folder();
    return 0;
}

static int clear(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_bits, make, clear)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
