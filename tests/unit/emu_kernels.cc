/* Kernels on the emulated device: what the language promises holds in every order of blocks and
 * threads, and kernels that break its rules are found. */
#include <tuple>

#include "tests/unit/emu_child.h"

template <class... P, class... A>
static cudaError_t launch(void (*kernel)(P...), const char *name, dim3 grid, dim3 block,
                          size_t shared, A... a)
{
    emu_know(kernel, name);
    std::tuple<P...> values(a...);
    return std::apply(
        [&](auto &...v) {
            void *pointers[] = {&v..., nullptr};
            return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, pointers,
                                    shared, 0);
        },
        values);
}
#define LAUNCH(kernel, grid, block, shared, ...)                                                   \
    launch(kernel, #kernel, grid, block, shared, __VA_ARGS__)

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_by_shared_memory_and_shuffles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
