/* document.c: what a reader of the API sees of a row. A pending job's reason is made here, at the
 * moment of reading, from what the nodes are like now: writing it to 10,000 waiting jobs whenever a
 * device changes hands would be neither cheap nor fresh. */
#include "daemon/coordinator/document.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/coordinator/explain.h"

json_t *document_time(int64_t wall_us)
{
    char text[CLOCK_TEXT_SIZE];
    return wall_us == 0 ? json_null() : json_string(clock_format(wall_us, text));
}

/* Stored JSON; null where there is none. What was stored was checked, so a text that cannot be read
 * is damage. */
static int stored_json(const char *text, const char *what, const char *id, json_t **ret,
                       struct err *e)
{
    json_error_t je;
    json_t *doc = text && text[0] ? json_loads(text, JSON_DECODE_ANY, &je) : json_null();
    if (!doc)
        return err_set(e, ERR_CORRUPT, "the stored %s of %s cannot be read: %s", what, id, je.text);
    *ret = doc;
    return 0;
}

/* ---- jobs ---- */
static void set_reason(struct service *c, const struct job_row *job, json_t *doc)
{
    struct explanation why;
    const char *code = job->reason_code, *text = job->reason;
    if (job->state == JOB_PENDING && !coordinator_is_resting(c, job->id)) {
        struct need need = {
            .devices = job->devices, .kind = job->device_kind, .memory = job->memory};
        explain_pending(&c->nodes, &need, queue_ahead(&c->queue, job->priority, job->seq),
                        c->now_us, &why);
        code = why.code;
        text = why.text;
    }
    json_object_set_new(doc, "reason", json_string(text ? text : ""));
    json_object_set_new(doc, "reason_code", json_string(code ? code : ""));
}

static json_t *devices_of(const struct attempt_row *a, const struct lease_row *leases, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:I, s:s, s:I}", "rank", (json_int_t)leases[i].rank,
                                        "node", a->node, "device", (json_int_t)leases[i].device));
    return list;
}

static int attempt_devices(struct service *c, const struct attempt_row *a, json_t **ret,
                           struct err *e)
{
    struct lease_row *leases = mem_zalloc(NODE_MAX_DEVICES * sizeof(*leases));
    int count = store_lease_of(c->store, a->id, NODE_MAX_DEVICES, leases, e);
    if (count >= 0)
        *ret = devices_of(a, leases, count);
    for (int i = 0; i < count; i++)
        lease_row_done(&leases[i]);
    free(leases);
    return count < 0 ? count : 0;
}

/* Of the latest attempt; an empty list before the first, and while the job waits again. */
static int set_devices(struct service *c, const struct job_row *job, json_t *doc, struct err *e)
{
    struct attempt_row a;
    json_t *devices = NULL;
    int rc = 0;
    if (job->attempt == 0 || job->state == JOB_PENDING) {
        devices = json_array();
    } else {
        rc = store_attempt_latest(c->store, job->id, &a, e);
        if (rc != 0)
            return rc;
        rc = attempt_devices(c, &a, &devices, e);
        attempt_row_done(&a);
    }
    if (rc == 0)
        json_object_set_new(doc, "devices", devices);
    return rc;
}

/* Sets `key` to what the caller has, or else to the stored text. */
static int set_part(json_t *doc, const char *key, json_t *part, const char *text, const char *id,
                    struct err *e)
{
    json_t *stored = NULL;
    if (part) {
        json_object_set(doc, key, part);
        return 0;
    }
    int rc = stored_json(text, key, id, &stored, e);
    if (rc == 0)
        json_object_set_new(doc, key, stored);
    return rc;
}

static int set_labels(struct service *c, const struct job_row *job, json_t *labels, json_t *doc,
                      struct err *e)
{
    CLEANUP(mem_freep) char *text = NULL;
    int rc = labels ? 0 : store_job_labels(c->store, job->id, &text, e);
    return rc == 0 ? set_part(doc, "labels", labels, text, job->id, e) : rc;
}

static json_t *frame(struct service *c, const struct job_row *job)
{
    json_t *doc = json_pack("{s:s, s:s, s:s, s:s}", "id", job->id, "name", job->name, "user",
                            job->user ? job->user : "", "state", job_state_name(job->state));
    set_reason(c, job, doc);
    json_object_set_new(doc, "progress",
                        json_pack("{s:I, s:I, s:I}", "epoch", (json_int_t)job->epoch, "step",
                                  (json_int_t)job->step, "steps", (json_int_t)job->steps));
    json_object_set_new(doc, "submitted_at", document_time(job->submitted_us));
    json_object_set_new(doc, "started_at", document_time(job->started_us));
    json_object_set_new(doc, "finished_at", document_time(job->finished_us));
    json_object_set_new(doc, "attempt", json_integer(job->attempt));
    json_object_set_new(doc, "priority", json_integer(job->priority));
    json_object_set_new(doc, "version", json_integer(job->version));
    return doc;
}

int document_job(struct service *c, const struct job_row *job, const struct document_parts *parts,
                 json_t **ret, struct err *e)
{
    static const struct document_parts nothing;
    const struct document_parts *p = parts ? parts : &nothing;
    json_t *doc = frame(c, job);
    int rc = set_part(doc, "strategy", p->plan, job->plan, job->id, e);
    if (rc == 0)
        rc = set_part(doc, "exit", NULL, job->exit, job->id, e);
    if (rc == 0)
        rc = set_part(doc, "spec", p->spec, job->spec, job->id, e);
    if (rc == 0)
        rc = set_labels(c, job, p->labels, doc, e);
    if (rc == 0)
        rc = set_devices(c, job, doc, e);
    if (rc != 0) {
        json_decref(doc);
        return rc;
    }
    *ret = doc;
    return 0;
}

int document_job_slim(struct service *c, const struct job_row *job, json_t **ret, struct err *e)
{
    json_t *plan;
    int rc = stored_json(job->plan, "plan", job->id, &plan, e);
    if (rc != 0)
        return rc;
    json_t *doc = frame(c, job);
    json_object_set(doc, "strategy", json_object_get(plan, "name"));
    json_object_set_new(doc, "ranks", json_integer(job->devices));
    json_decref(plan);
    *ret = doc;
    return 0;
}

/* ---- attempts ---- */
int document_attempt(struct service *c, const struct attempt_row *a, json_t **ret, struct err *e)
{
    json_t *devices, *exit;
    int rc = stored_json(a->exit, "exit record", a->id, &exit, e);
    if (rc != 0)
        return rc;
    rc = attempt_devices(c, a, &devices, e);
    if (rc != 0) {
        json_decref(exit);
        return rc;
    }
    json_t *doc =
        json_pack("{s:s, s:I, s:I, s:s, s:s, s:o, s:o}", "id", a->id, "number",
                  (json_int_t)a->number, "epoch", (json_int_t)a->epoch, "node", a->node, "state",
                  attempt_state_name(a->state), "devices", devices, "exit", exit);
    json_object_set_new(doc, "created_at", document_time(a->created_us));
    json_object_set_new(doc, "started_at", document_time(a->started_us));
    json_object_set_new(doc, "ended_at", document_time(a->ended_us));
    json_object_set_new(doc, "stop",
                        a->stop_code ? json_pack("{s:s, s:s}", "code", a->stop_code, "reason",
                                                 a->stop_reason ? a->stop_reason : "")
                                     : json_null());
    *ret = doc;
    return 0;
}

/* ---- nodes ---- */
static json_t *document_device(const struct device *d)
{
    const char *state = d->attempt[0] ? "leased" : d->haunted ? "busy" : "free";
    json_t *doc = json_pack("{s:I, s:s, s:I, s:s, s:s}", "index", (json_int_t)d->index, "kind",
                            device_kind_name(d->kind), "memory_bytes", (json_int_t)d->memory,
                            "name", d->name, "state", state);
    json_object_set_new(doc, "attempt", d->attempt[0] ? json_string(d->attempt) : json_null());
    return doc;
}

json_t *document_node(const struct node *n)
{
    json_t *devices = json_array();
    int64_t free_devices = 0;
    for (size_t i = 0; i < n->device_count; i++) {
        free_devices += node_device_free(&n->devices[i]);
        json_array_append_new(devices, document_device(&n->devices[i]));
    }
    json_t *doc =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:o}", "name", n->name, "state",
                  node_health_name(n->health), "version", n->version, "boot_id", n->boot_id,
                  "devices_free", (json_int_t)free_devices, "devices", devices);
    json_object_set_new(doc, "joined_at", document_time(n->joined_us));
    json_object_set_new(doc, "seen_at",
                        document_time(n->seen_wall_us ? n->seen_wall_us : n->stored_seen_us));
    return doc;
}

/* ---- events ---- */
json_t *document_event(const struct event_row *row)
{
    json_t *data = row->data ? json_loads(row->data, 0, NULL) : NULL;
    json_t *doc = json_pack("{s:I, s:s, s:o}", "seq", (json_int_t)row->seq, "type", row->type,
                            "data", data ? data : json_object());
    json_object_set_new(doc, "time", document_time(row->time_us));
    json_object_set_new(doc, "job", row->job_id ? json_string(row->job_id) : json_null());
    json_object_set_new(doc, "node", row->node ? json_string(row->node) : json_null());
    return doc;
}
