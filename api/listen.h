/* listen.h: a listening socket from an address as people write it. */
#ifndef TRAINYARD_API_LISTEN_H
#define TRAINYARD_API_LISTEN_H

#include "base/err.h"

#define LISTEN_ADDRESS_SIZE 80

struct listen_socket {
    int fd;                            /* bound and listening, non-blocking; -1: none */
    int loopback;                      /* cannot be reached from other machines */
    char host[LISTEN_ADDRESS_SIZE];    /* as given: "127.0.0.1", "[::1]", "localhost" */
    char address[LISTEN_ADDRESS_SIZE]; /* as bound: "127.0.0.1:8724" */
};

/* "127.0.0.1:8724", "[::1]:0", "localhost:8724", "0.0.0.0:8724". Port 0 takes a free one. */
int listen_open(const char *text, struct listen_socket *ret, struct err *e);

#endif
