/* states.c - the verifier's hidden states of one sample. */
#include "data/readers.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static accrue_status states_path(char out[PATH_MAX], const char *dir, int64_t row,
                                 accrue_error *err)
{
    int n = snprintf(out, PATH_MAX, "%s/hs_%lld.safetensors", dir, (long long)row);

    if (n < 0 || n >= PATH_MAX)
        return acr_fail(err, ACCRUE_EINVAL, "%s: the folder's name is too long", dir);
    return ACCRUE_OK;
}

bool acr_states_exist(const char *dir, int64_t row)
{
    char path[PATH_MAX];

    return !states_path(path, dir, row, NULL) && acr_is_file(path);
}

static accrue_status check_token_ids(const acr_tensor *t, const char *path, int64_t row,
                                     const acr_row *r, accrue_error *err)
{
    char shape[ACR_SHAPE_TEXT];

    if (!t)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: row %lld: there is no tensor 'token_ids'", path,
                        (long long)row);
    if (t->dtype != ACR_DTYPE_I64 || t->n_dims != 1 || t->dims[0] != r->tokens)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: row %lld: token_ids is %s %s, expected I64 [%lld]", path,
                        (long long)row, acr_dtype_name(t->dtype),
                        acr_shape_text(shape, t->n_dims, t->dims), (long long)r->tokens);
    for (int64_t i = 0; i < r->tokens; i++) {
        int64_t id = 0;
        memcpy(&id, (const char *)t->data + 8 * i, 8);
        if (id != r->input_ids[i])
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: row %lld: token %lld has id %lld, the data set says %lld", path,
                            (long long)row, (long long)i, (long long)id,
                            (long long)r->input_ids[i]);
    }
    return ACCRUE_OK;
}

static accrue_status check_hidden(const acr_tensor *t, const char *path, int64_t row,
                                  const acr_row *r, const acr_batch_shape *shape, accrue_error *err)
{
    char text[ACR_SHAPE_TEXT];

    if (!t)
        return acr_fail(err, ACCRUE_EFORMAT, "%s: row %lld: there is no tensor 'hidden_states'",
                        path, (long long)row);
    if (!acr_dtype_is_float(t->dtype))
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: row %lld: hidden_states is %s, expected BF16, F16 or F32", path,
                        (long long)row, acr_dtype_name(t->dtype));
    if (t->n_dims != 3 || t->dims[0] != r->tokens || t->dims[1] != shape->n_aux + 1 ||
        t->dims[2] != shape->hidden_size)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: row %lld: hidden_states is %s, expected [%lld, %d, %lld]", path,
                        (long long)row, acr_shape_text(text, t->n_dims, t->dims),
                        (long long)r->tokens, shape->n_aux + 1, (long long)shape->hidden_size);
    return ACCRUE_OK;
}

static accrue_status check_span(const acr_tensor *t, int64_t from, int64_t to, const char *path,
                                int64_t row, accrue_error *err)
{
    const char *data = t->data;
    const size_t size = acr_dtype_bytes(t->dtype);
    int64_t i =
        to > from ? acr_find_nonfinite(t->dtype, data + (size_t)from * size, to - from) : -1;
    double x = 0;

    if (i < 0)
        return ACCRUE_OK;
    i += from;
    acr_convert(ACR_DTYPE_F64, &x, t->dtype, data + (size_t)i * size, 1);
    return acr_fail(err, ACCRUE_EFORMAT,
                    "%s: row %lld: hidden_states of token %lld, slot %lld, element %lld is %g, "
                    "expected a finite number",
                    path, (long long)row, (long long)(i / t->dims[2] / t->dims[1]),
                    (long long)(i / t->dims[2] % t->dims[1]), (long long)(i % t->dims[2]), x);
}

/* Of the tokens that fit: the first one's last slot and the last one's others are never used. */
static accrue_status check_finite(const acr_tensor *t, const acr_batch_shape *shape,
                                  const char *path, int64_t row, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t token = t->dims[1] * t->dims[2];
    const int64_t aux = token - t->dims[2];
    int64_t n = t->dims[0];

    if (n > shape->total_seq_len + 1)
        n = shape->total_seq_len + 1;
    if (n < 2)
        return ACCRUE_OK;
    ACR_TRY(check_span(t, 0, aux, path, row, err));
    ACR_TRY(check_span(t, token, (n - 1) * token, path, row, err));
    ACR_TRY(check_span(t, (n - 1) * token + aux, n * token, path, row, err));

cleanup:
    return st;
}

accrue_status acr_states_reopen(acr_states *s, const char *dir, int64_t row, const acr_row *r,
                                const acr_batch_shape *shape, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_error e;
    char path[PATH_MAX];

    s->hidden = NULL;
    ACR_TRY(states_path(path, dir, row, err));
    st = acr_safetensors_reopen(&s->file, path, &e);
    if (st) {
        acr_fail(err, st, "row %lld: %s", (long long)row, e.message);
        goto cleanup;
    }
    ACR_TRY(check_token_ids(acr_safetensors_find(s->file, "token_ids"), path, row, r, err));
    s->hidden = acr_safetensors_find(s->file, "hidden_states");
    ACR_TRY(check_hidden(s->hidden, path, row, r, shape, err));
    ACR_TRY(check_finite(s->hidden, shape, path, row, err));

cleanup:
    if (st)
        s->hidden = NULL;
    return st;
}

accrue_status acr_states_open(acr_states *out, const char *dir, int64_t row, const acr_row *r,
                              const acr_batch_shape *shape, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    memset(out, 0, sizeof *out);
    ACR_TRY(acr_states_reopen(out, dir, row, r, shape, err));

cleanup:
    if (st)
        acr_states_close(out);
    return st;
}

void acr_states_close(acr_states *s)
{
    acr_safetensors_close(s->file);
    memset(s, 0, sizeof *s);
}
