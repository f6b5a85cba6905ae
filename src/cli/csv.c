/* csv.c - metrics.csv and validation.csv as RFC 4180 has them: one row per logged step or
 * validation under a header that never changes.  Two files, because their columns differ and a
 * table with holes reads badly. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

typedef struct reading {
    csv_log *log;
    const accrue_event *start;
} reading;

static int commas_of(const char *line)
{
    int n = 0;

    for (; *line; line++)
        n += *line == ',';
    return n;
}

/* The first line is the header; a row, "step,epoch,...", has as many fields. */
static log_line judge(char *line, size_t bytes, void *ctx)
{
    const reading *r = ctx;
    char *end = NULL;

    (void)bytes;
    if (!r->log->header) {
        r->log->header = strdup(line);
        return r->log->header ? LINE_KEPT : LINE_BROKEN;
    }
    long long step = strtoll(line, &end, 10);
    if (end == line || *end != ',' || commas_of(line) != commas_of(r->log->header))
        return LINE_BROKEN;
    const char *at = end + 1;
    long long epoch = strtoll(at, &end, 10);
    if (end == at || *end != ',')
        return LINE_BROKEN;
    return record_kept(r->log->validation, epoch, step, r->start) ? LINE_KEPT : LINE_LATER;
}

int csv_open(csv_log *log, const char *folder, bool validation)
{
    *log = (csv_log){.validation = validation};
    return log_file_open(&log->to, folder, validation ? "validation.csv" : "metrics.csv");
}

int csv_cut(csv_log *log, const accrue_event *start)
{
    reading r = {log, start};

    return log_file_cut(&log->to, judge, &r);
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
    failed = fclose(out) || log->why || log_file_append(&log->to, text + skip, bytes - skip);
    log->started = true;
    free(text);
    return failed ? -1 : 0;
}
