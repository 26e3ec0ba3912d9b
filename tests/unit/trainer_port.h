/* trainer_port.h: a port for rank 0 of a test. */
#ifndef TRAINYARD_TESTS_TRAINER_PORT_H
#define TRAINYARD_TESTS_TRAINER_PORT_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

/* A port of the loopback that was free just now, outside the range that connections take. */
static inline int free_port(void)
{
    static int at;
    for (int tries = 0; tries < 1000; tries++) {
        int port = 20000 + (int)(((unsigned)getpid() * 31 + (unsigned)at++) % 12000), one = 1;
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        int is_free = bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
        close(fd);
        if (is_free)
            return port;
    }
    return 0;
}

#endif
