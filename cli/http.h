/* http.h: requests to a coordinator, over libcurl. One connection, kept alive.
 *
 * A reply with any HTTP status is a success here; the caller looks at the status. Failures are
 * about getting there: ERR_UNAVAILABLE (refused, timed out, broken off), ERR_INVALID (the server's
 * URL), ERR_TOO_LARGE (an answer over HTTP_MAX_REPLY), ERR_IO (the sink cannot be written),
 * ERR_TIMEOUT (interrupted, see below).
 */
#ifndef TRAINYARD_CLI_HTTP_H
#define TRAINYARD_CLI_HTTP_H

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define HTTP_MAX_REPLY (256 * 1024 * 1024)

struct http;

struct http_request {
    const char *method; /* "GET", "POST" */
    const char *path;   /* "/v1/jobs?limit=1", escaped */
    const char *body;   /* JSON to send, or NULL */
    size_t body_len;
    const char *idempotency_key; /* or NULL */
    int sink; /* a file's descriptor, or 0: a 200's body replaces the file's content, whatever its
               * size, and the reply's stays empty */
};

struct http_reply {
    int status;
    struct buf body;
    json_t *doc;                  /* the body where it is JSON, else NULL */
    char *content_type;           /* "" when absent */
    int retry_after_s;            /* 0: not given */
    int64_t log_offset, log_size; /* X-Log-Offset, X-Log-Size; -1: not given */
};
void http_reply_done(struct http_reply *r); /* safe on a zeroed struct */

/* `token` may be NULL. `interrupted`, when it becomes nonzero, breaks off a request. */
int http_open(const char *server, const char *token, const volatile int *interrupted,
              struct http **ret, struct err *e);
void http_close(struct http *h); /* NULL is fine */

int http_send(struct http *h, const struct http_request *q, struct http_reply *ret, struct err *e);

/* `text` percent-encoded for a query value; free() it. */
char *http_escape(const char *text);

#endif
