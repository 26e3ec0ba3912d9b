/* gemm_plan.h: a product as cuBLASLt does it: the algorithm for a shape, found once. */
#ifndef TRAINYARD_TRAINER_CUDA_GEMM_PLAN_H
#define TRAINYARD_TRAINER_CUDA_GEMM_PLAN_H

#include "trainer/cuda/device.h"

/* C [m, n] = op(A) op(B) + beta C, as in ops.h, and what the epilogue does with it: bias [n] is
 * added, or is where BGRADA leaves the column sums of op(B); aux [m, n] is what GELU was given. */
struct product {
    int transpose_a, transpose_b;
    int64_t m, n, k; /* none is 0 */
    const float *a, *b;
    float beta; /* 0 or 1 */
    float *c;
    cublasLtEpilogue_t epilogue;
    float *bias, *aux; /* NULL where the epilogue has none */
};

struct gemm_plan;

/* How the library does such a product; NULL: it cannot. It is the same for the same shape and
 * alignments of pointers, and lives until the device closes or there are too many. */
struct gemm_plan *gemm_plan(const struct product *g);
/* Records it. a and b are g's, or their copies in 16 bits. */
void gemm_plan_run(struct gemm_plan *p, const struct product *g, const void *a, const void *b);

/* The memory for operand `which` (0, 1) in 16 bits; NULL with a failure kept where it has more
 * elements than the device was opened for. */
uint16_t *device_operand(int which, int64_t n);

/* What is known of ReLU's epilogue: whether NaN stays NaN; -1: nothing yet. */
int *gemm_relu_keeps_nan(void);

void gemm_plan_forget(void); /* all; the device closes */

#endif
