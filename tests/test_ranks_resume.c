/* test_ranks_resume.c - what a job of four ranks saved goes on with any other number of them, in
 * any layout, to the end of a run that was never stopped; another window is refused. */
#include "ranks_train_test.h"

static char *folder;
static world w;
static int n_out;

enum { WINDOW = 12, EPOCHS = 2, STEPS = 6 };

static int make(void **state)
{
    (void)state;
    accrue_set_threads(2);
    folder = make_folder();
    world_open(&w, folder, &blocks_spec);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    world_close(&w);
    remove_folder(folder);
    return 0;
}

static char *next_out(void)
{
    return acr_sprintf("%s/out%d", folder, n_out++);
}

/* Two epochs of two windows and a tail, and three micro-batches to validate with. */
static char *make_plan(void)
{
    static const int64_t windows[] = {WINDOW, WINDOW, 5};
    char *path = random_plan(&w, folder, 28, windows, 3);
    json_t *plan = NULL, *train = NULL;

    assert_int_equal(acr_json_load(&plan, path, 1 << 20, NULL), ACCRUE_OK);
    train = json_object_get(plan, "train");
    json_array_append(train, json_array_get(train, 0));
    json_object_set_new(plan, "val",
                        json_pack("[[[i],[i,i],[i]],[[i],[i,i],[i]]]", 0, 2, 3, 5, 6, 8, 9, 11));
    assert_int_equal(json_dump_file(plan, path, 0), 0);
    json_decref(plan);
    return path;
}

typedef struct split {
    int ranks;
    layout layout;
} split;

static const split four = {4, SHARDED};
static const split others[] = {{1, REPLICATED}, {2, SHARDED},    {3, SHARDED},
                               {2, REPLICATED}, {4, REPLICATED}, {3, DEFERRED}};

static accrue_train_options options(const char *plan, const char *out, split s)
{
    accrue_train_options o = world_options(&w, out);

    set_split(&o, WINDOW, s.ranks, s.layout);
    o.batch_plan = plan;
    o.epochs = EPOCHS;
    o.accumulation_tail = ACCRUE_TAIL_STEP;
    o.window.scheduler = ACCRUE_SCHEDULE_LINEAR;
    o.window.optimizer = ACCRUE_MUON;
    o.checkpoint_freq = 1;
    return o;
}

/* What a run told over its parts, and behind which step it is to stop: ranks hear of it where they
 * next meet, so it is said before that step. */
typedef struct heard {
    steps steps;
    int64_t stop_at;
} heard;

static int hear(const accrue_event *e, void *payload)
{
    heard *h = payload;

    (void)note_step(e, &h->steps);
    return e->kind == ACCRUE_EVENT_MICRO_BATCH && e->global_step == h->stop_at - 1
               ? ACCRUE_SAVE_AND_STOP
               : ACCRUE_GO_ON;
}

/* Ranks tell alike; the first one's steps are kept. */
static accrue_status train(const accrue_train_options *o, split s, int64_t stop_at, steps *all,
                           accrue_error *e)
{
    heard h[MAX_RANKS] = {{.stop_at = stop_at}};
    training_run t = {.opt = o, .ranks = s.ranks, .cb = hear, .who = -1};
    accrue_status st = ACCRUE_OK;

    for (int r = 0; r < s.ranks; r++) {
        h[r].steps = *all;
        t.payload[r] = &h[r];
    }
    st = train_ranks(&t);
    for (int r = 1; r < s.ranks; r++)
        assert_same_steps(&h[r].steps, &h[0].steps, true);
    *all = h[0].steps;
    *e = t.error[0];
    return st;
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    shell(acr_sprintf("cmp '%s/%s' '%s/%s'", a, name, b, name));
}

static double tensor_distance(const acr_tensor *a, const acr_tensor *b)
{
    const double *x = a->data, *y = b->data;
    double difference = 0, size = 0;

    assert_int_equal(a->dtype, ACR_DTYPE_F64);
    assert_int_equal(a->bytes, b->bytes);
    for (int64_t i = 0; i < acr_tensor_elements(a); i++) {
        difference = fmax(difference, fabs(x[i] - y[i]));
        size = fmax(size, fabs(y[i]));
    }
    return difference / size;
}

/* Masters and moments, each within 1e-12 of its largest element. */
static double assert_near(const char *a, const char *b)
{
    char *x = acr_sprintf("%s/1/state.tensors", a),
         *y = acr_sprintf("%s/1/state.tensors", b);
    acr_safetensors *f = NULL, *g = NULL;
    accrue_error e = {0};
    double worst = 0;

    assert_ok(acr_safetensors_open(&f, x, &e), &e);
    assert_ok(acr_safetensors_open(&g, y, &e), &e);
    assert_int_equal(acr_safetensors_count(f), acr_safetensors_count(g));
    for (int i = 0; i < acr_safetensors_count(f); i++) {
        const acr_tensor *t = acr_safetensors_at(f, i), *u = acr_safetensors_at(g, i);
        double d = tensor_distance(t, u);
        assert_string_equal(t->name, u->name);
        if (!(d <= 1e-12))
            fail_msg("%s is off by %g", t->name, d);
        worst = fmax(worst, d);
    }
    acr_safetensors_close(f);
    acr_safetensors_close(g);
    acr_free(x);
    acr_free(y);
    return worst;
}

/* A run that was never stopped, and one that goes on with another split behind a step. */
typedef struct pair {
    const char *plan, *straight;
    bool reproducible;
    accrue_dtype compute;
    steps steps;
    double worst;
} pair;

static void set_kind(accrue_train_options *o, const pair *p)
{
    o->reproducible = p->reproducible;
    o->compute = p->compute;
    if (p->compute == ACCRUE_F32)
        o->window.optimizer = ACCRUE_ADAMW;
}

static void check_end(pair *p, const char *out, const steps *seen)
{
    assert_same_steps(seen, &p->steps, p->reproducible);
    if (p->reproducible) {
        assert_same_file(out, p->straight, "1/state.tensors");
        assert_same_file(out, p->straight, "1/model.safetensors");
        assert_same_file(out, p->straight, "1/val_metrics.json");
    } else {
        p->worst = fmax(p->worst, assert_near(out, p->straight));
    }
}

static void stop_and_go_on(pair *p, int64_t stop_at, split second)
{
    char *out = next_out();
    accrue_train_options o = options(p->plan, out, four);
    accrue_error e = {0};
    steps seen = {.n = 0};

    set_kind(&o, p);
    assert_fails(train(&o, four, stop_at, &seen, &e), ACCRUE_ECANCELED, &e, "stopped as asked",
                 NULL);
    assert_int_equal(seen.n, stop_at);
    o = options(p->plan, out, second);
    set_kind(&o, p);
    assert_ok(train(&o, second, 0, &seen, &e), &e);
    check_end(p, out, &seen);
    remove_tree(out);
    acr_free(out);
}

/* A split of its own behind every step. */
static void change_all_the_time(pair *p)
{
    char *out = next_out();
    steps seen = {.n = 0};

    for (int64_t step = 1; step <= STEPS; step++) {
        split s = step == 1 ? four : others[step % ACR_COUNT(others)];
        accrue_train_options o = options(p->plan, out, s);
        accrue_error e = {0};
        accrue_status st = ACCRUE_OK;
        set_kind(&o, p);
        if (step % 2) {
            o.global_window = WINDOW;
            o.window.gradient_accumulation_steps = 1;
        }
        st = train(&o, s, step == STEPS ? 0 : step, &seen, &e);
        assert_int_equal(st, step == STEPS ? ACCRUE_OK : ACCRUE_ECANCELED);
    }
    check_end(p, out, &seen);
    remove_tree(out);
    acr_free(out);
}

static void check_pair(pair *p)
{
    char *straight = next_out();
    accrue_train_options o = options(p->plan, straight, four);
    accrue_error e = {0};

    p->straight = straight;
    set_kind(&o, p);
    assert_ok(train(&o, four, 0, &p->steps, &e), &e);
    assert_int_equal(p->steps.n, STEPS);
    for (int i = FEW; i < ACR_COUNT(others); i += 1 + 2 * FEW)
        stop_and_go_on(p, 1 + i % 4, others[i]); /* behind the third an epoch ends */
    if (!FEW)
        stop_and_go_on(p, 3, others[0]);
    change_all_the_time(p);
    acr_free(straight);
}

static void reproducible_to_the_bit(void **state)
{
    static const accrue_dtype computes[] = {ACCRUE_F64, ACCRUE_F32, ACCRUE_BF16};
    char *plan = make_plan();

    (void)state;
    for (int i = FEW; i < ACR_COUNT(computes); i++) {
        pair p = {.plan = plan, .reproducible = true, .compute = computes[i]};
        check_pair(&p);
    }
    acr_free(plan);
}

static void without_it_within_the_bound(void **state)
{
    char *plan = make_plan();
    pair p = {.plan = plan, .compute = ACCRUE_F64};

    (void)state;
    check_pair(&p);
    print_message("within %.1e of a run that was never stopped\n", p.worst);
    acr_free(plan);
}

/* With `ranks` the library has the threads, and the first rank alone tells. */
static void threads_of_the_library(void **state)
{
    char *plan = make_plan(), *out = next_out();
    pair p = {.plan = plan, .straight = next_out(), .reproducible = true, .compute = ACCRUE_F32};
    accrue_train_options o = options(plan, p.straight, four);
    accrue_error e = {0};
    heard h = {.stop_at = 2};

    (void)state;
    set_kind(&o, &p);
    assert_ok(train(&o, four, 0, &p.steps, &e), &e);
    o = options(plan, out, (split){3, SHARDED});
    set_kind(&o, &p);
    o.ranks = 3;
    assert_fails(accrue_train(&o, hear, &h, &e), ACCRUE_ECANCELED, &e, "stopped as asked", NULL);
    h.stop_at = 0;
    assert_ok(accrue_train(&o, hear, &h, &e), &e);
    check_end(&p, out, &h.steps);
    acr_free((void *)(uintptr_t)p.straight);
    acr_free(out);
    acr_free(plan);
}

/* Refusals -------------------------------------------------------------------------------- */

static void refused(const accrue_train_options *o, int ranks, const char *a, const char *b)
{
    accrue_error e = {0};
    steps none = {.n = 0};

    assert_fails(train(o, (split){ranks, REPLICATED}, 0, &none, &e), ACCRUE_EMISMATCH, &e,
                 "Cannot resume: ", a, b, NULL);
    assert_int_equal(none.n, 0);
}

static void another_window_is_refused(void **state)
{
    char *plan = make_plan(), *out = next_out();
    accrue_train_options o = options(plan, out, four);
    accrue_error e = {0};
    steps seen = {.n = 0};

    (void)state;
    assert_int_equal(train(&o, four, 2, &seen, &e), ACCRUE_ECANCELED);
    o.fsdp_shard = false;
    o.window.gradient_accumulation_steps = 5;
    refused(&o, 2, "12 micro-batches (\"gradient_accumulation_steps\" 3 on 4 ranks)",
            "10 (--gradient-accumulation-steps 5 on 2)");
    o.window.gradient_accumulation_steps = 2;
    refused(&o, 4, "\"gradient_accumulation_steps\" is 3", "is 2");
    o.global_window = 24;
    refused(&o, 3, "3 on 4 ranks", "--gradient-accumulation-steps 8 on 3");
    o.global_window = 13;
    seen.n = 0;
    assert_fails(train(&o, (split){3, REPLICATED}, 0, &seen, &e), ACCRUE_EINVAL, &e,
                 "--global-window: 13 is no multiple of the number of ranks, 3", NULL);
    o.global_window = 12;
    seen.n = 0;
    assert_ok(train(&o, (split){3, REPLICATED}, 0, &seen, &e), &e);
    assert_int_equal(seen.n, STEPS - 2);
    acr_free(out);
    acr_free(plan);
}

/* As versions wrote them that knew of one rank alone. */
static void forget_ranks(const char *dir)
{
    char *path = acr_sprintf("%s/training_state.json", dir);
    json_t *state = NULL;

    assert_int_equal(acr_json_load(&state, path, 1 << 20, NULL), ACCRUE_OK);
    assert_int_equal(json_object_del(state, "ranks"), 0);
    assert_int_equal(json_dump_file(state, path, 0), 0);
    json_decref(state);
    acr_free(path);
    remake_manifest(dir);
}

static void without_ranks_it_was_one(void **state)
{
    const split one = {1, REPLICATED}, two = {2, SHARDED};
    char *plan = make_plan(), *out = next_out(), *dir = acr_sprintf("%s/0", out);
    accrue_train_options o = options(plan, out, one);
    accrue_error e = {0};
    steps seen = {.n = 0};

    (void)state;
    assert_int_equal(train(&o, one, 1, &seen, &e), ACCRUE_ECANCELED);
    forget_ranks(dir);
    o.window.gradient_accumulation_steps = 12;
    refused(&o, 2, "12 on 1 ranks", "--gradient-accumulation-steps 12 on 2");
    o = options(plan, out, two);
    assert_int_equal(train(&o, two, 2, &seen, &e), ACCRUE_ECANCELED);
    assert_int_equal(seen.n, 2);
    o = options(plan, out, one);
    assert_ok(train(&o, one, 0, &seen, &e), &e);
    assert_int_equal(seen.n, STEPS);
    acr_free(dir);
    acr_free(out);
    acr_free(plan);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reproducible_to_the_bit),  TEST(without_it_within_the_bound),
        TEST(threads_of_the_library),   TEST(another_window_is_refused),
        TEST(without_ranks_it_was_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
