/* flags.h - the flags of every command, in one table: the parser, --help, the man page and the
 * "did you mean" of an unknown flag all read it. */
#ifndef ACR_CLI_FLAGS_H
#define ACR_CLI_FLAGS_H

#include "accrue/accrue.h"

#include <stdio.h>

#define MAX_LIST  64
#define MAX_FLAGS 192

/* What a command line says.  Filled with the library's defaults, then by flags_parse. */
typedef struct cli_options {
    accrue_train_options train;
    int threads;
    int64_t log_freq;
    bool dry_run, json, help;
    const char *dir; /* accrue inspect DIR, accrue check DATA */
    int target_layer_ids[MAX_LIST], full_attention_indices[MAX_LIST];
    bool given[MAX_FLAGS]; /* by index into the table */
    bool notice;           /* a flag without meaning here was given */
} cli_options;

enum { FOR_TRAIN = 1, FOR_VERIFY = 2, FOR_INSPECT = 4, FOR_CHECK = 8 };

typedef enum flag_kind {
    FLAG_GROUP, /* a heading: `help` alone */
    FLAG_STRING,
    FLAG_INT,
    FLAG_INT64,
    FLAG_UINT64,
    FLAG_DOUBLE,
    FLAG_BOOL,     /* --x, --no-x */
    FLAG_TRISTATE, /* the same, an int that is -1 while unset */
    FLAG_CHOICE,   /* an enum */
    FLAG_INTS      /* int list: pointer at `at`, count at `count_at`, numbers at `store` */
} flag_kind;

typedef enum flag_role {
    ROLE_USED,
    ROLE_IGNORED, /* has no meaning here: one notice */
    ROLE_LATER    /* not supported yet: an error unless the value is `peer` */
} flag_role;

typedef struct flag_choice {
    const char *name;
    int value; /* CHOICE_LATER: known, not supported yet */
} flag_choice;

#define CHOICE_LATER (-1)

typedef struct flag {
    const char *name;
    flag_kind kind;
    flag_role role;
    unsigned commands; /* whose --help shows it; train and verify accept each other's */
    size_t at, count_at, store;
    const char *arg;
    double min, max;
    bool above; /* min itself is excluded */
    const flag_choice *choices;
    const char *peer;  /* ROLE_LATER: the one value accepted, as it is what accrue does */
    const char *unset; /* how the help words a default that is not a value */
    const char *help;
} flag;

const flag *flags_table(int *count);

void flags_init(cli_options *o);
/* 0, or the exit code after a line on stderr.  argv[0] is the command's name. */
int flags_parse(cli_options *o, unsigned command, int argc, char **argv);
/* Pairs that contradict each other and values that only make sense together; as flags_parse. */
int flags_check(const cli_options *o);
/* Of those the maps alone. */
int flags_check_maps(const cli_options *o);
bool flags_given(const cli_options *o, const char *name);
/* The value that `f` has in `o`, "" when it is unset. */
void flags_value(char *text, size_t bytes, const flag *f, const cli_options *o);

void flags_help(FILE *out, unsigned command);
void flags_man(FILE *out);

/* The candidate nearest to `word`, or NULL when none resembles it. */
const char *nearest_name(const char *word, const char *(*candidate)(int i, void *ctx), int n,
                         void *ctx);

#endif
