/* ranks_test.h - for tests of several ranks: a data set and a verifier made of random numbers, and
 * runs on ranks that are threads.
 *
 * What runs on a rank's thread must not use cmocka's assertions, which jump to the main thread's
 * stack: it returns a status. */
#ifndef TEST_RANKS_TEST_H
#define TEST_RANKS_TEST_H

#include "files.h"
#include "train/train.h"

#include "nanoarrow/nanoarrow_ipc.h"

#include <math.h>
#include <unistd.h>

/* Under sanitizers a run takes ten times as long and more: there is less of each kind. */
#if defined(__SANITIZE_THREAD__)
enum { FEW = 2 };
#elif defined(__SANITIZE_ADDRESS__)
enum { FEW = 1 };
#else
enum { FEW = 0 };
#endif

enum { MAX_RANKS = 4, MAX_STEPS = 64, N_AUX = 3 };

/* A data set ------------------------------------------------------------------------------ */

/* What row 6 and every eighth behind it does to a micro-batch.  ROGUE_LOSS takes an embedding that
 * is not finite for the last token, which is theirs alone; ROGUE_GRADIENT f32 and a step decay of
 * 1e50, as no other row has anything to learn behind the first step. */
typedef enum rogues { NO_ROGUES, ROGUE_LOSS, ROGUE_GRADIENT } rogues;

/* What a world's verifier and data are like; matrices of the draft follow from it. */
typedef struct world_spec {
    int hidden, intermediate, heads, kv_heads, head_dim, vocab;
    int rows, least_tokens, most_tokens;
    uint64_t seed;
    rogues rogues;
} world_spec;

/* Small, and yet q, k + v, gate, up and down are of one or two blocks each, so that a layer's cut
 * falls within a matrix for every number of ranks up to MAX_RANKS; so does the embedding's. */
static const world_spec blocks_spec = {.hidden = 64,
                                       .intermediate = 512,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = 64,
                                       .vocab = 600,
                                       .rows = 110,
                                       .least_tokens = 3,
                                       .most_tokens = 11,
                                       .seed = 5};

typedef struct world {
    world_spec spec;
    char *verifier, *data;
    int64_t *tokens;  /* [rows] */
    bool *supervised; /* [rows] whether any of its targets is */
    uint64_t drawn;
} world;

static inline uint64_t draw(world *w, uint64_t below)
{
    return acr_random_u64(w->spec.seed, ACR_RANDOM_INIT, 91, w->drawn++) % below;
}

static inline void fill_bf16(world *w, uint16_t *out, int64_t n, double deviation)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = acr_bf16_from_f32(
            (float)(deviation * acr_random_normal(w->spec.seed, ACR_RANDOM_INIT, 92, w->drawn++)));
}

static inline void write_verifier(world *w)
{
    const world_spec *s = &w->spec;
    const int64_t n = (int64_t)s->vocab * s->hidden;
    uint16_t *embed = acr_malloc((size_t)n * 2), *head = acr_malloc((size_t)n * 2);
    uint16_t *norm = acr_malloc((size_t)s->hidden * 2);
    char *config = acr_sprintf("%s/config.json", w->verifier);
    char *weights = acr_sprintf("%s/model.safetensors", w->verifier);
    char *text =
        acr_sprintf("{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": "
                    "\"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, "
                    "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
                    "\"head_dim\": %d, \"num_hidden_layers\": 8, \"vocab_size\": %d, "
                    "\"hidden_act\": \"silu\", \"max_position_embeddings\": 512, "
                    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0}",
                    s->hidden, s->intermediate, s->heads, s->kv_heads, s->head_dim, s->vocab);
    const acr_tensor t[] = {
        {"lm_head.weight", ACR_DTYPE_BF16, 2, {s->vocab, s->hidden}, head, (size_t)n * 2},
        {"model.embed_tokens.weight",
         ACR_DTYPE_BF16,
         2,
         {s->vocab, s->hidden},
         embed,
         (size_t)n * 2},
        {"model.norm.weight", ACR_DTYPE_BF16, 1, {s->hidden}, norm, (size_t)s->hidden * 2}};

    assert_true(embed && head && norm && config && weights && text);
    fill_bf16(w, embed, n, 1);
    fill_bf16(w, head, n, 0.3);
    for (int i = 0; i < s->hidden; i++)
        norm[i] = acr_bf16_from_f32(1);
    write_text(config, text);
    assert_int_equal(acr_safetensors_write(weights, t, ACR_COUNT(t), NULL, NULL, NULL), 0);
    acr_free(embed);
    acr_free(head);
    acr_free(norm);
    acr_free(config);
    acr_free(weights);
    acr_free(text);
}

static inline void write_states(world *w, int64_t row, const int64_t *ids)
{
    const int64_t tokens = w->tokens[row], n = tokens * (N_AUX + 1) * w->spec.hidden;
    uint16_t *hidden = acr_malloc((size_t)n * 2);
    char *path = acr_sprintf("%s/hidden_states/hs_%lld.safetensors", w->data, (long long)row);
    const acr_tensor t[] = {{"hidden_states",
                             ACR_DTYPE_BF16,
                             3,
                             {tokens, N_AUX + 1, w->spec.hidden},
                             hidden,
                             (size_t)n * 2},
                            {"token_ids", ACR_DTYPE_I64, 1, {tokens}, ids, (size_t)tokens * 8}};

    assert_true(hidden && path);
    fill_bf16(w, hidden, n, 1);
    assert_int_equal(acr_safetensors_write(path, t, ACR_COUNT(t), NULL, NULL, NULL), 0);
    acr_free(hidden);
    acr_free(path);
}

static inline bool is_rogue(int64_t row)
{
    return row % 8 == 6;
}

/* Of every third row no target is supervised, of the others some are. */
static inline bool draw_mask(world *w, int64_t row, int64_t i, int64_t always, uint64_t of_four)
{
    if (w->spec.rogues != ROGUE_GRADIENT)
        return w->supervised[row] && (i == always || draw(w, 4) < of_four);
    return is_rogue(row) || i == 1;
}

/* The last id is that of rogues alone. */
static inline int64_t draw_id(world *w, int64_t row, int64_t i)
{
    if (w->spec.rogues == ROGUE_LOSS && is_rogue(row) && i == 1)
        return w->spec.vocab - 1;
    return (int64_t)draw(w, (uint64_t)w->spec.vocab - 1);
}

static inline void append_row(world *w, struct ArrowArray *table, int64_t row)
{
    const int64_t n = w->spec.least_tokens +
                      (int64_t)draw(w, (uint64_t)(w->spec.most_tokens - w->spec.least_tokens + 1));
    const int64_t always = 1 + (int64_t)draw(w, (uint64_t)n - 1);
    const uint64_t of_four = 1 + draw(w, 4);
    int64_t *ids = acr_malloc((size_t)n * sizeof *ids);

    assert_non_null(ids);
    w->tokens[row] = n;
    w->supervised[row] = row % 3 != 1 || w->spec.rogues;
    for (int64_t i = 0; i < n; i++) {
        bool mask = draw_mask(w, row, i, always, of_four);
        ids[i] = draw_id(w, row, i);
        assert_int_equal(ArrowArrayAppendInt(table->children[0]->children[0], ids[i]), 0);
        assert_int_equal(ArrowArrayAppendInt(table->children[1]->children[0], mask), 0);
    }
    for (int c = 0; c < 2; c++)
        assert_int_equal(ArrowArrayFinishElement(table->children[c]), 0);
    assert_int_equal(ArrowArrayFinishElement(table), 0);
    write_states(w, row, ids);
    acr_free(ids);
}

static inline void make_schema(struct ArrowSchema *schema)
{
    static const char *const names[] = {"input_ids", "loss_mask"};

    ArrowSchemaInit(schema);
    assert_int_equal(ArrowSchemaSetTypeStruct(schema, 2), 0);
    for (int c = 0; c < 2; c++) {
        struct ArrowSchema *list = schema->children[c];
        assert_int_equal(ArrowSchemaSetType(list, NANOARROW_TYPE_LIST), 0);
        assert_int_equal(ArrowSchemaSetName(list, names[c]), 0);
        assert_int_equal(ArrowSchemaSetType(list->children[0], NANOARROW_TYPE_INT64), 0);
    }
}

static inline void write_stream(const char *path, const struct ArrowSchema *schema,
                                const struct ArrowArray *table)
{
    struct ArrowArrayView view;
    struct ArrowIpcOutputStream stream;
    struct ArrowIpcWriter writer;
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(ArrowArrayViewInitFromSchema(&view, schema, NULL), 0);
    assert_int_equal(ArrowArrayViewSetArray(&view, table, NULL), 0);
    assert_int_equal(ArrowIpcOutputStreamInitFile(&stream, file, 1), 0);
    assert_int_equal(ArrowIpcWriterInit(&writer, &stream), 0);
    assert_int_equal(ArrowIpcWriterWriteSchema(&writer, schema, NULL), 0);
    assert_int_equal(ArrowIpcWriterWriteArrayView(&writer, &view, NULL), 0);
    assert_int_equal(ArrowIpcWriterWriteArrayView(&writer, NULL, NULL), 0);
    ArrowIpcWriterReset(&writer);
    ArrowArrayViewReset(&view);
}

static inline void write_data(world *w)
{
    struct ArrowSchema schema;
    struct ArrowArray table;
    char *arrow = acr_sprintf("%s/data-00000-of-00001.arrow", w->data);
    char *state = acr_sprintf("%s/state.json", w->data);

    make_schema(&schema);
    assert_int_equal(ArrowArrayInitFromSchema(&table, &schema, NULL), 0);
    assert_int_equal(ArrowArrayStartAppending(&table), 0);
    for (int64_t row = 0; row < w->spec.rows; row++)
        append_row(w, &table, row);
    assert_int_equal(ArrowArrayFinishBuildingDefault(&table, NULL), 0);
    write_stream(arrow, &schema, &table);
    write_text(state, "{\"_data_files\": [{\"filename\": \"data-00000-of-00001.arrow\"}]}");
    ArrowArrayRelease(&table);
    ArrowSchemaRelease(&schema);
    acr_free(arrow);
    acr_free(state);
}

static inline void world_open(world *w, const char *folder, const world_spec *spec)
{
    char *states = acr_sprintf("%s/data/hidden_states", folder);

    *w = (world){.spec = *spec};
    w->verifier = acr_sprintf("%s/verifier", folder);
    w->data = acr_sprintf("%s/data", folder);
    w->tokens = acr_calloc((size_t)spec->rows, sizeof *w->tokens);
    w->supervised = acr_calloc((size_t)spec->rows, sizeof *w->supervised);
    assert_true(states && w->verifier && w->data && w->tokens && w->supervised);
    assert_int_equal(mkdir(w->verifier, 0777), 0);
    assert_int_equal(mkdir(w->data, 0777), 0);
    assert_int_equal(mkdir(states, 0777), 0);
    write_verifier(w);
    write_data(w);
    acr_free(states);
}

static inline void world_close(world *w)
{
    acr_free(w->verifier);
    acr_free(w->data);
    acr_free(w->tokens);
    acr_free(w->supervised);
}

/* Every micro-batch of a window that takes its step needs no supervised token, but one of them. */
typedef struct packing {
    world *w;
    char text[4096];
    size_t used;
    int64_t row, room;
} packing;

static inline void put(packing *p, const char *format, int64_t value)
{
    p->used +=
        (size_t)snprintf(p->text + p->used, sizeof p->text - p->used, format, (long long)value);
    assert_true(p->used < sizeof p->text);
}

/* One to three rows; whether any of their targets is supervised. */
static inline bool put_micro_batch(packing *p)
{
    world *w = p->w;
    int64_t n = 1 + (int64_t)draw(w, 3), room = p->room;
    bool supervised = false;

    assert_true(p->row < w->spec.rows);
    for (int64_t i = 0; i < n && p->row < w->spec.rows && w->tokens[p->row] <= room; i++) {
        put(p, i ? ", %lld" : "[%lld", p->row);
        room -= w->tokens[p->row];
        supervised = supervised || w->supervised[p->row];
        p->row++;
    }
    put(p, "]", 0);
    return supervised;
}

/* A plan of an epoch: windows of so many micro-batches, random rows after random rows; freed with
 * acr_free.  The last micro-batch of a window without a supervised token gets another. */
static inline char *random_plan(world *w, const char *folder, int64_t total_seq_len,
                                const int64_t *windows, int n)
{
    packing p = {.w = w, .room = total_seq_len, .row = (int64_t)draw(w, 4)};
    char *path = acr_sprintf("%s/plan.json", folder), *text = NULL;

    for (int i = 0; i < n; i++) {
        bool supervised = false;
        for (int64_t k = 0; k < windows[i]; k++) {
            put(&p, i || k ? ", " : "", 0);
            while (k == windows[i] - 1 && !supervised && !w->supervised[p.row])
                p.row++;
            supervised = put_micro_batch(&p) || supervised;
        }
    }
    text = acr_sprintf("{\"total_seq_len\": %lld, \"train\": [[%s]], \"val\": []}",
                       (long long)total_seq_len, p.text);
    assert_true(path && text);
    write_text(path, text);
    acr_free(text);
    return path;
}

static inline accrue_train_options world_options(const world *w, const char *save_path)
{
    accrue_train_options o;

    accrue_train_options_init(&o, sizeof o);
    o.verifier = w->verifier;
    o.data_path = w->data;
    o.total_seq_len = 28;
    o.ttt_steps = 2;
    o.compute = ACCRUE_F64;
    o.window.optimizer = ACCRUE_ADAMW;
    o.window.scheduler = ACCRUE_SCHEDULE_NONE;
    o.epochs = 1;
    o.comm_timeout = 60;
    o.save_path = save_path;
    return o;
}

/* Runs ------------------------------------------------------------------------------------ */

typedef struct step_record {
    int64_t global_step, micro_batch;
    double lr, grad_norm;
    accrue_metrics metrics;
} step_record;

/* What a rank's callback heard of steps. */
typedef struct steps {
    step_record step[MAX_STEPS];
    int n;
} steps;

static inline int note_step(const accrue_event *e, void *payload)
{
    steps *s = payload;

    if (e->kind == ACCRUE_EVENT_STEP && s->n < MAX_STEPS) {
        step_record r;
        memset(&r, 0, sizeof r);
        r.global_step = e->global_step;
        r.micro_batch = e->micro_batch;
        r.lr = e->lr;
        r.grad_norm = e->grad_norm;
        r.metrics = e->metrics;
        s->step[s->n++] = r;
    }
    return ACCRUE_GO_ON;
}

/* A run of one epoch in pieces, and what came of it on each rank. */
typedef struct ranks_run {
    const accrue_train_options *opt;
    int ranks;
    int64_t n;                  /* trainable elements */
    double *masters[MAX_RANKS]; /* [n], NaN where another rank keeps them */
    steps steps[MAX_RANKS];
    acr_comm_counters counters[MAX_RANKS];
    accrue_status status[MAX_RANKS];
    accrue_error error[MAX_RANKS];
    /* Called on the ranks' threads when the run is open, and behind each micro-batch; or NULL. */
    accrue_status (*opened)(struct ranks_run *r, accrue_run *run, accrue_error *err);
    accrue_status (*after)(struct ranks_run *r, accrue_run *run, accrue_comm *comm,
                           accrue_error *err);
    void *payload;
    acr_ledger *ledger; /* [ranks] what each allocates for its run; may be NULL */
} ranks_run;

static inline accrue_status copy_masters(ranks_run *r, const accrue_run *run, accrue_error *err)
{
    const acr_model *m = run->setup.model;
    const int64_t n = acr_model_elements(m, true);
    double *copy = acr_malloc((size_t)n * sizeof *copy);
    int64_t at = 0;

    if (!copy)
        return acr_enomem(err, (size_t)n * sizeof *copy, "masters");
    for (int64_t i = 0; i < n; i++)
        copy[i] = (double)NAN;
    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        acr_share s;
        if (!p->trainable)
            continue;
        s = acr_model_share(m, p);
        acr_convert(ACR_DTYPE_F64, copy + at + s.begin, m->real, s.master, s.n);
        at += p->rows * p->cols;
    }
    r->masters[run->rank] = copy;
    if (run->rank == 0)
        r->n = n;
    return ACCRUE_OK;
}

static inline accrue_status one_place(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(accrue_run_forward_backward(run, NULL, err));
    ACR_TRY(accrue_run_clip(run, NULL, err));
    ACR_TRY(accrue_run_step(run, NULL, err));
    accrue_run_lr_step(run);
    accrue_run_zero_grad(run);

cleanup:
    return st;
}

static inline accrue_status run_epoch(ranks_run *r, accrue_run *run, accrue_comm *comm,
                                      accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (r->opened)
        ACR_TRY(r->opened(r, run, err));
    ACR_TRY(accrue_run_epoch(run, 0, err));
    while (accrue_run_next(run)) {
        ACR_TRY(one_place(run, err));
        if (r->after)
            ACR_TRY(r->after(r, run, comm, err));
    }
    r->counters[run->rank] = acr_comm_get_counters(comm);

cleanup:
    return st;
}

static inline accrue_status run_rank_pieces(accrue_comm *comm, void *ctx, accrue_error *err)
{
    ranks_run *r = ctx;
    accrue_run *run = NULL;
    accrue_train_options o = *r->opt;
    const int rank = accrue_comm_rank(comm);
    accrue_error *e = &r->error[rank];
    accrue_status st = ACCRUE_OK;

    o.comm = comm;
    acr_ledger_use(r->ledger ? &r->ledger[rank] : NULL);
    st = accrue_run_open(&run, &o, note_step, &r->steps[rank], e);
    if (!st)
        st = run_epoch(r, run, comm, e);
    acr_ledger_use(NULL);
    if (!st)
        st = copy_masters(r, run, e);
    accrue_run_free(run);
    r->status[rank] = st;
    return st ? acr_fail(err, st, "%s", e->message) : ACCRUE_OK;
}

/* The ranks' masters as one array, which all that have an element agree on to the bit. */
static inline void merge_masters(ranks_run *r)
{
    for (int64_t i = 0; i < r->n; i++)
        for (int k = 1; k < r->ranks; k++) {
            double *first = &r->masters[0][i], other = r->masters[k][i];
            if (isnan(*first))
                *first = other;
            else if (!isnan(other) && *first != other)
                fail_msg("element %lld: rank 0 has %.17g, rank %d %.17g", (long long)i, *first, k,
                         other);
        }
    for (int64_t i = 0; i < r->n; i++)
        if (isnan(r->masters[0][i]))
            fail_msg("element %lld is no rank's", (long long)i);
}

static inline accrue_status run_pieces(ranks_run *r, accrue_error *err)
{
    if (r->ranks == 1)
        return run_rank_pieces(NULL, r, err);
    return acr_ranks_run(r->ranks, r->opt->comm_timeout, run_rank_pieces, r, err);
}

static inline void ranks_run_free(ranks_run *r)
{
    for (int k = 0; k < MAX_RANKS; k++)
        acr_free(r->masters[k]);
    memset(r, 0, sizeof *r);
}

/* Trains the epoch; freed with ranks_run_free. */
static inline void train_hooked(ranks_run *r)
{
    accrue_error e = {0};

    assert_ok(run_pieces(r, &e), &e);
    merge_masters(r);
}

static inline void train_pieces(ranks_run *r, const accrue_train_options *o, int ranks)
{
    *r = (ranks_run){.opt = o, .ranks = ranks};
    train_hooked(r);
}

/* How the model is laid out over ranks. */
typedef enum layout { REPLICATED, SHARDED, DEFERRED, LAYOUTS } layout;

static const char *const layout_names[] = {"replicated", "sharded", "sharded, deferred"};

static inline void set_split(accrue_train_options *o, int64_t window, int ranks, layout l)
{
    o->window.gradient_accumulation_steps = window / ranks;
    o->fsdp_shard = l != REPLICATED;
    o->defer_reduce = l == DEFERRED;
}

/* Figures that a run prints, to the last of five. */
static inline bool prints_alike(double a, double b)
{
    return fabs(a - b) <= 5e-6 * fmax(fabs(a), fabs(b));
}

static inline bool metrics_alike(const accrue_metrics *a, const accrue_metrics *b, int n_steps)
{
    bool alike = prints_alike(a->loss_sum, b->loss_sum) && a->tokens == b->tokens &&
                 a->supervised_tokens == b->supervised_tokens;

    for (int k = 0; k < n_steps; k++)
        alike = alike && prints_alike(a->step_loss_sum[k], b->step_loss_sum[k]) &&
                a->full_acc_sum[k] == b->full_acc_sum[k] &&
                a->full_acc_total[k] == b->full_acc_total[k] &&
                a->cond_acc_sum[k] == b->cond_acc_sum[k] &&
                a->cond_acc_total[k] == b->cond_acc_total[k];
    return alike;
}

/* The same steps were told, to the bit where `exact`. */
static inline void assert_same_steps(const steps *a, const steps *b, bool exact)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        const step_record *x = &a->step[i], *y = &b->step[i];
        bool alike = exact ? memcmp(x, y, sizeof *x) == 0
                           : x->global_step == y->global_step && x->micro_batch == y->micro_batch &&
                                 prints_alike(x->grad_norm, y->grad_norm) &&
                                 metrics_alike(&x->metrics, &y->metrics, x->metrics.n_steps);
        if (!alike)
            fail_msg("step %d: loss %.17g, norm %.17g; loss %.17g, norm %.17g", i + 1,
                     x->metrics.loss_sum, x->grad_norm, y->metrics.loss_sum, y->grad_norm);
    }
}

#endif
