/* ops_norm.cu: layer normalisation. A team has a row, which it reads from memory once: the mean
 * comes first and then the squares of what is left, as on the CPU, so that nothing cancels; by then
 * the row lies in the cache. */
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/reduce.h"

template <class Team>
__global__ static void normalize_rows(int64_t rows, int64_t cols, float epsilon, const float *x,
                                      const float *gamma, const float *beta, float *stats, float *y)
{
    float inverse = 1.0f / static_cast<float>(cols);
    for (int64_t r = Team::first(); r < rows; r += Team::step()) {
        const float *row = x + r * cols;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t c = Team::lane(); c < cols; c += Team::size)
            sum += row[c];
        float mean = Team::template reduce<reduce_add>(sum) * inverse;
        for (int64_t c = Team::lane(); c < cols; c += Team::size)
            squares += (row[c] - mean) * (row[c] - mean);
        float variance = Team::template reduce<reduce_add>(squares) * inverse;
        float rstd = 1.0f / sqrtf(variance + epsilon);
        if (Team::lane() == 0) {
            stats[2 * r] = mean;
            stats[2 * r + 1] = rstd;
        }
        for (int64_t c = Team::lane(); c < cols; c += Team::size)
            y[r * cols + c] =
                elem_normalize(row[c], mean, rstd, gamma ? gamma[c] : 1.0f, beta ? beta[c] : 0.0f);
    }
}

void cuda_normalize(int64_t rows, int64_t cols, float epsilon, const float *x, const float *gamma,
                    const float *beta, float *stats, float *y)
{
    if (rows > 0)
        TEAM_LAUNCH(normalize_rows, rows, cols, rows, cols, epsilon, x, gamma, beta, stats, y);
}

/* ---- backward ---- */

namespace
{
struct backward {
    int64_t rows, cols;
    const float *x, *stats, *gamma, *dy;
    float *dx;

    /* As a term of columns' sums: of dy h and of dy. */
    typedef float sum;
    static constexpr int count = 2;
    __device__ void at(int64_t row, int64_t col, float *add) const
    {
        float d = dy[row * cols + col];
        add[0] = d * ((x[row * cols + col] - stats[2 * row]) * stats[2 * row + 1]);
        add[1] = d;
    }
};
} // namespace

/* One row; `own` [2, cols], of which a thread touches its columns alone, takes what it adds to the
 * sums of columns; NULL: not wanted. */
template <class Team>
__device__ __forceinline__ void backward_row(const backward &a, int64_t r, float *own)
{
    const float *x = a.x + r * a.cols, *dy = a.dy + r * a.cols;
    float mean = a.stats[2 * r], rstd = a.stats[2 * r + 1], sum = 0.0f, dot = 0.0f;
    for (int64_t c = Team::lane(); c < a.cols; c += Team::size) {
        float h = (x[c] - mean) * rstd, s = a.gamma ? dy[c] * a.gamma[c] : dy[c];
        sum += s;
        dot += s * h;
        if (own) {
            own[c] += dy[c] * h;
            own[a.cols + c] += dy[c];
        }
    }
    if (!a.dx)
        return;
    float mean_s = Team::template reduce<reduce_add>(sum) / static_cast<float>(a.cols);
    float mean_sh = Team::template reduce<reduce_add>(dot) / static_cast<float>(a.cols);
    for (int64_t c = Team::lane(); c < a.cols; c += Team::size) {
        float s = a.gamma ? dy[c] * a.gamma[c] : dy[c];
        a.dx[r * a.cols + c] =
            elem_normalize_derivative((x[c] - mean) * rstd, rstd, s, mean_s, mean_sh);
    }
}

template <class Team> __global__ static void normalize_rows_backward(backward a)
{
    for (int64_t r = Team::first(); r < a.rows; r += Team::step())
        backward_row<Team>(a, r, nullptr);
}

/* A block has `chunk` rows and their sums of columns, parts [blocks, 2, cols]: everything is read
 * once. Dynamic shared memory: [teams, 2, cols]. */
template <class Team>
__global__ static void normalize_chunks_backward(backward a, int64_t chunk, float *parts)
{
    DYNAMIC_SHARED(float, shared);
    int64_t wide = 2 * a.cols, begin = static_cast<int64_t>(blockIdx.x) * chunk;
    int64_t end = begin + chunk < a.rows ? begin + chunk : a.rows;
    int team = static_cast<int>(threadIdx.x) / Team::size;
    for (int64_t i = threadIdx.x; i < Team::per_block * wide; i += blockDim.x)
        shared[i] = 0.0f;
    __syncthreads();
    for (int64_t r = begin + team; r < end; r += Team::per_block)
        backward_row<Team>(a, r, shared + team * wide);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < wide; i += blockDim.x) {
        float sum = shared[i];
        for (int t = 1; t < Team::per_block; t++)
            sum += shared[t * wide + i];
        parts[blockIdx.x * wide + i] = sum;
    }
}

#define CHUNKS 512

static size_t shared_bytes(int64_t cols, int teams)
{
    return static_cast<size_t>(teams) * 2 * static_cast<size_t>(cols) * sizeof(float);
}

/* The sums of columns on the way of dx. */
static void backward_at_once(const backward &a, const columns_to_floats<2> &to)
{
    int64_t chunk = (a.rows + CHUNKS - 1) / CHUNKS;
    chunk = chunk < WARPS ? WARPS : chunk;
    int64_t chunks = (a.rows + chunk - 1) / chunk;
    float *parts =
        static_cast<float *>(device_scratch(static_cast<size_t>(chunks) * shared_bytes(a.cols, 1)));
    dim3 grid(static_cast<unsigned>(chunks));
    if (shared_bytes(a.cols, WARPS) <= TAPE_SHARED)
        TAPE_LAUNCH(normalize_chunks_backward<warp_team>, grid, TAPE_THREADS,
                    shared_bytes(a.cols, WARPS), a, chunk, parts);
    else
        TAPE_LAUNCH(normalize_chunks_backward<block_team>, grid, TAPE_THREADS,
                    shared_bytes(a.cols, 1), a, chunk, parts);
    TAPE_LAUNCH((columns_of_chunks<float, 2, columns_to_floats<2>>), team_grid(2 * a.cols, 1),
                TAPE_THREADS, 0, chunks, a.cols, parts, to);
}

void cuda_normalize_backward(int64_t rows, int64_t cols, const float *x, const float *stats,
                             const float *gamma, const float *dy, float *dx, float accumulate,
                             float *d_gamma, float *d_beta)
{
    backward a = {rows, cols, x, stats, gamma, dy, dx};
    columns_to_floats<2> to = {{d_gamma, d_beta}, accumulate};
    int has_sums = d_gamma || d_beta, has_rows = rows > 0 && cols > 0;
    if (has_sums && dx && has_rows && shared_bytes(cols, 1) <= TAPE_SHARED) {
        backward_at_once(a, to);
    } else {
        if (has_sums)
            column_sums(a, rows, cols, to);
        if (dx && has_rows)
            TEAM_LAUNCH(normalize_rows_backward, rows, cols, a);
    }
    device_scratch_done();
}
