/* accrue_check: every fault of a data set told of with its place, and the same refused by train. */
#include "bad_rows_test.h"

#include <sys/file.h>

static char *folder, *data;

static int make(void **state)
{
    (void)state;
    accrue_set_threads(2);
    folder = make_folder();
    data = copy_data(folder, "data");
    return 0;
}

static int clear(void **state)
{
    (void)state;
    acr_free(data);
    remove_folder(folder);
    return 0;
}

/* What a check told. */
typedef struct found {
    accrue_fault faults[32];
    int n;
    int64_t words, last_rows; /* of progress */
    int stop_at;              /* fault at which the callback stops the check; 0: never */
    accrue_check_report report;
} found;

static int listen(const accrue_fault *f, const accrue_check_report *so_far, void *payload)
{
    found *l = payload;

    if (!f) {
        l->words++;
        assert_true(so_far->checked_rows >= l->last_rows);
        l->last_rows = so_far->checked_rows;
        return 0;
    }
    assert_true(l->n < ACR_COUNT(l->faults));
    l->faults[l->n++] = *f;
    return l->n == l->stop_at;
}

static accrue_check_options options_of(const char *path)
{
    accrue_check_options o;

    accrue_check_options_init(&o, sizeof o);
    o.data_path = path;
    o.verifier = TINY "/verifier";
    o.lock_timeout = 0;
    return o;
}

static void check(found *l, const accrue_check_options *o)
{
    accrue_error e = {0};

    memset(l, 0, sizeof *l);
    assert_ok(accrue_check(&l->report, o, listen, l, &e), &e);
    assert_int_equal(l->report.faults + l->report.notices, l->n);
    assert_int_equal(l->report.checked_rows, l->report.rows);
    assert_int_equal(l->last_rows, l->report.rows);
}

static void assert_fault(const accrue_fault *f, accrue_fault_kind kind, int64_t row,
                         const char *message)
{
    if (!strstr(f->message, message))
        fail_msg("'%s' is not in: %s", message, f->message);
    assert_string_equal(accrue_fault_name(f->kind), accrue_fault_name(kind));
    assert_int_equal(f->row, row);
    assert_null(strchr(f->message, '\n'));
    if (f->kind != ACCRUE_FAULT_MAP)
        assert_non_null(strstr(f->message, f->file));
}

static void one_fault(accrue_fault_kind kind, int64_t row, const char *message)
{
    accrue_check_options o = options_of(data);
    found l;

    check(&l, &o);
    assert_int_equal(l.n, 1);
    assert_fault(&l.faults[0], kind, row, message);
}

static accrue_train_options train_options(void)
{
    accrue_train_options o = tiny_options("/nowhere");

    o.data_path = data;
    o.lock_timeout = 0;
    return o;
}

static void train_refuses(accrue_status status, const char *one, const char *two)
{
    accrue_train_options o = train_options();
    accrue_error e = {0};
    accrue_run *run = NULL;

    assert_fails(accrue_run_open(&run, &o, NULL, NULL, &e), status, &e, one, two, NULL);
}

/* Everything ------------------------------------------------------------------------------ */

static void a_whole_set_has_no_fault(void **state)
{
    accrue_check_options o = options_of(data);
    int64_t bytes = 0;
    found l;

    (void)state;
    for (int64_t row = 0; row < 60; row++) {
        char *path = states_of(data, row);
        bytes += file_bytes(path);
        acr_free(path);
    }
    for (int i = 0; i < 2; i++) {
        check(&l, &o);
        assert_int_equal(l.n, 0);
        assert_int_equal(l.report.rows, 60);
        assert_int_equal(l.report.bad_rows, 0);
        assert_int_equal(l.report.tokens, 3157);
        assert_int_equal(l.report.supervised_tokens, 2122);
        assert_int_equal(l.report.unsupervised_rows, 0);
        assert_int_equal(l.report.files, 60);
        assert_int_equal(l.report.bytes, bytes);
        assert_true(l.words >= 2);
        o.verifier = NULL;
    }
}

/* Several in one row too; in the order of rows, for any number of threads. */
static void every_fault_of_every_row_is_told(void **state)
{
    accrue_check_options o = options_of(data);
    found l, again;
    char *path = states_of(data, 13);
    uint16_t nans[3] = {0x7f80, 0, 0xffff};

    (void)state;
    spoil_column(data, true, 2, 9, -1);
    spoil_column(data, true, 2, 11, 7);
    spoil_column(data, false, 2, 4, 96);
    spoil_states(data, 2);
    remove_states(data, 7);
    overwrite(path, file_bytes(path) - 6, nans, sizeof nans);
    cut_states(data, 21);
    check(&l, &o);
    assert_int_equal(l.n, 7);
    assert_fault(&l.faults[0], ACCRUE_FAULT_MASK, 2, "loss_mask of token 9 is -1, expected 0 or 1");
    assert_int_equal(l.faults[0].count, 2);
    assert_int_equal(l.faults[0].token, 9);
    assert_non_null(strstr(l.faults[0].message, "(and 1 more)"));
    assert_fault(&l.faults[1], ACCRUE_FAULT_VOCABULARY, 2, "the id of token 4 is 96");
    assert_fault(&l.faults[2], ACCRUE_FAULT_TOKEN_IDS, 2, "96 as in the data set");
    assert_fault(&l.faults[3], ACCRUE_FAULT_NONFINITE, 2, "is nan, expected a finite number");
    assert_int_equal(l.faults[3].count, 1);
    assert_fault(&l.faults[4], ACCRUE_FAULT_MISSING, 7, "there are no hidden states");
    assert_fault(&l.faults[5], ACCRUE_FAULT_NONFINITE, 13, "slot 3, element 29 is inf");
    assert_int_equal(l.faults[5].count, 2);
    assert_int_equal(l.faults[5].slot, 3);
    assert_int_equal(l.faults[5].element, 29);
    assert_int_equal(l.faults[5].token, 47);
    assert_string_equal(l.faults[5].found, "inf");
    assert_string_equal(l.faults[5].expected, "a finite number");
    assert_fault(&l.faults[6], ACCRUE_FAULT_FORMAT, 21, "are not within");
    assert_int_equal(l.report.bad_rows, 4);
    assert_int_equal(l.report.faults, 7);
    accrue_set_threads(1);
    check(&again, &o);
    assert_int_equal(again.n, l.n);
    assert_memory_equal(again.faults, l.faults, sizeof l.faults);
    acr_free(path);
}

/* Without a verifier the first row says which sizes the others must have. */
static void sizes_are_the_verifiers_or_the_first_rows(void **state)
{
    accrue_check_options o = options_of(data);
    found l;

    (void)state;
    o.n_aux = 2; /* the files have 3 */
    check(&l, &(accrue_check_options){
                  .struct_size = sizeof o, .data_path = data, .verifier = o.verifier});
    assert_int_equal(l.n, 0);
    shell(acr_sprintf("cp '%s/hidden_states/hs_0.safetensors' '%s/hidden_states/hs_1.safetensors'",
                      ACR_TEST_DATA "/tiny", data));
    o.n_aux = 0;
    check(&l, &o);
    assert_int_equal(l.n, 2);
    assert_fault(&l.faults[0], ACCRUE_FAULT_LENGTH, 1, "token_ids is I64 [5]");
    assert_fault(&l.faults[1], ACCRUE_FAULT_TENSOR, 1, "hidden_states is [5, 4, 4], expected [");
    o.verifier = NULL;
    check(&l, &o);
    assert_int_equal(l.n, 2);
    assert_fault(&l.faults[1], ACCRUE_FAULT_TENSOR, 1, "4, 32]");
}

static void a_check_can_be_stopped(void **state)
{
    accrue_check_options o = options_of(data);
    found l = {.stop_at = 2};
    accrue_error e = {0};

    (void)state;
    for (int64_t row = 3; row < 8; row++)
        remove_states(data, row);
    assert_fails(accrue_check(&l.report, &o, listen, &l, &e), ACCRUE_ECANCELED, &e,
                 "stopped by the caller", NULL);
    assert_int_equal(l.n, 2);
}

static void what_cannot_be_checked_is_an_error(void **state)
{
    accrue_check_options o = options_of("/none");
    accrue_check_report r;
    accrue_error e = {0};
    char *config = NULL;

    (void)state;
    assert_fails(accrue_check(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, "/none/state.json", NULL);
    o = options_of(data);
    o.hidden_states_path = "/none";
    assert_fails(accrue_check(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e,
                 "/none: no such folder of hidden states", NULL);
    o = options_of(data);
    o.verifier = "/none";
    assert_fails(accrue_check(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, "/none/config.json", NULL);
    config = acr_sprintf("%s/config.json", folder);
    write_text(config, "{\"hidden_size\": 4}");
    o.verifier = folder;
    assert_fails(accrue_check(&r, &o, NULL, NULL, &e), ACCRUE_EFORMAT, &e, config,
                 "hidden_size 4 and vocab_size 0, at least 1 expected", NULL);
    acr_free(config);
    o = options_of(data);
    o.d2t_path = "d2t.npy";
    assert_fails(accrue_check(&r, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e,
                 "--d2t-path is given without --t2d-path", NULL);
    o = options_of("");
    assert_fails(accrue_check(&r, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e, "--data-path", NULL);
    o = options_of(data);
    o.lock_timeout = -1;
    assert_fails(accrue_check(&r, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e, "--lock-timeout -1",
                 NULL);
    o.struct_size = 1;
    assert_fails(accrue_check(&r, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e, "1 bytes", NULL);
}

static void running_out_of_memory_is_an_error(void **state)
{
    accrue_check_options o = options_of(data);
    size_t live = acr_allocated_bytes();
    int failures = 0;

    (void)state;
    accrue_set_threads(1);
    spoil_states(data, 5);
    for (uint64_t n = 1; n < 40; n++) {
        accrue_check_report r;
        accrue_error e = {0};
        accrue_status st = ACCRUE_OK;
        acr_fail_allocation(n);
        st = accrue_check(&r, &o, NULL, NULL, &e);
        acr_fail_allocation(0);
        assert_true(st == ACCRUE_OK || st == ACCRUE_ENOMEM);
        failures += st == ACCRUE_ENOMEM;
        assert_int_equal(acr_allocated_bytes(), live);
    }
    assert_in_range(failures, 8, 38);
}

/* A18: files ------------------------------------------------------------------------------ */

#define IDS "\"token_ids\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[0,0]}"

static void a18_broken_files_have_messages_of_their_own(void **state)
{
    static const struct {
        const char *header; /* NULL: a file of the length alone */
        size_t bytes;
        accrue_fault_kind kind;
        const char *message;
    } cases[] = {
        {NULL, 3, ACCRUE_FAULT_FORMAT, "3 bytes are too few"},
        {NULL, 20, ACCRUE_FAULT_FORMAT, "a header of 999 bytes in a file of 20"},
        {"{\"a\":", 0, ACCRUE_FAULT_FORMAT, "line 1 column"},
        {"{" IDS ",\"hidden_states\":{\"dtype\":\"F32\",\"shape\":[1,1,2],\"data_offsets\":[0,8]}}",
         7, ACCRUE_FAULT_FORMAT, "bytes 0 to 8 are not within the 7 bytes of data"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
         7, ACCRUE_FAULT_FORMAT, "'b' begins at byte 3 of the data, inside the one that ends at"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]}}",
         8, ACCRUE_FAULT_FORMAT, "'b' begins at byte 5 of the data, after a gap from byte 4"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5, ACCRUE_FAULT_FORMAT,
         "take 4 bytes, its data has 5"},
        {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2,
         ACCRUE_FAULT_FORMAT, "dtype 'F8_E4M3' is not supported"},
        {"{\"ids\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
         ACCRUE_FAULT_TENSOR, "tensor 'token_ids' is missing"},
        {"{\"token_ids\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         ACCRUE_FAULT_TENSOR, "token_ids is I32 [2], expected I64 ["},
        {"{" IDS "}", 0, ACCRUE_FAULT_LENGTH, "token_ids is I64 [0], expected I64 ["},
    };
    char *path = states_of(data, 5);
    char bytes[20] = {(char)(999 & 255), (char)(999 >> 8)};
    accrue_check_options o = options_of(data);
    found l;

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        if (cases[i].header)
            write_header(path, cases[i].header, cases[i].bytes);
        else
            write_bytes(path, bytes, cases[i].bytes);
        check(&l, &o);
        assert_true(l.n >= 1);
        assert_fault(&l.faults[0], cases[i].kind, 5, cases[i].message);
        train_refuses(acr_fault_status(&l.faults[0]), "row 5", cases[i].message);
        for (int k = 0; k < i; k++)
            assert_null(strstr(l.faults[0].message, cases[k].message));
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    one_fault(ACCRUE_FAULT_UNREADABLE, 5, "not a regular file");
    acr_free(path);
}

/* The right ids, and states under another name, of another type, in another shape. */
static void a18_wrong_tensors_are_told_apart(void **state)
{
    static const struct {
        const char *name;
        acr_dtype dtype;
        int64_t slots;
        const char *message;
    } cases[] = {{"states", ACR_DTYPE_F32, 4, "tensor 'hidden_states' is missing"},
                 {"hidden_states", ACR_DTYPE_I32, 4, "is I32, expected BF16, F16 or F32"},
                 {"hidden_states", ACR_DTYPE_F32, 5, "5, 32], expected ["}};
    static float values[80 * 5 * 32];
    char *path = states_of(data, 5);
    acr_dataset *d = NULL;
    accrue_error e = {0};
    acr_row r;

    (void)state;
    assert_ok(acr_dataset_open(&d, data, &e), &e);
    assert_ok(acr_dataset_row(&r, d, 5, &e), &e);
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        const acr_tensor t[] = {{.name = cases[i].name,
                                 .dtype = cases[i].dtype,
                                 .n_dims = 3,
                                 .dims = {r.tokens, cases[i].slots, 32},
                                 .data = values,
                                 .bytes = (size_t)(r.tokens * cases[i].slots) * 32 * 4},
                                {.name = "token_ids",
                                 .dtype = ACR_DTYPE_I64,
                                 .n_dims = 1,
                                 .dims = {r.tokens},
                                 .data = r.input_ids,
                                 .bytes = 8 * (size_t)r.tokens}};
        assert_ok(acr_safetensors_write(path, t, 2, NULL, false, &e), &e);
        one_fault(ACCRUE_FAULT_TENSOR, 5, cases[i].message);
        train_refuses(ACCRUE_EMISMATCH, "row 5", cases[i].message);
    }
    acr_dataset_close(d);
    acr_free(path);
}

/* A18: locks ------------------------------------------------------------------------------ */

/* vLLM's writer leaves the lock's file behind: nobody holds it, the states are whole. */
static void a18_a_left_over_lock_is_a_notice(void **state)
{
    char *path = states_of(data, 7), *lock = acr_sprintf("%s.lock", path);
    accrue_train_options t = train_options();
    accrue_check_options o = options_of(data);
    accrue_error e = {0};
    accrue_run *run = NULL;
    found l;

    (void)state;
    write_text(lock, "");
    check(&l, &o);
    assert_int_equal(l.n, 1);
    assert_fault(&l.faults[0], ACCRUE_FAULT_STALE_LOCK, 7, "left over");
    assert_string_equal(l.faults[0].file, lock);
    assert_true(l.faults[0].notice);
    assert_int_equal(l.report.faults, 0);
    assert_int_equal(l.report.bad_rows, 0);
    assert_true(acr_is_file(lock));
    assert_ok(accrue_run_open(&run, &t, NULL, NULL, &e), &e);
    accrue_run_free(run);
    assert_int_equal(unlink(path), 0); /* the writer has died before it wrote them */
    check(&l, &o);
    assert_int_equal(l.n, 2);
    assert_fault(&l.faults[1], ACCRUE_FAULT_MISSING, 7, "the .lock of a writer that is gone");
    train_refuses(ACCRUE_EIO, path, "the .lock of a writer that is gone");
    acr_free(lock);
    acr_free(path);
}

static void a18_a_held_lock_is_waited_for_and_named(void **state)
{
    char *path = states_of(data, 7), *lock = acr_sprintf("%s.lock", path);
    accrue_train_options t = train_options();
    accrue_error e = {0};
    accrue_run *run = NULL;
    int fd = open(lock, O_RDWR | O_CREAT, 0666);

    (void)state;
    assert_int_equal(flock(fd, LOCK_EX), 0);
    one_fault(ACCRUE_FAULT_LOCKED, 7, "a writer holds the lock");
    train_refuses(ACCRUE_EIO, lock, "row 7");
    t.check_bytes = 0; /* found when the row is loaded */
    t.total_seq_len = 71;
    t.batch_plan = write_plan(folder, 71, "[[1], [7], [2]]");
    assert_ok(accrue_run_open(&run, &t, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
    assert_fails(accrue_run_forward_backward(run, NULL, &e), ACCRUE_EIO, &e, lock, "row 7", NULL);
    accrue_run_free(run);
    assert_int_equal(unlink(path), 0); /* not written yet */
    one_fault(ACCRUE_FAULT_LOCKED, 7, "a writer holds the lock");
    train_refuses(ACCRUE_EIO, lock, "row 7");
    close(fd);
    acr_free((void *)(uintptr_t)t.batch_plan);
    acr_free(lock);
    acr_free(path);
}

/* A writer that moves the file into place and lets go within the time. */
static void a18_a_lock_that_is_released_is_no_fault(void **state)
{
    char *path = states_of(data, 7), *lock = acr_sprintf("%s.lock", path);
    char *aside = acr_sprintf("%s.part", path), byte = 0;
    accrue_train_options t = train_options();
    accrue_error e = {0};
    accrue_run *run = NULL;
    int ready[2], status = 0;
    pid_t pid = 0;

    (void)state;
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = open(lock, O_RDWR | O_CREAT, 0666);
        bool fine = !flock(fd, LOCK_EX) && write(ready[1], &byte, 1) == 1;
        usleep(50000);
        _exit(!fine || rename(aside, path) ? 1 : 0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    t.lock_timeout = 600;
    assert_ok(accrue_run_open(&run, &t, NULL, NULL, &e), &e);
    assert_int_equal(run->epochs.n_bad, 0);
    accrue_run_free(run);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(ready[0]);
    close(ready[1]);
    acr_free(aside);
    acr_free(lock);
    acr_free(path);
}

/* A19, A20: rows -------------------------------------------------------------------------- */

static void a19_lengths_that_disagree_are_named(void **state)
{
    accrue_check_options o = options_of(data);
    found l;

    (void)state;
    shift_mask(data, 30);
    check(&l, &o);
    assert_int_equal(l.n, 2);
    assert_fault(&l.faults[0], ACCRUE_FAULT_LENGTH, 30, "the length of loss_mask is");
    assert_fault(&l.faults[1], ACCRUE_FAULT_LENGTH, 31, "the length of loss_mask is");
    assert_int_equal(strtoll(l.faults[0].found, NULL, 10),
                     strtoll(l.faults[0].expected, NULL, 10) + 1);
    train_refuses(ACCRUE_EMISMATCH, "row 30", "the length of loss_mask is");
    acr_free(data);
    data = copy_data(folder, "again");
    shell(acr_sprintf("cp '%s/hidden_states/hs_14.safetensors' "
                      "'%s/hidden_states/hs_13.safetensors'",
                      data, data));
    o.data_path = data;
    check(&l, &o);
    assert_int_equal(l.n, 2);
    assert_fault(&l.faults[0], ACCRUE_FAULT_LENGTH, 13, "token_ids is I64 [43], expected I64 [48]");
    assert_fault(&l.faults[1], ACCRUE_FAULT_LENGTH, 13, "is [43, 4, 32], expected [48, 4, 32]");
    train_refuses(ACCRUE_EMISMATCH, "row 13", "expected I64 [48]");
}

static void a20_ids_outside_the_vocabulary_are_named(void **state)
{
    accrue_check_options o = options_of(data);
    found l;

    (void)state;
    spoil_column(data, false, 17, 6, TINY_VOCAB);
    check(&l, &o);
    assert_int_equal(l.n, 2); /* and the states are those of another token */
    assert_fault(&l.faults[0], ACCRUE_FAULT_VOCABULARY, 17,
                 "row 17: the id of token 6 is 96, expected 0 to 95");
    assert_int_equal(l.faults[0].token, 6);
    train_refuses(ACCRUE_EMISMATCH, "row 17: the id of token 6 is 96", "expected 0 to 95");
    o.verifier = NULL; /* the maps know the vocabulary too */
    check(&l, &o);
    assert_fault(&l.faults[0], ACCRUE_FAULT_VOCABULARY, 17, "expected 0 to 95");
    shell(acr_sprintf("rm '%s'/*.npy", data));
    check(&l, &o);
    assert_int_equal(l.n, 1);
    assert_fault(&l.faults[0], ACCRUE_FAULT_TOKEN_IDS, 17, "token_ids of token 6");
    spoil_column(data, false, 17, 6, -1);
    check(&l, &o);
    assert_fault(&l.faults[0], ACCRUE_FAULT_VOCABULARY, 17,
                 "the id of token 6 is -1, expected 0 or more");
}

/* A23: vocabulary maps -------------------------------------------------------------------- */

static void write_map(const char *name, acr_dtype dtype, const void *values, int64_t n)
{
    char *path = acr_sprintf("%s/%s", data, name);
    const acr_tensor t = {.dtype = dtype,
                          .n_dims = 1,
                          .dims = {n},
                          .data = values,
                          .bytes = (size_t)n * acr_dtype_bytes(dtype)};

    assert_int_equal(acr_npy_write(path, &t, NULL), ACCRUE_OK);
    acr_free(path);
}

static void map_fault(const char *message)
{
    one_fault(ACCRUE_FAULT_MAP, -1, message);
    train_refuses(ACCRUE_EMISMATCH, "-48.npy", message);
}

static void a23_maps_that_do_not_fit_are_refused(void **state)
{
    int64_t d2t[TINY_DRAFT + 1] = {0};
    uint8_t t2d[TINY_VOCAB] = {0};

    (void)state;
    for (int i = 0; i < TINY_DRAFT; i++) { /* every second id */
        t2d[2 * i] = 1;
        d2t[i] = i;
    }
    write_map("t2d-48.npy", ACR_DTYPE_BOOL, t2d, TINY_VOCAB);
    map_fault("d2t of draft id"); /* d2t is still the old one, of another run */
    write_map("d2t-48.npy", ACR_DTYPE_I64, d2t, TINY_DRAFT + 1);
    map_fault("a map of 49 ids, the draft vocabulary has 48");
    d2t[3] = 1; /* two draft ids for one of the verifier's */
    write_map("d2t-48.npy", ACR_DTYPE_I64, d2t, TINY_DRAFT);
    map_fault("d2t of draft id 3 is 1, t2d makes it 3");
    d2t[3] = 4; /* in another order than the ids */
    d2t[4] = 2;
    write_map("d2t-48.npy", ACR_DTYPE_I64, d2t, TINY_DRAFT);
    map_fault("d2t of draft id 3 is 4, t2d makes it 3");
    d2t[3] = 3;
    d2t[4] = 4;
    write_map("d2t-48.npy", ACR_DTYPE_I64, d2t, TINY_DRAFT);
    t2d[1] = 1;
    write_map("t2d-48.npy", ACR_DTYPE_BOOL, t2d, TINY_VOCAB);
    map_fault("t2d marks 49 ids, d2t has 48");
    write_map("t2d-48.npy", ACR_DTYPE_BOOL, t2d, TINY_VOCAB - 1);
    map_fault("a map of 95 ids, the verifier's vocabulary has 96");
}

/* Maps given by flag, and those of a run that goes on with other ones. */
static void a23_maps_of_another_run_are_refused(void **state)
{
    int64_t d2t[TINY_DRAFT];
    uint8_t t2d[TINY_VOCAB] = {0};
    char *out = acr_sprintf("%s/out", folder), *other = NULL;
    accrue_check_options c = options_of(data);
    accrue_train_options o = train_options();
    accrue_error e = {0};
    found l;

    (void)state;
    for (int i = 0; i < TINY_DRAFT; i++) {
        t2d[2 * i] = 1;
        d2t[i] = i;
    }
    o.data_path = TINY "/data";
    o.save_path = out;
    o.max_steps = 2;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    acr_free(data);
    data = acr_strdup(folder);
    write_map("d2t.npy", ACR_DTYPE_I64, d2t, TINY_DRAFT);
    write_map("t2d.npy", ACR_DTYPE_BOOL, t2d, TINY_VOCAB);
    o.d2t_path = other = acr_sprintf("%s/d2t.npy", folder);
    o.t2d_path = acr_sprintf("%s/t2d.npy", folder);
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "Cannot resume", "d2t[",
                 NULL);
    acr_free((void *)(uintptr_t)o.t2d_path);
    c.data_path = TINY "/data";
    c.d2t_path = other;
    c.t2d_path = TINY "/data/t2d-48.npy";
    check(&l, &c);
    assert_int_equal(l.n, 1);
    assert_fault(&l.faults[0], ACCRUE_FAULT_MAP, -1, "d2t of draft id");
    acr_free(other);
    acr_free(out);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_whole_set_has_no_fault),
        TEST(every_fault_of_every_row_is_told),
        TEST(sizes_are_the_verifiers_or_the_first_rows),
        TEST(a_check_can_be_stopped),
        TEST(what_cannot_be_checked_is_an_error),
        TEST(running_out_of_memory_is_an_error),
        TEST(a18_broken_files_have_messages_of_their_own),
        TEST(a18_wrong_tensors_are_told_apart),
        TEST(a18_a_left_over_lock_is_a_notice),
        TEST(a18_a_held_lock_is_waited_for_and_named),
        TEST(a18_a_lock_that_is_released_is_no_fault),
        TEST(a19_lengths_that_disagree_are_named),
        TEST(a20_ids_outside_the_vocabulary_are_named),
        TEST(a23_maps_that_do_not_fit_are_refused),
        TEST(a23_maps_of_another_run_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
