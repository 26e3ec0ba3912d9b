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
#include "daemon/coordinator/telemetry.h"
#include "daemon/coordinator/text.h"

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
/* What the next attempt goes on from is part of what is waited for. */
static void add_next(const struct job_row *job, struct explanation *why)
{
    size_t n = strlen(why->text);
    if (job->checkpoint_step >= 0)
        snprintf(why->text + n, sizeof(why->text) - n, " It resumes at step %lld.",
                 (long long)job->checkpoint_step);
}

static void add_reason(struct service *c, const struct job_row *job, struct buf *b)
{
    struct explanation why;
    const char *code = job->reason_code, *text = job->reason;
    const char *node = NULL;
    char waits[200];
    if (job->state == JOB_PENDING && !coordinator_is_resting(c, job->id)) {
        struct need need = queue_need(job);
        explain_pending(&c->nodes, &need, queue_ahead(&c->queue, job->priority, job->seq),
                        c->now_us, &why);
        add_next(job, &why);
        code = why.code;
        text = why.text;
    } else if (job->state == JOB_PENDING && !text[0]) { /* not by a start that failed */
        code = "retrying";
        text = "Its start could not be written to the coordinator's state, whose log says why; it "
               "is tried again every few seconds.";
    }
    if (job->state == JOB_RUNNING || job->state == JOB_STOPPING)
        node = coordinator_waits_for_disk(c, job->id);
    if (node) {
        snprintf(waits, sizeof(waits),
                 "Finished on node %s; its log and artifacts wait until the coordinator's disk has "
                 "room.",
                 node);
        code = "coordinator_disk_full";
        text = waits;
    }
    text_string(b, "reason", text);
    text_string(b, "reason_code", code);
}

static json_t *devices_of(struct service *c, const struct attempt_row *a,
                          const struct lease_row *leases, int count)
{
    json_t *list = json_array();
    struct node *n = a->state == ATTEMPT_ENDED ? NULL : nodes_find(&c->nodes, a->node);
    for (int i = 0; i < count; i++) {
        json_t *o = json_pack("{s:I, s:s, s:I}", "rank", (json_int_t)leases[i].rank, "node",
                              a->node, "device", (json_int_t)leases[i].device);
        const struct device *d = n ? node_device(n, leases[i].device) : NULL;
        if (d && d->uuid[0])
            json_object_set_new(o, "uuid", json_string(d->uuid));
        json_array_append_new(list, o);
    }
    return list;
}

static int attempt_devices(struct service *c, const struct attempt_row *a, json_t **ret,
                           struct err *e)
{
    struct lease_row *leases = mem_zalloc(NODE_MAX_DEVICES * sizeof(*leases));
    int count = store_lease_of(c->store, a->id, NODE_MAX_DEVICES, leases, e);
    if (count >= 0)
        *ret = devices_of(c, a, leases, count);
    for (int i = 0; i < count; i++)
        lease_row_done(&leases[i]);
    free(leases);
    return count < 0 ? count : 0;
}

/* Of the latest attempt; an empty list before the first, and while the job waits again. */
static int add_devices(struct service *c, const struct job_row *job, struct buf *b, struct err *e)
{
    struct attempt_row a;
    json_auto_t *devices = NULL;
    int rc = 0;
    if (job->attempt > 0 && job->state != JOB_PENDING) {
        rc = store_attempt_latest(c->store, job->id, &a, e);
        if (rc != 0)
            return rc;
        rc = attempt_devices(c, &a, &devices, e);
        attempt_row_done(&a);
    }
    CLEANUP(mem_freep) char *text = devices ? json_dumps(devices, JSON_COMPACT) : NULL;
    if (rc == 0)
        text_raw(b, "devices", text ? text : "[]");
    return rc;
}

static int add_labels(struct service *c, const struct job_row *job, const char *labels,
                      struct buf *b, struct err *e)
{
    CLEANUP(mem_freep) char *stored = NULL;
    int rc = labels ? 0 : store_job_labels(c->store, job->id, &stored, e);
    if (rc == 0)
        text_raw(b, "labels", labels ? labels : stored);
    return rc;
}

static void add_warnings(const struct faults *warnings, struct buf *b)
{
    if (!warnings || warnings->count == 0)
        return;
    json_auto_t *list = faults_to_json(warnings);
    CLEANUP(mem_freep) char *text = json_dumps(list, JSON_COMPACT);
    text_raw(b, "warnings", text ? text : "[]");
}

static void add_progress(const struct job_row *job, struct buf *b)
{
    text_key(b, "progress");
    text_open(b, "{");
    text_int(b, "epoch", job->epoch);
    text_int(b, "step", job->step);
    text_int(b, "steps", job->steps);
    text_close(b, "}");
}

/* The newest that is kept, and where it can be read. */
static void add_checkpoint(const struct job_row *job, struct buf *b)
{
    if (job->checkpoint_step < 0) {
        text_raw(b, "checkpoint", NULL);
        return;
    }
    text_key(b, "checkpoint");
    text_open(b, "{");
    text_int(b, "step", job->checkpoint_step);
    text_string(b, "node", job->checkpoint_node);
    if (job->checkpoint_share[0])
        text_string(b, "share", job->checkpoint_share);
    else
        text_raw(b, "share", NULL);
    text_close(b, "}");
}

/* What a list shows and the whole document has too; the bracket stays open. */
static void add_frame(struct service *c, const struct job_row *job, struct buf *b)
{
    text_open(b, "{");
    text_string(b, "id", job->id);
    text_string(b, "name", job->name);
    text_string(b, "user", job->user);
    text_string(b, "state", job_state_name(job->state));
    add_reason(c, job, b);
    add_progress(job, b);
    text_time(b, "submitted_at", job->submitted_us);
    text_time(b, "started_at", job->started_us);
    text_time(b, "finished_at", job->finished_us);
    text_int(b, "attempt", job->attempt);
    text_int(b, "priority", job->priority);
    text_int(b, "version", job->version);
}

int document_job(struct service *c, const struct job_row *job, const char *labels,
                 const struct faults *warnings, struct buf *b, struct err *e)
{
    add_frame(c, job, b);
    int rc = add_labels(c, job, labels, b, e);
    if (rc == 0)
        rc = add_devices(c, job, b, e);
    text_raw(b, "strategy", job->plan);
    text_raw(b, "exit", job->exit);
    add_checkpoint(job, b);
    text_int(b, "restarts", job->restarts);
    add_warnings(warnings, b);
    text_raw(b, "spec", job->spec);
    text_close(b, "}");
    return rc;
}

/* The plan's text is ours and begins with its name. */
static void add_strategy_name(const struct job_row *job, struct buf *b)
{
    static const char start[] = "{\"name\":\"";
    char name[40] = "";
    const char *from = job->plan ? job->plan : "";
    if (strncmp(from, start, sizeof(start) - 1) == 0) {
        from += sizeof(start) - 1;
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(from, "\""), from);
    }
    text_string(b, "strategy", name);
}

void document_job_slim(struct service *c, const struct job_row *job, struct buf *b)
{
    add_frame(c, job, b);
    add_strategy_name(job, b);
    text_int(b, "ranks", job->devices);
    text_close(b, "}");
}

/* ---- attempts ---- */
int document_attempt(struct service *c, const struct attempt_row *a, json_t **ret, struct err *e)
{
    json_t *devices = NULL, *exit = NULL;
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
static json_t *text_or_null(const char *text)
{
    return text && text[0] ? json_string(text) : json_null();
}

static json_t *document_drain(const struct drain_row *r)
{
    if (!r)
        return json_null();
    json_t *doc = json_pack("{s:s, s:s}", "reason", r->reason, "by", r->by);
    json_object_set_new(doc, "at", document_time(r->at_us));
    return doc;
}

static json_t *document_links(const struct device *d)
{
    json_t *list = json_array();
    for (size_t i = 0; i < d->link_count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:I}", "uuid", d->links[i].uuid, "kind",
                                        d->links[i].kind, "count", (json_int_t)d->links[i].count));
    return list;
}

static json_t *document_device(const struct node *n, const struct device *d, int64_t now_us)
{
    char key[DEVICE_KEY_SIZE], why[DEVICE_WHY_SIZE];
    int64_t idle_s = telemetry_idle_s(d, now_us);
    json_t *doc =
        json_pack("{s:I, s:s, s:I, s:s, s:s, s:s}", "index", (json_int_t)d->index, "kind",
                  device_kind_name(d->kind), "memory_bytes", (json_int_t)d->memory, "name", d->name,
                  "state", node_device_shown(d), "health", device_state_name(d->state));
    json_object_set_new(doc, "attempt", text_or_null(d->attempt));
    json_object_set_new(doc, "uuid", text_or_null(d->uuid));
    json_object_set_new(doc, "code", text_or_null(d->code));
    json_object_set_new(doc, "reason", text_or_null(d->reason));
    json_object_set_new(doc, "why_not", text_or_null(node_device_why_not(n, d, why)));
    json_object_set_new(doc, "pci", text_or_null(d->pci));
    json_object_set_new(doc, "numa", d->numa < 0 ? json_null() : json_integer(d->numa));
    json_object_set_new(doc, "mig_of", text_or_null(d->mig_of));
    json_object_set_new(doc, "links", document_links(d));
    json_object_set_new(doc, "drain", document_drain(node_drain(n, node_device_key(d, key))));
    json_object_set_new(doc, "telemetry", telemetry_document(d, now_us));
    json_object_set_new(doc, "idle_s", idle_s < 0 ? json_null() : json_integer(idle_s));
    return doc;
}

static json_t *document_trainers(const struct node *n)
{
    json_t *list = json_array();
    if (n->seen_us == 0)
        return list;
    if (n->trainers & NODE_TRAINER_CPU)
        json_array_append_new(list, json_string("cpu"));
    if (n->trainers & NODE_TRAINER_CUDA)
        json_array_append_new(list, json_string("cuda"));
    return list;
}

json_t *document_node(const struct node *n, int64_t now_us)
{
    char why[NODE_WHY_SIZE];
    json_t *devices = json_array();
    int64_t free_devices = 0;
    for (size_t i = 0; i < n->device_count; i++) {
        free_devices += node_device_free(&n->devices[i]);
        json_array_append_new(devices, document_device(n, &n->devices[i], now_us));
    }
    json_t *doc =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:o}", "name", n->name, "state",
                  node_health_name(n->health), "version", n->version, "boot_id", n->boot_id,
                  "devices_free", (json_int_t)free_devices, "devices", devices);
    node_why_not(n, now_us, why);
    json_object_set_new(doc, "trouble", why[0] ? json_string(why) : json_null());
    json_object_set_new(doc, "drain", document_drain(node_drain(n, "")));
    json_object_set_new(doc, "trainers", document_trainers(n));
    json_object_set_new(doc, "checkpoint_share", n->share[0] ? json_string(n->share) : json_null());
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
