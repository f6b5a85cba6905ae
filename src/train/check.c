/* check.c - accrue_check: a data set, its hidden states and its vocabulary maps read once, and all
 * that training would refuse told of. */
#include "train/train.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JSON = 16 << 20, BLOCK_ROWS = 256, SIZED_ROWS = 100 };

static const double block_bytes = 256 << 20; /* between two words of progress */

typedef struct check {
    const accrue_check_options *opt;
    accrue_check_cb cb;
    void *payload;
    accrue_check_report *report;
    acr_sweep sweep;
    acr_patience patience;
    char *states_dir;
    double started;
    int64_t last_bad; /* row */
} check;

void accrue_check_options_init(accrue_check_options *opt, size_t struct_size)
{
    accrue_check_options d = {.data_path = "./output", .lock_timeout = 10};

    d.struct_size = struct_size;
    if (struct_size > sizeof d)
        memset(opt, 0, struct_size);
    memcpy(opt, &d, struct_size < sizeof d ? struct_size : sizeof d);
}

static accrue_status call(check *c, const accrue_fault *f, accrue_error *err)
{
    accrue_check_report *r = c->report;

    r->tokens = c->sweep.tokens;
    r->supervised_tokens = c->sweep.supervised_tokens;
    r->unsupervised_rows = c->sweep.unsupervised_rows;
    r->files = c->sweep.files;
    r->bytes = c->sweep.bytes;
    r->seconds = acr_seconds() - c->started;
    if (c->cb && c->cb(f, r, c->payload))
        return acr_fail(err, ACCRUE_ECANCELED, "stopped by the caller after %lld of %lld rows",
                        (long long)r->checked_rows, (long long)r->rows);
    return ACCRUE_OK;
}

static accrue_status tell(const accrue_fault *f, void *ctx, accrue_error *err)
{
    check *c = ctx;

    *(f->notice ? &c->report->notices : &c->report->faults) += 1;
    if (!f->notice && f->row >= 0 && f->row != c->last_bad) {
        c->last_bad = f->row;
        c->report->bad_rows++;
    }
    return call(c, f, err);
}

/* Of the whole set rather than of a row; want of memory ends the check. */
static accrue_status tell_of_set(check *c, accrue_fault_kind kind, bool notice, const char *file,
                                 const accrue_error *why, accrue_error *err)
{
    accrue_fault f;

    if (why->status == ACCRUE_ENOMEM)
        return acr_fail(err, why->status, "%s", why->message);
    acr_fault_error(&f, kind, file, -1, why);
    f.notice = notice;
    return tell(&f, c, err);
}

/* Maps ------------------------------------------------------------------------------------ */

/* `used`: training would read them. */
static accrue_status check_maps(check *c, const char *d2t, const char *t2d, int64_t draft,
                                bool used, accrue_error *err)
{
    acr_vocab v = {0};
    accrue_error why = {0};

    if (acr_vocab_read(&v, d2t, t2d, c->sweep.shape.vocab_size, draft, &why))
        return tell_of_set(c, ACCRUE_FAULT_MAP, !used, d2t, &why, err);
    if (used && !c->sweep.shape.vocab_size)
        c->sweep.shape.vocab_size = v.vocab_size;
    acr_vocab_free(&v);
    return ACCRUE_OK;
}

/* "d2t-48.npy" is of 48 ids; "d2t.npy" of --draft-vocab-size, where that is given. */
static int64_t draft_of(const check *c, const char *name)
{
    return name[3] == '-' ? strtoll(name + 4, NULL, 10) : c->opt->draft_vocab_size;
}

static bool fits(const check *c, const char *name)
{
    return !c->opt->draft_vocab_size || draft_of(c, name) == c->opt->draft_vocab_size;
}

static accrue_status check_named(check *c, const char *name, bool used, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *dir = c->opt->data_path, *suffix = name + strlen("d2t");
    char *d2t = acr_sprintf("%s/d2t%s", dir, suffix), *t2d = acr_sprintf("%s/t2d%s", dir, suffix);

    if (!d2t || !t2d)
        st = acr_enomem(err, strlen(dir), "a path");
    else if (*name == 'd' || !acr_exists(d2t)) /* one half of a pair is enough to look for both */
        st = check_maps(c, d2t, t2d, draft_of(c, name), used, err);
    acr_free(d2t);
    acr_free(t2d);
    return st;
}

static int is_map(const struct dirent *entry)
{
    const char *name = entry->d_name;
    size_t length = strlen(name);

    return (!strncmp(name, "d2t", 3) || !strncmp(name, "t2d", 3)) && length >= 7 &&
           !strcmp(name + length - 4, ".npy") && (name[3] == '.' || name[3] == '-');
}

/* Those without a size in their name are read where there are none with the one wanted. */
static accrue_status check_all_maps(check *c, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_check_options *o = c->opt;
    struct dirent **names = NULL;
    accrue_error why;
    bool sized = false;
    int n = 0;

    if (o->d2t_path)
        return check_maps(c, o->d2t_path, o->t2d_path, o->draft_vocab_size, true, err);
    n = scandir(o->data_path, &names, is_map, alphasort);
    if (n < 0) {
        acr_fail_errno(&why, errno, "cannot look for vocabulary maps", o->data_path);
        return tell_of_set(c, ACCRUE_FAULT_UNREADABLE, false, o->data_path, &why, err);
    }
    for (int i = 0; i < n; i++)
        sized |= names[i]->d_name[3] == '-' && fits(c, names[i]->d_name);
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        ACR_TRY(check_named(c, name, name[3] == '-' ? fits(c, name) : !sized, err));
    }

cleanup:
    for (int i = 0; i < n; i++)
        free(names[i]); /* scandir's */
    free(names);
    return st;
}

/* Sizes ----------------------------------------------------------------------------------- */

static accrue_status read_verifier(check *c, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_train_options t;
    const json_t *v = NULL;
    json_t *root = NULL;
    char *path = NULL;
    int ids[ACR_MAX_AUX];

    if (!c->opt->verifier)
        return ACCRUE_OK;
    path = acr_sprintf("%s/config.json", c->opt->verifier);
    if (!path)
        return acr_enomem(err, strlen(c->opt->verifier), "a path");
    ACR_TRY(acr_json_load(&root, path, MAX_JSON, err));
    v = acr_verifier_config(root);
    c->sweep.shape.hidden_size = json_integer_value(json_object_get(v, "hidden_size"));
    c->sweep.shape.vocab_size = json_integer_value(json_object_get(v, "vocab_size"));
    if (c->sweep.shape.hidden_size < 1 || c->sweep.shape.vocab_size < 1) {
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: hidden_size %lld and vocab_size %lld, at least 1 expected", path,
                      (long long)c->sweep.shape.hidden_size, (long long)c->sweep.shape.vocab_size);
        goto cleanup;
    }
    accrue_train_options_init(&t, sizeof t);
    t.verifier = c->opt->verifier;
    if (!c->opt->n_aux)
        ACR_TRY(acr_target_layer_ids(ids, &c->sweep.shape.n_aux, &t, root, err));

cleanup:
    json_decref(root);
    acr_free(path);
    return st;
}

typedef struct size {
    int64_t hidden, slots;
    int rows;
} size;

/* What neither options nor verifier say is what most of the first readable rows have. */
static void size_states(check *c)
{
    acr_batch_shape *shape = &c->sweep.shape, any = {0};
    acr_states s = {0};
    size sizes[SIZED_ROWS] = {{0}};
    int n = 0, found = 0, best = 0;
    accrue_fault f;

    if (shape->hidden_size)
        return;
    for (int64_t row = 0; row < c->report->rows && found < SIZED_ROWS; row++) {
        int64_t mask_tokens = 0;
        acr_row r = {0};
        int i = 0;
        acr_dataset_raw_row(&r, &mask_tokens, c->sweep.data, row);
        if (acr_states_open(&s, c->states_dir, row, &r, &any, NULL, &f))
            continue;
        while (i < n &&
               (sizes[i].hidden != s.hidden->dims[2] || sizes[i].slots != s.hidden->dims[1]))
            i++;
        n = i < n ? n : n + 1;
        sizes[i] = (size){s.hidden->dims[2], s.hidden->dims[1], sizes[i].rows + 1};
        best = sizes[i].rows > sizes[best].rows ? i : best;
        found++;
    }
    shape->hidden_size = sizes[best].hidden;
    if (found && !c->opt->n_aux)
        shape->n_aux = (int)sizes[best].slots - 1;
    acr_states_free(&s);
}

/* Rows ------------------------------------------------------------------------------------ */

static accrue_status check_rows(check *c, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_check_report *r = c->report;
    const double token = 2.0 * (c->sweep.shape.n_aux + 1) * (double)c->sweep.shape.hidden_size + 16;
    int64_t rows[BLOCK_ROWS];

    ACR_TRY(call(c, NULL, err));
    while (r->checked_rows < r->rows) {
        int64_t n = 0;
        double bytes = 0;
        for (int64_t row = r->checked_rows; row < r->rows && n < BLOCK_ROWS && bytes < block_bytes;
             row++) {
            bytes += token * (double)acr_dataset_tokens(c->sweep.data, row);
            rows[n++] = row;
        }
        ACR_TRY(acr_sweep_rows(&c->sweep, rows, n, tell, c, err));
        r->checked_rows += n;
        ACR_TRY(call(c, NULL, err));
    }

cleanup:
    return st;
}

/* Of the rows that train by default, and of what of them is used. */
static accrue_status check_supervision(check *c, accrue_error *err)
{
    accrue_train_options t;
    accrue_error why;
    int64_t n = 0;

    accrue_train_options_init(&t, sizeof t);
    n = acr_dataset_train_rows(c->sweep.data, t.train_data_ratio);
    for (int64_t row = 0; row < n; row++)
        if (acr_dataset_supervises(c->sweep.data, row, t.total_seq_len))
            return ACCRUE_OK;
    acr_fail(
        &why, ACCRUE_EMISMATCH,
        "%s: 0 of the %lld training rows have a supervised token (loss_mask 1 behind the first "
        "token), at least 1 expected",
        c->opt->data_path, (long long)n);
    return tell_of_set(c, ACCRUE_FAULT_MASK, false, c->opt->data_path, &why, err);
}

/* A data set that is there and broken is a fault, and its maps are still looked at. */
static accrue_status open_data(check *c, accrue_error *err)
{
    const char *dir = c->opt->data_path;
    char *state = acr_sprintf("%s/state.json", dir);
    accrue_error why;
    accrue_status st = ACCRUE_OK;

    if (!state)
        return acr_enomem(err, strlen(dir), "a path");
    st = acr_dataset_open(&c->sweep.data, dir, &why);
    if (!st)
        c->report->rows = acr_dataset_rows(c->sweep.data);
    else if (acr_is_file(state))
        st = tell_of_set(c, st == ACCRUE_EIO ? ACCRUE_FAULT_UNREADABLE : ACCRUE_FAULT_FORMAT, false,
                         dir, &why, err);
    else
        acr_fail(err, st, "%s", why.message);
    acr_free(state);
    return st;
}

static accrue_status check_options(const accrue_check_options *opt, accrue_error *err)
{
    if (opt->struct_size != sizeof *opt)
        return acr_fail(err, ACCRUE_EINVAL, "options of %zu bytes, %zu expected", opt->struct_size,
                        sizeof *opt);
    if (!opt->data_path || !*opt->data_path)
        return acr_fail(err, ACCRUE_EINVAL, "--data-path: a value expected");
    if (!opt->d2t_path != !opt->t2d_path)
        return acr_fail(err, ACCRUE_EINVAL, "%s is given without %s",
                        opt->d2t_path ? "--d2t-path" : "--t2d-path",
                        opt->d2t_path ? "--t2d-path" : "--d2t-path");
    if (opt->draft_vocab_size < 0 || opt->n_aux < 0 || !(opt->lock_timeout >= 0))
        return acr_fail(err, ACCRUE_EINVAL,
                        "--draft-vocab-size %lld, %d auxiliary layers, --lock-timeout %g: at least "
                        "0 expected",
                        (long long)opt->draft_vocab_size, opt->n_aux, opt->lock_timeout);
    return ACCRUE_OK;
}

accrue_status accrue_check(accrue_check_report *out, const accrue_check_options *opt,
                           accrue_check_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    check c = {.opt = opt, .cb = cb, .payload = payload, .report = out, .last_bad = -1};

    memset(out, 0, sizeof *out);
    acr_patience_init(&c.patience, opt->lock_timeout);
    ACR_TRY(check_options(opt, err));
    c.started = acr_seconds();
    ACR_TRY(open_data(&c, err));
    c.states_dir = opt->hidden_states_path ? acr_strdup(opt->hidden_states_path)
                                           : acr_sprintf("%s/hidden_states", opt->data_path);
    if (!c.states_dir) {
        st = acr_enomem(err, strlen(opt->data_path), "a path");
        goto cleanup;
    }
    if (!acr_is_dir(c.states_dir)) {
        st = acr_fail(err, ACCRUE_EIO, "%s: no such folder of hidden states", c.states_dir);
        goto cleanup;
    }
    c.sweep.states_dir = c.states_dir;
    c.sweep.patience = &c.patience;
    c.sweep.whole = true;
    c.sweep.shape.n_aux = opt->n_aux;
    ACR_TRY(read_verifier(&c, err));
    ACR_TRY(check_all_maps(&c, err));
    size_states(&c);
    ACR_TRY(check_rows(&c, err));
    if (c.sweep.data)
        ACR_TRY(check_supervision(&c, err));

cleanup:
    acr_dataset_close(c.sweep.data);
    acr_free(c.states_dir);
    acr_patience_free(&c.patience);
    return st;
}
