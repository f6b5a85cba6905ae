/* conformance_data.c - the checks that need no draft: collation, vocabulary maps, schedules.  All
 * are exact: the worst figure is the number of values that differ. */
#include "conformance.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DOCS = 64 };

static int64_t int_at(const acr_tensor *t, int64_t i)
{
    int64_t x = 0;

    memcpy(&x, (const char *)t->data + 8 * i, 8);
    return x;
}

static accrue_status get(const acr_tensor **out, const acr_safetensors *f, const char *dir,
                         acr_dtype dtype, const char *one_case, const char *part, const char *key,
                         accrue_error *err)
{
    char name[160];

    snprintf(name, sizeof name, "%s.%s.%s", one_case, part, key);
    *out = acr_safetensors_find(f, name);
    if (!*out || (*out)->dtype != dtype)
        return acr_fail(err, ACCRUE_EFORMAT, "%s/tensors.safetensors: %s is %s, %s expected", dir,
                        name, *out ? acr_dtype_name((*out)->dtype) : "missing",
                        acr_dtype_name(dtype));
    return ACCRUE_OK;
}

/* One side of a collation: the raw document, or what the peer made of all. */
typedef struct part {
    const acr_tensor *ids, *mask, *hidden, *last;
    int64_t rows, width, hidden_size; /* width of the auxiliary states together */
} part;

static accrue_status get_part(part *out, const acr_safetensors *f, const char *dir,
                              const char *one_case, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(get(&out->ids, f, dir, ACR_DTYPE_I64, one_case, name, "input_ids", err));
    ACR_TRY(get(&out->mask, f, dir, ACR_DTYPE_I64, one_case, name, "loss_mask", err));
    ACR_TRY(get(&out->hidden, f, dir, ACR_DTYPE_F32, one_case, name, "hidden_states", err));
    ACR_TRY(
        get(&out->last, f, dir, ACR_DTYPE_F32, one_case, name, "verifier_last_hidden_states", err));
    out->rows = acr_tensor_elements(out->ids);
    out->hidden_size = out->rows ? acr_tensor_elements(out->last) / out->rows : 0;
    out->width = out->rows ? acr_tensor_elements(out->hidden) / out->rows : 0;
    if (out->hidden_size < 1 || out->width % out->hidden_size ||
        acr_tensor_elements(out->mask) != out->rows ||
        acr_tensor_elements(out->last) != out->rows * out->hidden_size ||
        acr_tensor_elements(out->hidden) != out->rows * out->width)
        st = acr_fail(
            err, ACCRUE_EFORMAT,
            "%s/tensors.safetensors: %s.%s: %lld tokens, %lld masks, %lld and %lld "
            "values of states do not belong together",
            dir, one_case, name, (long long)out->rows, (long long)acr_tensor_elements(out->mask),
            (long long)acr_tensor_elements(out->hidden), (long long)acr_tensor_elements(out->last));

cleanup:
    return st;
}

/* Hidden-state files hold the auxiliary states and the last layer of a token side by side. */
static accrue_status make_document(acr_document *out, const part *p, accrue_error *err)
{
    size_t n = (size_t)p->rows;
    size_t width = (size_t)p->width, last = (size_t)p->hidden_size;
    float *states = acr_calloc(n * (width + last), sizeof *states);
    int64_t *numbers = acr_calloc(2 * n, sizeof *numbers);

    *out = (acr_document){
        .tokens = p->rows, .dtype = ACR_DTYPE_F32, .states = states, .input_ids = numbers};
    if (!states || !numbers)
        return acr_enomem(err, n * (width + last) * sizeof *states, "a document");
    out->loss_mask = numbers + n;
    memcpy(numbers, p->ids->data, n * 8);
    memcpy(numbers + n, p->mask->data, n * 8);
    for (size_t t = 0; t < n; t++) {
        memcpy(states + t * (width + last), (const char *)p->hidden->data + t * width * 4,
               width * 4);
        memcpy(states + t * (width + last) + width, (const char *)p->last->data + t * last * 4,
               last * 4);
    }
    return ACCRUE_OK;
}

static int64_t differences(const acr_batch *b, const part *expected, const acr_tensor *positions,
                           const acr_tensor *documents)
{
    int64_t wrong = 0;
    int64_t doc = 0;

    for (int64_t t = 0; t < expected->rows; t++) {
        size_t row = (size_t)t;
        size_t width = (size_t)expected->width * 4, last = (size_t)expected->hidden_size * 4;
        if (t >= b->n_rows) {
            wrong += int_at(documents, t) != -1;
            continue;
        }
        while (t >= b->doc_begin[doc + 1])
            doc++;
        wrong += b->input_ids[t] != int_at(expected->ids, t);
        wrong += b->loss_mask[t] != int_at(expected->mask, t);
        wrong += b->position_ids[t] != int_at(positions, t);
        wrong += doc != int_at(documents, t);
        wrong += memcmp((const char *)b->hidden + row * width,
                        (const char *)expected->hidden->data + row * width, width) != 0;
        wrong += memcmp((const char *)b->target + row * last,
                        (const char *)expected->last->data + row * last, last) != 0;
    }
    return wrong;
}

static accrue_status collate(const acr_safetensors *f, const char *dir, const char *folder,
                             const char *name, int64_t n_docs, int64_t max_len, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_document docs[MAX_DOCS] = {{0}};
    const acr_tensor *positions = NULL, *documents = NULL;
    part doc, batch;
    acr_batch b = {0};
    acr_batch_shape shape = {
        .total_seq_len = max_len, .vocab_size = INT64_MAX, .real = ACR_DTYPE_F32};
    char label[160];

    ACR_TRY(get_part(&batch, f, dir, name, "batch", err));
    ACR_TRY(get(&positions, f, dir, ACR_DTYPE_I64, name, "batch", "position_ids", err));
    ACR_TRY(get(&documents, f, dir, ACR_DTYPE_I64, name, "batch", "document_ids", err));
    shape.hidden_size = batch.hidden_size;
    shape.n_aux = (int)(batch.width / batch.hidden_size);
    if (n_docs > MAX_DOCS || batch.rows != max_len || acr_tensor_elements(positions) != max_len ||
        acr_tensor_elements(documents) != max_len) {
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: %s: %lld documents in %lld rows, at most %d and %lld expected", dir,
                      name, (long long)n_docs, (long long)batch.rows, MAX_DOCS, (long long)max_len);
        goto cleanup;
    }
    for (int64_t i = 0; i < n_docs; i++) {
        char which[32];
        snprintf(which, sizeof which, "doc%lld", (long long)i);
        ACR_TRY(get_part(&doc, f, dir, name, which, err));
        if (doc.width != batch.width || doc.hidden_size != batch.hidden_size) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: %s.%s: states of %lld, %lld expected", dir,
                          name, which, (long long)doc.width, (long long)batch.width);
            goto cleanup;
        }
        ACR_TRY(make_document(&docs[i], &doc, err));
    }
    ACR_TRY(acr_batch_alloc(&b, &shape, n_docs, err));
    ACR_TRY(acr_batch_collate(&b, &shape, docs, n_docs, err));
    snprintf(label, sizeof label, "%s: rows that differ", name);
    check(folder, label, "", (double)differences(&b, &batch, positions, documents), 0);

cleanup:
    for (int i = 0; i < MAX_DOCS; i++) {
        acr_free((void *)(uintptr_t)docs[i].states);
        acr_free((void *)(uintptr_t)docs[i].input_ids);
    }
    acr_batch_free(&b);
    return st;
}

/* Cases without shift_batch are of other algorithms. */
accrue_status run_collation(const char *dir, const char *folder, json_t *cases, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_safetensors *f = NULL;
    char *path = acr_sprintf("%s/tensors.safetensors", dir);
    const char *name = NULL;
    json_t *one = NULL;

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_safetensors_open(&f, path, err));
    json_object_foreach(cases, name, one)
    {
        if (json_is_true(json_object_get(one, "shift_batch")))
            ACR_TRY(collate(f, dir, folder, name,
                            (int64_t)json_array_size(json_object_get(one, "lens")),
                            json_integer_value(json_object_get(one, "max_len")), err));
    }

cleanup:
    acr_safetensors_close(f);
    acr_free(path);
    return st;
}

static accrue_status vocab_case(const char *path, const char *folder, json_t *frequencies,
                                const json_t *one, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *d2t = json_object_get(one, "d2t"), *t2d = json_object_get(one, "t2d_true");
    int64_t vocab = json_integer_value(json_object_get(one, "target_vocab_size"));
    int64_t draft = json_integer_value(json_object_get(one, "draft_vocab_size"));
    int64_t *counts = NULL;
    int64_t wrong = 0, ones = 0;
    acr_vocab v = {0};
    const char *id = NULL;
    json_t *count = NULL;
    char label[96];

    if (vocab < 1 || vocab > 1 << 24 || draft < 1 || draft > vocab ||
        (int64_t)json_array_size(d2t) != draft || (int64_t)json_array_size(t2d) != draft)
        return acr_fail(
            err, ACCRUE_EFORMAT, "%s: maps of %zu and %zu tokens, %lld of %lld expected", path,
            json_array_size(d2t), json_array_size(t2d), (long long)draft, (long long)vocab);
    counts = acr_calloc((size_t)vocab, sizeof *counts);
    if (!counts)
        return acr_enomem(err, (size_t)vocab * sizeof *counts, path);
    json_object_foreach(frequencies, id, count)
    {
        long long token = -1;
        if (sscanf(id, "%lld", &token) != 1 || token < 0 || token >= vocab) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: token \"%s\", 0 to %lld expected", path, id,
                          (long long)vocab - 1);
            goto cleanup;
        }
        counts[token] = json_integer_value(count);
    }
    ACR_TRY(acr_vocab_build(&v, counts, vocab, draft, err));
    for (int64_t i = 0; i < draft; i++) {
        int64_t kept = json_integer_value(json_array_get(t2d, (size_t)i));
        wrong += v.d2t[i] != json_integer_value(json_array_get(d2t, (size_t)i));
        wrong += kept < 0 || kept >= vocab || !v.t2d[kept];
    }
    for (int64_t i = 0; i < vocab; i++)
        ones += v.t2d[i] != 0;
    snprintf(label, sizeof label, "%lld of %lld tokens: entries that differ", (long long)draft,
             (long long)vocab);
    check(folder, label, "", (double)(wrong + (ones != draft)), 0);

cleanup:
    acr_vocab_free(&v);
    acr_free(counts);
    return st;
}

accrue_status run_vocab_maps(const char *path, const char *folder, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *file = NULL;
    const json_t *cases = NULL;

    ACR_TRY(acr_json_load(&file, path, 64 << 20, err));
    cases = json_object_get(file, "cases");
    if (!json_is_array(cases) || !json_is_object(json_object_get(file, "token_freq"))) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: token_freq and cases expected", path);
        goto cleanup;
    }
    for (size_t i = 0; i < json_array_size(cases); i++)
        ACR_TRY(vocab_case(path, folder, json_object_get(file, "token_freq"),
                           json_array_get(cases, i), err));

cleanup:
    json_decref(file);
    return st;
}

accrue_status run_schedules(const char *path, const char *folder, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *file = NULL;

    ACR_TRY(acr_json_load(&file, path, 64 << 20, err));
    if (!json_is_array(file)) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: an array of schedules expected", path);
        goto cleanup;
    }
    for (size_t i = 0; i < json_array_size(file); i++) {
        const json_t *one = json_array_get(file, i);
        const json_t *lr = json_object_get(one, "lr_used_at_step");
        const char *type = json_string_value(json_object_get(one, "type"));
        double wrong = 0;
        char label[96];
        if (!type || (strcmp(type, "linear") && strcmp(type, "cosine")) || !json_array_size(lr)) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: schedule %zu is %s, linear or cosine expected",
                          path, i, type ? type : "without a type");
            goto cleanup;
        }
        for (size_t step = 0; step < json_array_size(lr); step++) {
            double factor = accrue_lr_factor(
                strcmp(type, "cosine") ? ACCRUE_SCHEDULE_LINEAR : ACCRUE_SCHEDULE_COSINE,
                (int64_t)step, json_integer_value(json_object_get(one, "warmup")),
                json_integer_value(json_object_get(one, "total")),
                json_number_value(json_object_get(one, "num_cycles")));
            double got = json_number_value(json_object_get(one, "base_lr")) * factor;
            double expected = json_number_value(json_array_get(lr, step));
            wrong += got < expected || got > expected;
        }
        snprintf(label, sizeof label, "schedule %zu, %s: rates that differ", i, type);
        check(folder, label, "", wrong, 0);
    }

cleanup:
    json_decref(file);
    return st;
}
