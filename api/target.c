/* target.c: the request target, "/v1/jobs/x?limit=5", taken apart and decoded.
 *
 * Parts are cut first and decoded afterwards, so that an escaped delimiter never becomes one.
 * Every decoded part is a C string of valid UTF-8 without control characters: %00 and its kin end
 * here. The parts lie one after the other in request.decoded, which the caller made as long as the
 * target: decoding never lengthens, and each delimiter leaves room for one NUL.
 */
#include "api/request.h"

#include <string.h>

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The length of the UTF-8 sequence at s (RFC 3629), 0 if there is none of at most n bytes. */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80)
        return 1;
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return len;
}

static int is_clean_text(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        size_t len = s[i] < 0x20 || s[i] == 0x7f ? 0 : utf8_length(s + i, n - i);
        if (!len)
            return 0;
        i += len;
    }
    return 1;
}

static int refuse(struct service_reply *r, const char *part, size_t n, const char *why)
{
    return service_fail(r, 400, "invalid_target", "\"%.*s\" in the URL %s.", (int)(n < 60 ? n : 60),
                        part, why);
}

/* Decodes n bytes to *at, which moves past the NUL. Form rules: '+' is a space when `plus`. */
static int decode_part(const char *part, size_t n, int plus, char **at, const char **ret,
                       struct service_reply *r)
{
    char *out = *at;
    for (size_t i = 0; i < n; i++) {
        char c = part[i];
        if (c == '%') {
            int hi = i + 2 < n ? hex_value(part[i + 1]) : -1;
            int lo = i + 2 < n ? hex_value(part[i + 2]) : -1;
            if (hi < 0 || lo < 0)
                return refuse(r, part, n, "has a % that is not followed by two hex digits");
            c = (char)(hi * 16 + lo);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        *out++ = c;
    }
    if (!is_clean_text(*at, (size_t)(out - *at)))
        return refuse(r, part, n, "is not plain UTF-8 text once decoded");
    *out = '\0';
    *ret = *at;
    *at = out + 1;
    return 0;
}

static int decode_path(struct request *q, const char *path, const char *end, char **at,
                       struct service_reply *r)
{
    q->segment_count = 0;
    while (path < end) {
        path++; /* the slash */
        const char *slash = memchr(path, '/', (size_t)(end - path));
        const char *stop = slash ? slash : end;
        if (stop == path && stop == end)
            return 0; /* a trailing slash, or "/" itself */
        if (q->segment_count == REQUEST_MAX_SEGMENTS)
            return service_fail(r, 404, "not_found",
                                "There is nothing that deep: a path has at most %d parts.",
                                REQUEST_MAX_SEGMENTS);
        const char *segment = NULL;
        if (decode_part(path, (size_t)(stop - path), 0, at, &segment, r) < 0)
            return -1;
        q->segments[q->segment_count++] = segment;
        path = stop;
    }
    return 0;
}

static int decode_param(struct request *q, const char *part, size_t n, char **at,
                        struct service_reply *r)
{
    if (q->param_count == REQUEST_MAX_PARAMS)
        return service_fail(r, 400, "invalid_parameter",
                            "The query has more than %d parameters; no call takes that many.",
                            REQUEST_MAX_PARAMS);
    const char *equals = memchr(part, '=', n);
    size_t name_len = equals ? (size_t)(equals - part) : n;
    struct param p = {.value = ""};
    if (decode_part(part, name_len, 1, at, &p.name, r) < 0)
        return -1;
    if (equals && decode_part(equals + 1, n - name_len - 1, 1, at, &p.value, r) < 0)
        return -1;
    if (query_get(q, p.name))
        return service_fail(r, 400, "invalid_parameter",
                            "%.60s is given twice in the query; give it once.", p.name);
    q->params[q->param_count++] = p;
    return 0;
}

static int decode_query(struct request *q, const char *query, char **at, struct service_reply *r)
{
    q->param_count = 0;
    while (*query) {
        const char *amp = strchrnul(query, '&');
        if (amp > query && decode_param(q, query, (size_t)(amp - query), at, r) < 0)
            return -1;
        query = *amp ? amp + 1 : amp;
    }
    return 0;
}

int target_decode(struct request *q, struct service_reply *r)
{
    const char *mark = strchrnul(q->target, '?');
    char *at = q->decoded;
    if (decode_path(q, q->target, mark, &at, r) < 0)
        return -1;
    return *mark ? decode_query(q, mark + 1, &at, r) : 0;
}
