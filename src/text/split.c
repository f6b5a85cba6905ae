/* split.c - the pre-tokenizer: a text in words, step by step. */
#include "text/tokenizer_parts.h"

#include <string.h>

/* One call of acr_split. */
typedef struct splitter {
    const acr_step *steps;
    int n_steps;
    acr_pattern_room *room;
    acr_word word;
    void *ctx;
} splitter;

/* What a step has of a text: pieces come one by one, each a match or not, and the last one is held
 * back because the next may belong to it. */
typedef struct pieces {
    const splitter *s;
    int step;
    const char *text;
    size_t begin, end; /* of the piece held back */
    bool held, matched;
} pieces;

static accrue_status run(const splitter *s, int step, const char *text, size_t n,
                         accrue_error *err);

static accrue_status flush(pieces *p, accrue_error *err)
{
    const bool held = p->held && p->end > p->begin;

    p->held = false;
    return held ? run(p->s, p->step + 1, p->text + p->begin, p->end - p->begin, err) : ACCRUE_OK;
}

static bool belongs(acr_behavior behavior, bool matched, bool match)
{
    switch (behavior) {
    case ACR_MERGED_WITH_PREVIOUS: return match && !matched;
    case ACR_MERGED_WITH_NEXT: return !match && matched;
    case ACR_CONTIGUOUS: return match == matched;
    default: return false;
    }
}

static accrue_status add(pieces *p, size_t begin, size_t end, bool match, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_step *step = &p->s->steps[p->step];

    match = match != step->invert;
    if (p->held && belongs(step->behavior, p->matched, match)) {
        p->end = end;
    } else {
        ACR_TRY(flush(p, err));
        p->begin = begin;
        p->end = end;
        p->held = step->behavior != ACR_REMOVED || !match;
    }
    p->matched = match;

cleanup:
    return st;
}

/* An empty match counts unless it follows the match before it at once. */
static accrue_status split_pattern(pieces *p, size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_pattern *pattern = p->s->steps[p->step].pattern;
    size_t from = 0, done = 0, begin = 0, end = 0, bytes = 0;
    bool found = false, any = false;

    while (from <= n) {
        ACR_TRY(acr_pattern_find(pattern, p->s->room, p->text, n, from, &found, &begin, &end, err));
        if (!found)
            break;
        if (begin == end && any && end == done) {
            if (from < n)
                acr_utf8_at(p->text + from, &bytes);
            from += from < n ? bytes : 1;
            continue;
        }
        if (begin > done)
            ACR_TRY(add(p, done, begin, false, err));
        ACR_TRY(add(p, begin, end, true, err));
        from = done = end;
        any = true;
    }
    if (done < n)
        ACR_TRY(add(p, done, n, false, err));
    ACR_TRY(flush(p, err));

cleanup:
    return st;
}

static accrue_status split_digits(pieces *p, size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t bytes = 0, done = 0;

    for (size_t i = 0; i < n; i += bytes) {
        if (!acr_is_number(acr_utf8_at(p->text + i, &bytes)))
            continue;
        if (i > done)
            ACR_TRY(add(p, done, i, false, err));
        ACR_TRY(add(p, i, i + bytes, true, err));
        done = i + bytes;
    }
    if (done < n)
        ACR_TRY(add(p, done, n, false, err));
    ACR_TRY(flush(p, err));

cleanup:
    return st;
}

static accrue_status prefix(const splitter *s, int step, const char *text, size_t n,
                            accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_buffer with = {0};

    if (text[0] == ' ')
        return run(s, step + 1, text, n, err);
    ACR_TRY(acr_buffer_add(&with, " ", 1, err));
    ACR_TRY(acr_buffer_add(&with, text, n, err));
    ACR_TRY(run(s, step + 1, with.at, with.n, err));

cleanup:
    acr_buffer_free(&with);
    return st;
}

static accrue_status run(const splitter *s, int step, const char *text, size_t n, accrue_error *err)
{
    pieces p = {.s = s, .step = step, .text = text};

    if (step == s->n_steps)
        return s->word(s->ctx, text, n, err);
    switch (s->steps[step].kind) {
    case ACR_SPLIT_PREFIX: return prefix(s, step, text, n, err);
    case ACR_SPLIT_DIGITS: return split_digits(&p, n, err);
    case ACR_SPLIT_PATTERN: break;
    }
    return split_pattern(&p, n, err);
}

accrue_status acr_split(const acr_step *steps, int n_steps, acr_pattern_room *room,
                        const char *text, size_t n, acr_word word, void *ctx, accrue_error *err)
{
    const splitter s = {steps, n_steps, room, word, ctx};

    return n ? run(&s, 0, text, n, err) : ACCRUE_OK;
}
