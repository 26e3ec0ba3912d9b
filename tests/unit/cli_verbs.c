/* The verbs against a scripted server: exit statuses, what goes to stdout and stderr, what is
 * asked for. What a job left behind is in cli_outcome.c. */
#include "tests/unit/cli_server.h"

/* ---- usage ---- */

static void usage_errors(void **state)
{
    (void)state;
    static const char *const lines[] = {"",
                                        "frob",
                                        "submit",
                                        "submit a b",
                                        "show",
                                        "wait a b",
                                        "wait x --timeout 0",
                                        "wait x --timeout soon",
                                        "list x",
                                        "list --limit 0",
                                        "list --limit 1x",
                                        "logs x --rank -1",
                                        "nodes x y",
                                        "drain",
                                        "drain a b",
                                        "undrain a --reason x",
                                        "submit --key= x",
                                        "submit --key=a\xc3\xa4 x",
                                        "show a/b",
                                        "artifacts",
                                        "events",
                                        "artifacts x --force",
                                        "artifacts x -o y",
                                        "artifacts " JOB " a/b",
                                        "artifacts " JOB " ..",
                                        "artifacts " JOB " a b",
                                        "artifacts " JOB " a -o -",
                                        "show ../jobs",
                                        "show LAST",
                                        "submit /nonexistent/file",
                                        "list --bogus",
                                        "version x",
                                        "--server ftp://x list",
                                        "--retry nan list"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        CLEANUP(result_done) struct result r = RUN(lines[i]);
        if (r.status != EXIT_USAGE)
            fail_msg("\"trainyard %s\" ended with %d:\n%s", lines[i], r.status, r.err.data);
        assert_true(r.err.len > 0);
        assert_int_equal(r.out.len, 0);
    }
}

static void nobody_there(void **state)
{
    (void)state;
    static const char *const lines[] = {"list --retry 0",
                                        "nodes --retry 0",
                                        "--retry 0 show last",
                                        "wait " JOB " --retry 0",
                                        "cancel " JOB " --retry 0",
                                        "suspend " JOB " --retry 0",
                                        "resume " JOB " --retry 0",
                                        "retry " JOB " --retry 0",
                                        "checkpoints " JOB " --retry 0",
                                        "drain n1 --retry 0",
                                        "undrain n1 --retry 0",
                                        "logs " JOB " --retry 0",
                                        "metrics " JOB " --retry 0",
                                        "events " JOB " --retry 0",
                                        "artifacts " JOB " --retry 0",
                                        "version"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        CLEANUP(result_done) struct result r = RUN(lines[i]);
        assert_int_equal(r.status, EXIT_NO_SERVER);
        expect_in(&r.err, "Is the coordinator running?");
    }
}

static void somebody_else_there(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("list --retry 0", {"GET /v1/jobs", 200, "Content-Type: text/html\r\n", "<html>"});
    assert_int_equal(r.status, EXIT_NO_SERVER);
    expect_in(&r.err, "is no Trainyard coordinator");
}

/* ---- submit ---- */

static const char *key_of(const struct buf *asked, int n)
{
    static char keys[4][80];
    const char *p = asked->data;
    for (int i = 0; i <= n; i++) {
        p = strstr(p, "Idempotency-Key: ");
        assert_non_null(p);
        p += 17;
    }
    snprintf(keys[n], sizeof keys[0], "%.*s", (int)strcspn(p, "\r\n"), p);
    return keys[n];
}

static void submit_prints_the_id(void **state)
{
    (void)state;
    const char *path = document("{\"name\":\"x\"}");
    CLEANUP(result_done)
    struct result r =
        RUN(words("submit @", path),
            {"POST /v1/jobs HTTP", 201, JSON,
             "{\"id\":\"" JOB "\",\"name\":\"x\\u001b[0m\",\"state\":\"pending\","
             "\"strategy\":{\"name\":\"mirrored\",\"ranks\":2,\"why\":\"It fits.\"},"
             "\"warnings\":[{\"pointer\":\"/nane\",\"message\":\"unknown field\"}]}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, JOB "\n");
    expect_in(&r.err, "x\\e[0m: mirrored over 2 ranks: It fits.");
    expect_in(&r.err, "  /nane: unknown field");
    expect_in(&r.asked, "\r\n\r\n{\"name\":\"x\"}");
    expect_in(&r.asked, "Content-Type: application/json");
    assert_true(strlen(key_of(&r.asked, 0)) > 20);
}

static void submit_repeats_with_the_same_key(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r =
        RUN(words("submit @ --json", path), {"POST /v1/jobs", 0, NULL, NULL},
            {"POST /v1/jobs", 0, NULL, NULL},
            {"POST /v1/jobs", 200, JSON, "{\"id\":\"" JOB "\",\"state\":\"pending\"}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(key_of(&r.asked, 0), key_of(&r.asked, 1));
    assert_string_equal(key_of(&r.asked, 0), key_of(&r.asked, 2));
    expect_in(&r.err, "trying again");
    expect_in(&r.out, "\"id\": \"" JOB "\"");
}

static void submit_options(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r = RUN(words("submit @ --dry-run --strict --key mine", path),
                          {"POST /v1/jobs?dry_run=1&strict=1 HTTP", 200, JSON,
                           "{\"plan\":{\"name\":\"none\",\"ranks\":1,\"memory_bytes\":2048}}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(key_of(&r.asked, 0), "mine");
    assert_string_equal(r.out.data, "The document is valid. Plan: none over 1 rank\n"
                                    "Memory of the heaviest rank: 2.00 KiB\n");
}

static void submit_refused(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r =
        RUN(words("submit @", path),
            {"POST /v1/jobs", 422, PROBLEM,
             "{\"detail\":\"It cannot run.\",\"errors\":[{\"pointer\":\"/fit/batch_size\","
             "\"message\":\"is 0\",\"hint\":\"at least 1\"}]}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    assert_string_equal(r.err.data,
                        "trainyard: It cannot run.\n  /fit/batch_size: is 0 (at least 1)\n");
    assert_int_equal(r.out.len, 0);
}

static void submit_refused_with_warnings(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r =
        RUN(words("submit @", path),
            {"POST /v1/jobs", 422, PROBLEM,
             "{\"detail\":\"No.\",\"errors\":[{\"pointer\":\"/fit\",\"message\":\"is 0\"}],"
             "\"warnings\":[{\"pointer\":\"/fitt\",\"message\":\"is ignored\"}]}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    assert_string_equal(r.err.data,
                        "trainyard: No.\n  /fit: is 0\nwarnings:\n  /fitt: is ignored\n");
}

static void submit_and_wait(void **state)
{
    (void)state;
    const char *path = document("{}");
    CLEANUP(result_done)
    struct result r = RUN(words("submit @ --wait", path),
                          {"POST /v1/jobs", 201, JSON, "{\"id\":\"" JOB "\",\"name\":\"n\"}"},
                          {"GET /v1/jobs/" JOB " ", 200, JSON,
                           "{\"name\":\"n\",\"state\":\"failed\",\"reason\":\"Rank 1 died.\"}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    expect_in(&r.err, "n (" JOB ") failed: Rank 1 died.");
}

static void too_large_a_document(void **state)
{
    (void)state;
    char *big = mem_alloc(1024 * 1024 + 2);
    memset(big, ' ', 1024 * 1024 + 1);
    big[1024 * 1024 + 1] = '\0';
    CLEANUP(result_done) struct result r = RUN(words("submit @", document(big)));
    assert_int_equal(r.status, EXIT_USAGE);
    expect_in(&r.err, "larger than the limit");
    free(big);
}

/* ---- wait ---- */

static void wait_tells_by_status(void **state)
{
    (void)state;
    static const struct {
        const char *document;
        int status;
        const char *says;
    } ends[] = {
        {"{\"name\":\"n\",\"state\":\"succeeded\",\"started_at\":\"2026-01-01T00:00:00Z\","
         "\"finished_at\":\"2026-01-01T00:00:04.5Z\"}",
         EXIT_OK, "succeeded after 4.5 s"},
        {"{\"name\":\"n\",\"state\":\"failed\",\"reason\":\"Bad \\u001b[2J.\"}", EXIT_REFUSED,
         "failed: Bad \\e[2J."},
        {"{\"name\":\"n\",\"state\":\"cancelled\",\"reason\":\"By a request.\"}", EXIT_REFUSED,
         "was cancelled: By a request."},
    };
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        CLEANUP(result_done)
        struct result r = RUN("wait " JOB, {"GET /v1/jobs/" JOB " ", 200, JSON, ends[i].document});
        assert_int_equal(r.status, ends[i].status);
        expect_in(&r.err, ends[i].says);
        assert_int_equal(r.out.len, 0);
    }
}

static void wait_shows_changes(void **state)
{
    (void)state;
    const char *pending = "{\"name\":\"n\",\"state\":\"pending\",\"reason\":\"2 are busy.\","
                          "\"progress\":{\"step\":0,\"steps\":0}}";
    const char *running = "{\"name\":\"n\",\"state\":\"running\",\"spec\":{\"fit\":{\"epochs\":5}},"
                          "\"progress\":{\"step\":10,\"steps\":100}}";
    CLEANUP(result_done)
    struct result r =
        RUN("wait " JOB " --json", {"GET /v1/jobs/" JOB " ", 200, JSON, pending},
            {"GET /v1/jobs/" JOB " ", 200, JSON, pending},
            {"GET /v1/jobs/" JOB " ", 200, JSON, running},
            {"GET /v1/jobs/" JOB "/metrics?after_step=0&max_points=200 ", 200, JSON,
             "{\"steps\":[{\"step\":9,\"samples_per_second\":600},"
             "{\"step\":10,\"epoch\":1,\"loss\":0.5,\"samples_per_second\":1200}],"
             "\"epochs\":[{\"epoch\":1,\"loss\":0.75}]}"},
            {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"succeeded\",\"name\":\"n\"}"});
    assert_int_equal(r.status, EXIT_OK);
    expect_in(&r.err, "n  pending: 2 are busy.\nn  epoch 1/5  [");
    expect_in(&r.err, "10/100  loss 0.5000  800 samples/s\n");
    expect_in(&r.err, "succeeded, loss 0.5000 at the last step, 0.7500 over the last epoch\n");
    expect_in(&r.out, "\"state\": \"succeeded\"");
}

static void wait_survives_a_restart(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("wait " JOB, {"GET /v1/jobs/" JOB " ", 0, NULL, NULL},
                          {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"succeeded\"}"});
    assert_int_equal(r.status, EXIT_OK);
}

/* A coordinator that is ending or starting answers 503 for a moment: nothing was done, so that is
 * no refusal. */
static void submit_and_wait_outlast_a_503(void **state)
{
    (void)state;
    const char *path = document("{}");
    static const char busy[] = "{\"detail\":\"The server is shutting down.\",\"status\":503}";
    CLEANUP(result_done)
    struct result s =
        RUN(words("submit @", path), {"POST /v1/jobs", 503, PROBLEM "Retry-After: 1\r\n", busy},
            {"POST /v1/jobs", 201, JSON, "{\"id\":\"" JOB "\",\"state\":\"pending\"}"});
    assert_int_equal(s.status, EXIT_OK);
    assert_string_equal(key_of(&s.asked, 0), key_of(&s.asked, 1));
    assert_string_equal(s.out.data, JOB "\n");
    CLEANUP(result_done)
    struct result w = RUN("wait " JOB, {"GET /v1/jobs/" JOB " ", 503, PROBLEM, busy},
                          {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"succeeded\"}"});
    assert_int_equal(w.status, EXIT_OK);
    CLEANUP(result_done)
    struct result refused =
        RUN("wait " JOB " --retry 0", {"GET /v1/jobs/" JOB " ", 503, PROBLEM, busy});
    assert_int_equal(refused.status, EXIT_NO_SERVER);
    expect_in(&refused.err, "shutting down");
}

static void wait_gives_up(void **state)
{
    (void)state;
    const char *running = "{\"name\":\"n\",\"state\":\"starting\"}";
    CLEANUP(result_done)
    struct result r =
        RUN("wait " JOB " --timeout 1", {"GET /v1/jobs/", 200, JSON, running},
            {"GET /v1/jobs/", 200, JSON, running}, {"GET /v1/jobs/", 200, JSON, running});
    assert_int_equal(r.status, EXIT_NO_SERVER);
    expect_in(&r.err, "has not ended within 1 s");
}

static void wait_for_an_unknown_job(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("wait " JOB, {"GET /v1/jobs/" JOB " ", 404, PROBLEM,
                                        "{\"detail\":\"There is no job " JOB ".\"}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    expect_in(&r.err, "There is no job");
}

/* ---- ids ---- */

static const char three[] = "{\"jobs\":[{\"id\":\"" JOB3 "\",\"name\":\"c\"},{\"id\":\"" JOB2
                            "\",\"name\":\"b\"},{\"id\":\"" JOB "\",\"name\":\"a\"},"
                            "{\"id\":\"job_../../x\"}]}";

static void ids_by_prefix(void **state)
{
    (void)state;
    static const char *const unique[] = {"job_01k9", "01k9", "job_01k900"};
    static const char *const ambiguous[] = {"01k8", "j", "job_", "job_01k8z4q9tw3v7m2c5xd8hbn",
                                            "0"};
    for (size_t i = 0; i < ARRAY_LEN(unique); i++) {
        CLEANUP(mem_freep) char *line = mem_printf("show %s --json", unique[i]);
        CLEANUP(result_done)
        struct result r = RUN(line, {"GET /v1/jobs?limit=", 200, JSON, three},
                              {"GET /v1/jobs/" JOB3 " ", 200, JSON, "{\"id\":\"" JOB3 "\"}"});
        assert_int_equal(r.status, EXIT_OK);
    }
    for (size_t i = 0; i < ARRAY_LEN(ambiguous); i++) {
        CLEANUP(mem_freep) char *line = mem_printf("cancel %s", ambiguous[i]);
        CLEANUP(result_done) struct result r = RUN(line, {"GET /v1/jobs?limit=", 200, JSON, three});
        assert_int_equal(r.status, EXIT_USAGE);
        expect_in(&r.err, JOB2);
    }
    CLEANUP(result_done)
    struct result r = RUN("show job_..", {"GET /v1/jobs?limit=", 200, JSON, three});
    assert_int_equal(r.status, EXIT_USAGE);
}

static void ids_over_pages(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN(
        "show 01k8",
        {"GET /v1/jobs?limit=1000 ", 200, JSON,
         "{\"jobs\":[{\"id\":\"" JOB3 "\"}],\"next\":\"a&b\"}"},
        {"GET /v1/jobs?limit=1000&after=a%26b ", 200, JSON, "{\"jobs\":[{\"id\":\"" JOB "\"}]}"},
        {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"id\":\"" JOB "\"}"});
    assert_int_equal(r.status, EXIT_OK);
    CLEANUP(result_done)
    struct result none = RUN("show last", {"GET /v1/jobs?limit=1 ", 200, JSON, "{\"jobs\":[]}"});
    assert_int_equal(none.status, EXIT_USAGE);
    expect_in(&none.err, "there is no job yet");
    CLEANUP(result_done)
    struct result missing = RUN("show 01kz", {"GET /v1/jobs?limit=", 200, JSON, three});
    assert_int_equal(missing.status, EXIT_USAGE);
    expect_in(&missing.err, "no job has an id that begins with");
}

static void last_is_the_newest(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN(
        "cancel last",
        {"GET /v1/jobs?limit=1 ", 200, JSON, "{\"jobs\":[{\"id\":\"" JOB "\"}],\"next\":\"1\"}"},
        {"POST /v1/jobs/" JOB "/cancel ", 200, JSON, "{\"state\":\"stopping\"}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, JOB " stopping\n");
}

static void a_cancel_believes_no_stranger(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("cancel " JOB, {"POST /v1/jobs/" JOB "/cancel ", 200, JSON, "null"});
    assert_int_equal(r.status, EXIT_NO_SERVER);
    expect_in(&r.err, "is no Trainyard coordinator");
    CLEANUP(result_done)
    struct result evil = RUN(
        "cancel " JOB, {"POST /v1/jobs/" JOB "/cancel ", 200, JSON, "{\"state\":\"\\u001b[31m\"}"});
    assert_int_equal(evil.status, EXIT_OK);
    assert_string_equal(evil.out.data, JOB " \\e[31m\n");
}

static void suspend_resume_retry(void **state)
{
    (void)state;
    static const char *const verbs[] = {"suspend", "resume", "retry"};
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        CLEANUP(mem_freep) char *line = mem_printf("%s " JOB, verbs[i]);
        CLEANUP(mem_freep) char *call = mem_printf("POST /v1/jobs/" JOB "/%s ", verbs[i]);
        CLEANUP(result_done)
        struct result r = RUN(line, {call, 200, JSON, "{\"state\":\"pending\"}"});
        assert_int_equal(r.status, EXIT_OK);
        assert_string_equal(r.out.data, JOB " pending\n");
        CLEANUP(result_done)
        struct result no =
            RUN(line, {call, 409, PROBLEM, "{\"title\":\"Conflict\",\"detail\":\"It runs.\"}"});
        assert_int_equal(no.status, EXIT_REFUSED);
        expect_in(&no.err, "It runs.");
    }
    CLEANUP(result_done)
    struct result r = RUN("retry --from-scratch " JOB,
                          {"POST /v1/jobs/" JOB "/retry ", 200, JSON, "{\"state\":\"pending\"}"});
    assert_int_equal(r.status, EXIT_OK);
    CLEANUP(result_done) struct result two = RUN("retry " JOB " " JOB2);
    assert_int_equal(two.status, EXIT_USAGE);
}

static void checkpoints_are_a_table(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("checkpoints " JOB,
            {"GET /v1/jobs/" JOB "/checkpoints ", 200, JSON,
             "{\"checkpoints\":[{\"name\":\"step-0000000400\",\"step\":400,\"epoch\":2,"
             "\"attempt\":2,\"bytes\":2048,\"sum\":\"x\",\"node\":\"n1\",\"share\":null,"
             "\"at\":\"2026-01-02T03:04:05.678Z\"},{\"name\":\"step-0000000200\",\"step\":200,"
             "\"attempt\":1,\"bytes\":2048,\"node\":\"n1\",\"share\":\"nfs\"}],\"keep\":2,"
             "\"kept_until\":\"2026-01-09T03:04:05.678Z\"}"});
    assert_int_equal(r.status, EXIT_OK);
    expect_in(&r.out, "STEP");
    expect_in(&r.out, "step-0000000400");
    expect_in(&r.out, "nfs");
    expect_in(&r.err, "kept until 2026-01-09");
    CLEANUP(result_done)
    struct result none =
        RUN("checkpoints " JOB, {"GET /v1/jobs/" JOB "/checkpoints ", 200, JSON,
                                 "{\"checkpoints\":[],\"keep\":0,\"kept_until\":null}"});
    assert_int_equal(none.status, EXIT_OK);
    expect_in(&none.err, "has no checkpoint, and takes none");
}

/* ---- nodes and their devices ---- */

static void nodes_say_what_is_wrong(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN(
        "nodes",
        {"GET /v1/nodes?limit=1000 ", 200, JSON,
         "{\"nodes\":[{\"name\":\"n1\",\"state\":\"ready\",\"version\":\"1\",\"devices_free\":0,"
         "\"trouble\":\"It is drained by ann: rack 3.\",\"drain\":{\"reason\":\"rack 3\",\"by\":"
         "\"ann\"},\"devices\":[{\"index\":0,\"kind\":\"gpu\",\"why_not\":null,\"idle_s\":1500},"
         "{\"index\":2,\"kind\":\"gpu\",\"why_not\":\"GPU 2 is dirty: process 4711\\u0007\"}]},"
         "{\"name\":\"n2\",\"state\":\"ready\",\"devices\":[],\"drain\":null}]}"});
    assert_int_equal(r.status, EXIT_OK);
    expect_in(&r.out, "n1    ready, drained  2 gpu");
    expect_in(&r.out, "n1: It is drained by ann: rack 3.\n");
    expect_in(&r.out, "n1: device 0 has been leased and idle for 25");
    expect_in(&r.out, "n1: GPU 2 is dirty: process 4711\\x07\n");
    assert_null(strstr(r.out.data, "n2:"));
}

static void a_node_shows_its_devices(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("nodes n1",
            {"GET /v1/nodes/n1 ", 200, JSON,
             "{\"name\":\"n1\",\"state\":\"ready\",\"devices\":[{\"index\":0,\"kind\":\"gpu\","
             "\"state\":"
             "\"busy\",\"name\":\"NVIDIA H200\",\"uuid\":\"GPU-1\",\"memory_bytes\":150754820096,"
             "\"attempt\":\"att_1\",\"telemetry\":{\"utilization\":97,\"temperature_c\":64}},"
             "{\"index\":1,\"kind\":\"gpu\",\"state\":\"dirty\",\"name\":\"NVIDIA H200\",\"uuid\":"
             "\"GPU-2\",\"memory_bytes\":150754820096,\"telemetry\":null,\"why_not\":\"GPU 1 is "
             "dirty.\"}]}"});
    assert_int_equal(r.status, EXIT_OK);
    expect_in(&r.out, "DEVICE  KIND  STATE");
    expect_in(&r.out, "NVIDIA H200  GPU-1  att_1");
    expect_in(&r.out, "97 %");
    expect_in(&r.out, "64 C");
    expect_in(&r.out, "n1: GPU 1 is dirty.\n");
    CLEANUP(result_done)
    struct result none = RUN(
        "nodes n9", {"GET /v1/nodes/n9 ", 404, PROBLEM, "{\"detail\":\"There is no node n9.\"}"});
    assert_int_equal(none.status, EXIT_REFUSED);
    expect_in(&none.err, "There is no node n9.");
}

static void drain_says_whom_and_why(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("drain n1 --device 3 --reason fan", {"POST /v1/nodes/n1/drain ", 200, JSON, "{}"});
    assert_int_equal(r.status, EXIT_OK);
    expect_in(&r.out, "n1 3 drained\n");
    expect_in(&r.asked, "\"device\":3");
    expect_in(&r.asked, "\"reason\":\"fan\"");
    CLEANUP(result_done)
    struct result back =
        RUN("undrain n1 --device GPU-1", {"POST /v1/nodes/n1/undrain ", 200, JSON, "{}"});
    assert_int_equal(back.status, EXIT_OK);
    expect_in(&back.out, "n1 GPU-1 undrained\n");
    expect_in(&back.asked, "\"device\":\"GPU-1\"");
    CLEANUP(result_done)
    struct result none = RUN("drain n9", {"POST /v1/nodes/n9/drain ", 404, PROBLEM,
                                          "{\"detail\":\"There is no node \\\"n9\\\".\"}"});
    assert_int_equal(none.status, EXIT_REFUSED);
    expect_in(&none.err, "There is no node");
}

/* ---- the rest ---- */

static void list_follows_the_cursor(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("list --all --json --state pending,running --label a=b&c",
            {"GET /v1/jobs?limit=1000&state=pending%2Crunning&label=a%3Db%26c ", 200, JSON,
             "{\"jobs\":[{\"id\":\"a\"}],\"next\":\"7\"}"},
            {"GET /v1/jobs?limit=1000&state=pending%2Crunning&label=a%3Db%26c&after=7 ", 200, JSON,
             "{\"jobs\":[{\"id\":\"b\"}]}"});
    assert_int_equal(r.status, EXIT_OK);
    json_auto_t *doc = json_loads(r.out.data, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(doc, "jobs")), 2);
    assert_null(json_object_get(doc, "next"));
}

static void list_limit(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("list --limit 1", {"GET /v1/jobs?limit=1 ", 200, JSON,
                                             "{\"jobs\":[{\"id\":\"" JOB "\",\"state\":\"running\","
                                             "\"name\":\"n\\u0007\",\"strategy\":\"mirrored\","
                                             "\"progress\":{\"step\":3,\"steps\":9},"
                                             "\"devices\":[{},{}]}],\"next\":\"7\"}"});
    assert_int_equal(r.status, EXIT_OK);
    expect_in(&r.out, JOB "  running  n\\x07  mirrored      2   3/9\n");
    expect_in(&r.err, "There are more");
}

static void the_token_comes_from_a_file(void **state)
{
    (void)state;
    const char *path = document("s3cret\n");
    CLEANUP(result_done)
    struct result r = RUN(words("nodes --token-file @", path),
                          {"GET /v1/nodes", 401, PROBLEM, "{\"detail\":\"No.\"}"});
    assert_int_equal(r.status, EXIT_REFUSED);
    expect_in(&r.asked, "Authorization: Bearer s3cret\r\n");
    assert_null(strstr(r.err.data, "s3cret"));
    CLEANUP(result_done)
    struct result bad = RUN(words("nodes --token-file @", document("a b\r\nX: y")));
    assert_int_equal(bad.status, EXIT_USAGE);
    CLEANUP(result_done) struct result empty = RUN(words("nodes --token-file @", document("\n")));
    assert_int_equal(empty.status, EXIT_USAGE);
}

/* Documents of the right form and nonsense values never crash a verb. */
static const char odd_job[] =
    "{\"id\":7,\"state\":\"\",\"name\":null,\"strategy\":[],\"progress\":7,\"devices\":{},"
    "\"spec\":\"x\",\"submitted_at\":\"yesterday\",\"warnings\":{\"a\":1}}";

/* Some terminals take U+009B for ESC [, and JSON lets it stand. */
static void json_is_safe_on_a_terminal(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result s = RUN("show " JOB " --json", {"GET /v1/jobs/" JOB " ", 200, JSON,
                                                  "{\"reason\":\"\xc2\x9b"
                                                  "31m\"}"});
    assert_int_equal(s.status, EXIT_OK);
    assert_string_equal(s.out.data, "{\n  \"reason\": \"\\u009B31m\"\n}\n");
    CLEANUP(result_done)
    struct result l =
        RUN("logs " JOB " --json", {"GET /v1/jobs/" JOB "/logs", 200,
                                    "Content-Type: text/plain\r\nX-Log-Size: 2\r\n", "\xc2\x9b"});
    assert_int_equal(l.status, EXIT_OK);
    expect_in(&l.out, "\"text\":\"\\u009B\"");
}

static void odd_documents(void **state)
{
    (void)state;
    static const char *const odd[] = {
        "{}", "{\"jobs\":7,\"nodes\":7,\"steps\":7,\"epochs\":7,\"plan\":7}",
        "{\"jobs\":[7,null,{}],\"nodes\":[7,{}],\"steps\":[7],\"epochs\":[null,{\"epoch\":[]}]}",
        odd_job};
    static const char *const lines[] = {"list",           "show " JOB,       "nodes",
                                        "metrics " JOB,   "metrics -s " JOB, "version",
                                        "artifacts " JOB, "events " JOB};
    for (size_t i = 0; i < ARRAY_LEN(odd) * ARRAY_LEN(lines); i++) {
        CLEANUP(result_done)
        struct result r =
            RUN(lines[i % ARRAY_LEN(lines)], {"GET /v1/", 200, JSON, odd[i / ARRAY_LEN(lines)]});
        if (r.status != EXIT_OK)
            fail_msg("%s of %s: %d\n%s", lines[i % ARRAY_LEN(lines)], odd[i / ARRAY_LEN(lines)],
                     r.status, r.err.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_errors),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(somebody_else_there),
        cmocka_unit_test(submit_prints_the_id),
        cmocka_unit_test(submit_repeats_with_the_same_key),
        cmocka_unit_test(submit_options),
        cmocka_unit_test(submit_refused),
        cmocka_unit_test(submit_refused_with_warnings),
        cmocka_unit_test(submit_and_wait),
        cmocka_unit_test(too_large_a_document),
        cmocka_unit_test(wait_tells_by_status),
        cmocka_unit_test(wait_shows_changes),
        cmocka_unit_test(wait_survives_a_restart),
        cmocka_unit_test(submit_and_wait_outlast_a_503),
        cmocka_unit_test(wait_gives_up),
        cmocka_unit_test(wait_for_an_unknown_job),
        cmocka_unit_test(ids_by_prefix),
        cmocka_unit_test(ids_over_pages),
        cmocka_unit_test(last_is_the_newest),
        cmocka_unit_test(a_cancel_believes_no_stranger),
        cmocka_unit_test(suspend_resume_retry),
        cmocka_unit_test(checkpoints_are_a_table),
        cmocka_unit_test(nodes_say_what_is_wrong),
        cmocka_unit_test(a_node_shows_its_devices),
        cmocka_unit_test(drain_says_whom_and_why),
        cmocka_unit_test(list_follows_the_cursor),
        cmocka_unit_test(list_limit),
        cmocka_unit_test(the_token_comes_from_a_file),
        cmocka_unit_test(odd_documents),
        cmocka_unit_test(json_is_safe_on_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
