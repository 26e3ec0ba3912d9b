/* ops_optimizer.cu: sums of squares, and updates. What the trainer updates is one flat array of all
 * its parameters, so that one launch does a whole model's.
 *
 * Updates give the CPU's bits: elem.h, and no contraction (ops_cuda.h). */
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/reduce.h"
#include "trainer/cuda/vector.h"

/* ---- sums of squares ---- */

/* A block's share is enough to be worth a launch, and blocks depend on n alone. */
static dim3 squares_grid(size_t n)
{
    size_t blocks = (n + 16 * TAPE_THREADS - 1) / (16 * TAPE_THREADS);
    return dim3(static_cast<unsigned>(blocks < 1024 ? blocks : 1024));
}

/* The square of a float32 is exact in float64, so a fused step rounds as two would. */
__global__ static void squares_by_block(int64_t n, const float *x, double *parts)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
    double sum[4] = {};
    for (; i + 3 * step < n; i += 4 * step)
        for (int k = 0; k < 4; k++)
            sum[k] = fma(static_cast<double>(x[i + k * step]), static_cast<double>(x[i + k * step]),
                         sum[k]);
    for (; i < n; i += step)
        sum[0] = fma(static_cast<double>(x[i]), static_cast<double>(x[i]), sum[0]);
    double all = block_reduce<reduce_add>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    if (threadIdx.x == 0)
        parts[blockIdx.x] = all;
}

__global__ static void squares_of_blocks(int64_t blocks, const double *parts, double *to)
{
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < blocks; i += blockDim.x)
        sum += parts[i];
    sum = block_reduce<reduce_add>(sum);
    if (threadIdx.x == 0)
        *to = sum;
}

void cuda_sum_squares(size_t n, const float *x, double *ret)
{
    *ret = 0.0;
    if (n == 0)
        return;
    dim3 grid = squares_grid(n);
    double *parts = static_cast<double *>(device_scratch((grid.x + 1) * sizeof *parts));
    TAPE_LAUNCH(squares_by_block, grid, TAPE_THREADS, 0, static_cast<int64_t>(n), x, parts);
    TAPE_LAUNCH(squares_of_blocks, dim3(1), TAPE_THREADS, 0, static_cast<int64_t>(grid.x), parts,
                parts + grid.x);
    cuda_download(ret, parts + grid.x, sizeof *ret);
    device_scratch_done();
}

/* ---- the same without rounding ----
 *
 * A warp takes a tile of elements. Squares whose exponents are near the tile's largest are added up
 * as integers of 128 bits, counted from the lowest exponent of that window; then those of the next
 * window, if there are any, which is rare. Each window's sum goes to the warp's long number
 * (exact.h). Integers have no order, so any grid gives the same.
 */

#define TILE   16 /* elements of a lane */
#define WINDOW 32 /* exponents: 48 bits of a square, 62 of its place, 9 of 512 squares: 119 */

namespace
{
struct wide {
    uint64_t low, high;
};

struct wide_add {
    __device__ __forceinline__ static wide merge(wide a, wide b)
    {
        uint64_t low = a.low + b.low;
        return {low, a.high + b.high + (low < a.low)};
    }
};

__device__ __forceinline__ wide shuffle_xor(wide x, int lanes)
{
    return {::shuffle_xor(x.low, lanes), ::shuffle_xor(x.high, lanes)};
}

struct long_number {
    uint64_t limb[EXACT_LIMBS];
    int64_t not_finite;
};
} // namespace

__device__ static void add_limb(long_number *s, int at, uint64_t value)
{
    for (int i = at; value && i < EXACT_LIMBS; i++) {
        s->limb[i] += value;
        value = s->limb[i] < value; /* the carry */
    }
}

__device__ static void add_number(long_number *to, const long_number *s)
{
    for (int i = 0; i < EXACT_LIMBS; i++)
        add_limb(to, i, s->limb[i]);
    to->not_finite += s->not_finite;
}

__device__ static void add_wide(long_number *s, wide x, int shift)
{
    int at = shift / 64, bits = shift % 64;
    add_limb(s, at, x.low << bits);
    add_limb(s, at + 1, bits ? x.low >> (64 - bits) | x.high << bits : x.high);
    if (bits)
        add_limb(s, at + 2, x.high >> (64 - bits));
}

__device__ __forceinline__ int scale_of(uint32_t bits) /* subnormals have the scale of 1 */
{
    int exponent = static_cast<int>(bits >> 23 & 255);
    return exponent ? exponent : 1;
}

/* m^2 at its place above exponent `base`. */
__device__ __forceinline__ wide square_of(uint32_t bits, int base)
{
    uint64_t m = (bits & 0x7fffff) | (bits >> 23 & 255 ? 0x800000 : 0);
    int shift = 2 * (scale_of(bits) - base);
    return {m * m << shift, shift ? m * m >> (64 - shift) : 0};
}

/* Adds a tile of a warp; zeroes add nothing. */
__device__ static void add_tile(uint32_t *bits, long_number *to)
{
    for (;;) {
        int top = 0;
        for (int k = 0; k < TILE; k++)
            if (bits[k] << 1 && scale_of(bits[k]) > top)
                top = scale_of(bits[k]);
        top = warp_reduce<reduce_max>(top);
        if (top == 0)
            return;
        int base = top < WINDOW ? 1 : top - WINDOW + 1;
        wide sum = {0, 0};
        for (int k = 0; k < TILE; k++)
            if (scale_of(bits[k]) >= base) {
                sum = wide_add::merge(sum, square_of(bits[k], base));
                bits[k] = 0;
            }
        sum = warp_reduce<wide_add>(sum);
        if (warp_team::lane() == 0)
            add_wide(to, sum, 2 * (base - 1));
    }
}

__global__ static void exact_by_block(int64_t n, const float *x, long_number *parts)
{
    __shared__ long_number own[WARPS];
    int warp = static_cast<int>(threadIdx.x) / WARP;
    if (warp_team::lane() == 0)
        own[warp] = long_number{};
    int64_t tiles = (n + WARP * TILE - 1) / (WARP * TILE), not_finite = 0;
    for (int64_t t = warp_team::first(); t < tiles; t += warp_team::step()) {
        uint32_t bits[TILE];
        for (int k = 0; k < TILE; k++) {
            int64_t i = (t * TILE + k) * WARP + warp_team::lane();
            bits[k] = i < n ? elem_bits(x[i]) : 0;
            if ((bits[k] >> 23 & 255) == 255) {
                not_finite++;
                bits[k] = 0;
            }
        }
        add_tile(bits, &own[warp]);
    }
    not_finite = warp_reduce<reduce_add>(not_finite);
    if (warp_team::lane() == 0)
        own[warp].not_finite = not_finite;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < WARPS; w++)
        add_number(&own[0], &own[w]);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = own[0];
}

/* By one warp. */
__global__ static void exact_of_blocks(int64_t blocks, const long_number *parts, long_number *to)
{
    __shared__ long_number own[WARP];
    own[threadIdx.x] = long_number{};
    for (int64_t i = threadIdx.x; i < blocks; i += WARP)
        add_number(&own[threadIdx.x], &parts[i]);
    __syncthreads();
    for (int l = 1; threadIdx.x == 0 && l < WARP; l++)
        add_number(&own[0], &own[l]);
    if (threadIdx.x == 0)
        *to = own[0];
}

void cuda_sum_squares_exactly(size_t n, const float *x, struct exact_sum *to)
{
    struct exact_sum sum = {};
    static_assert(sizeof(long_number) == sizeof sum, "a part is an exact_sum");
    if (n == 0)
        return;
    dim3 grid = tape_grid(static_cast<int64_t>((n + TILE - 1) / TILE));
    long_number *parts = static_cast<long_number *>(device_scratch((grid.x + 1) * sizeof *parts));
    TAPE_LAUNCH(exact_by_block, grid, TAPE_THREADS, 0, static_cast<int64_t>(n), x, parts);
    TAPE_LAUNCH(exact_of_blocks, dim3(1), WARP, 0, static_cast<int64_t>(grid.x), parts,
                parts + grid.x);
    cuda_download(&sum, parts + grid.x, sizeof sum);
    device_scratch_done();
    exact_add(to, &sum);
}

/* ---- updates ---- */

namespace
{
struct adam {
    elem_adam a;
    const float *g;
    float *w, *m, *v;
    template <int W> __device__ void at(int64_t i) const
    {
        auto gs = load<W>(g + i), ws = load<W>(w + i), ms = load<W>(m + i), vs = load<W>(v + i);
        for (int k = 0; k < W; k++) {
            elem_state s = elem_adam_step(a, {ws.v[k], ms.v[k], vs.v[k]}, gs.v[k]);
            ws.v[k] = s.w;
            ms.v[k] = s.m;
            vs.v[k] = s.v;
        }
        store(w + i, ws);
        store(m + i, ms);
        store(v + i, vs);
    }
};

struct adam_bfloat16 {
    elem_adam a;
    elem_dither d;
    const float *g;
    float *w;
    uint16_t *m, *v;
    template <int W> __device__ void at(int64_t i) const
    {
        auto gs = load<W>(g + i), ws = load<W>(w + i);
        auto ms = load<W>(m + i), vs = load<W>(v + i);
        for (int k = 0; k < W; k++) {
            uint32_t chance = elem_chance(d, static_cast<uint64_t>(i + k));
            elem_state s = {ws.v[k], elem_from_bfloat16(ms.v[k]), elem_from_bfloat16(vs.v[k])};
            s = elem_adam_step(a, s, gs.v[k]);
            ws.v[k] = s.w;
            ms.v[k] = elem_to_bfloat16_by_chance(s.m, chance & 0xffff);
            vs.v[k] = elem_to_bfloat16_by_chance(s.v, chance >> 16);
        }
        store(w + i, ws);
        store(m + i, ms);
        store(v + i, vs);
    }
};

struct sgd {
    elem_sgd a;
    const float *g;
    float *w, *m;
    template <int W> __device__ void at(int64_t i) const
    {
        auto gs = load<W>(g + i), ws = load<W>(w + i), ms = load<W>(m + i);
        for (int k = 0; k < W; k++) {
            elem_state s = elem_sgd_step(a, {ws.v[k], ms.v[k], 0.0f}, gs.v[k]);
            ws.v[k] = s.w;
            ms.v[k] = s.m;
        }
        store(w + i, ws);
        store(m + i, ms);
    }
};

struct sgd_bfloat16 {
    elem_sgd a;
    elem_dither d;
    const float *g;
    float *w;
    uint16_t *m;
    template <int W> __device__ void at(int64_t i) const
    {
        auto gs = load<W>(g + i), ws = load<W>(w + i);
        auto ms = load<W>(m + i);
        for (int k = 0; k < W; k++) {
            uint32_t chance = elem_chance(d, static_cast<uint64_t>(i + k));
            elem_state s = {ws.v[k], elem_from_bfloat16(ms.v[k]), 0.0f};
            s = elem_sgd_step(a, s, gs.v[k]);
            ws.v[k] = s.w;
            ms.v[k] = elem_to_bfloat16_by_chance(s.m, chance & 0xffff);
        }
        store(w + i, ws);
        store(m + i, ms);
    }
};

struct sgd_plain {
    float rate, scale;
    const float *g;
    float *w;
    template <int W> __device__ void at(int64_t i) const
    {
        auto gs = load<W>(g + i), ws = load<W>(w + i);
        for (int k = 0; k < W; k++)
            ws.v[k] -= rate * (gs.v[k] * scale);
        store(w + i, ws);
    }
};

struct outer {
    elem_outer a;
    float *w, *anchor, *v; /* v NULL: no momentum */
    template <int W> __device__ void at(int64_t i) const
    {
        auto ws = load<W>(w + i), from = load<W>(anchor + i);
        vector<float, W> vs = {};
        if (v)
            vs = load<W>(v + i);
        for (int k = 0; k < W; k++) {
            elem_state s = elem_outer_step(a, {ws.v[k], vs.v[k], 0.0f}, from.v[k]);
            ws.v[k] = s.w;
            vs.v[k] = s.m;
        }
        store(w + i, ws);
        store(anchor + i, ws);
        if (v)
            store(v + i, vs);
    }
};
} // namespace

void cuda_adam(const struct elem_adam *a, size_t n, const float *g, float *w, float *m, float *v)
{
    map<4>(adam{*a, g, w, m, v}, static_cast<int64_t>(n), vector_phase<4>(g, w, m, v));
}

void cuda_adam_bfloat16(const struct elem_adam *a, const struct elem_dither *d, size_t n,
                        const float *g, float *w, uint16_t *m, uint16_t *v)
{
    map<4>(adam_bfloat16{*a, *d, g, w, m, v}, static_cast<int64_t>(n), vector_phase<4>(g, w, m, v));
}

void cuda_sgd(const struct elem_sgd *a, size_t n, const float *g, float *w, float *m)
{
    if (m)
        map<4>(sgd{*a, g, w, m}, static_cast<int64_t>(n), vector_phase<4>(g, w, m));
    else
        map<4>(sgd_plain{a->rate, a->scale, g, w}, static_cast<int64_t>(n), vector_phase<4>(g, w));
}

void cuda_sgd_bfloat16(const struct elem_sgd *a, const struct elem_dither *d, size_t n,
                       const float *g, float *w, uint16_t *m)
{
    map<4>(sgd_bfloat16{*a, *d, g, w, m}, static_cast<int64_t>(n), vector_phase<4>(g, w, m));
}

void cuda_outer_step(const struct elem_outer *a, size_t n, float *w, float *anchor, float *v)
{
    map<4>(outer{*a, w, anchor, v}, static_cast<int64_t>(n), vector_phase<4>(w, anchor, v));
}
