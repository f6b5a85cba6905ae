/* model_test.h - small random drafts and micro-batches, and one step of learning from them. */
#ifndef MODEL_TEST_H
#define MODEL_TEST_H

#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { H = 16, VOCAB = 40, DRAFT = 24, AUX = 3, POSITIONS = 512 };

/* One generator a test; restarted by its seed. */
typedef struct source {
    uint64_t seed, n;
} source;

static inline uint64_t next_word(source *s)
{
    return acr_random_u64(s->seed, ACR_RANDOM_INIT, 77, s->n++);
}

static inline int64_t below(source *s, int64_t n)
{
    return (int64_t)(next_word(s) % (uint64_t)n);
}

static inline bool chance(source *s, double p)
{
    return (double)(next_word(s) >> 11) * 0x1p-53 < p;
}

static inline double normal(source *s)
{
    return acr_random_normal(s->seed, ACR_RANDOM_INIT, 78, s->n++);
}

/* Rounded to bf16, so that every precision starts from the same numbers. */
static inline double short_normal(source *s, double deviation)
{
    return (double)acr_f32_from_bf16(acr_bf16_from_f32((float)(deviation * normal(s))));
}

/* Drafts ----------------------------------------------------------------------------------- */

typedef struct variant {
    const char *arch;
    int layers, heads, kv_heads, head_dim;
    int window;     /* 0: none of the layers slides */
    int full_layer; /* with a window, the layer that does not slide; -1: none */
    int64_t draft_vocab;
    bool bias, norm_before_residual, norm_before_fc, fc_norm, norm_output, train_embed;
} variant;

enum { MAX_VALUES = 64 };

typedef struct draft {
    acr_model *m;
    acr_tape t;
    double *values[MAX_VALUES]; /* frozen weights may stay where they were made */
} draft;

static inline char *config_text(const variant *v)
{
    char types[256] = "";
    size_t used = 0;

    for (int i = 0; i < v->layers; i++)
        used +=
            (size_t)snprintf(types + used, sizeof types - used, "%s\"%s_attention\"", i ? ", " : "",
                             v->window && i != v->full_layer ? "sliding" : "full");
    return acr_sprintf(
        "{\"speculators_model_type\": \"eagle3\", \"draft_vocab_size\": %lld,"
        "\"eagle_aux_hidden_state_layer_ids\": [1, 2, 3], \"norm_before_residual\": %s,"
        "\"norm_before_fc\": %s, \"fc_norm\": %s, \"norm_output\": %s,"
        "\"embed_requires_grad\": %s, \"transformer_layer_config\": {\"model_type\": \"%s\","
        "\"hidden_size\": %d, \"intermediate_size\": 20, \"vocab_size\": %d,"
        "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d,"
        "\"head_dim\": %d, \"rms_norm_eps\": 1e-5, \"attention_bias\": %s,"
        "\"sliding_window\": %d, \"layer_types\": [%s]}}",
        (long long)v->draft_vocab, v->norm_before_residual ? "true" : "false",
        v->norm_before_fc ? "true" : "false", v->fc_norm ? "true" : "false",
        v->norm_output ? "true" : "false", v->train_embed ? "true" : "false", v->arch, H, VOCAB,
        v->layers, v->heads, v->kv_heads, v->head_dim, v->bias ? "true" : "false",
        v->window ? v->window : 1, types);
}

/* `shares` as acr_model_create has it. */
static inline void draft_open_shared(draft *d, const variant *v, accrue_dtype compute,
                                     uint64_t seed, const acr_sharding *shares)
{
    accrue_error e = {0};
    acr_config config = {0};
    acr_vocab vocab = {0};
    json_t *json = NULL;
    char *text = config_text(v);
    source s = {.seed = seed};

    memset(d, 0, sizeof *d);
    assert_non_null(text);
    assert_int_equal(acr_json_parse(&json, text, strlen(text), "config", &e), ACCRUE_OK);
    if (acr_config_read(&config, json, "config", &e))
        fail_msg("%s", e.message);
    assert_int_equal(acr_model_create(&d->m, &config, &vocab, compute, POSITIONS, shares, &e),
                     ACCRUE_OK);
    assert_int_equal(acr_tape_init(&d->t, compute, &e), ACCRUE_OK);
    assert_true(d->m->n_params <= MAX_VALUES);
    for (int i = 0; i < d->m->n_params; i++) {
        acr_param *p = &d->m->params[i];
        bool norm = strstr(p->name, "norm") != NULL;
        int64_t n = p->rows * p->cols;
        acr_tensor t = {.name = p->name,
                        .dtype = ACR_DTYPE_F64,
                        .n_dims = p->n_dims,
                        .dims = {p->rows, p->cols},
                        .bytes = (size_t)n * 8};
        d->values[i] = calloc((size_t)n, sizeof(double));
        assert_non_null(d->values[i]);
        for (int64_t j = 0; j < n; j++)
            d->values[i][j] =
                norm ? 1 + short_normal(&s, 0.125) : short_normal(&s, p->cols > 1 ? 0.3 : 0.1);
        t.data = d->values[i];
        if (norm) /* 1 + x has more bits than x */
            for (int64_t j = 0; j < n; j++)
                d->values[i][j] =
                    (double)acr_f32_from_bf16(acr_bf16_from_f32((float)d->values[i][j]));
        assert_int_equal(acr_param_set(d->m, p, &t, "test", &e), ACCRUE_OK);
    }
    acr_model_refresh(d->m);
    json_decref(json);
    acr_free(text);
}

static inline void draft_open(draft *d, const variant *v, accrue_dtype compute, uint64_t seed)
{
    draft_open_shared(d, v, compute, seed, NULL);
}

static inline void draft_close(draft *d)
{
    acr_tape_free(&d->t);
    acr_model_free(d->m);
    for (int i = 0; i < MAX_VALUES; i++)
        free(d->values[i]);
}

static inline double real_at(const acr_model *m, const void *p, int64_t i)
{
    return m->real == ACR_DTYPE_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

/* Samples and micro-batches ---------------------------------------------------------------- */

/* A document of a micro-batch: its rows, drawn once, placed anywhere. */
typedef struct sample {
    int64_t n;
    int64_t *ids;
    uint8_t *mask;
    double *hidden, *target; /* [n, AUX * H], [n, H] */
} sample;

static inline sample sample_make(source *s, int64_t n, double supervised)
{
    sample x = {.n = n};
    size_t rows = (size_t)n + 1; /* never of size 0 */

    x.ids = calloc(rows, sizeof *x.ids);
    x.mask = calloc(rows, 1);
    x.hidden = calloc(rows * AUX * H, sizeof *x.hidden);
    x.target = calloc(rows * H, sizeof *x.target);
    assert_true(x.ids && x.mask && x.hidden && x.target);
    for (int64_t i = 0; i < n; i++) {
        x.ids[i] = below(s, VOCAB);
        x.mask[i] = chance(s, supervised);
    }
    for (int64_t i = 0; i < n * AUX * H; i++)
        x.hidden[i] = short_normal(s, 1);
    for (int64_t i = 0; i < n * H; i++)
        x.target[i] = short_normal(s, 1);
    return x;
}

static inline void sample_free(sample *x)
{
    free(x->ids);
    free(x->mask);
    free(x->hidden);
    free(x->target);
}

/* Packs samples[order[0..n)] (order NULL: as they stand) into a micro-batch of `padded` rows. */
static inline void pack(acr_batch *b, acr_dtype real, const sample *samples, const int *order,
                        int n, int64_t padded)
{
    acr_batch_shape shape = {
        .total_seq_len = padded, .hidden_size = H, .vocab_size = VOCAB, .n_aux = AUX, .real = real};
    accrue_error e;
    size_t bytes = acr_dtype_bytes(real);

    assert_int_equal(acr_batch_alloc(b, &shape, n, &e), ACCRUE_OK);
    memset(b->target, 0, (size_t)padded * H * bytes);
    for (int i = 0; i < n; i++) {
        const sample *x = &samples[order ? order[i] : i];
        size_t at = (size_t)b->n_rows;
        assert_true(b->n_rows + x->n <= padded);
        b->sample[i] = i;
        for (int64_t j = 0; j < x->n; j++) {
            b->input_ids[b->n_rows + j] = x->ids[j];
            b->loss_mask[b->n_rows + j] = x->mask[j];
            b->position_ids[b->n_rows + j] = j + 1;
        }
        acr_convert(real, (char *)b->hidden + at * AUX * H * bytes, ACR_DTYPE_F64, x->hidden,
                    x->n * AUX * H);
        acr_convert(real, (char *)b->target + at * H * bytes, ACR_DTYPE_F64, x->target, x->n * H);
        b->n_rows += x->n;
        b->n_docs = i + 1;
        b->doc_begin[i + 1] = b->n_rows;
    }
}

/* Learning -------------------------------------------------------------------------------- */

static inline double *zeros(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);

    assert_non_null(x);
    return x;
}

static inline acr_eagle3_options options(const char *loss, int steps, double decay, bool across)
{
    acr_eagle3_options o = {.ttt_steps = steps, .step_decay = decay, .across_documents = across};
    accrue_error e;

    assert_int_equal(acr_loss_spec_parse(&o.loss, loss, &e), ACCRUE_OK);
    return o;
}

/* Adds a micro-batch's gradient; denominators: counts (+ 1e-5) of this micro-batch, or `window`. */
static inline accrue_metrics learn(draft *d, const acr_batch *b, const acr_eagle3_options *o,
                                   const int64_t *window, acr_eagle3_result *result)
{
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    double scale[ACCRUE_MAX_TTT_STEPS];
    acr_eagle3_result r;
    accrue_metrics m;
    accrue_error e = {0};

    acr_eagle3_counts(b, o, counts);
    for (int k = 0; k < o->ttt_steps; k++) {
        double n = window ? (double)window[k] : (double)counts[k] + 1e-5;
        scale[k] = n > 0 ? pow(o->step_decay, k) / n : 0;
    }
    acr_tape_reset(&d->t);
    if (acr_eagle3_forward(&r, d->m, &d->t, b, o, scale, &e))
        fail_msg("%s", e.message);
    assert_int_equal(acr_eagle3_metrics(&m, &r, &d->t, b, o, scale, 1, &e), ACCRUE_OK);
    acr_tape_backward(&d->t);
    assert_int_equal(acr_tape_status(&d->t, &e), ACCRUE_OK);
    if (result)
        *result = r; /* its lists live until the tape is reset */
    return m;
}

static inline int64_t gradient_elements(const acr_model *m)
{
    int64_t n = 0;

    for (int i = 0; i < m->n_params; i++)
        n += m->params[i].grad ? m->params[i].rows * m->params[i].cols : 0;
    return n;
}

/* All gradients, one after the other; the caller frees. */
static inline double *gradients(const acr_model *m)
{
    double *g = zeros(gradient_elements(m));
    int64_t n = 0;

    for (int i = 0; i < m->n_params; i++)
        for (int64_t j = 0; m->params[i].grad && j < m->params[i].rows * m->params[i].cols; j++)
            g[n++] = real_at(m, m->params[i].grad, j);
    return g;
}

static inline double distance(const double *a, const double *b, int64_t n)
{
    double d = 0, s = 0;

    for (int64_t i = 0; i < n; i++) {
        d += (a[i] - b[i]) * (a[i] - b[i]);
        s += b[i] * b[i];
    }
    assert_true(s > 0);
    return sqrt(d / s);
}

static inline void check_close(const char *what, double got, double expected, double bound)
{
    if (!(fabs(got - expected) <= bound * fmax(1, fabs(expected))))
        fail_msg("%s: %.17g, %.17g expected", what, got, expected);
}

static inline void measure(draft *d, const acr_batch *b, const acr_eagle3_options *o)
{
    double scale[ACCRUE_MAX_TTT_STEPS] = {0};
    acr_eagle3_result r;
    accrue_error e;

    acr_tape_measure(&d->t, true);
    assert_int_equal(acr_eagle3_forward(&r, d->m, &d->t, b, o, scale, &e), ACCRUE_OK);
    acr_tape_backward(&d->t);
    assert_int_equal(acr_tape_status(&d->t, &e), ACCRUE_OK);
    acr_tape_measure(&d->t, false);
}

/* Drafts that the tests share. */
static const variant plain = {.arch = "llama",
                              .layers = 1,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 4,
                              .full_layer = -1,
                              .draft_vocab = DRAFT,
                              .norm_before_residual = true,
                              .norm_before_fc = true,
                              .norm_output = true};
static const variant variants[] = {
    {"llama", 1, 4, 2, 4, 0, -1, DRAFT, false, true, true, false, true, false},
    {"llama", 1, 4, 4, 4, 0, -1, DRAFT, false, false, false, false, false, false},
    {"llama", 2, 4, 1, 6, 3, 0, DRAFT, true, true, false, true, true, false},
    {"llama", 3, 2, 2, 8, 4, 1, DRAFT, false, false, true, false, false, false},
    {"qwen3", 1, 4, 2, 8, 0, -1, DRAFT, false, true, true, false, true, false},
    {"qwen3", 2, 3, 1, 6, 2, -1, VOCAB, true, false, false, true, false, true},
    {"qwen3", 3, 2, 1, 4, 5, 2, DRAFT, false, true, false, false, true, false},
    {"llama", 1, 4, 2, 4, 2, -1, VOCAB, false, true, true, false, true, true},
};
static const accrue_dtype precisions[] = {ACCRUE_F64, ACCRUE_F32, ACCRUE_BF16};

#endif
