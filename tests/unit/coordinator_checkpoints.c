/* Checkpoints from report to removal, and what restarts make of them. */
#include "tests/unit/coordinator_runs.h"

/* ---- the record ---- */
static void the_newest_are_kept(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    expect_resume(&r, "");
    report(&r, "[" START("") "," C100 "," C200 "]");
    expect_record(r.job, "200 100 ");
    report(&r, "[" C300 "]");
    expect_record(r.job, "300 200 ");
    assert_int_equal(count_events(r.job, "checkpoint"), 3);
    json_auto_t *doc = checkpoints_of(r.job);
    const json_t *k = json_array_get(json_object_get(doc, "checkpoints"), 0);
    assert_string_equal(json_string_value(json_object_get(k, "name")), "step-0000000300");
    assert_string_equal(json_string_value(json_object_get(k, "node")), "n1");
    assert_string_equal(json_string_value(json_object_get(k, "sum")), SUM);
    assert_true(json_is_null(json_object_get(k, "share")));
    assert_int_equal(json_integer_value(json_object_get(k, "attempt")), 1);
    assert_int_equal(json_integer_value(json_object_get(k, "bytes")), 2048);
    assert_int_equal(json_integer_value(json_object_get(doc, "keep")), 2);
    assert_true(json_is_null(json_object_get(doc, "kept_until")));
    json_auto_t *job = show(r.job);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(job, "checkpoint"), "step")), 300);
    restart(); /* and the record is what is told, whatever happened in between */
    expect_record(r.job, "300 200 ");
    expect_removal("n1", r.job, "[\"step-0000000100\",\"step-0000000200\"]", "step-0000000100 ");
}

static void the_document_says_how_many(void **state)
{
    (void)state;
    CLEANUP(run_done)
    struct run r =
        new_run(TRAINING(",\"max_restarts\":0,\"checkpoint\":{\"every\":\"10m\",\"keep\":1}"));
    report(&r, "[" C100 "," C200 "," C300 "]");
    expect_record(r.job, "300 ");
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "failed", "shim_lost");
    expect_reason(r.job, "Another attempt may succeed: a retry starts one.");
}

static void hostile_checkpoints_are_dropped(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" C200 "," CHECKPOINT(100, "step-0000000100") "," /* behind */
           CHECKPOINT(300, "step-0000000301") "," CHECKPOINT(300, "../../etc") "," CHECKPOINT(
               -1, "step-0000000300") ","
                                      "{\"type\":\"checkpoint\"},{\"type\":\"checkpoint\",\"step\":"
                                      "300,\"bytes\":1,"
                                      "\"name\":\"step-0000000300\",\"sum\":\"99AA\"},{\"type\":"
                                      "\"checkpoint\",\"step\":300,"
                                      "\"bytes\":-1,\"name\":\"step-0000000300\",\"sum\":\"" SUM
                                      "\"}]");
    assert_int_equal(c->dropped_lines, 7);
    expect_record(r.job, "200 ");
}

static void names(void **state)
{
    (void)state;
    int64_t step = -1;
    assert_int_equal(kept_name_step("step-0000000100", &step), 1);
    assert_int_equal(step, 100);
    assert_int_equal(kept_name_step("step-123456789012", &step), 1);
    assert_int_equal(step, 123456789012);
    assert_int_equal(kept_name_step(".step-0000000007.tmp", &step), 1);
    assert_int_equal(step, 7);
    assert_int_equal(kept_name_step("step-0000000007.partial-1", &step), 1);
    static const char *const none[] = {"",
                                       ".",
                                       "..",
                                       "step-",
                                       "step-100",
                                       "step-0000000100x",
                                       "step-0000000100/x",
                                       "step-0000000100./../x",
                                       "STEP-0000000100",
                                       "manifest.json",
                                       "step-99999999999999999999",
                                       "x-step-0000000100"};
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        if (kept_name_step(none[i], &step))
            fail_msg("taken: %s", none[i]);
}

/* ---- what is removed ---- */
static void what_a_running_job_may_write_is_left_alone(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    const char *all = "[\"step-0000000100\",\"step-0000000200\",\"step-0000000300\",\"other\","
                      "\".step-0000000150.tmp\",\".step-0000000400.tmp\",7]";
    expect_removal("n1", r.job, all, ""); /* nothing is on the record: all may be just written */
    report(&r, "[" C100 "," C200 "]");
    expect_removal("n1", r.job, all, ".step-0000000150.tmp ");
    report(&r, "[" C300 "]");
    expect_removal("n1", r.job, all, "step-0000000100 .step-0000000150.tmp ");
    expect_removal("n1", "job_01k8z4q9tw3v7m2c5xd8hbn6", all, ""); /* a job that we do not know */
    expect_removal("n1", "../..", all, "");
    report_end(&r, "failed", "loss_not_finite"); /* what is not on the record goes now */
    expect_removal("n1", r.job, all, "step-0000000100 .step-0000000150.tmp .step-0000000400.tmp ");
}

static void success_needs_no_checkpoints(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" C100 "," C200 "]");
    report_end(&r, "done", "done");
    expect_job(r.job, "succeeded", "done");
    expect_record(r.job, "");
    assert_int_equal(count_events(r.job, "checkpoints_dropped"), 1);
    expect_removal("n1", r.job, "[\"step-0000000100\",\"step-0000000200\"]",
                   "step-0000000100 step-0000000200 all");
    expect_refused(service_job_suspend, r.job, "job_finished");
    expect_refused(service_job_resume, r.job, "job_finished");
    assert_int_equal(retry_as(r.job, 0, NULL), 409);
    assert_int_equal(retry_as(r.job, 1, NULL), 409);
}

static void removals_do_not_keep_an_agent_from_waiting(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" C100 "," C200 "," C300 "]");
    int answered = 0;
    for (int i = 0; i < 6; i++) { /* an agent that cannot remove it, and says so again and again */
        json_t *held = json_pack("[{s:s, s:[s]}]", "job", r.job, "names", "step-0000000100");
        json_t *body = body_of("n1", status(r.wish, "running", NULL), i % 2 ? NULL : held);
        if (i % 2)
            json_decref(held);
        json_object_set_new(body, "wait_ms", json_integer(10000));
        json_object_set_new(body, "seen", json_integer(last_seen));
        json_auto_t *wanted = send_body(body, 5, 0, 200);
        answered += wanted != NULL;
        end_turn();
    }
    assert_in_range(answered, 1, 2);
}

static void they_expire(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    c->retention_us = 3600 * 1000000LL;
    report(&r, "[" START("") "," C100 "]");
    report_end(&r, "failed", "loss_not_finite");
    json_auto_t *doc = checkpoints_of(r.job);
    assert_true(json_is_string(json_object_get(doc, "kept_until")));
    advance(3500);
    expect_record(r.job, "100 ");
    advance(200);
    expect_record(r.job, "");
    assert_int_equal(count_events(r.job, "checkpoints_dropped"), 1);
    expect_removal("n1", r.job, "[\"step-0000000100\"]", "step-0000000100 all");
    char code[48]; /* never silently at step 0 */
    assert_int_equal(retry_as(r.job, 0, code), 409);
    assert_string_equal(code, "no_checkpoints");
    assert_int_equal(retry_as(r.job, 1, NULL), 200);
    runs_on(&r, "n1");
    expect_resume(&r, "");
}

/* ---- restarts ---- */
static void a_lost_attempt_goes_on_from_the_newest(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," STEP(1) "," C100 "," STEP(150) "," C200 "," STEP(250) "]");
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "pending", "restarting");
    expect_reason(r.job, "Attempt 2 of at most 4 comes after 1 s; it resumes at step 200.");
    advance(2);
    expect_job(r.job, "starting", "starting");
    expect_reason(r.job, "attempt 2; it resumes at step 200");
    runs_on(&r, "n1");
    expect_resume(&r, "200 100 ");
    report(&r, "[" START(",\"from_step\":200,\"from_epoch\":3") "]");
    json_auto_t *job = show(r.job);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(job, "progress"), "epoch")),
                     3);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(job, "progress"), "step")),
                     200);
    assert_int_equal(json_integer_value(json_object_get(job, "restarts")), 1);
    struct service_reply reply;
    service_reply_init(&reply);
    assert_int_equal(service_job_metrics(c, r.job, 0, 0, 0, &reply), 0);
    json_auto_t *metrics = json_loads(reply.text, 0, NULL);
    service_reply_done(&reply);
    const json_t *steps = json_object_get(metrics, "steps");
    assert_int_equal(json_array_size(steps), 2); /* step 250 is of a course that is given up */
    assert_int_equal(
        json_integer_value(json_object_get(json_array_get(steps, 1), "comm_exposed_us")), 7);
    for (int64_t rest = 2; rest <= 4; rest *= 2) {
        report_end(&r, "shim_lost", "node_rebooted");
        advance(rest - 1);
        expect_job(r.job, "pending", "restarting");
        advance(2);
        runs_on(&r, "n1");
    }
    report_end(&r, "shim_lost", "node_rebooted");
    expect_job(r.job, "failed", "node_rebooted");
    expect_reason(r.job, "It was started again 3 times (\"max_restarts\")");
    expect_record(r.job, "200 100 ");
    assert_int_equal(retry_as(r.job, 0, NULL), 200); /* and has all its restarts again */
    runs_on(&r, "n1");
    expect_resume(&r, "200 100 ");
    report_end(&r, "shim_lost", "shim_lost");
    expect_job(r.job, "pending", "restarting");
    expect_reason(r.job, "Attempt 6 of at most 8");
}

static void a_bad_checkpoint_is_given_up(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," C100 "," C200 "]");
    report_end(&r, "shim_lost", "shim_lost");
    advance(2);
    runs_on(&r, "n1");
    report(&r, "[" START(",\"from_step\":100") "]"); /* the newest could not be loaded */
    expect_record(r.job, "100 ");
    assert_int_equal(count_events(r.job, "checkpoints_dropped"), 1);
    expect_removal("n1", r.job, "[\"step-0000000200\"]", ""); /* it may be written again */
    report(&r, "[" C200 "," C300 "]");
    expect_record(r.job, "300 200 ");
}

static void without_a_checkpoint_it_says_step_0(void **state)
{
    (void)state;
    CLEANUP(run_done) struct run r = new_run(TRAINING(""));
    report(&r, "[" START("") "," STEP(1) "," STEP(2) "]");
    report_end(&r, "shim_lost", "shim_lost");
    expect_reason(r.job, "it starts at step 0, since no checkpoint was taken.");
    advance(2);
    runs_on(&r, "n1");
    expect_resume(&r, "");
    report(&r, "[" START("") "," STEP(1) "]");
    struct service_reply reply;
    service_reply_init(&reply);
    service_job_metrics(c, r.job, 0, 0, 0, &reply);
    json_auto_t *metrics = json_loads(reply.text, 0, NULL);
    service_reply_done(&reply);
    assert_int_equal(json_array_size(json_object_get(metrics, "steps")), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(the_newest_are_kept),
        T(the_document_says_how_many),
        T(hostile_checkpoints_are_dropped),
        cmocka_unit_test(names),
        T(what_a_running_job_may_write_is_left_alone),
        T(success_needs_no_checkpoints),
        T(removals_do_not_keep_an_agent_from_waiting),
        T(they_expire),
        T(a_lost_attempt_goes_on_from_the_newest),
        T(a_bad_checkpoint_is_given_up),
        T(without_a_checkpoint_it_says_step_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
