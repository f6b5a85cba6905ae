/* csv.c - metrics.csv and validation.csv as RFC 4180 has them: one row per logged step or
 * validation under a header that never changes.  Two files, because their columns differ and a
 * table with holes reads badly. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int csv_split(char *line, char **fields, int most)
{
    int n = 0;
    char *to = line;

    for (const char *s = line;; s++) {
        bool quoted = *s == '"';
        if (n == most)
            return -1;
        fields[n++] = to;
        for (s += quoted; *s; s++) {
            if (quoted && *s == '"' && s[1] != '"') {
                s++;
                quoted = false;
                break;
            }
            if (!quoted && strchr(",\r\n", *s))
                break;
            s += quoted && *s == '"'; /* a doubled quote stands for one */
            *to++ = *s;
        }
        if (quoted || (*s && !strchr(",\r\n", *s)))
            return -1;
        bool more = *s == ',';
        *to++ = '\0';
        if (!more)
            return n;
    }
}

/* Whether a row, "step,epoch,...", was written before the point where the run goes on. */
static bool is_before(const csv_log *log, const char *row, const accrue_event *start)
{
    char *end = NULL;
    long long step = strtoll(row, &end, 10);

    if (end == row || *end != ',')
        return false;
    const char *at = end + 1;
    long long epoch = strtoll(at, &end, 10);
    return end != at && *end == ',' && record_kept(log->validation, epoch, step, start);
}

/* Keeps the header and the rows before `start`, of a file that is there. */
static int cut(csv_log *log, const accrue_event *start)
{
    FILE *in = fopen(log->to.path, "re");
    char *line = NULL;
    size_t capacity = 0;
    off_t kept = 0;

    if (!in)
        return errno == ENOENT ? 0 : -1;
    for (;;) {
        ssize_t n = getline(&line, &capacity, in);
        if (n <= 0 || line[n - 1] != '\n' || (kept && !is_before(log, line, start)))
            break;
        if (!kept) {
            log->header = line;
            line = NULL;
        }
        kept += n;
    }
    int failed = ferror(in);
    free(line);
    fclose(in);
    return failed || truncate(log->to.path, kept) ? -1 : 0;
}

int csv_open(csv_log *log, const char *folder, bool validation, const accrue_event *start)
{
    *log = (csv_log){.validation = validation,
                     .to.path = cli_path(folder, validation ? "validation.csv" : "metrics.csv")};
    if (!start->resumed || !cut(log, start))
        log->to.file = fopen(log->to.path, start->resumed ? "ae" : "we");
    return log->to.file ? 0 : -1;
}

/* The step stands first, under one name in both files. */
static bool is_column(const char *key)
{
    return strcmp(key, "global_step") != 0 && strcmp(key, "epoch") != 0;
}

static void put_header(FILE *out, const record *r)
{
    fputs("step,epoch", out);
    for (int i = 0; i < r->n; i++)
        if (is_column(r->items[i].key))
            fprintf(out, ",%s", r->items[i].key);
    fputs("\r\n", out);
}

static void put_row(FILE *out, const record *r)
{
    fprintf(out, "%lld,%lld", (long long)r->step, (long long)r->epoch);
    for (int i = 0; i < r->n; i++) {
        double x = r->items[i].value;
        if (!is_column(r->items[i].key))
            continue;
        if (isfinite(x))
            fprintf(out, ",%s", format_exact(x).s);
        else
            fprintf(out, ",%s", isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
    }
    fputs("\r\n", out);
}

int csv_write(csv_log *log, const record *r)
{
    char *text = NULL;
    size_t bytes = 0, skip = 0;
    FILE *out = open_memstream(&text, &bytes);
    int failed = 0;

    if (!out)
        return -1;
    if (!log->started)
        put_header(out, r);
    fflush(out);
    if (!log->started && log->header) {
        skip = bytes;
        if (strcmp(text, log->header) != 0)
            log->why = "has other columns than this run; --run-name gives it a folder of its own";
    }
    put_row(out, r);
    failed = fclose(out) || log->why ||
             fwrite(text + skip, 1, bytes - skip, log->to.file) < bytes - skip ||
             fflush(log->to.file);
    log->started = true;
    free(text);
    return failed ? -1 : 0;
}
