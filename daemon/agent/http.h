/* http.h: POSTs to the coordinator on the agent's event loop, by libcurl's multi interface.
 *
 * Every call has a deadline, a bounded answer and exactly one completion, which is made from the
 * loop, never from within http_post(). Connections are kept and reused.
 */
#ifndef TRAINYARD_DAEMON_AGENT_HTTP_H
#define TRAINYARD_DAEMON_AGENT_HTTP_H

#include <stddef.h>
#include <systemd/sd-event.h>

#include "base/buf.h"
#include "base/err.h"

#define HTTP_CONNECT_MS 5000
#define HTTP_ANSWER_MAX (64 * 1024 * 1024) /* bytes: some dozens of launch documents */

struct http;

struct http_answer {
    int status;        /* 0: no answer, and `error` says why */
    const char *error; /* borrowed for the callback, as is `body` */
    const char *body;  /* NUL-terminated */
    size_t size;
};

typedef void http_done_fn(void *arg, const struct http_answer *answer);

/* `base_url` without a slash at its end; `token` may be NULL. Both are copied. */
int http_new(sd_event *event, const char *base_url, const char *token, struct http **ret,
             struct err *e);
/* Completes what is under way with status 0; NULL is fine. No call may be made from those
 * completions. */
void http_free(struct http *h);

/* Posts `take_body` (emptied, also on failure) to base_url + path. */
int http_post(struct http *h, const char *path, const char *content_type, struct buf *take_body,
              int timeout_ms, http_done_fn *done, void *arg, struct err *e);

/* `name` as it must stand in a query; free() it. */
char *http_escape(const char *name);

#endif
