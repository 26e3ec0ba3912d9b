/* api_time.c: deadlines, on a clock that the test moves: clock_gettime() below stands in for
 * libc's, for our code and the HTTP library's alike. */
#include "tests/unit/api_harness.h"

#include <sys/syscall.h>
#include <time.h>

#define SUBMIT_LINE                                                                                \
    "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

static struct harness h;
static int64_t skew_s;

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    t->tv_sec += skew_s;
    return rc;
}

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

static void pass(int64_t seconds)
{
    skew_s += seconds;
    settle(&h);
}

static int is_open(int fd)
{
    char byte;
    settle(&h);
    ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n > 0 || (n < 0 && errno == EAGAIN);
}

/* One byte every ten seconds keeps the library's own timeout away, and is not enough for ours. */
static void trickle(int fd, const char *text, int64_t seconds)
{
    for (int64_t i = 0; i < seconds / 10; i++) {
        send_bytes(&h, fd, text + i, 1);
        pass(10);
    }
}

static void a_connection_that_says_nothing(void **state)
{
    (void)state;
    int fd = harness_connect(&h);
    settle(&h);
    pass(29);
    assert_true(is_open(fd));
    pass(2);
    assert_false(is_open(fd));
    close(fd);
}

static void a_header_in_drips(void **state)
{
    (void)state;
    int fd = harness_connect(&h);
    settle(&h);
    trickle(fd, "GET /v1/jobs HTTP/1.1\r\n", 20);
    assert_true(is_open(fd));
    trickle(fd, "T /v1/jobs HTTP/1.1\r\n", 20);
    assert_false(is_open(fd));
    close(fd);
}

static void a_body_in_drips(void **state)
{
    (void)state;
    int fd = harness_connect(&h);
    send_text(&h, fd, SUBMIT_LINE "Content-Length: 50\r\n\r\n");
    settle(&h);
    trickle(fd, "{\"name\":\"aaaaaaaaaaaaaaaaaaaaaa\"", 20);
    assert_true(is_open(fd));
    trickle(fd, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 20);
    assert_false(is_open(fd));
    assert_int_equal(h.service.calls, 0);
    close(fd);
}

static void a_second_request_in_drips(void **state)
{
    (void)state;
    struct buf in = BUF_INIT;
    int fd = harness_connect(&h);
    send_text(&h, fd, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct answer a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 200);
    answer_done(&a);
    pass(50); /* a rest between requests is longer than the time for one */
    assert_true(is_open(fd));
    send_text(&h, fd, SUBMIT_LINE "Content-Length: 50\r\n\r\n");
    settle(&h);
    pass(25);
    assert_true(is_open(fd));
    pass(10);
    assert_false(is_open(fd));
    buf_done(&in);
    close(fd);
}

static void a_rest_that_is_too_long(void **state)
{
    (void)state;
    struct buf in = BUF_INIT;
    int fd = harness_connect(&h);
    for (int i = 0; i < 3; i++) {
        send_text(&h, fd, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        struct answer a = read_answer(&h, fd, &in, 0);
        assert_int_equal(a.status, 200);
        answer_done(&a);
        pass(55);
        assert_true(is_open(fd));
    }
    pass(10);
    assert_false(is_open(fd));
    buf_done(&in);
    close(fd);
}

static void an_answer_that_is_not_taken(void **state)
{
    (void)state;
    static char content[24 << 20]; /* more than the kernel's buffers hold */
    h.service.content = content;
    h.service.content_size = sizeof content;
    int fd = harness_connect(&h);
    send_text(&h, fd, "GET /v1/jobs/j/artifacts/m HTTP/1.1\r\nHost: localhost\r\n\r\n");
    while (h.service.calls == 0)
        turn(&h, fd);
    settle(&h);
    /* A sip a while keeps the library's timeout away; the deadline is 60 s and 16 KiB/s. */
    int64_t deadline_s = 60 + (int64_t)sizeof content / 16384;
    static char sip[1 << 20];
    int64_t passed = 0;
    int64_t taken = 0;
    ssize_t n = 1;
    for (; passed < deadline_s + 200 && n > 0; passed += 50) {
        n = recv(fd, sip, 1 << 12, MSG_DONTWAIT);
        taken += n > 0 ? n : 0;
        pass(50);
    }
    while ((n = recv(fd, sip, sizeof sip, 0)) > 0)
        taken += n;
    assert_true(n == 0 || errno == ECONNRESET);
    assert_true(taken < (int64_t)sizeof content);
    close(fd);
}

static void waiting_has_no_deadline(void **state)
{
    (void)state;
    struct buf in = BUF_INIT;
    h.service.sync_waits = 1;
    int fd = harness_connect(&h);
    send_text(&h, fd,
              "POST /v1/agent/sync HTTP/1.1\r\nHost: localhost\r\n" JSON_HEADER
              "Content-Length: 2\r\n\r\n{}");
    while (h.service.calls == 0)
        turn(&h, fd);
    pass(3600);
    assert_true(is_open(fd));
    api_wake(h.api, h.service.ticket);
    struct answer a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 200);
    answer_done(&a);
    buf_done(&in);
    close(fd);
}

static void the_loop_is_told_when_to_come_back(void **state)
{
    (void)state;
    assert_int_equal(api_timeout_us(h.api), -1);
    int fd = harness_connect(&h);
    settle(&h);
    int64_t t = api_timeout_us(h.api);
    assert_true(t > 0 && t <= 30 * 1000000);
    skew_s += 31;
    assert_int_equal(api_timeout_us(h.api), 0);
    settle(&h);
    assert_int_equal(api_timeout_us(h.api), -1);
    close(fd);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_connection_that_says_nothing),
        T(a_header_in_drips),
        T(a_body_in_drips),
        T(a_second_request_in_drips),
        T(a_rest_that_is_too_long),
        T(an_answer_that_is_not_taken),
        T(waiting_has_no_deadline),
        T(the_loop_is_told_when_to_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
