/* Convolutions on the GPU against the CPU's: in one piece and in many, of items, of an item, of a
 * window; and their gradients are the slopes of their values. */
#include "cuda_windows.h"

struct conv {
    struct window_args a;
    int64_t filters;
    float beta;
    int x, kernel, z, dz, d_kernel, dx;
};

static void conv(struct parity_side *s, const void *args)
{
    const struct conv *v = args;
    s->ops->conv(&v->a, v->filters, parity_at(s, v->x), parity_at(s, v->kernel),
                 parity_at(s, v->z));
}

static void conv_backward_kernel(struct parity_side *s, const void *args)
{
    const struct conv *v = args;
    s->ops->conv_backward_kernel(&v->a, v->filters, parity_at(s, v->x), parity_at(s, v->dz),
                                 v->beta, parity_at(s, v->d_kernel));
}

static void conv_backward_input(struct parity_side *s, const void *args)
{
    const struct conv *v = args;
    s->ops->conv_backward_input(&v->a, v->filters, parity_at(s, v->dz), parity_at(s, v->kernel),
                                parity_at(s, v->dx));
}

/* Of sums of so many products of numbers below one, in another order: they grow with the root of
 * their number, and so do the roundings' errors. */
static double rounding(int64_t terms)
{
    return 5e-8 * (double)(10 + terms);
}

static void check_forward(const struct window_case *c, int offset)
{
    struct window_sizes n = window_sizes(c);
    struct parity p;
    struct conv v = {.a = c->a, .filters = c->filters};
    window_begin(&p, "conv", c, offset);
    v.x = parity_floats(&p, n.x, 1, PARITY_PLAIN);
    v.kernel = parity_floats(&p, n.kernel, 1, PARITY_PLAIN);
    v.z = parity_out(&p, sizeof(float), n.z);
    parity_run(&p, conv, &v);
    parity_near(&p, v.z, 1e-6, rounding(n.kernel / c->filters));
    parity_end(&p);
}

static void check_kernel(const struct window_case *c, int offset, float beta)
{
    struct window_sizes n = window_sizes(c);
    struct parity p;
    struct conv v = {.a = c->a, .filters = c->filters, .beta = beta};
    window_begin(&p, beta == 0.0f ? "conv_backward_kernel" : "conv_backward_kernel, adding", c,
                 offset);
    v.x = parity_floats(&p, n.x, 1, PARITY_PLAIN);
    v.dz = parity_floats(&p, n.z, 1, PARITY_PLAIN);
    v.d_kernel = beta == 0.0f ? parity_out(&p, sizeof(float), n.kernel)
                              : parity_floats_as(&p, PARITY_INOUT, n.kernel, 1, PARITY_PLAIN);
    parity_run(&p, conv_backward_kernel, &v);
    parity_near(&p, v.d_kernel, 1e-6, rounding(n.z / c->filters));
    parity_end(&p);
}

static void check_input(const struct window_case *c, int offset)
{
    struct window_sizes n = window_sizes(c);
    struct parity p;
    struct conv v = {.a = c->a, .filters = c->filters};
    window_begin(&p, "conv_backward_input", c, offset);
    v.dz = parity_floats(&p, n.z, 1, PARITY_PLAIN);
    v.kernel = parity_floats(&p, n.kernel, 1, PARITY_PLAIN);
    v.dx = parity_out(&p, sizeof(float), n.x);
    parity_run(&p, conv_backward_input, &v);
    parity_near(&p, v.dx, 1e-6, rounding(c->a.window[0] * c->a.window[1] * c->filters));
    parity_end(&p);
}

static void check(const struct window_case *c, int offset)
{
    check_forward(c, offset);
    check_kernel(c, offset, 0.0f);
    check_kernel(c, offset, 1.0f);
    check_input(c, offset);
}

static void convolutions_are_the_cpus(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(WINDOWS); i++)
        for (int offset = 0; offset < 2; offset++)
            check(&WINDOWS[i], offset);
}

/* What windows see, more than 12 million numbers: of many items, of two large ones, of windows that
 * see more than there is room for in a row. */
static void pieces_do_not_show(void **state)
{
    (void)state;
    static const struct window_case large[] = {
        {WINDOW(37, 37, 31, 37, 31, 36, 3, 3, 1, 1, 1, 1), 2},
        {WINDOW(2, 163, 157, 163, 157, 20, 5, 5, 1, 1, 2, 2), 1},
        {WINDOW(2, 301, 299, 5, 3, 1, 299, 301, 1, 1, 1, 2), 3},
    };
    for (size_t i = 0; i < ARRAY_LEN(large); i++)
        check(&large[i], 0);
}

/* ---- of which items ---- */

/* What stands beside an item does not change its bits, not even what is no number. */
static void check_items(const struct window_case *c)
{
    struct window_sizes n = window_sizes(c);
    int64_t in = n.x / c->a.items, out = n.z / c->a.items;
    CLEANUP(mem_freep) float *x = slopes_random(n.x, 1);
    CLEANUP(mem_freep) float *kernel = slopes_random(n.kernel, 2);
    CLEANUP(mem_freep) float *dz = slopes_random(n.z, 3);
    CLEANUP(mem_freep) float *got = mem_alloc(2 * (size_t)(in + out) * sizeof *got);
    float *k = slopes_upload(n.kernel, kernel), *z = slopes_upload(n.z, NULL);
    float *dx = slopes_upload(n.x, NULL);
    for (int pass = 0; pass < 2; pass++) {
        float *at = slopes_upload(n.x, x), *d = slopes_upload(n.z, dz);
        float *own = got + pass * (in + out);
        ops_cuda.conv(&c->a, c->filters, at, k, z);
        ops_cuda.conv_backward_input(&c->a, c->filters, d, k, dx);
        ops_cuda.download(own, z + n.z - out, (size_t)out * sizeof *own);
        ops_cuda.download(own + out, dx + n.x - in, (size_t)in * sizeof *own);
        ops_cuda.release(at);
        ops_cuda.release(d);
        for (int64_t i = 0; i < n.x - in; i++)
            x[i] = i % 2 ? NAN : 0x1p100f;
        for (int64_t i = 0; i < n.z - out; i++)
            dz[i] = i % 2 ? NAN : 0x1p100f;
    }
    assert_memory_equal(got, got + in + out, (size_t)(in + out) * sizeof *got);
    ops_cuda.release(k);
    ops_cuda.release(z);
    ops_cuda.release(dx);
}

static void an_items_bits_are_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(WINDOWS); i++)
        if (WINDOWS[i].a.items > 0)
            check_items(&WINDOWS[i]);
}

/* ---- products of rounded numbers ---- */

/* Inputs that bfloat16 has: products are exact, sums of float32. */
static void check_rounded(const struct window_case *c)
{
    struct window_sizes n = window_sizes(c);
    struct parity p;
    struct conv v = {.a = c->a, .filters = c->filters};
    CLEANUP(mem_freep) float *x = slopes_random(n.x, 1);
    CLEANUP(mem_freep) float *kernel = slopes_random(n.kernel, 2);
    ops_cpu.round_bfloat16((size_t)n.x, x, x);
    ops_cpu.round_bfloat16((size_t)n.kernel, kernel, kernel);
    window_begin(&p, "conv of bfloat16", c, 0);
    v.x = parity_given(&p, sizeof *x, n.x, x);
    v.kernel = parity_given(&p, sizeof *kernel, n.kernel, kernel);
    v.z = parity_out(&p, sizeof(float), n.z);
    parity_run(&p, conv, &v);
    parity_near(&p, v.z, 1e-6, rounding(n.kernel / c->filters));
    parity_end(&p);
}

static void products_of_bfloat16_fit_pieces(void **state)
{
    struct window_case large = {WINDOW(37, 37, 31, 37, 31, 36, 3, 3, 1, 1, 1, 1), 2};
    struct ops_options o = {.compute = COMPUTE_BFLOAT16, .widest = 1 << 21};
    parity_close(state);
    parity_open_with(&o);
    for (size_t i = 0; i < 7; i++)
        check_rounded(&WINDOWS[i]);
    check_rounded(&large);
    parity_close(state);
    parity_open(state);
}

/* ---- slopes ---- */

struct slopes {
    const struct window_case *c;
    float *x, *kernel, *z;
    int64_t count;
    const float *w;
};

static double value(const void *context)
{
    const struct slopes *s = context;
    ops_cuda.conv(&s->c->a, s->c->filters, s->x, s->kernel, s->z);
    return slopes_value(s->count, s->z, s->w);
}

static void check_slopes(const struct window_case *c)
{
    struct window_sizes n = window_sizes(c);
    struct slopes s = {.c = c, .count = n.z};
    CLEANUP(mem_freep) float *x = slopes_random(n.x, 1);
    CLEANUP(mem_freep) float *kernel = slopes_random(n.kernel, 2);
    CLEANUP(mem_freep) float *w = slopes_random(n.z, 3);
    s.w = w;
    s.x = slopes_upload(n.x, x);
    s.kernel = slopes_upload(n.kernel, kernel);
    s.z = slopes_upload(n.z, NULL);
    float *dz = slopes_upload(n.z, w), *dx = slopes_upload(n.x, NULL);
    float *d_kernel = slopes_upload(n.kernel, NULL);
    ops_cuda.conv_backward_input(&c->a, c->filters, dz, s.kernel, dx);
    ops_cuda.conv_backward_kernel(&c->a, c->filters, s.x, dz, 0.0f, d_kernel);
    slopes_check("dx", n.x, s.x, dx, 1.0f, 1e-3, value, &s);
    slopes_check("d_kernel", n.kernel, s.kernel, d_kernel, 1.0f, 1e-3, value, &s);
    ops_cuda.release(s.x);
    ops_cuda.release(s.kernel);
    ops_cuda.release(s.z);
    ops_cuda.release(dz);
    ops_cuda.release(dx);
    ops_cuda.release(d_kernel);
}

static void gradients_are_slopes(void **state)
{
    (void)state;
    for (size_t i = 0; i < 9; i++)
        check_slopes(&WINDOWS[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_are_the_cpus),
        cmocka_unit_test(pieces_do_not_show),
        cmocka_unit_test(an_items_bits_are_its_own),
        cmocka_unit_test(products_of_bfloat16_fit_pieces),
        cmocka_unit_test(gradients_are_slopes),
    };
    return parity_main(tests);
}
