/* bench_step.c - one training step of an EAGLE-3 draft on made-up data, on request.
 *
 *   bench_step SHAPE DTYPE SUPERVISED OPTIMIZER [THREADS]
 *
 * SHAPE small (hidden 576) or large (hidden 2048); DTYPE f32 or bf16; SUPERVISED all or half (the
 * second half of each of two documents); OPTIMIZER adamw or muon.  Prints "ready", then for each
 * line read runs forward, backward, clip and optimizer on 512 tokens and prints the seconds that
 * took; at the end of input, the peak resident memory in MiB.  bench/compare speaks to it and to
 * its counterpart in turn. */
#include "model/model.h"
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ROWS = 512, DRAFT_VOCAB = 8192 };

typedef struct shape {
    const char *name;
    int hidden, intermediate, heads, kv_heads, head_dim, vocab;
} shape;

static const shape shapes[] = {{"small", 576, 1536, 9, 3, 64, 49152},
                               {"large", 2048, 5632, 32, 4, 64, 32000}};

static void must(accrue_status st, const accrue_error *err)
{
    if (st) {
        fprintf(stderr, "bench_step: %s\n", err->message);
        exit(1);
    }
}

static json_t *config_json(const shape *s)
{
    return json_pack("{s:i, s:[i,i,i], s:b, s:b, s:b, s:{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, "
                     "s:f, s:{s:s, s:f}}}",
                     "draft_vocab_size", DRAFT_VOCAB, "eagle_aux_hidden_state_layer_ids", 2, 3, 4,
                     "norm_before_residual", 1, "norm_before_fc", 1, "norm_output", 1,
                     "transformer_layer_config", "model_type", "llama", "hidden_size", s->hidden,
                     "intermediate_size", s->intermediate, "vocab_size", s->vocab,
                     "num_hidden_layers", 1, "num_attention_heads", s->heads, "num_key_value_heads",
                     s->kv_heads, "head_dim", s->head_dim, "rms_norm_eps", 1e-5, "rope_parameters",
                     "rope_type", "default", "rope_theta", 10000.0);
}

/* Frozen tables as a verifier's file would hold them: bf16. */
static void set_frozen(acr_model *m, acr_param *p, double deviation)
{
    int64_t n = p->rows * p->cols;
    uint16_t *data = acr_malloc((size_t)n * 2);
    acr_tensor t = {.name = p->name,
                    .dtype = ACR_DTYPE_BF16,
                    .n_dims = p->n_dims,
                    .dims = {p->rows, p->cols},
                    .data = data,
                    .bytes = (size_t)n * 2};
    accrue_error err;

    for (int64_t i = 0; i < n; i++)
        data[i] = acr_bf16_from_f32(
            p->cols == 1
                ? 1.0f
                : (float)(deviation * acr_random_normal(1, ACR_RANDOM_INIT,
                                                        acr_hash_string(p->name), (uint64_t)i)));
    must(acr_param_set(m, p, &t, "made-up", &err), &err);
    m->owned[m->n_owned++] = data;
}

static void fill_batch(acr_batch *b, const acr_model *m, bool half)
{
    int64_t aux = (int64_t)m->config.n_aux * m->config.hidden_size;

    b->n_rows = b->padded_rows = ROWS;
    b->n_docs = 2;
    b->doc_begin[1] = ROWS / 2;
    b->doc_begin[2] = ROWS;
    for (int64_t i = 0; i < ROWS; i++) {
        b->input_ids[i] = (int64_t)(acr_random_u64(2, ACR_RANDOM_INIT, 0, (uint64_t)i) %
                                    (uint64_t)m->config.vocab_size);
        b->position_ids[i] = i % (ROWS / 2) + 1;
        b->loss_mask[i] = !half || i % (ROWS / 2) >= ROWS / 4;
    }
    for (int64_t i = 0; i < ROWS * aux; i++)
        ((float *)b->hidden)[i] = (float)acr_random_normal(3, ACR_RANDOM_INIT, 0, (uint64_t)i);
    for (int64_t i = 0; i < ROWS * m->config.hidden_size; i++)
        ((float *)b->target)[i] = (float)acr_random_normal(4, ACR_RANDOM_INIT, 0, (uint64_t)i);
}

static void step(acr_model *m, acr_tape *t, accrue_window *w, const acr_batch *b,
                 const acr_eagle3_options *o)
{
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    acr_weighting weighting;
    accrue_metrics metrics;
    accrue_error err;

    acr_eagle3_counts(b, o, counts);
    acr_weigh(&weighting, o, ACCRUE_NORMALIZE_MICROBATCH, counts, counts, 1);
    acr_window_begin(w);
    must(acr_micro_batch(&metrics, m, t, b, o, &weighting, true, &err), &err);
    must(acr_window_count(w, metrics.loss_sum, true, &err), &err);
    must(accrue_window_clip(w, NULL, &err), &err);
    must(accrue_window_step(w, NULL, &err), &err);
    accrue_window_lr_step(w);
    accrue_window_zero_grad(w);
    acr_model_refresh(m);
}

static accrue_window *make_window(acr_model *m, bool muon)
{
    accrue_window_options o;
    accrue_window *w = NULL;
    accrue_error err;

    accrue_window_options_init(&o, sizeof o);
    o.optimizer = muon ? ACCRUE_MUON : ACCRUE_ADAMW;
    o.muon_ns_dtype = ACCRUE_BF16; /* as torch's Muon, whatever the compute dtype */
    o.scheduler = ACCRUE_SCHEDULE_NONE;
    o.lr = 1e-4;
    must(accrue_window_create(&w, &o, &err), &err);
    must(acr_register_params(w, m, &err), &err);
    return w;
}

int main(int argc, char **argv)
{
    bool large = argc > 4 && strcmp(argv[1], "large") == 0;
    accrue_dtype compute = argc > 4 && strcmp(argv[2], "bf16") == 0 ? ACCRUE_BF16 : ACCRUE_F32;
    acr_eagle3_options o = {.ttt_steps = 3, .step_decay = 1.0};
    acr_batch_shape b_shape = {.total_seq_len = ROWS, .n_aux = 3, .real = ACR_DTYPE_F32};
    struct rusage usage;
    json_t *json = NULL;
    acr_config config;
    acr_vocab vocab = {0};
    acr_model *m = NULL;
    accrue_window *w = NULL;
    acr_tape tape;
    acr_batch b = {0};
    accrue_error err;
    char line[16];

    if (argc < 5) {
        fprintf(stderr, "usage: bench_step small|large f32|bf16 all|half adamw|muon [threads]\n");
        return 2;
    }
    accrue_set_threads(argc > 5 ? atoi(argv[5]) : 0);
    json = config_json(&shapes[large]);
    must(acr_config_read(&config, json, "made-up", &err), &err);
    must(acr_model_create(&m, &config, &vocab, compute, ROWS + 8, NULL, &err), &err);
    acr_model_init(m, 1);
    set_frozen(m, m->top.embed, 0.02);
    set_frozen(m, m->top.head, 0.02);
    set_frozen(m, m->top.verifier_norm, 1);
    set_frozen(m, m->top.verifier_head, 0.02);
    must(acr_tape_init(&tape, compute, &err), &err);
    must(acr_loss_spec_parse(&o.loss, "kl_div", &err), &err);
    b_shape.hidden_size = m->config.hidden_size;
    b_shape.vocab_size = m->config.vocab_size;
    must(acr_batch_alloc(&b, &b_shape, 2, &err), &err);
    fill_batch(&b, m, strcmp(argv[3], "half") == 0);
    w = make_window(m, strcmp(argv[4], "muon") == 0);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        double start = acr_seconds();
        step(m, &tape, w, &b, &o);
        printf("%.6f\n", acr_seconds() - start);
        fflush(stdout);
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("%.1f\n", (double)usage.ru_maxrss / 1024.0);
    accrue_window_free(w);
    acr_batch_free(&b);
    acr_tape_free(&tape);
    acr_model_free(m);
    json_decref(json);
    return 0;
}
