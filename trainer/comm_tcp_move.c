/* comm_tcp_move.c: frames on their way, and the waits for them. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "trainer/comm_tcp.h"

#define CHUNK    (256u * 1024) /* bytes between two looks at the other moves */
#define LEFT_MS  1000          /* for the news why a connection has ended to come */
#define LIST_MAX 64

void tcp_move_send(struct tcp_move *m, struct tcp_link *l, const struct tcp_head *h,
                   const void *buf)
{
    m->link = l;
    m->is_send = 1;
    m->is_done = 0;
    m->buf = (char *)buf; /* only read */
    m->head = *h;
    m->at = m->fed = 0;
    tcp_seal_begin(&m->seal, l, h);
    if (h->bytes == 0)
        tcp_seal_end(&m->seal);
}

void tcp_move_recv(struct tcp_move *m, struct tcp_link *l, const struct tcp_head *h, void *buf)
{
    m->link = l;
    m->is_send = 0;
    m->is_done = 0;
    m->buf = buf;
    m->head = *h;
    m->at = m->fed = 0;
    tcp_open_begin(&m->seal, l);
}

/* What is left of the frame and may pass now: payload up to `limit`, the tag once that is the end.
 */
static size_t pieces(struct tcp_move *m, size_t limit, struct iovec v[3])
{
    size_t bytes = (size_t)m->head.bytes, n = 0;
    if (m->at < TCP_FRAME_HEAD)
        v[n++] = (struct iovec){m->seal.head + m->at, TCP_FRAME_HEAD - m->at};
    size_t body = m->at < TCP_FRAME_HEAD ? 0 : m->at - TCP_FRAME_HEAD;
    if (body < limit)
        v[n++] = (struct iovec){m->buf + body, limit - body};
    size_t tag_at = body > bytes ? body - bytes : 0;
    if (limit == bytes && bytes > 0)
        v[n++] = (struct iovec){m->seal.tag + tag_at, TCP_TAG - tag_at};
    return n;
}

/* The payload as far as a turn may go. */
static size_t chunk_end(const struct tcp_move *m)
{
    size_t body = m->at < TCP_FRAME_HEAD ? 0 : m->at - TCP_FRAME_HEAD;
    size_t bytes = (size_t)m->head.bytes;
    return bytes - (body < bytes ? body : bytes) > CHUNK ? body + CHUNK : bytes;
}

static void feed(struct tcp_move *m, size_t to)
{
    if (to > m->fed)
        tcp_seal_feed(&m->seal, m->buf + m->fed, to - m->fed);
    m->fed = to > m->fed ? to : m->fed;
}

int tcp_push(struct tcp_move *m, int *ret_some)
{
    struct iovec v[3];
    size_t bytes = (size_t)m->head.bytes, limit = chunk_end(m);
    if (m->fed < bytes) {
        feed(m, limit);
        if (m->fed == bytes)
            tcp_seal_end(&m->seal);
    }
    struct msghdr h = {.msg_iov = v, .msg_iovlen = pieces(m, m->fed, v)};
    ssize_t n = sendmsg(m->link->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : errno;
    m->at += (size_t)n;
    *ret_some |= n > 0;
    m->is_done = m->at == tcp_frame_bytes(bytes);
    return 0;
}

/* The header has come, or the end of the payload. */
static int open_what_came(struct tcp_move *m, size_t before)
{
    struct tcp_head head;
    size_t bytes = (size_t)m->head.bytes;
    if (before < TCP_FRAME_HEAD && m->at >= TCP_FRAME_HEAD) {
        if (!tcp_open_head(&m->seal, &head))
            return TCP_ALTERED;
        if (memcmp(&head, &m->head, sizeof head) != 0) {
            m->head = head; /* for the sentence */
            return TCP_APART;
        }
    }
    if (m->at > TCP_FRAME_HEAD) {
        size_t body = m->at - TCP_FRAME_HEAD;
        feed(m, body < bytes ? body : bytes);
    }
    m->is_done = m->at == tcp_frame_bytes(bytes);
    return m->is_done && bytes > 0 && !tcp_open_end(&m->seal) ? TCP_ALTERED : 0;
}

int tcp_pull(struct tcp_move *m, int *ret_some)
{
    struct iovec v[3];
    struct msghdr h = {.msg_iov = v, .msg_iovlen = pieces(m, chunk_end(m), v)};
    ssize_t n = recvmsg(m->link->fd, &h, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : errno;
    if (n == 0)
        return TCP_EOF;
    size_t before = m->at;
    m->at += (size_t)n;
    *ret_some = 1;
    return open_what_came(m, before);
}

/* ---- sentences ---- */

static int say_late(const struct tcp_place *p, const struct tcp_move *moves, int count,
                    struct err *e)
{
    char where[TCP_WHERE_SIZE], list[LIST_MAX] = "";
    int n = 0, last = -1;
    for (int i = 0; i < count && n < LIST_MAX - 24; i++) {
        int peer = moves[i].link->peer;
        if (moves[i].is_done || peer == last)
            continue;
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%d", n ? ", " : "", peer);
        last = peer;
    }
    return err_set(
        e, ERR_TIMEOUT, "Rank %d waited %.3g s %s for rank %s, and nothing moved in the gang.",
        p->t->rank, (double)p->t->deadline_us * 1e-6, tcp_where(p->t, p->what, where), list);
}

/* A connection has ended. Why is told on the control links: the peer died, or it left because of
 * another one. */
int tcp_say_ended(const struct tcp_place *p, int peer, int trouble, struct err *e)
{
    char name[TCP_NAME_SIZE], where[TCP_WHERE_SIZE];
    poll(&(struct pollfd){.fd = p->t->over_fd, .events = POLLIN}, 1, LEFT_MS);
    if (!tcp_is_over(p->t)) {
        pthread_mutex_lock(&p->t->mutex);
        int left = p->t->peers[peer].has_left;
        pthread_mutex_unlock(&p->t->mutex);
        if (left)
            return err_set(e, ERR_PEER, "%s left the gang while rank %d waited for it %s.",
                           tcp_name(p->t, peer, name), p->t->rank, tcp_where(p->t, p->what, where));
        tcp_set_over(p->t, trouble == ETIMEDOUT ? OVER_UNREACHABLE : OVER_DIED, peer, "");
    }
    return tcp_say_over(p->t, p->what, e);
}

static int say_trouble(const struct tcp_place *p, const struct tcp_move *m, int trouble,
                       struct err *e)
{
    char name[TCP_NAME_SIZE], where[TCP_WHERE_SIZE];
    tcp_name(p->t, m->link->peer, name);
    switch (trouble) {
    case TCP_ALTERED:
        return err_set(e, ERR_IO,
                       "What %s sent to rank %d %s was changed on its way: its tag is wrong.", name,
                       p->t->rank, tcp_where(p->t, p->what, where));
    case TCP_APART: return comm_say_apart(p->comm, name, &m->head.call, e);
    default: return tcp_say_ended(p, m->link->peer, trouble, e);
    }
}

/* ---- the wait ---- */

struct vigil {
    int64_t since;
    uint32_t progress; /* of this rank's other thread */
};

static int is_late(struct tcp *t, struct vigil *v)
{
    int64_t now = clock_boottime_us(), news = __atomic_load_n(&t->news_us, __ATOMIC_RELAXED);
    uint32_t progress = __atomic_load_n(&t->progress, __ATOMIC_RELAXED);
    if (progress != v->progress)
        v->since = now;
    v->progress = progress;
    return now - (news > v->since ? news : v->since) > t->deadline_us;
}

/* Every move once. Returns what is left, or an error. */
static int turn(const struct tcp_place *p, struct tcp_move *moves, int count, int *ret_some,
                struct err *e)
{
    int left = 0;
    for (int i = 0; i < count; i++) {
        struct tcp_move *m = &moves[i];
        if (m->is_done)
            continue;
        int trouble = m->is_send ? tcp_push(m, ret_some) : tcp_pull(m, ret_some);
        if (trouble)
            return say_trouble(p, m, trouble, e);
        left += !m->is_done;
    }
    return left;
}

static void sleep_until_ready(struct tcp *t, const struct tcp_move *moves, int count,
                              struct pollfd *polls)
{
    nfds_t n = 0;
    polls[n++] = (struct pollfd){.fd = t->over_fd, .events = POLLIN};
    for (int i = 0; i < count; i++)
        if (!moves[i].is_done)
            polls[n++] = (struct pollfd){.fd = moves[i].link->fd,
                                         .events = moves[i].is_send ? POLLOUT : POLLIN};
    poll(polls, n, TCP_TICK_MS);
}

int tcp_moves(const struct tcp_place *p, struct tcp_move *moves, int count, struct pollfd *polls,
              struct err *e)
{
    struct vigil v = {.since = clock_boottime_us(),
                      .progress = __atomic_load_n(&p->t->progress, __ATOMIC_RELAXED)};
    for (;;) {
        int some = 0, left = turn(p, moves, count, &some, e);
        if (left <= 0)
            return left;
        if (some) {
            tcp_news(p->t);
            continue;
        }
        if (tcp_is_over(p->t))
            return tcp_say_over(p->t, p->what, e);
        if (is_late(p->t, &v))
            return say_late(p, moves, count, e);
        sleep_until_ready(p->t, moves, count, polls);
    }
}
