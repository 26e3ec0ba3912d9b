/* ops_pool.cu: poolings. A thread has one place and one or four channels; backward it has an
 * element of the input and looks through the windows that see it, in the order of places. So there
 * is no sum that two threads share, and the bits are the CPU's. */
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/window.h"

/* ---- forward ---- */

template <class Index, int V>
__global__ static void max_windows(struct window w, struct spots out, const float *x, float *y,
                                   Index n)
{
    EACH_INDEX(Index, i, n)
    {
        struct spot s = spot_of<Index, V>(out, i);
        struct span rows = span_seen(w.row, s.row), cols = span_seen(w.col, s.col);
        const float *item = x + s.item * w.row.in * w.col.in * w.channels + s.channel;
        vector<float, V> best = load<V>(item + (rows.begin * w.col.in + cols.begin) * w.channels);
        for (int r = rows.begin; r < rows.end; r++)
            for (int c = cols.begin; c < cols.end; c++) {
                vector<float, V> v = load<V>(item + (r * w.col.in + c) * w.channels);
                for (int k = 0; k < V; k++)
                    best.v[k] = elem_max_pool(best.v[k], v.v[k]);
            }
        store(y + static_cast<int64_t>(i) * V, best);
    }
}

template <class Index, int V>
__global__ static void mean_windows(struct window w, struct spots out, const float *x, float *y,
                                    Index n)
{
    EACH_INDEX(Index, i, n)
    {
        struct spot s = spot_of<Index, V>(out, i);
        struct span rows = span_seen(w.row, s.row), cols = span_seen(w.col, s.col);
        const float *item = x + s.item * w.row.in * w.col.in * w.channels + s.channel;
        float share = 1.0f / static_cast<float>((rows.end - rows.begin) * (cols.end - cols.begin));
        vector<float, V> sum = {};
        for (int r = rows.begin; r < rows.end; r++)
            for (int c = cols.begin; c < cols.end; c++) {
                vector<float, V> v = load<V>(item + (r * w.col.in + c) * w.channels);
                for (int k = 0; k < V; k++)
                    sum.v[k] += v.v[k];
            }
        for (int k = 0; k < V; k++)
            sum.v[k] *= share;
        store(y + static_cast<int64_t>(i) * V, sum);
    }
}

/* ---- backward ---- */

/* Whether an element of the window (rows, cols) that comes before (row, col) is as large: then that
 * one has the gradient. Few threads ask: their own element has to be the largest. */
__device__ static bool is_taken(const struct window &w, const float *channel, struct span rows,
                                struct span cols, const struct spot &s, float largest)
{
    for (int r = rows.begin; r <= s.row; r++)
        for (int c = cols.begin; c < (r < s.row ? cols.end : s.col); c++)
            if (channel[(r * w.col.in + c) * w.channels] == largest)
                return true;
    return false;
}

template <class Index, int V>
__global__ static void max_windows_back(struct window w, struct spots in, const float *x,
                                        const float *y, const float *dy, float *dx, Index n)
{
    EACH_INDEX(Index, i, n)
    {
        struct spot s = spot_of<Index, V>(in, i);
        struct span rows = span_of_places(w.row, s.row), cols = span_of_places(w.col, s.col);
        const float *item = x + s.item * w.row.in * w.col.in * w.channels + s.channel;
        vector<float, V> own = load<V>(item + (s.row * w.col.in + s.col) * w.channels), sum = {};
        for (int r = rows.begin; r < rows.end; r++)
            for (int c = cols.begin; c < cols.end; c++) {
                int64_t at = ((s.item * w.row.out + r) * w.col.out + c) * w.channels + s.channel;
                vector<float, V> most = load<V>(y + at);
                for (int k = 0; k < V; k++)
                    if (own.v[k] == most.v[k] && !is_taken(w, item + k, span_seen(w.row, r),
                                                           span_seen(w.col, c), s, most.v[k]))
                        sum.v[k] += dy[at + k];
            }
        store(dx + static_cast<int64_t>(i) * V, sum);
    }
}

template <class Index, int V>
__global__ static void mean_windows_back(struct window w, struct spots in, const float *dy,
                                         float *dx, Index n)
{
    EACH_INDEX(Index, i, n)
    {
        struct spot s = spot_of<Index, V>(in, i);
        struct span rows = span_of_places(w.row, s.row), cols = span_of_places(w.col, s.col);
        vector<float, V> sum = {};
        for (int r = rows.begin; r < rows.end; r++)
            for (int c = cols.begin; c < cols.end; c++) {
                struct span seen_rows = span_seen(w.row, r), seen_cols = span_seen(w.col, c);
                float share = 1.0f / static_cast<float>((seen_rows.end - seen_rows.begin) *
                                                        (seen_cols.end - seen_cols.begin));
                vector<float, V> g = load<V>(
                    dy + ((s.item * w.row.out + r) * w.col.out + c) * w.channels + s.channel);
                for (int k = 0; k < V; k++)
                    sum.v[k] += g.v[k] * share;
            }
        store(dx + static_cast<int64_t>(i) * V, sum);
    }
}

/* ---- verbs ---- */

static int64_t vectors_out(const struct window_args *a, int vector)
{
    return a->items * a->out[0] * a->out[1] * a->channels / vector;
}

static int64_t vectors_in(const struct window_args *a, int vector)
{
    return a->items * a->in[0] * a->in[1] * a->channels / vector;
}

static struct spots out_spots(const struct window_args *a, int vector)
{
    return spots_of(a->out[0], a->out[1], a->channels / vector);
}

static struct spots in_spots(const struct window_args *a, int vector)
{
    return spots_of(a->in[0], a->in[1], a->channels / vector);
}

void cuda_max_pool(const struct window_args *a, const float *x, float *y)
{
    int v = floats_at_once(a->channels, x, y);
    VECTOR_LAUNCH(max_windows, v, vectors_out(a, v), window_of(a), out_spots(a, v), x, y);
}

void cuda_mean_pool(const struct window_args *a, const float *x, float *y)
{
    int v = floats_at_once(a->channels, x, y);
    VECTOR_LAUNCH(mean_windows, v, vectors_out(a, v), window_of(a), out_spots(a, v), x, y);
}

void cuda_max_pool_backward(const struct window_args *a, const float *x, const float *y,
                            const float *dy, float *dx)
{
    int v = floats_at_once(a->channels, x, y, dx);
    VECTOR_LAUNCH(max_windows_back, v, vectors_in(a, v), window_of(a), in_spots(a, v), x, y, dy,
                  dx);
}

void cuda_mean_pool_backward(const struct window_args *a, const float *dy, float *dx)
{
    int v = floats_at_once(a->channels, dy, dx);
    VECTOR_LAUNCH(mean_windows_back, v, vectors_in(a, v), window_of(a), in_spots(a, v), dy, dx);
}
