/* run.c - a training run in pieces: what it consists of, its epochs, and the boundary of a window.
 * How a window is filled is fill.c's. */
#include "train/train.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Weights --------------------------------------------------------------------------------- */

void acr_weigh(acr_weighting *out, const acr_eagle3_options *o, accrue_loss_normalization norm,
               const int64_t *counts, const int64_t *window_counts, int64_t n)
{
    double decay = 1.0;

    memset(out, 0, sizeof *out);
    out->loss_total = norm == ACCRUE_NORMALIZE_TOKEN ? 1.0 / (double)n : 1.0;
    for (int k = 0; k < o->ttt_steps; k++, decay *= o->step_decay) {
        out->has_weight = out->has_weight || counts[k] > 0;
        if (norm == ACCRUE_NORMALIZE_TOKEN) {
            /* True counts: the window equals one huge batch however it is split. */
            out->step_weight[k] = window_counts[k] ? decay / (double)window_counts[k] : 0.0;
            out->step_scale[k] = out->step_weight[k];
        } else {
            /* The peer's masked mean, with its + 1e-5. */
            out->step_weight[k] = decay / ((double)counts[k] + 1e-5);
            out->step_scale[k] = out->step_weight[k] / (double)n;
        }
    }
}

accrue_status acr_micro_batch(accrue_metrics *out, acr_model *m, acr_tape *t, const acr_batch *b,
                              const acr_eagle3_options *o, const acr_weighting *w, bool backward,
                              accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_eagle3_result result;

    acr_tape_reset(t);
    t->no_grad = !backward;
    ACR_TRY(acr_eagle3_forward(&result, m, t, b, o, w->step_scale, err));
    ACR_TRY(acr_eagle3_metrics(out, &result, t, b, o, w->step_weight, w->loss_total, err));
    if (!isfinite(out->loss_sum)) {
        st = acr_fail(err, ACCRUE_ENUMERIC, "the loss is %s",
                      isnan(out->loss_sum) ? "NaN" : "infinite");
        goto cleanup;
    }
    if (backward)
        acr_tape_backward(t);
    ACR_TRY(acr_tape_status(t, err));

cleanup:
    return st;
}

static accrue_status register_shared(accrue_window *w, const acr_model *m, const acr_param *p,
                                     int64_t *cut, accrue_error *err)
{
    const acr_share own = acr_model_share(m, p);
    const int64_t n = p->rows * p->cols;

    for (int r = 0; r <= m->sharding.ranks; r++) {
        int64_t at = p->group->cut[r] - p->offset;
        cut[r] = at < 0 ? 0 : at < n ? at : n;
    }
    return acr_window_add_shared(w, p->name, m->real, &own, p->rows, p->cols, cut, err);
}

accrue_status acr_register_params(accrue_window *w, acr_model *m, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t n = (size_t)m->sharding.ranks + 1;
    int64_t *cut = acr_calloc(n, sizeof *cut);

    if (!cut)
        return acr_enomem(err, n * sizeof *cut, "the window");
    for (int i = 0; i < m->n_params; i++) {
        acr_param *p = &m->params[i];
        if (p->trainable && m->sharding.ranks > 1)
            ACR_TRY(register_shared(w, m, p, cut, err));
        else if (p->trainable)
            ACR_TRY(acr_window_add_accumulated(w, p->name, m->real, p->master, p->grad, p->rows,
                                               p->cols, err));
    }

cleanup:
    acr_free(cut);
    return st;
}

/* Events ---------------------------------------------------------------------------------- */

static void add_traffic(accrue_event *e, const accrue_run *run)
{
    const acr_comm_counters *before = &run->comm_before;
    const acr_comm_counters now = acr_comm_get_counters(run->comm);

    for (int k = 0; k < ACR_COMM_KINDS; k++) {
        e->comm_seconds += now.wait_seconds[k] - before->wait_seconds[k];
        e->comm_bytes += now.bytes_sent[k] - before->bytes_sent[k];
    }
}

accrue_status acr_emit(accrue_run *run, accrue_event_kind kind, const accrue_metrics *metrics,
                       const char *message, accrue_error *err)
{
    accrue_event e = {.kind = kind, .plan = &run->plan, .message = message};
    int answer = 0;

    if (!run->cb)
        return ACCRUE_OK;
    e.rank = run->rank;
    e.resumed = run->resumed;
    e.epoch = run->epoch;
    e.global_step = run->window ? accrue_window_global_step(run->window) : 0;
    e.micro_batch = run->next;
    e.micro_batches = run->used;
    if (kind == ACCRUE_EVENT_CHECKPOINT && run->saving_dir) { /* of the run as it was then */
        e.epoch = run->saving.epoch;
        e.global_step = run->saving.global_step;
        e.micro_batch = run->saving_next;
    }
    e.lr = run->lr;
    e.muon_lr = run->muon_lr;
    e.grad_norm = run->norm;
    e.seconds = acr_seconds() - run->started;
    e.data_seconds = run->data_seconds;
    e.forward_backward_seconds = run->compute_seconds;
    e.optimizer_seconds = run->optimizer_seconds;
    e.skipped_nonfinite = run->skipped_nonfinite;
    e.empty_windows = run->window ? accrue_window_empty(run->window) : 0;
    e.skipped_rows = run->epochs.n_bad;
    if (metrics)
        e.metrics = *metrics;
    e.save_bytes = run->saved.bytes;
    e.save_seconds = run->saved.seconds;
    e.save_wait_seconds = run->held_up;
    add_traffic(&e, run);
    answer = run->cb(&e, run->payload);
    if (answer == ACCRUE_GO_ON || (answer == ACCRUE_SAVE && !run->obeys))
        return ACCRUE_OK;
    if (!run->obeys || answer < ACCRUE_SAVE || answer > ACCRUE_GIVE_UP_AND_STOP)
        return acr_fail(err, ACCRUE_ECANCELED, "stopped by the caller at optimizer step %lld",
                        (long long)e.global_step);
    if (answer > run->asked)
        run->asked = answer;
    if (run->ranks == 1)
        run->request = run->asked;
    return ACCRUE_OK;
}

accrue_status acr_notice(accrue_run *run, accrue_error *err, const char *format, ...)
{
    char text[1024], raw[sizeof text + 4]; /* cut behind where acr_text cuts between characters */
    va_list args;

    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    acr_text(text, sizeof text, raw);
    return acr_emit(run, ACCRUE_EVENT_NOTICE, NULL, text, err);
}

accrue_status acr_run_result(accrue_run *run, accrue_status st, const accrue_error *why,
                             accrue_error *err)
{
    accrue_error e = *why;

    if (st && !run->agreed)
        st = acr_comm_fail(run->comm, st, &e);
    return st ? acr_fail(err, st, "%s", e.message) : ACCRUE_OK;
}

accrue_metrics acr_run_no_metrics(const accrue_run *run)
{
    const acr_loss_spec *loss = &run->setup.eagle3.loss;
    accrue_metrics m = {.n_steps = run->opt.ttt_steps, .n_terms = loss->mixed ? loss->n_terms : 0};

    for (int i = 0; i < m.n_terms; i++)
        m.term_name[i] = acr_loss_name(loss->kind[i]);
    return m;
}

/* Opening --------------------------------------------------------------------------------- */

static accrue_status keep_string(accrue_run *run, const char **s, accrue_error *err)
{
    if (!*s)
        return ACCRUE_OK;
    run->strings[run->n_strings] = acr_strdup(*s);
    if (!run->strings[run->n_strings])
        return acr_enomem(err, strlen(*s), "an option");
    *s = run->strings[run->n_strings++];
    return ACCRUE_OK;
}

/* What is read after accrue_run_open returns; the rest of the options is used up by then. */
static accrue_status keep_options(accrue_run *run, const accrue_train_options *opt,
                                  accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    run->opt = *opt;
    run->configuration = acr_configuration(opt);
    if (!run->configuration)
        return acr_enomem(err, 0, "the options");
    run->strings = acr_calloc(4, sizeof *run->strings);
    if (!run->strings)
        return acr_enomem(err, 4 * sizeof *run->strings, "the options");
    ACR_TRY(keep_string(run, &run->opt.save_path, err));
    ACR_TRY(keep_string(run, &run->opt.verifier, err));
    run->opt.target_layer_ids = NULL;
    run->opt.full_attention_indices = NULL;

cleanup:
    return st;
}

/* A micro-batch that needs all that total_seq_len allows: one document, every token supervised. */
static accrue_status measure(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_batch *b = &run->masks;
    double scale[ACCRUE_MAX_TTT_STEPS] = {0};
    acr_eagle3_result result;

    b->n_rows = b->padded_rows = run->opt.total_seq_len;
    b->n_docs = 1;
    b->doc_begin[0] = 0;
    b->doc_begin[1] = b->n_rows;
    for (int64_t i = 0; i < b->n_rows; i++) {
        b->loss_mask[i] = 1;
        b->input_ids[i] = 0;
        b->position_ids[i] = i + 1;
    }
    acr_tape_measure(&run->tape, true);
    st = acr_eagle3_forward(&result, run->setup.model, &run->tape, b, &run->setup.eagle3, scale,
                            err);
    if (!st)
        st = acr_dist_plan(run->dist, &run->tape, err);
    if (!st)
        acr_tape_backward(&run->tape);
    acr_tape_measure(&run->tape, false);
    if (!st && !acr_arena_reserve(&run->tape.arena, run->tape.arena.high))
        st = acr_enomem(err, run->tape.arena.high, "activations");
    return st;
}

static accrue_status open_window(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_window_options w = run->opt.window;

    w.gradient_accumulation_steps = run->window_n;
    w.total_steps = run->plan.schedule_total_steps;
    w.warmup_steps = run->plan.warmup_steps;
    if (!w.muon_ns_dtype)
        w.muon_ns_dtype = run->opt.compute;
    ACR_TRY(accrue_window_create(&run->window, &w, err));
    acr_window_set_comm(run->window, run->comm);
    ACR_TRY(acr_register_params(run->window, run->setup.model, err));

cleanup:
    return st;
}

/* What belongs to the run itself, with the set-up done. */
static accrue_status open_parts(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const accrue_train_options *opt = &run->opt;
    const acr_dist_options dist = {
        .n = run->turns.n, .defer_reduce = opt->defer_reduce, .reproducible = opt->reproducible};
    acr_batch_shape masks = run->setup.shape;
    int64_t n = opt->window.gradient_accumulation_steps, window = run->window_n;

    /* A short window at most. */
    n = n < run->plan.max_epoch_micro_batches ? n : run->plan.max_epoch_micro_batches;
    window =
        window < run->plan.max_epoch_micro_batches ? window : run->plan.max_epoch_micro_batches;
    run->counts = acr_calloc((size_t)n, sizeof *run->counts);
    if (!run->counts)
        return acr_enomem(err, (size_t)n * sizeof *run->counts, "the window's plan");
    ACR_TRY(acr_fill_create(&run->fill, run, window, err));
    ACR_TRY(acr_dist_create(&run->dist, run->setup.model, run->comm, &dist, err));
    ACR_TRY(acr_tape_init(&run->tape, opt->compute, err));
    masks.hidden_size = 0; /* masks alone: no states */
    ACR_TRY(acr_batch_alloc(&run->masks, &masks, opt->total_seq_len, err));
    ACR_TRY(open_window(run, err));
    ACR_TRY(measure(run, err));
    ACR_TRY(acr_plan_memory(run, err));

cleanup:
    return st;
}

static accrue_status open_loader(accrue_run *run, accrue_error *err)
{
    const acr_loader_options loader = {.states_dir = run->setup.states_dir,
                                       .source = acr_making_source(&run->making),
                                       .shape = run->setup.shape,
                                       .lock_timeout = run->opt.lock_timeout,
                                       .waiting = acr_run_waiting,
                                       .ctx = run};

    return acr_loader_create(&run->loader, run->setup.data, &loader, err);
}

static void set_ranks(accrue_run *run, const accrue_train_options *opt)
{
    const int64_t n = opt->window.gradient_accumulation_steps;

    run->comm = opt->comm;
    run->rank = accrue_comm_rank(opt->comm);
    run->ranks = accrue_comm_size(opt->comm);
    run->window_n = n * run->ranks;
    run->turns = (acr_turns){.n = n, .rank = run->rank, .ranks = run->ranks};
}

/* Of what all ranks must have been given alike.  Paths may differ from machine to machine. */
static uint64_t options_hash(const accrue_run *run)
{
    static const char *const paths[] = {"verifier_name_or_path",
                                        "from_pretrained",
                                        "draft_config",
                                        "d2t_path",
                                        "t2d_path",
                                        "data_path",
                                        "hidden_states_path",
                                        "batch_plan"};
    const accrue_train_options *o = &run->opt;
    const int64_t others[] = {o->max_steps, o->save_best,  o->best_metric,  o->on_save_error,
                              o->max_bad,   o->fsdp_shard, o->defer_reduce, o->reproducible,
                              o->no_resume, o->keep};
    json_t *options = json_deep_copy(run->configuration);
    char *text = NULL;
    uint64_t hash = acr_hash_bytes(others, sizeof others, 0);

    hash = acr_hash_bytes(&o->checkpoint_freq, sizeof o->checkpoint_freq, hash);
    for (int i = 0; i < ACR_COUNT(paths); i++)
        json_object_del(options, paths[i]);
    text = options ? json_dumps(options, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    if (text)
        hash = acr_hash_bytes(text, strlen(text), hash);
    free(text);
    json_decref(options);
    return hash;
}

/* Ranks with other options, data or packing would train on windows that do not exist. */
static accrue_status check_alike(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_vocab *v = &run->setup.model->vocab;
    acr_epoch first = {0};

    if (run->ranks == 1)
        return ACCRUE_OK;
    run->data_fingerprint = acr_epochs_fingerprint(&run->epochs, run->setup.data);
    run->fingerprinted = true;
    ACR_TRY(acr_epochs_train(&first, &run->epochs, 0, err));
    ACR_TRY(acr_agree_equal(run->comm, "the data set's fingerprint", run->data_fingerprint, err));
    ACR_TRY(
        acr_agree_equal(run->comm, "the order of the first epoch", acr_epoch_hash(&first), err));
    ACR_TRY(acr_agree_equal(
        run->comm, "the vocabulary map",
        v->d2t ? acr_hash_bytes(v->d2t, (size_t)v->draft_vocab_size * sizeof *v->d2t, 0) : 0, err));

cleanup:
    acr_epoch_free(&first);
    return st;
}

/* What all ranks do together, or at least in the same order. */
static accrue_status open_together(accrue_run *run, const accrue_train_options *opt,
                                   const char *from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    if (run->ranks > 1)
        ACR_TRY(acr_agree_equal(run->comm, "the options", options_hash(run), err));
    ACR_TRY(acr_epochs_open(&run->epochs, opt, run->setup.data, run->setup.states_dir,
                            &run->setup.shape, from, err));
    st = acr_epochs_plan(&run->plan, &run->epochs, opt, err);
    st = acr_agree(run->comm, "the plan", st, err);
    run->agreed = st != ACCRUE_OK;
    if (st)
        goto cleanup;
    acr_plan_model(run);
    ACR_TRY(check_alike(run, err));
    ACR_TRY(open_parts(run, err));
    ACR_TRY(open_loader(run, err));
    ACR_TRY(acr_dist_refresh(run->dist, err));

cleanup:
    return st;
}

static accrue_status open_alone(accrue_run *run, const accrue_train_options *opt, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    ACR_TRY(acr_setup_open(&run->setup, opt, err));
    ACR_TRY(acr_making_open(&run->making, &run->setup, err));
    ACR_TRY(keep_options(run, opt, err));

cleanup:
    return st;
}

accrue_status acr_run_open(accrue_run **out, const accrue_train_options *opt, const char *from,
                           accrue_event_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_error why = {0};
    accrue_run *run = acr_calloc(1, sizeof *run);

    *out = NULL;
    if (!run) {
        st = acr_enomem(&why, sizeof *run, "the run");
        st = acr_comm_fail(opt->comm, st, &why);
        return acr_fail(err, st, "%s", why.message);
    }
    run->cb = cb;
    run->payload = payload;
    run->started = acr_seconds();
    run->epoch = run->best_epoch = run->superseded = run->listed = -1;
    run->origin_epoch = -1;
    run->generation = 1;
    set_ranks(run, opt);
    st = open_alone(run, opt, &why);
    st = acr_agree(run->comm, "opening the run", st, &why);
    run->agreed = st != ACCRUE_OK;
    if (!st)
        st = open_together(run, opt, from, &why);
    st = acr_run_result(run, st, &why, err);
    if (!st) {
        *out = run;
        run = NULL;
    }
    accrue_run_free(run);
    return st;
}

accrue_status accrue_run_open(accrue_run **out, const accrue_train_options *given,
                              accrue_event_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_train_options opt;

    *out = NULL;
    ACR_TRY(acr_train_options_check_together(given, err));
    if (given->ranks > 1)
        return acr_fail(err, ACCRUE_EINVAL,
                        "--ranks: %d; a run in pieces is one rank: give each its `comm`",
                        given->ranks);
    acr_train_options_resolve(&opt, given);
    st = acr_run_open(out, &opt, NULL, cb, payload, err);

cleanup:
    return st;
}

void accrue_run_free(accrue_run *run)
{
    if (!run)
        return;
    if (run->save) { /* it reads model and window */
        acr_save_result result = {0};
        (void)!acr_save_finish(run->save, &result, NULL);
        acr_free(result.aside);
    }
    acr_free(run->saving_dir);
    json_decref(run->configuration);
    acr_loader_free(run->loader);
    acr_making_close(&run->making);
    acr_dist_free(run->dist);
    acr_fill_free(run->fill);
    accrue_window_free(run->window);
    acr_tape_free(&run->tape);
    acr_batch_free(&run->masks);
    acr_epoch_free(&run->current);
    acr_epochs_free(&run->epochs);
    acr_setup_free(&run->setup);
    for (int i = 0; i < run->n_strings; i++)
        acr_free(run->strings[i]);
    acr_free(run->strings);
    acr_free(run->counts);
    acr_free(run->excluded);
    acr_free(run->dropped);
    acr_free(run);
}

const accrue_train_plan *accrue_run_plan(const accrue_run *run)
{
    return &run->plan;
}

/* Epochs ---------------------------------------------------------------------------------- */

/* Whether --max-steps ends this epoch before its last window. */
static bool cut_short(const accrue_run *run)
{
    const int64_t n = run->window_n;

    return run->opt.max_steps &&
           accrue_window_global_step(run->window) + (run->used - run->next) / n >
               run->opt.max_steps;
}

int64_t acr_run_used(const accrue_run *run, int64_t micro_batches)
{
    const int64_t n = run->window_n;

    return run->opt.accumulation_tail == ACCRUE_TAIL_DROP ? micro_batches / n * n : micro_batches;
}

/* What is left out of the epoch, known from before it. */
static accrue_status begin_left_out(accrue_run *run, accrue_error *err)
{
    const size_t n = (size_t)run->current.n;

    if (run->current.n > run->excluded_capacity) {
        acr_free(run->excluded);
        acr_free(run->dropped);
        run->excluded_capacity = 0;
        run->excluded = acr_malloc(n * sizeof *run->excluded);
        run->dropped = acr_malloc(n * sizeof *run->dropped);
        if (!run->excluded || !run->dropped)
            return acr_enomem(err, n * sizeof *run->dropped, "an epoch's plan");
        run->excluded_capacity = run->current.n;
    }
    memset(run->excluded, 0, n * sizeof *run->excluded);
    memset(run->dropped, 0, n * sizeof *run->dropped);
    acr_epochs_drop_bad(&run->current, &run->epochs, run->dropped);
    return ACCRUE_OK;
}

static accrue_status begin_epoch(accrue_run *run, int64_t epoch, int64_t from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t n = run->window_n;

    if (epoch < 0 || epoch >= run->opt.epochs)
        return acr_fail(err, ACCRUE_EINVAL, "epoch %lld, 0 to %lld expected", (long long)epoch,
                        (long long)run->opt.epochs - 1);
    acr_loader_stop(run->loader);
    /* A window's micro-batches are of one epoch: what an abandoned one has gathered is dropped, and
     * so is what ranks are still about to add. */
    run->agreed = false;
    ACR_TRY(acr_dist_begin_window(run->dist, err));
    acr_window_zero(run->window);
    acr_fill_reset(run->fill);
    run->failed = false;
    run->used = run->next = 0;
    acr_epoch_free(&run->current);
    ACR_TRY(acr_epochs_train(&run->current, &run->epochs, epoch, err));
    run->order = acr_epoch_hash(&run->current);
    ACR_TRY(begin_left_out(run, err));
    run->epoch = epoch;
    run->used = acr_run_used(run, run->current.n);
    run->next = from < 0 ? run->used : from;
    if (run->next > run->used || (run->next < run->used && run->next % n)) {
        st =
            acr_fail(err, ACCRUE_EINVAL,
                     "epoch %lld begins at micro-batch %lld: no end of a window of %lld among %lld",
                     (long long)epoch, (long long)run->next, (long long)n, (long long)run->used);
        run->next = run->used;
        goto cleanup;
    }
    ACR_TRY(acr_run_start_loader(run, err));
    ACR_TRY(acr_emit(run, ACCRUE_EVENT_EPOCH, NULL, NULL, err));
    if (run->used < run->current.n && !cut_short(run))
        ACR_TRY(acr_notice(run, err,
                           "epoch %lld: the last %lld of %lld micro-batches do not fill "
                           "a window of %lld and are dropped",
                           (long long)epoch + 1, (long long)(run->current.n - run->used),
                           (long long)run->current.n, (long long)n));

cleanup:
    return st;
}

accrue_status acr_run_epoch_from(accrue_run *run, int64_t epoch, int64_t from, accrue_error *err)
{
    accrue_error why = {0};
    accrue_status st = begin_epoch(run, epoch, from, &why);

    return acr_run_result(run, st, &why, err);
}

accrue_status accrue_run_epoch(accrue_run *run, int64_t epoch, accrue_error *err)
{
    return acr_run_epoch_from(run, epoch, 0, err);
}

bool accrue_run_next(const accrue_run *run)
{
    return !run->failed && run->next < run->used;
}

const char *acr_row_list(char out[256], const acr_batch *b)
{
    size_t used = 0;

    out[0] = '\0';
    for (int64_t i = 0; i < b->n_docs && used < 200; i++)
        used += (size_t)snprintf(out + used, 256 - used, "%s%lld", i ? ", " : "",
                                 (long long)b->sample[i]);
    if (used >= 200)
        snprintf(out + used, 256 - used, ", ...");
    return out;
}

/* The boundary ---------------------------------------------------------------------------- */

accrue_status accrue_run_clip(accrue_run *run, double *norm, accrue_error *err)
{
    double start = acr_seconds();
    double value = 0;
    accrue_error inner = {0}, why = {0};
    accrue_status st = accrue_window_clip(run->window, &value, &inner);

    if (st == ACCRUE_ENUMERIC)
        acr_fail(&why, st, "optimizer step %lld, epoch %lld, micro-batches %lld to %lld: %s",
                 (long long)accrue_window_global_step(run->window) + 1, (long long)run->epoch + 1,
                 (long long)run->window_first, (long long)run->next - 1, inner.message);
    else if (st)
        why = inner;
    if (accrue_window_at_boundary(run->window))
        run->norm = value;
    if (norm)
        *norm = value;
    run->optimizer_seconds += acr_seconds() - start;
    return acr_run_result(run, st, &why, err);
}

static accrue_status take_step(accrue_run *run, bool *stepped, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    double start = acr_seconds();
    int64_t empty = accrue_window_empty(run->window);
    bool did = false;

    if (stepped)
        *stepped = false;
    if (!accrue_window_at_boundary(run->window))
        return ACCRUE_OK;
    run->lr = accrue_window_lr(run->window);
    run->muon_lr = accrue_window_muon_lr(run->window);
    if (run->save) {
        double wait = acr_seconds();
        acr_save_detach(run->save);
        run->held_up += acr_seconds() - wait;
    }
    ACR_TRY(accrue_window_step(run->window, &did, err));
    if (stepped)
        *stepped = did;
    if (did) {
        ACR_TRY(acr_dist_refresh(run->dist, err));
        run->optimizer_seconds += acr_seconds() - start;
        ACR_TRY(acr_emit(run, ACCRUE_EVENT_STEP, &run->window_metrics, NULL, err));
    } else if (empty > run->empty_told) {
        run->empty_told = empty;
        ACR_TRY(acr_notice(run, err,
                           "epoch %lld: the window that ends with micro-batch %lld has "
                           "%s; no update (%lld such windows so far)",
                           (long long)run->epoch + 1, (long long)run->next - 1,
                           run->window_live ? "no supervised token" : "only skipped micro-batches",
                           (long long)empty));
    }

cleanup:
    return st;
}

accrue_status accrue_run_step(accrue_run *run, bool *stepped, accrue_error *err)
{
    accrue_error why = {0};
    accrue_status st = take_step(run, stepped, &why);

    return acr_run_result(run, st, &why, err);
}

void accrue_run_lr_step(accrue_run *run)
{
    accrue_window_lr_step(run->window);
}

void accrue_run_zero_grad(accrue_run *run)
{
    accrue_window_zero_grad(run->window);
}
