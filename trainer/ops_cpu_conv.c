/* ops_cpu_conv.c: convolutions as products. What the windows at a block of places see is laid out
 * (im2col), a block at a time so that it stays in the second cache; the product is cpu_gemm, whose
 * elements do not depend on their neighbours. The kernel's gradient goes on from block to block as
 * one chain over all places; the input's is spread place by place, in order. So the blocks never
 * show in a result.
 *
 * With many channels a window is a few long pieces of the item, and places are the rows of a block.
 * With few they would be many short ones: places are its columns then, and a run of them is copied
 * for each element of the window. The products are the same.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/cpu_loops.h"
#include "trainer/ops_cpu.h"

#define BLOCK_FLOATS 65536 /* of laid out windows */
#define BLOCK_PLACES 96    /* at least, so that packing the kernel pays */
#define MOST_FLOATS  (1 << 22)

/* Rows [from, to) of the window at place p of an axis lie in the item; `at` is where in the item
 * the window begins. */
struct span {
    int64_t at, from, to;
};

static struct span span_of(const struct window_args *a, int axis, int64_t place)
{
    struct span s = {.at = place * a->strides[axis] - a->pad[axis]};
    int64_t rest = a->in[axis] - s.at;
    s.from = s.at < 0 ? -s.at : 0;
    s.to = rest < a->window[axis] ? rest : a->window[axis];
    return s;
}

static int64_t places_of(const struct window_args *a)
{
    return a->out[0] * a->out[1];
}

static int64_t depth_of(const struct window_args *a)
{
    return a->window[0] * a->window[1] * a->channels;
}

/* The input is the laid out windows. */
static int is_plain(const struct window_args *a)
{
    return a->window[0] * a->window[1] == 1 && a->strides[0] * a->strides[1] == 1;
}

static int64_t block_places(int64_t depth)
{
    int64_t n = BLOCK_FLOATS / depth, most = MOST_FLOATS / depth;
    n = n < BLOCK_PLACES ? BLOCK_PLACES : n;
    n = n < most ? n : most;
    return n < 1 ? 1 : n;
}

/* Kept from call to call and grown: a backend is one device of one process. */
static float *block_of(int64_t floats)
{
    static float *block;
    static int64_t has;
    if (floats > has) {
        free(block);
        block = mem_aligned((size_t)floats * sizeof *block);
        has = floats;
    }
    return block;
}

static void copy_or_zero(float *to, const float *from, int64_t n)
{
    if (from)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        memset(to, 0, (size_t)n * sizeof *to);
}

/* What the window at (row, col) of an item sees: [window, channels], zeroes outside. */
static void lay_out(const struct window_args *a, const float *item, const struct span *row,
                    const struct span *col, float *to)
{
    int64_t c = a->channels, width = a->window[1] * c;
    for (int64_t r = 0; r < a->window[0]; r++, to += width) {
        if (r < row->from || r >= row->to || col->from >= col->to) {
            copy_or_zero(to, NULL, width);
            continue;
        }
        const float *from = item + ((row->at + r) * a->in[1] + col->at + col->from) * c;
        copy_or_zero(to, NULL, col->from * c);
        copy_or_zero(to + col->from * c, from, (col->to - col->from) * c);
        copy_or_zero(to + col->to * c, NULL, (a->window[1] - col->to) * c);
    }
}

CPU_CLONES static void add_floats(int64_t n, const float *restrict from, float *restrict to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

/* Its transpose: what the window's elements get is added where they came from. */
static void spread(const struct window_args *a, float *item, const struct span *row,
                   const struct span *col, const float *from)
{
    int64_t c = a->channels, n = (col->to - col->from) * c;
    for (int64_t r = row->from; n > 0 && r < row->to; r++)
        add_floats(n, from + (r * a->window[1] + col->from) * c,
                   item + ((row->at + r) * a->in[1] + col->at + col->from) * c);
}

/* Places [first, first + n), counted through all items, to or from rows of `windows`. Exactly one
 * of x and dx is given. */
static void each_place(const struct window_args *a, int64_t first, int64_t n, const float *x,
                       float *dx, float *windows)
{
    int64_t depth = depth_of(a), size = a->in[0] * a->in[1] * a->channels;
    int64_t item = first / places_of(a), place = first % places_of(a);
    int64_t r = place / a->out[1], c = place % a->out[1];
    struct span row = span_of(a, 0, r);
    for (int64_t i = 0; i < n; i++, windows += depth) {
        struct span col = span_of(a, 1, c);
        if (x)
            lay_out(a, x + item * size, &row, &col, windows);
        else
            spread(a, dx + item * size, &row, &col, windows);
        if (++c < a->out[1])
            continue;
        c = 0;
        item += ++r == a->out[0];
        r = r == a->out[0] ? 0 : r;
        row = span_of(a, 0, r);
    }
}

/* ---- few channels ---- */

#define FEW_CHANNELS 4

static int64_t at_least_0(int64_t n)
{
    return n > 0 ? n : 0;
}

/* The first place of an axis whose window begins at `at` or behind it. */
static int64_t first_place(const struct window_args *a, int axis, int64_t at)
{
    return at_least_0((at + a->pad[axis] + a->strides[axis] - 1) / a->strides[axis]);
}

static int64_t between(int64_t n, int64_t low, int64_t high)
{
    return n < low ? low : n > high ? high : n;
}

CPU_CLONES static void copy_steps(int64_t n, int64_t step, const float *restrict from,
                                  float *restrict to)
{
    if (step == 1)
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i * step];
}

/* What element j of a window's row sees from columns [c0, c1) of a row of places; `from` is the
 * item's row, NULL where the window's is outside. */
static void copy_run(const struct window_args *a, const float *from, int64_t j, int64_t c0,
                     int64_t c1, float *to)
{
    int64_t begin = between(first_place(a, 1, -j), c0, c1);
    int64_t end = between(first_place(a, 1, a->in[1] - j), begin, c1);
    end = from ? end : begin;
    memset(to, 0, (size_t)(begin - c0) * sizeof *to);
    if (end > begin)
        copy_steps(end - begin, a->strides[1] * a->channels,
                   from + (begin * a->strides[1] - a->pad[1] + j) * a->channels, to + begin - c0);
    memset(to + end - c0, 0, (size_t)(c1 - end) * sizeof *to);
}

/* Element (i, j, channel) of the windows at places [first, first + n), counted through all items.
 */
static void lay_out_element(const struct window_args *a, int64_t first, int64_t n, const float *x,
                            int64_t i, int64_t j, float *to)
{
    int64_t row = first / a->out[1], c0 = first % a->out[1];
    while (n > 0) {
        int64_t c1 = c0 + n < a->out[1] ? c0 + n : a->out[1];
        int64_t item = row / a->out[0], at = row % a->out[0] * a->strides[0] - a->pad[0] + i;
        int is_inside = at >= 0 && at < a->in[0];
        copy_run(a, is_inside ? x + (item * a->in[0] + at) * a->in[1] * a->channels : NULL, j, c0,
                 c1, to);
        to += c1 - c0;
        n -= c1 - c0;
        c0 = 0;
        row++;
    }
}

/* The block as [depth, n]. */
static void lay_out_across(const struct window_args *a, int64_t first, int64_t n, const float *x,
                           float *block)
{
    for (int64_t i = 0; i < a->window[0]; i++)
        for (int64_t j = 0; j < a->window[1]; j++)
            for (int64_t c = 0; c < a->channels; c++, block += n)
                lay_out_element(a, first, n, x + c, i, j, block);
}

/* ---- the verbs ---- */

/* Lays out places [first, first + n); returns whether the block is [depth, n], else it is [n,
 * depth]. */
static int lay_out_block(const struct window_args *a, int64_t first, int64_t n, const float *x,
                         float *block)
{
    int across = a->channels <= FEW_CHANNELS;
    if (across)
        lay_out_across(a, first, n, x, block);
    else
        each_place(a, first, n, x, NULL, block);
    return across;
}

void cpu_conv(const struct window_args *a, int64_t filters, const float *x, const float *kernel,
              float *z)
{
    int64_t depth = depth_of(a), all = a->items * places_of(a), step = block_places(depth);
    if (is_plain(a)) {
        cpu_gemm(0, 0, all, filters, depth, x, kernel, 0.0f, z);
        return;
    }
    float *block = block_of(step * depth);
    for (int64_t at = 0; at < all; at += step) {
        int64_t n = all - at < step ? all - at : step;
        int across = lay_out_block(a, at, n, x, block);
        cpu_gemm(across, 0, n, filters, depth, block, kernel, 0.0f, z + at * filters);
    }
}

void cpu_conv_backward_kernel(const struct window_args *a, int64_t filters, const float *x,
                              const float *dz, float beta, float *d_kernel)
{
    int64_t depth = depth_of(a), all = a->items * places_of(a), step = block_places(depth);
    if (is_plain(a) || all == 0) {
        cpu_gemm(1, 0, depth, filters, all, x, dz, beta, d_kernel);
        return;
    }
    float *block = block_of(step * depth);
    for (int64_t at = 0; at < all; at += step) {
        int64_t n = all - at < step ? all - at : step;
        int across = lay_out_block(a, at, n, x, block);
        cpu_gemm(!across, 0, depth, filters, n, block, dz + at * filters, at > 0 ? 1.0f : beta,
                 d_kernel);
    }
}

void cpu_conv_backward_input(const struct window_args *a, int64_t filters, const float *dz,
                             const float *kernel, float *dx)
{
    int64_t depth = depth_of(a), all = a->items * places_of(a), step = block_places(depth);
    if (is_plain(a)) {
        cpu_gemm(0, 1, all, depth, filters, dz, kernel, 0.0f, dx);
        return;
    }
    float *block = block_of(step * depth);
    memset(dx, 0, (size_t)(a->items * a->in[0] * a->in[1] * a->channels) * sizeof *dx);
    for (int64_t at = 0; at < all; at += step) {
        int64_t n = all - at < step ? all - at : step;
        cpu_gemm(0, 1, n, depth, filters, dz + at * filters, kernel, 0.0f, block);
        each_place(a, at, n, NULL, dx, block);
    }
}
