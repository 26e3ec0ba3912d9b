/* tape_parts.h: a recording, between tape.cu and tape_graph.cu. */
#ifndef TRAINYARD_TRAINER_CUDA_TAPE_PARTS_H
#define TRAINYARD_TRAINER_CUDA_TAPE_PARTS_H

#include "trainer/cuda/device_parts.h"
#include "trainer/cuda/tape.h"

enum tape_kind { TAPE_KERNEL, TAPE_CALL, TAPE_COPY, TAPE_ZERO };

/* All of it must be the same for a graph to do in another's place. */
struct tape_step {
    enum tape_kind kind;
    unsigned grid[3], block[3]; /* of a kernel */
    const char *name;
    const void *function; /* of a kernel */
    tape_function *call;
    void *to;
    const void *from;
    size_t bytes;                    /* of a copy or zeroes; a kernel's dynamic shared memory */
    size_t argument, argument_count; /* a call has one: its bytes */
};

struct tape_argument {
    size_t offset, size; /* in the recording's bytes */
};

struct tape_recording {
    struct tape_step *steps;
    struct tape_argument *arguments;
    unsigned char *bytes;
    size_t step_count, argument_count, byte_count;
    size_t step_room, argument_room, byte_room;
    uint64_t hash; /* of steps and what calls are given; not of kernels' arguments */
};

int tape_issue_step(const struct tape_recording *r, const struct tape_step *s, cudaStream_t stream);
void tape_kernel_arguments(const struct tape_recording *r, const struct tape_step *s,
                           void *ret[TAPE_ARGUMENTS]);
void tape_free(struct tape_recording *r);

/* 1 when a graph has been launched in place of `r`; 0: it is still to be issued. */
int tape_replay(const struct tape_recording *r, struct tape_counts *counts);
void tape_forget_graphs(void);

#endif
