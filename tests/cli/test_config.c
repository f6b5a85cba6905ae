/* test_config.c - the file of --config, as its user sees it. */
#include "cli_test.h"

#define V "--verifier-name-or-path v "

/* One line about c.yaml, exit status 2, nothing on stdout, nothing written. */
static void expect_refused(const char *text, const char *command, const char *message)
{
    char expected[1000], line[1500];

    snprintf(line, sizeof line, "%s --save-path unwritten", command);
    snprintf(expected, sizeof expected, "accrue: %s\n", message);
    int code = run_with(text, line);
    if (code != 2 || strcmp(err, expected) != 0 || out[0])
        fail_msg("exit %d, stderr: %sexpected: %sof\n%s", code, err, expected, text);
    assert_int_not_equal(access("unwritten", F_OK), 0);
}

/* Names ----------------------------------------------------------------------------------- */

typedef struct fault {
    const char *text, *message;
} fault;

static void refuse_all(const fault *faults, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect_refused(faults[i].text, "train " V, faults[i].message);
}

static void a22_misspelt_flag(void **state)
{
    (void)state;
    expect_refused("train:\n", "train " V "--max-stpes 3",
                   "unknown flag --max-stpes; did you mean --max-steps?");
}

static void a22_misspelt_keys(void **state)
{
    static const fault faults[] = {
        {"train:\n  optimizer:\n    learnign_rate: 0.1\n",
         "c.yaml:3: train.optimizer.learnign_rate: no such key; did you mean train.optimizer.lr?"},
        {"train:\n  trainer:\n    max_stpes: 3\n",
         "c.yaml:3: train.trainer.max_stpes: no such key; did you mean train.trainer.max_steps?"},
        {"train:\n  trainer:\n    epochs: 3\n    grad_accum_steps: 3\n",
         "c.yaml:4: train.trainer.grad_accum_steps: no such key; did you mean "
         "train.trainer.gradient_accumulation_steps?"},
        {"train:\n  data:\n    learnign_rate: 0.1\n",
         "c.yaml:3: train.data.learnign_rate: no such key; did you mean train.optimizer.lr?"},
        {"train:\n  sede: 1\n", "c.yaml:2: train.sede: no such key; did you mean train.seed?"},
        {"sede: 1\n", "c.yaml:1: sede: no such key; did you mean seed?"},
        {"train:\n  loss:\n    qqqqqqqqqq: 1\n",
         "c.yaml:3: train.loss.qqqqqqqqqq: no such key; see accrue train --help"},
        {"train:\n  optimiser: {lr: 1}\n",
         "c.yaml:2: train.optimiser: no such section; did you mean train.optimizer?"},
        {"trian:\n  seed: 1\n", "c.yaml:1: trian: no such section; did you mean train?"},
        {"train:\n  loss: {'': 1}\n",
         "c.yaml:2: train.loss.: no such key; see accrue train --help"},
        {"train:\n  seed: 1\noptimzer:\n  lr: 1\n",
         "c.yaml:3: optimzer: no such stage; did you mean train.optimizer?"},
        {"sched:\n  a: 1\ntrain:\n  seed: 1\n",
         "c.yaml:1: sched: no such stage; did you mean train.scheduler?"},
        {"train:\n  seed: 1\ntrian:\n  seed: 2\n",
         "c.yaml:3: trian: no such stage; did you mean train?"},
        {"train:\n  seed: 1\nlos: {}\n", "c.yaml:3: los: no such stage; did you mean train.loss?"},
    };

    (void)state;
    refuse_all(faults, sizeof faults / sizeof faults[0]);
}

static void a22_wrong_section(void **state)
{
    static const fault faults[] = {
        {"train:\n  data:\n    lr: 0.1\n",
         "c.yaml:3: train.data.lr: belongs in train.optimizer, as train.optimizer.lr"},
        {"train:\n  lr: 0.1\n",
         "c.yaml:2: train.lr: belongs in train.optimizer, as train.optimizer.lr"},
        {"lr: 0.1\n", "c.yaml:1: lr: belongs in optimizer, as optimizer.lr"},
        {"train:\n  trainer:\n    seed: 1\n",
         "c.yaml:3: train.trainer.seed: belongs in train, as train.seed"},
        {"train:\n  data:\n    hidden-states-path: h\n",
         "c.yaml:3: train.data.hidden-states-path: belongs in train.backend, as "
         "train.backend.hidden_states_path"},
        {"train:\n  seed: 1\noptimizer:\n  lr: 1\n", "c.yaml:3: optimizer: belongs in train"},
        {"train:\n  seed: 1\nmax_steps: 1\n", "c.yaml:3: max_steps: belongs in train"},
        {"train:\n  optimizer:\n    scheduler:\n      scheduler_type: none\n",
         "c.yaml:3: train.optimizer.scheduler: a section, which belongs directly in train"},
        {"train:\n  optimizer: muon\n",
         "c.yaml:2: train.optimizer: muon found, a section expected: optimizer in it"},
        {"train:\n  loss: ce\n", "c.yaml:2: train.loss: ce found, a section expected"},
        {"train:\n  loss: [ce]\n", "c.yaml:2: train.loss: a list found, a section expected"},
    };

    (void)state;
    refuse_all(faults, sizeof faults / sizeof faults[0]);
}

static void a22_written_as_flags(void **state)
{
    static const fault faults[] = {
        {"train:\n  optimizer:\n    weight-decay: 0\n",
         "c.yaml:3: train.optimizer.weight-decay: write train.optimizer.weight_decay"},
        {"train:\n  optimizer:\n    --lr: 0\n",
         "c.yaml:3: train.optimizer.--lr: write train.optimizer.lr"},
        {"train:\n  draft:\n    no_norm_output: true\n",
         "c.yaml:3: train.draft.no_norm_output: write train.draft.norm_output: false"},
        {"train:\n  trainer:\n    no-resume-from-checkpoint: true\n",
         "c.yaml:3: train.trainer.no-resume-from-checkpoint: write "
         "train.trainer.no_resume_from_checkpoint"},
        {"train:\n  config: x\n", "c.yaml:2: train.config: a flag of the command line alone"},
        {"train:\n  dump_config: true\n",
         "c.yaml:2: train.dump_config: a flag of the command line alone"},
    };

    (void)state;
    refuse_all(faults, sizeof faults / sizeof faults[0]);
}

/* Values ---------------------------------------------------------------------------------- */

static void test_values_refused(void **state)
{
    static const fault faults[] = {
        {"train:\n  trainer:\n    epochs: 0\n",
         "c.yaml:3: train.trainer.epochs: 0, a whole number of at least 1 expected"},
        {"train:\n  trainer: {epochs: two}\n",
         "c.yaml:2: train.trainer.epochs: 'two', a whole number expected"},
        {"train:\n  trainer: {epochs: 2.5}\n",
         "c.yaml:2: train.trainer.epochs: '2.5', a whole number expected"},
        {"train:\n  trainer: {epochs: 010}\n",
         "c.yaml:2: train.trainer.epochs: 010, a number without leading 0 expected (to YAML it is "
         "octal)"},
        {"train:\n  trainer: {epochs: ''}\n",
         "c.yaml:2: train.trainer.epochs: '', a whole number expected"},
        {"train:\n  trainer: {epochs: [1]}\n",
         "c.yaml:2: train.trainer.epochs: a list found, one value expected"},
        {"train:\n  trainer:\n    epochs:\n      a: 1\n",
         "c.yaml:3: train.trainer.epochs: a mapping found, one value expected"},
        {"train:\n  optimizer:\n    lr: .nan\n",
         "c.yaml:3: train.optimizer.lr: '.nan', a number expected"},
        {"train:\n  optimizer:\n    lr: 1:30\n",
         "c.yaml:3: train.optimizer.lr: '1:30', a number expected"},
        {"train:\n  optimizer:\n    optimizer: sgd\n",
         "c.yaml:3: train.optimizer.optimizer: 'sgd', one of adamw, muon expected"},
        {"train:\n  trainer:\n    save_best: maybe\n",
         "c.yaml:3: train.trainer.save_best: 'maybe', true or false expected"},
        {"train:\n  draft:\n    target_layer_ids: [1, b]\n",
         "c.yaml:3: train.draft.target_layer_ids: 'b', a whole number expected"},
        {"train:\n  draft:\n    target_layer_ids: [[1]]\n",
         "c.yaml:3: train.draft.target_layer_ids: a list of whole numbers expected"},
        {"train:\n  draft:\n    target_layer_ids: 3\n",
         "c.yaml:3: train.draft.target_layer_ids: 3 found, a list of whole numbers expected"},
        {"train:\n  trainer:\n    save_path: \"\\e[31m\\n\"\n    epochs: \"a\\e[1m\\nb\"\n",
         "c.yaml:4: train.trainer.epochs: 'a [1m b', a whole number expected"},
        {"train:\n  trainer:\n    checkpoint_freq: 1.5\n",
         "c.yaml:3: train.trainer.checkpoint_freq: 1.5, a whole number of epochs expected above 1"},
        {"train:\n  draft:\n    d2t_path: a\n",
         "c.yaml:3: train.draft.d2t_path: a needs --t2d-path, which is not given"},
        {"train:\n  draft:\n    from_pretrained: a\n    num_layers: 2\n",
         "c.yaml:3: train.draft.from_pretrained: a and c.yaml:4: train.draft.num_layers: 2 exclude "
         "each other: the config defines the draft's layers"},
        {"train:\n  draft:\n    from_pretrained: a\n    norm_output: no\n",
         "c.yaml:3: train.draft.from_pretrained: a and c.yaml:4: train.draft.norm_output: false "
         "exclude each other: the checkpoint's config decides"},
    };

    (void)state;
    refuse_all(faults, sizeof faults / sizeof faults[0]);
    expect_refused("train:\n  scheduler:\n    scheduler_warmup_steps: 4\n",
                   "train " V "--scheduler-warmup-ratio 0.1",
                   "c.yaml:3: train.scheduler.scheduler_warmup_steps: 4 and "
                   "--scheduler-warmup-ratio 0.1 exclude each other: both say how long the warm-up "
                   "is");
    assert_int_equal(run_with("train:\n  trainer:\n    save_path: ''\n", "train " V), 2);
    assert_string_equal(err, "accrue: c.yaml:3: train.trainer.save_path: '', a folder expected\n");
}

/* What accrue lacks is refused in a file as on the command line, and so is what has no meaning. */
/* In the peer's section and by its name; accrue's own beside it. */
static void test_ranks(void **state)
{
    (void)state;
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    assert_int_equal(run_with("train:\n  trainer:\n    fsdp_shard: true\n    ranks: 4\n"
                              "    defer_reduce: true\n    reproducible: true\n"
                              "    global_window: 8\n    comm_timeout: 30\n",
                              "train --dry-run " V),
                     0);
    assert_string_equal(err, "");
    expect_option("ranks=4");
    expect_option("shard=1");
    expect_option("defer=1");
    expect_option("reproducible=1");
    expect_option("global_window=8");
    expect_option("comm_timeout=30");
    assert_int_equal(run_with("train:\n  trainer:\n    fsdp_shard: true\n    ranks: 4\n",
                              "train --dry-run --no-fsdp-shard --ranks 2 " V),
                     0);
    expect_option("ranks=2");
    expect_option("shard=0");
    expect_refused("train:\n  trainer:\n    ranks: 2000\n", "train " V,
                   "c.yaml:3: train.trainer.ranks: 2000, a whole number of at least 1 and at most "
                   "1024 expected");
    expect_refused("train:\n  trainer:\n    global_window: 8\n",
                   "train --gradient-accumulation-steps 2 " V,
                   "--gradient-accumulation-steps 2 and c.yaml:3: train.trainer.global_window: 8 "
                   "exclude each other: both say how long the window is");
    unsetenv("FAKE_ACCRUE_OPTIONS");
}

static void test_unsupported(void **state)
{
    static const fault faults[] = {
        {"train:\n  speculator_type: dflash\n",
         "c.yaml:2: train.speculator_type: dflash is not supported yet"},
        {"train:\n  generation:\n    on_missing: generate\n",
         "c.yaml:3: train.generation.on_missing: generate is not supported yet; extract has the "
         "verifier here make the states"},
        {"train:\n  trainer:\n    gradient_checkpointing: yes\n",
         "c.yaml:3: train.trainer.gradient_checkpointing: true is not supported yet"},
        {"train:\n  draft:\n    token_freq_path: f.pt\n",
         "c.yaml:3: train.draft.token_freq_path: f.pt is not supported yet"},
    };

    (void)state;
    refuse_all(faults, sizeof faults / sizeof faults[0]);
    assert_int_equal(run_with("train:\n  speculator_type: eagle3\n  trainer: {fsdp_shard: off}\n"
                              "  dspark: {markov_rank: 256.0}\n  dflash:\n    block_size: null\n"
                              "  generation:\n    request_timeout: 1.2e+2\n",
                              "train --dry-run " V),
                     0);
    assert_string_equal(err, "");
    assert_int_equal(run_with("train:\n  dspark: {markov_rank: 64, enable_confidence_head: no}\n"
                              "  generation:\n    max_retries: 4\n    on_generate: delete\n"
                              "  mtp:\n    step_weight_beta: 0.60\n",
                              "train --dry-run " V),
                     0);
    assert_string_equal(err, "accrue: notice: c.yaml: no meaning here, ignored: "
                             "train.dspark.markov_rank, train.dspark.enable_confidence_head, "
                             "train.generation.max_retries\n");
    assert_int_equal(run_with("train:\n  deterministic_cuda: true\n  data:\n    num_workers: 12\n",
                              "train --dry-run --prefetch-factor 2 " V),
                     0);
    assert_string_equal(err, "accrue: notice: no meaning here, ignored: --prefetch-factor\n"
                             "accrue: notice: c.yaml: no meaning here, ignored: "
                             "train.deterministic_cuda, train.data.num_workers\n");
}

/* YAML 1.1 as PyYAML and then pydantic read it; what they take for a string and refuse, 1e-3, is a
 * number here. */
static void test_yaml_values(void **state)
{
    static const char text[] = "%YAML 1.1\n"
                               "---\n"
                               "train: # a comment\n"
                               "  seed: 0\n"
                               "  threads: ~\n"
                               "  optimizer: {lr: 1e-3, muon_lr: .5, weight_decay: 1}\n"
                               "  data:\n"
                               "    total_seq_len: 8_192\n"
                               "    data_path: >-\n"
                               "      a folded\n"
                               "      path\n"
                               "  draft:\n"
                               "    target_layer_ids:\n"
                               "    - 2\n"
                               "    - '15'\n"
                               "    full_attention_indices: []\n"
                               "    norm_before_residual: Off\n"
                               "    norm_before_fc: 'NO'\n"
                               "    fc_norm: on\n"
                               "    embed_requires_grad: 1\n"
                               "  trainer:\n"
                               "    epochs: 1e1\n"
                               "    max_steps: 9.0\n"
                               "    gradient_accumulation_steps: \"4\"\n"
                               "  scheduler:\n"
                               "    scheduler_warmup_steps: null\n"
                               "  loss:\n";

    (void)state;
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    assert_int_equal(run_with(text, "train --dry-run " V), 0);
    assert_string_equal(err, "");
    expect_option("seed=0");
    expect_option("threads=0");
    expect_option("lr=0.001");
    expect_option("muon_lr=0.5");
    expect_option("layers=2,15,");
    expect_option("full=");
    expect_option("norm_before_residual=0");
    expect_option("norm_before_fc=0");
    expect_option("fc_norm=1");
    expect_option("embed=1");
    expect_option("epochs=10");
    expect_option("max_steps=9");
    expect_option("n=4");
    expect_option("warmup=-1");
    assert_int_equal(run_with(text, "train --dump-config " V), 0);
    expect_text(out, "    total_seq_len: 8192\n");
    expect_text(out, "    data_path: 'a folded path'\n");
    unsetenv("FAKE_ACCRUE_OPTIONS");
}

/* The file ------------------------------------------------------------------------------ */

static void test_yaml_refused(void **state)
{
    static const fault faults[] = {
        {"train:\n  seed: 1\n  optimizer:\n    lr: 1\n    weight_decay: 0\n    lr: 2\n",
         "c.yaml:6: lr: a second time, after line 4"},
        {"train:\n  seed: 1\ntrain:\n  seed: 2\n", "c.yaml:3: train: a second time, after line 1"},
        {"train: &t\n  seed: 1\n", "c.yaml:1: &t: anchors are not supported"},
        {"train:\n  optimizer:\n    lr: &x 1\n", "c.yaml:3: &x: anchors are not supported"},
        {"train: {draft: {target_layer_ids: &l [1]}}\n", "c.yaml:1: &l: anchors are not supported"},
        {"train:\n  seed: *x\n", "c.yaml:2: *x: aliases are not supported"},
        {"train:\n  <<: {seed: 1}\n", "c.yaml:2: <<: merge keys are not supported"},
        {"train:\n  seed: !!int 1\n",
         "c.yaml:2: the tag tag:yaml.org,2002:int: tags are not supported"},
        {"train:\n  ? [a]\n  : 1\n", "c.yaml:2: a key must be a word"},
        {"train:\n  seed: 1\n---\ntrain:\n", "c.yaml:3: a second document, one expected"},
        {"train:\n  optimizer: {lr: 1\n", "c.yaml:3: not valid YAML: did not find expected ',' or "
                                          "'}'"},
        {"train:\n\tseed: 1\n", "c.yaml:2: not valid YAML: found character that cannot start any "
                                "token"},
        {"train:\n  seed: \"a\n", "c.yaml:3: not valid YAML: found unexpected end of stream"},
        {"train:\n  seed: \"\\0\"\n", "c.yaml:2: a value with a NUL character"},
        {"train:\n  seed: 1\n  data:\n    data_path: \xff\n",
         "c.yaml:4: not valid YAML: invalid leading UTF-8 octet"},
        {"a: {b: {c: {d: {e: {f: {g: {h: {i: {j: {k: {l: {m: {n: {o: {p: {q: 1}}}}}}}}}}}}}}}}}\n",
         "c.yaml:1: more than 16 levels"},
        {"- train\n", "c.yaml:1: a mapping with the key train expected"},
        {"train\n", "c.yaml:1: a mapping with the key train expected"},
        {"train: 3\n", "c.yaml:1: train: a mapping expected"},
    };

    (void)state;
    refuse_all(faults, sizeof faults / sizeof faults[0]);
    assert_int_equal(run_with("train:\n  trainer:\n    resume_from: ''\n", "train " V), 2);
    assert_string_equal(err,
                        "accrue: c.yaml:3: train.trainer.resume_from: '', a folder expected\n");
    assert_int_equal(run("train --config missing.yaml"), 2);
    assert_string_equal(err, "accrue: --config missing.yaml: No such file or directory\n");
    assert_int_equal(run("train --config ."), 2);
    assert_string_equal(err, "accrue: --config .: Is a directory\n");
}

static void write_repeated(const char *head, const char *text, int n)
{
    FILE *f = fopen("large.yaml", "w");

    assert_non_null(f);
    fputs(head, f);
    for (int i = 0; i < n; i++)
        fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_large_files(void **state)
{
    (void)state;
    write_repeated("train:\n", "# a long comment\n", 70000);
    assert_int_equal(run("train " V "--config large.yaml"), 2);
    assert_string_equal(err, "accrue: large.yaml: more than 1048576 bytes\n");
    write_repeated("other:\n", "- 1\n", 10000);
    assert_int_equal(run("train " V "--config large.yaml"), 2);
    assert_string_equal(err, "accrue: large.yaml:10000: more than 10000 values\n");
    write_repeated("train:\n", "# a long comment\n", 60000);
    assert_int_equal(run("train --dry-run " V "--config large.yaml"), 0);
}

static void test_stages(void **state)
{
    (void)state;
    assert_int_equal(run_with("prepare_data:\n  model: {a: [1, 2]}\ntrain:\n  seed: 3\n"
                              "launch_vllm: x\ngenerate: {}\nprepare: 1\neval: 2\ngpt: 3\n"
                              "serve: 1\nconvert: 1\n",
                              "train --dump-config " V),
                     0);
    expect_text(out, "  seed: 3\n");
    assert_string_equal(err, "accrue: notice: c.yaml: only the stage train is read, passed over: "
                             "prepare_data, launch_vllm, generate, prepare, eval, gpt, serve, "
                             "convert\n");
    assert_int_equal(run_with("seed: 3\ntrainer:\n  epochs: 7\n", "train --dump-config " V), 0);
    expect_text(out, "  seed: 3\n");
    expect_text(out, "    epochs: 7\n");
    assert_string_equal(err, "");
    static const char *const empty[] = {
        "", "# nothing\n", "---\n", "train:\n", "train: {}\n", "train:\n  loss:\n", "{}\n"};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
        assert_int_equal(run_with(empty[i], "train --dump-config " V), 0);
        expect_text(out, "  seed: 42\n");
        assert_string_equal(err, "");
    }
}

static void test_precedence(void **state)
{
    static const char text[] =
        "train:\n  seed: 3\n  verifier:\n    verifier_name_or_path: from-file\n"
        "  draft:\n    target_layer_ids: [1, 2, 3]\n    norm_before_residual: false\n"
        "    norm_output: true\n  generation:\n    on_missing: generate\n"
        "  trainer:\n    epochs: 0\n    no_resume_from_checkpoint: true\n"
        "  logging:\n    logger: wandb\n";

    (void)state;
    /* An overridden value needs no meaning, so that the command line can repair a file. */
    assert_int_equal(run_with(text, "train --on-missing skip --epochs 2 --logger '' "
                                    "--target-layer-ids 9 --norm-before-residual --no-norm-output "
                                    "--no-no-resume-from-checkpoint --dump-config"),
                     0);
    assert_string_equal(err, "");
    expect_text(out, "  seed: 3\n");
    expect_text(out, "    verifier_name_or_path: from-file\n");
    expect_text(out, "    target_layer_ids: [9]\n");
    expect_text(out, "    norm_before_residual: true\n");
    expect_text(out, "    norm_output: false\n");
    expect_text(out, "    on_missing: skip\n");
    expect_text(out, "    epochs: 2\n");
    expect_text(out, "    no_resume_from_checkpoint: false\n");
    /* The last of two files is the one. */
    assert_int_equal(run("train --config missing.yaml --config c.yaml --on-missing skip --epochs 2 "
                         "--logger '' --dump-config"),
                     0);
}

/* Verify proves in float64 what is trained in another dtype. */
static void test_verify(void **state)
{
    (void)state;
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    assert_int_equal(run_with("train:\n  data: {hidden_states_dtype: bfloat16}\n"
                              "  trainer: {gradient_accumulation_steps: 4}\n",
                              "verify " V),
                     0);
    expect_option("compute=2");
    expect_option("n=4");
    assert_int_equal(run_with("train:\n  data: {hidden_states_dtype: bfloat16}\n",
                              "verify --hidden-states-dtype float32 " V),
                     0);
    expect_option("compute=1");
    unsetenv("FAKE_ACCRUE_OPTIONS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a22_misspelt_flag),   cmocka_unit_test(a22_misspelt_keys),
        cmocka_unit_test(a22_wrong_section),   cmocka_unit_test(a22_written_as_flags),
        cmocka_unit_test(test_values_refused), cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_unsupported),    cmocka_unit_test(test_yaml_values),
        cmocka_unit_test(test_yaml_refused),   cmocka_unit_test(test_large_files),
        cmocka_unit_test(test_stages),         cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_verify),
    };

    return cmocka_run_group_tests_name("cli_config", tests, NULL, NULL);
}
