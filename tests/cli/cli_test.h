/* cli_test.h - runs the real command line over fake_accrue.c and keeps what it printed. */
#ifndef TEST_CLI_TEST_H
#define TEST_CLI_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_ARGS     192
#define OUTPUT_BYTES 65536

static char out[OUTPUT_BYTES], err[OUTPUT_BYTES];

static inline void read_file(char *text, const char *path)
{
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    size_t n = fread(text, 1, OUTPUT_BYTES - 1, f);
    text[n] = '\0';
    fclose(f);
}

/* Splits at single spaces; a tilde stands for a space inside an argument. */
static inline void split(char **argv, char *line)
{
    int n = 0;

    argv[n++] = (char *)(uintptr_t)ACCRUE_FAKE;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        for (char *s = word; *s; s++)
            if (*s == '~')
                *s = ' ';
        if (strcmp(word, "''") == 0)
            word[0] = '\0';
        assert_true(n + 1 < MAX_ARGS);
        argv[n++] = word;
    }
    argv[n] = NULL;
}

static inline void exec_with(const char *command)
{
    char line[1000];
    char *argv[MAX_ARGS];

    snprintf(line, sizeof line, "%s", command);
    split(argv, line);
    execv(argv[0], argv);
    _exit(99);
}

/* Runs argv, whose first is ACCRUE_FAKE, and leaves what it printed in `out` and `err`. */
static inline int run_argv(char **argv, const char *stdout_path)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        int o = open(stdout_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        int e = open("cli.err", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(o, STDOUT_FILENO);
        dup2(e, STDERR_FILENO);
        execv(argv[0], argv);
        _exit(99);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    read_file(err, "cli.err");
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Begins "train --x y" beside the test; its output goes to cli.out and cli.err as that of run. */
static inline pid_t begin_run(const char *command)
{
    pid_t child = fork();

    if (child == 0) {
        int o = open("cli.out", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        int e = open("cli.err", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(o, STDOUT_FILENO);
        dup2(e, STDERR_FILENO);
        exec_with(command);
    }
    assert_true(child > 0);
    return child;
}

static inline void wait_for_text(const char *path)
{
    struct stat st;

    while (stat(path, &st) || st.st_size == 0)
        usleep(2000);
}

/* The exit code of what begin_run began; its output is in `out` and `err`. */
static inline int end_run(pid_t child)
{
    int status = 0;

    assert_int_equal(waitpid(child, &status, 0), child);
    read_file(out, "cli.out");
    read_file(err, "cli.err");
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Runs "train --x y". */
static inline int run_to(const char *command, const char *stdout_path)
{
    char line[2000];
    char *argv[MAX_ARGS];

    assert_true(strlen(command) < sizeof line);
    snprintf(line, sizeof line, "%s", command);
    split(argv, line);
    return run_argv(argv, stdout_path);
}

static inline int run(const char *command)
{
    int code = run_to(command, "cli.out");

    read_file(out, "cli.out");
    return code;
}

/* Exit code of a run whose terminal is `size` (NULL: any); what it drew is in `out`. */
static inline int run_on_terminal(const char *command, const struct winsize *size)
{
    int master = -1, status = 0;
    size_t n = 0;
    pid_t child = forkpty(&master, NULL, NULL, size);

    if (child == 0) {
        setenv("LC_ALL", "C", 1);
        setenv("TERM", "xterm", 1);
        exec_with(command);
    }
    assert_true(child > 0);
    for (;;) {
        ssize_t got = read(master, out + n, OUTPUT_BYTES - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    out[n] = '\0';
    close(master);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* As run, by a shell: for arguments that only one can say. */
static inline int run_by_shell(const char *name, const char *arguments)
{
    char command[1200];

    snprintf(command, sizeof command, "'%s' %s %s >cli.out 2>cli.err", ACCRUE_FAKE, name,
             arguments);
    int status = system(command);
    assert_true(WIFEXITED(status));
    read_file(out, "cli.out");
    read_file(err, "cli.err");
    return WEXITSTATUS(status);
}

static inline void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* Runs `command` with --config c.yaml, which holds `text`. */
static inline int run_with(const char *text, const char *command)
{
    char line[1600];

    write_text("c.yaml", text);
    snprintf(line, sizeof line, "%s --config c.yaml", command);
    return run(line);
}

static inline void expect_text(const char *where, const char *line)
{
    if (!strstr(where, line))
        fail_msg("'%s' not in:\n%s", line, where);
}

static inline void expect_option(const char *line)
{
    char text[OUTPUT_BYTES], wanted[400];

    read_file(text, "options.txt");
    snprintf(wanted, sizeof wanted, "\n%s\n", line);
    if (!strstr(text, wanted) && strncmp(text, line, strlen(line)) != 0)
        fail_msg("%s not in:\n%s", line, text);
}

static inline int count_lines(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static inline double number(const json_t *record, const char *outer, const char *key)
{
    const json_t *v = outer ? json_object_get(record, outer) : record;

    v = json_object_get(v, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static inline int64_t integer(const json_t *o, const char *key)
{
    assert_true(json_is_integer(json_object_get(o, key)));
    return json_integer_value(json_object_get(o, key));
}

static inline json_t *load_records(const char *path)
{
    FILE *f = fopen(path, "r");
    json_t *records = json_array();
    char line[8192];

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *record = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(record);
        json_array_append_new(records, record);
    }
    fclose(f);
    return records;
}

#endif
