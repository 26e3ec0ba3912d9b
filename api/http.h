/* http.h: inside of the HTTP face: daemons, connections, and requests on their way.
 *
 *   MHD connection -- struct client: its deadline            (clients.c)
 *        request   -- struct exchange: phase, answer, parking (exchange.c)
 *
 * A request's life, one phase after the other; each arrow is a call of the library's handler:
 *
 *   HEADERS -> BODY -> (verb) -+-> ANSWERED                the verb wrote nothing
 *                ^             +-> HELD -> ANSWERED        until api_turn_done()
 *   DEFERRED ----+             +-> WAITING -> (verb again) until api_wake()
 *
 * HELD, WAITING and DEFERRED connections are suspended and are in the list of their phase. DEFERRED
 * is a request that came in while answers were being sent: its verb is called in the next
 * api_run().
 */
#ifndef TRAINYARD_API_HTTP_H
#define TRAINYARD_API_HTTP_H

#include <microhttpd.h>
#include <stdint.h>

#include "api/api.h"
#include "api/guard.h"
#include "api/listen.h"
#include "api/reply.h"
#include "api/request.h"
#include "base/id.h"

struct link {
    struct link *next, *prev; /* a ring; alone: itself */
};

static inline void link_init(struct link *l)
{
    l->next = l->prev = l;
}

static inline void link_remove(struct link *l)
{
    l->next->prev = l->prev;
    l->prev->next = l->next;
    link_init(l);
}

static inline void link_append(struct link *ring, struct link *l)
{
    l->prev = ring->prev;
    l->next = ring;
    ring->prev->next = l;
    ring->prev = l;
}

struct listener {
    struct api *api;
    struct MHD_Daemon *daemon; /* NULL: this listener is not used */
    struct listen_socket socket;
    struct guard guard;
    int agents_only;
    int epoll_fd; /* the daemon's; borrowed */
    int kicked;   /* something was resumed: run it */
};

struct exchange;

struct client {
    struct link link; /* in api.clients */
    int fd;
    int64_t deadline_us;       /* closed when it passes; INT64_MAX: none */
    int used;                  /* has had a request */
    int hung_up;               /* will send nothing more */
    struct exchange *exchange; /* the request in work, or NULL */
};

enum phase {
    PHASE_HEADERS,
    PHASE_BODY,
    PHASE_DEFERRED,
    PHASE_CALLING,
    PHASE_WAITING,
    PHASE_HELD,
    PHASE_ANSWERED,
};

struct exchange {
    struct link link; /* in the list of its phase */
    struct listener *listener;
    struct client *client;
    struct MHD_Connection *connection;
    enum phase phase;
    int woken;          /* api_wake() came while the verb was being called */
    int gone;           /* the client hung up while it waited */
    int discarding;     /* the body is over the limit: the rest is read and dropped */
    size_t received;    /* bytes of body */
    size_t charged;     /* bytes of api.body_bytes that are ours */
    struct reply reply; /* when HELD */
    struct exchange *next_ticket;
    char request_id[64];
    struct request q;
    char text[]; /* target and decoded target */
};

#define TICKET_BUCKETS 1024 /* parked syncs: one or two per agent, 1024 agents by default */

struct api {
    struct service *service;
    int epoll_fd;
    struct listener users;
    struct listener agents;
    int web_fd;
    int quiet;      /* answers are being sent: call no verb */
    int closing;    /* every request is answered 503 */
    int64_t now_us; /* of this run */
    struct link clients;
    int64_t sweep_us; /* when the next deadline may pass; INT64_MAX: none */
    struct link held, waiting, deferred;
    struct link waiting_unsaved; /* waiting, but what its call wrote is not committed yet */
    struct exchange *tickets[TICKET_BUCKETS];
    uint64_t last_ticket;
    uint64_t last_request;
    int unsent;        /* requests answered, and not yet sent in full */
    size_t body_bytes; /* held for bodies, all requests together */
    char id_prefix[ID_SIZE];
};

/* ---- http.c ---- */
void http_run_listener(struct listener *l);

/* ---- clients.c: one struct per connection, and the deadlines ---- */
void clients_notify(void *cls, struct MHD_Connection *connection, void **socket_context,
                    enum MHD_ConnectionNotificationCode code);
void client_reading(struct api *a, struct client *c); /* a request has begun */
void client_working(struct client *c);                /* it is with us: no deadline */
void client_sending(struct api *a, struct client *c, int64_t bytes);
void client_idle(struct api *a, struct client *c);
void clients_sweep(struct api *a); /* hangs up on those whose deadline has passed */
void client_hung_up(struct api *a, struct client *c);

/* ---- exchange.c: callbacks of the library, and the parked ---- */
void *exchange_target(void *cls, const char *uri, struct MHD_Connection *connection);
enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *connection, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_size, void **context);
void exchange_completed(void *cls, struct MHD_Connection *connection, void **context,
                        enum MHD_RequestTerminationCode code);
void exchange_hung_up(struct exchange *x); /* nobody is there for the answer any more */
void exchange_release_held(struct api *a, const struct err *error);
void exchange_release_deferred(struct api *a);
void exchange_release_all(struct api *a); /* closing */

#endif
