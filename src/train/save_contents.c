/* save_contents.c - what goes into a checkpoint: its texts, and where its arrays are. */
#include "train/save_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add_origin(acr_save *s, const void *live, acr_dtype dtype, int64_t n, bool changes)
{
    s->origins[s->n_origins] = (acr_origin){.live = live,
                                            .n = n,
                                            .bytes = (size_t)n * acr_dtype_bytes(dtype),
                                            .dtype = dtype,
                                            .changes = changes};
    return s->n_origins++;
}

/* The share of it that this rank has; all of it where the model is not sharded. */
static int add_share(acr_save *s, const acr_param *p, void *data, acr_dtype dtype, int64_t begin,
                     int64_t n)
{
    const int i = add_origin(s, data, dtype, p->rows * p->cols, true);

    s->origins[i].begin = begin;
    s->origins[i].n = n;
    s->origins[i].shared = s->comm ? p : NULL;
    return i;
}

static int add_master(acr_save *s, const acr_model *m, const acr_param *p)
{
    const acr_share own = acr_model_share(m, p);

    return add_share(s, p, own.master, m->real, own.begin, own.n);
}

/* Takes `name` over; NULL is a failure. */
static bool add_tensor(acr_save *s, acr_tensor_file *f, char *name, const acr_tensor *like,
                       acr_dtype dtype, int from)
{
    if (!name)
        return false;
    f->t[f->n] = *like;
    f->t[f->n].name = name;
    f->t[f->n].dtype = dtype;
    f->t[f->n].bytes = (size_t)acr_tensor_elements(like) * acr_dtype_bytes(dtype);
    f->from[f->n++] = from;
    if (from >= 0)
        s->origins[from].left++;
    return true;
}

/* model.safetensors: all but the verifier's own head and norm, floats as bf16, and the maps. */
static bool add_weights(acr_save *s, const acr_model *m)
{
    const acr_vocab *v = &m->vocab;
    bool fine = true;

    for (int i = 0; i < m->n_params && fine; i++) {
        const acr_param *p = &m->params[i];
        acr_tensor like = {.n_dims = p->n_dims, .dims = {p->rows, p->cols}};
        if (p == m->top.verifier_norm || p == m->top.verifier_head)
            continue;
        fine = add_tensor(s, &s->weights, acr_strdup(p->name), &like, ACR_DTYPE_BF16,
                          p->trainable ? add_master(s, m, p)
                                       : add_origin(s, p->master ? p->master : p->frozen,
                                                    p->master ? m->real : p->frozen_type,
                                                    p->rows * p->cols, false));
    }
    if (fine && v->d2t) {
        acr_tensor d2t = {.n_dims = 1, .dims = {v->draft_vocab_size}, .data = v->d2t};
        acr_tensor t2d = {.n_dims = 1, .dims = {v->vocab_size}, .data = v->t2d};
        fine = add_tensor(s, &s->weights, acr_strdup("d2t"), &d2t, ACR_DTYPE_I64, -1) &&
               add_tensor(s, &s->weights, acr_strdup("t2d"), &t2d, ACR_DTYPE_BOOL, -1);
    }
    return fine;
}

/* Where "NAME.master" is an origin already, of the weight NAME; -1: it is no master. */
static int origin_of_master(const acr_save *s, const acr_tensor *t)
{
    for (int i = 0; i < s->weights.n; i++) {
        const size_t n = strlen(s->weights.t[i].name);
        if (!strncmp(t->name, s->weights.t[i].name, n) && !strcmp(t->name + n, ".master"))
            return s->weights.from[i];
    }
    return -1;
}

/* state.tensors: masters, which are origins already, and moments, as they are. */
static bool add_states(acr_save *s, const acr_state_arrays *all)
{
    bool fine = true;

    for (int i = 0; i < all->n && fine; i++) {
        const acr_state_array *a = &all->a[i];
        int from = origin_of_master(s, &a->t);
        if (from < 0)
            from = add_share(s, a->param, a->data, a->t.dtype, a->begin, a->n);
        fine = add_tensor(s, &s->states, acr_strdup(a->t.name), &a->t, a->t.dtype, from);
    }
    return fine;
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const acr_tensor *t = tensors;

    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

/* By name, tensors and their origins alike. */
static bool sort(acr_tensor_file *f)
{
    int *order = acr_calloc((size_t)f->n + 1, sizeof *order);
    int *from = acr_calloc((size_t)f->n + 1, sizeof *from);
    acr_tensor *t = acr_calloc((size_t)f->n + 1, sizeof *t);

    if (!order || !from || !t) {
        acr_free(order);
        acr_free(from);
        acr_free(t);
        return false;
    }
    for (int i = 0; i < f->n; i++)
        order[i] = i;
    qsort_r(order, (size_t)f->n, sizeof *order, by_name, f->t);
    for (int i = 0; i < f->n; i++) {
        t[i] = f->t[order[i]];
        from[i] = f->from[order[i]];
    }
    acr_free(order);
    acr_free(f->from);
    acr_free(f->t);
    f->from = from;
    f->t = t;
    return true;
}

static bool reserve(acr_tensor_file *f, int n)
{
    f->t = acr_calloc((size_t)n, sizeof *f->t);
    f->from = acr_calloc((size_t)n, sizeof *f->from);
    return f->t && f->from;
}

static accrue_status take_arrays(acr_save *s, acr_model *m, const accrue_window *w,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_state_arrays a = {0};
    int n = 0;

    if (s->whole)
        ACR_TRY(acr_state_collect(&a, m, w, err));
    n = m->n_params + a.n + MAPS;
    s->origins = acr_calloc((size_t)n, sizeof *s->origins);
    s->buffer = acr_malloc(BUFFERS * PIECE);
    if (!s->origins || !s->buffer || !reserve(&s->weights, n) || !reserve(&s->states, n) ||
        !add_weights(s, m) || !add_states(s, &a) || !sort(&s->weights))
        st = acr_enomem(err, (size_t)n * sizeof *s->origins + BUFFERS * PIECE, "a checkpoint");
    for (int i = 0; i < s->weights.n && !st; i++)
        s->bytes += (int64_t)s->weights.t[i].bytes;
    for (int i = 0; i < s->states.n && !st; i++)
        s->bytes += (int64_t)s->states.t[i].bytes;

cleanup:
    acr_state_arrays_free(&a);
    return st;
}

static void set_ratio(json_t *o, double sum, double total, const char *format, int k)
{
    char key[64];

    snprintf(key, sizeof key, format, k);
    json_object_set_new(o, key, json_real(total != 0 ? sum / total : 0.0));
}

static json_t *val_metrics(const accrue_metrics *m)
{
    json_t *o = json_object();
    char format[64];

    for (int k = 0; k < m->n_steps; k++) {
        set_ratio(o, m->step_loss_sum[k], m->step_loss_total[k], "loss_%d_epoch", k);
        set_ratio(o, m->full_acc_sum[k], m->full_acc_total[k], "full_acc_%d_epoch", k);
        set_ratio(o, m->cond_acc_sum[k], m->cond_acc_total[k], "cond_acc_%d_epoch", k);
        for (int i = 0; i < m->n_terms; i++) {
            snprintf(format, sizeof format, "%s_loss_%%d_epoch", m->term_name[i]);
            set_ratio(o, m->term_loss_sum[i][k], m->term_loss_total[i][k], format, k);
        }
    }
    json_object_set_new(o, "loss_epoch",
                        json_real(m->loss_total != 0 ? m->loss_sum / m->loss_total : 0.0));
    return o;
}

/* Takes `text` over; NULL is a failure. */
static accrue_status take_text(acr_save *s, const char *name, char *text, accrue_error *err)
{
    if (!text)
        return acr_enomem(err, 0, name);
    s->texts[s->n_texts].name = name;
    s->texts[s->n_texts++].text = text;
    s->bytes += (int64_t)strlen(text);
    return ACCRUE_OK;
}

/* Takes over `value`. */
static accrue_status take_json(acr_save *s, const char *name, json_t *value, accrue_error *err)
{
    char *text = value ? acr_json_text(value) : NULL;

    json_decref(value);
    return take_text(s, name, text, err);
}

static accrue_status take_names(acr_save *s, const char *dir, accrue_error *err)
{
    const char *slash = strrchr(dir, '/');

    s->dir = acr_strdup(dir);
    s->parent = acr_parent(dir);
    s->temporary = s->parent ? acr_checkpoint_temporary(s->parent, slash ? slash + 1 : dir) : NULL;
    if (!s->dir || !s->temporary)
        return acr_enomem(err, strlen(dir), "a path");
    return ACCRUE_OK;
}

accrue_status acr_save_take(acr_save *s, const char *dir, acr_model *m, const acr_save_content *c,
                            accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(take_names(s, dir, err));
    ACR_TRY(take_json(s, "config.json", json_incref(m->config.json), err));
    if (c->val)
        ACR_TRY(take_json(s, "val_metrics.json", val_metrics(c->val), err));
    if (c->state)
        ACR_TRY(take_json(s, "training_state.json", acr_training_state_json(c->state), err));
    if (c->skipped)
        ACR_TRY(take_text(s, "skipped_samples.jsonl", acr_strdup(c->skipped), err));
    ACR_TRY(take_arrays(s, m, c->window, err));
    s->at.f = &s->states;

cleanup:
    return st;
}

int64_t acr_save_bytes(const acr_model *m, const accrue_window *w)
{
    int64_t bytes = 0;

    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        int64_t n = p->rows * p->cols;
        bytes += 2 * n + (p->trainable ? n * (int64_t)acr_dtype_bytes(m->real) : 0);
    }
    for (int i = 0; i < acr_window_n_states(w); i++) {
        acr_optimizer_state o = acr_window_state(w, i);
        bytes += o.rows * o.cols * (int64_t)acr_dtype_bytes(m->real);
    }
    return bytes;
}
