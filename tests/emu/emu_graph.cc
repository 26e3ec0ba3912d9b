/* emu_graph.cc: capture of streams into graphs, and graphs in execution.
 *
 * A captured operation becomes a node after the stream's tail; a record of an event remembers the
 * tail, a wait adds what the event remembers to the waiting stream's, which so joins the capture.
 * A launch is one operation of its stream: it runs one node at a time of those whose predecessors
 * are done, in TRAINYARD_EMU_ORDER's order.
 */
#include <algorithm>
#include <unordered_map>

#include "emu_internal.h"

/* Of an executable graph: by node, its successors, and how many it comes after. */
struct shape {
    std::vector<std::vector<size_t>> next;
    std::vector<size_t> before;
};

/* As it was instantiated; SetParams puts another body in a node's place. */
struct CUgraphExec_st {
    cudaGraph_t graph;
    std::unordered_map<cudaGraphNode_t, size_t> index;
    std::vector<std::shared_ptr<emu_body>> bodies;
    std::shared_ptr<const shape> edges;
    emu_mark last; /* launch: two do not run at once */
};

/* ---- capture ---- */

void emu_invalidate(emu_capture *c)
{
    c->is_invalid = 1;
}

emu_capture *emu_find_capture(uint64_t id)
{
    for (emu_capture *c : emu.captures) {
        if (c->id == id)
            return c;
    }
    return NULL;
}

static void add_unique(std::vector<cudaGraphNode_t> &to, const std::vector<cudaGraphNode_t> &more)
{
    for (cudaGraphNode_t n : more) {
        if (std::find(to.begin(), to.end(), n) == to.end())
            to.push_back(n);
    }
}

void emu_capture_node(cudaStream_t s, emu_body body)
{
    auto n = std::make_unique<CUgraphNode_st>();
    n->body = std::make_shared<emu_body>(std::move(body));
    n->after = s->tail;
    s->tail = {n.get()};
    emu.handles.insert(n.get());
    s->capture->graph->nodes.push_back(std::move(n));
}

cudaError_t emu_capture_wait(cudaStream_t s, cudaEvent_t e)
{
    emu_capture *c = emu_find_capture(e->capture_id);
    if (s->capture && s->capture->is_invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (s->capture && !e->capture_id) {
        if (!e->mark)
            return cudaSuccess; /* never recorded */
        emu_invalidate(s->capture);
        return cudaErrorStreamCaptureIsolation;
    }
    if (!c)
        return cudaErrorCapturedEvent; /* of a capture that is over */
    if (c->is_invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (s->capture && s->capture != c) {
        emu_invalidate(s->capture);
        emu_invalidate(c);
        return cudaErrorStreamCaptureMerge;
    }
    if (!s->capture) {
        s->capture = c;
        s->tail.clear();
        c->streams.push_back(s);
    }
    add_unique(s->tail, e->nodes);
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (r == cudaSuccess && (!stream || stream == cudaStreamLegacy))
        r = cudaErrorStreamCaptureUnsupported;
    if (r == cudaSuccess && !emu.handles.count(stream))
        r = cudaErrorInvalidResourceHandle;
    if (r == cudaSuccess &&
        (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed))
        r = cudaErrorInvalidValue;
    if (r == cudaSuccess && stream->capture)
        r = cudaErrorIllegalState;
    if (r != cudaSuccess || emu_injected("CAPTURE", &r))
        return emu_result(r);
    emu_capture *c = new emu_capture();
    c->id = ++emu.next_id;
    c->mode = mode;
    c->origin = stream;
    c->graph = new CUgraph_st();
    c->streams.push_back(stream);
    c->thread = emu_this_thread();
    stream->capture = c;
    stream->tail.clear();
    emu.handles.insert(c->graph);
    emu.captures.push_back(c);
    return cudaSuccess;
}

/* 1 if every node but the origin's last ones has a successor, or is one of those. */
static int is_joined(const emu_capture *c)
{
    std::unordered_set<cudaGraphNode_t> reached(c->origin->tail.begin(), c->origin->tail.end());
    for (const auto &n : c->graph->nodes)
        reached.insert(n->after.begin(), n->after.end());
    return reached.size() == c->graph->nodes.size();
}

static void forget_graph(cudaGraph_t graph)
{
    for (const auto &n : graph->nodes)
        emu.handles.erase(n.get());
    emu.handles.erase(graph);
    delete graph;
}

static cudaError_t end(emu_capture *c, cudaGraph_t *ret)
{
    cudaError_t r = cudaSuccess;
    if (c->is_invalid)
        r = cudaErrorStreamCaptureInvalidated;
    else if (!is_joined(c))
        r = cudaErrorStreamCaptureUnjoined;
    for (cudaStream_t s : c->streams) {
        s->capture = NULL;
        s->tail.clear();
    }
    *ret = r == cudaSuccess ? c->graph : NULL;
    if (r != cudaSuccess)
        forget_graph(c->graph);
    std::erase(emu.captures, c);
    delete c;
    return r;
}

extern "C" cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && (!s || !pGraph))
        r = s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    if (r == cudaSuccess && !s->capture)
        r = cudaErrorIllegalState;
    if (r != cudaSuccess)
        return emu_result(r);
    emu_capture *c = s->capture;
    if (c->origin != s)
        r = cudaErrorStreamCaptureUnmatched;
    else if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != emu_this_thread())
        r = cudaErrorStreamCaptureWrongThread;
    if (r != cudaSuccess) {
        emu_invalidate(c);
        return emu_result(r);
    }
    return emu_result(end(c, pGraph));
}

static enum cudaStreamCaptureStatus status_of(cudaStream_t s)
{
    if (!s->capture)
        return cudaStreamCaptureStatusNone;
    return s->capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
}

extern "C" cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                enum cudaStreamCaptureStatus *captureStatus_out,
                                                unsigned long long *id_out, cudaGraph_t *graph_out,
                                                const cudaGraphNode_t **dependencies_out,
                                                const cudaGraphEdgeData **edgeData_out,
                                                size_t *numDependencies_out)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && (!s || !captureStatus_out))
        r = s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    if (r != cudaSuccess)
        return emu_result(r);
    *captureStatus_out = status_of(s);
    if (*captureStatus_out != cudaStreamCaptureStatusActive)
        return cudaSuccess;
    s->capture->edges.resize(s->tail.size());
    if (id_out)
        *id_out = s->capture->id;
    if (graph_out)
        *graph_out = s->capture->graph;
    if (dependencies_out)
        *dependencies_out = s->tail.data();
    if (edgeData_out)
        *edgeData_out = s->capture->edges.data();
    if (numDependencies_out)
        *numDependencies_out = s->tail.size();
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                             enum cudaStreamCaptureStatus *pCaptureStatus)
{
    return cudaStreamGetCaptureInfo(stream, pCaptureStatus);
}

/* ---- graphs and their nodes ---- */

static cudaError_t find_handle(const void *h)
{
    cudaError_t r = emu_enter();
    return r == cudaSuccess && !emu.handles.count(h) ? cudaErrorInvalidValue : r;
}

extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (emu.is_forked || !emu.handles.count(graph))
        return emu_result(r != cudaSuccess ? r : cudaErrorInvalidValue);
    forget_graph(graph);
    return emu_result(r);
}

extern "C" cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes,
                                         size_t *numNodes)
{
    emu_guard g(emu.lock);
    cudaError_t r = find_handle(graph);
    if (r == cudaSuccess && !numNodes)
        r = cudaErrorInvalidValue;
    if (r != cudaSuccess)
        return emu_result(r);
    size_t room = *numNodes, n = graph->nodes.size();
    for (size_t i = 0; nodes && i < room; i++)
        nodes[i] = i < n ? graph->nodes[i].get() : NULL;
    *numNodes = nodes && room < n ? room : n;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *pType)
{
    emu_guard g(emu.lock);
    cudaError_t r = find_handle(node);
    if (r == cudaSuccess && !pType)
        r = cudaErrorInvalidValue;
    if (r == cudaSuccess)
        *pType = node->body->type;
    return emu_result(r);
}

extern "C" cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                                    struct cudaKernelNodeParams *pNodeParams)
{
    emu_guard g(emu.lock);
    cudaError_t r = find_handle(node);
    if (r == cudaSuccess && (!pNodeParams || node->body->type != cudaGraphNodeTypeKernel))
        r = cudaErrorInvalidValue;
    if (r == cudaSuccess && !node->body->launch)
        r = cudaErrorInvalidDeviceFunction; /* a library's kernel, unknown to the runtime */
    if (r != cudaSuccess)
        return emu_result(r);
    const emu_launch &l = *node->body->launch;
    *pNodeParams = {
        const_cast<void *>(l.function),          l.grid, l.block, static_cast<unsigned>(l.shared),
        const_cast<void **>(l.arguments.data()), NULL};
    return cudaSuccess;
}

/* ---- execution ---- */

extern "C" cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                            unsigned long long flags)
{
    emu_guard g(emu.lock);
    cudaError_t r = find_handle(graph);
    if (r == cudaSuccess && (!pGraphExec || flags))
        r = cudaErrorInvalidValue;
    if (r != cudaSuccess || emu_injected("GRAPH", &r))
        return emu_result(r);
    auto *x = new CUgraphExec_st();
    auto edges = std::make_shared<shape>();
    edges->next.resize(graph->nodes.size());
    x->graph = graph;
    for (const auto &n : graph->nodes) {
        size_t i = x->bodies.size();
        x->index[n.get()] = i;
        x->bodies.push_back(n->body);
        edges->before.push_back(n->after.size());
        for (cudaGraphNode_t a : n->after)
            edges->next[x->index[a]].push_back(i);
    }
    x->edges = edges;
    emu.handles.insert(x);
    *pGraphExec = x;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphExecKernelNodeSetParams(
    cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
    const struct cudaKernelNodeParams *pNodeParams)
{
    std::shared_ptr<const emu_launch> l;
    emu_guard g(emu.lock);
    cudaError_t r = find_handle(hGraphExec);
    if (r == cudaSuccess)
        r = find_handle(node);
    if (r == cudaSuccess && (!pNodeParams || pNodeParams->extra || !hGraphExec->index.count(node) ||
                             !node->body->launch))
        r = cudaErrorInvalidValue;
    if (r == cudaSuccess)
        r = emu_prepare(pNodeParams->func, pNodeParams->gridDim, pNodeParams->blockDim,
                        pNodeParams->kernelParams, pNodeParams->sharedMemBytes, &l);
    if (r == cudaSuccess)
        hGraphExec->bodies[hGraphExec->index[node]] =
            std::make_shared<emu_body>(emu_launch_body(l));
    return emu_result(r);
}

/* One launch under way; on the device thread. */
struct launch {
    std::vector<std::shared_ptr<emu_body>> bodies;
    std::shared_ptr<const shape> edges;
    std::vector<size_t> before;       /* as many predecessors are not done */
    std::vector<emu_step> steps;      /* begun, not done */
    std::vector<size_t> ready, asked; /* ascending; asked: not ready yet, said it in this round */
    size_t left;
};

static void insert(std::vector<size_t> &to, size_t i)
{
    to.insert(std::lower_bound(to.begin(), to.end(), i), i);
}

static void end_node(launch &x, size_t i)
{
    x.left--;
    x.steps[i] = nullptr;
    for (size_t n : x.edges->next[i]) {
        if (--x.before[n] == 0)
            insert(x.ready, n);
    }
}

static void run_node(launch &x, size_t i)
{
    if (!x.steps[i])
        x.steps[i] = x.bodies[i]->step;
    emu_running = x.bodies[i]->name.c_str();
    enum emu_progress p = x.steps[i]();
    if (p == EMU_DONE)
        end_node(x, i);
    else
        insert(p == EMU_NOT_YET ? x.asked : x.ready, i);
}

static enum emu_progress advance(launch &x)
{
    if (x.ready.empty() && x.left) {
        std::swap(x.ready, x.asked);
        return EMU_NOT_YET;
    }
    if (x.left) {
        size_t at = emu_choose(x.ready.size()), i = x.ready[at];
        x.ready.erase(x.ready.begin() + static_cast<ptrdiff_t>(at));
        run_node(x, i);
    }
    return x.left ? EMU_MORE : EMU_DONE;
}

static emu_step begin(cudaGraphExec_t exec)
{
    auto x = std::make_shared<launch>();
    x->bodies = exec->bodies;
    x->edges = exec->edges;
    x->before = exec->edges->before;
    x->left = exec->bodies.size();
    x->steps.resize(x->left);
    for (size_t i = 0; i < x->left; i++) {
        if (x->before[i] == 0)
            x->ready.push_back(i);
    }
    return [x] { return advance(*x); };
}

extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    emu_guard g(emu.lock);
    cudaError_t r = find_handle(graphExec);
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && (!s || s->device != emu_current_device()))
        r = cudaErrorInvalidResourceHandle;
    if (r == cudaSuccess && s->capture)
        emu_die("cudaGraphLaunch(): a graph within a graph is not emulated");
    if (r != cudaSuccess || emu_injected("GRAPH", &r))
        return emu_result(r);
    graphExec->last = emu_queue(s, {cudaGraphNodeTypeGraph, "a graph", begin(graphExec), NULL},
                                {graphExec->last});
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    emu_guard g(emu.lock);
    cudaError_t r = find_handle(graphExec);
    if (r == cudaSuccess && !emu_stream(stream))
        r = cudaErrorInvalidResourceHandle;
    return emu_result(r);
}

extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (emu.is_forked || !emu.handles.erase(graphExec))
        return emu_result(r != cudaSuccess ? r : cudaErrorInvalidValue);
    delete graphExec;
    return emu_result(r);
}
