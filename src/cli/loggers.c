/* loggers.c - where a run's records go: always into metrics.jsonl of --save-path, and into the
 * loggers that --logger names, under --log-dir/<run's name>. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const struct {
    const char *name;
    unsigned bit; /* 0: the peer's, not supported */
} known[] = {{"tensorboard", LOGGER_TENSORBOARD},
             {"csv", LOGGER_CSV},
             {"jsonl", LOGGER_JSONL},
             {"trackio", 0},
             {"wandb", 0},
             {"mlflow", 0}};

static const int n_known = (int)(sizeof known / sizeof known[0]);

static int add_logger(unsigned *set, const char *name, int len)
{
    for (int i = 0; i < n_known; i++) {
        if (strncmp(known[i].name, name, (size_t)len) != 0 || known[i].name[len])
            continue;
        *set |= known[i].bit;
        if (known[i].bit)
            return 0;
        return cli_fail(EXIT_BAD_INPUT,
                        "--logger %s is not supported; tensorboard, csv and jsonl are",
                        known[i].name);
    }
    return cli_fail(EXIT_BAD_INPUT, "--logger: '%.*s', one of tensorboard, csv, jsonl expected",
                    len, name);
}

int loggers_parse(unsigned *set, const char *names)
{
    int bad = 0;

    *set = 0;
    for (const char *s = names; s && !bad;) {
        int len = (int)strcspn(s, ",");
        const char *next = s[len] ? s + len + 1 : NULL;
        while (len && *s == ' ') {
            s++;
            len--;
        }
        while (len && s[len - 1] == ' ')
            len--;
        bad = add_logger(set, s, len);
        s = next;
    }
    return bad;
}

/* Run's name ------------------------------------------------------------------------------ */

static void put_time(FILE *out, bool utc)
{
    time_t now = time(NULL);
    struct tm parts;
    char text[40];

    utc ? gmtime_r(&now, &parts) : localtime_r(&now, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    fprintf(out, "%s%s", text, utc ? "+00:00" : "");
}

/* The number that a launcher gave the process, 0 without one. */
static int put_rank(FILE *out, const char *variable)
{
    const char *value = getenv(variable);
    char *end = NULL;
    long long rank = value ? strtoll(value, &end, 10) : 0;

    if (value && (end == value || *end))
        return cli_fail(EXIT_BAD_INPUT, "%s in the environment: '%s', a whole number expected",
                        variable, value);
    fprintf(out, "%lld", rank);
    return 0;
}

static int put_run_name(FILE *out, const char *name)
{
    int bad = 0;

    while (*name && !bad) {
        const char *end = *name == '{' ? strchr(name, '}') : NULL;
        size_t len = end ? (size_t)(end - name) + 1 : 1;
        if (strncmp(name, "{time}", len) == 0 && len == 6)
            put_time(out, false);
        else if (strncmp(name, "{utc_time}", len) == 0 && len == 10)
            put_time(out, true);
        else if (strncmp(name, "{rank}", len) == 0 && len == 6)
            bad = put_rank(out, "RANK");
        else if (strncmp(name, "{local_rank}", len) == 0 && len == 12)
            bad = put_rank(out, "LOCAL_RANK");
        else
            len = fwrite(name, 1, 1, out);
        name += len;
    }
    return bad;
}

int loggers_folder(char **folder, const char *log_dir, const char *run_name)
{
    char *name = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&name, &bytes);
    int bad = 0;

    *folder = NULL;
    if (!out)
        return cli_fail(EXIT_FAILURE, "out of memory for the run's name");
    bad = put_run_name(out, run_name ? run_name : "{time}");
    fclose(out);
    if (!bad)
        *folder = cli_path(log_dir, name);
    free(name);
    return bad;
}

/* Sinks ----------------------------------------------------------------------------------- */

static int fail(run_log *log, const char *path, const char *why)
{
    snprintf(log->failed, sizeof log->failed, "%s: %s", path, why ? why : strerror(errno));
    return -1;
}

static bool same_folder(const char *a, const char *b)
{
    struct stat x, y;

    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int open_loggers(run_log *log, const char *save_path, const accrue_event *start)
{
    if (cli_make_folder(log->folder))
        return fail(log, log->folder, NULL);
    if (same_folder(log->folder, save_path))
        log->set &= ~(unsigned)LOGGER_JSONL; /* is there already */
    if (log->set & LOGGER_JSONL && metrics_open(&log->jsonl, log->folder, start, NULL))
        return fail(log, log->jsonl.path, NULL);
    if (log->set & LOGGER_CSV && csv_open(&log->train, log->folder, false, start))
        return fail(log, log->train.to.path, NULL);
    if (log->set & LOGGER_CSV && csv_open(&log->val, log->folder, true, start))
        return fail(log, log->val.to.path, NULL);
    if (log->set & LOGGER_TENSORBOARD && tensorboard_open(&log->tensorboard, log->folder, start))
        return fail(log, log->tensorboard.path, NULL);
    return 0;
}

/* The validation at the very step where a run goes on would go with what comes after it. */
static int repeat_validation(run_log *log, const accrue_event *start, const history *h)
{
    accrue_event e = {.epoch = start->epoch - 1, .global_step = start->global_step};
    static record r;

    if (!(log->set & LOGGER_TENSORBOARD) || !start->resumed || start->micro_batch || e.epoch < 0 ||
        e.epoch >= h->n_epochs || !h->epochs[e.epoch].has_val)
        return 0;
    e.metrics = h->epochs[e.epoch].val;
    record_validation(&r, &e);
    return tensorboard_write(&log->tensorboard, &r) ? fail(log, log->tensorboard.path, NULL) : 0;
}

int log_open(run_log *log, const char *save_path, const accrue_event *start, history *h)
{
    errno = 0;
    if (metrics_open(&log->metrics, save_path, start, h))
        return fail(log, log->metrics.path, NULL);
    if (log->set && open_loggers(log, save_path, start))
        return -1;
    return repeat_validation(log, start, h);
}

static int write_record(run_log *log, const record *r)
{
    csv_log *csv = r->validation ? &log->val : &log->train;

    errno = 0;
    if (metrics_write(&log->metrics, r))
        return fail(log, log->metrics.path, NULL);
    if (log->jsonl.file && metrics_write(&log->jsonl, r))
        return fail(log, log->jsonl.path, NULL);
    if (csv->to.file && csv_write(csv, r))
        return fail(log, csv->to.path, csv->why);
    if (log->tensorboard.file && tensorboard_write(&log->tensorboard, r))
        return fail(log, log->tensorboard.path, NULL);
    return 0;
}

int log_step(run_log *log, const accrue_event *e)
{
    static record r;

    if ((e->global_step - 1) % log->freq)
        return 0;
    record_step(&r, e, log->muon);
    return write_record(log, &r);
}

int log_validation(run_log *log, const accrue_event *e)
{
    static record r;

    record_validation(&r, e);
    return write_record(log, &r);
}

int log_close(run_log *log)
{
    log_file *const files[] = {&log->metrics, &log->jsonl, &log->tensorboard, &log->train.to,
                               &log->val.to};
    int failed = 0;

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (files[i]->file && fclose(files[i]->file))
            failed = fail(log, files[i]->path, NULL);
        free(files[i]->path);
        *files[i] = (log_file){0};
    }
    free(log->train.header);
    free(log->val.header);
    return failed;
}
