/* added.c - the added tokens that stand in a text. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const acr_added *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);

    return order ? order : (x->n > y->n) - (x->n < y->n);
}

void acr_added_sort(acr_added_set *s)
{
    if (s->n)
        qsort(s->at, (size_t)s->n, sizeof *s->at, compare);
}

void acr_added_free(acr_added_set *s)
{
    for (int i = 0; i < s->n; i++)
        acr_free(s->at[i].text);
    acr_free(s->at);
    *s = (acr_added_set){0};
}

/* The first of the tokens [low, high), which have `depth` bytes in common, whose next byte is at
 * least `byte`; a token without one comes before all. */
static int bound(const acr_added_set *s, int low, int high, size_t depth, int byte)
{
    while (low < high) {
        const int middle = low + (high - low) / 2;
        const acr_added *t = &s->at[middle];
        const int next = t->n > depth ? (uint8_t)t->text[depth] : -1;
        if (next < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that `text` begins with; NULL: none. */
static const acr_added *longest(const acr_added_set *s, const char *text, size_t n)
{
    const acr_added *best = NULL;
    int low = 0, high = s->n;

    for (size_t depth = 0; low < high; depth++) {
        if (s->at[low].n == depth)
            best = &s->at[low];
        if (depth == n)
            break;
        const int byte = (uint8_t)text[depth];
        low = bound(s, low, high, depth, byte);
        high = bound(s, low, high, depth, byte + 1);
    }
    return best;
}

static bool is_alone(const char *text, size_t n, size_t begin, size_t end)
{
    size_t bytes = 0;

    return (begin == 0 || !acr_is_word(acr_utf8_before(text, text + begin, &bytes))) &&
           (end == n || !acr_is_word(acr_utf8_at(text + end, &bytes)));
}

static size_t strip_left(const char *text, size_t begin)
{
    size_t bytes = 0;

    while (begin && acr_is_space(acr_utf8_before(text, text + begin, &bytes)))
        begin -= bytes;
    return begin;
}

static size_t strip_right(const char *text, size_t n, size_t end)
{
    size_t bytes = 0;

    while (end < n && acr_is_space(acr_utf8_at(text + end, &bytes)))
        end += bytes;
    return end;
}

/* A match that does not count is passed over whole, as one that does; blanks that a token took may
 * begin the next one. */
accrue_status acr_added_split(const acr_added_set *s, const char *text, size_t n, bool special,
                              acr_word between, acr_added_token token, void *ctx, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool first[256] = {false};
    size_t done = 0;

    for (int i = 0; i < s->n; i++)
        first[(uint8_t)s->at[i].text[0]] = true;
    for (size_t i = 0; s->n && i < n;) {
        const acr_added *t = first[(uint8_t)text[i]] ? longest(s, text + i, n - i) : NULL;
        size_t begin = i, end = i;
        i += t ? t->n : 1;
        end = i;
        if (!t || (t->special && !special) || (t->single_word && !is_alone(text, n, begin, end)))
            continue;
        if (t->lstrip)
            begin = strip_left(text, begin);
        if (t->rstrip)
            end = strip_right(text, n, end);
        if (end <= done) /* what the token before has taken with it */
            continue;
        if (begin > done)
            ACR_TRY(between(ctx, text + done, begin - done, err));
        ACR_TRY(token(ctx, t->id, err));
        done = end;
    }
    if (done < n)
        ACR_TRY(between(ctx, text + done, n - done, err));

cleanup:
    return st;
}
