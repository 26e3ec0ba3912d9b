/* service_agent.c: what an agent says (sync) and sends (files).
 *
 * A sync is applied once, when it arrives: the node, then each attempt that it lists, then what the
 * list leaves out. Then the wish list is made; if it is what the agent has seen already, the
 * request is parked, and coordinator_end_turn() wakes it when it has changed or its time is up. A
 * resumed request only reads.
 *
 * An agent is not trusted with more than its own node's attempts: what names another node's, or an
 * old epoch, changes nothing. Cost: three small queries for each attempt on the node.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/service.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/devices.h"
#include "daemon/coordinator/job.h"
#include "daemon/coordinator/kept.h"
#include "daemon/coordinator/reports.h"
#include "daemon/coordinator/telemetry.h"
#include "daemon/coordinator/tries.h"
#include "daemon/coordinator/wanted.h"

#define MAX_WAIT_MS     10000    /* a parked request is answered by then: half of NODE_SUSPECT_US */
#define MAX_LATE_US     60000000 /* a body older than that beside a newer one is a clock set back */
#define STORE_SEEN_US   60000000
#define MAX_TEXT        128
#define FILE_MAX_NUMBER 1024

struct sync {
    struct service *service;
    struct node *node;
    const char *name, *version, *boot_id, *state_id, *trouble, *run, *share;
    int64_t wait_ms, seen, wall_us, sequence;
    const json_t *devices, *attempts, *telemetry, *trainers;
    const json_t *held; /* checkpoints that lie there, or NULL: not said now */
    int rebooted;
    int late;        /* an older request than the newest that was applied */
    int has_reports; /* the agent waits for a report offset */
    int64_t wish_before;
};

/* ---- the body ---- */
static int check_body(const struct sync *s, struct service_reply *r)
{
    if (!node_name_valid(s->name))
        return service_fail(r, 400, "invalid_sync",
                            "node must be 1 to %d of a-z, 0-9, '.' and '-', and not begin with "
                            "'.' or '-'.",
                            NODE_NAME_MAX);
    if (strlen(s->version) > MAX_TEXT || strlen(s->boot_id) > MAX_TEXT || !s->boot_id[0] ||
        strlen(s->state_id) > MAX_TEXT)
        return service_fail(r, 400, "invalid_sync",
                            "version, boot_id and state_id have at most %d bytes, and boot_id at "
                            "least one.",
                            MAX_TEXT);
    if (strlen(s->trouble) > NODE_TROUBLE_MAX)
        return service_fail(r, 400, "invalid_sync", "trouble has at most %d bytes.",
                            NODE_TROUBLE_MAX);
    if (strlen(s->share) > QUEUE_PLACE_MAX || (s->run[0] && !id_valid("run", s->run)))
        return service_fail(r, 400, "invalid_sync",
                            "checkpoint_share has at most %d bytes, and run is an id, run_...",
                            QUEUE_PLACE_MAX);
    if (s->wait_ms < 0 || s->seen < 0 || s->wall_us < 0 || s->sequence < 0)
        return service_fail(r, 400, "invalid_sync",
                            "wait_ms, seen, wall_us and sequence are not negative.");
    if (s->held && (!json_is_array(s->held) || json_array_size(s->held) > KEPT_MAX_JOBS))
        return service_fail(r, 400, "invalid_sync", "checkpoints must be an array of at most %d.",
                            KEPT_MAX_JOBS);
    if (s->trainers && !json_is_array(s->trainers))
        return service_fail(r, 400, "invalid_sync",
                            "trainers must be an array of \"cpu\" and \"cuda\".");
    if (!json_is_array(s->attempts) || json_array_size(s->attempts) > NODE_MAX_ATTEMPTS)
        return service_fail(r, 400, "invalid_sync", "attempts must be an array of at most %d.",
                            NODE_MAX_ATTEMPTS);
    return 0;
}

static int read_body(struct sync *s, const json_t *body, struct service_reply *r)
{
    json_int_t wait_ms, seen, wall_us, sequence = 0;
    json_t *devices, *attempts, *held = NULL, *telemetry = NULL, *trainers = NULL;
    json_error_t je;
    if (json_unpack_ex(
            (json_t *)body, &je, 0,
            "{s:s, s:s, s:s, s:I, s:I, s:I, s:o, s:o, s?s, s?s, s?s, s?I, s?s, s?o, s?o, s?o}",
            "node", &s->name, "version", &s->version, "boot_id", &s->boot_id, "wait_ms", &wait_ms,
            "seen", &seen, "wall_us", &wall_us, "devices", &devices, "attempts", &attempts,
            "state_id", &s->state_id, "trouble", &s->trouble, "run", &s->run, "sequence", &sequence,
            "checkpoint_share", &s->share, "checkpoints", &held, "telemetry", &telemetry,
            "trainers", &trainers) != 0)
        return service_fail(r, 400, "invalid_sync", "The sync cannot be read: %s.", je.text);
    s->state_id = s->state_id ? s->state_id : "";
    s->trouble = s->trouble ? s->trouble : "";
    s->run = s->run ? s->run : "";
    s->share = s->share ? s->share : "";
    s->sequence = sequence;
    s->held = held;
    s->wait_ms = wait_ms < MAX_WAIT_MS ? wait_ms : MAX_WAIT_MS;
    s->seen = seen;
    s->wall_us = wall_us;
    s->devices = devices;
    s->attempts = attempts;
    s->telemetry = telemetry;
    s->trainers = trainers;
    return check_body(s, r);
}

/* ---- the node ---- */
/* Two machines with one name would end each other's attempts as rebooted, and two agents of one
 * machine would both run whatever the node is given. A reboot takes longer than the time for which
 * we insist on the boot id and the state directory that spoke last. */
static int check_name_is_free(const struct sync *s, const struct node *n, struct service_reply *r)
{
    if (!n || n->seen_us == 0 || s->service->now_us - n->seen_us >= NODE_SUSPECT_US)
        return 0;
    int is_machine = strcmp(n->boot_id, s->boot_id) == 0;
    if (is_machine && (!*n->state_id || !*s->state_id || strcmp(n->state_id, s->state_id) == 0))
        return 0;
    r->retry_after_s = (int)(NODE_SUSPECT_US / 1000000);
    if (is_machine)
        return service_fail(r, 409, "node_name_taken",
                            "An agent on this machine with another state directory reported as "
                            "node %s less than %d s ago. If this one takes its place, it is let in "
                            "when that time is over; if there are two, give one another name.",
                            s->name, (int)(NODE_SUSPECT_US / 1000000));
    return service_fail(r, 409, "node_name_taken",
                        "A machine with another boot id reported as node %s less than %d s ago. "
                        "If this one was rebooted, it is let in when that time is over; if there "
                        "are two, give one another name.",
                        s->name, (int)(NODE_SUSPECT_US / 1000000));
}

static int store_node(struct service *c, struct node *n, struct err *e)
{
    struct node_row row = {.name = n->name,
                           .boot_id = n->boot_id,
                           .version = n->version,
                           .devices = n->devices_text,
                           .joined_us = n->joined_us,
                           .seen_us = c->wall_us};
    n->stored_seen_us = c->wall_us;
    return store_node_put(c->store, &row, e);
}

static int node_joins(struct sync *s, struct err *e)
{
    struct service *c = s->service;
    s->node->joined_us = c->wall_us;
    coordinator_wish(c, s->node);
    log_event(LOG_LEVEL_INFO, "node_joined", "node=%s devices=%zu", s->name, s->node->device_count);
    return job_event(c->store, "node_joined", NULL, s->name,
                     json_pack("{s:s, s:s, s:o}", "boot_id", s->boot_id, "version", s->version,
                               "devices", json_loads(s->node->devices_text, 0, NULL)),
                     c->wall_us, e);
}

static int node_reboots(struct sync *s, struct err *e)
{
    struct service *c = s->service;
    coordinator_wish(c, s->node);
    log_event(LOG_LEVEL_WARNING, "node_rebooted", "node=%s", s->name);
    return job_event(c->store, "node_rebooted", NULL, s->name,
                     json_pack("{s:s, s:s}", "boot_id", s->boot_id, "previous", s->node->boot_id),
                     c->wall_us, e);
}

/* Something to write about it: a first time, a new boot, other devices, or the time to note that
 * it is still there. */
static int update_node(struct sync *s, int devices_changed, struct err *e)
{
    struct service *c = s->service;
    struct node *n = s->node;
    int is_new = n->joined_us == 0;
    int rc = 0;
    if (is_new)
        rc = node_joins(s, e);
    if (rc == 0 && s->rebooted)
        rc = node_reboots(s, e);
    int changed = is_new || s->rebooted || devices_changed || strcmp(n->version, s->version) != 0 ||
                  c->wall_us - n->stored_seen_us > STORE_SEEN_US;
    mem_replace(&n->boot_id, s->boot_id);
    mem_replace(&n->state_id, s->state_id);
    mem_replace(&n->version, s->version);
    if (rc == 0 && changed)
        rc = store_node(c, n, e);
    if (devices_changed) {
        coordinator_view(c);
        coordinator_capacity(c);
    }
    return rc;
}

static int node_speaks(struct sync *s, struct err *e)
{
    struct service *c = s->service;
    struct node *n = s->node;
    enum node_health was = n->health;
    n->seen_us = c->now_us;
    n->seen_wall_us = c->wall_us;
    n->health = NODE_READY;
    if (was == NODE_READY)
        return 0;
    coordinator_capacity(c);
    if (was != NODE_LOST)
        return 0;
    log_event(LOG_LEVEL_INFO, "node_back", "node=%s", n->name);
    return job_event(c->store, "node_back", NULL, n->name, NULL, c->wall_us, e);
}

/* Where it has trouble, no job is placed; what runs there goes on. */
static void take_trouble(struct sync *s)
{
    struct node *n = s->node;
    if (!n->trouble[0] != !*s->trouble)
        log_event(*s->trouble ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "node_trouble",
                  "node=%s reason=%s", n->name, log_quote(*s->trouble ? s->trouble : "over"));
    if (n->trouble[0] && !*s->trouble)
        coordinator_capacity(s->service);
    snprintf(n->trouble, sizeof(n->trouble), "%s", s->trouble);
}

/* Which checkpoints it sees, and so which jobs can go on there. */
static void take_share(struct sync *s)
{
    if (strcmp(s->node->share, s->share) == 0)
        return;
    mem_replace(&s->node->share, s->share);
    coordinator_capacity(s->service);
}

/* Which trainer programs it has; an agent that does not say has the one for CPUs. What else it
 * names is for a version to come. */
static void take_trainers(struct sync *s)
{
    unsigned trainers = s->trainers ? 0 : NODE_TRAINER_CPU;
    for (size_t i = 0; i < json_array_size(s->trainers); i++) {
        const char *name = json_string_value(json_array_get(s->trainers, i));
        trainers |= name && strcmp(name, "cpu") == 0    ? NODE_TRAINER_CPU
                    : name && strcmp(name, "cuda") == 0 ? NODE_TRAINER_CUDA
                                                        : 0;
    }
    if (trainers == s->node->trainers)
        return;
    s->node->trainers = trainers;
    coordinator_capacity(s->service);
}

/* ---- its devices ---- */
/* Before its attempts: what ended for a device's sake is judged by how the device is. */
static int take_devices(struct sync *s, struct err *e)
{
    struct node *n = s->node;
    take_trainers(s);
    int rc = devices_follow(s->service, n, e);
    uint64_t wrong = telemetry_take(n, s->telemetry, s->service->now_us);
    if (wrong > 0 && s->service->dropped_figures == 0)
        log_event(LOG_LEVEL_WARNING, "figures_ignored", "node=%s reason=%s", n->name,
                  log_quote("telemetry that makes no sense; told once, trainyard_dropped_figures_"
                            "total counts"));
    s->service->dropped_figures += wrong;
    return rc;
}

/* Says once that a list was not taken, and once that it is right again. */
static void tell_mismatch(struct sync *s, int was_wrong)
{
    const struct node *n = s->node;
    if (!n->mismatch == !was_wrong)
        return;
    log_event(n->mismatch ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "node_devices", "node=%s reason=%s",
              n->name, log_quote(n->mismatch ? n->mismatch : "right again"));
    coordinator_capacity(s->service);
}

/* ---- its attempts ---- */
/* The record as it is kept: it says what the job's reason says. */
static json_t *as_judged(const struct ending *x, const json_t *record)
{
    json_t *o = json_copy((json_t *)record);
    json_object_set_new(o, "outcome", json_string(outcome_name(x->outcome)));
    json_object_set_new(o, "code", json_string(x->code));
    json_object_set_new(o, "reason", json_string(x->reason));
    json_object_set_new(o, "retryable", json_boolean(x->retryable));
    return o;
}

static int take_end(struct sync *s, struct attempt_row *a, const json_t *o, struct err *e)
{
    struct service *c = s->service;
    const json_t *record = json_object_get(o, "exit");
    struct ending x;
    struct err why = {0};
    char reason[600];
    if (ending_parse(record, &x, &why) != 0) {
        snprintf(reason, sizeof(reason), "Node %s sent an exit record that cannot be read: %s.",
                 a->node, why.text);
        return try_end_lost(c, a, OUTCOME_FAILED, "invalid_exit_record", reason, e);
    }
    if (x.outcome == OUTCOME_SHIM_LOST && a->boot_id && strcmp(a->boot_id, s->boot_id) != 0) {
        snprintf(x.code, sizeof(x.code), "node_rebooted");
        snprintf(x.reason, sizeof(x.reason), "Node %s was rebooted while the attempt ran.",
                 a->node);
    }
    if (strcmp(x.code, "attempt_lost") == 0 && x.outcome == OUTCOME_STOPPED) {
        x.outcome = OUTCOME_SHIM_LOST; /* its node had lost it, and has ended what was left */
        x.retryable = 1;
    }
    json_auto_t *kept = as_judged(&x, record);
    return try_end(c, a, &x, kept, e);
}

static int take_live(struct sync *s, struct attempt_row *a, const json_t *o, const char *state,
                     struct err *e)
{
    const json_t *reports = json_object_get(o, "reports"), *ranks = json_object_get(o, "ranks");
    const json_t *started = json_object_get(o, "started_us");
    int running = strcmp(state, "running") == 0 ||
                  (strcmp(state, "stopping") == 0 && json_array_size(ranks) > 0);
    int rc = try_observe(s->service, s->node, a, running, json_integer_value(started), ranks, e);
    int64_t before = a->report_offset;
    const char *waits = json_string_value(json_object_get(o, "waits"));
    if (waits && strcmp(waits, "coordinator_disk") == 0)
        coordinator_add_waiting(s->service, s->name, a->job_id);
    if (rc == 0 && reports)
        rc = reports_take(s->service, a, reports, e);
    if (json_array_size(json_object_get(reports, "lines")) > 0 || a->report_offset != before)
        s->has_reports = 1; /* no line may be left where none of the bytes was a report */
    return rc == 0 && strcmp(state, "ended") == 0 ? take_end(s, a, o, e) : rc;
}

/* Its devices are free in our books, but something runs on them. */
static int haunt(struct sync *s, const struct attempt_row *a, struct err *e)
{
    struct lease_row *leases = mem_zalloc(NODE_MAX_DEVICES * sizeof(*leases));
    int count = store_lease_of(s->service->store, a->id, NODE_MAX_DEVICES, leases, e);
    for (int i = 0; i < count; i++) {
        struct device *d = node_device(s->node, leases[i].device);
        if (d)
            d->haunted = 1;
        lease_row_done(&leases[i]);
    }
    free(leases);
    return count < 0 ? count : 0;
}

static int state_valid(const char *state)
{
    static const char *const states[] = {"launching", "running", "stopping", "ended"};
    for (size_t i = 0; state && i < ARRAY_LEN(states); i++)
        if (strcmp(states[i], state) == 0)
            return 1;
    return 0;
}

static int take_attempt(struct sync *s, const json_t *o, struct err *e)
{
    const char *id = json_string_value(json_object_get(o, "attempt"));
    const char *state = json_string_value(json_object_get(o, "state"));
    struct attempt_row a;
    if (!id || !id_valid("att", id) || !state_valid(state)) {
        log_event(LOG_LEVEL_WARNING, "attempt_ignored", "node=%s reason=%s", s->name,
                  log_quote("not an attempt with an id and a state"));
        return 0;
    }
    int rc = store_attempt_get(s->service->store, id, &a, e);
    if (rc != 0)
        return rc == ERR_NOT_FOUND ? 0 : rc;
    if (strcmp(a.node, s->name) != 0)
        log_event(LOG_LEVEL_WARNING, "attempt_ignored", "node=%s attempt=%s reason=%s", s->name, id,
                  log_quote("it belongs to another node"));
    else if (a.state != ATTEMPT_ENDED && json_integer_value(json_object_get(o, "epoch")) == a.epoch)
        rc = take_live(s, &a, o, state, e);
    else if (strcmp(state, "ended") != 0)
        rc = haunt(s, &a, e);
    attempt_row_done(&a);
    return rc;
}

/* ---- what it leaves out ---- */
static int is_listed(const json_t *attempts, const char *id)
{
    for (size_t i = 0; i < json_array_size(attempts); i++) {
        const json_t *o = json_array_get(attempts, i);
        const char *other = json_string_value(json_object_get(o, "attempt"));
        if (other && strcmp(other, id) == 0)
            return 1;
    }
    return 0;
}

static int missing_attempt(struct sync *s, struct attempt_row *a, struct absence *absences,
                           size_t *count, struct err *e)
{
    struct service *c = s->service;
    char reason[300];
    if (!a->boot_id) {
        /* Never begun. It will not be, once the agent knows that its end is wanted. */
        if (a->state == ATTEMPT_STOPPING && s->seen == s->wish_before)
            return try_end_lost(c, a, OUTCOME_STOPPED, a->stop_code, a->stop_reason, e);
        return 0;
    }
    if (strcmp(a->boot_id, s->boot_id) != 0) {
        snprintf(reason, sizeof(reason), "Node %s was rebooted while the attempt ran.", a->node);
        return try_end_lost(c, a, OUTCOME_SHIM_LOST, "node_rebooted", reason, e);
    }
    const struct absence *before = node_absence(s->node, a->id);
    struct absence *now = &absences[(*count)++];
    *now = before ? *before : (struct absence){.since_us = c->now_us};
    snprintf(now->attempt, sizeof(now->attempt), "%s", a->id);
    if (!now->is_lost && c->now_us - now->since_us >= NODE_ABSENT_US) {
        now->is_lost = 1; /* from now on the node is told to end what may be left of it */
        coordinator_wish(c, s->node);
    }
    return 0;
}

static int take_missing(struct sync *s, struct err *e)
{
    struct attempt_row *rows = mem_zalloc(NODE_MAX_ATTEMPTS * sizeof(*rows));
    int count = store_attempt_live(s->service->store, s->name, NODE_MAX_ATTEMPTS, rows, e);
    struct absence *absences =
        mem_zalloc(((size_t)(count > 0 ? count : 0) + 1) * sizeof(*absences));
    size_t missing = 0;
    int rc = count < 0 ? count : 0;
    for (int i = 0; i < count; i++) {
        if (rc == 0 && !is_listed(s->attempts, rows[i].id))
            rc = missing_attempt(s, &rows[i], absences, &missing, e);
        attempt_row_done(&rows[i]);
    }
    free(rows);
    free(s->node->absences);
    s->node->absences = absences;
    s->node->absence_count = missing;
    return rc;
}

/* ---- applying ---- */
/* An agent has two requests under way, on two connections, and the older one may arrive last. Of
 * another run of it, or one that does not count its requests, the clock has to say. */
static int is_late(const struct sync *s)
{
    const struct heard *h = &s->node->heard;
    if (s->run[0] && strcmp(s->run, h->run) == 0)
        return s->sequence < h->sequence;
    return !s->rebooted && s->wall_us < h->wall_us && h->wall_us - s->wall_us < MAX_LATE_US;
}

static void note_heard(struct sync *s)
{
    struct heard *h = &s->node->heard;
    snprintf(h->run, sizeof(h->run), "%s", s->run);
    h->sequence = s->sequence;
    h->wall_us = s->wall_us;
}

static int take_attempts(struct sync *s, struct err *e)
{
    int rc = 0, was_haunted = 0;
    coordinator_forget_waiting(s->service, s->name);
    for (size_t i = 0; i < s->node->device_count; i++) {
        was_haunted |= s->node->devices[i].haunted;
        s->node->devices[i].haunted = 0;
    }
    for (size_t i = 0; i < json_array_size(s->attempts) && rc == 0; i++)
        rc = take_attempt(s, json_array_get(s->attempts, i), e);
    if (was_haunted)
        coordinator_capacity(s->service);
    return rc == 0 ? take_missing(s, e) : rc;
}

static int apply(struct sync *s, int devices_changed, struct err *e)
{
    int rc = store_mark(s->service->store, e);
    if (rc != 0)
        return rc;
    rc = update_node(s, devices_changed, e);
    if (rc == 0)
        rc = node_speaks(s, e);
    if (rc == 0 && !s->late) {
        note_heard(s);
        take_trouble(s);
        take_share(s);
        rc = take_devices(s, e);
    }
    if (rc == 0 && !s->late)
        rc = take_attempts(s, e);
    if (rc != 0)
        store_undo(s->service->store);
    else
        store_keep(s->service->store);
    return rc;
}

/* ---- answering ---- */
static int answer(struct sync *s, uint64_t ticket, int fresh, struct service_reply *r)
{
    struct service *c = s->service;
    struct node *n = s->node;
    struct err e = {0};
    json_t *body;
    uint64_t sum, removed = 0;
    int more;
    int rc = wanted_answer(c, n, s->attempts, fresh && !s->late, &body, &sum, &more, &e);
    if (rc != 0)
        return coordinator_store_failed(c, &e, r);
    if (s->held)
        rc = kept_answer(c, s->held, body, &removed, &e);
    if (rc != 0) {
        json_decref(body);
        return coordinator_store_failed(c, &e, r);
    }
    if (fresh && (sum != n->forget_sum || (s->held && removed != n->remove_sum))) {
        n->forget_sum = sum;
        n->remove_sum = s->held ? removed : n->remove_sum;
        coordinator_wish(c, n);
        json_object_set_new(body, "seen", json_integer(n->wish));
    }
    if (fresh && s->wait_ms > 0 && s->seen == n->wish && !s->has_reports && !more) {
        json_decref(body);
        uint64_t before = n->ticket;
        n->ticket = ticket;
        n->ticket_seen = s->seen;
        n->ticket_until_us = c->now_us + s->wait_ms * 1000;
        if (before && before != ticket && c->api)
            api_wake(c->api, before);
        r->wait = 1;
        return 0;
    }
    r->status = 200;
    r->body = body;
    return 0;
}

static int resumed_answer(struct sync *s, struct service_reply *r)
{
    s->node = nodes_find(&s->service->nodes, s->name);
    if (s->node)
        return answer(s, 0, 0, r);
    r->retry_after_s = 1;
    return service_fail(r, 503, "unavailable", "The coordinator has lost this node's last sync.");
}

int service_agent_sync(struct service *c, const json_t *body, uint64_t ticket, int resumed,
                       struct service_reply *r)
{
    struct sync s = {.service = c};
    struct err e = {0};
    int rc = read_body(&s, body, r);
    if (rc != 0)
        return rc;
    if (resumed)
        return resumed_answer(&s, r);
    rc = check_name_is_free(&s, nodes_find(&c->nodes, s.name), r);
    if (rc != 0)
        return rc;
    if (c->nodes.count >= COORDINATOR_MAX_NODES && !nodes_find(&c->nodes, s.name))
        return service_fail(
            r, 429, "too_many_nodes",
            "There are %zu nodes already, and %s is none of them; at most %d may be.",
            c->nodes.count, s.name, COORDINATOR_MAX_NODES);
    s.node = nodes_get(&c->nodes, s.name);
    s.wish_before = s.node->wish;
    c->syncs++;
    s.rebooted = s.node->joined_us != 0 && strcmp(s.node->boot_id, s.boot_id) != 0;
    s.late = is_late(&s); /* an old list may call a device ready that has been found dirty since */
    int was_wrong = s.node->mismatch != NULL;
    int devices_changed = s.late ? 0 : node_set_devices(s.node, s.devices, &e);
    tell_mismatch(&s, was_wrong);
    if (devices_changed < 0) {
        if (s.node->joined_us == 0) /* it has not become one */
            nodes_drop(&c->nodes, s.node);
        return service_fail(r, 400, "invalid_sync", "The sync cannot be read: %s.", e.text);
    }
    if (apply(&s, devices_changed, &e) != 0)
        return coordinator_store_failed(c, &e, r);
    return answer(&s, ticket, 1, r);
}

/* ---- files ---- */
static int append(struct service *c, const struct agent_file *q, const struct attempt_row *a,
                  struct service_reply *r)
{
    struct err e = {0};
    int64_t size = 0;
    int rc = store_file_append(c->store, a->job_id, a->number, q->name, q->offset, q->bytes, q->n,
                               &size, &e);
    if (rc == 0 || rc == ERR_CONFLICT)
        r->body = json_pack("{s:I}", "size", (json_int_t)size);
    switch (rc) {
    case 0: r->status = 200; return 0;
    case ERR_CONFLICT:
        return service_fail(r, 409, "offset_mismatch", "%s has %lld bytes here, not %lld.", q->name,
                            (long long)size, (long long)q->offset);
    case ERR_INVALID: return service_fail(r, 400, "invalid_file", "%s.", e.text);
    case ERR_NO_SPACE:
        return service_fail(r, 507, "insufficient_storage", "Nothing was stored: %s", e.text);
    case ERR_TOO_LARGE: return service_fail(r, 413, "too_large", "%s.", e.text);
    default: return service_fail(r, 500, "internal", "The file could not be stored: %s", e.text);
    }
}

static int file_name_valid(const char *name)
{
    static const char log_prefix[] = "rank-", artifact_prefix[] = "artifact.";
    if (strncmp(name, artifact_prefix, sizeof(artifact_prefix) - 1) == 0)
        return name[sizeof(artifact_prefix) - 1] != '\0';
    if (strncmp(name, log_prefix, sizeof(log_prefix) - 1) != 0)
        return 0;
    const char *digits = name + sizeof(log_prefix) - 1;
    size_t n = strspn(digits, "0123456789");
    return n > 0 && n <= 4 && atoi(digits) < FILE_MAX_NUMBER && strcmp(digits + n, ".log") == 0;
}

int service_agent_file(struct service *c, const struct agent_file *q, struct service_reply *r)
{
    struct attempt_row a;
    struct err e = {0};
    if (!file_name_valid(q->name))
        return service_fail(r, 400, "invalid_file",
                            "A file is named rank-N.log or artifact.NAME, not \"%.60s\".", q->name);
    int rc = id_valid("att", q->attempt_id) ? store_attempt_get(c->store, q->attempt_id, &a, &e)
                                            : ERR_NOT_FOUND;
    if (rc == ERR_NOT_FOUND)
        return service_fail(r, 404, "not_found", "There is no attempt %.60s.", q->attempt_id);
    if (rc != 0)
        return coordinator_store_failed(c, &e, r);
    if (strcmp(a.node, q->node) != 0 || a.epoch != q->epoch)
        rc = service_fail(r, 409, "stale_epoch",
                          "Attempt %s is at epoch %lld on node %s, not at epoch %lld on node "
                          "%.64s.",
                          a.id, (long long)a.epoch, a.node, (long long)q->epoch, q->node);
    else
        rc = append(c, q, &a, r);
    attempt_row_done(&a);
    return rc;
}
