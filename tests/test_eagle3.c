/* test_eagle3.c - the EAGLE-3 recipe: loss, metrics and gradients against a dense reference, the
 * window's normalisation, bf16, the announcement of groups, failures. */
#include "eagle3_reference.h"

/* Forward and gradients against the reference ------------------------------------------ */

enum { MAX_SAMPLES = 8 };

/* 1 to 3 documents, from lengths that include 0 and 1, a mask of any density, some padding. */
static int random_batch(acr_batch *b, sample *samples, source *s)
{
    int n = 1 + (int)below(s, 3);
    int64_t rows = 0;
    bool any = false;

    for (int i = 0; i < n; i++) {
        samples[i] = sample_make(s, i == 1 ? below(s, 3) : 4 + below(s, 7), i ? 0.5 : 0.7);
        if (i == 2)
            for (int64_t t = 0; t < samples[i].n / 2; t++)
                samples[i].mask[t] = 0;
        rows += samples[i].n;
        for (int64_t t = 0; t < samples[i].n; t++)
            any = any || samples[i].mask[t];
    }
    if (!any)
        samples[0].mask[samples[0].n - 1] = 1;
    pack(b, ACR_DTYPE_F64, samples, NULL, n, rows + below(s, 4));
    return n;
}

static double loss_at(reference *like, double *w, double value)
{
    double kept = *w, loss = 0;
    reference r;

    *w = value;
    reference_open(&r, like->d, like->b, like->o);
    r.lambda = like->lambda;
    loss = reference_loss(&r);
    reference_free(&r);
    *w = kept;
    return loss;
}

/* Central differences of the reference at a few places of every trainable parameter. */
static void check_gradients(draft *d, reference *r, source *s)
{
    const double step = 1e-5;

    for (int i = 0; i < d->m->n_params; i++) {
        acr_param *p = &d->m->params[i];
        for (int j = 0; p->grad && j < 2; j++) {
            int64_t at = below(s, p->rows * p->cols);
            double *w = NULL;
            if (p == d->m->top.embed && j == 0) /* a row that is surely read */
                at = r->b->input_ids[0] * H + at % H;
            w = (double *)p->master + at;
            check_close(p->name, ((double *)p->grad)[at],
                        (loss_at(r, w, *w + step) - loss_at(r, w, *w - step)) / (2 * step), 2e-7);
        }
    }
}

static void equals_the_reference(void **state)
{
    static const char *const losses[] = {
        "kl_div", "{\"ce\": 0.1, \"tv\": 0.9}", "jsd", "rkl", "nla", "lk_hybrid", "ce", "tv"};

    (void)state;
    for (int v = 0; v < ACR_COUNT(variants); v++)
        for (int across = 0; across < 2; across++) {
            source s = {.seed = 100 + (uint64_t)(2 * v + across)};
            acr_eagle3_options o = options(losses[(v + across) % ACR_COUNT(losses)],
                                           1 + (v + 2) % 4, v % 2 ? 0.8 : 1, across);
            sample samples[MAX_SAMPLES];
            acr_batch b;
            draft d;
            reference r;
            accrue_metrics m;
            double expected = 0;
            int n = random_batch(&b, samples, &s);

            draft_open(&d, &variants[v], ACCRUE_F64, 9);
            m = learn(&d, &b, &o, NULL, NULL);
            reference_open(&r, &d, &b, &o);
            r.lambda = zeros(o.ttt_steps * r.T);
            for (int64_t i = 0; i < o.ttt_steps * r.T; i++)
                r.lambda[i] = (double)NAN;
            expected = reference_loss(&r);
            check_close("loss", m.loss_sum, expected, 1e-12);
            for (int k = 0; k < o.ttt_steps; k++) {
                check_close("supervised rows", m.full_acc_total[k], r.count[k], 0);
                check_close("full accuracy", m.full_acc_sum[k], r.full[k], 0);
                check_close("conditional accuracy's rows", m.cond_acc_total[k], r.asked[k], 0);
                check_close("step loss", m.step_loss_sum[k],
                            pow(o.step_decay, k) * r.step_loss[k] / (r.count[k] + 1e-5), 1e-12);
            }
            check_gradients(&d, &r, &s);
            free(r.lambda);
            reference_free(&r);
            draft_close(&d);
            acr_batch_free(&b);
            for (int i = 0; i < n; i++)
                sample_free(&samples[i]);
        }
}

/* The reference tells variants apart: were a switch ignored by both sides' shared inputs, the loss
 * of two drafts that differ only there would be equal. */
static void every_switch_matters(void **state)
{
    source s = {.seed = 3};
    sample x = sample_make(&s, 12, 0.6);
    acr_batch b;
    double loss[6];
    acr_eagle3_options o = options("kl_div", 3, 1, false);

    (void)state;
    x.mask[11] = 1;
    pack(&b, ACR_DTYPE_F64, &x, NULL, 1, 12);
    for (int i = 0; i < 6; i++) {
        variant v = plain;
        draft d;
        v.norm_before_residual = i != 1;
        v.norm_before_fc = i != 2 && i != 3;
        v.fc_norm = i == 3;
        v.norm_output = i != 4;
        v.window = i == 5 ? 2 : 0;
        draft_open(&d, &v, ACCRUE_F64, 9);
        loss[i] = learn(&d, &b, &o, NULL, NULL).loss_sum;
        for (int j = 0; j < i; j++)
            assert_true(fabs(loss[i] - loss[j]) > 1e-6);
        draft_close(&d);
    }
    acr_batch_free(&b);
    sample_free(&x);
}

/* One denominator a window ------------------------------------------------------------- */

enum { N_SAMPLES = 6, LONGEST = 96 };

static void make_samples(sample *samples, source *s)
{
    static const int64_t lengths[N_SAMPLES] = {11, 3, 17, 1, 8, 13};
    static const double density[N_SAMPLES] = {0.5, 1, 0.1, 1, 0, 0.9};

    for (int i = 0; i < N_SAMPLES; i++)
        samples[i] = sample_make(s, lengths[i], density[i]);
    samples[2].mask[16] = 1;
}

/* The window's gradient when micro-batch i holds order[begin[i] .. begin[i + 1]). */
static double *window_gradient(const sample *samples, const int *order, const int *begin, int n,
                               accrue_dtype compute, double *loss)
{
    acr_eagle3_options o = options("{\"kl_div\": 0.5, \"ce\": 1.0}", 3, 0.7, false);
    int64_t window[ACCRUE_MAX_TTT_STEPS] = {0}, counts[ACCRUE_MAX_TTT_STEPS];
    acr_batch b[N_SAMPLES];
    double *g = NULL;
    draft d;

    draft_open(&d, &plain, compute, 9);
    for (int i = 0; i < n; i++) {
        pack(&b[i], d.m->real, samples, order + begin[i], begin[i + 1] - begin[i], LONGEST);
        acr_eagle3_counts(&b[i], &o, counts);
        for (int k = 0; k < o.ttt_steps; k++)
            window[k] += counts[k];
    }
    *loss = 0;
    for (int i = 0; i < n; i++) {
        *loss += learn(&d, &b[i], &o, window, NULL).loss_sum;
        acr_batch_free(&b[i]);
    }
    g = gradients(d.m);
    draft_close(&d);
    return g;
}

static void any_split_is_the_same_window(void **state)
{
    static const int forward[] = {0, 1, 2, 3, 4, 5}, mixed[] = {4, 2, 5, 0, 3, 1};
    static const int together[] = {0, 6}, alone[] = {0, 1, 2, 3, 4, 5, 6}, halves[] = {0, 2, 6},
                     thirds[] = {0, 1, 5, 6};
    static const struct {
        const int *order, *begin;
        int n;
    } splits[] = {{forward, together, 1}, {forward, alone, 6},  {mixed, together, 1},
                  {mixed, halves, 2},     {forward, thirds, 3}, {mixed, alone, 6}};
    sample samples[N_SAMPLES];
    source s = {.seed = 5};
    int64_t elements = 0;
    draft d;

    (void)state;
    make_samples(samples, &s);
    draft_open(&d, &plain, ACCRUE_F64, 9);
    elements = gradient_elements(d.m);
    draft_close(&d);
    for (int f32 = 0; f32 < 2; f32++) {
        accrue_dtype compute = f32 ? ACCRUE_F32 : ACCRUE_F64;
        double whole = 0, loss = 0, bound = f32 ? 2e-6 : 1e-12;
        double *expected = window_gradient(samples, forward, together, 1, compute, &whole);
        for (int i = 1; i < ACR_COUNT(splits); i++) {
            double *g = window_gradient(samples, splits[i].order, splits[i].begin, splits[i].n,
                                        compute, &loss);
            check_close("window's loss", loss, whole, bound);
            if (!(distance(g, expected, elements) <= bound))
                fail_msg("split %d: gradient off by %g", i, distance(g, expected, elements));
            free(g);
        }
        free(expected);
    }
    for (int i = 0; i < N_SAMPLES; i++)
        sample_free(&samples[i]);
}

static void bf16_is_close_to_f32(void **state)
{
    acr_eagle3_options o = options("kl_div", 3, 1, false);
    source s = {.seed = 43};
    sample both[2] = {sample_make(&s, 50, 0.6), sample_make(&s, 40, 0.8)};
    double *g[2] = {NULL}, loss[2] = {0};
    double dot = 0, a = 0, c = 0;
    int64_t n = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        acr_batch b;
        draft d;
        draft_open(&d, &variants[4], i ? ACCRUE_BF16 : ACCRUE_F32, 9);
        pack(&b, d.m->real, both, NULL, 2, 100);
        loss[i] = learn(&d, &b, &o, NULL, NULL).loss_sum;
        g[i] = gradients(d.m);
        n = gradient_elements(d.m);
        acr_batch_free(&b);
        draft_close(&d);
    }
    assert_true(fabs(loss[1] - loss[0]) <= 1e-2 * loss[0]);
    assert_true(fabs(loss[1] - loss[0]) > 0); /* bf16 was used at all */
    for (int64_t i = 0; i < n; i++) {
        dot += g[0][i] * g[1][i];
        a += g[0][i] * g[0][i];
        c += g[1][i] * g[1][i];
    }
    if (!(dot / sqrt(a * c) > 0.99))
        fail_msg("cosine of the gradients: %g", dot / sqrt(a * c));
    free(g[0]);
    free(g[1]);
    sample_free(&both[0]);
    sample_free(&both[1]);
}

/* A layer is used at every TTT step; its gradient is announced once, when it is complete. */
typedef struct watch {
    const acr_model *m;
    int fired[16];
    double *seen[16]; /* the group's gradients when it was announced */
} watch;

static double *group_gradients(const acr_model *m, const acr_group *g)
{
    double *out = zeros(gradient_elements(m));
    int64_t n = 0;

    for (int i = 0; i < m->n_params; i++)
        for (int64_t j = 0; m->params[i].grad && j < m->params[i].rows * m->params[i].cols;
             j++, n++)
            out[n] = m->params[i].group == g ? real_at(m, m->params[i].grad, j) : 0;
    return out;
}

static void on_ready(acr_group *group, void *payload)
{
    watch *w = payload;
    int64_t i = group - w->m->groups;

    assert_true(i >= 0 && i < w->m->n_groups);
    w->fired[i]++;
    free(w->seen[i]);
    w->seen[i] = group_gradients(w->m, group);
}

static void groups_are_ready_once(void **state)
{
    acr_eagle3_options o = options("kl_div", 3, 1, false);
    source s = {.seed = 53};
    sample x = sample_make(&s, 20, 0.7);
    watch w = {0};
    acr_batch b;
    draft d;

    (void)state;
    draft_open(&d, &variants[5], ACCRUE_F64, 9); /* two layers, trains the embedding */
    pack(&b, d.m->real, &x, NULL, 1, 20);
    w.m = d.m;
    d.t.group_ready = on_ready;
    d.t.payload = &w;
    measure(&d, &b, &o);
    for (int i = 0; i < d.m->n_groups; i++)
        assert_int_equal(w.fired[i], 0);
    learn(&d, &b, &o, NULL, NULL);
    for (int i = 0; i < d.m->n_groups; i++) {
        double *g = group_gradients(d.m, &d.m->groups[i]);
        assert_int_equal(w.fired[i], 1);
        assert_int_equal(d.m->groups[i].uses, 0);
        assert_memory_equal(w.seen[i], g, (size_t)gradient_elements(d.m) * sizeof *g);
        free(g);
        free(w.seen[i]);
    }
    acr_batch_free(&b);
    draft_close(&d);
    sample_free(&x);
}

/* Memory that runs out anywhere is a status, never a crash; the draft works again afterwards. */
static void failing_allocations(void **state)
{
    acr_eagle3_options o = options("kl_div", 2, 1, false);
    source s = {.seed = 47};
    sample x = sample_make(&s, 30, 0.7);
    acr_batch b;
    int failures = 0;
    bool done = false;

    (void)state;
    pack(&b, ACR_DTYPE_F32, &x, NULL, 1, 32);
    for (uint64_t n = 1; !done; n++) {
        double scale[2] = {0.1, 0.1};
        acr_eagle3_result r;
        accrue_error e = {0};
        accrue_status st = ACCRUE_OK;
        draft d;
        draft_open(&d, &plain, ACCRUE_F32, 9);
        acr_fail_allocation(n);
        st = acr_eagle3_forward(&r, d.m, &d.t, &b, &o, scale, &e);
        if (!st) {
            acr_tape_backward(&d.t);
            st = acr_tape_status(&d.t, &e);
        }
        acr_fail_allocation(0);
        if (st) {
            assert_int_equal(st, ACCRUE_ENOMEM);
            assert_non_null(strstr(e.message, "memory"));
            failures++;
        } else {
            done = true;
        }
        acr_tape_reset(&d.t);
        for (int i = 0; i < d.m->n_groups; i++)
            assert_int_equal(d.m->groups[i].uses, 0);
        draft_close(&d);
    }
    assert_true(failures >= 3);
    acr_batch_free(&b);
    sample_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),         cmocka_unit_test(every_switch_matters),
        cmocka_unit_test(any_split_is_the_same_window), cmocka_unit_test(bf16_is_close_to_f32),
        cmocka_unit_test(groups_are_ready_once),        cmocka_unit_test(failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
