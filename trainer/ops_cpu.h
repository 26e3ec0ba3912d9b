/* ops_cpu.h: what the files of the CPU backend share. Others use ops.h. */
#ifndef TRAINYARD_TRAINER_OPS_CPU_H
#define TRAINYARD_TRAINER_OPS_CPU_H

#include "trainer/ops.h"

float cpu_row_max(int64_t n, const float *x); /* n >= 1 */
float cpu_row_sum(int64_t n, const float *x);
float cpu_row_dot(int64_t n, const float *x, const float *y);
/* y = e^(x - max); returns its sum. y may be x. */
float cpu_row_exp(int64_t n, float max, const float *x, float *y);

void cpu_gemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
              const float *b, float beta, float *c);
/* The same by plain loops, for CPUs without the instructions: a multiply and an add, each rounded.
 */
void cpu_gemm_plain(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                    const float *a, const float *b, float beta, float *c);
void cpu_to_bfloat16(size_t n, const float *x, uint16_t *y);
void cpu_from_bfloat16(size_t n, const uint16_t *x, float *y);
void cpu_add(size_t n, const float *x, float *y);
void cpu_add_f64(size_t n, const double *x, double *y);
void cpu_loss(const struct loss_args *a);

#endif
