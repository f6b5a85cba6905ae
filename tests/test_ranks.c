/* test_ranks.c - the same window gives the same update however it is split over ranks and
 * micro-batches, and it is the one that follows from its definition. */
#include "ranks_reference.h"

#include "folder_test.h"

/* Numbers of micro-batches in a window, of all ranks. */
static const int64_t sizes[] = {1, 2, 3, 4, 6, 8};

/* Each parameter within the bound, relative to its largest element. */
static double assert_near(const ranks_run *got, const reference *want, double bound,
                          const char *what)
{
    const acr_model *m = want->setup.model;
    double worst = 0;
    int64_t at = 0;

    assert_int_equal(got->n, want->n);
    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        const double *w = p->master;
        double difference = 0, size = 0;
        if (!p->trainable)
            continue;
        for (int64_t j = 0; j < p->rows * p->cols; j++) {
            difference = fmax(difference, fabs(got->masters[0][at + j] - w[j]));
            size = fmax(size, fabs(w[j]));
        }
        at += p->rows * p->cols;
        if (!(difference <= bound * size))
            fail_msg("%s: %s is off by %g of its largest element", what, p->name,
                     difference / size);
        worst = fmax(worst, difference / size);
    }
    return worst;
}

/* All splits of windows of that size over ranks, and all layouts of those. */
static double check_splits(const accrue_train_options *given, int64_t window, const reference *r)
{
    accrue_train_options o = *given;
    double worst = 0;
    ranks_run first;

    set_split(&o, window, 1, REPLICATED);
    train_pieces(&first, &o, 1);
    worst = assert_near(&first, r, 1e-12, "1 rank");
    assert_int_equal(first.steps[0].n, r->step);
    assert_true(fabs(first.steps[0].step[r->step - 1].grad_norm - r->norm) <= 1e-12 * r->norm);
    for (int ranks = 2; ranks <= MAX_RANKS; ranks++)
        for (layout l = REPLICATED; l < LAYOUTS && window % ranks == 0; l++) {
            char what[96];
            ranks_run split;
            snprintf(what, sizeof what, "%lld x %d, %s", (long long)(window / ranks), ranks,
                     layout_names[l]);
            set_split(&o, window, ranks, l);
            train_pieces(&split, &o, ranks);
            worst = fmax(worst, assert_near(&split, r, 1e-12, what));
            for (int k = 0; k < ranks; k++)
                assert_same_steps(&split.steps[k], &first.steps[0], false);
            ranks_run_free(&split);
        }
    ranks_run_free(&first);
    return worst;
}

/* Two whole windows and one that may be short, down to a single micro-batch, so that most ranks
 * have none in it; every other time the tail behind three windows is dropped. */
static double check_window(world *w, const accrue_train_options *given, int64_t window, bool drop)
{
    const int64_t tail = drop ? window : 1 + (int64_t)draw(w, (uint64_t)window);
    const int64_t windows[] = {window, window, tail, window - 1};
    accrue_train_options o = *given;
    reference r;
    double worst = 0;

    o.accumulation_tail = drop ? ACCRUE_TAIL_DROP : ACCRUE_TAIL_STEP;
    o.batch_plan = random_plan(w, folder, o.total_seq_len, windows, drop && window > 1 ? 4 : 3);
    o.window.gradient_accumulation_steps = window;
    reference_open(&r, &o);
    reference_train(&r, window);
    assert_int_equal(r.step, 3);
    worst = check_splits(&o, window, &r);
    reference_close(&r);
    acr_free((void *)(uintptr_t)o.batch_plan);
    return worst;
}

static void check_draft(world *w, const accrue_train_options *o, const char *name)
{
    double worst = 0;

    for (int i = FEW ? 3 : 0; i < ACR_COUNT(sizes) - FEW; i++)
        worst = fmax(worst, check_window(w, o, sizes[i], i % 2));
    print_message("%-40s within %.1e\n", name, worst);
}

static const struct {
    accrue_optimizer optimizer;
    accrue_loss_normalization normalization;
    const char *name;
} cases[] = {{ACCRUE_ADAMW, ACCRUE_NORMALIZE_TOKEN, "AdamW, token"},
             {ACCRUE_ADAMW, ACCRUE_NORMALIZE_MICROBATCH, "AdamW, microbatch"},
             {ACCRUE_MUON, ACCRUE_NORMALIZE_TOKEN, "Muon, token"},
             {ACCRUE_MUON, ACCRUE_NORMALIZE_MICROBATCH, "Muon, microbatch"}};

static void every_split_is_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i += 1 + FEW) {
        char *home = acr_sprintf("%s/%d", folder, i);
        world_spec spec = blocks_spec;
        accrue_train_options o;
        world w;
        spec.seed += (uint64_t)i;
        assert_int_equal(mkdir(home, 0777), 0);
        world_open(&w, home, &spec);
        o = world_options(&w, folder);
        o.window.optimizer = cases[i].optimizer;
        o.window.loss_normalization = cases[i].normalization;
        check_draft(&w, &o, cases[i].name);
        world_close(&w);
        acr_free(home);
    }
}

/* The first and the last case of a draft that is not the usual one. */
static void check_other_draft(void (*change)(accrue_train_options *o, int i), const char *what)
{
    world w;

    world_open(&w, folder, &blocks_spec);
    for (int i = 0; i < ACR_COUNT(cases) - FEW; i += 3) {
        accrue_train_options o = world_options(&w, folder);
        double worst = 0;
        o.window.optimizer = cases[i].optimizer;
        o.window.loss_normalization = cases[i].normalization;
        change(&o, i);
        for (int drop = 0; drop < 2; drop++) {
            worst = fmax(worst, check_window(&w, &o, 4, drop));
            worst = fmax(worst, check_window(&w, &o, 6, drop));
        }
        print_message("%s, %-*s within %.1e\n", what, 38 - (int)strlen(what), cases[i].name, worst);
    }
    world_close(&w);
}

static void two_layers(accrue_train_options *o, int i)
{
    o->num_layers = 2;
    o->ttt_steps = i ? 1 : 2;
}

static void own_embedding(accrue_train_options *o, int i)
{
    (void)i;
    o->embed_requires_grad = true;
}

/* Groups that are released between their uses, and one that backward comes to last. */
static void so_is_a_draft_of_two_layers(void **state)
{
    (void)state;
    check_other_draft(two_layers, "two layers");
}

static void so_is_one_that_trains_its_embedding(void **state)
{
    (void)state;
    check_other_draft(own_embedding, "embedding");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_split_is_the_reference),
        TEST(so_is_a_draft_of_two_layers),
        TEST(so_is_one_that_trains_its_embedding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
