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
        [JOB_STOPPING] = "p...ufcU",  [JOB_SUCCEEDED] = "........", [JOB_FAILED] = "p.......",
        [JOB_CANCELLED] = "p.......", [JOB_SUSPENDED] = "p.....c."};
    for (int from = 0; from < JOB_STATE__MAX; from++)
        for (int to = 0; to < JOB_STATE__MAX; to++)
            assert_int_equal(job_may_move((enum job_state)from, (enum job_state)to),
                             table[from][to] != '.');
    assert_int_equal(job_may_move(JOB_STATE__MAX, JOB_PENDING), 0);
    for (int s = 0; s < JOB_STATE__MAX; s++)
        assert_int_equal(job_is_final((enum job_state)s), s >= JOB_SUCCEEDED && s <= JOB_CANCELLED);
}

static struct verdict judge(const char *record, int64_t number, const char *stop, int ran)
{
    json_auto_t *doc = json_loads(record, 0, NULL);
    struct ending x;
    struct verdict v;
    struct err e = {0};
    struct attempt_row a = {.node = (char *)"n1",
                            .number = number,
                            .stop_code = (char *)stop,
                            .stop_reason = (char *)"Cancelled by a request."};
    assert_non_null(doc);
    if (ending_parse(doc, &x, &e) != 0)
        fail_msg("%s", e.text);
    ending_judge(&x, &a, ran, &v);
    return v;
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

static void an_end_that_was_no_fault_says_so(void **state)
{
    (void)state;
    struct verdict c = judge(RECORD("failed", "shim_terminated", "x", ""), 1, "cancelled", 1);
    assert_int_equal(c.to, JOB_CANCELLED);
    struct verdict v =
        judge(RECORD("failed", "shim_terminated", "The machine goes down.", ",\"retryable\":true"),
              1, NULL, 1);
    assert_int_equal(v.to, JOB_FAILED);
    assert_non_null(strstr(v.reason, "submit it again"));
    v = judge(RECORD("failed", "rank_failed", "", ",\"exit_code\":7,\"retryable\":false"), 1, NULL,
              1);
    assert_null(strstr(v.reason, "submit it again"));
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
        cmocka_unit_test(the_largest_record_there_can_be_is_taken),
        cmocka_unit_test(hostile_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
