/* job.c - what a caller asks about the job as a whole: its share of a machine, one value of all,
 * and who tells people of a failure. */
#include "comm/transport.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Where a rank runs. */
typedef struct place {
    uint64_t machine;
    cpu_set_t cpus; /* that it may run on */
} place;

/* Containers of one machine have names of their own, and its cores together. */
static uint64_t machine(void)
{
    char id[128] = "";
    size_t n = 0;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");

    if (f) {
        n = fread(id, 1, sizeof id, f);
        fclose(f);
    }
    if (!n && gethostname(id, sizeof id - 1) == 0)
        n = strlen(id);
    return acr_hash_bytes(id, n, 0);
}

static place own_place(void)
{
    place p = {.machine = machine()};

    acr_allowed_cpus(&p.cpus);
    return p;
}

/* A core that several may run on is shared out evenly. */
static int share_of_cores(const place *all, int rank, int ranks)
{
    double share = 1e-9;

    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        int there = 0;
        if (!CPU_ISSET(cpu, &all[rank].cpus))
            continue;
        for (int r = 0; r < ranks; r++)
            there += all[r].machine == all[rank].machine && CPU_ISSET(cpu, &all[r].cpus);
        share += 1.0 / there;
    }
    return share < 1 ? 1 : (int)share;
}

accrue_status accrue_comm_cores(int *out, accrue_comm *comm, accrue_error *err)
{
    const int rank = accrue_comm_rank(comm), ranks = accrue_comm_size(comm);
    const place own = own_place();
    place *all = acr_calloc((size_t)ranks, sizeof *all);
    accrue_status st = ACCRUE_OK;

    *out = 0;
    if (!all)
        return acr_comm_fail(comm, acr_enomem(err, (size_t)ranks * sizeof *all, "a rank"), err);
    st = acr_comm_share(comm, "the ranks' places", &own, sizeof own, all, err);
    if (!st)
        *out = share_of_cores(all, rank, ranks);
    acr_free(all);
    return st;
}

accrue_status accrue_comm_greatest(int *out, accrue_comm *comm, int value, accrue_error *err)
{
    const int ranks = accrue_comm_size(comm);
    int *all = acr_calloc((size_t)ranks, sizeof *all);
    accrue_status st = ACCRUE_OK;

    *out = 0;
    if (!all)
        return acr_comm_fail(comm, acr_enomem(err, (size_t)ranks * sizeof *all, "a value"), err);
    st = acr_comm_share(comm, "a value of each rank", &value, sizeof value, all, err);
    for (int r = 0; r < ranks && !st; r++)
        *out = r == 0 || all[r] > *out ? all[r] : *out;
    acr_free(all);
    return st;
}

bool acr_comm_in_process(const accrue_comm *c)
{
    return !c || c->transport->in_process;
}

bool accrue_comm_reports(accrue_comm *comm)
{
    if (accrue_comm_rank(comm) == 0)
        return true;
    return acr_comm_failure(comm, NULL) && comm->transport->is_alone &&
           comm->transport->is_alone(comm);
}
