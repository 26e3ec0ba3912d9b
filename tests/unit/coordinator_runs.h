/* coordinator_runs.h: runs of jobs for tests of the coordinator: nodes that speak, reports,
 * endings, and what is recorded of checkpoints. */
#ifndef TRAINYARD_TESTS_COORDINATOR_RUNS_H
#define TRAINYARD_TESTS_COORDINATOR_RUNS_H

#include "tests/unit/coordinator_harness.h"

#include "daemon/coordinator/kept.h"

#define TRAINING(rest)                                                                             \
    "{\"name\":\"t\",\"model\":{\"input\":[4],\"layers\":[{\"type\":\"dense\",\"units\":2}]},"     \
    "\"compile\":{\"optimizer\":\"sgd\",\"loss\":\"mean_squared_error\"},\"data\":{\"train\":{"    \
    "\"format\":\"synthetic\",\"samples\":8,\"input\":4,\"classes\":2,\"seed\":1}},"               \
    "\"resources\":{\"devices\":1,\"device\":\"cpu\"}" rest "}"

#define SUM "99aa06d3014798d86001c324468d497f"

/* ---- a node that says more ---- */
static const char *share = ""; /* of the nodes in this test */

static inline json_t *body_of(const char *node, json_t *take_attempts, json_t *take_held)
{
    CLEANUP(mem_freep) char *boot = mem_printf("boot-of-%s", node);
    json_t *body = sync_body(boot, take_attempts, 0);
    json_object_set_new(body, "node", json_string(node));
    if (*share)
        json_object_set_new(body, "checkpoint_share", json_string(share));
    if (take_held)
        json_object_set_new(body, "checkpoints", take_held);
    return body;
}

/* The whole answer. */
static inline json_t *ask(json_t *take_body)
{
    struct service_reply r;
    service_reply_init(&r);
    coordinator_clock(c);
    service_agent_sync(c, take_body, 1, 0, &r);
    json_decref(take_body);
    if (r.status != 200)
        fail_msg("%d %s %s", r.status, r.code, r.detail);
    json_t *answer = json_incref(r.body);
    last_seen = json_integer_value(json_object_get(answer, "seen"));
    service_reply_done(&r);
    end_turn();
    return answer;
}

static inline void node_says(const char *node, json_t *take_attempts)
{
    json_decref(ask(body_of(node, take_attempts, NULL)));
}

/* What the node is told to do for the job, or NULL. */
static inline json_t *wish_of(const char *node, const char *job)
{
    json_auto_t *answer = ask(body_of(node, NULL, NULL));
    const json_t *wanted = json_object_get(answer, "wanted");
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        json_t *w = json_array_get(wanted, i);
        const char *id = json_string_value(json_object_get(w, "job"));
        if (id && strcmp(id, job) == 0)
            return json_incref(w);
    }
    return NULL;
}

/* Names that the node is told to remove of what it holds, sorted by the record, as "a b "; "all"
 * for the directory as well. */
static inline void expect_removal(const char *node, const char *job, const char *names,
                                  const char *expected)
{
    char text[400] = "";
    json_t *list = json_loads(names, 0, NULL);
    assert_non_null(list);
    json_auto_t *answer =
        ask(body_of(node, NULL, json_pack("[{s:s, s:o}]", "job", job, "names", list)));
    const json_t *item = json_array_get(json_object_get(answer, "checkpoints"), 0);
    const json_t *remove = json_object_get(item, "remove");
    for (size_t i = 0; i < json_array_size(remove); i++) {
        strcat(text, json_string_value(json_array_get(remove, i)));
        strcat(text, " ");
    }
    if (json_is_true(json_object_get(item, "all")))
        strcat(text, "all");
    assert_string_equal(text, expected);
    if (item)
        assert_string_equal(json_string_value(json_object_get(item, "job")), job);
}

#define CHECKPOINT(step, name)                                                                     \
    "{\"type\":\"checkpoint\",\"rank\":0,\"step\":" #step ",\"epoch\":1,\"name\":\"" name          \
    "\",\"bytes\":2048,\"sum\":\"" SUM "\",\"seconds\":0.1}"
#define C100        CHECKPOINT(100, "step-0000000100")
#define C200        CHECKPOINT(200, "step-0000000200")
#define C300        CHECKPOINT(300, "step-0000000300")
#define STEP(n)     "{\"type\":\"step\",\"step\":" #n ",\"epoch\":1,\"loss\":0.5,\"comm_exposed_us\":7}"
#define START(rest) "{\"type\":\"start\",\"steps\":1000,\"rank\":0" rest "}"

/* ---- a job that runs ---- */
struct run {
    char *job;
    json_t *wish;
    int64_t offset;
    const char *node;
};

static inline void run_done(struct run *r)
{
    free(r->job);
    json_decref(r->wish);
}

static inline void report(struct run *r, const char *text)
{
    node_says(r->node, status(r->wish, "running", lines(r->offset, r->offset + 10, text)));
    r->offset += 10;
}

static inline void report_end(struct run *r, const char *outcome, const char *code)
{
    node_says(r->node, status(r->wish, "ended", exit_of(outcome, code)));
}

/* Its next attempt runs on that node. */
static inline void runs_on(struct run *r, const char *node)
{
    json_decref(r->wish);
    r->node = node;
    r->offset = 0;
    r->wish = wish_of(node, r->job);
    assert_non_null(r->wish);
    assert_string_equal(deed(r->wish), "run");
    node_says(node, status(r->wish, "running", NULL));
    expect_job(r->job, "running", "running");
}

static inline struct run new_run(const char *body)
{
    struct run r = {0};
    node_says("n1", NULL);
    r.job = new_job(body);
    runs_on(&r, "n1");
    return r;
}

static inline int post(int (*verb)(struct service *, const char *, struct service_reply *),
                       const char *id, char code[48])
{
    struct service_reply r;
    service_reply_init(&r);
    verb(c, id, &r);
    int answered = r.status;
    if (code)
        snprintf(code, 48, "%s", r.code);
    service_reply_done(&r);
    end_turn();
    return answered;
}

static inline int retry_as(const char *id, int from_scratch, char code[48])
{
    struct service_reply r;
    service_reply_init(&r);
    service_job_retry(c, id, from_scratch, &r);
    int answered = r.status;
    if (code)
        snprintf(code, 48, "%s", r.code);
    service_reply_done(&r);
    end_turn();
    return answered;
}

static inline void expect_refused(int (*verb)(struct service *, const char *,
                                              struct service_reply *),
                                  const char *id, const char *expected)
{
    char code[48];
    assert_int_equal(post(verb, id, code), 409);
    assert_string_equal(code, expected);
}

static inline json_t *checkpoints_of(const char *id)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_job_checkpoints(c, id, &r), 0);
    json_t *doc = json_incref(r.body);
    service_reply_done(&r);
    return doc;
}

/* Steps of those on the record, newest first, as "200 100 ". */
static inline void expect_record(const char *id, const char *expected)
{
    char text[200] = "";
    json_auto_t *doc = checkpoints_of(id);
    const json_t *list = json_object_get(doc, "checkpoints");
    for (size_t i = 0; i < json_array_size(list); i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%lld ",
                 (long long)json_integer_value(json_object_get(json_array_get(list, i), "step")));
    assert_string_equal(text, expected);
}

/* The steps that the next attempt is sent to, as "200 100 "; "-": it is told of no checkpoints. */
static inline void expect_resume(const struct run *r, const char *expected)
{
    char text[200] = "";
    const json_t *list = json_object_get(json_object_get(r->wish, "launch"), "resume");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *k = json_array_get(list, i);
        assert_string_equal(json_string_value(json_object_get(k, "sum")), SUM);
        assert_int_equal(strlen(json_string_value(json_object_get(k, "name"))), 15);
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%lld ",
                 (long long)json_integer_value(json_object_get(k, "step")));
    }
    assert_string_equal(list ? text : "-", expected);
}

static inline int count_events(const char *id, const char *type)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_event_list(c, id, 0, 1000, &r), 0);
    const json_t *events = json_object_get(r.body, "events");
    int count = 0;
    for (size_t i = 0; i < json_array_size(events); i++)
        count += strcmp(json_string_value(json_object_get(json_array_get(events, i), "type")),
                        type) == 0;
    service_reply_done(&r);
    return count;
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
