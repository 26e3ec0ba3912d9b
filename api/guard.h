/* guard.h: what is refused before any handler runs.
 *
 * guard_request looks at the request alone (framing, target, host), guard_route at what the route
 * that was found asks for (origin, credential, body). Both return 0 or a negative code with the
 * reply's problem filled, and touch nothing else but the decoded target and the Allow and
 * WWW-Authenticate headers of the answer.
 */
#ifndef TRAINYARD_API_GUARD_H
#define TRAINYARD_API_GUARD_H

#include "api/request.h"
#include "api/service.h"

struct guard {
    char *hosts;       /* accepted in Host beside loopback: "a,b,"; owned */
    int any_ip;        /* listening on every address: any literal address is accepted in Host */
    char *user_token;  /* or NULL; owned */
    char *agent_token; /* or NULL; owned */
};

/* `bound_host` is the host of the listen address as it was given. */
void guard_init(struct guard *g, const char *bound_host, const char *allowed_hosts,
                const char *user_token, const char *agent_token);
void guard_done(struct guard *g);

int guard_request(const struct guard *g, struct request *q, struct service_reply *r);
int guard_route(const struct guard *g, struct request *q, struct service_reply *r);

/* The declared length of the body, 0 without one, -1 for a chunked one. Valid after guard_request.
 */
int64_t guard_body_length(const struct request *q);

/* 400 for what a route does not know, naming what it does. */
int guard_params(struct request *q, struct service_reply *r);

#endif
