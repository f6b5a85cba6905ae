/* generate_file.c - the file of answers: written in the order of its rows, so that a call that was
 * killed has left a beginning of what it would have written. */
#include "infer/generate_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Settings --------------------------------------------------------------------------------- */

/* Answers have settings beside them, which were there before the first; without, the file is
 * somebody else's. */
static accrue_status check_settings(const acr_answer_file *f, const json_t *settings,
                                    accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    char *path = acr_sprintf("%s.settings.json", f->path);
    json_t *before = NULL;

    if (!path)
        return acr_enomem(err, strlen(f->path), "a path");
    ACR_TRY(acr_settings_read(&before, path, err));
    if (!before && f->found)
        st = acr_fail(err, ACCRUE_EMISMATCH,
                      "%s: %lld bytes are there already, and no %s that says how they were made",
                      f->path, (long long)f->found, path);
    else if (before && f->bytes)
        st = acr_settings_compare(before, settings, f->path, path, "--output", err);
    if (!st && !(before && json_equal(before, settings)))
        st = acr_settings_write(path, settings, err);

cleanup:
    json_decref(before);
    acr_free(path);
    return st;
}

/* Lines ------------------------------------------------------------------------------------ */

/* Where whole lines end; what is behind them was cut short. */
static accrue_status find_lines(acr_answer_file *f, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_map map = {0};
    const uint8_t *last = NULL;

    ACR_TRY(acr_map_open(&map, f->path, err));
    last = map.bytes ? memrchr(map.data, '\n', map.bytes) : NULL;
    f->bytes = last ? last - map.data + 1 : 0;
    f->found = (int64_t)map.bytes;

cleanup:
    acr_map_close(&map);
    return st;
}

/* The row of the last whole line tells how many are done. */
static accrue_status read_last(acr_answer_file *f, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;
    acr_map map = {0};
    json_t *line = NULL;
    const json_t *idx = NULL;
    const char *begin = NULL, *end = NULL;

    if (!f->bytes)
        return ACCRUE_OK;
    ACR_TRY(acr_map_open(&map, f->path, err));
    end = (const char *)map.data + f->bytes - 1;
    begin = memrchr(map.data, '\n', (size_t)f->bytes - 1);
    begin = begin ? begin + 1 : (const char *)map.data;
    line = json_loadb(begin, (size_t)(end - begin), 0, NULL);
    idx = json_object_get(json_object_get(line, "metadata"), "idx");
    if (!json_is_integer(idx) || json_integer_value(idx) < 0 || json_integer_value(idx) >= f->rows)
        st = acr_fail(err, ACCRUE_EFORMAT,
                      "%s: its last line has no metadata.idx below %lld, the rows of the data",
                      f->path, (long long)f->rows);
    else
        f->next = json_integer_value(idx) + 1;

cleanup:
    json_decref(line);
    acr_map_close(&map);
    return st;
}

/* One that has lost its name meanwhile was another call's, which has tidied up. */
static accrue_status open_locked(acr_answer_file *f, accrue_error *err)
{
    const int how = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;
    struct stat s;
    bool is_new = false;

    f->fd = open(f->path, how | O_EXCL, 0666);
    is_new = f->fd >= 0;
    if (!is_new)
        f->fd = open(f->path, how, 0666);
    if (f->fd < 0)
        return acr_fail_errno(err, errno, "cannot open", f->path);
    if (fstat(f->fd, &s) != 0 || !S_ISREG(s.st_mode))
        return acr_fail(err, ACCRUE_EIO, "%s: not a regular file", f->path);
    if ((flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) ||
        (fstat(f->fd, &s) == 0 && s.st_nlink == 0))
        return acr_fail(err, ACCRUE_EIO, "%s: another call is writing it", f->path);
    f->is_new = is_new;
    return ACCRUE_OK;
}

accrue_status acr_answer_file_open(acr_answer_file *f, const char *path, const json_t *settings,
                                   int64_t rows, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    *f = (acr_answer_file){.path = path, .there = acr_parents_there(path), .fd = -1, .rows = rows};
    f->waiting = acr_calloc((size_t)rows + 1, sizeof *f->waiting);
    if (!f->waiting)
        return acr_enomem(err, (size_t)rows * sizeof *f->waiting, "the rows");
    ACR_TRY(acr_make_parents(path, err));
    ACR_TRY(open_locked(f, err));
    ACR_TRY(find_lines(f, err));
    ACR_TRY(check_settings(f, settings, err));
    ACR_TRY(read_last(f, err));
    if (ftruncate(f->fd, (off_t)f->bytes) != 0)
        st = acr_fail_errno(err, errno, "cannot cut off what is behind the last line of", path);

cleanup:
    return st;
}

void acr_answer_file_tidy(acr_answer_file *f)
{
    char *settings = f->is_new && !f->bytes ? acr_sprintf("%s.settings.json", f->path) : NULL;

    if (settings) {
        unlink(settings);
        unlink(f->path);
    }
    acr_free(settings);
    if (f->path)
        acr_remove_parents(f->path, f->there);
}

void acr_answer_file_close(acr_answer_file *f)
{
    if (f->waiting && f->fd >= 0)
        close(f->fd);
    for (int64_t i = f->next; f->waiting && i < f->rows; i++)
        acr_free(f->waiting[i]);
    acr_free(f->waiting);
    memset(f, 0, sizeof *f);
}

/* All of it or nothing: a line cut short would spoil the next one. */
static accrue_status write_line(acr_answer_file *f, const char *line, accrue_error *err)
{
    acr_output o = {.path = f->path, .fd = f->fd, .expected = strlen(line)};
    accrue_status st = acr_output_write(&o, line, strlen(line), err);

    if (st)
        (void)!ftruncate(f->fd, (off_t)f->bytes);
    else
        f->bytes += (int64_t)strlen(line);
    return st;
}

accrue_status acr_answer_file_put(acr_answer_file *f, int64_t row, char *line, accrue_error *err)
{
    accrue_status st = ACCRUE_OK;

    f->waiting[row] = line;
    while (f->next < f->rows && f->waiting[f->next]) {
        line = f->waiting[f->next];
        if (*line)
            st = write_line(f, line, err);
        if (st)
            break;
        acr_free(line);
        f->waiting[f->next++] = NULL;
    }
    return st;
}
