/* Suspend, resume, retry and restarts; where a job goes on; which of two syncs is believed. */
#include "tests/unit/coordinator_runs.h"

static void a_command_is_not_run_twice_unasked(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(JOB(1, ""));
    expect_resume(&r, "-");
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "failed", "shim_lost");
    expect_reason(r.job, "a retry starts one");
    CLEANUP(run_done) struct run again = new_run(JOB(1, ",\"max_restarts\":1"));
    report_end(&again, "shim_lost", "shim_lost");
    expect_job(again.job, "pending", "restarting");
    expect_reason(again.job, "it runs its command from the beginning.");
}

/* ---- suspend, resume ---- */
static void suspended_and_resumed(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "]");
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    expect_job(r.job, "stopping", "suspended");
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    expect_refused(service_job_resume, r.job, "job_stopping");
    assert_int_equal(retry_as(r.job, 0, NULL), 409);
    json_auto_t *answer = ask(body_of("n1", status(r.wish, "running", NULL), NULL));
    const json_t *w = json_array_get(json_object_get(answer, "wanted"), 0);
    assert_string_equal(deed(w), "stop");
    assert_string_equal(json_string_value(json_object_get(w, "code")), "suspended");
    assert_int_equal(json_integer_value(json_object_get(w, "grace_s")), 300);
    report(&r, "[" CHECKPOINT(137, "step-0000000137") "]");
    report_end(&r, "stopped", "suspended");
    expect_job(r.job, "suspended", "suspended");
    expect_reason(r.job, "The next attempt resumes at step 137.");
    assert_int_equal(free_devices(), 2);
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    restart();
    node_says("n1", NULL);
    expect_job(r.job, "suspended", "suspended"); /* it does not start by itself */
    assert_int_equal(post(service_job_resume, r.job, NULL), 200);
    assert_int_equal(post(service_job_resume, r.job, NULL), 200);
    runs_on(&r, "n1");
    expect_resume(&r, "137 100 ");
    assert_int_equal(post(service_job_resume, r.job, NULL), 200);
    assert_int_equal(retry_as(r.job, 0, NULL), 200); /* it is under way */
    assert_int_equal(retry_as(r.job, 1, NULL), 409);
    report_end(&r, "done", "done");
    expect_job(r.job, "succeeded", "done");
}

static void what_waits_is_suspended_at_once(void **state)
{
    (void)state;
    CLEANUP(mem_freep) char *id = new_job(TRAINING(""));
    assert_int_equal(post(service_job_suspend, id, NULL), 200);
    expect_job(id, "suspended", "suspended");
    assert_int_equal(c->queue.jobs, 0);
    node_says("n1", NULL);
    expect_job(id, "suspended", "suspended");
    assert_int_equal(post(service_job_resume, id, NULL), 200);
    expect_job(id, "starting", "starting");
    CLEANUP(mem_freep) char *other = new_job(JOB(2, ""));
    assert_int_equal(post(service_job_suspend, other, NULL), 200);
    assert_int_equal(cancel(other), 200);
    expect_job(other, "cancelled", "cancelled");
}

static void what_has_not_begun_is_suspended_as_well(void **state)
{
    (void)state;
    node_says("n1", NULL);
    CLEANUP(mem_freep) char *id = new_job(TRAINING(""));
    expect_job(id, "starting", "starting");
    assert_int_equal(post(service_job_suspend, id, NULL), 200);
    expect_job(id, "stopping", "suspended");
    json_auto_t *wish = wish_of("n1", id); /* it had not heard of it */
    if (wish)
        assert_string_equal(deed(wish), "stop");
    node_says("n1", NULL);
    expect_job(id, "suspended", "suspended");
    assert_int_equal(free_devices(), 2);
}

static void a_job_at_rest_can_be_suspended(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "pending", "restarting");
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    advance(3);
    expect_job(r.job, "suspended", "suspended");
    assert_int_equal(post(service_job_resume, r.job, NULL), 200); /* and needs no rest */
    expect_job(r.job, "starting", "starting");
}

static void a_cancel_overtakes_a_suspend(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" C100 "]");
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    assert_int_equal(cancel(r.job), 200);
    end_turn();
    expect_job(r.job, "stopping", "cancelled");
    expect_refused(service_job_suspend, r.job, "job_stopping");
    report_end(&r, "stopped", "suspended"); /* as its shim heard it first */
    expect_job(r.job, "cancelled", "cancelled");
    expect_refused(service_job_suspend, r.job, "job_finished");
    struct service_reply said;
    service_reply_init(&said);
    service_job_suspend(c, r.job, &said);
    assert_non_null(strstr(said.detail, "has been cancelled already"));
    service_reply_done(&said);
    expect_refused(service_job_resume, r.job, "job_finished");
    expect_record(r.job, "100 ");
    assert_int_equal(retry_as(r.job, 0, NULL), 200);
    runs_on(&r, "n1");
    expect_resume(&r, "100 ");
    json_auto_t *job = show(r.job);
    assert_true(json_is_null(json_object_get(job, "finished_at")));
    assert_true(json_is_null(json_object_get(job, "exit")));
}

static void what_would_lose_its_work_is_not_suspended(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(",\"checkpoint\":false"));
    json_auto_t *doc = checkpoints_of(r.job);
    assert_int_equal(json_integer_value(json_object_get(doc, "keep")), 0);
    expect_resume(&r, "-");
    expect_refused(service_job_suspend, r.job, "no_checkpoints");
    report_end(&r, "shim_lost", "shim_lost");
    expect_reason(r.job, "since it takes no checkpoints");
    CLEANUP(run_done) struct run command = new_run(JOB(1, ""));
    assert_int_equal(post(service_job_suspend, command.job, NULL), 200);
    report_end(&command, "stopped", "suspended");
    expect_job(command.job, "suspended", "suspended");
    expect_reason(command.job, "The next attempt runs its command from the beginning.");
}

/* ---- where it goes on ---- */
static void it_waits_for_the_node_that_has_it(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "]");
    node_says("n2", NULL);
    assert_int_equal(post(service_job_suspend, r.job, NULL), 200);
    report_end(&r, "stopped", "suspended");
    for (int i = 0; i < 50; i++) { /* n1 falls silent, n2 does not */
        advance(1);
        node_says("n2", NULL);
    }
    assert_int_equal(post(service_job_resume, r.job, NULL), 200);
    expect_job(r.job, "pending", "waiting_for_node");
    expect_reason(r.job, "Waiting for node n1, which last reported");
    expect_reason(r.job, "Its checkpoints lie on node n1, so only that node can go on with it. To "
                         "start it at step 0 on any node, retry it with {\"from\": \"scratch\"}.");
    CLEANUP(mem_freep) char *other = new_job(TRAINING("")); /* which needs not wait behind it */
    expect_job(other, "starting", "starting");
    restart();
    node_says("n2", NULL);
    expect_job(r.job, "pending", "waiting_for_node");
    assert_int_equal(retry_as(r.job, 0, NULL), 200); /* it waits already */
    expect_job(r.job, "pending", "waiting_for_node");
    assert_int_equal(retry_as(r.job, 1, NULL), 200);
    expect_record(r.job, "");
    runs_on(&r, "n2");
    expect_resume(&r, "");
}

static void with_a_share_any_node_that_sees_it_will_do(void **state)
{
    (void)state;
    share = "nfs";
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "]");
    report_end(&r, "shim_lost", "shim_lost");
    share = "";
    node_says("n1", NULL); /* no longer */
    node_says("n2", NULL);
    advance(3);
    expect_job(r.job, "pending", "waiting_for_node");
    expect_reason(r.job, "No node that is known sees its checkpoints.");
    expect_reason(r.job, "Its checkpoints lie on the shared file system \"nfs\"");
    share = "nfs";
    node_says("n2", NULL);
    runs_on(&r, "n2");
    expect_resume(&r, "100 ");
    share = "";
}

/* An empty list would make the trainer begin at step 0, and what it had would be given up. */
static void a_share_that_is_lost_on_the_way_begins_nothing_anew(void **state)
{
    (void)state;
    share = "nfs";
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "]");
    report_end(&r, "shim_lost", "shim_lost");
    advance(2);
    expect_job(r.job, "starting", "starting");
    c->rebuild = 1; /* a turn that was rolled back */
    end_turn();
    assert_string_equal(nodes_find(&c->nodes, "n1")->share, "nfs");
    share = "";
    runs_on(&r, "n1");
    expect_resume(&r, "100 ");
}

/* ---- late syncs ---- */
static json_t *numbered(json_t *take_attempts, const char *run, int64_t sequence, int64_t wall_us)
{
    json_t *body = body_of("n1", take_attempts, NULL);
    json_object_set_new(body, "run", json_string(run));
    json_object_set_new(body, "sequence", json_integer(sequence));
    json_object_set_new(body, "wall_us", json_integer(5000000 + wall_us));
    return body;
}

#define RUN_1 "run_01k8z4q9tw3v7m2c5xd8hbn6"
#define RUN_2 "run_01k8z4q9tw3v7m2c5xd8hbn7"

/* How many devices the node is believed to have something on that we have ended. */
static int haunted(void)
{
    const struct node *n = nodes_find(&c->nodes, "n1");
    int count = 0;
    for (size_t i = 0; i < n->device_count; i++)
        count += n->devices[i].haunted;
    return count;
}

static void an_older_request_is_not_believed(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    json_auto_t *running = status(r.wish, "running", NULL);
    json_auto_t *ended = status(r.wish, "ended", exit_of("done", "done"));
    json_decref(ask(numbered(json_incref(running), RUN_1, 7, 500)));
    json_decref(ask(numbered(json_incref(ended), RUN_1, 9, 900)));
    expect_job(r.job, "succeeded", "done");
    json_decref(ask(numbered(NULL, RUN_1, 11, 800))); /* its clock was set back */
    /* sent before, come after: what it saw then does not make a device busy */
    json_decref(ask(numbered(json_incref(running), RUN_1, 8, 950)));
    assert_int_equal(haunted(), 0);
    json_decref(ask(numbered(json_incref(running), RUN_1, 12, 960)));
    assert_int_equal(haunted(), 1);
    json_decref(ask(numbered(NULL, RUN_1, 13, 970)));
    assert_int_equal(haunted(), 0);
    c->rebuild = 1; /* a turn that was rolled back: what was heard is still known */
    end_turn();
    json_decref(ask(numbered(json_incref(running), RUN_1, 12, 980)));
    assert_int_equal(haunted(), 0);
    json_decref(ask(numbered(json_incref(running), RUN_2, 1, 990))); /* the agent's next run */
    assert_int_equal(haunted(), 1);
}

static void a_wrong_run_is_no_sync(void **state)
{
    (void)state;
    json_decref(send_body(numbered(NULL, "7", 1, 1), 1, 0, 400));
    json_decref(send_body(numbered(NULL, RUN_1, -1, 1), 1, 0, 400));
    json_t *body = body_of("n1", NULL, json_object());
    json_decref(send_body(body, 1, 0, 400));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_command_is_not_run_twice_unasked),
        T(suspended_and_resumed),
        T(what_waits_is_suspended_at_once),
        T(what_has_not_begun_is_suspended_as_well),
        T(a_job_at_rest_can_be_suspended),
        T(a_cancel_overtakes_a_suspend),
        T(what_would_lose_its_work_is_not_suspended),
        T(it_waits_for_the_node_that_has_it),
        T(with_a_share_any_node_that_sees_it_will_do),
        T(a_share_that_is_lost_on_the_way_begins_nothing_anew),
        T(an_older_request_is_not_believed),
        T(a_wrong_run_is_no_sync),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
