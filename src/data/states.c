/* states.c - the verifier's hidden states of one sample, read in pieces.
 *
 * A writer (vLLM's connector) holds a flock on hs_<row>.safetensors.lock while it writes; the file
 * stays behind when it is done or dead, so that a lock says something only while it is held. */
#include "data/readers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 256 << 10, PREFIX = 8 }; /* a piece stays in a core's own cache */

static accrue_status no_memory(accrue_fault *f, size_t bytes, int64_t row)
{
    accrue_error e;

    acr_enomem(&e, bytes, "hidden states");
    return acr_fault_error(f, 0, "", row, &e);
}

static accrue_status states_path(char out[PATH_MAX], const char *dir, int64_t row,
                                 const char *suffix, accrue_fault *f)
{
    accrue_error e;
    int n = snprintf(out, PATH_MAX, "%s/hs_%lld.safetensors%s", dir, (long long)row, suffix);

    if (n > 0 && n < PATH_MAX)
        return ACCRUE_OK;
    acr_fail(&e, ACCRUE_EINVAL, "%s: the folder's name is too long", dir);
    return acr_fault_error(f, ACCRUE_FAULT_UNREADABLE, dir, row, &e);
}

/* Locks ----------------------------------------------------------------------------------- */

void acr_patience_init(acr_patience *p, double seconds)
{
    *p = (acr_patience){.left = seconds};
    pthread_mutex_init(&p->lock, NULL); /* of the default kind, which cannot fail */
}

void acr_patience_free(acr_patience *p)
{
    pthread_mutex_destroy(&p->lock);
}

static double begin_wait(acr_patience *p)
{
    double deadline = 0;

    pthread_mutex_lock(&p->lock);
    if (!p->waiting++)
        p->since = acr_seconds();
    deadline = p->since + p->left;
    pthread_mutex_unlock(&p->lock);
    return deadline;
}

static void end_wait(acr_patience *p)
{
    pthread_mutex_lock(&p->lock);
    if (!--p->waiting) {
        p->left -= acr_seconds() - p->since;
        p->left = p->left > 1e-6 ? p->left : 0; /* no remainder of rounding */
    }
    pthread_mutex_unlock(&p->lock);
}

static acr_lock look_at_lock(const char *path, accrue_error *why)
{
    acr_lock lock = ACR_LOCK_LEFT;
    int64_t bytes = 0;
    int fd = -1;

    if (!acr_exists(path))
        return ACR_LOCK_NONE;
    if (acr_open_file(&fd, &bytes, path, why))
        return acr_exists(path) ? ACR_LOCK_UNKNOWN : ACR_LOCK_NONE;
    if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        lock = ACR_LOCK_HELD;
    close(fd); /* which releases it */
    return lock;
}

acr_lock acr_states_lock(const char *dir, int64_t row, acr_patience *p, accrue_error *why)
{
    char path[PATH_MAX];
    accrue_fault f;
    acr_lock lock = ACR_LOCK_NONE;
    double deadline = 0;

    if (states_path(path, dir, row, ".lock", &f))
        return ACR_LOCK_NONE; /* the file's own name is too long then */
    lock = look_at_lock(path, why);
    if (lock != ACR_LOCK_HELD || !p)
        return lock;
    deadline = begin_wait(p);
    while (lock == ACR_LOCK_HELD && acr_seconds() < deadline && !(p->ended && p->ended(p->ctx))) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        lock = look_at_lock(path, why);
    }
    end_wait(p);
    return lock;
}

accrue_status acr_states_locked(accrue_fault *f, const char *dir, int64_t row, acr_lock lock,
                                const accrue_error *why)
{
    accrue_status st = ACCRUE_OK;
    accrue_error e;
    char path[PATH_MAX];

    ACR_TRY(states_path(path, dir, row, ".lock", f));
    if (lock == ACR_LOCK_HELD)
        acr_fail(&e, ACCRUE_EIO,
                 "%s: a writer holds the lock, and did so until the wait for it was over", path);
    else if (lock == ACR_LOCK_LEFT)
        acr_fail(&e, ACCRUE_OK,
                 "%s: the lock was left over by a writer that is gone or done; it may be removed",
                 path);
    else
        acr_fail(&e, ACCRUE_OK, "%s: no lock that anybody could be waited for", why->message);
    st = acr_fault_error(f, lock == ACR_LOCK_HELD ? ACCRUE_FAULT_LOCKED : ACCRUE_FAULT_STALE_LOCK,
                         path, row, &e);

cleanup:
    return st;
}

bool acr_states_exist(const char *dir, int64_t row, acr_patience *p, accrue_fault *f)
{
    char path[PATH_MAX];
    acr_lock lock = ACR_LOCK_NONE;
    accrue_error e;

    if (states_path(path, dir, row, "", f))
        return false;
    if (acr_exists(path))
        return true;
    lock = acr_states_lock(dir, row, p, NULL);
    if (acr_exists(path))
        return true;
    if (lock == ACR_LOCK_HELD) {
        acr_states_locked(f, dir, row, lock, NULL);
        return false;
    }
    acr_fail(&e, ACCRUE_EIO, "%s: there are no hidden states%s", path,
             lock == ACR_LOCK_LEFT ? ", but the .lock of a writer that is gone" : "");
    acr_fault_error(f, ACCRUE_FAULT_MISSING, path, row, &e);
    return false;
}

/* Reading --------------------------------------------------------------------------------- */

static accrue_status read_at(acr_states *s, int64_t row, void *out, size_t n, int64_t at,
                             accrue_fault *f)
{
    char *p = out;
    accrue_error e;

    while (n) {
        ssize_t k = pread(s->fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0) {
            acr_fail_errno(&e, errno, "cannot read", s->path);
            return acr_fault_error(f, ACCRUE_FAULT_UNREADABLE, s->path, row, &e);
        }
        if (k == 0) {
            acr_fail(&e, ACCRUE_EIO,
                     "%s: ends at byte %lld, %lld expected: it was cut while it "
                     "was read",
                     s->path, (long long)at, (long long)s->bytes);
            return acr_fault_error(f, ACCRUE_FAULT_UNREADABLE, s->path, row, &e);
        }
        p += k;
        at += k;
        n -= (size_t)k;
    }
    return ACCRUE_OK;
}

static accrue_status need(acr_states *s, size_t bytes, int64_t row, accrue_fault *f)
{
    void *more = NULL;

    if (bytes <= s->capacity)
        return ACCRUE_OK;
    if (bytes < PIECE)
        bytes = PIECE;
    more = acr_malloc(bytes);
    if (!more)
        return no_memory(f, bytes, row);
    acr_free(s->buffer);
    s->buffer = more;
    s->capacity = bytes;
    return ACCRUE_OK;
}

static accrue_status open_file(acr_states *s, int64_t row, accrue_fault *f)
{
    accrue_error e;

    s->is_open = !acr_open_file(&s->fd, &s->bytes, s->path, &e);
    return s->is_open ? ACCRUE_OK : acr_fault_error(f, ACCRUE_FAULT_UNREADABLE, s->path, row, &e);
}

static accrue_status read_header(acr_states *s, int64_t row, accrue_fault *f)
{
    accrue_status st = ACCRUE_OK;
    size_t head = 0;
    accrue_error e;

    ACR_TRY(need(s, PIECE, row, f));
    ACR_TRY(read_at(s, row, s->buffer, s->bytes < PREFIX ? (size_t)s->bytes : PREFIX, 0, f));
    head = acr_safetensors_head(s->buffer, (size_t)s->bytes);
    ACR_TRY(need(s, head, row, f));
    if (head)
        ACR_TRY(read_at(s, row, s->buffer, head, 0, f));
    st = acr_safetensors_reparse(&s->file, s->buffer, (size_t)s->bytes, s->path, &e);
    if (st) {
        st = acr_fault_error(f, ACCRUE_FAULT_FORMAT, s->path, row, &e);
        goto cleanup;
    }
    s->data_at = (int64_t)head;

cleanup:
    return st;
}

static int64_t offset_of(const acr_tensor *t)
{
    return (int64_t)(uintptr_t)t->data;
}

/* Rules ----------------------------------------------------------------------------------- */

static accrue_status no_tensor(accrue_fault *f, const acr_states *s, int64_t row, const char *name)
{
    char what[64];

    snprintf(what, sizeof what, "tensor '%s'", name);
    return acr_fault_set(f, ACCRUE_FAULT_TENSOR, s->path, row, what, "missing", "there");
}

static accrue_status wrong_tensor(accrue_fault *f, const acr_states *s, int64_t row,
                                  accrue_fault_kind kind, const acr_tensor *t, bool with_type,
                                  const char *expected)
{
    char shape[ACR_SHAPE_TEXT], found[ACR_SHAPE_TEXT + 8];

    acr_shape_text(shape, t->n_dims, t->dims);
    snprintf(found, sizeof found, "%s %s", acr_dtype_name(t->dtype), shape);
    return acr_fault_set(f, kind, s->path, row, t->name, with_type ? found : shape, expected);
}

/* Compares the ids in pieces; all that differ are counted, the first is told. */
static accrue_status compare_ids(acr_states *s, const acr_tensor *t, int64_t row, const acr_row *r,
                                 accrue_fault *f)
{
    accrue_status st = ACCRUE_OK;
    const int64_t room = (int64_t)s->capacity / 8;
    int64_t first = -1, wrong = 0, count = 0;
    char what[64], found[32], expected[64];

    for (int64_t at = 0; at < r->tokens; at += room) {
        int64_t n = r->tokens - at < room ? r->tokens - at : room;
        const int64_t *ids = s->buffer;
        ACR_TRY(read_at(s, row, s->buffer, 8 * (size_t)n, s->data_at + offset_of(t) + 8 * at, f));
        for (int64_t i = 0; i < n; i++)
            if (ids[i] != r->input_ids[at + i] && !count++) {
                first = at + i;
                wrong = ids[i];
            }
    }
    if (!count)
        goto cleanup;
    snprintf(what, sizeof what, "token_ids of token %lld", (long long)first);
    snprintf(found, sizeof found, "%lld", (long long)wrong);
    snprintf(expected, sizeof expected, "%lld as in the data set", (long long)r->input_ids[first]);
    st = acr_fault_set(f, ACCRUE_FAULT_TOKEN_IDS, s->path, row, what, found, expected);
    f->token = first;
    acr_fault_count(f, count);

cleanup:
    return st;
}

accrue_status acr_states_check_ids(acr_states *s, int64_t row, const acr_row *r, accrue_fault *f)
{
    const acr_tensor *t = acr_safetensors_find(s->file, "token_ids");
    char expected[48];

    if (!t)
        return no_tensor(f, s, row, "token_ids");
    snprintf(expected, sizeof expected, "I64 [%lld]", (long long)r->tokens);
    if (t->dtype != ACR_DTYPE_I64 || t->n_dims != 1)
        return wrong_tensor(f, s, row, ACCRUE_FAULT_TENSOR, t, true, expected);
    if (t->dims[0] != r->tokens)
        return wrong_tensor(f, s, row, ACCRUE_FAULT_LENGTH, t, true, expected);
    return compare_ids(s, t, row, r, f);
}

accrue_status acr_states_check_shape(acr_states *s, int64_t row, const acr_row *r,
                                     const acr_batch_shape *shape, accrue_fault *f)
{
    const acr_tensor *t = acr_safetensors_find(s->file, "hidden_states");
    bool sized = shape->hidden_size > 0;
    char expected[80];

    if (!t)
        return no_tensor(f, s, row, "hidden_states");
    if (!acr_dtype_is_float(t->dtype))
        return acr_fault_set(f, ACCRUE_FAULT_TENSOR, s->path, row, "hidden_states",
                             acr_dtype_name(t->dtype), "BF16, F16 or F32");
    if (sized)
        snprintf(expected, sizeof expected, "[%lld, %d, %lld]", (long long)r->tokens,
                 shape->n_aux + 1, (long long)shape->hidden_size);
    else
        snprintf(expected, sizeof expected, "[%lld, layers, size]", (long long)r->tokens);
    if (t->n_dims != 3 || t->dims[1] < 1 || t->dims[2] < 1 ||
        (sized && (t->dims[1] != shape->n_aux + 1 || t->dims[2] != shape->hidden_size)))
        return wrong_tensor(f, s, row, ACCRUE_FAULT_TENSOR, t, false, expected);
    if (t->dims[0] != r->tokens)
        return wrong_tensor(f, s, row, ACCRUE_FAULT_LENGTH, t, false, expected);
    s->hidden = t;
    return ACCRUE_OK;
}

accrue_status acr_states_nonfinite(const acr_states *s, int64_t row, const void *element, int64_t i,
                                   accrue_fault *f)
{
    const int64_t slots = s->hidden->dims[1], size = s->hidden->dims[2];
    const int64_t token = i / size / slots, slot = i / size % slots;
    char what[128], found[32];
    double x = 0;

    acr_convert(ACR_DTYPE_F64, &x, s->hidden->dtype, element, 1);
    snprintf(what, sizeof what, "hidden_states of token %lld, slot %lld, element %lld",
             (long long)token, (long long)slot, (long long)(i % size));
    snprintf(found, sizeof found, "%g", x);
    acr_fault_set(f, ACCRUE_FAULT_NONFINITE, s->path, row, what, found, "a finite number");
    f->token = token;
    f->slot = slot;
    f->element = i % size;
    return acr_fault_status(f);
}

/* Elements [from, to) of the row's states; `data` begins with the piece's first. */
static accrue_status check_span(const acr_states *s, int64_t row, const char *data, int64_t base,
                                int64_t from, int64_t to, accrue_fault *f)
{
    const int64_t size = (int64_t)acr_dtype_bytes(s->hidden->dtype);
    const char *at = data + (from - base) * size;
    int64_t i = to > from ? acr_find_nonfinite(s->hidden->dtype, at, to - from) : -1;

    return i < 0 ? ACCRUE_OK : acr_states_nonfinite(s, row, at + i * size, from + i, f);
}

accrue_status acr_states_check_used(const acr_states *s, int64_t row, const void *data,
                                    int64_t first, int64_t n, int64_t used, accrue_fault *f)
{
    accrue_status st = ACCRUE_OK;
    const int64_t token = s->hidden->dims[1] * s->hidden->dims[2];
    const int64_t aux = token - s->hidden->dims[2];
    const int64_t base = first * token;
    int64_t from = first, to = first + n < used - 1 ? first + n : used - 1;

    if (used < 2)
        return ACCRUE_OK;
    if (first == 0) {
        ACR_TRY(check_span(s, row, data, base, 0, aux, f));
        from = 1;
    }
    ACR_TRY(check_span(s, row, data, base, from * token, to * token, f));
    if (first < used && used <= first + n)
        ACR_TRY(check_span(s, row, data, base, (used - 1) * token + aux, used * token, f));

cleanup:
    return st;
}

/* Use ------------------------------------------------------------------------------------- */

accrue_status acr_states_begin(acr_states *s, const char *dir, int64_t row, accrue_fault *f)
{
    accrue_status st = ACCRUE_OK;

    acr_states_close(s);
    ACR_TRY(states_path(s->path, dir, row, "", f));
    ACR_TRY(open_file(s, row, f));
    ACR_TRY(read_header(s, row, f));

cleanup:
    return st;
}

static bool is_missing(const char *dir, int64_t row)
{
    accrue_fault f;

    return !acr_states_exist(dir, row, NULL, &f) && f.kind == ACCRUE_FAULT_MISSING;
}

/* Opens what will be made while it is read. */
static void begin_made(acr_states *s, const acr_row *r, const acr_batch_shape *shape)
{
    acr_states_close(s);
    snprintf(s->path, sizeof s->path, "%s", s->source->name);
    s->row = *r;
    s->shape = (acr_tensor){.name = "hidden_states",
                            .dtype = ACR_DTYPE_BF16,
                            .n_dims = 3,
                            .dims = {r->tokens, shape->n_aux + 1, shape->hidden_size}};
    s->hidden = &s->shape;
    s->is_made = true;
}

accrue_status acr_states_open(acr_states *s, const char *dir, int64_t row, const acr_row *r,
                              const acr_batch_shape *shape, acr_patience *p, accrue_fault *f)
{
    accrue_status st = ACCRUE_OK;

    if (acr_states_lock(dir, row, p, NULL) == ACR_LOCK_HELD)
        return acr_states_locked(f, dir, row, ACR_LOCK_HELD, NULL);
    if (s->source && is_missing(dir, row)) {
        begin_made(s, r, shape);
        return ACCRUE_OK;
    }
    ACR_TRY(acr_states_begin(s, dir, row, f));
    ACR_TRY(acr_states_check_ids(s, row, r, f));
    ACR_TRY(acr_states_check_shape(s, row, r, shape, f));

cleanup:
    return st;
}

/* What keeps states from being made is no row's fault. */
static accrue_status make_piece(const void **out, int64_t *n, acr_states *s, int64_t row,
                                int64_t first, accrue_fault *f)
{
    accrue_error e = {0};
    accrue_status st = s->source->make(out, n, s->source->ctx, &s->row, first, &e);

    if (st)
        acr_fault_error(f, 0, s->path, row, &e);
    return st;
}

accrue_status acr_states_read(const void **out, int64_t *n, acr_states *s, int64_t row,
                              int64_t first, accrue_fault *f)
{
    accrue_status st = ACCRUE_OK;
    const acr_tensor *t = s->hidden;
    const size_t token = (size_t)(t->dims[1] * t->dims[2]) * acr_dtype_bytes(t->dtype);
    int64_t fits = 0;

    *out = NULL;
    if (s->is_made)
        return make_piece(out, n, s, row, first, f);
    ACR_TRY(need(s, token, row, f));
    fits = (int64_t)(s->capacity / token);
    *n = t->dims[0] - first < fits ? t->dims[0] - first : fits;
    ACR_TRY(read_at(s, row, s->buffer, (size_t)*n * token,
                    s->data_at + offset_of(t) + first * (int64_t)token, f));
    *out = s->buffer;

cleanup:
    return st;
}

void acr_states_close(acr_states *s)
{
    if (s->is_open)
        close(s->fd);
    s->is_open = s->is_made = false;
    s->hidden = NULL;
}

void acr_states_free(acr_states *s)
{
    acr_states_close(s);
    acr_safetensors_close(s->file);
    acr_free(s->buffer);
    memset(s, 0, sizeof *s);
}
