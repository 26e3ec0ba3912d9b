/* ops_batch_norm.cu: batch normalisation by columns. Sums are float64, of chunks of rows and then
 * of the chunks (reduce.h); elements are worked on by threads that keep to their columns and walk
 * down the rows. */
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/reduce.h"
#include "trainer/cuda/index.h"

/* ---- sums ---- */

struct moments {
    typedef double sum;
    static constexpr int count = 2;
    const float *x;
    int64_t cols;
    __device__ void at(int64_t row, int64_t col, double add[count]) const
    {
        double v = static_cast<double>(x[row * cols + col]);
        add[0] = v;
        add[1] = v * v;
    }
};

struct gradients {
    typedef double sum;
    static constexpr int count = 2;
    const float *x, *stats, *dy;
    int64_t cols;
    __device__ void at(int64_t row, int64_t col, double add[count]) const
    {
        double g = static_cast<double>(dy[row * cols + col]);
        float h = (x[row * cols + col] - stats[col]) * stats[cols + col];
        add[0] = g;
        add[1] = g * static_cast<double>(h);
    }
};

void cuda_batch_moments(int64_t rows, int64_t cols, const float *x, double *sums)
{
    struct columns_to_doubles sink = {sums, cols};
    column_sums(moments{x, cols}, rows, cols, sink);
    device_scratch_done();
}

void cuda_batch_norm_sums(const struct batch_norm_args *a, const float *dy, double *sums)
{
    struct columns_to_doubles sink = {sums, a->cols};
    column_sums(gradients{a->x, a->stats, dy, a->cols}, a->rows, a->cols, sink);
    device_scratch_done();
}

/* ---- statistics ---- */

__global__ static void stats_of_sums(int64_t cols, const double *sums, double count, double epsilon,
                                     float *stats)
{
    GRID_STRIDE(c, cols)
    {
        struct elem_moments m = elem_moments_of(sums[c], sums[cols + c], count);
        stats[c] = static_cast<float>(m.mean);
        stats[cols + c] = elem_rstd(m.variance, epsilon);
    }
}

__global__ static void stats_of_moving(int64_t cols, const float *mean, const float *variance,
                                       double epsilon, float *stats)
{
    GRID_STRIDE(c, cols)
    {
        stats[c] = mean[c];
        stats[cols + c] = elem_rstd(static_cast<double>(variance[c]), epsilon);
    }
}

__device__ __forceinline__ float moved(float old, double by, double momentum)
{
    return static_cast<float>(static_cast<double>(old) * momentum + by * (1.0 - momentum));
}

__global__ static void move_stats(int64_t cols, const double *sums, double count, double momentum,
                                  float *mean, float *variance)
{
    GRID_STRIDE(c, cols)
    {
        struct elem_moments m = elem_moments_of(sums[c], sums[cols + c], count);
        mean[c] = moved(mean[c], m.mean, momentum);
        variance[c] = moved(variance[c], m.variance, momentum);
    }
}

void cuda_batch_stats(int64_t cols, const double *sums, double count, double epsilon, float *stats)
{
    if (cols > 0)
        TAPE_LAUNCH(stats_of_sums, tape_grid(cols), TAPE_THREADS, 0, cols, sums, count, epsilon,
                    stats);
}

void cuda_moving_stats(int64_t cols, const float *mean, const float *variance, double epsilon,
                       float *stats)
{
    if (cols > 0)
        TAPE_LAUNCH(stats_of_moving, tape_grid(cols), TAPE_THREADS, 0, cols, mean, variance,
                    epsilon, stats);
}

void cuda_update_moving(int64_t cols, const double *sums, double count, double momentum,
                        float *mean, float *variance)
{
    if (cols > 0)
        TAPE_LAUNCH(move_stats, tape_grid(cols), TAPE_THREADS, 0, cols, sums, count, momentum, mean,
                    variance);
}

/* ---- elements ---- */

/* A block of threads over [rows, vectors of columns]: a power of two of them side by side, so that
 * few columns leave few threads idle, the others in further rows. */
struct columns {
    int64_t rows, cols;
    int side; /* threads side by side */
};

#define ROWS_EACH   8 /* rows of a thread at least, for what it computes of its columns first */
#define MOST_BLOCKS 4096

static struct columns columns_of(int64_t rows, int64_t cols, int vector)
{
    struct columns c = {rows, cols, 1};
    while (c.side < TAPE_THREADS && c.side < cols / vector)
        c.side *= 2;
    return c;
}

static dim3 columns_grid(const struct columns *c, int vector)
{
    int64_t lines = TAPE_THREADS / c->side * ROWS_EACH;
    int64_t wide = (c->cols / vector + c->side - 1) / c->side;
    int64_t high = (c->rows + lines - 1) / lines, most = MOST_BLOCKS / wide;
    most = most < 1 ? 1 : most;
    return dim3(static_cast<unsigned>(wide), static_cast<unsigned>(high < most ? high : most));
}

/* This thread's first column of V, its first row, and how far it is to the next one. */
template <int V> __device__ __forceinline__ int64_t own_column(const struct columns &c)
{
    return (static_cast<int64_t>(blockIdx.x) * c.side + threadIdx.x % c.side) * V;
}

__device__ __forceinline__ int64_t own_row(const struct columns &c)
{
    return static_cast<int64_t>(blockIdx.y) * (blockDim.x / c.side) + threadIdx.x / c.side;
}

__device__ __forceinline__ int64_t row_step(const struct columns &c)
{
    return static_cast<int64_t>(gridDim.y) * (blockDim.x / c.side);
}

/* from [V], or V times `other` where it is NULL */
template <int V>
__device__ __forceinline__ vector<float, V> values_or(const float *from, float other)
{
    vector<float, V> v;
    for (int k = 0; k < V; k++)
        v.v[k] = from ? from[k] : other;
    return v;
}

template <int V>
__global__ static void normalize_columns(struct columns c, const float *x, const float *stats,
                                         const float *gamma, const float *beta, float *y)
{
    int64_t col = own_column<V>(c);
    if (col >= c.cols)
        return;
    vector<float, V> mean = values_or<V>(stats + col, 0.0f);
    vector<float, V> rstd = values_or<V>(stats + c.cols + col, 0.0f);
    vector<float, V> scale = values_or<V>(gamma ? gamma + col : NULL, 1.0f);
    vector<float, V> shift = values_or<V>(beta ? beta + col : NULL, 0.0f);
    for (int64_t r = own_row(c); r < c.rows; r += row_step(c)) {
        vector<float, V> v = load<V>(x + r * c.cols + col);
        for (int k = 0; k < V; k++)
            v.v[k] = elem_normalize(v.v[k], mean.v[k], rstd.v[k], scale.v[k], shift.v[k]);
        store(y + r * c.cols + col, v);
    }
}

void cuda_batch_normalize(const struct batch_norm_args *a, float *y)
{
    int vector = floats_at_once(a->cols, a->x, y);
    struct columns c = columns_of(a->rows, a->cols, vector);
    if (a->rows == 0 || a->cols == 0)
        return;
    if (vector == 4)
        TAPE_LAUNCH(normalize_columns<4>, columns_grid(&c, 4), TAPE_THREADS, 0, c, a->x, a->stats,
                    a->gamma, a->beta, y);
    else
        TAPE_LAUNCH(normalize_columns<1>, columns_grid(&c, 1), TAPE_THREADS, 0, c, a->x, a->stats,
                    a->gamma, a->beta, y);
}

/* What the sums are to a column: means over what its statistics are of; none without sums. */
struct column_sums_of {
    const double *sums; /* [2, cols], or NULL */
    double count;
};

template <int V>
__device__ __forceinline__ vector<float, V> means_of(const struct column_sums_of &s, int64_t at,
                                                     const vector<float, V> &gamma)
{
    vector<float, V> mean = {};
    for (int k = 0; s.sums && k < V; k++)
        mean.v[k] = static_cast<float>(s.sums[at + k] / s.count * static_cast<double>(gamma.v[k]));
    return mean;
}

template <int V>
__global__ static void derive_columns(struct columns c, const float *x, const float *stats,
                                      const float *gamma, struct column_sums_of sums,
                                      const float *dy, float *dx)
{
    int64_t col = own_column<V>(c);
    if (col >= c.cols)
        return;
    vector<float, V> mean = values_or<V>(stats + col, 0.0f);
    vector<float, V> rstd = values_or<V>(stats + c.cols + col, 0.0f);
    vector<float, V> scale = values_or<V>(gamma ? gamma + col : NULL, 1.0f);
    vector<float, V> mean_s = means_of<V>(sums, col, scale);
    vector<float, V> mean_sh = means_of<V>(sums, c.cols + col, scale);
    for (int64_t r = own_row(c); r < c.rows; r += row_step(c)) {
        vector<float, V> v = load<V>(x + r * c.cols + col), d = load<V>(dy + r * c.cols + col);
        for (int k = 0; k < V; k++)
            d.v[k] = elem_normalize_derivative((v.v[k] - mean.v[k]) * rstd.v[k], rstd.v[k],
                                               d.v[k] * scale.v[k], mean_s.v[k], mean_sh.v[k]);
        store(dx + r * c.cols + col, d);
    }
}

static void own_gradients(const struct batch_norm_args *a, const float *dy, float accumulate,
                          float *d_gamma, float *d_beta)
{
    struct columns_to_floats<2> sink = {
        {d_beta, d_gamma}, accumulate
    };
    column_sums(gradients{a->x, a->stats, dy, a->cols}, a->rows, a->cols, sink);
    device_scratch_done();
}

void cuda_batch_norm_backward(const struct batch_norm_args *a, const float *dy, const double *sums,
                              double count, float *dx, float accumulate, float *d_gamma,
                              float *d_beta)
{
    struct column_sums_of of = {sums, count};
    if (d_gamma || d_beta)
        own_gradients(a, dy, accumulate, d_gamma, d_beta);
    if (!dx || a->rows == 0 || a->cols == 0)
        return;
    int vector = floats_at_once(a->cols, a->x, dy, static_cast<const float *>(dx));
    struct columns c = columns_of(a->rows, a->cols, vector);
    if (vector == 4)
        TAPE_LAUNCH(derive_columns<4>, columns_grid(&c, 4), TAPE_THREADS, 0, c, a->x, a->stats,
                    a->gamma, of, dy, dx);
    else
        TAPE_LAUNCH(derive_columns<1>, columns_grid(&c, 1), TAPE_THREADS, 0, c, a->x, a->stats,
                    a->gamma, of, dy, dx);
}
