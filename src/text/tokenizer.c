/* tokenizer.c - byte-level BPE tokenizers: opening, encoding, decoding. */
#include "text/tokenizer_parts.h"

#include <string.h>

/* Values and nesting of a file, so that what its parser makes of it stays within a few times the
 * file. */
enum { MAX_VALUES = 8 << 20, MAX_LISTS = 2 << 20, MAX_NESTING = 64 };

/* Counts without parsing; what is no JSON is left to the parser. */
static accrue_status check_size(const char *text, size_t n, const char *name, accrue_error *err)
{
    size_t values = 0, lists = 0, depth = 0;
    bool in_string = false;

    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        values += c == ',';
        if (c == '[' || c == '{') {
            lists++;
            depth++;
        } else if ((c == ']' || c == '}') && depth) {
            depth--;
        }
        if (depth > MAX_NESTING || lists > MAX_LISTS || values > MAX_VALUES)
            return acr_fail(err, ACCRUE_EFORMAT, "%s: byte %zu: more than %d %s", name, i,
                            depth > MAX_NESTING ? MAX_NESTING
                            : lists > MAX_LISTS ? MAX_LISTS
                                                : MAX_VALUES,
                            depth > MAX_NESTING ? "levels of nesting"
                            : lists > MAX_LISTS ? "lists and objects"
                                                : "values");
    }
    return ACCRUE_OK;
}

accrue_status acr_tokenizer_create(acr_tokenizer **out, const json_t *json, const char *name,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_tokenizer *t = acr_calloc(1, sizeof *t);

    *out = NULL;
    if (!t) {
        st = acr_enomem(err, sizeof *t, "tokenizer");
        goto cleanup;
    }
    ACR_TRY(acr_tokenizer_load(t, json, name, err));
    *out = t;
    t = NULL;

cleanup:
    acr_tokenizer_free(t);
    return st;
}

accrue_status acr_tokenizer_parse(acr_tokenizer **out, const char *text, size_t bytes,
                                  const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *json = NULL;

    *out = NULL;
    ACR_TRY(check_size(text, bytes, name, err));
    ACR_TRY(acr_json_parse(&json, text, bytes, name, err));
    ACR_TRY(acr_tokenizer_create(out, json, name, err));

cleanup:
    json_decref(json);
    return st;
}

accrue_status acr_tokenizer_open(acr_tokenizer **out, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/tokenizer.json", dir);
    acr_map map = {0};

    *out = NULL;
    if (!path) {
        st = acr_enomem(err, strlen(dir), "path");
        goto cleanup;
    }
    ACR_TRY(acr_map_open(&map, path, err));
    if (map.bytes > ACR_MAX_TOKENIZER) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: %zu bytes, at most %d expected", path, map.bytes,
                      ACR_MAX_TOKENIZER);
        goto cleanup;
    }
    ACR_TRY(acr_tokenizer_parse(out, map.data ? (const char *)map.data : "", map.bytes, path, err));

cleanup:
    acr_map_close(&map);
    acr_free(path);
    return st;
}

void acr_tokenizer_free(acr_tokenizer *t)
{
    if (!t)
        return;
    acr_bpe_free(&t->bpe);
    for (int i = 0; i < t->n_steps; i++)
        acr_pattern_free(t->steps[i].pattern);
    acr_added_free(&t->raw);
    acr_added_free(&t->normalized);
    acr_free(t);
}

int64_t acr_tokenizer_vocab_size(const acr_tokenizer *t)
{
    int64_t n = t->bpe.n_ids;

    while (n && !t->bpe.tokens[n - 1].here)
        n--;
    return n;
}

int64_t acr_tokenizer_id(const acr_tokenizer *t, const char *token)
{
    return acr_bpe_find(&t->bpe, token, strlen(token));
}

int64_t acr_tokenizer_bos(const acr_tokenizer *t)
{
    return t->bos;
}

accrue_status acr_ids_add(acr_ids *ids, int64_t id, accrue_error *err)
{
    if (ids->n == ids->capacity) {
        const int64_t capacity = 2 * ids->capacity + 64;
        int64_t *at = acr_realloc(ids->at, (size_t)capacity * sizeof *at);
        if (!at)
            return acr_enomem(err, (size_t)capacity * sizeof *at, "ids");
        ids->at = at;
        ids->capacity = capacity;
    }
    ids->at[ids->n++] = id;
    return ACCRUE_OK;
}

void acr_ids_free(acr_ids *ids)
{
    acr_free(ids->at);
    *ids = (acr_ids){0};
}

/* Encoding --------------------------------------------------------------------------------- */

/* One call of acr_tokenizer_encode. */
typedef struct encoder {
    const acr_tokenizer *t;
    acr_ids *out;
    bool special;
    acr_bpe_room merging;
    acr_pattern_room matching;
    acr_buffer normal;
} encoder;

static accrue_status add_token(void *ctx, int32_t id, accrue_error *err)
{
    const encoder *e = ctx;

    return acr_ids_add(e->out, id, err);
}

static accrue_status add_word(void *ctx, const char *text, size_t n, accrue_error *err)
{
    encoder *e = ctx;

    return acr_bpe_encode(e->out, &e->t->bpe, &e->merging, text, n, err);
}

/* A text in normal form without added tokens. */
static accrue_status add_words(void *ctx, const char *text, size_t n, accrue_error *err)
{
    encoder *e = ctx;

    return acr_split(e->t->steps, e->t->n_steps, &e->matching, text, n, add_word, e, err);
}

/* A text that is not in normal form yet, without those tokens that are looked for before. */
static accrue_status add_raw(void *ctx, const char *text, size_t n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    encoder *e = ctx;

    if (e->t->nfc) {
        e->normal.n = 0;
        ACR_TRY(acr_nfc(&e->normal, text, n, err));
        text = e->normal.at;
        n = e->normal.n;
    }
    ACR_TRY(acr_added_split(&e->t->normalized, text, n, e->special, add_words, add_token, e, err));

cleanup:
    return st;
}

accrue_status acr_tokenizer_encode(acr_ids *out, const acr_tokenizer *t, const char *text,
                                   size_t bytes, bool special, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    encoder e = {.t = t, .out = out, .special = special};
    const int64_t before = out->n;
    const size_t bad = acr_utf8_bad(text, bytes);

    if (bad < bytes) {
        st = acr_fail(err, ACCRUE_EFORMAT, "text: byte %zu, 0x%02x, is no UTF-8", bad,
                      (unsigned)(uint8_t)text[bad]);
        goto cleanup;
    }
    if (bytes > INT32_MAX / 4) {
        st = acr_fail(err, ACCRUE_EINVAL, "text of %zu bytes, at most %d", bytes, INT32_MAX / 4);
        goto cleanup;
    }
    ACR_TRY(acr_pattern_room_open(&e.matching, err));
    ACR_TRY(acr_added_split(&t->raw, text, bytes, special, add_raw, add_token, &e, err));

cleanup:
    if (st)
        out->n = before;
    acr_bpe_room_free(&e.merging);
    acr_pattern_room_free(&e.matching);
    acr_buffer_free(&e.normal);
    return st;
}

/* Decoding --------------------------------------------------------------------------------- */

accrue_status acr_tokenizer_decode(char **out, size_t *bytes, const acr_tokenizer *t,
                                   const int64_t *ids, int64_t n, bool skip_special,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_buffer all = {0}, text = {0};

    *out = NULL;
    *bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        const acr_token *token = NULL;
        if (ids[i] < 0) {
            st = acr_fail(err, ACCRUE_EINVAL, "ids[%lld]: %lld is no id", (long long)i,
                          (long long)ids[i]);
            goto cleanup;
        }
        token = ids[i] < t->bpe.n_ids ? &t->bpe.tokens[ids[i]] : NULL;
        if (!token || !token->here || (skip_special && token->special))
            continue;
        ACR_TRY(acr_buffer_add(&all, t->bpe.texts.at + token->text_at, token->text_bytes, err));
    }
    ACR_TRY(acr_buffer_add(&text, "", 0, err));
    ACR_TRY(acr_utf8_repair(&text, all.n ? all.at : "", all.n, err));
    *out = text.at;
    *bytes = text.n;
    text = (acr_buffer){0};

cleanup:
    acr_buffer_free(&all);
    acr_buffer_free(&text);
    return st;
}
