/* api.h: the HTTP face, v1. The only room that knows libmicrohttpd.
 *
 * Runs inside somebody else's loop: watch api_epoll_fd() for input and api_timeout_us() for time,
 * and call api_run() then. Within api_run() the handlers call the verbs of service.h; answers made
 * while service_dirty() are kept until api_turn_done() says how the commit went.
 */
#ifndef TRAINYARD_API_API_H
#define TRAINYARD_API_API_H

#include <stdint.h>

#include "api/service.h"
#include "base/err.h"

struct api;

struct api_options {
    const char *listen;        /* "127.0.0.1:8724", "[::1]:0"; port 0 takes a free one */
    const char *agent_listen;  /* a listener for agents alone, or NULL */
    const char *api_token;     /* bearer token for users, or NULL; required off loopback */
    const char *agent_token;   /* bearer token for agents, or NULL; required off loopback */
    const char *allowed_hosts; /* further names accepted in Host, comma-separated, or NULL; loopback
                                  names and the listen address always are */
    const char *web_dir;       /* directory of the page at /, or NULL */
    int connection_limit; /* each listener's; 0: 4096 for users, 1024 for agents, or what the limit
                             of open files leaves, which is raised as far as it may be */
};

int api_open(const struct api_options *o, struct service *service, struct api **ret, struct err *e);
void api_close(struct api *a); /* answers 503 to what is parked, then closes; NULL is fine */

/* "127.0.0.1:8724" as bound. Borrowed. */
const char *api_address(const struct api *a);
const char *api_agent_address(const struct api *a); /* NULL without a second listener */

int api_epoll_fd(const struct api *a);       /* one fd for everything */
int64_t api_timeout_us(const struct api *a); /* -1: none; 0: run at once */
void api_run(struct api *a);

/* The turn is over: committed (error NULL), or not, and why. Releases the answers kept back, as
 * they are or as 507/503 problems, and sends what can be sent now. Calls no verb: requests that
 * come in meanwhile have api_timeout_us() be 0, and are served by the next api_run(). */
void api_turn_done(struct api *a, const struct err *error);

/* Has the next api_run() call the verb of the parked request `ticket` again. May be called at any
 * time, within verbs, too. Unknown tickets, and those of clients that have left, are ignored. */
void api_wake(struct api *a, uint64_t ticket);

#endif
