/* Kernels on the emulated device: what the language promises holds in every order of blocks and
 * threads, and kernels that break its rules are found. */
#include "tests/unit/emu_child.h"

/* ---- barriers, shared memory, shuffles ---- */

__global__ static void sum(const float *x, float *y, int64_t n)
{
    DYNAMIC_SHARED(float, s);
    __shared__ float of_warp[32];
    int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    float v = s[blockDim.x - 1 - threadIdx.x];
    for (unsigned d = 16; d; d /= 2)
        v += __shfl_down_sync(~0U, v, d);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (unsigned w = 1; w < blockDim.x / 32; w++)
        v += of_warp[w];
    y[blockIdx.x] = v;
}

static int sums_program(void)
{
    float *x, *y, h[1000], got[4];
    for (int i = 0; i < 1000; i++)
        h[i] = static_cast<float>(i);
    OK(cudaMalloc(&x, sizeof h));
    OK(cudaMalloc(&y, sizeof got));
    OK(cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice));
    OK(LAUNCH(sum, 4, 256, 256 * sizeof(float), x, y, 1000));
    OK(cudaMemcpy(got, y, sizeof got, cudaMemcpyDeviceToHost));
    for (int b = 0; b < 4; b++) {
        int first = b * 256, count = b < 3 ? 256 : 1000 - first;
        MUST(got[b] == static_cast<float>(count * (2 * first + count - 1) / 2));
    }
    OK(cudaDeviceSynchronize());
    return 0;
}

static void sums_by_shared_memory_and_shuffles(void **)
{
    expect_well_in_any_order(sums_program);
}

/* ---- where a thread is ---- */

__global__ static void where(uint32_t *at)
{
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    atomicAdd(&at[block * blockDim.x * blockDim.y * blockDim.z + thread], block * 1000 + thread);
}

static int where_program(void)
{
    uint32_t *at, got[2 * 3 * 4 * 5 * 6 * 2];
    OK(cudaMalloc(&at, sizeof got));
    OK(cudaMemset(at, 0, sizeof got));
    OK(LAUNCH(where, dim3(2, 3, 4), dim3(5, 6, 2), 0, at));
    OK(cudaMemcpy(got, at, sizeof got, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < 2 * 3 * 4 * 5 * 6 * 2; i++)
        MUST(got[i] == i / 60 * 1000 + i % 60);
    return 0;
}

static void each_thread_of_a_grid_runs_once(void **)
{
    expect_well_in_any_order(where_program);
}

/* ---- warps ---- */

__global__ static void shuffles(int *y)
{
    int lane = static_cast<int>(threadIdx.x), *at = y + lane * 8;
    at[0] = __shfl_sync(~0U, lane, 5);
    at[1] = __shfl_sync(~0U, lane, 5, 8);
    at[2] = __shfl_up_sync(~0U, lane, 3);
    at[3] = __shfl_down_sync(~0U, lane, 3, 16);
    at[4] = __shfl_xor_sync(~0U, lane, 9);
    at[5] = static_cast<int>(__ballot_sync(~0U, lane % 3 == 0));
    at[6] = __any_sync(~0U, lane == 31) * 2 + __all_sync(~0U, lane < 31);
    /* Two halves, each by itself. */
    unsigned half = lane < 16 ? 0xffffU : 0xffff0000U;
    double v = lane;
    for (int d = 8; d; d /= 2)
        v += __shfl_xor_sync(half, v, d);
    at[7] = static_cast<int>(v);
}

static int shuffles_program(void)
{
    int *y, got[32][8];
    OK(cudaMalloc(&y, sizeof got));
    OK(LAUNCH(shuffles, 1, 32, 0, y));
    OK(cudaMemcpy(got, y, sizeof got, cudaMemcpyDeviceToHost));
    for (int l = 0; l < 32; l++) {
        MUST(got[l][0] == 5);
        MUST(got[l][1] == l / 8 * 8 + 5);
        MUST(got[l][2] == (l < 3 ? l : l - 3));
        MUST(got[l][3] == (l % 16 + 3 < 16 ? l + 3 : l));
        MUST(got[l][4] == (l ^ 9));
        MUST(static_cast<unsigned>(got[l][5]) == 0x49249249U);
        MUST(got[l][6] == 2);
        MUST(got[l][7] == (l < 16 ? 120 : 376));
    }
    return 0;
}

static void lanes_exchange_values(void **)
{
    expect_well_in_any_order(shuffles_program);
}

/* ---- blocks count, integers are added atomically ---- */

__global__ static void counts(int n, int *total, unsigned long long *highest, unsigned *any)
{
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    int here = __syncthreads_count(i < n && i % 2);
    if (threadIdx.x == 0)
        atomicAdd(total, here);
    atomicMax(highest, static_cast<unsigned long long>(i < n ? i : 0));
    if (__syncthreads_or(i == n - 1) && threadIdx.x == 0)
        atomicOr(any, 1U << blockIdx.x);
}

static int counts_program(void)
{
    int *total, got;
    unsigned long long *highest, most;
    unsigned *any, last;
    OK(cudaMalloc(&total, sizeof *total));
    OK(cudaMalloc(&highest, sizeof *highest));
    OK(cudaMalloc(&any, sizeof *any));
    OK(cudaMemset(total, 0, sizeof *total));
    OK(cudaMemset(highest, 0, sizeof *highest));
    OK(cudaMemset(any, 0, sizeof *any));
    OK(LAUNCH(counts, 5, 96, 0, 333, total, highest, any));
    OK(cudaMemcpy(&got, total, sizeof got, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&most, highest, sizeof most, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&last, any, sizeof last, cudaMemcpyDeviceToHost));
    MUST(got == 166 && most == 332 && last == 1U << 3);
    return 0;
}

static void blocks_count_and_add(void **)
{
    expect_well_in_any_order(counts_program);
}

/* ---- pointers in a struct, numbers that look like pointers ---- */

struct packet {
    const float *x;
    int count, like_an_address; /* together the upper half of one */
    float *y;
};

__global__ static void scale(struct packet p, int64_t number)
{
    for (int i = static_cast<int>(threadIdx.x); i < p.count; i += static_cast<int>(blockDim.x))
        p.y[i] = p.x[i] * static_cast<float>(number >> 40) + static_cast<float>(p.like_an_address);
}

static int packet_program(void)
{
    float h[3] = {1, 2, 3};
    struct packet p = {NULL, 3, 0x7f12, NULL};
    float *x;
    OK(cudaMalloc(&x, sizeof h));
    OK(cudaMalloc(&p.y, sizeof h));
    p.x = x;
    OK(cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice));
    OK(LAUNCH(scale, 1, 32, 0, p, static_cast<int64_t>(reinterpret_cast<uintptr_t>(x))));
    OK(cudaMemcpy(h, p.y, sizeof h, cudaMemcpyDeviceToHost));
    float by = static_cast<float>(reinterpret_cast<uintptr_t>(x) >> 40);
    for (int i = 0; i < 3; i++)
        MUST(h[i] == static_cast<float>(i + 1) * by + 0x7f12);
    return 0;
}

static void pointers_within_structs_are_found(void **)
{
    expect_well(packet_program, NULL);
}

/* An address of the past between two members is nobody's argument. */
struct gapped {
    int n;
    float *y;
};

__global__ static void fill_gapped(struct gapped p)
{
    p.y[threadIdx.x] = static_cast<float>(p.n);
}

static int gapped_program(void)
{
    float got[32];
    struct gapped p;
    void *of_the_past = got, *arguments[] = {&p};
    OK(cudaMalloc(&p.y, sizeof got));
    memcpy(&p, &of_the_past, sizeof of_the_past);
    memcpy(&p, "\x05\0\0", sizeof p.n); /* not its padding */
    OK(cudaLaunchKernel(fill_gapped, 1, 32, arguments, 0, NULL));
    OK(cudaMemcpy(got, p.y, sizeof got, cudaMemcpyDeviceToHost));
    MUST(got[31] == 5);
    return 0;
}

static void what_lies_between_members_is_no_address(void **)
{
    expect_well(gapped_program, NULL);
}

/* ---- the rest of the language ---- */

__global__ static void numbers(int *ok)
{
    int r = 0;
    r += __popc(0xf0f0U) == 8 && __popcll(~0ULL) == 64;
    r += __ffs(8) == 4 && __ffs(0) == 0 && __clz(1) == 31 && __clz(0) == 32 && __clzll(0) == 64;
    r += __float_as_uint(1.0F) == 0x3f800000U && __uint_as_float(0x40000000U) == 2.0F;
    r += __umulhi(0x80000000U, 6U) == 3U && __umul64hi(1ULL << 63, 10ULL) == 5ULL;
    r += max(3, 5) == 5 && min(-1L, 4L) == -1L && max(1.5F, -0.5F) == 1.5F && min(2U, 1U) == 1U;
    r += max(NAN, 2.0F) == 2.0F && __float2int_rn(2.5F) == 2 && rsqrtf(4.0F) == 0.5F;
    float4 v = make_float4(1, 2, 3, 4);
    r += sizeof v == 16 && alignof(float4) == 16 && v.w == 4 && warpSize == 32;
    unsigned word = 7;
    r += atomicCAS(&word, 7U, 9U) == 7U && word == 9U && atomicExch(&word, 1U) == 9U;
    r += __ldg(&word) == 1U && atomicMin(&word, 0U) == 1U && atomicAnd(&word, 0U) == 0U;
    *ok = r;
}

static int numbers_program(void)
{
    int *ok, got = 0;
    OK(cudaMalloc(&ok, sizeof got));
    OK(LAUNCH(numbers, 1, 1, 0, ok));
    OK(cudaMemcpy(&got, ok, sizeof got, cudaMemcpyDeviceToHost));
    MUST(got == 9);
    return 0;
}

static void the_language_has_its_numbers(void **)
{
    expect_well(numbers_program, NULL);
}

/* ---- what a launch may ask for ---- */

__global__ static void idle(int)
{
}

__global__ static void never_known(int)
{
}

static int limits_program(void)
{
    MUST(LAUNCH(idle, 1, 1025, 0, 0) == cudaErrorInvalidConfiguration);
    MUST(cudaGetLastError() == cudaErrorInvalidConfiguration);
    MUST(cudaGetLastError() == cudaSuccess);
    MUST(LAUNCH(idle, 0, 32, 0, 0) == cudaErrorInvalidConfiguration);
    MUST(LAUNCH(idle, 1, dim3(1, 1, 65), 0, 0) == cudaErrorInvalidConfiguration);
    MUST(LAUNCH(idle, dim3(1, 65536), 1, 0, 0) == cudaErrorInvalidConfiguration);
    OK(LAUNCH(idle, dim3(1, 65535), 1, 0, 0));
    OK(LAUNCH(idle, 70000, 1, 47 << 10, 0));
    MUST(LAUNCH(idle, 1, 32, (47 << 10) + 1, 0) == cudaErrorInvalidValue);
    MUST(cudaFuncSetAttribute(idle, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10) ==
         cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(idle, cudaFuncAttributeMaxDynamicSharedMemorySize, 226 << 10));
    OK(LAUNCH(idle, 1, 32, 226 << 10, 0));
    int v = 0;
    void *a[] = {&v};
    MUST(cudaLaunchKernel(reinterpret_cast<const void *>(never_known), 1, 1, a, 0, NULL) ==
         cudaErrorInvalidDeviceFunction);
    OK(cudaDeviceSynchronize());
    return 0;
}

static void launches_beyond_the_limits_are_refused(void **)
{
    expect_well(limits_program, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_by_shared_memory_and_shuffles),
        cmocka_unit_test(each_thread_of_a_grid_runs_once),
        cmocka_unit_test(lanes_exchange_values),
        cmocka_unit_test(blocks_count_and_add),
        cmocka_unit_test(pointers_within_structs_are_found),
        cmocka_unit_test(what_lies_between_members_is_no_address),
        cmocka_unit_test(the_language_has_its_numbers),
        cmocka_unit_test(launches_beyond_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
