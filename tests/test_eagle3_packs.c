/* test_eagle3_packs.c - what packing must not change: documents keep apart bit for bit, masked rows
 * leave no trace, threads and micro-batch sizes change no bit and no allocation. */
#include "model_test.h"

/* Documents of a pack keep apart --------------------------------------------------- */

/* Row losses of the document that begins at `begin`: [step][row][term], NaN where there is none. */
static double *document_losses(draft *d, const acr_batch *b, const acr_eagle3_options *o,
                               int64_t begin, int64_t rows)
{
    acr_eagle3_result r;
    double *out = zeros(o->ttt_steps * rows);

    learn(d, b, o, NULL, &r);
    for (int64_t i = 0; i < o->ttt_steps * rows; i++)
        out[i] = -1;
    for (int k = 0; k < o->ttt_steps; k++) {
        const acr_step_rows *s = &r.rows.step[k];
        for (int64_t i = 0; i < s->n_draft; i++) {
            int64_t t = s->t[s->draft_row[i]] - begin;
            if (s->counted[i] && t >= 0 && t < rows)
                out[k * rows + t] = r.term_loss[k][i];
        }
    }
    return out;
}

static void a21_documents_keep_apart(void **state)
{
    acr_eagle3_options o = options("kl_div", 4, 1, false);
    variant v = variants[3];

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++) {
        source s = {.seed = 21};
        sample second = sample_make(&s, 19, 0.6);
        double *alone = NULL;
        acr_batch b;
        draft d;
        int64_t found = 0;

        draft_open(&d, &v, precisions[p], 9);
        pack(&b, d.m->real, &second, NULL, 1, 64);
        alone = document_losses(&d, &b, &o, 0, second.n);
        acr_batch_free(&b);
        for (int64_t i = 0; i < o.ttt_steps * second.n; i++)
            found += alone[i] >= 0;
        assert_true(found > 20);
        /* Other tokens, states, masks, lengths before it; its supervision at its very start. */
        for (int i = 0; i < 6; i++) {
            sample both[2] = {sample_make(&s, 1 + 7 * i, i == 5 ? 0 : 0.3 * i), second};
            double *packed = NULL;
            pack(&b, d.m->real, both, NULL, 2, 64);
            packed = document_losses(&d, &b, &o, both[0].n, second.n);
            assert_memory_equal(packed, alone, (size_t)(o.ttt_steps * second.n) * sizeof(double));
            free(packed);
            acr_batch_free(&b);
            sample_free(&both[0]);
        }
        free(alone);
        sample_free(&second);
        draft_close(&d);
    }
}

static void packed_documents_lose_what_they_lose_alone(void **state)
{
    acr_eagle3_options o = options("ce", 3, 1, false);

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++) {
        source s = {.seed = 23};
        sample both[2] = {sample_make(&s, 14, 0.8), sample_make(&s, 9, 0.8)};
        acr_batch b;
        draft d;

        draft_open(&d, &plain, precisions[p], 9);
        for (int i = 0; i < 2; i++) {
            double *alone = NULL, *packed = NULL;
            pack(&b, d.m->real, &both[i], NULL, 1, 32);
            alone = document_losses(&d, &b, &o, 0, both[i].n);
            acr_batch_free(&b);
            pack(&b, d.m->real, both, NULL, 2, 32);
            packed = document_losses(&d, &b, &o, i ? both[0].n : 0, both[i].n);
            acr_batch_free(&b);
            assert_memory_equal(packed, alone, (size_t)(o.ttt_steps * both[i].n) * sizeof(double));
            for (int k = 1; k < o.ttt_steps; k++) /* no target past the document's end */
                for (int64_t t = both[i].n - k; t < both[i].n; t++)
                    assert_true(packed[k * both[i].n + t] < 0);
            free(alone);
            free(packed);
        }
        sample_free(&both[0]);
        sample_free(&both[1]);
        draft_close(&d);
    }
}

/* With across_documents the same two documents do read each other. */
static void across_documents_reads_across(void **state)
{
    acr_eagle3_options within = options("ce", 3, 1, false), across = options("ce", 3, 1, true);
    source s = {.seed = 23};
    sample both[2] = {sample_make(&s, 14, 1), sample_make(&s, 9, 1)};
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    acr_batch b;

    (void)state;
    pack(&b, ACR_DTYPE_F64, both, NULL, 2, 32);
    acr_eagle3_counts(&b, &within, counts);
    assert_int_equal(counts[0], 23);
    assert_int_equal(counts[2], 23 - 4);
    acr_eagle3_counts(&b, &across, counts);
    assert_int_equal(counts[0], 23);
    assert_int_equal(counts[2], 23 - 2);
    acr_batch_free(&b);
    sample_free(&both[0]);
    sample_free(&both[1]);
}

static void a21_a_masked_document_leaves_the_gradient_alone(void **state)
{
    acr_eagle3_options o = options("kl_div", 3, 1, false);

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++) {
        source s = {.seed = 29};
        sample last = sample_make(&s, 15, 0.5);
        double *expected = NULL;
        int64_t n = 0;

        for (int i = 0; i < 3; i++) {
            sample both[2] = {sample_make(&s, 10 + i, 0), last};
            double *g = NULL;
            acr_batch b;
            draft d;
            draft_open(&d, &plain, precisions[p], 9);
            pack(&b, d.m->real, both, NULL, 2, 40);
            learn(&d, &b, &o, NULL, NULL);
            g = gradients(d.m);
            n = gradient_elements(d.m);
            if (!expected)
                expected = g;
            else
                assert_memory_equal(g, expected, (size_t)n * sizeof *g);
            if (g != expected)
                free(g);
            acr_batch_free(&b);
            draft_close(&d);
            sample_free(&both[0]);
        }
        assert_true(distance(expected, expected, n) < 1); /* and is not zero */
        free(expected);
        sample_free(&last);
    }
}

static void nothing_supervised(void **state)
{
    acr_eagle3_options o = options("{\"nla\": 1.0, \"lk_hybrid\": 1.0}", 3, 1, false);

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++)
        for (int across = 0; across < 2; across++) {
            source s = {.seed = 31};
            sample both[2] = {sample_make(&s, 9, 0), sample_make(&s, 4, 0)};
            accrue_metrics m;
            double *g = NULL;
            acr_batch b;
            draft d;
            o.across_documents = across;
            draft_open(&d, &plain, precisions[p], 9);
            pack(&b, d.m->real, both, NULL, 2, 16);
            m = learn(&d, &b, &o, NULL, NULL);
            assert_true(m.loss_sum <= 0 && m.loss_sum >= 0);
            assert_int_equal(m.supervised_tokens, 0);
            g = gradients(d.m);
            for (int64_t i = 0; i < gradient_elements(d.m); i++)
                assert_true(g[i] <= 0 && g[i] >= 0);
            free(g);
            acr_batch_free(&b);
            draft_close(&d);
            sample_free(&both[0]);
            sample_free(&both[1]);
        }
}

static void threads_do_not_change_a_bit(void **state)
{
    acr_eagle3_options o = options("kl_div", 3, 1, false);

    (void)state;
    for (int p = 0; p < ACR_COUNT(precisions); p++) {
        source s = {.seed = 37};
        sample three[3] = {sample_make(&s, 61, 0.6), sample_make(&s, 83, 0.5),
                           sample_make(&s, 130, 0.9)};
        double *expected = NULL;

        for (int threads = 1; threads <= 3; threads++) {
            variant v = variants[5]; /* trains the embedding too */
            double *g = NULL;
            acr_batch b;
            draft d;
            accrue_set_threads(threads);
            draft_open(&d, &v, precisions[p], 9);
            pack(&b, d.m->real, three, NULL, 3, 300);
            learn(&d, &b, &o, NULL, NULL);
            g = gradients(d.m);
            if (expected) {
                assert_memory_equal(g, expected, (size_t)gradient_elements(d.m) * sizeof *g);
                free(g);
            } else {
                expected = g;
            }
            acr_batch_free(&b);
            draft_close(&d);
        }
        free(expected);
        for (int i = 0; i < 3; i++)
            sample_free(&three[i]);
    }
    accrue_set_threads(2);
}

enum { ROWS = 200 };

/* Measured on the largest micro-batch there can be: whatever follows takes no more, and nothing is
 * allocated for it; also where rows in front, within or behind are left out. */
static void steady_state_allocates_nothing(void **state)
{
    acr_eagle3_options o = options("kl_div", 3, 1, false);

    (void)state;
    for (int v = 0; v < ACR_COUNT(variants); v++)
        for (int p = 0; p < ACR_COUNT(precisions); p++) {
            source s = {.seed = 41};
            sample full = sample_make(&s, ROWS, 1);
            acr_batch b;
            draft d;
            size_t high = 0;

            draft_open(&d, &variants[v], precisions[p], 9);
            pack(&b, d.m->real, &full, NULL, 1, ROWS);
            measure(&d, &b, &o);
            high = d.t.arena.high;
            assert_true(acr_arena_reserve(&d.t.arena, high));
            learn(&d, &b, &o, NULL, NULL);
            acr_batch_free(&b);
            for (int i = 0; i < 20; i++) {
                int n = i < 4 ? 1 : 1 + (int)below(&s, 3);
                sample part[3];
                uint64_t before = 0;
                for (int j = 0; j < n; j++)
                    part[j] = sample_make(&s, i < 4 ? ROWS : 1 + below(&s, ROWS / 3),
                                          i < 4 ? 1 : 0.05 * i);
                for (int j = 0; j < 3 && i < 4; j++)
                    part[0].mask[i == 1 ? ROWS - 1 - j : i == 2 ? ROWS / 2 + j : j] = 0;
                pack(&b, d.m->real, part, NULL, n, ROWS);
                before = acr_allocations();
                learn(&d, &b, &o, NULL, NULL);
                if (acr_allocations() != before || d.t.arena.high != high)
                    fail_msg("variant %d, precision %d, micro-batch %d of %lld rows: %llu "
                             "allocations, %zu bytes of %zu",
                             v, p, i, (long long)b.n_rows,
                             (unsigned long long)(acr_allocations() - before), d.t.arena.high,
                             high);
                acr_batch_free(&b);
                for (int j = 0; j < n; j++)
                    sample_free(&part[j]);
            }
            draft_close(&d);
            sample_free(&full);
        }
}

/* Where every copy is needed, the measure is what the run takes, to the byte. */
static void the_measure_is_exact(void **state)
{
    acr_eagle3_options o = options("kl_div", 2, 1, false);
    source s = {.seed = 43};
    sample x = sample_make(&s, 50, 1);

    (void)state;
    memset(x.mask, 0, 4);
    x.mask[49] = 0;
    for (int v = 0; v < ACR_COUNT(variants); v++) {
        acr_batch b;
        size_t measured = 0;
        draft d;
        draft_open(&d, &variants[v], ACCRUE_F32, 9);
        pack(&b, d.m->real, &x, NULL, 1, 50);
        measure(&d, &b, &o);
        measured = d.t.arena.high;
        d.t.arena.high = 0;
        learn(&d, &b, &o, NULL, NULL);
        assert_int_equal(d.t.arena.high, measured);
        acr_batch_free(&b);
        draft_close(&d);
    }
    sample_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a21_documents_keep_apart),
        cmocka_unit_test(packed_documents_lose_what_they_lose_alone),
        cmocka_unit_test(across_documents_reads_across),
        cmocka_unit_test(a21_a_masked_document_leaves_the_gradient_alone),
        cmocka_unit_test(nothing_supervised),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(the_measure_is_exact),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
