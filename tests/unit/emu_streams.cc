/* Streams, events, copies, errors and devices of the emulated runtime behave as CUDA's do. */
#include "tests/unit/emu_child.h"

#define N 100

__global__ static void fill(int *x, int n, int v)
{
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
        x[i] = v;
}

/* ---- queries and waiting ---- */

static int queries(void)
{
    static gate g;
    cudaStream_t s, other;
    cudaEvent_t e, never;
    float ms = -1;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaEventCreate(&e));
    OK(cudaEventCreate(&never));
    OK(cudaStreamQuery(s));
    OK(cudaEventQuery(never));
    OK(cudaEventRecord(never, other));
    OK(wait_for_gate(&g, s));
    OK(cudaEventRecord(e, s));
    MUST(cudaStreamQuery(s) == cudaErrorNotReady);
    MUST(cudaEventQuery(e) == cudaErrorNotReady);
    MUST(cudaEventElapsedTime(&ms, never, e) == cudaErrorNotReady);
    OK(cudaStreamSynchronize(other)); /* goes on meanwhile */
    g.is_open = 1;
    OK(cudaEventSynchronize(e));
    OK(cudaStreamQuery(s));
    OK(cudaEventElapsedTime(&ms, never, e));
    MUST(ms >= 0);
    OK(cudaEventDestroy(e));
    MUST(cudaEventQuery(e) == cudaErrorInvalidResourceHandle);
    OK(cudaStreamDestroy(s));
    MUST(cudaStreamSynchronize(s) == cudaErrorInvalidResourceHandle);
    return 0;
}

static void streams_and_events_can_be_asked(void **)
{
    expect_well_in_any_order(queries);
}

/* The legacy stream and blocking streams wait for each other, others do not. */
static int legacy(void)
{
    static gate g;
    cudaStream_t blocking, free_one;
    int *x, got;
    OK(cudaMalloc(&x, sizeof *x));
    OK(cudaStreamCreate(&blocking));
    OK(cudaStreamCreateWithFlags(&free_one, cudaStreamNonBlocking));
    OK(wait_for_gate(&g, blocking));
    OK(LAUNCH_ON(blocking, fill, 1, 1, x, 1, 1));
    OK(LAUNCH(fill, 1, 1, 0, x, 1, 2));
    OK(LAUNCH_ON(blocking, fill, 1, 1, x, 1, 3));
    OK(LAUNCH_ON(free_one, fill, 1, 1, x, 1, 4));
    OK(cudaStreamSynchronize(free_one));
    MUST(cudaStreamQuery(NULL) == cudaErrorNotReady);
    g.is_open = 1;
    OK(cudaMemcpy(&got, x, sizeof got, cudaMemcpyDeviceToHost));
    MUST(got == 3);
    return 0;
}

static void the_legacy_stream_waits_for_blocking_ones(void **)
{
    expect_well_in_any_order(legacy);
}

static int many_streams(void)
{
    cudaStream_t s[4];
    cudaEvent_t e[4];
    int *x, got[4 * 50];
    OK(cudaMalloc(&x, sizeof got));
    for (int i = 0; i < 4; i++) {
        OK(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
        OK(cudaEventCreateWithFlags(&e[i], cudaEventDisableTiming));
    }
    /* Round and round: each fills what the one before it has filled, and one more. */
    for (int i = 0; i < 200; i++) {
        OK(LAUNCH_ON(s[i % 4], fill, 1, 32, x, i + 1, i));
        OK(cudaEventRecord(e[i % 4], s[i % 4]));
        OK(cudaStreamWaitEvent(s[(i + 1) % 4], e[i % 4]));
    }
    OK(cudaStreamSynchronize(s[3]));
    OK(cudaMemcpy(got, x, sizeof got, cudaMemcpyDeviceToHost));
    for (int v : got)
        MUST(v == 199);
    for (cudaStream_t one : s)
        OK(cudaStreamDestroy(one));
    return 0;
}

static void events_order_many_streams(void **)
{
    expect_well_in_any_order(many_streams);
}

/* ---- copies ---- */

static void note(void *counter)
{
    ++*static_cast<std::atomic<int> *>(counter);
}

static int copies(void)
{
    static std::atomic<int> calls;
    cudaStream_t s;
    int *x, *pinned, h[6][7], back[6][7] = {{0}};
    for (int i = 0; i < 42; i++)
        h[i / 7][i % 7] = i;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&x, sizeof(int) * 6 * 5));
    OK(cudaMallocHost(&pinned, sizeof h));
    size_t five = 5 * sizeof(int), seven = 7 * sizeof(int);
    OK(cudaMemcpy2DAsync(x, five, &h[0][1], seven, five, 6, cudaMemcpyHostToDevice, s));
    OK(cudaMemcpy2DAsync(&back[0][2], seven, x, five, five, 6, cudaMemcpyDeviceToHost, s));
    for (int r = 0; r < 6; r++)
        for (int c = 0; c < 7; c++)
            MUST(back[r][c] == (c < 2 ? 0 : h[r][c - 1]));
    OK(cudaMemcpyAsync(x + 5, x, five, cudaMemcpyDefault, s));
    OK(cudaMemcpyAsync(pinned, x + 5, five, cudaMemcpyDeviceToHost, s));
    OK(cudaLaunchHostFunc(s, note, &calls));
    OK(cudaStreamSynchronize(s));
    MUST(calls == 1 && pinned[0] == 1 && pinned[4] == 5 && pinned[5] == -1);
    MUST(cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    MUST(cudaMemcpy(x, h, 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    MUST(cudaMemset(x, 0, 121) == cudaErrorInvalidValue);
    MUST(cudaMemset(h, 0, 1) == cudaErrorInvalidValue);
    OK(cudaFreeHost(pinned));
    MUST(cudaFreeHost(pinned) == cudaErrorInvalidValue);
    OK(cudaFree(x));
    MUST(cudaFree(x) == cudaErrorInvalidValue);
    OK(cudaFree(NULL));
    return 0;
}

static void copies_move_rows_and_refuse_what_is_wrong(void **)
{
    expect_well(copies, NULL);
}

/* ---- memory's end ---- */

static int fills_the_device(void)
{
    void *p, *q;
    size_t left, all;
    cudaPointerAttributes a;
    OK(cudaMemGetInfo(&left, &all));
    MUST(left == 100000 && all == 100000);
    OK(cudaMalloc(&p, 60000));
    MUST(cudaMalloc(&q, 60000) == cudaErrorMemoryAllocation);
    MUST(q == NULL);
    MUST(cudaGetLastError() == cudaErrorMemoryAllocation);
    MUST(cudaPeekAtLastError() == cudaSuccess);
    OK(cudaMemGetInfo(&left, &all));
    MUST(left < 40001 && left > 39000);
    OK(cudaPointerGetAttributes(&a, static_cast<char *>(p) + 5));
    MUST(a.type == cudaMemoryTypeDevice);
    OK(cudaPointerGetAttributes(&a, &a));
    MUST(a.type == cudaMemoryTypeUnregistered);
    OK(cudaFree(p));
    for (int i = 0; i < 3000; i++) {
        OK(cudaMalloc(&q, 90000));
        MUST(q != p && reinterpret_cast<uintptr_t>(q) % 256 == 0);
        OK(cudaFree(q));
    }
    return 0;
}

static void a_full_device_says_so(void **)
{
    expect_well(fills_the_device, "TRAINYARD_EMU_MEMORY=100000");
}

/* ---- errors ---- */

static int second_malloc_fails(void)
{
    void *p;
    OK(cudaMalloc(&p, 10));
    MUST(cudaMalloc(&p, 10) == cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 10));
    return 0;
}

static int kernel_breaks_the_device(void)
{
    int *x, h = 5;
    cudaEvent_t e;
    cudaStream_t s;
    OK(cudaMalloc(&x, sizeof *x));
    OK(cudaEventCreate(&e));
    OK(LAUNCH(fill, 1, 1, 0, x, 1, 1));
    OK(LAUNCH(fill, 1, 1, 0, x, 1, 2));
    MUST(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    MUST(cudaGetLastError() == cudaErrorIllegalAddress);
    MUST(cudaGetLastError() == cudaErrorIllegalAddress);
    MUST(LAUNCH(fill, 1, 1, 0, x, 1, 3) == cudaErrorIllegalAddress);
    MUST(cudaMemcpy(&h, x, sizeof h, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress && h == 5);
    MUST(cudaStreamCreate(&s) == cudaErrorIllegalAddress);
    MUST(cudaEventQuery(e) == cudaErrorIllegalAddress);
    MUST(strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") == 0);
    MUST(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    return 0;
}

static int launch_fails_with_a_code(void)
{
    int *x;
    OK(cudaMalloc(&x, sizeof *x));
    MUST(LAUNCH(fill, 1, 1, 0, x, 1, 1) == cudaErrorECCUncorrectable);
    MUST(emu_broken() == cudaErrorECCUncorrectable);
    return 0;
}

static void faults_come_on_demand(void **)
{
    expect_well(second_malloc_fails, "TRAINYARD_EMU_FAIL=MALLOC:2");
    expect_well(kernel_breaks_the_device, "TRAINYARD_EMU_FAIL=COPY:9,KERNEL:2");
    expect_well(launch_fails_with_a_code, "TRAINYARD_EMU_FAIL=LAUNCH:1:cudaErrorECCUncorrectable");
}

/* A process forked from one whose device works has none. */
static int forks(void)
{
    int *x, status, n;
    OK(cudaMalloc(&x, sizeof *x));
    OK(LAUNCH(fill, 1, 1, 0, x, 1, 1));
    pid_t p = fork();
    if (p == 0)
        _exit(cudaMalloc(&x, 4) == cudaErrorInitializationError &&
                      cudaGetDeviceCount(&n) == cudaErrorInitializationError
                  ? 0
                  : 1);
    MUST(waitpid(p, &status, 0) == p && status == 0);
    OK(cudaDeviceSynchronize());
    return 0;
}

static void a_forked_process_has_no_device(void **)
{
    expect_well(forks, NULL);
}

/* ---- devices ---- */

static int one_device(void)
{
    int n = 0, v = 0;
    cudaDeviceProp p;
    char id[32], again[32];
    OK(cudaGetDeviceCount(&n));
    MUST(n == 1);
    OK(cudaGetDeviceProperties(&p, 0));
    MUST(strcmp(p.name, "Emulated GPU") == 0 && p.major == 9 && p.multiProcessorCount == 3);
    MUST(static_cast<unsigned char>(p.uuid.bytes[0]) == 0xab && p.uuid.bytes[15] == 0x3f);
    OK(cudaDeviceGetAttribute(&v, cudaDevAttrMultiProcessorCount, 0));
    MUST(v == 3);
    OK(cudaDeviceGetPCIBusId(id, sizeof id, 0));
    OK(cudaDeviceGetPCIBusId(again, sizeof again, 0));
    MUST(strlen(id) == 12 && strcmp(id, again) == 0);
    MUST(cudaSetDevice(1) == cudaErrorInvalidDevice);
    OK(cudaRuntimeGetVersion(&v));
    MUST(v == 13000);
    return 0;
}

static int two_devices(void)
{
    int n = 0, *x;
    cudaDeviceProp p[2];
    cudaStream_t s;
    OK(cudaGetDeviceCount(&n));
    MUST(n == 2);
    OK(cudaGetDeviceProperties(&p[0], 0));
    OK(cudaGetDeviceProperties(&p[1], 1));
    MUST(memcmp(&p[0].uuid, &p[1].uuid, sizeof p[0].uuid) != 0);
    OK(cudaStreamCreate(&s));
    OK(cudaMalloc(&x, sizeof *x));
    OK(cudaSetDevice(1));
    MUST(LAUNCH_ON(s, fill, 1, 1, x, 1, 1) == cudaErrorInvalidResourceHandle);
    OK(LAUNCH(fill, 1, 1, 0, x, 1, 1));
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 2;
}

static int no_device(void)
{
    int n = 7;
    void *p;
    MUST(cudaGetDeviceCount(&n) == cudaErrorNoDevice && n == 0);
    MUST(cudaMalloc(&p, 4) == cudaErrorNoDevice);
    return 0;
}

static void devices_are_those_that_are_visible(void **)
{
    expect_well(one_device,
                "CUDA_VISIBLE_DEVICES=GPU-ab000000-1111-2222-3333-44444444443f,nothing,GPU-0");
    expect_death(two_devices, "CUDA_VISIBLE_DEVICES=0,1", SIGABRT,
                 "fill runs on device 1 and uses memory of device 0");
    expect_well(no_device, "CUDA_VISIBLE_DEVICES=");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_and_events_can_be_asked),
        cmocka_unit_test(the_legacy_stream_waits_for_blocking_ones),
        cmocka_unit_test(events_order_many_streams),
        cmocka_unit_test(copies_move_rows_and_refuse_what_is_wrong),
        cmocka_unit_test(a_full_device_says_so),
        cmocka_unit_test(faults_come_on_demand),
        cmocka_unit_test(a_forked_process_has_no_device),
        cmocka_unit_test(devices_are_those_that_are_visible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
