/* test_new_folder.c - where a folder that comes to its name whole comes to. */
#include "convert/new_folder.h"
#include "folder_test.h"

#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {"note.txt", NULL};

static accrue_status make_note(const char *dir, const char *text, accrue_error *e)
{
    acr_new_folder f;
    accrue_status st = acr_new_folder_make(&f, dir, names, 0, e);

    if (!st)
        st = acr_new_folder_text(&f, "note.txt", text, e);
    if (!st)
        st = acr_new_folder_name(&f, true, e);
    acr_new_folder_free(&f);
    return st;
}

static void assert_text(const char *dir, const char *text)
{
    char *path = acr_sprintf("%s/note.txt", dir);
    acr_map map = {0};
    accrue_error e = {0};

    assert_ok(acr_map_open(&map, path, &e), &e);
    assert_int_equal(map.bytes, strlen(text));
    assert_memory_equal(map.data, text, map.bytes);
    acr_map_close(&map);
    acr_free(path);
}

static bool is_link(const char *path)
{
    struct stat is;

    return lstat(path, &is) == 0 && S_ISLNK(is.st_mode);
}

static void follows_links(void **state)
{
    accrue_error e = {0};
    char *link = acr_sprintf("%s/link", folder), *slash = acr_sprintf("%s/", link);
    char *real = acr_sprintf("%s/real", folder);

    (void)state;
    assert_int_equal(symlink("real", link), 0);
    assert_fails(make_note(link, "none", &e), ACCRUE_EIO, &e, link, "cannot follow the link", NULL);
    assert_int_equal(mkdir(real, 0777), 0);
    assert_ok(make_note(slash, "one", &e), &e);
    assert_true(is_link(link));
    assert_text(real, "one");
    assert_ok(make_note(link, "two", &e), &e);
    assert_true(is_link(link));
    assert_text(real, "two");
    acr_free(link);
    acr_free(slash);
    acr_free(real);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(follows_links),
    };

    return cmocka_run_group_tests_name("new_folder", tests, NULL, NULL);
}
