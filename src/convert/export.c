/* export.c - a draft as a file that another engine reads. */
#include "convert/export_parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CONFIG = 16 << 20, MAX_TOKENIZER = 100 << 20 };

void accrue_export_options_init(accrue_export_options *opt, size_t struct_size)
{
    accrue_export_options d = {.dtype = ACCRUE_EXPORT_BF16};

    d.struct_size = struct_size;
    if (struct_size > sizeof d)
        memset(opt, 0, struct_size);
    memcpy(opt, &d, struct_size < sizeof d ? struct_size : sizeof d);
}

accrue_status acr_export_set(json_t *about, const char *key, json_t *value, accrue_error *err)
{
    if (!value)
        return acr_enomem(err, 0, key);
    if (json_object_get(about, key)) {
        json_decref(value);
        return ACCRUE_OK;
    }
    return json_object_set_new(about, key, value) != 0 ? acr_enomem(err, 0, key) : ACCRUE_OK;
}

accrue_status acr_export_lose(acr_export *e, const char *what, accrue_error *err,
                              const char *format, ...)
{
    char effect[400];
    va_list args;

    va_start(args, format);
    vsnprintf(effect, sizeof effect, format, args);
    va_end(args);
    if (json_array_append_new(e->lost, json_pack("{s:s, s:s}", "what", what, "effect", effect)))
        return acr_enomem(err, sizeof effect, "the report");
    return ACCRUE_OK;
}

/* Files ------------------------------------------------------------------------------------ */

/* model_max_length, of tokenizer_config.json, has no bound. */
accrue_status acr_export_json(json_t **out, const char *dir, const char *file, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, file);
    acr_map map = {0};
    json_error_t e;

    *out = NULL;
    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    if (!acr_exists(path))
        goto cleanup;
    ACR_TRY(acr_map_open(&map, path, err));
    if (map.bytes > MAX_TOKENIZER) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: %zu bytes, at most %d expected", path, map.bytes,
                      MAX_TOKENIZER);
        goto cleanup;
    }
    *out =
        json_loadb(map.data ? (const char *)map.data : "", map.bytes, JSON_REJECT_DUPLICATES, &e);
    if (!*out && json_error_code(&e) == json_error_numeric_overflow)
        *out = json_loadb((const char *)map.data, map.bytes,
                          JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &e);
    if (!*out) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: line %d column %d: %s", path, e.line, e.column,
                      e.text);
    } else if (!json_is_object(*out)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: no JSON object", path);
        json_decref(*out);
        *out = NULL;
    }

cleanup:
    acr_map_close(&map);
    acr_free(path);
    return st;
}

accrue_status acr_export_text(char **out, const char *dir, const char *file, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, file), *to = NULL;
    acr_map map = {0};
    json_t *check = NULL;

    *out = NULL;
    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    if (!acr_exists(path))
        goto cleanup;
    ACR_TRY(acr_map_open(&map, path, err));
    if (map.bytes > MAX_CONFIG) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: %zu bytes, at most %d expected", path, map.bytes,
                      MAX_CONFIG);
        goto cleanup;
    }
    check = map.bytes && !memchr(map.data, 0, map.bytes)
                ? json_stringn((const char *)map.data, map.bytes)
                : NULL;
    if (map.bytes && !check) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: no UTF-8 text", path);
        goto cleanup;
    }
    *out = to = acr_malloc(map.bytes + 1);
    if (!to) {
        st = acr_enomem(err, map.bytes + 1, path);
        goto cleanup;
    }
    for (size_t i = 0; i < map.bytes; i++)
        if (map.data[i] != '\r')
            *to++ = (char)map.data[i];
        else if (i + 1 == map.bytes || map.data[i + 1] != '\n')
            *to++ = '\n';
    *to = '\0';

cleanup:
    json_decref(check);
    acr_map_close(&map);
    acr_free(path);
    return st;
}

/* Reading ---------------------------------------------------------------------------------- */

static accrue_status load_config(json_t **out, char **name, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    *name = acr_sprintf("%s/config.json", dir);
    if (!*name)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_json_load(out, *name, MAX_CONFIG, err));
    if (!json_is_object(*out))
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: no JSON object", *name);

cleanup:
    return st;
}

/* Lays the members of one of an object's own members over it. */
static accrue_status lay_over(json_t *object, const char *member, accrue_error *err)
{
    json_t *inner = json_object_get(object, member);

    if (json_is_object(inner) && json_object_update(object, inner) != 0)
        return acr_enomem(err, 0, member);
    return ACCRUE_OK;
}

static accrue_status check_pair(const acr_export *e, accrue_error *err)
{
    static const char *const keys[] = {"vocab_size", "hidden_size"};
    const int64_t drafts[] = {e->draft.vocab_size, e->draft.hidden_size};

    for (int i = 0; i < ACR_COUNT(keys); i++) {
        const json_t *v = json_object_get(e->verifier, keys[i]);
        if (!json_is_integer(v) || json_integer_value(v) != drafts[i])
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: \"%s\" is %lld, the draft's is %lld (%s): another verifier's",
                            e->verifier_name, keys[i], (long long)json_integer_value(v),
                            (long long)drafts[i], e->config_name);
    }
    return ACCRUE_OK;
}

static accrue_status read_all(acr_export *e, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    e->lost = json_array();
    ACR_TRY(load_config(&e->config, &e->config_name, e->opt->checkpoint, err));
    ACR_TRY(acr_config_read(&e->draft, e->config, e->config_name, err));
    e->decoder = json_copy(e->config);
    ACR_TRY(lay_over(e->decoder, "transformer_layer_config", err));
    ACR_TRY(acr_export_check(e, err));
    ACR_TRY(load_config(&e->verifier, &e->verifier_name, e->opt->verifier, err));
    ACR_TRY(lay_over(e->verifier, "text_config", err));
    ACR_TRY(check_pair(e, err));
    ACR_TRY(acr_weights_open(&e->weights, e->opt->checkpoint, err));
    ACR_TRY(acr_export_plan(e, err));
    ACR_TRY(acr_export_model_keys(e, err));
    ACR_TRY(acr_export_vocab_keys(e, err));

cleanup:
    return st;
}

/* Writing ---------------------------------------------------------------------------------- */

/* A name given by mistake, of a checkpoint's file say, costs nothing. */
static accrue_status check_out(const char *path, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char magic[4] = {0};
    int64_t bytes = 0;
    int fd = -1;

    if (acr_is_dir(path))
        return acr_fail(err, ACCRUE_EINVAL, "%s: a folder, the name of a file expected", path);
    if (!acr_exists(path))
        return ACCRUE_OK;
    ACR_TRY(acr_open_file(&fd, &bytes, path, err));
    if (bytes && (read(fd, magic, sizeof magic) != sizeof magic || memcmp(magic, "GGUF", 4) != 0))
        st = acr_fail(err, ACCRUE_EINVAL, "%s: it is there and no GGUF file, so it stays", path);

cleanup:
    if (fd >= 0)
        close(fd);
    return st;
}

static accrue_status write_all(acr_export *e, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_gguf_source source = {.rows = acr_export_rows, .ctx = e};
    char *name = NULL, *partial = NULL, *folder = NULL;
    bool made = false;

    ACR_TRY(acr_linked_path(&name, e->opt->out, err));
    partial = acr_sprintf("%s.partial", name);
    folder = acr_parent(name);
    if (!partial || !folder) {
        st = acr_enomem(err, strlen(e->opt->out), "a path");
        goto cleanup;
    }
    if (acr_exists(partial) && !acr_is_file(partial)) {
        st = acr_fail(err, ACCRUE_EIO, "%s: not a regular file", partial);
        goto cleanup;
    }
    made = true;
    e->began = acr_seconds();
    e->progress.unit = "bytes";
    for (int i = 0; i < e->n; i++)
        e->progress.total += (int64_t)e->tensors[i].bytes;
    ACR_TRY(acr_gguf_write(partial, &e->keys, e->tensors, e->n, &source, err));
    ACR_TRY(acr_sync(partial, err));
    if (rename(partial, name) != 0) {
        st = acr_fail_errno(err, errno, "cannot rename to it from its temporary name", e->opt->out);
        goto cleanup;
    }
    made = false;
    ACR_TRY(acr_sync(folder, err));

cleanup:
    if (made)
        unlink(partial);
    acr_free(name);
    acr_free(partial);
    acr_free(folder);
    return st;
}

/* Report ----------------------------------------------------------------------------------- */

static json_t *tensor_json(const acr_export *e, int i)
{
    const acr_gguf_tensor *t = &e->tensors[i];
    const acr_tensor *from = e->sources[i].from;
    json_t *shape = json_array();

    for (int d = 0; d < t->n_dims; d++)
        json_array_append_new(shape, json_integer(t->dims[d]));
    return json_pack("{s:s, s:s, s:s, s:o, s:I}", "name", t->name, "from",
                     from                             ? from->name
                     : e->ids == e->sources[i].values ? "d2t"
                                                      : "rope_parameters",
                     "type", acr_gguf_type_name(t->type), "shape", shape, "bytes",
                     (json_int_t)t->bytes);
}

static accrue_status report(char **out, const acr_export *e, accrue_error *err)
{
    json_t *tensors = json_array(), *root = NULL;

    for (int i = 0; i < e->n; i++)
        json_array_append_new(tensors, tensor_json(e, i));
    root = json_pack(
        "{s:o, s:s, s:o, s:I, s:I, s:i, s:O, s:o}", "path", acr_json_string(e->opt->out), "format",
        "gguf", "checkpoint", acr_json_string(e->opt->checkpoint), "bytes",
        (json_int_t)acr_file_bytes(e->opt->out), "parameters", (json_int_t)acr_export_elements(e),
        "keys", e->keys.n, "lost", e->lost, "tensors", tensors);
    *out = root ? acr_json_text(root) : NULL;
    json_decref(root);
    return *out ? ACCRUE_OK : acr_enomem(err, 0, "the report");
}

static accrue_status check_options(const accrue_export_options *o, accrue_error *err)
{
    if (!o->checkpoint || !*o->checkpoint)
        return acr_fail(err, ACCRUE_EINVAL, "export: a checkpoint's folder expected");
    if (!o->verifier || !*o->verifier)
        return acr_fail(err, ACCRUE_EINVAL,
                        "--verifier-name-or-path: expected, as the file carries the tokenizer");
    if (!o->out || !*o->out)
        return acr_fail(err, ACCRUE_EINVAL, "--out: a file expected");
    if ((int)o->dtype < ACCRUE_EXPORT_BF16 || o->dtype > ACCRUE_EXPORT_Q8_0)
        return acr_fail(err, ACCRUE_EINVAL, "--dtype: %d, %d to %d expected", (int)o->dtype,
                        ACCRUE_EXPORT_BF16, ACCRUE_EXPORT_Q8_0);
    return ACCRUE_OK;
}

static void release(acr_export *e)
{
    acr_gguf_keys_free(&e->keys);
    acr_weights_close(e->weights);
    acr_config_free(&e->draft);
    json_decref(e->config);
    json_decref(e->decoder);
    json_decref(e->verifier);
    json_decref(e->lost);
    acr_free(e->config_name);
    acr_free(e->verifier_name);
    acr_free(e->ids);
    acr_free(e->rope);
    acr_free(e->row);
}

accrue_status accrue_export(char **out, const accrue_export_options *opt, accrue_progress_cb cb,
                            void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_export_options o;
    acr_export *e = acr_calloc(1, sizeof *e);

    if (out)
        *out = NULL;
    if (!e)
        return acr_enomem(err, sizeof *e, "the export");
    accrue_export_options_init(&o, sizeof o);
    memcpy(&o, opt, opt->struct_size < sizeof o ? opt->struct_size : sizeof o);
    e->opt = &o;
    e->cb = cb;
    e->payload = payload;
    ACR_TRY(check_options(&o, err));
    ACR_TRY(check_out(o.out, err));
    ACR_TRY(read_all(e, err));
    ACR_TRY(write_all(e, err));
    if (out)
        ACR_TRY(report(out, e, err));

cleanup:
    release(e);
    acr_free(e);
    return st;
}
