/* metrics.c - metrics.jsonl: one record per logged optimizer step and per validation, with the
 * peer's keys, so that scripts which read its logs read these.  A record is written whole and
 * flushed, so a run that dies leaves no half line but its last. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

int metrics_open(metrics_log *log, const char *folder)
{
    size_t bytes = strlen(folder) + sizeof "/metrics.jsonl";
    char *path = NULL;

    *log = (metrics_log){0};
    if (make_folder(folder))
        return -1;
    path = cli_realloc(NULL, bytes, 1);
    snprintf(path, bytes, "%s/metrics.jsonl", folder);
    log->file = fopen(path, "we");
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
    /* A row that cannot be read stops the run, or is left out before it begins. */
    fputs(", \"error_records\": 0}, \"profile\": {", out);
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
