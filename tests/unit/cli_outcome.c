/* What a job wrote, figures and files and what happened to it, as the verbs logs, metrics, show,
 * artifacts and events give it: against a scripted server. */
#include "tests/unit/cli_server.h"

#include <sys/stat.h>

static void logs_by_chunk(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("logs " JOB " --rank 1 --attempt 2",
                          {"GET /v1/jobs/" JOB "/logs?rank=1&offset=0&limit=262144&attempt=2 ", 200,
                           "X-Log-Offset: 0\r\nX-Log-Size: 9\r\n", "one\n\033["},
                          {"GET /v1/jobs/" JOB "/logs?rank=1&offset=6&limit=262144&attempt=2 ", 200,
                           "X-Log-Offset: 6\r\nX-Log-Size: 9\r\n", "x\n!"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "one\n\033[x\n!"); /* no terminal: as it is */
}

static void logs_tail(void **state)
{
    (void)state;
    static const struct {
        const char *words, *want;
    } rows[] = {{"logs " JOB " --tail 2", "b\nc\n"},
                {"logs " JOB " --tail 0", ""},
                {"logs " JOB " --tail 9", "a\nb\nc\n"}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CLEANUP(result_done)
        struct result r = RUN(rows[i].words, {"GET /v1/jobs/" JOB "/logs?rank=0&tail=65536 ", 200,
                                              "X-Log-Offset: 0\r\nX-Log-Size: 6\r\n", "a\nb\nc\n"});
        assert_int_equal(r.status, EXIT_OK);
        assert_string_equal(r.out.data, rows[i].want);
    }
    CLEANUP(result_done)
    struct result r = RUN("logs " JOB " --tail 1",
                          {"GET /v1/jobs/" JOB "/logs?rank=0&tail=65536 ", 200,
                           "X-Log-Offset: 10\r\nX-Log-Size: 12\r\n", "xx"},
                          {"GET /v1/jobs/" JOB "/logs?rank=0&tail=262144 ", 200,
                           "X-Log-Offset: 6\r\nX-Log-Size: 12\r\n", "\nlast\n"});
    assert_string_equal(r.out.data, "last\n");
}

static void logs_follow_to_the_end(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("logs -f " JOB,
            {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"running\",\"attempt\":1}"},
            {"GET /v1/jobs/" JOB "/logs?rank=0&offset=0&", 200, "X-Log-Size: 2\r\n", "a\n"},
            {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"running\",\"attempt\":2}"},
            {"GET /v1/jobs/" JOB "/logs?rank=0&offset=0&", 200, "X-Log-Size: 2\r\n", "b\n"},
            {"GET /v1/jobs/" JOB " ", 200, JSON, "{\"state\":\"failed\",\"attempt\":2}"},
            {"GET /v1/jobs/" JOB "/logs?rank=0&offset=2&", 200, "X-Log-Size: 4\r\n", "c\n"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "a\nb\nc\n");
}

static void metrics_table(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("metrics " JOB,
                          {"GET /v1/jobs/" JOB "/metrics?max_points=1 ", 200, JSON,
                           "{\"steps\":[],\"epochs\":[{\"epoch\":1,\"loss\":0.25,\"val_loss\":0.5},"
                           "{\"epoch\":2,\"loss\":\"nan\"}]}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "epoch  loss  val_loss\n"
                                    "    1  0.25       0.5\n"
                                    "    2   nan\n");
    CLEANUP(result_done)
    struct result none =
        RUN("metrics " JOB " --steps", {"GET /v1/jobs/" JOB "/metrics ", 200, JSON, "{}"});
    assert_int_equal(none.status, EXIT_OK);
    expect_in(&none.err, "No figures yet.");
}

/* ---- what a job left behind, and what happened to it ---- */

static const char files[] =
    "{\"artifacts\":[{\"name\":\"model.safetensors\",\"bytes\":2048}],\"left_out\":["
    "{\"name\":\"a\\u001bb\",\"why\":\"Its name.\"}],\"left_out_count\":3}";

static void show_tells_figures_and_files(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("show " JOB,
            {"GET /v1/jobs/" JOB " ", 200, JSON,
             "{\"name\":\"n\",\"state\":\"succeeded\",\"attempt\":1,"
             "\"progress\":{\"step\":9,\"steps\":9}}"},
            {"GET /v1/jobs/" JOB "/metrics?max_points=1 ", 200, JSON,
             "{\"steps\":[{\"step\":9,\"loss\":0.5}],\"epochs\":[{\"epoch\":1,\"loss\":9},"
             "{\"epoch\":2,\"loss\":0.75,\"seconds\":3,\"val_accuracy\":0.25}]}"},
            {"GET /v1/jobs/" JOB "/artifacts ", 200, JSON, files});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(strstr(r.out.data, "loss  "), "loss       0.5 at step 9\n"
                                                      "epoch 2    loss 0.75, val_accuracy 0.25\n"
                                                      "artifacts  model.safetensors, 2.00 KiB\n"
                                                      "left out   a\\eb: Its name.\n"
                                                      "left out   2 more\n");
}

static void artifacts_are_listed(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r = RUN("artifacts " JOB, {"GET /v1/jobs/" JOB "/artifacts ", 200, JSON, files});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "NAME                   SIZE\n"
                                    "model.safetensors  2.00 KiB\n");
    assert_string_equal(r.err.data, "left out   a\\eb: Its name.\nleft out   2 more\n");
}

/* The file's content, "" where there is none. */
static const char *content(const char *path)
{
    static char text[64];
    FILE *f = fopen(path, "r");
    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = '\0';
    if (f)
        fclose(f);
    return text;
}

static void an_artifact_is_whole_or_not_there(void **state)
{
    (void)state;
    static const char plain[] = "Content-Type: application/octet-stream\r\n";
    char dir[] = "/tmp/cli_verbs.XXXXXX";
    assert_non_null(mkdtemp(dir));
    CLEANUP(mem_freep) char *path = mem_printf("%s/m", dir);
    CLEANUP(mem_freep) char *line = mem_printf("artifacts " JOB " m+x -o %s", path);
    CLEANUP(mem_freep) char *force = mem_printf("%s --force --json", line);
    CLEANUP(result_done)
    struct result none = RUN(line, {"GET /v1/jobs/" JOB "/artifacts/m%2Bx ", 404, PROBLEM,
                                    "{\"detail\":\"There is none.\"}"});
    assert_int_equal(none.status, EXIT_REFUSED);
    expect_in(&none.err, "There is none.");
    assert_int_equal(rmdir(dir), 0); /* nothing is left of it */
    assert_int_equal(mkdir(dir, 0700), 0);
    CLEANUP(result_done)
    struct result broken = RUN(line,
                               {"GET /v1/jobs/" JOB "/artifacts/m%2Bx ", 200,
                                "Transfer-Encoding: chunked\r\n", "6\r\nlonger\r\n6\r\nlo"},
                               {"GET /v1/jobs/" JOB "/artifacts/m%2Bx ", 200, plain, "first"});
    assert_int_equal(broken.status, EXIT_OK); /* and of the first try no byte */
    expect_in(&broken.err, "m: 5 B\n");
    assert_string_equal(content(path), "first");
    CLEANUP(result_done) struct result again = RUN(line);
    assert_int_equal(again.status, EXIT_USAGE);
    expect_in(&again.err, "is there already; --force replaces it");
    assert_string_equal(content(path), "first");
    CLEANUP(result_done)
    struct result forced = RUN(force, {"GET /v1/jobs/" JOB "/artifacts/", 200, plain, ""});
    assert_int_equal(forced.status, EXIT_OK);
    expect_in(&forced.out, "\"bytes\": 0");
    assert_string_equal(content(path), "");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void a_folder_that_is_not_there(void **state)
{
    (void)state;
    CLEANUP(result_done) struct result r = RUN("artifacts " JOB " m -o /nonexistent/m");
    assert_int_equal(r.status, EXIT_REFUSED);
    expect_in(&r.err, "cannot write /nonexistent/m: No such file");
}

static void events_table(void **state)
{
    (void)state;
    CLEANUP(result_done)
    struct result r =
        RUN("events " JOB,
            {"GET /v1/jobs/" JOB "/events?after=0&limit=1000 ", 200, JSON,
             "{\"events\":[{\"seq\":4,\"time\":\"T1\",\"type\":\"job_state\",\"data\":{\"from\":"
             "\"pending\",\"to\":\"starting\",\"reason\":\"On n1.\"}},"
             "{\"seq\":5,\"time\":\"T2\",\"type\":\"ready\",\"node\":\"n1\",\"data\":{\"type\":"
             "\"ready\",\"rank\":1,\"seconds\":0.5,\"x\":[],\"note\":\"\"}},"
             "{\"seq\":6,\"time\":\"T3\",\"type\":\"verdict\",\"node\":\"n1\",\"data\":{\"rank\":0,"
             "\"reason\":\"Done \\u001b.\"}},7]}"});
    assert_int_equal(r.status, EXIT_OK);
    assert_string_equal(r.out.data, "TIME  EVENT      NODE  WHAT\n"
                                    "T1    job_state        pending > starting: On n1.\n"
                                    "T2    ready      n1    rank 1, seconds 0.5\n"
                                    "T3    verdict    n1    rank 0: Done \\e.\n"
                                    "\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logs_by_chunk),
        cmocka_unit_test(logs_tail),
        cmocka_unit_test(logs_follow_to_the_end),
        cmocka_unit_test(metrics_table),
        cmocka_unit_test(show_tells_figures_and_files),
        cmocka_unit_test(artifacts_are_listed),
        cmocka_unit_test(an_artifact_is_whole_or_not_there),
        cmocka_unit_test(a_folder_that_is_not_there),
        cmocka_unit_test(events_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
