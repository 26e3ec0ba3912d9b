/* api_harness.h: a real API on a loopback socket, its loop, and raw clients, all in one thread.
 *
 * Nothing here sleeps: the loop polls the API's descriptor and the client's together, and gives up,
 * failing the test, after GIVE_UP_MS without an event.
 */
#ifndef TRAINYARD_TESTS_API_HARNESS_H
#define TRAINYARD_TESTS_API_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/api.h"
#include "base/buf.h"
#include "base/mem.h"
#include "tests/unit/fake_service.h"

#define GIVE_UP_MS 20000
#define UNUSED     __attribute__((unused))

struct harness {
    struct service service;
    struct api *api;
    int hold;           /* turns do not end: nothing is committed */
    struct err failure; /* code set: the next turn's commit fails with it */
    int turns;
};

UNUSED static void harness_open(struct harness *h, struct api_options *o)
{
    struct err e = {0};
    struct api_options plain = {.listen = "127.0.0.1:0"};
    if (!o)
        o = &plain;
    if (!o->listen)
        o->listen = "127.0.0.1:0";
    memset(h, 0, sizeof *h);
    if (api_open(o, &h->service, &h->api, &e) < 0)
        fail_msg("api_open: %s", e.text);
}

UNUSED static void harness_close(struct harness *h)
{
    api_close(h->api);
    h->api = NULL;
}

UNUSED static int harness_connect_to(const char *address)
{
    const char *port = strrchr(address, ':') + 1;
    int fd = -1;
    if (address[0] == '[') {
        struct sockaddr_in6 a = {.sin6_family = AF_INET6,
                                 .sin6_addr = in6addr_loopback,
                                 .sin6_port = htons((uint16_t)atoi(port))};
        fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        return fd;
    }
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)atoi(port))};
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

UNUSED static int harness_connect(struct harness *h)
{
    return harness_connect_to(api_address(h->api));
}

UNUSED static void end_turn(struct harness *h)
{
    if (!h->service.dirty || h->hold)
        return;
    struct err failure = h->failure;
    h->failure = (struct err){0};
    h->service.dirty = 0;
    h->turns++;
    api_turn_done(h->api, failure.code ? &failure : NULL);
    assert_int_equal(h->service.dirty, 0); /* no verb runs while answers are being sent */
}

/* One round of the loop; waits until the API or the client's socket has something. */
UNUSED static void turn(struct harness *h, int fd)
{
    struct pollfd p[2] = {{.fd = api_epoll_fd(h->api), .events = POLLIN},
                          {.fd = fd, .events = POLLIN}};
    int64_t t = api_timeout_us(h->api);
    int ms = t < 0 || t > GIVE_UP_MS * 1000LL ? GIVE_UP_MS : (int)((t + 999) / 1000);
    int n = poll(p, 2, ms);
    if (n == 0 && ms == GIVE_UP_MS)
        fail_msg("nothing happened for %d ms", GIVE_UP_MS);
    api_run(h->api);
    end_turn(h);
}

/* Rounds until the API has nothing to do at once. */
UNUSED static void settle(struct harness *h)
{
    for (int i = 0; i < 1000; i++) {
        struct pollfd p = {.fd = api_epoll_fd(h->api), .events = POLLIN};
        if (poll(&p, 1, 0) == 0 && api_timeout_us(h->api) != 0)
            return;
        api_run(h->api);
        end_turn(h);
    }
    fail_msg("the API is never at rest");
}

UNUSED static void send_bytes(struct harness *h, int fd, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && (errno == EPIPE || errno == ECONNRESET))
            return; /* the server has had enough */
        if (k < 0 && errno != EAGAIN)
            fail_msg("send: %s", strerror(errno));
        if (k < 0) {
            api_run(h->api);
            end_turn(h);
            continue;
        }
        p += k;
        n -= (size_t)k;
    }
}

UNUSED static void send_text(struct harness *h, int fd, const char *text)
{
    send_bytes(h, fd, text, strlen(text));
}

struct answer {
    int status; /* 0: the connection ended without an answer */
    char *head; /* status line and headers */
    char *body;
    size_t body_len;
    json_t *json; /* of the body, or NULL */
};

UNUSED static void answer_done(struct answer *a)
{
    free(a->head);
    free(a->body);
    json_decref(a->json);
    *a = (struct answer){0};
}

/* A header's value, in a static buffer; NULL if there is none. */
UNUSED static const char *header_of(const struct answer *a, const char *name)
{
    static char value[1024];
    size_t n = strlen(name);
    for (const char *p = strstr(a->head, "\r\n"); p && p[2]; p = strstr(p + 2, "\r\n")) {
        if (strncasecmp(p + 2, name, n) || p[2 + n] != ':')
            continue;
        const char *v = p + 3 + n + strspn(p + 3 + n, " ");
        snprintf(value, sizeof value, "%.*s", (int)strcspn(v, "\r\n"), v);
        return value;
    }
    return NULL;
}

/* 1 when more may come, 0 at the end of the connection. */
UNUSED static int read_some(struct harness *h, int fd, struct buf *in)
{
    char bytes[65536];
    ssize_t k = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (k > 0)
        buf_add(in, bytes, (size_t)k);
    if (k == 0 || (k < 0 && errno == ECONNRESET))
        return 0;
    if (k < 0)
        turn(h, fd);
    return 1;
}

/* Reads one answer; what follows it stays in `in`. `no_body` for HEAD. */
UNUSED static struct answer read_answer(struct harness *h, int fd, struct buf *in, int no_body)
{
    struct answer a = {0};
    char *end = NULL;
    while (!(end = in->len ? strstr(in->data, "\r\n\r\n") : NULL))
        if (!read_some(h, fd, in))
            return a;
    a.head = mem_strndup(in->data, (size_t)(end + 2 - in->data));
    a.status = atoi(a.head + 9);
    buf_drop(in, (size_t)(end + 4 - in->data));
    const char *length = header_of(&a, "Content-Length");
    a.body_len = length && !no_body && a.status != 304 ? (size_t)atoll(length) : 0;
    while (in->len < a.body_len)
        if (!read_some(h, fd, in))
            fail_msg("the connection ended after %zu of %zu bytes", in->len, a.body_len);
    a.body = mem_strndup(in->len ? in->data : "", 0);
    a.body = mem_realloc(a.body, a.body_len + 1);
    memcpy(a.body, in->len ? in->data : "", a.body_len);
    a.body[a.body_len] = '\0';
    buf_drop(in, a.body_len);
    a.json = json_loadb(a.body, a.body_len, 0, NULL);
    return a;
}

/* One request on a connection of its own, as raw bytes. */
UNUSED static struct answer ask_raw(struct harness *h, const void *bytes, size_t n)
{
    struct buf in = BUF_INIT;
    int fd = harness_connect(h);
    send_bytes(h, fd, bytes, n);
    struct answer a = read_answer(h, fd, &in, n > 4 && memcmp(bytes, "HEAD", 4) == 0);
    buf_done(&in);
    close(fd);
    settle(h);
    return a;
}

/* "GET /x" with further header lines (each ending in CRLF) and a body, both may be NULL. */
UNUSED static struct answer ask(struct harness *h, const char *line, const char *headers,
                                const char *body)
{
    struct buf b = BUF_INIT;
    buf_addf(&b, "%s HTTP/1.1\r\nHost: localhost\r\n%s", line, headers ? headers : "");
    if (body)
        buf_addf(&b, "Content-Length: %zu\r\n", strlen(body));
    buf_addf(&b, "\r\n%s", body ? body : "");
    struct answer a = ask_raw(h, b.data, b.len);
    buf_done(&b);
    return a;
}

#define JSON_HEADER "Content-Type: application/json\r\n"

UNUSED static const char *code_of(const struct answer *a)
{
    const char *code = json_string_value(json_object_get(a->json, "code"));
    return code ? code : "(none)";
}

/* Asks, and expects this status and, unless NULL, this problem code. */
UNUSED static void expect(struct harness *h, const char *line, const char *headers,
                          const char *body, int status, const char *code)
{
    struct answer a = ask(h, line, headers, body);
    if (a.status != status || (code && strcmp(code_of(&a), code)))
        fail_msg("%s: %d %s instead of %d %s\n%s\n%s", line, a.status, code_of(&a), status,
                 code ? code : "", a.head ? a.head : "", a.body ? a.body : "");
    answer_done(&a);
}

#endif
