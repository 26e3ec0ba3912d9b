/* reply.c: the one exit: a reply of a verb, or a failure, becomes status, headers and bytes.
 *
 * Bodies of up to SCRATCH_SIZE are dumped into a static buffer and copied once; the process has one
 * thread, and the buffer is free again when reply_encode returns. Files up to SMALL_FILE bytes are
 * read here and now, so that a slow reader of a log does not hold a descriptor; larger ones go out
 * by sendfile.
 */
#include "api/reply.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/handlers.h"
#include "base/mem.h"

#define SCRATCH_SIZE (64 * 1024)
#define SMALL_FILE   (64 * 1024)
#define JSON_TYPE    "application/json"
#define PROBLEM_TYPE "application/problem+json"

/* ---- struct service_reply ---- */

void service_reply_init(struct service_reply *r)
{
    memset(r, 0, sizeof *r);
    r->status = 200;
    r->file_fd = -1;
}

void service_reply_done(struct service_reply *r)
{
    json_decref(r->body);
    free(r->location);
    free(r->etag);
    free(r->text);
    if (r->file_fd >= 0)
        close(r->file_fd);
    faults_done(&r->faults);
    faults_done(&r->warnings);
    memset(r, 0, sizeof *r);
    r->file_fd = -1;
}

static int code_of_status(int status)
{
    switch (status) {
    case 401:
    case 403: return ERR_UNAUTHORIZED;
    case 404: return ERR_NOT_FOUND;
    case 409:
    case 412: return ERR_CONFLICT;
    case 413:
    case 414: return ERR_TOO_LARGE;
    case 429:
    case 503: return ERR_UNAVAILABLE;
    case 507: return ERR_NO_SPACE;
    default: return status >= 500 ? ERR_INTERNAL : ERR_INVALID;
    }
}

int service_fail(struct service_reply *r, int status, const char *code, const char *fmt, ...)
{
    r->status = status;
    snprintf(r->code, sizeof r->code, "%s", code);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->detail, sizeof r->detail, fmt, ap);
    va_end(ap);
    return code_of_status(status);
}

/* ---- bytes ---- */

static struct MHD_Response *from_copy(const void *bytes, size_t n)
{
    /* The library wants a non-const pointer, and only reads from it. */
    struct MHD_Response *m =
        MHD_create_response_from_buffer(n, (void *)(uintptr_t)bytes, MHD_RESPMEM_MUST_COPY);
    if (!m)
        BUG("no memory for a response of %zu bytes", n);
    return m;
}

/* Takes bytes that came from malloc(). */
static struct MHD_Response *from_owned(char *bytes, size_t n)
{
    struct MHD_Response *m = MHD_create_response_from_buffer(n, bytes, MHD_RESPMEM_MUST_FREE);
    if (!m)
        BUG("no memory for a response of %zu bytes", n);
    return m;
}

/* A number of at most 15 digits is shown as it was written, 0.1 and not 0.10000000000000001; 17
 * digits bring back every double exactly, for programs that compute with them. */
#define REAL_DIGITS_SHOWN 15
#define REAL_DIGITS_EXACT 17

/* JSON text and a newline, for the sake of people at terminals. NULL if it cannot be dumped. */
static struct MHD_Response *from_json(const json_t *doc, size_t precision, int64_t *ret_bytes)
{
    size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(precision);
    static char scratch[SCRATCH_SIZE];
    size_t n = json_dumpb(doc, scratch, sizeof scratch - 1, flags);
    if (n == 0)
        return NULL;
    *ret_bytes = (int64_t)n + 1;
    if (n < sizeof scratch) {
        scratch[n] = '\n';
        return from_copy(scratch, n + 1);
    }
    char *text = mem_alloc(n + 1);
    json_dumpb(doc, text, n, flags);
    text[n] = '\n';
    return from_owned(text, n + 1);
}

/* Takes the fd. NULL if the file is shorter than it was said to be. */
static struct MHD_Response *from_file(struct service_reply *r)
{
    size_t n = (size_t)r->file_length;
    if (r->file_length > SMALL_FILE) {
        struct MHD_Response *m = MHD_create_response_from_fd_at_offset64(
            (uint64_t)r->file_length, r->file_fd, (uint64_t)r->file_offset);
        if (m)
            r->file_fd = -1;
        return m;
    }
    char bytes[SMALL_FILE];
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(r->file_fd, bytes + got, n - got, r->file_offset + (off_t)got);
        if (k == 0 || (k < 0 && errno != EINTR))
            return NULL;
        got += k > 0 ? (size_t)k : 0;
    }
    return from_copy(bytes, n);
}

/* ---- heads ---- */

static void add(struct MHD_Response *m, const char *name, const char *value)
{
    if (MHD_add_response_header(m, name, value) != MHD_YES)
        BUG("the header %s: %s cannot be sent", name, value);
}

/* A value that came from a verb: bytes that no header can have become '?'. */
static void add_clean(struct MHD_Response *m, const char *name, const char *value)
{
    char clean[1024];
    size_t n = 0;
    for (; value[n] && n < sizeof clean - 1; n++)
        clean[n] = value[n] < 0x20 || value[n] >= 0x7f ? '?' : value[n];
    clean[n] = '\0';
    if (n)
        add(m, name, clean);
}

static void add_etag(struct MHD_Response *m, const char *etag)
{
    char quoted[256];
    if (etag[0] == '"' || strncmp(etag, "W/", 2) == 0)
        snprintf(quoted, sizeof quoted, "%s", etag);
    else
        snprintf(quoted, sizeof quoted, "\"%s\"", etag);
    add_clean(m, "ETag", quoted);
}

static void add_common(const struct request *q, const struct service_reply *r,
                       struct MHD_Response *m)
{
    int cache_said = 0;
    for (int i = 0; i < q->out_count; i++) {
        add_clean(m, q->out[i].name, q->out[i].value);
        cache_said |= strcmp(q->out[i].name, "Cache-Control") == 0;
    }
    if (r->location)
        add_clean(m, "Location", r->location);
    if (r->etag)
        add_etag(m, r->etag);
    if (r->retry_after_s > 0) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", r->retry_after_s);
        add(m, "Retry-After", seconds);
    }
    if (!cache_said)
        add(m, "Cache-Control", r->etag ? "no-cache" : "no-store");
    add(m, "X-Content-Type-Options", "nosniff");
    if (*q->request_id)
        add(m, "X-Request-Id", q->request_id);
}

/* ---- If-None-Match ---- */

/* The opaque part of an entity tag, without W/ and quotes. */
static const char *tag_core(const char *tag, size_t n, size_t *ret_len)
{
    if (n >= 2 && tag[0] == 'W' && tag[1] == '/') {
        tag += 2;
        n -= 2;
    }
    if (n >= 2 && tag[0] == '"' && tag[n - 1] == '"') {
        tag++;
        n -= 2;
    }
    *ret_len = n;
    return tag;
}

int reply_not_modified(const struct request *q, const char *etag)
{
    const struct header *h = &q->headers.of[HEADER_IF_NONE_MATCH];
    if (!h->value || !etag)
        return 0;
    size_t want_len = 0;
    const char *want = tag_core(etag, strlen(etag), &want_len);
    for (const char *p = h->value; *p;) {
        p += strspn(p, ", \t");
        size_t n = strcspn(p, ",");
        size_t trimmed = n;
        while (trimmed && (p[trimmed - 1] == ' ' || p[trimmed - 1] == '\t'))
            trimmed--;
        if (trimmed == 1 && *p == '*')
            return 1;
        size_t len = 0;
        const char *tag = tag_core(p, trimmed, &len);
        if (trimmed && len == want_len && memcmp(tag, want, len) == 0)
            return 1;
        p += n;
    }
    return 0;
}

/* ---- problems ---- */

/* Text that may carry a client's broken bytes, as a JSON string all the same. */
static json_t *text_json(const char *text)
{
    json_t *s = json_string(text);
    if (s)
        return s;
    char *clean = mem_strdup(text);
    for (char *p = clean; *p; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    s = json_string(clean);
    free(clean);
    return s;
}

static json_t *problem_json(const struct request *q, const struct service_reply *r)
{
    const char *title = MHD_get_reason_phrase_for((unsigned)r->status);
    json_t *doc = json_object();
    json_object_set_new(doc, "type", json_string("about:blank"));
    json_object_set_new(doc, "title", json_string(title));
    json_object_set_new(doc, "status", json_integer(r->status));
    json_object_set_new(doc, "code", text_json(r->code[0] ? r->code : "internal"));
    json_object_set_new(doc, "detail", text_json(r->detail));
    json_object_set_new(doc, "request_id", json_string(q->request_id));
    if (r->faults.count)
        json_object_set_new(doc, "errors", faults_to_json(&r->faults));
    if (r->warnings.count)
        json_object_set_new(doc, "warnings", faults_to_json(&r->warnings));
    if (json_is_object(r->body)) /* what else the verb has to say: the present size of a file */
        json_object_update_missing(doc, r->body);
    return doc;
}

static void encode_problem(const struct request *q, struct service_reply *r, struct reply *ret)
{
    if (r->status < 400 || r->status > 599)
        service_fail(r, 500, "internal",
                     "The server failed without saying why; please report this with the request "
                     "id.");
    json_t *doc = problem_json(q, r);
    ret->status = (unsigned)r->status;
    ret->response = from_json(doc, REAL_DIGITS_SHOWN, &ret->bytes);
    json_decref(doc);
    if (!ret->response)
        BUG("a problem document that cannot be dumped");
    add(ret->response, "Content-Type", PROBLEM_TYPE);
    add_common(q, r, ret->response);
}

/* ---- successes ---- */

static struct MHD_Response *encode_body(struct service_reply *r, struct reply *ret)
{
    if (r->file_fd >= 0) {
        ret->bytes = r->file_length;
        return from_file(r);
    }
    if (r->text) {
        size_t n = strlen(r->text);
        ret->bytes = (int64_t)n;
        return from_owned(STEAL(r->text), n);
    }
    if (!r->body)
        return from_copy("", 0);
    if (r->warnings.count && json_is_object(r->body))
        json_object_set_new(r->body, "warnings", faults_to_json(&r->warnings));
    return from_json(r->body, r->exact ? REAL_DIGITS_EXACT : REAL_DIGITS_SHOWN, &ret->bytes);
}

static void encode_not_modified(const struct request *q, const struct service_reply *r,
                                struct reply *ret)
{
    ret->status = 304;
    ret->response = from_copy("", 0);
    add_common(q, r, ret->response);
}

void reply_encode(const struct request *q, int rc, struct service_reply *r, struct reply *ret)
{
    *ret = (struct reply){0};
    if (rc < 0) {
        encode_problem(q, r, ret);
        return;
    }
    if (r->status == 200 && q->method != METHOD_POST && reply_not_modified(q, r->etag)) {
        encode_not_modified(q, r, ret);
        return;
    }
    ret->status = (unsigned)r->status;
    ret->response = encode_body(r, ret);
    if (!ret->response) {
        service_fail(r, 500, "internal",
                     "The answer could not be read or written down; please report this with the "
                     "request id.");
        encode_problem(q, r, ret);
        return;
    }
    add(ret->response, "Content-Type", r->content_type ? r->content_type : JSON_TYPE);
    add_common(q, r, ret->response);
}

void reply_encode_uncommitted(const struct request *q, const struct err *error, struct reply *ret)
{
    struct service_reply r;
    service_reply_init(&r);
    int rc;
    if (error->code == ERR_NO_SPACE) {
        rc = service_fail(&r, 507, "insufficient_storage",
                          "Nothing was stored, because the disk is full: %.400s", error->text);
    } else {
        rc = service_fail(&r, 503, "unavailable", "Nothing was stored; try again. %.400s",
                          error->text);
        r.retry_after_s = 1;
    }
    reply_encode(q, rc, &r, ret);
    service_reply_done(&r);
}

void reply_drop(struct reply *p)
{
    if (p->response)
        MHD_destroy_response(p->response);
    *p = (struct reply){0};
}
