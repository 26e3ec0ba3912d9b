/* ops.c: what probes, scrapers and tools ask for. */
#include <string.h>

#include "api/handlers.h"
#include "base/mem.h"

int ops_version(struct service *s, struct request *q, struct service_reply *r)
{
    (void)q;
    return service_version(s, r);
}

/* That this is answered at all is the answer: the loop turns. */
int ops_health(struct service *s, struct request *q, struct service_reply *r)
{
    (void)s;
    (void)q;
    r->body = json_pack("{s:s}", "status", "ok");
    return 0;
}

int ops_ready(struct service *s, struct request *q, struct service_reply *r)
{
    (void)q;
    return service_ready(s, r);
}

int ops_metrics(struct service *s, struct request *q, struct service_reply *r)
{
    (void)q;
    int rc = service_metrics(s, r);
    if (!r->content_type)
        r->content_type = "text/plain; version=0.0.4; charset=utf-8";
    return rc;
}

/* FNV-1a: a tag that changes with the text. */
static uint64_t text_hash(const char *p, const char *end)
{
    uint64_t h = 14695981039346656037u;
    for (; p < end; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    return h;
}

int ops_openapi(struct service *s, struct request *q, struct service_reply *r)
{
    (void)s;
    (void)q;
    r->text = mem_strndup(OPENAPI_TEXT, (size_t)(OPENAPI_TEXT_END - OPENAPI_TEXT));
    r->content_type = "application/json";
    r->etag = mem_printf("%016llx", (unsigned long long)text_hash(OPENAPI_TEXT, OPENAPI_TEXT_END));
    return 0;
}
