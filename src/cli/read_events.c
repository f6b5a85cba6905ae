/* read_events.c - scalars of TensorBoard's event files back into a history: accrue's and those of
 * the peer, whose own log on disk this is.  It writes an event per number, so what belongs to
 * one record is put together again by its step and its names. */
#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RECORD (64 << 20)
#define MAX_TAG    200

typedef struct reader {
    history *h;
    const char *path;
    int64_t number; /* of the record in the file */
    json_t *pending;
    int64_t step; /* of what is pending */
    bool session; /* one has begun */
} reader;

static int fail_record(const reader *r, const char *why)
{
    return cli_fail(EXIT_BAD_INPUT, "%s: record %lld: %s", r->path, (long long)r->number, why);
}

/* Protobuf -------------------------------------------------------------------------------- */

typedef struct field {
    unsigned number;
    const uint8_t *at; /* of a block or a fixed number */
    uint64_t n;        /* bytes there, or the value of a varint */
} field;

static bool take_varint(uint64_t *x, const uint8_t **at, const uint8_t *end)
{
    *x = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        *x |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

/* Whether there is another field; *broken when what is there is none. */
static bool take_field(field *f, const uint8_t **at, const uint8_t *end, bool *broken)
{
    static const uint64_t sizes[] = {0, 8, 0, 0, 0, 4, 0, 0};
    uint64_t key = 0;

    if (*at >= end || *broken)
        return false;
    *broken = !take_varint(&key, at, end);
    unsigned type = key & 7;
    *f = (field){.number = (unsigned)(key >> 3), .n = sizes[type]};
    if (!*broken && (type == 0 || type == 2))
        *broken = !take_varint(&f->n, at, end);
    f->at = *at;
    if (type == 0)
        return !*broken;
    *broken |= (type != 1 && type != 2 && type != 5) || f->n > (uint64_t)(end - *at);
    if (!*broken)
        *at += f->n;
    return !*broken;
}

/* Records --------------------------------------------------------------------------------- */

static int flush(reader *r)
{
    const char *bad = r->pending ? history_record(r->h, r->pending) : NULL;

    json_decref(r->pending);
    r->pending = NULL;
    return bad ? fail_record(r, bad) : 0;
}

static bool begins(const char *tag, const char *group)
{
    return strncmp(tag, group, strlen(group)) == 0;
}

/* Whether the number is of another record than those before it. */
static bool is_next(const reader *r, const char *tag, int64_t step)
{
    return step != r->step || (begins(tag, "train/") && json_object_get(r->pending, "val")) ||
           (begins(tag, "val/") && json_object_get(r->pending, "train"));
}

static int add_scalar(reader *r, const char *tag, double x, int64_t step)
{
    bool whole = strcmp(tag, "epoch") == 0 && isfinite(x) && fabs(x) < 1e9;
    int bad = 0;

    if (r->pending && is_next(r, tag, step))
        bad = flush(r);
    if (!r->pending)
        r->pending = json_pack("{s:I}", "step", (json_int_t)step);
    r->step = step;
    history_set(r->pending, tag,
                whole         ? json_integer((json_int_t)x)
                : isfinite(x) ? json_real(x)
                              : json_null());
    return bad;
}

/* Drops what a session before this one logged from its beginning on. */
static int begin_session(reader *r, int64_t step)
{
    int bad = flush(r);

    if (r->session)
        history_drop(r->h, step);
    r->session = true;
    return bad;
}

static int read_value(reader *r, const uint8_t *at, const uint8_t *end, int64_t step, bool *broken)
{
    char tag[MAX_TAG] = "";
    bool has_value = false;
    uint32_t bits = 0;
    float x = 0;
    field f;

    while (take_field(&f, &at, end, broken)) {
        if (f.number == 1 && f.n < sizeof tag)
            snprintf(tag, sizeof tag, "%.*s", (int)f.n, (const char *)f.at);
        if (f.number == 2 && f.n == 4) {
            has_value = true;
            for (int i = 0; i < 4; i++)
                bits |= (uint32_t)f.at[i] << 8 * i;
        }
    }
    memcpy(&x, &bits, sizeof x);
    return has_value && tag[0] ? add_scalar(r, tag, (double)x, step) : 0;
}

static int read_event(reader *r, const uint8_t *at, const uint8_t *end)
{
    const uint8_t *summary = NULL, *summary_end = NULL;
    int64_t step = 0;
    bool broken = false, start = false;
    int bad = 0;
    field f, inner;

    while (take_field(&f, &at, end, &broken)) {
        if (f.number == 2)
            step = (int64_t)f.n;
        if (f.number == 5) {
            summary = f.at;
            summary_end = f.at + f.n;
        }
        for (const uint8_t *s = f.at; f.number == 7 && take_field(&inner, &s, f.at + f.n, &broken);)
            start |= inner.number == 1 && inner.n == 1;
    }
    if (start)
        bad = begin_session(r, step);
    while (!bad && summary && take_field(&f, &summary, summary_end, &broken))
        if (f.number == 1)
            bad = read_value(r, f.at, f.at + f.n, step, &broken);
    return !bad && broken ? fail_record(r, "no event") : bad;
}

/* Files ----------------------------------------------------------------------------------- */

static uint64_t little(const uint8_t *at, int n)
{
    uint64_t x = 0;

    for (int i = 0; i < n; i++)
        x |= (uint64_t)at[i] << 8 * i;
    return x;
}

/* A record that the file ends in is one that is being written, or was when the run died. */
static int read_records(reader *r, FILE *in)
{
    uint8_t head[12], *body = NULL;
    int bad = 0;

    for (r->number = 1; !bad && fread(head, 1, sizeof head, in) == sizeof head; r->number++) {
        uint64_t n = little(head, 8);
        if (little(head + 8, 4) != tensorboard_crc(head, 8) || n > MAX_RECORD) {
            bad = fail_record(r, "the checksum of its length is wrong");
            break;
        }
        body = cli_realloc(body, n + 4, 1);
        if (fread(body, 1, n + 4, in) != n + 4)
            break;
        if (little(body + n, 4) != tensorboard_crc(body, n))
            bad = fail_record(r, "its checksum is wrong");
        else
            bad = read_event(r, body, body + n);
    }
    free(body);
    if (!bad && ferror(in))
        bad = cli_fail(EXIT_BAD_INPUT, "%s: %s", r->path, strerror(errno));
    return bad;
}

static int is_event_file(const struct dirent *d)
{
    return begins(d->d_name, TENSORBOARD_PREFIX);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int history_read_events(history *h, const char *folder, bool *found)
{
    struct dirent **names = NULL;
    reader r = {.h = h};
    int n = scandir(folder, &names, is_event_file, by_name), bad = 0;

    *found = n > 0;
    for (int i = 0; i < n; i++) {
        char *path = cli_path(folder, names[i]->d_name);
        FILE *in = bad ? NULL : fopen(path, "re");
        r.path = path;
        if (!bad)
            bad = in ? read_records(&r, in)
                     : cli_fail(EXIT_BAD_INPUT, "%s: %s", path, strerror(errno));
        if (!bad)
            bad = flush(&r);
        if (in)
            fclose(in);
        free(path);
        free(names[i]);
    }
    json_decref(r.pending);
    free(names);
    return bad;
}
