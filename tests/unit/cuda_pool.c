/* Poolings on the GPU have the CPU's bits, and their gradients are the slopes of their values. */
#include "cuda_windows.h"

struct pool {
    struct window_args a;
    int x, y, dy, dx;
};

static void max_pool(struct parity_side *s, const void *args)
{
    const struct pool *v = args;
    s->ops->max_pool(&v->a, parity_at(s, v->x), parity_at(s, v->y));
}

static void mean_pool(struct parity_side *s, const void *args)
{
    const struct pool *v = args;
    s->ops->mean_pool(&v->a, parity_at(s, v->x), parity_at(s, v->y));
}

static void max_pool_backward(struct parity_side *s, const void *args)
{
    const struct pool *v = args;
    s->ops->max_pool_backward(&v->a, parity_at(s, v->x), parity_at(s, v->y), parity_at(s, v->dy),
                              parity_at(s, v->dx));
}

static void mean_pool_backward(struct parity_side *s, const void *args)
{
    const struct pool *v = args;
    s->ops->mean_pool_backward(&v->a, parity_at(s, v->dy), parity_at(s, v->dx));
}

static void check_forward(const struct window_case *c, int offset)
{
    static const struct {
        const char *name;
        parity_verb *verb;
    } verbs[] = {{"max_pool", max_pool}, {"mean_pool", mean_pool}};
    struct window_sizes n = window_sizes(c);
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        struct parity p;
        struct pool v = {.a = c->a};
        window_begin(&p, verbs[i].name, c, offset);
        v.x = parity_floats(&p, n.x, 3, PARITY_ODD);
        v.y = parity_out(&p, sizeof(float), n.y);
        parity_run(&p, verbs[i].verb, &v);
        parity_same(&p, v.y);
        parity_end(&p);
    }
}

/* With many that are as large as the largest, and NaN, which nobody equals. */
static void check_max_backward(const struct window_case *c, int offset)
{
    struct window_sizes n = window_sizes(c);
    struct parity p;
    struct pool v = {.a = c->a};
    CLEANUP(mem_freep) float *x = slopes_random(n.x, 5);
    CLEANUP(mem_freep) float *y = slopes_random(n.y, 6);
    for (int64_t i = 0; i < n.x; i++)
        x[i] = i % 61 == 60 ? NAN : roundf(x[i] * 2) / 2;
    ops_cpu.max_pool(&c->a, x, y);
    window_begin(&p, "max_pool_backward", c, offset);
    v.x = parity_given(&p, sizeof *x, n.x, x);
    v.y = parity_given(&p, sizeof *y, n.y, y);
    v.dy = parity_floats(&p, n.y, 1, PARITY_ODD);
    v.dx = parity_out(&p, sizeof(float), n.x);
    parity_run(&p, max_pool_backward, &v);
    parity_same(&p, v.dx);
    parity_end(&p);
}

static void check_mean_backward(const struct window_case *c, int offset)
{
    struct window_sizes n = window_sizes(c);
    struct parity p;
    struct pool v = {.a = c->a};
    window_begin(&p, "mean_pool_backward", c, offset);
    v.dy = parity_floats(&p, n.y, 1, PARITY_ODD);
    v.dx = parity_out(&p, sizeof(float), n.x);
    parity_run(&p, mean_pool_backward, &v);
    parity_same(&p, v.dx);
    parity_end(&p);
}

static void poolings_have_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(WINDOWS); i++)
        for (int offset = 0; offset < 2; offset++) {
            check_forward(&WINDOWS[i], offset);
            check_max_backward(&WINDOWS[i], offset);
            check_mean_backward(&WINDOWS[i], offset);
        }
}

/* ---- slopes ---- */

struct slopes {
    struct window_args a;
    int is_max;
    float *x, *y;
    int64_t count;
    const float *w;
};

static double value(const void *context)
{
    const struct slopes *s = context;
    (s->is_max ? ops_cuda.max_pool : ops_cuda.mean_pool)(&s->a, s->x, s->y);
    return slopes_value(s->count, s->y, s->w);
}

static void check_slopes(const struct window_case *c, int is_max)
{
    struct window_sizes n = window_sizes(c);
    struct slopes s = {.a = c->a, .is_max = is_max, .count = n.y};
    CLEANUP(mem_freep) float *x = slopes_random(n.x, 1);
    CLEANUP(mem_freep) float *w = slopes_random(n.y, 2);
    for (int64_t i = 0; i < n.x; i++) /* far apart, in a mixed order */
        x[i] = (float)(i * 7919 % 10007) / 16;
    s.w = w;
    s.x = slopes_upload(n.x, x);
    s.y = slopes_upload(n.y, NULL);
    float *dy = slopes_upload(n.y, w), *dx = slopes_upload(n.x, NULL);
    value(&s);
    if (is_max)
        ops_cuda.max_pool_backward(&c->a, s.x, s.y, dy, dx);
    else
        ops_cuda.mean_pool_backward(&c->a, dy, dx);
    slopes_check(is_max ? "max_pool" : "mean_pool", n.x, s.x, dx, 0x1p-6f, 0.02, value, &s);
    ops_cuda.release(s.x);
    ops_cuda.release(s.y);
    ops_cuda.release(dy);
    ops_cuda.release(dx);
}

static void gradients_are_slopes(void **state)
{
    (void)state;
    for (size_t i = 2; i < 8; i++) {
        check_slopes(&WINDOWS[i], 0);
        check_slopes(&WINDOWS[i], 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poolings_have_the_same_bits),
        cmocka_unit_test(gradients_are_slopes),
    };
    return parity_main(tests);
}
