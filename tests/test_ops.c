/* test_ops.c - every operator of the tape against central differences in f64, and what the tape
 * promises around them: use counts, measuring, no_grad, failures. */
#include "ops_cases.h"

/* Evaluation ------------------------------------------------------------------------------- */

static void graph_open(graph *g)
{
    accrue_error e;

    memset(g, 0, sizeof *g);
    g->group.name = "group";
    assert_int_equal(acr_tape_init(&g->t, ACCRUE_F64, &e), ACCRUE_OK);
    for (int i = 0; i < 2 * MAX_ROWS; i++)
        g->lambda[i / MAX_ROWS][i % MAX_ROWS] = (double)NAN;
}

static void graph_close(graph *g)
{
    acr_tape_free(&g->t);
    for (int i = 0; i < MAX_ARRAYS; i++) {
        free(g->input[i].data);
        free(g->weight[i].data);
        free(g->param[i].grad);
    }
    free(g->cotangent.data);
}

static double distill_scalar(graph *g)
{
    const int n_terms = g->spec.n_terms;
    double sum = 0;

    for (int k = 0; k < g->distill.n_steps; k++)
        for (int64_t i = 0; i < g->distill.step[k].n; i++) {
            const double *row = &g->term_loss[k][i * n_terms];
            double *lambda = &g->lambda[k][i];
            double loss = 0;
            if (!g->counted[k][i])
                continue;
            for (int j = 0; j < n_terms; j++)
                loss += g->spec.weight[j] * row[j];
            if (g->split_hybrid) {
                if (isnan(*lambda))
                    *lambda = exp(-3 * (1 - row[1]));
                loss = 0.75 * (*lambda * row[0] + (1 - *lambda) * row[1]);
            }
            sum += g->distill.step[k].scale * loss;
        }
    return sum;
}

/* Builds the graph and returns the scalar: the output weighted by a fixed cotangent. */
static double forward(graph *g, const op_case *c)
{
    double sum = 0;

    acr_tape_reset(&g->t);
    c->build(g, c->variant);
    if (g->t.status || g->t.arena.measuring)
        return 0;
    if (!g->out)
        return distill_scalar(g);
    array_data(&g->cotangent, 70, g->out->rows * g->out->cols);
    for (int64_t i = 0; i < g->cotangent.n; i++)
        sum += g->cotangent.data[i] * ((const double *)g->out->data)[i];
    return sum;
}

static void backward(graph *g)
{
    void *seed = g->out ? acr_grad(&g->t, g->out) : NULL;

    if (seed && !g->t.arena.measuring)
        memcpy(seed, g->cotangent.data, (size_t)g->cotangent.n * sizeof(double));
    acr_tape_backward(&g->t);
}

static double difference(graph *g, const op_case *c, double *x)
{
    const double step = 1e-5;
    double kept = *x, up = 0, down = 0;

    *x = kept + step;
    up = forward(g, c);
    *x = kept - step;
    down = forward(g, c);
    *x = kept;
    return (up - down) / (2 * step);
}

static void check_array(graph *g, const op_case *c, const char *kind, int which, array *a,
                        const double *gradient)
{
    int64_t checked = a->n < MAX_CHECKED ? a->n : MAX_CHECKED;

    for (int64_t j = 0; j < checked; j++) {
        int64_t at =
            a->n <= MAX_CHECKED
                ? j
                : (int64_t)(acr_random_u64(1, ACR_RANDOM_INIT, 80, (uint64_t)j) % (uint64_t)a->n);
        double expected = difference(g, c, &a->data[at]);
        double got = gradient ? gradient[at] : 0;
        if (!(fabs(got - expected) <= 2e-8 * (1 + fabs(expected))))
            fail_msg("%s, %s: %s %d, element %lld: %.12g, %.12g expected", c->op, c->what, kind,
                     which, (long long)at, got, expected);
    }
}

static bool has_record(const acr_tape *t, const char *op)
{
    for (int64_t i = 0; i < t->n_records; i++)
        if (strcmp(t->records[i]->op->name, op) == 0)
            return true;
    return false;
}

static void check_case(const op_case *c)
{
    graph *g = calloc(1, sizeof *g);
    double *gradient[MAX_ARRAYS] = {NULL};
    bool needed[MAX_ARRAYS] = {false};

    assert_non_null(g);
    graph_open(g);
    forward(g, c);
    assert_int_equal(g->t.status, ACCRUE_OK);
    if (!has_record(&g->t, c->op))
        fail_msg("the case %s, %s pushes no such operator", c->op, c->what);
    backward(g);
    assert_int_equal(g->t.status, ACCRUE_OK);
    for (int i = 0; i < MAX_ARRAYS; i++)
        if (g->value[i]) {
            size_t bytes = (size_t)g->input[i].n * sizeof(double);
            needed[i] = g->value[i]->needs_grad;
            gradient[i] = calloc(1, bytes + 1);
            assert_non_null(gradient[i]);
            if (g->value[i]->grad)
                memcpy(gradient[i], g->value[i]->grad, bytes);
        }
    g->split_hybrid = g->spec.n_terms && g->spec.kind[0] == ACR_LOSS_LK_HYBRID;
    for (int i = 0; i < MAX_ARRAYS; i++) {
        if (needed[i])
            check_array(g, c, "input", i, &g->input[i], gradient[i]);
        if (g->param[i].grad) {
            double *kept = calloc((size_t)g->weight[i].n, sizeof(double));
            assert_non_null(kept);
            memcpy(kept, g->param[i].grad, (size_t)g->weight[i].n * sizeof(double));
            check_array(g, c, "parameter", i, &g->weight[i], kept);
            free(kept);
        }
        free(gradient[i]);
    }
    graph_close(g);
    free(g);
}

/* Tests ------------------------------------------------------------------------------------ */

static void every_operator_has_a_case(void **state)
{
    (void)state;
    for (int i = 0; i < acr_n_ops; i++) {
        int n = 0;
        for (int j = 0; j < ACR_COUNT(cases); j++)
            n += strcmp(cases[j].op, acr_ops[i]->name) == 0;
        if (!n)
            fail_msg("the operator %s has no case", acr_ops[i]->name);
    }
}

static void gradients_equal_differences(void **state)
{
    (void)state;
    for (int j = 0; j < ACR_COUNT(cases); j++)
        check_case(&cases[j]);
}

/* A second backward adds to the parameters' gradients. */
static void parameters_accumulate(void **state)
{
    (void)state;
    for (int j = 0; j < ACR_COUNT(cases); j++) {
        graph *g = calloc(1, sizeof *g);
        assert_non_null(g);
        graph_open(g);
        for (int pass = 0; pass < 2; pass++) {
            forward(g, &cases[j]);
            backward(g);
            for (int i = 0; i < MAX_ARRAYS && g->param[i].grad; i++) {
                double *grad = g->param[i].grad;
                double sum = 0;
                for (int64_t k = 0; k < g->weight[i].n; k++)
                    sum += fabs(grad[k]);
                assert_true(sum > 0);
                if (pass == 0)
                    g->lambda[0][i] = sum;
                else
                    assert_true(fabs(sum - 2 * g->lambda[0][i]) <= 1e-10 * sum);
            }
        }
        graph_close(g);
        free(g);
    }
}

static void no_grad_computes_the_same(void **state)
{
    (void)state;
    for (int j = 0; j < ACR_COUNT(cases); j++) {
        graph *g = calloc(1, sizeof *g);
        double expected = 0, got = 0;
        assert_non_null(g);
        graph_open(g);
        expected = forward(g, &cases[j]);
        assert_true(g->group.uses > 0 || !g->param[0].name);
        acr_tape_reset(&g->t);
        assert_int_equal(g->group.uses, 0);
        g->t.no_grad = true;
        got = forward(g, &cases[j]);
        assert_memory_equal(&got, &expected, sizeof got);
        assert_int_equal(g->group.uses, 0);
        assert_true(!g->out || !g->out->needs_grad);
        graph_close(g);
        free(g);
    }
}

static void measuring_runs_nothing(void **state)
{
    (void)state;
    for (int j = 0; j < ACR_COUNT(cases); j++) {
        graph *g = calloc(1, sizeof *g);
        size_t measured = 0;
        assert_non_null(g);
        graph_open(g);
        acr_tape_measure(&g->t, true);
        forward(g, &cases[j]);
        backward(g);
        assert_int_equal(g->t.status, ACCRUE_OK);
        assert_int_equal(g->group.uses, 0);
        for (int i = 0; i < MAX_ARRAYS && g->param[i].grad; i++)
            for (int64_t k = 0; k < g->weight[i].n; k++)
                assert_true(((double *)g->param[i].grad)[k] <= 0 &&
                            ((double *)g->param[i].grad)[k] >= 0);
        for (int64_t i = 0; i < g->distill.step[0].n; i++)
            assert_true(g->term_loss[0][i] < -6);
        measured = g->t.arena.high;
        assert_true(measured > 0);
        assert_null(g->t.arena.first);
        acr_tape_measure(&g->t, false);
        g->t.arena.high = 0;
        forward(g, &cases[j]);
        backward(g);
        if (g->t.arena.high != measured)
            fail_msg("%s, %s: measured %zu bytes, took %zu", cases[j].op, cases[j].what, measured,
                     g->t.arena.high);
        graph_close(g);
        free(g);
    }
}

static void a_failing_allocation_is_a_status(void **state)
{
    (void)state;
    for (int j = 0; j < ACR_COUNT(cases); j++) {
        int failures = 0;
        bool done = false;
        for (uint64_t n = 1; !done; n++) {
            graph *g = calloc(1, sizeof *g);
            accrue_error e = {0};
            assert_non_null(g);
            graph_open(g);
            acr_fail_allocation(n);
            forward(g, &cases[j]);
            if (!g->t.status)
                backward(g);
            acr_fail_allocation(0);
            done = acr_tape_status(&g->t, &e) == ACCRUE_OK;
            if (!done) {
                assert_int_equal(e.status, ACCRUE_ENOMEM);
                assert_non_null(strstr(e.message, "memory"));
                failures++;
                forward(g, &cases[j]); /* the tape recovers */
                assert_int_equal(g->t.status, ACCRUE_OK);
            }
            graph_close(g);
            free(g);
        }
        assert_true(failures >= 2); /* the two arenas at least */
    }
}

static void rows_without_a_loss_only_predict(void **state)
{
    static const op_case c = {"distill_loss", "a mix in chunks", build_distill,
                              20 + ACR_LOSS_COUNT};
    graph *g = calloc(1, sizeof *g);
    int predictions = 0;

    (void)state;
    assert_non_null(g);
    graph_open(g);
    forward(g, &c);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < g->distill.step[k].n; i++) {
            const double *h =
                (const double *)g->distill.step[k].h->data + 5 * g->rows[1 + 2 * k][i];
            double best = -HUGE_VAL;
            int64_t expected = 0;
            for (int64_t o = 0; o < 11; o++) {
                double z = 0;
                for (int j = 0; j < 5; j++)
                    z += g->weight[0].data[o * 5 + j] * h[j];
                if (z > best) {
                    best = z;
                    expected = o;
                }
            }
            assert_int_equal(g->argmax[k][i], expected);
            for (int j = 0; j < 3; j++)
                assert_true((g->term_loss[k][3 * i + j] > -6) == g->counted[k][i]);
            predictions += !g->counted[k][i];
        }
    assert_true(predictions > 50);
    graph_close(g);
    free(g);
}

static void chunks_fit_the_cache(void **state)
{
    (void)state;
    assert_int_equal(acr_distill_chunk(100, 3, 4), 128);
    assert_int_equal(acr_distill_chunk(32000, 3, 4), 32);
    assert_int_equal(acr_distill_chunk(1 << 20, 16, 8), 16);
}

/* Groups ----------------------------------------------------------------------------------- */

typedef struct watch {
    acr_group *group[4];
    int fired;
    double *grad; /* watched when the first group fires */
    double seen[9];
} watch;

static void on_ready(acr_group *group, void *payload)
{
    watch *w = payload;

    assert_true(w->fired < 4);
    if (w->grad && w->fired == 1)
        memcpy(w->seen, w->grad, sizeof w->seen);
    w->group[w->fired++] = group;
}

static void groups_are_ready_once(void **state)
{
    graph *g = calloc(1, sizeof *g);
    acr_group second = {.name = "second"};
    watch w = {0};

    (void)state;
    assert_non_null(g);
    graph_open(g);
    g->t.group_ready = on_ready;
    g->t.payload = &w;
    for (int pass = 0; pass < 3; pass++) {
        acr_value *x = NULL;
        double *grad = trained(g, 0, 3, 3)->grad;
        trained(g, 1, 3, 1);
        trained(g, 2, 3, 3)->group = &second;
        w = (watch){.grad = grad};
        memset(grad, 0, 9 * sizeof *grad);
        acr_tape_reset(&g->t);
        x = input(g, 0, 4, 3);
        for (int i = 0; i < 3; i++) /* weight and bias of one group, three times */
            x = acr_linear(&g->t, x, &g->param[0], 0, &g->param[1]);
        x = acr_linear(&g->t, x, &g->param[2], 0, NULL);
        assert_int_equal(g->group.uses, 3);
        assert_int_equal(second.uses, 1);
        array_data(&g->cotangent, 70, 12);
        g->out = x;
        if (pass == 1)
            continue; /* a forward that is thrown away must not leave its uses behind */
        backward(g);
        assert_int_equal(w.fired, 2);
        assert_ptr_equal(w.group[0], &second);
        assert_ptr_equal(w.group[1], &g->group);
        assert_memory_equal(w.seen, grad, sizeof w.seen); /* complete when announced */
        assert_int_equal(g->group.uses, 0);
    }
    graph_close(g);
    free(g);
}

/* Shapes ----------------------------------------------------------------------------------- */

static void wrong_linear(graph *g)
{
    acr_linear(&g->t, input(g, 0, 2, 4), trained(g, 0, 3, 9), 6, NULL);
}

static void wrong_bias(graph *g)
{
    acr_linear(&g->t, input(g, 0, 2, 4), trained(g, 0, 3, 4), 0, trained(g, 1, 4, 1));
}

static void wrong_id(graph *g)
{
    static const int64_t ids[] = {0, 7};

    acr_embed(&g->t, 2, ids, frozen(g, 0, 7, 3));
}

static void wrong_norm(graph *g)
{
    acr_rmsnorm(&g->t, input(g, 0, 2, 8), trained(g, 0, 3, 1), 1e-5);
}

static void wrong_position(graph *g)
{
    static const int64_t position[] = {4};
    static double table[8];
    static acr_rope_table rope = {.positions = 4, .head_dim = 4, .cos = table, .sin = table};

    acr_rope(&g->t, input(g, 0, 1, 4), position, &rope);
}

static void wrong_pair(graph *g)
{
    acr_add(&g->t, input(g, 0, 2, 6), input(g, 1, 3, 4));
}

static void wrong_row(graph *g)
{
    static const int64_t row[] = {5};

    acr_gather_rows(&g->t, input(g, 0, 5, 2), 1, row);
}

static void wrong_width(graph *g)
{
    static const int64_t row[] = {0};

    acr_gather_add(&g->t, input(g, 0, 1, 3), input(g, 1, 5, 2), row);
}

static void wrong_concat(graph *g)
{
    acr_value *x[] = {input(g, 0, 2, 3), input(g, 1, 3, 3)};

    acr_concat(&g->t, 2, x);
}

static void attend_with(graph *g, int64_t end, int64_t extra, int64_t base_rows)
{
    int64_t begin = 0;
    acr_attention a = {.n_queries = 1,
                       .n_base = 3,
                       .n_heads = 1,
                       .n_kv_heads = 1,
                       .head_dim = 2,
                       .begin = &begin,
                       .end = &end,
                       .n_extra = 1,
                       .extra_row = {&extra}};
    acr_value *k[] = {input(g, 1, base_rows, 2), input(g, 2, 2, 2)};
    acr_value *v[] = {input(g, 3, base_rows, 2), input(g, 4, 2, 2)};

    acr_attend(&g->t, &a, input(g, 0, 1, 2), k, v);
}

static void wrong_range(graph *g)
{
    attend_with(g, 4, 0, 3);
}

static void wrong_extra(graph *g)
{
    attend_with(g, 3, 2, 3);
}

static void wrong_base(graph *g)
{
    attend_with(g, 2, 0, 2);
}

static void wrong_target(graph *g)
{
    build_distill(g, ACR_LOSS_CE);
    acr_tape_reset(&g->t);
    g->distill.step[0].h = input(g, 0, 15, 5);
    g->distill.step[1].h = input(g, 1, 15, 5);
    g->rows[2][1] = g->rows[2][0];
    acr_distill_loss(&g->t, &g->distill);
}

static void wrong_swiglu(graph *g)
{
    acr_value *x = input(g, 0, 2, 3);

    acr_swiglu(&g->t, x, x);
}

static void wrong_sharing(graph *g)
{
    static const int64_t zero = 0, one = 1;
    acr_attention a = {.n_queries = 1,
                       .n_base = 1,
                       .n_heads = 1,
                       .n_kv_heads = 1,
                       .head_dim = 2,
                       .begin = &zero,
                       .end = &one};
    acr_value *k = input(g, 1, 1, 2);

    acr_attend(&g->t, &a, input(g, 0, 1, 2), &k, &k);
}

static void shapes_are_checked(void **state)
{
    static const struct {
        void (*build)(graph *g);
        const char *words[3];
    } wrong[] = {
        {wrong_linear, {"weight 0", "10", "9"}},
        {wrong_bias, {"weight 1", "4", "3"}},
        {wrong_id, {"weight 0", "token id 7", "6"}},
        {wrong_norm, {"weight 0", "3", "8"}},
        {wrong_position, {"rope", "position is 4", "3"}},
        {wrong_pair, {"add", "2", "3"}},
        {wrong_row, {"gather_rows", "row is 5", "4"}},
        {wrong_width, {"gather_add", "2", "3"}},
        {wrong_concat, {"concat", "3", "2"}},
        {wrong_range, {"attention", "is 4", "0 to 3"}},
        {wrong_extra, {"attention", "extra row is 2", "0 to 1"}},
        {wrong_base, {"attention", "is 2", "3"}},
        {wrong_target, {"weight 0", "target is 0", "1 to 12"}},
        {wrong_swiglu, {"swiglu", "input 1", "input 0"}},
        {wrong_sharing, {"attention", "input 2", "input 1"}},
    };

    (void)state;
    for (int i = 0; i < ACR_COUNT(wrong); i++) {
        graph *g = calloc(1, sizeof *g);
        accrue_error e = {0};
        assert_non_null(g);
        graph_open(g);
        wrong[i].build(g);
        assert_int_equal(acr_tape_status(&g->t, &e),
                         wrong[i].build == wrong_swiglu || wrong[i].build == wrong_sharing
                             ? ACCRUE_EINVAL
                             : ACCRUE_EMISMATCH);
        for (int j = 0; j < 3; j++)
            if (!strstr(e.message, wrong[i].words[j]))
                fail_msg("'%s' is not in: %s", wrong[i].words[j], e.message);
        assert_null(acr_add(&g->t, NULL, NULL)); /* later operators do nothing */
        assert_int_equal(g->t.n_records, 0);
        graph_close(g);
        free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_has_a_case),
        cmocka_unit_test(gradients_equal_differences),
        cmocka_unit_test(parameters_accumulate),
        cmocka_unit_test(no_grad_computes_the_same),
        cmocka_unit_test(measuring_runs_nothing),
        cmocka_unit_test(a_failing_allocation_is_a_status),
        cmocka_unit_test(rows_without_a_loss_only_predict),
        cmocka_unit_test(chunks_fit_the_cache),
        cmocka_unit_test(groups_are_ready_once),
        cmocka_unit_test(shapes_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
