/* device_memory.cu: the GPU's memory and the host's that it copies from. */
#include "trainer/cuda/device_parts.h"
#include "trainer/cuda/tape.h"

#define ALIGNMENT ((size_t)256) /* what cudaMalloc() gives anyway */

/* What was given out: a pointer's size, and whose it is. */
struct allocation {
    unsigned char *p;
    size_t bytes;
    int is_host;
};
static struct allocation *allocations;
static size_t allocation_count, allocation_room;
static int64_t used;

static void remember(void *p, size_t bytes, int is_host)
{
    if (allocation_count == allocation_room) {
        allocation_room = allocation_room ? 2 * allocation_room : 64;
        allocations = static_cast<struct allocation *>(
            mem_realloc(allocations, allocation_room * sizeof *allocations));
    }
    allocations[allocation_count++] = {static_cast<unsigned char *>(p), bytes, is_host};
    if (!is_host)
        used += static_cast<int64_t>(bytes);
}

static struct allocation *find(const void *p, int is_host)
{
    const unsigned char *at = static_cast<const unsigned char *>(p);
    for (size_t i = 0; i < allocation_count; i++) {
        struct allocation *a = &allocations[i];
        if (a->is_host == is_host && at >= a->p && at < a->p + a->bytes)
            return a;
    }
    return NULL;
}

static void forget(struct allocation *a)
{
    if (!a->is_host)
        used -= static_cast<int64_t>(a->bytes);
    *a = allocations[--allocation_count];
}

/* ---- the device's ---- */

static void *allocate(size_t bytes)
{
    size_t rounded = bytes < SIZE_MAX / 2 ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : bytes;
    if (!rounded)
        rounded = ALIGNMENT;
    void *p = NULL;
    cudaError_t r = cudaMalloc(&p, rounded);
    if (r == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* not kept: the caller tells what the memory was for */
        return NULL;
    }
    if (!device_ok(r, "allocate memory"))
        return NULL;
    remember(p, rounded, 0);
    return p;
}

/* Beside the compute stream, which may be long busy. */
void *device_alloc(size_t bytes)
{
    if (device_failed())
        return NULL;
    void *p = allocate(bytes);
    if (!p)
        return NULL;
    if (device_ok(cudaMemsetAsync(p, 0, find(p, 0)->bytes, device.beside), "clear memory"))
        device_wait_stream(device.beside);
    return p;
}

/* cudaFree() waits for the whole device; by then there is nothing to wait for. */
void device_release(void *p)
{
    if (!p || device_finish(NULL))
        return;
    struct allocation *a = find(p, 0);
    if (!a || a->p != p)
        BUG("%p is no memory of the device", p);
    forget(a);
    device_ok(cudaFree(p), "free memory");
}

int64_t device_used(void)
{
    return used;
}

/* ---- the host's ---- */

/* A failure that is told later, and memory that serves until then. */
static void *without_pinned(size_t bytes, cudaError_t r)
{
    struct err e = {};
    cudaGetLastError();
    err_set(&e, ERR_UNAVAILABLE,
            "This machine has no %zu bytes of page-locked host memory for copies to and from the "
            "GPU (%s); this is the host's memory, not the GPU's: fewer ranks on the node, smaller "
            "batches, or a higher limit of locked memory (ulimit -l) would help.",
            bytes, cudaGetErrorString(r));
    device_fail(&e);
    return mem_aligned(bytes);
}

void *device_alloc_host(size_t bytes)
{
    void *p = NULL;
    size_t rounded = bytes ? bytes : 1;
    cudaError_t r = device_failed() ? cudaErrorUnknown : cudaMallocHost(&p, rounded);
    if (r == cudaErrorMemoryAllocation)
        return without_pinned(rounded, r);
    if (device_failed() || !device_ok(r, "lock pages of host memory"))
        return mem_aligned(rounded);
    remember(p, rounded, 1);
    return memset(p, 0, rounded);
}

int device_is_pinned(const void *p)
{
    return find(p, 1) != NULL;
}

void device_release_host(void *p)
{
    struct allocation *a = p ? find(p, 1) : NULL;
    if (!a) {
        free(p);
        return;
    }
    if (device_finish(NULL))
        return; /* a copy may still go on */
    forget(a);
    device_ok(cudaFreeHost(p), "free page-locked host memory");
}

/* ---- scratch ---- */

size_t device_scratch_bytes(void)
{
    return DEVICE_SCRATCH;
}

void *device_scratch(size_t bytes)
{
    size_t at = device.scratch_used;
    size_t end = at + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes > DEVICE_SCRATCH || end > DEVICE_SCRATCH)
        BUG("a verb asks for %zu bytes of scratch over %zu; there are %zu", bytes, at,
            DEVICE_SCRATCH);
    device.scratch_used = end;
    return device.scratch + at;
}

void device_scratch_done(void)
{
    device.scratch_used = 0;
}

/* ---- what the device keeps for itself ---- */

/* As large as the largest operand, or as a piece of scratch, where verbs lay out operands. */
size_t device_operand_room(const struct ops_options *o)
{
    if (o->compute != COMPUTE_BFLOAT16 && o->compute != COMPUTE_FLOAT16)
        return 0;
    size_t widest = static_cast<size_t>(o->widest);
    return widest > DEVICE_SCRATCH / sizeof(float) ? widest : DEVICE_SCRATCH / sizeof(float);
}

static int say_full(size_t bytes, struct err *e)
{
    if (device_failed())
        return err_set(e, device.failure.code, "%s", device.failure.text);
    return err_set(e, ERR_NO_MEMORY,
                   "The GPU %s (%s) has no %zu bytes free for the work of the verbs: of its %zu "
                   "bytes others hold too many (nvidia-smi lists them).",
                   device.traits.name, device.traits.uuid, bytes, device.traits.memory);
}

int device_memory_open(struct err *e)
{
    size_t operand = device_operand_room(&device.options) * sizeof(uint16_t);
    device.scratch = static_cast<unsigned char *>(allocate(DEVICE_SCRATCH));
    device.blas_workspace = allocate(DEVICE_BLAS_WORKSPACE);
    int ok = device.scratch && device.blas_workspace;
    for (int i = 0; i < 2 && operand; i++) {
        device.operands[i] = static_cast<uint16_t *>(allocate(operand));
        ok = ok && device.operands[i];
    }
    if (!ok)
        return say_full(DEVICE_SCRATCH + DEVICE_BLAS_WORKSPACE + 2 * operand, e);
    for (struct device_staging &s : device.staging)
        s.host = device_alloc_host(DEVICE_STAGING);
    return device_failed() ? err_set(e, device.failure.code, "%s", device.failure.text) : 0;
}

void device_memory_close(void)
{
    for (size_t i = 0; !device_failed() && i < allocation_count; i++) {
        struct allocation *a = &allocations[i];
        device_ok(a->is_host ? cudaFreeHost(a->p) : cudaFree(a->p), "free memory");
    }
    free(allocations);
    allocations = NULL;
    allocation_count = allocation_room = 0;
    used = 0;
}
