/* new_folder.h - a folder of files that comes to its name whole, or not at all. */
#ifndef ACR_CONVERT_NEW_FOLDER_H
#define ACR_CONVERT_NEW_FOLDER_H

#include "base/base.h"

/* Files are written below `temporary`, beside the place where the folder will be. */
typedef struct acr_new_folder {
    char *dir, *parent, *temporary;
    const char *const *files; /* patterns of all names it may hold; NULL ends them; borrowed */
} acr_new_folder;

/* Removes what an earlier process left there of a folder of the same name, if it is no longer
 * running; makes the folders above, which stay.  ENOSPACE where the disk has no room for `bytes`;
 * 0: not known. */
accrue_status acr_new_folder_make(acr_new_folder *out, const char *dir, const char *const *files,
                                  int64_t bytes, accrue_error *err);
accrue_status acr_new_folder_text(const acr_new_folder *f, const char *file, const char *text,
                                  accrue_error *err);
accrue_status acr_new_folder_json(const acr_new_folder *f, const char *file, const json_t *value,
                                  accrue_error *err);
/* Brings all to the disk, and the folder to its name.  One that has the name already, and is not
 * empty, is replaced where that may be and acr_new_folder_check allows it; else EIO. */
accrue_status acr_new_folder_name(acr_new_folder *f, bool may_replace, accrue_error *err);
/* Removes what has not come to its name. */
void acr_new_folder_free(acr_new_folder *f);

/* EMISMATCH where a folder that is there holds anything but `files`. */
accrue_status acr_new_folder_check(const char *dir, const char *const *files, accrue_error *err);

#endif
