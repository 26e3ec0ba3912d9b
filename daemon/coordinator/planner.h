/* planner.h: the parallel strategy of a job, chosen or checked. Pure. */
#ifndef TRAINYARD_COORDINATOR_PLANNER_H
#define TRAINYARD_COORDINATOR_PLANNER_H

#include "base/buf.h"
#include "base/faults.h"
#include "spec/job.h"
#include "spec/plan.h"

/* What the cluster has, as far as it is known. */
struct planner_view {
    int64_t smallest_memory[DEVICE_GPU + 1]; /* by enum device_kind; 0: no such device known */
};

/* Makes the plan of a job that was parsed. On failure every obstacle is in `f`, each with the
 * smallest change that would work as its hint, and ERR_INVALID is returned. plan_done(ret). */
int planner_plan(const struct job_spec *job, const struct planner_view *view, struct plan *ret,
                 struct faults *f);

/* Appends what plan_to_json() makes of it, without the JSON library, which takes ten times as long:
 * every submission does it. */
void planner_write(const struct plan *plan, struct buf *b);

#endif
