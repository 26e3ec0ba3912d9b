/* planner.h: the parallel strategy of a job, chosen or checked. Pure. */
#ifndef TRAINYARD_COORDINATOR_PLANNER_H
#define TRAINYARD_COORDINATOR_PLANNER_H

#include "base/buf.h"
#include "base/faults.h"
#include "spec/job.h"
#include "spec/plan.h"

#include <stddef.h>

#define PLANNER_MAX_SIZES 16

/* A size that devices have. */
struct planner_size {
    int64_t memory;   /* bytes that a rank may use */
    int64_t together; /* so many with at least that are on one node */
};

/* What the cluster has, as far as it is known. By enum device_kind. */
struct planner_view {
    int64_t smallest_memory[DEVICE_GPU + 1]; /* 0: no such device known */
    /* The sizes above that, ascending; of more than PLANNER_MAX_SIZES the smallest. */
    struct planner_size larger[DEVICE_GPU + 1][PLANNER_MAX_SIZES];
    int larger_count[DEVICE_GPU + 1];
};

/* Notes a device's size; then, for every node, how many of its devices have at least which. */
void planner_view_size(struct planner_view *v, enum device_kind kind, int64_t memory);
void planner_view_node(struct planner_view *v, enum device_kind kind, const int64_t *memories,
                       size_t count);

/* Makes the plan of a job that was parsed. On failure every obstacle is in `f`, each with the
 * smallest change that would work as its hint, and ERR_INVALID is returned. plan_done(ret). */
int planner_plan(const struct job_spec *job, const struct planner_view *view, struct plan *ret,
                 struct faults *f);

/* Appends what plan_to_json() makes of it, without the JSON library, which takes ten times as long:
 * every submission does it. */
void planner_write(const struct plan *plan, struct buf *b);

#endif
