/* config.h - YAML as configurations use it: mappings, lists and scalars, each with its line. */
#ifndef ACR_CLI_CONFIG_H
#define ACR_CLI_CONFIG_H

#include "accrue/accrue.h"

#include <stddef.h>

#define CONFIG_MAX_BYTES (1 << 20)
#define CONFIG_MAX_DEPTH 16
#define CONFIG_MAX_NODES 10000

typedef enum node_kind { NODE_SCALAR, NODE_LIST, NODE_MAP } node_kind;

typedef struct config_node {
    node_kind kind;
    int line;                         /* of its key, where it has one */
    bool plain;                       /* a scalar without quotes: may be null, a number, a bool */
    char *key, *text;                 /* in a mapping; of a scalar */
    struct config_node *first, *next; /* child, sibling */
} config_node;

/* Reads one document; *out is NULL for an empty one.  Duplicate keys, anchors, aliases, merge keys,
 * tags and further documents are refused.  -1 with a line in `err`, which begins with `path`. */
int config_parse(config_node **out, const char *path, const char *text, size_t bytes,
                 accrue_error *err);
void config_free(config_node *node);
bool config_is_null(const config_node *node);
const config_node *config_member(const config_node *map, const char *key);

/* `text` as a scalar that config_parse and every YAML reader take for that string, on one line;
 * NULL where it is not UTF-8.  The caller frees it. */
char *config_quote(const char *text);

#endif
