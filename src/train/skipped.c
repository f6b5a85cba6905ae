/* skipped.c - the rows that a run leaves out as bad: which, why, how many it bears, and the list of
 * them in skipped_samples.jsonl.
 *
 * Packing never hears of them, so that the order of an epoch and the place of every other row are
 * the same whenever a row is found to be bad.  A checkpoint carries the list, and a run that goes
 * on leaves out what the one before did. */
#include "train/train.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOLD = 20, MAX_LIST = 1 << 30 };

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
    acr_bad_row b = {.row = f->row, .epoch = epoch};
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

static json_t *row_json(const acr_bad_row *b)
{
    return json_pack("{s:I, s:s, s:s, s:o}", "row", (json_int_t)b->row, "file", b->file, "message",
                     b->message, "epoch",
                     b->epoch < 0 ? json_null() : json_integer((json_int_t)b->epoch));
}

accrue_status acr_bad_rows_text(char **out, const acr_epochs *e, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    size_t used = 0, capacity = 0;
    char *text = NULL;

    *out = NULL;
    for (int64_t i = 0; i < e->n_bad; i++) {
        json_t *row = row_json(&e->left_out[i]);
        char *line = row ? json_dumps(row, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
        size_t n = line ? strlen(line) : 0;
        json_decref(row);
        if (line && used + n + 2 > capacity) {
            char *more = acr_realloc(text, capacity = 2 * (used + n + 2));
            text = more ? more : text;
            capacity = more ? capacity : 0;
        }
        if (!line || !capacity) {
            free(line);
            st = acr_enomem(err, used + n, file_name);
            goto cleanup;
        }
        memcpy(text + used, line, n);
        text[used + n] = '\n';
        text[used += n + 1] = '\0';
        free(line);
    }
    *out = text;
    text = NULL;

cleanup:
    acr_free(text);
    return st;
}

/* Written whole, beside itself and then renamed: a list cut short would say that rows were used. */
accrue_status acr_bad_rows_list(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", run->opt.save_path, file_name);
    char *temporary = acr_sprintf("%s/.%s.tmp-%ld", run->opt.save_path, file_name, (long)getpid());
    char *text = NULL;

    if (!path || !temporary) {
        st = acr_enomem(err, strlen(run->opt.save_path), "a path");
        goto cleanup;
    }
    ACR_TRY(acr_bad_rows_text(&text, &run->epochs, err));
    if (!text) {
        if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
            st = acr_fail_errno(err, errno, "cannot remove", path);
        goto cleanup;
    }
    ACR_TRY(acr_checkpoint_parents(path, err));
    ACR_TRY(acr_write_file(temporary, text, strlen(text), true, err));
    if (rename(temporary, path) != 0)
        st = acr_fail_errno(err, errno, "cannot rename a list to this name", path);

cleanup:
    if (st && temporary)
        unlink(temporary);
    acr_free(text);
    acr_free(temporary);
    acr_free(path);
    return st;
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
    if (!json_is_integer(row) || f.row < 0 || f.row >= e->n_rows ||
        !json_is_string(json_object_get(o, "file")) ||
        !json_is_string(json_object_get(o, "message")) ||
        (!json_is_null(epoch) && !json_is_integer(epoch))) {
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: not a line of row, file, message and epoch: %.*s",
                      path, n < 200 ? (int)n : 200, line);
        goto cleanup;
    }
    snprintf(f.file, sizeof f.file, "%s", json_string_value(json_object_get(o, "file")));
    snprintf(f.message, sizeof f.message, "%s", json_string_value(json_object_get(o, "message")));
    ACR_TRY(acr_epochs_leave_out(e, &f, json_is_null(epoch) ? -1 : json_integer_value(epoch), err));

cleanup:
    json_decref(o);
    return st;
}

/* What this run has found already comes behind what the checkpoint says. */
accrue_status acr_bad_rows_read(acr_epochs *e, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, file_name);
    acr_bad_row *found = e->left_out;
    int64_t n_found = e->n_bad;
    acr_map map = {0};

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    e->left_out = NULL;
    e->n_bad = e->bad_capacity = 0;
    memset(e->bad, 0, (size_t)e->n_rows * sizeof *e->bad);
    if (acr_is_file(path))
        ACR_TRY(acr_map_open(&map, path, err));
    for (const char *p = (const char *)map.data, *end = p + map.bytes; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop)
            stop = end;
        ACR_TRY(read_line(e, p, (size_t)(stop - p), path, err));
        p = stop + 1;
    }
    for (int64_t i = 0; i < n_found; i++) {
        accrue_fault f = {.row = found[i].row, .count = 1};
        snprintf(f.file, sizeof f.file, "%s", found[i].file);
        snprintf(f.message, sizeof f.message, "%s", found[i].message);
        ACR_TRY(acr_epochs_leave_out(e, &f, found[i].epoch, err));
    }

cleanup:
    for (int64_t i = 0; i < n_found; i++) {
        acr_free(found[i].file);
        acr_free(found[i].message);
    }
    acr_free(found);
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

static accrue_status on_fault(const accrue_fault *f, void *ctx, accrue_error *err)
{
    accrue_run *run = ctx;
    accrue_status st = ACCRUE_OK;
    int64_t known = run->epochs.n_bad;

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
    acr_sweep sweep = {.data = run->setup.data,
                       .states_dir = run->setup.states_dir,
                       .shape = run->setup.shape,
                       .lock_timeout = run->opt.lock_timeout};

    acr_loader_stop(run->loader); /* which reads `e` */
    ACR_TRY(on_fault(&fault, run, err));
    acr_epochs_drop_bad(e, &run->epochs, dropped);
    ACR_TRY(acr_sweep_rows(&sweep, e->rows + e->begin[from], e->begin[to] - e->begin[from],
                           on_fault, run, err));
    acr_epochs_drop_bad(e, &run->epochs, dropped);
    ACR_TRY(acr_bad_rows_list(run, err));

cleanup:
    return st;
}

bool acr_run_has_bad_row(const accrue_run *run)
{
    return run->opt.on_bad == ACCRUE_POLICY_SKIP && acr_loader_fault(run->loader);
}
