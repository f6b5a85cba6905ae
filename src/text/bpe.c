/* bpe.c - the vocabulary and the merges of a byte-level BPE tokenizer, and merging itself. */
#include "text/tokenizer_parts.h"

#include <string.h>

/* Bytes that print as Latin-1 stand for themselves, the others, in their order, for the characters
 * from U+0100 on: first 0x00 to 0x20, then 0x7f to 0xa0, then 0xad. */
int32_t acr_byte_character(uint8_t byte)
{
    if (byte <= 0x20)
        return 0x100 + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return 0x121 + (byte - 0x7f);
    return byte == 0xad ? 0x143 : byte;
}

int acr_character_byte(int32_t c)
{
    if (c >= 0x100 && c <= 0x120)
        return c - 0x100;
    if (c >= 0x121 && c <= 0x142)
        return c - 0x121 + 0x7f;
    if (c == 0x143)
        return 0xad;
    return c > 0x20 && c <= 0xff && acr_byte_character((uint8_t)c) == c ? c : -1;
}

void acr_bpe_free(acr_bpe *b)
{
    acr_free(b->tokens);
    acr_free(b->slots);
    acr_free(b->merges);
    acr_buffer_free(&b->spellings);
    acr_buffer_free(&b->texts);
}

/* A power of two of at least twice `n`: half of a table stays empty. */
static size_t table_size(size_t n)
{
    size_t size = 16;

    while (size < 2 * n)
        size *= 2;
    return size;
}

/* Vocabulary ------------------------------------------------------------------------------- */

accrue_status acr_bpe_reserve(acr_bpe *b, int64_t n_ids, size_t n_tokens, accrue_error *err)
{
    const size_t n = (size_t)n_ids;

    b->n_slots = table_size(n_tokens);
    b->n_ids = n_ids;
    b->tokens = acr_calloc(n ? n : 1, sizeof *b->tokens);
    b->slots = acr_calloc(b->n_slots, sizeof *b->slots);
    if (!b->tokens || !b->slots)
        return acr_enomem(err, n * sizeof *b->tokens + b->n_slots * sizeof *b->slots, "vocabulary");
    memset(b->slots, 0xff, b->n_slots * sizeof *b->slots);
    for (int i = 0; i < 256; i++)
        b->bytes[i] = -1;
    return ACCRUE_OK;
}

/* The slot of a spelling, or the empty one where it would be. */
static size_t slot_of(const acr_bpe *b, const char *spelling, size_t n)
{
    size_t i = acr_hash_bytes(spelling, n, 0) & (b->n_slots - 1);

    for (; b->slots[i] >= 0; i = (i + 1) & (b->n_slots - 1)) {
        const acr_token *t = &b->tokens[b->slots[i]];
        if (t->bytes == n && (!n || !memcmp(b->spellings.at + t->at, spelling, n)))
            break;
    }
    return i;
}

int32_t acr_bpe_find(const acr_bpe *b, const char *spelling, size_t n)
{
    return b->slots[slot_of(b, spelling, n)];
}

/* What the token decodes to: its bytes where all its characters stand for some, else itself. */
static accrue_status add_text(acr_bpe *b, acr_token *t, const char *shown, size_t n,
                              accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t bytes = 0;
    int byte = 0;

    t->text_at = (uint32_t)b->texts.n;
    for (size_t i = 0; i < n && byte >= 0; i += bytes) {
        byte = acr_character_byte(acr_utf8_at(shown + i, &bytes));
        const char c = (char)(uint8_t)byte;
        if (byte >= 0)
            ACR_TRY(acr_buffer_add(&b->texts, &c, 1, err));
    }
    if (byte < 0) {
        b->texts.n = t->text_at;
        ACR_TRY(acr_buffer_add(&b->texts, shown, n, err));
    }
    t->text_bytes = (uint32_t)(b->texts.n - t->text_at);

cleanup:
    return st;
}

accrue_status acr_bpe_add(acr_bpe *b, int32_t id, const char *spelling, size_t n, const char *shown,
                          size_t n_shown, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_token *t = &b->tokens[id];
    size_t bytes = 0;

    t->at = (uint32_t)b->spellings.n;
    t->bytes = (uint32_t)n;
    ACR_TRY(acr_buffer_add(&b->spellings, spelling, n, err));
    ACR_TRY(add_text(b, t, shown, n_shown, err));
    t->here = true;
    b->slots[slot_of(b, spelling, n)] = id;
    if (n) {
        const int byte = acr_character_byte(acr_utf8_at(spelling, &bytes));
        if (byte >= 0 && bytes == n)
            b->bytes[byte] = id;
    }

cleanup:
    return st;
}

/* Merges ----------------------------------------------------------------------------------- */

accrue_status acr_bpe_reserve_merges(acr_bpe *b, size_t n, accrue_error *err)
{
    b->n_merges = table_size(n);
    b->merges = acr_calloc(b->n_merges, sizeof *b->merges);
    if (!b->merges)
        return acr_enomem(err, b->n_merges * sizeof *b->merges, "merges");
    for (size_t i = 0; i < b->n_merges; i++)
        b->merges[i].pair = ACR_NO_PAIR;
    return ACCRUE_OK;
}

static acr_merge *merge_of(const acr_bpe *b, int32_t left, int32_t right)
{
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    const uint64_t mixed = (pair ^ pair >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    size_t i = (size_t)(mixed >> 32) & (b->n_merges - 1);

    while (b->merges[i].pair != pair && b->merges[i].pair != ACR_NO_PAIR)
        i = (i + 1) & (b->n_merges - 1);
    return &b->merges[i];
}

/* A pair listed twice has its last rank. */
void acr_bpe_add_merge(acr_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    acr_merge *m = merge_of(b, left, right);

    m->pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    m->rank = rank;
    m->id = id;
}

/* Merging ---------------------------------------------------------------------------------- */

/* A word of up to so many symbols is searched for its next merge; a longer one has a heap, so that
 * one of n bytes takes n log n steps. */
enum { SEARCHED = 24 };

void acr_bpe_room_free(acr_bpe_room *r)
{
    acr_free(r->symbols);
    acr_free(r->heap);
    acr_buffer_free(&r->spelled);
    *r = (acr_bpe_room){0};
}

/* The smallest entry is on top: the lowest rank, and of that the leftmost place. */
static accrue_status push(acr_bpe_room *r, uint64_t entry, accrue_error *err)
{
    size_t i = r->heap_used;

    if (i == r->n_heap) {
        const size_t n = 2 * r->n_heap + 64;
        uint64_t *heap = acr_realloc(r->heap, n * sizeof *heap);
        if (!heap)
            return acr_enomem(err, n * sizeof *heap, "merges of a word");
        r->heap = heap;
        r->n_heap = n;
    }
    r->heap_used++;
    for (; i && r->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = entry;
    return ACCRUE_OK;
}

static uint64_t pop(acr_bpe_room *r)
{
    const uint64_t top = r->heap[0], last = r->heap[--r->heap_used];
    size_t i = 0, child = 1;

    for (; child < r->heap_used; child = 2 * i + 1) {
        if (child + 1 < r->heap_used && r->heap[child + 1] < r->heap[child])
            child++;
        if (r->heap[child] >= last)
            break;
        r->heap[i] = r->heap[child];
        i = child;
    }
    r->heap[i] = last;
    return top;
}

/* Looks up the merge of the symbol at `place` with its next one. */
static accrue_status look_up(acr_bpe_room *r, const acr_bpe *b, int32_t place, bool heap,
                             accrue_error *err)
{
    acr_symbol *s = &r->symbols[place];
    const acr_merge *m = NULL;

    s->rank = UINT32_MAX;
    if (s->next < 0)
        return ACCRUE_OK;
    m = merge_of(b, s->id, r->symbols[s->next].id);
    if (m->pair == ACR_NO_PAIR)
        return ACCRUE_OK;
    s->rank = m->rank;
    s->merged = m->id;
    return heap ? push(r, (uint64_t)m->rank << 32 | (uint32_t)place, err) : ACCRUE_OK;
}

/* The place of the next merge; -1: none.  An entry of the heap whose symbol has another merge by
 * now, or none, has gone out of date. */
static int32_t next_merge(acr_bpe_room *r, bool heap)
{
    int32_t best = -1;
    uint32_t rank = UINT32_MAX;

    while (heap && r->heap_used) {
        const uint64_t entry = pop(r);
        if (r->symbols[(uint32_t)entry].rank == entry >> 32)
            return (int32_t)(uint32_t)entry;
    }
    for (int32_t i = 0; !heap && i >= 0; i = r->symbols[i].next)
        if (r->symbols[i].rank < rank) {
            rank = r->symbols[i].rank;
            best = i;
        }
    return best;
}

static accrue_status merge_all(acr_bpe_room *r, const acr_bpe *b, int32_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const bool heap = n > SEARCHED;
    int32_t place = 0;

    r->heap_used = 0;
    for (int32_t i = 0; i < n; i++)
        ACR_TRY(look_up(r, b, i, heap, err));
    while ((place = next_merge(r, heap)) >= 0) {
        acr_symbol *s = &r->symbols[place];
        acr_symbol *gone = &r->symbols[s->next];
        s->id = s->merged;
        s->next = gone->next;
        gone->rank = UINT32_MAX;
        if (s->next >= 0)
            r->symbols[s->next].previous = place;
        ACR_TRY(look_up(r, b, place, heap, err));
        if (s->previous >= 0)
            ACR_TRY(look_up(r, b, s->previous, heap, err));
    }

cleanup:
    return st;
}

static accrue_status make_room(acr_bpe_room *r, size_t n, accrue_error *err)
{
    acr_symbol *symbols = NULL;

    if (n <= r->n_symbols)
        return ACCRUE_OK;
    symbols = acr_realloc(r->symbols, 2 * n * sizeof *symbols);
    if (!symbols)
        return acr_enomem(err, 2 * n * sizeof *symbols, "symbols of a word");
    r->symbols = symbols;
    r->n_symbols = 2 * n;
    return ACCRUE_OK;
}

/* The id of the word as it is; -1: it is no token. */
static accrue_status whole_word(int32_t *id, const acr_bpe *b, acr_bpe_room *r, const char *word,
                                size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    *id = -1;
    r->spelled.n = 0;
    for (size_t i = 0; i < n; i++) {
        char c[4];
        const size_t bytes = acr_utf8_put(c, acr_byte_character((uint8_t)word[i]));
        ACR_TRY(acr_buffer_add(&r->spelled, c, bytes, err));
    }
    *id = acr_bpe_find(b, r->spelled.at, r->spelled.n);
    if (*id >= 0 && b->tokens[*id].added)
        *id = -1;

cleanup:
    return st;
}

accrue_status acr_bpe_encode(acr_ids *out, const acr_bpe *b, acr_bpe_room *r, const char *word,
                             size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int32_t id = -1, used = 0;

    if (b->ignore_merges) {
        ACR_TRY(whole_word(&id, b, r, word, n, err));
        if (id >= 0)
            return acr_ids_add(out, id, err);
    }
    ACR_TRY(make_room(r, n, err));
    for (size_t i = 0; i < n; i++) {
        id = b->bytes[(uint8_t)word[i]];
        if (id < 0) /* no token stands for this byte */
            continue;
        r->symbols[used] = (acr_symbol){.id = id, .previous = used - 1, .next = used + 1};
        used++;
    }
    if (!used)
        return ACCRUE_OK;
    r->symbols[used - 1].next = -1;
    ACR_TRY(merge_all(r, b, used, err));
    for (int32_t i = 0; i >= 0; i = r->symbols[i].next)
        ACR_TRY(acr_ids_add(out, r->symbols[i].id, err));

cleanup:
    return st;
}
