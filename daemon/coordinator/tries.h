/* tries.h: attempts: making one, taking what its node says of it, asking for its end, ending it.
 *
 * Each writes the attempt's rows, the job's move and the events in the turn's transaction and keeps
 * the devices in memory in step. Each may be called again with the same facts without harm.
 */
#ifndef TRAINYARD_COORDINATOR_TRIES_H
#define TRAINYARD_COORDINATOR_TRIES_H

#include <jansson.h>

#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/ending.h"

#define TRIES_PORT_FIRST 21000
#define TRIES_PORT_LAST  29999
#define TRIES_GRACE_S    30
#define TRIES_SUSPEND_S  300 /* a suspended job may take so long to write its checkpoint */

/* A pending job starts on these devices: epoch, port and devices are leased, the node is told. */
int try_create(struct service *c, struct job_row *job, struct node *n,
               struct device *const *devices, int64_t count, struct err *e);

/* The node holds the attempt; `running`: its ranks run, since `started_us` (wall; 0: now). */
int try_observe(struct service *c, struct node *n, struct attempt_row *a, int running,
                int64_t started_us, const json_t *ranks, struct err *e);

/* Asks for the end of the job's latest attempt; a later reason takes the place of an earlier one.
 * The job becomes stopping. */
int try_stop(struct service *c, struct job_row *job, const char *code, const char *reason,
             struct err *e);

/* The attempt has ended as `x` says; `record` is kept as it came. Devices are released in the same
 * transaction, and the job moves. */
int try_end(struct service *c, struct attempt_row *a, const struct ending *x, const json_t *record,
            struct err *e);

/* The same for an attempt of which no exit record will come: node_rebooted, attempt_lost, ... */
int try_end_lost(struct service *c, struct attempt_row *a, enum outcome outcome, const char *code,
                 const char *reason, struct err *e);

#endif
