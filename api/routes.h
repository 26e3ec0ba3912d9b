/* routes.h: the endpoints. One table is the truth: api/openapi.json is tested against it. */
#ifndef TRAINYARD_API_ROUTES_H
#define TRAINYARD_API_ROUTES_H

#include <stddef.h>

#include "api/request.h"
#include "api/service.h"

enum role {
    ROLE_OPEN,  /* anybody who can connect */
    ROLE_USER,  /* the API token, where there is one */
    ROLE_AGENT, /* the agent token, where there is one */
};

enum body_kind {
    BODY_NONE,
    BODY_JSON,          /* application/json, handed on as text */
    BODY_OPTIONAL_JSON, /* nothing, or an empty object */
    BODY_BYTES,         /* application/octet-stream */
};

struct route {
    const char *method;  /* "GET" answers HEAD too */
    const char *pattern; /* "/v1/jobs/{id}"; a last segment of "*" stands for any rest, even none */
    enum role role;
    enum body_kind body;
    int for_agents;     /* served on the agents' own listener as well */
    const char *params; /* names, separated by spaces; NULL: the query is the page's business */
    /* Decodes, calls one verb, and says what else the answer's head needs. */
    int (*handler)(struct service *s, struct request *q, struct service_reply *r);
};

extern const struct route ROUTES[];
extern const size_t ROUTE_COUNT;

/* Finds the route of a decoded target and notes it, with its args, in the request: 404, or 405 with
 * Allow. */
int routes_find(struct request *q, int agents_only, struct service_reply *r);

#endif
