/* events.h - reads TensorBoard's event files as the format says, for tests of what writes them. */
#ifndef EVENTS_H
#define EVENTS_H

#include "cli_test.h"

#include <dirent.h>

#define MAX_EVENTS 400
#define MAX_VALUES 64

typedef struct event {
    double wall_time;
    int64_t step;
    char version[40];
    int session; /* its status, 0 without one */
    int n;
    char tag[MAX_VALUES][64];
    float value[MAX_VALUES];
} event;

static event events[MAX_EVENTS];
static int n_events;

/* Bit by bit, from the polynomial. */
static inline uint32_t crc32c(const uint8_t *at, size_t n)
{
    uint32_t crc = 0xffffffff;

    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint32_t low = (crc ^ (uint32_t)at[i] >> bit) & 1;
            crc = crc >> 1 ^ (low ? 0x82f63b78 : 0);
        }
    return crc ^ 0xffffffff;
}

static inline uint32_t masked(const uint8_t *at, size_t n)
{
    uint32_t crc = crc32c(at, n);

    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

static inline uint64_t little(const uint8_t *at, int n)
{
    uint64_t x = 0;

    for (int i = 0; i < n; i++)
        x |= (uint64_t)at[i] << 8 * i;
    return x;
}

static inline uint64_t varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t x = 0;

    for (int shift = 0;; shift += 7) {
        assert_true(*at < end && shift < 64);
        uint8_t byte = *(*at)++;
        x |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return x;
    }
}

/* The next field: its number, its bytes, and for a varint its value. */
static inline int field(const uint8_t **at, const uint8_t *end, const uint8_t **bytes, uint64_t *n)
{
    uint64_t key = varint(at, end);

    *bytes = *at;
    switch (key & 7) {
    case 0: *n = varint(at, end); return (int)(key >> 3);
    case 1: *n = 8; break;
    case 2:
        *n = varint(at, end);
        *bytes = *at;
        break;
    case 5: *n = 4; break;
    default: fail_msg("wire type %d", (int)(key & 7));
    }
    assert_true(*n <= (uint64_t)(end - *at));
    *at += *n;
    return (int)(key >> 3);
}

static inline void read_value(event *e, const uint8_t *at, const uint8_t *end)
{
    const uint8_t *bytes = NULL;
    uint64_t n = 0;
    uint32_t bits = 0;

    assert_true(e->n < MAX_VALUES);
    while (at < end) {
        switch (field(&at, end, &bytes, &n)) {
        case 1:
            assert_true(n < sizeof e->tag[0]);
            memcpy(e->tag[e->n], bytes, n);
            break;
        case 2:
            bits = (uint32_t)little(bytes, 4);
            memcpy(&e->value[e->n], &bits, 4);
            break;
        default: fail_msg("a field of a value that is none");
        }
    }
    e->n++;
}

static inline void read_event(event *e, const uint8_t *at, const uint8_t *end)
{
    const uint8_t *bytes = NULL, *inner = NULL;
    uint64_t n = 0, bits = 0, status = 0;

    memset(e, 0, sizeof *e);
    while (at < end) {
        switch (field(&at, end, &bytes, &n)) {
        case 1:
            bits = little(bytes, 8);
            memcpy(&e->wall_time, &bits, 8);
            break;
        case 2: e->step = (int64_t)n; break;
        case 3: memcpy(e->version, bytes, n); break;
        case 5:
            for (const uint8_t *s = bytes, *stop = bytes + n; s < stop;) {
                assert_int_equal(field(&s, stop, &inner, &n), 1);
                read_value(e, inner, inner + n);
            }
            break;
        case 7:
            assert_int_equal(field(&bytes, bytes + n, &inner, &status), 1);
            e->session = (int)status;
            break;
        default: fail_msg("a field of an event that is none");
        }
    }
}

static inline size_t load(uint8_t *bytes, size_t most, const char *path)
{
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    size_t n = fread(bytes, 1, most, f);
    assert_true(n < most);
    fclose(f);
    return n;
}

/* Appends a file's events; a session's start drops those from its step on, as readers do.  The
 * bytes of a torn last record are returned. */
static inline size_t read_events(const char *path)
{
    static uint8_t bytes[1 << 20];
    static bool session;
    size_t n = load(bytes, sizeof bytes, path), at = 0;

    if (!n_events)
        session = false;
    while (n - at >= 12) {
        uint64_t len = little(bytes + at, 8);
        assert_int_equal(little(bytes + at + 8, 4), masked(bytes + at, 8));
        if (len + 16 > n - at)
            break;
        assert_int_equal(little(bytes + at + 12 + len, 4), masked(bytes + at + 12, len));
        assert_true(n_events < MAX_EVENTS);
        event *e = &events[n_events];
        read_event(e, bytes + at + 12, bytes + at + 12 + len);
        if (e->session && session) {
            int kept = 0;
            event start = *e;
            for (int i = 0; i < n_events; i++)
                if (events[i].step < start.step || events[i].version[0])
                    events[kept++] = events[i];
            events[kept] = start;
            n_events = kept;
        }
        session |= e->session != 0;
        n_events++;
        at += len + 16;
    }
    return n - at;
}

static inline void save(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static inline int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static inline int is_event_file(const struct dirent *d)
{
    return strncmp(d->d_name, "events.out.tfevents.", 20) == 0;
}

/* All event files of a folder, in the order of their names; their number.  `last` is the last. */
static inline int read_event_folder(const char *folder, char *last)
{
    struct dirent **names = NULL;
    int n = scandir(folder, &names, is_event_file, by_name);

    n_events = 0;
    for (int i = 0; i < n; i++) {
        snprintf(last, 400, "%s/%s", folder, names[i]->d_name);
        read_events(last);
        free(names[i]);
    }
    free(names);
    return n;
}

#endif
