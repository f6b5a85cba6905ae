/* ops_cases.h - a small graph for every operator and every way of using it. */
#ifndef OPS_CASES_H
#define OPS_CASES_H

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

/* Variant: extra segments; 10 more: windows; 20 more: only q needs a gradient; 40: no base. */
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

#endif
