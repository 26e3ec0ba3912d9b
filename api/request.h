/* request.h: one request as the handlers see it, free of the HTTP library, so that everything
 * from the raw target to the verb can be tested and fuzzed without a socket.
 *
 * Filled in this order: request_init, headers_add for each header, guard_request (which decodes
 * the target), routes_find, guard_route, the body. Strings are borrowed from the connection or
 * from the request's own buffer and live as long as the request.
 */
#ifndef TRAINYARD_API_REQUEST_H
#define TRAINYARD_API_REQUEST_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "api/service.h"
#include "base/buf.h"

#define REQUEST_MAX_TARGET   8192          /* bytes of path and query, undecoded */
#define REQUEST_MAX_SEGMENTS 8             /* of a path; the longest pattern has 5 */
#define REQUEST_MAX_PARAMS   16            /* of a query; the longest list of names has 5 */
#define REQUEST_MAX_BODY     (1024 * 1024) /* bytes; docs/protocols.md */

enum http_method { METHOD_GET, METHOD_HEAD, METHOD_POST, METHOD_OTHER };

enum header_id {
    HEADER_HOST,
    HEADER_CONTENT_LENGTH,
    HEADER_TRANSFER_ENCODING,
    HEADER_AUTHORIZATION,
    HEADER_CONTENT_TYPE,
    HEADER_IDEMPOTENCY_KEY,
    HEADER_ORIGIN,
    HEADER_SEC_FETCH_SITE,
    HEADER_IF_NONE_MATCH,
    HEADER_RANGE,
    HEADER_IF_RANGE,
    HEADER__MAX
};

struct header {
    const char *value; /* NULL when absent; of the first one when there are several */
    size_t len;
    unsigned count;
};

struct headers {
    struct header of[HEADER__MAX];
    int malformed; /* a name that is no token, or a control byte in a value */
};

struct param {
    const char *name;
    const char *value;
};

struct out_header {
    const char *name; /* static */
    char value[160];
};

struct route;

struct request {
    enum http_method method;
    const char *method_name;
    int http_1_0;
    const char *target; /* as sent */
    char *decoded;      /* room for the decoded target, as long as it and one more */
    const char *segments[REQUEST_MAX_SEGMENTS];
    int segment_count;
    struct param params[REQUEST_MAX_PARAMS];
    int param_count;
    struct headers headers;
    const struct route *route;
    const char *args[2]; /* what stands for {id} and {name} of the route */
    struct buf body;
    json_t *json;    /* the body of an agent's sync, kept while it is parked; owned */
    uint64_t ticket; /* for api_wake */
    int resumed;
    int web_fd; /* directory of the page, or -1 */
    const char *request_id;
    struct out_header out[6]; /* headers of the answer that no verb knows of */
    int out_count;
};

/* `decoded` has strlen(target) + 1 bytes; both outlive the request. */
void request_init(struct request *q, const char *method, const char *target, char *decoded);
void request_done(struct request *q);

void request_out(struct request *q, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Notes a header if it is one that we use. */
void headers_add(struct headers *h, const char *name, size_t name_len, const char *value,
                 size_t value_len);

/* Splits the target at '?', '/' and '&' and decodes the percent signs of the parts. 400 for
 * broken escapes, text that is no UTF-8, control characters, too many parts, and a parameter
 * given twice. */
int target_decode(struct request *q, struct service_reply *r);

/* A parameter's value, or NULL. */
const char *query_get(const struct request *q, const char *name);
/* 400 unless absent or a decimal number in min..max. */
int query_int(const struct request *q, const char *name, int64_t min, int64_t max,
              int64_t otherwise, int64_t *ret, struct service_reply *r);
/* 400 unless absent (0), "1", "true", "0" or "false". */
int query_flag(const struct request *q, const char *name, int *ret, struct service_reply *r);
/* 400 when absent or empty. */
int query_required(const struct request *q, const char *name, const char **ret,
                   struct service_reply *r);

#endif
