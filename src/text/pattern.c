/* pattern.c - patterns of pre-tokenizers, compiled and found by PCRE2.
 *
 * Texts are valid UTF-8 when they come here.  Every search has a budget, so that no pattern can
 * take for ever on one. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/tokenizer_parts.h"

#include <pcre2.h>
#include <string.h>

enum {
    STACK = 8 << 20,  /* bytes that compiled code may use to go back */
    HEAP = 128 << 10, /* KiB that the interpreter may */
    STEPS = 10000000, /* of one search, and so many more for each byte */
    STEPS_A_BYTE = 16,
    LENGTH = 64 << 10 /* bytes of a pattern, translated */
};

struct acr_pattern {
    pcre2_code *code;
    bool fast; /* compiled to machine code */
    char *where;
};

static void *allocate(PCRE2_SIZE n, void *ctx)
{
    (void)ctx;
    return acr_malloc(n);
}

static void release(void *block, void *ctx)
{
    (void)ctx;
    acr_free(block);
}

void acr_pattern_free(acr_pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    acr_free(p->where);
    acr_free(p);
}

static accrue_status fail_compile(int code, size_t place, const char *where, accrue_error *err)
{
    PCRE2_UCHAR text[160];

    if (code == PCRE2_ERROR_HEAP_FAILED || code == PCRE2_ERROR_NOMEMORY)
        return acr_enomem(err, LENGTH, "pattern");
    if (pcre2_get_error_message(code, text, sizeof text) < 0)
        text[0] = '\0';
    return acr_fail(err, ACCRUE_EFORMAT, "%s: pattern, at byte %zu: %s", where, place,
                    (const char *)text);
}

/* Compiles what is in PCRE2's language already. */
static accrue_status compile(acr_pattern *p, const char *text, size_t n, uint32_t options,
                             accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    pcre2_general_context *memory = pcre2_general_context_create(allocate, release, NULL);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    int code = 0;
    size_t place = 0;

    if (!context) {
        st = acr_enomem(err, sizeof(void *), "pattern");
        goto cleanup;
    }
    if (n > LENGTH) {
        st = acr_fail(err, ACCRUE_ENOTSUP, "%s: pattern of %zu bytes, at most %d", p->where, n,
                      LENGTH);
        goto cleanup;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)text, n, options | PCRE2_UTF | PCRE2_NO_UTF_CHECK, &code,
                            &place, context);
    if (!p->code) {
        st = fail_compile(code, place, p->where, err);
        goto cleanup;
    }
    p->fast = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;

cleanup:
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    return st;
}

static accrue_status create(acr_pattern **out, const char *where, accrue_error *err)
{
    acr_pattern *p = acr_calloc(1, sizeof *p);

    *out = p;
    if (p)
        p->where = acr_strdup(where);
    return p && p->where ? ACCRUE_OK : acr_enomem(err, sizeof *p, "pattern");
}

accrue_status acr_pattern_create(acr_pattern **out, const char *text, const char *where,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_pattern *p = NULL;
    acr_buffer translated = {0};

    *out = NULL;
    ACR_TRY(create(&p, where, err));
    ACR_TRY(acr_pattern_translate(&translated, text, where, err));
    ACR_TRY(compile(p, translated.n ? translated.at : "", translated.n, PCRE2_UCP, err));
    *out = p;
    p = NULL;

cleanup:
    acr_buffer_free(&translated);
    acr_pattern_free(p);
    return st;
}

accrue_status acr_pattern_literal(acr_pattern **out, const char *text, const char *where,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_pattern *p = NULL;

    *out = NULL;
    ACR_TRY(create(&p, where, err));
    ACR_TRY(compile(p, text, strlen(text), PCRE2_LITERAL, err));
    *out = p;
    p = NULL;

cleanup:
    acr_pattern_free(p);
    return st;
}

/* Finding ---------------------------------------------------------------------------------- */

accrue_status acr_pattern_room_open(acr_pattern_room *r, accrue_error *err)
{
    pcre2_general_context *memory = pcre2_general_context_create(allocate, release, NULL);

    *r = (acr_pattern_room){0};
    if (memory) {
        r->data = pcre2_match_data_create(1, memory);
        r->context = pcre2_match_context_create(memory);
    }
    pcre2_general_context_free(memory);
    if (!r->data || !r->context) {
        acr_pattern_room_free(r);
        return acr_enomem(err, sizeof(void *), "room for a pattern");
    }
    pcre2_set_heap_limit(r->context, HEAP);
    return ACCRUE_OK;
}

/* Compiled code begins with 32 KiB of the thread's own stack, which most searches never leave: to
 * map a larger one takes longer than to find the words of a line. */
static accrue_status open_stack(acr_pattern_room *r, accrue_error *err)
{
    pcre2_general_context *memory = pcre2_general_context_create(allocate, release, NULL);

    if (memory)
        r->stack = pcre2_jit_stack_create(32 << 10, STACK, memory);
    pcre2_general_context_free(memory);
    if (!r->stack)
        return acr_enomem(err, STACK, "room for a pattern");
    pcre2_jit_stack_assign(r->context, NULL, r->stack);
    return ACCRUE_OK;
}

void acr_pattern_room_free(acr_pattern_room *r)
{
    pcre2_match_data_free(r->data);
    pcre2_match_context_free(r->context);
    pcre2_jit_stack_free(r->stack);
    *r = (acr_pattern_room){0};
}

static uint32_t steps_for(size_t n)
{
    const size_t most = (UINT32_MAX - STEPS) / STEPS_A_BYTE;

    return (uint32_t)(STEPS + STEPS_A_BYTE * (n < most ? n : most));
}

static int match(const acr_pattern *p, acr_pattern_room *r, const char *text, size_t n, size_t from)
{
    const PCRE2_SPTR subject = (PCRE2_SPTR)text;

    return p->fast
               ? pcre2_jit_match(p->code, subject, n, from, 0, r->data, r->context)
               : pcre2_match(p->code, subject, n, from, PCRE2_NO_UTF_CHECK, r->data, r->context);
}

accrue_status acr_pattern_find(const acr_pattern *p, acr_pattern_room *r, const char *text,
                               size_t n, size_t from, bool *found, size_t *begin, size_t *end,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    PCRE2_UCHAR message[160];
    const PCRE2_SIZE *at = NULL;
    int code = 0;

    *found = false;
    pcre2_set_match_limit(r->context, steps_for(n));
    code = match(p, r, text, n, from);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT && !r->stack) {
        ACR_TRY(open_stack(r, err));
        code = match(p, r, text, n, from);
    }
    if (code == PCRE2_ERROR_NOMATCH)
        goto cleanup;
    if (code == PCRE2_ERROR_NOMEMORY) {
        st = acr_enomem(err, STACK, "room for a pattern");
        goto cleanup;
    }
    if (code < 0) {
        if (pcre2_get_error_message(code, message, sizeof message) < 0)
            message[0] = '\0';
        st = acr_fail(err, ACCRUE_ENOTSUP, "%s: pattern, on a text of %zu bytes at byte %zu: %s",
                      p->where, n, from, (const char *)message);
        goto cleanup;
    }
    at = pcre2_get_ovector_pointer(r->data);
    *found = true;
    *begin = at[0];
    *end = at[1];

cleanup:
    return st;
}
