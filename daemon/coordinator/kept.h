/* kept.h: the checkpoints of jobs: which are recorded, which of those that lie on a node may go,
 * and for how long those of a job that has ended are kept. */
#ifndef TRAINYARD_COORDINATOR_KEPT_H
#define TRAINYARD_COORDINATOR_KEPT_H

#include <jansson.h>

#include "daemon/coordinator/coordinator.h"

#define KEPT_MAX_JOBS  1024 /* that a node names in one sync */
#define KEPT_MAX_NAMES 1024 /* of one job */

/* Records a checkpoint that the running attempt says is whole, and drops from the record what is
 * older than the newest job.keep. 1: not taken, for the attempt is not the job's latest, or the
 * step is behind the newest on the record. */
int kept_take(struct service *c, const struct attempt_row *a, const struct checkpoint_row *row,
              struct err *e);

/* The attempt goes on after `step`: checkpoints beyond it, and metrics of earlier attempts beyond
 * it, are of a course that is given up. */
int kept_rewind(struct service *c, const struct attempt_row *a, int64_t step, struct err *e);

/* Drops all of a job from the record, with an event that says why ("succeeded", "expired",
 * "scratch"). */
int kept_drop_all(struct service *c, const char *job_id, const char *why, struct err *e);

/* `held`: [{"job", "names": [...]}] as a node said. Adds to `body` "checkpoints": [{"job", "epoch",
 * "remove": [...], "all"}], of the jobs of which something is to be removed. Jobs that are not
 * known are left alone. *ret_sum tells one answer from another. */
int kept_answer(struct service *c, const json_t *held, json_t *body, uint64_t *ret_sum,
                struct err *e);

/* Drops the checkpoints of jobs that failed, were cancelled or suspended longer ago than the
 * service's retention. `wall_us` is one that was not set ahead. */
int kept_expire(struct service *c, int64_t wall_us, struct err *e);

/* "step-0000000100", or what a rank makes such a directory from: 1, and the step in *ret. */
int kept_name_step(const char *name, int64_t *ret);

#endif
