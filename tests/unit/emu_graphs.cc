/* Capture into graphs and their launches on the emulated device. */
#include <vector>

#include "tests/unit/emu_child.h"

__global__ static void append(int *x, int digit)
{
    *x = *x * 10 + digit;
}

static int value_of(int *x)
{
    int v = -1;
    return cudaMemcpy(&v, x, sizeof v, cudaMemcpyDeviceToHost) == cudaSuccess ? v : -2;
}

static int *new_number(void)
{
    int *x;
    if (cudaMalloc(&x, sizeof *x) != cudaSuccess || cudaMemset(x, 0, sizeof *x) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess)
        abort();
    return x;
}

static cudaStream_t new_stream(void)
{
    cudaStream_t s;
    if (cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess)
        abort();
    return s;
}

/* ---- a sequence, replayed with other arguments ---- */

static int replays(void)
{
    cudaStream_t s = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node[3];
    size_t n = 0;
    int *x = new_number(), *y = new_number();
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(LAUNCH_ON(s, append, 1, 1, x, 1));
    OK(LAUNCH_ON(s, append, 1, 1, x, 2));
    OK(cudaMemcpyAsync(y, x, sizeof *x, cudaMemcpyDeviceToDevice, s));
    OK(cudaStreamEndCapture(s, &graph));
    MUST(value_of(x) == 0);
    OK(cudaGraphGetNodes(graph, NULL, &n));
    MUST(n == 3);
    OK(cudaGraphGetNodes(graph, node, &n));
    OK(cudaGraphInstantiate(&exec, graph));
    OK(cudaGraphLaunch(exec, s));

    cudaGraphNodeType type;
    cudaKernelNodeParams p;
    OK(cudaGraphNodeGetType(node[2], &type));
    MUST(type == cudaGraphNodeTypeMemcpy);
    MUST(cudaGraphKernelNodeGetParams(node[2], &p) == cudaErrorInvalidValue);
    OK(cudaGraphKernelNodeGetParams(node[1], &p));
    MUST(p.func == reinterpret_cast<void *>(append) && p.gridDim.x == 1);
    MUST(*static_cast<int *>(p.kernelParams[1]) == 2);
    int seven = 7;
    void *arguments[] = {p.kernelParams[0], &seven};
    p.kernelParams = arguments;
    OK(cudaGraphExecKernelNodeSetParams(exec, node[1], &p));
    seven = 8; /* it has been copied */
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    MUST(value_of(x) == 1217 && value_of(y) == 1217);
    p.gridDim = 0;
    MUST(cudaGraphExecKernelNodeSetParams(exec, node[1], &p) == cudaErrorInvalidConfiguration);

    OK(cudaGraphDestroy(graph));
    p.gridDim = 1;
    MUST(cudaGraphExecKernelNodeSetParams(exec, node[1], &p) == cudaErrorInvalidValue);
    OK(cudaGraphLaunch(exec, s));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaStreamSynchronize(s));
    MUST(value_of(x) == 121717);
    MUST(cudaGraphLaunch(exec, s) == cudaErrorInvalidValue);
    return 0;
}

static void a_graph_is_replayed_with_other_arguments(void **)
{
    expect_well_in_any_order(replays);
}

/* ---- branches over streams ---- */

struct branches {
    cudaStream_t s, side;
    cudaEvent_t fork, join;
};

static int make_branches(struct branches *b)
{
    b->s = new_stream();
    b->side = new_stream();
    OK(cudaEventCreateWithFlags(&b->fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&b->join, cudaEventDisableTiming));
    return 0;
}

/* x and y are written side by side, then copied into out[0] and out[1]. */
static int forks_and_joins(void)
{
    struct branches b;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *x = new_number(), *y = new_number(), *out, got[2];
    OK(cudaMalloc(&out, sizeof got));
    MUST(make_branches(&b) == 0);
    OK(cudaStreamBeginCapture(b.s, cudaStreamCaptureModeThreadLocal));
    OK(LAUNCH_ON(b.s, append, 1, 1, x, 1));
    OK(cudaEventRecord(b.fork, b.s));
    OK(cudaStreamWaitEvent(b.side, b.fork));
    OK(cudaMemcpyAsync(y, x, sizeof *x, cudaMemcpyDeviceToDevice, b.side));
    OK(LAUNCH_ON(b.side, append, 1, 1, y, 5));
    OK(cudaEventRecord(b.join, b.side));
    OK(LAUNCH_ON(b.s, append, 1, 1, out, 0));
    cudaStreamCaptureStatus status;
    cudaGraph_t of;
    const cudaGraphNode_t *before;
    const cudaGraphEdgeData *edges;
    size_t count;
    unsigned long long id = 0;
    OK(cudaStreamGetCaptureInfo(b.side, &status, &id, &of, &before, &edges, &count));
    MUST(status == cudaStreamCaptureStatusActive && id != 0 && count == 1);
    OK(cudaStreamWaitEvent(b.s, b.join));
    OK(cudaStreamGetCaptureInfo(b.s, &status, &id, &of, &before, &edges, &count));
    MUST(count == 2);
    OK(cudaMemcpyAsync(out, x, sizeof *x, cudaMemcpyDeviceToDevice, b.s));
    OK(cudaMemcpyAsync(out + 1, y, sizeof *y, cudaMemcpyDeviceToDevice, b.s));
    OK(cudaStreamEndCapture(b.s, &graph));
    MUST(graph == of);
    OK(cudaStreamIsCapturing(b.side, &status));
    MUST(status == cudaStreamCaptureStatusNone);
    OK(cudaGraphInstantiate(&exec, graph));
    OK(cudaGraphLaunch(exec, b.s));
    OK(cudaGraphLaunch(exec, b.side)); /* after the first */
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    MUST(got[0] == 11 && got[1] == 115);
    return 0;
}

static void events_carry_a_capture_to_other_streams(void **)
{
    expect_well_in_any_order(forks_and_joins);
}

/* Two branches append to one number: which comes first is the order's choice. */
static int races(void)
{
    struct branches b;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *x = new_number();
    MUST(make_branches(&b) == 0);
    OK(cudaStreamBeginCapture(b.s, cudaStreamCaptureModeThreadLocal));
    OK(cudaEventRecord(b.fork, b.s));
    OK(cudaStreamWaitEvent(b.side, b.fork));
    OK(LAUNCH_ON(b.s, append, 1, 1, x, 1));
    OK(LAUNCH_ON(b.side, append, 1, 1, x, 2));
    OK(cudaEventRecord(b.join, b.side));
    OK(cudaStreamWaitEvent(b.s, b.join));
    OK(cudaStreamEndCapture(b.s, &graph));
    OK(cudaGraphInstantiate(&exec, graph));
    OK(cudaGraphLaunch(exec, b.s));
    OK(cudaDeviceSynchronize());
    return value_of(x);
}

static void unordered_nodes_run_in_any_order(void **)
{
    char said[256];
    assert_int_equal(WEXITSTATUS(run_child(races, "TRAINYARD_EMU_ORDER=forward", said, 256)), 12);
    assert_int_equal(WEXITSTATUS(run_child(races, "TRAINYARD_EMU_ORDER=reverse", said, 256)), 21);
}

/* ---- work of libraries ---- */

static int library_nodes(void)
{
    cudaStream_t s = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node;
    cudaGraphNodeType type;
    cudaKernelNodeParams p;
    size_t n = 1;
    int *x = new_number();
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    MUST(emu_is_capturing(s));
    OK(emu_enqueue(s, "three steps", [x, steps = 0]() mutable {
        if (++steps < 3)
            return steps == 1 ? EMU_NOT_YET : EMU_MORE;
        *emu_translate(x, sizeof *x) += steps;
        return EMU_DONE;
    }));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphGetNodes(graph, &node, &n));
    OK(cudaGraphNodeGetType(node, &type));
    MUST(type == cudaGraphNodeTypeKernel);
    MUST(cudaGraphKernelNodeGetParams(node, &p) == cudaErrorInvalidDeviceFunction);
    OK(cudaGraphInstantiate(&exec, graph));
    for (int i = 0; i < 4; i++)
        OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    MUST(value_of(x) == 12);
    return 0;
}

static void a_librarys_node_begins_anew_at_each_launch(void **)
{
    expect_well_in_any_order(library_nodes);
}

/* ---- what is forbidden meanwhile ---- */

static int begin(cudaStream_t *s, cudaStreamCaptureMode mode, int *x)
{
    *s = new_stream();
    OK(cudaStreamBeginCapture(*s, mode));
    OK(LAUNCH_ON(*s, append, 1, 1, x, 1));
    return 0;
}

static int is_invalid_now(cudaStream_t s)
{
    cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    OK(cudaStreamIsCapturing(s, &status));
    MUST(status == cudaStreamCaptureStatusInvalidated);
    MUST(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
    OK(cudaStreamSynchronize(s));
    return 0;
}

static int forbidden(void)
{
    cudaStream_t s, other = new_stream();
    cudaEvent_t e, outside;
    void *p;
    int *x = new_number();
    cudaGraph_t graph;
    OK(cudaEventCreate(&e));
    OK(cudaEventCreate(&outside));
    OK(cudaEventRecord(outside, other));

    MUST(begin(&s, cudaStreamCaptureModeGlobal, x) == 0);
    MUST(cudaMalloc(&p, 8) == cudaErrorStreamCaptureUnsupported);
    MUST(is_invalid_now(s) == 0);
    MUST(begin(&s, cudaStreamCaptureModeThreadLocal, x) == 0);
    MUST(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported);
    MUST(is_invalid_now(s) == 0);
    MUST(begin(&s, cudaStreamCaptureModeRelaxed, x) == 0);
    OK(cudaMalloc(&p, 8));
    MUST(cudaStreamQuery(s) == cudaErrorStreamCaptureUnsupported);
    MUST(is_invalid_now(s) == 0);
    MUST(begin(&s, cudaStreamCaptureModeGlobal, x) == 0);
    MUST(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported);
    MUST(is_invalid_now(s) == 0);
    MUST(begin(&s, cudaStreamCaptureModeRelaxed, x) == 0);
    MUST(cudaStreamWaitEvent(s, outside) == cudaErrorStreamCaptureIsolation);
    MUST(is_invalid_now(s) == 0);

    MUST(begin(&s, cudaStreamCaptureModeRelaxed, x) == 0);
    OK(cudaEventRecord(e, s));
    MUST(cudaEventQuery(e) == cudaErrorCapturedEvent);
    OK(cudaStreamWaitEvent(other, e));
    OK(LAUNCH_ON(other, append, 1, 1, x, 2));
    MUST(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureUnjoined);
    MUST(cudaStreamWaitEvent(other, e) == cudaErrorCapturedEvent);

    MUST(begin(&s, cudaStreamCaptureModeRelaxed, x) == 0);
    MUST(cudaStreamEndCapture(other, &graph) == cudaErrorIllegalState);
    MUST(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed) == cudaErrorIllegalState);
    OK(cudaStreamEndCapture(s, &graph));
    MUST(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeRelaxed) ==
         cudaErrorStreamCaptureUnsupported);
    MUST(value_of(x) == 0); /* nothing of all this ran */
    return 0;
}

static void captures_forbid_what_cuda_forbids(void **)
{
    expect_well(forbidden, NULL);
}

static int blocks_the_legacy_stream(void)
{
    cudaStream_t s;
    int *x = new_number(), v;
    OK(cudaStreamCreate(&s));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(LAUNCH_ON(s, append, 1, 1, x, 1));
    MUST(cudaMemcpy(&v, x, sizeof v, cudaMemcpyDeviceToHost) == cudaErrorStreamCaptureImplicit);
    MUST(is_invalid_now(s) == 0);
    return 0;
}

static void a_captured_blocking_stream_stops_the_legacy_one(void **)
{
    expect_well(blocks_the_legacy_stream, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_is_replayed_with_other_arguments),
        cmocka_unit_test(events_carry_a_capture_to_other_streams),
        cmocka_unit_test(unordered_nodes_run_in_any_order),
        cmocka_unit_test(a_librarys_node_begins_anew_at_each_launch),
        cmocka_unit_test(captures_forbid_what_cuda_forbids),
        cmocka_unit_test(a_captured_blocking_stream_stops_the_legacy_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
