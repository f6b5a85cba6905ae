/* fuzz_config.c - JSON that is accepted survives being written and read again. */
#include "fuzz.h"

#include "base/base.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *value = NULL;
    json_t *again = NULL;
    char *text = NULL;
    accrue_error e;

    if (acr_json_parse(&value, (const char *)data, size, "input", &e))
        return 0;
    text = acr_json_text(value);
    FUZZ_CHECK(text);
    FUZZ_CHECK(acr_json_parse(&again, text, strlen(text), "text", &e) == ACCRUE_OK);
    FUZZ_CHECK(json_equal(value, again));
    acr_free(text);
    json_decref(value);
    json_decref(again);
    return 0;
}
