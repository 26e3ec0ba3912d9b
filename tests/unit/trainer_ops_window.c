/* The CPU's convolutions, poolings, batch normalisations and embeddings against plain double
 * arithmetic, with windows over every edge and sizes beyond the blocks that the loops work in. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/ops.h"

/* A fixed sequence in [-1, 1). */
static float next_float(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return (float)(int32_t)*s * 0x1p-31f;
}

static float *filled(int64_t n, uint32_t seed)
{
    float *x = mem_alloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = next_float(&seed);
    return x;
}

static double *zeroes(int64_t n)
{
    return mem_zalloc((size_t)(n + 1) * sizeof(double));
}

static void assert_close_to(const float *got, const double *want, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))))
            fail_msg("[%lld]: got %.9g, want %.9g", (long long)i, (double)got[i], want[i]);
}

/* ---- windows ---- */

#define NONE (-1)

static const struct window_case {
    struct window_args a;
    int64_t filters;
} CASES[] = {
    {{.items = 3, .in = {5, 4}, .out = {5, 4}, .channels = 2, .window = {1, 1}, .strides = {1, 1}},
     3},
    {{.items = 3, .in = {5, 4}, .out = {3, 2}, .channels = 2, .window = {1, 1}, .strides = {2, 2}},
     3},
    {{.items = 2, .in = {7, 6}, .out = {5, 4}, .channels = 3, .window = {3, 3}, .strides = {1, 1}},
     17},
    {{.items = 2,
      .in = {7, 6},
      .out = {7, 6},
      .channels = 3,
      .window = {3, 3},
      .strides = {1, 1},
      .pad = {1, 1}},
     5},
    {{.items = 1,
      .in = {3, 2},
      .out = {2, 2},
      .channels = 1,
      .window = {7, 5},
      .strides = {2, 1},
      .pad = {3, 2}},
     2},
    {{.items = 3, .in = {9, 8}, .out = {2, 3}, .channels = 1, .window = {2, 1}, .strides = {5, 3}},
     1},
    /* the last windows lie outside, as those of a long stride may */
    {{.items = 2,
      .in = {4, 4},
      .out = {4, 4},
      .channels = 2,
      .window = {4, 4},
      .strides = {1, 1},
      .pad = {1, 1}},
     20},
    /* more places and channels than a block has */
    {{.items = 2,
      .in = {13, 12},
      .out = {13, 12},
      .channels = 260,
      .window = {3, 3},
      .strides = {1, 1},
      .pad = {1, 1}},
     33},
    {{.items = 26,
      .in = {20, 19},
      .out = {20, 10},
      .channels = 1,
      .window = {3, 5},
      .strides = {1, 2},
      .pad = {1, 2}},
     3},
    {{.items = 0, .in = {5, 4}, .out = {5, 4}, .channels = 2, .window = {3, 1}, .strides = {1, 1}},
     3},
};

/* The element that element (i, j) of the window at place (r, c) sees; NONE: outside. */
static int64_t seen(const struct window_args *a, int64_t item, int64_t r, int64_t c, int64_t i,
                    int64_t j, int64_t channel)
{
    int64_t y = r * a->strides[0] - a->pad[0] + i, x = c * a->strides[1] - a->pad[1] + j;
    if (y < 0 || y >= a->in[0] || x < 0 || x >= a->in[1])
        return NONE;
    return ((item * a->in[0] + y) * a->in[1] + x) * a->channels + channel;
}

typedef void touch(void *context, int64_t place, int64_t window, int64_t channel, int64_t at);

/* Every (place, element of its window, channel), row by row. */
static void each(const struct window_args *a, touch *f, void *context)
{
    int64_t place = 0;
    for (int64_t n = 0; n < a->items; n++)
        for (int64_t r = 0; r < a->out[0]; r++)
            for (int64_t c = 0; c < a->out[1]; c++, place++)
                for (int64_t i = 0; i < a->window[0]; i++)
                    for (int64_t j = 0; j < a->window[1]; j++)
                        for (int64_t k = 0; k < a->channels; k++)
                            f(context, place, i * a->window[1] + j, k, seen(a, n, r, c, i, j, k));
}

struct sizes {
    int64_t x, y, places, kernel;
};

static struct sizes sizes_of(const struct window_case *c)
{
    const struct window_args *a = &c->a;
    int64_t places = a->items * a->out[0] * a->out[1];
    return (struct sizes){
        .x = a->items * a->in[0] * a->in[1] * a->channels,
        .y = places * a->channels,
        .places = places,
        .kernel = a->window[0] * a->window[1] * a->channels * c->filters,
    };
}

struct conv {
    const struct window_case *c;
    const float *x, *kernel, *dz;
    double *z, *d_kernel, *dx;
};

static void conv_one(void *context, int64_t place, int64_t window, int64_t channel, int64_t at)
{
    struct conv *v = context;
    int64_t filters = v->c->filters, k = (window * v->c->a.channels + channel) * filters;
    for (int64_t f = 0; at != NONE && f < filters; f++) {
        v->z[place * filters + f] += (double)v->x[at] * (double)v->kernel[k + f];
        v->d_kernel[k + f] += (double)v->x[at] * (double)v->dz[place * filters + f];
        v->dx[at] += (double)v->kernel[k + f] * (double)v->dz[place * filters + f];
    }
}

static void check_conv(const struct window_case *c)
{
    struct sizes n = sizes_of(c);
    CLEANUP(mem_freep) float *x = filled(n.x, 1);
    CLEANUP(mem_freep) float *kernel = filled(n.kernel, 2);
    CLEANUP(mem_freep) float *dz = filled(n.places * c->filters, 3);
    CLEANUP(mem_freep) float *z = filled(n.places * c->filters, 4);
    CLEANUP(mem_freep) float *dx = filled(n.x, 5);
    CLEANUP(mem_freep) float *d_kernel = filled(n.kernel, 6);
    CLEANUP(mem_freep) double *want_z = zeroes(n.places * c->filters);
    CLEANUP(mem_freep) double *want_dx = zeroes(n.x);
    CLEANUP(mem_freep) double *want_kernel = zeroes(n.kernel);
    struct conv v = {c, x, kernel, dz, want_z, want_kernel, want_dx};
    each(&c->a, conv_one, &v);
    ops_cpu.conv(&c->a, c->filters, x, kernel, z);
    assert_close_to(z, want_z, n.places * c->filters, 1e-4);
    ops_cpu.conv_backward_input(&c->a, c->filters, dz, kernel, dx);
    assert_close_to(dx, want_dx, n.x, 1e-4);
    ops_cpu.conv_backward_kernel(&c->a, c->filters, x, dz, 0.0f, d_kernel);
    assert_close_to(d_kernel, want_kernel, n.kernel, 1e-4);
    ops_cpu.conv_backward_kernel(&c->a, c->filters, x, dz, 1.0f, d_kernel);
    for (int64_t i = 0; i < n.kernel; i++)
        want_kernel[i] *= 2;
    assert_close_to(d_kernel, want_kernel, n.kernel, 1e-4);
}

static void convolutions_are_sums_over_windows(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++)
        check_conv(&CASES[i]);
}

struct pool {
    const struct window_case *c;
    const float *x, *dy;
    double *max, *sum, *dx;
    int64_t *first, *count;
};

static void pool_one(void *context, int64_t place, int64_t window, int64_t channel, int64_t at)
{
    struct pool *p = context;
    int64_t to = place * p->c->a.channels + channel;
    (void)window;
    if (at == NONE)
        return;
    if (p->count[to]++ == 0 || (double)p->x[at] > p->max[to]) {
        p->max[to] = (double)p->x[at];
        p->first[to] = at;
    }
    p->sum[to] += (double)p->x[at];
}

static void mean_back_one(void *context, int64_t place, int64_t window, int64_t channel, int64_t at)
{
    struct pool *p = context;
    int64_t from = place * p->c->a.channels + channel;
    (void)window;
    if (at != NONE)
        p->dx[at] += (double)p->dy[from] / (double)p->count[from];
}

static void check_pool(const struct window_case *c)
{
    struct sizes n = sizes_of(c);
    CLEANUP(mem_freep) float *x = filled(n.x, 1);
    CLEANUP(mem_freep) float *y = filled(n.y, 2);
    CLEANUP(mem_freep) float *dy = filled(n.y, 3);
    CLEANUP(mem_freep) float *dx = filled(n.x, 4);
    for (int64_t i = 0; i < n.x; i++)
        x[i] = roundf(x[i] * 4) / 4; /* ties: the first of them gets it */
    struct pool p = {.c = c, .x = x, .dy = dy, .max = zeroes(n.y), .sum = zeroes(n.y)};
    p.dx = zeroes(n.x);
    p.first = mem_zalloc((size_t)(n.y + 1) * sizeof *p.first);
    p.count = mem_zalloc((size_t)(n.y + 1) * sizeof *p.count);
    each(&c->a, pool_one, &p);
    ops_cpu.max_pool(&c->a, x, y);
    assert_close_to(y, p.max, n.y, 0);
    ops_cpu.max_pool_backward(&c->a, x, y, dy, dx);
    for (int64_t i = 0; i < n.y; i++)
        p.dx[p.first[i]] += (double)dy[i];
    assert_close_to(dx, p.dx, n.x, 1e-6);
    ops_cpu.mean_pool(&c->a, x, y);
    for (int64_t i = 0; i < n.y; i++)
        p.sum[i] /= (double)p.count[i];
    assert_close_to(y, p.sum, n.y, 1e-6);
    memset(p.dx, 0, (size_t)n.x * sizeof *p.dx);
    each(&c->a, mean_back_one, &p);
    ops_cpu.mean_pool_backward(&c->a, dy, dx);
    assert_close_to(dx, p.dx, n.x, 1e-6);
    free(p.max);
    free(p.sum);
    free(p.dx);
    free(p.first);
    free(p.count);
}

static void poolings_take_what_lies_in_the_item(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++)
        check_pool(&CASES[i]);
}

static void nan_is_the_largest(void **state)
{
    (void)state;
    const struct window_args a = {.items = 1,
                                  .in = {1, 6},
                                  .out = {1, 3},
                                  .channels = 1,
                                  .window = {1, 2},
                                  .strides = {1, 2}};
    const float x[] = {NAN, 1, 2, NAN, -INFINITY, -INFINITY}, dy[] = {1, 1, 1};
    float y[3], dx[6];
    ops_cpu.max_pool(&a, x, y);
    assert_true(isnan(y[0]) && isnan(y[1]) && y[2] == -INFINITY);
    ops_cpu.max_pool_backward(&a, x, y, dy, dx);
    assert_true(dx[4] == 1 && dx[5] == 0);
}

/* Many items or few, in blocks or not: the bits of one item are its own. */
static void check_last_item(const struct window_case *all)
{
    struct window_case c = *all, one = *all;
    int64_t before = all->a.items - 1;
    one.a.items = 1;
    struct sizes n = sizes_of(&c), m = sizes_of(&one);
    CLEANUP(mem_freep) float *x = filled(n.x, 1);
    CLEANUP(mem_freep) float *kernel = filled(n.kernel, 2);
    CLEANUP(mem_freep) float *z = filled(n.places * c.filters, 3);
    CLEANUP(mem_freep) float *dx = filled(n.x, 4);
    CLEANUP(mem_freep) float *z_one = filled(n.places * c.filters, 5);
    CLEANUP(mem_freep) float *dx_one = filled(n.x, 6);
    ops_cpu.conv(&c.a, c.filters, x, kernel, z);
    ops_cpu.conv(&one.a, c.filters, x + before * m.x, kernel, z_one);
    assert_memory_equal(z + before * m.places * c.filters, z_one,
                        (size_t)(m.places * c.filters) * sizeof *z);
    ops_cpu.conv_backward_input(&c.a, c.filters, z, kernel, dx);
    ops_cpu.conv_backward_input(&one.a, c.filters, z_one, kernel, dx_one);
    assert_memory_equal(dx + before * m.x, dx_one, (size_t)m.x * sizeof *dx);
}

static void an_items_convolution_is_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++)
        if (CASES[i].a.items > 0)
            check_last_item(&CASES[i]);
}

/* ---- batch normalisation ---- */

static void columns_have_mean_0_and_variance_1(void **state)
{
    (void)state;
    static const int COLS[] = {1, 3, 8, 255, 256, 257, 600};
    for (size_t i = 0; i < ARRAY_LEN(COLS); i++) {
        int64_t cols = COLS[i], rows = 37, n = rows * cols;
        CLEANUP(mem_freep) float *x = filled(n, 1);
        CLEANUP(mem_freep) float *y = filled(n, 2);
        CLEANUP(mem_freep) float *stats = filled(2 * cols, 3);
        CLEANUP(mem_freep) double *sums = zeroes(2 * cols);
        for (int64_t j = 0; j < n; j++)
            x[j] = x[j] * (float)(1 + j % cols) + 1000.0f; /* a mean far from zero */
        ops_cpu.batch_moments(rows, cols, x, sums);
        ops_cpu.batch_stats(cols, sums, (double)rows, 0, stats);
        struct batch_norm_args a = {.rows = rows, .cols = cols, .x = x, .stats = stats};
        ops_cpu.batch_normalize(&a, y);
        ops_cpu.batch_moments(rows, cols, y, sums);
        for (int64_t c = 0; c < cols; c++) {
            assert_true(fabs(sums[c] / (double)rows) < 2e-4);
            assert_true(fabs(sums[cols + c] / (double)rows - 1) < 1e-3);
        }
    }
}

static void a_column_without_spread_has_variance_0(void **state)
{
    (void)state;
    float x[7], stats[2], mean = 5, variance = 3;
    double sums[2];
    for (int i = 0; i < 7; i++)
        x[i] = 12345.678f;
    ops_cpu.batch_moments(7, 1, x, sums);
    ops_cpu.batch_stats(1, sums, 7, 1e-3, stats);
    assert_true(stats[0] == x[0]);
    assert_true(fabs((double)stats[1] - 1 / sqrt(1e-3)) < 1e-4);
    ops_cpu.update_moving(1, sums, 7, 0, &mean, &variance);
    assert_true(mean == x[0] && variance >= 0 && variance < 1e-6f);
}

/* ---- embeddings ---- */

static void rows_are_gathered_and_their_gradients_added(void **state)
{
    (void)state;
    enum { COUNT = 50, COLS = 19, ROWS = 11 };
    CLEANUP(mem_freep) float *table = filled(ROWS * COLS, 1);
    CLEANUP(mem_freep) float *dy = filled(COUNT * COLS, 2);
    CLEANUP(mem_freep) float *y = filled(COUNT * COLS, 3);
    CLEANUP(mem_freep) float *grad = filled(ROWS * COLS, 4);
    CLEANUP(mem_freep) double *want = zeroes(ROWS * COLS);
    float ids[COUNT];
    for (int i = 0; i < COUNT; i++)
        ids[i] = (float)(i * i % (ROWS + 3)); /* three that belong to others */
    ids[7] = NAN;
    ids[8] = -1e30f;
    ops_cpu.gather(COUNT, COLS, 0, ROWS, ids, table, y);
    ops_cpu.scatter_add(COUNT, COLS, 0, ROWS, ids, dy, 0.0f, grad);
    for (int i = 0; i < COUNT; i++)
        for (int c = 0; c < COLS; c++) {
            int is_own = ids[i] >= 0 && ids[i] < ROWS;
            assert_true(y[i * COLS + c] == (is_own ? table[(int)ids[i] * COLS + c] : 0.0f));
            if (is_own)
                want[(int)ids[i] * COLS + c] += (double)dy[i * COLS + c];
        }
    assert_close_to(grad, want, ROWS * COLS, 1e-6);
    ops_cpu.scatter_add(0, COLS, 0, ROWS, ids, dy, 1.0f, grad);
    assert_close_to(grad, want, ROWS * COLS, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_are_sums_over_windows),
        cmocka_unit_test(poolings_take_what_lies_in_the_item),
        cmocka_unit_test(nan_is_the_largest),
        cmocka_unit_test(an_items_convolution_is_its_own),
        cmocka_unit_test(columns_have_mean_0_and_variance_1),
        cmocka_unit_test(a_column_without_spread_has_variance_0),
        cmocka_unit_test(rows_are_gathered_and_their_gradients_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
