/* http_load: one thread, many keep-alive connections, each sending the same request again and
 * again.
 *
 *     http_load --address 127.0.0.1:8724 --connections 32 --seconds 5 --post /v1/jobs --body
 * job.json
 *               [--key-prefix P] [--acks FILE]
 *     http_load --address ... --connections 1 --count 1000 --get '/v1/jobs?limit=100'
 *
 * Prints one JSON object: requests answered 2xx, others, seconds, rate, latency percentiles in ms.
 * With
 * --key-prefix every POST carries its own Idempotency-Key, and with --acks each acknowledged key
 * and job id is appended to FILE as a line, written before the next request goes out. When the
 * server goes away the run ends, which is no failure: what was acknowledged until then is in FILE.
 */
#include <argp.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

static struct {
    const char *address, *path, *method, *body_file, *key_prefix, *acks;
    int connections;
    double seconds;
    long count;
} opt = {.address = "127.0.0.1:8724",
         .method = "GET",
         .path = "/v1/version",
         .connections = 1,
         .seconds = 5};

static struct argp_option options[] = {
    {"address", 'a', "HOST:PORT", 0, "IPv4 address of the server", 0},
    {"connections", 'c', "N", 0, "keep-alive connections", 0},
    {"seconds", 's', "S", 0, "how long", 0},
    {"count", 'n', "N", 0, "how many requests at the most (default: no bound)", 0},
    {"post", 'p', "PATH", 0, "POST the body to PATH", 0},
    {"get", 'g', "PATH", 0, "GET PATH", 0},
    {"body", 'b', "FILE", 0, "JSON body of the POST", 0},
    {"key-prefix", 'k', "P", 0, "send Idempotency-Key P-<n>", 0},
    {"acks", 'A', "FILE", 0, "append a line \"key id\" per acknowledgement", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case 'a': opt.address = arg; break;
    case 'c': opt.connections = atoi(arg); break;
    case 's': opt.seconds = atof(arg); break;
    case 'n': opt.count = atol(arg); break;
    case 'p':
        opt.method = "POST";
        opt.path = arg;
        break;
    case 'g':
        opt.method = "GET";
        opt.path = arg;
        break;
    case 'b': opt.body_file = arg; break;
    case 'k': opt.key_prefix = arg; break;
    case 'A': opt.acks = arg; break;
    default: return ARGP_ERR_UNKNOWN;
    }
    (void)state;
    return 0;
}

struct conn {
    int fd;
    struct buf out;
    size_t sent;
    struct buf in;
    int64_t started_us;
    long number;
    int busy;
};

static struct sockaddr_in server;
static struct buf body;
static long issued, good, bad;
static int gone;
static FILE *acks;
static float *latencies;
static size_t latency_count, latency_cap;

static void record(int64_t us)
{
    if (latency_count == latency_cap) {
        latency_cap = latency_cap ? latency_cap * 2 : 65536;
        latencies = mem_realloc(latencies, latency_cap * sizeof *latencies);
    }
    latencies[latency_count++] = (float)us / 1000.0f;
}

static int connect_to_server(void)
{
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof server) < 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void flush_out(struct conn *c)
{
    while (c->sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            gone = 1;
            return;
        }
        c->sent += (size_t)n;
    }
}

static void issue(struct conn *c)
{
    if (opt.count && issued >= opt.count)
        return;
    c->number = issued++;
    c->busy = 1;
    c->sent = 0;
    buf_clear(&c->out);
    buf_clear(&c->in);
    buf_addf(&c->out, "%s %s HTTP/1.1\r\nHost: %s\r\n", opt.method, opt.path, opt.address);
    if (opt.key_prefix)
        buf_addf(&c->out, "Idempotency-Key: %s-%ld\r\n", opt.key_prefix, c->number);
    if (strcmp(opt.method, "POST") == 0)
        buf_addf(&c->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.len);
    buf_adds(&c->out, "\r\n");
    buf_add(&c->out, body.data, body.len);
    c->started_us = clock_boottime_us();
    flush_out(c);
}

/* The whole answer is in c->in: count it and note the acknowledgement. */
static void finish(struct conn *c, size_t body_at)
{
    int status = atoi(c->in.data + strlen("HTTP/1.1 "));
    record(clock_boottime_us() - c->started_us);
    c->busy = 0;
    if (status < 200 || status > 299) {
        if (bad++ == 0)
            fprintf(stderr, "first answer that is not 2xx: %.600s\n", c->in.data);
        return;
    }
    good++;
    if (!acks)
        return;
    char *id = strstr(c->in.data + body_at, "\"id\":\"");
    fprintf(acks, "%s-%ld %.28s\n", opt.key_prefix, c->number, id ? id + 6 : "?");
    fflush(acks);
}

static void take_input(struct conn *c)
{
    for (;;) {
        buf_reserve(&c->in, 65536);
        ssize_t n = recv(c->fd, c->in.data + c->in.len, 65536, 0);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            gone = 1;
            return;
        }
        c->in.len += (size_t)n;
        c->in.data[c->in.len] = '\0';
        char *end = strstr(c->in.data, "\r\n\r\n");
        char *length = end ? strcasestr(c->in.data, "\r\ncontent-length:") : NULL;
        if (!length || length > end)
            continue;
        size_t body_at = (size_t)(end + 4 - c->in.data);
        if (c->in.len - body_at >= strtoul(length + 17, NULL, 10)) {
            finish(c, body_at);
            issue(c);
        }
    }
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double percentile(double p)
{
    return latency_count ? (double)latencies[(size_t)((double)(latency_count - 1) * p)] : 0;
}

static void run(struct conn *conns, int epfd)
{
    int64_t end = clock_boottime_us() + (int64_t)(opt.seconds * 1e6);
    struct epoll_event events[64];
    while (!gone && clock_boottime_us() < end) {
        if (opt.count && good + bad >= opt.count)
            return;
        int n = epoll_wait(epfd, events, 64, 100);
        for (int i = 0; i < n && !gone; i++) {
            struct conn *c = &conns[events[i].data.u32];
            if (c->sent < c->out.len)
                flush_out(c);
            take_input(c);
        }
    }
}

static void release(struct conn *conns, int epfd)
{
    for (int i = 0; i < opt.connections; i++) {
        close(conns[i].fd);
        buf_done(&conns[i].in);
        buf_done(&conns[i].out);
    }
    free(conns);
    free(latencies);
    buf_done(&body);
    close(epfd);
    if (acks)
        fclose(acks);
}

static int read_address(void)
{
    char host[64];
    unsigned port;
    if (sscanf(opt.address, "%63[0-9.]:%u", host, &port) != 2)
        return -1;
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)port);
    return inet_pton(AF_INET, host, &server.sin_addr) == 1 ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct err e;
    argp_parse(&(struct argp){options, parse, NULL, "Loads an HTTP server.", 0, 0, 0}, argc, argv,
               0, 0, 0);
    if (read_address() < 0 || (opt.body_file && file_read(opt.body_file, 1 << 20, &body, &e) < 0)) {
        fprintf(stderr, "http_load: bad address or body file\n");
        return 2;
    }
    acks = opt.acks ? fopen(opt.acks, "a") : NULL;
    int epfd = epoll_create1(EPOLL_CLOEXEC);
    struct conn *conns = mem_zalloc((size_t)opt.connections * sizeof *conns);
    for (int i = 0; i < opt.connections; i++) {
        struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = (uint32_t)i};
        conns[i].fd = connect_to_server();
        if (conns[i].fd < 0) {
            perror("http_load: connect");
            return 3;
        }
        epoll_ctl(epfd, EPOLL_CTL_ADD, conns[i].fd, &ev);
    }
    int64_t start = clock_boottime_us();
    for (int i = 0; i < opt.connections; i++)
        issue(&conns[i]);
    run(conns, epfd);
    double seconds = (double)(clock_boottime_us() - start) / 1e6;
    qsort(latencies, latency_count, sizeof *latencies, by_value);
    printf("{\"ok\":%ld,\"other\":%ld,\"seconds\":%.3f,\"per_second\":%.1f,\"p50_ms\":%.3f,\"p95_"
           "ms\":%.3f,"
           "\"p99_ms\":%.3f,\"server_gone\":%s}\n",
           good, bad, seconds, (double)good / seconds, percentile(0.5), percentile(0.95),
           percentile(0.99), gone ? "true" : "false");
    release(conns, epfd);
    return bad ? 1 : 0;
}
