/* test_pack.c - the order of an epoch, its packing, and batch plans. */
#include "files.h"

#include "data/data.h"

enum { N = 500, L = 512 };

static void make_lengths(int64_t lengths[N])
{
    for (int64_t i = 0; i < N; i++)
        lengths[i] = (int64_t)(acr_random_u64(7, ACR_RANDOM_INIT, 0, (uint64_t)i) % 300) + 20;
    lengths[17] = 3 * L; /* cut: it fills a micro-batch */
    lengths[18] = 0;     /* left out */
}

/* Every row of [first, last) that has a length once, none over the limit; the tokens packed. */
static int64_t check_epoch(const acr_epoch *e, const int64_t *lengths, int64_t first, int64_t last,
                           int64_t limit)
{
    char *seen = acr_calloc((size_t)last + 1, 1);
    int64_t tokens = 0;
    int64_t expected = 0;

    for (int64_t row = first; row < last; row++)
        expected += lengths[row - first] > 0;
    assert_non_null(seen);
    assert_int_equal(e->begin[0], 0);
    assert_int_equal(e->begin[e->n], expected);
    for (int64_t b = 0; b < e->n; b++) {
        int64_t used = 0;
        assert_true(e->begin[b] < e->begin[b + 1]);
        for (int64_t j = e->begin[b]; j < e->begin[b + 1]; j++) {
            int64_t row = e->rows[j];
            assert_true(row >= first && row < last && !seen[row] && lengths[row - first] > 0);
            seen[row] = 1;
            used += lengths[row - first] < limit ? lengths[row - first] : limit;
        }
        assert_true(used <= limit);
        tokens += used;
    }
    acr_free(seen);
    return tokens;
}

static void every_row_is_packed_once(void **state)
{
    int64_t lengths[N];
    acr_epoch e;
    accrue_error err;

    (void)state;
    make_lengths(lengths);
    for (int64_t epoch = 0; epoch < 5; epoch++) {
        int64_t tokens = 0;
        assert_ok(acr_epoch_pack(&e, lengths, 100, 100 + N, L, 42, epoch, &err), &err);
        tokens = check_epoch(&e, lengths, 100, 100 + N, L);
        assert_true(100 * tokens > 96 * e.n * L);
        acr_epoch_free(&e);
    }
}

static bool same(const acr_epoch *a, const acr_epoch *b)
{
    return a->n == b->n && a->begin[a->n] == b->begin[b->n] &&
           memcmp(a->begin, b->begin, (size_t)(a->n + 1) * sizeof *a->begin) == 0 &&
           memcmp(a->rows, b->rows, (size_t)a->begin[a->n] * sizeof *a->rows) == 0;
}

static void the_order_is_a_function_of_seed_and_epoch(void **state)
{
    int64_t lengths[N];
    acr_epoch a;
    acr_epoch b;
    accrue_error err;

    (void)state;
    make_lengths(lengths);
    assert_ok(acr_epoch_pack(&a, lengths, 0, N, L, 42, 3, &err), &err);
    assert_ok(acr_epoch_pack(&b, lengths, 0, N, L, 42, 3, &err), &err);
    assert_true(same(&a, &b));
    acr_epoch_free(&b);
    assert_ok(acr_epoch_pack(&b, lengths, 0, N, L, 42, 4, &err), &err);
    assert_false(same(&a, &b));
    acr_epoch_free(&b);
    assert_ok(acr_epoch_pack(&b, lengths, 0, N, L, 43, 3, &err), &err);
    assert_false(same(&a, &b));
    acr_epoch_free(&a);
    acr_epoch_free(&b);
}

/* Written down, so that a change of the order is seen: it would change every resumed run. */
static void the_order_does_not_change_between_versions(void **state)
{
    static const int64_t lengths[8] = {6, 5, 4, 4, 3, 3, 2, 1};
    static const int64_t rows[8] = {0, 6, 4, 1, 5, 7, 3, 2};
    static const int64_t begin[5] = {0, 2, 4, 7, 8};
    acr_epoch e;
    accrue_error err;

    (void)state;
    assert_ok(acr_epoch_pack(&e, lengths, 0, 8, 8, 42, 0, &err), &err);
    assert_int_equal(e.n, 4);
    assert_memory_equal(e.begin, begin, sizeof begin);
    assert_memory_equal(e.rows, rows, sizeof rows);
    acr_epoch_free(&e);
}

static void edges(void **state)
{
    const int64_t lengths[3] = {8, 9, 0};
    acr_epoch e;
    accrue_error err;

    (void)state;
    assert_ok(acr_epoch_pack(&e, lengths, 5, 5, 8, 1, 0, &err), &err);
    assert_int_equal(e.n, 0);
    acr_epoch_free(&e);
    assert_ok(acr_epoch_pack(&e, lengths, 5, 8, 8, 1, 0, &err), &err);
    check_epoch(&e, lengths, 5, 8, 8);
    acr_epoch_free(&e);
    assert_fails(acr_epoch_pack(&e, lengths, 5, 4, 8, 1, 0, &err), ACCRUE_EINVAL, &err, NULL);
    assert_fails(acr_epoch_pack(&e, lengths, 0, 3, 0, 1, 0, &err), ACCRUE_EINVAL, &err, NULL);
}

static void plans_come_back_as_written(void **state)
{
    int64_t lengths[N];
    acr_epoch train[2];
    acr_epoch val[1];
    acr_batch_plan plan = {L, 2, 1, train, val};
    acr_batch_plan back;
    char *folder = make_folder();
    char *path = acr_sprintf("%s/plan.json", folder);
    accrue_error e;

    (void)state;
    make_lengths(lengths);
    assert_ok(acr_epoch_pack(&train[0], lengths, 0, 400, L, 42, 0, &e), &e);
    assert_ok(acr_epoch_pack(&train[1], lengths, 0, 400, L, 42, 1, &e), &e);
    assert_ok(acr_epoch_pack(&val[0], lengths + 400, 400, N, L, 42, 0, &e), &e);
    assert_ok(acr_batch_plan_write(&plan, path, &e), &e);
    assert_ok(acr_batch_plan_read(&back, path, N, L, &e), &e);
    assert_int_equal(back.n_train, 2);
    assert_int_equal(back.n_val, 1);
    for (int i = 0; i < 2; i++)
        assert_true(same(&back.train[i], &train[i]));
    assert_true(same(&back.val[0], &val[0]));
    acr_batch_plan_free(&back);
    for (int i = 0; i < 2; i++)
        acr_epoch_free(&train[i]);
    acr_epoch_free(&val[0]);
    acr_free(path);
    remove_folder(folder);
}

static void broken_plans_are_refused(void **state)
{
    static const struct {
        const char *text;
        accrue_status status;
        const char *message; /* NULL: accepted */
    } cases[] = {
        {"{\"total_seq_len\": 8, \"train\": [[[0, 3], [1]], [[2]]]}", ACCRUE_OK, NULL},
        {"{\"total_seq_len\": 8, \"train\": [[[0, 3], [1]]", ACCRUE_EFORMAT, "line 1"},
        {"{\"total_seq_len\": 9, \"train\": []}", ACCRUE_EMISMATCH,
         "total_seq_len is 9, --total-seq-len is 8"},
        {"{\"train\": []}", ACCRUE_EFORMAT, "total_seq_len is missing"},
        {"[]", ACCRUE_EFORMAT, "total_seq_len is missing"},
        {"{\"total_seq_len\": 8}", ACCRUE_EFORMAT, "'train' is not an array"},
        {"{\"total_seq_len\": 8, \"train\": [3]}", ACCRUE_EFORMAT, "train epoch 0 is not"},
        {"{\"total_seq_len\": 8, \"train\": [[[0], 1]]}", ACCRUE_EFORMAT, "micro-batch 1: not an"},
        {"{\"total_seq_len\": 8, \"train\": [[[0], []]]}", ACCRUE_EFORMAT, "or empty"},
        {"{\"total_seq_len\": 8, \"train\": [[[0, 4]]]}", ACCRUE_EMISMATCH,
         "entry 1 is 4, the data set has rows 0 to 3"},
        {"{\"total_seq_len\": 8, \"train\": [[[-1]]]}", ACCRUE_EMISMATCH, "entry 0 is -1"},
        {"{\"total_seq_len\": 8, \"train\": [[[\"0\"]]]}", ACCRUE_EMISMATCH, "entry 0"},
        {"{\"total_seq_len\": 8, \"train\": [[[0, 1]], [[2], [3, 2]]]}", ACCRUE_EFORMAT,
         "train epoch 1, micro-batch 1: row 2 a second time"},
        {"{\"total_seq_len\": 8, \"train\": [], \"val\": [[[1, 1]]]}", ACCRUE_EFORMAT,
         "val epoch 0, micro-batch 0: row 1 a second time"},
        {"{\"total_seq_len\": 8, \"train\": [], \"val\": null}", ACCRUE_EFORMAT, "'val' is not"},
    };
    char *folder = make_folder();
    char *path = acr_sprintf("%s/plan.json", folder);
    accrue_error e;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        acr_batch_plan p;
        accrue_status st;
        write_text(path, cases[i].text);
        st = acr_batch_plan_read(&p, path, 4, 8, &e);
        if (cases[i].message)
            assert_fails(st, cases[i].status, &e, path, cases[i].message, NULL);
        else
            assert_ok(st, &e);
        acr_batch_plan_free(&p);
    }
    acr_free(path);
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_packed_once),
        cmocka_unit_test(the_order_is_a_function_of_seed_and_epoch),
        cmocka_unit_test(the_order_does_not_change_between_versions),
        cmocka_unit_test(edges),
        cmocka_unit_test(plans_come_back_as_written),
        cmocka_unit_test(broken_plans_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
