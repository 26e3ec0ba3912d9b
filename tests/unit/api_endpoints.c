/* api_endpoints.c: each endpoint calls its verb with what the query said, and answers what the verb
 * said: status, headers, problems, warnings, tags. */
#include "tests/unit/api_harness.h"

static struct harness h;

static int setup(void **state)
{
    (void)state;
    harness_open(&h, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_close(&h);
    return 0;
}

static void each_calls_its_verb(void **state)
{
    (void)state;
    static const struct {
        const char *line, *verb, *id;
    } CASES[] = {
        {"GET /v1/jobs", "list", ""},
        {"GET /v1/jobs/", "list", ""},
        {"HEAD /v1/jobs", "list", ""},
        {"GET /v1/jobs/job_1", "show", "job_1"},
        {"GET /v1/jobs/job_1/", "show", "job_1"},
        {"GET /v1/%6aobs/job%5f1", "show", "job_1"},
        {"GET /v1/jobs/job%20one%C3%A9", "show", "job one\xc3\xa9"},
        {"GET /v1/jobs/job+one", "show", "job+one"},
        {"GET /v1/jobs/job_1/plan", "plan", "job_1"},
        {"GET /v1/jobs/job_1/attempts", "attempts", "job_1"},
        {"GET /v1/jobs/job_1/checkpoints", "checkpoints", "job_1"},
        {"GET /v1/jobs/job_1/events", "job_events", "job_1"},
        {"GET /v1/jobs/job_1/metrics", "job_metrics", "job_1"},
        {"GET /v1/jobs/job_1/logs", "log", "job_1"},
        {"GET /v1/jobs/job_1/artifacts", "artifacts", "job_1"},
        {"GET /v1/events", "events", ""},
        {"GET /v1/nodes", "nodes", ""},
        {"GET /v1/nodes/n1", "node", "n1"},
        {"GET /v1/version", "version", ""},
        {"GET /readyz", "ready", ""},
        {"GET /metrics", "metrics", ""},
        {"HEAD /metrics", "metrics", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        h.service.verb = "(none)";
        struct answer a = ask(&h, CASES[i].line, NULL, NULL);
        if (a.status != 200 || strcmp(h.service.verb, CASES[i].verb))
            fail_msg("%s: %d, verb %s", CASES[i].line, a.status, h.service.verb);
        assert_string_equal(h.service.id, CASES[i].id);
        answer_done(&a);
    }
    assert_int_equal(h.service.calls, ARRAY_LEN(CASES));
}

static void list_query(void **state)
{
    (void)state;
    expect(&h, "GET /v1/jobs", NULL, NULL, 200, NULL);
    assert_int_equal(h.service.limit, 100);
    assert_false(h.service.has_states || h.service.has_label || h.service.has_user ||
                 h.service.has_after);
    expect(&h,
           "GET /v1/jobs?state=pending,running&label=team%2Fa%3Dvision+1&user=%C3%A9va&limit=1000"
           "&after=c-9_.",
           NULL, NULL, 200, NULL);
    assert_string_equal(h.service.states, "pending,running");
    assert_string_equal(h.service.label, "team/a=vision 1");
    assert_string_equal(h.service.user, "\xc3\xa9va");
    assert_string_equal(h.service.after_text, "c-9_.");
    assert_int_equal(h.service.limit, 1000);
    expect(&h, "GET /v1/jobs?&&limit=1&", NULL, NULL, 200, NULL);
    assert_int_equal(h.service.limit, 1);
    expect(&h, "GET /v1/jobs?state=", NULL, NULL, 200, NULL);
    assert_true(h.service.has_states);
    assert_string_equal(h.service.states, "");
    expect(&h, "GET /v1/jobs?label=a=b=c", NULL, NULL, 200, NULL);
    assert_string_equal(h.service.label, "a=b=c");
}

static void numbers_in_queries(void **state)
{
    (void)state;
    expect(&h, "GET /v1/jobs/j/events?after=9223372036854775807&limit=7", NULL, NULL, 200, NULL);
    assert_int_equal(h.service.after, INT64_MAX);
    assert_int_equal(h.service.limit, 7);
    expect(&h, "GET /v1/jobs/j/metrics?max_points=100000&after_step=12&after_epoch=7", NULL, NULL,
           200, NULL);
    assert_int_equal(h.service.max_points, 100000);
    assert_int_equal(h.service.after_step, 12);
    assert_int_equal(h.service.after_epoch, 7);
    expect(&h, "GET /v1/jobs/j/metrics", NULL, NULL, 200, NULL);
    assert_int_equal(h.service.max_points, 0);
    static const char *const BAD[] = {
        "/v1/jobs?limit=0",
        "/v1/jobs?limit=1001",
        "/v1/jobs?limit=-1",
        "/v1/jobs?limit=",
        "/v1/jobs?limit",
        "/v1/jobs?limit=ten",
        "/v1/jobs?limit=1e2",
        "/v1/jobs?limit=0x10",
        "/v1/jobs?limit=+5",
        "/v1/jobs?limit=%2B5",
        "/v1/jobs?limit=%205",
        "/v1/jobs?limit=5%20",
        "/v1/jobs?limit=99999999999999999999",
        "/v1/events?after=-1",
        "/v1/events?after=9223372036854775808",
        "/v1/jobs/j/metrics?max_points=0",
        "/v1/jobs/j/metrics?max_points=100001",
        "/v1/jobs/j/metrics?after_epoch=-1",
        "/v1/jobs/j/logs?rank=-1",
        "/v1/jobs/j/logs?attempt=0",
        "/v1/jobs/j/logs?limit=1048577",
        "/v1/jobs/j/logs?tail=5&offset=5",
    };
    int calls = h.service.calls;
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        CLEANUP(mem_freep) char *line = mem_printf("GET %s", BAD[i]);
        expect(&h, line, NULL, NULL, 400, "invalid_parameter");
    }
    assert_int_equal(h.service.calls, calls);
}

static void switches(void **state)
{
    (void)state;
    expect(&h, "POST /v1/jobs?dry_run=1", JSON_HEADER, "{}", 201, NULL);
    assert_int_equal(h.service.dry_run, 1);
    expect(&h, "POST /v1/jobs?dry_run=false&strict=true", JSON_HEADER, "{}", 201, NULL);
    assert_int_equal(h.service.dry_run, 0);
    assert_int_equal(h.service.strict, 1);
    expect(&h, "POST /v1/jobs?dry_run=yes", JSON_HEADER, "{}", 400, "invalid_parameter");
    expect(&h, "POST /v1/jobs?dry_run", JSON_HEADER, "{}", 400, "invalid_parameter");
}

static void unknown_parameters_are_named(void **state)
{
    (void)state;
    struct answer a = ask(&h, "GET /v1/jobs?limit=5&colour=red", NULL, NULL);
    assert_int_equal(a.status, 400);
    assert_string_equal(code_of(&a), "unknown_parameter");
    assert_non_null(strstr(a.body, "colour"));
    assert_non_null(strstr(a.body, "state label user limit after"));
    answer_done(&a);
    expect(&h, "GET /healthz?x=1", NULL, NULL, 400, "unknown_parameter");
    expect(&h, "GET /v1/jobs?limit=5&limit=6", NULL, NULL, 400, "invalid_parameter");
    expect(&h, "GET /v1/jobs?a&b&c&d&e&f&g&h&i&j&k&l&m&n&o&p&q", NULL, NULL, 400,
           "invalid_parameter");
}

static void wrong_paths_and_methods(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int status;
        const char *allow;
    } CASES[] = {
        {"GET /v1", 404, NULL},
        {"GET /v1/", 404, NULL},
        {"GET /v1/jobz", 404, NULL},
        {"GET /v1/jobs/a/b", 404, NULL},
        {"GET /v1/jobs/a/plan/c", 404, NULL},
        {"GET /v1/jobs//plan", 404, NULL},
        {"GET //v1/jobs", 404, NULL},
        {"GET /V1/jobs", 404, NULL},
        {"GET /a/b/c/d/e/f/g/h/i/j", 404, NULL},
        {"POST /nothing", 404, NULL},
        {"DELETE /v1/jobs", 405, "POST, GET, HEAD"},
        {"PUT /v1/jobs/a", 405, "GET, HEAD"},
        {"OPTIONS /v1/jobs/a/cancel", 405, "POST"},
        {"GET /v1/jobs/a/cancel", 405, "POST"},
        {"HEAD /v1/agent/sync", 405, "POST"},
        {"POST /healthz", 405, "GET, HEAD"},
        {"POST /", 405, "GET, HEAD"},
        {"get /healthz", 405, "GET, HEAD"},
        {"TRACE /healthz", 405, "GET, HEAD"},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct answer a = ask(&h, CASES[i].line, NULL, NULL);
        const char *allow = header_of(&a, "Allow");
        if (a.status != CASES[i].status || (allow && !CASES[i].allow) ||
            (CASES[i].allow && (!allow || strcmp(allow, CASES[i].allow))))
            fail_msg("%s: %d, Allow: %s", CASES[i].line, a.status, allow ? allow : "(none)");
        answer_done(&a);
    }
    assert_int_equal(h.service.calls, 0);
}

static void problems_are_problems(void **state)
{
    (void)state;
    h.service.fail_status = 422;
    struct answer a = ask(&h, "POST /v1/jobs", JSON_HEADER, "{}");
    assert_int_equal(a.status, 422);
    assert_string_equal(header_of(&a, "Content-Type"), "application/problem+json");
    assert_string_equal(json_string_value(json_object_get(a.json, "type")), "about:blank");
    assert_string_equal(code_of(&a), "scripted");
    assert_int_equal(json_integer_value(json_object_get(a.json, "status")), 422);
    assert_true(strlen(json_string_value(json_object_get(a.json, "title"))) > 5);
    assert_string_equal(json_string_value(json_object_get(a.json, "request_id")),
                        header_of(&a, "X-Request-Id"));
    const json_t *fault = json_array_get(json_object_get(a.json, "errors"), 0);
    assert_string_equal(json_string_value(json_object_get(fault, "pointer")), "/fit/batch_size");
    assert_string_equal(json_string_value(json_object_get(fault, "hint")), "Use 1 or more.");
    answer_done(&a);

    h.service.fail_status = 429;
    expect(&h, "POST /v1/jobs", JSON_HEADER, "{}", 429, "scripted");
    h.service.fail_status = 200; /* a verb that fails without a status of failure is our bug */
    expect(&h, "GET /v1/version", NULL, NULL, 500, "internal");
}

static void request_ids_differ(void **state)
{
    (void)state;
    struct answer a = ask(&h, "GET /healthz", NULL, NULL);
    struct answer b = ask(&h, "GET /healthz", NULL, NULL);
    CLEANUP(mem_freep) char *first = mem_strdup(header_of(&a, "X-Request-Id"));
    assert_memory_equal(first, "req_", 4);
    assert_string_not_equal(first, header_of(&b, "X-Request-Id"));
    answer_done(&a);
    answer_done(&b);
}

static void warnings_reach_the_body(void **state)
{
    (void)state;
    h.service.warn = 1;
    struct answer a = ask(&h, "POST /v1/jobs", JSON_HEADER, "{}");
    const json_t *w = json_array_get(json_object_get(a.json, "warnings"), 0);
    assert_string_equal(json_string_value(json_object_get(w, "pointer")), "/colour");
    answer_done(&a);
}

static void tags(void **state)
{
    (void)state;
    static const struct {
        const char *etag, *header;
        int status;
    } CASES[] = {
        {"\"7\"", "", 200},
        {"7", "", 200},
        {"\"7\"", "If-None-Match: \"7\"\r\n", 304},
        {"7", "If-None-Match: \"7\"\r\n", 304},
        {"7", "If-None-Match: W/\"7\"\r\n", 304},
        {"7", "If-None-Match: \"6\", \"7\"\r\n", 304},
        {"7", "If-None-Match: *\r\n", 304},
        {"7", "If-None-Match: \"6\"\r\n", 200},
        {"7", "If-None-Match: \"77\"\r\n", 200},
        {"7", "If-None-Match: ,, ,\r\n", 200},
        {"7", "If-None-Match:\r\n", 200},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        h.service.etag = CASES[i].etag;
        struct answer a = ask(&h, "GET /v1/jobs/j", CASES[i].header, NULL);
        if (a.status != CASES[i].status)
            fail_msg("%s: %d", CASES[i].header, a.status);
        assert_string_equal(header_of(&a, "ETag"), "\"7\"");
        assert_int_equal(a.body_len == 0, a.status == 304);
        answer_done(&a);
    }
    h.service.etag = NULL;
    struct answer a = ask(&h, "GET /v1/jobs/j", "If-None-Match: *\r\n", NULL);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Cache-Control"), "no-store");
    answer_done(&a);
}

static void head_is_get_without_body(void **state)
{
    (void)state;
    struct answer get = ask(&h, "GET /v1/jobs/j", NULL, NULL);
    struct answer head = ask(&h, "HEAD /v1/jobs/j", NULL, NULL);
    assert_int_equal(head.status, 200);
    assert_int_equal(head.body_len, 0);
    CLEANUP(mem_freep) char *length = mem_strdup(header_of(&get, "Content-Length"));
    assert_string_equal(header_of(&head, "Content-Length"), length);
    answer_done(&get);
    answer_done(&head);
}

static void cancel_takes_nothing_or_an_empty_object(void **state)
{
    (void)state;
    expect(&h, "POST /v1/jobs/j/cancel", NULL, NULL, 200, NULL);
    expect(&h, "POST /v1/jobs/j/cancel", NULL, "", 200, NULL);
    expect(&h, "POST /v1/jobs/j/cancel", JSON_HEADER, "", 200, NULL);
    expect(&h, "POST /v1/jobs/j/cancel", JSON_HEADER, "{}", 200, NULL);
    expect(&h, "POST /v1/jobs/j/cancel", JSON_HEADER, "{\"reason\":1}", 400, "unexpected_body");
    expect(&h, "POST /v1/jobs/j/cancel", JSON_HEADER, "[]", 400, "unexpected_body");
    expect(&h, "POST /v1/jobs/j/cancel", JSON_HEADER, "{", 400, "invalid_json");
    expect(&h, "POST /v1/jobs/j/cancel", NULL, "{}", 415, NULL);
    expect(&h, "POST /v1/jobs/j/cancel", "Content-Type: text/plain\r\n", "", 415, NULL);
}

static void what_is_wanted_of_a_job(void **state)
{
    (void)state;
    static const struct {
        const char *line, *body, *verb;
    } CASES[] = {
        {"POST /v1/jobs/j/suspend", NULL, "suspend"},
        {"POST /v1/jobs/j/suspend", "{}", "suspend"},
        {"POST /v1/jobs/j/resume", NULL, "resume"},
        {"POST /v1/jobs/j/resume", "{}", "resume"},
        {"POST /v1/jobs/j/retry", NULL, "retry"},
        {"POST /v1/jobs/j/retry", "{}", "retry"},
        {"POST /v1/jobs/j/retry", "{\"from\":\"checkpoint\"}", "retry"},
        {"POST /v1/jobs/j/retry", "{\"from\":\"scratch\"}", "retry_scratch"},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        h.service.verb = "(none)";
        expect(&h, CASES[i].line, CASES[i].body ? JSON_HEADER : NULL, CASES[i].body, 200, NULL);
        assert_string_equal(h.service.verb, CASES[i].verb);
        assert_string_equal(h.service.id, "j");
    }
    static const char *const WRONG[] = {"[]", "{\"from\":1}", "{\"from\":\"step 5\"}",
                                        "{\"step\":1}", "{\"from\":\"scratch\",\"x\":1}"};
    for (size_t i = 0; i < ARRAY_LEN(WRONG); i++)
        expect(&h, "POST /v1/jobs/j/retry", JSON_HEADER, WRONG[i], 400, "unexpected_body");
    expect(&h, "POST /v1/jobs/j/retry", JSON_HEADER, "{", 400, "invalid_json");
    expect(&h, "POST /v1/jobs/j/suspend", JSON_HEADER, "{\"x\":1}", 400, "unexpected_body");
    expect(&h, "POST /v1/jobs/j/resume", JSON_HEADER, "{\"x\":1}", 400, "unexpected_body");
}

static void drains_are_decoded(void **state)
{
    (void)state;
    static const struct {
        const char *body, *reason, *uuid;
        int index;
    } CASES[] = {
        {NULL, "", NULL, -1},
        {"{}", "", NULL, -1},
        {"{\"reason\":\"rack 3\",\"by\":\"ann\"}", "rack 3", NULL, -1},
        {"{\"device\":0}", "", NULL, 0},
        {"{\"device\":\"GPU-1\"}", "", "GPU-1", -1},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct answer a =
            ask(&h, "POST /v1/nodes/n1/drain", CASES[i].body ? JSON_HEADER : NULL, CASES[i].body);
        json_auto_t *doc = json_loads(a.body, 0, NULL);
        assert_int_equal(a.status, 200);
        assert_string_equal(h.service.verb, "drain");
        assert_string_equal(json_string_value(json_object_get(doc, "reason")), CASES[i].reason);
        assert_int_equal(json_integer_value(json_object_get(doc, "index")), CASES[i].index);
        const char *uuid = json_string_value(json_object_get(doc, "uuid"));
        assert_true(CASES[i].uuid ? uuid && strcmp(uuid, CASES[i].uuid) == 0 : !uuid);
        answer_done(&a);
    }
    static const char *const WRONG[] = {
        "[]",
        "{\"device\":-1}",
        "{\"device\":1.5}",
        "{\"device\":\"\"}",
        "{\"reason\":1}",
        "{\"why\":\"x\"}",
        "{\"by\":\"0123456789012345678901234567890123456789012345678901234567891\"}"};
    for (size_t i = 0; i < ARRAY_LEN(WRONG); i++) {
        expect(&h, "POST /v1/nodes/n1/drain", JSON_HEADER, WRONG[i], 400, "unexpected_body");
        expect(&h, "POST /v1/nodes/n1/undrain", JSON_HEADER, WRONG[i], 400, "unexpected_body");
    }
    expect(&h, "POST /v1/nodes/n1/undrain", JSON_HEADER, "{", 400, "invalid_json");
    expect(&h, "POST /v1/nodes/n1/undrain", NULL, NULL, 200, NULL);
    assert_string_equal(h.service.verb, "undrain");
    assert_string_equal(h.service.id, "n1");
}

static void syncs_must_be_json(void **state)
{
    (void)state;
    static const char *const BAD[] = {
        "",
        "{",
        "[]",
        "null",
        "{\"a\":1,\"a\":2}",
        "{\"a\":\"\\u0000\"}",
        "{} {}",
        "\xff",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"};
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++)
        expect(&h, "POST /v1/agent/sync", JSON_HEADER, BAD[i], 400, "invalid_json");
    assert_int_equal(h.service.calls, 0);
    expect(&h, "POST /v1/agent/sync", JSON_HEADER, "{\"node\":\"n9\"}", 200, NULL);
    assert_string_equal(h.service.id, "n9");
}

static void agent_files(void **state)
{
    (void)state;
    static const char TYPE[] = "Content-Type: application/octet-stream\r\n";
    struct answer a = ask(&h,
                          "POST /v1/agent/files?node=n1&attempt=att_1&epoch=12&name=rank-0.log"
                          "&offset=100",
                          TYPE, "hello");
    assert_int_equal(a.status, 200);
    assert_int_equal(json_integer_value(json_object_get(a.json, "size")), 105);
    assert_string_equal(h.service.id, "n1");
    assert_string_equal(h.service.user, "att_1");
    assert_string_equal(h.service.name, "rank-0.log");
    assert_string_equal(h.service.text, "hello");
    assert_int_equal(h.service.epoch, 12);
    assert_int_equal(h.service.offset, 100);
    answer_done(&a);
    expect(&h, "POST /v1/agent/files?node=n&attempt=a&epoch=1&name=x&offset=0", TYPE, "", 200,
           NULL);
    assert_int_equal(h.service.body_len, 0);
    expect(&h, "POST /v1/agent/files?node=n&attempt=a&epoch=1&name=x", TYPE, "x", 400,
           "missing_parameter");
    expect(&h, "POST /v1/agent/files?node=&attempt=a&epoch=1&name=x&offset=0", TYPE, "x", 400,
           "missing_parameter");
    expect(&h, "POST /v1/agent/files?node=n&attempt=a&epoch=-1&name=x&offset=0", TYPE, "x", 400,
           "invalid_parameter");
    expect(&h, "POST /v1/agent/files?node=n&attempt=a&epoch=1&name=x&offset=0", JSON_HEADER, "{}",
           415, NULL);
    h.service.fail_status = 409; /* what else the verb says stands beside the problem */
    a = ask(&h, "POST /v1/agent/files?node=n&attempt=a&epoch=1&name=x&offset=0", TYPE, "x");
    assert_int_equal(a.status, 409);
    assert_int_equal(json_integer_value(json_object_get(a.json, "size")), 7);
    answer_done(&a);
}

static void prometheus_and_openapi(void **state)
{
    (void)state;
    struct answer a = ask(&h, "GET /metrics", NULL, NULL);
    assert_string_equal(header_of(&a, "Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
    assert_string_equal(a.body, "trainyard_jobs 1\n");
    answer_done(&a);
    a = ask(&h, "GET /openapi.json", NULL, NULL);
    assert_string_equal(json_string_value(json_object_get(a.json, "openapi")), "3.1.0");
    CLEANUP(mem_freep)
    char *again = mem_printf("If-None-Match: %s\r\n", header_of(&a, "ETag"));
    answer_done(&a);
    expect(&h, "GET /openapi.json", again, NULL, 304, NULL);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(each_calls_its_verb),          T(list_query),
        T(numbers_in_queries),           T(switches),
        T(unknown_parameters_are_named), T(wrong_paths_and_methods),
        T(problems_are_problems),        T(request_ids_differ),
        T(warnings_reach_the_body),      T(tags),
        T(what_is_wanted_of_a_job),      T(drains_are_decoded),
        T(head_is_get_without_body),     T(cancel_takes_nothing_or_an_empty_object),
        T(syncs_must_be_json),           T(agent_files),
        T(prometheus_and_openapi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
