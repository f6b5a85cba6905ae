/* prepared.c - what accrue_prepare leaves beside the rows: prepare.json, by which the same data set
 * is known again, the vocabulary's files, and the list of faulty lines. */
#include "convert/prepare_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OWN = 1 << 20 };

const char *const acr_prepared_files[] = {
    "data-*-of-*.arrow", "dataset_info.json", "state.json",          "token_freq.pt", "d2t-*.npy",
    "t2d-*.npy",         "prepare.json",      "skipped_lines.jsonl", "rows.tmp",      NULL};

/* What it is made from ---------------------------------------------------------------------- */

static json_t *hash_json(uint64_t hash)
{
    char text[20];

    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return json_string(text);
}

static accrue_status add_hash(json_t *all, const char *dir, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, name);
    acr_map map = {0};

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    if (acr_exists(path)) {
        ACR_TRY(acr_map_open(&map, path, err));
        if (json_object_set_new(all, name, hash_json(acr_hash_bytes(map.data, map.bytes, 0))))
            st = acr_enomem(err, 0, path);
    }

cleanup:
    acr_map_close(&map);
    acr_free(path);
    return st;
}

/* Whatever decides what is written: contents, not names. */
accrue_status acr_prepared_describe(acr_preparation *p, accrue_error *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    accrue_status st = ACCRUE_OK;
    const accrue_prepare_options *o = p->opt;
    json_t *files = json_array(), *verifier = json_object();

    for (int i = 0; i < o->n_files; i++)
        json_array_append_new(files, hash_json(p->files[i].hash));
    for (int i = 0; verifier && i < ACR_COUNT(names); i++)
        ACR_TRY(add_hash(verifier, o->verifier, names[i], err));
    p->made_from = json_pack(
        "{s:i, s:O, s:O, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b}", "version", 1, "files",
        files, "verifier", verifier, "vocab_size", (json_int_t)p->maker.vocab_size, "seq_length",
        (json_int_t)o->seq_length, "max_samples", (json_int_t)o->max_samples,
        "minimum_valid_tokens", (json_int_t)o->minimum_valid_tokens, "seed", (json_int_t)o->seed,
        "draft_vocab_size", (json_int_t)o->draft_vocab_size, "token_freq", (int)!o->skip_token_freq,
        "skip_bad", (int)(o->on_bad == ACCRUE_POLICY_SKIP), "allow_empty_output",
        (int)o->allow_empty_output);
    if (!p->made_from || json_array_size(files) != (size_t)o->n_files)
        st = acr_enomem(err, 0, "prepare.json");

cleanup:
    json_decref(files);
    json_decref(verifier);
    return st;
}

/* Numbers of the report that prepare.json keeps. */
static const struct figure {
    const char *name;
    size_t at;
} figures[] = {
#define FIGURE(field)                                                                              \
    {                                                                                              \
#field, offsetof(accrue_prepare_report, field)                                             \
    }
    FIGURE(lines),
    FIGURE(rows),
    FIGURE(tokens),
    FIGURE(supervised_tokens),
    FIGURE(longest),
    FIGURE(cut_rows),
    FIGURE(bad_lines),
    FIGURE(unanswered),
    FIGURE(unsupervised_rows),
    FIGURE(short_rows),
    FIGURE(surplus_rows),
    FIGURE(files),
    FIGURE(bytes),
    FIGURE(distinct_tokens),
    FIGURE(unknown_roles),
#undef FIGURE
};

static json_t *report_json(const accrue_prepare_report *r)
{
    json_t *all = json_object();
    bool failed = false;

    for (int i = 0; all && i < ACR_COUNT(figures); i++) {
        int64_t value = 0;
        memcpy(&value, (const char *)r + figures[i].at, sizeof value);
        failed |= json_object_set_new(all, figures[i].name, json_integer(value)) != 0;
    }
    failed |= json_object_set_new(all, "unknown_role", acr_json_string(r->unknown_role)) != 0;
    failed |= json_object_set_new(all, "first_bad", acr_json_string(r->first_bad)) != 0;
    if (failed) {
        json_decref(all);
        return NULL;
    }
    return all;
}

static void read_report(accrue_prepare_report *r, const json_t *all)
{
    const char *role = json_string_value(json_object_get(all, "unknown_role"));
    const char *bad = json_string_value(json_object_get(all, "first_bad"));

    for (int i = 0; i < ACR_COUNT(figures); i++) {
        int64_t value = json_integer_value(json_object_get(all, figures[i].name));
        memcpy((char *)r + figures[i].at, &value, sizeof value);
    }
    acr_text(r->unknown_role, sizeof r->unknown_role, role ? role : "");
    acr_text(r->first_bad, sizeof r->first_bad, bad ? bad : "");
    r->found = true;
}

/* "seed is 0 there, 1 now" */
static accrue_status differ(const char *dir, const json_t *there, json_t *now, accrue_error *err)
{
    accrue_status st = ACCRUE_EMISMATCH;
    const char *key = NULL;
    json_t *value = NULL;
    char *a = NULL, *b = NULL;

    json_object_foreach(now, key, value)
    {
        json_t *other = json_object_get(there, key);
        if (json_equal(other, value))
            continue;
        a = other ? json_dumps(other, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        b = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        break;
    }
    acr_fail(err, st,
             "%s: a data set made from other files or with other options is there: %s is %s, now "
             "%s; --overwrite replaces it",
             dir, key ? key : "something", a ? a : "not known", b ? b : "not known");
    free(a);
    free(b);
    return st;
}

/* What becomes of a folder that is there; *done: it is the same data set. */
accrue_status acr_prepared_find(bool *done, acr_preparation *p, accrue_error *err)
{
    static const char *const nothing[] = {NULL};
    accrue_status st = ACCRUE_OK;
    const char *dir = p->opt->output;
    char *path = acr_sprintf("%s/prepare.json", dir);
    json_t *own = NULL;

    *done = false;
    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    if (!acr_exists(dir))
        goto cleanup;
    if (!acr_is_dir(dir)) {
        st = acr_fail(err, ACCRUE_EMISMATCH, "%s: it is there and no folder", dir);
        goto cleanup;
    }
    if (acr_exists(path)) {
        ACR_TRY(acr_json_load(&own, path, MAX_OWN, err));
        *done = json_equal(json_object_get(own, "made_from"), p->made_from);
        if (*done)
            read_report(p->report, json_object_get(own, "report"));
        else if (!p->opt->overwrite)
            st = differ(dir, json_object_get(own, "made_from"), p->made_from, err);
        else
            st = acr_new_folder_check(dir, acr_prepared_files, err);
        goto cleanup;
    }
    if (p->opt->overwrite)
        st = acr_new_folder_check(dir, acr_prepared_files, err);
    else if (acr_new_folder_check(dir, nothing, NULL))
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "%s: a folder with other contents is there; --overwrite replaces it where "
                      "they are a data set's alone",
                      dir);

cleanup:
    acr_free(path);
    json_decref(own);
    return st;
}

/* What goes with it ------------------------------------------------------------------------- */

static accrue_status write_maps(acr_preparation *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_vocab v = {0};
    char *path = acr_sprintf("%s/token_freq.pt", p->folder.temporary);

    for (int64_t id = 0; id < p->maker.vocab_size; id++)
        p->report->distinct_tokens += p->counts[id] > 0;
    if (!path) {
        st = acr_enomem(err, 0, "a path");
        goto cleanup;
    }
    if (!p->opt->skip_token_freq)
        ACR_TRY(acr_token_freq_write(path, p->counts, p->maker.vocab_size, err));
    if (p->opt->draft_vocab_size) {
        ACR_TRY(acr_vocab_build(&v, p->counts, p->maker.vocab_size, p->opt->draft_vocab_size, err));
        ACR_TRY(acr_vocab_write(&v, p->folder.temporary, err));
    }

cleanup:
    acr_vocab_free(&v);
    acr_free(path);
    return st;
}

/* One object a line. */
static accrue_status write_skipped(const acr_preparation *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *text = acr_strdup("");
    const json_t *entry = NULL;
    size_t i = 0, used = 0;

    json_array_foreach(p->skipped, i, entry)
    {
        char *line = json_dumps(entry, JSON_COMPACT);
        size_t n = line ? strlen(line) : 0;
        char *moved = line ? acr_realloc(text, used + n + 2) : NULL;
        if (moved) {
            text = moved;
            memcpy(text + used, line, n);
            memcpy(text + used + n, "\n", 2);
            used += n + 1;
        }
        free(line);
        if (!moved) {
            st = acr_enomem(err, used + n, "the list of bad lines");
            goto cleanup;
        }
    }
    if (used)
        ACR_TRY(acr_new_folder_text(&p->folder, "skipped_lines.jsonl", text, err));

cleanup:
    acr_free(text);
    return st;
}

static accrue_status write_own(acr_preparation *p, accrue_error *err)
{
    json_t *own =
        json_pack("{s:O, s:o}", "made_from", p->made_from, "report", report_json(p->report));
    accrue_status st = own ? acr_new_folder_json(&p->folder, "prepare.json", own, err)
                           : acr_enomem(err, 0, "prepare.json");

    json_decref(own);
    return st;
}

accrue_status acr_prepared_write(acr_preparation *p, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(write_maps(p, err));
    ACR_TRY(write_skipped(p, err));
    ACR_TRY(write_own(p, err));

cleanup:
    return st;
}
