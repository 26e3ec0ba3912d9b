#include "cli/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/mem.h"

#define CONNECT_TIMEOUT_S 5L
#define REQUEST_TIMEOUT_S 60L
#define STALL_TIMEOUT_S   60L /* of a file: it may take hours, but not stand still */

struct http {
    CURL *curl;
    char *server; /* without a trailing slash */
    char *token;
    const volatile int *interrupted;
    int sink;       /* of the present request */
    int sink_errno; /* why writing to it failed */
    char error[CURL_ERROR_SIZE];
};

void http_reply_done(struct http_reply *r)
{
    buf_done(&r->body);
    json_decref(r->doc);
    free(r->content_type);
    *r = (struct http_reply){0};
}

static int check_server(const char *server, struct err *e)
{
    const char *host = strstr(server, "://");
    int known = strncmp(server, "http://", 7) == 0 || strncmp(server, "https://", 8) == 0;
    if (!known || !host[3] || strpbrk(host + 3, " @?#"))
        return err_set(e, ERR_INVALID,
                       "\"%.200s\" is not the URL of a server; write one like "
                       "http://127.0.0.1:8724",
                       server);
    return 0;
}

int http_open(const char *server, const char *token, const volatile int *interrupted,
              struct http **ret, struct err *e)
{
    int r = check_server(server, e);
    if (r < 0)
        return r;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(e, ERR_INTERNAL, "libcurl cannot be initialised");
    struct http *h = mem_zalloc(sizeof *h);
    h->server = mem_strdup(server);
    size_t n = strlen(h->server);
    while (n > 0 && h->server[n - 1] == '/')
        h->server[--n] = '\0';
    h->token = token ? mem_strdup(token) : NULL;
    h->interrupted = interrupted;
    h->curl = curl_easy_init();
    if (!h->curl) {
        http_close(h);
        return err_set(e, ERR_INTERNAL, "libcurl cannot make a handle");
    }
    *ret = h;
    return 0;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    curl_easy_cleanup(h->curl);
    if (h->token)
        explicit_bzero(h->token, strlen(h->token));
    free(h->token);
    free(h->server);
    free(h);
}

char *http_escape(const char *text)
{
    char *escaped = curl_easy_escape(NULL, text, 0);
    char *copy = mem_strdup(escaped ? escaped : "");
    curl_free(escaped);
    return copy;
}

/* Into the sink; fewer than `n` written breaks the request off. */
static size_t take_file(struct http *h, const char *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t written = write(h->sink, bytes + done, n - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            h->sink_errno = errno;
            return 0;
        }
        done += (size_t)written;
    }
    return n;
}

struct transfer {
    struct http *http;
    struct http_reply *reply;
};

static size_t take_body(char *bytes, size_t size, size_t n, void *user)
{
    const struct transfer *t = user;
    struct http_reply *r = t->reply;
    long status = 0;
    curl_easy_getinfo(t->http->curl, CURLINFO_RESPONSE_CODE, &status);
    if (t->http->sink && status == 200)
        return take_file(t->http, bytes, size * n);
    if (r->body.len + size * n > HTTP_MAX_REPLY)
        return 0; /* CURLE_WRITE_ERROR */
    buf_add(&r->body, bytes, size * n);
    return size * n;
}

static size_t take_header(char *bytes, size_t size, size_t n, void *user)
{
    struct http_reply *r = user;
    char line[128] = "";
    memcpy(line, bytes, size * n < sizeof line ? size * n : sizeof line - 1);
    if (strncasecmp(line, "X-Log-Offset:", 13) == 0)
        r->log_offset = strtoll(line + 13, NULL, 10);
    if (strncasecmp(line, "X-Log-Size:", 11) == 0)
        r->log_size = strtoll(line + 11, NULL, 10);
    if (strncasecmp(line, "Retry-After:", 12) == 0)
        r->retry_after_s = (int)strtol(line + 12, NULL, 10);
    return size * n;
}

static int watch_interrupt(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    const struct http *h = user;
    return h->interrupted && *h->interrupted;
}

static int is_loopback(const char *server)
{
    const char *host = strstr(server, "://") + 3;
    return strncmp(host, "127.", 4) == 0 || strncasecmp(host, "localhost", 9) == 0 ||
           strncmp(host, "[::1]", 5) == 0;
}

static struct curl_slist *make_headers(const struct http *h, const struct http_request *q)
{
    struct curl_slist *list = curl_slist_append(NULL, "Accept: application/json, */*");
    if (q->body) {
        list = curl_slist_append(list, "Content-Type: application/json");
        list = curl_slist_append(list, "Expect:");
    }
    if (h->token) {
        CLEANUP(mem_freep) char *line = mem_printf("Authorization: Bearer %s", h->token);
        list = curl_slist_append(list, line);
    }
    if (q->idempotency_key) {
        CLEANUP(mem_freep) char *line = mem_printf("Idempotency-Key: %s", q->idempotency_key);
        list = curl_slist_append(list, line);
    }
    return list;
}

static void set_options(struct http *h, const struct http_request *q, const char *url,
                        struct curl_slist *headers, struct transfer *t)
{
    CURL *c = h->curl;
    curl_easy_reset(c); /* keeps the connection */
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->error);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S);
    curl_easy_setopt(c, CURLOPT_TIMEOUT, q->sink ? 0 : REQUEST_TIMEOUT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, STALL_TIMEOUT_S);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "trainyard/" TRAINYARD_VERSION);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t->reply);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, watch_interrupt);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, h);
    if (is_loopback(h->server))
        curl_easy_setopt(c, CURLOPT_PROXY, ""); /* a proxy would look at its own loopback */
    if (q->body) {
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body_len);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, q->body);
    }
    if (strcmp(q->method, q->body ? "POST" : "GET") != 0)
        curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, q->method);
}

static int explain(const struct http *h, CURLcode code, struct err *e)
{
    const char *why = h->error[0] ? h->error : curl_easy_strerror(code);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return err_set(e, ERR_TIMEOUT, "interrupted");
    if (code == CURLE_WRITE_ERROR && h->sink_errno)
        return err_set(e, ERR_IO, "the file cannot be written: %s", strerror(h->sink_errno));
    if (code == CURLE_WRITE_ERROR)
        return err_set(e, ERR_TOO_LARGE, "the answer of %s is larger than %d MiB", h->server,
                       HTTP_MAX_REPLY >> 20);
    if (code == CURLE_URL_MALFORMAT || code == CURLE_COULDNT_RESOLVE_HOST)
        return err_set(e, ERR_UNAVAILABLE, "cannot find %s: %s", h->server, why);
    if (code == CURLE_COULDNT_CONNECT)
        return err_set(e, ERR_UNAVAILABLE,
                       "nothing answers at %s (%s).\nIs the coordinator running? Start it with "
                       "\"systemctl start trainyardd\" or \"trainyardd --state-dir DIR\"; name "
                       "another one with --server URL or $TRAINYARD_SERVER.",
                       h->server, why);
    return err_set(e, ERR_UNAVAILABLE, "the connection to %s broke: %s", h->server, why);
}

static void finish_reply(struct http *h, struct http_reply *r)
{
    long status = 0;
    const char *type = NULL;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(h->curl, CURLINFO_CONTENT_TYPE, &type);
    r->status = (int)status;
    r->content_type = mem_strdup(type ? type : "");
    if (!r->body.data)
        buf_adds(&r->body, "");
    if (strstr(r->content_type, "json"))
        r->doc = json_loadb(r->body.data, r->body.len, 0, NULL);
}

int http_send(struct http *h, const struct http_request *q, struct http_reply *ret, struct err *e)
{
    struct http_reply r = {.log_offset = -1, .log_size = -1};
    struct transfer t = {h, &r};
    if (q->sink && (ftruncate(q->sink, 0) < 0 || lseek(q->sink, 0, SEEK_SET) < 0))
        return err_set(e, ERR_IO, "the file cannot be written: %s", strerror(errno));
    h->sink = q->sink;
    h->sink_errno = 0;
    CLEANUP(mem_freep) char *url = mem_printf("%s%s", h->server, q->path);
    struct curl_slist *headers = make_headers(h, q);
    h->error[0] = '\0';
    set_options(h, q, url, headers, &t);
    CURLcode code = curl_easy_perform(h->curl);
    curl_slist_free_all(headers);
    if (code != CURLE_OK) {
        http_reply_done(&r);
        return explain(h, code, e);
    }
    finish_reply(h, &r);
    *ret = r;
    return 0;
}
