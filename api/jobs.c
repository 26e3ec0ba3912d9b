/* jobs.c: the endpoints of jobs: decode the query, call one verb. */
#include <string.h>

#include "api/handlers.h"
#include "base/err.h"
#include "spec/job.h"

int jobs_submit(struct service *s, struct request *q, struct service_reply *r)
{
    struct submit_request submit = {
        .body = q->body.data ? q->body.data : "",
        .body_len = q->body.len,
        .idempotency_key = q->headers.of[HEADER_IDEMPOTENCY_KEY].value,
    };
    if (query_flag(q, "dry_run", &submit.dry_run, r) < 0 ||
        query_flag(q, "strict", &submit.strict, r) < 0)
        return ERR_INVALID;
    return service_job_submit(s, &submit, r);
}

int jobs_list(struct service *s, struct request *q, struct service_reply *r)
{
    int64_t limit = 0;
    if (query_int(q, "limit", 1, 1000, 100, &limit, r) < 0)
        return ERR_INVALID;
    struct list_request list = {
        .states = query_get(q, "state"),
        .label = query_get(q, "label"),
        .user = query_get(q, "user"),
        .limit = (int)limit,
        .after = query_get(q, "after"),
    };
    return service_job_list(s, &list, r);
}

int jobs_show(struct service *s, struct request *q, struct service_reply *r)
{
    return service_job_show(s, q->args[0], r);
}

/* The body of a call that needs none; NULL where there is none. */
static int read_optional(const struct request *q, json_t **ret, struct service_reply *r)
{
    struct err e = {0};
    if (q->body.len == 0)
        return 0;
    if (job_spec_read(q->body.data, q->body.len, ret, &e) < 0)
        return service_fail(r, 400, "invalid_json", "The body is not JSON: %s", e.text);
    return 0;
}

/* Room for a reason some day; until then a field in the body would be dropped silently. */
static int check_empty_object(const struct request *q, struct service_reply *r)
{
    json_auto_t *doc = NULL;
    if (read_optional(q, &doc, r) < 0)
        return ERR_INVALID;
    if (doc && (!json_is_object(doc) || json_object_size(doc) > 0))
        return service_fail(r, 400, "unexpected_body",
                            "The call takes no fields; send no body, or an empty object {}.");
    return 0;
}

int jobs_cancel(struct service *s, struct request *q, struct service_reply *r)
{
    if (check_empty_object(q, r) < 0)
        return ERR_INVALID;
    return service_job_cancel(s, q->args[0], r);
}

int jobs_suspend(struct service *s, struct request *q, struct service_reply *r)
{
    if (check_empty_object(q, r) < 0)
        return ERR_INVALID;
    return service_job_suspend(s, q->args[0], r);
}

int jobs_resume(struct service *s, struct request *q, struct service_reply *r)
{
    if (check_empty_object(q, r) < 0)
        return ERR_INVALID;
    return service_job_resume(s, q->args[0], r);
}

/* {"from": "checkpoint"}, which is what no body means, or {"from": "scratch"}. */
int jobs_retry(struct service *s, struct request *q, struct service_reply *r)
{
    json_auto_t *doc = NULL;
    const char *from = "checkpoint";
    if (read_optional(q, &doc, r) < 0)
        return ERR_INVALID;
    if (json_object_get(doc, "from"))
        from = json_string_value(json_object_get(doc, "from"));
    int known = from && (strcmp(from, "checkpoint") == 0 || strcmp(from, "scratch") == 0);
    if (doc && (!json_is_object(doc) || json_object_size(doc) > 1 || !known ||
                (json_object_size(doc) == 1 && !json_object_get(doc, "from"))))
        return service_fail(r, 400, "unexpected_body",
                            "The call takes {\"from\": \"checkpoint\"}, which is the default, or "
                            "{\"from\": \"scratch\"} to start again at step 0.");
    return service_job_retry(s, q->args[0], from && strcmp(from, "scratch") == 0, r);
}

int jobs_checkpoints(struct service *s, struct request *q, struct service_reply *r)
{
    return service_job_checkpoints(s, q->args[0], r);
}

int jobs_plan(struct service *s, struct request *q, struct service_reply *r)
{
    return service_job_plan(s, q->args[0], r);
}

int jobs_attempts(struct service *s, struct request *q, struct service_reply *r)
{
    return service_job_attempts(s, q->args[0], r);
}

int jobs_metrics(struct service *s, struct request *q, struct service_reply *r)
{
    int64_t max_points = 0;
    int64_t after_step = 0;
    int64_t after_epoch = 0;
    if (query_int(q, "max_points", 1, SERVICE_MAX_POINTS, 0, &max_points, r) < 0 ||
        query_int(q, "after_step", 0, INT64_MAX, 0, &after_step, r) < 0 ||
        query_int(q, "after_epoch", 0, INT64_MAX, 0, &after_epoch, r) < 0)
        return ERR_INVALID;
    return service_job_metrics(s, q->args[0], max_points, after_step, after_epoch, r);
}
