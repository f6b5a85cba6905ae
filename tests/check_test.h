/* check_test.h - for tests of what accrue_check tells, on a copy of the example. */
#ifndef TEST_CHECK_TEST_H
#define TEST_CHECK_TEST_H

#include "bad_rows_test.h"

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clear)

static char *folder, *data;

static inline int make(void **state)
{
    (void)state;
    accrue_set_threads(2);
    folder = make_folder();
    data = copy_data(folder, "data");
    return 0;
}

static inline int clear(void **state)
{
    (void)state;
    acr_free(data);
    remove_folder(folder);
    return 0;
}

typedef struct found {
    accrue_fault faults[70];
    int n;
    accrue_check_report report;
} found;

static inline int listen(const accrue_fault *f, const accrue_check_report *so_far, void *payload)
{
    found *l = payload;

    (void)so_far;
    if (f) {
        assert_true(l->n < ACR_COUNT(l->faults));
        l->faults[l->n++] = *f;
    }
    return 0;
}

static inline void check(found *l, const char *path, double lock_timeout)
{
    accrue_check_options o;
    accrue_error e = {0};

    memset(l, 0, sizeof *l);
    accrue_check_options_init(&o, sizeof o);
    o.data_path = path;
    o.verifier = TINY "/verifier";
    o.lock_timeout = lock_timeout;
    assert_ok(accrue_check(&l->report, &o, listen, l, &e), &e);
}

static inline void one_fault(accrue_fault_kind kind, int64_t row, const char *message)
{
    static found l;

    check(&l, data, 0);
    assert_int_equal(l.n, 1);
    assert_string_equal(accrue_fault_name(l.faults[0].kind), accrue_fault_name(kind));
    assert_int_equal(l.faults[0].row, row);
    if (!strstr(l.faults[0].message, message))
        fail_msg("'%s' is not in: %s", message, l.faults[0].message);
}

static inline accrue_train_options train_options(const char *path)
{
    accrue_train_options o = tiny_options("/nowhere");

    o.data_path = path;
    o.lock_timeout = 0;
    return o;
}

/* The right ids, and other states; the row's length. */
static inline int64_t write_states(int64_t row, int64_t more_tokens, int64_t slots)
{
    static const float values[80 * 5 * 32];
    char *path = states_of(data, row);
    acr_dataset *d = NULL;
    accrue_error e = {0};
    acr_row r;

    assert_ok(acr_dataset_open(&d, data, &e), &e);
    assert_ok(acr_dataset_row(&r, d, row, &e), &e);
    const acr_tensor t[] = {{.name = "hidden_states",
                             .dtype = ACR_DTYPE_F32,
                             .n_dims = 3,
                             .dims = {r.tokens + more_tokens, slots, 32},
                             .data = values,
                             .bytes = (size_t)((r.tokens + more_tokens) * slots) * 32 * 4},
                            {.name = "token_ids",
                             .dtype = ACR_DTYPE_I64,
                             .n_dims = 1,
                             .dims = {r.tokens},
                             .data = r.input_ids,
                             .bytes = 8 * (size_t)r.tokens}};
    assert_ok(acr_safetensors_write(path, t, 2, NULL, NULL, &e), &e);
    acr_dataset_close(d);
    acr_free(path);
    return r.tokens;
}

#endif
