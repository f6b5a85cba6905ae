/* save.c - the contents of a checkpoint, taken at a window's boundary and written by a thread while
 * training goes on.
 *
 * Masters and moments change in optimizer steps alone.  The thread reads them where they are, piece
 * by piece under the lock, and a step that comes before it is done first copies what is left to be
 * read (acr_save_detach).  So nothing is copied where the disk keeps up with a window, and training
 * waits for no disk where it does not. */
#include "train/save_parts.h"

#include <string.h>

/* Writing --------------------------------------------------------------------------------- */

typedef struct reading {
    acr_save *s;
    const acr_tensor_file *f;
} reading;

/* One piece of a tensor, from where its array now is.  What does not change any more, and needs no
 * conversion, is not copied. */
static const void *read_piece(void *buffer, const acr_tensor *t, size_t offset, size_t n, void *ctx)
{
    const reading *r = ctx;
    acr_save *s = r->s;
    const int from = r->f->from[t - r->f->t];
    const size_t width = acr_dtype_bytes(t->dtype);
    const char *data = t->data;
    acr_origin *o = NULL;

    if (from < 0)
        return data + offset;
    o = &s->origins[from];
    if (o->shared)
        return acr_save_piece(s, buffer, t, n);
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
    const acr_tensor_file *f;
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
    bool beside = !state->s->comm && acr_thread_start(&thread, write_beside, state) == 0;

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
        .s = s, .name = "state.tensors", .f = &s->states, .buffer = (char *)s->buffer + PIECE};
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
    s->ledger = acr_ledger_used();
    s->has_thread = acr_thread_start(&s->thread, run_thread, s) == 0;
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

static void tensor_file_free(acr_tensor_file *f)
{
    for (int i = 0; i < f->n; i++)
        acr_free((void *)(uintptr_t)f->t[i].name);
    acr_free(f->t);
    acr_free(f->from);
}

static void save_free(acr_save *s)
{
    if (s->has_lock)
        acr_lock_free(&s->lock, &s->changed);
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
    ACR_TRY(acr_save_take(s, dir, m, c, err));
    s->has_lock = acr_lock_init(&s->lock, &s->changed);
    if (!s->has_lock) {
        st = acr_enomem(err, sizeof *s, "a checkpoint's lock");
        goto cleanup;
    }
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
    acr_save_send_rest(s); /* all of it, or behind a write that failed */
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
    acr_origin *o = &((acr_save *)ctx)->origins[i];

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
        acr_origin *o = &s->origins[i];
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
