/* tcp_proxy.c: a bad network between two programs.
 *
 *     tcp_proxy LISTEN_HOST LISTEN_PORT HOST PORT [delay=MS] [flip=N] [cut=N] [stall=N]
 *
 * delay: every byte is so much later; flip: byte N of what clients send, counted over all
 * connections, is altered; cut: after N of them all connections are reset; stall: after N nothing
 * passes any more. Prints "ready" once it listens. */
#include "tests/fault/tcp_proxy.h"

static int take_option(struct proxy_options *o, const char *text)
{
    long long n;
    if (sscanf(text, "delay=%lld", &n) == 1)
        o->delay_ms = (int)n;
    else if (sscanf(text, "flip=%lld", &n) == 1)
        o->flip_at = n;
    else if (sscanf(text, "cut=%lld", &n) == 1)
        o->cut_after = n;
    else if (sscanf(text, "stall=%lld", &n) == 1)
        o->stall_after = n;
    else
        return 0;
    return 1;
}

int main(int argc, char **argv)
{
    static struct proxy p;
    if (argc < 5) {
        fprintf(stderr, "usage: tcp_proxy LISTEN_HOST LISTEN_PORT HOST PORT [delay=MS] [flip=N] "
                        "[cut=N] [stall=N]\n");
        return 2;
    }
    struct proxy_options o = {.listen_host = argv[1],
                              .listen_port = atoi(argv[2]),
                              .host = argv[3],
                              .port = atoi(argv[4]),
                              .flip_at = -1,
                              .cut_after = -1,
                              .stall_after = -1};
    for (int i = 5; i < argc; i++)
        if (!take_option(&o, argv[i])) {
            fprintf(stderr, "tcp_proxy: \"%s\" is no option\n", argv[i]);
            return 2;
        }
    if (proxy_open(&p, &o) < 0) {
        fprintf(stderr, "tcp_proxy: cannot listen on %s:%s: %s\n", argv[1], argv[2],
                strerror(errno));
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    for (;;)
        proxy_turn(&p);
}
