/* tries.c: an attempt's rows. The order within each function is that of the facts in the events. */
#include "daemon/coordinator/tries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "daemon/coordinator/job.h"
#include "daemon/coordinator/kept.h"
#include "daemon/coordinator/pick.h"

/* ---- making one ---- */
/* 1 if `count` ports from `port` on overlap those of a live attempt: it has one for each rank. */
static int ports_taken(const struct node *n, const struct attempt_row *live, int live_count,
                       int64_t port, int64_t count)
{
    for (int i = 0; i < live_count; i++) {
        int64_t ranks = 0;
        for (size_t k = 0; k < n->device_count; k++)
            ranks += strcmp(n->devices[k].attempt, live[i].id) == 0;
        if (port < live[i].port + (ranks ? ranks : 1) && live[i].port < port + count)
            return 1;
    }
    return 0;
}

/* A port for each rank, one after the other, of which the first is the master's. The search goes
 * round, so that a port rests before it is used again. */
static int lease_ports(struct service *c, struct node *n, int64_t count, int64_t *ret,
                       struct err *e)
{
    const int64_t starts = TRIES_PORT_LAST - TRIES_PORT_FIRST + 2 - count;
    struct attempt_row *rows = mem_zalloc(NODE_MAX_ATTEMPTS * sizeof(*rows));
    int live = store_attempt_live(c->store, n->name, NODE_MAX_ATTEMPTS, rows, e);
    int taken = 1, rc = live < 0 ? live : 0;
    int64_t port = 0;
    for (int64_t tries = 0; rc == 0 && tries < starts && taken; tries++) {
        port = TRIES_PORT_FIRST + n->next_port % starts;
        taken = ports_taken(n, rows, live, port, count);
        n->next_port = port - TRIES_PORT_FIRST + (taken ? 1 : count);
    }
    for (int i = 0; i < live; i++)
        attempt_row_done(&rows[i]);
    free(rows);
    if (rc == 0 && taken)
        rc = err_set(e, ERR_UNAVAILABLE, "node %s has no %lld free ports", n->name,
                     (long long)count);
    if (rc == 0)
        *ret = port;
    return rc;
}

static int take_leases(struct service *c, const struct attempt_row *a, struct node *n,
                       struct device *const *devices, int64_t count, struct err *e)
{
    for (int64_t rank = 0; rank < count; rank++) {
        struct lease_row lease = {
            .node = n->name, .device = devices[rank]->index, .attempt_id = a->id, .rank = rank};
        int rc = store_lease_take(c->store, &lease, c->wall_us, e);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int event_created(struct service *c, const struct attempt_row *a,
                         struct device *const *devices, int64_t count, struct err *e)
{
    char how[PICK_TEXT_SIZE];
    json_t *indices = json_array();
    pick_say(devices, count, how);
    for (int64_t rank = 0; rank < count; rank++)
        json_array_append_new(indices, json_integer(devices[rank]->index));
    return job_event(c->store, "attempt_created", a->job_id, a->node,
                     json_pack("{s:s, s:I, s:I, s:o, s:s*}", "attempt", a->id, "number",
                               (json_int_t)a->number, "epoch", (json_int_t)a->epoch, "devices",
                               indices, "placement", how[0] ? how + strlen("; ") : NULL),
                     c->wall_us, e);
}

/* ", attempt 2; resumes at step 400", or "" for a first one. `job` as it was before. */
static void say_attempt(const struct job_row *job, char out[200])
{
    char next[ENDING_NEXT_SIZE];
    out[0] = '\0';
    if (job->attempt > 0)
        snprintf(out, 200, ", attempt %lld; it %s", (long long)job->attempt + 1,
                 ending_next(job, next));
}

static int create_rows(struct service *c, struct job_row *job, struct attempt_row *a,
                       struct node *n, struct device *const *devices, int64_t count, struct err *e)
{
    char reason[800], attempt[200], how[PICK_TEXT_SIZE];
    int rc = store_epoch_next(c->store, &a->epoch, e);
    if (rc == 0)
        rc = lease_ports(c, n, count, &a->port, e);
    if (rc == 0)
        rc = store_attempt_insert(c->store, a, e);
    if (rc == 0)
        rc = take_leases(c, a, n, devices, count, e);
    if (rc == 0)
        rc = event_created(c, a, devices, count, e);
    if (rc != 0)
        return rc;
    say_attempt(job, attempt);
    job->attempt = a->number;
    snprintf(reason, sizeof(reason), "Starting on node %s%s%s.", n->name, attempt,
             pick_say(devices, count, how));
    return job_move(c->store, job, JOB_STARTING, "starting", reason, c->wall_us, e);
}

int try_create(struct service *c, struct job_row *job, struct node *n,
               struct device *const *devices, int64_t count, struct err *e)
{
    char id[ID_SIZE], secret[ID_SECRET_SIZE];
    id_secret(secret);
    struct attempt_row a = {.id = id_new("att", id),
                            .job_id = job->id,
                            .number = job->attempt + 1,
                            .node = n->name,
                            .state = ATTEMPT_LAUNCHING,
                            .secret = secret,
                            .created_us = c->wall_us};
    int rc = store_mark(c->store, e);
    if (rc != 0)
        return rc;
    rc = create_rows(c, job, &a, n, devices, count, e);
    if (rc != 0) {
        store_undo(c->store);
        return rc;
    }
    store_keep(c->store);
    for (int64_t rank = 0; rank < count; rank++)
        snprintf(devices[rank]->attempt, sizeof(devices[rank]->attempt), "%s", id);
    coordinator_wish(c, n);
    log_event(LOG_LEVEL_INFO, "attempt_created", "job=%s attempt=%s node=%s ranks=%lld", job->id,
              id, n->name, (long long)count);
    return 0;
}

/* ---- what its node says ---- */
/* Pids alone are what an event keeps of the ranks; what an agent sent is not trusted further. */
static json_t *pids_of(const json_t *ranks)
{
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(ranks) && i < PLAN_MAX_RANKS; i++) {
        const json_t *rank = json_array_get(ranks, i);
        const json_t *number = json_object_get(rank, "rank"), *pid = json_object_get(rank, "pid");
        if (json_is_integer(number) && json_is_integer(pid))
            json_array_append_new(list, json_pack("{s:I, s:I}", "rank", json_integer_value(number),
                                                  "pid", json_integer_value(pid)));
    }
    return list;
}

static int job_runs(struct service *c, const struct attempt_row *a, struct err *e)
{
    struct job_row job;
    char reason[200], attempt[60] = "";
    int rc = store_job_get(c->store, a->job_id, &job, e);
    if (rc != 0)
        return rc;
    if (a->number > 1)
        snprintf(attempt, sizeof(attempt), ", attempt %lld", (long long)a->number);
    snprintf(reason, sizeof(reason), "Running on node %s%s.", a->node, attempt);
    job.failed_starts = 0;
    if (job.state == JOB_STARTING)
        rc = job_move(c->store, &job, JOB_RUNNING, "running", reason, a->started_us, e);
    job_row_done(&job);
    return rc;
}

static void start_went_well(struct service *c, struct node *n)
{
    if (n->failed.until_us)
        coordinator_capacity(c);
    node_start_went_well(n);
}

static int first_seen_running(struct service *c, struct attempt_row *a, int64_t started_us,
                              const json_t *ranks, struct err *e)
{
    struct node *n = nodes_find(&c->nodes, a->node);
    int plausible = started_us >= a->created_us && started_us <= c->wall_us;
    a->started_us = plausible                    ? started_us
                    : c->wall_us > a->created_us ? c->wall_us
                                                 : a->created_us;
    if (a->state == ATTEMPT_LAUNCHING)
        a->state = ATTEMPT_RUNNING;
    if (n)
        start_went_well(c, n);
    int rc = store_attempt_update(c->store, a, e);
    if (rc == 0)
        rc = job_event(c->store, "attempt_started", a->job_id, a->node,
                       json_pack("{s:s, s:I, s:o}", "attempt", a->id, "number",
                                 (json_int_t)a->number, "ranks", pids_of(ranks)),
                       c->wall_us, e);
    return rc == 0 ? job_runs(c, a, e) : rc;
}

int try_observe(struct service *c, struct node *n, struct attempt_row *a, int running,
                int64_t started_us, const json_t *ranks, struct err *e)
{
    int is_new = !a->boot_id;
    if (is_new)
        mem_replace(&a->boot_id, n->boot_id);
    if (running && a->started_us == 0)
        return first_seen_running(c, a, started_us, ranks, e);
    return is_new ? store_attempt_update(c->store, a, e) : 0;
}

/* ---- asking for its end ---- */
int try_stop(struct service *c, struct job_row *job, const char *code, const char *reason,
             struct err *e)
{
    struct attempt_row a;
    int rc = store_attempt_latest(c->store, job->id, &a, e);
    if (rc != 0)
        return rc;
    if (a.state != ATTEMPT_ENDED && (!a.stop_code || strcmp(a.stop_code, code) != 0)) {
        mem_replace(&a.stop_code, code);
        mem_replace(&a.stop_reason, reason);
        a.state = ATTEMPT_STOPPING;
        rc = store_attempt_update(c->store, &a, e);
    }
    if (rc == 0)
        rc = job_move(c->store, job, JOB_STOPPING, code, reason, c->wall_us, e);
    struct node *n = nodes_find(&c->nodes, a.node);
    if (rc == 0 && n)
        coordinator_wish(c, n);
    attempt_row_done(&a);
    return rc;
}

/* ---- its end ---- */
static int move_job(struct service *c, const struct attempt_row *a, const struct ending *x,
                    struct err *e)
{
    struct job_row job;
    struct verdict v;
    int rc = store_job_get(c->store, a->job_id, &job, e);
    if (rc != 0)
        return rc;
    if (job_is_final(job.state) || job.attempt != a->number) {
        job_row_done(&job);
        return 0;
    }
    ending_judge(x, a, &job, a->started_us != 0, &v);
    if (v.to != JOB_PENDING && v.to != JOB_SUSPENDED)
        mem_replace(&job.exit, a->exit);
    c->restarts += v.restarts > job.restarts;
    job.restarts = v.restarts;
    job.failed_starts = v.failed_starts;
    rc = job_move(c->store, &job, v.to, v.code, v.reason, c->wall_us, e);
    if (rc == 0 && v.to == JOB_PENDING)
        coordinator_rest(c, job.id, c->now_us + v.rest_us);
    if (rc == 0 && v.to == JOB_SUCCEEDED) /* all its files are here by now */
        rc = kept_drop_all(c, job.id, "succeeded", e);
    if (rc == 0)
        log_event(LOG_LEVEL_INFO, "attempt_ended", "job=%s attempt=%s node=%s job_state=%s code=%s",
                  job.id, a->id, a->node, job_state_name(v.to), v.code);
    job_row_done(&job);
    return rc;
}

/* What its node could not hand over of its files. */
static int event_left_out(struct service *c, const struct attempt_row *a, const json_t *record,
                          struct err *e)
{
    json_t *list = json_object_get(record, "left_out");
    if (json_array_size(list) == 0)
        return 0;
    return job_event(c->store, "files_left_out", a->job_id, a->node,
                     json_pack("{s:s, s:I, s:O, s:O}", "attempt", a->id, "number",
                               (json_int_t)a->number, "left_out", list, "left_out_count",
                               json_object_get(record, "left_out_count")),
                     c->wall_us, e);
}

static int end_rows(struct service *c, struct attempt_row *a, const struct ending *x,
                    const json_t *record, struct err *e)
{
    int rc = store_attempt_update(c->store, a, e);
    if (rc == 0)
        rc = store_lease_release(c->store, a->id, c->wall_us, e);
    if (rc == 0)
        rc = job_event(c->store, "attempt_ended", a->job_id, a->node,
                       json_pack("{s:s, s:I, s:s, s:s, s:s}", "attempt", a->id, "number",
                                 (json_int_t)a->number, "outcome", outcome_name(x->outcome), "code",
                                 x->code, "reason", x->reason),
                       c->wall_us, e);
    if (rc == 0)
        rc = event_left_out(c, a, record, e);
    return rc == 0 ? move_job(c, a, x, e) : rc;
}

/* A node on which nothing can be started is not tried again and again. */
static void note_start(struct service *c, struct node *n, const struct attempt_row *a,
                       const struct ending *x)
{
    if (x->outcome == OUTCOME_PREPARE_FAILED)
        start_went_well(c, n);
    else if (a->started_us == 0 && x->retryable && !a->stop_code &&
             (x->outcome == OUTCOME_SPAWN_FAILED || x->outcome == OUTCOME_SHIM_LOST) &&
             node_start_failed(n, a->job_id, x->reason, c->now_us))
        log_event(LOG_LEVEL_WARNING, "node_rests", "node=%s seconds=%lld reason=%s", n->name,
                  (long long)((n->failed.until_us - c->now_us) / 1000000), log_quote(x->reason));
}

int try_end(struct service *c, struct attempt_row *a, const struct ending *x, const json_t *record,
            struct err *e)
{
    if (a->state == ATTEMPT_ENDED)
        return 0;
    CLEANUP(mem_freep) char *text = json_dumps(record, JSON_COMPACT);
    mem_replace(&a->exit, text ? text : "{}");
    a->state = ATTEMPT_ENDED;
    int64_t begun = a->started_us ? a->started_us : a->created_us;
    a->ended_us = c->wall_us > begun ? c->wall_us : begun;
    int started = x->started_us > 0 && x->outcome != OUTCOME_SPAWN_FAILED &&
                  x->outcome != OUTCOME_PREPARE_FAILED;
    int rc = 0;
    if (a->started_us == 0 && started)
        rc = first_seen_running(c, a, x->started_us, NULL, e);
    if (rc == 0)
        rc = end_rows(c, a, x, record, e);
    if (rc != 0)
        return rc;
    struct node *n = nodes_find(&c->nodes, a->node);
    if (n) {
        note_start(c, n, a, x);
        if (node_release(n, a->id) > 0)
            coordinator_capacity(c);
        coordinator_wish(c, n);
    }
    return 0;
}

int try_end_lost(struct service *c, struct attempt_row *a, enum outcome outcome, const char *code,
                 const char *reason, struct err *e)
{
    struct ending x = {.outcome = outcome,
                       .rank = -1,
                       .exit_code = -1,
                       .ended_us = c->wall_us,
                       .retryable = outcome == OUTCOME_SHIM_LOST};
    snprintf(x.code, sizeof(x.code), "%s", code);
    snprintf(x.reason, sizeof(x.reason), "%s", reason);
    json_auto_t *record = json_pack(
        "{s:s, s:s, s:s, s:n, s:n, s:n, s:b, s:I, s:I, s:[]}", "outcome", outcome_name(outcome),
        "code", code, "reason", reason, "rank", "exit_code", "signal", "retryable", x.retryable,
        "started_us", (json_int_t)a->started_us, "ended_us", (json_int_t)c->wall_us, "ranks");
    return try_end(c, a, &x, record, e);
}
