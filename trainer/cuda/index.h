/* index.h: for kernels whose threads find their place in several dimensions from one number.
 *
 * Kernels come with 1 and with 4 floats a thread: 4 where the innermost size and every pointer
 * allow it (floats_at_once()). Numbers of elements are 32 bits where they suffice: a template's
 * Index is uint32_t or uint64_t, VECTOR_LAUNCH chooses.
 */
#ifndef TRAINYARD_TRAINER_CUDA_INDEX_H
#define TRAINYARD_TRAINER_CUDA_INDEX_H

#include "trainer/cuda/vector.h"

static inline int is_aligned(const void *p)
{
    return (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}

/* 4 if rows of `n` floats that begin at each of the pointers can be read as float4, else 1. */
template <class... P> int floats_at_once(int64_t n, const P *...p)
{
    return n % 4 == 0 && (is_aligned(p) && ...) ? 4 : 1;
}

/* ---- division by what the host knows ---- */

/* By multiplication: Granlund and Montgomery, Division by Invariant Integers, 1994. */
struct divisor {
    uint32_t by, factor, shift;
};

/* by < 2^31; 0, which nothing is divided by, is taken for 1. */
static inline struct divisor divisor_of(int64_t by)
{
    by = by < 1 ? 1 : by;
    struct divisor d = {static_cast<uint32_t>(by), 0, 0};
    while (static_cast<int64_t>(1) << d.shift < by)
        d.shift++;
    uint64_t above = (static_cast<uint64_t>(1) << d.shift) - d.by;
    d.factor = static_cast<uint32_t>((above << 32) / d.by + 1);
    return d;
}

__device__ __forceinline__ uint32_t quotient(uint32_t n, struct divisor d) /* n < 2^31 */
{
    return (static_cast<uint32_t>(static_cast<uint64_t>(n) * d.factor >> 32) + n) >> d.shift;
}

__device__ __forceinline__ uint64_t quotient(uint64_t n, struct divisor d)
{
    return n / d.by;
}

/* n becomes the quotient; returns the rest. */
template <class Index> __device__ __forceinline__ int take_rest(Index &n, struct divisor d)
{
    Index q = quotient(n, d);
    int rest = static_cast<int>(n - q * d.by);
    n = q;
    return rest;
}

/* for (Index i ...) over n elements by all threads of the grid. */
#define EACH_INDEX(Index, i, n)                                                                    \
    for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n);             \
         i += static_cast<Index>(gridDim.x) * blockDim.x)

/* VECTOR_LAUNCH(kernel, vector, n, args...): kernel<Index, 1 or 4>(args..., n) for n threads; does
 * nothing where n is 0. `vector` is what floats_at_once() said. */
#define VECTOR_LAUNCH(kernel, vector, n, ...)                                                      \
    do {                                                                                           \
        int64_t n_ = (n);                                                                          \
        int is_small_ = n_ < static_cast<int64_t>(1) << 31;                                        \
        uint32_t few_ = static_cast<uint32_t>(n_);                                                 \
        uint64_t many_ = static_cast<uint64_t>(n_);                                                \
        if (n_ == 0)                                                                               \
            break;                                                                                 \
        if ((vector) == 4 && is_small_)                                                            \
            TAPE_LAUNCH((kernel<uint32_t, 4>), tape_grid(n_), TAPE_THREADS, 0, __VA_ARGS__, few_); \
        else if ((vector) == 4)                                                                    \
            TAPE_LAUNCH((kernel<uint64_t, 4>), tape_grid(n_), TAPE_THREADS, 0, __VA_ARGS__,        \
                        many_);                                                                    \
        else if (is_small_)                                                                        \
            TAPE_LAUNCH((kernel<uint32_t, 1>), tape_grid(n_), TAPE_THREADS, 0, __VA_ARGS__, few_); \
        else                                                                                       \
            TAPE_LAUNCH((kernel<uint64_t, 1>), tape_grid(n_), TAPE_THREADS, 0, __VA_ARGS__,        \
                        many_);                                                                    \
    } while (0)

#endif
