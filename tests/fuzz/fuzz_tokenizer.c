/* fuzz_tokenizer.c - a tokenizer.json that is accepted has ids below its vocabulary's size for
 * every text, and text for every id. */
#include "fuzz.h"

#include "text/text.h"

#include <string.h>

static void check(const acr_tokenizer *t, const char *text, size_t n, bool special)
{
    acr_ids ids = {0};
    char *decoded = NULL;
    size_t bytes = 0;
    accrue_error e;

    if (!acr_tokenizer_encode(&ids, t, text, n, special, &e)) {
        for (int64_t i = 0; i < ids.n; i++)
            FUZZ_CHECK(ids.at[i] >= 0 && ids.at[i] < acr_tokenizer_vocab_size(t));
        FUZZ_CHECK(!acr_tokenizer_decode(&decoded, &bytes, t, ids.at, ids.n, special, &e));
        FUZZ_CHECK(decoded[bytes] == '\0');
    }
    acr_free(decoded);
    acr_ids_free(&ids);
}

/* The file is its own text too: what it is looked for stands in it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "ab I'm 12\xc2\xa0<x> \xe4\xbd\xa0\n\n e\xcc\x81\xcc\x96  aaab";
    const int64_t ids[4] = {0, 1, 300, INT64_MAX};
    acr_tokenizer *t = NULL;
    char *decoded = NULL;
    size_t bytes = 0;
    accrue_error e;

    if (acr_tokenizer_parse(&t, (const char *)data, size, "input", &e))
        return 0;
    check(t, text, sizeof text - 1, true);
    check(t, text, sizeof text - 1, false);
    check(t, (const char *)data, size < 4096 ? size : 4096, true);
    FUZZ_CHECK(!acr_tokenizer_decode(&decoded, &bytes, t, ids, 4, false, &e));
    FUZZ_CHECK(acr_tokenizer_bos(t) < acr_tokenizer_vocab_size(t));
    acr_free(decoded);
    acr_tokenizer_free(t);
    return 0;
}
