/* flags.h - the flags of every command, in one table: the parser, --help, the man page, the YAML
 * configuration and the "did you mean" of an unknown name all read it. */
#ifndef ACR_CLI_FLAGS_H
#define ACR_CLI_FLAGS_H

#include "accrue/accrue.h"

#include <stdio.h>

#define MAX_LIST  64
#define MAX_FLAGS 192
#define MAX_DIRS  16

typedef enum flag_origin { ORIGIN_DEFAULT, ORIGIN_LINE, ORIGIN_FILE } flag_origin;

/* What the command line and the file of --config say.  Filled with the library's defaults, then by
 * flags_parse. */
typedef struct cli_options {
    accrue_train_options train;
    int threads;
    int64_t log_freq;
    double grace; /* seconds */
    bool dry_run, json, help, dump_config;
    const char *config;
    const char *logger, *log_dir, *run_name;
    const char *out, *title;
    accrue_export_dtype export_dtype;
    accrue_import_dtype import_dtype;
    int64_t smooth;
    accrue_prepare_options prepare;   /* less what is in `train` and `dirs` */
    accrue_eval_options eval;         /* likewise */
    accrue_generate_options generate; /* likewise */
    const char *dirs[MAX_DIRS];       /* what follows the command without a flag's name */
    int n_dirs;
    int target_layer_ids[MAX_LIST], full_attention_indices[MAX_LIST];
    flag_origin origin[MAX_FLAGS]; /* by index into the table */
    int line[MAX_FLAGS];           /* in the file */
    char stage[8];                 /* what its keys stand under: "train." or nothing */
} cli_options;

enum {
    FOR_TRAIN = 1,
    FOR_VERIFY = 2,
    FOR_INSPECT = 4,
    FOR_PLOT = 8,
    FOR_CHECK = 16,
    FOR_IMPORT = 32,
    FOR_PREPARE = 64,
    FOR_GENERATE = 128,
    FOR_EXTRACT = 256,
    FOR_EVAL = 512,
    FOR_EXPORT = 1024
};

typedef enum flag_kind {
    FLAG_GROUP, /* a heading, or, without `help`, just a section of the configuration */
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
    const char *peer;    /* ROLE_LATER: the one value accepted, as it is what accrue does;
                          * ROLE_IGNORED: the one that needs no notice;
                          * else what a configuration holds for unset, where that is not null */
    const char *expects; /* FLAG_STRING: where '' is not unset but refused, "a file" */
    const char *unset;   /* how the help words a default that is not a value */
    const char *also;    /* what others call it: a hint for "did you mean", not accepted */
    const char *instead; /* a line's end that says what to do where a choice is not supported */
    const char *section; /* FLAG_GROUP: of the keys below it, "" the stage itself, NULL no keys */
    const char *help;
} flag;

const flag *flags_table(int *count);
/* The section of flag `i`; NULL where it is no key of a configuration. */
const char *flags_section(int i);
int flags_find(const char *name); /* an index, or -1 */
/* The flag's own name for one of another program (`also`); any other unchanged. */
const char *flags_proper(const char *name);
bool flags_is_switch(const flag *f);

void flags_init(cli_options *o);
/* 0, or the exit code after a line on stderr.  argv[0] is the command's name.  What --config names
 * is read too, beneath the command line. */
int flags_parse(cli_options *o, unsigned command, int argc, char **argv);
/* Pairs that contradict each other and values that only make sense together; as flags_parse. */
int flags_check(const cli_options *o);
/* Of those the maps alone. */
int flags_check_maps(const cli_options *o);
/* Whether `name` was set; by a file only where it says something else than the default, because a
 * dumped configuration holds the defaults too. */
bool flags_given(const cli_options *o, const char *name);
/* Whether another flag decides what this one, unset, would say. */
bool flags_decided(const cli_options *o, const flag *f);
/* The value that `f` has in `o`, "" when it is unset. */
void flags_value(char *text, size_t bytes, const flag *f, const cli_options *o);

/* Values: `where` begins the message of one that is refused, "--lr" or "run.yaml:7: train.lr". */

int flag_read(cli_options *o, const flag *f, const char *where, const char *value);
/* Adds the numbers of "2" or "2,15,27" to the n that a list has so far. */
int flag_read_list(cli_options *o, const flag *f, const char *where, const char *value, int *n);
void flag_set_list(cli_options *o, const flag *f, int n);
void flag_set_switch(cli_options *o, const flag *f, bool on);
/* Whether `value` is the one that the peer has where nothing is said. */
bool flag_is_peers(const flag *f, const char *value);
/* Whether ROLE_LATER's `f` can have this value. */
int flag_check_later(const flag *f, const char *where, const char *value);

void flags_help(FILE *out, unsigned command);
void flags_man(FILE *out);

/* The candidate nearest to `word`, or NULL when none resembles it. */
const char *nearest_name(const char *word, const char *(*candidate)(int i, void *ctx), int n,
                         void *ctx);
/* The same within `most` letters added, left out, replaced or swapped. */
const char *nearest_within(int most, const char *word, const char *(*candidate)(int i, void *ctx),
                           int n, void *ctx);

/* Configuration --------------------------------------------------------------------------- */

#define PLACE_BYTES 800
/* "run.yaml:7: train.optimizer.lr" for flag `i` */
void config_place(char *text, size_t bytes, const cli_options *o, int i, int line);
/* Sets what the file o->config says and the command line does not; as flags_parse. */
int config_load(cli_options *o, unsigned command);
void config_dump(const cli_options *o, FILE *out);
/* Writes run.yaml into the run's folder; -1 after a line in `failure`. */
int config_save(const cli_options *o, char *failure, size_t bytes);

#endif
