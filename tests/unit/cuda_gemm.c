/* Products and dense layers on the GPU against the CPU's: odd sizes, all transposes and precisions,
 * with epilogues and without. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "trainer/cuda/ops_cuda.h"
#include "trainer/elem.h"

static const struct ops *const gpu = &ops_cuda;

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

static float *on_gpu(int64_t n, const float *host)
{
    float *x = gpu->alloc((size_t)n * sizeof *x);
    assert_non_null(x);
    gpu->upload(x, host, (size_t)n * sizeof *x);
    return x;
}

static void assert_well(void)
{
    struct err e = {0};
    if (gpu->finish(&e))
        fail_msg("%s", e.text);
}

static void open_gpu(enum compute_type compute, int is_plain)
{
    struct ops_options o = {.compute = compute, .widest = 1 << 20, .is_plain = is_plain};
    struct err e = {0};
    if (gpu->open(&o, &e))
        fail_msg("%s", e.text);
}

static int close_gpu(void **state) /* of a test that failed */
{
    (void)state;
    gpu->close();
    return 0;
}

/* What a precision leaves of an operand. */
static float left(enum compute_type c, float x)
{
    switch (c) {
    case COMPUTE_BFLOAT16: return elem_from_bfloat16(elem_to_bfloat16(x));
    case COMPUTE_FLOAT16: return elem_from_float16(elem_to_float16(x));
    case COMPUTE_TF32:
    case COMPUTE_FLOAT32: break;
    }
    return x;
}

/* How far a product of k terms below 1 may be off: sums in another order, and TF32's operands. */
static double allowed(enum compute_type c, int64_t k)
{
    return (c == COMPUTE_TF32 ? 0x1p-10 : 3e-6) * (1.0 + sqrt((double)k));
}

static void assert_all_near(const float *got, const float *want, int64_t n, double allow,
                            const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= allow))
            fail_msg("%s: element %lld is %.9g, and should be %.9g", what, (long long)i,
                     (double)got[i], (double)want[i]);
}

static float *rounded(enum compute_type c, const float *x, int64_t n)
{
    float *y = mem_alloc((size_t)(n + 1) * sizeof *y);
    for (int64_t i = 0; i < n; i++)
        y[i] = left(c, x[i]);
    return y;
}

/* ---- products ---- */

struct sides {
    int64_t m, n, k;
};
static const struct sides SHAPES[] = {{1, 1, 1},    {2, 3, 5},    {7, 1, 9},    {1, 17, 4},
                                      {16, 16, 16}, {33, 31, 65}, {128, 8, 70}, {5, 130, 257},
                                      {4, 4, 0},    {0, 4, 4},    {4, 0, 4}};

static void check_product(enum compute_type c, struct sides s, int ta, int tb, float beta,
                          int64_t skew)
{
    int64_t an = s.m * s.k + skew, bn = s.k * s.n + skew, cn = s.m * s.n;
    float *a = filled(an, 1), *b = filled(bn, 2), *want = filled(cn, 3), *got = filled(cn, 3);
    float *ra = rounded(c, a, an), *rb = rounded(c, b, bn);
    float *da = on_gpu(an, a), *db = on_gpu(bn, b), *dc = on_gpu(cn, got);
    if (beta == 0.0f && cn) { /* nothing of what was there may remain */
        memset(got, 0xff, (size_t)cn * sizeof *got);
        gpu->upload(dc, got, (size_t)cn * sizeof *got);
    }
    ops_cpu.gemm(ta, tb, s.m, s.n, s.k, ra + skew, rb + skew, beta, want);
    gpu->gemm(ta, tb, s.m, s.n, s.k, da + skew, db + skew, beta, dc);
    gpu->download(got, dc, (size_t)cn * sizeof *got);
    assert_well();
    char what[160];
    snprintf(what, sizeof what, "%s %lld x %lld x %lld, transposed %d %d, beta %g, skew %lld",
             compute_name(c), (long long)s.m, (long long)s.n, (long long)s.k, ta, tb, (double)beta,
             (long long)skew);
    assert_all_near(got, want, cn, allowed(c, s.k), what);
    float *host[] = {a, b, want, got, ra, rb}, *device[] = {da, db, dc};
    for (size_t i = 0; i < ARRAY_LEN(host); i++)
        free(host[i]);
    for (size_t i = 0; i < ARRAY_LEN(device); i++)
        gpu->release(device[i]);
}

static void check_products(enum compute_type c)
{
    for (size_t i = 0; i < ARRAY_LEN(SHAPES); i++)
        for (int t = 0; t < 8; t++)
            check_product(c, SHAPES[i], t & 1, t >> 1 & 1, (float)(t >> 2), (int64_t)(i % 3));
}

static void products_are_those_of_the_cpu(void **state)
{
    (void)state;
    const enum compute_type all[] = {COMPUTE_FLOAT32, COMPUTE_TF32, COMPUTE_BFLOAT16,
                                     COMPUTE_FLOAT16};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        open_gpu(all[i], (int)i & 1);
        check_products(all[i]);
        gpu->close();
    }
}

static void float16_overflows_to_infinity(void **state)
{
    (void)state;
    open_gpu(COMPUTE_FLOAT16, 0);
    float large = 70000.0f, one = 1.0f, got = 0.0f;
    float *a = on_gpu(1, &large), *b = on_gpu(1, &one), *c = on_gpu(1, &got);
    gpu->gemm(0, 0, 1, 1, 1, a, b, 0.0f, c);
    gpu->download(&got, c, sizeof got);
    assert_well();
    assert_true(isinf(got));
    gpu->close();
}

static void what_is_too_large_is_refused(void **state)
{
    (void)state;
    open_gpu(COMPUTE_FLOAT32, 0);
    float zero = 0.0f, *x = on_gpu(1, &zero);
    gpu->gemm(0, 0, (int64_t)1 << 31, 1, 1, x, x, 0.0f, x);
    struct err e = {0};
    assert_int_equal(gpu->finish(&e), ERR_TOO_LARGE);
    assert_non_null(strstr(e.text, "2147483648 x 1 x 1"));
    gpu->close();
}

/* ---- dense layers ---- */

struct dense_case {
    enum activation f;
    int64_t rows, cols, in;
    int has_bias, keeps_z;
};

static void check_dense(enum compute_type c, const struct dense_case *d)
{
    int64_t xn = d->rows * d->in, wn = d->in * d->cols, yn = d->rows * d->cols;
    float *x = filled(xn, 5), *w = filled(wn, 6), *bias = filled(d->cols, 7);
    float *rx = rounded(c, x, xn), *rw = rounded(c, w, wn);
    float *z = filled(yn, 8), *y = filled(yn, 9), *got = filled(yn, 10);
    float *dx = on_gpu(xn, x), *dw = on_gpu(wn, w), *dbias = on_gpu(d->cols, bias);
    memset(got, 0xff, (size_t)yn * sizeof *got);
    float *dy = on_gpu(yn, got), *dz = d->keeps_z ? on_gpu(yn, got) : dy;
    float *cpu_z = d->keeps_z ? z : y;
    ops_cpu.dense(d->f, d->rows, d->cols, d->in, rx, rw, d->has_bias ? bias : NULL, cpu_z, y);
    gpu->dense(d->f, d->rows, d->cols, d->in, dx, dw, d->has_bias ? dbias : NULL, dz, dy);
    char what[128];
    snprintf(what, sizeof what, "%s %s, %lld x %lld x %lld, bias %d", compute_name(c),
             activation_name(d->f), (long long)d->rows, (long long)d->cols, (long long)d->in,
             d->has_bias);
    gpu->download(got, dy, (size_t)yn * sizeof *got);
    assert_well();
    assert_all_near(got, y, yn, 2 * allowed(c, d->in), what);
    gpu->download(got, dz, (size_t)yn * sizeof *got);
    assert_all_near(got, cpu_z, yn, 2 * allowed(c, d->in), what);
    float *host[] = {x, w, bias, rx, rw, z, y, got}, *device[] = {dx, dw, dbias, dy, dz};
    for (size_t i = 0; i < ARRAY_LEN(host); i++)
        free(host[i]);
    for (size_t i = 0; i < ARRAY_LEN(device) - !d->keeps_z; i++)
        gpu->release(device[i]);
}

static void check_layers(enum compute_type c, int is_plain)
{
    const struct sides shapes[] = {{1, 1, 1}, {5, 7, 3}, {9, 24, 40}, {33, 16, 100}, {3, 4, 0}};
    open_gpu(c, is_plain);
    for (int f = 0; f < ACTIVATION__MAX; f++)
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            for (int k = 0; k < 4; k++) {
                struct dense_case d = {(enum activation)f, shapes[i].m, shapes[i].n,
                                       shapes[i].k,        k & 1,       k >> 1};
                check_dense(c, &d);
            }
    gpu->close();
}

static void dense_layers_are_those_of_the_cpu(void **state)
{
    (void)state;
    check_layers(COMPUTE_FLOAT32, 0);
    check_layers(COMPUTE_FLOAT32, 1);
    check_layers(COMPUTE_BFLOAT16, 0);
    check_layers(COMPUTE_TF32, 0);
    check_layers(COMPUTE_FLOAT16, 1);
}

/* A unit whose sum is not a number is none after any activation. */
static void nan_passes_dense_layers(void **state)
{
    (void)state;
    open_gpu(COMPUTE_FLOAT32, 0);
    float x[2] = {NAN, 1.0f}, w[1] = {1.0f}, bias[1] = {0.0f}, y[2];
    float *dx = on_gpu(2, x), *dw = on_gpu(1, w), *db = on_gpu(1, bias), *dy = on_gpu(2, x);
    gpu->dense(ACTIVATION_RELU, 2, 1, 1, dx, dw, db, dy, dy);
    gpu->download(y, dy, sizeof y);
    assert_well();
    assert_true(isnan(y[0]) && y[1] == 1.0f);
    gpu->close();
}

static void check_backward(enum compute_type c, struct sides s, float beta, int has_bias)
{
    int64_t rows = s.m, cols = s.n, in = s.k;
    float *x = filled(rows * in, 1), *dz = filled(rows * cols, 2), *dw = filled(in * cols, 3);
    float *db = filled(cols, 4), *got = filled(in * cols, 3), *got_db = filled(cols, 4);
    float *rx = rounded(c, x, rows * in), *rdz = rounded(c, dz, rows * cols), sums = 0.0f;
    float *gx = on_gpu(rows * in, x), *gdz = on_gpu(rows * cols, dz);
    float *gdw = on_gpu(in * cols, dw), *gdb = on_gpu(cols, db);
    ops_cpu.dense_backward_kernel(rows, cols, in, rx, rdz, beta, dw, NULL);
    ops_cpu.dense_backward_kernel(rows, cols, 0, rx, dz, beta, &sums, has_bias ? db : NULL);
    gpu->dense_backward_kernel(rows, cols, in, gx, gdz, beta, gdw, has_bias ? gdb : NULL);
    gpu->download(got, gdw, (size_t)(in * cols) * sizeof *got);
    gpu->download(got_db, gdb, (size_t)cols * sizeof *got_db);
    assert_well();
    assert_all_near(got, dw, in * cols, allowed(c, rows), "a kernel's gradient");
    assert_all_near(got_db, db, cols, 1e-6 * (1.0 + sqrt((double)rows)) * 4, "a bias' gradient");
    float *host[] = {x, dz, dw, db, got, got_db, rx, rdz}, *device[] = {gx, gdz, gdw, gdb};
    for (size_t i = 0; i < ARRAY_LEN(host); i++)
        free(host[i]);
    for (size_t i = 0; i < ARRAY_LEN(device); i++)
        gpu->release(device[i]);
}

static void check_gradients(enum compute_type c, int is_plain)
{
    const struct sides shapes[] = {{1, 1, 1},     {7, 33, 5},    {600, 40, 9},
                                   {1500, 70, 2}, {3000, 1, 33}, {0, 5, 4}};
    open_gpu(c, is_plain);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (int b = 0; b < 4; b++)
            check_backward(c, shapes[i], (float)(b & 1), b >> 1);
    gpu->close();
}

static void gradients_are_those_of_the_cpu(void **state)
{
    (void)state;
    check_gradients(COMPUTE_FLOAT32, 0);
    check_gradients(COMPUTE_FLOAT32, 1);
    check_gradients(COMPUTE_TF32, 0);
    check_gradients(COMPUTE_BFLOAT16, 0);
}

static void check_input(const float *dz, const float *w, float *gdz, float *gw, const char *what)
{
    enum { ROWS = 9, COLS = 20, IN = 31 };
    float *rdz = rounded(COMPUTE_BFLOAT16, dz, ROWS * COLS), got[ROWS * IN], want[ROWS * IN];
    float *rw = rounded(COMPUTE_BFLOAT16, w, IN * COLS), *gdx = gpu->alloc(sizeof got);
    gpu->gemm(0, 1, ROWS, IN, COLS, gdz, gw, 0.0f, gdx);
    gpu->download(got, gdx, sizeof got);
    assert_well();
    ops_cpu.gemm(0, 1, ROWS, IN, COLS, rdz, rw, 0.0f, want);
    assert_all_near(got, want, ROWS * IN, allowed(COMPUTE_BFLOAT16, COLS), what);
    free(rdz);
    free(rw);
    gpu->release(gdx);
}

/* Of two products in a row with an operand in common it is rounded once; what has changed in
 * between is rounded again. */
static void operands_in_common(void **state)
{
    (void)state;
    enum { ROWS = 9, COLS = 20, IN = 31 };
    open_gpu(COMPUTE_BFLOAT16, 0);
    float *x = filled(ROWS * IN, 1), *dz = filled(ROWS * COLS, 2), *w = filled(IN * COLS, 3);
    float *gx = on_gpu(ROWS * IN, x), *gdz = on_gpu(ROWS * COLS, dz), *gw = on_gpu(IN * COLS, w);
    float *gdw = on_gpu(IN * COLS, w);
    gpu->dense_backward_kernel(ROWS, COLS, IN, gx, gdz, 0.0f, gdw, NULL);
    check_input(dz, w, gdz, gw, "after the kernel's gradient");
    gpu->dense_backward_kernel(ROWS, COLS, IN, gx, gdz, 0.0f, gdw, NULL);
    gpu->affine(ROWS * COLS, 2.0f, 0.0f, gdz, gdz);
    for (int i = 0; i < ROWS * COLS; i++)
        dz[i] *= 2.0f;
    check_input(dz, w, gdz, gw, "of a gradient that a verb has changed");
    gpu->dense_backward_kernel(ROWS, COLS, IN, gx, gdz, 0.0f, gdw, NULL);
    gpu->upload(gdz, x, ROWS * COLS * sizeof *x);
    check_input(x, w, gdz, gw, "of a gradient that was uploaded");
    float *host[] = {x, dz, w}, *device[] = {gx, gdz, gw, gdw};
    for (size_t i = 0; i < ARRAY_LEN(host); i++)
        free(host[i]);
    for (size_t i = 0; i < ARRAY_LEN(device); i++)
        gpu->release(device[i]);
    gpu->close();
}

/* The same call gives the same bits, in the middle of others or again as a graph. */
static void repeated_products_have_the_same_bits(void **state)
{
    (void)state;
    enum { N = 45, M = 20, K = 90 };
    open_gpu(COMPUTE_FLOAT32, 0);
    float *x = filled(M * K, 1), *w = filled(K * N, 2), *first = filled(M * N, 3);
    float *again = filled(M * N, 4);
    float *dx = on_gpu(M * K, x), *dw = on_gpu(K * N, w), *dy = on_gpu(M * N, first);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 6; i++)
            gpu->dense(ACTIVATION_TANH, M, N, K, dx, dw, NULL, dy, dy);
        gpu->download(round ? again : first, dy, M * N * sizeof *again);
        if (round)
            assert_memory_equal(first, again, M * N * sizeof *again);
    }
    assert_well();
    gpu->close();
    free(x);
    free(w);
    free(first);
    free(again);
}

/* An emulated library can be told to have no algorithm, or none with an epilogue, or a ReLU that
 * loses NaN; a real one runs the same once more. */
static void what_the_library_cannot_is_done_without_it(void **state)
{
    const char *const words[] = {"none", "unfused", "relu_max"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        setenv("TRAINYARD_EMU_BLAS", words[i], 1);
        check_layers(i == 1 ? COMPUTE_TF32 : COMPUTE_FLOAT32, 0);
        check_gradients(COMPUTE_FLOAT32, 0);
        nan_passes_dense_layers(state);
    }
    setenv("TRAINYARD_EMU_BLAS", "none", 1);
    open_gpu(COMPUTE_BFLOAT16, 0);
    check_products(COMPUTE_BFLOAT16);
    gpu->close();
    unsetenv("TRAINYARD_EMU_BLAS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(products_are_those_of_the_cpu, close_gpu),
        cmocka_unit_test_teardown(float16_overflows_to_infinity, close_gpu),
        cmocka_unit_test_teardown(what_is_too_large_is_refused, close_gpu),
        cmocka_unit_test_teardown(dense_layers_are_those_of_the_cpu, close_gpu),
        cmocka_unit_test_teardown(nan_passes_dense_layers, close_gpu),
        cmocka_unit_test_teardown(gradients_are_those_of_the_cpu, close_gpu),
        cmocka_unit_test_teardown(operands_in_common, close_gpu),
        cmocka_unit_test_teardown(what_the_library_cannot_is_done_without_it, close_gpu),
        cmocka_unit_test_teardown(repeated_products_have_the_same_bits, close_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
