/* test_schedule.c - numbers that count in optimizer steps, against the contract and the Python
 * trainer's schedules. */
#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define assert_near(a, b, bound) assert_true(fabs((a) - (b)) <= (bound))

static void test_steps_per_epoch(void **state)
{
    (void)state;
    /* 5 epochs of 20 or 21 micro-batches. */
    assert_int_equal(5 * accrue_steps_per_epoch(20, 4, ACCRUE_TAIL_DROP), 25);
    assert_int_equal(5 * accrue_steps_per_epoch(21, 4, ACCRUE_TAIL_DROP), 25);
    assert_int_equal(5 * accrue_steps_per_epoch(20, 1, ACCRUE_TAIL_DROP), 100);
    assert_int_equal(accrue_steps_per_epoch(21, 4, ACCRUE_TAIL_STEP), 6);
    assert_int_equal(accrue_steps_per_epoch(20, 4, ACCRUE_TAIL_STEP), 5);
    assert_int_equal(accrue_steps_per_epoch(3, 4, ACCRUE_TAIL_DROP), 0);
    assert_int_equal(accrue_steps_per_epoch(3, 4, ACCRUE_TAIL_STEP), 1);
    assert_int_equal(accrue_steps_per_epoch(0, 4, ACCRUE_TAIL_STEP), 0);
    assert_int_equal(accrue_steps_per_epoch(20, 0, ACCRUE_TAIL_DROP), 0);
}

static void test_checkpoint_interval(void **state)
{
    (void)state;
    assert_int_equal(accrue_checkpoint_interval(25, 0.5), 12); /* 12.5 */
    assert_int_equal(accrue_checkpoint_interval(27, 0.5), 14); /* 13.5 */
    assert_int_equal(accrue_checkpoint_interval(10, 0.26), 3);
    assert_int_equal(accrue_checkpoint_interval(10, 0.24), 2);
    assert_int_equal(accrue_checkpoint_interval(3, 0.1), 1);
    assert_int_equal(accrue_checkpoint_interval(1, 0.5), 1); /* 0.5 goes to 0, but 1 at least */
}

/* Micro-batches of an epoch after which a checkpoint is due. */
static int due_micro_batches(int64_t micro_batches, int64_t n, double freq, int64_t *out)
{
    int64_t steps = accrue_steps_per_epoch(micro_batches, n, ACCRUE_TAIL_DROP);
    int found = 0;

    for (int64_t m = 1; m <= micro_batches; m++)
        if (m % n == 0 && accrue_checkpoint_due(m / n, steps, freq))
            out[found++] = m;
    return found;
}

static void test_checkpoint_cadence(void **state)
{
    int64_t at[200] = {0};

    (void)state;
    assert_int_equal(due_micro_batches(100, 4, 0.5, at), 1);
    assert_int_equal(at[0], 48);
    /* Interval 5 of 20: the end of the epoch is its own checkpoint. */
    assert_int_equal(due_micro_batches(20, 1, 0.25, at), 3);
    assert_int_equal(at[0], 5);
    assert_int_equal(at[2], 15);
    /* Interval 4 of 9: after step 8 one step is left, which is 0.25 * 4 and not fewer. */
    assert_int_equal(due_micro_batches(9, 1, 0.45, at), 2);
    assert_int_equal(at[1], 8);
    assert_int_equal(due_micro_batches(100, 4, 1.0, at), 0);
    assert_int_equal(due_micro_batches(100, 4, 2.0, at), 0);
}

static void test_lr_schedules(void **state)
{
    json_t *cases = NULL, *one = NULL;
    size_t i = 0, n_values = 0;
    accrue_error err = {0};

    (void)state;
    assert_int_equal(acr_json_load(&cases, ACR_TEST_DATA "/lr_schedules.json", 1 << 20, &err), 0);
    json_array_foreach(cases, i, one)
    {
        const char *type = json_string_value(json_object_get(one, "type"));
        accrue_scheduler scheduler =
            strcmp(type, "cosine") ? ACCRUE_SCHEDULE_LINEAR : ACCRUE_SCHEDULE_COSINE;
        double base = json_number_value(json_object_get(one, "base_lr"));
        json_t *values = json_object_get(one, "lr_used_at_step"), *value = NULL;
        size_t step = 0;
        json_array_foreach(values, step, value)
        {
            double factor = accrue_lr_factor(scheduler, (int64_t)step,
                                             json_integer_value(json_object_get(one, "warmup")),
                                             json_integer_value(json_object_get(one, "total")),
                                             json_number_value(json_object_get(one, "num_cycles")));
            if (base * factor < json_number_value(value) ||
                base * factor > json_number_value(value))
                fail_msg("case %zu, step %zu: %.17g, %.17g expected", i, step, base * factor,
                         json_number_value(value));
            n_values++;
        }
    }
    assert_int_equal(n_values, 92);
    json_decref(cases);
}

static void test_lr_edges(void **state)
{
    (void)state;
    assert_true(accrue_lr_factor(ACCRUE_SCHEDULE_NONE, 7, 100, 0, 0.5) >= 1.0);
    /* Warm-up as long as the run, and longer. */
    assert_near(accrue_lr_factor(ACCRUE_SCHEDULE_LINEAR, 4, 5, 5, 0.5), 0.8, 1e-15);
    assert_near(accrue_lr_factor(ACCRUE_SCHEDULE_LINEAR, 5, 5, 5, 0.5), 0.0, 0.0);
    assert_near(accrue_lr_factor(ACCRUE_SCHEDULE_LINEAR, 3, 8, 5, 0.5), 0.375, 1e-15);
    assert_near(accrue_lr_factor(ACCRUE_SCHEDULE_LINEAR, 9, 8, 5, 0.5), 0.0, 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_per_epoch),    cmocka_unit_test(test_checkpoint_interval),
        cmocka_unit_test(test_checkpoint_cadence), cmocka_unit_test(test_lr_schedules),
        cmocka_unit_test(test_lr_edges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
