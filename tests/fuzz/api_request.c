/* api_request.c: raw bytes as a request, through everything between the HTTP library and the verbs:
 * headers, guard, target and query decoding, routing, the handlers and the encoding of their
 * answers.
 *
 * Input: "METHOD TARGET\n", header lines "name:value\n", an empty line, the body. The first byte of
 * the input chooses the listener and whether tokens are configured.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/guard.h"
#include "api/reply.h"
#include "api/request.h"
#include "api/routes.h"
#include "base/err.h"
#include "base/mem.h"
#include "tests/unit/fake_service.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth, const char *what)
{
    if (!truth)
        BUG("%s", what);
}

/* Cuts the text up to the next `stop` off, as a string of its own; NULL at the end. */
static char *cut(char **rest, char *end, char stop)
{
    char *start = *rest;
    if (start >= end)
        return NULL;
    char *at = memchr(start, stop, (size_t)(end - start));
    if (!at)
        at = end;
    *at = '\0';
    *rest = at < end ? at + 1 : end;
    return start;
}

static void add_headers(struct request *q, char **rest, char *end)
{
    char *line;
    while ((line = cut(rest, end, '\n')) && *line) {
        char *line_end = *rest > line && (*rest)[-1] == '\0' ? *rest - 1 : *rest;
        char *colon = memchr(line, ':', (size_t)(line_end - line));
        if (!colon)
            continue;
        *colon = '\0';
        headers_add(&q->headers, line, (size_t)(colon - line), colon + 1,
                    (size_t)(line_end - colon - 1));
    }
}

static void check_decoded(const struct request *q)
{
    for (int i = 0; i < q->segment_count; i++) {
        json_t *s = json_string(q->segments[i]); /* NULL unless valid UTF-8 */
        require(s != NULL, "a segment that is no UTF-8");
        json_decref(s);
        require(strcmp(q->segments[i], "..") != 0, "a segment that leads up");
        require(strchr(q->segments[i], '/') == NULL, "a slash within a segment");
    }
    for (int i = 0; i < q->param_count; i++) {
        json_t *s = json_string(q->params[i].value);
        require(s != NULL, "a parameter that is no UTF-8");
        json_decref(s);
    }
}

static void check_called(const struct request *q, const struct service *s)
{
    require(q->headers.of[HEADER_HOST].count == 1, "no single Host");
    require(!q->headers.malformed, "a malformed header");
    if (s->verb && strcmp(s->verb, "list") == 0)
        require(s->limit >= 1 && s->limit <= 1000, "a limit out of range");
    if (s->verb && strcmp(s->verb, "log") == 0)
        require(s->limit >= 1 && s->limit <= 1024 * 1024 && s->rank >= 0, "a log out of range");
}

static void serve(struct request *q, const struct guard *g, int agents_only, struct service *s)
{
    struct service_reply r;
    struct reply out;
    service_reply_init(&r);
    int rc = guard_request(g, q, &r);
    if (rc == 0)
        check_decoded(q);
    if (rc == 0)
        rc = routes_find(q, agents_only, &r);
    if (rc == 0)
        rc = guard_route(g, q, &r);
    if (rc == 0) {
        rc = q->route->handler(s, q, &r);
        check_called(q, s);
    }
    require(rc == 0 || (r.status >= 400 && r.status <= 599), "a failure without a status");
    require(rc == 0 || strlen(r.detail) > 10, "a failure without a sentence");
    reply_encode(q, rc, &r, &out);
    require(out.response != NULL && out.status >= 200, "no answer");
    reply_drop(&out);
    service_reply_done(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char content[] = "0123456789";
    static int web_fd = -2;
    if (size == 0)
        return 0;
    if (web_fd == -2)
        web_fd = open("web", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct guard g;
    int tokens = data[0] & 1;
    guard_init(&g, "127.0.0.1", "head.example", tokens ? "t" : NULL, tokens ? "a" : NULL);
    struct service s = {.content = content, .content_size = 10, .etag = "7", .warn = 1};
    char *text = mem_strndup("", 0);
    text = mem_realloc(text, size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    char *rest = text, *end = text + size - 1;
    char *method = cut(&rest, end, ' ');
    char *target = cut(&rest, end, '\n');
    if (method && target) {
        char *decoded = mem_alloc(strlen(target) + 1); /* exactly: an overrun is found */
        struct request q;
        request_init(&q, method, target, decoded);
        q.web_fd = web_fd;
        q.request_id = "req_1";
        add_headers(&q, &rest, end);
        buf_add(&q.body, rest, (size_t)(end - rest));
        serve(&q, &g, (data[0] & 2) != 0, &s);
        request_done(&q);
        free(decoded);
    }
    free(text);
    guard_done(&g);
    return 0;
}
