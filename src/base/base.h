/* base.h - what every layer uses: status, memory, random numbers, threads, JSON files.
 *
 * A function that can fail returns accrue_status and has one exit:
 *
 *     accrue_status st = ACCRUE_OK;
 *     thing *x = NULL;
 *     ACR_TRY(thing_open(&x, err));
 *     *out = x; x = NULL;
 * cleanup:
 *     thing_free(x);
 *     return st;
 */
#ifndef ACR_BASE_H
#define ACR_BASE_H

#include "accrue/accrue.h"

#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#define ACR_TRY(expr)                                                                              \
    do {                                                                                           \
        st = (expr);                                                                               \
        if (st)                                                                                    \
            goto cleanup;                                                                          \
    } while (0)

#define ACR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ACR_COUNT(array)      ((int)(sizeof(array) / sizeof((array)[0])))
#define ACR_ALIGN             64 /* bytes; a cache line, and the widest vector */

/* Fills `err` (may be NULL) with one line, as acr_text makes it, and returns `status`. */
accrue_status acr_fail(accrue_error *err, accrue_status status, const char *format, ...)
    ACR_PRINTF(3, 4);
accrue_status acr_fail_errno(accrue_error *err, int errnum, const char *what, const char *path);

/* Copies `s` as text that can be shown and put into JSON: valid UTF-8 on one line, cut between two
 * characters.  A byte that is none, or of a control character or a byte order mark, becomes \xNN,
 * white space a blank.  `s` may hold such a copy already, which stays as it is. */
void acr_text(char *out, size_t room, const char *s);

/* Memory.  Every allocation of the library goes through these, so that tests can count them and
 * make the n-th one fail.  Blocks are ACR_ALIGN-aligned; acr_calloc checks the product.  A failure
 * returns NULL; acr_free accepts NULL. */
void *acr_malloc(size_t bytes);
void *acr_calloc(size_t count, size_t size);
void *acr_realloc(void *block, size_t bytes); /* contents move; alignment holds */
void acr_free(void *block);
/* Before a block is written that is read in one go later: in large pages memory is read faster. */
void acr_prefer_large_pages(void *block, size_t bytes);
char *acr_strdup(const char *s);
char *acr_sprintf(const char *format, ...) ACR_PRINTF(1, 2); /* NULL when out of memory */
accrue_status acr_enomem(accrue_error *err, size_t bytes, const char *what);

/* Things created so far whose number must not grow in the steady state: blocks above, and
 * compiled GEMM primitives (acr_count_allocation counts one that a library made for us). */
uint64_t acr_allocations(void);
void acr_count_allocation(void);
size_t acr_allocated_bytes(void);          /* live bytes */
void acr_fail_allocation(uint64_t n);      /* the n-th from now fails once; 0: none */
void acr_fail_allocation_here(uint64_t n); /* the same, of the calling thread's */

/* Live bytes of one rank among several in a process: of what its threads allocate while they go by
 * its ledger, whoever frees it.  It must outlive these blocks; { 0 } is an empty one. */
typedef struct acr_ledger {
    _Atomic size_t live, high; /* high: largest `live` ever */
} acr_ledger;
void acr_ledger_use(acr_ledger *l); /* by the calling thread from here on; NULL: none */
acr_ledger *acr_ledger_used(void);

/* Arena: bump allocation out of blocks that are kept over resets. */
typedef struct acr_arena {
    struct acr_arena_block *first, *current;
    size_t used;    /* in `current` */
    size_t total;   /* handed out since the last reset, alignment included */
    size_t high;    /* largest `total` ever */
    bool measuring; /* hands out addresses that must not be touched, allocates nothing */
} acr_arena;

void acr_arena_init(acr_arena *a);
bool acr_arena_reserve(acr_arena *a, size_t bytes); /* one block of at least that; empty arena */
void *acr_arena_alloc(acr_arena *a, size_t bytes);  /* ACR_ALIGN-aligned, uninitialised; or NULL */
void acr_arena_reset(acr_arena *a);
void acr_arena_free(acr_arena *a);

/* Counter-based random numbers: a draw is a function of its key alone (splitmix64 finalisers over
 * the words of the key): no generator state exists, no draw depends on ranks, N or resuming. */
typedef enum acr_purpose {
    ACR_RANDOM_SHUFFLE = 1, /* a = epoch, b = row */
    ACR_RANDOM_INIT = 2,    /* a = hash of the parameter's name, b = element */
    ACR_RANDOM_SAMPLE = 3   /* a = row, b = position of the token */
} acr_purpose;
uint64_t acr_random_u64(uint64_t seed, acr_purpose purpose, uint64_t a, uint64_t b);
double acr_random_normal(uint64_t seed, acr_purpose purpose, uint64_t a, uint64_t b); /* N(0,1) */
uint64_t acr_hash_string(const char *s);

/* XXH3 of 64 bits; a former hash as `seed` chains several arrays.  Not for security. */
uint64_t acr_hash_bytes(const void *bytes, size_t n, uint64_t seed);
/* The same of bytes that come in pieces, with seed 0. */
typedef struct acr_hasher acr_hasher;
acr_hasher *acr_hasher_create(void); /* NULL when out of memory */
void acr_hasher_add(acr_hasher *h, const void *bytes, size_t n);
uint64_t acr_hasher_value(const acr_hasher *h);
void acr_hasher_free(acr_hasher *h);

/* Runs task(i, ctx) for i in [0, n) on the process's pool, or the calling thread's own.  Which
 * thread runs which i is not fixed: a task must write only what no other task writes. */
typedef void (*acr_task)(int64_t i, void *ctx);
void acr_parallel(int64_t n, acr_task task, void *ctx);
int acr_threads(void); /* of that pool */
/* The cores that this process may use: launchers of several processes give each its own. */
void acr_allowed_cpus(cpu_set_t *out);
/* From here on the calling thread does its tasks alone and leaves the pool to the others. */
void acr_parallel_alone(void);

/* A pool of the calling thread's own, for a rank among several in one process: the thread goes by
 * it until it leaves it, which ends the pool's workers.  These use the ledger that the thread uses
 * on entering.  `threads` counts the thread itself; below 1 it is 1.  After a failure the thread
 * goes by what it went by before. */
typedef struct acr_pool acr_pool;
accrue_status acr_pool_enter(acr_pool **out, int threads, accrue_error *err);
void acr_pool_leave(acr_pool *pool); /* by the same thread, the one entered last; accepts NULL */

/* Starts a thread that takes no signal: those are for the process's own threads.  Returns 0, or an
 * errno. */
int acr_thread_start(pthread_t *out, void *(*main)(void *), void *arg);
/* A lock and its condition, whose timed waits go by a clock that nobody sets; false where the
 * system has none to give. */
bool acr_lock_init(pthread_mutex_t *lock, pthread_cond_t *changed);
void acr_lock_free(pthread_mutex_t *lock, pthread_cond_t *changed);
struct timespec acr_deadline(double seconds); /* so far from now, for a timed wait on it */
double acr_seconds(void);                     /* monotonic, like these */

/* Bytes of the byte order mark that a text begins with, as editors on Windows write one: 3 or 0. */
static inline size_t acr_mark_bytes(const void *text, size_t bytes)
{
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* Strict JSON: duplicate keys, trailing text, non-finite numbers and files over `max_bytes` are
 * EFORMAT with line and column, and so is a byte order mark.  *out is the caller's reference. */
accrue_status acr_json_load(json_t **out, const char *path, size_t max_bytes, accrue_error *err);
accrue_status acr_json_parse(json_t **out, const char *text, size_t bytes, const char *name,
                             accrue_error *err);
/* A value as JSON for messages: on one line, cut to `room` bytes ("..." ends it); "missing" for
 * NULL. */
void acr_json_brief(char *out, size_t room, const json_t *value);
/* A string for people to read: where it is not UTF-8, as acr_text makes it. */
json_t *acr_json_string(const char *s); /* NULL when out of memory */
/* Indent 2, sorted keys, shortest numbers that read back equal, final newline. */
char *acr_json_text(const json_t *value); /* acr_free; NULL when out of memory */

/* A file written from its start to its end.  Where the disk is full the message says how much of
 * `expected` bytes there was room for. */
typedef struct acr_output {
    const char *path; /* borrowed */
    int fd;
    size_t expected, written, pushed; /* pushed: on their way to the disk */
    acr_hasher *hasher;               /* borrowed; sees what is written; may be NULL */
} acr_output;
accrue_status acr_output_open(acr_output *out, const char *path, size_t expected,
                              acr_hasher *hasher, accrue_error *err);
accrue_status acr_output_write(acr_output *o, const void *bytes, size_t n, accrue_error *err);
accrue_status acr_output_close(acr_output *o, accrue_error *err); /* in any case */

accrue_status acr_write_file(const char *path, const void *bytes, size_t n, accrue_error *err);
/* The same by way of another name on the same disk: what has the file's own name is whole. */
accrue_status acr_replace_file(const char *path, const char *temporary, const void *bytes, size_t n,
                               accrue_error *err);
accrue_status acr_sync(const char *path, accrue_error *err); /* a file or folder, to the disk */
accrue_status acr_make_parents(const char *path, accrue_error *err); /* the folders above it */
/* To take that back: how many bytes of the path name folders that are there, and the removal of
 * those beyond that are empty. */
size_t acr_parents_there(const char *path);
void acr_remove_parents(const char *path, size_t there);
char *acr_parent(const char *path); /* the folder that it is in; NULL when out of memory */
/* A copy of `path`, or of the name that it leads to as a symbolic link, so that what is renamed to
 * it leaves the link alone; EIO where it leads nowhere. */
accrue_status acr_linked_path(char **out, const char *path, accrue_error *err);
/* ENOSPACE where the file system of `dir` has no room for so much; `what` it is, for messages. */
accrue_status acr_check_room(const char *dir, int64_t bytes, const char *what, accrue_error *err);
/* Whether it is like one of the patterns ("d2t-*.npy"), which NULL ends. */
bool acr_is_like(const char *name, const char *const *patterns);
/* Removes the files of such names, and the folder where that leaves it empty; never what a link in
 * its place points at. */
void acr_remove_folder(const char *path, const char *const *patterns);
bool acr_is_dir(const char *path);
bool acr_is_file(const char *path);
bool acr_is_link(const char *path);
bool acr_exists(const char *path);        /* whatever it is, also where nobody may look at it */
int64_t acr_file_bytes(const char *path); /* -1 where there is none */

/* Opens a regular file for reading; nothing else is waited for or touched. */
accrue_status acr_open_file(int *fd, int64_t *bytes, const char *path, accrue_error *err);

/* A read-only mapping of a whole file.  An empty file maps to data = NULL, bytes = 0. */
typedef struct acr_map {
    const uint8_t *data;
    size_t bytes;
} acr_map;
accrue_status acr_map_open(acr_map *out, const char *path, accrue_error *err);
void acr_map_close(acr_map *map);
/* Lets bytes of a mapping that have been read leave memory; they can be read again. */
void acr_map_release(const void *data, size_t bytes);

#endif
