/* tokenizer_load.c - what a tokenizer.json says: its model, its normalizer, its decoder. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ID = 1 << 22, MAX_DEPTH = 8 };

accrue_status acr_load_flag(bool *out, const json_t *object, const char *key, const char *where,
                            accrue_error *err)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_boolean(value))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %s: true or false expected", where, key);
    *out = json_is_true(value);
    return ACCRUE_OK;
}

static accrue_status load_type(const char **out, const json_t *object, const char *where,
                               accrue_error *err)
{
    *out = json_string_value(json_object_get(object, "type"));
    if (!*out)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: an object with a type expected", where);
    return ACCRUE_OK;
}

/* The model -------------------------------------------------------------------------------- */

static accrue_status check_off(const json_t *model, const char *key, const char *name,
                               accrue_error *err)
{
    const json_t *value = json_object_get(model, key);

    if (json_is_true(value))
        return acr_fail(err, ACCRUE_ENOTSUP, "%s: model: %s is not supported", name, key);
    if (value && !json_is_null(value) && !json_is_false(value))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: model: %s: true or false expected", name, key);
    return ACCRUE_OK;
}

static accrue_status check_affix(const json_t *model, const char *key, const char *name,
                                 accrue_error *err)
{
    const json_t *value = json_object_get(model, key);

    if (!value || json_is_null(value) || (json_is_string(value) && !*json_string_value(value)))
        return ACCRUE_OK;
    if (!json_is_string(value))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: model: %s: a string or null expected", name, key);
    return acr_fail(err, ACCRUE_ENOTSUP, "%s: model: %s \"%s\" is not supported", name, key,
                    json_string_value(value));
}

static accrue_status check_model(const json_t *model, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *type = json_object_get(model, "type");
    const json_t *dropout = json_object_get(model, "dropout");

    if (!json_is_object(model)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: model: an object expected", name);
        goto cleanup;
    }
    if (!json_is_string(type) || strcmp(json_string_value(type), "BPE")) {
        st = acr_fail(err, ACCRUE_ENOTSUP, "%s: model: type %s; supported: BPE", name,
                      json_is_string(type) ? json_string_value(type) : "unknown");
        goto cleanup;
    }
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0.0)) {
        st = acr_fail(err, ACCRUE_ENOTSUP, "%s: model: dropout is not supported", name);
        goto cleanup;
    }
    ACR_TRY(check_off(model, "fuse_unk", name, err));
    ACR_TRY(check_off(model, "byte_fallback", name, err));
    ACR_TRY(check_affix(model, "continuing_subword_prefix", name, err));
    ACR_TRY(check_affix(model, "end_of_word_suffix", name, err));

cleanup:
    return st;
}

/* The number of ids: one more than the highest.  Added tokens that the vocabulary lacks follow its
 * count. */
static accrue_status count_ids(int64_t *out, const json_t *vocab, const json_t *added,
                               const char *name, accrue_error *err)
{
    const char *token = NULL;
    json_t *value = NULL;
    int64_t n = (int64_t)(json_object_size(vocab) + json_array_size(added));

    json_object_foreach((json_t *)(uintptr_t)vocab, token, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= MAX_ID)
            return acr_fail(err, ACCRUE_EFORMAT,
                            "%s: model: vocab: \"%s\": an id below %d expected", name, token,
                            MAX_ID);
        if (json_integer_value(value) >= n)
            n = json_integer_value(value) + 1;
    }
    if (n > MAX_ID)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: %lld tokens, at most %d expected", name,
                        (long long)n, MAX_ID);
    *out = n;
    return ACCRUE_OK;
}

static accrue_status load_vocab(acr_bpe *b, const json_t *vocab, const json_t *added,
                                const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *token = NULL;
    json_t *value = NULL;
    int64_t n_ids = 0;

    if (!json_is_object(vocab)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: model: vocab: an object expected", name);
        goto cleanup;
    }
    ACR_TRY(count_ids(&n_ids, vocab, added, name, err));
    ACR_TRY(acr_bpe_reserve(b, n_ids, json_object_size(vocab) + json_array_size(added), err));
    json_object_foreach((json_t *)(uintptr_t)vocab, token, value)
    {
        const int32_t id = (int32_t)json_integer_value(value);
        const size_t n = strlen(token);
        if (b->tokens[id].here) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: model: vocab: id %d is both \"%s\" and \"%s\"",
                          name, id, b->spellings.at + b->tokens[id].at, token);
            goto cleanup;
        }
        ACR_TRY(acr_bpe_add(b, id, token, n, token, n, err));
    }

cleanup:
    return st;
}

/* Bytes without a token are left out, unless there is a token for them: then they are not. */
static accrue_status check_bytes(const acr_bpe *b, const json_t *model, const char *name,
                                 accrue_error *err)
{
    const json_t *unk = json_object_get(model, "unk_token");

    if (!unk || json_is_null(unk))
        return ACCRUE_OK;
    if (!json_is_string(unk))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: model: unk_token: a string or null expected",
                        name);
    for (int i = 0; i < 0xf5; i++)
        if (b->bytes[i] < 0 && i != 0xc0 && i != 0xc1) /* which no text has */
            return acr_fail(err, ACCRUE_ENOTSUP,
                            "%s: model: unk_token \"%s\" for the byte 0x%02x, which has no token, "
                            "is not supported",
                            name, json_string_value(unk), (unsigned)i);
    return ACCRUE_OK;
}

/* The halves of a merge: a pair of strings, or one with a blank between them. */
static bool halves(const json_t *merge, bool pairs, const char *half[2], size_t n[2])
{
    const char *blank = NULL;

    if (pairs) {
        for (size_t i = 0; i < 2; i++) {
            half[i] = json_string_value(json_array_get(merge, i));
            n[i] = half[i] ? strlen(half[i]) : 0;
        }
        return json_array_size(merge) == 2 && half[0] && half[1];
    }
    half[0] = json_string_value(merge);
    blank = half[0] ? strchr(half[0], ' ') : NULL;
    if (!blank || strchr(blank + 1, ' '))
        return false;
    half[1] = blank + 1;
    n[0] = (size_t)(blank - half[0]);
    n[1] = strlen(half[1]);
    return true;
}

static accrue_status load_merge(acr_bpe *b, const char *const half[2], const size_t n[2],
                                uint32_t rank, acr_buffer *joined, const char *name,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int32_t left = acr_bpe_find(b, half[0], n[0]), right = acr_bpe_find(b, half[1], n[1]);
    int32_t both = -1;

    joined->n = 0;
    ACR_TRY(acr_buffer_add(joined, half[0], n[0], err));
    ACR_TRY(acr_buffer_add(joined, half[1], n[1], err));
    both = acr_bpe_find(b, joined->at, joined->n);
    if (left < 0 || right < 0 || both < 0)
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: model: merges[%u]: \"%.*s\" is not in the vocabulary", name, rank,
                      (int)(left < 0    ? n[0]
                            : right < 0 ? n[1]
                                        : joined->n),
                      left < 0    ? half[0]
                      : right < 0 ? half[1]
                                  : joined->at);
    else
        acr_bpe_add_merge(b, left, right, rank, both);

cleanup:
    return st;
}

/* The rank of a merge is its place; a line "#version" of the older form has none. */
static accrue_status load_merges(acr_bpe *b, const json_t *merges, const char *name,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const bool pairs = json_is_array(json_array_get(merges, 0));
    const char *half[2] = {NULL};
    acr_buffer joined = {0};
    size_t i = 0, n[2] = {0};
    uint32_t rank = 0;
    json_t *merge = NULL;

    if (!json_is_array(merges)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: model: merges: an array expected", name);
        goto cleanup;
    }
    ACR_TRY(acr_bpe_reserve_merges(b, json_array_size(merges), err));
    json_array_foreach(merges, i, merge)
    {
        if (!pairs && json_is_string(merge) && !strncmp(json_string_value(merge), "#version", 8))
            continue;
        if (!halves(merge, pairs, half, n)) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: model: merges[%zu]: %s expected", name, i,
                          pairs ? "two strings" : "two tokens and a blank between them");
            goto cleanup;
        }
        ACR_TRY(load_merge(b, half, n, rank++, &joined, name, err));
    }

cleanup:
    acr_buffer_free(&joined);
    return st;
}

static accrue_status load_model(acr_bpe *b, const json_t *model, const json_t *added,
                                const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *ignore = json_object_get(model, "ignore_merges");

    ACR_TRY(check_model(model, name, err));
    if (ignore && !json_is_boolean(ignore) && !json_is_null(ignore)) {
        st =
            acr_fail(err, ACCRUE_EFORMAT, "%s: model: ignore_merges: true or false expected", name);
        goto cleanup;
    }
    b->ignore_merges = json_is_true(ignore);
    ACR_TRY(load_vocab(b, json_object_get(model, "vocab"), added, name, err));
    ACR_TRY(check_bytes(b, model, name, err));
    ACR_TRY(load_merges(b, json_object_get(model, "merges"), name, err));

cleanup:
    return st;
}

/* Normalizer and decoder ------------------------------------------------------------------- */

static accrue_status each_part(const json_t *json, const char *list, const char *where, int depth,
                               acr_part part, void *ctx, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *parts = NULL;
    const char *type = NULL;
    json_t *inner = NULL;
    size_t i = 0;

    ACR_TRY(load_type(&type, json, where, err));
    if (strcmp(type, "Sequence"))
        return part(ctx, json, type, where, err);
    parts = json_object_get(json, list);
    if (!json_is_array(parts) || depth == MAX_DEPTH) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: %s: an array expected, nested at most %d deep",
                      where, list, MAX_DEPTH);
        goto cleanup;
    }
    json_array_foreach(parts, i, inner)
        ACR_TRY(each_part(inner, list, where, depth + 1, part, ctx, err));

cleanup:
    return st;
}

accrue_status acr_load_parts(const json_t *json, const char *list, const char *where, acr_part part,
                             void *ctx, accrue_error *err)
{
    return json && !json_is_null(json) ? each_part(json, list, where, 0, part, ctx, err)
                                       : ACCRUE_OK;
}

static accrue_status normalizer_part(void *ctx, const json_t *json, const char *type,
                                     const char *where, accrue_error *err)
{
    bool *nfc = ctx;

    (void)json;
    if (strcmp(type, "NFC"))
        return acr_fail(err, ACCRUE_ENOTSUP, "%s: type %s; supported: NFC", where, type);
    *nfc = true;
    return ACCRUE_OK;
}

/* ByteLevel makes one text of all tokens, so that a Fuse after it changes nothing. */
static accrue_status decoder_part(void *ctx, const json_t *json, const char *type,
                                  const char *where, accrue_error *err)
{
    bool *bytes = ctx;

    (void)json;
    if (!*bytes && !strcmp(type, "ByteLevel"))
        *bytes = true;
    else if (!*bytes || strcmp(type, "Fuse"))
        return acr_fail(err, ACCRUE_ENOTSUP, "%s: type %s %s; supported: ByteLevel, then Fuse",
                        where, type, *bytes ? "after ByteLevel" : "first");
    return ACCRUE_OK;
}

static accrue_status load_both_ends(acr_tokenizer *t, const json_t *json, const char *name,
                                    accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *normalizer = json_object_get(json, "normalizer");
    const json_t *decoder = json_object_get(json, "decoder");
    char *in_normalizer = acr_sprintf("%s: normalizer", name);
    char *in_decoder = acr_sprintf("%s: decoder", name);
    bool bytes = false;

    if (!in_normalizer || !in_decoder) {
        st = acr_enomem(err, strlen(name), "names");
        goto cleanup;
    }
    ACR_TRY(
        acr_load_parts(normalizer, "normalizers", in_normalizer, normalizer_part, &t->nfc, err));
    ACR_TRY(acr_load_parts(decoder, "decoders", in_decoder, decoder_part, &bytes, err));
    if (!bytes)
        st = acr_fail(err, ACCRUE_ENOTSUP,
                      "%s: no ByteLevel; only byte-level tokenizers are supported", in_decoder);

cleanup:
    acr_free(in_normalizer);
    acr_free(in_decoder);
    return st;
}

/* The token before a text ------------------------------------------------------------------ */

/* The first special token of a template, or of the last template in a Sequence. */
static const char *first_special(const json_t *json)
{
    const json_t *first = json_array_get(json_object_get(json, "single"), 0);
    const json_t *processors = json_object_get(json, "processors");
    const char *found =
        json_string_value(json_object_get(json_object_get(first, "SpecialToken"), "id"));

    for (size_t i = 0; !found && i < json_array_size(processors); i++) {
        first = json_array_get(json_object_get(json_array_get(processors, i), "single"), 0);
        found = json_string_value(json_object_get(json_object_get(first, "SpecialToken"), "id"));
    }
    return found;
}

accrue_status acr_tokenizer_load(acr_tokenizer *t, const json_t *json, const char *name,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *version = json_object_get(json, "version");
    const json_t *added = json_object_get(json, "added_tokens");
    const char *bos = first_special(json_object_get(json, "post_processor"));

    if (!json_is_object(json)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: an object expected", name);
        goto cleanup;
    }
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0"))) {
        st = acr_fail(err, ACCRUE_ENOTSUP, "%s: version %s; supported: 1.0", name,
                      json_is_string(version) ? json_string_value(version) : "unknown");
        goto cleanup;
    }
    if (added && !json_is_null(added) && !json_is_array(added)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: added_tokens: an array expected", name);
        goto cleanup;
    }
    ACR_TRY(load_model(&t->bpe, json_object_get(json, "model"), added, name, err));
    ACR_TRY(load_both_ends(t, json, name, err));
    ACR_TRY(acr_load_steps(t, json_object_get(json, "pre_tokenizer"), name, err));
    ACR_TRY(acr_load_added(t, added, name, err));
    t->bos = bos ? acr_tokenizer_id(t, bos) : -1;

cleanup:
    return st;
}
