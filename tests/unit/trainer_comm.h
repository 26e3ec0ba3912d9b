/* trainer_comm.h: gangs of real processes that speak through a transport, for tests. */
#ifndef TRAINYARD_TESTS_TRAINER_COMM_H
#define TRAINYARD_TESTS_TRAINER_COMM_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/unit/trainer_port.h"
#include "trainer/comm.h"

#define MEMORY  (1024 * 1024)
#define MESSAGE 300000

enum transport_used { SHM, TCP, TRANSPORTS };
static const char *const TRANSPORT[] = {"shm", "tcp"};

/* What a forked rank does; returns its exit status. `fd` is the memfd of shm. */
typedef int rank_body(struct comm *world, int fd);

struct ranks {
    enum transport_used transport;
    int size;
    int fd;      /* shm: the memfd */
    int port;    /* tcp: where rank 0 listens */
    int here[2]; /* a pipe: a byte from each rank that has met the others */
    int deadline_ms;
    const char *secret[16]; /* NULL: the right one */
    int64_t epoch[16];      /* 0: the right one */
    pid_t pids[16];
};

static inline struct comm_tcp_place place_of(const struct ranks *g, int rank)
{
    static char node[16];
    snprintf(node, sizeof node, "n%d", rank);
    return (struct comm_tcp_place){.host = "127.0.0.1",
                                   .port = g->port,
                                   .secret = g->secret[rank] ? g->secret[rank] : "0123456789abcdef",
                                   .attempt = "att_test",
                                   .epoch = g->epoch[rank] ? g->epoch[rank] : 7,
                                   .node = node};
}

static inline int open_world(const struct ranks *g, int rank, struct comm **ret, struct err *e)
{
    struct comm_options o = {.rank = rank,
                             .size = g->size,
                             .memory_bytes = MEMORY,
                             .message_bytes = MESSAGE,
                             .deadline_ms = g->deadline_ms};
    struct comm_tcp_place p = place_of(g, rank);
    return g->transport == SHM ? comm_shm_open(g->fd, &o, ret, e) : comm_tcp_open(&p, &o, ret, e);
}

static inline int rank_main(const struct ranks *g, int rank, rank_body *body)
{
    struct comm *world;
    struct err e;
    if (open_world(g, rank, &world, &e) < 0) {
        fprintf(stderr, "rank %d (%s): %s\n", rank, TRANSPORT[g->transport], e.text);
        return 99;
    }
    if (write(g->here[1], "x", 1) != 1)
        return 97;
    int status = body(world, g->fd);
    comm_close(world);
    return status;
}

static inline void ranks_make(struct ranks *g, enum transport_used transport, int size)
{
    *g = (struct ranks){.transport = transport, .size = size, .deadline_ms = 20000};
    assert_true((g->fd = memfd_create("gang", MFD_CLOEXEC)) >= 0);
    assert_int_equal(pipe(g->here), 0);
    g->port = transport == TCP ? free_port() : 0;
}

static inline void ranks_start(struct ranks *g, rank_body *body)
{
    for (int r = 0; r < g->size; r++) {
        g->pids[r] = fork();
        assert_true(g->pids[r] >= 0);
        if (g->pids[r] == 0) {
            alarm(120);
            _exit(rank_main(g, r, body));
        }
    }
}

static inline void ranks_wait_met(const struct ranks *g)
{
    char x;
    for (int r = 0; r < g->size; r++)
        assert_int_equal(read(g->here[0], &x, 1), 1);
}

/* Exit status, or minus the signal. */
static inline int status_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static inline void ranks_close(struct ranks *g)
{
    close(g->fd);
    close(g->here[0]);
    close(g->here[1]);
}

static inline void expect_on(enum transport_used transport, int size, rank_body *body)
{
    struct ranks g;
    ranks_make(&g, transport, size);
    ranks_start(&g, body);
    for (int r = 0; r < size; r++) {
        int status = status_of(g.pids[r]);
        if (status != 0)
            fail_msg("%s: rank %d of %d ended with %d", TRANSPORT[transport], r, size, status);
    }
    ranks_close(&g);
}

/* On every transport. */
static inline void expect_all(int size, rank_body *body)
{
    for (enum transport_used t = 0; t < TRANSPORTS; t++)
        expect_on(t, size, body);
}

/* In a child a failed check is an exit status that names its line. */
#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s:%d: rank %d: %s is false\n", __FILE__, __LINE__, world->rank, #x); \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* A verb that must go well; says why it did not. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) < 0) {                                                                          \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, world->rank, e.text);      \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* The group of all ranks in a family. */
static inline struct comm *everyone(struct comm *world, enum comm_family family)
{
    int members[16];
    struct comm *all;
    struct err e;
    for (int r = 0; r < world->size; r++)
        members[r] = r;
    if (world->verbs->group(world, family, 0, members, world->size, &all, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        _exit(98);
    }
    return all;
}

/* Steps for ever. 10: ended because rank 1 died or gave up, with its name; 11: another ERR_PEER;
 * 12: a deadline; 13: anything else. */
static inline int step_for_ever(struct comm *world, int fd)
{
    (void)fd;
    struct err e = {0};
    float x[5000] = {0};
    int r = 0;
    for (int64_t step = 1; r == 0; step++) {
        comm_set_step(world, step);
        r = world->verbs->all_reduce(world, x, 5000, COMM_F32, &e);
    }
    int named = (strstr(e.text, "Rank 1 (pid ") || strstr(e.text, "Rank 1 (node n1, 127.0.0.1)")) &&
                strstr(e.text, "in all_reduce at step ");
    if (r == ERR_PEER && (named || strstr(e.text, "gave up: I am tired")))
        return 10;
    fprintf(stderr, "rank %d: %s\n", world->rank, e.text);
    return r == ERR_PEER ? 11 : r == ERR_TIMEOUT ? 12 : 13;
}

#endif
