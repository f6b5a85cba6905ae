/* metrics.c - metrics.jsonl: one record per logged optimizer step and per validation.  A record is
 * written whole and flushed, so a run that dies leaves no half line but its last. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the record was written before the point where the run goes on; it goes into the history
 * then. */
static bool is_before(const char *line, size_t bytes, const accrue_event *start, history *h)
{
    json_t *o = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    bool train = json_object_get(o, "train"), val = json_object_get(o, "val");
    const json_t *epoch = json_object_get(o, "epoch"), *step = json_object_get(o, "global_step");
    int64_t e = json_integer_value(epoch);
    bool kept = train != val && json_is_integer(epoch) && (val || json_is_integer(step)) &&
                record_kept(val, e, json_integer_value(step), start);

    if (kept && h) {
        kept = !history_record(h, o);
        if (kept)
            h->epochs[e].restored = true;
    }
    json_decref(o);
    return kept;
}

/* Cuts what a run wrote after its checkpoint, a broken last line included: it is made again. */
static int cut(const char *path, const accrue_event *start, history *h)
{
    FILE *in = fopen(path, "re");
    char *line = NULL;
    size_t capacity = 0;
    off_t kept = 0;
    int failed = 0;

    if (!in)
        return errno == ENOENT ? 0 : -1;
    for (;;) {
        ssize_t n = getline(&line, &capacity, in);
        if (n <= 0 || line[n - 1] != '\n' || !is_before(line, (size_t)n, start, h))
            break;
        kept += n;
    }
    failed = ferror(in);
    free(line);
    fclose(in);
    return failed || truncate(path, kept) ? -1 : 0;
}

int metrics_open(log_file *log, const char *folder, const accrue_event *start, history *h)
{
    *log = (log_file){.path = cli_path(folder, "metrics.jsonl")};
    if (cli_make_folder(folder))
        return -1;
    if (!start->resumed || !cut(log->path, start, h))
        log->file = fopen(log->path, start->resumed ? "ae" : "we");
    return log->file ? 0 : -1;
}

/* {"train": {"loss": 1, ...}, "epoch": 0, ...}: the part before a slash is an object. */
static void put_record(FILE *out, const record *r)
{
    const char *group = "";
    size_t len = 0;

    for (int i = 0; i < r->n; i++) {
        const char *key = r->items[i].key, *slash = strchr(key, '/');
        size_t now = slash ? (size_t)(slash - key) : 0;
        bool same = now == len && strncmp(key, group, len) == 0;
        if (len && !same)
            fputc('}', out);
        fputs(i ? ", " : "{", out);
        if (now && !same)
            fprintf(out, "\"%.*s\": {", (int)now, key);
        group = key;
        len = now;
        fprintf(out, "\"%s\": %s", slash ? slash + 1 : key, format_exact(r->items[i].value).s);
    }
    fputs(len ? "}}\n" : "}\n", out);
}

int metrics_write(log_file *log, const record *r)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    int failed = 0;

    if (!out)
        return -1;
    put_record(out, r);
    failed = fclose(out) || fwrite(text, 1, bytes, log->file) != bytes || fflush(log->file);
    free(text);
    return failed ? -1 : 0;
}
