/* draft.c - an EAGLE-3 draft that decodes: the recipe of model/eagle3.c, row after row.
 *
 * Keys and values of verified rows are kept for the whole sequence, those of drafted rows apart
 * from them, one by one, as the attention kernel takes the earlier TTT steps.  Sums are thus those
 * of training, in its order.  Of the last layer nothing but keys and values is needed where a row
 * is not the last one. */
#include "infer/infer.h"

#include <string.h>

/* Rows of a pass; a longer prompt takes several. */
enum { PASS = 256 };
enum { MAX_JSON = 16 << 20 };

typedef struct layer_cache {
    void *keys, *values;         /* [positions, n_kv_heads * head_dim] of verified rows */
    void *own_keys, *own_values; /* [ACR_MAX_KV, *] of drafted ones */
} layer_cache;

/* Of the rows of a pass, at most PASS. */
typedef struct buffers {
    void *aux;                   /* [n_aux * hidden] normed */
    void *hidden, *normed, *sum; /* [hidden] */
    void *embed;                 /* [hidden] normed */
    void *q, *attended;          /* [n_heads * head_dim] */
    void *raw, *half;            /* [the wider of queries and keys] before norm and rotation */
    void *gate, *up, *act;       /* [intermediate] */
    void *rstd, *lse;            /* [heads]: what the kernels leave for a backward */
    void *logits;                /* [draft vocabulary], of one row */
    int64_t *position, *begin, *end;
} buffers;

struct acr_draft {
    acr_model *m;
    const acr_backend *b;
    acr_gemm *gemm;
    int64_t positions, rows; /* verified rows so far */
    int drafted;             /* and drafted ones behind them */
    int slots[ACR_MAX_AUX];
    void *fed; /* [hidden] what a drafted row reads of the last one */
    layer_cache cache[ACR_MAX_LAYERS];
    buffers x;
    void *embed, *head; /* of the verifier, where the checkpoint has none */
};

/* The rows of a pass: verified ones, or a drafted one. */
typedef struct pass {
    int64_t n;
    bool last; /* the sequence's last row is among them */
    const int64_t *ids;
} pass;

static char *at_row(const acr_draft *d, const void *x, int64_t row, int64_t width)
{
    return (char *)(uintptr_t)x + (size_t)(row * width) * d->b->real_bytes;
}

static int64_t kv_width(const acr_draft *d)
{
    return (int64_t)d->m->config.n_kv_heads * d->m->config.head_dim;
}

/* Arithmetic ------------------------------------------------------------------------------- */

/* y = x W[:, column : column + k]^T. */
static void product(const acr_draft *d, int64_t rows, const void *x, int64_t k, const acr_param *w,
                    int64_t column, void *y)
{
    acr_gemm_args g = {.layout = ACR_GEMM_NT, .m = rows, .n = w->rows, .k = k, .a = x, .lda = k};

    g.bf16 = g.b_is_bf16 = d->m->compute == ACCRUE_BF16;
    g.b = (const char *)w->frozen + (size_t)column * acr_dtype_bytes(w->frozen_type);
    g.ldb = w->cols;
    g.c = y;
    g.ldc = w->rows;
    d->b->gemm(d->gemm, &g);
}

static void rmsnorm(const acr_draft *d, int64_t rows, const void *x, const acr_param *w, void *y)
{
    d->b->rmsnorm_forward(rows, w->rows, x, w->rows, w->master, d->m->config.rms_norm_eps, y,
                          w->rows, d->x.rstd);
}

/* One projection of the attention input, rows [first, first + n) of the pass. */
static void project(const acr_draft *d, int l, int64_t first, int64_t n, const acr_param *w,
                    const acr_param *bias, void *y)
{
    const int64_t h = d->m->config.hidden_size;

    product(d, n, at_row(d, d->x.normed, first, h), h, w, l == 0 ? h : 0, y);
    if (bias)
        d->b->bias_forward(n, w->rows, bias->master, y, w->rows);
    if (l == 0) {
        product(d, n, at_row(d, d->x.embed, first, h), h, w, 0, d->x.half);
        d->b->accumulate(n * w->rows, d->x.half, y);
    }
}

/* Queries or keys: normed per head where the variant does, and rotated. */
static void rotate(const acr_draft *d, int64_t first, int64_t n, int heads, const acr_param *norm,
                   void *y)
{
    const acr_model *m = d->m;

    if (norm)
        rmsnorm(d, n * heads, d->x.raw, norm, d->x.half);
    d->b->rope_forward(n, heads, m->config.head_dim, d->x.position + first, m->rope.cos,
                       m->rope.sin, norm ? d->x.half : d->x.raw, y);
}

/* Queries [first, first + n) over the verified rows that they see, and the drafted ones. */
static void attend(const acr_draft *d, int l, const pass *p, int64_t first, int64_t n)
{
    const acr_config *c = &d->m->config;
    const layer_cache *cache = &d->cache[l];
    const int64_t zero = 0;
    const void *k[1 + ACR_MAX_KV] = {cache->keys}, *v[1 + ACR_MAX_KV] = {cache->values};
    acr_attention a = {.n_queries = n,
                       .n_base = d->drafted ? d->rows : d->rows + p->n,
                       .n_heads = c->n_heads,
                       .n_kv_heads = c->n_kv_heads,
                       .head_dim = c->head_dim,
                       .begin = d->x.begin,
                       .end = d->x.end,
                       .n_extra = d->drafted};

    for (int64_t i = 0; i < n; i++) {
        d->x.end[i] = d->drafted ? d->rows : d->rows + first + i + 1;
        d->x.begin[i] =
            c->sliding[l] && d->x.end[i] > c->sliding_window ? d->x.end[i] - c->sliding_window : 0;
    }
    for (int j = 0; j < d->drafted; j++) {
        k[1 + j] = at_row(d, cache->own_keys, j, kv_width(d));
        v[1 + j] = at_row(d, cache->own_values, j, kv_width(d));
        a.extra_row[j] = &zero;
    }
    d->b->attention_forward(&a, d->x.q, k, v, d->x.attended, d->x.lse);
}

/* Reads the layer's input in x.hidden and leaves its output there: of all rows, or, in the last
 * layer, of the last row of the sequence if that is among them. */
static void decoder_layer(const acr_draft *d, int l, const pass *p)
{
    const acr_config *c = &d->m->config;
    const struct acr_layer *w = &d->m->layer[l];
    const layer_cache *cache = &d->cache[l];
    const buffers *x = &d->x;
    const int64_t h = c->hidden_size, kv = kv_width(d);
    const bool all = l + 1 < c->n_layers;
    const int64_t first = all ? 0 : p->n - 1, n = p->n - first;
    char *keys = d->drafted ? at_row(d, cache->own_keys, d->drafted - 1, kv)
                            : at_row(d, cache->keys, d->rows, kv);
    char *values = d->drafted ? at_row(d, cache->own_values, d->drafted - 1, kv)
                              : at_row(d, cache->values, d->rows, kv);
    const void *residual = NULL;

    rmsnorm(d, p->n, x->hidden, l == 0 ? w->hidden_norm : w->input_norm, x->normed);
    project(d, l, 0, p->n, w->k, w->k_bias, x->raw);
    rotate(d, 0, p->n, c->n_kv_heads, w->k_norm, keys);
    project(d, l, 0, p->n, w->v, w->v_bias, values);
    if (!all && !p->last)
        return;
    project(d, l, first, n, w->q, w->q_bias, x->raw);
    rotate(d, first, n, c->n_heads, w->q_norm, x->q);
    attend(d, l, p, first, n);
    product(d, n, x->attended, (int64_t)c->n_heads * c->head_dim, w->o, 0, x->sum);
    if (w->o_bias)
        d->b->bias_forward(n, h, w->o_bias->master, x->sum, h);
    residual = at_row(d, l == 0 && c->norm_before_residual ? x->normed : x->hidden, first, h);
    d->b->add(n * h, residual, x->sum, x->hidden);
    rmsnorm(d, n, x->hidden, w->post_norm, x->normed);
    product(d, n, x->normed, h, w->gate, 0, x->gate);
    product(d, n, x->normed, h, w->up, 0, x->up);
    d->b->swiglu_forward(n * c->intermediate_size, x->gate, x->up, x->act);
    product(d, n, x->act, c->intermediate_size, w->down, 0, x->sum);
    d->b->accumulate(n * h, x->sum, x->hidden);
}

/* x.hidden = fc over the verifier's states. */
static void fuse_states(const acr_draft *d, const void *states, int64_t n)
{
    const acr_config *c = &d->m->config;
    const int64_t h = c->hidden_size, width = c->n_aux * h;
    const void *in = states;

    if (c->fc_norm) {
        for (int i = 0; i < c->n_aux; i++)
            d->b->rmsnorm_forward(n, h, at_row(d, states, i, h), width,
                                  d->m->top.fc_norm[i]->master, c->rms_norm_eps,
                                  at_row(d, d->x.aux, i, h), width, d->x.rstd);
        in = d->x.aux;
    }
    if (c->norm_before_fc) {
        rmsnorm(d, n, in, d->m->top.input_norm, d->x.aux);
        in = d->x.aux;
    }
    product(d, n, in, width, d->m->top.fc, 0, d->x.hidden);
}

/* All layers over the rows in x.hidden, and after the last row its logits. */
static accrue_status run(acr_draft *d, const pass *p, accrue_error *err)
{
    const acr_model *m = d->m;
    const acr_config *c = &m->config;
    const acr_param *table = m->top.embed;
    const size_t bytes = (size_t)c->hidden_size * d->b->real_bytes;

    for (int64_t i = 0; i < p->n; i++) {
        if (p->ids[i] < 0 || p->ids[i] >= c->vocab_size)
            return acr_fail(err, ACCRUE_EMISMATCH, "draft: token id %lld, at most %lld expected",
                            (long long)p->ids[i], (long long)c->vocab_size - 1);
        d->x.position[i] = d->rows + d->drafted + i + (d->drafted ? 0 : 1);
    }
    d->b->embed_forward(p->n, c->hidden_size, p->ids, table->frozen_type, table->frozen, d->x.sum);
    rmsnorm(d, p->n, d->x.sum, m->layer[0].input_norm, d->x.embed);
    for (int l = 0; l < c->n_layers; l++)
        decoder_layer(d, l, p);
    if (p->last) {
        rmsnorm(d, 1, d->x.hidden, m->top.norm, d->x.normed);
        memcpy(d->fed, c->norm_output ? d->x.normed : d->x.hidden, bytes);
        product(d, 1, d->x.normed, c->hidden_size, m->top.head, 0, d->x.logits);
    }
    return acr_gemm_status(d->gemm, err);
}

accrue_status acr_draft_extend(acr_draft *d, const int64_t *ids, const void *states, int64_t n,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t width = d->m->config.n_aux * d->m->config.hidden_size;

    if (n < 1 || n > d->positions - d->rows)
        return acr_fail(err, ACCRUE_EINVAL, "draft: %lld rows more, 1 to %lld expected",
                        (long long)n, (long long)(d->positions - d->rows));
    d->drafted = 0;
    for (int64_t i = 0; i < n; i += PASS) {
        pass p = {.n = n - i < PASS ? n - i : PASS, .ids = ids + i};
        p.last = i + p.n == n;
        fuse_states(d, at_row(d, states, i, width), p.n);
        ACR_TRY(run(d, &p, err));
        d->rows += p.n;
    }

cleanup:
    return st;
}

accrue_status acr_draft_step(acr_draft *d, int64_t id, accrue_error *err)
{
    const pass p = {.n = 1, .last = true, .ids = &id};

    if (d->rows == 0 || d->drafted == ACR_MAX_KV - 1)
        return acr_fail(err, ACCRUE_ESTATE,
                        "draft: a drafted row behind %lld verified and %d drafted ones, at least 1 "
                        "and at most %d expected",
                        (long long)d->rows, d->drafted, ACR_MAX_KV - 2);
    d->drafted++;
    memcpy(d->x.hidden, d->fed, (size_t)d->m->config.hidden_size * d->b->real_bytes);
    return run(d, &p, err);
}

const void *acr_draft_logits(const acr_draft *d)
{
    return d->x.logits;
}

int64_t acr_draft_token(const acr_draft *d)
{
    const int64_t n = d->m->config.draft_vocab_size;
    int64_t best = 0;

    d->b->argmax(1, n, d->x.logits, n, &best);
    return d->m->vocab.d2t ? best + d->m->vocab.d2t[best] : best;
}

void acr_draft_restart(acr_draft *d)
{
    d->rows = 0;
    d->drafted = 0;
}

const acr_config *acr_draft_describe(const acr_draft *d)
{
    return &d->m->config;
}

acr_dtype acr_draft_real(const acr_draft *d)
{
    return d->m->real;
}

const int *acr_draft_slots(const acr_draft *d)
{
    return d->slots;
}

/* Opening ---------------------------------------------------------------------------------- */

/* Space for `rows` rows of `width` reals; a status that is not OK stays. */
static void *room(accrue_status *st, const acr_draft *d, int64_t rows, int64_t width,
                  accrue_error *err)
{
    const size_t row = (size_t)width * d->b->real_bytes;
    void *x = *st ? NULL : acr_calloc((size_t)rows, row);

    if (!*st && !x)
        *st = acr_enomem(err, (size_t)rows * row, "the draft's keys, values and activations");
    return x;
}

static accrue_status make_buffers(acr_draft *d, accrue_error *err)
{
    const acr_config *c = &d->m->config;
    const int64_t h = c->hidden_size, kv = kv_width(d), q = (int64_t)c->n_heads * c->head_dim;
    const int64_t n = d->positions < PASS ? d->positions : PASS;
    accrue_status st = ACCRUE_OK;
    buffers *x = &d->x;

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

/* The verifier's layers whose input the draft reads. */
static accrue_status read_slots(acr_draft *d, const char *dir, int n_layers, accrue_error *err)
{
    const acr_config *c = &d->m->config;
    const json_t *ids = json_object_get(c->json, "eagle_aux_hidden_state_layer_ids");
    const int defaults[] = {2, n_layers / 2, n_layers - 3};

    for (int i = 0; i < c->n_aux; i++) {
        const json_t *id = json_array_get(ids, (size_t)i);
        const json_int_t given = id ? json_integer_value(id) : defaults[i % ACR_COUNT(defaults)];
        if (id && !json_is_integer(id))
            return acr_fail(
                err, ACCRUE_EFORMAT,
                "%s/config.json: entry %d of \"eagle_aux_hidden_state_layer_ids\" is no "
                "integer",
                dir, i);
        if (given < 0 || given > n_layers)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: reads the states of layer %lld, the verifier has layers 0 to %d",
                            dir, (long long)given, n_layers);
        d->slots[i] = (int)given;
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
        ACR_TRY(borrow_table(&d->embed, d, m->top.embed, v, embed, NULL, verifier, err));
    if (!m->top.head->frozen)
        ACR_TRY(borrow_table(&d->head, d, m->top.head, v, head < 0 ? embed : head,
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
    d->b = acr_backend_for(d->m->real);
    d->positions = positions;
    loading = w;
    w = NULL; /* the model's from here on */
    ACR_TRY(acr_model_load(d->m, loading, dir, err));
    ACR_TRY(read_slots(d, dir, of_verifier->n_layers, err));
    ACR_TRY(borrow_tables(d, verifier, err));
    ACR_TRY(acr_gemm_create(&d->gemm, err));
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

void acr_draft_free(acr_draft *d)
{
    const buffers *x = d ? &d->x : NULL;

    if (!d)
        return;
    void *const blocks[] = {x->aux,      x->hidden, x->normed, x->sum,      x->embed, x->q,
                            x->attended, x->raw,    x->half,   x->gate,     x->up,    x->act,
                            x->rstd,     x->lse,    x->logits, x->position, x->begin, x->end,
                            d->fed,      d->embed,  d->head};
    for (int i = 0; i < ACR_COUNT(blocks); i++)
        acr_free(blocks[i]);
    for (int l = 0; l < ACR_MAX_LAYERS; l++) {
        acr_free(d->cache[l].keys);
        acr_free(d->cache[l].values);
        acr_free(d->cache[l].own_keys);
        acr_free(d->cache[l].own_values);
    }
    acr_gemm_free(d->gemm);
    acr_model_free(d->m);
    acr_free(d);
}
