/* manifest.c - manifest.json, which makes a checkpoint folder valid: the size and checksum of every
 * other file in it, written after them.
 *
 * The text is canonical: a manifest is accepted only where writing it again gives the same bytes,
 * so that no byte of it can change unseen either. */
#include "train/train.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define MANIFEST "manifest.json"
#define FORMAT   "accrue checkpoint"

enum { VERSION = 2, MAX_MANIFEST = 1 << 20, HEX = 17 };

static const char *const required[] = {"config.json", "model.safetensors", "state.tensors",
                                       "training_state.json"};

json_t *acr_manifest_entry(int64_t bytes, uint64_t hash)
{
    char hex[HEX];

    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    return json_pack("{s:I, s:s}", "bytes", (json_int_t)bytes, "xxh3", hex);
}

/* The entry of a file as it is. */
static accrue_status describe_file(json_t **out, const char *dir, const char *name,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, name);
    acr_map map = {0};

    *out = NULL;
    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_map_open(&map, path, err));
    *out = acr_manifest_entry((int64_t)map.bytes, acr_hash_bytes(map.data, map.bytes, 0));
    if (!*out)
        st = acr_enomem(err, 0, MANIFEST);

cleanup:
    acr_map_close(&map);
    acr_free(path);
    return st;
}

static bool is_other_file(const char *name)
{
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, MANIFEST) != 0;
}

accrue_status acr_manifest_write(const char *dir, json_t *files, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *manifest =
        json_pack("{s:s, s:i, s:O}", "format", FORMAT, "version", VERSION, "files", files);
    char *path = acr_sprintf("%s/" MANIFEST, dir);
    char *text = manifest ? acr_json_text(manifest) : NULL;

    if (!path || !text) {
        st = acr_enomem(err, 0, MANIFEST);
        goto cleanup;
    }
    ACR_TRY(acr_write_file(path, text, strlen(text), err));

cleanup:
    json_decref(manifest);
    acr_free(text);
    acr_free(path);
    return st;
}

static accrue_status check_text(json_t **out, const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *manifest = NULL;
    const char *format = NULL;
    char *text = NULL;
    acr_map map = {0};

    *out = NULL;
    ACR_TRY(acr_map_open(&map, path, err));
    ACR_TRY(acr_json_load(&manifest, path, MAX_MANIFEST, err));
    format = json_string_value(json_object_get(manifest, "format"));
    text = acr_json_text(manifest);
    if (!text) {
        st = acr_enomem(err, map.bytes, MANIFEST);
        goto cleanup;
    }
    if (strlen(text) != map.bytes || memcmp(text, map.data, map.bytes) != 0 ||
        json_object_size(manifest) != 3 || !format || strcmp(format, FORMAT) != 0 ||
        json_integer_value(json_object_get(manifest, "version")) != VERSION ||
        !json_is_object(json_object_get(manifest, "files"))) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: not a manifest of version %d as it was written",
                      path, VERSION);
        goto cleanup;
    }
    *out = manifest;
    manifest = NULL;

cleanup:
    json_decref(manifest);
    acr_free(text);
    acr_map_close(&map);
    return st;
}

static accrue_status check_size(const char *dir, const char *name, const json_t *expected,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, name);
    int64_t bytes = path ? acr_file_bytes(path) : 0;
    int64_t listed = json_integer_value(json_object_get(expected, "bytes"));

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    if (bytes != listed)
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: %lld bytes, %lld expected", path, (long long)bytes,
                      (long long)listed);
    acr_free(path);
    return st;
}

static accrue_status check_file(const char *dir, const char *name, const json_t *expected,
                                bool contents, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *got = NULL;

    if (strchr(name, '/'))
        return acr_fail(err, ACCRUE_EFORMAT, "%s/" MANIFEST ": names a file \"%s\"", dir, name);
    if (!contents)
        return check_size(dir, name, expected, err);
    st = describe_file(&got, dir, name, err);
    if (!st && !json_equal(got, expected))
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s/%s: %lld bytes, checksum %s; %lld bytes, checksum %s expected", dir, name,
                      (long long)json_integer_value(json_object_get(got, "bytes")),
                      json_string_value(json_object_get(got, "xxh3")),
                      (long long)json_integer_value(json_object_get(expected, "bytes")),
                      json_is_string(json_object_get(expected, "xxh3"))
                          ? json_string_value(json_object_get(expected, "xxh3"))
                          : "none");
    json_decref(got);
    return st;
}

static bool holds_unlisted(const char *dir, const json_t *files)
{
    DIR *d = opendir(dir);
    struct dirent *entry = NULL;
    bool found = !d;

    while (d && !found && (entry = readdir(d)) != NULL)
        found = is_other_file(entry->d_name) && !json_object_get(files, entry->d_name);
    if (d)
        closedir(d);
    return found;
}

accrue_status acr_manifest_check(const char *dir, bool contents, bool *unlisted, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *manifest = NULL, *files = NULL, *expected = NULL;
    char *path = acr_sprintf("%s/" MANIFEST, dir);
    const char *name = NULL;

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(check_text(&manifest, path, err));
    files = json_object_get(manifest, "files");
    for (int i = 0; i < ACR_COUNT(required); i++)
        if (!json_object_get(files, required[i])) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: does not list %s", path, required[i]);
            goto cleanup;
        }
    json_object_foreach(files, name, expected)
    {
        ACR_TRY(check_file(dir, name, expected, contents, err));
    }
    if (unlisted)
        *unlisted = holds_unlisted(dir, files);

cleanup:
    json_decref(manifest);
    acr_free(path);
    return st;
}
