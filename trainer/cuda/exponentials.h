/* exponentials.h: the sum of e^x over a row, taken in pieces, against the largest x so far. */
#ifndef TRAINYARD_TRAINER_CUDA_EXPONENTIALS_H
#define TRAINYARD_TRAINER_CUDA_EXPONENTIALS_H

#include "trainer/cuda/reduce.h"

/* The largest of what was seen, and the sum of e^(x - max). Unlike elem_softmax, nothing seen and
 * -infinity go with anything. */
struct exponentials {
    float max, sum;
};

#define EXPONENTIALS_OF_NOTHING (exponentials{-INFINITY, 0.0f})

/* One x more, for one exponential. */
__device__ __forceinline__ exponentials exponentials_see(exponentials s, float x)
{
    float d = x - s.max, e = elem_exp(d > 0.0f ? -d : d);
    e = x == s.max ? 1.0f : e; /* two infinities, too */
    return {elem_max(x, s.max), d > 0.0f ? s.sum * e + 1.0f : s.sum + e};
}

struct exponentials_merge {
    __device__ __forceinline__ static exponentials merge(exponentials a, exponentials b)
    {
        float max = elem_max(a.max, b.max);
        float x = a.max == max ? a.sum : a.sum * elem_exp(a.max - max);
        float y = b.max == max ? b.sum : b.sum * elem_exp(b.max - max);
        return {max, x + y};
    }
};

__device__ __forceinline__ exponentials shuffle_xor(exponentials x, int lanes)
{
    return {shuffle_xor(x.max, lanes), shuffle_xor(x.sum, lanes)};
}

/* The row's sum: NaN where its largest value is infinite, as the sum over all would be. */
__device__ __forceinline__ float exponentials_sum(exponentials s)
{
    return s.sum + (s.max - s.max);
}

#endif
