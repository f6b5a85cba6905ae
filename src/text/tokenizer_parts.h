/* tokenizer_parts.h - what the files of the tokenizer share. */
#ifndef ACR_TOKENIZER_PARTS_H
#define ACR_TOKENIZER_PARTS_H

#include "text/text.h"
#include "text/utf8.h"

/* Byte-level BPE --------------------------------------------------------------------------- */

/* Byte-level tokens are spelled with one printable character, below U+0144, for each byte. */
int32_t acr_byte_character(uint8_t byte);
int acr_character_byte(int32_t c); /* -1: none */

typedef struct acr_token {
    uint32_t at, bytes;           /* the spelling, in `spellings` */
    uint32_t text_at, text_bytes; /* what it decodes to, in `texts` */
    bool here, special;
    bool added; /* not of the model's vocabulary: no word becomes it */
} acr_token;

typedef struct acr_merge {
    uint64_t pair; /* ids, left << 32 | right; ACR_NO_PAIR: an empty slot */
    uint32_t rank;
    int32_t id;
} acr_merge;
#define ACR_NO_PAIR UINT64_MAX

typedef struct acr_bpe {
    acr_token *tokens; /* by id */
    int64_t n_ids;
    acr_buffer spellings, texts;
    int32_t *slots; /* of ids, by the hash of the spelling; -1: empty */
    size_t n_slots; /* a power of two */
    acr_merge *merges;
    size_t n_merges;    /* slots, a power of two */
    int32_t bytes[256]; /* ids; -1: none */
    bool ignore_merges; /* a word that is a token becomes it, whatever the merges */
} acr_bpe;

void acr_bpe_free(acr_bpe *b);
/* Room for `n_ids` ids and `n_tokens` tokens. */
accrue_status acr_bpe_reserve(acr_bpe *b, int64_t n_ids, size_t n_tokens, accrue_error *err);
/* A token that is not there yet; `shown` is what decoding shows (its spelling, or its normal
 * form). */
accrue_status acr_bpe_add(acr_bpe *b, int32_t id, const char *spelling, size_t n, const char *shown,
                          size_t n_shown, accrue_error *err);
int32_t acr_bpe_find(const acr_bpe *b, const char *spelling, size_t n); /* -1: none */
accrue_status acr_bpe_reserve_merges(acr_bpe *b, size_t n, accrue_error *err);
void acr_bpe_add_merge(acr_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);

/* Room that merging needs, kept from word to word; { 0 } is an empty one. */
typedef struct acr_symbol {
    int32_t id, previous, next; /* places; -1: none */
    uint32_t rank;              /* of the merge with the next one; UINT32_MAX: none */
    int32_t merged;             /* the id that it makes */
} acr_symbol;
typedef struct acr_bpe_room {
    acr_symbol *symbols;
    size_t n_symbols;
    uint64_t *heap; /* rank << 32 | place */
    size_t n_heap, heap_used;
    acr_buffer spelled;
} acr_bpe_room;
void acr_bpe_room_free(acr_bpe_room *r);
/* Appends the ids of one word of at most INT32_MAX bytes. */
accrue_status acr_bpe_encode(acr_ids *out, const acr_bpe *b, acr_bpe_room *r, const char *word,
                             size_t n, accrue_error *err);

/* Patterns --------------------------------------------------------------------------------- */

typedef struct acr_pattern acr_pattern;
/* Compiles what Oniguruma, which `tokenizers` uses, would find; `where` begins the messages.  What
 * the two libraries understand differently and is not translated is ENOTSUP. */
accrue_status acr_pattern_create(acr_pattern **out, const char *text, const char *where,
                                 accrue_error *err);
/* The same that finds `text` itself. */
accrue_status acr_pattern_literal(acr_pattern **out, const char *text, const char *where,
                                  accrue_error *err);
void acr_pattern_free(acr_pattern *p);

/* Room that matching needs; { 0 } is an empty one. */
typedef struct acr_pattern_room {
    void *data, *context, *stack;
} acr_pattern_room;
accrue_status acr_pattern_room_open(acr_pattern_room *r, accrue_error *err);
void acr_pattern_room_free(acr_pattern_room *r);
/* The first match in valid UTF-8 from `from` on; *found is false where there is none. */
accrue_status acr_pattern_find(const acr_pattern *p, acr_pattern_room *r, const char *text,
                               size_t n, size_t from, bool *found, size_t *begin, size_t *end,
                               accrue_error *err);
/* Appends the translation to PCRE2's language. */
accrue_status acr_pattern_translate(acr_buffer *out, const char *text, const char *where,
                                    accrue_error *err);

/* Pre-tokenizer ---------------------------------------------------------------------------- */

typedef enum acr_split_kind {
    ACR_SPLIT_PATTERN = 1,
    ACR_SPLIT_DIGITS, /* characters of category N */
    ACR_SPLIT_PREFIX  /* a blank before what does not begin with one; not a split */
} acr_split_kind;

typedef enum acr_behavior {
    ACR_ISOLATED = 1,
    ACR_REMOVED,
    ACR_MERGED_WITH_PREVIOUS,
    ACR_MERGED_WITH_NEXT,
    ACR_CONTIGUOUS
} acr_behavior;

typedef struct acr_step {
    acr_split_kind kind;
    acr_behavior behavior;
    bool invert;
    acr_pattern *pattern; /* owned */
} acr_step;
enum { ACR_MAX_STEPS = 32 };

/* Calls word(ctx, text, n) for each piece that the steps leave of valid UTF-8, none empty. */
typedef accrue_status (*acr_word)(void *ctx, const char *text, size_t n, accrue_error *err);
accrue_status acr_split(const acr_step *steps, int n_steps, acr_pattern_room *room,
                        const char *text, size_t n, acr_word word, void *ctx, accrue_error *err);

/* Added tokens ----------------------------------------------------------------------------- */

typedef struct acr_added {
    char *text; /* owned; what stands in the text */
    size_t n;
    int32_t id;
    bool special, single_word, lstrip, rstrip;
} acr_added;

/* Tokens looked for at a time, sorted; the leftmost match and of these the longest counts. */
typedef struct acr_added_set {
    acr_added *at;
    int n;
} acr_added_set;
enum { ACR_MAX_ADDED = 1024 }; /* bytes of one */
void acr_added_sort(acr_added_set *s);
void acr_added_free(acr_added_set *s);

/* Calls between(ctx, text, n) for what lies between tokens, token(ctx, id) for each, in order. */
typedef accrue_status (*acr_added_token)(void *ctx, int32_t id, accrue_error *err);
accrue_status acr_added_split(const acr_added_set *s, const char *text, size_t n, bool special,
                              acr_word between, acr_added_token token, void *ctx,
                              accrue_error *err);

/* The tokenizer ---------------------------------------------------------------------------- */

struct acr_tokenizer {
    acr_bpe bpe;
    bool nfc;
    acr_step steps[ACR_MAX_STEPS];
    int n_steps;
    acr_added_set raw, normalized; /* looked for before normalizing, and after */
    int64_t bos;
};

/* Fills a tokenizer of zeros with what the file's object says. */
accrue_status acr_tokenizer_load(acr_tokenizer *t, const json_t *json, const char *name,
                                 accrue_error *err);
/* For reading the parts of the file: `where` names the object. */
accrue_status acr_load_steps(acr_tokenizer *t, const json_t *json, const char *name,
                             accrue_error *err);
accrue_status acr_load_added(acr_tokenizer *t, const json_t *json, const char *name,
                             accrue_error *err);
/* A flag of an object; EFORMAT where it is neither true nor false, or not there. */
accrue_status acr_load_flag(bool *out, const json_t *object, const char *key, const char *where,
                            accrue_error *err);
/* Calls part(ctx, object, type, where) for an object with a "type", and where that is "Sequence"
 * for those in its `list`, in order, nested or not; for none where it is null or not there. */
typedef accrue_status (*acr_part)(void *ctx, const json_t *json, const char *type,
                                  const char *where, accrue_error *err);
accrue_status acr_load_parts(const json_t *json, const char *list, const char *where, acr_part part,
                             void *ctx, accrue_error *err);

#endif
