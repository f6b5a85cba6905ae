/* metrics.c - metrics.jsonl: one record per logged optimizer step and per validation.  A record is
 * written whole and flushed, so a run that dies leaves no half line but its last. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct reading {
    const accrue_event *start;
    history *h;
} reading;

/* A record from before the point where the run goes on goes into the history. */
static log_line judge(char *line, size_t bytes, void *ctx)
{
    const reading *r = ctx;
    json_t *o = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, NULL);
    bool train = json_object_get(o, "train"), val = json_object_get(o, "val");
    const json_t *epoch = json_object_get(o, "epoch"), *step = json_object_get(o, "global_step");
    int64_t e = json_integer_value(epoch);
    log_line kind = LINE_BROKEN;

    if (train != val && json_is_integer(epoch) && (val || json_is_integer(step)))
        kind = record_kept(val, e, json_integer_value(step), r->start) ? LINE_KEPT : LINE_LATER;
    if (kind == LINE_KEPT && r->h && history_record(r->h, o))
        kind = LINE_BROKEN;
    else if (kind == LINE_KEPT && r->h)
        r->h->epochs[e].restored = true;
    json_decref(o);
    return kind;
}

int metrics_cut(log_file *log, const accrue_event *start, history *h)
{
    reading r = {start, h};

    return log_file_cut(log, judge, &r);
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
    failed = fclose(out) || log_file_append(log, text, bytes);
    free(text);
    return failed ? -1 : 0;
}
