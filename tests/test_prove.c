/* The proof of a checkpoint: what is on the disk is what was meant, and has the logged loss. */
#include "save_test.h"

/* A loss that is not the one that was logged: the folder does not take its name. */
static void test_unproven_loss(void **state)
{
    char *out = acr_sprintf("%s/unproven", folder), *copy = acr_sprintf("%s/proven", folder);
    char *dir = acr_sprintf("%s/0", out);
    accrue_train_options o = options(out);
    accrue_metrics val;
    accrue_run *run = NULL;
    accrue_error e = {0};

    (void)state;
    reset_disk();
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    step(run);
    for (int k = 0; k < 2; k++) {
        assert_ok(accrue_run_validate(run, &val, &e), &e);
        run->val = &val;
        assert_ok(accrue_run_save_begin(run, "0", &e), &e);
        run->val = NULL;
        run->proof.loss_sum += k;
        step(run); /* it waits meanwhile */
        if (k) {
            assert_fails(acr_run_settle(run, true, &e), ACCRUE_EFORMAT, &e,
                         "with the weights read back", NULL);
            assert_same_tree(copy, dir);
        } else {
            assert_ok(acr_run_settle(run, true, &e), &e);
            copy_tree(dir, copy);
        }
    }
    accrue_run_free(run);
    drop(&o);
    acr_free(out);
    acr_free(copy);
    acr_free(dir);
}

/* One bit changes on the way to the disk, in any of the writes of the second checkpoint: it is
 * found, and the first one stays. */
static void test_changed_on_the_way(void **state)
{
    char *out = acr_sprintf("%s/way", folder), *copy = acr_sprintf("%s/first", folder);
    char *dir = acr_sprintf("%s/0", out);
    accrue_train_options o = options(out);
    accrue_run *run = NULL;
    accrue_error e = {0};
    int writes = 0, found = 0;

    (void)state;
    reset_disk();
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_ok(accrue_run_save(run, "0", &e), &e);
    writes = disk.writes;
    copy_tree(dir, copy);
    step(run);
    for (int k = 1; k <= writes; k++) {
        accrue_status st = ACCRUE_OK;
        reset_disk();
        disk.spoil = k;
        st = accrue_run_save(run, "0", &e);
        if (st) {
            assert_fails(st, ACCRUE_EFORMAT, &e, ".0.tmp-", NULL);
            assert_same_tree(copy, dir);
            found++;
        } else {
            remove_tree(dir); /* a write of a few bytes, which was left alone */
            copy_tree(copy, dir);
        }
    }
    assert_true(found > 15 && found > writes / 3);
    accrue_run_free(run);
    drop(&o);
    acr_free(out);
    acr_free(copy);
    acr_free(dir);
}

static char *proven; /* a checkpoint folder with validation */

/* The folder proven again after the shell command. */
static accrue_status prove_after(const char *command, accrue_error *e)
{
    char *copy = acr_sprintf("%s/spoilt", folder);
    char *paths[2] = {acr_sprintf("%s/model.safetensors", proven),
                      acr_sprintf("%s/state.tensors", proven)};
    acr_safetensors *f[2] = {NULL, NULL};
    acr_tensor t[2][64];
    int n[2];
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < 2; i++) {
        assert_ok(acr_safetensors_open(&f[i], paths[i], e), e);
        n[i] = acr_safetensors_count(f[i]);
        for (int k = 0; k < n[i]; k++)
            t[i][k] = *acr_safetensors_at(f[i], k);
    }
    copy_tree(proven, copy);
    shell(acr_sprintf("cd '%s' && %s", copy, command));
    remake_manifest(copy);
    st = acr_prove_files(copy, t[0], n[0], t[1], n[1], e);
    remove_tree(copy);
    for (int i = 0; i < 2; i++) {
        acr_safetensors_close(f[i]);
        acr_free(paths[i]);
    }
    acr_free(copy);
    return st;
}

/* A25: every key that vLLM expects, every tensor declared, weights that are the rounded masters. */
static void a25_files_are_what_vllm_expects(void **state)
{
    static const char *const keys[] = {"draft_vocab_size",     "speculators_model_type",
                                       "norm_before_residual", "speculative_tokens",
                                       "name_or_path",         "intermediate_size",
                                       "num_attention_heads",  "eagle_aux_hidden_state_layer_ids"};
    char *out = acr_sprintf("%s/a25", folder);
    accrue_train_options o = options(out);
    accrue_error e = {0};

    (void)state;
    reset_disk();
    proven = acr_sprintf("%s/1", out);
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    assert_ok(prove_after("true", &e), &e);
    for (int i = 0; i < ACR_COUNT(keys); i++) {
        char *rename_key = acr_sprintf("sed -i 's/\"%s\"/\"x%s\"/' config.json", keys[i], keys[i]);
        assert_fails(prove_after(rename_key, &e), ACCRUE_EFORMAT, &e, "config.json: no \"", keys[i],
                     "which vLLM needs", NULL);
        acr_free(rename_key);
    }
    assert_fails(
        prove_after("sed -i 's/layers.0.mlp.up_proj/layers.0.mlp.Up_proj/' model.safetensors", &e),
        ACCRUE_EFORMAT, &e, "layers.0.mlp.up_proj.weight is missing", NULL);
    assert_fails(prove_after("cp state.tensors model.safetensors", &e), ACCRUE_EFORMAT, &e,
                 "model.safetensors: ", "tensors, ", NULL);
    /* The sign of an element of the first tensor, which is a master. */
    assert_fails(prove_after("printf '\\277' | dd of=state.tensors bs=1 conv=notrunc "
                             "seek=$(($(od -An -t u8 -N8 state.tensors) + 11)) 2>/dev/null",
                             &e),
                 ACCRUE_EFORMAT, &e, "is not the rounded master of state.tensors", NULL);
    acr_free(proven);
    drop(&o);
    acr_free(out);
}

/* A25: the loss from the weights read back is the one that was logged; with others it is not. */
static void a25_loss_is_the_logged_one(void **state)
{
    static const accrue_dtype computes[] = {ACCRUE_F32, ACCRUE_BF16, ACCRUE_F64};

    (void)state;
    for (int i = 0; i < ACR_COUNT(computes); i++) {
        char *out = acr_sprintf("%s/loss%d", folder, i), *dir = acr_sprintf("%s/0", out);
        accrue_train_options o = options(out);
        accrue_metrics val;
        accrue_run *run = NULL;
        accrue_error e = {0};
        reset_disk();
        o.compute = computes[i];
        o.fsdp_shard = i > 0; /* one rank's share is the whole model */
        assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
        assert_ok(accrue_run_epoch(run, 0, &e), &e);
        step(run);
        assert_ok(accrue_run_validate(run, &val, &e), &e);
        assert_ok(accrue_run_save(run, "0", &e), &e);
        step(run); /* the run's own weights are others by now */
        assert_ok(acr_prove_loss(run, dir, &e), &e);
        step(run); /* and training goes on with those */
        assert_ok(acr_prove_loss(run, dir, &e), &e);
        assert_ok(accrue_run_save(run, "0", &e), &e);
        assert_fails(acr_prove_loss(run, dir, &e), ACCRUE_EFORMAT, &e, dir,
                     "with the weights read back", "when it was validated", NULL);
        accrue_run_free(run);
        drop(&o);
        acr_free(out);
        acr_free(dir);
    }
}

/* A loss that is not even a number says which proof it was, and training can go on. */
static void test_proof_not_finite(void **state)
{
    char *out = acr_sprintf("%s/nan", folder), *dir = acr_sprintf("%s/0", out);
    accrue_train_options o = options(out);
    accrue_metrics val;
    accrue_run *run = NULL;
    accrue_error e = {0};

    (void)state;
    reset_disk();
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    step(run);
    assert_ok(accrue_run_validate(run, &val, &e), &e);
    assert_ok(accrue_run_save(run, "0", &e), &e);
    shell(acr_sprintf("cd '%s' && f=state.tensors && n=$(($(od -An -t u8 -N8 $f) + 8)) && "
                      "rest=$(($(stat -c %%s $f) - n)) && head -c $n $f >nan && "
                      "head -c $rest /dev/zero | tr '\\0' '\\377' >>nan && mv nan $f",
                      dir));
    assert_fails(acr_prove_loss(run, dir, &e), ACCRUE_ENUMERIC, &e, dir, "of epoch 1",
                 "with the weights read back: the loss is NaN", NULL);
    step(run);
    accrue_run_free(run);
    drop(&o);
    acr_free(dir);
    acr_free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unproven_loss),
        cmocka_unit_test(test_changed_on_the_way),
        cmocka_unit_test(a25_files_are_what_vllm_expects),
        cmocka_unit_test(a25_loss_is_the_logged_one),
        cmocka_unit_test(test_proof_not_finite),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
