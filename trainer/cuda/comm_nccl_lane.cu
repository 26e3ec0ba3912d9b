/* comm_nccl_lane.cu: streams that collectives are asked on, each between two events. */
#include "trainer/cuda/comm_nccl_parts.h"

int nccl_lane_open(struct nccl_world *w, struct nccl_lane *l, cudaStream_t stream)
{
    l->stream = stream;
    for (int i = 0; i < LANE_MARKS; i++)
        if (!device_ok(cudaEventCreateWithFlags(&l->begun[i], cudaEventDisableTiming),
                       "make an event") ||
            !device_ok(cudaEventCreateWithFlags(&l->done[i], cudaEventDisableTiming),
                       "make an event"))
            return -1;
    if (w->lane_count == NCCL_LANES)
        BUG("more than %d streams", NCCL_LANES);
    w->lanes[w->lane_count++] = l;
    return 0;
}

void nccl_lane_close(struct nccl_lane *l)
{
    for (int i = 0; i < LANE_MARKS; i++) {
        if (l->begun[i])
            cudaEventDestroy(l->begun[i]);
        if (l->done[i])
            cudaEventDestroy(l->done[i]);
    }
}

void nccl_lane_begin(struct nccl_lane *l)
{
    device_ok(cudaEventRecord(l->begun[l->asked % LANE_MARKS], l->stream), "record an event");
}

void nccl_lane_end(struct nccl_lane *l, uint64_t call)
{
    uint64_t i = l->asked % LANE_MARKS;
    device_ok(cudaEventRecord(l->done[i], l->stream), "record an event");
    l->calls[i] = call;
    l->asked++;
}

/* The first that comes no sooner: what is further back than the marks reach is done before the
 * oldest of them. */
void nccl_lane_settle(struct nccl_lane *l, uint64_t call, cudaStream_t stream)
{
    uint64_t i = l->asked > LANE_MARKS ? l->asked - LANE_MARKS : 0;
    while (i + 1 < l->asked && l->calls[i % LANE_MARKS] < call)
        i++;
    if (i < l->asked)
        device_ok(cudaStreamWaitEvent(stream, l->done[i % LANE_MARKS], 0), "wait for an event");
}

static int has_happened(cudaEvent_t event)
{
    cudaError_t r = cudaEventQuery(event);
    if (r == cudaErrorNotReady)
        cudaGetLastError(); /* it is remembered as an error */
    return r == cudaSuccess;
}

int nccl_lane_look(struct nccl_lane *l, int *ret_waits)
{
    uint64_t before = l->finished;
    if (l->asked - l->finished > LANE_MARKS)
        l->finished = l->asked - LANE_MARKS;
    while (l->finished < l->asked && has_happened(l->done[l->finished % LANE_MARKS]))
        l->finished++;
    if (l->finished < l->asked && has_happened(l->begun[l->finished % LANE_MARKS]))
        *ret_waits = 1;
    return l->finished != before;
}
