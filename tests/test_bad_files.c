/* Files that are not what their names say, names that are no text, and writers that do not end. */
#include "check_test.h"

#include "data/readers.h"

#include <sys/file.h>

static void train_refuses(const char *one, const char *two)
{
    accrue_train_options o = train_options(data);
    accrue_error e = {0};
    accrue_run *run = NULL;

    assert_fails(accrue_run_open(&run, &o, NULL, NULL, &e), ACCRUE_EIO, &e, one, two, NULL);
}

/* Text ------------------------------------------------------------------------------------ */

static void a_text_can_be_shown_and_put_into_json(void **state)
{
    static const struct {
        const char *s, *text;
    } cases[] = {
        {"plain", "plain"},
        {"k\303\274che \342\202\254 \360\237\230\200",
         "k\303\274che \342\202\254 \360\237\230\200"},
        {"k\374che", "k\\xfcche"},
        {"\303", "\\xc3"},
        {"\342\202", "\\xe2\\x82"},
        {"\300\257 \340\200\257", "\\xc0\\xaf \\xe0\\x80\\xaf"},
        {"\355\240\200", "\\xed\\xa0\\x80"},
        {"\364\220\200\200", "\\xf4\\x90\\x80\\x80"},
        {"a\033[31mb\177\001", "a\\x1b[31mb\\x7f\\x01"},
        {"\302\233\302\240", "\\xc2\\x9b\302\240"},
        {"\357\273\277a\357\274\277", "\\xef\\xbb\\xbfa\357\274\277"},
        {"two\r\nlines\t.", "two  lines ."},
    };
    char out[64], again[64];

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        json_t *string = NULL;
        acr_text(out, sizeof out, cases[i].s);
        assert_string_equal(out, cases[i].text);
        acr_text(again, sizeof again, out);
        assert_string_equal(again, out);
        string = json_string(out);
        assert_non_null(string);
        json_decref(string);
    }
    for (size_t room = 1; room <= 8; room++) {
        acr_text(out, room, "a\303\274\342\202\254\377");
        assert_string_equal(out, room < 2   ? ""
                                 : room < 4 ? "a"
                                 : room < 7 ? "a\303\274"
                                            : "a\303\274\342\202\254");
    }
}

static void a_long_message_is_cut_between_characters(void **state)
{
    char text[1200];
    accrue_error e;

    (void)state;
    for (int shift = 0; shift < 3; shift++) {
        memset(text, 'x', sizeof text);
        for (size_t i = (size_t)shift; i + 3 < sizeof text; i += 3)
            memcpy(text + i, "\342\202\254", 3);
        text[sizeof text - 1] = '\0';
        acr_fail(&e, ACCRUE_EIO, "%s", text);
        assert_in_range(strlen(e.message), sizeof e.message - 3, sizeof e.message - 1);
        assert_memory_equal(e.message, text, strlen(e.message));
        assert_true(((strlen(e.message) - (size_t)shift) % 3) == 0);
    }
}

static void assert_text(const char *text)
{
    json_t *string = json_string(text);

    if (!string)
        fail_msg("not UTF-8: %s", text);
    for (const char *c = text; *c; c++)
        assert_true((unsigned char)*c >= ' ' && *c != 127);
    json_decref(string);
}

static int check_notice(const accrue_event *e, void *payload)
{
    if (e->kind == ACCRUE_EVENT_NOTICE) {
        assert_text(e->message);
        ++*(int *)payload;
    }
    return ACCRUE_GO_ON;
}

/* Every text of every fault, of the notices and of the list that a run writes is a JSON string. */
static void assert_texts(const char *path, const char *word)
{
    static found l;
    accrue_train_options o = train_options(path);
    char *out = acr_sprintf("%s/out", folder), *list = acr_sprintf("%s/skipped_samples.jsonl", out);
    accrue_error e = {0};
    acr_map map = {0};
    int notices = 0;

    check(&l, path, 0);
    assert_in_range(l.n, 2, 70);
    for (int i = 0; i < l.n; i++) {
        const char *const texts[] = {l.faults[i].file, l.faults[i].found, l.faults[i].expected,
                                     l.faults[i].message};
        for (int k = 0; k < ACR_COUNT(texts); k++)
            assert_text(texts[k]);
    }
    o.save_path = out;
    o.on_bad = ACCRUE_POLICY_SKIP;
    o.on_missing = ACCRUE_POLICY_WARN;
    o.max_bad = 60;
    o.max_steps = 1;
    assert_ok(accrue_train(&o, check_notice, &notices, &e), &e);
    assert_in_range(notices, 3, 100);
    assert_ok(acr_map_open(&map, list, &e), &e);
    assert_non_null(memmem(map.data, map.bytes, word, strlen(word)));
    acr_map_close(&map);
    remove_tree(out);
    acr_free(list);
    acr_free(out);
}

static void names_that_are_no_text_are_told_and_listed(void **state)
{
    char *long_name = acr_sprintf("%s/", folder), *path = states_of(data, 7);
    char header[700] = "{\"a\\u001b[31m\":{\"dtype\":\"", *to = NULL;

    (void)state;
    remove_states(data, 5);
    cut_states(data, 6);
    for (int i = 0; i < 300; i++)
        strcat(header, "\303\274");
    strcat(header, "\",\"shape\":[4],\"data_offsets\":[0,4]}}");
    write_header(path, header, 4);
    assert_texts(data, "\"kind\":\"missing\"");
    to = acr_sprintf("%s/k\374che", folder);
    copy_tree(data, to);
    assert_texts(to, "/k\\\\xfcche/");
    acr_free(to);
    for (int depth = 0; depth < 3; depth++) {
        char name[256] = "";
        for (int i = 0; i < 64; i++)
            strcat(name, "\342\202\254");
        to = acr_sprintf("%s%s/", long_name, name);
        acr_free(long_name);
        long_name = to;
        assert_int_equal(mkdir(long_name, 0777), 0);
    }
    for (int shift = 0; shift < 3; shift++) {
        to = acr_sprintf("%s%.*sd", long_name, shift, "xy");
        copy_tree(data, to);
        assert_texts(to, "\342\202\254");
        acr_free(to);
    }
    acr_free(long_name);
    acr_free(path);
}

/* Not regular files ----------------------------------------------------------------------- */

static char *replace_by_fifo(const char *name)
{
    char *path = acr_sprintf("%s/%s", data, name);

    (void)!unlink(path);
    assert_int_equal(mkfifo(path, 0666), 0);
    return path;
}

/* Nobody writes into them: an open for reading would wait for ever. */
static void fifos_are_refused(void **state)
{
    static const char *const rows[] = {"hidden_states/hs_0.safetensors",
                                       "hidden_states/hs_7.safetensors"};
    accrue_check_options o;
    accrue_check_report r;
    accrue_error e = {0};
    char *state_path = NULL;

    (void)state;
    for (int i = 0; i < ACR_COUNT(rows); i++) {
        char *path = replace_by_fifo(rows[i]);
        one_fault(ACCRUE_FAULT_UNREADABLE, 7 * i, "not a regular file");
        train_refuses(path, "not a regular file");
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0777), 0);
        one_fault(ACCRUE_FAULT_UNREADABLE, 7 * i, "not a regular file");
        train_refuses(path, "not a regular file");
        shell(acr_sprintf("rmdir '%s' && cp " TINY "/data/%s '%s'", path, rows[i], path));
        acr_free(path);
    }
    acr_free(replace_by_fifo("d2t-48.npy"));
    one_fault(ACCRUE_FAULT_MAP, -1, "not a regular file");
    train_refuses("d2t-48.npy", "not a regular file");
    acr_free(replace_by_fifo("t2d-48.npy"));
    one_fault(ACCRUE_FAULT_MAP, -1, "not a regular file");
    train_refuses("d2t-48.npy", "not a regular file");
    shell(acr_sprintf("rm '%s'/*-48.npy", data));
    acr_free(replace_by_fifo("data-00000-of-00001.arrow"));
    one_fault(ACCRUE_FAULT_UNREADABLE, -1, ".arrow: not a regular file");
    train_refuses(".arrow", "not a regular file");
    state_path = replace_by_fifo("state.json");
    accrue_check_options_init(&o, sizeof o);
    o.data_path = data;
    assert_fails(accrue_check(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, state_path,
                 "not a regular file", NULL);
    train_refuses(state_path, "not a regular file");
    acr_free(state_path);
}

static void a_row_that_becomes_a_fifo_is_refused_when_it_is_loaded(void **state)
{
    accrue_train_options o = train_options(data);
    accrue_error e = {0};
    accrue_run *run = NULL;
    char *path = NULL;

    (void)state;
    o.check_bytes = 0;
    o.total_seq_len = 71;
    o.batch_plan = write_plan(folder, 71, "[[1], [7], [2]]");
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    path = replace_by_fifo("hidden_states/hs_7.safetensors");
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
    assert_fails(accrue_run_forward_backward(run, NULL, &e), ACCRUE_EIO, &e, path, "row 7",
                 "not a regular file", NULL);
    accrue_run_free(run);
    acr_free((void *)(uintptr_t)o.batch_plan);
    acr_free(path);
}

/* Whether a writer holds it cannot be known; the states are there. */
static void a_lock_that_cannot_be_opened_is_a_notice(void **state)
{
    static found l;
    accrue_train_options o = train_options(data);
    accrue_error e = {0};
    accrue_run *run = NULL;
    char *path = replace_by_fifo("hidden_states/hs_5.safetensors.lock");

    (void)state;
    for (int i = 0; i < 2; i++) {
        one_fault(ACCRUE_FAULT_STALE_LOCK, 5, i ? "cannot open" : "not a regular file");
        check(&l, data, 0);
        assert_true(l.faults[0].notice);
        assert_string_equal(l.faults[0].file, path);
        assert_non_null(strstr(l.faults[0].message, path));
        assert_int_equal(l.report.faults, 0);
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        accrue_run_free(run);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink("hs_5.safetensors.lock", path), 0);
    }
    acr_free(path);
}

static void states_of_too_many_tokens_are_refused(void **state)
{
    static found l;
    accrue_train_options o = train_options(data);
    int64_t tokens = write_states(5, 1, 4);
    char *message = acr_sprintf("hidden_states is [%lld, 4, 32], expected [%lld, 4, 32]",
                                (long long)tokens + 1, (long long)tokens);
    accrue_run *run = NULL;
    accrue_error e = {0};

    (void)state;
    one_fault(ACCRUE_FAULT_LENGTH, 5, message);
    assert_fails(accrue_run_open(&run, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "row 5", message,
                 NULL);
    acr_free(message);
    shell(acr_sprintf("cp '" TINY "/data/hidden_states/hs_13.safetensors' "
                      "'%s/hidden_states/hs_14.safetensors'",
                      data));
    check(&l, data, 0);
    assert_int_equal(l.n, 3); /* row 5's, and two of row 14 */
    assert_int_equal(l.faults[1].kind, ACCRUE_FAULT_LENGTH);
    assert_non_null(strstr(l.faults[1].message, "token_ids is I64 [48], expected I64 [43]"));
}

/* Waiting --------------------------------------------------------------------------------- */

static int hold_lock(int64_t row)
{
    char *path = states_of(data, row), *lock = acr_sprintf("%s.lock", path);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    acr_free(lock);
    acr_free(path);
    return fd;
}

static bool count_polls(void *ctx)
{
    ++*(int *)ctx;
    return false;
}

/* The time is that of all locks together; one that is let go costs what was waited for it. */
static void all_locks_are_waited_for_once(void **state)
{
    char *dir = acr_sprintf("%s/hidden_states", data);
    acr_patience p;
    int fd[10], polls = 0, before = 0;
    double start = 0;

    (void)state;
    for (int i = 0; i < 10; i++)
        fd[i] = hold_lock(i);
    acr_patience_init(&p, 0.3);
    p.ended = count_polls;
    p.ctx = &polls;
    start = acr_seconds();
    assert_int_equal(acr_states_lock(dir, 0, &p, NULL), ACR_LOCK_HELD);
    assert_true(acr_seconds() - start >= 0.3);
    assert_true(polls > 0);
    assert_true(p.left == 0);
    before = polls;
    for (int i = 1; i < 10; i++)
        assert_int_equal(acr_states_lock(dir, i, &p, NULL), ACR_LOCK_HELD);
    assert_int_equal(polls, before);
    assert_int_equal(acr_states_lock(dir, 20, &p, NULL), ACR_LOCK_NONE);
    close(fd[3]);
    assert_int_equal(acr_states_lock(dir, 3, &p, NULL), ACR_LOCK_LEFT);
    acr_patience_free(&p);
    for (int i = 0; i < 10; i++)
        if (i != 3)
            close(fd[i]);
    acr_free(dir);
}

/* Checked and loaded: the wait is had before the row is told of. */
static void held_locks_are_waited_for_as_long_as_is_said(void **state)
{
    static found l;
    accrue_train_options o = train_options(data);
    accrue_error e = {0};
    accrue_run *run = NULL;
    int fd[10];
    double start = 0;

    (void)state;
    for (int i = 0; i < 10; i++)
        fd[i] = hold_lock(10 + i);
    start = acr_seconds();
    check(&l, data, 0.3);
    assert_true(acr_seconds() - start >= 0.3);
    assert_int_equal(l.report.bad_rows, 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(l.faults[i].kind, ACCRUE_FAULT_LOCKED);
        assert_int_equal(l.faults[i].row, 10 + i);
    }
    o.lock_timeout = 0.3;
    o.total_seq_len = 71;
    o.batch_plan = write_plan(folder, 71, "[[1], [10], [11]]");
    start = acr_seconds();
    assert_fails(accrue_run_open(&run, &o, NULL, NULL, &e), ACCRUE_EIO, &e, "row 10",
                 "a writer holds the lock", NULL);
    assert_true(acr_seconds() - start >= 0.3);
    o.check_bytes = 0;
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    start = acr_seconds();
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
    assert_fails(accrue_run_forward_backward(run, NULL, &e), ACCRUE_EIO, &e, "row 10",
                 "a writer holds the lock", NULL);
    assert_true(acr_seconds() - start >= 0.3);
    assert_true(acr_loader_patience(run->loader) == 0);
    accrue_run_free(run);
    acr_free((void *)(uintptr_t)o.batch_plan);
    for (int i = 0; i < 10; i++)
        close(fd[i]);
}

/* Each row that could be read makes the time whole. */
static void a_row_that_is_read_makes_the_patience_whole(void **state)
{
    accrue_train_options o = train_options(data);
    accrue_error e = {0};
    accrue_run *run = NULL;
    int fd = hold_lock(10);

    (void)state;
    o.check_bytes = 0;
    o.lock_timeout = 0.1;
    o.total_seq_len = 71;
    o.batch_plan = write_plan(folder, 71, "[[10], [1]]");
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_true(acr_loader_patience(run->loader) == 0.1);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_fails(accrue_run_forward_backward(run, NULL, &e), ACCRUE_EIO, &e, "row 10", NULL);
    assert_true(acr_loader_patience(run->loader) == 0);
    close(fd);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
    assert_true(acr_loader_patience(run->loader) == 0.1);
    accrue_run_free(run);
    acr_free((void *)(uintptr_t)o.batch_plan);
}

/* Signals, as the callback has them. */
typedef struct waiter {
    int answer; /* to a wait */
    int fd;     /* the lock, let go in the third one; -1: never */
    int waits, checkpoints;
    int64_t saved_micro_batch, steps;
} waiter;

static int on_event(const accrue_event *e, void *payload)
{
    waiter *w = payload;

    w->steps += e->kind == ACCRUE_EVENT_STEP;
    if (e->kind == ACCRUE_EVENT_CHECKPOINT) {
        w->checkpoints++;
        w->saved_micro_batch = e->micro_batch;
    }
    if (e->kind != ACCRUE_EVENT_WAITING)
        return ACCRUE_GO_ON;
    if (++w->waits == 3 && w->fd >= 0) {
        close(w->fd);
        w->fd = -1;
    }
    return w->answer;
}

/* Three windows of two; row 7 is the fourth. */
static accrue_train_options waiting_options(const char *out, const char *val)
{
    accrue_train_options o = train_options(data);
    char *text = acr_sprintf("{\"total_seq_len\": 71, \"train\": [[[1],[2],[3],[7],[4],[5]]], "
                             "\"val\": [%s]}",
                             val);
    char *plan = acr_sprintf("%s/waiting.json", folder);

    write_text(plan, text);
    acr_free(text);
    o.save_path = out;
    o.check_bytes = 0;
    o.lock_timeout = 600;
    o.total_seq_len = 71;
    o.batch_plan = plan;
    o.window.gradient_accumulation_steps = 2;
    return o;
}

static void same_weights(const char *a, const char *b)
{
    shell(acr_sprintf("cmp '%s/0/model.safetensors' '%s/0/model.safetensors' && "
                      "cmp '%s/0/state.tensors' '%s/0/state.tensors'",
                      a, b, a, b));
}

/* Given up in mid-window: what was whole is saved, and the run goes on to the same weights. */
static void a_wait_for_data_can_be_given_up(void **state)
{
    char *out = acr_sprintf("%s/out", folder), *straight = acr_sprintf("%s/straight", folder);
    accrue_train_options o = waiting_options(out, "");
    waiter w = {.answer = ACCRUE_GIVE_UP_AND_STOP, .fd = -1};
    accrue_error e = {0};
    int fd = hold_lock(7);

    (void)state;
    assert_fails(accrue_train(&o, on_event, &w, &e), ACCRUE_ECANCELED, &e, "stopped as asked",
                 "optimizer step 1", NULL);
    assert_int_equal(w.waits, 1);
    assert_int_equal(w.checkpoints, 1);
    assert_int_equal(w.saved_micro_batch, 2);
    close(fd);
    w = (waiter){.fd = -1};
    assert_ok(accrue_train(&o, on_event, &w, &e), &e);
    assert_int_equal(w.steps, 2);
    o.save_path = straight;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    same_weights(out, straight);
    acr_free((void *)(uintptr_t)o.batch_plan);
    acr_free(straight);
    acr_free(out);
}

/* Within the grace a window that has begun is waited for, one that has not is not. */
static void a_stop_ends_a_wait_at_the_end_of_a_window(void **state)
{
    char *out = acr_sprintf("%s/out", folder);
    accrue_train_options o = waiting_options(out, "");
    waiter w = {.answer = ACCRUE_SAVE_AND_STOP, .fd = hold_lock(7)};
    accrue_error e = {0};

    (void)state;
    assert_fails(accrue_train(&o, on_event, &w, &e), ACCRUE_ECANCELED, &e, "stopped as asked",
                 "optimizer step 2", NULL);
    assert_in_range(w.waits, 3, 1000);
    assert_int_equal(w.saved_micro_batch, 4);
    remove_tree(out);
    o.window.gradient_accumulation_steps = 1;
    w = (waiter){.answer = ACCRUE_SAVE_AND_STOP, .fd = -1};
    int fd = hold_lock(7);
    assert_fails(accrue_train(&o, on_event, &w, &e), ACCRUE_ECANCELED, &e, "stopped as asked",
                 "optimizer step 3", NULL);
    assert_int_equal(w.waits, 1);
    assert_int_equal(w.saved_micro_batch, 3);
    close(fd);
    acr_free((void *)(uintptr_t)o.batch_plan);
    acr_free(out);
}

static void a_wait_can_be_cancelled_without_a_save(void **state)
{
    char *out = acr_sprintf("%s/out", folder);
    accrue_train_options o = waiting_options(out, "");
    waiter w = {.answer = ACCRUE_CANCEL, .fd = -1};
    accrue_error e = {0};
    accrue_run *run = NULL;
    int fd = hold_lock(7);

    (void)state;
    assert_fails(accrue_train(&o, on_event, &w, &e), ACCRUE_ECANCELED, &e,
                 "stopped by the caller at optimizer step 1", NULL);
    assert_int_equal(w.waits, 1);
    assert_int_equal(w.checkpoints, 0);
    w = (waiter){.answer = ACCRUE_GIVE_UP_AND_STOP, .fd = -1}; /* CANCEL to a loop of one's own */
    assert_ok(accrue_run_open(&run, &o, on_event, &w, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    for (int i = 0; i < 3; i++)
        assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
    assert_fails(accrue_run_forward_backward(run, NULL, &e), ACCRUE_ECANCELED, &e, NULL);
    assert_false(accrue_run_next(run));
    close(fd);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    while (accrue_run_next(run))
        assert_ok(accrue_run_forward_backward(run, NULL, &e), &e);
    accrue_run_free(run);
    acr_free((void *)(uintptr_t)o.batch_plan);
    acr_free(out);
}

static void a_wait_in_a_validation_can_be_given_up(void **state)
{
    char *out = acr_sprintf("%s/out", folder);
    accrue_train_options o = waiting_options(out, "[[8], [55]]");
    waiter w = {.answer = ACCRUE_SAVE_AND_STOP, .fd = -1};
    accrue_error e = {0};
    int fd = hold_lock(55);

    (void)state;
    assert_fails(accrue_train(&o, on_event, &w, &e), ACCRUE_ECANCELED, &e, "stopped as asked",
                 "optimizer step 3", NULL);
    assert_int_equal(w.waits, 1);
    assert_int_equal(w.checkpoints, 1);
    close(fd);
    w = (waiter){.fd = -1};
    assert_ok(accrue_train(&o, on_event, &w, &e), &e);
    assert_int_equal(w.steps, 0);
    acr_free((void *)(uintptr_t)o.batch_plan);
    acr_free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_can_be_shown_and_put_into_json),
        cmocka_unit_test(a_long_message_is_cut_between_characters),
        TEST(names_that_are_no_text_are_told_and_listed),
        TEST(fifos_are_refused),
        TEST(a_row_that_becomes_a_fifo_is_refused_when_it_is_loaded),
        TEST(a_lock_that_cannot_be_opened_is_a_notice),
        TEST(states_of_too_many_tokens_are_refused),
        TEST(all_locks_are_waited_for_once),
        TEST(held_locks_are_waited_for_as_long_as_is_said),
        TEST(a_row_that_is_read_makes_the_patience_whole),
        TEST(a_wait_for_data_can_be_given_up),
        TEST(a_stop_ends_a_wait_at_the_end_of_a_window),
        TEST(a_wait_can_be_cancelled_without_a_save),
        TEST(a_wait_in_a_validation_can_be_given_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
