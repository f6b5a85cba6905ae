/* accrue_check: faults of the set as a whole, and the sizes that its rows are measured by. */
#include "check_test.h"

/* Which states are wrong is not for one row to say. */
static void a_first_row_that_deviates_is_the_one_with_the_fault(void **state)
{
    accrue_check_options o;
    static found l;
    accrue_error e = {0};

    (void)state;
    write_states(0, 0, 5);
    one_fault(ACCRUE_FAULT_TENSOR, 0, "5, 32], expected [");
    accrue_check_options_init(&o, sizeof o);
    o.data_path = data;
    l.n = 0;
    assert_ok(accrue_check(&l.report, &o, listen, &l, &e), &e);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.faults[0].row, 0);
    assert_non_null(strstr(l.faults[0].message, "5, 32], expected ["));
    assert_non_null(strstr(l.faults[0].message, "4, 32]"));
}

/* Of the rows that train; those that validate keep theirs. */
static void a_set_without_supervision_has_a_fault(void **state)
{
    static int64_t masks[5000];
    char *arrow = acr_sprintf("%s/data-00000-of-00001.arrow", data);
    acr_dataset *d = NULL;
    accrue_error e = {0};
    acr_map map = {0};
    const char *place = NULL;
    int64_t n = 0, at = 0;
    accrue_train_options o = train_options(data);
    accrue_run *run = NULL;

    (void)state;
    assert_ok(acr_dataset_open(&d, data, &e), &e);
    for (int64_t row = 0; row < 54; row++) {
        acr_row r;
        assert_ok(acr_dataset_row(&r, d, row, &e), &e);
        memcpy(masks + n, r.loss_mask, 8 * (size_t)r.tokens);
        n += r.tokens;
    }
    acr_dataset_close(d);
    assert_ok(acr_map_open(&map, arrow, &e), &e);
    place = memmem(map.data, map.bytes, masks, 8 * (size_t)n);
    assert_non_null(place);
    at = place - (const char *)map.data;
    acr_map_close(&map);
    memset(masks, 0, sizeof masks);
    masks[0] = 1; /* the first token is no target */
    overwrite(arrow, at, masks, 8 * (size_t)n);
    one_fault(ACCRUE_FAULT_MASK, -1, "0 of the 54 training rows have a supervised token");
    assert_fails(accrue_run_open(&run, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "0 of the 54 training rows have a supervised token", NULL);
    acr_free(arrow);
}

/* As another user than the superuser, who may list everything. */
static void a_folder_that_cannot_be_listed_is_a_fault(void **state)
{
    const uid_t user = geteuid();

    (void)state;
    shell(acr_sprintf("echo none >'%s/d2t-48.npy' && chmod 755 '%s' && chmod 311 '%s'", data,
                      folder, data));
    if (user == 0)
        assert_int_equal(seteuid(65534), 0);
    one_fault(ACCRUE_FAULT_UNREADABLE, -1, "cannot look for vocabulary maps: Permission denied");
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(chmod(data, 0755), 0);
}

/* No ids, and a mask of as many as there are states: neither trained on nor passed over. */
static void a_row_without_ids_is_refused(void **state)
{
    static found l;
    accrue_train_options o = train_options(data);
    char *arrow = acr_sprintf("%s/data-00000-of-00001.arrow", data);
    int32_t ends[60] = {0};
    acr_dataset *d = NULL;
    accrue_error e = {0};
    accrue_run *run = NULL;
    acr_map map = {0};
    const char *place = NULL;
    int64_t at = 0;

    (void)state;
    assert_ok(acr_dataset_open(&d, data, &e), &e);
    for (int i = 0; i < 60; i++)
        ends[i] = (i ? ends[i - 1] : 0) + (int32_t)acr_dataset_tokens(d, i);
    acr_dataset_close(d);
    assert_ok(acr_map_open(&map, arrow, &e), &e);
    place = memmem(map.data, map.bytes, ends, sizeof ends); /* of input_ids */
    assert_non_null(place);
    at = place - (const char *)map.data;
    acr_map_close(&map);
    overwrite(arrow, at - 4, &ends[0], 4); /* row 0 begins where it ends */
    check(&l, data, 0);
    assert_in_range(l.n, 3, 4);
    for (int i = 0; i < l.n; i++)
        assert_int_equal(l.faults[i].row, 0);
    assert_fails(accrue_run_open(&run, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "row 0: the length of loss_mask is", "expected 0 as there are input_ids", NULL);
    o.on_bad = ACCRUE_POLICY_SKIP;
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_int_equal(run->epochs.n_bad, 1);
    assert_true(run->epochs.bad[0]);
    accrue_run_free(run);
    acr_free(arrow);
}

/* Told like any other fault, and so are the maps. */
static void a_broken_data_set_is_a_fault(void **state)
{
    static found l;
    char *arrow = acr_sprintf("%s/data-00000-of-00001.arrow", data);
    char *map = acr_sprintf("%s/d2t-48.npy", data);

    (void)state;
    assert_int_equal(truncate(arrow, file_bytes(arrow) - 100), 0);
    one_fault(ACCRUE_FAULT_FORMAT, -1, "data-00000-of-00001.arrow: message at byte");
    write_text(map, "no map");
    check(&l, data, 0);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.faults[1].kind, ACCRUE_FAULT_MAP);
    assert_int_equal(l.report.rows, 0);
    assert_int_equal(l.report.bad_rows, 0);
    acr_free(map);
    acr_free(arrow);
}

/* One null in a column ends nothing but its row. */
static void a_null_is_its_rows_fault(void **state)
{
    static const struct {
        const char *file;
        accrue_fault_kind kind;
        const char *message;
    } cases[] = {{"missing_list", ACCRUE_FAULT_LENGTH, "row 1: input_ids is null"},
                 {"missing_token", ACCRUE_FAULT_VOCABULARY, "the id of token 1 is null, expected"},
                 {"missing_length", ACCRUE_FAULT_LENGTH, "row 1: seq_len is null"}};
    static found l;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        bool seen = false;
        shell(acr_sprintf("cp " ACR_TEST_DATA "/bad_arrow/%s.arrow "
                          "'%s/data-00000-of-00001.arrow'",
                          cases[i].file, data));
        check(&l, data, 0);
        for (int k = 0; k < l.n; k++)
            seen |= l.faults[k].kind == cases[i].kind && l.faults[k].row >= 0 &&
                    strstr(l.faults[k].message, cases[i].message);
        assert_true(seen);
    }
}

static void assert_map(int64_t draft, bool notice, const char *file)
{
    static found l;
    accrue_check_options o;
    accrue_error e = {0};

    accrue_check_options_init(&o, sizeof o);
    o.data_path = data;
    o.draft_vocab_size = draft;
    l.n = 0;
    assert_ok(accrue_check(&l.report, &o, listen, &l, &e), &e);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.faults[0].kind, ACCRUE_FAULT_MAP);
    assert_int_equal(l.faults[0].notice, notice);
    assert_int_equal(l.report.faults, !notice);
    assert_non_null(strstr(l.faults[0].message, file));
}

/* Training reads the ones of its draft's size, and those without a size where there are none. */
static void maps_that_training_would_not_read_are_notices(void **state)
{
    accrue_train_options o = train_options(data);
    accrue_error e = {0};
    accrue_run *run = NULL;
    char *path = acr_sprintf("%s/d2t.npy", data);

    (void)state;
    write_text(path, "no map");
    assert_map(48, true, "d2t.npy");
    assert_map(0, true, "d2t.npy");
    assert_map(32, false, "d2t.npy");
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    accrue_run_free(run);
    assert_int_equal(unlink(path), 0);
    acr_free(path);
    path = acr_sprintf("%s/t2d-32.npy", data);
    write_text(path, "no map");
    assert_map(48, true, "d2t-32.npy");
    assert_map(0, false, "d2t-32.npy");
    assert_map(32, false, "d2t-32.npy");
    acr_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_first_row_that_deviates_is_the_one_with_the_fault),
        TEST(a_set_without_supervision_has_a_fault),
        TEST(a_folder_that_cannot_be_listed_is_a_fault),
        TEST(a_row_without_ids_is_refused),
        TEST(a_broken_data_set_is_a_fault),
        TEST(a_null_is_its_rows_fault),
        TEST(maps_that_training_would_not_read_are_notices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
