/* run.c - a training run in pieces: its micro-batches and windows.
 *
 * A window's denominators are planned from the loss masks before its first forward, so every
 * gradient is added with its final weight.  A micro-batch that turns out not finite, or a row that
 * turns out bad, changes those weights where it is left out; the window is then emptied and run
 * again without it. */
#include "train/train.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
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

accrue_status acr_register_params(accrue_window *w, acr_model *m, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    for (int i = 0; i < m->n_params; i++) {
        acr_param *p = &m->params[i];
        if (p->trainable)
            ACR_TRY(acr_window_add_accumulated(w, p->name, m->real, p->master, p->grad, p->rows,
                                               p->cols, err));
    }

cleanup:
    return st;
}

/* Events ---------------------------------------------------------------------------------- */

accrue_status acr_emit(accrue_run *run, accrue_event_kind kind, const accrue_metrics *metrics,
                       const char *message, accrue_error *err)
{
    accrue_event e = {.kind = kind, .plan = &run->plan, .message = message};
    int answer = 0;

    if (!run->cb)
        return ACCRUE_OK;
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
    answer = run->cb(&e, run->payload);
    if (answer == ACCRUE_GO_ON || (answer == ACCRUE_SAVE && !run->obeys))
        return ACCRUE_OK;
    if (!run->obeys || answer < ACCRUE_SAVE || answer > ACCRUE_GIVE_UP_AND_STOP)
        return acr_fail(err, ACCRUE_ECANCELED, "stopped by the caller at optimizer step %lld",
                        (long long)e.global_step);
    if (answer > run->request)
        run->request = answer;
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
        acr_tape_backward(&run->tape);
    acr_tape_measure(&run->tape, false);
    if (!st && !acr_arena_reserve(&run->tape.arena, run->tape.arena.high))
        st = acr_enomem(err, run->tape.arena.high, "activations");
    return st;
}

static int64_t predicted_peak(const accrue_run *run)
{
    const acr_model *m = run->setup.model;
    const int64_t real = (int64_t)acr_dtype_bytes(m->real);
    const int64_t rows = run->opt.total_seq_len;
    const int64_t width = (m->config.n_aux + 1) * m->config.hidden_size;
    const int64_t program = 24 << 20; /* the binary, its libraries and compiled kernels */
    const acr_param *embed = m->top.embed;
    int64_t moments = 0;
    int64_t mapped = embed->frozen
                         ? embed->rows * embed->cols * (int64_t)acr_dtype_bytes(embed->frozen_type)
                         : 0;

    for (int i = 0; i < m->n_params; i++)
        if (m->params[i].trainable)
            moments += 2 * real * m->params[i].rows * m->params[i].cols;
    /* Live bytes hold masters, accumulators, copies and the arena; the loader keeps two
     * micro-batches. */
    return (int64_t)acr_allocated_bytes() + moments + 2 * rows * width * real + mapped + program;
}

static accrue_status open_window(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_window_options w = run->opt.window;

    w.total_steps = run->plan.schedule_total_steps;
    w.warmup_steps = run->plan.warmup_steps;
    if (!w.muon_ns_dtype)
        w.muon_ns_dtype = run->opt.compute;
    ACR_TRY(accrue_window_create(&run->window, &w, err));
    ACR_TRY(acr_register_params(run->window, run->setup.model, err));

cleanup:
    return st;
}

static void describe_model(accrue_run *run)
{
    acr_model *m = run->setup.model;

    run->plan.params = acr_model_elements(m, false);
    run->plan.trainable_params = acr_model_elements(m, true);
    run->plan.vocab_size = m->config.vocab_size;
    run->plan.draft_vocab_size = m->config.draft_vocab_size;
    run->plan.vocab_built = run->setup.vocab_built;
}

accrue_status accrue_run_open(accrue_run **out, const accrue_train_options *opt, accrue_event_cb cb,
                              void *payload, accrue_error *err)
{
    return acr_run_open(out, opt, NULL, cb, payload, err);
}

accrue_status acr_run_open(accrue_run **out, const accrue_train_options *opt, const char *from,
                           accrue_event_cb cb, void *payload, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_loader_options loader = {0};
    acr_batch_shape masks = {0};
    accrue_run *run = acr_calloc(1, sizeof *run);
    size_t n = 0;

    *out = NULL;
    if (!run)
        return acr_enomem(err, sizeof *run, "the run");
    run->cb = cb;
    run->payload = payload;
    run->started = acr_seconds();
    run->epoch = run->best_epoch = run->superseded = run->listed = -1;
    run->origin_epoch = -1;
    run->generation = 1;
    ACR_TRY(acr_setup_open(&run->setup, opt, err));
    ACR_TRY(keep_options(run, opt, err));
    ACR_TRY(acr_epochs_open(&run->epochs, opt, run->setup.data, run->setup.states_dir,
                            &run->setup.shape, from, err));
    ACR_TRY(acr_epochs_plan(&run->plan, &run->epochs, opt, err));
    describe_model(run);
    n = (size_t)opt->window.gradient_accumulation_steps;
    if (n > (size_t)run->plan.max_epoch_micro_batches)
        n = (size_t)run->plan.max_epoch_micro_batches; /* a short window at most */
    run->counts = acr_calloc(n, sizeof *run->counts);
    if (!run->counts) {
        st = acr_enomem(err, n * sizeof *run->counts, "the window's plan");
        goto cleanup;
    }
    ACR_TRY(acr_tape_init(&run->tape, opt->compute, err));
    masks = run->setup.shape;
    masks.hidden_size = 0; /* masks alone: no states */
    ACR_TRY(acr_batch_alloc(&run->masks, &masks, opt->total_seq_len, err));
    ACR_TRY(open_window(run, err));
    ACR_TRY(measure(run, err));
    run->plan.peak_bytes = predicted_peak(run);
    loader.states_dir = run->setup.states_dir;
    loader.shape = run->setup.shape;
    loader.lock_timeout = opt->lock_timeout;
    loader.waiting = acr_run_waiting;
    loader.ctx = run;
    ACR_TRY(acr_loader_create(&run->loader, run->setup.data, &loader, err));
    *out = run;
    run = NULL;

cleanup:
    accrue_run_free(run);
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

/* Windows --------------------------------------------------------------------------------- */

accrue_status acr_count_rows(accrue_run *run, const acr_epoch *e, int64_t i, int64_t *counts,
                             accrue_error *err)
{
    accrue_status st = acr_batch_masks(&run->masks, &run->setup.shape, run->setup.data,
                                       e->rows + e->begin[i], e->begin[i + 1] - e->begin[i], err);

    if (!st)
        acr_eagle3_counts(&run->masks, &run->setup.eagle3, counts);
    return st;
}

/* Whether nothing of a micro-batch takes part: it is not finite, or all its rows are bad. */
static bool is_left_out(const accrue_run *run, int64_t i)
{
    return run->excluded[i] || run->current.begin[i] == run->current.begin[i + 1];
}

/* Denominators of the window from run->window_first on; what is left out counts for none. */
static accrue_status plan_window(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t n = run->opt.window.gradient_accumulation_steps;
    int64_t left = run->used - run->window_first;

    run->window_size = left < n ? left : n;
    run->window_live = 0;
    memset(run->window_counts, 0, sizeof run->window_counts);
    memset(&run->window_metrics, 0, sizeof run->window_metrics);
    for (int64_t i = 0; i < run->window_size; i++) {
        memset(run->counts[i], 0, sizeof run->counts[i]);
        if (is_left_out(run, run->window_first + i))
            continue;
        ACR_TRY(acr_count_rows(run, &run->current, run->window_first + i, run->counts[i], err));
        run->window_live++;
        for (int k = 0; k < run->opt.ttt_steps; k++)
            run->window_counts[k] += run->counts[i][k];
    }

cleanup:
    return st;
}

/* Whether --max-steps ends this epoch before its last window. */
static bool cut_short(const accrue_run *run)
{
    const int64_t n = run->opt.window.gradient_accumulation_steps;

    return run->opt.max_steps &&
           accrue_window_global_step(run->window) + (run->used - run->next) / n >
               run->opt.max_steps;
}

int64_t acr_run_used(const accrue_run *run, int64_t micro_batches)
{
    const int64_t n = run->opt.window.gradient_accumulation_steps;

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

accrue_status accrue_run_epoch(accrue_run *run, int64_t epoch, accrue_error *err)
{
    return acr_run_epoch_from(run, epoch, 0, err);
}

accrue_status acr_run_epoch_from(accrue_run *run, int64_t epoch, int64_t from, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t n = run->opt.window.gradient_accumulation_steps;

    if (epoch < 0 || epoch >= run->opt.epochs)
        return acr_fail(err, ACCRUE_EINVAL, "epoch %lld, 0 to %lld expected", (long long)epoch,
                        (long long)run->opt.epochs - 1);
    acr_loader_stop(run->loader);
    /* A window's micro-batches are of one epoch: what an abandoned one has gathered is dropped. */
    acr_window_zero(run->window);
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
    ACR_TRY(acr_loader_start(run->loader, &run->current, run->next, run->used, err));
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

/* One micro-batch into the open window. */
static accrue_status run_one(accrue_run *run, int64_t i, accrue_metrics *metrics, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_batch *b = NULL;
    acr_weighting w = {0};
    accrue_error inner = {0};
    double start = acr_seconds();
    char rows[256];

    memset(metrics, 0, sizeof *metrics);
    ACR_TRY(acr_loader_next(&b, run->loader, err));
    run->data_seconds += acr_seconds() - start;
    start = acr_seconds();
    if (is_left_out(run, i)) {
        ACR_TRY(acr_window_count(run->window, 0.0, false, err));
        metrics->error_records = run->dropped[i];
        run->window_metrics.error_records += run->dropped[i];
        goto cleanup;
    }
    acr_weigh(&w, &run->setup.eagle3, run->opt.window.loss_normalization,
              run->counts[i - run->window_first], run->window_counts, run->window_live);
    st = acr_micro_batch(metrics, run->setup.model, &run->tape, b, &run->setup.eagle3, &w, true,
                         &inner);
    if (!st)
        st = acr_window_count(run->window,
                              metrics->loss_sum / (metrics->loss_total * (double)run->window_live),
                              w.has_weight, &inner);
    if (st == ACCRUE_ENUMERIC)
        acr_fail(err, st,
                 "optimizer step %lld, epoch %lld, micro-batch %lld of the epoch (rows %s): %s",
                 (long long)accrue_window_global_step(run->window) + 1, (long long)run->epoch + 1,
                 (long long)i, acr_row_list(rows, b), inner.message);
    else if (st)
        acr_fail(err, st, "%s", inner.message);
    metrics->error_records = run->dropped[i];
    if (!st)
        accrue_metrics_add(&run->window_metrics, metrics);
    run->compute_seconds += acr_seconds() - start;

cleanup:
    return st;
}

/* Its micro-batches run again: each counts once. */
static void empty_window(accrue_run *run)
{
    acr_window_counters c = acr_window_get_counters(run->window);

    c.micro_batches -= acr_window_filled(run->window);
    acr_window_zero(run->window);
    acr_window_set_counters(run->window, &c);
}

/* Empties the window and runs it again up to and with micro-batch `last`, without those excluded;
 * *at is the one that it ends with or fails at. */
static accrue_status run_again(accrue_run *run, int64_t last, int64_t *at, accrue_metrics *metrics,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    empty_window(run);
    ACR_TRY(plan_window(run, err));
    ACR_TRY(acr_loader_start(run->loader, &run->current, run->window_first, run->used, err));
    for (*at = run->window_first; *at <= last; ++*at)
        ACR_TRY(run_one(run, *at, metrics, err));

cleanup:
    return st;
}

static accrue_status skip(accrue_run *run, int64_t i, const accrue_error *why, accrue_error *err)
{
    run->excluded[i] = true;
    run->skipped_nonfinite++;
    return acr_notice(run, err, "skipped: %s", why->message);
}

accrue_status accrue_run_forward_backward(accrue_run *run, accrue_metrics *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_metrics metrics;
    accrue_error why = {0};
    int64_t i = run->next, at = i;

    if (out)
        memset(out, 0, sizeof *out);
    if (run->failed)
        return acr_fail(err, ACCRUE_ESTATE, "epoch %lld ended with an error; begin another",
                        (long long)run->epoch + 1);
    if (!accrue_run_next(run))
        return acr_fail(err, ACCRUE_ESTATE, "no micro-batch is left in this epoch");
    run->failed = true; /* until this micro-batch is counted */
    run->wait_ended = false;
    acr_window_begin(run->window);
    if (acr_window_filled(run->window) == 0) {
        run->window_first = i;
        run->window_skipped = run->skipped_nonfinite;
        run->data_seconds = run->compute_seconds = run->optimizer_seconds = 0;
        ACR_TRY(plan_window(run, err));
    }
    st = run_one(run, i, &metrics, &why);
    /* Without one micro-batch the others weigh more, and another may overflow that did not before:
     * each pass excludes one more, or at least one row. */
    for (int64_t tries = 0; st && tries < run->window_size;) {
        if (acr_loader_fault(run->loader)) {
            ACR_TRY(acr_run_leave_out(run, &run->current, run->window_first,
                                      run->window_first + run->window_size, run->dropped, err));
        } else if (st == ACCRUE_ENUMERIC && run->opt.on_nonfinite == ACCRUE_POLICY_SKIP) {
            ACR_TRY(skip(run, at, &why, err));
            tries++;
        } else {
            break;
        }
        st = run_again(run, i, &at, &metrics, &why);
    }
    if (st && run->wait_ended)
        acr_run_abandon(run);
    else if (st)
        acr_window_zero(run->window);
    run->failed = st && !run->wait_ended;
    if (st) {
        acr_fail(err, st, "%s", why.message);
        goto cleanup;
    }
    run->passed = 0;
    run->next = i + 1;
    if (run->next == run->used)
        acr_window_close_short(run->window);
    if (out)
        *out = metrics;
    ACR_TRY(acr_emit(run, ACCRUE_EVENT_MICRO_BATCH, &metrics, NULL, err));

cleanup:
    return st;
}

void acr_run_abandon(accrue_run *run)
{
    empty_window(run);
    run->next = run->window_first;
    run->skipped_nonfinite = run->window_skipped;
    run->failed = false;
}

accrue_status accrue_run_clip(accrue_run *run, double *norm, accrue_error *err)
{
    double start = acr_seconds();
    double value = 0;
    accrue_error why = {0};
    accrue_status st = accrue_window_clip(run->window, &value, &why);

    if (st == ACCRUE_ENUMERIC)
        acr_fail(err, st, "optimizer step %lld, epoch %lld, micro-batches %lld to %lld: %s",
                 (long long)accrue_window_global_step(run->window) + 1, (long long)run->epoch + 1,
                 (long long)run->window_first, (long long)run->next - 1, why.message);
    else if (st)
        acr_fail(err, st, "%s", why.message);
    if (accrue_window_at_boundary(run->window))
        run->norm = value;
    if (norm)
        *norm = value;
    run->optimizer_seconds += acr_seconds() - start;
    return st;
}

accrue_status accrue_run_step(accrue_run *run, bool *stepped, accrue_error *err)
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
        acr_model_refresh(run->setup.model);
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

void accrue_run_lr_step(accrue_run *run)
{
    accrue_window_lr_step(run->window);
}

void accrue_run_zero_grad(accrue_run *run)
{
    accrue_window_zero_grad(run->window);
}
