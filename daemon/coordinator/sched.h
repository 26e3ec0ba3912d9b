/* sched.h: pure placement: the jobs that wait and the nodes in, assignments out. */
#ifndef TRAINYARD_COORDINATOR_SCHED_H
#define TRAINYARD_COORDINATOR_SCHED_H

#include "base/err.h"
#include "daemon/coordinator/node.h"
#include "daemon/coordinator/queue.h"

/* At most this many placements a pass (one loop turn): each writes some ten rows, about 0.1 ms, so
 * that a pass holds the loop for some 25 ms, or ten times that on a node with hundreds of live
 * attempts, whose ports each one looks at. What is left over goes in the next turn. */
#define SCHED_MAX_PLACEMENTS 256

/* Makes an assignment durable: takes the job off the queue and marks the devices taken. Another
 * value than 0 ends the pass. */
typedef int sched_assign_fn(void *ctx, const struct queued *job, struct node *node,
                            struct device *const *devices, int64_t count, struct err *e);

/* Places what can be placed now. Returns 1 if it stopped at its limit with candidates left, 0 if
 * nothing more fits, or what `assign` returned. Classes that did not fit stay blocked until
 * queue_unblock(). */
int sched_pass(struct queue *q, struct nodes *nodes, sched_assign_fn *assign, void *ctx,
               struct err *e);

/* The node for a need, with `devices` filled (need->devices of them), or NULL. */
struct node *sched_place(const struct nodes *nodes, const struct need *need,
                         struct device **devices);

#endif
