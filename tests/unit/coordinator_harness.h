/* The coordinator over a real store in a temporary directory, and an agent that is a script: what
 * coordinator_sync.c, coordinator_nodes.c and coordinator_verbs.c share. */
#ifndef TRAINYARD_TESTS_COORDINATOR_HARNESS_H
#define TRAINYARD_TESTS_COORDINATOR_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "daemon/coordinator/coordinator.h"

#define JOB(devices, rest)                                                                         \
    "{\"name\":\"j\",\"command\":[\"true\"],\"resources\":{\"devices\":" #devices "}" rest "}"

static char state_dir[64];
static struct service *c;
static int64_t last_seen, body_clock;

static inline int setup(void **state)
{
    (void)state;
    struct err e = {0};
    snprintf(state_dir, sizeof(state_dir), "/tmp/coordinator-test.XXXXXX");
    assert_non_null(mkdtemp(state_dir));
    last_seen = 0;
    body_clock = 1000000;
    if (coordinator_open(state_dir, &c, &e) != 0)
        fail_msg("%s", e.text);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    coordinator_close(c);
    return file_remove_tree(state_dir, NULL);
}

static inline void end_turn(void)
{
    struct err e = {0};
    if (coordinator_end_turn(c, &e) != 0)
        fail_msg("%s", e.text);
}

static inline void restart(void)
{
    struct err e = {0};
    coordinator_close(c);
    if (coordinator_open(state_dir, &c, &e) != 0)
        fail_msg("%s", e.text);
}

/* Time in which the coordinator ran. */
static inline void advance(int64_t seconds)
{
    for (; seconds > 0; seconds--) {
        c->clock_ahead_us += 1000000;
        coordinator_clock(c);
        end_turn();
    }
}

/* Time in which it did not: it was stopped, or the machine slept. */
static inline void pause_for(int64_t seconds)
{
    c->clock_ahead_us += seconds * 1000000;
    coordinator_clock(c);
    end_turn();
}

/* ---- users ---- */
/* The status; the body in *ret_body (or NULL), the code in `code` (48 bytes, or NULL). */
static inline int submit(const char *body, const char *key, json_t **ret_body, char *code)
{
    struct service_reply r;
    struct submit_request q = {.body = body, .body_len = strlen(body), .idempotency_key = key};
    service_reply_init(&r);
    coordinator_clock(c);
    service_job_submit(c, &q, &r);
    if (ret_body)
        *ret_body = r.text ? json_loads(r.text, 0, NULL) : json_incref(r.body);
    if (code)
        snprintf(code, 48, "%s", r.code);
    int status = r.status;
    service_reply_done(&r);
    return status;
}

static inline char *new_job(const char *body)
{
    json_auto_t *doc = NULL;
    assert_int_equal(submit(body, NULL, &doc, NULL), 201);
    end_turn();
    return mem_strdup(json_string_value(json_object_get(doc, "id")));
}

static inline json_t *show(const char *id)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_job_show(c, id, &r), 0);
    json_t *doc = json_loads(r.text, 0, NULL);
    assert_non_null(doc);
    service_reply_done(&r);
    return doc;
}

static inline void expect_job(const char *id, const char *state, const char *code)
{
    json_auto_t *doc = show(id);
    assert_string_equal(json_string_value(json_object_get(doc, "state")), state);
    assert_string_equal(json_string_value(json_object_get(doc, "reason_code")), code);
}

static inline void expect_reason(const char *id, const char *part)
{
    json_auto_t *doc = show(id);
    const char *reason = json_string_value(json_object_get(doc, "reason"));
    if (!strstr(reason, part))
        fail_msg("\"%s\" lacks \"%s\"", reason, part);
}

static inline int cancel(const char *id)
{
    struct service_reply r;
    service_reply_init(&r);
    service_job_cancel(c, id, &r);
    int status = r.status;
    service_reply_done(&r);
    return status;
}

/* ---- the agent ---- */
static inline json_t *sync_body(const char *boot, json_t *take_attempts, int wait_ms)
{
    json_t *devices = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(devices, json_pack("{s:i, s:s, s:I, s:s}", "index", i, "kind", "cpu",
                                                 "memory_bytes", (json_int_t)1 << 30, "name", "c"));
    return json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:o, s:o}", "node", "n1", "version", "0.1.0",
                     "boot_id", boot, "wait_ms", wait_ms, "seen", (json_int_t)last_seen, "wall_us",
                     (json_int_t)(body_clock += 1000), "devices", devices, "attempts",
                     take_attempts ? take_attempts : json_array());
}

/* Sends it; the wanted list, or NULL where it was parked. Takes the body. */
static inline json_t *send_body(json_t *take_body, uint64_t ticket, int resumed, int expected)
{
    struct service_reply r;
    service_reply_init(&r);
    coordinator_clock(c);
    service_agent_sync(c, take_body, ticket, resumed, &r);
    json_decref(take_body);
    json_t *wanted = NULL;
    if (!r.wait) {
        assert_int_equal(r.status, expected);
        if (r.status == 200) {
            last_seen = json_integer_value(json_object_get(r.body, "seen"));
            wanted = json_incref(json_object_get(r.body, "wanted"));
        }
    }
    service_reply_done(&r);
    return wanted;
}

/* One sync and the end of its turn. */
static inline json_t *say(json_t *take_attempts)
{
    json_t *wanted = send_body(sync_body("boot-1", take_attempts, 0), 1, 0, 200);
    assert_non_null(wanted);
    end_turn();
    return wanted;
}

static inline void hello(void)
{
    json_decref(say(NULL));
}

static inline json_t *wanted_for(const char *job)
{
    json_auto_t *wanted = say(NULL);
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        json_t *w = json_array_get(wanted, i);
        const char *id = json_string_value(json_object_get(w, "job"));
        if (id && strcmp(id, job) == 0)
            return json_incref(w);
    }
    return NULL;
}

/* What the node says of the attempt in `wanted`; one in a list of one. */
static inline json_t *status(const json_t *wanted, const char *state, json_t *take_more)
{
    json_t *o = json_pack(
        "{s:O, s:O, s:s, s:[{s:i, s:i}]}", "attempt", json_object_get(wanted, "attempt"), "epoch",
        json_object_get(wanted, "epoch"), "state", state, "ranks", "rank", 0, "pid", 4711);
    if (take_more)
        json_object_update(o, take_more);
    json_decref(take_more);
    return json_pack("[o]", o);
}

static inline json_t *exit_of(const char *outcome, const char *code)
{
    return json_pack("{s:{s:s, s:s, s:s, s:n, s:n, s:n, s:I, s:b}}", "exit", "outcome", outcome,
                     "code", code, "reason", "Because.", "rank", "exit_code", "signal",
                     "started_us", (json_int_t)0, "retryable",
                     strcmp(outcome, "spawn_failed") == 0 || strcmp(outcome, "shim_lost") == 0);
}

static inline json_t *lines(int64_t from, int64_t to, const char *text)
{
    json_t *list = json_loads(text, 0, NULL);
    assert_non_null(list);
    return json_pack("{s:{s:I, s:I, s:o}}", "reports", "from", (json_int_t)from, "to",
                     (json_int_t)to, "lines", list);
}

static inline const char *deed(const json_t *wanted)
{
    return json_string_value(json_object_get(wanted, "do"));
}

static inline int64_t free_devices(void)
{
    struct node *n = nodes_find(&c->nodes, "n1");
    int64_t count = 0;
    for (size_t i = 0; i < n->device_count; i++)
        count += node_device_free(&n->devices[i]);
    return count;
}

#endif
