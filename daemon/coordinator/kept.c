/* kept.c: the record of checkpoints, and what follows from it for what lies on the nodes.
 *
 * A node says which directories it has; it is told which of those to remove. What is on the record
 * stays. Of the rest, what a running attempt may just be writing or have written is left alone:
 * everything that is not older than the newest one on the record. Of a job that is not about to run
 * all that is not on the record goes. A list that is older than the record does no harm: it lacks
 * names, and what it names was there before.
 */
#include "daemon/coordinator/kept.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/coordinator/job.h"
#include "spec/job.h"

#define EXPIRE_AT_ONCE 100 /* jobs in one tick */
#define NAME_MAX_BYTES 64

/* ---- the record ---- */
int kept_take(struct service *c, const struct attempt_row *a, const struct checkpoint_row *row,
              struct err *e)
{
    struct job_row job;
    int rc = store_job_get(c->store, a->job_id, &job, e);
    if (rc != 0)
        return rc;
    int64_t keep = job.keep > 0 ? job.keep : 1;
    int is_next = job.attempt == a->number && row->step >= job.checkpoint_step;
    job_row_done(&job);
    if (!is_next)
        return 1;
    rc = store_checkpoint_put(c->store, a->job_id, row, e);
    if (rc == 0)
        rc = store_checkpoint_trim(c->store, a->job_id, keep, e);
    if (rc < 0)
        return rc;
    struct node *n = nodes_find(&c->nodes, a->node);
    if (rc > 0 && n)
        coordinator_wish(c, n);
    c->checkpoints++;
    return job_event(c->store, "checkpoint", a->job_id, a->node,
                     json_pack("{s:s, s:I, s:I, s:I, s:s, s:I}", "attempt", a->id, "number",
                               (json_int_t)a->number, "step", (json_int_t)row->step, "epoch",
                               (json_int_t)row->epoch, "name", row->name, "bytes",
                               (json_int_t)row->bytes),
                     c->wall_us, e);
}

static int event_dropped(struct service *c, const char *job_id, const char *why, int64_t above,
                         int count, struct err *e)
{
    if (count <= 0)
        return count;
    json_t *data = json_pack("{s:s, s:i}", "why", why, "count", count);
    if (above >= 0)
        json_object_set_new(data, "after_step", json_integer(above));
    return job_event(c->store, "checkpoints_dropped", job_id, NULL, data, c->wall_us, e);
}

int kept_rewind(struct service *c, const struct attempt_row *a, int64_t step, struct err *e)
{
    if (a->number == 1)
        return 0;
    int count = store_checkpoint_drop(c->store, a->job_id, step, e);
    int rc = event_dropped(c, a->job_id, "given_up", step, count, e);
    return rc < 0 ? rc : store_metrics_rewind(c->store, a->job_id, a->number, step, e);
}

int kept_drop_all(struct service *c, const char *job_id, const char *why, struct err *e)
{
    int scratch = strcmp(why, "scratch") == 0;
    int count = scratch ? store_checkpoint_forget(c->store, job_id, e)
                        : store_checkpoint_drop(c->store, job_id, -1, e);
    return event_dropped(c, job_id, why, -1, count, e);
}

int kept_expire(struct service *c, int64_t wall_us, struct err *e)
{
    char *ids[EXPIRE_AT_ONCE];
    int count =
        store_checkpoint_expired(c->store, wall_us - c->retention_us, EXPIRE_AT_ONCE, ids, e);
    int rc = count < 0 ? count : 0;
    for (int i = 0; i < count; i++) {
        if (rc == 0)
            rc = kept_drop_all(c, ids[i], "expired", e);
        free(ids[i]);
    }
    return rc;
}

/* ---- what lies on a node ---- */
int kept_name_step(const char *name, int64_t *ret)
{
    const char *p = name + (name[0] == '.');
    if (strncmp(p, "step-", 5) != 0)
        return 0;
    p += 5;
    size_t digits = strspn(p, "0123456789");
    if (digits < 10 || digits > 18 || (p[digits] && p[digits] != '.'))
        return 0;
    if (strspn(p + digits, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != strlen(p + digits))
        return 0;
    *ret = strtoll(p, NULL, 10);
    return 1;
}

struct held {
    struct service *service;
    const char *job;
    int may_run; /* an attempt of it runs, or may be started from the record */
    struct checkpoint_row rows[CHECKPOINT_KEEP_MAX];
    int count;
    uint64_t *sum;
};

static int is_recorded(const struct held *h, const char *name)
{
    for (int i = 0; i < h->count; i++)
        if (strcmp(h->rows[i].name, name) == 0)
            return 1;
    return 0;
}

static int is_to_go(const struct held *h, const char *name)
{
    int64_t step;
    if (!name || !kept_name_step(name, &step) || is_recorded(h, name))
        return 0;
    return !h->may_run || (h->count > 0 && step < h->rows[0].step);
}

static void mix(struct held *h, const char *text)
{
    uint64_t hash = 14695981039346656037ULL; /* FNV-1a; order does not matter, so they are added */
    for (const char *p = h->job; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211ULL;
    for (const char *p = text; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211ULL;
    *h->sum += hash;
}

/* What is told of one job, or NULL: nothing is to be removed. */
static json_t *removal(struct held *h, const json_t *names)
{
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(names) && i < KEPT_MAX_NAMES; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (!is_to_go(h, name))
            continue;
        mix(h, name);
        json_array_append_new(list, json_string(name));
    }
    int all = !h->may_run && h->count == 0;
    if (all)
        mix(h, "");
    if (!all && json_array_size(list) == 0) {
        json_decref(list);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:b}", "job", h->job, "remove", list, "all", all);
}

/* The epoch of its latest attempt: an agent that has a later one of it does nothing. */
static int add_epoch(struct held *h, json_t *item, struct err *e)
{
    struct attempt_row a;
    int rc = store_attempt_latest(h->service->store, h->job, &a, e);
    if (rc != 0)
        return rc == ERR_NOT_FOUND ? 0 : rc;
    json_object_set_new(item, "epoch", json_integer(a.epoch));
    attempt_row_done(&a);
    return 0;
}

static int answer_job(struct held *h, const json_t *names, json_t *list, struct err *e)
{
    enum job_state state;
    int rc = store_job_state(h->service->store, h->job, &state, e);
    if (rc != 0)
        return rc == ERR_NOT_FOUND ? 0 : rc;
    h->may_run = !job_is_final(state) && state != JOB_SUSPENDED;
    h->count = store_checkpoint_list(h->service->store, h->job, CHECKPOINT_KEEP_MAX, h->rows, e);
    if (h->count < 0)
        return h->count;
    json_t *item = removal(h, names);
    for (int i = 0; i < h->count; i++)
        checkpoint_row_done(&h->rows[i]);
    if (!item)
        return 0;
    json_array_append_new(list, item);
    return add_epoch(h, item, e);
}

int kept_answer(struct service *c, const json_t *held, json_t *body, uint64_t *ret_sum,
                struct err *e)
{
    json_t *list = json_array();
    int rc = 0;
    *ret_sum = 0;
    for (size_t i = 0; i < json_array_size(held) && rc == 0; i++) {
        const json_t *item = json_array_get(held, i);
        struct held h = {
            .service = c, .job = json_string_value(json_object_get(item, "job")), .sum = ret_sum};
        if (h.job && id_valid("job", h.job))
            rc = answer_job(&h, json_object_get(item, "names"), list, e);
    }
    if (rc == 0 && json_array_size(list) > 0)
        json_object_set(body, "checkpoints", list);
    json_decref(list);
    return rc;
}
