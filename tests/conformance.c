/* conformance DIR... - runs fixture folders of the Python trainer's numbers against this library.
 *
 * A folder holds manifest.json with a draft's `config`, its loss `variants`, `optim` and `accum`
 * runs, and the tensors beside it (init, inputs, grads.<variant>, params_after3.<optimizer>,
 * params_accum<N>); or collation `cases`; or vocab_map.json and lr_schedules.json.  One line per
 * check: folder, check, precision, worst difference, bound.  Exit 1 when one fails, 2 when a folder
 * cannot be read. */
#include "conformance.h"

#include "model/model.h"
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int n_failed, n_passed;

void check(const char *folder, const char *what, const char *precision, double worst, double bound)
{
    bool pass = worst <= bound; /* false for NaN */

    printf("%-4s %-28s %-44s %-4s worst %.3e bound %.0e\n", pass ? "ok" : "FAIL", folder, what,
           precision, worst, bound);
    n_failed += !pass;
    n_passed += pass;
}

static const char *base_name(const char *dir)
{
    const char *slash = strrchr(dir, '/');

    return slash && slash[1] ? slash + 1 : dir;
}

static double relative(double got, double expected)
{
    double d = fabs(got - expected);

    return expected != 0 ? d / fabs(expected) : d;
}

/* A case ----------------------------------------------------------------------------------- */

enum { MAX_BATCHES = 64, MAX_POSITIONS = 1 << 14 };

typedef struct fixture {
    const char *dir, *name;
    json_t *manifest;
    accrue_dtype compute;
    const char *precision;
    acr_model *model;
    acr_tape tape;
    acr_safetensors *init, *inputs; /* frozen tables point into init */
    acr_batch batch[MAX_BATCHES];
    int n_batches;
} fixture;

static accrue_status open_in(acr_safetensors **out, const char *dir, const char *file,
                             accrue_error *err)
{
    char *path = acr_sprintf("%s/%s", dir, file);
    accrue_status st = acr_safetensors_open(out, path, err);

    acr_free(path);
    return st;
}

static const acr_tensor *field(const acr_safetensors *f, int mb, const char *key)
{
    char name[96];

    snprintf(name, sizeof name, "mb%d.%s", mb, key);
    return acr_safetensors_find(f, name);
}

static int64_t int_at(const acr_tensor *t, int64_t i)
{
    int64_t x = 0;

    memcpy(&x, (const char *)t->data + 8 * i, 8);
    return x;
}

/* Tensor of the micro-batch with `rows` x `cols` elements in all. */
static accrue_status wanted(const acr_tensor **out, const fixture *f, int mb, const char *key,
                            bool is_float, int64_t rows, int64_t cols, accrue_error *err)
{
    const acr_tensor *t = field(f->inputs, mb, key);
    bool right = t && (is_float ? acr_dtype_is_float(t->dtype) : t->dtype == ACR_DTYPE_I64);

    *out = t;
    if (!right || acr_tensor_elements(t) != rows * cols)
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s/inputs.safetensors: mb%d.%s is %s of %lld elements, %s of %lld "
                        "expected",
                        f->dir, mb, key, t ? acr_dtype_name(t->dtype) : "missing,",
                        t ? (long long)acr_tensor_elements(t) : 0, is_float ? "floats" : "I64",
                        (long long)(rows * cols));
    return ACCRUE_OK;
}

/* The micro-batch as stored, padding taken off its end. */
static accrue_status read_batch(fixture *f, int mb, accrue_error *err)
{
    acr_batch *b = &f->batch[mb];
    const acr_tensor *ids = NULL, *docs = NULL, *mask = NULL, *positions = NULL, *hidden = NULL;
    const acr_tensor *target = NULL;
    acr_batch_shape shape = {.hidden_size = f->model->config.hidden_size,
                             .vocab_size = f->model->config.vocab_size,
                             .n_aux = f->model->config.n_aux,
                             .real = f->model->real};
    int64_t rows = acr_tensor_elements(field(f->inputs, mb, "input_ids"));
    accrue_status st = ACCRUE_OK;

    ACR_TRY(wanted(&ids, f, mb, "input_ids", false, rows, 1, err));
    ACR_TRY(wanted(&docs, f, mb, "document_ids", false, rows, 1, err));
    ACR_TRY(wanted(&mask, f, mb, "loss_mask", false, rows, 1, err));
    ACR_TRY(wanted(&positions, f, mb, "position_ids", false, rows, 1, err));
    ACR_TRY(
        wanted(&hidden, f, mb, "hidden_states", true, rows, shape.n_aux * shape.hidden_size, err));
    ACR_TRY(
        wanted(&target, f, mb, "verifier_last_hidden_states", true, rows, shape.hidden_size, err));
    shape.total_seq_len = rows;
    ACR_TRY(acr_batch_alloc(b, &shape, shape.total_seq_len, err));
    b->padded_rows = shape.total_seq_len;
    b->n_docs = 0;
    for (int64_t i = 0; i < shape.total_seq_len && int_at(docs, i) >= 0; i++) {
        if (i == 0 || int_at(docs, i) != int_at(docs, i - 1))
            b->doc_begin[b->n_docs++] = i;
        b->input_ids[i] = int_at(ids, i);
        b->loss_mask[i] = int_at(mask, i) != 0;
        b->position_ids[i] = int_at(positions, i);
        b->n_rows = i + 1;
    }
    b->doc_begin[b->n_docs] = b->n_rows;
    for (int64_t i = b->n_rows; i < rows; i++)
        if (int_at(docs, i) >= 0) {
            st = acr_fail(err, ACCRUE_EFORMAT,
                          "%s/inputs.safetensors: mb%d.document_ids: row %lld is %lld, -1 expected "
                          "behind padding",
                          f->dir, mb, (long long)i, (long long)int_at(docs, i));
            goto cleanup;
        }
    acr_convert(f->model->real, b->hidden, hidden->dtype, hidden->data,
                b->n_rows * shape.n_aux * shape.hidden_size);
    acr_convert(f->model->real, b->target, target->dtype, target->data,
                b->padded_rows * shape.hidden_size);

cleanup:
    return st;
}

static accrue_status load_init(fixture *f, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < f->model->n_params; i++) {
        acr_param *p = &f->model->params[i];
        const acr_tensor *t = acr_safetensors_find(f->init, p->name);
        if (!t) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s/init.safetensors: %s is missing", f->dir,
                          p->name);
            goto cleanup;
        }
        ACR_TRY(acr_param_set(f->model, p, t, f->dir, err));
    }
    acr_model_refresh(f->model);

cleanup:
    return st;
}

static accrue_status fixture_open(fixture *f, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_config config = {0};
    acr_vocab vocab = {0};

    ACR_TRY(acr_config_read(&config, json_object_get(f->manifest, "config"), f->dir, err));
    ACR_TRY(acr_model_create(&f->model, &config, &vocab, f->compute, MAX_POSITIONS, NULL, err));
    ACR_TRY(acr_tape_init(&f->tape, f->compute, err));
    ACR_TRY(open_in(&f->init, f->dir, "init.safetensors", err));
    ACR_TRY(load_init(f, err));
    ACR_TRY(open_in(&f->inputs, f->dir, "inputs.safetensors", err));
    while (f->n_batches < MAX_BATCHES && field(f->inputs, f->n_batches, "input_ids")) {
        ACR_TRY(read_batch(f, f->n_batches, err));
        f->n_batches++;
    }
    if (f->n_batches == 0)
        st = acr_fail(err, ACCRUE_EFORMAT, "%s/inputs.safetensors: mb0.input_ids is missing",
                      f->dir);

cleanup:
    acr_config_free(&config);
    return st;
}

static void fixture_close(fixture *f)
{
    for (int i = 0; i < MAX_BATCHES; i++)
        acr_batch_free(&f->batch[i]);
    acr_safetensors_close(f->inputs);
    acr_tape_free(&f->tape);
    acr_model_free(f->model);
    acr_safetensors_close(f->init);
}

static accrue_status variant_options(acr_eagle3_options *o, const json_t *variant,
                                     accrue_error *err)
{
    const json_t *kwargs = json_object_get(variant, "kwargs");

    const json_t *spec = json_object_get(variant, "loss_spec");
    int64_t steps = json_integer_value(json_object_get(kwargs, "ttt_steps"));
    accrue_status st = ACCRUE_OK;
    char *text = NULL;

    o->ttt_steps = (int)steps;
    o->step_decay = json_number_value(json_object_get(kwargs, "ttt_step_loss_decay"));
    o->across_documents = true;
    if (steps < 1 || steps > ACCRUE_MAX_TTT_STEPS)
        return acr_fail(err, ACCRUE_EFORMAT, "manifest.json: ttt_steps is %lld, 1 to %d expected",
                        (long long)steps, ACCRUE_MAX_TTT_STEPS);
    text = json_is_string(spec) ? acr_strdup(json_string_value(spec)) : acr_json_text(spec);
    st = text ? acr_loss_spec_parse(&o->loss, text, err)
              : acr_fail(err, ACCRUE_EFORMAT, "manifest.json: a loss_spec is missing");
    acr_free(text);
    return st;
}

/* One forward and backward, gradients added with weight 1/n. */
static accrue_status micro_batch(fixture *f, int mb, const acr_eagle3_options *o, int n,
                                 accrue_metrics *metrics, acr_eagle3_result *result,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_batch *b = &f->batch[mb];
    int64_t counts[ACCRUE_MAX_TTT_STEPS];
    double weight[ACCRUE_MAX_TTT_STEPS], scale[ACCRUE_MAX_TTT_STEPS];

    acr_eagle3_counts(b, o, counts);
    for (int k = 0; k < o->ttt_steps; k++) {
        weight[k] = pow(o->step_decay, k) / ((double)counts[k] + 1e-5);
        scale[k] = weight[k] / n;
    }
    acr_tape_reset(&f->tape);
    ACR_TRY(acr_eagle3_forward(result, f->model, &f->tape, b, o, scale, err));
    ACR_TRY(acr_eagle3_metrics(metrics, result, &f->tape, b, o, weight, 1.0, err));
    acr_tape_backward(&f->tape);
    ACR_TRY(acr_tape_status(&f->tape, err));

cleanup:
    return st;
}

static double array_at(const fixture *f, const void *p, int64_t i)
{
    return f->model->real == ACR_DTYPE_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

/* Of a tensor of F64 or F32. */
static double file_at(const acr_tensor *t, int64_t i)
{
    double d = 0;
    float x = 0;

    if (t->dtype == ACR_DTYPE_F64) {
        memcpy(&d, (const char *)t->data + 8 * i, 8);
        return d;
    }
    memcpy(&x, (const char *)t->data + 4 * i, 4);
    return (double)x;
}

/* Worst relative l2 over the tensors of a file; infinite where a trainable parameter is missing. */
static accrue_status compare_file(const fixture *f, const char *file, bool gradients, double *worst,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_safetensors *expected = NULL;

    *worst = 0;
    ACR_TRY(open_in(&expected, f->dir, file, err));
    for (int i = 0; i < f->model->n_params; i++) {
        const acr_param *p = &f->model->params[i];
        const acr_tensor *t = acr_safetensors_find(expected, p->name);
        double difference = 0, norm = 0;
        if (!p->trainable)
            continue;
        if (!t) {
            *worst = HUGE_VAL;
            continue;
        }
        if ((t->dtype != ACR_DTYPE_F64 && t->dtype != ACR_DTYPE_F32) ||
            acr_tensor_elements(t) != p->rows * p->cols) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s/%s: %s is %s of %lld elements, %lld expected",
                          f->dir, file, p->name, acr_dtype_name(t->dtype),
                          (long long)acr_tensor_elements(t), (long long)(p->rows * p->cols));
            goto cleanup;
        }
        for (int64_t j = 0; j < p->rows * p->cols; j++) {
            double e = file_at(t, j);
            double d = array_at(f, gradients ? p->grad : p->master, j) - e;
            difference += d * d;
            norm += e * e;
        }
        *worst = fmax(*worst, norm > 0 ? sqrt(difference / norm) : sqrt(difference));
    }

cleanup:
    acr_safetensors_close(expected);
    return st;
}

static bool metric(const accrue_metrics *m, const char *name, double *out)
{
    int k = 0;
    char term[64] = "";

    if (strcmp(name, "loss_sum") == 0)
        return *out = m->loss_sum, true;
    if (strcmp(name, "loss_total") == 0)
        return *out = m->loss_total, true;
    if (sscanf(name, "loss_%d_%63s", &k, term) == 2)
        return *out = strcmp(term, "sum") == 0 ? m->step_loss_sum[k] : m->step_loss_total[k], true;
    if (sscanf(name, "full_acc_%d_%63s", &k, term) == 2)
        return *out = strcmp(term, "sum") == 0 ? m->full_acc_sum[k] : m->full_acc_total[k], true;
    if (sscanf(name, "cond_acc_%d_%63s", &k, term) == 2)
        return *out = strcmp(term, "sum") == 0 ? m->cond_acc_sum[k] : m->cond_acc_total[k], true;
    for (int i = 0; i < m->n_terms; i++) {
        size_t n = strlen(m->term_name[i]);
        if (strncmp(name, m->term_name[i], n) == 0 &&
            sscanf(name + n, "_loss_%d_%63s", &k, term) == 2)
            return *out =
                       strcmp(term, "sum") == 0 ? m->term_loss_sum[i][k] : m->term_loss_total[i][k],
                   true;
    }
    return false;
}

static double compare_metrics(const accrue_metrics *m, json_t *expected)
{
    const char *key = NULL;
    json_t *value = NULL;
    double worst = 0;

    json_object_foreach(expected, key, value)
    {
        double got = (double)NAN;
        if (!metric(m, key, &got))
            return HUGE_VAL;
        worst = fmax(worst, relative(got, json_number_value(value)));
    }
    return worst;
}

/* Share of TTT step predictions (where one was made) that differ from draft_tokens. */
static accrue_status compare_tokens(const fixture *f, const acr_eagle3_result *r, double *worst,
                                    accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_safetensors *file = NULL;
    const acr_tensor *t = NULL;
    int64_t wrong = 0;

    ACR_TRY(open_in(&file, f->dir, "draft_tokens.safetensors", err));
    t = acr_safetensors_find(file, "draft_tokens");
    if (!t || t->dtype != ACR_DTYPE_I64 || t->n_dims != 2 || t->dims[1] < f->batch[0].n_rows) {
        st =
            acr_fail(err, ACCRUE_EFORMAT, "%s/draft_tokens.safetensors: I64 [steps, %lld] expected",
                     f->dir, (long long)f->batch[0].n_rows);
        goto cleanup;
    }
    for (int k = 0; k < r->rows.n_steps && k < t->dims[0]; k++) {
        const acr_step_rows *s = &r->rows.step[k];
        for (int64_t i = 0; i < s->n_draft; i++)
            wrong += r->argmax[k][i] != int_at(t, k * t->dims[1] + s->t[s->draft_row[i]]);
    }
    *worst = (double)wrong;

cleanup:
    acr_safetensors_close(file);
    return st;
}

static accrue_status run_variant(fixture *f, const char *name, json_t *variant, bool first,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool exact = f->compute == ACCRUE_F64;
    acr_eagle3_options o = {0};
    acr_eagle3_result result;
    accrue_metrics metrics;
    double worst = 0, norm = 0;
    char file[256], label[256];

    ACR_TRY(variant_options(&o, variant, err));
    acr_model_zero_grad(f->model);
    ACR_TRY(micro_batch(f, 0, &o, 1, &metrics, &result, err));
    snprintf(label, sizeof label, "%s: loss and metrics", name);
    worst = compare_metrics(&metrics, json_object_get(variant, "metrics_raw"));
    worst = fmax(worst,
                 relative(metrics.loss_sum, json_number_value(json_object_get(variant, "loss"))));
    check(f->name, label, f->precision, worst, exact ? 1e-10 : 1e-5);
    snprintf(file, sizeof file, "grads.%s.safetensors", name);
    snprintf(label, sizeof label, "%s: gradients", name);
    ACR_TRY(compare_file(f, file, true, &worst, err));
    check(f->name, label, f->precision, worst, exact ? 1e-9 : 1e-5);
    for (int i = 0; i < f->model->n_params; i++)
        for (int64_t j = 0;
             f->model->params[i].grad && j < f->model->params[i].rows * f->model->params[i].cols;
             j++)
            norm += pow(array_at(f, f->model->params[i].grad, j), 2);
    snprintf(label, sizeof label, "%s: gradient norm", name);
    check(f->name, label, f->precision,
          relative(sqrt(norm), json_number_value(json_object_get(variant, "grad_norm"))),
          exact ? 1e-9 : 1e-5);
    if (first) {
        ACR_TRY(compare_tokens(f, &result, &worst, err));
        check(f->name, "draft tokens", f->precision, worst, 0);
    }

cleanup:
    return st;
}

static accrue_status make_window(accrue_window **out, fixture *f, const accrue_window_options *opt,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(accrue_window_create(out, opt, err));
    for (int i = 0; i < f->model->n_params; i++) {
        acr_param *p = &f->model->params[i];
        if (p->trainable)
            ACR_TRY(acr_window_add_accumulated(*out, p->name, f->model->real, p->master, p->grad,
                                               p->rows, p->cols, err));
    }

cleanup:
    return st;
}

static accrue_status train(fixture *f, accrue_window *w, const acr_eagle3_options *o, int n_batches,
                           int n, const json_t *losses, const json_t *norms, double *worst_loss,
                           accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_eagle3_result result;
    accrue_metrics metrics;

    *worst_loss = 0;
    for (int i = 0; i < n_batches; i++) {
        bool stepped = false;
        double norm = 0;
        acr_window_begin(w);
        ACR_TRY(micro_batch(f, i % f->n_batches, o, n, &metrics, &result, err));
        ACR_TRY(acr_window_count(w, metrics.loss_sum / n, true, err));
        ACR_TRY(accrue_window_clip(w, &norm, err));
        ACR_TRY(accrue_window_step(w, &stepped, err));
        accrue_window_lr_step(w);
        accrue_window_zero_grad(w);
        acr_model_refresh(f->model);
        *worst_loss =
            fmax(*worst_loss,
                 relative(metrics.loss_sum, json_number_value(json_array_get(losses, (size_t)i))));
        if (stepped)
            *worst_loss = fmax(*worst_loss, relative(norm, json_number_value(json_array_get(
                                                               norms, (size_t)((i + 1) / n - 1)))));
    }

cleanup:
    return st;
}

static double number(const json_t *o, const char *key, double fallback)
{
    const json_t *v = json_object_get(o, key);

    return v ? json_number_value(v) : fallback;
}

static accrue_status run_optimizer(fixture *f, const char *tag, json_t *run,
                                   const acr_eagle3_options *o, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *spec = json_object_get(run, "opt");
    bool exact = f->compute == ACCRUE_F64;
    bool bf16 = strstr(tag, "nsbf16") != NULL;
    accrue_window_options opt;
    accrue_window *w = NULL;
    double worst = 0, bound = exact ? 1e-9 : 1e-4;
    char file[256], label[256];

    accrue_window_options_init(&opt, sizeof opt);
    opt.lr = number(spec, "lr", opt.lr);
    opt.weight_decay = number(spec, "weight_decay", opt.weight_decay);
    opt.eps = number(spec, "eps", opt.eps);
    opt.clip_norm = number(spec, "clip", opt.clip_norm);
    opt.beta1 = json_number_value(json_array_get(json_object_get(spec, "betas"), 0));
    opt.beta2 = json_number_value(json_array_get(json_object_get(spec, "betas"), 1));
    opt.optimizer = strncmp(tag, "muon", 4) == 0 ? ACCRUE_MUON : ACCRUE_ADAMW;
    opt.muon_lr = number(spec, "muon_lr", opt.lr);
    opt.muon_momentum = number(spec, "muon_momentum", opt.muon_momentum);
    opt.muon_weight_decay = number(spec, "muon_weight_decay", opt.muon_weight_decay);
    opt.muon_ns_steps = (int)number(spec, "muon_ns_steps", opt.muon_ns_steps);
    opt.muon_ns_dtype = bf16 ? ACCRUE_BF16 : (exact ? ACCRUE_F64 : ACCRUE_F32);
    opt.scheduler = ACCRUE_SCHEDULE_NONE;
    ACR_TRY(load_init(f, err));
    ACR_TRY(make_window(&w, f, &opt, err));
    ACR_TRY(train(f, w, o, 3, 1, json_object_get(run, "losses"),
                  json_object_get(run, "grad_norms_before_clip"), &worst, err));
    if (bf16)
        bound = 2e-3;
    snprintf(label, sizeof label, "%s: losses and norms of 3 steps", tag);
    check(f->name, label, f->precision, worst, bf16 ? 2e-3 : (exact ? 1e-9 : 1e-4));
    snprintf(file, sizeof file, "params_after3.%s.safetensors", tag);
    snprintf(label, sizeof label, "%s: parameters after 3 steps", tag);
    ACR_TRY(compare_file(f, file, false, &worst, err));
    check(f->name, label, f->precision, worst, bound);

cleanup:
    accrue_window_free(w);
    return st;
}

static accrue_status run_accumulation(fixture *f, const char *key, json_t *run,
                                      const acr_eagle3_options *o, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    bool exact = f->compute == ACCRUE_F64;
    int n = atoi(key); /* 0 where it is no number, which the window refuses */
    const json_t *losses = json_object_get(run, "microbatch_losses");
    accrue_window_options opt;
    accrue_window *w = NULL;
    double worst = 0;
    char file[256], label[256];

    accrue_window_options_init(&opt, sizeof opt);
    opt.gradient_accumulation_steps = n;
    opt.optimizer = ACCRUE_ADAMW;
    opt.lr = 1e-3;
    opt.scheduler = ACCRUE_SCHEDULE_NONE;
    ACR_TRY(load_init(f, err));
    ACR_TRY(make_window(&w, f, &opt, err));
    ACR_TRY(train(f, w, o, (int)json_array_size(losses), n, losses,
                  json_object_get(run, "grad_norms_before_clip"), &worst, err));
    snprintf(label, sizeof label, "accumulation %d: losses and norms", n);
    check(f->name, label, f->precision, worst, exact ? 1e-9 : 1e-4);
    snprintf(label, sizeof label, "accumulation %d: optimizer steps", n);
    check(f->name, label, f->precision,
          fabs((double)accrue_window_global_step(w) - number(run, "optimizer_steps", -1)), 0);
    snprintf(file, sizeof file, "params_accum%d.safetensors", n);
    snprintf(label, sizeof label, "accumulation %d: parameters", n);
    ACR_TRY(compare_file(f, file, false, &worst, err));
    check(f->name, label, f->precision, worst, exact ? 1e-9 : 1e-4);

cleanup:
    accrue_window_free(w);
    return st;
}

static accrue_status run_case(const char *dir, json_t *manifest, accrue_dtype compute,
                              accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    fixture f = {.dir = dir,
                 .name = base_name(dir),
                 .manifest = manifest,
                 .compute = compute,
                 .precision = compute == ACCRUE_F64 ? "f64" : "f32"};
    json_t *variants = json_object_get(manifest, "variants");
    acr_eagle3_options o = {0};
    const char *key = NULL;
    json_t *value = NULL;
    bool first = true;

    ACR_TRY(fixture_open(&f, err));
    json_object_foreach(variants, key, value)
    {
        if (first)
            ACR_TRY(variant_options(&o, value, err));
        ACR_TRY(run_variant(&f, key, value, first, err));
        first = false;
    }
    json_object_foreach(json_object_get(manifest, "optim"), key, value)
        ACR_TRY(run_optimizer(&f, key, value, &o, err));
    json_object_foreach(json_object_get(manifest, "accum"), key, value)
        ACR_TRY(run_accumulation(&f, key, value, &o, err));

cleanup:
    fixture_close(&f);
    return st;
}

/* Folders ---------------------------------------------------------------------------------- */

static accrue_status run_draft(const char *dir, json_t *manifest, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const json_t *config = json_object_get(manifest, "config");
    const char *type = json_string_value(json_object_get(config, "speculators_model_type"));

    if (!json_is_object(config))
        return acr_fail(err, ACCRUE_EFORMAT, "%s/manifest.json: neither config nor cases is there",
                        dir);
    if (type && strcmp(type, "eagle3") != 0)
        return acr_fail(err, ACCRUE_ENOTSUP, "%s: a draft of the algorithm %s; supported: eagle3",
                        dir, type);
    if (!json_object_size(json_object_get(manifest, "variants")))
        return acr_fail(err, ACCRUE_EFORMAT, "%s/manifest.json: variants are missing", dir);
    ACR_TRY(run_case(dir, manifest, ACCRUE_F64, err));
    ACR_TRY(run_case(dir, manifest, ACCRUE_F32, err));

cleanup:
    return st;
}

static accrue_status run_folder(const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *manifest = NULL;
    char *path = acr_sprintf("%s/manifest.json", dir);
    char *maps = acr_sprintf("%s/vocab_map.json", dir);
    char *schedules = acr_sprintf("%s/lr_schedules.json", dir);

    if (!path || !maps || !schedules) {
        st = acr_enomem(err, strlen(dir), "a path");
        goto cleanup;
    }
    if (acr_is_file(maps))
        ACR_TRY(run_vocab_maps(maps, base_name(dir), err));
    if (acr_is_file(schedules))
        ACR_TRY(run_schedules(schedules, base_name(dir), err));
    if (!acr_is_file(path) && (acr_is_file(maps) || acr_is_file(schedules)))
        goto cleanup;
    ACR_TRY(acr_json_load(&manifest, path, 64 << 20, err));
    if (json_is_object(json_object_get(manifest, "cases")))
        ACR_TRY(run_collation(dir, base_name(dir), json_object_get(manifest, "cases"), err));
    else
        ACR_TRY(run_draft(dir, manifest, err));

cleanup:
    json_decref(manifest);
    acr_free(path);
    acr_free(maps);
    acr_free(schedules);
    return st;
}

int main(int argc, char **argv)
{
    bool broken = false;

    if (argc < 2) {
        fprintf(stderr, "usage: conformance DIR...\n");
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        accrue_error err = {0};
        if (run_folder(argv[i], &err)) {
            fflush(stdout);
            fprintf(stderr, "conformance: %s\n", err.message);
            broken = true;
        }
    }
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return broken ? 2 : n_failed != 0;
}
