/* ops_cpu_batch_norm.c: batch normalisation by columns, row by row; sums are float64, so that they
 * can be taken without knowing the mean, and hardly depend on how the batch is cut.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/cpu_loops.h"
#include "trainer/ops_cpu.h"

/* Columns at a time, so that the sums of a block stay in the first cache. */
#define COLS 256

CPU_CLONES static void add_moments(int64_t rows, int64_t cols, int64_t width, const float *x,
                                   double *restrict sum, double *restrict squares)
{
    for (int64_t r = 0; r < rows; r++, x += cols)
        for (int64_t c = 0; c < width; c++) {
            double v = (double)x[c];
            sum[c] += v;
            squares[c] += v * v;
        }
}

void cpu_batch_moments(int64_t rows, int64_t cols, const float *x, double *sums)
{
    memset(sums, 0, 2 * (size_t)cols * sizeof *sums);
    for (int64_t c = 0; c < cols; c += COLS)
        add_moments(rows, cols, cols - c < COLS ? cols - c : COLS, x + c, sums + c,
                    sums + cols + c);
}

void cpu_batch_stats(int64_t cols, const double *sums, double count, double epsilon, float *stats)
{
    for (int64_t c = 0; c < cols; c++) {
        struct elem_moments m = elem_moments_of(sums[c], sums[cols + c], count);
        stats[c] = (float)m.mean;
        stats[cols + c] = elem_rstd(m.variance, epsilon);
    }
}

void cpu_moving_stats(int64_t cols, const float *mean, const float *variance, double epsilon,
                      float *stats)
{
    for (int64_t c = 0; c < cols; c++) {
        stats[c] = mean[c];
        stats[cols + c] = elem_rstd((double)variance[c], epsilon);
    }
}

void cpu_update_moving(int64_t cols, const double *sums, double count, double momentum, float *mean,
                       float *variance)
{
    for (int64_t c = 0; c < cols; c++) {
        struct elem_moments m = elem_moments_of(sums[c], sums[cols + c], count);
        mean[c] = (float)((double)mean[c] * momentum + m.mean * (1.0 - momentum));
        variance[c] = (float)((double)variance[c] * momentum + m.variance * (1.0 - momentum));
    }
}

CPU_CLONES static void normalize_rows(const struct batch_norm_args *a, const float *restrict gamma,
                                      const float *restrict beta, float *y)
{
    const float *mean = a->stats, *rstd = a->stats + a->cols, *x = a->x;
    for (int64_t r = 0; r < a->rows; r++, x += a->cols, y += a->cols) {
        CPU_INDEPENDENT
        for (int64_t c = 0; c < a->cols; c++)
            y[c] = elem_normalize(x[c], mean[c], rstd[c], gamma ? gamma[c] : 1.0f,
                                  beta ? beta[c] : 0.0f);
    }
}

void cpu_batch_normalize(const struct batch_norm_args *a, float *y)
{
    normalize_rows(a, a->gamma, a->beta, y);
}

CPU_CLONES static void add_gradients(const struct batch_norm_args *a, int64_t c0, int64_t width,
                                     const float *dy, double *restrict sum, double *restrict dot)
{
    const float *mean = a->stats + c0, *rstd = mean + a->cols, *x = a->x + c0;
    for (int64_t r = 0; r < a->rows; r++, x += a->cols, dy += a->cols)
        for (int64_t c = 0; c < width; c++) {
            double g = (double)dy[c];
            sum[c] += g;
            dot[c] += g * (double)((x[c] - mean[c]) * rstd[c]);
        }
}

void cpu_batch_norm_sums(const struct batch_norm_args *a, const float *dy, double *sums)
{
    memset(sums, 0, 2 * (size_t)a->cols * sizeof *sums);
    for (int64_t c = 0; c < a->cols; c += COLS)
        add_gradients(a, c, a->cols - c < COLS ? a->cols - c : COLS, dy + c, sums + c,
                      sums + a->cols + c);
}

static void add_or_write(int64_t n, const double *from, float accumulate, float *to)
{
    for (int64_t c = 0; to && c < n; c++)
        to[c] = (accumulate == 0.0f ? 0.0f : to[c]) + (float)from[c];
}

static void own_gradients(const struct batch_norm_args *a, const float *dy, float accumulate,
                          float *d_gamma, float *d_beta)
{
    for (int64_t c = 0; c < a->cols; c += COLS) {
        double sums[2][COLS] = {{0}};
        int64_t n = a->cols - c < COLS ? a->cols - c : COLS;
        add_gradients(a, c, n, dy + c, sums[0], sums[1]);
        add_or_write(n, sums[1], accumulate, d_gamma ? d_gamma + c : NULL);
        add_or_write(n, sums[0], accumulate, d_beta ? d_beta + c : NULL);
    }
}

/* Columns [c0, c0 + width); `means` are of dy and dy h over what the statistics are of. */
CPU_CLONES static void derive_columns(const struct batch_norm_args *a, int64_t c0, int64_t width,
                                      const float *means, const float *dy, float *dx)
{
    const float *mean = a->stats + c0, *rstd = mean + a->cols, *x = a->x + c0;
    const float *mean_s = means, *mean_sh = means + COLS;
    const float *gamma = means + 2 * COLS;
    for (int64_t r = 0; r < a->rows; r++, x += a->cols, dy += a->cols, dx += a->cols) {
        CPU_INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            dx[c] = elem_normalize_derivative((x[c] - mean[c]) * rstd[c], rstd[c], dy[c] * gamma[c],
                                              mean_s[c], mean_sh[c]);
    }
}

static void fill_means(const struct batch_norm_args *a, int64_t c0, int64_t width,
                       const double *sums, double count, float *means)
{
    for (int64_t c = 0; c < width; c++) {
        double gamma = a->gamma ? (double)a->gamma[c0 + c] : 1.0;
        means[c] = sums ? (float)(sums[c0 + c] / count * gamma) : 0.0f;
        means[COLS + c] = sums ? (float)(sums[a->cols + c0 + c] / count * gamma) : 0.0f;
        means[2 * COLS + c] = (float)gamma;
    }
}

void cpu_batch_norm_backward(const struct batch_norm_args *a, const float *dy, const double *sums,
                             double count, float *dx, float accumulate, float *d_gamma,
                             float *d_beta)
{
    if (d_gamma || d_beta)
        own_gradients(a, dy, accumulate, d_gamma, d_beta);
    for (int64_t c = 0; dx && c < a->cols; c += COLS) {
        float means[3 * COLS];
        int64_t n = a->cols - c < COLS ? a->cols - c : COLS;
        fill_means(a, c, n, sums, count, means);
        derive_columns(a, c, n, means, dy + c, dx + c);
    }
}
