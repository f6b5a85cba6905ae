/* import.c - a GGUF file as a Hugging Face folder.
 *
 * Weights go through one buffer, so that memory does not grow with the model. */
#include "convert/new_folder.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 1 << 20, MAX_RECORD = 1 << 20 };

static const char *const files[] = {
    "config.json",           "generation_config.json", "model.safetensors", "tokenizer.json",
    "tokenizer_config.json", "chat_template.jinja",    "import.json",       NULL};

static const struct dtype {
    const char *name; /* transformers' */
    acr_dtype dtype;
} dtypes[] = {
    [ACCRUE_IMPORT_AUTO] = {"auto", ACR_DTYPE_COUNT},
    [ACCRUE_IMPORT_BF16] = {"bfloat16", ACR_DTYPE_BF16},
    [ACCRUE_IMPORT_F16] = {"float16", ACR_DTYPE_F16},
    [ACCRUE_IMPORT_F32] = {"float32", ACR_DTYPE_F32},
};

typedef struct importing {
    const accrue_import_options *opt;
    accrue_import_report *report;
    acr_pretrained *model;
    acr_tensor *tensors; /* as they are written */
    int n;
    acr_dtype main; /* of most of the weights */
    json_t *tokenizer, *tokenizer_config, *record;
    const char *chat_template;
    acr_new_folder folder;
    void *buffer, *rows; /* a piece as it is written; its rows as f32 or f64 */
    accrue_progress progress;
    accrue_progress_cb cb;
    void *payload;
    double begun;
    accrue_status failed; /* why a piece was not made */
    accrue_error *err;
} importing;

void accrue_import_options_init(accrue_import_options *opt, size_t struct_size)
{
    accrue_import_options d = {.dtype = ACCRUE_IMPORT_AUTO};

    d.struct_size = struct_size;
    if (struct_size > sizeof d)
        memset(opt, 0, struct_size);
    memcpy(opt, &d, struct_size < sizeof d ? struct_size : sizeof d);
}

/* Plan ------------------------------------------------------------------------------------- */

/* The type of most elements of matrices. */
static acr_dtype main_dtype(const acr_pretrained *p)
{
    int64_t elements[ACR_DTYPE_COUNT] = {0};
    acr_dtype most = ACR_DTYPE_BF16;

    for (int i = 0; i < acr_pretrained_count(p); i++) {
        const acr_tensor *t = acr_pretrained_at(p, i);
        if (t->n_dims > 1)
            elements[t->dtype] += acr_tensor_elements(t);
    }
    for (int t = 0; t < ACR_DTYPE_COUNT; t++)
        if (elements[t] > elements[most])
            most = (acr_dtype)t;
    return most;
}

/* Whether a vector, which GGUF keeps in f32 beside matrices of any type, has but values of the
 * smaller type: then it came from there. */
static bool fits(const importing *m, int i, float *values)
{
    const acr_tensor *t = acr_pretrained_at(m->model, i);
    bool same = !acr_pretrained_read(values, ACR_DTYPE_F32, m->model, i, 0, t->dims[0], NULL);

    for (int64_t k = 0; k < t->dims[0] && same; k++) {
        uint16_t half = 0;
        float back = 0;
        acr_convert(m->main, &half, ACR_DTYPE_F32, &values[k], 1);
        acr_convert(ACR_DTYPE_F32, &back, m->main, &half, 1);
        same = back == values[k];
    }
    return same;
}

static accrue_status choose_dtype(importing *m, int i)
{
    acr_tensor *t = &m->tensors[i];
    float *values = NULL;

    if (m->opt->dtype != ACCRUE_IMPORT_AUTO) {
        t->dtype = m->main;
    } else if (t->n_dims == 1 && t->dtype == ACR_DTYPE_F32 && acr_dtype_bytes(m->main) == 2) {
        values = acr_malloc((size_t)t->dims[0] * sizeof *values);
        if (!values)
            return acr_enomem(m->err, (size_t)t->dims[0] * sizeof *values, t->name);
        if (fits(m, i, values))
            t->dtype = m->main;
        acr_free(values);
    }
    t->bytes = (size_t)acr_tensor_elements(t) * acr_dtype_bytes(t->dtype);
    return ACCRUE_OK;
}

static accrue_status plan_tensors(importing *m)
{
    accrue_status st = ACCRUE_OK;
    size_t widest = 1;

    m->main =
        m->opt->dtype == ACCRUE_IMPORT_AUTO ? main_dtype(m->model) : dtypes[m->opt->dtype].dtype;
    m->n = acr_pretrained_count(m->model);
    m->tensors = acr_calloc((size_t)m->n + 1, sizeof *m->tensors);
    if (!m->tensors)
        return acr_enomem(m->err, (size_t)m->n * sizeof *m->tensors, m->opt->model);
    for (int i = 0; i < m->n; i++) {
        acr_tensor *t = &m->tensors[i];
        size_t row = 0;
        *t = *acr_pretrained_at(m->model, i);
        ACR_TRY(choose_dtype(m, i));
        row = (size_t)(acr_tensor_elements(t) / t->dims[0]);
        widest = row > widest ? row : widest;
        m->progress.total += (int64_t)t->bytes;
    }
    m->buffer = acr_malloc(BUFFER);
    m->rows = acr_malloc((BUFFER / 2 + 2 * widest) * sizeof(double));
    if (!m->buffer || !m->rows)
        st = acr_enomem(m->err, (BUFFER / 2 + 2 * widest) * sizeof(double), "a row of weights");

cleanup:
    return st;
}

static accrue_import_type *type_in_report(accrue_import_report *r, const char *name)
{
    for (int k = 0; k < r->n_types; k++)
        if (strcmp(r->types[k].name, name) == 0)
            return &r->types[k];
    snprintf(r->types[r->n_types].name, sizeof r->types[0].name, "%s", name);
    return &r->types[r->n_types++];
}

static void describe(importing *m)
{
    accrue_import_report *r = m->report;
    const json_t *config = acr_pretrained_config(m->model);

    for (int i = 0; i < m->n; i++) {
        const acr_gguf_tensor *from = acr_pretrained_origin(m->model, i);
        accrue_import_type *type = type_in_report(r, acr_gguf_type_name(from->type));
        type->tensors++;
        type->parameters += acr_tensor_elements(&m->tensors[i]);
        type->source_bytes += (int64_t)from->bytes;
        type->bytes += (int64_t)m->tensors[i].bytes;
        r->parameters += acr_tensor_elements(&m->tensors[i]);
    }
    r->tensors = m->n;
    r->layers = json_integer_value(json_object_get(config, "num_hidden_layers"));
    r->vocab_size = json_integer_value(json_object_get(config, "vocab_size"));
    snprintf(r->architecture, sizeof r->architecture, "%s",
             json_string_value(json_object_get(config, "model_type")));
    snprintf(r->dtype, sizeof r->dtype, "%s",
             m->main == ACR_DTYPE_F64   ? "float64"
             : m->main == ACR_DTYPE_F32 ? "float32"
             : m->main == ACR_DTYPE_F16 ? "float16"
                                        : "bfloat16");
}

/* Tokens that the embedding has no row for would be ids that no model takes. */
static accrue_status plan_tokenizer(importing *m)
{
    accrue_status st = ACCRUE_OK;
    const acr_gguf *g = acr_pretrained_gguf(m->model);
    const json_t *keys = acr_gguf_metadata(g);
    size_t tokens = json_array_size(json_object_get(keys, "tokenizer.ggml.tokens"));

    ACR_TRY(acr_gguf_tokenizer(&m->tokenizer, m->report->tokenizer_why, g, m->err));
    if (!m->tokenizer)
        goto cleanup;
    if (tokens > (size_t)m->report->vocab_size)
        return acr_fail(m->err, ACCRUE_EMISMATCH,
                        "%s: %zu tokens, at most %lld expected: the embedding has no more rows",
                        m->opt->model, tokens, (long long)m->report->vocab_size);
    ACR_TRY(acr_gguf_tokenizer_config(&m->tokenizer_config, g, m->err));
    m->chat_template = json_string_value(json_object_get(keys, "tokenizer.chat_template"));
    m->report->tokenizer = true;
    m->report->chat_template = m->chat_template;

cleanup:
    return st;
}

/* What it is an import of: the record beside the files. */
static accrue_status plan_record(importing *m)
{
    accrue_status st = ACCRUE_OK;
    acr_map map = {0};
    char hash[17];
    const char *name = strrchr(m->opt->model, '/');

    ACR_TRY(acr_map_open(&map, m->opt->model, m->err));
    snprintf(hash, sizeof hash, "%016llx",
             (unsigned long long)acr_hash_bytes(map.data, map.bytes, 0));
    m->report->source_bytes = (int64_t)map.bytes;
    m->record = json_pack("{s:s, s:s, s:{s:o, s:I, s:s}}", "accrue", accrue_version(), "dtype",
                          dtypes[m->opt->dtype].name, "source", "name",
                          acr_json_string(name ? name + 1 : m->opt->model), "bytes",
                          (json_int_t)map.bytes, "xxh3", hash);
    if (!m->record)
        st = acr_enomem(m->err, 0, "import.json");

cleanup:
    acr_map_close(&map);
    return st;
}

/* What is there already -------------------------------------------------------------------- */

static bool same(const json_t *a, const json_t *b, const char *key)
{
    return json_equal(json_object_get(a, key), json_object_get(b, key));
}

/* Whether the folder still has every file in its size. */
static bool is_whole(const char *dir, const json_t *record, int64_t *bytes)
{
    json_t *sizes = json_object_get(record, "files");
    const char *file = NULL;
    json_t *size = NULL;
    bool whole = json_object_size(sizes) > 0;

    *bytes = 0;
    json_object_foreach(sizes, file, size)
    {
        char *path = strchr(file, '/') ? NULL : acr_sprintf("%s/%s", dir, file);
        int64_t is = path ? acr_file_bytes(path) : -1;
        whole = whole && json_is_integer(size) && is == json_integer_value(size);
        *bytes += is;
        acr_free(path);
    }
    return whole;
}

/* The folder is there: is it what this call would write? */
static accrue_status compare(importing *m)
{
    accrue_status st = ACCRUE_OK;
    const char *dir = m->opt->out;
    char *path = acr_sprintf("%s/import.json", dir);
    json_t *there = NULL;
    const json_t *theirs = NULL, *ours = json_object_get(m->record, "source");

    if (!path)
        return acr_enomem(m->err, strlen(dir), "a path");
    if (!acr_is_file(path)) {
        st = acr_fail(m->err, ACCRUE_EMISMATCH, "%s: is there and no import; a new folder expected",
                      dir);
        goto cleanup;
    }
    ACR_TRY(acr_json_load(&there, path, MAX_RECORD, m->err));
    theirs = json_object_get(there, "source");
    if (!same(theirs, ours, "bytes") || !same(theirs, ours, "xxh3"))
        st = acr_fail(m->err, ACCRUE_EMISMATCH, "%s: is the import of another file than %s", dir,
                      m->opt->model);
    else if (!same(there, m->record, "dtype"))
        st = acr_fail(m->err, ACCRUE_EMISMATCH, "%s: is an import as %s, %s expected", dir,
                      json_string_value(json_object_get(there, "dtype"))
                          ? json_string_value(json_object_get(there, "dtype"))
                          : "something else",
                      dtypes[m->opt->dtype].name);
    else if (!is_whole(dir, there, &m->report->bytes))
        st = acr_fail(m->err, ACCRUE_EMISMATCH,
                      "%s: is an import that lacks files, or has them in other sizes", dir);
    else
        m->report->found = true;

cleanup:
    json_decref(there);
    acr_free(path);
    return st;
}

/* Writing ---------------------------------------------------------------------------------- */

static accrue_status tell(importing *m)
{
    m->progress.seconds = acr_seconds() - m->begun;
    if (m->cb && m->cb(&m->progress, m->payload))
        return acr_fail(m->err, ACCRUE_ECANCELED, "%s: stopped; nothing is left of it",
                        m->opt->out);
    return ACCRUE_OK;
}

/* Elements [first, first + n) of a tensor, in its type, into the buffer. */
static accrue_status make_piece(importing *m, int i, int64_t first, int64_t n)
{
    accrue_status st = ACCRUE_OK;
    const acr_tensor *t = &m->tensors[i];
    const acr_tensor *from = acr_pretrained_at(m->model, i);
    const acr_dtype real = from->dtype == ACR_DTYPE_F64 ? ACR_DTYPE_F64 : ACR_DTYPE_F32;
    const int64_t row = acr_tensor_elements(t) / t->dims[0];
    const int64_t begin = first / row, end = (first + n + row - 1) / row;
    const char *at = (const char *)m->rows + (size_t)(first - begin * row) * acr_dtype_bytes(real);
    int64_t bad = -1;

    ACR_TRY(acr_pretrained_read(m->rows, real, m->model, i, begin, end - begin, m->err));
    bad = acr_find_nonfinite(real, at, n);
    if (bad >= 0)
        return acr_fail(m->err, ACCRUE_EFORMAT, "%s: tensor '%s': element %lld is not finite",
                        m->opt->model, acr_pretrained_origin(m->model, i)->name,
                        (long long)(first + bad));
    acr_convert(t->dtype, m->buffer, real, at, n);
    bad = acr_find_nonfinite(t->dtype, m->buffer, n);
    if (bad >= 0)
        return acr_fail(m->err, ACCRUE_ENUMERIC,
                        "%s: tensor '%s': element %lld is too large for %s", m->opt->model,
                        acr_pretrained_origin(m->model, i)->name, (long long)(first + bad),
                        acr_dtype_name(t->dtype));

cleanup:
    return st;
}

static const void *read_piece(void *buffer, const acr_tensor *t, size_t offset, size_t n, void *ctx)
{
    importing *m = ctx;
    const size_t element = acr_dtype_bytes(t->dtype);

    m->failed =
        make_piece(m, (int)(t - m->tensors), (int64_t)(offset / element), (int64_t)(n / element));
    m->progress.done += (int64_t)n;
    m->progress.bytes += (int64_t)n;
    if (!m->failed)
        m->failed = tell(m);
    return m->failed ? NULL : buffer;
}

static accrue_status write_weights(importing *m)
{
    accrue_status st = ACCRUE_OK;
    acr_tensor_source source = {
        .read = read_piece, .ctx = m, .buffer = m->buffer, .buffer_bytes = BUFFER};
    accrue_error given_up;
    char *path = acr_sprintf("%s/model.safetensors", m->folder.temporary);
    json_t *metadata = json_pack("{s:s}", "format", "pt");

    if (!path || !metadata) {
        st = acr_enomem(m->err, 0, "a path");
        goto cleanup;
    }
    st = acr_safetensors_write(path, m->tensors, m->n, metadata, &source, &given_up);
    if (m->failed)
        st = m->failed;
    else if (st && m->err)
        *m->err = given_up;

cleanup:
    json_decref(metadata);
    acr_free(path);
    return st;
}

static accrue_status write_json(const importing *m, const char *file, const json_t *value)
{
    return value ? acr_new_folder_json(&m->folder, file, value, m->err) : ACCRUE_OK;
}

/* config.json says in which type the weights are, older transformers under another name. */
static accrue_status write_config(const importing *m)
{
    accrue_status st = ACCRUE_OK;
    json_t *config = json_copy((json_t *)(uintptr_t)acr_pretrained_config(m->model));

    if (!config || json_object_set_new(config, "dtype", json_string(m->report->dtype)) ||
        json_object_set_new(config, "torch_dtype", json_string(m->report->dtype)))
        st = acr_enomem(m->err, 0, "config.json");
    else
        st = write_json(m, "config.json", config);
    json_decref(config);
    return st;
}

/* The record comes last: it lists the sizes of the others. */
static accrue_status write_record(importing *m)
{
    json_t *sizes = json_object();
    int failed = json_object_set_new(m->record, "files", sizes);

    for (int i = 0; files[i] && !failed; i++) {
        char *path = acr_sprintf("%s/%s", m->folder.temporary, files[i]);
        int64_t bytes = path ? acr_file_bytes(path) : -1;
        failed = !path || (bytes >= 0 && json_object_set_new(sizes, files[i], json_integer(bytes)));
        m->report->bytes += bytes > 0 ? bytes : 0;
        acr_free(path);
    }
    return failed ? acr_enomem(m->err, 0, "import.json") : write_json(m, "import.json", m->record);
}

static accrue_status write_all(importing *m)
{
    accrue_status st = ACCRUE_OK;
    const int64_t beside = 16 << 20; /* a tokenizer, and what the file system keeps for itself */

    ACR_TRY(tell(m));
    ACR_TRY(
        acr_new_folder_make(&m->folder, m->opt->out, files, m->progress.total + beside, m->err));
    ACR_TRY(write_config(m));
    ACR_TRY(write_json(m, "generation_config.json", acr_pretrained_generation(m->model)));
    ACR_TRY(write_json(m, "tokenizer.json", m->tokenizer));
    ACR_TRY(write_json(m, "tokenizer_config.json", m->tokenizer_config));
    if (m->chat_template)
        ACR_TRY(acr_new_folder_text(&m->folder, "chat_template.jinja", m->chat_template, m->err));
    ACR_TRY(write_weights(m));
    ACR_TRY(write_record(m));
    ACR_TRY(acr_new_folder_name(&m->folder, false, m->err));

cleanup:
    return st;
}

/* ------------------------------------------------------------------------------------------ */

static accrue_status check_options(accrue_import_options *own, const accrue_import_options *opt,
                                   accrue_error *err)
{
    if (opt->struct_size < offsetof(accrue_import_options, dtype))
        return acr_fail(err, ACCRUE_EINVAL, "accrue_import: its options were not initialised");
    accrue_import_options_init(own, sizeof *own);
    memcpy(own, opt, opt->struct_size < sizeof *own ? opt->struct_size : sizeof *own);
    if (!own->model || !*own->model || !own->out || !*own->out)
        return acr_fail(err, ACCRUE_EINVAL, "accrue_import: a model and a folder expected");
    if ((int)own->dtype < 0 || (int)own->dtype >= ACR_COUNT(dtypes))
        return acr_fail(err, ACCRUE_EINVAL, "accrue_import: %d is no dtype", (int)own->dtype);
    if (acr_is_dir(own->model))
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: a folder, a GGUF file expected", own->model);
    return ACCRUE_OK;
}

accrue_status accrue_import(accrue_import_report *out, const accrue_import_options *opt,
                            accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_import_options own;
    importing m = {.opt = &own, .report = out, .cb = cb, .payload = payload, .err = err};

    memset(out, 0, sizeof *out);
    m.begun = acr_seconds();
    m.progress.unit = "bytes";
    ACR_TRY(check_options(&own, opt, err));
    ACR_TRY(acr_pretrained_open(&m.model, own.model, err));
    ACR_TRY(plan_tensors(&m));
    describe(&m);
    ACR_TRY(plan_tokenizer(&m));
    ACR_TRY(plan_record(&m));
    ACR_TRY(acr_exists(own.out) || acr_is_link(own.out) ? compare(&m) : write_all(&m));

cleanup:
    acr_new_folder_free(&m.folder);
    out->seconds = acr_seconds() - m.begun;
    acr_pretrained_close(m.model);
    json_decref(m.tokenizer);
    json_decref(m.tokenizer_config);
    json_decref(m.record);
    acr_free(m.tensors);
    acr_free(m.buffer);
    acr_free(m.rows);
    return st;
}
