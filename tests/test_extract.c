/* test_extract.c - hidden states as files: what they hold, what is kept and made anew, stops and
 * failures, and every message. */
#include "folder_test.h"

#include "infer/infer.h"
#include "whole_verifier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define TINY ACR_TEST_DATA "/../../examples/tiny"

enum { TINY_VOCAB = 96, ROWS = 60 };

static char *verifier, *data, *states;

static int prepare(void **state)
{
    make(state);
    verifier = acr_sprintf("%s/verifier", folder);
    data = acr_sprintf("%s/data", folder);
    states = acr_sprintf("%s/hidden_states", data);
    shell(acr_sprintf("mkdir '%s' '%s' && cp " TINY "/data/*.* '%s' && chmod u+w '%s'/*", verifier,
                      data, data, data));
    write_whole_verifier(verifier, TINY_VOCAB, 7);
    return 0;
}

static int finish(void **state)
{
    acr_free(verifier);
    acr_free(data);
    acr_free(states);
    return clear(state);
}

static accrue_extract_options options(void)
{
    accrue_extract_options o;

    accrue_extract_options_init(&o, sizeof o);
    o.verifier = verifier;
    o.data_path = data;
    o.compute = ACCRUE_F32;
    return o;
}

static accrue_extract_report extract(const accrue_extract_options *o)
{
    accrue_extract_report r;
    accrue_error e = {0};

    assert_ok(accrue_extract(&r, o, NULL, NULL, &e), &e);
    return r;
}

static char *file_of(const char *dir, int64_t row)
{
    return acr_sprintf("%s/hs_%lld.safetensors", dir, (long long)row);
}

/* Hash of the files of all rows. */
static uint64_t hash_all(const char *dir)
{
    uint64_t hash = 0;

    for (int64_t row = 0; row < ROWS; row++) {
        char *path = file_of(dir, row);
        acr_map map = {0};
        accrue_error e = {0};
        assert_ok(acr_map_open(&map, path, &e), &e);
        hash = acr_hash_bytes(map.data, map.bytes, hash);
        acr_map_close(&map);
        acr_free(path);
    }
    return hash;
}

static int64_t count_files(const char *dir)
{
    char *command = acr_sprintf("ls -A '%s' | wc -l", dir);
    FILE *f = popen(command, "r");
    long long n = -1;

    assert_int_equal(fscanf(f, "%lld", &n), 1);
    pclose(f);
    acr_free(command);
    return n;
}

/* The states of a row, token by token and with no other row beside it, are what its file holds. */
static void files_hold_what_the_verifier_makes(void **state)
{
    const accrue_extract_options o = options();
    const int slots[] = {2, 4, 5, 8};
    const acr_batch_shape shape = {.hidden_size = WHOLE_HIDDEN, .n_aux = 3};
    accrue_extract_report r = extract(&o);
    acr_dataset *d = NULL;
    acr_verifier *v = NULL;
    acr_verifier_work *w = NULL;
    acr_states s = {0};
    accrue_fault f;
    accrue_error e = {0};
    int64_t tokens = 0;

    (void)state;
    assert_int_equal(r.rows, ROWS);
    assert_int_equal(r.made, ROWS);
    assert_int_equal(r.found + r.broken, 0);
    assert_true(r.needed_bytes > r.bytes && r.bytes > 0 && r.free_bytes > 0);
    assert_int_equal(count_files(states), ROWS + 1); /* and the settings */
    assert_ok(acr_dataset_open(&d, data, &e), &e);
    for (int64_t row = 0; row < ROWS; row++)
        tokens += acr_dataset_tokens(d, row);
    assert_int_equal(r.tokens, tokens);
    assert_ok(acr_verifier_open(&v, verifier, ACCRUE_F32, 512, &e), &e);
    assert_ok(acr_verifier_work_create(&w, v, &e), &e);
    for (int64_t row = 0; row < ROWS; row += 13) {
        acr_cache *cache = NULL;
        acr_row x = {0};
        int64_t n = 0;
        const void *held = NULL;
        assert_ok(acr_dataset_row(&x, d, row, &e), &e);
        assert_ok(acr_cache_create(&cache, v, x.tokens, &e), &e);
        assert_int_equal(acr_states_open(&s, states, row, &x, &shape, NULL, &f), ACCRUE_OK);
        assert_int_equal(s.hidden->dtype, ACR_DTYPE_BF16);
        assert_int_equal(acr_states_read(&held, &n, &s, row, 0, &f), ACCRUE_OK);
        assert_int_equal(n, x.tokens);
        for (int64_t t = 0; t < n; t++) {
            float now[4 * WHOLE_HIDDEN];
            uint16_t rounded[4 * WHOLE_HIDDEN];
            acr_sequence q = {.cache = cache, .ids = x.input_ids + t, .n = 1, .states = now};
            assert_ok(acr_verifier_forward(w, &q, 1, slots, 4, &e), &e);
            acr_convert(ACR_DTYPE_BF16, rounded, ACR_DTYPE_F32, now, 4 * WHOLE_HIDDEN);
            assert_memory_equal(rounded, (const char *)held + (size_t)t * sizeof rounded,
                                sizeof rounded);
        }
        acr_states_close(&s);
        acr_cache_free(cache);
    }
    acr_states_free(&s);
    acr_verifier_work_free(w);
    acr_verifier_free(v);
    acr_dataset_close(d);
}

static void keeps_whole_files_and_makes_broken_ones_anew(void **state)
{
    accrue_extract_options o = options();
    accrue_extract_report r;
    uint64_t hash = 0;
    char *path = NULL, *other = NULL;

    (void)state;
    extract(&o);
    hash = hash_all(states);
    r = extract(&o);
    assert_int_equal(r.found, ROWS);
    assert_int_equal(r.made + r.broken + r.needed_bytes, 0);
    path = file_of(states, 3); /* cut off */
    assert_int_equal(truncate(path, acr_file_bytes(path) - 1), 0);
    acr_free(path);
    path = file_of(states, 5); /* another row's */
    other = file_of(states, 6);
    shell(acr_sprintf("cp '%s' '%s'", other, path));
    acr_free(path);
    acr_free(other);
    path = file_of(states, 9); /* not there */
    assert_int_equal(unlink(path), 0);
    acr_free(path);
    path = acr_sprintf("%s/extract.json.tmp", states); /* of a call that was killed */
    write_text(path, "half");
    acr_free(path);
    path = acr_sprintf("%s/hs_9.safetensors.tmp", states); /* and of another */
    write_text(path, "half");
    r = extract(&o);
    assert_int_equal(r.found, ROWS - 3);
    assert_int_equal(r.made, 3);
    assert_int_equal(r.broken, 2);
    assert_int_equal(count_files(states), ROWS + 1);
    assert_false(acr_exists(path));
    assert_true(hash_all(states) == hash);
    acr_free(path);
}

static void refuses_to_go_on_with_something_else(void **state)
{
    const int ids[] = {1, 7};
    accrue_extract_options o = options();
    accrue_extract_report r;
    accrue_error e = {0};
    uint64_t hash = 0;
    char *path = acr_sprintf("%s/a/b/states", folder);

#define FAILS(...)                                                                                 \
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, path, __VA_ARGS__,  \
                 "/extract.json", "another --hidden-states-path begins anew", NULL);               \
    o = options();                                                                                 \
    o.hidden_states_path = path
    (void)state;
    o.hidden_states_path = path;
    extract(&o);
    assert_false(acr_exists(states));
    hash = hash_all(path);
    o.target_layer_ids = ids;
    o.n_target_layer_ids = 2;
    FAILS("was begun with \"layers\" [2,4,5], now it is [1,7]");
    o.compute = ACCRUE_BF16;
    FAILS("was begun with \"dtype\" \"float32\", now it is \"bfloat16\"");
    write_whole_verifier(verifier, TINY_VOCAB, 8);
    FAILS("was begun with \"verifier\" \"");
    assert_true(hash_all(path) == hash);
    write_whole_verifier(verifier, TINY_VOCAB, 7);
    shell(acr_sprintf("rm '%s'/hs_2.*", path)); /* nor to make what is missing */
    o.target_layer_ids = (const int[]){3, 4, 5};
    o.n_target_layer_ids = 3;
    FAILS("was begun with \"layers\" [2,4,5], now it is [3,4,5]");
    assert_int_equal(count_files(path), ROWS);
    r = extract(&o);
    assert_int_equal(r.made, 1);
    assert_true(hash_all(path) == hash);
#undef FAILS
    acr_free(path);
}

/* Nobody knows how they were made. */
static void files_without_settings_are_taken_as_they_are(void **state)
{
    const int ids[] = {3, 4, 5};
    accrue_extract_options o = options();
    accrue_extract_report r;

    (void)state;
    extract(&o);
    shell(acr_sprintf("rm '%s/extract.json' '%s'/hs_2.*", states, states));
    o.target_layer_ids = ids;
    o.n_target_layer_ids = 3;
    r = extract(&o);
    assert_int_equal(r.found, ROWS - 1);
    assert_int_equal(r.made, 1);
    assert_int_equal(count_files(states), ROWS); /* and there are no settings now either */
    shell(acr_sprintf("rm '%s'/hs_*", states));
    extract(&o);
    assert_int_equal(count_files(states), ROWS + 1);
}

static void threads_change_no_bit(void **state)
{
    const accrue_dtype computes[] = {ACCRUE_F32, ACCRUE_BF16, ACCRUE_F64};
    accrue_extract_options o = options();

    (void)state;
    for (int i = 0; i < ACR_COUNT(computes); i++) {
        uint64_t hash = 0;
        o.compute = computes[i];
        accrue_set_threads(1);
        extract(&o);
        hash = hash_all(states);
        shell(acr_sprintf("rm -r '%s'", states));
        accrue_set_threads(3);
        extract(&o);
        assert_true(hash_all(states) == hash);
        shell(acr_sprintf("rm -r '%s'", states));
    }
}

typedef struct watch {
    int64_t calls, stop_at, first_done, last_done, expected, room;
} watch;

static int look(const accrue_progress *p, void *payload)
{
    watch *w = payload;

    if (!w->calls++) {
        w->first_done = p->done;
        w->expected = p->expected_bytes;
        w->room = p->free_bytes;
    }
    assert_string_equal(p->unit, "rows");
    assert_int_equal(p->total, ROWS);
    assert_true(p->done >= w->last_done && p->done <= p->total && p->seconds >= 0);
    w->last_done = p->done;
    return w->stop_at && w->calls == w->stop_at;
}

static void a_stopped_call_goes_on(void **state)
{
    accrue_extract_options o = options();
    accrue_extract_report r;
    accrue_error e = {0};
    watch w = {.stop_at = 3};
    uint64_t hash = 0;
    int64_t made = 0;

    (void)state;
    extract(&o);
    hash = hash_all(states);
    shell(acr_sprintf("rm -r '%s'", states));
    assert_fails(accrue_extract(&r, &o, look, &w, &e), ACCRUE_ECANCELED, &e, "stopped with",
                 "of 60 rows done", NULL);
    made = r.made;
    assert_true(made > 0 && made < ROWS);
    assert_true(w.expected > 0 && w.room > w.expected);
    assert_int_equal(count_files(states), made + 1);
    w = (watch){0};
    assert_ok(accrue_extract(&r, &o, look, &w, &e), &e);
    assert_int_equal(w.first_done, made);
    assert_int_equal(r.found, made);
    assert_int_equal(r.made, ROWS - made);
    assert_true(hash_all(states) == hash);
}

/* The disk ---------------------------------------------------------------------------------- */

static struct {
    bool full, without_files;
} disk;

int statvfs(const char *path, struct statvfs *out)
{
    (void)path;
    *out = (struct statvfs){.f_frsize = 4096, .f_bavail = disk.full ? 100 : 1000000};
    out->f_files = 1000;
    out->f_favail = disk.without_files ? 59 : 1000;
    return 0;
}

static void refuses_a_disk_without_room(void **state)
{
    const accrue_extract_options o = options();
    accrue_extract_report r;
    accrue_error e = {0};

    (void)state;
    disk.full = true;
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_ENOSPACE, &e, states,
                 "no room for the hidden states of 60 rows", "to spare needed, 409600 free", NULL);
    assert_false(acr_exists(states));
    disk.full = false;
    disk.without_files = true;
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_ENOSPACE, &e,
                 "no room for 60 files more, the disk can hold 59", NULL);
    disk.without_files = false;
    extract(&o);
    disk.full = disk.without_files = true; /* nothing more is needed */
    extract(&o);
    disk.full = disk.without_files = false;
}

/* Failures ---------------------------------------------------------------------------------- */

static void refuses_options_that_nothing_could_be_made_with(void **state)
{
    const int ids[] = {9}, twice[] = {3, 3};
    accrue_extract_options o = options();
    accrue_extract_report r;
    accrue_error e = {0};

#define FAILS(status, ...)                                                                         \
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), status, &e, __VA_ARGS__, NULL);           \
    o = options()
    (void)state;
    o.struct_size = 8;
    FAILS(ACCRUE_EINVAL, "options of 8 bytes");
    o.verifier = "";
    FAILS(ACCRUE_EINVAL, "--verifier-name-or-path: a value expected");
    o.data_path = NULL;
    FAILS(ACCRUE_EINVAL, "--data-path: a value expected");
    o.compute = (accrue_dtype)9;
    FAILS(ACCRUE_EINVAL, "--hidden-states-dtype: 9");
    o.target_layer_ids = ids;
    o.n_target_layer_ids = 1;
    FAILS(ACCRUE_EINVAL, "--target-layer-ids: 9, 0 to 8 expected");
    o.target_layer_ids = twice;
    o.n_target_layer_ids = 2;
    FAILS(ACCRUE_EINVAL, "--target-layer-ids: 3 is given twice");
    o.data_path = "no/such";
    FAILS(ACCRUE_EIO, "no/such");
    o.verifier = "no/such";
    FAILS(ACCRUE_EIO, "no/such");
    o.verifier = TINY "/verifier"; /* has what training needs, and no layers */
    FAILS(ACCRUE_EMISMATCH, TINY "/verifier", "model.layers.0.");
#undef FAILS
    assert_false(acr_exists(states));
}

/* Before a folder is made for what could never be held. */
static void refuses_sizes_that_no_verifier_has(void **state)
{
    static const struct {
        const char *key;
        json_int_t value;
    } cases[] = {{"hidden_size", 1000000000000}, {"hidden_size", 0}, {"vocab_size", 16777217}};
    const accrue_extract_options o = options();
    char *path = acr_sprintf("%s/config.json", verifier);
    accrue_extract_report r;
    accrue_error e = {0};

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        char *says = acr_sprintf("%s: \"%s\" is %lld, 1 to 16777216 expected", path, cases[i].key,
                                 (long long)cases[i].value);
        char *text = NULL;
        json_t *config = NULL;
        write_whole_verifier(verifier, TINY_VOCAB, 7);
        assert_ok(acr_json_load(&config, path, 1 << 20, &e), &e);
        json_object_set_new(config, cases[i].key, json_integer(cases[i].value));
        text = acr_json_text(config);
        write_text(path, text);
        assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, says, NULL);
        json_decref(config);
        acr_free(text);
        acr_free(says);
    }
    assert_false(acr_exists(states));
    acr_free(path);
}

static void refuses_rows_and_folders_that_are_in_the_way(void **state)
{
    const accrue_extract_options o = options();
    accrue_extract_report r;
    accrue_error e = {0};
    char *path = NULL;
    int fd = -1;

    (void)state;
    write_whole_verifier(verifier, 50, 7); /* the rows have ids up to 95 */
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, "row 0",
                 "expected 0 to 49", NULL);
    write_whole_verifier(verifier, TINY_VOCAB, 7);
    shell(acr_sprintf("sed -i 's/embeddings\": 512/embeddings\": 3/' '%s/config.json'", verifier));
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 ".arrow: row 0: ", " tokens, but the verifier has 3 positions", NULL);
    assert_false(acr_exists(states));
    write_whole_verifier(verifier, TINY_VOCAB, 7);
    write_text(states, "a file");
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, "cannot open", states,
                 NULL);
    shell(acr_sprintf("rm '%s' && mkdir '%s'", states, states));
    fd = open(states, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, states,
                 "another extraction is at work in this folder", NULL);
    close(fd);
    path = acr_sprintf("%s/hs_0.safetensors", states); /* what the settings would be beside */
    shell(acr_sprintf("mkdir '%s'", path));
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, path, "cannot rename",
                 NULL);
    assert_int_equal(count_files(states), 1);
    shell(acr_sprintf("rmdir '%s'", path));
    acr_free(path);
    path = acr_sprintf("%s/extract.json", states);
    shell(acr_sprintf("mkdir '%s/extract.json.tmp'", states));
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, path, NULL);
    shell(acr_sprintf("rmdir '%s/extract.json.tmp'", states));
    write_text(path, "{\"layers\": ");
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EFORMAT, &e, path, NULL);
    shell(acr_sprintf("rm '%s'", path));
    acr_free(path);
    path = acr_sprintf("%s/hs_4.safetensors", states);
    shell(acr_sprintf("mkdir '%s'", path));
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, path, "cannot rename",
                 NULL);
    shell(acr_sprintf("rm -r '%s'", states));
    acr_free(path);
}

static void waits_for_nobody_who_holds_a_rows_lock(void **state)
{
    const accrue_extract_options o = options();
    accrue_extract_report r;
    accrue_error e = {0};
    char *path = acr_sprintf("%s/hs_2.safetensors.lock", states);
    int fd = -1;

    (void)state;
    extract(&o);
    write_text(path, "");
    fd = open(path, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_EIO, &e, "a writer holds the lock",
                 NULL);
    close(fd);
    acr_free(path);
}

static void refuses_states_that_are_no_numbers(void **state)
{
    accrue_extract_options o = options();
    accrue_extract_report r;
    accrue_error e = {0};
    char *made = acr_sprintf("%s/made", folder), *deep = acr_sprintf("%s/a/states", made);

    (void)state;
    write_whole_verifier(verifier, TINY_VOCAB, 0);
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_ENUMERIC, &e, verifier, "row 0",
                 "NaN or infinite", NULL);
    assert_false(acr_exists(states));
    o.hidden_states_path = deep;
    assert_fails(accrue_extract(&r, &o, NULL, NULL, &e), ACCRUE_ENUMERIC, &e, "row 0", NULL);
    assert_false(acr_exists(made));
    acr_free(made);
    acr_free(deep);
}

/* A model is read for its fingerprint once. */
static void fingerprints_are_kept(void **state)
{
    acr_fingerprint f = {.path = verifier}, g = f, none = {.path = "no/such"};
    uint64_t first = 0, again = 0, other = 0;
    accrue_error e = {0};

    (void)state;
    assert_ok(acr_fingerprint_get(&first, &f, &e), &e);
    write_whole_verifier(verifier, TINY_VOCAB, 8);
    assert_ok(acr_fingerprint_get(&again, &f, &e), &e);
    assert_ok(acr_fingerprint_get(&other, &g, &e), &e);
    assert_true(again == first && other != first);
    assert_fails(acr_fingerprint_get(&other, &none, &e), ACCRUE_EIO, &e, "no/such", NULL);
    assert_false(none.known);
}

static void gives_back_everything_when_memory_ends(void **state)
{
    const accrue_extract_options o = options();
    accrue_extract_report r;
    accrue_error e = {0};
    size_t before = 0;
    uint64_t n = 1, failed = 0;

    (void)state;
    extract(&o);
    before = acr_allocated_bytes();
    for (accrue_status st = ACCRUE_ENOMEM; st; n += 1 + n / 16) {
        shell(acr_sprintf("rm -f '%s'/hs_1*", states));
        acr_fail_allocation(n);
        st = accrue_extract(&r, &o, NULL, NULL, &e);
        acr_fail_allocation(0);
        if (st)
            assert_fails(st, ACCRUE_ENOMEM, &e, NULL);
        failed += st != ACCRUE_OK;
        assert_int_equal(acr_allocated_bytes(), before);
    }
    assert_true(failed > 20);
    assert_int_equal(count_files(states), ROWS + 1); /* and the settings */
}

#undef TEST
#define TEST(f) cmocka_unit_test_setup_teardown(f, prepare, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(files_hold_what_the_verifier_makes),
        TEST(keeps_whole_files_and_makes_broken_ones_anew),
        TEST(refuses_to_go_on_with_something_else),
        TEST(files_without_settings_are_taken_as_they_are),
        TEST(threads_change_no_bit),
        TEST(a_stopped_call_goes_on),
        TEST(refuses_a_disk_without_room),
        TEST(refuses_options_that_nothing_could_be_made_with),
        TEST(refuses_sizes_that_no_verifier_has),
        TEST(refuses_rows_and_folders_that_are_in_the_way),
        TEST(waits_for_nobody_who_holds_a_rows_lock),
        TEST(refuses_states_that_are_no_numbers),
        TEST(fingerprints_are_kept),
        TEST(gives_back_everything_when_memory_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
