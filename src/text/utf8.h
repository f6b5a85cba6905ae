/* utf8.h - characters of a text, and texts that grow; of the files of this folder. */
#ifndef ACR_TEXT_UTF8_H
#define ACR_TEXT_UTF8_H

#include "base/base.h"

/* The length of the character at `p`, of `n` > 0 bytes; where there is none, *valid is false and
 * the length that of the longest part of one (at least 1), which one U+FFFD replaces. */
size_t acr_utf8_step(const char *p, size_t n, bool *valid);
/* Where the first byte is that belongs to no character; `n` where there is none. */
size_t acr_utf8_bad(const char *p, size_t n);
/* The character at `p`, of valid UTF-8, and the one that ends before `end`, in a text from `p`. */
int32_t acr_utf8_at(const char *p, size_t *bytes);
int32_t acr_utf8_before(const char *p, const char *end, size_t *bytes);
size_t acr_utf8_put(char *out, int32_t c); /* at most 4 bytes */
bool acr_is_space(int32_t c);              /* White_Space */
bool acr_is_word(int32_t c);               /* alphabetic, mark, decimal digit, connector */
bool acr_is_number(int32_t c);             /* general category N */

/* The first letter of the category of a character of Unicode 15 or 16; 0 for an older one. */
char acr_newer_category(int32_t c);

/* Texts that grow -------------------------------------------------------------------------- */

/* NUL-terminated when something was added; { 0 } is an empty one. */
typedef struct acr_buffer {
    char *at;
    size_t n, room;
} acr_buffer;
accrue_status acr_buffer_add(acr_buffer *b, const char *bytes, size_t n, accrue_error *err);
accrue_status acr_buffer_add_text(acr_buffer *b, const char *text, accrue_error *err);
void acr_buffer_free(acr_buffer *b);
/* Appends, for a class of a pattern, those of a category ("L") or of a part of one ("Lu"). */
accrue_status acr_newer_ranges(acr_buffer *out, const char *category, accrue_error *err);
/* Appends the canonical composition of valid UTF-8. */
accrue_status acr_nfc(acr_buffer *out, const char *text, size_t n, accrue_error *err);
/* Appends `n` bytes with U+FFFD for what is no UTF-8. */
accrue_status acr_utf8_repair(acr_buffer *out, const char *bytes, size_t n, accrue_error *err);

#endif
