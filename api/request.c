/* request.c: the parts of a request that every handler needs: its headers, and its query read as
 * numbers, flags and names. Nothing here is kept past the request. */
#include "api/request.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/mem.h"

static const struct {
    const char *name;
    size_t len;
} HEADER_NAMES[HEADER__MAX] = {
#define NAME(id, text) [id] = {(text), sizeof(text) - 1}
    NAME(HEADER_HOST, "Host"),
    NAME(HEADER_CONTENT_LENGTH, "Content-Length"),
    NAME(HEADER_TRANSFER_ENCODING, "Transfer-Encoding"),
    NAME(HEADER_AUTHORIZATION, "Authorization"),
    NAME(HEADER_CONTENT_TYPE, "Content-Type"),
    NAME(HEADER_IDEMPOTENCY_KEY, "Idempotency-Key"),
    NAME(HEADER_ORIGIN, "Origin"),
    NAME(HEADER_SEC_FETCH_SITE, "Sec-Fetch-Site"),
    NAME(HEADER_IF_NONE_MATCH, "If-None-Match"),
    NAME(HEADER_RANGE, "Range"),
    NAME(HEADER_IF_RANGE, "If-Range"),
#undef NAME
};

void request_init(struct request *q, const char *method, const char *target, char *decoded)
{
    memset(q, 0, sizeof *q);
    q->method_name = method;
    q->method = strcmp(method, "GET") == 0    ? METHOD_GET
                : strcmp(method, "HEAD") == 0 ? METHOD_HEAD
                : strcmp(method, "POST") == 0 ? METHOD_POST
                                              : METHOD_OTHER;
    q->target = target;
    q->decoded = decoded;
    q->web_fd = -1;
    q->request_id = "";
}

void request_done(struct request *q)
{
    buf_done(&q->body);
    json_decref(q->json);
    q->json = NULL;
}

void request_out(struct request *q, const char *name, const char *fmt, ...)
{
    if (q->out_count == (int)ARRAY_LEN(q->out))
        BUG("more headers than the answer to %s has room for", q->target);
    struct out_header *h = &q->out[q->out_count++];
    h->name = name;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(h->value, sizeof h->value, fmt, ap);
    va_end(ap);
}

/* RFC 9110: token. */
static int is_token(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        int alnum = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        if (!alnum && (c == 0 || !strchr("!#$%&'*+-.^_`|~", c)))
            return 0;
    }
    return n > 0;
}

static int has_control(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return 1;
    }
    return 0;
}

void headers_add(struct headers *h, const char *name, size_t name_len, const char *value,
                 size_t value_len)
{
    if (!value)
        value = "";
    if (!is_token(name, name_len) || has_control(value, value_len))
        h->malformed = 1;
    for (int i = 0; i < HEADER__MAX; i++) {
        if (name_len != HEADER_NAMES[i].len ||
            strncasecmp(name, HEADER_NAMES[i].name, name_len) != 0)
            continue;
        if (h->of[i].count++ == 0) {
            h->of[i].value = value;
            h->of[i].len = value_len;
        }
        return;
    }
}

const char *query_get(const struct request *q, const char *name)
{
    for (int i = 0; i < q->param_count; i++)
        if (strcmp(q->params[i].name, name) == 0)
            return q->params[i].value;
    return NULL;
}

int query_int(const struct request *q, const char *name, int64_t min, int64_t max,
              int64_t otherwise, int64_t *ret, struct service_reply *r)
{
    const char *text = query_get(q, name);
    if (!text) {
        *ret = otherwise;
        return 0;
    }
    char range[80];
    if (max < INT64_MAX)
        snprintf(range, sizeof range, "one from %lld to %lld", (long long)min, (long long)max);
    else
        snprintf(range, sizeof range, "%lld or more", (long long)min);
    char *end = NULL;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    int digits =
        text[0] == '-' ? text[1] >= '0' && text[1] <= '9' : text[0] >= '0' && text[0] <= '9';
    if (!digits || *end != '\0')
        return service_fail(r, 400, "invalid_parameter",
                            "%s is \"%.60s\", which is not a whole number; give %s.", name, text,
                            range);
    if (errno == ERANGE || v < min || v > max)
        return service_fail(r, 400, "invalid_parameter", "%s is %.60s; give %s.", name, text,
                            range);
    *ret = v;
    return 0;
}

int query_flag(const struct request *q, const char *name, int *ret, struct service_reply *r)
{
    const char *text = query_get(q, name);
    if (!text || strcmp(text, "0") == 0 || strcmp(text, "false") == 0)
        *ret = 0;
    else if (strcmp(text, "1") == 0 || strcmp(text, "true") == 0)
        *ret = 1;
    else
        return service_fail(r, 400, "invalid_parameter",
                            "%s is \"%.60s\"; it is a switch: give 1 or 0.", name, text);
    return 0;
}

int query_required(const struct request *q, const char *name, const char **ret,
                   struct service_reply *r)
{
    const char *text = query_get(q, name);
    if (!text || !*text)
        return service_fail(r, 400, "missing_parameter",
                            "%s is missing from the query; this call needs ?%s=...", name, name);
    *ret = text;
    return 0;
}
