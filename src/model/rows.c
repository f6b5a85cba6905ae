/* rows.c - which rows of a micro-batch each TTT step has to work on.
 *
 * At TTT step k, row t reads token t + k and predicts target t + k; it attends to the base keys of
 * its document up to t and to its own keys of steps 1 ... k.  Three facts make most rows needless:
 *
 *  - row t is needed at step k only when it, at k or a later step, has a loss (the mask of t + k is
 *    set) or a prediction that the accuracies count (the mask of t is set and a later step still
 *    asks whether t was right so far);
 *  - a row that is not needed at step 0 may still be read as a key, but only by later rows of its
 *    document: keys and values (the *base*) end at the document's last needed row;
 *  - a document without supervision drops out altogether.
 *
 * Without `across_documents` a row whose t + k lies past its document's end is never used; with it,
 * the border is ignored and the padding behind the last document is predicted as well, as the
 * Python trainer does. */
#include "model/model.h"

#include <string.h>

typedef struct planner {
    acr_tape *tape;
    const acr_batch *b;
    int n_steps;
    bool across;
    int64_t end; /* of the current document; with across_documents, past the padding */
    int64_t window;
} planner;

static bool has_target(const planner *p, int64_t t, int k)
{
    return t + k < p->end;
}

static bool has_loss(const planner *p, int64_t t, int k)
{
    return has_target(p, t, k) && t + k < p->b->n_rows && p->b->loss_mask[t + k];
}

/* The accuracies ask for the prediction of row t at step k. */
static bool predicts(const planner *p, int64_t t, int k)
{
    return p->b->loss_mask[t] && has_target(p, t, k) &&
           (has_loss(p, t, k) || (k + 1 < p->n_steps && has_target(p, t, k + 1)));
}

/* The number of steps (from 0) that row t takes part in. */
static int live_steps(const planner *p, int64_t t)
{
    for (int k = p->n_steps - 1; k >= 0; k--)
        if (has_loss(p, t, k) || predicts(p, t, k))
            return k + 1;
    return 0;
}

static void enter_document(planner *p, int64_t doc)
{
    p->end = p->across ? p->b->padded_rows : p->b->doc_begin[doc + 1];
}

void acr_eagle3_counts(const acr_batch *b, const acr_eagle3_options *o,
                       int64_t counts[ACCRUE_MAX_TTT_STEPS])
{
    planner p = {.b = b, .n_steps = o->ttt_steps, .across = o->across_documents};

    memset(counts, 0, ACCRUE_MAX_TTT_STEPS * sizeof *counts);
    for (int64_t d = 0; d < b->n_docs; d++) {
        enter_document(&p, d);
        for (int64_t t = b->doc_begin[d]; t < b->doc_begin[d + 1]; t++)
            for (int k = 0; k < o->ttt_steps; k++)
                counts[k] += has_loss(&p, t, k);
    }
}

static int64_t *list(acr_tape *t, int64_t n)
{
    return acr_tape_meta(t, n, sizeof(int64_t));
}

static void alloc_lists(acr_rows *r, acr_tape *t, int64_t rows, int64_t padded)
{
    r->base = list(t, rows);
    r->base_embed = list(t, rows);
    r->base_position = list(t, rows);
    r->base_begin = list(t, rows);
    r->base_window_begin = list(t, rows);
    r->base_end = list(t, rows);
    r->embed_ids = list(t, padded);
    r->target = list(t, padded);
    for (int k = 0; k < r->n_steps; k++) {
        acr_step_rows *s = &r->step[k];
        s->t = list(t, rows);
        s->previous = list(t, rows);
        s->embed = list(t, rows);
        s->position = list(t, rows);
        s->begin = list(t, rows);
        s->window_begin = list(t, rows);
        s->end = list(t, rows);
        for (int j = 1; j <= k; j++)
            s->own[j] = list(t, rows);
        s->draft_row = list(t, rows);
        s->target = list(t, rows);
        s->counted = acr_tape_meta(t, rows, sizeof *s->counted);
    }
}

/* Appends row t to step k; `key` is its base row, `first` its document's first base row. */
static void add_row(acr_rows *r, const planner *p, int64_t t, int k, int64_t key, int64_t first,
                    int64_t embed)
{
    acr_step_rows *s = &r->step[k];
    int64_t i = s->n++;
    int64_t window_first = key - p->window + 1;

    s->t[i] = t;
    s->previous[i] = k ? r->step[k - 1].n - 1 : key;
    s->embed[i] = embed;
    s->position[i] = p->b->position_ids[t] + k;
    s->begin[i] = first;
    s->window_begin[i] = window_first > first ? window_first : first;
    s->end[i] = key + 1;
    for (int j = 1; j <= k; j++)
        s->own[j][i] = r->step[j].n - 1;
    if (has_loss(p, t, k) || predicts(p, t, k)) {
        s->draft_row[s->n_draft] = i;
        s->counted[s->n_draft] = has_loss(p, t, k);
        s->target[s->n_draft++] = t + k; /* made an index below */
    }
}

static void add_base(acr_rows *r, const planner *p, int64_t t, int64_t first, int64_t embed)
{
    int64_t i = r->n_base++;
    int64_t window_first = i - p->window + 1;

    r->base[i] = t;
    r->base_embed[i] = embed;
    r->base_position[i] = p->b->position_ids[t];
    r->base_begin[i] = first;
    r->base_window_begin[i] = window_first > first ? window_first : first;
    r->base_end[i] = i + 1;
}

/* Lists one document.  embed_of(t) = t - offset for the stretch of tokens that it reads. */
static void add_document(acr_rows *r, planner *p, int64_t doc, int64_t *next_embed)
{
    const acr_batch *b = p->b;
    int64_t begin = b->doc_begin[doc];
    int64_t last = -1;
    int64_t first_base = r->n_base;
    int64_t read_end = 0;
    int64_t offset = 0;

    for (int64_t t = begin; t < b->doc_begin[doc + 1]; t++)
        if (live_steps(p, t))
            last = t;
    if (last < 0)
        return;
    read_end = last + p->n_steps < p->end ? last + p->n_steps : p->end;
    /* A stretch read across the border overlaps the next document's: share what is there. */
    if (*next_embed < begin)
        *next_embed = begin;
    offset = *next_embed - r->n_embed;
    for (; *next_embed < read_end; ++*next_embed)
        r->embed_ids[r->n_embed++] = *next_embed < b->n_rows ? b->input_ids[*next_embed] : 0;
    for (int64_t t = begin; t <= last; t++) {
        int live = live_steps(p, t);
        add_base(r, p, t, first_base, t - offset);
        for (int k = 0; k < live; k++)
            add_row(r, p, t, k, r->n_base - 1, first_base, t + k - offset);
    }
}

/* Collects the distinct targets in ascending order and turns targets into indexes. */
static void index_targets(acr_rows *r, int64_t *seen, int64_t padded)
{
    memset(seen, 0, (size_t)padded * sizeof *seen);
    for (int k = 0; k < r->n_steps; k++)
        for (int64_t i = 0; i < r->step[k].n_draft; i++)
            seen[r->step[k].target[i]] = 1;
    for (int64_t s = 0; s < padded; s++)
        if (seen[s]) {
            seen[s] = r->n_targets;
            r->target[r->n_targets++] = s;
        }
    for (int k = 0; k < r->n_steps; k++)
        for (int64_t i = 0; i < r->step[k].n_draft; i++)
            r->step[k].target[i] = seen[r->step[k].target[i]];
}

accrue_status acr_rows_plan(acr_rows *out, acr_tape *t, const acr_batch *b,
                            const acr_eagle3_options *o, int64_t sliding_window)
{
    planner p = {.tape = t,
                 .b = b,
                 .n_steps = o->ttt_steps,
                 .across = o->across_documents,
                 .window = sliding_window};
    int64_t padded = b->padded_rows > b->n_rows ? b->padded_rows : b->n_rows;
    int64_t next_embed = 0;
    int64_t *seen = NULL;

    memset(out, 0, sizeof *out);
    out->n_steps = o->ttt_steps;
    alloc_lists(out, t, b->n_rows, padded);
    seen = list(t, padded);
    if (t->status)
        return t->status;
    for (int64_t d = 0; d < b->n_docs; d++) {
        enter_document(&p, d);
        add_document(out, &p, d, &next_embed);
    }
    index_targets(out, seen, padded);
    return ACCRUE_OK;
}
