/* The GPU's streams, memory and failures, over the emulated device: each test is a process of its
 * own, in each of the orders in which streams and blocks may go. */
#include "tests/unit/emu_child.h"

#include "trainer/cuda/device_parts.h"
#include "trainer/cuda/ops_cuda.h"
#include "trainer/cuda/tape.h"

#define ONE_GPU "CUDA_VISIBLE_DEVICES=0"

static int opened(enum compute_type compute, int is_plain)
{
    struct ops_options o = {compute, 1 << 16, is_plain};
    struct err e = {};
    if (!cuda_open(&o, &e))
        return 1;
    fprintf(stderr, "%s\n", e.text);
    return 0;
}

/* Of cuda_open() and of cuda_finish(): the sentence that is looked for. */
static int says(int r, const struct err *e, int code, const char *words)
{
    if (r == code && strstr(e->text, words))
        return 1;
    fprintf(stderr, "%d: %s\nwanted %d: %s\n", r, e->text, code, words);
    return 0;
}

static int open_says(int code, const char *words)
{
    struct ops_options o = {};
    struct err e = {};
    return says(cuda_open(&o, &e), &e, code, words);
}

static int finish_says(int code, const char *words)
{
    struct err e = {};
    return says(cuda_finish(&e), &e, code, words);
}

/* ---- kernels for it ---- */

__global__ static void add_to(int64_t n, float x, float *y)
{
    GRID_STRIDE(i, n)
    y[i] += x;
}

__global__ static void sum_into(int64_t n, const float *x, float *sum)
{
    if (blockIdx.x || threadIdx.x)
        return;
    for (int64_t i = 0; i < n; i++)
        *sum += x[i];
}

/* ---- memory and copies ---- */

/* Larger than the buffers in between, and changed by the host right after each call. */
static int copies_are_of_their_moment(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0));
    size_t n = (2 * DEVICE_STAGING + 12345) / sizeof(float);
    float *host = static_cast<float *>(mem_alloc(n * sizeof *host));
    float *x = static_cast<float *>(cuda_alloc(n * sizeof *x));
    float *y = static_cast<float *>(cuda_alloc(n * sizeof *y));
    MUST(x && y);
    for (int round = 1; round < 4; round++) {
        for (size_t i = 0; i < n; i++)
            host[i] = static_cast<float>(round) + static_cast<float>(i % 1000);
        cuda_upload(x, host, n * sizeof *x);
        memset(host, 0xff, n * sizeof *host);
        cuda_copy(y, x, n * sizeof *x);
        TAPE_LAUNCH(add_to, tape_grid(1000), TAPE_THREADS, 0, 1000, 0.5f, y);
        cuda_download(host, y, n * sizeof *host);
        for (size_t i = 0; i < n; i++)
            MUST(host[i] == static_cast<float>(round) + static_cast<float>(i % 1000) +
                                (i < 1000 ? 0.5f : 0.0f));
    }
    free(host);
    MUST(cuda_finish(NULL) == 0);
    cuda_close();
    return 0;
}

static int memory_is_zeroed_and_counted(void)
{
    MUST(opened(COMPUTE_BFLOAT16, 0));
    struct ops_options o = {COMPUTE_BFLOAT16, 1 << 16, 0};
    MUST(cuda_used() == static_cast<int64_t>(cuda_workspace(&o)));
    int64_t before = cuda_used();
    unsigned char host[1000];
    void *p = cuda_alloc(1000);
    MUST(p && cuda_used() == before + 1024);
    cuda_download(host, p, sizeof host);
    for (unsigned char b : host)
        MUST(b == 0);
    cuda_release(p);
    cuda_release(NULL);
    MUST(cuda_used() == before);
    MUST(cuda_alloc(SIZE_MAX) == NULL && cuda_alloc((size_t)1 << 40) == NULL);
    MUST(cuda_finish(NULL) == 0); /* a full device has not failed */
    cuda_close();
    cuda_close();
    MUST(opened(COMPUTE_FLOAT32, 1)); /* again */
    cuda_close();
    return 0;
}

/* Two buffers take turns, and the host waits for nothing: what a step reads is overwritten while
 * the next one runs, and not before it has been read. */
static int uploads_beside_wait_for_who_reads(void)
{
    enum { N = 5000, STEPS = 9 };
    MUST(opened(COMPUTE_FLOAT32, 0));
    float *device[2], *sums = static_cast<float *>(cuda_alloc(STEPS * sizeof *sums)), got[STEPS];
    float *host = static_cast<float *>(cuda_alloc_host(STEPS * N * sizeof *host));
    for (float *&d : device)
        d = static_cast<float *>(cuda_alloc(N * sizeof *d));
    for (int i = 0; i < STEPS * N; i++)
        host[i] = static_cast<float>(i / N + 1);
    cuda_upload_beside(device[0], host, N * sizeof *host);
    for (int step = 0; step < STEPS; step++) {
        cuda_join_uploads();
        TAPE_LAUNCH(sum_into, 1, TAPE_THREADS, 0, N, device[step & 1], sums + step);
        if (step + 1 < STEPS)
            cuda_upload_beside(device[!(step & 1)], host + (step + 1) * N, N * sizeof *host);
    }
    cuda_download(got, sums, sizeof got);
    for (int step = 0; step < STEPS; step++)
        MUST(got[step] == static_cast<float>((step + 1) * N));
    cuda_release_host(host);
    MUST(cuda_finish(NULL) == 0);
    cuda_close();
    return 0;
}

/* The host's memory is free again after a download that comes after the join. */
static int downloads_wait_for_joined_uploads(void)
{
    enum { N = 100000 };
    MUST(opened(COMPUTE_FLOAT32, 0));
    float *host = static_cast<float *>(cuda_alloc_host(N * sizeof *host));
    float *to = static_cast<float *>(cuda_alloc(N * sizeof *to)), got = 0.0f, zero = 0.0f;
    void *other = cuda_alloc(64);
    for (int i = 0; i < N; i++)
        host[i] = 3.0f;
    static int looks; /* the copy's stream is slow */
    OK(emu_enqueue(device.beside, "a wait",
                   [] { return ++looks < 3000 ? EMU_NOT_YET : EMU_DONE; }));
    cuda_upload_beside(to, host, N * sizeof *host);
    cuda_join_uploads();
    cuda_download(&zero, other, sizeof zero);
    memset(host, 0xff, N * sizeof *host);
    cuda_download(&got, to + N - 1, sizeof got);
    MUST(got == 3.0f && zero == 0.0f);
    cuda_close();
    return 0;
}

static int scratch_is_one_verbs(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0));
    char *a = static_cast<char *>(device_scratch(1000)),
         *b = static_cast<char *>(device_scratch(1));
    MUST(b == a + 1024);
    device_scratch_done();
    MUST(device_scratch(DEVICE_SCRATCH) == a);
    device_scratch_done();
    cuda_close();
    return 0;
}

/* ---- which GPU ---- */

static int names_itself(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0));
    const struct device_traits *t = device_traits();
    fprintf(stderr, "%s %s %s\n", t->name, t->uuid, t->pci);
    MUST(strcmp(t->uuid, getenv("CUDA_VISIBLE_DEVICES")) == 0);
    MUST(strlen(t->pci) == 12 && t->multiprocessors > 0 && t->memory > 0);
    cuda_close();
    return 0;
}

static int sees_two(void)
{
    MUST(open_says(ERR_INVALID, "this process sees 2 (CUDA_VISIBLE_DEVICES is \"0,1\"): set"));
    return 0;
}

static int sees_none(void)
{
    MUST(open_says(ERR_IO, "CUDA sees no GPU"));
    MUST(open_says(ERR_IO, "CUDA_VISIBLE_DEVICES is \"\""));
    return 0;
}

static int has_an_old_driver(void)
{
    MUST(open_says(ERR_IO, "driver"));
    return 0;
}

static int is_busy(void)
{
    MUST(open_says(ERR_IO, "taken by another process, or its compute mode"));
    return 0;
}

static int is_full_already(void)
{
    MUST(open_says(ERR_NO_MEMORY, "bytes free for the work of the verbs"));
    return 0;
}

static int overridden(void)
{
    MUST(open_says(ERR_INVALID, "NVIDIA_TF32_OVERRIDE is \"1\""));
    MUST(opened(COMPUTE_TF32, 0));
    cuda_close();
    return 0;
}

static void gpus_are_named_or_missed(void **)
{
    expect_well(names_itself, "CUDA_VISIBLE_DEVICES=GPU-01234567-89ab-cdef-0123-456789abcdef");
    expect_well(names_itself, "CUDA_VISIBLE_DEVICES=MIG-01234567-89ab-cdef-0123-456789abcdef");
    expect_well(sees_two, "CUDA_VISIBLE_DEVICES=0,1");
    expect_well(sees_none, "CUDA_VISIBLE_DEVICES=");
    expect_well(has_an_old_driver, "TRAINYARD_EMU_FAIL=INIT:1:cudaErrorInsufficientDriver");
    expect_well(is_busy, "TRAINYARD_EMU_FAIL=INIT:2:cudaErrorDevicesUnavailable");
    expect_well(is_full_already, "TRAINYARD_EMU_MEMORY=1048576");
    expect_well(overridden, "NVIDIA_TF32_OVERRIDE=1");
}

/* ---- failures ---- */

static int kernel_fails(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0));
    float *x = static_cast<float *>(cuda_alloc(4000));
    TAPE_LAUNCH(add_to, tape_grid(1000), TAPE_THREADS, 0, 1000, 1.0f, x);
    cuda_zero(x, 4000);
    MUST(finish_says(ERR_INTERNAL, "a kernel went outside its memory"));
    MUST(finish_says(ERR_INTERNAL, "It was last given zero, add_to."));
    TAPE_LAUNCH(add_to, tape_grid(1000), TAPE_THREADS, 0, 1000, 1.0f, x); /* nothing happens */
    float host[1000];
    cuda_download(host, x, sizeof host);
    cuda_release(x);
    MUST(cuda_alloc(4) == NULL);
    MUST(finish_says(ERR_INTERNAL, "a kernel went outside its memory")); /* the first, still */
    cuda_close();
    return 0;
}

static int ecc_fails(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0));
    float *x = static_cast<float *>(cuda_alloc(4000));
    TAPE_LAUNCH(add_to, tape_grid(1000), TAPE_THREADS, 0, 1000, 1.0f, x);
    MUST(finish_says(ERR_IO, "the GPU must be reset"));
    return 0;
}

static int launch_fails(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0));
    float *x = static_cast<float *>(cuda_alloc(4000));
    TAPE_LAUNCH(add_to, tape_grid(1000), TAPE_THREADS, 0, 1000, 1.0f, x);
    MUST(finish_says(ERR_IO, "launch the kernel add_to with 4 x 1 x 1 blocks of 256 threads"));
    return 0;
}

static int memory_fails(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0)); /* two allocations of its own */
    MUST(cuda_alloc(4000) == NULL);
    MUST(cuda_finish(NULL) == 0);
    float *x = static_cast<float *>(cuda_alloc(4000));
    MUST(x);
    TAPE_LAUNCH(add_to, tape_grid(1000), TAPE_THREADS, 0, 1000, 1.0f, x);
    MUST(cuda_finish(NULL) == 0);
    cuda_close();
    return 0;
}

static int host_memory_fails(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0)); /* two of its own */
    char *p = static_cast<char *>(cuda_alloc_host(5000));
    memset(p, 1, 5000); /* memory all the same */
    MUST(finish_says(ERR_UNAVAILABLE, "no 5000 bytes of page-locked host memory"));
    MUST(finish_says(ERR_UNAVAILABLE, "not the GPU's"));
    cuda_release_host(p);
    return 0;
}

static int blas_fails(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0));
    float *x = static_cast<float *>(cuda_alloc(4000));
    cuda_gemm(0, 0, 10, 10, 10, x, x + 100, 0.0f, x + 200);
    MUST(finish_says(ERR_IO, "could not multiply matrices: the GPU program failed to execute"));
    return 0;
}

static int asked;
static int is_gone(void *context, struct err *e)
{
    MUST(context == &asked);
    return ++asked < 3 ? 0 : err_set(e, ERR_PEER, "Rank 3 has died.");
}

/* What is waited for will never be done: the watcher ends the wait. */
static int peer_dies(void)
{
    MUST(opened(COMPUTE_FLOAT32, 0));
    void *x = cuda_alloc(64);
    device_watch(is_gone, &asked);
    OK(emu_enqueue(device_stream(), "a peer's kernel", [] { return EMU_NOT_YET; }));
    char host[64];
    cuda_download(host, x, sizeof host);
    MUST(finish_says(ERR_PEER, "Rank 3 has died."));
    cuda_close(); /* which waits for nothing */
    _exit(0);
}

static void failures_are_sentences(void **)
{
    expect_well(kernel_fails, "TRAINYARD_EMU_FAIL=KERNEL:1");
    expect_well(ecc_fails, "TRAINYARD_EMU_FAIL=KERNEL:1:cudaErrorECCUncorrectable");
    expect_well(launch_fails, "TRAINYARD_EMU_FAIL=LAUNCH:1:cudaErrorLaunchOutOfResources");
    expect_well(memory_fails, "TRAINYARD_EMU_FAIL=MALLOC:3");
    expect_well(host_memory_fails, "TRAINYARD_EMU_FAIL=MALLOC_HOST:3");
    expect_well(blas_fails, "TRAINYARD_EMU_FAIL=BLAS:1");
    expect_well(peer_dies, ONE_GPU);
}

static void copies_and_streams(void **)
{
    expect_well_in_any_order(copies_are_of_their_moment);
    expect_well_in_any_order(uploads_beside_wait_for_who_reads);
    expect_well_in_any_order(downloads_wait_for_joined_uploads);
    expect_well(memory_is_zeroed_and_counted, ONE_GPU);
    expect_well(scratch_is_one_verbs, ONE_GPU);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_and_streams),
        cmocka_unit_test(gpus_are_named_or_missed),
        cmocka_unit_test(failures_are_sentences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
