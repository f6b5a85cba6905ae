/* log_file.c - a file that grows record by record.  It is opened first and changed after, so that a
 * run that cannot open all of its logs has changed none; what another run wrote is not lost. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_there(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static bool is_fifo(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 && S_ISFIFO(s.st_mode);
}

int log_file_open(log_file *log, const char *folder, const char *name)
{
    *log = (log_file){.path = cli_path(folder, name)};
    log->made = !is_there(log->path);
    if (!log->made && is_fifo(log->path)) { /* opening it would wait for a reader */
        errno = ESPIPE;
        return -1;
    }
    log->file = fopen(log->path, "ae");
    return log->file ? 0 : -1;
}

static int reopen(log_file *log)
{
    if (log->file)
        fclose(log->file);
    log->file = fopen(log->path, "ae");
    return log->file ? 0 : -1;
}

/* As the checkpoints do: the first name that is free. */
static int move_aside(const log_file *log, const char *why)
{
    size_t bytes = strlen(log->path) + 32;
    char *aside = cli_realloc(NULL, bytes, 1);
    int failed = 0, k = 0;

    do
        snprintf(aside, bytes, "%s.aside-%d", log->path, ++k);
    while (is_there(aside));
    failed = rename(log->path, aside);
    if (!failed)
        cli_notice("%s %s and is kept as %s", log->path, why, aside);
    free(aside);
    return failed;
}

/* What can be cut or moved; /dev/null cannot. */
static bool is_file(const log_file *log, off_t *size)
{
    struct stat st;

    if (fstat(fileno(log->file), &st) || !S_ISREG(st.st_mode))
        return false;
    *size = st.st_size;
    return true;
}

int log_file_begin(log_file *log)
{
    off_t size = 0;

    if (!is_file(log, &size) || !size)
        return 0;
    return move_aside(log, "is of an earlier run") || reopen(log) ? -1 : 0;
}

/* Cutting --------------------------------------------------------------------------------- */

typedef struct range {
    off_t from, to;
} range;

typedef struct kept_lines {
    range *at; /* what follows without a gap is one */
    size_t n;
    bool damaged; /* a line other than the last is broken */
} kept_lines;

static void keep_line(kept_lines *k, off_t from, off_t to)
{
    if (k->n && k->at[k->n - 1].to == from) {
        k->at[k->n - 1].to = to;
        return;
    }
    k->at = cli_realloc(k->at, k->n + 1, sizeof *k->at);
    k->at[k->n++] = (range){from, to};
}

static int find_lines(kept_lines *k, FILE *in, log_line (*judge)(char *, size_t, void *), void *ctx)
{
    char *line = NULL;
    size_t capacity = 0;
    bool broken = false;
    off_t at = 0;

    for (;;) {
        ssize_t n = getline(&line, &capacity, in);
        if (n <= 0)
            break;
        log_line kind = line[n - 1] == '\n' ? judge(line, (size_t)n, ctx) : LINE_BROKEN;
        k->damaged |= broken;
        broken = kind == LINE_BROKEN;
        if (kind == LINE_KEPT)
            keep_line(k, at, at + n);
        at += n;
    }
    free(line);
    return ferror(in) ? -1 : 0;
}

static int copy_lines(const kept_lines *k, FILE *in, const char *path)
{
    FILE *out = fopen(path, "we");
    int failed = 0;

    if (!out)
        return -1;
    for (size_t i = 0; i < k->n && !failed; i++) {
        failed = fseeko(in, k->at[i].from, SEEK_SET);
        for (off_t left = k->at[i].to - k->at[i].from; left > 0 && !failed;) {
            char block[65536];
            size_t n = left < (off_t)sizeof block ? (size_t)left : sizeof block;
            failed = fread(block, 1, n, in) < n || fwrite(block, 1, n, out) < n;
            left -= (off_t)n;
        }
    }
    if (fclose(out) || failed) {
        unlink(path);
        return -1;
    }
    return 0;
}

/* Puts the lines that are kept in the place of the file. */
static int rewrite(log_file *log, const kept_lines *k, FILE *in)
{
    size_t bytes = strlen(log->path) + sizeof ".tmp";
    char *temporary = cli_realloc(NULL, bytes, 1);

    snprintf(temporary, bytes, "%s.tmp", log->path);
    int failed = copy_lines(k, in, temporary);
    if (!failed && k->damaged)
        failed = move_aside(log, "has broken lines");
    if (!failed)
        failed = rename(temporary, log->path) || reopen(log);
    free(temporary);
    return failed ? -1 : 0;
}

int log_file_cut(log_file *log, log_line (*judge)(char *line, size_t bytes, void *ctx), void *ctx)
{
    kept_lines k = {0};
    off_t size = 0;
    int failed = 0;

    if (!is_file(log, &size) || !size)
        return 0;
    FILE *in = fopen(log->path, "re");
    if (!in)
        return -1;
    failed = find_lines(&k, in, judge, ctx);
    bool prefix = !k.n || (k.n == 1 && k.at[0].from == 0);
    if (!failed && (k.damaged || !prefix))
        failed = rewrite(log, &k, in);
    else if (!failed)
        failed = ftruncate(fileno(log->file), k.n ? k.at[0].to : 0);
    fclose(in);
    free(k.at);
    return failed ? -1 : 0;
}

/* Writing --------------------------------------------------------------------------------- */

int log_file_append(log_file *log, const char *text, size_t bytes)
{
    return fwrite(text, 1, bytes, log->file) == bytes && !fflush(log->file) ? 0 : -1;
}

bool log_file_gone(const log_file *log)
{
    struct stat ours, there;

    return log->file && fstat(fileno(log->file), &ours) == 0 &&
           (stat(log->path, &there) || ours.st_ino != there.st_ino || ours.st_dev != there.st_dev);
}

int log_file_close(log_file *log)
{
    int failed = log->file ? fclose(log->file) : 0;

    log->file = NULL;
    return failed;
}

void log_file_discard(log_file *log)
{
    if (log->file && log->made)
        unlink(log->path);
    (void)log_file_close(log);
    free(log->path);
    *log = (log_file){0};
}

/* Folders --------------------------------------------------------------------------------- */

bool log_folder_taken(const char *folder, int *lock)
{
    *lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *lock >= 0 && flock(*lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
}

int log_folder_make_new(char **folder)
{
    size_t len = strlen(*folder), bytes = len + 16;
    char *path = cli_realloc(NULL, bytes, 1), *slash = NULL;
    int failed = 0;

    snprintf(path, bytes, "%s", *folder);
    slash = strrchr(path, '/');
    if (slash && slash > path) {
        *slash = '\0';
        failed = cli_make_folder(path);
        *slash = '/';
    }
    for (int k = 2; !failed && mkdir(path, 0777); k++) {
        failed = errno != EEXIST;
        if (!failed)
            snprintf(path, bytes, "%.*s-%d", (int)len, *folder, k);
    }
    free(*folder);
    *folder = path;
    return failed ? -1 : 0;
}
