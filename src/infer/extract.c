/* extract.c - accrue_extract: hidden states of a whole data set, as files beside it.
 *
 * What is finished is never made again, and nothing half-written has a row's name: files are
 * written under another one and renamed. */
#include "infer/infer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { HEADER = 512 /* bytes of a file beside its tensors, at most */ };

static const char suffix[] = ".tmp"; /* of a file's name until it is whole */

typedef struct extraction {
    const accrue_extract_options *opt;
    accrue_extract_report *report;
    accrue_progress_cb cb;
    void *payload;
    double started;

    char *dir;
    bool is_new;  /* the folder */
    size_t there; /* bytes of its path whose folders were there */
    int fd;       /* of it, locked */
    bool has_settings;
    bool wrote_settings;
    acr_dataset *data;
    acr_batch_shape shape;
    acr_fingerprint fingerprint; /* the verifier's */
    int aux[ACR_MAX_AUX];
    int64_t longest;
    int64_t *rows; /* [n] to be made */
    int64_t n;
    acr_verifier *verifier;
    acr_extractor *extractor;
} extraction;

void accrue_extract_options_init(accrue_extract_options *opt, size_t struct_size)
{
    const accrue_extract_options d = {
        .struct_size = struct_size, .data_path = "./output", .compute = ACCRUE_BF16};

    if (struct_size > sizeof d)
        memset(opt, 0, struct_size);
    memcpy(opt, &d, struct_size < sizeof d ? struct_size : sizeof d);
}

static accrue_status check_options(const accrue_extract_options *opt, accrue_error *err)
{
    if (opt->struct_size != sizeof *opt)
        return acr_fail(err, ACCRUE_EINVAL, "options of %zu bytes, %zu expected", opt->struct_size,
                        sizeof *opt);
    if (!opt->verifier || !*opt->verifier)
        return acr_fail(err, ACCRUE_EINVAL, "--verifier-name-or-path: a value expected");
    if (!opt->data_path || !*opt->data_path)
        return acr_fail(err, ACCRUE_EINVAL, "--data-path: a value expected");
    if (opt->compute != ACCRUE_BF16 && opt->compute != ACCRUE_F32 && opt->compute != ACCRUE_F64)
        return acr_fail(err, ACCRUE_EINVAL, "--hidden-states-dtype: %d", (int)opt->compute);
    return ACCRUE_OK;
}

/* Sizes and layers from the configuration alone: what is wrong with them, or with the disk, shows
 * before the weights are read. */
static accrue_status read_shape(extraction *x, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_pretrained *p = NULL;
    char name[PATH_MAX + 32];
    acr_fields r = {.name = name, .err = err};
    accrue_train_options t = {.verifier = x->opt->verifier,
                              .target_layer_ids = x->opt->target_layer_ids,
                              .n_target_layer_ids = x->opt->n_target_layer_ids};

    ACR_TRY(acr_pretrained_open(&p, x->opt->verifier, err));
    ACR_TRY(acr_target_layer_ids(x->aux, &x->shape.n_aux, &t, acr_pretrained_config(p), err));
    acr_pretrained_place(name, sizeof name, p, "config.json");
    r.object = acr_verifier_config(acr_pretrained_config(p));
    x->shape.hidden_size = acr_field_int(&r, "hidden_size", 0, 1, ACR_MAX_SIZE);
    x->shape.vocab_size = acr_field_int(&r, "vocab_size", 0, 1, ACR_MAX_SIZE);
    st = r.status;

cleanup:
    acr_pretrained_close(p);
    return st;
}

/* Of a row that cannot be used nothing is made: it is to be put right first. */
static accrue_status check_rows(extraction *x, accrue_error *err)
{
    const int64_t n = acr_dataset_rows(x->data);
    accrue_fault f;

    for (int64_t row = 0; row < n; row++) {
        int rule = 0;
        accrue_status st = acr_dataset_fault(&f, &rule, x->data, row, x->shape.vocab_size);
        const int64_t tokens = acr_dataset_tokens(x->data, row);
        if (st)
            return acr_fail(err, st, "%s", f.message);
        x->longest = tokens > x->longest ? tokens : x->longest;
    }
    x->report->rows = n;
    return ACCRUE_OK;
}

/* The folder ------------------------------------------------------------------------------- */

static bool is_temporary(const char *name)
{
    const size_t n = strlen(name), end = sizeof suffix - 1;

    return (strncmp(name, "hs_", 3) == 0 || strcmp(name, ACR_STATES_SETTINGS ".tmp") == 0) &&
           n > end && strcmp(name + n - end, suffix) == 0;
}

/* What a killed call has left; nobody else is at work here. */
static void remove_temporaries(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *entry = NULL;

    while (d && (entry = readdir(d)) != NULL)
        if (is_temporary(entry->d_name))
            unlinkat(dirfd(d), entry->d_name, 0);
    if (d)
        closedir(d);
}

static accrue_status open_folder(extraction *x, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    x->dir = x->opt->hidden_states_path ? acr_strdup(x->opt->hidden_states_path)
                                        : acr_sprintf("%s/hidden_states", x->opt->data_path);
    if (!x->dir)
        return acr_enomem(err, strlen(x->opt->data_path), "a path");
    x->there = acr_parents_there(x->dir);
    ACR_TRY(acr_make_parents(x->dir, err));
    x->is_new = mkdir(x->dir, 0777) == 0;
    if (!x->is_new && errno != EEXIST)
        return acr_fail_errno(err, errno, "cannot create", x->dir);
    x->fd = open(x->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (x->fd < 0)
        return acr_fail_errno(err, errno, "cannot open", x->dir);
    if (flock(x->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return acr_fail(err, ACCRUE_EIO, "%s: another extraction is at work in this folder",
                        x->dir);
    remove_temporaries(x->dir);

cleanup:
    return st;
}

/* States tell nothing of where they come from: what they are made with is written beside the first.
 * Files without it are somebody else's, and nothing can be said of them. */
static accrue_status write_settings(extraction *x, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", x->dir, ACR_STATES_SETTINGS);
    json_t *settings = NULL;

    if (!path)
        return acr_enomem(err, strlen(x->dir), "a path");
    ACR_TRY(acr_states_settings(&settings, &x->fingerprint, x->aux, x->shape.n_aux,
                                &x->opt->compute, err));
    ACR_TRY(acr_settings_write(path, settings, err));
    x->has_settings = x->wrote_settings = true;

cleanup:
    json_decref(settings);
    acr_free(path);
    return st;
}

/* After a failure: settings without a row, and folders that hold nothing. */
static void tidy(const extraction *x)
{
    if (x->wrote_settings && !x->report->made)
        unlinkat(x->fd, ACR_STATES_SETTINGS, 0);
    if (x->is_new)
        rmdir(x->dir);
    if (x->dir)
        acr_remove_parents(x->dir, x->there);
}

/* Whether the row's file is there and is this row's, by all but its numbers. */
static accrue_status look_at_row(extraction *x, acr_states *s, int64_t row, bool *whole,
                                 accrue_error *err)
{
    accrue_fault f = {0};
    acr_row r = {0};
    int64_t mask_tokens = 0;
    accrue_status st = ACCRUE_OK;

    *whole = false;
    if (!acr_states_exist(x->dir, row, NULL, &f) && f.kind == ACCRUE_FAULT_MISSING)
        return ACCRUE_OK;
    acr_dataset_raw_row(&r, &mask_tokens, x->data, row);
    st = acr_states_open(s, x->dir, row, &r, &x->shape, NULL, &f);
    acr_states_close(s);
    if (st && (f.kind == 0 || f.kind == ACCRUE_FAULT_LOCKED))
        return acr_fail(err, st, "%s", f.message);
    *whole = !st;
    x->report->broken += st != ACCRUE_OK;
    return ACCRUE_OK;
}

static accrue_status find_missing(extraction *x, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_states s = {0};

    x->rows = acr_calloc((size_t)x->report->rows + 1, sizeof *x->rows);
    if (!x->rows)
        return acr_enomem(err, (size_t)x->report->rows * sizeof *x->rows, "the rows to make");
    for (int64_t row = 0; row < x->report->rows; row++) {
        bool whole = false;
        ACR_TRY(look_at_row(x, &s, row, &whole, err));
        if (!whole)
            x->rows[x->n++] = row;
    }
    x->report->found = x->report->rows - x->n;

cleanup:
    acr_states_free(&s);
    return st;
}

/* Room ------------------------------------------------------------------------------------- */

static int64_t states_bytes(const extraction *x, int64_t row)
{
    return acr_dataset_tokens(x->data, row) * (x->shape.n_aux + 1) * x->shape.hidden_size * 2;
}

static int64_t file_bytes(const extraction *x, int64_t row)
{
    return HEADER + 8 * acr_dataset_tokens(x->data, row) + states_bytes(x, row);
}

/* A disk that is full to the last block fails everybody who uses it: a part stays free. */
static accrue_status check_room(extraction *x, accrue_error *err)
{
    struct statvfs s;
    int64_t block = 0, reserve = 0;

    if (statvfs(x->dir, &s) != 0)
        return acr_fail_errno(err, errno, "cannot ask for the room on the disk of", x->dir);
    block = (int64_t)(s.f_frsize ? s.f_frsize : 1);
    for (int64_t i = 0; i < x->n; i++)
        x->report->needed_bytes += (file_bytes(x, x->rows[i]) + block - 1) / block * block;
    x->report->free_bytes = (int64_t)s.f_bavail * block;
    reserve = x->report->needed_bytes / 100 + (1 << 20);
    if (x->n && x->report->needed_bytes + reserve > x->report->free_bytes)
        return acr_fail(err, ACCRUE_ENOSPACE,
                        "%s: no room for the hidden states of %lld rows: %lld bytes and %lld to "
                        "spare needed, %lld free",
                        x->dir, (long long)x->n, (long long)x->report->needed_bytes,
                        (long long)reserve, (long long)x->report->free_bytes);
    if (s.f_files && (int64_t)s.f_favail < x->n)
        return acr_fail(err, ACCRUE_ENOSPACE,
                        "%s: no room for %lld files more, the disk can hold %lld", x->dir,
                        (long long)x->n, (long long)s.f_favail);
    return ACCRUE_OK;
}

/* Making ----------------------------------------------------------------------------------- */

static accrue_status tell(extraction *x, accrue_error *err)
{
    accrue_extract_report *r = x->report;
    const accrue_progress p = {.unit = "rows",
                               .done = r->found + r->made,
                               .total = r->rows,
                               .found = r->found,
                               .tokens = r->tokens,
                               .bytes = r->bytes,
                               .seconds = acr_seconds() - x->started,
                               .expected_bytes = r->needed_bytes,
                               .free_bytes = r->free_bytes};

    r->seconds = p.seconds;
    if (x->cb && x->cb(&p, x->payload))
        return acr_fail(err, ACCRUE_ECANCELED, "stopped with %lld of %lld rows done",
                        (long long)p.done, (long long)p.total);
    return ACCRUE_OK;
}

static accrue_status write_row(const extraction *x, int64_t row, const acr_row *r,
                               const void *states, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/hs_%lld.safetensors", x->dir, (long long)row);
    char *temporary = acr_sprintf("%s/hs_%lld.safetensors%s", x->dir, (long long)row, suffix);
    const acr_tensor tensors[] = {
        {"token_ids", ACR_DTYPE_I64, 1, {r->tokens}, r->input_ids, 8 * (size_t)r->tokens},
        {"hidden_states",
         ACR_DTYPE_BF16,
         3,
         {r->tokens, x->shape.n_aux + 1, x->shape.hidden_size},
         states,
         (size_t)states_bytes(x, row)}};

    if (!path || !temporary) {
        st = acr_enomem(err, strlen(x->dir), "a path");
        goto cleanup;
    }
    ACR_TRY(acr_safetensors_write(temporary, tensors, ACR_COUNT(tensors), NULL, NULL, err));
    if (rename(temporary, path) != 0)
        st = acr_fail_errno(err, errno, "cannot rename a file to this name", path);

cleanup:
    if (st && temporary)
        unlink(temporary);
    acr_free(path);
    acr_free(temporary);
    return st;
}

/* How many of the rows from the i-th on go forward together. */
static int group_size(const extraction *x, int64_t i)
{
    int64_t tokens = 0;
    int n = 0;

    for (; i + n < x->n && n < ACR_EXTRACT_ROWS; n++) {
        tokens += acr_dataset_tokens(x->data, x->rows[i + n]);
        if (n && tokens > ACR_EXTRACT_TOKENS)
            break;
    }
    return n;
}

static accrue_status make_group(extraction *x, int64_t first, int n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_row rows[ACR_EXTRACT_ROWS];
    const void *states[ACR_EXTRACT_ROWS];
    int64_t mask_tokens = 0;

    for (int i = 0; i < n; i++)
        acr_dataset_raw_row(&rows[i], &mask_tokens, x->data, x->rows[first + i]);
    ACR_TRY(acr_extractor_rows(states, x->extractor, rows, n, err));
    for (int i = 0; i < n; i++) {
        const int64_t row = x->rows[first + i], bytes = states_bytes(x, row);
        if (acr_find_nonfinite(ACR_DTYPE_BF16, states[i], bytes / 2) >= 0) {
            st = acr_fail(err, ACCRUE_ENUMERIC,
                          "%s: row %lld: a hidden state is NaN or infinite, finite ones expected",
                          x->opt->verifier, (long long)row);
            goto cleanup;
        }
        if (!x->has_settings && !x->report->found)
            ACR_TRY(write_settings(x, err));
        ACR_TRY(write_row(x, row, &rows[i], states[i], err));
        x->report->made++;
        x->report->tokens += rows[i].tokens;
        x->report->bytes += bytes + 8 * rows[i].tokens;
    }

cleanup:
    return st;
}

static accrue_status make_all(extraction *x, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t positions = x->longest ? x->longest : 1;

    ACR_TRY(tell(x, err));
    if (!x->n)
        return ACCRUE_OK;
    ACR_TRY(acr_verifier_open(&x->verifier, x->opt->verifier, x->opt->compute, positions, err));
    ACR_TRY(acr_dataset_check_positions(x->data, acr_verifier_describe(x->verifier)->max_positions,
                                        err));
    ACR_TRY(
        acr_extractor_create(&x->extractor, x->verifier, x->aux, x->shape.n_aux, positions, err));
    x->started = acr_seconds(); /* for the rate of what is made from here on */
    for (int64_t i = 0, n = 0; i < x->n; i += n) {
        n = group_size(x, i);
        ACR_TRY(make_group(x, i, (int)n, err));
        ACR_TRY(tell(x, err));
    }

cleanup:
    return st;
}

accrue_status accrue_extract(accrue_extract_report *out, const accrue_extract_options *opt,
                             accrue_progress_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    extraction x = {.opt = opt, .report = out, .cb = cb, .payload = payload, .fd = -1};

    memset(out, 0, sizeof *out);
    ACR_TRY(check_options(opt, err));
    x.started = acr_seconds();
    x.fingerprint.path = opt->verifier;
    ACR_TRY(acr_dataset_open(&x.data, opt->data_path, err));
    ACR_TRY(read_shape(&x, err));
    ACR_TRY(check_rows(&x, err));
    ACR_TRY(open_folder(&x, err));
    ACR_TRY(acr_states_settings_check(&x.has_settings, x.dir, &x.fingerprint, x.aux, x.shape.n_aux,
                                      &opt->compute, err));
    ACR_TRY(find_missing(&x, err));
    ACR_TRY(check_room(&x, err));
    ACR_TRY(make_all(&x, err));

cleanup:
    acr_extractor_free(x.extractor);
    acr_verifier_free(x.verifier);
    acr_dataset_close(x.data);
    acr_free(x.rows);
    if (st)
        tidy(&x);
    acr_free(x.dir);
    if (x.fd >= 0)
        close(x.fd); /* which unlocks the folder */
    return st;
}
