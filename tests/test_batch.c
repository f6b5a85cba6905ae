/* test_batch.c - collation against the Python trainer's, masks alone, and samples' states. */
#include "files.h"

#include "data/data.h"

#define COLLATE ACR_TEST_DATA "/collate_eagle3"
#define TINY    ACR_TEST_DATA "/tiny"

enum { HIDDEN = 4, AUX = 3, MAX_LEN = 24 };

static const acr_batch_shape collate_shape = {.total_seq_len = MAX_LEN,
                                              .hidden_size = HIDDEN,
                                              .vocab_size = 1000,
                                              .n_aux = AUX,
                                              .real = ACR_DTYPE_F32};

static const acr_tensor *get(const acr_safetensors *f, const char *c, const char *part,
                             const char *name)
{
    char *full = acr_sprintf("%s.%s.%s", c, part, name);
    const acr_tensor *t = acr_safetensors_find(f, full);

    assert_non_null(t);
    acr_free(full);
    return t;
}

/* The fixture keeps auxiliary states and targets apart; files hold them side by side. */
static void load_document(acr_document *doc, const acr_safetensors *f, const char *c, int i)
{
    char *part = acr_sprintf("doc%d", i);
    const acr_tensor *ids = get(f, c, part, "input_ids");
    const acr_tensor *mask = get(f, c, part, "loss_mask");
    const acr_tensor *aux = get(f, c, part, "hidden_states");
    const acr_tensor *last = get(f, c, part, "verifier_last_hidden_states");
    size_t n = (size_t)ids->dims[0];
    float *states = acr_malloc(n * (AUX + 1) * HIDDEN * sizeof *states);
    int64_t *numbers = acr_malloc(2 * n * sizeof *numbers);

    assert_non_null(states);
    assert_non_null(numbers);
    memcpy(numbers, ids->data, ids->bytes);
    memcpy(numbers + n, mask->data, mask->bytes);
    for (size_t t = 0; t < n; t++) {
        float *to = states + t * (AUX + 1) * HIDDEN;
        memcpy(to, (const float *)aux->data + t * AUX * HIDDEN, AUX * HIDDEN * sizeof *to);
        memcpy(to + AUX * HIDDEN, (const float *)last->data + t * HIDDEN, HIDDEN * sizeof *to);
    }
    *doc = (acr_document){.sample = i,
                          .tokens = (int64_t)n,
                          .input_ids = numbers,
                          .loss_mask = numbers + n,
                          .dtype = ACR_DTYPE_F32,
                          .states = states};
    acr_free(part);
}

static int64_t at64(const acr_tensor *t, int64_t i)
{
    int64_t v = 0;

    memcpy(&v, (const char *)t->data + 8 * i, 8);
    return v;
}

static void check_case(const acr_safetensors *f, const char *c, int n_docs)
{
    accrue_error e;
    acr_document docs[4];
    acr_batch b;
    const acr_tensor *ids = get(f, c, "batch", "input_ids");
    const acr_tensor *mask = get(f, c, "batch", "loss_mask");
    const acr_tensor *position = get(f, c, "batch", "position_ids");
    const acr_tensor *document = get(f, c, "batch", "document_ids");
    const acr_tensor *hidden = get(f, c, "batch", "hidden_states");
    const acr_tensor *last = get(f, c, "batch", "verifier_last_hidden_states");
    int64_t rows = 0;

    for (int i = 0; i < n_docs; i++)
        load_document(&docs[i], f, c, i);
    assert_ok(acr_batch_alloc(&b, &collate_shape, n_docs, &e), &e);
    assert_ok(acr_batch_collate(&b, &collate_shape, docs, n_docs, &e), &e);
    while (rows < MAX_LEN && at64(document, rows) >= 0)
        rows++;
    assert_int_equal(b.n_rows, rows);
    assert_int_equal(b.padded_rows, MAX_LEN);
    assert_int_equal(b.n_docs, n_docs);
    assert_int_equal(b.doc_begin[n_docs], rows);
    for (int64_t t = 0; t < rows; t++) {
        int64_t d = at64(document, t);
        assert_int_equal(b.input_ids[t], at64(ids, t));
        assert_int_equal(b.loss_mask[t], at64(mask, t));
        assert_int_equal(b.position_ids[t], at64(position, t));
        assert_true(b.doc_begin[d] <= t && t < b.doc_begin[d + 1]);
    }
    assert_memory_equal(b.hidden, hidden->data, (size_t)rows * AUX * HIDDEN * sizeof(float));
    assert_memory_equal(b.target, last->data, (size_t)rows * HIDDEN * sizeof(float));
    acr_batch_free(&b);
    for (int i = 0; i < n_docs; i++) {
        acr_free((void *)(uintptr_t)docs[i].states);
        acr_free((void *)(uintptr_t)docs[i].input_ids);
    }
}

static void collates_as_the_peer(void **state)
{
    accrue_error e;
    acr_safetensors *f = NULL;

    (void)state;
    assert_ok(acr_safetensors_open(&f, COLLATE "/tensors.safetensors", &e), &e);
    check_case(f, "case0", 2);
    check_case(f, "case1", 3); /* the third document is cut */
    check_case(f, "case2", 1); /* one document, longer than the micro-batch */
    acr_safetensors_close(f);
}

static const acr_batch_shape tiny_shape = {.total_seq_len = 16,
                                           .hidden_size = HIDDEN,
                                           .vocab_size = 50,
                                           .n_aux = AUX,
                                           .real = ACR_DTYPE_F64};

/* Rows 2, 1, 0, 4 of the data set: 9, 1, 5 and 12 tokens in 16 rows. */
static void a21_positions_restart_and_masks_are_those_of_the_batch(void **state)
{
    accrue_error e;
    acr_dataset *d = NULL;
    acr_batch whole;
    acr_batch masks;
    acr_batch_shape no_states = tiny_shape;
    acr_states s[4] = {{0}};
    acr_document docs[4];
    const int64_t rows[4] = {2, 1, 0, 4};
    const int64_t begin[5] = {0, 8, 8, 12, 16};

    (void)state;
    no_states.hidden_size = 0;
    assert_ok(acr_dataset_open(&d, TINY, &e), &e);
    for (int i = 0; i < 4; i++) {
        const void *states = NULL;
        int64_t n = 0;
        accrue_fault f;
        acr_row r;
        assert_ok(acr_dataset_row(&r, d, rows[i], &e), &e);
        assert_int_equal(
            acr_states_open(&s[i], TINY "/hidden_states", rows[i], &r, &tiny_shape, NULL, &f),
            ACCRUE_OK);
        assert_int_equal(acr_states_read(&states, &n, &s[i], rows[i], 0, &f), ACCRUE_OK);
        assert_int_equal(n, r.tokens);
        docs[i] = (acr_document){.sample = rows[i],
                                 .tokens = r.tokens,
                                 .input_ids = r.input_ids,
                                 .loss_mask = r.loss_mask,
                                 .dtype = s[i].hidden->dtype,
                                 .states = states};
    }
    assert_ok(acr_batch_alloc(&whole, &tiny_shape, 4, &e), &e);
    assert_ok(acr_batch_alloc(&masks, &no_states, 4, &e), &e);
    assert_null(masks.hidden);
    assert_ok(acr_batch_collate(&whole, &tiny_shape, docs, 4, &e), &e);
    assert_ok(acr_batch_masks(&masks, &no_states, d, rows, 4, &e), &e);
    assert_int_equal(masks.n_rows, 16);
    assert_memory_equal(masks.doc_begin, begin, sizeof begin);
    assert_memory_equal(whole.doc_begin, begin, sizeof begin);
    assert_memory_equal(masks.sample, rows, sizeof rows);
    assert_memory_equal(masks.loss_mask, whole.loss_mask, 16);
    for (int64_t j = 0; j < 16; j++) /* a21: positions begin anew with each document */
        assert_int_equal(whole.position_ids[j], j < 8 ? j + 1 : j < 12 ? j - 7 : j - 11);
    for (int64_t j = 0; j < 8; j++)
        assert_int_equal(whole.loss_mask[j], j + 1 >= 9 / 2);
    /* The files' values count up by 1/8 from -4 + row, modulo 8: token 1's last slot of row 2. */
    assert_true(((double *)whole.target)[0] == (28 % 64 - 32) / 8.0 + 2);
    assert_true(((double *)whole.hidden)[12] == (16 % 64 - 32) / 8.0 + 2);
    acr_batch_free(&whole);
    acr_batch_free(&masks);
    for (int i = 0; i < 4; i++)
        acr_states_free(&s[i]);
    acr_dataset_close(d);
}

static void too_many_documents_are_refused(void **state)
{
    accrue_error e;
    acr_batch b;
    const int64_t ids[2] = {1, 2};
    const float states[2 * (AUX + 1) * HIDDEN] = {0};
    acr_document docs[2] = {
        {.tokens = 2, .input_ids = ids, .loss_mask = ids, .dtype = ACR_DTYPE_F32, .states = states},
        {.sample = 7,
         .tokens = 2,
         .input_ids = ids,
         .loss_mask = ids,
         .dtype = ACR_DTYPE_F32,
         .states = states}};

    (void)state;
    assert_ok(acr_batch_alloc(&b, &collate_shape, 1, &e), &e);
    assert_ok(acr_batch_collate(&b, &collate_shape, docs, 1, &e), &e);
    assert_fails(acr_batch_collate(&b, &collate_shape, docs, 2, &e), ACCRUE_EINVAL, &e, "sample 7",
                 NULL);
    acr_batch_free(&b);
}

static void sizes_that_overflow_are_refused(void **state)
{
    accrue_error e;
    acr_batch b;
    acr_batch_shape s = collate_shape;

    (void)state;
    s.total_seq_len = (int64_t)1 << 40;
    s.hidden_size = (int64_t)1 << 40;
    assert_fails(acr_batch_alloc(&b, &s, 1, &e), ACCRUE_EINVAL, &e, NULL);
    s = collate_shape;
    s.total_seq_len = 0;
    assert_fails(acr_batch_alloc(&b, &s, 1, &e), ACCRUE_EINVAL, &e, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collates_as_the_peer),
        cmocka_unit_test(a21_positions_restart_and_masks_are_those_of_the_batch),
        cmocka_unit_test(too_many_documents_are_refused),
        cmocka_unit_test(sizes_that_overflow_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
