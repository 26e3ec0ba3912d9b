/* devices.c: level-triggered as all else: what is to be done follows from how a device is now and
 * from what was told of it, so that a sync may be lost or repeated. */
#include "daemon/coordinator/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "daemon/coordinator/job.h"
#include "daemon/coordinator/tries.h"

static int is_broken(const struct device *d)
{
    return d->state == DEVICE_FAILED || d->state == DEVICE_LOST;
}

/* The node cannot look at its GPUs, which may be as well as ever: what runs there goes on, and no
 * device is blamed. */
static int is_unseen(const struct device *d)
{
    return strcmp(d->code, "nvml_missing") == 0 || strcmp(d->code, "probe_stalled") == 0;
}

/* What an event is worth: the state, or that nobody can see it. */
static int standing(const struct device *d)
{
    return is_unseen(d) ? DEVICE_STATE__MAX : (int)d->state;
}

/* ---- events ---- */
/* A fact of a device; `d` NULL: one that is not there now. */
static json_t *fact(const struct device *d, const char *key, const char *code, const char *reason)
{
    json_t *o = json_pack("{s:s, s:s}", "code", code, "reason", reason);
    if (d) {
        json_object_set_new(o, "device", json_integer(d->index));
        json_object_set_new(o, "name", json_string(d->name));
        if (d->attempt[0])
            json_object_set_new(o, "attempt", json_string(d->attempt));
    }
    json_object_set_new(o, "uuid",
                        d && d->uuid[0]                    ? json_string(d->uuid)
                        : key && strncmp(key, "index ", 6) ? json_string(key)
                                                           : json_null());
    return o;
}

static int tell_state(struct service *c, struct node *n, struct device *d, struct err *e)
{
    char type[40];
    snprintf(type, sizeof(type), "device_%s", device_state_name(d->state));
    log_event(d->state == DEVICE_READY ? LOG_LEVEL_INFO : LOG_LEVEL_WARNING, type,
              "node=%s device=%lld uuid=%s code=%s reason=%s", n->name, (long long)d->index,
              d->uuid[0] ? d->uuid : "-", d->code[0] ? d->code : "-", log_quote(d->reason));
    json_t *data = fact(d, NULL, d->code, d->reason);
    if (d->changes > 1)
        json_object_set_new(data, "changes", json_integer(d->changes));
    d->told = standing(d);
    d->changes = 0;
    return job_event(c->store, type, NULL, n->name, data, c->wall_us, e);
}

/* 1 if an event is due, and within the bounds: what flaps must not fill the disk. */
static int may_tell(const struct service *c, struct device *d)
{
    int64_t paid_us = d->events_us > c->now_us ? d->events_us : c->now_us;
    if (standing(d) == d->told || paid_us - c->now_us > (DEVICE_EVENTS - 1) * DEVICE_EVENT_US)
        return 0;
    d->events_us = paid_us + DEVICE_EVENT_US;
    return 1;
}

/* ---- too many failures ---- */
static int note_failure(struct service *c, struct node *n, struct device *d, struct err *e)
{
    char key[DEVICE_KEY_SIZE];
    node_device_key(d, key);
    if (node_drain(n, key) || n->drain_count >= NODE_MAX_DRAINS)
        return 0;
    int count =
        store_device_failed(c->store, n->name, key, c->wall_us, c->wall_us - DEVICE_FLAP_US, e);
    if (count < DEVICE_FLAPS)
        return count < 0 ? count : 0;
    CLEANUP(mem_freep)
    char *reason = mem_printf("It has failed %d times within a day, the last time so: %s", count,
                              d->reason[0] ? d->reason : d->code);
    struct drain_row r = {.node = n->name,
                          .device = key,
                          .reason = reason,
                          .by = (char *)"the coordinator",
                          .at_us = c->wall_us};
    return devices_drain(c, n, &r, e);
}

/* ---- what runs on it ---- */
static void say_broken(const struct node *n, const struct device *d, char *out, size_t size)
{
    snprintf(out, size, "%s %lld of node %s (%s%s%s) %s: %s",
             d->kind == DEVICE_GPU ? "GPU" : "CPU device", (long long)d->index, n->name,
             d->uuid[0] ? d->uuid : "no uuid", d->name[0] ? ", " : "", d->name,
             d->state == DEVICE_LOST ? "is lost" : "has failed",
             d->reason[0] ? d->reason
             : d->code[0] ? d->code
                          : "its node does not say why");
}

static int stop_attempt(struct service *c, const struct node *n, const struct device *d,
                        struct err *e)
{
    struct attempt_row a;
    struct job_row job;
    char reason[DEVICE_REASON_MAX + 500];
    int rc = store_attempt_get(c->store, d->attempt, &a, e);
    if (rc != 0)
        return rc;
    rc = store_job_get(c->store, a.job_id, &job, e);
    if (rc == 0) {
        say_broken(n, d, reason, sizeof(reason));
        if (job.attempt == a.number && a.state != ATTEMPT_ENDED &&
            (job.state == JOB_STARTING || job.state == JOB_RUNNING))
            rc = try_stop(c, &job, d->state == DEVICE_LOST ? "device_lost" : "device_failed",
                          reason, e);
        job_row_done(&job);
    }
    attempt_row_done(&a);
    return rc;
}

/* ---- following ---- */
/* A GPU that is leased and that its node has not listed for so long is lost. Ranks on CPU devices
 * need no more of them than a number. */
static void judge_absent(const struct service *c, struct device *d)
{
    if (!d->absent || !d->attempt[0])
        return;
    if (d->absent_us == 0)
        d->absent_us = c->now_us;
    if (d->kind != DEVICE_GPU || c->now_us - d->absent_us < NODE_ABSENT_US || is_broken(d))
        return;
    d->state = DEVICE_LOST;
    snprintf(d->code, sizeof(d->code), "device_lost");
    mem_replace(&d->reason, "its node has not listed it for 30 s");
}

static int follow_standing(struct service *c, struct node *n, struct device *d, struct err *e)
{
    int was_broken = d->is_broken;
    d->changes += d->followed != standing(d);
    d->followed = standing(d);
    if (!is_unseen(d))
        d->is_broken = is_broken(d);
    int rc = may_tell(c, d) ? tell_state(c, n, d, e) : 0;
    return rc == 0 && d->is_broken && !was_broken ? note_failure(c, n, d, e) : rc;
}

static int follow(struct service *c, struct node *n, struct device *d, struct err *e)
{
    int rc = 0;
    judge_absent(c, d);
    if (!node_device_is_checking(d))
        rc = follow_standing(c, n, d, e);
    if (rc == 0 && is_broken(d) && !is_unseen(d) && d->attempt[0])
        rc = stop_attempt(c, n, d, e);
    return rc;
}

int devices_follow(struct service *c, struct node *n, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < n->device_count && rc == 0; i++)
        rc = follow(c, n, &n->devices[i], e);
    return rc;
}

int devices_load(struct service *c, struct node *n, struct err *e)
{
    struct drain_row *rows = mem_zalloc(NODE_MAX_DRAINS * sizeof(*rows));
    int count = store_drain_list(c->store, n->name, NODE_MAX_DRAINS, rows, e);
    for (int i = 0; i < count; i++) {
        node_set_drain(n, &rows[i]);
        drain_row_done(&rows[i]);
    }
    free(rows);
    for (size_t i = 0; i < n->device_count; i++) {
        struct device *d = &n->devices[i];
        d->told = d->followed = node_device_is_checking(d) ? DEVICE_READY : standing(d);
        d->is_broken = is_broken(d) && !is_unseen(d);
    }
    return count < 0 ? count : 0;
}

/* ---- drains ---- */
static const struct device *device_of(const struct node *n, const char *key)
{
    char own[DEVICE_KEY_SIZE];
    for (size_t i = 0; i < n->device_count; i++)
        if (strcmp(node_device_key(&n->devices[i], own), key) == 0)
            return &n->devices[i];
    return NULL;
}

static int drain_event(struct service *c, const struct node *n, const char *what, const char *key,
                       const char *by, const char *reason, struct err *e)
{
    char type[40];
    json_t *data =
        key[0] ? fact(device_of(n, key), key, what, reason) : json_pack("{s:s}", "reason", reason);
    json_object_del(data, "code");
    json_object_set_new(data, "by", json_string(by));
    snprintf(type, sizeof(type), "%s_%s", key[0] ? "device" : "node", what);
    log_event(LOG_LEVEL_INFO, type, "node=%s device=%s by=%s reason=%s", n->name,
              key[0] ? log_quote(key) : "-", by[0] ? log_quote(by) : "-", log_quote(reason));
    return job_event(c->store, type, NULL, n->name, data, c->wall_us, e);
}

int devices_drain(struct service *c, struct node *n, const struct drain_row *r, struct err *e)
{
    int rc = store_drain_put(c->store, r, e);
    if (rc == 0)
        rc = drain_event(c, n, "drained", r->device, r->by, r->reason, e);
    if (rc == 0)
        node_set_drain(n, r);
    coordinator_capacity(c); /* what was kept there is kept elsewhere */
    return rc;
}

int devices_undrain(struct service *c, struct node *n, const char *device, const char *by,
                    struct err *e)
{
    int rc = store_drain_drop(c->store, n->name, device, e);
    if (rc >= 0 && device[0])
        rc = store_device_forgive(c->store, n->name, device, e);
    if (rc >= 0)
        rc = drain_event(c, n, "undrained", device, by, "", e);
    if (rc == 0)
        node_drop_drain(n, device);
    coordinator_capacity(c);
    return rc;
}
