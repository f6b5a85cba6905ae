/* test_ranks_rows.c - bad and missing rows, micro-batches that are not finite, and callbacks that
 * ask for something, on one rank or on several at once: all ranks do the same about them, and what
 * is left is what one rank would have made of it. */
#include "ranks_train_test.h"

#include "bad_rows_test.h"

static char *folder;
static world w;
static int n_out;

static int make(void **state)
{
    (void)state;
    accrue_set_threads(2);
    folder = make_folder();
    n_out = 0;
    return 0;
}

static int clear(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

enum { WINDOW = 4, PLACES = 12, MAX_AT = 5 };

/* Where rows with a fault stand among the micro-batches of three windows; -1 ends a list. */
static const int places[][MAX_AT + 1] = {
    {1, -1},          /* one rank's */
    {1, 2, -1},       /* of two ranks at once */
    {0, 6, 11, -1},   /* in different windows, of different ranks */
    {4, 5, 6, 7, -1}, /* a whole window */
    {0, 1, 2, 3, 9, -1},
};

/* Rows 8k + 6 at these places, each alone or behind a good one; three rows to validate with. */
static char *plan_with(const int *at, bool alone)
{
    static const int good[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12};
    char *path = acr_sprintf("%s/rows.json", folder), *plan = NULL, text[1024] = "";
    size_t used = 0;
    int rogue = 6;

    for (int i = 0; i < PLACES; i++) {
        const bool is = *at == i;
        const char *comma = i ? ", " : "";
        size_t room = sizeof text - used;
        if (is && alone)
            used += (size_t)snprintf(text + used, room, "%s[%d]", comma, rogue);
        else if (is)
            used += (size_t)snprintf(text + used, room, "%s[%d, %d]", comma, good[i], rogue);
        else
            used += (size_t)snprintf(text + used, room, "%s[%d]", comma, good[i]);
        rogue += is ? 8 : 0;
        at += is;
    }
    plan = acr_sprintf(
        "{\"total_seq_len\": 28, \"train\": [[%s]], \"val\": [[[13], [15, 16], [17]]]}", text);
    write_text(path, plan);
    acr_free(plan);
    return path;
}

static accrue_train_options options(const char *plan, int ranks, layout l, const char *out)
{
    accrue_train_options o = world_options(&w, out);

    set_split(&o, WINDOW, ranks, l);
    o.compute = ACCRUE_F32;
    o.batch_plan = plan;
    o.checkpoint_freq = 0.3;
    o.check_bytes = 0;
    o.reproducible = true;
    o.comm_timeout = 10;
    o.on_nonfinite = o.on_bad = ACCRUE_POLICY_SKIP;
    o.max_bad = 20;
    if (w.spec.rogues == ROGUE_GRADIENT)
        o.ttt_step_loss_decay = 1e50;
    return o;
}

/* Steps, and the notices of a rank. */
typedef struct heard {
    steps steps;
    int64_t skipped_nonfinite, skipped_rows, empty;
    int64_t at; /* event to which it answers, of those that ranks have alike; 0: none */
    int64_t events;
    int answer;
    const char *vanishes; /* a file that is gone behind the start */
} heard;

static int hear(const accrue_event *e, void *payload)
{
    heard *h = payload;

    (void)note_step(e, &h->steps);
    if (e->kind == ACCRUE_EVENT_START && h->vanishes)
        (void)unlink(h->vanishes);
    h->skipped_nonfinite = e->skipped_nonfinite;
    h->skipped_rows = e->skipped_rows;
    h->empty = e->empty_windows;
    if (e->kind != ACCRUE_EVENT_MICRO_BATCH && e->kind != ACCRUE_EVENT_STEP &&
        e->kind != ACCRUE_EVENT_VALIDATING)
        return ACCRUE_GO_ON;
    return ++h->events == h->at ? h->answer : ACCRUE_GO_ON;
}

static char *next_out(void)
{
    return acr_sprintf("%s/out%d", folder, n_out++);
}

static accrue_status train(const accrue_train_options *o, int ranks, heard *h, training_run *t)
{
    *t = (training_run){.opt = o, .ranks = ranks, .cb = hear, .who = -1};
    for (int r = 0; r < ranks; r++)
        t->payload[r] = &h[r];
    return train_ranks(t);
}

static void assert_same_state(const char *a, const char *b)
{
    assert_same_file(a, b, "0/state.tensors");
    assert_same_file(a, b, "0/model.safetensors");
    assert_same_file(a, b, "0/val_metrics.json");
}

/* Splits of the window, and what one rank made of it. */
static const struct {
    int ranks;
    layout layout;
} splits[] = {{2, REPLICATED}, {4, REPLICATED}, {2, SHARDED}, {4, SHARDED}, {4, DEFERRED}};

/* Skipped on several ranks as on one; raised, with the same words on all ranks, and gone on from
 * to the same end. */
static void check_split(const accrue_train_options *given, int split, const char *one,
                        const heard *first, accrue_status raised)
{
    accrue_train_options o = *given;
    heard h[MAX_RANKS] = {{.at = 0}};
    char *out = next_out();
    training_run t;

    set_split(&o, WINDOW, splits[split].ranks, splits[split].layout);
    o.save_path = out;
    assert_ok(train(&o, splits[split].ranks, h, &t), &t.error[0]);
    for (int r = 0; r < splits[split].ranks; r++) {
        assert_same_steps(&h[r].steps, &first->steps, true);
        assert_int_equal(h[r].skipped_nonfinite, first->skipped_nonfinite);
        assert_int_equal(h[r].skipped_rows, first->skipped_rows);
        assert_int_equal(h[r].empty, first->empty);
    }
    assert_same_state(out, one);
    remove_tree(out);
    o.on_bad = o.on_nonfinite = ACCRUE_POLICY_RAISE;
    memset(h, 0, sizeof h);
    assert_fails(train(&o, splits[split].ranks, h, &t), raised, &t.error[0], "rank ", NULL);
    o.on_bad = o.on_nonfinite = ACCRUE_POLICY_SKIP;
    assert_ok(train(&o, splits[split].ranks, h, &t), &t.error[0]);
    assert_same_state(out, one);
    remove_tree(out);
    acr_free(out);
}

static void check_places(const int *at, bool alone, accrue_status raised)
{
    char *plan = plan_with(at, alone), *one = next_out();
    accrue_train_options o = options(plan, 1, REPLICATED, one);
    heard first = {.at = 0};
    training_run t;

    assert_ok(train(&o, 1, &first, &t), &t.error[0]);
    assert_true(first.skipped_nonfinite + first.skipped_rows > 0);
    for (int s = 0; s < ACR_COUNT(splits); s++)
        check_split(&o, s, one, &first, raised);
    remove_tree(one);
    acr_free(one);
    acr_free(plan);
}

static void open_world(rogues r)
{
    world_spec spec = small_spec;

    spec.rogues = r;
    spec.rows = 48;
    world_open(&w, folder, &spec);
}

/* Bad rows -------------------------------------------------------------------------------- */

static void bad_rows(void **state)
{
    (void)state;
    open_world(NO_ROGUES);
    for (int64_t row = 6; row < 48; row += 8)
        row % 16 == 6 ? spoil_states(w.data, row) : cut_states(w.data, row);
    for (int i = 0; i < ACR_COUNT(places); i++)
        for (int alone = 0; alone < 2; alone++)
            if (places[i][0] != 4 || !alone || i == 3)
                check_places(places[i], alone, ACCRUE_EFORMAT);
    world_close(&w);
}

/* Where the second row at fault is one too many: found with the first one, by another rank, or
 * later.  What was trained before is saved. */
static void too_many_bad_rows(void **state)
{
    static const int where[][3] = {{5, 6, -1}, {0, 6, -1}};

    (void)state;
    open_world(NO_ROGUES);
    for (int64_t row = 6; row < 48; row += 8)
        spoil_states(w.data, row);
    for (int i = 0; i < 2 * ACR_COUNT(splits); i++) {
        const int s = i / 2;
        char *plan = plan_with(where[i % 2], false), *out = next_out();
        char *saved = acr_sprintf("%s/0/training_state.json", out);
        accrue_train_options o = options(plan, splits[s].ranks, splits[s].layout, out);
        heard h[MAX_RANKS] = {{.at = 0}};
        training_run t;
        o.max_bad = 1;
        o.checkpoint_freq = 1;
        assert_fails(train(&o, splits[s].ranks, h, &t), ACCRUE_EMISMATCH, &t.error[0], "rank ",
                     "--max-bad 1", "2 rows of 48", NULL);
        assert_int_equal(h[0].steps.n, 1);
        assert_true(acr_is_file(saved));
        acr_free(saved);
        acr_free(plan);
        acr_free(out);
    }
    world_close(&w);
}

/* Missing rows ---------------------------------------------------------------------------- */

/* Known before the first step on all ranks, or gone under one of them. */
static void missing_rows(void **state)
{
    char *plan = NULL;

    (void)state;
    open_world(NO_ROGUES);
    plan = plan_with(places[1], false);
    for (int s = -1; s < ACR_COUNT(splits); s++) {
        const int ranks = s < 0 ? 1 : splits[s].ranks;
        char *gone = states_of(w.data, 6), *aside = acr_sprintf("%s/aside", folder);
        for (int later = 0; later < 2; later++) {
            char *out = acr_sprintf("%s/gone%d_%d", folder, s + 1, later);
            char *one = acr_sprintf("%s/gone0_%d", folder, later);
            accrue_train_options o =
                options(plan, ranks, s < 0 ? REPLICATED : splits[s].layout, out);
            heard h[MAX_RANKS] = {{.at = 0}};
            training_run t;
            for (int r = 0; r < ranks; r++)
                h[r].vanishes = later ? gone : NULL; /* before the rank's loader starts */
            o.on_missing = ACCRUE_POLICY_SKIP;
            shell(acr_sprintf("cp '%s' '%s'", gone, aside));
            if (!later)
                assert_int_equal(unlink(gone), 0);
            assert_ok(train(&o, ranks, h, &t), &t.error[0]);
            for (int r = 0; r < ranks; r++)
                assert_int_equal(h[r].skipped_rows, 1);
            assert_same_state(out, one);
            shell(acr_sprintf("cp '%s' '%s'", aside, gone));
            acr_free(out);
            acr_free(one);
        }
        acr_free(gone);
        acr_free(aside);
    }
    acr_free(plan);
    world_close(&w);
}

/* Not finite ------------------------------------------------------------------------------ */

static const void *spoilt; /* embedding in f64 */

static accrue_status spoil(ranks_run *r, accrue_run *run, accrue_error *err)
{
    acr_param *embed = run->setup.model->top.embed;

    (void)r;
    (void)err;
    embed->frozen = spoilt;
    embed->frozen_type = ACR_DTYPE_F64;
    return ACCRUE_OK;
}

/* The verifier's, but infinite for the last token; freed with acr_free. */
static double *spoilt_embedding(const accrue_train_options *o)
{
    accrue_error e = {0};
    acr_setup setup;
    const acr_param *embed = NULL;
    double *copy = NULL;
    int64_t n = 0;

    assert_ok(acr_setup_open(&setup, o, &e), &e);
    embed = setup.model->top.embed;
    n = embed->rows * embed->cols;
    copy = acr_malloc((size_t)n * sizeof *copy);
    assert_non_null(copy);
    acr_convert(ACR_DTYPE_F64, copy, embed->frozen_type, embed->frozen, n);
    for (int64_t i = 1; i <= embed->cols; i++)
        copy[n - i] = HUGE_VAL;
    acr_setup_free(&setup);
    return copy;
}

static void check_losses(const accrue_train_options *given)
{
    accrue_train_options o = *given;
    ranks_run first = {.opt = &o, .ranks = 1, .opened = spoil};

    train_hooked(&first);
    for (int s = 0; s < ACR_COUNT(splits); s++) {
        ranks_run split = {.opt = &o, .ranks = splits[s].ranks, .opened = spoil};
        accrue_error e = {0};
        set_split(&o, WINDOW, splits[s].ranks, splits[s].layout);
        train_hooked(&split);
        assert_memory_equal(split.masters[0], first.masters[0], (size_t)first.n * sizeof(double));
        for (int r = 0; r < split.ranks; r++)
            assert_same_steps(&split.steps[r], &first.steps[0], true);
        ranks_run_free(&split);
        split = (ranks_run){.opt = &o, .ranks = splits[s].ranks, .opened = spoil};
        o.on_nonfinite = ACCRUE_POLICY_RAISE;
        assert_fails(run_pieces(&split, &e), ACCRUE_ENUMERIC, &e, "rank ", "the loss is NaN", NULL);
        for (int r = 0; r < split.ranks; r++)
            assert_string_equal(split.error[r].message, e.message);
        o.on_nonfinite = ACCRUE_POLICY_SKIP;
        ranks_run_free(&split);
    }
    ranks_run_free(&first);
}

static void losses_that_are_not_finite(void **state)
{
    double *embedding = NULL;

    (void)state;
    open_world(ROGUE_LOSS);
    for (int i = 0; i < ACR_COUNT(places); i++) {
        char *plan = plan_with(places[i], i % 2);
        accrue_train_options o = options(plan, 1, REPLICATED, folder);
        o.window.loss_normalization = i % 3 ? ACCRUE_NORMALIZE_MICROBATCH : ACCRUE_NORMALIZE_TOKEN;
        if (!embedding)
            spoilt = embedding = spoilt_embedding(&o);
        check_losses(&o);
        acr_free(plan);
    }
    acr_free(embedding);
    world_close(&w);
}

static void gradients_that_are_not_finite(void **state)
{
    (void)state;
    open_world(ROGUE_GRADIENT);
    for (int i = 0; i < ACR_COUNT(places); i++)
        check_places(places[i], i % 2, ACCRUE_ENUMERIC);
    world_close(&w);
}

/* Callbacks ------------------------------------------------------------------------------- */

/* One rank's callback asks, at any of its events, and all ranks do so. */
static void ask(int split, const char *plan, const char *one, int who, int answer)
{
    int64_t stopped = 0;

    for (int64_t at = 1;; at++) {
        char *out = next_out();
        accrue_train_options o = options(plan, splits[split].ranks, splits[split].layout, out);
        heard h[MAX_RANKS] = {{.at = 0}};
        accrue_status st = ACCRUE_OK;
        training_run t;
        int64_t events = 0;
        h[who].at = at;
        h[who].answer = answer;
        o.checkpoint_freq = 1;
        st = train(&o, splits[split].ranks, h, &t);
        events = h[who].events;
        if (st)
            assert_fails(st, ACCRUE_ECANCELED, &t.error[0], NULL);
        if (events < at || answer == ACCRUE_SAVE)
            assert_int_equal(st, ACCRUE_OK);
        stopped += st != ACCRUE_OK;
        memset(h, 0, sizeof h);
        if (st)
            assert_ok(train(&o, splits[split].ranks, h, &t), &t.error[0]);
        assert_same_state(out, one);
        remove_tree(out);
        acr_free(out);
        if (events < at)
            break;
    }
    assert_true(answer == ACCRUE_SAVE || stopped > 5);
}

static void a_callback_of_one_rank_asks(void **state)
{
    static const int answers[] = {ACCRUE_SAVE, ACCRUE_SAVE_AND_STOP, ACCRUE_CANCEL,
                                  ACCRUE_GIVE_UP_AND_STOP};
    const int none[] = {-1};
    char *plan = NULL, *one = next_out();
    accrue_train_options o;
    heard first = {.at = 0};
    training_run t;

    (void)state;
    open_world(NO_ROGUES);
    plan = plan_with(none, false);
    o = options(plan, 1, REPLICATED, one);
    assert_ok(train(&o, 1, &first, &t), &t.error[0]);
    for (int s = 0; s < ACR_COUNT(splits); s += 3)
        for (int i = 0; i < ACR_COUNT(answers); i++)
            for (int who = 0; who < 2; who++)
                ask(s, plan, one, who, answers[i]);
    acr_free(plan);
    acr_free(one);
    world_close(&w);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clear)

/* Options ----------------------------------------------------------------------------------- */

static accrue_status open_unlike(accrue_comm *comm, void *ctx, accrue_error *err)
{
    accrue_train_options o = *(const accrue_train_options *)ctx;
    accrue_run *run = NULL;
    accrue_status st = ACCRUE_OK;

    o.comm = comm;
    o.window.lr *= accrue_comm_rank(comm) == 1 ? 2 : 1;
    st = accrue_run_open(&run, &o, NULL, NULL, err);
    accrue_run_free(run);
    return st;
}

static void other_options_are_refused(void **state)
{
    accrue_error e = {0};
    accrue_train_options o;
    world own;

    (void)state;
    world_open(&own, folder, &small_spec);
    o = world_options(&own, folder);
    assert_fails(acr_ranks_run(3, 10, open_unlike, &o, &e), ACCRUE_EMISMATCH, &e,
                 "the options: rank 1 has", "rank 0", NULL);
    world_close(&own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(other_options_are_refused),   TEST(bad_rows),
        TEST(too_many_bad_rows),           TEST(missing_rows),
        TEST(losses_that_are_not_finite),  TEST(gradients_that_are_not_finite),
        TEST(a_callback_of_one_rank_asks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
