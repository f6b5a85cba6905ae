/* test_ranks_faults_sharded.c - a rank of a sharded model that fails in any of its allocations. */
#include "ranks_fault_test.h"

static void every_allocation(void **state)
{
    char *plan = make_plan();
    accrue_train_options o = options(plan, true);

    (void)state;
    fail_every_allocation(&o);
    acr_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
