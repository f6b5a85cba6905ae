/* generate_text.c - an answer's ids as text. */
#include "infer/generate_parts.h"

#include <string.h>

/* Text that a JSON string and a message can hold: NUL becomes U+FFFD. */
static accrue_status text_of(char **out, const acr_tokenizer *t, const int64_t *ids, int64_t n,
                             accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *text = NULL, *p = NULL;
    size_t bytes = 0, nuls = 0;

    ACR_TRY(acr_tokenizer_decode(&text, &bytes, t, ids, n, true, err));
    for (size_t i = 0; i < bytes; i++)
        nuls += text[i] == '\0';
    *out = p = acr_malloc(bytes + 2 * nuls + 1);
    if (!p) {
        st = acr_enomem(err, bytes, "an answer");
        goto cleanup;
    }
    for (size_t i = 0; i < bytes; i++)
        if (text[i])
            *p++ = text[i];
        else
            p = (char *)memcpy(p, "\xEF\xBF\xBD", 3) + 3;
    *p = '\0';

cleanup:
    acr_free(text);
    return st;
}

static void strip_newlines(char *s, bool at_end)
{
    size_t n = strlen(s), begin = strspn(s, "\n");

    memmove(s, s + begin, n - begin + 1);
    for (n -= begin; at_end && n && s[n - 1] == '\n';)
        s[--n] = '\0';
}

accrue_status acr_answer_split(char **content, char **thoughts, const acr_chat *c,
                               const acr_tokenizer *t, const int64_t *ids, int64_t n,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t from = 0, to = n;

    *content = *thoughts = NULL;
    if (!c->thinks || n < 1 || ids[0] != c->think)
        return text_of(content, t, ids, n, err);
    for (int64_t i = n - 1; i > 0; i--)
        if (ids[i] == c->think_end)
            to = i;
    from = to < n ? to + 1 : n;
    ACR_TRY(text_of(thoughts, t, ids + 1, to - 1, err));
    ACR_TRY(text_of(content, t, ids + from, n - from, err));
    strip_newlines(*thoughts, true);
    strip_newlines(*content, false);

cleanup:
    return st;
}
