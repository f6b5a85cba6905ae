/* mem.c - counted allocation and the arena.
 *
 * Each block carries its size, and the ledger that it is charged to, in a header of ACR_ALIGN bytes
 * before the address handed out. */
#include "base/base.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_uint_fast64_t n_allocations;
static atomic_uint_fast64_t fail_countdown;
static atomic_size_t live_bytes;
static _Thread_local uint64_t fail_here;
static _Thread_local acr_ledger *used;

typedef struct header {
    size_t bytes;
    acr_ledger *ledger; /* or NULL */
} header;

uint64_t acr_allocations(void)
{
    return atomic_load(&n_allocations);
}

void acr_count_allocation(void)
{
    atomic_fetch_add(&n_allocations, 1);
}

size_t acr_allocated_bytes(void)
{
    return atomic_load(&live_bytes);
}

void acr_fail_allocation(uint64_t n)
{
    atomic_store(&fail_countdown, n);
}

void acr_fail_allocation_here(uint64_t n)
{
    fail_here = n;
}

static bool must_fail(void)
{
    uint_fast64_t n = atomic_load(&fail_countdown);
    const bool here = fail_here && --fail_here == 0;

    while (n && !atomic_compare_exchange_weak(&fail_countdown, &n, n - 1))
        ;
    return n == 1 || here;
}

void acr_ledger_use(acr_ledger *l)
{
    used = l;
}

acr_ledger *acr_ledger_used(void)
{
    return used;
}

static void charge(acr_ledger *l, size_t bytes)
{
    const size_t live = atomic_fetch_add(&l->live, bytes) + bytes;
    size_t high = atomic_load(&l->high);

    while (live > high && !atomic_compare_exchange_weak(&l->high, &high, live))
        ;
}

void *acr_malloc(size_t bytes)
{
    const header h = {.bytes = bytes, .ledger = used};
    unsigned char *block = NULL;
    size_t whole = 0;

    if (bytes > SIZE_MAX - 3 * ACR_ALIGN || must_fail())
        return NULL;
    whole = (bytes + 2 * ACR_ALIGN - 1) / ACR_ALIGN * ACR_ALIGN;
    block = aligned_alloc(ACR_ALIGN, whole);
    if (!block)
        return NULL;
    memcpy(block, &h, sizeof h);
    atomic_fetch_add(&n_allocations, 1);
    atomic_fetch_add(&live_bytes, bytes);
    if (h.ledger)
        charge(h.ledger, bytes);
    return block + ACR_ALIGN;
}

static header header_of(const void *block)
{
    header h;

    memcpy(&h, (const unsigned char *)block - ACR_ALIGN, sizeof h);
    return h;
}

void *acr_calloc(size_t count, size_t size)
{
    void *block = NULL;

    if (size && count > SIZE_MAX / size)
        return NULL;
    block = acr_malloc(count * size);
    if (block)
        memset(block, 0, count * size);
    return block;
}

void *acr_realloc(void *block, size_t bytes)
{
    void *bigger = acr_malloc(bytes);

    if (bigger && block) {
        size_t old = header_of(block).bytes;
        memcpy(bigger, block, old < bytes ? old : bytes);
        acr_free(block);
    }
    return bigger;
}

void acr_free(void *block)
{
    header h;

    if (!block)
        return;
    h = header_of(block);
    atomic_fetch_sub(&live_bytes, h.bytes);
    if (h.ledger)
        atomic_fetch_sub(&h.ledger->live, h.bytes);
    free((unsigned char *)block - ACR_ALIGN);
}

void acr_prefer_large_pages(void *block, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)2 << 20;
    const uintptr_t first = ((uintptr_t)block + page - 1) / page * page;
    const uintptr_t last = ((uintptr_t)block + bytes) / page * page;

    if (first < last)
        madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)block;
    (void)bytes;
#endif
}

char *acr_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = acr_malloc(n);

    return copy ? memcpy(copy, s, n) : NULL;
}

char *acr_sprintf(const char *format, ...)
{
    va_list args;
    char *text = NULL;
    int n = 0;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !(text = acr_malloc((size_t)n + 1)))
        return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

struct acr_arena_block {
    struct acr_arena_block *next;
    size_t bytes;
    unsigned char *data;
};

enum { FIRST_BLOCK = 1 << 20 };

static size_t round_up(size_t bytes)
{
    return (bytes + ACR_ALIGN - 1) / ACR_ALIGN * ACR_ALIGN;
}

static struct acr_arena_block *block_new(size_t bytes)
{
    struct acr_arena_block *b = acr_calloc(1, sizeof *b);

    if (!b)
        return NULL;
    b->bytes = bytes;
    b->data = acr_malloc(bytes);
    if (!b->data) {
        acr_free(b);
        return NULL;
    }
    return b;
}

void acr_arena_init(acr_arena *a)
{
    memset(a, 0, sizeof *a);
}

bool acr_arena_reserve(acr_arena *a, size_t bytes)
{
    struct acr_arena_block *b = block_new(round_up(bytes));

    if (!b)
        return false;
    b->next = a->first;
    a->first = b;
    acr_arena_reset(a);
    return true;
}

void *acr_arena_alloc(acr_arena *a, size_t bytes)
{
    unsigned char *p = NULL;

    if (bytes > SIZE_MAX / 2 - a->total)
        return NULL;
    bytes = round_up(bytes ? bytes : 1);
    if (!a->measuring) {
        while (a->current && a->used + bytes > a->current->bytes && a->current->next) {
            a->current = a->current->next;
            a->used = 0;
        }
        if (!a->current || a->used + bytes > a->current->bytes) {
            size_t want = a->current ? 2 * a->current->bytes : FIRST_BLOCK;
            struct acr_arena_block *b = block_new(want > bytes ? want : bytes);
            if (!b)
                return NULL;
            if (a->current)
                a->current->next = b;
            else
                a->first = b;
            a->current = b;
            a->used = 0;
        }
        p = a->current->data + a->used;
        a->used += bytes;
    } else {
        p = (unsigned char *)(uintptr_t)ACR_ALIGN + a->total;
    }
    a->total += bytes;
    if (a->total > a->high)
        a->high = a->total;
    return p;
}

void acr_arena_reset(acr_arena *a)
{
    a->current = a->first;
    a->used = 0;
    a->total = 0;
}

void acr_arena_free(acr_arena *a)
{
    while (a->first) {
        struct acr_arena_block *next = a->first->next;
        acr_free(a->first->data);
        acr_free(a->first);
        a->first = next;
    }
    acr_arena_init(a);
}
