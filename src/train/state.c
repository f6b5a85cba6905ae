/* state.c - what a checkpoint holds beside the weights for use: training_state.json and the arrays
 * of state.tensors, and the comparison of both with the run that wants to go on from them.
 *
 * Arrays are by parameter name in the run's full precision, numbers are exact integers.  There is
 * no generator to save: the order of every epoch is a function of seed, epoch and row. */
#include "train/train.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STATE = 1 << 20, TEXT = 32 };

/* Read in full where the data is small; every k-th row where it is not. */
enum { FINGERPRINT_TOKENS = 16 << 20 };

/* training_state.json --------------------------------------------------------------------- */

typedef enum field_kind { COUNT, HASH, CHOICE } field_kind;

/* One key of training_state.json. */
typedef struct field {
    const char *name;
    field_kind kind;
    size_t at;
    const acr_choice *choices;
    const char *flag; /* what the run must agree in, and how it is given; NULL: need not */
    bool optional;
    int64_t least;
} field;

#define AT(member) offsetof(acr_training_state, member)

static const field fields[] = {
    {.name = "epoch", .at = AT(epoch)},
    {.name = "local_step", .at = AT(local_step)},
    {.name = "samples", .at = AT(samples), .optional = true, .least = -1},
    {.name = "global_step", .at = AT(global_step)},
    {.name = "schedule_step", .at = AT(schedule_step)},
    {.name = "micro_batches", .at = AT(micro_batches)},
    {.name = "empty_windows", .at = AT(empty_windows)},
    {.name = "skipped_nonfinite", .at = AT(skipped_nonfinite)},
    {.name = "generation", .at = AT(generation), .least = 1},
    {.name = "best_epoch", .at = AT(best_epoch), .least = -1},
    {.name = "origin", .kind = HASH, .at = AT(origin), .optional = true},
    {.name = "origin_epoch", .at = AT(origin_epoch), .optional = true, .least = -1},
    {.name = "superseded_epoch", .at = AT(superseded_epoch), .least = -1},
    {.name = "gradient_accumulation_steps",
     .at = AT(gradient_accumulation_steps),
     .flag = "--gradient-accumulation-steps",
     .optional = true,
     .least = 1},
    {.name = "ranks", .at = AT(ranks), .optional = true, .least = 1},
    {.name = "total_seq_len", .at = AT(total_seq_len), .flag = "--total-seq-len"},
    {.name = "seed", .kind = HASH, .at = AT(seed), .flag = "--seed"},
    {.name = "loss_normalization",
     .kind = CHOICE,
     .at = AT(loss_normalization),
     .choices = acr_normalizations,
     .flag = "--loss-normalization"},
    {.name = "accumulation_tail",
     .kind = CHOICE,
     .at = AT(accumulation_tail),
     .choices = acr_tails,
     .flag = "--accumulation-tail"},
    {.name = "hidden_states_dtype",
     .kind = CHOICE,
     .at = AT(compute),
     .choices = acr_computes,
     .flag = "--hidden-states-dtype"},
    {.name = "optimizer",
     .kind = CHOICE,
     .at = AT(optimizer),
     .choices = acr_optimizers,
     .flag = "--optimizer"},
    {.name = "best_metric",
     .kind = CHOICE,
     .at = AT(best_metric),
     .choices = acr_best_metrics,
     .flag = "--best-metric",
     .optional = true,
     .least = ACCRUE_BEST_LOSS},
    {.name = "train_rows", .at = AT(train_rows), .flag = "number of training rows"},
    {.name = "data_fingerprint",
     .kind = HASH,
     .at = AT(data_fingerprint),
     .flag = "data set's fingerprint"},
    {.name = "order_fingerprint", .kind = HASH, .at = AT(order_fingerprint)},
};

static int64_t count_of(const acr_training_state *s, const field *f)
{
    int64_t value = 0;

    memcpy(&value, (const char *)s + f->at, sizeof value);
    return value;
}

/* The value as the file has it.  A seed may be any 64 bits, which JSON's integers here are not. */
static json_t *field_json(const acr_training_state *s, const field *f)
{
    int64_t value = count_of(s, f);
    char text[TEXT];

    if (f->kind == CHOICE)
        return json_string(acr_choice_name(f->choices, value));
    if (f->kind == COUNT || (!strcmp(f->name, "seed") && value >= 0))
        return json_integer(value);
    snprintf(text, sizeof text, "%016" PRIx64, (uint64_t)value);
    return json_string(text);
}

json_t *acr_training_state_json(const acr_training_state *s)
{
    json_t *o = json_object();

    for (int i = 0; i < ACR_COUNT(fields); i++)
        json_object_set_new(o, fields[i].name, field_json(s, &fields[i]));
    json_object_set_new(o, "concluded", json_boolean(s->concluded));
    json_object_set_new(o, "is_best", json_boolean(s->is_best));
    json_object_set_new(o, "interim", json_boolean(s->interim));
    json_object_set_new(o, "best_value",
                        s->best_epoch >= 0 ? json_real(s->best_value) : json_null());
    if (s->configuration)
        json_object_set(o, "configuration", (json_t *)(uintptr_t)s->configuration);
    return o;
}

static accrue_status field_read(acr_training_state *out, const field *f, const json_t *v,
                                const char *path, accrue_error *err)
{
    int64_t value = 0;
    bool fine = false;

    if (!v && f->optional) {
        value = f->least;
        fine = true;
    } else if (json_is_integer(v)) {
        value = json_integer_value(v);
        fine = f->kind != CHOICE && value >= f->least;
    } else if (json_is_string(v) && f->kind == CHOICE) {
        for (const acr_choice *c = f->choices; c->name && !fine; c++)
            if (!strcmp(c->name, json_string_value(v))) {
                value = c->value;
                fine = true;
            }
    } else if (json_is_string(v) && f->kind == HASH) {
        char *end = NULL;
        value = (int64_t)strtoull(json_string_value(v), &end, 16);
        fine = json_string_length(v) == 16 && !*end;
    }
    if (!fine)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: \"%s\" is missing or has no valid value", path,
                        f->name);
    memcpy((char *)out + f->at, &value, sizeof value);
    return ACCRUE_OK;
}

accrue_status acr_training_state_read(acr_training_state *out, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *o = NULL;
    const json_t *best = NULL;
    char *path = acr_sprintf("%s/training_state.json", dir);

    memset(out, 0, sizeof *out);
    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_json_load(&o, path, MAX_STATE, err));
    for (int i = 0; i < ACR_COUNT(fields); i++)
        ACR_TRY(field_read(out, &fields[i], json_object_get(o, fields[i].name), path, err));
    best = json_object_get(o, "best_value");
    if (!best)
        best = json_object_get(o, "best_loss"); /* its name when the loss was the only metric */
    if ((!json_is_number(best) && !json_is_null(best)) ||
        !json_is_boolean(json_object_get(o, "concluded")) ||
        !json_is_boolean(json_object_get(o, "is_best"))) {
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: \"best_value\", \"concluded\" or \"is_best\" has no valid value", path);
        goto cleanup;
    }
    if (json_is_null(best))
        out->best_epoch = -1;
    out->best_value = json_number_value(best);
    out->concluded = json_is_true(json_object_get(o, "concluded"));
    out->is_best = json_is_true(json_object_get(o, "is_best"));
    out->interim = json_is_true(json_object_get(o, "interim"));

cleanup:
    json_decref(o);
    acr_free(path);
    return st;
}

/* On another number of ranks the window stays what it was. */
static accrue_status agrees_in_window(const acr_training_state *saved,
                                      const acr_training_state *run, const char *dir,
                                      accrue_error *err)
{
    if (saved->ranks == run->ranks || saved->gradient_accumulation_steps * saved->ranks ==
                                          run->gradient_accumulation_steps * run->ranks)
        return ACCRUE_OK;
    return acr_fail(err, ACCRUE_EMISMATCH,
                    "Cannot resume: %s: a window is %lld micro-batches "
                    "(\"gradient_accumulation_steps\" %lld on %lld ranks), this run's is %lld "
                    "(--gradient-accumulation-steps %lld on %lld)",
                    dir, (long long)(saved->gradient_accumulation_steps * saved->ranks),
                    (long long)saved->gradient_accumulation_steps, (long long)saved->ranks,
                    (long long)(run->gradient_accumulation_steps * run->ranks),
                    (long long)run->gradient_accumulation_steps, (long long)run->ranks);
}

accrue_status acr_training_state_agrees(const acr_training_state *saved,
                                        const acr_training_state *run, const char *dir,
                                        accrue_error *err)
{
    accrue_status st = agrees_in_window(saved, run, dir, err);

    for (int i = 0; i < ACR_COUNT(fields) && !st; i++) {
        const field *f = &fields[i];
        json_t *theirs = NULL, *ours = NULL;
        char *a = NULL, *b = NULL;
        if (!f->flag || count_of(saved, f) == count_of(run, f) ||
            (f->at == AT(gradient_accumulation_steps) && saved->ranks != run->ranks))
            continue;
        theirs = field_json(saved, f);
        ours = field_json(run, f);
        a = json_dumps(theirs, JSON_ENCODE_ANY);
        b = json_dumps(ours, JSON_ENCODE_ANY);
        st = acr_fail(err, ACCRUE_EMISMATCH, "Cannot resume: %s: \"%s\" is %s, this run's %s is %s",
                      dir, f->name, a ? a : "?", f->flag, b ? b : "?");
        free(a);
        free(b);
        json_decref(theirs);
        json_decref(ours);
    }
    return st;
}

/* Fingerprints ---------------------------------------------------------------------------- */

uint64_t acr_epochs_fingerprint(const acr_epochs *e, const acr_dataset *d)
{
    int64_t total = 0, stride = 0;
    uint64_t hash = acr_hash_bytes(e->lengths, (size_t)e->n_rows * sizeof *e->lengths, 0);
    int64_t mask_tokens = 0;
    acr_row r;

    for (int64_t i = 0; i < e->n_rows; i++)
        total += e->lengths[i];
    stride = total / FINGERPRINT_TOKENS + 1;
    for (int64_t i = 0; i < e->n_rows; i += stride) {
        if (!e->lengths[i])
            continue;
        acr_dataset_raw_row(&r, &mask_tokens, d, i); /* bad rows too: they may be found later */
        hash = acr_hash_bytes(r.input_ids, (size_t)r.tokens * sizeof *r.input_ids, hash);
        hash = acr_hash_bytes(r.loss_mask, (size_t)mask_tokens * sizeof *r.loss_mask, hash);
    }
    return hash;
}

uint64_t acr_epoch_hash(const acr_epoch *e)
{
    uint64_t hash = acr_hash_bytes(e->begin, ((size_t)e->n + 1) * sizeof *e->begin, 0);

    return acr_hash_bytes(e->rows, (size_t)e->begin[e->n] * sizeof *e->rows, hash);
}

/* state.tensors ----------------------------------------------------------------------- */

void acr_state_arrays_free(acr_state_arrays *all)
{
    for (int i = 0; i < all->n; i++)
        acr_free((void *)(uintptr_t)all->a[i].t.name);
    acr_free(all->a);
    memset(all, 0, sizeof *all);
}

static bool add_array(acr_state_arrays *all, const acr_model *m, const acr_param *p,
                      const char *what, void *data, int64_t begin, int64_t n)
{
    acr_state_array a = {.t = {.name = acr_sprintf("%s.%s", p->name, what),
                               .dtype = m->real,
                               .n_dims = p->n_dims,
                               .dims = {p->rows, p->cols},
                               .bytes = (size_t)(p->rows * p->cols) * acr_dtype_bytes(m->real)},
                         .param = p,
                         .data = data,
                         .begin = begin,
                         .n = n};

    if (a.t.name)
        all->a[all->n++] = a;
    return a.t.name;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const acr_state_array *)a)->t.name, ((const acr_state_array *)b)->t.name);
}

accrue_status acr_state_collect(acr_state_arrays *out, acr_model *m, const accrue_window *w,
                                accrue_error *err)
{
    static const char *const moments[] = {"exp_avg", "exp_avg_sq", "momentum"};
    const int n = acr_window_n_states(w), capacity = m->n_params + n;
    bool fine = true;

    memset(out, 0, sizeof *out);
    out->a = acr_calloc((size_t)capacity, sizeof *out->a);
    fine = out->a;
    for (int i = 0; i < m->n_params && fine; i++) {
        acr_share own;
        if (!m->params[i].trainable)
            continue;
        own = acr_model_share(m, &m->params[i]);
        fine = add_array(out, m, &m->params[i], "master", own.master, own.begin, own.n);
    }
    for (int i = 0; i < n && fine; i++) {
        acr_optimizer_state s = acr_window_state(w, i);
        fine =
            add_array(out, m, acr_model_find(m, s.name), moments[s.moment], s.data, s.begin, s.n);
    }
    if (!fine) {
        acr_state_arrays_free(out);
        return acr_enomem(err, (size_t)capacity * sizeof *out->a, "a checkpoint's state");
    }
    qsort(out->a, (size_t)out->n, sizeof *out->a, by_name);
    return ACCRUE_OK;
}

static accrue_status check_array(const acr_tensor *saved, const acr_tensor *ours, const char *path,
                                 accrue_error *err)
{
    if (!saved)
        return acr_fail(err, ACCRUE_EMISMATCH, "Cannot resume: %s: no tensor %s", path, ours->name);
    if (saved->dtype == ours->dtype && saved->n_dims == ours->n_dims &&
        saved->dims[0] == ours->dims[0] && (ours->n_dims < 2 || saved->dims[1] == ours->dims[1]))
        return ACCRUE_OK;
    return acr_fail(err, ACCRUE_EMISMATCH,
                    "Cannot resume: %s: %s is %s [%lld, %lld], this run's is %s [%lld, %lld]", path,
                    ours->name, acr_dtype_name(saved->dtype), (long long)saved->dims[0],
                    (long long)(saved->n_dims > 1 ? saved->dims[1] : 1),
                    acr_dtype_name(ours->dtype), (long long)ours->dims[0],
                    (long long)(ours->n_dims > 1 ? ours->dims[1] : 1));
}

static void take_share(const acr_state_array *a, const acr_tensor *saved)
{
    const size_t width = acr_dtype_bytes(a->t.dtype);

    if (a->n)
        memcpy(a->data, (const char *)saved->data + (size_t)a->begin * width, (size_t)a->n * width);
}

accrue_status acr_state_read(const char *dir, acr_model *m, accrue_window *w, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/state.tensors", dir);
    acr_safetensors *f = NULL;
    acr_state_arrays all = {0};

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_safetensors_open(&f, path, err));
    ACR_TRY(acr_state_collect(&all, m, w, err));
    if (acr_safetensors_count(f) != all.n) {
        st = acr_fail(err, ACCRUE_EMISMATCH, "Cannot resume: %s: %d tensors, this run has %d", path,
                      acr_safetensors_count(f), all.n);
        goto cleanup;
    }
    for (int i = 0; i < all.n; i++)
        ACR_TRY(check_array(acr_safetensors_find(f, all.a[i].t.name), &all.a[i].t, path, err));
    for (int i = 0; i < all.n; i++)
        take_share(&all.a[i], acr_safetensors_find(f, all.a[i].t.name));

cleanup:
    acr_state_arrays_free(&all);
    acr_safetensors_close(f);
    acr_free(path);
    return st;
}

/* The model's shape ----------------------------------------------------------------------- */

/* Where a configuration may differ: who wrote it, and what only its use reads. */
static bool is_shape(const char *key)
{
    static const char *const other[] = {"speculators_config", "speculators_version",
                                        "transformers_version", "auto_map"};

    for (int i = 0; i < ACR_COUNT(other); i++)
        if (!strcmp(key, other[i]))
            return false;
    return true;
}

static char *value_text(const json_t *v)
{
    return v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : strdup("absent");
}

/* The first key of `a` in which `b` differs; `key` receives its name, nested ones as well. */
static bool find_difference(char key[128], const json_t *a, const json_t *b, const json_t **left,
                            const json_t **right)
{
    const char *name = NULL;
    const json_t *v = NULL;

    json_object_foreach((json_t *)(uintptr_t)a, name, v)
    {
        const json_t *other = json_object_get(b, name);
        if (!is_shape(name) || json_equal(v, other))
            continue;
        if (json_is_object(v) && json_is_object(other) &&
            find_difference(key, v, other, left, right))
            return true;
        snprintf(key, 128, "%s", name);
        *left = v;
        *right = other;
        return true;
    }
    return false;
}

accrue_status acr_state_same_model(const char *dir, const acr_model *m, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *saved = NULL;
    const json_t *theirs = NULL, *ours = NULL;
    char *path = acr_sprintf("%s/config.json", dir), *a = NULL, *b = NULL;
    char key[128];

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_json_load(&saved, path, MAX_STATE, err));
    if (find_difference(key, saved, m->config.json, &theirs, &ours) ||
        find_difference(key, m->config.json, saved, &ours, &theirs)) {
        a = value_text(theirs);
        b = value_text(ours);
        st = acr_fail(err, ACCRUE_EMISMATCH, "Cannot resume: %s: \"%s\" is %s, this run's is %s",
                      path, key, a ? a : "?", b ? b : "?");
    }

cleanup:
    free(a);
    free(b);
    json_decref(saved);
    acr_free(path);
    return st;
}

/* The maps decide what every draft id means. */
accrue_status acr_state_same_vocab(const char *dir, const acr_model *m, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_vocab *v = &m->vocab;
    const acr_tensor *d2t = NULL;
    acr_safetensors *f = NULL;
    char *path = acr_sprintf("%s/model.safetensors", dir);

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_safetensors_open(&f, path, err));
    d2t = acr_safetensors_find(f, "d2t");
    if (!d2t != !v->d2t ||
        (d2t && (d2t->dtype != ACR_DTYPE_I64 || d2t->bytes != 8 * (size_t)v->draft_vocab_size))) {
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "Cannot resume: %s: d2t has %lld entries, this run's vocabulary map %lld",
                      path, d2t ? (long long)d2t->dims[0] : 0,
                      v->d2t ? (long long)v->draft_vocab_size : 0);
        goto cleanup;
    }
    for (int64_t i = 0; d2t && i < v->draft_vocab_size; i++) {
        int64_t saved = 0;
        memcpy(&saved, (const char *)d2t->data + 8 * i, sizeof saved);
        if (saved != v->d2t[i]) {
            st = acr_fail(err, ACCRUE_EMISMATCH,
                          "Cannot resume: %s: d2t[%lld] is %lld, this run's is %lld", path,
                          (long long)i, (long long)saved, (long long)v->d2t[i]);
            break;
        }
    }

cleanup:
    acr_safetensors_close(f);
    acr_free(path);
    return st;
}
