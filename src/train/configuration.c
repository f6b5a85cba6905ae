/* configuration.c - the options that decide a training's numbers, as JSON: every checkpoint holds
 * them, and a run that goes on with others says so.  Names and values are those of the flags. */
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const acr_choice acr_normalizations[] = {
    {ACCRUE_NORMALIZE_MICROBATCH, "microbatch"}, {ACCRUE_NORMALIZE_TOKEN, "token"}, {0, NULL}};
const acr_choice acr_tails[] = {{ACCRUE_TAIL_DROP, "drop"}, {ACCRUE_TAIL_STEP, "step"}, {0, NULL}};
const acr_choice acr_computes[] = {
    {ACCRUE_F32, "float32"}, {ACCRUE_F64, "float64"}, {ACCRUE_BF16, "bfloat16"}, {0, NULL}};
const acr_choice acr_optimizers[] = {{ACCRUE_ADAMW, "adamw"}, {ACCRUE_MUON, "muon"}, {0, NULL}};
const acr_choice acr_best_metrics[] = {
    {ACCRUE_BEST_LOSS, "loss"}, {ACCRUE_BEST_ACCEPTANCE, "acceptance"}, {0, NULL}};

static const acr_choice schedulers[] = {{ACCRUE_SCHEDULE_LINEAR, "linear"},
                                        {ACCRUE_SCHEDULE_COSINE, "cosine"},
                                        {ACCRUE_SCHEDULE_NONE, "none"},
                                        {0, NULL}};
static const acr_choice adjusts[] = {{ACCRUE_MUON_ORIGINAL, "original"},
                                     {ACCRUE_MUON_MATCH_RMS_ADAMW, "match_rms_adamw"},
                                     {0, NULL}};
static const acr_choice missing[] = {{ACCRUE_POLICY_RAISE, "raise"},
                                     {ACCRUE_POLICY_SKIP, "skip"},
                                     {ACCRUE_POLICY_WARN, "warn"},
                                     {ACCRUE_POLICY_EXTRACT, "extract"},
                                     {0, NULL}};
static const acr_choice stop_or_skip[] = {
    {ACCRUE_POLICY_RAISE, "stop"}, {ACCRUE_POLICY_SKIP, "skip"}, {0, NULL}};

const char *acr_choice_name(const acr_choice *choices, int64_t value)
{
    for (; choices->name; choices++)
        if (choices->value == value)
            return choices->name;
    return NULL;
}

typedef enum option_kind { TEXT, WHOLE, WHOLE_INT, REAL, SWITCH, TRISTATE, CHOICE } option_kind;

typedef struct option {
    const char *name;
    option_kind kind;
    size_t at;
    const acr_choice *choices;
} option;

#define AT(member) offsetof(accrue_train_options, member)

static const option options[] = {
    {"verifier_name_or_path", TEXT, AT(verifier), NULL},
    {"from_pretrained", TEXT, AT(from_pretrained), NULL},
    {"draft_config", TEXT, AT(draft_config), NULL},
    {"num_layers", WHOLE_INT, AT(num_layers), NULL},
    {"draft_arch", TEXT, AT(draft_arch), NULL},
    {"draft_hidden_act", TEXT, AT(draft_hidden_act), NULL},
    {"draft_vocab_size", WHOLE, AT(draft_vocab_size), NULL},
    {"d2t_path", TEXT, AT(d2t_path), NULL},
    {"t2d_path", TEXT, AT(t2d_path), NULL},
    {"norm_before_residual", SWITCH, AT(norm_before_residual), NULL},
    {"embed_requires_grad", SWITCH, AT(embed_requires_grad), NULL},
    {"fc_norm", SWITCH, AT(fc_norm), NULL},
    {"norm_before_fc", TRISTATE, AT(norm_before_fc), NULL},
    {"norm_output", TRISTATE, AT(norm_output), NULL},
    {"sliding_window", WHOLE, AT(sliding_window), NULL},
    {"data_path", TEXT, AT(data_path), NULL},
    {"hidden_states_path", TEXT, AT(hidden_states_path), NULL},
    {"total_seq_len", WHOLE, AT(total_seq_len), NULL},
    {"train_data_ratio", REAL, AT(train_data_ratio), NULL},
    {"hidden_states_dtype", CHOICE, AT(compute), acr_computes},
    {"on_missing", CHOICE, AT(on_missing), missing},
    {"on_bad", CHOICE, AT(on_bad), stop_or_skip},
    {"loss_fn", TEXT, AT(loss_fn), NULL},
    {"ttt_steps", WHOLE_INT, AT(ttt_steps), NULL},
    {"ttt_step_loss_decay", REAL, AT(ttt_step_loss_decay), NULL},
    {"across_documents", SWITCH, AT(across_documents), NULL},
    {"gradient_accumulation_steps", WHOLE, AT(window.gradient_accumulation_steps), NULL},
    {"loss_normalization", CHOICE, AT(window.loss_normalization), acr_normalizations},
    {"reproducible", SWITCH, AT(reproducible), NULL},
    {"accumulation_tail", CHOICE, AT(accumulation_tail), acr_tails},
    {"clip_norm", REAL, AT(window.clip_norm), NULL},
    {"optimizer", CHOICE, AT(window.optimizer), acr_optimizers},
    {"lr", REAL, AT(window.lr), NULL},
    {"beta1", REAL, AT(window.beta1), NULL},
    {"beta2", REAL, AT(window.beta2), NULL},
    {"eps", REAL, AT(window.eps), NULL},
    {"weight_decay", REAL, AT(window.weight_decay), NULL},
    {"muon_lr", REAL, AT(window.muon_lr), NULL},
    {"muon_momentum", REAL, AT(window.muon_momentum), NULL},
    {"muon_weight_decay", REAL, AT(window.muon_weight_decay), NULL},
    {"muon_ns_steps", WHOLE_INT, AT(window.muon_ns_steps), NULL},
    {"muon_ns_dtype", CHOICE, AT(window.muon_ns_dtype), acr_computes},
    {"muon_adjust_lr_fn", CHOICE, AT(window.muon_adjust), adjusts},
    {"scheduler_type", CHOICE, AT(window.scheduler), schedulers},
    {"scheduler_warmup_steps", WHOLE, AT(scheduler_warmup_steps), NULL},
    {"scheduler_warmup_ratio", REAL, AT(scheduler_warmup_ratio), NULL},
    {"scheduler_total_steps", WHOLE, AT(scheduler_total_steps), NULL},
    {"scheduler_num_cosine_cycles", REAL, AT(window.num_cosine_cycles), NULL},
    {"epochs", WHOLE, AT(epochs), NULL},
    {"batch_plan", TEXT, AT(batch_plan), NULL},
    {"on_nonfinite", CHOICE, AT(on_nonfinite), stop_or_skip},
};

/* What is unset, as the header says, is null. */
static json_t *option_json(const accrue_train_options *opt, const option *o)
{
    const void *at = (const char *)opt + o->at;
    const char *text = NULL;
    int64_t whole = 0;
    int small = 0;
    double real = 0;

    switch (o->kind) {
    case TEXT: memcpy(&text, at, sizeof text); return text ? acr_json_string(text) : json_null();
    case WHOLE: memcpy(&whole, at, sizeof whole); return json_integer(whole);
    case WHOLE_INT: memcpy(&small, at, sizeof small); return json_integer(small);
    case REAL:
        memcpy(&real, at, sizeof real);
        return isfinite(real) ? json_real(real) : json_null();
    case SWITCH: return json_boolean(*(const bool *)at);
    case TRISTATE:
        memcpy(&small, at, sizeof small);
        return small < 0 ? json_null() : json_boolean(small);
    case CHOICE:
        memcpy(&small, at, sizeof small);
        text = acr_choice_name(o->choices, small);
        return text ? json_string(text) : json_null();
    }
    return NULL;
}

static json_t *list_json(const int *list, int n)
{
    json_t *a = json_array();

    for (int i = 0; i < n; i++)
        json_array_append_new(a, json_integer(list[i]));
    return a;
}

json_t *acr_configuration(const accrue_train_options *opt)
{
    json_t *o = json_object();
    int failed = 0;

    for (int i = 0; i < ACR_COUNT(options); i++)
        failed |= json_object_set_new(o, options[i].name, option_json(opt, &options[i]));
    failed |= json_object_set_new(o, "target_layer_ids",
                                  list_json(opt->target_layer_ids, opt->n_target_layer_ids));
    failed |=
        json_object_set_new(o, "full_attention_indices",
                            list_json(opt->full_attention_indices, opt->n_full_attention_indices));
    if (failed) {
        json_decref(o);
        return NULL;
    }
    return o;
}

accrue_status acr_configuration_changes(char **out, const json_t *ours, const char *dir,
                                        accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/training_state.json", dir);
    json_t *state = NULL;
    const json_t *saved = NULL, *value = NULL;
    const char *name = NULL;

    *out = NULL;
    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    ACR_TRY(acr_json_load(&state, path, 1 << 20, err));
    saved = json_object_get(state, "configuration");
    json_object_foreach((json_t *)(uintptr_t)ours, name, value)
    {
        const json_t *before = json_object_get(saved, name);
        char *was = NULL, *is = NULL, *more = NULL;
        /* N follows from the number of ranks, and is checked with it. */
        if (!before || json_equal(before, value) || !strcmp(name, "gradient_accumulation_steps"))
            continue;
        was = json_dumps(before, JSON_ENCODE_ANY | JSON_REAL_PRECISION(10));
        is = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(10));
        more = acr_sprintf("%s%s%s %s, now %s", *out ? *out : "", *out ? "; " : "", name,
                           was ? was : "?", is ? is : "?");
        free(was);
        free(is);
        acr_free(*out);
        *out = more;
        if (!more) {
            st = acr_enomem(err, strlen(name), "a notice");
            break;
        }
    }

cleanup:
    json_decref(state);
    acr_free(path);
    return st;
}
