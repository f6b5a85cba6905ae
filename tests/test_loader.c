/* test_loader.c - the loader: order, memory, faults in its thread, missing samples. */
#include "files.h"

#include "data/data.h"

#define TINY ACR_TEST_DATA "/tiny"

static const acr_batch_shape shape = {
    .total_seq_len = 16, .hidden_size = 4, .vocab_size = 50, .n_aux = 3, .real = ACR_DTYPE_F32};
static int64_t begin[] = {0, 2, 3, 6, 7};
static int64_t rows[] = {2, 1, 4, 0, 3, 5, 6};
static const acr_epoch epoch = {4, begin, rows};

static acr_dataset *data;
static char *folder; /* of hidden states, ours to spoil */

static int setup(void **state)
{
    char *command = NULL;

    (void)state;
    folder = make_folder();
    command = acr_sprintf("cp -r " TINY "/hidden_states/. %s", folder);
    if (!command || system(command) != 0 || acr_dataset_open(&data, TINY, NULL))
        return -1;
    acr_free(command);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    acr_dataset_close(data);
    remove_folder(folder);
    return 0;
}

static acr_loader *make_loader(void)
{
    const acr_loader_options opt = {.states_dir = folder, .shape = shape};
    acr_loader *l = NULL;
    accrue_error e;

    assert_ok(acr_loader_create(&l, data, &opt, &e), &e);
    return l;
}

static char *states_file(int64_t row)
{
    return acr_sprintf("%s/hs_%lld.safetensors", folder, (long long)row);
}

/* Against collation of the same rows in one call. */
static void check_batch(const acr_batch *got, int64_t index)
{
    acr_document docs[8];
    acr_states states[8] = {{0}};
    acr_batch b;
    accrue_error e;
    int64_t n = begin[index + 1] - begin[index];

    assert_ok(acr_batch_alloc(&b, &shape, n, &e), &e);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = rows[begin[index] + i];
        const void *values = NULL;
        int64_t tokens = 0;
        accrue_fault f;
        acr_row r;
        assert_ok(acr_dataset_row(&r, data, row, &e), &e);
        assert_int_equal(acr_states_open(&states[i], folder, row, &r, &shape, NULL, &f), ACCRUE_OK);
        assert_int_equal(acr_states_read(&values, &tokens, &states[i], row, 0, &f), ACCRUE_OK);
        assert_int_equal(tokens, r.tokens);
        docs[i] = (acr_document){row,   r.tokens, r.input_ids, r.loss_mask, states[i].hidden->dtype,
                                 values};
    }
    assert_ok(acr_batch_collate(&b, &shape, docs, n, &e), &e);
    assert_int_equal(got->n_rows, b.n_rows);
    assert_int_equal(got->n_docs, n);
    assert_memory_equal(got->sample, b.sample, (size_t)n * sizeof *b.sample);
    assert_memory_equal(got->doc_begin, b.doc_begin, (size_t)(n + 1) * sizeof *b.doc_begin);
    assert_memory_equal(got->input_ids, b.input_ids, (size_t)b.n_rows * sizeof *b.input_ids);
    assert_memory_equal(got->loss_mask, b.loss_mask, (size_t)b.n_rows);
    assert_memory_equal(got->hidden, b.hidden, (size_t)b.n_rows * 12 * sizeof(float));
    assert_memory_equal(got->target, b.target, (size_t)b.n_rows * 4 * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        acr_states_free(&states[i]);
    acr_batch_free(&b);
}

static void serves_micro_batches_in_order(void **state)
{
    acr_loader *l = make_loader();
    const acr_batch *b = NULL;
    accrue_error e;

    (void)state;
    assert_fails(acr_loader_next(&b, l, &e), ACCRUE_ESTATE, &e, NULL);
    for (int round = 0; round < 3; round++) {
        assert_ok(acr_loader_start(l, &epoch, NULL, 0, 4, &e), &e);
        for (int64_t i = 0; i < 4; i++) {
            assert_ok(acr_loader_next(&b, l, &e), &e);
            check_batch(b, i);
        }
        assert_fails(acr_loader_next(&b, l, &e), ACCRUE_ESTATE, &e, "its 4", NULL);
        assert_null(b);
    }
    assert_ok(acr_loader_start(l, &epoch, NULL, 2, 3, &e), &e);
    assert_ok(acr_loader_next(&b, l, &e), &e);
    check_batch(b, 2);
    assert_fails(acr_loader_start(l, &epoch, NULL, 3, 5, &e), ACCRUE_EINVAL, &e, "3 to 5", NULL);
    acr_loader_free(l);
}

/* A run that is left in the middle does not disturb the next one. */
static void starts_again_at_any_moment(void **state)
{
    acr_loader *l = make_loader();
    const acr_batch *b = NULL;
    accrue_error e;

    (void)state;
    for (int64_t stop = 0; stop <= 4; stop++) {
        assert_ok(acr_loader_start(l, &epoch, NULL, 0, 4, &e), &e);
        for (int64_t i = 0; i < stop; i++) {
            assert_ok(acr_loader_next(&b, l, &e), &e);
            check_batch(b, i);
        }
        assert_ok(acr_loader_start(l, &epoch, NULL, 1, 4, &e), &e);
        assert_ok(acr_loader_next(&b, l, &e), &e);
        check_batch(b, 1);
    }
    acr_loader_free(l);
}

static void allocates_nothing_in_the_steady_state(void **state)
{
    acr_loader *l = make_loader();
    const acr_batch *b = NULL;
    accrue_error e;
    uint64_t before = 0;

    (void)state;
    for (int round = 0; round < 4; round++) {
        assert_ok(acr_loader_start(l, &epoch, NULL, 0, 4, &e), &e);
        for (int64_t i = 0; i < 4; i++)
            assert_ok(acr_loader_next(&b, l, &e), &e);
        if (round == 0)
            before = acr_allocations();
    }
    assert_int_equal(acr_allocations(), before);
    acr_loader_free(l);
}

/* What the thread allocates is its owner's. */
static void its_memory_is_in_the_owners_ledger(void **state)
{
    acr_ledger ledger = {0};
    size_t live = acr_allocated_bytes();
    acr_loader *l = NULL;
    const acr_batch *b = NULL;
    accrue_error e;

    (void)state;
    acr_ledger_use(&ledger);
    l = make_loader();
    assert_ok(acr_loader_start(l, &epoch, NULL, 0, 4, &e), &e);
    for (int64_t i = 0; i < 4; i++)
        assert_ok(acr_loader_next(&b, l, &e), &e);
    acr_loader_stop(l);
    acr_ledger_use(NULL);
    assert_true(ledger.live > 0);
    assert_int_equal(ledger.live, acr_allocated_bytes() - live);
    acr_loader_free(l);
    assert_int_equal(ledger.live, 0);
}

static void missing_samples_stop_it_or_are_skipped(void **state)
{
    char *path = states_file(0);
    acr_loader *l = make_loader();
    const acr_batch *b = NULL;
    accrue_fault f;
    accrue_error e;

    (void)state;
    assert_true(acr_states_exist(folder, 0, NULL, &f));
    assert_int_equal(remove(path), 0);
    assert_false(acr_states_exist(folder, 0, NULL, &f));
    assert_int_equal(f.kind, ACCRUE_FAULT_MISSING);
    assert_non_null(strstr(f.message, path));
    assert_ok(acr_loader_start(l, &epoch, NULL, 0, 4, &e), &e);
    assert_ok(acr_loader_next(&b, l, &e), &e);
    check_batch(b, 0);
    assert_ok(acr_loader_next(&b, l, &e), &e);
    check_batch(b, 1);
    for (int again = 0; again < 2; again++)
        assert_fails(acr_loader_next(&b, l, &e), ACCRUE_EIO, &e, "row 0", path, NULL);
    assert_null(b);
    assert_ok(acr_loader_start(l, &epoch, NULL, 3, 4, &e), &e);
    assert_ok(acr_loader_next(&b, l, &e), &e);
    check_batch(b, 3);
    acr_loader_free(l);
    acr_free(path);
}

/* Rewrites row 2's states: 9 tokens of [4, 4], then its ids. */
static void spoil(const char *name, acr_dtype dtype, int64_t tokens, int64_t slots,
                  int64_t bad_element, int64_t bad_id)
{
    static float values[10 * 5 * 4];
    int64_t ids[10];
    acr_row r;
    char *path = states_file(2);
    const acr_tensor t[2] = {{.name = name,
                              .dtype = dtype,
                              .n_dims = 3,
                              .dims = {tokens, slots, 4},
                              .data = values,
                              .bytes = (size_t)(tokens * slots * 4) * acr_dtype_bytes(dtype)},
                             {.name = "token_ids",
                              .dtype = ACR_DTYPE_I64,
                              .n_dims = 1,
                              .dims = {tokens},
                              .data = ids,
                              .bytes = (size_t)tokens * 8}};

    memset(values, 0, sizeof values);
    memset(ids, 0, sizeof ids);
    assert_int_equal(acr_dataset_row(&r, data, 2, NULL), ACCRUE_OK);
    memcpy(ids, r.input_ids, (size_t)(r.tokens < tokens ? r.tokens : tokens) * sizeof *ids);
    if (bad_element >= 0) {
        uint32_t infinity = 0x7f800000u;
        memcpy(&values[bad_element], &infinity, 4);
    }
    if (bad_id >= 0)
        ids[bad_id]++;
    assert_int_equal(acr_safetensors_write(path, t, 2, NULL, NULL, NULL), ACCRUE_OK);
    acr_free(path);
}

static void expect(accrue_status status, const char *one, const char *two)
{
    int64_t one_row[] = {2}, one_begin[] = {0, 1};
    const acr_epoch only = {1, one_begin, one_row};
    acr_loader *l = make_loader();
    const acr_batch *b = NULL;
    accrue_error e;
    accrue_status st;
    char *path = states_file(2);

    assert_ok(acr_loader_start(l, &only, NULL, 0, 1, &e), &e);
    st = acr_loader_next(&b, l, &e);
    if (status) {
        assert_fails(st, status, &e, path, "row 2", one, two, NULL);
        assert_int_equal(acr_loader_fault(l)->row, 2);
        assert_string_equal(acr_loader_fault(l)->message, e.message);
    } else {
        assert_ok(st, &e);
        assert_null(acr_loader_fault(l));
    }
    acr_loader_free(l);
    acr_free(path);
}

static void states_are_checked_against_the_row(void **state)
{
    (void)state;
    spoil("hidden_states", ACR_DTYPE_F32, 9, 4, -1, -1);
    expect(ACCRUE_OK, NULL, NULL);
    spoil("hidden", ACR_DTYPE_F32, 9, 4, -1, -1);
    expect(ACCRUE_EMISMATCH, "tensor 'hidden_states' is missing", NULL);
    spoil("hidden_states", ACR_DTYPE_I32, 9, 4, -1, -1);
    expect(ACCRUE_EMISMATCH, "hidden_states is I32", "expected BF16, F16 or F32");
    spoil("hidden_states", ACR_DTYPE_F32, 8, 4, -1, -1);
    expect(ACCRUE_EMISMATCH, "token_ids is I64 [8]", "expected I64 [9]");
    spoil("hidden_states", ACR_DTYPE_F32, 9, 3, -1, -1);
    expect(ACCRUE_EMISMATCH, "hidden_states is [9, 3, 4]", "expected [9, 4, 4]");
    spoil("hidden_states", ACR_DTYPE_F32, 9, 4, -1, 5);
    expect(ACCRUE_EMISMATCH, "token_ids of token 5 is 5", "expected 4 as in the data set");
}

/* Infinite values are found wherever they would be used, and nowhere else. */
static void values_that_are_used_are_finite(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 9 * 16; i++) {
        int64_t token = i / 16;
        bool target = i % 16 >= 12;
        bool used = target ? token > 0 : token < 8;
        char *place = acr_sprintf("token %lld, slot %lld, element %lld is inf", (long long)token,
                                  (long long)(i / 4 % 4), (long long)(i % 4));
        spoil("hidden_states", ACR_DTYPE_F32, 9, 4, i, -1);
        expect(used ? ACCRUE_EFORMAT : ACCRUE_OK, place, NULL);
        acr_free(place);
    }
}

static void ids_outside_the_vocabulary_stop_it(void **state)
{
    acr_loader_options opt = {.states_dir = folder, .shape = shape};
    acr_loader *l = NULL;
    const acr_batch *b = NULL;
    accrue_error e;

    (void)state;
    opt.shape.vocab_size = 40;
    assert_ok(acr_loader_create(&l, data, &opt, &e), &e);
    assert_ok(acr_loader_start(l, &epoch, NULL, 0, 4, &e), &e);
    assert_fails(acr_loader_next(&b, l, &e), ACCRUE_EMISMATCH, &e, "row 2", "is 42",
                 "expected 0 to 39", NULL);
    acr_loader_free(l);
}

/* Every allocation may fail, in the thread too: an error, no leak, no crash. */
static void running_out_of_memory_is_an_error(void **state)
{
    const acr_loader_options opt = {.states_dir = folder, .shape = shape};
    size_t live = acr_allocated_bytes();
    int failures = 0;
    accrue_error e;

    (void)state;
    for (uint64_t n = 1; n < 40; n++) {
        acr_loader *l = NULL;
        const acr_batch *b = NULL;
        accrue_status st = ACCRUE_OK;
        acr_fail_allocation(n);
        st = acr_loader_create(&l, data, &opt, &e);
        if (!st)
            st = acr_loader_start(l, &epoch, NULL, 0, 4, &e);
        for (int i = 0; !st && i < 4; i++)
            st = acr_loader_next(&b, l, &e);
        acr_fail_allocation(0);
        if (st) {
            assert_int_equal(st, ACCRUE_ENOMEM);
            failures++;
        }
        acr_loader_free(l);
        assert_int_equal(acr_allocated_bytes(), live);
    }
    assert_in_range(failures, 15, 38);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(serves_micro_batches_in_order),          TEST(starts_again_at_any_moment),
        TEST(allocates_nothing_in_the_steady_state),  TEST(its_memory_is_in_the_owners_ledger),
        TEST(missing_samples_stop_it_or_are_skipped), TEST(states_are_checked_against_the_row),
        TEST(values_that_are_used_are_finite),        TEST(ids_outside_the_vocabulary_stop_it),
        TEST(running_out_of_memory_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
