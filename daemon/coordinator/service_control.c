/* service_control.c: what a user wants of a job: cancel, suspend, resume, retry; and the
 * checkpoints that the last two go on from.
 *
 * Each may be repeated: where the job is already what is asked for, nothing changes. Where it makes
 * no sense the answer is 409, with what would. A suspend takes away the devices, not the job: its
 * trainer writes a checkpoint when it is told to end.
 */
#include <stdlib.h>
#include <string.h>

#include "api/service.h"
#include "base/mem.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/document.h"
#include "daemon/coordinator/ending.h"
#include "daemon/coordinator/job.h"
#include "daemon/coordinator/kept.h"
#include "daemon/coordinator/tries.h"
#include "spec/job.h"

/* ---- what is shared ---- */
/* Runs `change` on the job: all or nothing, whatever else the turn holds. */
static int all_or_nothing(struct service *c, struct job_row *job,
                          int (*change)(struct service *c, struct job_row *job, struct err *e),
                          struct service_reply *r)
{
    struct err e = {0};
    int rc = store_mark(c->store, &e);
    if (rc != 0)
        return coordinator_store_failed(c, &e, r);
    rc = change(c, job, &e);
    if (rc == 0) {
        store_keep(c->store);
        return 0;
    }
    store_undo(c->store);
    return coordinator_store_failed(c, &e, r);
}

/* A verb on a job: `act` fills the reply only where it fails. */
static int on_job(struct service *c, const char *id,
                  int (*act)(struct service *c, struct job_row *job, struct service_reply *r),
                  struct service_reply *r)
{
    struct job_row job;
    int rc = coordinator_job(c, id, &job, r);
    if (rc != 0)
        return rc;
    rc = act(c, &job, r);
    job_row_done(&job);
    return rc == 0 ? service_job_show(c, id, r) : rc;
}

/* Why the end of a stopping job was asked for, into `out` ("cancelled", "suspended"). */
static int stop_code(struct service *c, const struct job_row *job, char out[64],
                     struct service_reply *r)
{
    struct attempt_row a;
    struct err e = {0};
    int rc = store_attempt_latest(c->store, job->id, &a, &e);
    if (rc != 0)
        return coordinator_read_failed(&e, r);
    snprintf(out, 64, "%s", a.stop_code ? a.stop_code : "");
    attempt_row_done(&a);
    return 0;
}

static int is_under_way(enum job_state s)
{
    return s == JOB_PENDING || s == JOB_STARTING || s == JOB_RUNNING;
}

/* A pending job gives up its place. */
static void leave_queue(struct service *c, const struct job_row *job)
{
    coordinator_unrest(c, job->id);
    if (queue_remove(&c->queue, job) > 0)
        coordinator_capacity(c); /* devices may have been kept for it */
}

/* ---- cancel ---- */
static int cancel_rows(struct service *c, struct job_row *job, struct err *e)
{
    const char *reason = "Cancelled by a request.";
    if (job->state != JOB_PENDING && job->state != JOB_SUSPENDED)
        return try_stop(c, job, "cancelled", reason, e);
    leave_queue(c, job);
    return job_move(c->store, job, JOB_CANCELLED, "cancelled", reason, c->wall_us, e);
}

static int cancel(struct service *c, struct job_row *job, struct service_reply *r)
{
    char code[64] = "";
    if (job->state == JOB_CANCELLED)
        return 0;
    if (job_is_final(job->state))
        return service_fail(r, 409, "job_finished",
                            "Job %s has %s already and cannot be cancelled any more.", job->id,
                            job_state_name(job->state));
    if (job->state == JOB_STOPPING && stop_code(c, job, code, r) != 0)
        return ERR_INTERNAL;
    if (strcmp(code, "cancelled") == 0)
        return 0;
    return all_or_nothing(c, job, cancel_rows, r);
}

int service_job_cancel(struct service *c, const char *id, struct service_reply *r)
{
    return on_job(c, id, cancel, r);
}

/* ---- suspend ---- */
static int suspend_rows(struct service *c, struct job_row *job, struct err *e)
{
    const char *reason = "Suspended by a request.";
    if (job->state != JOB_PENDING)
        return try_stop(c, job, "suspended", reason, e);
    leave_queue(c, job);
    return job_move(c->store, job, JOB_SUSPENDED, "suspended", reason, c->wall_us, e);
}

static int suspend_stopping(struct service *c, struct job_row *job, struct service_reply *r)
{
    char code[64];
    if (stop_code(c, job, code, r) != 0)
        return ERR_INTERNAL;
    if (strcmp(code, "suspended") == 0)
        return 0;
    return service_fail(r, 409, "job_stopping",
                        "Job %s is being stopped (%s), so it cannot be suspended. When it has "
                        "ended, a retry goes on from its newest checkpoint.",
                        job->id, code);
}

static int suspend(struct service *c, struct job_row *job, struct service_reply *r)
{
    if (job->state == JOB_SUSPENDED)
        return 0;
    if (job->state == JOB_STOPPING)
        return suspend_stopping(c, job, r);
    if (job_is_final(job->state))
        return service_fail(r, 409, "job_finished",
                            "Job %s has %s%s already, so there is nothing to suspend.", job->id,
                            job->state == JOB_CANCELLED ? "been " : "", job_state_name(job->state));
    if (job->state != JOB_PENDING && job->keep == 0 && !job_is_command(job))
        return service_fail(r, 409, "no_checkpoints",
                            "Job %s takes no checkpoints (\"checkpoint\": false), so suspending "
                            "it would lose what it has trained. To end it all the same, cancel it.",
                            job->id);
    return all_or_nothing(c, job, suspend_rows, r);
}

int service_job_suspend(struct service *c, const char *id, struct service_reply *r)
{
    return on_job(c, id, suspend, r);
}

/* ---- resume and retry ---- */
static int check_room(const struct service *c, struct service_reply *r)
{
    if (c->queue.jobs < COORDINATOR_MAX_PENDING)
        return 0;
    r->retry_after_s = 60;
    return service_fail(r, 429, "too_many_pending",
                        "%zu jobs are waiting already; at most %d may. Try again when some have "
                        "started.",
                        c->queue.jobs, COORDINATOR_MAX_PENDING);
}

/* It had some, and they were removed: to begin at step 0 must be somebody's wish. */
static int check_checkpoints(const struct job_row *job, struct service_reply *r)
{
    if (!job->saved || job->checkpoint_step >= 0)
        return 0;
    return service_fail(r, 409, "no_checkpoints",
                        "The checkpoints of job %s were removed, for it was %s for longer than "
                        "they are kept. A retry with {\"from\": \"scratch\"} starts it at step 0.",
                        job->id, job_state_name(job->state));
}

/* As a user starts it, it has all its restarts before it. */
static int go_on(struct service *c, struct job_row *job, const char *code, const char *deed,
                 struct err *e)
{
    char next[ENDING_NEXT_SIZE], reason[300];
    snprintf(reason, sizeof(reason), "%s by a request; it %s.", deed, ending_next(job, next));
    job->restarts = job->failed_starts = 0;
    free(STEAL(job->exit));
    int rc = job_move(c->store, job, JOB_PENDING, code, reason, c->wall_us, e);
    if (rc != 0)
        return rc;
    queue_add(&c->queue, job);
    c->try_place = 1;
    return 0;
}

static int resume_rows(struct service *c, struct job_row *job, struct err *e)
{
    return go_on(c, job, "resumed", "Resumed", e);
}

static int resume(struct service *c, struct job_row *job, struct service_reply *r)
{
    char code[64];
    if (is_under_way(job->state))
        return 0;
    if (job->state == JOB_STOPPING && stop_code(c, job, code, r) != 0)
        return ERR_INTERNAL;
    if (job->state == JOB_STOPPING)
        return service_fail(r, 409, "job_stopping",
                            "Job %s is still being stopped (%s). Resume it once it is suspended.",
                            job->id, code);
    if (job_is_final(job->state))
        return service_fail(r, 409, "job_finished", "Job %s is not suspended, it has %s%s", job->id,
                            job->state == JOB_CANCELLED ? "been cancelled"
                                                        : job_state_name(job->state),
                            job->state == JOB_SUCCEEDED ? "." : "; a retry starts it again.");
    if (check_checkpoints(job, r) != 0 || check_room(c, r) != 0)
        return ERR_CONFLICT;
    return all_or_nothing(c, job, resume_rows, r);
}

int service_job_resume(struct service *c, const char *id, struct service_reply *r)
{
    return on_job(c, id, resume, r);
}

static int retry_rows(struct service *c, struct job_row *job, struct err *e)
{
    return go_on(c, job, "retried", "Started again", e);
}

/* The row says of its checkpoints what is stored. */
static void forget_checkpoint(struct job_row *job)
{
    job->saved = 0;
    job->checkpoint_step = -1;
    free(STEAL(job->checkpoint_node));
    free(STEAL(job->checkpoint_share));
}

static int scratch_rows(struct service *c, struct job_row *job, struct err *e)
{
    if (job->state == JOB_PENDING)
        leave_queue(c, job); /* its place in the queue is that of its checkpoint */
    int rc = kept_drop_all(c, job->id, "scratch", e);
    if (rc == 0)
        rc = store_job_progress(c->store, job->id, 0, 0, job->steps, e);
    if (rc != 0)
        return rc;
    forget_checkpoint(job);
    if (job->state != JOB_PENDING)
        return retry_rows(c, job, e);
    queue_add(&c->queue, job);
    c->try_place = 1;
    return 0;
}

static int check_may_retry(const struct job_row *job, struct service_reply *r)
{
    if (job->state == JOB_SUCCEEDED)
        return service_fail(r, 409, "job_finished",
                            "Job %s has succeeded; to train once more, submit it again.", job->id);
    if (job->state == JOB_STOPPING)
        return service_fail(r, 409, "job_stopping",
                            "Job %s is still being stopped. Retry it once it has ended.", job->id);
    return 0;
}

static int retry(struct service *c, struct job_row *job, struct service_reply *r)
{
    if (check_may_retry(job, r) != 0)
        return ERR_CONFLICT;
    if (is_under_way(job->state))
        return 0;
    if (check_checkpoints(job, r) != 0 || check_room(c, r) != 0)
        return ERR_CONFLICT;
    return all_or_nothing(c, job, retry_rows, r);
}

static int retry_scratch(struct service *c, struct job_row *job, struct service_reply *r)
{
    if (check_may_retry(job, r) != 0)
        return ERR_CONFLICT;
    if (job->state == JOB_STARTING || job->state == JOB_RUNNING)
        return service_fail(r, 409, "job_running",
                            "Job %s is %s. Cancel it first, then retry it from scratch.", job->id,
                            job_state_name(job->state));
    if (job->state == JOB_PENDING && job->checkpoint_step < 0)
        return 0;
    if (job->state != JOB_PENDING && check_room(c, r) != 0)
        return ERR_CONFLICT;
    return all_or_nothing(c, job, scratch_rows, r);
}

int service_job_retry(struct service *c, const char *id, int from_scratch, struct service_reply *r)
{
    return on_job(c, id, from_scratch ? retry_scratch : retry, r);
}

/* ---- checkpoints ---- */
static json_t *document_checkpoint(const struct checkpoint_row *row)
{
    json_t *doc = json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:s, s:o}", "name", row->name, "step",
                            (json_int_t)row->step, "epoch", (json_int_t)row->epoch, "attempt",
                            (json_int_t)row->attempt, "bytes", (json_int_t)row->bytes, "sum",
                            row->sum, "node", row->node, "at", document_time(row->at_us));
    json_object_set_new(doc, "share", row->share[0] ? json_string(row->share) : json_null());
    return doc;
}

/* When those of a job that has ended are removed; null while it may go on by itself. */
static json_t *kept_until(const struct service *c, const struct job_row *job, int count)
{
    int ends =
        job->state == JOB_FAILED || job->state == JOB_CANCELLED || job->state == JOB_SUSPENDED;
    return ends && count > 0 ? document_time(job->moved_us + c->retention_us) : json_null();
}

int service_job_checkpoints(struct service *c, const char *id, struct service_reply *r)
{
    struct checkpoint_row rows[CHECKPOINT_KEEP_MAX];
    struct job_row job;
    struct err e = {0};
    int rc = coordinator_job(c, id, &job, r);
    if (rc != 0)
        return rc;
    json_t *list = json_array();
    int count = store_checkpoint_list(c->store, id, CHECKPOINT_KEEP_MAX, rows, &e);
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, document_checkpoint(&rows[i]));
        checkpoint_row_done(&rows[i]);
    }
    r->status = 200;
    r->body = json_pack("{s:o, s:I, s:o}", "checkpoints", list, "keep", (json_int_t)job.keep,
                        "kept_until", kept_until(c, &job, count));
    job_row_done(&job);
    return count < 0 ? coordinator_read_failed(&e, r) : 0;
}
