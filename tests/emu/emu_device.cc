/* emu_device.cc: the device thread and the streams' queues. It is started by the first operation;
 * a process forked after that has no device (as with CUDA itself). */
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "emu_internal.h"

emu_state &emu = *new emu_state();
thread_local const char *emu_running;
thread_local int emu_running_on;
static thread_local int current_device;
static thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

#define ASK_AGAIN std::chrono::microseconds(50)

int emu_current_device(void)
{
    return current_device;
}

double emu_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

cudaError_t emu_broken(void)
{
    return emu.broken;
}

void emu_break(cudaError_t why)
{
    cudaError_t none = cudaSuccess;
    emu.broken.compare_exchange_strong(none, why);
    emu.work.notify_all();
}

/* ---- what stands in the way of a call ---- */

cudaError_t emu_enter(void)
{
    int n = 0;
    if (emu.is_forked)
        return cudaErrorInitializationError;
    if (emu.broken != cudaSuccess)
        return emu.broken;
    return emu_count_devices(&n);
}

/* Whether this thread must not make a call now that could wait for a captured stream. */
static int is_forbidden(const emu_capture *c)
{
    int is_own = c->thread == &thread_mode;
    if (thread_mode == cudaStreamCaptureModeRelaxed || c->mode == cudaStreamCaptureModeRelaxed)
        return 0;
    return is_own ||
           (thread_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal);
}

cudaError_t emu_enter_unsafe(emu_guard &)
{
    cudaError_t r = emu_enter();
    for (emu_capture *c : emu.captures) {
        if (r == cudaSuccess && is_forbidden(c)) {
            emu_invalidate(c);
            r = cudaErrorStreamCaptureUnsupported;
        }
    }
    return r;
}

const void *emu_this_thread(void)
{
    return &thread_mode;
}

extern "C" cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    if (!mode || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed)
        return emu_result(cudaErrorInvalidValue);
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

/* ---- the device thread ---- */

static int can_run(cudaStream_t s)
{
    if (s->queue.empty() || s->was_asked)
        return 0;
    for (const emu_mark &m : s->queue.front()->after) {
        if (!m->is_done)
            return 0;
    }
    return 1;
}

static cudaStream_t pick(void)
{
    static std::vector<cudaStream_t> &ready = *new std::vector<cudaStream_t>();
    ready.clear();
    for (cudaStream_t s : emu.streams) {
        if (can_run(s))
            ready.push_back(s);
    }
    return ready.empty() ? NULL : ready[emu_choose(ready.size())];
}

/* 1 if a stream waits for something outside. */
static int ask_again(void)
{
    int any = 0;
    for (cudaStream_t s : emu.streams) {
        any |= s->was_asked;
        s->was_asked = 0;
    }
    return any;
}

static void forget_stream(cudaStream_t s)
{
    std::erase(emu.streams, s);
    delete s;
}

static void finish(cudaStream_t s)
{
    emu_mark m = s->queue.front();
    m->is_done = 1;
    m->done_at = emu_now_ms();
    m->after.clear();
    m->body = {};
    s->queue.pop_front();
    if (s->is_destroyed && s->queue.empty())
        forget_stream(s);
    emu.done.notify_all();
}

static enum emu_progress run(emu_guard &g, cudaStream_t s)
{
    emu_mark m = s->queue.front();
    if (emu.broken != cudaSuccess)
        return EMU_DONE;
    emu_running_on = s->device;
    g.unlock();
    emu_running = m->body.name.c_str();
    enum emu_progress p = m->body.step();
    emu_running = NULL;
    g.lock();
    return p;
}

static void work(emu_guard &g)
{
    cudaStream_t s = pick();
    if (!s) {
        if (ask_again())
            emu.work.wait_for(g, ASK_AGAIN);
        else
            emu.work.wait(g);
        return;
    }
    enum emu_progress p = run(g, s);
    if (p == EMU_NOT_YET) {
        s->was_asked = 1;
        return;
    }
    ask_again();
    if (p == EMU_DONE)
        finish(s);
}

static void use_own_signal_stack(void)
{
    static char stack[65536];
    stack_t s = {};
    s.ss_sp = stack;
    s.ss_size = sizeof stack;
    sigaltstack(&s, NULL);
}

static void device_main(void)
{
    pthread_setname_np(pthread_self(), "emulated-gpu");
    use_own_signal_stack();
    emu_guard g(emu.lock);
    for (;;)
        work(g);
}

static void before_fork(void)
{
    emu.lock.lock();
}

static void after_fork(void)
{
    emu.lock.unlock();
}

static void in_child(void)
{
    emu.is_forked = emu.is_started;
    emu.lock.unlock();
}

static void start(void)
{
    sigset_t all, before;
    if (emu.is_started)
        return;
    emu.is_started = 1;
    emu_memory_window();
    pthread_atfork(before_fork, after_fork, in_child);
    sigfillset(&all);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP})
        sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    std::thread(device_main).detach();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- queues ---- */

static int is_legacy(cudaStream_t s)
{
    return emu.legacy.size() > static_cast<size_t>(s->device) && emu.legacy[s->device] == s;
}

/* The legacy stream and the blocking ones wait for each other. */
static void add_implicit(cudaStream_t s, std::vector<emu_mark> &after)
{
    for (cudaStream_t o : emu.streams) {
        if (o != s && o->device == s->device && o->last && !o->last->is_done &&
            !(o->flags & cudaStreamNonBlocking) && !(s->flags & cudaStreamNonBlocking) &&
            (is_legacy(s) || is_legacy(o)))
            after.push_back(o->last);
    }
}

emu_mark emu_queue(cudaStream_t s, emu_body body, const std::vector<emu_mark> &after)
{
    emu_mark m = std::make_shared<emu_operation>();
    m->body = std::move(body);
    for (const emu_mark &a : after) {
        if (a && !a->is_done)
            m->after.push_back(a);
    }
    add_implicit(s, m->after);
    s->queue.push_back(m);
    s->last = m;
    start();
    emu.work.notify_all();
    return m;
}

cudaError_t emu_submit(cudaStream_t s, emu_body body, emu_mark *ret_mark)
{
    if (s->capture && s->capture->is_invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (s->capture) {
        emu_capture_node(s, std::move(body));
        return cudaSuccess;
    }
    for (cudaStream_t o : emu.streams) {
        if (o->capture && is_legacy(s) && !(o->flags & cudaStreamNonBlocking)) {
            emu_invalidate(o->capture);
            return cudaErrorStreamCaptureImplicit;
        }
    }
    emu_mark m = emu_queue(s, std::move(body), {});
    if (ret_mark)
        *ret_mark = m;
    return cudaSuccess;
}

cudaError_t emu_wait(emu_guard &g, const emu_mark &m)
{
    while (m && !m->is_done)
        emu.done.wait(g);
    emu.waited_at = emu_now_ms();
    return emu.broken;
}

cudaError_t emu_wait_all(emu_guard &g)
{
    std::vector<emu_mark> all;
    for (cudaStream_t s : emu.streams) {
        if (s->device == current_device)
            all.push_back(s->last);
    }
    for (const emu_mark &m : all)
        emu_wait(g, m);
    emu.waited_at = emu_now_ms();
    return emu.broken;
}

static cudaStream_t new_stream(unsigned flags)
{
    cudaStream_t s = new CUstream_st();
    s->id = ++emu.next_id;
    s->device = current_device;
    s->flags = flags;
    emu.streams.push_back(s);
    return s;
}

cudaStream_t emu_stream(cudaStream_t s)
{
    size_t d = static_cast<size_t>(current_device);
    if (s && s != cudaStreamLegacy)
        return emu.handles.count(s) ? s : NULL;
    if (emu.legacy.size() <= d)
        emu.legacy.resize(d + 1);
    if (!emu.legacy[d])
        emu.legacy[d] = new_stream(cudaStreamDefault);
    return emu.legacy[d];
}

/* ---- the libraries' calls ---- */

cudaError_t emu_enqueue(cudaStream_t stream, const char *name, emu_step step)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && (!s || s->device != current_device))
        r = cudaErrorInvalidResourceHandle;
    if (r != cudaSuccess)
        return r;
    return emu_submit(s, {cudaGraphNodeTypeKernel, name, std::move(step), NULL}, NULL);
}

int emu_stream_device(cudaStream_t stream)
{
    emu_guard g(emu.lock);
    cudaStream_t s = emu_stream(stream);
    return s ? s->device : -1;
}

int emu_is_capturing(cudaStream_t stream)
{
    emu_guard g(emu.lock);
    cudaStream_t s = emu_stream(stream);
    return s && s->capture;
}

/* ---- CUDA's calls on devices and streams ---- */

extern "C" cudaError_t cudaSetDevice(int device)
{
    int n;
    cudaError_t r = emu.is_forked ? cudaErrorInitializationError : emu_count_devices(&n);
    if (r == cudaSuccess && !emu_injected("INIT", &r))
        r = emu_broken();
    if (r == cudaSuccess && (device < 0 || device >= n))
        r = cudaErrorInvalidDevice;
    if (r == cudaSuccess)
        current_device = device;
    return emu_result(r);
}

extern "C" cudaError_t cudaGetDevice(int *device)
{
    cudaError_t r = device ? emu_enter() : cudaErrorInvalidValue;
    if (r == cudaSuccess)
        *device = current_device;
    return emu_result(r);
}

extern "C" cudaError_t cudaDeviceSynchronize(void)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter_unsafe(g);
    if (r == cudaSuccess && !emu_injected("SYNC", &r))
        r = emu_wait_all(g);
    if (r == cudaSuccess && emu.is_started)
        emu_check_canaries("cudaDeviceSynchronize()");
    return emu_result(r);
}

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (r == cudaSuccess && (!pStream || flags > cudaStreamNonBlocking))
        r = cudaErrorInvalidValue;
    if (r == cudaSuccess && !emu_injected("STREAM", &r)) {
        *pStream = new_stream(flags);
        emu.handles.insert(*pStream);
    }
    return emu_result(r);
}

extern "C" cudaError_t cudaStreamCreate(cudaStream_t *pStream)
{
    return cudaStreamCreateWithFlags(pStream, cudaStreamDefault);
}

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags,
                                                    int priority)
{
    (void)priority; /* a hint */
    return cudaStreamCreateWithFlags(pStream, flags);
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    if (emu.is_forked || !emu.handles.count(stream))
        return emu_result(r != cudaSuccess ? r : cudaErrorInvalidResourceHandle);
    if (stream->capture) {
        emu_invalidate(stream->capture);
        std::erase(stream->capture->streams, stream);
        return emu_result(cudaErrorStreamCaptureUnsupported);
    }
    emu.handles.erase(stream);
    stream->is_destroyed = 1;
    if (stream->queue.empty())
        forget_stream(stream);
    return emu_result(r);
}

/* The stream of a call that waits or asks; refuses while it is captured. */
static cudaError_t to_ask(emu_guard &g, cudaStream_t stream, const char *kind, cudaStream_t *ret)
{
    cudaError_t r = emu_enter();
    *ret = emu_stream(stream);
    if (r == cudaSuccess && !*ret)
        return cudaErrorInvalidResourceHandle;
    if (r == cudaSuccess && (*ret)->capture) {
        emu_invalidate((*ret)->capture);
        return cudaErrorStreamCaptureUnsupported;
    }
    if (r == cudaSuccess)
        r = emu_enter_unsafe(g);
    if (r == cudaSuccess)
        emu_injected(kind, &r);
    return r;
}

extern "C" cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    emu_guard g(emu.lock);
    cudaStream_t s;
    cudaError_t r = to_ask(g, stream, "QUERY", &s);
    if (r == cudaSuccess && s->last && !s->last->is_done)
        r = cudaErrorNotReady;
    return emu_result(r);
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    emu_guard g(emu.lock);
    cudaStream_t s;
    cudaError_t r = to_ask(g, stream, "SYNC", &s);
    return emu_result(r == cudaSuccess ? emu_wait(g, emu_mark(s->last)) : r);
}

extern "C" cudaError_t cudaStreamGetFlags(cudaStream_t hStream, unsigned int *flags)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    cudaStream_t s = emu_stream(hStream);
    if (r != cudaSuccess || !s || !flags)
        return emu_result(r != cudaSuccess ? r
                          : s              ? cudaErrorInvalidValue
                                           : cudaErrorInvalidResourceHandle);
    *flags = s->flags;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamGetDevice(cudaStream_t hStream, int *device)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    cudaStream_t s = emu_stream(hStream);
    if (r != cudaSuccess || !s || !device)
        return emu_result(r != cudaSuccess ? r
                          : s              ? cudaErrorInvalidValue
                                           : cudaErrorInvalidResourceHandle);
    *device = s->device;
    return cudaSuccess;
}
