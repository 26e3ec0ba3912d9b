/* nodes.c: the endpoints of nodes. */
#include "api/handlers.h"
#include "base/err.h"

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
