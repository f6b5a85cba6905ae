/* files.h - for tests of readers: temporary folders, files spoilt on purpose, messages. */
#ifndef TEST_FILES_H
#define TEST_FILES_H

#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* A fresh folder below the working directory; freed with acr_free. */
static inline char *make_folder(void)
{
    char *path = acr_strdup("test_XXXXXX");

    assert_non_null(mkdtemp(path));
    return path;
}

static inline void remove_folder(char *path)
{
    char *command = acr_sprintf("rm -rf '%s'", path);

    assert_int_equal(system(command), 0);
    acr_free(command);
    acr_free(path);
}

static inline void write_bytes(const char *path, const void *bytes, size_t n)
{
    assert_int_equal(acr_write_file(path, bytes, n, NULL), ACCRUE_OK);
}

/* Runs a command, which it takes over. */
static inline void shell(char *command)
{
    assert_non_null(command);
    if (system(command) != 0)
        fail_msg("%s", command);
    acr_free(command);
}

static inline void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

/* A safetensors file of this header and `n` zero bytes of data. */
static inline void write_header(const char *path, const char *header, size_t n)
{
    uint64_t length = strlen(header);
    char *bytes = acr_calloc(1, 8 + length + n);

    assert_non_null(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    write_bytes(path, bytes, 8 + length + n);
    acr_free(bytes);
}

/* The status, and every one of the words (a NULL ends them) in the message's one line. */
static inline void assert_fails(accrue_status got, accrue_status expected, const accrue_error *e,
                                ...)
{
    va_list words;
    const char *word = NULL;

    if (got != expected)
        print_error("%s: %s\n", accrue_status_name(got), got ? e->message : "");
    assert_int_equal(got, expected);
    assert_int_equal(e->status, expected);
    assert_null(strchr(e->message, '\n'));
    va_start(words, e);
    while ((word = va_arg(words, const char *)))
        if (!strstr(e->message, word))
            fail_msg("'%s' is not in: %s", word, e->message);
    va_end(words);
}

static inline void assert_ok(accrue_status got, const accrue_error *e)
{
    if (got)
        fail_msg("%s: %s", accrue_status_name(got), e->message);
}

#endif
