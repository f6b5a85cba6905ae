/* test_ranks_order.c - ranks whose micro-batches use less of the model than others', fail, or are
 * not there at all: the collectives are the same, and so is the sum of what the others did. */
#include "model_test.h"
#include "train/train.h"

#include <unistd.h>

enum { RANKS = 3, PLACES = 2, TOKENS = 12, STEPS = 3 };

/* What a rank does at a place of the window. */
typedef enum deed {
    WHOLE,       /* forward and backward */
    FEWER_STEPS, /* of one TTT step alone */
    NO_ROWS,     /* of a micro-batch in which nothing is supervised */
    FORWARD,     /* and no backward, as where the loss is not finite */
    NOTHING,     /* there is no micro-batch, or its data could not be read */
    DEEDS
} deed;

typedef struct job {
    draft drafts[RANKS], single;
    acr_batch batch[RANKS], empty[RANKS];
    acr_eagle3_options o, less;
    acr_dist_options how;
    deed deeds[PLACES][RANKS];
    double *sum[RANKS]; /* of gradients, NaN where another rank keeps them */
    acr_comm_counters counters[RANKS];
} job;

static const double scale[ACCRUE_MAX_TTT_STEPS] = {0.5, 0.25, 0.125};

static accrue_status do_deed(job *j, int rank, deed what, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    draft *d = &j->drafts[rank];
    const acr_batch *b = what == NO_ROWS ? &j->empty[rank] : &j->batch[rank];
    acr_eagle3_result r;

    if (what == NOTHING)
        return ACCRUE_OK;
    acr_tape_reset(&d->t);
    ACR_TRY(
        acr_eagle3_forward(&r, d->m, &d->t, b, what == FEWER_STEPS ? &j->less : &j->o, scale, err));
    if (what != FORWARD)
        acr_tape_backward(&d->t);
    ACR_TRY(acr_tape_status(&d->t, err));

cleanup:
    return st;
}

/* The order of collectives comes from the largest micro-batch. */
static accrue_status plan(job *j, acr_dist *dist, int rank, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    draft *d = &j->drafts[rank];
    acr_eagle3_result r;

    acr_tape_measure(&d->t, true);
    ACR_TRY(acr_eagle3_forward(&r, d->m, &d->t, &j->batch[0], &j->o, scale, err));
    ACR_TRY(acr_dist_plan(dist, &d->t, err));
    acr_tape_backward(&d->t);
    acr_tape_measure(&d->t, false);

cleanup:
    return st;
}

static void keep_sum(job *j, int rank)
{
    const acr_model *m = j->drafts[rank].m;
    double *out = j->sum[rank];

    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        acr_share own;
        if (!p->trainable)
            continue;
        own = acr_model_share(m, p);
        for (int64_t k = 0; k < p->rows * p->cols; k++)
            out[k] = (double)NAN;
        for (int64_t k = 0; k < own.n; k++)
            out[own.begin + k] = real_at(m, own.accumulator, k);
        out += p->rows * p->cols;
    }
}

static accrue_status run_rank(accrue_comm *comm, void *ctx, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    job *j = ctx;
    const int rank = accrue_comm_rank(comm);
    acr_dist *dist = NULL;

    acr_ledger_use(NULL); /* the drafts outlive the job */
    ACR_TRY(acr_dist_create(&dist, j->drafts[rank].m, comm, &j->how, err));
    ACR_TRY(plan(j, dist, rank, err));
    ACR_TRY(acr_dist_refresh(dist, err));
    ACR_TRY(acr_dist_begin_window(dist, err));
    for (int place = 0; place < PLACES; place++) {
        acr_dist_begin(dist, true, place == PLACES - 1);
        ACR_TRY(do_deed(j, rank, j->deeds[place][rank], err));
        ACR_TRY(acr_dist_end(dist, err));
    }
    ACR_TRY(acr_dist_finish(dist, err));
    keep_sum(j, rank);
    j->counters[rank] = acr_comm_get_counters(comm);

cleanup:
    acr_dist_free(dist);
    return acr_comm_fail(comm, st, err);
}

/* The same without ranks, in one model. */
static double *plain_sum(job *j)
{
    draft *d = &j->single;

    acr_model_zero_grad(d->m);
    for (int place = 0; place < PLACES; place++)
        for (int rank = 0; rank < RANKS; rank++) {
            const deed what = j->deeds[place][rank];
            acr_eagle3_result r;
            accrue_error e;
            if (what != WHOLE && what != FEWER_STEPS)
                continue;
            acr_tape_reset(&d->t);
            assert_int_equal(acr_eagle3_forward(&r, d->m, &d->t, &j->batch[rank],
                                                what == WHOLE ? &j->o : &j->less, scale, &e),
                             ACCRUE_OK);
            acr_tape_backward(&d->t);
        }
    return gradients(d->m);
}

static void check_sum(const job *j, const double *expected, int64_t n)
{
    double size = 0;

    for (int64_t i = 0; i < n; i++)
        size = fmax(size, fabs(expected[i]));
    for (int64_t i = 0; i < n; i++) {
        double got = (double)NAN;
        for (int r = 0; r < RANKS; r++)
            got = isnan(got) ? j->sum[r][i] : got;
        if (!(fabs(got - expected[i]) <= 1e-14 * size))
            fail_msg("element %lld: %.17g, %.17g expected", (long long)i, got, expected[i]);
    }
}

static void empty_accumulators(acr_model *m)
{
    for (int i = 0; i < m->n_groups; i++) {
        const acr_group *g = &m->groups[i];
        const int64_t n = g->cut[m->sharding.rank + 1] - g->cut[m->sharding.rank];
        memset(g->accumulator, 0, (size_t)n * acr_dtype_bytes(m->real));
    }
}

static void run_job(job *j, const acr_comm_counters *usual)
{
    const int64_t n = acr_model_elements(j->single.m, true);
    double *expected = plain_sum(j);
    accrue_error e = {0};

    for (int r = 0; r < RANKS; r++)
        empty_accumulators(j->drafts[r].m);
    alarm(60);
    if (acr_ranks_run(RANKS, 10, run_rank, j, &e))
        fail_msg("%s", e.message);
    alarm(0);
    check_sum(j, expected, n);
    for (int r = 0; r < RANKS; r++)
        for (int kind = 0; usual && kind < ACR_COMM_KINDS; kind++) {
            assert_int_equal(j->counters[r].collectives[kind], usual->collectives[kind]);
            assert_int_equal(j->counters[r].bytes_sent[kind], usual[r].bytes_sent[kind]);
        }
    free(expected);
}

static void job_open(job *j, const variant *v, bool sharded, const acr_dist_options *how)
{
    source s = {.seed = 12};

    memset(j, 0, sizeof *j);
    j->o = options("kl_div", STEPS, 1, false);
    j->less = options("kl_div", 1, 1, false);
    j->how = *how;
    draft_open(&j->single, v, ACCRUE_F64, 4);
    for (int r = 0; r < RANKS; r++) {
        const acr_sharding shares = {.rank = r, .ranks = RANKS};
        sample all = sample_make(&s, TOKENS, 1), none = sample_make(&s, TOKENS, 0);
        draft_open_shared(&j->drafts[r], v, ACCRUE_F64, 4, sharded ? &shares : NULL);
        pack(&j->batch[r], j->single.m->real, &all, NULL, 1, TOKENS);
        pack(&j->empty[r], j->single.m->real, &none, NULL, 1, TOKENS);
        j->sum[r] = zeros(acr_model_elements(j->single.m, true));
        sample_free(&all);
        sample_free(&none);
    }
}

static void job_close(job *j)
{
    draft_close(&j->single);
    for (int r = 0; r < RANKS; r++) {
        draft_close(&j->drafts[r]);
        acr_batch_free(&j->batch[r]);
        acr_batch_free(&j->empty[r]);
        free(j->sum[r]);
    }
}

/* All do all there is, and then each rank does less of it, at each place. */
static void check_order(const variant *v, bool sharded, const acr_dist_options *how)
{
    acr_comm_counters usual[RANKS];
    job j;

    job_open(&j, v, sharded, how);
    run_job(&j, NULL);
    memcpy(usual, j.counters, sizeof usual);
    for (int place = 0; place < PLACES; place++)
        for (int rank = 0; rank < RANKS; rank++)
            for (deed what = FEWER_STEPS; what < DEEDS; what++) {
                memset(j.deeds, 0, sizeof j.deeds);
                j.deeds[place][rank] = what;
                run_job(&j, usual);
                j.deeds[PLACES - 1][(rank + 1) % RANKS] = NOTHING; /* and one that has none */
                run_job(&j, usual);
            }
    job_close(&j);
}

/* Two layers, three, and two with an embedding that is trained. */
static void the_order_is_that_of_the_largest_micro_batch(void **state)
{
    static const int which[] = {2, 3, 5};
    static const acr_dist_options hows[] = {
        {.defer_reduce = false},
        {.defer_reduce = true},
        {.reproducible = true},
        {.defer_reduce = true, .reproducible = true},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(which); i++)
        for (int sharded = 0; sharded < 2; sharded++)
            for (int h = 0; h < ACR_COUNT(hows); h++)
                if (sharded || !hows[h].defer_reduce)
                    check_order(&variants[which[i]], sharded, &hows[h]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_is_that_of_the_largest_micro_batch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
