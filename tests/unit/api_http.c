/* api_http.c: the life of requests on real sockets: framing, bodies, sizes, smuggling,
 * addresses and the two listeners. */
#include "tests/unit/api_harness.h"

#define SUBMIT_LINE                                                                                \
    "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

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
    if (h.api)
        harness_close(&h);
    return 0;
}

static char *post(const char *head, const char *body)
{
    return mem_printf("%sContent-Length: %zu\r\n\r\n%s", head, strlen(body), body);
}

/* ---- plain life ---- */

static void answers_and_keeps_alive(void **state)
{
    (void)state;
    int fd = harness_connect(&h);
    struct buf in = BUF_INIT;
    for (int i = 0; i < 5; i++) {
        send_text(&h, fd, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        struct answer a = read_answer(&h, fd, &in, 0);
        assert_int_equal(a.status, 200);
        assert_string_equal(json_string_value(json_object_get(a.json, "status")), "ok");
        assert_non_null(header_of(&a, "X-Request-Id"));
        assert_string_equal(header_of(&a, "X-Content-Type-Options"), "nosniff");
        answer_done(&a);
    }
    buf_done(&in);
    close(fd);
}

static void submits(void **state)
{
    (void)state;
    h.service.write_dirties = 1;
    struct answer a = ask(&h, "POST /v1/jobs?strict=1", JSON_HEADER "Idempotency-Key: k-1\r\n",
                          "{\"name\":\"a\"}");
    assert_int_equal(a.status, 201);
    assert_string_equal(header_of(&a, "Location"), "/v1/jobs/job_1");
    assert_string_equal(h.service.text, "{\"name\":\"a\"}");
    assert_string_equal(h.service.key, "k-1");
    assert_int_equal(h.service.strict, 1);
    assert_int_equal(h.service.dry_run, 0);
    assert_int_equal(h.turns, 1);
    answer_done(&a);
}

static void takes_split_requests(void **state)
{
    (void)state;
    CLEANUP(mem_freep) char *text = post(SUBMIT_LINE, "{\"name\": \"in pieces\"}");
    int fd = harness_connect(&h);
    struct buf in = BUF_INIT;
    for (size_t i = 0; text[i]; i++) {
        send_bytes(&h, fd, text + i, 1);
        settle(&h);
    }
    struct answer a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 201);
    assert_string_equal(h.service.text, "{\"name\": \"in pieces\"}");
    answer_done(&a);
    buf_done(&in);
    close(fd);
}

static void takes_pipelined_requests_in_order(void **state)
{
    (void)state;
    h.service.write_dirties = 1;
    struct buf out = BUF_INIT;
    struct buf in = BUF_INIT;
    for (int i = 0; i < 20; i++) {
        CLEANUP(mem_freep) char *text = post(SUBMIT_LINE, "{}");
        buf_adds(&out, text);
        buf_adds(&out, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    int fd = harness_connect(&h);
    send_bytes(&h, fd, out.data, out.len);
    for (int i = 1; i <= 20; i++) {
        char location[40];
        snprintf(location, sizeof location, "/v1/jobs/job_%d", i);
        struct answer a = read_answer(&h, fd, &in, 0);
        assert_int_equal(a.status, 201);
        assert_string_equal(header_of(&a, "Location"), location);
        answer_done(&a);
        a = read_answer(&h, fd, &in, 0);
        assert_int_equal(a.status, 200);
        answer_done(&a);
    }
    buf_done(&in);
    buf_done(&out);
    close(fd);
}

static void takes_chunked_bodies(void **state)
{
    (void)state;
    static const char TEXT[] = SUBMIT_LINE "Transfer-Encoding: chunked\r\n\r\n"
                                           "5\r\n{\"a\":\r\n3\r\n 1}\r\n0\r\n\r\n";
    struct answer a = ask_raw(&h, TEXT, sizeof TEXT - 1);
    assert_int_equal(a.status, 201);
    assert_string_equal(h.service.text, "{\"a\": 1}");
    answer_done(&a);
}

static void says_continue(void **state)
{
    (void)state;
    struct buf in = BUF_INIT;
    int fd = harness_connect(&h);
    send_text(&h, fd, SUBMIT_LINE "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    struct answer a = read_answer(&h, fd, &in, 1);
    assert_int_equal(a.status, 100);
    answer_done(&a);
    send_text(&h, fd, "{}");
    a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 201);
    answer_done(&a);
    close(fd);

    /* What is refused by its headers is refused before the body is asked for. */
    buf_clear(&in);
    fd = harness_connect(&h);
    send_text(&h, fd, SUBMIT_LINE "Content-Length: 2000000\r\nExpect: 100-continue\r\n\r\n");
    a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 413);
    answer_done(&a);
    close(fd);
    buf_done(&in);
}

/* ---- sizes ---- */

static struct answer post_sized(size_t n, int chunked)
{
    struct buf b = BUF_INIT;
    buf_adds(&b, SUBMIT_LINE);
    if (chunked)
        buf_addf(&b, "Transfer-Encoding: chunked\r\n\r\n%zx\r\n", n);
    else
        buf_addf(&b, "Content-Length: %zu\r\n\r\n", n);
    buf_reserve(&b, n);
    memset(b.data + b.len, ' ', n);
    b.len += n;
    b.data[b.len] = '\0';
    if (chunked)
        buf_adds(&b, "\r\n0\r\n\r\n");
    struct answer a = ask_raw(&h, b.data, b.len);
    buf_done(&b);
    return a;
}

static void caps_bodies(void **state)
{
    (void)state;
    const size_t cap = 1024 * 1024;
    static const struct {
        size_t over;
        int chunked, status;
    } CASES[] = {{0, 0, 201}, {0, 1, 201}, {1, 0, 413}, {1, 1, 413}, {6 << 20, 1, 413}};
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        int calls = h.service.calls;
        struct answer a = post_sized(cap + CASES[i].over, CASES[i].chunked);
        assert_int_equal(a.status, CASES[i].status);
        assert_int_equal(h.service.calls - calls, a.status == 201);
        if (a.status == 201)
            assert_int_equal(h.service.body_len, cap);
        else
            assert_string_equal(code_of(&a), "too_large");
        answer_done(&a);
    }
    struct answer a = post_sized(20 << 20, 1); /* too much to read in courtesy */
    assert_int_equal(a.status, 0);
    answer_done(&a);
    expect(&h, "GET /healthz", NULL, NULL, 200, NULL);
}

static void survives_huge_headers(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    buf_adds(&b, "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Long: ");
    for (int i = 0; i < 100000; i++)
        buf_adds(&b, "x");
    buf_adds(&b, "\r\n\r\n");
    struct answer a = ask_raw(&h, b.data, b.len);
    assert_true(a.status == 431 || a.status == 413 || a.status == 0);
    answer_done(&a);
    buf_clear(&b);
    buf_adds(&b, "GET /");
    for (int i = 0; i < 9000; i++)
        buf_adds(&b, "x");
    buf_adds(&b, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    a = ask_raw(&h, b.data, b.len);
    assert_int_equal(a.status, 414);
    answer_done(&a);
    buf_clear(&b);
    buf_adds(&b, "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 3000; i++)
        buf_addf(&b, "X-%d: y\r\n", i);
    buf_adds(&b, "\r\n");
    a = ask_raw(&h, b.data, b.len);
    assert_int_not_equal(a.status, 200);
    answer_done(&a);
    buf_done(&b);
    assert_int_equal(h.service.calls, 0);
    expect(&h, "GET /healthz", NULL, NULL, 200, NULL);
}

static void sends_large_answers(void **state)
{
    (void)state;
    h.service.big_body = 3000000;
    struct answer a = ask(&h, "GET /v1/jobs", NULL, NULL);
    assert_int_equal(a.status, 200);
    assert_int_equal(json_array_size(json_object_get(a.json, "jobs")), 150000);
    assert_int_equal(a.body[a.body_len - 1], '\n');
    answer_done(&a);
    h.service.big_body = 65536 - 40; /* around the size of the scratch buffer */
    for (int i = 0; i < 4; i++, h.service.big_body += 20) {
        a = ask(&h, "GET /v1/jobs", NULL, NULL);
        assert_non_null(a.json);
        answer_done(&a);
    }
}

/* ---- request smuggling: the bytes that follow must never be taken for a request ---- */

static void refuses_ambiguous_framing(void **state)
{
    (void)state;
    static const char *const HEADS[] = {
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: identity\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding:\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 2\r\nContent-Length: 70\r\n\r\n{}",
        "Content-Length: +2\r\n\r\n{}",
        "Content-Length: 0x2\r\n\r\n{}",
        "Content-Length: 2, 2\r\n\r\n{}",
        "Content-Length: -2\r\n\r\n{}",
        "Content-Length: 99999999999999999999\r\n\r\n{}",
        "Content-Length:\r\n\r\n{}",
        "Content-Length : 2\r\n\r\n{}",
        "Host: localhost\r\nContent-Length: 2\r\n\r\n{}",
        "Content Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 2\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n{}",
        "Content-Length: 2\r\nX-A: a\x01z\r\n\r\n{}",
    };
    for (size_t i = 0; i < ARRAY_LEN(HEADS); i++) {
        CLEANUP(mem_freep)
        char *text = mem_printf("%s%sGET /v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
                                SUBMIT_LINE, HEADS[i]);
        struct buf in = BUF_INIT;
        int fd = harness_connect(&h);
        send_text(&h, fd, text);
        struct answer a = read_answer(&h, fd, &in, 0);
        if (a.status != 400 && a.status != 0 && a.status != 413)
            fail_msg("%s answered %d", HEADS[i], a.status);
        answer_done(&a);
        a = read_answer(&h, fd, &in, 0); /* the connection is closed */
        if (a.status != 0)
            fail_msg("%s: a second answer, %d", HEADS[i], a.status);
        answer_done(&a);
        buf_done(&in);
        close(fd);
    }
    assert_int_equal(h.service.calls, 0);
}

static void survives_garbage(void **state)
{
    (void)state;
    static const char *const TEXTS[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET  HTTP/1.1\r\n\r\n",
        "GET /healthz\r\n\r\n",
        "GET /v1/jobs HTTP/9.9\r\nHost: localhost\r\n\r\n",
        "GET /v1/jobs HTTP/1.1\r\n\r\n",
        "GET /v1/jobs HTTP/1.1\r\nHost localhost\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET http://evil.example/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(TEXTS); i++) {
        struct buf in = BUF_INIT;
        int fd = harness_connect(&h);
        send_text(&h, fd, TEXTS[i]);
        shutdown(fd, SHUT_WR);
        struct answer a = read_answer(&h, fd, &in, 0);
        if (a.status == 200 && h.service.calls > 0 && !strstr(TEXTS[i], "folded"))
            fail_msg("%s was served", TEXTS[i]);
        answer_done(&a);
        buf_done(&in);
        close(fd);
        settle(&h);
    }
    expect(&h, "GET /healthz", NULL, NULL, 200, NULL);
}

/* ---- addresses ---- */

static void refuses_bad_addresses(void **state)
{
    (void)state;
    static const char *const BAD[] = {"",      "8724",      "127.0.0.1",       "127.0.0.1:",
                                      ":8724", "1.2.3.4:x", "127.0.0.1:70000", "::1:8724",
                                      "[::1]", "[::1:80",   "192.0.2.1:0",     "no such name:1",
                                      "[]:1"};
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        struct err e = {0};
        struct api *a = NULL;
        struct api_options o = {.listen = BAD[i]};
        if (api_open(&o, &h.service, &a, &e) == 0)
            fail_msg("\"%s\" was accepted", BAD[i]);
        assert_true(strlen(e.text) > 20);
        assert_null(a);
    }
    struct err e = {0};
    struct api *a = NULL;
    struct api_options taken = {.listen = api_address(h.api)};
    assert_int_equal(api_open(&taken, &h.service, &a, &e), ERR_CONFLICT);
    assert_non_null(strstr(e.text, api_address(h.api)));
    assert_non_null(strstr(e.text, "is taken"));
}

static void needs_tokens_off_loopback(void **state)
{
    (void)state;
    struct err e = {0};
    struct api *a = NULL;
    struct api_options o = {.listen = "0.0.0.0:0"};
    assert_int_equal(api_open(&o, &h.service, &a, &e), ERR_INVALID);
    o.agent_token = "x";
    assert_int_equal(api_open(&o, &h.service, &a, &e), ERR_INVALID);
    o = (struct api_options){.listen = "127.0.0.1:0", .agent_listen = "0.0.0.0:0"};
    assert_int_equal(api_open(&o, &h.service, &a, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "token"));
}

static void refuses_more_connections_than_files(void **state)
{
    (void)state;
    struct err e = {0};
    struct api *a = NULL;
    struct api_options o = {.listen = "127.0.0.1:0", .connection_limit = 100000000};
    assert_int_equal(api_open(&o, &h.service, &a, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "files"));
    o.connection_limit = -1;
    assert_int_equal(api_open(&o, &h.service, &a, &e), ERR_INVALID);
}

static void serves_ipv6_and_agents(void **state)
{
    (void)state;
    harness_close(&h);
    struct api_options o = {.listen = "[::1]:0", .agent_listen = "127.0.0.1:0"};
    harness_open(&h, &o);
    assert_memory_equal(api_address(h.api), "[::1]:", 6);
    expect(&h, "GET /v1/version", NULL, NULL, 200, NULL);
    static const struct {
        const char *line;
        int status;
    } CASES[] = {
        {"GET /healthz", 200}, {"GET /v1/jobs", 404},       {"GET /readyz", 404},
        {"GET /", 404},        {"GET /v1/agent/sync", 405}, {"POST /v1/agent/sync", 200},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct buf in = BUF_INIT;
        int fd = harness_connect_to(api_agent_address(h.api));
        int is_post = CASES[i].line[0] == 'P';
        CLEANUP(mem_freep)
        char *text =
            mem_printf("%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n%s", CASES[i].line,
                       is_post ? JSON_HEADER "Content-Length: 2\r\n" : "", is_post ? "{}" : "");
        send_text(&h, fd, text);
        struct answer a = read_answer(&h, fd, &in, 0);
        assert_int_equal(a.status, CASES[i].status);
        answer_done(&a);
        buf_done(&in);
        close(fd);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(answers_and_keeps_alive),
        T(submits),
        T(takes_split_requests),
        T(takes_pipelined_requests_in_order),
        T(takes_chunked_bodies),
        T(says_continue),
        T(caps_bodies),
        T(survives_huge_headers),
        T(sends_large_answers),
        T(refuses_ambiguous_framing),
        T(survives_garbage),
        T(refuses_bad_addresses),
        T(needs_tokens_off_loopback),
        T(refuses_more_connections_than_files),
        T(serves_ipv6_and_agents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
