/* ops_cpu_exact.c: squares added up by exponent, as integers. */
#include <string.h>

#include "trainer/ops_cpu.h"

#define TABLES 4     /* in turn, so that equal exponents in a row do not wait for one another */
#define BLOCK  32768 /* values between two foldings: 2^15 squares below 2^48 fit 64 bits */

struct tables {
    uint64_t sum[TABLES][256];
};

static void add_square(uint64_t *sum, float x)
{
    uint32_t u = elem_bits(x), exponent = u >> 23 & 255;
    uint64_t m = (u & 0x7fffff) | (exponent ? 0x800000 : 0);
    sum[exponent] += m * m;
}

static void add_block(struct tables *t, size_t n, const float *x)
{
    size_t i = 0;
    for (; i + TABLES <= n; i += TABLES)
        for (int k = 0; k < TABLES; k++)
            add_square(t->sum[k], x[i + (size_t)k]);
    for (; i < n; i++)
        add_square(t->sum[0], x[i]);
}

static void fold(struct tables *t, struct exact_sum *to)
{
    for (int k = 0; k < TABLES; k++) {
        /* Exponent 0 has the scale of 1, 255 is infinity or NaN; zero squares in it are those of
         * nothing, for an infinity has its hidden bit. */
        for (unsigned x = 0; x < 255; x++)
            if (t->sum[k][x])
                exact_add_shifted(to, t->sum[k][x], x > 1 ? 2 * (x - 1) : 0);
        to->not_finite += t->sum[k][255] != 0;
    }
    memset(t, 0, sizeof *t);
}

void cpu_sum_squares_exactly(size_t n, const float *x, struct exact_sum *to)
{
    struct tables t;
    memset(&t, 0, sizeof t);
    for (size_t at = 0; at < n; at += BLOCK) {
        add_block(&t, n - at < BLOCK ? n - at : BLOCK, x + at);
        fold(&t, to);
    }
}
