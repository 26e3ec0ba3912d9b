/* The table of moves, and what an exit record means for the job. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/coordinator/ending.h"
#include "daemon/coordinator/job.h"
#include "spec/plan.h"

static void moves(void **state)
{
    (void)state;
    /* rows: from; columns: to, in the order of enum job_state */
    static const char *const table[JOB_STATE__MAX] = {
        [JOB_PENDING] = ".s....cU",   [JOB_STARTING] = "p.rSufc.",  [JOB_RUNNING] = "p..Sufc.",
        [JOB_STOPPING] = "p..SufcU",  [JOB_SUCCEEDED] = "........", [JOB_FAILED] = "p.......",
        [JOB_CANCELLED] = "p.......", [JOB_SUSPENDED] = "p.....c."};
    for (int from = 0; from < JOB_STATE__MAX; from++)
        for (int to = 0; to < JOB_STATE__MAX; to++)
            assert_int_equal(job_may_move((enum job_state)from, (enum job_state)to),
                             table[from][to] != '.');
    assert_int_equal(job_may_move(JOB_STATE__MAX, JOB_PENDING), 0);
    for (int s = 0; s < JOB_STATE__MAX; s++)
        assert_int_equal(job_is_final((enum job_state)s), s >= JOB_SUCCEEDED && s <= JOB_CANCELLED);
}

/* What is judged: a training job with three restarts that has had no attempt before. */
static struct job_row job_now(void)
{
    return (struct job_row){
        .spec = (char *)"{\"model\":{}}", .keep = 2, .max_restarts = 3, .checkpoint_step = -1};
}

static struct verdict judge_job(const char *record, const struct job_row *job, int64_t number,
                                const char *stop, int ran)
{
    json_auto_t *doc = json_loads(record, 0, NULL);
    struct ending x;
    struct verdict v;
    struct err e = {0};
    struct attempt_row a = {.node = (char *)"n1",
                            .number = number,
                            .stop_code = (char *)stop,
                            .stop_reason = (char *)(stop && strcmp(stop, "suspended") == 0
                                                        ? "Suspended by a request."
                                                        : "Cancelled by a request.")};
    assert_non_null(doc);
    if (ending_parse(doc, &x, &e) != 0)
        fail_msg("%s", e.text);
    ending_judge(&x, &a, job, ran, &v);
    return v;
}

/* The same of a job without restarts. */
static struct verdict judge(const char *record, int64_t starts, const char *stop, int ran)
{
    struct job_row job = job_now();
    job.max_restarts = 0;
    job.failed_starts = starts - 1;
    return judge_job(record, &job, starts, stop, ran);
}

static void expect_in(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" lacks \"%s\"", text, part);
}

#define RECORD(outcome, code, reason, rest)                                                        \
    "{\"outcome\":\"" outcome "\",\"code\":\"" code "\",\"reason\":\"" reason "\"" rest "}"

static void good_ends(void **state)
{
    (void)state;
    struct verdict v = judge(RECORD("done", "done", "", ""), 1, NULL, 1);
    assert_int_equal(v.to, JOB_SUCCEEDED);
    v = judge(RECORD("done", "done", "", ""), 1, "cancelled", 1); /* the end won the race */
    assert_int_equal(v.to, JOB_SUCCEEDED);
    v = judge(RECORD("stopped", "cancelled", "x", ""), 1, "cancelled", 1);
    assert_int_equal(v.to, JOB_CANCELLED);
    assert_string_equal(v.reason, "Cancelled by a request.");
}

static void bad_ends_name_rank_node_and_signal(void **state)
{
    (void)state;
    struct verdict v = judge(RECORD("failed", "rank_killed", "Killed.",
                                    ",\"rank\":3,\"signal\":\"SIGKILL\",\"exit_code\":null"),
                             1, NULL, 1);
    assert_int_equal(v.to, JOB_FAILED);
    assert_string_equal(v.code, "rank_killed");
    assert_string_equal(v.reason, "Killed. (rank 3 on node n1, SIGKILL)");
    v = judge(RECORD("failed", "rank_failed", "", ",\"rank\":0,\"exit_code\":7"), 1, NULL, 1);
    assert_string_equal(v.reason,
                        "The attempt ended without a reason. (rank 0 on node n1, exit status 7)");
    v = judge(RECORD("failed", "rank_killed", "Rank 1 on node n1 was killed by SIGKILL.",
                     ",\"rank\":1,\"signal\":\"SIGKILL\""),
              1, NULL, 1);
    assert_string_equal(v.reason, "Rank 1 on node n1 was killed by SIGKILL.");
    v = judge(RECORD("time_limit", "time_limit", "The time limit of 5 s was reached.", ""), 1, NULL,
              1);
    assert_int_equal(v.to, JOB_FAILED);
    assert_string_equal(v.code, "time_limit");
    v = judge(RECORD("failed", "rank_failed", "", ",\"rank\":0,\"exit_code\":7"), 1, "cancelled",
              1);
    assert_int_equal(v.to, JOB_FAILED);
    v = judge(RECORD("stopped", "drained", "x", ""), 1, NULL, 1); /* nobody here asked for it */
    assert_int_equal(v.to, JOB_FAILED);
}

static void starts_that_failed_are_tried_again(void **state)
{
    (void)state;
    const char *record =
        RECORD("spawn_failed", "spawn_failed", "No memory.", ",\"rank\":0,\"retryable\":true");
    for (int64_t number = 1; number < ENDING_MAX_STARTS; number++) {
        struct verdict v = judge(record, number, NULL, 0);
        assert_int_equal(v.to, JOB_PENDING);
        assert_int_equal(v.rest_us, 1000000LL << (number - 1));
        assert_non_null(strstr(v.reason, "No memory. (rank 0 on node n1)"));
    }
    struct verdict v = judge(record, ENDING_MAX_STARTS, NULL, 0);
    assert_int_equal(v.to, JOB_FAILED);
    assert_string_equal(v.code, "spawn_failed");
    v = judge(record, 1, "cancelled", 0);
    assert_int_equal(v.to, JOB_CANCELLED);
    const char *own = RECORD("spawn_failed", "spawn_failed", "No such program on node n1.",
                             ",\"rank\":0,\"retryable\":false");
    v = judge(own, 1, NULL, 0); /* the job's own fault: once is enough */
    assert_int_equal(v.to, JOB_FAILED);
    assert_string_equal(v.code, "spawn_failed");
    assert_string_equal(v.reason, "No such program on node n1.");
    v = judge(own, 1, "cancelled", 0);
    assert_int_equal(v.to, JOB_CANCELLED);
    v = judge(RECORD("shim_lost", "shim_lost", "Gone.", ""), 1, NULL, 1); /* it had run */
    assert_int_equal(v.to, JOB_FAILED);
    v = judge(RECORD("prepare_failed", "data_invalid", "Row 5.", ""), 1, NULL, 0);
    assert_int_equal(v.to, JOB_FAILED);
    assert_string_equal(v.reason, "Row 5. (node n1)");
}

#define LOST RECORD("shim_lost", "node_rebooted", "Node n1 was rebooted.", ",\"retryable\":true")
#define AGAIN                                                                                      \
    RECORD("failed", "rank_failed", "Status 111 of rank 1 on node n1.", ",\"retryable\":true")

static void an_end_that_was_no_fault_says_so(void **state)
{
    (void)state;
    struct verdict v = judge(LOST, 1, "cancelled", 1);
    assert_int_equal(v.to, JOB_CANCELLED);
    v = judge(LOST, 1, NULL, 1);
    assert_int_equal(v.to, JOB_FAILED);
    assert_string_equal(v.code, "node_rebooted");
    expect_in(v.reason, "Another attempt may succeed: a retry starts one.");
    v = judge(RECORD("failed", "rank_failed", "", ",\"exit_code\":7,\"retryable\":false"), 1, NULL,
              1);
    assert_null(strstr(v.reason, "retry"));
}

static void what_may_succeed_is_tried_again(void **state)
{
    (void)state;
    static const int64_t rests[] = {1, 2, 4, 8, 16, 32, 64, 64, 64};
    static const char *const records[] = {
        LOST, AGAIN, RECORD("prepare_failed", "rank_killed", "Killed.", ",\"retryable\":true"),
        RECORD("failed", "shim_terminated", "The machine goes down.", ",\"retryable\":true")};
    struct job_row job = job_now();
    for (size_t i = 0; i < ARRAY_LEN(records); i++) {
        struct verdict v = judge_job(records[i], &job, 1, NULL, i != 2);
        assert_int_equal(v.to, JOB_PENDING);
        assert_string_equal(v.code, "restarting");
        assert_int_equal(v.restarts, 1);
        assert_int_equal(v.rest_us, 1000000);
        expect_in(v.reason, "Attempt 2 of at most 4 comes after 1 s; it starts at step 0, since no "
                            "checkpoint was taken.");
    }
    job.max_restarts = (int64_t)ARRAY_LEN(rests);
    for (size_t i = 0; i < ARRAY_LEN(rests); i++, job.restarts++)
        assert_int_equal(judge_job(LOST, &job, 1, NULL, 1).rest_us, rests[i] * 1000000);
    struct verdict v = judge_job(LOST, &job, 10, NULL, 1);
    assert_int_equal(v.to, JOB_FAILED);
    assert_int_equal(v.restarts, 9);
    expect_in(v.reason, "It was started again 9 times (\"max_restarts\")");
    /* what is the job's own fault is not */
    job = job_now();
    v = judge_job(RECORD("failed", "loss_not_finite", "Layer 2.", ",\"retryable\":false"), &job, 1,
                  NULL, 1);
    assert_int_equal(v.to, JOB_FAILED);
    v = judge_job(RECORD("time_limit", "time_limit", "5 s.", ""), &job, 1, NULL, 1);
    assert_int_equal(v.to, JOB_FAILED);
}

static void what_comes_next_is_said(void **state)
{
    (void)state;
    struct job_row job = job_now();
    char next[ENDING_NEXT_SIZE];
    assert_string_equal(ending_next(&job, next), "starts at step 0, since no checkpoint was taken");
    job.checkpoint_step = 400;
    assert_string_equal(ending_next(&job, next), "resumes at step 400");
    job.restarts = 1; /* of three, in the attempts 1 to 6, of which users started some */
    struct verdict v = judge_job(LOST, &job, 6, NULL, 1);
    expect_in(v.reason, "Attempt 7 of at most 8 comes after 2 s; it resumes at step 400.");
    job.keep = 0;
    job.checkpoint_step = -1;
    expect_in(ending_next(&job, next), "since it takes no checkpoints (\"checkpoint\": false)");
    job.spec = (char *)"{\"command\":[\"true\"]}";
    assert_string_equal(ending_next(&job, next), "runs its command from the beginning");
}

static void suspends(void **state)
{
    (void)state;
    struct job_row job = job_now();
    const char *stopped = RECORD("stopped", "suspended", "x", "");
    struct verdict v = judge_job(stopped, &job, 1, "suspended", 1);
    assert_int_equal(v.to, JOB_SUSPENDED);
    assert_string_equal(v.code, "suspended");
    assert_string_equal(v.reason, "Suspended by a request. The next attempt starts at step 0, "
                                  "since no checkpoint was taken.");
    job.checkpoint_step = 137;
    v = judge_job(stopped, &job, 1, "suspended", 1);
    assert_string_equal(v.reason, "Suspended by a request. The next attempt resumes at step 137.");
    assert_int_equal(judge_job(LOST, &job, 1, "suspended", 1).to, JOB_SUSPENDED);
    assert_int_equal(judge_job(AGAIN, &job, 1, "suspended", 1).to, JOB_SUSPENDED);
    v = judge_job(RECORD("spawn_failed", "spawn_failed", "No memory.", ",\"retryable\":true"), &job,
                  1, "suspended", 0);
    assert_int_equal(v.to, JOB_SUSPENDED);
    v = judge_job(RECORD("done", "done", "", ""), &job, 1, "suspended", 1); /* the end won */
    assert_int_equal(v.to, JOB_SUCCEEDED);
    v = judge_job(RECORD("failed", "loss_not_finite", "Layer 2.", ""), &job, 1, "suspended", 1);
    assert_int_equal(v.to, JOB_FAILED);
}

static void the_largest_record_there_can_be_is_taken(void **state)
{
    (void)state;
    struct ending x;
    struct err e = {0};
    json_auto_t *doc = json_loads(RECORD("done", "done", "", ""), 0, NULL);
    json_t *ranks = json_array();
    for (int i = 0; i < PLAN_MAX_RANKS; i++)
        json_array_append_new(ranks, json_pack("{s:i, s:I, s:n, s:s}", "rank", i, "ended_us",
                                               (json_int_t)1790000000000000, "exit_code", "signal",
                                               "SIGKILL"));
    json_object_set_new(doc, "ranks", ranks);
    if (ending_parse(doc, &x, &e) != 0)
        fail_msg("%s", e.text);
}

static void hostile_records(void **state)
{
    (void)state;
    static const char *const wrong[] = {"{}",
                                        "[]",
                                        "{\"outcome\":\"done\"}",
                                        RECORD("won", "done", "", ""),
                                        RECORD("done", "", "", ""),
                                        RECORD("done", "a/b", "", ""),
                                        RECORD("done", "done", "", ",\"rank\":-1"),
                                        RECORD("done", "done", "", ",\"rank\":\"0\""),
                                        RECORD("done", "done", "", ",\"exit_code\":256"),
                                        RECORD("done", "done", "", ",\"signal\":9"),
                                        RECORD("done", "done", "", ",\"signal\":\"<script>\""),
                                        RECORD("done", "done", "", ",\"started_us\":\"x\""),
                                        RECORD("done", "done", "", ",\"retryable\":1")};
    struct ending x;
    struct err e = {0};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        json_auto_t *doc = json_loads(wrong[i], 0, NULL);
        assert_non_null(doc);
        if (ending_parse(doc, &x, &e) != ERR_INVALID)
            fail_msg("taken: %s", wrong[i]);
    }
    assert_int_equal(ending_parse(NULL, &x, &e), ERR_INVALID);
    char reason[1100];
    memset(reason, 'x', sizeof(reason) - 1);
    reason[sizeof(reason) - 1] = '\0';
    json_auto_t *doc =
        json_pack("{s:s,s:s,s:s}", "outcome", "failed", "code", "c", "reason", reason);
    assert_int_equal(ending_parse(doc, &x, &e), ERR_INVALID);
    json_object_set_new(doc, "reason", json_string("fine"));
    json_t *ranks = json_array();
    for (int i = 0; i < 60000; i++)
        json_array_append_new(ranks, json_integer(i));
    json_object_set_new(doc, "ranks", ranks);
    assert_int_equal(ending_parse(doc, &x, &e), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves),
        cmocka_unit_test(good_ends),
        cmocka_unit_test(bad_ends_name_rank_node_and_signal),
        cmocka_unit_test(starts_that_failed_are_tried_again),
        cmocka_unit_test(an_end_that_was_no_fault_says_so),
        cmocka_unit_test(what_may_succeed_is_tried_again),
        cmocka_unit_test(what_comes_next_is_said),
        cmocka_unit_test(suspends),
        cmocka_unit_test(the_largest_record_there_can_be_is_taken),
        cmocka_unit_test(hostile_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
