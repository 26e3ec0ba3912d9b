/* emu_copy.cc: copies and fills. A copy from or to pinned memory happens when the device gets to
 * it, so that a buffer used again too early shows. Pageable memory is copied from at the call; a
 * copy to it is over when the call returns. Both as CUDA does it.
 */
#include <cstdlib>
#include <cstring>

#include "emu_internal.h"

/* Rows of `width` bytes, each `pitch` after the one before. */
struct side {
    void *p;
    size_t pitch;
    int is_device, is_pinned;
};
struct copy {
    side to, from;
    size_t width, height;
    std::shared_ptr<std::vector<char>> staged; /* what `from` held at the call, without gaps */
};

static size_t span(const side &s, const copy &c)
{
    return (c.height - 1) * s.pitch + c.width;
}

static void look_at(side *s, const copy &c)
{
    s->is_device = emu_is_device(s->p);
    s->is_pinned = !s->is_device && emu_is_pinned(s->p, span(*s, c));
}

static cudaError_t check_side(const side &s, const copy &c, int wants_device)
{
    if (!s.p || s.is_device != wants_device)
        return cudaErrorInvalidValue;
    return s.is_device && !emu_is_whole(s.p, span(s, c)) ? cudaErrorInvalidValue : cudaSuccess;
}

static cudaError_t check_copy(const copy &c, enum cudaMemcpyKind kind)
{
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (c.height > 1 && (c.to.pitch < c.width || c.from.pitch < c.width))
        return cudaErrorInvalidPitchValue;
    int to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    int from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault) {
        to = c.to.is_device;
        from = c.from.is_device;
    }
    cudaError_t r = check_side(c.to, c, to);
    return r == cudaSuccess ? check_side(c.from, c, from) : r;
}

static char *reach(const side &s, const copy &c)
{
    return static_cast<char *>(s.is_device ? emu_translate(s.p, span(s, c)) : s.p);
}

static void do_copy(const copy &c)
{
    char *to = reach(c.to, c), *from = c.staged ? c.staged->data() : reach(c.from, c);
    size_t from_pitch = c.staged ? c.width : c.from.pitch;
    for (size_t i = 0; i < c.height; i++)
        memmove(to + i * c.to.pitch, from + i * from_pitch, c.width);
}

static void stage(copy *c)
{
    c->staged = std::make_shared<std::vector<char>>(c->width * c->height);
    for (size_t i = 0; i < c->height; i++)
        memcpy(c->staged->data() + i * c->width, static_cast<char *>(c->from.p) + i * c->from.pitch,
               c->width);
}

static const char *copy_name(const copy &c)
{
    if (c.to.is_device)
        return c.from.is_device ? "a copy within the device" : "a copy to the device";
    return c.from.is_device ? "a copy to the host" : "a copy within the host";
}

static cudaError_t queue_copy(emu_guard &g, cudaStream_t s, copy c, int must_wait)
{
    emu_mark m;
    if (!s->capture && !c.from.is_device && !c.from.is_pinned)
        stage(&c);
    cudaError_t r = emu_submit(s,
                               {cudaGraphNodeTypeMemcpy, copy_name(c),
                                [c] {
                                    do_copy(c);
                                    return EMU_DONE;
                                },
                                NULL},
                               &m);
    int is_between = c.to.is_device && c.from.is_device;
    int returns_late = must_wait ? !is_between : !c.to.is_device && !c.to.is_pinned;
    return r == cudaSuccess && returns_late ? emu_wait(g, m) : r;
}

static cudaError_t do_memcpy(copy c, enum cudaMemcpyKind kind, cudaStream_t stream, int must_wait)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && !s)
        r = cudaErrorInvalidResourceHandle;
    if (r != cudaSuccess || emu_injected("COPY", &r) || c.width == 0 || c.height == 0)
        return emu_result(r);
    look_at(&c.to, c);
    look_at(&c.from, c);
    r = check_copy(c, kind);
    return emu_result(r == cudaSuccess ? queue_copy(g, s, c, must_wait) : r);
}

static copy rows(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                 size_t height)
{
    return {{dst, dpitch, 0, 0}, {const_cast<void *>(src), spitch, 0, 0}, width, height, NULL};
}

extern "C" cudaError_t cudaMemcpy(void *dst, const void *src, size_t count,
                                  enum cudaMemcpyKind kind)
{
    return do_memcpy(rows(dst, count, src, count, count, 1), kind, NULL, 1);
}

extern "C" cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count,
                                       enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return do_memcpy(rows(dst, count, src, count, count, 1), kind, stream, 0);
}

extern "C" cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch,
                                    size_t width, size_t height, enum cudaMemcpyKind kind)
{
    return do_memcpy(rows(dst, dpitch, src, spitch, width, height), kind, NULL, 1);
}

extern "C" cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                         size_t width, size_t height, enum cudaMemcpyKind kind,
                                         cudaStream_t stream)
{
    return do_memcpy(rows(dst, dpitch, src, spitch, width, height), kind, stream, 0);
}

/* ---- fills ---- */

extern "C" cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && !s)
        r = cudaErrorInvalidResourceHandle;
    if (r != cudaSuccess || emu_injected("SET", &r) || count == 0)
        return emu_result(r);
    if (!emu_is_device(devPtr) || !emu_is_whole(devPtr, count))
        return emu_result(cudaErrorInvalidValue);
    return emu_result(emu_submit(s,
                                 {cudaGraphNodeTypeMemset, "a fill",
                                  [devPtr, value, count] {
                                      memset(emu_translate(devPtr, count), value, count);
                                      return EMU_DONE;
                                  },
                                  NULL},
                                 NULL));
}

extern "C" cudaError_t cudaMemset(void *devPtr, int value, size_t count)
{
    return cudaMemsetAsync(devPtr, value, count, NULL);
}

/* ---- the host's turn ---- */

extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
    emu_guard g(emu.lock);
    cudaError_t r = emu_enter();
    cudaStream_t s = emu_stream(stream);
    if (r == cudaSuccess && (!s || !fn))
        r = s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    if (r != cudaSuccess)
        return emu_result(r);
    return emu_result(emu_submit(s,
                                 {cudaGraphNodeTypeHost, "a function of the host's",
                                  [fn, userData] {
                                      fn(userData);
                                      return EMU_DONE;
                                  },
                                  NULL},
                                 NULL));
}
