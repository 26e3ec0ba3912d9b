/* libcurl tells us which sockets and which one timer to watch (CURLMOPT_SOCKETFUNCTION and
 * TIMERFUNCTION), we tell it what became ready (curl_multi_socket_action), and then collect what
 * is complete. */
#include "daemon/agent/http.h"

#include <curl/curl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/mem.h"

#define HTTP_CONNECTIONS_KEPT 16
#define HTTP_LOST_PEER_MS     10000 /* unacknowledged data for longer: the connection is dead */

struct http_call {
    struct http_call *next;
    struct http *http;
    CURL *easy;
    struct curl_slist *headers;
    char *url;
    struct buf body;
    struct buf answer;
    char error[CURL_ERROR_SIZE];
    http_done_fn *done;
    void *arg;
};

struct http {
    sd_event *event;
    sd_event_source *timer;
    CURLM *multi;
    struct http_call *calls;
    char *base_url;
    char *authorization; /* a header line, or NULL */
};

static void call_free(struct http_call *c)
{
    if (c->easy) {
        curl_multi_remove_handle(c->http->multi, c->easy);
        curl_easy_cleanup(c->easy);
    }
    curl_slist_free_all(c->headers);
    free(c->url);
    buf_done(&c->body);
    buf_done(&c->answer);
    free(c);
}

static void unlink_call(struct http *h, struct http_call *c)
{
    for (struct http_call **p = &h->calls; *p; p = &(*p)->next) {
        if (*p == c) {
            *p = c->next;
            return;
        }
    }
}

static void complete(struct http *h, CURL *easy, CURLcode result)
{
    struct http_call *c = NULL;
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&c);
    if (result == CURLE_OK)
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    buf_reserve(&c->answer, 0);
    struct http_answer a = {
        .status = (int)status,
        .error = result == CURLE_OK ? "" : (*c->error ? c->error : curl_easy_strerror(result)),
        .body = c->answer.data,
        .size = c->answer.len,
    };
    unlink_call(h, c);
    c->done(c->arg, &a);
    call_free(c);
}

static void collect(struct http *h)
{
    int left;
    CURLMsg *m;
    while ((m = curl_multi_info_read(h->multi, &left))) {
        if (m->msg == CURLMSG_DONE)
            complete(h, m->easy_handle, m->data.result);
    }
}

/* ---- the loop's side ---- */

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
    struct http *h = userdata;
    int running;
    int what = (revents & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
               (revents & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
               (revents & EPOLLERR ? CURL_CSELECT_ERR : 0);
    (void)source;
    curl_multi_socket_action(h->multi, fd, what, &running);
    collect(h);
    return 0;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
    struct http *h = userdata;
    int running;
    (void)source;
    (void)usec;
    curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    collect(h);
    return 0;
}

/* ---- libcurl's side ---- */

static int socket_wanted(CURL *easy, curl_socket_t fd, int what, void *user, void *socket_data)
{
    struct http *h = user;
    sd_event_source *source = socket_data;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        sd_event_source_disable_unref(source);
        curl_multi_assign(h->multi, fd, NULL);
        return 0;
    }
    uint32_t events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    if (source)
        return sd_event_source_set_io_events(source, events) < 0 ? -1 : 0;
    if (sd_event_add_io(h->event, &source, fd, events, on_io, h) < 0)
        return -1;
    curl_multi_assign(h->multi, fd, source);
    return 0;
}

static int timer_wanted(CURLM *multi, long ms, void *user)
{
    struct http *h = user;
    (void)multi;
    if (ms < 0)
        return sd_event_source_set_enabled(h->timer, SD_EVENT_OFF) < 0 ? -1 : 0;
    uint64_t at = (uint64_t)clock_boottime_us() + (uint64_t)ms * 1000;
    if (sd_event_source_set_time(h->timer, at) < 0)
        return -1;
    return sd_event_source_set_enabled(h->timer, SD_EVENT_ONESHOT) < 0 ? -1 : 0;
}

static int tune_socket(void *user, curl_socket_t fd, curlsocktype purpose)
{
    unsigned ms = HTTP_LOST_PEER_MS;
    (void)user;
    (void)purpose;
    /* Best effort: the call's own deadline holds in any case. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    return CURL_SOCKOPT_OK;
}

static size_t take_answer(char *bytes, size_t size, size_t n, void *user)
{
    struct http_call *c = user;
    if (c->answer.len + size * n > HTTP_ANSWER_MAX)
        return 0; /* ends the call with CURLE_WRITE_ERROR */
    buf_add(&c->answer, bytes, size * n);
    return size * n;
}

int http_new(sd_event *event, const char *base_url, const char *token, struct http **ret,
             struct err *e)
{
    struct http *h = mem_zalloc(sizeof *h);
    h->event = event;
    h->base_url = mem_strdup(base_url);
    if (token)
        h->authorization = mem_printf("Authorization: Bearer %s", token);
    int bad = curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !(h->multi = curl_multi_init());
    if (bad ||
        sd_event_add_time(event, &h->timer, CLOCK_BOOTTIME, UINT64_MAX, 1000, on_timer, h) < 0) {
        http_free(h);
        return err_set(e, ERR_IO, "libcurl cannot be set up");
    }
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, socket_wanted);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, timer_wanted);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)HTTP_CONNECTIONS_KEPT);
    *ret = h;
    return 0;
}

void http_free(struct http *h)
{
    if (!h)
        return;
    while (h->calls) {
        struct http_call *c = h->calls;
        struct http_answer given_up = {.error = "given up", .body = ""};
        h->calls = c->next;
        c->done(c->arg, &given_up);
        call_free(c);
    }
    if (h->multi)
        curl_multi_cleanup(h->multi);
    sd_event_source_disable_unref(h->timer);
    free(h->base_url);
    free(h->authorization);
    free(h);
    curl_global_cleanup();
}

static void set_options(struct http_call *c, int timeout_ms)
{
    CURL *y = c->easy;
    curl_easy_setopt(y, CURLOPT_URL, c->url);
    curl_easy_setopt(y, CURLOPT_PRIVATE, c);
    curl_easy_setopt(y, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(y, CURLOPT_POST, 1L);
    curl_easy_setopt(y, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body.len);
    curl_easy_setopt(y, CURLOPT_POSTFIELDS, c->body.data);
    curl_easy_setopt(y, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(y, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(y, CURLOPT_ERRORBUFFER, c->error);
    curl_easy_setopt(y, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(y, CURLOPT_PROXY, ""); /* the token goes to the coordinator alone */
    curl_easy_setopt(y, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(y, CURLOPT_CONNECTTIMEOUT_MS, (long)HTTP_CONNECT_MS);
    curl_easy_setopt(y, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    curl_easy_setopt(y, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(y, CURLOPT_SOCKOPTFUNCTION, tune_socket);
}

int http_post(struct http *h, const char *path, const char *content_type, struct buf *take_body,
              int timeout_ms, http_done_fn *done, void *arg, struct err *e)
{
    struct http_call *c = mem_zalloc(sizeof *c);
    CLEANUP(mem_freep) char *type = mem_printf("Content-Type: %s", content_type);
    c->http = h;
    c->done = done;
    c->arg = arg;
    c->url = mem_printf("%s%s", h->base_url, path);
    buf_reserve(take_body, 0); /* libcurl wants a pointer, also to nothing */
    c->body = *take_body;
    *take_body = (struct buf)BUF_INIT;
    c->easy = curl_easy_init();
    c->headers = curl_slist_append(c->headers, type);
    c->headers = curl_slist_append(c->headers, "Expect:"); /* no round trip before the body */
    if (h->authorization)
        c->headers = curl_slist_append(c->headers, h->authorization);
    if (c->easy) {
        set_options(c, timeout_ms);
        if (curl_multi_add_handle(h->multi, c->easy) == CURLM_OK) {
            c->next = h->calls;
            h->calls = c;
            return 0;
        }
    }
    call_free(c);
    return err_set(e, ERR_IO, "libcurl cannot take another call");
}

char *http_escape(const char *name)
{
    char *escaped = curl_easy_escape(NULL, name, 0);
    if (!escaped)
        BUG("out of host memory while escaping a name");
    char *copy = mem_strdup(escaped);
    curl_free(escaped);
    return copy;
}
