/* window_test.h - what the tests of the window share. */
#ifndef WINDOW_TEST_H
#define WINDOW_TEST_H

#include "train/train.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static inline accrue_window_options options(int64_t n)
{
    accrue_window_options o;

    accrue_window_options_init(&o, sizeof o);
    o.gradient_accumulation_steps = n;
    o.optimizer = ACCRUE_ADAMW;
    o.lr = 0.05;
    o.warmup_steps = 1;
    o.total_steps = 10;
    return o;
}

static inline accrue_window *open(const accrue_window_options *o, double *p, const double *g,
                                  int64_t n)
{
    accrue_window *w = NULL;

    assert_int_equal(accrue_window_create(&w, o, NULL), 0);
    assert_int_equal(accrue_window_add_param(w, "weight", ACCRUE_F64, p, g, n, 1, NULL), 0);
    return w;
}

/* backward, clip, step, lr_step, zero_grad; whether the parameters changed. */
static inline bool micro_batch(accrue_window *w, double loss, double weight)
{
    bool stepped = false;

    assert_int_equal(accrue_window_backward(w, loss, weight, NULL), 0);
    assert_int_equal(accrue_window_clip(w, NULL, NULL), 0);
    assert_int_equal(accrue_window_step(w, &stepped, NULL), 0);
    accrue_window_lr_step(w);
    accrue_window_zero_grad(w);
    return stepped;
}

#endif
