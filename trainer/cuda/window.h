/* window.h: where windows stand (ops.h, window_args), for the threads that look through them. An
 * item has at most 2^27 elements (spec/model.h), so that places within one are 32 bits. */
#ifndef TRAINYARD_TRAINER_CUDA_WINDOW_H
#define TRAINYARD_TRAINER_CUDA_WINDOW_H

#include "trainer/cuda/index.h"

struct window_axis {
    int in, out, window, stride, pad;
    struct divisor by_stride;
};

struct window {
    struct window_axis row, col;
    int channels;
};

static inline struct window_axis window_axis_of(const struct window_args *a, int axis)
{
    return {static_cast<int>(a->in[axis]),     static_cast<int>(a->out[axis]),
            static_cast<int>(a->window[axis]), static_cast<int>(a->strides[axis]),
            static_cast<int>(a->pad[axis]),    divisor_of(a->strides[axis])};
}

static inline struct window window_of(const struct window_args *a)
{
    return {window_axis_of(a, 0), window_axis_of(a, 1), static_cast<int>(a->channels)};
}

/* [begin, end) of an axis. */
struct span {
    int begin, end;
};

/* What of the item the window at `place` sees. */
__device__ __forceinline__ struct span span_seen(const struct window_axis &a, int place)
{
    int at = place * a.stride - a.pad;
    return {max(at, 0), min(at + a.window, a.in)};
}

/* The places whose windows see `at`. */
__device__ __forceinline__ struct span span_of_places(const struct window_axis &a, int at)
{
    int last = at + a.pad, before = last - a.window;
    uint32_t end = quotient(static_cast<uint32_t>(last), a.by_stride) + 1;
    uint32_t begin = before < 0 ? 0 : quotient(static_cast<uint32_t>(before), a.by_stride) + 1;
    return {static_cast<int>(begin), min(static_cast<int>(end), a.out)};
}

/* Vectors of channels [items, rows, cols, channels / V], counted through. */
struct spots {
    struct divisor by_channels, by_cols, by_rows;
};

static inline struct spots spots_of(int64_t rows, int64_t cols, int64_t vectors)
{
    return {divisor_of(vectors), divisor_of(cols), divisor_of(rows)};
}

struct spot {
    int64_t item;
    int row, col, channel;
};

template <class Index, int V>
__device__ __forceinline__ struct spot spot_of(const struct spots &s, Index i)
{
    struct spot r;
    r.channel = take_rest(i, s.by_channels) * V;
    r.col = take_rest(i, s.by_cols);
    r.row = take_rest(i, s.by_rows);
    r.item = static_cast<int64_t>(i);
    return r;
}

/* Element (row, col, channel) of the item's [rows, cols, channels]. */
__device__ __forceinline__ int64_t spot_at(const struct spot &s, int rows, int cols, int channels)
{
    return ((s.item * rows + s.row) * cols + s.col) * channels + s.channel;
}

#endif
