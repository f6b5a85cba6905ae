/* setup.c - from options to an open data set and a model with its weights. */
#include "train/train.h"

#include <stdio.h>
#include <string.h>

enum { MAX_JSON = 16 << 20 };

typedef struct opening {
    const accrue_train_options *opt;
    json_t *verifier;        /* the verifier's config.json */
    json_t *pretrained;      /* --from-pretrained's config.json, or NULL */
    acr_weights *checkpoint; /* its weights, or NULL where it has none */
    acr_weights *verifier_weights;
    acr_config config;
    acr_vocab vocab;
} opening;

static accrue_status load_json_in(json_t **out, const char *dir, const char *flag,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s/config.json", dir);

    if (!path)
        return acr_enomem(err, strlen(dir), "a path");
    if (!acr_is_dir(dir))
        st = acr_fail(err, ACCRUE_EIO, "%s: \"%s\" is no folder", flag, dir);
    else
        st = acr_json_load(out, path, MAX_JSON, err);
    acr_free(path);
    return st;
}

static bool has_weights(const char *dir)
{
    char *one = acr_sprintf("%s/model.safetensors", dir);
    char *index = acr_sprintf("%s/model.safetensors.index.json", dir);
    bool has = (one && acr_is_file(one)) || (index && acr_is_file(index));

    acr_free(one);
    acr_free(index);
    return has;
}

/* The draft vocabulary's size where it is known before the maps are. */
static int64_t wanted_draft_vocab(const opening *o, int64_t vocab_size, accrue_status *st,
                                  accrue_error *err)
{
    int64_t given = o->opt->draft_vocab_size;
    int64_t config = 0;

    if (!o->pretrained)
        return given;
    config = json_integer_value(json_object_get(o->pretrained, "draft_vocab_size"));
    if (given && config && given != config)
        *st = acr_fail(err, ACCRUE_EMISMATCH,
                       "%s/config.json: \"draft_vocab_size\" is %lld, --draft-vocab-size %lld",
                       o->opt->from_pretrained, (long long)config, (long long)given);
    return config && config < vocab_size ? config : given;
}

static accrue_status same_vocab(const acr_vocab *a, const acr_vocab *b, const opening *o,
                                accrue_error *err)
{
    if (a->draft_vocab_size != b->draft_vocab_size)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: the maps have %lld entries, those given by flag %lld",
                        o->opt->from_pretrained, (long long)a->draft_vocab_size,
                        (long long)b->draft_vocab_size);
    for (int64_t i = 0; i < a->draft_vocab_size; i++)
        if (a->d2t[i] != b->d2t[i])
            return acr_fail(
                err, ACCRUE_EMISMATCH, "%s: d2t[%lld] is %lld, the map given by flag has %lld",
                o->opt->from_pretrained, (long long)i, (long long)a->d2t[i], (long long)b->d2t[i]);
    return ACCRUE_OK;
}

static accrue_status open_vocab(acr_setup *s, opening *o, int64_t vocab_size, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_train_options *opt = o->opt;
    acr_vocab given = {0};
    int64_t wanted = wanted_draft_vocab(o, vocab_size, &st, err);
    bool carried = o->checkpoint && acr_weights_find(o->checkpoint, "d2t") &&
                   acr_weights_find(o->checkpoint, "t2d");

    if (st)
        return st;
    if (!carried || opt->d2t_path)
        ACR_TRY(acr_vocab_load(carried ? &given : &o->vocab, &s->vocab_built, s->data,
                               opt->data_path, opt->d2t_path, opt->t2d_path, vocab_size, wanted,
                               opt->on_bad == ACCRUE_POLICY_SKIP, err));
    if (carried) {
        ACR_TRY(acr_vocab_carried(&o->vocab, o->checkpoint, vocab_size, opt->from_pretrained, err));
        if (opt->d2t_path)
            ACR_TRY(same_vocab(&o->vocab, &given, o, err));
    }

cleanup:
    acr_vocab_free(&given);
    return st;
}

/* A checkpoint names the verifier that it was trained with; the flag wins. */
static void rename_verifier(const opening *o)
{
    json_t *speculators = json_object_get(o->config.json, "speculators_config");
    json_t *verifier = json_object_get(speculators, "verifier");

    if (json_is_object(verifier))
        json_object_set_new(verifier, "name_or_path", json_string(o->opt->verifier));
    json_object_set_new(o->config.json, "dtype", json_string("bfloat16"));
}

static accrue_status check_against_verifier(const opening *o, accrue_error *err)
{
    const json_t *v = acr_verifier_config(o->verifier);
    int64_t hidden = json_integer_value(json_object_get(v, "hidden_size"));
    int64_t vocab = json_integer_value(json_object_get(v, "vocab_size"));

    if (o->config.hidden_size != hidden || o->config.vocab_size != vocab)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: hidden size %lld and vocabulary %lld, the verifier's are %lld and "
                        "%lld",
                        o->opt->from_pretrained, (long long)o->config.hidden_size,
                        (long long)o->config.vocab_size, (long long)hidden, (long long)vocab);
    if (o->config.draft_vocab_size != o->vocab.draft_vocab_size)
        return acr_fail(err, ACCRUE_EMISMATCH,
                        "%s: \"draft_vocab_size\" is %lld, the vocabulary maps have %lld",
                        o->opt->from_pretrained, (long long)o->config.draft_vocab_size,
                        (long long)o->vocab.draft_vocab_size);
    return ACCRUE_OK;
}

static accrue_status open_config(opening *o, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (!o->pretrained)
        return acr_config_create(&o->config, o->opt, o->verifier, o->vocab.draft_vocab_size, err);
    ACR_TRY(acr_config_read(&o->config, o->pretrained, o->opt->from_pretrained, err));
    ACR_TRY(check_against_verifier(o, err));
    rename_verifier(o);

cleanup:
    return st;
}

static accrue_status open_model(acr_setup *s, opening *o, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_train_options *opt = o->opt;
    acr_weights *w = NULL;
    int64_t positions = opt->total_seq_len + opt->ttt_steps + 1;
    const acr_sharding shares = {.rank = accrue_comm_rank(opt->comm),
                                 .ranks = accrue_comm_size(opt->comm)};

    ACR_TRY(acr_model_create(&s->model, &o->config, &o->vocab, opt->compute, positions,
                             opt->fsdp_shard ? &shares : NULL, err));
    if (o->checkpoint) {
        w = o->checkpoint;
        o->checkpoint = NULL; /* the model's from here on */
        ACR_TRY(acr_model_load(s->model, w, opt->from_pretrained, err));
    } else {
        acr_model_init(s->model, opt->seed);
    }
    w = o->verifier_weights;
    o->verifier_weights = NULL;
    ACR_TRY(acr_model_load_verifier(s->model, w, opt->verifier, err));

cleanup:
    return st;
}

static void opening_close(opening *o)
{
    json_decref(o->verifier);
    json_decref(o->pretrained);
    acr_weights_close(o->checkpoint);
    acr_weights_close(o->verifier_weights);
    acr_config_free(&o->config);
    acr_vocab_free(&o->vocab);
}

accrue_status acr_setup_open(acr_setup *s, const accrue_train_options *opt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    opening o = {.opt = opt};
    int64_t vocab_size = 0;

    memset(s, 0, sizeof *s);
    ACR_TRY(acr_train_options_check(opt, err));
    s->eagle3.ttt_steps = opt->ttt_steps;
    s->eagle3.step_decay = opt->ttt_step_loss_decay;
    s->eagle3.across_documents = opt->across_documents;
    ACR_TRY(acr_loss_spec_parse(&s->eagle3.loss, opt->loss_fn, err));
    ACR_TRY(load_json_in(&o.verifier, opt->verifier, "--verifier-name-or-path", err));
    vocab_size = json_integer_value(json_object_get(acr_verifier_config(o.verifier), "vocab_size"));
    if (opt->from_pretrained) {
        ACR_TRY(load_json_in(&o.pretrained, opt->from_pretrained, "--from-pretrained", err));
        if (has_weights(opt->from_pretrained))
            ACR_TRY(acr_weights_open(&o.checkpoint, opt->from_pretrained, err));
    }
    ACR_TRY(acr_weights_open(&o.verifier_weights, opt->verifier, err));
    ACR_TRY(acr_dataset_open(&s->data, opt->data_path, err));
    s->states_dir = opt->hidden_states_path ? acr_strdup(opt->hidden_states_path)
                                            : acr_sprintf("%s/hidden_states", opt->data_path);
    if (!s->states_dir) {
        st = acr_enomem(err, strlen(opt->data_path), "a path");
        goto cleanup;
    }
    ACR_TRY(open_vocab(s, &o, vocab_size, err));
    ACR_TRY(open_config(&o, err));
    ACR_TRY(open_model(s, &o, err));
    s->shape = (acr_batch_shape){.total_seq_len = opt->total_seq_len,
                                 .hidden_size = s->model->config.hidden_size,
                                 .vocab_size = s->model->config.vocab_size,
                                 .n_aux = s->model->config.n_aux,
                                 .real = s->model->real};
    if (opt->on_missing == ACCRUE_POLICY_EXTRACT)
        ACR_TRY(acr_verifier_lend(&s->verifier, opt->verifier, opt->compute, opt->total_seq_len + 1,
                                  err));

cleanup:
    opening_close(&o);
    if (st)
        acr_setup_free(s);
    return st;
}

void acr_setup_free(acr_setup *s)
{
    acr_verifier_return(s->verifier);
    acr_model_free(s->model);
    acr_dataset_close(s->data);
    acr_free(s->states_dir);
    memset(s, 0, sizeof *s);
}
