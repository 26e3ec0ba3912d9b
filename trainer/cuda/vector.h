/* vector.h: elementwise kernels, that take sixteen bytes a thread and array where addresses allow.
 *
 * What is done to an element is a small struct, passed to the kernel by value:
 *     struct twice {
 *         const float *x;
 *         float *y;
 *         template <int W> __device__ void at(int64_t i) const  // elements [i, i + W)
 *         {
 *             auto v = load<W>(x + i);
 *             for (int k = 0; k < W; k++)
 *                 v.v[k] *= 2;
 *             store(y + i, v);
 *         }
 *     };
 *     map<4>(twice{x, y}, n, vector_phase<4>(x, y));
 */
#ifndef TRAINYARD_TRAINER_CUDA_VECTOR_H
#define TRAINYARD_TRAINER_CUDA_VECTOR_H

#include "trainer/cuda/tape.h"

template <class T, int W> struct alignas(sizeof(T) * W) vector {
    T v[W];
};

template <int W, class T> __device__ __forceinline__ vector<T, W> load(const T *p)
{
    return *reinterpret_cast<const vector<T, W> *>(p);
}

template <int W, class T> __device__ __forceinline__ void store(T *p, vector<T, W> x)
{
    *reinterpret_cast<vector<T, W> *>(p) = x;
}

/* Elements by which the arrays stand behind a multiple of W of theirs, [0, W); -1 where they do not
 * agree. NULL agrees with all. */
template <int W, class... T> int vector_phase(const T *...p)
{
    int phase = -2;
    auto see = [&](uintptr_t at, size_t size) {
        int own = at % size ? -1 : static_cast<int>(at / size % W);
        if (at && phase != -1)
            phase = phase == -2 || phase == own ? own : -1;
    };
    (see(reinterpret_cast<uintptr_t>(p), sizeof(T)), ...);
    return phase == -2 ? 0 : phase;
}

/* A thread's work is small and blocks are many, so that multiprocessors end together however many
 * of a kernel's blocks they hold. */
#define MAP_BLOCKS 8192

static inline dim3 map_grid(int64_t threads)
{
    int64_t blocks = (threads + TAPE_THREADS - 1) / TAPE_THREADS;
    return dim3(static_cast<unsigned>(blocks < MAP_BLOCKS ? blocks : MAP_BLOCKS));
}

/* ---- n elements in a row ---- */

/* `head` elements come before the first vector; they and the tail are block 0's. */
template <int W, class F> __global__ static void map_kernel(F f, int64_t n, int head)
{
    int64_t vectors = (n - head) / W, rest = n - vectors * W;
    GRID_STRIDE(i, vectors)
    f.template at<W>(head + i * W);
    int64_t i = threadIdx.x;
    if (blockIdx.x == 0 && i < rest)
        f.template at<1>(i < head ? i : i + vectors * W);
}

template <class F> __global__ static void map_singly(F f, int64_t n)
{
    GRID_STRIDE(i, n)
    f.template at<1>(i);
}

/* `phase`: vector_phase() of all arrays. */
template <int W, class F> void map(const F &f, int64_t n, int phase)
{
    int head = phase > 0 ? W - phase : 0;
    if (n == 0)
        return;
    if (phase < 0 || n < 2 * W)
        TAPE_LAUNCH(map_singly<F>, map_grid(n), TAPE_THREADS, 0, f, n);
    else
        TAPE_LAUNCH((map_kernel<W, F>), map_grid((n - head) / W), TAPE_THREADS, 0, f, n, head);
}

/* ---- rows of columns, without a division ---- */

/* A block is 2^shift columns wide. */
template <int W, class F>
__global__ static void map_rows_kernel(F f, int64_t rows, int64_t cols, int shift)
{
    int64_t wide = cols / W, x = threadIdx.x & ((1u << shift) - 1), y = threadIdx.x >> shift;
    for (int64_t r = static_cast<int64_t>(blockIdx.y) * (TAPE_THREADS >> shift) + y; r < rows;
         r += static_cast<int64_t>(gridDim.y) * (TAPE_THREADS >> shift))
        for (int64_t c = (static_cast<int64_t>(blockIdx.x) << shift) + x; c < wide;
             c += static_cast<int64_t>(gridDim.x) << shift)
            f.template at<W>(r, c * W);
}

template <int W, class F> void map_rows_by(const F &f, int64_t rows, int64_t cols)
{
    int64_t wide = cols / W;
    int shift = 0;
    while (shift < 8 && (1 << shift) < wide)
        shift++;
    int64_t x = (wide + (1 << shift) - 1) >> shift, tall = TAPE_THREADS >> shift;
    int64_t y = (rows + tall - 1) / tall;
    x = x < MAP_BLOCKS ? x : MAP_BLOCKS;
    y = y < MAP_BLOCKS / x ? y : MAP_BLOCKS / x;
    TAPE_LAUNCH((map_rows_kernel<W, F>), dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)),
                TAPE_THREADS, 0, f, rows, cols, shift);
}

/* f.at<W>(row, column) for all; `aligned`: every row of every array begins at a vector. */
template <int W, class F> void map_rows(const F &f, int64_t rows, int64_t cols, int aligned)
{
    if (rows == 0 || cols == 0)
        return;
    if (aligned && cols % W == 0)
        map_rows_by<W>(f, rows, cols);
    else
        map_rows_by<1>(f, rows, cols);
}

#endif
