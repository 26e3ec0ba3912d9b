/* tcp_proxy.h: a bad network between two programs: what goes through is late, altered, held back,
 * or cut off. Included by the program tcp_proxy and by unit tests. */
#ifndef TRAINYARD_TESTS_TCP_PROXY_H
#define TRAINYARD_TESTS_TCP_PROXY_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PROXY_PAIRS 64
#define PROXY_BLOCK 65536
#define PROXY_HELD  (4 << 20) /* bytes of a direction, at most */

struct proxy_options {
    const char *listen_host, *host;
    int listen_port, port;
    int delay_ms;        /* of every byte */
    int64_t flip_at;     /* this byte, of all that clients have sent, is altered; -1: none */
    int64_t cut_after;   /* so many bytes of clients, then all connections are reset; -1: never */
    int64_t stall_after; /* so many, then nothing passes in either direction; -1: never */
};

struct proxy_chunk {
    struct proxy_chunk *next;
    int64_t due_us;
    size_t bytes, sent;
    char data[];
};

/* From one socket to another. */
struct proxy_way {
    int from, to;
    int is_client; /* bytes of the side that connected */
    int has_ended; /* nothing more comes */
    size_t held;
    struct proxy_chunk *first, *last;
};

struct proxy {
    struct proxy_options o;
    int listener;
    struct proxy_way ways[2 * PROXY_PAIRS];
    int way_count;
    int64_t client_bytes;
};

static inline int64_t proxy_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static inline struct sockaddr_in proxy_address(const char *host, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) {
        fprintf(stderr, "tcp_proxy: %s is no IPv4 address\n", host);
        exit(2);
    }
    return a;
}

static inline int proxy_open(struct proxy *p, const struct proxy_options *o)
{
    struct sockaddr_in a = proxy_address(o->listen_host, o->listen_port);
    int one = 1;
    memset(p, 0, sizeof *p);
    p->o = *o;
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(p->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    return bind(p->listener, (struct sockaddr *)&a, sizeof a) < 0 ? -1 : listen(p->listener, 64);
}

static inline void proxy_no_delay(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

static inline void proxy_accept(struct proxy *p)
{
    struct sockaddr_in a = proxy_address(p->o.host, p->o.port);
    int client = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0)
        return;
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->way_count == 2 * PROXY_PAIRS || connect(server, (struct sockaddr *)&a, sizeof a) < 0) {
        close(client);
        close(server);
        return;
    }
    proxy_no_delay(client);
    proxy_no_delay(server);
    p->ways[p->way_count++] = (struct proxy_way){.from = client, .to = server, .is_client = 1};
    p->ways[p->way_count++] = (struct proxy_way){.from = server, .to = client};
}

static inline void proxy_reset_all(struct proxy *p)
{
    struct linger now = {.l_onoff = 1};
    for (int i = 0; i < p->way_count; i += 2) {
        setsockopt(p->ways[i].from, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        setsockopt(p->ways[i].to, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(p->ways[i].from);
        close(p->ways[i].to);
    }
    p->way_count = 0;
    close(p->listener);
    p->listener = -1;
}

static inline int proxy_is_stalled(const struct proxy *p)
{
    return p->o.stall_after >= 0 && p->client_bytes >= p->o.stall_after;
}

static inline void proxy_read(struct proxy *p, struct proxy_way *w)
{
    struct proxy_chunk *c = malloc(sizeof *c + PROXY_BLOCK);
    ssize_t n = c ? recv(w->from, c->data, PROXY_BLOCK, MSG_DONTWAIT) : -1;
    if (n <= 0) {
        w->has_ended = n == 0 || (errno != EAGAIN && errno != EINTR);
        if (w->has_ended && !w->first)
            shutdown(w->to, SHUT_WR);
        free(c);
        return;
    }
    int64_t at = p->o.flip_at - p->client_bytes;
    if (w->is_client && p->o.flip_at >= 0 && at >= 0 && at < n)
        c->data[at] ^= 0x10;
    if (w->is_client)
        p->client_bytes += n;
    c->next = NULL;
    c->due_us = proxy_now_us() + 1000LL * p->o.delay_ms;
    c->bytes = (size_t)n;
    c->sent = 0;
    if (w->first)
        w->last->next = c;
    else
        w->first = c;
    w->last = c;
    w->held += (size_t)n;
}

static inline void proxy_write(struct proxy_way *w)
{
    while (w->first && w->first->due_us <= proxy_now_us()) {
        struct proxy_chunk *c = w->first;
        ssize_t n = send(w->to, c->data + c->sent, c->bytes - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            n = (ssize_t)(c->bytes - c->sent); /* nobody is there to take it */
        c->sent += (size_t)n;
        w->held -= (size_t)n;
        if (c->sent == c->bytes) {
            w->first = c->next;
            free(c);
        }
    }
    if (w->has_ended && !w->first)
        shutdown(w->to, SHUT_WR);
}

/* One look at everything. */
static inline void proxy_turn(struct proxy *p)
{
    struct pollfd f[1 + 2 * PROXY_PAIRS];
    int is_stalled = proxy_is_stalled(p), ways = p->way_count;
    f[0] = (struct pollfd){.fd = p->listener, .events = POLLIN};
    for (int i = 0; i < ways; i++) {
        struct proxy_way *w = &p->ways[i];
        int reads = !is_stalled && !w->has_ended && w->held < PROXY_HELD;
        f[1 + i] = (struct pollfd){.fd = reads ? w->from : -1, .events = POLLIN};
    }
    poll(f, (nfds_t)ways + 1, 1);
    for (int i = 0; i < ways && !is_stalled; i++) {
        if (f[1 + i].revents)
            proxy_read(p, &p->ways[i]);
        proxy_write(&p->ways[i]);
    }
    if (f[0].revents && !is_stalled)
        proxy_accept(p);
    if (p->o.cut_after >= 0 && p->client_bytes >= p->o.cut_after && p->listener >= 0)
        proxy_reset_all(p);
}

#endif
