/* making.c - states that no file holds, made by the verifier when a loader asks for them.
 *
 * Weights are read once for all ranks that are threads of the process: whoever asks while somebody
 * has the same verifier gets that one, and its fingerprint.  What an extractor has beside them is
 * each loader's own. */
#include "train/train.h"

#include <string.h>

struct acr_lent_verifier {
    acr_lent_verifier *next;
    char *path;
    accrue_dtype compute;
    int64_t positions;
    acr_verifier *verifier;
    acr_fingerprint fingerprint; /* under the lock, too */
    int borrowers;
};

static struct {
    pthread_mutex_t lock; /* held while one is read: the others wait for that one */
    acr_lent_verifier *first;
} lent = {.lock = PTHREAD_MUTEX_INITIALIZER};

static acr_lent_verifier *find(const char *path, accrue_dtype compute, int64_t positions)
{
    acr_lent_verifier *v = lent.first;

    while (v && (v->compute != compute || v->positions != positions || strcmp(v->path, path) != 0))
        v = v->next;
    return v;
}

static void discard(acr_lent_verifier *v)
{
    if (!v)
        return;
    acr_verifier_free(v->verifier);
    acr_free(v->path);
    acr_free(v);
}

static accrue_status open_one(acr_lent_verifier **out, const char *path, accrue_dtype compute,
                              int64_t positions, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_error why = {0};
    acr_lent_verifier *v = acr_calloc(1, sizeof *v);

    if (v)
        v->path = acr_strdup(path);
    if (!v || !v->path) {
        st = acr_enomem(err, sizeof *v, "a verifier");
        goto cleanup;
    }
    v->fingerprint.path = v->path;
    v->compute = compute;
    v->positions = positions;
    st = acr_verifier_open(&v->verifier, path, compute, positions, &why);
    if (st) {
        acr_fail(err, st, "--on-missing extract needs the verifier whole: %s", why.message);
        goto cleanup;
    }
    v->next = lent.first;
    lent.first = *out = v;
    v = NULL;

cleanup:
    discard(v);
    return st;
}

accrue_status acr_verifier_lend(acr_lent_verifier **out, const char *path, accrue_dtype compute,
                                int64_t positions, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    pthread_mutex_lock(&lent.lock);
    *out = find(path, compute, positions);
    if (!*out)
        st = open_one(out, path, compute, positions, err);
    if (!st)
        (*out)->borrowers++;
    pthread_mutex_unlock(&lent.lock);
    return st;
}

void acr_verifier_return(acr_lent_verifier *v)
{
    bool last = false;

    if (!v)
        return;
    pthread_mutex_lock(&lent.lock);
    last = --v->borrowers == 0;
    for (acr_lent_verifier **at = &lent.first; last && *at; at = &(*at)->next)
        if (*at == v) {
            *at = v->next;
            break;
        }
    pthread_mutex_unlock(&lent.lock);
    if (last)
        discard(v);
}

/* The source ------------------------------------------------------------------------------- */

static accrue_status make(const void **out, int64_t *n, void *ctx, const acr_row *r, int64_t first,
                          accrue_error *err)
{
    acr_making *m = ctx;

    return acr_extractor_piece(out, n, m->extractor, r, first, err);
}

/* The layers that the draft was made for.  Files, and what is made for want of others, are to be of
 * those and of this verifier; the dtype may differ, which is the draft's too. */
static accrue_status find_layers(int aux[ACR_MAX_AUX], const acr_setup *s, accrue_error *err)
{
    acr_lent_verifier *v = s->verifier;
    accrue_error why = {0};
    bool there = false;
    accrue_status st = acr_draft_layers(
        aux, &s->model->config, acr_verifier_describe(v->verifier)->n_layers, "the draft", &why);

    if (!st) {
        pthread_mutex_lock(&lent.lock);
        st = acr_states_settings_check(&there, s->states_dir, &v->fingerprint, aux, s->shape.n_aux,
                                       NULL, &why);
        pthread_mutex_unlock(&lent.lock);
    }
    return st ? acr_fail(err, st, "--on-missing extract: %s", why.message) : ACCRUE_OK;
}

/* A row is cut behind total_seq_len, so that a longer one may still do. */
static accrue_status check_positions(const acr_setup *s, accrue_error *err)
{
    const int64_t positions = acr_verifier_describe(s->verifier->verifier)->max_positions;

    return s->shape.total_seq_len < positions
               ? ACCRUE_OK
               : acr_dataset_check_positions(s->data, positions, err);
}

accrue_status acr_making_open(acr_making *out, const acr_setup *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int aux[ACR_MAX_AUX] = {0};

    memset(out, 0, sizeof *out);
    if (!s->verifier)
        return ACCRUE_OK;
    ACR_TRY(check_positions(s, err));
    ACR_TRY(find_layers(aux, s, err));
    ACR_TRY(acr_extractor_create(&out->extractor, s->verifier->verifier, aux, s->shape.n_aux,
                                 s->shape.total_seq_len + 1, err));
    out->source = (acr_states_source){make, out, s->verifier->path};

cleanup:
    return st;
}

void acr_making_close(acr_making *m)
{
    acr_extractor_free(m->extractor);
    memset(m, 0, sizeof *m);
}

const acr_states_source *acr_making_source(const acr_making *m)
{
    return m->extractor ? &m->source : NULL;
}
