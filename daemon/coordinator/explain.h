/* explain.h: why a job waits, in a sentence with numbers. Pure. */
#ifndef TRAINYARD_COORDINATOR_EXPLAIN_H
#define TRAINYARD_COORDINATOR_EXPLAIN_H

#include "daemon/coordinator/node.h"
#include "daemon/coordinator/queue.h"

struct explanation {
    char code[48]; /* "no_nodes", "never_fits", "waiting_for_node", "waiting_for_devices",
                      "devices_not_ready", "ready_to_start" */
    char text[2000];
};

/* `ahead`: jobs that would be placed before it, or negative to leave them out. */
void explain_pending(const struct nodes *nodes, const struct need *need, int64_t ahead,
                     int64_t now_us, struct explanation *ret);

/* "1.5 GiB" into `out` (at least 32 bytes); returns `out`. */
char *explain_bytes(int64_t bytes, char *out);

#endif
