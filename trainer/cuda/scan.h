/* scan.h: running sums of counts, and the chosen elements of an array in their order. All are
 * integers: any order of blocks gives the same ones.
 */
#ifndef TRAINYARD_TRAINER_CUDA_SCAN_H
#define TRAINYARD_TRAINER_CUDA_SCAN_H

#include "trainer/cuda/reduce.h"

__device__ __forceinline__ uint32_t ones_in(uint32_t x)
{
    x -= x >> 1 & 0x55555555u;
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    return ((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
}

/* The lanes before this one. */
__device__ __forceinline__ uint32_t lanes_before(void)
{
    return (1u << threadIdx.x % WARP) - 1u;
}

/* The sum of x over the threads before this one, of a block of TAPE_THREADS, all of which call it;
 * *ret_total: over all. */
__device__ __forceinline__ uint32_t block_sum_before(uint32_t x, uint32_t *ret_total)
{
    __shared__ uint32_t of_warp[WARPS];
    uint32_t lane = threadIdx.x % WARP, own = x, before = 0, total = 0;
    for (uint32_t step = 1; step < WARP; step *= 2) {
        uint32_t y = __shfl_up_sync(ALL_LANES, x, step);
        x += lane >= step ? y : 0u;
    }
    if (lane == WARP - 1)
        of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    for (uint32_t w = 0; w < WARPS; w++) {
        before += w < threadIdx.x / WARP ? of_warp[w] : 0u;
        total += of_warp[w];
    }
    __syncthreads(); /* of_warp is free again */
    *ret_total = total;
    return before + x - own;
}

#define SCAN_EACH 8 /* counts of a thread */

/* counts [n] become the sums of those before each, and counts[n] that of all. One block. */
__global__ static void scan_counts(int64_t n, uint32_t *counts)
{
    uint32_t carry = 0, total;
    for (int64_t at = 0; at < n; at += TAPE_THREADS * SCAN_EACH) {
        int64_t first = at + threadIdx.x * SCAN_EACH;
        uint32_t own[SCAN_EACH], sum = 0;
        for (int k = 0; k < SCAN_EACH; k++) {
            own[k] = first + k < n ? counts[first + k] : 0u;
            sum += own[k];
        }
        uint32_t before = carry + block_sum_before(sum, &total);
        for (int k = 0; k < SCAN_EACH && first + k < n; k++) {
            counts[first + k] = before;
            before += own[k];
        }
        carry += total;
    }
    if (threadIdx.x == 0)
        counts[n] = carry;
}

static inline void scan(int64_t n, uint32_t *counts)
{
    TAPE_LAUNCH(scan_counts, 1, TAPE_THREADS, 0, n, counts);
}

/* ---- choosing ---- */

/* A Choice tells of element i, by
 *     __device__ int of(int64_t i, const uint32_t *state) const
 * whether it is chosen: 0 no, CHOICE_YES, or CHOICE_EQUAL: if it is among the first state[1] such.
 * A warp takes CHOICE_TILE elements, 32 at a time. Memory is given as
 *     counts [2, tiles + 1]: of both kinds by tile, then of those in the tiles before.
 */
#define CHOICE_YES   1
#define CHOICE_EQUAL 2
#define CHOICE_TILE  2048

static inline int64_t choice_tiles(int64_t n)
{
    return (n + CHOICE_TILE - 1) / CHOICE_TILE;
}

template <class Choice>
__global__ static void count_choices(Choice choice, const uint32_t *state, int64_t n,
                                     uint32_t *counts)
{
    int64_t tiles = (n + CHOICE_TILE - 1) / CHOICE_TILE;
    for (int64_t t = warp_team::first(); t < tiles; t += warp_team::step()) {
        uint32_t yes = 0, equal = 0;
        for (int64_t i = t * CHOICE_TILE; i < (t + 1) * CHOICE_TILE && i < n; i += WARP) {
            int64_t own = i + warp_team::lane();
            int kind = own < n ? choice.of(own, state) : 0;
            yes += ones_in(__ballot_sync(ALL_LANES, kind == CHOICE_YES));
            equal += ones_in(__ballot_sync(ALL_LANES, kind == CHOICE_EQUAL));
        }
        if (warp_team::lane() == 0) {
            counts[t] = yes;
            counts[tiles + 1 + t] = equal;
        }
    }
}

/* sink.put(k, i): element i is the k-th one chosen. */
template <class Choice, class Sink>
__global__ static void put_choices(Choice choice, const uint32_t *state, int64_t n,
                                   const uint32_t *counts, Sink sink)
{
    int64_t tiles = (n + CHOICE_TILE - 1) / CHOICE_TILE;
    for (int64_t t = warp_team::first(); t < tiles; t += warp_team::step()) {
        uint32_t yes = counts[t], equal = counts[tiles + 1 + t], room = state[1];
        for (int64_t i = t * CHOICE_TILE; i < (t + 1) * CHOICE_TILE && i < n; i += WARP) {
            int64_t own = i + warp_team::lane();
            int kind = own < n ? choice.of(own, state) : 0;
            uint32_t all_yes = __ballot_sync(ALL_LANES, kind == CHOICE_YES);
            uint32_t all_equal = __ballot_sync(ALL_LANES, kind == CHOICE_EQUAL);
            uint32_t yes_before = yes + ones_in(all_yes & lanes_before());
            uint32_t equal_before = equal + ones_in(all_equal & lanes_before());
            if (kind == CHOICE_YES || (kind == CHOICE_EQUAL && equal_before < room))
                sink.put(yes_before + min(equal_before, room), own);
            yes += ones_in(all_yes);
            equal += ones_in(all_equal);
        }
    }
}

static inline size_t choice_bytes(int64_t n)
{
    return static_cast<size_t>(2 * (choice_tiles(n) + 1)) * sizeof(uint32_t);
}

/* n >= 1. `state` is the device's. */
template <class Choice, class Sink>
void choose(const Choice &choice, const uint32_t *state, int64_t n, uint32_t *counts,
            const Sink &sink)
{
    int64_t tiles = choice_tiles(n);
    dim3 grid = team_grid(tiles, 1);
    TAPE_LAUNCH(count_choices<Choice>, grid, TAPE_THREADS, 0, choice, state, n, counts);
    scan(tiles, counts);
    scan(tiles, counts + tiles + 1);
    TAPE_LAUNCH((put_choices<Choice, Sink>), grid, TAPE_THREADS, 0, choice, state, n, counts, sink);
}

#endif
