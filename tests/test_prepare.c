/* test_prepare.c - data sets made of lines: the peer's rows, the forms of a line, and what becomes
 * of folders that are there. */
#include "prepare_test.h"

#define SOURCE ACR_TEST_DATA "/prepare"

/* The peer's rows ----------------------------------------------------------------------------- */

static void check_run(const json_t *run)
{
    const json_t *rows = json_object_get(run, "rows"), *row = NULL;
    acr_dataset *d = NULL;
    accrue_error e;
    char *paths[2] = {NULL, NULL};
    size_t i = 0;

    use_template(json_string_value(json_object_get(run, "template")));
    opt.n_files = (int)json_array_size(json_object_get(run, "files"));
    for (int f = 0; f < opt.n_files; f++)
        files[f] = paths[f] = acr_sprintf(
            "%s/%s", SOURCE,
            json_string_value(json_array_get(json_object_get(run, "files"), (size_t)f)));
    opt.seq_length = json_integer_value(json_object_get(run, "seq_length"));
    opt.seed = (uint64_t)json_integer_value(json_object_get(run, "seed"));
    opt.max_samples = json_integer_value(json_object_get(run, "max_samples"));
    opt.minimum_valid_tokens = json_integer_value(json_object_get(run, "minimum_valid_tokens"));
    opt.on_bad = ACCRUE_POLICY_SKIP;
    opt.overwrite = true;
    assert_ok(prepare(&e), &e);
    assert_int_equal(report.rows, json_array_size(rows));
    assert_ok(acr_dataset_open(&d, output, &e), &e);
    assert_int_equal(acr_dataset_rows(d), json_array_size(rows));
    json_array_foreach(rows, i, row)
    {
        const json_t *ids = json_array_get(row, 0), *mask = json_array_get(row, 1);
        acr_row got;
        assert_ok(acr_dataset_row(&got, d, (int64_t)i, &e), &e);
        assert_int_equal(got.tokens, json_array_size(ids));
        for (size_t k = 0; k < json_array_size(ids); k++) {
            assert_int_equal(got.input_ids[k], json_integer_value(json_array_get(ids, k)));
            assert_int_equal(got.loss_mask[k], json_integer_value(json_array_get(mask, k)));
        }
    }
    acr_dataset_close(d);
    acr_free(paths[0]);
    acr_free(paths[1]);
}

static void rows_and_order_are_the_peers(void **state)
{
    accrue_error e;
    json_t *runs = NULL;
    const json_t *run = NULL;
    size_t i = 0;

    (void)state;
    assert_ok(acr_json_load(&runs, SOURCE "/expected.json", 1 << 20, &e), &e);
    assert_int_equal(json_array_size(runs), 5);
    json_array_foreach(runs, i, run) check_run(run);
    json_decref(runs);
}

static void orders_are_numpys(void **state)
{
    static const int64_t first[] = {4, 18, 2, 43, 21, 34, 20, 11, 1, 19, 10, 22};
    static const int64_t second[] = {54499, 18846, 87717, 16153, 23411, 14712};
    int64_t *p = NULL, sum = 0;
    accrue_error e;

    (void)state;
    assert_ok(acr_numpy_permutation(&p, 0, 48, &e), &e);
    assert_memory_equal(p, first, sizeof first);
    acr_free(p);
    assert_ok(acr_numpy_permutation(&p, 123456789012345, 100000, &e), &e);
    assert_memory_equal(p, second, sizeof second);
    for (int64_t i = 0; i < 100000; i++)
        sum += p[i];
    assert_int_equal(sum, 4999950000);
    acr_free(p);
    assert_ok(acr_numpy_permutation(&p, 1, 0, &e), &e);
    acr_free(p);
}

/* Forms --------------------------------------------------------------------------------------- */

/* Rows that this text of lines makes, in their order in the file. */
static acr_dataset *rows_of(const char *text)
{
    acr_dataset *d = NULL;
    accrue_error e;

    write_text(lines, text);
    opt.overwrite = true;
    assert_ok(prepare(&e), &e);
    assert_ok(acr_dataset_open(&d, output, &e), &e);
    return d;
}

static void every_form_is_taken(void **state)
{
    static const char *const forms[] = {
        "{\"conversations\": [{\"role\": \"user\", \"content\": \"q\"}, "
        "{\"role\": \"assistant\", \"content\": \"a\"}], \"messages\": [1]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, "
        "{\"role\": \"assistant\", \"content\": \"a\"}]}",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\", \"content\": \"no\"}, "
        "{\"from\": \"gpt\", \"value\": \"a\", \"role\": \"user\"}]}",
        "{\"conversations\": [], \"messages\": [{\"from\": null, \"role\": \"user\", \"value\": "
        "null, \"content\": \"q\"}, {\"role\": \"some-model-7b\", \"content\": \"a\"}]}",
        "{\"prompt\": \"q\", \"completion\": \"a\"}",
        "{\"prompt\": \"q\", \"response\": \"a\"}",
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], \"completion\": "
        "[{\"role\": \"assistant\", \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
        "\"content\": \"a\", \"tool_calls\": [1]}, {\"role\": \"tool\"}], \"tools\": \"[2]\"}",
    };
    acr_dataset *d = NULL;
    acr_row first = {0}, row;
    accrue_error e;
    int64_t copy[64];

    (void)state;
    for (int i = 0; i < ACR_COUNT(forms); i++) {
        d = rows_of(forms[i]);
        assert_int_equal(acr_dataset_rows(d), 1);
        assert_ok(acr_dataset_row(&row, d, 0, &e), &e);
        assert_true(row.tokens <= 64 && row.tokens > 6);
        if (i == 0) {
            memcpy(copy, row.input_ids, (size_t)row.tokens * 8);
            first = row;
        }
        assert_int_equal(row.tokens, first.tokens);
        assert_memory_equal(row.input_ids, copy, (size_t)row.tokens * 8);
        assert_int_equal(row.loss_mask[row.tokens - 4], 0);
        assert_int_equal(row.loss_mask[row.tokens - 3], 1);
        assert_int_equal(report.unknown_roles, i == 3);
        assert_string_equal(report.unknown_role, i == 3 ? "some-model-7b" : "");
        acr_dataset_close(d);
    }
}

static void texts_and_tokens_are_taken(void **state)
{
    acr_dataset *d = rows_of("{\"text\": \"What is the answer?\"}");
    acr_row row;
    accrue_error e;
    int64_t n = 0;

    (void)state;
    assert_ok(acr_dataset_row(&row, d, 0, &e), &e);
    for (int64_t i = 0; i < row.tokens; i++)
        n += row.loss_mask[i];
    assert_true(n > 1);
    assert_int_equal(n, row.tokens);
    acr_dataset_close(d);
    /* Without a tokenizer. */
    char *path = acr_sprintf("%s/tokenizer.json", verifier);
    assert_int_equal(unlink(path), 0);
    acr_free(path);
    d = rows_of("{\"input_ids\": [5, 6], \"loss_mask\": [0, 1], \"text\": \"\"}");
    assert_ok(acr_dataset_row(&row, d, 0, &e), &e);
    assert_int_equal(row.input_ids[1], 6);
    acr_dataset_close(d);
    write_text(lines, "{\"text\": \"a\"}");
    assert_fails(prepare(&e), ACCRUE_EIO, &e, "tokenizer.json", NULL);
}

/* Editors on Windows put one before a text. */
static void a_byte_order_mark_is_no_part_of_the_first_line(void **state)
{
    acr_dataset *d =
        rows_of("\xef\xbb\xbf{\"input_ids\": [5, 6], \"loss_mask\": [0, 1]}\n{\"text\": \"a\"}");
    accrue_error e;

    (void)state;
    assert_int_equal(acr_dataset_rows(d), 2);
    acr_dataset_close(d);
    write_text(lines, "\xef\xbb\xbf\n{\"text\": \"a\"}\n?");
    assert_fails(prepare(&e), ACCRUE_EFORMAT, &e, lines, "line 3: column 1", NULL);
    write_text(lines, "{\"text\": \"a\"}\n\xef\xbb\xbf{}"); /* where it is no first thing */
    assert_fails(prepare(&e), ACCRUE_EFORMAT, &e, lines, "line 2: ", "'\\xef\\xbb\\xbf'", NULL);
}

/* A header may end with a token that an answer goes on with.  Where the question with its header
 * fills the row, the peer has no row, though that token is the answer's. */
static void what_fills_a_row_leaves_nothing(void **state)
{
    const acr_message messages[] = {{"user", "q", NULL}, {"assistant", "\n\nx", NULL}};
    acr_tokenizer *t = NULL;
    acr_chat chat;
    acr_ids prompt = {0}, ids = {0}, mask = {0};
    acr_dataset *d = NULL;
    accrue_error e;

    (void)state;
    assert_ok(acr_tokenizer_open(&t, verifier, &e), &e);
    assert_ok(acr_chat_open(&chat, verifier, t, &e), &e);
    assert_ok(acr_chat_encode(&prompt, NULL, &chat, t, messages, 1, true, &e), &e);
    assert_ok(acr_chat_encode(&ids, &mask, &chat, t, messages, 2, false, &e), &e);
    assert_int_equal(mask.at[prompt.n - 1], 1);
    write_text(lines, "{\"prompt\": \"q\", \"response\": \"\\n\\nx\"}");
    opt.seq_length = prompt.n;
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, "1 rows without", NULL);
    opt.seq_length = prompt.n + 1;
    assert_ok(prepare(&e), &e);
    assert_ok(acr_dataset_open(&d, output, &e), &e);
    assert_int_equal(acr_dataset_tokens(d, 0), prompt.n + 1);
    acr_dataset_close(d);
    acr_ids_free(&prompt);
    acr_ids_free(&ids);
    acr_ids_free(&mask);
    acr_chat_free(&chat);
    acr_tokenizer_free(t);
}

/* Folders ------------------------------------------------------------------------------------- */

static void the_same_is_not_made_again(void **state)
{
    accrue_error e;
    char *kept = acr_sprintf("%s/hidden_states", output);
    char *arrow = acr_sprintf("%s/data-00000-of-00001.arrow", output);
    struct stat before, after;

    (void)state;
    write_text(lines, "{\"text\": \"What is it?\"}\n{\"text\": \"Nothing.\"}\n");
    opt.draft_vocab_size = 5;
    assert_ok(prepare(&e), &e);
    assert_false(report.found);
    assert_holds(output, "d2t-5.npy data-00000-of-00001.arrow dataset_info.json prepare.json "
                         "state.json t2d-5.npy token_freq.pt ");
    assert_int_equal(mkdir(kept, 0777), 0);
    assert_int_equal(stat(arrow, &before), 0);
    accrue_prepare_report first = report;
    assert_ok(prepare(&e), &e);
    assert_true(report.found);
    assert_int_equal(report.tokens, first.tokens);
    assert_int_equal(report.bytes, first.bytes);
    assert_int_equal(report.distinct_tokens, first.distinct_tokens);
    assert_int_equal(stat(arrow, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    opt.seq_length = 3;
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, output, "seq_length is 8192, now 3",
                 "--overwrite", NULL);
    opt.overwrite = true;
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, output, "'hidden_states'", "would be lost",
                 NULL);
    assert_int_equal(rmdir(kept), 0);
    assert_ok(prepare(&e), &e);
    assert_int_equal(report.longest, 3);
    assert_int_equal(report.cut_rows, 2);
    write_text(lines, "{\"text\": \"Now what?\"}\n");
    opt.overwrite = false;
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, output, "files is", NULL);
    acr_free(kept);
    acr_free(arrow);
}

static void other_folders_are_left_alone(void **state)
{
    accrue_error e;
    char *other = acr_sprintf("%s/mine.txt", output), *own = acr_sprintf("%s/prepare.json", output);
    char *parent = acr_sprintf("%s/out", folder);

    (void)state;
    write_text(lines, "{\"text\": \"a\"}\n");
    assert_int_equal(mkdir(parent, 0777), 0);
    write_text(output, "a file");
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, output, "no folder", NULL);
    assert_int_equal(unlink(output), 0);
    assert_int_equal(mkdir(output, 0777), 0);
    write_text(other, "mine");
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, output, "other contents", NULL);
    opt.overwrite = true;
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, output, "'mine.txt'", NULL);
    assert_holds(output, "mine.txt ");
    assert_int_equal(unlink(other), 0);
    opt.overwrite = false;
    assert_ok(prepare(&e), &e); /* an empty one is as good as none */
    write_text(own, "{");
    assert_fails(prepare(&e), ACCRUE_EFORMAT, &e, "prepare.json", NULL);
    write_text(own, "{}");
    assert_fails(prepare(&e), ACCRUE_EMISMATCH, &e, "is not known, now", NULL);
    assert_holds(parent, "data ");
    acr_free(other);
    acr_free(own);
    acr_free(parent);
}

/* Somebody makes a folder of that name while the data set is made. */
static int fill_output(const accrue_progress *p, void *payload)
{
    char *file = acr_sprintf("%s/%s", output, (const char *)payload);

    (void)p;
    if (!acr_exists(output)) {
        assert_int_equal(mkdir(output, 0777), 0);
        write_text(file, "mine");
    }
    acr_free(file);
    return 0;
}

static void a_folder_that_came_meanwhile_is_kept(void **state)
{
    accrue_error e;
    char *parent = acr_sprintf("%s/out", folder), *own = acr_sprintf("%s/prepare.json", output);

    (void)state;
    write_text(lines, "{\"text\": \"a\"}\n");
    assert_fails(accrue_prepare(&report, &opt, fill_output, (void *)(uintptr_t) "prepare.json", &e),
                 ACCRUE_EIO, &e, output, "cannot bring the finished folder to its name", NULL);
    assert_holds(parent, "data ");
    assert_holds(output, "prepare.json ");
    assert_int_equal(unlink(own) | rmdir(output), 0);
    opt.overwrite = true;
    assert_fails(accrue_prepare(&report, &opt, fill_output, (void *)(uintptr_t) "mine.txt", &e),
                 ACCRUE_EMISMATCH, &e, output, "it holds 'mine.txt'", "would be lost", NULL);
    assert_holds(parent, "data ");
    assert_holds(output, "mine.txt ");
    acr_free(parent);
    acr_free(own);
}

static void what_a_killed_call_left_is_removed(void **state)
{
    accrue_error e;
    char *parent = acr_sprintf("%s/out", folder);
    char *leave = acr_sprintf("d='%s/.data.tmp-%d' && mkdir -p \"$d\" && touch \"$d/rows.tmp\"",
                              parent, INT32_MAX);

    (void)state;
    assert_int_equal(system(leave), 0);
    write_text(lines, "{\"text\": \"a\"}\n");
    assert_ok(prepare(&e), &e);
    assert_holds(parent, "data ");
    acr_free(parent);
    acr_free(leave);
}

/* A pickle that torch takes for one of its files: what it holds is read back here. */
static void token_counts_are_pickled(void **state)
{
    int64_t counts[70000] = {0};
    char *path = acr_sprintf("%s/token_freq.pt", folder);
    acr_map map;
    accrue_error e;

    (void)state;
    counts[3] = 7;
    counts[69999] = INT64_C(1) << 40;
    assert_ok(acr_token_freq_write(path, counts, 70000, &e), &e);
    assert_ok(acr_map_open(&map, path, &e), &e);
    static const uint8_t expected[] = {
        0x80, 2, 0x8a, 10,   0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.',
        0x80, 2, 'M',  0xe9, 3,    '.',  0x80, 2,    '}',  '.',  0x80, 2,    '}',  '(',  'J',
        3,    0, 0,    0,    'J',  7,    0,    0,    0,    'J',  0x6f, 0x11, 1,    0,    0x8a,
        8,    0, 0,    0,    0,    0,    1,    0,    0,    'u',  '.',  0x80, 2,    ']',  '.'};
    assert_int_equal(map.bytes, sizeof expected);
    assert_memory_equal(map.data, expected, sizeof expected);
    acr_map_close(&map);
    acr_free(path);
}

/* Calls --------------------------------------------------------------------------------------- */

static void options_are_checked(void **state)
{
    const accrue_prepare_options fine = opt;
    accrue_error e;

    (void)state;
    write_text(lines, "{\"text\": \"a\"}\n");
#define REFUSED(change, status, ...)                                                               \
    do {                                                                                           \
        opt = fine;                                                                                \
        change;                                                                                    \
        assert_fails(prepare(&e), status, &e, __VA_ARGS__, NULL);                                  \
    } while (0)
    REFUSED(opt.struct_size = 8, ACCRUE_EINVAL, "struct_size: 8");
    REFUSED(opt.n_files = 0, ACCRUE_EINVAL, "files: none given");
    REFUSED(opt.verifier = NULL, ACCRUE_EINVAL, "verifier");
    REFUSED(opt.verifier = lines, ACCRUE_EINVAL, "verifier", "no folder");
    REFUSED(opt.output = "", ACCRUE_EINVAL, "output");
    REFUSED(opt.seq_length = 0, ACCRUE_EINVAL, "seq_length: 0");
    REFUSED(opt.seq_length = INT64_MAX, ACCRUE_EINVAL, "seq_length: 9223372036854775807");
    REFUSED(opt.max_samples = -1, ACCRUE_EINVAL, "max_samples");
    REFUSED(opt.minimum_valid_tokens = -1, ACCRUE_EINVAL, "minimum_valid_tokens");
    REFUSED(opt.on_bad = ACCRUE_POLICY_WARN, ACCRUE_EINVAL, "on_bad: 3");
    REFUSED(opt.draft_vocab_size = 100000, ACCRUE_EMISMATCH, "100000 ids");
    REFUSED(files[0] = "/none.jsonl", ACCRUE_EIO, "/none.jsonl");
    files[0] = lines;
    assert_nothing_left();
    char *config = acr_sprintf("%s/config.json", verifier);
    write_text(config, "{\"vocab_size\": 0}");
    REFUSED((void)0, ACCRUE_EFORMAT, config, "vocab_size");
    assert_int_equal(unlink(config), 0);
    REFUSED(opt.draft_vocab_size = 10, ACCRUE_EIO, config);
    opt = fine;
    assert_ok(prepare(&e), &e); /* the tokenizer's vocabulary does where no maps are wanted */
    acr_free(config);
}

static int cancel_at(const accrue_progress *p, void *payload)
{
    const char *unit = payload;

    assert_true(p->done <= p->total);
    return strcmp(p->unit, unit) == 0;
}

static void a_canceled_call_leaves_nothing(void **state)
{
    accrue_error e;

    (void)state;
    write_text(lines, "{\"text\": \"a\"}\n");
    assert_fails(accrue_prepare(&report, &opt, cancel_at, (void *)(uintptr_t) "lines", &e),
                 ACCRUE_ECANCELED, &e, output, "canceled", NULL);
    assert_nothing_left();
    assert_fails(accrue_prepare(&report, &opt, cancel_at, (void *)(uintptr_t) "rows", &e),
                 ACCRUE_ECANCELED, &e, output, NULL);
    assert_nothing_left();
}

/* Some failures are survived: patterns are then matched without code made for them. */
static void failed_allocations_leave_nothing(void **state)
{
    accrue_error e;
    uint64_t made = UINT64_MAX, n = 0;
    size_t before = acr_allocated_bytes();

    (void)state;
    accrue_set_threads(1);
    write_text(lines, "{\"prompt\": \"q\", \"response\": \"a\"}\n{\"text\": \"b\"}\n?\n?\n"
                      "{\"prompt\": \"r\", \"response\": \"c\"}\n{\"text\": \"d\"}\n"
                      "{\"input_ids\": [1, 2], \"loss_mask\": [0, 1]}\n");
    opt.on_bad = ACCRUE_POLICY_SKIP;
    opt.max_bad = 2;
    opt.draft_vocab_size = 4;
    opt.overwrite = true;
    for (n = 0; n < made; n++) {
        uint64_t from = acr_allocations();
        opt.seed = n; /* another data set than the one that is there */
        acr_fail_allocation(n + 1);
        accrue_status st = prepare(&e);
        acr_fail_allocation(0);
        made = acr_allocations() - from;
        if (st) {
            char names[1000], *parent = acr_sprintf("%s/out", folder);
            assert_fails(st, ACCRUE_ENOMEM, &e, NULL);
            made = UINT64_MAX;
            list(names, sizeof names, parent);
            assert_true(!*names || strcmp(names, "data ") == 0);
            acr_free(parent);
        } else {
            assert_int_equal(report.rows, 5);
            assert_int_equal(report.bad_lines, 2);
        }
        assert_int_equal(acr_allocated_bytes(), before);
    }
    assert_true(n > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PREPARED(rows_and_order_are_the_peers),
        cmocka_unit_test(orders_are_numpys),
        PREPARED(every_form_is_taken),
        PREPARED(texts_and_tokens_are_taken),
        PREPARED(a_byte_order_mark_is_no_part_of_the_first_line),
        PREPARED(what_fills_a_row_leaves_nothing),
        PREPARED(the_same_is_not_made_again),
        PREPARED(other_folders_are_left_alone),
        PREPARED(a_folder_that_came_meanwhile_is_kept),
        PREPARED(what_a_killed_call_left_is_removed),
        PREPARED(token_counts_are_pickled),
        PREPARED(options_are_checked),
        PREPARED(a_canceled_call_leaves_nothing),
        PREPARED(failed_allocations_leave_nothing),
    };

    return cmocka_run_group_tests_name("prepare", tests, NULL, NULL);
}
