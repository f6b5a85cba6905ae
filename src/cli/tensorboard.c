/* tensorboard.c - event files as TensorBoard opens them.
 *
 * A file is a sequence of records: length (u64), its masked CRC-32C, a protobuf of type Event,
 * its masked CRC-32C.  Of Event only these fields are written: 1 wall_time (double), 2 step
 * (int64), 3 file_version (string), 5 summary {1 value {1 tag, 2 simple_value (float)}...} and
 * 7 session_log {1 status}.  That is less code than generated messages would need.
 *
 * A run that goes on begins a new file with a session start at its step: readers then drop what
 * files before it, in the order of their names, hold from there on. */
#include "cli.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_EVENT (RECORD_ITEMS * (RECORD_KEY_BYTES + 16) + 64)

typedef struct bytes {
    size_t n;
    uint8_t at[MAX_EVENT];
} bytes;

static uint32_t crc32c(const uint8_t *at, size_t n)
{
    static uint32_t rest[256];
    uint32_t crc = UINT32_MAX;

    if (!rest[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int bit = 0; bit < 8; bit++)
                c = c >> 1 ^ (c & 1 ? UINT32_C(0x82f63b78) : 0);
            rest[i] = c;
        }
    for (size_t i = 0; i < n; i++)
        crc = rest[(crc ^ at[i]) & 255] ^ crc >> 8;
    return ~crc;
}

/* A checksum of bytes that hold checksums is weak, so the format rotates and shifts it. */
uint32_t tensorboard_crc(const uint8_t *at, size_t n)
{
    uint32_t crc = crc32c(at, n);

    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static void put_bytes(bytes *b, const void *from, size_t n)
{
    if (n > sizeof b->at - b->n)
        n = sizeof b->at - b->n;
    memcpy(b->at + b->n, from, n);
    b->n += n;
}

static void put_little(bytes *b, uint64_t x, int n)
{
    uint8_t out[8];

    for (int i = 0; i < n; i++)
        out[i] = (uint8_t)(x >> 8 * i);
    put_bytes(b, out, (size_t)n);
}

static void put_varint(bytes *b, uint64_t x)
{
    for (; x > 127; x >>= 7)
        put_little(b, (x & 127) | 128, 1);
    put_little(b, x, 1);
}

enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 };

static void put_key(bytes *b, unsigned field, unsigned type)
{
    put_varint(b, field << 3 | type);
}

static void put_block(bytes *b, unsigned field, const void *from, size_t n)
{
    put_key(b, field, LENGTH);
    put_varint(b, n);
    put_bytes(b, from, n);
}

/* What every event begins with. */
static void begin(bytes *b, int64_t step)
{
    struct timespec now = {0};
    uint64_t bits = 0;

    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    memcpy(&bits, &seconds, sizeof bits);
    b->n = 0;
    put_key(b, 1, FIXED64);
    put_little(b, bits, 8);
    put_key(b, 2, VARINT);
    put_varint(b, (uint64_t)step);
}

static int write_event(FILE *file, const bytes *event)
{
    static bytes framed;

    framed.n = 0;
    put_little(&framed, event->n, 8);
    put_little(&framed, tensorboard_crc(framed.at, 8), 4);
    put_bytes(&framed, event->at, event->n);
    put_little(&framed, tensorboard_crc(event->at, event->n), 4);
    return fwrite(framed.at, 1, framed.n, file) == framed.n && !fflush(file) ? 0 : -1;
}

/* The second in the name orders the files, so it is later than those that are there. */
static long long next_second(const char *folder)
{
    long long next = (long long)time(NULL);
    DIR *dir = opendir(folder);
    size_t len = strlen(TENSORBOARD_PREFIX);

    for (const struct dirent *d = NULL; dir && (d = readdir(dir));)
        if (strncmp(d->d_name, TENSORBOARD_PREFIX, len) == 0) {
            long long second = strtoll(d->d_name + len, NULL, 10);
            if (second >= next && second < INT32_MAX)
                next = second + 1;
        }
    if (dir)
        closedir(dir);
    return next;
}

int tensorboard_open(log_file *log, const char *folder, const accrue_event *start)
{
    static const uint8_t started[] = {1 << 3 | VARINT, 1};
    static bytes event;
    char host[128] = "", name[300];
    int64_t step = start->resumed ? start->global_step : 0;

    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, TENSORBOARD_PREFIX "%010lld.%s.%lld.0", next_second(folder), host,
             (long long)getpid());
    *log = (log_file){.path = cli_path(folder, name), .made = true};
    log->file = fopen(log->path, "wxe");
    if (!log->file)
        return -1;
    begin(&event, step);
    put_block(&event, 3, "brain.Event:2", 13);
    if (write_event(log->file, &event))
        return -1;
    begin(&event, step);
    put_block(&event, 7, started, sizeof started);
    return write_event(log->file, &event);
}

int tensorboard_write(log_file *log, const record *r)
{
    static bytes event, summary, value;

    summary.n = 0;
    for (int i = 0; i < r->n; i++) {
        float x = (float)r->items[i].value;
        uint32_t bits = 0;
        memcpy(&bits, &x, sizeof bits);
        value.n = 0;
        put_block(&value, 1, r->items[i].key, strlen(r->items[i].key));
        put_key(&value, 2, FIXED32);
        put_little(&value, bits, 4);
        put_block(&summary, 1, value.at, value.n);
    }
    begin(&event, r->step);
    put_block(&event, 5, summary.at, summary.n);
    return write_event(log->file, &event);
}
