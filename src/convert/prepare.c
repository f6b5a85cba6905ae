/* prepare.c - accrue_prepare: files of lines into a data set.
 *
 * Lines are taken in their new order, some at a time, and made into rows on all threads.  Rows wait
 * in a file beside the data set, as there are as many of them as will be when all lines are done;
 * then they are written in their own new order.  In memory are 16 bytes a line and a row. */
#include "convert/prepare_parts.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 256, MAX_CONFIG = 64 << 20 };

void accrue_prepare_options_init(accrue_prepare_options *opt, size_t struct_size)
{
    const accrue_prepare_options init = {.struct_size = struct_size,
                                         .output = "./output",
                                         .seq_length = 8192,
                                         .on_bad = ACCRUE_POLICY_RAISE,
                                         .max_bad = -1};

    memset(opt, 0, struct_size);
    memcpy(opt, &init, struct_size < sizeof init ? struct_size : sizeof init);
}

static accrue_status check_options(const accrue_prepare_options *o, accrue_error *err)
{
    if (o->struct_size != sizeof *o)
        return acr_fail(err, ACCRUE_EINVAL,
                        "struct_size: %zu, %zu expected; call accrue_prepare_options_init",
                        o->struct_size, sizeof *o);
    if (o->n_files < 1 || !o->files)
        return acr_fail(err, ACCRUE_EINVAL, "files: none given");
    if (!o->verifier || !*o->verifier)
        return acr_fail(err, ACCRUE_EINVAL, "verifier: a folder expected");
    if (!o->output || !*o->output)
        return acr_fail(err, ACCRUE_EINVAL, "output: a folder expected");
    if (o->seq_length < 1 || o->seq_length > 1 << 30)
        return acr_fail(err, ACCRUE_EINVAL, "seq_length: %lld, from 1 to %d expected",
                        (long long)o->seq_length, 1 << 30);
    if (o->max_samples < 0 || o->minimum_valid_tokens < 0 || o->draft_vocab_size < 0)
        return acr_fail(err, ACCRUE_EINVAL,
                        "max_samples, minimum_valid_tokens, draft_vocab_size: %lld, %lld, %lld; "
                        "none may be negative",
                        (long long)o->max_samples, (long long)o->minimum_valid_tokens,
                        (long long)o->draft_vocab_size);
    if (o->on_bad != ACCRUE_POLICY_RAISE && o->on_bad != ACCRUE_POLICY_SKIP)
        return acr_fail(err, ACCRUE_EINVAL, "on_bad: %d, RAISE or SKIP expected", (int)o->on_bad);
    return ACCRUE_OK;
}

/* The verifier ------------------------------------------------------------------------------ */

/* The model's own, which maps must have; else what the tokenizer knows. */
static accrue_status find_vocabulary(acr_preparation *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/config.json", p->opt->verifier);
    json_t *config = NULL;
    const json_t *size = NULL;

    if (!path)
        return acr_enomem(err, strlen(p->opt->verifier), "a path");
    if (!acr_exists(path) && p->tokenizer && !p->opt->draft_vocab_size) {
        p->maker.vocab_size = acr_tokenizer_vocab_size(p->tokenizer);
        goto cleanup;
    }
    ACR_TRY(acr_json_load(&config, path, MAX_CONFIG, err));
    size = json_object_get(acr_verifier_config(config), "vocab_size");
    if (!json_is_integer(size) || json_integer_value(size) < 1 ||
        json_integer_value(size) > INT32_MAX)
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: vocab_size is no integer from 1 to %d", path,
                      INT32_MAX);
    else
        p->maker.vocab_size = json_integer_value(size);

cleanup:
    acr_free(path);
    json_decref(config);
    return st;
}

/* A tokenizer or template that cannot be used is told of by the first line that needs it: rows of
 * tokens do not. */
static accrue_status open_verifier(acr_preparation *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_row_maker *m = &p->maker;

    if (!acr_is_dir(p->opt->verifier))
        return acr_fail(err, ACCRUE_EINVAL, "verifier: %s is no folder", p->opt->verifier);
    m->seq_length = p->opt->seq_length;
    m->minimum_valid_tokens = p->opt->minimum_valid_tokens;
    if (acr_tokenizer_open(&p->tokenizer, p->opt->verifier, &m->no_tokenizer) == ACCRUE_ENOMEM)
        return acr_fail(err, ACCRUE_ENOMEM, "%s", m->no_tokenizer.message);
    m->tokenizer = p->tokenizer;
    if (p->tokenizer) {
        st = acr_chat_open(&p->chat, p->opt->verifier, p->tokenizer, &m->no_chat);
        if (st == ACCRUE_ENOMEM)
            return acr_fail(err, st, "%s", m->no_chat.message);
        m->chat = st ? NULL : &p->chat;
    }
    st = find_vocabulary(p, err);
    return st;
}

/* Lines ------------------------------------------------------------------------------------- */

typedef struct chunk {
    const acr_preparation *p;
    const acr_lines *file;
    const int64_t *order; /* of this chunk's lines */
    acr_line_rows rows[CHUNK];
    accrue_status status[CHUNK];
    accrue_error why[CHUNK];
} chunk;

static void make_rows(int64_t i, void *ctx)
{
    chunk *c = ctx;
    size_t bytes = 0;
    const char *text = acr_lines_text(c->file, c->order[i], &bytes);
    char *name =
        acr_sprintf("%s: line %lld", c->file->path, (long long)c->file->at[c->order[i]].number);

    if (name)
        c->status[i] = acr_line_rows_make(&c->rows[i], &c->p->maker, text, bytes, name, &c->why[i]);
    else
        c->status[i] = acr_enomem(&c->why[i], strlen(c->file->path), "a line's name");
    acr_free(name);
}

/* That no line can be made into rows is not the fault of one. */
static bool is_fault(const acr_preparation *p, accrue_status status, const accrue_error *why)
{
    return (status == ACCRUE_EFORMAT || status == ACCRUE_EMISMATCH) &&
           strcmp(why->message, p->maker.no_tokenizer.message) != 0 &&
           strcmp(why->message, p->maker.no_chat.message) != 0;
}

static accrue_status judge_bad(acr_preparation *p, const chunk *c, int i, accrue_error *err)
{
    json_t *entry = NULL;

    if (!is_fault(p, c->status[i], &c->why[i]) || p->opt->on_bad != ACCRUE_POLICY_SKIP)
        return acr_fail(err, c->status[i], "%s", c->why[i].message);
    if (++p->report->bad_lines > p->max_bad)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "--max-bad %lld%s: %lld lines of %lld are left out, the last one for: %s",
                        (long long)p->max_bad, p->opt->max_bad < 0 ? " (1% of the lines)" : "",
                        (long long)p->report->bad_lines, (long long)p->report->lines,
                        c->why[i].message);
    entry = json_pack("{s:o, s:I, s:o}", "file", acr_json_string(c->file->path), "line",
                      (json_int_t)c->file->at[c->order[i]].number, "message",
                      acr_json_string(c->why[i].message));
    if (json_array_append_new(p->skipped, entry))
        return acr_enomem(err, 0, "the list of bad lines");
    return ACCRUE_OK;
}

static int by_line(const void *a, const void *b)
{
    const json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "line"));
    const json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "line"));

    return (x > y) - (x < y);
}

/* Those of the last file, which are all from the first-th on, in the file's own order. */
static accrue_status sort_skipped(json_t *list, size_t first, accrue_error *err)
{
    const size_t n = json_array_size(list) - first;
    json_t **entries = n > 1 ? acr_calloc(n, sizeof *entries) : NULL;

    if (n < 2)
        return ACCRUE_OK;
    if (!entries)
        return acr_enomem(err, n * sizeof *entries, "the list of bad lines");
    for (size_t i = 0; i < n; i++)
        entries[i] = json_incref(json_array_get(list, first + i));
    qsort(entries, n, sizeof(json_t *), by_line);
    for (size_t i = 0; i < n; i++)
        json_array_set_new(list, first + i, entries[i]);
    acr_free(entries);
    return ACCRUE_OK;
}

static accrue_status keep_rows(acr_preparation *p, const acr_line_rows *r, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_prepare_report *report = p->report;

    report->cut_rows += r->cut;
    report->unsupervised_rows += r->unsupervised;
    report->short_rows += r->too_short;
    report->unanswered += r->unanswered;
    if (r->unknown_roles && !report->unknown_roles)
        memcpy(report->unknown_role, r->unknown_role, sizeof report->unknown_role);
    report->unknown_roles += r->unknown_roles;
    if (p->n_rows + r->n > p->row_capacity) {
        int64_t more = 2 * (p->n_rows + r->n + 512);
        acr_waiting_row *moved = acr_realloc(p->rows, (size_t)more * sizeof *moved);
        if (!moved)
            return acr_enomem(err, (size_t)more * sizeof *moved, "the places of rows");
        p->rows = moved;
        p->row_capacity = more;
    }
    ACR_TRY(acr_output_write(&p->rows_out, r->tokens, (size_t)r->n_tokens * 4, err));
    for (int64_t i = 0; i < r->n; i++) {
        p->rows[p->n_rows++] = (acr_waiting_row){p->waiting, r->lengths[i]};
        p->waiting += r->lengths[i];
    }

cleanup:
    return st;
}

static accrue_status tell(const acr_preparation *p, const char *unit, int64_t done, int64_t total,
                          accrue_error *err)
{
    accrue_progress now = {.unit = unit,
                           .done = done,
                           .total = total,
                           .tokens = p->waiting,
                           .bytes = (int64_t)p->rows_out.written,
                           .seconds = acr_seconds() - p->begun};

    if (p->cb && p->cb(&now, p->payload))
        return acr_fail(err, ACCRUE_ECANCELED, "%s: canceled; nothing is left of it",
                        p->opt->output);
    return ACCRUE_OK;
}

/* How many lines of a file are taken: of many more than will be wanted, the first in order. */
static int64_t lines_of(const acr_preparation *p, const acr_lines *file)
{
    int64_t most = p->opt->max_samples;

    return most && most < INT64_MAX / 3 && file->n > 3 * most ? 3 * most : file->n;
}

static accrue_status take_file(acr_preparation *p, chunk *c, const acr_lines *file,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t *order = NULL, n = lines_of(p, file);
    const size_t skipped = json_array_size(p->skipped);

    ACR_TRY(acr_numpy_permutation(&order, p->opt->seed, file->n, err));
    c->file = file;
    for (int64_t at = 0; at < n; at += CHUNK) {
        int now = n - at < CHUNK ? (int)(n - at) : CHUNK;
        c->order = order + at;
        acr_parallel(now, make_rows, c);
        for (int i = 0; i < now; i++)
            ACR_TRY(c->status[i] ? judge_bad(p, c, i, err) : keep_rows(p, &c->rows[i], err));
        p->taken += now;
        ACR_TRY(tell(p, "lines", p->taken, p->to_take, err));
    }
    ACR_TRY(sort_skipped(p->skipped, skipped, err));

cleanup:
    acr_free(order);
    return st;
}

static accrue_status take_lines(acr_preparation *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *first = NULL;
    chunk *c = acr_calloc(1, sizeof *c);

    if (!c)
        return acr_enomem(err, sizeof *c, "lines");
    c->p = p;
    p->rows_path = acr_sprintf("%s/rows.tmp", p->folder.temporary);
    p->skipped = json_array();
    if (!p->rows_path || !p->skipped) {
        st = acr_enomem(err, 0, "a path");
        goto cleanup;
    }
    ACR_TRY(acr_output_open(&p->rows_out, p->rows_path, 0, NULL, err));
    for (int i = 0; i < p->opt->n_files; i++)
        ACR_TRY(take_file(p, c, &p->files[i], err));
    ACR_TRY(acr_output_close(&p->rows_out, err));
    first = json_object_get(json_array_get(p->skipped, 0), "message");
    if (first)
        acr_text(p->report->first_bad, sizeof p->report->first_bad, json_string_value(first));

cleanup:
    for (int i = 0; i < CHUNK; i++)
        acr_line_rows_free(&c->rows[i]);
    acr_free(c);
    return st;
}

/* The data set ------------------------------------------------------------------------------ */

static accrue_status add_row(acr_preparation *p, acr_dataset_writer *w, const uint32_t *waiting,
                             const acr_waiting_row *row, int64_t *buffer, accrue_error *err)
{
    accrue_prepare_report *r = p->report;
    int64_t *ids = buffer, *mask = buffer + row->tokens;

    for (int64_t i = 0; i < row->tokens; i++) {
        uint32_t token = waiting[row->offset + i];
        ids[i] = (int64_t)(token & ~ACR_SUPERVISED);
        mask[i] = (token & ACR_SUPERVISED) != 0;
        p->counts[ids[i]] += mask[i];
        r->supervised_tokens += mask[i];
    }
    r->tokens += row->tokens;
    r->longest = row->tokens > r->longest ? row->tokens : r->longest;
    return acr_dataset_writer_add(w, &(acr_row){ids, mask, row->tokens}, err);
}

static accrue_status write_rows(acr_preparation *p, const int64_t *order, int64_t n,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_dataset_writer *w = NULL;
    acr_map map = {0};
    int64_t tokens = 0, longest = 0;
    int64_t *buffer = NULL;

    for (int64_t i = 0; i < n; i++) {
        tokens += p->rows[order[i]].tokens;
        longest = p->rows[order[i]].tokens > longest ? p->rows[order[i]].tokens : longest;
    }
    buffer = acr_calloc((size_t)longest + 1, 2 * sizeof *buffer);
    if (!buffer)
        return acr_enomem(err, (size_t)longest * 2 * sizeof *buffer, "a row");
    ACR_TRY(acr_map_open(&map, p->rows_path, err));
    ACR_TRY(acr_dataset_writer_open(&w, p->folder.temporary, n, tokens, err));
    for (int64_t i = 0; i < n; i++) {
        ACR_TRY(add_row(p, w, (const uint32_t *)(const void *)map.data, &p->rows[order[i]], buffer,
                        err));
        if (i % CHUNK == CHUNK - 1 || i == n - 1)
            ACR_TRY(tell(p, "rows", i + 1, n, err));
    }
    ACR_TRY(acr_dataset_writer_close(w, err));
    p->report->rows = n;
    p->report->files = acr_dataset_writer_files(w);
    p->report->bytes = acr_dataset_writer_bytes(w);

cleanup:
    acr_dataset_writer_free(w);
    acr_map_close(&map);
    acr_free(buffer);
    return st;
}

/* Of several files, the first and how many there are more. */
static accrue_status refuse_empty(const acr_preparation *p, accrue_error *err)
{
    const accrue_prepare_report *r = p->report;
    char more[40] = "";

    if (p->opt->n_files > 1)
        snprintf(more, sizeof more, " and %d more", p->opt->n_files - 1);
    return acr_fail(err, ACCRUE_EMISMATCH,
                    "%s%s: no row is left of %lld lines: %lld bad, %lld conversations without a "
                    "row, %lld rows without and %lld with too few supervised tokens",
                    p->opt->files[0], more, (long long)r->lines, (long long)r->bad_lines,
                    (long long)r->unanswered, (long long)r->unsupervised_rows,
                    (long long)r->short_rows);
}

static accrue_status write_dataset(acr_preparation *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t *order = NULL, most = p->opt->max_samples;
    int64_t n = most && p->n_rows > most ? most : p->n_rows;

    if (n == 0 && !p->opt->allow_empty_output)
        return refuse_empty(p, err);
    p->report->surplus_rows = p->n_rows - n;
    p->counts = acr_calloc((size_t)p->maker.vocab_size, sizeof *p->counts);
    if (!p->counts)
        return acr_enomem(err, (size_t)p->maker.vocab_size * sizeof *p->counts, "token counts");
    ACR_TRY(acr_numpy_permutation(&order, p->opt->seed, p->n_rows, err));
    ACR_TRY(write_rows(p, order, n, err));
    if (remove(p->rows_path) != 0)
        st = acr_fail(err, ACCRUE_EIO, "%s: cannot be removed", p->rows_path);

cleanup:
    acr_free(order);
    return st;
}

/* Interface --------------------------------------------------------------------------------- */

static accrue_status open_files(acr_preparation *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    p->files = acr_calloc((size_t)p->opt->n_files, sizeof *p->files);
    if (!p->files)
        return acr_enomem(err, (size_t)p->opt->n_files * sizeof *p->files, "files");
    for (int i = 0; i < p->opt->n_files; i++) {
        ACR_TRY(acr_lines_open(&p->files[i], p->opt->files[i], err));
        p->report->lines += p->files[i].n;
        p->to_take += lines_of(p, &p->files[i]);
    }
    p->max_bad = p->opt->max_bad;
    if (p->max_bad < 0)
        p->max_bad = p->report->lines < 100 ? 1 : p->report->lines / 100;

cleanup:
    return st;
}

static accrue_status run(acr_preparation *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool done = false;

    ACR_TRY(open_verifier(p, err));
    ACR_TRY(open_files(p, err));
    ACR_TRY(acr_prepared_describe(p, err));
    ACR_TRY(acr_prepared_find(&done, p, err));
    if (done)
        goto cleanup;
    ACR_TRY(acr_new_folder_make(&p->folder, p->opt->output, acr_prepared_files, 0, err));
    ACR_TRY(take_lines(p, err));
    ACR_TRY(write_dataset(p, err));
    ACR_TRY(acr_prepared_write(p, err));
    ACR_TRY(acr_new_folder_name(&p->folder, p->opt->overwrite, err));

cleanup:
    return st;
}

accrue_status accrue_prepare(accrue_prepare_report *out, const accrue_prepare_options *opt,
                             accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_preparation p = {.opt = opt, .cb = cb, .payload = payload, .report = out};

    memset(out, 0, sizeof *out);
    p.begun = acr_seconds();
    p.rows_out.fd = -1;
    ACR_TRY(check_options(opt, err));
    ACR_TRY(run(&p, err));
    out->seconds = acr_seconds() - p.begun;

cleanup:
    (void)acr_output_close(&p.rows_out, NULL);
    acr_new_folder_free(&p.folder);
    for (int i = 0; p.files && i < opt->n_files; i++)
        acr_lines_close(&p.files[i]);
    acr_free(p.files);
    acr_chat_free(&p.chat);
    acr_tokenizer_free(p.tokenizer);
    acr_free(p.rows_path);
    acr_free(p.rows);
    acr_free(p.counts);
    json_decref(p.made_from);
    json_decref(p.skipped);
    if (st)
        memset(out, 0, sizeof *out);
    return st;
}
