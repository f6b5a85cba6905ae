/* Which checkpoint a run goes on from, what it refuses to go on from, and that nothing it does not
 * use is touched. */
#include "resume_test.h"

static char *folder;
static char *made; /* a run stopped in its second epoch: folders 0 and 1 */

static accrue_train_options options(const char *out)
{
    accrue_train_options o = tiny_options(out);

    o.total_seq_len = 71;
    o.ttt_steps = 2;
    o.epochs = 3;
    o.compute = ACCRUE_F32;
    o.accumulation_tail = ACCRUE_TAIL_STEP;
    o.scheduler_total_steps = 15;
    o.window.gradient_accumulation_steps = 2;
    o.batch_plan = short_plan(folder, 9);
    return o;
}

static void drop(accrue_train_options *o)
{
    acr_free((void *)(uintptr_t)o->batch_plan);
}

static int make(void **state)
{
    accrue_train_options o;
    accrue_error e = {0};

    (void)state;
    accrue_set_threads(1);
    folder = make_folder();
    made = acr_sprintf("%s/made", folder);
    o = options(made);
    o.max_steps = 7; /* 5 steps an epoch */
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    drop(&o);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    remove_folder(folder);
    acr_free(made);
    return 0;
}

/* What would be resumed from, NULL for none; notes are checked for `word`. */
static void assert_chosen(const char *out, const char *name, const char *word)
{
    accrue_train_options o = options(out);
    char *expected = name ? acr_sprintf("%s/%s", out, name) : NULL;
    accrue_error e = {0};
    acr_resume found;
    bool said = !word;

    assert_ok(acr_resume_find(&found, &o, &e), &e);
    if (expected) {
        assert_non_null(found.dir);
        assert_string_equal(found.dir, expected);
    } else {
        assert_null(found.dir);
    }
    for (int i = 0; i < found.n_notes; i++)
        said = said || strstr(found.notes[i], word);
    if (!said)
        fail_msg("no notice says \"%s\"", word);
    if (!word)
        assert_int_equal(found.n_notes, 0);
    acr_resume_free(&found);
    acr_free(expected);
    drop(&o);
}

/* A copy of `made`, freed with remove_folder. */
static char *copy_of(const char *name)
{
    char *out = acr_sprintf("%s/%s", folder, name);

    copy_tree(made, out);
    return out;
}

/* Choice ---------------------------------------------------------------------------------- */

static void test_newest(void **state)
{
    char *out = copy_of("newest");

    (void)state;
    assert_chosen(out, "1", NULL);
    /* Names and times say nothing. */
    shell(acr_sprintf("cd '%s' && mv 1 00 && mv 0 1 && touch 1/config.json 1", out));
    assert_chosen(out, "00", NULL);
    /* A link is no checkpoint, whatever it points at. */
    shell(acr_sprintf("cd '%s' && mv 00 ../elsewhere && ln -s ../elsewhere 7", out));
    assert_chosen(out, "1", NULL);
    shell(acr_sprintf("cd '%s' && rm 7 && mv ../elsewhere kept-by-hand", out));
    assert_chosen(out, "kept-by-hand", NULL);
    remove_folder(out);
}

static void test_invalid_newer(void **state)
{
    static const struct {
        const char *command, *word;
    } cases[] = {
        {"mkdir 2", "2: not resumed from"},
        {"mkdir 2 && echo hello > 2/notes.txt", "2: not resumed from"},
        {"mkdir 2 && cp 1/model.safetensors 1/config.json 2", "2/training_state.json"},
        {"cp -r 1 2 && rm 2/manifest.json && sed -i 's/\"epoch\": 1/\"epoch\": 2/' "
         "2/training_state.json",
         "2/manifest.json"},
        {"cp -r 1 2 && sed -i 's/\"epoch\": 1/\"epoch\": 2/' 2/training_state.json",
         "2/training_state.json"},
        {"cp -r 1 2 && : > 2/training_state.json", "2/training_state.json"},
        {"cp -r 1 2 && echo '{\"epoch\": \"two\"}' > 2/training_state.json", "\"epoch\""},
        {"mkdir 2 && mkdir 2/training_state.json", "2/training_state.json"},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        char *out = copy_of("newer"), *before = acr_sprintf("%s/before", folder);
        shell(acr_sprintf("cd '%s' && %s", out, cases[i].command));
        copy_tree(out, before);
        assert_chosen(out, "1", cases[i].word);
        assert_same_tree(before, out);
        remove_folder(before);
        remove_folder(out);
    }
}

/* Every file, cut, emptied, removed, and with single bits changed throughout. */
static void test_each_file_corrupted(void **state)
{
    static const char *const files[] = {"config.json",         "manifest.json",
                                        "model.safetensors",   "state.tensors",
                                        "training_state.json", "val_metrics.json"};
    static const char *const damage[] = {"truncate -s -1", "truncate -s 0", "truncate -s +1", "rm"};

    (void)state;
    for (int i = 0; i < ACR_COUNT(files); i++) {
        char *out = copy_of("damaged"), *path = acr_sprintf("%s/1/%s", out, files[i]);
        acr_map map = {0};
        uint8_t *bytes = NULL;
        size_t n = 0;
        accrue_error e = {0};
        assert_ok(acr_map_open(&map, path, &e), &e);
        n = map.bytes;
        bytes = acr_malloc(n);
        memcpy(bytes, map.data, n);
        acr_map_close(&map);
        for (int k = 0; k < ACR_COUNT(damage); k++) {
            shell(acr_sprintf("%s '%s'", damage[k], path));
            assert_chosen(out, "0", "1: not resumed from");
            write_bytes(path, bytes, n);
        }
        for (size_t at = 0; at < n; at += n / 23 + 1) {
            bytes[at] ^= 1;
            write_bytes(path, bytes, n);
            assert_chosen(out, "0", "1: not resumed from");
            bytes[at] ^= 1;
        }
        write_bytes(path, bytes, n);
        assert_chosen(out, "1", NULL);
        acr_free(bytes);
        acr_free(path);
        remove_folder(out);
    }
}

/* No byte of a manifest can change unseen. */
static void test_each_byte_of_manifest(void **state)
{
    char *out = copy_of("manifest"), *path = acr_sprintf("%s/1/manifest.json", out);
    char *dir = acr_sprintf("%s/1", out);
    acr_map map = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    accrue_error e = {0};

    (void)state;
    assert_ok(acr_manifest_check(dir, true, NULL, &e), &e);
    assert_ok(acr_map_open(&map, path, &e), &e);
    n = map.bytes;
    bytes = acr_malloc(n);
    memcpy(bytes, map.data, n);
    acr_map_close(&map);
    for (size_t i = 0; i < 8 * n; i++) { /* names, sizes, sums, keys and spaces */
        bytes[i / 8] ^= (uint8_t)(1U << i % 8);
        write_bytes(path, bytes, n);
        if (acr_manifest_check(dir, true, NULL, NULL) == ACCRUE_OK)
            fail_msg("bit %zu of byte %zu changed unseen", i % 8, i / 8);
        bytes[i / 8] ^= (uint8_t)(1U << i % 8);
    }
    acr_free(bytes);
    acr_free(path);
    acr_free(dir);
    remove_folder(out);
}

/* Goes on from the older one and needs the names of the others: they are set aside, not removed. */
static void test_set_aside(void **state)
{
    char *straight = acr_sprintf("%s/straight", folder), *out = copy_of("aside");
    accrue_train_options o = options(straight);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    shell(acr_sprintf("cd '%s' && truncate -s -1 1/state.tensors && mkdir 2 2.aside-1 && "
                      "echo mine > 2/notes.txt && cp -r 1 2.aside-1 && cp -a . ../saved",
                      out));
    o.save_path = out;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_notice(&t, "1: not resumed from");
    assert_notice(&t, "2: not resumed from");
    assert_notice(&t, "goes on from");
    assert_notice(&t, "1.aside-1");
    assert_notice(&t, "2.aside-2");
    shell(acr_sprintf("cd '%s' && diff -r 1.aside-1 ../saved/1 && diff -r 2.aside-2 ../saved/2 && "
                      "diff -r 2.aside-1 ../saved/2.aside-1 && rm -r *.aside-*",
                      out));
    assert_same_tree(straight, out);
    forget(&t);
    drop(&o);
    remove_folder(out);
    acr_free(straight);
}

/* A checkpoint with a stranger's file in it is replaced, and kept. */
static void test_unlisted_file(void **state)
{
    char *out = copy_of("unlisted");
    accrue_train_options o = options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    shell(acr_sprintf("echo mine > '%s/1/notes.txt'", out));
    assert_chosen(out, "1", NULL);
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_notice(&t, "1.aside-1");
    shell(acr_sprintf("grep -q mine '%s/1.aside-1/notes.txt' && test ! -e '%s/1/notes.txt'", out,
                      out));
    forget(&t);
    drop(&o);
    remove_folder(out);
}

/* Temporary names of killed saves go; others that look alike stay. */
static void test_clean(void **state)
{
    char *out = copy_of("clean");
    accrue_train_options o = options(out);
    accrue_error e = {0};

    (void)state;
    shell(acr_sprintf("cd '%s' && cp -r 1 .1.tmp-4711 && ln -s 1 .epoch1_end.tmp-4711 && "
                      "mkdir .tmp-1 .1.tmp-x .other && echo mine > .file.tmp-1",
                      out));
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    shell(acr_sprintf("cd '%s' && test ! -e .1.tmp-4711 -a ! -h .epoch1_end.tmp-4711 -a -d .tmp-1 "
                      "-a -d .1.tmp-x -a -d .other -a -f .file.tmp-1",
                      out));
    drop(&o);
    remove_folder(out);
}

/* A run begun anew over an older one is the newer, however far the older came. */
static void test_generations(void **state)
{
    char *out = acr_sprintf("%s/generations", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    assert_chosen(out, "2", NULL);
    o.no_resume = true;
    o.max_steps = 3;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    assert_chosen(out, "0", NULL);
    o.no_resume = false;
    o.max_steps = 7;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_int_equal(t.steps, 4);
    assert_chosen(out, "1", NULL);
    forget(&t);
    drop(&o);
    remove_folder(out);
}

/* Want of memory is an error, never a reason to take an older checkpoint; nothing leaks. */
static void test_out_of_memory(void **state)
{
    accrue_train_options o = options(made);
    char *newest = acr_sprintf("%s/1", made);
    accrue_error e = {0};
    acr_resume found, fine;
    accrue_run *run = NULL;
    accrue_status st = ACCRUE_ENOMEM;
    int failures = 0;

    (void)state;
    for (uint64_t n = 1; st; n++) {
        acr_fail_allocation(n);
        st = acr_resume_find(&found, &o, &e);
        acr_fail_allocation(0);
        if (st)
            assert_fails(st, ACCRUE_ENOMEM, &e, NULL);
        else
            assert_string_equal(found.dir, newest);
        failures += st != ACCRUE_OK;
        acr_resume_free(&found);
    }
    assert_true(failures > 10);
    assert_ok(acr_resume_find(&fine, &o, &e), &e);
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    st = ACCRUE_ENOMEM;
    for (uint64_t n = 1; st; n++) {
        size_t before = acr_allocated_bytes();
        acr_fail_allocation(n);
        st = acr_run_load(run, &fine, &e);
        acr_fail_allocation(0);
        if (st)
            assert_fails(st, ACCRUE_ENOMEM, &e, NULL);
        assert_int_equal(acr_allocated_bytes(), before);
    }
    accrue_run_free(run);
    acr_resume_free(&fine);
    acr_free(newest);
    drop(&o);
}

/* --resume-from --------------------------------------------------------------------------- */

static void test_resume_from(void **state)
{
    char *straight = acr_sprintf("%s/from-straight", folder);
    char *other = acr_sprintf("%s/from-other", folder), *from = acr_sprintf("%s/1", made);
    char *older = acr_sprintf("%s/0", straight);
    accrue_train_options o = options(straight);
    accrue_error e = {0};
    logbook whole = {0}, l = {0};

    (void)state;
    assert_ok(accrue_train(&o, write_log, &whole, &e), &e);
    o.save_path = other;
    o.resume_from = from;
    assert_ok(accrue_train(&o, write_log, &l, &e), &e);
    assert_int_equal(l.resumed, 1);
    assert_int_equal(last_step(&l), 15);
    /* But for where it came from. */
    shell(acr_sprintf("diff -r -x training_state.json -x manifest.json '%s/2' '%s/2'", straight,
                      other));
    /* Back to an older one in the same folder: what comes of it is the newer then. */
    acr_free(l.records);
    memset(&l, 0, sizeof l);
    o.save_path = straight;
    o.resume_from = older;
    o.max_steps = 9;
    assert_ok(accrue_train(&o, write_log, &l, &e), &e);
    assert_chosen(straight, "1", NULL);
    acr_free(l.records);
    acr_free(older);
    acr_free(whole.records);
    drop(&o);
    acr_free(from);
    remove_folder(other);
    remove_folder(straight);
}

/* The same command goes on from what it came to, not from --resume-from again. */
static void test_resume_from_again(void **state)
{
    static const char *const origins[] = {"%s/1", "%s/0", "%s/peer"};
    char *mid = acr_sprintf("%s/mid", folder), *peer = acr_sprintf("%s/peer", mid);

    (void)state;
    for (int i = 0; i < ACR_COUNT(origins); i++) {
        char *out = acr_sprintf("%s/again%d", folder, i);
        char *from = acr_sprintf(origins[i], i == 0 ? made : mid);
        accrue_train_options o = options(i == 1 ? mid : out);
        accrue_error e = {0};
        logbook l = {.answer = ACCRUE_SAVE_AND_STOP};
        int64_t before = 0;
        int starts = 0;
        o.max_steps = i == 1 ? 2 : 0;
        if (i == 1) /* a checkpoint in mid-epoch, which the end of the epoch replaces */
            assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
        o.max_steps = 0;
        if (i == 2)
            shell(acr_sprintf("mkdir '%s' && cp '%s'/1/[cm]o*s* '%s'", peer, made, peer));
        o.resume_from = from;
        for (accrue_status st = ACCRUE_ECANCELED; st; starts++) {
            l.events = 0;
            l.stop_at = 6; /* behind a validation that was left */
            st = accrue_train(&o, write_log, &l, &e);
            assert_true((!st || st == ACCRUE_ECANCELED) && starts < 40);
            assert_true(last_step(&l) >= before);
            before = last_step(&l);
        }
        assert_int_equal(before, 15);
        assert_true(starts > 2);
        acr_free(l.records);
        drop(&o);
        acr_free(from);
        acr_free(out);
    }
    acr_free(mid);
    acr_free(peer);
}

/* Another run in the same folder is refused before anything is read. */
static void test_folder_in_use(void **state)
{
    char *out = copy_of("used");
    accrue_train_options o = options(out);
    accrue_error e = {0};
    int fd = -1;

    (void)state;
    assert_ok(acr_checkpoint_lock(&fd, out, &e), &e);
    assert_true(fd >= 0);
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EINVAL, &e, out,
                 "another run is writing there", NULL);
    assert_same_tree(made, out);
    close(fd);
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    drop(&o);
    remove_folder(out);
}

/* A folder with weights and a state that is not ours. */
static void test_weights_only(void **state)
{
    char *peer = acr_sprintf("%s/peer", folder), *out = acr_sprintf("%s/of-peer", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};
    accrue_run *run = NULL;
    told t = {0}, plain = {0};

    (void)state;
    shell(
        acr_sprintf("mkdir '%s' && cd '%s' && cp ../made/1/config.json ../made/1/model.safetensors "
                    ". && echo x > optimizer_state_dict.pt",
                    peer, peer));
    o.max_steps = 1;
    o.resume_from = peer;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_notice(&t, "optimizer state is not read");
    assert_int_equal(t.steps, 1);
    assert_int_equal(t.last_step.global_step, 1);
    remove_tree(out);
    o.resume_from = NULL;
    o.from_pretrained = peer;
    assert_ok(accrue_train(&o, tell, &plain, &e), &e);
    assert_true(t.last_step.grad_norm == plain.last_step.grad_norm);
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    accrue_run_free(run);
    forget(&t);
    forget(&plain);
    drop(&o);
    remove_folder(out);
    remove_folder(peer);
}

static void test_resume_from_refused(void **state)
{
    char *bad = acr_sprintf("%s/bad", folder), *out = acr_sprintf("%s/none", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};

    (void)state;
    o.resume_from = bad;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EIO, &e, "Cannot resume", "--resume-from",
                 bad, NULL);
    shell(
        acr_sprintf("cp -r '%s/1' '%s' && truncate -s -1 '%s/model.safetensors'", made, bad, bad));
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EFORMAT, &e, "Cannot resume",
                 "model.safetensors", "bytes", NULL);
    o.no_resume = true;
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EINVAL, &e, "--resume-from",
                 "--no-resume-from-checkpoint", NULL);
    o.no_resume = false;
    assert_fails(accrue_train_dry_run(&(accrue_train_plan){0}, &o, NULL, NULL, &e), ACCRUE_EINVAL,
                 &e, "--resume-from", bad, "dry run", NULL);
    assert_false(acr_is_dir(out));
    drop(&o);
    acr_free(out);
    remove_folder(bad);
}

/* Refusals -------------------------------------------------------------------------------- */

/* Both values are in the message, and nothing was touched. */
static void refuses(const accrue_train_options *o, const char *key, const char *saved,
                    const char *ours)
{
    char *before = acr_sprintf("%s/untouched", folder);
    accrue_error e = {0};
    told t = {0};

    copy_tree(o->save_path, before);
    assert_fails(accrue_train(o, tell, &t, &e), ACCRUE_EMISMATCH, &e, "Cannot resume: ", key, saved,
                 ours, NULL);
    assert_int_equal(t.micro_batches, 0);
    assert_same_tree(before, o->save_path);
    forget(&t);
    remove_folder(before);
}

static void test_refused_options(void **state)
{
    accrue_train_options o = options(made), c = o;

    (void)state;
    c.window.gradient_accumulation_steps = 3;
    refuses(&c, "gradient_accumulation_steps", "is 2,", "is 3");
    c = o;
    c.total_seq_len = 70;
    c.batch_plan = NULL;
    refuses(&c, "total_seq_len", "is 71,", "is 70");
    c = o;
    c.seed = UINT64_MAX;
    refuses(&c, "seed", "is 42,", "ffffffffffffffff");
    c = o;
    c.window.loss_normalization = ACCRUE_NORMALIZE_TOKEN;
    refuses(&c, "loss_normalization", "\"microbatch\",", "\"token\"");
    c = o;
    c.accumulation_tail = ACCRUE_TAIL_DROP;
    refuses(&c, "accumulation_tail", "\"step\",", "\"drop\"");
    c = o;
    c.compute = ACCRUE_BF16;
    refuses(&c, "hidden_states_dtype", "\"float32\",", "\"bfloat16\"");
    c = o;
    c.window.optimizer = ACCRUE_MUON;
    refuses(&c, "optimizer", "\"adamw\",", "\"muon\"");
    c = o;
    c.best_metric = ACCRUE_BEST_ACCEPTANCE;
    refuses(&c, "best_metric", "\"loss\",", "--best-metric is \"acceptance\"");
    c = o;
    c.train_data_ratio = 0.5;
    refuses(&c, "train_rows", "is 54,", "is 30");
    c = o;
    c.batch_plan = NULL; /* packed, not replayed */
    refuses(&c, "order_fingerprint", "of epoch 1 is", "micro-batches are");
    c = o;
    c.num_layers = 2;
    refuses(&c, "config.json", "is [\"sliding_attention\"],",
            "is [\"sliding_attention\",\"sliding_attention\"]");
    c = o;
    c.draft_vocab_size = 40;
    refuses(&c, "\"draft_vocab_size\"", "is 48,", "is 40");
    c = o;
    c.norm_before_residual = false;
    refuses(&c, "\"norm_before_residual\"", "is true,", "is false");
    drop(&o);
}

/* Options that may change are told, by name, with both values; none where they are the same. */
static void test_told_options(void **state)
{
    char *out = acr_sprintf("%s/told", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    drop(&o);
    o.batch_plan = NULL;
    o.epochs = 1;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    o.epochs = 2;
    o.window.beta2 = 0.95;
    o.loss_fn = "ce";
    o.window.muon_lr = 0.5;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_notice(&t, "was saved with other options: ");
    assert_notice(&t, "loss_fn \"kl_div\", now \"ce\"");
    assert_notice(&t, "beta2 0.999, now 0.95");
    assert_notice(&t, "muon_lr null, now 0.5");
    assert_notice(&t, "epochs 1, now 2");
    forget(&t);
    o.max_steps = 30; /* it may grow */
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    for (int i = 0; i < t.n_notices; i++)
        assert_null(strstr(t.notice[i], "other options"));
    forget(&t);
    remove_folder(out);
}

/* Changes the first id or mask of a row in a copy of the example's Arrow file. */
static void change_data(const char *file, bool mask)
{
    acr_dataset *d = NULL;
    acr_map map = {0};
    accrue_error e = {0};
    uint8_t *bytes = NULL;
    const uint8_t *found = NULL;
    size_t n = 0, at = 0;
    acr_row r;

    assert_ok(acr_dataset_open(&d, TINY "/data", &e), &e);
    assert_ok(acr_dataset_row(&r, d, 5, &e), &e);
    assert_ok(acr_map_open(&map, file, &e), &e);
    found = memmem(map.data, map.bytes, mask ? r.loss_mask : r.input_ids, 8 * (size_t)r.tokens);
    assert_non_null(found);
    n = map.bytes;
    at = (size_t)(found - map.data);
    bytes = acr_malloc(n);
    memcpy(bytes, map.data, n);
    acr_map_close(&map);
    acr_dataset_close(d);
    bytes[at] ^= 1; /* little-endian: a mask of 0 becomes 1, an id its neighbour */
    write_bytes(file, bytes, n);
    acr_free(bytes);
}

/* One token of one row, or whether one is supervised. */
static void test_refused_data(void **state)
{
    (void)state;
    for (int mask = 0; mask < 2; mask++) {
        char *data = acr_sprintf("%s/data", folder);
        char *file = acr_sprintf("%s/data-00000-of-00001.arrow", data);
        accrue_train_options o = options(made);
        accrue_error e = {0};
        shell(acr_sprintf("mkdir '%s' && cp '%s'/*.* '%s' && chmod -R u+w '%s'", data, TINY "/data",
                          data, data));
        o.data_path = data;
        o.hidden_states_path = TINY "/data/hidden_states";
        o.max_steps = 7; /* the data as it was: nothing to refuse */
        assert_ok(accrue_train(&o, NULL, NULL, NULL), &(accrue_error){0});
        change_data(file, mask);
        if (mask)
            refuses(&o, "data_fingerprint", "is \"", "this run's data set's fingerprint is \"");
        else /* the states, which are as they were, say so first */
            assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EMISMATCH, &e,
                         "row 5: token_ids of token 0", "as in the data set", NULL);
        drop(&o);
        acr_free(file);
        remove_folder(data);
    }
}

static void test_without_n(void **state)
{
    char *out = copy_of("without");
    char *dir = acr_sprintf("%s/1", out);
    accrue_train_options o = options(out);
    acr_training_state s;
    accrue_error e = {0};

    (void)state;
    shell(
        acr_sprintf("cd '%s' && sed -i '/gradient_accumulation_steps/d' training_state.json", dir));
    assert_ok(acr_training_state_read(&s, dir, &e), &e);
    assert_int_equal(s.gradient_accumulation_steps, 1);
    remake_manifest(dir);
    refuses(&o, "gradient_accumulation_steps", "is 1,", "is 2");
    drop(&o);
    acr_free(dir);
    remove_folder(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_newest),
        cmocka_unit_test(test_invalid_newer),
        cmocka_unit_test(test_each_file_corrupted),
        cmocka_unit_test(test_each_byte_of_manifest),
        cmocka_unit_test(test_set_aside),
        cmocka_unit_test(test_unlisted_file),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_generations),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_resume_from),
        cmocka_unit_test(test_resume_from_again),
        cmocka_unit_test(test_folder_in_use),
        cmocka_unit_test(test_weights_only),
        cmocka_unit_test(test_resume_from_refused),
        cmocka_unit_test(test_refused_options),
        cmocka_unit_test(test_told_options),
        cmocka_unit_test(test_refused_data),
        cmocka_unit_test(test_without_n),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
