/* flag_check.c - values that are fine alone and not together.  The pairs are those that the peer
 * rejects; what only the files can tell is left to the library. */
#include "flags.h"

#include "cli.h"

#include <math.h>
#include <string.h>

void flags_value(char *text, size_t bytes, const flag *f, const cli_options *o)
{
    const char *at = (const char *)o + f->at;
    const char *s = NULL;
    int64_t n = 0;
    uint64_t u = 0;
    double x = 0;
    int i = 0, count = 0;

    text[0] = '\0';
    switch (f->kind) {
    case FLAG_STRING:
        memcpy(&s, at, sizeof s);
        snprintf(text, bytes, "%s", s ? s : "");
        break;
    case FLAG_INT:
        memcpy(&i, at, sizeof i);
        if (i >= f->min)
            snprintf(text, bytes, "%d", i);
        break;
    case FLAG_INT64:
        memcpy(&n, at, sizeof n);
        if ((double)n >= f->min)
            snprintf(text, bytes, "%lld", (long long)n);
        break;
    case FLAG_UINT64:
        memcpy(&u, at, sizeof u);
        snprintf(text, bytes, "%llu", (unsigned long long)u);
        break;
    case FLAG_DOUBLE:
        memcpy(&x, at, sizeof x);
        if (!isnan(x))
            snprintf(text, bytes, "%s", format_exact(x).s);
        break;
    case FLAG_BOOL: snprintf(text, bytes, "%s", *(const bool *)at ? "yes" : "no"); break;
    case FLAG_TRISTATE:
        memcpy(&i, at, sizeof i);
        if (i >= 0)
            snprintf(text, bytes, "%s", i ? "yes" : "no");
        break;
    case FLAG_CHOICE:
        memcpy(&i, at, sizeof i);
        for (const flag_choice *c = f->choices; c->name && !text[0]; c++)
            if (c->value == i)
                snprintf(text, bytes, "%s", c->name);
        break;
    case FLAG_INTS:
        memcpy(&count, (const char *)o + f->count_at, sizeof count);
        for (int k = 0; k < count; k++) {
            size_t used = strlen(text);
            memcpy(&i, (const char *)o + f->store + (size_t)k * sizeof i, sizeof i);
            snprintf(text + used, bytes - used, "%s%d", k ? " " : "", i);
        }
        break;
    case FLAG_GROUP: break;
    }
}

bool flags_given(const cli_options *o, const char *name)
{
    static cli_options defaults;
    char value[600], other[600];
    int i = flags_find(name);
    const flag *f = NULL;
    int n = 0;

    if (i < 0 || o->origin[i] != ORIGIN_FILE)
        return i >= 0 && o->origin[i] == ORIGIN_LINE;
    f = &flags_table(&n)[i];
    flags_init(&defaults);
    flags_value(value, sizeof value, f, o);
    flags_value(other, sizeof other, f, &defaults);
    return strcmp(value, other) != 0 && (other[0] || !f->peer || strcmp(value, f->peer) != 0);
}

/* What stands before the value: "--lr" or "run.yaml:7: train.optimizer.lr" */
static void place(char *text, size_t bytes, const cli_options *o, const char *name)
{
    int i = flags_find(name);

    if (o->origin[i] == ORIGIN_FILE)
        config_place(text, bytes, o, i, o->line[i]);
    else
        snprintf(text, bytes, "--%s", name);
}

/* "--num-layers 2" as it stands on the command line, or "run.yaml:7: train.draft.num_layers: 2" */
static void spell(char *text, size_t bytes, const cli_options *o, const char *name)
{
    int i = flags_find(name), n = 0;
    const flag *f = &flags_table(&n)[i];
    char value[200] = "", where[PLACE_BYTES];

    flags_value(value, sizeof value, f, o);
    place(where, sizeof where, o, name);
    if (flags_is_switch(f) && o->origin[i] == ORIGIN_FILE)
        snprintf(text, bytes, "%s: %s", where, value[0] == 'y' ? "true" : "false");
    else if (flags_is_switch(f))
        snprintf(text, bytes, "--%s%s", value[0] == 'y' ? "" : "no-", name);
    else
        snprintf(text, bytes, "%s%s%s", where, o->origin[i] == ORIGIN_FILE ? ": " : " ", value);
}

static int fail_pair(const cli_options *o, const char *a, const char *b, const char *why)
{
    char first[PLACE_BYTES + 200], second[PLACE_BYTES + 200];

    spell(first, sizeof first, o, a);
    spell(second, sizeof second, o, b);
    return cli_fail(EXIT_BAD_INPUT, "%s and %s exclude each other: %s", first, second, why);
}

static const char *const shaping[] = {
    "num-layers", "draft-arch", "draft-hidden-act", "sliding-window", "full-attention-indices",
    NULL};
static const char *const switches[] = {
    "norm-before-residual", "norm-before-fc",   "norm-output", "fc-norm",
    "embed-requires-grad",  "target-layer-ids", NULL};

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names;
}

bool flags_decided(const cli_options *o, const flag *f)
{
    bool decided = o->train.from_pretrained
                       ? is_one_of(f->name, shaping) || is_one_of(f->name, switches)
                       : o->train.draft_config && is_one_of(f->name, shaping);

    return decided && !flags_given(o, f->name);
}

/* The draft's decoder is defined in exactly one way. */
static int check_draft(const cli_options *o)
{
    const char *owner = o->train.from_pretrained ? "from-pretrained"
                        : o->train.draft_config  ? "draft-config"
                                                 : NULL;

    if (o->train.from_pretrained && o->train.draft_config)
        return fail_pair(o, "from-pretrained", "draft-config",
                         "the checkpoint has a config of its own");
    for (const char *const *name = shaping; owner && *name; name++)
        if (flags_given(o, *name))
            return fail_pair(o, owner, *name, "the config defines the draft's layers");
    for (const char *const *name = switches; o->train.from_pretrained && *name; name++)
        if (flags_given(o, *name))
            return fail_pair(o, "from-pretrained", *name, "the checkpoint's config decides");
    return 0;
}

static int check_norms(const cli_options *o)
{
    if (!o->train.fc_norm || o->train.norm_before_fc == 0)
        return 0;
    if (o->train.norm_before_fc == 1)
        return fail_pair(o, "fc-norm", "norm-before-fc", "one norm or the other");
    if (o->train.from_pretrained)
        return 0; /* its config says which */
    return cli_fail(EXIT_BAD_INPUT, "--fc-norm and --norm-before-fc (the default) exclude each "
                                    "other: add --no-norm-before-fc");
}

int flags_check_maps(const cli_options *o)
{
    const accrue_train_options *t = &o->train;
    char given[PLACE_BYTES + 200];

    if (!t->d2t_path == !t->t2d_path)
        return 0;
    spell(given, sizeof given, o, t->d2t_path ? "d2t-path" : "t2d-path");
    return cli_fail(EXIT_BAD_INPUT, "%s needs --%s, which is not given", given,
                    t->d2t_path ? "t2d-path" : "d2t-path");
}

int flags_check(const cli_options *o)
{
    const accrue_train_options *t = &o->train;
    char where[PLACE_BYTES + 200];
    unsigned loggers = 0;
    int bad = 0;

    if (!t->verifier)
        return cli_fail(EXIT_BAD_INPUT, "--verifier-name-or-path is missing");
    bad = check_draft(o);
    if (!bad)
        bad = check_norms(o);
    if (bad)
        return bad;
    bad = flags_check_maps(o);
    if (bad)
        return bad;
    if (flags_given(o, "scheduler-warmup-steps") && flags_given(o, "scheduler-warmup-ratio"))
        return fail_pair(o, "scheduler-warmup-steps", "scheduler-warmup-ratio",
                         "both say how long the warm-up is");
    if (flags_given(o, "gradient-accumulation-steps") && flags_given(o, "global-window"))
        return fail_pair(o, "gradient-accumulation-steps", "global-window",
                         "both say how long the window is");
    if (t->checkpoint_freq > 1 && t->checkpoint_freq > floor(t->checkpoint_freq)) {
        place(where, sizeof where, o, "checkpoint-freq");
        return cli_fail(EXIT_BAD_INPUT, "%s: %s, a whole number of epochs expected above 1", where,
                        format_exact(t->checkpoint_freq).s);
    }
    place(where, sizeof where, o, "run-name");
    bad = loggers_check_name(where, o->run_name);
    return bad ? bad : loggers_parse(&loggers, o->logger);
}
