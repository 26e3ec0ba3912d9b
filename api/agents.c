/* agents.c: what agents call; the documents are in docs/protocols.md. */
#include "api/handlers.h"
#include "base/err.h"
#include "spec/job.h"

/* The body is read once and kept, since a parked sync calls its verb several times. */
static int read_body(struct request *q, struct service_reply *r)
{
    struct err e = {0};
    if (job_spec_read(q->body.data ? q->body.data : "", q->body.len, &q->json, &e) < 0)
        return service_fail(r, 400, "invalid_json", "The body cannot be read as JSON: %s", e.text);
    if (!json_is_object(q->json))
        return service_fail(r, 400, "invalid_json",
                            "The body must be a JSON object, {\"node\": ...}.");
    buf_done(&q->body);
    return 0;
}

int agents_sync(struct service *s, struct request *q, struct service_reply *r)
{
    if (!q->json && read_body(q, r) < 0)
        return ERR_INVALID;
    r->exact = 1; /* the launch document: what the user wrote is what trains */
    return service_agent_sync(s, q->json, q->ticket, q->resumed, r);
}

int agents_file(struct service *s, struct request *q, struct service_reply *r)
{
    struct agent_file file = {
        .bytes = q->body.data ? q->body.data : "",
        .n = q->body.len,
    };
    const char *number = NULL;
    if (query_required(q, "node", &file.node, r) < 0 ||
        query_required(q, "attempt", &file.attempt_id, r) < 0 ||
        query_required(q, "name", &file.name, r) < 0 ||
        query_required(q, "epoch", &number, r) < 0 || query_required(q, "offset", &number, r) < 0 ||
        query_int(q, "epoch", 0, INT64_MAX, 0, &file.epoch, r) < 0 ||
        query_int(q, "offset", 0, INT64_MAX, 0, &file.offset, r) < 0)
        return ERR_INVALID;
    return service_agent_file(s, &file, r);
}
