/* emu_event.cc: events: a mark in a stream's queue, or, in a capture, a set of nodes. */
#include "emu_internal.h"

static cudaError_t find_event(cudaEvent_t e)
{
    cudaError_t r = emu_enter();
    if (r == cudaSuccess && !emu.handles.count(e))
        r = cudaErrorInvalidResourceHandle;
    return r;
}

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (r == cudaSuccess &&
        (!event || flags & ~static_cast<unsigned>(cudaEventBlockingSync | cudaEventDisableTiming)))
        r = cudaErrorInvalidValue;
    if (r != cudaSuccess || emu_injected("EVENT", &r))
        return emu_result(r);
    *event = new CUevent_st();
    (*event)->flags = flags;
    (*event)->device = emu_current_device();
    emu.handles.insert(*event);
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (emu.is_forked || !emu.handles.erase(event))
        return emu_result(r != cudaSuccess ? r : cudaErrorInvalidResourceHandle);
    delete event;
    return emu_result(r);
}

static enum emu_progress nothing(void)
{
    return EMU_DONE;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    emu_guard g(emu.lock);
    cudaError_t r = find_event(event);
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && (!s || s->device != event->device))
        r = cudaErrorInvalidResourceHandle;
    if (r == cudaSuccess && s->capture && s->capture->is_invalid)
        r = cudaErrorStreamCaptureInvalidated;
    if (r != cudaSuccess || emu_injected("RECORD", &r))
        return emu_result(r);
    event->capture_id = 0;
    event->nodes.clear();
    event->recorded_at = emu_now_ms();
    if (!s->capture)
        return emu_result(
            emu_submit(s, {cudaGraphNodeTypeEmpty, "an event", nothing, NULL}, &event->mark));
    event->capture_id = s->capture->id;
    event->nodes = s->tail;
    event->mark = NULL;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                           unsigned int flags)
{
    emu_guard g(emu.lock);
    cudaError_t r = find_event(event);
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && !s)
        r = cudaErrorInvalidResourceHandle;
    if (r == cudaSuccess && flags != cudaEventWaitDefault)
        r = cudaErrorInvalidValue;
    if (r != cudaSuccess)
        return emu_result(r);
    if (s->capture || event->capture_id)
        return emu_result(emu_capture_wait(s, event));
    if (event->mark && !event->mark->is_done)
        emu_queue(s, {cudaGraphNodeTypeEmpty, "waiting for an event", nothing, NULL},
                  {event->mark});
    return cudaSuccess;
}

/* An event that may be asked or waited for. */
static cudaError_t to_ask(emu_guard &g, cudaEvent_t event, const char *kind)
{
    cudaError_t r = find_event(event);
    if (r == cudaSuccess && event->capture_id)
        return cudaErrorCapturedEvent;
    if (r == cudaSuccess)
        r = emu_enter_unsafe(g);
    if (r == cudaSuccess)
        emu_injected(kind, &r);
    return r;
}

/* A GPU is never as quick as the next call of its host, unless that one has waited. */
#define EARLIEST_MS 0.005

static int is_early(cudaEvent_t e)
{
    return emu.waited_at < e->recorded_at && emu_now_ms() - e->recorded_at < EARLIEST_MS;
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event)
{
    emu_guard g(emu.lock);
    cudaError_t r = to_ask(g, event, "QUERY");
    if (r == cudaSuccess && event->mark && (!event->mark->is_done || is_early(event)))
        r = cudaErrorNotReady;
    return emu_result(r);
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    emu_guard g(emu.lock);
    cudaError_t r = to_ask(g, event, "SYNC");
    return emu_result(r == cudaSuccess ? emu_wait(g, emu_mark(event->mark)) : r);
}

extern "C" cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    emu_guard g(emu.lock);
    cudaError_t r = find_event(start);
    if (r == cudaSuccess)
        r = find_event(end);
    if (r == cudaSuccess && !ms)
        r = cudaErrorInvalidValue;
    if (r == cudaSuccess &&
        (!start->mark || !end->mark || ((start->flags | end->flags) & cudaEventDisableTiming)))
        r = cudaErrorInvalidResourceHandle;
    if (r == cudaSuccess && (!start->mark->is_done || !end->mark->is_done))
        r = cudaErrorNotReady;
    if (r == cudaSuccess)
        *ms = static_cast<float>(end->mark->done_at - start->mark->done_at);
    return emu_result(r);
}
