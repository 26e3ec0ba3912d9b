/* api_files.c: answers that are files: logs with their offsets, artifacts with ranges, the page. */
#include "tests/unit/api_harness.h"

#include <fcntl.h>
#include <sys/stat.h>

static struct harness h;
static char dir[] = "/tmp/api_files.XXXXXX";
static char big[200000];

static int setup(void **state)
{
    (void)state;
    struct api_options o = {.web_dir = dir};
    harness_open(&h, &o);
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)('a' + i % 23);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_close(&h);
    return 0;
}

static void put(const char *name, const char *text)
{
    CLEANUP(mem_freep) char *path = mem_printf("%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_dir(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    put("index.html", "<!doctype html><title>t</title>");
    put("app.js", "1");
    put("style.css", "");
    put(".secret", "x");
    put("noext", "x");
    CLEANUP(mem_freep) char *sub = mem_printf("%s/sub", dir);
    CLEANUP(mem_freep) char *out = mem_printf("%s/out", dir);
    CLEANUP(mem_freep) char *in = mem_printf("%s/in.html", dir);
    CLEANUP(mem_freep) char *fifo = mem_printf("%s/fifo", dir);
    if (mkdir(sub, 0755) || symlink("/etc/passwd", out) || symlink("index.html", in) ||
        mkfifo(fifo, 0644))
        return -1;
    put("sub/a.svg", "<svg/>");
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"index.html", "app.js",  "style.css", ".secret",
                                        "noext",      "out",     "in.html",   "fifo",
                                        "sub/a.svg",  "big.bin", "gone.txt"};
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        CLEANUP(mem_freep) char *path = mem_printf("%s/%s", dir, NAMES[i]);
        unlink(path);
    }
    CLEANUP(mem_freep) char *sub = mem_printf("%s/sub", dir);
    rmdir(sub);
    return rmdir(dir);
}

/* ---- logs ---- */

static void logs(void **state)
{
    (void)state;
    h.service.content = big;
    h.service.content_size = sizeof big;
    static const struct {
        const char *query;
        int64_t rank, attempt, from, n;
    } CASES[] = {
        {"", 0, 0, 0, 65536},
        {"?rank=3&attempt=2", 3, 2, 0, 65536},
        {"?offset=100&limit=10", 0, 0, 100, 10},
        {"?offset=199990", 0, 0, 199990, 10},
        {"?offset=200000", 0, 0, 200000, 0},
        {"?offset=900000", 0, 0, 200000, 0},
        {"?tail=100", 0, 0, 199900, 100},
        {"?tail=1000&limit=10", 0, 0, 199000, 10},
        {"?tail=1048576", 0, 0, 0, 200000},
        {"?limit=1048576", 0, 0, 0, 200000}, /* too much to be copied: sent from the file */
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        CLEANUP(mem_freep) char *line = mem_printf("GET /v1/jobs/j/logs%s", CASES[i].query);
        struct answer a = ask(&h, line, NULL, NULL);
        assert_int_equal(a.status, 200);
        assert_string_equal(header_of(&a, "Content-Type"), "text/plain; charset=utf-8");
        assert_int_equal(atoll(header_of(&a, "X-Log-Offset")), CASES[i].from);
        assert_int_equal(atoll(header_of(&a, "X-Log-Size")), sizeof big);
        assert_int_equal(a.body_len, CASES[i].n);
        assert_memory_equal(a.body, big + CASES[i].from, (size_t)CASES[i].n);
        assert_int_equal(h.service.rank, CASES[i].rank);
        assert_int_equal(h.service.attempt, CASES[i].attempt);
        answer_done(&a);
    }
    h.service.content = NULL;
    struct answer a = ask(&h, "GET /v1/jobs/j/logs", NULL, NULL);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body_len, 0);
    assert_string_equal(header_of(&a, "X-Log-Size"), "0");
    answer_done(&a);
}

/* Somebody truncates a file between its size being taken and its bytes being sent. */
static void a_file_that_shrank_is_never_made_up(void **state)
{
    (void)state;
    h.service.content = big;
    h.service.content_size = 5;
    h.service.lie = 1;
    expect(&h, "GET /v1/jobs/j/artifacts/m", NULL, NULL, 500, "internal");
    h.service.content_size = sizeof big;
    int fd = harness_connect(&h);
    struct buf in = BUF_INIT;
    send_text(&h, fd, "GET /v1/jobs/j/artifacts/m HTTP/1.1\r\nHost: localhost\r\n\r\n");
    while (read_some(&h, fd, &in))
        ;
    assert_non_null(strstr(in.data, "Content-Length: 200001\r\n")); /* cut short, and seen to be */
    assert_true(in.len - (size_t)(strstr(in.data, "\r\n\r\n") + 4 - in.data) <= sizeof big);
    buf_done(&in);
    close(fd);
    settle(&h);
}

/* ---- artifacts ---- */

static void artifacts(void **state)
{
    (void)state;
    expect(&h, "GET /v1/jobs/j/artifacts/model.safetensors", NULL, NULL, 404, "not_found");
    h.service.content = "<script>alert(1)</script>";
    h.service.content_size = 25;
    struct answer a = ask(&h, "GET /v1/jobs/j/artifacts/x.html", NULL, NULL);
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, h.service.content);
    assert_string_equal(h.service.name, "x.html");
    assert_string_equal(header_of(&a, "Content-Type"), "application/octet-stream");
    assert_string_equal(header_of(&a, "Content-Disposition"), "attachment");
    assert_non_null(strstr(header_of(&a, "Content-Security-Policy"), "sandbox"));
    assert_string_equal(header_of(&a, "Accept-Ranges"), "bytes");
    answer_done(&a);
    a = ask(&h, "HEAD /v1/jobs/j/artifacts/x.html", "Range: bytes=0-1\r\n", NULL);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Content-Length"), "25");
    answer_done(&a);
    h.service.content_size = 0; /* an empty file */
    a = ask(&h, "GET /v1/jobs/j/artifacts/x.html", NULL, NULL);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body_len, 0);
    answer_done(&a);
    expect(&h, "GET /v1/jobs/j/artifacts/x", "Range: bytes=0-\r\n", NULL, 416, NULL);
}

static void ranges(void **state)
{
    (void)state;
    static const struct {
        const char *range;
        int status;
        int64_t first, last;
    } CASES[] = {
        {"bytes=0-0", 206, 0, 0},
        {"bytes=5-9", 206, 5, 9},
        {"Bytes=5-9", 206, 5, 9},
        {"bytes=199999-", 206, 199999, 199999},
        {"bytes=0-199999", 206, 0, 199999},
        {"bytes=0-999999999", 206, 0, 199999},
        {"bytes=0-99999999999999999999999", 206, 0, 199999},
        {"bytes=-5", 206, 199995, 199999},
        {"bytes=-999999", 206, 0, 199999},
        {"bytes=100000-", 206, 100000, 199999},
        {"bytes=200000-", 416, 0, 0},
        {"bytes=200000-300000", 416, 0, 0},
        {"bytes=99999999999999999999999-", 416, 0, 0},
        {"bytes=-0", 416, 0, 0},
        {"bytes=9-5", 200, 0, 199999},
        {"bytes=", 200, 0, 199999},
        {"bytes=-", 200, 0, 199999},
        {"bytes=a-b", 200, 0, 199999},
        {"bytes=0-1,5-6", 200, 0, 199999},
        {"bytes=0 - 1", 200, 0, 199999},
        {"lines=0-1", 200, 0, 199999},
        {"", 200, 0, 199999},
    };
    h.service.content = big;
    h.service.content_size = sizeof big;
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        CLEANUP(mem_freep) char *header = mem_printf("Range: %s\r\n", CASES[i].range);
        struct answer a = ask(&h, "GET /v1/jobs/j/artifacts/m", header, NULL);
        if (a.status != CASES[i].status)
            fail_msg("%s: %d", CASES[i].range, a.status);
        const char *said = header_of(&a, "Content-Range");
        if (a.status == 416) {
            assert_string_equal(said, "bytes */200000");
        } else {
            size_t n = (size_t)(CASES[i].last - CASES[i].first + 1);
            assert_int_equal(a.body_len, n);
            assert_memory_equal(a.body, big + CASES[i].first, n);
            CLEANUP(mem_freep)
            char *want = mem_printf("bytes %lld-%lld/200000", (long long)CASES[i].first,
                                    (long long)CASES[i].last);
            if (a.status == 206)
                assert_string_equal(said, want);
            else
                assert_null(said);
        }
        answer_done(&a);
    }
}

static void ranges_and_tags(void **state)
{
    (void)state;
    static const struct {
        const char *headers;
        int status;
    } CASES[] = {
        {"Range: bytes=0-1\r\nIf-Range: \"7\"\r\n", 206},
        {"Range: bytes=0-1\r\nIf-Range: \"8\"\r\n", 200},
        {"Range: bytes=0-1\r\nIf-Range: Wed, 21 Oct 2015 07:28:00 GMT\r\n", 200},
        {"Range: bytes=0-1\r\nIf-None-Match: \"7\"\r\n", 304},
        {"Range: bytes=0-1\r\nIf-None-Match: \"8\"\r\n", 206},
        {"Range: bytes=0-1\r\nRange: bytes=5-6\r\n", 400},
    };
    h.service.content = big;
    h.service.content_size = sizeof big;
    for (int quoted = 0; quoted < 2; quoted++) {
        h.service.etag = quoted ? "\"7\"" : "7";
        for (size_t i = 0; i < ARRAY_LEN(CASES); i++)
            expect(&h, "GET /v1/jobs/j/artifacts/m", CASES[i].headers, NULL, CASES[i].status, NULL);
    }
    h.service.etag = NULL;
    expect(&h, "GET /v1/jobs/j/artifacts/m", CASES[0].headers, NULL, 200, NULL);
}

/* ---- the page ---- */

static void page(void **state)
{
    (void)state;
    struct answer a = ask(&h, "GET /?job=job_1", NULL, NULL);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Content-Type"), "text/html; charset=utf-8");
    assert_non_null(strstr(header_of(&a, "Content-Security-Policy"), "default-src 'self'"));
    assert_non_null(strstr(header_of(&a, "Content-Security-Policy"), "frame-ancestors 'none'"));
    assert_string_equal(header_of(&a, "X-Content-Type-Options"), "nosniff");
    CLEANUP(mem_freep) char *tag = mem_printf("If-None-Match: %s\r\n", header_of(&a, "ETag"));
    answer_done(&a);
    expect(&h, "GET /", tag, NULL, 304, NULL);
    expect(&h, "HEAD /", NULL, NULL, 200, NULL);
    static const struct {
        const char *path, *type;
        int status;
    } CASES[] = {
        {"/index.html", "text/html; charset=utf-8", 200},
        {"/app.js", "text/javascript; charset=utf-8", 200},
        {"/style.css", "text/css; charset=utf-8", 200},
        {"/sub/a.svg", "image/svg+xml", 200},
        {"/noext", "application/octet-stream", 200},
        {"/in.html", "text/html; charset=utf-8", 200},
        {"/out", NULL, 404},
        {"/sub", NULL, 404},
        {"/sub/", NULL, 404},
        {"/fifo", NULL, 404},
        {"/.secret", NULL, 404},
        {"/%2esecret", NULL, 404},
        {"/sub//a.svg", NULL, 404},
        {"/missing.js", NULL, 404},
        {"/../etc/passwd", NULL, 400},
        {"/sub/..%2f..", NULL, 400},
        {"/v1/app.js", NULL, 404},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        CLEANUP(mem_freep) char *line = mem_printf("GET %s", CASES[i].path);
        a = ask(&h, line, NULL, NULL);
        if (a.status != CASES[i].status)
            fail_msg("%s: %d", CASES[i].path, a.status);
        if (CASES[i].type)
            assert_string_equal(header_of(&a, "Content-Type"), CASES[i].type);
        answer_done(&a);
    }
}

static void no_page(void **state)
{
    (void)state;
    harness_close(&h);
    harness_open(&h, NULL);
    struct answer a = ask(&h, "GET /", NULL, NULL);
    assert_int_equal(a.status, 404);
    assert_non_null(strstr(a.body, "/v1/jobs"));
    answer_done(&a);
    struct err e = {0};
    struct api *none = NULL;
    struct api_options o = {.listen = "127.0.0.1:0", .web_dir = "/no/such/dir"};
    assert_int_equal(api_open(&o, &h.service, &none, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "/no/such/dir"));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(logs),
        T(a_file_that_shrank_is_never_made_up),
        T(artifacts),
        T(ranges),
        T(ranges_and_tags),
        T(page),
        T(no_page),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
