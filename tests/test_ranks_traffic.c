/* test_ranks_traffic.c - what ranks send each other, and what they keep in memory: as the formulas
 * say that the documentation has. */
#include "ranks_test.h"

#include "folder_test.h"

/* Traffic --------------------------------------------------------------------------------- */

enum { WINDOWS = 2, MAX_PLACES = FEW ? 2 : 4 };

/* Counters of each rank: when the run is open, and behind each micro-batch and what follows it. */
typedef struct traffic {
    acr_comm_counters at[MAX_RANKS][1 + WINDOWS * MAX_PLACES];
    int n[MAX_RANKS];
    /* Trainable elements, groups padded to cache lines: of matrices, of those that are gathered a
     * second time because their place is needed in between, and of vectors.  The embedding, which
     * no product reads, is not sent as bf16: it is not among the matrices. */
    int64_t matrices, passing, embedding, vectors;
    int groups, groups_with_matrices, passing_groups;
    const char *const *passes; /* groups that are gathered for backward too; NULL ends them */
} traffic;

static bool is_listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

static void measure_groups(traffic *t, const acr_model *m)
{
    for (int i = 0; i < m->n_groups; i++) {
        const acr_group *g = &m->groups[i];
        const bool passes = is_listed(t->passes, g->name);
        const bool embedding = strcmp(g->name, "embed_tokens") == 0;
        t->groups += g->n > 0;
        t->groups_with_matrices += g->n_matrices > 0;
        t->passing_groups += passes;
        t->matrices += embedding ? 0 : g->n_matrices;
        t->passing += passes && !embedding ? g->n_matrices : 0;
        t->embedding += embedding ? g->n_matrices : 0;
        t->vectors += g->n - g->n_matrices;
    }
}

static accrue_status take_counters(ranks_run *r, accrue_run *run, accrue_comm *comm,
                                   accrue_error *err)
{
    traffic *t = r->payload;

    (void)err;
    t->at[run->rank][t->n[run->rank]++] = acr_comm_get_counters(comm);
    return ACCRUE_OK;
}

static accrue_status opened(ranks_run *r, accrue_run *run, accrue_error *err)
{
    if (run->rank == 0)
        measure_groups(r->payload, run->setup.model);
    return take_counters(r, run, run->comm, err);
}

/* Bytes that all ranks together sent between two points, and collectives of each. */
static int64_t sent(const traffic *t, int ranks, acr_comm_kind kind, int from, int to,
                    int64_t *collectives)
{
    int64_t bytes = 0;

    *collectives = t->at[0][to].collectives[kind] - t->at[0][from].collectives[kind];
    for (int r = 0; r < ranks; r++) {
        bytes += t->at[r][to].bytes_sent[kind] - t->at[r][from].bytes_sent[kind];
        assert_int_equal(t->at[r][to].collectives[kind] - t->at[r][from].collectives[kind],
                         *collectives);
    }
    return bytes;
}

/* The traffic of a window: R ranks, N micro-batches each, of b bytes an element, matrices sent as
 * operands of w bytes.  P: trainable elements; M: those of matrices; M2: those of matrices that are
 * gathered once more for backward; V: those of vectors.  A trained embedding counts for M and M2,
 * with w = b.  A rank sends 1/R of:
 *
 *     replicated          gradients  2 P b         weights  0
 *     sharded             gradients  N P b         weights  (R-1) (N (M + M2) w + V b)
 *     sharded, deferred   gradients  P b           weights  (R-1) (N (M + M2) w + V b)
 *
 * Exact sums are of 16 bytes: b is 16 in what replicated and deferred ranks reduce. */
static void check_window(const traffic *t, const accrue_train_options *o, int ranks, layout l,
                         int window)
{
    const int64_t n = o->window.gradient_accumulation_steps, others = ranks - 1;
    const int64_t b = o->compute == ACCRUE_F64 ? 8 : 4, w = o->compute == ACCRUE_BF16 ? 2 : b;
    const int64_t whole = t->matrices + t->embedding + t->vectors, sums = o->reproducible ? 16 : b;
    const int64_t operands = t->matrices * w + t->embedding * b;
    const int64_t again = t->passing * w + t->embedding * b;
    const int from = window * (int)n, to = from + (int)n;
    int64_t gradients = 0, gathers = 0;
    int64_t gradient_bytes = sent(t, ranks, ACR_COMM_GRADIENT, from, to, &gradients);
    int64_t weight_bytes = sent(t, ranks, ACR_COMM_WEIGHTS, from, to, &gathers);

    if (l == REPLICATED) {
        assert_int_equal(gradient_bytes, others * whole * (sums + b));
        assert_int_equal(gradients, 2 * t->groups);
        assert_int_equal(weight_bytes, 0);
        assert_int_equal(gathers, 0);
        return;
    }
    assert_int_equal(gradient_bytes, l == SHARDED ? n * others * whole * b : others * whole * sums);
    assert_int_equal(gradients, (l == SHARDED ? n : 1) * t->groups);
    assert_int_equal(weight_bytes, others * (n * (operands + again) + t->vectors * b));
    assert_int_equal(gathers, n * (t->groups_with_matrices + t->passing_groups) + t->groups);
}

/* Nothing but the window's boundary has replicated or deferred ranks send gradients. */
static void check_before_boundary(const traffic *t, const accrue_train_options *o, int ranks,
                                  layout l, int window)
{
    const int n = (int)o->window.gradient_accumulation_steps, from = window * n;
    int64_t collectives = 0;

    for (int place = 1; place < n && l != SHARDED; place++) {
        assert_int_equal(sent(t, ranks, ACR_COMM_GRADIENT, from, from + place, &collectives), 0);
        assert_int_equal(collectives, 0);
        if (l == REPLICATED)
            assert_int_equal(sent(t, ranks, ACR_COMM_WEIGHTS, from, from + place, &collectives), 0);
        assert_true(l != REPLICATED || collectives == 0);
    }
}

static void tell_window(const traffic *t, int ranks, layout l, int n)
{
    int64_t collectives = 0;
    int64_t gradients = sent(t, ranks, ACR_COMM_GRADIENT, 0, n, &collectives);
    int64_t weights = sent(t, ranks, ACR_COMM_WEIGHTS, 0, n, &collectives);

    print_message("%d ranks, N = %d, %-18s %9lld bytes of gradients, %9lld of weights\n", ranks, n,
                  layout_names[l], (long long)gradients, (long long)weights);
}

static void check_traffic(world *w, const accrue_train_options *given, int ranks,
                          const char *const *passes)
{
    for (layout l = REPLICATED; l < LAYOUTS; l++)
        for (int64_t n = 1; n <= MAX_PLACES; n++) {
            const int64_t windows[] = {n * ranks, n * ranks};
            accrue_train_options o = *given;
            traffic t = {.passes = passes};
            ranks_run r = {
                .opt = &o, .ranks = ranks, .payload = &t, .opened = opened, .after = take_counters};
            set_split(&o, n * ranks, ranks, l);
            o.batch_plan = random_plan(w, folder, o.total_seq_len, windows, WINDOWS);
            train_hooked(&r);
            for (int window = 0; window < WINDOWS; window++) {
                check_window(&t, &o, ranks, l, window);
                check_before_boundary(&t, &o, ranks, l, window);
            }
            if (n == 1 || n == MAX_PLACES)
                tell_window(&t, ranks, l, (int)n);
            ranks_run_free(&r);
            acr_free((void *)(uintptr_t)o.batch_plan);
        }
}

static const char *const fc[] = {"fc", NULL};
static const char *const fc_and_embedding[] = {"fc", "embed_tokens", NULL};
static const char *const fc_and_first[] = {"fc", "layers.0", NULL};

static void traffic_is_what_the_formula_says(void **state)
{
    world w;
    accrue_train_options o;

    (void)state;
    world_open(&w, folder, &blocks_spec);
    o = world_options(&w, folder);
    for (int ranks = 2; ranks <= MAX_RANKS - FEW; ranks++)
        check_traffic(&w, &o, ranks, fc);
    o.compute = ACCRUE_BF16;
    o.embed_requires_grad = true;
    check_traffic(&w, &o, 2, fc_and_embedding);
    o.reproducible = true;
    o.window.loss_normalization = ACCRUE_NORMALIZE_TOKEN;
    check_traffic(&w, &o, 3, fc_and_embedding);
    o.embed_requires_grad = false;
    o.num_layers = 2;
    o.ttt_steps = 1;
    check_traffic(&w, &o, 2, fc_and_first);
    world_close(&w);
}

/* Memory ---------------------------------------------------------------------------------- */

/* Hidden size 2048, 62 M trainable parameters. */
static const world_spec large_spec = {.hidden = 2048,
                                      .intermediate = 5376,
                                      .heads = 16,
                                      .kv_heads = 4,
                                      .head_dim = 128,
                                      .vocab = 64,
                                      .rows = 8,
                                      .least_tokens = 3,
                                      .most_tokens = 5,
                                      .seed = 3};

/* Masters, accumulators and moments of each rank. */
typedef struct state_bytes {
    int64_t of[MAX_RANKS], trainable;
} state_bytes;

static accrue_status count_state(ranks_run *r, accrue_run *run, accrue_error *err)
{
    state_bytes *b = r->payload;
    const acr_model *m = run->setup.model;
    const int64_t real = (int64_t)acr_dtype_bytes(m->real);
    int64_t bytes = 0;

    (void)err;
    for (int i = 0; i < m->n_params; i++)
        if (m->params[i].trainable)
            bytes += 2 * real * acr_model_share(m, &m->params[i]).n;
    for (int i = 0; i < acr_window_n_states(run->window); i++)
        bytes += real * acr_window_state(run->window, i).n;
    b->of[run->rank] = bytes;
    if (run->rank == 0)
        b->trainable = run->plan.trainable_params;
    return acr_fail(err, ACCRUE_ECANCELED, "that is all");
}

static void a_rank_keeps_its_share_of_the_state(void **state)
{
    char *plan = acr_sprintf("%s/large.json", folder);
    int64_t whole = 0;
    world w;

    (void)state;
    world_open(&w, folder, &large_spec);
    write_text(plan, "{\"total_seq_len\": 28, \"train\": [[[0], [2], [3], [5]]], \"val\": []}");
    for (int ranks = 1; ranks <= (FEW ? 1 : 4); ranks *= 2) {
        accrue_train_options o = world_options(&w, folder);
        state_bytes b = {.trainable = 0};
        acr_ledger ledger[MAX_RANKS] = {{0}};
        ranks_run r = {
            .opt = &o, .ranks = ranks, .payload = &b, .opened = count_state, .ledger = ledger};
        accrue_error e = {0};
        o.compute = ACCRUE_F32;
        o.batch_plan = plan;
        set_split(&o, 4, ranks, ranks > 1 ? SHARDED : REPLICATED);
        assert_int_equal(run_pieces(&r, &e), ACCRUE_ECANCELED);
        whole = ranks == 1 ? b.of[0] : whole;
        assert_true(b.trainable > 61000000 && b.trainable < 63000000);
        assert_true(whole >= 16 * b.trainable);
        for (int k = 0; k < ranks; k++) {
            print_message("%d ranks, rank %d: state %.1f MiB, %.2f %% of it all; peak of the open "
                          "run %.1f MiB\n",
                          ranks, k, (double)b.of[k] / (1 << 20),
                          100 * (double)b.of[k] / (double)whole,
                          (double)ledger[k].high / (1 << 20));
            assert_true((double)b.of[k] <= (1.0 / ranks + 0.05) * (double)whole);
        }
        ranks_run_free(&r);
    }
    acr_free(plan);
    world_close(&w);
}

static const world_spec middle_spec = {.hidden = 256,
                                       .intermediate = 768,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = 64,
                                       .vocab = 64,
                                       .rows = 200,
                                       .least_tokens = 3,
                                       .most_tokens = 5,
                                       .seed = 3};

/* The largest peak of a rank, over the same 64 micro-batches whatever the window. */
static double peak(world *w, const char *plan, int64_t n, int ranks, layout l, bool reproducible)
{
    accrue_train_options o = world_options(w, folder);
    acr_ledger ledger[MAX_RANKS] = {{0}};
    ranks_run r = {.opt = &o, .ranks = ranks, .ledger = ledger};
    double most = 0;

    o.compute = ACCRUE_F32;
    o.batch_plan = plan;
    o.reproducible = reproducible;
    set_split(&o, n * ranks, ranks, l);
    train_hooked(&r);
    for (int k = 0; k < ranks; k++) {
        most = fmax(most, (double)ledger[k].high);
        assert_int_equal(ledger[k].live, 0);
    }
    ranks_run_free(&r);
    return most / (1 << 20);
}

static void the_peak_is_flat_in_n(void **state)
{
    const int64_t windows[] = {64};
    char *plan = NULL;
    world w;

    (void)state;
    world_open(&w, folder, &middle_spec);
    plan = random_plan(&w, folder, 28, windows, 1);
    for (int ranks = 2; ranks <= (FEW ? 2 : 4); ranks += 2)
        for (layout l = REPLICATED; l < LAYOUTS; l++)
            for (int reproducible = 0; reproducible < 2; reproducible++) {
                /* A replicated micro-batch that is the window needs no sum beside its gradient. */
                const int least = l == REPLICATED && !reproducible ? 2 : 1;
                double one = peak(&w, plan, least, ranks, l, reproducible);
                double many = peak(&w, plan, 16, ranks, l, reproducible);
                print_message("%d ranks, %s%s: %.2f MiB at N = %d, %.2f at N = 16\n", ranks,
                              layout_names[l], reproducible ? ", reproducible" : "", one, least,
                              many);
                assert_true(fabs(many - one) <= 0.02 * one);
            }
    acr_free(plan);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(traffic_is_what_the_formula_says),
        TEST(a_rank_keeps_its_share_of_the_state),
        TEST(the_peak_is_flat_in_n),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
