/* service_jobs.c: submitting and reading jobs.
 *
 * A submission parses, plans and inserts: a row, its labels, an event and the idempotency key, in
 * the turn's transaction. It looks at no other job: whether it can start is asked once at the end
 * of the turn, for all of the turn's submissions together.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/service.h"
#include "base/id.h"
#include "base/mem.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/document.h"
#include "daemon/coordinator/job.h"
#include "daemon/coordinator/planner.h"
#include "daemon/coordinator/text.h"
#include "spec/job.h"
#include "spec/plan.h"

#define KEY_MAX      255
#define ATTEMPTS_MAX 1000
#define LIST_MAX     1000

/* `labels`: as text, or NULL to read them. */
static int reply_job(struct service *c, const struct job_row *job, const char *labels, int status,
                     struct service_reply *r)
{
    struct err e = {0};
    struct buf b = BUF_INIT;
    buf_reserve(&b, 1024 + strlen(job->spec) + strlen(job->plan));
    int rc = document_job(c, job, labels, &r->warnings, &b, &e);
    if (rc != 0) {
        buf_done(&b);
        return coordinator_read_failed(&e, r);
    }
    r->status = status;
    r->text = buf_steal(&b);
    r->location = mem_printf("/v1/jobs/%s", job->id);
    r->etag = mem_printf("\"%lld\"", (long long)job->version);
    return 0;
}

/* ---- submit ---- */
struct submission {
    json_t *doc;
    struct job_spec *spec;
    struct plan plan;
    struct buf plan_text;
    char hash[65]; /* of the body; "" without a key */
};

static void submission_done(struct submission *s)
{
    json_decref(s->doc);
    job_spec_free(s->spec);
    plan_done(&s->plan);
    buf_done(&s->plan_text);
}

static void hash_body(const char *body, size_t n, char out[65])
{
    unsigned char digest[32];
    crypto_generichash(digest, sizeof(digest), (const unsigned char *)body, n, NULL, 0);
    sodium_bin2hex(out, 65, digest, sizeof(digest));
}

/* 1: the key repeats and the reply is made; 0: it is new; negative: the reply is a failure. */
static int answer_repeat(struct service *c, const char *key, const char *hash,
                         struct service_reply *r)
{
    char stored[65], id[ID_SIZE];
    struct err e = {0};
    struct job_row job;
    if (key[0] == '\0' || strlen(key) > KEY_MAX)
        return service_fail(r, 400, "invalid_key",
                            "An Idempotency-Key has 1 to %d bytes; this one has %zu.", KEY_MAX,
                            strlen(key));
    int rc = store_key_get(c->store, "", key, stored, id, &e);
    if (rc == ERR_NOT_FOUND)
        return 0;
    if (rc != 0)
        return coordinator_read_failed(&e, r);
    if (strcmp(stored, hash) != 0)
        return service_fail(r, 409, "idempotency_conflict",
                            "This Idempotency-Key was used for job %s with another body. Use a "
                            "new key for a new job.",
                            id);
    rc = coordinator_job(c, id, &job, r);
    if (rc != 0)
        return rc;
    rc = reply_job(c, &job, NULL, 200, r);
    job_row_done(&job);
    return rc == 0 ? 1 : rc;
}

static int parse(struct service *c, const struct submit_request *q, struct submission *s,
                 struct service_reply *r)
{
    struct err e = {0};
    int rc = job_spec_read(q->body, q->body_len, &s->doc, &e);
    if (rc != 0)
        return service_fail(r, e.code == ERR_TOO_LARGE ? 413 : 400,
                            e.code == ERR_TOO_LARGE ? "too_large" : "invalid_json", "%s", e.text);
    s->spec = job_spec_parse(s->doc, q->strict, &r->faults, &r->warnings);
    if (s->spec)
        planner_plan(s->spec, &c->view, &s->plan, &r->faults);
    if (r->faults.total > 0)
        return service_fail(r, 422, "invalid_spec", "%zu %s in the job keep%s it from running.",
                            r->faults.total, r->faults.total == 1 ? "fault" : "faults",
                            r->faults.total == 1 ? "s" : "");
    planner_write(&s->plan, &s->plan_text);
    return 0;
}

static int insert_labels(struct service *c, const struct submission *s, const char *id,
                         struct err *e)
{
    int rc = 0;
    for (int i = 0; i < s->spec->label_count && rc == 0; i++)
        rc = store_job_label(c->store, id, s->spec->labels[i].key, s->spec->labels[i].value, e);
    return rc;
}

static int event_submitted(struct service *c, const struct submission *s, const struct job_row *job,
                           struct err *e)
{
    struct buf data = BUF_INIT;
    text_open(&data, "{");
    text_string(&data, "name", job->name);
    text_string(&data, "user", job->user);
    text_int(&data, "devices", job->devices);
    text_string(&data, "strategy", strategy_name(s->plan.kind));
    text_close(&data, "}");
    int rc = job_event_text(c->store, "job_submitted", job->id, NULL, data.data, c->wall_us, e);
    buf_done(&data);
    return rc;
}

static int insert_rows(struct service *c, const struct submit_request *q,
                       const struct submission *s, struct job_row *job, struct err *e)
{
    int rc = store_job_insert(c->store, job, &job->seq, e);
    if (rc == 0)
        rc = insert_labels(c, s, job->id, e);
    if (rc == 0)
        rc = event_submitted(c, s, job, e);
    if (rc == 0 && q->idempotency_key)
        rc = store_key_put(c->store, "", q->idempotency_key, s->hash, job->id, c->wall_us, e);
    return rc;
}

/* All or nothing, whatever else the turn holds. */
static int insert(struct service *c, const struct submit_request *q, const struct submission *s,
                  struct job_row *job, struct err *e)
{
    int rc = store_mark(c->store, e);
    if (rc != 0)
        return rc;
    rc = insert_rows(c, q, s, job, e);
    if (rc != 0)
        store_undo(c->store);
    else
        store_keep(c->store);
    return rc;
}

static char *labels_text(const struct job_spec *spec)
{
    struct buf b = BUF_INIT;
    text_open(&b, "{");
    for (int i = 0; i < spec->label_count; i++)
        text_string(&b, spec->labels[i].key, spec->labels[i].value);
    text_close(&b, "}");
    return buf_steal(&b);
}

/* What a command does when it is run twice we do not know: it asks for restarts, or has none. */
static int64_t restarts_of(const struct submission *s)
{
    if (s->spec->command && !json_object_get(s->doc, "max_restarts"))
        return 0;
    return s->spec->max_restarts;
}

static int store_submission(struct service *c, const struct submit_request *q,
                            const struct submission *s, struct service_reply *r)
{
    char id[ID_SIZE];
    struct err e = {0};
    int takes_checkpoints = !s->spec->command && s->spec->checkpoint.enabled;
    CLEANUP(mem_freep) char *text = mem_strndup(q->body, q->body_len);
    struct job_row job = {.id = id_new("job", id),
                          .name = s->spec->name,
                          .user = s->spec->user ? s->spec->user : (char *)"",
                          .state = JOB_PENDING,
                          .reason_code = (char *)"",
                          .reason = (char *)"",
                          .spec = text,
                          .plan = s->plan_text.data,
                          .priority = s->spec->priority,
                          .devices = s->spec->resources.devices,
                          .device_kind = (int)s->spec->resources.device,
                          .memory = s->plan.memory_bytes,
                          .trains = !s->spec->command,
                          .submitted_us = c->wall_us,
                          .moved_us = c->wall_us,
                          .keep = takes_checkpoints ? s->spec->checkpoint.keep : 0,
                          .max_restarts = restarts_of(s),
                          .checkpoint_step = -1,
                          .version = 1};
    if (insert(c, q, s, &job, &e) != 0)
        return coordinator_store_failed(c, &e, r);
    queue_add(&c->queue, &job);
    c->try_place = 1;
    c->submissions++;
    CLEANUP(mem_freep) char *labels = labels_text(s->spec);
    return reply_job(c, &job, labels, 201, r);
}

static int submit(struct service *c, const struct submit_request *q, struct submission *s,
                  struct service_reply *r)
{
    if (q->idempotency_key && !q->dry_run) {
        hash_body(q->body, q->body_len, s->hash);
        int rc = answer_repeat(c, q->idempotency_key, s->hash, r);
        if (rc != 0)
            return rc < 0 ? rc : 0;
    }
    int rc = parse(c, q, s, r);
    if (rc != 0)
        return rc;
    if (q->dry_run) {
        r->status = 200;
        r->body = json_pack("{s:o}", "plan", plan_to_json(&s->plan));
        return 0;
    }
    if (c->queue.jobs >= COORDINATOR_MAX_PENDING) {
        r->retry_after_s = 60;
        return service_fail(r, 429, "too_many_pending",
                            "%zu jobs are waiting already; at most %d may. Try again when some "
                            "have started.",
                            c->queue.jobs, COORDINATOR_MAX_PENDING);
    }
    return store_submission(c, q, s, r);
}

int service_job_submit(struct service *c, const struct submit_request *q, struct service_reply *r)
{
    struct submission s = {0};
    int rc = submit(c, q, &s, r);
    submission_done(&s);
    return rc;
}

/* ---- list ---- */
static int parse_states(const char *states, unsigned *ret, struct service_reply *r)
{
    CLEANUP(mem_freep) char *copy = mem_strdup(states ? states : "");
    char *rest = copy, *name;
    while ((name = strsep(&rest, ",")) && states) {
        enum job_state state;
        if (job_state_from_name(name, &state) != 0)
            return service_fail(r, 400, "invalid_parameter",
                                "\"%.40s\" is no state of a job; they are pending, starting, "
                                "running, stopping, succeeded, failed, cancelled and suspended.",
                                name);
        *ret |= 1u << state;
    }
    return 0;
}

static int parse_cursor(const char *after, int64_t *ret, struct service_reply *r)
{
    char *end = NULL;
    *ret = 0;
    if (!after)
        return 0;
    *ret = strtoll(after, &end, 10);
    if (end == after || *end != '\0' || *ret <= 0)
        return service_fail(r, 400, "invalid_cursor",
                            "\"%.40s\" is no cursor; use the \"next\" of a list as it is.", after);
    return 0;
}

/* A cursor if there is a row behind the last one of this page. */
static int add_next(struct service *c, const struct job_filter *f, int64_t last_seq, struct buf *b,
                    struct err *e)
{
    struct job_filter rest = *f;
    struct job_row row;
    char next[24];
    rest.before_seq = last_seq;
    rest.limit = 1;
    int count = store_job_list(c->store, &rest, &row, e);
    if (count <= 0)
        return count;
    job_row_done(&row);
    snprintf(next, sizeof(next), "%lld", (long long)last_seq);
    text_string(b, "next", next);
    return 0;
}

static int list_rows(struct service *c, const struct job_filter *f, struct job_row *rows,
                     struct service_reply *r)
{
    struct err e = {0};
    struct buf b = BUF_INIT;
    int count = store_job_list(c->store, f, rows, &e), rc = count < 0 ? count : 0;
    text_open(&b, "{");
    text_key(&b, "jobs");
    text_open(&b, "[");
    for (int i = 0; i < count; i++)
        document_job_slim(c, &rows[i], &b);
    text_close(&b, "]");
    if (count == f->limit)
        rc = add_next(c, f, rows[count - 1].seq, &b, &e);
    text_close(&b, "}");
    for (int i = 0; i < count; i++)
        job_row_done(&rows[i]);
    r->text = buf_steal(&b);
    r->status = 200;
    return rc == 0 ? 0 : coordinator_read_failed(&e, r);
}

int service_job_list(struct service *c, const struct list_request *q, struct service_reply *r)
{
    struct job_filter f = {.user = q->user, .limit = q->limit < LIST_MAX ? q->limit : LIST_MAX};
    CLEANUP(mem_freep) char *label = q->label ? mem_strdup(q->label) : NULL;
    int rc = parse_states(q->states, &f.states, r);
    if (rc == 0)
        rc = parse_cursor(q->after, &f.before_seq, r);
    if (rc != 0)
        return rc;
    if (label) {
        char *equals = strchr(label, '=');
        if (equals) {
            *equals = '\0';
            f.label_value = equals + 1;
        }
        f.label_key = label;
    }
    struct job_row *rows = mem_zalloc((size_t)f.limit * sizeof(*rows));
    rc = list_rows(c, &f, rows, r);
    free(rows);
    return rc;
}

/* ---- one job ---- */
int service_job_show(struct service *c, const char *id, struct service_reply *r)
{
    struct job_row job;
    int rc = coordinator_job(c, id, &job, r);
    if (rc != 0)
        return rc;
    rc = reply_job(c, &job, NULL, 200, r);
    free(STEAL(r->location));
    job_row_done(&job);
    return rc;
}

int service_job_plan(struct service *c, const char *id, struct service_reply *r)
{
    struct job_row job;
    int rc = coordinator_job(c, id, &job, r);
    if (rc != 0)
        return rc;
    r->body = json_loads(job.plan, 0, NULL);
    r->status = 200;
    job_row_done(&job);
    struct err e = {0};
    if (r->body)
        return 0;
    err_set(&e, ERR_CORRUPT, "the stored plan of job %s cannot be read", id);
    return coordinator_read_failed(&e, r);
}

static int attempts_of(struct service *c, const char *id, struct attempt_row *rows,
                       struct service_reply *r)
{
    struct err e = {0};
    int count = store_attempt_list(c->store, id, ATTEMPTS_MAX, rows, &e), rc = 0;
    if (count < 0)
        return coordinator_read_failed(&e, r);
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_t *doc;
        if (rc == 0)
            rc = document_attempt(c, &rows[i], &doc, &e);
        if (rc == 0)
            json_array_append_new(list, doc);
        attempt_row_done(&rows[i]);
    }
    r->body = json_pack("{s:o}", "attempts", list);
    r->status = 200;
    return rc == 0 ? 0 : coordinator_read_failed(&e, r);
}

int service_job_attempts(struct service *c, const char *id, struct service_reply *r)
{
    struct job_row job;
    int rc = coordinator_job(c, id, &job, r);
    if (rc != 0)
        return rc;
    job_row_done(&job);
    struct attempt_row *rows = mem_zalloc(ATTEMPTS_MAX * sizeof(*rows));
    rc = attempts_of(c, id, rows, r);
    free(rows);
    return rc;
}
