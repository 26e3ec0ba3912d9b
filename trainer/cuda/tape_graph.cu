/* tape_graph.cu: recordings that come again, as CUDA graphs. */
#include "trainer/cuda/tape_parts.h"

/* Where a graph no longer pays: shorter ones are issued as they are. */
#define STEPS_LEAST 4

#define GRAPHS 32
/* A graph that was used within so many tapes is not thrown out for another one: of more sequences
 * that take turns than there is room for, some are replayed and the rest are not, instead of all
 * being captured again and again. */
#define KEPT_FOR (4 * GRAPHS)

struct graph {
    struct tape_recording recording; /* its arguments are those that the graph has now */
    cudaGraphNode_t *nodes;          /* [steps], of kernels */
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    int64_t last_use; /* 0: free */
};
static struct graph graphs[GRAPHS];
static int64_t tapes;

/* Sequences that have come once, or that cannot be captured; by hash, and a new one takes the place
 * of the oldest of the few that share it. */
enum seen_state { SEEN_NEVER, SEEN_ONCE, SEEN_REFUSED };
struct seen {
    uint64_t hash;
    enum seen_state state;
};
#define SEEN_WAYS 8
static struct seen_set {
    struct seen ways[SEEN_WAYS];
    unsigned next;
} seen[64];

static struct seen *seen_of(uint64_t hash)
{
    struct seen_set *set = &seen[hash % (sizeof seen / sizeof *seen)];
    for (struct seen &s : set->ways)
        if (s.hash == hash)
            return &s;
    struct seen *s = &set->ways[set->next++ % SEEN_WAYS];
    *s = {hash, SEEN_NEVER};
    return s;
}

/* ---- comparing ---- */

/* What a library's call was given is part of the graph; kernels' arguments are set. */
static int same_calls(const struct tape_recording *a, const struct tape_recording *b)
{
    for (size_t i = 0; i < a->step_count; i++) {
        const struct tape_step *s = &a->steps[i];
        const struct tape_argument *g = &a->arguments[s->argument];
        if (s->kind == TAPE_CALL && memcmp(a->bytes + g->offset, b->bytes + g->offset, g->size))
            return 0;
    }
    return 1;
}

static int is_same(const struct tape_recording *a, const struct tape_recording *b)
{
    return a->hash == b->hash && a->step_count == b->step_count &&
           a->argument_count == b->argument_count && a->byte_count == b->byte_count &&
           memcmp(a->steps, b->steps, a->step_count * sizeof *a->steps) == 0 &&
           memcmp(a->arguments, b->arguments, a->argument_count * sizeof *a->arguments) == 0 &&
           same_calls(a, b);
}

static struct graph *find(const struct tape_recording *r)
{
    for (struct graph &g : graphs)
        if (g.last_use && is_same(&g.recording, r))
            return &g;
    return NULL;
}

/* ---- making ---- */

static void drop(struct graph *g)
{
    if (g->executable && !device_failed())
        cudaGraphExecDestroy(g->executable);
    if (g->graph && !device_failed())
        cudaGraphDestroy(g->graph);
    tape_free(&g->recording);
    free(g->nodes);
    *g = graph{};
}

/* A free place, or the least recently used one's; NULL where all are in use. */
static struct graph *take_place(struct tape_counts *counts)
{
    struct graph *oldest = &graphs[0];
    for (struct graph &g : graphs)
        if (g.last_use < oldest->last_use)
            oldest = &g;
    if (!oldest->last_use)
        return oldest;
    if (tapes - oldest->last_use < KEPT_FOR)
        return NULL;
    counts->evicted++;
    drop(oldest);
    return oldest;
}

static void *copied(const void *from, size_t bytes)
{
    return memcpy(mem_alloc(bytes ? bytes : 1), from, bytes);
}

static void copy_recording(struct tape_recording *to, const struct tape_recording *r)
{
    *to = *r;
    to->steps = static_cast<struct tape_step *>(copied(r->steps, r->step_count * sizeof *r->steps));
    to->arguments = static_cast<struct tape_argument *>(
        copied(r->arguments, r->argument_count * sizeof *r->arguments));
    to->bytes = static_cast<unsigned char *>(copied(r->bytes, r->byte_count));
}

/* The node that the last launch became. */
static int last_node(cudaStream_t stream, cudaGraphNode_t *ret)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t *last = NULL;
    size_t count = 0;
    cudaError_t r;
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edges = NULL;
    r = cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &last, &edges, &count);
#else
    r = cudaStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &last, &count);
#endif
    if (!device_ok(r, "tell a graph's node"))
        return 0;
    if (count == 1) {
        *ret = last[0];
        return 1;
    }
    struct err e = {};
    err_set(&e, ERR_INTERNAL, "After a kernel was captured the graph goes on from %zu nodes.",
            count);
    device_fail(&e);
    return 0;
}

static int capture_steps(struct graph *g, cudaStream_t stream)
{
    struct tape_recording *r = &g->recording;
    for (size_t i = 0; i < r->step_count; i++) {
        if (!tape_issue_step(r, &r->steps[i], stream))
            return 0;
        if (r->steps[i].kind == TAPE_KERNEL && !last_node(stream, &g->nodes[i]))
            return 0;
    }
    return 1;
}

static int make_executable(struct graph *g, cudaStream_t stream)
{
    if (!device_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                   "begin a graph"))
        return 0;
    int ok = capture_steps(g, stream);
    cudaError_t end = cudaStreamEndCapture(stream, &g->graph); /* whatever happened within */
    return ok && device_ok(end, "end a graph") &&
           device_ok(cudaGraphInstantiate(&g->executable, g->graph, 0), "make a graph");
}

static void say_refused(const struct tape_recording *r, const struct err *e)
{
    log_event(LOG_LEVEL_WARNING, "graph_refused", "steps=%zu reason=%s", r->step_count,
              log_quote(e->text));
}

static struct graph *capture(const struct tape_recording *r, struct tape_counts *counts)
{
    struct graph *g = take_place(counts);
    if (!g)
        return NULL;
    struct err e;
    copy_recording(&g->recording, r);
    g->nodes = static_cast<cudaGraphNode_t *>(mem_zalloc(r->step_count * sizeof *g->nodes));
    device_try(&e);
    int ok = make_executable(g, device.compute);
    device_tried();
    if (ok) {
        counts->captured++;
        return g;
    }
    cudaGetLastError();
    if (!counts->refused++) /* the first one tells it all */
        say_refused(r, &e);
    seen_of(r->hash)->state = SEEN_REFUSED;
    drop(g);
    return NULL;
}

/* ---- replaying ---- */

static int set_kernel(struct graph *g, size_t i)
{
    const struct tape_step *s = &g->recording.steps[i];
    void *arguments[TAPE_ARGUMENTS];
    tape_kernel_arguments(&g->recording, s, arguments);
    cudaKernelNodeParams p = {};
    p.func = const_cast<void *>(s->function);
    p.gridDim = dim3(s->grid[0], s->grid[1], s->grid[2]);
    p.blockDim = dim3(s->block[0], s->block[1], s->block[2]);
    p.sharedMemBytes = static_cast<unsigned>(s->bytes);
    p.kernelParams = arguments;
    return device_ok(cudaGraphExecKernelNodeSetParams(g->executable, g->nodes[i], &p),
                     "change a graph's kernel");
}

/* 1 if the graph had others. */
static int take_arguments(struct graph *g, const struct tape_recording *r, size_t i)
{
    const struct tape_step *s = &r->steps[i];
    int changed = 0;
    for (size_t k = 0; k < s->argument_count; k++) {
        const struct tape_argument *a = &r->arguments[s->argument + k];
        if (memcmp(g->recording.bytes + a->offset, r->bytes + a->offset, a->size) == 0)
            continue;
        memcpy(g->recording.bytes + a->offset, r->bytes + a->offset, a->size);
        changed = 1;
    }
    return changed;
}

static int set_kernels(struct graph *g, const struct tape_recording *r)
{
    for (size_t i = 0; i < r->step_count; i++)
        if (r->steps[i].kind == TAPE_KERNEL && take_arguments(g, r, i) && !set_kernel(g, i))
            return 0;
    return 1;
}

static int launch(struct graph *g, const struct tape_recording *r)
{
    struct err e;
    device_try(&e);
    int ok = set_kernels(g, r);
    device_tried();
    if (!ok) {
        say_refused(r, &e);
        seen_of(r->hash)->state = SEEN_REFUSED;
        drop(g);
        return 0;
    }
    g->last_use = tapes;
    device_ok(cudaGraphLaunch(g->executable, device.compute), "launch a graph");
    return 1;
}

int tape_replay(const struct tape_recording *r, struct tape_counts *counts)
{
    tapes++;
    if (r->step_count < STEPS_LEAST)
        return 0;
    struct graph *g = find(r);
    if (g)
        return launch(g, r);
    struct seen *s = seen_of(r->hash);
    if (s->state == SEEN_NEVER)
        s->state = SEEN_ONCE;
    else if (s->state == SEEN_ONCE && (g = capture(r, counts)))
        return launch(g, r);
    return 0;
}

void tape_forget_graphs(void)
{
    for (struct graph &g : graphs)
        drop(&g);
    for (struct seen_set &s : seen)
        s = {};
    tapes = 0;
}
