/* prove.c - whether a checkpoint on the disk is the one that was meant.
 *
 * First its files, before the folder takes its name: checksums of what is read back, the keys that
 * vLLM looks for, the tensors that were declared, and the weights for use as the rounded masters.
 * Then, where the epoch was validated, its loss: one validation micro-batch, computed with the
 * masters read back, must give the very number that the validation got. */
#include "train/train.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG = 1 << 20, PIECE = 16384 };

#define MASTER ".master"

/* Paths into config.json without which vLLM 0.32 does not take an EAGLE-3 draft. */
static const char *const needed[] = {
    "speculators_model_type",
    "draft_vocab_size",
    "norm_before_residual",
    "eagle_aux_hidden_state_layer_ids",
    "speculators_config/algorithm",
    "speculators_config/proposal_methods/0/speculative_tokens",
    "speculators_config/verifier/name_or_path",
    "transformer_layer_config/model_type",
    "transformer_layer_config/hidden_size",
    "transformer_layer_config/intermediate_size",
    "transformer_layer_config/num_hidden_layers",
    "transformer_layer_config/num_attention_heads",
    "transformer_layer_config/vocab_size",
};

static const json_t *at_path(const json_t *o, const char *path)
{
    char key[64];

    while (o && *path) {
        size_t n = strcspn(path, "/");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        o = json_is_array(o) ? json_array_get(o, (size_t)(key[0] - '0')) : json_object_get(o, key);
        path += n + (path[n] == '/');
    }
    return o;
}

static accrue_status prove_config(const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/config.json", dir);
    acr_config config = {0};
    json_t *o = NULL;

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_json_load(&o, path, MAX_CONFIG, err));
    for (int i = 0; i < ACR_COUNT(needed); i++)
        if (!at_path(o, needed[i])) {
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: no \"%s\", which vLLM needs", path, needed[i]);
            goto cleanup;
        }
    ACR_TRY(acr_config_read(&config, o, path, err));

cleanup:
    acr_config_free(&config);
    json_decref(o);
    acr_free(path);
    return st;
}

static bool same_shape(const acr_tensor *a, const acr_tensor *b)
{
    return a->dtype == b->dtype && a->n_dims == b->n_dims && a->dims[0] == b->dims[0] &&
           (a->n_dims < 2 || a->dims[1] == b->dims[1]);
}

static accrue_status prove_tensors(acr_safetensors **out, const char *dir, const char *name,
                                   const acr_tensor *declared, int n, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/%s", dir, name);

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_safetensors_open(out, path, err));
    if (acr_safetensors_count(*out) != n)
        st = acr_fail(err, ACCRUE_EFORMAT, "%s: %d tensors, %d expected", path,
                      acr_safetensors_count(*out), n);
    for (int i = 0; i < n && !st; i++) {
        const acr_tensor *t = acr_safetensors_find(*out, declared[i].name);
        if (!t || !same_shape(t, &declared[i]))
            st = acr_fail(err, ACCRUE_EFORMAT, "%s: %s is %s", path, declared[i].name,
                          t ? "of another type or shape than declared" : "missing");
    }

cleanup:
    acr_free(path);
    return st;
}

/* What is used is what was trained, rounded once. */
static accrue_status prove_rounding(const acr_safetensors *weights, const acr_tensor *master,
                                    const char *dir, accrue_error *err)
{
    uint16_t rounded[PIECE];
    const size_t width = acr_dtype_bytes(master->dtype);
    int64_t n = acr_tensor_elements(master);
    char name[512];
    const acr_tensor *t = NULL;

    snprintf(name, sizeof name, "%.*s", (int)(strlen(master->name) - strlen(MASTER)), master->name);
    t = acr_safetensors_find(weights, name);
    for (int64_t i = 0; t && i < n; i += PIECE) {
        int64_t count = n - i < PIECE ? n - i : PIECE;
        acr_convert(ACR_DTYPE_BF16, rounded, master->dtype,
                    (const char *)master->data + (size_t)i * width, count);
        if (memcmp(rounded, (const uint16_t *)t->data + i, (size_t)count * sizeof *rounded) != 0)
            t = NULL;
    }
    if (!t)
        return acr_fail(err, ACCRUE_EFORMAT,
                        "%s/model.safetensors: %s is not the rounded master of state.tensors",
                        dir, name);
    return ACCRUE_OK;
}

accrue_status acr_prove_files(const char *dir, const acr_tensor *weights, int n_weights,
                              const acr_tensor *states, int n_states, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_safetensors *model = NULL, *state = NULL;

    ACR_TRY(acr_manifest_check(dir, true, NULL, err));
    ACR_TRY(prove_config(dir, err));
    ACR_TRY(prove_tensors(&model, dir, "model.safetensors", weights, n_weights, err));
    ACR_TRY(prove_tensors(&state, dir, "state.tensors", states, n_states, err));
    for (int i = 0; i < acr_safetensors_count(state); i++) {
        const acr_tensor *t = acr_safetensors_at(state, i);
        const char *suffix =
            strlen(t->name) > strlen(MASTER) ? t->name + strlen(t->name) - strlen(MASTER) : "";
        if (strcmp(suffix, MASTER) == 0)
            ACR_TRY(prove_rounding(model, t, dir, err));
    }

cleanup:
    acr_safetensors_close(model);
    acr_safetensors_close(state);
    return st;
}

/* The loss -------------------------------------------------------------------------------- */

/* A parameter's arrays, exchanged for those read back. */
typedef struct exchange {
    void *master;
    uint16_t *bf16;
} exchange;

static void swap_arrays(acr_model *m, exchange *e)
{
    for (int i = 0; i < m->n_params; i++) {
        acr_param *p = &m->params[i];
        exchange before = {.master = p->master, .bf16 = (uint16_t *)(uintptr_t)p->bf16};
        if (!p->trainable)
            continue;
        p->master = e[i].master;
        p->bf16 = e[i].bf16;
        e[i] = before;
    }
}

static accrue_status read_param(exchange *e, const acr_param *p, const acr_model *m,
                                const acr_safetensors *f, const char *path, accrue_error *err)
{
    int64_t n = p->rows * p->cols;
    char *name = acr_sprintf("%s" MASTER, p->name);
    const acr_tensor *t = NULL;
    size_t bytes = (size_t)n * acr_dtype_bytes(m->real);

    if (!name)
        return acr_enomem(err, strlen(p->name), "a name");
    t = acr_safetensors_find(f, name);
    acr_free(name);
    if (!t || t->bytes != bytes)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: no master of %s", path, p->name);
    e->master = acr_malloc(bytes);
    if (p->bf16)
        e->bf16 = acr_malloc((size_t)n * sizeof *e->bf16);
    if (!e->master || (p->bf16 && !e->bf16))
        return acr_enomem(err, bytes, p->name);
    memcpy(e->master, t->data, bytes);
    if (p->bf16)
        acr_convert(ACR_DTYPE_BF16, e->bf16, m->real, e->master, n);
    return ACCRUE_OK;
}

static accrue_status read_params(exchange *e, const acr_model *m, const char *dir,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/state.tensors", dir);
    acr_safetensors *f = NULL;

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_safetensors_open(&f, path, err));
    for (int i = 0; i < m->n_params; i++)
        if (m->params[i].trainable)
            ACR_TRY(read_param(&e[i], &m->params[i], m, f, path, err));

cleanup:
    acr_safetensors_close(f);
    acr_free(path);
    return st;
}

accrue_status acr_prove_loss(accrue_run *run, const char *dir, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_model *m = run->setup.model;
    const acr_proof *proof = &run->proof;
    exchange *e = acr_calloc((size_t)m->n_params, sizeof *e);
    accrue_metrics again = {0};
    accrue_error why = {0};
    bool read = false;

    if (!e)
        return acr_enomem(err, (size_t)m->n_params * sizeof *e, "a proof");
    ACR_TRY(read_params(e, m, dir, err));
    swap_arrays(m, e);
    st = acr_run_prove(&again, &read, run, &why);
    swap_arrays(m, e);
    if (st)
        acr_fail(err, st,
                 "%s: validation micro-batch %lld of epoch %lld with the weights read back: %s",
                 dir, (long long)proof->index, (long long)proof->epoch + 1, why.message);
    else if (read && again.loss_sum != proof->loss_sum)
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: validation micro-batch %lld of epoch %lld has a loss of %.17g with the "
                      "weights read back, %.17g when it was validated",
                      dir, (long long)proof->index, (long long)proof->epoch + 1, again.loss_sum,
                      proof->loss_sum);

cleanup:
    for (int i = 0; i < m->n_params; i++) {
        acr_free(e[i].master);
        acr_free(e[i].bf16);
    }
    acr_free(e);
    return st;
}
