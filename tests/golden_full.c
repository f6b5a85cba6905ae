/* golden_full.c - replays the Python trainer's long runs on real data: golden_full DATA_DIR [RUN]
 *
 * DATA_DIR holds verifier-lite/, dataset/ and golden/ with init/, batch_plan.json, the numbers of the
 * AdamW and Muon runs, and the f32 weights after 34 steps of AdamW.  RUN is "adamw" or "muon"; both
 * when left out.  One line a check; exit status 1 when one fails.  Not part of ctest: the data are
 * not in the repository and it takes minutes. */
#include "golden.h"

enum { WEIGHTS_AFTER = 34 };

static bool passed = true;

static void report(const char *what, double worst, double bound)
{
    bool ok = worst <= bound;

    printf("%-4s %-58s %.2e (bound %.0e)\n", ok ? "ok" : "FAIL", what, worst, bound);
    passed = passed && ok;
}

typedef struct weights {
    const char *path; /* the peer's, after WEIGHTS_AFTER steps; NULL: none */
    float *start;     /* ours at the start, end to end */
    accrue_status st;
    accrue_error err;
} weights;

static float *copy_start(const acr_model *m)
{
    float *copy = acr_malloc((size_t)acr_model_elements(m, true) * sizeof *copy);
    int64_t at = 0;

    for (int i = 0; copy && i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        if (!p->trainable)
            continue;
        memcpy(copy + at, p->master, (size_t)(p->rows * p->cols) * sizeof *copy);
        at += p->rows * p->cols;
    }
    return copy;
}

/* The difference in units of the distance that the peer's tensor has moved. */
static double off_by(const acr_param *p, const float *start, const float *peer)
{
    const float *ours = p->master;
    double difference = 0, moved = 0;

    for (int64_t i = 0; i < p->rows * p->cols; i++) {
        double d = (double)ours[i] - (double)peer[i];
        double m = (double)peer[i] - (double)start[i];
        difference += d * d;
        moved += m * m;
    }
    return sqrt(difference / moved);
}

static void compare_weights(golden_run *g)
{
    weights *w = g->payload;
    const acr_model *m = g->run->setup.model;
    const float *start = w->start;
    acr_safetensors *file = NULL;
    char what[128];

    if (g->step != WEIGHTS_AFTER || !w->path)
        return;
    w->st = acr_safetensors_open(&file, w->path, &w->err);
    for (int i = 0; !w->st && i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        const acr_tensor *t = acr_safetensors_find(file, p->name);
        if (!p->trainable)
            continue;
        if (!t || t->dtype != ACR_DTYPE_F32 ||
            t->bytes != (size_t)(p->rows * p->cols) * sizeof(float)) {
            w->st = acr_fail(&w->err, ACCRUE_EMISMATCH, "%s: no %s of our size in f32", w->path,
                             p->name);
            break;
        }
        snprintf(what, sizeof what, "  step %d: %s", WEIGHTS_AFTER, p->name);
        report(what, off_by(p, start, t->data), 1e-3);
        start += p->rows * p->cols;
    }
    acr_safetensors_close(file);
}

static accrue_status replay(const accrue_train_options *o, const char *name, const char *numbers,
                            const char *final, double bound, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    weights w = {.path = final};
    golden_run g = {.after_step = compare_weights, .payload = &w};
    json_t *json = NULL;

    ACR_TRY(acr_json_load(&json, numbers, 1 << 24, err));
    g.numbers = json;
    ACR_TRY(accrue_run_open(&g.run, o, golden_event, &g, err));
    w.start = copy_start(g.run->setup.model);
    if (!w.start) {
        st = acr_enomem(err, 0, "the start weights");
        goto cleanup;
    }
    printf("%s\n", name);
    for (int64_t epoch = 0; epoch < o->epochs; epoch++) {
        ACR_TRY(golden_epoch(&g, epoch, err));
        if (w.st) {
            st = acr_fail(err, w.st, "%s", w.err.message);
            goto cleanup;
        }
    }
    printf("     %zu steps and %zu epochs; worst loss at step %zu\n", g.step, g.epoch,
           g.worst_step);
    report("  every record compared (0: yes)", golden_complete(&g) ? 0 : 1, 0);
    report("  losses, relative", g.loss, bound);
    report("  accuracies, absolute", g.accuracy, 1e-7);
    report("  learning rates, relative", g.lr, 1e-15);
    report("  validation losses, relative", g.val_loss, bound);
    report("  validation accuracies, absolute", g.val_accuracy, 1e-7);

cleanup:
    accrue_run_free(g.run);
    json_decref(json);
    acr_free(w.start);
    return st;
}

static accrue_status adamw(accrue_train_options o, const char *golden, accrue_error *err)
{
    char *numbers = acr_sprintf("%s/golden_adamw.json", golden);
    char *final = acr_sprintf("%s/adamw_step34.safetensors", golden);
    accrue_status st = ACCRUE_ENOMEM;

    o.window.optimizer = ACCRUE_ADAMW;
    o.window.scheduler = ACCRUE_SCHEDULE_COSINE;
    o.scheduler_warmup_steps = 4;
    o.scheduler_total_steps = 68;
    o.epochs = 2;
    if (numbers && final)
        st = replay(&o, "AdamW", numbers, final, 1e-5, err);
    acr_free(numbers);
    acr_free(final);
    return st;
}

static accrue_status muon(accrue_train_options o, const char *golden, accrue_error *err)
{
    char *numbers = acr_sprintf("%s/golden_muon.json", golden);
    accrue_status st = ACCRUE_ENOMEM;

    o.window.optimizer = ACCRUE_MUON;
    o.window.muon_ns_dtype = ACCRUE_BF16;
    o.window.scheduler = ACCRUE_SCHEDULE_LINEAR;
    o.scheduler_warmup_ratio = 0.1;
    o.epochs = 1;
    if (numbers)
        st = replay(&o, "Muon, bf16 Newton-Schulz", numbers, NULL, 1e-4, err);
    acr_free(numbers);
    return st;
}

int main(int argc, char **argv)
{
    accrue_status st = ACCRUE_ENOMEM;
    accrue_error err = {0};
    accrue_train_options o;
    char *path[5] = {NULL};
    const char *run = argc > 2 ? argv[2] : "";

    if (argc < 2) {
        fprintf(stderr, "usage: golden_full DATA_DIR [adamw|muon]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    path[0] = acr_sprintf("%s/verifier-lite", argv[1]);
    path[1] = acr_sprintf("%s/dataset", argv[1]);
    path[2] = acr_sprintf("%s/golden", argv[1]);
    path[3] = acr_sprintf("%s/golden/init", argv[1]);
    path[4] = acr_sprintf("%s/golden/batch_plan.json", argv[1]);
    golden_options(&o, path[4]);
    o.verifier = path[0];
    o.data_path = path[1];
    o.from_pretrained = path[3];
    o.draft_vocab_size = 8192;
    o.total_seq_len = 512;
    st = strcmp(run, "muon") == 0 ? ACCRUE_OK : adamw(o, path[2], &err);
    if (!st && strcmp(run, "adamw") != 0)
        st = muon(o, path[2], &err);
    if (st)
        fprintf(stderr, "golden_full: %s\n", err.message);
    for (int i = 0; i < ACR_COUNT(path); i++)
        acr_free(path[i]);
    return st || !passed;
}
