/* test_ops.c - every operator of the tape against central differences in f64, and what the tape
 * promises around them: use counts, measuring, no_grad, failures. */
#include "tape/tape.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ARRAYS = 12, MAX_ROWS = 400, MAX_CHECKED = 40 };

/* An input or a parameter of a graph: drawn when first asked for, kept over evaluations. */
typedef struct array {
    int64_t n;
    double *data;
} array;

typedef struct graph {
    acr_tape t;
    array input[MAX_ARRAYS], weight[MAX_ARRAYS], cotangent;
    acr_value *value[MAX_ARRAYS]; /* of the inputs, in the current evaluation */
    acr_param param[MAX_ARRAYS];
    acr_group group;
    acr_value *out;
    /* The distillation loss has no output: its rows' losses make the scalar. */
    acr_loss_spec spec;
    bool split_hybrid; /* evaluate kl_div and tv in place of lk_hybrid, with lambda as first seen */
    acr_distill distill;
    double term_loss[2][MAX_ROWS * ACCRUE_MAX_LOSS_TERMS], lambda[2][MAX_ROWS];
    int64_t argmax[2][MAX_ROWS], target_argmax[MAX_ROWS];
    int64_t rows[8][MAX_ROWS];
    bool counted[2][MAX_ROWS];
} graph;

typedef struct op_case {
    const char *op, *what;
    void (*build)(graph *g, int variant);
    int variant;
} op_case;

static double draw(uint64_t stream, int64_t i)
{
    return acr_random_normal(11, ACR_RANDOM_INIT, stream, (uint64_t)i);
}

static double *array_data(array *a, uint64_t stream, int64_t n)
{
    if (!a->data) {
        a->n = n;
        a->data = calloc((size_t)n + 1, sizeof *a->data);
        assert_non_null(a->data);
        for (int64_t i = 0; i < n; i++)
            a->data[i] = draw(stream, i);
    }
    assert_int_equal(a->n, n);
    return a->data;
}

static acr_value *constant(graph *g, int i, int64_t rows, int64_t cols)
{
    g->value[i] = acr_leaf(&g->t, rows, cols, array_data(&g->input[i], (uint64_t)i, rows * cols));
    return g->value[i];
}

static acr_value *input(graph *g, int i, int64_t rows, int64_t cols)
{
    acr_value *v = constant(g, i, rows, cols);

    if (v)
        v->needs_grad = !g->t.no_grad;
    return v;
}

static acr_param *frozen(graph *g, int i, int64_t rows, int64_t cols)
{
    static char names[MAX_ARRAYS][16];
    acr_param *p = &g->param[i];

    snprintf(names[i], sizeof names[i], "weight %d", i);
    p->name = names[i];
    p->rows = rows;
    p->cols = cols;
    p->n_dims = cols == 1 ? 1 : 2;
    p->group = &g->group;
    p->master = array_data(&g->weight[i], 100 + (uint64_t)i, rows * cols);
    return p;
}

static acr_param *trained(graph *g, int i, int64_t rows, int64_t cols)
{
    acr_param *p = frozen(g, i, rows, cols);

    p->trainable = true;
    if (!p->grad)
        p->grad = calloc((size_t)(rows * cols), sizeof(double));
    assert_non_null(p->grad);
    return p;
}

/* Cases ------------------------------------------------------------------------------------ */

static void build_linear(graph *g, int variant)
{
    acr_value *x = NULL;

    switch (variant) {
    case 0: g->out = acr_linear(&g->t, input(g, 0, 5, 7), trained(g, 0, 3, 7), 0, NULL); break;
    case 1:
        g->out = acr_linear(&g->t, input(g, 0, 5, 4), trained(g, 0, 3, 9), 5, trained(g, 1, 3, 1));
        break;
    case 2: /* nothing but the weight */
        g->out = acr_linear(&g->t, constant(g, 0, 33, 6), trained(g, 0, 5, 6), 0, NULL);
        break;
    case 3: /* nothing but the input */
        g->out = acr_linear(&g->t, input(g, 0, 1, 6), frozen(g, 0, 5, 6), 0, frozen(g, 1, 5, 1));
        break;
    case 4: /* one input twice, both halves of one weight */
        x = input(g, 0, 5, 4);
        g->out = acr_add(&g->t, acr_linear(&g->t, x, trained(g, 0, 3, 8), 0, NULL),
                         acr_linear(&g->t, x, trained(g, 0, 3, 8), 4, trained(g, 1, 3, 1)));
        break;
    default: /* a chain over one weight, as the unroll reuses a layer */
        x = input(g, 0, 5, 4);
        for (int i = 0; i < 3; i++)
            x = acr_add(&g->t, x, acr_linear(&g->t, x, trained(g, 0, 4, 4), 0, NULL));
        g->out = x;
        break;
    }
}

static void build_embed(graph *g, int variant)
{
    static const int64_t ids[] = {3, 0, 3, 3, 5, 0, 6};

    if (variant == 0)
        g->out = acr_embed(&g->t, ACR_COUNT(ids), ids, trained(g, 0, 7, 5));
    else
        g->out = acr_embed(&g->t, ACR_COUNT(ids), ids, frozen(g, 0, 7, 5));
}

static void build_rmsnorm(graph *g, int variant)
{
    if (variant == 0)
        g->out = acr_rmsnorm(&g->t, input(g, 0, 5, 7), trained(g, 0, 7, 1), 1e-5);
    else if (variant == 1) /* per head */
        g->out = acr_rmsnorm(&g->t, input(g, 0, 3, 15), trained(g, 0, 5, 1), 1e-1);
    else if (variant == 2)
        g->out = acr_rmsnorm(&g->t, constant(g, 0, 3, 6), trained(g, 0, 6, 1), 1e-6);
    else
        g->out = acr_rmsnorm(&g->t, input(g, 0, 1, 6), frozen(g, 0, 6, 1), 1e-6);
}

static void build_rope(graph *g, int variant)
{
    static const int64_t position[] = {0, 8, 3, 3, 5};
    static double cosines[9 * 3], sines[9 * 3];
    static acr_rope_table table = {.positions = 9, .head_dim = 6, .cos = cosines, .sin = sines};

    for (int i = 0; i < 27; i++) {
        cosines[i] = cos(draw(50, i));
        sines[i] = sin(draw(50, i));
    }
    g->out = acr_rope(&g->t, input(g, 0, 5, variant ? 18 : 6), position, &table);
}

/* Variant: extra segments; 10 more: windows; 20 more: nothing but q needs a gradient; 40: no base. */
static void build_attention(graph *g, int variant)
{
    enum { QUERIES = 5, BASE = 9 };
    static const int64_t end[] = {2, 4, 4, 7, 9}, wide[] = {0, 0, 0, 5, 5},
                         narrow[] = {1, 2, 3, 5, 7};
    static const int64_t none[QUERIES] = {0};
    static const int64_t extra[3][QUERIES] = {{6, 0, 3, 1, 2}, {0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}};
    bool grouped = variant % 2 == 0, all = variant % 40 < 20;
    bool base = variant < 40;
    int n = variant % 10;
    acr_attention a = {.n_queries = QUERIES, .n_base = base ? BASE : 0, .head_dim = 3};
    acr_value *k[4], *v[4];

    a.n_heads = grouped ? 4 : 3;
    a.n_kv_heads = grouped ? 2 : 3;
    a.begin = !base ? none : variant / 10 % 2 ? narrow : wide;
    a.end = base ? end : none;
    a.n_extra = n;
    for (int s = 0; s <= n; s++) {
        int64_t rows = s == 0 ? a.n_base : s == 1 ? 7 : QUERIES;
        acr_value *(*leaf)(graph *, int, int64_t, int64_t) = all ? input : constant;
        k[s] = leaf(g, 1 + 2 * s, rows, a.n_kv_heads * a.head_dim);
        v[s] = leaf(g, 2 + 2 * s, rows, a.n_kv_heads * a.head_dim);
        if (s)
            a.extra_row[s - 1] = extra[s - 1];
    }
    g->out = acr_attend(&g->t, &a, input(g, 0, QUERIES, a.n_heads * a.head_dim), k, v);
}

static void build_swiglu(graph *g, int variant)
{
    acr_value *x = variant ? constant(g, 0, 3, 5) : input(g, 0, 3, 5);

    g->out = acr_swiglu(&g->t, x, input(g, 1, 3, 5));
}

static void build_add(graph *g, int variant)
{
    acr_value *x = input(g, 0, 3, 5);

    if (variant == 0)
        g->out = acr_add(&g->t, x, input(g, 1, 3, 5));
    else if (variant == 1)
        g->out = acr_add(&g->t, x, x);
    else /* three consumers of x, one of them of the sum */
        g->out = acr_add(&g->t, acr_add(&g->t, x, x), acr_swiglu(&g->t, x, constant(g, 1, 3, 5)));
}

static const int64_t subset[] = {1, 6, 4};

static void build_gather(graph *g, int variant)
{
    acr_value *x = input(g, 0, 7, 5);

    g->out = acr_gather_rows(&g->t, x, 3, subset);
    if (variant) /* what is gathered is used whole as well */
        g->out = acr_gather_add(&g->t, g->out, acr_add(&g->t, x, x), subset);
}

static void build_gather_add(graph *g, int variant)
{
    if (variant == 0)
        g->out = acr_gather_add(&g->t, input(g, 0, 3, 5), input(g, 1, 7, 5), subset);
    else if (variant == 1)
        g->out = acr_gather_add(&g->t, constant(g, 0, 3, 5), input(g, 1, 7, 5), subset);
    else
        g->out = acr_gather_add(&g->t, input(g, 0, 3, 5), constant(g, 1, 7, 5), subset);
}

static void build_concat(graph *g, int variant)
{
    acr_value *x[3] = {input(g, 0, 3, 5), NULL, NULL};

    x[1] = variant ? x[0] : input(g, 1, 3, 1);
    x[2] = variant ? constant(g, 2, 3, 4) : input(g, 2, 3, 4);
    g->out = acr_concat(&g->t, 3, x);
}

/* Variant: the loss kind, ACR_LOSS_COUNT a mix; 20 more: several chunks; 40 more: the second step's
 * rows feed the first's too. */
static void build_distill(graph *g, int variant)
{
    enum { HIDDEN = 5, VOCAB = 11 };
    int kind = variant % 20;
    bool chunks = variant / 20 % 2, chain = variant >= 40;
    int64_t targets = chunks ? 300 : 13, rows = targets + 2;
    acr_distill *d = &g->distill;

    memset(d, 0, sizeof *d);
    memset(&g->spec, 0, sizeof g->spec);
    g->spec.n_terms = 1;
    g->spec.kind[0] = kind < ACR_LOSS_COUNT ? (acr_loss_kind)kind : ACR_LOSS_CE;
    g->spec.weight[0] = 0.75;
    if (kind == ACR_LOSS_COUNT) {
        g->spec.n_terms = 3;
        g->spec.kind[1] = ACR_LOSS_TV;
        g->spec.weight[1] = 0.9;
        g->spec.kind[2] = ACR_LOSS_JSD;
        g->spec.weight[2] = 0; /* reported, no gradient */
    } else if (kind == ACR_LOSS_LK_HYBRID && g->split_hybrid) {
        g->spec.n_terms = 2;
        g->spec.kind[0] = ACR_LOSS_KL_DIV;
        g->spec.kind[1] = ACR_LOSS_TV;
        g->spec.weight[1] = 0.75;
    }
    d->spec = &g->spec;
    d->head = frozen(g, 0, VOCAB, HIDDEN);
    d->verifier_head = frozen(g, 1, VOCAB, HIDDEN);
    d->verifier_norm = frozen(g, 2, HIDDEN, 1);
    d->eps = 1e-5;
    d->n_targets = targets;
    d->target = array_data(&g->input[MAX_ARRAYS - 1], 60, rows * HIDDEN);
    d->target_row = g->rows[0];
    d->target_argmax = g->target_argmax;
    d->n_steps = 2;
    for (int64_t i = 0; i < targets; i++)
        g->rows[0][i] = i + (i > 5) + (i > 7);
    for (int k = 0; k < 2; k++) {
        acr_distill_step *s = &d->step[k];
        int64_t at = 0;
        s->h = k && chain ? acr_add(&g->t, d->step[0].h, input(g, 1, rows, HIDDEN))
                          : input(g, k, rows, HIDDEN);
        s->row = g->rows[1 + 2 * k];
        s->target = g->rows[2 + 2 * k];
        s->counted = g->counted[k];
        s->scale = k ? 0.3 : 1.1;
        s->term_loss = g->term_loss[k];
        s->argmax = g->argmax[k];
        for (int64_t i = 0; i < targets; i++)
            if ((i + k) % 4 != 1) { /* not every target at every step */
                g->rows[1 + 2 * k][at] = k ? rows - 1 - i : i;
                g->rows[2 + 2 * k][at] = i;
                g->counted[k][at++] = (i + k) % 3 != 0;
            }
        s->n = at;
        for (int64_t i = 0; i < at * ACCRUE_MAX_LOSS_TERMS; i++)
            g->term_loss[k][i] = -7;
    }
    g->out = NULL;
    acr_distill_loss(&g->t, d);
}

static const op_case cases[] = {
    {"linear", "plain", build_linear, 0},
    {"linear", "from a column, with bias", build_linear, 1},
    {"linear", "constant input", build_linear, 2},
    {"linear", "frozen weight", build_linear, 3},
    {"linear", "both halves", build_linear, 4},
    {"linear", "reused", build_linear, 5},
    {"embed", "repeated ids", build_embed, 0},
    {"embed", "frozen", build_embed, 1},
    {"rmsnorm", "rows", build_rmsnorm, 0},
    {"rmsnorm", "heads", build_rmsnorm, 1},
    {"rmsnorm", "constant input", build_rmsnorm, 2},
    {"rmsnorm", "frozen weight", build_rmsnorm, 3},
    {"rope", "one head", build_rope, 0},
    {"rope", "three heads", build_rope, 1},
    {"attention", "base, grouped heads", build_attention, 0},
    {"attention", "one extra segment", build_attention, 1},
    {"attention", "two, grouped heads", build_attention, 2},
    {"attention", "three", build_attention, 3},
    {"attention", "windows, grouped heads", build_attention, 10},
    {"attention", "windows and three", build_attention, 13},
    {"attention", "constant keys and values", build_attention, 22},
    {"attention", "no base", build_attention, 42},
    {"swiglu", "two inputs", build_swiglu, 0},
    {"swiglu", "constant gate", build_swiglu, 1},
    {"add", "two inputs", build_add, 0},
    {"add", "one input twice", build_add, 1},
    {"add", "several consumers", build_add, 2},
    {"gather_rows", "a subset", build_gather, 0},
    {"gather_rows", "several consumers", build_gather, 1},
    {"gather_add", "two inputs", build_gather_add, 0},
    {"gather_add", "constant first", build_gather_add, 1},
    {"gather_add", "constant second", build_gather_add, 2},
    {"concat", "three inputs", build_concat, 0},
    {"concat", "one twice, one constant", build_concat, 1},
    {"distill_loss", "kl_div", build_distill, ACR_LOSS_KL_DIV},
    {"distill_loss", "rkl", build_distill, ACR_LOSS_RKL},
    {"distill_loss", "jsd", build_distill, ACR_LOSS_JSD},
    {"distill_loss", "ce", build_distill, ACR_LOSS_CE},
    {"distill_loss", "tv", build_distill, ACR_LOSS_TV},
    {"distill_loss", "nla", build_distill, ACR_LOSS_NLA},
    {"distill_loss", "lk_hybrid", build_distill, ACR_LOSS_LK_HYBRID},
    {"distill_loss", "a mix", build_distill, ACR_LOSS_COUNT},
    {"distill_loss", "kl_div in chunks", build_distill, 20 + ACR_LOSS_KL_DIV},
    {"distill_loss", "a mix in chunks", build_distill, 20 + ACR_LOSS_COUNT},
    {"distill_loss", "steps that feed each other", build_distill, 40 + ACR_LOSS_KL_DIV},
};

/* Evaluation ------------------------------------------------------------------------------- */

static void graph_open(graph *g)
{
    accrue_error e;

    memset(g, 0, sizeof *g);
    g->group.name = "group";
    assert_int_equal(acr_tape_init(&g->t, ACCRUE_F64, &e), ACCRUE_OK);
    for (int i = 0; i < 2 * MAX_ROWS; i++)
        g->lambda[i / MAX_ROWS][i % MAX_ROWS] = NAN;
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
        assert_int_equal(g->group.uses, 6);
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
