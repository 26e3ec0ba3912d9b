/* clients.c: a struct per connection, and the deadlines that the HTTP library does not have.
 *
 * The library's timeout counts from the last byte, so a client that sends one byte a minute keeps
 * its place for ever. Ours are absolute: a request, header and body, must be in READ_US after its
 * connection opened or its request line came; an answer must be taken at SEND_RATE or faster;
 * between requests a connection may rest for IDLE_US. While a request is with us it has no
 * deadline. Whoever is late has the socket shut down under them, which the library sees as a
 * hang-up.
 *
 * Nor does the library always see that a client has hung up: not while its connection is suspended,
 * and not when the end comes right behind the last bytes. So each socket is in our own epoll set
 * for that alone. A client that will send nothing more has HUNG_US to have what it sent answered; a
 * waiting request of it ends at once.
 *
 * The sweep walks all connections (5,120 by default, about 20 us) at most four times a second.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "api/http.h"
#include "base/clock.h"
#include "base/mem.h"

#define READ_US      (30 * 1000000LL)
#define IDLE_US      (60 * 1000000LL)
#define SEND_US      (60 * 1000000LL)
#define HUNG_US      (1 * 1000000LL)
#define SEND_RATE    (16 * 1024) /* bytes a second */
#define SWEEP_MIN_US (250 * 1000LL)

static void set_deadline(struct api *a, struct client *c, int64_t from_now_us)
{
    c->deadline_us = a->now_us + from_now_us;
    if (c->deadline_us < a->sweep_us)
        a->sweep_us = c->deadline_us;
}

/* Of a client that we want to hear from. */
static void set_listening_deadline(struct api *a, struct client *c, int64_t from_now_us)
{
    set_deadline(a, c, c->hung_up ? HUNG_US : from_now_us);
}

void client_reading(struct api *a, struct client *c)
{
    if (c->used++ > 0)
        set_listening_deadline(a, c, READ_US);
}

void client_hung_up(struct api *a, struct client *c)
{
    c->hung_up = 1;
    if (c->exchange && c->exchange->phase >= PHASE_DEFERRED)
        exchange_hung_up(c->exchange);
    else
        set_deadline(a, c, HUNG_US);
}

void client_working(struct client *c)
{
    c->deadline_us = INT64_MAX;
}

void client_sending(struct api *a, struct client *c, int64_t bytes)
{
    set_deadline(a, c, SEND_US + bytes / SEND_RATE * 1000000);
}

void client_idle(struct api *a, struct client *c)
{
    set_listening_deadline(a, c, IDLE_US);
}

void clients_sweep(struct api *a)
{
    if (a->now_us < a->sweep_us)
        return;
    int64_t next = INT64_MAX;
    for (struct link *p = a->clients.next; p != &a->clients; p = p->next) {
        struct client *c = (struct client *)p;
        if (c->deadline_us <= a->now_us) {
            shutdown(c->fd, SHUT_RDWR);
            c->deadline_us = INT64_MAX;
        }
        if (c->deadline_us < next)
            next = c->deadline_us;
    }
    if (next != INT64_MAX && next < a->now_us + SWEEP_MIN_US)
        next = a->now_us + SWEEP_MIN_US;
    a->sweep_us = next;
}

static void opened(struct api *a, struct MHD_Connection *connection, void **socket_context)
{
    int on = 1;
    struct client *c = mem_zalloc(sizeof *c);
    c->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = c};
    epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, c->fd, &ev); /* fails: the deadlines still hold */
    link_append(&a->clients, &c->link);
    set_deadline(a, c, READ_US);
    *socket_context = c;
}

void clients_notify(void *cls, struct MHD_Connection *connection, void **socket_context,
                    enum MHD_ConnectionNotificationCode code)
{
    struct api *a = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        opened(a, connection, socket_context);
        return;
    }
    struct client *c = *socket_context;
    epoll_ctl(a->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    link_remove(&c->link);
    free(c);
    *socket_context = NULL;
}
