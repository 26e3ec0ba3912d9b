/* cuda_windows.h: windows of many kinds, for convolutions and poolings. */
#ifndef TRAINYARD_TESTS_CUDA_WINDOWS_H
#define TRAINYARD_TESTS_CUDA_WINDOWS_H

#include "cuda_slopes.h"

#define WINDOW(items_, in0, in1, out0, out1, channels_, w0, w1, s0, s1, p0, p1)                    \
    {                                                                                              \
        .items = items_, .in = {in0, in1}, .out = {out0, out1}, .channels = channels_,             \
        .window = {w0, w1}, .strides = {s0, s1}, .pad = {                                          \
            p0,                                                                                    \
            p1                                                                                     \
        }                                                                                          \
    }

static const struct window_case {
    struct window_args a;
    int64_t filters;
} WINDOWS[] = {
    {WINDOW(3, 5, 4, 5, 4, 2, 1, 1, 1, 1, 0, 0), 3}, /* the input is what windows see */
    {WINDOW(3, 5, 4, 3, 2, 2, 1, 1, 2, 2, 0, 0), 3},
    {WINDOW(2, 7, 6, 5, 4, 3, 3, 3, 1, 1, 0, 0), 17},
    {WINDOW(2, 7, 6, 7, 6, 3, 3, 3, 1, 1, 1, 1), 5},
    {WINDOW(5, 7, 6, 4, 3, 4, 3, 3, 2, 2, 1, 0), 5},
    {WINDOW(1, 3, 2, 2, 2, 1, 7, 5, 2, 1, 3, 2), 2}, /* wider than the item */
    {WINDOW(3, 9, 8, 2, 3, 1, 2, 1, 5, 3, 0, 0), 1}, /* places between windows */
    {WINDOW(3, 9, 8, 2, 3, 8, 2, 1, 5, 3, 0, 0), 1},
    {WINDOW(2, 4, 4, 4, 4, 2, 4, 4, 1, 1, 1, 1), 20}, /* the last windows begin inside, end not */
    {WINDOW(2, 13, 12, 13, 12, 260, 3, 3, 1, 1, 1, 1), 33},
    {WINDOW(26, 20, 19, 20, 10, 1, 3, 5, 1, 2, 1, 2), 3},
    {WINDOW(3, 7, 7, 1, 1, 12, 7, 7, 1, 1, 0, 0), 7}, /* the whole item */
    {WINDOW(4, 1, 31, 1, 29, 5, 1, 3, 1, 1, 0, 0), 13},
    {WINDOW(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0), 1},
    {WINDOW(7, 11, 13, 4, 5, 127, 3, 3, 3, 3, 1, 1), 2},
    {WINDOW(0, 5, 4, 5, 4, 2, 3, 1, 1, 1, 0, 0), 3},
};

struct window_sizes {
    int64_t x, y, z, kernel;
};

static inline struct window_sizes window_sizes(const struct window_case *c)
{
    const struct window_args *a = &c->a;
    int64_t places = a->items * a->out[0] * a->out[1];
    return (struct window_sizes){
        .x = a->items * a->in[0] * a->in[1] * a->channels,
        .y = places * a->channels,
        .z = places * c->filters,
        .kernel = a->window[0] * a->window[1] * a->channels * c->filters,
    };
}

static inline void window_begin(struct parity *p, const char *verb, const struct window_case *c,
                                int offset)
{
    const struct window_args *a = &c->a;
    parity_begin(p, verb, "%lld of %lldx%lldx%lld, window %lldx%lld, %lld filters, offset %d",
                 (long long)a->items, (long long)a->in[0], (long long)a->in[1],
                 (long long)a->channels, (long long)a->window[0], (long long)a->window[1],
                 (long long)c->filters, offset);
    p->offset = offset;
}

#endif
