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
void cpu_round_bfloat16(size_t n, const float *x, float *y);
void cpu_outer_step(const struct elem_outer *a, size_t n, float *w, float *anchor, float *v);
void cpu_sum_squares_exactly(size_t n, const float *x, struct exact_sum *to);
void cpu_adam_bfloat16(const struct elem_adam *a, const struct elem_dither *d, size_t n,
                       const float *g, float *w, uint16_t *m, uint16_t *v);
void cpu_sgd_bfloat16(const struct elem_sgd *a, const struct elem_dither *d, size_t n,
                      const float *g, float *w, uint16_t *m);
void cpu_loss(const struct loss_args *a);

void cpu_conv(const struct window_args *a, int64_t filters, const float *x, const float *kernel,
              float *z);
void cpu_conv_backward_kernel(const struct window_args *a, int64_t filters, const float *x,
                              const float *dz, float beta, float *d_kernel);
void cpu_conv_backward_input(const struct window_args *a, int64_t filters, const float *dz,
                             const float *kernel, float *dx);
void cpu_max_pool(const struct window_args *a, const float *x, float *y);
void cpu_mean_pool(const struct window_args *a, const float *x, float *y);
void cpu_max_pool_backward(const struct window_args *a, const float *x, const float *y,
                           const float *dy, float *dx);
void cpu_mean_pool_backward(const struct window_args *a, const float *dy, float *dx);
void cpu_gather(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                const float *table, float *y);
void cpu_scatter_add(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                     const float *dy, float beta, float *d_table);
void cpu_batch_moments(int64_t rows, int64_t cols, const float *x, double *sums);
void cpu_batch_stats(int64_t cols, const double *sums, double count, double epsilon, float *stats);
void cpu_moving_stats(int64_t cols, const float *mean, const float *variance, double epsilon,
                      float *stats);
void cpu_update_moving(int64_t cols, const double *sums, double count, double momentum, float *mean,
                       float *variance);
void cpu_batch_normalize(const struct batch_norm_args *a, float *y);
void cpu_batch_norm_sums(const struct batch_norm_args *a, const float *dy, double *sums);
void cpu_batch_norm_backward(const struct batch_norm_args *a, const float *dy, const double *sums,
                             double count, float *dx, float accumulate, float *d_gamma,
                             float *d_beta);

int64_t cpu_find_rows(int64_t rows, int64_t cols, const float *x, int64_t most, uint32_t *ids);
void cpu_pack_rows(int64_t count, int64_t room, int64_t cols, const uint32_t *ids, const float *x,
                   void *packed);
void cpu_sum_rows(int members, int64_t room, int64_t cols, const void *packed, size_t stride,
                  float *y);
/* Of packed operands, once a process; ops_cpu_gemm.c. */
#define CPU_GEMM_BYTES ((size_t)4 * 1024 * 1024)

void cpu_pack(const struct parallel *p, size_t n, const float *x, void *packed);
void cpu_add_packed(const struct parallel *p, size_t n, const void *packed, float sign, float *y);

#endif
