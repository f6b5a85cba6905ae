/* test_ranks_bits.c - with --reproducible every split over ranks and micro-batches, every layout
 * and every number of threads give the same bits; without it, f32 differs by its rounding. */
#include "ranks_test.h"

#include "folder_test.h"

static const int64_t sizes[] = {1, 2, 3, 4, 6, 8};

static void assert_same_bits(const ranks_run *a, const ranks_run *b, const char *what)
{
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++)
        if (memcmp(&a->masters[0][i], &b->masters[0][i], sizeof(double)) != 0)
            fail_msg("%s: element %lld is %.17g, %.17g expected", what, (long long)i,
                     a->masters[0][i], b->masters[0][i]);
}

/* The ranks' steps and masters are those of one rank, to the bit. */
static void check_split(const accrue_train_options *given, const ranks_run *first, int64_t window,
                        int ranks, layout l)
{
    accrue_train_options o = *given;
    ranks_run split;
    char what[96];

    snprintf(what, sizeof what, "%lld x %d, %s", (long long)(window / ranks), ranks,
             layout_names[l]);
    set_split(&o, window, ranks, l);
    train_pieces(&split, &o, ranks);
    assert_same_bits(&split, first, what);
    for (int k = 0; k < ranks; k++)
        assert_same_steps(&split.steps[k], &first->steps[0], true);
    ranks_run_free(&split);
}

static void check_window(world *w, const accrue_train_options *given, int64_t window)
{
    const int64_t windows[] = {window, window, 1 + (int64_t)draw(w, (uint64_t)window)};
    accrue_train_options o = *given;
    ranks_run first;

    o.accumulation_tail = ACCRUE_TAIL_STEP;
    o.reproducible = true;
    o.batch_plan = random_plan(w, folder, o.total_seq_len, windows, 3);
    set_split(&o, window, 1, REPLICATED);
    train_pieces(&first, &o, 1);
    assert_int_equal(first.steps[0].n, 3);
    for (int ranks = 2; ranks <= MAX_RANKS; ranks++)
        for (layout l = REPLICATED; l < LAYOUTS && window % ranks == 0; l++)
            check_split(&o, &first, window, ranks, l);
    if (window == 6) { /* the first run's pool has two */
        accrue_set_threads(1);
        check_split(&o, &first, window, 1, REPLICATED);
        accrue_set_threads(6);
        check_split(&o, &first, window, 2, SHARDED);
        accrue_set_threads(2);
    }
    ranks_run_free(&first);
    acr_free((void *)(uintptr_t)o.batch_plan);
}

static const struct {
    accrue_dtype compute;
    accrue_optimizer optimizer;
    accrue_loss_normalization normalization;
    int layers;
    bool embed;
} cases[] = {
    {ACCRUE_F64, ACCRUE_ADAMW, ACCRUE_NORMALIZE_TOKEN, 1, false},
    {ACCRUE_F64, ACCRUE_MUON, ACCRUE_NORMALIZE_MICROBATCH, 2, false},
    {ACCRUE_F32, ACCRUE_ADAMW, ACCRUE_NORMALIZE_MICROBATCH, 2, true},
    {ACCRUE_F32, ACCRUE_MUON, ACCRUE_NORMALIZE_TOKEN, 1, false},
    {ACCRUE_BF16, ACCRUE_ADAMW, ACCRUE_NORMALIZE_TOKEN, 1, true},
    {ACCRUE_BF16, ACCRUE_MUON, ACCRUE_NORMALIZE_MICROBATCH, 2, false},
};

static void reproducible_splits_are_alike_to_the_bit(void **state)
{
    world w;

    (void)state;
    world_open(&w, folder, &blocks_spec);
    for (int i = FEW; i < ACR_COUNT(cases); i += 1 + FEW) {
        accrue_train_options o = world_options(&w, folder);
        o.compute = cases[i].compute;
        o.window.optimizer = cases[i].optimizer;
        o.window.loss_normalization = cases[i].normalization;
        o.num_layers = cases[i].layers;
        o.embed_requires_grad = cases[i].embed;
        for (int s = FEW ? 3 : 0; s < ACR_COUNT(sizes) - FEW; s++)
            check_window(&w, &o, sizes[s]);
    }
    world_close(&w);
}

/* Left in mid-window ---------------------------------------------------------------------- */

static accrue_status leave_epoch(ranks_run *r, accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    (void)r;
    for (int i = 0; i < 3; i++) {
        ACR_TRY(accrue_run_epoch(run, 0, err));
        ACR_TRY(one_place(run, err));
        if (i == 1)
            ACR_TRY(one_place(run, err));
    }

cleanup:
    return st;
}

/* What a window has gathered that is never finished is gone, also what was still being reduced. */
static void an_epoch_left_in_mid_window(void **state)
{
    const int64_t windows[] = {9, 9};
    world w;

    (void)state;
    world_open(&w, folder, &blocks_spec);
    for (layout l = REPLICATED; l < LAYOUTS; l++) {
        accrue_train_options o = world_options(&w, folder);
        ranks_run straight, left = {.opt = &o, .ranks = 3, .opened = leave_epoch};
        o.batch_plan = random_plan(&w, folder, o.total_seq_len, windows, 2);
        set_split(&o, 9, 3, l);
        train_pieces(&straight, &o, 3);
        train_hooked(&left);
        assert_same_bits(&left, &straight, layout_names[l]);
        ranks_run_free(&left);
        ranks_run_free(&straight);
        acr_free((void *)(uintptr_t)o.batch_plan);
    }
    world_close(&w);
}

/* Without the flag ------------------------------------------------------------------------ */

/* Largest difference, and the largest element of the second. */
static double largest_difference(const ranks_run *a, const ranks_run *b, double *size)
{
    double most = 0;

    *size = 0;
    for (int64_t i = 0; i < a->n; i++) {
        most = fmax(most, fabs(a->masters[0][i] - b->masters[0][i]));
        *size = fmax(*size, fabs(b->masters[0][i]));
    }
    return most;
}

/* Bounds in f32.  An element of the window's gradient is a sum of fewer than 2^9 terms (rows of its
 * micro-batches and TTT steps, then ranks), of which another order changes each partial sum's last
 * bit: 2^9 * 2^-24 = 2^-15 of the largest element.  Here AdamW's eps is 1, so that a step is close
 * to linear in the gradient, clipped to a norm of 1: the bound holds for what three steps of lr
 * have moved, beside the rounding of the parameters themselves. */
static void f32_stays_within_its_bound(void **state)
{
    const int64_t windows[] = {6, 6, 6};
    double worst = 0, size = 0;
    ranks_run first, start;
    world w;

    (void)state;
    world_open(&w, folder, &blocks_spec);
    for (int token = 0; token < 2; token++) {
        accrue_train_options o = world_options(&w, folder);
        o.compute = ACCRUE_F32;
        o.window.loss_normalization = token ? ACCRUE_NORMALIZE_TOKEN : ACCRUE_NORMALIZE_MICROBATCH;
        o.window.eps = 1;
        o.window.lr = 1;
        o.window.weight_decay = 0;
        o.batch_plan = random_plan(&w, folder, o.total_seq_len, windows, 3);
        set_split(&o, 6, 1, REPLICATED);
        o.window.lr = 0;
        train_pieces(&start, &o, 1);
        o.window.lr = 1;
        train_pieces(&first, &o, 1);
        for (int ranks = 2; ranks <= 3; ranks++)
            for (layout l = REPLICATED; l < LAYOUTS; l++) {
                ranks_run split;
                double moved = largest_difference(&first, &start, &size), off = 0;
                set_split(&o, 6, ranks, l);
                train_pieces(&split, &o, ranks);
                off = largest_difference(&split, &first, &size);
                worst = fmax(worst, off / moved);
                assert_true(off <= 0x1p-15 * moved + 3 * 0x1p-24 * size);
                for (int k = 0; k < ranks; k++)
                    assert_same_steps(&split.steps[k], &first.steps[0], false);
                ranks_run_free(&split);
            }
        ranks_run_free(&first);
        ranks_run_free(&start);
        acr_free((void *)(uintptr_t)o.batch_plan);
    }
    print_message("f32: within %.1e of the largest change\n", worst);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reproducible_splits_are_alike_to_the_bit),
        TEST(an_epoch_left_in_mid_window),
        TEST(f32_stays_within_its_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
