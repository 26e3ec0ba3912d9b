/* cuda_slopes.h: gradients against differences of values, both of the GPU's verbs. What is derived
 * is a sum of outputs times fixed weights. */
#ifndef TRAINYARD_TESTS_CUDA_SLOPES_H
#define TRAINYARD_TESTS_CUDA_SLOPES_H

#include "cuda_parity.h"

/* Device memory that holds `n` floats of the host. */
PARITY float *slopes_upload(int64_t n, const float *x)
{
    float *p = ops_cuda.alloc((size_t)(n + 1) * sizeof *p);
    assert_non_null(p);
    if (x)
        ops_cuda.upload(p, x, (size_t)n * sizeof *p);
    return p;
}

PARITY float *slopes_random(int64_t n, uint32_t seed) /* of the host */
{
    float *x = mem_alloc((size_t)(n + 1) * sizeof *x);
    struct parity p = {.seed = seed};
    for (int64_t i = 0; i < n; i++)
        x[i] = parity_next(&p);
    return x;
}

/* The sum of y (device) times w (host). */
PARITY double slopes_value(int64_t n, const float *y, const float *w)
{
    CLEANUP(mem_freep) float *host = mem_alloc((size_t)(n + 1) * sizeof *host);
    double sum = 0;
    ops_cuda.download(host, y, (size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        sum += (double)host[i] * (double)w[i];
    return sum;
}

/* The value as it is with what now stands in device memory. */
typedef double slopes_function(const void *context);

/* Moves elements of at (device, [n]) one by one by +- step, at most 40 of them, and compares what
 * becomes of the value with gradient (device). */
PARITY void slopes_check(const char *what, int64_t n, float *at, const float *gradient, float step,
                         double tolerance, slopes_function *value, const void *context)
{
    int64_t stride = n / 40 + 1;
    for (int64_t i = 0; i < n; i += stride) {
        float x, g, up, down;
        ops_cuda.download(&x, at + i, sizeof x);
        ops_cuda.download(&g, gradient + i, sizeof g);
        up = x + step;
        down = x - step;
        ops_cuda.upload(at + i, &up, sizeof up);
        double above = value(context);
        ops_cuda.upload(at + i, &down, sizeof down);
        double slope = (above - value(context)) / ((double)up - (double)down);
        ops_cuda.upload(at + i, &x, sizeof x);
        if (!(fabs(slope - (double)g) <= tolerance * (1 + fabs(slope))))
            fail_msg("%s [%lld of %lld]: the gradient is %.9g, the slope %.9g", what, (long long)i,
                     (long long)n, (double)g, slope);
    }
}

#endif
