/* coordinator.c: start-up, the end of a turn, and the memory that mirrors the store.
 *
 * The end of a turn, in this order: health of nodes and resting jobs (when due), placement (when
 * something changed), commit, the held answers, the parked agents. An agent is woken only after the
 * commit, so that it never acts on what could still be rolled back.
 *
 * Bounds: a tick looks at every node once; a pass places at most SCHED_MAX_PLACEMENTS jobs; loading
 * reads each pending job, live attempt and node once (10,000 jobs: some 50 ms).
 */
#include "daemon/coordinator/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/coordinator/devices.h"
#include "daemon/coordinator/job.h"
#include "daemon/coordinator/kept.h"
#include "daemon/coordinator/sched.h"
#include "daemon/coordinator/tries.h"

#define PAGE 500 /* rows read at one time while loading */

/* The API calls the verbs, and its library is linked after ours: naming one verb of each file
 * brings all of them in. */
static const struct {
    int (*dirty)(struct service *);
    int (*submit)(struct service *, const struct submit_request *, struct service_reply *);
    int (*metrics)(struct service *, const char *, int64_t, int64_t, int64_t,
                   struct service_reply *);
    int (*nodes)(struct service *, int, const char *, struct service_reply *);
    int (*file)(struct service *, const struct agent_file *, struct service_reply *);
    int (*cancel)(struct service *, const char *, struct service_reply *);
} linked __attribute__((used)) = {service_dirty,     service_job_submit, service_job_metrics,
                                  service_node_list, service_agent_file, service_job_cancel};

void coordinator_clock(struct service *c)
{
    c->now_us = clock_boottime_us() + c->clock_ahead_us;
    c->wall_us = clock_wall_us() + c->clock_ahead_us + c->wall_ahead_us;
}

/* ---- what changed ---- */
void coordinator_wish(struct service *c, struct node *n)
{
    n->wish = ++c->wish;
}

void coordinator_capacity(struct service *c)
{
    queue_unblock(&c->queue);
    c->try_place = 1;
    c->nodes.unsettled = 1;
}

/* Sizes of the node's devices of a kind, into `out` (n->device_count). */
static size_t memories_of(const struct node *n, enum device_kind kind, int64_t *out)
{
    size_t count = 0;
    for (size_t k = 0; k < n->device_count; k++)
        if (n->devices[k].kind == kind)
            out[count++] = node_device_memory(&n->devices[k]);
    return count;
}

void coordinator_view(struct service *c)
{
    c->view = (struct planner_view){0};
    for (size_t i = 0; i < c->nodes.count; i++)
        for (size_t k = 0; k < c->nodes.items[i]->device_count; k++)
            planner_view_size(&c->view, c->nodes.items[i]->devices[k].kind,
                              node_device_memory(&c->nodes.items[i]->devices[k]));
    for (size_t i = 0; i < c->nodes.count; i++) {
        const struct node *n = c->nodes.items[i];
        CLEANUP(mem_freep) int64_t *sizes = mem_alloc((n->device_count + 1) * sizeof(*sizes));
        for (int kind = DEVICE_CPU; kind <= DEVICE_GPU; kind++) {
            size_t count = memories_of(n, (enum device_kind)kind, sizes);
            planner_view_node(&c->view, (enum device_kind)kind, sizes, count);
        }
    }
}

void coordinator_rest(struct service *c, const char *job_id, int64_t until_us)
{
    c->resting = mem_realloc(c->resting, (c->resting_count + 1) * sizeof(*c->resting));
    struct resting *r = &c->resting[c->resting_count++];
    snprintf(r->id, sizeof(r->id), "%s", job_id);
    r->until_us = until_us;
    if (until_us < c->tick_us)
        c->tick_us = until_us;
}

void coordinator_unrest(struct service *c, const char *job_id)
{
    for (size_t i = c->resting_count; i-- > 0;)
        if (strcmp(c->resting[i].id, job_id) == 0)
            c->resting[i] = c->resting[--c->resting_count];
}

int coordinator_is_resting(const struct service *c, const char *job_id)
{
    for (size_t i = 0; i < c->resting_count; i++)
        if (strcmp(c->resting[i].id, job_id) == 0)
            return 1;
    return 0;
}

void coordinator_forget_waiting(struct service *c, const char *node)
{
    for (size_t i = c->waiting_count; i-- > 0;)
        if (strcmp(c->waiting[i].node, node) == 0)
            c->waiting[i] = c->waiting[--c->waiting_count];
}

void coordinator_add_waiting(struct service *c, const char *node, const char *job_id)
{
    c->waiting = mem_realloc(c->waiting, (c->waiting_count + 1) * sizeof(*c->waiting));
    struct waiting *w = &c->waiting[c->waiting_count++];
    snprintf(w->node, sizeof(w->node), "%s", node);
    snprintf(w->job, sizeof(w->job), "%s", job_id);
}

const char *coordinator_waits_for_disk(const struct service *c, const char *job_id)
{
    for (size_t i = 0; i < c->waiting_count; i++)
        if (strcmp(c->waiting[i].job, job_id) == 0)
            return c->waiting[i].node;
    return NULL;
}

int coordinator_store_failed(struct service *c, const struct err *e, struct service_reply *r)
{
    c->store_failure = *e;
    c->rebuild = 1;
    return coordinator_read_failed(e, r);
}

int coordinator_read_failed(const struct err *e, struct service_reply *r)
{
    log_event(LOG_LEVEL_ERROR, "store_failed", "code=%s reason=%s", err_code_name(e->code),
              log_quote(e->text));
    if (e->code == ERR_NO_SPACE)
        return service_fail(r, 507, "insufficient_storage", "Nothing was written: %s", e->text);
    return service_fail(r, 500, "internal", "The coordinator's state could not be used: %s",
                        e->text);
}

/* ---- loading ---- */
static int load_pending(struct service *c, struct err *e)
{
    struct job_row *rows = mem_zalloc(PAGE * sizeof(*rows));
    struct job_filter filter = {.states = 1u << JOB_PENDING, .limit = PAGE};
    int count;
    do {
        count = store_job_list(c->store, &filter, rows, e);
        for (int i = 0; i < count; i++) {
            if (!coordinator_is_resting(c, rows[i].id))
                queue_add(&c->queue, &rows[i]);
            filter.before_seq = rows[i].seq;
            job_row_done(&rows[i]);
        }
    } while (count == PAGE);
    free(rows);
    return count < 0 ? count : 0;
}

static int load_node(struct service *c, const struct node_row *row, struct err *e)
{
    struct node *n = nodes_get(&c->nodes, row->name);
    json_auto_t *devices = json_loads(row->devices, 0, NULL);
    free(n->boot_id);
    free(n->version);
    n->boot_id = mem_strdup(row->boot_id);
    n->version = mem_strdup(row->version);
    n->joined_us = row->joined_us;
    n->stored_seen_us = row->seen_us;
    coordinator_wish(c, n);
    int rc = node_set_devices(n, devices, e);
    if (rc >= 0)
        rc = devices_load(c, n, e);
    return rc < 0 ? err_prefix(e, "node %s as stored", row->name) : 0;
}

static int load_nodes(struct service *c, struct err *e)
{
    struct node_row *rows = mem_zalloc(PAGE * sizeof(*rows));
    int count, rc = 0;
    do {
        const char *last = c->nodes.count ? c->nodes.items[c->nodes.count - 1]->name : NULL;
        count = store_node_list(c->store, last, PAGE, rows, e);
        for (int i = 0; i < count; i++) {
            if (rc == 0)
                rc = load_node(c, &rows[i], e);
            node_row_done(&rows[i]);
        }
    } while (count == PAGE && rc == 0);
    free(rows);
    return count < 0 ? count : rc;
}

static int load_leases(struct service *c, struct err *e)
{
    struct lease_row *rows = mem_zalloc(NODE_MAX_DEVICES * sizeof(*rows));
    int count = 0;
    for (size_t k = 0; k < c->nodes.count && count >= 0; k++) {
        struct node *n = c->nodes.items[k];
        count = store_lease_live(c->store, n->name, NODE_MAX_DEVICES, rows, e);
        for (int i = 0; i < count; i++) {
            struct device *d = node_device(n, rows[i].device);
            if (d)
                snprintf(d->attempt, sizeof(d->attempt), "%s", rows[i].attempt_id);
            lease_row_done(&rows[i]);
        }
    }
    free(rows);
    return count < 0 ? count : 0;
}

static int load(struct service *c, struct err *e)
{
    int rc = load_nodes(c, e);
    if (rc == 0)
        rc = load_leases(c, e);
    if (rc == 0)
        rc = load_pending(c, e);
    coordinator_view(c);
    coordinator_capacity(c);
    return rc;
}

/* Parked requests are answered, so that every node speaks again at once. */
static void wake_all(struct service *c)
{
    for (size_t i = 0; i < c->nodes.count; i++) {
        uint64_t ticket = c->nodes.items[i]->ticket;
        c->nodes.items[i]->ticket = 0;
        if (ticket && c->api)
            api_wake(c->api, ticket);
        c->go_on |= ticket != 0;
    }
}

/* What an agent said last outlives the memory: an older request of it may still be under way, and
 * its parked one may be answered with a launch before it speaks again. */
static void keep_heard(struct service *c, const struct nodes *before)
{
    for (size_t i = 0; i < before->count; i++) {
        struct node *n = nodes_find(&c->nodes, before->items[i]->name);
        if (!n)
            continue;
        n->heard = before->items[i]->heard;
        mem_replace(&n->share, before->items[i]->share);
    }
}

static int rebuild(struct service *c, struct err *e)
{
    log_event(LOG_LEVEL_INFO, "memory_rebuilt", "nodes=%zu pending=%zu", c->nodes.count,
              c->queue.jobs);
    wake_all(c);
    struct nodes before = c->nodes; /* and with them what was kept for whom */
    c->nodes = (struct nodes){0};
    queue_done(&c->queue);
    c->rebuild = 0; /* who rests goes on resting: waking looks at what the job is then */
    int rc = load(c, e);
    keep_heard(c, &before);
    nodes_done(&before);
    return rc;
}

int coordinator_open(const char *state_dir, struct service **ret, struct err *e)
{
    struct service *c = mem_zalloc(sizeof(*c));
    int rc = store_open(state_dir, &c->store, e);
    if (rc == 0) {
        coordinator_clock(c);
        id_new("inst", c->run_id);
        c->wish = store_instance_epoch(c->store) << 32;
        c->retention_us = COORDINATOR_RETENTION_S * 1000000LL;
        rc = load(c, e);
        coordinator_clock(c); /* loading was no pause */
        c->started_us = c->now_us;
        c->wall_offset_us = c->wall_us - c->now_us;
        c->tick_us = c->now_us + COORDINATOR_TICK_US;
    }
    if (rc != 0) {
        coordinator_close(c);
        return rc;
    }
    *ret = c;
    return 0;
}

void coordinator_close(struct service *c)
{
    if (!c)
        return;
    nodes_done(&c->nodes);
    queue_done(&c->queue);
    free(c->resting);
    free(c->waiting);
    store_close(c->store);
    free(c);
}

/* ---- ticks ---- */
static void tell_health(struct service *c, struct node *n, enum node_health was, struct err *e)
{
    log_event(n->health == NODE_LOST ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "node_health",
              "node=%s was=%s is=%s", n->name, node_health_name(was), node_health_name(n->health));
    if (n->health == NODE_LOST &&
        job_event(c->store, "node_lost", NULL, n->name,
                  json_pack("{s:I}", "silent_s",
                            (json_int_t)((c->now_us - (n->seen_us ? n->seen_us : c->started_us)) /
                                         1000000)),
                  c->wall_us, e) != 0)
        c->store_failure = *e;
}

static void tick_nodes(struct service *c)
{
    struct err e = {0};
    for (size_t i = 0; i < c->nodes.count; i++) {
        struct node *n = c->nodes.items[i];
        enum node_health was = n->health;
        n->health = node_health_at(n, c->now_us, c->started_us);
        if (n->health != was)
            tell_health(c, n, was, &e);
        c->nodes.unsettled |= n->health != was;
        if (node_wakes(n, c->now_us))
            coordinator_capacity(c);
    }
}

/* A coordinator that was stopped, or whose machine slept, has not heard of nodes which spoke: what
 * it missed is not held against them. */
static void forgive_pause(struct service *c)
{
    int64_t late = c->now_us - c->tick_us;
    if (late < COORDINATOR_PAUSE_US)
        return;
    log_event(LOG_LEVEL_WARNING, "paused", "seconds=%lld", (long long)(late / 1000000));
    c->started_us += late;
    for (size_t i = 0; i < c->nodes.count; i++) {
        struct node *n = c->nodes.items[i];
        if (n->seen_us)
            n->seen_us = n->seen_us + late < c->now_us ? n->seen_us + late : c->now_us;
        for (size_t k = 0; k < n->absence_count; k++)
            n->absences[k].since_us += late;
        for (size_t k = 0; k < n->device_count; k++)
            if (n->devices[k].absent_us)
                n->devices[k].absent_us += late;
    }
    c->tick_us = c->now_us;
}

static void wake_rested(struct service *c)
{
    struct err e = {0};
    for (size_t i = 0; i < c->resting_count;) {
        struct job_row job;
        if (c->resting[i].until_us > c->now_us) {
            if (c->resting[i].until_us < c->tick_us)
                c->tick_us = c->resting[i].until_us;
            i++;
            continue;
        }
        int rc = store_job_get(c->store, c->resting[i].id, &job, &e);
        if (rc != 0 && rc != ERR_NOT_FOUND) {
            c->resting[i++].until_us = c->now_us + COORDINATOR_DOOMED_US;
            c->store_failure = e;
            continue;
        }
        if (rc == 0) {
            if (job.state == JOB_PENDING)
                queue_add(&c->queue, &job);
            job_row_done(&job);
        }
        c->resting[i] = c->resting[--c->resting_count];
        coordinator_capacity(c);
    }
}

static void tick(struct service *c)
{
    struct err e = {0};
    c->tick_us = c->now_us + COORDINATOR_TICK_US;
    tick_nodes(c);
    wake_rested(c);
    if (c->now_us < c->expire_us)
        return;
    c->expire_us = c->now_us + COORDINATOR_EXPIRE_US;
    /* A wall clock that is set ahead while we run ages no key. */
    int64_t steady_us = c->now_us + c->wall_offset_us;
    int64_t wall_us = c->wall_us < steady_us ? c->wall_us : steady_us;
    if (store_key_expire(c->store, wall_us - COORDINATOR_KEY_LIFE_US, 1000, &e) < 0 ||
        kept_expire(c, wall_us, &e) < 0)
        c->store_failure = e;
}

/* ---- placement ---- */
static int assign(struct service *c, const struct queued *queued, struct node *n,
                  struct device *const *devices, int64_t count, struct err *e)
{
    struct job_row job;
    int rc = store_job_get(c->store, queued->id, &job, e);
    if (rc != 0)
        return rc;
    if (job.state == JOB_PENDING)
        rc = try_create(c, &job, n, devices, count, e);
    if (rc == 0)
        queue_remove(&c->queue, &job);
    job_row_done(&job);
    return rc;
}

/* A job whose start cannot be written must not stand before all others for ever: it rests, and the
 * queue is rebuilt without it. On a full disk nobody's can be. */
static int assign_or_rest(void *ctx, const struct queued *queued, struct node *n,
                          struct device *const *devices, int64_t count, struct err *e)
{
    struct service *c = ctx;
    int rc = assign(c, queued, n, devices, count, e);
    if (rc < 0 && rc != ERR_NO_SPACE) {
        err_prefix(e, "job %s", queued->id);
        coordinator_rest(c, queued->id, c->now_us + COORDINATOR_DOOMED_US);
    }
    return rc;
}

static void place(struct service *c)
{
    struct err e = {0};
    c->try_place = 0;
    if (!queue_has_candidates(&c->queue))
        return;
    int rc = sched_pass(&c->queue, &c->nodes, assign_or_rest, c, &e);
    if (rc == 1) {
        c->try_place = 1;
        c->go_on = 1;
    } else if (rc < 0) {
        c->rebuild = 1;
        log_event(LOG_LEVEL_ERROR, "placement_failed", "code=%s reason=%s", err_code_name(rc),
                  log_quote(e.text));
        if (rc == ERR_NO_SPACE)
            c->store_failure = e;
    }
}

/* ---- the end of a turn ---- */
/* Wakes who is told something new, or has waited long enough. What it parks again counts on. */
static void wake_due(struct service *c)
{
    for (size_t i = 0; i < c->nodes.count; i++) {
        struct node *n = c->nodes.items[i];
        if (n->ticket == 0 || (n->ticket_seen == n->wish && n->ticket_until_us > c->now_us))
            continue;
        uint64_t ticket = n->ticket;
        n->ticket = 0;
        if (c->api)
            api_wake(c->api, ticket);
        c->go_on = 1;
    }
}

static int commit(struct service *c, struct err *e)
{
    int had_work = store_dirty(c->store) || c->store_failure.code != 0;
    if (!had_work)
        return 0;
    int rc = store_commit(c->store, e);
    if (rc == 0 && c->store_failure.code == ERR_NO_SPACE) {
        c->no_space = c->store_failure;
    } else if (rc == 0) {
        c->commits++;
        c->no_space.code = 0;
    } else {
        c->failed_commits++;
        c->rebuild = 1;
        if (rc == ERR_NO_SPACE)
            c->no_space = *e;
    }
    c->store_failure.code = 0;
    return rc;
}

int coordinator_end_turn(struct service *c, struct err *e)
{
    struct err failure = {0};
    coordinator_clock(c);
    c->turns++;
    c->go_on = 0;
    forgive_pause(c);
    if (c->now_us >= c->tick_us)
        tick(c);
    if (c->try_place)
        place(c);
    int rc = commit(c, &failure);
    if (rc != 0)
        log_event(LOG_LEVEL_ERROR, "commit_failed", "code=%s reason=%s", err_code_name(rc),
                  log_quote(failure.text));
    if (c->api)
        api_turn_done(c->api, rc == 0 ? NULL : &failure);
    if (rc != 0 && rc != ERR_NO_SPACE) {
        if (e)
            *e = failure;
        return rc;
    }
    if (c->rebuild && (rc = rebuild(c, e)) != 0) {
        c->rebuild = 1; /* on a full disk even reading may fail; the next turn tries again */
        c->try_place = 0;
        return rc == ERR_NO_SPACE ? 0 : rc;
    }
    wake_due(c);
    return 0;
}

int coordinator_turn(struct service *c, struct err *e)
{
    coordinator_clock(c);
    forgive_pause(c); /* before requests are judged by it */
    api_run(c->api);
    return coordinator_end_turn(c, e);
}

int64_t coordinator_wait_us(struct service *c)
{
    if (c->go_on || store_dirty(c->store))
        return 0;
    int64_t now_us = clock_boottime_us() + c->clock_ahead_us;
    int64_t wait = c->tick_us - now_us, api = c->api ? api_timeout_us(c->api) : -1;
    for (size_t i = 0; i < c->nodes.count; i++) {
        const struct node *n = c->nodes.items[i];
        if (n->ticket && n->ticket_until_us - now_us < wait)
            wait = n->ticket_until_us - now_us;
    }
    if (api >= 0 && api < wait)
        wait = api;
    return wait > 0 ? wait : 0;
}
