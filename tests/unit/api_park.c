/* api_park.c: answers that must wait: for the commit of their turn, for a wake, and what becomes of
 * them when the client or the server leaves. */
#include "tests/unit/api_harness.h"

#include <fcntl.h>

#define SUBMIT_LINE                                                                                \
    "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
#define SYNC_LINE                                                                                  \
    "POST /v1/agent/sync HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

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

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* ---- commit, then speak ---- */

static void holds_answers_until_the_commit(void **state)
{
    (void)state;
    struct buf in = BUF_INIT;
    struct buf in2 = BUF_INIT;
    CLEANUP(mem_freep) char *text = post(SUBMIT_LINE, "{}");
    h.hold = 1;
    h.service.write_dirties = 1;
    int fd = harness_connect(&h);
    int fd2 = harness_connect(&h);
    send_text(&h, fd, text);
    while (!h.service.dirty)
        turn(&h, fd);
    /* A read in the same turn has seen what may not be stored: it waits, too. */
    send_text(&h, fd2, "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n");
    while (h.service.calls < 2)
        turn(&h, fd2);
    settle(&h);
    char byte;
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(recv(fd2, &byte, 1, MSG_DONTWAIT), -1);
    h.hold = 0;
    end_turn(&h);
    /* Sent by then, without another run. */
    assert_int_equal(recv(fd, &byte, 1, MSG_PEEK), 1);
    assert_int_equal(recv(fd2, &byte, 1, MSG_PEEK), 1);
    struct answer a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 201);
    answer_done(&a);
    a = read_answer(&h, fd2, &in2, 0);
    assert_int_equal(a.status, 200);
    answer_done(&a);
    buf_done(&in);
    buf_done(&in2);
    close(fd);
    close(fd2);
}

static void says_when_nothing_was_stored(void **state)
{
    (void)state;
    h.service.write_dirties = 1;
    err_set(&h.failure, ERR_NO_SPACE, "write: No space left on device");
    struct answer a = ask(&h, "POST /v1/jobs", JSON_HEADER, "{}");
    assert_int_equal(a.status, 507);
    assert_string_equal(code_of(&a), "insufficient_storage");
    assert_null(header_of(&a, "Location"));
    assert_non_null(strstr(a.body, "No space left"));
    answer_done(&a);
    err_set(&h.failure, ERR_IO, "fsync: Input/output error");
    a = ask(&h, "POST /v1/jobs", JSON_HEADER, "{}");
    assert_int_equal(a.status, 503);
    assert_string_equal(header_of(&a, "Retry-After"), "1");
    answer_done(&a);
    expect(&h, "POST /v1/jobs", JSON_HEADER, "{}", 201, NULL);
}

static void commits_many_at_once(void **state)
{
    (void)state;
    enum { N = 64 };
    int fds[N];
    CLEANUP(mem_freep) char *text = post(SUBMIT_LINE, "{}");
    h.service.write_dirties = 1;
    h.hold = 1;
    for (int i = 0; i < N; i++) {
        fds[i] = harness_connect(&h);
        send_text(&h, fds[i], text);
    }
    while (h.service.calls < N)
        turn(&h, fds[0]);
    h.hold = 0;
    end_turn(&h);
    assert_int_equal(h.turns, 1);
    for (int i = 0; i < N; i++) {
        struct buf in = BUF_INIT;
        struct answer a = read_answer(&h, fds[i], &in, 0);
        assert_int_equal(a.status, 201);
        answer_done(&a);
        buf_done(&in);
        close(fds[i]);
    }
}

/* Requests that come in while answers are sent are called in the next run, not within the turn's
 * end: end_turn() asserts it. */
static void defers_what_comes_in_while_sending(void **state)
{
    (void)state;
    enum { N = 16, ROUNDS = 20 };
    int fds[N];
    struct buf in[N] = {0};
    CLEANUP(mem_freep) char *text = post(SUBMIT_LINE, "{}");
    h.service.write_dirties = 1;
    for (int i = 0; i < N; i++)
        fds[i] = harness_connect(&h);
    for (int round = 0; round < ROUNDS; round++) {
        h.hold = 1;
        for (int i = 0; i < N / 2; i++)
            send_text(&h, fds[i], text);
        while (h.service.calls < round * N + N / 2)
            turn(&h, fds[0]);
        for (int i = N / 2; i < N; i++)
            send_text(&h, fds[i], text);
        h.hold = 0;
        end_turn(&h);
        for (int i = 0; i < N; i++) {
            struct answer a = read_answer(&h, fds[i], &in[i], 0);
            assert_int_equal(a.status, 201);
            answer_done(&a);
        }
    }
    assert_int_equal(h.service.submitted, N * ROUNDS);
    for (int i = 0; i < N; i++) {
        buf_done(&in[i]);
        close(fds[i]);
    }
}

/* ---- waiting ---- */

static int sync_sent(int waits)
{
    CLEANUP(mem_freep) char *text = post(SYNC_LINE, "{\"node\":\"n1\"}");
    h.service.sync_waits = waits;
    int calls = h.service.calls;
    int fd = harness_connect(&h);
    send_text(&h, fd, text);
    while (h.service.calls == calls)
        turn(&h, fd);
    settle(&h);
    return fd;
}

static void wakes_a_waiting_sync(void **state)
{
    (void)state;
    struct buf in = BUF_INIT;
    int fd = sync_sent(2);
    assert_string_equal(h.service.id, "n1");
    assert_int_equal(h.service.resumed, 0);
    uint64_t ticket = h.service.ticket;
    assert_int_not_equal(ticket, 0);
    char byte;
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
    api_wake(h.api, ticket + 1000); /* nobody's */
    api_wake(h.api, 0);
    settle(&h);
    assert_int_equal(h.service.calls, 1);
    api_wake(h.api, ticket);
    api_wake(h.api, ticket); /* twice is once */
    assert_int_equal(api_timeout_us(h.api), 0);
    settle(&h);
    assert_int_equal(h.service.calls, 2);
    assert_int_equal(h.service.resumed, 1);
    assert_int_equal(h.service.ticket, ticket);
    api_wake(h.api, ticket);
    struct answer a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 200);
    assert_int_equal(json_integer_value(json_object_get(a.json, "seen")), 2);
    answer_done(&a);
    api_wake(h.api, ticket); /* answered: unknown by now */
    settle(&h);
    assert_int_equal(h.service.calls, 3);
    buf_done(&in);
    close(fd);
}

static void wake_itself(struct service *s, uint64_t ticket)
{
    s->in_sync = NULL;
    api_wake(h.api, ticket);
}

static void a_wake_within_the_verb_is_not_lost(void **state)
{
    (void)state;
    struct buf in = BUF_INIT;
    h.service.in_sync = wake_itself;
    int fd = sync_sent(1);
    struct answer a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 200);
    assert_int_equal(h.service.resumed, 1);
    answer_done(&a);
    buf_done(&in);
    close(fd);
}

static void a_client_that_leaves_while_parked_is_let_go(void **state)
{
    (void)state;
    settle(&h);
    int before = open_files();
    int fd = sync_sent(1);
    uint64_t ticket = h.service.ticket;
    close(fd);
    settle(&h);
    assert_int_equal(open_files(), before);
    api_wake(h.api, ticket);
    settle(&h);
    assert_int_equal(h.service.calls, 1); /* its verb is not called again */
}

static void a_client_that_leaves_while_held_is_let_go(void **state)
{
    (void)state;
    settle(&h);
    int before = open_files();
    CLEANUP(mem_freep) char *text = post(SUBMIT_LINE, "{}");
    h.hold = 1;
    h.service.write_dirties = 1;
    int fd = harness_connect(&h);
    send_text(&h, fd, text);
    while (!h.service.dirty)
        turn(&h, fd);
    close(fd);
    settle(&h);
    h.hold = 0;
    end_turn(&h);
    settle(&h);
    assert_int_equal(open_files(), before);
    expect(&h, "GET /healthz", NULL, NULL, 200, NULL);
}

static void a_waiting_sync_whose_writes_were_lost_is_told(void **state)
{
    (void)state;
    struct buf in = BUF_INIT;
    h.service.sync_writes = 1;
    err_set(&h.failure, ERR_NO_SPACE, "disk full");
    int fd = sync_sent(1);
    uint64_t ticket = h.service.ticket;
    struct answer a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 507);
    answer_done(&a);
    api_wake(h.api, ticket);
    settle(&h);
    assert_int_equal(h.service.calls, 1);
    close(fd);

    fd = sync_sent(1); /* and one whose writes were stored goes on waiting */
    char byte;
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
    api_wake(h.api, h.service.ticket);
    a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 200);
    answer_done(&a);
    buf_done(&in);
    close(fd);
}

static void a_wake_before_the_turn_ends_waits_for_the_next_run(void **state)
{
    (void)state;
    struct buf in = BUF_INIT;
    int fd = sync_sent(1);
    uint64_t ticket = h.service.ticket;
    CLEANUP(mem_freep) char *text = post(SUBMIT_LINE, "{}");
    h.hold = 1;
    h.service.write_dirties = 1;
    int other = harness_connect(&h);
    send_text(&h, other, text);
    while (!h.service.dirty)
        turn(&h, other);
    api_wake(h.api, ticket);
    h.service.sync_writes = 1;
    int calls = h.service.calls;
    h.hold = 0;
    end_turn(&h);
    assert_int_equal(h.service.calls, calls);
    assert_int_equal(api_timeout_us(h.api), 0);
    struct answer a = read_answer(&h, fd, &in, 0);
    assert_int_equal(a.status, 200);
    assert_int_equal(h.service.resumed, 1);
    answer_done(&a);
    buf_done(&in);
    close(fd);
    close(other);
}

/* ---- the end ---- */

static void close_answers_everything_parked(void **state)
{
    (void)state;
    CLEANUP(mem_freep) char *text = post(SUBMIT_LINE, "{}");
    int waiting = sync_sent(1);
    h.hold = 1;
    h.service.write_dirties = 1;
    int held = harness_connect(&h);
    send_text(&h, held, text);
    while (!h.service.dirty)
        turn(&h, held);
    int half = harness_connect(&h);
    send_text(&h, half, "POST /v1/jobs HTTP/1.1\r\nHost: loc");
    settle(&h);
    harness_close(&h);
    int fds[] = {waiting, held};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        char bytes[4096] = {0};
        ssize_t n = recv(fds[i], bytes, sizeof bytes - 1, 0);
        assert_true(n > 0);
        assert_memory_equal(bytes, "HTTP/1.1 503 ", 13);
        assert_int_equal(recv(fds[i], bytes, sizeof bytes, 0), 0);
        close(fds[i]);
    }
    close(half);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(holds_answers_until_the_commit),
        T(says_when_nothing_was_stored),
        T(commits_many_at_once),
        T(defers_what_comes_in_while_sending),
        T(wakes_a_waiting_sync),
        T(a_wake_within_the_verb_is_not_lost),
        T(a_client_that_leaves_while_parked_is_let_go),
        T(a_client_that_leaves_while_held_is_let_go),
        T(a_waiting_sync_whose_writes_were_lost_is_told),
        T(a_wake_before_the_turn_ends_waits_for_the_next_run),
        T(close_answers_everything_parked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
