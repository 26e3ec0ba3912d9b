/* ops_cuda.h: the verbs of ops.h on a GPU, by the file that has them; ops_cuda.cu makes the table.
 *
 * Sums have a fixed order: no atomic additions, a number of blocks that depends on the shape alone.
 * So the same call gives the same bits on every run and, where blocks do not share a column's sum,
 * on every GPU.
 *
 * The compiler does not contract products and sums (-fmad=false, as -ffp-contract=off for the CPU),
 * divides and takes roots as IEEE 754 has it and keeps subnormals: elem.h without erfcf, log1pf,
 * logf and log gives the same bits here as on the CPU. Updates, roundings and dropout do on any
 * GPU; sums of rows and columns have another order than the CPU's. A kernel that is bound by
 * arithmetic says fmaf(). Products are cuBLAS's.
 */
#ifndef TRAINYARD_TRAINER_CUDA_OPS_CUDA_H
#define TRAINYARD_TRAINER_CUDA_OPS_CUDA_H

#ifdef __cplusplus
#include "trainer/cuda/trainer.h"
extern "C" {
#else
#include "trainer/ops.h"
#endif

extern const struct ops ops_cuda;

/* ops_device.cu */
int cuda_open(const struct ops_options *o, struct err *e);
void cuda_close(void);
int cuda_finish(struct err *e);
void cuda_start(void);
size_t cuda_workspace(const struct ops_options *o);
int64_t cuda_used(void);
void cuda_room(int64_t *ret_all, int64_t *ret_free);
/* What the host has done so far: waits for the device; tapes (tape.h) issued as they were, and as
 * graphs. */
struct cuda_counts {
    int64_t waits, direct, replayed;
};
struct cuda_counts cuda_counts(void);
void *cuda_alloc(size_t bytes);
void cuda_release(void *p);
void *cuda_alloc_host(size_t bytes);
void cuda_release_host(void *p);
void cuda_zero(void *p, size_t bytes);
void cuda_copy(void *to, const void *from, size_t bytes);
void cuda_upload(void *to, const void *host, size_t bytes);
void cuda_download(void *host, const void *from, size_t bytes);
void cuda_fetch(void *host, const void *from, size_t bytes);
void cuda_upload_beside(void *to, const void *host, size_t bytes);
void cuda_join_uploads(void);

/* ops_gemm.cu */
void cuda_gemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
               const float *b, float beta, float *c);
void cuda_dense(enum activation f, int64_t rows, int64_t cols, int64_t in, const float *x,
                const float *kernel, const float *bias, float *z, float *y);
void cuda_dense_backward_kernel(int64_t rows, int64_t cols, int64_t in, const float *x,
                                const float *dz, float beta, float *d_kernel, float *d_bias);

/* ops_elementwise.cu */
void cuda_to_bfloat16(size_t n, const float *x, uint16_t *y);
void cuda_from_bfloat16(size_t n, const uint16_t *x, float *y);
void cuda_round_bfloat16(size_t n, const float *x, float *y);
void cuda_add(size_t n, const float *x, float *y);
void cuda_add_f64(size_t n, const double *x, double *y);
void cuda_activate(enum activation f, int64_t rows, int64_t cols, const float *bias, float *z,
                   float *y);
void cuda_activate_backward(enum activation f, int64_t rows, int64_t cols, const float *kept,
                            const float *dy, float *dx, float beta, float *d_bias);
void cuda_copy_columns(int64_t rows, int64_t cols, const float *from, int64_t from_width, float *to,
                       int64_t to_width);
void cuda_affine(int64_t n, float scale, float offset, const float *x, float *y);
void cuda_dropout(const struct dropout_args *a, int64_t rows, int64_t cols, const float *x,
                  float *y);

/* ops_norm.cu */
void cuda_normalize(int64_t rows, int64_t cols, float epsilon, const float *x, const float *gamma,
                    const float *beta, float *stats, float *y);
void cuda_normalize_backward(int64_t rows, int64_t cols, const float *x, const float *stats,
                             const float *gamma, const float *dy, float *dx, float accumulate,
                             float *d_gamma, float *d_beta);

/* ops_loss.cu */
void cuda_loss(const struct loss_args *a);

/* ops_optimizer.cu */
void cuda_sum_squares(size_t n, const float *x, double *ret);
void cuda_sum_squares_exactly(size_t n, const float *x, struct exact_sum *to);
void cuda_adam(const struct elem_adam *a, size_t n, const float *g, float *w, float *m, float *v);
void cuda_sgd(const struct elem_sgd *a, size_t n, const float *g, float *w, float *m);
void cuda_adam_bfloat16(const struct elem_adam *a, const struct elem_dither *d, size_t n,
                        const float *g, float *w, uint16_t *m, uint16_t *v);
void cuda_sgd_bfloat16(const struct elem_sgd *a, const struct elem_dither *d, size_t n,
                       const float *g, float *w, uint16_t *m);
void cuda_outer_step(const struct elem_outer *a, size_t n, float *w, float *anchor, float *v);

/* ops_codec.cu */
void cuda_pack(const struct parallel *p, size_t n, const float *x, void *packed);
void cuda_add_packed(const struct parallel *p, size_t n, const void *packed, float sign, float *y);

/* ops_rows.cu */
int64_t cuda_find_rows(int64_t rows, int64_t cols, const float *x, int64_t most, uint32_t *ids);
void cuda_pack_rows(int64_t count, int64_t room, int64_t cols, const uint32_t *ids, const float *x,
                    void *packed);
void cuda_sum_rows(int members, int64_t room, int64_t cols, const void *packed, size_t stride,
                   float *y);

/* ops_conv.cu */
void cuda_conv(const struct window_args *a, int64_t filters, const float *x, const float *kernel,
               float *z);
void cuda_conv_backward_kernel(const struct window_args *a, int64_t filters, const float *x,
                               const float *dz, float beta, float *d_kernel);
void cuda_conv_backward_input(const struct window_args *a, int64_t filters, const float *dz,
                              const float *kernel, float *dx);

/* ops_pool.cu */
void cuda_max_pool(const struct window_args *a, const float *x, float *y);
void cuda_mean_pool(const struct window_args *a, const float *x, float *y);
void cuda_max_pool_backward(const struct window_args *a, const float *x, const float *y,
                            const float *dy, float *dx);
void cuda_mean_pool_backward(const struct window_args *a, const float *dy, float *dx);

/* ops_embedding.cu */
void cuda_gather(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                 const float *table, float *y);
void cuda_scatter_add(int64_t count, int64_t cols, int64_t first, int64_t rows, const float *ids,
                      const float *dy, float beta, float *d_table);

/* ops_batch_norm.cu */
void cuda_batch_moments(int64_t rows, int64_t cols, const float *x, double *sums);
void cuda_batch_stats(int64_t cols, const double *sums, double count, double epsilon, float *stats);
void cuda_moving_stats(int64_t cols, const float *mean, const float *variance, double epsilon,
                       float *stats);
void cuda_update_moving(int64_t cols, const double *sums, double count, double momentum,
                        float *mean, float *variance);
void cuda_batch_normalize(const struct batch_norm_args *a, float *y);
void cuda_batch_norm_sums(const struct batch_norm_args *a, const float *dy, double *sums);
void cuda_batch_norm_backward(const struct batch_norm_args *a, const float *dy, const double *sums,
                              double count, float *dx, float accumulate, float *d_gamma,
                              float *d_beta);

#ifdef __cplusplus
}
#endif

#endif
