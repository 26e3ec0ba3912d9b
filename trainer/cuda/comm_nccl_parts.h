/* comm_nccl_parts.h: what the comm_nccl*.cu files share. Others use comm_nccl.h. */
#ifndef TRAINYARD_TRAINER_CUDA_COMM_NCCL_PARTS_H
#define TRAINYARD_TRAINER_CUDA_COMM_NCCL_PARTS_H

#include "trainer/cuda/device.h"
#include "trainer/cuda/trainer.h"

#include <nccl.h>

extern "C" {
#include "base/clock.h"
#include "trainer/comm_parts.h"
}

#include "trainer/cuda/comm_nccl.h"

#define LANE_MARKS   64                 /* collectives under way that a lane knows apart */
#define NCCL_SCRATCH ((size_t)16 << 20) /* bytes: what is summed at a time where reproducible */
#define NCCL_COMMS   16                 /* communicators of a rank */
#define NCCL_LANES   6                  /* compute, beside, two messages in each line */
#define ABORT_MS     5000
#define VERDICT_MS   2000 /* for the hosts' world to know whose end broke a communicator */

/* A stream that collectives are asked on, and how far it is. */
struct nccl_lane {
    cudaStream_t stream;
    cudaEvent_t begun[LANE_MARKS], done[LANE_MARKS];
    uint64_t calls[LANE_MARKS]; /* of the group: comm.call.number */
    uint64_t asked, finished;   /* collectives */
};

struct nccl_world {
    struct comm *hosts;
    int size;
    int is_reproducible;
    int64_t deadline_us;
    size_t memory_bytes, message_bytes;

    ncclComm_t comms[NCCL_COMMS]; /* that of all ranks first */
    int comm_count;
    ncclComm_t arriving; /* NCCL writes to it until the split is done, or for ever */
    struct nccl_lane compute, beside;
    struct nccl_lane *lanes[NCCL_LANES];
    int lane_count;
    cudaEvent_t asked; /* what COMM_DATA's stream waits for */

    void **memory; /* handed out */
    int memory_count;
    size_t memory_used;
    void *scratch; /* the beside lane's, where reproducible */
    size_t own_used;

    struct err why;                                 /* of the end; code 0: it goes on */
    int has_left;                                   /* the end is a good one */
    const char *doing;                              /* the verb asked last, for sentences */
    uint64_t moved;                                 /* as the hosts' world counts it */
    int64_t moved_us, seen_us, looked_us, heard_us; /* boot time, of the last change and looks */
};

/* Messages of a line's family from one member to the next: its communicator's member 0 sends. */
struct nccl_channel {
    struct nccl_lane lane;
    ncclComm_t nccl;
    char *slot[2];
    cudaEvent_t filled[2], emptied[2];
    uint64_t count;
};

struct nccl_comm {
    struct comm base;
    struct nccl_world *w;
    struct comm *hosts; /* the same members */
    ncclComm_t nccl;    /* NULL in a group of one and in a line */
    struct nccl_channel *out, *in;
};

static inline struct nccl_comm *nccl_self(struct comm *c)
{
    return reinterpret_cast<struct nccl_comm *>(c);
}

/* ---- comm_nccl_watch.cu: whether it goes on ---- */

/* The gang is over, here at least: every communicator is aborted and the device fails. Returns
 * e->code. */
int nccl_end(struct nccl_world *w, struct err *e);
/* 0 while it goes on, else why not. */
int nccl_going(struct nccl_world *w, struct err *e);
/* 0 once the call that returned `r` is made; `what` completes "NCCL could not ...". */
int nccl_done(struct nccl_world *w, ncclComm_t c, ncclResult_t r, const char *what, struct err *e);
/* Where none of a group's calls has failed yet. */
int nccl_grouped(struct nccl_world *w, ncclComm_t c, ncclResult_t first, const char *what,
                 struct err *e);
device_poll nccl_watch; /* of the world */

/* ---- comm_nccl_lane.cu: streams ---- */

int nccl_lane_open(struct nccl_world *w, struct nccl_lane *l, cudaStream_t stream);
void nccl_lane_close(struct nccl_lane *l); /* its stream is the caller's */
void nccl_lane_begin(struct nccl_lane *l);
void nccl_lane_end(struct nccl_lane *l, uint64_t call);
/* The stream waits for the call and those before it. */
void nccl_lane_settle(struct nccl_lane *l, uint64_t call, cudaStream_t stream);
/* Takes note of what is done; *ret_waits 1 if something has begun and is not. Returns 1 if anything
 * was. */
int nccl_lane_look(struct nccl_lane *l, int *ret_waits);

/* ---- comm_nccl_meet.cu: communicators ---- */

int nccl_meet(struct nccl_world *w, struct err *e);
/* Collective over the world; color -1: not in it, and *ret is NULL. */
int nccl_split(struct nccl_world *w, int color, int key, ncclComm_t *ret, struct err *e);
void nccl_leave(struct nccl_world *w); /* once all are done with their work */

/* ---- comm_nccl_message.cu ---- */

int nccl_line_open(struct nccl_comm *c, int index, struct err *e);
void nccl_line_close(struct nccl_comm *c);
int nccl_send(struct comm *base, int to, const void *buf, size_t bytes, struct err *e);
int nccl_recv(struct comm *base, int from, void *buf, size_t bytes, struct err *e);
size_t nccl_line_bytes(size_t message_bytes); /* of both families' buffers */

/* ---- comm_nccl_sum.cu: collectives, on a stream that they are given ---- */

int nccl_sum_all(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count, enum comm_type type,
                 struct err *e);
int nccl_sum_parts(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count,
                   enum comm_type type, struct err *e);
int nccl_gather_parts(struct nccl_comm *c, cudaStream_t s, char *buf, size_t count,
                      enum comm_type type, struct err *e);

#endif
