/* ops_cpu_pool.c: poolings, place by place; the loops over channels become vectors. */
#include <math.h>
#include <string.h>

#include "trainer/cpu_loops.h"
#include "trainer/ops_cpu.h"

#define INLINE static inline __attribute__((always_inline))

/* The elements of one window that lie in its item: rows x cols pieces of `channels`, the first at
 * `begin` of the item. */
struct view {
    int64_t begin, rows, cols;
};

INLINE int64_t clip(int64_t at, int64_t most)
{
    return at < 0 ? 0 : at > most ? most : at;
}

INLINE struct view view_of(const struct window_args *a, int64_t r, int64_t c)
{
    int64_t top = r * a->strides[0] - a->pad[0], left = c * a->strides[1] - a->pad[1];
    int64_t row = clip(top, a->in[0]), col = clip(left, a->in[1]);
    return (struct view){
        .begin = (row * a->in[1] + col) * a->channels,
        .rows = clip(top + a->window[0], a->in[0]) - row,
        .cols = clip(left + a->window[1], a->in[1]) - col,
    };
}

INLINE int64_t item_size(const struct window_args *a)
{
    return a->in[0] * a->in[1] * a->channels;
}

INLINE void max_view(const struct window_args *a, struct view v, const float *item,
                     float *restrict y)
{
    int64_t n = a->channels;
    for (int64_t c = 0; c < n; c++)
        y[c] = item[v.begin + c];
    for (int64_t r = 0; r < v.rows; r++)
        for (int64_t k = 0; k < v.cols; k++) {
            const float *x = item + v.begin + (r * a->in[1] + k) * n;
            for (int64_t c = 0; c < n; c++)
                y[c] = elem_max_pool(y[c], x[c]);
        }
}

INLINE void mean_view(const struct window_args *a, struct view v, const float *item,
                      float *restrict y)
{
    int64_t n = a->channels;
    float share = 1.0f / (float)(v.rows * v.cols);
    for (int64_t c = 0; c < n; c++)
        y[c] = 0.0f;
    for (int64_t r = 0; r < v.rows; r++)
        for (int64_t k = 0; k < v.cols; k++) {
            const float *x = item + v.begin + (r * a->in[1] + k) * n;
            for (int64_t c = 0; c < n; c++)
                y[c] += x[c];
        }
    for (int64_t c = 0; c < n; c++)
        y[c] *= share;
}

/* `left` [channels] holds what no element has got yet; the first that equals y takes it. */
#define CHANNELS_AT_ONCE 256

INLINE void max_view_back(const struct window_args *a, struct view v, const float *item,
                          const float *y, const float *dy, float *restrict d_item)
{
    float left[CHANNELS_AT_ONCE];
    for (int64_t c0 = 0; c0 < a->channels; c0 += CHANNELS_AT_ONCE) {
        int64_t n = a->channels - c0 < CHANNELS_AT_ONCE ? a->channels - c0 : CHANNELS_AT_ONCE;
        for (int64_t c = 0; c < n; c++)
            left[c] = dy[c0 + c];
        for (int64_t r = 0; r < v.rows; r++)
            for (int64_t k = 0; k < v.cols; k++) {
                int64_t at = v.begin + (r * a->in[1] + k) * a->channels + c0;
                for (int64_t c = 0; c < n; c++) {
                    int hit = item[at + c] == y[c0 + c];
                    d_item[at + c] += hit ? left[c] : 0.0f;
                    left[c] = hit ? 0.0f : left[c];
                }
            }
    }
}

INLINE void mean_view_back(const struct window_args *a, struct view v, const float *dy,
                           float *restrict d_item)
{
    int64_t n = a->channels;
    float share = 1.0f / (float)(v.rows * v.cols);
    for (int64_t r = 0; r < v.rows; r++)
        for (int64_t k = 0; k < v.cols; k++) {
            float *dx = d_item + v.begin + (r * a->in[1] + k) * n;
            for (int64_t c = 0; c < n; c++)
                dx[c] += dy[c] * share;
        }
}

#define EACH_PLACE(a)                                                                              \
    for (int64_t item = 0, at = 0; item < (a)->items; item++)                                      \
        for (int64_t r = 0; r < (a)->out[0]; r++)                                                  \
            for (int64_t c = 0; c < (a)->out[1]; c++, at += (a)->channels)

CPU_CLONES static void max_places(const struct window_args *a, const float *x, float *y)
{
    EACH_PLACE(a)
    max_view(a, view_of(a, r, c), x + item * item_size(a), y + at);
}

CPU_CLONES static void mean_places(const struct window_args *a, const float *x, float *y)
{
    EACH_PLACE(a)
    mean_view(a, view_of(a, r, c), x + item * item_size(a), y + at);
}

CPU_CLONES static void max_places_back(const struct window_args *a, const float *x, const float *y,
                                       const float *dy, float *dx)
{
    EACH_PLACE(a)
    max_view_back(a, view_of(a, r, c), x + item * item_size(a), y + at, dy + at,
                  dx + item * item_size(a));
}

CPU_CLONES static void mean_places_back(const struct window_args *a, const float *dy, float *dx)
{
    EACH_PLACE(a)
    mean_view_back(a, view_of(a, r, c), dy + at, dx + item * item_size(a));
}

void cpu_max_pool(const struct window_args *a, const float *x, float *y)
{
    max_places(a, x, y);
}

void cpu_mean_pool(const struct window_args *a, const float *x, float *y)
{
    mean_places(a, x, y);
}

void cpu_max_pool_backward(const struct window_args *a, const float *x, const float *y,
                           const float *dy, float *dx)
{
    memset(dx, 0, (size_t)(a->items * item_size(a)) * sizeof *dx);
    max_places_back(a, x, y, dy, dx);
}

void cpu_mean_pool_backward(const struct window_args *a, const float *dy, float *dx)
{
    memset(dx, 0, (size_t)(a->items * item_size(a)) * sizeof *dx);
    mean_places_back(a, dy, dx);
}
