/* nodes.c: the endpoints of nodes. */
#include <string.h>

#include "api/handlers.h"
#include "base/err.h"
#include "spec/job.h"

int nodes_list(struct service *s, struct request *q, struct service_reply *r)
{
    int64_t limit = 0;
    if (query_int(q, "limit", 1, 1000, 100, &limit, r) < 0)
        return ERR_INVALID;
    return service_node_list(s, (int)limit, query_get(q, "after"), r);
}

int nodes_show(struct service *s, struct request *q, struct service_reply *r)
{
    return service_node_show(s, q->args[0], r);
}

/* ---- drain, undrain ---- */
static int unexpected(struct service_reply *r, const char *what)
{
    return service_fail(r, 400, "unexpected_body",
                        "%s; the call takes {\"reason\": \"...\", \"device\": 2 or \"GPU-...\", "
                        "\"by\": \"...\"}, all of them optional.",
                        what);
}

/* A text of at most `max` bytes, "" where it is not given. */
static int read_text(const json_t *value, size_t max, const char *wrong, const char **ret,
                     struct service_reply *r)
{
    *ret = value ? json_string_value(value) : "";
    return *ret && strlen(*ret) <= max ? 0 : unexpected(r, wrong);
}

static int read_device(const json_t *value, struct drain_request *ret, struct service_reply *r)
{
    ret->index = -1;
    if (!value)
        return 0;
    ret->uuid = json_string_value(value);
    if (json_is_integer(value))
        ret->index = json_integer_value(value);
    if ((ret->uuid && ret->uuid[0] && strlen(ret->uuid) <= 96) || ret->index >= 0)
        return 0;
    return unexpected(r, "device is an index from 0 on or a uuid");
}

static int read_drain(const json_t *doc, struct drain_request *ret, struct service_reply *r)
{
    const char *key;
    json_t *value;
    if (!json_is_object(doc))
        return unexpected(r, "The body is no object");
    json_object_foreach((json_t *)doc, key, value)
    {
        if (strcmp(key, "reason") != 0 && strcmp(key, "device") != 0 && strcmp(key, "by") != 0)
            return unexpected(r, "The body has a field that is not known");
    }
    if (read_text(json_object_get(doc, "reason"), SERVICE_REASON_MAX,
                  "reason is a text of at most 200 bytes", &ret->reason, r) < 0 ||
        read_text(json_object_get(doc, "by"), SERVICE_BY_MAX, "by is a text of at most 60 bytes",
                  &ret->by, r) < 0)
        return ERR_INVALID;
    return read_device(json_object_get(doc, "device"), ret, r);
}

static int change(struct service *s, struct request *q, struct service_reply *r,
                  int (*verb)(struct service *s, const char *name, const struct drain_request *q,
                              struct service_reply *r))
{
    struct drain_request drain = {.reason = "", .by = "", .index = -1};
    struct err e = {0};
    if (q->body.len > 0 && job_spec_read(q->body.data, q->body.len, &q->json, &e) < 0)
        return service_fail(r, 400, "invalid_json", "The body is not JSON: %s", e.text);
    if (q->json && read_drain(q->json, &drain, r) < 0)
        return ERR_INVALID;
    return verb(s, q->args[0], &drain, r);
}

int nodes_drain(struct service *s, struct request *q, struct service_reply *r)
{
    return change(s, q, r, service_node_drain);
}

int nodes_undrain(struct service *s, struct request *q, struct service_reply *r)
{
    return change(s, q, r, service_node_undrain);
}
