/* fill.c - filling a window: its denominators, its micro-batches, and what is done where one of
 * them cannot be used.
 *
 * A window's denominators are planned from the loss masks before its first forward, so every
 * gradient is added with its final weight.  A micro-batch that turns out not finite, or a row that
 * turns out bad, changes those weights where it is left out; the window is then emptied and run
 * again without it.
 *
 * Of several ranks each has N places in a window, and they speak of it at its edge: until then a
 * rank that cannot go on keeps its places, so that no collective is missing.  At the edge all learn
 * of all faults, do the same about them, and take over each other's losses. */
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a rank says at a window's edge. */
typedef enum edge_kind {
    EDGE_FINE,
    EDGE_NONFINITE, /* micro-batch `index` is not finite */
    EDGE_ROW,       /* a row is at fault */
    EDGE_WAIT_ENDED /* data did not come, and the caller wants to stop */
} edge_kind;

typedef struct edge {
    int32_t kind, asked, saved, has_weight;
    int64_t index;
} edge;

struct acr_fill {
    int64_t place, places; /* of this rank in the open window */
    accrue_status status;  /* what this rank's part of it failed with */
    accrue_error why;
    edge own, *all;                        /* [ranks] */
    int64_t (*rows)[ACCRUE_MAX_TTT_STEPS]; /* [ranks] supervised rows, for denominators */
    double *metrics;                       /* [window, n_values] of its micro-batches */
    size_t *metrics_begin;                 /* [ranks + 1] bytes */
    int64_t n_values;
};

accrue_status acr_fill_create(acr_fill **out, const accrue_run *run, int64_t window,
                              accrue_error *err)
{
    const size_t ranks = (size_t)run->ranks;
    const accrue_metrics like = acr_run_no_metrics(run);
    acr_fill *f = acr_calloc(1, sizeof *f);

    *out = f;
    if (!f)
        return acr_enomem(err, sizeof *f, "the window's plan");
    f->n_values = acr_metrics_values(&like);
    f->all = acr_calloc(ranks, sizeof *f->all);
    f->rows = acr_calloc(ranks, sizeof *f->rows);
    f->metrics_begin = acr_calloc(ranks + 1, sizeof *f->metrics_begin);
    f->metrics = acr_calloc((size_t)(window * f->n_values), sizeof *f->metrics);
    if (!f->all || !f->rows || !f->metrics_begin || !f->metrics)
        return acr_enomem(err, (size_t)(window * f->n_values) * sizeof *f->metrics,
                          "the window's plan");
    return ACCRUE_OK;
}

void acr_fill_free(acr_fill *f)
{
    if (!f)
        return;
    acr_free(f->all);
    acr_free(f->rows);
    acr_free(f->metrics_begin);
    acr_free(f->metrics);
    acr_free(f);
}

void acr_fill_reset(acr_fill *f)
{
    f->place = 0;
}

/* Places ------------------------------------------------------------------------------------ */

/* The micro-batch at this rank's place, -1 where a short window has none there. */
static int64_t at_place(const accrue_run *run, int64_t place)
{
    const int64_t i = run->turns.rank * run->turns.n + place;

    return i < run->window_size ? run->window_first + i : -1;
}

/* Micro-batches of the window that are rank r's. */
static int64_t share_of(const accrue_run *run, int r)
{
    const int64_t left = run->window_size - r * run->turns.n;

    return left < 0 ? 0 : left < run->turns.n ? left : run->turns.n;
}

/* Whether nothing of a micro-batch takes part: it is not finite, or all its rows are bad. */
static bool is_left_out(const accrue_run *run, int64_t i)
{
    return run->excluded[i] || run->current.begin[i] == run->current.begin[i + 1];
}

accrue_status acr_count_rows(accrue_run *run, const acr_epoch *e, int64_t i, int64_t *counts,
                             accrue_error *err)
{
    accrue_status st = acr_batch_masks(&run->masks, &run->setup.shape, run->setup.data,
                                       e->rows + e->begin[i], e->begin[i + 1] - e->begin[i], err);

    if (!st)
        acr_eagle3_counts(&run->masks, &run->setup.eagle3, counts);
    return st;
}

/* Denominators of the window from run->window_first on; what is left out counts for none. */
static accrue_status plan_window(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_fill *f = run->fill;
    const int64_t left = run->used - run->window_first;

    run->window_size = left < run->window_n ? left : run->window_n;
    f->places = share_of(run, 0);
    f->status = ACCRUE_OK;
    f->own = (edge){0};
    run->window_live = 0;
    run->window_metrics = acr_run_no_metrics(run);
    memset(run->window_counts, 0, sizeof run->window_counts);
    for (int64_t i = run->window_first; i < run->window_first + run->window_size; i++)
        run->window_live += !is_left_out(run, i);
    for (int64_t place = 0; place < f->places; place++) {
        const int64_t i = at_place(run, place);
        int64_t *counts = run->counts[place];
        memset(run->counts[place], 0, sizeof run->counts[place]);
        if (i < 0 || is_left_out(run, i))
            continue;
        ACR_TRY(acr_count_rows(run, &run->current, i, counts, err));
        for (int k = 0; k < run->opt.ttt_steps; k++)
            run->window_counts[k] += counts[k];
    }
    if (run->ranks == 1 || run->opt.window.loss_normalization != ACCRUE_NORMALIZE_TOKEN)
        goto cleanup;
    ACR_TRY(acr_comm_share(run->comm, "the window's denominators", run->window_counts,
                           sizeof run->window_counts, f->rows, err));
    memset(run->window_counts, 0, sizeof run->window_counts);
    for (int r = 0; r < run->ranks; r++)
        for (int k = 0; k < run->opt.ttt_steps; k++)
            run->window_counts[k] += f->rows[r][k];

cleanup:
    return st;
}

/* One micro-batch --------------------------------------------------------------------------- */

/* Names the micro-batch that `why` is about. */
static accrue_status name_micro_batch(const accrue_run *run, int64_t i, const acr_batch *b,
                                      accrue_status st, const accrue_error *why, accrue_error *err)
{
    char rows[256];

    if (st != ACCRUE_ENUMERIC)
        return acr_fail(err, st, "%s", why->message);
    return acr_fail(err, st,
                    "optimizer step %lld, epoch %lld, micro-batch %lld of the epoch (rows %s): %s",
                    (long long)accrue_window_global_step(run->window) + 1,
                    (long long)run->epoch + 1, (long long)i, acr_row_list(rows, b), why->message);
}

/* The micro-batch at this place, between acr_dist_begin and acr_dist_end. */
static accrue_status compute(accrue_run *run, int64_t place, int64_t i, const acr_batch **b,
                             accrue_metrics *metrics, bool *has_weight, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_weighting w = {0};
    accrue_error why = {0};
    double start = acr_seconds();

    ACR_TRY(acr_loader_next(b, run->loader, err));
    run->data_seconds += acr_seconds() - start;
    if (i < 0 || is_left_out(run, i))
        goto cleanup;
    acr_weigh(&w, &run->setup.eagle3, run->opt.window.loss_normalization, run->counts[place],
              run->window_counts, run->window_live);
    st = acr_micro_batch(metrics, run->setup.model, &run->tape, *b, &run->setup.eagle3, &w, true,
                         &why);
    if (st)
        name_micro_batch(run, i, *b, st, &why, err);
    *has_weight = w.has_weight;

cleanup:
    return st;
}

/* This rank's place in the window; where `idle`, it takes its part in collectives alone. */
static accrue_status run_place(accrue_run *run, int64_t place, bool idle, accrue_metrics *metrics,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK, ended = ACCRUE_OK;
    acr_fill *f = run->fill;
    const int64_t i = at_place(run, place);
    const acr_batch *b = NULL;
    bool has_weight = false;
    accrue_error why = {0};
    double start = acr_seconds(), waited = run->data_seconds;

    *metrics = acr_run_no_metrics(run);
    acr_dist_begin(run->dist, true, place == f->places - 1);
    if (!idle)
        st = compute(run, place, i, &b, metrics, &has_weight, err);
    ended = acr_dist_end(run->dist, &why);
    if (ended && !st && b && i >= 0)
        st = name_micro_batch(run, i, b, ended, &why, err);
    else if (ended && (!st || ended != ACCRUE_ENUMERIC))
        st = acr_fail(err, ended, "%s", why.message);
    if (!st && i >= 0 && !idle) {
        double loss = run->window_live && metrics->loss_total > 0
                          ? metrics->loss_sum / (metrics->loss_total * (double)run->window_live)
                          : 0.0;
        metrics->error_records = run->dropped[i];
        f->own.has_weight |= has_weight;
        st = acr_window_count(run->window, loss, has_weight, err);
        acr_metrics_pack(f->metrics + (i - run->window_first) * f->n_values, metrics);
        if (run->ranks == 1)
            accrue_metrics_add(&run->window_metrics, metrics);
    }
    run->compute_seconds += acr_seconds() - start - (run->data_seconds - waited);
    return st;
}

/* Again ------------------------------------------------------------------------------------- */

static int64_t turn_of(const accrue_run *run, int64_t i)
{
    const int64_t n = run->turns.n, in_window = i % run->window_n;

    return i / run->window_n * n + (in_window < n ? in_window : n);
}

accrue_status acr_run_start_loader(accrue_run *run, accrue_error *err)
{
    const acr_fill *f = run->fill;
    const bool open = run->ranks > 1 && f->place > 0;
    const int64_t from =
        open ? turn_of(run, run->window_first) + f->place : turn_of(run, run->next);

    return acr_loader_start(run->loader, &run->current, &run->turns, from, turn_of(run, run->used),
                            err);
}

/* Its micro-batches run again: each counts once. */
static void empty_window(accrue_run *run)
{
    acr_window_counters c = acr_window_get_counters(run->window);

    c.micro_batches -= acr_window_filled(run->window);
    acr_window_zero(run->window);
    acr_window_set_counters(run->window, &c);
    run->fill->place = 0;
}

void acr_run_abandon(accrue_run *run)
{
    empty_window(run);
    run->next = run->window_first;
    run->skipped_nonfinite = run->window_skipped;
    run->failed = false;
}

/* What this rank's place came to, for the edge.  What is not for the window's edge to mend is
 * returned. */
static accrue_status take_note(accrue_run *run, accrue_status st, int64_t place, accrue_error *err)
{
    acr_fill *f = run->fill;

    if (!st)
        return ACCRUE_OK;
    if (run->wait_ended)
        f->own.kind = EDGE_WAIT_ENDED;
    else if (acr_loader_fault(run->loader))
        f->own.kind = EDGE_ROW;
    else if (st == ACCRUE_ENUMERIC)
        f->own.kind = EDGE_NONFINITE;
    else
        return acr_fail(err, st, "%s", f->why.message);
    f->status = st;
    f->own.index = at_place(run, place);
    return ACCRUE_OK;
}

/* This rank's places up to and with `last`, from where it stands; with the window's last one the
 * sums over ranks are there. */
static accrue_status run_places(accrue_run *run, int64_t last, accrue_metrics *metrics,
                                accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_fill *f = run->fill;

    for (; f->place <= last; f->place++) {
        const bool idle = f->status != ACCRUE_OK;
        if (idle && run->ranks == 1)
            break;
        st = run_place(run, f->place, idle, metrics, &f->why);
        /* An idle rank's gradients are thrown away whatever they are. */
        if (idle && st == ACCRUE_ENUMERIC)
            st = ACCRUE_OK;
        ACR_TRY(take_note(run, st, f->place, err));
    }
    if (f->place == f->places)
        ACR_TRY(acr_dist_finish(run->dist, err));

cleanup:
    return st;
}

static accrue_status run_again(accrue_run *run, int64_t last, accrue_metrics *metrics,
                               accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    empty_window(run);
    run->next = run->window_first;
    ACR_TRY(acr_dist_begin_window(run->dist, err));
    ACR_TRY(plan_window(run, err));
    ACR_TRY(acr_run_start_loader(run, err));
    ACR_TRY(run_places(run, last, metrics, err));

cleanup:
    return st;
}

/* The edge ---------------------------------------------------------------------------------- */

/* Every rank's word on the window. */
static accrue_status meet(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_fill *f = run->fill;

    f->own.asked = run->asked;
    f->own.saved = run->save && (acr_save_done(run->save) || acr_save_waits(run->save, false));
    ACR_TRY(acr_comm_share(run->comm, "the window's edge", &f->own, sizeof f->own, f->all, err));
    run->save_over = f->all[0].saved;
    for (int r = 0; r < run->ranks; r++)
        if (f->all[r].asked > run->request)
            run->request = f->all[r].asked;

cleanup:
    return st;
}

/* The first rank that says so; -1: none. */
static int first_rank(const accrue_run *run, edge_kind kind)
{
    for (int r = 0; r < run->ranks; r++)
        if (run->fill->all[r].kind == (int32_t)kind)
            return r;
    return -1;
}

/* This rank's failure, or that of another, on all. */
static accrue_status fail_together(accrue_run *run, int r, accrue_error *err)
{
    acr_fill *f = run->fill;
    accrue_status st = f->all[r].kind == EDGE_WAIT_ENDED ? ACCRUE_ECANCELED : ACCRUE_ENUMERIC;

    if (run->ranks == 1)
        return acr_fail(err, f->status, "%s", f->why.message);
    *err = f->why;
    run->agreed = true;
    return acr_agree_message(run->comm, r, st, err);
}

/* Excludes what is not finite, on every rank. */
static accrue_status skip_nonfinite(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const acr_fill *f = run->fill;

    for (int r = 0; r < run->ranks; r++) {
        accrue_error why = f->why;
        if (f->all[r].kind != EDGE_NONFINITE)
            continue;
        if (run->ranks > 1 &&
            acr_agree_message(run->comm, r, ACCRUE_ENUMERIC, &why) != ACCRUE_ENUMERIC) {
            st = acr_fail(err, why.status, "%s", why.message);
            goto cleanup;
        }
        run->excluded[f->all[r].index] = true;
        run->skipped_nonfinite++;
        ACR_TRY(acr_notice(run, err, "skipped: %s", why.message));
    }

cleanup:
    return st;
}

/* Leaves out the rows that any rank found to be bad, on all of them. */
static accrue_status leave_out_rows(accrue_run *run, accrue_error *err)
{
    const int64_t from = run->window_first + run->rank * run->turns.n;
    const int64_t n = share_of(run, run->rank);

    return acr_run_leave_out(run, &run->current, n ? from : 0, n ? from + n : 0, run->dropped, err);
}

/* Does what the faults of this window ask for, until there are none; *last is the place that the
 * window is filled up to. */
static accrue_status mend(accrue_run *run, int64_t last, accrue_metrics *metrics, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    int64_t tries = 0;

    /* Without one micro-batch the others weigh more, and another may overflow that did not before:
     * each pass excludes one more, or at least one row. */
    for (;;) {
        int row = -1, nonfinite = -1, ended = -1;
        ACR_TRY(meet(run, err));
        row = first_rank(run, EDGE_ROW);
        nonfinite = first_rank(run, EDGE_NONFINITE);
        ended = first_rank(run, EDGE_WAIT_ENDED);
        if (row < 0 && nonfinite < 0 && ended < 0)
            break;
        if (ended >= 0) {
            run->wait_ended = true;
            st = fail_together(run, ended, err);
            goto cleanup;
        }
        if (row < 0 &&
            (run->opt.on_nonfinite != ACCRUE_POLICY_SKIP || tries++ == run->window_size)) {
            st = fail_together(run, nonfinite, err);
            goto cleanup;
        }
        if (row >= 0)
            ACR_TRY(leave_out_rows(run, err));
        else
            ACR_TRY(skip_nonfinite(run, err));
        ACR_TRY(run_again(run, last, metrics, err));
    }

cleanup:
    return st;
}

/* Losses and counts of all ranks' micro-batches, in their global order. */
static accrue_status take_over(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_fill *f = run->fill;
    bool has_weight = false;

    for (int r = 0; r < run->ranks; r++) {
        f->metrics_begin[r + 1] =
            f->metrics_begin[r] + (size_t)(share_of(run, r) * f->n_values) * sizeof *f->metrics;
        has_weight = has_weight || f->all[r].has_weight;
    }
    ACR_TRY(acr_comm_gather(run->comm, "the window's losses", f->metrics, f->metrics_begin, err));
    for (int64_t i = 0; i < run->window_size; i++) {
        accrue_metrics m = acr_run_no_metrics(run);
        acr_metrics_unpack(&m, f->metrics + i * f->n_values);
        accrue_metrics_add(&run->window_metrics, &m);
    }
    st = acr_window_join(run->window, run->window_size - share_of(run, run->rank), 0.0, has_weight,
                         err);

cleanup:
    return st;
}

static accrue_status begin_window(accrue_run *run, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    run->window_first = run->next;
    run->window_skipped = run->skipped_nonfinite;
    run->data_seconds = run->compute_seconds = run->optimizer_seconds = 0;
    run->fill->place = 0;
    run->comm_before = acr_comm_get_counters(run->comm);
    acr_comm_set_step(run->comm, accrue_window_global_step(run->window) + 1);
    acr_window_begin(run->window);
    ACR_TRY(acr_dist_begin_window(run->dist, err));
    ACR_TRY(plan_window(run, err));

cleanup:
    return st;
}

/* Micro-batches of the epoch that all ranks have done, this one with `place` places. */
static int64_t done_with(const accrue_run *run, int64_t place)
{
    const int64_t all = run->window_size, left = run->fill->places - place;

    return run->window_first + (place * run->ranks < all - left ? place * run->ranks : all - left);
}

/* Once this rank's part is done: what it takes to have the window whole.  Counted as computing. */
static accrue_status join_window(accrue_run *run, int64_t place, accrue_metrics *metrics,
                                 accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const double start = acr_seconds(), before = run->compute_seconds + run->data_seconds;
    const bool at_edge = place == run->fill->places - 1;

    if (at_edge || run->ranks == 1)
        ACR_TRY(mend(run, place, metrics, err));
    if (at_edge && run->ranks > 1)
        ACR_TRY(take_over(run, err));
    run->compute_seconds +=
        acr_seconds() - start - (run->compute_seconds + run->data_seconds - before);

cleanup:
    return st;
}

/* Fills this rank's next place; at the edge the window is then whole, on all ranks. */
static accrue_status fill_next(accrue_run *run, accrue_metrics *metrics, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_fill *f = run->fill;
    int64_t place = 0;
    bool at_edge = false;

    if (f->place == 0)
        ACR_TRY(begin_window(run, err));
    place = f->place;
    at_edge = place == f->places - 1;
    ACR_TRY(run_places(run, place, metrics, err));
    ACR_TRY(join_window(run, place, metrics, err));
    run->next = done_with(run, f->place);
    if (run->next == run->used)
        acr_window_close_short(run->window);
    if (at_edge)
        f->place = 0;

cleanup:
    return st;
}

/* Other ranks may be reading the gradients: a failure that they do not know of ends that first. */
static accrue_status leave_window(accrue_run *run, accrue_status st, accrue_error *why)
{
    if (!run->agreed)
        st = acr_comm_fail(run->comm, st, why);
    run->fill->place = 0;
    if (run->wait_ended)
        acr_run_abandon(run);
    else if (!run->stopped_by_row)
        acr_window_zero(run->window);
    return st;
}

static accrue_status forward_backward(accrue_run *run, accrue_metrics *out, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    accrue_metrics metrics;
    accrue_error why = {0};

    if (run->failed)
        return acr_fail(err, ACCRUE_ESTATE, "epoch %lld ended with an error; begin another",
                        (long long)run->epoch + 1);
    if (!accrue_run_next(run))
        return acr_fail(err, ACCRUE_ESTATE, "no micro-batch is left in this epoch");
    run->failed = true; /* until this micro-batch is counted */
    run->wait_ended = false;
    run->agreed = false;
    st = fill_next(run, &metrics, &why);
    run->failed = st && !run->wait_ended;
    if (st) {
        st = leave_window(run, st, &why);
        acr_fail(err, st, "%s", why.message);
        goto cleanup;
    }
    run->passed = 0;
    if (out)
        *out = metrics;
    ACR_TRY(acr_emit(run, ACCRUE_EVENT_MICRO_BATCH, &metrics, NULL, err));

cleanup:
    return st;
}

accrue_status accrue_run_forward_backward(accrue_run *run, accrue_metrics *out, accrue_error *err)
{
    accrue_error why = {0};

    if (out)
        memset(out, 0, sizeof *out);
    return acr_run_result(run, forward_backward(run, out, &why), &why, err);
}
