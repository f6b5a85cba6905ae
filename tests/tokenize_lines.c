/* tokenize_lines.c - by hand, for tools/compare_tokenizer.py: ids and decoded text of many strings.
 *
 *     tokenize_lines FOLDER [PASSES] <strings >answers
 *
 * A string is its length in bytes, as 32 bits in the machine's order, and its bytes.  Its answer is
 * the number of ids (32 bits; UINT32_MAX: refused), the ids (32 bits each), the length of what they
 * decode to and that text.  With PASSES it encodes everything so many times
 * as one text and says how fast, in time of the processor. */
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static accrue_error err;

static double seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static int put(uint32_t value)
{
    return fwrite(&value, sizeof value, 1, stdout) == 1 ? 0 : -1;
}

static int answer(const acr_tokenizer *t, const char *text, uint32_t n)
{
    acr_ids ids = {0};
    char *decoded = NULL;
    size_t bytes = 0;
    int failed = 0;

    if (acr_tokenizer_encode(&ids, t, text, n, true, &err)) {
        acr_ids_free(&ids);
        return put(UINT32_MAX);
    }
    failed = put((uint32_t)ids.n);
    for (int64_t i = 0; i < ids.n; i++)
        failed |= put((uint32_t)ids.at[i]);
    if (acr_tokenizer_decode(&decoded, &bytes, t, ids.at, ids.n, false, &err))
        failed = -1;
    failed |= put((uint32_t)bytes);
    failed |= fwrite(decoded, 1, bytes, stdout) == bytes ? 0 : -1;
    acr_free(decoded);
    acr_ids_free(&ids);
    return failed;
}

/* Everything as one text. */
static int measure(const acr_tokenizer *t, int passes)
{
    const size_t room = 64 << 20;
    char *text = malloc(room);
    const size_t n = text ? fread(text, 1, room, stdin) : 0;
    double best = 1e9;

    for (int i = 0; i < passes; i++) {
        acr_ids ids = {0};
        const double start = seconds();
        if (acr_tokenizer_encode(&ids, t, text, n, true, &err))
            return -1;
        if (seconds() - start < best)
            best = seconds() - start;
        if (i == 0)
            printf("%zu bytes, %lld ids\n", n, (long long)ids.n);
        acr_ids_free(&ids);
    }
    printf("%.1f MB/s\n", (double)n / best / 1e6);
    free(text);
    return 0;
}

int main(int argc, char **argv)
{
    const double start = seconds();
    acr_tokenizer *t = NULL;
    char *text = NULL;
    uint32_t n = 0;
    int failed = argc < 2;

    if (failed || acr_tokenizer_open(&t, argv[1], &err)) {
        fprintf(stderr, "%s\n", failed ? "usage: tokenize_lines FOLDER [PASSES]" : err.message);
        return 2;
    }
    if (argc > 2) {
        printf("opened in %.3f s\n", seconds() - start);
        failed = measure(t, atoi(argv[2]));
    }
    while (argc == 2 && !failed && fread(&n, sizeof n, 1, stdin) == 1) {
        text = realloc(text, (size_t)n + 1);
        failed = !text || fread(text, 1, n, stdin) != n || answer(t, text, n);
    }
    if (failed)
        fprintf(stderr, "%s\n", err.message);
    free(text);
    acr_tokenizer_free(t);
    return failed ? 2 : 0;
}
