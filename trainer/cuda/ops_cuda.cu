/* ops_cuda.cu: the table of the verbs on a GPU. */
#include "trainer/cuda/ops_cuda.h"

#if __has_include("trainer/cuda/ops_gemm.cu")
#define GEMM(f) f
#else
#define GEMM(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_elementwise.cu")
#define ELEMENTWISE(f) f
#else
#define ELEMENTWISE(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_norm.cu")
#define NORM(f) f
#else
#define NORM(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_loss.cu")
#define LOSS(f) f
#else
#define LOSS(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_optimizer.cu")
#define OPTIMIZER(f) f
#else
#define OPTIMIZER(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_codec.cu")
#define CODEC(f) f
#else
#define CODEC(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_rows.cu")
#define ROWS(f) f
#else
#define ROWS(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_conv.cu")
#define CONV(f) f
#else
#define CONV(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_pool.cu")
#define POOL(f) f
#else
#define POOL(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_embedding.cu")
#define EMBEDDING(f) f
#else
#define EMBEDDING(f) nullptr
#endif
#if __has_include("trainer/cuda/ops_batch_norm.cu")
#define BATCH_NORM(f) f
#else
#define BATCH_NORM(f) nullptr
#endif

const struct ops ops_cuda = {
    .name = "cuda",
    .is_host = 0,
    .open = cuda_open,
    .close = cuda_close,
    .finish = cuda_finish,
    .workspace = cuda_workspace,
    .used = cuda_used,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .alloc_host = cuda_alloc_host,
    .release_host = cuda_release_host,
    .zero = cuda_zero,
    .copy = cuda_copy,
    .upload = cuda_upload,
    .download = cuda_download,
    .upload_beside = cuda_upload_beside,
    .join_uploads = cuda_join_uploads,
    .to_bfloat16 = ELEMENTWISE(cuda_to_bfloat16),
    .from_bfloat16 = ELEMENTWISE(cuda_from_bfloat16),
    .round_bfloat16 = ELEMENTWISE(cuda_round_bfloat16),
    .pack = CODEC(cuda_pack),
    .add_packed = CODEC(cuda_add_packed),
    .find_rows = ROWS(cuda_find_rows),
    .pack_rows = ROWS(cuda_pack_rows),
    .sum_rows = ROWS(cuda_sum_rows),
    .add = ELEMENTWISE(cuda_add),
    .add_f64 = ELEMENTWISE(cuda_add_f64),
    .gemm = GEMM(cuda_gemm),
    .dense = GEMM(cuda_dense),
    .dense_backward_kernel = GEMM(cuda_dense_backward_kernel),
    .activate = ELEMENTWISE(cuda_activate),
    .activate_backward = ELEMENTWISE(cuda_activate_backward),
    .copy_columns = ELEMENTWISE(cuda_copy_columns),
    .affine = ELEMENTWISE(cuda_affine),
    .dropout = ELEMENTWISE(cuda_dropout),
    .conv = CONV(cuda_conv),
    .conv_backward_kernel = CONV(cuda_conv_backward_kernel),
    .conv_backward_input = CONV(cuda_conv_backward_input),
    .max_pool = POOL(cuda_max_pool),
    .mean_pool = POOL(cuda_mean_pool),
    .max_pool_backward = POOL(cuda_max_pool_backward),
    .mean_pool_backward = POOL(cuda_mean_pool_backward),
    .gather = EMBEDDING(cuda_gather),
    .scatter_add = EMBEDDING(cuda_scatter_add),
    .batch_moments = BATCH_NORM(cuda_batch_moments),
    .batch_stats = BATCH_NORM(cuda_batch_stats),
    .moving_stats = BATCH_NORM(cuda_moving_stats),
    .update_moving = BATCH_NORM(cuda_update_moving),
    .batch_normalize = BATCH_NORM(cuda_batch_normalize),
    .batch_norm_sums = BATCH_NORM(cuda_batch_norm_sums),
    .batch_norm_backward = BATCH_NORM(cuda_batch_norm_backward),
    .normalize = NORM(cuda_normalize),
    .normalize_backward = NORM(cuda_normalize_backward),
    .loss = LOSS(cuda_loss),
    .sum_squares = OPTIMIZER(cuda_sum_squares),
    .sum_squares_exactly = OPTIMIZER(cuda_sum_squares_exactly),
    .adam = OPTIMIZER(cuda_adam),
    .sgd = OPTIMIZER(cuda_sgd),
    .adam_bfloat16 = OPTIMIZER(cuda_adam_bfloat16),
    .sgd_bfloat16 = OPTIMIZER(cuda_sgd_bfloat16),
    .outer_step = OPTIMIZER(cuda_outer_step),
};
