/* check.c - accrue_check: a data set, its hidden states and its vocabulary maps read once, and all
 * that training would refuse told of. */
#include "train/train.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JSON = 16 << 20, BLOCK_ROWS = 256 };

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

/* Maps ------------------------------------------------------------------------------------ */

static accrue_status check_maps(check *c, const char *d2t, const char *t2d, int64_t draft,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_vocab v = {0};
    accrue_error why = {0};
    accrue_fault f;

    if (!acr_vocab_read(&v, d2t, t2d, c->sweep.shape.vocab_size, draft, &why)) {
        if (!c->sweep.shape.vocab_size)
            c->sweep.shape.vocab_size = v.vocab_size;
        acr_vocab_free(&v);
        return ACCRUE_OK;
    }
    if (why.status == ACCRUE_ENOMEM)
        return acr_fail(err, why.status, "%s", why.message);
    acr_fault_error(&f, ACCRUE_FAULT_MAP, d2t, -1, &why);
    ACR_TRY(tell(&f, c, err));

cleanup:
    return st;
}

/* "d2t-48.npy" is of 48 ids; "d2t.npy" of --draft-vocab-size, where that is given. */
static accrue_status check_named(check *c, const char *name, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const char *dir = c->opt->data_path, *suffix = name + strlen("d2t");
    char *d2t = acr_sprintf("%s/d2t%s", dir, suffix), *t2d = acr_sprintf("%s/t2d%s", dir, suffix);
    int64_t draft = *suffix == '-' ? strtoll(suffix + 1, NULL, 10) : c->opt->draft_vocab_size;

    if (!d2t || !t2d)
        st = acr_enomem(err, strlen(dir), "a path");
    else
        st = check_maps(c, d2t, t2d, draft, err);
    acr_free(d2t);
    acr_free(t2d);
    return st;
}

/* One half of a pair is enough to look for both. */
static accrue_status check_all_maps(check *c, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_check_options *o = c->opt;
    struct dirent **names = NULL;
    int n = 0;

    if (o->d2t_path)
        return check_maps(c, o->d2t_path, o->t2d_path, o->draft_vocab_size, err);
    n = scandir(o->data_path, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char *name = names[i]->d_name, *other = NULL;
        size_t length = strlen(name);
        bool d2t = !strncmp(name, "d2t", 3), t2d = !strncmp(name, "t2d", 3);
        if ((!d2t && !t2d) || length < 7 || strcmp(name + length - 4, ".npy") != 0 ||
            (name[3] != '.' && name[3] != '-'))
            continue;
        other = acr_sprintf("%s/d2t%s", o->data_path, name + 3);
        if (d2t || (other && !acr_exists(other)))
            st = check_named(c, name, err);
        acr_free(other);
        if (st)
            goto cleanup;
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
    const json_t *v = NULL;
    json_t *root = NULL;
    char *path = NULL;

    if (!c->opt->verifier)
        return ACCRUE_OK;
    path = acr_sprintf("%s/config.json", c->opt->verifier);
    if (!path)
        return acr_enomem(err, strlen(c->opt->verifier), "a path");
    ACR_TRY(acr_json_load(&root, path, MAX_JSON, err));
    v = acr_verifier_config(root);
    c->sweep.shape.hidden_size = json_integer_value(json_object_get(v, "hidden_size"));
    c->sweep.shape.vocab_size = json_integer_value(json_object_get(v, "vocab_size"));
    if (c->sweep.shape.hidden_size < 1 || c->sweep.shape.vocab_size < 1)
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: hidden_size %lld and vocab_size %lld, at least 1 expected", path,
                      (long long)c->sweep.shape.hidden_size, (long long)c->sweep.shape.vocab_size);

cleanup:
    json_decref(root);
    acr_free(path);
    return st;
}

/* What neither options nor verifier say is taken from the first row that has it. */
static void size_states(check *c)
{
    acr_batch_shape *shape = &c->sweep.shape, any = {0};
    acr_states s = {0};
    accrue_fault f;
    bool found = false;

    for (int64_t row = 0; row < c->report->rows && !found; row++) {
        int64_t mask_tokens = 0;
        acr_row r = {0};
        acr_dataset_raw_row(&r, &mask_tokens, c->sweep.data, row);
        found = !acr_states_open(&s, c->states_dir, row, &r, &any, NULL, &f);
        if (found && !shape->hidden_size)
            shape->hidden_size = s.hidden->dims[2];
        if (found && !c->opt->n_aux)
            shape->n_aux = (int)s.hidden->dims[1] - 1;
        acr_states_close(&s);
    }
    if (!found && !c->opt->n_aux) /* nothing to compare with */
        shape->hidden_size = 0;
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
    ACR_TRY(acr_dataset_open(&c.sweep.data, opt->data_path, err));
    out->rows = acr_dataset_rows(c.sweep.data);
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

cleanup:
    acr_dataset_close(c.sweep.data);
    acr_free(c.states_dir);
    acr_patience_free(&c.patience);
    return st;
}
