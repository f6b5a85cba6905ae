/* test_params.c - a draft's parameters: names and groups, fresh values, loading from files of any
 * float type and shape, the verifier's rows; every refusal in one line. */
#include "model_test.h"

#include "files.h"

static const variant wide = {.arch = "qwen3",
                             .layers = 2,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 8,
                             .full_layer = -1,
                             .draft_vocab = DRAFT,
                             .bias = true,
                             .fc_norm = true};

static acr_model *make_model(const variant *v, accrue_dtype compute, bool reduced)
{
    accrue_error e = {0};
    acr_config config = {0};
    acr_vocab vocab = {0};
    acr_model *m = NULL;
    json_t *json = NULL;
    char *text = config_text(v);

    assert_ok(acr_json_parse(&json, text, strlen(text), "config", &e), &e);
    assert_ok(acr_config_read(&config, json, "config", &e), &e);
    if (reduced) { /* every odd id, then the even ones that are left to reach DRAFT */
        int64_t counts[VOCAB] = {0};
        for (int i = 1; i < VOCAB; i += 2)
            counts[i] = 5;
        assert_ok(acr_vocab_build(&vocab, counts, VOCAB, v->draft_vocab, &e), &e);
    }
    assert_ok(acr_model_create(&m, &config, &vocab, compute, 64, NULL, &e), &e);
    json_decref(json);
    acr_free(text);
    return m;
}

static void names_are_the_checkpoint_s(void **state)
{
    static const char *const expected[] = {"fc.weight",
                                           "fc_norm.0.weight",
                                           "fc_norm.2.weight",
                                           "layers.0.hidden_norm.weight",
                                           "layers.0.self_attn.q_proj.weight",
                                           "layers.1.self_attn.o_proj.bias",
                                           "layers.1.self_attn.k_norm.weight",
                                           "layers.1.mlp.down_proj.weight",
                                           "layers.1.post_attention_layernorm.weight",
                                           "norm.weight",
                                           "embed_tokens.weight",
                                           "lm_head.weight",
                                           "verifier_norm.weight",
                                           "verifier_lm_head.weight"};
    acr_model *m = make_model(&wide, ACCRUE_F32, false);
    int64_t trainable = 0;

    (void)state;
    for (int i = 0; i < ACR_COUNT(expected); i++)
        assert_non_null(acr_model_find(m, expected[i]));
    assert_null(acr_model_find(m, "layers.1.hidden_norm.weight"));
    assert_null(acr_model_find(m, "input_norm.weight"));
    assert_int_equal(acr_model_find(m, "layers.0.self_attn.q_proj.weight")->cols, 2 * H);
    assert_int_equal(acr_model_find(m, "layers.1.self_attn.q_proj.weight")->cols, H);
    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        assert_true(p->trainable == (p->grad != NULL));
        trainable += p->trainable ? p->rows * p->cols : 0;
    }
    assert_int_equal(acr_model_elements(m, true), trainable);
    assert_int_equal(acr_model_elements(m, false), trainable + (VOCAB + DRAFT) * H);
    assert_ptr_equal(m->top.fc->group, m->top.fc_norm[1]->group);
    assert_ptr_equal(m->layer[1].q->group, m->layer[1].down->group);
    assert_true(m->layer[0].q->group != m->layer[1].q->group);
    acr_model_free(m);
}

static void fresh_values(void **state)
{
    acr_model *m = make_model(&wide, ACCRUE_BF16, false),
              *again = make_model(&wide, ACCRUE_F64, false);
    double sum = 0, squares = 0;
    int64_t n = 0;

    (void)state;
    acr_model_init(m, 7);
    acr_model_init(again, 7);
    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        for (int64_t j = 0; p->trainable && j < p->rows * p->cols; j++) {
            float x = ((const float *)p->master)[j];
            assert_true(fabs((double)x - (double)(float)((double *)again->params[i].master)[j]) <=
                        0);
            if (p->cols > 1) {
                sum += (double)x;
                squares += (double)x * (double)x;
                n++;
                assert_int_equal(p->bf16[j], acr_bf16_from_f32(x));
            } else {
                assert_true(fabs((double)x - (strstr(p->name, "bias") ? 0 : 1)) <= 0);
            }
        }
    }
    assert_true(fabs(sum / (double)n) < 1e-3);
    assert_true(fabs(sqrt(squares / (double)n) - 0.02) < 1e-3);
    assert_true(memcmp(m->layer[0].gate->master, m->layer[0].up->master, 64) != 0);
    acr_model_init(again, 8);
    assert_true(fabs((double)((float *)m->layer[0].gate->master)[0] -
                     ((double *)again->layer[0].gate->master)[0]) > 0);
    acr_model_free(m);
    acr_model_free(again);
}

/* Files ------------------------------------------------------------------------------------ */

enum { MAX_TENSORS = 64 };

typedef struct file {
    acr_tensor tensor[MAX_TENSORS];
    double *value[MAX_TENSORS]; /* as the file has them, rounded to its type */
    int n;
} file;

static void add(file *f, const char *name, acr_dtype dtype, int64_t rows, int64_t cols, source *s)
{
    acr_tensor *t = &f->tensor[f->n];
    int64_t n = rows * cols;
    void *data = calloc((size_t)n, acr_dtype_bytes(dtype));

    assert_true(f->n < MAX_TENSORS && data);
    f->value[f->n] = calloc((size_t)n, sizeof(double));
    assert_non_null(f->value[f->n]);
    for (int64_t i = 0; i < n; i++)
        f->value[f->n][i] = short_normal(s, 0.25);
    acr_convert(dtype, data, ACR_DTYPE_F64, f->value[f->n], n);
    acr_convert(ACR_DTYPE_F64, f->value[f->n], dtype, data, n);
    *t = (acr_tensor){.name = name,
                      .dtype = dtype,
                      .n_dims = cols == 1 ? 1 : 2,
                      .dims = {rows, cols},
                      .data = data,
                      .bytes = (size_t)n * acr_dtype_bytes(dtype)};
    f->n++;
}

static acr_tensor *find(file *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->tensor[i].name, name) == 0)
            return &f->tensor[i];
    fail_msg("%s", name);
    return NULL;
}

static void file_free(file *f)
{
    for (int i = 0; i < f->n; i++) {
        free((void *)(uintptr_t)f->tensor[i].data);
        free(f->value[i]);
    }
}

/* Writes `f` as a model folder and opens it. */
static acr_weights *reopen(const file *f, const char *folder)
{
    acr_weights *w = NULL;
    accrue_error e = {0};
    char *path = acr_sprintf("%s/model.safetensors", folder);

    assert_ok(acr_safetensors_write(path, f->tensor, f->n, NULL, NULL, &e), &e);
    assert_ok(acr_weights_open(&w, folder, &e), &e);
    acr_free(path);
    return w;
}

static void checkpoint_of(file *f, acr_model *m, acr_dtype dtype, source *s)
{
    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        if (p->trainable)
            add(f, p->name, dtype, p->rows, p->cols, s);
    }
}

static void verifier_of(file *f, acr_dtype dtype, bool head, source *s)
{
    add(f, "model.embed_tokens.weight", dtype, VOCAB, H, s);
    add(f, "model.norm.weight", dtype, H, 1, s);
    if (head)
        add(f, "lm_head.weight", dtype, VOCAB, H, s);
}

static double operand(const acr_model *m, const acr_param *p, int64_t i)
{
    double x = 0;

    if (p->bf16)
        return (double)acr_f32_from_bf16(p->bf16[i]);
    if (p->master)
        return real_at(m, p->master, i);
    acr_convert(ACR_DTYPE_F64, &x, p->frozen_type,
                (const char *)p->frozen + (size_t)i * acr_dtype_bytes(p->frozen_type), 1);
    return x;
}

/* Every file type into every precision; with and without a head of its own, and a reduced
 * vocabulary.  Values are bf16's, so nothing is lost on the way. */
static void loads_every_type(void **state)
{
    static const acr_dtype types[] = {ACR_DTYPE_BF16, ACR_DTYPE_F16, ACR_DTYPE_F32, ACR_DTYPE_F64};
    static const accrue_dtype computes[] = {ACCRUE_BF16, ACCRUE_F32, ACCRUE_F64};

    (void)state;
    for (int i = 0; i < ACR_COUNT(types) * ACR_COUNT(computes); i++) {
        acr_dtype type = types[i % ACR_COUNT(types)];
        acr_model *m = make_model(&wide, computes[i / ACR_COUNT(types)], i % 2 == 0);
        char *one = make_folder(), *two = make_folder();
        bool own_head = i % 3 != 0;
        file checkpoint = {0}, verifier = {0};
        source s = {.seed = (uint64_t)i};
        accrue_error e = {0};
        const double *head = NULL;

        checkpoint_of(&checkpoint, m, type, &s);
        verifier_of(&verifier, type, own_head, &s);
        assert_ok(acr_model_load(m, reopen(&checkpoint, one), one, &e), &e);
        assert_ok(acr_model_load_verifier(m, reopen(&verifier, two), two, &e), &e);
        for (int t = 0; t < checkpoint.n; t++) {
            const acr_param *p = acr_model_find(m, checkpoint.tensor[t].name);
            for (int64_t j = 0; j < p->rows * p->cols; j++)
                if (type != ACR_DTYPE_F16 || m->compute != ACCRUE_BF16)
                    assert_true(fabs(operand(m, p, j) - checkpoint.value[t][j]) <= 0);
        }
        head = verifier.value[own_head ? 2 : 0];
        for (int64_t r = 0; r < DRAFT; r++) {
            int64_t row = m->vocab.d2t ? r + m->vocab.d2t[r] : r;
            for (int j = 0; j < H; j++) {
                double expected = head[row * H + j];
                if (type == ACR_DTYPE_F16 && m->compute == ACCRUE_BF16)
                    continue;
                assert_true(fabs(operand(m, m->top.verifier_head, r * H + j) - expected) <= 0);
                assert_true(fabs(operand(m, m->top.head, r * H + j) - expected) <= 0);
            }
        }
        for (int j = 0; j < H; j++)
            assert_true(fabs(real_at(m, m->top.verifier_norm->master, j) - verifier.value[1][j]) <=
                        0);
        for (int j = 0; j < VOCAB * H; j++) {
            acr_param table = *m->top.embed;
            table.bf16 = NULL;
            assert_true(fabs(operand(m, &table, j) - verifier.value[0][j]) <= 0);
        }
        acr_model_free(m);
        file_free(&checkpoint);
        file_free(&verifier);
        remove_folder(one);
        remove_folder(two);
    }
}

/* Weights of a file may lie anywhere: an odd address must not be read as an array. */
static void unaligned_tables(void **state)
{
    acr_model *m = make_model(&wide, ACCRUE_F32, false);
    char *bytes = calloc(VOCAB * H + 1, 4);
    float one = 1;
    accrue_error e = {0};
    acr_tensor t = {.name = "embed_tokens.weight",
                    .dtype = ACR_DTYPE_F32,
                    .n_dims = 2,
                    .dims = {VOCAB, H},
                    .bytes = VOCAB * H * 4};

    (void)state;
    assert_non_null(bytes);
    for (int i = 0; i < VOCAB * H; i++)
        memcpy(bytes + 1 + 4 * i, &one, 4);
    t.data = bytes + 1;
    assert_ok(acr_param_set(m, m->top.embed, &t, "f", &e), &e);
    assert_int_equal((uintptr_t)m->top.embed->frozen % 4, 0);
    assert_true(fabs(operand(m, m->top.embed, VOCAB * H - 1) - 1) <= 0);
    acr_model_free(m);
    free(bytes);
}

static void refuses_what_does_not_fit(void **state)
{
    char *folder = make_folder();
    accrue_error e = {0};

    (void)state;
    for (int i = 0; i < 8; i++) {
        acr_model *m = make_model(&wide, ACCRUE_F32, true);
        source s = {.seed = 3};
        file f = {0};
        if (i < 5)
            checkpoint_of(&f, m, ACR_DTYPE_F32, &s);
        else
            verifier_of(&f, ACR_DTYPE_F32, true, &s);
        if (i == 0) {
            find(&f, "layers.1.mlp.up_proj.weight")->name = "other";
            assert_fails(acr_model_load(m, reopen(&f, folder), "file", &e), ACCRUE_EFORMAT, &e,
                         "file", "layers.1.mlp.up_proj.weight", "missing", NULL);
        } else if (i == 1) {
            acr_tensor *t = find(&f, "fc.weight");
            t->dims[0] = t->dims[1];
            t->dims[1] = H;
            assert_fails(acr_model_load(m, reopen(&f, folder), "file", &e), ACCRUE_EMISMATCH, &e,
                         "fc.weight", "[48, 16] in file", "[16, 48] expected", NULL);
        } else if (i == 2) {
            acr_tensor *t = find(&f, "norm.weight");
            ((float *)(uintptr_t)t->data)[5] = (float)HUGE_VAL;
            assert_fails(acr_model_load(m, reopen(&f, folder), "file", &e), ACCRUE_EFORMAT, &e,
                         "norm.weight", "element 5 is not finite", NULL);
        } else if (i == 3) {
            find(&f, "fc.weight")->dtype = ACR_DTYPE_I32;
            assert_fails(acr_model_load(m, reopen(&f, folder), "file", &e), ACCRUE_EMISMATCH, &e,
                         "fc.weight", "I32", "a float type expected", NULL);
        } else if (i == 4) { /* a vector as a matrix of one column */
            find(&f, "norm.weight")->n_dims = 2;
            assert_fails(acr_model_load(m, reopen(&f, folder), "file", &e), ACCRUE_EMISMATCH, &e,
                         "norm.weight", "[16, 1] in file", "[16] expected", NULL);
        } else if (i == 5) {
            find(&f, "model.norm.weight")->name = "other";
            assert_fails(acr_model_load_verifier(m, reopen(&f, folder), "file", &e), ACCRUE_EFORMAT,
                         &e, "model.norm.weight", "missing", NULL);
        } else if (i == 6) {
            find(&f, "lm_head.weight")->dims[0] = VOCAB / 2;
            find(&f, "lm_head.weight")->bytes /= 2;
            assert_fails(acr_model_load_verifier(m, reopen(&f, folder), "file", &e),
                         ACCRUE_EMISMATCH, &e, "lm_head.weight", "[20, 16] in file",
                         "[40, 16] expected", NULL);
        } else {
            find(&f, "lm_head.weight")->dtype = ACR_DTYPE_I32;
            assert_fails(acr_model_load_verifier(m, reopen(&f, folder), "file", &e),
                         ACCRUE_EMISMATCH, &e, "lm_head.weight", "I32", NULL);
        }
        acr_model_free(m);
        file_free(&f);
    }
    remove_folder(folder);
}

static void failing_allocations(void **state)
{
    int failures = 0;

    (void)state;
    for (uint64_t n = 1;; n++) {
        accrue_error e = {0};
        acr_config config = {0};
        acr_vocab vocab = {0};
        acr_model *m = NULL;
        json_t *json = NULL;
        char *text = config_text(&wide);
        size_t live = 0;
        accrue_status st = ACCRUE_OK;
        assert_ok(acr_json_parse(&json, text, strlen(text), "config", &e), &e);
        assert_ok(acr_config_read(&config, json, "config", &e), &e);
        json_decref(json);
        acr_free(text);
        live = acr_allocated_bytes();
        acr_fail_allocation(n);
        st = acr_model_create(&m, &config, &vocab, ACCRUE_BF16, 64, NULL, &e);
        acr_fail_allocation(0);
        acr_model_free(m);
        acr_config_free(&config);
        assert_int_equal(acr_allocated_bytes(), live);
        if (!st)
            break;
        assert_fails(st, ACCRUE_ENOMEM, &e, "memory", NULL);
        assert_null(m);
        failures++;
    }
    assert_true(failures > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_the_checkpoint_s), cmocka_unit_test(fresh_values),
        cmocka_unit_test(loads_every_type),           cmocka_unit_test(unaligned_tables),
        cmocka_unit_test(refuses_what_does_not_fit),  cmocka_unit_test(failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
