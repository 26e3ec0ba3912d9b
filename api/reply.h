/* reply.h: the one exit. Every answer of every handler and guard leaves through reply_encode. */
#ifndef TRAINYARD_API_REPLY_H
#define TRAINYARD_API_REPLY_H

#include <microhttpd.h>
#include <stdint.h>

#include "api/request.h"
#include "api/service.h"
#include "base/err.h"

struct reply {
    unsigned status;
    struct MHD_Response *response; /* owned until queued; NULL: none */
    int64_t bytes;                 /* of the body */
};

/* Turns what a handler left (rc 0 or negative) into a response. Takes the reply's file, so that
 * service_reply_done() may follow at once. Never fails: what cannot be encoded becomes a 500. */
void reply_encode(const struct request *q, int rc, struct service_reply *r, struct reply *ret);

/* The answer to a request whose turn did not commit. */
void reply_encode_uncommitted(const struct request *q, const struct err *error, struct reply *ret);

void reply_drop(struct reply *p); /* NULL response is fine */

#endif
