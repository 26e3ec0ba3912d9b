/* wanted.c: live attempts become run or stop; attempts that the node holds and that have ended here
 * become forget (it knows that they ended) or stop (it thinks they run). An attempt that the node
 * reported once and no longer lists is not named, since that would start it a second time, until it
 * has been missing for NODE_ABSENT_US: then it is to be stopped. Its devices stay leased until the
 * node says that this is done, since its processes may have outlived what the agent knew of them.
 */
#include "daemon/coordinator/wanted.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/coordinator/tries.h"
#include "spec/job.h"

static const json_t *observed_find(const json_t *observed, const char *attempt)
{
    for (size_t i = 0; i < json_array_size(observed); i++) {
        const json_t *o = json_array_get(observed, i);
        const char *id = json_string_value(json_object_get(o, "attempt"));
        if (id && strcmp(id, attempt) == 0)
            return o;
    }
    return NULL;
}

/* ---- the launch document (docs/protocols.md, section 2) ---- */
/* What a rank is told of its device, beside its index. */
static void add_device(const struct node *n, int64_t index, json_t *rank)
{
    const struct device *d = NULL;
    for (size_t i = 0; i < n->device_count && !d; i++)
        if (n->devices[i].index == index)
            d = &n->devices[i];
    json_object_set_new(rank, "kind", json_string(device_kind_name(d ? d->kind : DEVICE_CPU)));
    if (d && d->kind == DEVICE_GPU && d->uuid[0])
        json_object_set_new(rank, "uuid", json_string(d->uuid));
}

static int launch_ranks(struct service *c, const struct node *n, const struct attempt_row *a,
                        json_t **ret, struct err *e)
{
    struct lease_row *leases = mem_zalloc(NODE_MAX_DEVICES * sizeof(*leases));
    int count = store_lease_of(c->store, a->id, NODE_MAX_DEVICES, leases, e);
    json_t *ranks = json_array();
    for (int i = 0; i < count; i++) {
        json_t *rank =
            json_pack("{s:I, s:I, s:I}", "rank", (json_int_t)leases[i].rank, "local_rank",
                      (json_int_t)leases[i].rank, "device", (json_int_t)leases[i].device);
        add_device(n, leases[i].device, rank);
        json_array_append_new(ranks, rank);
        lease_row_done(&leases[i]);
    }
    free(leases);
    if (count < 0) {
        json_decref(ranks);
        return count;
    }
    *ret = ranks;
    return 0;
}

static json_int_t time_limit_of(const json_t *spec)
{
    const json_t *limit = json_object_get(spec, "time_limit");
    int64_t seconds = 0;
    if (json_is_number(limit))
        return (json_int_t)json_number_value(limit);
    if (json_is_string(limit) &&
        clock_parse_duration(json_string_value(limit), &seconds, NULL) == 0)
        return (json_int_t)seconds;
    return 0;
}

static int lies_on(const struct checkpoint_row *row, const struct node *n)
{
    return row->share[0] ? strcmp(row->share, n->share) == 0 : strcmp(row->node, n->name) == 0;
}

/* What the node can go on from, newest first; NULL for a job that takes no checkpoints. Where there
 * are some and none lies there (its share was changed after the attempt was placed), all are named:
 * the trainer fails and says so, where an empty list would begin at step 0. */
static int launch_resume(struct service *c, const struct node *n, const struct job_row *job,
                         json_t **ret, struct err *e)
{
    struct checkpoint_row rows[CHECKPOINT_KEEP_MAX];
    *ret = NULL;
    if (job->keep == 0)
        return 0;
    int count = store_checkpoint_list(c->store, job->id, CHECKPOINT_KEEP_MAX, rows, e);
    if (count < 0)
        return count;
    *ret = json_array();
    int here = 0;
    for (int i = 0; i < count; i++)
        here += lies_on(&rows[i], n);
    for (int i = 0; i < count; i++) {
        const struct checkpoint_row *row = &rows[i];
        if (here == 0 || lies_on(row, n))
            json_array_append_new(*ret, json_pack("{s:s, s:I, s:s}", "name", row->name, "step",
                                                  (json_int_t)row->step, "sum", row->sum));
        checkpoint_row_done(&rows[i]);
    }
    return 0;
}

static int launch_document(struct service *c, const struct node *n, const struct attempt_row *a,
                           json_t **ret, struct err *e)
{
    struct job_row job;
    json_t *ranks = NULL, *resume = NULL;
    int rc = store_job_get(c->store, a->job_id, &job, e);
    if (rc != 0)
        return rc;
    json_auto_t *spec = json_loads(job.spec, 0, NULL);
    json_auto_t *plan = json_loads(job.plan, 0, NULL);
    if (!spec || !plan)
        rc = err_set(e, ERR_CORRUPT, "the stored spec or plan of job %s cannot be read", job.id);
    else
        rc = launch_resume(c, n, &job, &resume, e);
    if (rc == 0)
        rc = launch_ranks(c, n, a, &ranks, e);
    if (rc == 0)
        *ret =
            json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:O, s:O, s:s, s:s, s:I, s:I, s:I, s:o, "
                      "s:O*}",
                      "job", job.id, "job_name", job.name, "attempt", a->id, "number",
                      (json_int_t)a->number, "epoch", (json_int_t)a->epoch, "node", a->node, "spec",
                      spec, "plan", plan, "secret", a->secret, "master_addr", "127.0.0.1",
                      "master_port", (json_int_t)a->port, "time_limit_s", time_limit_of(spec),
                      "grace_s", (json_int_t)TRIES_GRACE_S, "ranks", ranks, "resume", resume);
    json_decref(resume);
    job_row_done(&job);
    return rc;
}

/* ---- the list ---- */
struct wanted {
    struct service *service;
    const struct node *node;
    const json_t *observed;
    int fresh;
    json_t *list;
    int launches;
    int more;
    uint64_t sum;
};

static json_t *named(const struct attempt_row *a, const char *what)
{
    return json_pack("{s:s, s:I, s:s, s:s, s:I}", "attempt", a->id, "epoch", (json_int_t)a->epoch,
                     "job", a->job_id, "do", what, "report_offset", (json_int_t)a->report_offset);
}

static void add_stop(struct wanted *w, const struct attempt_row *a, const char *code,
                     const char *reason)
{
    json_t *item = named(a, "stop");
    json_object_set_new(item, "code", json_string(code));
    json_object_set_new(item, "reason", json_string(reason));
    int suspends = strcmp(code, "suspended") == 0;
    json_object_set_new(item, "grace_s", json_integer(suspends ? TRIES_SUSPEND_S : TRIES_GRACE_S));
    json_array_append_new(w->list, item);
}

static int add_live(struct wanted *w, const struct attempt_row *a, struct err *e)
{
    int held = observed_find(w->observed, a->id) != NULL;
    json_t *launch = NULL;
    const struct absence *absence = held ? NULL : node_absence(w->node, a->id);
    if (absence && absence->is_lost) {
        add_stop(w, a, a->stop_code ? a->stop_code : "attempt_lost",
                 a->stop_reason ? a->stop_reason
                                : "The node no longer knew the attempt; was the agent's state "
                                  "directory emptied?");
        return 0;
    }
    if (a->boot_id && !held)
        return 0;
    if (a->state == ATTEMPT_STOPPING) {
        add_stop(w, a, a->stop_code ? a->stop_code : "stopped",
                 a->stop_reason ? a->stop_reason : "Stopped by the coordinator.");
        return 0;
    }
    if (held) {
        json_array_append_new(w->list, named(a, "run"));
        return 0;
    }
    if (w->launches == WANTED_MAX_LAUNCHES) {
        w->more = 1;
        return 0;
    }
    int rc = launch_document(w->service, w->node, a, &launch, e);
    if (rc != 0)
        return rc;
    json_t *item = named(a, "run");
    json_object_set_new(item, "launch", launch);
    json_array_append_new(w->list, item);
    w->launches++;
    return 0;
}

static int add_all_live(struct wanted *w, struct err *e)
{
    struct attempt_row *rows = mem_zalloc(NODE_MAX_ATTEMPTS * sizeof(*rows));
    int count = store_attempt_live(w->service->store, w->node->name, NODE_MAX_ATTEMPTS, rows, e);
    int rc = count < 0 ? count : 0;
    for (int i = 0; i < count; i++) {
        if (rc == 0)
            rc = add_live(w, &rows[i], e);
        attempt_row_done(&rows[i]);
    }
    free(rows);
    return rc;
}

static void mix(struct wanted *w, const char *id, uint64_t what)
{
    uint64_t hash = 14695981039346656037ULL; /* FNV-1a; order does not matter, so they are added */
    for (const char *p = id; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211ULL;
    w->sum += (hash ^ what) * 1099511628211ULL;
}

/* An attempt that the node holds: nothing to add if it is live, unknown or another node's. */
static int add_ended(struct wanted *w, const json_t *o, struct err *e)
{
    const char *id = json_string_value(json_object_get(o, "attempt"));
    const char *state = json_string_value(json_object_get(o, "state"));
    json_int_t epoch = json_integer_value(json_object_get(o, "epoch"));
    struct attempt_row a;
    if (!id || !state || !id_valid("att", id))
        return 0;
    int rc = store_attempt_get(w->service->store, id, &a, e);
    if (rc != 0)
        return rc == ERR_NOT_FOUND ? 0 : rc;
    int ours = strcmp(a.node, w->node->name) == 0, done = strcmp(state, "ended") == 0;
    if (ours && (done || w->fresh) && (a.state == ATTEMPT_ENDED || epoch != a.epoch)) {
        mix(w, id, (uint64_t)done);
        if (done)
            json_array_append_new(w->list, json_pack("{s:s, s:I, s:s}", "attempt", id, "epoch",
                                                     epoch, "do", "forget"));
        else
            add_stop(w, &a, "superseded", "The coordinator has ended this attempt.");
    }
    attempt_row_done(&a);
    return 0;
}

int wanted_answer(struct service *c, struct node *n, const json_t *observed, int fresh,
                  json_t **ret, uint64_t *ret_sum, int *ret_more, struct err *e)
{
    struct wanted w = {
        .service = c, .node = n, .observed = observed, .fresh = fresh, .list = json_array()};
    int rc = add_all_live(&w, e);
    for (size_t i = 0; i < json_array_size(observed) && rc == 0; i++)
        rc = add_ended(&w, json_array_get(observed, i), e);
    if (rc != 0) {
        json_decref(w.list);
        return rc;
    }
    *ret = json_pack("{s:s, s:I, s:I, s:o}", "instance", c->run_id, "instance_epoch",
                     (json_int_t)store_instance_epoch(c->store), "seen", (json_int_t)n->wish,
                     "wanted", w.list);
    *ret_sum = w.sum;
    *ret_more = w.more;
    return 0;
}
