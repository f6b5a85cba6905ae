/* By hand, on a model that the repository does not hold (tools/check_verifier.py runs it):
 *
 *     verifier_full MODEL f32|f64|bf16 THREADS [SLOT...]
 *
 * Each line of the input is "COUNT ID...": with COUNT 0 the states of the slots are written to the
 * output, real [n, n_slots, hidden]; otherwise COUNT ids of the greedy continuation, one line. */
#include "infer/infer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IDS = 1 << 14, MAX_SLOTS = 16 };

typedef struct session {
    acr_verifier *v;
    acr_verifier_work *w;
    acr_cache *cache;
    int slots[MAX_SLOTS], n_slots;
    size_t real;
    int64_t ids[MAX_IDS], n;
} session;

static accrue_status write_states(session *s, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const size_t count = (size_t)(s->n * s->n_slots * acr_verifier_describe(s->v)->hidden_size);
    void *states = calloc(count, s->real);

    if (!states)
        return acr_enomem(err, count * s->real, "states");
    ACR_TRY(acr_verifier_forward(
        s->w, &(acr_sequence){.cache = s->cache, .ids = s->ids, .n = s->n, .states = states}, 1,
        s->slots, s->n_slots, err));
    fwrite(states, s->real, count, stdout);

cleanup:
    free(states);
    return st;
}

static accrue_status write_answer(session *s, int64_t count, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    const int64_t vocab = acr_verifier_describe(s->v)->vocab_size;
    const acr_backend *be = acr_backend_for(s->real == 8 ? ACR_DTYPE_F64 : ACR_DTYPE_F32);
    void *logits = calloc((size_t)vocab, s->real);
    acr_sequence next = {
        .cache = s->cache, .ids = s->ids, .n = s->n, .n_logits = 1, .logits = logits};
    int64_t id = 0;

    if (!logits)
        return acr_enomem(err, (size_t)vocab * s->real, "logits");
    for (int64_t i = 0; i < count; i++) {
        ACR_TRY(acr_verifier_forward(s->w, &next, 1, NULL, 0, err));
        be->argmax(1, vocab, logits, vocab, &id);
        printf("%lld%s", (long long)id, i + 1 < count ? " " : "\n");
        next.ids = &id;
        next.n = 1;
    }

cleanup:
    free(logits);
    return st;
}

static accrue_status run_line(session *s, char *line, accrue_error *err)
{
    char *end = NULL;
    const int64_t count = strtoll(line, &end, 10);

    s->n = 0;
    for (char *at = end; s->n < MAX_IDS; at = end) {
        const int64_t id = strtoll(at, &end, 10);
        if (end == at)
            break;
        s->ids[s->n++] = id;
    }
    acr_cache_cut(s->cache, 0);
    return count ? write_answer(s, count, err) : write_states(s, err);
}

int main(int argc, char **argv)
{
    accrue_status st = ACCRUE_OK;
    accrue_error err = {0};
    session s = {.n_slots = argc - 4};
    char *line = NULL;
    size_t room = 0;
    accrue_dtype compute = ACCRUE_F32;

    if (argc < 4 || argc > 4 + MAX_SLOTS) {
        fprintf(stderr, "usage: verifier_full MODEL f32|f64|bf16 THREADS [SLOT...]\n");
        return 2;
    }
    compute = strcmp(argv[2], "f64") == 0    ? ACCRUE_F64
              : strcmp(argv[2], "bf16") == 0 ? ACCRUE_BF16
                                             : ACCRUE_F32;
    s.real = compute == ACCRUE_F64 ? 8 : 4;
    accrue_set_threads((int)strtol(argv[3], NULL, 10));
    for (int i = 0; i < s.n_slots; i++)
        s.slots[i] = (int)strtol(argv[4 + i], NULL, 10);
    ACR_TRY(acr_verifier_open(&s.v, argv[1], compute, 4096, &err));
    ACR_TRY(acr_verifier_work_create(&s.w, s.v, &err));
    ACR_TRY(acr_cache_create(&s.cache, s.v, 4096, &err));
    while (getline(&line, &room, stdin) > 0)
        ACR_TRY(run_line(&s, line, &err));

cleanup:
    if (st)
        fprintf(stderr, "verifier_full: %s\n", err.message);
    free(line);
    acr_cache_free(s.cache);
    acr_verifier_work_free(s.w);
    acr_verifier_free(s.v);
    return st ? 2 : 0;
}
