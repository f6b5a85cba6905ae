/* main.c - the table of commands. */
#include "cli.h"

#include "flags.h"

#include <fcntl.h>
#include <string.h>

static int cmd_help(int argc, char **argv);

/* The build makes the man page with it; not a command for people. */
static int cmd_man(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    flags_man(stdout);
    return cli_finish(EXIT_SUCCESS);
}

static int cmd_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    printf("accrue %s\n", accrue_version());
    return cli_finish(EXIT_SUCCESS);
}

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    unsigned flags;  /* whose help `accrue help NAME` shows; 0: none */
    const char *doc; /* NULL: not listed */
} commands[] = {
    {"import", cmd_import, FOR_IMPORT, "write a GGUF file's model as a Hugging Face folder"},
    {"generate", cmd_generate, FOR_GENERATE, "have the verifier answer a data set's prompts"},
    {"prepare", cmd_prepare, FOR_PREPARE, "make a data set of conversations, texts or tokens"},
    {"extract", cmd_extract, FOR_EXTRACT, "make the verifier's hidden states for a data set"},
    {"train", cmd_train, FOR_TRAIN, "train a draft model"},
    {"verify", cmd_verify, FOR_VERIFY, "prove gradient accumulation on your own data"},
    {"eval", cmd_eval, FOR_EVAL, "measure what speculative decoding gains from a draft"},
    {"export", cmd_export, FOR_EXPORT, "write a draft as llama.cpp reads it"},
    {"check", cmd_check, FOR_CHECK, "read a data set whole and show every fault"},
    {"inspect", cmd_inspect, FOR_INSPECT, "show what a data set, checkpoint or verifier contains"},
    {"plot", cmd_plot, FOR_PLOT, "draw training runs over each other"},
    {"help", cmd_help, 0, "show this, or the help of a command"},
    {"--help", cmd_help, 0, NULL},
    {"-h", cmd_help, 0, NULL},
    {"--version", cmd_version, 0, NULL},
    {"man", cmd_man, 0, NULL},
};

static const int n_commands = (int)(sizeof commands / sizeof commands[0]);

static const struct command *find_command(const char *name)
{
    for (int i = 0; i < n_commands; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static const char *command_candidate(int i, void *ctx)
{
    (void)ctx;
    return commands[i].doc || commands[i].run == cmd_version ? commands[i].name : NULL;
}

static int fail_command(const char *name)
{
    const char *near = nearest_name(name, command_candidate, n_commands, NULL);

    if (near)
        return cli_fail(EXIT_BAD_INPUT, "unknown command '%s'; did you mean '%s'?", name, near);
    return cli_fail(EXIT_BAD_INPUT, "unknown command '%s'; see accrue help", name);
}

static void print_usage(FILE *out)
{
    fprintf(out, "Usage: accrue COMMAND [FLAG...]\n"
                 "Train speculative-decoding draft models with exact gradient accumulation.\n\n");
    for (int i = 0; i < n_commands; i++)
        if (commands[i].doc)
            fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].doc);
    fprintf(out, "\n  accrue COMMAND --help lists a command's flags; accrue --version.\n");
}

static int cmd_help(int argc, char **argv)
{
    const struct command *c = NULL;

    if (argc < 2) {
        print_usage(stdout);
        return cli_finish(EXIT_SUCCESS);
    }
    c = find_command(argv[1]);
    if (!c || !c->doc)
        return fail_command(argv[1]);
    if (c->flags)
        flags_help(stdout, c->flags);
    else
        print_usage(stdout);
    return cli_finish(EXIT_SUCCESS);
}

/* A closed standard stream would give its number to the next file, and that file its output. */
static void open_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", O_RDWR);
}

int main(int argc, char **argv)
{
    const struct command *c = NULL;

    open_streams();
    signals_of_files();
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_BAD_INPUT;
    }
    c = find_command(argv[1]);
    if (!c)
        return fail_command(argv[1]);
    return c->run(argc - 1, argv + 1);
}
