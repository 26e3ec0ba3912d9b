/* cli_server.h: runs the command line against a scripted server. The server is a child that answers
 * a list of exchanges in order, each over a connection of its own, and writes down what it was
 * asked; the program runs in another child. A request that differs from the script fails the test.
 */
#ifndef TRAINYARD_TESTS_UNIT_CLI_SERVER_H
#define TRAINYARD_TESTS_UNIT_CLI_SERVER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/cli.h"

#define JOB  "job_01k8z4q9tw3v7m2c5xd8hbn6"
#define JOB2 "job_01k8z4q9tw3v7m2c5xd8hbn7"
#define JOB3 "job_01k9000000000000000000zz"

/* One exchange. `status` 0: the connection is closed without an answer; -1: end of the script. */
struct exchange {
    const char *request; /* the beginning of the request line */
    int status;
    const char *headers; /* more headers, each with \r\n, or "" */
    const char *body;
};
#define END                                                                                        \
    {                                                                                              \
        NULL, -1, NULL, NULL                                                                       \
    }
#define JSON    "Content-Type: application/json\r\n"
#define PROBLEM "Content-Type: application/problem+json\r\n"

struct result {
    int status;
    struct buf out, err; /* of the program */
    struct buf asked;    /* what the server was sent, and "UNEXPECTED" where it differed */
    int port;
};

static inline void result_done(struct result *r)
{
    buf_done(&r->out);
    buf_done(&r->err);
    buf_done(&r->asked);
}

/* ---- the server ---- */

static inline int request_complete(const struct buf *b)
{
    const char *end = b->data ? strstr(b->data, "\r\n\r\n") : NULL;
    if (!end)
        return 0;
    const char *length = strcasestr(b->data, "content-length:");
    size_t body = length && length < end ? (size_t)atol(length + 15) : 0;
    return b->len >= (size_t)(end + 4 - b->data) + body;
}

static inline void serve_one(int fd, const struct exchange *x, int log)
{
    struct buf b = BUF_INIT;
    char chunk[4096];
    ssize_t n;
    while (!request_complete(&b) && (n = read(fd, chunk, sizeof chunk)) > 0)
        buf_add(&b, chunk, (size_t)n);
    if (!b.data || strncmp(b.data, x->request, strlen(x->request)) != 0)
        dprintf(log, "UNEXPECTED, wanted %s\n", x->request);
    dprintf(log, "%s\n", b.data ? b.data : "");
    if (x->status > 0)
        dprintf(fd, "HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n%s",
                x->status, strlen(x->body), x->headers, x->body);
    shutdown(fd, SHUT_WR);
    while (read(fd, chunk, sizeof chunk) > 0)
        ;
    buf_done(&b);
    close(fd);
}

/* Bound, and listening unless `refuse`: then connections are refused, and nobody else gets the
 * port. */
static inline int open_listener(int refuse, int *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    if (!refuse)
        assert_int_equal(listen(fd, 16), 0);
    getsockname(fd, (struct sockaddr *)&a, &size);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static inline pid_t start_server(int listener, const struct exchange *script, int log)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    signal(SIGPIPE, SIG_IGN);
    alarm(60);
    for (; script->status >= 0; script++)
        serve_one(accept(listener, NULL, NULL), script, log);
    close(listener);
    _exit(0);
}

/* ---- the program ---- */

static inline void take_file(int fd, struct buf *out)
{
    char chunk[4096];
    ssize_t n;
    buf_adds(out, "");
    lseek(fd, 0, SEEK_SET);
    while ((n = read(fd, chunk, sizeof chunk)) > 0)
        buf_add(out, chunk, (size_t)n);
    close(fd);
}

_Noreturn static inline void run_program(char **argv, int port, int out, int err)
{
    char url[64];
    int argc = 0;
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    setenv("TRAINYARD_SERVER", url, 1);
    unsetenv("TRAINYARD_TOKEN_FILE");
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    alarm(60);
    while (argv[argc])
        argc++;
    exit(cli_main(argc, argv));
}

/* Runs "trainyard ARGS" against the script; `words` is split at blanks. */
static inline struct result run(const struct exchange *script, const char *words)
{
    struct result r = {0};
    int out = memfd_create("out", 0), err = memfd_create("err", 0), log = memfd_create("log", 0);
    int listener = open_listener(script->status < 0, &r.port);
    pid_t server = start_server(listener, script, log);
    if (script->status >= 0)
        close(listener);
    char *copy = mem_strdup(words);
    char *argv[32] = {mem_strdup("trainyard")};
    int argc = 1;
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        run_program(argv, r.port, out, err);
    int status;
    waitpid(pid, &status, 0);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    if (script->status < 0)
        close(listener);
    take_file(out, &r.out);
    take_file(err, &r.err);
    take_file(log, &r.asked);
    free(argv[0]);
    free(copy);
    if (strstr(r.asked.data, "UNEXPECTED"))
        fail_msg("the server was asked:\n%s", r.asked.data);
    return r;
}

#define RUN(words, ...) run((const struct exchange[]){__VA_ARGS__ __VA_OPT__(, ) END}, words)

static inline void expect_in(const struct buf *b, const char *want)
{
    if (!strstr(b->data, want))
        fail_msg("\"%s\" is not in:\n%s", want, b->data);
}

/* A file of this text; the path is static. */
static inline const char *document(const char *text)
{
    static char path[64];
    static int fd = -1;
    if (fd >= 0)
        close(fd);
    fd = memfd_create("document", 0);
    assert_true(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

static inline char *words(const char *fmt, const char *path)
{
    static char line[256];
    const char *mark = strchr(fmt, '@');
    snprintf(line, sizeof line, "%.*s%s%s", (int)(mark - fmt), fmt, path, mark + 1);
    return line;
}
#endif
