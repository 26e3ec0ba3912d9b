/* Which node a job gets, and what becomes of both: nodes too small, in trouble, at rest, rebooted,
 * silent, forgetful, or none at all. */
#include "tests/unit/coordinator_harness.h"

#include "base/log.h"

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

/* ---- nodes that take no jobs ---- */
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

/* ---- nodes that come, go and forget ---- */
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_cannot_fit_holds_up_nobody_and_says_why),
        TEST(ports_do_not_overlap),
        TEST(starts_that_fail_are_tried_again),
        TEST(a_node_with_trouble_gets_no_jobs),
        TEST(a_node_that_starts_nothing_rests),
        TEST(one_job_makes_no_node_rest),
        TEST(a_reboot_ends_what_ran),
        TEST(two_agents_of_one_machine_with_one_name),
        TEST(an_attempt_that_the_node_forgot),
        TEST(a_pause_of_ours_is_not_held_against_nodes),
        TEST(a_node_that_cannot_be_one_costs_nothing),
        TEST(a_doomed_job_holds_up_nobody),
    };
    log_setup("coordinator_nodes", LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
