/* api_guard.c: what is refused at the door: hosts, origins, tokens, types, targets and keys. */
#include "tests/unit/api_harness.h"

static struct harness h;

static int setup(void **state)
{
    (void)state;
    harness_open(&h, NULL);
    return 0;
}

static int setup_tokens(void **state)
{
    (void)state;
    struct api_options o = {.listen = "0.0.0.0:0",
                            .api_token = "user-secret",
                            .agent_token = "agent-secret",
                            .allowed_hosts = "head.example, Other.Example ,,x"};
    harness_open(&h, &o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    harness_close(&h);
    return 0;
}

static int status_of_host(const char *host)
{
    CLEANUP(mem_freep)
    char *text = mem_printf("GET /healthz HTTP/1.1\r\nHost: %s\r\n\r\n", host);
    struct answer a = ask_raw(&h, text, strlen(text));
    int status = a.status;
    answer_done(&a);
    return status;
}

static void hosts_on_loopback(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        int status;
    } CASES[] = {
        {"localhost", 200},
        {"LocalHost:80", 200},
        {"localhost.", 200},
        {"127.0.0.1", 200},
        {"127.0.0.1:8724", 200},
        {"127.8.8.8", 200},
        {"[::1]", 200},
        {"[::1]:99", 200},
        {"evil.example", 421},
        {"evil.example:8724", 421},
        {"localhost.evil.example", 421},
        {"127.0.0.1.evil.example", 421},
        {"10.0.0.1", 421},
        {"localhost@evil.example", 421},
        {"", 400},
        {":80", 400},
        {"localhost:port", 400},
        {"localhost:80:80", 400},
        {"[::1", 400},
        {"[::1]x", 400},
        {"[", 400},
        {"[]", 421},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++)
        if (status_of_host(CASES[i].host) != CASES[i].status)
            fail_msg("Host: %s answered %d", CASES[i].host, status_of_host(CASES[i].host));
    struct buf longest = BUF_INIT;
    for (int i = 0; i < 300; i++)
        buf_adds(&longest, "a");
    assert_int_equal(status_of_host(longest.data), 400);
    buf_done(&longest);
}

static void hosts_that_are_allowed(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        int status;
    } CASES[] = {
        {"head.example", 200},     {"HEAD.EXAMPLE:1", 200},
        {"other.example", 200},    {"x", 200},
        {"localhost", 200},        {"192.0.2.7:8724", 200},
        {"[2001:db8::1]:80", 200}, {"xy", 421},
        {"head.example.org", 421}, {"head", 421},
        {"192.0.2.7.x.org", 421},  {"[head.example]", 421},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++)
        if (status_of_host(CASES[i].host) != CASES[i].status)
            fail_msg("Host: %s answered %d", CASES[i].host, status_of_host(CASES[i].host));
}

static void origins(void **state)
{
    (void)state;
    static const struct {
        const char *headers;
        int status;
    } CASES[] = {
        {"", 201},
        {"Origin: http://localhost\r\n", 201},
        {"Origin: https://LOCALHOST\r\n", 201},
        {"Origin: http://localhost:3000\r\n", 403},
        {"Origin: http://evil.example\r\n", 403},
        {"Origin: http://localhost.evil.example\r\n", 403},
        {"Origin: null\r\n", 403},
        {"Origin:\r\n", 403},
        {"Origin: file://localhost\r\n", 403},
        {"Origin: localhost\r\n", 403},
        {"Sec-Fetch-Site: same-origin\r\n", 201},
        {"Sec-Fetch-Site: none\r\n", 201},
        {"Sec-Fetch-Site: same-site\r\n", 403},
        {"Sec-Fetch-Site: cross-site\r\n", 403},
        {"Sec-Fetch-Site: cross-site\r\nOrigin: http://localhost\r\n", 403},
        {"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Site: none\r\n", 400},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        CLEANUP(mem_freep) char *headers = mem_printf(JSON_HEADER "%s", CASES[i].headers);
        expect(&h, "POST /v1/jobs", headers, "{}", CASES[i].status, NULL);
    }
    /* Reading is left to the browser's own rules: no answer allows another origin. */
    struct answer a = ask(&h, "GET /v1/jobs", "Origin: http://evil.example\r\n", NULL);
    assert_int_equal(a.status, 200);
    assert_null(header_of(&a, "Access-Control-Allow-Origin"));
    answer_done(&a);
}

static void tokens(void **state)
{
    (void)state;
    static const struct {
        const char *line, *header;
        int status;
    } CASES[] = {
        {"GET /healthz", "", 200},
        {"GET /readyz", "", 200},
        {"GET /openapi.json", "", 200},
        {"GET /v1/jobs", "", 401},
        {"GET /metrics", "", 401},
        {"GET /v1/jobs", "Authorization: Bearer user-secret\r\n", 200},
        {"GET /v1/jobs", "Authorization: bearer user-secret\r\n", 200},
        {"GET /v1/jobs", "Authorization: Bearer agent-secret\r\n", 401},
        {"GET /v1/jobs", "Authorization: Bearer user-secre\r\n", 401},
        {"GET /v1/jobs", "Authorization: Bearer user-secret1\r\n", 401},
        {"GET /v1/jobs", "Authorization: Bearer User-secret\r\n", 401},
        {"GET /v1/jobs", "Authorization: Basic user-secret\r\n", 401},
        {"GET /v1/jobs", "Authorization: user-secret\r\n", 401},
        {"GET /v1/jobs", "Authorization:\r\n", 401},
        {"GET /v1/jobs", "Authorization: Bearer\r\n", 401},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct answer a = ask(&h, CASES[i].line, CASES[i].header, NULL);
        if (a.status != CASES[i].status)
            fail_msg("%s %s: %d", CASES[i].line, CASES[i].header, a.status);
        assert_int_equal(header_of(&a, "WWW-Authenticate") != NULL, a.status == 401);
        if (a.status == 401)
            assert_null(strstr(a.body, "secret"));
        answer_done(&a);
    }
    expect(&h, "POST /v1/agent/sync", JSON_HEADER "Authorization: Bearer agent-secret\r\n", "{}",
           200, NULL);
    expect(&h, "POST /v1/agent/sync", JSON_HEADER "Authorization: Bearer user-secret\r\n", "{}",
           401, "unauthorized");
    expect(&h, "POST /v1/jobs", JSON_HEADER, "{}", 401, "unauthorized");
}

static void content_types(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        int status;
    } CASES[] = {
        {"application/json", 201},
        {"Application/JSON", 201},
        {"application/json; charset=utf-8", 201},
        {"application/json;charset=UTF-8", 201},
        {"application/json ; charset=\"utf-8\"", 201},
        {"application/json; charset=latin1", 415},
        {"application/jsonp", 415},
        {"application/json, text/plain", 415},
        {"application/jso", 415},
        {"text/plain", 415},
        {"application/x-www-form-urlencoded", 415},
        {"multipart/form-data; boundary=application/json", 415},
        {"", 415},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        CLEANUP(mem_freep) char *header = mem_printf("Content-Type: %s\r\n", CASES[i].type);
        expect(&h, "POST /v1/jobs", header, "{}", CASES[i].status, NULL);
    }
    expect(&h, "POST /v1/jobs", NULL, "{}", 415, "unsupported_media_type");
    expect(&h, "POST /v1/jobs", JSON_HEADER JSON_HEADER, "{}", 400, "duplicate_header");
}

static void targets(void **state)
{
    (void)state;
    static const struct {
        const char *target;
        int status;
    } CASES[] = {
        {"/v1/jobs/a%00b", 400},
        {"/v1/jobs%00", 400},
        {"/v1/jobs?label=a%00b", 400},
        {"/v1/jobs/a%2fb", 400},
        {"/v1/jobs/a%2Fb", 400},
        {"/v1/jobs/a%5cb", 400},
        {"/v1/jobs/a%5Cb", 400},
        {"/v1/jobs/a\\b", 400},
        {"/v1/jobs/../nodes", 400},
        {"/v1/jobs/./a", 400},
        {"/..", 400},
        {"/v1/jobs/%2e%2e/nodes", 400},
        {"/v1/jobs/%2E./nodes", 400},
        {"/v1/jobs/.%2e", 400},
        {"/v1/jobs/a..b", 200},
        {"/v1/jobs/...", 200},
        {"/v1/jobs/%", 400},
        {"/v1/jobs/%4", 400},
        {"/v1/jobs/%zz", 400},
        {"/v1/jobs/%252e%252e", 200}, /* decoded once: "%2e%2e" */
        {"/v1/jobs/%0a", 400},
        {"/v1/jobs/%7f", 400},
        {"/v1/jobs/%ff", 400},
        {"/v1/jobs/%c0%ae", 400},
        {"/v1/jobs/%ed%a0%80", 400},
        {"/v1/jobs/%f4%90%80%80", 400},
        {"/v1/jobs/%f0%9f%9a%82", 200},
        {"/v1/jobs/\xc3\xa9", 400},
        {"/v1/jobs#x", 400},
        {"/v1/jobs?label=%2F%5C..", 200}, /* names in queries are no paths */
        {"/v1/jobs?label=%80", 400},
        {"/v1/jobs?label=a%0d%0ab", 400},
        {"/v1/jobs?%6cimit=5", 200},
        {"*", 400},
        {"http://localhost/v1/jobs", 400},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        CLEANUP(mem_freep) char *line = mem_printf("GET %s", CASES[i].target);
        expect(&h, line, NULL, NULL, CASES[i].status, NULL);
    }
}

static void bodies_where_none_belong(void **state)
{
    (void)state;
    expect(&h, "GET /v1/jobs", NULL, "{}", 400, "unexpected_body");
    expect(&h, "GET /v1/jobs", "Transfer-Encoding: chunked\r\n", NULL, 400, "unexpected_body");
    expect(&h, "GET /v1/jobs", NULL, "", 200, NULL);
}

static void idempotency_keys(void **state)
{
    (void)state;
    struct buf key = BUF_INIT;
    buf_adds(&key, JSON_HEADER "Idempotency-Key: ");
    for (int i = 0; i < 255; i++)
        buf_adds(&key, "k");
    buf_adds(&key, "\r\n");
    expect(&h, "POST /v1/jobs", key.data, "{}", 201, NULL);
    assert_int_equal(strlen(h.service.key), 255);
    buf_clear(&key);
    buf_adds(&key, JSON_HEADER "Idempotency-Key: ");
    for (int i = 0; i < 256; i++)
        buf_adds(&key, "k");
    buf_adds(&key, "\r\n");
    expect(&h, "POST /v1/jobs", key.data, "{}", 400, "invalid_idempotency_key");
    buf_done(&key);
    expect(&h, "POST /v1/jobs", JSON_HEADER "Idempotency-Key:\r\n", "{}", 400,
           "invalid_idempotency_key");
    expect(&h, "POST /v1/jobs", JSON_HEADER "Idempotency-Key: a b\r\n", "{}", 400,
           "invalid_idempotency_key");
    expect(&h, "POST /v1/jobs", JSON_HEADER "Idempotency-Key: \xc3\xa9\r\n", "{}", 400,
           "invalid_idempotency_key");
    expect(&h, "POST /v1/jobs", JSON_HEADER "Idempotency-Key: a\r\nIdempotency-Key: b\r\n", "{}",
           400, "duplicate_header");
    expect(&h, "POST /v1/jobs", JSON_HEADER, "{}", 201, NULL);
    assert_int_equal(h.service.has_key, 0);
}

int main(void)
{
#define T(name)      cmocka_unit_test_setup_teardown(name, setup, teardown)
#define TOKENS(name) cmocka_unit_test_setup_teardown(name, setup_tokens, teardown)
    const struct CMUnitTest tests[] = {
        T(hosts_on_loopback),
        TOKENS(hosts_that_are_allowed),
        T(origins),
        TOKENS(tokens),
        T(content_types),
        T(targets),
        T(bodies_where_none_belong),
        T(idempotency_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
