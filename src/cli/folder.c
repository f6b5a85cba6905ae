/* folder.c - paths and folders of what a run writes beside its checkpoints. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char *cli_path(const char *folder, const char *name)
{
    size_t bytes = strlen(folder) + strlen(name) + 2;
    char *path = cli_realloc(NULL, bytes, 1);

    snprintf(path, bytes, "%s/%s", folder, name);
    return path;
}

int cli_make_folder(const char *folder)
{
    char *path = strdup(folder);
    int failed = 0;

    if (!path)
        return -1;
    for (char *s = path + 1; *path && *s && !failed; s++)
        if (*s == '/') {
            *s = '\0';
            failed = mkdir(path, 0777) && errno != EEXIST;
            *s = '/';
        }
    if (!failed)
        failed = mkdir(path, 0777) && errno != EEXIST;
    free(path);
    return failed ? -1 : 0;
}
