/* What an agent's syncs do to a job: submission to success, fencing, repeated and late syncs, races
 * with cancel, restarts, hostile reports. What they do to a node is in coordinator_nodes.c. */
#include "tests/unit/coordinator_harness.h"

#include "base/log.h"
#include "daemon/coordinator/reports.h"

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
                                 "{\"member\":3,\"loss\":0.25}],\"members_left_out\":4}]"))));
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
    assert_int_equal(service_job_metrics(c, id, 0, 0, 0, &r), 0);
    json_auto_t *metrics = json_loads(r.text, 0, NULL);
    service_reply_done(&r);
    assert_non_null(metrics);
    const json_t *step = json_array_get(json_object_get(metrics, "steps"), 0);
    assert_string_equal(json_string_value(json_object_get(step, "grad_norm")), "nan");
    assert_true(json_real_value(json_object_get(step, "loss")) == 2.5);
    const json_t *epoch = json_array_get(json_object_get(metrics, "epochs"), 0);
    const json_t *members = json_object_get(epoch, "members");
    assert_int_equal(json_array_size(members), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(members, 0), "member")), 3);
    assert_int_equal(json_integer_value(json_object_get(epoch, "members_left_out")), 4);
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
    json_decref(say(status(w, "ended", json_pack("{s:{s:i}}", "exit", "outcome", 7))));
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

static json_t *artifacts_of(const char *id)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_artifact_list(c, id, &r), 0);
    json_t *doc = json_incref(r.body);
    service_reply_done(&r);
    return doc;
}

static int events_of(const char *id, const char *type)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_event_list(c, id, 0, 100, &r), 0);
    json_t *list = json_object_get(r.body, "events");
    int count = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        count +=
            strcmp(json_string_value(json_object_get(json_array_get(list, i), "type")), type) == 0;
    service_reply_done(&r);
    return count;
}

/* The end of a job whose record says `left_out`. */
static char *job_that_left(json_t *take_left_out, int count)
{
    char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_t *record = exit_of("done", "done");
    json_object_set_new(json_object_get(record, "exit"), "left_out", take_left_out);
    json_object_set_new(json_object_get(record, "exit"), "left_out_count", json_integer(count));
    json_decref(say(status(w, "ended", record)));
    return id;
}

static void what_was_left_out_is_told(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep)
    char *id = job_that_left(json_pack("[{s:s, s:s}]", "name", "a b", "why", "A blank."), 7);
    expect_job(id, "succeeded", "done");
    json_auto_t *doc = artifacts_of(id);
    json_t *list = json_object_get(doc, "left_out");
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "name")), "a b");
    assert_int_equal(json_integer_value(json_object_get(doc, "left_out_count")), 7);
    json_auto_t *job = show(id);
    assert_int_equal(json_array_size(json_object_get(json_object_get(job, "exit"), "left_out")), 1);
    assert_int_equal(events_of(id, "files_left_out"), 1);
    CLEANUP(mem_freep) char *none = new_job(JOB(1, ""));
    json_auto_t *empty = artifacts_of(none);
    assert_int_equal(json_array_size(json_object_get(empty, "left_out")), 0);
    assert_true(json_is_array(json_object_get(empty, "left_out")));
}

static void a_list_of_what_was_left_out_is_checked(void **state)
{
    (void)state;
    hello();
    char long_name[300];
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    json_t *many = json_array();
    for (int i = 0; i < 65; i++)
        json_array_append_new(many, json_pack("{s:s, s:s}", "name", "a", "why", "b"));
    json_t *wrong[] = {json_object(), json_pack("[i]", 1), many,
                       json_pack("[{s:s, s:i}]", "name", "a", "why", 1),
                       json_pack("[{s:s, s:s}]", "name", long_name, "why", "b")};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        CLEANUP(mem_freep) char *id = job_that_left(wrong[i], 100);
        expect_job(id, "failed", "invalid_exit_record");
    }
}

static void a_finished_job_that_waits_for_our_disk_says_so(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_decref(say(status(w, "running", NULL)));
    expect_job(id, "running", "running");
    json_decref(say(status(w, "running", json_pack("{s:s}", "waits", "coordinator_disk"))));
    expect_job(id, "running", "coordinator_disk_full");
    expect_reason(id,
                  "Finished on node n1; its log and artifacts wait until the coordinator's disk "
                  "has room.");
    json_decref(say(status(w, "running", NULL)));
    expect_job(id, "running", "running");
    json_decref(say(status(w, "running", json_pack("{s:s}", "waits", "coordinator_disk"))));
    json_decref(say(status(w, "ended", exit_of("done", "done"))));
    expect_job(id, "succeeded", "done");
}

/* Rubbish in a report file is passed over by the agent: bytes without lines. */
static void bytes_without_a_report_are_taken(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    for (int64_t to = 40; to <= 50; to += 10) { /* the second time, it is not where we are */
        json_auto_t *answer = say(status(w, "running", lines(0, to, "[]")));
        const json_t *offset = json_object_get(json_array_get(answer, 0), "report_offset");
        assert_int_equal(json_integer_value(offset), 40);
    }
}

static void a_clock_set_back_makes_no_negative_times(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_decref(say(status(w, "running", NULL)));
    c->wall_ahead_us = -3600 * 1000000LL;
    json_decref(say(status(w, "ended", exit_of("done", "done"))));
    struct job_row job;
    struct attempt_row a;
    struct err e = {0};
    assert_int_equal(store_job_get(c->store, id, &job, &e), 0);
    assert_int_equal(store_attempt_latest(c->store, id, &a, &e), 0);
    assert_true(job.started_us >= job.submitted_us && job.finished_us >= job.started_us);
    assert_true(a.started_us >= a.created_us && a.ended_us >= a.started_us);
    job_row_done(&job);
    attempt_row_done(&a);
}

static void a_full_line_of_figures_is_taken(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    struct buf b = BUF_INIT;
    buf_adds(&b, "[{\"type\":\"epoch\",\"epoch\":1,\"members\":[");
    for (int i = 0; i < 80; i++)
        buf_addf(&b, "%s{\"loss\":0.%09d,\"val_loss\":0.%09d}", i ? "," : "", 7919 * i + 100000001,
                 104729 * i + 300000007);
    buf_adds(&b, "]}]");
    assert_true(b.len < REPORTS_MAX_LINE);
    json_decref(say(status(w, "running", lines(0, 9, b.data))));
    buf_done(&b);
    assert_int_equal(c->dropped_lines, 0);
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(from_submission_to_success),
        TEST(repeated_lines_and_syncs_count_once),
        TEST(hostile_lines_are_dropped),
        TEST(old_epochs_and_other_nodes_change_nothing),
        TEST(a_sync_waits_until_something_is_wanted),
        TEST(cancels),
        TEST(a_cancel_before_the_node_has_begun),
        TEST(what_was_left_out_is_told),
        TEST(a_list_of_what_was_left_out_is_checked),
        TEST(a_finished_job_that_waits_for_our_disk_says_so),
        TEST(bytes_without_a_report_are_taken),
        TEST(a_clock_set_back_makes_no_negative_times),
        TEST(a_full_line_of_figures_is_taken),
        TEST(a_late_request_changes_nothing),
        TEST(a_parked_request_stops_nothing_by_its_old_list),
        TEST(nothing_is_lost_by_a_restart),
    };
    log_setup("coordinator_sync", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
