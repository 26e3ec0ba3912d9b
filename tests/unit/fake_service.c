/* fake_service.c: stands in for the coordinator in tests of the API. Every verb writes down what it
 * was asked and answers as the test has scripted it in struct service. */
#include "tests/unit/fake_service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

static void note(char *out, size_t size, const char *value)
{
    snprintf(out, size, "%s", value ? value : "");
}

/* 1 if the verb is to fail now; the reply then says so. */
static int begin(struct service *s, const char *verb, const char *id, struct service_reply *r)
{
    s->calls++;
    s->verb = verb;
    note(s->id, sizeof s->id, id);
    if (!s->fail_status)
        return 0;
    faults_add(&r->faults, "/fit/batch_size", "out_of_range", "Use 1 or more.", "batch_size is %d.",
               0);
    service_fail(r, s->fail_status, "scripted", "The verb %s was told to fail.", verb);
    s->fail_status = 0;
    return 1;
}

static int wrote(struct service *s)
{
    s->dirty |= s->write_dirties;
    return 0;
}

static int answer(struct service_reply *r, json_t *take_body)
{
    r->body = take_body;
    return 0;
}

static int put_content(struct service *s, struct service_reply *r, int64_t offset, int64_t length)
{
    int fd = memfd_create("content", MFD_CLOEXEC);
    if (fd < 0 || write(fd, s->content, (size_t)s->content_size) != s->content_size)
        abort();
    r->file_fd = fd;
    r->file_offset = offset;
    r->file_length = length + s->lie;
    return 0;
}

int service_dirty(struct service *s)
{
    return s->dirty;
}

int service_job_submit(struct service *s, const struct submit_request *q, struct service_reply *r)
{
    if (begin(s, "submit", NULL, r))
        return -1;
    s->has_key = q->idempotency_key != NULL;
    note(s->key, sizeof s->key, q->idempotency_key);
    s->body_len = q->body_len;
    snprintf(s->text, sizeof s->text, "%.*s", (int)(q->body_len < 4000 ? q->body_len : 4000),
             q->body);
    s->dry_run = q->dry_run;
    s->strict = q->strict;
    if (s->warn)
        faults_add(&r->warnings, "/colour", "unknown_field", NULL, "colour is not known.");
    char id[32];
    snprintf(id, sizeof id, "job_%d", ++s->submitted);
    r->status = 201;
    r->location = mem_printf("/v1/jobs/%s", id);
    wrote(s);
    return answer(r, json_pack("{s:s, s:s}", "id", id, "state", "pending"));
}

int service_job_list(struct service *s, const struct list_request *q, struct service_reply *r)
{
    if (begin(s, "list", NULL, r))
        return -1;
    s->has_states = q->states != NULL;
    s->has_label = q->label != NULL;
    s->has_user = q->user != NULL;
    s->has_after = q->after != NULL;
    note(s->states, sizeof s->states, q->states);
    note(s->label, sizeof s->label, q->label);
    note(s->user, sizeof s->user, q->user);
    note(s->after_text, sizeof s->after_text, q->after);
    s->limit = q->limit;
    json_t *jobs = json_array();
    for (int i = 0; i < s->big_body; i += 20)
        json_array_append_new(jobs, json_sprintf("%017d", i));
    return answer(r, json_pack("{s:o}", "jobs", jobs));
}

int service_job_show(struct service *s, const char *id, struct service_reply *r)
{
    if (begin(s, "show", id, r))
        return -1;
    if (s->etag)
        r->etag = mem_strdup(s->etag);
    return answer(r, json_pack("{s:s?}", "id", id));
}

int service_job_cancel(struct service *s, const char *id, struct service_reply *r)
{
    if (begin(s, "cancel", id, r))
        return -1;
    wrote(s);
    return answer(r, json_pack("{s:s}", "id", id));
}

int service_job_suspend(struct service *s, const char *id, struct service_reply *r)
{
    if (begin(s, "suspend", id, r))
        return -1;
    wrote(s);
    return answer(r, json_pack("{s:s}", "id", id));
}

int service_job_resume(struct service *s, const char *id, struct service_reply *r)
{
    if (begin(s, "resume", id, r))
        return -1;
    wrote(s);
    return answer(r, json_pack("{s:s}", "id", id));
}

int service_job_retry(struct service *s, const char *id, int from_scratch, struct service_reply *r)
{
    if (begin(s, from_scratch ? "retry_scratch" : "retry", id, r))
        return -1;
    wrote(s);
    return answer(r, json_pack("{s:s}", "id", id));
}

int service_job_checkpoints(struct service *s, const char *id, struct service_reply *r)
{
    return begin(s, "checkpoints", id, r) ? -1 : answer(r, json_pack("{s:[]}", "checkpoints"));
}

int service_job_plan(struct service *s, const char *id, struct service_reply *r)
{
    return begin(s, "plan", id, r) ? -1 : answer(r, json_pack("{s:{}}", "plan"));
}

int service_job_attempts(struct service *s, const char *id, struct service_reply *r)
{
    return begin(s, "attempts", id, r) ? -1 : answer(r, json_pack("{s:[]}", "attempts"));
}

int service_event_list(struct service *s, const char *job, int64_t after, int limit,
                       struct service_reply *r)
{
    if (begin(s, job ? "job_events" : "events", job, r))
        return -1;
    s->after = after;
    s->limit = limit;
    return answer(r, json_pack("{s:[]}", "events"));
}

int service_job_metrics(struct service *s, const char *id, int64_t max_points, int64_t after_step,
                        int64_t after_epoch, struct service_reply *r)
{
    if (begin(s, "job_metrics", id, r))
        return -1;
    s->max_points = max_points;
    s->after_step = after_step;
    s->after_epoch = after_epoch;
    return answer(r, json_pack("{s:[], s:[]}", "steps", "epochs"));
}

int service_job_log(struct service *s, const struct log_request *q, int64_t *ret_size,
                    struct service_reply *r)
{
    if (begin(s, "log", q->id, r))
        return -1;
    s->rank = q->rank;
    s->attempt = q->attempt;
    s->offset = q->offset;
    s->limit = q->limit;
    *ret_size = s->content ? s->content_size : 0;
    if (!s->content)
        return 0;
    int64_t from = q->offset < 0 ? s->content_size + q->offset : q->offset;
    from = from < 0 ? 0 : from > s->content_size ? s->content_size : from;
    int64_t left = s->content_size - from;
    return put_content(s, r, from, left < q->limit ? left : q->limit);
}

int service_artifact_list(struct service *s, const char *id, struct service_reply *r)
{
    return begin(s, "artifacts", id, r) ? -1 : answer(r, json_pack("{s:[]}", "artifacts"));
}

int service_artifact_get(struct service *s, const char *id, const char *name,
                         struct service_reply *r)
{
    if (begin(s, "artifact", id, r))
        return -1;
    note(s->name, sizeof s->name, name);
    if (!s->content)
        return service_fail(r, 404, "not_found", "There is no artifact %.60s.", name);
    if (s->etag)
        r->etag = mem_strdup(s->etag);
    return put_content(s, r, 0, s->content_size);
}

int service_node_list(struct service *s, int limit, const char *after, struct service_reply *r)
{
    if (begin(s, "nodes", NULL, r))
        return -1;
    s->limit = limit;
    s->has_after = after != NULL;
    note(s->after_text, sizeof s->after_text, after);
    return answer(r, json_pack("{s:[]}", "nodes"));
}

int service_node_show(struct service *s, const char *name, struct service_reply *r)
{
    return begin(s, "node", name, r) ? -1 : answer(r, json_pack("{s:s?}", "name", name));
}

static int fake_drain(struct service *s, const char *verb, const char *name,
                      const struct drain_request *q, struct service_reply *r)
{
    if (begin(s, verb, name, r))
        return -1;
    return answer(r, json_pack("{s:s, s:s, s:s, s:s?, s:I}", "name", name, "reason", q->reason,
                               "by", q->by, "uuid", q->uuid, "index", (json_int_t)q->index));
}

int service_node_drain(struct service *s, const char *name, const struct drain_request *q,
                       struct service_reply *r)
{
    return fake_drain(s, "drain", name, q, r);
}

int service_node_undrain(struct service *s, const char *name, const struct drain_request *q,
                         struct service_reply *r)
{
    return fake_drain(s, "undrain", name, q, r);
}

int service_version(struct service *s, struct service_reply *r)
{
    return begin(s, "version", NULL, r) ? -1 : answer(r, json_pack("{s:s}", "version", "0"));
}

int service_ready(struct service *s, struct service_reply *r)
{
    return begin(s, "ready", NULL, r) ? -1 : answer(r, json_pack("{s:s}", "status", "ready"));
}

int service_metrics(struct service *s, struct service_reply *r)
{
    if (begin(s, "metrics", NULL, r))
        return -1;
    r->text = mem_strdup("trainyard_jobs 1\n");
    return 0;
}

int service_agent_sync(struct service *s, const json_t *body, uint64_t ticket, int resumed,
                       struct service_reply *r)
{
    const char *node = json_string_value(json_object_get(body, "node"));
    if (begin(s, "sync", node, r))
        return -1;
    s->ticket = ticket;
    s->resumed = resumed;
    if (s->sync_writes && resumed == 0)
        s->dirty = 1;
    if (s->in_sync)
        s->in_sync(s, ticket);
    if (s->sync_waits > 0) {
        s->sync_waits--;
        r->wait = 1;
        return 0;
    }
    return answer(r, json_pack("{s:i}", "seen", resumed));
}

int service_agent_file(struct service *s, const struct agent_file *q, struct service_reply *r)
{
    if (begin(s, "file", q->node, r)) {
        r->body = json_pack("{s:i}", "size", 7);
        return -1;
    }
    note(s->name, sizeof s->name, q->name);
    note(s->user, sizeof s->user, q->attempt_id);
    snprintf(s->text, sizeof s->text, "%.*s", (int)(q->n < 4000 ? q->n : 4000),
             (const char *)q->bytes);
    s->epoch = q->epoch;
    s->offset = q->offset;
    s->body_len = q->n;
    wrote(s);
    return answer(r, json_pack("{s:I}", "size", (json_int_t)(q->offset + (int64_t)q->n)));
}
