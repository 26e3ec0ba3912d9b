/* Wrong programs on the emulated device: each is found, and the sentence names what was wrong. */
#include "tests/unit/emu_child.h"

#define N 1000

__global__ static void add_one(const float *x, float *y, int n)
{
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
         i += static_cast<int>(gridDim.x * blockDim.x))
        y[i] = x[i] + 1;
}

/* ---- memory of the wrong side ---- */

static int host_reads(void)
{
    volatile float *x;
    OK(cudaMalloc(const_cast<float **>(&x), N * sizeof(float)));
    return x[17] == 0 ? 0 : 2;
}

static void the_host_reads_device_memory(void **)
{
    expect_death(host_reads, NULL, SIGSEGV, "the host reads or writes device memory");
    expect_death(host_reads, NULL, SIGSEGV, "byte 68 of an allocation of 4000 bytes");
}

static int passes_host_memory(void)
{
    float *y, x[N] = {0};
    OK(cudaMalloc(&y, sizeof x));
    OK(LAUNCH(add_one, 2, 64, 0, x, y, N));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

static int passes_pinned_memory(void)
{
    float *y, *x;
    OK(cudaMalloc(&y, N * sizeof *y));
    OK(cudaMallocHost(&x, N * sizeof *x));
    OK(LAUNCH(add_one, 2, 64, 0, x, y, N));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

struct packet {
    int n;
    const float *x;
};

__global__ static void read_packet(struct packet, float *)
{
}

static int passes_host_memory_in_a_struct(void)
{
    float *y, x[N] = {0};
    struct packet p = {N, x};
    OK(cudaMalloc(&y, sizeof x));
    OK(LAUNCH(read_packet, 1, 32, 0, p, y));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

static void a_kernel_is_given_host_memory(void **)
{
    expect_death(passes_host_memory, NULL, SIGABRT, "argument 0 of kernel add_one is");
    expect_death(passes_host_memory, NULL, SIGABRT, "which is host memory and no device pointer");
    expect_death(passes_pinned_memory, NULL, SIGABRT, "which is pinned host memory");
    expect_death(passes_host_memory_in_a_struct, NULL, SIGABRT,
                 "argument 0 of kernel read_packet is");
}

/* A table of device pointers in device memory: the emulation cannot translate those. */
__global__ static void follow(float *const *table)
{
    table[0][threadIdx.x] = 0;
}

static int passes_a_table(void)
{
    float *x, **table;
    OK(cudaMalloc(&x, N * sizeof *x));
    OK(cudaMalloc(&table, sizeof *table));
    OK(cudaMemcpy(table, &x, sizeof x, cudaMemcpyHostToDevice));
    OK(LAUNCH(follow, 1, 32, 0, table));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

static void a_kernel_finds_a_pointer_in_memory(void **)
{
    expect_death(passes_a_table, NULL, SIGSEGV,
                 "uses a device pointer that was not among its arguments");
}

/* ---- bounds and lives of allocations ---- */

static int runs_over(int by)
{
    float *x, *y;
    OK(cudaMalloc(&x, 2 * N * sizeof *x));
    OK(cudaMalloc(&y, N * sizeof *y));
    OK(cudaMemset(x, 0, 2 * N * sizeof *x));
    OK(LAUNCH(add_one, 2, 64, 0, x, y, N + by));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

static int runs_over_a_little(void)
{
    return runs_over(1);
}

static int runs_over_by_far(void)
{
    return runs_over(500);
}

static int runs_over_and_frees(void)
{
    float *x, *y;
    OK(cudaMalloc(&x, 2 * N * sizeof *x));
    OK(cudaMalloc(&y, N * sizeof *y));
    OK(LAUNCH(add_one, 2, 64, 0, x, y, N + 3));
    OK(cudaFree(x));
    return cudaFree(y) == cudaSuccess ? 0 : 2;
}

static void a_kernel_writes_behind_its_output(void **)
{
    expect_death(runs_over_a_little, NULL, SIGABRT,
                 "1 bytes behind the end of an allocation of 4000");
    expect_death(runs_over_by_far, NULL, SIGSEGV, "kernel add_one, block (");
    expect_death(runs_over_by_far, NULL, SIGSEGV, "behind the end of an allocation of 4000 bytes");
    expect_death(runs_over_and_frees, NULL, SIGABRT, "cudaFree(): something wrote");
}

static int uses_freed_memory(void)
{
    float *x, *y;
    OK(cudaMalloc(&x, N * sizeof *x));
    OK(cudaMalloc(&y, N * sizeof *y));
    OK(cudaFree(x));
    OK(LAUNCH(add_one, 2, 64, 0, x, y, N));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

static void a_kernel_is_given_freed_memory(void **)
{
    expect_death(uses_freed_memory, NULL, SIGABRT,
                 "argument 0 of kernel add_one is byte 0 of an "
                 "allocation of 4000 bytes that has been freed");
}

/* ---- what nobody wrote ---- */

static int leaves_a_rest_unwritten(void)
{
    float *x, *y, h[N];
    OK(cudaMalloc(&x, sizeof h));
    OK(cudaMalloc(&y, sizeof h));
    OK(cudaMemset(x, 0, sizeof h));
    OK(LAUNCH(add_one, 2, 64, 0, x, y, N - 1));
    OK(cudaMemcpy(h, y, sizeof h, cudaMemcpyDeviceToHost));
    MUST(h[N - 2] == 1);
    MUST(std::isnan(h[N - 1]));
    return 0;
}

__global__ static void read_shared(float *y)
{
    DYNAMIC_SHARED(float, s);
    y[blockIdx.x] = s[threadIdx.x];
    s[threadIdx.x] = 7;
}

static int reads_unwritten_shared_memory(void)
{
    float *y, h[4];
    OK(cudaMalloc(&y, sizeof h));
    OK(LAUNCH(read_shared, 4, 1, sizeof(float), y));
    OK(cudaMemcpy(h, y, sizeof h, cudaMemcpyDeviceToHost));
    for (float v : h)
        MUST(std::isnan(v));
    return 0;
}

static void what_nobody_wrote_is_nan(void **)
{
    expect_well(leaves_a_rest_unwritten, NULL);
    expect_well(reads_unwritten_shared_memory, NULL);
}

__global__ static void write_shared(int n)
{
    DYNAMIC_SHARED(float, s);
    s[n] = 1;
}

static int overruns_shared_memory(void)
{
    OK(LAUNCH(write_shared, 1, 1, 5 * sizeof(float), 5));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

static void a_kernel_writes_behind_its_shared_memory(void **)
{
    expect_death(overruns_shared_memory, NULL, SIGABRT,
                 "kernel write_shared, block (0,0,0) wrote behind its 20 bytes");
}

/* ---- threads that do not meet ---- */

__global__ static void some_return(float *y)
{
    if (threadIdx.x >= 40)
        return;
    __syncthreads();
    y[threadIdx.x] = 0;
}

__global__ static void two_barriers(float *y)
{
    if (threadIdx.x < 40)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 0;
}

__global__ static void half_a_shuffle(float *y)
{
    float v = 1;
    if (threadIdx.x < 16)
        v = __shfl_xor_sync(~0U, v, 1);
    y[threadIdx.x] = v;
}

__global__ static void shuffle_of_one_warp(float *y)
{
    float v = 1;
    if (threadIdx.x < 32)
        v = __shfl_xor_sync(~0U, v, 1);
    else
        __syncthreads();
    y[threadIdx.x] = v;
}

__global__ static void outside_its_mask(float *y)
{
    y[threadIdx.x] = __shfl_sync(0xffffU, y[0], 0);
}

static int run_64(void (*kernel)(float *), const char *name)
{
    float *y;
    OK(cudaMalloc(&y, 64 * sizeof *y));
    OK(launch(kernel, name, 1, 64, 0, NULL, y));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

static int returns_before_a_barrier(void)
{
    return run_64(some_return, "some_return");
}

static int waits_at_two_barriers(void)
{
    return run_64(two_barriers, "two_barriers");
}

static int shuffles_with_half_a_warp(void)
{
    return run_64(half_a_shuffle, "half_a_shuffle");
}

static int leaves_one_warp_at_a_barrier(void)
{
    return run_64(shuffle_of_one_warp, "shuffle_of_one_warp");
}

static int shuffles_outside_its_mask(void)
{
    return run_64(outside_its_mask, "outside_its_mask");
}

static void threads_do_not_meet(void **)
{
    expect_death(returns_before_a_barrier, NULL, SIGABRT,
                 "kernel some_return, block (0,0,0): only 40 of 64 threads reached the barrier");
    expect_death(waits_at_two_barriers, NULL, SIGABRT,
                 "kernel two_barriers, block (0,0,0): thread");
    expect_death(shuffles_with_half_a_warp, NULL, SIGABRT,
                 "a shuffle is for the lanes 0xffffffff, but only 0x0000ffff came to it");
    expect_death(leaves_one_warp_at_a_barrier, NULL, SIGABRT, "only 32 of 64 threads reached");
    expect_death(shuffles_outside_its_mask, NULL, SIGABRT,
                 "lane 16 calls a warp primitive for the lanes 0x0000ffff");
}

/* ---- order ---- */

/* Each block takes what the block before it left: right only if they run in order. */
__global__ static void chain(int *x)
{
    if (threadIdx.x == 0)
        *x = *x * 3 + static_cast<int>(blockIdx.x);
}

/* Reads a neighbour's word without a barrier. */
__global__ static void race(int *y)
{
    __shared__ int s[64];
    s[threadIdx.x] = static_cast<int>(gridDim.x);
    y[threadIdx.x] = s[(threadIdx.x + 63) % 64];
}

static int chained(void)
{
    int *x, got;
    OK(cudaMalloc(&x, sizeof got));
    OK(cudaMemset(x, 0, sizeof got));
    OK(LAUNCH(chain, 5, 32, 0, x));
    OK(cudaMemcpy(&got, x, sizeof got, cudaMemcpyDeviceToHost));
    return got == 58 ? 0 : 3;
}

static int raced(void)
{
    unsigned sum = 0;
    int *y, got[64];
    OK(cudaMalloc(&y, sizeof got));
    OK(LAUNCH(race, 1, 64, 0, y));
    OK(cudaMemcpy(got, y, sizeof got, cudaMemcpyDeviceToHost));
    for (int v : got)
        sum = sum * 31 + static_cast<unsigned>(v);
    return static_cast<int>(sum & 0x7f);
}

static int status_of(emu_program *f, const char *setting)
{
    char said[1024];
    int status = run_child(f, setting, said, sizeof said);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void results_that_depend_on_order_differ(void **)
{
    assert_int_equal(status_of(chained, "TRAINYARD_EMU_ORDER=forward"), 0);
    assert_int_equal(status_of(chained, "TRAINYARD_EMU_ORDER=reverse"), 3);
    int others = 0, first = status_of(raced, "TRAINYARD_EMU_ORDER=forward");
    others += status_of(raced, "TRAINYARD_EMU_ORDER=reverse") != first;
    others += status_of(raced, "TRAINYARD_EMU_ORDER=shuffle:5") != first;
    assert_true(others > 0);
    assert_int_equal(status_of(raced, "TRAINYARD_EMU_ORDER=shuffle:5"),
                     status_of(raced, "TRAINYARD_EMU_ORDER=shuffle:5"));
}

static int sets_an_order(void)
{
    return chained();
}

static void a_wrong_setting_is_refused(void **)
{
    expect_death(sets_an_order, "TRAINYARD_EMU_ORDER=backward", SIGABRT,
                 "TRAINYARD_EMU_ORDER is \"backward\"; it is forward, reverse or shuffle:SEED");
    expect_death(sets_an_order, "TRAINYARD_EMU_FAIL=MALLOC", SIGABRT, "is not KIND:n[:error]");
    expect_death(sets_an_order, "TRAINYARD_EMU_MEMORY=1G", SIGABRT, "TRAINYARD_EMU_MEMORY is");
}

/* ---- streams ---- */

static int two_streams(int waits)
{
    static gate g;
    cudaStream_t a, b;
    cudaEvent_t written;
    float *x, *y, h[N];
    OK(cudaMalloc(&x, sizeof h));
    OK(cudaMalloc(&y, sizeof h));
    OK(cudaMemset(x, 0, sizeof h));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
    OK(wait_for_gate(&g, a));
    OK(wait_for_gate(&g, b));
    OK(LAUNCH_ON(a, add_one, 2, 64, x, x, N));
    OK(cudaEventRecord(written, a));
    if (waits)
        OK(cudaStreamWaitEvent(b, written));
    OK(LAUNCH_ON(b, add_one, 2, 64, x, y, N));
    g.is_open = 1;
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(h, y, sizeof h, cudaMemcpyDeviceToHost));
    return h[0] == 2 ? 0 : 3;
}

static int forgets_to_wait(void)
{
    return two_streams(0);
}

static int waits_for_the_event(void)
{
    return two_streams(1);
}

static void a_stream_does_not_wait(void **)
{
    int wrong = 0, right = 0;
    char order[64];
    for (int seed = 0; seed < 12; seed++) {
        snprintf(order, sizeof order, "TRAINYARD_EMU_ORDER=shuffle:%d", seed);
        int s = status_of(forgets_to_wait, order);
        wrong += s == 3;
        right += s == 0;
        assert_int_equal(status_of(waits_for_the_event, order), 0);
    }
    assert_true(wrong > 0 && right > 0);
    assert_int_equal(wrong + right, 12);
}

static int reuses_a_buffer(int is_pinned)
{
    static gate g;
    cudaStream_t s;
    float *x, *buffer = static_cast<float *>(malloc(N * sizeof(float))), h[N];
    if (is_pinned)
        OK(cudaMallocHost(&buffer, sizeof h));
    OK(cudaMalloc(&x, sizeof h));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(wait_for_gate(&g, s));
    for (int i = 0; i < N; i++)
        buffer[i] = 1;
    OK(cudaMemcpyAsync(x, buffer, sizeof h, cudaMemcpyHostToDevice, s));
    for (int i = 0; i < N; i++)
        buffer[i] = 2; /* too early, unless the memory is pageable */
    g.is_open = 1;
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost));
    return static_cast<int>(h[N - 1]);
}

static int reuses_a_pinned_buffer(void)
{
    return reuses_a_buffer(1);
}

static int reuses_a_pageable_buffer(void)
{
    return reuses_a_buffer(0);
}

static void a_pinned_buffer_is_used_again_too_early(void **)
{
    assert_int_equal(status_of(reuses_a_pinned_buffer, NULL), 2);
    assert_int_equal(status_of(reuses_a_pageable_buffer, NULL), 1);
}

/* ---- a library's own range ---- */

static int library_runs_over(void)
{
    float *x;
    OK(cudaMalloc(&x, N * sizeof *x));
    OK(emu_enqueue(NULL, "a product", [x] {
        emu_translate_bytes(x + 1, N * sizeof(float));
        return EMU_DONE;
    }));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

static void a_library_uses_more_than_there_is(void **)
{
    expect_death(library_runs_over, NULL, SIGABRT,
                 "a product uses 4000 bytes from byte 4 of an allocation of 4000 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_reads_device_memory),
        cmocka_unit_test(a_kernel_is_given_host_memory),
        cmocka_unit_test(a_kernel_finds_a_pointer_in_memory),
        cmocka_unit_test(a_kernel_writes_behind_its_output),
        cmocka_unit_test(a_kernel_is_given_freed_memory),
        cmocka_unit_test(what_nobody_wrote_is_nan),
        cmocka_unit_test(a_kernel_writes_behind_its_shared_memory),
        cmocka_unit_test(threads_do_not_meet),
        cmocka_unit_test(results_that_depend_on_order_differ),
        cmocka_unit_test(a_wrong_setting_is_refused),
        cmocka_unit_test(a_stream_does_not_wait),
        cmocka_unit_test(a_pinned_buffer_is_used_again_too_early),
        cmocka_unit_test(a_library_uses_more_than_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
