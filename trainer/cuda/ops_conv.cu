/* ops_conv.cu: convolutions as products. What the windows at a run of places see is laid out
 * (im2col) in the device's scratch memory, a piece at a time so that it stays in the second cache,
 * and multiplied; a window of one element needs no laying out. The input's gradient comes back the
 * same way: each element of the input gathers from the windows that see it, in the order of places,
 * and goes on from piece to piece. So no two threads add to one number, and pieces do not show but
 * in the products. What items hold does not change the bits of others; how many there are may, for
 * the library chooses an algorithm by the shape.
 */
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/window.h"

#define PIECE_BYTES (DEVICE_SCRATCH / 4 * 3) /* about what the second cache of an H200 holds */
#define MOST_DEPTH  65536 /* columns of a piece: of a window more than that, so many at a time */
#define MOST_INPUT  (1 << 30) /* elements of the items of a piece: they are counted in 32 bits */

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

/* ---- pieces ---- */

/* Places [at, at + n), counted through all items, and elements [from, from + depth) of what a
 * window sees: [n, depth] in scratch memory. */
struct piece {
    int64_t at, n, from, depth;
    int vector; /* floats at once */
    float *windows;
};

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* Places of a piece: as many whole items as there is room for or, of large items, whole rows or at
 * least places. */
static int64_t places_at_once(const struct window_args *a)
{
    int64_t depth = depth_of(a) < MOST_DEPTH ? depth_of(a) : MOST_DEPTH;
    int64_t n = static_cast<int64_t>(PIECE_BYTES / sizeof(float)) / depth;
    if (n >= places_of(a)) {
        int64_t items = MOST_INPUT / (a->in[0] * a->in[1] * a->channels);
        return at_most(n / places_of(a), items) * places_of(a);
    }
    return n >= a->out[1] ? n - n % a->out[1] : n < 1 ? 1 : n;
}

/* The piece at p->at and p->from. */
static void take_piece(const struct window_args *a, const float *tensor, int64_t step,
                       struct piece *p)
{
    p->n = at_most(a->items * places_of(a) - p->at, step);
    p->depth = at_most(depth_of(a) - p->from, MOST_DEPTH);
    p->vector = floats_at_once(a->channels, tensor);
    p->windows =
        static_cast<float *>(device_scratch(static_cast<size_t>(p->n * p->depth) * sizeof(float)));
}

/* ---- laying out ---- */

/* Of element `i` of a piece [places, depth]: of which place, and what the window sees there. */
struct layout {
    struct divisor by_depth, by_channels, by_window, by_cols, by_rows;
    uint32_t from; /* vectors */
    int row, col;  /* of the first place */
};

static struct layout layout_of(const struct window_args *a, const struct piece *p)
{
    int64_t place = p->at % places_of(a);
    return {divisor_of(p->depth / p->vector),
            divisor_of(a->channels / p->vector),
            divisor_of(a->window[1]),
            divisor_of(a->out[1]),
            divisor_of(a->out[0]),
            static_cast<uint32_t>(p->from / p->vector),
            static_cast<int>(place / a->out[1]),
            static_cast<int>(place % a->out[1])};
}

template <int V>
__global__ static void lay_out_windows(struct window w, struct layout y, int64_t first_item,
                                       const float *x, float *windows, uint32_t n)
{
    EACH_INDEX(uint32_t, i, n)
    {
        uint32_t place = i, k;
        k = y.from + static_cast<uint32_t>(take_rest(place, y.by_depth));
        int channel = take_rest(k, y.by_channels) * V;
        int window_col = take_rest(k, y.by_window), window_row = static_cast<int>(k);
        place += static_cast<uint32_t>(y.col);
        int c = take_rest(place, y.by_cols) * w.col.stride - w.col.pad + window_col;
        place += static_cast<uint32_t>(y.row);
        int r = take_rest(place, y.by_rows) * w.row.stride - w.row.pad + window_row;
        int64_t item = first_item + place;
        vector<float, V> v = {};
        if (r >= 0 && r < w.row.in && c >= 0 && c < w.col.in)
            v = load<V>(x + ((item * w.row.in + r) * w.col.in + c) * w.channels + channel);
        store(windows + static_cast<int64_t>(i) * V, v);
    }
}

static void lay_out(const struct window_args *a, const struct piece *p, const float *x)
{
    int64_t n = p->n * p->depth / p->vector, item = p->at / places_of(a);
    uint32_t count = static_cast<uint32_t>(n);
    if (p->vector == 4)
        TAPE_LAUNCH(lay_out_windows<4>, tape_grid(n), TAPE_THREADS, 0, window_of(a),
                    layout_of(a, p), item, x, p->windows, count);
    else
        TAPE_LAUNCH(lay_out_windows<1>, tape_grid(n), TAPE_THREADS, 0, window_of(a),
                    layout_of(a, p), item, x, p->windows, count);
}

void cuda_conv(const struct window_args *a, int64_t filters, const float *x, const float *kernel,
               float *z)
{
    int64_t depth = depth_of(a), all = a->items * places_of(a), step = places_at_once(a);
    struct piece p = {};
    if (is_plain(a)) {
        cuda_gemm(0, 0, all, filters, depth, x, kernel, 0.0f, z);
        return;
    }
    for (; p.at < all; p.at += p.n)
        for (p.from = 0; p.from < depth; p.from += p.depth) {
            take_piece(a, x, step, &p);
            lay_out(a, &p, x);
            cuda_gemm(0, 0, p.n, filters, p.depth, p.windows, kernel + p.from * filters,
                      p.from > 0 ? 1.0f : 0.0f, z + p.at * filters);
            device_scratch_done();
        }
}

void cuda_conv_backward_kernel(const struct window_args *a, int64_t filters, const float *x,
                               const float *dz, float beta, float *d_kernel)
{
    int64_t depth = depth_of(a), all = a->items * places_of(a), step = places_at_once(a);
    struct piece p = {};
    if (is_plain(a) || all == 0) {
        cuda_gemm(1, 0, depth, filters, all, x, dz, beta, d_kernel);
        return;
    }
    for (; p.at < all; p.at += p.n)
        for (p.from = 0; p.from < depth; p.from += p.depth) {
            take_piece(a, x, step, &p);
            lay_out(a, &p, x);
            cuda_gemm(1, 0, p.depth, filters, p.n, p.windows, dz + p.at * filters,
                      p.at > 0 ? 1.0f : beta, d_kernel + p.from * filters);
            device_scratch_done();
        }
}

/* ---- gathering ---- */

/* Which elements of the input a piece has something for, and which of their windows it has. */
struct reach {
    struct spots spots; /* from (item, row) on */
    int64_t item;
    int row;
    int first, places; /* of the piece, by the places of the first item */
    int from, depth;   /* elements of a window */
    int adds;          /* to what other pieces gave */
};

/* What the elements of the window at `place` (of the piece) got, at [element]; NULL: the piece does
 * not have it. */
__device__ static const float *got_from(const struct reach &g, const float *windows, int64_t place,
                                        int element)
{
    int64_t at = place - g.first;
    element -= g.from;
    return at >= 0 && at < g.places && element >= 0 && element < g.depth
               ? windows + at * g.depth + element
               : NULL;
}

template <int V>
__global__ static void gather_windows(struct window w, struct reach g, const float *windows,
                                      float *dx, uint32_t n)
{
    EACH_INDEX(uint32_t, i, n)
    {
        struct spot s = spot_of<uint32_t, V>(g.spots, i);
        int64_t before = s.item * w.row.out * w.col.out; /* places of the piece's other items */
        s.item += g.item;
        s.row += g.row;
        struct span rows = span_of_places(w.row, s.row), cols = span_of_places(w.col, s.col);
        float *to = dx + spot_at(s, w.row.in, w.col.in, w.channels);
        vector<float, V> sum = {};
        if (g.adds)
            sum = load<V>(to);
        for (int r = rows.begin; r < rows.end; r++)
            for (int c = cols.begin; c < cols.end; c++) {
                int window_row = s.row - (r * w.row.stride - w.row.pad);
                int window_col = s.col - (c * w.col.stride - w.col.pad);
                int element = (window_row * w.col.window + window_col) * w.channels + s.channel;
                const float *from = got_from(g, windows, before + r * w.col.out + c, element);
                if (!from)
                    continue;
                vector<float, V> v = load<V>(from);
                for (int k = 0; k < V; k++)
                    sum.v[k] += v.v[k];
            }
        store(to, sum);
    }
}

static int64_t between(int64_t n, int64_t low, int64_t high)
{
    return n < low ? low : n > high ? high : n;
}

/* Pieces of whole items have the sums of those; others add to the rows that their windows see. */
static struct reach reach_of(const struct window_args *a, const struct piece *p, int64_t *ret_n)
{
    int64_t item = p->at / places_of(a), first = p->at % places_of(a);
    int64_t items = (first + p->n + places_of(a) - 1) / places_of(a), row = 0, end = a->in[0];
    if (items == 1) {
        int64_t last = (first + p->n - 1) / a->out[1];
        row = between(first / a->out[1] * a->strides[0] - a->pad[0], 0, a->in[0]);
        end = between(last * a->strides[0] - a->pad[0] + a->window[0], row, a->in[0]);
    }
    *ret_n = items * (end - row) * a->in[1] * a->channels / p->vector;
    return {spots_of(end - row, a->in[1], a->channels / p->vector),
            item,
            static_cast<int>(row),
            static_cast<int>(first),
            static_cast<int>(p->n),
            static_cast<int>(p->from),
            static_cast<int>(p->depth),
            1};
}

static void gather(const struct window_args *a, const struct piece *p, int adds, float *dx)
{
    int64_t n;
    struct reach g = reach_of(a, p, &n);
    uint32_t count = static_cast<uint32_t>(n);
    g.adds = adds;
    if (n == 0)
        return;
    if (p->vector == 4)
        TAPE_LAUNCH(gather_windows<4>, tape_grid(n), TAPE_THREADS, 0, window_of(a), g, p->windows,
                    dx, count);
    else
        TAPE_LAUNCH(gather_windows<1>, tape_grid(n), TAPE_THREADS, 0, window_of(a), g, p->windows,
                    dx, count);
}

void cuda_conv_backward_input(const struct window_args *a, int64_t filters, const float *dz,
                              const float *kernel, float *dx)
{
    int64_t depth = depth_of(a), all = a->items * places_of(a), step = places_at_once(a);
    int64_t size = a->in[0] * a->in[1] * a->channels;
    int adds = depth > MOST_DEPTH || step < places_of(a);
    struct piece p = {};
    if (is_plain(a)) {
        cuda_gemm(0, 1, all, depth, filters, dz, kernel, 0.0f, dx);
        return;
    }
    if (adds)
        tape_zero(dx, static_cast<size_t>(a->items * size) * sizeof *dx);
    for (; p.at < all; p.at += p.n)
        for (p.from = 0; p.from < depth; p.from += p.depth) {
            take_piece(a, dx, step, &p);
            cuda_gemm(0, 1, p.n, p.depth, filters, dz + p.at * filters, kernel + p.from * filters,
                      0.0f, p.windows);
            gather(a, &p, adds, dx);
            device_scratch_done();
        }
}
