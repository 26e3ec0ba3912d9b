/* emu_internal.h: what the emulated runtime's files share.
 *
 * One lock (emu.lock) guards streams, events, graphs and captures; memory has its own below it
 * (emu_memory.cc). Operations run without either.
 */
#ifndef TRAINYARD_EMU_INTERNAL_H
#define TRAINYARD_EMU_INTERNAL_H

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "emu.h"

/* ---- work ---- */

/* A kernel with its arguments' values, as they were at the call. */
struct emu_launch {
    const void *function;
    const struct emu_kernel *kernel;
    dim3 grid, block;
    size_t shared;
    std::vector<double> storage; /* of the values, each aligned for its type */
    std::vector<void *> arguments;
};

/* What an operation or a node does. */
struct emu_body {
    enum cudaGraphNodeType type;
    std::string name;
    emu_step step;                            /* run as a fresh copy each time */
    std::shared_ptr<const emu_launch> launch; /* of a kernel of ours */
};

/* In a stream's queue, until `is_done`. */
struct emu_operation {
    emu_body body;
    std::vector<std::shared_ptr<emu_operation>> after; /* in other streams */
    int is_done;
    double done_at; /* milliseconds */
};
typedef std::shared_ptr<emu_operation> emu_mark;

struct emu_capture;

struct CUstream_st {
    uint64_t id;
    int device;
    unsigned flags;
    int is_destroyed; /* goes when its queue is empty */
    int was_asked;    /* its head is not ready yet, said it in this round */
    std::deque<emu_mark> queue;
    emu_mark last; /* the last one queued, done or not */
    emu_capture *capture;
    std::vector<cudaGraphNode_t> tail; /* captured: what the next node comes after */
};

struct CUevent_st {
    unsigned flags;
    int device;
    emu_mark mark;       /* of the last record */
    double recorded_at;  /* milliseconds */
    uint64_t capture_id; /* recorded in a capture, not 0 */
    std::vector<cudaGraphNode_t> nodes;
};

/* Capturing streams' state; lives until cudaStreamEndCapture(). */
struct emu_capture {
    uint64_t id;
    enum cudaStreamCaptureMode mode;
    cudaStream_t origin;
    cudaGraph_t graph;
    std::vector<cudaStream_t> streams;
    std::vector<cudaGraphEdgeData> edges; /* zeros, for who asks */
    int is_invalid;
    const void *thread;
};

struct CUgraphNode_st {
    std::shared_ptr<emu_body> body;
    std::vector<cudaGraphNode_t> after;
};
struct CUgraph_st {
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

/* ---- emu_device.cc: the process's state and the device thread ---- */

struct emu_state {
    std::mutex lock;
    std::condition_variable work, done;
    std::vector<cudaStream_t> streams;
    std::unordered_set<const void *> handles; /* streams, events, graphs, nodes, executables */
    std::vector<emu_capture *> captures;
    std::vector<cudaStream_t> legacy; /* by device */
    uint64_t next_id;
    double waited_at; /* milliseconds: the last time that a call waited for work */
    int is_started;
    std::atomic<cudaError_t> broken;
    std::atomic<int> is_forked; /* from a process whose device had begun to work */
};
extern emu_state &emu;
typedef std::unique_lock<std::mutex> emu_guard;

/* Every entry point returns through this: remembers errors for cudaGetLastError(). */
cudaError_t emu_result(cudaError_t r);
/* At the beginning of an entry point: what stands in its way (a broken device, a forked process).
 */
cudaError_t emu_enter(void);
/* The same for what must not be called during a capture; invalidates captures that it meets. */
cudaError_t emu_enter_unsafe(emu_guard &g);
/* Lets what is queued get done; returns the device's error. */
cudaError_t emu_wait(emu_guard &g, const emu_mark &m);
cudaError_t emu_wait_all(emu_guard &g);
/* NULL and cudaStreamLegacy are the current device's; NULL where there is no such stream. */
cudaStream_t emu_stream(cudaStream_t s);
/* Queues, or captures. *ret_mark (may be NULL): the operation; empty where it was captured. */
cudaError_t emu_submit(cudaStream_t s, emu_body body, emu_mark *ret_mark);
/* Queues, after everything in s and after the marks. */
emu_mark emu_queue(cudaStream_t s, emu_body body, const std::vector<emu_mark> &after);
extern thread_local const char *emu_running; /* what the device thread does; NULL elsewhere */
extern thread_local int emu_running_on;      /* and for which device */
int emu_on_device_thread(void);
int emu_current_device(void);
double emu_now_ms(void);
int emu_is_fatal(cudaError_t e); /* breaks the device */

const void *emu_this_thread(void); /* an address of its own for each */

/* ---- emu_query.cc ---- */
cudaError_t emu_count_devices(int *ret_count);

/* ---- emu_order.cc ---- */
/* Of n that could be next, which: TRAINYARD_EMU_ORDER's choice. Device thread only. */
size_t emu_choose(size_t n);
/* 0 … n - 1 in that order. */
void emu_permute(std::vector<unsigned> &to, size_t n);
const char *emu_order_name(void);

/* ---- emu_memory.cc ---- */
struct emu_window {
    uintptr_t base, device; /* what callers see, and the device's own mapping */
    size_t bytes;
};
const emu_window &emu_memory_window(void);
size_t emu_memory_size(void);
size_t emu_memory_used(int device);
/* 1: [p, p + bytes) lies in one live allocation. */
int emu_is_whole(const void *p, size_t bytes);
/* As emu_translate, for a kernel's argument: no length, and the end of an allocation will do. */
void *emu_translate_argument(void *p, const char *what, int argument);
int emu_is_pinned(const void *p, size_t bytes);
int emu_is_mapped(uintptr_t address); /* in /proc/self/maps */
void emu_check_canaries(const char *when);

/* ---- emu_block.cc ---- */
void emu_run_kernel(const emu_launch &l, void *const *arguments);
/* "block (1,0,0), thread (7,0,0)", while a kernel runs; else "". */
const char *emu_where(void);

/* ---- emu_kernel.cc ---- */
const struct emu_kernel *emu_find(const void *function);
/* Checks and copies; *ret_launch is set on success. */
cudaError_t emu_prepare(const void *function, dim3 grid, dim3 block, void *const *arguments,
                        size_t shared, std::shared_ptr<const emu_launch> *ret_launch);
emu_body emu_launch_body(const std::shared_ptr<const emu_launch> &l);

/* ---- emu_graph.cc ---- */
void emu_capture_node(cudaStream_t s, emu_body body);
void emu_invalidate(emu_capture *c);
emu_capture *emu_find_capture(uint64_t id);
/* s comes after what the event stands for; s may join its capture. */
cudaError_t emu_capture_wait(cudaStream_t s, cudaEvent_t e);

#endif
