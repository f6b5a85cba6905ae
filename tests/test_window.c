/* test_window.c - the accumulation contract on arrays that the caller owns: boundaries, the two
 * normalisations, empty and short windows, call orders, refusals, memory.
 *
 * The model is the own-loop example's: linear, mean squared error.  What it is compared with is a
 * plain AdamW loop written here. */
#include "window_test.h"

#define assert_near(a, b, bound) assert_true(fabs((a) - (b)) <= (bound))

enum { ROWS = 16, INPUTS = 3, PARAMS = INPUTS + 1 };

typedef struct model {
    double p[PARAMS], g[PARAMS]; /* the bias is last */
} model;

static double input(int row, int i)
{
    return i == INPUTS ? 1.0 : sin(1.0 + row * (i + 2.0));
}

/* Mean squared error over rows [first, first + n), and its gradient. */
static double backward(model *m, int first, int n)
{
    double loss = 0.0;

    memset(m->g, 0, sizeof m->g);
    for (int r = first; r < first + n; r++) {
        double error = -cos((double)r);
        for (int i = 0; i < PARAMS; i++)
            error += m->p[i] * input(r, i);
        loss += error * error / n;
        for (int i = 0; i < PARAMS; i++)
            m->g[i] += 2.0 * error * input(r, i) / n;
    }
    return loss;
}

/* The plain loop: clip and AdamW as torch writes them, linear schedule with one warm-up step. */
typedef struct plain {
    double m[PARAMS], v[PARAMS];
    int step;
} plain;

static double multiply_add(double a, double b, double c)
{
#ifdef FP_FAST_FMA
    return fma(a, b, c);
#else
    return a * b + c;
#endif
}

static void plain_step(plain *s, model *m, double norm)
{
    const double clip = fmin(1.0, 1.0 / (norm + 1e-6));
    const double lr = 0.05 * (s->step < 1 ? (double)s->step / 1.0 : (10.0 - s->step) / 9.0);

    s->step++;
    for (int i = 0; i < PARAMS; i++) {
        double g = m->g[i] * clip, denominator = 0.0;
        m->p[i] *= 1.0 - lr * 0.01;
        s->m[i] = multiply_add(1.0 - 0.9, g - s->m[i], s->m[i]);
        s->v[i] = s->v[i] * 0.999 + (1.0 - 0.999) * g * g;
        denominator = sqrt(s->v[i]) / sqrt(1.0 - pow(0.999, s->step)) + 1e-8;
        m->p[i] += -(lr / (1.0 - pow(0.9, s->step))) * s->m[i] / denominator;
    }
}

static double norm_of(const double *g)
{
    double sum = 0.0;

    for (int i = 0; i < PARAMS; i++)
        sum += g[i] * g[i];
    return sqrt(sum);
}

static void assert_close(const double *a, const double *b, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= 1e-12 + 1e-12 * fabs(b[i])))
            fail_msg("element %d: %.17g, %.17g expected", i, a[i], b[i]);
}

static void test_boundary(void **state)
{
    const int ns[] = {1, 2, 4};

    (void)state;
    for (int k = 0; k < ACR_COUNT(ns); k++) {
        const int n = ns[k];
        model m = {0}, whole = {0};
        plain reference = {0};
        accrue_window_options o = options(n);
        accrue_window *w = open(&o, m.p, m.g, PARAMS);
        assert_false(accrue_window_at_boundary(w));
        for (int i = 1; i <= 8; i++) {
            model before = m;
            double loss = backward(&m, 2 * (i - 1), 2), whole_loss = 0.0;
            bool stepped = micro_batch(w, loss, 1.0);
            assert_true(stepped == (i % n == 0));
            assert_true(accrue_window_at_boundary(w) == (i % n == 0));
            assert_int_equal(accrue_window_micro_batches(w), i);
            assert_int_equal(accrue_window_global_step(w), i / n);
            if (!stepped) {
                assert_memory_equal(m.p, before.p, sizeof m.p);
                continue;
            }
            whole_loss = backward(&whole, 2 * (i - n), 2 * n);
            plain_step(&reference, &whole, norm_of(whole.g));
            assert_close(m.p, whole.p, PARAMS);
            assert_near(accrue_window_loss(w), whole_loss, 1e-12);
        }
        assert_int_equal(accrue_window_global_step(w), 8 / n);
        assert_int_equal(reference.step, 8 / n);
        assert_true(fabs(m.p[0]) > 1e-3);
        accrue_window_free(w);
    }
}

static void test_counter_carries_on(void **state)
{
    model m = {0};
    accrue_window_options o = options(4);
    accrue_window *w = open(&o, m.p, m.g, PARAMS);
    int stepped_at[8] = {0}, n = 0, count = 0;

    (void)state;
    /* Three loops over 6, 3 and 5 micro-batches: 14 in all. */
    for (int loop = 0; loop < 3; loop++)
        for (int i = 0; i < (loop == 0 ? 6 : loop == 1 ? 3 : 5); i++) {
            count++;
            if (micro_batch(w, backward(&m, i, 2), 1.0))
                stepped_at[n++] = count;
        }
    assert_int_equal(n, 3);
    assert_int_equal(stepped_at[0], 4);
    assert_int_equal(stepped_at[1], 8);
    assert_int_equal(stepped_at[2], 12);
    assert_int_equal(acr_window_filled(w), 2);
    accrue_window_free(w);
}

static void test_one_is_plain(void **state)
{
    model m = {0}, mine = {0};
    plain reference = {0};
    accrue_window_options o = options(1);
    accrue_window *w = NULL;
    bool clipped = false;

    (void)state;
    mine.p[0] = m.p[0] = -0.0;
    mine.p[1] = m.p[1] = 3.0;
    w = open(&o, m.p, m.g, PARAMS);
    for (int i = 0; i < 8; i++) {
        double norm = 0.0;
        double loss = backward(&m, 2 * i, 2);
        backward(&mine, 2 * i, 2);
        assert_memory_equal(m.g, mine.g, sizeof m.g);
        assert_int_equal(accrue_window_backward(w, loss, 1.0, NULL), 0);
        assert_int_equal(accrue_window_clip(w, &norm, NULL), 0);
        assert_int_equal(accrue_window_step(w, NULL, NULL), 0);
        assert_true(norm >= norm_of(mine.g) && norm <= norm_of(mine.g));
        clipped = clipped || norm > 1.0;
        plain_step(&reference, &mine, norm_of(mine.g));
        assert_memory_equal(m.p, mine.p, sizeof m.p);
        accrue_window_lr_step(w);
        accrue_window_zero_grad(w);
    }
    assert_true(clipped);
    accrue_window_free(w);
}

/* The window's gradient, read off AdamW's first moment after one step. */
static double window_gradient(accrue_loss_normalization normalization, bool cut_short)
{
    double p = 0.0, g = 2.0, first = 0.0;
    accrue_window_options o = options(cut_short ? 5 : 2);
    accrue_window *w = NULL;
    bool stepped = false;

    o.loss_normalization = normalization;
    o.clip_norm = 0.0;
    o.beta1 = 0.0; /* the first moment is the gradient */
    o.warmup_steps = 0;
    w = open(&o, &p, &g, 1);
    assert_false(micro_batch(w, 4.0, 1.0));
    assert_near(accrue_window_loss(w), 0.0, 0.0);
    g = 90.0;
    assert_int_equal(accrue_window_backward(w, 180.0, 9.0, NULL), 0);
    if (cut_short) {
        assert_false(accrue_window_at_boundary(w));
        assert_true(acr_window_close_short(w));
        assert_false(acr_window_close_short(w));
    }
    assert_true(accrue_window_at_boundary(w));
    /* The loss is normalised alike: twice the gradient here. */
    assert_near(accrue_window_loss(w), normalization == ACCRUE_NORMALIZE_TOKEN ? 18.4 : 12.0,
                1e-13);
    assert_int_equal(accrue_window_step(w, &stepped, NULL), 0);
    assert_true(stepped);
    first = *(double *)acr_window_state(w, 0).data;
    accrue_window_free(w);
    return first;
}

static void test_normalisation(void **state)
{
    (void)state;
    assert_near(window_gradient(ACCRUE_NORMALIZE_TOKEN, false), 9.2, 1e-14);
    assert_near(window_gradient(ACCRUE_NORMALIZE_MICROBATCH, false), 6.0, 1e-14);
    /* Two micro-batches of a window of five, divided by their real number. */
    assert_near(window_gradient(ACCRUE_NORMALIZE_TOKEN, true), 9.2, 1e-14);
    assert_near(window_gradient(ACCRUE_NORMALIZE_MICROBATCH, true), 6.0, 1e-14);
}

static void test_empty_window(void **state)
{
    model m = {.p = {1.0, 2.0, 3.0, 4.0}};
    model before = {0};
    accrue_window_options o = options(2);
    accrue_window *w = open(&o, m.p, m.g, PARAMS);
    double lr = 0.0, moments[2][PARAMS], norm = 5.0;
    bool stepped = true;

    (void)state;
    assert_false(micro_batch(w, backward(&m, 0, 2), 1.0));
    assert_true(micro_batch(w, backward(&m, 2, 2), 1.0));
    lr = accrue_window_lr(w);
    before = m;
    memcpy(moments[0], acr_window_state(w, 0).data, sizeof moments[0]);
    memcpy(moments[1], acr_window_state(w, 1).data, sizeof moments[1]);
    assert_false(micro_batch(w, 0.0, 0.0));
    assert_int_equal(accrue_window_empty(w), 0);
    assert_int_equal(accrue_window_backward(w, 0.0, 0.0, NULL), 0);
    assert_true(accrue_window_at_boundary(w));
    assert_int_equal(accrue_window_clip(w, &norm, NULL), 0);
    assert_near(norm, 0.0, 0.0);
    assert_int_equal(accrue_window_step(w, &stepped, NULL), 0);
    assert_false(stepped);
    accrue_window_lr_step(w);
    accrue_window_zero_grad(w);
    assert_false(micro_batch(w, 0.0, 0.0)); /* opens the next window */
    assert_memory_equal(m.p, before.p, sizeof m.p);
    assert_memory_equal(acr_window_state(w, 0).data, moments[0], sizeof moments[0]);
    assert_memory_equal(acr_window_state(w, 1).data, moments[1], sizeof moments[1]);
    assert_true(accrue_window_lr(w) >= lr && accrue_window_lr(w) <= lr);
    assert_int_equal(accrue_window_empty(w), 1);
    assert_int_equal(accrue_window_global_step(w), 1);
    assert_int_equal(accrue_window_micro_batches(w), 5);
    /* One micro-batch of weight beside an empty one makes a window. */
    assert_true(micro_batch(w, backward(&m, 4, 2), 1.0));
    assert_int_equal(accrue_window_empty(w), 1);
    assert_int_equal(accrue_window_global_step(w), 2);
    accrue_window_free(w);
}

static void test_call_orders(void **state)
{
    model m = {0}, before = {0}, usual = {0};
    accrue_window_options o = options(2);
    accrue_window *w = NULL, *u = NULL;
    bool stepped = false;
    double lr = 0.0;

    (void)state;
    o.warmup_steps = 0;
    w = open(&o, m.p, m.g, PARAMS);
    u = open(&o, usual.p, usual.g, PARAMS);
    for (int i = 0; i < 8; i++) {
        micro_batch(u, backward(&usual, 2 * i, 2), 1.0);
        /* zero_grad first, everything twice, the schedule before the optimizer's second call. */
        accrue_window_zero_grad(w);
        accrue_window_zero_grad(w);
        assert_int_equal(accrue_window_backward(w, backward(&m, 2 * i, 2), 1.0, NULL), 0);
        assert_int_equal(accrue_window_clip(w, NULL, NULL), 0);
        assert_int_equal(accrue_window_clip(w, NULL, NULL), 0);
        assert_int_equal(accrue_window_step(w, &stepped, NULL), 0);
        assert_true(stepped == (i % 2 == 1));
        accrue_window_lr_step(w);
        assert_int_equal(accrue_window_step(w, &stepped, NULL), 0);
        assert_false(stepped);
        accrue_window_lr_step(w);
        assert_memory_equal(m.p, usual.p, sizeof m.p);
        assert_true(accrue_window_lr(w) >= accrue_window_lr(u) &&
                    accrue_window_lr(w) <= accrue_window_lr(u));
    }
    /* A gradient dropped at the boundary steps neither the parameters nor the schedule. */
    before = m;
    lr = accrue_window_lr(w);
    for (int i = 0; i < 2; i++)
        assert_int_equal(accrue_window_backward(w, backward(&m, 2 * i, 2), 1.0, NULL), 0);
    accrue_window_zero_grad(w);
    assert_int_equal(accrue_window_step(w, &stepped, NULL), 0);
    accrue_window_lr_step(w);
    assert_false(stepped);
    assert_memory_equal(m.p, before.p, sizeof m.p);
    assert_true(accrue_window_lr(w) >= lr && accrue_window_lr(w) <= lr);
    accrue_window_free(w);
    accrue_window_free(u);
}

/* A window whose owner never calls zero_grad, and does not step at one boundary. */
static void test_window_empties_itself(void **state)
{
    double p = 0.0, g = 1e3;
    accrue_window_options o = options(2);
    accrue_window *w = NULL;

    (void)state;
    o.clip_norm = 0.0;
    o.beta1 = 0.0;
    w = open(&o, &p, &g, 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(accrue_window_backward(w, 0.0, 1.0, NULL), 0);
    for (int i = 0; i < 2; i++) {
        g = i ? 5.0 : 3.0;
        assert_int_equal(accrue_window_backward(w, 0.0, 1.0, NULL), 0);
    }
    assert_int_equal(accrue_window_step(w, NULL, NULL), 0);
    assert_near(*(double *)acr_window_state(w, 0).data, 4.0, 1e-15);
    accrue_window_free(w);
}

static void test_nonfinite(void **state)
{
    model m = {0}, twin = {0};
    double bad[6] = {0}, p[6] = {0};
    accrue_window_options o = options(2);
    accrue_window *w = open(&o, m.p, m.g, PARAMS), *t = open(&o, twin.p, twin.g, PARAMS);
    accrue_error err = {0};
    double unused[6] = {0}, zeros[6] = {0};

    (void)state;
    assert_int_equal(accrue_window_add_param(w, "other", ACCRUE_F64, p, bad, 2, 3, NULL), 0);
    assert_int_equal(accrue_window_add_param(t, "other", ACCRUE_F64, unused, zeros, 2, 3, NULL), 0);
    assert_false(micro_batch(w, backward(&m, 0, 2), 1.0));
    assert_false(micro_batch(t, backward(&twin, 0, 2), 1.0));
    bad[4] = (double)NAN;
    assert_int_equal(accrue_window_backward(w, backward(&m, 2, 2), 1.0, &err), ACCRUE_ENUMERIC);
    assert_non_null(strstr(err.message, "micro-batch 2"));
    assert_non_null(strstr(err.message, "other"));
    assert_non_null(strstr(err.message, "[1, 1]"));
    bad[4] = -HUGE_VAL;
    assert_int_equal(accrue_window_backward(w, 1.0, 1.0, &err), ACCRUE_ENUMERIC);
    assert_non_null(strstr(err.message, "infinite"));
    bad[4] = 0.0;
    assert_int_equal(accrue_window_backward(w, (double)NAN, 1.0, &err), ACCRUE_ENUMERIC);
    assert_non_null(strstr(err.message, "micro-batch 2: the loss is"));
    assert_int_equal(accrue_window_backward(w, 1.0, -1.0, &err), ACCRUE_EINVAL);
    assert_non_null(strstr(err.message, "-1"));
    assert_int_equal(accrue_window_backward(w, 1.0, (double)NAN, &err), ACCRUE_EINVAL);
    assert_int_equal(accrue_window_micro_batches(w), 1);
    /* Nothing of it was added: the window ends as if the refusals had not been. */
    assert_true(micro_batch(w, backward(&m, 2, 2), 1.0));
    assert_true(micro_batch(t, backward(&twin, 2, 2), 1.0));
    assert_memory_equal(m.p, twin.p, sizeof m.p);
    accrue_window_free(w);
    accrue_window_free(t);
}

/* Finite contributions whose sum is not. */
static void test_overflow(void **state)
{
    float p = 1.0F, g = 3e38F;
    accrue_window_options o = options(2);
    accrue_window *w = NULL;
    accrue_error err = {0};

    (void)state;
    assert_int_equal(accrue_window_create(&w, &o, NULL), 0);
    assert_int_equal(accrue_window_add_param(w, "weight", ACCRUE_F32, &p, &g, 1, 1, NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(accrue_window_backward(w, 1.0, 1.0, NULL), 0);
    assert_int_equal(accrue_window_clip(w, NULL, &err), ACCRUE_ENUMERIC);
    assert_non_null(strstr(err.message, "weight"));
    assert_int_equal(accrue_window_step(w, NULL, NULL), ACCRUE_ENUMERIC);
    assert_true(p >= 1.0F && p <= 1.0F);
    assert_int_equal(accrue_window_global_step(w), 0);
    accrue_window_free(w);
}

/* The built-in model's way: kernels add into the accumulator, weights planned. */
static void test_planned(void **state)
{
    double p[2] = {1.0, -1.0}, sum[2] = {7.0, 7.0}, q[2] = {1.0, -1.0}, g[2] = {0};
    const double grads[6][2] = {{1, 2}, {3, -4}, {0.5, 0.25}, {8, 1}, {2, 2}, {-3, 5}};
    accrue_window_options o = options(2);
    accrue_window *w = NULL, *own = open(&o, q, g, 2);

    (void)state;
    assert_int_equal(accrue_window_create(&w, &o, NULL), 0);
    assert_int_equal(acr_window_add_accumulated(w, "weight", ACR_DTYPE_F64, p, sum, 2, 1, NULL), 0);
    assert_int_equal(accrue_window_add_param(w, "b", ACCRUE_F64, q, g, 2, 1, NULL), ACCRUE_ESTATE);
    assert_int_equal(accrue_window_backward(w, 1.0, 1.0, NULL), ACCRUE_ESTATE);
    assert_int_equal(acr_window_count(w, 1.0, true, NULL), ACCRUE_ESTATE); /* not begun */
    for (int i = 0; i < 6; i++) {
        bool stepped = false;
        acr_window_begin(w);
        if (i % 2 == 0)
            assert_true(fabs(sum[0]) + fabs(sum[1]) <= 0.0);
        for (int j = 0; j < 2; j++) {
            sum[j] += 0.5 * grads[i][j];
            g[j] = grads[i][j];
        }
        assert_int_equal(acr_window_count(w, 0.5 * i, true, NULL), 0);
        micro_batch(own, i, 1.0);
        assert_int_equal(accrue_window_clip(w, NULL, NULL), 0);
        assert_int_equal(accrue_window_step(w, &stepped, NULL), 0);
        assert_true(stepped == (i % 2 == 1));
        assert_true(fabs(accrue_window_loss(w) - accrue_window_loss(own)) <= 1e-15);
        accrue_window_lr_step(w);
        if (i < 4) /* the third window is emptied by begin alone */
            accrue_window_zero_grad(w);
        assert_close(p, q, 2);
    }
    /* A loss that is not finite is not counted; zero drops what the kernels added. */
    acr_window_begin(w);
    sum[0] = (double)NAN;
    assert_int_equal(acr_window_count(w, (double)NAN, true, NULL), ACCRUE_ENUMERIC);
    acr_window_zero(w);
    assert_int_equal(acr_window_filled(w), 0);
    acr_window_begin(w);
    assert_true(fabs(sum[0]) + fabs(sum[1]) <= 0.0);
    assert_int_equal(acr_window_count(w, 1.0, false, NULL), 0);
    assert_true(acr_window_close_short(w));
    assert_int_equal(accrue_window_empty(w), 1);
    /* A gradient that is not finite, or whose norm overflows, stops at the boundary. */
    acr_window_begin(w);
    sum[1] = HUGE_VAL;
    assert_int_equal(acr_window_count(w, 1.0, true, NULL), 0);
    assert_true(acr_window_close_short(w));
    assert_int_equal(accrue_window_clip(w, NULL, NULL), ACCRUE_ENUMERIC);
    assert_int_equal(accrue_window_step(w, NULL, NULL), ACCRUE_ENUMERIC);
    assert_close(p, q, 2);
    for (int i = 0; i < 2; i++) {
        acr_window_begin(w);
        sum[1] = 1e200;
        assert_int_equal(acr_window_count(w, 1.0, true, NULL), 0);
    }
    assert_int_equal(accrue_window_step(w, NULL, NULL), ACCRUE_ENUMERIC);
    assert_close(p, q, 2);
    accrue_window_free(w);
    accrue_window_free(own);
}

enum { SIDE = 24 };

/* One life of a window with both optimizers; the first failure's status.  Whatever can run out is
 * asked for before the first gradient is taken, so nothing fails after an update has begun. */
static accrue_status whole_life(accrue_dtype ns)
{
    accrue_status st = ACCRUE_OK;
    accrue_window_options o = options(2);
    accrue_window *w = NULL;
    static float p[SIDE * SIDE], g[SIDE * SIDE], v[SIDE], h[SIDE];

    o.optimizer = ACCRUE_MUON;
    o.muon_ns_dtype = ns;
    for (int i = 0; i < SIDE * SIDE; i++)
        g[i] = (float)(i % 7) - 3.0F;
    ACR_TRY(accrue_window_create(&w, &o, NULL));
    ACR_TRY(accrue_window_add_param(w, "matrix", ACCRUE_F32, p, g, SIDE, SIDE, NULL));
    ACR_TRY(accrue_window_add_param(w, "vector", ACCRUE_F32, v, h, SIDE, 1, NULL));
    for (int i = 0; i < 4; i++) {
        ACR_TRY(accrue_window_backward(w, 1.0, 1.0, NULL));
        assert_int_equal(accrue_window_clip(w, NULL, NULL), 0);
        assert_int_equal(accrue_window_step(w, NULL, NULL), 0);
        accrue_window_lr_step(w);
        accrue_window_zero_grad(w);
    }

cleanup:
    accrue_window_free(w);
    return st;
}

static void test_allocation_failures(void **state)
{
    const accrue_dtype ns[] = {ACCRUE_F32, ACCRUE_BF16, ACCRUE_F64};

    (void)state;
    for (int k = 0; k < ACR_COUNT(ns); k++) {
        size_t live = 0;
        uint64_t n = 1;
        accrue_status st = ACCRUE_ENOMEM;
        assert_int_equal(whole_life(ns[k]), 0);
        live = acr_allocated_bytes();
        for (; st; n++) {
            acr_fail_allocation(n);
            st = whole_life(ns[k]);
            acr_fail_allocation(0);
            assert_true(st == ACCRUE_OK || st == ACCRUE_ENOMEM);
            assert_int_equal(acr_allocated_bytes(), live);
            assert_true(n < 200);
        }
        assert_true(n > 10);
    }
}

/* An allocation that fails in the first micro-batch can be tried again. */
static void test_retry(void **state)
{
    model m = {0};
    accrue_window_options o = options(1);
    accrue_window *w = open(&o, m.p, m.g, PARAMS);
    accrue_error err = {0};

    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        acr_fail_allocation(1);
        assert_int_equal(accrue_window_backward(w, 1.0, 1.0, &err), ACCRUE_ENOMEM);
        acr_fail_allocation(0);
        assert_int_equal(accrue_window_micro_batches(w), 0);
    }
    assert_true(micro_batch(w, backward(&m, 0, 2), 1.0));
    accrue_window_free(w);
}

static void test_steady_state(void **state)
{
    accrue_window_options o = options(2);
    accrue_window *w = NULL;
    static float p[SIDE * 2 * SIDE], g[SIDE * 2 * SIDE];
    uint64_t before = 0;

    (void)state;
    o.optimizer = ACCRUE_MUON;
    o.muon_ns_dtype = ACCRUE_BF16;
    o.total_steps = 100;
    assert_int_equal(accrue_window_create(&w, &o, NULL), 0);
    assert_int_equal(accrue_window_add_param(w, "matrix", ACCRUE_F32, p, g, SIDE, 2 * SIDE, NULL),
                     0);
    for (int i = 0; i < 12; i++) {
        for (int j = 0; j < SIDE * 2 * SIDE; j++)
            g[j] = (float)((i + 1) * j % 11) - 5.0F;
        micro_batch(w, 1.0, i % 3);
        if (i == 0) /* before the first step */
            before = acr_allocations();
    }
    assert_int_equal(acr_allocations(), before);
    assert_int_equal(accrue_window_global_step(w), 6);
    accrue_window_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boundary),
        cmocka_unit_test(test_counter_carries_on),
        cmocka_unit_test(test_one_is_plain),
        cmocka_unit_test(test_normalisation),
        cmocka_unit_test(test_empty_window),
        cmocka_unit_test(test_call_orders),
        cmocka_unit_test(test_window_empties_itself),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_planned),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_retry),
        cmocka_unit_test(test_steady_state),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
