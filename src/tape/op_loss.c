/* op_loss.c - the distillation loss over all TTT steps.
 *
 * Target rows are taken a chunk at a time.  For a chunk the verifier's logits are made once, then
 * the draft's logits of every TTT step that predicts one of its rows, in one product; the losses,
 * their gradient with respect to the logits (in place) and, by one more product, with respect to
 * the hidden rows follow while the chunk is still in the cache.  So no logit outlives its chunk,
 * and the record's backward only hands over the gradients made here:  dh = dz W_head.
 *
 * Within a chunk the draft rows are ordered: those that have a loss, then those that only need a
 * prediction; each half by TTT step, then by target. */
#include "tape/tape.h"

#include <string.h>

enum { CHUNK_BYTES = 24 << 20, MIN_CHUNK = 16, MAX_CHUNK = 128 };

typedef struct distill_args {
    acr_distill d;
    void *dh[ACCRUE_MAX_TTT_STEPS]; /* [step.h.rows, hidden] */
} distill_args;

/* Scratch of one chunk; `rows` counts draft rows. */
typedef struct chunk {
    int64_t capacity, rows, n_counted;
    int64_t *step, *entry; /* [rows] which entry of which TTT step */
    int64_t *target_row;   /* [rows] relative to the chunk */
    double *scale;
    int64_t *argmax;
    double *term_loss; /* [rows, n_terms] */
    double *lse;       /* [targets] */
    void *y, *t, *p;   /* [targets, hidden], [targets, vocab] twice */
    void *rstd;        /* [targets] */
    void *h, *z;       /* [rows, hidden], [rows, vocab] */
} chunk;

int64_t acr_distill_chunk(int64_t vocab, int n_steps, size_t real_bytes)
{
    int64_t row_bytes = vocab * (int64_t)real_bytes * (2 + n_steps);
    int64_t rows = MAX_CHUNK;

    while (rows > MIN_CHUNK && rows * row_bytes > CHUNK_BYTES)
        rows /= 2;
    return rows;
}

static bool chunk_alloc(acr_tape *t, chunk *c, const acr_distill *d, int64_t targets)
{
    const size_t real = t->backend->real_bytes;
    const int64_t vocab = d->head->rows;
    const int64_t hidden = d->head->cols;

    memset(c, 0, sizeof *c);
    c->capacity = targets * d->n_steps;
    c->step = acr_tape_meta(t, c->capacity, sizeof *c->step);
    c->entry = acr_tape_meta(t, c->capacity, sizeof *c->entry);
    c->target_row = acr_tape_meta(t, c->capacity, sizeof *c->target_row);
    c->scale = acr_tape_meta(t, c->capacity, sizeof *c->scale);
    c->argmax = acr_tape_meta(t, c->capacity, sizeof *c->argmax);
    c->term_loss = acr_tape_meta(t, c->capacity * d->spec->n_terms, sizeof *c->term_loss);
    c->lse = acr_tape_meta(t, targets, sizeof *c->lse);
    c->rstd = acr_tape_scratch(t, targets, real);
    c->y = acr_tape_scratch(t, targets * hidden, real);
    c->t = acr_tape_scratch(t, targets * vocab, real);
    c->p = acr_tape_scratch(t, targets * vocab, real);
    c->h = acr_tape_scratch(t, c->capacity * hidden, real);
    c->z = acr_tape_scratch(t, c->capacity * vocab, real);
    return t->status == ACCRUE_OK;
}

static void chunk_release(acr_tape *t, chunk *c, const acr_distill *d, int64_t targets)
{
    const size_t real = t->backend->real_bytes;
    const int64_t vocab = d->head->rows;
    const int64_t hidden = d->head->cols;

    acr_tape_release(t, c->z, c->capacity * vocab, real);
    acr_tape_release(t, c->h, c->capacity * hidden, real);
    acr_tape_release(t, c->p, targets * vocab, real);
    acr_tape_release(t, c->t, targets * vocab, real);
    acr_tape_release(t, c->y, targets * hidden, real);
    acr_tape_release(t, c->rstd, targets, real);
}

/* Lists the draft rows whose target lies in [first, last); step k goes on at at[k]. */
static void chunk_list(chunk *c, const acr_distill *d, int64_t *at, int64_t first, int64_t last)
{
    int64_t end[ACCRUE_MAX_TTT_STEPS];

    c->rows = 0;
    for (int k = 0; k < d->n_steps; k++)
        for (end[k] = at[k]; end[k] < d->step[k].n && d->step[k].target[end[k]] < last; end[k]++)
            ;
    for (int counted = 1; counted >= 0; counted--) {
        for (int k = 0; k < d->n_steps; k++)
            for (int64_t i = at[k]; i < end[k]; i++)
                if (d->step[k].counted[i] == (counted == 1)) {
                    c->step[c->rows] = k;
                    c->entry[c->rows] = i;
                    c->target_row[c->rows] = d->step[k].target[i] - first;
                    c->scale[c->rows++] = counted ? d->step[k].scale : 0.0;
                }
        if (counted)
            c->n_counted = c->rows;
    }
    for (int k = 0; k < d->n_steps; k++)
        at[k] = end[k];
}

static void product(acr_tape *t, acr_gemm_layout layout, const acr_param *w, int64_t rows,
                    const void *x, void *y)
{
    acr_gemm_args g = {.layout = layout, .bf16 = t->bf16, .m = rows, .a = x, .c = y};

    g.n = layout == ACR_GEMM_NT ? w->rows : w->cols;
    g.k = layout == ACR_GEMM_NT ? w->cols : w->rows;
    g.lda = g.k;
    g.b = acr_param_operand(t, w, &g.b_is_bf16);
    g.ldb = w->cols;
    g.ldc = g.n;
    acr_tape_gemm(t, &g);
}

static void chunk_targets(acr_tape *t, chunk *c, const acr_distill *d, int64_t first, int64_t n)
{
    const int64_t hidden = d->head->cols;
    const int64_t vocab = d->head->rows;

    t->backend->gather_rows(n, hidden, d->target_row + first, d->target, hidden, c->h, hidden);
    t->backend->rmsnorm_forward(n, hidden, c->h, hidden, d->verifier_norm->master, d->eps, c->y,
                                hidden, c->rstd);
    product(t, ACR_GEMM_NT, d->verifier_head, n, c->y, c->t);
    t->backend->target_softmax(n, vocab, c->t, vocab, c->p, c->lse, d->target_argmax + first);
}

static void chunk_losses(acr_tape *t, chunk *c, const acr_distill *d, int64_t first)
{
    const int64_t vocab = d->head->rows;
    const int n_terms = d->spec->n_terms;
    acr_loss_args a = {.spec = d->spec, .rows = c->n_counted, .vocab = vocab};

    a.z = c->z;
    a.ldz = vocab;
    a.target_row = c->target_row;
    a.t = c->t;
    a.p = c->p;
    a.ldt = vocab;
    a.t_lse = c->lse;
    a.t_argmax = d->target_argmax + first;
    a.scale = c->scale;
    a.term_loss = c->term_loss;
    a.argmax = c->argmax;
    t->backend->distill_loss(&a);
    t->backend->argmax(c->rows - c->n_counted, vocab,
                       (const char *)c->z + (size_t)(c->n_counted * vocab) * t->backend->real_bytes,
                       vocab, c->argmax + c->n_counted);
    for (int64_t i = 0; i < c->rows; i++) {
        const acr_distill_step *s = &d->step[c->step[i]];
        s->argmax[c->entry[i]] = c->argmax[i];
        if (i < c->n_counted)
            memcpy(s->term_loss + c->entry[i] * n_terms, c->term_loss + i * n_terms,
                   (size_t)n_terms * sizeof(double));
    }
}

static void copy_rows(const acr_tape *t, const chunk *c, const distill_args *a, int64_t rows,
                      bool back)
{
    const size_t bytes = (size_t)a->d.head->cols * t->backend->real_bytes;

    for (int64_t i = 0; i < rows; i++) {
        const acr_distill_step *s = &a->d.step[c->step[i]];
        size_t at = (size_t)s->row[c->entry[i]] * bytes;
        char *mine = (char *)c->h + (size_t)i * bytes;
        if (back)
            memcpy((char *)a->dh[c->step[i]] + at, mine, bytes);
        else
            memcpy(mine, (const char *)s->h->data + at, bytes);
    }
}

static void distill_forward(acr_tape *t, acr_record *r)
{
    distill_args *a = r->args;
    const acr_distill *d = &a->d;
    const int64_t targets = acr_distill_chunk(d->head->rows, d->n_steps, t->backend->real_bytes);
    int64_t at[ACCRUE_MAX_TTT_STEPS] = {0};
    chunk c;

    for (int k = 0; k < d->n_steps && !t->no_grad; k++) {
        const acr_value *h = d->step[k].h;
        a->dh[k] = acr_tape_scratch(t, acr_tape_rows(t, h->rows) * h->cols, t->backend->real_bytes);
        if (a->dh[k] && !t->arena.measuring)
            memset(a->dh[k], 0, (size_t)(h->rows * h->cols) * t->backend->real_bytes);
    }
    if (!chunk_alloc(t, &c, d, targets))
        return;
    if (t->arena.measuring) {
        product(t, ACR_GEMM_NT, d->verifier_head, targets, c.y, c.t);
        product(t, ACR_GEMM_NT, d->head, c.capacity, c.h, c.z);
        product(t, ACR_GEMM_NN, d->head, c.capacity, c.z, c.h);
    }
    for (int64_t first = 0; first < d->n_targets && !t->arena.measuring; first += targets) {
        int64_t n = d->n_targets - first < targets ? d->n_targets - first : targets;
        chunk_targets(t, &c, d, first, n);
        chunk_list(&c, d, at, first, first + n);
        copy_rows(t, &c, a, c.rows, false);
        product(t, ACR_GEMM_NT, d->head, c.rows, c.h, c.z);
        chunk_losses(t, &c, d, first);
        if (!t->no_grad) {
            product(t, ACR_GEMM_NN, d->head, c.n_counted, c.z, c.h);
            copy_rows(t, &c, a, c.n_counted, true);
        }
    }
    chunk_release(t, &c, d, targets);
}

static void distill_backward(acr_tape *t, acr_record *r)
{
    distill_args *a = r->args;

    for (int k = 0; k < a->d.n_steps; k++) {
        acr_value *h = a->d.step[k].h;
        int64_t n = acr_tape_rows(t, h->rows) * h->cols;
        if (h->needs_grad && !h->grad) {
            h->grad = a->dh[k];
            continue;
        }
        if (h->needs_grad && !t->arena.measuring)
            t->backend->accumulate(h->rows * h->cols, a->dh[k], h->grad);
        acr_tape_release(t, a->dh[k], n, t->backend->real_bytes);
    }
}

const acr_op acr_op_distill = {"distill_loss", distill_forward, distill_backward};

static bool in_range(acr_tape *t, const acr_distill *d, const char *what, int64_t got, int64_t low,
                     int64_t high)
{
    if (got >= low && got <= high)
        return true;
    acr_tape_fail(t, ACCRUE_EMISMATCH, "%s: %s is %lld, %lld to %lld expected", d->head->name, what,
                  (long long)got, (long long)low, (long long)high);
    return false;
}

static bool step_fits(acr_tape *t, const acr_distill *d, const acr_distill_step *s)
{
    if (!in_range(t, d, "the width of the hidden rows", s->h->cols, d->head->cols, d->head->cols))
        return false;
    for (int64_t i = 0; i < s->n; i++)
        if (!in_range(t, d, "a row", s->row[i], 0, s->h->rows - 1) ||
            !in_range(t, d, "a target", s->target[i], i ? s->target[i - 1] + 1 : 0,
                      d->n_targets - 1))
            return false;
    return true;
}

void acr_distill_loss(acr_tape *t, const acr_distill *d)
{
    const acr_param *head = d->head;
    distill_args *a = NULL;

    if (t->status)
        return;
    for (int k = 0; k < d->n_steps; k++)
        if (!d->step[k].h)
            return;
    if (d->verifier_head->rows != head->rows || d->verifier_head->cols != head->cols ||
        d->verifier_norm->rows != head->cols) {
        acr_tape_fail(t, ACCRUE_EMISMATCH,
                      "%s: [%lld, %lld] behind a norm of %lld, [%lld, %lld] "
                      "expected",
                      d->verifier_head->name, (long long)d->verifier_head->rows,
                      (long long)d->verifier_head->cols, (long long)d->verifier_norm->rows,
                      (long long)head->rows, (long long)head->cols);
        return;
    }
    for (int k = 0; k < d->n_steps; k++)
        if (!step_fits(t, d, &d->step[k]))
            return;
    a = acr_tape_meta(t, 1, sizeof *a);
    if (!a)
        return;
    memset(a, 0, sizeof *a);
    a->d = *d;
    acr_tape_push(t, &acr_op_distill, 0, NULL, NULL, d->head, NULL, a);
}
