/* http.c: two HTTP daemons (users, agents) behind one epoll descriptor, run by somebody else's
 * loop.
 *
 * The library runs without threads (external epoll): each daemon's epoll descriptor is in ours, so
 * that one descriptor tells of everything. Beside them ours holds all clients' sockets, watched for
 * hang-ups alone. What bounds it: CONNECTIONS below, 32 KiB of headers a connection, the
 * bodies' limit in exchange.c, the deadlines in clients.c.
 */
#include "api/http.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define USER_CONNECTIONS  4096
#define AGENT_CONNECTIONS 1024
#define SPARE_FILES       256 /* descriptors for everything that is not a connection */
#define MEMORY_LIMIT      (32 * 1024)
#define QUIET_S           60 /* the library closes connections on which nothing moved that long */
#define CLOSE_US          (500 * 1000LL) /* how long api_close() waits for answers to be taken */

/* ---- the library's two ways of speaking ---- */

/* It is kept for the sentence when a daemon cannot start; rooms below daemon do not log. */
static char last_message[200];

__attribute__((format(printf, 2, 0))) static void keep_message(void *cls, const char *fmt,
                                                               va_list ap)
{
    (void)cls;
    vsnprintf(last_message, sizeof last_message, fmt, ap);
    last_message[strcspn(last_message, "\n")] = '\0';
}

static void panic(void *cls, const char *file, unsigned line, const char *reason)
{
    (void)cls;
    BUG("libmicrohttpd gave up at %s:%u: %s", file, line, reason ? reason : "no reason given");
}

/* ---- limits ---- */

struct limits {
    unsigned users, agents;
};

/* Connections must leave descriptors over: without one, accepting spins. The process's soft limit
 * is raised as far as needed; where the hard one is lower, the defaults shrink to it, and a limit
 * that was asked for is an error. */
static int choose_limits(const struct api_options *o, struct limits *ret, struct err *e)
{
    struct rlimit files;
    struct limits want = {USER_CONNECTIONS, AGENT_CONNECTIONS};
    if (o->connection_limit < 0)
        return err_set(e, ERR_INVALID, "a connection limit of %d makes no sense; give 1 or more",
                       o->connection_limit);
    if (o->connection_limit > 0)
        want.users = want.agents = (unsigned)o->connection_limit;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return err_errno(e, "cannot read the limit of open files");
    rlim_t need = (rlim_t)want.users + (o->agent_listen ? want.agents : 0) + SPARE_FILES;
    if (files.rlim_cur < need && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = need < files.rlim_max ? need : files.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &files) < 0)
            return err_errno(e, "cannot raise the limit of open files to %llu",
                             (unsigned long long)files.rlim_cur);
    }
    if (files.rlim_cur < need) {
        if (o->connection_limit > 0 || files.rlim_cur < 2 * SPARE_FILES)
            return err_set(e, ERR_INVALID,
                           "%llu files may be open, but the connections asked for need %llu; raise "
                           "the limit (LimitNOFILE=, ulimit -n) or lower the connection limit",
                           (unsigned long long)files.rlim_cur, (unsigned long long)need);
        unsigned spare = (unsigned)(files.rlim_cur - SPARE_FILES);
        want.agents = o->agent_listen ? spare / 5 : 0;
        want.users = spare - want.agents;
    }
    *ret = want;
    return 0;
}

/* ---- one listener ---- */

static int start_daemon(struct listener *l, unsigned limit, struct err *e)
{
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (l->socket.host[0] == '[')
        flags |= MHD_USE_IPv6;
    /* Off loopback nobody takes more than a quarter of the places. */
    unsigned per_ip = l->socket.loopback ? 0 : limit / 4 + 1;
    last_message[0] = '\0';
    l->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, exchange_handle, l, MHD_OPTION_EXTERNAL_LOGGER, keep_message, NULL,
        MHD_OPTION_LISTEN_SOCKET, l->socket.fd, MHD_OPTION_CONNECTION_LIMIT, limit,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, per_ip, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)QUIET_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_LIMIT,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK, exchange_target, l,
        MHD_OPTION_NOTIFY_COMPLETED, exchange_completed, NULL, MHD_OPTION_NOTIFY_CONNECTION,
        clients_notify, l->api, MHD_OPTION_END);
    if (!l->daemon)
        return err_set(e, ERR_IO, "libmicrohttpd does not start on %s: %s", l->socket.address,
                       last_message[0] ? last_message : strerror(errno));
    return 0;
}

static int watch_daemon(struct listener *l, struct err *e)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info)
        return err_set(e, ERR_INTERNAL, "libmicrohttpd has no epoll descriptor");
    l->epoll_fd = info->epoll_fd;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = l};
    if (epoll_ctl(l->api->epoll_fd, EPOLL_CTL_ADD, l->epoll_fd, &ev) < 0)
        return err_errno(e, "cannot watch the HTTP daemon");
    return 0;
}

static int check_tokens(const struct listener *l, const struct api_options *o, struct err *e)
{
    if (l->socket.loopback)
        return 0;
    if (!o->agent_token)
        return err_set(e, ERR_INVALID,
                       "%s can be reached from other machines, so agents need a token there; set "
                       "one, or listen on 127.0.0.1",
                       l->socket.address);
    if (!l->agents_only && !o->api_token)
        return err_set(e, ERR_INVALID,
                       "%s can be reached from other machines, so its users need a token; set one, "
                       "or listen on 127.0.0.1",
                       l->socket.address);
    return 0;
}

static int open_listener(struct api *a, struct listener *l, const char *address, unsigned limit,
                         const struct api_options *o, struct err *e)
{
    l->api = a;
    l->agents_only = l == &a->agents;
    int rc = listen_open(address, &l->socket, e);
    if (rc == 0)
        rc = check_tokens(l, o, e);
    if (rc < 0)
        return rc;
    guard_init(&l->guard, l->socket.host, o->allowed_hosts, o->api_token, o->agent_token);
    rc = start_daemon(l, limit, e);
    return rc < 0 ? rc : watch_daemon(l, e);
}

/* The library closes the socket with the daemon, once it has it. */
static void close_listener(struct listener *l)
{
    if (l->daemon)
        MHD_stop_daemon(l->daemon);
    else if (l->socket.fd >= 0)
        close(l->socket.fd);
    guard_done(&l->guard);
}

static void stop_accepting(struct listener *l)
{
    MHD_socket fd = l->daemon ? MHD_quiesce_daemon(l->daemon) : MHD_INVALID_SOCKET;
    if (fd != MHD_INVALID_SOCKET)
        close(fd);
}

void http_run_listener(struct listener *l)
{
    l->kicked = 0;
    if (l->daemon)
        MHD_run(l->daemon);
}

/* ---- open and close ---- */

static struct api *api_new(struct service *service)
{
    struct api *a = mem_zalloc(sizeof *a);
    a->service = service;
    a->epoll_fd = a->web_fd = a->users.socket.fd = a->agents.socket.fd = -1;
    a->sweep_us = INT64_MAX;
    a->now_us = clock_boottime_us();
    struct link *rings[] = {&a->clients, &a->held, &a->waiting, &a->waiting_unsaved, &a->deferred};
    for (size_t i = 0; i < ARRAY_LEN(rings); i++)
        link_init(rings[i]);
    char id[ID_SIZE];
    id_new("req", id); /* its time and a part of its random bits name this process's life */
    snprintf(a->id_prefix, sizeof a->id_prefix, "%.18s", id);
    return a;
}

static int open_web(struct api *a, const char *dir, struct err *e)
{
    if (!dir)
        return 0;
    a->web_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (a->web_fd < 0)
        return err_errno(e, "cannot open the directory of the page, %s", dir);
    return 0;
}

static int open_all(struct api *a, const struct api_options *o, struct err *e)
{
    struct limits limits = {0};
    int rc = choose_limits(o, &limits, e);
    if (rc == 0)
        rc = open_web(a, o->web_dir, e);
    if (rc < 0)
        return rc;
    a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (a->epoll_fd < 0)
        return err_errno(e, "cannot make an epoll descriptor");
    rc = open_listener(a, &a->users, o->listen, limits.users, o, e);
    if (rc == 0 && o->agent_listen)
        rc = open_listener(a, &a->agents, o->agent_listen, limits.agents, o, e);
    return rc;
}

int api_open(const struct api_options *o, struct service *service, struct api **ret, struct err *e)
{
    MHD_set_panic_func(panic, NULL);
    if (sodium_init() < 0)
        return err_set(e, ERR_INTERNAL, "libsodium does not start");
    if (!o->listen)
        return err_set(e, ERR_INVALID, "no address to listen on was given");
    struct api *a = api_new(service);
    int rc = open_all(a, o, e);
    if (rc < 0)
        api_close(a);
    else
        *ret = a;
    return rc;
}

static void run_daemons(struct api *a)
{
    http_run_listener(&a->users);
    http_run_listener(&a->agents);
}

/* Sends what was answered, as far as clients take it, for CLOSE_US at most. */
static void flush(struct api *a)
{
    int64_t end = clock_boottime_us() + CLOSE_US;
    run_daemons(a);
    while (a->unsent > 0) {
        a->now_us = clock_boottime_us();
        if (a->now_us >= end)
            break;
        struct pollfd p = {.fd = a->epoll_fd, .events = POLLIN};
        poll(&p, 1, (int)((end - a->now_us) / 1000) + 1);
        run_daemons(a);
    }
}

void api_close(struct api *a)
{
    if (!a)
        return;
    a->closing = 1;
    stop_accepting(&a->users);
    stop_accepting(&a->agents);
    exchange_release_all(a);
    flush(a);
    close_listener(&a->users);
    close_listener(&a->agents);
    if (a->epoll_fd >= 0)
        close(a->epoll_fd);
    if (a->web_fd >= 0)
        close(a->web_fd);
    free(a);
}

/* ---- running ---- */

const char *api_address(const struct api *a)
{
    return a->users.socket.address;
}

const char *api_agent_address(const struct api *a)
{
    return a->agents.daemon ? a->agents.socket.address : NULL;
}

int api_epoll_fd(const struct api *a)
{
    return a->epoll_fd;
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

static int64_t listener_timeout_us(const struct listener *l)
{
    MHD_UNSIGNED_LONG_LONG ms = 0;
    if (!l->daemon || MHD_get_timeout(l->daemon, &ms) != MHD_YES)
        return -1;
    return ms > INT32_MAX ? INT32_MAX * 1000LL : (int64_t)ms * 1000;
}

int64_t api_timeout_us(const struct api *a)
{
    if (a->users.kicked || a->agents.kicked)
        return 0;
    int64_t t = sooner(listener_timeout_us(&a->users), listener_timeout_us(&a->agents));
    if (a->sweep_us == INT64_MAX)
        return t;
    int64_t left = a->sweep_us - clock_boottime_us();
    return sooner(t, left > 0 ? left : 0);
}

/* Only hang-ups need a look: both daemons run in any case. */
static void note_hung_up(struct api *a)
{
    struct epoll_event ev[64];
    int n = epoll_wait(a->epoll_fd, ev, ARRAY_LEN(ev), 0);
    for (int i = 0; i < n; i++)
        if (ev[i].data.ptr != &a->users && ev[i].data.ptr != &a->agents)
            client_hung_up(a, ev[i].data.ptr);
}

void api_run(struct api *a)
{
    a->now_us = clock_boottime_us();
    note_hung_up(a);
    clients_sweep(a);
    run_daemons(a);
}

/* The library serves a resumed connection when it runs, and not before: so it runs, with `quiet`
 * keeping the verbs out, since the next turn's transaction has not begun. */
void api_turn_done(struct api *a, const struct err *error)
{
    a->now_us = clock_boottime_us();
    exchange_release_held(a, error);
    a->quiet = 1;
    if (a->users.kicked)
        http_run_listener(&a->users);
    if (a->agents.kicked)
        http_run_listener(&a->agents);
    a->quiet = 0;
    exchange_release_deferred(a);
}
