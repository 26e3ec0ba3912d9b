/* files.c: logs, artifacts and the page: answers that are files.
 *
 * What jobs wrote is hostile: it is sent with a fixed type, nosniff and a policy that lets a
 * browser run nothing of it. The page comes from one directory, opened beneath its descriptor.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/handlers.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

#define LOG_DEFAULT (64 * 1024)
#define LOG_MAX     (1024 * 1024)
#define POLICY_NONE "default-src 'none'; sandbox; frame-ancestors 'none'"
#define POLICY_PAGE                                                                                \
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "            \
    "object-src 'none'"

/* ---- logs ---- */

static int log_query(const struct request *q, struct log_request *log, struct service_reply *r)
{
    int64_t tail = 0;
    if (query_get(q, "tail") && query_get(q, "offset"))
        return service_fail(r, 400, "invalid_parameter",
                            "offset and tail exclude each other: offset counts from the start, "
                            "tail from the end.");
    if (query_int(q, "rank", 0, INT32_MAX, 0, &log->rank, r) < 0 ||
        query_int(q, "attempt", 1, INT32_MAX, 0, &log->attempt, r) < 0 ||
        query_int(q, "offset", 0, INT64_MAX, 0, &log->offset, r) < 0 ||
        query_int(q, "tail", 1, LOG_MAX, 0, &tail, r) < 0 ||
        query_int(q, "limit", 1, LOG_MAX, LOG_DEFAULT, &log->limit, r) < 0)
        return ERR_INVALID;
    if (tail) {
        log->offset = -tail;
        if (!query_get(q, "limit"))
            log->limit = tail;
    }
    return 0;
}

int files_log(struct service *s, struct request *q, struct service_reply *r)
{
    struct log_request log = {.id = q->args[0]};
    if (log_query(q, &log, r) < 0)
        return ERR_INVALID;
    int64_t size = 0;
    int rc = service_job_log(s, &log, &size, r);
    if (rc < 0)
        return rc;
    r->content_type = "text/plain; charset=utf-8";
    request_out(q, "X-Log-Offset", "%" PRId64, r->file_offset);
    request_out(q, "X-Log-Size", "%" PRId64, size);
    request_out(q, "Content-Security-Policy", POLICY_NONE);
    return rc;
}

/* ---- ranges (RFC 9110, section 14) ---- */

/* A decimal number, -1 for none; more than fits is as good as the largest. */
static int64_t digits(const char **p)
{
    int64_t n = -1;
    for (; **p >= '0' && **p <= '9'; (*p)++) {
        if (n < 0)
            n = **p - '0';
        else
            n = n > (INT64_MAX - 9) / 10 ? INT64_MAX : n * 10 + (**p - '0');
    }
    return n;
}

/* One range of bytes, "bytes=0-99", "bytes=100-" or "bytes=-100". 0: none that we understand, which
 * the standard has us answer in full. 1: first..last within size. -1: none of it is in the file. */
static int parse_range(const char *text, int64_t size, int64_t *ret_first, int64_t *ret_last)
{
    if (strncasecmp(text, "bytes=", 6) != 0)
        return 0;
    const char *p = text + 6;
    int64_t first = digits(&p);
    if (*p++ != '-')
        return 0;
    int64_t last = digits(&p);
    if (*p != '\0' || (first < 0 && last < 0) || (first >= 0 && last >= 0 && last < first))
        return 0;
    if (first < 0) {
        first = last < size ? size - last : 0;
        last = last == 0 ? -1 : size - 1;
    } else if (last < 0 || last >= size) {
        last = size - 1;
    }
    if (first >= size || last < first)
        return -1;
    *ret_first = first;
    *ret_last = last;
    return 1;
}

/* A part is sent only to who holds the other parts of the same file. */
static int range_is_current(const struct request *q, const char *etag)
{
    const struct header *h = &q->headers.of[HEADER_IF_RANGE];
    if (!h->value)
        return 1;
    size_t n = etag ? strlen(etag) : 0;
    if (n && h->len == n + 2 && h->value[0] == '"')
        return memcmp(h->value + 1, etag, n) == 0;
    return n && h->len == n && memcmp(h->value, etag, n) == 0;
}

static int apply_range(struct request *q, struct service_reply *r)
{
    const struct header *h = &q->headers.of[HEADER_RANGE];
    request_out(q, "Accept-Ranges", "bytes");
    if (q->method != METHOD_GET || !h->value || r->file_fd < 0 || r->status != 200 ||
        reply_not_modified(q, r->etag) || !range_is_current(q, r->etag))
        return 0;
    int64_t size = r->file_length;
    int64_t first = 0;
    int64_t last = 0;
    int found = parse_range(h->value, size, &first, &last);
    if (found < 0) {
        request_out(q, "Content-Range", "bytes */%" PRId64, size);
        return service_fail(r, 416, "range_not_satisfiable",
                            "The file has %" PRId64 " bytes, and none of them is in \"%.60s\".",
                            size, h->value);
    }
    if (found == 0)
        return 0;
    r->status = 206;
    r->file_offset += first;
    r->file_length = last - first + 1;
    request_out(q, "Content-Range", "bytes %" PRId64 "-%" PRId64 "/%" PRId64, first, last, size);
    return 0;
}

/* ---- artifacts ---- */

int files_artifact_list(struct service *s, struct request *q, struct service_reply *r)
{
    return service_artifact_list(s, q->args[0], r);
}

int files_artifact(struct service *s, struct request *q, struct service_reply *r)
{
    int rc = service_artifact_get(s, q->args[0], q->args[1], r);
    if (rc < 0)
        return rc;
    r->content_type = "application/octet-stream";
    request_out(q, "Content-Disposition", "attachment");
    request_out(q, "Content-Security-Policy", POLICY_NONE);
    return apply_range(q, r);
}

/* ---- the page ---- */

static const char *type_of(const char *name)
{
    static const struct {
        const char *ending;
        const char *type;
    } TYPES[] = {
        {".html", "text/html; charset=utf-8"},
        {".js", "text/javascript; charset=utf-8"},
        {".mjs", "text/javascript; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},
        {".json", "application/json"},
        {".map", "application/json"},
        {".svg", "image/svg+xml"},
        {".png", "image/png"},
        {".ico", "image/vnd.microsoft.icon"},
        {".woff2", "font/woff2"},
        {".txt", "text/plain; charset=utf-8"},
    };
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < ARRAY_LEN(TYPES); i++)
        if (strcmp(dot, TYPES[i].ending) == 0)
            return TYPES[i].type;
    return "application/octet-stream";
}

static void page_path(const struct request *q, struct buf *path)
{
    buf_adds(path, q->segment_count == 0 ? "index.html" : "");
    for (int i = 0; i < q->segment_count; i++)
        buf_addf(path, "%s%s", i ? "/" : "", q->segments[i]);
}

static int no_page(const struct request *q, struct service_reply *r)
{
    if (q->web_fd < 0)
        return service_fail(r, 404, "not_found",
                            "This server has no web page; its API starts at /v1/jobs, and "
                            "/openapi.json describes it.");
    return service_fail(r, 404, "not_found",
                        "There is no page at %.200s; / is the first one, and /openapi.json lists "
                        "the API.",
                        q->target);
}

/* Opens a regular file beneath the directory, never one whose name starts with a dot. O_NONBLOCK,
 * so that a FIFO put there stops nothing. */
static int open_page(const struct request *q, const char *path, int *ret_fd, struct stat *ret_st)
{
    for (int i = 0; i < q->segment_count; i++)
        if (q->segments[i][0] == '.' || q->segments[i][0] == '\0')
            return ERR_NOT_FOUND;
    CLEANUP(mem_closep) int fd = -1;
    if (q->web_fd < 0 ||
        file_open_beneath(q->web_fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0, &fd, NULL) < 0 ||
        fstat(fd, ret_st) < 0 || !S_ISREG(ret_st->st_mode))
        return ERR_NOT_FOUND;
    *ret_fd = fd;
    fd = -1;
    return 0;
}

int files_page(struct service *s, struct request *q, struct service_reply *r)
{
    (void)s;
    struct buf path = BUF_INIT;
    page_path(q, &path);
    struct stat st;
    int rc = open_page(q, path.data, &r->file_fd, &st);
    r->content_type = rc < 0 ? NULL : type_of(path.data);
    buf_done(&path);
    if (rc < 0)
        return no_page(q, r);
    r->file_length = st.st_size;
    r->etag = mem_printf("%llx-%llx-%llx", (unsigned long long)st.st_mtim.tv_sec,
                         (unsigned long long)st.st_mtim.tv_nsec, (unsigned long long)st.st_size);
    request_out(q, "Content-Security-Policy", POLICY_PAGE);
    request_out(q, "Referrer-Policy", "no-referrer");
    return 0;
}
