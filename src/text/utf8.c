/* utf8.c - characters of a text: validity, classes, composition, repair. */
#include "text/utf8.h"

#include <string.h>
#include <utf8proc.h>

/* The lengths of characters, and what may be their second byte, by the first one (Unicode, table
 * 3-7); 0 for bytes that begin none. */
static size_t expected(uint8_t first, uint8_t *low, uint8_t *high)
{
    *low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    return first < 0x80    ? 1
           : first < 0xc2  ? 0
           : first < 0xe0  ? 2
           : first < 0xf0  ? 3
           : first <= 0xf4 ? 4
                           : 0;
}

size_t acr_utf8_step(const char *p, size_t n, bool *valid)
{
    const uint8_t *u = (const uint8_t *)p;
    uint8_t low = 0, high = 0;
    const size_t length = expected(u[0], &low, &high);
    size_t k = 1;

    if (length > 1 && n > 1 && u[1] >= low && u[1] <= high)
        for (k = 2; k < length && k < n && (u[k] & 0xc0) == 0x80;)
            k++;
    *valid = k == length;
    return k;
}

size_t acr_utf8_bad(const char *p, size_t n)
{
    size_t i = 0;
    bool valid = true;

    while (i < n) {
        uint64_t eight = 0;
        if (i + 8 <= n) {
            memcpy(&eight, p + i, 8);
            if (!(eight & UINT64_C(0x8080808080808080))) {
                i += 8;
                continue;
            }
        }
        size_t k = acr_utf8_step(p + i, n - i, &valid);
        if (!valid)
            return i;
        i += k;
    }
    return n;
}

int32_t acr_utf8_at(const char *p, size_t *bytes)
{
    utf8proc_int32_t c = 0;

    *bytes = (size_t)utf8proc_iterate((const utf8proc_uint8_t *)p, -1, &c);
    return c;
}

int32_t acr_utf8_before(const char *p, const char *end, size_t *bytes)
{
    const char *q = end - 1;

    while (q > p && ((uint8_t)*q & 0xc0) == 0x80)
        q--;
    return acr_utf8_at(q, bytes);
}

size_t acr_utf8_put(char *out, int32_t c)
{
    return (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out);
}

bool acr_is_space(int32_t c)
{
    return (c >= '\t' && c <= '\r') || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

static bool is_newer_word(char category)
{
    return category == 'L' || category == 'M' || category == 'N';
}

bool acr_is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    case UTF8PROC_CATEGORY_SO: /* letters in circles and squares are alphabetic */
        return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    case UTF8PROC_CATEGORY_CN: return is_newer_word(acr_newer_category(c));
    default: return c == 0x200c || c == 0x200d; /* joiners */
    }
}

bool acr_is_number(int32_t c)
{
    const utf8proc_category_t category = utf8proc_category(c);

    if (c < 0x80)
        return c >= '0' && c <= '9';
    if (category == UTF8PROC_CATEGORY_CN)
        return acr_newer_category(c) == 'N';
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_NO;
}

/* Growing texts ---------------------------------------------------------------------------- */

accrue_status acr_buffer_add(acr_buffer *b, const char *bytes, size_t n, accrue_error *err)
{
    if (n >= SIZE_MAX / 4 - b->n)
        return acr_enomem(err, n, "text");
    if (b->n + n + 1 > b->room) {
        size_t room = 2 * (b->n + n + 32);
        char *at = acr_realloc(b->at, room);
        if (!at)
            return acr_enomem(err, room, "text");
        b->at = at;
        b->room = room;
    }
    if (n)
        memcpy(b->at + b->n, bytes, n);
    b->n += n;
    b->at[b->n] = '\0';
    return ACCRUE_OK;
}

accrue_status acr_buffer_add_text(acr_buffer *b, const char *text, accrue_error *err)
{
    return acr_buffer_add(b, text, strlen(text), err);
}

void acr_buffer_free(acr_buffer *b)
{
    acr_free(b->at);
    *b = (acr_buffer){0};
}

accrue_status acr_utf8_repair(acr_buffer *out, const char *bytes, size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool valid = true;

    while (n) {
        const size_t good = acr_utf8_bad(bytes, n);
        ACR_TRY(acr_buffer_add(out, bytes, good, err));
        bytes += good;
        n -= good;
        if (n) {
            const size_t bad = acr_utf8_step(bytes, n, &valid);
            ACR_TRY(acr_buffer_add(out, "\xef\xbf\xbd", 3, err));
            bytes += bad;
            n -= bad;
        }
    }

cleanup:
    return st;
}

/* Composition ------------------------------------------------------------------------------ */

static int class_of(int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Sorts a run of marks by their class, those of one class in their order: counted, because a text
 * may hold a million of them, and utf8proc's own way is quadratic. */
static void sort_marks(int32_t *at, int32_t *spare, size_t n)
{
    size_t begin[257] = {0};

    for (size_t i = 0; i < n; i++)
        begin[class_of(at[i]) + 1]++;
    for (int k = 0; k < 256; k++)
        begin[k + 1] += begin[k];
    for (size_t i = 0; i < n; i++)
        spare[begin[class_of(at[i])]++] = at[i];
    memcpy(at, spare, n * sizeof *at);
}

static void order_marks(int32_t *at, int32_t *spare, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && class_of(at[end]))
            end++;
        if (end > i + 1)
            sort_marks(at + i, spare, end - i);
        i = end > i ? end : i + 1;
    }
}

/* Canonical decomposition.  `room` has two places for each byte: a character becomes three for two
 * bytes at most, or four for three. */
static size_t decompose(int32_t *out, size_t room, const char *text, size_t n)
{
    size_t used = 0, bytes = 0;
    int last = 0;

    for (size_t i = 0; i < n; i += bytes) {
        const int32_t c = acr_utf8_at(text + i, &bytes);
        const utf8proc_ssize_t k = utf8proc_decompose_char(
            c, out + used, (utf8proc_ssize_t)(room - used), UTF8PROC_DECOMPOSE, &last);
        if (k < 0 || (size_t)k > room - used)
            return SIZE_MAX;
        used += (size_t)k;
    }
    return used;
}

/* Below U+0300, which begins with the byte 0xCC, nothing composes and nothing has another form. */
static bool is_plain(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)text[i] >= 0xcc)
            return false;
    return true;
}

accrue_status acr_nfc(acr_buffer *out, const char *text, size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int32_t *all = NULL;
    const size_t room = 2 * n + 8;
    size_t used = 0;
    utf8proc_ssize_t composed = 0;

    if (is_plain(text, n))
        return acr_buffer_add(out, text, n, err);
    all = acr_calloc(2 * room, sizeof *all);
    if (!all) {
        st = acr_enomem(err, 2 * room * sizeof *all, "text to normalize");
        goto cleanup;
    }
    used = decompose(all, room, text, n);
    if (used != SIZE_MAX) {
        order_marks(all, all + room, used);
        composed = utf8proc_normalize_utf32(all, (utf8proc_ssize_t)used,
                                            UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    }
    if (used == SIZE_MAX || composed < 0) {
        st = acr_fail(err, ACCRUE_EFORMAT, "text of %zu bytes cannot be normalized", n);
        goto cleanup;
    }
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        char c[4];
        ACR_TRY(acr_buffer_add(out, c, acr_utf8_put(c, all[i]), err));
    }

cleanup:
    acr_free(all);
    return st;
}
