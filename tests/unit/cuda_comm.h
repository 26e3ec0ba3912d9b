/* cuda_comm.h: gangs of processes with an emulated GPU each, that speak through an emulated NCCL.
 */
#ifndef TRAINYARD_TESTS_CUDA_COMM_H
#define TRAINYARD_TESTS_CUDA_COMM_H

#include "tests/unit/trainer_comm.h"
#include "trainer/cuda/comm_nccl.h"
#include "trainer/cuda/ops_cuda.h"

#define GPU_MEMORY (16 << 20)

/* What ranks with GPUs do, set before they are forked; `body` gets NCCL's world. */
static struct {
    int is_reproducible;
    int deadline_ms;
    rank_body *body;
} gpus;

static struct comm *hosts; /* in a rank: the transport's world under NCCL's */

/* Each rank has the GPU of its number, where the environment names none. */
static inline int open_gpu(int rank, struct err *e)
{
    char number[16];
    snprintf(number, sizeof number, "%d", rank);
    setenv("CUDA_VISIBLE_DEVICES", number, 0);
    return cuda_open(&(struct ops_options){.widest = 1}, e);
}

/* A rank_body. Exit status 90: no GPU; 91: no world. */
static inline int on_gpus(struct comm *take_hosts, int fd)
{
    struct err e;
    struct comm *world;
    struct comm_options o = {.rank = take_hosts->rank,
                             .size = take_hosts->size,
                             .memory_bytes = GPU_MEMORY,
                             .message_bytes = MESSAGE,
                             .is_reproducible = gpus.is_reproducible,
                             .deadline_ms = gpus.deadline_ms};
    hosts = take_hosts;
    if (open_gpu(hosts->rank, &e) < 0) {
        fprintf(stderr, "rank %d: %s\n", hosts->rank, e.text);
        _exit(90);
    }
    if (comm_nccl_open(hosts, &o, &world, &e) < 0) {
        fprintf(stderr, "rank %d: %s\n", hosts->rank, e.text);
        hosts->verbs->give_up(hosts, e.text);
        _exit(91);
    }
    int status = gpus.body(world, fd);
    comm_close(world);
    cuda_close();
    _exit(status);
}

static inline void expect_gpus(int size, rank_body *body)
{
    for (int r = 0; r < 2; r++) {
        gpus.is_reproducible = r;
        gpus.deadline_ms = 20000;
        gpus.body = body;
        expect_on(SHM, size, on_gpus);
    }
}

/* On the GPU; to be forgotten with it. */
static inline void *on_gpu(const void *host, size_t bytes)
{
    void *p = cuda_alloc(bytes + 1);
    if (!p)
        _exit(96);
    cuda_upload(p, host, bytes);
    return p;
}

#endif
