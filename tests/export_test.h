/* export_test.h - for tests of export: a fresh folder for all of them, paths in it, JSON files. */
#ifndef TEST_EXPORT_TEST_H
#define TEST_EXPORT_TEST_H

#include "folder_test.h"

#include <jansson.h>

#define DATA ACR_TEST_DATA "/export"

static inline json_t *load(const char *path)
{
    json_t *v = json_load_file(path, 0, NULL);

    assert_non_null(v);
    return v;
}

/* In `folder`; valid until the fourth call after. */
static inline const char *path_of(const char *name)
{
    static char path[4][300];
    static int next;

    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

#endif
