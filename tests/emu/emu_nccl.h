/* emu_nccl.h: what the emulated NCCL's files share: a communicator's memory, and work on it.
 *
 * A communicator is a memory file of its first member's, which the others open by way of
 * /proc/PID/fd; so nothing is left behind, whoever dies. It is strict where NCCL leaves what
 * happens open: calls that differ between ranks, host pointers, memory outside an allocation and
 * the use of a communicator that is not ready end the process with a sentence.
 *
 *     TRAINYARD_EMU_NCCL_FAIL=RANK:N:RESULT   the N-th kernel of world rank RANK never ends, and
 * its communicator says ncclResult_t RESULT TRAINYARD_EMU_NCCL_ABORT=hang           ncclCommAbort()
 * does not return TRAINYARD_EMU_NCCL_VERSION=N            ncclGetVersion()
 */
#ifndef TRAINYARD_EMU_EMU_NCCL_H
#define TRAINYARD_EMU_EMU_NCCL_H

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emu.h"
#include "nccl.h"

#define MEMBERS 16    /* of a communicator, at most */
#define PIECE   65536 /* bytes that move at a time */

enum nccl_kind {
    KIND_ALL_REDUCE,
    KIND_REDUCE,
    KIND_BROADCAST,
    KIND_REDUCE_SCATTER,
    KIND_ALL_GATHER,
    KIND_SEND,
    KIND_RECV
};

/* A collective as all members must make it. */
struct nccl_call {
    uint64_t number;
    uint32_t kind, type;
    uint64_t count;
    int64_t root;
};

struct nccl_wish { /* of a split */
    std::atomic<uint64_t> number;
    int32_t color, key;
    std::atomic<uint64_t> made; /* by the first of a color: number of the split, */
    int32_t pid, fd;            /* and where its memory is */
};

struct nccl_member {
    std::atomic<uint32_t> is_here;
    char uuid[48];
    nccl_wish wishes[2]; /* in turn: a member may be one split ahead of another */
    nccl_call calls[2];
    std::atomic<uint64_t> phase;
    alignas(64) char data[PIECE];
};

/* From one member to another. */
struct nccl_box {
    std::atomic<uint64_t> wanted;       /* messages that the receiver has asked for */
    uint64_t bytes;                     /* of the last */
    std::atomic<uint64_t> given, taken; /* pieces */
    alignas(64) char data[PIECE];
};

struct nccl_map {
    nccl_member members[MEMBERS];
    nccl_box boxes[MEMBERS][MEMBERS]; /* [from][to] */
};

/* What the device thread needs of a communicator; it outlives the handle. */
struct nccl_core {
    nccl_map *map;
    int fd; /* the first member's */
    int rank, size;
    std::atomic<int> is_aborted, error;       /* ncclResult_t */
    std::atomic<uint64_t> launched, finished; /* kernels: one at a time */
    uint64_t calls, phase;                    /* the device thread's */
    uint64_t sent[MEMBERS], received[MEMBERS];
    ~nccl_core();
};

struct nccl_op {
    nccl_kind kind;
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    int root; /* or peer */
    ncclComm_t comm;
    cudaStream_t stream;
};

size_t nccl_width(ncclDataType_t t);
const char *nccl_kind_name(uint32_t kind);

/* Queues what a group has for one communicator, as one kernel. */
cudaError_t nccl_launch(const std::shared_ptr<nccl_core> &core, const std::vector<nccl_op> &ops);

#endif
