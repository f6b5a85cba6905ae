/* fake.h - what the files of the stand-in for the library share. */
#ifndef FAKE_H
#define FAKE_H

#include "accrue/accrue.h"

/* Fails as a verifier named `prefix` and the name of a status asks for. */
accrue_status fake_fail(const char *verifier, const char *prefix, accrue_error *err);

#endif
