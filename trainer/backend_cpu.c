/* backend_cpu.c: the backend of a program that has no other: ranks speak through host memory. */
#include "trainer/comm.h"
#include "trainer/ops.h"

static int keep_hosts(struct comm *hosts, const struct comm_options *o, struct comm **ret,
                      struct err *e)
{
    (void)o;
    (void)e;
    *ret = hosts;
    return 0;
}

static size_t no_bytes(const struct comm_options *o)
{
    (void)o;
    return 0;
}

const struct backend backend = {
    .kind = DEVICE_CPU, .ops = &ops_cpu, .comm = keep_hosts, .comm_bytes = no_bytes};
