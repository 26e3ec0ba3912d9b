/* Sums of squares without rounding, against long integers made another way, in any order. */
#include <float.h>
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

static double sum_of(size_t n, const float *x)
{
    struct exact_sum s = {.not_finite = 0};
    ops_cpu.sum_squares_exactly(n, x, &s);
    return exact_to_double(&s);
}

static float any_float(uint64_t *s)
{
    for (;;) {
        *s = *s * 6364136223846793005u + 1442695040888963407u;
        float x = elem_from_bits((uint32_t)(*s >> 32));
        if (isfinite(x))
            return x;
    }
}

static void single_squares_are_right(void **state)
{
    (void)state;
    static const float X[] = {0.0f,    -0.0f,        1.0f, -3.0f,  FLT_MAX, -FLT_MAX,
                              FLT_MIN, FLT_TRUE_MIN, 0.1f, 1e-20f, 1e20f,   16777215.0f};
    for (size_t i = 0; i < sizeof X / sizeof *X; i++)
        assert_true(sum_of(1, &X[i]) == (double)X[i] * (double)X[i]);
    uint64_t s = 5;
    for (int i = 0; i < 100000; i++) {
        float x = any_float(&s);
        assert_true(sum_of(1, &x) == (double)x * (double)x);
    }
}

/* Whole numbers below 2^12: their squares and sums are exact in 64 bits as well. */
static void sums_of_whole_numbers_are_right(void **state)
{
    (void)state;
    enum { N = 100003 };
    static float x[N];
    int64_t want = 0;
    uint64_t s = 7;
    for (int i = 0; i < N; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        int64_t k = (int64_t)(s >> 52) - 2048;
        x[i] = (float)k;
        want += k * k;
    }
    assert_true(sum_of(N, x) == (double)want);
}

static void neither_order_nor_division_matters(void **state)
{
    (void)state;
    enum { N = 70001 };
    static float x[N], y[N];
    uint64_t s = 11;
    for (int i = 0; i < N; i++) {
        x[i] = any_float(&s);
        y[N - 1 - i] = x[i];
    }
    struct exact_sum whole = {.not_finite = 0}, back = whole, parts = whole;
    ops_cpu.sum_squares_exactly(N, x, &whole);
    ops_cpu.sum_squares_exactly(N, y, &back);
    for (size_t at = 0, n; at < N; at += n) {
        struct exact_sum one = {.not_finite = 0};
        n = at % 977 + 1 < N - at ? at % 977 + 1 : N - at;
        ops_cpu.sum_squares_exactly(n, x + at, &one);
        exact_add(&parts, &one);
    }
    assert_memory_equal(&whole, &back, sizeof whole);
    assert_memory_equal(&whole, &parts, sizeof whole);
}

static void what_is_small_is_not_lost(void **state)
{
    (void)state;
    float x[2] = {1.0f, 0x1p-27f}; /* 1 + 2^-54: rounds to 1 */
    assert_true(sum_of(2, x) == 1.0);
    float y[3] = {1.0f, 0x1p-26f, 0x1p-26f};
    assert_true(sum_of(3, y) == 1.0 + 0x1p-51);
    float z[4] = {1.0f, 0x1p-27f, 0x1p-27f, 0x1p-70f}; /* 1 + 2^-53, a tie; then not */
    assert_true(sum_of(3, z) == 1.0);
    assert_true(sum_of(4, z) == 1.0 + 0x1p-52);
}

static void the_largest_sums_fit(void **state)
{
    (void)state;
    struct exact_sum s = {.not_finite = 0};
    float x = FLT_MAX;
    ops_cpu.sum_squares_exactly(1, &x, &s);
    for (int i = 0; i < 40; i++) {
        struct exact_sum same = s;
        exact_add(&s, &same);
    }
    assert_true(exact_to_double(&s) == ldexp((double)FLT_MAX * (double)FLT_MAX, 40));
}

static void what_is_not_finite_is_told(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        float x[] = {1, 2, bad[i], 3};
        assert_true(isnan(sum_of(4, x)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_squares_are_right),
        cmocka_unit_test(sums_of_whole_numbers_are_right),
        cmocka_unit_test(neither_order_nor_division_matters),
        cmocka_unit_test(what_is_small_is_not_lost),
        cmocka_unit_test(the_largest_sums_fit),
        cmocka_unit_test(what_is_not_finite_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
