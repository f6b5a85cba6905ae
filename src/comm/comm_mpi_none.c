/* comm_mpi_none.c - ranks of an MPI job, in a build without MPI. */
#include "base/base.h"

accrue_status accrue_comm_open_mpi(accrue_comm **out, double timeout, accrue_error *err)
{
    (void)timeout;
    *out = NULL;
    return acr_fail(err, ACCRUE_ENOTSUP, "this build has no MPI; one made with it has");
}
