/* comm_tcp_meet.c: how ranks on several hosts find each other.
 *
 * Rank 0 listens where the launch document says. Every other rank dials it, listens itself on the
 * address by which it reached rank 0, and tells that address in its hello. When all have come, rank
 * 0 sends everyone the table of addresses, and of every two ranks the higher one dials the lower.
 *
 * Whoever connects gets no byte before it has proved the attempt's secret. Who does not in
 * TCP_PROVE_MS is dropped; when too many wait, the oldest is. What was refused is in the log.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "trainer/comm_tcp.h"

#define BACKLOG      128
#define ACCEPTS      32 /* connections taken in one turn */
#define REFUSED_MAX  20 /* lines in the log */
#define RETRY_MIN_MS 50
#define RETRY_MAX_MS 1000
#define GRACE_US     5000000 /* rank 0 ends its wait first and says why */
#define IDLE_S       5       /* then a silent connection is probed, this often */
#define PROBES       3

/* ---- sockets ---- */

static void set_option(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value); /* a comfort: without it all works too */
}

/* No waiting for more to send, and a host that has gone is noticed within IDLE_S * (PROBES + 1).
 * Only the control lane gives up on bytes that are not taken: a rank that computes takes none of
 * its data for as long as that lasts, but its watcher always reads. */
static void tune(int fd, enum tcp_lane lane)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
    if (lane == LANE_CONTROL)
        set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * IDLE_S * (PROBES + 1));
}

static void host_of(const struct sockaddr_storage *a, socklen_t size, char out[TCP_HOST_SIZE])
{
    if (getnameinfo((const struct sockaddr *)a, size, out, TCP_HOST_SIZE, NULL, 0,
                    NI_NUMERICHOST) != 0)
        snprintf(out, TCP_HOST_SIZE, "unknown");
}

static int port_of(const struct sockaddr_storage *a)
{
    uint16_t port; /* behind the family in both */
    _Static_assert(offsetof(struct sockaddr_in, sin_port) ==
                       offsetof(struct sockaddr_in6, sin6_port),
                   "a port has two places");
    memcpy(&port, (const char *)a + offsetof(struct sockaddr_in, sin_port), sizeof port);
    return ntohs(port);
}

static void set_port(struct sockaddr_storage *a, int port)
{
    uint16_t x = htons((uint16_t)port);
    memcpy((char *)a + offsetof(struct sockaddr_in, sin_port), &x, sizeof x);
}

static int look_up(const char *host, int port, struct sockaddr_storage *ret, socklen_t *ret_size,
                   struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int r = getaddrinfo(host, NULL, &hints, &found);
    if (r != 0)
        return err_set(e, ERR_INVALID, "The address \"%s\" means nothing here: %s.", host,
                       gai_strerror(r));
    memcpy(ret, found->ai_addr, found->ai_addrlen);
    *ret_size = found->ai_addrlen;
    freeaddrinfo(found);
    set_port(ret, port);
    return 0;
}

/* Listens on that address and tells the port. */
static int start_listening(struct tcp *t, struct sockaddr_storage *a, socklen_t size, struct err *e)
{
    struct tcp_address *mine = &t->peers[t->rank].address;
    host_of(a, size, mine->host);
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_errno(e, "cannot make a socket");
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd, (struct sockaddr *)a, size) < 0 || listen(fd, BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)a, &size) < 0) {
        int r =
            err_errno(e, "Rank %d cannot listen on %s, port %d", t->rank, mine->host, port_of(a));
        close(fd);
        return r;
    }
    mine->port = (uint32_t)port_of(a);
    t->listener = fd;
    return 0;
}

/* ---- those who connect ---- */

static void refuse(struct tcp *t, const char *from, const char *why)
{
    if (t->refused < REFUSED_MAX)
        log_event(LOG_LEVEL_WARNING, "connection_refused", "rank=%d from=%s why=\"%s\"", t->rank,
                  from, why);
    else if (t->refused == REFUSED_MAX)
        log_event(LOG_LEVEL_WARNING, "connection_refused",
                  "rank=%d why=\"%d were refused; more are not named\"", t->rank, REFUSED_MAX);
    t->refused++;
}

static void drop(struct tcp *t, struct tcp_pending *p, const char *why)
{
    refuse(t, p->host, why);
    close(p->fd);
    p->fd = -1;
}

static void remove_pending(struct tcp *t, int i)
{
    t->pending_count--;
    memmove(&t->pending[i], &t->pending[i + 1],
            (size_t)(t->pending_count - i) * sizeof *t->pending);
}

void tcp_drop_late(struct tcp *t)
{
    int64_t now = clock_boottime_us();
    for (int i = t->pending_count - 1; i >= 0; i--) {
        struct tcp_pending *p = &t->pending[i];
        if (p->fd >= 0 && now > p->until_us)
            drop(t, p, "it did not prove itself in time");
        if (p->fd < 0)
            remove_pending(t, i);
    }
}

static int pending_max(const struct tcp *t)
{
    return TCP_PENDING + t->size; /* all ranks may come at once */
}

void tcp_accept(struct tcp *t)
{
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
        socklen_t size = sizeof a;
        int fd = accept4(t->listener, (struct sockaddr *)&a, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        if (t->pending_count == pending_max(t)) {
            drop(t, &t->pending[0], "too many connections wait to prove themselves");
            remove_pending(t, 0);
        }
        struct tcp_pending *p = &t->pending[t->pending_count++];
        *p = (struct tcp_pending){.fd = fd, .until_us = clock_boottime_us() + t->prove_us};
        char host[TCP_HOST_SIZE];
        host_of(&a, size, host);
        snprintf(p->host, sizeof p->host, "%s:%d", host, port_of(&a));
    }
}

static int is_same(const struct tcp_hello *a, enum comm_family family, int index,
                   enum tcp_lane lane, int from)
{
    return a->family == (uint32_t)family && a->index == (uint32_t)index &&
           a->lane == (uint32_t)lane && a->from == (uint32_t)from;
}

static struct tcp_arrival *find_arrival(const struct tcp *t, const struct tcp_hello *h)
{
    for (int i = 0; i < t->arrival_count; i++)
        if (is_same(&t->arrivals[i].hello, h->family, (int)h->index, h->lane, (int)h->from))
            return &t->arrivals[i];
    return NULL;
}

/* Under t->mutex: its rank has come already. A group that was closed may be made again. */
static int is_second(const struct tcp *t, const struct tcp_hello *h)
{
    const struct tcp_arrival *a = find_arrival(t, h);
    return a && (a->fd >= 0 || h->lane == LANE_CONTROL);
}

/* NULL, or why the hello is refused: first what it says, then whether it is to be believed. */
static const char *judge(struct tcp *t, const struct tcp_hello *h, char why[TCP_WHY_SIZE])
{
    if (strcmp(h->attempt, t->attempt) != 0 || h->epoch != t->epoch) {
        char attempt[TCP_ATTEMPT_SIZE];
        memcpy(attempt, h->attempt, sizeof attempt);
        tcp_clean(attempt);
        snprintf(why, TCP_WHY_SIZE,
                 "it says it is of attempt %s, epoch %llu; this is %s, epoch %llu", attempt,
                 (unsigned long long)h->epoch, t->attempt, (unsigned long long)t->epoch);
        return why;
    }
    if (!tcp_check_hello(t->key, h))
        return "it does not know the attempt's secret";
    if (h->to != (uint32_t)t->rank || h->size != (uint32_t)t->size || h->from >= h->size ||
        h->from <= h->to) {
        snprintf(why, TCP_WHY_SIZE, "it says it is rank %u of %u and looks for rank %u", h->from,
                 h->size, h->to);
        return why;
    }
    pthread_mutex_lock(&t->mutex);
    int second = is_second(t, h);
    pthread_mutex_unlock(&t->mutex);
    return second ? "that rank has come already" : NULL;
}

/* Under t->mutex: where the connection may wait for the main thread. */
static struct tcp_arrival *arrival_place(struct tcp *t, const struct tcp_hello *h)
{
    struct tcp_arrival *a = find_arrival(t, h);
    if (a)
        return a;
    t->arrivals = mem_realloc(t->arrivals, ((size_t)t->arrival_count + 1) * sizeof *t->arrivals);
    return &t->arrivals[t->arrival_count++];
}

/* The connection has proved itself. 0 if it is one too many. */
static int keep_arrival(struct tcp *t, const struct tcp_pending *p)
{
    const struct tcp_hello *h = &p->hello;
    pthread_mutex_lock(&t->mutex);
    int is_new = !is_second(t, h);
    if (is_new) {
        struct tcp_arrival *a = arrival_place(t, h);
        *a = (struct tcp_arrival){.hello = *h, .fd = p->fd};
        tcp_keys_of(t->key, h, &p->answer, &a->keys);
        tune(p->fd, (enum tcp_lane)h->lane);
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->mutex);
    return is_new;
}

static void check_hello(struct tcp *t, struct tcp_pending *p)
{
    char text[TCP_WHY_SIZE];
    const char *why = tcp_is_hello(&p->hello) ? judge(t, &p->hello, text)
                                              : "it does not speak the ranks' protocol";
    if (why) {
        drop(t, p, why);
        return;
    }
    tcp_say_answer(t->key, &p->hello, &p->answer);
    if (send(p->fd, &p->answer, sizeof p->answer, MSG_NOSIGNAL) != (ssize_t)sizeof p->answer)
        drop(t, p, "it went away");
}

static void check_last(struct tcp *t, struct tcp_pending *p)
{
    if (!tcp_check_last(t->key, &p->hello, &p->answer, &p->last))
        drop(t, p, "it repeats what it has heard and does not know the attempt's secret");
    else if (!keep_arrival(t, p))
        drop(t, p, "that rank has come already");
    else
        p->fd = -1;
}

void tcp_prove_on(struct tcp *t, struct tcp_pending *p)
{
    int is_first = p->got < sizeof p->bytes;
    size_t end = sizeof p->bytes + (is_first ? 0 : sizeof p->last_bytes);
    unsigned char *to = is_first ? p->bytes + p->got : p->last_bytes + (p->got - sizeof p->bytes);
    ssize_t n = recv(p->fd, to, end - p->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop(t, p, "it went away");
        return;
    }
    p->got += (size_t)n;
    if (p->got >= sizeof p->hello.magic && memcmp(p->bytes, "TYARD", 5) != 0)
        drop(t, p, "it does not speak the ranks' protocol");
    else if (p->got == end && is_first)
        check_hello(t, p);
    else if (p->got == end)
        check_last(t, p);
}

/* ---- dialling ---- */

static int stop_asked(const struct tcp *t, struct err *e)
{
    if (t->stop && *t->stop)
        return err_set(e, ERR_UNAVAILABLE, "Rank %d was asked to stop before all ranks had come.",
                       t->rank);
    return 0;
}

/* Waits for the socket, at most to the end of this try. 1 if it is ready. */
static int wait_socket(struct tcp *t, int fd, short events, int64_t until)
{
    while (clock_boottime_us() < until && !(t->stop && *t->stop) && !tcp_is_over(t))
        if (poll(&(struct pollfd){.fd = fd, .events = events}, 1, TCP_TICK_MS / 2) > 0)
            return 1;
    return 0;
}

static int receive_all(struct tcp *t, int fd, void *buf, size_t bytes, int64_t until)
{
    for (size_t at = 0; at < bytes;) {
        if (!wait_socket(t, fd, POLLIN, until))
            return ETIMEDOUT;
        ssize_t n = recv(fd, (char *)buf + at, bytes - at, MSG_DONTWAIT);
        if (n == 0)
            return ECONNABORTED;
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return errno;
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* A connected socket, or minus an errno. */
static int try_connect(struct tcp *t, const struct sockaddr_storage *a, socklen_t size,
                       int64_t until)
{
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), trouble = 0;
    socklen_t length = sizeof trouble;
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)a, size) < 0 && errno != EINPROGRESS)
        trouble = errno;
    else if (!wait_socket(t, fd, POLLOUT, until))
        trouble = ETIMEDOUT;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &trouble, &length) < 0)
        trouble = errno;
    if (trouble == 0)
        return fd;
    close(fd);
    return -trouble;
}

/* Where this rank can be reached: on the address by which it reached rank 0. */
static int listen_beside(struct tcp *t, int fd, struct err *e)
{
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof a;
    if (t->listener >= 0)
        return 0;
    if (getsockname(fd, (struct sockaddr *)&a, &size) < 0)
        return err_errno(e, "cannot tell the own address");
    set_port(&a, 0);
    int r = start_listening(t, &a, size, e);
    return r < 0 ? r : tcp_watch_start(t, e);
}

static void fill_hello(const struct tcp *t, struct tcp_hello *h, enum comm_family family, int index,
                       enum tcp_lane lane, int to)
{
    const struct tcp_address *mine = &t->peers[t->rank].address;
    *h = (struct tcp_hello){.epoch = t->epoch,
                            .family = family,
                            .index = (uint32_t)index,
                            .lane = lane,
                            .from = (uint32_t)t->rank,
                            .to = (uint32_t)to,
                            .size = (uint32_t)t->size,
                            .port = mine->port};
    memcpy(h->host, mine->host, sizeof h->host);
    memcpy(h->node, mine->node, sizeof h->node);
    memcpy(h->attempt, t->attempt, sizeof h->attempt);
    tcp_say_hello(t->key, h);
}

/* Both prove themselves on a new connection. Returns 0, an errno, or EACCES where the other side
 * does not know the secret. */
static int prove_both(struct tcp *t, int fd, const struct tcp_hello *h, int64_t until,
                      struct tcp_keys *ret)
{
    struct tcp_answer a;
    struct tcp_last l;
    if (send(fd, h, sizeof *h, MSG_NOSIGNAL) != (ssize_t)sizeof *h)
        return ECONNABORTED;
    int r = receive_all(t, fd, &a, sizeof a, until);
    if (r)
        return r;
    if (!tcp_check_answer(t->key, h, &a))
        return EACCES;
    tcp_say_last(t->key, h, &a, &l);
    if (send(fd, &l, sizeof l, MSG_NOSIGNAL) != (ssize_t)sizeof l)
        return ECONNABORTED;
    tcp_keys_of(t->key, h, &a, ret);
    return 0;
}

struct call {
    enum comm_family family;
    int index, to;
    enum tcp_lane lane;
    struct sockaddr_storage address;
    socklen_t size;
};

/* One try. 0, an errno in *ret_trouble with -1, or an error that no other try mends. */
static int dial_once(struct tcp *t, const struct call *c, int64_t until, struct tcp_link *ret,
                     int *ret_trouble, struct err *e)
{
    struct tcp_hello h;
    struct tcp_keys keys;
    int fd = try_connect(t, &c->address, c->size, until);
    *ret_trouble = fd < 0 ? -fd : 0;
    if (fd < 0)
        return 0;
    int r = listen_beside(t, fd, e);
    if (r == 0) {
        fill_hello(t, &h, c->family, c->index, c->lane, c->to);
        *ret_trouble = prove_both(t, fd, &h, until, &keys);
    }
    if (r < 0 || *ret_trouble) {
        close(fd);
        return r;
    }
    tune(fd, c->lane);
    tcp_link_init(ret, fd, c->to, &keys, 1);
    return 0;
}

static int say_unanswered(const struct tcp *t, const struct call *c, int trouble, struct err *e)
{
    char host[TCP_HOST_SIZE];
    host_of(&c->address, c->size, host);
    int port = port_of(&c->address);
    double s = (double)t->deadline_us * 1e-6;
    if (trouble == EACCES)
        return err_set(e, ERR_UNAUTHORIZED,
                       "What answers at %s, port %d, does not know the attempt's secret: it is not "
                       "rank %d.",
                       host, port, c->to);
    if (trouble == ECONNABORTED || trouble == ECONNRESET)
        return err_set(e, ERR_TIMEOUT,
                       "Rank %d at %s, port %d, takes no rank %d: for %.3g s it closed every "
                       "connection. It may be of another attempt, or have ended; its log says why.",
                       c->to, host, port, t->rank, s);
    return err_set(e, ERR_TIMEOUT, "Rank %d did not come within %.3g s: at %s, port %d: %s.", c->to,
                   s, host, port, strerror(trouble));
}

static int dial(struct tcp *t, const struct call *c, struct tcp_link *ret, struct err *e)
{
    int64_t until = clock_boottime_us() + t->deadline_us;
    int wait_ms = RETRY_MIN_MS, trouble = 0;
    for (;;) {
        int64_t now = clock_boottime_us(), try_until = now + t->prove_us;
        int r = dial_once(t, c, try_until < until ? try_until : until, ret, &trouble, e);
        if (r < 0 || (r == 0 && trouble == 0))
            return r;
        if ((r = stop_asked(t, e)) < 0)
            return r;
        if (tcp_is_over(t))
            return tcp_say_over(t, "meeting", e);
        if (trouble == EACCES || clock_boottime_us() + wait_ms * 1000 > until)
            return say_unanswered(t, c, trouble, e);
        poll(&(struct pollfd){.fd = t->over_fd, .events = POLLIN}, 1, wait_ms);
        wait_ms = 2 * wait_ms < RETRY_MAX_MS ? 2 * wait_ms : RETRY_MAX_MS;
    }
}

/* ---- links ---- */

static int address_of(const struct tcp *t, int rank, struct call *c, struct err *e)
{
    const struct tcp_address *a = &t->peers[rank].address;
    if (rank == 0)
        return look_up(t->master_host, t->master_port, &c->address, &c->size, e);
    return look_up(a->host, (int)a->port, &c->address, &c->size, e);
}

/* The connection of a higher rank, if it has come; under t->mutex. */
static int take_arrival(struct tcp *t, const struct call *c, struct tcp_link *ret,
                        struct tcp_hello *ret_hello)
{
    for (int i = 0; i < t->arrival_count; i++) {
        struct tcp_arrival *a = &t->arrivals[i];
        if (a->fd < 0 || !is_same(&a->hello, c->family, c->index, c->lane, c->to))
            continue;
        tcp_link_init(ret, a->fd, c->to, &a->keys, 0);
        if (ret_hello)
            *ret_hello = a->hello;
        a->fd = -1;
        return 1;
    }
    return 0;
}

static int wait_changed(struct tcp *t)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TCP_TICK_MS / 2 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_cond_timedwait(&t->changed, &t->mutex, &until);
}

static int wait_arrival(struct tcp *t, const struct call *c, struct tcp_link *ret,
                        struct tcp_hello *ret_hello, struct err *e)
{
    int64_t until = clock_boottime_us() + t->deadline_us;
    for (;;) {
        pthread_mutex_lock(&t->mutex);
        int taken = take_arrival(t, c, ret, ret_hello);
        if (!taken)
            wait_changed(t);
        pthread_mutex_unlock(&t->mutex);
        int r = taken ? 0 : stop_asked(t, e);
        if (taken || r < 0)
            return r;
        if (tcp_is_over(t))
            return tcp_say_over(t, "meeting", e);
        if (clock_boottime_us() > until)
            return err_set(e, ERR_TIMEOUT, "Rank %d did not come within %.3g s.", c->to,
                           (double)t->deadline_us * 1e-6);
    }
}

int tcp_connect(struct tcp *t, enum comm_family family, int index, enum tcp_lane lane,
                const int *members, int size, struct tcp_link *links, struct err *e)
{
    for (int i = 0; i < size; i++) {
        struct call c = {.family = family, .index = index, .lane = lane, .to = members[i]};
        if (members[i] == t->rank || links[i].fd >= 0)
            continue;
        int r = members[i] > t->rank ? 0 : address_of(t, members[i], &c, e);
        if (r == 0)
            r = members[i] > t->rank ? wait_arrival(t, &c, &links[i], NULL, e)
                                     : dial(t, &c, &links[i], e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- the world ---- */

/* From here on the watcher listens to it. */
static void set_control(struct tcp *t, const struct tcp_link *l)
{
    struct tcp_peer *p = &t->peers[l->peer];
    size_t table = (size_t)t->size * sizeof(struct tcp_address);
    p->payload = mem_alloc(table > sizeof(struct tcp_ending) ? table : sizeof(struct tcp_ending));
    pthread_mutex_lock(&t->control);
    pthread_mutex_lock(&t->mutex);
    p->control = *l;
    pthread_mutex_unlock(&t->mutex);
    pthread_mutex_unlock(&t->control);
    tcp_wake(t);
}

static int control_of(struct tcp *t, int rank, struct err *e)
{
    struct call c = {.family = COMM_WORLD, .lane = LANE_CONTROL, .to = rank};
    struct tcp_link l = {.fd = -1};
    struct tcp_hello h = {.size = 0};
    int r;
    if (rank < t->rank) {
        r = address_of(t, rank, &c, e);
        if (r == 0)
            r = dial(t, &c, &l, e);
    } else {
        r = wait_arrival(t, &c, &l, &h, e);
    }
    if (r < 0)
        return r;
    if (t->rank == 0) { /* where it can be reached is known from itself */
        struct tcp_address *a = &t->peers[rank].address;
        memcpy(a->host, h.host, sizeof a->host);
        memcpy(a->node, h.node, sizeof a->node);
        a->port = h.port;
    }
    set_control(t, &l);
    return 0;
}

static int start_at_master(struct tcp *t, struct err *e)
{
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    socklen_t size = 0;
    int r = look_up(t->master_host, t->master_port, &a, &size, e);
    if (r == 0)
        r = start_listening(t, &a, size, e);
    return r < 0 ? r : tcp_watch_start(t, e);
}

static void send_table(struct tcp *t)
{
    CLEANUP(mem_freep)
    struct tcp_address *table = mem_zalloc((size_t)t->size * sizeof *table);
    for (int r = 0; r < t->size; r++)
        table[r] = t->peers[r].address;
    tcp_tell_all(t, TCP_TABLE, table, (size_t)t->size * sizeof *table);
}

static int wait_table(struct tcp *t, struct err *e)
{
    int64_t until = clock_boottime_us() + t->deadline_us + GRACE_US;
    for (;;) {
        pthread_mutex_lock(&t->mutex);
        int has = t->has_table;
        if (!has)
            wait_changed(t);
        pthread_mutex_unlock(&t->mutex);
        int r = has ? 0 : stop_asked(t, e);
        if (has || r < 0)
            return r;
        if (tcp_is_over(t))
            return tcp_say_over(t, "meeting", e);
        if (clock_boottime_us() > until)
            return err_set(e, ERR_TIMEOUT, "Rank 0 did not say within %.3g s that all had come.",
                           (double)(t->deadline_us + GRACE_US) * 1e-6);
    }
}

/* A connection a pair, lane and family, and as many waiting. */
static void raise_descriptors(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

int tcp_meet(struct tcp *t, struct err *e)
{
    raise_descriptors();
    int r = t->rank == 0 ? start_at_master(t, e) : control_of(t, 0, e);
    if (r == 0 && t->rank > 0)
        r = wait_table(t, e);
    for (int i = 1; i < t->size && r == 0; i++)
        if (i != t->rank)
            r = control_of(t, i, e);
    if (r == 0 && t->rank == 0)
        send_table(t);
    return r;
}
