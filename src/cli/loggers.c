/* loggers.c - where a run's records go: always into metrics.jsonl of --save-path, and into the
 * loggers that --logger names, under --log-dir/<run's name>. */
#include "cli.h"

#include "flags.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { N_FILES = 5 };

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

static int put_number(FILE *out, int number)
{
    fprintf(out, "%d", number);
    return 0;
}

static const char *const placeholders[] = {"{time}", "{utc_time}", "{rank}", "{local_rank}"};
enum { TIME, UTC_TIME, RANK, LOCAL_RANK, N_PLACEHOLDERS };

/* Which one begins `name`, or -1. */
static int placeholder_at(const char *name)
{
    for (int i = 0; i < N_PLACEHOLDERS; i++)
        if (strncmp(name, placeholders[i], strlen(placeholders[i])) == 0)
            return i;
    return -1;
}

static const char *placeholder_candidate(int i, void *ctx)
{
    (void)ctx;
    return placeholders[i];
}

int loggers_check_name(const char *where, const char *run_name)
{
    for (const char *s = run_name; s && *s; s++) {
        const char *end = *s == '{' ? strchr(s, '}') : NULL;
        char word[100];
        if (!end || placeholder_at(s) >= 0)
            continue;
        snprintf(word, sizeof word, "%.*s", (int)(end - s) + 1, s);
        const char *near = nearest_name(word, placeholder_candidate, N_PLACEHOLDERS, NULL);
        if (near)
            return cli_fail(EXIT_BAD_INPUT, "%s: %s: no such placeholder; did you mean %s?", where,
                            word, near);
        return cli_fail(EXIT_BAD_INPUT,
                        "%s: %s: no such placeholder; {time}, {utc_time}, {rank} and {local_rank} "
                        "are known",
                        where, word);
    }
    return 0;
}

static int put_run_name(FILE *out, bool *timed, const char *name, const launch *l)
{
    const bool launched = l->launcher;
    int bad = 0;

    while (*name && !bad) {
        int which = placeholder_at(name);
        *timed |= which == TIME || which == UTC_TIME;
        switch (which) {
        case TIME: put_time(out, false); break;
        case UTC_TIME: put_time(out, true); break;
        case RANK: bad = launched ? put_number(out, l->rank) : put_rank(out, "RANK"); break;
        case LOCAL_RANK:
            bad = launched ? put_number(out, l->local_rank) : put_rank(out, "LOCAL_RANK");
            break;
        default: fputc(*name, out);
        }
        name += which < 0 ? 1 : strlen(placeholders[which]);
    }
    return bad;
}

/* What no file system takes is refused before anything is written. */
static int check_lengths(const char *where, const char *path)
{
    for (const char *s = path; *s; s += *s == '/') {
        size_t len = strcspn(s, "/");
        if (len > NAME_MAX)
            return cli_fail(EXIT_BAD_INPUT, "%s: a name of %zu bytes, at most %d expected", where,
                            len, NAME_MAX);
        s += len;
    }
    if (strlen(path) > PATH_MAX / 2)
        return cli_fail(EXIT_BAD_INPUT, "%s: a path of %zu bytes, at most %d expected", where,
                        strlen(path), PATH_MAX / 2);
    return 0;
}

int loggers_folder(char **folder, bool *timed, const char *log_dir, const char *run_name,
                   const launch *l)
{
    char *name = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&name, &bytes);
    int bad = 0;

    *folder = NULL;
    *timed = false;
    if (!out)
        return cli_fail(EXIT_FAILURE, "out of memory for the run's name");
    bad = put_run_name(out, timed, run_name ? run_name : "{time}", l);
    fclose(out);
    if (!bad)
        bad = check_lengths("--log-dir", log_dir);
    if (!bad)
        bad = check_lengths("--run-name", name);
    if (!bad)
        *folder = cli_path(log_dir, name);
    free(name);
    return bad;
}

/* Opening --------------------------------------------------------------------------------- */

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

static int make_log_folder(run_log *log)
{
    struct stat st;

    log->made_folder = stat(log->folder, &st) != 0;
    return log->own_folder ? log_folder_make_new(&log->folder) : cli_make_folder(log->folder);
}

static int open_loggers(run_log *log, const char *save_path, const accrue_event *start)
{
    if (make_log_folder(log))
        return fail(log, log->folder, NULL);
    if (same_folder(log->folder, save_path)) {
        log->set &= ~(unsigned)LOGGER_JSONL; /* is there already */
    } else if (log_folder_taken(log->folder, &log->lock)) {
        snprintf(log->failed, sizeof log->failed,
                 "%s: another run writes its logs there; --run-name gives this one a folder of its "
                 "own",
                 log->folder);
        log->made_folder = false; /* though it was not there a moment ago */
        return EXIT_BAD_INPUT;
    }
    if (log->set & LOGGER_JSONL && log_file_open(&log->jsonl, log->folder, "metrics.jsonl"))
        return fail(log, log->jsonl.path, NULL);
    if (log->set & LOGGER_CSV && csv_open(&log->train, log->folder, false))
        return fail(log, log->train.to.path, NULL);
    if (log->set & LOGGER_CSV && csv_open(&log->val, log->folder, true))
        return fail(log, log->val.to.path, NULL);
    if (log->set & LOGGER_TENSORBOARD && tensorboard_open(&log->tensorboard, log->folder, start))
        return fail(log, log->tensorboard.path, NULL);
    return 0;
}

static void files_of(run_log *log, log_file *files[N_FILES])
{
    log_file *const all[N_FILES] = {&log->metrics, &log->jsonl, &log->tensorboard, &log->train.to,
                                    &log->val.to};

    memcpy(files, all, sizeof all);
}

void log_discard(run_log *log)
{
    log_file *files[N_FILES];

    files_of(log, files);
    for (int i = 0; i < N_FILES; i++)
        log_file_discard(files[i]);
    if (log->folder && log->made_folder)
        rmdir(log->folder);
}

int log_open(run_log *log, const char *save_path, const accrue_event *start)
{
    int bad = 0;

    errno = 0;
    if (cli_make_folder(save_path) || log_file_open(&log->metrics, save_path, "metrics.jsonl"))
        bad = fail(log, log->metrics.path ? log->metrics.path : save_path, NULL);
    if (!bad && log->set)
        bad = open_loggers(log, save_path, start);
    if (bad)
        log_discard(log);
    return bad < 0 ? EXIT_FAILURE : bad;
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

static int begin_csv(csv_log *log, const accrue_event *start)
{
    if (!log->to.file)
        return 0;
    return start->resumed ? csv_cut(log, start) : log_file_begin(&log->to);
}

static int begin_jsonl(log_file *log, const accrue_event *start, history *h)
{
    if (!log->file)
        return 0;
    return start->resumed ? metrics_cut(log, start, h) : log_file_begin(log);
}

int log_begin(run_log *log, const accrue_event *start, history *h)
{
    errno = 0;
    if (begin_jsonl(&log->metrics, start, h))
        return fail(log, log->metrics.path, NULL);
    if (begin_jsonl(&log->jsonl, start, NULL))
        return fail(log, log->jsonl.path, NULL);
    if (begin_csv(&log->train, start))
        return fail(log, log->train.to.path, NULL);
    if (begin_csv(&log->val, start))
        return fail(log, log->val.to.path, NULL);
    return repeat_validation(log, start, h);
}

/* Writing --------------------------------------------------------------------------------- */

/* The file ends here: what comes later must not stand behind a gap. */
static int lose(run_log *log, log_file *file, int64_t step, const char *why)
{
    file->lost = true;
    file->lost_step = step;
    snprintf(file->why, sizeof file->why, "%s", why ? why : strerror(errno));
    (void)log_file_close(file);
    snprintf(log->failed, sizeof log->failed, "%s: %s; no records from step %lld on", file->path,
             file->why, (long long)step);
    return -1;
}

static int write_record(run_log *log, const record *r)
{
    csv_log *csv = r->validation ? &log->val : &log->train;
    int failed = 0;

    errno = 0;
    if (log->metrics.file && metrics_write(&log->metrics, r))
        failed = lose(log, &log->metrics, r->step, NULL);
    if (log->jsonl.file && metrics_write(&log->jsonl, r))
        failed = lose(log, &log->jsonl, r->step, NULL);
    if (csv->to.file && csv_write(csv, r))
        failed = lose(log, &csv->to, r->step, csv->why);
    if (log->tensorboard.file && tensorboard_write(&log->tensorboard, r))
        failed = lose(log, &log->tensorboard, r->step, NULL);
    return failed;
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

/* Closing --------------------------------------------------------------------------------- */

static void tell_gone(log_file *const files[N_FILES])
{
    char list[800] = "";

    for (int i = 0; i < N_FILES; i++) {
        size_t used = strlen(list);
        if (log_file_gone(files[i]))
            snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", files[i]->path);
    }
    if (list[0])
        cli_notice("removed while the run went on: %s", list);
}

int log_close(run_log *log)
{
    log_file *files[N_FILES];
    int code = 0;

    files_of(log, files);
    tell_gone(files);
    for (int i = 0; i < N_FILES; i++) {
        log_file *f = files[i];
        if (f->lost)
            code = cli_fail(EXIT_FAILURE, "%s: %s; no records from step %lld on", f->path, f->why,
                            (long long)f->lost_step);
        else if (log_file_close(f))
            code = cli_fail(EXIT_FAILURE, "%s: %s; its last records may be lacking", f->path,
                            strerror(errno));
    }
    return code;
}

void log_free(run_log *log)
{
    log_file *files[N_FILES];

    files_of(log, files);
    for (int i = 0; i < N_FILES; i++)
        free(files[i]->path);
    free(log->train.header);
    free(log->val.header);
    free(log->folder);
    if (log->lock >= 0)
        close(log->lock);
}
