/* skipped.c - the rows that a run leaves out, missing or bad: which, why, how many it bears, and
 * the list of them in skipped_samples.jsonl.
 *
 * Packing never hears of them, so that the order of an epoch and the place of every other row are
 * the same whenever a row is found to be bad.  A checkpoint carries the list, and a run that goes
 * on leaves out what the one before did. */
#include "train/train.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TOLD = 20,  /* notices of a kind; the list has all */
    PASSED = 10 /* times that faults may be gone when looked at again */
};

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
    acr_bad_row *more = NULL;

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
    e->missing += f->kind == ACCRUE_FAULT_MISSING;
    return ACCRUE_OK;
}

static accrue_status leave_out(acr_epochs *e, const accrue_fault *f, int64_t epoch,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t all = 0;

    if (e->bad[f->row])
        return ACCRUE_OK;
    ACR_TRY(add(e, f, epoch, err));
    ACR_TRY(acr_epochs_without(e, f->row, err));
    all = e->n_bad - (e->max_given ? 0 : e->missing);
    if (all > e->max_bad)
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "--max-bad %lld%s: %lld rows of %lld are left out, the last one for: %s",
                      (long long)e->max_bad, e->max_given ? "" : " (1% of the rows)",
                      (long long)all, (long long)e->n_rows, f->message);

cleanup:
    return st;
}

/* A folder that was unmounted may be there and empty. */
static accrue_status need_folder(const acr_sweep *sweep, accrue_error *err)
{
    const char *states_dir = sweep->states_dir;
    DIR *d = NULL;
    const struct dirent *entry = NULL;

    if (sweep->makes_missing) /* then it need not be there */
        return ACCRUE_OK;
    d = opendir(states_dir);
    if (!d)
        return acr_fail_errno(err, errno, "the folder of hidden states cannot be read", states_dir);
    do {
        errno = 0;
        entry = readdir(d);
    } while (entry && (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")));
    if (!entry && errno)
        acr_fail_errno(err, errno, "the folder of hidden states cannot be read", states_dir);
    else if (!entry)
        acr_fail(err, ACCRUE_EIO, "%s: the folder of hidden states is empty", states_dir);
    closedir(d);
    return entry ? ACCRUE_OK : ACCRUE_EIO;
}

static accrue_status take_fault(const accrue_fault *f, void *ctx, accrue_error *err)
{
    (void)err;
    *(accrue_fault *)ctx = *f;
    return ACCRUE_OK;
}

/* What the system would not give is the row's fault only while the others can be had. */
static accrue_status look_again(accrue_fault *f, const acr_sweep *sweep, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_sweep one = *sweep;
    accrue_fault now = {0};

    if (f->kind != ACCRUE_FAULT_MISSING && f->kind != ACCRUE_FAULT_UNREADABLE)
        return ACCRUE_OK;
    ACR_TRY(need_folder(sweep, err));
    if (acr_states_exist(sweep->states_dir, f->row, NULL, &now)) {
        now.kind = 0;
        one.data_alone = false;
        if (f->kind == ACCRUE_FAULT_UNREADABLE)
            ACR_TRY(acr_sweep_rows(&one, &f->row, 1, take_fault, &now, err));
    }
    ACR_TRY(need_folder(sweep, err));
    if (now.kind && !(now.kind == ACCRUE_FAULT_MISSING && sweep->makes_missing))
        *f = now;
    else
        f->kind = 0;

cleanup:
    return st;
}

accrue_status acr_epochs_judge(acr_epochs *e, const accrue_train_options *opt,
                               const acr_sweep *sweep, accrue_fault *f, int64_t epoch,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_policy policy = ACCRUE_POLICY_RAISE;

    if (e->bad[f->row])
        return ACCRUE_OK;
    ACR_TRY(look_again(f, sweep, err));
    if (!f->kind)
        return ACCRUE_OK;
    /* Who holds a lock is at work: the row is not at fault, and is not to be listed for good. */
    if (f->kind != ACCRUE_FAULT_LOCKED)
        policy = f->kind == ACCRUE_FAULT_MISSING ? opt->on_missing : opt->on_bad;
    if (policy == ACCRUE_POLICY_RAISE)
        st = acr_fail(err, acr_fault_status(f), "%s", f->message);
    else
        st = leave_out(e, f, epoch, err);

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

/* Rows from the first-th on. */
static accrue_status add_rows(text *t, const acr_epochs *e, int64_t first, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int64_t i = first; i < e->n_bad && !st; i++)
        st = add_line(t, &e->left_out[i], err);
    return st;
}

accrue_status acr_bad_rows_text(char **out, const acr_epochs *e, int64_t first, accrue_error *err)
{
    text t = {0};
    accrue_status st = add_rows(&t, e, first, err);

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
    ACR_TRY(acr_make_parents(path, err));
    st = acr_replace_file(path, temporary, t->s, t->used, err);

cleanup:
    acr_free(temporary);
    return st;
}

/* All of it or nothing: a line cut short would spoil the next one. */
static accrue_status append_list(const char *path, const text *t, accrue_error *err)
{
    accrue_status st = ACCRUE_OK, closed = ACCRUE_OK;
    acr_output o = {.path = path, .expected = t->used};
    off_t before = 0;

    o.fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (o.fd < 0 || (before = lseek(o.fd, 0, SEEK_END)) < 0)
        st = acr_fail_errno(err, errno, "cannot open", path);
    if (!st)
        st = acr_output_write(&o, t->s, t->used, err);
    if (st && o.fd >= 0)
        (void)!ftruncate(o.fd, before);
    closed = acr_output_close(&o, st ? NULL : err);
    return st ? st : closed;
}

static accrue_status list_bad_rows(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_epochs *e = &run->epochs;
    char *path = acr_sprintf("%s/%s", run->opt.save_path, file_name);
    bool whole = run->listed < 0;
    text t = {0};

    if (!path)
        return acr_enomem(err, strlen(run->opt.save_path), "a path");
    ACR_TRY(add_rows(&t, e, whole ? 0 : run->listed, err));
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

/* What is not listed now is listed the next time. */
accrue_status acr_bad_rows_list(accrue_run *run, accrue_error *err)
{
    accrue_error why = {0};
    accrue_status st = run->rank ? ACCRUE_OK : list_bad_rows(run, &why);

    if (st && st != ACCRUE_ENOMEM && run->opt.on_save_error == ACCRUE_POLICY_SKIP)
        return acr_notice(run, err, "rows left out are not listed, training goes on: %s",
                          why.message);
    return st ? acr_fail(err, st, "%s", why.message) : st;
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
        ACR_TRY(leave_out(e, &f, json_is_null(epoch) ? -1 : json_integer_value(epoch), err));

cleanup:
    json_decref(o);
    return st;
}

accrue_status acr_bad_rows_take(acr_epochs *e, const char *lines, size_t bytes, const char *path,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    /* A list that has too many rows is taken whole: they are what is to be told. */
    for (const char *p = lines, *end = p + bytes; p < end && st != ACCRUE_ENOMEM;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        accrue_status one = ACCRUE_OK;
        if (!stop)
            stop = end;
        one = read_line(e, p, (size_t)(stop - p), path, st ? NULL : err);
        st = st ? st : one;
        p = stop + 1;
    }
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
    if (map.bytes)
        ACR_TRY(acr_bad_rows_take(e, (const char *)map.data, map.bytes, path, err));

cleanup:
    acr_map_close(&map);
    acr_free(path);
    return st;
}

/* Telling --------------------------------------------------------------------------------- */

static accrue_status tell_row(accrue_run *run, const acr_bad_row *b, accrue_error *err)
{
    run->told++;
    if (run->told <= TOLD)
        return acr_notice(run, err, "left out: %s", b->message);
    if (run->told == TOLD + 1)
        return acr_notice(run, err, "further rows that are left out are listed in %s/%s",
                          run->opt.save_path, file_name);
    return ACCRUE_OK;
}

static accrue_status tell_made(accrue_run *run, accrue_error *err)
{
    const acr_epochs *e = &run->epochs;

    if (!e->made)
        return ACCRUE_OK;
    return acr_notice(run, err,
                      "%lld of %lld rows have no hidden states in %s; the verifier makes them "
                      "whenever they are used",
                      (long long)e->made, (long long)e->n_rows, run->setup.states_dir);
}

static accrue_status tell_missing(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_epochs *e = &run->epochs;
    char rows[200] = "";
    size_t used = 0;
    int64_t told = 0;

    if (!e->missing)
        return ACCRUE_OK;
    for (int64_t i = 0; i < e->n_bad; i++) {
        const acr_bad_row *b = &e->left_out[i];
        if (b->kind != ACCRUE_FAULT_MISSING)
            continue;
        if (used < 150)
            used += (size_t)snprintf(rows + used, sizeof rows - used, "%s%lld", used ? ", " : "",
                                     (long long)b->row);
        if (run->opt.on_missing == ACCRUE_POLICY_WARN && told++ < TOLD)
            ACR_TRY(acr_notice(run, err, "left out: %s", b->message));
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

    ACR_TRY(tell_made(run, err));
    ACR_TRY(tell_missing(run, err));
    for (int64_t i = 0; i < run->epochs.n_bad; i++)
        if (run->epochs.left_out[i].kind != ACCRUE_FAULT_MISSING)
            ACR_TRY(tell_row(run, &run->epochs.left_out[i], err));
    ACR_TRY(acr_bad_rows_list(run, err));

cleanup:
    return st;
}

/* While training --------------------------------------------------------------------------- */

typedef struct judge {
    accrue_run *run;
    acr_sweep sweep;
    int64_t passed; /* faults that were gone when looked at again */
} judge;

static accrue_status on_fault(const accrue_fault *f, void *ctx, accrue_error *err)
{
    judge *j = ctx;
    accrue_run *run = j->run;
    accrue_fault fault = *f;
    const int64_t known = run->epochs.n_bad;
    accrue_status st =
        acr_epochs_judge(&run->epochs, &run->opt, &j->sweep, &fault, run->epoch, err);

    if (!st && !fault.kind && j->passed++ == 0 && ++run->passed > PASSED)
        st = acr_fail(err, acr_fault_status(f), "%s", f->message);
    run->stopped_by_row = st && st != ACCRUE_ENOMEM;
    if (st)
        return st;
    if (!fault.kind && j->passed == 1)
        return acr_notice(run, err, "it can be read now: %s", f->message);
    if (run->epochs.n_bad > known)
        return tell_row(run, &run->epochs.left_out[known], err);
    return ACCRUE_OK;
}

/* A row that is just being written is left to the loader, which waits for it. */
static accrue_status on_other_fault(const accrue_fault *f, void *ctx, accrue_error *err)
{
    return f->kind == ACCRUE_FAULT_LOCKED ? ACCRUE_OK : on_fault(f, ctx, err);
}

/* What this rank makes of the fault that its loader met with, if any. */
static accrue_status judge_own(accrue_run *run, acr_epoch *e, int64_t from, int64_t to,
                               int64_t *dropped, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_fault *found = acr_loader_fault(run->loader);
    const accrue_fault fault = found ? *found : (accrue_fault){0};
    judge j = {.run = run,
               .sweep = {.data = run->setup.data,
                         .states_dir = run->setup.states_dir,
                         .shape = run->setup.shape,
                         .makes_missing = run->opt.on_missing == ACCRUE_POLICY_EXTRACT}};

    acr_loader_stop(run->loader); /* which reads `e` */
    if (!found)
        return ACCRUE_OK;
    ACR_TRY(on_fault(&fault, &j, err));
    acr_epochs_drop_bad(e, &run->epochs, dropped);
    ACR_TRY(acr_sweep_rows(&j.sweep, e->rows + e->begin[from], e->begin[to] - e->begin[from],
                           on_other_fault, &j, err));

cleanup:
    return st;
}

/* What each rank has left out from the known-th row on, on all of them. */
static accrue_status share_lists(char **out, accrue_run *run, int64_t known, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *own = NULL;

    ACR_TRY(acr_bad_rows_text(&own, &run->epochs, known, err));
    ACR_TRY(acr_agree_texts(out, run->comm, "the rows at fault", own, err));

cleanup:
    acr_free(own);
    return acr_comm_fail(run->comm, st, err);
}

/* Leaves out what other ranks have found, too; all of them may be more than any of them. */
static accrue_status take_others(accrue_run *run, int64_t known, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *all = NULL;
    int64_t told = run->epochs.n_bad;

    if (run->ranks == 1)
        return ACCRUE_OK;
    ACR_TRY(share_lists(&all, run, known, err));
    st = acr_bad_rows_take(&run->epochs, all, strlen(all), "the ranks' lists", err);
    for (; told < run->epochs.n_bad; told++) {
        accrue_status one = tell_row(run, &run->epochs.left_out[told], st ? NULL : err);
        st = st ? st : one;
    }
    st = acr_agree(run->comm, "rows at fault", st, err);

cleanup:
    acr_free(all);
    return st;
}

/* Whether that is for rows: not for want of memory, a lost rank or a callback that cancels. */
static bool is_for_rows(accrue_status st)
{
    return st && st != ACCRUE_ENOMEM && st != ACCRUE_ECOMM && st != ACCRUE_ECANCELED;
}

accrue_status acr_run_leave_out(accrue_run *run, acr_epoch *e, int64_t from, int64_t to,
                                int64_t *dropped, accrue_error *err)
{
    accrue_status st = ACCRUE_OK, taken = ACCRUE_OK, listed = ACCRUE_OK;
    const int64_t known = run->epochs.n_bad;
    accrue_error why = {0}, other = {0};

    st = acr_agree(run->comm, "rows at fault", judge_own(run, e, from, to, dropped, &why), &why);
    /* Also where that ends the run: what each has found is in the list. */
    taken = take_others(run, known, st ? &other : &why);
    st = st ? st : taken;
    run->agreed = st && run->ranks > 1;
    if (run->agreed)
        run->stopped_by_row = is_for_rows(st);
    acr_epochs_drop_bad(e, &run->epochs, dropped);
    if (st)
        acr_fail(err, st, "%s", why.message);
    if (run->listed >= 0) { /* a run that writes nothing else lists nothing */
        listed = acr_bad_rows_list(run, &why);
        if (listed && !st)
            st = acr_fail(err, listed, "%s", why.message);
    }
    return st;
}
