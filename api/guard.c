/* guard.c: what is refused before any handler runs.
 *
 * The HTTP library is lenient where proxies and browsers are not, and each leniency is an attack:
 * Content-Length beside Transfer-Encoding (smuggling), %00 in a path (truncated routing), any Host
 * (DNS rebinding), any origin (a web page posting jobs through its visitor). Each check reads the
 * raw request; each refusal says what would have worked.
 */
#include "api/guard.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/routes.h"
#include "base/buf.h"
#include "base/mem.h"

static int header_is(const struct header *h, const char *text)
{
    return h->value && h->len == strlen(text) && strncasecmp(h->value, text, h->len) == 0;
}

/* ---- the table of accepted hosts ---- */

void guard_init(struct guard *g, const char *bound_host, const char *allowed_hosts,
                const char *user_token, const char *agent_token)
{
    struct buf hosts = BUF_INIT;
    buf_addf(&hosts, "%s,", bound_host);
    for (const char *p = allowed_hosts; p && *p;) {
        p += strspn(p, ", \t");
        size_t n = strcspn(p, ", \t");
        if (n)
            buf_addf(&hosts, "%.*s,", (int)n, p);
        p += n;
    }
    *g = (struct guard){
        .hosts = buf_steal(&hosts),
        .any_ip = strcmp(bound_host, "0.0.0.0") == 0 || strcmp(bound_host, "[::]") == 0,
        .user_token = user_token ? mem_strdup(user_token) : NULL,
        .agent_token = agent_token ? mem_strdup(agent_token) : NULL,
    };
}

void guard_done(struct guard *g)
{
    free(g->hosts);
    free(g->user_token);
    free(g->agent_token);
    *g = (struct guard){0};
}

/* Splits "name:port" or "[v6]:port"; the length of the name, 0 if that is not what it is. */
static size_t host_name_length(const char *value, size_t len)
{
    size_t n = 0;
    if (len && value[0] == '[') {
        while (n < len && value[n] != ']')
            n++;
        n = n < len ? n + 1 : 0;
    } else {
        while (n < len && value[n] != ':')
            n++;
    }
    size_t i = n;
    if (i < len && value[i++] != ':')
        return 0;
    for (; i < len; i++)
        if (value[i] < '0' || value[i] > '9')
            return 0;
    return n;
}

static int host_is_loopback(const char *name)
{
    struct in_addr v4;
    return strcasecmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0 ||
           (inet_pton(AF_INET, name, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

static int host_is_literal(char *name)
{
    struct in6_addr any;
    size_t n = strlen(name);
    if (name[0] != '[')
        return inet_pton(AF_INET, name, &any) == 1;
    name[n - 1] = '\0';
    int literal = inet_pton(AF_INET6, name + 1, &any) == 1;
    name[n - 1] = ']';
    return literal;
}

static int host_is_listed(const struct guard *g, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = g->hosts; *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && strncasecmp(p, name, n) == 0)
            return 1;
        p += len + (p[len] == ',');
    }
    return 0;
}

static int check_host(const struct guard *g, const struct request *q, struct service_reply *r)
{
    const struct header *h = &q->headers.of[HEADER_HOST];
    if (!h->value)
        return service_fail(r, 400, "missing_host",
                            "The request has no Host header; send the name or address that you "
                            "connected to.");
    char name[256];
    size_t n = host_name_length(h->value, h->len);
    if (n == 0 || n >= sizeof name)
        return service_fail(r, 400, "invalid_host",
                            "Host is \"%.80s\"; it must be a name or address, with :port or not.",
                            h->value);
    memcpy(name, h->value, n);
    name[n] = '\0';
    if (n > 1 && name[n - 1] == '.')
        name[n - 1] = '\0';
    if (host_is_loopback(name) || host_is_listed(g, name) || (g->any_ip && host_is_literal(name)))
        return 0;
    return service_fail(r, 421, "host_not_allowed",
                        "This server does not answer to the name \"%.80s\". Use the address that "
                        "it listens on, or add the name to its allowed hosts.",
                        name);
}

/* ---- framing ---- */

static int check_single(const struct request *q, enum header_id id, const char *name,
                        struct service_reply *r)
{
    if (q->headers.of[id].count <= 1)
        return 0;
    return service_fail(r, 400, "duplicate_header",
                        "The request has %u %s headers; send one, since nobody can tell which of "
                        "them was meant.",
                        q->headers.of[id].count, name);
}

static int check_duplicates(const struct request *q, struct service_reply *r)
{
    static const struct {
        enum header_id id;
        const char *name;
    } SINGLE[] = {
        {HEADER_HOST, "Host"},
        {HEADER_CONTENT_LENGTH, "Content-Length"},
        {HEADER_TRANSFER_ENCODING, "Transfer-Encoding"},
        {HEADER_AUTHORIZATION, "Authorization"},
        {HEADER_CONTENT_TYPE, "Content-Type"},
        {HEADER_IDEMPOTENCY_KEY, "Idempotency-Key"},
        {HEADER_ORIGIN, "Origin"},
        {HEADER_SEC_FETCH_SITE, "Sec-Fetch-Site"},
        {HEADER_RANGE, "Range"},
    };
    for (size_t i = 0; i < ARRAY_LEN(SINGLE); i++)
        if (check_single(q, SINGLE[i].id, SINGLE[i].name, r) < 0)
            return -1;
    return 0;
}

/* Digits alone, and few enough that they cannot overflow; -1 otherwise. */
static int64_t content_length(const struct header *h)
{
    int64_t n = 0;
    if (h->len == 0 || h->len > 18)
        return -1;
    for (size_t i = 0; i < h->len; i++) {
        if (h->value[i] < '0' || h->value[i] > '9')
            return -1;
        n = n * 10 + (h->value[i] - '0');
    }
    return n;
}

static int check_framing(const struct request *q, struct service_reply *r)
{
    const struct header *te = &q->headers.of[HEADER_TRANSFER_ENCODING];
    const struct header *cl = &q->headers.of[HEADER_CONTENT_LENGTH];
    if (q->headers.malformed)
        return service_fail(r, 400, "invalid_header",
                            "A header has a name with characters that names cannot have (a space "
                            "before the colon, perhaps), or a control character in its value.");
    if (check_duplicates(q, r) < 0)
        return -1;
    if (te->value && cl->value)
        return service_fail(r, 400, "ambiguous_length",
                            "The request has both Transfer-Encoding and Content-Length; send one "
                            "of them.");
    if (te->value && (!header_is(te, "chunked") || q->http_1_0))
        return service_fail(r, 400, "unsupported_transfer_encoding",
                            "Transfer-Encoding is \"%.60s\"; only \"chunked\" is understood, and "
                            "that only with HTTP/1.1.",
                            te->value);
    if (cl->value && content_length(cl) < 0)
        return service_fail(r, 400, "invalid_content_length",
                            "Content-Length is \"%.60s\"; it must be a number of bytes.",
                            cl->value);
    return 0;
}

int64_t guard_body_length(const struct request *q)
{
    if (q->headers.of[HEADER_TRANSFER_ENCODING].value)
        return -1;
    const struct header *cl = &q->headers.of[HEADER_CONTENT_LENGTH];
    return cl->value ? content_length(cl) : 0;
}

/* ---- the target ---- */

static int has_escape(const char *s, const char *end, char hi, char lo)
{
    for (; s + 2 < end; s++)
        if (s[0] == '%' && s[1] == hi && (s[2] | 32) == (lo | 32))
            return 1;
    return 0;
}

static int check_target_bytes(const struct request *q, struct service_reply *r)
{
    const char *end = q->target + strlen(q->target);
    const char *path_end = strchrnul(q->target, '?');
    if (end - q->target > REQUEST_MAX_TARGET)
        return service_fail(r, 414, "target_too_long",
                            "The URL has %td bytes after the host; at most %d are accepted.",
                            end - q->target, REQUEST_MAX_TARGET);
    if (q->target[0] != '/')
        return service_fail(r, 400, "invalid_target",
                            "The request target must be a path that starts with a slash, such as "
                            "/v1/jobs.");
    for (const char *p = q->target; p < end; p++) {
        unsigned char c = (unsigned char)*p;
        if (c <= 0x20 || c >= 0x7f || c == '#' || c == '\\')
            return service_fail(r, 400, "invalid_target",
                                "The URL has the raw byte 0x%02x at position %td; write it as "
                                "%%%02X.",
                                c, p - q->target, c);
    }
    if (has_escape(q->target, end, '0', '0'))
        return service_fail(r, 400, "invalid_target", "The URL has a %%00; no name has one.");
    if (has_escape(q->target, path_end, '2', 'f') || has_escape(q->target, path_end, '5', 'c'))
        return service_fail(r, 400, "invalid_target",
                            "The path has an escaped slash or backslash (%%2F, %%5C); no name of "
                            "ours has one.");
    return 0;
}

static int check_segments(const struct request *q, struct service_reply *r)
{
    for (int i = 0; i < q->segment_count; i++)
        if (strcmp(q->segments[i], "..") == 0 || strcmp(q->segments[i], ".") == 0)
            return service_fail(r, 400, "invalid_target",
                                "The path has a \"%s\" part; write the path without it.",
                                q->segments[i]);
    return 0;
}

int guard_request(const struct guard *g, struct request *q, struct service_reply *r)
{
    if (check_framing(q, r) < 0 || check_target_bytes(q, r) < 0 || target_decode(q, r) < 0 ||
        check_segments(q, r) < 0)
        return -1;
    return check_host(g, q, r);
}

/* ---- what the route asks for ---- */

/* Browsers say where a call comes from; programs say nothing. "null" and other hosts are refused.
 */
static int check_origin(const struct request *q, struct service_reply *r)
{
    const struct header *site = &q->headers.of[HEADER_SEC_FETCH_SITE];
    const struct header *origin = &q->headers.of[HEADER_ORIGIN];
    const struct header *host = &q->headers.of[HEADER_HOST];
    if (site->value && !header_is(site, "same-origin") && !header_is(site, "none"))
        return service_fail(r, 403, "cross_site",
                            "A page of another site (Sec-Fetch-Site: %.40s) made this call; only "
                            "this server's own pages and programs may.",
                            site->value);
    if (!origin->value)
        return 0;
    size_t scheme = strncasecmp(origin->value, "http://", 7) == 0    ? 7
                    : strncasecmp(origin->value, "https://", 8) == 0 ? 8
                                                                     : 0;
    if (scheme && origin->len - scheme == host->len &&
        strncasecmp(origin->value + scheme, host->value, host->len) == 0)
        return 0;
    return service_fail(r, 403, "cross_site",
                        "The call comes from a page of %.80s, which is not this server (%.80s); "
                        "only its own pages and programs may make it.",
                        origin->value, host->value);
}

static int check_token(struct request *q, const char *token, const char *whose,
                       struct service_reply *r)
{
    const struct header *h = &q->headers.of[HEADER_AUTHORIZATION];
    if (!h->value) {
        request_out(q, "WWW-Authenticate", "Bearer realm=\"trainyard\"");
        return service_fail(r, 401, "unauthorized",
                            "This call needs the %s token; send it as \"Authorization: Bearer "
                            "TOKEN\".",
                            whose);
    }
    size_t n = strlen(token);
    if (h->len == n + 7 && strncasecmp(h->value, "Bearer ", 7) == 0 &&
        sodium_memcmp(h->value + 7, token, n) == 0)
        return 0;
    request_out(q, "WWW-Authenticate", "Bearer realm=\"trainyard\", error=\"invalid_token\"");
    return service_fail(r, 401, "unauthorized",
                        "The Authorization header does not carry the %s token; send it as "
                        "\"Bearer TOKEN\".",
                        whose);
}

static int check_role(const struct guard *g, struct request *q, struct service_reply *r)
{
    if (q->route->role == ROLE_USER && g->user_token)
        return check_token(q, g->user_token, "API", r);
    if (q->route->role == ROLE_AGENT && g->agent_token)
        return check_token(q, g->agent_token, "agent", r);
    return 0;
}

/* 1 for `type` alone or with charset=utf-8. */
static int type_is(const struct header *h, const char *type)
{
    size_t n = strlen(type);
    if (!h->value || h->len < n || strncasecmp(h->value, type, n) != 0)
        return 0;
    const char *p = h->value + n + strspn(h->value + n, " \t");
    if (*p == '\0')
        return 1;
    if (*p++ != ';')
        return 0;
    p += strspn(p, " \t");
    return strcasecmp(p, "charset=utf-8") == 0 || strcasecmp(p, "charset=\"utf-8\"") == 0;
}

static int check_type(const struct request *q, int64_t length, struct service_reply *r)
{
    const struct header *h = &q->headers.of[HEADER_CONTENT_TYPE];
    enum body_kind kind = q->route->body;
    const char *type = kind == BODY_BYTES ? "application/octet-stream" : "application/json";
    if (kind == BODY_NONE || (kind == BODY_OPTIONAL_JSON && length == 0 && !h->value))
        return 0;
    if (type_is(h, type))
        return 0;
    if (!h->value)
        return service_fail(r, 415, "unsupported_media_type",
                            "The body has no Content-Type; say what it is: with curl, add -H "
                            "'Content-Type: %s'.",
                            type);
    return service_fail(r, 415, "unsupported_media_type",
                        "Content-Type is \"%.80s\"; %s %s takes \"%s\": with curl, add -H "
                        "'Content-Type: %s'.",
                        h->value, q->method_name, q->route->pattern, type, type);
}

static int check_length(struct request *q, int64_t length, struct service_reply *r)
{
    if (q->route->body == BODY_NONE && length != 0)
        return service_fail(r, 400, "unexpected_body", "%s %s takes no body; send none.",
                            q->method_name, q->route->pattern);
    if (length > REQUEST_MAX_BODY)
        return service_fail(r, 413, "too_large",
                            "The body has %lld bytes; at most %d (1 MiB) are accepted.",
                            (long long)length, REQUEST_MAX_BODY);
    return 0;
}

static int check_idempotency_key(const struct request *q, struct service_reply *r)
{
    const struct header *h = &q->headers.of[HEADER_IDEMPOTENCY_KEY];
    if (!h->value)
        return 0;
    int good = h->len >= 1 && h->len <= 255;
    for (size_t i = 0; i < h->len; i++)
        good = good && h->value[i] > 0x20 && h->value[i] < 0x7f;
    if (good)
        return 0;
    return service_fail(r, 400, "invalid_idempotency_key",
                        "Idempotency-Key must be 1 to 255 visible ASCII characters without spaces; "
                        "this one has %zu bytes. A UUID is a good one.",
                        h->len);
}

int guard_route(const struct guard *g, struct request *q, struct service_reply *r)
{
    int64_t length = guard_body_length(q);
    if (q->method == METHOD_POST && check_origin(q, r) < 0)
        return -1;
    if (check_role(g, q, r) < 0 || check_type(q, length, r) < 0 || check_length(q, length, r) < 0 ||
        check_idempotency_key(q, r) < 0)
        return -1;
    return guard_params(q, r);
}

/* ---- parameters that do not exist ---- */

static int names_contain(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = names; *p;) {
        size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, name, n) == 0)
            return 1;
        p += len + (p[len] == ' ');
    }
    return 0;
}

int guard_params(struct request *q, struct service_reply *r)
{
    const char *names = q->route->params;
    for (int i = 0; names && i < q->param_count; i++) {
        const char *name = q->params[i].name;
        if (names_contain(names, name))
            continue;
        if (!*names)
            return service_fail(r, 400, "unknown_parameter",
                                "%s %s takes no query parameters; leave out \"%.60s\".",
                                q->method_name, q->route->pattern, name);
        return service_fail(r, 400, "unknown_parameter",
                            "\"%.60s\" is not a parameter of %s %s; those that exist: %s.", name,
                            q->method_name, q->route->pattern, names);
    }
    return 0;
}
