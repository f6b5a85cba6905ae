/* folder_test.h - the fixture of tests that write: a fresh folder, and two threads, so that what a
 * run does in parallel is done so. */
#ifndef TEST_FOLDER_TEST_H
#define TEST_FOLDER_TEST_H

#include "files.h"

static char *folder;

static inline int make(void **state)
{
    (void)state;
    accrue_set_threads(2);
    folder = make_folder();
    return 0;
}

static inline int clear(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clear)

#endif
