/* export_card.c - the front matter of a model card: license, tags, what a model was made from. */
#include "convert/export_parts.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_DEPTH = 32, MAX_NODES = 100000 };

/* YAML as JSON -------------------------------------------------------------------------------- */

typedef struct reader {
    yaml_document_t document;
    pcre2_code *pattern; /* not_strings */
    pcre2_match_data *match;
    const char *name;
    int nodes; /* so far: aliases multiply them */
    accrue_error *err;
} reader;

/* Plain text that is no string to YAML 1.1: numbers, dates and truth values. */
static const char not_strings[] =
    "^(?:(?i:yes|no|true|false|on|off)|~|null|Null|NULL|=|<<|"
    "[-+]?0b[01_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])*(?:\\.[0-9_]*)?|"
    "[-+]?(?:[0-9][0-9_]*)?\\.[0-9_]+(?:[eE][-+][0-9]+)?|[-+]?[0-9][0-9_]*\\.[0-9_]*"
    "[eE][-+][0-9]+|[-+]?\\.(?:inf|Inf|INF)|\\.(?:nan|NaN|NAN)|"
    "[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?(?:[Tt \\t].*)?)?$";

/* null where it is that, and where it is what no string is: a JSON number stands for these. */
static accrue_status read_scalar(json_t **out, const yaml_node_t *node, const reader *r)
{
    const char *s = (const char *)node->data.scalar.value;
    const size_t bytes = node->data.scalar.length;

    if (node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE ||
        pcre2_match(r->pattern, (PCRE2_SPTR)s, bytes, 0, 0, r->match, NULL) < 0)
        *out = json_stringn(s, bytes);
    else if (!bytes || strcmp(s, "~") == 0 || strcmp(s, "null") == 0 || strcmp(s, "Null") == 0 ||
             strcmp(s, "NULL") == 0)
        *out = json_null();
    else
        *out = json_integer(0);
    return *out ? ACCRUE_OK : acr_enomem(r->err, bytes, r->name);
}

static accrue_status read_node(json_t **out, yaml_node_t *node, int depth, reader *r)
{
    accrue_status st = ACCRUE_OK;
    json_t *value = NULL;

    if (!node || depth > MAX_DEPTH || r->nodes++ >= MAX_NODES)
        return acr_fail(r->err, ACCRUE_EFORMAT,
                        "%s: its front matter has more than %d values, or nests more than %d deep",
                        r->name, MAX_NODES, MAX_DEPTH);
    if (node->type == YAML_SCALAR_NODE)
        return read_scalar(out, node, r);
    *out = node->type == YAML_SEQUENCE_NODE ? json_array() : json_object();
    for (yaml_node_item_t *i = node->data.sequence.items.start;
         node->type == YAML_SEQUENCE_NODE && i < node->data.sequence.items.top; i++) {
        ACR_TRY(read_node(&value, yaml_document_get_node(&r->document, *i), depth + 1, r));
        if (json_array_append_new(*out, value) != 0)
            return acr_enomem(r->err, 0, r->name);
        value = NULL;
    }
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start;
         node->type == YAML_MAPPING_NODE && p < node->data.mapping.pairs.top; p++) {
        yaml_node_t *key = yaml_document_get_node(&r->document, p->key);
        if (!key || key->type != YAML_SCALAR_NODE)
            continue;
        ACR_TRY(read_node(&value, yaml_document_get_node(&r->document, p->value), depth + 1, r));
        if (json_object_set_new(*out, (const char *)key->data.scalar.value, value) != 0)
            return acr_enomem(r->err, 0, r->name);
        value = NULL;
    }

cleanup:
    json_decref(value); /* what was made before it failed */
    return st;
}

static accrue_status load(json_t **out, reader *r, const char *text)
{
    accrue_status st = ACCRUE_OK;
    yaml_parser_t parser;

    if (!yaml_parser_initialize(&parser))
        return acr_enomem(r->err, 0, r->name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    if (!yaml_parser_load(&parser, &r->document)) {
        st = acr_fail(r->err, ACCRUE_EFORMAT, "%s: line %zu of its front matter: %s", r->name,
                      parser.problem_mark.line + 1, parser.problem ? parser.problem : "no memory");
        yaml_parser_delete(&parser);
        return st;
    }
    if (yaml_document_get_root_node(&r->document))
        st = read_node(out, yaml_document_get_root_node(&r->document), 0, r);
    yaml_document_delete(&r->document);
    yaml_parser_delete(&parser);
    return st;
}

static accrue_status parse(json_t **out, const char *text, const char *name, accrue_error *err)
{
    reader r = {.name = name, .err = err};
    accrue_status st = ACCRUE_OK;
    int code = 0;
    PCRE2_SIZE at = 0;

    r.pattern =
        pcre2_compile((PCRE2_SPTR)not_strings, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    r.match = r.pattern ? pcre2_match_data_create(1, NULL) : NULL;
    st = r.match ? load(out, &r, text) : acr_enomem(err, 0, "a pattern");
    pcre2_match_data_free(r.match);
    pcre2_code_free(r.pattern);
    return st;
}

/* What stands between the first line and the next that is "---".  "- no" is no truth value here but
 * a language, and tabs pass for blanks. */
static accrue_status front_matter(char **out, const char *text, const char *name, accrue_error *err)
{
    const char *at = strncmp(text, "---\n", 4) == 0 ? text + 4 : NULL;
    char *to = NULL;

    *out = NULL;
    if (!at)
        return ACCRUE_OK;
    *out = to = acr_malloc(3 * strlen(at) + 2);
    if (!to)
        return acr_enomem(err, 3 * strlen(at) + 2, name);
    while (*at && strcmp(at, "---") != 0 && strncmp(at, "---\n", 4) != 0) {
        size_t n = strcspn(at, "\n");
        bool no = n >= 4 && strncmp(at + n - 4, "- no", 4) == 0;
        for (size_t i = 0; i < n - (no ? 2 : 0); i++) {
            *to++ = at[i] == '\t' ? ' ' : at[i];
            if (at[i] == '\t')
                *to++ = ' ';
        }
        if (no) {
            memcpy(to, "\"no\"", 4);
            to += 4;
        }
        *to++ = '\n';
        at += n + (at[n] == '\n');
    }
    *to = '\0';
    return ACCRUE_OK;
}

/* What it says ------------------------------------------------------------------------------- */

/* card's `from` as about's `to`, a string. */
static accrue_status take(json_t *about, const char *to, const json_t *card, const char *from,
                          const char *name, accrue_error *err)
{
    json_t *value = json_object_get(card, from);

    if (acr_absent(value))
        return ACCRUE_OK;
    if (!json_is_string(value) && !(json_is_array(value) && strcmp(from, "license") == 0))
        return acr_fail(err, ACCRUE_EFORMAT, "%s: \"%s\" of its front matter is no string", name,
                        from);
    return acr_export_set(about, to, json_incref(value), err);
}

/* Adds a string or the strings of a list. */
static accrue_status take_list(json_t *about, const char *to, const json_t *card, const char *from,
                               const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *value = json_object_get(card, from), *list = NULL;
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;

    if (!json_is_array(value) && !json_is_string(value))
        return ACCRUE_OK;
    ACR_TRY(acr_export_set(about, to, json_array(), err));
    list = json_object_get(about, to);
    for (size_t i = 0; i < n; i++) {
        json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(item)) {
            st =
                acr_fail(err, ACCRUE_EFORMAT,
                         "%s: entry %zu of \"%s\" of its front matter is no string", name, i, from);
            goto cleanup;
        }
        if (json_array_append(list, item) != 0) {
            st = acr_enomem(err, 0, name);
            goto cleanup;
        }
    }

cleanup:
    return st;
}

/* An address on the Hub without its name: "owner/model"; NULL where it is none. */
static const char *hub_id(const char *url)
{
    const char *at = strncmp(url, "https://", 8) == 0  ? url + 8
                     : strncmp(url, "http://", 7) == 0 ? url + 7
                                                       : "";
    const char *slash = NULL;

    if (strncmp(at, "huggingface.co/", 15) != 0)
        return NULL;
    slash = strchr(at + 15, '/');
    return slash && slash > at + 15 && slash[1] && !strchr(slash + 1, '/') ? at + 15 : NULL;
}

/* What a model or data set that is named, by an identifier or an address, is called. */
static accrue_status describe(json_t *one, const char *id, int64_t elements, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const bool url = strncmp(id, "http://", 7) == 0 || strncmp(id, "https://", 8) == 0 ||
                     strncmp(id, "ssh://", 6) == 0;
    const char *on_hub = url ? hub_id(id) : id;

    if (on_hub)
        ACR_TRY(acr_export_name(one, on_hub, elements, err));
    if (url) {
        ACR_TRY(acr_export_set(one, "repo_url", json_string(id), err));
    } else if (strchr(id, '/') && id[0] != '.' && !strchr(id, ' ')) {
        ACR_TRY(
            acr_export_set(one, "repo_url", json_sprintf("https://huggingface.co/%s", id), err));
    }

cleanup:
    return st;
}

static accrue_status take_sources(json_t *about, const char *to, const json_t *card,
                                  const char *const keys[3], int64_t elements, const char *name,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *value = NULL, *list = NULL, *one = NULL;

    for (int i = 0; i < 3 && !value; i++)
        value = json_object_get(card, keys[i]);
    if (!value)
        return ACCRUE_OK;
    ACR_TRY(acr_export_set(about, to, json_array(), err));
    list = json_object_get(about, to);
    for (size_t i = 0; i < (json_is_array(value) ? json_array_size(value) : 1); i++) {
        json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_array(value) && !json_is_string(value))
            break;
        one = json_is_object(item) ? json_incref(item) : json_object();
        if (json_is_string(item))
            ACR_TRY(describe(one, json_string_value(item), elements, err));
        if (json_array_append(list, one) != 0) {
            st = acr_enomem(err, 0, name);
            goto cleanup;
        }
        json_decref(one);
        one = NULL;
    }

cleanup:
    json_decref(one);
    return st;
}

/* The first of several names for a thing counts. */
static accrue_status take_all(json_t *about, const json_t *card, int64_t elements, const char *name,
                              accrue_error *err)
{
    static const char *const models[] = {"base_model", "base_models", "base_model_sources"};
    static const char *const sets[] = {"datasets", "dataset", "dataset_sources"};
    static const char *const strings[][2] = {
        {"name", "name"},
        {"author", "author"},
        {"version", "version"},
        {"organization", "organization"},
        {"description", "description"},
        {"finetune", "finetune"},
        {"basename", "basename"},
        {"size_label", "size_label"},
        {"source_url", "url"},
        {"source_doi", "doi"},
        {"source_uuid", "uuid"},
        {"source_repo_url", "repo_url"},
        {"name", "model_name"},
        {"author", "model_author"},
        {"version", "model_version"},
        {"organization", "model_organization"},
        {"description", "model_description"},
        {"finetune", "model_finetune"},
        {"basename", "model_basename"},
        {"size_label", "model_size_label"},
        {"source_url", "model_url"},
        {"source_doi", "model_doi"},
        {"source_uuid", "model_uuid"},
        {"source_repo_url", "model_repo_url"},
        {"author", "model_creator"},
        {"basename", "model_type"},
        {"license", "license"},
        {"license_name", "license_name"},
        {"license_link", "license_link"},
    };
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < ACR_COUNT(strings); i++)
        ACR_TRY(take(about, strings[i][0], card, strings[i][1], name, err));
    ACR_TRY(take_sources(about, "base_models", card, models, elements, name, err));
    ACR_TRY(take_sources(about, "datasets", card, sets, elements, name, err));
    ACR_TRY(take_list(about, "tags", card, "tags", name, err));
    ACR_TRY(take_list(about, "tags", card, "pipeline_tag", name, err));
    ACR_TRY(take_list(about, "languages", card, "languages", name, err));
    ACR_TRY(take_list(about, "languages", card, "language", name, err));

cleanup:
    return st;
}

accrue_status acr_export_card(json_t *about, const char *dir, int64_t elements, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/README.md", dir), *text = NULL, *front = NULL;
    json_t *card = NULL;

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_export_text(&text, dir, "README.md", err));
    if (text)
        ACR_TRY(front_matter(&front, text, path, err));
    if (front)
        ACR_TRY(parse(&card, front, path, err));
    if (json_is_object(card))
        ACR_TRY(take_all(about, card, elements, path, err));

cleanup:
    json_decref(card);
    acr_free(front);
    acr_free(text);
    acr_free(path);
    return st;
}
