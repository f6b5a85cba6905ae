/* test_on_missing_extract.c - states that the verifier makes while a draft is trained: the same
 * bits as from files, for every way that rows come into a run. */
#include "train_test.h"

#include "folder_test.h"
#include "whole_verifier.h"

#include <unistd.h>

enum { ROWS = 60 };

static char *verifier, *with, *without; /* data sets with files of states and without */

static int prepare(void **state)
{
    accrue_extract_options o;
    accrue_extract_report r;
    accrue_error e = {0};

    make(state);
    verifier = acr_sprintf("%s/verifier", folder);
    with = acr_sprintf("%s/with", folder);
    without = acr_sprintf("%s/without", folder);
    shell(acr_sprintf("mkdir '%s' '%s' '%s' && cp " TINY "/data/*.* '%s' && cp " TINY
                      "/data/*.* '%s' && chmod u+w '%s'/* '%s'/*",
                      verifier, with, without, with, without, with, without));
    write_whole_verifier(verifier, TINY_VOCAB, 7);
    accrue_extract_options_init(&o, sizeof o);
    o.verifier = verifier;
    o.data_path = with;
    o.compute = ACCRUE_F32;
    assert_ok(accrue_extract(&r, &o, NULL, NULL, &e), &e);
    return 0;
}

static int finish(void **state)
{
    acr_free(verifier);
    acr_free(with);
    acr_free(without);
    return clear(state);
}

static accrue_train_options options(const char *data, const char *out)
{
    accrue_train_options o = tiny_options(out);

    o.verifier = verifier;
    o.data_path = data;
    o.compute = ACCRUE_F32;
    o.epochs = 2;
    o.window.gradient_accumulation_steps = 2;
    o.window.lr = 1e-2;
    o.on_missing = data == with ? ACCRUE_POLICY_RAISE : ACCRUE_POLICY_EXTRACT;
    return o;
}

static uint64_t hash_file(const char *dir, const char *name)
{
    char *path = acr_sprintf("%s/%s", dir, name);
    acr_map map = {0};
    accrue_error e = {0};
    uint64_t hash = 0;

    assert_ok(acr_map_open(&map, path, &e), &e);
    assert_true(map.bytes > 0);
    hash = acr_hash_bytes(map.data, map.bytes, 0);
    acr_map_close(&map);
    acr_free(path);
    return hash;
}

/* Trains and tells what came of it: the last checkpoint's weights and state, and the validation. */
typedef struct result {
    uint64_t model, state;
    double val_loss[2];
} result;

static result train(accrue_train_options o, told *t)
{
    told own = {0};
    result r = {0};
    accrue_error e = {0};
    char *last = acr_sprintf("%s/1", o.save_path);

    t = t ? t : &own;
    assert_ok(accrue_train(&o, tell, t, &e), &e);
    r.model = hash_file(last, "model.safetensors");
    r.state = hash_file(last, "state.tensors");
    assert_int_equal(t->validations, 2);
    memcpy(r.val_loss, t->val_loss, sizeof r.val_loss);
    forget(&own);
    acr_free(last);
    return r;
}

static void assert_same(const result *a, const result *b)
{
    assert_true(a->model == b->model);
    assert_true(a->state == b->state);
    assert_memory_equal(a->val_loss, b->val_loss, sizeof a->val_loss);
}

static char *out_named(const char *name)
{
    return acr_sprintf("%s/%s", folder, name);
}

static void trains_to_the_bits_of_files(void **state)
{
    char *a = out_named("a"), *b = out_named("b");
    told t = {0};
    result files = train(options(with, a), NULL), made = train(options(without, b), &t);
    char *none = acr_sprintf("%s/hidden_states", without);

    (void)state;
    assert_same(&files, &made);
    assert_notice(&t, "60 of 60 rows have no hidden states in ");
    assert_notice(&t, "without/hidden_states; the verifier makes them whenever they are used");
    assert_false(acr_exists(none)); /* nothing is written */
    forget(&t);
    acr_free(none);
    acr_free(a);
    acr_free(b);
}

/* Rows that are cut, alone in their micro-batches, and beside files that are there. */
static void makes_what_is_missing_among_files(void **state)
{
    char *a = out_named("a"), *b = out_named("b");
    accrue_train_options files = options(with, a), some = options(without, b);
    told t = {0};
    result r, s;

    (void)state;
    files.total_seq_len = some.total_seq_len = 28; /* shorter than some rows */
    shell(acr_sprintf("mkdir '%s/hidden_states' && cp '%s'/hidden_states/hs_?.safetensors "
                      "'%s'/hidden_states",
                      without, with, without));
    r = train(files, NULL);
    s = train(some, &t);
    assert_same(&r, &s);
    assert_notice(&t, "50 of 60 rows have no hidden states in ");
    forget(&t);
    acr_free(a);
    acr_free(b);
}

static void ranks_share_one_verifier(void **state)
{
    char *a = out_named("a"), *b = out_named("b"), *c = out_named("c");
    accrue_train_options one = options(with, a), two = options(without, b),
                         files = options(with, c);
    acr_lent_verifier *x = NULL, *y = NULL, *z = NULL;
    accrue_error e = {0};
    result r, s, f;

    (void)state;
    one.reproducible = two.reproducible = files.reproducible = true;
    two.window.gradient_accumulation_steps = files.window.gradient_accumulation_steps = 1;
    two.ranks = files.ranks = 2;
    r = train(one, NULL);
    s = train(two, NULL);
    f = train(files, NULL);
    assert_same(&f, &s);
    assert_true(r.state == s.state);
    assert_ok(acr_verifier_lend(&x, verifier, ACCRUE_F32, 100, &e), &e);
    assert_ok(acr_verifier_lend(&y, verifier, ACCRUE_F32, 100, &e), &e);
    assert_ok(acr_verifier_lend(&z, verifier, ACCRUE_BF16, 100, &e), &e);
    assert_ptr_equal(x, y);
    assert_ptr_not_equal(x, z);
    acr_verifier_return(x);
    acr_verifier_return(z);
    acr_verifier_return(y);
    acr_free(a);
    acr_free(b);
    acr_free(c);
}

static int stop_early(const accrue_event *e, void *payload)
{
    told *t = payload;

    tell(e, t);
    return t->micro_batches == 5 ? ACCRUE_SAVE_AND_STOP : ACCRUE_GO_ON;
}

static void a_run_goes_on_to_the_same_bits(void **state)
{
    char *a = out_named("a"), *b = out_named("b");
    accrue_train_options o = options(without, b);
    result whole = train(options(without, a), NULL), rest;
    told t = {0};
    accrue_error e = {0};

    (void)state;
    assert_fails(accrue_train(&o, stop_early, &t, &e), ACCRUE_ECANCELED, &e, NULL);
    assert_int_equal(t.n_saved, 1);
    assert_true(t.saved_micro_batch[0] > 0);
    forget(&t);
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_true(t.micro_batches > 0);
    rest.model = hash_file(t.saved[t.n_saved - 1], "model.safetensors");
    rest.state = hash_file(t.saved[t.n_saved - 1], "state.tensors");
    assert_true(rest.model == whole.model);
    assert_true(rest.state == whole.state);
    forget(&t);
    acr_free(a);
    acr_free(b);
}

static void verification_is_that_of_files(void **state)
{
    accrue_train_options o = options(with, "unused");
    accrue_verify_report files, made;
    accrue_error e = {0};

    (void)state;
    o.window.loss_normalization = ACCRUE_NORMALIZE_TOKEN;
    assert_ok(accrue_verify(&files, &o, &e), &e);
    o.data_path = without;
    o.on_missing = ACCRUE_POLICY_EXTRACT;
    assert_ok(accrue_verify(&made, &o, &e), &e);
    assert_true(made.pass);
    assert_int_equal(made.tokens, files.tokens);
    assert_true(made.grad_max == files.grad_max && made.parts_max_abs == files.parts_max_abs);
    assert_memory_equal(made.rows, files.rows, sizeof made.rows);
}

/* The layers are those that the draft was made for. */
static void layers_are_the_drafts(void **state)
{
    const int ids[] = {1, 3, 6};
    char *a = out_named("a"), *b = out_named("b"), *c = out_named("c");
    accrue_train_options o = options(without, a);
    char *first = acr_sprintf("%s/1", a);
    accrue_extract_options x;
    accrue_extract_report report;
    result r, s;
    accrue_error e = {0};

    (void)state;
    o.target_layer_ids = ids;
    o.n_target_layer_ids = 3;
    train(o, NULL);
    accrue_extract_options_init(&x, sizeof x);
    x.verifier = verifier;
    x.data_path = with;
    x.compute = ACCRUE_F32;
    x.target_layer_ids = ids;
    x.n_target_layer_ids = 3;
    shell(acr_sprintf("rm -r '%s/hidden_states'", with));
    assert_ok(accrue_extract(&report, &x, NULL, NULL, &e), &e);
    o = options(with, b);
    o.from_pretrained = first; /* which says the layers */
    r = train(o, NULL);
    o = options(without, c);
    o.from_pretrained = first;
    s = train(o, NULL);
    assert_same(&r, &s);
    acr_free(first);
    acr_free(a);
    acr_free(b);
    acr_free(c);
}

/* A draft of a deeper verifier. */
static void refuses_layers_that_are_not_there(void **state)
{
    char *a = out_named("a"), *b = out_named("b");
    accrue_train_options o = options(without, a);
    char *first = acr_sprintf("%s/1", a);
    accrue_error e = {0};

    (void)state;
    train(o, NULL);
    shell(acr_sprintf("tr '\\n' ' ' <'%s/config.json' | sed 's/\\(layer_ids\": *\\[\\) *2/\\1 9/' "
                      ">'%s/new' && mv '%s/new' '%s/config.json'",
                      first, first, first, first));
    o = options(without, b);
    o.from_pretrained = first;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "--on-missing extract: the draft: reads the states of layer 9", "0 to 8", NULL);
    acr_free(first);
    acr_free(a);
    acr_free(b);
}

/* Files of other layers, or of another verifier, are none to mix with what is made. */
static void refuses_files_of_another_kind(void **state)
{
    const int ids[] = {1, 3, 6};
    char *a = out_named("a");
    accrue_train_options o = options(with, a);
    accrue_error e = {0};

    (void)state;
    o.on_missing = ACCRUE_POLICY_EXTRACT;
    shell(acr_sprintf("rm '%s'/hidden_states/hs_3.*", with));
    o.target_layer_ids = ids;
    o.n_target_layer_ids = 3;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "--on-missing extract: ", with,
                 "was begun with \"layers\" [2,4,5], now it is "
                 "[1,3,6]",
                 "extract.json", NULL);
    o.target_layer_ids = NULL;
    o.n_target_layer_ids = 0;
    write_whole_verifier(verifier, TINY_VOCAB, 8);
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "--on-missing extract: ", with, "was begun with \"verifier\"", NULL);
    write_whole_verifier(verifier, TINY_VOCAB, 7);
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    acr_free(a);
}

static void needs_the_verifier_whole(void **state)
{
    char *a = out_named("a");
    accrue_train_options o = options(without, a);
    accrue_error e = {0};

    (void)state;
    o.verifier = TINY "/verifier";
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                 "--on-missing extract needs the verifier whole: ", "model.layers.0.", NULL);
    o.on_missing = (accrue_policy)5;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EINVAL, &e, "--on-missing", NULL);
    acr_free(a);
}

/* But where training cuts rows short enough, their length does not count. */
static void refuses_rows_of_more_tokens_than_positions(void **state)
{
    char *a = out_named("a");
    accrue_train_options o = options(without, a);
    accrue_error e = {0};

    (void)state;
    o.total_seq_len = 20;
    shell(acr_sprintf("sed -i 's/embeddings\": 512/embeddings\": 20/' '%s/config.json'", verifier));
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e, ".arrow: row ",
                 " tokens, but the verifier has 20 positions", NULL);
    o.total_seq_len = 19;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    write_whole_verifier(verifier, TINY_VOCAB, 7);
    acr_free(a);
}

/* What is made and is no number is a fault of its row. */
static void bad_states_are_a_rows_fault(void **state)
{
    char *a = out_named("a");
    accrue_train_options o = options(without, a);
    accrue_error e = {0};

    (void)state;
    write_whole_verifier(verifier, TINY_VOCAB, 0);
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EFORMAT, &e, verifier,
                 "hidden_states of token 0, slot 0", "expected a finite number", NULL);
    acr_free(a);
}

static void gives_back_everything_when_memory_ends(void **state)
{
    char *a = out_named("a");
    accrue_train_options o = options(without, a);
    accrue_error e = {0};
    accrue_train_plan plan;
    size_t before = 0;
    uint64_t failed = 0;

    (void)state;
    o.max_steps = 1;
    assert_ok(accrue_train_dry_run(&plan, &o, NULL, NULL, &e), &e);
    shell(acr_sprintf("rm -r '%s'", a));
    before = acr_allocated_bytes();
    for (uint64_t n = 1, done = 0; !done; n += 1 + n / 8) {
        accrue_run *run = NULL;
        acr_fail_allocation(n);
        accrue_status st = accrue_run_open(&run, &o, NULL, NULL, &e);
        if (!st)
            st = accrue_run_epoch(run, 0, &e);
        if (!st)
            st = accrue_run_forward_backward(run, NULL, &e);
        done = st == ACCRUE_OK && acr_allocations() > 0;
        acr_fail_allocation(0);
        if (st)
            assert_fails(st, ACCRUE_ENOMEM, &e, NULL);
        failed += st != ACCRUE_OK;
        accrue_run_free(run);
        assert_int_equal(acr_allocated_bytes(), before);
    }
    assert_true(failed > 20);
    acr_free(a);
}

#undef TEST
#define TEST(f) cmocka_unit_test_setup_teardown(f, prepare, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(trains_to_the_bits_of_files),       TEST(makes_what_is_missing_among_files),
        TEST(ranks_share_one_verifier),          TEST(a_run_goes_on_to_the_same_bits),
        TEST(verification_is_that_of_files),     TEST(layers_are_the_drafts),
        TEST(refuses_layers_that_are_not_there), TEST(refuses_files_of_another_kind),
        TEST(needs_the_verifier_whole),          TEST(refuses_rows_of_more_tokens_than_positions),
        TEST(bad_states_are_a_rows_fault),       TEST(gives_back_everything_when_memory_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
