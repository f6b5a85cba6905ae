/* draft_open.c - a decoding draft from a checkpoint folder, and what it lacks from the verifier. */
#include "infer/draft_parts.h"

#include <string.h>

enum { MAX_JSON = 16 << 20 };

/* Space for `rows` rows of `width` reals; a status that is not OK stays. */
static void *room(accrue_status *st, const acr_draft *d, int64_t rows, int64_t width,
                  accrue_error *err)
{
    const size_t row = (size_t)width * d->be->real_bytes;
    void *x = *st ? NULL : acr_calloc((size_t)rows, row);

    if (!*st && !x)
        *st = acr_enomem(err, (size_t)rows * row, "the draft's keys, values and activations");
    return x;
}

static int64_t widest_input(const acr_config *c)
{
    const int64_t widths[] = {c->n_aux * c->hidden_size, (int64_t)c->n_heads * c->head_dim,
                              c->intermediate_size};
    int64_t most = 0;

    for (int i = 0; i < ACR_COUNT(widths); i++)
        most = widths[i] > most ? widths[i] : most;
    return most;
}

static accrue_status make_buffers(acr_draft *d, accrue_error *err)
{
    const acr_config *c = &d->m->config;
    const int64_t h = c->hidden_size, kv = acr_draft_kv_width(d),
                  q = (int64_t)c->n_heads * c->head_dim;
    const int64_t n = d->positions < ACR_DRAFT_PASS ? d->positions : ACR_DRAFT_PASS;
    accrue_status st = ACCRUE_OK;
    acr_draft_buffers *x = &d->x;

    x->rounded = room(&st, d, n, widest_input(c), err);
    x->aux = room(&st, d, n, c->n_aux * h, err);
    x->hidden = room(&st, d, n, h, err);
    x->normed = room(&st, d, n, h, err);
    x->sum = room(&st, d, n, h, err);
    x->embed = room(&st, d, n, h, err);
    x->q = room(&st, d, n, q, err);
    x->attended = room(&st, d, n, q, err);
    x->raw = room(&st, d, n, q, err); /* there are at least as many query heads as key heads */
    x->half = room(&st, d, n, q, err);
    x->gate = room(&st, d, n, c->intermediate_size, err);
    x->up = room(&st, d, n, c->intermediate_size, err);
    x->act = room(&st, d, n, c->intermediate_size, err);
    x->rstd = room(&st, d, n, c->n_heads, err);
    x->lse = room(&st, d, n, c->n_heads, err);
    x->logits = room(&st, d, 1, c->draft_vocab_size, err);
    x->position = st ? NULL : acr_calloc((size_t)n, sizeof *x->position);
    x->begin = st ? NULL : acr_calloc((size_t)n, sizeof *x->begin);
    x->end = st ? NULL : acr_calloc((size_t)n, sizeof *x->end);
    if (!st && (!x->position || !x->begin || !x->end))
        st = acr_enomem(err, (size_t)n * sizeof *x->end, "the draft's rows");
    d->fed = room(&st, d, 1, h, err);
    for (int l = 0; l < c->n_layers; l++) {
        d->cache[l].keys = room(&st, d, d->positions, kv, err);
        d->cache[l].values = room(&st, d, d->positions, kv, err);
        d->cache[l].own_keys = room(&st, d, ACR_MAX_KV, kv, err);
        d->cache[l].own_values = room(&st, d, ACR_MAX_KV, kv, err);
    }
    return st;
}

/* Columns [column, column + k) of a weight, packed. */
static accrue_status pack_columns(acr_packed *out, const acr_draft *d, const acr_param *p,
                                  int64_t column, int64_t k, accrue_error *err)
{
    const int64_t step = d->be->pack_rows;
    const size_t from = acr_dtype_bytes(p->frozen_type), row = (size_t)k * d->be->real_bytes;
    char *some = acr_calloc((size_t)step, row);

    out->n = p->rows;
    out->k = k;
    out->type = d->m->compute == ACCRUE_BF16 ? ACR_DTYPE_BF16 : d->m->real;
    out->data = acr_calloc(1, d->be->packed_bytes(out->type, p->rows, k));
    for (int64_t i = 0; some && out->data && i < p->rows; i += step) {
        const int64_t n = p->rows - i < step ? p->rows - i : step;
        for (int64_t r = 0; r < n; r++)
            acr_convert(d->m->real, some + (size_t)r * row, p->frozen_type,
                        (const char *)p->frozen + (size_t)((i + r) * p->cols + column) * from, k);
        d->be->pack(out, i, n, some);
    }
    acr_free(some);
    return some && out->data ? ACCRUE_OK : acr_enomem(err, (size_t)p->rows * row, p->name);
}

static accrue_status pack(acr_packed *out, acr_draft *d, acr_param *p, accrue_error *err)
{
    accrue_status st = pack_columns(out, d, p, 0, p->cols, err);

    acr_param_release(d->m, p);
    return st;
}

/* q, k or v: the first layer's weight is [embedding ; hidden]. */
static accrue_status pack_projection(acr_packed *of_hidden, acr_packed *of_embed, acr_draft *d,
                                     acr_param *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t h = d->m->config.hidden_size;

    ACR_TRY(pack_columns(of_hidden, d, p, p->cols - h, h, err));
    if (p->cols > h)
        ACR_TRY(pack_columns(of_embed, d, p, 0, h, err));
    acr_param_release(d->m, p);

cleanup:
    return st;
}

static accrue_status pack_weights(acr_draft *d, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(pack(&d->fc, d, d->m->top.fc, err));
    ACR_TRY(pack(&d->head, d, d->m->top.head, err));
    for (int l = 0; l < d->m->config.n_layers; l++) {
        const struct acr_layer *p = &d->m->layer[l];
        acr_draft_weights *w = &d->layer[l];
        ACR_TRY(pack_projection(&w->q, &w->embed_q, d, p->q, err));
        ACR_TRY(pack_projection(&w->k, &w->embed_k, d, p->k, err));
        ACR_TRY(pack_projection(&w->v, &w->embed_v, d, p->v, err));
        ACR_TRY(pack(&w->o, d, p->o, err));
        ACR_TRY(pack(&w->gate, d, p->gate, err));
        ACR_TRY(pack(&w->up, d, p->up, err));
        ACR_TRY(pack(&w->down, d, p->down, err));
    }

cleanup:
    return st;
}

/* The checkpoint's configuration against the verifier's. */
static accrue_status check_sizes(const acr_config *c, const char *dir, const acr_verifier_shape *v,
                                 accrue_error *err)
{
    if (c->hidden_size != v->hidden_size)
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: hidden size %lld, the verifier's is %lld", dir,
                        (long long)c->hidden_size, (long long)v->hidden_size);
    if (c->vocab_size != v->vocab_size)
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: vocabulary of %lld, the verifier's is %lld",
                        dir, (long long)c->vocab_size, (long long)v->vocab_size);
    return ACCRUE_OK;
}

accrue_status acr_draft_layers(int out[ACR_MAX_AUX], const acr_config *c, int n_layers,
                               const char *name, accrue_error *err)
{
    const char key[] = "eagle_aux_hidden_state_layer_ids";
    const json_t *ids = json_object_get(c->json, key);
    int defaults[ACR_DEFAULT_AUX];

    acr_default_layers(defaults, n_layers);
    for (int i = 0; i < c->n_aux; i++) {
        const json_t *id = json_array_get(ids, (size_t)i);
        const json_int_t given = id ? json_integer_value(id) : defaults[i % ACR_COUNT(defaults)];
        if (id && !json_is_integer(id))
            return acr_fail(err, ACCRUE_EFORMAT, "%s: entry %d of \"%s\" is no integer", name, i,
                            key);
        if (given < 0 || given > n_layers)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: reads the states of layer %lld, the verifier has layers 0 to %d",
                            name, (long long)given, n_layers);
        out[i] = (int)given;
    }
    return ACCRUE_OK;
}

static accrue_status read_maps(acr_vocab *out, const acr_config *c, const acr_weights *w,
                               const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (!acr_weights_find(w, "d2t") && !acr_weights_find(w, "t2d") &&
        c->draft_vocab_size == c->vocab_size) {
        out->vocab_size = out->draft_vocab_size = c->vocab_size;
        return ACCRUE_OK;
    }
    ACR_TRY(acr_vocab_carried(out, w, c->vocab_size, dir, err));
    if (out->draft_vocab_size != c->draft_vocab_size)
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "%s: \"draft_vocab_size\" is %lld, the vocabulary maps have %lld", dir,
                      (long long)c->draft_vocab_size, (long long)out->draft_vocab_size);

cleanup:
    return st;
}

static accrue_status read_config(acr_config *out, const char *dir, const acr_verifier_shape *v,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *json = NULL;
    char *path = acr_sprintf("%s/config.json", dir);

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    if (!acr_is_dir(dir)) {
        st = acr_fail(err, ACCRUE_EIO, "%s: no folder of a checkpoint", dir);
        goto cleanup;
    }
    ACR_TRY(acr_json_load(&json, path, MAX_JSON, err));
    ACR_TRY(acr_config_read(out, json, path, err));
    ACR_TRY(check_sizes(out, dir, v, err));

cleanup:
    json_decref(json);
    acr_free(path);
    return st;
}

/* A table that the checkpoint lacks, from the verifier; of the head the rows in the draft's
 * vocabulary. */
static accrue_status borrow_table(void **out, acr_draft *d, acr_param *p, const acr_pretrained *v,
                                  int tensor, const acr_vocab *vocab, const char *name,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_tensor *t = acr_pretrained_at(v, tensor);
    const acr_dtype real = d->m->real;
    const size_t row = (size_t)p->cols * acr_dtype_bytes(real);
    acr_tensor rows = {.name = t->name, .dtype = real, .n_dims = 2, .dims = {p->rows, p->cols}};

    if (t->n_dims != 2 || t->dims[0] != d->m->config.vocab_size || t->dims[1] != p->cols)
        return acr_fail(err, ACCRUE_EMISMATCH, "%s: %s is not [%lld, %lld]", name, t->name,
                        (long long)d->m->config.vocab_size, (long long)p->cols);
    *out = acr_calloc((size_t)p->rows, row);
    if (!*out)
        return acr_enomem(err, (size_t)p->rows * row, t->name);
    for (int64_t i = 0; vocab && i < p->rows; i++)
        ACR_TRY(acr_pretrained_read((char *)*out + (size_t)i * row, real, v, tensor,
                                    i + vocab->d2t[i], 1, err));
    if (!vocab)
        ACR_TRY(acr_pretrained_read(*out, real, v, tensor, 0, p->rows, err));
    rows.data = *out;
    rows.bytes = (size_t)p->rows * row;
    ACR_TRY(acr_param_set(d->m, p, &rows, name, err));

cleanup:
    return st;
}

static accrue_status borrow_tables(acr_draft *d, const char *verifier, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_model *m = d->m;
    acr_pretrained *v = NULL;
    int embed = -1, head = -1;

    if (m->top.embed->frozen && m->top.head->frozen)
        return ACCRUE_OK;
    ACR_TRY(acr_pretrained_open(&v, verifier, err));
    embed = acr_pretrained_find(v, "model.embed_tokens.weight");
    head = acr_pretrained_find(v, "lm_head.weight");
    if (embed < 0) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: tensor model.embed_tokens.weight is missing",
                      verifier);
        goto cleanup;
    }
    if (!m->top.embed->frozen)
        ACR_TRY(borrow_table(&d->embed_table, d, m->top.embed, v, embed, NULL, verifier, err));
    if (!m->top.head->frozen)
        ACR_TRY(borrow_table(&d->head_table, d, m->top.head, v, head < 0 ? embed : head,
                             m->vocab.d2t ? &m->vocab : NULL, verifier, err));

cleanup:
    acr_pretrained_close(v);
    return st;
}

accrue_status acr_draft_open(acr_draft **out, const char *dir, const char *verifier,
                             const acr_verifier_shape *of_verifier, accrue_dtype compute,
                             int64_t positions, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_draft *d = NULL;
    acr_weights *w = NULL, *loading = NULL;
    acr_config config = {0};
    acr_vocab vocab = {0};

    *out = NULL;
    if (positions < 1 || positions > INT32_MAX)
        return acr_fail(err, ACCRUE_EINVAL, "%s: sequences of %lld tokens, 1 to %d expected", dir,
                        (long long)positions, INT32_MAX);
    d = acr_calloc(1, sizeof *d);
    if (!d)
        return acr_enomem(err, sizeof *d, "the draft");
    ACR_TRY(read_config(&config, dir, of_verifier, err));
    ACR_TRY(acr_weights_open(&w, dir, err));
    ACR_TRY(read_maps(&vocab, &config, w, dir, err));
    ACR_TRY(acr_model_create_frozen(&d->m, &config, &vocab, compute, positions + ACR_MAX_KV, err));
    d->be = acr_backend_for(d->m->real);
    d->positions = positions;
    loading = w;
    w = NULL; /* the model's from here on */
    ACR_TRY(acr_model_load(d->m, loading, dir, err));
    ACR_TRY(acr_draft_layers(d->slots, &d->m->config, of_verifier->n_layers, dir, err));
    ACR_TRY(borrow_tables(d, verifier, err));
    ACR_TRY(pack_weights(d, err));
    ACR_TRY(make_buffers(d, err));
    *out = d;
    d = NULL;

cleanup:
    acr_weights_close(w);
    acr_config_free(&config);
    acr_vocab_free(&vocab);
    acr_draft_free(d);
    return st;
}

static void free_weights(acr_draft_weights *w)
{
    acr_packed *const all[] = {&w->q,       &w->k, &w->v,    &w->embed_q, &w->embed_k,
                               &w->embed_v, &w->o, &w->gate, &w->up,      &w->down};

    for (int i = 0; i < ACR_COUNT(all); i++)
        acr_free(all[i]->data);
}

void acr_draft_free(acr_draft *d)
{
    const acr_draft_buffers *x = d ? &d->x : NULL;

    if (!d)
        return;
    void *const blocks[] = {x->aux,         x->rounded,   x->hidden,   x->normed, x->sum,
                            x->embed,       x->q,         x->attended, x->raw,    x->half,
                            x->gate,        x->up,        x->act,      x->rstd,   x->lse,
                            x->logits,      x->position,  x->begin,    x->end,    d->fed,
                            d->embed_table, d->head_table};
    for (int i = 0; i < ACR_COUNT(blocks); i++)
        acr_free(blocks[i]);
    for (int l = 0; l < ACR_MAX_LAYERS; l++) {
        acr_free(d->cache[l].keys);
        acr_free(d->cache[l].values);
        acr_free(d->cache[l].own_keys);
        acr_free(d->cache[l].own_values);
        free_weights(&d->layer[l]);
    }
    acr_free(d->fc.data);
    acr_free(d->head.data);
    acr_model_free(d->m);
    acr_free(d);
}
