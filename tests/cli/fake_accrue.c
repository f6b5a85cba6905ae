/* fake_accrue.c - a stand-in for the library, so that the command line is tested without training:
 * it checks nothing, trains nothing, and reports made-up progress.  The verifier's name chooses
 * what happens: "fail-<STATUS NAME>" fails at once, "stop-<STATUS NAME>" after three steps. */
#include "fake_accrue.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const char *const status_names[] = {
    "ACCRUE_OK",      "ACCRUE_ENOMEM",    "ACCRUE_EINVAL",  "ACCRUE_ESTATE",   "ACCRUE_EIO",
    "ACCRUE_EFORMAT", "ACCRUE_EMISMATCH", "ACCRUE_ENOTSUP", "ACCRUE_ENUMERIC", "ACCRUE_ECANCELED",
    "ACCRUE_EVERIFY", "ACCRUE_ENOSPACE",  "ACCRUE_ECOMM"};

static int threads = -1;

const char *accrue_version(void)
{
    return "0.1.0";
}

void accrue_set_threads(int n)
{
    threads = n;
}

/* Ranks: as many as the environment says that MPI knows of; each stands alone. */
struct accrue_comm {
    int rank, size;
};

accrue_status accrue_comm_open_mpi(accrue_comm **out, double timeout, accrue_error *err)
{
    const char *mpi = getenv("FAKE_ACCRUE_MPI");
    accrue_comm *c = NULL;

    (void)timeout;
    *out = NULL;
    if (!mpi) {
        err->status = ACCRUE_ENOTSUP;
        snprintf(err->message, sizeof err->message, "this build has no MPI; one made with it has");
        return err->status;
    }
    c = calloc(1, sizeof *c);
    if (!c || sscanf(mpi, "%d %d", &c->rank, &c->size) != 2)
        abort();
    *out = c;
    return ACCRUE_OK;
}

void accrue_comm_free(accrue_comm *comm)
{
    free(comm);
}

int accrue_comm_rank(const accrue_comm *comm)
{
    return comm ? comm->rank : 0;
}

int accrue_comm_size(const accrue_comm *comm)
{
    return comm ? comm->size : 1;
}

int accrue_comm_local_size(const accrue_comm *comm)
{
    return accrue_comm_size(comm);
}

/* Of a machine with eight. */
accrue_status accrue_comm_cores(int *out, accrue_comm *comm, accrue_error *err)
{
    (void)err;
    *out = 8 / accrue_comm_size(comm);
    return ACCRUE_OK;
}

accrue_status accrue_comm_greatest(int *out, accrue_comm *comm, int value, accrue_error *err)
{
    (void)comm;
    (void)err;
    *out = value;
    return ACCRUE_OK;
}

bool accrue_comm_reports(accrue_comm *comm)
{
    return accrue_comm_rank(comm) == 0;
}

void accrue_train_options_init(accrue_train_options *opt, size_t struct_size)
{
    memset(opt, 0, struct_size);
    *opt = (accrue_train_options){
        .struct_size = struct_size,
        .window = {.struct_size = sizeof opt->window,
                   .gradient_accumulation_steps = 1,
                   .loss_normalization = ACCRUE_NORMALIZE_MICROBATCH,
                   .clip_norm = 1,
                   .optimizer = ACCRUE_MUON,
                   .lr = 1e-3,
                   .beta1 = 0.9,
                   .beta2 = 0.999,
                   .eps = 1e-8,
                   .weight_decay = 0.01,
                   .muon_lr = (double)NAN,
                   .muon_momentum = 0.95,
                   .muon_weight_decay = 0.1,
                   .muon_ns_steps = 5,
                   .muon_adjust = ACCRUE_MUON_MATCH_RMS_ADAMW,
                   .scheduler = ACCRUE_SCHEDULE_LINEAR,
                   .num_cosine_cycles = 0.5},
        .seed = 42,
        .comm_timeout = 600,
        .norm_before_residual = true,
        .norm_before_fc = -1,
        .norm_output = -1,
        .sliding_window = 2048,
        .data_path = "./output",
        .total_seq_len = 8192,
        .train_data_ratio = 0.9,
        .compute = ACCRUE_BF16,
        .on_missing = ACCRUE_POLICY_RAISE,
        .on_bad = ACCRUE_POLICY_RAISE,
        .max_bad = -1,
        .check_bytes = 1 << 30,
        .lock_timeout = 10,
        .ttt_steps = 3,
        .ttt_step_loss_decay = 1,
        .scheduler_warmup_steps = -1,
        .scheduler_warmup_ratio = (double)NAN,
        .accumulation_tail = ACCRUE_TAIL_DROP,
        .epochs = 20,
        .checkpoint_freq = 1,
        .save_path = "./output/checkpoints",
        .on_nonfinite = ACCRUE_POLICY_RAISE,
        .best_metric = ACCRUE_BEST_LOSS,
        .on_save_error = ACCRUE_POLICY_RAISE,
    };
}

void accrue_metrics_add(accrue_metrics *into, const accrue_metrics *m)
{
    into->n_steps = m->n_steps;
    into->n_terms = m->n_terms;
    into->loss_sum += m->loss_sum;
    into->loss_total += m->loss_total;
    for (int k = 0; k < m->n_steps; k++) {
        into->full_acc_sum[k] += m->full_acc_sum[k];
        into->full_acc_total[k] += m->full_acc_total[k];
        into->cond_acc_sum[k] += m->cond_acc_sum[k];
        into->cond_acc_total[k] += m->cond_acc_total[k];
    }
    into->tokens += m->tokens;
}

double accrue_metrics_acceptance(const accrue_metrics *m)
{
    double length = 0, all = 1;

    for (int k = 0; k < m->n_steps; k++) {
        all *= m->cond_acc_sum[k] / m->cond_acc_total[k];
        length += all;
    }
    return length;
}

accrue_status fail_as(const char *verifier, const char *prefix, accrue_error *err)
{
    size_t len = strlen(prefix);

    if (strncmp(verifier, prefix, len) != 0)
        return ACCRUE_OK;
    for (int s = 1; s <= ACCRUE_ECOMM; s++)
        if (strcmp(status_names[s], verifier + len) == 0) {
            err->status = (accrue_status)s;
            snprintf(err->message, sizeof err->message, "%s: broken on purpose", verifier);
            return err->status;
        }
    return ACCRUE_OK;
}

/* The options as they arrived, one a line, into the file that the environment names. */
static void dump_options(const accrue_train_options *o)
{
    const char *path = getenv("FAKE_ACCRUE_OPTIONS");
    FILE *f = path ? fopen(path, "w") : NULL;

    if (!f)
        return;
    fprintf(f, "verifier=%s\nseed=%llu\nthreads=%d\nn=%lld\nnormalization=%d\ntail=%d\n",
            o->verifier, (unsigned long long)o->seed, threads,
            (long long)o->window.gradient_accumulation_steps, (int)o->window.loss_normalization,
            (int)o->accumulation_tail);
    fprintf(f, "optimizer=%d\nlr=%.17g\nmuon_lr=%.17g\nns_dtype=%d\ncompute=%d\nscheduler=%d\n",
            (int)o->window.optimizer, o->window.lr, o->window.muon_lr, (int)o->window.muon_ns_dtype,
            (int)o->compute, (int)o->window.scheduler);
    fprintf(f, "layers=");
    for (int i = 0; i < o->n_target_layer_ids; i++)
        fprintf(f, "%d,", o->target_layer_ids[i]);
    fprintf(f, "\nfull=");
    for (int i = 0; i < o->n_full_attention_indices; i++)
        fprintf(f, "%d,", o->full_attention_indices[i]);
    fprintf(f,
            "\nnorm_before_residual=%d\nnorm_before_fc=%d\nfc_norm=%d\nnorm_output=%d\n"
            "embed=%d\nacross=%d\n",
            o->norm_before_residual, o->norm_before_fc, o->fc_norm, o->norm_output,
            o->embed_requires_grad, o->across_documents);
    fprintf(f, "best_metric=%d\nkeep=%lld\non_save_error=%d\n", (int)o->best_metric,
            (long long)o->keep, (int)o->on_save_error);
    fprintf(f, "on_bad=%d\nmax_bad=%lld\ncheck_bytes=%lld\nlock_timeout=%.17g\n", (int)o->on_bad,
            (long long)o->max_bad, (long long)o->check_bytes, o->lock_timeout);
    fprintf(f, "no_resume=%d\nresume_from=%s\n", o->no_resume,
            o->resume_from ? o->resume_from : "");
    fprintf(f, "arch=%s\nloss=%s\non_missing=%d\nnonfinite=%d\nwarmup=%lld\nratio=%.17g\n",
            o->draft_arch ? o->draft_arch : "", o->loss_fn ? o->loss_fn : "", (int)o->on_missing,
            (int)o->on_nonfinite, (long long)o->scheduler_warmup_steps, o->scheduler_warmup_ratio);
    fprintf(f, "epochs=%lld\nmax_steps=%lld\nsave_path=%s\nplan=%s\ndump=%s\nfrom=%s\n",
            (long long)o->epochs, (long long)o->max_steps, o->save_path,
            o->batch_plan ? o->batch_plan : "", o->dump_batch_plan ? o->dump_batch_plan : "",
            o->from_pretrained ? o->from_pretrained : "");
    fprintf(f,
            "ranks=%d\nsize=%d\nshard=%d\ndefer=%d\nreproducible=%d\nglobal_window=%lld\n"
            "comm_timeout=%.17g\n",
            o->ranks, accrue_comm_size(o->comm), o->fsdp_shard, o->defer_reduce, o->reproducible,
            (long long)o->global_window, o->comm_timeout);
    fclose(f);
}

static accrue_metrics made_up(const accrue_train_options *o, double at, double noise)
{
    accrue_metrics m = {.n_steps = o->ttt_steps, .tokens = 480, .supervised_tokens = 300};
    double floor_at = 10;

    if (o->loss_fn && o->loss_fn[0] == '{') {
        m.n_terms = 2;
        m.term_name[0] = "ce";
        m.term_name[1] = "tv";
    }
    m.loss_total = 1;
    m.loss_sum = floor_at + 25 * exp(-at * 4) + noise * 1.5;
    double full = 1;
    for (int k = 0; k < m.n_steps; k++) {
        double cond = (0.55 - 0.04 * k) * (1 - exp(-at * 3)) * (1 + noise * 0.1);
        full *= cond;
        m.step_loss_sum[k] = m.loss_sum / m.n_steps;
        m.step_loss_total[k] = 1;
        m.full_acc_sum[k] = 300 * full;
        m.full_acc_total[k] = 300;
        m.cond_acc_sum[k] = 100 * cond;
        m.cond_acc_total[k] = 100;
        for (int i = 0; i < m.n_terms; i++) {
            m.term_loss_sum[i][k] = m.loss_sum / 2;
            m.term_loss_total[i][k] = 1;
        }
    }
    return m;
}

static accrue_train_plan made_up_plan(const accrue_train_options *o)
{
    int64_t steps = 40 / o->window.gradient_accumulation_steps;

    return (accrue_train_plan){.train_rows = 144,
                               .val_rows = 16,
                               .params = 61234567,
                               .trainable_params = 5091264,
                               .epochs = o->epochs,
                               .total_steps = o->epochs * steps,
                               .first_epoch_micro_batches = 40,
                               .first_epoch_steps = steps,
                               .min_epoch_steps = steps,
                               .max_epoch_steps = steps,
                               .dropped_micro_batches =
                                   o->epochs * (40 % o->window.gradient_accumulation_steps),
                               .schedule_total_steps = o->epochs * steps,
                               .warmup_steps = o->epochs * steps / 100,
                               .ranks = o->ranks > 1 ? o->ranks : accrue_comm_size(o->comm),
                               .window = o->window.gradient_accumulation_steps *
                                         (o->ranks > 1 ? o->ranks : accrue_comm_size(o->comm)),
                               .rank_bytes = 81460224,
                               .peak_bytes = 712345678,
                               .vocab_size = 49152,
                               .draft_vocab_size = 8192};
}

static double noise_at(int64_t i)
{
    return sin((double)i * 12.9898) * cos((double)i * 78.233);
}

static int pause_between(void)
{
    const char *ms = getenv("FAKE_ACCRUE_MS");
    struct timespec t = {0, ms ? atol(ms) * 1000000 : 0};

    return ms ? nanosleep(&t, NULL) : 0;
}

/* Where the environment says that the run goes on: "epoch step micro-batch". */
static void go_on(accrue_event *e)
{
    const char *at = getenv("FAKE_ACCRUE_RESUME");
    long long epoch = 0, step = 0, micro_batch = 0;

    e->resumed = at && sscanf(at, "%lld %lld %lld", &epoch, &step, &micro_batch) == 3;
    e->epoch = epoch;
    e->global_step = step;
    e->micro_batch = micro_batch;
}

typedef struct listener {
    accrue_event_cb cb;
    void *payload;
    bool stop; /* asked for */
} listener;

/* Whether the callback cancels. */
static bool told(listener *l, const accrue_event *e)
{
    int answer = l->cb(e, l->payload);

    l->stop |= answer == ACCRUE_SAVE_AND_STOP || answer == ACCRUE_GIVE_UP_AND_STOP;
    return answer == ACCRUE_CANCEL;
}

static bool save(listener *l, accrue_event *e, const char *save_path)
{
    char folder[400];

    e->kind = ACCRUE_EVENT_CHECKPOINT;
    snprintf(folder, sizeof folder, "%s/%lld", save_path, (long long)e->epoch);
    (void)mkdir(save_path, 0777);
    (void)mkdir(folder, 0777);
    e->message = folder;
    e->save_bytes = 12345678;
    e->save_seconds = 0.25;
    e->save_wait_seconds = 0.0015;
    bool canceled = told(l, e);
    e->message = NULL;
    return canceled;
}

accrue_status accrue_train(const accrue_train_options *o, accrue_event_cb cb, void *payload,
                           accrue_error *err)
{
    listener l = {.cb = cb, .payload = payload};
    accrue_train_plan plan = made_up_plan(o);
    accrue_event e = {.kind = ACCRUE_EVENT_START,
                      .rank = accrue_comm_rank(o->comm),
                      .plan = &plan,
                      .micro_batches = 40};
    accrue_status st = fail_as(o->verifier, "fail-", err);

    dump_options(o);
    if (st)
        return st;
    go_on(&e);
    if (told(&l, &e))
        return ACCRUE_ECANCELED;
    e.kind = ACCRUE_EVENT_NOTICE;
    e.message = "row 7: skipped\non purpose";
    if (told(&l, &e))
        return ACCRUE_ECANCELED;
    for (; e.epoch < o->epochs; e.epoch++) {
        if (l.stop)
            return ACCRUE_ECANCELED;
        e.kind = ACCRUE_EVENT_EPOCH;
        if (told(&l, &e))
            return ACCRUE_ECANCELED;
        for (int64_t i = e.micro_batch + 1; i <= 40; i++) {
            double at = (double)e.global_step / (double)plan.total_steps;
            int64_t n = o->window.gradient_accumulation_steps;
            (void)pause_between();
            e.kind = ACCRUE_EVENT_MICRO_BATCH;
            e.micro_batch = i;
            e.seconds += 0.05;
            e.metrics = made_up(o, at, noise_at(i + 40 * e.epoch));
            if (told(&l, &e))
                return ACCRUE_ECANCELED;
            if (i % n)
                continue;
            e.kind = ACCRUE_EVENT_STEP;
            e.global_step++;
            e.lr = e.muon_lr = o->window.lr * (1 - at);
            e.grad_norm = 1.5;
            e.data_seconds = 0.001;
            e.forward_backward_seconds = 0.04 * (double)n;
            e.optimizer_seconds = 0.009;
            if (told(&l, &e))
                return ACCRUE_ECANCELED;
            if (l.stop) {
                (void)save(&l, &e, o->save_path);
                return ACCRUE_ECANCELED;
            }
            if (e.global_step == 3) {
                st = fail_as(o->verifier, "stop-", err);
                if (st)
                    return st;
            }
        }
        e.micro_batch = 0;
        e.kind = ACCRUE_EVENT_VALIDATION;
        e.metrics = made_up(o, (double)e.global_step / (double)plan.total_steps, 0.2);
        if (told(&l, &e))
            return ACCRUE_ECANCELED;
        if (save(&l, &e, o->save_path))
            return ACCRUE_ECANCELED;
    }
    return ACCRUE_OK;
}

accrue_status accrue_train_dry_run(accrue_train_plan *out, const accrue_train_options *o,
                                   accrue_event_cb cb, void *payload, accrue_error *err)
{
    accrue_event e = {.kind = ACCRUE_EVENT_CHECKPOINT, .plan = out, .message = "out/init"};
    accrue_status st = fail_as(o->verifier, "fail-", err);

    dump_options(o);
    if (st)
        return st;
    *out = made_up_plan(o);
    return cb(&e, payload) ? ACCRUE_ECANCELED : ACCRUE_OK;
}

accrue_status accrue_verify(accrue_verify_report *out, const accrue_train_options *o,
                            accrue_error *err)
{
    accrue_status st = fail_as(o->verifier, "fail-", err);

    dump_options(o);
    memset(out, 0, sizeof *out);
    if (st && st != ACCRUE_EVERIFY)
        return st;
    out->n = out->micro_batches = o->window.gradient_accumulation_steps;
    out->tokens = 480 * out->n;
    out->supervised_tokens = 300 * out->n;
    out->ranks = 1;
    out->grad_max = 1;
    out->parts_pass = true;
    out->bound = 1e-12;
    out->n_rows = 2;
    out->pass = !st;
    out->rows[0] = (accrue_verify_row){"fc", 995328, 1e-17, 2e-15, 3e-19, 4e-15, true};
    out->rows[1] = (accrue_verify_row){"layers.0", 4095936, 1e-9, (double)NAN, 3e-9, 4e-3, !st};
    return st;
}

void accrue_check_options_init(accrue_check_options *opt, size_t struct_size)
{
    memset(opt, 0, struct_size);
    opt->struct_size = struct_size;
}

const char *accrue_fault_name(accrue_fault_kind kind)
{
    return kind == ACCRUE_FAULT_STALE_LOCK ? "stale_lock" : "nonfinite";
}

/* "faults-7": seven of them and a notice. */
void accrue_import_options_init(accrue_import_options *o, size_t struct_size)
{
    memset(o, 0, struct_size);
    o->struct_size = struct_size;
}

accrue_status accrue_import(accrue_import_report *out, const accrue_import_options *o,
                            accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_progress p = {.unit = "bytes", .done = 1000000, .total = 4000000, .seconds = 6};
    accrue_status st = fail_as(o->model, "fail-", err);

    memset(out, 0, sizeof *out);
    if (st || cb(&p, payload))
        return st;
    *out = (accrue_import_report){.found = strcmp(o->model, "found") == 0,
                                  .architecture = "qwen3",
                                  .dtype = "bfloat16",
                                  .tensors = 12,
                                  .parameters = 3456,
                                  .layers = 1,
                                  .vocab_size = 789,
                                  .source_bytes = 2000000,
                                  .bytes = 4000000,
                                  .n_types = 1,
                                  .types = {{"Q4_K", 12, 3456, 2000000, 4000000}},
                                  .tokenizer = strcmp(o->model, "spm") != 0,
                                  .chat_template = strcmp(o->model, "found") == 0,
                                  .seconds = 2};
    if (!out->tokenizer)
        snprintf(out->tokenizer_why, sizeof out->tokenizer_why, "of another kind");
    return ACCRUE_OK;
}

accrue_status accrue_check(accrue_check_report *out, const accrue_check_options *o,
                           accrue_check_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = fail_as(o->data_path, "fail-", err);
    accrue_fault f = {.kind = ACCRUE_FAULT_NONFINITE, .token = 3, .slot = 1, .element = 2};
    int n = strncmp(o->data_path, "faults-", 7) ? 0 : atoi(o->data_path + 7);

    memset(out, 0, sizeof *out);
    if (st)
        return st;
    *out = (accrue_check_report){.rows = 1234,
                                 .checked_rows = 1234,
                                 .bad_rows = n,
                                 .tokens = 56789,
                                 .supervised_tokens = 4321,
                                 .files = 1234,
                                 .bytes = 3000000000,
                                 .seconds = 1.5};
    for (int i = 0; i < n; i++) {
        f.row = i;
        f.count = 2;
        snprintf(f.found, sizeof f.found, "nan");
        snprintf(f.expected, sizeof f.expected, "a finite number");
        snprintf(f.file, sizeof f.file, "hs_%d.safetensors", i);
        snprintf(f.message, sizeof f.message, "hs_%d.safetensors: row %d: broken", i, i);
        out->faults++;
        if (cb(&f, out, payload))
            return ACCRUE_ECANCELED;
    }
    if (n) {
        f = (accrue_fault){.count = 1,
                           .kind = ACCRUE_FAULT_STALE_LOCK,
                           .notice = true,
                           .token = -1,
                           .slot = -1,
                           .element = -1,
                           .message = "hs_9.safetensors.lock: left over"};
        out->notices++;
        if (cb(&f, out, payload))
            return ACCRUE_ECANCELED;
    }
    return cb(NULL, out, payload) ? ACCRUE_ECANCELED : ACCRUE_OK;
}

accrue_status accrue_inspect(char **out, const char *dir, accrue_error *err)
{
    static const char text[] =
        "{\"kind\": \"checkpoint\", \"path\": \"x\", \"tokens\": 16956, \"supervised_share\": "
        "0.6211, \"tied\": true, \"training_state\": {\"epoch\": 1, \"global_step\": 68}, "
        "\"tensors\": [{\"name\": \"fc.weight\", \"dtype\": \"BF16\", \"shape\": [576, 1728], "
        "\"elements\": 995328}, {\"name\": \"norm.weight\", \"dtype\": \"BF16\", \"shape\": "
        "[576], \"elements\": 576}]}\n";
    accrue_status st = fail_as(dir, "fail-", err);

    *out = NULL;
    if (st)
        return st;
    *out = malloc(sizeof text);
    if (!*out)
        return ACCRUE_ENOMEM;
    memcpy(*out, text, sizeof text);
    return ACCRUE_OK;
}

void accrue_string_free(char *s)
{
    free(s);
}

void accrue_prepare_options_init(accrue_prepare_options *opt, size_t struct_size)
{
    memset(opt, 0, struct_size);
    opt->struct_size = struct_size;
    opt->output = "./output";
    opt->seq_length = 8192;
    opt->on_bad = ACCRUE_POLICY_RAISE;
    opt->max_bad = -1;
}

static void dump_prepare(const accrue_prepare_options *o)
{
    const char *path = getenv("FAKE_ACCRUE_OPTIONS");
    FILE *f = path ? fopen(path, "w") : NULL;

    if (!f)
        return;
    fprintf(f, "verifier=%s\noutput=%s\nfiles=", o->verifier, o->output);
    for (int i = 0; i < o->n_files; i++)
        fprintf(f, "%s,", o->files[i]);
    fprintf(f, "\nseq_length=%lld\nmax_samples=%lld\nminimum_valid_tokens=%lld\nseed=%llu\n",
            (long long)o->seq_length, (long long)o->max_samples, (long long)o->minimum_valid_tokens,
            (unsigned long long)o->seed);
    fprintf(f, "draft_vocab_size=%lld\nskip_token_freq=%d\noverwrite=%d\nallow_empty=%d\n",
            (long long)o->draft_vocab_size, o->skip_token_freq, o->overwrite,
            o->allow_empty_output);
    fprintf(f, "on_bad=%d\nmax_bad=%lld\n", (int)o->on_bad, (long long)o->max_bad);
    fclose(f);
}

accrue_status accrue_prepare(accrue_prepare_report *out, const accrue_prepare_options *opt,
                             accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_progress p = {
        .unit = "lines", .done = 1000, .total = 4000, .tokens = 50000, .seconds = 10};
    accrue_status st = fail_as(opt->verifier, "fail-", err);

    dump_prepare(opt);
    memset(out, 0, sizeof *out);
    if (st)
        return st;
    if (cb(&p, payload)) {
        err->status = ACCRUE_ECANCELED;
        snprintf(err->message, sizeof err->message, "canceled");
        return ACCRUE_ECANCELED;
    }
    *out = (accrue_prepare_report){.lines = 4000,
                                   .rows = 4321,
                                   .tokens = 1234567,
                                   .supervised_tokens = 765432,
                                   .longest = 2048,
                                   .bytes = 20000000,
                                   .files = 1,
                                   .distinct_tokens = 9000,
                                   .seconds = 40};
    if (strcmp(opt->verifier, "faulty") == 0) {
        out->cut_rows = 12;
        out->bad_lines = 3;
        out->unanswered = 4;
        out->unsupervised_rows = 5;
        out->short_rows = 6;
        out->surplus_rows = 7;
        out->unknown_roles = 8;
        strcpy(out->unknown_role, "critic");
        strcpy(out->first_bad, "a.jsonl: line 7: broken");
    }
    out->found = strcmp(opt->verifier, "found") == 0;
    return ACCRUE_OK;
}
