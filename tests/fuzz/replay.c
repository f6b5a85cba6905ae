/* replay.c - runs a fuzz target over the files of the folders given. */
#include "fuzz.h"

#include "base/base.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static int replay_file(const char *path)
{
    acr_map map = {0};
    uint8_t *copy = NULL;

    if (acr_map_open(&map, path, NULL))
        return 0;
    /* A block of exactly that size, so that a sanitizer sees a byte read past its end. */
    copy = malloc(map.bytes ? map.bytes : 1);
    if (copy) {
        if (map.bytes)
            memcpy(copy, map.data, map.bytes);
        LLVMFuzzerTestOneInput(copy, map.bytes);
    }
    free(copy);
    acr_map_close(&map);
    return 1;
}

static int replay_folder(const char *folder)
{
    int n = 0;
    struct dirent *entry = NULL;
    DIR *dir = opendir(folder);

    while (dir && (entry = readdir(dir))) {
        char *path = acr_sprintf("%s/%s", folder, entry->d_name);
        if (path && acr_is_file(path))
            n += replay_file(path);
        acr_free(path);
    }
    if (dir)
        closedir(dir);
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;

    for (int i = 1; i < argc; i++)
        n += replay_folder(argv[i]);
    printf("%d inputs\n", n);
    return n ? 0 : 1;
}
