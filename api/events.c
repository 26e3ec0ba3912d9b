/* events.c: the event list, of one job or of all. */
#include "api/handlers.h"
#include "base/err.h"

static int list(struct service *s, const char *job, struct request *q, struct service_reply *r)
{
    int64_t after = 0;
    int64_t limit = 0;
    if (query_int(q, "after", 0, INT64_MAX, 0, &after, r) < 0 ||
        query_int(q, "limit", 1, 1000, 100, &limit, r) < 0)
        return ERR_INVALID;
    return service_event_list(s, job, after, (int)limit, r);
}

int events_of_job(struct service *s, struct request *q, struct service_reply *r)
{
    return list(s, q->args[0], q, r);
}

int events_all(struct service *s, struct request *q, struct service_reply *r)
{
    return list(s, NULL, q, r);
}
