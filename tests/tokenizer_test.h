/* tokenizer_test.h - the small tokenizers of tests/data/tokenizer. */
#ifndef TEST_TOKENIZER_H
#define TEST_TOKENIZER_H

#include "files.h"

#include "text/text.h"

#define TOKENIZERS ACR_TEST_DATA "/tokenizer"

static const char *const tokenizer_kinds[] = {"gpt2", "smollm2", "llama3", "qwen2"};

static inline acr_tokenizer *open_tokenizer(const char *kind)
{
    char *folder = acr_sprintf("%s/%s", TOKENIZERS, kind);
    acr_tokenizer *t = NULL;
    accrue_error e;

    assert_ok(acr_tokenizer_open(&t, folder, &e), &e);
    acr_free(folder);
    return t;
}

#endif
