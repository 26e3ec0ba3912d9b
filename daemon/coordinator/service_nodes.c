/* service_nodes.c: nodes as they are in memory. */
#include <stdlib.h>

#include "api/service.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/document.h"

int service_node_list(struct service *c, int limit, const char *after, struct service_reply *r)
{
    json_t *list = json_array();
    size_t i = nodes_first_after(&c->nodes, after);
    for (; i < c->nodes.count && limit > 0; i++, limit--)
        json_array_append_new(list, document_node(c->nodes.items[i], c->now_us));
    r->status = 200;
    r->body = json_pack("{s:o}", "nodes", list);
    if (i < c->nodes.count && i > 0)
        json_object_set_new(r->body, "next", json_string(c->nodes.items[i - 1]->name));
    return 0;
}

int service_node_show(struct service *c, const char *name, struct service_reply *r)
{
    const struct node *n = nodes_find(&c->nodes, name);
    if (!n)
        return service_fail(r, 404, "not_found", "There is no node \"%.64s\".", name);
    r->status = 200;
    r->body = document_node(n, c->now_us);
    return 0;
}
