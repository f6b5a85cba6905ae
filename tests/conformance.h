/* conformance.h - what the parts of the conformance runner share. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "data/data.h"

/* Prints one check's line and counts it; `worst` above `bound`, or NaN, is a failure. */
void check(const char *folder, const char *what, const char *precision, double worst, double bound);

/* Folders that hold no draft; `folder` is what the lines call it. */
accrue_status run_collation(const char *dir, const char *folder, json_t *cases, accrue_error *err);
accrue_status run_vocab_maps(const char *path, const char *folder, accrue_error *err);
accrue_status run_schedules(const char *path, const char *folder, accrue_error *err);

#endif
