/* ops_codec.cu: gradients packed for their way, and added up from what came. Forms: spec/codec.h.
 * The same elements and bits as the CPU's.
 */
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/scan.h"
#include "trainer/cuda/index.h"

extern "C" {
#include "spec/codec.h"
}

/* ---- int8 ---- */

/* Magnitudes in the order of their bits; NaN is the largest. */
__device__ __forceinline__ uint32_t magnitude(float x)
{
    return elem_bits(x) & 0x7fffffffu;
}

/* NaN where there is one among the values, so that it is not lost. */
__device__ __forceinline__ float scale_of(uint32_t largest)
{
    return largest < 0x7f800000u ? elem_from_bits(largest) / 127.0f : elem_from_bits(0x7fc00000u);
}

__device__ __forceinline__ int8_t rounded(float x, float scale)
{
    return scale > 0.0f ? static_cast<int8_t>(fmaxf(-127.0f, fminf(127.0f, rintf(x / scale))))
                        : static_cast<int8_t>(0);
}

/* A block has a chunk, a thread four elements of it, which stay in registers between their scale
 * and their rounding. `is_whole`: x is aligned for float4. */
static_assert(CODEC_CHUNK == 4 * TAPE_THREADS, "a thread has four elements");

__global__ static void pack_chunks(int64_t n, int64_t chunks, int is_whole, const float *x,
                                   float *scales, int8_t *q)
{
    for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        int64_t first = chunk * CODEC_CHUNK + threadIdx.x * 4;
        vector<float, 4> own = {};
        uint32_t largest = 0;
        if (is_whole && first + 4 <= n)
            own = load<4>(x + first);
        else
            for (int k = 0; k < 4 && first + k < n; k++)
                own.v[k] = x[first + k];
        for (int k = 0; k < 4; k++)
            largest = max(largest, magnitude(own.v[k]));
        float scale = scale_of(block_reduce<reduce_max>(largest));
        vector<int8_t, 4> small;
        for (int k = 0; k < 4; k++)
            small.v[k] = rounded(own.v[k], scale);
        if (first + 4 <= n)
            store(q + first, small);
        else
            for (int k = 0; k < 4 && first + k < n; k++)
                q[first + k] = small.v[k];
        if (threadIdx.x == 0)
            scales[chunk] = scale;
    }
}

static int64_t chunks_of(int64_t n)
{
    return (n + CODEC_CHUNK - 1) / CODEC_CHUNK;
}

static void pack_int8(int64_t n, const float *x, float *to)
{
    int64_t chunks = chunks_of(n);
    dim3 grid(static_cast<unsigned>(chunks < 65536 ? chunks : 65536));
    TAPE_LAUNCH(pack_chunks, grid, TAPE_THREADS, 0, n, chunks, is_aligned(x), x, to,
                reinterpret_cast<int8_t *>(to + chunks));
}

/* ---- top_k ---- */

/* The magnitude of the k-th largest is found 11, 10 and 10 bits at a time: of those that begin like
 * it so far, so many have each digit. state: what it begins with, and its rank among those that
 * begin so; in the end the magnitude itself, and how many of that magnitude are among the k. */
#define DIGITS     2048
#define DIGIT_EACH (DIGITS / TAPE_THREADS)

static const struct pass {
    int shift, bits;
} PASSES[] = {{20, 11}, {10, 10}, {0, 10}};

__global__ static void begin_top(uint32_t k, uint32_t *state, uint32_t *counts)
{
    for (int d = static_cast<int>(threadIdx.x); d < DIGITS; d += TAPE_THREADS)
        counts[d] = 0;
    if (threadIdx.x == 0) {
        state[0] = 0;
        state[1] = k;
    }
}

__global__ static void count_magnitudes(int64_t n, const float *x, int shift, int bits,
                                        const uint32_t *state, uint32_t *counts)
{
    __shared__ uint32_t here[DIGITS];
    for (int d = static_cast<int>(threadIdx.x); d < DIGITS; d += TAPE_THREADS)
        here[d] = 0;
    __syncthreads();
    GRID_STRIDE(i, n)
    {
        uint32_t m = magnitude(x[i]) >> shift;
        if (m >> bits == state[0])
            atomicAdd(&here[m & ((1u << bits) - 1u)], 1u);
    }
    __syncthreads();
    for (int d = static_cast<int>(threadIdx.x); d < DIGITS; d += TAPE_THREADS)
        if (here[d])
            atomicAdd(&counts[d], here[d]);
}

/* From the largest digit down, until k are passed; counts are zero again. One block. */
__global__ static void find_digit(int bits, uint32_t *state, uint32_t *counts)
{
    uint32_t k = state[1], begins = state[0], sum = 0, total, own[DIGIT_EACH];
    int last = DIGITS - 1 - static_cast<int>(threadIdx.x) * DIGIT_EACH;
    for (int d = 0; d < DIGIT_EACH; d++) {
        own[d] = counts[last - d];
        counts[last - d] = 0;
        sum += own[d];
    }
    uint32_t before = block_sum_before(sum, &total);
    for (int d = 0; d < DIGIT_EACH; d++) {
        if (before < k && k - before <= own[d]) {
            state[0] = begins << bits | static_cast<uint32_t>(last - d);
            state[1] = k - before;
        }
        before += own[d];
    }
}

/* Of equal ones, the first. */
struct top_choice {
    const float *x;
    __device__ int of(int64_t i, const uint32_t *state) const
    {
        uint32_t m = magnitude(x[i]);
        return m > state[0] ? CHOICE_YES : m == state[0] ? CHOICE_EQUAL : 0;
    }
};

struct top_sink {
    const float *x;
    uint32_t *places;
    float *values;
    __device__ void put(uint32_t k, int64_t i) const
    {
        places[k] = static_cast<uint32_t>(i);
        values[k] = x[i];
    }
};

static void pack_top(int64_t n, size_t k, const float *x, uint32_t *to)
{
    uint32_t *state = static_cast<uint32_t *>(device_scratch(2 * sizeof(uint32_t)));
    uint32_t *digits = static_cast<uint32_t *>(device_scratch(DIGITS * sizeof(uint32_t)));
    uint32_t *counts = static_cast<uint32_t *>(device_scratch(choice_bytes(n)));
    TAPE_LAUNCH(begin_top, 1, TAPE_THREADS, 0, static_cast<uint32_t>(k), state, digits);
    for (const struct pass &p : PASSES) {
        TAPE_LAUNCH(count_magnitudes, tape_grid(n), TAPE_THREADS, 0, n, x, p.shift, p.bits, state,
                    digits);
        TAPE_LAUNCH(find_digit, 1, TAPE_THREADS, 0, p.bits, state, digits);
    }
    choose(top_choice{x}, state, n, counts, top_sink{x, to, reinterpret_cast<float *>(to + k)});
    device_scratch_done();
}

__global__ static void add_listed(int64_t k, const uint32_t *places, const float *values,
                                  float sign, float *y)
{
    GRID_STRIDE(i, k)
    {
        y[places[i]] += sign * values[i];
    }
}

static void add_top(int64_t k, const uint32_t *from, float sign, float *y)
{
    TAPE_LAUNCH(add_listed, tape_grid(k), TAPE_THREADS, 0, k, from,
                reinterpret_cast<const float *>(from + k), sign, y);
}

/* ---- adding ---- */

struct add_bfloat16 {
    const uint16_t *from;
    float sign;
    float *y;
    template <int W> __device__ void at(int64_t i) const
    {
        vector<uint16_t, W> x = load<W>(from + i);
        vector<float, W> sum = load<W>(y + i);
        for (int k = 0; k < W; k++)
            sum.v[k] += sign * elem_from_bfloat16(x.v[k]);
        store(y + i, sum);
    }
};

/* Vectors begin at multiples of W, so that they do not cross chunks. */
struct add_int8 {
    const float *scales;
    const int8_t *from;
    float sign;
    float *y;
    template <int W> __device__ void at(int64_t i) const
    {
        float scale = sign * scales[i / CODEC_CHUNK];
        vector<int8_t, W> x = load<W>(from + i);
        vector<float, W> sum = load<W>(y + i);
        for (int k = 0; k < W; k++)
            sum.v[k] += scale * static_cast<float>(x.v[k]);
        store(y + i, sum);
    }
};

struct add_floats {
    const float *from;
    float sign;
    float *y;
    template <int W> __device__ void at(int64_t i) const
    {
        vector<float, W> x = load<W>(from + i), sum = load<W>(y + i);
        for (int k = 0; k < W; k++)
            sum.v[k] += sign * x.v[k];
        store(y + i, sum);
    }
};

static void add_chunks(int64_t n, const float *scales, float sign, float *y)
{
    const int8_t *q = reinterpret_cast<const int8_t *>(scales + chunks_of(n));
    int phase = vector_phase<4>(q, static_cast<const float *>(y));
    map<4>(add_int8{scales, q, sign, y}, n, phase == 0 ? 0 : -1);
}

/* ---- verbs ---- */

void cuda_pack(const struct parallel *p, size_t n, const float *x, void *packed)
{
    int64_t count = static_cast<int64_t>(n);
    if (n == 0)
        return;
    switch (p->codec) {
    case CODEC_BF16: cuda_to_bfloat16(n, x, static_cast<uint16_t *>(packed)); break;
    case CODEC_INT8: pack_int8(count, x, static_cast<float *>(packed)); break;
    case CODEC_TOP_K: pack_top(count, codec_top(p, n), x, static_cast<uint32_t *>(packed)); break;
    case CODEC_NONE: tape_copy(packed, x, n * sizeof *x); break;
    }
}

void cuda_add_packed(const struct parallel *p, size_t n, const void *packed, float sign, float *y)
{
    int64_t count = static_cast<int64_t>(n);
    if (n == 0)
        return;
    switch (p->codec) {
    case CODEC_BF16: {
        const uint16_t *from = static_cast<const uint16_t *>(packed);
        map<4>(add_bfloat16{from, sign, y}, count,
               vector_phase<4>(from, static_cast<const float *>(y)));
        break;
    }
    case CODEC_INT8: add_chunks(count, static_cast<const float *>(packed), sign, y); break;
    case CODEC_TOP_K:
        add_top(static_cast<int64_t>(codec_top(p, n)), static_cast<const uint32_t *>(packed), sign,
                y);
        break;
    case CODEC_NONE: {
        const float *from = static_cast<const float *>(packed);
        map<4>(add_floats{from, sign, y}, count,
               vector_phase<4>(from, static_cast<const float *>(y)));
        break;
    }
    }
}
