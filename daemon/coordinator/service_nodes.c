/* service_nodes.c: nodes as they are in memory, and draining them and their devices.
 *
 * A drained node or device gets no new work; what runs there goes on. Draining twice is draining
 * once: the same reason by the same person changes nothing, another one takes its place.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/service.h"
#include "base/mem.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/devices.h"
#include "daemon/coordinator/document.h"

int service_node_list(struct service *c, int limit, const char *after, struct service_reply *r)
{
    json_t *list = json_array();
    if (c->nodes.unsettled)
        nodes_settle(&c->nodes);
    size_t i = nodes_first_after(&c->nodes, after);
    for (; i < c->nodes.count && limit > 0; i++, limit--)
        json_array_append_new(list, document_node(c->nodes.items[i], c->now_us));
    r->status = 200;
    r->body = json_pack("{s:o}", "nodes", list);
    if (i < c->nodes.count && i > 0)
        json_object_set_new(r->body, "next", json_string(c->nodes.items[i - 1]->name));
    return 0;
}

static int find_node(struct service *c, const char *name, struct node **ret,
                     struct service_reply *r)
{
    *ret = nodes_find(&c->nodes, name);
    if (*ret)
        return 0;
    return service_fail(r, 404, "not_found", "There is no node \"%.64s\".", name);
}

int service_node_show(struct service *c, const char *name, struct service_reply *r)
{
    struct node *n;
    int rc = find_node(c, name, &n, r);
    if (rc != 0)
        return rc;
    if (c->nodes.unsettled)
        nodes_settle(&c->nodes);
    r->status = 200;
    r->body = document_node(n, c->now_us);
    return 0;
}

/* ---- drains ---- */
/* The key of the device that a request names: by index, by UUID, or by the key of a drain, whose
 * device may be gone. "" where it names none. */
static int device_key(const struct node *n, const struct drain_request *q,
                      char out[DEVICE_KEY_SIZE], struct service_reply *r)
{
    char key[DEVICE_KEY_SIZE], index[DEVICE_KEY_SIZE];
    out[0] = '\0';
    if (!q->uuid && q->index < 0)
        return 0;
    snprintf(index, sizeof(index), "index %lld", (long long)q->index);
    for (size_t i = 0; i < n->device_count; i++) {
        const struct device *d = &n->devices[i];
        node_device_key(d, key);
        if (q->uuid ? strcmp(q->uuid, d->uuid) == 0 : d->index == q->index) {
            snprintf(out, DEVICE_KEY_SIZE, "%s", key);
            return 0;
        }
    }
    if (node_drain(n, q->uuid ? q->uuid : index)) {
        snprintf(out, DEVICE_KEY_SIZE, "%s", q->uuid ? q->uuid : index);
        return 0;
    }
    return service_fail(r, 404, "no_such_device",
                        "Node %s has no device %.96s; GET /v1/nodes/%s lists what it has.", n->name,
                        q->uuid ? q->uuid : index + strlen("index "), n->name);
}

/* Runs `change` and answers with the node: all or nothing. */
static int change_drain(struct service *c, struct node *n, const struct drain_row *row,
                        int is_drained, struct service_reply *r)
{
    struct err e = {0};
    int rc = store_mark(c->store, &e);
    if (rc != 0)
        return coordinator_store_failed(c, &e, r);
    rc =
        is_drained ? devices_drain(c, n, row, &e) : devices_undrain(c, n, row->device, row->by, &e);
    if (rc < 0) {
        store_undo(c->store);
        return coordinator_store_failed(c, &e, r);
    }
    store_keep(c->store);
    return service_node_show(c, n->name, r);
}

/* The node and what of it the request is about. */
static int find_drained(struct service *c, const char *name, const struct drain_request *q,
                        struct node **ret, char key[DEVICE_KEY_SIZE], struct service_reply *r)
{
    int rc = find_node(c, name, ret, r);
    return rc != 0 ? rc : device_key(*ret, q, key, r);
}

int service_node_drain(struct service *c, const char *name, const struct drain_request *q,
                       struct service_reply *r)
{
    struct node *n;
    char key[DEVICE_KEY_SIZE];
    int rc = find_drained(c, name, q, &n, key, r);
    if (rc != 0)
        return rc;
    const struct drain_row *is = node_drain(n, key);
    if (is && strcmp(is->reason, q->reason) == 0 && strcmp(is->by, q->by) == 0)
        return service_node_show(c, name, r);
    if (!is && n->drain_count >= NODE_MAX_DRAINS)
        return service_fail(r, 409, "too_many_drains",
                            "Node %s has %zu drained devices, of some that it had once; undrain "
                            "those first.",
                            n->name, n->drain_count);
    struct drain_row row = {.node = n->name,
                            .device = key,
                            .reason = (char *)q->reason,
                            .by = (char *)q->by,
                            .at_us = c->wall_us};
    return change_drain(c, n, &row, 1, r);
}

int service_node_undrain(struct service *c, const char *name, const struct drain_request *q,
                         struct service_reply *r)
{
    struct node *n;
    char key[DEVICE_KEY_SIZE];
    int rc = find_drained(c, name, q, &n, key, r);
    if (rc != 0)
        return rc;
    if (!node_drain(n, key))
        return service_node_show(c, name, r);
    struct drain_row row = {.node = n->name, .device = key, .by = (char *)q->by};
    return change_drain(c, n, &row, 0, r);
}
