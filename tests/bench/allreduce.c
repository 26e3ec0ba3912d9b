/* allreduce.c: how long a sum over ranks takes: allreduce [RANKS [shm|tcp]]. Forks the ranks, binds
 * each to a core where there are enough, and prints the median microseconds per size in bytes as
 * JSON. tcp goes over the loopback, port 23999. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "trainer/comm.h"

static const struct {
    size_t bytes;
    int rounds;
} sizes[] = {{4096, 2001}, {409600, 501}, {4194304, 101}};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_us(struct comm *world, float *buf, size_t bytes, int rounds, struct err *e)
{
    CLEANUP(mem_freep) double *us = mem_alloc((size_t)rounds * sizeof *us);
    for (int i = -20; i < rounds; i++) {
        if (world->verbs->barrier(world, e) < 0)
            return -1;
        double t = now_us();
        if (world->verbs->all_reduce(world, buf, bytes / sizeof *buf, COMM_F32, e) < 0)
            return -1;
        if (i >= 0)
            us[i] = now_us() - t;
    }
    qsort(us, (size_t)rounds, sizeof *us, by_value);
    return us[rounds / 2];
}

static int measure(struct comm *world, struct err *e)
{
    void *buf;
    int r = world->verbs->memory(world, 4194304, &buf, e);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(sizes); i++) {
        double us = median_us(world, buf, sizes[i].bytes, sizes[i].rounds, e);
        if (us < 0)
            return e->code;
        if (world->rank == 0)
            printf("%s\"%zu\":%.2f%s", i ? "," : "{", sizes[i].bytes, us,
                   i + 1 < ARRAY_LEN(sizes) ? "" : "}\n");
    }
    return r;
}

static int open_world(int fd, const struct comm_options *o, int is_tcp, struct comm **ret,
                      struct err *e)
{
    static const struct comm_tcp_place place = {
        .host = "127.0.0.1", .port = 23999, .secret = "bench", .attempt = "bench", .node = "here"};
    return is_tcp ? comm_tcp_open(&place, o, ret, e) : comm_shm_open(fd, o, ret, e);
}

static int run_rank(int fd, int rank, int ranks, int is_tcp)
{
    if (ranks <= sysconf(_SC_NPROCESSORS_ONLN)) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(rank, &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    struct comm_options o = {.rank = rank, .size = ranks, .memory_bytes = 4194304};
    struct comm *world;
    struct err e;
    int r = open_world(fd, &o, is_tcp, &world, &e);
    if (r == 0) {
        r = measure(world, &e);
        comm_close(world);
    }
    if (r < 0)
        fprintf(stderr, "allreduce: %s\n", e.text);
    return r < 0;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 2, failed = 0, status;
    int is_tcp = argc > 2 && strcmp(argv[2], "tcp") == 0;
    int fd = memfd_create("gang", MFD_CLOEXEC);
    if (ranks < 1 || ranks > 64 || fd < 0) {
        fprintf(stderr, "usage: allreduce [RANKS, 1 to 64 [shm|tcp]]\n");
        return 1;
    }
    for (int r = 1; r < ranks; r++)
        if (fork() == 0)
            return run_rank(fd, r, ranks, is_tcp);
    failed = run_rank(fd, 0, ranks, is_tcp);
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}
