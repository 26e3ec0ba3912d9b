/* ops.h: the tensor verbs that a backend fills (ops_cpu.c; later CUDA). The engine above knows
 * only this table, so it runs on any backend unchanged.
 *
 * A backend is one device of one process. Pointers are memory of that device: from alloc(), or
 * from comm_memory() for what collectives touch. Verbs on a device may return before the work is
 * done; they are ordered among themselves, and download() waits. All tensors are float32,
 * row-major and dense; `rows` counts items times inner positions, and may be 0 everywhere.
 */
#ifndef TRAINYARD_TRAINER_OPS_H
#define TRAINYARD_TRAINER_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "spec/job.h"
#include "spec/model.h"
#include "trainer/elem.h"

/* Sums over items, in float64; divided once, by the global count of items, by whoever reports. */
struct loss_sums {
    double loss;
    double accuracy; /* items that are right */
    double mae;
};

/* One call of loss(): per item the loss and metrics, and the gradient of the *sum* of losses. An
 * item's loss is over its `cols` outputs: the cross-entropy of the row, or for
 * binary_crossentropy and mean_squared_error the mean over the row. */
struct loss_args {
    enum loss kind;
    int from_logits; /* `out` is what the final softmax or sigmoid would get; the gradient is
                        with respect to that */
    int64_t rows, cols;
    const float *out;       /* [rows, cols] */
    const int32_t *classes; /* [rows], or NULL */
    const float *targets;   /* [rows, cols], where classes is NULL */
    float *gradient;        /* [rows, cols], or NULL; may not be `out` */
    struct loss_sums *sums; /* added to */
};

/* Which numbers a dropout layer draws: a function of the item's place in the global batch. */
struct dropout_args {
    float rate;
    uint64_t seed;
    uint64_t stream;  /* of (step, layer) */
    int64_t position; /* of row 0 */
};

struct ops {
    const char *name;
    int is_host; /* the device reads and writes host memory: no copies needed */

    void *(*alloc)(size_t bytes); /* zeroed, 64-byte aligned; NULL when the device is full */
    void (*release)(void *p);     /* NULL is fine */
    void (*zero)(void *p, size_t bytes);
    void (*copy)(void *to, const void *from, size_t bytes);
    void (*upload)(void *to, const void *host, size_t bytes);
    void (*download)(void *host, const void *from, size_t bytes);

    void (*to_bfloat16)(size_t n, const float *x, uint16_t *y); /* elem.h says how it rounds */
    void (*from_bfloat16)(size_t n, const uint16_t *x, float *y);
    void (*add)(size_t n, const float *x, float *y); /* y += x */
    void (*add_f64)(size_t n, const double *x, double *y);

    /* C [m, n] = op(A) [m, k] op(B) [k, n] + beta C, beta 0 or 1; transposed operands are stored
     * [k, m], [n, k]. */
    void (*gemm)(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
                 const float *b, float beta, float *c);

    /* z += bias [cols] (unless NULL); y = f(z); y may be z. Softmax is over the row. */
    void (*activate)(enum activation f, int64_t rows, int64_t cols, const float *bias, float *z,
                     float *y);
    /* dx = dy f'; `kept` is z where elem_keeps_input(f), else y; dx may be dy. Where d_bias is not
     * NULL, d_bias [cols] = beta d_bias + the column sums of dx, beta 0 or 1. */
    void (*activate_backward)(enum activation f, int64_t rows, int64_t cols, const float *kept,
                              const float *dy, float *dx, float beta, float *d_bias);

    void (*affine)(int64_t n, float scale, float offset, const float *x, float *y); /* y may be x */

    /* y = x / (1 - rate) or 0. Its own derivative: backward is the same call on gradients. */
    void (*dropout)(const struct dropout_args *a, int64_t rows, int64_t cols, const float *x,
                    float *y);

    /* y = gamma (x - mean) * rstd + beta per row; keeps mean and rstd in stats [rows, 2] */
    void (*normalize)(int64_t rows, int64_t cols, float epsilon, const float *x, const float *gamma,
                      const float *beta, float *stats, float *y);
    /* dx may be NULL or dy; d_gamma, d_beta [cols] = accumulate * old + sums over rows */
    void (*normalize_backward)(int64_t rows, int64_t cols, const float *x, const float *stats,
                               const float *gamma, const float *dy, float *dx, float accumulate,
                               float *d_gamma, float *d_beta);

    void (*loss)(const struct loss_args *a);

    void (*sum_squares)(size_t n, const float *x, double *ret); /* host result */
    void (*adam)(const struct elem_adam *a, size_t n, const float *g, float *w, float *m, float *v);
    void (*sgd)(const struct elem_sgd *a, size_t n, const float *g, float *w,
                float *m); /* m may be NULL */
};

extern const struct ops ops_cpu;

#endif
