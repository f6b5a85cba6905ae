/* skipped.c - the rows that a run leaves out as bad: which, why, how many it bears, and the list of
 * them in skipped_samples.jsonl.
 *
 * Packing never hears of them, so that the order of an epoch and the place of every other row are
 * the same whenever a row is found to be bad.  A checkpoint carries the list, and a run that goes
 * on leaves out what the one before did. */
#include "train/train.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOLD = 20 }; /* notices of a kind; the list has all */

static const char file_name[] = "skipped_samples.jsonl";

void acr_bad_rows_free(acr_epochs *e)
{
    for (int64_t i = 0; i < e->n_bad; i++) {
        acr_free(e->left_out[i].file);
        acr_free(e->left_out[i].message);
    }
    acr_free(e->left_out);
    acr_free(e->bad);
}

static accrue_status add(acr_epochs *e, const accrue_fault *f, int64_t epoch, accrue_error *err)
{
    acr_bad_row b = {.row = f->row, .epoch = epoch, .kind = f->kind};
    acr_bad_row *more = e->left_out;

    if (e->n_bad == e->bad_capacity) {
        e->bad_capacity = e->bad_capacity ? 2 * e->bad_capacity : 16;
        more = acr_realloc(e->left_out, (size_t)e->bad_capacity * sizeof *more);
        if (!more)
            return acr_enomem(err, (size_t)e->bad_capacity * sizeof *more, "the list of bad rows");
        e->left_out = more;
    }
    b.file = acr_strdup(f->file);
    b.message = acr_strdup(f->message);
    if (!b.file || !b.message) {
        acr_free(b.file);
        acr_free(b.message);
        return acr_enomem(err, strlen(f->message), "the list of bad rows");
    }
    e->left_out[e->n_bad++] = b;
    e->bad[f->row] = true;
    return ACCRUE_OK;
}

accrue_status acr_epochs_leave_out(acr_epochs *e, const accrue_fault *f, int64_t epoch,
                                   accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t all = 0;

    if (e->bad[f->row])
        return ACCRUE_OK;
    ACR_TRY(add(e, f, epoch, err));
    all = e->n_bad + (e->max_given ? e->missing : 0);
    if (all > e->max_bad)
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "--max-bad %lld%s: %lld rows of %lld are left out, the last one for: %s",
                      (long long)e->max_bad, e->max_given ? "" : " (1% of the rows)",
                      (long long)all, (long long)e->n_rows, f->message);

cleanup:
    return st;
}

void acr_epochs_drop_bad(acr_epoch *epoch, const acr_epochs *e, int64_t *dropped)
{
    int64_t begin = 0, at = 0;

    for (int64_t i = 0; i < epoch->n; i++) {
        int64_t end = epoch->begin[i + 1];
        for (int64_t j = begin; j < end; j++)
            if (!e->bad[epoch->rows[j]])
                epoch->rows[at++] = epoch->rows[j];
            else if (dropped)
                dropped[i]++;
        begin = end;
        epoch->begin[i + 1] = at;
    }
}

/* The list ---------------------------------------------------------------------------------- */

typedef struct text {
    char *s;
    size_t used, capacity;
} text;

static accrue_status add_line(text *t, const acr_bad_row *b, accrue_error *err)
{
    json_t *row = json_pack("{s:I, s:s, s:o, s:o, s:o}", "row", (json_int_t)b->row, "kind",
                            accrue_fault_name(b->kind), "file", acr_json_string(b->file), "message",
                            acr_json_string(b->message), "epoch",
                            b->epoch < 0 ? json_null() : json_integer((json_int_t)b->epoch));
    char *line = row ? json_dumps(row, JSON_COMPACT) : NULL;
    size_t n = line ? strlen(line) : 0;

    json_decref(row);
    if (line && t->used + n + 2 > t->capacity) {
        size_t capacity = 2 * (t->used + n + 2);
        char *more = acr_realloc(t->s, capacity);
        if (!more) {
            free(line);
            return acr_enomem(err, capacity, file_name);
        }
        t->s = more;
        t->capacity = capacity;
    }
    if (!line)
        return acr_enomem(err, 0, file_name);
    memcpy(t->s + t->used, line, n);
    t->s[t->used + n] = '\n';
    t->used += n + 1;
    t->s[t->used] = '\0';
    free(line);
    return ACCRUE_OK;
}

/* Bad rows from the first-th on. */
static accrue_status add_bad(text *t, const acr_epochs *e, int64_t first, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int64_t i = first; i < e->n_bad && !st; i++)
        st = add_line(t, &e->left_out[i], err);
    return st;
}

static accrue_status add_missing(text *t, const acr_epochs *e, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    static char missing[] = "there are no hidden states";

    for (int64_t row = 0; row < e->n_rows && !st; row++) {
        acr_bad_row b = {row, -1, ACCRUE_FAULT_MISSING, NULL, missing};
        if (!e->absent[row])
            continue;
        b.file = acr_sprintf("%s/hs_%lld.safetensors", dir, (long long)row);
        st = b.file ? add_line(t, &b, err) : acr_enomem(err, strlen(dir), "a path");
        acr_free(b.file);
    }
    return st;
}

accrue_status acr_bad_rows_text(char **out, const acr_epochs *e, accrue_error *err)
{
    text t = {0};
    accrue_status st = add_bad(&t, e, 0, err);

    *out = st ? NULL : t.s;
    if (st)
        acr_free(t.s);
    return st;
}

/* Written whole beside itself and renamed: a list cut short would say that rows were used. */
static accrue_status write_list(const char *path, const char *parent, const text *t,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *temporary = acr_checkpoint_temporary(parent, file_name);

    if (!temporary)
        return acr_enomem(err, strlen(path), "a path");
    if (!t->used) {
        if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
            st = acr_fail_errno(err, errno, "cannot remove", path);
        goto cleanup;
    }
    ACR_TRY(acr_checkpoint_parents(path, err));
    ACR_TRY(acr_write_file(temporary, t->s, t->used, err));
    ACR_TRY(acr_sync(temporary, err));
    if (rename(temporary, path) != 0)
        st = acr_fail_errno(err, errno, "cannot rename a list to this name", path);

cleanup:
    if (st)
        unlink(temporary);
    acr_free(temporary);
    return st;
}

static accrue_status append_list(const char *path, const text *t, accrue_error *err)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    accrue_status st = ACCRUE_OK;

    if (fd < 0)
        return acr_fail_errno(err, errno, "cannot open", path);
    for (size_t at = 0; at < t->used && !st;) {
        ssize_t k = write(fd, t->s + at, t->used - at);
        if (k <= 0 && errno != EINTR)
            st = acr_fail_errno(err, k < 0 ? errno : ENOSPC, "cannot write", path);
        at += k > 0 ? (size_t)k : 0;
    }
    close(fd);
    return st;
}

accrue_status acr_bad_rows_list(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_epochs *e = &run->epochs;
    char *path = acr_sprintf("%s/%s", run->opt.save_path, file_name);
    bool whole = run->listed < 0;
    text t = {0};

    if (!path)
        return acr_enomem(err, strlen(run->opt.save_path), "a path");
    if (whole)
        ACR_TRY(add_missing(&t, e, run->setup.states_dir, err));
    ACR_TRY(add_bad(&t, e, whole ? 0 : run->listed, err));
    if (whole)
        ACR_TRY(write_list(path, run->opt.save_path, &t, err));
    else if (t.used)
        ACR_TRY(append_list(path, &t, err));
    run->listed = e->n_bad;

cleanup:
    acr_free(t.s);
    acr_free(path);
    return st;
}

static accrue_fault_kind kind_of(const char *name)
{
    for (int kind = 1; name && kind <= (int)ACCRUE_FAULT_MAP; kind++)
        if (!strcmp(name, accrue_fault_name((accrue_fault_kind)kind)))
            return (accrue_fault_kind)kind;
    return 0;
}

static accrue_status read_line(acr_epochs *e, const char *line, size_t n, const char *path,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_fault f = {.count = 1};
    const json_t *row = NULL, *epoch = NULL;
    json_t *o = NULL;

    ACR_TRY(acr_json_parse(&o, line, n, path, err));
    row = json_object_get(o, "row");
    epoch = json_object_get(o, "epoch");
    f.row = json_integer_value(row);
    f.kind = kind_of(json_string_value(json_object_get(o, "kind")));
    if (!f.kind || !json_is_integer(row) || f.row < 0 ||
        !json_is_string(json_object_get(o, "file")) ||
        !json_is_string(json_object_get(o, "message")) ||
        (!json_is_null(epoch) && !json_is_integer(epoch))) {
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: not a line of row, kind, file, message and epoch: %.*s", path,
                      n < 200 ? (int)n : 200, line);
        goto cleanup;
    }
    acr_text(f.file, sizeof f.file, json_string_value(json_object_get(o, "file")));
    acr_text(f.message, sizeof f.message, json_string_value(json_object_get(o, "message")));
    if (f.row < e->n_rows) /* else of another data set, as its fingerprint will say */
        ACR_TRY(
            acr_epochs_leave_out(e, &f, json_is_null(epoch) ? -1 : json_integer_value(epoch), err));

cleanup:
    json_decref(o);
    return st;
}

accrue_status acr_bad_rows_read(acr_epochs *e, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, file_name);
    acr_map map = {0};

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    if (acr_is_file(path))
        ACR_TRY(acr_map_open(&map, path, err));
    for (const char *p = (const char *)map.data, *end = p + map.bytes; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop)
            stop = end;
        ACR_TRY(read_line(e, p, (size_t)(stop - p), path, err));
        p = stop + 1;
    }

cleanup:
    acr_map_close(&map);
    acr_free(path);
    return st;
}

/* Telling --------------------------------------------------------------------------------- */

accrue_status acr_bad_row_told(accrue_run *run, int64_t i, accrue_error *err)
{
    const acr_bad_row *b = &run->epochs.left_out[i];

    if (i < TOLD)
        return acr_notice(run, err, "left out: %s", b->message);
    if (i == TOLD)
        return acr_notice(run, err, "further rows that are left out are listed in %s/%s",
                          run->opt.save_path, file_name);
    return ACCRUE_OK;
}

static accrue_status tell_missing(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_epochs *e = &run->epochs;
    const char *dir = run->setup.states_dir;
    char rows[200] = "";
    size_t used = 0;
    int64_t told = 0;

    if (!e->missing)
        return ACCRUE_OK;
    for (int64_t i = 0; i < e->n_rows; i++) {
        if (!e->absent[i])
            continue;
        if (used < 150)
            used += (size_t)snprintf(rows + used, sizeof rows - used, "%s%lld", used ? ", " : "",
                                     (long long)i);
        if (run->opt.on_missing == ACCRUE_POLICY_WARN && told++ < TOLD)
            ACR_TRY(acr_notice(run, err,
                               "left out: row %lld: %s/hs_%lld.safetensors: there are no hidden "
                               "states",
                               (long long)i, dir, (long long)i));
    }
    st =
        acr_notice(run, err, "%lld of %lld rows have no hidden states and are left out (rows %s%s)",
                   (long long)e->missing, (long long)e->n_rows, rows, used >= 150 ? ", ..." : "");

cleanup:
    return st;
}

accrue_status acr_left_out_told(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(tell_missing(run, err));
    for (int64_t i = 0; i < run->epochs.n_bad && i <= TOLD; i++)
        ACR_TRY(acr_bad_row_told(run, i, err));
    ACR_TRY(acr_bad_rows_list(run, err));

cleanup:
    return st;
}

/* While training --------------------------------------------------------------------------- */

/* A lock that may still be waited for is left to the loader. */
static accrue_status on_fault(const accrue_fault *f, void *ctx, accrue_error *err)
{
    accrue_run *run = ctx;
    accrue_status st = ACCRUE_OK;
    int64_t known = run->epochs.n_bad;

    if (f->kind == ACCRUE_FAULT_LOCKED && acr_loader_patience(run->loader) > 0)
        return ACCRUE_OK;
    ACR_TRY(acr_epochs_leave_out(&run->epochs, f, run->epoch, err));
    if (run->epochs.n_bad > known)
        ACR_TRY(acr_bad_row_told(run, known, err));

cleanup:
    return st;
}

accrue_status acr_run_leave_out(accrue_run *run, acr_epoch *e, int64_t from, int64_t to,
                                int64_t *dropped, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_fault fault = *acr_loader_fault(run->loader);
    acr_sweep sweep = {
        .data = run->setup.data, .states_dir = run->setup.states_dir, .shape = run->setup.shape};

    acr_loader_stop(run->loader); /* which reads `e` */
    ACR_TRY(on_fault(&fault, run, err));
    acr_epochs_drop_bad(e, &run->epochs, dropped);
    ACR_TRY(acr_sweep_rows(&sweep, e->rows + e->begin[from], e->begin[to] - e->begin[from],
                           on_fault, run, err));
    acr_epochs_drop_bad(e, &run->epochs, dropped);
    if (run->listed >= 0) /* a run that writes nothing else lists nothing */
        ACR_TRY(acr_bad_rows_list(run, err));

cleanup:
    return st;
}

bool acr_run_has_bad_row(const accrue_run *run)
{
    return run->opt.on_bad == ACCRUE_POLICY_SKIP && acr_loader_fault(run->loader);
}
