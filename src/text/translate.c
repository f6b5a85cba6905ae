/* translate.c - patterns in Oniguruma's language, which `tokenizers` uses, in PCRE2's.
 *
 * What both understand alike is taken over, what differs is written out, and the rest refused:
 * Oniguruma's white space is the White_Space property, PCRE2's has U+180E too; a line may begin and
 * end anywhere; \v is one character; a + after an interval repeats it; [a[b]] and [a&&b] are sets.
 * Oniguruma folds "ss" and U+00DF into each other, so only what has one character to fold into may
 * be asked for without case. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/tokenizer_parts.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                                  \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"                   \
    "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}"                 \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

enum { MAX_GROUPS = 200 };

typedef struct translator {
    const char *at; /* what is left */
    const char *whole, *where;
    acr_buffer *out;
    bool caseless[MAX_GROUPS + 1]; /* by depth of groups */
    int depth;
    char before; /* the letter just translated, where case does not count; else 0 */
    accrue_error *err;
} translator;

static accrue_status refuse(const translator *t, const char *what)
{
    return acr_fail(t->err, ACCRUE_ENOTSUP, "%s: pattern, at byte %td: %s is not supported",
                    t->where, t->at - t->whole, what);
}

static accrue_status put(translator *t, const char *text)
{
    return acr_buffer_add_text(t->out, text, t->err);
}

static accrue_status put_code(translator *t, long code)
{
    char text[24];

    snprintf(text, sizeof text, "\\x{%lx}", (unsigned long)code);
    return put(t, text);
}

/* Characters ------------------------------------------------------------------------------- */

/* A literal character; punctuation is quoted, in a class and outside. */
static accrue_status literal(translator *t, int32_t c)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};

    if (t->caseless[t->depth]) {
        const char lower = (char)(c < 0x80 ? tolower(c) : 0);
        const char pair[3] = {t->before, lower, '\0'};
        if (c >= 0x80)
            return refuse(t, "a character beyond ASCII without case");
        for (int i = 0; i < ACR_COUNT(pairs); i++)
            if (!strcmp(pair, pairs[i]))
                return refuse(t, "a pair of letters that one character stands for, without case");
        t->before = lower;
    }
    if (c < 0x80 && isalnum(c)) {
        const char text[2] = {(char)c, '\0'};
        return put(t, text);
    }
    return put_code(t, c);
}

/* A category with the characters that PCRE2 may not know yet.  A class cannot do without some of a
 * set, so what is not of the category there goes by what PCRE2 knows. */
static accrue_status put_category(translator *t, const char *category, bool negative, bool in_class)
{
    accrue_status st = ACCRUE_OK;
    char text[16];

    snprintf(text, sizeof text, "\\%c{%s}", negative && in_class ? 'P' : 'p', category);
    if (!in_class)
        ACR_TRY(put(t, negative ? "[^" : "["));
    ACR_TRY(put(t, text));
    if (*category != 'C' && !(negative && in_class))
        ACR_TRY(acr_newer_ranges(t->out, category, t->err));
    if (!in_class)
        ACR_TRY(put(t, "]"));

cleanup:
    return st;
}

/* The general category of that name; else the script of that name. */
static accrue_status property(translator *t, bool in_class)
{
    static const char *const categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                             "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                             "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                             "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};
    const char *name = t->at + 3, *category = NULL;
    bool negative = t->at[1] == 'P';
    char text[48];
    size_t n = 0;

    if (t->at[2] != '{')
        return refuse(t, "\\p without a name in braces");
    if (*name == '^') {
        negative = !negative;
        name++;
    }
    n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_");
    if (!n || n > 30 || name[n] != '}' || t->caseless[t->depth])
        return refuse(t, t->caseless[t->depth] ? "\\p without case" : "this property");
    for (int i = 0; i < ACR_COUNT(categories); i++)
        if (strlen(categories[i]) == n && !strncmp(categories[i], name, n))
            category = categories[i];
    t->at = name + n + 1;
    if (category)
        return put_category(t, category, negative, in_class);
    /* Since PCRE2 10.40 a script's name alone also means the characters that others share. */
    snprintf(text, sizeof text, "\\%c{%s%.*s}", negative ? 'P' : 'p',
             PCRE2_MINOR < 40 ? "" : "sc:", (int)n, name);
    return put(t, text);
}

/* \uHHHH and \x{H...}. */
static accrue_status code_point(translator *t)
{
    const bool braces = t->at[1] == 'x';
    const char *digits = t->at + (braces ? 3 : 2);
    const size_t n = strspn(digits, "0123456789abcdefABCDEF");
    char text[9] = {0};
    long code = 0;

    if (braces ? t->at[2] != '{' || !n || n > 8 || digits[n] != '}' : n < 4)
        return refuse(t, "this code of a character");
    memcpy(text, digits, braces ? n : 4);
    code = strtol(text, NULL, 16);
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return refuse(t, "this code of a character");
    t->at = digits + (braces ? n + 1 : 4);
    return literal(t, (int32_t)code);
}

/* An escape in a class or outside; *set tells of one that stands for many characters. */
static accrue_status escape(translator *t, bool in_class, bool *set)
{
    static const char names[] = "tnrfvae", codes[] = "\t\n\r\f\v\a\x1b";
    const char c = t->at[1];
    const char *control = c ? strchr(names, c) : NULL;
    char what[24];

    *set = false;
    if (c == 'u' || c == 'x')
        return code_point(t);
    *set = c == 'p' || c == 'P' || c == 's' || c == 'S' || c == 'd' || c == 'D';
    if (*set || c == 'A' || c == 'z')
        t->before = 0;
    if (c == 'p' || c == 'P')
        return property(t, in_class);
    if (!*set && !control && (!c || (uint8_t)c >= 0x80 || isalnum((uint8_t)c)) &&
        (in_class || (c != 'A' && c != 'z'))) {
        snprintf(what, sizeof what, "\\%c", c && (uint8_t)c < 0x80 ? c : '?');
        return refuse(t, what);
    }
    t->at += 2;
    switch (c) {
    case 's': return put(t, in_class ? SPACE : "[" SPACE "]");
    case 'S': return put(t, in_class ? NOT_SPACE : "[^" SPACE "]");
    case 'd': return put_category(t, "Nd", false, in_class);
    case 'D': return put_category(t, "Nd", true, in_class);
    case 'A': return put(t, "\\A");
    case 'z': return put(t, "\\z");
    default: return literal(t, control ? codes[control - names] : c);
    }
}

static accrue_status plain(translator *t)
{
    size_t bytes = 0;
    const int32_t c = acr_utf8_at(t->at, &bytes);

    t->at += bytes;
    return literal(t, c);
}

/* A part of a class: a character, or an escape that stands for a set of them. */
static accrue_status class_part(translator *t, bool *set)
{
    *set = false;
    t->before = 0;
    if (*t->at == '[')
        return refuse(t, "a class in a class");
    if (!strncmp(t->at, "&&", 2))
        return refuse(t, "an intersection of classes");
    return *t->at == '\\' ? escape(t, true, set) : plain(t);
}

static accrue_status class_of_characters(translator *t)
{
    accrue_status st = ACCRUE_OK;
    bool set = false;

    ACR_TRY(put(t, *++t->at == '^' ? "[^" : "["));
    t->at += *t->at == '^';
    if (*t->at == ']') {
        st = refuse(t, "an empty class");
        goto cleanup;
    }
    while (*t->at && *t->at != ']') {
        ACR_TRY(class_part(t, &set));
        if (t->at[0] != '-' || t->at[1] == ']' || !t->at[1])
            continue;
        t->at++;
        ACR_TRY(put(t, "-"));
        if (!set)
            ACR_TRY(class_part(t, &set));
        if (set) {
            st = refuse(t, "a range of classes");
            goto cleanup;
        }
    }
    if (!*t->at) {
        st = refuse(t, "a class without its end");
        goto cleanup;
    }
    t->at++;
    t->before = 0;
    ACR_TRY(put(t, "]"));

cleanup:
    return st;
}

/* Groups and quantifiers ------------------------------------------------------------------- */

static accrue_status open_group(translator *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    const char *kind = t->at[1] == '?' ? NULL : "(";

    for (int i = 0; !kind && i < ACR_COUNT(kinds); i++)
        if (!strncmp(t->at, kinds[i], strlen(kinds[i])))
            kind = kinds[i];
    if (!kind)
        return refuse(t, "this kind of group");
    if (t->depth == MAX_GROUPS)
        return refuse(t, "a group this deep");
    t->depth++;
    t->caseless[t->depth] = t->caseless[t->depth - 1] || !strcmp(kind, "(?i:");
    t->before = 0;
    t->at += strlen(kind);
    return put(t, strcmp(kind, "(") ? kind : "(?:");
}

static accrue_status close_group(translator *t)
{
    if (!t->depth)
        return refuse(t, "a ) without its (");
    t->depth--;
    t->before = 0;
    t->at++;
    return put(t, ")");
}

/* {n}, {n,}, {n,m}, {,m}; anything else in braces is text. */
static accrue_status interval(translator *t)
{
    const char *p = t->at + 1, *low = p, *high = NULL;
    size_t n_low = strspn(p, "0123456789"), n_high = 0;
    const bool comma = p[n_low] == ',';
    char text[24];

    high = low + n_low + (comma ? 1 : 0);
    n_high = comma ? strspn(high, "0123456789") : 0;
    if (high[n_high] != '}' || (!n_low && !n_high))
        return plain(t);
    if (n_low > 5 || n_high > 5 || (n_high && strtol(low, NULL, 10) > strtol(high, NULL, 10)))
        return refuse(t, "this interval");
    snprintf(text, sizeof text, "{%.*s%s%.*s}", n_low ? (int)n_low : 1, n_low ? low : "0",
             comma ? "," : "", (int)n_high, high);
    t->at = high + n_high + 1;
    if (*t->at == '+' || (*t->at == '?' && !comma))
        return refuse(t, "a + or ? after this interval");
    t->before = 0;
    return put(t, text);
}

static accrue_status quantifier(translator *t)
{
    const char text[2] = {*t->at++, '\0'};

    t->before = 0;
    return put(t, text);
}

static accrue_status next_part(translator *t)
{
    bool set = false;

    switch (*t->at) {
    case '\\': return escape(t, false, &set);
    case '[': return class_of_characters(t);
    case '(': return open_group(t);
    case ')': return close_group(t);
    case '{': return interval(t);
    case '*':
    case '+':
    case '?':
    case '|':
    case '.': return quantifier(t);
    case '^': t->at++; return put(t, "(?:\\A|(?<=\\n)(?!\\z))");
    case '$': t->at++; return put(t, "(?=\\n|\\z)");
    default: return plain(t);
    }
}

accrue_status acr_pattern_translate(acr_buffer *out, const char *text, const char *where,
                                    accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    translator t = {.at = text, .whole = text, .where = where, .out = out, .err = err};

    while (*t.at)
        ACR_TRY(next_part(&t));
    if (t.depth)
        st = refuse(&t, "a ( without its )");

cleanup:
    return st;
}
