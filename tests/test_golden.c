/* The trainer against the Python trainer on the committed excerpt of real data: the same start
 * weights, the same micro-batches; two epochs of AdamW, one of Muon. */
#include "files.h"
#include "golden.h"

#define EXAMPLE ACR_TEST_DATA "/../../examples/smollm2-excerpt"
#define GOLDEN  ACR_TEST_DATA "/golden-excerpt"

enum { STRIDE = 104729 }; /* tools/make_excerpt_golden.py samples element j * STRIDE mod n */

static char *folder;

static char *init_dir(void)
{
    return acr_sprintf("%s/init", folder);
}

static uint32_t crc32(const uint8_t *bytes, size_t n)
{
    uint32_t crc = 0xffffffffU;

    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0);
    }
    return ~crc;
}

static uint32_t crc32_of_file(const char *path)
{
    acr_map map = {0};
    uint32_t crc = 0;

    assert_int_equal(acr_map_open(&map, path, NULL), ACCRUE_OK);
    crc = crc32(map.data, map.bytes);
    acr_map_close(&map);
    return crc;
}

static int write_init(void **state)
{
    accrue_train_options o;
    accrue_train_plan plan;
    accrue_error e = {0};
    char *dir = NULL;

    (void)state;
    accrue_set_threads(1); /* no result depends on it; tests run side by side */
    folder = make_folder();
    dir = init_dir();
    accrue_train_options_init(&o, sizeof o);
    o.verifier = EXAMPLE "/verifier";
    o.data_path = EXAMPLE "/dataset";
    o.draft_vocab_size = 256;
    o.total_seq_len = 128;
    o.seed = 1;
    o.save_path = dir;
    if (accrue_train_dry_run(&plan, &o, NULL, NULL, &e))
        print_error("%s\n", e.message);
    acr_free(dir);
    return e.status ? -1 : 0;
}

static int remove_init(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

static json_t *load_numbers(const char *name)
{
    accrue_error e = {0};
    json_t *numbers = NULL;

    assert_ok(acr_json_load(&numbers, name, 1 << 20, &e), &e);
    return numbers;
}

/* Where this fails, the initialisation has changed, and tools/make_excerpt_golden.py must be run
 * before the other tests mean anything. */
static void test_start_weights(void **state)
{
    json_t *numbers = load_numbers(GOLDEN "/adamw.json");
    char *path = acr_sprintf("%s/init/model.safetensors", folder);

    (void)state;
    assert_int_equal(crc32((const uint8_t *)"123456789", 9), 0xcbf43926U);
    assert_int_equal(crc32_of_file(path),
                     json_integer_value(json_object_get(numbers, "init_crc32")));
    acr_free(path);
    json_decref(numbers);
}

/* Trainable weights, end to end. */
static float *copy_weights(const acr_model *m)
{
    float *copy = acr_malloc((size_t)acr_model_elements(m, true) * sizeof *copy);
    int64_t at = 0;

    assert_non_null(copy);
    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        if (!p->trainable)
            continue;
        memcpy(copy + at, p->master, (size_t)(p->rows * p->cols) * sizeof *copy);
        at += p->rows * p->cols;
    }
    return copy;
}

/* Bounds on the weights, both in units of the distance that the peer's have moved.  In bf16, Newton
 * and Schulz raise a gradient's small singular values until rounding decides where they point: the
 * order of a sum then shows in single elements, but not in how far a matrix moves. */
typedef struct bounds {
    double loss, matrix, vector, distance;
} bounds;

/* The difference from the peer's weights over the elements sampled; and the whole distance. */
static void check_tensor(const acr_param *p, const float *init, const json_t *want, const bounds *b)
{
    const json_t *sample = json_object_get(want, "sample"), *value = NULL;
    const float *w = p->master;
    int64_t n = p->rows * p->cols;
    double difference = 0, moved = 0, distance = 0;
    double peer_distance = golden_number(want, "moved");
    double bound = p->n_dims == 2 ? b->matrix : b->vector;
    size_t j = 0;

    assert_int_equal(json_integer_value(json_object_get(want, "elements")), n);
    assert_true(json_array_size(sample) >= 64);
    json_array_foreach(sample, j, value)
    {
        int64_t i = (int64_t)j * STRIDE % n;
        difference += pow((double)w[i] - json_number_value(value), 2);
        moved += pow((double)init[i] - json_number_value(value), 2);
    }
    for (int64_t i = 0; i < n; i++)
        distance += pow((double)w[i] - (double)init[i], 2);
    if (!(sqrt(difference) <= bound * sqrt(moved)) || !(moved > 0))
        fail_msg("%s: off by %g of the distance moved", p->name, sqrt(difference / moved));
    if (!(fabs(sqrt(distance) - peer_distance) <= b->distance * peer_distance))
        fail_msg("%s: moved %g, the peer's %g", p->name, sqrt(distance), peer_distance);
}

static void check_weights(acr_model *m, const float *init, const json_t *want, const bounds *b)
{
    size_t compared = 0;

    for (int i = 0; i < m->n_params; i++) {
        const acr_param *p = &m->params[i];
        if (!p->trainable)
            continue;
        check_tensor(p, init, json_object_get(want, p->name), b);
        init += p->rows * p->cols;
        compared++;
    }
    assert_int_equal(compared, json_object_size(want));
}

static void replay(accrue_train_options *o, const char *file, const bounds *b)
{
    json_t *numbers = load_numbers(file);
    golden_run g = {.numbers = numbers};
    accrue_error e = {0};
    char *init = NULL;
    float *start = NULL;

    init = init_dir();
    o->verifier = EXAMPLE "/verifier";
    o->data_path = EXAMPLE "/dataset";
    o->from_pretrained = init;
    o->total_seq_len = 128;
    assert_ok(accrue_run_open(&g.run, o, golden_event, &g, &e), &e);
    start = copy_weights(g.run->setup.model);
    for (int64_t epoch = 0; epoch < o->epochs; epoch++)
        assert_ok(golden_epoch(&g, epoch, &e), &e);
    assert_true(golden_complete(&g));
    print_message("%s: losses %.2g (step %zu), accuracies %.2g, rates %.2g, validation %.2g and "
                  "%.2g\n",
                  file + strlen(GOLDEN "/"), g.loss, g.worst_step, g.accuracy, g.lr, g.val_loss,
                  g.val_accuracy);
    assert_true(g.loss <= b->loss);
    assert_true(g.val_loss <= b->loss);
    assert_true(g.accuracy <= 1e-7);
    assert_true(g.val_accuracy <= 1e-7);
    assert_true(g.lr <= 1e-15);
    check_weights(g.run->setup.model, start, json_object_get(numbers, "weights"), b);
    acr_free(start);
    accrue_run_free(g.run);
    acr_free(init);
    json_decref(numbers);
}

static void test_adamw(void **state)
{
    const bounds b = {.loss = 1e-5, .matrix = 1e-3, .vector = 1e-3, .distance = 1e-3};
    accrue_train_options o;

    (void)state;
    golden_options(&o, GOLDEN "/batch_plan.json");
    o.window.optimizer = ACCRUE_ADAMW;
    o.window.lr = 1e-4;
    o.window.scheduler = ACCRUE_SCHEDULE_COSINE;
    o.scheduler_warmup_steps = 2;
    o.epochs = 2;
    replay(&o, GOLDEN "/adamw.json", &b);
}

static void test_muon(void **state)
{
    const bounds b = {.loss = 1e-4, .matrix = 0.15, .vector = 1e-3, .distance = 1e-3};
    accrue_train_options o;

    (void)state;
    golden_options(&o, GOLDEN "/batch_plan.json");
    o.window.optimizer = ACCRUE_MUON;
    o.window.muon_ns_dtype = ACCRUE_BF16;
    o.window.scheduler = ACCRUE_SCHEDULE_LINEAR;
    o.scheduler_warmup_ratio = 0.2;
    o.epochs = 1;
    replay(&o, GOLDEN "/muon.json", &b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_weights),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_muon),
    };

    return cmocka_run_group_tests(tests, write_init, remove_init);
}
