/* prepare_test.h - the fixture of tests that make data sets of lines: a verifier's folder, the file
 * and the call. */
#ifndef TEST_PREPARE_TEST_H
#define TEST_PREPARE_TEST_H

#include "convert/prepare_parts.h"
#include "folder_test.h"

#include <dirent.h>
#include <unistd.h>

#define CHAT ACR_TEST_DATA "/chat"

static char *verifier, *output, *lines;
static const char *files[2];
static accrue_prepare_options opt;
static accrue_prepare_report report;

static inline void copy_in(const char *name)
{
    char *command = acr_sprintf("cp '%s/%s' '%s/'", CHAT, name, verifier);

    assert_int_equal(system(command), 0);
    acr_free(command);
}

static inline void use_template(const char *name)
{
    accrue_error e;
    json_t *all = NULL;
    char *path = acr_sprintf("%s/chat_template.jinja", verifier);

    assert_ok(acr_json_load(&all, CHAT "/templates.json", 1 << 20, &e), &e);
    write_text(path, json_string_value(json_object_get(all, name)));
    json_decref(all);
    acr_free(path);
}

static inline int make_all(void **state)
{
    make(state);
    verifier = acr_sprintf("%s/verifier", folder);
    output = acr_sprintf("%s/out/data", folder);
    lines = acr_sprintf("%s/lines.jsonl", folder);
    assert_int_equal(mkdir(verifier, 0777), 0);
    copy_in("tokenizer.json");
    copy_in("tokenizer_config.json");
    copy_in("config.json");
    use_template("plain");
    files[0] = lines;
    accrue_prepare_options_init(&opt, sizeof opt);
    opt.files = files;
    opt.n_files = 1;
    opt.verifier = verifier;
    opt.output = output;
    return 0;
}

static inline int clear_all(void **state)
{
    acr_free(verifier);
    acr_free(output);
    acr_free(lines);
    return clear(state);
}

#define PREPARED(f) cmocka_unit_test_setup_teardown(f, make_all, clear_all)

static inline accrue_status prepare(accrue_error *e)
{
    return accrue_prepare(&report, &opt, NULL, NULL, e);
}

/* What is in a folder; "" where there is none. */
static inline void list(char *names, size_t room, const char *path)
{
    struct dirent **found = NULL;
    int n = scandir(path, &found, NULL, alphasort);

    *names = '\0';
    for (int i = 0; i < n; i++) {
        size_t used = strlen(names);
        if (strcmp(found[i]->d_name, ".") != 0 && strcmp(found[i]->d_name, "..") != 0)
            snprintf(names + used, room - used, "%s ", found[i]->d_name);
        free(found[i]);
    }
    free(found);
}

static inline void assert_holds(const char *path, const char *expected)
{
    char names[1000];

    list(names, sizeof names, path);
    assert_string_equal(names, expected);
}

/* A failed call leaves at most the folders above the data set. */
static inline void assert_nothing_left(void)
{
    char *parent = acr_sprintf("%s/out", folder);

    assert_holds(parent, "");
    acr_free(parent);
}

#endif
