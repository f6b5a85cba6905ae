/* flag_help.c - the table as --help and as the man page.  argp's renderer loses its column behind
 * some long flags, so the two columns are set here. */
#include "flags.h"

#include "cli.h"

#include <string.h>

#define DOC_BYTES   700
#define FLAG_COLUMN 6
#define TEXT_COLUMN 29
#define TEXT_END    79

/* What a flag takes: "N", "{adamw,muon}", or nothing for a switch. */
static void describe_argument(char *s, size_t bytes, const flag *f)
{
    s[0] = '\0';
    if (!f->choices) {
        snprintf(s, bytes, "%s",
                 f->arg && f->kind != FLAG_BOOL && f->kind != FLAG_TRISTATE ? f->arg : "");
        return;
    }
    for (const flag_choice *c = f->choices; c->name; c++) {
        size_t used = strlen(s);
        if (c->value != CHOICE_LATER)
            snprintf(s + used, bytes - used, "%s%s", used ? "," : "{", c->name);
    }
    size_t used = strlen(s);
    snprintf(s + used, bytes - used, "}");
}

static void describe_default(char *s, size_t bytes, const flag *f, const cli_options *o,
                             unsigned command)
{
    char value[200];

    s[0] = '\0';
    if (f->role != ROLE_USED || f->kind == FLAG_GROUP || !strcmp(f->name, "help"))
        return;
    flags_value(value, sizeof value, f, o);
    if (f->unset && strcmp(f->unset, "required") == 0)
        snprintf(s, bytes, "%s",
                 command == FOR_CHECK ? ""
                 : command == FOR_EVAL && f->commands & FOR_TRAIN
                     ? " (default: the one that the checkpoint names)"
                     : " (required)");
    else if (value[0])
        snprintf(s, bytes, " (default: %s)", value);
    else if (f->unset)
        snprintf(s, bytes, " (default: %s)", f->unset);
}

/* "default: yes" on a switch means that its negation is the one to type. */
static bool has_negation(const flag *f)
{
    return (f->kind == FLAG_BOOL || f->kind == FLAG_TRISTATE) && f->role == ROLE_USED &&
           strncmp(f->name, "no-", 3) != 0 && strcmp(f->name, "help") != 0 &&
           strcmp(f->name, "json") != 0 && strcmp(f->name, "dry-run") != 0 &&
           strcmp(f->name, "dump-config") != 0;
}

static void defaults_of(cli_options *o, unsigned command)
{
    flags_init(o);
    if (command == FOR_VERIFY)
        o->train.compute = ACCRUE_F64;
    if (command == FOR_PREPARE)
        o->train.seed = o->prepare.seed;
}

static const struct {
    unsigned command;
    const char *name, *usage, *does, *more;
} commands[] = {
    {FOR_IMPORT, "import", " MODEL.gguf",
     "Write a GGUF file's model as a Hugging Face folder: configuration, safetensors, and the "
     "tokenizer where the file carries a byte-level BPE vocabulary.",
     "A folder that is a finished import of the same file is left as it is.\n"
     "Exit status: 0 done; 1 failed while writing, and nothing is left; 2 bad input: a flag, a "
     "value or a file; 130 stopped by SIGINT, 143 by SIGTERM, 129 by SIGHUP."},
    {FOR_GENERATE, "generate", " DATA.jsonl",
     "Answer the conversations of a data set anew with the verifier: drafts are trained on what it "
     "says. Every user turn is answered, with the answers before it in view.",
     "A line of DATA has 'messages' or 'conversations' (role and content, or from and value), or a "
     "'prompt'. The same command goes on where it was stopped, and ends with the same file.\n"
     "Exit status: 0 done; 1 failed while running; 2 bad input: a flag, a value or a file; 130 "
     "stopped by SIGINT, 143 by SIGTERM, 129 by SIGHUP."},
    {FOR_PREPARE, "prepare", " FILE.jsonl...",
     "Make the data set that accrue train and speculators train read out of conversations, texts, "
     "or rows of tokens, one on a line. Ids, masks and order are those of speculators "
     "prepare-data.",
     "A line is an object with 'conversations' or 'messages' (role and content, or from and "
     "value), 'prompt' with 'completion' or 'response', 'text', or 'input_ids' with 'loss_mask'. "
     "Each answer of a conversation becomes a row.\n"
     "Exit status: 0 done, or there already; 1 failed while running; 2 bad input: a flag, a value "
     "or a file; 130 stopped by SIGINT, 143 by SIGTERM, 129 by SIGHUP."},
    {FOR_EXTRACT, "extract", "",
     "Make the hidden states of the verifier for the rows of a data set, as files that accrue "
     "train "
     "and speculators train read. Files that are there and whole are kept; the same command goes "
     "on where it was stopped.",
     "Exit status: 0 done; 1 failed while running; 2 bad input: a flag, a value or a file, or a "
     "disk without room for all; 130 stopped by SIGINT, 143 by SIGTERM, 129 by SIGHUP."},
    {FOR_TRAIN, "train", "",
     "Train an EAGLE-3 draft model for a verifier. The flags have the names and defaults of "
     "speculators train.",
     "Every --flag of a yes or no has a --no-flag; underscores pass for dashes; of a repeated flag "
     "the last one wins.\n"
     "Exit status: 0 done, or stopped by SIGTERM or SIGHUP; 1 failed while running; 2 bad input: a "
     "flag, a value or a file; 130 stopped by SIGINT."},
    {FOR_VERIFY, "verify", "",
     "Compare one accumulated window of your data, and the update it makes, with a reference "
     "computed in one piece.",
     "The other flags of accrue train are accepted and change nothing here.\n"
     "Exit status: 0 equal within the bound; 1 not; 2 bad input: a flag, a value or a file."},
    {FOR_EVAL, "eval", " CHECKPOINT",
     "Measure a draft by speculative decoding with its verifier: answer prompts greedily, plainly "
     "and by way of the draft, and show how many drafted tokens are accepted and what that saves.",
     "Exit status: 0 every answer is the verifier's own; 1 one is not, or failed while running; 2 "
     "bad input: a flag, a value or a file."},
    {FOR_EXPORT, "export", " CHECKPOINT",
     "Write an EAGLE-3 draft as the GGUF file that llama.cpp reads, byte for byte its own "
     "converter's, and say what llama.cpp will do otherwise than training did.",
     "FILE is replaced where it is a GGUF file, and is whole or not there. What llama.cpp cannot "
     "do "
     "at all is refused by name.\n"
     "Exit status: 0 done; 1 failed while writing; 2 bad input: a flag, a value or a file; 130 "
     "stopped by SIGINT, 143 by SIGTERM, 129 by SIGHUP."},
    {FOR_CHECK, "check", " DATA",
     "Read a data set, its hidden states and vocabulary maps whole and show every fault: "
     "everything that accrue train would stop at or leave out. Sizes that no flag gives are "
     "those of the first row.",
     "Exit status: 0 no fault; 2 faults, or bad input: a flag, a value or a file."},
    {FOR_INSPECT, "inspect", " DIR",
     "Show what a data set, checkpoint or verifier folder contains.",
     "Exit status: 0 done; 2 DIR cannot be read or is none of these."},
    {FOR_PLOT, "plot", " DIR...", "Draw training runs over each other and sum them up in a table.",
     "Each DIR is a run's --save-path, or a folder of a logger, speculators' too: metrics.jsonl, "
     "metrics.csv or TensorBoard's event files are read.\n"
     "Exit status: 0 done; 1 the picture cannot be written; 2 bad input, and nothing is written."},
};

static const int n_commands = (int)(sizeof commands / sizeof *commands);

/* Whether the heading at `i` has a flag of this command under it. */
static bool heads_some(const flag *flags, int n, int i, unsigned command)
{
    for (i++; i < n && flags[i].kind != FLAG_GROUP; i++)
        if (flags[i].commands & command)
            return true;
    return false;
}

/* Words from `column` to TEXT_END, where the line already stands at it. */
static void put_text(FILE *out, int column, const char *text)
{
    int at = column;

    while (*text) {
        int len = (int)strcspn(text, " ");
        if (at > column && at + 1 + len > TEXT_END) {
            fprintf(out, "\n%*s", column, "");
            at = column;
        }
        at += fprintf(out, "%s%.*s", at > column ? " " : "", len, text);
        text += len + (text[len] == ' ');
    }
    fputc('\n', out);
}

static void put_flag(FILE *out, const flag *f, const cli_options *o, unsigned command)
{
    char arg[200], value[300], names[300], doc[DOC_BYTES];
    bool no = has_negation(f);

    describe_argument(arg, sizeof arg, f);
    describe_default(value, sizeof value, f, o, command);
    snprintf(names, sizeof names, "--%s%s%s%s%s", f->name, arg[0] ? "=" : "", arg,
             no ? ", --no-" : "", no ? f->name : "");
    snprintf(doc, sizeof doc, "%s%s", f->help, value);
    int at = fprintf(out, "%*s%s", FLAG_COLUMN, "", names);
    if (at + 2 > TEXT_COLUMN) {
        fputc('\n', out);
        at = 0;
    }
    fprintf(out, "%*s", TEXT_COLUMN - at, "");
    put_text(out, TEXT_COLUMN, doc);
}

void flags_help(FILE *out, unsigned command)
{
    static cli_options o;
    size_t c = 0;
    int n = 0;
    const flag *flags = flags_table(&n);

    while (commands[c].command != command)
        c++;
    defaults_of(&o, command);
    fprintf(out, "Usage: accrue %s [FLAG...]%s\n", commands[c].name, commands[c].usage);
    put_text(out, 0, commands[c].does);
    if (!(command & (FOR_TRAIN | FOR_VERIFY)))
        fputc('\n', out);
    for (int i = 0; i < n; i++) {
        if (!(flags[i].commands & command))
            continue;
        if (flags[i].kind != FLAG_GROUP)
            put_flag(out, &flags[i], &o, command);
        else if (command & (FOR_TRAIN | FOR_VERIFY) && heads_some(flags, n, i, command))
            fprintf(out, "\n %s:\n", flags[i].help);
    }
    for (const char *line = commands[c].more; *line;) {
        char text[DOC_BYTES];
        int len = (int)strcspn(line, "\n");
        snprintf(text, sizeof text, "%.*s", len, line);
        fputc('\n', out);
        put_text(out, 0, text);
        line += len + (line[len] == '\n');
    }
}

/* Text for roff: dashes of flags stay dashes, a leading dot or quote is no request. */
static void roff(FILE *out, const char *s)
{
    if (*s == '.' || *s == '\'')
        fputs("\\&", out);
    for (; *s; s++) {
        if (*s == '-')
            fputs("\\-", out);
        else if (*s == '\\')
            fputs("\\e", out);
        else
            fputc(*s, out);
    }
}

static void man_command(FILE *out, int c)
{
    fprintf(out, ".TP\n.B accrue %s\n", commands[c].name);
    roff(out, commands[c].does);
    fputs("\n.br\n", out);
    for (const char *s = commands[c].more; *s; s++)
        fputs(*s == '\n' ? "\n.br\n" : *s == '-' ? "\\-" : (char[2]){*s}, out);
    fputc('\n', out);
}

/* Whose flag it is. */
static void man_commands(FILE *out, const flag *f)
{
    const char *before = "Of accrue ";

    for (int i = 0; i < n_commands; i++)
        if (f->commands & commands[i].command) {
            fprintf(out, "%s%s", before, commands[i].name);
            before = ", ";
        }
    fputs(".\n", out);
}

static void man_flag(FILE *out, const flag *f, const cli_options *o)
{
    char arg[200], value[300];

    describe_argument(arg, sizeof arg, f);
    describe_default(value, sizeof value, f, o, FOR_TRAIN);
    fputs(".TP\n.B ", out);
    roff(out, "--");
    roff(out, f->name);
    if (has_negation(f)) {
        fputs(", ", out);
        roff(out, "--no-");
        roff(out, f->name);
    }
    if (arg[0]) {
        fputs(" \\fI", out);
        roff(out, arg);
        fputs("\\fP", out);
    }
    fputc('\n', out);
    roff(out, f->help);
    roff(out, value);
    fputs(".\n", out);
    if (!(f->commands & FOR_TRAIN))
        man_commands(out, f);
    else if (!(f->commands & FOR_VERIFY) && f->role == ROLE_USED)
        fputs("Training only.\n", out);
}

void flags_man(FILE *out)
{
    static cli_options o;
    int n = 0;
    const flag *flags = flags_table(&n);

    defaults_of(&o, FOR_TRAIN);
    fprintf(out,
            ".TH ACCRUE 1 \"\" \"accrue %s\" \"User Commands\"\n"
            ".SH NAME\naccrue \\- train speculative\\-decoding draft models with exact gradient "
            "accumulation\n",
            accrue_version());
    fputs(".SH SYNOPSIS\n", out);
    for (int c = 0; c < n_commands; c++) {
        fprintf(out, ".B accrue %s\n[\\fIFLAG\\fP...]", commands[c].name);
        roff(out, commands[c].usage);
        fputs("\n.br\n", out);
    }
    fputs(".SH DESCRIPTION\n", out);
    for (int c = 0; c < n_commands; c++)
        man_command(out, c);
    fputs(".SH OPTIONS\n"
          "Underscores pass for dashes; of a repeated flag the last one wins.\n",
          out);
    for (int i = 0; i < n; i++) {
        if (flags[i].kind == FLAG_GROUP && flags[i].commands)
            fprintf(out, ".SS %s\n", flags[i].help);
        else if (flags[i].commands)
            man_flag(out, &flags[i], &o);
    }
    fputs(
        ".SH EXIT STATUS\n"
        ".TP\n.B 0\nDone, or stopped by SIGTERM or SIGHUP and saved; for verify, equal within the "
        "bound.\n"
        ".TP\n.B 1\nFailed while running; for verify, not equal.\n"
        ".TP\n.B 2\nBad input: a flag, a value or a file; for check, faults. One line on stderr "
        "says which.\n"
        ".TP\n.B 130\nStopped by SIGINT and saved.\n"
        ".SH SIGNALS\n"
        "SIGTERM, SIGINT and SIGHUP let a training run finish its window (\\-\\-grace), save and "
        "stop; the same command goes on. A second one ends it at once, which harms no checkpoint. "
        "SIGUSR1 has it saved at the end of the window.\n"
        ".SH FILES\n"
        "In the folder of \\-\\-save\\-path: a checkpoint folder per epoch, "
        "\\fImetrics.jsonl\\fP with one record per logged optimizer step and per validation, "
        "\\fItraining.svg\\fP, \\fIrun.yaml\\fP with the configuration and the origin of every "
        "value, for \\-\\-config, and \\fIskipped_samples.jsonl\\fP where rows were left out. With "
        "\\-\\-logger, logs in the folder of \\-\\-run\\-name below \\-\\-log\\-dir. A run that "
        "begins anew moves earlier ones aside.\n",
        out);
}
