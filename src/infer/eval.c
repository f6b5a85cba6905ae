/* eval.c - accrue eval: prompts answered plainly and speculatively, counted, timed and compared. */
#include "infer/infer.h"

#include <stdio.h>
#include <string.h>

enum { MAX_JSON = 16 << 20 };
enum { WARM_TOKENS = 4 }; /* answered before the clock starts */

typedef struct eval {
    const accrue_eval_options *opt;
    accrue_eval_report *report;
    acr_forward_fn forward;
    accrue_eval_cb cb;
    void *payload;
    double started;
    char *verifier_path;
    acr_prompts prompts;
    acr_verifier *verifier;
    acr_draft *draft;
    acr_decoder *decoder;
    acr_acceptance counts;
    acr_ids plain, speculative; /* answers to the prompt at hand */
    accrue_error difference;    /* the first */
} eval;

void accrue_eval_options_init(accrue_eval_options *opt, size_t struct_size)
{
    accrue_eval_options d = {
        .num_speculative_tokens = 3, .max_new_tokens = 64, .compute = ACCRUE_F32};

    d.struct_size = struct_size;
    if (struct_size > sizeof d)
        memset(opt, 0, struct_size);
    memcpy(opt, &d, struct_size < sizeof d ? struct_size : sizeof d);
}

static accrue_status check_options(const accrue_eval_options *o, accrue_error *err)
{
    if (o->struct_size != sizeof *o)
        return acr_fail(err, ACCRUE_EINVAL,
                        "options of %zu bytes, %zu expected; see accrue_eval_options_init",
                        o->struct_size, sizeof *o);
    if (!o->checkpoint || !o->prompts)
        return acr_fail(err, ACCRUE_EINVAL, "no %s given",
                        o->checkpoint ? "prompts" : "checkpoint");
    if (o->num_speculative_tokens < 1 || o->num_speculative_tokens > ACCRUE_MAX_TTT_STEPS)
        return acr_fail(err, ACCRUE_EINVAL, "--num-speculative-tokens: %d, 1 to %d expected",
                        o->num_speculative_tokens, ACCRUE_MAX_TTT_STEPS);
    if (o->max_new_tokens < 1 || o->max_new_tokens > INT32_MAX)
        return acr_fail(err, ACCRUE_EINVAL, "--max-new-tokens: %lld, 1 to %d expected",
                        (long long)o->max_new_tokens, INT32_MAX);
    if (o->limit < 0)
        return acr_fail(err, ACCRUE_EINVAL, "--limit: %lld, at least 0 expected",
                        (long long)o->limit);
    if (o->compute != ACCRUE_F32 && o->compute != ACCRUE_BF16 && o->compute != ACCRUE_F64)
        return acr_fail(err, ACCRUE_EINVAL, "compute dtype %d is none", (int)o->compute);
    return ACCRUE_OK;
}

/* The verifier that a checkpoint was trained for, by its config.json. */
static accrue_status recorded_verifier(char **out, const char *checkpoint, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    json_t *json = NULL;
    const char *name = NULL;
    char *path = acr_sprintf("%s/config.json", checkpoint);

    if (!path)
        return acr_enomem(err, strlen(checkpoint), "a path");
    ACR_TRY(acr_json_load(&json, path, MAX_JSON, err));
    name = json_string_value(json_object_get(
        json_object_get(json_object_get(json, "speculators_config"), "verifier"), "name_or_path"));
    if (!name || !*name) {
        st = acr_fail(err, ACCRUE_EINVAL, "%s names no verifier; --verifier-name-or-path expected",
                      path);
        goto cleanup;
    }
    if (!acr_exists(name)) {
        st = acr_fail(err, ACCRUE_EIO,
                      "%s names the verifier \"%s\", which is not here; --verifier-name-or-path "
                      "expected",
                      path, name);
        goto cleanup;
    }
    *out = acr_strdup(name);
    if (!*out)
        st = acr_enomem(err, strlen(name), "a path");

cleanup:
    json_decref(json);
    acr_free(path);
    return st;
}

static int64_t prompt_tokens(const acr_prompts *p, int64_t i)
{
    return p->begin.at[i + 1] - p->begin.at[i];
}

/* Every prompt and its answer have to fit the verifier. */
static accrue_status check_prompts(const eval *x, accrue_error *err)
{
    const acr_verifier_shape *v = acr_verifier_describe(x->verifier);
    const acr_prompts *p = &x->prompts;

    for (int64_t i = 0; i < p->n; i++) {
        const int64_t n = prompt_tokens(p, i) + x->opt->max_new_tokens;
        if (n > v->max_positions)
            return acr_fail(err, ACCRUE_EMISMATCH,
                            "%s: prompt %lld has %lld tokens, with an answer of %lld the "
                            "verifier's %lld positions are exceeded",
                            x->opt->prompts, (long long)p->row.at[i],
                            (long long)prompt_tokens(p, i), (long long)x->opt->max_new_tokens,
                            (long long)v->max_positions);
        for (int64_t j = p->begin.at[i]; j < p->begin.at[i + 1]; j++)
            if (p->ids.at[j] < 0 || p->ids.at[j] >= v->vocab_size)
                return acr_fail(err, ACCRUE_EMISMATCH,
                                "%s: prompt %lld: token id %lld, the verifier's vocabulary is %lld",
                                x->opt->prompts, (long long)p->row.at[i], (long long)p->ids.at[j],
                                (long long)v->vocab_size);
    }
    return ACCRUE_OK;
}

static accrue_status open_models(eval *x, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_eval_options *o = x->opt;
    int64_t positions = 0;

    if (o->verifier)
        x->verifier_path = acr_strdup(o->verifier);
    else
        ACR_TRY(recorded_verifier(&x->verifier_path, o->checkpoint, err));
    if (!x->verifier_path) {
        st = acr_enomem(err, strlen(o->verifier), "a path");
        goto cleanup;
    }
    snprintf(x->report->verifier, sizeof x->report->verifier, "%s", x->verifier_path);
    ACR_TRY(acr_prompts_read(&x->prompts, o->prompts, x->verifier_path, o->limit, err));
    for (int64_t i = 0; i < x->prompts.n; i++)
        if (prompt_tokens(&x->prompts, i) > positions)
            positions = prompt_tokens(&x->prompts, i);
    positions += o->max_new_tokens;
    ACR_TRY(acr_verifier_open(&x->verifier, x->verifier_path, o->compute,
                              positions + o->num_speculative_tokens + 1, err));
    ACR_TRY(check_prompts(x, err));
    ACR_TRY(acr_draft_open(&x->draft, o->checkpoint, x->verifier_path,
                           acr_verifier_describe(x->verifier), o->compute, positions, err));
    ACR_TRY(acr_decoder_create(&x->decoder, x->verifier, x->draft, o->num_speculative_tokens,
                               positions, x->forward, err));
    x->report->prompts = x->prompts.n;

cleanup:
    return st;
}

/* Answers a prompt one way; adds to *seconds. */
static accrue_status answer(eval *x, int64_t i, bool speculatively, int64_t limit, double *seconds,
                            accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t *prompt = x->prompts.ids.at + x->prompts.begin.at[i];
    const int64_t n = prompt_tokens(&x->prompts, i);
    const double begun = acr_seconds();

    if (speculatively) {
        x->speculative.n = 0;
        ACR_TRY(acr_decode_speculatively(&x->speculative, &x->counts, x->decoder, prompt, n, limit,
                                         err));
    } else {
        x->plain.n = 0;
        ACR_TRY(acr_decode_plainly(&x->plain, x->decoder, prompt, n, limit, err));
    }
    *seconds += acr_seconds() - begun;

cleanup:
    return st;
}

/* The first place where the speculative answer is another; -1: none. */
static int64_t difference(const eval *x)
{
    const acr_ids *a = &x->speculative, *b = &x->plain;
    int64_t i = 0;

    while (i < a->n && i < b->n && a->at[i] == b->at[i])
        i++;
    return i < a->n || i < b->n ? i : -1;
}

static void note_difference(eval *x, const accrue_eval_prompt *p)
{
    const acr_ids *a = &x->speculative, *b = &x->plain;
    char got[32] = "its end", own[32] = "its end";

    if (x->report->differing++)
        return;
    if (p->differs_at < a->n)
        snprintf(got, sizeof got, "id %lld", (long long)a->at[p->differs_at]);
    if (p->differs_at < b->n)
        snprintf(own, sizeof own, "id %lld", (long long)b->at[p->differs_at]);
    acr_fail(&x->difference, ACCRUE_EVERIFY,
             "%s: prompt %lld: token %lld of the speculative answer is %s, the verifier's own is "
             "%s",
             x->opt->prompts, (long long)p->row, (long long)p->differs_at, got, own);
}

static void fill_report(eval *x)
{
    accrue_eval_report *r = x->report;
    const acr_acceptance *c = &x->counts;

    r->rounds = c->rounds;
    r->drafted = c->drafted;
    r->accepted = c->accepted;
    memcpy(r->accepted_at, c->at, sizeof r->accepted_at);
    memcpy(r->accepted_length, c->length, sizeof r->accepted_length);
    r->seconds = acr_seconds() - x->started;
}

static accrue_status answer_prompt(eval *x, int64_t i, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_eval_report *r = x->report;
    const acr_acceptance before = x->counts;
    const int64_t limit = x->opt->max_new_tokens;
    accrue_eval_prompt p = {.row = x->prompts.row.at[i]};

    for (int turn = 0; turn < 2; turn++) {
        const bool speculatively = (turn + i) % 2;
        ACR_TRY(answer(x, i, speculatively, limit,
                       speculatively ? &p.speculative_seconds : &p.plain_seconds, err));
    }
    p.prompt_tokens = prompt_tokens(&x->prompts, i);
    p.rounds = x->counts.rounds - before.rounds;
    p.drafted = x->counts.drafted - before.drafted;
    p.accepted = x->counts.accepted - before.accepted;
    p.tokens = x->plain.at;
    p.n_tokens = x->plain.n;
    p.differs_at = difference(x);
    if (p.differs_at >= 0)
        note_difference(x, &p);
    r->done++;
    r->prompt_tokens += p.prompt_tokens;
    r->tokens += p.n_tokens;
    r->plain_seconds += p.plain_seconds;
    r->speculative_seconds += p.speculative_seconds;
    fill_report(x);
    if (x->cb && x->cb(&p, r, x->payload))
        st = acr_fail(err, ACCRUE_ECANCELED, "stopped by the caller after %lld of %lld prompts",
                      (long long)r->done, (long long)r->prompts);

cleanup:
    return st;
}

/* First uses of memory and code are slow, and would be the first way's alone. */
static accrue_status warm_up(eval *x, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t limit =
        x->opt->max_new_tokens < WARM_TOKENS ? x->opt->max_new_tokens : WARM_TOKENS;
    double unused = 0;

    ACR_TRY(answer(x, 0, false, limit, &unused, err));
    ACR_TRY(answer(x, 0, true, limit, &unused, err));
    x->counts = (acr_acceptance){0};

cleanup:
    return st;
}

accrue_status acr_eval(accrue_eval_report *out, const accrue_eval_options *opt,
                       acr_forward_fn forward, accrue_eval_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    eval x = {.opt = opt, .report = out, .forward = forward, .cb = cb, .payload = payload};

    memset(out, 0, sizeof *out);
    x.started = acr_seconds();
    ACR_TRY(check_options(opt, err));
    out->num_speculative_tokens = opt->num_speculative_tokens;
    ACR_TRY(open_models(&x, err));
    ACR_TRY(warm_up(&x, err));
    for (int64_t i = 0; i < x.prompts.n; i++)
        ACR_TRY(answer_prompt(&x, i, err));
    if (out->differing)
        st = acr_fail(err, ACCRUE_EVERIFY, "%s", x.difference.message);

cleanup:
    acr_decoder_free(x.decoder);
    acr_draft_free(x.draft);
    acr_verifier_free(x.verifier);
    acr_prompts_free(&x.prompts);
    acr_ids_free(&x.plain);
    acr_ids_free(&x.speculative);
    acr_free(x.verifier_path);
    if (st && st != ACCRUE_EVERIFY)
        memset(out, 0, sizeof *out);
    return st;
}

accrue_status accrue_eval(accrue_eval_report *out, const accrue_eval_options *opt,
                          accrue_eval_cb cb, void *payload, accrue_error *err)
{
    return acr_eval(out, opt, acr_verifier_forward, cb, payload, err);
}
