/* fake_accrue.h - what the files of the stand-in for the library share. */
#ifndef TEST_FAKE_ACCRUE_H
#define TEST_FAKE_ACCRUE_H

#include "accrue/accrue.h"

/* The failure that a name of `prefix` and a status asks for, "fail-ACCRUE_EIO". */
accrue_status fail_as(const char *verifier, const char *prefix, accrue_error *err);

#endif
