/* export_name.c - what a model's name tells: "7B", "instruct", "v0.1" and what remains, by the
 * rules of llama.cpp's converter for general.basename, .finetune, .version and .size_label. */
#include "convert/export_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

enum { BASE = 1, SIZE = 2, FINE = 4, VERSION = 8, TYPE = 16 };

typedef struct part {
    char *text; /* with room for one letter more */
    unsigned is;
} part;

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_any(char c, const char *of)
{
    return c && strchr(of, c);
}

static const char *skip_digits(const char *s)
{
    while (is_digit(*s))
        s++;
    return s;
}

/* "12.3.4", after "v" or "iter" or nothing */
static bool is_version(const char *s)
{
    if (strncasecmp(s, "iter", 4) == 0)
        s += 4;
    else if (is_any(*s, "vV"))
        s++;
    if (!is_digit(*s))
        return false;
    s = skip_digits(s);
    while (*s == '.' && is_digit(s[1]))
        s = skip_digits(s + 1);
    return !*s;
}

/* "q4_k_m", "iq2_xs" of one letter a word, "f16", "bf16", "fp32" */
static bool is_type(const char *s)
{
    const char *p = s + is_any(*s, "iI");

    if (is_any(*p, "qQ") && is_digit(p[1])) {
        for (p += 2; *p == '_' && (is_letter(p[1]) || is_digit(p[1]) || p[1] == '_'); p += 2)
            ;
        return !*p;
    }
    p = s + is_any(*s, "bB");
    if (!is_any(*p, "fF"))
        return false;
    p += 1 + is_any(p[1], "pP");
    return strcmp(p, "16") == 0 || strcmp(p, "32") == 0;
}

/* "7B", "1.5b", "8x7B", "A3B", "7b1", or a word for it */
static bool is_size(const char *s)
{
    static const char *const words[] = {"small", "mini", "medium", "large", "xl", "xxl"};
    const char *p = NULL;

    for (int i = 0; i < ACR_COUNT(words); i++)
        if (strcasecmp(s, words[i]) == 0)
            return true;
    if (is_any(*s, "aA"))
        s++;
    else if (is_digit(*s) && is_any(*skip_digits(s), "xX"))
        s = skip_digits(s) + 1;
    p = skip_digits(s);
    if (p == s)
        return false;
    if (is_any(*p, "._") && is_digit(p[1]))
        p = skip_digits(p + 1);
    if (!is_any(*p, "kKmMbBtT"))
        return false;
    p += 1 + is_digit(p[1]);
    return !*p;
}

static bool is_finetune(const char *s)
{
    return strcasecmp(s, "chat") == 0 || strcasecmp(s, "instruct") == 0 ||
           strcasecmp(s, "vision") == 0 || strcasecmp(s, "lora") == 0;
}

/* A size far from the model's own is rather the length of its context. */
static void judge_size(part *p, int64_t elements)
{
    char *s = p->text;
    size_t n = strlen(s);
    char *end = NULL;
    double count = 0;

    for (char *c = s; *c; c++)
        if (*c == '_')
            *c = '.';
    if (is_digit(s[n - 1])) { /* 7b1 is 7.1b */
        s[n] = s[n - 2];
        s[n - 2] = '.';
        s[++n] = '\0';
    }
    if (n > 1 && is_digit(s[n - 2]) && is_any(s[n - 1], "kmbt"))
        s[n - 1] = (char)(s[n - 1] - 'a' + 'A');
    const char *at = strchr("KMBT", s[n - 1]);
    if (elements > 0 && is_digit(s[0]) && at && !strpbrk(s, "xX")) {
        char number[64];
        snprintf(number, sizeof number, "%.*s", (int)(n - 1), s);
        count = strtod(number, &end);
        if (!*end && fabs(count * pow(1000, (double)(at - "KMBT" + 1)) - (double)elements) >
                         (double)(7 * elements / 8)) {
            p->is |= FINE;
            s[n - 1] = (char)(s[n - 1] - 'A' + 'a');
        }
    }
    if (!p->is)
        p->is = SIZE;
}

static void judge(part *p, int i, int64_t elements)
{
    if (is_version(p->text)) {
        p->is = VERSION;
    } else if (is_type(p->text)) {
        p->is = TYPE;
        for (char *c = p->text; *c; c++)
            if (*c >= 'a' && *c <= 'z')
                *c = (char)(*c - 'a' + 'A');
    } else if (i > 0 && is_size(p->text)) {
        judge_size(p, elements);
    } else if (i > 0 && is_finetune(p->text)) {
        p->is = FINE;
    }
}

/* A word for the size counts only where no number is. */
static void drop_words(part *parts, int n)
{
    bool number = false;

    for (int i = 0; i < n; i++)
        if (parts[i].is & SIZE)
            number = number || strpbrk(parts[i].text, "0123456789");
    for (int i = 0; number && i < n; i++)
        if (parts[i].is & SIZE && !strpbrk(parts[i].text, "0123456789."))
            parts[i].is &= ~(unsigned)SIZE;
}

/* The first character is a letter, in whatever script. */
static bool begins_with_letter(const char *s)
{
    utf8proc_int32_t c = 0;
    utf8proc_category_t category;

    if (utf8proc_iterate((const utf8proc_uint8_t *)s, -1, &c) <= 0)
        return false;
    category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static void find_base(part *parts, int n)
{
    bool start = true;

    for (int i = 0; i < n; i++) {
        if (start &&
            ((!parts[i].is && begins_with_letter(parts[i].text)) || parts[i].is & VERSION)) {
            parts[i].is |= BASE;
            continue;
        }
        start = false;
        if (!parts[i].is)
            parts[i].is = FINE;
    }
    for (int i = n - 1; i >= 0; i--) {
        if (!(parts[i].is & BASE) || parts[i].is == BASE)
            break;
        parts[i].is &= ~(unsigned)BASE;
    }
}

/* The parts of one kind, joined again; sizes without those that are there already. */
static json_t *join(const part *parts, int n, unsigned with, unsigned without, size_t room)
{
    char *text = acr_calloc(room + 1, 1);
    json_t *out = NULL;

    for (int i = 0; text && i < n; i++) {
        bool again = false;
        for (int k = 0; with == SIZE && k < i; k++)
            again = again || (parts[k].is & SIZE && strcmp(parts[k].text, parts[i].text) == 0);
        if (!(parts[i].is & with) || parts[i].is & without || again)
            continue;
        if (*text)
            strcat(text, "-");
        strcat(text, parts[i].text);
    }
    if (text && *text)
        out = json_string(text);
    acr_free(text);
    return out;
}

static accrue_status set_parts(json_t *about, const part *parts, int n, size_t room,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *size = join(parts, n, SIZE, 0, room), *fine = join(parts, n, FINE, 0, room);
    json_t *version = join(parts, n, VERSION, BASE, room), *base = NULL;

    if (size || fine || version) /* else too little to go by */
        base = join(parts, n, BASE, 0, room);
    if (base)
        ACR_TRY(acr_export_set(about, "basename", json_incref(base), err));
    if (fine)
        ACR_TRY(acr_export_set(about, "finetune", json_incref(fine), err));
    if (version)
        ACR_TRY(acr_export_set(about, "version", json_incref(version), err));
    if (size)
        ACR_TRY(acr_export_set(about, "size_label", json_incref(size), err));

cleanup:
    json_decref(size);
    json_decref(fine);
    json_decref(version);
    json_decref(base);
    return st;
}

static accrue_status take_apart(json_t *about, const char *name, int64_t elements,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t bytes = strlen(name);
    part *parts = acr_calloc(bytes + 1, sizeof *parts);
    int n = 0;

    if (!parts)
        return acr_enomem(err, (bytes + 1) * sizeof *parts, "a name");
    for (const char *s = name; *s;) {
        size_t len = strcspn(s, "-");
        if (len) {
            parts[n].text = acr_calloc(len + 2, 1);
            if (!parts[n].text) {
                st = acr_enomem(err, len + 2, "a name");
                goto cleanup;
            }
            memcpy(parts[n++].text, s, len);
        }
        s += len + (s[len] == '-');
    }
    for (int i = 0; i < n; i++)
        judge(&parts[i], i, elements);
    drop_words(parts, n);
    find_base(parts, n);
    ACR_TRY(set_parts(about, parts, n, 2 * bytes + 1, err));

cleanup:
    for (int i = 0; i < n; i++)
        acr_free(parts[i].text);
    acr_free(parts);
    return st;
}

static accrue_status set_title(json_t *about, const char *key, const char *s, accrue_error *err)
{
    char *title = acr_export_title(s);
    json_t *value = title ? json_string(title) : NULL;

    acr_free(title);
    if (!value)
        return acr_enomem(err, strlen(s), "a name");
    return acr_export_set(about, key, value, err);
}

accrue_status acr_export_name(json_t *about, const char *id, int64_t elements, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *slash = strchr(id, '/');
    char *owner = NULL;

    if (strchr(id, ' ')) /* a sentence, not an identifier */
        return set_title(about, "name", id, err);
    if (slash && id[0] != '.') {
        owner = acr_sprintf("%.*s", (int)(slash - id), id);
        if (!owner)
            return acr_enomem(err, strlen(id), "a name");
        ACR_TRY(set_title(about, "organization", owner, err));
    }
    ACR_TRY(set_title(about, "name", slash ? slash + 1 : id, err));
    ACR_TRY(take_apart(about, slash ? slash + 1 : id, elements, err));

cleanup:
    acr_free(owner);
    return st;
}

/* Titles ----------------------------------------------------------------------------------- */

static bool is_cased(utf8proc_int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);

    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}

static bool is_space(utf8proc_int32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F) || c == 0x85 ||
           utf8proc_category(c) == UTF8PROC_CATEGORY_ZS || c == 0x2028 || c == 0x2029;
}

/* A word of small letters that is neither "v1.2" nor begins with a digit. */
static bool is_plain_word(const char *s, size_t bytes)
{
    bool letters = false;
    const char *v = s[0] == 'v' && is_digit(s[1]) ? skip_digits(s + 1) : NULL;

    if (is_digit(s[0]))
        return false;
    while (v && *v == '.' && is_digit(v[1]))
        v = skip_digits(v + 1);
    if (v == s + bytes)
        return false;
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t c = 0;
        at += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)s + at,
                                       (utf8proc_ssize_t)(bytes - at), &c);
        if (is_cased(c) && utf8proc_category(c) != UTF8PROC_CATEGORY_LL)
            return false;
        letters = letters || is_cased(c);
    }
    return letters;
}

/* Appends a word; with `titled`, the first letter of every run of letters as a capital. */
static char *put_word(char *out, const char *s, size_t bytes, bool titled)
{
    bool inside = false;

    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t c = 0;
        at += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)s + at,
                                       (utf8proc_ssize_t)(bytes - at), &c);
        bool cased = is_cased(c);
        if (titled && cased && !inside)
            c = utf8proc_totitle(c);
        inside = cased;
        out += utf8proc_encode_char(c, (utf8proc_uint8_t *)out);
    }
    return out;
}

char *acr_export_title(const char *s)
{
    const size_t bytes = strlen(s);
    char *title = acr_malloc(4 * bytes + 2), *out = title;
    size_t word = 0;

    for (size_t at = 0; title && at <= bytes;) {
        utf8proc_int32_t c = ' ';
        utf8proc_ssize_t n = 1;
        if (at < bytes)
            n = utf8proc_iterate((const utf8proc_uint8_t *)s + at, (utf8proc_ssize_t)(bytes - at),
                                 &c);
        if (n <= 0) { /* not UTF-8: a caller's mistake */
            acr_free(title);
            return NULL;
        }
        if (c == '-' || is_space(c)) {
            if (at > word && out > title)
                *out++ = ' ';
            if (at > word)
                out = put_word(out, s + word, at - word, is_plain_word(s + word, at - word));
            word = at + (size_t)n;
        }
        at += (size_t)n;
    }
    if (title)
        *out = '\0';
    return title;
}

/* Two figures at least: "512K", "5.1M", "0.35K". */
void acr_export_size(char *out, size_t bytes, int64_t elements)
{
    static const struct {
        double above, unit;
        char letter;
    } scales[] = {{1e12, 1e-12, 'T'}, {1e9, 1e-9, 'B'}, {1e6, 1e-6, 'M'}, {-1, 1e-3, 'K'}};
    int i = 0, decimals = 0;

    while ((double)elements <= scales[i].above)
        i++;
    double scaled = (double)elements * scales[i].unit;
    double whole = rint(scaled);
    decimals = whole >= 10 ? 0 : whole >= 1 ? 1 : 2;
    snprintf(out, bytes, "%.*f%c", decimals, scaled, scales[i].letter);
    for (char *c = out; *c; c++)
        if (*c == ',') /* of some locales */
            *c = '.';
}
