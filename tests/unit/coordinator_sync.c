/* What an agent's syncs do: submission to success, fencing, repeated and late syncs, reboots, races
 * with cancel, restarts, hostile reports. */
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

static void ports_do_not_overlap(void **state)
{
    (void)state;
    hello();
    struct node *n = nodes_find(&c->nodes, "n1");
    n->next_port = 8999; /* the last one, which is too late for two */
    CLEANUP(mem_freep) char *a = new_job(JOB(1, ""));
    n->next_port = 8998;
    CLEANUP(mem_freep) char *b = new_job(JOB(1, ""));
    json_auto_t *wa = wanted_for(a), *wb = wanted_for(b);
    json_t *la = json_object_get(wa, "launch"), *lb = json_object_get(wb, "launch");
    assert_int_equal(json_integer_value(json_object_get(la, "master_port")), 29999);
    assert_int_equal(json_integer_value(json_object_get(lb, "master_port")), 29998);
    json_decref(say(status(wa, "ended", exit_of("done", "done"))));
    CLEANUP(mem_freep) char *waits = new_job(JOB(2, ""));
    json_decref(say(status(wb, "ended", exit_of("done", "done"))));
    json_auto_t *w = wanted_for(waits);
    int64_t port = json_integer_value(json_object_get(json_object_get(w, "launch"), "master_port"));
    assert_in_range(port, 21000, 29998);
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

/* ---- nodes that take no jobs, and jobs that wait for our disk ---- */
static void say_trouble(const char *trouble, int expected)
{
    json_t *body = sync_body("boot-1", NULL, 0);
    if (trouble)
        json_object_set_new(body, "trouble", json_string(trouble));
    json_decref(send_body(body, 1, 0, expected));
    end_turn();
}

static void expect_trouble(const char *part)
{
    struct service_reply r;
    service_reply_init(&r);
    assert_int_equal(service_node_show(c, "n1", &r), 0);
    const char *is = json_string_value(json_object_get(r.body, "trouble"));
    if (part ? !is || !strstr(is, part) : is != NULL)
        fail_msg("trouble is %s", is ? is : "null");
    service_reply_done(&r);
}

static void a_node_with_trouble_gets_no_jobs(void **state)
{
    (void)state;
    char text[400];
    say_trouble("The disk is full.", 200);
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    expect_job(id, "pending", "waiting_for_node");
    expect_reason(id, "n1, which takes no new jobs now. The disk is full.");
    expect_trouble("The disk is full.");
    say_trouble(NULL, 200);
    expect_trouble(NULL);
    expect_job(id, "starting", "starting");
    memset(text, 'x', 301);
    text[301] = '\0';
    say_trouble(text, 400);
}

/* A start of the job in the queue that the node could not make; 1 if there was one. */
static int fail_start(const char *id)
{
    json_auto_t *w = wanted_for(id);
    if (w)
        json_decref(say(status(w, "ended", exit_of("spawn_failed", "spawn_failed"))));
    return w != NULL;
}

static void a_node_that_starts_nothing_rests(void **state)
{
    (void)state;
    char *ids[4];
    hello();
    for (int i = 0; i < 3; i++) {
        expect_trouble(NULL);
        ids[i] = new_job(JOB(1, ""));
        assert_true(fail_start(ids[i]));
    }
    expect_trouble("It rests for 10 s more, since the last 3 jobs could not be started there: Bec");
    ids[3] = new_job(JOB(1, ""));
    expect_job(ids[3], "pending", "waiting_for_node");
    expect_reason(ids[3], "n1, which takes no new jobs now. It rests for 10 s");
    for (int i = 0; i < 9; i++) {
        advance(1);
        hello();
    }
    expect_job(ids[3], "pending", "waiting_for_node");
    advance(2);
    hello();
    expect_trouble(NULL);
    int failed = 0;
    for (int i = 0; i < 4 && !failed; i++)
        failed = fail_start(ids[i]);
    assert_true(failed);
    expect_trouble("20 s");
    for (int i = 0; i < 22; i++) {
        advance(1);
        hello();
    }
    expect_trouble(NULL);
    json_auto_t *w = NULL;
    for (int i = 0; i < 4 && !w; i++)
        w = wanted_for(ids[i]);
    assert_non_null(w);
    json_decref(say(status(w, "running", NULL)));
    assert_int_equal(nodes_find(&c->nodes, "n1")->failed.count, 0);
    for (int i = 0; i < 4; i++)
        free(ids[i]);
}

static void one_job_makes_no_node_rest(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    for (int i = 0; i < 4; i++) {
        assert_true(fail_start(id));
        advance(5);
        hello();
    }
    expect_job(id, "failed", "spawn_failed");
    expect_trouble(NULL);
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
    json_auto_t *doc = show(kept);
    const json_t *exit = json_object_get(doc, "exit");
    assert_string_equal(json_string_value(json_object_get(exit, "code")), "node_rebooted");
    assert_string_equal(json_string_value(json_object_get(exit, "reason")),
                        "Node n1 was rebooted while the attempt ran.");
    assert_int_equal(free_devices(), 2);
    assert_int_equal(nodes_find(&c->nodes, "n1")->health, NODE_READY);
}

static json_t *hello_from(const char *state_id)
{
    json_t *body = sync_body("boot-1", NULL, 0);
    json_object_set_new(body, "state_id", json_string(state_id));
    return body;
}

static void two_agents_of_one_machine_with_one_name(void **state)
{
    (void)state;
    json_decref(send_body(hello_from("1:1"), 1, 0, 200));
    end_turn();
    json_decref(send_body(hello_from("1:2"), 2, 0, 409));
    json_decref(send_body(hello_from("1:1"), 3, 0, 200));
    hello(); /* an agent that does not tell */
    advance(20);
    json_decref(send_body(hello_from("1:2"), 4, 0, 200)); /* the first has gone */
    json_decref(send_body(hello_from("1:1"), 5, 0, 409));
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
    /* what may be left of it is to be ended; until that is done its device is not given away */
    json_auto_t *stop = say(NULL);
    assert_string_equal(deed(json_array_get(stop, 0)), "stop");
    assert_string_equal(json_string_value(json_object_get(json_array_get(stop, 0), "code")),
                        "attempt_lost");
    expect_job(id, "running", "running");
    assert_int_equal(free_devices(), 1);
    json_decref(say(status(w, "ended", exit_of("stopped", "attempt_lost"))));
    expect_job(id, "failed", "attempt_lost");
    assert_int_equal(free_devices(), 2);
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

static void a_pause_of_ours_is_not_held_against_nodes(void **state)
{
    (void)state;
    hello();
    CLEANUP(mem_freep) char *id = new_job(JOB(1, ""));
    json_auto_t *w = wanted_for(id);
    json_decref(say(status(w, "running", NULL)));
    hello(); /* missing once */
    pause_for(600);
    assert_int_equal(nodes_find(&c->nodes, "n1")->health, NODE_READY);
    json_auto_t *answer = say(NULL);
    assert_int_equal(json_array_size(answer), 0); /* nor is it missing for ten minutes */
    advance(20);
    assert_int_equal(nodes_find(&c->nodes, "n1")->health, NODE_SUSPECT);
    advance(30);
    assert_int_equal(nodes_find(&c->nodes, "n1")->health, NODE_LOST);
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

static void a_node_that_cannot_be_one_costs_nothing(void **state)
{
    (void)state;
    hello();
    json_t *body = sync_body("boot-9", NULL, 0);
    json_object_set_new(body, "node", json_string("n2"));
    json_object_set_new(body, "devices", json_pack("[{s:i, s:s}]", "index", 0, "kind", "tpu"));
    json_decref(send_body(body, 2, 0, 400));
    assert_int_equal(c->rebuild, 0); /* memory is not read anew for every such sync */
    assert_null(nodes_find(&c->nodes, "n2"));
    assert_non_null(nodes_find(&c->nodes, "n1"));
    for (int i = 1; i < COORDINATOR_MAX_NODES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "x%d", i);
        nodes_get(&c->nodes, name);
    }
    body = sync_body("boot-9", NULL, 0);
    json_object_set_new(body, "node", json_string("n2"));
    json_decref(send_body(body, 2, 0, 429));
    hello();
}

/* Its attempt number 1 is taken: a start of it can never be written. */
static void a_doomed_job_holds_up_nobody(void **state)
{
    (void)state;
    struct err e = {0};
    CLEANUP(mem_freep) char *doomed = new_job(JOB(1, ""));
    CLEANUP(mem_freep) char *good = new_job(JOB(1, ""));
    struct node_row node = {.name = (char *)"n0",
                            .boot_id = (char *)"b",
                            .version = (char *)"",
                            .devices = (char *)"[]"};
    struct attempt_row a = {.id = (char *)"att_01k8z4q9tw3v7m2c5xd8hbn6",
                            .job_id = doomed,
                            .number = 1,
                            .epoch = 1000,
                            .node = (char *)"n0",
                            .state = ATTEMPT_LAUNCHING,
                            .secret = (char *)""};
    assert_int_equal(store_node_put(c->store, &node, &e), 0);
    if (store_attempt_insert(c->store, &a, &e) != 0)
        fail_msg("%s", e.text);
    hello();
    end_turn();
    expect_job(good, "pending", "waiting_for_node"); /* until n1 has spoken again */
    hello();
    expect_job(good, "starting", "starting");
    expect_job(doomed, "pending", "retrying");
    expect_reason(doomed, "could not be written");
    advance(11);
    hello();
    expect_job(good, "starting", "starting");
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
        TEST(what_cannot_fit_holds_up_nobody_and_says_why),
        TEST(ports_do_not_overlap),
        TEST(cancels),
        TEST(a_cancel_before_the_node_has_begun),
        TEST(starts_that_fail_are_tried_again),
        TEST(what_was_left_out_is_told),
        TEST(a_list_of_what_was_left_out_is_checked),
        TEST(a_node_with_trouble_gets_no_jobs),
        TEST(a_node_that_starts_nothing_rests),
        TEST(one_job_makes_no_node_rest),
        TEST(a_finished_job_that_waits_for_our_disk_says_so),
        TEST(a_reboot_ends_what_ran),
        TEST(two_agents_of_one_machine_with_one_name),
        TEST(bytes_without_a_report_are_taken),
        TEST(an_attempt_that_the_node_forgot),
        TEST(a_pause_of_ours_is_not_held_against_nodes),
        TEST(a_clock_set_back_makes_no_negative_times),
        TEST(a_node_that_cannot_be_one_costs_nothing),
        TEST(a_doomed_job_holds_up_nobody),
        TEST(a_full_line_of_figures_is_taken),
        TEST(a_late_request_changes_nothing),
        TEST(a_parked_request_stops_nothing_by_its_old_list),
        TEST(nothing_is_lost_by_a_restart),
    };
    log_setup("coordinator_sync", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
