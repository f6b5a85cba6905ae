/* test_rows.c - the row plan and the metrics against a planner that knows only the definitions: it
 * marks, by brute force, what each loss and each accuracy asks for. */
#include "model_test.h"

enum { MAX_T = 64, MAX_K = 6 };

/* What must be there, by row of the micro-batch and step; nothing is listed or indexed. */
typedef struct naive {
    int64_t n_rows, padded;
    int steps;
    bool across;
    int64_t doc[MAX_T];       /* -1: padding */
    int64_t doc_begin[MAX_T]; /* of the row's document */
    bool loss[MAX_T][MAX_K];
    bool asked[MAX_T][MAX_K]; /* by an accuracy */
    bool live[MAX_T][MAX_K];  /* has to be computed */
    bool key[MAX_T];          /* is read as a key of step 0 */
    bool target[MAX_T];
    int64_t count[MAX_K];
} naive;

static bool exists(const naive *x, int64_t t, int k)
{
    if (t + k >= x->padded)
        return false;
    return x->across || (t + k < x->n_rows && x->doc[t + k] == x->doc[t]);
}

static void naive_plan(naive *x, const acr_batch *b, const acr_eagle3_options *o)
{
    memset(x, 0, sizeof *x);
    x->n_rows = b->n_rows;
    x->padded = b->padded_rows;
    x->steps = o->ttt_steps;
    x->across = o->across_documents;
    for (int64_t t = 0; t < MAX_T; t++)
        x->doc[t] = -1;
    for (int64_t d = 0; d < b->n_docs; d++)
        for (int64_t t = b->doc_begin[d]; t < b->doc_begin[d + 1]; t++) {
            x->doc[t] = d;
            x->doc_begin[t] = b->doc_begin[d];
        }
    for (int64_t t = 0; t < b->n_rows; t++)
        for (int k = 0; k < x->steps; k++) {
            x->loss[t][k] = exists(x, t, k) && t + k < b->n_rows && b->loss_mask[t + k];
            x->count[k] += x->loss[t][k];
            /* c_k[t] is asked for where step k + 1 divides by it, and where a loss of step k counts
             * it; it starts from the row's own mask. */
            x->asked[t][k] = b->loss_mask[t] && exists(x, t, k) &&
                             (x->loss[t][k] || (k + 1 < x->steps && exists(x, t, k + 1)));
        }
    for (int64_t t = 0; t < b->n_rows; t++)
        for (int k = 0; k < x->steps; k++)
            for (int later = k; later < x->steps; later++)
                x->live[t][k] = x->live[t][k] || x->loss[t][later] || x->asked[t][later];
    for (int64_t t = 0; t < b->n_rows; t++) {
        for (int64_t q = t; q < b->n_rows; q++)
            x->key[t] = x->key[t] || (x->doc[q] == x->doc[t] && x->live[q][0]);
        for (int k = 0; k < x->steps; k++)
            if (x->loss[t][k] || x->asked[t][k])
                x->target[t + k] = true;
    }
}

static int64_t base_index(const acr_rows *r, int64_t t)
{
    for (int64_t i = 0; i < r->n_base; i++)
        if (r->base[i] == t)
            return i;
    return -1;
}

static int64_t step_index(const acr_step_rows *s, int64_t t)
{
    for (int64_t i = 0; i < s->n; i++)
        if (s->t[i] == t)
            return i;
    return -1;
}

static int64_t token(const acr_batch *b, int64_t t)
{
    return t < b->n_rows ? b->input_ids[t] : 0;
}

static void check_base(const acr_rows *r, const naive *x, const acr_batch *b, int64_t window)
{
    int64_t n = 0;

    for (int64_t t = 0; t < x->n_rows; t++)
        if (x->key[t]) {
            int64_t first = base_index(r, x->doc_begin[t]);
            int64_t low = t - window + 1 > x->doc_begin[t] ? t - window + 1 : x->doc_begin[t];
            assert_true(n < r->n_base);
            assert_int_equal(r->base[n], t);
            assert_int_equal(r->embed_ids[r->base_embed[n]], token(b, t));
            assert_int_equal(r->base_position[n], b->position_ids[t]);
            assert_int_equal(r->base_begin[n], first);
            assert_int_equal(r->base[r->base_window_begin[n]], low);
            assert_int_equal(r->base_end[n], n + 1);
            n++;
        }
    assert_int_equal(r->n_base, n);
}

static void check_step(const acr_rows *r, const naive *x, const acr_batch *b, int k, int64_t window)
{
    const acr_step_rows *s = &r->step[k];
    int64_t n = 0, drafts = 0;

    for (int64_t t = 0; t < x->n_rows; t++) {
        if (!x->live[t][k])
            continue;
        assert_true(n < s->n);
        assert_int_equal(s->t[n], t);
        if (k == 0)
            assert_int_equal(s->previous[n], base_index(r, t));
        else
            assert_int_equal(s->previous[n], step_index(&r->step[k - 1], t));
        assert_int_equal(r->embed_ids[s->embed[n]], token(b, t + k));
        assert_int_equal(s->position[n], b->position_ids[t] + k);
        assert_int_equal(s->begin[n], base_index(r, x->doc_begin[t]));
        assert_int_equal(r->base[s->window_begin[n]],
                         t - window + 1 > x->doc_begin[t] ? t - window + 1 : x->doc_begin[t]);
        assert_int_equal(s->end[n], base_index(r, t) + 1);
        for (int j = 1; j <= k; j++)
            assert_int_equal(s->own[j][n], step_index(&r->step[j], t));
        if (x->loss[t][k] || x->asked[t][k]) {
            assert_true(drafts < s->n_draft);
            assert_int_equal(s->draft_row[drafts], n);
            assert_int_equal(r->target[s->target[drafts]], t + k);
            assert_int_equal(s->counted[drafts], x->loss[t][k]);
            drafts++;
        }
        n++;
    }
    assert_int_equal(s->n, n);
    assert_int_equal(s->n_draft, drafts);
    /* Operators want each embedded row at most once a step. */
    for (int64_t i = 1; i < s->n; i++)
        assert_true(s->embed[i] > s->embed[i - 1]);
}

static void check_plan(acr_tape *tape, const acr_batch *b, const acr_eagle3_options *o,
                       int64_t window)
{
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    int64_t n = 0;
    acr_rows r;
    naive x;

    naive_plan(&x, b, o);
    acr_eagle3_counts(b, o, counts);
    for (int k = 0; k < ACCRUE_MAX_TTT_STEPS; k++)
        assert_int_equal(counts[k], k < x.steps ? x.count[k] : 0);
    acr_tape_reset(tape);
    assert_int_equal(acr_rows_plan(&r, tape, b, o, window), ACCRUE_OK);
    check_base(&r, &x, b, window);
    for (int k = 0; k < x.steps; k++)
        check_step(&r, &x, b, k, window);
    for (int64_t t = 0; t < x.padded; t++)
        if (x.target[t])
            assert_int_equal(r.target[n++], t);
    assert_int_equal(r.n_targets, n);
}

static void plans_equal_the_definition(void **state)
{
    static const double density[] = {0, 0.05, 0.2, 0.5, 0.9, 1};
    acr_tape tape;
    accrue_error e;
    source s = {.seed = 61};
    int64_t with_gaps = 0;

    (void)state;
    assert_int_equal(acr_tape_init(&tape, ACCRUE_F64, &e), ACCRUE_OK);
    for (int trial = 0; trial < 1500; trial++) {
        acr_eagle3_options o = {.ttt_steps = 1 + (int)below(&s, MAX_K),
                                .step_decay = 1,
                                .across_documents = chance(&s, 0.5)};
        int n = 1 + (int)below(&s, 5);
        sample samples[5];
        int64_t rows = 0;
        acr_batch b;
        for (int i = 0; i < n; i++) {
            samples[i] = sample_make(&s, below(&s, 12), density[below(&s, ACR_COUNT(density))]);
            rows += samples[i].n;
        }
        if (rows == 0) {
            for (int i = 0; i < n; i++)
                sample_free(&samples[i]);
            continue;
        }
        pack(&b, ACR_DTYPE_F64, samples, NULL, n, rows + below(&s, 4));
        check_plan(&tape, &b, &o, 1 + below(&s, 8));
        for (int64_t t = 0; t + 1 < b.n_rows; t++)
            with_gaps += b.loss_mask[t] && !b.loss_mask[t + 1];
        acr_batch_free(&b);
        for (int i = 0; i < n; i++)
            sample_free(&samples[i]);
    }
    assert_true(with_gaps > 1000);
    acr_tape_free(&tape);
}

/* Metrics of made-up predictions, half of them right, from the definition. */
static void check_metrics(acr_tape *tape, const acr_batch *b, const acr_eagle3_options *o,
                          source *s)
{
    acr_eagle3_result r = {0};
    double weight[MAX_K];
    bool correct[MAX_T];
    double total = 0;
    accrue_metrics m;
    accrue_error e;
    naive x;

    naive_plan(&x, b, o);
    acr_tape_reset(tape);
    assert_int_equal(acr_rows_plan(&r.rows, tape, b, o, 4), ACCRUE_OK);
    r.correct = acr_tape_meta(tape, b->n_rows, sizeof *r.correct);
    r.target_argmax = acr_tape_meta(tape, r.rows.n_targets, sizeof *r.target_argmax);
    for (int64_t i = 0; i < r.rows.n_targets; i++)
        r.target_argmax[i] = below(s, 2);
    for (int k = 0; k < x.steps; k++) {
        int64_t n = r.rows.step[k].n_draft;
        weight[k] = 0.5 + k;
        r.argmax[k] = acr_tape_meta(tape, n, sizeof *r.argmax[k]);
        r.term_loss[k] = acr_tape_meta(tape, n * 2, sizeof *r.term_loss[k]);
        for (int64_t i = 0; i < n; i++) {
            r.argmax[k][i] = below(s, 2);
            r.term_loss[k][2 * i] = (double)below(s, 8);
            r.term_loss[k][2 * i + 1] = (double)below(s, 8);
        }
    }
    assert_int_equal(acr_eagle3_metrics(&m, &r, tape, b, o, weight, 3, &e), ACCRUE_OK);
    for (int64_t t = 0; t < b->n_rows; t++)
        correct[t] = b->loss_mask[t];
    for (int k = 0; k < x.steps; k++) {
        const acr_step_rows *rows = &r.rows.step[k];
        double full = 0, asked = 0, sum[2] = {0};
        for (int64_t t = 0; t < b->n_rows; t++) {
            asked += exists(&x, t, k) && correct[t];
            for (int64_t i = 0; i < rows->n_draft; i++)
                if (rows->t[rows->draft_row[i]] == t) {
                    correct[t] = correct[t] && r.argmax[k][i] == r.target_argmax[rows->target[i]];
                    sum[0] += x.loss[t][k] ? r.term_loss[k][2 * i] : 0;
                    sum[1] += x.loss[t][k] ? r.term_loss[k][2 * i + 1] : 0;
                }
            full += x.loss[t][k] && correct[t];
        }
        assert_true(fabs(m.full_acc_sum[k] - full) <= 0 && fabs(m.cond_acc_sum[k] - full) <= 0);
        assert_true(fabs(m.full_acc_total[k] - (double)x.count[k]) <= 0);
        assert_true(fabs(m.cond_acc_total[k] - asked) <= 0);
        assert_true(fabs(m.term_loss_sum[0][k] - sum[0] * weight[k]) <= 0);
        assert_true(fabs(m.term_loss_sum[1][k] - sum[1] * weight[k]) <= 0);
        assert_true(fabs(m.step_loss_sum[k] - (0.25 * sum[0] + 2 * sum[1]) * weight[k]) <= 1e-9);
        assert_true(fabs(m.step_loss_total[k] - 3) <= 0);
        total += m.step_loss_sum[k];
    }
    assert_true(fabs(m.loss_sum - total) <= 1e-9 && fabs(m.loss_total - 3) <= 0);
    assert_int_equal(m.n_terms, 2);
    assert_string_equal(m.term_name[1], "tv");
}

static void metrics_equal_the_definition(void **state)
{
    acr_tape tape;
    accrue_error e;
    source s = {.seed = 67};

    (void)state;
    assert_int_equal(acr_tape_init(&tape, ACCRUE_F64, &e), ACCRUE_OK);
    for (int trial = 0; trial < 300; trial++) {
        acr_eagle3_options o = {.ttt_steps = 1 + (int)below(&s, MAX_K),
                                .step_decay = 1,
                                .across_documents = chance(&s, 0.5)};
        sample samples[3];
        acr_batch b;
        assert_int_equal(acr_loss_spec_parse(&o.loss, "{\"ce\": 0.25, \"tv\": 2}", &e), ACCRUE_OK);
        for (int i = 0; i < 3; i++)
            samples[i] = sample_make(&s, 1 + below(&s, 11), 0.3 + 0.3 * i);
        pack(&b, ACR_DTYPE_F64, samples, NULL, 3,
             samples[0].n + samples[1].n + samples[2].n + below(&s, 4));
        check_metrics(&tape, &b, &o, &s);
        acr_batch_free(&b);
        for (int i = 0; i < 3; i++)
            sample_free(&samples[i]);
    }
    acr_tape_free(&tape);
}

static void fill(acr_batch *b, const char *mask, const int64_t *lengths, int n, int64_t padded)
{
    source s = {.seed = 1};
    sample samples[4] = {0};
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        samples[i] = sample_make(&s, lengths[i], 0);
        for (int64_t t = 0; t < lengths[i]; t++)
            samples[i].mask[t] = mask[at++] == '1';
    }
    pack(b, ACR_DTYPE_F64, samples, NULL, n, padded);
    for (int i = 0; i < n; i++)
        sample_free(&samples[i]);
}

/* By hand: a row is dropped, a prompt's tail kept for later steps, an empty document vanishes. */
static void a_plan_by_hand(void **state)
{
    static const int64_t lengths[] = {5, 3, 4};
    acr_eagle3_options o = {.ttt_steps = 2, .step_decay = 1};
    acr_tape tape;
    accrue_error e;
    acr_rows r;
    acr_batch b;

    (void)state;
    assert_int_equal(acr_tape_init(&tape, ACCRUE_F64, &e), ACCRUE_OK);
    fill(&b, "000100001000", lengths, 3, 12); /* document 0: row 3; document 2: row 8, its first */
    assert_int_equal(acr_rows_plan(&r, &tape, &b, &o, 4), ACCRUE_OK);
    assert_int_equal(r.n_base, 5); /* rows 0 ... 3 and 8 */
    assert_int_equal(r.base[3], 3);
    assert_int_equal(r.base[4], 8);
    assert_int_equal(r.base_begin[4], 4);
    assert_int_equal(r.step[0].n, 3); /* 2 for its step 1, 3 and 8 for their own */
    assert_int_equal(r.step[0].t[0], 2);
    assert_int_equal(r.step[0].n_draft, 2);
    assert_int_equal(r.step[1].n, 1); /* 2 reads token 3; 7 would read 8 across the border */
    assert_int_equal(r.step[1].t[0], 2);
    assert_int_equal(r.n_targets, 2);
    acr_batch_free(&b);
    acr_tape_free(&tape);
}

static void padding_counts_across_documents(void **state)
{
    static const int64_t lengths[] = {4};
    acr_eagle3_options o = {.ttt_steps = 3, .step_decay = 1, .across_documents = true};
    acr_tape tape;
    accrue_error e;
    acr_rows r;
    acr_batch b;

    (void)state;
    assert_int_equal(acr_tape_init(&tape, ACCRUE_F64, &e), ACCRUE_OK);
    fill(&b, "0001", lengths, 1, 6); /* row 3 predicts padding 4 and 5 for the accuracies */
    assert_int_equal(acr_rows_plan(&r, &tape, &b, &o, 1), ACCRUE_OK);
    assert_int_equal(r.step[1].t[r.step[1].n - 1], 3);
    assert_int_equal(r.target[r.n_targets - 1], 4);
    assert_int_equal(r.embed_ids[r.step[1].embed[r.step[1].n - 1]], 0);
    acr_batch_free(&b);
    acr_tape_free(&tape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_equal_the_definition),
        cmocka_unit_test(metrics_equal_the_definition),
        cmocka_unit_test(a_plan_by_hand),
        cmocka_unit_test(padding_counts_across_documents),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
