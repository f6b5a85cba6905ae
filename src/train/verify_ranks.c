/* verify_ranks.c - what several ranks make of the windows that accrue_verify is about. */
#include "train/train.h"

#include <string.h>

typedef struct job {
    const accrue_train_options *opt;
    acr_proof_ranks *out; /* rank 0's to fill */
} job;

/* Whole on every rank: of a group, its masters or accumulators. */
static accrue_status gather_group(char *whole, const accrue_run *run, const acr_group *g,
                                  const void *share, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_sharding *s = &run->setup.model->sharding;
    const size_t real = acr_dtype_bytes(run->setup.model->real);
    size_t *begin = acr_calloc((size_t)run->ranks + 1, sizeof *begin);

    if (!begin)
        return acr_enomem(err, (size_t)run->ranks * sizeof *begin, "a proof");
    if (s->ranks == 1) {
        memcpy(whole, share, (size_t)g->n * real);
        goto cleanup;
    }
    for (int r = 0; r <= s->ranks; r++)
        begin[r] = (size_t)g->cut[r] * real;
    memcpy(whole + begin[s->rank], share, begin[s->rank + 1] - begin[s->rank]);
    st = acr_comm_gather(run->comm, "a proof", whole, begin, err);

cleanup:
    acr_free(begin);
    return st;
}

/* The group's parameters to where they are among all, in the order of the model. */
static void spread_group(char *all, const acr_model *m, const acr_group *g, const char *whole)
{
    const size_t real = acr_dtype_bytes(m->real);

    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        const size_t bytes = (size_t)(p->rows * p->cols) * real;
        if (!p->trainable)
            continue;
        if (p->group == g)
            memcpy(all, whole + (size_t)p->offset * real, bytes);
        all += bytes;
    }
}

/* [collective] *out is made on rank 0 alone. */
static accrue_status collect(void **out, const accrue_run *run, bool masters, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_model *m = run->setup.model;
    const size_t bytes = (size_t)acr_proof_elements(m) * acr_dtype_bytes(m->real);
    char *all = acr_malloc(bytes), *whole = NULL;
    int64_t most = 0;

    for (int i = 0; i < m->n_groups; i++)
        most = m->groups[i].n > most ? m->groups[i].n : most;
    whole = acr_malloc((size_t)most * acr_dtype_bytes(m->real));
    if (!all || !whole) {
        st = acr_enomem(err, bytes, "a proof");
        goto cleanup;
    }
    for (int i = 0; i < m->n_groups; i++) {
        const acr_group *g = &m->groups[i];
        ACR_TRY(gather_group(whole, run, g, masters ? g->master : g->accumulator, err));
        spread_group(all, m, g, whole);
    }
    if (run->rank == 0) {
        *out = all;
        all = NULL;
    }

cleanup:
    acr_free(whole);
    acr_free(all);
    return st;
}

static accrue_status first_window(accrue_run *run, acr_proof_ranks *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(accrue_run_epoch(run, 0, err));
    ACR_TRY(acr_proof_accumulate(run, err));
    ACR_TRY(collect(&out->gradient[0], run, false, err));
    ACR_TRY(accrue_run_clip(run, NULL, err));
    ACR_TRY(accrue_run_step(run, NULL, err));
    ACR_TRY(collect(&out->updated, run, true, err));
    accrue_run_lr_step(run);
    accrue_run_zero_grad(run);

cleanup:
    return st;
}

/* Where there is none with a supervised token, all ranks find that out. */
static accrue_status second_window(accrue_run *run, acr_proof_ranks *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (!accrue_run_next(run))
        return ACCRUE_OK;
    st = acr_proof_accumulate(run, err);
    if (st == ACCRUE_EINVAL)
        return ACCRUE_OK;
    return st ? st : collect(&out->gradient[1], run, false, err);
}

static accrue_status prove(accrue_comm *comm, void *ctx, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const job *j = ctx;
    accrue_train_options opt = *j->opt;
    accrue_run *run = NULL;
    accrue_error why = {0};

    opt.ranks = 1;
    opt.comm = comm;
    ACR_TRY(accrue_run_open(&run, &opt, NULL, NULL, &why));
    ACR_TRY(first_window(run, j->out, &why));
    ACR_TRY(second_window(run, j->out, &why));

cleanup:
    if (st)
        st = acr_comm_fail(comm, st, &why);
    accrue_run_free(run);
    return st ? acr_fail(err, st, "%s", why.message) : ACCRUE_OK;
}

accrue_status acr_proof_on_ranks(acr_proof_ranks *out, const accrue_train_options *opt,
                                 accrue_error *err)
{
    job j = {.opt = opt, .out = out};

    return acr_ranks_run(opt->ranks, opt->comm_timeout, prove, &j, err);
}

void acr_proof_ranks_free(acr_proof_ranks *p)
{
    acr_free(p->gradient[0]);
    acr_free(p->gradient[1]);
    acr_free(p->updated);
    memset(p, 0, sizeof *p);
}
