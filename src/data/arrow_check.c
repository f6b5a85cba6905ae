/* arrow_check.c - what the verifier of Arrow messages leaves open.
 *
 * A message that nanoarrow's verifier accepts may still lack a table that its type byte announces,
 * or the strings of a key/value pair, which the decoder reads without asking; and fields that are
 * shared between parents make the verifier's walk exponential.  The walk below, over the
 * flatbuffers encoding itself, finds both; it takes nothing for granted.
 *
 * A table begins with its distance from its vtable, which has two sizes and then a place in the
 * table for each field, 0 for a field that is absent. */
#include "data/readers.h"

#include <string.h>

enum { MAX_DEPTH = 100 };

/* Numbers of fields in the Arrow format's tables. */
enum {
    MESSAGE_TYPE = 1,
    MESSAGE_HEADER = 2,
    SCHEMA_FIELDS = 1,
    SCHEMA_METADATA = 2,
    FIELD_TYPE_BYTE = 2,
    FIELD_TYPE = 3,
    FIELD_DICTIONARY = 4,
    FIELD_CHILDREN = 5,
    FIELD_METADATA = 6,
    DICTIONARY_INDEX_TYPE = 1,
    PAIR_KEY = 0,
    PAIR_VALUE = 1
};

enum { HEADER_IS_SCHEMA = 1 };

typedef struct buffer {
    const uint8_t *data;
    size_t bytes;
    size_t visits; /* elements of vectors that may still be looked at: no more than fit unshared */
} buffer;

/* Little-endian numbers; 0 outside the buffer. */
static uint32_t number(const buffer *b, size_t at, size_t size)
{
    uint32_t v = 0;

    if (at <= b->bytes && size <= b->bytes - at)
        memcpy(&v, b->data + at, size);
    return v;
}

/* Where a field of a table is; 0 when it is absent. */
static size_t field_of(const buffer *b, size_t table, unsigned id)
{
    int64_t vtable = (int64_t)table - (int32_t)number(b, table, 4);
    size_t entry = 4 + 2 * (size_t)id;
    uint32_t place = 0;

    if (vtable < 0 || number(b, (size_t)vtable, 2) < entry + 2)
        return 0;
    place = number(b, (size_t)vtable + entry, 2);
    return place ? table + place : 0;
}

/* What a field that holds an offset refers to; 0 when it is absent. */
static size_t target_of(const buffer *b, size_t table, unsigned id)
{
    size_t at = field_of(b, table, id);

    return at ? at + number(b, at, 4) : 0;
}

/* The i-th table of a vector of tables. */
static size_t element_of(const buffer *b, size_t vector, uint32_t i)
{
    size_t at = vector + 4 + 4 * (size_t)i;

    return at + number(b, at, 4);
}

static bool take_visits(buffer *b, uint32_t n)
{
    if (n > b->visits)
        return false;
    b->visits -= n;
    return true;
}

static bool pairs_are_whole(buffer *b, size_t vector)
{
    uint32_t n = vector ? number(b, vector, 4) : 0;

    if (!take_visits(b, n))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        size_t pair = element_of(b, vector, i);
        if (!field_of(b, pair, PAIR_KEY) || !field_of(b, pair, PAIR_VALUE))
            return false;
    }
    return true;
}

static bool fields_are_whole(buffer *b, size_t vector, int depth)
{
    uint32_t n = vector ? number(b, vector, 4) : 0;

    if (depth > MAX_DEPTH || !take_visits(b, n))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        size_t field = element_of(b, vector, i);
        size_t type_byte = field_of(b, field, FIELD_TYPE_BYTE);
        size_t dictionary = target_of(b, field, FIELD_DICTIONARY);
        if (!type_byte || !number(b, type_byte, 1) || !field_of(b, field, FIELD_TYPE))
            return false;
        if (dictionary && !field_of(b, dictionary, DICTIONARY_INDEX_TYPE))
            return false;
        if (!pairs_are_whole(b, target_of(b, field, FIELD_METADATA)) ||
            !fields_are_whole(b, target_of(b, field, FIELD_CHILDREN), depth + 1))
            return false;
    }
    return true;
}

bool acr_arrow_message_is_whole(const uint8_t *metadata, size_t bytes)
{
    buffer b = {metadata, bytes, bytes / 4};
    size_t message = number(&b, 0, 4);
    size_t type = field_of(&b, message, MESSAGE_TYPE);
    size_t header = target_of(&b, message, MESSAGE_HEADER);

    if (!type || !header)
        return false;
    if (number(&b, type, 1) != HEADER_IS_SCHEMA)
        return true;
    return pairs_are_whole(&b, target_of(&b, header, SCHEMA_METADATA)) &&
           fields_are_whole(&b, target_of(&b, header, SCHEMA_FIELDS), 0);
}
