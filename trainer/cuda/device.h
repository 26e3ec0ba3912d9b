/* device.h: the one GPU of this process: its streams, its memory, and what became of its calls.
 *
 * Everything here is the main thread's. Verbs (ops_*.cu) record their work on the tape (tape.h),
 * which issues it to the compute stream; nobody else launches anything. A rank's GPU is device 0
 * of those that it sees: CUDA_VISIBLE_DEVICES names one, by its UUID.
 *
 * Errors. The first failure is kept as a sentence, and from then on nothing is issued any more
 * (ops.h): check device_ok() of every call of a CUDA library, and go on.
 *
 * Waiting. No call of CUDA's waits: device_wait() looks again and again whether the work is done,
 * and meanwhile asks who watches (comm_nccl) whether it still can be. So a dead peer, whose kernel
 * would wait for ever, ends the wait with the peer's name.
 */
#ifndef TRAINYARD_TRAINER_CUDA_DEVICE_H
#define TRAINYARD_TRAINER_CUDA_DEVICE_H

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "trainer/cuda/trainer.h"

int device_open(const struct ops_options *o, struct err *e);
void device_close(void);

/* ---- what became of it ---- */

/* 1 if the call succeeded and all before it have; else remembers. `what` completes "The GPU could
 * not ...": "copy 4096 bytes to the host". */
int device_ok(cudaError_t r, const char *what);
int device_ok_blas(cublasStatus_t r, const char *what);
/* Remembers `why`, unless there is an error already. */
void device_fail(const struct err *why);
int device_failed(void); /* 1 after the first failure */
/* Issues what is recorded and waits for it, where there is anything to wait for. 0, or the first
 * failure's code and sentence. */
int device_settle(struct err *e);
int device_finish(struct err *e); /* and for uploads that have not been joined */

/* ---- work ---- */

/* The compute stream, with everything recorded so far issued to it. */
cudaStream_t device_stream(void);
/* Until `done` has happened; nothing after a failure. */
void device_wait(cudaEvent_t done);

/* How often the host has waited for work of the device so far. */
int64_t device_waits(void);

/* Called while the device is waited for, a few thousand times a second: negative, with the reason,
 * where what is waited for will never be done. NULL: nobody watches. */
typedef int device_poll(void *context, struct err *e);
void device_watch(device_poll *poll, void *context);

/* ---- memory ---- */

void *device_alloc(size_t bytes); /* zeroed; NULL when the device is full, with no failure kept */
void device_release(void *p);
int64_t device_used(void);
/* For what a verb computes on its way, until the verb ends: at most device_scratch_bytes() in all
 * of its calls together, 256-byte aligned. Verbs whose need grows with their arguments work piece
 * by piece. */
void *device_scratch(size_t bytes);
void device_scratch_done(void); /* the verb ends */
size_t device_scratch_bytes(void);
#define DEVICE_SCRATCH                                                                             \
    ((size_t)64 << 20) /* device_scratch_bytes(); operands that products round                     \
                          to 16 bits have memory of their own */

/* ---- what it is ---- */

struct device_traits {
    char name[128], uuid[48]; /* "NVIDIA H200", "GPU-..." or "MIG-..." */
    char pci[16];             /* "0000:65:00.0" */
    int multiprocessors;
    int major, minor; /* compute capability */
    size_t memory;    /* bytes, all of it */
};
const struct device_traits *device_traits(void);
const struct ops_options *device_options(void);
cublasLtHandle_t device_blas(void);

#endif
