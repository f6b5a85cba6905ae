/* save.c - the contents of a checkpoint, taken at a window's boundary and written by a thread while
 * training goes on.
 *
 * Masters and moments change in optimizer steps alone.  The thread reads them where they are, piece
 * by piece under the lock, and a step that comes before it is done first copies what is left to be
 * read (acr_save_detach).  So nothing is copied where the disk keeps up with a window, and training
 * waits for no disk where it does not. */
#include "train/train.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE = 1 << 20,
    BUFFERS = 6, /* a piece for each of the two files; one in the widest type for what ranks send */
    MAPS = 2,    /* d2t, t2d */
    MAX_TEXTS = 4
};

/* An array of the run that goes into the files. */
typedef struct origin {
    const void *live;
    int64_t begin, n;        /* elements that `live` has: of a sharded model, this rank's share */
    const acr_param *shared; /* whose shares the ranks have; NULL: each rank has all */
    void *copy;              /* of an array that was about to change; NULL: live is read */
    size_t bytes;
    acr_dtype dtype;
    bool changes;
    int left; /* tensors of it that are not written yet */
} origin;

/* The tensors of one safetensors file, sorted by name. */
typedef struct tensor_file {
    acr_tensor *t;
    int *from; /* index of each one's origin; -1: `data` is complete and stays */
    int n;
} tensor_file;

struct acr_save {
    char *dir, *parent, *temporary;
    bool whole; /* with the state, to go on from */
    struct {
        const char *name;
        char *text;
    } texts[MAX_TEXTS];
    int n_texts;
    tensor_file weights, states;
    origin *origins;
    int n_origins;
    void *buffer;  /* [BUFFERS * PIECE] */
    int64_t bytes; /* of all files, about */

    pthread_mutex_t lock; /* of the origins, `stage` and `verdict` */
    pthread_cond_t changed;
    pthread_t thread;
    acr_ledger *ledger; /* the run's, which the threads go by too */
    bool has_lock, has_thread, detached;
    enum { WRITING, WAITING, NAMING } stage;
    bool wait; /* in between */
    accrue_status verdict;
    accrue_error reason;
    /* Of a sharded model: which piece of which file the ranks exchange next. */
    accrue_comm *comm;
    struct {
        const tensor_file *f;
        int t;
        size_t offset;
    } at;
    accrue_status lost; /* how an exchange failed */
    accrue_error loss;
    atomic_bool done;
    accrue_status status;
    accrue_error error;
    acr_save_result result;
};

/* Contents -------------------------------------------------------------------------------- */

static int add_origin(acr_save *s, const void *live, acr_dtype dtype, int64_t n, bool changes)
{
    s->origins[s->n_origins] = (origin){.live = live,
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
static bool add_tensor(acr_save *s, tensor_file *f, char *name, const acr_tensor *like,
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

/* state.safetensors: masters, which are origins already, and moments, as they are. */
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
static bool sort(tensor_file *f)
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

static bool reserve(tensor_file *f, int n)
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
    int parent_length = slash ? (int)(slash - dir) : 1;

    s->dir = acr_strdup(dir);
    s->parent = acr_sprintf("%.*s", parent_length ? parent_length : 1, slash ? dir : ".");
    s->temporary = s->parent ? acr_checkpoint_temporary(s->parent, slash ? slash + 1 : dir) : NULL;
    if (!s->dir || !s->temporary)
        return acr_enomem(err, strlen(dir), "a path");
    return ACCRUE_OK;
}

/* Writing --------------------------------------------------------------------------------- */

typedef struct reading {
    acr_save *s;
    const tensor_file *f;
} reading;

/* What rank r has of elements [begin, begin + n) of an array: from *first on, so many. */
static int64_t part_of(const origin *o, int r, int64_t begin, int64_t n, int64_t *first)
{
    const acr_param *p = o->shared;
    const int64_t low = p->group->cut[r] - p->offset, high = p->group->cut[r + 1] - p->offset;
    const int64_t end = begin + n < high ? begin + n : high;

    *first = begin > low ? begin : low;
    return end > *first ? end - *first : 0;
}

/* Elements [begin, begin + n), whole in `into` on rank 0. */
static accrue_status send_piece(acr_save *s, const origin *o, int64_t begin, int64_t n, char *into,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int ranks = accrue_comm_size(s->comm), rank = accrue_comm_rank(s->comm);
    const size_t width = acr_dtype_bytes(o->dtype);
    const acr_comm_label label = {ACR_COMM_WEIGHTS, "a checkpoint's", o->shared->name};
    const void **send = acr_calloc((size_t)ranks, sizeof *send);
    void **recv = acr_calloc((size_t)ranks, sizeof *recv);
    size_t *send_bytes = acr_calloc((size_t)ranks, sizeof *send_bytes);
    size_t *recv_bytes = acr_calloc((size_t)ranks, sizeof *recv_bytes);
    acr_comm_request request;
    int64_t first = 0;

    if (!send || !recv || !send_bytes || !recv_bytes) {
        st = acr_comm_fail(s->comm, acr_enomem(err, (size_t)ranks * sizeof *send, "a checkpoint"),
                           err);
        goto cleanup;
    }
    send_bytes[0] = (size_t)part_of(o, rank, begin, n, &first) * width;
    send[0] = (const char *)o->live + (send_bytes[0] ? (size_t)(first - o->begin) * width : 0);
    for (int r = 0; rank == 0 && r < ranks; r++) {
        recv_bytes[r] = (size_t)part_of(o, r, begin, n, &first) * width;
        recv[r] = into + (recv_bytes[r] ? (size_t)(first - begin) * width : 0);
    }
    acr_comm_exchange_begin(s->comm, &request, label, send, send_bytes, recv, recv_bytes);
    st = acr_comm_wait(s->comm, &request, err);

cleanup:
    acr_free(send);
    acr_free(recv);
    acr_free(send_bytes);
    acr_free(recv_bytes);
    return st;
}

/* The next tensor of both files that ranks share, the state first; false behind the last. */
static bool find_piece(acr_save *s)
{
    for (;;) {
        const tensor_file *f = s->at.f;
        if (s->at.t < f->n && s->at.offset < f->t[s->at.t].bytes && f->from[s->at.t] >= 0 &&
            s->origins[f->from[s->at.t]].shared)
            return true;
        s->at.offset = 0;
        if (++s->at.t < f->n)
            continue;
        if (f == &s->weights)
            return false;
        s->at.f = &s->weights;
        s->at.t = 0;
    }
}

/* Sends the next piece to rank 0, which has it in `into`, and steps on. */
static void next_piece(acr_save *s, char *into)
{
    const acr_tensor *t = &s->at.f->t[s->at.t];
    const origin *o = &s->origins[s->at.f->from[s->at.t]];
    const size_t width = acr_dtype_bytes(t->dtype);
    const size_t n = t->bytes - s->at.offset < PIECE ? t->bytes - s->at.offset : PIECE;

    s->lost =
        send_piece(s, o, (int64_t)(s->at.offset / width), (int64_t)(n / width), into, &s->loss);
    s->at.offset += n;
}

/* Rank 0 asks for the pieces in the very order in which the others send them.  What a failed job
 * left unread is not told from here: nothing is given a name then. */
static const void *exchange_piece(acr_save *s, void *buffer, const acr_tensor *t, size_t n)
{
    char *raw = (char *)s->buffer + 2 * PIECE;
    const origin *o = NULL;

    if (s->lost || !find_piece(s)) {
        memset(buffer, 0, n);
        return buffer;
    }
    o = &s->origins[s->at.f->from[s->at.t]];
    next_piece(s, raw);
    acr_convert(t->dtype, buffer, o->dtype, raw, (int64_t)(n / acr_dtype_bytes(t->dtype)));
    return buffer;
}

/* This rank's part in all pieces that are left. */
static void send_rest(acr_save *s)
{
    while (!s->lost && find_piece(s))
        next_piece(s, (char *)s->buffer + 2 * PIECE);
}

/* One piece of a tensor, from where its array now is.  What does not change any more, and needs no
 * conversion, is not copied. */
static const void *read_piece(void *buffer, const acr_tensor *t, size_t offset, size_t n, void *ctx)
{
    const reading *r = ctx;
    acr_save *s = r->s;
    const int from = r->f->from[t - r->f->t];
    const size_t width = acr_dtype_bytes(t->dtype);
    const char *data = t->data;
    origin *o = NULL;

    if (from < 0)
        return data + offset;
    o = &s->origins[from];
    if (o->shared)
        return exchange_piece(s, buffer, t, n);
    if (!o->changes && o->dtype == t->dtype)
        return (const char *)o->live + offset;
    pthread_mutex_lock(&s->lock);
    data = o->copy ? o->copy : o->live;
    acr_convert(t->dtype, buffer, o->dtype, data + offset / width * acr_dtype_bytes(o->dtype),
                (int64_t)(n / width));
    if (offset + n == t->bytes)
        o->left--;
    pthread_mutex_unlock(&s->lock);
    return buffer;
}

/* {"bytes": n, "xxh3": digits} of a file just written, for the manifest. */
static accrue_status list_file(json_t *files, const char *name, int64_t bytes, uint64_t hash,
                               accrue_error *err)
{
    if (json_object_set_new(files, name, acr_manifest_entry(bytes, hash)) != 0)
        return acr_enomem(err, 0, "a manifest");
    return ACCRUE_OK;
}

/* One of the two large files, and what became of it. */
typedef struct writing {
    acr_save *s;
    const char *name;
    const tensor_file *f;
    const json_t *metadata;
    void *buffer;
    int64_t bytes;
    uint64_t hash;
    accrue_status status;
    accrue_error error;
} writing;

static accrue_status write_tensors(writing *w, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", w->s->temporary, w->name);
    reading r = {.s = w->s, .f = w->f};
    acr_tensor_source source = {.read = read_piece,
                                .ctx = &r,
                                .buffer = w->buffer,
                                .buffer_bytes = PIECE,
                                .hasher = acr_hasher_create()};

    if (!path || !source.hasher) {
        st = acr_enomem(err, strlen(w->s->temporary), "a checkpoint");
        goto cleanup;
    }
    ACR_TRY(acr_safetensors_write(path, w->f->t, w->f->n, w->metadata, &source, err));
    w->bytes = acr_file_bytes(path);
    w->hash = acr_hasher_value(source.hasher);

cleanup:
    acr_hasher_free(source.hasher);
    acr_free(path);
    return st;
}

static void *write_beside(void *arg)
{
    writing *w = arg;

    acr_ledger_use(w->s->ledger);
    w->status = write_tensors(w, &w->error);
    return NULL;
}

/* Copying and hashing take as long as a fast disk: the two files are made side by side, where the
 * system gives a thread. */
static accrue_status write_both(writing *state, writing *model, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    pthread_t thread;
    bool beside = !state->s->comm && pthread_create(&thread, NULL, write_beside, state) == 0;

    if (!beside)
        write_beside(state);
    st = write_tensors(model, err);
    if (beside)
        pthread_join(thread, NULL);
    if (state->status && !st)
        st = acr_fail(err, state->status, "%s", state->error.message);
    return st;
}

static accrue_status write_texts(const acr_save *s, json_t *files, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < s->n_texts && !st; i++) {
        const char *text = s->texts[i].text;
        char *path = acr_sprintf("%s/%s", s->temporary, s->texts[i].name);
        if (!path)
            return acr_enomem(err, strlen(s->temporary), "a path");
        st = acr_write_file(path, text, strlen(text), err);
        if (!st)
            st = list_file(files, s->texts[i].name, (int64_t)strlen(text),
                           acr_hash_bytes(text, strlen(text), 0), err);
        acr_free(path);
    }
    return st;
}

static accrue_status write_files(acr_save *s, json_t *files, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    writing state = {
        .s = s, .name = "state.safetensors", .f = &s->states, .buffer = (char *)s->buffer + PIECE};
    writing model = {.s = s,
                     .name = "model.safetensors",
                     .f = &s->weights,
                     .metadata = metadata,
                     .buffer = s->buffer};

    if (!metadata)
        return acr_enomem(err, 0, "a checkpoint");
    ACR_TRY(s->whole ? write_both(&state, &model, err) : write_tensors(&model, err));
    ACR_TRY(list_file(files, model.name, model.bytes, model.hash, err));
    ACR_TRY(write_texts(s, files, err));
    if (s->whole) {
        ACR_TRY(list_file(files, state.name, state.bytes, state.hash, err));
        ACR_TRY(acr_manifest_write(s->temporary, files, err));
    }

cleanup:
    json_decref(metadata);
    return st;
}

static accrue_status sync_files(const acr_save *s, json_t *files, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *name = NULL;
    json_t *entry = NULL;

    if (s->whole && json_object_set_new(files, "manifest.json", json_null()) != 0)
        return acr_enomem(err, 0, "a checkpoint");
    json_object_foreach(files, name, entry)
    {
        char *path = acr_sprintf("%s/%s", s->temporary, name);
        st = path ? acr_sync(path, err) : acr_enomem(err, strlen(s->temporary), "a path");
        acr_free(path);
        if (st)
            break;
    }
    return st;
}

/* The loss is proven by the training thread. */
static accrue_status wait_for_verdict(acr_save *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    pthread_mutex_lock(&s->lock);
    s->stage = s->wait ? WAITING : NAMING;
    pthread_cond_broadcast(&s->changed);
    while (s->stage == WAITING)
        pthread_cond_wait(&s->changed, &s->lock);
    st = s->verdict;
    pthread_mutex_unlock(&s->lock);
    return st ? acr_fail(err, st, "%s", s->reason.message) : ACCRUE_OK;
}

/* The disk writes what it has been given while the files are read back. */
static accrue_status write_checkpoint(acr_save *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *files = json_object();
    double start = acr_seconds();

    if (!files)
        return acr_enomem(err, 0, "a checkpoint");
    ACR_TRY(acr_checkpoint_make(s->temporary, s->parent, s->bytes, err));
    ACR_TRY(write_files(s, files, err));
    if (s->whole)
        ACR_TRY(acr_prove_files(s->temporary, s->weights.t, s->weights.n, s->states.t, s->states.n,
                                err));
    ACR_TRY(sync_files(s, files, err));
    if (s->lost) {
        st = acr_fail(err, s->lost, "%s", s->loss.message);
        goto cleanup;
    }
    ACR_TRY(wait_for_verdict(s, err));
    ACR_TRY(acr_checkpoint_name(s->temporary, s->dir, s->parent, s->whole, &s->result.aside, err));
    s->result.seconds = acr_seconds() - start;

cleanup:
    /* After an exchange this is the folder that was replaced. */
    acr_checkpoint_remove(s->temporary);
    json_decref(files);
    return st;
}

static void run(acr_save *s)
{
    s->status = write_checkpoint(s, &s->error);
    s->result.bytes = s->bytes;
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->done, true);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *run_thread(void *arg)
{
    acr_parallel_alone(); /* the cores are training's */
    acr_ledger_use(((acr_save *)arg)->ledger);
    run(arg);
    return NULL;
}

/* A system that gives no thread has it written here and now. */
static void start(acr_save *s)
{
    sigset_t all, before;

    s->ledger = acr_ledger_used();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->has_thread = pthread_create(&s->thread, NULL, run_thread, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!s->has_thread) {
        s->wait = false;
        run(s);
    }
}

void acr_save_release(acr_save *s, accrue_status verdict, const accrue_error *why)
{
    pthread_mutex_lock(&s->lock);
    s->wait = false;
    if (s->stage == WAITING) {
        s->verdict = verdict;
        if (why)
            s->reason = *why;
        s->stage = NAMING;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
}

static void join(acr_save *s)
{
    acr_save_release(s, ACCRUE_OK, NULL);
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    s->has_thread = false;
}

static void tensor_file_free(tensor_file *f)
{
    for (int i = 0; i < f->n; i++)
        acr_free((void *)(uintptr_t)f->t[i].name);
    acr_free(f->t);
    acr_free(f->from);
}

static void save_free(acr_save *s)
{
    if (s->has_lock) {
        pthread_cond_destroy(&s->changed);
        pthread_mutex_destroy(&s->lock);
    }
    for (int i = 0; i < s->n_origins; i++)
        acr_free(s->origins[i].copy);
    for (int i = 0; i < s->n_texts; i++)
        acr_free(s->texts[i].text);
    tensor_file_free(&s->weights);
    tensor_file_free(&s->states);
    acr_free(s->origins);
    acr_free(s->buffer);
    acr_free(s->dir);
    acr_free(s->parent);
    acr_free(s->temporary);
    acr_free(s);
}

/* A save's life --------------------------------------------------------------------------- */

static accrue_status save_create(acr_save **out, const char *dir, acr_model *m,
                                 const acr_save_content *c, accrue_comm *comm, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_save *s = acr_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return acr_enomem(err, sizeof *s, "a checkpoint");
    s->whole = c->state;
    s->comm = comm;
    atomic_init(&s->done, false);
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
    if (pthread_mutex_init(&s->lock, NULL) != 0 || pthread_cond_init(&s->changed, NULL) != 0) {
        st = acr_enomem(err, sizeof *s, "a checkpoint's lock");
        goto cleanup;
    }
    s->has_lock = true;
    s->wait = c->wait;
    *out = s;
    s = NULL;

cleanup:
    if (s)
        save_free(s);
    return st;
}

accrue_status acr_save_begin(acr_save **out, const char *dir, acr_model *m,
                             const acr_save_content *c, accrue_error *err)
{
    accrue_status st = save_create(out, dir, m, c, NULL, err);

    if (!st)
        start(*out);
    return st;
}

accrue_status acr_save_shared(acr_save **out, const char *dir, acr_model *m,
                              const acr_save_content *c, accrue_comm *comm, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_save *s = NULL;

    *out = NULL;
    ACR_TRY(save_create(&s, dir, m, c, comm, err));
    s->wait = false;
    if (accrue_comm_rank(comm) == 0)
        run(s);
    send_rest(s); /* all of it, or behind a write that failed */
    if (s->lost)
        st = acr_fail(err, s->lost, "%s", s->loss.message);
    else if (accrue_comm_rank(comm) == 0) {
        *out = s;
        s = NULL;
    }

cleanup:
    if (s)
        save_free(s);
    return st;
}

bool acr_save_done(const acr_save *s)
{
    return atomic_load(&s->done);
}

bool acr_save_waits(acr_save *s, bool wait)
{
    bool waits = false;

    pthread_mutex_lock(&s->lock);
    while (wait && s->stage == WRITING && !acr_save_done(s))
        pthread_cond_wait(&s->changed, &s->lock);
    waits = s->stage == WAITING;
    pthread_mutex_unlock(&s->lock);
    return waits;
}

const char *acr_save_folder(const acr_save *s)
{
    return s->temporary;
}

static void copy_origin(int64_t i, void *ctx)
{
    origin *o = &((acr_save *)ctx)->origins[i];

    if (o->copy)
        memcpy(o->copy, o->live, o->bytes);
}

void acr_save_detach(acr_save *s)
{
    bool fine = true;

    if (s->detached || acr_save_done(s))
        return;
    s->detached = true;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_origins && fine; i++) {
        origin *o = &s->origins[i];
        if (!o->changes || !o->left)
            continue;
        o->copy = acr_malloc(o->bytes);
        fine = o->copy;
    }
    if (fine)
        acr_parallel(s->n_origins, copy_origin, s);
    else
        for (int i = 0; i < s->n_origins; i++) {
            acr_free(s->origins[i].copy);
            s->origins[i].copy = NULL;
        }
    pthread_mutex_unlock(&s->lock);
    if (!fine)
        join(s); /* no memory for a copy: the step waits */
}

accrue_status acr_save_finish(acr_save *s, acr_save_result *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    join(s);
    st = s->status;
    *out = s->result;
    if (st)
        acr_fail(err, st, "%s", s->error.message);
    save_free(s);
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
