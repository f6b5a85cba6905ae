/* Checkpoint folders of the trainer: what is in them, when they are written, which are kept. */
#include "train_test.h"

#include "folder_test.h"

#include <dirent.h>
#include <unistd.h>

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* What a folder holds, sorted, one space between: hidden files too, such as a temporary folder. */
static void assert_holds(const char *dir, const char *expected)
{
    char *names[64] = {NULL};
    char got[2048] = "";
    size_t n = 0, used = 0;
    DIR *d = opendir(dir);
    struct dirent *entry = NULL;

    assert_non_null(d);
    while ((entry = readdir(d)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && n < 64)
            names[n++] = acr_strdup(entry->d_name);
    closedir(d);
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++) {
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%s", i ? " " : "", names[i]);
        acr_free(names[i]);
    }
    assert_string_equal(got, expected);
}

static void assert_link(const char *dir, const char *name, const char *target)
{
    char *path = acr_sprintf("%s/%s", dir, name);
    char got[256] = "";

    assert_true(readlink(path, got, sizeof got - 1) > 0);
    assert_string_equal(got, target);
    acr_free(path);
}

static json_t *load(const char *dir, const char *name)
{
    char *path = acr_sprintf("%s/%s", dir, name);
    json_t *value = NULL;
    accrue_error e = {0};

    assert_ok(acr_json_load(&value, path, 1 << 20, &e), &e);
    acr_free(path);
    return value;
}

/* Adds the dotted names of all leaves. */
static void add_keys(char **names, size_t *n, const json_t *value, const char *prefix)
{
    const char *key = NULL;
    const json_t *member = NULL;

    if (json_is_array(value) && json_is_object(json_array_get(value, 0))) {
        char *path = acr_sprintf("%s[]", prefix);
        add_keys(names, n, json_array_get(value, 0), path);
        acr_free(path);
        return;
    }
    if (!json_is_object(value) || strcmp(prefix, "configuration") == 0) {
        assert_true(*n < 128);
        names[(*n)++] = acr_strdup(prefix);
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        char *path = *prefix ? acr_sprintf("%s.%s", prefix, key) : acr_strdup(key);
        add_keys(names, n, member, path);
        acr_free(path);
    }
}

static void assert_keys(const char *dir, const char *file, const char *const *expected, size_t m)
{
    char *names[128] = {NULL};
    json_t *value = load(dir, file);
    size_t n = 0;

    add_keys(names, &n, value, "");
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n && i < m; i++)
        assert_string_equal(names[i], expected[i]);
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++)
        acr_free(names[i]);
    json_decref(value);
}

static int64_t number(const char *dir, const char *file, const char *key)
{
    json_t *value = load(dir, file);
    const json_t *v = json_object_get(value, key);
    int64_t n = json_integer_value(v);

    assert_true(json_is_integer(v));
    json_decref(value);
    return n;
}

/* Contents -------------------------------------------------------------------------------- */

/* The keys of a config.json that speculators 0.9 wrote for a llama verifier. */
static const char *const config_keys[] = {
    "architectures",
    "auto_map.",
    "draft_vocab_size",
    "dtype",
    "eagle_aux_hidden_state_layer_ids",
    "embed_requires_grad",
    "fc_norm",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "speculators_config.algorithm",
    "speculators_config.default_proposal_method",
    "speculators_config.proposal_methods[].accept_tolerance",
    "speculators_config.proposal_methods[].proposal_type",
    "speculators_config.proposal_methods[].speculative_tokens",
    "speculators_config.proposal_methods[].verifier_accept_k",
    "speculators_config.verifier.architectures",
    "speculators_config.verifier.name_or_path",
    "speculators_model_type",
    "speculators_version",
    "target_hidden_size",
    "tie_word_embeddings",
    "transformer_layer_config.attention_bias",
    "transformer_layer_config.attention_dropout",
    "transformer_layer_config.bos_token_id",
    "transformer_layer_config.eos_token_id",
    "transformer_layer_config.head_dim",
    "transformer_layer_config.hidden_act",
    "transformer_layer_config.hidden_size",
    "transformer_layer_config.initializer_range",
    "transformer_layer_config.intermediate_size",
    "transformer_layer_config.layer_types",
    "transformer_layer_config.max_position_embeddings",
    "transformer_layer_config.mlp_bias",
    "transformer_layer_config.model_type",
    "transformer_layer_config.num_attention_heads",
    "transformer_layer_config.num_hidden_layers",
    "transformer_layer_config.num_key_value_heads",
    "transformer_layer_config.pad_token_id",
    "transformer_layer_config.pretraining_tp",
    "transformer_layer_config.rms_norm_eps",
    "transformer_layer_config.rope_parameters.rope_theta",
    "transformer_layer_config.rope_parameters.rope_type",
    "transformer_layer_config.sliding_window",
    "transformer_layer_config.tie_word_embeddings",
    "transformer_layer_config.use_cache",
    "transformer_layer_config.use_sliding_window",
    "transformer_layer_config.vocab_size",
    "transformers_version",
};

static const char *const val_keys[] = {
    "cond_acc_0_epoch", "cond_acc_1_epoch", "cond_acc_2_epoch", "full_acc_0_epoch",
    "full_acc_1_epoch", "full_acc_2_epoch", "loss_0_epoch",     "loss_1_epoch",
    "loss_2_epoch",     "loss_epoch",
};

static const char *const state_keys[] = {
    "accumulation_tail",
    "best_epoch",
    "best_metric",
    "best_value",
    "concluded",
    "configuration",
    "data_fingerprint",
    "empty_windows",
    "epoch",
    "generation",
    "global_step",
    "gradient_accumulation_steps",
    "hidden_states_dtype",
    "interim",
    "is_best",
    "local_step",
    "loss_normalization",
    "micro_batches",
    "optimizer",
    "order_fingerprint",
    "origin",
    "origin_epoch",
    "ranks",
    "samples",
    "schedule_step",
    "seed",
    "skipped_nonfinite",
    "superseded_epoch",
    "total_seq_len",
    "train_rows",
};

typedef struct tensor {
    const char *name;
    acr_dtype dtype;
    int64_t dims[2]; /* the second is 0 for a vector */
} tensor;

enum { HIDDEN = 32, HEADS = 32, KV = 16, MLP = 64, AUX = 3 * HIDDEN };

/* The names and dtypes that speculators 0.9 writes, with the example's sizes. */
static const tensor tensors[] = {
    {"d2t", ACR_DTYPE_I64, {TINY_DRAFT}},
    {"embed_tokens.weight", ACR_DTYPE_BF16, {TINY_VOCAB, HIDDEN}},
    {"fc.weight", ACR_DTYPE_BF16, {HIDDEN, AUX}},
    {"input_norm.weight", ACR_DTYPE_BF16, {AUX}},
    {"layers.0.hidden_norm.weight", ACR_DTYPE_BF16, {HIDDEN}},
    {"layers.0.input_layernorm.weight", ACR_DTYPE_BF16, {HIDDEN}},
    {"layers.0.mlp.down_proj.weight", ACR_DTYPE_BF16, {HIDDEN, MLP}},
    {"layers.0.mlp.gate_proj.weight", ACR_DTYPE_BF16, {MLP, HIDDEN}},
    {"layers.0.mlp.up_proj.weight", ACR_DTYPE_BF16, {MLP, HIDDEN}},
    {"layers.0.post_attention_layernorm.weight", ACR_DTYPE_BF16, {HIDDEN}},
    {"layers.0.self_attn.k_proj.weight", ACR_DTYPE_BF16, {KV, 2 * HIDDEN}},
    {"layers.0.self_attn.o_proj.weight", ACR_DTYPE_BF16, {HIDDEN, HEADS}},
    {"layers.0.self_attn.q_proj.weight", ACR_DTYPE_BF16, {HEADS, 2 * HIDDEN}},
    {"layers.0.self_attn.v_proj.weight", ACR_DTYPE_BF16, {KV, 2 * HIDDEN}},
    {"lm_head.weight", ACR_DTYPE_BF16, {TINY_DRAFT, HIDDEN}},
    {"norm.weight", ACR_DTYPE_BF16, {HIDDEN}},
    {"t2d", ACR_DTYPE_BOOL, {TINY_VOCAB}},
};

static void check_tensors(const char *dir)
{
    static const char metadata[] = "{\"__metadata__\":{\"format\":\"pt\"},";
    char *path = acr_sprintf("%s/model.safetensors", dir);
    acr_safetensors *f = NULL;
    accrue_error e = {0};
    acr_map map = {0};

    assert_ok(acr_map_open(&map, path, &e), &e);
    assert_true(map.bytes > 8 + sizeof metadata);
    assert_memory_equal(map.data + 8, metadata, sizeof metadata - 1);
    acr_map_close(&map);
    assert_ok(acr_safetensors_open(&f, path, &e), &e);
    assert_int_equal(acr_safetensors_count(f), ACR_COUNT(tensors));
    for (int i = 0; i < ACR_COUNT(tensors); i++) {
        const acr_tensor *t = acr_safetensors_at(f, i);
        assert_string_equal(t->name, tensors[i].name);
        assert_int_equal(t->dtype, tensors[i].dtype);
        assert_int_equal(t->n_dims, tensors[i].dims[1] ? 2 : 1);
        assert_int_equal(t->dims[0], tensors[i].dims[0]);
        if (tensors[i].dims[1])
            assert_int_equal(t->dims[1], tensors[i].dims[1]);
    }
    acr_safetensors_close(f);
    acr_free(path);
}

/* A float's bf16 neighbours: the file holds the masters, rounded. */
static void check_values(const char *dir, const accrue_run *run)
{
    char *path = acr_sprintf("%s/model.safetensors", dir);
    acr_safetensors *f = NULL;
    accrue_error e = {0};

    assert_ok(acr_safetensors_open(&f, path, &e), &e);
    for (int i = 0; i < run->setup.model->n_params; i++) {
        const acr_param *p = &run->setup.model->params[i];
        const acr_tensor *t = acr_safetensors_find(f, p->name);
        for (int64_t j = 0; p->trainable && j < p->rows * p->cols; j++) {
            double saved = 0, master = ((const double *)p->master)[j];
            acr_convert(ACR_DTYPE_F64, &saved, t->dtype, (const uint16_t *)t->data + j, 1);
            assert_true(fabs(saved - master) <= fabs(master) / 256);
        }
    }
    acr_safetensors_close(f);
    acr_free(path);
}

static void test_folder(void **state)
{
    char *out = acr_sprintf("%s/deep/er/out", folder);
    char *last = acr_sprintf("%s/1", out);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    o.epochs = 2;
    o.compute = ACCRUE_BF16; /* as most users run it */
    o.window.optimizer = ACCRUE_MUON;
    o.window.gradient_accumulation_steps = 4;
    o.window.lr = 1e-2;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_int_equal(t.n_saved, 2);
    assert_string_equal(t.saved[1], last);
    assert_true(t.val_loss[1] < t.val_loss[0]);
    assert_holds(out, "0 1 checkpoint_best epoch0_end epoch1_end");
    assert_link(out, "checkpoint_best", "1");
    assert_link(out, "epoch0_end", "0");
    assert_link(out, "epoch1_end", "1");
    assert_holds(last, "config.json manifest.json model.safetensors state.tensors "
                       "training_state.json val_metrics.json");
    assert_keys(last, "config.json", config_keys, ACR_COUNT(config_keys));
    assert_keys(last, "training_state.json", state_keys, ACR_COUNT(state_keys));
    assert_keys(last, "val_metrics.json", val_keys, ACR_COUNT(val_keys));
    assert_int_equal(number(last, "training_state.json", "epoch"), 1);
    assert_int_equal(number(last, "training_state.json", "local_step"), 0);
    assert_int_equal(number(last, "training_state.json", "global_step"), t.steps);
    assert_int_equal(number(last, "training_state.json", "gradient_accumulation_steps"), 4);
    check_tensors(last);
    forget(&t);
    acr_free(last);
    acr_free(out);
}

/* Saved in mid-epoch, read back by another run. */
static void test_save_and_start_from(void **state)
{
    char *out = acr_sprintf("%s/again", folder), *dir = acr_sprintf("%s/again/here", folder);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};
    accrue_run *run = NULL, *second = NULL;
    bool stepped = false;

    (void)state;
    o.window.gradient_accumulation_steps = 2;
    assert_ok(accrue_run_open(&run, &o, NULL, NULL, &e), &e);
    assert_ok(accrue_run_epoch(run, 0, &e), &e);
    assert_ok(one_micro_batch(run, &stepped, &e), &e);
    assert_fails(accrue_run_save(run, "here", &e), ACCRUE_ESTATE, &e, "mid-window", "1", "2", NULL);
    assert_ok(one_micro_batch(run, &stepped, &e), &e);
    assert_ok(accrue_run_save(run, "here", &e), &e);
    assert_int_equal(number(dir, "training_state.json", "local_step"), 2);
    assert_int_equal(number(dir, "training_state.json", "global_step"), 1);
    check_values(dir, run);
    o.from_pretrained = dir;
    assert_ok(accrue_run_open(&second, &o, NULL, NULL, &e), &e);
    check_values(dir, second);
    accrue_run_free(second);
    accrue_run_free(run);
    acr_free(dir);
    acr_free(out);
}

/* When ------------------------------------------------------------------------------------ */

typedef struct cadence {
    int64_t micro_batches, n;
    double freq;
    int64_t saved[4]; /* micro-batches, 0 after the last */
} cadence;

static void test_cadence(void **state)
{
    const cadence cases[] = {
        {48, 4, 0.5, {24, 48}}, /* 12 steps, every 6; the second is the epoch's end */
        {50, 4, 0.5, {24, 48}}, /* the tail of two is dropped */
        {21, 1, 0.5, {10, 21}}, /* 10.5 to the even neighbour; at 20 one step of 10 is left */
        {21, 2, 0.3, {6, 12, 18, 20}}, /* 10 steps, every 3; at 9 one of 3 is left */
        {9, 2, 0.01, {2, 4, 6, 8}},    /* at least one step between two */
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(cases); i++) {
        char *out = acr_sprintf("%s/cadence%d", folder, i);
        char *dir = acr_sprintf("%s/0", out);
        char *plan = write_single_plan(folder, 128, cases[i].micro_batches);
        accrue_train_options o = tiny_options(out);
        accrue_error e = {0};
        told t = {0};
        o.batch_plan = plan;
        o.window.gradient_accumulation_steps = cases[i].n;
        o.checkpoint_freq = cases[i].freq;
        assert_ok(accrue_train(&o, tell, &t, &e), &e);
        for (int k = 0; k < 4; k++)
            assert_int_equal(k < t.n_saved ? t.saved_micro_batch[k] : 0, cases[i].saved[k]);
        assert_true(t.n_saved <= 4);
        assert_link(out, "epoch0_end", "0");
        assert_int_equal(number(dir, "training_state.json", "local_step"), 0);
        forget(&t);
        acr_free(plan);
        acr_free(dir);
        acr_free(out);
    }
}

static void test_max_steps(void **state)
{
    const int64_t limits[] = {3, 5, 7, 10}; /* 5 steps an epoch */

    (void)state;
    for (int i = 0; i < ACR_COUNT(limits); i++) {
        char *out = acr_sprintf("%s/max%d", folder, i);
        char *plan = write_plan(folder, 128,
                                "[[0], [1], [2], [3], [4], [5], [6], [7], [8], [9]], "
                                "[[9], [8], [7], [6], [5], [4], [3], [2], [1], [0]], [[1], [2]]");
        int64_t epoch = (limits[i] - 1) / 5, local = limits[i] % 5 * 2;
        char *dir = acr_sprintf("%s/%lld", out, (long long)epoch);
        char link[32];
        accrue_train_options o = tiny_options(out);
        accrue_error e = {0};
        told t = {0};
        o.batch_plan = plan;
        o.epochs = 3;
        o.window.gradient_accumulation_steps = 2;
        o.max_steps = limits[i];
        assert_ok(accrue_train(&o, tell, &t, &e), &e);
        assert_int_equal(t.steps, limits[i]);
        assert_int_equal(t.micro_batches, 2 * limits[i]);
        assert_int_equal(t.plan.total_steps, limits[i]);
        assert_int_equal(t.plan.schedule_total_steps, limits[i]);
        assert_int_equal(t.epochs, epoch + 1);
        assert_int_equal(number(dir, "training_state.json", "global_step"), limits[i]);
        assert_int_equal(number(dir, "training_state.json", "local_step"), local);
        snprintf(link, sizeof link, local ? "epoch%lld_step%lld" : "epoch%lld_end",
                 (long long)epoch, (long long)local);
        assert_link(out, link, dir + strlen(out) + 1);
        forget(&t);
        acr_free(dir);
        acr_free(plan);
        acr_free(out);
    }
}

/* Every n-th epoch, the first one always. */
static void test_epochs_between(void **state)
{
    char *out = acr_sprintf("%s/every", folder);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};

    (void)state;
    o.epochs = 6;
    o.checkpoint_freq = 3;
    o.train_data_ratio = 1; /* nothing to validate on: no best */
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    assert_holds(out, "0 2 5 epoch0_end epoch2_end epoch5_end");
    acr_free(out);
}

/* The best ends up alone, whether it comes last or not. */
static void test_save_best(void **state)
{
    const double rates[] = {1e-3, 3.0};

    (void)state;
    for (int i = 0; i < ACR_COUNT(rates); i++) {
        char *out = acr_sprintf("%s/best%d", folder, i);
        accrue_train_options o = tiny_options(out);
        char holds[128], name[16];
        accrue_error e = {0};
        told t = {0};
        int best = 0;
        o.epochs = 4;
        o.window.lr = rates[i];
        o.save_best = true;
        o.checkpoint_freq = 0.5; /* suppressed */
        assert_ok(accrue_train(&o, tell, &t, &e), &e);
        assert_int_equal(t.validations, 4);
        for (int k = 1; k < 4; k++)
            best = t.val_loss[k] < t.val_loss[best] ? k : best;
        assert_true(i ? best < 3 : best == 3);
        snprintf(name, sizeof name, "%d", best);
        snprintf(holds, sizeof holds, "%d checkpoint_best epoch%d_end", best, best);
        assert_holds(out, holds);
        assert_link(out, "checkpoint_best", name);
        forget(&t);
        acr_free(out);
    }
}

/* Refusals -------------------------------------------------------------------------------- */

static void test_begin_anew(void **state)
{
    char *out = acr_sprintf("%s/twice", folder), *dir = acr_sprintf("%s/0", out);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};
    told t = {0};

    (void)state;
    o.epochs = 2;
    o.max_steps = 2;
    assert_ok(accrue_train(&o, NULL, NULL, &e), &e);
    assert_int_equal(number(dir, "training_state.json", "generation"), 1);
    o.no_resume = true;
    o.max_steps = 1;
    assert_ok(accrue_train(&o, tell, &t, &e), &e);
    assert_int_equal(t.steps, 1);
    assert_holds(out, "0 checkpoint_best epoch0_step1");
    assert_int_equal(number(dir, "training_state.json", "generation"), 2);
    forget(&t);
    acr_free(dir);
    acr_free(out);
}

/* Replaces one value of a row's states. */
static void spoil_states(const char *dir, int64_t row)
{
    char *path = acr_sprintf("%s/hs_%lld.safetensors", dir, (long long)row);
    const uint16_t nan = 0x7fc0;
    acr_tensor t[2];
    acr_safetensors *f = NULL;
    accrue_error e = {0};
    uint16_t *data = NULL;

    assert_ok(acr_safetensors_open(&f, path, &e), &e);
    t[0] = *acr_safetensors_find(f, "hidden_states");
    t[1] = *acr_safetensors_find(f, "token_ids");
    data = acr_malloc(t[0].bytes);
    memcpy(data, t[0].data, t[0].bytes);
    data[(5 * t[0].dims[1] + 1) * t[0].dims[2] + 7] = nan; /* token 5, slot 1, element 7 */
    t[0].data = data;
    unlink(path); /* the mapped file lives on */
    assert_ok(acr_safetensors_write(path, t, 2, NULL, NULL, &e), &e);
    acr_safetensors_close(f);
    acr_free(data);
    acr_free(path);
}

static void test_nan_in_states(void **state)
{
    char *states = acr_sprintf("%s/states", folder), *out = acr_sprintf("%s/nan", folder);
    char *command = acr_sprintf("cp -r '%s' '%s' && chmod -R u+w '%s'", TINY "/data/hidden_states",
                                states, states);
    accrue_train_options o = tiny_options(out);
    accrue_error e = {0};

    (void)state;
    assert_int_equal(system(command), 0);
    spoil_states(states, 3);
    o.hidden_states_path = states;
    o.on_nonfinite = ACCRUE_POLICY_SKIP; /* a broken file is not a step that diverged */
    assert_fails(accrue_train(&o, NULL, NULL, &e), ACCRUE_EFORMAT, &e, "hs_3.safetensors", "row 3",
                 "token 5", "slot 1", "element 7", "nan", NULL);
    assert_false(acr_is_dir(out));
    acr_free(command);
    acr_free(states);
    acr_free(out);
}

static void test_dry_run(void **state)
{
    char *out = acr_sprintf("%s/dry", folder);
    accrue_train_options o = tiny_options(out);
    accrue_train_plan plan;
    accrue_error e = {0};

    (void)state;
    o.window.gradient_accumulation_steps = 4;
    assert_ok(accrue_train_dry_run(&plan, &o, NULL, NULL, &e), &e);
    assert_holds(out, "config.json model.safetensors");
    assert_keys(out, "config.json", config_keys, ACR_COUNT(config_keys));
    check_tensors(out);
    assert_int_equal(plan.train_rows, 54);
    assert_int_equal(plan.val_rows, 6);
    assert_int_equal(plan.first_epoch_steps, plan.first_epoch_micro_batches / 4);
    assert_fails(accrue_train_dry_run(&plan, &o, NULL, NULL, &e), ACCRUE_EINVAL, &e, out,
                 "not empty", NULL);
    acr_free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),         cmocka_unit_test(test_save_and_start_from),
        cmocka_unit_test(test_cadence),        cmocka_unit_test(test_max_steps),
        cmocka_unit_test(test_epochs_between), cmocka_unit_test(test_save_best),
        cmocka_unit_test(test_begin_anew),     cmocka_unit_test(test_nan_in_states),
        cmocka_unit_test(test_dry_run),
    };

    return cmocka_run_group_tests(tests, make, clear);
}
