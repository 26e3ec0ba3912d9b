/* coordinator_gpus.h: nodes with GPUs, for tests of the coordinator: what such a node says, and
 * what is shown of it. */
#ifndef TRAINYARD_TESTS_COORDINATOR_GPUS_H
#define TRAINYARD_TESTS_COORDINATOR_GPUS_H

#include "tests/unit/coordinator_runs.h"

#define GIB ((json_int_t)1 << 30)

#define GPU_JOB(devices, rest)                                                                     \
    "{\"name\":\"j\",\"command\":[\"true\"],\"max_restarts\":3,\"resources\":{"                    \
    "\"devices\":" #devices ",\"device\":\"gpu\"}" rest "}"
#define GPU_TRAINING(rest)                                                                         \
    "{\"name\":\"t\",\"model\":{\"input\":[4],\"layers\":[{\"type\":\"dense\",\"units\":2}]},"     \
    "\"compile\":{\"optimizer\":\"sgd\",\"loss\":\"mean_squared_error\"},\"data\":{\"train\":{"    \
    "\"format\":\"synthetic\",\"samples\":8,\"input\":4,\"classes\":2,\"seed\":1}},"               \
    "\"resources\":{\"devices\":1,\"device\":\"gpu\"}" rest "}"

/* Device i of node N: "GPU-N-i", 80 GiB, ready. */
static inline json_t *gpu(const char *node, int index)
{
    CLEANUP(mem_freep) char *uuid = mem_printf("GPU-%s-%d", node, index);
    return json_pack("{s:i, s:s, s:s, s:s, s:I}", "index", index, "kind", "gpu", "uuid", uuid,
                     "name", "NVIDIA H100", "memory_bytes", 80 * GIB);
}

static inline json_t *gpus(const char *node, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, gpu(node, i));
    return list;
}

static inline void set_state(json_t *list, int index, const char *state, const char *code,
                             const char *reason)
{
    json_t *d = json_array_get(list, (size_t)index);
    json_object_set_new(d, "state", json_string(state));
    json_object_set_new(d, "code", json_string(code));
    json_object_set_new(d, "reason", json_string(reason));
}

/* Both ways. */
static inline void link_gpus(json_t *list, int a, int b, int count)
{
    for (int end = 0; end < 2; end++) {
        json_t *d = json_array_get(list, (size_t)(end ? b : a));
        json_t *other = json_array_get(list, (size_t)(end ? a : b));
        if (!json_object_get(d, "links"))
            json_object_set_new(d, "links", json_array());
        json_array_append_new(json_object_get(d, "links"),
                              json_pack("{s:O, s:s, s:i}", "uuid", json_object_get(other, "uuid"),
                                        "kind", "nvlink", "count", count));
    }
}

static inline json_t *gpu_body(const char *node, json_t *list, json_t *take_attempts)
{
    json_t *body = body_of(node, take_attempts, NULL);
    json_object_set(body, "devices", list);
    json_object_set_new(body, "trainers", json_pack("[s, s]", "cpu", "cuda"));
    return body;
}

/* A sync of that node with those devices. */
static inline void gpus_say(const char *node, json_t *list, json_t *take_attempts)
{
    json_decref(ask(gpu_body(node, list, take_attempts)));
}

/* What a node that says this is told to do for the job, or NULL. */
static inline json_t *gpu_wish(const char *node, json_t *list, const char *job)
{
    json_auto_t *answer = ask(gpu_body(node, list, NULL));
    const json_t *wanted = json_object_get(answer, "wanted");
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        json_t *w = json_array_get(wanted, i);
        const char *id = json_string_value(json_object_get(w, "job"));
        if (id && strcmp(id, job) == 0)
            return json_incref(w);
    }
    return NULL;
}

/* ---- what is shown ---- */
static inline json_t *node_document(const char *node)
{
    struct service_reply r;
    service_reply_init(&r);
    coordinator_clock(c);
    assert_int_equal(service_node_show(c, node, &r), 0);
    json_t *doc = json_incref(r.body);
    service_reply_done(&r);
    return doc;
}

static inline json_t *device_document(const char *node, int index)
{
    json_auto_t *doc = node_document(node);
    const json_t *list = json_object_get(doc, "devices");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *d = json_array_get(list, i);
        if (json_integer_value(json_object_get(d, "index")) == index)
            return json_incref(d);
    }
    return NULL;
}

static inline void expect_device(const char *node, int index, const char *key, const char *value)
{
    json_auto_t *d = device_document(node, index);
    assert_non_null(d);
    const char *is = json_string_value(json_object_get(d, key));
    if (value ? !is || strcmp(is, value) != 0 : is != NULL)
        fail_msg("%s of device %d of %s is %s, not %s", key, index, node, is ? is : "null",
                 value ? value : "null");
}

/* Devices of the job's ranks, in their order: "n1:0 n1:2 ". */
static inline void expect_devices(const char *job, const char *expected)
{
    char text[400] = "";
    json_auto_t *doc = show(job);
    const json_t *list = json_object_get(doc, "devices");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *d = json_array_get(list, i);
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s:%lld ",
                 json_string_value(json_object_get(d, "node")),
                 (long long)json_integer_value(json_object_get(d, "device")));
    }
    assert_string_equal(text, expected);
}

/* The events of all types that begin so, as "device_dirty 2, device_ready 2, ". */
static inline void expect_events(const char *prefix, const char *expected)
{
    char text[2000] = "";
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_event_list(c, NULL, 0, 1000, &r), 0);
    const json_t *events = json_object_get(r.body, "events");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        const char *type = json_string_value(json_object_get(e, "type"));
        const json_t *device = json_object_get(json_object_get(e, "data"), "device");
        if (strncmp(type, prefix, strlen(prefix)) == 0)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s %lld, ", type,
                     device ? (long long)json_integer_value(device) : -1);
    }
    service_reply_done(&r);
    assert_string_equal(text, expected);
}

/* Posts a drain or an undrain of a device (index -1: by uuid; both none: the node); the status. */
static inline int drain_as(int is_drain, const char *node, int index, const char *uuid,
                           const char *reason)
{
    struct service_reply r;
    struct drain_request q = {.reason = reason, .by = "ann", .uuid = uuid, .index = index};
    service_reply_init(&r);
    coordinator_clock(c);
    (is_drain ? service_node_drain : service_node_undrain)(c, node, &q, &r);
    int answered = r.status;
    service_reply_done(&r);
    end_turn();
    return answered;
}

#endif
