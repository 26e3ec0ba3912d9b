/* ops_cpu.c: the tensor verbs on one CPU core, as loops around elem.h. Products, convolutions,
 * poolings, batch normalisation, embeddings and losses are in ops_cpu_<what>.c.
 *
 * Every sum has a fixed order: a row's in LANES partial sums that are then added pairwise, a
 * column's row by row. So the same call gives the same bits on every run.
 */
#include "trainer/ops_cpu.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "trainer/cpu_loops.h"
#include "trainer/random.h"

#define INLINE static inline __attribute__((always_inline))

/* Not mem_aligned(): that a model is too large for the machine is the job's affair, and is told. */
static void *cpu_alloc(size_t bytes)
{
    size_t rounded = bytes ? (bytes + 63) / 64 * 64 : 64;
    void *p = bytes < SIZE_MAX / 2 ? aligned_alloc(64, rounded) : NULL;
    return p ? memset(p, 0, rounded) : NULL;
}

static void cpu_zero(void *p, size_t bytes)
{
    memset(p, 0, bytes);
}

static void cpu_copy(void *to, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(to, from, bytes);
}

static int cpu_open(const struct ops_options *o, struct err *e)
{
    (void)o;
    (void)e;
    return 0;
}

static void cpu_nothing(void)
{
}

static int cpu_finish(struct err *e)
{
    (void)e;
    return 0;
}

static size_t cpu_workspace(const struct ops_options *o)
{
    (void)o;
    return CPU_GEMM_BYTES;
}

static int64_t cpu_used(void)
{
    return -1;
}

static void cpu_room(int64_t *ret_all, int64_t *ret_free)
{
    *ret_all = *ret_free = -1;
}

/* ---- activations ---- */

INLINE void activate_rows(enum activation f, int64_t rows, int64_t cols, const float *bias,
                          float *z, float *y)
{
    for (int64_t r = 0; r < rows; r++, z += cols, y += cols) {
        if (bias && z == y) {
            CPU_INDEPENDENT
            for (int64_t c = 0; c < cols; c++)
                y[c] = elem_activate(f, y[c] + bias[c]);
        } else if (bias) {
            CPU_INDEPENDENT
            for (int64_t c = 0; c < cols; c++) {
                z[c] += bias[c];
                y[c] = elem_activate(f, z[c]);
            }
        } else {
            CPU_INDEPENDENT
            for (int64_t c = 0; c < cols; c++)
                y[c] = elem_activate(f, z[c]);
        }
    }
}

INLINE void derive_rows(enum activation f, int64_t rows, int64_t cols, const float *kept,
                        const float *dy, float *dx, float *d_bias)
{
    for (int64_t r = 0; r < rows; r++, kept += cols, dy += cols, dx += cols) {
        if (d_bias) {
            CPU_INDEPENDENT
            for (int64_t c = 0; c < cols; c++) {
                dx[c] = dy[c] * elem_derivative(f, kept[c]);
                d_bias[c] += dx[c];
            }
        } else {
            CPU_INDEPENDENT
            for (int64_t c = 0; c < cols; c++)
                dx[c] = dy[c] * elem_derivative(f, kept[c]);
        }
    }
}

/* One specialised loop per activation: the function is a constant in each. */
#define EACH_ELEMENTWISE(CASE)                                                                     \
    CASE(ACTIVATION_LINEAR)                                                                        \
    CASE(ACTIVATION_RELU)                                                                          \
    CASE(ACTIVATION_TANH)                                                                          \
    CASE(ACTIVATION_SIGMOID)                                                                       \
    CASE(ACTIVATION_GELU)                                                                          \
    CASE(ACTIVATION_GELU_TANH)                                                                     \
    CASE(ACTIVATION_ELU)                                                                           \
    CASE(ACTIVATION_SILU)                                                                          \
    CASE(ACTIVATION_SOFTPLUS)                                                                      \
    CASE(ACTIVATION_LEAKY_RELU)

CPU_CLONES static void activate_elements(enum activation f, int64_t rows, int64_t cols,
                                         const float *bias, float *z, float *y)
{
    switch (f) {
#define CASE(F)                                                                                    \
    case F: activate_rows(F, rows, cols, bias, z, y); break;
        EACH_ELEMENTWISE(CASE)
#undef CASE
    case ACTIVATION_SOFTMAX:
    case ACTIVATION__MAX: break;
    }
}

CPU_CLONES static void derive_elements(enum activation f, int64_t rows, int64_t cols,
                                       const float *kept, const float *dy, float *dx, float *d_bias)
{
    switch (f) {
#define CASE(F)                                                                                    \
    case F: derive_rows(F, rows, cols, kept, dy, dx, d_bias); break;
        EACH_ELEMENTWISE(CASE)
#undef CASE
    case ACTIVATION_SOFTMAX:
    case ACTIVATION__MAX: break;
    }
}

/* ---- rows ---- */

#define LANES 8

INLINE float add_lanes(const float lane[LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

CPU_CLONES float cpu_row_max(int64_t n, const float *x)
{
    float lane[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++)
        lane[l] = x[0];
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = elem_max(x[i + l], lane[l]);
    for (; i < n; i++)
        lane[0] = elem_max(x[i], lane[0]);
    for (int l = 1; l < LANES; l++)
        lane[0] = elem_max(lane[l], lane[0]);
    return lane[0];
}

CPU_CLONES float cpu_row_exp(int64_t n, float max, const float *x, float *y)
{
    CPU_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = elem_exp(x[i] - max);
    return cpu_row_sum(n, y);
}

CPU_CLONES float cpu_row_sum(int64_t n, const float *x)
{
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += x[i];
    return add_lanes(lane);
}

CPU_CLONES float cpu_row_dot(int64_t n, const float *x, const float *y)
{
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l] * y[i + l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += x[i] * y[i];
    return add_lanes(lane);
}

CPU_CLONES static void affine_elements(int64_t n, float scale, float offset, const float *x,
                                       float *y)
{
    CPU_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale + offset;
}

static void cpu_affine(int64_t n, float scale, float offset, const float *x, float *y)
{
    affine_elements(n, scale, offset, x, y);
}

static void softmax_rows(int64_t rows, int64_t cols, const float *bias, float *z, float *y)
{
    if (bias)
        activate_elements(ACTIVATION_LINEAR, rows, cols, bias, z, z);
    for (int64_t r = 0; r < rows; r++, z += cols, y += cols) {
        float sum = cpu_row_exp(cols, cpu_row_max(cols, z), z, y);
        affine_elements(cols, 1.0f / sum, 0.0f, y, y);
    }
}

static void cpu_activate(enum activation f, int64_t rows, int64_t cols, const float *bias, float *z,
                         float *y)
{
    if (f == ACTIVATION_SOFTMAX)
        softmax_rows(rows, cols, bias, z, y);
    else if (f != ACTIVATION_LINEAR || bias || y != z)
        activate_elements(f, rows, cols, bias, z, y);
}

/* dx = y (dy - <dy, y>) */
CPU_CLONES static void softmax_derive(int64_t rows, int64_t cols, const float *y, const float *dy,
                                      float *dx, float *d_bias)
{
    for (int64_t r = 0; r < rows; r++, y += cols, dy += cols, dx += cols) {
        float dot = cpu_row_dot(cols, dy, y);
        CPU_INDEPENDENT
        for (int64_t c = 0; c < cols; c++)
            dx[c] = y[c] * (dy[c] - dot);
        for (int64_t c = 0; d_bias && c < cols; c++)
            d_bias[c] += dx[c];
    }
}

static void cpu_activate_backward(enum activation f, int64_t rows, int64_t cols, const float *kept,
                                  const float *dy, float *dx, float beta, float *d_bias)
{
    if (d_bias && beta == 0.0f)
        memset(d_bias, 0, (size_t)cols * sizeof *d_bias);
    if (f == ACTIVATION_SOFTMAX)
        softmax_derive(rows, cols, kept, dy, dx, d_bias);
    else if (f != ACTIVATION_LINEAR || d_bias || dx != dy)
        derive_elements(f, rows, cols, kept, dy, dx, d_bias);
}

/* ---- dropout ---- */

/* Numbers [from, from + n) of the row whose blocks begin at `first`. */
static void drop_run(const struct dropout_args *a, uint64_t first, uint64_t from, int64_t n,
                     const float *x, float *y)
{
    float scale = 1.0f / (1.0f - a->rate);
    uint32_t word[4] = {0};
    for (int64_t c = 0; c < n; c++) {
        uint64_t at = from + (uint64_t)c;
        if (c == 0 || at % 4 == 0)
            random_words(a->seed, RANDOM_DROPOUT, a->stream, first + at / 4, word);
        y[c] = random_unit(word[at % 4]) >= a->rate ? x[c] * scale : 0.0f;
    }
}

static void cpu_dropout(const struct dropout_args *a, int64_t rows, int64_t cols, const float *x,
                        float *y)
{
    int64_t positions = cols / a->width;
    uint64_t blocks = ((uint64_t)(positions * a->columns) + 3) / 4;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t p = 0; p < positions; p++, x += a->width, y += a->width)
            drop_run(a, (uint64_t)(a->position + r) * blocks,
                     (uint64_t)(p * a->columns + a->first_column), a->width, x, y);
}

static void cpu_copy_columns(int64_t rows, int64_t cols, const float *from, int64_t from_width,
                             float *to, int64_t to_width)
{
    for (int64_t r = 0; r < rows; r++, to += to_width)
        if (from)
            memcpy(to, from + r * from_width, (size_t)cols * sizeof *to);
        else
            memset(to, 0, (size_t)cols * sizeof *to);
}

/* ---- layer normalisation ---- */

CPU_CLONES static void normalize_row(int64_t n, const float *x, float mean, float rstd,
                                     const float *gamma, const float *beta, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = elem_normalize(x[i], mean, rstd, gamma ? gamma[i] : 1.0f, beta ? beta[i] : 0.0f);
}

CPU_CLONES static float squared_deviations(int64_t n, const float *x, float mean)
{
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (x[i + l] - mean) * (x[i + l] - mean);
    for (int l = 0; i < n; i++, l++)
        lane[l] += (x[i] - mean) * (x[i] - mean);
    return add_lanes(lane);
}

static void cpu_normalize(int64_t rows, int64_t cols, float epsilon, const float *x,
                          const float *gamma, const float *beta, float *stats, float *y)
{
    float inverse = 1.0f / (float)cols;
    for (int64_t r = 0; r < rows; r++, x += cols, y += cols, stats += 2) {
        stats[0] = cpu_row_sum(cols, x) * inverse;
        float variance = squared_deviations(cols, x, stats[0]) * inverse;
        stats[1] = 1.0f / sqrtf(variance + epsilon);
        normalize_row(cols, x, stats[0], stats[1], gamma, beta, y);
    }
}

CPU_CLONES static void normalize_row_sums(int64_t n, const float *x, float mean, float rstd,
                                          const float *dy, float *d_gamma, float *d_beta)
{
    for (int64_t i = 0; d_gamma && i < n; i++)
        d_gamma[i] += dy[i] * ((x[i] - mean) * rstd);
    for (int64_t i = 0; d_beta && i < n; i++)
        d_beta[i] += dy[i];
}

CPU_CLONES static void normalize_row_backward(int64_t n, const float *x, float mean, float rstd,
                                              const float *gamma, const float *dy, float *dx)
{
    float sum[LANES] = {0}, dot[LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        float s = dy[i] * (gamma ? gamma[i] : 1.0f);
        sum[i % LANES] += s;
        dot[i % LANES] += s * ((x[i] - mean) * rstd);
    }
    float mean_s = add_lanes(sum) / (float)n, mean_sh = add_lanes(dot) / (float)n;
    CPU_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        dx[i] = elem_normalize_derivative((x[i] - mean) * rstd, rstd,
                                          dy[i] * (gamma ? gamma[i] : 1.0f), mean_s, mean_sh);
}

static void cpu_normalize_backward(int64_t rows, int64_t cols, const float *x, const float *stats,
                                   const float *gamma, const float *dy, float *dx, float accumulate,
                                   float *d_gamma, float *d_beta)
{
    if (accumulate == 0.0f && d_gamma)
        memset(d_gamma, 0, (size_t)cols * sizeof *d_gamma);
    if (accumulate == 0.0f && d_beta)
        memset(d_beta, 0, (size_t)cols * sizeof *d_beta);
    for (int64_t r = 0; r < rows; r++, x += cols, dy += cols, stats += 2) {
        normalize_row_sums(cols, x, stats[0], stats[1], dy, d_gamma, d_beta);
        if (dx)
            normalize_row_backward(cols, x, stats[0], stats[1], gamma, dy, dx + r * cols);
    }
}

/* ---- updates ---- */

CPU_CLONES static void square_elements(size_t n, const float *x, double *ret)
{
    double lane[2 * LANES] = {0};
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int l = 0; l < 2 * LANES; l++)
            lane[l] += (double)x[i + l] * (double)x[i + l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += (double)x[i] * (double)x[i];
    for (int half = LANES; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    *ret = lane[0];
}

static void cpu_sum_squares(size_t n, const float *x, double *ret)
{
    square_elements(n, x, ret);
}

CPU_CLONES static void adam_elements(struct elem_adam a, size_t n, const float *restrict g,
                                     float *restrict w, float *restrict m, float *restrict v)
{
    for (size_t i = 0; i < n; i++) {
        struct elem_state s = elem_adam_step(a, (struct elem_state){w[i], m[i], v[i]}, g[i]);
        w[i] = s.w;
        m[i] = s.m;
        v[i] = s.v;
    }
}

static void cpu_adam(const struct elem_adam *a, size_t n, const float *g, float *w, float *m,
                     float *v)
{
    adam_elements(*a, n, g, w, m, v);
}

CPU_CLONES static void sgd_elements(struct elem_sgd a, size_t n, const float *restrict g,
                                    float *restrict w, float *restrict m)
{
    for (size_t i = 0; i < n; i++) {
        struct elem_state s = elem_sgd_step(a, (struct elem_state){w[i], m[i], 0.0f}, g[i]);
        w[i] = s.w;
        m[i] = s.m;
    }
}

CPU_CLONES static void sgd_plain(float rate, float scale, size_t n, const float *restrict g,
                                 float *restrict w)
{
    for (size_t i = 0; i < n; i++)
        w[i] -= rate * (g[i] * scale);
}

static void cpu_sgd(const struct elem_sgd *a, size_t n, const float *g, float *w, float *m)
{
    if (m)
        sgd_elements(*a, n, g, w, m);
    else
        sgd_plain(a->rate, a->scale, n, g, w);
}

/* ---- dense layers ---- */

static void cpu_dense(enum activation f, int64_t rows, int64_t cols, int64_t in, const float *x,
                      const float *kernel, const float *bias, float *z, float *y)
{
    cpu_gemm(0, 0, rows, cols, in, x, kernel, 0.0f, z);
    cpu_activate(f, rows, cols, bias, z, y);
}

CPU_CLONES static void add_columns(int64_t rows, int64_t cols, const float *x, float beta,
                                   float *sums)
{
    if (beta == 0.0f)
        memset(sums, 0, (size_t)cols * sizeof *sums);
    for (int64_t r = 0; r < rows; r++, x += cols) {
        CPU_INDEPENDENT
        for (int64_t c = 0; c < cols; c++)
            sums[c] += x[c];
    }
}

static void cpu_dense_backward_kernel(int64_t rows, int64_t cols, int64_t in, const float *x,
                                      const float *dz, float beta, float *d_kernel, float *d_bias)
{
    if (d_bias)
        add_columns(rows, cols, dz, beta, d_bias);
    cpu_gemm(1, 0, in, cols, rows, x, dz, beta, d_kernel);
}

const struct ops ops_cpu = {
    .name = "cpu",
    .is_host = 1,
    .open = cpu_open,
    .close = cpu_nothing,
    .finish = cpu_finish,
    .workspace = cpu_workspace,
    .used = cpu_used,
    .room = cpu_room,
    .alloc = cpu_alloc,
    .release = free,
    .alloc_host = mem_zalloc,
    .release_host = free,
    .zero = cpu_zero,
    .copy = cpu_copy,
    .upload = cpu_copy,
    .download = cpu_copy,
    .fetch = cpu_copy,
    .upload_beside = cpu_copy,
    .join_uploads = cpu_nothing,
    .start = cpu_nothing,
    .to_bfloat16 = cpu_to_bfloat16,
    .from_bfloat16 = cpu_from_bfloat16,
    .round_bfloat16 = cpu_round_bfloat16,
    .add = cpu_add,
    .add_f64 = cpu_add_f64,
    .gemm = cpu_gemm,
    .dense = cpu_dense,
    .dense_backward_kernel = cpu_dense_backward_kernel,
    .activate = cpu_activate,
    .activate_backward = cpu_activate_backward,
    .affine = cpu_affine,
    .dropout = cpu_dropout,
    .pack = cpu_pack,
    .find_rows = cpu_find_rows,
    .pack_rows = cpu_pack_rows,
    .sum_rows = cpu_sum_rows,
    .add_packed = cpu_add_packed,
    .copy_columns = cpu_copy_columns,
    .conv = cpu_conv,
    .conv_backward_kernel = cpu_conv_backward_kernel,
    .conv_backward_input = cpu_conv_backward_input,
    .max_pool = cpu_max_pool,
    .mean_pool = cpu_mean_pool,
    .max_pool_backward = cpu_max_pool_backward,
    .mean_pool_backward = cpu_mean_pool_backward,
    .gather = cpu_gather,
    .scatter_add = cpu_scatter_add,
    .batch_moments = cpu_batch_moments,
    .batch_stats = cpu_batch_stats,
    .moving_stats = cpu_moving_stats,
    .update_moving = cpu_update_moving,
    .batch_normalize = cpu_batch_normalize,
    .batch_norm_sums = cpu_batch_norm_sums,
    .batch_norm_backward = cpu_batch_norm_backward,
    .normalize = cpu_normalize,
    .normalize_backward = cpu_normalize_backward,
    .loss = cpu_loss,
    .sum_squares = cpu_sum_squares,
    .sum_squares_exactly = cpu_sum_squares_exactly,
    .adam = cpu_adam,
    .sgd = cpu_sgd,
    .adam_bfloat16 = cpu_adam_bfloat16,
    .sgd_bfloat16 = cpu_sgd_bfloat16,
    .outer_step = cpu_outer_step,
};
