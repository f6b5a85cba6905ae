/* read_run.c - records of logs back into a history: accrue's metrics.jsonl and CSV files, and
 * records as the peer's loggers get them, nested or flat. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_COLUMNS RECORD_ITEMS
#define MAX_EPOCH   1000000

/* NaN where there is none: null is how a NaN is written. */
static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static double member(const json_t *o, const char *name, int k, const char *suffix)
{
    char key[RECORD_KEY_BYTES + 40];

    snprintf(key, sizeof key, "%s_%d%s", name, k, suffix);
    return number(o, key);
}

static void read_terms(accrue_metrics *m, const json_t *o, const char *suffix)
{
    static const char *const terms[] = {"kl_div", "rkl", "jsd", "ce", "tv", "nla", "lk_hybrid"};
    char key[RECORD_KEY_BYTES];

    for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++) {
        snprintf(key, sizeof key, "%s_loss_0%s", terms[i], suffix);
        if (!json_object_get(o, key))
            continue;
        m->term_name[m->n_terms] = terms[i];
        snprintf(key, sizeof key, "%s_loss", terms[i]);
        for (int k = 0; k < m->n_steps; k++) {
            m->term_loss_sum[m->n_terms][k] = member(o, key, k, suffix);
            m->term_loss_total[m->n_terms][k] = 1;
        }
        m->n_terms++;
    }
}

/* A record's ratios as sums over totals of 1. */
static accrue_metrics read_metrics(const json_t *o, const char *suffix)
{
    accrue_metrics m = {.loss_total = 1};
    char key[RECORD_KEY_BYTES];

    snprintf(key, sizeof key, "loss%s", suffix);
    m.loss_sum = number(o, key);
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
    read_terms(&m, o, suffix);
    return m;
}

static double read_lr(const json_t *o)
{
    const json_t *lr = json_object_get(o, "lr");

    return json_is_object(lr) ? number(lr, "Muon") : number(o, "lr");
}

void history_drop(history *h, int64_t step)
{
    while (h->n && h->step[h->n - 1] > step)
        h->n--;
    while (h->n_epochs && h->epochs[h->n_epochs - 1].last_step >= step)
        h->n_epochs--;
}

static void read_validation(history *h, accrue_event *e, const json_t *step)
{
    const epoch_record *r = e->epoch < h->n_epochs ? &h->epochs[e->epoch] : NULL;

    if (json_is_integer(step))
        e->global_step = json_integer_value(step);
    else if (r && r->steps)
        e->global_step = r->last_step;
    else
        e->global_step = h->n ? h->step[h->n - 1] : 0;
    history_validation(h, e);
}

const char *history_record(history *h, const json_t *o)
{
    const json_t *train = json_object_get(o, "train"), *val = json_object_get(o, "val");
    const json_t *profile = json_object_get(o, "profile"), *epoch = json_object_get(o, "epoch");
    const json_t *step = json_object_get(o, json_object_get(o, "step") ? "step" : "global_step");
    accrue_event e = {.epoch = json_integer_value(epoch), .global_step = json_integer_value(step)};

    if (!json_is_object(o))
        return "not a JSON object";
    if (!train && json_object_get(o, "loss"))
        train = o;
    if (!val && json_object_get(o, "loss_epoch"))
        val = o;
    if (!train && !val)
        return NULL;
    if (!json_is_integer(epoch) || e.epoch < 0 || e.epoch > MAX_EPOCH)
        return "no epoch that is a whole number";
    if (train && (!json_is_integer(step) || e.global_step < 0))
        return "no global_step that is a whole number";
    e.metrics = read_metrics(train ? train : val, train ? "" : "_epoch");
    if (!train) {
        read_validation(h, &e, step);
        return NULL;
    }
    while (h->n && h->step[h->n - 1] > e.global_step)
        h->n--; /* a run that went on without cutting its log takes its steps again */
    e.global_step++;
    history_step(h, &e, read_lr(o), number(profile ? profile : o, "tokens_per_s"));
    return NULL;
}

/* Files ----------------------------------------------------------------------------------- */

typedef struct reader {
    history *h;
    const char *path;
    char *line;
    size_t capacity;
    int64_t number; /* of the line */
    char *header;
    char *columns[MAX_COLUMNS];
    int n_columns;
} reader;

static int fail_line(const reader *r, const char *why)
{
    return cli_fail(EXIT_BAD_INPUT, "%s: line %lld: %s", r->path, (long long)r->number, why);
}

static json_t *read_cell(const char *text)
{
    char *end = NULL;
    long long n = strtoll(text, &end, 10);

    if (end != text && !*end)
        return json_integer(n);
    double x = strtod(text, &end);
    return end != text && !*end && isfinite(x) ? json_real(x) : json_null();
}

void history_set(json_t *o, const char *key, json_t *value)
{
    const char *slash = strchr(key, '/');
    char group[RECORD_KEY_BYTES];

    if (!slash || (size_t)(slash - key) >= sizeof group) {
        json_object_set_new(o, key, value);
        return;
    }
    snprintf(group, sizeof group, "%.*s", (int)(slash - key), key);
    if (!json_object_get(o, group))
        json_object_set_new(o, group, json_object());
    json_object_set_new(json_object_get(o, group), slash + 1, value);
}

static int read_row(reader *r)
{
    char *fields[MAX_COLUMNS], why[80];
    int n = csv_split(r->line, fields, MAX_COLUMNS);
    const char *bad = NULL;

    if (n != r->n_columns) {
        snprintf(why, sizeof why, "%d fields, %d columns in the header", n, r->n_columns);
        return fail_line(r, n < 0 ? "no row of CSV" : why);
    }
    json_t *o = json_object();
    for (int i = 0; i < n; i++)
        history_set(o, r->columns[i], read_cell(fields[i]));
    bad = history_record(r->h, o);
    json_decref(o);
    return bad ? fail_line(r, bad) : 0;
}

static int read_header(reader *r)
{
    r->header = strdup(r->line);
    if (!r->header)
        return cli_fail(EXIT_FAILURE, "out of memory for %s", r->path);
    r->n_columns = csv_split(r->header, r->columns, MAX_COLUMNS);
    return r->n_columns < 1 ? fail_line(r, "no header of CSV") : 0;
}

static int read_json(reader *r, size_t bytes)
{
    json_t *o = json_loadb(r->line, bytes, JSON_REJECT_DUPLICATES, NULL);
    const char *bad = o ? history_record(r->h, o) : "not JSON";

    json_decref(o);
    return bad ? fail_line(r, bad) : 0;
}

/* A last line without an end is one that is being written, or was when the run died. */
static int read_file(history *h, const char *path)
{
    reader r = {.h = h, .path = path};
    size_t len = strlen(path);
    bool csv = len > 4 && strcmp(path + len - 4, ".csv") == 0;
    FILE *in = fopen(path, "re");
    int bad = 0;

    if (!in)
        return cli_fail(EXIT_BAD_INPUT, "%s: %s", path, strerror(errno));
    while (!bad) {
        ssize_t n = getline(&r.line, &r.capacity, in);
        r.number++;
        if (n <= 0 || r.line[n - 1] != '\n')
            break;
        if (!csv)
            bad = read_json(&r, (size_t)n);
        else
            bad = r.number == 1 ? read_header(&r) : read_row(&r);
    }
    if (!bad && ferror(in))
        bad = cli_fail(EXIT_BAD_INPUT, "%s: %s", path, strerror(errno));
    free(r.line);
    free(r.header);
    fclose(in);
    return bad;
}

static bool exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

static int read_folder(history *h, const char *folder)
{
    char *jsonl = cli_path(folder, "metrics.jsonl"), *csv = cli_path(folder, "metrics.csv");
    char *val = cli_path(folder, "validation.csv");
    bool events = false;
    int bad = 0;

    if (exists(jsonl)) {
        bad = read_file(h, jsonl);
    } else if (exists(csv)) {
        bad = read_file(h, csv);
        if (!bad && exists(val))
            bad = read_file(h, val);
    } else {
        bad = history_read_events(h, folder, &events);
        if (!bad && !events)
            bad = cli_fail(EXIT_BAD_INPUT,
                           "%s: no metrics.jsonl, no metrics.csv and no event file in it", folder);
    }
    free(jsonl);
    free(csv);
    free(val);
    return bad;
}

int history_read(history *h, const char *path)
{
    struct stat st;
    int bad = 0;

    if (stat(path, &st))
        return cli_fail(EXIT_BAD_INPUT, "%s: %s", path, strerror(errno));
    bad = S_ISDIR(st.st_mode) ? read_folder(h, path) : read_file(h, path);
    if (!bad && !h->n && !h->n_epochs)
        bad = cli_fail(EXIT_BAD_INPUT, "%s: holds no step and no validation yet", path);
    return bad;
}
