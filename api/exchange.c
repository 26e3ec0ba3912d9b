/* exchange.c: one request from its first line to its answer.
 *
 * The library calls exchange_handle() once with the headers, once per piece of body, once when the
 * body is whole, and once more each time that a suspended connection is resumed. Answers leave only
 * from within those calls, since elsewhere the library does not take them.
 *
 * Memory: a body has at most REQUEST_MAX_BODY bytes, all bodies together BODIES_MAX; what is over
 * the limit and was not announced is read and dropped up to DISCARD_MAX, so that the client gets to
 * read its 413, and then the connection is closed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/guard.h"
#include "api/http.h"
#include "api/routes.h"
#include "base/mem.h"

#define BODIES_MAX  (256 * 1024 * 1024)
#define DISCARD_MAX (8 * 1024 * 1024)

static struct api *api_of(const struct exchange *x)
{
    return x->listener->api;
}

/* ---- tickets ---- */

static struct exchange **bucket(struct api *a, uint64_t ticket)
{
    return &a->tickets[ticket % TICKET_BUCKETS];
}

static struct exchange *ticket_find(struct api *a, uint64_t ticket)
{
    struct exchange *x = *bucket(a, ticket);
    while (x && x->q.ticket != ticket)
        x = x->next_ticket;
    return x;
}

static void ticket_take(struct exchange *x)
{
    struct api *a = api_of(x);
    x->q.ticket = ++a->last_ticket;
    x->next_ticket = *bucket(a, x->q.ticket);
    *bucket(a, x->q.ticket) = x;
}

static void ticket_give(struct exchange *x)
{
    if (!x->q.ticket)
        return;
    struct exchange **p = bucket(api_of(x), x->q.ticket);
    while (*p != x)
        p = &(*p)->next_ticket;
    *p = x->next_ticket;
    x->q.ticket = 0;
}

/* ---- birth and death ---- */

void *exchange_target(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct listener *l = cls;
    struct api *a = l->api;
    size_t n = strlen(uri) + 1;
    struct exchange *x = mem_alloc(sizeof *x + 2 * n);
    memset(x, 0, sizeof *x);
    link_init(&x->link);
    x->listener = l;
    x->connection = connection;
    x->client =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    memcpy(x->text, uri, n);
    snprintf(x->request_id, sizeof x->request_id, "%s%llx", a->id_prefix,
             (unsigned long long)++a->last_request);
    x->q.target = x->text;
    x->q.decoded = x->text + n;
    x->client->exchange = x;
    client_reading(a, x->client);
    return x;
}

static void body_drop(struct exchange *x)
{
    api_of(x)->body_bytes -= x->charged;
    x->charged = 0;
    buf_done(&x->q.body);
}

void exchange_completed(void *cls, struct MHD_Connection *connection, void **context,
                        enum MHD_RequestTerminationCode code)
{
    (void)cls;
    (void)connection;
    (void)code;
    struct exchange *x = *context;
    if (!x)
        return;
    *context = NULL;
    struct api *a = api_of(x);
    if (x->phase == PHASE_ANSWERED)
        a->unsent--;
    link_remove(&x->link);
    ticket_give(x);
    body_drop(x);
    reply_drop(&x->reply);
    request_done(&x->q);
    x->client->exchange = NULL;
    client_idle(a, x->client);
    free(x);
}

/* ---- answering ---- */

static enum MHD_Result send_reply(struct exchange *x)
{
    struct api *a = api_of(x);
    enum MHD_Result rc = MHD_queue_response(x->connection, x->reply.status, x->reply.response);
    x->phase = PHASE_ANSWERED;
    a->unsent++;
    client_sending(a, x->client, x->reply.bytes);
    reply_drop(&x->reply);
    return rc;
}

static enum MHD_Result send_failure(struct exchange *x, int rc, struct service_reply *r)
{
    reply_encode(&x->q, rc, r, &x->reply);
    service_reply_done(r);
    return send_reply(x);
}

static enum MHD_Result send_closing(struct exchange *x)
{
    struct service_reply r;
    service_reply_init(&r);
    r.retry_after_s = 1;
    int rc =
        service_fail(&r, 503, "unavailable", "The server is shutting down; try again in a moment.");
    return send_failure(x, rc, &r);
}

/* ---- parking ---- */

static enum MHD_Result park(struct exchange *x, enum phase phase, struct link *ring)
{
    x->phase = phase;
    link_append(ring, &x->link);
    MHD_suspend_connection(x->connection);
    return MHD_YES;
}

static void resume(struct exchange *x)
{
    link_remove(&x->link);
    x->listener->kicked = 1;
    MHD_resume_connection(x->connection);
}

static enum MHD_Result wait_for_wake(struct exchange *x)
{
    struct api *a = api_of(x);
    park(x, PHASE_WAITING, service_dirty(a->service) ? &a->waiting_unsaved : &a->waiting);
    x->gone = x->client->hung_up;
    if (x->woken || x->gone)
        resume(x);
    return MHD_YES;
}

/* ---- calling the verb ---- */

static enum MHD_Result call(struct exchange *x)
{
    struct api *a = api_of(x);
    if (a->closing)
        return send_closing(x);
    if (a->quiet)
        return park(x, PHASE_DEFERRED, &a->deferred);
    x->phase = PHASE_CALLING;
    x->woken = 0;
    struct service_reply r;
    service_reply_init(&r);
    int rc = x->q.route->handler(a->service, &x->q, &r);
    if (rc == 0 && r.wait) {
        service_reply_done(&r);
        return wait_for_wake(x);
    }
    ticket_give(x);
    reply_encode(&x->q, rc, &r, &x->reply);
    service_reply_done(&r);
    body_drop(x);
    return service_dirty(a->service) ? park(x, PHASE_HELD, &a->held) : send_reply(x);
}

/* ---- headers and body ---- */

static enum MHD_Result note_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                   size_t key_size, const char *value, size_t value_size)
{
    (void)kind;
    headers_add(cls, key, key_size, value, value_size);
    return MHD_YES;
}

static int charge_body(struct exchange *x, size_t n, struct service_reply *r)
{
    struct api *a = api_of(x);
    if (a->body_bytes + n <= BODIES_MAX) {
        a->body_bytes += n;
        x->charged += n;
        return 0;
    }
    r->retry_after_s = 1;
    return service_fail(r, 503, "busy",
                        "The server is reading as many request bodies as it can hold; try again "
                        "in a second.");
}

/* Everything that can be refused on seeing the headers alone. */
static int check_headers(struct exchange *x, struct service_reply *r)
{
    struct request *q = &x->q;
    int rc = guard_request(&x->listener->guard, q, r);
    if (rc == 0)
        rc = routes_find(q, x->listener->agents_only, r);
    if (rc == 0)
        rc = guard_route(&x->listener->guard, q, r);
    int64_t n = rc == 0 ? guard_body_length(q) : 0;
    if (n > 0)
        rc = charge_body(x, (size_t)n, r);
    if (rc == 0 && n > 0)
        buf_reserve(&q->body, (size_t)n);
    return rc;
}

static enum MHD_Result take_headers(struct exchange *x, const char *method, const char *version)
{
    struct request *q = &x->q;
    request_init(q, method, q->target, q->decoded);
    q->request_id = x->request_id;
    q->http_1_0 = strcmp(version, "HTTP/1.1") != 0;
    q->web_fd = api_of(x)->web_fd;
    MHD_get_connection_values_n(x->connection, MHD_HEADER_KIND, note_header, &q->headers);
    struct service_reply r;
    service_reply_init(&r);
    int rc = check_headers(x, &r);
    if (rc < 0)
        return send_failure(x, rc, &r);
    service_reply_done(&r);
    x->phase = PHASE_BODY;
    return MHD_YES;
}

static enum MHD_Result take_body(struct exchange *x, const char *bytes, size_t n)
{
    struct service_reply ignored;
    x->received += n;
    if (x->received > DISCARD_MAX)
        return MHD_NO;
    if (x->received > REQUEST_MAX_BODY)
        x->discarding = 413;
    service_reply_init(&ignored);
    if (!x->discarding && x->received > x->charged &&
        charge_body(x, x->received - x->charged, &ignored) < 0)
        x->discarding = 503;
    if (x->discarding)
        body_drop(x);
    else
        buf_add(&x->q.body, bytes, n);
    return MHD_YES;
}

static enum MHD_Result refuse_body(struct exchange *x)
{
    struct service_reply r;
    service_reply_init(&r);
    int rc = x->discarding == 413
                 ? service_fail(&r, 413, "too_large",
                                "The body has %zu bytes; at most %d (1 MiB) are accepted.",
                                x->received, REQUEST_MAX_BODY)
                 : service_fail(&r, 503, "busy",
                                "The server is reading as many request bodies as it can hold; "
                                "try again in a second.");
    return send_failure(x, rc, &r);
}

static enum MHD_Result take_end(struct exchange *x)
{
    client_working(x->client);
    if (x->discarding)
        return refuse_body(x);
    if (x->q.route->role == ROLE_AGENT)
        ticket_take(x);
    return call(x);
}

static enum MHD_Result call_again(struct exchange *x)
{
    if (x->gone)
        return MHD_NO;
    x->q.resumed++;
    return call(x);
}

enum MHD_Result exchange_handle(void *cls, struct MHD_Connection *connection, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_size, void **context)
{
    (void)cls;
    (void)connection;
    (void)url;
    struct exchange *x = *context;
    size_t n = *upload_size;
    switch (x->phase) {
    case PHASE_HEADERS: return take_headers(x, method, version);
    case PHASE_BODY: *upload_size = 0; return n ? take_body(x, upload, n) : take_end(x);
    case PHASE_DEFERRED: return call(x);
    case PHASE_WAITING: return call_again(x);
    case PHASE_HELD: return send_reply(x);
    case PHASE_CALLING:
    case PHASE_ANSWERED: break;
    }
    BUG("the HTTP library calls for %s in phase %d", x->text, (int)x->phase);
}

/* ---- what ends a wait ---- */

/* In its list, that is, and not resumed already. */
static int is_waiting(const struct exchange *x)
{
    return x->phase == PHASE_WAITING && x->link.next != &x->link;
}

void api_wake(struct api *a, uint64_t ticket)
{
    struct exchange *x = ticket ? ticket_find(a, ticket) : NULL;
    if (!x)
        return;
    x->woken = 1;
    if (is_waiting(x))
        resume(x);
}

void exchange_hung_up(struct exchange *x)
{
    if (!is_waiting(x))
        return;
    x->gone = 1;
    resume(x);
}

static void hold_uncommitted(struct exchange *x, const struct err *error)
{
    reply_drop(&x->reply);
    reply_encode_uncommitted(&x->q, error, &x->reply);
    x->phase = PHASE_HELD;
}

void exchange_release_held(struct api *a, const struct err *error)
{
    while (a->held.next != &a->held) {
        struct exchange *x = (struct exchange *)a->held.next;
        if (error)
            hold_uncommitted(x, error);
        resume(x);
    }
    while (a->waiting_unsaved.next != &a->waiting_unsaved) {
        struct exchange *x = (struct exchange *)a->waiting_unsaved.next;
        if (error) {
            ticket_give(x);
            hold_uncommitted(x, error);
            resume(x);
        } else {
            link_remove(&x->link);
            link_append(&a->waiting, &x->link);
        }
    }
}

void exchange_release_deferred(struct api *a)
{
    while (a->deferred.next != &a->deferred)
        resume((struct exchange *)a->deferred.next);
}

void exchange_release_all(struct api *a)
{
    struct err closing = {0};
    err_set(&closing, ERR_UNAVAILABLE, "The server is shutting down.");
    struct link *rings[] = {&a->waiting, &a->waiting_unsaved};
    for (size_t i = 0; i < ARRAY_LEN(rings); i++)
        while (rings[i]->next != rings[i])
            resume((struct exchange *)rings[i]->next);
    exchange_release_held(a, &closing);
    exchange_release_deferred(a);
}
