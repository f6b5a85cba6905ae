/* fuzz_yaml.c - a configuration is read or refused; a string that was read, or the input itself,
 * survives being written as a scalar and read again. */
#include "fuzz.h"

#include "cli/config.h"

#include <stdio.h>
#include <string.h>

static void round_trip(const char *string, bool readable)
{
    config_node *root = NULL;
    accrue_error err;
    char *quoted = config_quote(string), *line = NULL;
    size_t bytes = 0;

    FUZZ_CHECK(quoted || !readable);
    if (!quoted)
        return;
    FUZZ_CHECK(!strchr(quoted, '\n') && !strchr(quoted, '\r'));
    bytes = strlen(quoted) + sizeof "  key:   # origin\n";
    line = malloc(bytes);
    FUZZ_CHECK(line);
    snprintf(line, bytes, "  key: %s  # origin\n", quoted);
    if (strlen(line) <= CONFIG_MAX_BYTES) {
        FUZZ_CHECK(config_parse(&root, "again", line, strlen(line), &err) == 0);
        FUZZ_CHECK(root && root->first && strcmp(root->first->text, string) == 0);
        FUZZ_CHECK(!config_is_null(root->first) && !root->first->next);
    }
    config_free(root);
    free(line);
    free(quoted);
}

static void walk(const config_node *node, int depth)
{
    FUZZ_CHECK(depth <= CONFIG_MAX_DEPTH);
    for (; node; node = node->next) {
        FUZZ_CHECK(node->line > 0 && !node->text == (node->kind != NODE_SCALAR));
        if (node->key)
            round_trip(node->key, true);
        if (node->text)
            round_trip(node->text, true);
        walk(node->first, depth + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    config_node *root = NULL;
    accrue_error err = {0};
    char *string = malloc(size + 1);

    FUZZ_CHECK(string);
    memcpy(string, data, size);
    string[size] = '\0';
    if (config_parse(&root, "input", (const char *)data, size, &err))
        FUZZ_CHECK(strncmp(err.message, "input:", 6) == 0 && !root);
    walk(root, 0);
    config_free(root);
    round_trip(string, false);
    free(string);
    return 0;
}
