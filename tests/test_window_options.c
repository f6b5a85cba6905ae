/* test_window_options.c - what a window refuses: options, parameters, sizes of its struct. */
#include "window_test.h"

typedef void (*spoil)(accrue_window_options *o);

static void spoil_n(accrue_window_options *o)
{
    o->gradient_accumulation_steps = 0;
}
static void spoil_clip(accrue_window_options *o)
{
    o->clip_norm = -1.0;
}
static void spoil_lr(accrue_window_options *o)
{
    o->lr = (double)NAN;
}
static void spoil_beta1(accrue_window_options *o)
{
    o->beta1 = 1.0;
}
static void spoil_beta2(accrue_window_options *o)
{
    o->beta2 = -0.1;
}
static void spoil_eps(accrue_window_options *o)
{
    o->eps = HUGE_VAL;
}
static void spoil_muon_lr(accrue_window_options *o)
{
    o->muon_lr = -1.0;
}
static void spoil_ns(accrue_window_options *o)
{
    o->muon_ns_steps = 0;
}
static void spoil_total(accrue_window_options *o)
{
    o->total_steps = 0;
}
static void spoil_warmup(accrue_window_options *o)
{
    o->warmup_steps = -1;
}
static void spoil_scheduler(accrue_window_options *o)
{
    o->scheduler = (accrue_scheduler)9;
}

static void test_refusals(void **state)
{
    const struct {
        spoil spoil;
        const char *field, *value;
    } cases[] = {
        {spoil_n, "gradient_accumulation_steps", "0, at least 1"},
        {spoil_clip, "clip_norm", "-1"},
        {spoil_lr, "lr", "nan"},
        {spoil_beta1, "beta1", "1, at least 0 and below 1"},
        {spoil_beta2, "beta2", "-0.1"},
        {spoil_eps, "eps", "inf"},
        {spoil_muon_lr, "muon_lr", "-1"},
        {spoil_ns, "muon_ns_steps", "0, at least 1"},
        {spoil_total, "total_steps", "0, at least 1"},
        {spoil_warmup, "warmup_steps", "-1"},
        {spoil_scheduler, "scheduler", "9"},
    };
    accrue_window *w = NULL;
    accrue_error err = {0};
    accrue_window_options o = options(-3);

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        o = options(2);
        cases[i].spoil(&o);
        assert_int_equal(accrue_window_create(&w, &o, &err), ACCRUE_EINVAL);
        assert_null(w);
        assert_ptr_equal(strstr(err.message, cases[i].field), err.message);
        assert_non_null(strstr(err.message, cases[i].value));
    }
    memset(&o, 0, sizeof o);
    assert_int_equal(accrue_window_create(&w, &o, &err), ACCRUE_EINVAL);
    assert_non_null(strstr(err.message, "struct_size"));
}

static void test_param_refusals(void **state)
{
    double p[4] = {0}, g[4] = {0};
    accrue_window_options o = options(2);
    accrue_window *w = NULL;
    accrue_error err = {0};

    (void)state;
    assert_int_equal(accrue_window_create(&w, &o, NULL), 0);
    assert_int_equal(accrue_window_backward(w, 1.0, 1.0, NULL), ACCRUE_ESTATE);
    assert_int_equal(accrue_window_add_param(w, "", ACCRUE_F64, p, g, 2, 2, NULL), ACCRUE_EINVAL);
    assert_int_equal(accrue_window_add_param(w, "a", ACCRUE_BF16, p, g, 2, 2, &err), ACCRUE_EINVAL);
    assert_int_equal(accrue_window_add_param(w, "a", ACCRUE_F64, NULL, g, 2, 2, NULL),
                     ACCRUE_EINVAL);
    assert_int_equal(accrue_window_add_param(w, "a", ACCRUE_F64, p, NULL, 2, 2, NULL),
                     ACCRUE_EINVAL);
    assert_int_equal(accrue_window_add_param(w, "a", ACCRUE_F64, p, g, 0, 2, &err), ACCRUE_EINVAL);
    assert_non_null(strstr(err.message, "[0, 2]"));
    assert_int_equal(accrue_window_add_param(w, "a", ACCRUE_F64, p, g, INT64_MAX, 2, NULL),
                     ACCRUE_EINVAL);
    assert_int_equal(accrue_window_add_param(w, "a", ACCRUE_F64, p, g, 2, 2, NULL), 0);
    assert_int_equal(accrue_window_add_param(w, "a", ACCRUE_F64, p, g, 2, 2, &err), ACCRUE_EINVAL);
    assert_non_null(strstr(err.message, "twice"));
    assert_int_equal(acr_window_add_accumulated(w, "b", ACR_DTYPE_F64, p, g, 2, 2, NULL),
                     ACCRUE_ESTATE);
    assert_int_equal(acr_window_count(w, 1.0, true, NULL), ACCRUE_ESTATE);
    assert_int_equal(accrue_window_backward(w, 1.0, 1.0, NULL), 0);
    assert_int_equal(accrue_window_add_param(w, "b", ACCRUE_F64, p, g, 2, 2, NULL), ACCRUE_ESTATE);
    accrue_window_free(w);
    accrue_window_free(NULL);
}

/* An older caller's shorter struct: fields that it does not know have their defaults. */
static void test_struct_size(void **state)
{
    accrue_window_options o;
    accrue_window *w = NULL;
    double p = 1.0, g = 1.0;

    (void)state;
    memset(&o, 0x55, sizeof o);
    accrue_window_options_init(&o, offsetof(accrue_window_options, num_cosine_cycles));
    assert_int_equal(o.struct_size, offsetof(accrue_window_options, num_cosine_cycles));
    o.total_steps = 3;
    assert_int_equal(accrue_window_create(&w, &o, NULL), 0);
    assert_int_equal(accrue_window_add_param(w, "a", ACCRUE_F64, &p, &g, 1, 1, NULL), 0);
    assert_true(micro_batch(w, 1.0, 1.0));
    accrue_window_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_param_refusals),
        cmocka_unit_test(test_struct_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
