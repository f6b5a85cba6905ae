/* test_cli.c - the command as its user sees it: what it prints, writes and exits with.  It runs the
 * real command line over fake_accrue.c. */
#include "cli_test.h"

#define GENERATE_LATER                                                                             \
    "--on-missing generate is not supported yet; extract has the verifier here make the states"
#define V "train --verifier-name-or-path v "

static const struct {
    const char *command, *message;
} mistakes[] = {
    {"trian", "unknown command 'trian'; did you mean 'train'?"},
    {"inspct x", "unknown command 'inspct'; did you mean 'inspect'?"},
    {"--versoin", "unknown command '--versoin'; did you mean '--version'?"},
    {"qqqqqq", "unknown command 'qqqqqq'; see accrue help"},
    {"help man", "unknown command 'man'; see accrue help"},
    {V "--max-stpes 3", "unknown flag --max-stpes; did you mean --max-steps?"},
    {V "--max_stpes=3", "unknown flag --max_stpes; did you mean --max-steps?"},
    {V "--grad-accum 3", "unknown flag --grad-accum; did you mean --gradient-accumulation-steps?"},
    {V "--gradient-acumulation-step 3",
     "unknown flag --gradient-acumulation-step; did you mean --gradient-accumulation-steps?"},
    {V "--no-fc-nrom", "unknown flag --no-fc-nrom; did you mean --no-fc-norm?"},
    {V "--no-epochs 3", "unknown flag --no-epochs; did you mean --epochs?"},
    {V "--learning-rate 1", "unknown flag --learning-rate; did you mean --lr?"},
    {V "--qqqqqqqq", "unknown flag --qqqqqqqq; see accrue train --help"},
    {V "--json", "unknown flag --json; see accrue train --help"},
    {"inspect x --lr 1", "unknown flag --lr; see accrue inspect --help"},
    {V "stray", "unexpected argument 'stray'; see accrue train --help"},
    {V "-e 3", "unexpected argument '-e'; see accrue train --help"},
    {V "--save-best yes", "unexpected argument 'yes'; see accrue train --help"},
    {"inspect", "inspect: a folder expected; see accrue inspect --help"},
    {"check", "check: a data set expected; see accrue check --help"},
    {"check a --lr 1", "unknown flag --lr; see accrue check --help"},
    {"check a --d2t-path x", "--d2t-path x needs --t2d-path, which is not given"},
    {"train --on-missing generate", GENERATE_LATER},
    {"inspect a b", "unexpected argument 'b'; see accrue inspect --help"},
    {"train", "--verifier-name-or-path is missing"},
    {"train --verifier-name-or-path ''", "--verifier-name-or-path is missing"},
    {"verify --data-path d", "--verifier-name-or-path is missing"},
    {V "--epochs", "--epochs: a value expected"},
    {V "--epochs --lr 1", "--epochs: a value expected"},
    {V "--target-layer-ids", "--target-layer-ids: at least one value expected"},
    {V "--target-layer-ids 2 x", "--target-layer-ids: 'x', a whole number expected"},
    {V "--target-layer-ids 2,,3", "--target-layer-ids: '', a whole number expected"},
    {V "--target-layer-ids -2", "--target-layer-ids: -2, a whole number of at least 0 expected"},
    {V "--save-best=1", "--save-best: '1', no value expected; --save-best or --no-save-best"},
    {V "--gradient-accumulation-steps 0",
     "--gradient-accumulation-steps: 0, a whole number of at least 1 expected"},
    {V "--gradient-accumulation-steps -4",
     "--gradient-accumulation-steps: -4, a whole number of at least 1 expected"},
    {V "--gradient-accumulation-steps 2.5",
     "--gradient-accumulation-steps: '2.5', a whole number expected"},
    {V "--gradient-accumulation-steps 99999999999999999999",
     "--gradient-accumulation-steps: 99999999999999999999, at most 9223372036854775807 expected"},
    {V "--num-layers 3000000000", "--num-layers: 3000000000, at most 2147483647 expected"},
    {V "--ttt-steps 17", "--ttt-steps: 17, a whole number of at least 1 and at most 16 expected"},
    {V "--epochs 0", "--epochs: 0, a whole number of at least 1 expected"},
    {V "--max-steps 0", "--max-steps: 0, a whole number of at least 1 expected"},
    {V "--log-freq 0", "--log-freq: 0, a whole number of at least 1 expected"},
    {V "--threads -1", "--threads: -1, a whole number of at least 0 expected"},
    {V "--seed -1", "--seed: -1, a whole number of at least 0 expected"},
    {V "--seed 18446744073709551616",
     "--seed: 18446744073709551616, at most 18446744073709551615 expected"},
    {V "--train-data-ratio 0", "--train-data-ratio: 0, a number above 0 and at most 1 expected"},
    {V "--train-data-ratio 1.5",
     "--train-data-ratio: 1.5, a number above 0 and at most 1 expected"},
    {V "--scheduler-warmup-ratio 1.5",
     "--scheduler-warmup-ratio: 1.5, a number of at least 0 and at most 1 expected"},
    {V "--lr abc", "--lr: 'abc', a number expected"},
    {V "--lr nan", "--lr: 'nan', a number expected"},
    {V "--lr -1e-3", "--lr: -1e-3, a number of at least 0 expected"},
    {V "--weight-decay -0.1", "--weight-decay: -0.1, a number of at least 0 expected"},
    {V "--checkpoint-freq 0", "--checkpoint-freq: 0, a number above 0 expected"},
    {V "--checkpoint-freq 1.5",
     "--checkpoint-freq: 1.5, a whole number of epochs expected above 1"},
    {V "--hidden-states-dtype float16",
     "--hidden-states-dtype: 'float16', one of bfloat16, float32, float64 expected"},
    {V "--loss-normalization tokens",
     "--loss-normalization: 'tokens', one of microbatch, token expected"},
    {V "--accumulation-tail keep", "--accumulation-tail: 'keep', one of drop, step expected"},
    {V "--optimizer sgd", "--optimizer: 'sgd', one of adamw, muon expected"},
    {V "--on-missing fail", "--on-missing: 'fail', one of raise, skip, warn, extract expected"},
    {V "--on-nonfinite go", "--on-nonfinite: 'go', one of stop, skip expected"},
    {V "--draft-arch gpt", "--draft-arch: 'gpt', one of llama, qwen3 expected"},
    {V "--save-path ''", "--save-path: '', a folder expected"},
    {V "--fc-norm", "--fc-norm and --norm-before-fc (the default) exclude each other: "
                    "add --no-norm-before-fc"},
    {V "--fc-norm --norm-before-fc",
     "--fc-norm and --norm-before-fc exclude each other: one norm or the other"},
    {V "--from-pretrained ck --num-layers 2", "--from-pretrained ck and --num-layers 2 exclude "
                                              "each other: the config defines the draft's layers"},
    {V "--from-pretrained ck --no-norm-output",
     "--from-pretrained ck and --no-norm-output exclude each other: the checkpoint's config "
     "decides"},
    {V "--from-pretrained ck --draft-config dc",
     "--from-pretrained ck and --draft-config dc exclude each other: the checkpoint has a config "
     "of its own"},
    {V "--draft-config dc --full-attention-indices 0 1",
     "--draft-config dc and --full-attention-indices 0 1 exclude each other: the config defines "
     "the draft's layers"},
    {V "--d2t-path a.npy", "--d2t-path a.npy needs --t2d-path, which is not given"},
    {V "--t2d-path b.npy", "--t2d-path b.npy needs --d2t-path, which is not given"},
    {V "--scheduler-warmup-steps 3 --scheduler-warmup-ratio 0.1",
     "--scheduler-warmup-steps 3 and --scheduler-warmup-ratio 0.1 exclude each other: both say "
     "how long the warm-up is"},
    {V "--speculator-type dflash", "--speculator-type dflash is not supported yet"},
    {V "--gradient-accumulation-steps 2 --global-window 8",
     "--gradient-accumulation-steps 2 and --global-window 8 exclude each other: both say how long "
     "the window is"},
    {V "--ranks 0", "--ranks: 0, a whole number of at least 1 and at most 1024 expected"},
    {V "--comm-timeout -1", "--comm-timeout: -1, a number of at least 0 expected"},
    {V "--gradient-checkpointing", "--gradient-checkpointing is not supported yet"},
    {V "--resume-from-checkpoint",
     "unknown flag --resume-from-checkpoint; did you mean --no-resume-from-checkpoint?"},
    {"verify --verifier-name-or-path v --dump-config",
     "--dump-config: accrue train prints the configuration"},
    {V "--token-freq-path f.pt", "--token-freq-path f.pt is not supported yet"},
    {V "--hidden-states-backend mooncake", "--hidden-states-backend mooncake is not supported yet"},
    {V "--config ''", "--config: '', a file expected"},
    {"verify --config ''", "--config: '', a file expected"},
    {V "--config=", "--config: '', a file expected"},
    {V "--batch-plan ''", "--batch-plan: '', a file expected"},
    {V "--dump-batch-plan ''", "--dump-batch-plan: '', a file expected"},
    {V "--resume-from ''", "--resume-from: '', a folder expected"},
    {V "--data-path ''", "--data-path: '', a folder expected"},
    {"plot x --out ''", "--out: '', a file expected"},
};

static void test_mistakes(void **state)
{
    char expected[500];

    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        int code = run(mistakes[i].command);
        snprintf(expected, sizeof expected, "accrue: %s\n", mistakes[i].message);
        if (code != 2 || strcmp(err, expected) != 0 || out[0])
            fail_msg("%s: exit %d, stderr: %s", mistakes[i].command, code, err);
    }
}

/* What the peer takes, and its defaults of flags that accrue has no use for. */
static void test_accepted(void **state)
{
    static const char *const fine[] = {"--no-resume-from-checkpoint",
                                       "--no-fsdp-shard",
                                       "--logger ''",
                                       "--request-timeout 120.0",
                                       "--vllm-endpoint http://localhost:8000/v1",
                                       "--speculator-type eagle3",
                                       "--hidden-states-backend file",
                                       "--enable-confidence-head",
                                       "--scheduler-warmup-ratio 0",
                                       "--from-pretrained ck --draft-vocab-size 8192",
                                       "--train-data-ratio 1",
                                       "--fc-norm --no-norm-before-fc",
                                       "--batch-plan a --dump-batch-plan b",
                                       "--lr 0",
                                       "--checkpoint-freq 0.25",
                                       "--checkpoint-freq 3",
                                       "--d2t-path a --t2d-path b"};
    char command[300];

    (void)state;
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        snprintf(command, sizeof command, "train --dry-run --verifier-name-or-path v %s", fine[i]);
        int code = run(command);
        if (code || err[0])
            fail_msg("%s: exit %d, stderr: %s", command, code, err);
    }
}

static void test_ignored(void **state)
{
    (void)state;
    assert_int_equal(run("train --dry-run --verifier-name-or-path v --num-workers 0 "
                         "--prefetch-factor=2 --trust-remote-code --draft-attn-impl sdpa "
                         "--no-draft-mrope-full-head-hack --deterministic-cuda "
                         "--loss-implementation eager --num-workers 3"),
                     0);
    assert_string_equal(err, "accrue: notice: no meaning here, ignored: --num-workers, "
                             "--prefetch-factor, --trust-remote-code, --draft-attn-impl, "
                             "--draft-mrope-full-head-hack, --deterministic-cuda, "
                             "--loss-implementation\n");
    /* Of other kinds of draft: noticed where they are not the peer's defaults. */
    assert_int_equal(run("train --dry-run --verifier-name-or-path v --down-sample-ratio-min 0.1 "
                         "--down-sample-ratio 0.5 --block-size 16 --no-enable-confidence-head "
                         "--max-retries 4 --max-retries 3 --request-timeout 120.0 --markov-rank "
                         "256 --mask-token-id 3 --sliding-window-non-causal --max-anchors 9 "
                         "--vllm-endpoint http://h:1/v1 --on-generate cache"),
                     0);
    assert_string_equal(err, "accrue: notice: no meaning here, ignored: --down-sample-ratio-min, "
                             "--down-sample-ratio, --block-size, --enable-confidence-head, "
                             "--max-retries, --mask-token-id, --sliding-window-non-causal, "
                             "--max-anchors, --vllm-endpoint, --on-generate\n");
}

static void test_values_arrive(void **state)
{
    (void)state;
    setenv("FAKE_ACCRUE_OPTIONS", "options.txt", 1);
    assert_int_equal(
        run("train --dry-run --verifier_name_or_path=a~b --seed 7 --threads 3 "
            "--gradient-accumulation-steps=2 --gradient_accumulation_steps 4 "
            "--loss-normalization token --accumulation-tail step --optimizer adamw --lr 3e-4 "
            "--muon-lr 0.5 --muon-ns-dtype float64 --hidden-states-dtype float32 "
            "--scheduler-type cosine --target-layer-ids 2 15,27 --full-attention-indices 0 "
            "--no-norm-before-residual --no-norm-before-fc --fc-norm --norm-output "
            "--embed-requires-grad --across-documents --no-across-documents --draft-arch qwen3"),
        0);
    expect_option("verifier=a b");
    expect_option("seed=7");
    expect_option("threads=3");
    expect_option("n=4");
    expect_option("normalization=2");
    expect_option("tail=2");
    expect_option("optimizer=1");
    expect_option("lr=0.00029999999999999997");
    expect_option("muon_lr=0.5");
    expect_option("ns_dtype=2");
    expect_option("compute=1");
    expect_option("scheduler=2");
    expect_option("layers=2,15,27,");
    expect_option("full=0,");
    expect_option("norm_before_residual=0");
    expect_option("norm_before_fc=0");
    expect_option("fc_norm=1");
    expect_option("norm_output=1");
    expect_option("embed=1");
    expect_option("across=0");
    expect_option("arch=qwen3");
    assert_int_equal(
        run("train --dry-run --verifier-name-or-path v --on-missing warn --loss-fn "
            "{\"ce\":~0.1} --on-bad skip --max-bad 4 --check-bytes 0 --lock-timeout 0.5 "
            "--on-nonfinite skip --scheduler-warmup-steps 0 --epochs 3 "
            "--max-steps 9 --no-resume-from-checkpoint --resume-from r --save-path s "
            "--batch-plan p "
            "--dump-batch-plan d "
            "--target-layer-ids 1 --target-layer-ids 3"),
        0);
    expect_option("loss={\"ce\": 0.1}");
    expect_option("on_missing=3");
    expect_option("on_bad=2");
    expect_option("max_bad=4");
    expect_option("check_bytes=0");
    expect_option("lock_timeout=0.5");
    expect_option("nonfinite=2");
    expect_option("warmup=0");
    expect_option("epochs=3");
    expect_option("max_steps=9");
    expect_option("save_path=s");
    expect_option("plan=p");
    expect_option("dump=d");
    expect_option("layers=3,");
    expect_option("no_resume=1");
    expect_option("resume_from=r");
    assert_int_equal(run("verify --verifier-name-or-path v --epochs 3"), 0);
    expect_option("compute=2"); /* float64 is verify's default */
    unsetenv("FAKE_ACCRUE_OPTIONS");
}

static void test_exit_codes(void **state)
{
    static const struct {
        const char *name;
        int code;
    } cases[] = {{"ENOMEM", 1},    {"EINVAL", 2},  {"ESTATE", 2},   {"EIO", 2},     {"EFORMAT", 2},
                 {"EMISMATCH", 2}, {"ENOTSUP", 2}, {"ENUMERIC", 1}, {"ENOSPACE", 1}};
    char command[200], line[200];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const char *const forms[] = {
            "train --verifier-name-or-path fail-ACCRUE_%s",
            "train --dry-run --verifier-name-or-path fail-ACCRUE_%s",
            "verify --verifier-name-or-path fail-ACCRUE_%s", "inspect fail-ACCRUE_%s",
            "check fail-ACCRUE_%s"};
        for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
            char name[100];
            snprintf(name, sizeof name, "%s", cases[i].name);
            const char *hole = strstr(forms[f], "%s");
            snprintf(command, sizeof command, "%.*s%s", (int)(hole - forms[f]), forms[f], name);
            assert_int_equal(run(command), cases[i].code);
            snprintf(line, sizeof line, "accrue: fail-ACCRUE_%s: broken on purpose\n", name);
            assert_string_equal(err, line);
            assert_string_equal(out, "");
        }
    }
    assert_int_equal(system("rm -rf stopped"), 0);
    assert_int_equal(run("train --save-path stopped --verifier-name-or-path stop-ACCRUE_ENUMERIC"),
                     1);
    assert_string_equal(err, "accrue: notice: row 7: skipped on purpose\n"
                             "accrue: stop-ACCRUE_ENUMERIC: broken on purpose\n");
}

static void test_metrics(void **state)
{
    (void)state;
    assert_int_equal(run("train --verifier-name-or-path v --save-path m/deep --epochs 2 "
                         "--gradient-accumulation-steps 4 --log-freq 3 --loss-fn {\"ce\":1}"),
                     0);
    json_t *records = load_records("m/deep/metrics.jsonl");
    assert_int_equal(json_array_size(records), 9); /* steps 0, 3, ..., 18 and two validations */
    json_t *first = json_array_get(records, 0), *second = json_array_get(records, 1);
    json_t *val = json_array_get(records, 4);
    assert_int_equal(number(first, NULL, "global_step"), 0);
    assert_int_equal(number(second, NULL, "global_step"), 3);
    assert_int_equal(number(first, NULL, "epoch"), 0);
    assert_true(number(first, NULL, "grad_norm") > 1.4);
    assert_true(number(first, "lr", "Muon") > 0);
    assert_true(number(first, "lr", "AdamW") > 0);
    assert_true(number(first, "profile", "step_ms") > 0);
    assert_true(number(first, "profile", "tokens_per_s") > 0);
    static const char *const keys[] = {"loss",       "loss_0",     "loss_2",
                                       "full_acc_0", "full_acc_2", "cond_acc_1",
                                       "ce_loss_0",  "tv_loss_2",  "error_records"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        (void)number(second, "train", keys[i]);
    assert_int_equal(number(second, "train", "error_records"), 0);
    static const char *const val_keys[] = {"loss_epoch", "loss_0_epoch", "full_acc_1_epoch",
                                           "cond_acc_2_epoch", "ce_loss_1_epoch"};
    for (size_t i = 0; i < sizeof val_keys / sizeof val_keys[0]; i++)
        (void)number(val, "val", val_keys[i]);
    assert_int_equal(number(val, NULL, "epoch"), 0);
    json_decref(records);

    /* A second run does not mix with the first; AdamW alone has one learning rate. */
    assert_int_equal(run("train --verifier-name-or-path v --save-path m/deep --epochs 1 "
                         "--optimizer adamw --log-freq 40"),
                     0);
    records = load_records("m/deep/metrics.jsonl");
    assert_int_equal(json_array_size(records), 2);
    assert_true(number(json_array_get(records, 0), NULL, "lr") > 0);
    json_decref(records);
}

static void test_plain_progress(void **state)
{
    (void)state;
    assert_int_equal(system("rm -rf p"), 0);
    assert_int_equal(run("train --verifier-name-or-path v --save-path p --epochs 2 --log-freq 10"),
                     0);
    assert_non_null(strstr(out, "5,091,264 trainable of 61,234,567 parameters"));
    assert_non_null(strstr(out, "epoch 1  step 1/80  loss "));
    assert_non_null(strstr(out, "epoch 2  step 71/80  loss "));
    assert_null(strstr(out, "step 2/80"));
    assert_null(strchr(out, '\r'));
    assert_null(strchr(out, '\033'));
    assert_non_null(
        strstr(out, "epoch 1  checkpoint  p/0  (12.3 MB in 0.25 s, training waited 1.5 ms)\n"));
    assert_non_null(strstr(out, "epoch  steps  rows "));
    assert_non_null(strstr(out, "p/1, p/metrics.jsonl, p/training.svg\n"));
    assert_null(strstr(out, " \n"));
    assert_int_equal(count_lines(err), 1); /* the notice, on one line whatever it holds */
    assert_int_equal(access("p/training.svg", F_OK), 0);
}

/* On a terminal: one line, drawn over at most ten times a second, never as wide as to wrap. */
static void test_terminal_bar(void **state)
{
    static const unsigned short widths[] = {100, 60, 30};

    (void)state;
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        struct winsize size = {.ws_row = 24, .ws_col = widths[w]};
        int bars = 0, column = 0;
        assert_int_equal(
            run_on_terminal("train --verifier-name-or-path v --save-path t --epochs 1", &size), 0);
        const char *end = strstr(out, "\r\nepoch  steps");
        assert_non_null(end);
        const char *start = strstr(out, "per step\r\n") + 10;
        for (const char *s = start; s < end; s++) {
            bool bar = strncmp(s, "\r\033[Kepoch 1/1 ", 14) == 0;
            bars += bar;
            if (*s == '\r') {
                column = 0;
                continue;
            }
            if (s[0] == '\033' && s[1] == '[' && s[2] == 'K') {
                s += 2;
                continue;
            }
            column++;
            if (s[0] == '\n')
                column = 0;
            /* the plain lines may wrap, the bar never */
            if (column >= widths[w] && strncmp(s - column + 1, "epoch 1/1 ", 10) == 0)
                fail_msg("a bar of %d columns or more on %d", column, widths[w]);
        }
        assert_in_range(bars, 5, 25); /* 2 s on the run's clock, at most 10 a second */
        assert_non_null(strstr(out, "\r\033[Kepoch 1  validation")); /* cleared before a line */
        assert_null(strstr(end, "epoch 1/1 "));
    }
}

/* The largest count before "/50" in `text`; *first receives the first one. */
static int counts_of_50(const char *text, int *first)
{
    int most = 0;

    *first = -1;
    for (const char *at = strstr(text, "/50"); at; at = strstr(at + 1, "/50")) {
        const char *digits = at;
        while (digits > text && digits[-1] >= '0' && digits[-1] <= '9')
            digits--;
        int n = atoi(digits);
        *first = *first < 0 ? n : *first;
        most = n > most ? n : most;
    }
    return most;
}

/* Gone on at step 10 of 50 with N = 4: the progress counts optimizer steps, from there to 50. */
static void a24_progress_counts_optimizer_steps(void **state)
{
    static const char command[] = "train --verifier-name-or-path v --save-path a24 --epochs 5 "
                                  "--gradient-accumulation-steps 4";
    struct winsize size = {.ws_row = 24, .ws_col = 100};
    int master = -1, status = 0, first = 0;
    size_t n = 0;
    pid_t child = 0;

    (void)state;
    setenv("FAKE_ACCRUE_RESUME", "1 10 0", 1);
    assert_int_equal(run(command), 0);
    assert_int_equal(counts_of_50(out, &first), 50);
    assert_int_equal(first, 11);
    child = forkpty(&master, NULL, NULL, &size);
    if (child == 0) {
        setenv("LC_ALL", "C", 1);
        setenv("TERM", "xterm", 1);
        exec_with(command);
    }
    assert_true(child > 0);
    for (ssize_t got = 1; got > 0; n += got > 0 ? (size_t)got : 0)
        got = read(master, out + n, OUTPUT_BYTES - 1 - n);
    out[n] = '\0';
    close(master);
    unsetenv("FAKE_ACCRUE_RESUME");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_in_range(counts_of_50(out, &first), 45, 50);
    assert_in_range(first, 10, 11);
}

static void expect_interrupted(const char *flags, const char *told)
{
    char command[200], line[300];

    assert_int_equal(system("rm -rf i"), 0);
    setenv("FAKE_ACCRUE_MS", "20", 1);
    snprintf(command, sizeof command,
             "train --verifier-name-or-path v --save-path i --epochs 20 %s", flags);
    pid_t child = begin_run(command);
    wait_for_text("i/metrics.jsonl");
    kill(child, SIGINT);
    assert_int_equal(end_run(child), 130);
    unsetenv("FAKE_ACCRUE_MS");
    expect_text(err, "accrue: notice: stopped by SIGINT at optimizer step ");
    snprintf(line, sizeof line, "; saved as i/0; the same command%s goes on from there\n", told);
    expect_text(err, line);
}

/* What is told to go on with is what does go on. */
static void test_interrupt(void **state)
{
    (void)state;
    expect_interrupted("--seed 1", "");
    expect_interrupted("--no-resume-from-checkpoint", " without --no-resume-from-checkpoint");
    expect_interrupted("--resume-from i", "");
}

/* On a terminal that could show colors. */
static void test_no_color(void **state)
{
    (void)state;
    for (int color = 0; color < 2; color++) {
        struct winsize size = {.ws_row = 24, .ws_col = 100};
        int master = -1, status = 0;
        size_t n = 0;
        pid_t child = forkpty(&master, NULL, NULL, &size);
        if (child == 0) {
            setenv("LC_ALL", "C.UTF-8", 1);
            setenv("TERM", "xterm", 1);
            setenv("NO_COLOR", color ? "" : "1", 1);
            exec_with("train --verifier-name-or-path v --save-path t --epochs 1");
        }
        assert_true(child > 0);
        for (ssize_t got = 1; got > 0; n += got > 0 ? (size_t)got : 0)
            got = read(master, out + n, OUTPUT_BYTES - 1 - n);
        out[n] = '\0';
        close(master);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        expect_text(out, "\u2501\u2501");
        assert_true(!color == !strstr(out, "\033[36m"));
        assert_true(!color == !strstr(out, "\033[0m"));
        assert_true(!color == !!strstr(out, "\u2501\u2500"));
    }
}

/* Who reads the progress may leave; the training does not. */
static void test_closed_pipe(void **state)
{
    int ends[2], status = 0;

    (void)state;
    assert_int_equal(system("rm -rf piped"), 0);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        int e = open("cli.err", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        signal(SIGPIPE, SIG_DFL);
        dup2(ends[1], STDOUT_FILENO);
        dup2(e, STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        exec_with("train --verifier-name-or-path v --save-path piped --epochs 2");
    }
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    read_file(err, "cli.err");
    assert_string_equal(err, "accrue: notice: row 7: skipped on purpose\n"
                             "accrue: standard output: Broken pipe\n");
    json_t *records = load_records("piped/metrics.jsonl");
    assert_int_equal(json_array_size(records), 82);
    json_decref(records);
}

static void test_cannot_write(void **state)
{
    (void)state;
    FILE *f = fopen("file", "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(run("train --verifier-name-or-path v --save-path file/x"), 1);
    assert_string_equal(err, "accrue: file/x: Not a directory\n");
    assert_int_equal(run_to("train --help", "/dev/full"), 1);
    assert_string_equal(err, "accrue: standard output: No space left on device\n");
}

static void test_dry_run(void **state)
{
    (void)state;
    assert_int_equal(run("train --dry-run --verifier-name-or-path v --save-path dry "
                         "--gradient-accumulation-steps 3 --epochs 5"),
                     0);
    assert_non_null(strstr(out, "trainable parameters     5,091,264\n"));
    assert_non_null(strstr(out, "steps per epoch                 13  every epoch\n"));
    assert_non_null(strstr(out, "total steps                     65\n"));
    assert_non_null(strstr(out, "dropped micro-batches            5  over all epochs\n"));
    assert_non_null(strstr(out, "predicted peak memory       712 MB\n"));
    assert_non_null(strstr(out, "initialised checkpoint: out/init\n"));
    assert_int_equal(access("dry/run.yaml", F_OK), 0);
    assert_int_not_equal(access("dry/metrics.jsonl", F_OK), 0);
}

static void test_verify(void **state)
{
    (void)state;
    assert_int_equal(run("verify --verifier-name-or-path v --gradient-accumulation-steps 4"), 0);
    assert_non_null(strstr(out, "N              4, microbatch\n"));
    assert_non_null(strstr(out, "layers.0  4,095,936     1.000e-09 "));
    assert_null(strstr(out, "FAIL"));
    assert_int_equal(run("verify --verifier-name-or-path fail-ACCRUE_EVERIFY"), 1);
    assert_non_null(strstr(out, "4.000e-03  FAIL\n"));
    assert_string_equal(err, "accrue: fail-ACCRUE_EVERIFY: broken on purpose\n");
    assert_int_equal(run("verify --json --loss-normalization token --verifier-name-or-path "
                         "fail-ACCRUE_EVERIFY"),
                     1);
    json_t *report = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(report);
    assert_true(json_is_false(json_object_get(report, "pass")));
    assert_int_equal(number(report, NULL, "tokens"), 480);
    assert_string_equal(json_string_value(json_object_get(report, "loss_normalization")), "token");
    json_t *row = json_array_get(json_object_get(report, "groups"), 1);
    assert_string_equal(json_string_value(json_object_get(row, "group")), "layers.0");
    assert_true(json_is_null(json_object_get(row, "grad_max_rel"))); /* NaN */
    assert_true(number(row, NULL, "update_max_rel") > 3e-3);
    json_decref(report);
}

static void test_inspect(void **state)
{
    (void)state;
    assert_int_equal(run("inspect somewhere"), 0);
    assert_non_null(strstr(out, "tokens            16,956\n"));
    assert_non_null(strstr(out, "\ntraining state\n  epoch        1\n  global step  68\n"));
    assert_non_null(strstr(out, "  fc.weight    BF16   [576, 1728]   995,328\n"));
    assert_int_equal(run("inspect --json somewhere"), 0);
    json_t *root = json_loads(out, 0, NULL);
    assert_non_null(root);
    json_decref(root);
}

static void test_help(void **state)
{
    (void)state;
    assert_int_equal(run("help"), 0);
    assert_non_null(strstr(out, "  inspect "));
    assert_int_equal(run("--help"), 0);
    assert_int_equal(run("--version"), 0);
    assert_string_equal(out, "accrue 0.1.0\n");
    assert_int_equal(run("train --help --nonsense"), 0);
    assert_non_null(strstr(out, "--gradient-accumulation-steps=N"));
    assert_non_null(strstr(out, "--norm-before-fc, --no-norm-before-fc"));
    assert_null(strstr(out, "--json"));
    assert_int_equal(run("help verify"), 0);
    assert_non_null(strstr(out, "--json"));
    assert_non_null(strstr(out, "float64)\n"));
    assert_int_equal(run("man"), 0);
    assert_non_null(strstr(out, "\n.B \\-\\-accumulation\\-tail \\fI{drop,step}\\fP\n"));
    assert_int_equal(run(""), 2);
    assert_non_null(strstr(err, "Usage: accrue COMMAND"));
}

/* Flags in one column, texts in another, no line too long. */
static void test_help_layout(void **state)
{
    static const char *const commands[] = {"import", "generate", "prepare", "extract",
                                           "train",  "verify",   "eval",    "export",
                                           "check",  "inspect",  "plot"};
    char command[40];

    (void)state;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        bool flags = false;
        int n = 0;
        snprintf(command, sizeof command, "%s --help", commands[i]);
        assert_int_equal(run(command), 0);
        for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n")) {
            size_t indent = strspn(line, " "), len = strlen(line);
            if (len > 79 || line[len - 1] == ' ')
                fail_msg("%s: %s", command, line);
            bool flag = indent == 6 && strncmp(line + 6, "--", 2) == 0;
            flags |= flag;
            n += flag;
            if (!flags || indent <= 1) /* what stands around; a heading */
                continue;
            if (flag && len > 29 && line[28] == ' ' && line[27] == ' ')
                assert_true(line[29] != ' ');
            else if (flag)
                assert_null(strstr(line + 6, "  "));
            else if (indent != 29)
                fail_msg("%s: %s", command, line);
        }
        assert_true(n > (strcmp(commands[i], "train") == 0 ? 70 : 1));
    }
    /* No text stands under no flag. */
    assert_int_equal(run("train --help"), 0);
    expect_text(out, "\n      --best-metric={loss,acceptance}\n"
                     "                             What ");
    expect_text(out, "\n      --on-nonfinite={stop,skip}\n"
                     "                             A loss ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_ignored),
        cmocka_unit_test(test_values_arrive),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_plain_progress),
        cmocka_unit_test(test_terminal_bar),
        cmocka_unit_test(a24_progress_counts_optimizer_steps),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_closed_pipe),
        cmocka_unit_test(test_no_color),
        cmocka_unit_test(test_cannot_write),
        cmocka_unit_test(test_dry_run),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_layout),
    };

    return cmocka_run_group_tests_name("cli", tests, NULL, NULL);
}
