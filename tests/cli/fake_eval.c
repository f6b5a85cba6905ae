/* fake_eval.c - of the stand-in for the library, what accrue eval calls. */
#include "accrue/accrue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text(const char *s)
{
    return s ? s : "-";
}

void accrue_eval_options_init(accrue_eval_options *opt, size_t struct_size)
{
    memset(opt, 0, struct_size);
    opt->struct_size = struct_size;
    opt->num_speculative_tokens = 3;
    opt->max_new_tokens = 64;
    opt->compute = ACCRUE_F32;
}

static accrue_status fail(accrue_error *err, accrue_status status, const char *message)
{
    err->status = status;
    snprintf(err->message, sizeof err->message, "%s", message);
    return status;
}

/* The options as they arrived, into the file that the environment names. */
static void dump(const accrue_eval_options *o)
{
    const char *path = getenv("FAKE_ACCRUE_OPTIONS");
    FILE *f = path ? fopen(path, "w") : NULL;

    if (!f)
        return;
    fprintf(f, "checkpoint %s\nverifier %s\nprompts %s\nk %d\nnew %lld\nlimit %lld\ndtype %d\n",
            text(o->checkpoint), text(o->verifier), text(o->prompts), o->num_speculative_tokens,
            (long long)o->max_new_tokens, (long long)o->limit, (int)o->compute);
    fclose(f);
}

static void answer(accrue_eval_report *r, const accrue_eval_prompt *p)
{
    r->done++;
    r->prompt_tokens += p->prompt_tokens;
    r->tokens += 64;
    r->rounds += p->rounds;
    r->drafted += p->drafted;
    r->accepted += p->accepted;
    r->accepted_at[0] += 4;
    r->accepted_at[1] += 2;
    r->accepted_length[0] += 6;
    r->accepted_length[1] += 2;
    r->accepted_length[2] += 2;
    r->plain_seconds += p->plain_seconds;
    r->speculative_seconds += p->speculative_seconds;
    r->seconds += 3.6;
    r->differing += p->differs_at >= 0;
}

/* As many prompts as --limit says; of the checkpoint "differs" the last one is answered otherwise
 * than by the verifier, the checkpoint "broken" fails. */
accrue_status accrue_eval(accrue_eval_report *out, const accrue_eval_options *o, accrue_eval_cb cb,
                          void *payload, accrue_error *err)
{
    static const int64_t tokens[] = {7, 5, 3};
    accrue_eval_prompt p = {.prompt_tokens = 30,
                            .rounds = 10,
                            .drafted = 10 * o->num_speculative_tokens,
                            .accepted = 6,
                            .plain_seconds = 2,
                            .speculative_seconds = 1.6,
                            .tokens = tokens,
                            .n_tokens = 3,
                            .differs_at = -1};

    dump(o);
    memset(out, 0, sizeof *out);
    if (strcmp(o->checkpoint, "broken") == 0)
        return fail(err, ACCRUE_EFORMAT, "broken: tensor fc.weight is missing");
    out->num_speculative_tokens = o->num_speculative_tokens;
    out->prompts = o->limit;
    snprintf(out->verifier, sizeof out->verifier, "%s", o->verifier ? o->verifier : "recorded");
    for (; p.row < out->prompts; p.row++) {
        if (strcmp(o->checkpoint, "differs") == 0 && p.row + 1 == out->prompts)
            p.differs_at = 1;
        answer(out, &p);
        if (cb(&p, out, payload))
            return fail(err, ACCRUE_ECANCELED, "stopped");
    }
    return out->differing ? fail(err, ACCRUE_EVERIFY, "prompt 3: token 1 is another") : ACCRUE_OK;
}
