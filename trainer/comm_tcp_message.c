/* comm_tcp_message.c: messages to a neighbour. What a socket does not take at once waits here, and
 * the watcher sends it while the rank computes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "trainer/comm_tcp.h"

static struct tcp_head message(uint64_t number, size_t bytes)
{
    return (struct tcp_head){
        .what = TCP_MESSAGE,
        .call = {.verb = VERB_SEND, .number = number, .count = bytes},
        .bytes = bytes,
    };
}

/* What the socket has not taken, behind what waits already. */
static void queue_rest(struct tcp *t, struct tcp_channel *h, struct tcp_move *m)
{
    struct tcp_queued *q = &h->queue[h->queued];
    size_t bytes = (size_t)m->head.bytes;
    if (!q->wire)
        q->wire = mem_alloc(tcp_frame_bytes(t->message_bytes));
    if (m->fed < bytes) {
        tcp_seal_feed(&m->seal, m->buf + m->fed, bytes - m->fed);
        tcp_seal_end(&m->seal);
    }
    memcpy(q->wire, m->seal.head, TCP_FRAME_HEAD);
    memcpy(q->wire + TCP_FRAME_HEAD, m->buf, bytes);
    memcpy(q->wire + TCP_FRAME_HEAD + bytes, m->seal.tag, bytes ? TCP_TAG : 0);
    q->bytes = tcp_frame_bytes(bytes);
    q->sent = m->at;
    h->queued++;
}

/* Under the channel's mutex. As much as the socket takes goes at once; the watcher sends the rest.
 */
static void start_message(struct tcp *t, struct tcp_channel *h, const void *buf, size_t bytes)
{
    struct tcp_head head = message(++h->given, bytes);
    struct tcp_move m;
    int some = 1;
    tcp_move_send(&m, &h->link, &head, buf);
    while (h->queued == 0 && !m.is_done && some) {
        some = 0;
        if (tcp_push(&m, &some) != 0)
            h->is_broken = 1;
    }
    if (!m.is_done && !h->is_broken)
        queue_rest(t, h, &m);
}

static void wait_tick(pthread_cond_t *changed, pthread_mutex_t *mutex)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TCP_TICK_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(changed, mutex, &until);
}

static int wait_room(struct tcp *t, struct tcp_channel *h, struct err *e)
{
    int64_t since = clock_boottime_us();
    char where[TCP_WHERE_SIZE];
    while (h->queued == TCP_QUEUE && !h->is_broken && !tcp_is_over(t)) {
        int64_t news = __atomic_load_n(&t->news_us, __ATOMIC_RELAXED);
        if (clock_boottime_us() - (news > since ? news : since) > t->deadline_us)
            return err_set(e, ERR_TIMEOUT,
                           "Rank %d waited %.3g s %s for rank %d, and nothing moved in the gang.",
                           t->rank, (double)t->deadline_us * 1e-6, tcp_where(t, "send", where),
                           h->link.peer);
        wait_tick(&h->room, &h->mutex);
    }
    return 0;
}

int tcp_message_send(const struct tcp_place *p, struct tcp_channel *h, const void *buf,
                     size_t bytes, struct err *e)
{
    struct tcp *t = p->t;
    if (bytes > t->message_bytes)
        BUG("a message of %zu bytes", bytes);
    pthread_mutex_lock(&h->mutex);
    int r = wait_room(t, h, e), is_over = tcp_is_over(t);
    if (r == 0 && !is_over)
        start_message(t, h, buf, bytes);
    int is_broken = h->is_broken, waits = h->queued;
    pthread_mutex_unlock(&h->mutex);
    if (waits)
        tcp_wake(t);
    return r < 0 || (!is_over && !is_broken) ? r : tcp_say_ended(p, h->link.peer, ECONNRESET, e);
}

int tcp_message_recv(const struct tcp_place *p, struct tcp_channel *h, void *buf, size_t bytes,
                     struct err *e)
{
    struct tcp *t = p->t;
    struct tcp_move m;
    struct pollfd polls[2];
    if (bytes > t->message_bytes)
        BUG("a message of %zu bytes", bytes);
    struct tcp_head head = message(++h->taken, bytes);
    tcp_move_recv(&m, &h->link, &head, buf);
    int r = tcp_moves(p, &m, 1, polls, e);
    if (r == ERR_INTERNAL && m.head.call.verb == VERB_SEND) {
        char name[TCP_NAME_SIZE];
        tcp_name(t, h->link.peer, name);
        name[0] = 'R';
        err_set(e, ERR_INTERNAL, "%s sent %llu bytes where rank %d expects %zu.", name,
                (unsigned long long)m.head.bytes, t->rank, bytes);
    }
    return r;
}

/* ---- channels ---- */

static struct tcp_channel *free_channel(struct tcp *t)
{
    for (int i = 0; i < TCP_CHANNELS; i++)
        if (t->channels[i].link.fd < 0)
            return &t->channels[i];
    BUG("a rank in more groups than there are families");
}

struct tcp_channel *tcp_channel_open(struct tcp *t, const struct tcp_link *l)
{
    struct tcp_channel *h = free_channel(t);
    pthread_mutex_lock(&h->mutex);
    h->link = *l;
    h->taken = h->given = 0;
    h->is_broken = 0;
    pthread_mutex_unlock(&h->mutex);
    return h;
}

void tcp_channel_close(struct tcp *t, struct tcp_channel *h)
{
    int64_t until = clock_boottime_us() + TCP_FLUSH_US;
    pthread_mutex_lock(&h->mutex);
    while (h->queued && !h->is_broken && !tcp_is_over(t) && clock_boottime_us() < until)
        wait_tick(&h->room, &h->mutex);
    h->queued = 0;
    tcp_link_close(&h->link);
    pthread_mutex_unlock(&h->mutex);
}
