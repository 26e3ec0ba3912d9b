/* coordinator.h: the daemon's middle: owns the store, the nodes and the queue, and turns the loop.
 *
 * One thread. Within a turn the API calls verbs (service_*.c), which write to the store and note
 * here what has changed; coordinator_end_turn() then places what can be placed, commits once, lets
 * the held answers go, and wakes the agents whose wish list changed. The memory here is a cache of
 * the store; after a turn that was rolled back it is rebuilt.
 */
#ifndef TRAINYARD_COORDINATOR_COORDINATOR_H
#define TRAINYARD_COORDINATOR_COORDINATOR_H

#include <stdint.h>

#include "api/api.h"
#include "api/service.h"
#include "base/err.h"
#include "daemon/coordinator/node.h"
#include "daemon/coordinator/planner.h"
#include "daemon/coordinator/queue.h"
#include "storage/store.h"

#define COORDINATOR_MAX_PENDING 1000000 /* jobs that wait; some 64 bytes of memory each */
#define COORDINATOR_MAX_NODES   4096
#define COORDINATOR_TICK_US     1000000
#define COORDINATOR_PAUSE_US                                                                       \
    5000000 /* a tick that comes so late: we were stopped, not the nodes                           \
             */
#define COORDINATOR_DOOMED_US   10000000 /* rest of a job whose start cannot be written */
#define COORDINATOR_EXPIRE_US   60000000
#define COORDINATOR_KEY_LIFE_US (24 * 3600 * 1000000LL) /* of an Idempotency-Key */
#define COORDINATOR_RETENTION_S (7 * 24 * 3600) /* of checkpoints, where nothing else is said */

/* A pending job that is not tried before `until_us`. */
struct resting {
    char id[ID_SIZE];
    int64_t until_us;
};

/* A job that has ended on its node, whose files wait for room on our disk. */
struct waiting {
    char job[ID_SIZE];
    char node[NODE_NAME_MAX + 1];
};

struct service {
    struct store *store;
    char run_id[ID_SIZE]; /* another at each start, also of a restored copy */
    struct api *api;      /* NULL in tests */

    int64_t now_us, wall_us; /* of this turn: boot time for intervals, wall for display */
    int64_t clock_ahead_us;  /* tests put both clocks ahead */
    int64_t wall_ahead_us;   /* and the wall clock alone */
    int64_t wall_offset_us;  /* wall less boot time when we started */
    int64_t started_us;
    int64_t tick_us;   /* when the next tick is due */
    int64_t expire_us; /* when old Idempotency-Keys are looked for next */

    struct nodes nodes;
    struct queue queue;
    struct resting *resting;
    size_t resting_count;
    struct waiting *waiting; /* as the nodes said last */
    size_t waiting_count;
    struct planner_view view;

    int64_t wish;  /* the last `seen` given to any node; above those of all earlier instances */
    int try_place; /* something changed that could let a job start */
    int go_on;     /* the next turn must not wait */
    int rebuild;   /* memory may differ from the store */
    struct err store_failure; /* of a verb in this turn; code 0: none */
    struct err no_space;      /* why the last commit failed; code 0: it did not */

    int64_t retention_us; /* of checkpoints of jobs that failed, were cancelled or suspended */

    uint64_t turns, commits, failed_commits, submissions, syncs, steps, dropped_lines;
    uint64_t checkpoints, restarts, dropped_figures;
};

/* Opens the state directory and loads it. */
int coordinator_open(const char *state_dir, struct service **ret, struct err *e);
void coordinator_close(struct service *c); /* NULL is fine */

/* One turn: lets the API take what is ready, then ends the turn. */
int coordinator_turn(struct service *c, struct err *e);
/* The second half alone. 0, also when the disk was full (answered with 507); another code means
 * that the store can no longer be trusted and the process must end. */
int coordinator_end_turn(struct service *c, struct err *e);
/* Microseconds until the next turn is due; 0: at once. */
int64_t coordinator_wait_us(struct service *c);

/* ---- for the verbs ---- */
void coordinator_clock(struct service *c);
/* What this node is told has changed: it is answered after the commit. */
void coordinator_wish(struct service *c, struct node *n);
/* Devices became free, or a node can be used again. */
void coordinator_capacity(struct service *c);
void coordinator_view(struct service *c); /* refreshes the planner's view of device memory */
void coordinator_rest(struct service *c, const char *job_id, int64_t until_us);
/* What a node says anew of its jobs that wait for our disk: forget all, then one by one. */
void coordinator_forget_waiting(struct service *c, const char *node);
void coordinator_add_waiting(struct service *c, const char *node, const char *job_id);
const char *coordinator_waits_for_disk(const struct service *c, const char *job_id); /* its node */
void coordinator_unrest(struct service *c, const char *job_id); /* it may be tried again now */
int coordinator_is_resting(const struct service *c, const char *job_id);

/* Notes that a verb could not write what it had begun to and fills the reply: 507 or 500. Memory is
 * rebuilt at the end of the turn. */
int coordinator_store_failed(struct service *c, const struct err *e, struct service_reply *r);
/* The same for a verb that only reads: nothing is to be put right. */
int coordinator_read_failed(const struct err *e, struct service_reply *r);
/* Reads the job; a reply of 404 or 500 and its code where there is none. */
int coordinator_job(struct service *c, const char *id, struct job_row *ret,
                    struct service_reply *r);

#endif
