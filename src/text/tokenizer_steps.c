/* tokenizer_steps.c - what a tokenizer.json says of its pre-tokenizer and its added tokens. */
#include "text/tokenizer_parts.h"

#include <string.h>

/* The words of byte-level BPE as GPT-2 defined them (Radford et al. 2019). */
static const char GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct loader {
    acr_tokenizer *t;
    const char *where;
    bool bytes; /* ByteLevel came, which must be the last */
} loader;

static accrue_status new_step(acr_step **out, loader *l, acr_split_kind kind, acr_behavior behavior,
                              accrue_error *err)
{
    if (l->t->n_steps == ACR_MAX_STEPS)
        return acr_fail(err, ACCRUE_ENOTSUP, "%s: more than %d steps", l->where, ACR_MAX_STEPS);
    *out = &l->t->steps[l->t->n_steps++];
    **out = (acr_step){.kind = kind, .behavior = behavior};
    return ACCRUE_OK;
}

static accrue_status load_byte_level(loader *l, const json_t *json, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool prefix = false, regex = true;
    acr_step *step = NULL;

    ACR_TRY(acr_load_flag(&prefix, json, "add_prefix_space", l->where, err));
    if (json_object_get(json, "use_regex"))
        ACR_TRY(acr_load_flag(&regex, json, "use_regex", l->where, err));
    if (prefix)
        ACR_TRY(new_step(&step, l, ACR_SPLIT_PREFIX, ACR_ISOLATED, err));
    if (regex) {
        ACR_TRY(new_step(&step, l, ACR_SPLIT_PATTERN, ACR_ISOLATED, err));
        ACR_TRY(acr_pattern_create(&step->pattern, GPT2, l->where, err));
    }
    l->bytes = true;

cleanup:
    return st;
}

static accrue_status load_behavior(acr_behavior *out, const json_t *json, const char *where,
                                   accrue_error *err)
{
    static const struct {
        const char *name;
        acr_behavior behavior;
    } behaviors[] = {{"Isolated", ACR_ISOLATED},
                     {"Removed", ACR_REMOVED},
                     {"MergedWithPrevious", ACR_MERGED_WITH_PREVIOUS},
                     {"MergedWithNext", ACR_MERGED_WITH_NEXT},
                     {"Contiguous", ACR_CONTIGUOUS}};
    const char *name = json_string_value(json);

    for (int i = 0; name && i < ACR_COUNT(behaviors); i++)
        if (!strcmp(name, behaviors[i].name)) {
            *out = behaviors[i].behavior;
            return ACCRUE_OK;
        }
    return acr_fail(err, ACCRUE_EFORMAT,
                    "%s: Split: behavior %s; known: Isolated, Removed, "
                    "MergedWithPrevious, MergedWithNext, Contiguous",
                    where, name ? name : "is no string");
}

static accrue_status load_split(loader *l, const json_t *json, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *pattern = json_object_get(json, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *text = json_string_value(json_object_get(pattern, "String"));
    acr_behavior behavior = ACR_ISOLATED;
    acr_step *step = NULL;
    bool invert = false;

    ACR_TRY(load_behavior(&behavior, json_object_get(json, "behavior"), l->where, err));
    ACR_TRY(acr_load_flag(&invert, json, "invert", l->where, err));
    if (!regex == !text) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: Split: pattern: a Regex or a String expected",
                      l->where);
        goto cleanup;
    }
    ACR_TRY(new_step(&step, l, ACR_SPLIT_PATTERN, behavior, err));
    step->invert = invert;
    if (regex)
        ACR_TRY(acr_pattern_create(&step->pattern, regex, l->where, err));
    else
        ACR_TRY(acr_pattern_literal(&step->pattern, text, l->where, err));

cleanup:
    return st;
}

static accrue_status load_digits(loader *l, const json_t *json, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool individual = false;
    acr_step *step = NULL;

    ACR_TRY(acr_load_flag(&individual, json, "individual_digits", l->where, err));
    ACR_TRY(new_step(&step, l, ACR_SPLIT_DIGITS, individual ? ACR_ISOLATED : ACR_CONTIGUOUS, err));

cleanup:
    return st;
}

static accrue_status load_step(void *ctx, const json_t *json, const char *type, const char *where,
                               accrue_error *err)
{
    loader *l = ctx;

    if (l->bytes)
        return acr_fail(err, ACCRUE_ENOTSUP, "%s: %s after ByteLevel is not supported", where,
                        type);
    if (!strcmp(type, "ByteLevel"))
        return load_byte_level(l, json, err);
    if (!strcmp(type, "Split"))
        return load_split(l, json, err);
    if (!strcmp(type, "Digits"))
        return load_digits(l, json, err);
    return acr_fail(err, ACCRUE_ENOTSUP,
                    "%s: type %s; supported: ByteLevel, Split, Digits, Sequence", where, type);
}

accrue_status acr_load_steps(acr_tokenizer *t, const json_t *json, const char *name,
                             accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *where = acr_sprintf("%s: pre_tokenizer", name);
    loader l = {.t = t, .where = where};

    if (!where) {
        st = acr_enomem(err, strlen(name), "names");
        goto cleanup;
    }
    ACR_TRY(acr_load_parts(json, "pretokenizers", where, load_step, &l, err));
    if (!l.bytes)
        st = acr_fail(err, ACCRUE_ENOTSUP,
                      "%s: no ByteLevel; only byte-level tokenizers are supported", where);

cleanup:
    acr_free(where);
    return st;
}

/* Added tokens ----------------------------------------------------------------------------- */

static accrue_status load_flags(acr_added *a, bool *normalized, const json_t *json,
                                const char *where, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_load_flag(&a->special, json, "special", where, err));
    ACR_TRY(acr_load_flag(&a->single_word, json, "single_word", where, err));
    ACR_TRY(acr_load_flag(&a->lstrip, json, "lstrip", where, err));
    ACR_TRY(acr_load_flag(&a->rstrip, json, "rstrip", where, err));
    ACR_TRY(acr_load_flag(normalized, json, "normalized", where, err));

cleanup:
    return st;
}

/* Gives the token its id: the one of the vocabulary, or the next one after it.  A file that says
 * another is ambiguous: `tokenizers` takes no notice of what it says. */
static accrue_status place_token(acr_bpe *b, acr_added *a, const char *content, int64_t *next,
                                 int64_t said, const char *where, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t n = strlen(content);
    const int32_t found = acr_bpe_find(b, content, n);

    a->id = found >= 0 ? found : (int32_t)(*next)++;
    if (said != a->id) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: \"%s\" has id %lld, its place is %d", where,
                      content, (long long)said, a->id);
        goto cleanup;
    }
    if (found < 0 && b->tokens[a->id].here) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: \"%s\" has id %d, which the vocabulary has too",
                      where, content, a->id);
        goto cleanup;
    }
    if (found < 0)
        ACR_TRY(acr_bpe_add(b, a->id, content, n, a->text, a->n, err));
    b->tokens[a->id].added = found < 0;
    /* Decoding knows a special token by what it shows. */
    b->tokens[a->id].special = a->special && a->n == n && !memcmp(a->text, content, n);

cleanup:
    return st;
}

/* The text that is looked for. */
static accrue_status token_text(acr_added *a, const char *content, bool nfc, const char *where,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t n = strlen(content);
    acr_buffer text = {0};

    if (n > ACR_MAX_ADDED) {
        st = acr_fail(err, ACCRUE_ENOTSUP, "%s: a token of %zu bytes, at most %d", where, n,
                      ACR_MAX_ADDED);
        goto cleanup;
    }
    if (nfc)
        ACR_TRY(acr_nfc(&text, content, n, err));
    else
        ACR_TRY(acr_buffer_add(&text, content, n, err));
    a->text = text.at;
    a->n = text.n;
    text = (acr_buffer){0};

cleanup:
    acr_buffer_free(&text);
    return st;
}

static accrue_status load_token(acr_tokenizer *t, const json_t *json, int64_t *next,
                                const char *where, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *content = json_string_value(json_object_get(json, "content"));
    const json_t *id = json_object_get(json, "id");
    acr_added a = {0};
    acr_added_set *set = NULL;
    bool normalized = false;

    if (!content || !json_is_integer(id)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: an id and a content expected", where);
        goto cleanup;
    }
    ACR_TRY(load_flags(&a, &normalized, json, where, err));
    if (!*content) /* takes no place */
        goto cleanup;
    ACR_TRY(token_text(&a, content, normalized && t->nfc, where, err));
    ACR_TRY(place_token(&t->bpe, &a, content, next, json_integer_value(id), where, err));
    set = normalized ? &t->normalized : &t->raw;
    set->at[set->n++] = a;
    a.text = NULL;

cleanup:
    acr_free(a.text);
    return st;
}

static accrue_status sort_set(acr_added_set *s, const char *name, accrue_error *err)
{
    acr_added_sort(s);
    for (int i = 1; i < s->n; i++) {
        const acr_added *a = &s->at[i - 1], *b = a + 1;
        if (a->n == b->n && !memcmp(a->text, b->text, a->n))
            return acr_fail(err, ACCRUE_EFORMAT, "%s: added_tokens: \"%s\" twice", name, b->text);
    }
    return ACCRUE_OK;
}

accrue_status acr_load_added(acr_tokenizer *t, const json_t *json, const char *name,
                             accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t n = json_array_size(json);
    int64_t next = 0;
    char *where = NULL;

    for (int64_t i = 0; i < t->bpe.n_ids; i++)
        next += t->bpe.tokens[i].here;
    t->raw.at = acr_calloc(n + 1, sizeof *t->raw.at);
    t->normalized.at = acr_calloc(n + 1, sizeof *t->normalized.at);
    if (!t->raw.at || !t->normalized.at) {
        st = acr_enomem(err, 2 * n * sizeof *t->raw.at, "added tokens");
        goto cleanup;
    }
    for (size_t i = 0; i < n; i++) {
        acr_free(where);
        where = acr_sprintf("%s: added_tokens[%zu]", name, i);
        if (!where) {
            st = acr_enomem(err, strlen(name), "names");
            goto cleanup;
        }
        ACR_TRY(load_token(t, json_array_get(json, i), &next, where, err));
    }
    ACR_TRY(sort_set(&t->raw, name, err));
    ACR_TRY(sort_set(&t->normalized, name, err));

cleanup:
    acr_free(where);
    return st;
}
