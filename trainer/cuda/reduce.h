/* reduce.h: sums and their like over a warp, a block, the rows and the columns of an array, in an
 * order that depends on the shape alone: the same bits on every run and every GPU.
 * Structs that are passed to kernels have no padding: the tape compares arguments by their bytes.
 *
 * What is merged is any type T with a merge() that is associative and commutative but for rounding:
 *     struct add { template <class T> __device__ static T merge(T a, T b) ... };
 * and that shuffle_xor() can move between lanes.
 */
#ifndef TRAINYARD_TRAINER_CUDA_REDUCE_H
#define TRAINYARD_TRAINER_CUDA_REDUCE_H

#include "trainer/cuda/tape.h"

#define WARP      32
#define ALL_LANES 0xffffffffu
#define WARPS     (TAPE_THREADS / WARP) /* of a block */

/* ---- a warp, a block ---- */

template <class T> __device__ __forceinline__ T shuffle_xor(T x, int lanes)
{
    static_assert(std::is_arithmetic_v<T>, "a struct needs a shuffle_xor() of its own");
    return __shfl_xor_sync(ALL_LANES, x, lanes);
}

struct reduce_add {
    template <class T> __device__ __forceinline__ static T merge(T a, T b)
    {
        return a + b;
    }
};
struct reduce_max {
    template <class T> __device__ __forceinline__ static T merge(T a, T b)
    {
        return a > b ? a : b;
    }
};

/* Every lane's x merged, for every lane: the same bits, for a step merges the same two values. */
template <class Merge, class T> __device__ __forceinline__ T warp_reduce(T x)
{
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        x = Merge::merge(x, shuffle_xor(x, lanes));
    return x;
}

/* The same over a block of TAPE_THREADS, for every thread; all of them call it. */
template <class Merge, class T> __device__ __forceinline__ T block_reduce(T x)
{
    __shared__ T of_warp[WARPS];
    x = warp_reduce<Merge>(x);
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    x = of_warp[0];
    for (int w = 1; w < WARPS; w++)
        x = Merge::merge(x, of_warp[w]);
    __syncthreads(); /* of_warp is free again */
    return x;
}

/* ---- rows: a team of threads for each ---- */

/* A kernel that is a template over its team is written once for short rows, one warp each, and for
 * long ones, one block each:
 *     for (int64_t r = Team::first(); r < rows; r += Team::step())
 *         for (int64_t c = Team::lane(); c < cols; c += Team::size) ...
 *         sum = Team::template reduce<reduce_add>(sum);
 */
struct warp_team {
    static constexpr int size = WARP;
    static constexpr int per_block = WARPS;
    __device__ static int lane()
    {
        return static_cast<int>(threadIdx.x) % WARP;
    }
    __device__ static int64_t first()
    {
        return static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / WARP;
    }
    __device__ static int64_t step()
    {
        return static_cast<int64_t>(gridDim.x) * WARPS;
    }
    template <class Merge, class T> __device__ __forceinline__ static T reduce(T x)
    {
        return warp_reduce<Merge>(x);
    }
};

struct block_team {
    static constexpr int size = TAPE_THREADS;
    static constexpr int per_block = 1;
    __device__ static int lane()
    {
        return static_cast<int>(threadIdx.x);
    }
    __device__ static int64_t first()
    {
        return blockIdx.x;
    }
    __device__ static int64_t step()
    {
        return gridDim.x;
    }
    template <class Merge, class T> __device__ __forceinline__ static T reduce(T x)
    {
        return block_reduce<Merge>(x);
    }
};

#define TEAM_SHORT_ROW 1024 /* a warp's: up to 32 elements a lane */

static inline int team_is_warp(int64_t cols)
{
    return cols <= TEAM_SHORT_ROW;
}

/* Blocks that hold a row's results together depend on the shape alone; others may be more. */
#define TEAM_MAX_BLOCKS 2048

static inline dim3 team_grid(int64_t rows, int64_t cols)
{
    int64_t blocks = team_is_warp(cols) ? (rows + WARPS - 1) / WARPS : rows;
    return dim3(static_cast<unsigned>(blocks < TEAM_MAX_BLOCKS ? blocks : TEAM_MAX_BLOCKS));
}

/* TEAM_LAUNCH(name, rows, cols, args...): name<warp_team> or name<block_team>, `name` a template of
 * kernels. rows >= 1. */
#define TEAM_LAUNCH(name, rows, cols, ...)                                                         \
    do {                                                                                           \
        dim3 team_grid_ = team_grid(rows, cols);                                                   \
        if (team_is_warp(cols))                                                                    \
            TAPE_LAUNCH(name<warp_team>, team_grid_, TAPE_THREADS, 0, __VA_ARGS__);                \
        else                                                                                       \
            TAPE_LAUNCH(name<block_team>, team_grid_, TAPE_THREADS, 0, __VA_ARGS__);               \
    } while (0)

/* ---- columns: in chunks of rows, then the chunks ---- */

/* A Term is a small struct, passed to the kernel by value, that computes what is added up:
 *     struct term {
 *         typedef float sum;             // or double
 *         static constexpr int count = 2; // sums of a column
 *         __device__ void at(int64_t row, int64_t col, float add[count]) const;
 *     };
 * at() is called once for each element and may store something of it too.
 *
 * Sums are given to
 *     struct sink { __device__ void set(int64_t col, int which, sum total) const; };
 */
#define COLUMNS_WIDE   32 /* columns of a block; its 8 rows of threads take every eighth row */
#define COLUMNS_BLOCKS 1024

template <class Term>
__device__ __forceinline__ void column_chunk(const Term &term, int64_t rows, int64_t cols,
                                             int64_t chunk, typename Term::sum *total)
{
    __shared__ typename Term::sum part[WARPS][Term::count][COLUMNS_WIDE];
    int lane = static_cast<int>(threadIdx.x) % COLUMNS_WIDE;
    int line = static_cast<int>(threadIdx.x) / COLUMNS_WIDE;
    int64_t col = static_cast<int64_t>(blockIdx.x) * COLUMNS_WIDE + lane;
    int64_t begin = static_cast<int64_t>(blockIdx.y) * chunk;
    int64_t end = begin + chunk < rows ? begin + chunk : rows;
    typename Term::sum sum[Term::count] = {};
    for (int64_t r = begin + line; col < cols && r < end; r += WARPS) {
        typename Term::sum add[Term::count];
        term.at(r, col, add);
        for (int k = 0; k < Term::count; k++)
            sum[k] += add[k];
    }
    for (int k = 0; k < Term::count; k++)
        part[line][k][lane] = sum[k];
    __syncthreads();
    for (int k = 0; line == 0 && k < Term::count; k++) {
        total[k] = part[0][k][lane];
        for (int w = 1; w < WARPS; w++)
            total[k] += part[w][k][lane];
    }
}

template <class Term, class Sink>
__global__ static void columns_at_once(Term term, int64_t rows, int64_t cols, Sink sink)
{
    typename Term::sum total[Term::count] = {};
    int64_t col = static_cast<int64_t>(blockIdx.x) * COLUMNS_WIDE + threadIdx.x;
    column_chunk(term, rows, cols, rows, total);
    for (int k = 0; threadIdx.x < COLUMNS_WIDE && col < cols && k < Term::count; k++)
        sink.set(col, k, total[k]);
}

/* parts [chunks, count, cols] */
template <class Term>
__global__ static void columns_by_chunk(Term term, int64_t rows, int64_t cols, int64_t chunk,
                                        typename Term::sum *parts)
{
    typename Term::sum total[Term::count] = {};
    int64_t col = static_cast<int64_t>(blockIdx.x) * COLUMNS_WIDE + threadIdx.x;
    column_chunk(term, rows, cols, chunk, total);
    for (int k = 0; threadIdx.x < COLUMNS_WIDE && col < cols && k < Term::count; k++)
        parts[(static_cast<int64_t>(blockIdx.y) * Term::count + k) * cols + col] = total[k];
}

/* One warp for a column's sum: its lanes take every 32nd chunk. */
template <class Sum, int count, class Sink>
__global__ static void columns_of_chunks(int64_t chunks, int64_t cols, const Sum *parts, Sink sink)
{
    for (int64_t i = warp_team::first(); i < cols * count; i += warp_team::step()) {
        Sum sum = 0;
        for (int64_t c = warp_team::lane(); c < chunks; c += WARP)
            sum += parts[c * count * cols + i];
        sum = warp_reduce<reduce_add>(sum);
        if (warp_team::lane() == 0)
            sink.set(i % cols, static_cast<int>(i / cols), sum);
    }
}

/* Rows of a chunk: few enough for all blocks to be busy, at least 64; a function of the shape. */
static inline int64_t columns_chunk(int64_t rows, int64_t cols)
{
    int64_t wide = (cols + COLUMNS_WIDE - 1) / COLUMNS_WIDE;
    int64_t chunks = wide < COLUMNS_BLOCKS ? COLUMNS_BLOCKS / wide : 1;
    int64_t chunk = (rows + chunks - 1) / chunks;
    return chunk < 64 ? 64 : chunk;
}

/* Of [rows, cols], any of which may be 0: then every sum is 0. Takes at most COLUMNS_BLOCKS *
 * COLUMNS_WIDE * count sums of device_scratch(), which the caller gives back. */
template <class Term, class Sink>
void column_sums(const Term &term, int64_t rows, int64_t cols, const Sink &sink)
{
    typedef typename Term::sum sum;
    constexpr int count = Term::count;
    if (cols == 0)
        return;
    int64_t chunk = columns_chunk(rows, cols), chunks = (rows + chunk - 1) / chunk;
    dim3 grid(static_cast<unsigned>((cols + COLUMNS_WIDE - 1) / COLUMNS_WIDE),
              static_cast<unsigned>(chunks < 1 ? 1 : chunks));
    if (chunks <= 1) {
        TAPE_LAUNCH((columns_at_once<Term, Sink>), grid, TAPE_THREADS, 0, term, rows, cols, sink);
        return;
    }
    sum *parts = static_cast<sum *>(
        device_scratch(static_cast<size_t>(chunks * cols * count) * sizeof(sum)));
    TAPE_LAUNCH(columns_by_chunk<Term>, grid, TAPE_THREADS, 0, term, rows, cols, chunk, parts);
    TAPE_LAUNCH((columns_of_chunks<sum, count, Sink>), team_grid(cols * count, 1), TAPE_THREADS, 0,
                chunks, cols, parts, sink);
}

/* Sinks of float32 sums: to[which][col] = beta * itself + sum; NULL: not wanted. */
template <int count> struct columns_to_floats {
    float *to[count];
    double beta; /* a float32; so wide that nothing in a kernel's arguments is left unset */
    template <class Sum> __device__ void set(int64_t col, int which, Sum total) const
    {
        float *p = to[which];
        if (p)
            p[col] = (beta == 0.0 ? 0.0f : static_cast<float>(beta) * p[col]) +
                     static_cast<float>(total);
    }
};

/* Into [count, cols]. */
struct columns_to_doubles {
    double *to;
    int64_t cols;
    __device__ void set(int64_t col, int which, double total) const
    {
        to[which * cols + col] = total;
    }
};

#endif
