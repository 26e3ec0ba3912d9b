/* listen.c: a listening socket from an address as people write it. Bound here and not by the HTTP
 * library, so that port 0, IPv6 and every failure can be told in our own words. */
#include "api/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"

#define BACKLOG 1024 /* the kernel lowers it to somaxconn */

static int malformed(const char *text, struct err *e)
{
    return err_set(e, ERR_INVALID,
                   "\"%.100s\" is no address to listen on; write one such as 127.0.0.1:8724, "
                   "[::1]:8724 or 0.0.0.0:8724",
                   text);
}

/* Cuts "host:port" into its parts; the brackets of an IPv6 host stay. */
static int split(const char *text, char host[LISTEN_ADDRESS_SIZE], char port[8], struct err *e)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    if (n == 0 || n >= LISTEN_ADDRESS_SIZE || (text[0] == '[') != (text[n - 1] == ']') ||
        (text[0] != '[' && memchr(text, ':', n)))
        return malformed(text, e);
    size_t digits = strspn(colon + 1, "0123456789");
    if (digits == 0 || digits > 5 || colon[1 + digits] != '\0' ||
        strtol(colon + 1, NULL, 10) > 65535)
        return err_set(e, ERR_INVALID,
                       "the port in \"%.100s\" must be a number from 0 (any free one) to 65535",
                       text);
    memcpy(host, text, n);
    host[n] = '\0';
    snprintf(port, 8, "%.5s", colon + 1);
    return 0;
}

static int resolve(const char *text, const char *host, const char *port, struct addrinfo **ret,
                   struct err *e)
{
    CLEANUP(mem_freep) char *bare = NULL;
    if (host[0] == '[')
        bare = mem_strndup(host + 1, strlen(host) - 2);
    else
        bare = mem_strdup(strcmp(host, "localhost") == 0 ? "127.0.0.1" : host);
    struct addrinfo hints = {
        .ai_family = host[0] == '[' ? AF_INET6 : AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
    };
    int rc = getaddrinfo(bare, port, &hints, ret);
    if (rc != 0)
        return err_set(e, ERR_INVALID, "cannot listen on %s: %s is no address of this machine (%s)",
                       text, host, gai_strerror(rc));
    return 0;
}

static int is_loopback(const struct sockaddr_storage *a)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (a->ss_family == AF_INET) {
        memcpy(&v4, a, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    memcpy(&v6, a, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127);
}

static int bind_failed(const char *text, struct err *e)
{
    switch (errno) {
    case EADDRINUSE:
        return err_set(e, ERR_CONFLICT,
                       "%s is taken: another program listens there; end it, or choose another port",
                       text);
    case EACCES:
        return err_set(e, ERR_INVALID,
                       "%s is not allowed: ports below 1024 need privileges; choose a higher one",
                       text);
    case EADDRNOTAVAIL:
        return err_set(e, ERR_INVALID, "cannot listen on %s: this machine has no such address",
                       text);
    default: return err_errno(e, "cannot listen on %s", text);
    }
}

static int describe(struct listen_socket *l, struct err *e)
{
    struct sockaddr_storage bound = {0};
    socklen_t n = sizeof bound;
    char host[INET6_ADDRSTRLEN];
    char port[8];
    if (getsockname(l->fd, (struct sockaddr *)&bound, &n) < 0)
        return err_errno(e, "cannot read the address of a socket");
    if (getnameinfo((struct sockaddr *)&bound, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return err_set(e, ERR_IO, "cannot print the address of a socket");
    l->loopback = is_loopback(&bound);
    snprintf(l->address, sizeof l->address, bound.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
             port);
    return 0;
}

static int open_at(const struct addrinfo *a, const char *text, struct listen_socket *l,
                   struct err *e)
{
    int on = 1;
    l->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return err_errno(e, "cannot make a socket for %s", text);
    if (setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0)
        return err_errno(e, "cannot set up the socket for %s", text);
    if (bind(l->fd, a->ai_addr, a->ai_addrlen) < 0 || listen(l->fd, BACKLOG) < 0)
        return bind_failed(text, e);
    return describe(l, e);
}

int listen_open(const char *text, struct listen_socket *ret, struct err *e)
{
    struct listen_socket l = {.fd = -1};
    char port[8];
    struct addrinfo *found = NULL;
    int rc = split(text, l.host, port, e);
    if (rc == 0)
        rc = resolve(text, l.host, port, &found, e);
    if (rc == 0)
        rc = open_at(found, text, &l, e);
    if (found)
        freeaddrinfo(found);
    if (rc == 0)
        *ret = l;
    else if (l.fd >= 0)
        close(l.fd);
    return rc;
}
