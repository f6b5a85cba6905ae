/* test_draft.c - a draft that decodes: row after row what training computes, in all its variants;
 * what a checkpoint has to hold, and what memory may fail. */
#include "model_test.h"

#include "infer_files.h"

enum { LAYERS = 8 };

static const acr_verifier_shape shape = {
    .hidden_size = H, .vocab_size = VOCAB, .n_layers = LAYERS, .max_positions = POSITIONS};
static const char llama3_rope[] =
    "{\"rope_type\": \"llama3\", \"rope_theta\": 1000.0, \"factor\": 8.0, \"low_freq_factor\": 1.0,"
    "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 16}";

static acr_draft *open_draft(const char *dir, accrue_dtype compute, int64_t positions)
{
    accrue_error e = {0};
    acr_draft *d = NULL;

    assert_ok(acr_draft_open(&d, dir, "no verifier", &shape, compute, positions, &e), &e);
    return d;
}

/* Training's side -------------------------------------------------------------------------- */

typedef struct trained {
    acr_model *m;
    acr_tape t;
    acr_eagle3_result r;
    acr_batch b;
    const acr_value *h[ACCRUE_MAX_TTT_STEPS]; /* normed output of each TTT step */
    double *verifier_head, *verifier_norm;
} trained;

static void set_verifier(trained *x, acr_param *p, double **values)
{
    accrue_error e = {0};
    acr_tensor t = {.name = p->name, .dtype = ACR_DTYPE_F64, .n_dims = p->n_dims};

    *values = zeros(p->rows * p->cols);
    t.dims[0] = p->rows;
    t.dims[1] = p->cols;
    t.data = *values;
    t.bytes = (size_t)(p->rows * p->cols) * 8;
    assert_ok(acr_param_set(x->m, p, &t, "test", &e), &e);
}

/* The forward of `steps` TTT steps over one document, of whose rows all are supervised. */
static void train_forward(trained *x, const draft_files *f, const char *dir, accrue_dtype compute,
                          const sample *s, int steps)
{
    accrue_error e = {0};
    acr_config config = {0};
    acr_vocab none = {0};
    acr_weights *w = NULL;
    const acr_eagle3_options o = options("kl_div", steps, 1, false);
    double scale[ACCRUE_MAX_TTT_STEPS] = {0};
    int n = 0;

    memset(x, 0, sizeof *x);
    assert_ok(acr_config_read(&config, f->config.json, "config", &e), &e);
    assert_ok(acr_model_create(&x->m, &config, &none, compute, POSITIONS, NULL, &e), &e);
    assert_ok(acr_weights_open(&w, dir, &e), &e);
    assert_ok(acr_model_load(x->m, w, dir, &e), &e);
    set_verifier(x, x->m->top.verifier_norm, &x->verifier_norm);
    set_verifier(x, x->m->top.verifier_head, &x->verifier_head);
    acr_model_refresh(x->m);
    assert_ok(acr_tape_init(&x->t, compute, &e), &e);
    pack(&x->b, acr_real_of(compute), s, NULL, 1, s->n);
    assert_ok(acr_eagle3_forward(&x->r, x->m, &x->t, &x->b, &o, scale, &e), &e);
    for (int64_t i = 0; i < x->t.n_records; i++)
        if (x->t.records[i]->param[0] == x->m->top.norm)
            x->h[n++] = x->t.records[i]->out;
    assert_int_equal(n, steps);
}

static void trained_free(trained *x)
{
    acr_tape_free(&x->t);
    acr_batch_free(&x->b);
    acr_model_free(x->m);
    free(x->verifier_head);
    free(x->verifier_norm);
}

/* Logits of row t at step k, as the head's product makes them. */
static void expected_logits(const trained *x, int64_t t, int k, void *out)
{
    const acr_param *head = x->m->top.head;
    const acr_step_rows *rows = &x->r.rows.step[k];
    const size_t bytes = (size_t)H * x->t.backend->real_bytes;
    acr_gemm_args g = {.layout = ACR_GEMM_NT, .bf16 = x->t.bf16, .m = 1, .n = head->rows, .k = H};
    int64_t i = 0;

    while (i < rows->n && rows->t[i] != t)
        i++;
    assert_true(i < rows->n);
    g.a = (const char *)x->h[k]->data + (size_t)i * bytes;
    g.lda = g.ldb = H;
    g.b = acr_param_operand(&x->t, head, &g.b_is_bf16);
    g.c = out;
    g.ldc = head->rows;
    x->t.backend->gemm(x->t.gemm, &g);
}

static void same_logits(const trained *x, const acr_draft *d, int64_t t, int k)
{
    const int64_t n = x->m->config.draft_vocab_size;
    double got[VOCAB], expected[VOCAB];
    const void *logits = acr_draft_logits(d);

    expected_logits(x, t, k, expected);
    memcpy(got, logits, (size_t)n * x->t.backend->real_bytes);
    if (x->m->compute != ACCRUE_BF16)
        assert_memory_equal(got, expected, (size_t)n * x->t.backend->real_bytes);
    else /* matrix units sum in another order than the vector units that decode */
        for (int64_t i = 0; i < n; i++)
            check_close("logit", (double)((float *)(void *)got)[i],
                        (double)((float *)(void *)expected)[i], 1e-5);
}

/* Decoding ----------------------------------------------------------------------------------- */

static const void *states_of(const trained *x, int64_t t)
{
    return (const char *)x->b.hidden + (size_t)(t * AUX * H) * x->t.backend->real_bytes;
}

/* Verified rows come in chunks; after each, the last row drafts along the given tokens. */
static void decode(const trained *x, acr_draft *d, const int64_t *chunks, int n_chunks, int steps)
{
    accrue_error e = {0};
    int64_t t = 0;

    acr_draft_restart(d);
    for (int i = 0; t < x->b.n_rows; i++) {
        int64_t n = chunks[i % n_chunks];
        if (n > x->b.n_rows - t)
            n = x->b.n_rows - t;
        assert_ok(acr_draft_extend(d, x->b.input_ids + t, states_of(x, t), n, &e), &e);
        t += n;
        same_logits(x, d, t - 1, 0);
        for (int k = 1; k < steps && t - 1 + k < x->b.n_rows; k++) {
            assert_ok(acr_draft_step(d, x->b.input_ids[t - 1 + k], &e), &e);
            same_logits(x, d, t - 1, k);
        }
    }
}

static void check_variant(const variant *v, accrue_dtype compute, bool llama3, int64_t rows,
                          int steps)
{
    static const int64_t one[] = {1}, some[] = {3, 1, 7, 2, 64}, whole[] = {POSITIONS};
    source s = {.seed = 5};
    sample x = sample_make(&s, rows, 1);
    char *text = config_text(v), *dir = make_folder();
    draft_files f;
    trained m;
    acr_draft *d = NULL;

    draft_files_make(&f, text, compute == ACCRUE_F64 ? ACR_DTYPE_F64 : ACR_DTYPE_BF16, 11, 0.3);
    if (llama3)
        json_object_set_new(json_object_get(f.config.json, "transformer_layer_config"),
                            "rope_parameters", json_loads(llama3_rope, 0, NULL));
    if (v->draft_vocab < VOCAB)
        draft_files_map(&f, 2);
    draft_files_write(&f, dir);
    train_forward(&m, &f, dir, compute, &x, steps);
    d = open_draft(dir, compute, rows);
    decode(&m, d, one, 1, steps);
    decode(&m, d, some, ACR_COUNT(some), steps);
    decode(&m, d, whole, 1, steps);
    acr_draft_free(d);
    trained_free(&m);
    draft_files_free(&f);
    sample_free(&x);
    acr_free(text);
    remove_folder(dir);
}

static void equals_training(void **state)
{
    (void)state;
    for (int v = 0; v < ACR_COUNT(variants); v++)
        for (int p = 0; p < ACR_COUNT(precisions); p++)
            check_variant(&variants[v], precisions[p], false, 70, 4);
}

static void equals_training_with_scaled_rotation(void **state)
{
    (void)state;
    check_variant(&variants[2], ACCRUE_F64, true, 40, 3);
    check_variant(&plain, ACCRUE_F32, true, 40, 3);
}

/* More rows than a pass takes, and as many drafted ones as there can be. */
static void equals_training_over_long_prompts(void **state)
{
    (void)state;
    check_variant(&variants[3], ACCRUE_F32, false, 300, 2);
    check_variant(&variants[4], ACCRUE_F64, false, 270, ACCRUE_MAX_TTT_STEPS);
}

/* Tokens ------------------------------------------------------------------------------------- */

/* A folder with the plain draft; `f` may be changed and written again. */
static char *plain_folder(draft_files *f)
{
    char *dir = make_folder(), *text = config_text(&plain);

    draft_files_make(f, text, ACR_DTYPE_F64, 3, 0.3);
    draft_files_map(f, 2);
    draft_files_write(f, dir);
    acr_free(text);
    return dir;
}

static void tokens_are_the_verifier_s(void **state)
{
    accrue_error e = {0};
    source s = {.seed = 8};
    sample x = sample_make(&s, 30, 1);
    draft_files f;
    char *dir = plain_folder(&f);
    acr_draft *d = open_draft(dir, ACCRUE_F64, 64);
    const int64_t *d2t = draft_tensor(&f, "d2t")->data;
    int moved = 0;

    (void)state;
    assert_int_equal(acr_draft_describe(d)->draft_vocab_size, DRAFT);
    for (int i = 0; i < AUX; i++)
        assert_int_equal(acr_draft_slots(d)[i], i + 1);
    for (int64_t t = 0; t < x.n; t++) {
        const double *logits = NULL;
        int64_t best = 0;
        assert_ok(acr_draft_extend(d, x.ids + t, x.hidden + t * AUX * H, 1, &e), &e);
        logits = acr_draft_logits(d);
        for (int64_t i = 1; i < DRAFT; i++)
            if (logits[i] > logits[best])
                best = i;
        assert_int_equal(acr_draft_token(d), best + d2t[best]);
        moved += d2t[best] != 0;
    }
    assert_true(moved > 0);
    acr_draft_free(d);
    draft_files_free(&f);
    sample_free(&x);
    remove_folder(dir);
}

static void wrong_calls_are_refused(void **state)
{
    accrue_error e = {0};
    source s = {.seed = 8};
    sample x = sample_make(&s, 9, 1);
    int64_t id = VOCAB;
    draft_files f;
    char *dir = plain_folder(&f);
    acr_draft *d = open_draft(dir, ACCRUE_F64, 8);

    (void)state;
    assert_fails(acr_draft_step(d, 1, &e), ACCRUE_ESTATE, &e, "0 verified", NULL);
    assert_fails(acr_draft_extend(d, x.ids, x.hidden, 9, &e), ACCRUE_EINVAL, &e, "9 rows", "1 to 8",
                 NULL);
    assert_fails(acr_draft_extend(d, x.ids, x.hidden, 0, &e), ACCRUE_EINVAL, &e, "0 rows", NULL);
    assert_fails(acr_draft_extend(d, &id, x.hidden, 1, &e), ACCRUE_EMISMATCH, &e, "40",
                 "at most 39", NULL);
    assert_ok(acr_draft_extend(d, x.ids, x.hidden, 7, &e), &e);
    assert_fails(acr_draft_extend(d, x.ids, x.hidden, 2, &e), ACCRUE_EINVAL, &e, "2 rows", "1 to 1",
                 NULL);
    for (int k = 1; k < ACCRUE_MAX_TTT_STEPS; k++)
        assert_ok(acr_draft_step(d, k, &e), &e);
    assert_fails(acr_draft_step(d, 1, &e), ACCRUE_ESTATE, &e, "7 verified", "15 drafted", NULL);
    acr_draft_free(d);
    draft_files_free(&f);
    sample_free(&x);
    remove_folder(dir);
}

/* Checkpoints -------------------------------------------------------------------------------- */

static void open_fails(const char *dir, const acr_verifier_shape *v, accrue_status expected,
                       const char *one, const char *other)
{
    accrue_error e = {0};
    acr_draft *d = NULL;

    assert_fails(acr_draft_open(&d, dir, "no verifier", v, ACCRUE_F32, 64, &e), expected, &e, one,
                 other, NULL);
    assert_null(d);
}

static void other_verifiers_are_refused(void **state)
{
    acr_verifier_shape v = shape;
    draft_files f;
    char *dir = plain_folder(&f);
    json_t *ids = json_object_get(f.config.json, "eagle_aux_hidden_state_layer_ids");

    (void)state;
    v.hidden_size = 24;
    open_fails(dir, &v, ACCRUE_EMISMATCH, "hidden size 16", "24");
    v = shape;
    v.vocab_size = 41;
    open_fails(dir, &v, ACCRUE_EMISMATCH, "vocabulary of 40", "41");
    v = shape;
    v.n_layers = 2;
    open_fails(dir, &v, ACCRUE_EMISMATCH, "layer 3", "0 to 2");
    json_array_set_new(ids, 1, json_string("2"));
    draft_files_write(&f, dir);
    open_fails(dir, &shape, ACCRUE_EFORMAT, "entry 1", "no integer");
    json_array_set_new(ids, 1, json_integer(-1));
    draft_files_write(&f, dir);
    open_fails(dir, &shape, ACCRUE_EMISMATCH, "layer -1", "0 to 8");
    draft_files_free(&f);
    remove_folder(dir);
}

static void default_layers(void **state)
{
    draft_files f;
    char *dir = plain_folder(&f);
    acr_draft *d = NULL;

    (void)state;
    json_object_del(f.config.json, "eagle_aux_hidden_state_layer_ids");
    draft_files_write(&f, dir);
    d = open_draft(dir, ACCRUE_F32, 8);
    assert_int_equal(acr_draft_slots(d)[0], 2);
    assert_int_equal(acr_draft_slots(d)[1], LAYERS / 2);
    assert_int_equal(acr_draft_slots(d)[2], LAYERS - 3);
    acr_draft_free(d);
    draft_files_free(&f);
    remove_folder(dir);
}

static void broken_checkpoints_are_refused(void **state)
{
    accrue_error e = {0};
    acr_draft *d = NULL;
    draft_files f;
    char *dir = plain_folder(&f);

    (void)state;
    open_fails("no/such", &shape, ACCRUE_EIO, "no/such", "no folder");
    assert_fails(acr_draft_open(&d, dir, "v", &shape, ACCRUE_F32, 0, &e), ACCRUE_EINVAL, &e,
                 "0 tokens", NULL);
    json_object_set_new(f.config.json, "draft_vocab_size", json_integer(DRAFT - 1));
    draft_files_write(&f, dir);
    open_fails(dir, &shape, ACCRUE_EMISMATCH, "\"draft_vocab_size\" is 23", "24");
    json_object_set_new(f.config.json, "draft_vocab_size", json_integer(DRAFT));
    ((uint8_t *)(uintptr_t)draft_tensor(&f, "t2d")->data)[0] ^= 1;
    draft_files_write(&f, dir);
    open_fails(dir, &shape, ACCRUE_EMISMATCH, "t2d marks", "24");
    draft_drop(&f, "t2d");
    draft_files_write(&f, dir);
    open_fails(dir, &shape, ACCRUE_EFORMAT, "t2d", "missing");
    draft_drop(&f, "d2t");
    draft_files_write(&f, dir);
    open_fails(dir, &shape, ACCRUE_EFORMAT, "d2t", "missing");
    draft_files_map(&f, 2);
    draft_drop(&f, "layers.0.hidden_norm.weight");
    draft_files_write(&f, dir);
    open_fails(dir, &shape, ACCRUE_EFORMAT, "layers.0.hidden_norm.weight", "missing");
    draft_files_free(&f);
    remove_folder(dir);
}

/* A row of a table of the verifier's file. */
static void copy_row(draft_files *f, const char *to, int64_t row, const acr_weights *w,
                     const char *from, int64_t of)
{
    const size_t bytes = V_HIDDEN * sizeof(float);
    char *table = f->blocks[draft_tensor(f, to) - f->tensors];

    memcpy(table + (size_t)row * bytes,
           (const char *)acr_weights_find(w, from)->data + (size_t)of * bytes, bytes);
}

/* Without tables of its own a draft has the verifier's, as if they were copied into it. */
static void lacking_tables_are_the_verifier_s(void **state)
{
    (void)state;
    for (int reduced = 0; reduced < 2; reduced++) {
        accrue_error e = {0};
        char *verifier = make_folder(), *with = make_folder(), *without = make_folder();
        acr_verifier_shape v = {
            .hidden_size = V_HIDDEN, .vocab_size = V_VOCAB, .n_layers = V_LAYERS};
        source s = {.seed = 8};
        sample x = sample_make(&s, 12, 1);
        const int64_t n = reduced ? 20 : V_VOCAB;
        acr_draft *d[2] = {NULL};
        acr_weights *w = NULL;
        const int64_t *d2t = NULL;
        draft_files f;

        verifier_write(verifier, V_VOCAB, V_EOS, 5);
        draft_make_for(&f, V_VOCAB, n, 1, true, verifier, 6);
        assert_ok(acr_weights_open(&w, verifier, &e), &e);
        d2t = reduced ? draft_tensor(&f, "d2t")->data : NULL;
        for (int64_t i = 0; i < V_VOCAB; i++)
            copy_row(&f, "embed_tokens.weight", i, w, "model.embed_tokens.weight", i);
        for (int64_t i = 0; i < n; i++)
            copy_row(&f, "lm_head.weight", i, w, "lm_head.weight", i + (d2t ? d2t[i] : 0));
        draft_files_write(&f, with);
        draft_drop(&f, "embed_tokens.weight");
        draft_drop(&f, "lm_head.weight");
        draft_files_write(&f, without);
        for (int i = 0; i < 2; i++) {
            assert_ok(acr_draft_open(&d[i], i ? without : with, verifier, &v, ACCRUE_F64, 64, &e),
                      &e);
            assert_ok(acr_draft_extend(d[i], x.ids, x.hidden, x.n, &e), &e);
            assert_ok(acr_draft_step(d[i], 3, &e), &e);
        }
        assert_memory_equal(acr_draft_logits(d[0]), acr_draft_logits(d[1]),
                            (size_t)n * sizeof(double));
        acr_draft_free(d[1]);
        assert_fails(acr_draft_open(&d[1], without, "no/such", &v, ACCRUE_F32, 64, &e), ACCRUE_EIO,
                     &e, "no/such", NULL);
        verifier_write(verifier, V_VOCAB + 1, V_EOS, 5);
        assert_fails(acr_draft_open(&d[1], without, verifier, &v, ACCRUE_F32, 64, &e),
                     ACCRUE_EMISMATCH, &e, "model.embed_tokens.weight", "[48, 16]", NULL);
        assert_fails(acr_draft_open(&d[1], without, with, &v, ACCRUE_F32, 64, &e), ACCRUE_EFORMAT,
                     &e, "model.embed_tokens.weight is missing", NULL);
        acr_draft_free(d[0]);
        acr_weights_close(w);
        draft_files_free(&f);
        sample_free(&x);
        remove_folder(verifier);
        remove_folder(with);
        remove_folder(without);
    }
}

static void memory_may_fail_anywhere(void **state)
{
    draft_files f;
    char *dir = plain_folder(&f);
    size_t before = acr_allocated_bytes();
    accrue_status st = ACCRUE_ENOMEM;
    uint64_t n = 0;

    (void)state;
    while (st) {
        accrue_error e = {0};
        acr_draft *d = NULL;
        acr_fail_allocation_here(++n);
        st = acr_draft_open(&d, dir, "v", &shape, ACCRUE_BF16, 64, &e);
        acr_fail_allocation_here(0);
        if (st)
            assert_fails(st, ACCRUE_ENOMEM, &e, NULL);
        acr_draft_free(d);
        assert_int_equal(acr_allocated_bytes(), before);
    }
    assert_true(n > 30);
    draft_files_free(&f);
    remove_folder(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_training),
        cmocka_unit_test(equals_training_with_scaled_rotation),
        cmocka_unit_test(equals_training_over_long_prompts),
        cmocka_unit_test(tokens_are_the_verifier_s),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(other_verifiers_are_refused),
        cmocka_unit_test(default_layers),
        cmocka_unit_test(broken_checkpoints_are_refused),
        cmocka_unit_test(lacking_tables_are_the_verifier_s),
        cmocka_unit_test(memory_may_fail_anywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
