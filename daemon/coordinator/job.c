/* job.c: the table of moves. */
#include "daemon/coordinator/job.h"

#include <stdlib.h>

#include "base/mem.h"

static const unsigned char moves[JOB_STATE__MAX][JOB_STATE__MAX] = {
    [JOB_PENDING] = {[JOB_STARTING] = 1, [JOB_CANCELLED] = 1, [JOB_SUSPENDED] = 1},
    [JOB_STARTING] = {[JOB_PENDING] = 1,
                      [JOB_RUNNING] = 1,
                      [JOB_STOPPING] = 1,
                      [JOB_SUCCEEDED] = 1,
                      [JOB_FAILED] = 1,
                      [JOB_CANCELLED] = 1},
    [JOB_RUNNING] = {[JOB_PENDING] = 1,
                     [JOB_STOPPING] = 1,
                     [JOB_SUCCEEDED] = 1,
                     [JOB_FAILED] = 1,
                     [JOB_CANCELLED] = 1},
    [JOB_STOPPING] = {[JOB_PENDING] = 1,
                      [JOB_SUCCEEDED] = 1,
                      [JOB_FAILED] = 1,
                      [JOB_CANCELLED] = 1,
                      [JOB_SUSPENDED] = 1,
                      [JOB_STOPPING] = 1}, /* a suspend that a cancel overtakes */
    [JOB_SUSPENDED] = {[JOB_PENDING] = 1, [JOB_CANCELLED] = 1},
    [JOB_FAILED] = {[JOB_PENDING] = 1},    /* a user's retry */
    [JOB_CANCELLED] = {[JOB_PENDING] = 1}, /* the same */
};

int job_may_move(enum job_state from, enum job_state to)
{
    return from < JOB_STATE__MAX && to < JOB_STATE__MAX && moves[from][to];
}

int job_is_final(enum job_state s)
{
    return s == JOB_SUCCEEDED || s == JOB_FAILED || s == JOB_CANCELLED;
}

int job_is_command(const struct job_row *job)
{
    json_auto_t *spec = job->spec ? json_loads(job->spec, 0, NULL) : NULL;
    return json_object_get(spec, "command") != NULL;
}

int job_event_text(struct store *store, const char *type, const char *job_id, const char *node,
                   const char *data, int64_t wall_us, struct err *e)
{
    struct event_row row = {.time_us = wall_us,
                            .type = (char *)type,
                            .job_id = (char *)job_id,
                            .node = (char *)node,
                            .data = (char *)data};
    int64_t seq;
    return store_event_append(store, &row, &seq, e);
}

int job_event(struct store *store, const char *type, const char *job_id, const char *node,
              json_t *take_data, int64_t wall_us, struct err *e)
{
    CLEANUP(mem_freep) char *text = take_data ? json_dumps(take_data, JSON_COMPACT) : NULL;
    json_decref(take_data);
    return job_event_text(store, type, job_id, node, text ? text : "{}", wall_us, e);
}

/* A wall clock that was set back makes no negative durations. */
static int64_t not_before(int64_t wall_us, int64_t floor_us)
{
    return wall_us > floor_us ? wall_us : floor_us;
}

int job_move(struct store *store, struct job_row *job, enum job_state to, const char *code,
             const char *reason, int64_t wall_us, struct err *e)
{
    enum job_state from = job->state;
    if (!job_may_move(from, to))
        BUG("job %s: %s -> %s is no move", job->id, job_state_name(from), job_state_name(to));
    json_t *data = json_pack("{s:s, s:s, s:s, s:s}", "from", job_state_name(from), "to",
                             job_state_name(to), "code", code, "reason", reason);
    job->state = to;
    job->moved_us = wall_us;
    mem_replace(&job->reason_code, code);
    mem_replace(&job->reason, reason);
    if (to == JOB_RUNNING && job->started_us == 0)
        job->started_us = not_before(wall_us, job->submitted_us);
    if (job_is_final(to))
        job->finished_us =
            not_before(wall_us, job->started_us ? job->started_us : job->submitted_us);
    else
        job->finished_us = 0;
    int rc = store_job_move(store, job, from, e);
    if (rc != 0) {
        json_decref(data);
        return rc;
    }
    return job_event(store, "job_state", job->id, NULL, data, wall_us, e);
}
