/* The coordinator over a real store, and an agent that is a script: submission to success, fencing,
 * repeated and late syncs, reboots, races with cancel, restarts, hostile reports, a full disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/text.h"

#define JOB(devices, rest)                                                                         \
    "{\"name\":\"j\",\"command\":[\"true\"],\"resources\":{\"devices\":" #devices "}" rest "}"

static char state_dir[64];
static struct service *c;
static int64_t last_seen, body_clock;

static int setup(void **state)
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

static int teardown(void **state)
{
    (void)state;
    coordinator_close(c);
    return file_remove_tree(state_dir, NULL);
}

static void end_turn(void)
{
    struct err e = {0};
    if (coordinator_end_turn(c, &e) != 0)
        fail_msg("%s", e.text);
}

static void restart(void)
{
    struct err e = {0};
    coordinator_close(c);
    if (coordinator_open(state_dir, &c, &e) != 0)
        fail_msg("%s", e.text);
}

static void advance(int64_t seconds)
{
    c->clock_ahead_us += seconds * 1000000;
    coordinator_clock(c);
    end_turn();
}

/* ---- users ---- */
/* The status; the body in *ret_body (or NULL), the code in `code` (48 bytes, or NULL). */
static int submit(const char *body, const char *key, json_t **ret_body, char *code)
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

static char *new_job(const char *body)
{
    json_auto_t *doc = NULL;
    assert_int_equal(submit(body, NULL, &doc, NULL), 201);
    end_turn();
    return mem_strdup(json_string_value(json_object_get(doc, "id")));
}

static json_t *show(const char *id)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_job_show(c, id, &r), 0);
    json_t *doc = json_loads(r.text, 0, NULL);
    assert_non_null(doc);
    service_reply_done(&r);
    return doc;
}

static void expect_job(const char *id, const char *state, const char *code)
{
    json_auto_t *doc = show(id);
    assert_string_equal(json_string_value(json_object_get(doc, "state")), state);
    assert_string_equal(json_string_value(json_object_get(doc, "reason_code")), code);
}

static void expect_reason(const char *id, const char *part)
{
    json_auto_t *doc = show(id);
    const char *reason = json_string_value(json_object_get(doc, "reason"));
    if (!strstr(reason, part))
        fail_msg("\"%s\" lacks \"%s\"", reason, part);
}

static int cancel(const char *id)
{
    struct service_reply r;
    service_reply_init(&r);
    service_job_cancel(c, id, &r);
    int status = r.status;
    service_reply_done(&r);
    return status;
}

/* ---- the agent ---- */
static json_t *sync_body(const char *boot, json_t *take_attempts, int wait_ms)
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
static json_t *send_body(json_t *take_body, uint64_t ticket, int resumed, int expected)
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
static json_t *say(json_t *take_attempts)
{
    json_t *wanted = send_body(sync_body("boot-1", take_attempts, 0), 1, 0, 200);
    assert_non_null(wanted);
    end_turn();
    return wanted;
}

static void hello(void)
{
    json_decref(say(NULL));
}

static json_t *wanted_for(const char *job)
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
static json_t *status(const json_t *wanted, const char *state, json_t *take_more)
{
    json_t *o = json_pack(
        "{s:O, s:O, s:s, s:[{s:i, s:i}]}", "attempt", json_object_get(wanted, "attempt"), "epoch",
        json_object_get(wanted, "epoch"), "state", state, "ranks", "rank", 0, "pid", 4711);
    if (take_more)
        json_object_update(o, take_more);
    json_decref(take_more);
    return json_pack("[o]", o);
}

static json_t *exit_of(const char *outcome, const char *code)
{
    return json_pack("{s:{s:s, s:s, s:s, s:n, s:n, s:n, s:I}}", "exit", "outcome", outcome, "code",
                     code, "reason", "Because.", "rank", "exit_code", "signal", "started_us",
                     (json_int_t)0);
}

static json_t *lines(int64_t from, int64_t to, const char *text)
{
    json_t *list = json_loads(text, 0, NULL);
    assert_non_null(list);
    return json_pack("{s:{s:I, s:I, s:o}}", "reports", "from", (json_int_t)from, "to",
                     (json_int_t)to, "lines", list);
}

static const char *deed(const json_t *wanted)
{
    return json_string_value(json_object_get(wanted, "do"));
}

static int64_t free_devices(void)
{
    struct node *n = nodes_find(&c->nodes, "n1");
    int64_t count = 0;
    for (size_t i = 0; i < n->device_count; i++)
        count += node_device_free(&n->devices[i]);
    return count;
}

/* ---- tests ---- */
static void from_submission_to_success(void **state)
{
    (void)state;
    CLEANUP(mem_freep) char *id = new_job(JOB(2, ""));
    expect_job(id, "pending", "no_nodes");
    hello();
    expect_job(id, "starting", "starting");
    assert_int_equal(free_devices(), 0);
    json_auto_t *w = wanted_for(id);
    assert_string_equal(deed(w), "run");
    const json_t *launch = json_object_get(w, "launch");
    assert_int_equal(strlen(json_string_value(json_object_get(launch, "secret"))), 64);
    assert_int_equal(json_array_size(json_object_get(launch, "ranks")), 2);
    assert_in_range(json_integer_value(json_object_get(launch, "master_port")), 21000, 29999);
    json_auto_t *held = say(status(w, "launching", NULL));
    assert_null(json_object_get(json_array_get(held, 0), "launch")); /* it has it */
    expect_job(id, "starting", "starting");
    json_decref(say(status(w, "running",
                           lines(0, 100,
                                 "[{\"type\":\"start\",\"steps\":10,\"rank\":0},"
                                 "{\"type\":\"step\",\"step\":1,\"epoch\":1,\"loss\":2.5,"
                                 "\"grad_norm\":\"nan\",\"learning_rate\":0.1,\"time_us\":5,"
                                 "\"samples_per_second\":7},"
                                 "{\"type\":\"epoch\",\"epoch\":1,\"loss\":0.5,\"members\":["
                                 "{\"loss\":0.25}]}]"))));
    expect_job(id, "running", "running");
    json_auto_t *doc = show(id);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(doc, "progress"), "step")),
                     1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(doc, "progress"), "steps")),
                     10);
    json_auto_t *end = say(status(w, "ended", exit_of("done", "done")));
    assert_string_equal(deed(json_array_get(end, 0)), "forget");
    expect_job(id, "succeeded", "done");
    assert_int_equal(free_devices(), 2);
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_job_metrics(c, id, 0, 0, &r), 0);
    json_auto_t *metrics = json_loads(r.text, 0, NULL);
    service_reply_done(&r);
    assert_non_null(metrics);
    const json_t *step = json_array_get(json_object_get(metrics, "steps"), 0);
    assert_string_equal(json_string_value(json_object_get(step, "grad_norm")), "nan");
    assert_true(json_real_value(json_object_get(step, "loss")) == 2.5);
    const json_t *epoch = json_array_get(json_object_get(metrics, "epochs"), 0);
    assert_int_equal(json_array_size(json_object_get(epoch, "members")), 1);
    assert_null(json_object_get(epoch, "type"));
}

static void repeated_lines_and_syncs_count_once(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    const char *two = "[{\"type\":\"ready\",\"rank\":0},{\"type\":\"strange\",\"x\":1}]";
    for (int i = 0; i < 3; i++)
        json_decref(say(status(w, "running", lines(0, 50, two))));
    json_decref(say(status(w, "running", lines(10, 60, two))));  /* not where we are */
    json_decref(say(status(w, "running", lines(50, 20, two))));  /* backwards */
    json_decref(say(status(w, "running", lines(50, 60, "{}")))); /* no list */
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_event_list(c, id, 0, 1000, &r), 0);
    int ready = 0, strange = 0, started = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(r.body, "events")); i++) {
        const char *type = json_string_value(
            json_object_get(json_array_get(json_object_get(r.body, "events"), i), "type"));
        ready += strcmp(type, "ready") == 0;
        strange += strcmp(type, "report") == 0;
        started += strcmp(type, "attempt_started") == 0;
    }
    char *text = json_dumps(r.body, 0);
    assert_null(strstr(text, "secret"));
    free(text);
    service_reply_done(&r);
    assert_int_equal(ready, 1);
    assert_int_equal(strange, 1);
    assert_int_equal(started, 1);
    for (int i = 0; i < 3; i++)
        json_decref(say(status(w, "ended", exit_of("done", "done"))));
    expect_job(id, "succeeded", "done");
}

static void hostile_lines_are_dropped(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_decref(say(status(
        w, "running",
        lines(0, 9,
              "[1,null,[],{},{\"type\":5},{\"type\":\"step\"},{\"type\":\"step\",\"step\":0,"
              "\"epoch\":1},{\"type\":\"step\",\"step\":1,\"epoch\":1,\"loss\":\"huge\"},"
              "{\"type\":\"step\",\"step\":1e300,\"epoch\":1},{\"type\":\"epoch\",\"epoch\":1,"
              "\"loss\":{}},{\"type\":\"epoch\",\"epoch\":1,\"members\":5},"
              "{\"type\":\"start\",\"steps\":-4},{\"type\":\"step\",\"step\":3,\"epoch\":1}]"))));
    assert_int_equal(c->dropped_lines, 12);
    json_auto_t *doc = show(id);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(doc, "progress"), "step")),
                     3);
    /* what the coordinator calls its own events cannot be forged */
    json_decref(say(status(w, "running", lines(9, 10, "[{\"type\":\"job_state\",\"to\":\"x\"}]"))));
    struct service_reply r;
    service_reply_init(&r);
    service_event_list(c, id, 0, 1000, &r);
    const json_t *events = json_object_get(r.body, "events");
    const json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(json_string_value(json_object_get(last, "type")), "report");
    service_reply_done(&r);
    json_auto_t *end = say(status(w, "ended", json_pack("{s:{s:i}}", "exit", "outcome", 7)));
    expect_job(id, "failed", "invalid_exit_record");
    assert_int_equal(free_devices(), 2);
}

static void old_epochs_and_other_nodes_change_nothing(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_auto_t *stale = json_deep_copy(w);
    json_object_set_new(stale, "epoch", json_integer(0));
    json_auto_t *answer = say(status(stale, "running", lines(0, 5, "[{\"type\":\"ready\"}]")));
    expect_job(id, "starting", "starting");
    int superseded = 0;
    for (size_t i = 0; i < json_array_size(answer); i++) {
        const char *code = json_string_value(json_object_get(json_array_get(answer, i), "code"));
        superseded += code && strcmp(code, "superseded") == 0;
    }
    assert_int_equal(superseded, 1);
    json_t *body = sync_body("boot-9", status(w, "ended", exit_of("failed", "x")), 0);
    json_object_set_new(body, "node", json_string("n2"));
    json_decref(send_body(body, 2, 0, 200));
    expect_job(id, "starting", "starting");
    struct service_reply r;
    service_reply_init(&r);
    struct agent_file f = {.node = "n1",
                           .attempt_id = json_string_value(json_object_get(w, "attempt")),
                           .epoch = 999,
                           .name = "rank-0.log",
                           .bytes = "x",
                           .n = 1};
    service_agent_file(c, &f, &r);
    assert_string_equal(r.code, "stale_epoch");
    f.epoch = json_integer_value(json_object_get(w, "epoch"));
    f.name = "exit.json";
    service_agent_file(c, &f, &r);
    assert_string_equal(r.code, "invalid_file");
    f.name = "rank-0.log";
    f.offset = 5;
    service_agent_file(c, &f, &r);
    assert_string_equal(r.code, "offset_mismatch");
    assert_int_equal(json_integer_value(json_object_get(r.body, "size")), 0);
    service_reply_done(&r);
    f.offset = 0;
    assert_int_equal(service_agent_file(c, &f, &r), 0);
    service_reply_done(&r);
    struct log_request q = {.id = id, .offset = -10, .limit = 100};
    int64_t size;
    assert_int_equal(service_job_log(c, &q, &size, &r), 0);
    assert_int_equal(size, 1);
    assert_int_equal(r.file_length, 1);
    service_reply_done(&r);
    q.rank = 1;
    assert_int_equal(service_job_log(c, &q, &size, &r), ERR_NOT_FOUND);
    service_reply_done(&r);
}

static void a_sync_waits_until_something_is_wanted(void **state)
{
    (void)state;
    hello();
    hello();
    assert_null(send_body(sync_body("boot-1", NULL, 10000), 7, 0, 0));
    end_turn();
    struct node *n = nodes_find(&c->nodes, "n1");
    assert_int_equal(n->ticket, 7);
    assert_null(send_body(sync_body("boot-1", NULL, 10000), 8, 0, 0)); /* takes the place */
    assert_int_equal(n->ticket, 8);
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    assert_int_equal(n->ticket, 0); /* woken */
    json_auto_t *wanted = send_body(sync_body("boot-1", NULL, 10000), 8, 1, 200);
    assert_int_equal(json_array_size(wanted), 1);
    expect_job(id, "starting", "starting");
    assert_null(send_body(sync_body("boot-1", NULL, 3000), 9, 0, 0));
    assert_true(coordinator_wait_us(c) <= 3000000);
    advance(4);
    assert_int_equal(n->ticket, 0);
}

static void what_cannot_fit_holds_up_nobody_and_says_why(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *big = new_job(JOB(16, ""));
    CLEANUP(mem_freep) char *a = new_job(JOB(2, ""));
    CLEANUP(mem_freep) char *b = new_job(JOB(1, ""));
    expect_job(big, "pending", "never_fits");
    expect_reason(big, "No node has 16 devices; the largest, n1, has 2.");
    expect_job(a, "starting", "starting");
    expect_job(b, "pending", "waiting_for_devices");
    expect_reason(b, "n1 has 0 of 2 free; 1 job is ahead");
    json_auto_t *w = wanted_for(a);
    json_decref(say(status(w, "ended", exit_of("done", "done"))));
    expect_job(b, "starting", "starting"); /* in the very turn in which a ended */
}

static void cancels(void **state)
{
    (void)state;
    CLEANUP(mem_freep) char *waiting = new_job(JOB(1, ""));
    assert_int_equal(cancel(waiting), 200);
    assert_int_equal(cancel(waiting), 200);
    expect_job(waiting, "cancelled", "cancelled");
    assert_int_equal(c->queue.jobs, 0);
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_decref(say(status(w, "running", NULL)));
    assert_int_equal(cancel(id), 200);
    assert_int_equal(cancel(id), 200);
    end_turn();
    expect_job(id, "stopping", "cancelled");
    json_auto_t *answer = say(status(w, "running", NULL));
    assert_string_equal(deed(json_array_get(answer, 0)), "stop");
    json_decref(say(status(w, "stopping", NULL)));
    expect_job(id, "stopping", "cancelled");
    json_decref(say(status(w, "ended", exit_of("stopped", "cancelled"))));
    expect_job(id, "cancelled", "cancelled");
    CLEANUP(mem_freep) char *race = new_job(JOB(1, ""));
    json_auto_t *w2 = wanted_for(race);
    json_decref(say(status(w2, "running", NULL)));
    cancel(race);
    json_decref(say(status(w2, "ended", exit_of("done", "done")))); /* it had finished */
    expect_job(race, "succeeded", "done");
    assert_int_equal(cancel(race), 409);
    assert_int_equal(cancel("job_000000000000000000000000"), 404);
    assert_int_equal(cancel("../../etc/passwd"), 404);
}

static void a_cancel_before_the_node_has_begun(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    cancel(id);
    end_turn();
    expect_job(id, "stopping", "cancelled");
    json_decref(say(NULL)); /* it had not seen the stop when it sent this */
    expect_job(id, "stopping", "cancelled");
    json_decref(say(NULL)); /* now it had, and holds nothing */
    expect_job(id, "cancelled", "cancelled");
    assert_int_equal(free_devices(), 2);
}

static void starts_that_fail_are_tried_again(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    for (int i = 1; i <= 4; i++) {
        json_auto_t *w = wanted_for(id);
        assert_non_null(w);
        json_decref(say(status(w, "ended", exit_of("spawn_failed", "spawn_failed"))));
        if (i < 4) {
            expect_job(id, "pending", "retrying");
            json_auto_t *none = wanted_for(id);
            assert_null(none);
            advance(5);
            hello();
        }
    }
    expect_job(id, "failed", "spawn_failed");
    expect_reason(id, "node n1");
}

static void a_reboot_ends_what_ran(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *ran = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(ran);
    CLEANUP(mem_freep) char *kept = new_job(JOB(1, ""));
    json_auto_t *w2 = wanted_for(kept);
    json_t *both = status(w, "running", NULL);
    json_auto_t *second = status(w2, "running", NULL);
    json_array_extend(both, second);
    json_decref(say(both));
    expect_job(kept, "running", "running");
    /* at once: another machine with that name */
    json_decref(send_body(sync_body("boot-2", NULL, 0), 3, 0, 409));
    advance(20);
    assert_int_equal(nodes_find(&c->nodes, "n1")->health, NODE_SUSPECT);
    advance(30);
    assert_int_equal(nodes_find(&c->nodes, "n1")->health, NODE_LOST);
    expect_job(ran, "running", "running"); /* silence alone frees nothing */
    assert_int_equal(free_devices(), 0);
    /* it comes back and still holds the second attempt, as an ended one */
    json_decref(send_body(
        sync_body("boot-2", status(w2, "ended", exit_of("shim_lost", "shim_lost")), 0), 4, 0, 200));
    end_turn();
    expect_job(ran, "failed", "node_rebooted");
    expect_job(kept, "failed", "node_rebooted");
    assert_int_equal(free_devices(), 2);
    assert_int_equal(nodes_find(&c->nodes, "n1")->health, NODE_READY);
}

static void an_attempt_that_the_node_forgot(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_decref(say(status(w, "running", NULL)));
    json_auto_t *answer = say(NULL);
    assert_int_equal(json_array_size(answer), 0); /* never started a second time */
    expect_job(id, "running", "running");
    for (int i = 0; i < 4; i++) {
        advance(10);
        hello();
    }
    expect_job(id, "failed", "attempt_lost");
    /* and there it is again: it is stopped, and its device is not given away meanwhile */
    json_auto_t *ghost = say(status(w, "running", NULL));
    assert_string_equal(json_string_value(json_object_get(json_array_get(ghost, 0), "code")),
                        "superseded");
    assert_int_equal(free_devices(), 1);
    CLEANUP(mem_freep) char *wide = new_job(JOB(2, ""));
    expect_job(wide, "pending", "waiting_for_devices");
    json_decref(say(status(w, "ended", exit_of("stopped", "superseded"))));
    assert_int_equal(free_devices(), 0);
    expect_job(wide, "starting", "starting");
}

static void a_late_request_changes_nothing(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_t *late = sync_body("boot-1", status(w, "launching", NULL), 0);
    json_decref(say(status(w, "ended", exit_of("done", "done"))));
    json_decref(send_body(late, 5, 0, 200));
    end_turn();
    expect_job(id, "succeeded", "done");
    assert_int_equal(free_devices(), 2);
}

static void a_parked_request_stops_nothing_by_its_old_list(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_decref(say(status(w, "running", NULL)));
    json_t *parked = sync_body("boot-1", status(w, "running", NULL), 10000);
    assert_null(send_body(json_incref(parked), 6, 0, 0));
    json_decref(say(status(w, "ended", exit_of("done", "done"))));
    json_auto_t *answer = send_body(parked, 6, 1, 200);
    assert_int_equal(json_array_size(answer), 0);
}

static void nothing_is_lost_by_a_restart(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *ran = new_job(JOB(2, ""));
    CLEANUP(mem_freep) char *waits = new_job(JOB(2, ""));
    json_auto_t *w = wanted_for(ran);
    json_decref(say(status(w, "running", lines(0, 7, "[{\"type\":\"ready\"}]"))));
    int64_t seen_before = last_seen;
    restart();
    expect_job(ran, "running", "running");
    assert_int_equal(nodes_find(&c->nodes, "n1")->health, NODE_UNKNOWN);
    expect_job(waits, "pending", "waiting_for_node");
    assert_int_equal(free_devices(), 0);
    json_auto_t *answer = say(status(w, "running", NULL));
    assert_true(last_seen > seen_before);
    assert_string_equal(deed(json_array_get(answer, 0)), "run");
    assert_int_equal(
        json_integer_value(json_object_get(json_array_get(answer, 0), "report_offset")), 7);
    json_decref(say(status(w, "ended", exit_of("done", "done"))));
    expect_job(ran, "succeeded", "done");
    expect_job(waits, "starting", "starting");
}

static void keys(void **state)
{
    (void)state;
    json_auto_t *first = NULL, *again = NULL;
    char code[48];
    assert_int_equal(submit(JOB(1, ""), "k", &first, NULL), 201);
    assert_int_equal(submit(JOB(1, ""), "k", &again, NULL), 200); /* also before the commit */
    assert_string_equal(json_string_value(json_object_get(first, "id")),
                        json_string_value(json_object_get(again, "id")));
    end_turn();
    assert_int_equal(submit(JOB(2, ""), "k", NULL, code), 409);
    assert_string_equal(code, "idempotency_conflict");
    assert_int_equal(submit(JOB(1, ""), "", NULL, NULL), 400);
    restart();
    json_decref(again);
    assert_int_equal(submit(JOB(1, ""), "k", &again, NULL), 200);
    assert_string_equal(json_string_value(json_object_get(first, "id")),
                        json_string_value(json_object_get(again, "id")));
}

static void wrong_documents(void **state)
{
    (void)state;
    assert_int_equal(submit("", NULL, NULL, NULL), 400);
    assert_int_equal(submit("{", NULL, NULL, NULL), 400);
    assert_int_equal(submit("[]", NULL, NULL, NULL), 422);
    assert_int_equal(submit("{}", NULL, NULL, NULL), 422);
    assert_int_equal(submit(JOB(0, ""), NULL, NULL, NULL), 422);
    assert_int_equal(store_dirty(c->store), 0);
    static const char *const bodies[] = {
        "{}",
        "{\"node\":1}",
        "{\"node\":\"../x\",\"version\":\"\",\"boot_id\":\"b\",\"wait_ms\":0,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[],\"attempts\":[]}",
        "{\"node\":\"n\",\"version\":\"\",\"boot_id\":\"\",\"wait_ms\":0,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[],\"attempts\":[]}",
        "{\"node\":\"n\",\"version\":\"\",\"boot_id\":\"b\",\"wait_ms\":-1,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[],\"attempts\":[]}",
        "{\"node\":\"n\",\"version\":\"\",\"boot_id\":\"b\",\"wait_ms\":0,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[],\"attempts\":{}}",
        "{\"node\":\"n\",\"version\":\"\",\"boot_id\":\"b\",\"wait_ms\":0,\"seen\":0,"
        "\"wall_us\":0,\"devices\":[{}],\"attempts\":[]}"};
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++)
        assert_null(send_body(json_loads(bodies[i], 0, NULL), 1, 0, 400));
    end_turn();
    assert_int_equal(c->nodes.count, 0);
    hello();
    json_decref(say(json_loads("[1,{},{\"attempt\":\"x\",\"state\":\"running\"},{\"attempt\":"
                               "\"att_000000000000000000000000\",\"state\":\"running\","
                               "\"epoch\":1}]",
                               0, NULL)));
}

static void documents_keep_every_byte(void **state)
{
    (void)state;
    json_auto_t *doc = NULL;
    static const char name[] = "q\"b\\n\x01\xc3\xa9\xf0\x9f\x98\x80";
    json_auto_t *job = json_pack("{s:s, s:[s], s:{s:s}, s:f, s:i}", "name", "x", "command", "true",
                                 "labels", "k", "v", "unknown_field", 0.1, "priority", -7);
    json_auto_t *resources = json_pack("{s:i}", "devices", 1);
    json_object_set(job, "resources", resources);
    CLEANUP(mem_freep) char *text = json_dumps(job, JSON_INDENT(2));
    int status = submit(text, NULL, &doc, NULL);
    assert_int_equal(status, 201);
    assert_non_null(doc);
    assert_true(json_equal(json_object_get(doc, "spec"), job));
    assert_int_equal(json_integer_value(json_object_get(doc, "priority")), -7);
    assert_string_equal(json_string_value(json_object_get(json_object_get(doc, "labels"), "k")),
                        "v");
    assert_int_equal(json_array_size(json_object_get(doc, "warnings")), 1);
    assert_true(json_is_null(json_object_get(doc, "started_at")));
    struct buf b = BUF_INIT;
    text_open(&b, "{");
    text_string(&b, "name", name);
    text_int(&b, "least", INT64_MIN);
    text_number(&b, "third", 1.0 / 3.0);
    text_key(&b, "none");
    text_open(&b, "[");
    text_close(&b, "]");
    text_string(&b, "nothing", NULL);
    text_close(&b, "}");
    json_auto_t *read = json_loads(b.data, 0, NULL);
    buf_done(&b);
    assert_non_null(read);
    assert_string_equal(json_string_value(json_object_get(read, "name")), name);
    assert_true(json_integer_value(json_object_get(read, "least")) == INT64_MIN);
    assert_string_equal(json_string_value(json_object_get(read, "nothing")), "");
}

static void dry_run_stores_nothing(void **state)
{
    (void)state;
    struct service_reply r;
    const char *body = JOB(1, "");
    struct submit_request q = {.body = body, .body_len = strlen(body), .dry_run = 1};
    service_reply_init(&r);
    assert_int_equal(service_job_submit(c, &q, &r), 0);
    assert_int_equal(r.status, 200);
    assert_non_null(json_object_get(r.body, "plan"));
    service_reply_done(&r);
    assert_int_equal(store_dirty(c->store), 0);
    assert_int_equal(c->queue.jobs, 0);
}

static void lists_page_by_cursor(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        submit(i % 2 ? JOB(1, ",\"labels\":{\"team\":\"a\"}") : JOB(1, ""), NULL, NULL, NULL);
    end_turn();
    size_t seen = 0;
    char after[32] = "";
    for (int page = 0; page < 3; page++) {
        struct service_reply r;
        struct list_request q = {.limit = 2, .after = after[0] ? after : NULL};
        service_reply_init(&r);
        assert_int_equal(service_job_list(c, &q, &r), 0);
        json_auto_t *page_doc = json_loads(r.text, 0, NULL);
        seen += json_array_size(json_object_get(page_doc, "jobs"));
        const char *next = json_string_value(json_object_get(page_doc, "next"));
        assert_int_equal(next != NULL, page < 2);
        snprintf(after, sizeof(after), "%s", next ? next : "");
        service_reply_done(&r);
    }
    assert_int_equal(seen, 5);
    struct service_reply r;
    struct list_request q = {.limit = 2, .label = "team=a", .states = "pending,running"};
    service_reply_init(&r);
    assert_int_equal(service_job_list(c, &q, &r), 0);
    json_auto_t *list = json_loads(r.text, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(list, "jobs")), 2);
    assert_null(json_object_get(list, "next")); /* exactly one page */
    service_reply_done(&r);
    q.states = "pending,,x";
    assert_int_equal(service_job_list(c, &q, &r), ERR_INVALID);
    service_reply_done(&r);
    q.states = NULL;
    q.after = "7x";
    assert_int_equal(service_job_list(c, &q, &r), ERR_INVALID);
    service_reply_done(&r);
}

/* Files may not grow beyond what they are: the disk is full, as far as the store can tell. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_turn_that_fails_leaves_nothing(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    expect_job(id, "starting", "starting");
    signal(SIGXFSZ, SIG_IGN);
    limit_files(1);
    struct err e = {0};
    int statuses = submit(JOB(1, ""), "k1", NULL, NULL);
    int rc = coordinator_end_turn(c, &e);
    limit_files(RLIM_INFINITY);
    assert_true(statuses == 201 || statuses == 507 || statuses == 500);
    if (rc != 0) {
        /* the limit shows as a failed write, after which the process ends: what a new one finds
         * is the state before the turn */
        restart();
    } else {
        struct service_reply r;
        service_reply_init(&r);
        assert_int_equal(service_ready(c, &r), ERR_UNAVAILABLE);
        assert_int_equal(r.status, 503);
        service_reply_done(&r);
    }
    assert_int_equal(c->queue.jobs, 0);
    expect_job(id, "starting", "starting");
    hello();
    assert_int_equal(submit(JOB(1, ""), "k1", NULL, NULL), 201); /* the key is free */
    end_turn();
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_ready(c, &r), 0);
    service_reply_done(&r);
}

/* A file system of 2 MiB in a mount namespace of our own; skipped where that is not allowed. */
static int small_disk(void)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return -1;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return -1;
    return mount("none", state_dir, "tmpfs", 0, "size=2m,mode=0700");
}

static void a_full_disk_is_answered_and_survived(void **state)
{
    (void)state;
    struct err e = {0};
    c = NULL;
    snprintf(state_dir, sizeof(state_dir), "/tmp/coordinator-test.XXXXXX");
    assert_non_null(mkdtemp(state_dir));
    if (small_disk() != 0)
        skip();
    last_seen = 0;
    if (coordinator_open(state_dir, &c, &e) != 0)
        fail_msg("%s", e.text);
    hello();
    int taken = 0, full = 0;
    char key[16];
    while (!full && taken < 100000) {
        int before = taken;
        for (int i = 0; i < 20; i++) {
            snprintf(key, sizeof(key), "k%d", taken);
            int status = submit(JOB(2, ""), key, NULL, NULL);
            assert_true(status == 201 || status == 507);
            taken += status == 201;
        }
        assert_int_equal(coordinator_end_turn(c, &e), 0);
        full = c->no_space.code != 0;
        if (full)
            taken = before; /* the whole turn was refused */
    }
    assert_int_equal(full, 1);
    struct service_reply r;
    service_reply_init(&r);
    service_ready(c, &r);
    assert_int_equal(r.status, 503);
    service_reply_done(&r);
    int64_t counts[JOB_STATE__MAX];
    if (store_job_count(c->store, counts, &e) < 0)
        fail_msg("a full disk keeps from reading: %s", e.text);
    assert_int_equal(counts[JOB_PENDING] + counts[JOB_STARTING], taken);
    assert_int_equal(c->queue.jobs, counts[JOB_PENDING]);
    assert_int_equal(mount("none", state_dir, "tmpfs", MS_REMOUNT, "size=64m"), 0);
    snprintf(key, sizeof(key), "k%d", taken);
    assert_int_equal(submit(JOB(2, ""), key, NULL, NULL), 201);
    end_turn();
    service_reply_init(&r);
    assert_int_equal(service_ready(c, &r), 0);
    service_reply_done(&r);
}

static int full_disk_teardown(void **state)
{
    (void)state;
    coordinator_close(c);
    umount2(state_dir, MNT_DETACH);
    return file_remove_tree(state_dir, NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(from_submission_to_success),
        TEST(repeated_lines_and_syncs_count_once),
        TEST(hostile_lines_are_dropped),
        TEST(old_epochs_and_other_nodes_change_nothing),
        TEST(a_sync_waits_until_something_is_wanted),
        TEST(what_cannot_fit_holds_up_nobody_and_says_why),
        TEST(cancels),
        TEST(a_cancel_before_the_node_has_begun),
        TEST(starts_that_fail_are_tried_again),
        TEST(a_reboot_ends_what_ran),
        TEST(an_attempt_that_the_node_forgot),
        TEST(a_late_request_changes_nothing),
        TEST(a_parked_request_stops_nothing_by_its_old_list),
        TEST(nothing_is_lost_by_a_restart),
        TEST(keys),
        TEST(wrong_documents),
        TEST(documents_keep_every_byte),
        TEST(dry_run_stores_nothing),
        TEST(lists_page_by_cursor),
        TEST(a_turn_that_fails_leaves_nothing),
        cmocka_unit_test_teardown(a_full_disk_is_answered_and_survived, full_disk_teardown),
    };
    log_setup("coordinator_sync", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
