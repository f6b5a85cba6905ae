/* test_run_yaml.c - --dump-config and run.yaml, and that --config reads both back. */
#include "cli_test.h"

#include <errno.h>
#include <sys/stat.h>

#define V "--verifier-name-or-path v "

static void expect_same_dump(const char *file)
{
    char first[OUTPUT_BYTES], command[300];

    snprintf(command, sizeof command, "train --config %s --dump-config", file);
    assert_int_equal(run(command), 0);
    memcpy(first, out, sizeof first);
    write_text("again.yaml", out);
    assert_int_equal(run("train --config again.yaml --dump-config"), 0);
    assert_string_equal(out, first);
}

/* The file that speculators 0.9.0 dumped for an EAGLE-3 run, and one that it left beside one. */
static void test_files_of_the_peer(void **state)
{
    (void)state;
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    assert_int_equal(run("train --dry-run --config " ACR_TEST_DATA "/configs/peer_dump.yaml"), 0);
    expect_text(err, "train.data.num_workers");
    expect_option("verifier=models/llama-3.1-8b-instruct");
    expect_option("seed=7");
    expect_option("layers=2,16,29,");
    expect_option("full=0,");
    expect_option("loss={\"ce\": 0.1, \"tv\": 0.9}");
    expect_option("lr=3.0000000000000001e-05");
    expect_option("optimizer=1");
    expect_option("scheduler=2");
    expect_option("ratio=0.040000000000000001");
    expect_option("norm_before_residual=0");
    expect_option("norm_before_fc=1");
    expect_option("max_steps=2000");
    expect_option("no_resume=1");
    expect_same_dump(ACR_TEST_DATA "/configs/peer_dump.yaml");
    expect_text(out, "    hidden_states_path: output/hidden_states\n");
    expect_text(out, "    checkpoint_freq: 0.5\n");
    assert_int_equal(run("train --dry-run --config " ACR_TEST_DATA "/configs/peer_run.yaml"), 0);
    expect_option("from=golden/init");
    expect_option("lr=0.00029999999999999997");
    expect_option("compute=1");
    expect_option("warmup=4");
    expect_same_dump(ACR_TEST_DATA "/configs/peer_run.yaml");
    unsetenv("FAKE_ACCRUE_OPTIONS");
}

/* Every key of the peer, in its section, with its default: known, and no other configuration than
 * that of nothing said. */
static void test_every_key_of_the_peer(void **state)
{
    char dumped[OUTPUT_BYTES], keys[OUTPUT_BYTES], null[200];
    int n = 0;

    (void)state;
    assert_int_equal(run("train --dump-config --config " ACR_TEST_DATA "/configs/peer_keys.yaml"),
                     0);
    memcpy(dumped, out, sizeof dumped);
    assert_int_equal(run("train --dump-config " V), 0);
    assert_string_equal(dumped, out);
    /* The peer takes null for those alone that are null with it. */
    read_file(keys, ACR_TEST_DATA "/configs/peer_keys.yaml");
    for (char *line = strtok(keys, "\n"); line; line = strtok(NULL, "\n")) {
        char *value = strstr(line, ": ");
        if (!value || strcmp(value, ": null") == 0)
            continue;
        *value = '\0';
        snprintf(null, sizeof null, "\n%s: null", line);
        if (strstr(dumped, null))
            fail_msg("%s is null", line);
        n++;
    }
    assert_in_range(n, 60, 100);
}

/* Every flag that trains, away from its default: what arrives from a dump is what arrived from the
 * command line. */
static void test_every_flag(void **state)
{
    static const char every[] =
        "train --speculator-type eagle3 --dry-run --seed 18446744073709551615 --threads 3 "
        "--verifier-name-or-path v --num-layers 2 --draft-arch qwen3 --draft-hidden-act gelu "
        "--target-layer-ids 1 5 9 --draft-vocab-size 64 --d2t-path d --t2d-path t "
        "--no-norm-before-residual --embed-requires-grad --no-norm-before-fc --fc-norm "
        "--no-norm-output --sliding-window 7 --full-attention-indices 0 1 --data-path p "
        "--hidden-states-path h --total-seq-len 77 --train-data-ratio 0.125 "
        "--hidden-states-dtype float64 --batch-plan b --dump-batch-plan u --on-missing skip "
        "--loss-fn {\"ce\":~0.1} --ttt-steps 2 --ttt-step-loss-decay 0.1 --across-documents "
        "--gradient-accumulation-steps 4 --loss-normalization token --accumulation-tail step "
        "--optimizer adamw --lr 1e-5 --weight-decay 1e22 --muon-lr 0.3 --muon-momentum 0.5 "
        "--muon-weight-decay 0 --muon-ns-steps 6 --muon-ns-dtype float32 "
        "--muon-adjust-lr-fn original --scheduler-type none --scheduler-warmup-steps 0 "
        "--scheduler-total-steps 9 --scheduler-num-cosine-cycles 1.5 --epochs 3 --max-steps 8 "
        "--checkpoint-freq 2 --save-best --log-freq 5 --save-path s --on-nonfinite skip "
        "--best-metric acceptance --keep 3 --on-save-error continue --grace 2.5 "
        "--on-bad skip --max-bad 5 --check-bytes 6 --lock-timeout 0.5 "
        "--logger csv --log-dir l --run-name n "
        "--ranks 3 --fsdp-shard --defer-reduce --reproducible --comm-timeout 7.5 "
        "--no-resume-from-checkpoint --resume-from r";
    char line[2000], direct[OUTPUT_BYTES], dumped[OUTPUT_BYTES];

    (void)state;
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    assert_int_equal(run(every), 0);
    read_file(direct, "options.txt");
    snprintf(line, sizeof line, "%s --dump-config", every);
    assert_int_equal(run(line), 0);
    memcpy(dumped, out, sizeof dumped);
    char *unset = strstr(dumped, "null");
    assert_non_null(unset); /* those that a given one excludes */
    expect_text(dumped, "scheduler_warmup_ratio: null");
    expect_text(dumped, "global_window: null");
    unset = strstr(unset + 1, "null");
    assert_non_null(unset);
    assert_null(strstr(unset + 1, "null"));
    write_text("every.yaml", dumped);
    assert_int_equal(run("train --config every.yaml"), 0);
    assert_string_equal(err, "");
    read_file(out, "options.txt");
    assert_string_equal(out, direct);
    assert_int_equal(run("train --config every.yaml --dump-config"), 0);
    assert_string_equal(out, dumped);
    unsetenv("FAKE_ACCRUE_OPTIONS");
}

/* A dump holds defaults; they are no contradiction to a flag that decides instead. */
static void test_dumped_defaults_decide_nothing(void **state)
{
    char dumped[OUTPUT_BYTES];

    (void)state;
    assert_int_equal(run("train --dump-config " V), 0);
    write_text("defaults.yaml", out);
    expect_text(out, "    from_pretrained: ''\n");
    expect_text(out, "    logger: ''\n"); /* a string to the peer */
    expect_text(out, "    sliding_window: 2048\n");
    expect_text(out, "    muon_lr: null  # --lr\n");
    assert_int_equal(run("train --config defaults.yaml --dump-config"), 0);
    read_file(dumped, "defaults.yaml");
    assert_string_equal(out, dumped);
    assert_int_equal(run("train --config defaults.yaml --from-pretrained ck --dump-config"), 0);
    assert_null(strstr(out, "sliding_window"));
    assert_null(strstr(out, "norm_output"));
    expect_text(out, "    from_pretrained: ck\n");
    assert_int_equal(run("train --config defaults.yaml --draft-config dc --dump-config"), 0);
    assert_null(strstr(out, "sliding_window"));
    expect_text(out, "    norm_output: null  # yes\n");
    assert_int_equal(run("train --dump-config"), 2);
    assert_string_equal(err, "accrue: --verifier-name-or-path is missing\n");
}

static const char *const nasty[] = {
    "a: b",
    "a #b",
    "#a",
    " a",
    "a ",
    "it's",
    "\"q\"",
    "'",
    "a\nb",
    "\n",
    "a\n",
    "tab\there",
    "null",
    "~",
    "yes",
    "No",
    "on",
    "y",
    "true",
    "1e3",
    "0x10",
    "1_0",
    ".5",
    ".inf",
    "-",
    "- a",
    "-a",
    "? a",
    "{a: 1}",
    "[1]",
    "&a",
    "*a",
    "!a",
    "%a",
    "@a",
    "`a",
    "|",
    ">",
    "a,b",
    "\\",
    "\\n",
    "a\\",
    "\x1b[31m",
    "\x7f",
    "ümläut",
    "日本",
    "😀",
    "\xc2\x85",
    "\xe2\x80\xa8",
    "\xef\xbb\xbf"
    "a",
    "---",
    "...",
    "<<",
    "=",
    "2026-12-01",
    "a: 'b' \"c\" # d\n\\e",
    "./a",
    "../a",
    "/a/b.c",
    "a//b",
    ".",
    "..",
    "C:\\x",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa aaaa"};

static void test_strings_survive(void **state)
{
    static char name[] = ACCRUE_FAKE, train[] = "train", save[] = "--save-path", folder[] = "nasty",
                steps[] = "--epochs", one[] = "1", dry[] = "--no-dry-run", expected[500],
                value[500];
    char dumped[OUTPUT_BYTES];

    (void)state;
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    for (size_t i = 0; i < sizeof nasty / sizeof nasty[0]; i++) {
        snprintf(value, sizeof value, "--verifier-name-or-path=%s", nasty[i]);
        char *argv[] = {name, train, value, save, folder, steps, one, dry, NULL};
        assert_int_equal(run_argv(argv, "cli.out"), 0);
        /* From run.yaml, as it was left, through a dump. */
        assert_int_equal(run("train --config nasty/run.yaml --dump-config"), 0);
        assert_string_equal(err, "");
        memcpy(dumped, out, sizeof dumped);
        write_text("nasty.yaml", dumped);
        assert_int_equal(run("train --config nasty.yaml --dry-run --save-path dried"), 0);
        read_file(out, "options.txt");
        snprintf(expected, sizeof expected, "verifier=%s\nseed=", nasty[i]);
        if (strncmp(out, expected, strlen(expected)) != 0)
            fail_msg("'%s' came back as %.40s from\n%.200s", nasty[i], out, dumped);
    }
    unsetenv("FAKE_ACCRUE_OPTIONS");
}

static void test_not_utf8(void **state)
{
    (void)state;
    assert_int_equal(run("train --data-path a\xff --dump-config " V), 0);
    expect_text(out, "    data_path: null  # not UTF-8: give it on the command line\n");
}

/* run.yaml --------------------------------------------------------------------------------- */

static void test_run_yaml(void **state)
{
    char text[OUTPUT_BYTES];

    (void)state;
    assert_int_equal(run_with("train:\n  optimizer:\n    lr: 3e-4\n  trainer:\n    epochs: 9\n",
                              "train " V "--save-path kept --epochs 1 --ttt-steps=2"),
                     0);
    read_file(text, "kept/run.yaml");
    expect_text(text, "\n    verifier_name_or_path: v  # command line\n");
    expect_text(text, "\n    lr: 0.0003  # c.yaml\n");
    expect_text(text, "\n    epochs: 1  # command line\n");
    expect_text(text, "\n    ttt_steps: 2  # command line\n");
    expect_text(text, "\n    weight_decay: 0.01  # default\n");
    expect_text(text, "\n    muon_lr: null  # default: --lr\n");
    expect_text(text, "\n    save_path: kept  # command line\n");
    expect_same_dump("kept/run.yaml");
    assert_int_not_equal(access("kept/.run.yaml.tmp", F_OK), 0);
    /* The next run replaces it. */
    assert_int_equal(run("train --config kept/run.yaml --epochs 2"), 0);
    read_file(text, "kept/run.yaml");
    expect_text(text, "\n    lr: 0.0003  # kept/run.yaml\n");
    expect_text(text, "\n    epochs: 2  # command line\n");
    assert_int_equal(run("train --dry-run --save-path dried " V), 0);
    read_file(text, "dried/run.yaml");
    expect_text(text, "\n  dry_run: true  # command line\n");
}

/* A run that fails at once, or prints its configuration, leaves none; one that fails later does. */
static void test_run_yaml_not_written(void **state)
{
    (void)state;
    assert_int_equal(run("train --verifier-name-or-path fail-ACCRUE_EIO --save-path none"), 2);
    assert_int_equal(run("train --dump-config --save-path none " V), 0);
    assert_int_equal(run("train --help --save-path none " V), 0);
    assert_int_not_equal(access("none", F_OK), 0);
    assert_int_equal(run("train --verifier-name-or-path stop-ACCRUE_ENUMERIC --save-path late"), 1);
    assert_int_equal(access("late/run.yaml", F_OK), 0);
}

/* A run that has nothing left to train keeps the one that it had. */
static void test_run_yaml_of_finished_run(void **state)
{
    static const struct {
        const char *at, *flags;
        bool kept;
    } cases[] = {{"2 80 0", "--epochs 2", true},
                 {"1 50 0", "--epochs 2 --max-steps 50", true},
                 {"0 40 40", "--epochs 2 --max-steps 40", false}, /* the validation is left */
                 {"1 40 0", "--epochs 2", false}};
    char command[200];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(run("train --seed 3 --epochs 2 --save-path done " V), 0);
        setenv("FAKE_ACCRUE_RESUME", cases[i].at, 1);
        snprintf(command, sizeof command, "train --seed 4 %s --save-path done " V, cases[i].flags);
        assert_int_equal(run(command), 0);
        unsetenv("FAKE_ACCRUE_RESUME");
        read_file(out, "done/run.yaml");
        expect_text(out, cases[i].kept ? "\n  seed: 3 " : "\n  seed: 4 ");
    }
}

static void test_run_yaml_cannot_be_written(void **state)
{
    (void)state;
    assert_int_equal(system("rm -rf full && mkdir -p full/run.yaml"), 0);
    assert_int_equal(run("train --logger csv,tensorboard --log-dir full/logs --save-path full " V),
                     1);
    assert_string_equal(err, "accrue: full/run.yaml: Is a directory\n");
    assert_int_not_equal(access("full/metrics.jsonl", F_OK), 0); /* not a step was made */
    assert_int_equal(rmdir("full/logs"), 0);                     /* and nothing is in it */
    /* What was there stays, too. */
    write_text("full/metrics.jsonl", "{}\n");
    assert_int_equal(run("train --save-path full " V), 1);
    assert_string_equal(err, "accrue: full/run.yaml: Is a directory\n");
    read_file(out, "full/metrics.jsonl");
    assert_string_equal(out, "{}\n");
    assert_int_not_equal(access("full/.run.yaml.tmp", F_OK), 0);
    assert_int_equal(run("train --dry-run --save-path full " V), 1);
    assert_string_equal(err, "accrue: full/run.yaml: Is a directory\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_of_the_peer),
        cmocka_unit_test(test_every_key_of_the_peer),
        cmocka_unit_test(test_every_flag),
        cmocka_unit_test(test_dumped_defaults_decide_nothing),
        cmocka_unit_test(test_strings_survive),
        cmocka_unit_test(test_not_utf8),
        cmocka_unit_test(test_run_yaml),
        cmocka_unit_test(test_run_yaml_not_written),
        cmocka_unit_test(test_run_yaml_of_finished_run),
        cmocka_unit_test(test_run_yaml_cannot_be_written),
    };

    return cmocka_run_group_tests_name("cli_run_yaml", tests, NULL, NULL);
}
