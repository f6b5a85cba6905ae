/* token_freq.c - token_freq.pt: how often each id is supervised, as torch loads it. */
#include "convert/prepare_parts.h"

#include <string.h>

/* A number as pickle has it: BININT, or LONG1 of eight bytes. */
static size_t put_number(uint8_t *out, int64_t x)
{
    bool small = x <= INT32_MAX;
    size_t head = small ? 1 : 2, n = small ? 4 : 8;

    out[0] = small ? 'J' : 0x8a;
    out[1] = 8;
    for (size_t i = 0; i < n; i++)
        out[head + i] = (uint8_t)((uint64_t)x >> 8 * i);
    return head + n;
}

/* The older of torch's two forms, which it reads as well: pickles one behind the other, of a magic
 * number, the protocol's, a description of the system, the object, and the keys of its tensors. */
accrue_status acr_token_freq_write(const char *path, const int64_t *counts, int64_t vocab_size,
                                   accrue_error *err)
{
    static const uint8_t head[] = {0x80, 2,    0x8a, 10,   0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20,
                                   0x6a, 0xa8, 0x50, 0x19, '.',  0x80, 2,    'M',  0xe9, 3,
                                   '.',  0x80, 2,    '}',  '.',  0x80, 2,    '}',  '('};
    static const uint8_t tail[] = {'u', '.', 0x80, 2, ']', '.'};
    accrue_status st = ACCRUE_OK;
    uint8_t *bytes = NULL;
    size_t room = sizeof head + sizeof tail, n = 0;

    for (int64_t id = 0; id < vocab_size; id++)
        room += counts[id] ? 20 : 0;
    bytes = acr_malloc(room);
    if (!bytes)
        return acr_enomem(err, room, path);
    memcpy(bytes, head, sizeof head);
    n = sizeof head;
    for (int64_t id = 0; id < vocab_size; id++)
        if (counts[id]) {
            n += put_number(bytes + n, id);
            n += put_number(bytes + n, counts[id]);
        }
    memcpy(bytes + n, tail, sizeof tail);
    ACR_TRY(acr_write_file(path, bytes, n + sizeof tail, err));

cleanup:
    acr_free(bytes);
    return st;
}
