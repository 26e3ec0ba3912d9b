/* job.h: the life of a job: which moves there are, and making one.
 *
 *   submitted -> pending -> starting -> running -> stopping -> succeeded | failed | cancelled
 *
 *   starting, running, stopping -> pending      it could not start, or may succeed the next time
 *   pending, stopping -> suspended -> pending   suspend, and resume
 *   failed, cancelled -> pending                retry
 *
 * and to an end from each state that is none (job.c has the table).
 * A job is stopping from the moment an end was asked for until its node says that it has ended.
 * What has ended stays so until a user asks for another try; what has succeeded stays so for ever.
 */
#ifndef TRAINYARD_COORDINATOR_JOB_H
#define TRAINYARD_COORDINATOR_JOB_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "storage/store.h"

int job_may_move(enum job_state from, enum job_state to);
int job_is_final(enum job_state s);
int job_is_command(const struct job_row *job); /* by its spec, which must have been read */

/* Moves `job` (as read from the store) and writes the row and an event job_state; sets its times.
 * BUG() for a move that is not in the table. `job` keeps its strings and is up to date afterwards,
 * but for `version`. */
int job_move(struct store *store, struct job_row *job, enum job_state to, const char *code,
             const char *reason, int64_t wall_us, struct err *e);

/* Appends an event; `data` is consumed. */
int job_event(struct store *store, const char *type, const char *job_id, const char *node,
              json_t *take_data, int64_t wall_us, struct err *e);

/* The same with `data` as the text of a JSON object. */
int job_event_text(struct store *store, const char *type, const char *job_id, const char *node,
                   const char *data, int64_t wall_us, struct err *e);

#endif
