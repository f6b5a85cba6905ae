/* flag_table.c - the table itself: names and meaning of every flag.  Names, groups and order are
 * those of `speculators train` 0.9, so that a command line of its can be used as it is, and so are
 * the sections of the YAML configuration; accrue's own flags stand in the group that they belong
 * to.  Defaults are the library's. */
#include "flags.h"

#include <math.h>
#include <string.h>

#define AT(field) offsetof(cli_options, field)
#define RUN       (FOR_TRAIN | FOR_VERIFY)
/* What comes before and after training. */
#define WORK (FOR_IMPORT | FOR_PREPARE | FOR_GENERATE | FOR_EXTRACT | FOR_EVAL | FOR_EXPORT)
#define GROUP(title, keys)                                                                         \
    {                                                                                              \
        .kind = FLAG_GROUP, .commands = RUN | FOR_INSPECT | FOR_CHECK, .section = keys,            \
        .help = title                                                                              \
    }
#define SECTION(keys)                                                                              \
    {                                                                                              \
        .kind = FLAG_GROUP, .section = keys                                                        \
    }
#define IGNORED(flag_name, flag_type, what)                                                        \
    {                                                                                              \
        flag_name, flag_type, ROLE_IGNORED, FOR_TRAIN, .arg = "X", .help = what                    \
    }
#define LATER(flag_name, flag_type, value)                                                         \
    {                                                                                              \
        flag_name, flag_type, ROLE_LATER, 0, .peer = value                                         \
    }
/* Of other kinds of draft, or of a verifier that serves: the peer's EAGLE-3 ignores them too. */
#define FOREIGN(flag_name, flag_type, value)                                                       \
    {                                                                                              \
        flag_name, flag_type, ROLE_IGNORED, 0, .peer = value                                       \
    }
#define FROM(low) .min = low, .max = HUGE_VAL

static const flag_choice archs[] = {{"llama", 1}, {"qwen3", 2}, {NULL, 0}};
static const flag_choice dtypes[] = {
    {"bfloat16", ACCRUE_BF16}, {"float32", ACCRUE_F32}, {"float64", ACCRUE_F64}, {NULL, 0}};
static const flag_choice missing[] = {
    {"raise", ACCRUE_POLICY_RAISE},     {"skip", ACCRUE_POLICY_SKIP}, {"warn", ACCRUE_POLICY_WARN},
    {"extract", ACCRUE_POLICY_EXTRACT}, {"generate", CHOICE_LATER},   {NULL, 0}};
static const flag_choice best_metrics[] = {
    {"loss", ACCRUE_BEST_LOSS}, {"acceptance", ACCRUE_BEST_ACCEPTANCE}, {NULL, 0}};
static const flag_choice save_errors[] = {
    {"stop", ACCRUE_POLICY_RAISE}, {"continue", ACCRUE_POLICY_SKIP}, {NULL, 0}};
static const flag_choice stop_or_skip[] = {
    {"stop", ACCRUE_POLICY_RAISE}, {"skip", ACCRUE_POLICY_SKIP}, {NULL, 0}};
static const flag_choice normalizations[] = {
    {"microbatch", ACCRUE_NORMALIZE_MICROBATCH}, {"token", ACCRUE_NORMALIZE_TOKEN}, {NULL, 0}};
static const flag_choice tails[] = {
    {"drop", ACCRUE_TAIL_DROP}, {"step", ACCRUE_TAIL_STEP}, {NULL, 0}};
static const flag_choice optimizers[] = {{"adamw", ACCRUE_ADAMW}, {"muon", ACCRUE_MUON}, {NULL, 0}};
static const flag_choice adjusts[] = {{"original", ACCRUE_MUON_ORIGINAL},
                                      {"match_rms_adamw", ACCRUE_MUON_MATCH_RMS_ADAMW},
                                      {NULL, 0}};
static const flag_choice schedulers[] = {{"linear", ACCRUE_SCHEDULE_LINEAR},
                                         {"cosine", ACCRUE_SCHEDULE_COSINE},
                                         {"none", ACCRUE_SCHEDULE_NONE},
                                         {NULL, 0}};

static const flag_choice export_types[] = {{"f32", ACCRUE_EXPORT_F32},
                                           {"f16", ACCRUE_EXPORT_F16},
                                           {"bf16", ACCRUE_EXPORT_BF16},
                                           {"q8_0", ACCRUE_EXPORT_Q8_0},
                                           {NULL, 0}};
static const flag_choice import_dtypes[] = {{"auto", ACCRUE_IMPORT_AUTO},
                                            {"bfloat16", ACCRUE_IMPORT_BF16},
                                            {"float16", ACCRUE_IMPORT_F16},
                                            {"float32", ACCRUE_IMPORT_F32},
                                            {NULL, 0}};

static const flag table[] = {
    GROUP("General", ""),
    {"speculator-type", FLAG_STRING, ROLE_LATER, FOR_TRAIN, .arg = "TYPE", .peer = "eagle3",
     .help = "Kind of draft; eagle3 is the one supported"},
    {"dry-run", FLAG_BOOL, ROLE_USED, FOR_TRAIN, AT(dry_run),
     .help = "Check everything, write the initialised checkpoint, print what the run would do"},
    {"seed", FLAG_UINT64, ROLE_USED, RUN | FOR_PREPARE | FOR_GENERATE, AT(train.seed), .arg = "N",
     FROM(0), .help = "Seed of the initial weights and of the shuffle; of the answers"},
    {"threads", FLAG_INT, ROLE_USED,
     RUN | FOR_CHECK | FOR_PREPARE | FOR_GENERATE | FOR_EXTRACT | FOR_EVAL, AT(threads), .arg = "N",
     FROM(0),
     .help = "Threads of the kernels; 0 is one per core. Of a rank under mpirun or srun: no more "
             "than its share of the machine's cores, which is also what 0 is. Results do not "
             "depend on it"},
    IGNORED("deterministic-cuda", FLAG_BOOL, "Accepted; every run is deterministic"),
    SECTION(NULL),
    {"config", FLAG_STRING, ROLE_USED, RUN, AT(config), .arg = "FILE", .expects = "a file",
     .help = "Read flags from this YAML file, as `speculators train` writes it; those on the "
             "command line override it"},
    {"dump-config", FLAG_BOOL, ROLE_USED, FOR_TRAIN, AT(dump_config),
     .help = "Print the resolved configuration as such a file, and end"},
    {"json", FLAG_BOOL, ROLE_USED, FOR_VERIFY | FOR_INSPECT | FOR_CHECK | WORK, AT(json),
     .help = "Print JSON instead of a table"},
    {"help", FLAG_BOOL, ROLE_USED, RUN | FOR_INSPECT | FOR_CHECK | FOR_PLOT | WORK, AT(help),
     .help = "Print this help"},

    GROUP("Verifier", "verifier"),
    {"verifier-name-or-path", FLAG_STRING, ROLE_USED, RUN | FOR_CHECK | (WORK & ~FOR_IMPORT),
     AT(train.verifier), .arg = "DIR", .unset = "required", .also = "target-model-path",
     .help = "Folder of the verifier: config.json and safetensors"},
    IGNORED("trust-remote-code", FLAG_BOOL, "Accepted; no code is ever loaded"),

    GROUP("Draft", "draft"),
    {"from-pretrained", FLAG_STRING, ROLE_USED, RUN, AT(train.from_pretrained), .arg = "DIR",
     .peer = "", .help = "Start from this checkpoint, or from a folder with a config.json alone"},
    {"draft-config", FLAG_STRING, ROLE_USED, RUN, AT(train.draft_config), .arg = "PATH", .peer = "",
     .help = "config.json (file or folder) of the draft's decoder layers"},
    {"num-layers", FLAG_INT, ROLE_USED, RUN, AT(train.num_layers), .arg = "N", FROM(1),
     .unset = "1", .help = "Decoder layers of the draft"},
    {"draft-arch", FLAG_STRING, ROLE_USED, RUN, AT(train.draft_arch), .choices = archs,
     .unset = "llama", .help = "Architecture of the decoder layers"},
    {"draft-hidden-act", FLAG_STRING, ROLE_USED, RUN, AT(train.draft_hidden_act), .arg = "NAME",
     .peer = "silu", .help = "Activation of the decoder layers", .unset = "silu"},
    {"target-layer-ids", FLAG_INTS, ROLE_USED, RUN | FOR_CHECK | FOR_EXTRACT,
     AT(train.target_layer_ids), AT(train.n_target_layer_ids), AT(target_layer_ids), .arg = "ID...",
     FROM(0), .unset = "2, n/2 and n-3 of n layers", .help = "Verifier layers that feed the draft"},
    {"draft-vocab-size", FLAG_INT64, ROLE_USED, RUN | FOR_CHECK | FOR_PREPARE,
     AT(train.draft_vocab_size), .arg = "N", FROM(1), .unset = "the whole vocabulary",
     .help = "Most frequent supervised tokens that the draft can predict"},
    {"d2t-path", FLAG_STRING, ROLE_USED, RUN | FOR_CHECK, AT(train.d2t_path), .arg = "FILE",
     .help = "Vocabulary map from draft to verifier (.npy); needs --t2d-path"},
    {"t2d-path", FLAG_STRING, ROLE_USED, RUN | FOR_CHECK, AT(train.t2d_path), .arg = "FILE",
     .help = "Vocabulary map from verifier to draft (.npy); needs --d2t-path"},
    {"norm-before-residual", FLAG_BOOL, ROLE_USED, RUN, AT(train.norm_before_residual),
     .help = "Take the first layer's residual after its hidden norm"},
    {"embed-requires-grad", FLAG_BOOL, ROLE_USED, RUN, AT(train.embed_requires_grad),
     .help = "Train the token embedding too"},
    {"norm-before-fc", FLAG_TRISTATE, ROLE_USED, RUN, AT(train.norm_before_fc), .unset = "yes",
     .help = "One norm over the concatenated verifier states"},
    {"fc-norm", FLAG_BOOL, ROLE_USED, RUN, AT(train.fc_norm),
     .help = "One norm per verifier state; needs --no-norm-before-fc"},
    {"norm-output", FLAG_TRISTATE, ROLE_USED, RUN, AT(train.norm_output), .unset = "yes",
     .help = "Feed the normalised output to the next step"},
    {"sliding-window", FLAG_INT64, ROLE_USED, RUN, AT(train.sliding_window), .arg = "N", FROM(1),
     .help = "Keys that a row of a sliding-window layer can see"},
    {"full-attention-indices", FLAG_INTS, ROLE_USED, RUN, AT(train.full_attention_indices),
     AT(train.n_full_attention_indices), AT(full_attention_indices), .arg = "I...", FROM(0),
     .peer = "[]", .unset = "none", .help = "Draft layers with full attention instead"},
    IGNORED("draft-attn-impl", FLAG_STRING, "Accepted; there is one implementation"),
    IGNORED("draft-mrope-full-head-hack", FLAG_BOOL, "Accepted; concerns multimodal verifiers"),
    LATER("token-freq-path", FLAG_STRING, NULL),
    FOREIGN("mask-token-id", FLAG_STRING, NULL),
    FOREIGN("sliding-window-non-causal", FLAG_BOOL, "false"),

    GROUP("Data", "data"),
    {"data-path", FLAG_STRING, ROLE_USED, RUN | FOR_EXTRACT, AT(train.data_path), .arg = "DIR",
     .expects = "a folder", .help = "Data set as `speculators prepare-data` writes it"},
    SECTION("backend"),
    {"hidden-states-path", FLAG_STRING, ROLE_USED, RUN | FOR_CHECK | FOR_EXTRACT,
     AT(train.hidden_states_path), .arg = "DIR", .unset = "hidden_states in the data set",
     .help = "Folder of hs_<row>.safetensors"},
    SECTION("data"),
    {"total-seq-len", FLAG_INT64, ROLE_USED, RUN, AT(train.total_seq_len), .arg = "N", FROM(1),
     .also = "max-seq-length", .help = "Tokens of a micro-batch"},
    {"train-data-ratio", FLAG_DOUBLE, ROLE_USED, RUN, AT(train.train_data_ratio), .arg = "X",
     .min = 0, .max = 1, .above = true, .help = "Share of rows to train on; the rest validates"},
    {"hidden-states-dtype", FLAG_CHOICE, ROLE_USED, RUN | FOR_EXTRACT, AT(train.compute),
     .choices = dtypes,
     .help = "Compute dtype; masters and accumulators are float32, or float64 with float64. Files "
             "of hidden states hold bfloat16 in any case"},
    {"batch-plan", FLAG_STRING, ROLE_USED, RUN, AT(train.batch_plan), .arg = "FILE",
     .expects = "a file",
     .help = "Replay the rows that this JSON file lists per micro-batch and epoch"},
    {"dump-batch-plan", FLAG_STRING, ROLE_USED, FOR_TRAIN, AT(train.dump_batch_plan), .arg = "FILE",
     .expects = "a file", .help = "Write the run's own batch plan"},
    SECTION("generation"),
    {"on-missing", FLAG_CHOICE, ROLE_USED, RUN, AT(train.on_missing), .choices = missing,
     .help = "A row without hidden states: stop; leave it out, with a notice for each (warn) or "
             "one for all (skip); or have the verifier make them whenever they are used (extract)",
     .instead = "extract has the verifier here make the states"},
    SECTION("data"),
    {"on-bad", FLAG_CHOICE, ROLE_USED, RUN | FOR_PREPARE, AT(train.on_bad), .choices = stop_or_skip,
     .help =
         "A row that is wrong in itself or in its hidden states: stop, or leave it out and list "
         "it in skipped_samples.jsonl, of prepare in skipped_lines.jsonl"},
    {"max-bad", FLAG_INT64, ROLE_USED, RUN | FOR_PREPARE, AT(train.max_bad), .arg = "K", FROM(0),
     .unset = "1% of the rows bad, any number missing",
     .help = "Stop when more rows than that are left out, as bad or as missing"},
    {"check-bytes", FLAG_INT64, ROLE_USED, RUN, AT(train.check_bytes), .arg = "BYTES", FROM(0),
     .help = "Check all hidden states before the first step where they are no more than that, each "
             "row when it is first loaded otherwise"},
    {"lock-timeout", FLAG_DOUBLE, ROLE_USED, RUN | FOR_CHECK, AT(train.lock_timeout), .arg = "X",
     FROM(0), .help = "Seconds to wait for hidden states that a writer has locked"},
    IGNORED("num-workers", FLAG_STRING, "Accepted; the next micro-batch is always read ahead"),
    IGNORED("prefetch-factor", FLAG_STRING, "Accepted; see --num-workers"),
    LATER("hidden-states-backend", FLAG_STRING, "file"),
    FOREIGN("max-anchors", FLAG_STRING, "512"),
    SECTION("generation"),
    FOREIGN("vllm-endpoint", FLAG_STRING, "http://localhost:8000/v1"),
    FOREIGN("on-generate", FLAG_STRING, "delete"),
    FOREIGN("request-timeout", FLAG_STRING, "120"),
    FOREIGN("max-retries", FLAG_STRING, "3"),
    FOREIGN("generation-validation-retries", FLAG_STRING, "2"),
    FOREIGN("max-consecutive-generation-failures", FLAG_STRING, "20"),

    GROUP("Loss", "loss"),
    {"loss-fn", FLAG_STRING, ROLE_USED, RUN, AT(train.loss_fn), .arg = "LOSS", .unset = "kl_div",
     .help = "kl_div, rkl, jsd, ce, tv, nla, lk_hybrid, or weights as JSON: "
             "{\"ce\": 0.1, \"tv\": 0.9}"},
    {"ttt-steps", FLAG_INT, ROLE_USED, RUN, AT(train.ttt_steps), .arg = "N", .min = 1,
     .max = ACCRUE_MAX_TTT_STEPS, .help = "Steps of the training-time-test unroll"},
    {"ttt-step-loss-decay", FLAG_DOUBLE, ROLE_USED, RUN, AT(train.ttt_step_loss_decay), .arg = "X",
     FROM(0), .help = "Factor on the loss from one step to the next"},
    {"across-documents", FLAG_BOOL, ROLE_USED, RUN, AT(train.across_documents),
     .help = "Let the shifts of the unroll read across document borders, as speculators does"},
    IGNORED("loss-implementation", FLAG_STRING, "Accepted; there is one implementation"),

    GROUP("Gradient accumulation", "trainer"),
    {"gradient-accumulation-steps", FLAG_INT64, ROLE_USED, RUN,
     AT(train.window.gradient_accumulation_steps), .arg = "N", FROM(1),
     .help = "Micro-batches per optimizer step, of each rank"},
    {"loss-normalization", FLAG_CHOICE, ROLE_USED, RUN, AT(train.window.loss_normalization),
     .choices = normalizations,
     .help = "Mean of the micro-batches' means, or one denominator per term as in one batch"},
    {"accumulation-tail", FLAG_CHOICE, ROLE_USED, FOR_TRAIN, AT(train.accumulation_tail),
     .choices = tails,
     .help = "Micro-batches that do not fill a window: dropped, or a short window"},

    GROUP("Ranks", "trainer"),
    {"ranks", FLAG_INT, ROLE_USED, RUN, AT(train.ranks), .arg = "R", .min = 1, .max = 1024,
     .unset = "1, or those of mpirun or srun",
     .help = "Ranks as threads of this process, with --threads / R kernel threads each; under "
             "mpirun or srun, if given, their number"},
    {"fsdp-shard", FLAG_BOOL, ROLE_USED, RUN, AT(train.fsdp_shard),
     .help = "Split masters, moments and gradients over the ranks instead of keeping copies"},
    {"defer-reduce", FLAG_BOOL, ROLE_USED, FOR_TRAIN, AT(train.defer_reduce),
     .help = "With --fsdp-shard, keep whole gradients up to the end of the window: less traffic, "
             "more memory"},
    {"reproducible", FLAG_BOOL, ROLE_USED, RUN, AT(train.reproducible),
     .help = "Sum gradients exactly: the same bits however a window is split over ranks"},
    {"global-window", FLAG_INT64, ROLE_USED, FOR_TRAIN, AT(train.global_window), .arg = "W",
     FROM(1), .unset = "N x ranks",
     .help = "Micro-batches per optimizer step of all ranks together; instead of "
             "--gradient-accumulation-steps"},
    {"comm-timeout", FLAG_DOUBLE, ROLE_USED, FOR_TRAIN, AT(train.comm_timeout), .arg = "SECONDS",
     FROM(0), .help = "How long a rank may keep the others waiting; 0 is for ever"},

    GROUP("Optimizer", "optimizer"),
    {"optimizer", FLAG_CHOICE, ROLE_USED, RUN, AT(train.window.optimizer), .choices = optimizers,
     .help = "muon takes the matrices and leaves the rest to AdamW"},
    {"lr", FLAG_DOUBLE, ROLE_USED, RUN, AT(train.window.lr), .arg = "X", FROM(0),
     .also = "learning-rate", .help = "Learning rate (of AdamW)"},
    {"weight-decay", FLAG_DOUBLE, ROLE_USED, RUN, AT(train.window.weight_decay), .arg = "X",
     FROM(0), .help = "Weight decay of AdamW"},
    {"muon-lr", FLAG_DOUBLE, ROLE_USED, RUN, AT(train.window.muon_lr), .arg = "X", FROM(0),
     .unset = "--lr", .help = "Learning rate of Muon"},
    {"muon-momentum", FLAG_DOUBLE, ROLE_USED, RUN, AT(train.window.muon_momentum), .arg = "X",
     .min = 0, .max = 1, .help = "Momentum of Muon"},
    {"muon-weight-decay", FLAG_DOUBLE, ROLE_USED, RUN, AT(train.window.muon_weight_decay),
     .arg = "X", FROM(0), .help = "Weight decay of Muon"},
    {"muon-ns-steps", FLAG_INT, ROLE_USED, RUN, AT(train.window.muon_ns_steps), .arg = "N",
     .min = 1, .max = 99, .help = "Newton-Schulz steps"},
    {"muon-ns-dtype", FLAG_CHOICE, ROLE_USED, RUN, AT(train.window.muon_ns_dtype),
     .choices = dtypes, .unset = "--hidden-states-dtype",
     .help = "Dtype of the Newton-Schulz products"},
    {"muon-adjust-lr-fn", FLAG_CHOICE, ROLE_USED, RUN, AT(train.window.muon_adjust),
     .choices = adjusts, .help = "How Muon's learning rate follows a matrix's shape"},

    GROUP("Scheduler, in optimizer steps", "scheduler"),
    {"scheduler-type", FLAG_CHOICE, ROLE_USED, FOR_TRAIN, AT(train.window.scheduler),
     .choices = schedulers, .help = "Shape of the schedule after the warm-up"},
    {"scheduler-warmup-steps", FLAG_INT64, ROLE_USED, FOR_TRAIN, AT(train.scheduler_warmup_steps),
     .arg = "N", FROM(0), .unset = "1% of the total", .help = "Steps of warm-up"},
    {"scheduler-warmup-ratio", FLAG_DOUBLE, ROLE_USED, FOR_TRAIN, AT(train.scheduler_warmup_ratio),
     .arg = "X", .min = 0, .max = 1, .unset = "none",
     .help = "Warm-up as a share of the total; excludes --scheduler-warmup-steps"},
    {"scheduler-total-steps", FLAG_INT64, ROLE_USED, FOR_TRAIN, AT(train.scheduler_total_steps),
     .arg = "N", FROM(1), .unset = "--max-steps, else the run's", .help = "Where it ends"},
    {"scheduler-num-cosine-cycles", FLAG_DOUBLE, ROLE_USED, FOR_TRAIN,
     AT(train.window.num_cosine_cycles), .arg = "X", FROM(0), .help = "Waves of cosine"},

    GROUP("Trainer", "trainer"),
    {"epochs", FLAG_INT64, ROLE_USED, FOR_TRAIN, AT(train.epochs), .arg = "N", FROM(1),
     .also = "num-train-epochs", .help = "Passes over the training rows"},
    {"max-steps", FLAG_INT64, ROLE_USED, FOR_TRAIN, AT(train.max_steps), .arg = "N", FROM(1),
     .unset = "no limit", .help = "Stop after this many optimizer steps"},
    {"checkpoint-freq", FLAG_DOUBLE, ROLE_USED, FOR_TRAIN, AT(train.checkpoint_freq), .arg = "X",
     .min = 0, .max = HUGE_VAL, .above = true,
     .help = "Epochs between checkpoints; below 1, that share of an epoch's optimizer steps"},
    {"save-best", FLAG_BOOL, ROLE_USED, FOR_TRAIN, AT(train.save_best),
     .help = "Keep the best checkpoint alone"},
    {"best-metric", FLAG_CHOICE, ROLE_USED, FOR_TRAIN, AT(train.best_metric),
     .choices = best_metrics,
     .help = "What makes it the best: the least validation loss, or the greatest expected "
             "acceptance length, from the conditional accuracies"},
    {"keep", FLAG_INT64, ROLE_USED, FOR_TRAIN, AT(train.keep), .arg = "N", FROM(1), .unset = "all",
     .help = "Keep the newest N checkpoints, and the best"},
    {"on-save-error", FLAG_CHOICE, ROLE_USED, FOR_TRAIN, AT(train.on_save_error),
     .choices = save_errors,
     .help = "A checkpoint or a log that cannot be written: stop, or say so and train on"},
    {"grace", FLAG_DOUBLE, ROLE_USED, FOR_TRAIN, AT(grace), .arg = "SECONDS", FROM(0),
     .help = "After SIGTERM or SIGINT, how long the window may take to end before it is given up; "
             "then the run is saved"},
    {"log-freq", FLAG_INT64, ROLE_USED, FOR_TRAIN, AT(log_freq), .arg = "N", FROM(1),
     .help = "Optimizer steps between two records of the logs and two lines of progress"},
    {"save-path", FLAG_STRING, ROLE_USED, FOR_TRAIN, AT(train.save_path), .arg = "DIR",
     .expects = "a folder", .also = "output-dir",
     .help = "Where checkpoints, metrics.jsonl, run.yaml and training.svg go"},
    {"on-nonfinite", FLAG_CHOICE, ROLE_USED, FOR_TRAIN, AT(train.on_nonfinite),
     .choices = stop_or_skip,
     .help = "A loss or gradient that is NaN or infinite: stop, or count it and go on"},
    {"no-resume-from-checkpoint", FLAG_BOOL, ROLE_USED, FOR_TRAIN, AT(train.no_resume),
     .help = "Begin anew, over the checkpoints in --save-path; otherwise training goes on from the "
             "newest valid one"},
    {"resume-from", FLAG_STRING, ROLE_USED, FOR_TRAIN, AT(train.resume_from), .arg = "DIR",
     .expects = "a folder", .unset = "newest valid one in --save-path",
     .help = "Go on from this checkpoint; of a speculators one, begin with its weights"},
    LATER("gradient-checkpointing", FLAG_BOOL, "false"),

    GROUP("Logging", "logging"),
    {"logger", FLAG_STRING, ROLE_USED, FOR_TRAIN, AT(logger), .arg = "NAME,...", .peer = "",
     .unset = "none",
     .help = "tensorboard, csv, jsonl: logs beside metrics.jsonl, in --log-dir/<run's name>"},
    {"log-dir", FLAG_STRING, ROLE_USED, FOR_TRAIN, AT(log_dir), .arg = "DIR", .expects = "a folder",
     .help = "Where the loggers' folders go"},
    {"run-name", FLAG_STRING, ROLE_USED, FOR_TRAIN, AT(run_name), .arg = "NAME", .unset = "{time}",
     .help =
         "Folder of this run's logs; {time}, {utc_time}, {rank} and {local_rank} are filled "
         "in. A run that goes on under the same name goes on in its logs; a name with a time that "
         "is taken gets a number"},

    GROUP("Import", NULL),
    {"out", FLAG_STRING, ROLE_USED, FOR_IMPORT, AT(out), .arg = "DIR", .expects = "a folder",
     .unset = "required", .help = "Folder to write, which must not be there yet"},
    {"dtype", FLAG_CHOICE, ROLE_USED, FOR_IMPORT, AT(import_dtype), .choices = import_dtypes,
     .help = "Type of the weights written; auto keeps what the file has, and makes quantised ones "
             "bfloat16"},
    GROUP("Generate", NULL),
    {"output", FLAG_STRING, ROLE_USED, FOR_GENERATE, AT(generate.output), .arg = "FILE",
     .expects = "a file", .also = "outfile", .unset = "required", .help = "JSON Lines to write"},
    {"max-new-tokens", FLAG_INT64, ROLE_USED, FOR_GENERATE, AT(generate.max_new_tokens), .arg = "N",
     .min = 1, .max = 1 << 24, .also = "max-tokens", .help = "Tokens of an answer at most"},
    {"temperature", FLAG_DOUBLE, ROLE_USED, FOR_GENERATE, AT(generate.temperature), .arg = "X",
     FROM(0), .unset = "the verifier's generation_config.json, else 1",
     .help = "Of the sampling; 0 takes the likeliest token"},
    {"top-p", FLAG_DOUBLE, ROLE_USED, FOR_GENERATE, AT(generate.top_p), .arg = "X", .min = 0,
     .max = 1, .above = true, .unset = "the verifier's generation_config.json, else 1",
     .help = "Sample from the fewest tokens that together have this probability"},
    {"batch-size", FLAG_INT, ROLE_USED, FOR_GENERATE, AT(generate.batch_size), .arg = "N", .min = 1,
     .max = 1024, .also = "concurrency",
     .help = "Conversations answered at a time; answers do not depend on it"},
    {"dtype", FLAG_CHOICE, ROLE_USED, FOR_GENERATE, AT(generate.compute), .choices = dtypes,
     .help = "Compute dtype"},
    {"limit", FLAG_INT64, ROLE_USED, FOR_GENERATE, AT(generate.limit), .arg = "N", FROM(1),
     .unset = "all", .help = "Rows at most, the first ones"},

    GROUP("Prepare", NULL),
    {"output", FLAG_STRING, ROLE_USED, FOR_PREPARE, AT(prepare.output), .arg = "DIR",
     .expects = "a folder", .help = "Folder of the data set"},
    {"seq-length", FLAG_INT64, ROLE_USED, FOR_PREPARE, AT(prepare.seq_length), .arg = "N", .min = 1,
     .max = 1 << 30, .help = "Tokens of a row at most; what is longer is cut"},
    {"max-samples", FLAG_INT64, ROLE_USED, FOR_PREPARE, AT(prepare.max_samples), .arg = "N",
     FROM(1), .unset = "all", .help = "Rows at most, the first in their order"},
    {"minimum-valid-tokens", FLAG_INT64, ROLE_USED, FOR_PREPARE, AT(prepare.minimum_valid_tokens),
     .arg = "N", FROM(0), .help = "Leave out rows with fewer supervised tokens"},
    {"skip-token-freq", FLAG_BOOL, ROLE_USED, FOR_PREPARE, AT(prepare.skip_token_freq),
     .help = "Write no token_freq.pt, from which speculators makes vocabulary maps of any size"},
    {"overwrite", FLAG_BOOL, ROLE_USED, FOR_PREPARE, AT(prepare.overwrite),
     .help = "Replace a data set that is there, where its folder holds nothing else"},
    {"allow-empty-output", FLAG_BOOL, ROLE_USED, FOR_PREPARE, AT(prepare.allow_empty_output),
     .help = "Write a data set without any row too"},

    GROUP("Evaluation", NULL),
    {"prompts", FLAG_STRING, ROLE_USED, FOR_EVAL, AT(eval.prompts), .arg = "PATH",
     .expects = "a path", .unset = "required",
     .help = "What to answer: a JSON array of strings, JSONL conversations, or a data set, whose "
             "rows are prompts up to their first supervised token"},
    {"num-speculative-tokens", FLAG_INT, ROLE_USED, FOR_EVAL, AT(eval.num_speculative_tokens),
     .arg = "K", .min = 1, .max = ACCRUE_MAX_TTT_STEPS, .help = "Tokens to draft a round"},
    {"max-new-tokens", FLAG_INT64, ROLE_USED, FOR_EVAL, AT(eval.max_new_tokens), .arg = "N",
     FROM(1), .help = "Tokens of an answer at most"},
    {"limit", FLAG_INT64, ROLE_USED, FOR_EVAL, AT(eval.limit), .arg = "N", FROM(1), .unset = "all",
     .help = "Answer the first N prompts alone"},
    {"dtype", FLAG_CHOICE, ROLE_USED, FOR_EVAL, AT(eval.compute), .choices = dtypes,
     .help = "Compute dtype of both models"},

    GROUP("Plot", NULL),
    {"out", FLAG_STRING, ROLE_USED, FOR_PLOT | FOR_EVAL, AT(out), .arg = "FILE",
     .expects = "a file", .unset = "plot.svg and plot.png; of eval none",
     .help = "Picture to write; its name ends in .svg or .png"},
    {"smooth", FLAG_INT64, ROLE_USED, FOR_PLOT, AT(smooth), .arg = "N", FROM(1),
     .unset = "a sixtieth of the run",
     .help = "Steps that a moving average takes in; 1 draws every step"},
    {"title", FLAG_STRING, ROLE_USED, FOR_PLOT | FOR_EVAL, AT(title), .arg = "TEXT",
     .help = "Heading of the picture"},

    GROUP("Export", NULL),
    {"out", FLAG_STRING, ROLE_USED, FOR_EXPORT, AT(out), .arg = "FILE", .expects = "a file",
     .unset = "required", .help = "GGUF file to write"},
    {"format", FLAG_STRING, ROLE_LATER, FOR_EXPORT, .arg = "NAME", .peer = "gguf",
     .help = "What to write; gguf is the one supported: what llama.cpp reads"},
    {"dtype", FLAG_CHOICE, ROLE_USED, FOR_EXPORT, AT(export_dtype), .arg = "TYPE",
     .choices = export_types, .help = "Type of the matrices; vectors are f32"},

    SECTION("dflash"),
    FOREIGN("block-size", FLAG_STRING, NULL),
    FOREIGN("sample-from-anchor", FLAG_BOOL, NULL),
    FOREIGN("dflash-decay-gamma", FLAG_STRING, "4.0"),
    FOREIGN("per-position-loss-weight", FLAG_STRING, NULL),
    FOREIGN("dpace-alpha", FLAG_STRING, "0.5"),
    SECTION("dflash2"),
    FOREIGN("conv-kernel-size", FLAG_STRING, "2"),
    FOREIGN("conv-group-size", FLAG_STRING, "16"),
    FOREIGN("selector-rank", FLAG_STRING, "256"),
    FOREIGN("selector-top-k", FLAG_STRING, "16"),
    FOREIGN("selector-loss-alpha", FLAG_STRING, "1.0"),
    SECTION("dspark"),
    FOREIGN("markov-rank", FLAG_STRING, "256"),
    FOREIGN("markov-head-type", FLAG_STRING, "vanilla"),
    FOREIGN("enable-confidence-head", FLAG_BOOL, "true"),
    FOREIGN("confidence-head-with-markov", FLAG_BOOL, "true"),
    FOREIGN("confidence-head-alpha", FLAG_STRING, "1.0"),
    SECTION("xpress"),
    FOREIGN("xpress-rank", FLAG_STRING, "256"),
    FOREIGN("xpress-mlp-ratio", FLAG_STRING, "2"),
    FOREIGN("num-jacobi-passes", FLAG_STRING, "6"),
    FOREIGN("consistency-weight", FLAG_STRING, "0.3"),
    FOREIGN("consistency-passes", FLAG_STRING, "3"),
    FOREIGN("base-anchor-weight", FLAG_STRING, "0.6"),
    FOREIGN("ce-from-data", FLAG_BOOL, "false"),
    FOREIGN("base-anchor-full-weight", FLAG_BOOL, "false"),
    SECTION("peagle"),
    FOREIGN("num-depths", FLAG_STRING, "8"),
    FOREIGN("down-sample-ratio", FLAG_STRING, "0.7"),
    FOREIGN("down-sample-ratio-min", FLAG_STRING, "0.2"),
    SECTION("mtp"),
    FOREIGN("num-speculative-steps", FLAG_STRING, "3"),
    FOREIGN("step-weight-beta", FLAG_STRING, "0.6"),
};

_Static_assert(sizeof table / sizeof table[0] <= MAX_FLAGS, "cli_options.origin is too short");
_Static_assert(sizeof(accrue_optimizer) == sizeof(int), "FLAG_CHOICE stores an int");

const flag *flags_table(int *count)
{
    *count = (int)(sizeof table / sizeof table[0]);
    return table;
}

const char *flags_section(int i)
{
    while (table[i].kind != FLAG_GROUP)
        i--;
    return table[i].section;
}

int flags_find(const char *name)
{
    for (int i = 0; i < (int)(sizeof table / sizeof table[0]); i++)
        if (table[i].name && strcmp(table[i].name, name) == 0)
            return i;
    return -1;
}

const char *flags_proper(const char *name)
{
    for (size_t i = 0; name && i < sizeof table / sizeof table[0]; i++)
        if (table[i].also && strcmp(table[i].also, name) == 0)
            return table[i].name;
    return name;
}

bool flags_is_switch(const flag *f)
{
    return f->kind == FLAG_BOOL || f->kind == FLAG_TRISTATE;
}
