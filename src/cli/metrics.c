/* metrics.c - metrics.jsonl: one record per logged optimizer step and per validation, with the
 * peer's keys, so that scripts which read its logs read these.  A record is written whole and
 * flushed, so a run that dies leaves no half line but its last. */
#include "cli.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* mkdir -p */
static int make_folder(const char *folder)
{
    char *path = strdup(folder);
    int failed = 0;

    if (!path)
        return -1;
    for (char *s = path + 1; *s && !failed; s++)
        if (*s == '/') {
            *s = '\0';
            failed = mkdir(path, 0777) && errno != EEXIST;
            *s = '/';
        }
    if (!failed)
        failed = mkdir(path, 0777) && errno != EEXIST;
    free(path);
    return failed ? -1 : 0;
}

static double member(const json_t *o, const char *name, int k, const char *suffix)
{
    char key[120];

    snprintf(key, sizeof key, "%s_%d%s", name, k, suffix);
    return json_number_value(json_object_get(o, key));
}

/* A record's ratios as sums over totals of 1. */
static accrue_metrics read_metrics(const json_t *o, const char *suffix)
{
    accrue_metrics m = {.loss_total = 1};
    char key[120];

    snprintf(key, sizeof key, "loss%s", suffix);
    m.loss_sum = json_number_value(json_object_get(o, key));
    for (int k = 0; k < ACCRUE_MAX_TTT_STEPS; k++) {
        snprintf(key, sizeof key, "full_acc_%d%s", k, suffix);
        if (!json_object_get(o, key))
            break;
        m.n_steps = k + 1;
        m.step_loss_total[k] = m.full_acc_total[k] = m.cond_acc_total[k] = 1;
        m.step_loss_sum[k] = member(o, "loss", k, suffix);
        m.full_acc_sum[k] = member(o, "full_acc", k, suffix);
        m.cond_acc_sum[k] = member(o, "cond_acc", k, suffix);
    }
    return m;
}

/* Whether the record was written before the point where the run goes on; it goes into the history
 * then. */
static bool is_before(const json_t *record, const accrue_event *start, history *h)
{
    const json_t *train = json_object_get(record, "train"), *val = json_object_get(record, "val");
    const json_t *step = json_object_get(record, "global_step");
    accrue_event e = {.epoch = json_integer_value(json_object_get(record, "epoch")),
                      .global_step = json_integer_value(step) + 1};

    if (!json_is_integer(json_object_get(record, "epoch")) || e.epoch < 0 ||
        e.epoch > start->epoch || !train == !val)
        return false;
    if (train && (!json_is_integer(step) || e.global_step > start->global_step))
        return false;
    if (val && e.epoch >= start->epoch)
        return false;
    if (val && h->n)
        e.global_step = h->step[h->n - 1];
    e.metrics = read_metrics(train ? train : val, train ? "" : "_epoch");
    if (train)
        history_step(h, &e);
    else
        history_validation(h, &e);
    h->epochs[e.epoch].restored = true;
    return true;
}

/* Cuts what a run wrote after its checkpoint, a broken last line included: it is made again. */
static int cut(const char *path, const accrue_event *start, history *h)
{
    FILE *in = fopen(path, "re");
    char *line = NULL;
    size_t capacity = 0;
    off_t kept = 0;
    bool fine = true;
    int failed = 0;

    if (!in)
        return errno == ENOENT ? 0 : -1;
    while (fine) {
        ssize_t n = getline(&line, &capacity, in);
        json_t *record = NULL;
        if (n <= 0 || line[n - 1] != '\n')
            break;
        record = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
        fine = record && is_before(record, start, h);
        if (fine)
            kept += n;
        json_decref(record);
    }
    failed = ferror(in);
    free(line);
    fclose(in);
    return failed || truncate(path, kept) ? -1 : 0;
}

int metrics_open(metrics_log *log, const char *folder, const accrue_event *start, history *h)
{
    size_t bytes = strlen(folder) + sizeof "/metrics.jsonl";
    char *path = NULL;

    *log = (metrics_log){0};
    if (make_folder(folder))
        return -1;
    path = cli_realloc(NULL, bytes, 1);
    snprintf(path, bytes, "%s/metrics.jsonl", folder);
    if (!start->resumed || !cut(path, start, h))
        log->file = fopen(path, start->resumed ? "ae" : "we");
    free(path);
    return log->file ? 0 : -1;
}

static void number(FILE *out, const char *key, const char *suffix, double value)
{
    fprintf(out, "\"%s%s\": %s, ", key, suffix, format_exact(value).s);
}

static void metrics_object(FILE *out, const accrue_metrics *m, const char *suffix)
{
    char key[120];

    for (int k = 0; k < m->n_steps; k++) {
        snprintf(key, sizeof key, "loss_%d", k);
        number(out, key, suffix, ratio(m->step_loss_sum[k], m->step_loss_total[k]));
        snprintf(key, sizeof key, "full_acc_%d", k);
        number(out, key, suffix, ratio(m->full_acc_sum[k], m->full_acc_total[k]));
        snprintf(key, sizeof key, "cond_acc_%d", k);
        number(out, key, suffix, ratio(m->cond_acc_sum[k], m->cond_acc_total[k]));
        for (int i = 0; i < m->n_terms; i++) {
            snprintf(key, sizeof key, "%s_loss_%d", m->term_name[i], k);
            number(out, key, suffix, ratio(m->term_loss_sum[i][k], m->term_loss_total[i][k]));
        }
    }
    fprintf(out, "\"loss%s\": %s", suffix, format_exact(ratio(m->loss_sum, m->loss_total)).s);
}

/* Ends the record in `out` (a memory stream over *text) and appends it to the file. */
static int write_record(metrics_log *log, FILE *out, char **text, size_t *bytes)
{
    int failed = fclose(out);

    if (!failed)
        failed = fwrite(*text, 1, *bytes, log->file) != *bytes || fflush(log->file);
    free(*text);
    return failed ? -1 : 0;
}

int metrics_step(metrics_log *log, const accrue_event *e, bool muon)
{
    char *text = NULL;
    size_t bytes = 0;
    double seconds = e->data_seconds + e->forward_backward_seconds + e->optimizer_seconds;
    FILE *out = NULL;

    out = open_memstream(&text, &bytes);
    if (!out)
        return -1;
    fputs("{\"train\": {", out);
    metrics_object(out, &e->metrics, "");
    fprintf(out, ", \"error_records\": %lld}, \"profile\": {", (long long)e->metrics.error_records);
    number(out, "fetch_ms", "", 1000 * e->data_seconds);
    number(out, "fwd_bwd_ms", "", 1000 * e->forward_backward_seconds);
    number(out, "opt_ms", "", 1000 * e->optimizer_seconds);
    number(out, "step_ms", "", 1000 * seconds);
    number(out, "fetch_frac", "", ratio(e->data_seconds, seconds));
    fprintf(out, "\"tokens_per_s\": %s}, \"epoch\": %lld, \"lr\": ",
            format_exact(ratio((double)e->metrics.tokens, seconds)).s, (long long)e->epoch);
    if (muon)
        fprintf(out, "{\"Muon\": %s, \"AdamW\": %s}", format_exact(e->muon_lr).s,
                format_exact(e->lr).s);
    else
        fputs(format_exact(e->lr).s, out);
    fprintf(out, ", \"global_step\": %lld, \"grad_norm\": %s}\n", (long long)e->global_step - 1,
            format_exact(e->grad_norm).s);
    return write_record(log, out, &text, &bytes);
}

int metrics_validation(metrics_log *log, const accrue_event *e)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (!out)
        return -1;
    fputs("{\"val\": {", out);
    metrics_object(out, &e->metrics, "_epoch");
    fprintf(out, "}, \"epoch\": %lld}\n", (long long)e->epoch);
    return write_record(log, out, &text, &bytes);
}

int metrics_close(metrics_log *log)
{
    int failed = log->file ? fclose(log->file) : 0;

    log->file = NULL;
    return failed;
}
