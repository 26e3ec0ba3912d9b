/* comm_tcp_watch.c: the thread that hears and speaks while its rank computes.
 *
 * On the control lane, which every two ranks share, go: signs of life (only while this rank makes
 * calls, counts progress or uses its processor: one that is stopped or stuck gives none), goodbyes,
 * and the end of the gang with its reason. A control connection that ends without a goodbye is a
 * dead rank; whoever sees it tells all others before it leaves, so that everyone names the same
 * one.
 */
#include "trainer/comm_tcp.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define BEAT_MS     1000
#define TELL_MS     1000 /* for a control frame to go out */
#define LINGER_MS   2000 /* for the rank that gave up to be the first to end */
#define STACK       (256 * 1024)
#define CONTROL_MAX sizeof(struct tcp_ending)

/* ---- names ---- */

void tcp_clean(char *text)
{
    for (char *p = text; *p; p++)
        if (*p < ' ' || *p > '~' || *p == '"')
            *p = '?';
}

const char *tcp_name(const struct tcp *t, int rank, char out[TCP_NAME_SIZE])
{
    const struct tcp_address *a = &t->peers[rank].address;
    snprintf(out, TCP_NAME_SIZE, "rank %d (node %s, %s)", rank, a->node[0] ? a->node : "unknown",
             a->host[0] ? a->host : "unknown");
    tcp_clean(out);
    return out;
}

const char *tcp_where(const struct tcp *t, const char *what, char out[TCP_WHERE_SIZE])
{
    int64_t step = __atomic_load_n(&t->step, __ATOMIC_RELAXED);
    if (step > 0)
        snprintf(out, TCP_WHERE_SIZE, "in %s at step %lld", what, (long long)step);
    else
        snprintf(out, TCP_WHERE_SIZE, "in %s", what);
    return out;
}

/* ---- the end ---- */

static void ring(int fd)
{
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n; /* it can only be full of rings already */
}

void tcp_wake(struct tcp *t)
{
    ring(t->wake_fd);
}

void tcp_news(struct tcp *t)
{
    __atomic_store_n(&t->news_us, clock_boottime_us(), __ATOMIC_RELAXED);
}

int tcp_is_over(struct tcp *t)
{
    return __atomic_load_n(&t->ending.over, __ATOMIC_ACQUIRE) != OVER_NOT;
}

/* The first ending counts. Returns 1 if this was it. */
static int take_ending(struct tcp *t, const struct tcp_ending *x)
{
    pthread_mutex_lock(&t->mutex);
    int is_first = t->ending.over == OVER_NOT;
    if (is_first) {
        t->ending.rank = x->rank;
        memcpy(t->ending.why, x->why, sizeof x->why);
        __atomic_store_n(&t->ending.over, x->over, __ATOMIC_RELEASE);
        ring(t->over_fd);
        pthread_cond_broadcast(&t->changed);
        for (int i = 0; i < TCP_CHANNELS; i++)
            pthread_cond_broadcast(&t->channels[i].room);
    }
    pthread_mutex_unlock(&t->mutex);
    return is_first;
}

void tcp_set_over(struct tcp *t, enum tcp_over over, int rank, const char *why)
{
    struct tcp_ending x = {.over = over, .rank = (uint32_t)rank};
    snprintf(x.why, sizeof x.why, "%s", why);
    if (take_ending(t, &x))
        tcp_tell_all(t, TCP_OVER, &x, sizeof x);
}

/* So that the reason of the rank that gave up is the first that its node sees. */
static void wait_until_closed(struct tcp *t, int rank)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LINGER_MS / 1000;
    pthread_mutex_lock(&t->mutex);
    while (!t->peers[rank].is_closed && t->peers[rank].control.fd >= 0)
        if (pthread_cond_timedwait(&t->changed, &t->mutex, &until) != 0)
            break;
    pthread_mutex_unlock(&t->mutex);
}

int tcp_say_over(struct tcp *t, const char *what, struct err *e)
{
    char name[TCP_NAME_SIZE], where[TCP_WHERE_SIZE];
    int rank = (int)t->ending.rank;
    tcp_name(t, rank, name);
    name[0] = 'R';
    switch ((enum tcp_over)t->ending.over) {
    case OVER_GAVE_UP:
        if (rank == t->rank) /* another thread of this rank has said so */
            return err_set(e, ERR_PEER, "Rank %d gave up.", rank);
        wait_until_closed(t, rank);
        return err_set(e, ERR_PEER, "%s gave up: %s", name, t->ending.why);
    case OVER_UNREACHABLE:
        return err_set(e, ERR_PEER, "%s can no longer be reached; ranks waited %s.", name,
                       tcp_where(t, what, where));
    default:
        return err_set(e, ERR_PEER, "%s died, or was cut off, while ranks waited %s.", name,
                       tcp_where(t, what, where));
    }
}

/* ---- telling ---- */

/* Writes a small frame; a peer that takes nothing for TELL_MS is given up on. */
static void send_control(struct tcp *t, int rank, const struct tcp_head *h, const void *payload)
{
    struct tcp_peer *p = &t->peers[rank];
    struct tcp_move m;
    int64_t until = clock_boottime_us() + TELL_MS * 1000;
    tcp_move_send(&m, &p->control, h, payload);
    while (!m.is_done && clock_boottime_us() < until) {
        int some = 0;
        if (tcp_push(&m, &some) != 0)
            break; /* its end is heard on the other half */
        if (some || m.is_done)
            continue;
        if (m.at == 0 && h->what == TCP_BEAT)
            break; /* it has beats enough that it has not read */
        poll(&(struct pollfd){.fd = p->control.fd, .events = POLLOUT}, 1, 50);
    }
    if (m.at == 0)
        p->control.sent--; /* nothing went out: the number is free */
    else if (!m.is_done)
        shutdown(p->control.fd, SHUT_WR); /* half a frame: nothing can follow */
}

void tcp_tell(struct tcp *t, int rank, enum tcp_what what, const void *payload, size_t bytes)
{
    struct tcp_head h = {.what = what, .bytes = bytes};
    if (what == TCP_BEAT)
        h.call.number = __atomic_load_n(&t->progress, __ATOMIC_RELAXED);
    pthread_mutex_lock(&t->control);
    if (rank != t->rank && t->peers[rank].control.fd >= 0 &&
        !__atomic_load_n(&t->peers[rank].is_closed, __ATOMIC_RELAXED))
        send_control(t, rank, &h, payload);
    pthread_mutex_unlock(&t->control);
}

void tcp_tell_all(struct tcp *t, enum tcp_what what, const void *payload, size_t bytes)
{
    for (int r = 0; r < t->size; r++)
        tcp_tell(t, r, what, payload, bytes);
}

static int64_t cpu_us(void)
{
    struct timespec c;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &c);
    return c.tv_sec * 1000000LL + c.tv_nsec / 1000;
}

static int64_t beat_every_us(const struct tcp *t)
{
    int64_t often = t->deadline_us / 6;
    return often < BEAT_MS * 1000 ? often : BEAT_MS * 1000;
}

/* A sign of life, where there is life: a call, progress, or a fiftieth of a processor. */
static void beat(struct tcp *t)
{
    int64_t now = clock_boottime_us(), cpu = cpu_us();
    uint32_t progress = __atomic_load_n(&t->progress, __ATOMIC_RELAXED);
    if (now - t->beat_us < beat_every_us(t))
        return;
    int lives = progress != t->beat_progress || (cpu - t->beat_cpu_us) * 50 > now - t->beat_us;
    t->beat_us = now;
    t->beat_cpu_us = cpu;
    t->beat_progress = progress;
    if (lives)
        tcp_tell_all(t, TCP_BEAT, NULL, 0);
}

/* ---- hearing ---- */

static void set_closed(struct tcp *t, int rank)
{
    pthread_mutex_lock(&t->mutex);
    __atomic_store_n(&t->peers[rank].is_closed, 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
}

/* The control connection has ended. */
static void lose(struct tcp *t, int rank, int trouble)
{
    pthread_mutex_lock(&t->mutex);
    int left = t->peers[rank].has_left;
    pthread_mutex_unlock(&t->mutex);
    set_closed(t, rank);
    if (!left)
        tcp_set_over(t,
                     trouble == ETIMEDOUT || trouble == EHOSTUNREACH ? OVER_UNREACHABLE : OVER_DIED,
                     rank, "");
}

static void hear_ending(struct tcp *t, const struct tcp_peer *p)
{
    struct tcp_ending x;
    if (p->head.bytes != sizeof x)
        return;
    memcpy(&x, p->payload, sizeof x);
    if (x.over <= OVER_NOT || x.over > OVER_GAVE_UP || x.rank >= (uint32_t)t->size)
        return;
    x.why[sizeof x.why - 1] = '\0';
    tcp_clean(x.why);
    if (take_ending(t, &x)) /* passed on, so that nobody sees this rank leave before it knows why */
        tcp_tell_all(t, TCP_OVER, &x, sizeof x);
}

static void hear_table(struct tcp *t, const struct tcp_peer *p)
{
    if (t->has_table || p->head.bytes != (size_t)t->size * sizeof(struct tcp_address))
        return;
    pthread_mutex_lock(&t->mutex);
    for (int r = 0; r < t->size; r++) {
        struct tcp_address *a = &t->peers[r].address;
        if (r == t->rank)
            continue;
        memcpy(a, p->payload + (size_t)r * sizeof *a, sizeof *a);
        a->host[sizeof a->host - 1] = a->node[sizeof a->node - 1] = '\0';
    }
    t->has_table = 1;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mutex);
}

static void hear(struct tcp *t, int rank)
{
    struct tcp_peer *p = &t->peers[rank];
    tcp_news(t);
    switch (p->head.what) {
    case TCP_OVER: hear_ending(t, p); break;
    case TCP_TABLE:
        if (rank == 0)
            hear_table(t, p);
        break;
    case TCP_BYE:
        pthread_mutex_lock(&t->mutex);
        p->has_left = 1;
        pthread_mutex_unlock(&t->mutex);
        break;
    case TCP_BEAT: __atomic_store_n(&p->progress, p->head.call.number, __ATOMIC_RELAXED); break;
    default: break;
    }
}

static size_t payload_max(const struct tcp *t)
{
    size_t table = (size_t)t->size * sizeof(struct tcp_address);
    return table > CONTROL_MAX ? table : CONTROL_MAX;
}

/* More of the frame that is coming in. Returns 0, or why the connection is of no more use. */
static int take_in(struct tcp *t, struct tcp_peer *p, const char *bytes, size_t n)
{
    while (n > 0) {
        size_t want, have = p->got;
        char *to;
        if (have == 0)
            tcp_open_begin(&p->seal, &p->control);
        if (have < TCP_FRAME_HEAD) {
            to = (char *)p->seal.head + have;
            want = TCP_FRAME_HEAD - have;
        } else if (have < TCP_FRAME_HEAD + p->head.bytes) {
            to = p->payload + (have - TCP_FRAME_HEAD);
            want = TCP_FRAME_HEAD + (size_t)p->head.bytes - have;
        } else {
            to = (char *)p->seal.tag + (have - TCP_FRAME_HEAD - (size_t)p->head.bytes);
            want = tcp_frame_bytes(p->head.bytes) - have;
        }
        size_t some = n < want ? n : want;
        memcpy(to, bytes, some);
        p->got += some;
        bytes += some;
        n -= some;
        if (p->got == TCP_FRAME_HEAD &&
            (!tcp_open_head(&p->seal, &p->head) || p->head.bytes > payload_max(t)))
            return TCP_ALTERED;
        if (p->got < TCP_FRAME_HEAD || p->got < tcp_frame_bytes(p->head.bytes))
            continue;
        tcp_seal_feed(&p->seal, p->payload, (size_t)p->head.bytes);
        if (p->head.bytes > 0 && !tcp_open_end(&p->seal))
            return TCP_ALTERED;
        p->got = 0;
        hear(t, (int)(p - t->peers));
    }
    return 0;
}

static void listen_to(struct tcp *t, int rank)
{
    struct tcp_peer *p = &t->peers[rank];
    char bytes[4096];
    for (;;) {
        ssize_t n = recv(p->control.fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        int trouble = n < 0 ? errno : n == 0 ? TCP_EOF : take_in(t, p, bytes, (size_t)n);
        if (trouble == TCP_ALTERED) {
            char why[TCP_WHY_SIZE], name[TCP_NAME_SIZE];
            snprintf(why, sizeof why, "What %s sent to rank %d was changed on its way.",
                     tcp_name(t, rank, name), t->rank);
            set_closed(t, rank);
            tcp_set_over(t, OVER_GAVE_UP, t->rank, why);
            return;
        }
        if (trouble) {
            lose(t, rank, trouble);
            return;
        }
    }
}

/* ---- messages that wait ---- */

static void drop_oldest(struct tcp_channel *h)
{
    struct tcp_queued q = h->queue[0];
    h->queue[0] = h->queue[1];
    h->queue[1] = (struct tcp_queued){.wire = q.wire}; /* its room is used again */
    h->queued--;
    pthread_cond_broadcast(&h->room);
}
_Static_assert(TCP_QUEUE == 2, "the queue moves up by one");

void tcp_drain(struct tcp *t, struct tcp_channel *h)
{
    while (h->queued > 0) {
        struct tcp_queued *q = &h->queue[0];
        ssize_t n =
            send(h->link.fd, q->wire + q->sent, q->bytes - q->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0) { /* the peer's end is heard on the control lane */
            h->is_broken = 1;
            h->queued = 0;
            pthread_cond_broadcast(&h->room);
            return;
        }
        tcp_news(t);
        q->sent += (size_t)n;
        if (q->sent == q->bytes)
            drop_oldest(h);
    }
}

/* ---- the thread ---- */

struct round {
    struct pollfd *polls;
    int count, room;
};

static int add_poll(struct round *r, int fd, short events)
{
    if (r->count == r->room) {
        r->room = r->room ? 2 * r->room : 64;
        r->polls = mem_realloc(r->polls, (size_t)r->room * sizeof *r->polls);
    }
    r->polls[r->count] = (struct pollfd){.fd = fd, .events = events};
    return r->count++;
}

/* Under t->mutex: who may have something to say, or room. */
static void gather(struct tcp *t, struct round *r)
{
    r->count = 0;
    add_poll(r, t->wake_fd, POLLIN);
    add_poll(r, t->listener, POLLIN);
    for (int i = 0; i < t->size; i++) {
        struct tcp_peer *p = &t->peers[i];
        add_poll(r, p->is_closed ? -1 : p->control.fd, POLLIN);
    }
    for (int i = 0; i < TCP_CHANNELS; i++) {
        struct tcp_channel *h = &t->channels[i];
        pthread_mutex_lock(&h->mutex);
        add_poll(r, h->queued ? h->link.fd : -1, POLLOUT);
        pthread_mutex_unlock(&h->mutex);
    }
    for (int i = 0; i < t->pending_count; i++)
        add_poll(r, t->pending[i].fd, POLLIN);
}

static void serve(struct tcp *t, const struct round *r)
{
    const struct pollfd *p = r->polls;
    uint64_t rings;
    if (p[0].revents && read(t->wake_fd, &rings, sizeof rings) < 0)
        (void)rings; /* another look does no harm */
    int at = 2;
    for (int i = 0; i < t->size; i++, at++)
        if (p[at].revents)
            listen_to(t, i);
    for (int i = 0; i < TCP_CHANNELS; i++, at++) {
        struct tcp_channel *h = &t->channels[i];
        pthread_mutex_lock(&h->mutex);
        if (p[at].revents)
            tcp_drain(t, h);
        pthread_mutex_unlock(&h->mutex);
    }
    int pending = t->pending_count;
    for (int i = 0; i < pending; i++, at++)
        if (p[at].revents)
            tcp_prove_on(t, &t->pending[i]);
    tcp_drop_late(t);
    if (p[1].revents)
        tcp_accept(t);
}

static void *watch(void *context)
{
    struct tcp *t = context;
    struct round r = {0};
    int64_t every_ms = beat_every_us(t) / 1000;
    while (!__atomic_load_n(&t->is_closing, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&t->mutex);
        gather(t, &r);
        pthread_mutex_unlock(&t->mutex);
        poll(r.polls, (nfds_t)r.count, every_ms > 10 ? (int)every_ms : 10);
        serve(t, &r);
        beat(t);
    }
    free(r.polls);
    return NULL;
}

int tcp_watch_start(struct tcp *t, struct err *e)
{
    pthread_attr_t attr;
    sigset_t all, before;
    t->beat_us = clock_boottime_us();
    t->beat_cpu_us = cpu_us();
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&t->watcher, &attr, watch, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    errno = r;
    if (r)
        return err_errno(e, "cannot start the thread that watches the connections");
    t->is_watched = 1;
    return 0;
}

void tcp_watch_stop(struct tcp *t)
{
    if (!t->is_watched)
        return;
    __atomic_store_n(&t->is_closing, 1, __ATOMIC_RELEASE);
    tcp_wake(t);
    pthread_join(t->watcher, NULL);
    t->is_watched = 0;
}
